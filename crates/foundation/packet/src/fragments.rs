//! Finds the flow of IP fragments without ports.
//!
//! The first fragment of a datagram has the ports. Later fragments use its flow; those that arrive before it
//! wait. Nothing is reassembled: every fragment is forwarded as received.
//!
//! A tracker belongs to one worker and is called from its thread only. All fragments of a datagram reach the
//! same worker, because ownership depends on addresses and VLAN. Storage is allocated once, in
//! [`FragmentTracker::new`].

use model::{Direction, DropReason, FlowKey, Nanos};

use crate::parse::{Fragment, PacketInfo};
use crate::siphash;

/// Waiting fragments per worker. Each holds a pool buffer: at 2 KiB, 2 MiB in all. This bounds what a sender
/// who omits first fragments can occupy.
pub const WAITING_LIMIT: usize = 1024;

/// Waiting fragments per datagram. 65,535 bytes in fragments of 1,480 bytes are 45; the largest datagram over
/// IPv6's minimum MTU (1,280) is 54. One datagram takes at most a sixteenth of [`WAITING_LIMIT`].
pub const WAITING_LIMIT_PER_DATAGRAM: usize = 64;

/// How long a fragment waits for the first one. Networks reorder within a few milliseconds; a longer gap is
/// loss. A receiver's reassembly timer (15 to 60 s) covers the whole path and is no guide here.
pub const WAITING_TIME: Nanos = Nanos::from_millis(50);

/// Datagrams tracked per worker: their ports are known, or fragments of them wait. Four times
/// [`WAITING_LIMIT`], so that a datagram without waiting fragments can always be evicted.
pub const DATAGRAM_LIMIT: usize = 4096;

/// How long the ports of an incomplete datagram are kept. A sender emits its fragments back to back, so a
/// second is ample; 16-bit identifications rarely wrap within it (RFC 4963).
pub const DATAGRAM_LIFETIME: Nanos = Nanos::from_secs(1);

/// Disjoint runs of data tracked per datagram, to detect overlaps. Fragments in order form one run.
pub const GAP_LIMIT: usize = 8;

/// Datagrams per hash bucket. The table is at most half full and the hash is keyed, so chance exceeds this
/// once in 10^19 inserts.
const BUCKET_LIMIT: usize = 16;

/// Expired datagrams removed per `expire` call, so that no burst pays for all of them.
const FORGOTTEN_PER_CALL: usize = 32;

const NONE: u32 = u32::MAX;

/// The result of offering a fragment. The frame is returned or held.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer<F> {
    /// Its flow is known: forward it, then call [`FragmentTracker::release`] until it returns `None`.
    Resolved {
        /// The frame.
        frame: F,
        /// As parsed, with the flow's key and direction filled in.
        info: PacketInfo,
    },
    /// Held until the first fragment arrives or the waiting time ends.
    Waiting,
    /// Drop it and count the reason.
    Refused {
        /// The frame.
        frame: F,
        /// `FragmentLimit` or `FragmentInvalid`.
        reason: DropReason,
    },
}

/// Counters since construction, in fragments unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentCounters {
    /// Given their flow, at once or after waiting.
    pub resolved: u64,
    /// Had to wait.
    pub waited: u64,
    /// Dropped after waiting too long: `FragmentTimeout`.
    pub timed_out: u64,
    /// Refused as `FragmentLimit`.
    pub over_limit: u64,
    /// Refused as `FragmentInvalid`.
    pub invalid: u64,
    /// Datagrams evicted to make room.
    pub evicted_datagrams: u64,
    /// Incomplete datagrams removed at the end of their lifetime.
    pub expired_datagrams: u64,
}

/// The fragment state of one worker: waiting fragments, and datagrams with known ports. `F` is the held frame
/// with its caller's context.
#[derive(Debug)]
pub struct FragmentTracker<F> {
    hash_key: [u64; 2],
    /// Hash → newest datagram of the bucket. Length: a power of two, twice the datagrams.
    buckets: Box<[u32]>,
    datagrams: Box<[Datagram]>,
    free_datagram: u32,
    /// Datagrams with known ports, oldest first. None of them has waiting fragments.
    oldest_known: u32,
    newest_known: u32,
    held: Box<[Held<F>]>,
    free_held: u32,
    /// Waiting fragments of all datagrams, in the order of arrival.
    oldest_waiting: u32,
    newest_waiting: u32,
    /// Released fragments that the caller has not taken yet, in order of arrival.
    first_released: u32,
    last_released: u32,
    occupied: usize,
    counters: FragmentCounters,
}

/// What all fragments of a datagram share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DatagramId {
    /// Ports 0.
    addresses: FlowKey,
    direction: Direction,
    identification: u32,
}

#[derive(Clone, Copy, Debug)]
struct Datagram {
    id: DatagramId,
    /// The flow, once the first fragment has arrived.
    flow: Option<(FlowKey, Direction)>,
    /// Arrival of the first fragment.
    known_since: Nanos,
    runs: Runs,
    bucket: u32,
    next_in_bucket: u32,
    older: u32,
    newer: u32,
    first_waiting: u32,
    last_waiting: u32,
    waiting: u32,
}

#[derive(Debug)]
struct Held<F> {
    frame: Option<F>,
    info: PacketInfo,
    arrived: Nanos,
    datagram: u32,
    /// Next of the same datagram, next released, or next free slot.
    next: u32,
    /// Neighbours in the list of waiting fragments.
    older: u32,
    newer: u32,
}

impl<F> FragmentTracker<F> {
    /// An empty tracker with all its storage. `hash_key` is random and secret, so that no sender can target a
    /// bucket.
    pub fn new(hash_key: [u64; 2]) -> FragmentTracker<F> {
        let datagram = Datagram {
            id: DatagramId {
                addresses: NO_FLOW,
                direction: Direction::Forward,
                identification: 0,
            },
            flow: None,
            known_since: Nanos::ZERO,
            runs: Runs::default(),
            bucket: 0,
            next_in_bucket: NONE,
            older: NONE,
            newer: NONE,
            first_waiting: NONE,
            last_waiting: NONE,
            waiting: 0,
        };
        let next_free = |place: usize, places: usize| {
            if place + 1 < places {
                place as u32 + 1
            } else {
                NONE
            }
        };
        FragmentTracker {
            hash_key,
            buckets: vec![NONE; 2 * DATAGRAM_LIMIT].into_boxed_slice(),
            datagrams: (0..DATAGRAM_LIMIT)
                .map(|place| Datagram {
                    next_in_bucket: next_free(place, DATAGRAM_LIMIT),
                    ..datagram
                })
                .collect(),
            free_datagram: 0,
            oldest_known: NONE,
            newest_known: NONE,
            held: (0..WAITING_LIMIT)
                .map(|place| Held {
                    frame: None,
                    info: PacketInfo::NONE,
                    arrived: Nanos::ZERO,
                    datagram: NONE,
                    next: next_free(place, WAITING_LIMIT),
                    older: NONE,
                    newer: NONE,
                })
                .collect(),
            free_held: 0,
            oldest_waiting: NONE,
            newest_waiting: NONE,
            first_released: NONE,
            last_released: NONE,
            occupied: 0,
            counters: FragmentCounters::default(),
        }
    }

    /// Takes a fragment. `now` must not go backwards.
    ///
    /// - A first fragment is resolved and determines the flow; waiting fragments of its datagram can then be
    ///   [released]. If it contradicts an earlier first fragment of the datagram, it is `FragmentInvalid`. If
    ///   it repeats that one, the datagram starts over, because identifications wrap.
    /// - A later fragment is resolved if the flow is known, else it waits.
    /// - A fragment that overlaps another one, or the end of the datagram, is `FragmentInvalid` (RFC 5722).
    ///
    /// [released]: FragmentTracker::release
    pub fn offer(&mut self, fragment: &Fragment, frame: F, now: Nanos) -> Offer<F> {
        let result = if fragment.is_first() {
            self.offer_first(fragment, now)
        } else {
            self.offer_later(fragment, now)
        };
        match result {
            Ok(Verdict::Flow(key, direction)) => {
                self.counters.resolved += 1;
                let info = PacketInfo {
                    key,
                    direction,
                    ..fragment.info
                };
                Offer::Resolved { frame, info }
            }
            Ok(Verdict::Wait(datagram)) => {
                self.counters.waited += 1;
                self.hold(datagram, fragment.info, frame, now);
                Offer::Waiting
            }
            Err(reason) => {
                match reason {
                    DropReason::FragmentLimit => self.counters.over_limit += 1,
                    _ => self.counters.invalid += 1,
                }
                Offer::Refused { frame, reason }
            }
        }
    }

    /// Whether a fragment is of a datagram whose first fragment was taken by this method, or is such a first one. None is
    /// held: a later one that comes before the first is of no datagram. `now` must not go backwards.
    ///
    /// # Errors
    /// `FragmentTimeout`: the first one is not known. Otherwise as in [`offer`](Self::offer).
    pub fn follow(&mut self, fragment: &Fragment, now: Nanos) -> Result<(), DropReason> {
        if fragment.is_first() {
            return self.offer_first(fragment, now).map(|_| ());
        }
        match self.find(fragment, now) {
            Some(_) => self.offer_later(fragment, now).map(|_| ()),
            None => Err(DropReason::FragmentTimeout),
        }
    }

    /// The next waiting fragment that has been resolved, in order of arrival. Call it until `None` after each
    /// [`Offer::Resolved`]; otherwise packets of a flow are reordered.
    pub fn release(&mut self) -> Option<(F, PacketInfo)> {
        let place = self.first_released;
        let held = self.held.get_mut(place as usize)?;
        self.first_released = held.next;
        if self.first_released == NONE {
            self.last_released = NONE;
        }
        let info = held.info;
        let frame = self.free(place)?;
        self.counters.resolved += 1;
        Some((frame, info))
    }

    /// The next fragment that has waited for [`WAITING_TIME`], to drop as `FragmentTimeout`. Call it until
    /// `None`, once per burst. Also removes a few expired datagrams per call.
    pub fn expire(&mut self, now: Nanos) -> Option<F> {
        let place = self.oldest_waiting;
        if let Some(held) = self.held.get(place as usize)
            && now.since(held.arrived) >= WAITING_TIME
        {
            self.counters.timed_out += 1;
            return self.give_up(place);
        }
        for _ in 0..FORGOTTEN_PER_CALL {
            let oldest = self.oldest_known;
            match self.datagrams.get(oldest as usize) {
                Some(datagram) if now.since(datagram.known_since) >= DATAGRAM_LIFETIME => {
                    self.counters.expired_datagrams += 1;
                    self.forget(oldest);
                }
                _ => break,
            }
        }
        None
    }

    /// The next held fragment, for whatever reason it is held. Used when a worker shuts down.
    pub fn drain(&mut self) -> Option<F> {
        if let Some((frame, _)) = self.release() {
            self.counters.resolved -= 1;
            return Some(frame);
        }
        self.give_up(self.oldest_waiting)
    }

    /// When [`expire`](Self::expire) next returns a fragment; `None` while none waits. A worker must not
    /// sleep past it.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let held = self.held.get(self.oldest_waiting as usize)?;
        Some(held.arrived + WAITING_TIME)
    }

    /// Held fragments: waiting, or released and not taken yet.
    pub fn occupied(&self) -> usize {
        self.occupied
    }

    /// The counters since construction.
    pub fn counters(&self) -> FragmentCounters {
        self.counters
    }

    fn offer_first(&mut self, fragment: &Fragment, now: Nanos) -> Result<Verdict, DropReason> {
        let flow = (fragment.info.key, fragment.info.direction);
        let place = match self.find(fragment, now) {
            Some(place) => {
                let datagram = &mut self.datagrams[place as usize];
                match datagram.flow {
                    Some(known) if known != flow => return Err(DropReason::FragmentInvalid),
                    Some(_) => {
                        datagram.runs = Runs::default();
                        self.unlink_known(place);
                    }
                    None => {}
                }
                place
            }
            None => self.insert(fragment)?,
        };
        let datagram = &mut self.datagrams[place as usize];
        // On failure the datagram has waiting fragments and stays as it is: an empty one cannot overlap.
        datagram.runs.add(fragment)?;
        datagram.flow = Some(flow);
        datagram.known_since = now;
        self.release_waiting(place, flow);
        self.link_known(place);
        self.forget_if_complete(place);
        Ok(Verdict::Flow(flow.0, flow.1))
    }

    fn offer_later(&mut self, fragment: &Fragment, now: Nanos) -> Result<Verdict, DropReason> {
        let found = self.find(fragment, now);
        if let Some(place) = found
            && let Some((key, direction)) = self.datagrams[place as usize].flow
        {
            self.datagrams[place as usize].runs.add(fragment)?;
            self.forget_if_complete(place);
            return Ok(Verdict::Flow(key, direction));
        }
        if self.free_held == NONE {
            return Err(DropReason::FragmentLimit);
        }
        let place = match found {
            Some(place) => {
                if self.datagrams[place as usize].waiting as usize >= WAITING_LIMIT_PER_DATAGRAM {
                    return Err(DropReason::FragmentLimit);
                }
                place
            }
            None => self.insert(fragment)?,
        };
        self.datagrams[place as usize].runs.add(fragment)?;
        Ok(Verdict::Wait(place))
    }

    fn bucket(&self, id: &DatagramId) -> u32 {
        (siphash::hash(self.hash_key, &id.words()) % self.buckets.len() as u64) as u32
    }

    /// The unexpired datagram of this fragment.
    fn find(&mut self, fragment: &Fragment, now: Nanos) -> Option<u32> {
        let id = DatagramId::of(fragment);
        let mut place = self.buckets[self.bucket(&id) as usize];
        while let Some(datagram) = self.datagrams.get(place as usize) {
            if datagram.id == id {
                if datagram.flow.is_some() && now.since(datagram.known_since) >= DATAGRAM_LIFETIME {
                    self.counters.expired_datagrams += 1;
                    self.forget(place);
                    return None;
                }
                return Some(place);
            }
            place = datagram.next_in_bucket;
        }
        None
    }

    /// Allocates a datagram, evicting the oldest known one if none is free.
    fn insert(&mut self, fragment: &Fragment) -> Result<u32, DropReason> {
        let id = DatagramId::of(fragment);
        let bucket = self.bucket(&id);
        let mut in_bucket = 0;
        let mut oldest_in_bucket = NONE;
        let mut place = self.buckets[bucket as usize];
        while let Some(datagram) = self.datagrams.get(place as usize) {
            in_bucket += 1;
            if datagram.flow.is_some() {
                oldest_in_bucket = place;
            }
            place = datagram.next_in_bucket;
        }
        let evicted = if in_bucket >= BUCKET_LIMIT {
            Some(oldest_in_bucket)
        } else if self.free_datagram == NONE {
            Some(self.oldest_known)
        } else {
            None
        };
        match evicted {
            Some(NONE) => return Err(DropReason::FragmentLimit),
            Some(place) => {
                self.counters.evicted_datagrams += 1;
                self.forget(place);
            }
            None => {}
        }
        let place = self.free_datagram;
        let datagram = &mut self.datagrams[place as usize];
        self.free_datagram = datagram.next_in_bucket;
        *datagram = Datagram {
            id,
            flow: None,
            known_since: Nanos::ZERO,
            runs: Runs::default(),
            bucket,
            next_in_bucket: self.buckets[bucket as usize],
            older: NONE,
            newer: NONE,
            first_waiting: NONE,
            last_waiting: NONE,
            waiting: 0,
        };
        self.buckets[bucket as usize] = place;
        Ok(place)
    }

    /// Frees a datagram. It must have no waiting fragments.
    fn forget(&mut self, place: u32) {
        let Datagram {
            flow,
            bucket,
            next_in_bucket,
            waiting,
            ..
        } = self.datagrams[place as usize];
        debug_assert_eq!(waiting, 0);
        if flow.is_some() {
            self.unlink_known(place);
        }
        if self.buckets[bucket as usize] == place {
            self.buckets[bucket as usize] = next_in_bucket;
        } else {
            let mut before = self.buckets[bucket as usize];
            while self.datagrams[before as usize].next_in_bucket != place {
                before = self.datagrams[before as usize].next_in_bucket;
            }
            self.datagrams[before as usize].next_in_bucket = next_in_bucket;
        }
        self.datagrams[place as usize].next_in_bucket = self.free_datagram;
        self.free_datagram = place;
    }

    fn forget_if_complete(&mut self, place: u32) {
        if self.datagrams[place as usize].runs.is_complete() {
            self.forget(place);
        }
    }

    fn link_known(&mut self, place: u32) {
        let newest = self.newest_known;
        let datagram = &mut self.datagrams[place as usize];
        datagram.older = newest;
        datagram.newer = NONE;
        match self.datagrams.get_mut(newest as usize) {
            Some(before) => before.newer = place,
            None => self.oldest_known = place,
        }
        self.newest_known = place;
    }

    fn unlink_known(&mut self, place: u32) {
        let Datagram { older, newer, .. } = self.datagrams[place as usize];
        match self.datagrams.get_mut(older as usize) {
            Some(before) => before.newer = newer,
            None => self.oldest_known = newer,
        }
        match self.datagrams.get_mut(newer as usize) {
            Some(after) => after.older = older,
            None => self.newest_known = older,
        }
    }

    /// Appends a fragment to the waiting list. A slot must be free.
    fn hold(&mut self, datagram: u32, info: PacketInfo, frame: F, now: Nanos) {
        let place = self.free_held;
        let older = self.newest_waiting;
        let held = &mut self.held[place as usize];
        self.free_held = held.next;
        *held = Held {
            frame: Some(frame),
            info,
            arrived: now,
            datagram,
            next: NONE,
            older,
            newer: NONE,
        };
        match self.held.get_mut(older as usize) {
            Some(before) => before.newer = place,
            None => self.oldest_waiting = place,
        }
        self.newest_waiting = place;
        let owner = &mut self.datagrams[datagram as usize];
        match self.held.get_mut(owner.last_waiting as usize) {
            Some(before) => before.next = place,
            None => owner.first_waiting = place,
        }
        owner.last_waiting = place;
        owner.waiting += 1;
        self.occupied += 1;
    }

    /// Removes a fragment from the waiting list.
    fn unlink_waiting(&mut self, place: u32) {
        let Held { older, newer, .. } = self.held[place as usize];
        match self.held.get_mut(older as usize) {
            Some(before) => before.newer = newer,
            None => self.oldest_waiting = newer,
        }
        match self.held.get_mut(newer as usize) {
            Some(after) => after.older = older,
            None => self.newest_waiting = older,
        }
    }

    /// Moves a datagram's waiting fragments to the end of the released list and sets their flow.
    fn release_waiting(&mut self, datagram: u32, (key, direction): (FlowKey, Direction)) {
        let owner = &mut self.datagrams[datagram as usize];
        let first = owner.first_waiting;
        let last = owner.last_waiting;
        owner.first_waiting = NONE;
        owner.last_waiting = NONE;
        owner.waiting = 0;
        let mut place = first;
        while place != NONE {
            self.unlink_waiting(place);
            let held = &mut self.held[place as usize];
            held.info.key = key;
            held.info.direction = direction;
            place = held.next;
        }
        if first != NONE {
            match self.held.get_mut(self.last_released as usize) {
                Some(before) => before.next = first,
                None => self.first_released = first,
            }
            self.last_released = last;
        }
    }

    /// Removes the oldest waiting fragment, which is also the oldest of its datagram.
    fn give_up(&mut self, place: u32) -> Option<F> {
        let held = self.held.get(place as usize)?;
        let (datagram, next) = (held.datagram, held.next);
        self.unlink_waiting(place);
        let owner = &mut self.datagrams[datagram as usize];
        owner.first_waiting = next;
        owner.waiting -= 1;
        if owner.waiting == 0 {
            owner.last_waiting = NONE;
            self.forget(datagram);
        }
        self.free(place)
    }

    fn free(&mut self, place: u32) -> Option<F> {
        let held = &mut self.held[place as usize];
        held.next = self.free_held;
        self.free_held = place;
        self.occupied -= 1;
        held.frame.take()
    }
}

enum Verdict {
    Flow(FlowKey, Direction),
    Wait(u32),
}

const NO_FLOW: FlowKey = FlowKey::V4(model::FlowKeyV4 {
    a: [0; 4],
    b: [0; 4],
    a_port: 0,
    b_port: 0,
    vlan: 0,
    protocol: 0,
    zero: 0,
});

impl PacketInfo {
    /// Placeholder in a free slot.
    const NONE: PacketInfo = PacketInfo {
        key: NO_FLOW,
        direction: Direction::Forward,
        protocol: 0,
        tcp_flags: crate::parse::TcpFlags(0),
        is_icmp_error: false,
        dscp: 0,
        vlan: 0,
        l3_offset: 0,
        l4_offset: 0,
        l3_len: 0,
        frame_len: 0,
    };
}

impl DatagramId {
    fn of(fragment: &Fragment) -> DatagramId {
        let mut addresses = fragment.info.key;
        let same_endpoint;
        match &mut addresses {
            FlowKey::V4(key) => {
                (key.a_port, key.b_port, key.protocol) = (0, 0, fragment.protocol);
                same_endpoint = key.a == key.b;
            }
            FlowKey::V6(key) => {
                (key.a_port, key.b_port, key.protocol) = (0, 0, fragment.protocol);
                same_endpoint = key.a == key.b;
            }
        }
        DatagramId {
            addresses,
            // Between equal addresses the ports determine the direction, which later fragments lack.
            direction: if same_endpoint {
                Direction::Forward
            } else {
                fragment.info.direction
            },
            identification: fragment.identification,
        }
    }

    fn words(&self) -> [u64; 6] {
        let tag = |vlan: u16, protocol: u8, family: u64| {
            u64::from(vlan) | u64::from(protocol) << 16 | family << 24 | (self.direction.index() as u64) << 25
        };
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let mut words = match &self.addresses {
            FlowKey::V4(key) => [
                word(&key.a),
                word(&key.b),
                0,
                0,
                tag(key.vlan, key.protocol, 0),
                0,
            ],
            FlowKey::V6(key) => [
                word(&key.a[..8]),
                word(&key.a[8..]),
                word(&key.b[..8]),
                word(&key.b[8..]),
                tag(key.vlan, key.protocol, 1),
                0,
            ],
        };
        words[5] = u64::from(self.identification);
        words
    }
}

/// The received parts of a datagram, in units of 8 bytes: sorted, disjoint runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Runs {
    runs: [(u16, u16); GAP_LIMIT],
    count: usize,
    /// The end of the datagram; 0 until its last fragment has arrived.
    end: u16,
}

impl Runs {
    /// Adds a fragment. On error nothing changes.
    fn add(&mut self, fragment: &Fragment) -> Result<(), DropReason> {
        let start = fragment.offset;
        let stop = start + fragment.len.div_ceil(8);
        let seen = &self.runs[..self.count];
        let reached = seen.last().map_or(0, |run| run.1);
        let is_beyond_end = self.end != 0 && (stop > self.end || (!fragment.more && stop != self.end));
        let is_end_within = !fragment.more && reached > stop;
        let at = seen.partition_point(|run| run.0 < start);
        let before = at.checked_sub(1).map(|i| seen[i]);
        let after = seen.get(at).copied();
        let overlaps = before.is_some_and(|run| run.1 > start) || after.is_some_and(|run| run.0 < stop);
        if is_beyond_end || is_end_within || overlaps {
            return Err(DropReason::FragmentInvalid);
        }
        match (
            before.is_some_and(|run| run.1 == start),
            after.is_some_and(|run| run.0 == stop),
        ) {
            (true, true) => {
                self.runs[at - 1].1 = self.runs[at].1;
                self.runs.copy_within(at + 1..self.count, at);
                self.count -= 1;
            }
            (true, false) => self.runs[at - 1].1 = stop,
            (false, true) => self.runs[at].0 = start,
            (false, false) => {
                if self.count == GAP_LIMIT {
                    return Err(DropReason::FragmentLimit);
                }
                self.runs.copy_within(at..self.count, at + 1);
                self.runs[at] = (start, stop);
                self.count += 1;
            }
        }
        if !fragment.more {
            self.end = stop;
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.end != 0 && self.runs[..self.count] == [(0, self.end)]
    }
}
