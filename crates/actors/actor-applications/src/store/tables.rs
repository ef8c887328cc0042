//! The list of tables by level, and reads of what the memtable has not.
//!
//! Level 0 has the memtables as they were written, up to [`LEVEL_0_TABLES`] before they are merged. Each further level is
//! one sorted table. The limit of a level's bytes is [`LEVEL_FACTOR`] times that of the level before. A table that grows
//! beyond it is merged into the next level. The last level has no limit.

use actor_objects::{ObjectId, Objects};
use actor_runtime::{Actor, Address, Context, Message, Progress};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{Reader, Write as _};
use crate::state::{self, Failure, Outbox};
use crate::storage::Storage;
use crate::store::client::Answer;
use crate::store::{ANSWER, KEY_BYTES, MERGE, MERGED, READ, STORED, TICK, WRITTEN, table};

/// Tables of level 0 that are merged together.
const LEVEL_0_TABLES: usize = 4;
/// Tables of level 0, at most: further memtables wait.
const LEVEL_0_LIMIT: usize = 16;
/// Levels behind level 0.
const LEVELS: u64 = 5;
/// How much more a level may have than the one before.
const LEVEL_FACTOR: u64 = 8;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Root {
    list: U64,
    used: U64,
    /// The last memtable that is in the list.
    stored: U64,
    /// Merges so far: each has a new table.
    merges: U64,
    /// The level that a merge under way fills; 0: there is none.
    merging_to: U64,
    /// Of level 0, how many tables the merge has: the oldest.
    merging: U64,
    malformed: U64,
}

/// A table. Rows go from the oldest to the newest of level 0; the order of the other ones is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Row {
    table: U64,
    level: U64,
    bytes: U64,
}

/// The number of the table of a memtable.
pub(crate) fn flushed_table(sequence: u64) -> u64 {
    sequence * 2
}

/// The number of the table of a merge.
fn merged_table(merge: u64) -> u64 {
    merge * 2 + 1
}

/// The actor of tables of a replica.
pub struct Tables {
    storage: Box<dyn Storage>,
    memtable: Address,
    compaction: Address,
    level_bytes: u64,
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

impl Tables {
    /// The tables in `storage`, for the memtable and the compaction actor of the same replica. `level_bytes` is the limit
    /// of level 1.
    pub fn new(
        storage: Box<dyn Storage>,
        memtable: Address,
        compaction: Address,
        level_bytes: u64,
    ) -> Tables {
        Tables {
            storage,
            memtable,
            compaction,
            level_bytes,
        }
    }

    /// Bytes of the region that it needs.
    pub fn region_bytes(&self) -> usize {
        64 << 10
    }

    fn begin(objects: &mut Objects) -> Result<(), Failure> {
        let root = Root::new_zeroed();
        state::create_root(objects, &root)?;
        let rows = LEVEL_0_LIMIT + LEVELS as usize;
        let list = objects.allocate(rows * size_of::<Row>())?.to_bits().into();
        state::set_root(objects, &Root { list, ..root })
    }

    fn take(&mut self, message: &Message, objects: &mut Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let mut root: Root = state::root(objects)?;
        let list = ObjectId::from_bits(root.list.get());
        let used = root.used.get() as usize;
        let mut rows = state::rows::<Row>(objects, list)?
            .get(..used)
            .ok_or(Failure::Layout)?
            .to_vec();
        let mut reader = Reader(&message.body);
        match message.kind {
            READ if message.from == self.memtable => {
                if let Some((client, id)) = reader.u64().zip(reader.u64()) {
                    let answer = self.read(reader.0, &rows)?;
                    outbox.send(Address::Outside(client), ANSWER, answer.encode(id));
                }
            }
            WRITTEN if message.from == self.compaction => {
                if let Some((sequence, bytes)) = reader.u64().zip(reader.u64()) {
                    self.add(sequence, bytes, &mut root, &mut rows, outbox);
                }
            }
            MERGED if message.from == self.compaction => {
                if let Some((output, bytes)) = reader.u64().zip(reader.u64()) {
                    self.replace(output, bytes, &mut root, &mut rows)?;
                }
            }
            TICK if message.from == self.memtable => {}
            _ => root.malformed += 1,
        }
        // With a tick, a merge whose message is lost goes on.
        if matches!(message.kind, WRITTEN | MERGED | TICK) {
            self.merge(message.kind == TICK, &mut root, &rows, outbox);
        }
        root.used.set(rows.len() as u64);
        let into = state::rows_mut::<Row>(objects, list)?;
        into.get_mut(..rows.len())
            .ok_or(Failure::Layout)?
            .copy_from_slice(&rows);
        state::set_root(objects, &root)
    }

    /// What the tables have of a key, from level 0 on, the newest first.
    fn read(&self, key: &[u8], rows: &[Row]) -> Result<Answer, Failure> {
        if key.is_empty() || key.len() > KEY_BYTES {
            return Ok(Answer::Refused);
        }
        let mut order: Vec<_> = rows.iter().rev().collect();
        order.sort_by_key(|row| row.level.get());
        for row in order {
            if let Some(found) = table::get(self.storage.as_ref(), row.table.get(), key)? {
                return Ok(found.map_or(Answer::NotFound, Answer::Found));
            }
        }
        Ok(Answer::NotFound)
    }

    /// Adds the table of a memtable, once.
    fn add(&self, sequence: u64, bytes: u64, root: &mut Root, rows: &mut Vec<Row>, outbox: &mut Outbox) {
        let level_0 = rows.iter().filter(|row| row.level == U64::ZERO).count();
        if sequence == root.stored.get() + 1 && level_0 < LEVEL_0_LIMIT {
            rows.push(Row {
                table: flushed_table(sequence).into(),
                level: U64::ZERO,
                bytes: bytes.into(),
            });
            root.stored.set(sequence);
        }
        if sequence <= root.stored.get() {
            let mut body = Vec::new();
            body.put_u64(sequence);
            outbox.send(self.memtable, STORED, body);
        }
    }

    /// The tables of the merge under way: those of the level above the one that it fills, and of that one.
    fn inputs<'a>(root: &Root, rows: &'a [Row]) -> impl Iterator<Item = &'a Row> {
        let to = root.merging_to.get();
        let oldest = rows.iter().filter(move |row| row.level.get() + 1 == to);
        // Level 0 may have got further tables since.
        let oldest = oldest.take(if to == 1 { root.merging.get() as usize } else { 1 });
        oldest.chain(rows.iter().filter(move |row| row.level.get() == to))
    }

    /// Asks for a merge that is due, or again for the one under way.
    fn merge(&self, repeats: bool, root: &mut Root, rows: &[Row], outbox: &mut Outbox) {
        if root.merging_to == U64::ZERO {
            let level_0 = rows.iter().filter(|row| row.level == U64::ZERO).count();
            let limit = |level: u64| {
                self.level_bytes
                    .saturating_mul(LEVEL_FACTOR.saturating_pow(level as u32 - 1))
            };
            let is_full = |row: &&Row| {
                let level = row.level.get();
                (1..LEVELS).contains(&level) && row.bytes.get() > limit(level)
            };
            let full = rows.iter().filter(is_full).map(|row| row.level.get()).min();
            match full {
                Some(level) => root.merging_to.set(level + 1),
                None if level_0 >= LEVEL_0_TABLES => root.merging_to.set(1),
                None => return,
            }
            root.merging.set(level_0 as u64);
            root.merges += 1;
        } else if !repeats {
            return;
        }
        let to = root.merging_to.get();
        let is_last = rows.iter().all(|row| row.level.get() <= to);
        let mut body = Vec::new();
        body.put_u64(merged_table(root.merges.get()))
            .put_u8(u8::from(is_last));
        for row in Tables::inputs(root, rows) {
            body.put_u64(row.table.get());
        }
        outbox.send(self.compaction, MERGE, body);
    }

    /// Puts the table of the merge under way in place of those that it was made of.
    fn replace(
        &mut self,
        output: u64,
        bytes: u64,
        root: &mut Root,
        rows: &mut Vec<Row>,
    ) -> Result<(), Failure> {
        if root.merging_to == U64::ZERO || output != merged_table(root.merges.get()) {
            return Ok(());
        }
        let inputs: Vec<_> = Tables::inputs(root, rows).copied().collect();
        rows.retain(|row| !inputs.contains(row));
        rows.push(Row {
            table: output.into(),
            level: root.merging_to,
            bytes: bytes.into(),
        });
        root.merging_to = U64::ZERO;
        for row in inputs {
            self.storage.remove(row.table.get())?;
        }
        Ok(())
    }
}

impl Actor for Tables {
    fn init(&mut self, context: &mut Context<'_>) {
        state::step(context, |objects, _| Tables::begin(objects));
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        state::step(context, |objects, outbox| self.take(message, objects, outbox));
        Progress::Done
    }
}
