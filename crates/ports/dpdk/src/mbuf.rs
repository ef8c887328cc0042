//! One packet: an owning handle of eight bytes.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use dpdk_sys as sys;

use crate::Error;

/// A packet in DPDK's memory with one owner. Dropping it returns it to its pool. Usually contiguous
/// ([`Mbuf::is_contiguous`]); a device may return a long frame as a chain of segments.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

const _: () = assert!(size_of::<Mbuf>() == 8 && size_of::<Option<Mbuf>>() == 8);
const _: () = assert!(size_of::<Mbuf>() == size_of::<*mut sys::rte_mbuf>());

// SAFETY: an mbuf has one owner, and pools accept mbufs from any thread.
unsafe impl Send for Mbuf {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Mbuf {}

impl Mbuf {
    /// Takes ownership of a pointer from DPDK; null is `None`.
    ///
    /// # Safety
    /// The mbuf is the head of a well-formed chain and has no other owner.
    pub(crate) unsafe fn from_raw(mbuf: *mut sys::rte_mbuf) -> Option<Mbuf> {
        NonNull::new(mbuf).map(Mbuf)
    }

    #[inline(always)]
    fn head(&self) -> &sys::rte_mbuf {
        // SAFETY: the mbuf lives as long as its owner.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    fn head_mut(&mut self) -> &mut sys::rte_mbuf {
        // SAFETY: as above, and `self` is borrowed exclusively. DPDK refers to it only while the device has
        // it, and then there is no `Mbuf`.
        unsafe { self.0.as_mut() }
    }

    /// The packet's length in bytes, over all segments.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.head().pkt_len as usize
    }

    /// Whether the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the packet is a single segment: [`Mbuf::data`] is then the whole packet.
    #[inline(always)]
    pub fn is_contiguous(&self) -> bool {
        self.head().nb_segs == 1
    }

    /// Number of segments; never 0.
    #[inline(always)]
    pub fn segment_count(&self) -> u16 {
        self.head().nb_segs
    }

    /// The bytes of the first segment.
    #[inline(always)]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the mbuf is live, and `data_len` bytes from `data_off` lie in its buffer (guaranteed by
        // DPDK and kept by every change here). The memory was mapped zeroed, so it is initialised.
        unsafe { segment(self.0.as_ptr()) }
    }

    /// The mutable bytes of the first segment.
    pub fn data_mut(&mut self) -> &mut [u8] {
        let head = self.head();
        // SAFETY: as in `data`; exclusive access.
        unsafe { std::slice::from_raw_parts_mut(data_start(head), usize::from(head.data_len)) }
    }

    /// All segments in order.
    pub fn segments(&self) -> Segments<'_> {
        Segments {
            next: self.0.as_ptr(),
            left: self.head().nb_segs,
            _of: PhantomData,
        }
    }

    /// Copies the packet, all segments, to the start of `to`, truncated if too long. Returns the number of
    /// bytes.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let mut done = 0;
        for segment in self.segments() {
            let Some(room) = to.get_mut(done..) else { break };
            let count = segment.len().min(room.len());
            room[..count].copy_from_slice(&segment[..count]);
            done += count;
        }
        done
    }

    /// Whether the mbuf owns its whole buffer: not if it is attached to another's buffer, as in some cards'
    /// receive queues.
    fn owns_its_buffer(&self) -> bool {
        let head = self.head();
        head.ol_flags & sys::INCO_MBUF_SHARED_BUFFER == 0 && head.refcnt.load(Ordering::Relaxed) == 1
    }

    /// Bytes from the data's start to the end of the buffer, or of the data if the buffer is not its own.
    fn room_len(&self) -> usize {
        let head = self.head();
        if self.owns_its_buffer() {
            usize::from(head.buf_len.saturating_sub(head.data_off))
        } else {
            usize::from(head.data_len)
        }
    }

    /// The writable room of the first segment, including its data, for a new frame. Call [`Mbuf::set_len`]
    /// afterwards.
    pub fn room(&mut self) -> &mut [u8] {
        let len = self.room_len();
        // SAFETY: the range from `data_off` to `buf_len` is the mbuf's own buffer, mapped zeroed; exclusive
        // access.
        unsafe { std::slice::from_raw_parts_mut(data_start(self.head()), len) }
    }

    /// Makes the first `len` bytes of the room the packet. Clamps `len` to the room and truncates a chain to
    /// its first segment.
    pub fn set_len(&mut self, len: usize) {
        if !self.is_contiguous() {
            self.drop_further_segments();
        }
        // The room fits a u16.
        let len = len.min(self.room_len()) as u16;
        let head = self.head_mut();
        head.data_len = len;
        head.pkt_len = u32::from(len);
    }

    fn drop_further_segments(&mut self) {
        // SAFETY: the head is live. Once unlinked, the second segment is the head of the rest; a null ends a
        // chain of one. `mbuf_set_next` writes where `mbuf_next` reads.
        unsafe {
            let rest = sys::mbuf_next(self.0.as_ptr());
            sys::mbuf_set_next(self.0.as_ptr(), std::ptr::null_mut());
            sys::rte_pktmbuf_free(rest);
        }
        let head = self.head_mut();
        head.nb_segs = 1;
        head.pkt_len = u32::from(head.data_len);
    }

    /// Extends the packet by `count` bytes and returns them, with unspecified contents. `None` if the room is
    /// too small or the packet is a chain.
    pub fn append(&mut self, count: usize) -> Option<&mut [u8]> {
        let from = usize::from(self.head().data_len);
        let to = from.checked_add(count).filter(|&to| to <= self.room_len())?;
        if !self.is_contiguous() {
            return None;
        }
        self.set_len(to);
        self.room().get_mut(from..to)
    }

    /// Removes `count` bytes from the front of the first segment. False, without effect, if it is shorter.
    pub fn remove_front(&mut self, count: usize) -> bool {
        let head = self.head_mut();
        let Ok(count) = u16::try_from(count) else {
            return false;
        };
        let Some(left) = head.data_len.checked_sub(count) else {
            return false;
        };
        head.data_len = left;
        // The offset stays within the buffer: the removed data did.
        head.data_off += count;
        head.pkt_len = head.pkt_len.saturating_sub(u32::from(count));
        true
    }

    /// Prepends `count` bytes to the first segment and returns them, with unspecified contents. `None` if the
    /// headroom is too small or not this mbuf's own.
    pub fn add_front(&mut self, count: usize) -> Option<&mut [u8]> {
        if !self.owns_its_buffer() {
            return None;
        }
        let head = self.head_mut();
        let small = u16::try_from(count).ok()?;
        let offset = head.data_off.checked_sub(small)?;
        let longer = head.data_len.checked_add(small)?;
        let packet = head.pkt_len.checked_add(u32::from(small))?;
        head.data_off = offset;
        head.data_len = longer;
        head.pkt_len = packet;
        self.data_mut().get_mut(..count)
    }

    /// Linearizes a chain into its first segment.
    ///
    /// # Errors
    /// [`Error::FrameTooLarge`] if it does not fit. The mbuf is then unchanged; use [`Mbuf::copy_to`] with a
    /// large enough buffer.
    pub fn linearize(&mut self) -> Result<(), Error> {
        if self.is_contiguous() {
            return Ok(());
        }
        let (frame_bytes, room_bytes) = (self.len(), self.room_len());
        // SAFETY: a live, well-formed chain with one owner. The function changes nothing if it does not fit.
        if frame_bytes > room_bytes || unsafe { sys::rte_pktmbuf_linearize(self.0.as_ptr()) } != 0 {
            return Err(Error::FrameTooLarge {
                frame_bytes,
                room_bytes,
            });
        }
        Ok(())
    }

    /// Appends `other` as further segments. For tests, and for devices that accept chains.
    ///
    /// # Errors
    /// Returns `other` if the chain or the packet would exceed DPDK's limits.
    pub fn chain(&mut self, other: Mbuf) -> Result<(), Mbuf> {
        let segments = self.head().nb_segs.checked_add(other.head().nb_segs);
        let bytes = self.head().pkt_len.checked_add(other.head().pkt_len);
        let (Some(segments), Some(bytes)) = (segments, bytes) else {
            return Err(other);
        };
        let mut last = self.0.as_ptr();
        for _ in 1..self.head().nb_segs {
            // SAFETY: a well-formed chain has `nb_segs` live segments.
            last = unsafe { sys::mbuf_next(last) };
        }
        // SAFETY: `last` is live and the last of the chain. `other` is given up below, so each segment still
        // has one owner.
        unsafe { sys::mbuf_set_next(last, other.into_raw()) };
        let head = self.head_mut();
        head.nb_segs = segments;
        head.pkt_len = bytes;
        Ok(())
    }

    /// Frees all of them in bulk and empties the list. Beyond 2^32 the rest leaks.
    pub fn free_all(mbufs: &mut Vec<Mbuf>) {
        let (start, count) = (mbufs.as_mut_ptr(), mbufs.len());
        if count == 0 {
            return;
        }
        // SAFETY: they are no longer accessible, whatever happens below.
        unsafe { mbufs.set_len(0) };
        // SAFETY: the first `count` handles, each a pointer, are live mbufs with one owner, which has just
        // released them.
        unsafe { sys::rte_pktmbuf_free_bulk(start.cast(), u32::try_from(count).unwrap_or(u32::MAX)) };
    }

    /// Moves all mbufs to the end of `to`, in order, and empties `from`. Takes fewer instructions than
    /// `Vec::append` for a few mbufs. Does not allocate if `to` has the capacity.
    #[inline(always)]
    pub fn move_all(from: &mut Vec<Mbuf>, to: &mut Vec<Mbuf>) {
        let (count, before) = (from.len(), to.len());
        to.reserve(count);
        let (source, target) = (from.as_ptr(), to.as_mut_ptr());
        // SAFETY: they are no longer accessible in `from`, whatever happens below.
        unsafe { from.set_len(0) };
        // SAFETY: `from` held `count` handles, and `to` has room for as many after its last one; the vectors
        // are distinct.
        let move_one = |at| unsafe { target.add(before + at).write(source.add(at).read()) };
        if count == 1 {
            // The usual case with many short lists, in which a loop does not pay off.
            move_one(0);
        } else {
            (0..count).for_each(move_one);
        }
        // SAFETY: they have just been written.
        unsafe { to.set_len(before + count) };
    }

    /// Gives up ownership without freeing the mbuf.
    pub(crate) fn into_raw(self) -> *mut sys::rte_mbuf {
        let mbuf = self.0.as_ptr();
        std::mem::forget(self);
        mbuf
    }
}

/// The start of a segment's data.
#[inline(always)]
fn data_start(head: &sys::rte_mbuf) -> *mut u8 {
    // The offset lies within the buffer. `wrapping_add` needs no proof of that; the reads that follow have
    // theirs.
    head.buf_addr
        .cast::<u8>()
        .wrapping_add(usize::from(head.data_off))
}

/// The bytes of one segment.
///
/// # Safety
/// `mbuf` is live for `'a`, and neither it nor its data changes meanwhile.
#[inline(always)]
unsafe fn segment<'a>(mbuf: *const sys::rte_mbuf) -> &'a [u8] {
    // SAFETY: live by the caller's contract.
    let head = unsafe { &*mbuf };
    // SAFETY: `data_len` bytes from `data_off` lie in the segment's buffer, as DPDK guarantees.
    unsafe { std::slice::from_raw_parts(data_start(head), usize::from(head.data_len)) }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: the owner is dropped; nothing else points to it.
        unsafe { sys::rte_pktmbuf_free(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbuf")
            .field("len", &self.len())
            .field("segments", &self.head().nb_segs)
            .finish()
    }
}

/// The segments of a packet, as slices.
#[derive(Debug)]
pub struct Segments<'a> {
    next: *const sys::rte_mbuf,
    left: u16,
    _of: PhantomData<&'a Mbuf>,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 || self.next.is_null() {
            return None;
        }
        self.left -= 1;
        // SAFETY: `next` is a segment of the packet borrowed for `'a`.
        let bytes = unsafe { segment(self.next) };
        // SAFETY: as above.
        self.next = unsafe { sys::mbuf_next(self.next) };
        Some(bytes)
    }
}
