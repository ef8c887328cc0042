//! Numbered packets, and what became of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use packet::build::Frame;

/// What one flow sends, and where its packets arrived.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) packets: u32,
    arrived: BTreeSet<u32>,
    /// The newest that arrived, by direction.
    newest: [Option<u32>; 2],
    pub(crate) instance: Option<u32>,
}

/// What went wrong, in packets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) mis_steered: u64,
}

/// All flows.
#[derive(Default)]
pub(crate) struct Tracked {
    pub(crate) flows: BTreeMap<u32, Sent>,
    missing: u64,
    outcome: Outcome,
}

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 1);

impl Tracked {
    /// The next packet of a flow.
    pub(crate) fn next(&mut self, flow: u32, is_answering: bool) -> Vec<u8> {
        let sent = self.flows.entry(flow).or_default();
        let payload = [flow.to_be_bytes(), sent.packets.to_be_bytes()].concat();
        sent.packets += 1;
        self.missing += 1;
        let address = Ipv4Addr::from(0x0a00_0001 + flow / 7);
        let client = SocketAddr::from((address, 1000 + (flow * 31 % 5000) as u16));
        let server = SocketAddr::from((SERVER, 80));
        let (from, to) = if is_answering {
            (server, client)
        } else {
            (client, server)
        };
        // Long enough that nothing is padded: the numbers stand at the end.
        let payload = [vec![0; 32], payload].concat();
        Frame::udp(from, to, &payload).unwrap().to_vec().unwrap()
    }

    /// A packet arrived at the instance of that port.
    pub(crate) fn arrived(&mut self, port: u32, frame: &[u8]) {
        let payload = frame.last_chunk::<8>().unwrap();
        let flow = u32::from_be_bytes(payload[..4].try_into().unwrap());
        let number = u32::from_be_bytes(payload[4..].try_into().unwrap());
        let way = usize::from(frame[26..30] == SERVER.octets());
        let sent = self.flows.get_mut(&flow).unwrap();
        match sent.arrived.insert(number) {
            true => self.missing -= 1,
            false => self.outcome.duplicated += 1,
        }
        let newest = &mut sent.newest[way];
        if newest.is_some_and(|newest| newest > number) {
            self.outcome.reordered += 1;
        }
        *newest = (*newest).max(Some(number));
        if *sent.instance.get_or_insert(port) != port {
            self.outcome.mis_steered += 1;
        }
    }

    /// Packets sent that have not arrived.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// What went wrong since the last time; what has not arrived by now is lost.
    pub(crate) fn outcome(&mut self) -> Outcome {
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.lost = self.missing();
        outcome
    }
}
