//! A running inco: started as a child process, controlled over its API, and stopped with a check that nothing
//! remains.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use api::Client;
use api::types::InstanceRow;
use model::Action;
use rustix::process::{Pid, Signal, kill_process};
use traffic::MemifPort;

use super::Interrupt;
use super::SwitchName;
use super::open_vswitch::OpenVSwitch;
use engine::image::Store;
use images::EngineName;

/// Maximum time until its instances are ready. Initialising DPDK takes seconds.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Maximum time to stop and remove everything before it is killed: longer than inco's own limit.
const STOP_LIMIT: Duration = Duration::from_secs(75);
/// Maximum time until the uplink accepts a connection.
const UPLINK_LIMIT: Duration = Duration::from_secs(5);
/// Polling interval for conditions.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time that removed resources may stay in the kernel's lists.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Lines of its log quoted in an error.
const LOG_LINES: usize = 8;

/// The environment of the inco processes, which run one after the other.
#[derive(Debug)]
pub struct Environment {
    directory: PathBuf,
    engine: EngineName,
    keep: bool,
    open_vswitch: Option<OpenVSwitch>,
    interrupt: Interrupt,
}

impl Environment {
    /// Creates a new directory below `$INCO_RUN_DIR`, or next to `/run/inco`.
    pub fn new(
        engine: EngineName,
        switch: SwitchName,
        keep: bool,
        interrupt: Interrupt,
    ) -> Result<Environment> {
        Environment::named(
            &format!("inco-demo-{}", std::process::id()),
            engine,
            switch,
            keep,
            interrupt,
        )
    }

    /// The same beside others of this process, for one that has this name among them, with inco's own switch.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn beside_others(
        name: &str,
        engine: EngineName,
        keep: bool,
        interrupt: Interrupt,
    ) -> Result<Environment> {
        let name = format!("inco-demo-{}-{name}", std::process::id());
        Environment::named(&name, engine, SwitchName::Soft, keep, interrupt)
    }

    fn named(
        name: &str,
        engine: EngineName,
        switch: SwitchName,
        keep: bool,
        interrupt: Interrupt,
    ) -> Result<Environment> {
        let parent = match std::env::var_os("INCO_RUN_DIR").filter(|given| !given.is_empty()) {
            Some(given) => PathBuf::from(given),
            None if rustix::process::geteuid().is_root() => PathBuf::from("/run"),
            None => std::env::temp_dir(),
        };
        let directory = parent.join(name);
        fs::create_dir_all(&directory).with_context(|| {
            format!(
                "cannot make {}; run this as root, or set INCO_RUN_DIR to a directory of your own",
                directory.display()
            )
        })?;
        let open_vswitch = match switch {
            SwitchName::Soft => None,
            SwitchName::Openflow => Some(OpenVSwitch::start(parent.join(format!("{name}-ovs")))?),
        };
        Ok(Environment {
            directory,
            engine,
            keep,
            open_vswitch,
            interrupt,
        })
    }

    /// The directory of configurations, logs and sockets.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The engine's name in configurations.
    pub fn engine_word(&self) -> &'static str {
        match self.engine {
            EngineName::Oci => "oci",
            EngineName::Docker => "docker",
        }
    }

    /// The switch's name in configurations.
    pub fn switch_word(&self) -> &'static str {
        match self.open_vswitch {
            Some(_) => "openflow",
            None => "soft",
        }
    }

    /// The database of the Open vSwitch that forwards, if any.
    fn database(&self) -> Option<PathBuf> {
        self.open_vswitch().map(OpenVSwitch::database)
    }

    /// The Open vSwitch that forwards, if any.
    pub fn open_vswitch(&self) -> Option<&OpenVSwitch> {
        self.open_vswitch.as_ref()
    }

    /// The container engine.
    pub fn engine(&self) -> EngineName {
        self.engine
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        self.open_vswitch = None;
        if !self.keep {
            // Each session has already reported what it could not remove.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// The configuration of an inco for the demo: one service on one uplink.
#[derive(Clone, Debug)]
pub struct Service {
    /// The service's name.
    pub name: &'static str,
    /// The image of its containers.
    pub image: &'static str,
    /// The command of a container, with arguments.
    pub command: Vec<String>,
    /// CPUs per container.
    pub cpus: f64,
    /// Memory per container, with its unit.
    pub memory: &'static str,
    /// The value of the configuration key `ready`: the condition for a ready instance.
    pub ready: &'static str,
    /// Capacity of an instance, in packets per second.
    pub capacity_pps: f64,
    /// Share of the capacity up to which new flows fit.
    pub fit: f64,
    /// The autoscaler's target, as a share of the capacity.
    pub target: f64,
    /// Minimum, maximum and standby instances.
    pub instances: (u32, u32, u32),
    /// The scheduler.
    pub scheduler: String,
    /// Fewer instances must suffice for this long before the autoscaler removes one.
    pub scale_down_window: Duration,
    /// Idle timeout of a flow.
    pub flow_idle: Duration,
}

impl Service {
    /// The configuration file, as a user would write it.
    pub fn configuration(&self, engine: &str, ovs_database: Option<&Path>) -> String {
        let (min, max, standby) = self.instances;
        let mut text = String::new();
        let mut line = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        line("# Written by `inco demo`.".to_owned());
        line(format!("[engine]\ndriver = {engine:?}"));
        line("[switch]\nflows = 65536".to_owned());
        line(format!(
            "timeouts = {{ udp = \"{}ms\" }}",
            self.flow_idle.as_millis()
        ));
        if let Some(database) = ovs_database {
            line("driver = \"openflow\"".to_owned());
            line(format!(
                "openflow = {{ database = \"unix:{}\" }}",
                database.display()
            ));
        }
        line("[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"".to_owned());
        line(format!("[service.{}]\nimage = {:?}", self.name, self.image));
        line(format!("command = {:?}", self.command));
        if ovs_database.is_some() {
            // Rules cannot tell which end began a flow of an unknown transport protocol.
            line("symmetric = false".to_owned());
        }
        line(format!("cpus = {}\nmemory = {:?}", self.cpus, self.memory));
        line(format!("ready = {:?}\nready_deadline = \"30s\"", self.ready));
        line(format!(
            "capacity = \"{:.0}pps\"\nfit = {}",
            self.capacity_pps, self.fit
        ));
        line(format!(
            "instances = {{ min = {min}, max = {max}, standby = {standby} }}"
        ));
        // As in the paper: a new instance takes flows immediately, and no flow spills to another instance.
        line(format!(
            "scheduler = {{ policy = {:?}, slow_start = \"0s\", spill = false }}",
            self.scheduler
        ));
        line(format!(
            "autoscaler = {{ policy = \"smartinco\", target = {}, scale_down_window = \"{}ms\" }}",
            self.target,
            self.scale_down_window.as_millis(),
        ));
        text
    }
}

/// A running inco. Dropping it stops it.
pub struct Session<'g> {
    ground: &'g Environment,
    /// Its configuration.
    file: PathBuf,
    child: Child,
    /// `None` only between the start and the first answer.
    client: Option<Client>,
    log: PathBuf,
    seen: HeldResources,
    ended: bool,
    /// Whether it was killed and not started again: what it left is still there.
    killed: bool,
}

/// Resources that running containers hold in the system.
#[derive(Debug, Default)]
struct HeldResources {
    pids: BTreeSet<u32>,
    cgroups: BTreeSet<String>,
}

impl<'g> Session<'g> {
    /// Starts inco with a service of the demo and waits until its minimum number of instances is active.
    ///
    /// # Errors
    /// Returns the errors of [`Session::start`].
    pub fn of(ground: &'g Environment, service: &Service) -> Result<Session<'g>> {
        let name = format!("{}-{}", service.name, service.scheduler);
        let text = service.configuration(ground.engine_word(), ground.database().as_deref());
        Session::start(ground, &name, &text, service.instances.0)
    }

    /// Starts inco with this configuration and waits until every service has `instances` active instances.
    ///
    /// # Errors
    /// Returns an error with the end of inco's log if it does not start in time.
    pub fn start(ground: &'g Environment, name: &str, text: &str, instances: u32) -> Result<Session<'g>> {
        let file = ground.directory.join(format!("{name}.toml"));
        let log = ground.directory.join("inco.log");
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        let mut session = Session {
            ground,
            child: spawn(&ground.directory, &file, &log)?,
            file,
            client: None,
            log,
            seen: HeldResources::default(),
            ended: false,
            killed: false,
        };
        session.wait_until_ready(instances)?;
        Ok(session)
    }

    /// Kills inco with SIGKILL. Its containers, flows and rings wait for [`Session::start_again`].
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn kill(&mut self) -> Result<()> {
        self.client = None;
        (self.ended, self.killed) = (true, true);
        self.signal(Signal::KILL);
        self.child.wait().context("cannot wait for `inco run`")?;
        Ok(())
    }

    /// Stops inco with all that it knows, until [`Session::start_again`].
    ///
    /// # Errors
    /// It did not end cleanly.
    pub fn stop_for_now(&mut self) -> Result<()> {
        self.end()?;
        self.client = None;
        Ok(())
    }

    /// Starts inco after [`Session::kill`] or [`Session::stop_for_now`]. Returns once it is executed; [`Session::wait_until_ready`] waits for it.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn start_again(&mut self) -> Result<()> {
        self.child = spawn(&self.ground.directory, &self.file, &self.log)?;
        (self.ended, self.killed) = (false, false);
        Ok(())
    }

    /// Waits until every service has `instances` active instances.
    ///
    /// # Errors
    /// Returns an error with the end of inco's log if that takes too long.
    pub fn wait_until_ready(&mut self, instances: u32) -> Result<()> {
        let since = Instant::now();
        while !self.is_ready(instances) {
            self.ground.interrupt.check()?;
            self.check()?;
            if since.elapsed() > START_LIMIT {
                bail!(
                    "its instances were not active within {} s{}",
                    START_LIMIT.as_secs(),
                    self.log_end()
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn is_ready(&mut self, instances: u32) -> bool {
        if self.client.is_none() {
            self.client = Client::connect(&self.ground.directory.join("api.sock")).ok();
        }
        let Some(client) = &self.client else { return false };
        client
            .services()
            .is_ok_and(|rows| rows.iter().all(|row| row.active >= instances))
    }

    /// Returns an error if inco or its Open vSwitch has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self
            .child
            .try_wait()
            .context("cannot query the state of `inco run`")?
        {
            self.ended = true;
            bail!("`inco run` has ended ({status}){}", self.log_end());
        }
        self.ground.open_vswitch().map_or(Ok(()), OpenVSwitch::check)
    }

    /// The API client.
    pub fn client(&self) -> Result<&Client> {
        self.client
            .as_ref()
            .ok_or_else(|| anyhow!("inco does not answer{}", self.log_end()))
    }

    /// The process id of inco, without its launcher.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The request to end from outside.
    pub fn interrupt(&self) -> &Interrupt {
        &self.ground.interrupt
    }

    /// Connects to its uplink in the role of the network.
    pub fn uplink(&self) -> Result<MemifPort> {
        let socket = self.ground.directory.join("wan.sock");
        MemifPort::connect(&socket, 0, UPLINK_LIMIT).with_context(|| {
            format!(
                "the uplink does not answer on {}{}",
                socket.display(),
                self.log_end()
            )
        })
    }

    /// Sets the number of active instances manually and does not wait for it.
    ///
    /// # Errors
    /// inco refuses it or does not answer.
    pub fn ask_for(&self, service: &str, instances: u32) -> Result<()> {
        let action = Action::Scale {
            service: service.to_owned(),
            instances: Some(instances),
        };
        self.client()?.act(&action)?;
        Ok(())
    }

    /// Sets the number of active instances manually and waits for it.
    pub fn scale(&mut self, service: &str, instances: u32) -> Result<()> {
        self.ask_for(service, instances)?;
        let since = Instant::now();
        loop {
            let rows = self.client()?.services()?;
            if rows
                .iter()
                .all(|row| row.active == instances && row.starting == 0)
            {
                return Ok(());
            }
            self.interrupt().check()?;
            self.check()?;
            if since.elapsed() > START_LIMIT {
                bail!(
                    "the number of instances is not {instances} after {} s{}",
                    START_LIMIT.as_secs(),
                    self.log_end()
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Records resources that must be gone at the end.
    pub fn note(&mut self, instances: &[InstanceRow]) {
        for pid in instances.iter().filter_map(|row| row.pid) {
            if self.seen.pids.insert(pid)
                && let Ok(groups) = fs::read_to_string(format!("/proc/{pid}/cgroup"))
            {
                self.seen.cgroups.extend(cgroup_directories(&groups));
            }
        }
    }

    /// Stops inco and returns the resources that remain in the system; empty if all were removed.
    ///
    /// # Errors
    /// Returns an error if inco did not exit cleanly.
    pub fn stop(mut self) -> Result<Vec<String>> {
        self.end()?;
        let since = Instant::now();
        loop {
            let left = self.left();
            if left.is_empty() || since.elapsed() > REMOVAL_TIMEOUT {
                return Ok(left);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::take(&mut self.killed) {
            let stopped = program(&self.ground.directory).arg("stop").status();
            stopped.context("cannot start `inco stop`")?;
        }
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let asked = match &self.client {
            Some(client) => client.act(&Action::Stop { keep: false }).is_ok(),
            None => false,
        };
        if !asked {
            self.signal(Signal::TERM);
        }
        let since = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => bail!("`inco run` ended with {status}{}", self.log_end()),
                Ok(None) if since.elapsed() > STOP_LIMIT => {
                    self.signal(Signal::KILL);
                    let _ = self.child.wait();
                    bail!(
                        "`inco run` did not end within {} s{}",
                        STOP_LIMIT.as_secs(),
                        self.log_end()
                    );
                }
                Ok(None) => std::thread::sleep(POLL_INTERVAL),
                Err(error) => return Err(error).context("cannot wait for `inco run`"),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // Fails only if the process has already ended.
            let _ = kill_process(pid, signal);
        }
    }

    /// Its control groups, processes and sockets that still exist.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let groups = &self.seen.cgroups;
        left.extend(
            groups
                .iter()
                .filter(|path| Path::new(path).exists())
                .map(|path| format!("control group {path}")),
        );
        for pid in &self.seen.pids {
            let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            // The pid may have been reused: it is the container's only if the process is in the container's control
            // group.
            if cgroup_directories(&own).iter().any(|path| groups.contains(path)) {
                left.push(format!("process {pid}"));
            }
        }
        sockets_below(&self.ground.directory, &mut left);
        left
    }

    /// The last lines of its log, to append to a message.
    fn log_end(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines
            .get(lines.len().saturating_sub(LOG_LINES)..)
            .unwrap_or_default();
        let mut end = String::new();
        if !last.is_empty() {
            end.push_str("; its last output:");
            for line in last {
                let _ = write!(end, "\n  {line}");
            }
        }
        end
    }
}

/// The running program, even if its file was replaced meanwhile.
fn program(directory: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    // The store that holds the images built for it.
    command
        .env("INCO_RUN_DIR", directory)
        .env("INCO_STATE_DIR", Store::state_dir())
        .stdin(Stdio::null());
    command
}

/// Starts `inco run` with this configuration. Its output is appended to the log.
fn spawn(directory: &Path, file: &Path, log: &Path) -> Result<Child> {
    let to_log = || fs::File::options().create(true).append(true).open(log);
    let open = to_log().and_then(|out| Ok((out, to_log()?)));
    let (out, err) = open.with_context(|| format!("cannot write {}", log.display()))?;
    program(directory)
        .args(["run", "--with-process", &std::process::id().to_string(), "-f"])
        .arg(file)
        .stdout(out)
        .stderr(err)
        // So that Ctrl-C reaches only this process.
        .process_group(0)
        .spawn()
        .context("cannot start `inco run`")
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // A dropped session is on an error path that reports its own error.
        let _ = self.end();
    }
}

/// The container directories in the lines of `/proc/PID/cgroup`: `7:cpu,cpuacct:/inco/inco-forward-1`,
/// `0::/inco/inco-forward-1`.
fn cgroup_directories(lines: &str) -> Vec<String> {
    let mut directories = Vec::new();
    for line in lines.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        if !path.contains("inco") && !path.contains("docker") && !path.contains("libpod") {
            continue;
        }
        let tree = controllers.trim_start_matches("name=");
        for directory in [
            format!("/sys/fs/cgroup/{tree}{path}"),
            format!("/sys/fs/cgroup{path}"),
        ] {
            if Path::new(&directory).exists() {
                directories.push(directory);
            }
        }
    }
    directories
}

fn sockets_below(directory: &Path, left: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => sockets_below(&entry.path(), left),
            Ok(kind) if kind.is_socket() => left.push(format!("socket {}", entry.path().display())),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_a_session_is_right() {
        let service = Service {
            name: "forward",
            image: "inco/forward",
            command: vec!["/inco-nf".into(), "forward".into(), "--stamp".into()],
            cpus: 0.1,
            memory: "64MiB",
            ready: "connected",
            capacity_pps: 9_321.4,
            fit: 0.8,
            target: 0.5,
            instances: (3, 8, 1),
            scheduler: "best-fit".into(),
            scale_down_window: Duration::from_secs(3),
            flow_idle: Duration::from_millis(2500),
        };
        let database = Some(Path::new("/tmp/demo/ovs/db.sock"));
        for (engine, database) in [("oci", None), ("docker", None), ("oci", database)] {
            let text = service.configuration(engine, database);
            let read = orchestrator::load::parse(&text, "demo.toml").unwrap();
            let of = &read.services[0];
            assert_eq!(
                (of.instances.min, of.instances.max, of.instances.standby),
                (3, 8, 1)
            );
            assert_eq!(of.capacity, configuration::Capacity::Pps(9_321.0));
            assert_eq!(of.scheduler.name(), "best-fit");
            let settings = of.scheduler.settings();
            assert_eq!((settings.slow_start, settings.spill), (model::Nanos::ZERO, false));
            assert_eq!(read.switch.timeouts.udp, model::Nanos::from_millis(2500));
        }
    }

    #[test]
    fn what_is_left_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("ports/inco-forward-1");
        fs::create_dir_all(&inner).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(inner.join("port.sock")).unwrap();
        let mut left = Vec::new();
        sockets_below(directory.path(), &mut left);
        assert_eq!(left.len(), 1);
        assert!(left[0].ends_with("port.sock"));
        // A directory that does not exist, and a line of no container.
        assert!(cgroup_directories("7:cpu:/inco-none/inco-forward-1\n0::/init.scope\n").is_empty());
    }
}
