//! An actor with 32 MiB of objects moves from the card to the host, under load.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use actor_channel::{Declared, End, Limits, Order, Side};
use actor_migration::Outcome as Moved;
use actor_objects::{ObjectId, Objects};
use actor_runtime::{Actor, ActorId, Address, Context, Outside, Progress, Settings, Threads};
use actor_side::{ActorSide, Begin, Event, EventKind, Member};
use anyhow::{Context as _, Result, ensure};
use model::{Nanos, Random};

use super::{Outcome, Row, random_key};
use crate::contestant::median;

const NOTE: &str = "MODEL: latency and bandwidth of the DMA engine are declared. Two threads of one machine stand in for card and \
                    host, and share caches and memory: the declared bandwidth is the limit, not a bus. As in iPipe, both sides \
                    have a region for the actor from the start. Messages come by the CPU time of the card's thread. The host's cores are as fast as the card's here, so that this \
                    does not show what a move gains.";

/// Objects, and bytes of each: 32 MiB.
const OBJECTS: u32 = 32_768;
const OBJECT_BYTES: usize = 1024;
/// What a message takes on either side.
const SERVICE: Nanos = Nanos::from_micros(20);
const LOAD: f64 = 0.9;
/// Messages of a round; the move begins after a third.
const MESSAGES: u64 = 30_000;
const ROUNDS: usize = 3;
/// Messages that wait for the actor, or are held during a move, at most.
const WAITING: usize = 1 << 20;
/// The paper's time for objects of 32 MB.
const PAPER_MS: f64 = 35.8;
/// A round that takes longer stands still.
const LONGEST: Duration = Duration::from_secs(60);
const ACTOR: ActorId = ActorId(0);
/// How often the move is looked at.
const LOOK: Duration = Duration::from_micros(200);

/// Measures it.
pub(super) fn measure() -> Result<Outcome> {
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        rounds.push(move_once(round as u64, MESSAGES)?);
    }
    let of = |figure: &dyn Fn(&Round) -> f64| median(rounds.iter().map(figure));
    let all = |figure: &dyn Fn(&Round) -> f64| rounds.iter().map(figure).sum::<f64>();
    let [prepare, ready, gone, clean] = [0, 1, 2, 3].map(|phase: usize| of(&|round| round.phases_ms[phase]));
    let total = of(&|round| round.phases_ms.iter().sum());
    let longest = prepare.max(ready).max(clean);
    let megabytes = "32 MiB in 32,768 objects";
    let rows = vec![
        Row::plain("phase 1, prepare", prepare, "ms"),
        Row::plain("phase 2, ready", ready, "ms"),
        Row::plain(format!("phase 3, gone: {megabytes}, MODEL 2.1 GB/s"), gone, "ms")
            .at_most(PAPER_MS)
            .paper("35.8 ms for 32 MB"),
        Row::plain("phase 4, clean", clean, "ms").paper("27.2 % of the time"),
        Row::plain("phase 3, share of all", gone / total * 100.0, "%").paper("67.8 %"),
        Row::plain("phase 3 beside the longest other one", gone / longest, "ratio").at_least(1.0),
        Row::plain("messages held", of(&|round| round.held as f64), "messages"),
        Row::plain(
            "messages lost, 90 % load",
            all(&|round| round.lost as f64),
            "messages",
        )
        .at_most(0.0),
        Row::plain(
            "messages twice or out of order",
            all(&|round| round.wrong as f64),
            "messages",
        )
        .at_most(0.0),
        Row::plain(
            "rounds whose state differs from a run without a move (SHA-256)",
            all(&|round| f64::from(u8::from(!round.is_equal))),
            "rounds",
        )
        .at_most(0.0),
    ];
    Ok(Outcome {
        rows,
        note: NOTE.into(),
    })
}

/// What a move brought.
#[derive(Debug)]
struct Round {
    phases_ms: [f64; 4],
    held: usize,
    lost: u64,
    wrong: u64,
    is_equal: bool,
}

/// A region with all objects, and their ids.
fn region() -> Result<Objects> {
    let limits = actor_objects::Limits {
        bytes: OBJECTS * OBJECT_BYTES as u32,
        objects: OBJECTS,
    };
    Ok(Objects::create(limits)?.1)
}

fn filled() -> Result<(Objects, Vec<ObjectId>)> {
    let mut objects = region()?;
    let mut ids = Vec::new();
    for number in 0..OBJECTS {
        let id = objects.allocate(OBJECT_BYTES)?;
        objects.set(id, 8..OBJECT_BYTES, number as u8)?;
        ids.push(id);
    }
    Ok((objects, ids))
}

/// What the actor does with a message: it notes it in an object. The first one has the number of the last message. Gives
/// whether the message is the next one.
fn handle(objects: &mut Objects, ids: &[ObjectId], number: u64) -> Result<bool> {
    let last = objects.get_mut(ids[0])?;
    let is_next = last.starts_with(&(number - 1).to_le_bytes());
    last[..8].copy_from_slice(&number.to_le_bytes());
    let at = 1 + (Random::new(number).bits() % (ids.len() as u64 - 1)) as usize;
    objects.write(ids[at], 16, &number.to_le_bytes())?;
    Ok(is_next)
}

fn digest(objects: &Objects) -> Vec<u8> {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for (id, bytes) in objects.iter() {
        context.update(&id.to_bits().to_le_bytes());
        context.update(bytes);
    }
    context.finish().as_ref().to_vec()
}

/// What both sides have done.
#[derive(Default)]
struct Done {
    handled: AtomicU64,
    wrong: AtomicU64,
}

/// The actor. Its objects are as [`filled`] makes them.
struct Notes {
    ids: Arc<Vec<ObjectId>>,
    done: Arc<Done>,
}

impl Actor for Notes {
    fn exec(&mut self, message: &mut actor_runtime::Message, context: &mut Context<'_>) -> Progress {
        let begin = clock::monotonic();
        let number = message
            .body
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let is_next = context
            .objects()
            .is_some_and(|objects| handle(objects, &self.ids, number).unwrap_or(false));
        self.done.wrong.fetch_add(u64::from(!is_next), Ordering::Relaxed);
        // The rest of its work.
        while clock::monotonic().0 < begin.0 + SERVICE.0 {
            std::hint::spin_loop();
        }
        self.done.handled.fetch_add(1, Ordering::Relaxed);
        Progress::Done
    }
}

/// The card's network: messages come as the CPU time of the card's thread goes by, so that other programs do not add to
/// its load.
struct Arrivals {
    times: Vec<Nanos>,
    next: usize,
    start: Option<Nanos>,
    come: Arc<AtomicUsize>,
}

impl Outside for Arrivals {
    fn poll(&mut self, now: Nanos, into: &mut Vec<actor_runtime::Message>) {
        let cpu = clock::thread_cpu();
        let since = cpu.since(*self.start.get_or_insert(cpu));
        while self.times.get(self.next).is_some_and(|at| *at <= since) {
            self.next += 1;
            let body = (self.next as u64).to_le_bytes().to_vec();
            let from = Address::Outside(0);
            into.push(actor_runtime::Message::new(
                Address::Actor(ACTOR),
                from,
                0,
                body,
                now,
            ));
        }
        self.come.store(self.next, Ordering::Relaxed);
    }

    fn send(&mut self, _: &mut Vec<actor_runtime::Message>) {}
}

/// The host has no network.
struct Nobody;

impl Outside for Nobody {
    fn poll(&mut self, _: Nanos, _: &mut Vec<actor_runtime::Message>) {}

    fn send(&mut self, _: &mut Vec<actor_runtime::Message>) {}
}

/// A side with the actor or with an empty region for it, on a core of its own.
fn side(
    end: End,
    which: Side,
    network: Box<dyn Outside>,
    objects: Objects,
    actor: impl Fn() -> Notes + Send + 'static,
) -> Result<(ActorSide, Threads)> {
    let settings = Settings::first_come(1);
    let make = move |_: &str, _| Some(Box::new(actor()) as Box<dyn Actor>);
    let side = ActorSide::new(which, &settings, network, Box::new(make));
    let member = Member {
        mailbox_limit: WAITING,
        held_limit: WAITING,
        ..Member::new(ACTOR, "notes")
    };
    let begin = if which == Side::Card {
        Begin::Here
    } else {
        Begin::Away
    };
    side.add(member, objects, begin)?;
    side.attach(end)?;
    let threads = side.runtime().start(|_| ())?;
    Ok((side, threads))
}

/// Moves the actor while messages come.
fn move_once(seed: u64, messages: u64) -> Result<Round> {
    let limits = Limits::default();
    let key = random_key()?;
    let (file, end) = End::create(limits, Side::Card, Order::Declared(Declared::CARD_TO_HOST), key)?;
    let other = End::attach(file.as_fd(), Side::Host, Order::Declared(Declared::HOST_TO_CARD))?;
    let (objects, ids) = filled()?;
    let (ids, done, come) = (
        Arc::new(ids),
        Arc::new(Done::default()),
        Arc::new(AtomicUsize::new(0)),
    );
    let actor = || {
        let (ids, done) = (Arc::clone(&ids), Arc::clone(&done));
        move || Notes {
            ids: Arc::clone(&ids),
            done: Arc::clone(&done),
        }
    };
    let arrivals = Arrivals {
        times: arrivals(seed, messages),
        next: 0,
        start: None,
        come: Arc::clone(&come),
    };
    let host = side(other, Side::Host, Box::new(Nobody), region()?, actor())?;
    let card = side(end, Side::Card, Box::new(arrivals), objects, actor())?;
    let (begin, mut events, mut held, mut moves) = (Instant::now(), Vec::new(), 0, false);
    let is_moved = |events: &[Event]| {
        let end = EventKind::Ended(Moved::Moved);
        events.iter().any(|event| event.kind == end)
    };
    while done.handled.load(Ordering::Relaxed) < messages || !is_moved(&events) {
        thread::sleep(LOOK);
        if !moves && come.load(Ordering::Relaxed) >= messages as usize / 3 {
            card.0.move_away(ACTOR)?;
            moves = true;
        }
        events.extend(card.0.take_events());
        held = held.max(card.0.rows().iter().map(|row| row.held).max().unwrap_or(0));
        ensure!(
            begin.elapsed() < LONGEST,
            "{} of {messages} messages; the move: {events:?}",
            done.handled.load(Ordering::Relaxed)
        );
    }
    drop((card.1, host.1));
    let phases_ms: Vec<f64> = events
        .windows(2)
        .map(|events| events[1].at.since(events[0].at).0 as f64 / 1e6)
        .collect();
    let (mut alone, _) = filled()?;
    for number in 1..=messages {
        alone.begin();
        handle(&mut alone, &ids, number)?;
        alone.complete();
    }
    let (mut registration, _) = host.0.runtime().remove(ACTOR)?;
    let moved = registration.take_objects().context("the actor has no objects")?;
    let refused = card.0.counts().refused + host.0.counts().refused;
    Ok(Round {
        phases_ms: phases_ms.try_into().ok().context("a move has four phases")?,
        held,
        lost: messages.saturating_sub(moved.completed()),
        is_equal: digest(&moved) == digest(&alone),
        wrong: done.wrong.load(Ordering::Relaxed) + refused,
    })
}

/// When messages come, from the start on: at random, so that a side is busy for that part of the time.
fn arrivals(seed: u64, messages: u64) -> Vec<Nanos> {
    let mut random = Random::new(seed);
    let mut at = 0.0;
    let mean = SERVICE.0 as f64 / LOAD;
    let next = |_| {
        at += random.exponential() * mean;
        Nanos(at as u64)
    };
    (0..messages).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_under_load_moves_with_its_state() {
        let round = move_once(1, 3_000).unwrap();
        assert_eq!(
            (round.lost, round.wrong, round.is_equal),
            (0, 0, true),
            "{round:?}"
        );
    }
}
