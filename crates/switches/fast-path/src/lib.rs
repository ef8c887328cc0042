//! Programs in front of packet sockets that take promoted flows over, in order: a fast path beside a worker. It writes
//! entries and reads numbers; it chooses no flow and forwards no packet itself.
//!
//! Key types: [`KernelPath`] (programs and maps), which is a [`FastPath`]. The rules are those of the crate `path-change`.
//!
//! 1. [`KernelPath::load`].
//! 2. For each interface [`FastPath::enter`] with the worker's socket.
//! 3. [`FastPath::insert`] writes a rule, which the worker opens and shuts; [`FastPath::remove`] takes it away.
//! 4. The worker reads numbers as `path_change::Watermark` asks, and sends a [`FastPath::marker`] by an interface with a way
//!    out, behind all that it has committed.
//!
//! Maps and rules go with their process. The programs at an interface stay if the process is killed: without
//! [`FastPath::attend`] they pass everything up. The next process puts its own in their place.

// UNSAFETY: references into memory that the kernel shares, and two system calls.
#![expect(unsafe_code)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::maps::{HashMap, Map, MapData};
use aya::programs::tc::{NlOptions, TcAttachOptions, TcHandle, qdisc_add_clsact, qdisc_detach_program};
use aya::programs::{SchedClassifier, SocketFilter, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use path_change::{Exit, FastError, FastPath, Way};
use shared_memory::Mapping;

/// Interfaces at most.
pub const ENTRANCES: u32 = 1040;
/// CPUs at most.
pub const CPUS: usize = 128;
/// Flows at most, each in one direction.
pub const PASSAGES: u32 = 16384;
/// Into the network namespace of the interface's other end.
const TO_PEER: u32 = 1;
/// Packets of another neighbour are passed up.
const IS_KNOWN: u32 = 2;
/// `MEMBARRIER_CMD_GLOBAL`: returns when each CPU has been through with what it did in the kernel.
const BARRIER_GLOBAL: libc::c_long = 1;
/// The programs of tc, and at which side of an interface they are; the second one at a way out only.
const PROGRAMS: [(&str, TcAttachType); 2] = [
    ("inco_path", TcAttachType::Ingress),
    ("inco_marker", TcAttachType::Egress),
];

/// What is shared of an interface. The program counts, a marker says what is done.
#[repr(C)]
struct Entrance {
    passed: AtomicU64,
    done: AtomicU64,
    unread: AtomicU64,
    zero: [u64; 5],
    begun: [AtomicU64; CPUS],
    placed: [AtomicU64; CPUS],
}

/// What is shared of a flow in one direction.
#[repr(C)]
struct Passage {
    is_on: AtomicU64,
    floor: AtomicU64,
    last: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
    ifindex: AtomicU32,
    how: AtomicU32,
    macs: [AtomicU8; 12],
    from: [AtomicU8; 6],
    vlan: AtomicU16,
    zero: [u8; 60],
}

const _: () = assert!(size_of::<Passage>() == 128 && size_of::<Entrance>() == 64 + 16 * CPUS);

/// What holds for all of them.
#[repr(C)]
struct Settings {
    until: AtomicU64,
    secret: [AtomicU64; 2],
    missed: AtomicU64,
}

/// A flow in one direction, as the programs find it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    entrance: u32,
    vlan: u16,
    protocol: u8,
    version: u8,
    src: [u8; 16],
    dst: [u8; 16],
    ports: [[u8; 2]; 2],
}

const _: () = assert!(size_of::<Key>() == 44);

// SAFETY: it has no padding, and every pattern of bits is one.
unsafe impl aya::Pod for Key {}

impl Key {
    fn of(way: &Way) -> Key {
        let bytes = |of: IpAddr| {
            let mut all = [0; 16];
            match of {
                IpAddr::V4(v4) => all[..4].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => all = v6.octets(),
            }
            all
        };
        Key {
            entrance: way.entrance,
            vlan: way.vlan,
            protocol: way.protocol,
            version: if way.src.is_ipv4() { 4 } else { 6 },
            src: bytes(way.src),
            dst: bytes(way.dst),
            ports: way.ports.map(u16::to_be_bytes),
        }
    }
}

fn wrong<E: std::error::Error>(what: impl Into<String>) -> impl FnOnce(E) -> FastError {
    let what = what.into();
    move |error| {
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(of) = source {
            reason = format!("{reason}: {of}");
            source = of.source();
        }
        FastError { what, reason }
    }
}

fn missing(what: &str) -> FastError {
    FastError {
        what: what.to_owned(),
        reason: "the programs have none".to_owned(),
    }
}

/// Programs and maps in the kernel.
pub struct KernelPath {
    entrances: Mapping,
    passages: Mapping,
    settings: Mapping,
    cpus: usize,
    writing: Mutex<Writing>,
    flows: Mutex<HashMap<MapData, Key, u32>>,
}

/// What attaches programs.
struct Writing {
    ebpf: Ebpf,
    interfaces: HashMap<MapData, u32, u32>,
    /// Interfaces with programs, and whether they have a way out.
    attached: BTreeMap<String, bool>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KernelPath {
    /// Loads the programs.
    ///
    /// # Errors
    /// The kernel refuses them, the caller may not, or there are more CPUs than [`CPUS`].
    pub fn load() -> Result<KernelPath, FastError> {
        // SAFETY: it takes and gives numbers.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        let cpus = usize::try_from(cpus).unwrap_or(usize::MAX);
        if cpus > CPUS {
            return Err(FastError {
                what: "counting CPUs".to_owned(),
                reason: format!("there are {cpus}, and it is made for {CPUS}"),
            });
        }
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/path.o"));
        let mut ebpf = EbpfLoader::new()
            .btf(None)
            .load(object)
            .map_err(wrong("loading"))?;
        let ring: &mut SocketFilter = program(&mut ebpf, "inco_ring")?;
        ring.load().map_err(wrong("loading the filter"))?;
        for (name, _) in PROGRAMS {
            let classifier: &mut SchedClassifier = program(&mut ebpf, name)?;
            classifier.load().map_err(wrong("loading a program of tc"))?;
        }
        let mut map = |name: &'static str| ebpf.take_map(name).ok_or_else(|| missing(name));
        let mapped = |map: Map, bytes: usize| {
            let Map::Array(data) = map else {
                return Err(missing("array"));
            };
            let bytes = bytes.next_multiple_of(shared_memory::PAGE);
            Mapping::new(data.fd().as_fd(), bytes, false).map_err(wrong("mapping"))
        };
        let entrances = mapped(map("entrances")?, size_of::<Entrance>() * ENTRANCES as usize)?;
        let passages = mapped(map("passages")?, size_of::<Passage>() * PASSAGES as usize)?;
        let settings = mapped(map("settings")?, size_of::<Settings>())?;
        let flows = HashMap::try_from(map("flows")?).map_err(wrong("the map of flows"))?;
        let interfaces = HashMap::try_from(map("interfaces")?).map_err(wrong("the map of interfaces"))?;
        let path = KernelPath {
            entrances,
            passages,
            settings,
            cpus,
            flows: Mutex::new(flows),
            writing: Mutex::new(Writing {
                ebpf,
                interfaces,
                attached: BTreeMap::new(),
            }),
        };
        for word in &path.settings().secret {
            let mut random = [0; 8];
            let flags = rustix::rand::GetRandomFlags::empty();
            rustix::rand::getrandom(&mut random, flags).map_err(wrong("drawing a secret"))?;
            word.store(u64::from_ne_bytes(random), Ordering::SeqCst);
        }
        Ok(path)
    }

    fn entrance(&self, number: u32) -> Option<&Entrance> {
        // SAFETY: the mapping has that many, and every pattern of bits is one.
        (number < ENTRANCES).then(|| unsafe {
            self.entrances
                .address()
                .cast::<Entrance>()
                .add(number as usize)
                .as_ref()
        })
    }

    fn passage(&self, number: u32) -> Option<&Passage> {
        // SAFETY: the mapping has that many, and every pattern of bits is one.
        (number < PASSAGES).then(|| unsafe {
            self.passages
                .address()
                .cast::<Passage>()
                .add(number as usize)
                .as_ref()
        })
    }

    fn settings(&self) -> &Settings {
        // SAFETY: the mapping is a page, and every pattern of bits is one.
        unsafe { self.settings.address().cast::<Settings>().as_ref() }
    }
}

impl FastPath for KernelPath {
    fn entrances(&self) -> u32 {
        ENTRANCES
    }

    fn passages(&self) -> u32 {
        PASSAGES
    }

    fn enter(
        &self,
        interface: &str,
        number: u32,
        socket: BorrowedFd<'_>,
        is_way_out: bool,
    ) -> Result<u32, FastError> {
        let at = |what: &str| format!("{what} at {interface}");
        let entrance = self.entrance(number).ok_or_else(|| missing("entrance"))?;
        let ifindex = rustix::net::netdevice::name_to_index(socket, interface)
            .map_err(wrong(at("finding the interface")))?;
        let mut writing = lock(&self.writing);
        // Nothing comes by this number yet: what another interface had under it is over.
        for (placed, begun) in entrance.placed.iter().zip(&entrance.begun) {
            placed.store(begun.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        // What is in the ring by now has no number. It is done with the first one that has.
        entrance.passed.fetch_add(1, Ordering::SeqCst);
        let gone = writing.interfaces.iter().filter_map(Result::ok);
        let gone: Vec<u32> = gone.filter(|(_, of)| *of == number).map(|(at, _)| at).collect();
        for before in gone {
            let _gone = writing.interfaces.remove(&before);
        }
        writing
            .interfaces
            .insert(ifindex, number, 0)
            .map_err(wrong("the map of interfaces"))?;
        if is_way_out {
            // Else frames of the worker would leave past the queue in which the fast path's may wait, and past markers.
            pass_queues(socket).map_err(wrong(at("sending by the queue")))?;
        }
        // The program behind the filter is there first.
        writing.attach(interface, is_way_out)?;
        writing.attached.insert(interface.to_owned(), is_way_out);
        let ring: &mut SocketFilter = program(&mut writing.ebpf, "inco_ring")?;
        ring.attach(socket).map_err(wrong(at("attaching the filter")))?;
        Ok(ifindex)
    }

    fn insert(&self, index: u32, way: &Way, exit: &Exit) -> Result<(), FastError> {
        let passage = self.passage(index).ok_or_else(|| missing("passage"))?;
        passage.is_on.store(0, Ordering::SeqCst);
        passage.floor.store(u64::MAX, Ordering::SeqCst);
        passage.last.store(0, Ordering::SeqCst);
        passage.ifindex.store(exit.ifindex, Ordering::Relaxed);
        let how = (u32::from(exit.to_peer) * TO_PEER) | (u32::from(exit.from.is_some()) * IS_KNOWN);
        passage.how.store(how, Ordering::Relaxed);
        passage.vlan.store(exit.vlan, Ordering::Relaxed);
        for (place, byte) in passage.macs.iter().zip(exit.macs.as_flattened()) {
            place.store(*byte, Ordering::Relaxed);
        }
        for (place, byte) in passage.from.iter().zip(exit.from.unwrap_or_default()) {
            place.store(byte, Ordering::Relaxed);
        }
        lock(&self.flows)
            .insert(Key::of(way), index, 0)
            .map_err(wrong("the map of flows"))
    }

    fn remove(&self, way: &Way) -> Result<(), FastError> {
        lock(&self.flows)
            .remove(&Key::of(way))
            .map_err(wrong("the map of flows"))
    }

    fn settle(&self) {
        // SAFETY: it takes numbers.
        let _always_there = unsafe { libc::syscall(libc::SYS_membarrier, BARRIER_GLOBAL, 0, 0) };
    }

    fn attend(&self, until_ns: u64) {
        self.settings().until.store(until_ns, Ordering::SeqCst);
    }

    fn repair(&self) -> Result<bool, FastError> {
        let missed = &self.settings().missed;
        if missed.load(Ordering::SeqCst) == 0 {
            return Ok(false);
        }
        let mut writing = lock(&self.writing);
        let attached = writing.attached.clone();
        for (interface, is_way_out) in attached {
            if let Err(error) = writing.attach(&interface, is_way_out) {
                // One that is gone needs none.
                if std::path::Path::new("/sys/class/net").join(&interface).exists() {
                    return Err(error);
                }
                writing.attached.remove(&interface);
            }
        }
        missed.store(0, Ordering::SeqCst);
        Ok(true)
    }

    fn open(&self, passage: u32, entrance: u32) {
        let (Some(passage), Some(entrance)) = (self.passage(passage), self.entrance(entrance)) else {
            return;
        };
        // The entry is there by now: a packet that is numbered later is looked up later.
        let passed = entrance.passed.load(Ordering::SeqCst);
        passage.floor.store(passed, Ordering::SeqCst);
        passage.is_on.store(1, Ordering::SeqCst);
    }

    fn shut(&self, passage: u32) {
        if let Some(passage) = self.passage(passage) {
            passage.is_on.store(0, Ordering::SeqCst);
        }
    }

    fn counted(&self, passage: u32) -> (u64, u64) {
        self.passage(passage).map_or((0, 0), |of| {
            (
                of.packets.load(Ordering::Relaxed),
                of.bytes.load(Ordering::Relaxed),
            )
        })
    }

    fn cpus(&self) -> usize {
        self.cpus
    }

    fn passed(&self, entrance: u32) -> u64 {
        self.entrance(entrance)
            .map_or(0, |of| of.passed.load(Ordering::SeqCst))
    }

    fn begun(&self, entrance: u32, cpu: usize) -> u64 {
        let of = self.entrance(entrance).and_then(|of| of.begun.get(cpu));
        of.map_or(0, |of| of.load(Ordering::SeqCst))
    }

    fn placed(&self, entrance: u32, cpu: usize) -> u64 {
        let of = self.entrance(entrance).and_then(|of| of.placed.get(cpu));
        of.map_or(0, |of| of.load(Ordering::SeqCst))
    }

    fn marker(&self, entrance: u32, number: u64) -> [u8; 60] {
        let mut frame = [0; 60];
        let [first, second] = &self.settings().secret;
        // An EtherType for local experiments.
        frame[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
        frame[14..22].copy_from_slice(&first.load(Ordering::Relaxed).to_ne_bytes());
        frame[22..30].copy_from_slice(&second.load(Ordering::Relaxed).to_ne_bytes());
        frame[30..38].copy_from_slice(&number.to_ne_bytes());
        frame[38..42].copy_from_slice(&entrance.to_ne_bytes());
        frame
    }
}

/// Has frames of a packet socket go through the queue of their interface.
fn pass_queues(socket: BorrowedFd<'_>) -> std::io::Result<()> {
    let off: libc::c_int = 0;
    // SAFETY: the kernel reads a number of that length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            (&raw const off).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Removes the programs that a process has left at an interface.
pub fn leave(interface: &str) {
    for (name, side) in PROGRAMS {
        // There may be none.
        let _none = qdisc_detach_program(interface, side, name);
    }
}

fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, FastError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program>,
{
    let found = ebpf.program_mut(name).ok_or_else(|| missing(name))?;
    found.try_into().map_err(|_| missing(name))
}

impl Writing {
    /// In the place of those of an earlier process.
    fn attach(&mut self, interface: &str, is_way_out: bool) -> Result<(), FastError> {
        // An error says that it is there, or that the interface is not, which shows below.
        let _ = qdisc_add_clsact(interface);
        leave(interface);
        let sides = if is_way_out { &PROGRAMS[..] } else { &PROGRAMS[..1] };
        for (name, side) in sides {
            let classifier: &mut SchedClassifier = program(&mut self.ebpf, name)?;
            let options = NlOptions {
                priority: 1,
                handle: TcHandle::new(0, 1),
                classid: Some(TcHandle::new(0, 1)),
            };
            let refused = || format!("attaching a program of tc at {interface}");
            let link = classifier
                .attach_with_options(interface, *side, TcAttachOptions::Netlink(options))
                .map_err(wrong(refused()))?;
            // It is detached by its name, also where the interface is gone or another process has attached it.
            std::mem::forget(classifier.take_link(link).map_err(wrong(refused()))?);
        }
        Ok(())
    }
}

impl Drop for KernelPath {
    fn drop(&mut self) {
        for interface in lock(&self.writing).attached.keys() {
            leave(interface);
        }
    }
}
