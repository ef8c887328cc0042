//! The embedded engine: containers without a daemon, made by the [launcher](crate::launcher) and controlled by direct
//! writes to their control groups.
//!
//! One thread waits in epoll for requests, the launcher, the ends of programs (pidfds) and their output. What takes
//! time (a create, a stop, a freeze) is a [`Job`] of its container and blocks nothing else.
//!
//! The control groups and their processes are the source of truth, not a file. After a crash containers are found by
//! their control groups. A container whose record names a live process is adopted; others are removed.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use clock::{monotonic, unix_ms};
use libcontainer::network::network_device::dev_change_net_namespace;
use libcontainer::oci_spec::runtime::LinuxNetDevice;
use model::{Nanos, NetFunction};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{CWD, FlockOperation, Gid, Mode, OFlags, Uid, chown, flock, mkfifoat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, Hierarchy, UsageReader};
use crate::container::{check_command, check_name, stop_signal};
use crate::front::{Command, Front, shorten_slice};
use crate::image::Store;
use crate::launcher::{Launcher, OUTPUT, raise_open_files};
use crate::logs::{Logs, MAX_LOG_BYTES};
use crate::wire::{Notice, Order, Received};
use crate::{
    Container, ContainerSpec, ContainerState, CpuQuota, Engine, EngineError, EngineEvent, Executed,
    Execution, Exit, Given, Label, MAX_COMMAND_OUTPUT_BYTES, MAX_OUTPUT_BYTES, Owner, Request, SYS, Ticket,
    Usage, bundle, cgroup, exchange, stage,
};

/// How an [`OciEngine`] works.
#[derive(Clone, Debug)]
pub struct OciConfig {
    /// Where it keeps its state, as `/run/inco`. One engine at a time for each.
    pub run_dir: PathBuf,
    /// The images.
    pub images: Store,
    /// Where the output of its containers goes.
    pub logs: Logs,
    /// Where control groups are mounted.
    pub cgroup_root: PathBuf,
    /// After this a create has failed.
    pub create_timeout: Nanos,
}

impl OciConfig {
    /// With state in this directory, and everything else as usual.
    pub fn at(run_dir: impl Into<PathBuf>) -> OciConfig {
        OciConfig {
            run_dir: run_dir.into(),
            images: Store::at(Store::default_dir()),
            logs: Logs::default(),
            cgroup_root: PathBuf::from(cgroup::ROOT),
            create_timeout: Nanos::from_secs(10),
        }
    }

    /// Whether an engine can start here. Lets this process have as many open files as a container's may.
    ///
    /// # Errors
    /// [`EngineError::NeedsRoot`], [`EngineError::FewOpenFiles`], and [`EngineError::Io`] without control groups.
    pub fn check(&self) -> Result<Hierarchy, EngineError> {
        if !rustix::process::geteuid().is_root() {
            return Err(EngineError::NeedsRoot {
                what: "making containers (engine \"oci\")",
            });
        }
        raise_open_files()?;
        Hierarchy::at(&self.cgroup_root)
    }

    /// The parent of the containers' control groups: `/inco`, with a suffix for another run directory than
    /// `/run/inco`, so that two incos do not adopt each other's containers.
    fn cgroup_parent(&self) -> String {
        if self.run_dir == Path::new("/run/inco") {
            return "/inco".to_owned();
        }
        // FNV-1a: the same for every build, which std's hasher does not promise.
        let text = self.run_dir.as_os_str().as_encoded_bytes();
        let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        format!("/inco-{hash:016x}")
    }
}

/// After this time without an answer of the launcher the engine counts as down. Twice the delay that was seen on a
/// machine whose control threads wait a second for a CPU.
const LAUNCHER_SILENCE: Nanos = Nanos::from_secs(2);
/// How often the launcher is asked whether it is there.
const PING_EVERY: Nanos = Nanos::from_secs(1);
/// How often a launcher that has ended is started again.
const RESTART_EVERY: Nanos = Nanos::from_millis(500);
/// How long a freeze may take: a throttled process freezes when its next period begins, at most 1 s later.
const FREEZE_LIMIT: Nanos = Nanos::from_secs(2);
/// How long a killed program may take to end: an uninterruptible system call delays it.
const REMOVE_LIMIT: Nanos = Nanos::from_secs(10);
/// How long to wait for the exit status from the launcher after the kernel has told the end of a program. A busy
/// machine runs the launcher late, and the end must be told within 100 ms.
const STATUS_LIMIT: Nanos = Nanos::from_millis(60);
/// Interval at which a freeze or a removal in progress is checked.
const LOOK_EVERY: Nanos = Nanos::from_micros(200);
/// Bytes of a container's output that are read at once: the capacity of its pipe.
const READ_BYTES: usize = 64 * 1024;
/// The pause between two reads of a container's output. It bounds the time of this thread that a container with
/// continuous output takes.
const READ_EVERY: Nanos = Nanos::from_millis(10);

/// The record of each container, from which a later run adopts it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Record {
    name: String,
    labels: BTreeMap<String, String>,
    image: String,
    /// 0 until the program runs.
    pid: u32,
    /// The kernel's start time of that process, in clock ticks since boot: process ids are used again.
    start_ticks: u64,
    started_unix_ms: u64,
    /// Functions of cards that it was given, and the network interfaces among them.
    functions: Vec<NetFunction>,
    interfaces: Vec<String>,
    /// The first of its ids on the host; none where it has the host's own.
    #[serde(default)]
    first_id: Option<u32>,
    /// The directory on the host in which it meets inco.
    #[serde(default)]
    exchange: Option<PathBuf>,
    /// The signal that asks it to end, by its number; `None` for SIGTERM.
    #[serde(default)]
    stop_signal: Option<i32>,
}

impl Record {
    /// Nothing but its name.
    fn of(name: &str) -> Record {
        Record {
            name: name.to_owned(),
            ..Record::default()
        }
    }
}

/// The embedded engine. See the [module](self).
#[derive(Debug)]
pub struct OciEngine {
    front: Front,
    hierarchy: Hierarchy,
    parent: String,
    usages: UsageReader,
}

impl OciEngine {
    /// Adopts the running containers of an earlier run, removes its other leftovers, and starts the engine's thread.
    /// Blocks for milliseconds, or seconds if there is much to remove.
    ///
    /// # Errors
    /// [`EngineError::NeedsRoot`]; [`EngineError::Unavailable`] if another inco uses the run directory;
    /// [`EngineError::Io`].
    pub fn start(config: OciConfig, launcher: Launcher) -> Result<OciEngine, EngineError> {
        let hierarchy = config.check()?;
        config.images.close_to_others()?;
        let parent = config.cgroup_parent();
        let (commands, received) = channel();
        let (told, events) = channel();
        let own = |errno| EngineError::Io {
            action: "set up",
            path: PathBuf::from("engine thread"),
            errno,
        };
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(own)?);
        let mut worker = Worker::new(
            config,
            hierarchy.clone(),
            parent.clone(),
            launcher,
            received,
            told,
            Arc::clone(&wake),
        )?;
        worker.recover()?;
        let post = move |command| {
            let sent = commands.send(command).is_ok();
            // A counter that is full wakes as well.
            let _ = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
            sent
        };
        Ok(OciEngine {
            front: Front::start(Box::new(post), events, move || worker.run())?,
            hierarchy,
            parent,
            usages: UsageReader::default(),
        })
    }
}

impl Engine for OciEngine {
    fn driver(&self) -> &'static str {
        "oci"
    }

    fn is_local(&self) -> bool {
        true
    }

    fn submit(&mut self, ticket: Ticket, request: Request) {
        self.front.submit(ticket, request);
    }

    fn execute(&mut self, execution: Execution) {
        self.front.execute(execution);
    }

    fn poll(&mut self, events: &mut Vec<EngineEvent>) {
        let before = events.len();
        self.front.poll(events);
        self.usages.close_ended(&events[before..]);
    }

    fn list(&mut self, label: &Label) -> Result<Vec<Container>, EngineError> {
        self.front.list(label)
    }

    fn usage(&self, name: &str) -> Result<Usage, EngineError> {
        check_name(name)?;
        let group = || Ok(self.hierarchy.group(&format!("{}/{name}", self.parent)));
        self.usages.usage(name, group)
    }
}

/// What a container's program does, as far as the engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Being made.
    Making,
    Running,
    Paused,
    Exited,
}

/// What is under way for a container.
#[derive(Debug)]
enum Job {
    Create {
        ticket: Ticket,
        since: Nanos,
        id: u64,
        deadline: Nanos,
        quota: Option<CpuQuota>,
    },
    Pause {
        ticket: Ticket,
        since: Nanos,
        deadline: Nanos,
        quota: Option<CpuQuota>,
    },
    Stop {
        ticket: Ticket,
        since: Nanos,
        kill_at: Nanos,
        deadline: Nanos,
    },
    Remove {
        ticket: Ticket,
        since: Nanos,
        deadline: Nanos,
        outcome: Result<(), EngineError>,
    },
}

#[derive(Debug)]
struct Managed {
    record: Record,
    group: Cgroup,
    phase: Phase,
    pidfd: Option<OwnedFd>,
    /// Its network namespace, where it has interfaces of the machine: they are there until they are taken back.
    network: Option<File>,
    output: Option<Output>,
    /// Whether the launcher is its parent, so that it can tell its exit status.
    told_by_launcher: bool,
    /// The kernel says that it has ended; the launcher has not yet said how.
    ended_at: Option<Nanos>,
    job: Option<Job>,
    waiting: VecDeque<(Ticket, Request, Nanos)>,
}

/// Our end of the pipe that a container's output goes to.
#[derive(Debug)]
struct Output {
    pipe: OwnedFd,
    /// When it is looked at again. It is not waited for before that.
    read_at: Option<Nanos>,
}

impl Output {
    /// Makes the pipe, for a program that is run by this user of the host, and opens it.
    fn make(path: &Path, owner: Owner) -> Result<Output, EngineError> {
        let failed = |errno| EngineError::Io {
            action: "make",
            path: path.to_owned(),
            errno,
        };
        mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        // Programs open /dev/stdout anew.
        let owner = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
        chown(path, Some(owner.0), Some(owner.1)).map_err(failed)?;
        Output::open(path)
    }

    fn open(path: &Path) -> Result<Output, EngineError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pipe = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| EngineError::Io {
            action: "open",
            path: path.to_owned(),
            errno,
        })?;
        Ok(Output { pipe, read_at: None })
    }

    /// What is in the pipe, up to [`READ_BYTES`].
    fn read(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(READ_BYTES);
        // No data yet, or all writers have closed the pipe.
        let _ = rustix::io::read(&self.pipe, rustix::buffer::spare_capacity(&mut bytes));
        bytes
    }
}

/// The receiver of a command's result.
enum Asker {
    /// Whether it exited with 0.
    Request(Ticket),
    /// How it ended, and what it wrote.
    Person(Box<dyn FnOnce(Result<Executed, EngineError>) + Send>),
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Asker::Request(ticket) => ticket.fmt(f),
            Asker::Person(_) => f.write_str("Person"),
        }
    }
}

/// A command that runs in a container beside its program.
#[derive(Debug)]
struct Beside {
    asker: Asker,
    since: Nanos,
    name: String,
    limit: Nanos,
    /// 0 until it runs.
    pid: u32,
    pidfd: Option<OwnedFd>,
    output: Option<File>,
}

struct Worker {
    config: OciConfig,
    hierarchy: Hierarchy,
    parent: String,
    commands: Receiver<Command>,
    events: Sender<EngineEvent>,
    wake: Arc<OwnedFd>,
    epoll: OwnedFd,
    launcher: Launcher,
    connected: bool,
    /// Held for as long as this engine lives.
    _lock: File,
    containers: BTreeMap<String, Managed>,
    /// Creates that the launcher has in hand, and those that were given up and may still come.
    making: HashMap<u64, String>,
    /// Commands that run, by the same numbers.
    beside: BTreeMap<u64, Beside>,
    /// Commands that the launcher is starting, with their containers. Until it reports them they may create again
    /// what was removed of a container.
    starting: HashMap<u64, String>,
    next_id: u64,
    down_since: Option<Nanos>,
    restart_at: Nanos,
    pinged_at: Nanos,
    /// When the launcher last said something.
    heard_at: Nanos,
    quit: bool,
}

/// Functions of cards that containers of the engine in this run directory have, also of one that runs no more.
pub fn functions_in_use(run_dir: &Path) -> Vec<NetFunction> {
    let bundles = fs::read_dir(run_dir.join("oci/containers"))
        .into_iter()
        .flatten()
        .flatten();
    let record = |directory: fs::DirEntry| -> Option<Record> {
        serde_json::from_slice(&fs::read(directory.path().join("record.json")).ok()?).ok()
    };
    bundles
        .filter_map(record)
        .flat_map(|record| record.functions)
        .collect()
}

/// The network namespace of a container that has interfaces of the machine.
fn network_of(record: &Record) -> Option<File> {
    if record.interfaces.is_empty() {
        return None;
    }
    File::open(format!("/proc/{}/ns/net", record.pid)).ok()
}

/// Moves interfaces from a namespace without processes into this one.
fn take_back(network: &File, interfaces: &[String]) -> Result<(), EngineError> {
    let there = Path::new("/proc/thread-self/ns/net");
    let failed = |error: &std::io::Error| EngineError::io("take interfaces back from", there, error);
    let ours = File::open(there).map_err(|error| failed(&error))?;
    // On a thread of its own, which ends in the other namespace.
    let taken = std::thread::scope(|scope| {
        let take = || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            for name in interfaces {
                dev_change_net_namespace(name, ours.as_raw_fd(), &LinuxNetDevice::default())
                    .map_err(std::io::Error::other)?;
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().spawn_scoped(scope, take)?;
        let panicked = |_| Err(std::io::Error::other("the thread panicked"));
        thread.join().unwrap_or_else(panicked)
    });
    taken.map_err(|error| failed(&error))
}

/// Epoll's words for what is ready. A pidfd has its process id, which is never this high.
const WAKE: u64 = u64::MAX;
const LAUNCHER: u64 = u64::MAX - 1;
/// With a process id: the output of that program.
const OUTPUT_OF: u64 = 1 << 32;
/// Told once, so that a container that writes all the time does not keep the thread awake.
const OUTPUT_EVENTS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

/// Field 22 of `/proc/<pid>/stat`. The name of the program before it may hold anything, so fields count from its end.
fn start_ticks(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

impl Worker {
    fn new(
        config: OciConfig,
        hierarchy: Hierarchy,
        parent: String,
        launcher: Launcher,
        commands: Receiver<Command>,
        events: Sender<EngineEvent>,
        wake: Arc<OwnedFd>,
    ) -> Result<Worker, EngineError> {
        let oci = config.run_dir.join("oci");
        for dir in ["containers", "state"] {
            let dir = oci.join(dir);
            fs::create_dir_all(&dir).map_err(|error| EngineError::io("make directory", &dir, &error))?;
        }
        let path = oci.join("lock");
        let lock = File::create(&path).map_err(|error| EngineError::io("open", &path, &error))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| EngineError::Unavailable {
            reason: format!(
                "another inco runs with {} as its run directory",
                config.run_dir.display()
            ),
        })?;
        let own = |errno| EngineError::Io {
            action: "set up",
            path: PathBuf::from("engine thread"),
            errno,
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(own)?;
        epoll::add(
            &epoll,
            &*wake,
            epoll::EventData::new_u64(WAKE),
            epoll::EventFlags::IN,
        )
        .map_err(own)?;
        epoll::add(
            &epoll,
            launcher.channel(),
            epoll::EventData::new_u64(LAUNCHER),
            epoll::EventFlags::IN,
        )
        .map_err(own)?;
        let at = monotonic();
        Ok(Worker {
            config,
            hierarchy,
            parent,
            commands,
            events,
            wake,
            epoll,
            launcher,
            connected: true,
            _lock: lock,
            containers: BTreeMap::new(),
            making: HashMap::new(),
            beside: BTreeMap::new(),
            starting: HashMap::new(),
            next_id: 1,
            down_since: None,
            restart_at: at,
            pinged_at: at,
            heard_at: at,
            quit: false,
        })
    }

    fn bundle_dir(&self, name: &str) -> PathBuf {
        self.config.run_dir.join("oci/containers").join(name)
    }

    fn state_dir(&self, name: &str) -> PathBuf {
        self.config.run_dir.join("oci/state").join(name)
    }

    fn group(&self, name: &str) -> Cgroup {
        self.hierarchy.group(&format!("{}/{name}", self.parent))
    }

    // ---- What an earlier run left.

    fn recover(&mut self) -> Result<(), EngineError> {
        let mut names: BTreeSet<String> = self.hierarchy.children(&self.parent).into_iter().collect();
        for dir in ["oci/containers", "oci/state"] {
            let entries = fs::read_dir(self.config.run_dir.join(dir))
                .into_iter()
                .flatten()
                .flatten();
            names.extend(entries.filter_map(|entry| entry.file_name().into_string().ok()));
        }
        names.retain(|name| check_name(name).is_ok());
        for name in names {
            match self.adoptable(&name) {
                Some(managed) => {
                    if let Some(pidfd) = &managed.pidfd {
                        self.watch(managed.record.pid, pidfd)?;
                    }
                    self.begin_log(&managed)?;
                    self.containers.insert(name, managed);
                }
                None => self.remove_leftover(&name)?,
            }
        }
        self.weigh();
        Ok(())
    }

    fn adoptable(&self, name: &str) -> Option<Managed> {
        let record = self.record(name)?;
        let pid = i32::try_from(record.pid).ok().and_then(Pid::from_raw)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let group = self.group(name);
        // Process ids are reused: the start time and the control group must match, too.
        let same =
            start_ticks(record.pid) == Some(record.start_ticks) && group.processes().contains(&record.pid);
        if !same {
            return None;
        }
        // A run that died in the middle of a pause leaves it half frozen.
        let phase = if group.is_frozen().ok()? {
            Phase::Paused
        } else {
            Phase::Running
        };
        if phase == Phase::Running {
            group.freeze(false).ok()?;
        }
        Some(Managed {
            network: network_of(&record),
            record,
            group,
            phase,
            pidfd: Some(pidfd),
            // An earlier version of inco made none.
            output: Output::open(&self.bundle_dir(name).join(OUTPUT)).ok(),
            told_by_launcher: false,
            ended_at: None,
            job: None,
            waiting: VecDeque::new(),
        })
    }

    fn remove_leftover(&self, name: &str) -> Result<(), EngineError> {
        let group = self.group(name);
        let deadline = monotonic() + REMOVE_LIMIT;
        while !(group.kill()? && group.remove()?) {
            if monotonic() > deadline {
                return Err(EngineError::Timeout {
                    verb: "remove",
                    name: name.to_owned(),
                    after: REMOVE_LIMIT,
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let record = self.record(name).unwrap_or_else(|| Record::of(name));
        self.remove_dirs(&record)
    }

    /// What is written about a container, where it can be read.
    fn record(&self, name: &str) -> Option<Record> {
        let text = fs::read(self.bundle_dir(name).join("record.json")).ok()?;
        let record: Record = serde_json::from_slice(&text).ok()?;
        (record.name == name).then_some(record)
    }

    fn remove_dirs(&self, record: &Record) -> Result<(), EngineError> {
        if let Some(dir) = &record.exchange {
            exchange::remove(dir)?;
        }
        for dir in [self.state_dir(&record.name), self.bundle_dir(&record.name)] {
            match fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(EngineError::io("remove", &dir, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    // ---- The loop.

    fn run(mut self) {
        while !self.quit {
            let timeout = self.sleep_for();
            let timeout = Timespec {
                tv_sec: (timeout.0 / 1_000_000_000) as i64,
                tv_nsec: (timeout.0 % 1_000_000_000) as i64,
            };
            let mut ready = Vec::with_capacity(64);
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut ready),
                Some(&timeout),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    let reason = format!("its thread cannot wait: {errno}");
                    self.tell(EngineEvent::EngineDown {
                        place: None,
                        reason,
                        at: monotonic(),
                    });
                    return;
                }
            }
            for event in ready {
                match event.data.u64() {
                    WAKE => self.take_commands(),
                    LAUNCHER => self.take_notices(),
                    data if data & OUTPUT_OF != 0 => self.read_output(data as u32),
                    pid => self.program_ended(pid as u32),
                }
            }
            self.look();
        }
        self.leave();
    }

    /// Until when there is nothing to do unless something happens.
    fn sleep_for(&self) -> Nanos {
        let at = monotonic();
        let mut until = if self.connected {
            self.pinged_at + PING_EVERY
        } else {
            self.restart_at
        };
        for beside in self.beside.values() {
            until = until.min(beside.since + beside.limit);
        }
        for container in self.containers.values() {
            let output = container.output.as_ref().and_then(|output| output.read_at);
            until = until.min(output.unwrap_or(until));
            let next = match &container.job {
                Some(Job::Pause { .. } | Job::Remove { .. }) => at + LOOK_EVERY,
                Some(Job::Create { deadline, .. }) => *deadline,
                Some(Job::Stop {
                    kill_at, deadline, ..
                }) => {
                    if *kill_at > at {
                        *kill_at
                    } else {
                        (at + Nanos::from_millis(1)).min(*deadline)
                    }
                }
                None => until,
            };
            until = until
                .min(next)
                .min(container.ended_at.map_or(until, |ended| ended + STATUS_LIMIT));
        }
        // A wait that is over already still looks at what is ready.
        until.since(at).max(Nanos::from_micros(20))
    }

    fn tell(&self, event: EngineEvent) {
        // The receiver is gone only when the engine is being dropped.
        let _ = self.events.send(event);
    }

    fn watch(&self, pid: u32, pidfd: &OwnedFd) -> Result<(), EngineError> {
        let data = epoll::EventData::new_u64(u64::from(pid));
        epoll::add(&self.epoll, pidfd, data, epoll::EventFlags::IN).map_err(|errno| EngineError::Io {
            action: "watch",
            path: PathBuf::from(format!("/proc/{pid}")),
            errno,
        })
    }

    // ---- Output.

    /// Keeps what a container writes from now on.
    fn begin_log(&self, container: &Managed) -> Result<(), EngineError> {
        let Record {
            name, labels, pid, ..
        } = &container.record;
        self.config.logs.begin(name, labels);
        let Some(output) = &container.output else {
            return Ok(());
        };
        let data = epoll::EventData::new_u64(OUTPUT_OF | u64::from(*pid));
        epoll::add(&self.epoll, &output.pipe, data, OUTPUT_EVENTS).map_err(|errno| EngineError::Io {
            action: "watch",
            path: self.bundle_dir(name).join(OUTPUT),
            errno,
        })
    }

    fn read_output(&mut self, pid: u32) {
        let found = self.containers.values_mut().find(|of| of.record.pid == pid);
        let Some(container) = found else { return };
        let Some(output) = &mut container.output else {
            return;
        };
        let bytes = output.read();
        // A pipe without writers stays readable: it is removed with the container.
        if !bytes.is_empty() {
            output.read_at = Some(monotonic() + READ_EVERY);
            self.config.logs.write(&container.record.name, &bytes);
        }
    }

    /// Waits again for the output of containers whose time has come.
    fn look_at_outputs(&mut self) {
        let at = monotonic();
        for container in self.containers.values_mut() {
            let Some(output) = &mut container.output else {
                continue;
            };
            if output.read_at.is_some_and(|read_at| read_at <= at) {
                output.read_at = None;
                let data = epoll::EventData::new_u64(OUTPUT_OF | u64::from(container.record.pid));
                if let Err(errno) = epoll::modify(&self.epoll, &output.pipe, data, OUTPUT_EVENTS) {
                    let name = &container.record.name;
                    tracing::warn!(name, %errno, "the output of a container is read no more");
                }
            }
        }
    }

    fn take_commands(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Request {
                    ticket,
                    request,
                    since,
                } => {
                    let name = request.name().to_owned();
                    match self
                        .containers
                        .get_mut(&name)
                        .filter(|container| container.job.is_some())
                    {
                        // It waits for nothing: what is under way may take longer than it may.
                        Some(_) if matches!(request, Request::Exec { .. }) => {
                            self.begin(ticket, request, since);
                        }
                        Some(container) => container.waiting.push_back((ticket, request, since)),
                        None => self.begin(ticket, request, since),
                    }
                }
                Command::Execute { execution, since } => {
                    let Execution {
                        name,
                        command,
                        limit,
                        answer,
                    } = execution;
                    self.begin_command(Asker::Person(answer), name, command, limit, since);
                }
                Command::List { label, answer } => {
                    let listed = self
                        .containers
                        .values()
                        .filter(|container| {
                            container.phase != Phase::Making && label.is_on(&container.record.labels)
                        })
                        .map(Managed::public)
                        .collect();
                    let _ = answer.send(Ok(listed));
                }
                Command::Quit => self.quit = true,
            }
        }
    }

    fn leave(self) {
        if self.containers.is_empty() {
            for file in ["oci/lock", "oci/containers", "oci/state", "oci"] {
                let path = self.config.run_dir.join(file);
                let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
            }
            let _ = self.hierarchy.group(&self.parent).remove();
        }
    }

    // ---- Requests.

    /// Begins a request for a container that has none under way.
    fn begin(&mut self, ticket: Ticket, request: Request, since: Nanos) {
        let name = request.name().to_owned();
        let begun = match request {
            Request::Create(spec) => self.begin_create(ticket, *spec, since),
            Request::Pause { .. } => self.begin_pause(ticket, &name, since),
            Request::Resume { .. } => self.resume(&name).map(|()| self.done(ticket, since)),
            Request::SetQuota { quota, .. } => self
                .running(&name)
                .and_then(|container| container.group.set_quota(quota))
                .map(|()| self.done(ticket, since)),
            Request::Stop { grace, .. } => self.begin_stop(ticket, &name, grace, since),
            Request::Remove { .. } => {
                self.begin_remove(ticket, &name, since, Ok(()));
                Ok(())
            }
            Request::Exec { command, limit, .. } => {
                self.begin_command(Asker::Request(ticket), name, command, limit, since);
                Ok(())
            }
        };
        if let Err(error) = begun {
            self.tell(EngineEvent::Failed {
                ticket,
                error,
                at: monotonic(),
            });
        }
    }

    /// Begins what waits for this container, until something takes time.
    fn go_on(&mut self, name: &str) {
        loop {
            let Some(container) = self.containers.get_mut(name) else {
                return;
            };
            if container.job.is_some() {
                return;
            }
            let Some((ticket, request, since)) = container.waiting.pop_front() else {
                return;
            };
            self.begin(ticket, request, since);
        }
    }

    fn done(&self, ticket: Ticket, since: Nanos) {
        let at = monotonic();
        self.tell(EngineEvent::Done {
            ticket,
            at,
            took: at.since(since),
        });
    }

    fn running(&mut self, name: &str) -> Result<&mut Managed, EngineError> {
        match self.containers.get_mut(name) {
            Some(container) if matches!(container.phase, Phase::Running | Phase::Paused) => Ok(container),
            Some(_) => Err(EngineError::NotRunning {
                name: name.to_owned(),
            }),
            None => Err(EngineError::NotFound {
                name: name.to_owned(),
            }),
        }
    }

    fn begin_create(&mut self, ticket: Ticket, spec: ContainerSpec, since: Nanos) -> Result<(), EngineError> {
        spec.check()?;
        let name = spec.name.clone();
        if self.containers.contains_key(&name) {
            return Err(EngineError::NameTaken { name });
        }
        if self.down_since.is_some() {
            return Err(EngineError::Unavailable {
                reason: "the launcher does not answer".to_owned(),
            });
        }
        let (rootfs, image) = self.config.images.resolve(&spec.image)?;
        if spec.command.is_empty() && image.command(&[]).is_empty() {
            let reason = format!("image {} has no entrypoint, and no command is given", image.name);
            return Err(EngineError::BadSpec {
                what: "no program",
                reason,
            });
        }
        for mount in &spec.mounts {
            fs::metadata(&mount.source).map_err(|error| EngineError::io("mount", &mount.source, &error))?;
        }
        let given = Given::find(&spec.functions, Path::new(SYS))?;
        let first_id = self.free_ids(spec.user_namespace)?;
        let place = stage::place(&self.config.run_dir)?;
        let stage = bundle::stage(&spec, &given, &rootfs, place, first_id, &image)?;
        let group = self.group(&name);
        let record = Record {
            labels: spec.labels.clone(),
            image: image.name.clone(),
            functions: spec.functions.clone(),
            interfaces: given.interfaces.clone(),
            first_id,
            exchange: spec.exchange.as_ref().map(|of| of.source.clone()),
            stop_signal: image.stop_signal,
            ..Record::of(&name)
        };
        let dir = self.bundle_dir(&name);
        let id = self.next_id;
        self.next_id += 1;
        let made = fs::create_dir_all(&dir)
            .map_err(|error| EngineError::io("make directory", &dir, &error))
            .and_then(|()| write_json(&dir.join("record.json"), &record))
            .and_then(|()| write_json(&dir.join(stage::FILE), &stage))
            .and_then(|()| {
                let config =
                    bundle::config(&spec, &given, &stage, &image, &format!("{}/{name}", self.parent));
                write_json(&dir.join("config.json"), &config)
            })
            .and_then(|()| match &spec.exchange {
                Some(of) => exchange::make(&of.source, stage.owner()),
                None => Ok(()),
            })
            .and_then(|()| {
                let order = Order::Create {
                    id,
                    name: name.clone(),
                    bundle: dir.display().to_string(),
                    state: self.config.run_dir.join("oci/state").display().to_string(),
                };
                // Before the program writes: output without a reader would be lost.
                let output = Output::make(&dir.join(OUTPUT), stage.owner())?;
                self.launcher
                    .channel()
                    .send(&order, &[], false)
                    .map_err(|errno| EngineError::Unavailable {
                        reason: format!("the launcher takes no order: {errno}"),
                    })?;
                Ok(output)
            });
        let output = match made {
            Ok(output) => output,
            Err(error) => {
                let _ = self.remove_dirs(&record);
                return Err(error);
            }
        };
        self.making.insert(id, name.clone());
        let deadline = monotonic() + self.config.create_timeout;
        let container = Managed {
            record,
            group,
            phase: Phase::Making,
            pidfd: None,
            network: None,
            output: Some(output),
            told_by_launcher: true,
            ended_at: None,
            job: Some(Job::Create {
                ticket,
                since,
                id,
                deadline,
                quota: spec.cpu,
            }),
            waiting: VecDeque::new(),
        };
        self.containers.insert(name, container);
        Ok(())
    }

    /// Ids of the host that no other container here has.
    fn free_ids(&self, wanted: bool) -> Result<Option<u32>, EngineError> {
        if !wanted {
            return Ok(None);
        }
        let of = |container: &Managed| container.record.first_id;
        let taken: BTreeSet<u32> = self.containers.values().filter_map(of).collect();
        let mut all = (0..stage::MAX_CONTAINERS).map(stage::first_id);
        let free = all.find(|first_id| !taken.contains(first_id));
        let none = EngineError::Busy {
            limit: stage::MAX_CONTAINERS as usize,
        };
        free.map(Some).ok_or(none)
    }

    fn begin_command(
        &mut self,
        asker: Asker,
        name: String,
        command: Vec<String>,
        limit: Nanos,
        since: Nanos,
    ) {
        match self.order_command(&name, command) {
            Ok(id) => {
                self.starting.insert(id, name.clone());
                let beside = Beside {
                    asker,
                    since,
                    name,
                    limit,
                    pid: 0,
                    pidfd: None,
                    output: None,
                };
                self.beside.insert(id, beside);
            }
            Err(error) => self.answer_command(asker, &name, since, Err(error)),
        }
    }

    /// Has the launcher run a command; gives its number.
    fn order_command(&mut self, name: &str, command: Vec<String>) -> Result<u64, EngineError> {
        check_command(&command)?;
        let container = self.running(name)?;
        let pid = container.record.pid;
        if container.phase == Phase::Paused {
            return Err(EngineError::NotRunning {
                name: name.to_owned(),
            });
        }
        let unavailable = |reason: String| EngineError::Unavailable { reason };
        if self.down_since.is_some() {
            return Err(unavailable("the launcher does not answer".to_owned()));
        }
        let id = self.next_id;
        self.next_id += 1;
        let order = Order::Exec {
            id,
            name: name.to_owned(),
            pid,
            bundle: self.bundle_dir(name).display().to_string(),
            state: self.config.run_dir.join("oci/state").display().to_string(),
            command,
        };
        self.launcher
            .channel()
            .send(&order, &[], false)
            .map_err(|errno| unavailable(format!("the launcher takes no order: {errno}")))?;
        Ok(id)
    }

    fn answer_command(&self, asker: Asker, name: &str, since: Nanos, result: Result<Executed, EngineError>) {
        match asker {
            Asker::Person(answer) => answer(result),
            Asker::Request(ticket) => match result.and_then(|executed| executed.verdict(name)) {
                Ok(()) => self.done(ticket, since),
                Err(error) => self.tell(EngineEvent::Failed {
                    ticket,
                    error,
                    at: monotonic(),
                }),
            },
        }
    }

    /// Answers for a command: it has ended.
    fn command_ended(&mut self, id: u64, exit: Exit) {
        let Some(beside) = self.beside.remove(&id) else {
            return;
        };
        let output = beside.output.as_ref().map(written).unwrap_or_default();
        let executed = Executed { exit, output };
        self.answer_command(beside.asker, &beside.name, beside.since, Ok(executed));
    }

    /// Answers for a command that is not waited for any more, and ends it.
    fn give_up_command(&self, beside: Beside, error: EngineError) {
        if let Some(pidfd) = &beside.pidfd {
            // One that has ended meanwhile is what was wanted.
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
        self.answer_command(beside.asker, &beside.name, beside.since, Err(error));
    }

    /// Ends commands that take too long.
    fn look_at_commands(&mut self) {
        let at = monotonic();
        let late = |beside: &Beside| at >= beside.since + beside.limit;
        let ids: Vec<u64> = self
            .beside
            .iter()
            .filter(|(_, beside)| late(beside))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            let Some(beside) = self.beside.remove(&id) else {
                continue;
            };
            if beside.pid == 0 {
                let _ = self.launcher.channel().send(&Order::Abort { id }, &[], false);
            }
            let error = EngineError::Timeout {
                verb: "run a command in",
                name: beside.name.clone(),
                after: beside.limit,
            };
            self.give_up_command(beside, error);
        }
    }

    fn begin_pause(&mut self, ticket: Ticket, name: &str, since: Nanos) -> Result<(), EngineError> {
        let container = self.running(name)?;
        if container.phase == Phase::Paused {
            self.done(ticket, since);
            return Ok(());
        }
        // A process that its quota stops cannot freeze before its next period.
        let quota = container.group.quota()?;
        if quota.is_some() {
            container.group.set_quota(None)?;
        }
        if let Err(error) = container.group.freeze(true) {
            let _ = container.group.set_quota(quota);
            return Err(error);
        }
        container.job = Some(Job::Pause {
            ticket,
            since,
            deadline: monotonic() + FREEZE_LIMIT,
            quota,
        });
        self.look_at(name);
        Ok(())
    }

    fn resume(&mut self, name: &str) -> Result<(), EngineError> {
        let container = self.running(name)?;
        container.group.freeze(false)?;
        container.phase = Phase::Running;
        Ok(())
    }

    fn begin_stop(
        &mut self,
        ticket: Ticket,
        name: &str,
        grace: Nanos,
        since: Nanos,
    ) -> Result<(), EngineError> {
        match self.running(name) {
            Err(EngineError::NotRunning { .. }) => {
                self.done(ticket, since);
                return Ok(());
            }
            other => other?,
        };
        self.resume(name)?;
        let container = self.running(name)?;
        if grace > Nanos::ZERO
            && let Some(pidfd) = &container.pidfd
        {
            let signal = stop_signal(container.record.stop_signal);
            // One that has ended meanwhile is what was wanted.
            let _ = pidfd_send_signal(pidfd, signal);
        }
        let kill_at = monotonic() + grace;
        container.job = Some(Job::Stop {
            ticket,
            since,
            kill_at,
            deadline: kill_at + REMOVE_LIMIT,
        });
        self.look_at(name);
        Ok(())
    }

    /// Begins to remove; what is answered once it is gone is `outcome`.
    fn begin_remove(&mut self, ticket: Ticket, name: &str, since: Nanos, outcome: Result<(), EngineError>) {
        match self.containers.get_mut(name) {
            Some(container) => {
                container.job = Some(Job::Remove {
                    ticket,
                    since,
                    deadline: monotonic() + REMOVE_LIMIT,
                    outcome,
                });
                self.look_at(name);
            }
            None => self.done(ticket, since),
        }
    }

    /// Gives the group of all containers here the weight of one program for each.
    fn weigh(&self) {
        self.hierarchy.group(&self.parent).weigh(self.containers.len());
    }

    // ---- What takes time.

    fn look(&mut self) {
        let busy: Vec<String> = self
            .containers
            .iter()
            .filter(|(_, container)| container.job.is_some() || container.ended_at.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        for name in busy {
            let at = monotonic();
            let late =
                |container: &&mut Managed| container.ended_at.is_some_and(|ended| ended + STATUS_LIMIT <= at);
            if self.containers.get_mut(&name).as_ref().is_some_and(late) {
                self.exited(&name, Exit::default());
            }
            self.look_at(&name);
        }
        self.look_at_commands();
        self.look_at_outputs();
        self.look_at_launcher();
    }

    /// Goes on with a container's job, as far as it goes at the moment.
    fn look_at(&mut self, name: &str) {
        let at = monotonic();
        let Some(container) = self.containers.get_mut(name) else {
            return;
        };
        let Some(job) = container.job.take() else { return };
        match job {
            Job::Create {
                ticket,
                since,
                id,
                deadline,
                quota,
            } => {
                if at < deadline {
                    container.job = Some(Job::Create {
                        ticket,
                        since,
                        id,
                        deadline,
                        quota,
                    });
                    return;
                }
                let _ = self.launcher.channel().send(&Order::Abort { id }, &[], false);
                let after = self.config.create_timeout;
                let error = EngineError::Timeout {
                    verb: "create",
                    name: name.to_owned(),
                    after,
                };
                self.begin_remove(ticket, name, since, Err(error));
                return;
            }
            Job::Pause {
                ticket,
                since,
                deadline,
                quota,
            } => {
                let frozen = container.group.is_frozen();
                if container.phase == Phase::Exited {
                    let error = EngineError::NotRunning {
                        name: name.to_owned(),
                    };
                    self.tell(EngineEvent::Failed { ticket, error, at });
                } else if matches!(frozen, Ok(false)) && at < deadline {
                    container.job = Some(Job::Pause {
                        ticket,
                        since,
                        deadline,
                        quota,
                    });
                    return;
                } else {
                    let frozen = frozen.and_then(|frozen| {
                        let late = EngineError::Timeout {
                            verb: "pause",
                            name: name.to_owned(),
                            after: FREEZE_LIMIT,
                        };
                        if frozen { Ok(()) } else { Err(late) }
                    });
                    let restored = quota.map_or(Ok(()), |quota| container.group.set_quota(Some(quota)));
                    match frozen.and(restored) {
                        Ok(()) => {
                            container.phase = Phase::Paused;
                            self.done(ticket, since);
                        }
                        Err(error) => {
                            let _ = container.group.freeze(false);
                            self.tell(EngineEvent::Failed { ticket, error, at });
                        }
                    }
                }
            }
            Job::Stop {
                ticket,
                since,
                kill_at,
                deadline,
            } => {
                if container.phase == Phase::Exited {
                    self.done(ticket, since);
                } else if at >= deadline {
                    let error = EngineError::Timeout {
                        verb: "stop",
                        name: name.to_owned(),
                        after: REMOVE_LIMIT,
                    };
                    self.tell(EngineEvent::Failed { ticket, error, at });
                } else {
                    if at >= kill_at {
                        // Again and again: what it forked meanwhile is to die, too.
                        let _ = container.group.kill();
                    }
                    container.job = Some(Job::Stop {
                        ticket,
                        since,
                        kill_at,
                        deadline,
                    });
                    return;
                }
            }
            Job::Remove {
                ticket,
                since,
                deadline,
                outcome,
            } => {
                let ended = matches!(container.phase, Phase::Exited | Phase::Making)
                    && !self.starting.values().any(|container| container == name);
                let gone = container.group.kill().and_then(|killed| {
                    if killed && ended {
                        container.group.remove()
                    } else {
                        Ok(false)
                    }
                });
                let gone = match gone {
                    Ok(true) => {
                        if let Some(network) = container.network.take()
                            && let Err(error) = take_back(&network, &container.record.interfaces)
                        {
                            // The kernel gives back what is hardware when the namespace is gone.
                            tracing::warn!(container = name, %error, "network interfaces were not taken back");
                        }
                        let record = container.record.clone();
                        self.remove_dirs(&record).map(|()| true)
                    }
                    other => other,
                };
                match gone {
                    Ok(false) if at < deadline => {
                        if let Some(container) = self.containers.get_mut(name) {
                            container.job = Some(Job::Remove {
                                ticket,
                                since,
                                deadline,
                                outcome,
                            });
                        }
                        return;
                    }
                    Ok(true) => {
                        let waiting = self
                            .containers
                            .remove(name)
                            .map(|container| container.waiting)
                            .unwrap_or_default();
                        self.weigh();
                        match outcome {
                            Ok(()) => self.done(ticket, since),
                            Err(error) => self.tell(EngineEvent::Failed { ticket, error, at }),
                        }
                        self.begin_after_removal(name, waiting);
                        return;
                    }
                    Ok(false) => {
                        let after = REMOVE_LIMIT;
                        let error = EngineError::Timeout {
                            verb: "remove",
                            name: name.to_owned(),
                            after,
                        };
                        self.tell(EngineEvent::Failed { ticket, error, at });
                    }
                    Err(error) => self.tell(EngineEvent::Failed { ticket, error, at }),
                }
            }
        }
        self.go_on(name);
    }

    /// What waited for a container that is gone now. A create among it makes another one, for which the rest waits.
    fn begin_after_removal(&mut self, name: &str, mut waiting: VecDeque<(Ticket, Request, Nanos)>) {
        while let Some((ticket, request, since)) = waiting.pop_front() {
            self.begin(ticket, request, since);
            if let Some(container) = self.containers.get_mut(name) {
                container.waiting.append(&mut waiting);
            }
        }
    }

    /// A pidfd is readable.
    fn program_ended(&mut self, pid: u32) {
        let found = self.containers.values_mut().find(|container| {
            container.record.pid == pid && matches!(container.phase, Phase::Running | Phase::Paused)
        });
        let Some(container) = found else { return };
        if let Some(pidfd) = &container.pidfd {
            let _ = epoll::delete(&self.epoll, pidfd);
        }
        if container.ended_at.is_some() {
            return;
        }
        container.ended_at = Some(monotonic());
        if !container.told_by_launcher {
            let name = container.record.name.clone();
            self.exited(&name, Exit::default());
        }
    }

    fn exited(&mut self, name: &str, exit: Exit) {
        let Some(container) = self.containers.get_mut(name) else {
            return;
        };
        if container.phase == Phase::Exited {
            return;
        }
        let at = container.ended_at.take().unwrap_or_else(monotonic);
        if let Some(pidfd) = container.pidfd.take() {
            let _ = epoll::delete(&self.epoll, &pidfd);
        }
        container.phase = Phase::Exited;
        let exit = Exit {
            out_of_memory: container.group.out_of_memory_kills() > 0,
            ..exit
        };
        if let Some(output) = container.output.take() {
            // No pipe holds more.
            for _ in 0..MAX_LOG_BYTES / READ_BYTES {
                let bytes = output.read();
                if bytes.is_empty() {
                    break;
                }
                self.config.logs.write(name, &bytes);
            }
        }
        self.config.logs.end(name);
        let output = self.config.logs.last_words(name, MAX_OUTPUT_BYTES);
        self.tell(EngineEvent::Exited {
            name: name.to_owned(),
            exit,
            output,
            at,
        });
        self.look_at(name);
    }

    // ---- The launcher.

    fn take_notices(&mut self) {
        loop {
            if !self.connected {
                return;
            }
            match self.launcher.channel().receive::<Notice>() {
                Ok(Received::Message(notice, files)) => {
                    self.heard();
                    self.take_notice(notice, files);
                }
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) => return self.lost("has ended"),
                Err(errno) => return self.lost(&format!("said nonsense: {errno}")),
            }
        }
    }

    fn take_notice(&mut self, notice: Notice, files: Vec<OwnedFd>) {
        match notice {
            Notice::Created { id, name, pid, at_ns } => self.created(id, &name, pid, Nanos(at_ns), files),
            Notice::Executing { id, pid } => {
                self.starting.remove(&id);
                let mut files = files.into_iter();
                let (output, pidfd) = (files.next(), files.next());
                if let Some(beside) = self.beside.get_mut(&id) {
                    beside.pid = pid;
                    beside.output = output.map(File::from);
                    beside.pidfd = pidfd;
                } else if let Some(pidfd) = pidfd {
                    // It was given up.
                    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
                }
            }
            Notice::Failed { id, name, reason } => {
                self.starting.remove(&id);
                if let Some(beside) = self.beside.remove(&id) {
                    let reason = format!("did not start: {reason}");
                    self.give_up_command(beside, EngineError::Command { name, reason });
                } else if self.making.remove(&id).is_some()
                    && let Some((ticket, since, _)) = self.take_create(id, &name)
                {
                    let error = EngineError::Start {
                        name: name.clone(),
                        reason,
                    };
                    self.begin_remove(ticket, &name, since, Err(error));
                }
            }
            Notice::Ended { pid, status, signal } => {
                let beside = self.beside.iter().find(|(_, beside)| beside.pid == pid);
                if let Some(id) = beside.map(|(id, _)| *id) {
                    let exit = Exit {
                        status,
                        signal,
                        out_of_memory: false,
                    };
                    return self.command_ended(id, exit);
                }
                let running = self.containers.values().find(|container| {
                    container.record.pid == pid && matches!(container.phase, Phase::Running | Phase::Paused)
                });
                if let Some(name) = running.map(|container| container.record.name.clone()) {
                    self.exited(
                        &name,
                        Exit {
                            status,
                            signal,
                            out_of_memory: false,
                        },
                    );
                }
            }
            Notice::Hello { .. } | Notice::Pong { .. } => {}
        }
    }

    /// The create with this id, if it is still what its container waits for.
    fn take_create(&mut self, id: u64, name: &str) -> Option<(Ticket, Nanos, Option<CpuQuota>)> {
        let container = self.containers.get_mut(name)?;
        match container.job {
            Some(Job::Create {
                ticket,
                since,
                id: own,
                quota,
                ..
            }) if own == id => {
                container.job = None;
                Some((ticket, since, quota))
            }
            _ => None,
        }
    }

    fn created(&mut self, id: u64, name: &str, pid: u32, at: Nanos, files: Vec<OwnedFd>) {
        let pidfd = files.into_iter().next();
        self.making.remove(&id);
        let Some((ticket, since, quota)) = self.take_create(id, name) else {
            // The caller has given the container up.
            if let Some(pidfd) = pidfd {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
            if !self.containers.contains_key(name) {
                let _ = self.remove_leftover(name);
            }
            return;
        };
        self.weigh();
        let Some(container) = self.containers.get_mut(name) else {
            return;
        };
        container.record.pid = pid;
        container.record.start_ticks = start_ticks(pid).unwrap_or_default();
        container.record.started_unix_ms = unix_ms();
        container.network = network_of(&container.record);
        container.phase = Phase::Running;
        let limited = quota.map_or(Ok(()), |quota| container.group.set_quota(Some(quota)));
        let record = container.record.clone();
        let kept = write_json(&self.bundle_dir(name).join("record.json"), &record);
        let watched = pidfd.as_ref().map_or(Ok(()), |pidfd| self.watch(pid, pidfd));
        let logged = self
            .containers
            .get(name)
            .map_or(Ok(()), |container| self.begin_log(container));
        if let Some(container) = self.containers.get_mut(name) {
            container.pidfd = pidfd;
        }
        match limited.and(kept).and(watched).and(logged) {
            Ok(()) => {
                shorten_slice(pid);
                let took = at.since(since);
                self.tell(EngineEvent::Created {
                    ticket,
                    name: name.to_owned(),
                    pid,
                    address: None,
                    at,
                    took,
                });
                self.go_on(name);
            }
            Err(error) => {
                // It never was, so that its end is not told either.
                if let Some(container) = self.containers.get_mut(name) {
                    container.phase = Phase::Making;
                }
                self.begin_remove(ticket, name, since, Err(error));
            }
        }
    }

    fn look_at_launcher(&mut self) {
        let at = monotonic();
        if !self.connected {
            if at >= self.restart_at {
                self.restart_at = at + RESTART_EVERY;
                self.restart();
            }
            return;
        }
        if at >= self.pinged_at + PING_EVERY {
            self.pinged_at = at;
            // One that takes no more is silent.
            let _ = self
                .launcher
                .channel()
                .send(&Order::Ping { number: at.0 }, &[], false);
        }
        // Since it was asked, not since it last spoke: this thread may have slept itself.
        if self.down_since.is_none() && at.since(self.heard_at) > PING_EVERY + LAUNCHER_SILENCE {
            self.down("does not answer");
        }
    }

    fn heard(&mut self) {
        let at = monotonic();
        self.heard_at = at;
        if let Some(since) = self.down_since.take() {
            self.tell(EngineEvent::EngineUp {
                place: None,
                at,
                after: at.since(since),
            });
        }
    }

    fn down(&mut self, what: &str) {
        if self.down_since.is_some() {
            return;
        }
        let at = monotonic();
        self.down_since = Some(at);
        self.tell(EngineEvent::EngineDown {
            place: None,
            reason: format!("the launcher {what}"),
            at,
        });
        // What it had in hand is given up; what may still come of it is removed then.
        self.starting.clear();
        for (_, beside) in std::mem::take(&mut self.beside) {
            let reason = format!("the launcher {what}");
            self.give_up_command(beside, EngineError::Unavailable { reason });
        }
        for (id, name) in std::mem::take(&mut self.making) {
            if let Some((ticket, since, _)) = self.take_create(id, &name) {
                let reason = format!("the launcher {what}");
                self.begin_remove(ticket, &name, since, Err(EngineError::Unavailable { reason }));
            }
        }
    }

    fn lost(&mut self, what: &str) {
        let _ = epoll::delete(&self.epoll, self.launcher.channel());
        self.connected = false;
        self.restart_at = monotonic();
        for container in self.containers.values_mut() {
            container.told_by_launcher = false;
        }
        self.down(what);
    }

    fn restart(&mut self) {
        let Ok(launcher) = self.launcher.again() else {
            return;
        };
        let data = epoll::EventData::new_u64(LAUNCHER);
        if epoll::add(&self.epoll, launcher.channel(), data, epoll::EventFlags::IN).is_err() {
            return;
        }
        self.launcher = launcher;
        self.connected = true;
        self.pinged_at = monotonic();
        self.heard();
    }
}

impl Managed {
    fn public(&self) -> Container {
        let state = match self.phase {
            Phase::Making | Phase::Running => ContainerState::Running,
            Phase::Paused => ContainerState::Paused,
            Phase::Exited => ContainerState::Exited,
        };
        Container {
            name: self.record.name.clone(),
            labels: self.record.labels.clone(),
            pid: if self.phase == Phase::Exited {
                0
            } else {
                self.record.pid
            },
            state,
            started_unix_ms: self.record.started_unix_ms,
            address: None,
        }
    }
}

/// What a command wrote to the file of its output, which is full of zeros after that.
fn written(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; MAX_COMMAND_OUTPUT_BYTES];
    let got = file.read_at(&mut bytes, 0).unwrap_or(0);
    bytes.truncate(got);
    let end = bytes.iter().rposition(|&byte| byte != 0);
    bytes.truncate(end.map_or(0, |last| last + 1));
    bytes
}

/// Written whole or not at all.
fn write_json(path: &Path, value: &impl Serialize) -> Result<(), EngineError> {
    let beside = path.with_extension("new");
    let text = serde_json::to_vec_pretty(value).unwrap_or_default();
    File::create(&beside)
        .and_then(|mut file| file.write_all(&text))
        .and_then(|()| fs::rename(&beside, path))
        .map_err(|error| EngineError::io("write", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_run_directories_have_two_control_groups() {
        assert_eq!(OciConfig::at("/run/inco").cgroup_parent(), "/inco");
        let (a, b) = (
            OciConfig::at("/tmp/a").cgroup_parent(),
            OciConfig::at("/tmp/b").cgroup_parent(),
        );
        assert!(a.starts_with("/inco-") && a != b);
    }

    #[test]
    fn the_start_of_a_process_is_read_past_its_name() {
        let own = start_ticks(std::process::id()).unwrap();
        assert!(own > 0);
        assert_eq!(start_ticks(std::process::id()), Some(own));
        assert_eq!(start_ticks(0), None);
    }

    #[test]
    fn what_a_command_wrote_ends_where_the_zeros_begin() {
        let path = tempfile::NamedTempFile::new().unwrap();
        fs::write(path.path(), b"one\0two\n\0\0\0").unwrap();
        assert_eq!(written(&File::open(path.path()).unwrap()), b"one\0two\n");
    }
}
