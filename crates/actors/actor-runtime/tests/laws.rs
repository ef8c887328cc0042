//! What holds for every policy, whatever is sent and whenever actors yield, are paused or leave: each message ends once,
//! those of an actor in their order; an actor runs on one core at a time; what is refused is counted.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actor_runtime::{
    Actor, ActorId, Address, Context, CoreId, Error, Idle, Message, Outside, PolicyName, Progress, Queues,
    Refusal, Registration, Runtime, Settings,
};
use model::{Nanos, Random};
use proptest::prelude::*;

const ACTORS: u32 = 6;
const PEER: Address = Address::Outside(7);

/// What ended, by actor, in order: the numbers in the bodies.
type Ended = Arc<Mutex<BTreeMap<u32, Vec<u64>>>>;

/// Notes what it is given; yields as often as a message's kind says.
struct Notes {
    ended: Ended,
    left: u32,
    runs: Arc<AtomicBool>,
}

impl Actor for Notes {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        assert!(!self.runs.swap(true, Ordering::SeqCst), "on two cores at a time");
        let number = u64::from_le_bytes(message.body[..8].try_into().unwrap());
        let is_new = message.body.len() == 8;
        if is_new {
            message.body.push(0);
            self.left = message.kind;
        }
        let progress = if self.left > 0 {
            self.left -= 1;
            Progress::Yielded
        } else {
            let mut ended = self.ended.lock().unwrap();
            ended.entry(context.me().0).or_default().push(number);
            Progress::Done
        };
        self.runs.store(false, Ordering::SeqCst);
        progress
    }
}

fn number(n: u64) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

fn message(actor: u32, kind: u32, body: Vec<u8>) -> Message {
    message_of(PEER, actor, kind, body)
}

fn message_of(from: Address, actor: u32, kind: u32, body: Vec<u8>) -> Message {
    let to = Address::Actor(ActorId(actor));
    Message::new(to, from, kind, body, clock::monotonic())
}

/// Nothing comes; what leaves is kept.
#[derive(Clone, Default)]
struct Leaving(Arc<Mutex<Vec<Message>>>);

impl Outside for Leaving {
    fn poll(&mut self, _: Nanos, _: &mut Vec<Message>) {}

    fn send(&mut self, messages: &mut Vec<Message>) {
        self.0.lock().unwrap().append(messages);
    }
}

fn settings(policy: PolicyName, cores: u16) -> Settings {
    Settings {
        policy,
        queues: Queues::PerCore,
        cores,
        actors_limit: ACTORS,
        quantum: Nanos::from_micros(20),
        tail_threshold: Nanos::from_micros(200),
        hysteresis: 0.1,
        idle: Idle::Sleep(Duration::from_millis(50)),
    }
}

fn notes(ended: &Ended) -> Box<dyn Actor> {
    Box::new(Notes {
        ended: Arc::clone(ended),
        left: 0,
        runs: Arc::default(),
    })
}

/// How often a mailbox was full: that of an actor, or all.
fn full(runtime: &Runtime, of: Option<u32>) -> u64 {
    let rows = runtime.actors();
    let its = rows.iter().filter(|row| of.is_none_or(|of| row.actor.0 == of));
    its.map(|row| row.counts.mailbox_full).sum()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Deliver {
        actor: u32,
        yields: u32,
    },
    Turn {
        core: u16,
    },
    Pause {
        actor: u32,
    },
    Resume {
        actor: u32,
    },
    /// Takes an actor out and puts it back, as one that has moved away and returned.
    Leave {
        actor: u32,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let actor = 0..ACTORS;
    let step = prop_oneof![
        6 => (actor.clone(), prop_oneof![4 => Just(0u32), 1 => 1..3u32])
            .prop_map(|(actor, yields)| Step::Deliver { actor, yields }),
        4 => (0..3u16).prop_map(|core| Step::Turn { core }),
        1 => actor.clone().prop_map(|actor| Step::Pause { actor }),
        1 => actor.clone().prop_map(|actor| Step::Resume { actor }),
        1 => actor.prop_map(|actor| Step::Leave { actor }),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_message_ends_once_and_in_order(
        steps in steps(),
        policy in prop::sample::select(PolicyName::ALL.to_vec()),
        queues in prop::sample::select(vec![Queues::Shared, Queues::PerCore]),
    ) {
        let ended = Ended::default();
        let settings = Settings { queues, ..settings(policy, 3) };
        let runtime = Runtime::new(&settings, Box::new(Leaving::default()));
        let mut cores: Vec<_> = (0..3).map(|core| runtime.core(CoreId(core))).collect();
        for actor in 0..ACTORS {
            let registration = Registration::new(&format!("notes {actor}"), notes(&ended)).mailbox_limit(8);
            runtime.register(ActorId(actor), registration).unwrap();
        }
        let mut sent: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let mut refused = 0;
        let (mut next, mut turns, mut counted) = (0, 0, 0);
        for step in steps {
            match step {
                Step::Deliver { actor, yields } => {
                    next += 1;
                    let client = Address::Outside(next % 5);
                    match runtime.deliver(message_of(client, actor, yields, number(next))) {
                        Ok(()) => sent.entry(actor).or_default().push(next),
                        Err(refusal) => {
                            prop_assert_eq!(refusal, Refusal::MailboxFull);
                            refused += 1;
                        }
                    }
                }
                Step::Turn { core } => turns += cores[usize::from(core)].turn(),
                Step::Pause { actor } => runtime.pause(ActorId(actor)).unwrap(),
                Step::Resume { actor } => runtime.resume(ActorId(actor)).unwrap(),
                Step::Leave { actor } => {
                    counted += full(&runtime, Some(actor));
                    let (registration, waiting) = runtime.remove(ActorId(actor)).unwrap();
                    prop_assert_eq!(
                        runtime.deliver(message(actor, 0, number(0))),
                        Err(Refusal::NoSuchActor)
                    );
                    runtime.adopt(ActorId(actor), registration).unwrap();
                    prop_assert_eq!(runtime.deliver_all(waiting.clone()), waiting.len());
                }
            }
        }
        for actor in 0..ACTORS {
            runtime.resume(ActorId(actor)).unwrap();
        }
        // A turn ends a message, or it yields; none yields more than twice.
        for _ in 0..4 * next + 4 {
            turns += cores.iter_mut().map(actor_runtime::Core::turn).sum::<usize>();
        }
        prop_assert_eq!(&*ended.lock().unwrap(), &sent);
        let all: usize = sent.values().map(Vec::len).sum();
        prop_assert_eq!(turns, all);
        let rows = runtime.actors();
        prop_assert_eq!(rows.iter().map(|row| row.waiting).sum::<usize>(), 0);
        prop_assert_eq!(counted + full(&runtime, None), refused);
    }
}

/// Sends each message on to a drawn actor until its hops are used up, then outside.
struct Wanders {
    random: Random,
    runs: Arc<AtomicU64>,
}

impl Actor for Wanders {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        assert_eq!(
            self.runs.fetch_add(1, Ordering::SeqCst),
            0,
            "on two cores at a time"
        );
        let body = std::mem::take(&mut message.body);
        let to = match message.kind {
            0 => PEER,
            _ => Address::Actor(ActorId(self.random.below(u64::from(ACTORS)) as u32)),
        };
        context.send(to, message.kind.saturating_sub(1), body);
        self.runs.fetch_sub(1, Ordering::SeqCst);
        Progress::Done
    }
}

#[test]
fn threads_lose_no_message_and_run_an_actor_once_at_a_time() {
    const MESSAGES: u64 = 500;
    const HOPS: u32 = 40;
    for policy in PolicyName::ALL {
        let leaving = Leaving::default();
        let runtime = Runtime::new(&settings(policy, 3), Box::new(leaving.clone()));
        for actor in 0..ACTORS {
            let wanders = Wanders {
                random: Random::new(u64::from(actor)),
                runs: Arc::default(),
            };
            let of = Registration::new("wanders", Box::new(wanders)).mailbox_limit(MESSAGES as usize);
            runtime.register(ActorId(actor), of).unwrap();
        }
        let threads = runtime.start(|_| ()).unwrap();
        for n in 0..MESSAGES {
            runtime
                .deliver(message((n % u64::from(ACTORS)) as u32, HOPS, number(n)))
                .unwrap();
        }
        while (leaving.0.lock().unwrap().len() as u64) < MESSAGES {
            std::thread::yield_now();
        }
        drop(threads);
        let mut left: Vec<u64> = leaving
            .0
            .lock()
            .unwrap()
            .iter()
            .map(|message| u64::from_le_bytes(message.body[..8].try_into().unwrap()))
            .collect();
        left.sort_unstable();
        assert_eq!(left, (0..MESSAGES).collect::<Vec<_>>(), "{policy:?}");
        let served: u64 = runtime.cores().iter().map(|core| core.served).sum();
        assert_eq!(served, MESSAGES * u64::from(HOPS + 1), "{policy:?}");
        let counts: Vec<_> = runtime.actors().iter().map(|row| row.counts).collect();
        assert_eq!(counts.iter().map(|of| of.sent).sum::<u64>(), served, "{policy:?}");
        assert!(runtime.running().is_empty());
    }
}

/// Answers with how many messages it has had.
struct Counts(u64);

impl Actor for Counts {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        self.0 += 1;
        context.send(message.from, 0, number(self.0));
        Progress::Done
    }
}

/// Takes a while to look whether something comes: cores that have run the actor meanwhile wait to hand over.
struct Slow(Leaving);

impl Outside for Slow {
    fn poll(&mut self, now: Nanos, _: &mut Vec<Message>) {
        while clock::monotonic() < now + Nanos::from_micros(50) {
            std::hint::spin_loop();
        }
    }

    fn send(&mut self, messages: &mut Vec<Message>) {
        self.0.send(messages);
    }
}

#[test]
fn answers_of_an_actor_leave_in_the_order_in_which_it_made_them() {
    const MESSAGES: u64 = 20_000;
    let leaving = Leaving::default();
    let runtime = Runtime::new(&settings(PolicyName::Fcfs, 3), Box::new(Slow(leaving.clone())));
    let of = Registration::new("counts", Box::new(Counts(0))).mailbox_limit(MESSAGES as usize);
    runtime.register(ActorId(0), of).unwrap();
    for n in 0..MESSAGES {
        let from = Address::Outside(n % 64);
        runtime.deliver(message_of(from, 0, 0, Vec::new())).unwrap();
    }
    let threads = runtime.start(|_| ()).unwrap();
    while (leaving.0.lock().unwrap().len() as u64) < MESSAGES {
        std::thread::yield_now();
    }
    drop(threads);
    assert!(runtime.is_quiet(ActorId(0)));
    let cores = runtime.cores();
    assert!(
        cores.iter().filter(|core| core.served > 0).count() > 1,
        "{cores:?}"
    );
    assert!(cores.iter().any(|core| core.stolen > 0), "{cores:?}");
    let left = leaving.0.lock().unwrap();
    for (n, answer) in (1..).zip(&*left) {
        assert_eq!(answer.body, number(n), "answer {n} of {MESSAGES}");
    }
}

#[test]
fn registrations_are_checked() {
    let runtime = Runtime::new(&settings(PolicyName::Fcfs, 1), Box::new(Leaving::default()));
    let of = || Registration::new("notes", notes(&Ended::default()));
    runtime.register(ActorId(1), of()).unwrap();
    assert!(matches!(
        runtime.register(ActorId(1), of()),
        Err(Error::Registered(_))
    ));
    assert!(matches!(
        runtime.register(ActorId(ACTORS), of()),
        Err(Error::AboveLimit(_, ACTORS))
    ));
    assert!(matches!(
        runtime.register(ActorId(2), Registration::parallel("none", Vec::new())),
        Err(Error::NoInstance(_))
    ));
    assert!(matches!(runtime.pause(ActorId(2)), Err(Error::NotRegistered(_))));
    assert!(matches!(runtime.remove(ActorId(2)), Err(Error::NotRegistered(_))));
    let long = vec![0; actor_runtime::BODY_BYTES_LIMIT + 1];
    assert_eq!(runtime.deliver(message(1, 0, long)), Err(Refusal::TooLong));
    assert_eq!(runtime.undeliverable(), 1);
}

/// Fails at its third message.
struct Fails(u32);

impl Actor for Fails {
    fn exec(&mut self, _: &mut Message, context: &mut Context<'_>) -> Progress {
        self.0 += 1;
        if self.0 == 3 {
            context.fail("it is the third".to_owned());
            return Progress::Yielded;
        }
        Progress::Done
    }
}

#[test]
fn an_actor_that_fails_is_stopped_with_what_waits_for_it_and_others_go_on() {
    for policy in PolicyName::ALL {
        let runtime = Runtime::new(&settings(policy, 1), Box::new(Leaving::default()));
        let ended = Ended::default();
        runtime
            .register(ActorId(0), Registration::new("fails", Box::new(Fails(0))))
            .unwrap();
        runtime
            .register(ActorId(1), Registration::new("notes", notes(&ended)))
            .unwrap();
        for n in 0..5 {
            (0..2).for_each(|actor| runtime.deliver(message(actor, 0, number(n))).unwrap());
        }
        let mut core = runtime.core(CoreId(0));
        for _ in 0..20 {
            core.turn();
        }
        let [stopped] = &runtime.take_stopped()[..] else {
            panic!("{policy:?}");
        };
        assert_eq!((stopped.actor, stopped.lost), (ActorId(0), 3));
        assert_eq!((&*stopped.name, &*stopped.reason), ("fails", "it is the third"));
        assert!(runtime.take_stopped().is_empty());
        assert_eq!(
            runtime.deliver(message(0, 0, number(9))),
            Err(Refusal::NoSuchActor)
        );
        assert_eq!(ended.lock().unwrap()[&1], [0, 1, 2, 3, 4], "{policy:?}");
    }
}

#[test]
fn objects_are_those_behind_the_last_message_and_leave_with_the_actor() {
    /// Adds its messages to an object.
    struct Adds;
    impl Actor for Adds {
        fn init(&mut self, context: &mut Context<'_>) {
            context.objects().unwrap().allocate(8).unwrap();
        }

        fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
            let objects = context.objects().unwrap();
            assert!(objects.is_under_way());
            let (id, bytes) = objects.iter().next().unwrap();
            let sum = u64::from_le_bytes(bytes.try_into().unwrap()) + u64::from(message.kind);
            objects.write(id, 0, &sum.to_le_bytes()).unwrap();
            Progress::Done
        }
    }
    let limits = actor_objects::Limits {
        bytes: 4_096,
        objects: 16,
    };
    let (_file, objects) = actor_objects::Objects::create(limits).unwrap();
    let runtime = Runtime::new(&settings(PolicyName::Hybrid, 1), Box::new(Leaving::default()));
    let of = Registration::new("adds", Box::new(Adds)).objects(objects);
    runtime.register(ActorId(0), of).unwrap();
    for n in 1..=10 {
        runtime.deliver(message(0, n, Vec::new())).unwrap();
    }
    let mut core = runtime.core(CoreId(0));
    let mut ended = 0;
    while ended < 7 {
        ended += core.turn();
    }
    let (mut registration, waiting) = runtime.remove(ActorId(0)).unwrap();
    let objects = registration.take_objects().unwrap();
    assert!(!objects.is_under_way());
    assert_eq!(objects.completed(), ended as u64);
    assert_eq!(waiting.len(), 10 - ended);
    let sum = (1..=ended as u64).sum::<u64>();
    assert_eq!(objects.iter().next().unwrap().1, sum.to_le_bytes());
}
