//! The generator's port trait, its memif implementation, and an in-memory loopback as fake.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// A port as the generator uses it: from one thread, never blocking.
///
/// 1. [`Port::push`] any number of frames, then [`Port::flush`].
/// 2. [`Port::receive`] until `None`, then [`Port::release`].
/// 3. Before sleeping [`Port::arm`]: either frames are waiting, or [`Port::wake_fd`] becomes readable when
///    one arrives. After sleeping [`Port::disarm`].
/// 4. Periodically [`Port::maintain`], which reconnects lost links.
pub trait Port {
    /// Largest frame that fits, in bytes.
    fn frame_bytes_limit(&self) -> usize;
    /// Free slots; 0 also while the peer is away.
    fn free(&mut self) -> usize;
    /// Slots that a frame of `frame_bytes` bytes needs.
    fn slots(&self, frame_bytes: usize) -> usize;
    /// Copies `frame` into the port; returns whether there was room.
    fn push(&mut self, frame: &[u8]) -> bool;
    /// Makes pushed frames visible to the peer.
    fn flush(&mut self);
    /// Copies the next returned frame into `buffer` and returns its length; `None` if there is none. Skips
    /// unreadable frames.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize>;
    /// Releases the slots of received frames.
    fn release(&mut self);
    /// Requests a wake-up; returns whether nothing is waiting, so that the caller may sleep.
    fn arm(&mut self) -> bool;
    /// Cancels the wake-up request.
    fn disarm(&mut self);
    /// Becomes readable when a frame arrives after [`Port::arm`].
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Maintains the connection.
    fn maintain(&mut self);
    /// Whether the peer was away at the last [`Port::maintain`].
    fn is_away(&self) -> bool {
        false
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn frame_bytes_limit(&self) -> usize {
        (**self).frame_bytes_limit()
    }
    fn free(&mut self) -> usize {
        (**self).free()
    }
    fn slots(&self, frame_bytes: usize) -> usize {
        (**self).slots(frame_bytes)
    }
    fn push(&mut self, frame: &[u8]) -> bool {
        (**self).push(frame)
    }
    fn flush(&mut self) {
        (**self).flush();
    }
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        (**self).receive(buffer)
    }
    fn release(&mut self) {
        (**self).release();
    }
    fn arm(&mut self) -> bool {
        (**self).arm()
    }
    fn disarm(&mut self) {
        (**self).disarm();
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).wake_fd()
    }
    fn maintain(&mut self) {
        (**self).maintain();
    }
    fn is_away(&self) -> bool {
        (**self).is_away()
    }
}

/// A port that returns its packets through a ring. It can inject faults.
#[derive(Debug)]
pub struct LoopbackPort {
    slots: usize,
    pushed: VecDeque<Vec<u8>>,
    visible: VecDeque<Vec<u8>>,
}

impl LoopbackPort {
    /// A loopback with `slots` frames of room.
    pub fn new(slots: usize) -> LoopbackPort {
        LoopbackPort {
            slots,
            pushed: VecDeque::new(),
            visible: VecDeque::new(),
        }
    }
}

impl Port for LoopbackPort {
    fn frame_bytes_limit(&self) -> usize {
        65_536
    }
    fn free(&mut self) -> usize {
        self.slots - self.pushed.len() - self.visible.len()
    }
    fn slots(&self, _frame_bytes: usize) -> usize {
        1
    }
    fn push(&mut self, frame: &[u8]) -> bool {
        if self.free() == 0 {
            return false;
        }
        self.pushed.push_back(frame.to_vec());
        true
    }
    fn flush(&mut self) {
        self.visible.append(&mut self.pushed);
    }
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let frame = self.visible.pop_front()?;
        buffer[..frame.len()].copy_from_slice(&frame);
        Some(frame.len())
    }
    fn release(&mut self) {}
    fn arm(&mut self) -> bool {
        self.visible.is_empty()
    }
    fn disarm(&mut self) {}
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn maintain(&mut self) {}
}
