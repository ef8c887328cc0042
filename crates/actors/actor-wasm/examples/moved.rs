//! Runs an actor in WebAssembly for some messages, on the state that another process left, and leaves its own:
//!
//! ```text
//! moved MODULE FIRST COUNT [STATE]
//! ```
//! MODULE is given the messages FIRST to FIRST + COUNT - 1: each is its number, 8 bytes, little-endian. The state of
//! before is read from STATE; without one the actor begins. Its state goes to standard output, as a stream of objects;
//! a digest of the state and of all answers goes to standard error. `scripts/move-to-arm.sh` lets two processors do it.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actor_objects::{Import, Limits, Objects};
use actor_runtime::{
    ActorId, Address, CoreId, Idle, Message, Outside, PolicyName, Queues, Registration, Runtime, Settings,
};
use actor_wasm::{Module, WasmActor};
use model::Nanos;
use sha1::{Digest as _, Sha1};

const ACTOR: ActorId = ActorId(0);
const LIMITS: Limits = Limits {
    bytes: (64 << 10) * 32 + 4096,
    objects: 4,
};

/// Takes what the actor answers into a digest.
struct Answers(Arc<Mutex<Sha1>>);

impl Outside for Answers {
    fn poll(&mut self, _: Nanos, _: &mut Vec<Message>) {}

    fn send(&mut self, messages: &mut Vec<Message>) {
        if let Ok(mut digest) = self.0.lock() {
            for message in messages.drain(..) {
                digest.update(&message.body);
            }
        }
    }
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("moved: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let [module, first, count, state @ ..] = arguments else {
        return Err("usage: moved MODULE FIRST COUNT [STATE]".into());
    };
    let module = Module::compile(&std::fs::read(module)?)?;
    let actor = Box::new(WasmActor::new(module, Duration::from_secs(60)));
    let registration = Registration::new("moved", actor);
    let digest = Arc::new(Mutex::new(Sha1::new()));
    let settings = Settings {
        policy: PolicyName::Fcfs,
        queues: Queues::Shared,
        cores: 1,
        actors_limit: 1,
        quantum: Nanos::from_millis(1),
        tail_threshold: Nanos::from_secs(1),
        hysteresis: 0.1,
        idle: Idle::Poll,
    };
    let runtime = Runtime::new(&settings, Box::new(Answers(Arc::clone(&digest))));
    match state {
        [] => runtime.register(ACTOR, registration.objects(Objects::create(LIMITS)?.1))?,
        [file, ..] => {
            let mut import = Import::new(Objects::create(LIMITS)?.1)?;
            import.push(&std::fs::read(file)?)?;
            runtime.adopt(ACTOR, registration.objects(import.finish()?))?;
        }
    }
    let mut core = runtime.core(CoreId(0));
    let first: u64 = first.parse()?;
    for number in first..first + count.parse::<u64>()? {
        let body = number.to_le_bytes().to_vec();
        let to = Address::Actor(ACTOR);
        runtime.deliver(Message::new(to, Address::Outside(1), 0, body, Nanos::ZERO))?;
        while core.turn() == 0 {
            if let Some(stopped) = runtime.take_stopped().first() {
                return Err(stopped.reason.clone().into());
            }
        }
    }
    core.turn();
    let (mut registration, _) = runtime.remove(ACTOR)?;
    let objects = registration.take_objects().ok_or("the actor has no objects")?;
    let (mut stream, mut export) = objects.export();
    let mut parts = Vec::new();
    while export.next(&objects, 1 << 20, 16, &mut parts) > 0 {
        parts.iter().for_each(|part| stream.extend_from_slice(part));
    }
    std::io::stdout().write_all(&stream)?;
    let answers = digest.lock().map_err(|_| "no digest")?.clone().finalize();
    let hex = |digest: &[u8]| {
        digest
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    eprintln!("state {} answers {}", hex(&Sha1::digest(&stream)), hex(&answers));
    Ok(())
}
