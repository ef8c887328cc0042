//! The two ends of a ring in this process: [`TxQueue`] fills, [`RxQueue`] empties.

// UNSAFETY: frames are copied from and to shared memory by pointer, after the checks beside each copy.
#![expect(unsafe_code)]

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU16, Ordering, fence};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use shared_memory::Mapping;

use crate::copy::{copy, prefetch_read, prefetch_write};
use crate::index::{Consumer, Producer};
use crate::interrupt::Interrupt;
use crate::region::Memory;
use crate::ring::{Descriptor, MASK_INTERRUPTS, NEXT, Ring};
use crate::{Error, RxError, TxError};

/// The longest packet that [`RxQueue::forward_to`] moves through a buffer chain, in bytes.
pub const MAX_PACKET_BYTES: usize = 65_536;

/// How many slots ahead buffers are prefetched. A line last written by another core takes about 100 ns to
/// arrive, the time of ten packets. Prefetching further evicts lines from the first-level cache.
const AHEAD: u16 = 8;

/// Packets whose descriptors are read and whose buffers are prefetched before the first copy: about as many
/// cache misses as a core keeps in flight.
const GATHERED: usize = 32;

/// A packet's buffer.
#[derive(Debug, Clone, Copy)]
struct Place {
    first: *mut u8,
    /// Bytes from `first` on that are known to lie in our mappings.
    bytes: u32,
    /// The region index in the descriptor.
    region: u16,
}

const NOWHERE: Place = Place {
    first: core::ptr::null_mut(),
    bytes: 0,
    region: 0,
};

/// The buffers of a ring.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Buffers {
    /// We are the client: the buffer of slot `s` starts at `first + s × stride`, whatever the shared
    /// descriptors say.
    Own {
        first: *mut u8,
        stride: usize,
        capacity: u32,
    },
    /// We are the server: the client's descriptors name them, each validated before use.
    Peer,
}

// SAFETY: the pointer is into a mapping that the queue keeps alive, and is used by one thread at a time (`&mut
// self`).
unsafe impl Send for Buffers {}

/// The producer end of a ring.
///
/// One thread uses it at a time. The peer sees pushed frames after [`TxQueue::flush`].
#[derive(Debug)]
pub struct TxQueue {
    ring: Ring,
    producer: Producer,
    buffers: Buffers,
    /// Per slot, the length last written to its descriptor; 0 if it was part of a chain or never written. An
    /// unchanged length is not written again, so that the line stays in both caches.
    written: Box<[u32]>,
    /// Holds a frame made in [`TxQueue::push_with`].
    scratch: Box<[u8]>,
    interrupt: Interrupt,
    /// The consumer's position at the last wake-up. Until it moves, that wake-up is still pending.
    woken_at: Option<u64>,
    memory: Arc<Memory>,
}

/// The consumer end of a ring.
///
/// One thread uses it at a time. Slots return to the peer with [`RxQueue::release`], and automatically once
/// all known packets have been taken.
#[derive(Debug)]
pub struct RxQueue {
    ring: Ring,
    consumer: Consumer,
    buffers: Buffers,
    /// Holds a chained packet in [`RxQueue::forward_to`].
    scratch: Box<[u8]>,
    counters: RxCounters,
    interrupt: Interrupt,
    memory: Arc<Memory>,
    /// Slots return to the peer with [`RxQueue::release`] alone.
    holds: bool,
    /// Whether chains were taken since the last release.
    has_chains: bool,
}

/// Undelivered packets since the link started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RxCounters {
    /// Packets with a descriptor outside the shared memory or longer than its buffer, or with an endless
    /// chain.
    pub bad_descriptors: u64,
    /// Packets longer than the caller's buffer (or, when forwarded, than the other ring can carry).
    pub too_large: u64,
}

/// Packets and bytes moved into a ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Packets.
    pub packets: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Moved {
    #[inline(always)]
    fn add(&mut self, len: usize) {
        self.packets += 1;
        self.bytes += len as u64;
    }
}

/// A packet from [`RxQueue::take_burst`]: validated to lie in the ring's memory, not copied yet.
#[derive(Debug)]
pub struct Found<'ring> {
    source: *const u8,
    len: usize,
    _ring: PhantomData<&'ring u8>,
}

impl Found<'_> {
    /// Its length in bytes, never 0.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies it to the start of `buffer`. Returns whether it fits; otherwise nothing is copied.
    #[inline(always)]
    pub fn copy_to(&self, buffer: &mut [u8]) -> bool {
        if self.len > buffer.len() {
            return false;
        }
        // SAFETY: the constructor has checked that `len` bytes from `source` are readable while the ring is
        // borrowed; the caller's buffer holds them.
        unsafe { copy(self.source, buffer.as_mut_ptr(), self.len) };
        true
    }
}

/// One ring in each direction. The two may move to different threads.
#[derive(Debug)]
pub struct QueuePair {
    /// Towards the peer.
    pub tx: TxQueue,
    /// From the peer.
    pub rx: RxQueue,
}

/// The index that this side writes, and the one the peer writes.
#[inline(always)]
fn indices<'a>(ring: &'a Ring, buffers: &Buffers) -> (&'a AtomicU16, &'a AtomicU16) {
    match buffers {
        Buffers::Own { .. } => (ring.head(), ring.tail()),
        Buffers::Peer => (ring.tail(), ring.head()),
    }
}

/// The first of `length` bytes named by a peer's descriptor, if they lie in a region.
#[inline(always)]
fn peer_place(memory: &Memory, descriptor: Descriptor) -> Option<*mut u8> {
    place_in(&memory.regions, descriptor)
}

/// The same, given the regions.
#[inline(always)]
fn place_in(regions: &[Mapping], descriptor: Descriptor) -> Option<*mut u8> {
    let region = regions.get(usize::from(descriptor.region))?;
    let end = u64::from(descriptor.offset) + u64::from(descriptor.length);
    if end > region.bytes() as u64 {
        return None;
    }
    Some(region.address().as_ptr().wrapping_add(descriptor.offset as usize))
}

impl TxQueue {
    pub(crate) fn new(
        ring: Ring,
        slots: u16,
        buffers: Buffers,
        interrupt: Interrupt,
        memory: Arc<Memory>,
    ) -> TxQueue {
        let producer = match buffers {
            Buffers::Own { .. } => Producer::of_emptied(slots),
            Buffers::Peer => Producer::of_posted(slots),
        };
        let scratch = vec![0; MAX_PACKET_BYTES].into_boxed_slice();
        TxQueue {
            ring,
            producer,
            buffers,
            written: vec![0; usize::from(slots)].into_boxed_slice(),
            scratch,
            interrupt,
            woken_at: None,
            memory,
        }
    }

    /// The same, on a ring that an earlier run of this program left. `redo`: what it was about to publish.
    /// `peer_buffer`: the length of a client's buffers, if it is known.
    pub(crate) fn resume(mut self, redo: Option<u16>, peer_buffer: u32) -> TxQueue {
        let (own, theirs) = indices(&self.ring, &self.buffers);
        let slots = self.written.len();
        let mut index = own.load(Ordering::Acquire);
        if let Some(redo) = redo
            && usize::from(redo.wrapping_sub(index)) <= slots
        {
            index = redo;
            own.store(index, Ordering::Release);
        }
        self.producer = self.producer.resumed(index, theirs.load(Ordering::Acquire));
        if matches!(self.buffers, Buffers::Peer) {
            self.restore_lengths(peer_buffer);
        }
        // The run that published these frames may have ended before it woke the peer. A peer that is awake takes no
        // harm.
        let is_asleep = self.ring.flags().load(Ordering::Relaxed) & MASK_INTERRUPTS == 0;
        if is_asleep && u32::from(self.producer.known_free()) < self.slots() {
            self.interrupt.raise();
        }
        self
    }

    /// Frames that were filled in and not published have left their length in the peer's descriptors, where it had
    /// the length of its buffer. Free buffers get the `known` length back, else that of the longest among them: the
    /// first of the two with which none reaches into the next one or out of its region.
    fn restore_lengths(&self, known: u32) {
        let (next, free) = (self.producer.next(), self.producer.known_free());
        let indices = || (0..free).map(|ahead| next.wrapping_add(ahead));
        let mut buffers: Vec<Descriptor> = indices().map(|index| self.ring.descriptor(index)).collect();
        let longest = buffers.iter().map(|buffer| buffer.length).max().unwrap_or(0);
        buffers.sort_by_key(|buffer| (buffer.region, buffer.offset));
        let is_possible = |length: u32| {
            let mut pairs = buffers.windows(2);
            let fits =
                |buffer: &Descriptor| peer_place(&self.memory, Descriptor { length, ..*buffer }).is_some();
            let are_apart = pairs.all(|pair| match pair {
                [a, b] => a.region != b.region || u64::from(b.offset - a.offset) >= u64::from(length),
                _ => true,
            });
            are_apart && buffers.iter().all(fits)
        };
        let length = [known.max(longest), longest]
            .into_iter()
            .find(|length| is_possible(*length));
        if let Some(length) = length {
            for index in indices() {
                let region = self.ring.descriptor(index).region;
                self.ring.set_first_word(index, 0, region, length);
            }
        }
    }

    /// The index that [`TxQueue::flush`] would publish.
    #[inline(always)]
    pub fn position(&self) -> u16 {
        self.producer.next()
    }

    /// Notes in the ring, where this side is the client, what the next [`TxQueue::flush`] will publish and in which
    /// turn of this program: see [`crate::Unfinished`].
    #[inline(always)]
    pub fn intend(&self, turn: u64) {
        if let Buffers::Own { .. } = self.buffers {
            self.ring.set_intent(turn, self.producer.next());
        }
    }

    /// The descriptor that wakes the peer.
    pub(crate) fn interrupt_file(&self) -> BorrowedFd<'_> {
        self.interrupt.as_fd()
    }

    /// Whether frames wait for [`TxQueue::flush`].
    #[inline(always)]
    pub fn has_unpublished(&self) -> bool {
        self.producer.has_unpublished()
    }

    /// Slots of the ring.
    pub fn slots(&self) -> u32 {
        self.written.len() as u32
    }

    /// Free slots now: reads the consumer's position.
    #[inline]
    pub fn free(&mut self) -> u32 {
        let (_, theirs) = indices(&self.ring, &self.buffers);
        self.producer.refresh(theirs).into()
    }

    /// Copies `frame` into the ring; a frame longer than a buffer takes several slots. The peer sees it after
    /// [`TxQueue::flush`]. Reads the consumer's position only if the ring seems full. On a server the ring is
    /// full until the client posts its buffers, shortly after the link is established.
    ///
    /// # Errors
    /// [`TxError::Full`], [`TxError::TooLarge`] (also for an empty frame), or [`TxError::Violated`] if the
    /// peer violated the protocol. Nothing was added then.
    #[inline]
    pub fn push(&mut self, frame: &[u8]) -> Result<(), TxError> {
        // SAFETY: a slice is readable in its whole length.
        unsafe { self.push_from(frame.as_ptr(), frame.len()) }
    }

    /// Copies the first of `frames` into the ring, each into one buffer, and returns how many. Stops at the
    /// first frame that finds the ring full, is empty, or is longer than `longest` bytes or its buffer; call
    /// [`TxQueue::push`] for that one.
    #[inline]
    pub fn push_burst<'f, F>(
        &mut self,
        frames: &'f [F],
        bytes: impl Fn(&'f F) -> &'f [u8],
        longest: usize,
    ) -> Moved {
        let mut moved = Moved::default();
        for chunk in frames.chunks(GATHERED) {
            let mut places = [NOWHERE; GATHERED];
            let gathered = self.gather(&mut places[..chunk.len()]);
            let mut count = 0;
            for (frame, target) in chunk.iter().zip(&places[..gathered]) {
                let frame = bytes(frame);
                if frame.len().wrapping_sub(1) >= longest.min(target.bytes as usize) {
                    break;
                }
                // SAFETY: `gather` has validated `target`, and the frame is not longer than it.
                unsafe { copy(frame.as_ptr(), target.first, frame.len()) };
                self.describe(count, target, frame.len() as u32);
                moved.add(frame.len());
                count += 1;
            }
            self.producer.fill(count);
            if usize::from(count) < chunk.len() {
                break;
            }
        }
        moved
    }

    /// Copies the first of these packets into the ring, as [`TxQueue::push_burst`] does, and returns how
    /// many.
    ///
    /// # Safety
    /// Each is readable for its bytes, which may change meanwhile (see [`crate::copy`]).
    #[inline(always)]
    unsafe fn push_places(&mut self, sources: &[Place], longest: usize, moved: &mut Moved) -> u16 {
        let mut targets = [NOWHERE; GATHERED];
        let wanted = sources.len().min(GATHERED);
        let gathered = self.gather(&mut targets[..wanted]);
        let mut count = 0;
        for (source, target) in sources.iter().zip(&targets[..gathered]) {
            let len = source.bytes as usize;
            if len > longest.min(target.bytes as usize) {
                break;
            }
            // SAFETY: the caller vouches for the source; `gather` has validated `target`, and the packet is
            // not longer than it.
            unsafe { copy(source.first, target.first, len) };
            self.describe(count, target, source.bytes);
            moved.add(len);
            count += 1;
        }
        self.producer.fill(count);
        count
    }

    /// Resolves and prefetches the buffers of the next free slots, up to the length of `places`, and returns
    /// how many. Reads the consumer's position once if no slot is free.
    #[inline(always)]
    fn gather(&mut self, places: &mut [Place]) -> usize {
        if usize::from(self.producer.known_free()) < places.len() {
            self.free();
        }
        let next = self.producer.next();
        let free = usize::from(self.producer.known_free()).min(places.len());
        let places = places.get_mut(..free).unwrap_or_default();
        match self.buffers {
            Buffers::Own {
                first,
                stride,
                capacity,
            } => {
                for (place, index) in places.iter_mut().zip(0_u16..) {
                    let target = first.wrapping_add(self.ring.slot(next.wrapping_add(index)) * stride);
                    prefetch_write(target);
                    *place = Place {
                        first: target,
                        bytes: capacity,
                        region: 0,
                    };
                }
            }
            Buffers::Peer => {
                let known = self.producer.known_free().min(2 * GATHERED as u16);
                self.ring.prefetch(next, known, true);
                let regions = self.memory.regions.as_slice();
                for (index, place) in places.iter_mut().enumerate() {
                    let descriptor = self.ring.descriptor(next.wrapping_add(index as u16));
                    // `push` meets a buffer outside the shared memory again and gives up on the ring.
                    let Some(target) = place_in(regions, descriptor) else {
                        return index;
                    };
                    prefetch_write(target);
                    *place = Place {
                        first: target,
                        bytes: descriptor.length,
                        region: descriptor.region,
                    };
                }
            }
        }
        free
    }

    /// Writes the descriptor `ahead` slots after the next one: a frame of `len` bytes in a single buffer.
    #[inline(always)]
    fn describe(&mut self, ahead: u16, target: &Place, len: u32) {
        let index = self.producer.next().wrapping_add(ahead);
        if let Buffers::Own { .. } = self.buffers {
            let slot = self.ring.slot(index);
            match self.written.get_mut(slot) {
                Some(written) if *written != len => *written = len,
                _ => return,
            }
        }
        self.ring.set_first_word(index, 0, target.region, len);
    }

    /// Adds a frame of `len` bytes that `write` fills in. It gets private memory (with unspecified contents),
    /// which is then copied into the ring: memory that the peer can write is never lent as a slice.
    ///
    /// # Errors
    /// As [`TxQueue::push`]. `write` is not called if the ring is full or `len` exceeds [`MAX_PACKET_BYTES`].
    #[inline]
    pub fn push_with(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> Result<(), TxError> {
        if self.producer.known_free() == 0 && self.free() == 0 {
            return Err(self.why_full());
        }
        let Some(frame) = self.scratch.get_mut(..len) else {
            return Err(TxError::TooLarge);
        };
        write(frame);
        let frame = frame.as_ptr();
        // SAFETY: `len` bytes of the scratch buffer, just checked. `push_from` does not touch that buffer.
        unsafe { self.push_from(frame, len) }
    }

    /// Publishes pushed frames and wakes the peer if it sleeps.
    ///
    /// A consumer sleeps only after unmasking interrupts and finding the ring empty again. It is therefore
    /// woken if interrupts are unmasked and it has not taken all, but only once per position: a peer that never
    /// masks them costs a system call for each batch that it takes, not for each one we send.
    #[inline]
    pub fn flush(&mut self) {
        let (own, _) = indices(&self.ring, &self.buffers);
        if self.producer.publish(own) {
            self.wake_sleeper();
        }
    }

    /// Wakes the peer if it sleeps, behind what was just published.
    #[inline(always)]
    fn wake_sleeper(&mut self) {
        // Store the index before loading the flags; the sleeper does the reverse.
        fence(Ordering::SeqCst);
        if self.ring.flags().load(Ordering::Relaxed) & MASK_INTERRUPTS == 0 {
            let (_, theirs) = indices(&self.ring, &self.buffers);
            self.producer.refresh(theirs);
            let consumed = self.producer.consumed();
            // One that has taken all, while this thread had no CPU, needs no wake-up. It would find nothing and sleep
            // again at this position, where it must be woken by the next packet.
            if consumed < self.producer.pushed() && self.woken_at != Some(consumed) {
                self.woken_at = Some(consumed);
                self.interrupt.raise();
            }
        }
    }

    /// Slots with frames that the peer has not taken, including unflushed ones.
    #[inline]
    pub fn occupancy(&mut self) -> u32 {
        let consumed = self.consumed();
        // A client that has not posted its buffers yet has taken nothing.
        self.producer.pushed().saturating_sub(consumed) as u32
    }

    /// Slots that the peer has emptied since the link started. Grows as long as the peer works.
    #[inline]
    pub fn consumed(&mut self) -> u64 {
        self.free();
        self.producer.consumed()
    }

    /// Slots filled since the link started, in the unit of [`TxQueue::consumed`].
    #[inline]
    pub fn pushed(&self) -> u64 {
        self.producer.pushed()
    }

    /// Whether the peer violated the protocol: an index outside the ring or a buffer outside its memory. The
    /// link is unusable then.
    pub fn is_violated(&self) -> bool {
        self.producer.is_dead()
    }

    /// Slots that a frame of `len` bytes takes, at most all. An estimate if the peer chooses its buffers.
    #[cold]
    fn slots_for(&self, len: usize) -> u32 {
        let capacity = match self.buffers {
            Buffers::Own { capacity, .. } => capacity,
            Buffers::Peer => self.ring.flags_and_length(self.producer.next()).1,
        };
        len.div_ceil(capacity.max(1) as usize).min(self.written.len()) as u32
    }

    #[cold]
    fn why_full(&self) -> TxError {
        if self.producer.is_dead() {
            TxError::Violated
        } else {
            TxError::Full
        }
    }

    /// # Safety
    /// `frame` is readable for `len` bytes, which may change meanwhile (see [`crate::copy`]).
    #[inline(always)]
    unsafe fn push_from(&mut self, frame: *const u8, len: usize) -> Result<(), TxError> {
        if self.producer.known_free() == 0 && self.free() == 0 {
            return Err(self.why_full());
        }
        let next = self.producer.next();
        let slot = self.ring.slot(next);
        match self.buffers {
            Buffers::Own {
                first,
                stride,
                capacity,
            } if len.wrapping_sub(1) < capacity as usize => {
                if self.producer.known_free() > AHEAD {
                    let ahead = self.ring.slot(next.wrapping_add(AHEAD));
                    prefetch_write(first.wrapping_add(ahead * stride));
                }
                // SAFETY: the client allocated `slots` buffers of `stride ≥ capacity` bytes from `first` on;
                // slot < slots and len ≤ capacity. The caller vouches for `frame`.
                unsafe { copy(frame, first.add(slot * stride), len) };
                if self.written[slot] != len as u32 {
                    self.written[slot] = len as u32;
                    self.ring.set_first_word(next, 0, 0, len as u32);
                }
                self.producer.fill(1);
                Ok(())
            }
            Buffers::Peer => {
                let descriptor = self.ring.descriptor(next);
                if len.wrapping_sub(1) >= descriptor.length as usize {
                    // SAFETY: the caller's contract.
                    return unsafe { self.push_chain(frame, len) };
                }
                let Some(target) = peer_place(&self.memory, descriptor) else {
                    self.producer.kill();
                    return Err(TxError::Violated);
                };
                if self.producer.known_free() > AHEAD {
                    let ahead = self.ring.descriptor(next.wrapping_add(AHEAD));
                    if let Some(place) = peer_place(&self.memory, ahead) {
                        prefetch_write(place);
                    }
                }
                // SAFETY: `descriptor.length` bytes from `target` lie in a region; len is not more. The caller
                // vouches for `frame`.
                unsafe { copy(frame, target, len) };
                self.ring.set_first_word(next, 0, descriptor.region, len as u32);
                self.producer.fill(1);
                Ok(())
            }
            // SAFETY: the caller's contract.
            Buffers::Own { .. } => unsafe { self.push_chain(frame, len) },
        }
    }

    /// Spreads a frame over several buffers, or adds nothing.
    ///
    /// # Safety
    /// As [`TxQueue::push_from`].
    #[cold]
    unsafe fn push_chain(&mut self, frame: *const u8, len: usize) -> Result<(), TxError> {
        if len == 0 {
            return Err(TxError::TooLarge);
        }
        let free = self.free() as u16;
        let first_slot = self.producer.next();
        let mut done = 0;
        let mut used = 0;
        while done < len {
            if used == free {
                let fits = match self.buffers {
                    Buffers::Own { capacity, .. } => len.div_ceil(capacity as usize) <= self.written.len(),
                    // The whole ring was free, but too small.
                    Buffers::Peer => usize::from(used) < self.written.len(),
                };
                return Err(if self.producer.is_dead() {
                    TxError::Violated
                } else if fits {
                    TxError::Full
                } else {
                    TxError::TooLarge
                });
            }
            let index = first_slot.wrapping_add(used);
            let slot = self.ring.slot(index);
            let (target, capacity, region) = match self.buffers {
                Buffers::Own {
                    first,
                    stride,
                    capacity,
                } => (first.wrapping_add(slot * stride), capacity as usize, 0),
                Buffers::Peer => {
                    let descriptor = self.ring.descriptor(index);
                    match peer_place(&self.memory, descriptor) {
                        Some(place) if descriptor.length > 0 => {
                            (place, descriptor.length as usize, descriptor.region)
                        }
                        _ => {
                            self.producer.kill();
                            return Err(TxError::Violated);
                        }
                    }
                }
            };
            let part = capacity.min(len - done);
            // SAFETY: `capacity` bytes from `target` are in our buffers or in a validated region of the peer;
            // part is not more. By the caller's contract done + part ≤ len bytes of the frame are readable.
            unsafe { copy(frame.add(done), target, part) };
            done += part;
            used += 1;
            let flags = if done < len { NEXT } else { 0 };
            self.written[slot] = 0;
            self.ring.set_first_word(index, flags, region, part as u32);
        }
        self.producer.fill(used);
        Ok(())
    }
}

/// The packet at the head of a ring, not taken yet.
enum Head {
    /// In one buffer: its first byte and its length, both validated.
    Whole(*const u8, usize),
    /// Continues in further slots.
    Chain,
    /// Its descriptor is invalid.
    Bad,
}

impl RxQueue {
    pub(crate) fn new(
        ring: Ring,
        slots: u16,
        buffers: Buffers,
        interrupt: Interrupt,
        memory: Arc<Memory>,
    ) -> RxQueue {
        let consumer = match buffers {
            Buffers::Own { .. } => Consumer::posting_buffers(slots),
            Buffers::Peer => Consumer::reporting_emptied(slots),
        };
        let scratch = vec![0; MAX_PACKET_BYTES].into_boxed_slice();
        let queue = RxQueue {
            ring,
            consumer,
            buffers,
            scratch,
            counters: RxCounters::default(),
            interrupt,
            memory,
            holds: false,
            has_chains: false,
        };
        queue.ring.flags().store(MASK_INTERRUPTS, Ordering::Relaxed);
        queue
    }

    /// The same, on a ring that an earlier run of this program left. `redo`: what it was about to release.
    pub(crate) fn resume(mut self, redo: Option<u16>) -> RxQueue {
        let (own, _) = indices(&self.ring, &self.buffers);
        let mut index = own.load(Ordering::Acquire);
        let slots = self.consumer.slots();
        if let Some(redo) = redo
            && redo.wrapping_sub(index) <= slots
        {
            self.consumer = self.consumer.resumed(index);
            self.consumer.skip(redo.wrapping_sub(index));
            self.has_chains = true;
            self.release();
            index = redo;
        }
        self.consumer = Consumer::resumed(self.consumer, index);
        self
    }

    /// Slots return to the peer with [`RxQueue::release`] alone from now on, and not by themselves: what was taken is
    /// still there for the next run of this program, until it is known to have arrived elsewhere.
    pub fn hold_slots(&mut self) {
        self.holds = true;
    }

    /// The index that [`RxQueue::release`] would store.
    #[inline(always)]
    pub fn position(&self) -> u16 {
        self.consumer.position()
    }

    /// Notes in the ring, where this side is the client, what the next [`RxQueue::release`] will give back and in
    /// which turn of this program: see [`crate::Unfinished`].
    #[inline(always)]
    pub fn intend(&self, turn: u64) {
        if let Buffers::Own { .. } = self.buffers {
            self.ring.set_intent(turn, self.consumer.position());
        }
    }

    /// Posts the buffers of a client's ring, after CONNECTED.
    pub(crate) fn post_buffers(&self) {
        self.consumer.post_all(indices(&self.ring, &self.buffers).0);
    }

    /// Filled slots now: reads the producer's position. Releases emptied slots first if none was known to be
    /// filled.
    #[inline]
    pub fn available(&mut self) -> u32 {
        if self.consumer.known_filled() == 0 && !self.holds {
            self.release();
        }
        let (_, theirs) = indices(&self.ring, &self.buffers);
        self.consumer.refresh(theirs).into()
    }

    /// Copies one packet into `buffer` and returns its length, or why it was discarded (it is counted).
    /// `None` if the ring is empty.
    #[inline]
    pub fn pop(&mut self, buffer: &mut [u8]) -> Option<Result<usize, RxError>> {
        if self.consumer.known_filled() == 0 && self.available() == 0 {
            return None;
        }
        Some(match self.find() {
            Head::Whole(source, len) if len <= buffer.len() => {
                // SAFETY: `find` has checked that `len` bytes from `source` are in our mapping; the caller's
                // buffer holds them.
                unsafe { copy(source, buffer.as_mut_ptr(), len) };
                self.consumer.empty(1);
                Ok(len)
            }
            Head::Whole(_, len) => {
                self.consumer.empty(1);
                self.counters.too_large += 1;
                Err(RxError::TooLarge { len })
            }
            Head::Chain => self.pop_chain(buffer),
            Head::Bad => {
                self.consumer.empty(1);
                Err(self.bad_descriptor())
            }
        })
    }

    /// Takes up to `most` packets and passes each to `take`, which may copy it; it is removed either way.
    /// Returns how many there were. Undeliverable packets are only counted, in [`RxQueue::counters`].
    #[inline]
    pub fn take_burst(&mut self, most: usize, take: impl FnMut(Found<'_>)) -> usize {
        self.take_burst_while(most, |_| true, take)
    }

    /// As [`RxQueue::take_burst`], but stops at, and keeps, the first packet for whose length in bytes `fits` is false.
    #[inline]
    pub fn take_burst_while(
        &mut self,
        most: usize,
        mut fits: impl FnMut(usize) -> bool,
        mut take: impl FnMut(Found<'_>),
    ) -> usize {
        let mut taken = 0;
        while taken < most {
            if self.consumer.known_filled() == 0 && self.available() == 0 {
                break;
            }
            let mut places = [NOWHERE; GATHERED];
            let limit = (most - taken).min(usize::from(self.consumer.known_filled()));
            let wanted = limit.min(GATHERED);
            let gathered = self.gather(&mut places[..wanted]);
            let mut fitting = 0;
            for place in &places[..gathered] {
                if !fits(place.bytes as usize) {
                    break;
                }
                // `gather` has validated the buffer. The peer gets it back only on release, and the mapping
                // lives as long as this queue, which the packet borrows.
                take(Found {
                    source: place.first,
                    len: place.bytes as usize,
                    _ring: PhantomData,
                });
                fitting += 1;
            }
            self.consumer.empty(fitting as u16);
            taken += fitting;
            if fitting < gathered {
                break;
            }
            if gathered < wanted {
                if !self.take_exception(&mut fits, &mut take) {
                    break;
                }
                taken += 1;
            }
        }
        taken
    }

    /// Resolves and prefetches the packets of the next filled slots, up to the length of `places` and only
    /// single-buffer ones. Returns how many. The caller has checked that as many slots are filled.
    #[inline(always)]
    fn gather(&self, places: &mut [Place]) -> usize {
        let next = self.consumer.next();
        let count = places.len();
        // Prefetch these descriptors, if they have not arrived, and the next ones.
        let known = self.consumer.known_filled().min(2 * GATHERED as u16);
        let to_write = matches!(self.buffers, Buffers::Own { .. });
        self.ring.prefetch(next, known, to_write);
        match self.buffers {
            Buffers::Own {
                first,
                stride,
                capacity,
            } => {
                for (at, place) in places.iter_mut().enumerate() {
                    let index = next.wrapping_add(at as u16);
                    let (flags, length) = self.ring.flags_and_length(index);
                    if flags & NEXT != 0 || length.wrapping_sub(1) >= capacity {
                        return at;
                    }
                    let source = first.wrapping_add(self.ring.slot(index) * stride);
                    prefetch_read(source);
                    *place = Place {
                        first: source,
                        bytes: length,
                        region: 0,
                    };
                }
            }
            Buffers::Peer => {
                let regions = self.memory.regions.as_slice();
                for (at, place) in places.iter_mut().enumerate() {
                    let descriptor = self.ring.descriptor(next.wrapping_add(at as u16));
                    let source = match place_in(regions, descriptor) {
                        Some(source) if descriptor.flags & NEXT == 0 && descriptor.length > 0 => source,
                        _ => return at,
                    };
                    prefetch_read(source);
                    *place = Place {
                        first: source,
                        bytes: descriptor.length,
                        region: descriptor.region,
                    };
                }
            }
        }
        count
    }

    /// Takes the packet at which [`RxQueue::gather`] stopped, unless it is not to fit. Its descriptor is read again.
    #[cold]
    fn take_exception(
        &mut self,
        fits: &mut impl FnMut(usize) -> bool,
        take: &mut impl FnMut(Found<'_>),
    ) -> bool {
        let len = match self.find() {
            Head::Whole(_, len) => Some(len),
            Head::Chain => Some(self.chain_bytes()),
            Head::Bad => None,
        };
        if len.is_some_and(|len| !fits(len)) {
            return false;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        if let Some(Ok(len)) = self.pop(&mut scratch) {
            take(Found {
                source: scratch.as_ptr(),
                len,
                _ring: PhantomData,
            });
        }
        self.scratch = scratch;
        true
    }

    /// Moves up to `most` packets into `tx` and releases their slots. Returns how many were moved. Stops when
    /// `tx` is full. The caller flushes `tx`. Packets that cannot be carried are counted in
    /// [`RxQueue::counters`].
    ///
    /// Does not read the bytes: for a function that returns what it receives.
    pub fn forward_to(&mut self, tx: &mut TxQueue, most: usize) -> usize {
        self.forward_within(tx, most, usize::MAX).packets
    }

    /// As [`RxQueue::forward_to`], but also stops at, and keeps, a packet of more than `longest` bytes.
    pub fn forward_within(&mut self, tx: &mut TxQueue, most: usize, longest: usize) -> Moved {
        let (mut moved, mut refused) = (Moved::default(), 0);
        while moved.packets + refused < most {
            if self.consumer.known_filled() == 0 && self.available() == 0 {
                break;
            }
            let mut sources = [NOWHERE; GATHERED];
            let limit = (most - moved.packets - refused).min(usize::from(self.consumer.known_filled()));
            let wanted = limit.min(GATHERED);
            let gathered = self.gather(&mut sources[..wanted]);
            // SAFETY: `gather` has validated the sources. The rings may share a mapping, but no buffer. If a
            // hostile client makes them share one, only that client's packets are corrupted.
            let count = unsafe { tx.push_places(&sources[..gathered], longest, &mut moved) };
            self.consumer.empty(count);
            if usize::from(count) == wanted {
                continue;
            }
            // The next packet is an exception.
            match self.find() {
                Head::Whole(_, len) if len > longest => break,
                Head::Whole(source, len) => {
                    // SAFETY: `find` has checked that `len` bytes from `source` are in our mapping. The rings
                    // may share it, but no buffer. If a hostile client makes them share one, only that
                    // client's packets are corrupted.
                    match unsafe { tx.push_from(source, len) } {
                        Ok(()) => moved.add(len),
                        Err(TxError::TooLarge) => {
                            self.counters.too_large += 1;
                            refused += 1;
                        }
                        Err(TxError::Full | TxError::Violated) => break,
                    }
                    self.consumer.empty(1);
                }
                Head::Chain => {
                    let bytes = self.chain_bytes();
                    if bytes > longest || tx.free() < tx.slots_for(bytes) {
                        break;
                    }
                    let mut scratch = std::mem::take(&mut self.scratch);
                    let room = longest.min(scratch.len());
                    let popped = self.pop_chain(&mut scratch[..room]);
                    match popped.map(|len| (len, tx.push(&scratch[..len]))) {
                        Ok((len, Ok(()))) => moved.add(len),
                        Ok((_, Err(_))) => {
                            self.counters.too_large += 1;
                            refused += 1;
                        }
                        Err(_) => refused += 1,
                    }
                    self.scratch = scratch;
                }
                Head::Bad => {
                    self.consumer.empty(1);
                    self.bad_descriptor();
                    refused += 1;
                }
            }
        }
        if !self.holds {
            self.release();
        }
        moved
    }

    /// Releases all emptied slots to the peer. Their descriptors were as the peer wrote them until now.
    #[inline]
    pub fn release(&mut self) {
        let (first, count) = self.consumer.unreleased();
        if let Buffers::Own { capacity, .. } = self.buffers {
            // For the next round.
            for ahead in 0..count {
                self.ring
                    .set_first_word(first.wrapping_add(ahead), 0, 0, capacity);
            }
        } else if std::mem::take(&mut self.has_chains) {
            self.unchain(first, count);
        }
        let (own, _) = indices(&self.ring, &self.buffers);
        self.consumer.release(own);
    }

    /// DPDK 23 and later sets this flag as a client and never clears it; the next packet in its slot would seem
    /// chained.
    #[cold]
    fn unchain(&self, first: u16, count: u16) {
        for index in (0..count).map(|ahead| first.wrapping_add(ahead)) {
            let descriptor = self.ring.descriptor(index);
            if descriptor.flags & NEXT != 0 {
                self.ring
                    .set_first_word(index, 0, descriptor.region, descriptor.length);
            }
        }
    }

    /// Slots that the peer has filled and this side has not emptied.
    #[inline]
    pub fn occupancy(&mut self) -> u32 {
        let (_, theirs) = indices(&self.ring, &self.buffers);
        self.consumer.refresh(theirs).into()
    }

    /// Slots emptied since the link started.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.consumer.popped()
    }

    /// Undelivered packets.
    pub fn counters(&self) -> RxCounters {
        self.counters
    }

    /// Whether the peer moved its index outside the ring. The link is unusable then.
    pub fn is_violated(&self) -> bool {
        self.consumer.is_dead()
    }

    /// Unmasks or masks the peer's interrupts (masked at first). After unmasking, check
    /// [`RxQueue::available`] again before sleeping; [`wait`] does all of this.
    pub fn set_interrupts(&mut self, on: bool) {
        self.ring
            .flags()
            .store(if on { 0 } else { MASK_INTERRUPTS }, Ordering::Relaxed);
        if on {
            // Store the flags before loading the producer's index again; the producer does the reverse.
            fence(Ordering::SeqCst);
        }
    }

    /// Readable when the peer raises an interrupt.
    pub fn interrupt_fd(&self) -> BorrowedFd<'_> {
        self.interrupt.as_fd()
    }

    /// Drains the interrupts raised so far. Check the ring afterwards.
    pub fn clear_interrupt(&self) {
        self.interrupt.clear();
    }

    /// Reads the first filled slot. The caller has checked that there is one.
    #[inline(always)]
    fn find(&self) -> Head {
        let next = self.consumer.next();
        let far = self.consumer.known_filled() > AHEAD;
        match self.buffers {
            Buffers::Own {
                first,
                stride,
                capacity,
            } => {
                if far {
                    let ahead = self.ring.slot(next.wrapping_add(AHEAD));
                    prefetch_read(first.wrapping_add(ahead * stride));
                }
                let (flags, length) = self.ring.flags_and_length(next);
                if flags & NEXT != 0 {
                    Head::Chain
                } else if length == 0 || length > capacity {
                    Head::Bad
                } else {
                    Head::Whole(first.wrapping_add(self.ring.slot(next) * stride), length as usize)
                }
            }
            Buffers::Peer => {
                if far {
                    let ahead = self.ring.descriptor(next.wrapping_add(AHEAD));
                    if let Some(place) = peer_place(&self.memory, ahead) {
                        prefetch_read(place);
                    }
                }
                let descriptor = self.ring.descriptor(next);
                if descriptor.flags & NEXT != 0 {
                    return Head::Chain;
                }
                match peer_place(&self.memory, descriptor) {
                    Some(place) if descriptor.length > 0 => Head::Whole(place, descriptor.length as usize),
                    _ => Head::Bad,
                }
            }
        }
    }

    /// Bytes of the chain at the head of the ring by its descriptors: only a hint, because they are read
    /// again when it is taken.
    #[cold]
    fn chain_bytes(&self) -> usize {
        let mut bytes = 0_usize;
        for ahead in 0..self.consumer.known_filled() {
            let (flags, length) = self
                .ring
                .flags_and_length(self.consumer.next().wrapping_add(ahead));
            bytes = bytes.saturating_add(length as usize);
            if flags & NEXT == 0 {
                break;
            }
        }
        bytes
    }

    #[cold]
    fn bad_descriptor(&mut self) -> RxError {
        self.counters.bad_descriptors += 1;
        RxError::BadDescriptor
    }

    /// Takes a packet of several buffers. Follows the chain to its end even if the packet is discarded.
    #[cold]
    fn pop_chain(&mut self, buffer: &mut [u8]) -> Result<usize, RxError> {
        let (_, theirs) = indices(&self.ring, &self.buffers);
        let available = self.consumer.refresh(theirs);
        let mut len = 0_usize;
        let mut bad = false;
        let mut complete = false;
        for _ in 0..available {
            let index = self.consumer.next();
            let descriptor = self.ring.descriptor(index);
            let place = match self.buffers {
                Buffers::Own {
                    first,
                    stride,
                    capacity,
                } => (descriptor.length <= capacity)
                    .then(|| first.wrapping_add(self.ring.slot(index) * stride).cast_const()),
                Buffers::Peer => peer_place(&self.memory, descriptor).map(<*mut u8>::cast_const),
            };
            let part = descriptor.length as usize;
            match place {
                Some(place) if !bad => {
                    if part <= buffer.len().saturating_sub(len) {
                        // SAFETY: `part` bytes from `place` are in our mapping, just checked; len + part ≤
                        // buffer.len().
                        unsafe { copy(place, buffer.as_mut_ptr().add(len), part) };
                    }
                    len += part;
                }
                _ => bad = true,
            }
            let goes_on = descriptor.flags & NEXT != 0;
            self.has_chains |= goes_on;
            self.consumer.empty(1);
            if !goes_on {
                complete = true;
                break;
            }
        }
        if bad || !complete || len == 0 {
            return Err(self.bad_descriptor());
        }
        if len > buffer.len() {
            self.counters.too_large += 1;
            return Err(RxError::TooLarge { len });
        }
        Ok(len)
    }
}

/// Sleeps until one of `queues` holds a packet, one of `others` is readable, or `timeout` passes. Returns
/// whether a queue holds a packet.
///
/// No wake-up is lost with a producer of this crate: interrupts are unmasked, each ring is checked again, and
/// only then does the thread sleep. Interrupts are masked again afterwards, so that the producer of a busy
/// ring makes no system calls. Other producers, DPDK's among them, read the flag without a barrier after
/// writing their index. They may miss a consumer that falls asleep at that moment; with those, use a
/// `timeout` of a few milliseconds at most.
///
/// # Errors
/// [`Error::System`] if the kernel refuses to wait, [`Error::Configuration`] for more than [`MAX_WAIT`]
/// descriptors.
pub fn wait(
    queues: &mut [&mut RxQueue],
    others: &[BorrowedFd<'_>],
    timeout: Duration,
) -> Result<bool, Error> {
    if queues.len() + others.len() > MAX_WAIT {
        return Err(Error::Configuration(
            "more descriptors to wait for than memif::MAX_WAIT",
        ));
    }
    let mut ready = false;
    for queue in queues.iter_mut() {
        if queue.available() > 0 {
            return Ok(true);
        }
    }
    for queue in queues.iter_mut() {
        queue.set_interrupts(true);
    }
    for queue in queues.iter_mut() {
        ready |= queue.available() > 0;
    }
    let mut outcome = Ok(false);
    if !ready {
        let count = queues.len() + others.len();
        let mut sources = queues
            .iter()
            .map(|queue| queue.interrupt_fd())
            .chain(others.iter().copied())
            .map(Some);
        let mut fds = [const { None }; MAX_WAIT];
        fds.fill_with(|| sources.next().flatten());
        let Some(any) = fds[0] else {
            return crate::socket::wait_readable(&mut [], Some(timeout));
        };
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd.unwrap_or(any), PollFlags::IN));
        outcome = crate::socket::wait_readable(&mut fds[..count], Some(timeout));
    }
    for queue in queues.iter_mut() {
        queue.set_interrupts(false);
        queue.clear_interrupt();
    }
    outcome?;
    for queue in queues.iter_mut() {
        ready |= queue.available() > 0;
    }
    Ok(ready)
}

/// Descriptors that [`wait`] accepts: queues and others together.
pub const MAX_WAIT: usize = 64;

const fn is_send<T: Send>() {}
const _: () = is_send::<QueuePair>();

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A peer's descriptor is used only if all its bytes lie in a region, whatever its numbers.
        #[test]
        fn a_resolved_buffer_lies_within_its_region(
            regions in proptest::collection::vec(1..4_usize, 1..4),
            region in prop_oneof![0..5_u16, any::<u16>()],
            offset in prop_oneof![0..20_000_u32, any::<u32>()],
            length in prop_oneof![0..20_000_u32, any::<u32>()],
        ) {
            let regions: Vec<_> =
                regions.into_iter().filter_map(|pages| crate::region::create(4096 * pages, false).ok()).collect();
            let memory = Memory { regions: regions.into_iter().map(|(_, mapping)| mapping).collect() };
            let place = peer_place(&memory, Descriptor { flags: 0, region, length, offset });
            let fits = memory
                .regions
                .get(usize::from(region))
                .is_some_and(|mapping| offset as usize + length as usize <= mapping.bytes());
            prop_assert_eq!(place.is_some(), fits);
            if let Some(place) = place {
                let first = memory.regions[usize::from(region)].address().as_ptr();
                prop_assert_eq!(place.addr() - first.addr(), offset as usize);
            }
        }
    }

    /// Both ends of a new link: of the client, and of the server.
    fn ends() -> [crate::Link; 2] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memif.sock");
        let wait = Duration::from_secs(5);
        let mut listener = crate::Listener::bind(&path, crate::ServerConfig::new("server")).unwrap();
        let client = std::thread::spawn(move || {
            crate::Client::connect(&crate::ClientConfig::new(&path, 0), wait).unwrap()
        });
        let server = listener.accept(wait).unwrap().unwrap();
        [client.join().unwrap(), server]
    }

    /// A producer publishes a packet and loses its CPU before it looks whether the consumer sleeps. The consumer takes the
    /// packet and falls asleep meanwhile. Then the next packet wakes it.
    #[test]
    fn a_consumer_that_fell_asleep_between_two_steps_of_the_producer_is_woken_by_the_next_packet() {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut links = ends();
            let [first, second] = &mut links;
            let ends = [&mut first.queues[0], &mut second.queues[0]];
            // The two steps of a flush.
            ends[from].tx.push(b"one").unwrap();
            let (own, _) = indices(&ends[from].tx.ring, &ends[from].tx.buffers);
            assert!(ends[from].tx.producer.publish(own));
            let mut taken = [0; 2048];
            assert_eq!(ends[to].rx.pop(&mut taken), Some(Ok(3)));
            assert_eq!(ends[to].rx.available(), 0);
            ends[to].rx.set_interrupts(true);
            ends[from].tx.wake_sleeper();
            // It sleeps again where it is, if that woke it.
            ends[to].rx.clear_interrupt();
            ends[from].tx.push(b"two").unwrap();
            ends[from].tx.flush();
            let mut fds = [PollFd::from_borrowed_fd(
                ends[to].rx.interrupt_fd(),
                PollFlags::IN,
            )];
            assert!(crate::socket::wait_readable(&mut fds, Some(Duration::ZERO)).unwrap());
        }
    }
}
