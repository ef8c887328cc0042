//! Isolation of actors in WebAssembly: two modules in one runtime with two cores. One loops, accesses what is not its
//! memory, or traps; the other one is asked at equal intervals.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use actor_objects::{Limits, Objects};
use actor_runtime::{
    ActorId, Idle, Message, Outside, PolicyName, Queues, Registration, Runtime, Settings, Stopped, Threads,
};
use actor_wasm::{Module, WasmActor};
use anyhow::{Result, bail, ensure};
use model::Nanos;

use super::Row;
use super::isolation::{BUDGET, Client, Noticed, OTHERS_LIMIT, ROUNDS, SPAN, message, noticed};

const OFFENDER: ActorId = ActorId(0);
const NEIGHBOUR: ActorId = ActorId(1);
/// Between the end of a core's messages and its look at what is to be done.
const IDLE: Duration = Duration::from_millis(10);
const TIMEOUT: Nanos = Nanos::from_secs(60);
/// A page, and what the root takes.
const LIMITS: Limits = Limits {
    bytes: 72 << 10,
    objects: 4,
};

/// Counts its messages at 8, goes 20,000 times through a loop, and answers with the count. Kinds 1 to 3 are offences.
const COUNTS: &str = r#"
(module
  (import "inco" "send" (func $send (param i32 i64 i32 i32 i32)))
  (memory (export "memory") 1)
  (func (export "inbox") (result i32) (i32.const 1024))
  (func (export "inbox_bytes") (result i32) (i32.const 1024))
  (func (export "exec") (param $kind i32) (param $outside i32) (param $from i64) (param $bytes i32) (result i32)
    (local $left i32)
    (if (i32.eq (local.get $kind) (i32.const 1)) (then (loop $ever (br $ever))))
    (if (i32.eq (local.get $kind) (i32.const 2)) (then (i32.store (i32.const 0x7fff0000) (i32.const 1))))
    (if (i32.eq (local.get $kind) (i32.const 3)) (then (unreachable)))
    (i64.store (i32.const 8) (i64.add (i64.load (i32.const 8)) (i64.const 1)))
    (local.set $left (i32.const 20000))
    (loop $work
      (i64.store (i32.const 16) (i64.add (i64.load (i32.const 16)) (i64.const 1)))
      (br_if $work (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
    (call $send (local.get $outside) (local.get $from) (local.get $kind) (i32.const 8) (i32.const 8))
    (i32.const 0)))
"#;

/// An offence, and what the reason for which its module is stopped has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offence {
    Loop,
    Access,
    Trap,
}

impl Offence {
    const ALL: [Offence; 3] = [Offence::Loop, Offence::Access, Offence::Trap];

    const fn name(self) -> &'static str {
        match self {
            Offence::Loop => "endless loop",
            Offence::Access => "access outside of its memory",
            Offence::Trap => "trap",
        }
    }

    const fn kind(self) -> u32 {
        match self {
            Offence::Loop => 1,
            Offence::Access => 2,
            Offence::Trap => 3,
        }
    }

    const fn reason(self) -> &'static str {
        match self {
            Offence::Loop => "interrupt",
            Offence::Access => "out of bounds",
            Offence::Trap => "unreachable",
        }
    }
}

/// What one showed.
struct Shown {
    stopped_ms: f64,
    why: String,
    neighbour: Noticed,
    lost: u64,
}

/// Measures it.
pub(super) fn measure() -> Result<Vec<Row>> {
    let module = Module::compile(COUNTS.as_bytes())?;
    let mut rows = Vec::new();
    for offence in Offence::ALL {
        let case = |what: &str| format!("in WebAssembly, {}: {what}", offence.name());
        let shown = (0..ROUNDS)
            .map(|_| offend(&module, offence, (BUDGET, SPAN)))
            .collect::<Result<Vec<_>>>()?;
        if offence == Offence::Loop {
            let stopped: Vec<f64> = shown.iter().map(|of| of.stopped_ms).collect();
            let row = Row::rounds(case("stopped after"), &stopped, "ms");
            rows.push(row.at_most(2.0 * BUDGET.0 as f64 / 1e6));
        }
        let caught = shown
            .iter()
            .filter(|of| of.why.contains(offence.reason()))
            .count();
        rows.push(Row::plain(case("caught"), caught as f64, "of 5 times").at_least(ROUNDS as f64));
        let neighbour: Vec<&Noticed> = shown.iter().map(|of| &of.neighbour).collect();
        rows.extend(noticed(&case("the other module"), &neighbour));
        let lost = shown.iter().map(|of| of.lost).sum::<u64>() as f64;
        let row = Row::plain(
            case("messages of the other one lost or answered twice"),
            lost,
            "messages",
        );
        rows.push(row.at_most(0.0));
    }
    Ok(rows)
}

/// Hands over what leaves, with the time.
struct Leaves(Sender<(Message, Nanos)>);

impl Outside for Leaves {
    fn poll(&mut self, _: Nanos, _: &mut Vec<Message>) {}

    fn send(&mut self, messages: &mut Vec<Message>) {
        let now = clock::monotonic();
        for message in messages.drain(..) {
            // Nobody hears it only if the bench has failed.
            let _unheard = self.0.send((message, now));
        }
    }
}

/// Two modules, and a client of one of them.
struct Bed {
    runtime: Runtime,
    _threads: Threads,
    left: Receiver<(Message, Nanos)>,
    neighbour: Client,
    stopped: Vec<Stopped>,
}

impl Bed {
    fn start(module: &Module, budget: Nanos) -> Result<Bed> {
        let settings = Settings {
            policy: PolicyName::Hybrid,
            queues: Queues::Shared,
            cores: 2,
            actors_limit: 2,
            quantum: Nanos::from_micros(40),
            tail_threshold: Nanos::from_millis(1),
            hysteresis: 0.1,
            idle: Idle::Sleep(IDLE),
        };
        let (sender, left) = channel();
        let runtime = Runtime::new(&settings, Box::new(Leaves(sender)));
        for (actor, name) in [(OFFENDER, "offender"), (NEIGHBOUR, "neighbour")] {
            let of = WasmActor::new(module.clone(), Duration::from_nanos(budget.0));
            // There is room for all that the client has under way.
            let of = Registration::new(name, Box::new(of)).mailbox_limit(OTHERS_LIMIT);
            runtime.register(actor, of.objects(Objects::create(LIMITS)?.1))?;
        }
        Ok(Bed {
            _threads: runtime.start(|_| ())?,
            runtime,
            left,
            neighbour: Client::new(NEIGHBOUR, clock::monotonic()),
            stopped: Vec::new(),
        })
    }

    /// Sends what is due, and hears what comes until something is due again.
    fn turn(&mut self) -> Result<()> {
        let now = clock::monotonic();
        self.neighbour
            .send(now, |message| self.runtime.deliver(message))?;
        let due = self.neighbour.due().since(clock::monotonic());
        let longest = Duration::from_nanos(due.0).min(Duration::from_millis(1));
        match self.left.recv_timeout(longest) {
            Ok((answer, at)) => {
                self.neighbour.hear(&answer, at);
                for (answer, at) in self.left.try_iter() {
                    self.neighbour.hear(&answer, at);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the runtime has ended"),
        }
        self.stopped.extend(self.runtime.take_stopped());
        Ok(())
    }

    fn turn_for(&mut self, span: Nanos) -> Result<()> {
        let end = clock::monotonic() + span;
        while clock::monotonic() < end {
            self.turn()?;
        }
        Ok(())
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Bed) -> bool) -> Result<()> {
        let end = clock::monotonic() + TIMEOUT;
        while !is_so(self) {
            ensure!(
                clock::monotonic() < end,
                "not in time: {what}; {:?}",
                self.stopped
            );
            self.turn()?;
        }
        Ok(())
    }

    /// Turns without further messages until none waits.
    fn until_answered(&mut self) -> Result<()> {
        self.neighbour.rests();
        self.until("all is answered", |bed| bed.neighbour.waiting.is_empty())
    }

    /// The 99th percentile of a span, after a warm-up.
    fn p99(&mut self, span: Nanos) -> Result<f64> {
        self.turn_for(Nanos(span.0 / 5))?;
        self.neighbour.forget();
        self.turn_for(span)?;
        self.until("the module answers", |bed| bed.neighbour.has_responses())?;
        self.neighbour.p99()
    }
}

/// Commits an offence between two spans of equal messages for the other module. What a message may take comes first.
fn offend(module: &Module, offence: Offence, (budget, span): (Nanos, Nanos)) -> Result<Shown> {
    let mut bed = Bed::start(module, budget)?;
    bed.until("the module answers", |bed| bed.neighbour.answered > 0)?;
    let before = bed.p99(span)?;
    let began = clock::monotonic();
    (bed.runtime).deliver(message(OFFENDER, offence.kind(), Vec::new(), began))?;
    bed.until("the offender is stopped", |bed| !bed.stopped.is_empty())?;
    let stopped_ms = clock::monotonic().since(began).0 as f64 / 1e6;
    bed.until_answered()?;
    let longest_ms = bed.neighbour.forget();
    bed.neighbour.goes_on();
    let after = bed.p99(span)?;
    bed.until_answered()?;
    let [
        Stopped {
            actor: OFFENDER,
            reason,
            ..
        },
    ] = &bed.stopped[..]
    else {
        bail!("{:?}", bed.stopped);
    };
    Ok(Shown {
        stopped_ms,
        why: reason.clone(),
        neighbour: Noticed {
            ratio: after / before,
            longest_ms,
        },
        lost: bed.neighbour.lost(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offenders_are_stopped_and_the_other_module_loses_nothing() {
        let module = Module::compile(COUNTS.as_bytes()).unwrap();
        // By the clock: one that waits for a CPU is not to be taken for one that loops.
        let budget = Nanos::from_secs(5);
        for offence in Offence::ALL {
            let shown = offend(&module, offence, (budget, Nanos::from_millis(40))).unwrap();
            assert!(shown.why.contains(offence.reason()), "{offence:?}: {}", shown.why);
            assert_eq!(shown.lost, 0, "{offence:?}");
            let runs_on = offence == Offence::Loop;
            assert!(
                !runs_on || shown.stopped_ms >= budget.0 as f64 / 1e6,
                "{offence:?}"
            );
        }
    }
}
