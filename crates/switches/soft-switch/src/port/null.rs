//! A sink.

use std::sync::atomic::AtomicBool;

use switch::{PortSpec, SwitchError};

use crate::frame::{Frame as _, FrameMemory, Sizes};
use crate::instance::PORT_LIMIT;
use crate::keep::KeptAs;
use crate::port::{Capabilities, Connection, Pending, Port, Queue, Received};

/// A sink: takes everything, gives nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullPort {
    pending: Pending,
}

impl<M: FrameMemory> Queue<M> for NullPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            receives: false,
            checksum: true,
            segmentation: true,
            max_frame: usize::MAX,
        }
    }

    fn limit_frames(&mut self, _bytes: usize) {}

    fn receive(&mut self, _memory: &mut M, _into: &mut Vec<M::Frame>, _limit: usize) -> Received {
        Received::default()
    }

    fn send(&mut self, frame: M::Frame, memory: &mut M) {
        self.pending.packets += 1;
        self.pending.bytes += frame.len() as u64;
        memory.give(frame);
    }

    #[inline(always)]
    fn send_burst(&mut self, frames: &mut Vec<M::Frame>, known: Option<(u64, Sizes)>, memory: &mut M) {
        self.pending.packets += frames.len() as u64;
        self.pending.bytes += match known {
            Some((bytes, _)) => bytes,
            None => frames.iter().map(|frame| frame.len() as u64).sum(),
        };
        memory.give_all(frames);
    }

    #[inline(always)]
    fn send_all(&mut self, frames: &mut Vec<M::Frame>, bytes: u64, _sizes: Sizes, memory: &mut M) -> Pending {
        let mut sent = Pending {
            packets: frames.len() as u64,
            bytes,
            ..Pending::default()
        };
        memory.give_all(frames);
        if self.pending.packets > 0 {
            sent += std::mem::take(&mut self.pending);
        }
        sent
    }

    #[inline(always)]
    fn flush(&mut self, _memory: &mut M) -> Pending {
        std::mem::take(&mut self.pending)
    }
}

/// The ports of an instance that is a sink: as many as there can be, with a queue for each worker.
pub(crate) fn connect<M: FrameMemory>(
    _port: &PortSpec,
    workers: usize,
    _abandoned: &AtomicBool,
    _kept: &KeptAs,
) -> Result<Vec<Connection<M>>, SwitchError> {
    let sink = || Connection {
        queues: (0..workers).map(|_| Port::null()).collect(),
        control: None,
        peer: String::new(),
        interface: None,
        mac: None,
    };
    Ok((0..PORT_LIMIT).map(|_| sink()).collect())
}
