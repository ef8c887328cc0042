//! The launcher: a small process with one thread that makes containers for the engine. Making a container forks. A
//! fork of a process with threads is unsafe, and with gigabytes of memory it is slow; so the launcher starts before
//! either exists.
//!
//! 1. The program first calls [`Launcher::start`], which runs the program again with the arguments of
//!    [`LauncherCommand`]. That run calls [`main`].
//! 2. The launcher forks once more for each container, so that several are made at once and none affects another.
//! 3. Containers are its descendants: it reaps them and reports how they ended.
//! 4. It is the [keeper](::keeper) of the program's files: the memory of flow tables and rings, and their sockets.
//!    When the program dies, the launcher exits at once if it keeps nothing. Else it waits for the next run, for ever
//!    or for as long as the program asked for; then it runs the program with [`LauncherCommand::clean_up`].
//!    Containers run on in all cases.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keeper::Keeper;
use libcontainer::capabilities::drop_privileges;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::syscall::syscall::{SyscallType, create_syscall};
use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
    socketpair,
};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getrlimit, pidfd_open, pidfd_send_signal,
    setrlimit, wait,
};
use rustix::thread::{
    Gid, LinkNameSpaceType, Uid, move_into_link_name_space, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use seccompiler::BpfProgram;

use crate::seccomp::Calls;
use crate::stage::Stage;
use crate::wire::{Channel, Notice, Order, Received, VERSION};
use crate::{EngineError, MAX_COMMAND_OUTPUT_BYTES, OPEN_FILES, Owner, port, seccomp};

/// The variables of its environment: its run directory, and the argument that has the program clean up.
const RUN_DIR: &str = "INCO_LAUNCHER_RUN_DIR";
const CLEAN_UP: &str = "INCO_LAUNCHER_CLEAN_UP";
/// The pipe in a container's bundle that the standard output and error of its program go to.
pub(crate) const OUTPUT: &str = "output";
/// How long the launcher may take to answer what it answers at once.
const ANSWER: Duration = Duration::from_secs(2);
/// How long creates may still take once the program is gone: less than what the next run waits.
const FINISH: Duration = Duration::from_secs(1);
/// The longest reason for a failure that is passed on, in bytes: a message has room for it.
const MAX_REASON: usize = 4096;
/// What is said of a launcher that has left.
const ENDED: &str = "the launcher has ended";
/// Its socket in the run directory, over which the next run finds it.
pub const SOCKET: &str = "launcher.sock";

/// How to run the launcher: a program that calls [`main`] when it has these arguments.
#[derive(Clone, Debug)]
pub struct LauncherCommand {
    /// The program.
    pub program: PathBuf,
    /// What makes it the launcher.
    pub arguments: Vec<OsString>,
    /// The argument that has the program remove everything in its run directory (`INCO_RUN_DIR`): for a launcher
    /// whose wait for the next run is over.
    pub clean_up: Option<OsString>,
}

impl LauncherCommand {
    /// The running program itself, with these arguments.
    pub fn this_program<I: Into<OsString>>(arguments: impl IntoIterator<Item = I>) -> LauncherCommand {
        LauncherCommand {
            // Not its name: that may be another file by now.
            program: PathBuf::from("/proc/self/exe"),
            arguments: arguments.into_iter().map(Into::into).collect(),
            clean_up: None,
        }
    }

    /// The same, with an argument to clean up.
    #[must_use]
    pub fn cleaning_up_by(mut self, argument: impl Into<OsString>) -> LauncherCommand {
        self.clean_up = Some(argument.into());
        self
    }
}

/// The program's end of a launcher.
#[derive(Debug)]
pub struct Launcher {
    channel: Channel,
    command: LauncherCommand,
    run_dir: PathBuf,
    pid: u32,
    /// Where it was started by this run.
    child: Option<Child>,
    /// What it keeps for this program, once it was asked for.
    keeper: Option<Arc<Keeper>>,
}

impl Launcher {
    /// Starts a launcher, or takes over the one that an earlier run with the same run directory left. One that runs
    /// another program is replaced: the new one takes what it keeps. Must be called before the program has threads or
    /// much memory.
    ///
    /// # Errors
    /// [`EngineError::Io`] if it cannot be started; [`EngineError::Unavailable`] if it does not answer, for example
    /// because another program with the same run directory uses it.
    pub fn start(command: LauncherCommand, run_dir: &Path) -> Result<Launcher, EngineError> {
        fs::create_dir_all(run_dir).map_err(|e| EngineError::io("make directory", run_dir, &e))?;
        let Some((channel, pid)) = adopt(run_dir, &command)? else {
            return Launcher::spawn(command, run_dir);
        };
        Ok(Launcher {
            channel,
            command,
            run_dir: run_dir.to_path_buf(),
            pid,
            child: None,
            keeper: None,
        })
    }

    fn spawn(command: LauncherCommand, run_dir: &Path) -> Result<Launcher, EngineError> {
        let at = |errno| EngineError::Io {
            action: "start",
            path: command.program.clone(),
            errno,
        };
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(at)?;
        let mut child = Command::new(&command.program)
            // Under this name it is found in a list of processes.
            .arg0("inco")
            .args(&command.arguments)
            .env(RUN_DIR, run_dir)
            .envs(command.clean_up.iter().map(|argument| (CLEAN_UP, argument)))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Ctrl-C is for the program, which then still needs its launcher to clean up.
            .process_group(0)
            .spawn()
            .map_err(|e| EngineError::io("start", &command.program, &e))?;
        let channel = Channel(ours);
        let Hello { pid, .. } = hello(&channel).inspect_err(|_| {
            // It died, or it is of no use.
            let _ = child.kill();
            let _ = child.wait();
            keeper::Server::remove_unfinished(run_dir, child.id());
        })?;
        Ok(Launcher {
            channel,
            command,
            run_dir: run_dir.to_path_buf(),
            pid,
            child: Some(child),
            keeper: None,
        })
    }

    /// What it keeps for this program, and kept for the one before.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] where it does not answer.
    pub fn keeper(&mut self) -> Result<Arc<Keeper>, EngineError> {
        if let Some(keeper) = &self.keeper {
            return Ok(Arc::clone(keeper));
        }
        let keeper = Keeper::connect(&self.run_dir).map_err(|error| lost(&error))?;
        let keeper = Arc::new(keeper.ok_or_else(|| EngineError::Unavailable {
            reason: format!("the launcher does not listen in {}", self.run_dir.display()),
        })?);
        self.keeper = Some(Arc::clone(&keeper));
        Ok(keeper)
    }

    /// Its process id.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Another one in its place, as it was started. It gets what this one kept.
    pub(crate) fn again(&self) -> Result<Launcher, EngineError> {
        let mut launcher = Launcher::start(self.command.clone(), &self.run_dir)?;
        if let Some(keeper) = &self.keeper {
            match keeper.give_again() {
                Ok(entries) => tracing::info!(entries, "the new launcher keeps what the old one kept"),
                Err(error) => {
                    tracing::warn!(%error, "the next run will find no flows: the new launcher keeps nothing")
                }
            }
            launcher.keeper = Some(Arc::clone(keeper));
        }
        Ok(launcher)
    }

    pub(crate) const fn channel(&self) -> &Channel {
        &self.channel
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Its socket closes after this; it leaves by itself then.
        let mut child = self.child.take();
        let (one, two) = match socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        ) {
            Ok(pair) => pair,
            Err(_) => return,
        };
        drop(two);
        drop(std::mem::replace(&mut self.channel, Channel(one)));
        let keeps = |keeper: &Arc<Keeper>| keeper.entries().is_ok_and(|entries| entries > 0);
        if self.keeper.as_ref().is_some_and(keeps) {
            // One that has ended is reaped; another one waits for the next run.
            let _ = child.as_mut().map(Child::try_wait);
            return;
        }
        let deadline = Instant::now() + ANSWER;
        let socket = self.run_dir.join(SOCKET);
        let runs = |child: &mut Option<Child>| match child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            // One of an earlier run is no child of this process.
            None => socket.exists(),
        };
        while runs(&mut child) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The next message, within a time.
fn wait_for(channel: &Channel, deadline: Instant) -> Result<(Notice, Vec<OwnedFd>), EngineError> {
    let lost = |reason: &str| EngineError::Unavailable {
        reason: format!("the launcher {reason}"),
    };
    loop {
        match channel.receive() {
            Ok(Received::Message(notice, files)) => return Ok((notice, files)),
            Ok(Received::Nothing) => {}
            Ok(Received::Closed) => {
                return Err(EngineError::Unavailable {
                    reason: ENDED.to_owned(),
                });
            }
            Err(errno) => return Err(lost(&format!("said nonsense: {errno}"))),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(lost(
                "does not answer: does another inco use the same run directory?",
            ));
        }
        let mut fds = [PollFd::new(channel, PollFlags::IN)];
        let timeout = left.try_into().ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(lost(&errno.to_string())),
        }
    }
}

/// What a launcher says first.
struct Hello {
    version: u32,
    pid: u32,
}

fn hello(channel: &Channel) -> Result<Hello, EngineError> {
    match wait_for(channel, Instant::now() + ANSWER)? {
        (Notice::Hello { version, pid }, _) => Ok(Hello { version, pid }),
        (other, _) => Err(EngineError::Unavailable {
            reason: format!("the launcher said {other:?} and not who it is: end it and start again"),
        }),
    }
}

/// Connects to the launcher that an earlier run left waiting. [`None`] if there is none, or one that runs another
/// program: the new launcher's keeper replaces it.
fn adopt(run_dir: &Path, command: &LauncherCommand) -> Result<Option<(Channel, u32)>, EngineError> {
    let path = run_dir.join(SOCKET);
    if !path.exists() {
        return Ok(None);
    }
    let at = |errno| EngineError::Io {
        action: "connect to",
        path: path.clone(),
        errno,
    };
    let address = SocketAddrUnix::new(&path).map_err(at)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(at)?;
    match connect(&socket, &address) {
        Ok(()) => {}
        // It was killed.
        Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(at(errno)),
    }
    let channel = Channel(socket);
    match hello(&channel) {
        Ok(Hello { version, pid }) if version == VERSION && is_same_program(pid, command) => {
            Ok(Some((channel, pid)))
        }
        Ok(Hello { version, pid }) => {
            tracing::info!(version, pid, "the launcher runs another program: it is replaced");
            Ok(None)
        }
        // It was just leaving, since it keeps nothing.
        Err(EngineError::Unavailable { reason }) if reason == ENDED => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether that launcher runs the program of the command: the same file, also if that has been removed.
fn is_same_program(launcher: u32, command: &LauncherCommand) -> bool {
    let file = |path: &Path| fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    let running = file(Path::new(&format!("/proc/{launcher}/exe")));
    // One that may not be looked at is taken as it is.
    running.is_none() || running == file(&command.program)
}

fn lost(error: &keeper::Error) -> EngineError {
    EngineError::Unavailable {
        reason: format!("the launcher: {error}"),
    }
}

/// The system calls that containers may make.
struct Filters {
    usual: BpfProgram,
    frames: BpfProgram,
    ordinary: BpfProgram,
}

impl Filters {
    fn of(&self, calls: Calls) -> &BpfProgram {
        match calls {
            Calls::Usual => &self.usual,
            Calls::Frames => &self.frames,
            Calls::Ordinary => &self.ordinary,
        }
    }
}

/// Runs the program of a container: the last step, in the container.
#[derive(Clone)]
struct Exec {
    filter: Rc<Filters>,
    calls: Calls,
    /// The user namespace that a command must enter, and its user there: the runtime does not enter it.
    user: Option<(Arc<OwnedFd>, Owner)>,
    /// Closed by a successful exec; otherwise the reason is written to it.
    failure: Arc<OwnedFd>,
}

impl Executor for Exec {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let arguments = spec
            .process()
            .as_ref()
            .and_then(|process| process.args().as_ref());
        let Some((program, rest)) = arguments.and_then(|arguments| arguments.split_first()) else {
            return Err(ExecutorError::InvalidArg);
        };
        let filter = self.filter.of(self.calls);
        let user = self.user.as_ref();
        let entered = user.map_or(Ok(()), |(namespace, user)| enter(namespace, *user, spec));
        let reason = match entered.map(|()| seccompiler::apply_filter(filter)) {
            Ok(Ok(())) => {
                let error = Command::new(program).args(rest).exec();
                format!("cannot run {program}: {error}")
            }
            Ok(Err(error)) => format!("cannot limit its system calls: {error}"),
            Err(reason) => reason,
        };
        // Nobody to tell where this fails, too.
        let _ = rustix::io::write(&*self.failure, reason.as_bytes());
        Err(ExecutorError::Other(reason))
    }

    fn validate(&self, _spec: &Spec) -> Result<(), ExecutorValidationError> {
        // The kernel says it better, in `exec`.
        Ok(())
    }
}

/// Enters the user namespace as this user, with the capabilities of the specification and no others. Entering needs
/// no capability for the user who created the namespace.
fn enter(namespace: &OwnedFd, user: Owner, spec: &Spec) -> Result<(), String> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid))
        .map_err(words("enter the user namespace"))?;
    // It came with all of them.
    let process = spec.process().as_ref();
    let capabilities = process.and_then(|process| process.capabilities().clone());
    let capabilities = capabilities.ok_or("no capabilities are said")?;
    drop_privileges(&capabilities, create_syscall().as_ref()).map_err(in_full)
}

/// A create in hand: the forked process that does it, and the socket on which it tells how it went.
struct Making {
    name: String,
    maker: Pid,
    report: Channel,
}

/// The socket for the next run. Its file is removed at the end only if it is still the same file: the next run may
/// have created its own.
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    inode: Option<u64>,
}

fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|data| data.ino())
}

struct Service {
    filter: Rc<Filters>,
    listener: Option<Listener>,
    parent: Option<Channel>,
    making: BTreeMap<u64, Making>,
    /// Programs of containers that were started here and have not ended.
    running: BTreeMap<i32, OwnedFd>,
    /// Descendants that ended before anybody said that they were a container's program.
    early: BTreeMap<i32, (Option<i32>, Option<i32>)>,
    /// Without it this launcher works, but the next run finds nothing that was kept.
    keeper: Option<keeper::Server>,
    /// Since when it has no program.
    alone_since: Option<Instant>,
}

/// The launcher's main loop: serves the program at the other end of the socket that is its standard input, until the
/// socket closes. Must not be called in a process with threads.
///
/// # Errors
/// [`EngineError::Unavailable`] if standard input is no such socket; [`EngineError::Io`].
pub fn main() -> Result<(), EngineError> {
    let own = |errno| EngineError::Io {
        action: "set up",
        path: PathBuf::from("launcher"),
        errno,
    };
    let parent = Channel(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(own)?);
    let null = File::open("/dev/null").map_err(|e| EngineError::io("open", Path::new("/dev/null"), &e))?;
    rustix::stdio::dup2_stdin(&null).map_err(own)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(own)?;
    let filter = |calls| {
        seccomp::filter(calls).map_err(|error| EngineError::BadSpec {
            what: "its filter of system calls",
            reason: error.to_string(),
        })
    };
    raise_own_open_files();
    let run_dir = std::env::var_os(RUN_DIR).map(PathBuf::from);
    let filters = Filters {
        usual: filter(Calls::Usual)?,
        frames: filter(Calls::Frames)?,
        ordinary: filter(Calls::Ordinary)?,
    };
    let mut service = Service {
        filter: Rc::new(filters),
        listener: listen_in(run_dir.as_deref()),
        parent: None,
        making: BTreeMap::new(),
        running: BTreeMap::new(),
        early: BTreeMap::new(),
        keeper: run_dir.as_deref().and_then(keep_in),
        alone_since: Some(Instant::now()),
    };
    // What it has taken over waits for the next run where the program has died meanwhile.
    if let Err(error) = service.greet(parent)
        && service.keeper.as_ref().is_none_or(keeper::Server::is_empty)
    {
        return Err(error);
    }
    let served = service.serve();
    // Before the launcher's own socket, whose end says that all is gone.
    drop(service.keeper.take());
    if let Some(listener) = &service.listener
        && inode(&listener.path) == listener.inode
    {
        let _ = fs::remove_file(&listener.path);
    }
    served
}

/// Without this socket the launcher works, but no later run finds it.
fn listen_in(run_dir: Option<&Path>) -> Option<Listener> {
    let path = run_dir?.join(SOCKET);
    let address = SocketAddrUnix::new(&path).ok()?;
    let _ = fs::remove_file(&path);
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .ok()?;
    bind(&socket, &address).ok()?;
    listen(&socket, 4).ok()?;
    let inode = inode(&path);
    Some(Listener { socket, path, inode })
}

fn keep_in(run_dir: &Path) -> Option<keeper::Server> {
    match keeper::Server::bind(run_dir) {
        Ok(server) => Some(server),
        Err(error) => {
            tracing::warn!(%error, "nothing is kept for the next run");
            None
        }
    }
}

/// Lets this process keep as many files as the system allows. Containers have a limit of their own.
fn raise_own_open_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    // Where it may not, it keeps fewer.
    let _ = setrlimit(Resource::Nofile, all);
}

impl Service {
    fn greet(&mut self, parent: Channel) -> Result<(), EngineError> {
        let hello = Notice::Hello {
            version: VERSION,
            pid: std::process::id(),
        };
        parent.send(&hello, &[], true).map_err(|errno| {
            let reason = format!("the launcher is run by inco, not by hand ({errno})");
            EngineError::Unavailable { reason }
        })?;
        self.parent = Some(parent);
        self.alone_since = None;
        Ok(())
    }

    fn serve(&mut self) -> Result<(), EngineError> {
        loop {
            if self.parent.is_some() && !self.take_orders() {
                self.parent = None;
                self.alone_since = Some(Instant::now());
                self.finish_making()?;
            }
            if let Some(keeper) = &mut self.keeper
                && keeper.serve() == keeper::Order::Leave
            {
                return Ok(());
            }
            if self.parent.is_none() {
                self.find_parent();
            }
            if self.parent.is_none() && self.is_over() {
                return Ok(());
            }
            self.take_reports();
            self.reap();
            self.wait_for_anything()?;
        }
    }

    /// Takes the next run that has come, if one has.
    fn find_parent(&mut self) {
        while let Some(Listener { socket, .. }) = &self.listener
            && let Ok(socket) = accept_with(socket, SocketFlags::CLOEXEC)
        {
            // One that has hung up already is no parent.
            if self.greet(Channel(socket)).is_ok() {
                return;
            }
        }
    }

    /// Whether there is nothing to wait for. Has the program clean up once the wait for its next run is over.
    fn is_over(&mut self) -> bool {
        let Some(keeper) = &self.keeper else { return true };
        if keeper.is_empty() {
            return true;
        }
        if let (Some(since), Some(limit)) = (self.alone_since, keeper.linger())
            && since.elapsed() >= limit
        {
            // Once. What it does not remove, the next run or `inco stop` does.
            self.alone_since = None;
            clean_up();
        }
        false
    }

    /// The program has died during creates. Their containers have no record, so they are killed. The next run waits
    /// until this launcher has exited, so that no container appears later.
    fn finish_making(&mut self) -> Result<(), EngineError> {
        let deadline = Instant::now() + FINISH;
        while !self.making.is_empty() {
            if Instant::now() > deadline {
                for making in self.making.values() {
                    let _ = rustix::process::kill_process(making.maker, Signal::KILL);
                }
            }
            self.take_reports();
            self.reap();
            if !self.making.is_empty() {
                self.wait_for_anything()?;
            }
        }
        Ok(())
    }

    /// Sleeps until an order, a report, the end of a program, or the next run. The end of another child (a killed
    /// maker) wakes nobody; it is reaped within a second.
    fn wait_for_anything(&self) -> Result<(), EngineError> {
        let mut fds = Vec::with_capacity(4 + self.making.len() + self.running.len());
        let channels = self
            .parent
            .iter()
            .chain(self.making.values().map(|making| &making.report));
        fds.extend(channels.map(|channel| PollFd::new(channel, PollFlags::IN)));
        let keeper = self.keeper.iter().flat_map(keeper::Server::files);
        fds.extend(keeper.map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN)));
        // While it has a program, the next one waits.
        let listener = self.listener.iter().filter(|_| self.parent.is_none());
        fds.extend(listener.map(|listener| PollFd::new(&listener.socket, PollFlags::IN)));
        fds.extend(
            self.running
                .values()
                .map(|pidfd| PollFd::new(pidfd, PollFlags::IN)),
        );
        let second = rustix::time::Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        match poll(&mut fds, Some(&second)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(EngineError::Io {
                action: "wait in",
                path: PathBuf::from("launcher"),
                errno,
            }),
        }
    }

    /// False once the program is gone.
    fn take_orders(&mut self) -> bool {
        loop {
            let received = match &self.parent {
                Some(parent) => parent.receive(),
                None => return false,
            };
            match received {
                Ok(Received::Message(order, _)) => self.obey(order),
                Ok(Received::Nothing) => return true,
                Ok(Received::Closed) => return false,
                Err(Errno::BADMSG | Errno::MSGSIZE) => {}
                Err(_) => return false,
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Create {
                id,
                name,
                bundle,
                state,
            } => self.make(id, &name, |filter| {
                let (pid, at_ns, files) = try_make(&name, &bundle, &state, filter)?;
                let name = name.clone();
                Ok((Notice::Created { id, name, pid, at_ns }, files))
            }),
            Order::Exec {
                id,
                name,
                pid,
                bundle,
                state,
                command,
            } => self.make(id, &name, |filter| {
                let (pid, files) = try_exec(&name, pid, &bundle, &state, command, filter)?;
                Ok((Notice::Executing { id, pid }, files))
            }),
            Order::Abort { id } => {
                if let Some(making) = self.making.get(&id) {
                    let _ = rustix::process::kill_process(making.maker, Signal::KILL);
                }
            }
            Order::Ping { number } => self.tell(&Notice::Pong { number }, &[]),
        }
    }

    fn tell(&self, notice: &Notice, files: &[BorrowedFd<'_>]) {
        if let Some(parent) = &self.parent {
            // A program that is gone is noticed by the next receive.
            let _ = parent.send(notice, files, true);
        }
    }

    /// Forks a process that makes something and tells how it went.
    fn make(
        &mut self,
        id: u64,
        name: &str,
        made: impl FnOnce(&Rc<Filters>) -> Result<(Notice, Vec<OwnedFd>), String>,
    ) {
        let failed = |errno: Errno| Notice::Failed {
            id,
            name: name.to_owned(),
            reason: errno.to_string(),
        };
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let (ours, theirs) = match pair {
            Ok((ours, theirs)) => (Channel(ours), Channel(theirs)),
            Err(errno) => return self.tell(&failed(errno), &[]),
        };
        // SAFETY: this process has one thread, so that the child's copy of memory is whole; the child never
        // returns from this branch.
        #[expect(unsafe_code)]
        let forked = unsafe { libc::fork() };
        match forked {
            0 => {
                drop(ours);
                let (notice, files) = made(&self.filter).unwrap_or_else(|reason| {
                    let reason = cut(reason);
                    let name = name.to_owned();
                    (Notice::Failed { id, name, reason }, Vec::new())
                });
                let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
                let told = theirs.send(&notice, &files, true);
                std::process::exit(i32::from(told.is_err()));
            }
            pid => match Pid::from_raw(pid).filter(|_| pid > 0) {
                Some(maker) => {
                    self.making.insert(
                        id,
                        Making {
                            name: name.to_owned(),
                            maker,
                            report: ours,
                        },
                    );
                }
                None => {
                    let errno = std::io::Error::last_os_error()
                        .raw_os_error()
                        .unwrap_or(libc::EIO);
                    self.tell(&failed(Errno::from_raw_os_error(errno)), &[]);
                }
            },
        }
    }

    fn take_reports(&mut self) {
        let ids: Vec<u64> = self.making.keys().copied().collect();
        for id in ids {
            let Some(making) = self.making.get(&id) else {
                continue;
            };
            match making.report.receive::<Notice>() {
                Ok(Received::Nothing) => continue,
                Ok(Received::Message(notice, files)) => self.pass_on(&notice, files),
                Ok(Received::Closed) | Err(_) => {
                    let reason = "the process that made it died".to_owned();
                    self.tell(
                        &Notice::Failed {
                            id,
                            name: making.name.clone(),
                            reason,
                        },
                        &[],
                    );
                }
            }
            self.making.remove(&id);
        }
    }

    fn pass_on(&mut self, notice: &Notice, files: Vec<OwnedFd>) {
        let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        self.tell(notice, &borrowed);
        let (pid, place) = match notice {
            Notice::Created { pid, .. } => (*pid, 0),
            Notice::Executing { pid, .. } => (*pid, 1),
            _ => return,
        };
        let pidfd = files.into_iter().nth(place);
        if self.parent.is_none()
            && let Some(pidfd) = &pidfd
        {
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
        match (self.early.remove(&(pid as i32)), pidfd) {
            (Some((status, signal)), _) => self.tell(&Notice::Ended { pid, status, signal }, &[]),
            (None, Some(pidfd)) => {
                self.running.insert(pid as i32, pidfd);
            }
            (None, None) => {}
        }
    }

    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get();
            let (status, signal) = (status.exit_status(), status.terminating_signal());
            if self.running.remove(&pid).is_some() {
                self.tell(
                    &Notice::Ended {
                        pid: pid as u32,
                        status,
                        signal,
                    },
                    &[],
                );
            } else {
                self.early.insert(pid, (status, signal));
            }
        }
        if self.making.is_empty() {
            self.early.clear();
        }
    }
}

/// Runs the program so that it removes what its last run left.
fn clean_up() {
    let (Some(run_dir), Some(argument)) = (std::env::var_os(RUN_DIR), std::env::var_os(CLEAN_UP)) else {
        return;
    };
    let started = Command::new("/proc/self/exe")
        .arg(argument)
        .env("INCO_RUN_DIR", run_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    match started {
        // Reaped as any child.
        Ok(child) => drop(child),
        Err(error) => tracing::warn!(%error, "nothing is removed, though no next run has come"),
    }
}

/// A reason short enough to be passed on.
fn cut(reason: String) -> String {
    if reason.len() <= MAX_REASON {
        return reason;
    }
    reason.chars().take(MAX_REASON / 4).collect()
}

fn words(what: &'static str) -> impl Fn(Errno) -> String {
    move |errno| format!("{what}: {errno}")
}

/// What a program in a container is started with: how it is run, and where it says that it could not be run.
struct Started {
    builder: ContainerBuilder,
    failure: OwnedFd,
}

impl Started {
    fn new(
        name: &str,
        state: &str,
        filter: &Rc<Filters>,
        calls: Calls,
        user: Option<(Arc<OwnedFd>, Owner)>,
        output: &OwnedFd,
    ) -> Result<Started, String> {
        raise_open_files().map_err(in_full)?;
        // Those of the host's root are not for a container.
        set_thread_groups(&[]).map_err(words("groups"))?;
        let (failure, failed) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(words("pipe"))?;
        let stdin = File::open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
        let copy = || rustix::io::fcntl_dupfd_cloexec(output, 3).map_err(words("output"));
        let executor = Exec {
            filter: Rc::clone(filter),
            calls,
            user,
            failure: Arc::new(failed),
        };
        let builder = ContainerBuilder::new(name.to_owned(), SyscallType::default())
            .with_executor(executor)
            .with_root_path(state)
            .map_err(in_full)?
            .with_stdin(stdin)
            .with_stdout(copy()?)
            .with_stderr(copy()?)
            .validate_id()
            .map_err(in_full)?;
        Ok(Started { builder, failure })
    }
}

/// Why a program was not run, if it was not: known once the other end of the pipe is closed, by its exec or its end.
fn failure_of(pipe: OwnedFd) -> Result<(), String> {
    let mut reason = String::new();
    File::from(pipe)
        .read_to_string(&mut reason)
        .map_err(|error| error.to_string())?;
    if reason.is_empty() { Ok(()) } else { Err(reason) }
}

fn pidfd_of(pid: i32) -> Result<OwnedFd, Errno> {
    let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

/// Runs a command in a container beside its program, whose process id is `beside`. Returns the command's process id,
/// its output and, if it still runs, its pidfd.
fn try_exec(
    name: &str,
    beside: u32,
    bundle: &str,
    state: &str,
    command: Vec<String>,
    filter: &Rc<Filters>,
) -> Result<(u32, Vec<OwnedFd>), String> {
    let stage = Stage::of_bundle(Path::new(bundle))?;
    let user = |_| {
        let path = format!("/proc/{beside}/ns/user");
        File::open(&path)
            .map(|file| (Arc::new(OwnedFd::from(file)), stage.user))
            .map_err(|error| format!("{path}: {error}"))
    };
    let user = stage.first_id.map(user).transpose()?;
    // The runtime looks for the root file system at its name, though it needs none.
    stage.cover()?;
    let output = output_file().map_err(words("output file"))?;
    let Started { builder, failure } = Started::new(name, state, filter, stage.calls, user, &output)?;
    // In a user namespace it is root until it is there.
    let own = if stage.first_id.is_some() {
        Owner::ROOT
    } else {
        stage.user
    };
    let pid = builder
        .as_tenant()
        .with_user(Some(own.uid))
        .with_group(Some(own.gid))
        .with_cwd(Some(&stage.directory))
        .with_container_args(command)
        .with_detach(true)
        .build()
        .map_err(in_full)?
        .as_raw();
    let pidfd = pidfd_of(pid).ok();
    failure_of(failure)?;
    Ok((pid as u32, std::iter::once(output).chain(pidfd).collect()))
}

/// Makes one container, in a process of its own: gives its program's process id, when it ran, and its pidfd.
fn try_make(
    name: &str,
    bundle: &str,
    state: &str,
    filter: &Rc<Filters>,
) -> Result<(u32, u64, Vec<OwnedFd>), String> {
    let stage = Stage::of_bundle(Path::new(bundle))?;
    stage.set_up(Path::new(bundle))?;
    // Open for reading, too: a write waits where nobody reads, and never ends the program.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let output = rustix::fs::open(Path::new(bundle).join(OUTPUT), flags, Mode::empty());
    let output = output.map_err(words("open the output"))?;
    let Started { builder, failure } = Started::new(name, state, filter, stage.calls, None, &output)?;
    let mut container = builder
        .as_init(bundle)
        .with_systemd(false)
        .with_detach(true)
        .build()
        .map_err(in_full)?;
    let pid = container.pid().map(|pid| pid.as_raw()).unwrap_or_default();
    let pidfd = pidfd_of(pid).map_err(words("pidfd"))?;
    let kill = |reason: String| {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        reason
    };
    let ports = stage.ports();
    if !ports.is_empty() {
        let network = format!("/proc/{pid}/ns/net");
        let network = File::open(&network).map_err(|error| kill(format!("{network}: {error}")))?;
        port::give(network.as_fd(), &ports).map_err(kill)?;
    }
    container.start().map_err(in_full).map_err(kill)?;
    failure_of(failure).map_err(kill)?;
    let at_ns = clock::monotonic().0;
    Ok((pid as u32, at_ns, vec![pidfd]))
}

/// Lets this process have as many open files as a container's may. Once in a user namespace it could not.
///
/// # Errors
/// [`EngineError::FewOpenFiles`] where it may not have as many.
pub(crate) fn raise_open_files() -> Result<(), EngineError> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match maximum {
        Some(hard) if hard < OPEN_FILES => {
            let wanted = Rlimit {
                current,
                maximum: Some(OPEN_FILES),
            };
            setrlimit(Resource::Nofile, wanted).map_err(|_| EngineError::FewOpenFiles { hard })
        }
        _ => Ok(()),
    }
}

/// A file in memory that cannot grow: what is beyond it is refused to the program that writes.
fn output_file() -> Result<OwnedFd, Errno> {
    let file = memfd_create("output", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, MAX_COMMAND_OUTPUT_BYTES as u64)?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file)
}

/// An error with its causes, each once.
fn in_full(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}
