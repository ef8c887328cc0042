//! An actor with 32 MiB of objects moves from the card to the host, under load.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use actor_channel::{Declared, End, Limits, Order, SendError, Side};
use actor_migration::{Effect, Input, Message, Outcome as Moved, Residence, decode, encode};
use actor_objects::{Export, Import, ObjectId, Objects};
use anyhow::{Context as _, Result, bail, ensure};
use model::{Nanos, Random};

use super::{Outcome, Patience, Row, random_key};
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
/// Bytes of objects in a message of the channel, and parts that it is gathered from.
const PIECE_BYTES: usize = 64 << 10;
const PIECE_PARTS: usize = 128;
/// Messages that are held during a move, at most.
const HELD: usize = 1 << 20;
/// The paper's time for objects of 32 MB.
const PAPER_MS: f64 = 35.8;
/// A round that takes longer stands still.
const LONGEST: Nanos = Nanos::from_secs(12);
/// The actor's number.
const ACTOR: u32 = 1;
/// Messages that a side takes from the channel before it does something else.
const TAKEN: usize = 64;

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
    Ok(Outcome { rows, note: NOTE })
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
    objects.begin();
    let last = objects.get_mut(ids[0])?;
    let is_next = last.starts_with(&(number - 1).to_le_bytes());
    last[..8].copy_from_slice(&number.to_le_bytes());
    let at = 1 + (Random::new(number).bits() % (ids.len() as u64 - 1)) as usize;
    objects.write(ids[at], 16, &number.to_le_bytes())?;
    objects.complete();
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

/// How far objects were sent.
struct Sending {
    attempt: u32,
    /// The head of the stream with its table, and how much of it was sent.
    table: Vec<u8>,
    table_sent: usize,
    export: Export,
}

/// One side with its actor.
struct Party<'a> {
    end: End,
    residence: Residence<Vec<u8>>,
    ids: &'a [ObjectId],
    objects: Option<Objects>,
    import: Option<Import>,
    runs: bool,
    stops: bool,
    mailbox: VecDeque<Vec<u8>>,
    /// Messages for which the channel had no room.
    outbox: VecDeque<Message<Vec<u8>>>,
    sends: Option<Sending>,
    effects: Vec<Effect<Vec<u8>>>,
    inputs: VecDeque<Input<Vec<u8>>>,
    wrong: u64,
    refused: u64,
    held: usize,
    outcome: Option<Moved>,
    /// When each phase began, and when the move ended.
    times: Vec<Nanos>,
}

impl<'a> Party<'a> {
    fn new(end: End, is_here: bool, objects: Objects, ids: &'a [ObjectId]) -> Party<'a> {
        Party {
            end,
            residence: Residence::new(is_here, HELD),
            ids,
            objects: Some(objects),
            import: None,
            runs: is_here,
            stops: false,
            mailbox: VecDeque::new(),
            outbox: VecDeque::new(),
            sends: None,
            effects: Vec::new(),
            inputs: VecDeque::new(),
            wrong: 0,
            refused: 0,
            held: 0,
            outcome: None,
            times: Vec::new(),
        }
    }

    fn objects(&mut self) -> Result<&mut Objects> {
        self.objects.as_mut().context("a region is under way")
    }

    /// Takes an input, and does what follows.
    fn take(&mut self, input: Input<Vec<u8>>) -> Result<()> {
        self.inputs.push_back(input);
        while let Some(input) = self.inputs.pop_front() {
            let before = self.residence.phase();
            let mut effects = std::mem::take(&mut self.effects);
            self.residence.step(input, &mut effects);
            if self.residence.phase() != before {
                self.times.push(clock::monotonic());
            }
            self.held = self.held.max(self.residence.held());
            for effect in effects.drain(..) {
                self.perform(effect)?;
            }
            self.effects = effects;
        }
        Ok(())
    }

    fn perform(&mut self, effect: Effect<Vec<u8>>) -> Result<()> {
        match effect {
            Effect::Deliver(request) => self.mailbox.push_back(request),
            Effect::Send(message) => self.outbox.push_back(message),
            Effect::Stop => self.stops = true,
            Effect::GoOn => (self.runs, self.stops) = (true, false),
            Effect::TakeRegion => {
                self.import = Some(Import::new(self.objects.take().context("no region")?)?);
                self.inputs.push_back(Input::Region(true));
            }
            Effect::SendObjects(attempt) => {
                let (head, export) = self.objects()?.export();
                self.sends = Some(Sending {
                    attempt,
                    table: head,
                    table_sent: 0,
                    export,
                });
            }
            Effect::StopSending => self.sends = None,
            Effect::FinishImport => {
                self.objects = Some(self.import.take().context("nothing came")?.finish()?);
                self.inputs.push_back(Input::Imported(true));
            }
            Effect::DropImport => self.objects = self.import.take().map(Import::cancel),
            Effect::Note(record) => self.objects()?.set_mark(record.to_bits()),
            Effect::Start => self.runs = true,
            Effect::FreeObjects => self.objects()?.clear(),
            Effect::Refuse(_) => self.refused += 1,
            Effect::Report(outcome) => self.outcome = Some(outcome),
        }
        Ok(())
    }

    /// Everything but arrivals: what came, a message to the actor, what is to be sent. Gives whether it did something.
    fn turn(&mut self) -> Result<bool> {
        let mut is_busy = self.receive()?;
        if self.runs
            && let Some(request) = self.mailbox.pop_front()
        {
            let begin = clock::monotonic();
            let number = u64::from_le_bytes(request.as_slice().try_into()?);
            let ids = self.ids;
            let is_next = handle(self.objects()?, ids, number)?;
            self.wrong += u64::from(!is_next);
            // The rest of its work.
            while clock::monotonic().0 < begin.0 + SERVICE.0 {
                std::hint::spin_loop();
            }
            is_busy = true;
        }
        if self.stops && self.mailbox.is_empty() {
            (self.runs, self.stops) = (false, false);
            self.take(Input::Quiet)?;
        }
        self.send()?;
        self.end.flush(clock::monotonic());
        Ok(is_busy)
    }

    fn receive(&mut self) -> Result<bool> {
        for taken in 0..TAKEN {
            let Some(bytes) = self.end.receive()? else {
                return Ok(taken > 0);
            };
            let (actor, message) = decode(bytes)?;
            ensure!(actor == ACTOR, "a message for actor {actor}");
            if let Message::Objects(attempt, part) = message {
                if self.residence.expects_objects(attempt) {
                    self.import.as_mut().context("no region")?.push(part)?;
                }
                continue;
            }
            let message = owned(message);
            self.take(Input::Received(message))?;
        }
        Ok(true)
    }

    /// Sends what waits, then objects, as far as there is room.
    fn send(&mut self) -> Result<()> {
        while let Some(message) = self.outbox.front() {
            let head = encode(ACTOR, message);
            let bytes = match message {
                Message::Request(bytes) | Message::Forward(_, bytes) => bytes.as_slice(),
                _ => &[],
            };
            match self.end.send(&[&head, bytes]) {
                Ok(()) => self.outbox.pop_front(),
                Err(SendError::Full) => return Ok(()),
                Err(error) => bail!(error),
            };
        }
        let Some(sending) = &mut self.sends else {
            return Ok(());
        };
        let head = encode(ACTOR, &Message::Objects(sending.attempt, ()));
        let objects = self.objects.as_ref().context("no objects")?;
        // A transfer of a few pieces at a time, so that the engine begins early.
        for _ in 0..4 {
            let mut next = sending.export.clone();
            let mut parts: Vec<&[u8]> = Vec::with_capacity(1 + PIECE_PARTS);
            let table = &sending.table[sending.table_sent..];
            let table = &table[..table.len().min(PIECE_BYTES)];
            if !table.is_empty() {
                parts.push(table);
            } else if next.next(objects, PIECE_BYTES, PIECE_PARTS, &mut parts) == 0 {
                self.sends = None;
                return self.take(Input::ObjectsSent);
            }
            parts.insert(0, &head);
            match self.end.send(&parts) {
                Ok(()) => {
                    sending.table_sent += table.len();
                    sending.export = next;
                }
                Err(SendError::Full) => return Ok(()),
                Err(error) => bail!(error),
            }
        }
        Ok(())
    }
}

fn owned(message: Message<&[u8]>) -> Message<Vec<u8>> {
    match message {
        Message::Request(bytes) => Message::Request(bytes.to_vec()),
        Message::Forward(attempt, bytes) => Message::Forward(attempt, bytes.to_vec()),
        Message::Objects(attempt, bytes) => Message::Objects(attempt, bytes.to_vec()),
        Message::Prepare(attempt) => Message::Prepare(attempt),
        Message::Prepared(attempt) => Message::Prepared(attempt),
        Message::Refused(attempt) => Message::Refused(attempt),
        Message::ObjectsEnd(attempt) => Message::ObjectsEnd(attempt),
        Message::Complete(attempt) => Message::Complete(attempt),
        Message::Failed(attempt) => Message::Failed(attempt),
        Message::Start(attempt) => Message::Start(attempt),
        Message::Started(attempt) => Message::Started(attempt),
        Message::ForwardEnd(attempt) => Message::ForwardEnd(attempt),
        Message::Cleaned(attempt) => Message::Cleaned(attempt),
        Message::Abort(attempt) => Message::Abort(attempt),
    }
}

/// Moves the actor while messages come.
fn move_once(seed: u64, messages: u64) -> Result<Round> {
    let limits = Limits::default();
    let key = random_key()?;
    let (file, end) = End::create(limits, Side::Card, Order::Declared(Declared::CARD_TO_HOST), key)?;
    let other = End::attach(file.as_fd(), Side::Host, Order::Declared(Declared::HOST_TO_CARD))?;
    let (objects, ids) = filled()?;
    let mut card = Party::new(end, true, objects, &ids);
    let mut host = Party::new(other, false, region()?, &ids);
    let arrivals = arrivals(seed, messages);
    let (is_done, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (card_result, host_result) = thread::scope(|scope| {
        let card = scope.spawn(|| {
            let result = card_side(&mut card, &arrivals, &is_done);
            is_over.store(true, Ordering::Relaxed);
            result
        });
        let host_result = host_side(&mut host, messages, &is_done, &is_over);
        is_done.store(true, Ordering::Relaxed);
        (card.join(), host_result)
    });
    card_result.ok().context("the card ended")??;
    host_result?;
    ensure!(card.outcome == Some(Moved::Moved), "the actor did not move");
    let phases_ms: Vec<f64> = card
        .times
        .windows(2)
        .map(|times| (times[1].0 - times[0].0) as f64 / 1e6)
        .collect();
    let (mut alone, _) = filled()?;
    for number in 1..=messages {
        handle(&mut alone, &ids, number)?;
    }
    let moved = host.objects()?;
    Ok(Round {
        phases_ms: phases_ms.try_into().ok().context("a move has four phases")?,
        held: card.held,
        lost: messages.saturating_sub(moved.completed()),
        is_equal: digest(moved) == digest(&alone),
        wrong: card.wrong + host.wrong + card.refused + host.refused,
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

/// The card, until the host has all messages and the move is over.
fn card_side(card: &mut Party<'_>, arrivals: &[Nanos], is_done: &AtomicBool) -> Result<()> {
    // Messages come as the CPU time of this side goes by: other programs do not add to its load.
    let start = clock::thread_cpu();
    let mut next = 0;
    let mut patience = Patience::default();
    while !is_done.load(Ordering::Relaxed) || card.outcome.is_none() {
        let now = Nanos(clock::thread_cpu().0 - start.0);
        while arrivals.get(next).is_some_and(|at| *at <= now) {
            next += 1;
            card.take(Input::Request((next as u64).to_le_bytes().to_vec()))?;
            if next == arrivals.len() / 3 {
                card.take(Input::Move)?;
            }
        }
        if card.turn()? {
            patience.reset();
        } else {
            patience.wait();
        }
        ensure!(
            now < LONGEST,
            "in phase {:?} after {next} messages",
            card.residence.phase()
        );
    }
    Ok(())
}

/// The host, until the card is at its end.
fn host_side(host: &mut Party<'_>, messages: u64, is_done: &AtomicBool, is_over: &AtomicBool) -> Result<()> {
    let mut patience = Patience::default();
    while !is_over.load(Ordering::Relaxed) {
        if host.turn()? {
            patience.reset();
        } else {
            if host.runs && host.mailbox.is_empty() && host.objects()?.completed() >= messages {
                is_done.store(true, Ordering::Relaxed);
            }
            patience.wait();
        }
    }
    Ok(())
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
