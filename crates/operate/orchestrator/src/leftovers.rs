//! What a run leaves behind if it ends without removing everything. The file `run.json` marks the run directory as
//! long as something may be left; a lock on it shows that the run continues.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use configuration::{Configuration, EngineDriver};
use engine::launcher::Launcher;
use engine::{
    DockerEngine, Engine, EngineEvent, KubernetesEngine, OciConfig, OciEngine, Request, SwarmEngine, Ticket,
};
use keeper::Keeper;
use model::Nanos;
use serde::{Deserialize, Serialize};

use crate::control::signals;
use crate::daemon::launcher_command;
use crate::drivers::{self, Bridge};
use crate::host::{is_listened_on, machine_name};
use crate::pool;
use crate::upgrade::Where;
use crate::wiring::{docker_config, kubernetes_config};
use api::run_dir::in_run_dir;

/// The file in the run directory.
const FILE: &str = "run.json";
/// What has the launcher stay, among what it keeps.
const STAY: &str = "inco/run";
/// Time limit for the engine to remove everything.
const REMOVAL: Duration = Duration::from_secs(60);
/// Interval of checks for completion.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The data needed to clean up after a run.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: u32,
    /// Path of the configuration, as given.
    #[serde(default)]
    file: String,
    /// Unix socket of the API.
    socket: PathBuf,
    /// TCP address of the API.
    #[serde(default)]
    listen: Option<SocketAddr>,
    /// Sockets of uplinks.
    uplinks: Vec<PathBuf>,
    /// Its engine, or that of its first place.
    #[serde(flatten)]
    engine: EngineRecord,
    /// Those of other places.
    #[serde(default)]
    more_engines: Vec<EngineRecord>,
    /// Its bridge in Open vSwitch.
    #[serde(default)]
    bridge: Option<Bridge>,
}

/// How an engine is reached.
#[derive(Debug, Serialize, Deserialize)]
struct EngineRecord {
    driver: String,
    host: String,
    tls: Option<PathBuf>,
    /// Of an engine of Kubernetes: the kubeconfig, its context, and the namespace.
    #[serde(default)]
    kubernetes: Option<(Option<PathBuf>, Option<String>, Option<String>)>,
    /// The name of this machine there, where incos of other machines have instances, too.
    #[serde(default)]
    machine: Option<String>,
}

impl EngineRecord {
    fn of(engine: &configuration::Engine, configuration: &Configuration) -> EngineRecord {
        let of = &configuration.kubernetes;
        let is_kubernetes = engine.driver == EngineDriver::Kubernetes;
        EngineRecord {
            driver: engine.driver.name().to_owned(),
            host: engine.host.clone(),
            tls: engine.tls.clone(),
            kubernetes: is_kubernetes
                .then(|| (of.kubeconfig.clone(), of.context.clone(), of.namespace.clone())),
            machine: machine_name(engine),
        }
    }

    fn is_oci(&self) -> bool {
        self.driver == EngineDriver::Oci.name()
    }
}

impl Record {
    fn engines(&self) -> impl Iterator<Item = &EngineRecord> {
        std::iter::once(&self.engine).chain(&self.more_engines)
    }

    /// What is written in the file. After a shorter record there may be the rest of the one before: inco was killed
    /// while it wrote.
    fn read(mut file: &File) -> Result<Record> {
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(Record::parse(&text)?)
    }

    fn parse(text: &[u8]) -> serde_json::Result<Record> {
        Record::deserialize(&mut serde_json::Deserializer::from_slice(text))
    }

    /// Replaces what is written: whenever this process is killed, there is one of the two.
    fn write(&self, file: &File) -> io::Result<()> {
        replace(file, &serde_json::to_vec(self)?)
    }
}

fn replace(file: &File, text: &[u8]) -> io::Result<()> {
    file.write_all_at(text, 0)?;
    file.set_len(text.len() as u64)
}

/// A running inco.
#[derive(Clone, Debug)]
pub struct Running {
    /// Its process id.
    pub pid: u32,
    /// Path of its configuration, as given at its start.
    pub file: String,
    /// Unix socket of its API.
    pub socket: PathBuf,
    /// TCP address of its API.
    pub(crate) listen: Option<SocketAddr>,
    /// The sockets on which its uplinks listen.
    uplinks: Vec<PathBuf>,
}

impl Running {
    /// The inco that uses the run directory; `None` if none runs or its file is not readable.
    pub fn of(run_dir: &Path) -> Option<Running> {
        let file = File::open(run_dir.join(FILE)).ok()?;
        let record = Record::read(&file).ok()?;
        let holds_it = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
        holds_it.then_some(Running {
            pid: record.pid,
            file: record.file,
            socket: record.socket,
            listen: record.listen,
            uplinks: record.uplinks,
        })
    }

    /// Whether it listens on that unix socket.
    pub(crate) fn listens_on(&self, socket: &Path) -> bool {
        self.socket == socket || self.uplinks.iter().any(|uplink| uplink == socket)
    }
}

/// A run that has ended without removing everything: it was killed, it crashed, or it kept its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its process id.
    pub pid: u32,
    /// Path of its configuration, as given at its start.
    pub file: String,
    /// Unix socket of its API.
    pub socket: PathBuf,
}

impl Ended {
    /// The run that has left something in the run directory; `None` while an inco runs, or if nothing is left. It takes
    /// no lock, so that it is not in the way of an inco that starts.
    pub fn of(run_dir: &Path) -> Option<Ended> {
        let file = File::open(run_dir.join(FILE)).ok()?;
        let Record {
            pid, file, socket, ..
        } = Record::read(&file).ok()?;
        let runs = Path::new("/proc").join(pid.to_string()).exists();
        (!runs).then_some(Ended { pid, file, socket })
    }

    /// What has happened.
    pub fn what(&self) -> String {
        format!(
            "the run of {} (process {}) has ended without removing its containers",
            self.file, self.pid
        )
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        format!(
            "`inco run -f {}` takes them over with their flows, `inco stop` removes them; why it ended is in its log \
             and its event log",
            self.file
        )
    }
}

/// Where the last run left sockets open, in its launcher or in Open vSwitch, for the next one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) sockets: Vec<PathBuf>,
    /// The API's TCP address.
    pub(crate) listen: Option<SocketAddr>,
}

/// What the last run left open; nothing while an inco runs.
pub(crate) fn kept_sockets(run_dir: &Path) -> Kept {
    let record = File::open(run_dir.join(FILE)).ok().and_then(|file| {
        let is_over = file.try_lock_shared().is_ok();
        Record::read(&file).ok().filter(|_| is_over)
    });
    let Some(record) = record else {
        return Kept::default();
    };
    let mut sockets = record.bridge.map_or(Vec::new(), |bridge| bridge.sockets);
    let keeper = Keeper::connect(run_dir).ok().flatten();
    if keeper.is_some() {
        // The kernel's list has the name that the socket was bound to, which is another one.
        sockets.extend(record.uplinks.into_iter().chain([record.socket]));
    }
    Kept {
        sockets,
        listen: keeper.as_ref().and_then(Where::kept_tcp),
    }
}

/// The mark of the current run. If it is dropped without [`Mark::remove`], the file stays and says that something may
/// be left.
#[derive(Debug)]
pub(crate) struct Mark {
    path: PathBuf,
    /// Holds the lock.
    file: File,
    /// What was written there before: the mark of an earlier run, if there was one.
    before: Vec<u8>,
    /// The bridge of an earlier run that this one does not use.
    unused_bridge: Option<Bridge>,
}

impl Mark {
    /// Marks the run directory as used by this process.
    ///
    /// # Errors
    /// Another inco uses the directory, or the file cannot be written.
    pub(crate) fn set(run_dir: &Path, socket: &Path, configuration: &Configuration) -> Result<Mark> {
        let path = run_dir.join(FILE);
        let of_file = || format!("cannot write {}", path.display());
        let open = OpenOptions::new()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .open(&path);
        let file = open.with_context(of_file)?;
        if let Err(error) = file.try_lock() {
            match error {
                TryLockError::WouldBlock => bail!(
                    "another inco uses the run directory {}: stop it with `inco stop`, or set INCO_RUN_DIR to \
                     another directory",
                    run_dir.display()
                ),
                TryLockError::Error(error) => return Err(error).with_context(of_file),
            }
        }
        let mut before = Vec::new();
        (&file).read_to_end(&mut before).with_context(of_file)?;
        let bridge = drivers::driver(configuration).bridge(configuration);
        let is_unused = |of: &Bridge| !bridge.as_ref().is_some_and(|bridge| bridge.is_same_as(of));
        let unused_bridge = Record::parse(&before).ok().and_then(|record| record.bridge);
        let unused_bridge = unused_bridge.filter(is_unused);
        let engines = configuration.engines();
        let mut engines = engines
            .iter()
            .map(|(_, engine)| EngineRecord::of(engine, configuration));
        let uplinks = configuration
            .uplinks
            .iter()
            .filter_map(|uplink| Some(in_run_dir(uplink.device.socket()?)));
        let record = Record {
            pid: std::process::id(),
            file: configuration.file.clone(),
            socket: socket.to_owned(),
            listen: configuration.api.tcp.as_ref().map(|tcp| tcp.listen),
            uplinks: uplinks.collect(),
            engine: engines
                .next()
                .unwrap_or_else(|| EngineRecord::of(&configuration.engine, configuration)),
            more_engines: engines.collect(),
            bridge,
        };
        record.write(&file).with_context(of_file)?;
        Ok(Mark {
            path,
            file,
            before,
            unused_bridge,
        })
    }

    /// Undoes the mark of a run that did not start: an earlier run's leftovers remain marked.
    pub(crate) fn undo(self) {
        if self.before.is_empty() {
            self.remove();
        } else if let Err(error) = replace(&self.file, &self.before) {
            tracing::warn!(%error, "`inco stop` may not find all that the last run left");
        }
    }

    /// Removes the bridge that an earlier run left and this one does not use.
    ///
    /// # Errors
    /// As [`Bridge::remove`].
    pub(crate) fn remove_unused_bridge(&self) -> Result<()> {
        self.unused_bridge.as_ref().map_or(Ok(()), Bridge::remove)
    }

    /// Removes the mark: this run left nothing.
    pub(crate) fn remove(self) {
        // If the file stays, it is reported as the mark of a run that left nothing.
        let _gone = fs::remove_file(&self.path);
    }
}

/// Has the launcher stay after this run, until the next one takes over or what this one left is removed: also where no
/// descriptor has anything of it, as with a switch that outlives inco by itself.
///
/// # Errors
/// The launcher does not answer.
pub(crate) fn have_launcher_stay(keeper: &Keeper, run_dir: &Path) -> Result<()> {
    // Each entry has a descriptor: here of what there is something left in.
    let directory = File::open(run_dir)?;
    Ok(keeper.keep(STAY, "", &[directory.as_fd()])?)
}

/// Removes the leftovers of a killed run, or of one that kept its containers, from this run directory: containers,
/// cgroups, a bridge, sockets and files. Returns the number of containers; `None` if no such run is known.
///
/// # Errors
/// The run continues, the engine does not answer, or something cannot be removed.
pub fn remove(run_dir: &Path) -> Result<Option<usize>> {
    let path = run_dir.join(FILE);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let record = Record::read(&file).with_context(|| {
        format!(
            "{} is damaged: start `inco run` and stop it again",
            path.display()
        )
    })?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        let (pid, socket) = (record.pid, record.socket.display());
        bail!("inco runs (process {pid}) with another socket: `inco stop --socket {socket}`");
    }
    let mut launcher = launcher_of(&record, run_dir)?;
    let mut removed = 0;
    for engine in record.engines() {
        let settings = controller::Settings {
            run_dir: run_dir.to_owned(),
            machine: engine.machine.clone(),
            ..controller::Settings::default()
        };
        let mut engine = engine_of(engine, run_dir, &mut launcher)?;
        removed += remove_containers(engine.as_mut(), &settings)?;
    }
    // Whatever comes of it, all else is removed.
    let bridge = record.bridge.as_ref().map_or(Ok(()), Bridge::remove);
    for socket in record.uplinks.iter().chain([&record.socket]) {
        let is_socket = fs::symlink_metadata(socket).is_ok_and(|data| data.file_type().is_socket());
        if is_socket && !is_listened_on(socket) {
            fs::remove_file(socket).with_context(|| format!("cannot remove {}", socket.display()))?;
        }
    }
    drivers::clean_up(run_dir)?;
    remove_folders(run_dir)?;
    bridge?;
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(Some(removed))
}

/// Removes the folders of sockets of instances: also that of a container that was being made when a run ended.
///
/// # Errors
/// Something in them is in use.
pub(crate) fn remove_folders(run_dir: &Path) -> Result<()> {
    engine::exchange::remove_all(&run_dir.join("instances"))?;
    // Open vSwitch may still have sockets there: those of a run that was killed.
    let ports = run_dir.join(pool::FOLDER);
    for port in fs::read_dir(&ports).into_iter().flatten().flatten() {
        let _ = fs::remove_dir(port.path());
    }
    let _ = fs::remove_dir(&ports);
    let keys = run_dir.join(signals::FOLDER);
    for key in fs::read_dir(&keys).into_iter().flatten().flatten() {
        let _ = fs::remove_file(key.path());
    }
    let _ = fs::remove_dir(&keys);
    Ok(())
}

/// The launcher of that run, or a new one where the engine needs one. It keeps nothing any more: flows, rings and
/// sockets go.
fn launcher_of(record: &Record, run_dir: &Path) -> Result<Option<Launcher>> {
    let is_oci = record.engines().any(EngineRecord::is_oci);
    let sockets = [engine::launcher::SOCKET, keeper::SOCKET];
    if !is_oci && !sockets.iter().any(|socket| run_dir.join(socket).exists()) {
        return Ok(None);
    }
    let mut launcher = Launcher::start(launcher_command(), run_dir)?;
    launcher.keeper()?.clear()?;
    Ok(is_oci.then_some(launcher))
}

/// An engine of that run. It adopts or removes the containers that it finds.
fn engine_of(
    record: &EngineRecord,
    run_dir: &Path,
    launcher: &mut Option<Launcher>,
) -> Result<Box<dyn Engine>> {
    if record.is_oci()
        && let Some(launcher) = launcher.take()
    {
        return Ok(Box::new(OciEngine::start(OciConfig::at(run_dir), launcher)?));
    }
    if let Some((kubeconfig, context, namespace)) = record.kubernetes.clone() {
        let of = configuration::Kubernetes {
            kubeconfig,
            context,
            namespace,
        };
        // It only removes.
        let config = kubernetes_config(&of, configuration::Pull::Never);
        return Ok(Box::new(KubernetesEngine::start(config)?));
    }
    let is_swarm = record.driver == EngineDriver::Swarm.name();
    let engine = configuration::Engine {
        driver: if is_swarm {
            EngineDriver::Swarm
        } else {
            EngineDriver::Docker
        },
        host: record.host.clone(),
        tls: record.tls.clone(),
        name: None,
        linger: Nanos::ZERO,
        // It only removes.
        pull: configuration::Pull::Never,
        plain_http: Vec::new(),
    };
    let config = docker_config(&engine);
    Ok(if is_swarm {
        Box::new(SwarmEngine::start(config)?)
    } else {
        Box::new(DockerEngine::start(config)?)
    })
}

/// Removes every container of an inco and returns their number.
fn remove_containers(engine: &mut dyn Engine, settings: &controller::Settings) -> Result<usize> {
    let containers = engine.list(&settings.label())?;
    for (number, container) in (0..).zip(&containers) {
        let name = container.name.clone();
        engine.submit(Ticket(number), Request::Remove { name });
    }
    let until = Instant::now() + REMOVAL;
    let (mut answered, mut events) = (0, Vec::new());
    while answered < containers.len() {
        engine.poll(&mut events);
        for event in events.drain(..) {
            match event {
                EngineEvent::Done { .. } => answered += 1,
                EngineEvent::Failed { error, .. } => return Err(error.into()),
                _ => {}
            }
        }
        if Instant::now() > until {
            bail!(
                "the engine has removed {answered} of {} containers within {} s: try again",
                containers.len(),
                REMOVAL.as_secs()
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(containers.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[[uplink]]\nname = \"wan\"\ndevice = \"memif:/nonexistent/wan.sock\"\n[service.a]\n\
                        port = \"null\"\n";

    #[test]
    fn a_record_is_read_after_inco_was_killed_while_it_wrote_a_shorter_one() {
        let record = |file: &str| Record {
            pid: 7,
            file: file.to_owned(),
            socket: PathBuf::from("api.sock"),
            listen: None,
            uplinks: Vec::new(),
            engine: EngineRecord {
                driver: "oci".to_owned(),
                host: String::new(),
                tls: None,
                kubernetes: None,
                machine: None,
            },
            more_engines: Vec::new(),
            bridge: None,
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let [longer, shorter] =
            ["a-long-name.toml", "a.toml"].map(|file| serde_json::to_vec(&record(file)).unwrap());
        let rest = longer.get(shorter.len()..).unwrap();
        fs::write(&path, [&shorter, rest].concat()).unwrap();
        assert_eq!(Record::read(&File::open(&path).unwrap()).unwrap().file, "a.toml");
        // No process has the highest number.
        let mut ended = record("a.toml");
        ended.pid = u32::MAX;
        fs::write(&path, serde_json::to_vec(&ended).unwrap()).unwrap();
        let ended = Ended::of(directory.path()).unwrap();
        assert_eq!((ended.pid, ended.file.as_str()), (u32::MAX, "a.toml"));
        let mut runs = record("a.toml");
        runs.pid = std::process::id();
        fs::write(&path, serde_json::to_vec(&runs).unwrap()).unwrap();
        assert_eq!(Ended::of(directory.path()), None);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        record("b.toml").write(&file).unwrap();
        assert_eq!(
            fs::read(&path).unwrap(),
            serde_json::to_vec(&record("b.toml")).unwrap()
        );
    }

    #[test]
    fn a_run_directory_has_one_inco_and_is_known_to_be_left() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path();
        let configuration = crate::load::parse(TEXT, "a.toml").unwrap();
        let set = || Mark::set(run_dir, &run_dir.join("other.sock"), &configuration);
        assert!(Running::of(run_dir).is_none());
        assert_eq!(remove(run_dir).unwrap(), None, "there was none");
        let mark = set().unwrap();
        let running = Running::of(run_dir).unwrap();
        assert_eq!(
            (running.pid, running.file.as_str()),
            (std::process::id(), "a.toml")
        );
        assert!(running.listens_on(&run_dir.join("other.sock")));
        assert!(running.listens_on(Path::new("/nonexistent/wan.sock")));
        assert!(!running.listens_on(Path::new("/nonexistent/lan.sock")));
        let error = set().unwrap_err().to_string();
        assert!(
            error.contains("another inco uses") && error.contains("INCO_RUN_DIR"),
            "{error}"
        );
        let error = remove(run_dir).unwrap_err().to_string();
        let socket = run_dir.join("other.sock");
        assert!(
            error.contains(&format!("`inco stop --socket {}`", socket.display())),
            "{error}"
        );
        mark.remove();
        assert_eq!(remove(run_dir).unwrap(), None, "it left nothing");
        // A killed run: the file stays, without a lock.
        drop(set().unwrap());
        assert!(run_dir.join(FILE).exists());
        assert!(Running::of(run_dir).is_none());
        drop(set().unwrap());
        fs::write(run_dir.join(FILE), "{").unwrap();
        let error = format!("{:#}", remove(run_dir).unwrap_err());
        assert!(
            error.contains("run.json is damaged: start `inco run` and stop it again"),
            "{error}"
        );
    }
}
