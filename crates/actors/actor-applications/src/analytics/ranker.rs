//! Sorts the counts of a window and keeps the greatest.
//!
//! All rows of the window under way are one object, as in iPipe. When it is full, it is sorted and only the `n`
//! greatest stay. That loses nothing, since a window has each key once.

use actor_objects::{ObjectId, Objects};
use actor_runtime::{Actor, Address, Context, Message, Progress};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::analytics::{COUNTS, KEY_BYTES, Ranked, TOP, WindowPart};
use crate::state::{self, Failure, Outbox};

/// Rows beyond the `n` greatest that wait for a sort.
const ROWS_SORTED_AT_ONCE: usize = 4_096;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Root {
    rows: U64,
    /// Rows in use.
    used: U64,
    /// The window under way, by its end.
    end: U64,
    malformed: U64,
}

/// A count with its key, as an object has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Row {
    pub(crate) count: U64,
    length: u8,
    key: [u8; KEY_BYTES],
}

impl Row {
    pub(crate) fn of(ranked: &Ranked) -> Row {
        let mut row = Row::new_zeroed();
        row.count.set(ranked.count);
        row.length = ranked.key.len().min(KEY_BYTES) as u8;
        row.key[..usize::from(row.length)].copy_from_slice(&ranked.key[..usize::from(row.length)]);
        row
    }

    pub(crate) fn ranked(&self) -> Ranked {
        Ranked {
            count: self.count.get(),
            key: self.key().to_vec(),
        }
    }

    fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.length).min(KEY_BYTES)]
    }

    /// As [`Ranked::sort`].
    pub(crate) fn sort(rows: &mut [Row]) {
        rows.sort_unstable_by(|a, b| {
            let by_count = b.count.get().cmp(&a.count.get());
            by_count.then_with(|| a.key().cmp(b.key()))
        });
    }
}

/// The third worker; it serves one counter.
#[derive(Debug)]
pub struct Ranker {
    n: usize,
    aggregator: Address,
}

impl Ranker {
    /// A ranker that sends the `n` greatest counts; 1 to 500.
    pub fn new(n: u16, aggregator: Address) -> Option<Ranker> {
        (1..=500).contains(&n).then_some(Ranker {
            n: usize::from(n),
            aggregator,
        })
    }

    /// Bytes of the region that it needs.
    pub fn region_bytes(&self) -> usize {
        self.capacity() * size_of::<Row>() + 1024
    }

    fn capacity(&self) -> usize {
        self.n + ROWS_SORTED_AT_ONCE
    }

    fn begin(&self, objects: &mut Objects) -> Result<(), Failure> {
        let root = Root::new_zeroed();
        state::create_root(objects, &root)?;
        let rows = objects
            .allocate(self.capacity() * size_of::<Row>())?
            .to_bits()
            .into();
        state::set_root(objects, &Root { rows, ..root })
    }

    fn take(&self, body: &[u8], objects: &mut Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let mut root: Root = state::root(objects)?;
        let Some(part) = WindowPart::decode(body) else {
            root.malformed += 1;
            return state::set_root(objects, &root);
        };
        if root.end.get() != part.end {
            root.end.set(part.end);
            root.used = U64::ZERO;
        }
        let rows = state::rows_mut::<Row>(objects, ObjectId::from_bits(root.rows.get()))?;
        let mut used = (root.used.get() as usize).min(rows.len());
        for ranked in &part.rows {
            if used == rows.len() {
                Row::sort(rows);
                used = self.n;
            }
            rows[used] = Row::of(ranked);
            used += 1;
        }
        if part.is_last {
            Row::sort(&mut rows[..used]);
            let top = WindowPart {
                rows: rows[..used.min(self.n)].iter().map(Row::ranked).collect(),
                ..part
            };
            outbox.send(self.aggregator, TOP, top.encode());
            used = 0;
        }
        root.used.set(used as u64);
        state::set_root(objects, &root)
    }
}

impl Actor for Ranker {
    fn init(&mut self, context: &mut Context<'_>) {
        state::step(context, |objects, _| self.begin(objects));
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        if message.kind == COUNTS {
            state::step(context, |objects, outbox| {
                self.take(&message.body, objects, outbox)
            });
        }
        Progress::Done
    }
}
