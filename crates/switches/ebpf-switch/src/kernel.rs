//! The programs and maps in the kernel: loaded, pinned, attached, taken over from an earlier run, removed.
//!
//! What an earlier run left behind goes on working. A new run maps the same memory, loads its own programs over the
//! same maps and puts them in the place of the old ones, one attachment at a time: the kernel exchanges a program
//! between two packets.

// UNSAFETY: references into memory that the kernel shares.
#![expect(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{HashMap, Map, MapData, RingBuf};
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle, qdisc_add_clsact};
use aya::programs::{ProgramError, ProgramFd, RawTracePoint, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use shared_memory::Mapping;

use crate::back_ends::Known;
use crate::bpf::{self, FS};
use crate::error::{EbpfError, chain, check_kernel};
use crate::events::Ring;
use crate::layout::{Counts, FLOW_BYTES, KEY_BYTES, OWN_ROWS, SPARE_PLACES, World};
use crate::release::{Before, Release};
use crate::signals::Signals;
use crate::takeover::TakeOver;

/// The place of our filter among those of an interface: the first one, always the same, so that the next run finds it.
const PRIORITY: u16 = 1;
const HANDLE: TcHandle = TcHandle::new(0, 1);
/// How often the kernel is asked to load a program that it gave up on.
const LOAD_TRIES: u32 = 8;
/// The pinned maps.
pub(crate) const MAPS: [&str; 13] = [
    "world",
    "counts",
    "flows_v4",
    "flows_v6",
    "order_v4",
    "order_v6",
    "shared_pins",
    "neighbours",
    "addresses",
    "back_ends",
    "fragments",
    "own_fragments",
    "events",
];

/// One of the two programs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    /// At an uplink.
    Uplink,
    /// At the host's end of an instance's pair.
    Instance,
}

impl Program {
    const fn name(self) -> &'static str {
        match self {
            Program::Uplink => "inco_uplink",
            Program::Instance => "inco_instance",
        }
    }
}

/// The tables, sized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Entries of the flow tables, IPv4 and IPv6.
    pub(crate) flows: [u32; 2],
    /// Entries of the table of what flows share that share an instance.
    pub(crate) shared_pins: u32,
}

/// Memory shared with the programs.
pub(crate) struct Shared {
    world: Mapping,
    counts: Mapping,
    cpus: usize,
    flows: [MapData; 2],
    sweep: ProgramFd,
}

impl Shared {
    /// What inco writes.
    pub(crate) fn world(&self) -> &World {
        world_in(&self.world)
    }

    /// What each CPU counts, then what the sweep does, and last what inco itself does.
    pub(crate) fn counts(&self) -> &[Counts] {
        let rows = self.cpus + OWN_ROWS;
        // SAFETY: the mapping has room for that many `Counts`; else as in `world_in`.
        unsafe { slice::from_raw_parts(self.counts.address().cast::<Counts>().as_ptr(), rows) }
    }

    /// What each CPU counts.
    pub(crate) fn cpus(&self) -> &[Counts] {
        &self.counts()[..self.cpus]
    }

    /// What inco itself counts, in addition to the CPUs.
    pub(crate) fn own_counts(&self) -> &Counts {
        &self.counts()[self.cpus + 1]
    }

    /// The same, word by word.
    pub(crate) fn own_words(&self) -> &[AtomicU64] {
        // SAFETY: a `Counts` is made of words that are atomics, and of words that only programs touch, in their rows.
        unsafe { slice::from_raw_parts((&raw const *self.own_counts()).cast(), size_of::<Counts>() / 8) }
    }

    /// Looks at each flow once, and removes those that are over. Each step of that keeps its CPU for some tenths of a
    /// millisecond.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        let orders = &self.world().order;
        let ends = orders.each_ref().map(|of| of.head.load(Ordering::Acquire));
        let tails = || orders.each_ref().map(|of| of.tail.load(Ordering::Acquire));
        let mut before = tails();
        loop {
            bpf::run(self.sweep.as_fd())?;
            let now = tails();
            // Where nothing moves, somebody else walks, or a CPU is just about to write a place.
            let is_over = now.iter().zip(ends).all(|(tail, end)| *tail >= end);
            if is_over || now == before {
                return Ok(());
            }
            before = now;
        }
    }

    /// How many flow tables there are.
    pub(crate) const fn tables(&self) -> usize {
        self.flows.len()
    }

    /// A flow table: IPv4 or IPv6.
    pub(crate) fn table(&self, family: usize) -> &MapData {
        &self.flows[family & 1]
    }
}

/// What is in the kernel.
pub(crate) struct Kernel {
    ebpf: Ebpf,
    name: String,
    addresses: HashMap<MapData, [u8; 16], u32>,
    back_ends: Option<Known>,
    signals: Option<Signals>,
}

/// What is loaded.
pub(crate) struct Loaded {
    pub(crate) kernel: Kernel,
    pub(crate) shared: Shared,
    /// What the programs tell at once.
    pub(crate) events: Ring,
    pub(crate) found: Found,
    /// Where flows of the layout before are taken over: what is left to do when programs have been exchanged.
    pub(crate) take_over: Option<TakeOver>,
}

impl Kernel {
    /// Loads the programs, over the maps of an earlier run if there are some that fit. Gives, too, what is shared with
    /// the programs, and whether it is of an earlier run.
    ///
    /// # Errors
    /// The kernel is too old or refuses.
    pub(crate) fn load(name: &str, sizes: Sizes, release: &Release) -> Result<Loaded, EbpfError> {
        check_kernel()?;
        let file_system = |source| EbpfError::FileSystem {
            place: PathBuf::from(FS),
            source,
        };
        bpf::mount_fs().map_err(file_system)?;
        let (pins, next) = (pins_of(name), next_of(name));
        let cpus = aya::util::nr_cpus().map_err(|(_, source)| system("counting CPUs", source))?;
        let mut found = look(&pins, cpus, release);
        if let Found::Unusable(_) = &found {
            remove_pins(&pins).map_err(file_system)?;
        }
        // One that was killed in a take-over has left both sets, and the older programs pick as the newer ones do.
        let goes_on = matches!(found, Found::Older(_)) && matches!(head_of(&pins), Ok([_, 1]));
        if !(goes_on && layout_of(&next) == Ok(release.layout)) {
            remove_all_pins(&next).map_err(file_system)?;
        }
        let place = if matches!(found, Found::Older(_)) {
            &next
        } else {
            &pins
        };
        fs::create_dir_all(place).map_err(file_system)?;
        renew(place, "shared_pins", sizes.shared_pins).map_err(file_system)?;
        let places = sizes.flows.map(|flows| flows.saturating_add(2 * SPARE_PLACES));
        let mut loader = EbpfLoader::new();
        loader
            .btf(None)
            .map_max_entries("counts", (cpus + OWN_ROWS) as u32)
            .map_max_entries("flows_v4", sizes.flows[0])
            .map_max_entries("flows_v6", sizes.flows[1])
            .map_max_entries("shared_pins", sizes.shared_pins)
            .map_max_entries("order_v4", places[0])
            .map_max_entries("order_v6", places[1]);
        for map in MAPS {
            loader.map_pin_path(map, place.join(map));
        }
        let refused = |error: &dyn std::error::Error| EbpfError::Load { reason: chain(error) };
        let mut ebpf = loader.load(release.object).map_err(|error| refused(&error))?;
        for program in [Program::Uplink, Program::Instance] {
            let program = classifier(&mut ebpf, program)?;
            load(|| program.load()).map_err(|error| refused(&error))?;
        }
        let sweep = sweeper(&mut ebpf).map_err(|error| refused(&error))?;
        let mut take = |name: &str| match ebpf.take_map(name) {
            Some(Map::Array(data) | Map::HashMap(data) | Map::LruHashMap(data) | Map::RingBuf(data)) => {
                Ok(data)
            }
            _ => Err(EbpfError::Load {
                reason: format!("no map {name}"),
            }),
        };
        let (world, counts) = (take("world")?, take("counts")?);
        let (flows, addresses) = ([take("flows_v4")?, take("flows_v6")?], take("addresses")?);
        let events = RingBuf::try_from(Map::RingBuf(take("events")?)).map_err(|error| refused(&error))?;
        let map = |data: &MapData, bytes: usize| {
            Mapping::new(
                data.fd().as_fd(),
                bytes.next_multiple_of(shared_memory::PAGE),
                false,
            )
            .map_err(|error| system("mapping what the programs share", error.into()))
        };
        let shared = Shared {
            world: map(&world, size_of::<World>())?,
            counts: map(&counts, size_of::<Counts>() * (cpus + OWN_ROWS))?,
            cpus,
            flows,
            sweep,
        };
        let settings = &shared.world().settings;
        let mut take_over = None;
        if settings.layout.load(Ordering::Acquire) != release.layout {
            if matches!(found, Found::Taken) {
                // The pins vanished between the look and now.
                found = Found::Nothing;
            }
            for (order, places) in shared.world().order.iter().zip(places) {
                order.places.store(places, Ordering::Relaxed);
            }
            settings.sweep_row.store(cpus as u32, Ordering::Relaxed);
        }
        if let Found::Older(before) = &found {
            let begun = TakeOver::begin(*before, pins, next, &shared);
            take_over = Some(begun.map_err(|error| system("copying flows of the layout before", error))?);
        }
        settings.layout.store(release.layout, Ordering::Release);
        let addresses = HashMap::try_from(Map::HashMap(addresses)).map_err(|error| refused(&error))?;
        let back_ends = ebpf.take_map("back_ends");
        let back_ends = back_ends.and_then(|map| HashMap::try_from(map).ok());
        let signals = Signals::of(&mut ebpf);
        Ok(Loaded {
            kernel: Kernel {
                ebpf,
                name: name.to_owned(),
                addresses,
                back_ends,
                signals,
            },
            shared,
            events,
            found,
            take_over,
        })
    }

    /// A map that is not pinned, for the one who fills or reads it.
    pub(crate) fn take_map(&mut self, name: &str) -> Option<Map> {
        self.ebpf.take_map(name)
    }

    /// Signals of instances, for the one who reads them.
    pub(crate) fn take_signals(&mut self) -> Option<Signals> {
        self.signals.take()
    }

    /// Where others run instances, for the one who writes it.
    pub(crate) fn take_back_ends(&mut self) -> Option<Known> {
        self.back_ends.take()
    }

    /// Attaches a program to an interface, in the place of an older one of ours. `number`: which uplink or slot it is
    /// there.
    ///
    /// # Errors
    /// The interface is not there, or has another filter in our place.
    pub(crate) fn attach(&mut self, program: Program, interface: &str, number: u16) -> Result<(), EbpfError> {
        let wrong = |error: &dyn std::error::Error| EbpfError::Attach {
            interface: interface.to_owned(),
            reason: chain(error),
        };
        // An error says that it is there, or that the interface is not, which shows below.
        let _ = qdisc_add_clsact(interface);
        let classid = Some(TcHandle::new(0, number + 1));
        let loaded = classifier(&mut self.ebpf, program)?;
        let place =
            SchedClassifierLink::attached(interface, TcAttachType::Ingress, PRIORITY, HANDLE, classid)
                .map_err(|error| wrong(&error))?;
        let options = NlOptions {
            priority: PRIORITY,
            handle: HANDLE,
            classid,
        };
        let link = match loaded.attach_to_link(place) {
            Ok(link) => link,
            Err(_) => loaded
                .attach_with_options(
                    interface,
                    TcAttachType::Ingress,
                    TcAttachOptions::Netlink(options),
                )
                .map_err(|error| wrong(&error))?,
        };
        let link = loaded.take_link(link).map_err(|error| wrong(&error))?;
        // It stays when inco ends.
        std::mem::forget(link);
        Ok(())
    }

    /// Takes our program off an interface.
    pub(crate) fn detach(interface: &str) {
        let place = SchedClassifierLink::attached(interface, TcAttachType::Ingress, PRIORITY, HANDLE, None);
        if let Ok(link) = place {
            // Dropping it detaches; an error says that there is none.
            drop(link);
        }
    }

    /// Answers for these addresses, each on the uplinks whose bits are set, and for no others.
    ///
    /// # Errors
    /// There are more than the map takes.
    pub(crate) fn answer_for(&mut self, wanted: &[([u8; 16], u32)]) -> Result<(), EbpfError> {
        let refused = |error: aya::maps::MapError| EbpfError::Load {
            reason: chain(&error),
        };
        let known: Vec<[u8; 16]> = self.addresses.keys().flatten().collect();
        for address in known {
            if !wanted.iter().any(|(one, _)| *one == address) {
                self.addresses.remove(&address).map_err(refused)?;
            }
        }
        for (address, uplinks) in wanted {
            self.addresses.insert(address, uplinks, 0).map_err(refused)?;
        }
        Ok(())
    }

    /// Removes what is pinned. Programs end with their last attachment.
    pub(crate) fn remove(&self) {
        remove(&self.name);
    }
}

/// What a run has pinned that is over.
pub(crate) struct Leftovers {
    name: String,
    /// Its uplinks, as far as its maps can be read.
    pub(crate) uplinks: Vec<u32>,
}

impl Leftovers {
    /// [`None`] where there is nothing.
    pub(crate) fn of(name: &str) -> Option<Leftovers> {
        let pins = pins_of(name);
        if !pins.is_dir() {
            return None;
        }
        let uplinks = pinned_world(&pins).map_or_else(
            |_| Vec::new(),
            |mapping| {
                let uplinks = world_in(&mapping).uplinks.iter();
                let indexes = uplinks.map(|of| of.ifindex.load(Ordering::Relaxed));
                indexes.filter(|index| *index != 0).collect()
            },
        );
        let name = name.to_owned();
        Some(Leftovers { name, uplinks })
    }

    /// Removes it.
    pub(crate) fn remove(&self) {
        remove(&self.name);
    }
}

fn remove(name: &str) {
    for pins in [pins_of(name), next_of(name)] {
        if let Err(error) = remove_all_pins(&pins) {
            tracing::warn!(%error, pins = %pins.display(), "what is pinned in the kernel stays");
        }
    }
}

/// Maps the world of an earlier run, if it has the size of ours.
fn pinned_world(pins: &Path) -> Result<Mapping, String> {
    let data = MapData::from_pin(pins.join("world")).map_err(|error| chain(&error))?;
    let info = data.info().map_err(|error| chain(&error))?;
    if info.value_size() as usize != size_of::<World>() {
        return Err("the map world of an earlier run has another layout".to_owned());
    }
    let bytes = size_of::<World>().next_multiple_of(shared_memory::PAGE);
    Mapping::new(data.fd().as_fd(), bytes, false).map_err(|error| error.to_string())
}

/// The world in a mapping of its size.
fn world_in(mapping: &Mapping) -> &World {
    // SAFETY: the mapping has the size of a `World`, is aligned to a page, and every pattern of bits is a `World`,
    // whose fields are atomics or never written.
    unsafe { mapping.address().cast::<World>().as_ref() }
}

/// What was found of an earlier run.
#[derive(Debug)]
pub(crate) enum Found {
    Nothing,
    Taken,
    /// Maps of the layout before, which are converted.
    Older(Before),
    /// Why it cannot be used.
    Unusable(String),
}

/// Has a map made anew that has another size in an earlier run, and of which flows do not depend.
fn renew(pins: &Path, map: &str, entries: u32) -> io::Result<()> {
    let pin = pins.join(map);
    let known = MapData::from_pin(&pin).and_then(|data| data.info());
    match known {
        Ok(info) if info.max_entries() != entries => fs::remove_file(pin),
        _ => Ok(()),
    }
}

/// Looks at the maps of an earlier run.
fn look(pins: &Path, cpus: usize, release: &Release) -> Found {
    let pinned: Vec<_> = MAPS.iter().filter(|map| pins.join(map).exists()).collect();
    if pinned.is_empty() {
        return Found::Nothing;
    }
    let layout = layout_of(pins);
    let before = release.before.filter(|before| layout == Ok(before.layout));
    if let Some(before) = before
        && pinned.len() == MAPS.len()
    {
        return Found::Older(before);
    }
    let size = |name: &str| {
        let info = MapData::from_pin(pins.join(name)).and_then(|data| data.info());
        info.map(|info| {
            (
                info.key_size() as usize,
                info.value_size() as usize,
                info.max_entries() as usize,
            )
        })
        .map_err(|error| format!("the map {name} of an earlier run: {}", chain(&error)))
    };
    let fits = || -> Result<(), String> {
        let other = |name: &str| format!("the map {name} of an earlier run has another size");
        let layout = layout?;
        if layout != release.layout {
            let reads = release.reads();
            return Err(format!(
                "the maps of an earlier run have layout {layout}, and this inco reads {reads}"
            ));
        }
        let (_, world, _) = size("world")?;
        let (_, counts, rows) = size("counts")?;
        if world != size_of::<World>() || counts != size_of::<Counts>() || rows != cpus + OWN_ROWS {
            return Err(other("world"));
        }
        for (name, key) in ["flows_v4", "flows_v6"].into_iter().zip(KEY_BYTES) {
            let (key_is, value, _) = size(name)?;
            if key_is != key || value != FLOW_BYTES {
                return Err(other(name));
            }
        }
        Ok(())
    };
    match fits() {
        Ok(()) => Found::Taken,
        Err(reason) => Found::Unusable(reason),
    }
}

/// Where the maps of that name are pinned.
pub(crate) fn pins_of(name: &str) -> PathBuf {
    Path::new(FS).join("inco").join(name)
}

/// Where new maps are pinned while they are filled from those of the layout before.
fn next_of(name: &str) -> PathBuf {
    Path::new(FS).join("inco-next").join(name)
}

/// The first words of a world, which have their place in every layout: its number, and whether flows are picked by
/// their hash.
fn with_head<T>(world: &MapData, look: impl FnOnce(&[AtomicU64; 2]) -> T) -> Result<T, String> {
    let mapping =
        Mapping::new(world.fd().as_fd(), shared_memory::PAGE, false).map_err(|error| error.to_string())?;
    // SAFETY: the mapping is a page, and every pattern of bits is a word.
    Ok(look(unsafe { mapping.address().cast().as_ref() }))
}

fn head_of(pins: &Path) -> Result<[u64; 2], String> {
    let world = MapData::from_pin(pins.join("world")).map_err(|error| chain(&error))?;
    with_head(&world, |head| {
        head.each_ref().map(|word| word.load(Ordering::Acquire))
    })
}

/// The layout of the maps that are pinned there.
fn layout_of(pins: &Path) -> Result<u64, String> {
    Ok(head_of(pins)?[0])
}

/// Has programs of any layout pick by hash: those of another one do as well.
pub(crate) fn set_by_hash(world: &MapData) -> io::Result<()> {
    with_head(world, |[_, by_hash]| by_hash.store(1, Ordering::Release)).map_err(io::Error::other)
}

/// Removes what is pinned there, and the directory.
fn remove_all_pins(pins: &Path) -> io::Result<()> {
    remove_pins(pins)?;
    match fs::remove_dir(pins) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn remove_pins(pins: &Path) -> io::Result<()> {
    for map in MAPS {
        match fs::remove_file(pins.join(map)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Loads a program. The kernel gives up where it is to look at a signal meanwhile, also at one that means nothing here.
fn load(mut attempt: impl FnMut() -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    for _ in 1..LOAD_TRIES {
        match attempt() {
            Err(ProgramError::LoadError { io_error, .. }) if io_error.kind() == io::ErrorKind::WouldBlock => {
            }
            result => return result,
        }
    }
    attempt()
}

/// Loads the program that walks over the flow tables.
fn sweeper(ebpf: &mut Ebpf) -> Result<ProgramFd, ProgramError> {
    let missing = || ProgramError::IOError(io::Error::from(io::ErrorKind::NotFound));
    let program: &mut RawTracePoint = ebpf.program_mut("inco_sweep").ok_or_else(missing)?.try_into()?;
    load(|| program.load())?;
    program.fd()?.try_clone().map_err(ProgramError::IOError)
}

fn classifier(ebpf: &mut Ebpf, program: Program) -> Result<&mut SchedClassifier, EbpfError> {
    let missing = || EbpfError::Load {
        reason: format!("no program {}", program.name()),
    };
    ebpf.program_mut(program.name())
        .ok_or_else(missing)?
        .try_into()
        .map_err(|_| missing())
}

fn system(what: &'static str, source: io::Error) -> EbpfError {
    EbpfError::System { what, source }
}
