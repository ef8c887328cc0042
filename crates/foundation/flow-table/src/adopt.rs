//! Builds anew what follows from the entries of a family: free list, timer wheel, index and live counts. The work is
//! done in parts, each with storage of its own, so that several threads can do it at once:
//!
//! 1. of the index: note the entries that it names, and empty it ([`Named`]);
//! 2. of the entries: repair or reject each, and put it into lists of that part;
//! 3. of the index: put those flows into it whose first bucket lies there.
//!
//! The few flows whose first bucket is full follow one after the other. The result does not depend on the parts.

use std::ops::DerefMut;

use model::{Direction, ServiceId, Slot};

use crate::entry::{State, half, is_pin_valid, protocol_of, raw_pin, with_pin};
use crate::region::{EntryPart, GROUP, Lists, Region};
use crate::slots::count_pins;
use crate::{
    AttachCounts, FlowHasher, FlowTable, Identity, Line, Parallel, TimeoutClass, bucket, header, store,
};

/// The most parts: each part of the index reads all entries.
const PARTS_LIMIT: usize = 8;

/// In how many parts this work is divided.
fn parts_of(parallel: &impl Parallel) -> usize {
    parallel.parts().clamp(1, PARTS_LIMIT)
}

/// The entries that an index names, a bit each.
pub(crate) struct Named(Vec<u64>);

impl Named {
    pub(crate) const NONE: Named = Named(Vec::new());

    /// Reads the index of a region and empties it, before it is built anew.
    pub(crate) fn take(
        index: &mut [Line],
        high_water: u32,
        torn_places: &mut u64,
        parallel: &impl Parallel,
    ) -> Named {
        let each = index.len().div_ceil(parts_of(parallel)).max(1);
        let parts = index.chunks_mut(each).collect();
        let parts = parallel.each(parts, |part| Named::take_part(part, high_water));
        let mut all = Named::NONE;
        for (named, torn) in parts {
            *torn_places += torn;
            if all.0.is_empty() {
                all = named;
                continue;
            }
            for (word, other) in all.0.iter_mut().zip(named.0) {
                *torn_places += u64::from((*word & other).count_ones());
                *word |= other;
            }
        }
        all
    }

    fn take_part(index: &mut [Line], high_water: u32) -> (Named, u64) {
        let mut named = vec![0_u64; (high_water as usize).div_ceil(64)];
        let mut torn = 0;
        for line in index {
            let mut places = bucket::occupied(line);
            while places != 0 {
                let entry = bucket::entry(line, places.trailing_zeros() as usize);
                places &= places - 1;
                let bit = 1 << (entry % 64);
                match named.get_mut(entry as usize / 64) {
                    Some(word) if entry < high_water && *word & bit == 0 => *word |= bit,
                    _ => torn += 1,
                }
            }
            *line = Line::ZERO;
        }
        (Named(named), torn)
    }

    #[inline(always)]
    fn has(&self, entry: u32) -> bool {
        self.0
            .get(entry as usize / 64)
            .is_some_and(|word| word >> (entry % 64) & 1 != 0)
    }
}

/// The time of the table when it was left, and now, in ticks.
#[derive(Clone, Copy)]
pub(crate) struct Absence {
    pub(crate) left: u64,
    pub(crate) now: u64,
}

impl Absence {
    /// Ticks that a flow had been idle when the table was left, and whether its time was impossible.
    #[inline(always)]
    pub(crate) fn idle(self, head: &[u64; 4]) -> (u64, bool) {
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
pub(crate) fn unpin_closed(head: &mut [u64; 4], closed: impl Fn(Slot) -> Option<bool>) -> bool {
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

/// What was found in a part of the entries.
struct Examined {
    counts: AttachCounts,
    lists: Lists,
    /// Live flows by slot and by service.
    live: Vec<u32>,
    services: Vec<u32>,
    /// Half-open connections by service.
    half_open: Vec<u32>,
}

/// What was found in a part of the index.
#[derive(Default)]
struct Indexed {
    /// Flows whose first bucket is full, in order.
    later: Vec<u32>,
    /// Entries of a flow that has one already.
    duplicates: Vec<u32>,
    unindexed: u64,
}

/// Flows that are put into the index together: each with its entry, its bucket and its signature.
#[derive(Clone, Copy)]
struct Batch {
    flows: [(u32, u32, u8); Batch::LIMIT],
    len: usize,
}

impl Batch {
    const LIMIT: usize = 32;
    const EMPTY: Batch = Batch {
        flows: [(0, 0, 0); Batch::LIMIT],
        len: 0,
    };

    fn flows(&self) -> &[(u32, u32, u8)] {
        &self.flows[..self.len.min(Batch::LIMIT)]
    }
}

/// How the entries of a family are taken over.
struct Adoption<'a> {
    /// The region within slices for each of its columns.
    region: Region,
    hasher: FlowHasher,
    timeouts: [u32; TimeoutClass::COUNT],
    /// The entries in the index before; none if there was no index.
    named: Option<&'a Named>,
    absence: Absence,
    identity: &'a Identity,
    /// The header, if it has a closed slot.
    closed: Option<Vec<Line>>,
}

impl Adoption<'_> {
    /// Repairs or rejects each entry of a part, and schedules those that may stay.
    fn examine(&self, mut part: EntryPart<'_>) -> Examined {
        let mut found = Examined {
            counts: AttachCounts::default(),
            lists: self.region.lists(),
            live: vec![0; Slot::LIMIT],
            services: vec![0; 1 << 16],
            half_open: vec![0; 1 << 16],
        };
        let mut from = 0;
        while from < part.len {
            let until = part.len.min(from + GROUP as u32);
            let mut group = [(0, 0); GROUP];
            let mut len = 0;
            for at in from..until {
                if let Some(due) = self.examine_entry(&mut part, at, &mut found) {
                    let slot = found.lists.slot_of(&self.region, part.first + at, due);
                    found.lists.prefetch_last(&part, slot);
                    group[len % GROUP] = (at, slot);
                    len += 1;
                }
            }
            for &(at, slot) in &group[..len.min(GROUP)] {
                found.lists.schedule(&self.region, &mut part, at, slot);
            }
            found.counts.flows += len as u64;
            from = until;
        }
        found
    }

    /// Repairs or rejects an entry; returns when it is due if it may stay.
    #[inline(always)]
    fn examine_entry(&self, part: &mut EntryPart<'_>, at: u32, found: &mut Examined) -> Option<u64> {
        let region = &self.region;
        let counts = &mut found.counts;
        let head = region.head(part.entries, at);
        if State::of(head[0]).0 == 0 {
            let is_named = self.named.is_some_and(|named| named.has(part.first + at));
            counts.unfinished += u64::from(is_named);
            found.lists.release(region, part, at);
            return None;
        }
        let service = usize::from(region.service(part.links, at));
        if let Some(count) = self.defect(part, at, service, counts) {
            *count += 1;
            found.lists.release(region, part, at);
            return None;
        }
        if let Some(header) = &self.closed {
            let mut head = *head;
            if unpin_closed(&mut head, |slot| header::closed_slot(header, slot)) {
                counts.unpinned += 1;
                let [ports, rest @ ..] = region.head_mut(part.entries, at);
                // That an instance was lost is stored before its pin is removed.
                store::last(ports, head[0]);
                *rest = [head[1], head[2], head[3]];
            }
        }
        let head = region.head_mut(part.entries, at);
        let (idle, is_impossible) = self.absence.idle(head);
        counts.times += u64::from(is_impossible);
        Region::see(head, self.absence.now.saturating_sub(idle));
        count_pins(&mut found.live, [raw_pin(head[1]), raw_pin(head[2])]);
        if let Some(live) = found.services.get_mut(service) {
            *live += 1;
        }
        let class = TimeoutClass::of(head[0]);
        if class == TimeoutClass::TcpHandshake
            && let Some(half_open) = found.half_open.get_mut(service)
        {
            *half_open += 1;
        }
        let timeout = u64::from(self.timeouts[class.index()]);
        Some(self.absence.now + timeout.saturating_sub(idle))
    }

    /// The count of what is wrong with an entry, if something is.
    #[inline(always)]
    fn defect<'c>(
        &self,
        part: &EntryPart<'_>,
        at: u32,
        service: usize,
        counts: &'c mut AttachCounts,
    ) -> Option<&'c mut u64> {
        let region = &self.region;
        let head = region.head(part.entries, at);
        if !State::of(head[0]).is_valid(protocol_of(head[0])) || region.padding(part.entries, at) != 0 {
            return Some(&mut counts.malformed);
        }
        if !is_pin_valid(head[1]) || !is_pin_valid(head[2]) {
            return Some(&mut counts.unknown_slots);
        }
        if service >= ServiceId::LIMIT {
            return Some(&mut counts.unknown_services);
        }
        let (workers, worker) = (
            usize::from(self.identity.workers),
            usize::from(self.identity.worker),
        );
        let is_foreign = workers > 1 && self.hasher.owner(&region.key(part.entries, at), workers) != worker;
        is_foreign.then_some(&mut counts.foreign)
    }

    /// Puts the flows whose first bucket lies in a part of the index into it. `first` is its first bucket. Each batch
    /// of flows takes three steps, and the batches behind it are one and two steps back, so that cache misses overlap.
    fn index(&self, first: usize, index: &mut [Line], entries: &[Line]) -> Indexed {
        let mut found = Indexed::default();
        let mut batches = [Batch::EMPTY; 3];
        let high_water = self.region.high_water();
        let mut from = 0;
        let mut turn = 0;
        while from < high_water || batches.iter().any(|batch| batch.len > 0) {
            let [filled, second, third] = [turn % 3, (turn + 2) % 3, (turn + 1) % 3];
            turn += 1;
            from = self.fill(&mut batches[filled], from, first, index, entries);
            for &(_, bucket, signature) in batches[second].flows() {
                let candidates = bucket::candidates(&index[bucket as usize], signature);
                if candidates != 0 {
                    let candidate =
                        bucket::entry(&index[bucket as usize], candidates.trailing_zeros() as usize);
                    self.region.prefetch_flow(entries, candidate);
                }
            }
            for &(entry, bucket, signature) in batches[third].flows() {
                let line = &mut index[bucket as usize];
                if self
                    .region
                    .find_alike_in(line, signature, entries, entry)
                    .is_some()
                {
                    found.duplicates.push(entry);
                    continue;
                }
                match bucket::free_place(line) {
                    Some(place) => bucket::put(line, place, signature, entry),
                    None => {
                        found.later.push(entry);
                        continue;
                    }
                }
                found.unindexed += u64::from(self.is_unindexed(entry));
            }
            batches[third].len = 0;
        }
        found
    }

    /// Fills a batch with the next flows from an entry on whose first bucket is in this part of the index. Prefetches
    /// the buckets. Returns where the next batch continues.
    #[inline(always)]
    fn fill(&self, batch: &mut Batch, from: u32, first: usize, index: &[Line], entries: &[Line]) -> u32 {
        let region = &self.region;
        let mut entry = from;
        while entry < region.high_water() && batch.len < Batch::LIMIT {
            let is_free = State::of(region.head(entries, entry)[0]).0 == 0;
            let hash = region.hash(entries, &self.hasher, entry);
            let bucket = region.first_bucket(hash).wrapping_sub(first);
            // Whether a flow is in this part is random: no branch depends on it.
            batch.flows[batch.len % Batch::LIMIT] = (entry, bucket as u32, Region::signature(hash));
            batch.len += usize::from(!is_free & (bucket < index.len()));
            simd::prefetch_at(index, bucket);
            entry += 1;
        }
        entry
    }

    fn is_unindexed(&self, entry: u32) -> bool {
        self.named.is_some_and(|named| !named.has(entry))
    }
}

impl<S: DerefMut<Target = [Line]>> FlowTable<S> {
    /// Adopts the entries of a family. Its index is empty; `named` are the entries that were in it, if there was one.
    pub(crate) fn adopt(
        &mut self,
        family: usize,
        named: Option<&Named>,
        absence: Absence,
        identity: &Identity,
        parallel: &impl Parallel,
    ) {
        let region = &mut self.regions[family];
        if region.high_water() == 0 {
            return;
        }
        let lines = &mut *self.storage;
        let adoption = Adoption {
            region: region.within_slices(),
            hasher: self.hasher,
            timeouts: self.timeouts,
            named,
            absence,
            identity,
            closed: header::any_closed_slot(lines).then(|| lines[..header::LINES].to_vec()),
        };
        let parts = region.entry_parts(lines, parts_of(parallel));
        for part in parallel.each(parts, |part| adoption.examine(part)) {
            self.attach_counts += part.counts;
            region.put_behind(lines, &part.lists, part.counts.flows);
            self.slots.add(&part.live);
            for (all, live) in self.services.iter_mut().zip(&part.services) {
                *all += live;
            }
            for (all, half_open) in self.half_open.iter_mut().zip(&part.half_open) {
                *all += half_open;
            }
        }
        let (index, entries) = region.split_index(lines);
        let each = index.len().div_ceil(parts_of(parallel)).max(1);
        let parts = (0..).step_by(each).zip(index.chunks_mut(each)).collect();
        let parts = parallel.each(parts, |(first, part)| adoption.index(first, part, entries));
        let (mut later, mut duplicates) = (Vec::new(), Vec::new());
        for part in parts {
            self.attach_counts.unindexed += part.unindexed;
            later.extend(part.later);
            duplicates.extend(part.duplicates);
        }
        later.sort();
        let mut without_room = Vec::new();
        for group in later.chunks(GROUP) {
            let hashes = group.iter().map(|&entry| region.hash(lines, &self.hasher, entry));
            let mut flows = [(0, 0); GROUP];
            for (flow, (&entry, hash)) in flows.iter_mut().zip(group.iter().zip(hashes)) {
                region.prefetch_buckets(lines, hash);
                *flow = (entry, hash);
            }
            for &(entry, hash) in &flows[..group.len()] {
                if region.find_alike(lines, entry, hash).is_some() {
                    duplicates.push(entry);
                    continue;
                }
                // The other flows are in the index already: room is rarer than when this one was new.
                let placed = region.index_entry(lines, &self.hasher, hash, entry);
                if placed.is_ok()
                    || region
                        .index_by_two_moves(lines, &self.hasher, hash, entry)
                        .is_ok()
                {
                    self.attach_counts.unindexed += u64::from(adoption.is_unindexed(entry));
                } else {
                    without_room.push(entry);
                }
            }
        }
        duplicates.sort();
        self.attach_counts.duplicates += duplicates.len() as u64;
        self.attach_counts.no_room += without_room.len() as u64;
        for entry in duplicates.into_iter().chain(without_room) {
            self.reject(family, entry);
        }
    }

    /// Rejects an entry that is not in the index.
    fn reject(&mut self, family: usize, entry: u32) {
        let region = &mut self.regions[family];
        let lines = &mut *self.storage;
        let head = region.head(lines, entry);
        self.slots.uncount([raw_pin(head[1]), raw_pin(head[2])]);
        let service = usize::from(region.service(lines, entry));
        self.services[service] -= 1;
        self.half_open[service] -= u32::from(TimeoutClass::of(head[0]) == TimeoutClass::TcpHandshake);
        self.attach_counts.flows -= 1;
        region.drop_unindexed(lines, entry);
    }
}
