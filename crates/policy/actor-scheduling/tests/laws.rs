//! What holds for every policy, whatever the messages: each is served once, by a core that may serve it, and no actor
//! with a message waits for ever.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::VecDeque;

use actor_scheduling::{
    ActorId, CoreId, Decision, Ended, Group, Line, PolicyName, Queues, Round, Scheduler, Served, Settings,
};
use model::Nanos;
use proptest::prelude::*;

const ACTORS: u32 = 8;

/// A message: its number, when it came, how long it has to run and has run.
#[derive(Clone, Copy, Debug)]
struct Message {
    id: usize,
    actor: ActorId,
    came: u64,
    left: u64,
    ran: u64,
}

/// Cores that run messages one after the other, in simulated time.
struct Runtime {
    scheduler: Scheduler,
    round: Round,
    line: Line<Message>,
    mailboxes: Vec<VecDeque<Message>>,
    /// By core: what it runs, from which group, and for how long this time.
    running: Vec<Option<(Message, Group, u64)>>,
    ends: Vec<u64>,
    ended: Vec<usize>,
    decided: Vec<Decision>,
}

impl Runtime {
    fn new(policy: PolicyName, cores: u16) -> Runtime {
        Runtime::with(policy, Queues::Shared, cores)
    }

    fn with(policy: PolicyName, queues: Queues, cores: u16) -> Runtime {
        Runtime {
            scheduler: Scheduler::new(Settings {
                policy,
                cores,
                actors: ACTORS,
                quantum: Nanos::from_micros(20),
                tail_threshold: Nanos::from_micros(200),
                hysteresis: 0.1,
            }),
            round: Round::new(ACTORS),
            line: Line::new(queues, cores),
            mailboxes: vec![VecDeque::new(); ACTORS as usize],
            running: vec![None; usize::from(cores)],
            ends: vec![u64::MAX; usize::from(cores)],
            ended: Vec::new(),
            decided: Vec::new(),
        }
    }

    fn wait(&mut self, message: Message) {
        if self.scheduler.group_of(message.actor) == Group::Fcfs {
            // Four messages are a flow.
            return self.line.push(message.id as u64 / 4, message);
        }
        let mailbox = &mut self.mailboxes[message.actor.index()];
        if mailbox.is_empty() {
            self.round.enter(message.actor);
        }
        mailbox.push_back(message);
    }

    fn take(&mut self, core: CoreId, group: Group) -> Option<Message> {
        if group == Group::Fcfs {
            return self.line.take(self.line.source(core)?);
        }
        let actor = self.round.next(|actor| self.scheduler.turn(actor))?;
        let mailbox = &mut self.mailboxes[actor.index()];
        let message = mailbox.pop_front().unwrap();
        if mailbox.is_empty() {
            self.round.emptied(actor);
        }
        Some(message)
    }

    fn start(&mut self, now: u64) {
        for core in 0..self.running.len() {
            if self.running[core].is_some() {
                continue;
            }
            for &group in self.scheduler.serves(CoreId(core as u16)) {
                if let Some(message) = self.take(CoreId(core as u16), group) {
                    let runs = self
                        .scheduler
                        .slice()
                        .map_or(message.left, |slice| slice.0.min(message.left));
                    self.running[core] = Some((message, group, runs));
                    self.ends[core] = now + runs;
                    break;
                }
            }
        }
        let all_run = self.running.iter().all(Option::is_some);
        assert!(all_run || self.line.is_empty(), "a core rests beside a line");
    }

    /// Ends what ends next; returns the time, or nothing if no core runs.
    fn finish(&mut self) -> Option<u64> {
        let (core, &now) = self.ends.iter().enumerate().min_by_key(|(_, at)| **at)?;
        let (message, from, runs) = self.running[core].take()?;
        self.ends[core] = u64::MAX;
        let rest = Message {
            left: message.left - runs,
            ran: message.ran + runs,
            ..message
        };
        let served = Served {
            core: CoreId(core as u16),
            from,
            actor: message.actor,
            ran: Nanos(runs),
            ended: (rest.left == 0).then(|| Ended {
                response: Nanos(now - message.came),
                service: Nanos(rest.ran),
            }),
        };
        if rest.left == 0 {
            self.ended.push(message.id);
        } else {
            self.wait(rest);
        }
        for decision in self.scheduler.step(&served, Nanos(now)).to_vec() {
            self.follow(decision);
        }
        Some(now)
    }

    fn follow(&mut self, decision: Decision) {
        self.decided.push(decision);
        match decision {
            Decision::Actor(actor, Group::Drr) => {
                let its = self.line.extract(|message| message.actor == actor);
                self.mailboxes[actor.index()] = its.into();
                if !self.mailboxes[actor.index()].is_empty() {
                    self.round.enter(actor);
                }
            }
            Decision::Actor(actor, Group::Fcfs) => {
                let its = std::mem::take(&mut self.mailboxes[actor.index()]);
                if !its.is_empty() {
                    self.round.leave(actor);
                }
                its.into_iter().for_each(|message| self.wait(message));
            }
            Decision::Core(..) => self.line.serve_by(self.scheduler.line_cores()),
        }
    }

    /// Plays messages that come with these gaps; returns the order of their ends.
    fn play(mut self, messages: &[(u32, u64, u64)]) -> (Vec<usize>, Scheduler) {
        self.run(messages);
        (self.ended, self.scheduler)
    }

    fn run(&mut self, messages: &[(u32, u64, u64)]) {
        let mut comes = 0;
        let mut next = messages.iter().enumerate().map(|(id, &(actor, gap, work))| {
            comes += gap;
            Message {
                id,
                actor: ActorId(actor),
                came: comes,
                left: work,
                ran: 0,
            }
        });
        let mut coming = next.next();
        loop {
            let ends = self.ends.iter().min().copied().unwrap();
            match coming {
                Some(message) if message.came <= ends => {
                    self.wait(message);
                    self.start(message.came);
                    coming = next.next();
                }
                _ => match self.finish() {
                    Some(now) => self.start(now),
                    None => break,
                },
            }
        }
        assert!(self.line.is_empty() && self.mailboxes.iter().all(VecDeque::is_empty));
    }
}

fn messages() -> impl Strategy<Value = Vec<(u32, u64, u64)>> {
    // Some actors' messages are a hundred times as long.
    let message = (0..ACTORS, 0_u64..60_000, 1_u64..40_000).prop_map(|(actor, gap, work)| {
        let work = if actor < 2 { work * 100 } else { work };
        (actor, gap, work)
    });
    prop::collection::vec(message, 1..3_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn each_message_is_served_once(
        policy in prop::sample::select(PolicyName::ALL.to_vec()),
        queues in prop::sample::select(vec![Queues::Shared, Queues::PerCore]),
        cores in 1_u16..6,
        messages in messages(),
    ) {
        let (mut ended, _) = Runtime::with(policy, queues, cores).play(&messages);
        ended.sort_unstable();
        prop_assert_eq!(ended, (0..messages.len()).collect::<Vec<_>>());
    }

    /// Those of the line in their order, on one core.
    #[test]
    fn a_core_alone_serves_the_line_in_order(
        policy in prop::sample::select(vec![PolicyName::Fcfs, PolicyName::Hybrid]),
        queues in prop::sample::select(vec![Queues::Shared, Queues::PerCore]),
        messages in messages(),
    ) {
        let (ended, _) = Runtime::with(policy, queues, 1).play(&messages);
        prop_assert_eq!(ended, (0..messages.len()).collect::<Vec<_>>());
    }
}

/// Two seconds of messages, 35 % of four cores' time: 20 us each, but for those of one actor, which take 2 ms.
fn dispersed() -> Vec<(u32, u64, u64)> {
    let of = |n: u64| {
        let actor = (n * 5 % u64::from(ACTORS)) as u32;
        let is_rare = n.is_multiple_of(40);
        if is_rare {
            (0, 50_000, 2_000_000)
        } else {
            (1 + actor % 7, 50_000, 20_000)
        }
    };
    (1..=40_000).map(of).collect()
}

#[test]
fn the_hybrid_parts_what_stands_out_and_nothing_else() {
    let (_, scheduler) = Runtime::new(PolicyName::Hybrid, 4).play(&dispersed());
    let groups: Vec<Group> = (0..ACTORS)
        .map(|actor| scheduler.group_of(ActorId(actor)))
        .collect();
    assert_eq!(groups[0], Group::Drr);
    assert!(
        groups[1..].iter().all(|group| *group == Group::Fcfs),
        "{groups:?}"
    );
    let helps = |core: u16| scheduler.serves(CoreId(core)).contains(&Group::Drr);
    let round = (0..4).filter(|core| helps(*core)).count();
    // A core of 2 ms in each 2 ms, and 40 us more often: one is too few, all would leave none to the line.
    assert!((1..4).contains(&round), "{round} cores serve the round");
}

#[test]
fn an_actor_whose_messages_are_short_again_returns_to_the_line_with_the_cores_of_the_round() {
    // Then all take 20 us, on a quarter of the time of four cores.
    let alike = (0..40_000).map(|n| (n % ACTORS, 20_000, 20_000));
    let messages: Vec<_> = dispersed().into_iter().chain(alike).collect();
    let mut runtime = Runtime::new(PolicyName::Hybrid, 4);
    runtime.run(&messages);
    let (actors, cores): (Vec<Decision>, Vec<Decision>) =
        (runtime.decided.iter()).partition(|decision| matches!(decision, Decision::Actor(..)));
    let (goes, returns) = (
        Decision::Actor(ActorId(0), Group::Drr),
        Decision::Actor(ActorId(0), Group::Fcfs),
    );
    assert_eq!(actors, [goes, returns]);
    // The last core has served the round, and none does any more.
    assert_eq!(cores.first(), Some(&Decision::Core(CoreId(3), Group::Drr)));
    assert!((0..4).all(|core| runtime.scheduler.serves(CoreId(core)) == [Group::Fcfs]));
    // Cores go back as the actor does, not before.
    let last = runtime.decided.iter().rposition(|of| *of == returns).unwrap();
    let after = &runtime.decided[last + 1..];
    assert!(
        after.contains(&Decision::Core(CoreId(3), Group::Fcfs)),
        "{:?}",
        runtime.decided
    );
}

#[test]
fn the_hybrid_leaves_actors_that_are_alike_in_the_line_under_any_load() {
    // 97 % of two cores' time.
    let alike: Vec<_> = (0..40_000).map(|n| (n % ACTORS, 9_000, 17_500)).collect();
    let (_, scheduler) = Runtime::new(PolicyName::Hybrid, 2).play(&alike);
    assert!((0..ACTORS).all(|actor| scheduler.group_of(ActorId(actor)) == Group::Fcfs));
}

#[test]
fn a_slice_bounds_how_long_others_wait() {
    // A message of a millisecond, and one of 10 us that comes just after it.
    let (ended, scheduler) =
        Runtime::new(PolicyName::Preemptive, 1).play(&[(0, 0, 1_000_000), (1, 1, 10_000)]);
    assert_eq!(ended, [1, 0]);
    let short = scheduler.statistics(ActorId(1)).unwrap();
    assert!(short.response().mean() <= 30_000.0, "{short:?}");
}

#[test]
fn a_round_gives_each_actor_the_same_time_and_an_empty_one_saves_nothing() {
    let turn = |actor: ActorId| actor_scheduling::Turn {
        quantum: Nanos(10),
        cost: Nanos(if actor.0 == 0 { 40 } else { 10 }),
    };
    let mut round = Round::new(2);
    round.enter(ActorId(0));
    round.enter(ActorId(1));
    let order: Vec<u32> = (0..10).map(|_| round.next(turn).unwrap().0).collect();
    assert_eq!(order.iter().filter(|actor| **actor == 0).count(), 2, "{order:?}");
    // Emptied with what it had left over: it starts from nothing.
    while round.next(turn) != Some(ActorId(1)) {}
    round.emptied(ActorId(1));
    while round.next(turn) != Some(ActorId(0)) {}
    round.emptied(ActorId(0));
    assert_eq!(round.next(turn), None);
    round.enter(ActorId(0));
    round.enter(ActorId(1));
    assert_eq!(round.next(turn), Some(ActorId(1)));
}
