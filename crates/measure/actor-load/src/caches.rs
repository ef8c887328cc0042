//! What clients ask of memcached and redis, which users would take in place of the store: the same keys and values, in
//! the protocol of each.

use anyhow::{Context as _, Result, bail};
use model::Random;

use crate::clients::{Heard, Workload};
use crate::store::{Draws, Settings};

/// Bytes before the text in memcached's datagrams: number of the request (2), of the datagram (2), datagrams (2), zero (2).
const FRAME_BYTES: usize = 8;

/// Whose protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's text, over TCP.
    Memcached,
    /// memcached's text in datagrams. A client has at most 65,535 requests.
    MemcachedUdp,
    /// RESP, over TCP.
    Redis,
}

/// The workload.
#[derive(Debug)]
pub struct Cache {
    protocol: Protocol,
    draws: Draws,
    /// Reads that found a value.
    found: u64,
}

impl Cache {
    /// Requests for keys that no other run has. Histories are not recorded: these promise nothing of them.
    ///
    /// # Errors
    /// As of [`Store::new`](crate::store::Store::new).
    pub fn new(protocol: Protocol, settings: Settings) -> Result<Cache> {
        Ok(Cache {
            protocol,
            draws: Draws::new(settings)?,
            found: 0,
        })
    }

    /// Reads that found a value.
    pub fn found(&self) -> u64 {
        self.found
    }

    /// The share of requests that read from now on.
    pub fn set_reads(&mut self, reads: f64) {
        self.draws.set_reads(reads);
    }

    /// The text of an answer.
    fn text<'b>(&self, body: &'b [u8]) -> Option<&'b [u8]> {
        match self.protocol {
            Protocol::MemcachedUdp => body.get(FRAME_BYTES..),
            _ => Some(body),
        }
    }
}

/// The length of the first line, with its end.
fn line(bytes: &[u8]) -> Option<usize> {
    Some(bytes.windows(2).position(|of| of == b"\r\n")? + 2)
}

/// The number at the end of a line.
fn last_number(line: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(line).ok()?.trim_end();
    text.rsplit([' ', '$']).next()?.parse().ok()
}

/// The length of the first answer, if all of it has come.
fn whole(bytes: &[u8]) -> Option<usize> {
    let first = line(bytes)?;
    let value = match bytes.first_chunk() {
        // `VALUE key flags bytes`, the value, `END`.
        Some(b"VAL") => last_number(&bytes[..first]).map_or(0, |bytes| bytes.saturating_add(2 + 5)),
        // `$bytes`, the value; `$-1`: none.
        Some([b'$', ..]) => last_number(&bytes[..first]).map_or(0, |bytes| bytes.saturating_add(2)),
        _ => 0,
    };
    let all = first.saturating_add(value);
    (all <= bytes.len()).then_some(all)
}

impl Workload for Cache {
    fn request(&mut self, _place: usize, _number: u64, id: u64, random: &mut Random) -> Result<Vec<u8>> {
        let drawn = self.draws.next(random);
        let key = String::from_utf8(drawn.name).context("a key is no text")?;
        let mut body = Vec::new();
        if self.protocol == Protocol::MemcachedUdp {
            let id = u16::try_from(id).context("a client has too many requests")?;
            for part in [id, 0, 1, 0] {
                body.extend(part.to_be_bytes());
            }
        }
        match (self.protocol, drawn.value) {
            (Protocol::Redis, None) => {
                body.extend(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).bytes());
            }
            (Protocol::Redis, Some((_, value))) => {
                let head = format!(
                    "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n",
                    key.len(),
                    value.len()
                );
                body.extend(head.bytes().chain(value).chain(*b"\r\n"));
            }
            (_, None) => body.extend(format!("get {key}\r\n").bytes()),
            (_, Some((_, value))) => {
                let head = format!("set {key} 0 0 {}\r\n", value.len());
                body.extend(head.bytes().chain(value).chain(*b"\r\n"));
            }
        }
        Ok(body)
    }

    fn whole(&self, bytes: &[u8]) -> Option<usize> {
        whole(bytes)
    }

    fn hear(&self, asked: u64, body: &[u8]) -> Option<(u64, Heard)> {
        let text = self.text(body)?;
        whole(text).filter(|length| *length == text.len())?;
        let id = match self.protocol {
            Protocol::MemcachedUdp => u64::from(u16::from_be_bytes(*body.first_chunk()?)),
            // A connection has one request at a time, and loses none.
            _ => asked,
        };
        let is_refused = text.starts_with(b"-") || text.starts_with(b"SERVER_ERROR");
        let is_wrong = text.starts_with(b"ERROR") || text.starts_with(b"CLIENT_ERROR");
        let heard = match is_refused || is_wrong {
            true => Heard::Refused,
            false => Heard::Ended,
        };
        Some((id, heard))
    }

    fn ended(&mut self, _place: usize, _begin: u64, _end: u64, body: &[u8]) -> Result<()> {
        let text = self.text(body).unwrap_or_default();
        let is_found = text.starts_with(b"VALUE ") || text.starts_with(b"$") && !text.starts_with(b"$-1");
        let is_none = text.starts_with(b"END") || text.starts_with(b"$-1");
        let is_written = text.starts_with(b"STORED") || text.starts_with(b"+OK");
        if !is_found && !is_none && !is_written {
            bail!("`{}` is no answer", String::from_utf8_lossy(text).trim_end());
        }
        self.found += u64::from(is_found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(protocol: Protocol) -> Cache {
        let settings = Settings {
            keys: 10,
            reads: 0.0,
            written: 0,
            value_bytes: 8,
            records: false,
        };
        Cache::new(protocol, settings).unwrap()
    }

    #[test]
    fn requests_have_the_form_of_their_protocols() {
        let mut random = Random::new(1);
        let mut ask = |protocol, reads| {
            let mut cache = of(protocol);
            cache.set_reads(reads);
            cache.request(0, 0, 7, &mut random).unwrap()
        };
        let set = ask(Protocol::Memcached, 0.0);
        assert!(set.starts_with(b"set ") && set.ends_with(b"\r\n"));
        assert!(String::from_utf8_lossy(&set).contains(" 0 0 8\r\n"), "{set:?}");
        let get = ask(Protocol::MemcachedUdp, 1.0);
        assert_eq!(get[..FRAME_BYTES], [0, 7, 0, 0, 0, 1, 0, 0]);
        assert!(get[FRAME_BYTES..].starts_with(b"get "));
        let get = ask(Protocol::Redis, 1.0);
        assert!(get.starts_with(b"*2\r\n$3\r\nGET\r\n$16\r\n"));
        assert!(ask(Protocol::Redis, 0.0).starts_with(b"*3\r\n$3\r\nSET\r\n$16\r\n"));
    }

    #[test]
    fn answers_are_taken_as_a_whole_and_nothing_else() {
        let all: [(&[u8], bool); 6] = [
            (b"VALUE k 0 5\r\na\r\nbc\r\nEND\r\n", true),
            (b"END\r\n", false),
            (b"STORED\r\n", false),
            (b"$5\r\na\r\nbc\r\n", true),
            (b"$-1\r\n", false),
            (b"+OK\r\n", false),
        ];
        for (answer, is_found) in all {
            let mut longer = answer.to_vec();
            longer.extend(b"END\r\n");
            assert_eq!(whole(&longer), Some(answer.len()), "{answer:?}");
            assert!((0..answer.len()).all(|length| whole(&answer[..length]).is_none()));
            let mut cache = of(Protocol::Memcached);
            assert_eq!(cache.hear(3, answer), Some((3, Heard::Ended)));
            cache.ended(0, 0, 1, answer).unwrap();
            assert_eq!(cache.found(), u64::from(is_found));
        }
        let mut cache = of(Protocol::MemcachedUdp);
        assert_eq!(
            cache.hear(3, b"\0\x09\0\0\0\x01\0\0END\r\n"),
            Some((9, Heard::Ended))
        );
        assert_eq!(cache.hear(3, b"\0\x09\0"), None);
        assert_eq!(
            cache.hear(3, b"\0\x09\0\0\0\x01\0\0ERROR\r\n"),
            Some((9, Heard::Refused))
        );
        assert!(cache.ended(0, 0, 1, b"\0\x09\0\0\0\x01\0\0hello\r\n").is_err());
        assert_eq!(
            of(Protocol::Redis).hear(3, b"-ERR x\r\n"),
            Some((3, Heard::Refused))
        );
    }
}
