//! Groups of actors with real processes: an actor that loops or writes where it may not is stopped, the others of its
//! group go on from their regions, and other groups notice nothing. The process is this test itself, with one test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use actor_processes::{Event, Group, Member, Why, offence};
use actor_runtime::{Actor, ActorId, Address, Context, Message, Progress, Refusal};
use model::Nanos;

const PEER: Address = Address::Outside(1);
const BUDGET: Nanos = Nanos::from_millis(100);

/// What a message asks for.
const COUNT: u32 = 0;
const LOOP: u32 = 1;
const WRITE: u32 = 2;
const ABORT: u32 = 3;
const EXIT: u32 = 4;

/// Counts its messages in an object and answers with the count; or does what it must not.
struct Counts;

impl Actor for Counts {
    fn init(&mut self, context: &mut Context<'_>) {
        let first = 1_000 * u64::from(context.me().0);
        let objects = context.objects().unwrap();
        let count = objects.allocate(8).unwrap();
        objects.write(count, 0, &first.to_le_bytes()).unwrap();
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        let objects = context.objects().unwrap();
        let (id, bytes) = objects.iter().next().unwrap();
        let count = u64::from_le_bytes(bytes.try_into().unwrap()) + 1;
        objects.write(id, 0, &count.to_le_bytes()).unwrap();
        match message.kind {
            LOOP => offence::run_for_ever(),
            WRITE => offence::write_to(u64::from_le_bytes(message.body[..8].try_into().unwrap())),
            ABORT => std::process::abort(),
            EXIT => std::process::exit(7),
            _ => {}
        }
        context.send(message.from, message.kind, count.to_le_bytes().to_vec());
        Progress::Done
    }
}

/// The process of a group.
#[test]
#[ignore = "a supervisor starts it"]
fn process() {
    actor_processes::serve(&|kind, _| (kind == "counts").then(|| Box::new(Counts) as Box<dyn Actor>))
        .unwrap();
}

fn command() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process", "--ignored", "--test-threads", "1"]);
    command
}

fn group(actors: std::ops::Range<u32>) -> Group {
    let members = actors.map(|actor| Member::new(ActorId(actor), "counts"));
    Group::start(command, BUDGET, members.collect()).unwrap()
}

fn message(actor: u32, kind: u32) -> Message {
    Message::new(
        Address::Actor(ActorId(actor)),
        PEER,
        kind,
        Vec::new(),
        clock::monotonic(),
    )
}

/// What came back of an actor: its counts.
fn counts(answers: &[Message], actor: u32) -> Vec<u64> {
    let its = answers
        .iter()
        .filter(|of| of.from == Address::Actor(ActorId(actor)));
    its.map(|of| u64::from_le_bytes(of.body[..8].try_into().unwrap()))
        .collect()
}

/// Turns until the condition holds.
fn until(
    group: &mut Group,
    answers: &mut Vec<Message>,
    mut is_enough: impl FnMut(&[Message], &[Event]) -> bool,
) -> Vec<Event> {
    let mut events = Vec::new();
    let began = clock::monotonic();
    while !is_enough(answers, &events) {
        events.extend(group.turn(clock::monotonic(), answers).unwrap());
        assert!(
            clock::monotonic().since(began) < Nanos::from_secs(60),
            "{events:?} {group:?}"
        );
        std::thread::yield_now();
    }
    events
}

fn has_restarted(_: &[Message], events: &[Event]) -> bool {
    events.contains(&Event::Restarted)
}

#[test]
fn messages_are_answered_in_order_and_what_is_sent_leaves_once() {
    let mut group = group(1..4);
    let mut answers = Vec::new();
    for _ in 0..200 {
        for actor in 1..4 {
            group.deliver(message(actor, COUNT)).unwrap();
        }
    }
    let events = until(&mut group, &mut answers, |answers, _| answers.len() == 600);
    assert_eq!(events, []);
    for actor in 1..4 {
        let first = 1_000 * u64::from(actor) + 1;
        assert_eq!(counts(&answers, actor), (first..first + 200).collect::<Vec<_>>());
        assert_eq!(group.counts(ActorId(actor)).unwrap().ended, 200);
        assert_eq!(group.waiting(ActorId(actor)), 0);
    }
    assert_eq!(group.deliver(message(4, COUNT)), Err(Refusal::NoSuchActor));
}

/// Has an actor of a group of three do what it must not, between messages for all; returns why it was stopped.
fn offend(kind: u32, body: Vec<u8>) -> Why {
    let mut group = group(1..4);
    let mut answers = Vec::new();
    let mut neighbours = self::group(5..6);
    let mut theirs = Vec::new();
    for _ in 0..10 {
        (1..4).for_each(|actor| group.deliver(message(actor, COUNT)).unwrap());
    }
    until(&mut group, &mut answers, |answers, _| answers.len() == 30);
    let mut bad = message(2, kind);
    bad.body = body;
    group.deliver(bad).unwrap();
    for _ in 0..10 {
        (1..4).for_each(|actor| group.deliver(message(actor, COUNT)).unwrap());
    }
    let first = group.process();
    let mut neighbour_count = 0;
    let events = until(&mut group, &mut answers, |answers, events| {
        // A neighbour in another process is served meanwhile.
        neighbours.deliver(message(5, COUNT)).unwrap();
        until(&mut neighbours, &mut theirs, |theirs, _| {
            theirs.len() > neighbour_count
        });
        neighbour_count = theirs.len();
        has_restarted(answers, events) && counts(answers, 1).len() + counts(answers, 3).len() == 40
    });
    let [Event::Stopped(ActorId(2), why, lost), Event::Restarted] = events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(lost, 11, "with the one that it ran");
    // The others went on from their state: each message counted once, in order.
    for actor in [1, 3] {
        let first = 1_000 * u64::from(actor) + 1;
        assert_eq!(
            counts(&answers, actor),
            (first..first + 20).collect::<Vec<_>>(),
            "{actor}"
        );
        assert_eq!(group.counts(ActorId(actor)).unwrap().answers_lost, 0);
    }
    assert_eq!(counts(&answers, 2).len(), 10);
    assert_eq!(group.deliver(message(2, COUNT)), Err(Refusal::NoSuchActor));
    assert_ne!(group.process(), first);
    assert_eq!(group.starts(), 2);
    assert_eq!(neighbours.starts(), 1);
    assert_eq!(
        counts(&theirs, 5),
        (5_001..5_001 + theirs.len() as u64).collect::<Vec<_>>()
    );
    why
}

#[test]
fn an_actor_that_loops_is_stopped_after_its_budget() {
    let why = offend(LOOP, Vec::new());
    assert!(matches!(why, Why::Budget(ran) if ran > BUDGET), "{why:?}");
}

#[test]
fn an_actor_that_writes_to_what_another_process_has_is_stopped_and_changes_nothing() {
    // On this heap, at an address that is mapped here only.
    let victim = Box::new(AtomicU64::new(7));
    let address = &raw const *victim as u64;
    let why = offend(WRITE, address.to_le_bytes().to_vec());
    assert_eq!(why, Why::Signal(11));
    assert_eq!(victim.load(Ordering::Relaxed), 7);
}

#[test]
fn an_actor_that_ends_the_process_is_stopped() {
    assert_eq!(offend(ABORT, Vec::new()), Why::Signal(6));
    assert_eq!(offend(EXIT, Vec::new()), Why::Exit(7));
}

#[test]
fn a_flooded_mailbox_is_bounded_and_others_are_served() {
    let members = [1, 2].map(|actor| Member {
        mailbox_limit: 50,
        ..Member::new(ActorId(actor), "counts")
    });
    let mut group = Group::start(command, Nanos::MAX, members.into()).unwrap();
    // Nothing is passed on yet: so the bound is met.
    let refused = (0..500)
        .filter(|_| group.deliver(message(1, COUNT)).is_err())
        .count();
    assert_eq!(refused, 450);
    assert_eq!(group.counts(ActorId(1)).unwrap().mailbox_full, 450);
    assert_eq!(group.waiting(ActorId(1)), 50);
    (0..50).for_each(|_| group.deliver(message(2, COUNT)).unwrap());
    let mut answers = Vec::new();
    until(&mut group, &mut answers, |answers, _| answers.len() == 100);
    assert_eq!(counts(&answers, 2).len(), 50);
}

#[test]
fn a_process_that_is_killed_between_messages_costs_nothing() {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    let mut group = group(1..3);
    let mut answers = Vec::new();
    // Both have prepared their state.
    (1..3).for_each(|actor| group.deliver(message(actor, COUNT)).unwrap());
    until(&mut group, &mut answers, |answers, _| answers.len() == 2);
    for round in 1..4 {
        // Idle, then stopped: what is passed on now has not begun when the process ends.
        let pid = Pid::from_raw(group.process().unwrap() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        for _ in 0..100 {
            (1..3).for_each(|actor| group.deliver(message(actor, COUNT)).unwrap());
        }
        assert_eq!(group.turn(clock::monotonic(), &mut answers).unwrap(), []);
        kill_process(pid, Signal::KILL).unwrap();
        let all = 2 + 200 * round;
        let events = until(&mut group, &mut answers, |answers, _| answers.len() == all);
        assert_eq!(events, [Event::Ended(Why::Signal(9)), Event::Restarted]);
    }
    for actor in 1..3 {
        let first = 1_000 * u64::from(actor) + 1;
        assert_eq!(counts(&answers, actor), (first..first + 301).collect::<Vec<_>>());
        assert_eq!(group.counts(ActorId(actor)).unwrap().answers_lost, 0);
    }
}

#[test]
fn a_group_whose_process_never_serves_is_given_up() {
    let nothing = || Command::new("true");
    let mut group = Group::start(nothing, BUDGET, vec![Member::new(ActorId(1), "counts")]).unwrap();
    let mut answers = Vec::new();
    let events = until(&mut group, &mut answers, |_, events| {
        events.contains(&Event::GivenUp)
    });
    assert!(events.contains(&Event::Ended(Why::Exit(0))), "{events:?}");
    assert_eq!(group.process(), None);
    assert_eq!(group.deliver(message(1, COUNT)), Err(Refusal::NoSuchActor));
}
