//! The workloads of iPipe's Table 3 as actors: what a request of 1 KB takes of a core.

use actor_runtime::{
    Actor, ActorId, Address, Context, Core, CoreId, Message, Outside, Progress, Registration, Runtime,
    Settings,
};
use anyhow::{Result, ensure};
use functions::workloads::{REQUEST_BYTES, SETUP, TABLE, Workload};
use functions::{Burst, Chain, LIBRARY, find};
use model::Nanos;

use super::{Outcome, Row};
use crate::contestant::median;

const NOTE: &str = "Each function of the library is an actor, and a message has a whole request. CPU time of the core's thread: the \
    copy of the request into a message and into the function, the runtime, the function, and the copies of what it sends. \
    The paper's figures are of a core of a LiquidIO card (1.2 GHz), so only their order can be compared. Instructions per \
    cycle and cache misses are not shown: they need hardware counters.";

/// Requests of a workload, which come again and again: 16 MB, so that they are not in a cache of the processor.
const REQUESTS: usize = 16_384;
/// Between two requests, as functions see it: 0.8 Gbit/s of 1 KB.
const GAP: Nanos = Nanos::from_micros(10);
/// Each workload is measured so often, for so long, in turns.
const ROUNDS: usize = 5;
const TURN: Nanos = Nanos::from_millis(300);
/// The functions that take longest in the paper, in its order; the rest take less.
const IN_ORDER: [&str; 4] = ["classifier", "ranker", "pfabric", "limiter"];
const CLIENT: Address = Address::Outside(1);
const ACTOR: ActorId = ActorId(0);
/// Requests that come at once.
const AT_ONCE: usize = 32;

/// A function of the library.
struct Serves {
    chain: Chain,
    burst: Burst,
    now: Nanos,
}

impl Serves {
    fn answer(&self, context: &mut Context<'_>) {
        for extent in self.burst.leaving() {
            context.send(CLIENT, 0, self.burst.bytes_of(extent).to_vec());
        }
    }
}

impl Actor for Serves {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        self.now = self.now + GAP;
        self.burst.begin(0, 0);
        self.burst.push(&message.body);
        self.chain.process(&mut self.burst, self.now);
        self.answer(context);
        if self.chain.due().is_some_and(|due| due <= self.now)
            && self.chain.tick(0, &mut self.burst, 0, self.now)
        {
            self.answer(context);
        }
        Progress::Done
    }
}

struct Nobody;

impl Outside for Nobody {
    fn poll(&mut self, _: Nanos, _: &mut Vec<Message>) {}

    fn send(&mut self, messages: &mut Vec<Message>) {
        messages.clear();
    }
}

/// A workload that runs.
struct Running {
    of: &'static Workload,
    requests: Vec<Vec<u8>>,
    next: usize,
    runtime: Runtime,
    core: Core,
    /// Microseconds for each request, by round.
    rounds: Vec<f64>,
}

impl Running {
    fn start(of: &'static Workload, requests: usize) -> Result<Running> {
        let stage = find(LIBRARY, of.function)?.make(&of.configuration(), &SETUP)?;
        let runtime = Runtime::new(&Settings::first_come(1), Box::new(Nobody));
        let actor = Serves {
            chain: Chain::new(vec![stage])?,
            burst: Burst::new(),
            now: Nanos::from_secs(1),
        };
        runtime.register(ACTOR, Registration::new(of.function, Box::new(actor)))?;
        let mut running = Running {
            of,
            requests: of.requests(requests, REQUEST_BYTES, 1),
            next: 0,
            core: runtime.core(CoreId(0)),
            runtime,
            rounds: Vec::new(),
        };
        // What requests begin is there, and queues are full.
        for _ in 0..requests.div_ceil(AT_ONCE) {
            running.serve()?;
        }
        Ok(running)
    }

    /// Some requests come and are served.
    fn serve(&mut self) -> Result<()> {
        let now = clock::monotonic();
        for _ in 0..AT_ONCE {
            let body = self.requests[self.next].clone();
            self.next = (self.next + 1) % self.requests.len();
            self.runtime
                .deliver(Message::new(Address::Actor(ACTOR), CLIENT, 0, body, now))?;
        }
        let mut served = 0;
        while served < AT_ONCE {
            let more = self.core.turn();
            ensure!(more > 0, "{}: it serves no requests", self.of.function);
            served += more;
        }
        Ok(())
    }

    fn turn(&mut self, turn: Nanos) -> Result<()> {
        let (began, before) = (clock::monotonic(), clock::thread_cpu());
        let mut served = 0;
        while served == 0 || clock::monotonic().since(began) < turn {
            for _ in 0..AT_ONCE {
                self.serve()?;
            }
            served += AT_ONCE * AT_ONCE;
        }
        let took = clock::thread_cpu().since(before);
        self.rounds.push(took.0 as f64 / 1e3 / served as f64);
        Ok(())
    }

    fn us(&self) -> f64 {
        median(self.rounds.iter().copied())
    }
}

/// Measures it.
pub(super) fn measure() -> Result<Outcome> {
    measured(REQUESTS, ROUNDS, TURN)
}

fn measured(requests: usize, rounds: usize, turn: Nanos) -> Result<Outcome> {
    let started = TABLE.iter().map(|of| Running::start(of, requests));
    let mut all = started.collect::<Result<Vec<_>>>()?;
    for _ in 0..rounds {
        all.iter_mut().try_for_each(|running| running.turn(turn))?;
    }
    all.sort_by(|a, b| b.of.paper_us.total_cmp(&a.of.paper_us));
    let mut rows = Vec::new();
    for running in &all {
        let case = format!("{}: {}", running.of.application, running.of.computation);
        let paper = format!("{} us", running.of.paper_us);
        rows.push(Row::plain(case, running.us(), "us of CPU time").paper(paper));
    }
    let us = |function: &str| {
        all.iter()
            .find(|of| of.of.function == function)
            .map_or(f64::NAN, Running::us)
    };
    let longest_without = |named: &[&str]| {
        let others = all.iter().filter(|of| !named.contains(&of.of.function));
        others.map(Running::us).fold(0.0, f64::max)
    };
    let [classifier, ranker, scheduler, limiter] = IN_ORDER.map(us);
    for (case, ratio, paper) in [
        ("flow classifier / top ranker", classifier / ranker, "2.1"),
        (
            "top ranker / the longest of the others",
            ranker / longest_without(&IN_ORDER[..2]),
            "2.7",
        ),
        ("packet scheduler / rate limiter", scheduler / limiter, "1.5"),
        (
            "rate limiter / the longest of the rest",
            limiter / longest_without(&IN_ORDER),
            "2.2",
        ),
    ] {
        rows.push(Row::plain(case, ratio, "ratio").at_least(1.0).paper(paper));
    }
    Ok(Outcome {
        rows,
        note: NOTE.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_is_served_and_an_echo_answers_each_request() {
        let outcome = measured(256, 1, Nanos::from_millis(2)).unwrap();
        assert_eq!(outcome.rows.len(), TABLE.len() + 4);
        assert!(
            outcome.rows.iter().all(|row| row.value > 0.0),
            "{:?}",
            outcome.rows
        );
        // The limits say the paper's order: of its own times each is met.
        let of_paper = |function: &str| {
            let of = TABLE.iter().find(|of| of.function == function);
            of.map_or(f64::NAN, |of| of.paper_us)
        };
        let times = IN_ORDER.map(of_paper);
        assert!(times.is_sorted_by(|a, b| a > b), "{times:?}");
        let rest = TABLE.iter().filter(|of| !IN_ORDER.contains(&of.function));
        assert!(rest.map(|of| of.paper_us).all(|us| us < times[3]));
        let echo = TABLE.iter().find(|of| of.function == "forward").unwrap();
        let running = Running::start(echo, 256).unwrap();
        let counts = running.runtime.actors()[0].counts;
        assert!(counts.served >= 256 && counts.sent == counts.served, "{counts:?}");
    }
}
