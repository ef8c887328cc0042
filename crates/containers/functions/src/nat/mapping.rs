//! Mappings in a slab of fixed size, and the wheel that finds those whose time is over.

use std::net::SocketAddrV4;

use packet::TcpFlags;

use super::tcp::State;

/// A point in time, in whole seconds of the monotonic clock.
pub(super) type Tick = u32;
/// A place in the slab.
pub(super) type Id = u32;

pub(super) const NONE: u32 = u32::MAX;

/// Slots of the wheel, of a second each. A mapping that lives longer is looked at once in that time.
const SLOTS: u32 = 4096;
/// In `previous`: the mapping is the first one of this slot of the wheel.
const FIRST_OF: u32 = 1 << 31;

/// Most mappings: places have no upper bit.
pub(super) const MAPPINGS_LIMIT: usize = 1 << 24;

/// What has ports of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// TCP.
    Tcp = 0,
    /// UDP.
    Udp = 1,
    /// ICMP echo: its identifier is the port.
    Icmp = 2,
}

impl Class {
    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// An internal endpoint with its external one, in half a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct Mapping {
    pub(super) internal: SocketAddrV4,
    pub(super) external: SocketAddrV4,
    /// Where the inside has sent last.
    pub(super) remote: SocketAddrV4,
    pub(super) class: Class,
    /// Of TCP.
    pub(super) state: State,
    /// When its idle time began.
    pub(super) touched: Tick,
    previous: u32,
    next: u32,
}

/// How long mappings live without packets, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timeouts {
    pub(super) udp: u32,
    pub(super) tcp_established: u32,
    pub(super) tcp_transitory: u32,
    pub(super) icmp: u32,
}

impl Mapping {
    /// The first second in which it is over: it has been idle at least as long as its timeout.
    #[inline(always)]
    pub(super) fn end(&self, timeouts: &Timeouts) -> Tick {
        let timeout = match self.class {
            Class::Udp => timeouts.udp,
            Class::Icmp => timeouts.icmp,
            Class::Tcp if self.state.is_established() => timeouts.tcp_established,
            Class::Tcp => timeouts.tcp_transitory,
        };
        self.touched.saturating_add(timeout).saturating_add(1)
    }

    /// After a packet from the inside. Whether it now ends earlier than it would have.
    #[inline(always)]
    pub(super) fn sent(&mut self, remote: SocketAddrV4, flags: TcpFlags, now: Tick) -> bool {
        let mut is_shorter = false;
        let mut refreshes = true;
        if self.class == Class::Tcp {
            let step = self.state.outbound(flags, remote == self.remote);
            is_shorter = self.state.is_established() && !step.state.is_established();
            self.state = step.state;
            refreshes = step.refreshes;
        }
        // An RST may answer a stranger, who must not take the place of the remote endpoint.
        if refreshes {
            self.remote = remote;
            self.touched = now;
        }
        is_shorter
    }

    /// Adds what another instance knows of it.
    pub(super) fn merge(&mut self, remote: SocketAddrV4, state: State, touched: Tick) {
        if touched > self.touched {
            self.remote = remote;
            self.touched = touched;
        }
        self.state = self.state.merged(state);
    }

    /// After a packet from the outside. Whether it now ends earlier than it would have.
    #[inline(always)]
    pub(super) fn received(
        &mut self,
        from: SocketAddrV4,
        flags: TcpFlags,
        now: Tick,
        may_refresh: bool,
    ) -> bool {
        let is_same = from == self.remote;
        let mut is_shorter = false;
        let mut refreshes = is_same && may_refresh;
        if self.class == Class::Tcp {
            let step = self.state.inbound(flags, is_same);
            is_shorter = self.state.is_established() && !step.state.is_established();
            self.state = step.state;
            refreshes = step.refreshes;
        }
        if refreshes {
            self.touched = now;
        }
        is_shorter
    }
}

/// All mappings. A mapping that is refreshed stays where it is in the wheel; it gets another slot when its old one is
/// due. So a packet costs nothing here.
#[derive(Debug)]
pub(super) struct Slab {
    mappings: Box<[Mapping]>,
    free: Id,
    len: usize,
    heads: Box<[Id]>,
    /// The second whose slot was looked at last.
    at: Tick,
}

impl Slab {
    /// Room for `limit` mappings, at most [`MAPPINGS_LIMIT`].
    pub(super) fn new(limit: usize) -> Slab {
        let limit = limit.min(MAPPINGS_LIMIT);
        let nowhere = SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0);
        let mappings = (1..=limit as u32).map(|next| Mapping {
            internal: nowhere,
            external: nowhere,
            remote: nowhere,
            class: Class::Udp,
            state: State::NEW,
            touched: 0,
            previous: NONE,
            next: if next == limit as u32 { NONE } else { next },
        });
        Slab {
            mappings: mappings.collect(),
            free: if limit == 0 { NONE } else { 0 },
            len: 0,
            heads: vec![NONE; SLOTS as usize].into(),
            at: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn limit(&self) -> usize {
        self.mappings.len()
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Mapping> {
        self.mappings.get_mut(id as usize)
    }

    #[inline(always)]
    pub(super) fn get(&self, id: Id) -> Option<&Mapping> {
        self.mappings.get(id as usize)
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, id: Id) {
        simd::prefetch_at(&self.mappings, id as usize);
    }

    /// Adds a mapping. [`None`] if there is no room.
    pub(super) fn insert(&mut self, mapping: NewMapping, timeouts: &Timeouts) -> Option<Id> {
        let id = self.free;
        let place = self.mappings.get_mut(id as usize)?;
        self.free = place.next;
        *place = Mapping {
            internal: mapping.internal,
            external: mapping.external,
            remote: mapping.remote,
            class: mapping.class,
            state: mapping.state,
            touched: mapping.touched,
            previous: NONE,
            next: NONE,
        };
        let end = place.end(timeouts);
        self.len += 1;
        self.link(id, end);
        Some(id)
    }

    /// Removes a mapping.
    pub(super) fn remove(&mut self, id: Id) -> Option<Mapping> {
        self.unlink(id);
        let place = self.mappings.get_mut(id as usize)?;
        let mapping = *place;
        place.next = self.free;
        self.free = id;
        self.len -= 1;
        Some(mapping)
    }

    /// Gives a mapping that ends earlier than before its place in the wheel.
    #[cold]
    pub(super) fn hasten(&mut self, id: Id, timeouts: &Timeouts) {
        if let Some(end) = self.get(id).map(|mapping| mapping.end(timeouts)) {
            self.unlink(id);
            self.link(id, end);
        }
    }

    /// All mappings get their places anew: after other timeouts.
    pub(super) fn rewind(&mut self, timeouts: &Timeouts) {
        let all: Vec<Id> = self.ids().collect();
        for id in all {
            self.hasten(id, timeouts);
        }
    }

    /// The mappings that there are.
    pub(super) fn ids(&self) -> impl Iterator<Item = Id> {
        self.heads.iter().flat_map(|&head| {
            let next = |id: &Id| self.get(*id).map(|mapping| mapping.next).filter(|&id| id != NONE);
            std::iter::successors(Some(head).filter(|&id| id != NONE), next)
        })
    }

    /// The next mapping whose time is over; the caller removes it. Looks at `budget` mappings at most, and counts it
    /// down. `at` must not go backwards.
    pub(super) fn next_over(&mut self, now: Tick, timeouts: &Timeouts, budget: &mut u32) -> Option<Id> {
        if now.saturating_sub(self.at) > SLOTS {
            // All that there are lie within a turn of the wheel.
            self.at = now - SLOTS;
        }
        while self.at < now {
            let slot = (self.at + 1) % SLOTS;
            while *budget > 0 {
                let id = self.heads[slot as usize];
                let Some(mapping) = self.get(id) else {
                    break;
                };
                *budget -= 1;
                let end = mapping.end(timeouts);
                if end <= now {
                    return Some(id);
                }
                self.unlink(id);
                self.link_after(id, end, now);
            }
            if *budget == 0 {
                return None;
            }
            self.at += 1;
        }
        None
    }

    fn link(&mut self, id: Id, end: Tick) {
        self.link_after(id, end, self.at);
    }

    /// Into the slot of its end, or the nearest one after `now` that is not behind a turn of the wheel.
    fn link_after(&mut self, id: Id, end: Tick, now: Tick) {
        let last = self.at + SLOTS - 1;
        let slot = end.clamp((now + 1).min(last), last) % SLOTS;
        let head = std::mem::replace(&mut self.heads[slot as usize], id);
        if let Some(next) = self.mappings.get_mut(head as usize) {
            next.previous = id;
        }
        if let Some(mapping) = self.mappings.get_mut(id as usize) {
            mapping.previous = FIRST_OF | slot;
            mapping.next = head;
        }
    }

    fn unlink(&mut self, id: Id) {
        let Some(&Mapping { previous, next, .. }) = self.get(id) else {
            return;
        };
        if previous & FIRST_OF != 0 {
            self.heads[(previous & !FIRST_OF) as usize] = next;
        } else if let Some(before) = self.mappings.get_mut(previous as usize) {
            before.next = next;
        }
        if let Some(after) = self.mappings.get_mut(next as usize) {
            after.previous = previous;
        }
    }
}

/// What a mapping begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewMapping {
    pub(super) internal: SocketAddrV4,
    pub(super) external: SocketAddrV4,
    pub(super) remote: SocketAddrV4,
    pub(super) class: Class,
    pub(super) state: State,
    pub(super) touched: Tick,
}

const _: () = assert!(size_of::<Mapping>() == 32);
