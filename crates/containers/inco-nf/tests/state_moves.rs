//! Moves of a flow with its state between two processes, driven by memif clients, as the switch does.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use memif::{Client, ClientConfig, Link};
use model::Tuple;
use packet::build::Frame;
use state_moves::{FRAME_BYTES_LIMIT, Message, NotMoved};

const PATIENCE: Duration = Duration::from_secs(10);
const LIMITER: &str = "[[rule]]\nkey = \"flow\"\nrate = \"1pps\"\nburst_packets = 40\n";

struct Function {
    child: Child,
    _directory: tempfile::TempDir,
    links: Vec<Link>,
}

impl Function {
    /// The functions behind `forward`, with so many ports.
    fn start(ports: u32, functions: &[&str]) -> Function {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("port.sock");
        let two: &[&str] = if ports == 2 {
            &["--ports", "2", "--cross"]
        } else {
            &[]
        };
        let child = Command::new(env!("CARGO_BIN_EXE_inco-nf"))
            .arg("forward")
            .args(two)
            .args(functions)
            .env("INCO_SOCKET", &socket)
            .spawn()
            .unwrap();
        let connect = |port| Client::connect_when_ready(&ClientConfig::new(&socket, port), PATIENCE).unwrap();
        let links = (0..ports).map(connect).collect();
        Function {
            child,
            _directory: directory,
            links,
        }
    }

    /// Puts frames into the ring of a port, visible all at once.
    fn give(&mut self, port: usize, frames: &[Vec<u8>]) {
        let tx = &mut self.links[port].queues[0].tx;
        for frame in frames {
            until("room in the ring", || tx.push(frame).is_ok());
        }
        tx.flush();
    }

    /// The next frame that comes back by a port.
    fn next(&mut self, port: usize) -> Vec<u8> {
        let rx = &mut self.links[port].queues[0].rx;
        let mut buffer = vec![0; 65_536];
        let mut length = None;
        until("a frame", || {
            length = rx.pop(&mut buffer);
            length.is_some()
        });
        rx.release();
        buffer.truncate(length.unwrap().unwrap());
        buffer
    }

    fn ask(&mut self, message: Message<'_>) -> Vec<u8> {
        self.give(0, &[frame_of(message)]);
        self.next(0)
    }

    /// How many of so many packets pass.
    fn pass(&mut self, packets: usize) -> usize {
        let mut frames = vec![packet(); packets];
        frames.push(frame_of(Message::Pass { port: 0 }));
        self.give(0, &frames);
        let mut passed = 0;
        while self.next(0) == packet() {
            passed += 1;
        }
        passed
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::yield_now();
    }
}

fn frame_of(message: Message<'_>) -> Vec<u8> {
    let mut room = [0; FRAME_BYTES_LIMIT];
    let length = message.write(7, &mut room).unwrap();
    room[..length].to_vec()
}

fn said(frame: &[u8]) -> Message<'_> {
    let (number, message) = Message::read(frame).unwrap();
    assert_eq!(number, 7);
    message
}

fn packet() -> Vec<u8> {
    let ends = [1, 2].map(|host| std::net::SocketAddr::from(([10, 0, 0, host], 1000)));
    Frame::udp(ends[0], ends[1], &[0; 30]).unwrap().to_vec().unwrap()
}

fn flow() -> Tuple {
    Tuple {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        src_port: 1000,
        dst_port: 1000,
        protocol: 17,
        vlan: 0,
    }
}

#[test]
fn a_flow_moves_from_one_process_to_another() {
    let arguments = ["--", "limiter", "--config-text", LIMITER];
    let [mut source, mut destination] = [0, 1].map(|_| Function::start(1, &arguments));
    // The answer comes behind all that was sent before, also where a packet is dropped.
    assert_eq!(source.pass(30), 30);
    let frame = source.ask(Message::Export(flow()));
    let Message::Exported(state) = said(&frame) else {
        panic!("{:?}", said(&frame))
    };
    let answer = destination.ask(Message::Import(flow(), state));
    assert_eq!(said(&answer), Message::Imported);
    // A second may have passed, or a few.
    assert!(
        (10..20).contains(&destination.pass(30)),
        "a flow has its burst once"
    );
    // A copy stays until it is dropped.
    assert!((10..20).contains(&source.pass(30)));
    source.give(0, &[frame_of(Message::Forget(flow()))]);
    // Messages have their turn behind the packets of their burst.
    assert_eq!(source.pass(0), 0);
    assert_eq!(source.pass(45), 40);
    let answer = destination.ask(Message::Import(flow(), b"none"));
    assert_eq!(said(&answer), Message::Refused(NotMoved::Malformed));
}

#[test]
fn with_two_ports_each_says_what_has_passed() {
    let mut function = Function::start(2, &[]);
    let mut other = packet();
    *other.last_mut().unwrap() = 1;
    function.give(0, &[packet(), other.clone(), frame_of(Message::Pass { port: 0 })]);
    assert_eq!(said(&function.next(0)), Message::Passed { of: 0, by: 0 });
    assert_eq!((function.next(1), function.next(1)), (packet(), other));
    assert_eq!(said(&function.next(1)), Message::Passed { of: 0, by: 1 });
    // It keeps nothing of flows.
    let answer = function.ask(Message::Export(flow()));
    assert_eq!(said(&answer), Message::Exported(&[1, 0, 0]));
}
