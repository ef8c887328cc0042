//! Counts keys in a sliding window of event time.
//!
//! The window has `slots` slots of `slot_time` each. Its table is one object with open addressing (linear probing): a
//! row has a key and its count in each slot of a ring. A slot ends when the watermarks of all sources have passed its
//! end. Then the window is sent, and rows without a tuple in the window are left out of the next table.

use actor_objects::{ObjectId, Objects};
use actor_runtime::{Actor, Address, Context, Message, Progress};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::analytics::numbered::{Head, Taken};
use crate::analytics::{COUNTS, KEY_BYTES, KEYS, NUMBERED_KEYS, Ranked, TAKEN, WindowPart};
use crate::codec::Reader;
use crate::state::{self, Failure, Outbox};

/// Slots of a window, at most.
const SLOTS: usize = 16;

/// What a counter is made with.
#[derive(Clone, Debug)]
pub struct CounterSettings {
    /// Slots of a window, 1 to 16.
    pub slots: u16,
    /// Length of a slot, in units of time; at least 1.
    pub slot_time: u64,
    /// Keys in a window, at most.
    pub keys: u32,
    /// Sources, numbered from 0. A window ends when all have passed its end.
    pub sources: u16,
    /// Who ranks the counts.
    pub ranker: Address,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Root {
    table: U64,
    watermarks: U64,
    /// Of each source the session, and the last message of it that was counted.
    sequences: U64,
    /// The slot that is counted, by its number since time 0: all before have ended.
    slot: U64,
    /// Keys in the table.
    used: U64,
    /// Refused and late tuples of the window under way.
    refused: U64,
    /// Messages of another form.
    malformed: U64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Row {
    /// 0: the row is free.
    length: u8,
    key: [u8; KEY_BYTES],
    counts: [U32; SLOTS],
}

impl Row {
    fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.length).min(KEY_BYTES)]
    }
}

/// The second worker.
#[derive(Debug)]
pub struct Counter(CounterSettings);

impl Counter {
    /// A counter; [`None`] if a setting is out of its range.
    pub fn new(settings: CounterSettings) -> Option<Counter> {
        let is_valid = (1..=SLOTS).contains(&usize::from(settings.slots))
            && settings.slot_time > 0
            && settings.keys > 0
            && settings.sources > 0;
        is_valid.then_some(Counter(settings))
    }

    /// Bytes of the region that it needs: the table, and the next one while rows are taken over.
    pub fn region_bytes(&self) -> usize {
        2 * self.rows() * size_of::<Row>() + usize::from(self.0.sources) * 24 + 1024
    }

    /// Rows of the table: a third stay free, so that a probe is short.
    fn rows(&self) -> usize {
        (self.0.keys as usize).saturating_mul(3) / 2 + 1
    }

    fn begin(&self, objects: &mut Objects) -> Result<(), Failure> {
        let root = Root::new_zeroed();
        state::create_root(objects, &root)?;
        let table = objects.allocate(self.rows() * size_of::<Row>())?;
        let watermarks = objects.allocate(usize::from(self.0.sources) * 8)?;
        let sequences = objects.allocate(usize::from(self.0.sources) * size_of::<[U64; 2]>())?;
        let root = Root {
            sequences: sequences.to_bits().into(),
            table: table.to_bits().into(),
            watermarks: watermarks.to_bits().into(),
            ..root
        };
        state::set_root(objects, &root)
    }

    /// Counts a message with a number, if it is the next one of its source, and says how far it has got.
    fn take_numbered(&self, body: &[u8], objects: &mut Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let mut root: Root = state::root(objects)?;
        let mut reader = Reader(body);
        let head = Head::read(&mut reader).zip(Reader(reader.0).u16());
        let Some((head, source)) = head.filter(|(_, source)| *source < self.0.sources) else {
            root.malformed += 1;
            return state::set_root(objects, &root);
        };
        let sequences = ObjectId::from_bits(root.sequences.get());
        let place = usize::from(source);
        let [session, mut last] = state::rows::<[U64; 2]>(objects, sequences)?[place].map(U64::get);
        if head.session < session {
            // A source that has begun anew since.
            return Ok(());
        }
        if head.session > session {
            last = 0;
        }
        if head.sequence == last + 1 {
            self.take(reader.0, objects, outbox)?;
            last = head.sequence;
            state::rows_mut::<[U64; 2]>(objects, sequences)?[place] = [head.session, last].map(U64::new);
        }
        let taken = Taken {
            session: head.session,
            source,
            counter: head.counter,
            counters: head.counters,
            last,
        };
        outbox.send(Address::Outside(head.source), TAKEN, taken.encode());
        Ok(())
    }

    fn take(&self, body: &[u8], objects: &mut Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let mut root: Root = state::root(objects)?;
        let mut reader = Reader(body);
        let head = reader.u16().zip(reader.u64());
        let Some((source, watermark)) = head.filter(|(source, _)| *source < self.0.sources) else {
            root.malformed += 1;
            return state::set_root(objects, &root);
        };
        while let Some((time, key)) = reader.u64().zip(reader.short()) {
            self.count(time, key, &mut root, objects, outbox)?;
        }
        let watermarks = ObjectId::from_bits(root.watermarks.get());
        let all = state::rows_mut::<U64>(objects, watermarks)?;
        if let Some(of) = all.get_mut(usize::from(source)) {
            of.set(of.get().max(watermark));
        }
        let ended = all.iter().map(|of| of.get()).min().unwrap_or(0) / self.0.slot_time;
        self.end_slots(ended, &mut root, objects, outbox)?;
        state::set_root(objects, &root)
    }

    /// Counts a tuple. A tuple of a later slot than the one that is counted lies in the ring, too: it has room for as
    /// many slots as the window. One that lies further ahead ends the slots before: its source is too far ahead of the
    /// others, and what these send for those slots is late.
    fn count(
        &self,
        time: u64,
        key: &[u8],
        root: &mut Root,
        objects: &mut Objects,
        outbox: &mut Outbox,
    ) -> Result<(), Failure> {
        let slot = time / self.0.slot_time;
        if slot < root.slot.get() {
            root.refused += 1;
            return Ok(());
        }
        // Of the ring's places the window's older slots need `slots - 1`, so `SLOTS - slots` later ones have room.
        let ahead = SLOTS as u64 - u64::from(self.0.slots);
        self.end_slots(slot.saturating_sub(ahead), root, objects, outbox)?;
        let table = state::rows_mut::<Row>(objects, ObjectId::from_bits(root.table.get()))?;
        let Some(row) = place_of(table, key) else {
            root.refused += 1;
            return Ok(());
        };
        if row.length == 0 {
            if root.used.get() >= u64::from(self.0.keys) {
                root.refused += 1;
                return Ok(());
            }
            root.used += 1;
            row.length = key.len() as u8;
            row.key[..key.len()].copy_from_slice(key);
        }
        let count = &mut row.counts[(slot % SLOTS as u64) as usize];
        count.set(count.get().saturating_add(1));
        Ok(())
    }

    /// Ends all slots before `until`: sends the window that ends with each. Of windows without a tuple only the last is
    /// sent, so that a watermark far ahead costs no more than a ring of slots.
    fn end_slots(
        &self,
        until: u64,
        root: &mut Root,
        objects: &mut Objects,
        outbox: &mut Outbox,
    ) -> Result<(), Failure> {
        while root.slot.get() < until {
            if root.used == U64::ZERO && root.refused == U64::ZERO {
                root.slot.set(until - 1);
            }
            self.end_slot(root, objects, outbox)?;
        }
        Ok(())
    }

    fn end_slot(&self, root: &mut Root, objects: &mut Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let slot = root.slot.get();
        let slots = u64::from(self.0.slots);
        let window = (slot + 1).saturating_sub(slots)..slot + 1;
        let old = ObjectId::from_bits(root.table.get());
        let mut rows = Vec::new();
        let mut kept = Vec::new();
        for row in state::rows::<Row>(objects, old)?
            .iter()
            .filter(|row| row.length > 0)
        {
            let count_in = |slot: u64| u64::from(row.counts[(slot % SLOTS as u64) as usize].get());
            let count = window.clone().map(count_in).sum::<u64>();
            if count > 0 {
                rows.push(Ranked {
                    count,
                    key: row.key().to_vec(),
                });
            }
            let mut row = *row;
            // The oldest slot leaves the window; its place is the next one behind the ring.
            if slot + 1 >= slots {
                row.counts[((slot + 1 - slots) % SLOTS as u64) as usize] = U32::ZERO;
            }
            if row.counts.iter().any(|count| *count != U32::ZERO) {
                kept.push(row);
            }
        }
        let new = objects.allocate(self.rows() * size_of::<Row>())?;
        let table = state::rows_mut::<Row>(objects, new)?;
        root.used.set(kept.len() as u64);
        for row in kept {
            if let Some(place) = place_of(table, row.key()) {
                *place = row;
            }
        }
        objects.free(old)?;
        root.table.set(new.to_bits());
        let part = WindowPart {
            end: (slot + 1).saturating_mul(self.0.slot_time),
            refused: root.refused.get(),
            is_last: true,
            is_inexact: root.refused > U64::ZERO,
            rows,
        };
        for body in part.encode_all() {
            outbox.send(self.0.ranker, COUNTS, body);
        }
        root.refused = U64::ZERO;
        root.slot += 1;
        Ok(())
    }
}

/// The row of a key, or a free one for it; [`None`] if the key is no key or the table has no free row.
fn place_of<'a>(table: &'a mut [Row], key: &[u8]) -> Option<&'a mut Row> {
    if key.is_empty() || key.len() > KEY_BYTES {
        return None;
    }
    // Another part of the hash than the one that has chosen the counter.
    let first = crc32fast::hash(key).rotate_left(16).wrapping_mul(0x9e37_79b1) as usize % table.len();
    let places = (first..table.len()).chain(0..first);
    let mut matching = places.filter(|place| table[*place].length == 0 || table[*place].key() == key);
    let place = matching.next()?;
    Some(&mut table[place])
}

impl Actor for Counter {
    fn init(&mut self, context: &mut Context<'_>) {
        state::step(context, |objects, _| self.begin(objects));
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        match message.kind {
            KEYS => state::step(context, |objects, outbox| {
                self.take(&message.body, objects, outbox)
            }),
            NUMBERED_KEYS => state::step(context, |objects, outbox| {
                self.take_numbered(&message.body, objects, outbox)
            }),
            _ => {}
        }
        Progress::Done
    }
}
