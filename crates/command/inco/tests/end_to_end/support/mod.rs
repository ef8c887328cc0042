//! A running inco, the traffic against it, and what must not be left of it.

mod dockerd;
mod function;
mod keys;
mod leftovers;
mod namespace;
mod network;
mod ovs;
mod requests;
mod systemd;
mod turn;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use api::Client;
use api::types::{InstanceRow, Status};
use model::{Event, EventKind, InstanceId, InstanceState};
use traffic::Report;

pub(crate) use dockerd::PrivateDockerd;
pub(crate) use function::{FileFunction, Function};
pub(crate) use keys::{ApiOverTls, Authority, free_port};
pub(crate) use leftovers::{Traces, launcher_of, mounts_under, siblings};
pub(crate) use namespace::{Namespace, Sniffer, within_network_of};
pub(crate) use network::{Network, Session, bridge};
pub(crate) use ovs::Ovs;
pub(crate) use real_parts::{available, data};
pub(crate) use requests::{Load, Outcome};
pub(crate) use systemd::Systemd;
use turn::Turn;

/// Long enough for anything that must happen at all, on a machine that is busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// The image of `forward` that these tests run: a name of their own, so that no other build replaces it.
pub(crate) const IMAGE: &str = "inco-test/forward";

/// The uplink and the service of most tests' configurations; other keys of the service follow.
pub(crate) const FORWARD: &str = r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = "inco-test/forward"
command = ["/inco-nf", "forward", "--stamp"]
memory = "64MiB"
"#;

/// Which engine runs the containers of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Oci,
    Docker,
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Oci => "oci",
            Engine::Docker => "docker",
        }
    }

    /// Whether it can be tested here; says so where not.
    pub(crate) fn is_here(self) -> bool {
        available("root", root_missing())
            && available(self.name(), nf_missing())
            && match self {
                Engine::Oci => true,
                Engine::Docker => available("docker", docker_missing()),
            }
    }

    /// Its table in a configuration.
    pub(crate) fn toml(self) -> String {
        format!("[engine]\ndriver = \"{}\"\n", self.name())
    }
}

fn root_missing() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "this is not run as root".to_owned())
}

fn nf_missing() -> Option<String> {
    std::env::var_os("INCO_NF")
        .is_none()
        .then(|| "INCO_NF does not name the static inco-nf (`make nf` builds it)".to_owned())
}

fn docker_missing() -> Option<String> {
    let answers = Command::new("docker")
        .args(["version", "--format", "{{.Server.Version}}"])
        .output();
    match answers {
        Ok(output) if output.status.success() => None,
        _ => Some("no Docker engine answers".to_owned()),
    }
}

pub(crate) fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../examples")
        .join(name)
}

/// The images of all tests, made once.
pub(crate) fn state_dir() -> &'static Path {
    static STATE: OnceLock<PathBuf> = OnceLock::new();
    STATE.get_or_init(|| {
        let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("end_to_end");
        std::fs::create_dir_all(&state).unwrap();
        if nf_missing().is_none() {
            // Both names in the store: the examples use the usual one.
            for name in [IMAGE, "inco/forward"] {
                let made = inco(&program(), &state, &state)
                    .args(["image", "build", "forward", "--name", name])
                    .output()
                    .unwrap();
                assert!(made.status.success(), "{}", text(&made.stderr));
            }
        }
        state
    })
}

/// Another program to test than the one that cargo built: `make promises` has the installed one measured.
pub(crate) const PROGRAM: &str = "INCO_PROGRAM";

/// The program to test.
pub(crate) fn program() -> PathBuf {
    std::env::var_os(PROGRAM)
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_inco").into())
        .into()
}

fn inco(program: &Path, run_dir: &Path, state_dir: &Path) -> Command {
    // As an operator would run a data plane: before other programs. Children inherit it.
    let mut command = if root_missing().is_none() {
        let mut command = Command::new("nice");
        command.args(["-n", "-10"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command
        .env("INCO_RUN_DIR", run_dir)
        .env("INCO_STATE_DIR", state_dir)
        .env_remove("INCO_LOG")
        .stdin(Stdio::null());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asks until there is an answer.
pub(crate) fn eventually<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(
            started.elapsed() < limit,
            "{what}: not within {:.1} s",
            limit.as_secs_f64()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A run directory, and the turn to use the machine.
pub(crate) struct Place {
    /// [`None`] while it is dropped.
    directory: Option<tempfile::TempDir>,
    _turn: Turn,
}

impl Place {
    /// For a test that other tests do not disturb, nor it them.
    pub(crate) fn new() -> Place {
        Place::with(Turn::beside_others())
    }

    /// For a test that uses a CPU, or that cannot be late: few run beside it.
    pub(crate) fn with_a_cpu() -> Place {
        Place::with(Turn::with_a_cpu())
    }

    /// For a test that measures: nothing else is tested meanwhile.
    pub(crate) fn quiet() -> Place {
        Place::with(Turn::quiet())
    }

    /// A second run directory in the same turn.
    pub(crate) fn beside(&self) -> Place {
        Place::with(Turn::shared())
    }

    fn with(turn: Turn) -> Place {
        Place {
            directory: Some(tempfile::Builder::new().prefix("inco-").tempdir().unwrap()),
            _turn: turn,
        }
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.as_ref().unwrap().path().join(name)
    }

    /// A file with that text, outside of the run directory.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The same, which only its owner may read.
    pub(crate) fn secret_file(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.file(name, text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Waits until what happened is all that is left in the run directory.
    pub(crate) fn is_left_clean(&self) {
        let mut there = Vec::new();
        let clean = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("everything is removed", PATIENCE, || {
                let entries = std::fs::read_dir(self.run_dir()).unwrap().flatten();
                there = entries.map(|entry| entry.file_name()).collect();
                (there == ["events"]).then_some(())
            });
        }));
        assert!(clean.is_ok(), "left in the run directory: {there:?}");
    }

    /// The program in this place.
    pub(crate) fn inco(&self, arguments: &[&str]) -> Command {
        self.inco_by(&program(), arguments)
    }

    /// Another program in this place.
    pub(crate) fn inco_by(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = inco(program, &self.run_dir(), state_dir());
        command.args(arguments);
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.inco(arguments).output().unwrap()
    }

    /// Lets a user without rights use this place, with a program and images of its own.
    pub(crate) fn allow_other_users(&self) {
        use std::os::unix::fs::PermissionsExt as _;
        let open = |path: PathBuf| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        };
        open(self.path(""));
        std::fs::copy(env!("CARGO_BIN_EXE_inco"), self.path("inco")).unwrap();
        open(self.path("inco"));
        std::fs::create_dir(self.path("state")).unwrap();
        // Not all images: other tests make some and remove them.
        std::fs::create_dir(self.path("state/images")).unwrap();
        let image = Command::new("cp")
            .arg("-r")
            .args([
                state_dir().join("images/inco%2Fforward:latest"),
                self.path("state/images"),
            ])
            .status();
        assert!(image.unwrap().success());
        std::fs::create_dir(self.run_dir()).unwrap();
        open(self.run_dir());
    }

    /// The program in this place, as a user without rights.
    pub(crate) fn inco_unprivileged(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(self.path("inco"))
            .args(arguments)
            .env("INCO_RUN_DIR", self.run_dir())
            .env("INCO_STATE_DIR", self.path("state"))
            .env_remove("INCO_LOG")
            .stdin(Stdio::null());
        command
    }

    /// Runs a command that must succeed.
    pub(crate) fn must(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(
            output.status.success(),
            "inco {arguments:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Imports an image of the function and of programs of this machine, in `/bin`, with their libraries.
    pub(crate) fn import_image(&self, image: &str, programs: &[&str]) {
        let root = self.path("rootfs");
        let copy = |from: &Path, to: &str| {
            let to = root.join(to.trim_start_matches('/'));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(from, to).unwrap();
        };
        copy(Path::new(&std::env::var_os("INCO_NF").unwrap()), "/inco-nf");
        for program in programs {
            let places = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(program));
            let from = places.iter().find(|path| path.exists()).unwrap();
            copy(from, &format!("/bin/{program}"));
            let needed = Command::new("ldd").arg(from).output().unwrap();
            let words = text(&needed.stdout);
            for word in words.split_whitespace().filter(|word| word.starts_with('/')) {
                copy(Path::new(word), word);
            }
        }
        let root = root.display().to_string();
        self.must(&[
            "image", "import", image, &root, "--", "/inco-nf", "forward", "--stamp",
        ]);
    }

    /// `inco run` with that configuration, once its API answers.
    pub(crate) fn run(&self, configuration: &str) -> Inco {
        let file = self.file("inco.toml", configuration);
        self.run_file(&file)
    }

    pub(crate) fn run_file(&self, file: &Path) -> Inco {
        self.start(self.inco(&["run", "-f", file.to_str().unwrap()]))
    }

    /// The same by another program.
    pub(crate) fn run_by(&self, program: &Path, configuration: &str) -> Inco {
        let file = self.file("inco.toml", configuration);
        self.start(self.inco_by(program, &["run", "-f", file.to_str().unwrap()]))
    }

    /// The `inco run` that the command is, once its API answers.
    pub(crate) fn start(&self, mut command: Command) -> Inco {
        let log = std::fs::File::create(self.path("inco.log")).unwrap();
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        let mut running = Inco {
            child: Some(child),
            client: None,
            run_dir: self.run_dir(),
            log: self.path("inco.log"),
            traces: Traces::of(&self.run_dir()),
        };
        let socket = self.run_dir().join("api.sock");
        let client = eventually("the API answers", PATIENCE, || {
            let ended = running.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "inco ended at once: {}", running.log());
            Client::connect(&socket).ok()
        });
        running.client = Some(client);
        running
    }

    /// `inco traffic` with that profile, in the background.
    /// One request to the API over its unix socket, and the answer.
    pub(crate) fn ask(&self, path: &str) -> String {
        let mut stream = UnixStream::connect(self.run_dir().join("api.sock")).unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn traffic(&self, profile: &str) -> Traffic {
        self.traffic_by(profile, &["--uplink", "memif:wan.sock"])
    }

    pub(crate) fn traffic_by(&self, profile: &str, arguments: &[&str]) -> Traffic {
        let file = self.file("profile.toml", profile);
        let mut command = self.inco(&["traffic", "--json", "-f"]);
        command.arg(file).args(arguments);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Traffic { child: Some(child) }
    }
}

impl Drop for Place {
    /// A directory that cannot be removed is in use: by a mount or a process.
    fn drop(&mut self) {
        if std::thread::panicking() && self.directory.is_some() {
            // The launcher keeps what a killed inco had until somebody stops it.
            let _stopped = self.inco(&["stop"]).output();
        }
        let Some(directory) = self.directory.take() else {
            return;
        };
        let path = directory.path().to_owned();
        let removed = directory.close();
        if !std::thread::panicking() {
            assert!(removed.is_ok(), "{} stays: {removed:?}", path.display());
        }
    }
}

/// A running `inco run`.
pub(crate) struct Inco {
    child: Option<Child>,
    client: Option<Client>,
    run_dir: PathBuf,
    log: PathBuf,
    traces: Traces,
}

impl Inco {
    /// Connects to the uplinks `lan` and `wan`, in this order, and waits until packets pass by both: a worker takes a
    /// peer's queues a moment after the peer has its answer.
    pub(crate) fn networks(&self, place: &Place) -> [memif::Link; 2] {
        let links = ["lan.sock", "wan.sock"].map(|name| {
            let socket = place.run_dir().join(name);
            memif::Client::connect(&memif::ClientConfig::new(socket, 0), PATIENCE).unwrap()
        });
        eventually("both uplinks are up", PATIENCE, || {
            self.status().uplinks.iter().all(|of| of.up).then_some(())
        });
        links
    }

    pub(crate) fn client(&self) -> &Client {
        self.client.as_ref().unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn status(&self) -> Status {
        self.client().status().unwrap()
    }

    pub(crate) fn instances(&self) -> Vec<InstanceRow> {
        self.client().instances().unwrap()
    }

    pub(crate) fn instance(&self, id: InstanceId) -> Option<InstanceRow> {
        self.instances().into_iter().find(|i| i.id == id)
    }

    pub(crate) fn count(&self, state: InstanceState) -> usize {
        self.instances().iter().filter(|i| i.state == state).count()
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.client().events(10_000).unwrap()
    }

    /// Waits until so many instances are active and so many on standby, and none is anything else.
    pub(crate) fn settled(&self, active: usize, standby: usize) -> Vec<InstanceRow> {
        let what = format!("{active} active and {standby} on standby\n");
        let mut last = Vec::new();
        let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(&what, PATIENCE, || {
                last = self.instances();
                let of = |state| last.iter().filter(|i| i.state == state).count();
                (of(InstanceState::Active) == active
                    && of(InstanceState::Standby) == standby
                    && last.len() == active + standby)
                    .then(|| last.clone())
            })
        }));
        let Ok(rows) = settled else {
            panic!("{what}: there are {last:#?}\n{}\n{}", self.told(), self.log());
        };
        self.traces.note(&rows);
        rows
    }

    /// Everything that was told, a line each.
    pub(crate) fn told(&self) -> String {
        let lines: Vec<String> = self
            .events()
            .iter()
            .map(|e| format!("{} {:?} {:?} {:?}", e.unix_ms, e.service, e.instance, e.kind))
            .collect();
        lines.join("\n")
    }

    /// The status once no packet moves any more; nothing may be unaccounted for.
    pub(crate) fn at_rest(&self) -> Status {
        let mut status = self.status();
        let rest = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("all packets are accounted for", PATIENCE, || {
                status = self.status();
                (status.accounting.in_flight == 0 && status.accounting.gap() == 0).then_some(())
            });
        }));
        assert!(rest.is_ok(), "{:#?}", status.accounting);
        status
    }

    /// Remembers what there is of the instances, to be looked for after the end.
    pub(crate) fn note_traces(&self) {
        self.traces.note(&self.instances());
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) -> Traces {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        self.traces.clone()
    }

    /// A flow has moved only if an instance has failed, its flows were taken from it, or an operator moved some.
    fn assert_moves_have_a_cause(&self) {
        let Ok(status) = self.client().status() else {
            return;
        };
        let is_cause = |event: &Event| match &event.kind {
            EventKind::Unpinned { .. }
            | EventKind::State {
                to: InstanceState::Failed,
                ..
            } => true,
            EventKind::Action { action, refused, .. } => {
                !refused && ["move", "purge"].contains(&action.as_str())
            }
            _ => false,
        };
        assert!(
            status.accounting.expected_moves == 0 || self.events().iter().any(is_cause),
            "{} flows have moved: {}",
            status.accounting.expected_moves,
            self.told()
        );
    }

    /// SIGTERM.
    pub(crate) fn terminated(mut self) -> Traces {
        self.note_traces();
        self.assert_moves_have_a_cause();
        let mut child = self.child.take().unwrap();
        kill(child.id(), rustix::process::Signal::TERM);
        let status = child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
        self.traces.clone()
    }

    /// `inco stop`, and how it ended.
    pub(crate) fn stop_with(mut self, place: &Place, arguments: &[&str]) -> (String, Traces) {
        self.note_traces();
        self.assert_moves_have_a_cause();
        let mut all = vec!["stop"];
        all.extend(arguments);
        place.must(&all);
        let mut child = self.child.take().unwrap();
        let status = child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        (said, self.traces.clone())
    }

    /// Waits for the end of an inco that was stopped and had no containers.
    pub(crate) fn ended(mut self) {
        let status = self.child.take().unwrap().wait().unwrap();
        let log = self.log();
        assert!(status.success() && !log.contains("panicked"), "{status}: {log}");
    }

    /// `inco stop`; then nothing may be left.
    pub(crate) fn stop(self, place: &Place) {
        let log = self.log.clone();
        let (_said, traces) = self.stop_with(place, &[]);
        traces.assert_nothing_left();
        let log = std::fs::read_to_string(log).unwrap_or_default();
        assert!(!log.contains("panicked"), "{log}");
    }
}

impl Drop for Inco {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        // A test failed: nothing of it may disturb the next one.
        eprintln!("log of inco:\n{}", self.log());
        if let Ok(client) = Client::connect(&self.run_dir.join("api.sock")) {
            eprintln!("{:#?}", client.instances());
        }
        if let Some(pid) = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap_or(0)) {
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let until = Instant::now() + Duration::from_secs(15);
        while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _gone = child.kill();
        let _status = child.wait();
        let _ = &self.run_dir;
    }
}

/// A running `inco traffic`.
pub(crate) struct Traffic {
    child: Option<Child>,
}

impl Traffic {
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.as_mut().unwrap().try_wait(), Ok(None))
    }

    /// Ends the sending; the report comes as usual.
    pub(crate) fn interrupt(&self) {
        kill(self.child.as_ref().unwrap().id(), rustix::process::Signal::INT);
    }

    /// Its report, at its end, of a test in which no instance fails and none is purged: no flow has moved.
    pub(crate) fn report(self) -> Report {
        let report = self.report_with_moves();
        assert_nothing_moved(&report);
        report
    }

    /// The same where an instance failed or was purged, or an operator moved flows.
    pub(crate) fn report_with_moves(mut self) -> Report {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _gone = child.kill();
            let _status = child.wait();
        }
    }
}

/// No flow has another instance than its first, for whatever reason.
pub(crate) fn assert_nothing_moved(report: &Report) {
    let c = &report.counts;
    assert_eq!((c.mis_steered, c.expected_moves), (0, 0), "{c:#?}");
}

/// No packet on another instance than its flow's, twice, out of order or with other bytes.
pub(crate) fn assert_undisturbed(report: &Report) {
    assert_undisturbed_but(report, 0);
}

/// Where so many packets pass by the instances, and come back without a stamp.
pub(crate) fn assert_undisturbed_but(report: &Report, unstamped: u64) {
    let c = &report.counts;
    assert!(c.returned_packets > 0, "{c:#?}");
    let wrong = [
        c.mis_steered,
        c.duplicated,
        c.reordered,
        c.beyond_window,
        c.unstamped,
        c.altered,
        c.wrong_uplink,
        c.foreign,
    ];
    assert_eq!(wrong, [0, 0, 0, 0, unstamped, 0, 0, 0], "{c:#?}");
}

/// And none was lost.
pub(crate) fn assert_clean(report: &Report) {
    assert_clean_but(report, 0);
}

/// The same where no instance stamps what it gives back.
pub(crate) fn assert_clean_without_stamps(report: &Report) {
    assert_clean_but(report, report.counts.offered_packets);
}

fn assert_clean_but(report: &Report, unstamped: u64) {
    assert_undisturbed_but(report, unstamped);
    assert_eq!(report.lost, 0, "{:#?}\n{:#?}", report.counts, report.generator);
}

/// The state changes of an instance: when, and to what.
pub(crate) fn changes(events: &[Event], id: InstanceId) -> Vec<(u64, InstanceState, String)> {
    events
        .iter()
        .filter(|e| e.instance == Some(id))
        .filter_map(|e| match &e.kind {
            EventKind::State { to, reason, .. } => Some((e.unix_ms, *to, reason.clone())),
            _ => None,
        })
        .collect()
}
