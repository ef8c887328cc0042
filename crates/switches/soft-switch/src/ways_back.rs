//! The ways back to the edges whose packets a machine takes out of tunnels: where each edge is, and which one sent the last
//! packet of a flow.
//!
//! Where an edge is, it says itself: it asks for this machine by ARP each second. Until the first such question its packets say
//! it. Only listed addresses count. The worker that has the uplink writes, all workers read, in single stores.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use model::Nanos;

use crate::neighbours::{address, number};

/// Flows of which it is remembered which of several edges they came by: 1 MiB. A flow beyond that takes the place of another
/// one, whose replies then go to the edge that was heard last.
const ORIGINS: usize = 1 << 17;
/// Places that a flow may have, all in one cache line.
const WAYS: usize = 8;
/// Bits of a place that say which edge; the others are of the flow's hash.
const EDGE_BITS: u32 = 8;
/// An edge that has not asked for so long is gone, where another one asks.
const GONE_AFTER: Nanos = Nanos::from_secs(4);

/// The edges of a machine, and the flows that came by them.
#[derive(Debug, Default)]
pub(crate) struct WaysBack {
    edges: Box<[Edge]>,
    /// The place of the edge that sent the last packet.
    latest: AtomicU32,
    /// Sets of [`WAYS`] places; none where there is one edge. 0: free.
    origins: Box<[AtomicU64]>,
}

#[derive(Debug)]
struct Edge {
    address: Ipv4Addr,
    /// Its MAC address; 0: it is not known.
    mac: AtomicU64,
    /// When it asked last.
    asked_at: AtomicU64,
}

impl Edge {
    fn is_known(&self) -> bool {
        self.mac.load(Ordering::Relaxed) != 0
    }

    fn is_here(&self, now: Nanos) -> bool {
        let asked_at = Nanos(self.asked_at.load(Ordering::Relaxed));
        self.is_known() && now.since(asked_at) < GONE_AFTER
    }

    fn is_at(&self, mac: [u8; 6], now: Nanos) {
        self.asked_at.store(now.0, Ordering::Relaxed);
        self.mac.store(number(mac), Ordering::Relaxed);
    }
}

impl WaysBack {
    /// To edges with these addresses.
    pub(crate) fn new(edges: &[Ipv4Addr]) -> WaysBack {
        let edge = |address: &Ipv4Addr| Edge {
            address: *address,
            mac: AtomicU64::new(0),
            asked_at: AtomicU64::new(0),
        };
        let places = if edges.len() > 1 { ORIGINS } else { 0 };
        WaysBack {
            edges: edges.iter().map(edge).collect(),
            latest: AtomicU32::new(0),
            origins: (0..places).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Whether packets of edges say something new: which one of several they came by, or where the only one is.
    pub(crate) fn are_to_note(&self) -> bool {
        match &*self.edges {
            [] => false,
            [only] => !only.is_known(),
            _ => true,
        }
    }

    /// Somebody at that address and MAC address asks for this machine.
    pub(crate) fn hear(&self, from: Ipv4Addr, mac: [u8; 6], now: Nanos) {
        if let Some(edge) = self.edges.iter().find(|edge| edge.address == from) {
            edge.is_at(mac, now);
        }
    }

    /// A packet of the flow with that hash came by the edge at that address, from that MAC address.
    pub(crate) fn note(&self, from: Ipv4Addr, hash: impl FnOnce() -> Option<u64>, mac: [u8; 6], now: Nanos) {
        let Some(place) = self.edges.iter().position(|edge| edge.address == from) else {
            return;
        };
        if let Some(edge) = self.edges.get(place)
            && !edge.is_known()
            && mac[0] & 1 == 0
        {
            edge.is_at(mac, now);
        }
        self.latest.store(place as u32, Ordering::Relaxed);
        if self.origins.is_empty() {
            return;
        }
        let Some((set, tag)) = hash().and_then(|hash| self.set(hash)) else {
            return;
        };
        let entry = tag << EDGE_BITS | (place as u64 + 1);
        let tag_at = |word: &&AtomicU64| word.load(Ordering::Relaxed) >> EDGE_BITS;
        let is_free = |word: &&AtomicU64| word.load(Ordering::Relaxed) == 0;
        let known = set.iter().find(|word| tag_at(word) == tag && !is_free(word));
        let word = known.or_else(|| set.iter().find(is_free));
        if let Some(word) = word.or_else(|| set.get(tag as usize % WAYS)) {
            word.store(entry, Ordering::Relaxed);
        }
    }

    /// Where a reply of the flow with that hash returns: to the edge that sent the flow's last packet. That is where the
    /// routers before the edges send the flow now; one that pinned it before may be gone.
    pub(crate) fn find(&self, hash: u64, now: Nanos) -> Option<(Ipv4Addr, [u8; 6])> {
        let own = self.origin(hash).and_then(|place| self.edges.get(place));
        let latest = || self.edges.get(self.latest.load(Ordering::Relaxed) as usize);
        let is_here = |edge: &&Edge| edge.is_here(now);
        let edge = own
            .filter(is_here)
            .or_else(|| latest().filter(is_here))
            .or_else(|| self.edges.iter().find(is_here))
            // None asks: then it is this machine that does not hear.
            .or_else(|| own.or_else(latest).filter(|edge| edge.is_known()))
            .or_else(|| self.edges.iter().find(|edge| edge.is_known()))?;
        Some((edge.address, address(edge.mac.load(Ordering::Relaxed))))
    }

    /// The edge that sent the last packet of the flow with that hash, if that is remembered.
    fn origin(&self, hash: u64) -> Option<usize> {
        let (set, tag) = self.set(hash)?;
        let entries = set.iter().map(|word| word.load(Ordering::Relaxed));
        let entry = entries
            .filter(|entry| *entry != 0)
            .find(|entry| entry >> EDGE_BITS == tag)?;
        (entry as usize & ((1 << EDGE_BITS) - 1)).checked_sub(1)
    }

    /// The places of a flow, and its tag there.
    fn set(&self, hash: u64) -> Option<(&[AtomicU64], u64)> {
        let set = hash as usize % (ORIGINS / WAYS);
        let places = self.origins.get(set * WAYS..)?.get(..WAYS)?;
        Some((places, hash >> EDGE_BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 3)];
    const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 3]];

    fn at(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn a_reply_goes_to_the_edge_that_sent_the_last_packet_of_its_flow() {
        let ways = WaysBack::new(&EDGES);
        assert_eq!(ways.find(7, at(0)), None);
        let ends = [0, 1].map(|of| Some((EDGES[of], MACS[of])));
        for (flow, edge) in [(7, 0), (8, 1), (7, 1), (9, 0), (7, 0), (8, 1)] {
            ways.note(EDGES[edge], || Some(model::mix(flow)), MACS[edge], at(1));
            assert_eq!(ways.find(model::mix(flow), at(1)), ends[edge]);
        }
        assert_eq!(ways.find(model::mix(9), at(1)), ends[0]);
        // Of a flow that is not remembered, to the edge that was heard last.
        assert_eq!(ways.find(model::mix(99), at(1)), ends[1]);
        // An edge that asks no more is gone, while another one asks.
        ways.hear(EDGES[1], MACS[1], at(5_000));
        assert_eq!(ways.find(model::mix(9), at(5_000)), ends[1]);
        assert_eq!(ways.find(model::mix(9), at(60_000)), ends[0]);
    }

    #[test]
    fn strangers_and_packets_do_not_say_where_a_known_edge_is() {
        let ways = WaysBack::new(&EDGES[..1]);
        assert!(ways.are_to_note());
        let stranger = Ipv4Addr::new(10, 0, 0, 9);
        ways.note(stranger, || Some(1), MACS[1], at(1));
        ways.hear(stranger, MACS[1], at(1));
        assert_eq!(ways.find(1, at(1)), None);
        ways.note(EDGES[0], || panic!("one edge has all flows"), [0xff; 6], at(1));
    }

    #[test]
    fn what_an_edge_asks_says_where_it_is() {
        let ways = WaysBack::new(&EDGES[..1]);
        ways.note(EDGES[0], || None, MACS[1], at(1));
        assert_eq!(ways.find(1, at(1)), Some((EDGES[0], MACS[1])));
        assert!(!ways.are_to_note());
        ways.hear(EDGES[0], MACS[0], at(2));
        ways.note(EDGES[0], || None, MACS[1], at(3));
        assert_eq!(ways.find(1, at(3)), Some((EDGES[0], MACS[0])));
    }

    #[test]
    fn flows_beyond_the_places_take_those_of_others() {
        let ways = WaysBack::new(&EDGES);
        for flow in 0..2 * ORIGINS as u64 {
            ways.note(
                EDGES[flow as usize % 2],
                || Some(model::mix(flow)),
                MACS[flow as usize % 2],
                at(1),
            );
            assert_eq!(ways.origin(model::mix(flow)), Some(flow as usize % 2));
        }
    }
}
