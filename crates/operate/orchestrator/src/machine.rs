//! The facts of this machine that a configuration depends on. Checks change nothing: they open no device and do not
//! connect to an uplink of a running inco.

use std::fs;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use api::{ApiError, run_dir};
use configuration::{
    ApiTcp, Device, Engine, EngineDriver, Facts, InstanceDevice, Pull, Service, Unusable, Uplink,
};
use engine::image::Store;
use engine::{DockerEngine, EngineError, Given, ImageRef, OciConfig, Program, SwarmEngine, functions_in_use};
use kubernetes::Cluster;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};

use crate::host::{free_hugepages_mib, is_listened_on, unreadable};
use crate::leftovers::{Kept, Running, kept_sockets};
use crate::wiring::docker_config;
use crate::{drivers, reports, wiring};

/// This machine.
#[derive(Debug)]
pub struct Machine {
    /// A running inco, if its devices and sockets count as free.
    own: Option<Running>,
    /// Sockets that the last run left open for the next one.
    kept: Kept,
}

impl Machine {
    /// The machine as seen by a new process: whatever any other process uses, inco included, is in use.
    pub fn now() -> Machine {
        Machine {
            own: None,
            kept: kept_sockets(&run_dir::run_dir()),
        }
    }

    /// The machine as seen by the inco that runs with this run directory, if any: its own devices and sockets count
    /// as free.
    pub fn beside_own_inco() -> Machine {
        Machine {
            own: Running::of(&run_dir::run_dir()),
            kept: kept_sockets(&run_dir::run_dir()),
        }
    }

    /// Whether the devices of a running inco count as free.
    pub(crate) fn has_own_inco(&self) -> bool {
        self.own.is_some()
    }

    /// Whether that running inco listens on the socket.
    fn is_own(&self, socket: &Path) -> bool {
        self.own.as_ref().is_some_and(|own| own.listens_on(socket))
    }
}

/// How the cluster of `[kubernetes]` is reached.
pub fn cluster(of: &configuration::Kubernetes) -> Cluster {
    Cluster {
        kubeconfig: of.kubeconfig.clone(),
        context: of.context.clone(),
    }
}

impl Facts for Machine {
    fn cpu(&self, cpu: u16) -> Result<(), Unusable> {
        let Ok(allowed) = rustix::thread::sched_getaffinity(None) else {
            return Ok(());
        };
        if usize::from(cpu) < rustix::thread::CpuSet::MAX_CPU && allowed.is_set(usize::from(cpu)) {
            return Ok(());
        }
        let there: Vec<String> = allowed_cpus().iter().map(ToString::to_string).collect();
        Err(Unusable::new(
            format!("inco is not permitted to use CPU {cpu}"),
            format!("write one of {}", there.join(", ")),
        ))
    }

    fn device(&self, uplink: &Uplink) -> Result<(), Unusable> {
        let device = &uplink.device;
        if let Some(socket) = device.socket() {
            let socket = run_dir::in_run_dir(socket);
            return if self.is_own(&socket) || self.kept.sockets.contains(&socket) {
                Ok(())
            } else {
                socket_is_free(&socket)
            };
        }
        if let Device::Kernel(name) = device {
            return interface_carries(name, uplink.max_frame);
        }
        dpdk_is_built_in()?;
        device.captures_read().into_iter().try_for_each(is_capture)?;
        device.captures_written().into_iter().try_for_each(writable)?;
        match device {
            Device::Veth(name) => {
                interface_carries(name, uplink.max_frame)?;
                can_receive_frames(name)
            }
            Device::Dpdk(text) => device
                .parameters("iface")
                .try_for_each(|name| interface_carries(name, uplink.max_frame))
                .and_then(|()| pci_device(text)),
            Device::Memif(_) | Device::Pcap(_) | Device::Kernel(_) => Ok(()),
        }
    }

    fn interface(&self, name: &str) -> Result<(), Unusable> {
        let there = interfaces();
        let there: Vec<&str> = there.iter().map(String::as_str).collect();
        if there.contains(&name) {
            return Ok(());
        }
        let write = match configuration::nearest(name, there.iter().copied()) {
            Some(near) => format!("write {near:?}, or create it"),
            None => "create it; for representors, set the card to switchdev mode: `devlink dev eswitch set \
                     pci/ADDRESS mode switchdev`"
                .to_owned(),
        };
        Err(Unusable::new(
            format!("no network interface is named {name:?}"),
            write,
        ))
    }

    fn function(&self, engine: &Engine, device: &InstanceDevice) -> Result<(), Unusable> {
        if !engine.is_local() {
            return Ok(());
        }
        let run_dir = run_dir::run_dir();
        let given = match Given::find(std::slice::from_ref(&device.function), Path::new(engine::SYS)) {
            Ok(given) => given,
            // A container of an earlier run uses it and will return it.
            Err(_) if functions_in_use(&run_dir).contains(&device.function) => return Ok(()),
            Err(EngineError::NoFunction { what, write }) => return Err(Unusable::new(what, write)),
            Err(error) => return Err(Unusable::new(error.to_string(), "write another function")),
        };
        let (Some(mac), Some(interface)) = (device.mac, given.interfaces.first()) else {
            return Ok(());
        };
        let address = fs::read_to_string(format!("{}/class/net/{interface}/address", engine::SYS));
        let address = address.unwrap_or_default();
        if address.trim() == mac.to_string() {
            return Ok(());
        }
        Err(Unusable::new(
            format!("{interface} has the address {} instead of {mac}", address.trim()),
            format!(
                "write mac = {:?}, or run `ip link set {interface} address {mac}`",
                address.trim()
            ),
        ))
    }

    fn engine(&self, engine: &Engine) -> Result<(), Unusable> {
        match engine.driver {
            EngineDriver::Oci => match OciConfig::at(run_dir::run_dir()).check() {
                Ok(_) => Ok(()),
                Err(EngineError::NeedsRoot { .. }) => Err(Unusable::new(
                    "containers of the oci engine need root",
                    "run inco as root, or write driver = \"docker\" and join the group docker",
                )),
                Err(error) => Err(Unusable::new(
                    error.to_string(),
                    "see `inco doctor`, or write driver = \"docker\"",
                )),
            },
            EngineDriver::Docker => DockerEngine::start(docker_config(engine))
                .map(drop)
                .map_err(|error| {
                    // The key's own message says what to do.
                    let seen = match error {
                        EngineError::Unavailable { reason } => {
                            reason.split(": ").next().unwrap_or_default().to_owned()
                        }
                        other => other.to_string(),
                    };
                    let what = format!("no engine answers at {} ({seen})", engine.host);
                    Unusable::new(
                        what,
                        "start Docker or Podman, correct host, or write driver = \"oci\"",
                    )
                }),
            // In `kubernetes`.
            EngineDriver::Kubernetes => Ok(()),
            EngineDriver::Swarm => SwarmEngine::start(docker_config(engine))
                .map(drop)
                .map_err(|error| {
                    let what = match error {
                        EngineError::Unavailable { reason } => {
                            format!("no manager of a swarm answers at {}: {reason}", engine.host)
                        }
                        other => format!("no manager of a swarm answers at {}: {other}", engine.host),
                    };
                    Unusable::new(
                        what,
                        "run `docker swarm init` there, write the host of a manager, or another driver",
                    )
                }),
        }
    }

    fn image(&self, engine: &Engine, image: &str) -> Result<(), Unusable> {
        if engine.is_orchestrator() {
            // Its nodes get it. One that does not is told when it should run it.
            return Ok(());
        }
        let is_docker = engine.driver == EngineDriver::Docker;
        if has_image(engine, image) {
            return Ok(());
        }
        let known = Store::at(Store::default_dir()).list().unwrap_or_default();
        let near = similar_name(image, known.iter().map(|image| image.name.as_str()));
        let may_be_pulled = images::may_be_pulled(image);
        // In Docker's registry, a name with a mistake in it may be another one's image.
        let may_be_mistake = near.is_some() && images::registry_of(image).as_deref() == Some("docker.io");
        if may_be_pulled && !may_be_mistake && engine.pull == Pull::Missing {
            return Ok(());
        }
        let pull = if is_docker { "docker" } else { "inco image" };
        let built = image.trim_end_matches(":latest").strip_prefix("inco/");
        let write = match (built.filter(|function| images::is_built_in(function)), near) {
            (Some(function), _) => {
                let engine = if is_docker { " --engine docker" } else { "" };
                format!("run `inco image build {function}{engine}`")
            }
            (None, Some(near)) if may_be_pulled => format!("write {near:?}, or run `{pull} pull {image}`"),
            (None, Some(near)) => {
                format!("write {near:?}, or create it with `inco image import {image} SOURCE`")
            }
            (None, None) => match image.trim_end_matches(":latest") {
                "testpmd" => "run `inco image import testpmd`".to_owned(),
                _ if is_docker => format!("run `docker pull {image}`, or `docker build -t {image} .`"),
                _ if may_be_pulled => format!(
                    "run `inco image pull {image}`, or `inco image import {image} SOURCE`, or write one that \
                     `inco image list` shows"
                ),
                _ => format!(
                    "run `inco image import {image} SOURCE`, or write one that `inco image list` shows"
                ),
            },
        };
        Err(Unusable::new(format!("image {image:?} does not exist"), write))
    }

    fn api_socket(&self, socket: Option<&Path>) -> Result<(), Unusable> {
        let socket = run_dir::api_socket(socket);
        if self.is_own(&socket) || self.kept.sockets.contains(&socket) {
            return Ok(());
        }
        // Before its rename the socket has another name in the kernel's list. Connecting does not disturb an API.
        if is_listened_on(&socket) || UnixStream::connect(&socket).is_ok() {
            let what = format!("another inco listens on {}", socket.display());
            return Err(Unusable::new(
                what,
                "stop it with `inco stop`, or set INCO_RUN_DIR to another directory",
            ));
        }
        directory_is_writable(&socket)
    }

    fn program(&self, engine: &Engine, service: &Service, command: &[String]) -> Result<(), Unusable> {
        if engine.is_orchestrator() {
            // What its nodes have under that name is not known here.
            return Ok(());
        }
        let store = Store::at(Store::default_dir());
        let name = ImageRef::from(service.image.as_deref().unwrap_or_default());
        let is_here = store.resolve(&name);
        if is_here.is_err() && image_to_pull(engine, service).is_some() {
            // It is asked again when the image is here.
            return Ok(());
        }
        let spec = wiring::container(service, wiring::Where::of(std::slice::from_ref(engine)))
            .map_err(|error| Unusable::new(format!("{error:#}"), "write a command"))?;
        let Ok((rootfs, image)) = is_here else {
            // Docker has the image. It reports a missing program when it creates a container.
            return Ok(());
        };
        let own = image.command(&[]);
        let Some(program) = command.first().or(own.first()) else {
            return Err(Unusable::new(
                format!("the image {} defines no program", spec.image.with_tag()),
                "write command = [\"/PROGRAM\"]",
            ));
        };
        let is_elsewhere = |of: &model::Mount| Path::new(program).starts_with(&of.target);
        if !engine.is_local() && spec.mounts.iter().any(is_elsewhere) {
            return Ok(());
        }
        let of_image = format!("the image {}", spec.image.with_tag());
        let write = format!("write a program of {}", rootfs.display());
        match store.find_program(&spec, program) {
            Ok(Program::Found(_)) => Ok(()),
            Ok(Program::NotExecutable(path)) => Err(Unusable::new(
                format!("{} of {of_image} is not an executable file", path.display()),
                write,
            )),
            Ok(Program::Missing(places)) => {
                let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
                let what = match places.as_slice() {
                    [place] => format!("{of_image} has no file {place}"),
                    _ => format!(
                        "{of_image} has no program {program:?}: looked for {}",
                        places.join(", ")
                    ),
                };
                Err(Unusable::new(what, write))
            }
            Err(error) => Err(Unusable::new(error.to_string(), "run inco as root")),
        }
    }

    fn listen(&self, tcp: &ApiTcp) -> Result<(), Unusable> {
        let own = self.own.as_ref().and_then(|own| own.listen);
        if [own, self.kept.listen].contains(&Some(tcp.listen)) {
            return Ok(());
        }
        can_be_bound(tcp.listen).map_err(|error| {
            let write = match error {
                Errno::ADDRINUSE => "stop the program that listens there, or write another port",
                Errno::ADDRNOTAVAIL => "write an address of this machine, or 0.0.0.0 for all",
                Errno::ACCESS => "run inco as root, or write a port of 1024 or more",
                _ => "write another address",
            };
            Unusable::new(format!("cannot listen on {} ({error})", tcp.listen), write)
        })
    }

    fn certificate(&self, tcp: &ApiTcp) -> Result<(), Unusable> {
        wiring::tcp(tcp).check_certificate().map_err(|error| match error {
            ApiError::Certificate { file, reason } => Unusable::new(
                format!("{}: {reason}", file.display()),
                "write a certificate and its private key as PEM",
            ),
            error => Unusable::new(error.to_string(), "write other files"),
        })
    }

    fn kubernetes(&self, of: &configuration::Kubernetes) -> Result<(), Unusable> {
        cluster(of).check().map_err(|error| {
            let write = "write a kubeconfig that inco can read, and one of its contexts, into [kubernetes]";
            Unusable::new(error.to_string(), write)
        })
    }

    fn tokens(&self, tcp: &ApiTcp) -> Result<(), Unusable> {
        wiring::tcp(tcp).check_tokens().map_err(|error| match error {
            ApiError::Tokens { file, reason } => {
                let (what, write) = reason.rsplit_once(": ").unwrap_or((&reason, "correct the file"));
                Unusable::new(format!("{}: {what}", file.display()), write)
            }
            error => Unusable::new(error.to_string(), "write another file"),
        })
    }

    fn report_key(&self, file: &Path) -> Result<(), Unusable> {
        reports::read_key(file).map(drop).map_err(|wrong| {
            let reports::WrongKey { what, write } = wrong;
            Unusable::new(format!("{}: {what}", file.display()), write)
        })
    }

    fn takes_reports(&self, at: SocketAddr) -> Result<(), Unusable> {
        // Where it runs already, it has the address itself.
        if self.own.is_some() {
            return Ok(());
        }
        std::net::UdpSocket::bind(at).map(drop).map_err(|error| {
            let write = "write an address of this machine, and a port that no other program has";
            Unusable::new(format!("no load reports can be taken at {at} ({error})"), write)
        })
    }

    fn event_log(&self, directory: Option<&Path>) -> Result<(), Unusable> {
        let directory = run_dir::in_run_dir(directory.unwrap_or(Path::new("events")));
        if directory.exists() && !directory.is_dir() {
            let what = format!("{} is not a directory", directory.display());
            return Err(Unusable::new(what, "write another directory"));
        }
        directory_is_writable(&directory.join("events.jsonl"))
    }

    fn switch(&self, of: &configuration::Switch) -> Result<(), (&'static str, Unusable)> {
        drivers::check(of)
    }

    fn path(&self, path: &Path) -> Result<(), Unusable> {
        match fs::metadata(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(unreadable(path, &error)),
        }
    }

    fn hugepages(&self) -> Result<(), Unusable> {
        match free_hugepages_mib() {
            // A running inco has already allocated the hugepages that it needs.
            _ if self.own.is_some() => Ok(()),
            1.. => Ok(()),
            0 => Err(Unusable::new(
                "no free hugepages",
                "run `sysctl vm.nr_hugepages=512`, or write hugepages = false",
            )),
        }
    }
}

/// CPUs that this process may use; empty if the kernel does not report them.
pub fn allowed_cpus() -> Vec<u16> {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..rustix::thread::CpuSet::MAX_CPU as u16)
        .filter(|cpu| allowed.is_set(usize::from(*cpu)))
        .collect()
}

/// The image of a service, if it is not on this machine and comes from a registry.
pub fn image_to_pull<'a>(engine: &Engine, service: &'a Service) -> Option<&'a str> {
    let may_pull = service.has_containers() && engine.pull == Pull::Missing && !engine.is_orchestrator();
    let image = service.image.as_deref().filter(|_| may_pull)?;
    (images::may_be_pulled(image) && !has_image(engine, image)).then_some(image)
}

/// Whether containers can be made from an image as it is here. Docker imports images from the store if it lacks them.
fn has_image(engine: &Engine, image: &str) -> bool {
    let name = ImageRef::from(image);
    Store::at(Store::default_dir()).resolve(&name).is_ok()
        || engine.driver == EngineDriver::Docker && docker_has(engine, &name.with_tag())
}

/// The image of another name that was probably meant. Another tag of the same image is no mistake.
fn similar_name<'a>(image: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = ImageRef::from(image).with_tag();
    let without_tag = |name: &str| {
        name.rsplit_once(':')
            .map_or(name.to_owned(), |(name, _)| name.to_owned())
    };
    let known: Vec<&str> = known.collect();
    if known.iter().any(|known| without_tag(known) == without_tag(&name)) {
        return None;
    }
    configuration::nearest(&name, known)
}

/// Whether Docker has an image that is not in our store: asked in Docker's own protocol on its unix socket.
fn docker_has(engine: &Engine, image: &str) -> bool {
    use std::io::{Read as _, Write as _};
    let Some(socket) = engine.host.strip_prefix("unix://") else {
        // Only the engine can connect over TLS. It reports a missing image when it creates the first container.
        return true;
    };
    let ask = || -> io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
        write!(
            stream,
            "GET /images/{image}/json HTTP/1.0\r\nHost: docker\r\n\r\n"
        )?;
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        Ok(String::from_utf8_lossy(&head).into_owned())
    };
    ask().is_ok_and(|head| head.split_whitespace().nth(1) == Some("200"))
}

/// Whether this build can open DPDK devices.
pub fn dpdk_is_built_in() -> Result<(), Unusable> {
    if cfg!(feature = "dpdk") {
        return Ok(());
    }
    Err(Unusable::new(
        "this build has no DPDK, and the device needs it",
        "build it where DPDK is installed (`make build`), or write \"memif:SOCKET\"",
    ))
}

fn names_in(directory: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Whether this network namespace has the interface.
fn interface_is_there(interface: &str) -> Result<(), Unusable> {
    let there = interfaces();
    let there: Vec<&str> = there.iter().map(String::as_str).collect();
    if !there.contains(&interface) {
        let write = match configuration::nearest(interface, there.iter().copied()) {
            Some(near) => format!("write {near:?} in its place, or another one that `ip link` shows"),
            None => "write one that `ip link` shows".to_owned(),
        };
        let what = format!("no network interface is named {interface:?}");
        return Err(Unusable::new(what, write));
    }
    Ok(())
}

/// Whether this network namespace has the interface and its MTU permits frames of `max_frame` bytes.
#[cfg(feature = "dpdk")]
fn interface_carries(interface: &str, max_frame: u16) -> Result<(), Unusable> {
    interface_is_there(interface)?;
    let needed = usize::from(max_frame).saturating_sub(dpdk::FRAME_OVERHEAD_BYTES);
    match dpdk::interface_mtu(interface) {
        Ok(mtu) if needed > usize::from(mtu) => Err(Unusable::new(
            format!("the MTU of {interface} is {mtu} B; frames of {max_frame} B need {needed} B"),
            format!(
                "run `ip link set {interface} mtu {needed}`, or write max_frame = {}",
                usize::from(mtu) + dpdk::FRAME_OVERHEAD_BYTES
            ),
        )),
        // Opening it gives a better error.
        _ => Ok(()),
    }
}

/// Whether this network namespace has the interface. The kernel's own has no use for DPDK.
#[cfg(not(feature = "dpdk"))]
fn interface_carries(interface: &str, _max_frame: u16) -> Result<(), Unusable> {
    interface_is_there(interface)
}

/// Network interfaces of this process' namespace. `/sys` may show another namespace.
fn interfaces() -> Vec<String> {
    let list = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let name = |line: &str| Some(line.split_once(':')?.0.trim().to_owned());
    list.lines().filter_map(name).collect()
}

/// Whether that file can be written, or created.
fn writable(file: &Path) -> Result<(), Unusable> {
    if file.is_dir() {
        let what = format!("{} is a directory", file.display());
        return Err(Unusable::new(what, "write the path of a file"));
    }
    let directory = match file.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    if !directory.is_dir() {
        let what = format!("the directory {} does not exist", directory.display());
        return Err(Unusable::new(what, "create it, or write another path"));
    }
    let asked = if file.exists() { file } else { directory };
    rustix::fs::access(asked, rustix::fs::Access::WRITE_OK).map_err(|_| {
        Unusable::new(
            format!("{} is not writable", asked.display()),
            "run inco as root, or write another path",
        )
    })
}

/// Whether a file is readable and has the header of a capture: pcap in either byte order, with microseconds or
/// nanoseconds, or pcapng.
fn is_capture(file: &Path) -> Result<(), Unusable> {
    let mut magic = [0; 4];
    let read = fs::File::open(file).and_then(|mut open| open.read_exact(&mut magic));
    match read {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(unreadable(file, &error)),
    }
    let marks = [0xa1b2_c3d4, 0xa1b2_3c4d, 0x0a0d_0d0a_u32];
    let number = u32::from_le_bytes(magic);
    if marks
        .iter()
        .any(|mark| [number, number.swap_bytes()].contains(mark))
    {
        return Ok(());
    }
    let what = format!("{} is not a capture", file.display());
    Err(Unusable::new(what, "write a pcap or pcapng file"))
}

/// Whether a TCP address can be bound. The check does not listen.
fn can_be_bound(address: SocketAddr) -> Result<(), Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
    // The server sets it too, so old connections in TIME_WAIT do not matter.
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)
}

/// Whether this process may open a packet socket on a kernel interface.
fn can_receive_frames(interface: &str) -> Result<(), Unusable> {
    let raw = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None);
    raw.map(drop).map_err(|error| {
        Unusable::new(
            format!("cannot receive frames of {interface} ({error})"),
            "run inco as root, or with CAP_NET_RAW",
        )
    })
}

/// Drivers through which DPDK reaches a device: those that leave it to user space, and those that share it.
pub const USER_SPACE_DRIVERS: [&str; 5] =
    ["vfio-pci", "igb_uio", "uio_pci_generic", "mlx5_core", "mlx4_core"];

fn pci_device(device: &str) -> Result<(), Unusable> {
    let address = device
        .split(',')
        .next()
        .unwrap_or_default()
        .trim_start_matches("pci:");
    if address.starts_with("net_") || address.starts_with("vdev:") || address.starts_with("auxiliary:") {
        return Ok(());
    }
    // DPDK accepts addresses without a PCI domain.
    let full = if address.matches(':').count() == 1 {
        format!("0000:{address}")
    } else {
        address.to_owned()
    };
    let directory = Path::new("/sys/bus/pci/devices").join(&full);
    if !directory.exists() {
        let there: Vec<String> = names_in("/sys/bus/pci/devices")
            .into_iter()
            .filter(|address| is_network(address))
            .collect();
        let write = if there.is_empty() {
            "this machine has no network card: write \"memif:SOCKET\" or \"veth:INTERFACE\"".to_owned()
        } else {
            format!("write one of {}", there.join(", "))
        };
        return Err(Unusable::new(format!("PCI device {full} does not exist"), write));
    }
    let driver = fs::read_link(directory.join("driver")).ok();
    let driver = driver
        .as_deref()
        .and_then(Path::file_name)
        .map(|name| name.to_string_lossy().into_owned());
    match driver {
        Some(driver) if USER_SPACE_DRIVERS.contains(&driver.as_str()) => Ok(()),
        other => {
            let held = other.map_or_else(
                || "no driver".to_owned(),
                |driver| format!("the kernel's driver {driver}"),
            );
            Err(Unusable::new(
                format!("{full} is bound to {held}"),
                format!("run `dpdk-devbind.py -b vfio-pci {full}`"),
            ))
        }
    }
}

/// Whether a PCI device is a network card (class 02).
fn is_network(address: &str) -> bool {
    let class = fs::read_to_string(Path::new("/sys/bus/pci/devices").join(address).join("class"));
    class.is_ok_and(|class| class.starts_with("0x02"))
}

fn socket_is_free(socket: &Path) -> Result<(), Unusable> {
    if fs::symlink_metadata(socket).is_ok_and(|about| !about.file_type().is_socket()) {
        let what = format!("{} exists and is not a socket", socket.display());
        return Err(Unusable::new(what, "remove it, or write another socket"));
    }
    if is_listened_on(socket) {
        let what = format!("another program listens on {}", socket.display());
        return Err(Unusable::new(what, "stop it, or write another socket"));
    }
    directory_is_writable(socket)
}

/// Whether a file can be made where that path says; its directory may still be missing.
pub fn directory_is_writable(path: &Path) -> Result<(), Unusable> {
    let mut directory = path.parent().unwrap_or(Path::new("."));
    while !directory.exists() {
        match directory.parent() {
            Some(parent) => directory = parent,
            None => break,
        }
    }
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    match rustix::fs::access(directory, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Ok(()),
        Err(Errno::ROFS) => Err(Unusable::new(
            format!(
                "{} is on a file system that is mounted read-only",
                directory.display()
            ),
            "mount it for writing (`dmesg` may say why it is not), or set INCO_RUN_DIR to another directory",
        )),
        Err(_) => Err(Unusable::new(
            format!("{} is not writable", directory.display()),
            "run inco as root, or set INCO_RUN_DIR to a directory of your own",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_are_listened_on_are_found_without_connecting() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("a.sock");
        assert!(socket_is_free(&socket).is_ok());
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(is_listened_on(&socket));
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(listener);
        // The file remains without a listener.
        assert!(socket.exists() && !is_listened_on(&socket));
    }

    #[test]
    fn cpus_that_are_not_ours_are_named() {
        let error = Machine::now().cpu(8000).unwrap_err();
        assert!(
            error.what.contains("CPU 8000") && error.write.starts_with("write one of "),
            "{error:?}"
        );
        let first = error
            .write
            .trim_start_matches("write one of ")
            .split(',')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(Machine::now().cpu(first), Ok(()));
    }

    #[test]
    fn missing_parts_are_reported() {
        assert!(
            Machine::now()
                .path(Path::new("/nonexistent"))
                .unwrap_err()
                .what
                .contains("/nonexistent does not exist")
        );
        assert_eq!(Machine::now().path(Path::new("/")), Ok(()));
        assert!(
            pci_device("ffff:ff:1f.7")
                .unwrap_err()
                .what
                .contains("PCI device ffff:ff:1f.7 does not exist")
        );
        assert_eq!(pci_device("net_null0,size=64"), Ok(()));
    }

    /// A Docker engine that does not exist.
    fn docker() -> Engine {
        Engine {
            driver: EngineDriver::Docker,
            host: "unix:///nonexistent/docker.sock".to_owned(),
            tls: None,
            linger: model::Nanos::ZERO,
            pull: Pull::Never,
            plain_http: Vec::new(),
            name: None,
        }
    }

    #[test]
    fn a_name_with_a_mistake_is_told_from_another_tag() {
        let known = ["lab/forward:latest", "nginx:1.26"];
        let near = |name: &str| similar_name(name, known.into_iter());
        assert_eq!(near("lab/forwrd"), Some("lab/forward:latest"));
        assert_eq!(near("nginx:1.27"), None);
        assert_eq!(near("redis"), None);
    }

    #[test]
    fn an_image_that_is_pulled_is_not_missing() {
        let oci = Engine {
            driver: EngineDriver::Oci,
            pull: Pull::Missing,
            ..docker()
        };
        assert_eq!(Machine::now().image(&oci, "nobody/has-this"), Ok(()));
        let error = Machine::now().image(&oci, "inco/has-not-this").unwrap_err();
        assert!(error.write.contains("inco image import"), "{error:?}");
        // This machine's user may have built them.
        let is_missing = |function: &&str| !has_image(&docker(), &format!("inco/{function}"));
        for function in ["maglev", "actors", "firewall"].into_iter().filter(is_missing) {
            let error = Machine::now()
                .image(&docker(), &format!("inco/{function}"))
                .unwrap_err();
            assert_eq!(
                error.write,
                format!("run `inco image build {function} --engine docker`")
            );
        }
    }

    #[test]
    fn a_missing_image_is_got_where_the_engine_has_its_images_from() {
        let oci = Engine {
            driver: EngineDriver::Oci,
            ..docker()
        };
        for (engine, image, write) in [
            (docker(), "nobody/has-this", "`docker pull nobody/has-this`"),
            (
                oci,
                "nobody/has-this",
                "`inco image pull nobody/has-this`, or `inco image import nobody/has-this SOURCE`",
            ),
        ] {
            let error = Machine::now().image(&engine, image).unwrap_err();
            assert!(error.write.contains(write), "{error:?}");
            let is_docker = engine.driver == EngineDriver::Docker;
            assert_eq!(error.write.contains("inco image import"), !is_docker, "{error:?}");
        }
    }

    #[test]
    fn an_engine_that_does_not_answer_is_reported() {
        let engine = docker();
        let error = Machine::now().engine(&engine).unwrap_err();
        assert!(
            error.what.contains(
                "no engine answers at unix:///nonexistent/docker.sock (there is no /nonexistent/docker.sock"
            ),
            "{error:?}"
        );
    }
}
