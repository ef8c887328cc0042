//! Two sides, the channel between them, and who restarts them: every order of steps, with a crash after each effect.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::rc::Rc;

use actor_migration::{Effect, Input, Message, Outcome, Record, Residence};

/// A request: the side where it came in, and its number there.
type Request = (u8, u8);

/// What messages carry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Load {
    Request(Request),
    /// A part of the objects.
    Part(Vec<Request>),
}

/// Parts that the objects are sent in.
const PARTS: u8 = 2;
/// Requests held at most; more than there are.
const HELD: usize = 8;

/// What outlives a process: the objects, which are all requests that changed them, and the note beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Region {
    record: Record,
    objects: Vec<Request>,
    is_under_way: bool,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Side {
    is_alive: bool,
    residence: Residence<Load>,
    runs: bool,
    stops: bool,
    handles: bool,
    mailbox: VecDeque<Request>,
    inbox: VecDeque<Message<Load>>,
    /// The attempt, and parts that were sent.
    sends: Option<(u32, u8)>,
    /// What came, and its parts.
    came: (Vec<Request>, u8),
    wants_region: bool,
    wants_import: bool,
    /// The other side has ended, and this one was not told.
    untold: Option<Option<Record>>,
}

impl Side {
    fn new(residence: Residence<Load>, runs: bool) -> Side {
        Side {
            is_alive: true,
            residence,
            runs,
            stops: false,
            handles: false,
            mailbox: VecDeque::new(),
            inbox: VecDeque::new(),
            sends: None,
            came: (Vec::new(), 0),
            wants_region: false,
            wants_import: false,
            untold: None,
        }
    }
}

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Budget {
    /// Requests at each side.
    requests: [u8; 2],
    moves: u8,
    cancels: u8,
    failures: u8,
    crashes: u8,
}

/// A fault in what is around the steps, to see that the exploration finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The source does not note that the actor has left.
    ForgetsGone,
    /// The target starts when all objects have come.
    StartsEarly,
    /// The target handles what comes to it before what the source held.
    DoesNotHold,
    /// A side is restarted before the other one was told.
    RestartsUntold,
    /// A region that was left in the middle of a message is used.
    TrustsInterrupted,
    /// The source frees its objects when it has sent them.
    FreesEarly,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    sides: [Side; 2],
    regions: [Option<Region>; 2],
    issued: [u8; 2],
    budget: Budget,
    /// Requests that were handled to the end, wherever.
    log: Vec<Request>,
    is_lost: bool,
    has_crashed: bool,
}

type Steps = Vec<(&'static str, usize, Result<World, String>)>;

impl World {
    fn new(budget: Budget) -> World {
        let side = |is_here| Side::new(Residence::new(is_here, HELD), is_here);
        let here = Region {
            record: Record::Here,
            ..Region::default()
        };
        World {
            sides: [side(true), side(false)],
            regions: [Some(here), Some(Region::default())],
            issued: [0; 2],
            budget,
            log: Vec::new(),
            is_lost: false,
            has_crashed: false,
        }
    }

    /// What a side has noted. One that ended in the middle of a message has left nothing to go on with.
    fn record(&self, at: usize, fault: Fault) -> Option<Record> {
        let region = self.regions[at].as_ref()?;
        let is_right = self.sides[at].is_alive || !region.is_under_way;
        (is_right || fault == Fault::TrustsInterrupted).then_some(region.record)
    }

    fn crash(mut self, at: usize, region_too: bool, fault: Fault) -> World {
        self.budget.crashes -= 1;
        self.has_crashed = true;
        if region_too {
            self.regions[at] = None;
        }
        let side = &mut self.sides[at];
        *side = Side::new(Residence::new(false, HELD), false);
        side.is_alive = false;
        let record = self.record(at, fault);
        self.sides[1 - at].untold = Some(record);
        self
    }

    /// Does one effect.
    fn perform(&mut self, at: usize, effect: Effect<Load>, fault: Fault) -> Result<(), String> {
        let other_lives = self.sides[1 - at].is_alive;
        let side = &mut self.sides[at];
        let region = self.regions[at].as_mut();
        match effect {
            Effect::Deliver(Load::Request(request)) | Effect::DeliverHeld(Load::Request(request)) => {
                if !side.runs {
                    return Err(format!("{request:?} was delivered where the actor does not run"));
                }
                side.mailbox.push_back(request);
            }
            Effect::Send(message) => {
                if fault == Fault::FreesEarly && matches!(message, Message::ObjectsEnd(_)) {
                    region.unwrap().objects.clear();
                }
                if other_lives && self.sides[at].untold.is_none() {
                    self.sides[1 - at].inbox.push_back(message);
                }
            }
            Effect::Stop => side.stops = true,
            Effect::GoOn => {
                side.stops = false;
                side.runs = true;
            }
            Effect::TakeRegion => {
                region.unwrap().objects.clear();
                side.came = (Vec::new(), 0);
                side.wants_region = true;
            }
            Effect::SendObjects(attempt) => side.sends = Some((attempt, 0)),
            Effect::StopSending => side.sends = None,
            Effect::FinishImport => side.wants_import = true,
            Effect::DropImport => {
                side.wants_region = false;
                side.wants_import = false;
                side.came = (Vec::new(), 0);
                region.unwrap().objects.clear();
            }
            Effect::Note(Record::Gone) if fault == Fault::ForgetsGone => {}
            Effect::Note(record) => {
                side.runs |= record == Record::Complete && fault == Fault::StartsEarly;
                let region = region.unwrap();
                region.record = record;
            }
            Effect::Start => {
                side.runs = true;
                if region.unwrap().objects != self.log {
                    return Err(
                        "it starts with another state than that behind the last completed message".into(),
                    );
                }
            }
            Effect::FreeObjects => region.unwrap().objects.clear(),
            Effect::Refuse(Load::Request(request)) => {
                if !self.is_lost && !self.sides[at].residence.is_lost() {
                    return Err(format!("{request:?} was refused"));
                }
            }
            Effect::Report(outcome) => self.is_lost |= outcome == Outcome::Lost,
            Effect::Deliver(Load::Part(_))
            | Effect::DeliverHeld(Load::Part(_))
            | Effect::Refuse(Load::Part(_)) => {
                return Err("objects are no request".into());
            }
        }
        if self.sides.iter().all(|side| side.is_alive && side.runs) {
            return Err("it runs on both sides".into());
        }
        Ok(())
    }

    /// All worlds after these effects: with all of them, and with a crash before each and after the last.
    fn after(
        mut self,
        name: &'static str,
        at: usize,
        effects: Vec<Effect<Load>>,
        fault: Fault,
        into: &mut Steps,
    ) {
        for effect in effects {
            if self.budget.crashes > 0 {
                for region_too in [false, true] {
                    into.push(("crash within", at, Ok(self.clone().crash(at, region_too, fault))));
                }
            }
            if let Err(wrong) = self.perform(at, effect, fault) {
                into.push((name, at, Err(wrong)));
                return;
            }
        }
        into.push((name, at, Ok(self)));
    }

    fn step(mut self, name: &'static str, at: usize, input: Input<Load>, fault: Fault, into: &mut Steps) {
        let mut effects = Vec::new();
        self.sides[at].residence.step(input, &mut effects);
        self.after(name, at, effects, fault, into);
    }

    /// All that can happen next, and whether something happens by itself.
    fn steps(&self, fault: Fault, into: &mut Steps) {
        for at in 0..2 {
            let side = &self.sides[at];
            if self.issued[at] < self.budget.requests[at] {
                let mut next = self.clone();
                next.issued[at] += 1;
                let request = (at as u8, self.issued[at]);
                let is_draining = side.residence.is_here() && side.residence.phase().is_none() && side.runs;
                if !side.is_alive {
                    into.push(("request to nobody", at, Ok(next)));
                } else if fault == Fault::DoesNotHold && is_draining {
                    next.sides[at].mailbox.push_back(request);
                    into.push(("request", at, Ok(next)));
                } else {
                    next.step("request", at, Input::Request(Load::Request(request)), fault, into);
                }
            }
            if !side.is_alive {
                let other = &self.sides[1 - at];
                if !other.is_alive || other.untold.is_none() || fault == Fault::RestartsUntold {
                    let mut next = self.clone();
                    let own = self.record(at, fault);
                    let mut effects = Vec::new();
                    let residence = Residence::restart(own, self.record(1 - at, fault), HELD, &mut effects);
                    next.sides[at] = Side::new(residence, false);
                    if own.is_none() {
                        next.regions[at] = Some(Region::default());
                    }
                    next.regions[at].as_mut().unwrap().is_under_way = false;
                    // The other one, if it is not there either, hears of this one when it restarts.
                    next.after("restart", at, effects, fault, into);
                }
                continue;
            }
            if let Some(record) = side.untold {
                let mut next = self.clone();
                next.sides[at].untold = None;
                next.sides[at].inbox.clear();
                next.step("told", at, Input::PeerEnded(record), fault, into);
            }
            if let Some(message) = side.inbox.front() {
                let mut next = self.clone();
                next.sides[at].inbox.pop_front();
                if let Message::Objects(attempt, Load::Part(part)) = message {
                    if side.residence.expects_objects(*attempt) {
                        next.sides[at].came.0.extend(part);
                        next.sides[at].came.1 += 1;
                    }
                    into.push(("objects", at, Ok(next)));
                } else {
                    next.step("received", at, Input::Received(message.clone()), fault, into);
                }
            }
            if side.runs && !side.handles && !side.mailbox.is_empty() {
                let mut next = self.clone();
                next.sides[at].handles = true;
                let region = next.regions[at].as_mut().unwrap();
                region.is_under_way = true;
                region.objects.push(side.mailbox[0]);
                into.push(("begin", at, Ok(next)));
            }
            if side.handles {
                let mut next = self.clone();
                next.sides[at].handles = false;
                let request = next.sides[at].mailbox.pop_front().unwrap();
                let region = next.regions[at].as_mut().unwrap();
                region.is_under_way = false;
                into.push(("complete", at, next.completed(at, request)));
            }
            if side.stops && side.mailbox.is_empty() && !side.handles {
                let mut next = self.clone();
                next.sides[at].stops = false;
                next.sides[at].runs = false;
                next.step("quiet", at, Input::Quiet, fault, into);
            }
            if let Some((attempt, sent)) = side.sends {
                let mut next = self.clone();
                if sent == PARTS {
                    next.sides[at].sends = None;
                    next.step("objects sent", at, Input::ObjectsSent, fault, into);
                } else {
                    next.sides[at].sends = Some((attempt, sent + 1));
                    let objects = &self.regions[at].as_ref().unwrap().objects;
                    let length = objects.len().div_ceil(PARTS as usize);
                    let part = objects
                        .chunks(length.max(1))
                        .nth(sent as usize)
                        .unwrap_or_default();
                    let send = Effect::Send(Message::Objects(attempt, Load::Part(part.to_vec())));
                    next.after("send a part", at, vec![send], fault, into);
                }
            }
            if side.wants_region {
                let mut next = self.clone();
                next.sides[at].wants_region = false;
                next.clone().step("region", at, Input::Region(true), fault, into);
                if next.budget.failures > 0 {
                    next.budget.failures -= 1;
                    next.step("no region", at, Input::Region(false), fault, into);
                }
            }
            if side.wants_import {
                let mut next = self.clone();
                next.sides[at].wants_import = false;
                let (objects, parts) = std::mem::take(&mut next.sides[at].came);
                if next.budget.failures > 0 {
                    let mut fails = next.clone();
                    fails.budget.failures -= 1;
                    fails.step("not imported", at, Input::Imported(false), fault, into);
                }
                next.regions[at].as_mut().unwrap().objects = objects;
                next.step("imported", at, Input::Imported(parts == PARTS), fault, into);
            }
            if self.budget.moves > 0 && side.runs {
                let mut next = self.clone();
                next.budget.moves -= 1;
                next.step("move", at, Input::Move, fault, into);
            }
            if self.budget.cancels > 0 && side.residence.phase().is_some() {
                let mut next = self.clone();
                next.budget.cancels -= 1;
                next.step("cancel", at, Input::Cancel, fault, into);
            }
        }
    }

    /// A request was handled to the end.
    fn completed(mut self, at: usize, request: Request) -> Result<World, String> {
        if self.log.contains(&request) {
            return Err(format!("{request:?} was handled twice"));
        }
        if self
            .log
            .iter()
            .any(|before| before.0 == request.0 && before.1 > request.1)
        {
            return Err(format!("{request:?} was handled behind a later one"));
        }
        self.log.push(request);
        if self.regions[at].as_ref().unwrap().objects != self.log {
            return Err("its state is not that behind the last completed message".into());
        }
        Ok(self)
    }

    /// What must hold when nothing happens any longer.
    fn ended(&self) -> Result<(), String> {
        let running: Vec<usize> = (0..2).filter(|at| self.sides[*at].runs).collect();
        if self.is_lost {
            return if running.is_empty() {
                Ok(())
            } else {
                Err("it is reported lost and runs".into())
            };
        }
        let [at] = running[..] else {
            return Err(format!(
                "it runs on {} sides and is not reported lost",
                running.len()
            ));
        };
        let region = self.regions[at].as_ref().unwrap();
        if region.objects != self.log || region.record != Record::Here {
            return Err("its state is not that behind the last completed message".into());
        }
        let all: u8 = self.budget.requests.iter().sum();
        if !self.has_crashed && self.log.len() != all as usize {
            return Err(format!(
                "{} of {all} requests were handled, without a crash",
                self.log.len()
            ));
        }
        Ok(())
    }
}

/// Visits every world. Gives how many there are, or the way to the first that is wrong.
fn explore(budget: Budget, fault: Fault) -> Result<usize, String> {
    let start = Rc::new(World::new(budget));
    let mut seen: HashMap<Rc<World>, ()> = HashMap::from([(Rc::clone(&start), ())]);
    let mut worlds = vec![(start, 0, "", 0)];
    let way = |worlds: &[(Rc<World>, usize, &str, usize)], mut at: usize, wrong: &str| {
        let mut lines = vec![wrong.to_owned()];
        while at > 0 {
            let (_, from, name, side) = &worlds[at];
            lines.push(format!("{name} ({side})"));
            at = *from;
        }
        lines.reverse();
        lines.join("\n")
    };
    let mut steps = Vec::new();
    let mut next = 0;
    while next < worlds.len() {
        let world = Rc::clone(&worlds[next].0);
        world.steps(fault, &mut steps);
        if steps.is_empty() {
            world.ended().map_err(|wrong| way(&worlds, next, &wrong))?;
        }
        if world.budget.crashes > 0 {
            for at in (0..2).filter(|at| world.sides[*at].is_alive) {
                for region_too in [false, true] {
                    let crashed = World::clone(&world).crash(at, region_too, fault);
                    steps.push(("crash", at, Ok(crashed)));
                }
            }
        }
        for (name, side, result) in steps.drain(..) {
            let world = Rc::new(result.map_err(|wrong| {
                let wrong = format!("{name} ({side})\n{wrong}");
                way(&worlds, next, &wrong)
            })?);
            if seen.insert(Rc::clone(&world), ()).is_none() {
                worlds.push((world, next, name, side));
            }
        }
        next += 1;
    }
    Ok(worlds.len())
}

const QUIET: Budget = Budget {
    requests: [2, 2],
    moves: 2,
    cancels: 1,
    failures: 1,
    crashes: 0,
};
const ONE_CRASH: Budget = Budget {
    requests: [2, 1],
    moves: 2,
    cancels: 1,
    failures: 1,
    crashes: 1,
};
const TWO_CRASHES: Budget = Budget {
    requests: [1, 1],
    moves: 2,
    cancels: 1,
    failures: 0,
    crashes: 2,
};

#[test]
fn every_request_is_handled_once_and_in_order() {
    let worlds = explore(QUIET, Fault::None).unwrap_or_else(|way| panic!("{way}"));
    println!("{worlds} worlds");
    assert!(worlds > 10_000, "{worlds}");
}

#[test]
fn whoever_crashes_it_runs_on_one_side_or_is_lost() {
    for budget in [ONE_CRASH, TWO_CRASHES] {
        let worlds = explore(budget, Fault::None).unwrap_or_else(|way| panic!("{way}"));
        println!("{worlds} worlds");
        assert!(worlds > 10_000, "{worlds}");
    }
}

#[test]
fn the_exploration_finds_faults() {
    for (fault, budget) in [
        (Fault::ForgetsGone, ONE_CRASH),
        (Fault::StartsEarly, ONE_CRASH),
        (
            Fault::DoesNotHold,
            Budget {
                requests: [0, 2],
                ..QUIET
            },
        ),
        (Fault::RestartsUntold, ONE_CRASH),
        (Fault::TrustsInterrupted, ONE_CRASH),
        (Fault::FreesEarly, ONE_CRASH),
    ] {
        match explore(budget, fault) {
            Ok(worlds) => panic!("{fault:?} was not found in {worlds} worlds"),
            Err(way) => println!("{fault:?}:\n{way}\n"),
        }
    }
}
