//! Messages between coordinator and participants. All begin with the number of the transaction (8).
//!
//! | kind | what follows |
//! | --- | --- |
//! | 0x320 lock | keys that are read (1), each (1 and bytes); keys that are locked, each (1 and bytes) |
//! | 0x321 locked | 1: yes; then the number of reads (1), for each version (8) and value (2 and bytes), for each lock the version (8). 0: no |
//! | 0x322 validate | for each read key (1 and bytes) and version (8) |
//! | 0x323 validated | 1: yes. 0: no |
//! | 0x324 commit | for each write key (1 and bytes), new version (8), value (2 and bytes) |
//! | 0x325 abort | locked keys (1 and bytes) |
//! | 0x326 done | nothing: committed or aborted |

use crate::codec::{Reader, Write as _};
use crate::transactions::Read;

const FIRST_KIND: u32 = 0x320;

/// What the coordinator wants of a participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order<'a> {
    Lock {
        reads: Vec<&'a [u8]>,
        writes: Vec<&'a [u8]>,
    },
    Validate {
        reads: Vec<(&'a [u8], u64)>,
    },
    Commit {
        writes: Vec<(&'a [u8], u64, &'a [u8])>,
    },
    Abort {
        writes: Vec<&'a [u8]>,
    },
}

/// What a participant has read and locked, in the order of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Locked {
    pub(crate) reads: Vec<Read>,
    /// Of the locked keys.
    pub(crate) versions: Vec<u64>,
}

/// What a participant answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// [`None`]: another transaction has locked a key.
    Locked(Option<Locked>),
    Validated(bool),
    Done,
}

impl<'a> Order<'a> {
    pub(crate) fn encode(&self, transaction: u64) -> (u32, Vec<u8>) {
        let mut body = Vec::new();
        body.put_u64(transaction);
        let kind = match self {
            Order::Lock { reads, writes } => {
                body.put_u8(reads.len() as u8);
                for key in reads.iter().chain(writes) {
                    body.put_short(key);
                }
                0
            }
            Order::Validate { reads } => {
                for (key, version) in reads {
                    body.put_short(key).put_u64(*version);
                }
                2
            }
            Order::Commit { writes } => {
                for (key, version, value) in writes {
                    body.put_short(key).put_u64(*version).put_long(value);
                }
                4
            }
            Order::Abort { writes } => {
                for key in writes {
                    body.put_short(key);
                }
                5
            }
        };
        (FIRST_KIND + kind, body)
    }

    pub(crate) fn decode(kind: u32, body: &'a [u8]) -> Option<(u64, Order<'a>)> {
        let mut reader = Reader(body);
        let transaction = reader.u64()?;
        let order = match kind.checked_sub(FIRST_KIND)? {
            0 => {
                let reads = reader.u8()?;
                let reads = (0..reads).map(|_| reader.short()).collect::<Option<_>>()?;
                let writes = keys(&mut reader)?;
                Order::Lock { reads, writes }
            }
            2 => {
                let mut reads = Vec::new();
                while !reader.0.is_empty() {
                    reads.push((reader.short()?, reader.u64()?));
                }
                Order::Validate { reads }
            }
            4 => {
                let mut writes = Vec::new();
                while !reader.0.is_empty() {
                    writes.push((reader.short()?, reader.u64()?, reader.long()?));
                }
                Order::Commit { writes }
            }
            5 => Order::Abort {
                writes: keys(&mut reader)?,
            },
            _ => return None,
        };
        Some((transaction, order))
    }
}

/// Keys until the end.
fn keys<'a>(reader: &mut Reader<'a>) -> Option<Vec<&'a [u8]>> {
    let mut keys = Vec::new();
    while !reader.0.is_empty() {
        keys.push(reader.short()?);
    }
    Some(keys)
}

impl Reply {
    pub(crate) fn encode(&self, transaction: u64) -> (u32, Vec<u8>) {
        let mut body = Vec::new();
        body.put_u64(transaction);
        let kind = match self {
            Reply::Locked(Some(Locked { reads, versions })) => {
                body.put_u8(1).put_u8(reads.len() as u8);
                for read in reads {
                    body.put_u64(read.version).put_long(&read.value);
                }
                for version in versions {
                    body.put_u64(*version);
                }
                1
            }
            Reply::Locked(None) => {
                body.put_u8(0);
                1
            }
            Reply::Validated(is_valid) => {
                body.put_u8(u8::from(*is_valid));
                3
            }
            Reply::Done => 6,
        };
        (FIRST_KIND + kind, body)
    }

    pub(crate) fn decode(kind: u32, body: &[u8]) -> Option<(u64, Reply)> {
        let mut reader = Reader(body);
        let transaction = reader.u64()?;
        let reply = match kind.checked_sub(FIRST_KIND)? {
            1 if reader.u8()? == 0 => Reply::Locked(None),
            1 => {
                let (mut reads, mut versions) = (Vec::new(), Vec::new());
                for _ in 0..reader.u8()? {
                    let (version, value) = (reader.u64()?, reader.long()?.to_vec());
                    reads.push(Read { version, value });
                }
                while !reader.0.is_empty() {
                    versions.push(reader.u64()?);
                }
                Reply::Locked(Some(Locked { reads, versions }))
            }
            3 => Reply::Validated(reader.u8()? == 1),
            6 => Reply::Done,
            _ => return None,
        };
        reader.end((transaction, reply))
    }
}
