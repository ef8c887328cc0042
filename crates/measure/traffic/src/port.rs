//! Where packets go and come back: one trait, memif as the real one, a loop in memory as the fake.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// A port as the generator uses it: one thread, nothing waits, nothing blocks.
///
/// 1. [`Port::push`] any number of frames, then [`Port::flush`].
/// 2. [`Port::receive`] until it has nothing, then [`Port::release`].
/// 3. Before sleeping [`Port::arm`]; then either something is there already, or [`Port::wake_fd`] becomes readable
///    when something comes. After sleeping [`Port::disarm`].
/// 4. Once in a while [`Port::maintain`]: connects again what was lost.
pub trait Port {
    /// Largest frame that fits, in bytes.
    fn frame_bytes_limit(&self) -> usize;
    /// Slots that are free now; 0 also where the other side is away.
    fn free(&mut self) -> usize;
    /// Slots that a frame of so many bytes takes.
    fn slots(&self, frame_bytes: usize) -> usize;
    /// Takes a copy of `frame`; says whether there was room.
    fn push(&mut self, frame: &[u8]) -> bool;
    /// Lets the other side see what was pushed.
    fn flush(&mut self);
    /// Copies the next returned frame into `buffer` and says how long it is; `None` where there is none. Frames
    /// that cannot be read are skipped.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize>;
    /// Gives the room of received frames back.
    fn release(&mut self);
    /// Asks to be woken; says whether there is nothing yet, so that sleeping is right.
    fn arm(&mut self) -> bool;
    /// No longer asks.
    fn disarm(&mut self);
    /// What becomes readable when a frame comes after [`Port::arm`].
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Looks after the connection.
    fn maintain(&mut self);
    /// Whether the other side is away, as the last [`Port::maintain`] found it.
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

/// A port that gives back what it takes, through a ring of so many slots. It can be told to do wrong.
#[derive(Debug)]
pub struct LoopbackPort {
    slots: usize,
    pushed: VecDeque<Vec<u8>>,
    visible: VecDeque<Vec<u8>>,
}

impl LoopbackPort {
    /// A loop with room for `slots` frames.
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
