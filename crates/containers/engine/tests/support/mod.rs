//! What the tests of real engines share: the probe program, images and a way to wait for events.
#![allow(dead_code, unreachable_pub, unused_imports)] // each test takes what it needs
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // these are tests

pub mod layout;
pub mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use engine::image::{ImageFile, Store};
use engine::logs::Logs;
use engine::{
    ContainerSpec, Engine, EngineError, EngineEvent, Exit, ImageRef, Launcher, LauncherCommand, OciConfig,
    OciEngine, Request, Ticket,
};
use model::Nanos;
pub use real_parts::available;

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const IMAGE: &str = "inco/probe:test";

/// The probe, built once for each test binary.
pub fn probe() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/probe.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("probe-{}", std::process::id()));
        let status = Command::new("cc")
            .args(["-static", "-O1", "-w", "-o"])
            .arg(&program)
            .arg(source)
            .status()
            .expect("a C compiler");
        assert!(status.success(), "the probe does not compile");
        program
    })
}

pub fn build_image(store: &Store) {
    let file = [ImageFile::program(probe(), "/probe")];
    let entrypoint = ["/probe".to_owned(), "sleep".to_owned()];
    store
        .build_scratch(
            &ImageRef::from(IMAGE),
            &file,
            &entrypoint,
            &[("PROBE".into(), "1".into())],
        )
        .unwrap();
}

pub fn oci_missing() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "this is not run as root".to_owned())
}

pub fn launcher(run_dir: &Path) -> Launcher {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_inco-launcher"));
    Launcher::start(
        LauncherCommand {
            program,
            arguments: vec![],
            clean_up: Some("clean-up".into()),
        },
        run_dir,
    )
    .unwrap()
}

/// A run directory with an image in it.
pub struct Place {
    pub dir: tempfile::TempDir,
    /// What containers of its engines write.
    pub logs: Logs,
}

impl Place {
    pub fn new() -> Place {
        let place = Place {
            dir: tempfile::tempdir().unwrap(),
            logs: Logs::default(),
        };
        build_image(&place.store());
        place
    }

    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub fn store(&self) -> Store {
        Store::at(self.dir.path().join("images"))
    }

    pub fn engine(&self) -> OciEngine {
        let mut config = OciConfig::at(self.run_dir());
        config.images = self.store();
        config.logs = self.logs.clone();
        OciEngine::start(config, launcher(&self.run_dir())).unwrap()
    }
}

/// An engine, and its events that the test has not taken yet.
pub struct Told {
    pub engine: Box<dyn Engine>,
    pub events: Vec<EngineEvent>,
    next: u64,
    /// What lets time pass.
    pub step: Box<dyn FnMut()>,
}

impl Told {
    pub fn new(engine: Box<dyn Engine>) -> Told {
        let step = Box::new(|| std::thread::sleep(Duration::from_micros(200)));
        Told {
            engine,
            events: Vec::new(),
            next: 1,
            step,
        }
    }

    pub fn submit(&mut self, request: Request) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.engine.submit(ticket, request);
        ticket
    }

    /// The first event that this takes for its own; the others stay.
    pub fn wait<T>(&mut self, what: &str, mut take: impl FnMut(&EngineEvent) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.engine.poll(&mut self.events);
            let found = self
                .events
                .iter()
                .enumerate()
                .find_map(|(at, event)| take(event).map(|found| (at, found)));
            if let Some((at, found)) = found {
                self.events.remove(at);
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "no {what} within {PATIENCE:?}: {:?}",
                self.events
            );
            (self.step)();
        }
    }

    pub fn answer(&mut self, ticket: Ticket) -> Result<EngineEvent, EngineError> {
        self.wait("answer", |event| match event {
            EngineEvent::Created { ticket: own, .. } | EngineEvent::Done { ticket: own, .. }
                if *own == ticket =>
            {
                Some(Ok(event.clone()))
            }
            EngineEvent::Failed {
                ticket: own, error, ..
            } if *own == ticket => Some(Err(error.clone())),
            _ => None,
        })
    }

    pub fn ask(&mut self, request: Request) -> Result<EngineEvent, EngineError> {
        let ticket = self.submit(request);
        self.answer(ticket)
    }

    pub fn create(&mut self, spec: &ContainerSpec) -> u32 {
        match self.ask(Request::Create(Box::new(spec.clone()))) {
            Ok(EngineEvent::Created { pid, .. }) => pid,
            other => panic!("{}: {other:?}", spec.name),
        }
    }

    pub fn pause(&mut self, name: &str) -> Result<EngineEvent, EngineError> {
        self.ask(Request::Pause { name: name.into() })
    }

    pub fn resume(&mut self, name: &str) -> Result<EngineEvent, EngineError> {
        self.ask(Request::Resume { name: name.into() })
    }

    pub fn stop(&mut self, name: &str, grace_ms: u64) -> Result<EngineEvent, EngineError> {
        self.ask(Request::Stop {
            name: name.into(),
            grace: Nanos::from_millis(grace_ms),
        })
    }

    pub fn remove(&mut self, name: &str) -> Result<EngineEvent, EngineError> {
        self.ask(Request::Remove { name: name.into() })
    }

    pub fn exit_of(&mut self, name: &str) -> (Exit, String, Nanos) {
        self.wait("exit", |event| match event {
            EngineEvent::Exited {
                name: own,
                exit,
                output,
                at,
            } if own == name => Some((*exit, output.clone(), *at)),
            _ => None,
        })
    }
}

pub fn spec(name: &str, command: &[&str]) -> ContainerSpec {
    let mut spec = ContainerSpec::new(name, IMAGE);
    if !command.is_empty() {
        spec.command = std::iter::once("/probe")
            .chain(command.iter().copied())
            .map(str::to_owned)
            .collect();
    }
    spec.labels = BTreeMap::from([("inco.service".to_owned(), "probe".to_owned())]);
    spec
}
