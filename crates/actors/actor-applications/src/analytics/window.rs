//! The counts of a window as a message.

use crate::analytics::KEY_BYTES;
use crate::codec::{Reader, Write as _};

const LAST: u8 = 1;
const INEXACT: u8 = 2;
/// Bytes of a message of counts; below the runtime's limit of a body.
const MESSAGE_BYTES: usize = 48 << 10;

/// A key with its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// How many tuples of the window have the key.
    pub count: u64,
    /// The key.
    pub key: Vec<u8>,
}

impl Ranked {
    /// Puts the greatest count first; of equal counts the smaller key.
    pub fn sort(rows: &mut [Ranked]) {
        rows.sort_unstable_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
    }
}

/// Counts of a window: all that one message says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowPart {
    /// The first time behind the window.
    pub end: u64,
    /// Tuples that were not counted: no room for their key, or late.
    pub refused: u64,
    /// Whether this is the last message of the window.
    pub is_last: bool,
    /// Whether tuples are missing.
    pub is_inexact: bool,
    /// Keys with their counts.
    pub rows: Vec<Ranked>,
}

impl WindowPart {
    /// The body of the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let flags = if self.is_last { LAST } else { 0 } | if self.is_inexact { INEXACT } else { 0 };
        body.put_u64(self.end).put_u64(self.refused).put_u8(flags);
        for row in &self.rows {
            body.put_u64(row.count).put_short(&row.key);
        }
        body
    }

    /// What a body says; [`None`] for another form.
    pub fn decode(body: &[u8]) -> Option<WindowPart> {
        let mut reader = Reader(body);
        let (end, refused, flags) = (reader.u64()?, reader.u64()?, reader.u8()?);
        let mut rows = Vec::new();
        while !reader.0.is_empty() {
            let (count, key) = (reader.u64()?, reader.short()?);
            if key.is_empty() || key.len() > KEY_BYTES {
                return None;
            }
            rows.push(Ranked {
                count,
                key: key.to_vec(),
            });
        }
        (flags & !(LAST | INEXACT) == 0).then_some(WindowPart {
            end,
            refused,
            is_last: flags & LAST != 0,
            is_inexact: flags & INEXACT != 0,
            rows,
        })
    }

    /// The bodies of the messages for a window: one at least, each short enough.
    pub(crate) fn encode_all(self) -> Vec<Vec<u8>> {
        let rows_per_message = MESSAGE_BYTES / (9 + KEY_BYTES);
        let messages = self.rows.len().div_ceil(rows_per_message).max(1);
        let mut rows = self.rows.into_iter();
        (1..=messages)
            .map(|number| {
                let part = WindowPart {
                    is_last: number == messages,
                    rows: rows.by_ref().take(rows_per_message).collect(),
                    ..WindowPart {
                        rows: Vec::new(),
                        ..self
                    }
                };
                part.encode()
            })
            .collect()
    }
}
