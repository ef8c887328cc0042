//! Taking over a table that another process left behind, whatever its bytes are by now.
//!
//! Entries are what counts: key, pins, state, times, counters and service. Index, timers and free list follow from
//! them and are built anew, so that nothing in the old ones needs to be believed.

use std::ops::{AddAssign, DerefMut};

use model::{Nanos, ServiceId, Slot, Timeouts};

use crate::adopt::{Absence, Named, unpin_closed};
use crate::entry::{is_pin_valid, raw_pin, with_pin};
use crate::region::Region;
use crate::timeout::tick;
use crate::{
    FlowHasher, FlowTable, Holder, Identity, Line, Parallel, TableConfig, TableError, header, journal,
    layout, store,
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
    /// `parallel` does the work. The result does not depend on its parts.
    ///
    /// Takes memory until it returns: a bit per entry and part, and 0.8 MB per part; four bytes for each flow that is
    /// not in its first bucket, or that is rejected as a duplicate. [`inspect`](crate::inspect) tells sizes and hash key
    /// before.
    ///
    /// # Errors
    /// [`TableError`]: the storage holds no table that this process could use. It is unchanged then.
    pub fn attach(
        mut storage: S,
        identity: &Identity,
        timeouts: &Timeouts,
        now: Nanos,
        parallel: &impl Parallel,
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
        let mut named = [const { Named::NONE }; 2];
        for (region, &high_water) in regions.iter_mut().zip(&found.high_water) {
            region.set_high_water(high_water);
        }
        counts.redone = u64::from(journal::redo(lines, &regions));
        for (region, named) in regions.iter_mut().zip(&mut named) {
            let high_water = region.high_water();
            *named = Named::take(
                region.index_mut(lines),
                high_water,
                &mut counts.torn_places,
                parallel,
            );
            region.format_lists(lines, now_tick);
        }
        let mut table = FlowTable::with(storage, found.config, found.hasher, timeouts, regions, now);
        table.attach_counts = counts;
        let absence = Absence {
            left: found.tick.min(now_tick),
            now: now_tick,
        };
        for (family, named) in named.iter().enumerate() {
            table.adopt(family, Some(named), absence, identity, parallel);
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
        parallel: &impl Parallel,
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
            table.adopt(family, None, Absence { left: now, now }, identity, parallel);
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
