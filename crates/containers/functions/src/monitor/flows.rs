//! Flows in one direction with their counts, for export.

use std::net::IpAddr;

use model::Nanos;
use packet::TcpFlags;

use crate::keyed::Keyed;
use crate::keys::Keys;

/// The key of a flow in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Source port; the identifier of an ICMP echo; 0 where there is none, as in later fragments.
    pub source_port: u16,
    /// Destination port, likewise.
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Outermost VLAN id, 0 if untagged.
    pub vlan: u16,
}

impl FlowId {
    /// A hash that senders cannot foresee.
    #[inline(always)]
    pub(super) fn hash(&self, keyed: &Keyed) -> u64 {
        let ports = u64::from(self.source_port) << 48
            | u64::from(self.destination_port) << 32
            | u64::from(self.vlan) << 8
            | u64::from(self.protocol);
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => keyed.hash([
                u64::from(u32::from(source)) << 32 | u64::from(u32::from(destination)),
                ports,
            ]),
            (source, destination) => {
                let [source, destination] = [source, destination].map(|of| match of {
                    IpAddr::V4(of) => u128::from(u32::from(of)),
                    IpAddr::V6(of) => of.into(),
                });
                let halves = |of: u128| [(of >> 64) as u64, of as u64];
                let ([a, b], [c, d]) = (halves(source), halves(destination));
                keyed.hash([a, b, c, d, ports])
            }
        }
    }
}

/// Why a flow is exported: the values of IPFIX's flowEndReason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// No packet for the idle timeout.
    Idle = 1,
    /// It goes on, and began, or was exported, as long ago as the active timeout.
    Active = 2,
    /// Its TCP connection ended.
    Ended = 3,
}

/// A flow with what was counted since its last export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Which one.
    pub id: FlowId,
    /// Packets.
    pub packets: u64,
    /// Bytes of its IP packets.
    pub bytes: u64,
    /// The first packet, on the monotonic clock.
    pub first: Nanos,
    /// The last one.
    pub last: Nanos,
    /// All flags of TCP that were seen.
    pub tcp_flags: u8,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Free { next: u32 },
    Taken { flow: Flow, hash: u64 },
}

const NONE: u32 = u32::MAX;

/// At most `limit` flows. A hand goes round and finds those to export.
#[derive(Debug)]
pub(super) struct Flows {
    places: Box<[Place]>,
    by_hash: Keys,
    free: u32,
    hand: usize,
    idle: Nanos,
    active: Nanos,
}

impl Flows {
    pub(super) fn new(limit: usize, secret: u64) -> Flows {
        let places = (1..=limit as u32).map(|next| Place::Free {
            next: if next as usize == limit { NONE } else { next },
        });
        Flows {
            places: places.collect(),
            by_hash: Keys::new(limit, secret),
            free: 0,
            hand: 0,
            idle: Nanos::MAX,
            active: Nanos::MAX,
        }
    }

    pub(super) fn set_timeouts(&mut self, idle: Nanos, active: Nanos) {
        (self.idle, self.active) = (idle, active);
    }

    pub(super) fn len(&self) -> usize {
        self.by_hash.len()
    }

    pub(super) fn limit(&self) -> usize {
        self.places.len()
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u64) {
        self.by_hash.prefetch(hash);
    }

    /// Counts a packet. False if it begins a flow that there is no room for.
    #[inline]
    pub(super) fn count(&mut self, hash: u64, id: &FlowId, bytes: u64, flags: TcpFlags, now: Nanos) -> bool {
        if let Some(at) = self.by_hash.get(hash) {
            if let Some(Place::Taken { flow, .. }) = self.places.get_mut(at as usize) {
                if flow.packets == 0 {
                    flow.first = now;
                }
                flow.packets += 1;
                flow.bytes += bytes;
                flow.last = now;
                flow.tcp_flags |= flags.0;
            }
            return true;
        }
        let at = self.free;
        let Some(place) = self.places.get_mut(at as usize) else {
            return false;
        };
        if let Place::Free { next } = *place {
            self.free = next;
        }
        let flow = Flow {
            id: *id,
            packets: 1,
            bytes,
            first: now,
            last: now,
            tcp_flags: flags.0,
        };
        *place = Place::Taken { flow, hash };
        let _ = self.by_hash.insert(hash, at);
        true
    }

    /// The next flow to export, after at most `budget` looks, which are counted down. One that has ended is forgotten;
    /// one that goes on begins to count anew.
    pub(super) fn next_due(&mut self, now: Nanos, budget: &mut usize) -> Option<(Flow, EndReason)> {
        while *budget > 0 {
            *budget -= 1;
            let at = self.hand;
            self.hand = (self.hand + 1) % self.places.len().max(1);
            let Some(Place::Taken { flow, hash }) = self.places.get_mut(at) else {
                continue;
            };
            let is_over = flow.tcp_flags & (TcpFlags::FIN | TcpFlags::RST) != 0;
            let reason = if now.since(flow.last) >= self.idle {
                EndReason::Idle
            } else if is_over {
                EndReason::Ended
            } else if flow.packets > 0 && now.since(flow.first) >= self.active {
                EndReason::Active
            } else {
                continue;
            };
            let exported = *flow;
            if reason == EndReason::Active {
                (flow.packets, flow.bytes, flow.tcp_flags) = (0, 0, 0);
            } else {
                let hash = *hash;
                self.places[at] = Place::Free { next: self.free };
                self.free = at as u32;
                self.by_hash.remove(hash);
            }
            // One that was exported before, and had no packet since, has nothing to say.
            if exported.packets > 0 {
                return Some((exported, reason));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn id(of: u8) -> FlowId {
        FlowId {
            source: [10, 0, 0, of].into(),
            destination: [192, 0, 2, 1].into(),
            source_port: of.into(),
            destination_port: 53,
            protocol: 6,
            vlan: 0,
        }
    }

    proptest! {
        /// What is exported, and what is still there, is what was counted; and nothing is later than its timeouts.
        #[test]
        fn every_packet_is_exported_once(
            packets in prop::collection::vec((0..12_u8, 0..2_000_u64, any::<bool>()), 1..300), limit in 1..14_usize,
        ) {
            let keyed = Keyed::new(1);
            let mut flows = Flows::new(limit, 2);
            flows.set_timeouts(Nanos::from_millis(5_000), Nanos::from_millis(20_000));
            let mut counted: HashMap<FlowId, (u64, u64)> = HashMap::new();
            let mut exported: HashMap<FlowId, (u64, u64)> = HashMap::new();
            let mut now = Nanos::from_secs(1);
            let take = |flows: &mut Flows, now: Nanos, exported: &mut HashMap<FlowId, (u64, u64)>| {
                let mut budget = limit;
                while let Some((flow, reason)) = flows.next_due(now, &mut budget) {
                    let sum = exported.entry(flow.id).or_default();
                    *sum = (sum.0 + flow.packets, sum.1 + flow.bytes);
                    assert!(flow.first <= flow.last && flow.last <= now);
                    match reason {
                        EndReason::Idle => assert!(now.since(flow.last) >= Nanos::from_secs(5)),
                        EndReason::Active => assert!(now.since(flow.first) >= Nanos::from_secs(20)),
                        EndReason::Ended => assert!(flow.tcp_flags & TcpFlags::FIN != 0),
                    }
                }
            };
            for (of, gap, ends) in packets {
                now = now + Nanos::from_millis(gap);
                take(&mut flows, now, &mut exported);
                let flags = TcpFlags(if ends { TcpFlags::FIN } else { TcpFlags::ACK });
                let has_room = flows.len() < limit;
                let is_new = flows.by_hash.get(id(of).hash(&keyed)).is_none();
                let is_counted = flows.count(id(of).hash(&keyed), &id(of), 100, flags, now);
                prop_assert_eq!(is_counted, !is_new || has_room);
                if is_counted {
                    let sum = counted.entry(id(of)).or_default();
                    *sum = (sum.0 + 1, sum.1 + 100);
                }
            }
            take(&mut flows, now + Nanos::from_secs(5), &mut exported);
            prop_assert_eq!(flows.len(), 0);
            prop_assert_eq!(counted, exported);
        }
    }
}
