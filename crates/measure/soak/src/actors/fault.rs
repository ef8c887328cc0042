//! What is done to the applications while clients ask.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use model::{Action, ActorSide, Random};
use rustix::process::Signal;
use testbed::Interrupt;
use testbed::actors::Applications;

use super::bed::APPLICATIONS;
use crate::process::Process;

/// How long both sides may take to run again.
const BACK_LIMIT: Duration = Duration::from_secs(30);
/// How long a move may take; then it is not counted.
const MOVE_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// Moves of each application in a deck.
const MOVES: usize = 3;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process of a side is killed, at any time under load.
    Crash,
    /// A side is cut off from the other one, from clients and from inco: its process is stopped, and then goes on with what it
    /// knew. Its actors do not hear that others have gone on without them.
    SidePartition,
    /// Clients are cut off from all sides: their interface is down.
    ClientPartition,
    /// An actor moves to the other side, with those of its group.
    Migration,
}

/// A fault of an application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    fault: Fault,
    application: usize,
}

/// The sequence of faults: a shuffled deck after the other.
pub(crate) struct Deck {
    random: Random,
    steps: VecDeque<Step>,
    /// Applications with a crash in this segment: a second one may leave no majority.
    crashed: [bool; APPLICATIONS.len()],
}

impl Deck {
    pub(crate) fn new(seed: u64) -> Deck {
        Deck {
            random: Random::new(seed),
            steps: VecDeque::new(),
            crashed: Default::default(),
        }
    }

    pub(crate) fn begin_segment(&mut self) {
        self.crashed = Default::default();
    }

    /// The next fault, and what it draws from.
    pub(crate) fn next(&mut self) -> (Step, Random) {
        let step = loop {
            let place = self.steps.iter().position(|step| step.is_allowed(&self.crashed));
            match place.and_then(|place| self.steps.remove(place)) {
                Some(step) => break step,
                None => self.shuffle(),
            }
        };
        if step.fault == Fault::Crash {
            self.crashed[step.application] = true;
        }
        (step, Random::new(self.random.bits()))
    }

    /// Adds a deck.
    fn shuffle(&mut self) {
        let mut all = vec![Step {
            fault: Fault::ClientPartition,
            application: 0,
        }];
        for application in 0..APPLICATIONS.len() {
            let mut add = |fault| all.push(Step { fault, application });
            add(Fault::Crash);
            add(Fault::SidePartition);
            (0..MOVES).for_each(|_| add(Fault::Migration));
        }
        while !all.is_empty() {
            let place = self.random.below(all.len() as u64) as usize;
            self.steps.push_back(all.swap_remove(place));
        }
    }
}

impl Step {
    fn is_allowed(&self, crashed: &[bool]) -> bool {
        self.fault != Fault::Crash || !crashed[self.application]
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.fault {
            Fault::Crash => "side-crash",
            Fault::SidePartition => "side-partition",
            Fault::ClientPartition => "client-partition",
            Fault::Migration => "migration",
        }
    }

    pub(crate) fn is_crash_of(&self, application: &str) -> bool {
        self.fault == Fault::Crash && APPLICATIONS[self.application] == application
    }

    /// Does it, and waits until it is over. What was done; nothing, if there was nothing to do it to.
    pub(crate) fn inject(
        &self,
        inco: &Applications<'_>,
        random: &mut Random,
        interrupt: &Interrupt,
    ) -> Result<Option<String>> {
        let service = APPLICATIONS[self.application];
        let side = ActorSide::BOTH[random.below(2) as usize];
        match self.fault {
            Fault::Crash => crash(inco, service, side, interrupt).map(Some),
            Fault::SidePartition => {
                let lasts = Duration::from_millis(100 + random.below(500));
                let process = process(inco, service, side, interrupt)?;
                process.signal(Signal::STOP);
                std::thread::sleep(lasts);
                process.signal(Signal::CONT);
                Ok(Some(format!(
                    "{service}, {} for {} ms",
                    side.name(),
                    lasts.as_millis()
                )))
            }
            Fault::ClientPartition => {
                let lasts = Duration::from_millis(100 + random.below(400));
                inco.clients().ip(&["link", "set", "eth0", "down"])?;
                std::thread::sleep(lasts);
                inco.clients().ip(&["link", "set", "eth0", "up"])?;
                Ok(Some(format!("all clients for {} ms", lasts.as_millis())))
            }
            Fault::Migration => migration(inco, service, random, interrupt),
        }
    }
}

/// The process of a side, once it runs.
fn process(
    inco: &Applications<'_>,
    service: &str,
    side: ActorSide,
    interrupt: &Interrupt,
) -> Result<Process> {
    let began = Instant::now();
    loop {
        if let Some(process) = inco.pid(service, side)?.and_then(Process::of) {
            return Ok(process);
        }
        wait(&began, interrupt, || {
            format!("the {} of {service} does not run", side.name())
        })?;
    }
}

/// Waits a little, and not for too long.
fn wait(began: &Instant, interrupt: &Interrupt, what: impl FnOnce() -> String) -> Result<()> {
    interrupt.check()?;
    if began.elapsed() > BACK_LIMIT {
        bail!("{} after {} s", what(), BACK_LIMIT.as_secs());
    }
    std::thread::sleep(LOOK);
    Ok(())
}

fn crash(inco: &Applications<'_>, service: &str, side: ActorSide, interrupt: &Interrupt) -> Result<String> {
    let before = inco.row(service)?.sides[side.index()].instance;
    process(inco, service, side, interrupt)?.signal(Signal::KILL);
    let began = Instant::now();
    loop {
        let row = inco.row(service)?;
        let is_another = row.sides[side.index()]
            .instance
            .is_some_and(|id| Some(id) != before);
        if is_another && row.sides.iter().all(|of| of.runs) {
            let took = began.elapsed().as_millis();
            return Ok(format!("{service}, {}; both run after {took} ms", side.name()));
        }
        wait(&began, interrupt, || {
            format!("the {} of {service} does not run again", side.name())
        })?;
    }
}

fn migration(
    inco: &Applications<'_>,
    service: &str,
    random: &mut Random,
    interrupt: &Interrupt,
) -> Result<Option<String>> {
    let row = inco.row(service)?;
    let running: Vec<_> = row.actors.iter().filter(|of| of.state == "runs").collect();
    if running.is_empty() {
        return Ok(None);
    }
    let of = running[random.below(running.len() as u64) as usize];
    let from = of.side.context("an actor runs on no side")?;
    let action = Action::ActorMove {
        service: service.to_owned(),
        actor: of.actor.clone(),
        to: from.other(),
    };
    if inco.session().client()?.act(&action).is_err() {
        // A side that has just begun again may not be ready.
        return Ok(None);
    }
    let began = Instant::now();
    while began.elapsed() < MOVE_LIMIT {
        let row = inco.row(service)?;
        let now = row.actors.iter().find(|now| now.actor == of.actor);
        if now.is_some_and(|now| now.side == Some(from.other())) {
            return Ok(Some(format!(
                "{service}, {} to the {}",
                of.actor,
                from.other().name()
            )));
        }
        interrupt.check()?;
        std::thread::sleep(LOOK);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_its_faults_and_a_segment_has_one_crash_of_an_application() {
        let draw = |seed| {
            let mut deck = Deck::new(seed);
            let mut drawn = Vec::new();
            for _ in 0..10 {
                deck.begin_segment();
                let mut crashes = [0; APPLICATIONS.len()];
                for _ in 0..30 {
                    let (step, mut random) = deck.next();
                    crashes[step.application] += usize::from(step.fault == Fault::Crash);
                    drawn.push((step.name(), step.application, random.bits()));
                }
                assert_eq!(crashes, [1; APPLICATIONS.len()]);
            }
            drawn
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        for name in ["side-crash", "side-partition", "client-partition", "migration"] {
            assert!(draw(7).iter().any(|(of, ..)| *of == name), "{name}");
        }
    }
}
