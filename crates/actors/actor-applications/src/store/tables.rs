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
use crate::storage::{Storage, StorageError};
use crate::store::cache::{CACHE_BYTES, Cache};
use crate::store::client::Answer;
use crate::store::entry::Entry;
use crate::store::snapshot::{Installed, PART_BYTES, Part, Run};
use crate::store::{
    ANSWER, INSTALL, INSTALLED, KEY_BYTES, MERGE, MERGED, READ, SNAP, SNAPPED, STORED, TICK, WRITTEN, table,
};

/// Tables of level 0 that are merged together.
const LEVEL_0_TABLES: usize = 4;
/// Tables of level 0, at most: further memtables wait.
const LEVEL_0_LIMIT: usize = 16;
/// Levels behind level 0.
const LEVELS: u64 = 5;
/// Parts of a snapshot, at most: each is a table until they are merged.
const PARTS_LIMIT: u64 = 8_000;
/// Bytes of the object with the key until which a snapshot is here: its length, and the key.
const UNTIL_BYTES: usize = 1 + KEY_BYTES;

/// Of a snapshot: nothing comes.
const NONE: u64 = 0;
/// Its parts come.
const COMES: u64 = 1;
/// They are merged.
const MERGES: u64 = 2;

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
    /// The last snapshot: its slot, how far it has got, and its parts.
    install_slot: U64,
    install: U64,
    parts: U64,
    /// The highest slot of its entries.
    highest: U64,
    /// The object with the key until which it is here.
    until: U64,
    /// The last memtable of before.
    forgotten: U64,
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

/// The number of the table of a part of a snapshot.
fn part_table(part: u64) -> u64 {
    1 << 63 | part
}

/// The number of the table of all parts.
fn snapshot_table(slot: u64) -> u64 {
    1 << 62 | slot
}

/// The actor of tables of a replica.
pub struct Tables {
    storage: Box<dyn Storage>,
    cache: Cache,
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
            cache: Cache::new(CACHE_BYTES),
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
        let until = objects.allocate(UNTIL_BYTES)?.to_bits().into();
        state::set_root(objects, &Root { list, until, ..root })
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
            SNAP if message.from == self.memtable => self.snap(&message.body, &root, &rows, outbox)?,
            INSTALL if message.from == self.memtable => {
                self.install(&message.body, &mut root, &mut rows, objects, outbox)?;
            }
            MERGED
                if message.from == self.compaction
                    && root.install == MERGES
                    && reader.u64() == Some(snapshot_table(root.install_slot.get())) =>
            {
                let bytes = reader.u64().ok_or(Failure::Layout)?;
                self.end_install(bytes, &mut root, &mut rows)?;
                self.tell_installed(&root, objects, outbox)?;
            }
            MERGED if message.from == self.compaction => {
                reader = Reader(&message.body);
                if let Some((output, bytes)) = reader.u64().zip(reader.u64()) {
                    self.replace(output, bytes, &mut root, &mut rows)?;
                }
            }
            TICK if message.from == self.memtable => outbox.send(self.memtable, TICK, Vec::new()),
            _ => root.malformed += 1,
        }
        // With a tick, a merge whose message is lost goes on.
        if message.kind == TICK && root.install == MERGES {
            self.merge_parts(&root, outbox);
        }
        if matches!(message.kind, WRITTEN | MERGED | TICK) {
            self.merge(message.kind == TICK, &mut root, &rows, outbox);
        }
        if matches!(message.kind, INSTALL | MERGED) {
            self.cache
                .retain(|table| rows.iter().any(|row| row.table.get() == table));
        }
        root.used.set(rows.len() as u64);
        let into = state::rows_mut::<Row>(objects, list)?;
        into.get_mut(..rows.len())
            .ok_or(Failure::Layout)?
            .copy_from_slice(&rows);
        state::set_root(objects, &root)
    }

    /// What the tables have of a key, from level 0 on, the newest first.
    fn read(&mut self, key: &[u8], rows: &[Row]) -> Result<Answer, Failure> {
        if key.is_empty() || key.len() > KEY_BYTES {
            return Ok(Answer::Refused);
        }
        let mut order: Vec<_> = rows.iter().rev().collect();
        order.sort_by_key(|row| row.level.get());
        for row in order {
            if let Some(found) = self.cache.get(self.storage.as_ref(), row.table.get(), key)? {
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
        if sequence <= root.forgotten.get() {
            // A memtable of before a snapshot: nobody waits for it.
            return;
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
                // The last level is that of a snapshot, as long as one comes.
                let levels = if root.install == NONE { LEVELS } else { LEVELS - 1 };
                (1..levels).contains(&level) && row.bytes.get() > limit(level)
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
        let is_last = root.install == NONE && rows.iter().all(|row| row.level.get() <= to);
        let mut body = Vec::new();
        body.put_u64(merged_table(root.merges.get()))
            .put_u8(u8::from(is_last));
        for row in Tables::inputs(root, rows) {
            body.put_u64(row.table.get());
        }
        outbox.send(self.compaction, MERGE, body);
    }

    /// Adds to a part of a snapshot for another replica what the tables have.
    fn snap(&self, body: &[u8], root: &Root, rows: &[Row], outbox: &mut Outbox) -> Result<(), Failure> {
        let mut reader = Reader(body);
        let asked = reader.u8().zip(reader.u64()).zip(reader.short()).zip(reader.u8());
        let own = Entry::read_all(reader.0);
        let Some(((((to, slot), after), is_all), mut own)) = asked.zip(own).filter(|_| root.install == NONE)
        else {
            return Ok(());
        };
        own.sort_by(|a, b| a.key.cmp(b.key));
        let mut bytes = Vec::new();
        for row in rows {
            let table = row.table.get();
            bytes.push((
                table,
                table::after(self.storage.as_ref(), table, after, PART_BYTES)?,
            ));
        }
        let mut runs = vec![Run {
            entries: own,
            is_all: is_all == 1,
        }];
        for (table, (bytes, is_all)) in &bytes {
            let entries = Entry::read_all(bytes).ok_or(StorageError::Damaged(*table))?;
            runs.push(Run {
                entries: entries.into_iter().filter(|entry| entry.key > after).collect(),
                is_all: *is_all,
            });
        }
        let mut body = vec![to];
        body.put_u8(1).put_u64(slot);
        Part::of(after, runs).write(&mut body);
        outbox.send(self.memtable, SNAPPED, body);
        Ok(())
    }

    /// Takes a part of a snapshot of another replica.
    fn install(
        &mut self,
        body: &[u8],
        root: &mut Root,
        rows: &mut Vec<Row>,
        objects: &mut Objects,
        outbox: &mut Outbox,
    ) -> Result<(), Failure> {
        let mut reader = Reader(body);
        match (reader.u8(), reader.u64()) {
            (Some(0), Some(slot)) if slot > root.install_slot.get() => {
                let sequence = reader.u64().ok_or(Failure::Layout)?;
                for row in rows.drain(..) {
                    self.storage.remove(row.table.get())?;
                }
                for part in 0..root.parts.get() {
                    self.storage.remove(part_table(part))?;
                }
                // A merge under way ends for nobody.
                root.merging_to = U64::ZERO;
                root.merges += 1;
                root.stored.set(sequence);
                root.forgotten.set(sequence);
                root.install_slot.set(slot);
                root.install.set(COMES);
                (root.parts, root.highest) = (U64::ZERO, U64::ZERO);
                objects.set(ObjectId::from_bits(root.until.get()), 0..UNTIL_BYTES, 0)?;
            }
            (Some(1), Some(slot)) if root.install_slot == slot && root.install == COMES => {
                let until = Tables::until(root, objects)?;
                if let Some(part) = Part::read(reader.0).filter(|part| part.after == until) {
                    self.add_part(&part, root, objects, outbox)?;
                }
            }
            _ => {}
        }
        self.tell_installed(root, objects, outbox)
    }

    fn until(root: &Root, objects: &Objects) -> Result<Vec<u8>, Failure> {
        let mut reader = Reader(objects.get(ObjectId::from_bits(root.until.get()))?);
        Ok(reader.short().ok_or(Failure::Layout)?.to_vec())
    }

    fn add_part(
        &mut self,
        part: &Part,
        root: &mut Root,
        objects: &mut Objects,
        outbox: &mut Outbox,
    ) -> Result<(), Failure> {
        let entries = Entry::read_all(&part.entries).ok_or(Failure::Layout)?;
        if root.parts.get() >= PARTS_LIMIT {
            return Err(Failure::Layout);
        }
        if let Some(highest) = entries.iter().map(|entry| entry.slot).max() {
            root.highest.set(highest.max(root.highest.get()));
            self.storage
                .write(part_table(root.parts.get()), &table::encode(&entries))?;
            root.parts += 1;
        }
        let mut until = Vec::new();
        until.put_short(&part.until);
        objects.write(ObjectId::from_bits(root.until.get()), 0, &until)?;
        if part.is_last {
            root.install
                .set(if root.parts == U64::ZERO { NONE } else { MERGES });
            self.merge_parts(root, outbox);
        }
        Ok(())
    }

    /// Has the parts of a snapshot merged into one table.
    fn merge_parts(&self, root: &Root, outbox: &mut Outbox) {
        if root.install == MERGES {
            let mut body = Vec::new();
            body.put_u64(snapshot_table(root.install_slot.get())).put_u8(1);
            for part in 0..root.parts.get() {
                body.put_u64(part_table(part));
            }
            outbox.send(self.compaction, MERGE, body);
        }
    }

    /// The snapshot is a table now.
    fn end_install(&mut self, bytes: u64, root: &mut Root, rows: &mut Vec<Row>) -> Result<(), Failure> {
        rows.push(Row {
            table: snapshot_table(root.install_slot.get()).into(),
            level: LEVELS.into(),
            bytes: bytes.into(),
        });
        for part in 0..root.parts.get() {
            self.storage.remove(part_table(part))?;
        }
        (root.install, root.parts) = (U64::ZERO, U64::ZERO);
        Ok(())
    }

    fn tell_installed(&self, root: &Root, objects: &Objects, outbox: &mut Outbox) -> Result<(), Failure> {
        let installed = Installed {
            slot: root.install_slot.get(),
            is_done: root.install == NONE,
            highest: root.highest.get(),
            until: Tables::until(root, objects)?,
        };
        outbox.send(self.memtable, INSTALLED, installed.encode());
        Ok(())
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
