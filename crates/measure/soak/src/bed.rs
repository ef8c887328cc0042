//! A bed: an inco of its own with its engine, its switch and its traffic.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use api::Client;
use api::types::{InstanceRow, Snapshot, Status};
use clap::ValueEnum;
use engine::cgroup::{Hierarchy, ROOT};
use model::{Action, InstanceState};
use rustix::mount::{MountFlags, mount};
use testbed::network::{Link, Namespace};
use testbed::{Dockerd, DockerdAccess, Interrupt, OpenVSwitch};

use crate::check::{Reading, unaccounted};
use crate::follower::Follower;
use crate::footprint::Footprint;
use crate::network::{Lasting, Network, Packets};
use crate::process::{self, Process};
use crate::web::{self, Web};

/// The service of every bed. One of web servers has another one beside it.
pub(crate) const SERVICE: &str = "forward";
/// The uplink's socket, in the run directory.
pub(crate) const UPLINK_SOCKET: &str = "wan.sock";
/// For how long an instance may take no packet, in ms: on a machine that is busy with other programs one waits for a
/// CPU for longer than the default of 100 ms.
const STALL_AFTER_MS: u64 = 500;
/// Memory limit of a container, in MiB.
pub(crate) const CONTAINER_MIB: u64 = 64;
/// CPUs of an instance, where it has a quota: more than its one thread can use.
pub(crate) const CPUS: f64 = 1.0;
/// The place with an engine of its own.
pub(crate) const CARD: &str = "card";
/// Size of the file system of the image store and of that of the event log, in MiB: the faults fill them.
const STORE_MIB: u32 = 128;
const EVENT_LOG_MIB: u32 = 16;
/// Maximum time until an inco answers after its start, and until all is well again after a fault.
const START_LIMIT: Duration = Duration::from_secs(40);
pub(crate) const RECOVERY_LIMIT: Duration = Duration::from_secs(40);
/// Maximum time until nothing is under way any more.
const REST_LIMIT: Duration = Duration::from_secs(8);
/// Maximum time to stop.
const STOP_LIMIT: Duration = Duration::from_secs(40);
/// Observations without a change before a bed counts as at rest.
const REST_INTERVALS: u64 = 8;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Lines of its log quoted in an error.
const LOG_LINES: usize = 6;

/// nginx as one process, so that a signal reaches all of it. It says which instance it is.
const NGINX: &str = "daemon off;\nmaster_process off;\nerror_log stderr warn;\npid /tmp/nginx.pid;\nevents {}\nhttp { \
                     access_log off; client_body_temp_path /tmp/b; proxy_temp_path /tmp/p; fastcgi_temp_path /tmp/f; \
                     uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s; keepalive_timeout 1h; keepalive_requests 1000000; \
                     server { listen 80; listen [::]:8080; location / { return 200 $hostname; } } }\n";

/// The beds: SWITCH-ENGINE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BedName {
    /// inco's own switch, embedded engine
    SoftOci,
    /// inco's own switch, Docker
    SoftDocker,
    /// inco's own switch; Docker at one place, the embedded engine at the other
    SoftPlaces,
    /// Open vSwitch, embedded engine
    OpenflowOci,
    /// programs in the kernel, embedded engine: web servers and their clients
    EbpfOci,
    /// programs in the kernel, Docker: the same
    EbpfDocker,
    /// inco's own switch between interfaces of the kernel, embedded engine: the same
    SoftKernelOci,
}

impl BedName {
    /// All of them.
    pub(crate) const ALL: [BedName; 7] = [
        BedName::SoftOci,
        BedName::SoftDocker,
        BedName::SoftPlaces,
        BedName::OpenflowOci,
        BedName::EbpfOci,
        BedName::EbpfDocker,
        BedName::SoftKernelOci,
    ];

    /// Its name on the command line and in the lines of a run.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            BedName::SoftOci => "soft-oci",
            BedName::SoftDocker => "soft-docker",
            BedName::SoftPlaces => "soft-places",
            BedName::OpenflowOci => "openflow-oci",
            BedName::EbpfOci => "ebpf-oci",
            BedName::EbpfDocker => "ebpf-docker",
            BedName::SoftKernelOci => "soft-kernel-oci",
        }
    }

    const fn has_docker(self) -> bool {
        matches!(
            self,
            BedName::SoftDocker | BedName::SoftPlaces | BedName::EbpfDocker
        )
    }

    /// Whether it has two places, one of them with a Docker engine.
    pub(crate) const fn has_places(self) -> bool {
        matches!(self, BedName::SoftPlaces)
    }

    /// Whether its instances have CPU quotas, in control groups of the embedded engine.
    pub(crate) const fn has_quotas(self) -> bool {
        matches!(self, BedName::SoftOci)
    }

    const fn has_open_vswitch(self) -> bool {
        matches!(self, BedName::OpenflowOci)
    }

    /// Whether its instances are web servers with kernel ports.
    pub(crate) const fn is_web(self) -> bool {
        matches!(
            self,
            BedName::EbpfOci | BedName::EbpfDocker | BedName::SoftKernelOci
        )
    }

    /// The control group of its Docker engine's containers.
    pub(crate) fn docker_group(self) -> Option<String> {
        self.has_docker()
            .then(|| format!("inco-soak-{}-{}", std::process::id(), self.word()))
    }

    /// Whether this machine has what it needs.
    ///
    /// # Errors
    /// What is missing, and what to do.
    pub(crate) fn check(self) -> Result<()> {
        let without = |error: anyhow::Error| {
            error.context(format!(
                "bed {}: leave it out with --bed, or install what is missing",
                self.word()
            ))
        };
        if self.has_docker() {
            Dockerd::check_installed().map_err(without)?;
        }
        if self.has_open_vswitch() {
            OpenVSwitch::check_installed().map_err(without)?;
        }
        if self.is_web() {
            testbed::network::run("nginx", &["-v"]).map_err(without)?;
        }
        if self.has_places() && std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return Err(without(anyhow::anyhow!(
                "two places need two CPUs, and this machine has one"
            )));
        }
        Ok(())
    }
}

/// A running bed.
pub(crate) struct Bed {
    pub(crate) name: BedName,
    directory: PathBuf,
    child: Option<Child>,
    client: Option<Client>,
    /// The link of its clients, before they start.
    link: Option<(Namespace, Link)>,
    network: Option<Network>,
    follower: Option<Follower>,
    dockerd: Option<Dockerd>,
    open_vswitch: Option<OpenVSwitch>,
    interrupt: Interrupt,
    /// What the inco that was killed last had dropped, by reason: its process, and its counts a moment before.
    last_drops: Option<(u32, BTreeMap<String, u64>)>,
}

impl Bed {
    /// Starts everything of the bed in `directory`, with traffic for at most `duration`.
    ///
    /// # Errors
    /// A part does not start; what was started ends with the bed.
    pub(crate) fn start(
        name: BedName,
        directory: PathBuf,
        seed: u64,
        duration: Duration,
        interrupt: Interrupt,
    ) -> Result<Bed> {
        let mut bed = Bed {
            name,
            directory,
            child: None,
            client: None,
            link: None,
            network: None,
            follower: None,
            dockerd: None,
            open_vswitch: None,
            interrupt,
            last_drops: None,
        };
        bed.make()
            .with_context(|| format!("bed {} does not start", name.word()))?;
        let network = match bed.link.take() {
            Some(link) => Network::Web(Box::new(Web::start(name, link)?)),
            None => {
                let socket = bed.run_dir().join(UPLINK_SOCKET);
                Network::Packets(Box::new(Packets::start(&socket, seed, duration)?))
            }
        };
        bed.follower = Some(Follower::start(
            bed.run_dir().join("api.sock"),
            network.control(),
        )?);
        bed.network = Some(network);
        bed.wait_until_well(START_LIMIT)
            .with_context(|| format!("bed {} does not start", name.word()))?;
        Ok(bed)
    }

    fn make(&mut self) -> Result<()> {
        mount_tmpfs(&self.state_dir(), STORE_MIB)?;
        mount_tmpfs(&self.event_log(), EVENT_LOG_MIB)?;
        let mut image = match self.name.is_web() {
            true => vec!["image", "import", "nginx"],
            false => vec!["image", "build", "forward"],
        };
        if let Some(group) = self.name.docker_group() {
            let dockerd = Dockerd::start(&self.directory.join("docker"), &group, DockerdAccess::default())?;
            self.dockerd = Some(dockerd);
            image.extend(["--engine", "docker", "--host"]);
        }
        image.extend(self.dockerd.as_ref().map(Dockerd::host));
        self.make_image(&image)?;
        if self.name.has_places() {
            self.make_image(&["image", "build", "forward"])?;
        }
        if self.name.has_open_vswitch() {
            self.open_vswitch = Some(OpenVSwitch::start(self.directory.join("ovs"))?);
        }
        if self.name.is_web() {
            let file = self.directory.join("nginx.conf");
            fs::write(&file, NGINX).with_context(|| format!("cannot write {}", file.display()))?;
            self.link = Some(web::link(self.name)?);
        }
        self.write_configuration(&self.configuration())?;
        self.run()
    }

    fn make_image(&self, arguments: &[&str]) -> Result<()> {
        let made = self
            .inco()
            .args(arguments)
            .output()
            .context("cannot run `inco image`")?;
        if !made.status.success() {
            bail!(
                "`inco image` failed: {}",
                String::from_utf8_lossy(&made.stderr).trim()
            );
        }
        Ok(())
    }

    /// The run directory.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// The directory of the image store, a file system of its own.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// The directory of the event log, a file system of its own.
    pub(crate) fn event_log(&self) -> PathBuf {
        self.run_dir().join("events")
    }

    fn configuration_file(&self) -> PathBuf {
        self.directory.join("inco.toml")
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join("inco.log")
    }

    /// The configuration.
    pub(crate) fn configuration(&self) -> String {
        let mut text = String::new();
        match &self.dockerd {
            // Both are full with four instances: after a fault they are where they were, and so are their files.
            Some(dockerd) if self.name.has_places() => {
                text += &format!(
                    "[[place]]\nname = \"{CARD}\"\nengine = \"docker\"\nhost = {:?}\ncpus = \"0\"\ninstances = 2\n\
                     [[place]]\nname = \"host\"\nengine = \"oci\"\ncpus = \"1\"\ninstances = 2\n",
                    dockerd.host()
                )
            }
            Some(dockerd) => text += &format!("[engine]\ndriver = \"docker\"\nhost = {:?}\n", dockerd.host()),
            None => text += "[engine]\ndriver = \"oci\"\n",
        }
        text +=
            "[switch]\nflows = 65536\ntimeouts = { udp = \"30s\", tcp = \"60s\", tcp_handshake = \"60s\" }\n";
        if let Some(open_vswitch) = &self.open_vswitch {
            let database = open_vswitch.database();
            text += &format!(
                "driver = \"openflow\"\nopenflow = {{ database = \"unix:{}\" }}\n",
                database.display()
            );
        }
        if self.name.is_web() {
            return text + &self.web_services();
        }
        text += &format!("[[uplink]]\nname = \"wan\"\ndevice = \"memif:{UPLINK_SOCKET}\"\n");
        text += &format!(
            "[service.{SERVICE}]\nimage = \"inco/forward\"\ncommand = [\"/inco-nf\", \"forward\", \"--stamp\"]\n\
             memory = \"{CONTAINER_MIB}MiB\"\ncapacity = \"20kpps\"\nready_deadline = \"30s\"\n\
             stall_after = \"{STALL_AFTER_MS}ms\"\n\
             instances = {{ min = 3, max = 4, standby = 1 }}\nautoscaler = \"fixed\"\n\
             scheduler = {{ policy = \"round-robin\", slow_start = \"0s\" }}\nring = {{ slots = 4096 }}\n"
        );
        if self.open_vswitch.is_some() {
            text += "symmetric = false\n";
        }
        if self.name.has_quotas() {
            text += &format!("cpus = {CPUS:?}\n");
        }
        text
    }

    /// The uplink and the services of web servers.
    fn web_services(&self) -> String {
        let uplink = web::names(self.name).1;
        let driver = match self.name {
            BedName::EbpfOci | BedName::EbpfDocker => "ebpf",
            _ => "soft",
        };
        let service = |name: &str, address: &str, more: &str| {
            format!(
                "[service.{name}]\nport = \"kernel\"\nvip = {{ address = \"{address}\", ports = \"80\"{more} }}\nimage = \
                 \"nginx\"\ncommand = [\"/usr/sbin/nginx\", \"-c\", \"/etc/web.conf\"]\nmounts = \
                 [\"{}:/etc/web.conf:ro\"]\nmemory = \"{CONTAINER_MIB}MiB\"\ncapacity = \"20kpps\"\nready_deadline = \
                 \"30s\"\ninstances = {{ min = 3, max = 4, standby = 1 }}\nautoscaler = \"fixed\"\nscheduler = {{ policy \
                 = \"round-robin\", slow_start = \"0s\" }}\n",
                self.directory.join("nginx.conf").display(),
            )
        };
        format!(
            "driver = \"{driver}\"\nebpf = {{ instance_addresses = {:?} }}\n[[uplink]]\nname = \"wan\"\ndevice = \
             \"kernel:{uplink}\"\n{}{}",
            web::OWN_ADDRESSES,
            service(SERVICE, web::ADDRESSES[0], ""),
            service(
                "translated",
                web::ADDRESSES[1],
                ", mode = \"dnat\", target_port = 8080"
            ),
        )
    }

    /// Writes the configuration file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write_configuration(&self, text: &str) -> Result<()> {
        let file = self.configuration_file();
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// The program in this bed.
    pub(crate) fn inco(&self) -> Command {
        // As an operator would run a data plane: before other programs. The running program, even if its file was
        // replaced meanwhile.
        let mut command = Command::new("nice");
        command
            .args(["-n", "-10"])
            .arg(this_program())
            .env("INCO_RUN_DIR", self.run_dir())
            .env("INCO_STATE_DIR", self.state_dir())
            .env_remove("INCO_LOG")
            .stdin(Stdio::null());
        command
    }

    /// `inco run`.
    pub(crate) fn inco_run(&self) -> Result<Command> {
        let open = || File::options().create(true).append(true).open(self.log_file());
        let (out, err) = open()
            .and_then(|out| Ok((out, open()?)))
            .with_context(|| format!("cannot write {}", self.log_file().display()))?;
        let mut command = self.inco();
        command
            .args(["run", "--with-process", &std::process::id().to_string(), "-f"])
            .arg(self.configuration_file())
            .stdout(out)
            .stderr(err)
            // Ctrl-C of the terminal ends the soak, which ends this.
            .process_group(0);
        Ok(command)
    }

    /// Starts an inco; it may take some time until it answers.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.client = None;
        self.child = Some(self.inco_run()?.spawn().context("cannot start `inco run`")?);
        Ok(())
    }

    /// The process of inco.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn process(&self) -> Result<Process> {
        let pid = self.child.as_ref().map(Child::id);
        pid.and_then(Process::of).context("inco has ended")
    }

    /// The launchers of this bed: one for `oci`.
    pub(crate) fn launchers(&self) -> Vec<Process> {
        let all = process::of_directory(&self.run_dir()).into_iter();
        all.filter(|(_, command)| command.ends_with(" launcher"))
            .map(|(process, _)| process)
            .collect()
    }

    /// Kills inco and waits for its end. Its counts end with it, so they are read just before.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let status = self.client().and_then(|client| Ok(client.status()?));
        self.last_drops = status.ok().map(|status| (status.pid, status.drops));
        if let Some(mut child) = self.child.take() {
            child.kill().context("cannot kill inco")?;
            child.wait().context("cannot wait for inco")?;
        }
        self.client = None;
        Ok(())
    }

    /// How inco has ended by itself, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        self.client = None;
        Some(status)
    }

    /// The API client.
    ///
    /// # Errors
    /// inco does not answer.
    pub(crate) fn client(&mut self) -> Result<&Client> {
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.run_dir().join("api.sock"))?,
        };
        Ok(self.client.insert(client))
    }

    /// The network.
    ///
    /// # Errors
    /// The bed is stopping.
    pub(crate) fn network(&self) -> Result<&Network> {
        self.network.as_ref().context("the bed is stopping")
    }

    /// The private Docker engine.
    pub(crate) fn dockerd(&mut self) -> Option<&mut Dockerd> {
        self.dockerd.as_mut()
    }

    /// The private Open vSwitch.
    pub(crate) fn open_vswitch(&self) -> Option<&OpenVSwitch> {
        self.open_vswitch.as_ref()
    }

    /// The active instances with a process, in the order of ids.
    ///
    /// # Errors
    /// inco does not answer, or there are none.
    pub(crate) fn active(&mut self) -> Result<Vec<InstanceRow>> {
        let rows = self.client()?.instances()?;
        let active: Vec<_> = rows
            .into_iter()
            .filter(|row| row.state == InstanceState::Active && row.pid.is_some())
            .collect();
        match active.is_empty() {
            true => bail!("no instance is active"),
            false => Ok(active),
        }
    }

    /// Why not all is as configured; [`None`] if it is.
    fn unwell(&mut self) -> Option<String> {
        let snapshot = match self.client().and_then(|client| Ok(client.snapshot()?)) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.client = None;
                return Some(format!("{error:#}"));
            }
        };
        unwell(&snapshot)
    }

    /// Waits until all is as configured and packets return.
    ///
    /// # Errors
    /// It is not within `limit`, with what is wrong; or interrupted.
    pub(crate) fn wait_until_well(&mut self, limit: Duration) -> Result<()> {
        let since = Instant::now();
        let mut first = None;
        loop {
            self.interrupt.check()?;
            let wrong = match self.unwell() {
                Some(wrong) => {
                    first = None;
                    wrong
                }
                None => {
                    let newest = self.network()?.newest().1;
                    let waiting = first.get_or_insert_with(|| Lasting::of(&newest)).waiting(&newest);
                    if waiting == 0 {
                        return Ok(());
                    }
                    format!("{waiting} flows wait for a packet")
                }
            };
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok()?) {
                bail!("inco has ended ({status}){}", self.log_end());
            }
            if since.elapsed() > limit {
                bail!("not well after {} s: {wrong}{}", limit.as_secs(), self.log_end());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Reads everything once nothing is under way; the network must be on hold.
    ///
    /// # Errors
    /// inco or the generator does not answer.
    pub(crate) fn at_rest(&mut self) -> Result<(Reading, Status)> {
        let since = Instant::now();
        let mut counts = None;
        let mut from = self.network()?.newest().0 + 2;
        loop {
            std::thread::sleep(POLL_INTERVAL);
            self.interrupt.check()?;
            self.network()?.check()?;
            let (serial, interval) = self.network()?.newest();
            let is_still =
                self.network()?.is_taken() && counts.replace(interval.counts) == Some(interval.counts);
            if serial >= from && !is_still {
                from = serial;
            }
            let is_quiet = serial >= from + REST_INTERVALS;
            let is_late = since.elapsed() > REST_LIMIT;
            if !is_quiet && !is_late {
                continue;
            }
            let status = self.client()?.status()?;
            let follower = self.follower.as_ref().context("the bed is stopping")?;
            if is_late
                || (unaccounted(&status.accounting) == 0 && follower.has_seen(status.pid, status.events))
            {
                let reading = Reading {
                    counts: interval.counts,
                    flows: interval.flows,
                    pid: status.pid,
                    drops: status.drops.clone(),
                    last_drops: self.last_drops.take(),
                    accounting: status.accounting.clone(),
                    are_requests: self.name.is_web(),
                };
                return Ok((reading, status));
            }
        }
    }

    /// The instances that events name as failed or purged since the last call, and why.
    pub(crate) fn named(&self) -> BTreeMap<u32, String> {
        self.follower.as_ref().map(Follower::begin).unwrap_or_default()
    }

    /// What the bed has of the machine.
    ///
    /// # Errors
    /// inco has ended, or does not answer.
    pub(crate) fn footprint(&mut self) -> Result<Footprint> {
        let mut main = self.launchers();
        main.push(self.process()?);
        let hierarchy = Hierarchy::at(ROOT)?;
        let mut parents: Vec<String> = self.name.docker_group().into_iter().collect();
        if parents.is_empty() || self.name.has_places() {
            parents.push(self.container_group(&hierarchy)?);
        }
        let paths = parents.iter().flat_map(|parent| {
            let children = hierarchy.children(parent).into_iter();
            children.map(move |name| format!("{parent}/{name}"))
        });
        let groups: Vec<String> = paths.collect();
        let in_groups = groups.iter().map(|path| hierarchy.group(path));
        let contained: usize = in_groups.map(|group| group.processes().len()).sum();
        Ok(Footprint {
            processes: (process::of_directory(&self.directory).len() + contained) as u64,
            cgroups: groups.len() as u64,
            mounts: process::mounts_in(&self.directory).len() as u64,
            descriptors: main.iter().map(|of| of.descriptors()).sum(),
            kilobytes: main.iter().map(|of| of.private_kilobytes()).sum(),
        })
    }

    /// The parent of the control groups of the embedded engine's containers.
    ///
    /// # Errors
    /// There is no such container.
    pub(crate) fn container_group(&mut self, hierarchy: &Hierarchy) -> Result<String> {
        let pid = self
            .active()?
            .iter()
            .filter(|row| row.place.as_deref() != Some(CARD))
            .find_map(|row| row.pid)
            .context("no container")?;
        let text =
            fs::read_to_string(format!("/proc/{pid}/cgroup")).context("cannot read a control group")?;
        let group = hierarchy
            .group_of(&text)
            .context("a container without a control group")?;
        let (parent, _) = group
            .path()
            .rsplit_once('/')
            .context("a control group without a parent")?;
        Ok(parent.to_owned())
    }

    /// The last lines of its log, to append to a message.
    pub(crate) fn log_end(&self) -> String {
        let text = fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        last.iter().map(|line| format!("\n      | {line}")).collect()
    }

    /// Lines of its log that tell of a panic.
    pub(crate) fn panics(&self) -> Vec<String> {
        let text = fs::read_to_string(self.log_file()).unwrap_or_default();
        text.lines()
            .filter(|line| line.contains("panicked"))
            .map(str::to_owned)
            .collect()
    }

    /// Copies what helps to understand a failure.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(crate) fn copy_logs(&self, to: &Path) -> Result<()> {
        let to = to.join(self.name.word());
        fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
        for file in [
            self.configuration_file(),
            self.log_file(),
            self.event_log().join("events.jsonl"),
            self.directory.join("ovs/switch.log"),
        ] {
            if let Some(name) = file.file_name().filter(|_| file.exists()) {
                fs::copy(&file, to.join(name)).with_context(|| format!("cannot copy {}", file.display()))?;
            }
        }
        Ok(())
    }

    /// Ends the traffic and stops inco.
    ///
    /// # Errors
    /// inco does not end in time or in order.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.network = None;
        self.follower = None;
        self.client()?.act(&Action::Stop { keep: false })?;
        let since = Instant::now();
        loop {
            match self.ended() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("inco ended with {status}{}", self.log_end()),
                None if since.elapsed() > STOP_LIMIT => {
                    bail!(
                        "inco did not stop within {} s{}",
                        STOP_LIMIT.as_secs(),
                        self.log_end()
                    )
                }
                None => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

/// Why not all is as configured.
fn unwell(of: &Snapshot) -> Option<String> {
    let status = &of.status;
    if !status.engine.up {
        return Some("the engine does not answer".to_owned());
    }
    if let Some(place) = status.places.iter().find(|place| !place.engine.up) {
        return Some(format!("the engine of {} does not answer", place.name));
    }
    if let Some(uplink) = status.uplinks.iter().find(|uplink| !uplink.up) {
        return Some(format!("uplink {} is {}", uplink.name, uplink.state()));
    }
    of.services.iter().find_map(|service| {
        if let Some(failing) = &service.failing {
            return Some(format!("{} fails: {failing}", service.name));
        }
        let as_wanted = service.active == service.desired && service.starting == 0 && service.standby > 0;
        (!as_wanted).then(|| {
            format!(
                "{}: {} of {} instances active, {} starting, {} on standby",
                service.name, service.active, service.desired, service.starting, service.standby
            )
        })
    })
}

/// The running program.
pub(crate) fn this_program() -> PathBuf {
    std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

fn mount_tmpfs(at: &Path, mib: u32) -> Result<()> {
    fs::create_dir_all(at).with_context(|| format!("cannot make {}", at.display()))?;
    let options = std::ffi::CString::new(format!("size={mib}m,mode=0755"))?;
    mount(
        "tmpfs",
        at,
        "tmpfs",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )
    .with_context(|| format!("cannot mount a file system on {}", at.display()))
}
