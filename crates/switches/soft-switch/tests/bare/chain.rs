//! A worker between a network and functions, all over memif and on one thread, so that none waits for another's CPU.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use memif::{Client, ClientConfig, Link, Listener, ServerConfig};
use model::Nanos;
use packet::build::Frame;
use soft_switch::{HeapMemory, MemifPort, Port};

use super::{Bare, counting};

const PATIENCE: Duration = Duration::from_secs(5);
/// Packets that the network sends before each turn.
pub(crate) const TURN_PACKETS: usize = 256;

pub(crate) struct Chain {
    pub(crate) bare: Bare<HeapMemory>,
    network: Link,
    functions: Vec<Link>,
    frames: Vec<Vec<u8>>,
    next: usize,
    turns: u64,
    buffer: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Chain {
    /// A chain for packets of so many flows, with so many functions, which counts what comes back for each flow or
    /// does not.
    pub(crate) fn new(flows: u32, functions: usize, return_counters: bool) -> Chain {
        let folder = tempfile::tempdir().unwrap();
        let memory = HeapMemory::shares(1, 8192, 2048).remove(0);
        let (mut ports, mut ends) = (Vec::new(), Vec::new());
        for n in 0..functions {
            let (theirs, ours) = link(&folder.path().join(format!("function{n}.sock")));
            ports.push(port(ours));
            ends.push(theirs);
        }
        let (ours, network) = link(&folder.path().join("uplink.sock"));
        let mut bare = counting(flows as usize + 10_000, memory, ports, return_counters);
        bare.attach_uplink(port(ours));
        Chain {
            bare,
            network,
            functions: ends,
            frames: (0..flows).map(frame).collect(),
            next: 0,
            turns: 0,
            buffer: vec![0; 2048],
            _folder: folder,
        }
    }

    /// The network sends its packets, as many as there is room for: of new flows a turn takes fewer.
    pub(crate) fn send(&mut self) {
        let tx = &mut self.network.queues[0].tx;
        for _ in 0..TURN_PACKETS.min(tx.free() as usize) {
            tx.push(&self.frames[self.next]).unwrap();
            self.next = (self.next + 1) % self.frames.len();
        }
        tx.flush();
    }

    /// The worker's turn.
    pub(crate) fn turn(&mut self) {
        self.turns += 1;
        self.bare.worker.turn(Nanos(1_000_000_000 + self.turns * 5_000));
    }

    /// The functions send back what they have, and the network takes what has come back: so many packets.
    pub(crate) fn take(&mut self) -> u64 {
        for function in &mut self.functions {
            let queues = &mut function.queues[0];
            queues.rx.forward_to(&mut queues.tx, usize::MAX);
            queues.tx.flush();
        }
        let rx = &mut self.network.queues[0].rx;
        let mut back = 0;
        while rx.pop(&mut self.buffer).is_some() {
            back += 1;
        }
        rx.release();
        back
    }
}

/// Both ends of a link: the listener's, and the one that connects to it.
fn link(socket: &Path) -> (Link, Link) {
    let mut listener = Listener::bind(socket, ServerConfig::new("chain")).unwrap();
    let client = ClientConfig::new(socket, 0);
    let connected = std::thread::spawn(move || Client::connect(&client, PATIENCE).unwrap());
    let accepted = listener.accept(PATIENCE).unwrap().unwrap();
    (accepted, connected.join().unwrap())
}

fn port(mut link: Link) -> Port<HeapMemory> {
    Port::Memif(MemifPort::new(link.queues.remove(0))).for_frames(1522)
}

/// The frame of a flow, of 64 bytes.
fn frame(flow: u32) -> Vec<u8> {
    let [_, a, b, c] = (flow.wrapping_mul(0x9e_37b1) & 0xff_ffff).to_be_bytes();
    let src = SocketAddr::from(([10, a, b, c], 1024 + (flow % 50_000) as u16));
    let dst = SocketAddr::from(([192, 168, 1, flow as u8 & 15], 80));
    Frame::udp(src, dst, &[0; 22]).unwrap().to_vec().unwrap()
}
