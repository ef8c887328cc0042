//! A device whose frames are in the worker's memory: a DPDK device, or what a test puts in its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::frame::{Device, Frame as _, FrameMemory, Sizes};
use crate::port::{Capabilities, Pending, Queue, Received};
use crate::worker::tap::PortTap;

/// Frames that a device port stages before it sends them: one burst.
const STAGED_FRAMES: usize = 64;

/// One queue of a device, and the frames that wait for its next burst.
pub struct DevicePort<M: FrameMemory> {
    device: M::Device,
    staged: Vec<M::Frame>,
    pending: Pending,
    frame_limit: usize,
    /// While false, the port receives nothing.
    is_open: Arc<AtomicBool>,
    /// What sees the frames that find no room.
    tap: Option<PortTap>,
}

impl<M: FrameMemory> DevicePort<M> {
    /// A port on one queue of a device. It receives nothing while `is_open` is false.
    pub fn new(device: M::Device, is_open: Arc<AtomicBool>) -> DevicePort<M> {
        DevicePort {
            device,
            staged: Vec::with_capacity(STAGED_FRAMES),
            pending: Pending::default(),
            frame_limit: usize::MAX,
            is_open,
            tap: None,
        }
    }

    fn send_staged(&mut self, memory: &mut M) {
        if self.staged.is_empty() {
            return;
        }
        let mut staged = std::mem::take(&mut self.staged);
        let bytes = staged.iter().map(|f| f.len() as u64).sum();
        self.send_now(&mut staged, bytes, None, memory);
        self.staged = staged;
    }

    fn send_now(&mut self, frames: &mut Vec<M::Frame>, bytes: u64, known: Option<Sizes>, memory: &mut M) {
        let offered = frames.len() as u64;
        let unsendable = self.device.send(frames, self.frame_limit, known);
        let left = frames.len() as u64;
        let left_bytes: u64 = frames.iter().map(|f| f.len() as u64).sum();
        self.pending.packets += offered - unsendable.packets - left;
        self.pending.bytes += bytes - unsendable.bytes - left_bytes;
        self.pending.too_large += unsendable.packets;
        self.pending.full += left;
        if let Some(tap) = &self.tap {
            for frame in frames.iter() {
                tap.see_full(frame.bytes());
            }
        }
        memory.give_all(frames);
    }
}

impl<M: FrameMemory> Queue<M> for DevicePort<M> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            receives: true,
            checksum: false,
            segmentation: false,
            max_frame: self.frame_limit,
        }
    }

    fn limit_frames(&mut self, bytes: usize) {
        self.frame_limit = bytes;
    }

    fn receive(&mut self, _memory: &mut M, into: &mut Vec<M::Frame>, limit: usize) -> Received {
        // Acquire: a plan that was published before the port opened is visible after this load.
        if !self.is_open.load(Ordering::Acquire) {
            return Received::default();
        }
        let first = into.len();
        self.device.receive(into, limit);
        Received {
            packets: into.len() - first,
            ..Received::default()
        }
    }

    #[inline]
    fn are_valid(&self, longest: usize, segments: u16) -> bool {
        segments <= 1 && longest <= self.frame_limit
    }

    fn tap(&mut self, tap: Option<PortTap>) {
        self.tap = tap;
    }

    fn send(&mut self, frame: M::Frame, memory: &mut M) {
        self.staged.push(frame);
        if self.staged.len() == STAGED_FRAMES {
            self.send_staged(memory);
        }
    }

    fn send_burst(&mut self, frames: &mut Vec<M::Frame>, known: Option<(u64, Sizes)>, memory: &mut M) {
        match known {
            Some((bytes, sizes)) => {
                self.send_staged(memory);
                self.send_now(frames, bytes, Some(sizes), memory);
            }
            None => frames.drain(..).for_each(|frame| self.send(frame, memory)),
        }
    }

    fn flush(&mut self, memory: &mut M) -> Pending {
        self.send_staged(memory);
        std::mem::take(&mut self.pending)
    }
}
