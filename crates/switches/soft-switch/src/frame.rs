//! Frames and the memory that they come from.
//!
//! A worker is generic over its [`FrameMemory`]: [`HeapMemory`] where no DPDK device is in use, mbufs where one is.
//! A packet in a shared ring is copied into such a frame before it is parsed.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

/// Bytes that an edit may put before a frame: as many as DPDK's mbufs have there, and more than any tunnel needs.
///
/// The memory guarantees them to each frame of at most [`FrameMemory::frame_limit`] bytes. An mbuf has them in front.
/// A [`HeapFrame`] has them behind its room, and moves its bytes: a variable start of the frame would cost
/// instructions for each packet.
pub const HEADROOM: usize = 128;

/// A frame that one owner holds: bytes from the Ethernet header on, without the frame check sequence.
pub trait Frame: Send + 'static {
    /// The frame's bytes.
    fn bytes(&self) -> &[u8];
    /// The frame's bytes, to change.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// The whole buffer, to write a new frame into; [`Frame::set_len`] then sets its length.
    fn room(&mut self) -> &mut [u8];
    /// Sets the length of the frame in bytes, at most the size of the buffer.
    fn set_len(&mut self, len: usize);
    /// Extends the frame at the front by `bytes` bytes and returns them, to be written: at most [`HEADROOM`] in all.
    /// [`None`] without enough headroom; the frame is then unchanged.
    fn add_front(&mut self, _bytes: usize) -> Option<&mut [u8]> {
        None
    }
    /// Length in bytes.
    fn len(&self) -> usize {
        self.bytes().len()
    }
    /// Whether the frame has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Number of segments; [`Frame::bytes`] returns the first one.
    fn segments(&self) -> u16 {
        1
    }
    /// Copies all segments into the first one, if its buffer is large enough.
    fn linearize(&mut self) {}
}

/// A worker's pool of frames. No call allocates, locks or waits.
pub trait FrameMemory: Send + 'static {
    /// The frames of this memory.
    type Frame: Frame;
    /// Ports that only this memory can serve: DPDK devices for mbufs.
    type Device: Device<Self::Frame>;
    /// The registration of a thread with the memory, in force until it is dropped.
    type Registration;
    /// Called by each worker on its own thread before anything else.
    fn register_thread() -> Self::Registration;
    /// An empty frame, or `None` if all are in use.
    fn take(&mut self) -> Option<Self::Frame>;
    /// Appends up to `count` free frames. Their lengths are undefined until [`Frame::set_len`].
    fn take_some(&mut self, into: &mut Vec<Self::Frame>, count: usize) {
        into.extend((0..count).map_while(|_| self.take()));
    }
    /// Gives a frame back.
    fn give(&mut self, frame: Self::Frame);
    /// Gives all these frames back and leaves the list empty.
    fn give_all(&mut self, frames: &mut Vec<Self::Frame>) {
        for frame in frames.drain(..) {
            self.give(frame);
        }
    }
    /// The largest frame in bytes.
    fn frame_limit(&self) -> usize;
}

/// A port whose frames are already in the worker's memory.
pub trait Device<F>: Send + 'static {
    /// Appends at most `limit` received frames, of any length and in any number of segments.
    fn receive(&mut self, into: &mut Vec<F>, limit: usize);
    /// Sends from the front of `frames`, in order. Removes the sent frames and those that it can never send: longer
    /// than `longest` bytes, or than the device carries. The remaining frames found no room. Returns the frames that
    /// it can never send. If the `sizes` of all frames are known, it need not check each of them.
    fn send(&mut self, frames: &mut Vec<F>, longest: usize, known: Option<Sizes>) -> Unsendable;
}

/// Minimum and maximum length of some frames of one segment each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of the shortest one, or less.
    pub shortest: u32,
    /// Bytes of the longest one, or more.
    pub longest: u32,
}

impl Sizes {
    /// The sizes of no frame.
    pub const NONE: Sizes = Sizes {
        shortest: u32::MAX,
        longest: 0,
    };

    /// Adds a frame of `len` bytes.
    #[inline]
    pub fn note(&mut self, len: usize) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.shortest = self.shortest.min(len);
        self.longest = self.longest.max(len);
    }

    /// Adds the frames of `other`.
    #[inline(always)]
    #[must_use]
    pub fn and(self, other: Sizes) -> Sizes {
        Sizes {
            shortest: self.shortest.min(other.shortest),
            longest: self.longest.max(other.longest),
        }
    }
}

/// Frames that a device freed, because it cannot send frames of their length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsendable {
    /// How many.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The control plane's view of a device. A call may take 0.1 ms: workers never call it.
pub trait DeviceWatch: Send {
    /// The current state.
    fn look(&mut self) -> DeviceState;
}

/// The state of a device. The counters are those of the device since it was opened, and may lag behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// Whether its link is up.
    pub up: bool,
    /// Packets that it dropped before a worker could take them: its queue was full, or the pool of frames empty.
    pub missed_packets: u64,
    /// Packets that it took from a worker and could not send.
    pub failed_packets: u64,
}

/// A [`Device`] that cannot exist, for memories without devices.
#[derive(Debug)]
pub enum NoDevice {}

impl<F> Device<F> for NoDevice {
    fn receive(&mut self, _into: &mut Vec<F>, _limit: usize) {
        match *self {}
    }
    fn send(&mut self, _frames: &mut Vec<F>, _longest: usize, _known: Option<Sizes>) -> Unsendable {
        match *self {}
    }
}

/// A frame in ordinary memory.
#[derive(Debug)]
pub struct HeapFrame {
    room: Box<[u8]>,
    len: usize,
}

impl HeapFrame {
    /// An empty frame with room for `bytes` bytes, and the headroom of as many.
    pub fn with_room(bytes: usize) -> HeapFrame {
        HeapFrame {
            room: vec![0; bytes + HEADROOM].into_boxed_slice(),
            len: 0,
        }
    }
}

impl Frame for HeapFrame {
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.room.get(..self.len).unwrap_or_default()
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.room.get_mut(..self.len).unwrap_or_default()
    }
    fn room(&mut self) -> &mut [u8] {
        &mut self.room
    }
    fn set_len(&mut self, len: usize) {
        self.len = len.min(self.room.len());
    }
    fn add_front(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let len = self.len.checked_add(bytes)?;
        if len > self.room.len() {
            return None;
        }
        self.room.copy_within(..self.len, bytes);
        self.len = len;
        self.room.get_mut(..bytes)
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// Frames in a worker's own share; the others are in the list that all workers share.
const CACHE_FRAMES: usize = 256;

/// A worker's share of a pool of [`HeapFrame`]s. Frames may be taken from one worker's share and given to
/// another's: the list between them keeps the shares level.
#[derive(Debug)]
pub struct HeapMemory {
    cache: Vec<HeapFrame>,
    shared: Arc<ArrayQueue<HeapFrame>>,
    frame_limit: usize,
}

impl HeapMemory {
    /// A pool of `frames` frames with room for `frame_bytes` each, in one share per worker.
    pub fn shares(workers: usize, frames: usize, frame_bytes: usize) -> Vec<HeapMemory> {
        let shared = Arc::new(ArrayQueue::new(frames.max(1)));
        for _ in 0..frames {
            let _full = shared.push(HeapFrame::with_room(frame_bytes));
        }
        (0..workers)
            .map(|_| HeapMemory {
                cache: Vec::with_capacity(2 * CACHE_FRAMES),
                shared: Arc::clone(&shared),
                frame_limit: frame_bytes,
            })
            .collect()
    }

    /// Takes frames from the shared list.
    fn refill(&mut self) {
        while self.cache.len() < CACHE_FRAMES {
            let Some(frame) = self.shared.pop() else { break };
            self.cache.push(frame);
        }
    }

    /// Frames in the shared list: at rest, the pool's size minus the frames in the shares.
    pub fn shared_frames(&self) -> usize {
        self.shared.len() + self.cache.len()
    }
}

impl FrameMemory for HeapMemory {
    type Frame = HeapFrame;
    type Device = NoDevice;
    type Registration = ();

    fn register_thread() {}

    fn take(&mut self) -> Option<HeapFrame> {
        if self.cache.is_empty() {
            self.refill();
        }
        let mut frame = self.cache.pop()?;
        frame.len = 0;
        Some(frame)
    }

    fn take_some(&mut self, into: &mut Vec<HeapFrame>, count: usize) {
        let mut left = count;
        while left > 0 {
            if self.cache.is_empty() {
                self.refill();
            }
            let some = left.min(self.cache.len());
            if some == 0 {
                break;
            }
            into.extend(self.cache.drain(self.cache.len() - some..));
            left -= some;
        }
    }

    fn give(&mut self, frame: HeapFrame) {
        if self.cache.len() == 2 * CACHE_FRAMES {
            for spare in self.cache.drain(CACHE_FRAMES..) {
                // The list has room for every frame of the pool, so this cannot fail.
                let _full = self.shared.push(spare);
            }
        }
        self.cache.push(frame);
    }

    fn give_all(&mut self, frames: &mut Vec<HeapFrame>) {
        if self.cache.len() + frames.len() <= 2 * CACHE_FRAMES {
            self.cache.append(frames);
            return;
        }
        for frame in frames.drain(..) {
            self.give(frame);
        }
    }

    fn frame_limit(&self) -> usize {
        self.frame_limit
    }
}

impl Drop for HeapMemory {
    /// Returns the share's frames to the shared list.
    fn drop(&mut self) {
        for frame in self.cache.drain(..) {
            let _full = self.shared.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_given_to_another_share_come_back() {
        let mut shares = HeapMemory::shares(2, 1024, 128);
        let (mut b, mut a) = (shares.pop().unwrap(), shares.pop().unwrap());
        for _ in 0..20 {
            let taken: Vec<_> = (0..500).map(|_| a.take().unwrap()).collect();
            for frame in taken {
                b.give(frame);
            }
        }
        let mut all = Vec::new();
        while let Some(frame) = a.take() {
            all.push(frame);
        }
        while let Some(frame) = b.take() {
            all.push(frame);
        }
        assert_eq!(all.len(), 1024);
        assert!(a.take().is_none() && b.take().is_none());
    }

    #[test]
    fn a_length_beyond_the_room_is_cut() {
        let mut frame = HeapFrame::with_room(64);
        frame.set_len(1000);
        assert_eq!(frame.bytes().len(), 64 + HEADROOM);
    }

    #[test]
    fn a_frame_as_long_as_may_be_has_its_headroom() {
        let mut memory = HeapMemory::shares(1, 1, 64).remove(0);
        let bytes: Vec<u8> = (0..memory.frame_limit() as u8).collect();
        let mut frame = memory.take().unwrap();
        frame.room()[..bytes.len()].copy_from_slice(&bytes);
        frame.set_len(bytes.len());
        frame.add_front(HEADROOM - 1).unwrap().fill(0xee);
        frame.add_front(1).unwrap().fill(0xff);
        assert_eq!(frame.bytes()[..2], [0xff, 0xee]);
        assert_eq!(frame.bytes()[HEADROOM..], bytes);
        assert!(frame.add_front(1).is_none());
        assert_eq!(frame.len(), bytes.len() + HEADROOM, "nothing was done");
    }
}
