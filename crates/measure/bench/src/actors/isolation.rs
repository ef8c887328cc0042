//! Experiment 26 (iPipe, section 3.4): actors that loop, write where they may not, or are flooded, and what their
//! neighbours notice. Native actors, in processes by group: the offender with a mate in one, a neighbour in another.
//!
//! Response times are compared before the offence and after it. In between, messages wait while a new process starts:
//! how long, at most, is a figure of its own. "After" begins when none of them waits any more, and after the same
//! warm-up as "before".

use std::collections::VecDeque;
use std::process::Command;

use actor_processes::{Event, Group, Member, Why, offence};
use actor_runtime::{Actor, ActorId, Address, Context, Message, Progress, Refusal};
use anyhow::{Context as _, Result, bail, ensure};
use model::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Outcome, Row};
use crate::contestant::median;

const NOTE: &str = "Native actors in processes of their own, by group. The supervisor sends each actor a message of 20 us \
    of work every 0.5 ms; a response time includes the sockets between the processes. iPipe's cards do the same with \
    paging and hardware timers; on a card with a whole operating system iPipe, too, takes processes and signals.";

/// The word after which a process serves a group.
const KIND: &str = "counts";
const OFFENDER: ActorId = ActorId(1);
const MATE: ActorId = ActorId(2);
const NEIGHBOUR: ActorId = ActorId(3);
pub(super) const BUDGET: Nanos = Nanos::from_millis(20);
/// Between two messages of an actor, and the work of each.
const GAP: Nanos = Nanos::from_micros(500);
const WORK: Nanos = Nanos::from_micros(20);
/// How long response times are taken, before the offence and after it.
pub(super) const SPAN: Nanos = Nanos::from_millis(400);
pub(super) const ROUNDS: usize = 5;
const MAILBOX_LIMIT: usize = 64;
/// Of the others: more than come while a new process starts.
pub(super) const OTHERS_LIMIT: usize = 4_096;
const FLOOD: usize = 10_000;
/// Of the neighbours' 99th percentile after the offence, to that before.
const LIMIT: f64 = 1.10;
const TIMEOUT: Nanos = Nanos::from_secs(60);

/// What a message asks for.
const COUNT: u32 = 0;
const LOOP: u32 = 1;
const WRITE: u32 = 2;

/// Counts its messages in an object, works, and answers with the count; or does what it must not.
struct Counts;

impl Actor for Counts {
    fn init(&mut self, context: &mut Context<'_>) {
        if let Some(objects) = context.objects() {
            // Without the object no message is answered.
            let _count = objects.allocate(8);
        }
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        match message.kind {
            LOOP => offence::run_for_ever(),
            WRITE => offence::write_to(number(&message.body)),
            _ => {}
        }
        let until = clock::monotonic() + WORK;
        let Some(objects) = context.objects() else {
            return Progress::Done;
        };
        let first = objects.iter().next().map(|(id, bytes)| (id, number(bytes) + 1));
        if let Some((id, count)) = first
            && objects.write(id, 0, &count.to_le_bytes()).is_ok()
        {
            while clock::monotonic() < until {}
            context.send(message.from, message.kind, count.to_le_bytes().to_vec());
        }
        Progress::Done
    }
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The process of a group.
pub(crate) fn serve() -> Result<()> {
    actor_processes::serve(&|kind, _| (kind == KIND).then(|| Box::new(Counts) as Box<dyn Actor>))?;
    Ok(())
}

fn command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench", "actors-group"]);
    command
}

/// An offence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offence {
    Loop,
    Write,
    Flood,
}

/// What another actor noticed of an offence.
pub(super) struct Noticed {
    /// The 99th percentile of its response times, after ÷ before.
    pub(super) ratio: f64,
    /// Its longest response time from the offence until nothing waited any more.
    pub(super) longest_ms: f64,
}

/// What one showed.
struct Shown {
    /// From the offence to the stop of the actor; nothing where it is not stopped.
    stopped_ms: Option<f64>,
    why: Option<Why>,
    mate: Noticed,
    neighbour: Noticed,
    /// Messages of the two that were not answered exactly once, in order.
    lost: u64,
    /// Messages that waited for the offender, at most.
    waited: usize,
}

/// Measures it.
pub(super) fn measure() -> Result<Outcome> {
    let mut rows = Vec::new();
    for (offence, name) in [
        (Offence::Loop, "endless loop"),
        (Offence::Write, "write into another group's region"),
        (Offence::Flood, "flooded mailbox"),
    ] {
        let shown = (0..ROUNDS)
            .map(|_| offend(command, offence, (BUDGET, SPAN)))
            .collect::<Result<Vec<_>>>()?;
        let stopped = || shown.iter().filter_map(|of| of.stopped_ms);
        match offence {
            Offence::Loop => rows.push(
                Row::plain(format!("{name}: stopped after"), median(stopped()), "ms")
                    .at_most(2.0 * BUDGET.0 as f64 / 1e6),
            ),
            Offence::Write => {
                let caught = shown.iter().filter(|of| of.why == Some(Why::Signal(11))).count();
                let row = Row::plain(format!("{name}: caught"), caught as f64, "of 5 writes");
                rows.push(row.at_least(ROUNDS as f64));
            }
            Offence::Flood => {
                let most = shown.iter().map(|of| of.waited).max().unwrap_or(0);
                let row = Row::plain(
                    format!("{name}: messages that waited, at most"),
                    most as f64,
                    "messages",
                );
                rows.push(row.at_most(MAILBOX_LIMIT as f64));
            }
        }
        let neighbour: Vec<&Noticed> = shown.iter().map(|of| &of.neighbour).collect();
        let mate: Vec<&Noticed> = shown.iter().map(|of| &of.mate).collect();
        rows.extend(noticed(
            &format!("{name}: neighbour in another process"),
            &neighbour,
        ));
        rows.extend(noticed(&format!("{name}: mate in its process"), &mate));
        let lost = shown.iter().map(|of| of.lost).sum::<u64>() as f64;
        rows.push(
            Row::plain(
                format!("{name}: others' messages lost or answered twice"),
                lost,
                "messages",
            )
            .at_most(0.0),
        );
    }
    #[cfg(feature = "wasm")]
    rows.extend(super::modules::measure()?);
    let is_root = rustix::process::geteuid().is_root();
    let more = if is_root {
        rows.extend(super::neighbours::measure()?);
        super::neighbours::NOTE
    } else {
        "Containers were left out: they need root."
    };
    Ok(Outcome {
        rows,
        note: format!("{NOTE} {more}").into(),
    })
}

/// The rows of what another actor noticed, by round.
pub(super) fn noticed(who: &str, rounds: &[&Noticed]) -> [Row; 2] {
    let of = |figure: fn(&Noticed) -> f64| rounds.iter().map(|of| figure(of)).collect::<Vec<_>>();
    [
        Row::rounds(format!("{who}, p99 after / before"), &of(|of| of.ratio), "ratio").at_most(LIMIT),
        Row::rounds(
            format!("{who}, longest response in between"),
            &of(|of| of.longest_ms),
            "ms",
        ),
    ]
}

/// An actor that gets messages at equal intervals.
pub(super) struct Client {
    actor: ActorId,
    due: Nanos,
    sent: u64,
    /// When the messages without an answer were sent.
    pub(super) waiting: VecDeque<Nanos>,
    pub(super) answered: u64,
    wrong: u64,
    responses: Vec<Nanos>,
}

impl Client {
    pub(super) fn new(actor: ActorId, now: Nanos) -> Client {
        Client {
            actor,
            due: now,
            sent: 0,
            waiting: VecDeque::new(),
            answered: 0,
            wrong: 0,
            responses: Vec::new(),
        }
    }

    /// Sends what is due. What finds no room is late, which its response time shows.
    pub(super) fn send(
        &mut self,
        now: Nanos,
        mut deliver: impl FnMut(Message) -> Result<(), Refusal>,
    ) -> Result<()> {
        while self.due <= now && self.waiting.len() < OTHERS_LIMIT {
            deliver(message(self.actor, COUNT, Vec::new(), self.due))?;
            self.waiting.push_back(self.due);
            self.sent += 1;
            self.due = self.due + GAP;
        }
        Ok(())
    }

    /// When it sends next.
    pub(super) fn due(&self) -> Nanos {
        self.due
    }

    /// Sends nothing until it goes on: while others take the CPUs, as much may come as is answered.
    pub(super) fn rests(&mut self) {
        self.due = Nanos::MAX;
    }

    pub(super) fn goes_on(&mut self) {
        self.due = clock::monotonic();
    }

    pub(super) fn hear(&mut self, answer: &Message, now: Nanos) {
        if answer.from != Address::Actor(self.actor) {
            return;
        }
        self.answered += 1;
        self.wrong += u64::from(number(&answer.body) != self.answered);
        if let Some(sent) = self.waiting.pop_front() {
            self.responses.push(now.since(sent));
        }
    }

    /// Response times begin anew; the longest of those so far, in milliseconds.
    pub(super) fn forget(&mut self) -> f64 {
        let longest = self.responses.drain(..).max();
        longest.unwrap_or(Nanos::ZERO).0 as f64 / 1e6
    }

    /// Messages that were not answered exactly once, in order.
    pub(super) fn lost(&self) -> u64 {
        self.sent.abs_diff(self.answered) + self.wrong
    }

    /// Whether there are response times since they began anew.
    pub(super) fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    /// The 99th percentile of the response times so far, which begin anew.
    pub(super) fn p99(&mut self) -> Result<f64> {
        let mut responses = std::mem::take(&mut self.responses);
        responses.sort_unstable();
        let at = responses.len() * 99 / 100;
        responses
            .get(at)
            .map(|of| of.0 as f64)
            .context("no message was answered")
    }
}

pub(super) fn message(actor: ActorId, kind: u32, body: Vec<u8>, now: Nanos) -> Message {
    Message::new(Address::Actor(actor), Address::Outside(0), kind, body, now)
}

/// The two groups with their clients.
struct Bed {
    offenders: Group,
    others: Group,
    mate: Client,
    neighbour: Client,
    events: Vec<Event>,
    waited: usize,
}

impl Bed {
    /// Sends and hears, once; then sleeps until something is due or is said.
    fn turn(&mut self) -> Result<()> {
        let now = clock::monotonic();
        self.mate.send(now, |message| self.offenders.deliver(message))?;
        self.neighbour.send(now, |message| self.others.deliver(message))?;
        let mut answers = Vec::new();
        self.events.extend(self.offenders.turn(now, &mut answers)?);
        let others = self.others.turn(now, &mut answers)?;
        ensure!(others.is_empty(), "the neighbour's group: {others:?}");
        let now = clock::monotonic();
        for answer in &answers {
            self.mate.hear(answer, now);
            self.neighbour.hear(answer, now);
        }
        self.waited = self.waited.max(self.offenders.waiting(OFFENDER));
        if answers.is_empty() {
            let due = self.mate.due.min(self.neighbour.due);
            let mut sockets: Vec<PollFd<'_>> = ([&self.offenders, &self.others].into_iter())
                .filter_map(|group| group.socket())
                .map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN))
                .collect();
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: due.since(now).0.min(1_000_000) as i64,
            };
            rustix::event::poll(&mut sockets, Some(&timeout))?;
        }
        Ok(())
    }

    /// Response times begin anew; the longest ones of mate and neighbour so far, in milliseconds.
    fn forget(&mut self) -> (f64, f64) {
        (self.mate.forget(), self.neighbour.forget())
    }

    /// Turns without further messages until none of the two waits.
    fn until_answered(&mut self) -> Result<()> {
        self.mate.rests();
        self.neighbour.rests();
        self.until("all is answered", |bed| {
            bed.mate.waiting.is_empty() && bed.neighbour.waiting.is_empty()
        })
    }

    /// The 99th percentiles of mate and neighbour in a span, after a warm-up.
    fn p99(&mut self, span: Nanos) -> Result<(f64, f64)> {
        self.turn_for(Nanos(span.0 / 5))?;
        self.forget();
        self.turn_for(span)?;
        // A short span may pass on a busy machine before anything is answered.
        self.until("both answer", |bed| {
            bed.mate.has_responses() && bed.neighbour.has_responses()
        })?;
        Ok((self.mate.p99()?, self.neighbour.p99()?))
    }

    fn turn_for(&mut self, span: Nanos) -> Result<()> {
        let end = clock::monotonic() + span;
        while clock::monotonic() < end {
            self.turn()?;
        }
        Ok(())
    }

    /// Turns until the condition holds.
    fn until(&mut self, what: &str, is_so: impl Fn(&Bed) -> bool) -> Result<()> {
        let end = clock::monotonic() + TIMEOUT;
        while !is_so(self) {
            if clock::monotonic() > end {
                bail!(
                    "not within {} s: {what}; {:?}",
                    TIMEOUT.0 / 1_000_000_000,
                    self.events
                );
            }
            self.turn()?;
        }
        Ok(())
    }
}

/// Commits an offence between two spans of equal messages for the others. What a message may take comes first.
fn offend(command: fn() -> Command, offence: Offence, (budget, span): (Nanos, Nanos)) -> Result<Shown> {
    let member = |actor| Member {
        mailbox_limit: if actor == OFFENDER {
            MAILBOX_LIMIT
        } else {
            OTHERS_LIMIT
        },
        ..Member::new(actor, KIND)
    };
    let offenders = Group::start(command, budget, vec![member(OFFENDER), member(MATE)])?;
    let others = Group::start(command, budget, vec![member(NEIGHBOUR)])?;
    let now = clock::monotonic();
    let mut bed = Bed {
        offenders,
        others,
        mate: Client::new(MATE, now),
        neighbour: Client::new(NEIGHBOUR, now),
        events: Vec::new(),
        waited: 0,
    };
    bed.until("the groups serve", |bed| {
        bed.mate.answered > 0 && bed.neighbour.answered > 0
    })?;
    let before = bed.p99(span)?;
    let began = clock::monotonic();
    let mut stopped = None;
    match offence {
        Offence::Loop | Offence::Write => {
            let (kind, body) = match offence {
                Offence::Loop => (LOOP, Vec::new()),
                _ => {
                    let process = bed.others.process().context("the neighbour has no process")?;
                    (WRITE, region_of(process)?.to_le_bytes().to_vec())
                }
            };
            bed.offenders.deliver(message(OFFENDER, kind, body, began))?;
            bed.until("the offender is stopped", |bed| !bed.events.is_empty())?;
            stopped = Some(clock::monotonic().since(began).0 as f64 / 1e6);
        }
        Offence::Flood => {
            let refused = (0..FLOOD)
                .filter(|_| {
                    bed.offenders
                        .deliver(message(OFFENDER, COUNT, Vec::new(), began))
                        .is_err()
                })
                .count();
            ensure!(
                refused >= FLOOD - MAILBOX_LIMIT,
                "{refused} of {FLOOD} were refused"
            );
            bed.until("the flood is served", |bed| bed.offenders.waiting(OFFENDER) == 0)?;
        }
    }
    bed.until_answered()?;
    let longest_ms = bed.forget();
    bed.mate.goes_on();
    bed.neighbour.goes_on();
    let after = bed.p99(span)?;
    bed.until_answered()?;
    let why = bed.events.iter().find_map(|event| match event {
        Event::Stopped(OFFENDER, why, _) => Some(*why),
        _ => None,
    });
    ensure!(
        (offence == Offence::Flood) == bed.events.is_empty(),
        "{:?}",
        bed.events
    );
    Ok(Shown {
        stopped_ms: stopped,
        why,
        mate: Noticed {
            ratio: after.0 / before.0,
            longest_ms: longest_ms.0,
        },
        neighbour: Noticed {
            ratio: after.1 / before.1,
            longest_ms: longest_ms.1,
        },
        lost: bed.mate.lost() + bed.neighbour.lost(),
        waited: bed.waited,
    })
}

/// Where a process has the region of an actor.
pub(super) fn region_of(process: u32) -> Result<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
    let line = maps.lines().find(|line| line.contains("memfd:actor-objects"));
    let line = line.with_context(|| format!("process {process} has no region mapped"))?;
    let (begin, _) = line
        .split_once('-')
        .context("a line of the kernel's has no address")?;
    Ok(u64::from_str_radix(begin, 16)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process of a group.
    #[test]
    #[ignore = "a supervisor starts it"]
    fn group_process() {
        serve().unwrap();
    }

    fn this() -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "actors::isolation::tests::group_process", "--ignored"]);
        command
    }

    #[test]
    fn offenders_are_stopped_or_bounded_and_others_lose_nothing() {
        for (offence, is_stopped) in [
            (Offence::Loop, true),
            (Offence::Write, true),
            (Offence::Flood, false),
        ] {
            // Ten times the budget by the clock is an offence, too, and this process may wait long for a CPU.
            let (budget, span) = (Nanos::from_millis(300), Nanos::from_millis(40));
            let shown = offend(this, offence, (budget, span)).unwrap();
            assert_eq!(shown.lost, 0, "{offence:?}");
            assert_eq!(shown.why.is_some(), is_stopped, "{offence:?}");
            assert_eq!(shown.why == Some(Why::Signal(11)), offence == Offence::Write);
            assert!(shown.waited <= MAILBOX_LIMIT, "{}", shown.waited);
            // The mate's next message comes one gap later at the latest, and waits for the new process.
            if let Some(ms) = shown.stopped_ms {
                let least = ms - GAP.0 as f64 / 1e6;
                assert!(shown.mate.longest_ms > least, "{offence:?}");
            }
        }
    }
}
