use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use model::{CAPABILITIES, Mount, Nanos, NetFunction, PodOptions, TaskOptions};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::EngineError;

/// The name of an image, as `inco/forward:latest`. The default tag is `:latest`. As for Docker, `nginx` and
/// `docker.io/library/nginx` are one name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ImageRef(pub String);

impl ImageRef {
    /// The name with its tag or digest, in Docker's short form.
    pub fn with_tag(&self) -> String {
        let hosts = ["docker.io/", "index.docker.io/"];
        let of_docker = hosts.iter().find_map(|host| self.0.strip_prefix(host));
        // What would be taken for a host by itself keeps the one that it has.
        let is_host = |name: &&str| {
            name.split_once('/')
                .is_some_and(|(first, _)| first.contains(['.', ':']))
        };
        let of_docker = of_docker.filter(|name| !is_host(name) && !name.starts_with("localhost/"));
        let name = of_docker.unwrap_or(&self.0);
        let official = name.strip_prefix("library/").filter(|rest| !rest.contains('/'));
        let name = official.unwrap_or(name);
        let after_host = name.rfind('/').map_or(0, |slash| slash + 1);
        if name.get(after_host..).is_some_and(|last| last.contains(':')) {
            name.to_owned()
        } else {
            format!("{name}:latest")
        }
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for ImageRef {
    fn from(name: &str) -> ImageRef {
        ImageRef(name.to_owned())
    }
}

/// A label of a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    /// As `inco.service`.
    pub key: String,
    /// As `firewall`; `None` for any value.
    pub value: Option<String>,
}

impl Label {
    /// The label with this value.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Label {
        Label {
            key: key.into(),
            value: Some(value.into()),
        }
    }

    /// The label with any value.
    pub fn any(key: impl Into<String>) -> Label {
        Label {
            key: key.into(),
            value: None,
        }
    }

    /// Whether these labels contain it.
    pub fn is_on(&self, labels: &BTreeMap<String, String>) -> bool {
        labels
            .get(&self.key)
            .is_some_and(|value| self.value.as_ref().is_none_or(|wanted| wanted == value))
    }
}

/// How much CPU time a container may use: `quota_us` microseconds in each `period_us`, on all CPUs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CpuQuota {
    /// CPU time, in microseconds.
    pub quota_us: u32,
    /// Wall time, in microseconds.
    pub period_us: u32,
}

impl CpuQuota {
    /// The smallest quota that the kernel accepts (below: EINVAL).
    pub const MIN_QUOTA_US: u32 = 1_000;
    /// The shortest period that the kernel accepts.
    pub const MIN_PERIOD_US: u32 = 1_000;
    /// The longest period that the kernel accepts.
    pub const MAX_PERIOD_US: u32 = 1_000_000;
    /// The default period, in microseconds: a tenth of the kernel's default. A program that has used its quota then
    /// waits a third as long (measured: 99th percentile of the gaps 29–36 ms against 72–89 ms).
    pub const PERIOD_US: u32 = 10_000;

    /// The quota of `cpus` CPUs, at least 0.001, in periods of 10 ms; in longer periods if the kernel would not
    /// accept the quota.
    pub fn of_cpus(cpus: f64) -> CpuQuota {
        let cpus = if cpus.is_finite() {
            cpus.clamp(0.001, 4_096.0)
        } else {
            4_096.0
        };
        let quota = cpus * f64::from(Self::PERIOD_US);
        if quota >= f64::from(Self::MIN_QUOTA_US) {
            return CpuQuota {
                quota_us: quota.round() as u32,
                period_us: Self::PERIOD_US,
            };
        }
        let period = (f64::from(Self::MIN_QUOTA_US) / cpus).round() as u32;
        CpuQuota {
            quota_us: Self::MIN_QUOTA_US,
            period_us: period.min(Self::MAX_PERIOD_US),
        }
    }

    /// The quota of `cpus` CPUs in periods so short that the packets of one pause fill at most half of a ring of
    /// `ring_slots`. A single-threaded program pauses for `(1 − cpus) × period`, while packets arrive at `rate_pps`.
    /// The period is at most the default, and at least what the kernel accepts.
    pub fn for_ring(cpus: f64, ring_slots: u32, rate_pps: f64) -> CpuQuota {
        let usual = CpuQuota::of_cpus(cpus);
        let allowed = usual.cpus();
        let held_up = (1.0 - allowed) * rate_pps;
        if held_up.is_nan() || held_up <= 0.0 {
            return usual;
        }
        let longest_us = 0.5 * f64::from(ring_slots) / held_up * 1e6;
        let shortest_us = (f64::from(Self::MIN_QUOTA_US) / allowed).max(f64::from(Self::MIN_PERIOD_US));
        let period_us = longest_us.max(shortest_us).ceil();
        if period_us >= f64::from(usual.period_us) {
            return usual;
        }
        CpuQuota {
            quota_us: (allowed * period_us).round().max(f64::from(Self::MIN_QUOTA_US)) as u32,
            period_us: period_us as u32,
        }
    }

    /// The number of CPUs that it allows.
    pub fn cpus(&self) -> f64 {
        f64::from(self.quota_us) / f64::from(self.period_us.max(1))
    }

    /// Checks that the kernel accepts it.
    ///
    /// # Errors
    /// [`EngineError::BadSpec`] if it does not.
    pub fn check(&self) -> Result<(), EngineError> {
        let bad = |reason: String| {
            Err(EngineError::BadSpec {
                what: "this CPU quota",
                reason,
            })
        };
        if self.quota_us < Self::MIN_QUOTA_US {
            return bad(format!("{} us is below the kernel's 1000 us", self.quota_us));
        }
        if !(Self::MIN_PERIOD_US..=Self::MAX_PERIOD_US).contains(&self.period_us) {
            return bad(format!(
                "a period of {} us is not within 1000 us and 1 s",
                self.period_us
            ));
        }
        Ok(())
    }
}

/// The directory that a container shares with inco: see [`exchange`](crate::exchange).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Its path on this machine. Created and removed with the container.
    pub source: PathBuf,
    /// Its absolute path in the container.
    pub target: PathBuf,
}

/// The specification of a container. Every container has no network except the interfaces that it is given, a
/// read-only root file system, no capabilities (with interfaces: `CAP_NET_RAW`) and no way to gain privileges.
///
/// A container with a kernel port ([`NetFunction::Port`]) is made for an ordinary program, which knows nothing of
/// inco: it has the kernel's network, a root file system that it can write to, and [`CAPABILITIES`]. One with
/// [`NetFunction::Frames`] is not: it has interfaces, and `CAP_NET_RAW` for packet sockets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Its name, as `inco-firewall-7`: see [`ContainerSpec::check`].
    pub name: String,
    /// The place that is to have it, of a [`PlacesEngine`](crate::PlacesEngine). Other engines have one place.
    #[serde(skip)]
    pub place: Option<String>,
    /// Its labels, by which [`Engine::list`](crate::Engine::list) finds it.
    pub labels: BTreeMap<String, String>,
    /// The image of its root file system.
    pub image: ImageRef,
    /// Program and arguments; empty: the image's own.
    pub command: Vec<String>,
    /// Environment, added to the image's own.
    pub env: Vec<(String, String)>,
    /// Files and directories of this machine that are mounted into it.
    pub mounts: Vec<Mount>,
    /// The directory that it shares with inco.
    pub exchange: Option<Exchange>,
    /// CPU quota from its start on; `None` for no limit.
    pub cpu: Option<CpuQuota>,
    /// Memory in bytes; `None` for no limit.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at most.
    pub pids_limit: u32,
    /// The CPUs that it may use, as `0-3,7`; `None` for all.
    pub cpuset: Option<String>,
    /// Whether the container has a user namespace of its own, in which its root is not the host's root. For the
    /// engine `oci`; Docker uses its own setting.
    pub user_namespace: bool,
    /// Whether the machine's hugepages are mounted at `/dev/hugepages`.
    pub hugepages: bool,
    /// Functions of network cards for the container, in the order of its data ports. Network interfaces are moved
    /// into the container under their names, and back on removal; of other functions it gets the device files.
    /// [`Given`](crate::Given) describes its environment.
    pub functions: Vec<NetFunction>,
    /// The capabilities of its program, of [`CAPABILITIES`]; `None` for the usual ones.
    pub capabilities: Option<Vec<String>>,
    /// What an orchestrator of several machines is asked beside; other engines have no use for it.
    #[serde(skip)]
    pub task: Option<Box<Task>>,
}

/// A container that an orchestrator of several machines places, such as [`SwarmEngine`](crate::SwarmEngine) and
/// [`KubernetesEngine`](crate::KubernetesEngine).
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Arguments in place of the image's own; [`ContainerSpec::command`] is in place of its entry point.
    pub args: Vec<String>,
    /// The port at which its program listens.
    pub port: u16,
    /// Time between its stop signal and SIGKILL.
    pub grace: Nanos,
    /// What the orchestrator is asked beside.
    pub ask: TaskAsk,
}

/// What an orchestrator is asked about each task of a service.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskAsk {
    /// A swarm of Docker's.
    Swarm(TaskOptions),
    /// Kubernetes.
    Kubernetes(PodOptions),
}

/// The longest name of a container, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Limit of open files: a function with 256 ports needs a few for each.
pub const OPEN_FILES: u64 = 4_096;
/// Default limit of processes and threads.
pub const PIDS_LIMIT: u32 = 64;

impl ContainerSpec {
    /// A container of `image` with no limits but [`PIDS_LIMIT`].
    pub fn new(name: impl Into<String>, image: impl Into<ImageRef>) -> ContainerSpec {
        ContainerSpec {
            name: name.into(),
            place: None,
            labels: BTreeMap::new(),
            image: image.into(),
            command: Vec::new(),
            env: Vec::new(),
            mounts: Vec::new(),
            exchange: None,
            cpu: None,
            memory_bytes: None,
            pids_limit: PIDS_LIMIT,
            cpuset: None,
            user_namespace: true,
            hugepages: false,
            functions: Vec::new(),
            capabilities: None,
            task: None,
        }
    }

    /// Whether its program is an ordinary one: it has a kernel port.
    pub fn is_ordinary(&self) -> bool {
        self.functions
            .iter()
            .any(|function| matches!(function, NetFunction::Port(_)))
    }

    /// The names of the capabilities that its program has.
    pub(crate) fn capabilities(&self) -> impl Iterator<Item = &str> {
        let usual: &[&str] = if self.is_ordinary() { &CAPABILITIES } else { &[] };
        let usual = usual.iter().copied().filter(|_| self.capabilities.is_none());
        self.capabilities
            .iter()
            .flatten()
            .map(String::as_str)
            .chain(usual)
    }

    /// Checks name, quota, mounts and texts, without access to the system.
    ///
    /// # Errors
    /// [`EngineError::BadName`] and [`EngineError::BadSpec`].
    pub fn check(&self) -> Result<(), EngineError> {
        check_name(&self.name)?;
        if let Some(quota) = &self.cpu {
            quota.check()?;
        }
        if self.pids_limit == 0 {
            let reason = "its program is one already".to_owned();
            return Err(EngineError::BadSpec {
                what: "0 processes",
                reason,
            });
        }
        for function in &self.functions {
            crate::function::check(function)?;
        }
        crate::port::check_all(&self.functions)?;
        let mut capabilities = self.capabilities.iter().flatten();
        if let Some(name) = capabilities.find(|name| !CAPABILITIES.contains(&name.as_str())) {
            let reason = format!("{name} is none of {}", CAPABILITIES.join(", "));
            return Err(EngineError::BadSpec {
                what: "this capability",
                reason,
            });
        }
        let mounts = self.mounts.iter().map(|mount| [&mount.source, &mount.target]);
        let exchange = self.exchange.iter().map(|of| [&of.source, &of.target]);
        for paths in mounts.chain(exchange) {
            for path in paths {
                let climbs = path
                    .components()
                    .any(|part| part == std::path::Component::ParentDir);
                if !path.is_absolute() || climbs {
                    let reason = format!("{} is not an absolute path without \"..\"", path.display());
                    return Err(EngineError::BadSpec {
                        what: "this mount",
                        reason,
                    });
                }
            }
        }
        let env = self.env.iter().flat_map(|(key, value)| [key, value]);
        check_texts(self.command.iter().chain(env))
    }
}

/// Signals by name, beside the real-time ones.
const SIGNALS: [(&str, i32); 14] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ABRT", libc::SIGABRT),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("WINCH", libc::SIGWINCH),
    ("PWR", libc::SIGPWR),
];

/// The number of `SIGQUIT`, `QUIT`, `3` or `SIGRTMIN+3`, as Docker reads them; `None` for what is no signal.
pub(crate) fn signal_number(text: &str) -> Option<i32> {
    let name = text.trim().to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let real_time = |from: i32, offset: &str| match offset {
        "" => Some(from),
        offset => offset.parse().ok().map(|offset: i32| from.saturating_add(offset)),
    };
    let number = if let Ok(number) = name.parse() {
        Some(number)
    } else if let Some(offset) = name.strip_prefix("RTMIN") {
        real_time(libc::SIGRTMIN(), offset)
    } else if let Some(offset) = name.strip_prefix("RTMAX") {
        real_time(libc::SIGRTMAX(), offset)
    } else {
        SIGNALS
            .iter()
            .find(|(of, _)| *of == name)
            .map(|(_, number)| *number)
    };
    number.filter(|number| (1..=libc::SIGRTMAX()).contains(number))
}

/// The signal by which a program is asked to end, from the number that its image gives. SIGTERM if that gives none, or
/// a real-time signal.
pub(crate) fn stop_signal(number: Option<i32>) -> Signal {
    number.and_then(Signal::from_named_raw).unwrap_or(Signal::TERM)
}

/// Checks arguments or environment: no NUL.
fn check_texts<'a>(mut texts: impl Iterator<Item = &'a String>) -> Result<(), EngineError> {
    if texts.any(|text| text.contains('\0')) {
        let reason = "it contains a NUL".to_owned();
        return Err(EngineError::BadSpec {
            what: "this command or environment",
            reason,
        });
    }
    Ok(())
}

/// Checks a command: it is not empty and has no NUL.
pub(crate) fn check_command(command: &[String]) -> Result<(), EngineError> {
    if command.is_empty() {
        let reason = "it is empty".to_owned();
        return Err(EngineError::BadSpec {
            what: "this command",
            reason,
        });
    }
    check_texts(command.iter())
}

/// Checks a name. It becomes the name of a cgroup and of files, so it must not leave its directory.
pub(crate) fn check_name(name: &str) -> Result<(), EngineError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.len() > MAX_NAME_BYTES
        || !name.starts_with("inco-")
        || name.len() == "inco-".len()
        || !name.bytes().all(allowed)
    {
        return Err(EngineError::BadName {
            name: name.to_owned(),
        });
    }
    Ok(())
}

/// The state of a container's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// It runs.
    Running,
    /// It is frozen.
    Paused,
    /// It has ended; the container is not removed yet.
    Exited,
}

/// An existing container.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    /// As given.
    pub name: String,
    /// As given.
    pub labels: BTreeMap<String, String>,
    /// Process id of its program; 0 if it has ended or runs on another machine.
    pub pid: u32,
    /// Whether it runs.
    pub state: ContainerState,
    /// When its program was started, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Where its program is reached over the network, if an orchestrator placed it.
    pub address: Option<SocketAddr>,
}

/// How a program ended. Status and signal are both `None` if unknown: an adopted container is no child of this
/// process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Exit status, 0 to 255, if it exited.
    pub status: Option<i32>,
    /// The signal that ended it, if any.
    pub signal: Option<i32>,
    /// Whether the kernel killed a process of the container because its memory was used up. With Docker this may be
    /// missed: Docker may remove the control group before it is read.
    pub out_of_memory: bool,
}

/// The resources that a container has used since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, in nanoseconds.
    pub cpu_ns: u64,
    /// Time in which its quota throttled it, in nanoseconds.
    pub throttled_ns: u64,
    /// Quota periods with throttling.
    pub throttled_periods: u64,
    /// Quota periods in which it was runnable.
    pub periods: u64,
    /// Memory now, in bytes.
    pub memory_bytes: u64,
}

impl Exit {
    /// The error for a command that did not exit with 0, with the last line of its output.
    pub(crate) fn failed_command(&self, name: &str, output: &str) -> EngineError {
        let how = match (self.status, self.signal) {
            (Some(status), _) => format!("exited with {status}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => "ended; its status is unknown".to_owned(),
        };
        let said = output
            .lines()
            .last()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        // It goes into the sentences of others, up to terminals.
        let said = said.map(|line| {
            let plain = line.replace(char::is_control, " ");
            format!("; its last output: {plain}")
        });
        EngineError::Command {
            name: name.to_owned(),
            reason: how + &said.unwrap_or_default(),
        }
    }
}

impl Usage {
    /// CPU time as a span.
    pub const fn cpu(&self) -> Nanos {
        Nanos(self.cpu_ns)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_command_wrote_does_not_control_a_terminal() {
        let exit = Exit {
            status: Some(3),
            ..Exit::default()
        };
        let error = exit.failed_command("inco-web-1", "first\n\u{1b}[2Jno\rroom\n");
        assert_eq!(
            error.to_string(),
            "the command in inco-web-1 exited with 3; its last output:  [2Jno room"
        );
    }

    #[test]
    fn an_image_without_a_tag_is_the_latest() {
        assert_eq!(ImageRef::from("inco/forward").with_tag(), "inco/forward:latest");
        assert_eq!(ImageRef::from("inco/forward:2").with_tag(), "inco/forward:2");
        assert_eq!(
            ImageRef::from("host:5000/forward").with_tag(),
            "host:5000/forward:latest"
        );
    }

    #[test]
    fn an_image_has_one_name_however_docker_would_read_it() {
        let digest = format!("nginx@sha256:{}", "a".repeat(64));
        for (name, expected) in [
            ("docker.io/library/nginx:1", "nginx:1"),
            ("docker.io/nginx", "nginx:latest"),
            ("index.docker.io/lab/ids", "lab/ids:latest"),
            ("library/nginx", "nginx:latest"),
            ("library/a/b", "library/a/b:latest"),
            ("registry.lan/library/nginx", "registry.lan/library/nginx:latest"),
            ("docker.io/registry.lan/a", "docker.io/registry.lan/a:latest"),
            ("docker.io/localhost/a", "docker.io/localhost/a:latest"),
            (&digest, &digest),
        ] {
            let name = ImageRef::from(name).with_tag();
            assert_eq!(name, expected);
            assert_eq!(ImageRef(name.clone()).with_tag(), name);
        }
    }

    #[test]
    fn names_cannot_leave_their_directory() {
        for bad in [
            "",
            "inco-",
            "forward",
            "inco-a/b",
            "inco-..\u{e9}",
            "../inco-a",
            "inco-a b",
            "inco-a\0",
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_name(&format!("inco-{}", "x".repeat(MAX_NAME_BYTES))).is_err());
        assert!(check_name("inco-fire_wall.2-17").is_ok());
    }

    #[test]
    fn a_mount_must_be_absolute_and_must_not_climb() {
        let mut spec = ContainerSpec::new("inco-a-1", "a");
        for (source, target, good) in [
            ("/a", "/b", true),
            ("a", "/b", false),
            ("/a", "b", false),
            ("/a", "/b/../../c", false),
        ] {
            spec.mounts = vec![Mount {
                source: source.into(),
                target: target.into(),
                read_only: true,
            }];
            assert_eq!(spec.check().is_ok(), good, "{source} {target}");
        }
    }

    #[test]
    fn an_ordinary_program_has_the_usual_capabilities_unless_others_are_said() {
        let mut spec = ContainerSpec::new("inco-a-1", "a");
        assert_eq!(spec.capabilities().count(), 0);
        spec.functions = vec![NetFunction::Port(crate::port::example())];
        assert!(spec.capabilities().eq(CAPABILITIES));
        spec.capabilities = Some(Vec::new());
        assert_eq!((spec.capabilities().count(), spec.check()), (0, Ok(())));
        spec.capabilities = Some(vec!["CHOWN".to_owned()]);
        assert!(spec.capabilities().eq(["CHOWN"]));
        for refused in ["NET_RAW", "NET_ADMIN", "SYS_ADMIN", "chown", "CAP_CHOWN"] {
            spec.capabilities = Some(vec![refused.to_owned()]);
            let error = spec.check().unwrap_err().to_string();
            assert!(
                error.contains(refused) && error.contains("NET_BIND_SERVICE"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_stop_signal_of_an_image_is_read_as_docker_reads_it() {
        for (text, signal) in [
            ("SIGQUIT", Signal::QUIT),
            ("quit", Signal::QUIT),
            ("3", Signal::QUIT),
            ("SIGWINCH", Signal::WINCH),
            ("15", Signal::TERM),
            ("SIGRTMIN+3", Signal::TERM),
            ("0", Signal::TERM),
            ("999", Signal::TERM),
            ("", Signal::TERM),
        ] {
            assert_eq!(stop_signal(signal_number(text)), signal, "{text}");
        }
        assert_eq!(signal_number("SIGRTMIN+3"), Some(libc::SIGRTMIN() + 3));
    }

    #[test]
    fn a_label_without_a_value_is_on_whatever_has_its_key() {
        let labels = BTreeMap::from([("inco.service".to_owned(), "a".to_owned())]);
        assert!(Label::any("inco.service").is_on(&labels));
        assert!(Label::new("inco.service", "a").is_on(&labels));
        assert!(!Label::new("inco.service", "b").is_on(&labels));
        assert!(!Label::any("inco.other").is_on(&labels));
    }

    proptest! {
        #[test]
        fn every_share_becomes_a_quota_that_the_kernel_takes(cpus in 0.001_f64..256.0) {
            let quota = CpuQuota::of_cpus(cpus);
            prop_assert!(quota.check().is_ok(), "{quota:?}");
            prop_assert!((quota.cpus() - cpus).abs() <= cpus * 0.001 + 0.0001, "{cpus} {quota:?}");
        }
    }

    #[test]
    fn shares_that_cannot_be_are_brought_into_range() {
        for cpus in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert!(CpuQuota::of_cpus(cpus).check().is_ok(), "{cpus}");
        }
    }
}
