//! The flows that are known: which end is the client, what was marked, and the streams of TCP.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};

use flow_table::FlowHasher;
use model::{Direction, FlowKey, Nanos, mix};
use packet::TcpFlags;
use siphasher::sip::SipHasher13;

use super::stream::Stream;

/// Flows that a sweep looks at.
const SWEEP: usize = 256;
/// How long a flow is kept that its ends have closed.
const CLOSED: Nanos = Nanos::from_secs(2);

/// A keyed hash: senders cannot choose flows that collide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keyed(u64);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        let mut hasher = SipHasher13::new_with_keys(self.0, !self.0);
        hasher.write_u8(0);
        hasher
    }
}

impl Keyed {
    pub(super) fn new(seed: u64) -> Keyed {
        Keyed(seed)
    }
}

/// A flow's key with the hash by which the index has it: keyed, and of whole words. A derived one takes a key's fields one
/// by one.
#[derive(Clone, Copy, Debug)]
struct Known {
    hash: u64,
    key: FlowKey,
}

impl PartialEq for Known {
    #[inline]
    fn eq(&self, other: &Known) -> bool {
        self.key == other.key
    }
}

impl Eq for Known {}

impl Hash for Known {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Takes a hash as it is.
#[derive(Clone, Copy, Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// What becomes of the packets of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fate {
    /// They are inspected.
    #[default]
    Inspect,
    /// A rule has let the flow pass.
    Pass,
    /// A rule has dropped it.
    Drop,
}

/// What rules have decided about a flow.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) fate: Fate,
    /// Valid for one set of rules.
    bits: u64,
    rules: u64,
}

impl Marks {
    /// The bits, under the set of rules with that number.
    pub(super) fn bits(&mut self, rules: u64) -> &mut u64 {
        if self.rules != rules {
            self.rules = rules;
            self.bits = 0;
        }
        &mut self.bits
    }
}

/// A flow.
#[derive(Debug)]
pub(super) struct Flow {
    key: FlowKey,
    last: Nanos,
    /// The direction of what the client sends.
    pub(super) client: Option<Direction>,
    pub(super) is_established: bool,
    has_syn: bool,
    is_closed: bool,
    pub(super) marks: Marks,
    pub(super) streams: [Stream; 2],
}

impl Flow {
    fn new(key: FlowKey, now: Nanos) -> Flow {
        Flow {
            key,
            last: now,
            client: None,
            is_established: false,
            has_syn: false,
            is_closed: false,
            marks: Marks::default(),
            streams: [Stream::default(), Stream::default()],
        }
    }

    /// Learns from a packet which end is the client, and whether both talk to each other.
    pub(super) fn learn(&mut self, direction: Direction, flags: TcpFlags, is_tcp: bool, midstream: bool) {
        if !is_tcp {
            let client = *self.client.get_or_insert(direction);
            self.is_established |= client != direction;
            return;
        }
        if flags.syn() && !flags.ack() {
            self.client = Some(direction);
            self.has_syn = true;
        } else if flags.syn() {
            self.client = Some(direction.flipped());
            self.has_syn = true;
        } else if flags.ack() && self.has_syn {
            self.is_established = true;
        } else if midstream && !self.has_syn {
            self.client.get_or_insert(direction);
            self.is_established = true;
        }
        self.is_closed |= flags.fin() || flags.rst();
    }

    fn is_over(&self, now: Nanos, idle: Nanos) -> bool {
        now.since(self.last) > if self.is_closed { CLOSED } else { idle }
    }
}

/// All flows.
#[derive(Debug)]
pub(super) struct Flows {
    hasher: FlowHasher,
    index: HashMap<Known, usize, BuildHasherDefault<AsItIs>>,
    slots: Vec<Option<Flow>>,
    free: Vec<usize>,
    hand: usize,
    limit: usize,
    freed: usize,
}

impl Flows {
    pub(super) fn new(limit: usize, seed: u64) -> Flows {
        Flows {
            hasher: FlowHasher::new([1, 2, 3, 4].map(|number| mix(seed ^ number))),
            index: HashMap::with_capacity_and_hasher(limit, BuildHasherDefault::default()),
            slots: Vec::with_capacity(limit),
            free: Vec::with_capacity(limit),
            hand: 0,
            limit,
            freed: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Bytes of streams that have ended because their ports were used again, since this was last asked.
    pub(super) fn take_freed(&mut self) -> usize {
        std::mem::take(&mut self.freed)
    }

    #[inline]
    fn known(&self, key: FlowKey) -> Known {
        Known {
            hash: self.hasher.hash(&key),
            key,
        }
    }

    /// Another limit. With a lower one, flows that are there stay until they end.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The flow with that key; a new one begins it. [`None`] if there is no room for a new one.
    pub(super) fn get(&mut self, key: FlowKey, flags: TcpFlags, now: Nanos) -> Option<&mut Flow> {
        let known = self.known(key);
        let at = match self.index.get(&known) {
            Some(at) => {
                let flow = self.slots.get_mut(*at)?.as_mut()?;
                // Its ends use their ports again.
                if flow.is_closed && flags.syn() && !flags.ack() {
                    self.freed += flow.streams.iter().map(Stream::memory).sum::<usize>();
                    *flow = Flow::new(key, now);
                }
                *at
            }
            None => {
                if self.index.len() >= self.limit {
                    return None;
                }
                let flow = Some(Flow::new(key, now));
                let at = match self.free.pop() {
                    Some(at) => {
                        *self.slots.get_mut(at)? = flow;
                        at
                    }
                    None => {
                        self.slots.push(flow);
                        self.slots.len() - 1
                    }
                };
                self.index.insert(known, at);
                at
            }
        };
        let flow = self.slots.get_mut(at)?.as_mut()?;
        flow.last = now;
        Some(flow)
    }

    /// Ends flows that were idle too long, among the next few. `ended` gets each.
    pub(super) fn sweep(&mut self, now: Nanos, idle: Nanos, mut ended: impl FnMut(Flow)) {
        for _ in 0..SWEEP.min(self.slots.len()) {
            self.hand = (self.hand + 1) % self.slots.len();
            let Some(slot) = self.slots.get_mut(self.hand) else {
                return;
            };
            if let Some(flow) = slot.take_if(|flow| flow.is_over(now, idle)) {
                self.index.remove(&self.known(flow.key));
                self.free.push(self.hand);
                ended(flow);
            }
        }
    }
}
