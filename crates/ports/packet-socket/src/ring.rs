//! The two rings: slots with a header whose status says whose a slot is.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use packet::offload::{Offload, VIRTIO_NET_BYTES};
use rustix::io::Errno;

use crate::positions::{Positions, RECEIVED, TO_SEND};

/// The header of a slot, `struct tpacket2_hdr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Header {
    status: u32,
    length: u32,
    kept: u32,
    mac: u16,
    net: u16,
    seconds: u32,
    nanoseconds: u32,
    vlan: u16,
    vlan_type: u16,
    padding: [u8; 4],
}

const _: () = assert!(size_of::<Header>() == size_of::<libc::tpacket2_hdr>());

/// Where what is sent begins in its slot (`TPACKET2_HDRLEN - sizeof(struct sockaddr_ll)`): first what is left to the
/// card, then the frame.
const SEND_OFFSET: usize = size_of::<Header>();
/// Bytes of a slot that are no frame, at most: header, address, and the kernel's room before the network header.
pub(crate) const FRAME_OFFSET_LIMIT: u32 = 128;
/// Room for the longest packet that is to be divided, and its Ethernet header with tags.
const LARGE_BYTES: usize = VIRTIO_NET_BYTES + (64 << 10) + 64;

/// Whose a slot of the ring for frames to send is.
const AVAILABLE: u32 = libc::TP_STATUS_AVAILABLE;
const SEND_REQUEST: u32 = libc::TP_STATUS_SEND_REQUEST;

/// Both rings, one behind the other.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    slots: u32,
    slot_bytes: u32,
}

// SAFETY: the memory is the kernel's and stays mapped as long as this exists. Statuses are read and written as atomics;
// the rest of a slot is touched only by whoever its status names.
#[expect(unsafe_code)]
unsafe impl Send for Map {}
// SAFETY: as before; a ring has one user, the `Receiver` or `Sender` of it, which takes `&mut self`.
#[expect(unsafe_code)]
unsafe impl Sync for Map {}

impl Map {
    pub(crate) fn new(file: BorrowedFd<'_>, slots: u32, slot_bytes: u32) -> io::Result<Map> {
        let bytes = 2 * slots as usize * slot_bytes as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        #[expect(unsafe_code)]
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Map {
            base,
            slots,
            slot_bytes,
        })
    }

    /// Where a slot begins: of the ring of received frames, or of those to send.
    #[inline]
    fn slot(&self, is_to_send: bool, number: u32) -> NonNull<u8> {
        let number = number & (self.slots - 1);
        let first = if is_to_send { self.slots } else { 0 };
        let offset = (first + number) as usize * self.slot_bytes as usize;
        // SAFETY: the offset is below the length of the mapping, twice the slots.
        #[expect(unsafe_code)]
        unsafe {
            self.base.add(offset)
        }
    }

    /// The status of a slot.
    #[inline]
    fn status(&self, slot: NonNull<u8>) -> &AtomicU32 {
        // SAFETY: a slot begins with its status, aligned to the slot's power of two, and the kernel writes it in one
        // store. The memory is mapped as long as `self` is.
        #[expect(unsafe_code)]
        unsafe {
            AtomicU32::from_ptr(slot.as_ptr().cast())
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let bytes = 2 * self.slots as usize * self.slot_bytes as usize;
        // SAFETY: this mapping is ours, and nothing borrows from it any more.
        #[expect(unsafe_code)]
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), bytes);
        }
    }
}

/// A VLAN tag that the kernel has taken off a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Its EtherType.
    pub ethertype: u16,
    /// Its priority and VLAN id.
    pub control: u16,
}

/// A received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// Its bytes, without its outer VLAN tag.
    pub bytes: &'a [u8],
    /// That tag.
    pub tag: Option<Tag>,
    /// What its sender left to a card. Positions are in `bytes`.
    pub offload: Offload,
}

/// What became of received frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// They were given.
    pub frames: u32,
    /// There was no room for them, or nobody knows how they are to be divided.
    pub too_large: u32,
}

/// The ring of received frames.
#[derive(Debug)]
pub struct Receiver {
    map: Arc<Map>,
    file: Arc<OwnedFd>,
    /// The next frame to take, and the first one whose slot the kernel does not have back.
    next: u32,
    held: u32,
    /// A frame that is longer than a slot.
    large: Box<[u8]>,
    /// Where the next process reads where this ring is, if there is to be one.
    positions: Option<Arc<Positions>>,
}

impl Receiver {
    pub(crate) fn new(map: Arc<Map>, file: Arc<OwnedFd>) -> Receiver {
        Receiver {
            map,
            file,
            next: 0,
            held: 0,
            large: vec![0; LARGE_BYTES].into_boxed_slice(),
            positions: None,
        }
    }

    /// Notes from now on where this ring is.
    pub(crate) fn note(&mut self, positions: &Arc<Positions>) {
        positions.set(RECEIVED, self.held);
        self.positions = Some(Arc::clone(positions));
    }

    /// Goes on where another process has left the ring. Frames that an unfinished turn had taken are given back.
    pub(crate) fn resume(&mut self, positions: &Arc<Positions>, unfinished: Option<u64>) {
        self.held = positions.at(RECEIVED);
        self.next = unfinished
            .and_then(|turn| positions.intended(RECEIVED, turn))
            .filter(|next| next.wrapping_sub(self.held) <= self.map.slots)
            .unwrap_or(self.held);
        self.positions = Some(Arc::clone(positions));
        self.release();
    }

    /// The turn has taken the frames up to here, and will give them back.
    #[inline]
    pub fn intend(&self, turn: u64) {
        if let Some(positions) = &self.positions {
            positions.intend(RECEIVED, turn, self.next);
        }
    }

    /// Whether a frame is in the ring that was not taken.
    #[inline]
    pub fn has_frames(&self) -> bool {
        self.status_of_next().is_some()
    }

    /// Frames in the ring that were not taken, at most `limit`.
    pub fn available(&self, limit: usize) -> usize {
        let left = self.map.slots - self.next.wrapping_sub(self.held);
        let slots = (0..limit.min(left as usize) as u32).map(|ahead| self.next.wrapping_add(ahead));
        slots
            .take_while(|number| {
                let slot = self.map.slot(false, *number);
                self.map.status(slot).load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0
            })
            .count()
    }

    /// The status of the next slot, where a frame is in it.
    #[inline]
    fn status_of_next(&self) -> Option<u32> {
        if self.next.wrapping_sub(self.held) >= self.map.slots {
            // The slot has a frame that was taken and is still held.
            return None;
        }
        let slot = self.map.slot(false, self.next);
        let state = self.map.status(slot).load(Ordering::Acquire);
        (state & libc::TP_STATUS_USER != 0).then_some(state)
    }

    /// Gives the frames that are in the ring to `each`, until it breaks, and at most `limit`. Their slots are held until
    /// [`Receiver::release`].
    pub fn take(&mut self, limit: usize, mut each: impl FnMut(Received<'_>) -> ControlFlow<()>) -> Taken {
        let mut taken = Taken::default();
        while ((taken.frames + taken.too_large) as usize) < limit {
            let Some(state) = self.status_of_next() else { break };
            let slot = self.map.slot(false, self.next);
            self.next = self.next.wrapping_add(1);
            // SAFETY: the status names this process, so that the kernel does not write to the slot until it is given
            // back. A header fits into every slot, and slots are aligned for it.
            #[expect(unsafe_code)]
            let header = unsafe { slot.cast::<Header>().read_volatile() };
            let (frame, kept) = if state & libc::TP_STATUS_COPY != 0 {
                match fetch(&self.file, &mut self.large) {
                    Some(len) => (self.large.get(..len).unwrap_or_default(), len),
                    None => (&[][..], 0),
                }
            } else {
                let first = usize::from(header.mac).saturating_sub(VIRTIO_NET_BYTES);
                let len = header.kept as usize + VIRTIO_NET_BYTES;
                let is_in_slot = first >= size_of::<Header>() && first + len <= self.map.slot_bytes as usize;
                let len = if is_in_slot { len } else { 0 };
                // SAFETY: these bytes are in the slot, as was just checked, and are this process's until it is given
                // back, which needs `&mut self` as this borrow does.
                #[expect(unsafe_code)]
                let bytes = unsafe { std::slice::from_raw_parts(slot.add(first).as_ptr(), len) };
                (bytes, len)
            };
            let whole = header.length as usize + VIRTIO_NET_BYTES;
            let received = frame
                .split_first_chunk()
                .filter(|_| kept == whole)
                .and_then(|(left, bytes)| {
                    Some(Received {
                        bytes,
                        tag: tag(state, &header),
                        offload: Offload::read(left)?,
                    })
                });
            let Some(received) = received else {
                taken.too_large += 1;
                continue;
            };
            taken.frames += 1;
            if each(received).is_break() {
                break;
            }
        }
        taken
    }

    /// Gives the slots of all frames that were taken back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        while self.held != self.next {
            let slot = self.map.slot(false, self.held);
            self.map
                .status(slot)
                .store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.held = self.held.wrapping_add(1);
        }
        if let Some(positions) = &self.positions {
            positions.set(RECEIVED, self.held);
        }
    }
}

/// The tag that was taken off a frame.
fn tag(state: u32, header: &Header) -> Option<Tag> {
    let has = |bit| state & bit != 0;
    has(libc::TP_STATUS_VLAN_VALID).then_some(Tag {
        ethertype: if has(libc::TP_STATUS_VLAN_TPID_VALID) {
            header.vlan_type
        } else {
            libc::ETH_P_8021Q as u16
        },
        control: header.vlan,
    })
}

/// Fetches a frame that is longer than a slot. Gives its length with what is before it.
#[cold]
fn fetch(file: &OwnedFd, into: &mut [u8]) -> Option<usize> {
    let received = rustix::net::recv(file, into, rustix::net::RecvFlags::DONTWAIT);
    received.ok().map(|(len, _)| len)
}

/// Why a frame was not put into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The kernel has not sent so many frames yet.
    Full,
    /// It is longer than the interface carries, or empty.
    TooLarge,
}

/// The ring of frames to send.
#[derive(Debug)]
pub struct Sender {
    map: Arc<Map>,
    file: Arc<OwnedFd>,
    frame_bytes: usize,
    /// The slot of the next frame.
    next: u32,
    /// The slot of the oldest frame that the kernel may still have.
    oldest: u32,
    /// The first slot that is not the kernel's yet, although there is a frame in it.
    own: u32,
    /// The kernel may not have sent all of its frames.
    is_dirty: bool,
    /// Where the next process reads where this ring is, if there is to be one.
    positions: Option<Arc<Positions>>,
}

impl Sender {
    pub(crate) fn new(map: Arc<Map>, file: Arc<OwnedFd>, frame_bytes: u32) -> Sender {
        Sender {
            map,
            file,
            frame_bytes: frame_bytes as usize,
            next: 0,
            oldest: 0,
            own: 0,
            is_dirty: false,
            positions: None,
        }
    }

    /// Notes from now on where this ring is.
    pub(crate) fn note(&mut self, positions: &Arc<Positions>) {
        positions.set(TO_SEND, self.own);
        self.positions = Some(Arc::clone(positions));
    }

    /// Goes on where another process has left the ring. What an unfinished turn was to send is sent.
    pub(crate) fn resume(&mut self, positions: &Arc<Positions>, unfinished: Option<u64>) {
        self.own = positions.at(TO_SEND);
        let slots = self.map.slots;
        self.next = unfinished
            .and_then(|turn| positions.intended(TO_SEND, turn))
            .filter(|next| next.wrapping_sub(self.own) <= slots)
            .unwrap_or(self.own);
        // It may have been about to give these to the kernel, which sends in order.
        let is_given = |number: u32| {
            let slot = self.map.slot(true, number);
            self.map.status(slot).load(Ordering::Acquire) != AVAILABLE
        };
        while self.next.wrapping_sub(self.own) < slots && is_given(self.next) {
            self.next = self.next.wrapping_add(1);
        }
        self.oldest = self.next.wrapping_sub(slots);
        self.is_dirty = true;
        self.positions = Some(Arc::clone(positions));
        // An interface that is down says so later.
        let _down = self.send();
    }

    /// The turn will send what was put in up to here.
    #[inline]
    pub fn intend(&self, turn: u64) {
        if let Some(positions) = &self.positions {
            positions.intend(TO_SEND, turn, self.next);
        }
    }

    /// Slots of the ring.
    pub fn slots(&self) -> u32 {
        self.map.slots
    }

    /// Whether the kernel has not taken all that it was to send: it was busy, or the interface is down.
    pub fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// Frames that the kernel has not sent.
    pub fn used(&mut self) -> u32 {
        while self.oldest != self.own {
            let slot = self.map.slot(true, self.oldest);
            if self.map.status(slot).load(Ordering::Acquire) != AVAILABLE {
                break;
            }
            self.oldest = self.oldest.wrapping_add(1);
        }
        self.next.wrapping_sub(self.oldest)
    }

    /// Puts a frame into the ring. It leaves with the next [`Sender::send`]. Its checksums are whole.
    ///
    /// # Errors
    /// The ring is full, or the frame is too long. It is not sent then.
    pub fn put(&mut self, frame: &[u8]) -> Result<(), SendError> {
        let Some(len) = u16::try_from(frame.len())
            .ok()
            .filter(|len| *len > 0 && usize::from(*len) <= self.frame_bytes)
        else {
            return Err(SendError::TooLarge);
        };
        let slot = self.map.slot(true, self.next);
        let is_free = self.map.status(slot).load(Ordering::Acquire) == AVAILABLE;
        if !is_free || self.next.wrapping_sub(self.own) >= self.map.slots {
            return Err(SendError::Full);
        }
        let header = Header {
            length: VIRTIO_NET_BYTES as u32 + u32::from(len),
            ..Header::default()
        };
        let mut left = [0; VIRTIO_NET_BYTES];
        if let Some(place) = left.get_mut(2..).and_then(<[u8]>::first_chunk_mut) {
            // All of it counts as headers: the kernel copies it into one piece, and needs the slot no more.
            *place = len.to_ne_bytes();
        }
        // SAFETY: an available slot is this process's. Header and frame fit into it: a slot has `frame_bytes` and
        // `FRAME_OFFSET_LIMIT` bytes at least. The status, the header's first field, stays available.
        #[expect(unsafe_code)]
        unsafe {
            slot.cast::<Header>().write_volatile(header);
            let to = slot.add(SEND_OFFSET);
            std::ptr::copy_nonoverlapping(left.as_ptr(), to.as_ptr(), VIRTIO_NET_BYTES);
            std::ptr::copy_nonoverlapping(frame.as_ptr(), to.add(VIRTIO_NET_BYTES).as_ptr(), frame.len());
        }
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Has the kernel send what is in the ring: one system call, none if nothing was put in. What a busy card did not
    /// take is tried again by the next call.
    ///
    /// # Errors
    /// The interface is down or gone.
    #[inline]
    pub fn send(&mut self) -> io::Result<()> {
        if self.own != self.next {
            while self.own != self.next {
                let slot = self.map.slot(true, self.own);
                self.map.status(slot).store(SEND_REQUEST, Ordering::Release);
                self.own = self.own.wrapping_add(1);
            }
            if let Some(positions) = &self.positions {
                positions.set(TO_SEND, self.own);
            }
            self.is_dirty = true;
        }
        if !self.is_dirty {
            return Ok(());
        }
        // Nothing is given: the frames are in the ring.
        match rustix::net::send(&*self.file, &[], rustix::net::SendFlags::DONTWAIT) {
            Ok(_) => {
                self.is_dirty = false;
                Ok(())
            }
            Err(Errno::AGAIN | Errno::NOBUFS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
