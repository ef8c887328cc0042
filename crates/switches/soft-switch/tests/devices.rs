//! Frames of a device, of any length and in any number of pieces: those that an uplink carries reach an instance
//! whole, the others are dropped and counted, and what a device is told of the sizes of those that it is given is
//! true.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use model::{DropReason, Nanos, UplinkId};
use packet::TcpFlags;
use proptest::prelude::*;
use soft_switch::{Device, Frame, FrameMemory, Port, Sizes, Unsendable};

mod bare;

const INSTANCES: usize = 3;
/// The longest frame that the uplink carries.
const FRAME_LIMIT: usize = 1522;
/// The longest one that can be made one piece.
const ROOM: usize = 2048;
/// The shortest one that a device takes.
const SHORTEST: usize = 64;

/// A frame of which [`Frame::bytes`] are the first piece.
#[derive(Clone, Debug)]
struct Pieces {
    bytes: Vec<u8>,
    first: usize,
    pieces: u16,
}

impl Frame for Pieces {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.first]
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.first]
    }
    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn set_len(&mut self, len: usize) {
        self.first = len.min(self.bytes.len());
    }
    fn len(&self) -> usize {
        self.bytes.len()
    }
    fn segments(&self) -> u16 {
        self.pieces
    }
    fn linearize(&mut self) {
        if self.bytes.len() <= ROOM {
            (self.first, self.pieces) = (self.bytes.len(), 1);
        }
    }
}

struct Memory;

impl FrameMemory for Memory {
    type Frame = Pieces;
    type Device = End;
    type Registration = ();
    fn register_thread() {}
    fn take(&mut self) -> Option<Pieces> {
        None
    }
    fn give(&mut self, _frame: Pieces) {}
    fn frame_limit(&self) -> usize {
        ROOM
    }
}

/// A device that gives what it has, and keeps what it is given.
#[derive(Clone, Default)]
struct End {
    gives: Arc<Mutex<VecDeque<Pieces>>>,
    took: Arc<Mutex<Vec<Pieces>>>,
    /// Of how many frames it was told their sizes.
    told: Arc<Mutex<usize>>,
}

impl Device<Pieces> for End {
    fn receive(&mut self, into: &mut Vec<Pieces>, limit: usize) {
        let mut gives = self.gives.lock().unwrap();
        let count = limit.min(gives.len());
        into.extend(gives.drain(..count));
    }

    fn send(&mut self, frames: &mut Vec<Pieces>, longest: usize, known: Option<Sizes>) -> Unsendable {
        for frame in frames.iter() {
            assert!(frame.len() <= longest);
            if let Some(Sizes { shortest, longest }) = known {
                assert!((shortest as usize..=longest as usize).contains(&frame.len()));
                assert_eq!(frame.segments(), 1);
                *self.told.lock().unwrap() += 1;
            }
        }
        self.took.lock().unwrap().append(frames);
        Unsendable::default()
    }
}

fn frame(kind: u8, flow: u16, payload: usize, pieces: u16) -> Pieces {
    let v4 = |host: u8| format!("10.0.0.{host}:{}", 1000 + flow).parse().unwrap();
    let v6 = |host: u8| format!("[2001:db8::{host}]:{}", 1000 + flow).parse().unwrap();
    let payload = vec![7; payload];
    let built = match kind {
        0 => packet::build::Frame::udp(v4(1), v4(2), &payload),
        1 => packet::build::Frame::tcp(v4(1), v4(3), TcpFlags(TcpFlags::SYN), &payload),
        _ => packet::build::Frame::udp(v6(1), v6(2), &payload),
    };
    let mut bytes = built.unwrap().to_vec().unwrap();
    bytes.resize(bytes.len().max(SHORTEST), 0);
    let first = match pieces {
        1 => bytes.len(),
        _ => bytes.len() / usize::from(pieces),
    };
    Pieces { bytes, first, pieces }
}

/// Mostly ordinary frames, some longer than the uplink carries, some longer than can be made one piece.
fn any_frame() -> impl Strategy<Value = Pieces> {
    let payload = prop_oneof![8 => 0_usize..1470, 1 => 1470_usize..1500, 1 => 1500_usize..9000];
    let pieces = prop_oneof![8 => Just(1_u16), 1 => 2_u16..5];
    (0_u8..3, 0_u16..20, payload, pieces)
        .prop_map(|(kind, flow, payload, pieces)| frame(kind, flow, payload, pieces))
}

fn reach_instances(bursts: Vec<Vec<Pieces>>) {
    let sinks: Vec<End> = (0..INSTANCES).map(|_| End::default()).collect();
    let port = |end: &End| Port::device(end.clone(), Arc::new(AtomicBool::new(true)));
    let mut bare = bare::bare(1000, Memory, sinks.iter().map(port).collect());
    let uplink = End::default();
    bare.attach_uplink(port(&uplink).for_frames(FRAME_LIMIT));
    let all: Vec<Pieces> = bursts.iter().flatten().cloned().collect();
    for (turn, burst) in bursts.into_iter().enumerate() {
        uplink.gives.lock().unwrap().extend(burst);
        bare.worker.turn(Nanos::from_millis(1000 + turn as u64));
    }
    while !uplink.gives.lock().unwrap().is_empty() {
        bare.worker.turn(Nanos::from_secs(20));
    }
    let mut expected: Vec<Vec<u8>> = all
        .iter()
        .filter(|frame| frame.len() <= FRAME_LIMIT)
        .map(|frame| frame.bytes.clone())
        .collect();
    let mut arrived = Vec::new();
    for sink in &sinks {
        let took = sink.took.lock().unwrap();
        assert!(
            took.iter()
                .all(|frame| frame.pieces == 1 && frame.first == frame.bytes.len())
        );
        assert_eq!(*sink.told.lock().unwrap(), took.len());
        arrived.extend(took.iter().map(|frame| frame.bytes.clone()));
    }
    let counters = &bare.counters;
    let bytes: usize = expected.iter().map(Vec::len).sum();
    assert_eq!(
        counters.uplinks[UplinkId(0)].received_packets.get(),
        all.len() as u64
    );
    assert_eq!(counters.uplinks[UplinkId(0)].received_bytes.get(), bytes as u64);
    let too_large = counters.drops[DropReason::TooLarge.index()].get();
    assert_eq!(too_large, (all.len() - expected.len()) as u64);
    arrived.sort();
    expected.sort();
    assert_eq!(arrived, expected);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_an_uplink_carries_arrives_whole_and_sizes_are_true(
        bursts in prop::collection::vec(prop::collection::vec(any_frame(), 0..150), 1..6),
    ) {
        reach_instances(bursts);
    }
}

#[test]
fn a_burst_of_nothing_but_unusable_frames_is_dropped_and_counted() {
    reach_instances(vec![
        vec![frame(0, 1, 5000, 3); 64],
        vec![frame(0, 1, 3000, 1); 10],
        vec![frame(0, 1, 10, 1)],
    ]);
}
