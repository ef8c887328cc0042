//! What the switch changes in packets on their way to an instance and back, through real memif rings.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::net::SocketAddr;

use memif::{Client, ClientConfig, Link, Listener, ServerConfig};
use model::Nanos;
use packet::build::Frame;
use soft_switch::{HeapMemory, MemifPort, Port};
use switch::{Edit, Edits};

mod bare;

const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVICE: [u8; 6] = [2, 0, 0, 0, 0, 2];
const INSTANCE: [u8; 6] = [2, 0, 0, 0, 0, 3];
const SWITCH: [u8; 6] = [2, 0, 0, 0, 0, 4];
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

/// Both ends of a link, each with one queue pair.
fn link() -> (Link, Link) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("link.sock");
    let mut listener = Listener::bind(&socket, ServerConfig::new("edits")).unwrap();
    let client = ClientConfig::new(&socket, 0);
    let connecting = std::thread::spawn(move || Client::connect(&client, PATIENCE).unwrap());
    let accepted = listener.accept(PATIENCE).unwrap().unwrap();
    (accepted, connecting.join().unwrap())
}

/// A network, a function, and a worker between them that edits so.
struct Between {
    bare: bare::Bare<HeapMemory>,
    network: Link,
    function: Link,
    now: Nanos,
}

impl Between {
    fn new(edits: Edits, return_counters: bool) -> Between {
        let ((function, to_function), (mut to_network, network)) = (link(), link());
        let port = |link: &mut Link| Port::Memif(MemifPort::new(link.queues.remove(0))).for_frames(1522);
        let mut to_function = to_function;
        let memory = HeapMemory::shares(1, 4096, 2048).remove(0);
        let mut bare = bare::editing(1000, memory, vec![port(&mut to_function)], return_counters, edits);
        bare.attach_uplink(port(&mut to_network));
        Between {
            bare,
            network,
            function,
            now: Nanos::from_secs(1),
        }
    }

    fn turn(&mut self) {
        self.now = self.now + Nanos::from_micros(100);
        self.bare.worker.turn(self.now);
    }
}

fn send(link: &mut Link, frame: &[u8]) {
    link.queues[0].tx.push(frame).unwrap();
    link.queues[0].tx.flush();
}

fn take(link: &mut Link) -> Vec<Vec<u8>> {
    let (rx, mut buffer, mut taken) = (&mut link.queues[0].rx, vec![0; 2048], Vec::new());
    while let Some(len) = rx.pop(&mut buffer) {
        taken.push(buffer[..len.unwrap()].to_vec());
    }
    rx.release();
    taken
}

fn frame(destination: [u8; 6], source: [u8; 6], is_v6: bool) -> Vec<u8> {
    let (src, dst): (SocketAddr, SocketAddr) = match is_v6 {
        false => ("10.0.0.1:1000".parse().unwrap(), "192.0.2.1:80".parse().unwrap()),
        true => (
            "[2001:db8::1]:1000".parse().unwrap(),
            "[2001:db8::2]:80".parse().unwrap(),
        ),
    };
    let mut frame = Frame::udp(src, dst, &[7; 30]).unwrap().to_vec().unwrap();
    frame[..6].copy_from_slice(&destination);
    frame[6..12].copy_from_slice(&source);
    frame
}

#[test]
fn mac_addresses_are_rewritten_both_ways_and_nothing_else() {
    let to_instance = Edit::Mac {
        destination: Some(INSTANCE),
        source: Some(SWITCH),
    };
    // The instance's answers leave under the service's address.
    let to_uplink = Edit::Mac {
        destination: None,
        source: Some(SERVICE),
    };
    for (return_counters, is_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut between = Between::new(
            Edits {
                to_instance,
                to_uplink,
            },
            return_counters,
        );
        // The first packet opens the flow, the others take the fast path.
        for _ in 0..3 {
            send(&mut between.network, &frame(SERVICE, CLIENT, is_v6));
            between.turn();
            assert_eq!(take(&mut between.function), [frame(INSTANCE, SWITCH, is_v6)]);
            send(&mut between.function, &frame(CLIENT, INSTANCE, is_v6));
            between.turn();
            assert_eq!(take(&mut between.network), [frame(CLIENT, SERVICE, is_v6)]);
        }
        let counters = &between.bare.counters.slots[model::Slot(0)];
        assert_eq!((counters.to_packets.get(), counters.back_packets.get()), (3, 3));
        assert_eq!(counters.return_unmatched.get(), 0);
    }
}

#[test]
fn without_an_edit_no_byte_changes() {
    for return_counters in [false, true] {
        let mut between = Between::new(Edits::default(), return_counters);
        send(&mut between.network, &frame(SERVICE, CLIENT, false));
        between.turn();
        assert_eq!(take(&mut between.function), [frame(SERVICE, CLIENT, false)]);
        send(&mut between.function, &frame(CLIENT, INSTANCE, false));
        between.turn();
        assert_eq!(take(&mut between.network), [frame(CLIENT, INSTANCE, false)]);
    }
}
