//! The flows of one address family: index, entries, timers and free list, as offsets into the storage.

use model::{Direction, FlowKey, Slot};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::bucket;
use crate::entry::{KeyWords, PORTS_MASK, State, half, with_pin};
use crate::journal::{Change, More};
use crate::layout::Record;
use crate::{FlowHasher, Line, TableConfig, store};

/// Flows that a region can hold: entry and timer numbers have 24 bits, one value means "none".
pub(crate) const CAPACITY_LIMIT: usize = (1 << 24) - WHEEL_LIMIT - 1;

/// Flows per bucket of 15 slots when every entry is in use. The index then takes 5.3 bytes per flow, and
/// bounded work still finds a slot for the last flow.
pub(crate) const FLOWS_PER_BUCKET: usize = 12;
/// Slots of the largest timer wheel: 137 s of ticks. A flow with a longer timeout is visited once per turn.
const WHEEL_LIMIT: usize = 1 << 16;
/// Slots of the smallest timer wheel.
const WHEEL_LEAST: usize = 1 << 8;
/// Entries per wheel slot between these limits: the slot heads then take an eighth of a byte per flow.
const FLOWS_PER_WHEEL_SLOT: usize = 64;

/// Bytes of an entry of an IPv4 flow: half a line.
pub(crate) const V4_ENTRY_BYTES: usize = Line::BYTES / 2;
/// Bytes of an entry of an IPv6 flow.
pub(crate) const V6_ENTRY_BYTES: usize = Line::BYTES;

const LINK_BITS: u32 = 24;
const LINK_MASK: u64 = (1 << LINK_BITS) - 1;
const NONE: u32 = LINK_MASK as u32;

/// Entries processed together, so that their cache misses overlap.
pub(crate) const GROUP: usize = 16;

/// How far ahead never-used entries are prefetched.
const FRESH_AHEAD: u32 = 16;

/// Why a flow was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// Every entry is in use.
    Entries,
    /// Both buckets are full, and so are the other buckets of the 15 flows in the first one.
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Offsets (line numbers) and sizes are fixed when the table is made; the rest is rebuilt when it is
/// attached.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    family: Family,
    /// 1 if an entry is half a line (IPv4), 0 if it is a whole one.
    halves: u32,
    capacity: u32,
    buckets: u32,
    wheel_mask: u32,
    index_at: usize,
    flows_at: usize,
    links_at: usize,
    carry_at: usize,
    carry_top_at: usize,
    returns_at: Option<usize>,
    pinned_at: Option<usize>,
    end: usize,
    /// Entries from here on were never used; their bytes are undefined.
    high_water: u32,
    free: u32,
    flows: u32,
    /// The next wheel tick to process; all earlier ones are done.
    cursor: u64,
}

impl Region {
    /// The region of a family in a table of this size, starting at line `start`.
    pub(crate) fn new(family: Family, of: &TableConfig, start: usize) -> Region {
        let capacity = match family {
            Family::V4 => of.ipv4_flows,
            Family::V6 => of.ipv6_flows,
        };
        let buckets = capacity.div_ceil(FLOWS_PER_BUCKET).max(1);
        let wheel = 1_usize << (capacity / FLOWS_PER_WHEEL_SLOT).max(1).ilog2();
        let wheel = wheel.clamp(WHEEL_LEAST, WHEEL_LIMIT);
        let halves = u32::from(family == Family::V4);
        let index_at = start;
        let flows_at = index_at + buckets;
        let links_at = flows_at + capacity.div_ceil(1 << halves);
        let carry_at = links_at + (capacity + wheel).div_ceil(8);
        let carry_top_at = carry_at + capacity.div_ceil(8);
        let mut end = carry_top_at + capacity.div_ceil(16);
        let mut column = |is_wanted: bool, entries_per_line: usize| {
            let at = is_wanted.then_some(end)?;
            end += capacity.div_ceil(entries_per_line);
            Some(at)
        };
        let returns_at = column(of.return_counters, 4);
        let pinned_at = column(of.pin_times, 8);
        Region {
            family,
            halves,
            capacity: capacity as u32,
            buckets: buckets as u32,
            wheel_mask: wheel as u32 - 1,
            index_at,
            flows_at,
            links_at,
            carry_at,
            carry_top_at,
            returns_at,
            pinned_at,
            end,
            high_water: 0,
            free: NONE,
            flows: 0,
            cursor: 0,
        }
    }

    pub(crate) fn end(&self) -> usize {
        self.end
    }

    pub(crate) fn flows(&self) -> u32 {
        self.flows
    }

    pub(crate) fn high_water(&self) -> u32 {
        self.high_water
    }

    /// Counts entries from there on as never used.
    pub(crate) fn set_high_water(&mut self, high_water: u32) {
        self.high_water = high_water;
    }

    /// Empties index, wheel and free list.
    pub(crate) fn format(&mut self, lines: &mut [Line], tick: u64) {
        self.index_mut(lines).fill(Line::ZERO);
        self.format_lists(lines, tick);
    }

    /// Empties wheel and free list.
    pub(crate) fn format_lists(&mut self, lines: &mut [Line], tick: u64) {
        for slot in 0..=self.wheel_mask {
            let sentinel = self.capacity + slot;
            self.set_link(
                lines,
                sentinel,
                u64::from(sentinel) | u64::from(sentinel) << LINK_BITS,
            );
        }
        self.free = NONE;
        self.flows = 0;
        self.cursor = tick;
    }

    // Entries.

    #[inline(always)]
    fn flow_line(&self, entry: u32) -> usize {
        self.flows_at + (entry >> self.halves) as usize
    }

    /// The first four words of an entry: ports and state, the directions' words, the first word of the addresses.
    #[inline(always)]
    pub(crate) fn head<'a>(&self, lines: &'a [Line], entry: u32) -> &'a [u64; 4] {
        lines[self.flow_line(entry)].half((entry & self.halves) as usize)
    }

    #[inline(always)]
    pub(crate) fn head_mut<'a>(&self, lines: &'a mut [Line], entry: u32) -> &'a mut [u64; 4] {
        lines[self.flow_line(entry)].half_mut((entry & self.halves) as usize)
    }

    /// An entry's words; those of an IPv4 flow are the first four.
    pub(crate) fn words(&self, lines: &[Line], entry: u32) -> [u64; 8] {
        let mut words = [0; 8];
        match self.family {
            Family::V4 => words[..4].copy_from_slice(self.head(lines, entry)),
            Family::V6 => words = lines[self.flow_line(entry)].0,
        }
        words
    }

    /// The key of an entry's words.
    pub(crate) fn key_of(&self, words: &[u64; 8]) -> FlowKey {
        let [ports, _, _, a0, a1, b0, b1, _] = *words;
        let ports = ports & PORTS_MASK;
        match self.family {
            Family::V4 => KeyWords {
                ports,
                addresses: [a0],
            }
            .key(),
            Family::V6 => KeyWords {
                ports,
                addresses: [a0, a1, b0, b1],
            }
            .key(),
        }
    }

    /// Writes an entry of another table behind the ones used so far. Returns whether there is one more.
    pub(crate) fn append(&mut self, lines: &mut [Line], record: &Record) -> bool {
        let entry = self.high_water;
        if entry >= self.capacity {
            return false;
        }
        match self.family {
            Family::V4 => self.head_mut(lines, entry).copy_from_slice(&record.words[..4]),
            Family::V6 => lines[self.flow_line(entry)].0 = record.words,
        }
        self.set_link(lines, entry, u64::from(record.service) << (2 * LINK_BITS));
        if State::of(record.words[0]).is_carried() {
            for (direction, &carry) in record.carries.iter().enumerate() {
                self.set_carry(lines, entry, direction, carry);
            }
        }
        if let Some(returns) = self.returns_mut(lines, entry) {
            returns.copy_from_slice(&record.returns);
        }
        self.set_pinned(lines, entry, record.pinned);
        self.high_water += 1;
        true
    }

    /// The bits of an entry that are always 0.
    #[inline(always)]
    pub(crate) fn padding(&self, lines: &[Line], entry: u32) -> u64 {
        match self.family {
            Family::V4 => 0,
            Family::V6 => lines[self.flow_line(entry)].0[7],
        }
    }

    /// The buckets.
    pub(crate) fn index_mut<'a>(&self, lines: &'a mut [Line]) -> &'a mut [Line] {
        &mut lines[self.index_at..self.flows_at]
    }

    /// All IPv4 entries. Two fill a line, so the conversion cannot fail.
    #[inline(always)]
    pub(crate) fn entries_v4<'a>(&self, lines: &'a mut [Line]) -> Option<&'a mut [[u64; 4]]> {
        let lines = lines.get_mut(self.flows_at..self.links_at)?;
        <[[u64; 4]]>::mut_from_bytes(lines.as_mut_bytes()).ok()
    }

    /// Index and IPv6 entries, a line each, as slices of their own.
    #[inline(always)]
    pub(crate) fn split_v6<'a>(&self, lines: &'a [Line]) -> (&'a [Line], &'a [Line]) {
        let (index, flows) = (self.index_at..self.flows_at, self.flows_at..self.links_at);
        (&lines[index], &lines[flows])
    }

    /// All entries of IPv6 flows, a line each.
    #[inline(always)]
    pub(crate) fn entries_v6<'a>(&self, lines: &'a mut [Line]) -> &'a mut [Line] {
        &mut lines[self.flows_at..self.links_at]
    }

    #[inline(always)]
    pub(crate) fn prefetch_flow(&self, lines: &[Line], entry: u32) {
        simd::prefetch_at(lines, self.flow_line(entry));
    }

    pub(crate) fn key(&self, lines: &[Line], entry: u32) -> FlowKey {
        match self.family {
            Family::V4 => self.words_v4(lines, entry).key(),
            Family::V6 => self.words_v6(lines, entry).key(),
        }
    }

    #[inline(always)]
    fn words_v4(&self, lines: &[Line], entry: u32) -> KeyWords<1> {
        let [ports, _, _, addresses] = *self.head(lines, entry);
        KeyWords {
            ports: ports & PORTS_MASK,
            addresses: [addresses],
        }
    }

    #[inline(always)]
    fn words_v6(&self, lines: &[Line], entry: u32) -> KeyWords<4> {
        let [ports, _, _, a0, a1, b0, b1, _] = lines[self.flow_line(entry)].0;
        KeyWords {
            ports: ports & PORTS_MASK,
            addresses: [a0, a1, b0, b1],
        }
    }

    #[inline(always)]
    pub(crate) fn hash(&self, lines: &[Line], hasher: &FlowHasher, entry: u32) -> u64 {
        match self.family {
            Family::V4 => hasher.hash_words(self.words_v4(lines, entry)),
            Family::V6 => hasher.hash_words(self.words_v6(lines, entry)),
        }
    }

    /// Whether an entry has this key. A key of the other family matches none.
    #[inline(always)]
    pub(crate) fn has_key(&self, lines: &[Line], entry: u32, key: &FlowKey) -> bool {
        match key {
            FlowKey::V4(key) => self.words_v4(lines, entry) == KeyWords::v4(key),
            FlowKey::V6(key) => self.words_v6(lines, entry) == KeyWords::v6(key),
        }
    }

    /// An entry's offset in the whole storage, in half lines; never 0, because the header lies there.
    #[inline(always)]
    pub(crate) fn place_of(&self, entry: u32) -> u32 {
        ((self.flows_at as u32) << 1) + (entry << (1 - self.halves))
    }

    /// The entry at an offset returned by [`place_of`](Region::place_of).
    #[inline(always)]
    pub(crate) fn entry_at(&self, place: u32) -> u32 {
        (place.wrapping_sub((self.flows_at as u32) << 1)) >> (1 - self.halves)
    }

    // Time.

    #[inline(always)]
    pub(crate) fn see(head: &mut [u64; 4], tick: u64) {
        let [high, low] = half::seen(tick);
        head[1] = head[1] & half::BELOW_SEEN | high;
        head[2] = head[2] & half::BELOW_SEEN | low;
    }

    /// Ticks since an entry's last packet: exact below 2^25 (19.5 h), 0 if that is after `tick`.
    #[inline(always)]
    pub(crate) fn age(head: &[u64; 4], tick: u64) -> u64 {
        let age = tick.wrapping_sub(half::seen_of(head[1], head[2])) & half::SEEN_MASK;
        if age <= half::SEEN_MASK / 2 { age } else { 0 }
    }

    // Counters.

    /// A direction's carries: upper packet bits (from bit 16) in the lower 24 bits, upper byte bits (from bit
    /// 24) above.
    fn carry(&self, lines: &[Line], entry: u32, direction: usize) -> u64 {
        let i = entry as usize;
        let low = lines[self.carry_at + i / 8].0[i % 8] >> (32 * direction) & 0xffff_ffff;
        let top = lines[self.carry_top_at + i / 16].0[i / 2 % 8] >> (32 * (i % 2) + 16 * direction) & 0xffff;
        low | top << 32
    }

    /// Both directions' carries; 0 if the entry has none yet.
    pub(crate) fn carries(&self, lines: &[Line], entry: u32) -> [u64; 2] {
        if State::of(self.head(lines, entry)[0]).is_carried() {
            [0, 1].map(|direction| self.carry(lines, entry, direction))
        } else {
            [0; 2]
        }
    }

    pub(crate) fn set_carry(&self, lines: &mut [Line], entry: u32, direction: usize, carry: u64) {
        let i = entry as usize;
        let low = &mut lines[self.carry_at + i / 8].0[i % 8];
        *low = *low & !(0xffff_ffff << (32 * direction)) | (carry & 0xffff_ffff) << (32 * direction);
        let shift = 32 * (i % 2) + 16 * direction;
        let top = &mut lines[self.carry_top_at + i / 16].0[i / 2 % 8];
        *top = *top & !(0xffff << shift) | (carry >> 32 & 0xffff) << shift;
    }

    /// Packets (modulo 2^40) and bytes (modulo 2^48) of a direction.
    pub(crate) fn totals(&self, lines: &[Line], entry: u32, direction: Direction) -> (u64, u64) {
        let word = self.head(lines, entry)[1 + direction.index()];
        let carry = self.carries(lines, entry)[direction.index()];
        let packets = word & half::PACKETS_MASK | (carry & 0xff_ffff) << half::PACKETS_BITS;
        let bytes = word >> half::PACKETS_BITS & half::BYTES_MASK | carry >> 24 << half::BYTES_BITS;
        (packets, bytes)
    }

    /// Adds counts that overflow the low parts of the counters.
    #[cold]
    #[inline(never)]
    pub(crate) fn add_with_carry(
        &self,
        lines: &mut [Line],
        entry: u32,
        direction: Direction,
        packets: u32,
        bytes: u64,
    ) {
        let mut carries = self.carries(lines, entry);
        let (packets_before, bytes_before) = self.totals(lines, entry, direction);
        let packets = packets_before.wrapping_add(u64::from(packets));
        let bytes = bytes_before.wrapping_add(bytes);
        carries[direction.index()] =
            packets >> half::PACKETS_BITS & 0xff_ffff | (bytes >> half::BYTES_BITS & 0xff_ffff) << 24;
        let mut head = *self.head(lines, entry);
        head[0] = State::of(head[0]).carried().put(head[0]);
        let word = &mut head[1 + direction.index()];
        *word = *word & !half::COUNTERS_MASK
            | packets & half::PACKETS_MASK
            | (bytes & half::BYTES_MASK) << half::PACKETS_BITS;
        self.change(entry, head, More::Carries(carries)).make(self, lines);
    }

    /// A change of an entry of this region.
    pub(crate) fn change(&self, entry: u32, head: [u64; 4], more: More) -> Change {
        Change {
            family: usize::from(self.family == Family::V6),
            entry,
            head,
            more,
        }
    }

    /// Returned and dropped packets of a flow, if the table counts them.
    #[inline]
    pub(crate) fn returns<'a>(&self, lines: &'a [Line], entry: u32) -> Option<&'a [u64]> {
        let i = entry as usize;
        lines[self.returns_at? + i / 4].0.get(i % 4 * 2..i % 4 * 2 + 2)
    }

    /// Prefetches the line of an entry's return counters, if any.
    #[inline(always)]
    pub(crate) fn prefetch_returns(&self, lines: &[Line], entry: u32) {
        if let Some(at) = self.returns_at {
            simd::prefetch_at(lines, at + entry as usize / 4);
        }
    }

    #[inline]
    pub(crate) fn returns_mut<'a>(&self, lines: &'a mut [Line], entry: u32) -> Option<&'a mut [u64]> {
        let i = entry as usize;
        lines[self.returns_at? + i / 4]
            .0
            .get_mut(i % 4 * 2..i % 4 * 2 + 2)
    }

    // Pin times: the lower half of the tick at which each direction was pinned, in one word.

    /// The pin times of an entry once the directions in `write` are pinned at `tick`; 0 if none are stored.
    pub(crate) fn pinned_with(&self, lines: &[Line], entry: u32, write: [bool; 2], tick: u64) -> u64 {
        let Some(at) = self.pinned_at else { return 0 };
        let i = entry as usize;
        let mut word = lines[at + i / 8].0[i % 8];
        let tick = tick & 0xffff_ffff;
        if write[0] {
            word = word & !0xffff_ffff | tick;
        }
        if write[1] {
            word = word & 0xffff_ffff | tick << 32;
        }
        word
    }

    /// Stores the pin times of an entry, if the table has them.
    #[inline(always)]
    pub(crate) fn set_pinned(&self, lines: &mut [Line], entry: u32, pinned: u64) {
        if let Some(at) = self.pinned_at {
            let i = entry as usize;
            lines[at + i / 8].0[i % 8] = pinned;
        }
    }

    /// The tick at which a direction was pinned, if stored: the latest tick up to `now` with the stored lower
    /// half. A pin older than 2^32 ticks (104 days) seems newer.
    pub(crate) fn pinned_at(&self, lines: &[Line], entry: u32, direction: usize, now: u64) -> Option<u64> {
        let i = entry as usize;
        let noted = lines[self.pinned_at? + i / 8].0[i % 8] >> (32 * direction) & 0xffff_ffff;
        Some(now.saturating_sub(now.wrapping_sub(noted) & 0xffff_ffff))
    }

    // The index.

    #[inline(always)]
    pub(crate) fn signature(hash: u64) -> u8 {
        (hash as u8).max(1)
    }

    #[inline(always)]
    fn share_of(bits: u64, buckets: u64) -> usize {
        (((bits >> 32) * buckets) >> 32) as usize
    }

    #[inline(always)]
    fn share(&self, bits: u64) -> usize {
        self.index_at + Region::share_of(bits, u64::from(self.buckets))
    }

    #[inline(always)]
    fn second_bits(hash: u64) -> u64 {
        // The upper half of the product depends on all lower bits of the hash; the first bucket uses only its
        // upper bits.
        hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[inline(always)]
    pub(crate) fn first_bucket(&self, hash: u64) -> usize {
        self.share(hash)
    }

    #[inline(always)]
    fn second_bucket(&self, hash: u64) -> usize {
        self.share(Region::second_bits(hash))
    }

    #[inline(always)]
    pub(crate) fn prefetch_bucket(&self, lines: &[Line], hash: u64) {
        simd::prefetch_at(lines, self.first_bucket(hash));
    }

    /// Prefetches both buckets of a flow.
    pub(crate) fn prefetch_buckets(&self, lines: &[Line], hash: u64) {
        self.prefetch_bucket(lines, hash);
        simd::prefetch_at(lines, self.second_bucket(hash));
    }

    /// Prefetches the first candidate entry in a flow's first bucket.
    #[inline(always)]
    pub(crate) fn prefetch_candidate(&self, lines: &[Line], hash: u64) {
        let line = &lines[self.first_bucket(hash)];
        let candidates = bucket::candidates(line, Region::signature(hash));
        if candidates != 0 {
            self.prefetch_flow(lines, bucket::entry(line, candidates.trailing_zeros() as usize));
        }
    }

    /// Index and IPv4 entries as separate slices, for loops over many flows.
    #[inline(always)]
    pub(crate) fn split<'a>(&self, lines: &'a [Line]) -> (&'a [Line], &'a [[u64; 4]]) {
        let flows = &lines[self.flows_at..self.links_at];
        (
            &lines[self.index_at..self.flows_at],
            <[[u64; 4]]>::ref_from_bytes(flows.as_bytes()).unwrap_or_default(),
        )
    }

    /// The first candidate entry in a flow's first bucket, prefetched; `u32::MAX` if there is none.
    /// Takes the slices of [`split`](Region::split) or [`split_v6`](Region::split_v6) and the bucket number.
    /// Prefetches the second bucket if the flow may lie there or would be inserted there.
    #[inline(always)]
    pub(crate) fn prefetch_candidate_in<E>(index: &[Line], flows: &[E], bucket: usize, hash: u64) -> u32 {
        let Some(line) = index.get(bucket) else {
            return u32::MAX;
        };
        let candidates = bucket::candidates(line, Region::signature(hash));
        if candidates != 0 {
            let entry = bucket::entry(line, candidates.trailing_zeros() as usize);
            simd::prefetch_at(flows, entry as usize);
            return entry;
        }
        if bucket::overflow(line) != 0 || bucket::free_place(line).is_none() {
            simd::prefetch_at(
                index,
                Region::share_of(Region::second_bits(hash), index.len() as u64),
            );
        }
        u32::MAX
    }

    /// Prefetches a flow's first bucket in the index of [`split`](Region::split) and returns its number.
    #[inline(always)]
    pub(crate) fn prefetch_bucket_in(index: &[Line], hash: u64) -> u32 {
        let bucket = Region::share_of(hash, index.len() as u64);
        simd::prefetch_at(index, bucket);
        // Bucket numbers fit: entry numbers have three bytes, and there are fewer buckets than entries.
        bucket as u32
    }

    #[inline(always)]
    fn find_in(line: &Line, signature: u8, mut has_key: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut candidates = bucket::candidates(line, signature);
        while candidates != 0 {
            let entry = bucket::entry(line, candidates.trailing_zeros() as usize);
            if has_key(entry) {
                return Some(entry);
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// The entry with this hash for which `has_key` is true.
    #[inline(always)]
    fn find_by(&self, lines: &[Line], hash: u64, mut has_key: impl FnMut(u32) -> bool) -> Option<u32> {
        let signature = Region::signature(hash);
        let first = &lines[self.first_bucket(hash)];
        match Region::find_in(first, signature, &mut has_key) {
            None if bucket::overflow(first) != 0 => {
                Region::find_in(&lines[self.second_bucket(hash)], signature, has_key)
            }
            found => found,
        }
    }

    #[inline(always)]
    pub(crate) fn find(&self, lines: &[Line], key: &FlowKey, hash: u64) -> Option<u32> {
        self.find_by(lines, hash, |entry| self.has_key(lines, entry, key))
    }

    /// The entry in the index that has the key of another one, which is not there.
    #[inline(always)]
    pub(crate) fn find_alike(&self, lines: &[Line], entry: u32, hash: u64) -> Option<u32> {
        match self.family {
            Family::V4 => self.find_v4(lines, self.words_v4(lines, entry), hash),
            Family::V6 => self.find_v6(lines, self.words_v6(lines, entry), hash),
        }
    }

    /// The same in one bucket, of entries in a slice of their own.
    #[inline(always)]
    pub(crate) fn find_alike_in(
        &self,
        bucket: &Line,
        signature: u8,
        entries: &[Line],
        entry: u32,
    ) -> Option<u32> {
        Region::find_in(bucket, signature, |other| match self.family {
            Family::V4 => self.words_v4(entries, other) == self.words_v4(entries, entry),
            Family::V6 => self.words_v6(entries, other) == self.words_v6(entries, entry),
        })
    }

    /// The same for IPv4 words.
    #[inline]
    pub(crate) fn find_v4(&self, lines: &[Line], key: KeyWords<1>, hash: u64) -> Option<u32> {
        self.find_by(lines, hash, |entry| self.words_v4(lines, entry) == key)
    }

    /// The same in a region of IPv6 flows.
    #[inline]
    pub(crate) fn find_v6(&self, lines: &[Line], key: KeyWords<4>, hash: u64) -> Option<u32> {
        self.find_by(lines, hash, |entry| self.words_v6(lines, entry) == key)
    }

    /// Inserts an entry into the index: first bucket, else second, else in place of a flow of the first
    /// bucket that can move to its other bucket. Considers at most 15 flows and moves one. Returns whether it
    /// moved one.
    #[inline(always)]
    pub(crate) fn index_entry(
        &self,
        lines: &mut [Line],
        hasher: &FlowHasher,
        hash: u64,
        entry: u32,
    ) -> Result<bool, NoRoom> {
        let signature = Region::signature(hash);
        let first = self.first_bucket(hash);
        if let Some(place) = bucket::free_place(&lines[first]) {
            bucket::put(&mut lines[first], place, signature, entry);
            return Ok(false);
        }
        let second = self.second_bucket(hash);
        if let Some(place) = bucket::free_place(&lines[second]) {
            bucket::put(&mut lines[second], place, signature, entry);
            bucket::overflow_up(&mut lines[first]);
            return Ok(false);
        }
        let place = self.make_place(lines, hasher, first).ok_or(NoRoom::Index)?;
        bucket::put(&mut lines[first], place, signature, entry);
        Ok(true)
    }

    /// Moves one flow out of a full bucket into its other one.
    #[cold]
    #[inline(never)]
    fn make_place(&self, lines: &mut [Line], hasher: &FlowHasher, full: usize) -> Option<usize> {
        /// Flows considered together, so that their cache misses overlap; usually one of the first few can
        /// move.
        const TOGETHER: usize = 5;
        for from in (0..bucket::PLACES).step_by(TOGETHER) {
            let mut others = [(full, full); TOGETHER];
            for place in from..from + TOGETHER {
                self.prefetch_flow(lines, bucket::entry(&lines[full], place));
            }
            for (place, others) in (from..).zip(&mut others) {
                *others = self.buckets_of(lines, hasher, full, place);
                simd::prefetch(&lines[others.1]);
            }
            for (place, &(first, other)) in (from..).zip(&others) {
                if other == full {
                    continue;
                }
                let Some(free) = bucket::free_place(&lines[other]) else {
                    continue;
                };
                Region::move_flow(lines, (full, place), (other, free), first);
                return Some(place);
            }
        }
        None
    }

    /// The first bucket of a flow in this bucket, and that of its two where it is not.
    #[inline(always)]
    fn buckets_of(&self, lines: &[Line], hasher: &FlowHasher, at: usize, place: usize) -> (usize, usize) {
        let hash = self.hash(lines, hasher, bucket::entry(&lines[at], place));
        let first = self.first_bucket(hash);
        let other = if first == at {
            self.second_bucket(hash)
        } else {
            first
        };
        (first, other)
    }

    /// Copies a flow into its other bucket, of which `first` is its first one. Its old place is to be overwritten.
    #[inline(always)]
    fn move_flow(lines: &mut [Line], from: (usize, usize), to: (usize, usize), first: usize) {
        let entry = bucket::entry(&lines[from.0], from.1);
        let signature = lines[from.0].bytes()[from.1];
        bucket::put(&mut lines[to.0], to.1, signature, entry);
        if first == from.0 {
            bucket::overflow_up(&mut lines[from.0]);
        } else {
            bucket::overflow_down(&mut lines[to.0]);
        }
    }

    /// Inserts an entry for which [`index_entry`](Region::index_entry) found no place: moves a flow out of the first
    /// bucket, and before that another one out of the bucket where that one goes. Considers at most 225 flows.
    #[cold]
    #[inline(never)]
    pub(crate) fn index_by_two_moves(
        &self,
        lines: &mut [Line],
        hasher: &FlowHasher,
        hash: u64,
        entry: u32,
    ) -> Result<(), NoRoom> {
        let full = self.first_bucket(hash);
        for place in 0..bucket::PLACES {
            let (first, other) = self.buckets_of(lines, hasher, full, place);
            if other == full {
                continue;
            }
            if let Some(free) = self.make_place(lines, hasher, other) {
                Region::move_flow(lines, (full, place), (other, free), first);
                bucket::put(&mut lines[full], place, Region::signature(hash), entry);
                return Ok(());
            }
        }
        Err(NoRoom::Index)
    }

    fn unindex(&self, lines: &mut [Line], hash: u64, entry: u32) {
        let signature = Region::signature(hash);
        let first = self.first_bucket(hash);
        if Region::clear_in(&mut lines[first], signature, entry) {
            return;
        }
        let second = self.second_bucket(hash);
        if Region::clear_in(&mut lines[second], signature, entry) {
            bucket::overflow_down(&mut lines[first]);
        }
    }

    #[inline(always)]
    fn clear_in(line: &mut Line, signature: u8, entry: u32) -> bool {
        let mut candidates = bucket::candidates(line, signature);
        while candidates != 0 {
            let place = candidates.trailing_zeros() as usize;
            if bucket::entry(line, place) == entry {
                bucket::clear(line, place);
                return true;
            }
            candidates &= candidates - 1;
        }
        false
    }

    // Links: previous and next entry in a wheel slot, and the service, in one word. A free entry's next is
    // the next free one. Numbers from `capacity` on are the wheel's slot heads.

    #[inline(always)]
    fn link(&self, lines: &[Line], entry: u32) -> u64 {
        let i = entry as usize;
        lines[self.links_at + i / 8].0[i % 8]
    }

    #[inline(always)]
    fn set_link(&self, lines: &mut [Line], entry: u32, link: u64) {
        let i = entry as usize;
        lines[self.links_at + i / 8].0[i % 8] = link;
    }

    #[inline(always)]
    fn next_of(link: u64) -> u32 {
        (link >> LINK_BITS & LINK_MASK) as u32
    }

    #[inline(always)]
    fn set_next(&self, lines: &mut [Line], entry: u32, next: u32) {
        let link = self.link(lines, entry);
        self.set_link(
            lines,
            entry,
            link & !(LINK_MASK << LINK_BITS) | u64::from(next) << LINK_BITS,
        );
    }

    #[inline(always)]
    fn set_previous(&self, lines: &mut [Line], entry: u32, previous: u32) {
        let link = self.link(lines, entry);
        self.set_link(lines, entry, link & !LINK_MASK | u64::from(previous));
    }

    #[inline(always)]
    pub(crate) fn service(&self, lines: &[Line], entry: u32) -> u16 {
        (self.link(lines, entry) >> (2 * LINK_BITS)) as u16
    }

    /// Schedules an unscheduled entry at `due`, or one wheel turn ahead if that is later.
    #[inline(always)]
    pub(crate) fn arm(&self, lines: &mut [Line], entry: u32, service: u16, due: u64) {
        let due = due.max(self.cursor).min(self.cursor + u64::from(self.wheel_mask));
        let sentinel = self.capacity + (due as u32 & self.wheel_mask);
        let link = self.link(lines, sentinel);
        let last = (link & LINK_MASK) as u32;
        if last == sentinel {
            self.set_link(lines, sentinel, u64::from(entry) | u64::from(entry) << LINK_BITS);
        } else {
            self.set_link(lines, sentinel, link & !LINK_MASK | u64::from(entry));
            self.set_next(lines, last, entry);
        }
        let link = u64::from(last) | u64::from(sentinel) << LINK_BITS | u64::from(service) << (2 * LINK_BITS);
        self.set_link(lines, entry, link);
    }

    #[inline(always)]
    fn disarm(&self, lines: &mut [Line], entry: u32) {
        let link = self.link(lines, entry);
        let (previous, next) = ((link & LINK_MASK) as u32, Region::next_of(link));
        self.set_next(lines, previous, next);
        self.set_previous(lines, next, previous);
    }

    pub(crate) fn rearm(&self, lines: &mut [Line], entry: u32, due: u64) {
        let service = self.service(lines, entry);
        self.disarm(lines, entry);
        self.arm(lines, entry, service, due);
    }

    /// Prepares to advance to `tick`. A wheel more than a turn behind does one whole turn.
    pub(crate) fn catch_up(&mut self, tick: u64) {
        self.cursor = self.cursor.max(tick.saturating_sub(u64::from(self.wheel_mask)));
    }

    /// The first entries scheduled at or before `tick`, at most `group.len()`, prefetched. Passes at most
    /// `steps` empty slots. The entries stay scheduled.
    pub(crate) fn due(&mut self, lines: &[Line], tick: u64, group: &mut [u32], steps: &mut usize) -> usize {
        while self.cursor <= tick {
            let sentinel = self.capacity + (self.cursor as u32 & self.wheel_mask);
            let mut entry = Region::next_of(self.link(lines, sentinel));
            let mut n = 0;
            for place in group.iter_mut() {
                if entry == sentinel {
                    break;
                }
                *place = entry;
                n += 1;
                self.prefetch_flow(lines, entry);
                entry = Region::next_of(self.link(lines, entry));
            }
            if n > 0 || *steps == 0 {
                return n;
            }
            *steps -= 1;
            self.cursor += 1;
        }
        0
    }

    pub(crate) fn is_behind(&self, tick: u64) -> bool {
        self.cursor <= tick
    }

    // Insertion and removal.

    /// Takes a free entry for a new flow and indexes it. The flow must not be in the table. Returns the
    /// entry, and whether another flow was moved within the index. Write the entry, and call
    /// [`begin`](Region::begin) and [`complete`](Region::complete) next.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        lines: &mut [Line],
        hasher: &FlowHasher,
        hash: u64,
    ) -> Result<(u32, bool), NoRoom> {
        let fresh = self.free == NONE;
        let entry = if fresh { self.high_water } else { self.free };
        if fresh && entry >= self.capacity {
            return Err(NoRoom::Entries);
        }
        let moved = self.index_entry(lines, hasher, hash, entry)?;
        if fresh {
            self.high_water += 1;
            self.prefetch_flow(lines, entry + FRESH_AHEAD);
        } else {
            self.free = Region::next_of(self.link(lines, entry));
            if self.free != NONE {
                self.prefetch_flow(lines, self.free);
                simd::prefetch(&lines[self.links_at + self.free as usize / 8]);
                if let Some(at) = self.pinned_at {
                    simd::prefetch(&lines[at + self.free as usize / 8]);
                }
            }
        }
        Ok((entry, moved))
    }

    /// Writes a new flow without packets into a taken entry, all but its first word. Returns that.
    #[inline(always)]
    pub(crate) fn write(
        &self,
        lines: &mut [Line],
        entry: u32,
        key: &FlowKey,
        opener: Direction,
        pins: [Slot; 2],
        tick: u64,
    ) -> u64 {
        let state = State::new(key.protocol(), opener);
        let head = [with_pin(0, pins[0]), with_pin(0, pins[1])];
        let ports = match key {
            FlowKey::V4(key) => {
                let words = KeyWords::v4(key);
                let [_, rest @ ..] = self.head_mut(lines, entry);
                *rest = [head[0], head[1], words.addresses[0]];
                words.ports
            }
            FlowKey::V6(key) => {
                let words = KeyWords::v6(key);
                let [a0, a1, b0, b1] = words.addresses;
                let line = self.flow_line(entry);
                let [_, rest @ ..] = &mut lines[line].0;
                *rest = [head[0], head[1], a0, a1, b0, b1, 0];
                words.ports
            }
        };
        Region::see(self.head_mut(lines, entry), tick);
        state.put(ports)
    }

    /// Schedules and counts a flow whose entry has been written but for its first word.
    #[inline(always)]
    pub(crate) fn begin(&mut self, lines: &mut [Line], entry: u32, service: u16, tick: u64, timeout: u64) {
        if let Some(returns) = self.returns_mut(lines, entry) {
            returns.fill(0);
        }
        let pinned = tick & 0xffff_ffff;
        self.set_pinned(lines, entry, pinned | pinned << 32);
        self.arm(lines, entry, service, tick + timeout);
        self.flows += 1;
    }

    /// Stores the first word of a new flow's entry. From then on the flow is in the table, also for a process that
    /// attaches it.
    #[inline(always)]
    pub(crate) fn complete(&self, lines: &mut [Line], entry: u32, ports: u64) {
        store::last(&mut self.head_mut(lines, entry)[0], ports);
    }

    /// Removes a flow from index and wheel and frees its entry.
    #[inline(always)]
    pub(crate) fn remove(&mut self, lines: &mut [Line], hash: u64, entry: u32) {
        self.unindex(lines, hash, entry);
        self.disarm(lines, entry);
        self.release(lines, entry);
        self.flows -= 1;
    }

    /// Frees an unscheduled entry. The flow is gone with the first store; its other words are left alone until the
    /// entry is used again.
    pub(crate) fn release(&mut self, lines: &mut [Line], entry: u32) {
        store::last(&mut self.head_mut(lines, entry)[0], 0);
        self.set_link(lines, entry, u64::from(self.free) << LINK_BITS);
        self.free = entry;
    }

    // Adopting the entries that another process left.

    /// The same region within slices that hold one column each: index, entries or links.
    pub(crate) fn within_slices(&self) -> Region {
        Region {
            index_at: 0,
            flows_at: 0,
            links_at: 0,
            ..self.clone()
        }
    }

    /// The index, and the entries, as slices of their own.
    pub(crate) fn split_index<'a>(&self, lines: &'a mut [Line]) -> (&'a mut [Line], &'a [Line]) {
        let (index, entries) =
            lines[self.index_at..self.links_at].split_at_mut(self.flows_at - self.index_at);
        (index, entries)
    }

    /// The used entries and their links in so many parts of one size.
    pub(crate) fn entry_parts<'a>(&self, lines: &'a mut [Line], parts: usize) -> Vec<EntryPart<'a>> {
        let used = self.high_water as usize;
        let (entries, links) = lines[self.flows_at..].split_at_mut(self.links_at - self.flows_at);
        // A part begins with a line of each.
        let each = used.div_ceil(parts.max(1)).next_multiple_of(GROUP);
        let columns = entries
            .chunks_mut(each >> self.halves)
            .zip(links.chunks_mut(each / 8));
        (0..used)
            .step_by(each)
            .zip(columns)
            .map(|(first, (entries, links))| EntryPart {
                first: first as u32,
                len: each.min(used - first) as u32,
                entries,
                links,
            })
            .collect()
    }

    /// Empty lists of a part of the entries.
    pub(crate) fn lists(&self) -> Lists {
        Lists {
            slots: vec![(NONE, NONE); self.wheel_mask as usize + 1],
            free: (NONE, NONE),
            // Below 2^48: half a wheel's ticks, 32 bits up.
            spread: ((u64::from(self.wheel_mask) / 2) << 32) / u64::from(self.high_water.max(1)),
        }
    }

    /// Puts the lists of a part, with so many flows, behind those of the parts before.
    pub(crate) fn put_behind(&mut self, lines: &mut [Line], lists: &Lists, flows: u64) {
        for (slot, &(first, last)) in (self.capacity..).zip(&lists.slots) {
            if first == NONE {
                continue;
            }
            let before = (self.link(lines, slot) & LINK_MASK) as u32;
            self.set_next(lines, before, first);
            self.set_previous(lines, first, before);
            self.set_next(lines, last, slot);
            self.set_previous(lines, slot, last);
        }
        let (newest, oldest) = lists.free;
        if oldest != NONE {
            self.set_next(lines, oldest, self.free);
            self.free = newest;
        }
        self.flows += flows as u32;
    }

    /// Frees a scheduled entry that is not in the index.
    pub(crate) fn drop_unindexed(&mut self, lines: &mut [Line], entry: u32) {
        self.disarm(lines, entry);
        self.release(lines, entry);
        self.flows -= 1;
    }
}

/// A part of the used entries, and their links.
pub(crate) struct EntryPart<'a> {
    /// The number of its first entry. Within the part that is 0.
    pub(crate) first: u32,
    pub(crate) len: u32,
    pub(crate) entries: &'a mut [Line],
    pub(crate) links: &'a mut [Line],
}

/// The lists of a part of the entries, until they are put together.
pub(crate) struct Lists {
    /// The first and the last entry in each slot of the wheel.
    slots: Vec<(u32, u32)>,
    /// The newest and the oldest free entry.
    free: (u32, u32),
    /// How far entries that are due beyond a turn of the wheel lie apart, in ticks of 2^-32.
    spread: u64,
}

impl Lists {
    /// The slot of the wheel in which an entry is first looked at, if it ends at `due`.
    #[inline(always)]
    pub(crate) fn slot_of(&self, region: &Region, entry: u32, due: u64) -> u32 {
        let turn = u64::from(region.wheel_mask);
        let due = if due > region.cursor + turn {
            // Beyond a turn of the wheel. These are spread over its second half: one slot for all would keep the
            // worker busy with them at once.
            region.cursor + turn / 2 + ((u64::from(entry) * self.spread) >> 32)
        } else {
            due
        };
        due as u32 & region.wheel_mask
    }

    /// Prefetches what scheduling an entry there changes.
    #[inline(always)]
    pub(crate) fn prefetch_last(&self, part: &EntryPart<'_>, slot: u32) {
        if let Some(&(_, last)) = self.slots.get(slot as usize) {
            simd::prefetch_at(part.links, (last.wrapping_sub(part.first) / 8) as usize);
        }
    }

    /// Puts an entry, by its number in the part, at the end of a slot's list.
    #[inline(always)]
    pub(crate) fn schedule(&mut self, region: &Region, part: &mut EntryPart<'_>, at: u32, slot: u32) {
        let Some((first, last)) = self.slots.get_mut(slot as usize) else {
            return;
        };
        let (entry, previous) = (part.first + at, *last);
        *last = entry;
        if previous == NONE {
            *first = entry;
        } else {
            region.set_next(part.links, previous - part.first, entry);
        }
        // Where it has no next or previous one, `put_behind` sets those.
        let service = u64::from(region.service(part.links, at)) << (2 * LINK_BITS);
        region.set_link(
            part.links,
            at,
            u64::from(previous) | u64::from(NONE) << LINK_BITS | service,
        );
    }

    /// Frees an entry, by its number in the part.
    pub(crate) fn release(&mut self, region: &Region, part: &mut EntryPart<'_>, at: u32) {
        store::last(&mut region.head_mut(part.entries, at)[0], 0);
        let (newest, oldest) = &mut self.free;
        region.set_link(part.links, at, u64::from(*newest) << LINK_BITS);
        *newest = part.first + at;
        if *oldest == NONE {
            *oldest = *newest;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use model::{Tuple, protocol};

    use super::*;

    const HASHER: FlowHasher = FlowHasher::new([3, 1, 4, 1]);

    fn config(flows: usize) -> TableConfig {
        TableConfig {
            ipv4_flows: flows,
            ipv6_flows: flows,
            return_counters: true,
            pin_times: true,
        }
    }

    fn key(i: u32) -> FlowKey {
        FlowKey::new(&Tuple {
            src: Ipv4Addr::from(i).into(),
            dst: Ipv4Addr::LOCALHOST.into(),
            src_port: 7,
            dst_port: 8,
            protocol: protocol::UDP,
            vlan: 0,
        })
        .0
    }

    /// Recomputes each bucket's overflow count from the entries' hashes.
    fn check_overflow(region: &Region, lines: &[Line]) {
        let mut displaced = vec![0_u16; region.buckets as usize];
        let mut entries = 0;
        for at in region.index_at..region.flows_at {
            for place in (0..bucket::PLACES).filter(|&place| lines[at].bytes()[place] != 0) {
                let hash = region.hash(lines, &HASHER, bucket::entry(&lines[at], place));
                assert_eq!(lines[at].bytes()[place], Region::signature(hash));
                let first = region.first_bucket(hash);
                assert!(at == first || at == region.second_bucket(hash));
                displaced[first - region.index_at] += u16::from(at != first);
                entries += 1;
            }
        }
        assert_eq!(entries, region.flows);
        for (line, &displaced) in lines[region.index_at..region.flows_at].iter().zip(&displaced) {
            assert_eq!(bucket::overflow(line), displaced);
        }
    }

    #[test]
    fn buckets_count_their_overflowed_flows() {
        const FLOWS: u32 = 6000;
        let mut region = Region::new(Family::V4, &config(FLOWS as usize), 2);
        let mut lines = vec![Line::ZERO; region.end()];
        region.format(&mut lines, 0);
        let mut moves = 0;
        let mut state = 1_u64;
        let mut held = Vec::new();
        for i in 0..3 * FLOWS {
            let key = key(i);
            let hash = HASHER.hash(&key);
            let pins = [Slot::NONE; 2];
            if held.len() == FLOWS as usize {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let (hash, entry) = held.swap_remove((state >> 33) as usize % held.len());
                region.remove(&mut lines, hash, entry);
            }
            let (entry, moved) = region.take(&mut lines, &HASHER, hash).unwrap();
            let ports = region.write(&mut lines, entry, &key, Direction::Forward, pins, 0);
            region.begin(&mut lines, entry, 0, 0, 1000);
            region.complete(&mut lines, entry, ports);
            moves += u32::from(moved);
            held.push((hash, entry));
            if i % 500 == 0 || i > 3 * FLOWS - 10 {
                check_overflow(&region, &lines);
            }
        }
        assert!(moves > 20, "{moves}");
        for (hash, entry) in held {
            region.remove(&mut lines, hash, entry);
        }
        check_overflow(&region, &lines);
        for line in &lines[region.index_at..region.flows_at] {
            assert_eq!(
                (line.bytes()[..16].iter().max(), bucket::overflow(line)),
                (Some(&0), 0)
            );
        }
    }

    #[test]
    fn offsets_map_back_to_entries() {
        for family in [Family::V4, Family::V6] {
            let region = Region::new(family, &config(1000), 17);
            for entry in [0, 1, 2, 3, 998, 999] {
                assert_eq!(region.entry_at(region.place_of(entry)), entry);
                assert_eq!((region.place_of(entry) / 2) as usize, region.flow_line(entry));
            }
        }
    }
}
