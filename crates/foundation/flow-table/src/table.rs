use std::num::NonZeroU32;
use std::ops::DerefMut;

use model::{Direction, FlowKey, Nanos, ServiceId, Slot, Timeouts, protocol};
use packet::{BURST, PacketColumns};
use simd::Words;

use crate::burst::{self, Burst, Lanes, LookupOutcome};
use crate::entry::{Phase, State, half, raw_pin, with_pin};
use crate::flow_cache::FlowCache;
use crate::journal::More;
use crate::region::{CAPACITY_LIMIT, Family, GROUP, NoRoom, Region};
use crate::slots::{Slots, Use};
use crate::timeout::{TICK_SHIFT, tick};
use crate::{
    AttachCounts, Counters, DumpCursor, Expiry, FlowChange, FlowHasher, FlowRow, Full, Hit, Holder, Identity,
    Line, Progress, TableError, TcpState, TimeoutClass, header, store, tcp_flag,
};

/// The size of a table; determines its storage layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// Capacity for IPv4 flows, at most [`TableConfig::LIMIT`].
    pub ipv4_flows: usize,
    /// Capacity for IPv6 flows, at most [`TableConfig::LIMIT`].
    pub ipv6_flows: usize,
    /// Whether to count returned and dropped packets per flow (16 bytes each).
    pub return_counters: bool,
    /// Whether to store when each direction of a flow was pinned (8 bytes each).
    pub pin_times: bool,
}

impl TableConfig {
    /// Flows per family and table: 2^24 minus the timer wheel's numbers, 16,711,679.
    pub const LIMIT: usize = CAPACITY_LIMIT;

    /// Lines of storage for a table of this size.
    ///
    /// # Errors
    /// [`TableError::Capacity`] beyond the limit.
    pub fn lines_needed(&self) -> Result<usize, TableError> {
        let [_, v6] = self.regions()?;
        Ok(v6.end())
    }

    pub(crate) fn regions(&self) -> Result<[Region; 2], TableError> {
        for flows in [self.ipv4_flows, self.ipv6_flows] {
            if flows > TableConfig::LIMIT {
                return Err(TableError::Capacity {
                    flows,
                    limit: TableConfig::LIMIT,
                });
            }
        }
        let v4 = Region::new(Family::V4, self, header::LINES);
        let v6 = Region::new(Family::V6, self, v4.end());
        Ok([v4, v6])
    }
}

/// A handle of a flow in its table, from [`lookup`](FlowTable::lookup) or [`insert`](FlowTable::insert).
/// Valid until the next call that ends flows ([`expire`](FlowTable::expire), [`purge`](FlowTable::purge));
/// insertions and lookups keep it valid. A stale handle may name another flow, but does no other harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryIndex(NonZeroU32);

const _: () = assert!(size_of::<Option<EntryIndex>>() == 4);

impl EntryIndex {
    /// The entry's line in the storage and its half.
    #[inline(always)]
    fn line(self) -> (usize, usize) {
        ((self.0.get() >> 1) as usize, (self.0.get() & 1) as usize)
    }
}

#[inline(always)]
fn family_of(key: &FlowKey) -> usize {
    match key {
        FlowKey::V4(_) => 0,
        FlowKey::V6(_) => 1,
    }
}

/// The bounded flow table of one worker. See the [crate's page](crate) for its layout and cost.
///
/// One thread owns it. No call allocates. Only `new` and `attach` do work proportional to the table's size.
#[derive(Debug)]
pub struct FlowTable<S> {
    pub(crate) storage: S,
    config: TableConfig,
    pub(crate) hasher: FlowHasher,
    flow_cache: FlowCache,
    pub(crate) timeouts: [u32; TimeoutClass::COUNT],
    pub(crate) regions: [Region; 2],
    pub(crate) slots: Box<Slots>,
    /// Live flows per service, indexed by service number.
    pub(crate) services: Box<[u32]>,
    /// TCP connections per service whose handshake is not complete.
    pub(crate) half_open: Box<[u32]>,
    counters: Counters,
    pub(crate) attach_counts: AttachCounts,
    /// The family that `expire` starts with; alternates, so that neither starves.
    turn: usize,
    /// The latest tick passed to `expire`.
    tick: u64,
}

impl<S: DerefMut<Target = [Line]>> FlowTable<S> {
    /// Lines of storage for a table of this size.
    ///
    /// # Errors
    /// [`TableError::Capacity`] beyond the limit.
    pub fn lines_needed(config: &TableConfig) -> Result<usize, TableError> {
        config.lines_needed()
    }

    /// Formats storage as an empty table, whatever it holds. Writes the index and the timer wheel (a tenth of
    /// the storage). The rest is touched on first use: a caller that cannot afford page faults populates the
    /// mapping. `identity` tells the process that attaches the table whether it can.
    ///
    /// # Errors
    /// [`TableError::Capacity`], [`TableError::Timeout`] or [`TableError::StorageTooSmall`].
    pub fn new(
        mut storage: S,
        config: &TableConfig,
        timeouts: &Timeouts,
        hasher: FlowHasher,
        identity: &Identity,
        now: Nanos,
    ) -> Result<Self, TableError> {
        let mut regions = config.regions()?;
        let timeouts = crate::timeout::ticks(timeouts)?;
        let needed = config.lines_needed()?;
        let lines = &mut *storage;
        if lines.len() < needed {
            return Err(TableError::StorageTooSmall {
                needed,
                given: lines.len(),
            });
        }
        header::erase(lines);
        for region in &mut regions {
            region.format(lines, tick(now));
        }
        header::write(lines, config, needed, &hasher, identity, now);
        Ok(FlowTable::with(storage, *config, hasher, timeouts, regions, now))
    }

    pub(crate) fn with(
        storage: S,
        config: TableConfig,
        hasher: FlowHasher,
        timeouts: [u32; TimeoutClass::COUNT],
        regions: [Region; 2],
        now: Nanos,
    ) -> Self {
        FlowTable {
            storage,
            config,
            hasher,
            flow_cache: FlowCache::new(&hasher),
            timeouts,
            regions,
            slots: Slots::boxed(),
            services: vec![0; 1 << 16].into_boxed_slice(),
            half_open: vec![0; 1 << 16].into_boxed_slice(),
            counters: Counters::default(),
            attach_counts: AttachCounts::default(),
            turn: 0,
            tick: tick(now),
        }
    }

    /// Returns the storage, ready to be attached again.
    pub fn into_storage(mut self) -> S {
        header::set_holder(&mut self.storage, Holder::Nobody);
        self.storage
    }

    /// The sizes it was made with.
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// The hasher for lookups.
    pub fn hasher(&self) -> &FlowHasher {
        &self.hasher
    }

    /// Changes the timeouts. A longer one takes effect at once; a shorter one at the flow's next visit, at
    /// most one wheel turn (137 s) later.
    ///
    /// # Errors
    /// [`TableError::Timeout`]; the old timeouts stay.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), TableError> {
        self.timeouts = crate::timeout::ticks(timeouts)?;
        Ok(())
    }

    /// The counters since the table was made or attached.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Live flows, both families.
    pub fn flows(&self) -> usize {
        self.regions.iter().map(|region| region.flows() as usize).sum()
    }

    /// Live IPv4 flows.
    pub fn ipv4_flows(&self) -> usize {
        self.regions[0].flows() as usize
    }

    /// Live IPv6 flows.
    pub fn ipv6_flows(&self) -> usize {
        self.regions[1].flows() as usize
    }

    /// Live flows of an instance: those with at least one pin to its slot. Always exact; 0 as soon as a purge
    /// or failure of the slot begins.
    pub fn live(&self, slot: Slot) -> u32 {
        self.slots.live(slot)
    }

    /// Live flows of every slot, indexed by slot.
    pub fn live_all(&self) -> &[u32; Slot::LIMIT] {
        self.slots.live_all()
    }

    /// Live flows of a service, pinned or not.
    pub fn live_of_service(&self, service: ServiceId) -> u32 {
        self.services[service.index()]
    }

    /// Live TCP connections of a service whose handshake is not complete.
    pub fn half_open_of_service(&self, service: ServiceId) -> u32 {
        self.half_open[service.index()]
    }

    // Lookup.

    /// Prefetches the line that a lookup of this flow reads first. Call it for a whole burst before anything
    /// else.
    #[inline(always)]
    pub fn prefetch(&self, key: &FlowKey, hash: u64) {
        self.regions[family_of(key)].prefetch_bucket(&self.storage, hash);
    }

    /// Prefetches the candidate entry, once the line of [`prefetch`](FlowTable::prefetch) has arrived.
    #[inline]
    pub fn prefetch_candidate(&self, key: &FlowKey, hash: u64) {
        self.regions[family_of(key)].prefetch_candidate(&self.storage, hash);
    }

    /// Looks up a flow. `hash` is the value of the table's [`hasher`](FlowTable::hasher) for the key.
    #[inline]
    pub fn lookup(&mut self, key: &FlowKey, hash: u64) -> Option<EntryIndex> {
        let found = self.find(family_of(key), key, hash);
        self.counters.hits += u64::from(found.is_some());
        self.counters.misses += u64::from(found.is_none());
        found
    }

    // The fast path: known IPv4 flows, a burst at a time.

    /// Probes the flow cache for a burst, hashes the packets that miss, and prefetches their buckets.
    /// `packets` are those the burst was filled with. Skips [marked exceptions](Burst::mark_exception).
    #[inline(always)]
    pub fn prefetch_buckets(&mut self, burst: &mut Burst, packets: &PacketColumns) {
        let (index, flows) = self.regions[0].split(&self.storage);
        let fast = packets.fast_mask() & !burst.marked_exceptions;
        burst.missed = fast;
        if fast != 0 && self.flow_cache.should_probe(fast.count_ones()) {
            let prefetch = |entry| simd::prefetch_at(flows, entry as usize);
            let (marks, candidates) = (&mut burst.marks, &mut burst.candidates);
            burst.missed = self.flow_cache.find(packets, fast, marks, candidates, prefetch);
        }
        let mut missed = burst.missed;
        while missed != 0 {
            let at = missed.trailing_zeros() as usize % BURST;
            missed &= missed - 1;
            let hash = self.hasher.hash_words(burst.key(at));
            burst.hashes[at] = hash;
            burst.candidates[at] = Region::prefetch_bucket_in(index, hash);
        }
        if burst.v6 != 0 {
            self.prefetch_buckets_v6(burst);
        }
    }

    /// Hashes the IPv6 packets of a burst, and prefetches their buckets.
    #[inline(never)]
    fn prefetch_buckets_v6(&self, burst: &mut Burst) {
        let (index, _) = self.regions[1].split_v6(&self.storage);
        let mut left = burst.v6 & !burst.marked_exceptions;
        while left != 0 {
            let at = left.trailing_zeros() as usize % BURST;
            left &= left - 1;
            let hash = self.hasher.hash_words(burst.key_v6(at));
            burst.hashes[at] = hash;
            burst.candidates[at] = Region::prefetch_bucket_in(index, hash);
        }
    }

    /// Prefetches the candidate entries of packets that missed the flow cache, and stores them in it.
    #[inline(always)]
    pub fn resolve_candidates(&mut self, burst: &mut Burst) {
        let (index, flows) = self.regions[0].split(&self.storage);
        let notes = self.flow_cache.is_active();
        let mut missed = burst.missed;
        while missed != 0 {
            let at = missed.trailing_zeros() as usize % BURST;
            missed &= missed - 1;
            let bucket = burst.candidates[at] as usize;
            let entry = Region::prefetch_candidate_in(index, flows, bucket, burst.hashes[at]);
            burst.candidates[at] = entry;
            if notes && entry != u32::MAX {
                self.flow_cache.note(burst.marks[at], entry);
            }
        }
        if burst.v6 != 0 {
            self.resolve_candidates_v6(burst);
        }
    }

    /// The same for IPv6 packets.
    #[inline(never)]
    fn resolve_candidates_v6(&self, burst: &mut Burst) {
        let (index, flows) = self.regions[1].split_v6(&self.storage);
        let mut left = burst.v6 & !burst.marked_exceptions;
        while left != 0 {
            let at = left.trailing_zeros() as usize % BURST;
            left &= left - 1;
            let bucket = burst.candidates[at] as usize;
            let entry = Region::prefetch_candidate_in(index, flows, bucket, burst.hashes[at]);
            burst.candidates[at] = entry | burst::V6;
        }
    }

    /// Counts the packets of a burst from index `from` on, as [`hit`](FlowTable::hit) does, and writes the
    /// lane of each pin to `found`. Returns the index of the first packet that needs more than that, or the
    /// burst's length. [`lookup_in_burst`](FlowTable::lookup_in_burst) then classifies that packet. `W` is
    /// what the caller's [`simd::Kernel`] is given.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "zipped iterators over columns prevent vectorization"
    )]
    pub fn hit_burst<W: Words>(
        &mut self,
        burst: &Burst,
        from: usize,
        now: Nanos,
        lanes: &Lanes,
        found: &mut [u16; BURST],
    ) -> usize {
        let mut at = self.hit_burst_v4::<W>(burst, from, now, lanes, found);
        // Packets of the two families may take turns.
        while burst.v6 != 0 && at < burst.len {
            let from = at;
            at = self.hit_burst_v6::<W>(burst, at, now, lanes, found);
            at = self.hit_burst_v4::<W>(burst, at, now, lanes, found);
            if at == from {
                break;
            }
        }
        self.counters.hits += at.saturating_sub(from) as u64;
        at
    }

    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "iterators over columns side by side keep a loop from becoming vector instructions"
    )]
    fn hit_burst_v4<W: Words>(
        &mut self,
        burst: &Burst,
        from: usize,
        now: Nanos,
        lanes: &Lanes,
        found: &mut [u16; BURST],
    ) -> usize {
        let tick = tick(now);
        let lanes = &*lanes.0;
        let Some(flows) = self.regions[0].entries_v4(&mut self.storage) else {
            return from;
        };
        let n = burst.len.min(BURST);
        let (candidates, packets) = (&burst.candidates[..n], &burst.packets[..n]);
        let directions = &burst.directions[..n];
        let mut at = from;
        while at < n {
            let Some(entry) = flows.get_mut(candidates[at] as usize) else {
                break;
            };
            let Some(counted) = burst::counted::<W>(entry, &packets[at]) else {
                break;
            };
            let d = directions[at] as usize & 1;
            let lane = lanes[(entry[1 + d] >> half::PIN_SHIFT & half::PIN_MASK) as usize];
            if lane == Lanes::NONE {
                break;
            }
            burst::seen(counted, tick).store(entry);
            found[at] = lane;
            at += 1;
        }
        at
    }

    /// The same for IPv6 packets: those of IPv4 have no candidate here.
    #[inline(always)]
    fn hit_burst_v6<W: Words>(
        &mut self,
        burst: &Burst,
        from: usize,
        now: Nanos,
        lanes: &Lanes,
        found: &mut [u16; BURST],
    ) -> usize {
        let tick = tick(now);
        let lanes = &*lanes.0;
        let flows = self.regions[1].entries_v6(&mut self.storage);
        let n = burst.len.min(BURST);
        let (candidates, packets) = (&burst.candidates[..n], &burst.packets[..n]);
        let (directions, rest) = (&burst.directions[..n], &burst.rest[..n]);
        let mut at = from;
        while at < n && burst.is_v6(at) {
            let Some(line) = flows.get_mut((candidates[at] ^ burst::V6) as usize) else {
                break;
            };
            if !burst::has_rest::<W>(line.half(1), &rest[at]) {
                break;
            }
            let entry = line.half_mut(0);
            let Some(counted) = burst::counted::<W>(entry, &packets[at]) else {
                break;
            };
            let d = directions[at] as usize & 1;
            let lane = lanes[(entry[1 + d] >> half::PIN_SHIFT & half::PIN_MASK) as usize];
            if lane == Lanes::NONE {
                break;
            }
            burst::seen(counted, tick).store(entry);
            found[at] = lane;
            at += 1;
        }
        at
    }

    /// Classifies the packet at which [`hit_burst`](FlowTable::hit_burst) stopped.
    #[inline]
    pub fn lookup_in_burst(&mut self, burst: &mut Burst, at: usize) -> LookupOutcome {
        if burst.missed >> (at % BURST) & 1 == 0 {
            if burst.is_v6(at) {
                return self.lookup_in_burst_v6(burst, at);
            }
            // The flow cache had a candidate for it, so it has no hash yet.
            burst.hashes[at] = self.hasher.hash_words(burst.key(at));
        }
        if burst.needs_slow_path(at) {
            return LookupOutcome::Exception;
        }
        let entry = self.regions[0].find_v4(&self.storage, burst.key(at), burst.hashes[at]);
        match entry {
            None => {
                self.counters.misses += 1;
                LookupOutcome::Miss
            }
            // A few in a hundred share a signature with another flow, or lie in their second bucket.
            Some(entry) if entry != burst.candidates[at] && !burst.is_exception(at) => {
                burst.candidates[at] = entry;
                if self.flow_cache.is_active() {
                    self.flow_cache.note(burst.marks[at], entry);
                }
                LookupOutcome::Hit
            }
            Some(_) => LookupOutcome::Exception,
        }
    }

    /// The same for an IPv6 packet. A flow that is not in the table takes the slow path, which counts that it was
    /// missed.
    fn lookup_in_burst_v6(&self, burst: &mut Burst, at: usize) -> LookupOutcome {
        if burst.is_exception(at) {
            return LookupOutcome::Exception;
        }
        let found = self.regions[1].find_v6(&self.storage, burst.key_v6(at), burst.hashes[at]);
        match found.map(|entry| entry | burst::V6) {
            Some(entry) if entry != burst.candidates[at] => {
                burst.candidates[at] = entry;
                LookupOutcome::Hit
            }
            _ => LookupOutcome::Exception,
        }
    }

    #[inline(never)]
    fn find(&self, family: usize, key: &FlowKey, hash: u64) -> Option<EntryIndex> {
        let entry = self.regions[family].find(&self.storage, key, hash)?;
        self.entry_index(family, entry)
    }

    #[inline(always)]
    fn entry_index(&self, family: usize, entry: u32) -> Option<EntryIndex> {
        NonZeroU32::new(self.regions[family].place_of(entry)).map(EntryIndex)
    }

    /// The family of an entry and its number within it.
    #[inline(always)]
    fn parts(&self, entry: EntryIndex) -> (usize, u32) {
        let place = entry.0.get();
        let family = usize::from(place >= self.regions[1].place_of(0));
        (family, self.regions[family].entry_at(place))
    }

    // Reading an entry.

    #[inline(always)]
    fn head(&self, entry: EntryIndex) -> &[u64; 4] {
        let (line, half) = entry.line();
        self.storage[line].half(half)
    }

    /// The pin of a direction; none if it was never pinned or its instance is gone.
    #[inline(always)]
    pub fn pin(&self, entry: EntryIndex, direction: Direction) -> Slot {
        self.slots
            .effective(raw_pin(self.head(entry)[1 + direction.index()]))
    }

    /// Both directions' pins.
    #[inline]
    pub fn pins(&self, entry: EntryIndex) -> [Slot; 2] {
        self.slots.effective_pins(self.head(entry))
    }

    /// Whether this direction's instance failed and no other has replaced it.
    pub fn has_lost_instance(&self, entry: EntryIndex, direction: Direction) -> bool {
        let head = self.head(entry);
        State::of(head[0]).is_moved(direction.index())
            || self.slots.is_failing(raw_pin(head[1 + direction.index()]))
    }

    /// The direction of the packets of the side that opened it.
    #[inline]
    pub fn opener(&self, entry: EntryIndex) -> Direction {
        State::of(self.head(entry)[0]).opener()
    }

    /// The service it belongs to.
    pub fn service(&self, entry: EntryIndex) -> ServiceId {
        let (family, entry) = self.parts(entry);
        ServiceId(self.regions[family].service(&self.storage, entry))
    }

    /// The flow's key.
    pub fn key(&self, entry: EntryIndex) -> FlowKey {
        let (family, entry) = self.parts(entry);
        self.regions[family].key(&self.storage, entry)
    }

    // The life of a flow.

    /// Inserts a new flow whose first packet travels in `opener`. [`hit`](FlowTable::hit) counts its packets,
    /// including the first. The flow must not be in the table: the caller has just looked it up.
    ///
    /// Bounded work: two buckets, or the 15 flows of one and their other buckets, of which one moves. Never
    /// evicts.
    ///
    /// # Errors
    /// [`Full`]: nothing changed, and the caller applies the service's policy.
    #[inline]
    pub fn insert(
        &mut self,
        key: &FlowKey,
        hash: u64,
        opener: Direction,
        pins: [Slot; 2],
        service: ServiceId,
        now: Nanos,
    ) -> Result<EntryIndex, Full> {
        let family = family_of(key);
        debug_assert!(self.find(family, key, hash).is_none(), "{key:?} is there already");
        self.enter(
            family,
            hash,
            pins,
            service,
            tick(now),
            |region, lines, entry, pins| region.write(lines, entry, key, opener, pins, tick(now)),
        )
    }

    /// Inserts a new flow with the packet of a burst that opens it, and counts that packet:
    /// [`insert`](FlowTable::insert) and [`hit`](FlowTable::hit) in one step. Only for a packet that
    /// [`lookup_in_burst`](FlowTable::lookup_in_burst) just reported as [`LookupOutcome::Miss`] and that
    /// [`is_opening`](Burst::is_opening).
    ///
    /// # Errors
    /// [`Full`]: nothing changed, and the caller applies the service's policy.
    #[inline]
    pub fn open(
        &mut self,
        burst: &Burst,
        at: usize,
        pins: [Slot; 2],
        service: ServiceId,
        now: Nanos,
    ) -> Result<EntryIndex, Full> {
        let tick = tick(now);
        self.enter(
            0,
            burst.hash(at),
            pins,
            service,
            tick,
            |region, lines, entry, pins| {
                let [ports, words @ ..] = burst.entry(at, pins, tick);
                let [_, rest @ ..] = region.head_mut(lines, entry);
                *rest = words;
                ports
            },
        )
    }

    /// Inserts a flow; `write` writes its entry but for the first word, and returns that.
    #[inline(always)]
    fn enter(
        &mut self,
        family: usize,
        hash: u64,
        pins: [Slot; 2],
        service: ServiceId,
        tick: u64,
        write: impl FnOnce(&Region, &mut [Line], u32, [Slot; 2]) -> u64,
    ) -> Result<EntryIndex, Full> {
        let region = &mut self.regions[family];
        let lines = &mut *self.storage;
        let pins = pins.map(|pin| self.slots.usable(pin, &mut self.counters));
        match region.take(lines, &self.hasher, hash) {
            Ok((entry, moved)) => {
                let ports = write(region, lines, entry, pins);
                let class = TimeoutClass::of(ports);
                let timeout = self.timeouts[class.index()];
                region.begin(lines, entry, service.0, tick, u64::from(timeout));
                let high_water = region.high_water();
                region.complete(lines, entry, ports);
                header::set_high_water(lines, family, high_water);
                self.counters.inserts += 1;
                self.counters.relocations += u64::from(moved);
                self.slots.count(pins);
                self.services[service.index()] += 1;
                self.half_open[service.index()] += u32::from(class == TimeoutClass::TcpHandshake);
                self.entry_index(family, entry).ok_or(Full::Entries)
            }
            Err(NoRoom::Entries) => {
                self.counters.full_entries += 1;
                Err(Full::Entries)
            }
            Err(NoRoom::Index) => {
                self.counters.full_index += 1;
                Err(Full::Index)
            }
        }
    }

    /// Counts packets of a flow in one direction, stores the time, and tracks TCP by its flags (0 for other
    /// protocols; do not merge the flags of several packets). Counters are exact modulo 2^40 packets and 2^48
    /// bytes.
    ///
    /// A SYN for a closed flow ([`FlowChange::Reopened`]) starts a new one in its place: counters restart
    /// with these packets and the pins are removed, so that the caller schedules it as a new flow.
    #[inline(always)]
    pub fn hit(
        &mut self,
        entry: EntryIndex,
        direction: Direction,
        packets: u32,
        bytes: u64,
        now: Nanos,
        tcp_flags: u8,
    ) -> Hit {
        const SYN_FIN_RST: u8 = tcp_flag::SYN | tcp_flag::FIN | tcp_flag::RST;
        let (line, half_line) = entry.line();
        let mut change = FlowChange::None;
        if !State::of(self.storage[line].half(half_line)[0]).is_established() || tcp_flags & SYN_FIN_RST != 0
        {
            change = self.follow_tcp(entry, direction, now, tcp_flags);
        }
        let d = direction.index();
        let head = self.storage[line].half_mut(half_line);
        let (word, other) = (head[1 + d], head[2 - d]);
        let pin = raw_pin(word);
        let packets_low = (word & half::PACKETS_MASK) + u64::from(packets);
        let bytes_low = (word >> half::PACKETS_BITS & half::BYTES_MASK).saturating_add(bytes);
        let seen = half::seen(tick(now));
        let other = other & half::BELOW_SEEN | seen[1 - d];
        let carries = packets_low >> half::PACKETS_BITS | bytes_low >> half::BYTES_BITS != 0;
        let counted = if carries {
            word & half::BELOW_SEEN | seen[d]
        } else {
            let pin_bits = word & (half::PIN_MASK << half::PIN_SHIFT);
            packets_low | bytes_low << half::PACKETS_BITS | pin_bits | seen[d]
        };
        let [forward, reverse] = if d == 0 {
            [counted, other]
        } else {
            [other, counted]
        };
        // The upper half of the time first: a flow between the two stores was seen too late, not too early.
        head[1] = forward;
        store::barrier();
        head[2] = reverse;
        if carries {
            let (family, number) = self.parts(entry);
            self.regions[family].add_with_carry(&mut self.storage, number, direction, packets, bytes);
        }
        Hit {
            pin: self.slots.effective(pin),
            change,
        }
    }

    #[inline(never)]
    fn follow_tcp(&mut self, entry: EntryIndex, direction: Direction, now: Nanos, flags: u8) -> FlowChange {
        let (family, number) = self.parts(entry);
        let state = State::of(self.regions[family].head(&self.storage, number)[0]);
        let before = state.phase();
        if before == Phase::NOT_TCP {
            return FlowChange::None;
        }
        let after = if flags & tcp_flag::RST != 0 {
            Phase::CLOSED
        } else if before == Phase::CLOSED {
            if flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN {
                return self.reopen(entry, direction, now);
            }
            Phase::CLOSED
        } else if flags & tcp_flag::FIN != 0 {
            if before == Phase::half_closed(direction.flipped()) {
                Phase::CLOSED
            } else {
                Phase::half_closed(direction)
            }
        } else if before == Phase::HANDSHAKE && flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::ACK {
            Phase::ESTABLISHED
        } else {
            before
        };
        if after == before {
            return FlowChange::None;
        }
        self.enter_phase(entry, state.with_phase(after), now);
        if before == Phase::HANDSHAKE {
            let service = self.regions[family].service(&self.storage, number);
            self.half_open[usize::from(service)] -= 1;
        }
        match after {
            Phase::CLOSED => FlowChange::Closed,
            Phase::ESTABLISHED => FlowChange::Established,
            _ => FlowChange::None,
        }
    }

    /// Writes a flow's state. Reschedules it if the new timeout is shorter; a longer one is noticed at the
    /// next visit.
    fn enter_phase(&mut self, entry: EntryIndex, state: State, now: Nanos) {
        let (family, number) = self.parts(entry);
        let ports = &mut self.regions[family].head_mut(&mut self.storage, number)[0];
        let before = *ports;
        *ports = state.put(before);
        self.reschedule(family, number, before, now);
    }

    /// Reschedules a flow whose first word was `before`, if its timeout is shorter now.
    fn reschedule(&mut self, family: usize, number: u32, before: u64, now: Nanos) {
        let region = &self.regions[family];
        let ports = region.head(&self.storage, number)[0];
        let [before, after] = [before, ports].map(|ports| self.timeouts[TimeoutClass::of(ports).index()]);
        if after < before {
            region.rearm(&mut self.storage, number, tick(now) + u64::from(after));
        }
    }

    #[cold]
    fn reopen(&mut self, entry: EntryIndex, opener: Direction, now: Nanos) -> FlowChange {
        let (family, number) = self.parts(entry);
        let region = &self.regions[family];
        let lines = &mut *self.storage;
        let found = *region.head(lines, number);
        self.slots.uncount(self.slots.effective_pins(&found));
        let unpinned = with_pin(0, Slot::NONE);
        let ports = State::new(protocol::TCP, opener).put(found[0]);
        let mut head = [ports, unpinned, unpinned, found[3]];
        Region::see(&mut head, tick(now));
        region.change(number, head, More::Restarted).make(region, lines);
        self.reschedule(family, number, found[0], now);
        let service = self.regions[family].service(&self.storage, number);
        self.half_open[usize::from(service)] += 1;
        self.counters.reopened += 1;
        FlowChange::Reopened
    }

    /// Pins one direction; [`Slot::NONE`] unpins it. Returns whether the flow had lost its instance and got a
    /// new one ([`Counters::expected_moves`]). A slot that is being purged is refused: the direction then has
    /// no pin ([`Counters::refused_pins`]).
    #[inline]
    pub fn set_pin(&mut self, entry: EntryIndex, direction: Direction, slot: Slot, now: Nanos) -> bool {
        let mut pins = self.pins(entry);
        pins[direction.index()] = slot;
        self.write_pins(
            entry,
            pins,
            [direction == Direction::Forward, direction == Direction::Reverse],
            now,
        )
    }

    /// Pins both directions, as [`set_pin`](FlowTable::set_pin) does; moving both counts once.
    #[inline]
    pub fn set_pins(&mut self, entry: EntryIndex, pins: [Slot; 2], now: Nanos) -> bool {
        self.write_pins(entry, pins, [true, true], now)
    }

    fn write_pins(&mut self, entry: EntryIndex, pins: [Slot; 2], write: [bool; 2], now: Nanos) -> bool {
        let (family, number) = self.parts(entry);
        let region = &self.regions[family];
        let lines = &mut *self.storage;
        let mut head = *region.head(lines, number);
        let before = self.slots.effective_pins(&head);
        let mut after = before;
        let mut moved = false;
        for direction in 0..2 {
            if !write[direction] {
                continue;
            }
            let pin = self.slots.usable(pins[direction], &mut self.counters);
            let state = State::of(head[0]);
            let lost = state.is_moved(direction) || self.slots.is_failing(raw_pin(head[1 + direction]));
            moved |= lost && pin.is_some();
            // Without a new pin the loss stays recorded.
            head[0] = state.with_moved(direction, lost && !pin.is_some()).put(head[0]);
            head[1 + direction] = with_pin(head[1 + direction], pin);
            after[direction] = pin;
        }
        let pinned = region.pinned_with(lines, number, write, tick(now));
        region
            .change(number, head, More::Pinned(pinned))
            .make(region, lines);
        self.slots.uncount(before);
        self.slots.count(after);
        self.counters.expected_moves += u64::from(moved);
        moved
    }

    /// Counts packets returned from the flow's instance, if the table has return counters.
    #[inline]
    pub fn count_returned(&mut self, entry: EntryIndex, packets: u64) {
        self.count_return(entry, 0, packets);
    }

    /// Counts a burst of packets returned from the instance in that slot, each with its flow if that is
    /// pinned to the slot. Returns the mask of the others, which need a full lookup. The burst has been
    /// through [`FlowTable::prefetch_buckets`] and [`FlowTable::resolve_candidates`].
    pub fn count_returned_burst(&mut self, burst: &Burst, slot: Slot) -> u64 {
        const { assert!(BURST <= u64::BITS as usize, "one bit per packet") };
        let n = burst.len.min(BURST);
        let region = &self.regions[0];
        let (_, flows) = region.split(&self.storage);
        // A closed slot has no pins: that holds for all flows alike.
        let counts = self.slots.effective(slot) == slot;
        let mut its = 0_u64;
        for at in 0..n {
            let candidate = burst.candidates[at];
            region.prefetch_returns(&self.storage, candidate);
            let is_its = counts
                && burst.has_candidate(at)
                && flows.get(candidate as usize).is_some_and(|head| {
                    burst.is_of(at, head) && (raw_pin(head[1]) == slot || raw_pin(head[2]) == slot)
                });
            its |= u64::from(is_its) << at;
        }
        let all = 1_u64.checked_shl(n as u32).unwrap_or(0).wrapping_sub(1);
        let mut others = all & !its;
        while its != 0 {
            let candidate = burst.candidates[its.trailing_zeros() as usize % BURST];
            if let Some([returned, ..]) = region.returns_mut(&mut self.storage, candidate) {
                *returned = returned.wrapping_add(1);
            }
            its &= its - 1;
        }
        if burst.v6 != 0 && counts {
            others &= !self.count_returned_burst_v6(burst, slot);
        }
        others
    }

    /// Counts the IPv6 packets of such a burst. Gives the places of those that were counted.
    #[inline(never)]
    fn count_returned_burst_v6(&mut self, burst: &Burst, slot: Slot) -> u64 {
        let region = &self.regions[1];
        let (_, flows) = region.split_v6(&self.storage);
        let mut its = 0_u64;
        let mut left = burst.v6;
        while left != 0 {
            let at = left.trailing_zeros() as usize % BURST;
            left &= left - 1;
            let candidate = burst.candidates[at] ^ burst::V6;
            region.prefetch_returns(&self.storage, candidate);
            let is_its = burst.has_candidate(at)
                && flows.get(candidate as usize).is_some_and(|line| {
                    let head = line.half(0);
                    burst.is_of_v6(at, line) && (raw_pin(head[1]) == slot || raw_pin(head[2]) == slot)
                });
            its |= u64::from(is_its) << at;
        }
        let mut left = its;
        while left != 0 {
            let candidate = burst.candidates[left.trailing_zeros() as usize % BURST] ^ burst::V6;
            left &= left - 1;
            if let Some([returned, ..]) = region.returns_mut(&mut self.storage, candidate) {
                *returned = returned.wrapping_add(1);
            }
        }
        its
    }

    /// Counts packets of the flow dropped on the way to or from its instance, if the table has return
    /// counters.
    #[inline]
    pub fn count_dropped(&mut self, entry: EntryIndex, packets: u64) {
        self.count_return(entry, 1, packets);
    }

    #[inline(always)]
    fn count_return(&mut self, entry: EntryIndex, which: usize, packets: u64) {
        let (family, number) = self.parts(entry);
        if let Some(count) = self.regions[family]
            .returns_mut(&mut self.storage, number)
            .and_then(|returns| returns.get_mut(which))
        {
            *count = count.wrapping_add(packets);
        }
    }

    // Expiry and purge.

    /// Expires flows whose timeout has passed, visiting at most `budget` flows: due ones, and ones with a
    /// timeout beyond a wheel turn. Call it in every turn of the poll loop, also when idle. With a call at
    /// least every 5 ms that is not [`behind`](Expiry::behind), a flow leaves within 10 ms of its timeout.
    pub fn expire(&mut self, now: Nanos, budget: usize) -> Expiry {
        self.expire_and_visit(now, budget, |_, _| {})
    }

    /// The same; `alive` is given the service of each visited flow that does not end, and gets its key and the
    /// direction of its opener on demand. A flow is visited at least once in its timeout and once in 137 s.
    pub fn expire_and_visit(
        &mut self,
        now: Nanos,
        budget: usize,
        mut alive: impl FnMut(ServiceId, &dyn Fn() -> (FlowKey, Direction)),
    ) -> Expiry {
        self.tick = self.tick.max(tick(now));
        let mut sum = Expiry::default();
        self.turn ^= 1;
        for family in [self.turn, self.turn ^ 1] {
            self.expire_family(family, budget, &mut sum, &mut alive);
        }
        sum
    }

    #[inline]
    fn expire_family(
        &mut self,
        family: usize,
        budget: usize,
        sum: &mut Expiry,
        alive: &mut impl FnMut(ServiceId, &dyn Fn() -> (FlowKey, Direction)),
    ) {
        /// Empty wheel slots to pass in one call: 2 s of ticks, a few microseconds.
        const STEPS: usize = 1024;
        let now = self.tick;
        if !self.regions[family].is_behind(now) {
            return;
        }
        self.regions[family].catch_up(now);
        let mut steps = STEPS;
        while (sum.visited as usize) < budget {
            let mut group = [0_u32; GROUP];
            let room = GROUP.min(budget - sum.visited as usize);
            let n = self.regions[family].due(&self.storage, now, &mut group[..room], &mut steps);
            if n == 0 {
                break;
            }
            self.end_or_rearm(family, now, &group[..n], sum, alive);
        }
        sum.behind |= self.regions[family].is_behind(now);
        header::set_tick(&mut self.storage, now);
    }

    fn end_or_rearm(
        &mut self,
        family: usize,
        now: u64,
        group: &[u32],
        sum: &mut Expiry,
        alive: &mut impl FnMut(ServiceId, &dyn Fn() -> (FlowKey, Direction)),
    ) {
        let region = &mut self.regions[family];
        let lines = &mut *self.storage;
        let mut ends = [(0_u32, 0_u64, TimeoutClass::Other); GROUP];
        let mut n = 0;
        for &entry in group {
            let head = region.head(lines, entry);
            let class = TimeoutClass::of(head[0]);
            let timeout = u64::from(self.timeouts[class.index()]);
            let age = Region::age(head, now);
            if age < timeout {
                region.rearm(lines, entry, now + timeout - age);
                let lines = &*lines;
                alive(ServiceId(region.service(lines, entry)), &|| {
                    let opener = State::of(region.head(lines, entry)[0]).opener();
                    (region.key(lines, entry), opener)
                });
            } else if let Some(end) = ends.get_mut(n) {
                let hash = region.hash(lines, &self.hasher, entry);
                region.prefetch_bucket(lines, hash);
                *end = (entry, hash, class);
                n += 1;
            }
        }
        for &(entry, hash, class) in &ends[..n] {
            self.slots
                .uncount(self.slots.effective_pins(region.head(lines, entry)));
            let service = region.service(lines, entry);
            self.services[usize::from(service)] -= 1;
            self.half_open[usize::from(service)] -= u32::from(class == TimeoutClass::TcpHandshake);
            region.remove(lines, hash, entry);
            self.counters.expired[class.index()] += 1;
        }
        sum.visited += group.len() as u32;
        sum.flows += n as u32;
    }

    /// Ends a flow now. Returns whether it existed.
    pub fn purge(&mut self, key: &FlowKey, hash: u64) -> bool {
        let family = family_of(key);
        let region = &mut self.regions[family];
        let lines = &mut *self.storage;
        let Some(entry) = region.find(lines, key, hash) else {
            return false;
        };
        let head = region.head(lines, entry);
        self.slots.uncount(self.slots.effective_pins(head));
        let is_half_open = TimeoutClass::of(head[0]) == TimeoutClass::TcpHandshake;
        let service = usize::from(region.service(lines, entry));
        self.services[service] -= 1;
        self.half_open[service] -= u32::from(is_half_open);
        region.remove(lines, hash, entry);
        self.counters.purged_flows += 1;
        true
    }

    /// Removes every pin to a slot. Effective from the first call on: the slot's live count is 0, none of its
    /// flows has that pin, and each is scheduled again at its next packet. Further calls clean `budget`
    /// entries each until [`Progress::Done`]. Until then no flow can be pinned to the slot.
    pub fn purge_slot(&mut self, slot: Slot, budget: usize) -> Progress {
        self.sweep(slot, Use::Purging, budget)
    }

    /// As [`purge_slot`](FlowTable::purge_slot), for a failed instance: re-pinning its flows counts as an
    /// expected move.
    pub fn fail_slot(&mut self, slot: Slot, budget: usize) -> Progress {
        self.sweep(slot, Use::Failing, budget)
    }

    /// Whether flows can be pinned to a slot: it exists and is not being purged.
    pub fn is_slot_usable(&self, slot: Slot) -> bool {
        slot.index() < Slot::LIMIT && self.slots.effective(slot) == slot
    }

    fn sweep(&mut self, slot: Slot, why: Use, budget: usize) -> Progress {
        header::close_slot(&mut self.storage, slot, why == Use::Failing);
        let Some((first, mut at)) = self.slots.begin_sweep(slot, why, &mut self.counters) else {
            return Progress::Done;
        };
        let failing = self.slots.is_failing(slot);
        let mut left = budget;
        for family in first..2 {
            let region = &self.regions[family];
            let lines = &mut *self.storage;
            while at < region.high_water() {
                if left == 0 {
                    self.slots.pause_sweep(slot, family, at);
                    return Progress::Pending;
                }
                left -= 1;
                let head = region.head_mut(lines, at);
                at += 1;
                if State::of(head[0]).is_free() {
                    continue;
                }
                for direction in 0..2 {
                    if raw_pin(head[1 + direction]) == slot {
                        if failing {
                            let lost = State::of(head[0]).with_moved(direction, true).put(head[0]);
                            store::last(&mut head[0], lost);
                        }
                        head[1 + direction] = with_pin(head[1 + direction], Slot::NONE);
                    }
                }
            }
            at = 0;
        }
        header::open_slot(&mut self.storage, slot);
        self.slots.end_sweep(slot);
        Progress::Done
    }

    // Inspection.

    /// A snapshot of a flow. Counts neither hit nor miss.
    pub fn get(&self, key: &FlowKey, now: Nanos) -> Option<FlowRow> {
        let family = family_of(key);
        let entry = self.regions[family].find(&self.storage, key, self.hasher.hash(key))?;
        Some(self.row(family, entry, tick(now)))
    }

    /// Passes flows to `visit`, reading at most `budget` entries from `cursor` on (start with
    /// `DumpCursor::default()`). Returns where to continue, or `None` at the end. A flow that lives through
    /// the whole dump is visited exactly once.
    pub fn dump(
        &self,
        cursor: DumpCursor,
        budget: usize,
        now: Nanos,
        mut visit: impl FnMut(FlowRow),
    ) -> Option<DumpCursor> {
        let DumpCursor {
            family: first,
            entry: mut at,
        } = cursor;
        let mut left = budget.max(1);
        for family in usize::from(first)..2 {
            let region = &self.regions[family];
            while at < region.high_water() {
                if left == 0 {
                    return Some(DumpCursor {
                        family: family as u8,
                        entry: at,
                    });
                }
                left -= 1;
                if !State::of(region.head(&self.storage, at)[0]).is_free() {
                    visit(self.row(family, at, tick(now)));
                }
                at += 1;
            }
            at = 0;
        }
        None
    }

    fn row(&self, family: usize, entry: u32, now: u64) -> FlowRow {
        let region = &self.regions[family];
        let lines = &*self.storage;
        let head = region.head(lines, entry);
        let state = State::of(head[0]);
        let (forward, reverse) = (
            region.totals(lines, entry, Direction::Forward),
            region.totals(lines, entry, Direction::Reverse),
        );
        let returns = region.returns(lines, entry).and_then(<[u64]>::first_chunk::<2>);
        let tcp: TcpState = state.phase().tcp();
        let pins = self.slots.effective_pins(head);
        let pinned_at = |direction: usize| {
            let at = region.pinned_at(lines, entry, direction, now)?;
            pins[direction].is_some().then_some(Nanos(at << TICK_SHIFT))
        };
        FlowRow {
            key: region.key(lines, entry),
            opener: state.opener(),
            service: ServiceId(region.service(lines, entry)),
            pins,
            pinned_at: [pinned_at(0), pinned_at(1)],
            packets: [forward.0, reverse.0],
            bytes: [forward.1, reverse.1],
            idle: Nanos(Region::age(head, now) << TICK_SHIFT),
            tcp,
            returned: returns.map(|returns| returns[0]),
            dropped: returns.map(|returns| returns[1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use model::Tuple;

    use super::*;
    use crate::InTurn;

    /// One entry with an impossible pin, one in a state its protocol does not have, one twice: each is
    /// dropped and counted, and the others stay.
    #[test]
    fn invalid_entries_are_dropped_one_by_one() {
        let config = TableConfig {
            ipv4_flows: 100,
            ipv6_flows: 0,
            return_counters: false,
            pin_times: false,
        };
        let storage = vec![Line::ZERO; config.lines_needed().unwrap()];
        let hasher = FlowHasher::new([1, 2, 3, 4]);
        let mut table = FlowTable::new(
            storage,
            &config,
            &Timeouts::default(),
            hasher,
            &Identity::default(),
            Nanos::ZERO,
        )
        .unwrap();
        let entries: Vec<EntryIndex> = (0..10_u32)
            .map(|i| {
                let src = Ipv4Addr::from(i).into();
                let dst = Ipv4Addr::BROADCAST.into();
                let tuple = Tuple {
                    src,
                    dst,
                    src_port: 1,
                    dst_port: 2,
                    protocol: protocol::UDP,
                    vlan: 0,
                };
                let key = FlowKey::new(&tuple).0;
                let hash = hasher.hash(&key);
                let pins = [Slot(i as u16), Slot(20)];
                table
                    .insert(&key, hash, Direction::Forward, pins, ServiceId(1), Nanos::ZERO)
                    .unwrap()
            })
            .collect();
        let mut storage = table.into_storage();
        let mut head = |i: usize, change: &dyn Fn(&mut [u64; 4])| {
            let (line, half) = entries[i].line();
            change(storage[line].half_mut(half));
            *storage[line].half(half)
        };
        head(3, &|head| head[2] = 1500 << half::PIN_SHIFT);
        head(5, &|head| {
            head[0] = State::new(protocol::TCP, Direction::Forward).put(head[0])
        });
        let first = head(0, &|_| {});
        head(7, &|head| *head = first);
        let table = FlowTable::attach(
            storage,
            &Identity::default(),
            &Timeouts::default(),
            Nanos::ZERO,
            &InTurn(2),
        )
        .unwrap();
        assert_eq!(
            (
                table.attach_counts().flows,
                table.attach_counts().rejected_entries(),
                table.flows()
            ),
            (7, 3, 7)
        );
        let live: Vec<u32> = (0..10).map(|slot| table.live(Slot(slot))).collect();
        assert_eq!(live, [1, 1, 1, 0, 1, 0, 1, 0, 1, 1]);
        assert_eq!(
            (table.live(Slot(20)), table.live_of_service(ServiceId(1))),
            (7, 7)
        );
    }

    /// Packets of flows that another worker owns are not looked up and do not affect the cache's hit rate.
    #[test]
    fn the_flow_caches_hit_rate_covers_owned_flows_only() {
        const OWN: usize = 20;
        let config = TableConfig {
            ipv4_flows: 100,
            ipv6_flows: 0,
            return_counters: false,
            pin_times: false,
        };
        let storage = vec![Line::ZERO; config.lines_needed().unwrap()];
        let hasher = FlowHasher::new([1, 2, 3, 4]);
        let mut table = FlowTable::new(
            storage,
            &config,
            &Timeouts::default(),
            hasher,
            &Identity::default(),
            Nanos::ZERO,
        )
        .unwrap();
        let mut packets = PacketColumns::default();
        for flow in 0..BURST as u32 {
            let (src, dst) = (Ipv4Addr::from(flow).into(), Ipv4Addr::BROADCAST.into());
            let tuple = Tuple {
                src,
                dst,
                src_port: 1,
                dst_port: 2,
                protocol: protocol::UDP,
                vlan: 0,
            };
            let (key, direction) = FlowKey::new(&tuple);
            let FlowKey::V4(v4) = key else {
                panic!("an IPv4 flow")
            };
            packets.push(Some(v4), direction, packet::TcpFlags(0), 60);
            if (flow as usize) < OWN {
                table
                    .insert(
                        &key,
                        hasher.hash(&key),
                        direction,
                        [Slot(1); 2],
                        ServiceId(1),
                        Nanos::ZERO,
                    )
                    .unwrap();
            }
        }
        let mut burst = Burst::default();
        for _ in 0..10_000 {
            burst.fill::<simd::scalar::Words>(&packets);
            (OWN..BURST).for_each(|place| burst.mark_exception(place));
            table.prefetch_buckets(&mut burst, &packets);
            table.resolve_candidates(&mut burst);
            assert!((0..BURST).all(|place| burst.has_candidate(place) == (place < OWN)));
        }
        assert!(table.flow_cache.is_active());
        assert_eq!(burst.missed, 0);
        // The hit rate depends on the packets looked up, however few.
        let mut bursts = 0;
        while table.flow_cache.is_active() {
            burst.fill::<simd::scalar::Words>(&packets);
            (0..BURST - OWN).for_each(|place| burst.mark_exception(place));
            table.prefetch_buckets(&mut burst, &packets);
            table.resolve_candidates(&mut burst);
            bursts += 1;
            assert!(bursts < 20_000, "no hit");
        }
    }
}
