//! A socket of AF_XDP in copy mode, as far as the measurement needs one: rings that it shares with the kernel, and a
//! program at the interface that gives it all frames.
#![expect(
    unsafe_code,
    reason = "bpf(2), and rings in memory that the kernel writes, too"
)]

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Places of each ring; half of the frames are for each direction.
const PLACES: u32 = 2048;
const FRAME_BYTES: usize = 2048;
/// Of bpf(2).
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const FLAGS_DRV_MODE: u32 = 1 << 2;
/// Bytes of the kernel's `union bpf_attr` that are given: more than any of these commands reads.
const ATTR_WORDS: usize = 18;

fn check(result: i64) -> i32 {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result as i32
}

/// A command of bpf(2) that gives a descriptor, or nothing.
fn bpf(command: i32, attr: &[u32]) -> i32 {
    let mut all = [0_u32; 2 * ATTR_WORDS];
    all[..attr.len()].copy_from_slice(attr);
    // SAFETY: the kernel reads so many bytes, and what they point to is alive.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, all.as_ptr(), size_of_val(&all)) };
    check(result)
}

fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the kernel has just given it, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The low and the high word of an address.
fn halves<T: ?Sized>(of: *const T) -> [u32; 2] {
    let address = of.cast::<u8>() as u64;
    [address as u32, (address >> 32) as u32]
}

fn set<T>(socket: RawFd, option: i32, value: &T) {
    // SAFETY: the kernel reads so many bytes.
    let result = unsafe {
        let value = std::ptr::from_ref(value).cast();
        libc::setsockopt(socket, libc::SOL_XDP, option, value, size_of::<T>() as u32)
    };
    check(result.into());
}

/// Memory that is shared with the kernel until it is unmapped, or this process ends.
fn shared(len: usize, of: Option<(RawFd, i64)>) -> NonNull<u8> {
    let (fd, offset) = of.unwrap_or((-1, 0));
    let kind = if of.is_some() {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
    };
    // SAFETY: it replaces no mapping.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            kind | libc::MAP_POPULATE,
            fd,
            offset,
        )
    };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    NonNull::new(at.cast()).unwrap()
}

/// One of the four rings.
struct Ring {
    memory: NonNull<u8>,
    len: usize,
    offsets: libc::xdp_ring_offset,
    /// This end's own position.
    position: u32,
}

impl Ring {
    fn new(socket: RawFd, page: i64, offsets: libc::xdp_ring_offset, entry: usize) -> Ring {
        let len = offsets.desc as usize + PLACES as usize * entry;
        Ring {
            memory: shared(len, Some((socket, page))),
            len,
            offsets,
            position: 0,
        }
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: the kernel says that a word is there, aligned; it stays mapped.
        unsafe { self.memory.add(at as usize).cast().as_ref() }
    }

    /// A place for a producer, or what is at it for a consumer.
    fn place<T>(&self, number: u32) -> *mut T {
        let at = self.offsets.desc as usize + (number % PLACES) as usize * size_of::<T>();
        // SAFETY: it lies within the ring.
        unsafe { self.memory.add(at).cast().as_ptr() }
    }

    fn put<T>(&mut self, entry: T) {
        // SAFETY: the kernel does not read it before it is published.
        unsafe { self.place::<T>(self.position).write(entry) }
        self.position = self.position.wrapping_add(1);
    }

    fn publish(&self) {
        self.word(self.offsets.producer)
            .store(self.position, Ordering::Release);
    }

    fn take<T>(&mut self) -> Option<T> {
        if self.word(self.offsets.producer).load(Ordering::Acquire) == self.position {
            return None;
        }
        // SAFETY: the kernel has published it, and does not write it before it is released.
        let entry = unsafe { self.place::<T>(self.position).read() };
        self.position = self.position.wrapping_add(1);
        Some(entry)
    }

    fn release(&self) {
        self.word(self.offsets.consumer)
            .store(self.position, Ordering::Release);
    }
}

impl Drop for Ring {
    /// A socket with a mapped ring stays, also where its descriptor is closed.
    fn drop(&mut self) {
        // SAFETY: nothing refers to the ring any more.
        let _unmapped = unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len) };
    }
}

/// A socket at queue 0 of an interface. It has all frames that come there.
pub(crate) struct XdpSocket {
    /// Gone before the socket is.
    _program: [OwnedFd; 3],
    socket: OwnedFd,
    frames: NonNull<u8>,
    fill: Ring,
    completed: Ring,
    received: Ring,
    sent: Ring,
    /// Frames that are being sent.
    under_way: u32,
}

impl XdpSocket {
    /// On an interface of this thread's network.
    pub(crate) fn open(interface: &str) -> XdpSocket {
        let name = std::ffi::CString::new(interface).unwrap();
        // SAFETY: the name ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        // SAFETY: a plain call.
        let socket = owned(check(
            unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) }.into(),
        ));
        let raw = socket.as_raw_fd();
        let bytes = 2 * PLACES as usize * FRAME_BYTES;
        let frames = shared(bytes, None);
        // SAFETY: all fields of this structure are numbers.
        let mut memory: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
        memory.addr = frames.as_ptr() as u64;
        memory.len = bytes as u64;
        memory.chunk_size = FRAME_BYTES as u32;
        set(raw, libc::XDP_UMEM_REG, &memory);
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set(raw, ring, &PLACES);
        }
        // SAFETY: all fields of this structure are numbers, and the kernel writes at most its size.
        let offsets: libc::xdp_mmap_offsets = unsafe {
            let mut of: libc::xdp_mmap_offsets = std::mem::zeroed();
            let mut len = size_of_val(&of) as u32;
            let to = (&raw mut of).cast();
            check(libc::getsockopt(raw, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, to, &raw mut len).into());
            of
        };
        let address = size_of::<u64>();
        let descriptor = size_of::<libc::xdp_desc>();
        let (fill, completed) = (
            libc::XDP_UMEM_PGOFF_FILL_RING,
            libc::XDP_UMEM_PGOFF_COMPLETION_RING,
        );
        let mut of = XdpSocket {
            fill: Ring::new(raw, fill as i64, offsets.fr, address),
            completed: Ring::new(raw, completed as i64, offsets.cr, address),
            received: Ring::new(raw, libc::XDP_PGOFF_RX_RING, offsets.rx, descriptor),
            sent: Ring::new(raw, libc::XDP_PGOFF_TX_RING, offsets.tx, descriptor),
            frames,
            under_way: 0,
            _program: program(index, raw, || bind(raw, index)),
            socket,
        };
        // The second half of the frames is for what comes.
        for frame in PLACES..2 * PLACES {
            of.fill.put(u64::from(frame) * FRAME_BYTES as u64);
        }
        of.fill.publish();
        of
    }

    /// Sends copies of a frame, and waits until the kernel has taken them.
    pub(crate) fn send(&mut self, frame: &[u8], count: usize) {
        while self.under_way + count as u32 > PLACES {
            self.kick();
        }
        for _ in 0..count {
            let at = (self.sent.position % PLACES) as usize * FRAME_BYTES;
            // SAFETY: the chunk is not under way, and is as long as any frame.
            unsafe {
                std::ptr::copy_nonoverlapping(frame.as_ptr(), self.frames.add(at).as_ptr(), frame.len())
            };
            self.sent.put(libc::xdp_desc {
                addr: at as u64,
                len: frame.len() as u32,
                options: 0,
            });
        }
        self.sent.publish();
        self.under_way += count as u32;
        let until = self.sent.position;
        while self.sent.word(self.sent.offsets.consumer).load(Ordering::Acquire) != until {
            self.kick();
        }
    }

    fn kick(&mut self) {
        // SAFETY: a plain call without data.
        let result = unsafe {
            let (none, flags) = (std::ptr::null(), libc::MSG_DONTWAIT);
            libc::sendto(self.socket.as_raw_fd(), none, 0, flags, std::ptr::null(), 0)
        };
        let error = std::io::Error::last_os_error();
        let is_later = matches!(
            error.raw_os_error(),
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS)
        );
        assert!(result >= 0 || is_later, "{error}");
        while self.completed.take::<u64>().is_some() {
            self.under_way -= 1;
        }
        self.completed.release();
    }

    /// Takes at most so many frames. Gives the sum of their lengths and last bytes, and how many there were.
    pub(crate) fn take(&mut self, count: usize) -> (usize, usize) {
        let (mut sum, mut taken) = (0, 0);
        while taken < count
            && let Some(of) = self.received.take::<libc::xdp_desc>()
        {
            let len = of.len as usize;
            // SAFETY: the kernel has written a frame of that length there.
            let last = unsafe { self.frames.add(of.addr as usize + len - 1).read() };
            sum += len + usize::from(last);
            taken += 1;
            self.fill.put(of.addr & !(FRAME_BYTES as u64 - 1));
        }
        self.received.release();
        self.fill.publish();
        (sum, taken)
    }
}

fn bind(socket: RawFd, index: u32) {
    // SAFETY: all fields of this structure are numbers.
    let mut address: libc::sockaddr_xdp = unsafe { std::mem::zeroed() };
    address.sxdp_family = libc::AF_XDP as u16;
    address.sxdp_ifindex = index;
    address.sxdp_flags = libc::XDP_COPY;
    // SAFETY: the kernel reads so many bytes.
    let bound = unsafe {
        let to = (&raw const address).cast();
        libc::bind(socket, to, size_of_val(&address) as u32)
    };
    check(bound.into());
}

/// A program that gives each frame to the socket of its queue. It goes with the descriptors.
fn program(index: u32, socket: RawFd, bind: impl FnOnce()) -> [OwnedFd; 3] {
    let map = owned(bpf(MAP_CREATE, &[MAP_TYPE_XSKMAP, 4, 4, 1]));
    let [map_fd, socket] = [map.as_raw_fd() as u32, socket as u32];
    // r2 = context->rx_queue_index; r1 = the map; r3 = XDP_PASS; bpf_redirect_map; exit.
    let code: [u64; 6] = [
        0x0010_1261,
        u64::from(map_fd) << 32 | 0x1118,
        0,
        2 << 32 | 0x03b7,
        51 << 32 | 0x85,
        0x95,
    ];
    let [license, code_at] = [halves(c"GPL".as_ptr()), halves(code.as_ptr())];
    let attr = [
        PROG_TYPE_XDP,
        code.len() as u32,
        code_at[0],
        code_at[1],
        license[0],
        license[1],
    ];
    let program = owned(bpf(PROG_LOAD, &attr));
    let link = bpf(
        LINK_CREATE,
        &[program.as_raw_fd() as u32, index, ATTACH_XDP, FLAGS_DRV_MODE],
    );
    bind();
    let (key, value) = (0_u32, socket);
    let [key_at, value_at] = [halves(&raw const key), halves(&raw const value)];
    let attr = [map_fd, 0, key_at[0], key_at[1], value_at[0], value_at[1]];
    bpf(MAP_UPDATE_ELEM, &attr);
    [map, program, owned(link)]
}
