//! The peers of a run: the network on its uplink and the functions behind its instances, all played by the test.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use memif::{Client, ClientConfig, Link, Listener, RingConfig, ServerConfig};

use crate::bed::{PATIENCE, udp_packet};
use crate::run::{BUFFER_BYTES, INSTANCES, RING_SLOTS, function_socket, uplink_socket};

/// Where the payload of a UDP packet begins: its number, then the function that it was at.
const PAYLOAD_AT: usize = 42;

/// A packet of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) flow: u32,
    pub(crate) number: u32,
}

impl Packet {
    /// A frame with so many bytes of payload.
    pub(crate) fn frame(self, bytes: usize) -> Vec<u8> {
        let mut payload = vec![0xa5; bytes.max(4)];
        payload[..4].copy_from_slice(&self.number.to_be_bytes());
        udp_packet(self.flow, &payload)
    }

    /// What a frame is, intact.
    pub(crate) fn of(frame: &[u8]) -> Packet {
        let [_, a, b, c] = frame[26..30].try_into().unwrap();
        let (number, rest) = frame[PAYLOAD_AT..].split_at(4);
        let packet = Packet {
            flow: u32::from_be_bytes([0, a, b, c]),
            number: u32::from_be_bytes(number.try_into().unwrap()),
        };
        assert!(rest.iter().all(|byte| *byte == 0xa5), "{packet:?} is damaged");
        packet
    }
}

/// Numbers of packets by flow, in the order in which they came.
pub(crate) type Numbers = BTreeMap<u32, Vec<u32>>;

/// Adds packets to those that came before.
pub(crate) fn add(numbers: &mut Numbers, frames: &[Vec<u8>]) {
    for frame in frames {
        let packet = Packet::of(frame);
        numbers.entry(packet.flow).or_default().push(packet.number);
    }
}

/// Where the functions of a run listen.
pub(crate) struct Listeners(Vec<Listener>);

impl Listeners {
    pub(crate) fn new(directory: &Path) -> Listeners {
        let bind = |number| Listener::bind(function_socket(directory, number), ServerConfig::new("function"));
        Listeners((0..INSTANCES).map(|number| bind(number).unwrap()).collect())
    }
}

/// The other ends of a run's rings.
pub(crate) struct Peers {
    pub(crate) network: Link,
    pub(crate) functions: Vec<Link>,
}

impl Peers {
    /// Connects to a run that has just begun.
    pub(crate) fn connect(directory: &Path, listeners: &mut Listeners) -> Peers {
        let functions = listeners.0.iter_mut();
        let functions = functions
            .map(|listener| listener.accept(PATIENCE).unwrap().unwrap())
            .collect();
        let config = ClientConfig {
            ring: RingConfig {
                log2_slots: RING_SLOTS.ilog2() as u8,
                buffer_bytes: BUFFER_BYTES,
                queues: 1,
            },
            ..ClientConfig::new(uplink_socket(directory), 0)
        };
        Peers {
            network: Client::connect_when_ready(&config, PATIENCE).unwrap(),
            functions,
        }
    }
}

/// Puts frames into a ring. The run may be about to give places back.
pub(crate) fn put<'a>(link: &mut Link, frames: impl IntoIterator<Item = &'a Vec<u8>>) {
    let tx = &mut link.queues[0].tx;
    let ends = Instant::now() + PATIENCE;
    for frame in frames {
        while let Err(error) = tx.push(frame) {
            assert!(Instant::now() < ends, "{error}");
            tx.flush();
        }
    }
    tx.flush();
}

/// Takes what has come.
pub(crate) fn take(link: &mut Link) -> Vec<Vec<u8>> {
    let rx = &mut link.queues[0].rx;
    let mut buffer = vec![0; 4096];
    let mut frames = Vec::new();
    while let Some(len) = rx.pop(&mut buffer) {
        frames.push(buffer[..len.unwrap()].to_vec());
    }
    rx.release();
    frames
}
