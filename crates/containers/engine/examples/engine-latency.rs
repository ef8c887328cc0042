//! What an engine's actions cost here: `cargo run --release -p engine --example engine-latency -- oci 200` (or
//! `docker`), as root. Prints one line for each action, in milliseconds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clock::monotonic;
use engine::image::{ImageFile, Store};
use engine::{
    ContainerSpec, CpuQuota, DEFAULT_HOST, DockerConfig, DockerEngine, Engine, EngineEvent, ImageRef,
    Launcher, LauncherCommand, OciConfig, OciEngine, Request, Ticket,
};
use model::Nanos;

const PATIENCE: Duration = Duration::from_secs(30);
const IMAGE: &str = "inco/latency:test";

struct Bench {
    engine: Box<dyn Engine>,
    events: Vec<EngineEvent>,
    next: u64,
}

impl Bench {
    fn submit(&mut self, request: Request) -> Ticket {
        self.next += 1;
        self.engine.submit(Ticket(self.next), request);
        Ticket(self.next)
    }

    fn wait<T>(&mut self, mut take: impl FnMut(&EngineEvent) -> Option<T>) -> anyhow::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.engine.poll(&mut self.events);
            if let Some((at, found)) = self
                .events
                .iter()
                .enumerate()
                .find_map(|(at, event)| take(event).map(|found| (at, found)))
            {
                self.events.remove(at);
                return Ok(found);
            }
            if Instant::now() > deadline {
                bail!("no answer within {PATIENCE:?}: {:?}", self.events);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// How long the engine says that it took; for a create also the process id.
    fn answer(&mut self, ticket: Ticket) -> anyhow::Result<(Nanos, u32)> {
        let answer = self.wait(|event| match event {
            EngineEvent::Created {
                ticket: own,
                took,
                pid,
                ..
            } if *own == ticket => Some(Ok((*took, *pid))),
            EngineEvent::Done {
                ticket: own, took, ..
            } if *own == ticket => Some(Ok((*took, 0))),
            EngineEvent::Failed {
                ticket: own, error, ..
            } if *own == ticket => Some(Err(error.clone())),
            _ => None,
        })?;
        Ok(answer?)
    }

    fn ask(&mut self, request: Request) -> anyhow::Result<(Nanos, u32)> {
        let ticket = self.submit(request);
        self.answer(ticket)
    }
}

fn build(dir: &Path) -> anyhow::Result<PathBuf> {
    let program = dir.join("program");
    let source = dir.join("program.c");
    std::fs::write(
        &source,
        "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n",
    )?;
    let status = Command::new("cc")
        .args(["-static", "-o"])
        .arg(&program)
        .arg(&source)
        .status()?;
    if !status.success() {
        bail!("cc failed");
    }
    Ok(program)
}

fn report(action: &str, mut spans: Vec<Nanos>) {
    spans.sort_unstable();
    let at = |share: f64| {
        let index = ((spans.len() as f64 * share).ceil() as usize).clamp(1, spans.len().max(1)) - 1;
        spans.get(index).map_or(0.0, |span| span.0 as f64 / 1e6)
    };
    eprintln!(
        "{action:<28} n {:>4}  p50 {:>8.3}  p99 {:>8.3}  max {:>8.3} ms",
        spans.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let driver = arguments
        .next()
        .and_then(|word| word.into_string().ok())
        .unwrap_or_else(|| "oci".to_owned());
    if driver == "launcher" {
        return Ok(engine::launcher::main()?);
    }
    let count: usize = match arguments.next() {
        Some(word) => word.to_string_lossy().parse().context("how many")?,
        None => 50,
    };
    let dir = std::env::temp_dir().join(format!("inco-latency-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    // Before anything has a thread.
    let launcher = match driver.as_str() {
        "oci" => Some(Launcher::start(
            LauncherCommand::this_program(["launcher"]),
            &dir.join("run"),
        )?),
        _ => None,
    };
    let store = Store::at(dir.join("images"));
    let files = [ImageFile::program(build(&dir)?, "/program")];
    store.build_scratch(&ImageRef::from(IMAGE), &files, &["/program".to_owned()], &[])?;
    let engine: Box<dyn Engine> = match launcher {
        Some(launcher) => {
            let mut config = OciConfig::at(dir.join("run"));
            config.images = store;
            Box::new(OciEngine::start(config, launcher)?)
        }
        None => {
            let mut config = DockerConfig::at(DEFAULT_HOST);
            config.images = Some(store);
            Box::new(DockerEngine::start(config)?)
        }
    };
    let mut bench = Bench {
        engine,
        events: Vec::new(),
        next: 0,
    };
    let (mut create, mut pause, mut resume, mut quota, mut noticed, mut remove) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    let mut spec = ContainerSpec::new("inco-latency-1", IMAGE);
    spec.cpu = Some(CpuQuota::of_cpus(0.1));
    let name = spec.name.clone();
    for _ in 0..count {
        let (took, pid) = bench.ask(Request::Create(Box::new(spec.clone())))?;
        create.push(took);
        let q = Some(CpuQuota::of_cpus(0.2));
        quota.push(
            bench
                .ask(Request::SetQuota {
                    name: name.clone(),
                    quota: q,
                })?
                .0,
        );
        pause.push(bench.ask(Request::Pause { name: name.clone() })?.0);
        resume.push(bench.ask(Request::Resume { name: name.clone() })?.0);
        let killed_at = monotonic();
        let pid = rustix::process::Pid::from_raw(pid as i32).context("no process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
        let at = bench.wait(|event| match event {
            EngineEvent::Exited { at, .. } => Some(*at),
            _ => None,
        })?;
        noticed.push(at.since(killed_at));
        remove.push(bench.ask(Request::Remove { name: name.clone() })?.0);
    }
    let mut eight = Vec::new();
    for _ in 0..(count / 20).max(1) {
        let began = monotonic();
        let named = |i: usize| ContainerSpec {
            name: format!("inco-latency-{i}"),
            ..spec.clone()
        };
        let tickets: Vec<Ticket> = (0..8)
            .map(|i| bench.submit(Request::Create(Box::new(named(i)))))
            .collect();
        for ticket in tickets {
            bench.answer(ticket)?;
        }
        eight.push(monotonic().since(began));
        for i in 0..8 {
            bench.ask(Request::Remove { name: named(i).name })?;
        }
    }
    eprintln!("{driver}");
    report("create until running", create);
    report("eight at once, all running", eight);
    report("CPU quota", quota);
    report("pause", pause);
    report("resume", resume);
    report("kill -9 until noticed", noticed);
    report("remove a dead one", remove);
    drop(bench);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
