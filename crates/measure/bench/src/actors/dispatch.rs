//! What a message costs the runtime: the mailbox, the scheduler with its statistics, the call of the actor, and what the
//! actor sends in turn. CPU time of one thread, which is a core.

use std::hint::black_box;

use actor_runtime::{
    Actor, ActorId, Address, BATCH_MESSAGES, Context, CoreId, Idle, Message, Outside, PolicyName, Progress,
    Queues, Registration, Runtime, Settings,
};
use anyhow::{Result, ensure};
use model::Nanos;

use super::{Outcome, Row};
use crate::contestant::median;

const NOTE: &str = "An actor adds a number to its state and sends the message on, to the next of its kind. Native actors \
    allocate nothing; of one in WebAssembly the runtime copies each body twice. Each message is delivered by an actor, waits in a mailbox, is scheduled, counted and run. CPU time of the \
    core's thread.";

const ACTORS: u32 = 8;
/// Messages on their way at a time: so many for each actor that a batch is full.
const MESSAGES: u32 = 4 * BATCH_MESSAGES as u32;
const ROUNDS: usize = 9;
const TURNS: usize = 20_000;
/// In nanoseconds of CPU time for each message.
const LIMIT_NS: f64 = 150.0;

struct Adds {
    sum: u64,
    next: Address,
}

impl Actor for Adds {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        self.sum = self.sum.wrapping_add(u64::from(message.kind));
        context.send(self.next, message.kind, std::mem::take(&mut message.body));
        Progress::Done
    }
}

struct Nobody;

impl Outside for Nobody {
    fn poll(&mut self, _: Nanos, _: &mut Vec<Message>) {}

    fn send(&mut self, _: &mut Vec<Message>) {}
}

/// Measures it.
pub(super) fn measure() -> Result<Outcome> {
    let mut rows = Vec::new();
    for (policy, word) in [
        (PolicyName::Hybrid, "hybrid"),
        (PolicyName::Fcfs, "fcfs"),
        (PolicyName::Drr, "drr"),
    ] {
        let (ns, in_batch) = native(policy, ROUNDS, TURNS)?;
        rows.push(Row::plain(format!("native, {word}"), ns, "ns of CPU time per message").at_most(LIMIT_NS));
        rows.push(Row::plain(
            format!("native, {word}: messages of a batch"),
            in_batch,
            "messages",
        ));
    }
    #[cfg(feature = "wasm")]
    {
        let (ns, in_batch) = wasm::measure(PolicyName::Hybrid, ROUNDS, TURNS)?;
        rows.push(
            Row::plain("WebAssembly, hybrid", ns, "ns of CPU time per message").at_most(wasm::LIMIT_NS),
        );
        rows.push(Row::plain(
            "WebAssembly, hybrid: messages of a batch",
            in_batch,
            "messages",
        ));
    }
    Ok(Outcome {
        rows,
        note: NOTE.into(),
    })
}

/// Native actors.
fn native(policy: PolicyName, rounds: usize, turns: usize) -> Result<(f64, f64)> {
    dispatch(policy, rounds, turns, |next| {
        let adds = Adds {
            sum: 0,
            next: Address::Actor(next),
        };
        Ok(Registration::new("adds", Box::new(adds)))
    })
}

/// The same actors as modules.
#[cfg(feature = "wasm")]
mod wasm {
    use std::time::Duration;

    use actor_objects::{Limits, Objects};
    use actor_wasm::{Module, WasmActor};

    use super::*;

    /// In nanoseconds of CPU time for each message.
    pub(super) const LIMIT_NS: f64 = 300.0;
    /// Adds the kind to a number at 8, and sends the message on.
    const ADDS: &str = r#"
(module
  (import "inco" "me" (func $me (result i32)))
  (import "inco" "send" (func $send (param i32 i64 i32 i32 i32)))
  (memory (export "memory") 1)
  (func (export "inbox") (result i32) (i32.const 1024))
  (func (export "inbox_bytes") (result i32) (i32.const 1024))
  (func (export "exec") (param $kind i32) (param $outside i32) (param $from i64) (param $bytes i32) (result i32)
    (i64.store (i32.const 8) (i64.add (i64.load (i32.const 8)) (i64.extend_i32_u (local.get $kind))))
    (call $send (i32.const 0)
      (i64.extend_i32_u (i32.rem_u (i32.add (call $me) (i32.const 1)) (i32.const 8)))
      (local.get $kind) (i32.const 1024) (local.get $bytes))
    (i32.const 0)))
"#;
    const LIMITS: Limits = Limits {
        bytes: 72 << 10,
        objects: 4,
    };

    pub(super) fn measure(policy: PolicyName, rounds: usize, turns: usize) -> Result<(f64, f64)> {
        const { assert!(ACTORS == 8, "as the module says") };
        let module = Module::compile(ADDS.as_bytes())?;
        dispatch(policy, rounds, turns, |_| {
            let actor = Box::new(WasmActor::new(module.clone(), Duration::from_secs(1)));
            Ok(Registration::new("adds", actor).objects(Objects::create(LIMITS)?.1))
        })
    }

    #[test]
    fn modules_dispatch() {
        let (ns, in_batch) = measure(PolicyName::Hybrid, 1, 50).unwrap();
        assert!(ns > 0.0 && in_batch >= 1.0, "{ns} ns, {in_batch} in a batch");
    }
}

/// Nanoseconds for each message, as the median of the rounds; and messages of a batch. Each actor is made with the one
/// that it sends to.
fn dispatch(
    policy: PolicyName,
    rounds: usize,
    turns: usize,
    registration: impl Fn(ActorId) -> Result<Registration>,
) -> Result<(f64, f64)> {
    let settings = Settings {
        policy,
        queues: Queues::Shared,
        cores: 1,
        actors_limit: ACTORS,
        quantum: Nanos::from_micros(40),
        tail_threshold: Nanos::from_millis(1),
        hysteresis: 0.1,
        idle: Idle::Poll,
    };
    let runtime = Runtime::new(&settings, Box::new(Nobody));
    for actor in 0..ACTORS {
        let next = ActorId((actor + 1) % ACTORS);
        runtime.register(ActorId(actor), registration(next)?)?;
    }
    for message in 0..MESSAGES {
        let to = Address::Actor(ActorId(message % ACTORS));
        let body = vec![0; 64];
        runtime.deliver(Message::new(
            to,
            Address::Outside(0),
            message,
            body,
            clock::monotonic(),
        ))?;
    }
    let mut core = runtime.core(CoreId(0));
    let mut turn = |turns: usize| (0..turns).map(|_| core.turn()).sum::<usize>();
    turn(turns / 10 + 100);
    let batches_before = runtime.cores()[0];
    let mut figures = Vec::new();
    for _ in 0..rounds {
        let began = clock::thread_cpu();
        let ended = turn(turns);
        let took = clock::thread_cpu().since(began);
        ensure!(ended > 0, "no message has ended");
        figures.push(took.0 as f64 / ended as f64);
    }
    let all = runtime.cores()[0];
    black_box(runtime.actors());
    let in_batch =
        (all.served - batches_before.served) as f64 / (all.batches - batches_before.batches) as f64;
    Ok((median(figures), in_batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_dispatches() {
        for policy in PolicyName::ALL {
            let (ns, in_batch) = native(policy, 1, 50).unwrap();
            assert!(
                ns > 0.0 && in_batch >= 1.0,
                "{policy:?}: {ns} ns, {in_batch} in a batch"
            );
        }
    }
}
