//! Taking over a table that another process left behind, whatever its bytes are by now.
//!
//! Entries are what counts: key, pins, state, times, counters and service. Index, timers and free list follow from
//! them and are built anew, so that nothing in the old ones needs to be believed.

use std::ops::{AddAssign, DerefMut};

use model::{Direction, Nanos, ServiceId, Slot, Timeouts};

use crate::entry::{State, half, is_pin_valid, protocol_of, raw_pin, with_pin};
use crate::region::{GROUP, Region};
use crate::timeout::tick;
use crate::{
    FlowHasher, FlowTable, Holder, Identity, Line, TableConfig, TableError, TimeoutClass, bucket, header,
    journal, layout, store,
};

/// What became of the entries when a table was attached. All are counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachCounts {
    /// Flows taken over.
    pub flows: u64,
    /// Repaired: flows of which several words were about to change: moves, counters that carried. They have changed.
    pub redone: u64,
    /// Repaired: flows that were about to be inserted or removed. They are not in the table.
    pub unfinished: u64,
    /// Repaired: flows that the index did not name.
    pub unindexed: u64,
    /// Repaired: places in the index that named an entry that never existed, or one that was named before.
    pub torn_places: u64,
    /// Repaired: flows last seen in the future. They count as seen just now.
    pub times: u64,
    /// Repaired: flows that lost a pin because a purge of its slot was under way. The purge is complete now.
    pub unpinned: u64,
    /// Rejected: entries in a state that flows of their protocol do not have, or with bits set that none has.
    pub malformed: u64,
    /// Rejected: entries with a pin to a slot that cannot exist.
    pub unknown_slots: u64,
    /// Rejected: entries of a service that cannot exist.
    pub unknown_services: u64,
    /// Rejected: flows that another worker owns.
    pub foreign: u64,
    /// Rejected: entries of a flow that had one already.
    pub duplicates: u64,
    /// Rejected: flows for which the new index had no place.
    pub no_room: u64,
}

impl AttachCounts {
    /// What was repaired, by name. These flows stay or had not begun.
    pub fn repaired(&self) -> [(&'static str, u64); 6] {
        [
            ("redone", self.redone),
            ("unfinished", self.unfinished),
            ("unindexed", self.unindexed),
            ("torn_places", self.torn_places),
            ("times", self.times),
            ("unpinned", self.unpinned),
        ]
    }

    /// What was rejected, by name. The next packet of such a flow begins a new one.
    pub fn rejected(&self) -> [(&'static str, u64); 6] {
        [
            ("malformed", self.malformed),
            ("unknown_slots", self.unknown_slots),
            ("unknown_services", self.unknown_services),
            ("foreign", self.foreign),
            ("duplicates", self.duplicates),
            ("no_room", self.no_room),
        ]
    }

    /// Entries repaired, in whatever way.
    pub fn repaired_entries(&self) -> u64 {
        self.repaired().iter().map(|(_, count)| count).sum()
    }

    /// Entries rejected, for whatever reason.
    pub fn rejected_entries(&self) -> u64 {
        self.rejected().iter().map(|(_, count)| count).sum()
    }
}

impl AddAssign for AttachCounts {
    fn add_assign(&mut self, other: AttachCounts) {
        self.flows += other.flows;
        self.redone += other.redone;
        self.unfinished += other.unfinished;
        self.unindexed += other.unindexed;
        self.torn_places += other.torn_places;
        self.times += other.times;
        self.unpinned += other.unpinned;
        self.malformed += other.malformed;
        self.unknown_slots += other.unknown_slots;
        self.unknown_services += other.unknown_services;
        self.foreign += other.foreign;
        self.duplicates += other.duplicates;
        self.no_room += other.no_room;
    }
}

/// What the numbers in a table that is converted are now.
#[derive(Clone, Copy)]
pub struct Numbers<'a> {
    /// The service that had this number; none if it exists no more: its flows are not taken over.
    pub service: &'a dyn Fn(ServiceId) -> Option<ServiceId>,
    /// The slot of the instance that had this one; none if it exists no more: its flows lose that pin.
    pub slot: &'a dyn Fn(Slot) -> Option<Slot>,
}

impl Numbers<'_> {
    /// The same numbers.
    pub const SAME: Numbers<'static> = Numbers {
        service: &|service| Some(service),
        slot: &|slot| Some(slot),
    };
}

/// The entries that an index names, a bit each.
struct Named(Vec<u64>);

impl Named {
    /// Reads the index of a region and empties it, before it is built anew.
    fn take(index: &mut [Line], high_water: u32, counts: &mut AttachCounts) -> Named {
        let mut named = vec![0_u64; (high_water as usize).div_ceil(64)];
        for line in index {
            let mut places = bucket::occupied(line);
            while places != 0 {
                let entry = bucket::entry(line, places.trailing_zeros() as usize);
                places &= places - 1;
                let bit = 1 << (entry % 64);
                match named.get_mut(entry as usize / 64) {
                    Some(word) if entry < high_water && *word & bit == 0 => *word |= bit,
                    _ => counts.torn_places += 1,
                }
            }
            *line = Line::ZERO;
        }
        Named(named)
    }

    #[inline(always)]
    fn has(&self, entry: u32) -> bool {
        self.0
            .get(entry as usize / 64)
            .is_some_and(|word| word >> (entry % 64) & 1 != 0)
    }
}

/// Entries that are restored together: each with its hash and when it is due.
struct Group {
    entries: [(u32, u64, u64); GROUP],
    len: usize,
}

impl Group {
    const EMPTY: Group = Group {
        entries: [(0, 0, 0); GROUP],
        len: 0,
    };

    #[inline(always)]
    fn push(&mut self, entry: (u32, u64, u64)) {
        if let Some(place) = self.entries.get_mut(self.len) {
            *place = entry;
            self.len += 1;
        }
    }

    #[inline(always)]
    fn entries(&self) -> &[(u32, u64, u64)] {
        &self.entries[..self.len.min(GROUP)]
    }
}

/// Why an entry is rejected.
enum Defect {
    Malformed,
    Slot,
    Service,
}

/// What can be wrong with an entry by itself.
#[inline(always)]
fn defect(region: &Region, lines: &[Line], entry: u32) -> Option<Defect> {
    let head = region.head(lines, entry);
    let state = State::of(head[0]);
    if !state.is_valid(protocol_of(head[0])) || region.padding(lines, entry) != 0 {
        return Some(Defect::Malformed);
    }
    if !is_pin_valid(head[1]) || !is_pin_valid(head[2]) {
        return Some(Defect::Slot);
    }
    (usize::from(region.service(lines, entry)) >= ServiceId::LIMIT).then_some(Defect::Service)
}

/// The time of the table when it was left, and now, in ticks.
#[derive(Clone, Copy)]
struct Absence {
    left: u64,
    now: u64,
}

impl Absence {
    /// Ticks that a flow had been idle when the table was left, and whether its time was impossible.
    #[inline(always)]
    fn idle(self, head: &[u64; 4]) -> (u64, bool) {
        let seen = half::seen_of(head[1], head[2]);
        let before = self.left.wrapping_sub(seen) & half::SEEN_MASK;
        if before <= half::SEEN_MASK / 2 {
            return (before, false);
        }
        // Seen after the last call of `expire`; not after now.
        let after = seen.wrapping_sub(self.left) & half::SEEN_MASK;
        (0, self.left + after > self.now)
    }
}

/// Removes pins to closed slots from an entry. Returns whether there was one.
#[cold]
fn unpin_closed(head: &mut [u64; 4], closed: impl Fn(Slot) -> Option<bool>) -> bool {
    let mut is_changed = false;
    for direction in [Direction::Forward, Direction::Reverse].map(Direction::index) {
        if let Some(failed) = closed(raw_pin(head[1 + direction])) {
            if failed {
                head[0] = State::of(head[0]).with_moved(direction, true).put(head[0]);
            }
            head[1 + direction] = with_pin(head[1 + direction], Slot::NONE);
            is_changed = true;
        }
    }
    is_changed
}

impl<S: DerefMut<Target = [Line]>> FlowTable<S> {
    /// Takes over a table that another process left in this storage, however that process ended: its flows with
    /// pins, counters, services and states. Rebuilds index, timers and free list, and completes purges that were
    /// under way. Entries that cannot be are repaired or rejected one by one, and each is counted
    /// ([`FlowTable::attach_counts`]). No content of the storage makes it panic. The process must have ended or
    /// stopped using the table: two that use one spoil it.
    ///
    /// Flows do not age while nobody holds the table: a flow that was idle for 10 s then is so now. `now` must be
    /// of the clock that [`Identity::boot`] names.
    ///
    /// Takes memory for a bit per entry until it returns. [`inspect`](crate::inspect) tells sizes and hash key
    /// before.
    ///
    /// # Errors
    /// [`TableError`]: the storage holds no table that this process could use. It is unchanged then.
    pub fn attach(
        mut storage: S,
        identity: &Identity,
        timeouts: &Timeouts,
        now: Nanos,
    ) -> Result<Self, TableError> {
        let timeouts = crate::timeout::ticks(timeouts)?;
        let found = header::read(&storage)?;
        identity.accept(&found.identity)?;
        let mut regions = found.config.regions()?;
        let lines = &mut *storage;
        header::count_attach(lines);
        header::set_holder(lines, Holder::Attaching);
        let now_tick = tick(now);
        let mut counts = AttachCounts::default();
        let mut named = [const { Named(Vec::new()) }; 2];
        for (region, &high_water) in regions.iter_mut().zip(&found.high_water) {
            region.set_high_water(high_water);
        }
        counts.redone = u64::from(journal::redo(lines, &regions));
        for (region, named) in regions.iter_mut().zip(&mut named) {
            let high_water = region.high_water();
            *named = Named::take(region.index_mut(lines), high_water, &mut counts);
            region.format_lists(lines, now_tick);
        }
        let mut table = FlowTable::with(storage, found.config, found.hasher, timeouts, regions, now);
        table.attach_counts = counts;
        let absence = Absence {
            left: found.tick.min(now_tick),
            now: now_tick,
        };
        for (family, named) in named.iter().enumerate() {
            table.adopt(family, Some(named), absence, identity);
        }
        let lines = &mut *table.storage;
        for slot in (0..Slot::LIMIT as u16).map(Slot) {
            if header::closed_slot(lines, slot).is_some() {
                header::open_slot(lines, slot);
            }
        }
        header::set_tick(lines, now_tick);
        header::set_holder(lines, Holder::Running);
        Ok(table)
    }

    /// Adopts the entries of a family. Each group of entries takes three steps, and the groups behind it are one and
    /// two steps back, so that cache misses overlap.
    fn adopt(&mut self, family: usize, named: Option<&Named>, absence: Absence, identity: &Identity) {
        let any_closed = header::any_closed_slot(&self.storage);
        let high_water = self.regions[family].high_water();
        let mut groups = [const { Group::EMPTY }; 3];
        let mut from = 0;
        let mut turn = 0;
        while from < high_water || groups.iter().any(|group| group.len > 0) {
            let [first, second, third] = [turn % 3, (turn + 2) % 3, (turn + 1) % 3];
            turn += 1;
            let until = high_water.min(from.saturating_add(GROUP as u32));
            for entry in from..until {
                if let Some(found) = self.examine(family, entry, named, absence, identity, any_closed) {
                    groups[first].push(found);
                }
            }
            from = until;
            let region = &self.regions[family];
            for &(_, hash, _) in groups[second].entries() {
                region.prefetch_beyond(&self.storage, hash);
            }
            for &(entry, hash, due) in groups[third].entries() {
                self.restore(family, entry, hash, due, named);
            }
            groups[third].len = 0;
        }
    }

    /// Repairs or rejects an entry; returns it with its hash and when it is due if it may stay.
    #[inline(always)]
    fn examine(
        &mut self,
        family: usize,
        entry: u32,
        named: Option<&Named>,
        absence: Absence,
        identity: &Identity,
        any_closed: bool,
    ) -> Option<(u32, u64, u64)> {
        let region = &mut self.regions[family];
        let lines = &mut *self.storage;
        let counts = &mut self.attach_counts;
        if State::of(region.head(lines, entry)[0]).0 == 0 {
            counts.unfinished += u64::from(named.is_some_and(|named| named.has(entry)));
            region.release(lines, entry);
            return None;
        }
        let (workers, worker) = (usize::from(identity.workers), usize::from(identity.worker));
        let rejected = match defect(region, lines, entry) {
            Some(Defect::Malformed) => Some(&mut counts.malformed),
            Some(Defect::Slot) => Some(&mut counts.unknown_slots),
            Some(Defect::Service) => Some(&mut counts.unknown_services),
            None if workers > 1 && self.hasher.owner(&region.key(lines, entry), workers) != worker => {
                Some(&mut counts.foreign)
            }
            None => None,
        };
        if let Some(count) = rejected {
            *count += 1;
            region.release(lines, entry);
            return None;
        }
        if any_closed {
            let mut head = *region.head(lines, entry);
            let is_unpinned = unpin_closed(&mut head, |slot| header::closed_slot(lines, slot));
            if is_unpinned {
                counts.unpinned += 1;
                let [ports, rest @ ..] = region.head_mut(lines, entry);
                // That an instance was lost is stored before its pin is removed.
                store::last(ports, head[0]);
                *rest = [head[1], head[2], head[3]];
            }
        }
        let hash = region.hash(lines, &self.hasher, entry);
        let head = region.head_mut(lines, entry);
        let (idle, is_impossible) = absence.idle(head);
        counts.times += u64::from(is_impossible);
        Region::see(head, absence.now.saturating_sub(idle));
        let timeout = u64::from(self.timeouts[TimeoutClass::of(head[0]).index()]);
        let due = absence.now + timeout.saturating_sub(idle);
        Some((entry, hash, region.prepare_adoption(lines, hash, entry, due)))
    }

    /// Puts an entry into index and wheel, unless its flow is there already.
    #[inline(always)]
    fn restore(&mut self, family: usize, entry: u32, hash: u64, due: u64, named: Option<&Named>) {
        let region = &mut self.regions[family];
        let lines = &mut *self.storage;
        let counts = &mut self.attach_counts;
        if region.find_alike(lines, entry, hash).is_some() {
            counts.duplicates += 1;
            region.release(lines, entry);
            return;
        }
        if region.adopt(lines, &self.hasher, hash, entry, due).is_err() {
            counts.no_room += 1;
            region.release(lines, entry);
            return;
        }
        counts.unindexed += u64::from(named.is_some_and(|named| !named.has(entry)));
        counts.flows += 1;
        let head = region.head(lines, entry);
        self.slots.count([raw_pin(head[1]), raw_pin(head[2])]);
        self.services[usize::from(region.service(lines, entry))] += 1;
    }

    /// Makes a table with the flows of others: of the layout version before, of another size, of another number of
    /// workers, or of a configuration in which services have other numbers. `sources` are the old tables, of all old
    /// workers. Flows that another worker owns now are left to its table. What became of the others is in
    /// [`FlowTable::attach_counts`].
    ///
    /// The sources are not changed, so that a process that is killed meanwhile loses nothing. The new table has no
    /// flow until all are in it. Drop the sources then. The other arguments are those of [`FlowTable::new`].
    ///
    /// # Errors
    /// [`TableError`]: a source is no table of this boot that can be converted, or [`FlowTable::new`] fails.
    #[expect(
        clippy::too_many_arguments,
        reason = "those of `new`, the sources, and how they are read"
    )]
    pub fn convert(
        storage: S,
        config: &TableConfig,
        timeouts: &Timeouts,
        hasher: FlowHasher,
        identity: &Identity,
        now: Nanos,
        sources: &[&[Line]],
        numbers: &Numbers<'_>,
    ) -> Result<Self, TableError> {
        for source in sources {
            if header::read(source)?.identity.boot != identity.boot {
                return Err(TableError::OtherBoot);
            }
        }
        let mut table = FlowTable::new(storage, config, timeouts, hasher, identity, now)?;
        let now = tick(now);
        let (workers, worker) = (usize::from(identity.workers), usize::from(identity.worker));
        let mut counts = AttachCounts::default();
        for source in sources {
            let any_closed = header::any_closed_slot(source);
            layout::read(source, |found, mut record| {
                let region = &mut table.regions[record.family & 1];
                if workers > 1 && hasher.owner(&region.key_of(&record.words), workers) != worker {
                    return;
                }
                let [ports, forward, reverse, last, ..] = record.words;
                let mut head = [ports, forward, reverse, last];
                let absence = Absence {
                    left: found.tick.min(now),
                    now,
                };
                let (idle, is_impossible) = absence.idle(&head);
                counts.times += u64::from(is_impossible);
                Region::see(&mut head, now.saturating_sub(idle));
                let closed = |pin| header::closed_slot(source, pin);
                let mut is_unpinned = any_closed && unpin_closed(&mut head, closed);
                for word in &mut head[1..3] {
                    let pin = raw_pin(*word);
                    if pin.is_some() && is_pin_valid(*word) {
                        let now_at = (numbers.slot)(pin).unwrap_or(Slot::NONE);
                        is_unpinned |= !now_at.is_some();
                        *word = with_pin(*word, now_at);
                    }
                }
                let Some(service) = (numbers.service)(ServiceId(record.service)) else {
                    counts.unknown_services += 1;
                    return;
                };
                record.service = service.0;
                record.words[..4].copy_from_slice(&head);
                counts.unpinned += u64::from(is_unpinned);
                counts.no_room += u64::from(!region.append(&mut table.storage, &record));
            })?;
        }
        table.attach_counts = counts;
        for family in 0..table.regions.len() {
            table.adopt(family, None, Absence { left: now, now }, identity);
        }
        for (family, region) in table.regions.iter().enumerate() {
            store::barrier();
            header::set_high_water(&mut table.storage, family, region.high_water());
        }
        Ok(table)
    }

    /// What became of the entries when this table was attached or converted; zeroes if it was made.
    pub fn attach_counts(&self) -> &AttachCounts {
        &self.attach_counts
    }
}
