//! Has a part of the keys: reads, locks, validates and writes them.

use actor_objects::{ObjectId, Objects};
use actor_runtime::{Actor, Address, Context, Message, Progress};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::state::{self, Failure, Outbox};
use crate::transactions::hash_table::{HashTable, Row};
use crate::transactions::message::{Locked, Order, Reply};
use crate::transactions::{ACTIVE_LIMIT, Read};

/// The index of the participant that has a key: its CRC-32 modulo their number, which is at least 1.
pub fn participant_of(key: &[u8], participants: usize) -> usize {
    crc32fast::hash(key) as usize % participants.max(1)
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Root {
    table: U64,
    known: U64,
    malformed: U64,
}

/// A transaction that was seen last of those with the same number modulo [`ACTIVE_LIMIT`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Known {
    transaction: U64,
    has_ended: U64,
}

/// A participant.
#[derive(Debug)]
pub struct Participant {
    coordinator: Address,
}

impl Participant {
    /// A participant that obeys this coordinator.
    pub fn new(coordinator: Address) -> Participant {
        Participant { coordinator }
    }

    fn begin(objects: &mut Objects) -> Result<(), Failure> {
        let root = Root::new_zeroed();
        state::create_root(objects, &root)?;
        let table = HashTable::create(objects)?.0.to_bits().into();
        let known = objects
            .allocate(ACTIVE_LIMIT as usize * size_of::<Known>())?
            .to_bits()
            .into();
        state::set_root(objects, &Root { table, known, ..root })
    }

    fn take(&self, message: &Message, objects: &mut Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let mut root: Root = state::root(objects)?;
        let order = Order::decode(message.kind, &message.body).filter(|_| message.from == self.coordinator);
        let Some((transaction, order)) = order else {
            root.malformed += 1;
            return state::set_root(objects, &root);
        };
        let list = ObjectId::from_bits(root.known.get());
        let place = (transaction % ACTIVE_LIMIT) as usize;
        let known = state::rows::<Known>(objects, list)?[place];
        // The coordinator begins one only when the one before in this place has ended everywhere.
        let has_ended = known.transaction.get() > transaction
            || known.transaction == transaction && known.has_ended != U64::ZERO;
        let mut table = HashTable(ObjectId::from_bits(root.table.get()));
        let is_end = matches!(order, Order::Commit { .. } | Order::Abort { .. });
        let reply = match order {
            _ if has_ended => is_end.then_some(Reply::Done),
            Order::Lock { reads, writes } => Some(Reply::Locked(lock(
                transaction,
                &reads,
                &writes,
                &mut table,
                objects,
            )?)),
            Order::Validate { reads } => {
                let mut is_valid = true;
                for (key, version) in reads {
                    let row = table.get(objects, key)?;
                    is_valid &= row.version == version && [0, transaction].contains(&row.locked_by);
                }
                Some(Reply::Validated(is_valid))
            }
            Order::Commit { writes } => {
                for (key, version, value) in writes {
                    let row = Row {
                        key: key.to_vec(),
                        version,
                        locked_by: 0,
                        value: value.to_vec(),
                    };
                    table.put(objects, row)?;
                }
                Some(Reply::Done)
            }
            Order::Abort { writes } => {
                for key in writes {
                    let row = table.get(objects, key)?;
                    if row.locked_by == transaction {
                        table.put(objects, Row { locked_by: 0, ..row })?;
                    }
                }
                Some(Reply::Done)
            }
        };
        if !has_ended {
            state::rows_mut::<Known>(objects, list)?[place] = Known {
                transaction: transaction.into(),
                has_ended: u64::from(is_end).into(),
            };
        }
        if let Some(reply) = reply {
            let (kind, body) = reply.encode(transaction);
            outbox.send(self.coordinator, kind, body);
        }
        root.table = table.0.to_bits().into();
        state::set_root(objects, &root)
    }
}

/// Reads and locks, unless another transaction has locked one of the keys.
fn lock(
    transaction: u64,
    reads: &[&[u8]],
    writes: &[&[u8]],
    table: &mut HashTable,
    objects: &mut Objects,
) -> Result<Option<Locked>, Failure> {
    for key in reads.iter().chain(writes) {
        if ![0, transaction].contains(&table.get(objects, key)?.locked_by) {
            return Ok(None);
        }
    }
    let (mut read, mut versions) = (Vec::new(), Vec::new());
    for key in reads {
        let Row { version, value, .. } = table.get(objects, key)?;
        read.push(Read { version, value });
    }
    for key in writes {
        let row = table.get(objects, key)?;
        versions.push(row.version);
        table.put(
            objects,
            Row {
                locked_by: transaction,
                ..row
            },
        )?;
    }
    Ok(Some(Locked {
        reads: read,
        versions,
    }))
}

impl Actor for Participant {
    fn init(&mut self, context: &mut Context<'_>) {
        state::step(context, |objects, _| Participant::begin(objects));
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        state::step(context, |objects, outbox| self.take(message, objects, outbox));
        Progress::Done
    }
}
