//! The program on two CPUs, the ring, the worker, the queue behind it, and who writes rules: every order of their steps.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher as _};

use path_change::{Passage, Want, Watermark};

/// Places of the ring.
const RING: usize = 2;
/// The CPU that the flow's packets come to; the other one has packets of other flows.
const FLOW: usize = 0;

/// A packet, by its number in its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Packet {
    /// Of the flow.
    Own(u8),
    /// Of the flow, but that cannot be seen.
    Fragment(u8),
    /// Of another one.
    Other(u8),
}

/// Where a CPU is with its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Free,
    /// It is to be passed up.
    Begun(Packet),
    /// It has a place, or none.
    Reserved(Packet, Option<u64>),
    Filled(Packet),
    Numbered(Packet, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Queued {
    Packet(Packet),
    Marker(u64),
}

/// What writes rules does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Write {
    Insert,
    /// Reads how many were numbered.
    Read,
    Open,
    /// The flow is demoted, and its entry stays.
    Off,
    /// And is promoted again.
    On,
    Remove,
}

/// A mistake in what is around the rules, to see that the exploration finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// A packet is numbered before it is in the ring.
    NumbersEarly,
    /// The number is stored when it is committed, and does not wait for the queue.
    StoresAtCommit,
    /// Places that are not filled yet are not waited for.
    DoesNotSettle,
    /// The ring is counted before the number is read.
    CountsFirst,
    /// An entry is open as soon as it is there.
    OpensAtOnce,
    /// How many were numbered is read before the entry is there.
    ReadsFirst,
    /// Packets of the flow that are passed up leave no number.
    DoesNotRecord,
    /// The flow is looked up before its packet is numbered.
    LooksUpFirst,
    /// Fragments are ignored.
    IgnoresFragments,
    /// What the worker took counts, whether it is committed or not.
    CommitsEarly,
}

/// What program, worker and writer share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Memory {
    begun: [u64; 2],
    placed: [u64; 2],
    passed: u64,
    done: u64,
    unread: u64,
    entry: Option<Passage>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Worker {
    /// Frames taken from the ring.
    taken: u64,
    hand: Vec<Packet>,
    mark: Watermark,
    /// What the ring had when the number was read, by mistake.
    counted: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// Packets that are to come, by CPU.
    to_come: [VecDeque<Packet>; 2],
    cpus: [At; 2],
    memory: Memory,
    /// Whether the entry was there when the packet was looked up early.
    was_there: bool,
    /// The ring: the packets, and whether their places are filled.
    ring: VecDeque<(Packet, bool)>,
    worker: Worker,
    queue: VecDeque<Queued>,
    /// Packets and markers that the queue may still lose.
    losses: u8,
    writes: VecDeque<Write>,
    read: u64,
    /// Where the flow's packets arrived, and by which path.
    arrived: Vec<(u8, bool)>,
    lost: u8,
}

type Steps = Vec<(&'static str, Result<World, String>)>;

impl World {
    fn new(own: &[Packet], others: u8, writes: &[Write], losses: u8) -> World {
        World {
            to_come: [
                own.iter().copied().collect(),
                (0..others).map(Packet::Other).collect(),
            ],
            cpus: [At::Free; 2],
            memory: Memory::default(),
            was_there: false,
            ring: VecDeque::new(),
            worker: Worker {
                taken: 0,
                hand: Vec::new(),
                mark: Watermark::new(if others > 0 { 2 } else { 1 }),
                counted: 0,
            },
            queue: VecDeque::new(),
            losses,
            writes: writes.iter().copied().collect(),
            read: 0,
            arrived: Vec::new(),
            lost: 0,
        }
    }

    fn arrive(mut self, packet: Packet, is_fast: bool) -> Result<World, String> {
        if let Packet::Own(number) | Packet::Fragment(number) = packet {
            if self.arrived.last().is_some_and(|(last, _)| *last >= number) {
                return Err(format!("packet {number} came after {:?}", self.arrived));
            }
            self.arrived.push((number, is_fast));
        }
        Ok(self)
    }

    fn number(&mut self) -> u64 {
        self.memory.passed += 1;
        self.memory.passed
    }

    /// The next step of a CPU.
    fn cpu(&self, at: usize, fault: Fault) -> Option<Result<World, String>> {
        let mut next = self.clone();
        match self.cpus[at] {
            At::Free => {
                let packet = next.to_come[at].pop_front()?;
                let takes = self
                    .memory
                    .entry
                    .is_some_and(|entry| entry.takes(self.memory.done, self.memory.unread));
                if matches!(packet, Packet::Own(_)) && takes {
                    return Some(next.arrive(packet, true));
                }
                next.memory.begun[at] += 1;
                next.cpus[at] = At::Begun(packet);
                if fault == Fault::NumbersEarly {
                    let number = next.number();
                    next.record(packet, number, fault);
                }
            }
            At::Begun(packet) => {
                let has_place = self.ring.len() < RING;
                if has_place {
                    next.ring.push_back((packet, false));
                } else {
                    next.lost += u8::from(at == FLOW);
                }
                let place = has_place.then_some(self.worker.taken + self.ring.len() as u64);
                next.cpus[at] = At::Reserved(packet, place);
            }
            At::Reserved(packet, place) => {
                if let Some(place) = place {
                    next.ring[(place - self.worker.taken) as usize].1 = true;
                }
                next.cpus[at] = At::Filled(packet);
            }
            At::Filled(packet) => {
                if fault == Fault::LooksUpFirst && at == FLOW && !self.was_there {
                    // This step looks up, and the next one numbers.
                    next.was_there = true;
                    next.cpus[at] = if self.memory.entry.is_some() {
                        At::Filled(packet)
                    } else {
                        next.was_there = false;
                        At::Numbered(packet, u64::MAX)
                    };
                    return Some(Ok(next));
                }
                next.was_there = false;
                if at != FLOW {
                    // It has no entry.
                    next.memory.passed += u64::from(fault != Fault::NumbersEarly);
                    next.memory.placed[at] += 1;
                    next.cpus[at] = At::Free;
                    return Some(Ok(next));
                }
                let number = if fault == Fault::NumbersEarly {
                    self.memory.passed
                } else {
                    next.number()
                };
                next.cpus[at] = At::Numbered(packet, number);
            }
            At::Numbered(packet, number) => {
                match (fault, number) {
                    // It had no entry, and is numbered now.
                    (_, u64::MAX) => _ = next.number(),
                    (Fault::NumbersEarly, _) => {}
                    _ => next.record(packet, number, fault),
                }
                next.memory.placed[at] += 1;
                next.cpus[at] = At::Free;
            }
        }
        Some(Ok(next))
    }

    /// The program notes under which number a packet was passed up.
    fn record(&mut self, packet: Packet, number: u64, fault: Fault) {
        match packet {
            Packet::Own(_) if fault != Fault::DoesNotRecord => {
                if let Some(entry) = &mut self.memory.entry {
                    entry.pass(number);
                }
            }
            Packet::Fragment(_) if fault != Fault::IgnoresFragments => self.memory.unread = number,
            _ => {}
        }
    }

    /// Frames up to the first place that is not filled.
    fn waiting(&self) -> u64 {
        self.ring.iter().take_while(|(_, is_filled)| *is_filled).count() as u64
    }

    /// The worker looks at one more thing.
    fn look(&self, fault: Fault) -> Option<World> {
        let mut next = self.clone();
        match self.worker.mark.want() {
            Want::Passed => {
                if fault == Fault::CountsFirst {
                    next.worker.counted = self.worker.taken + self.waiting();
                }
                next.worker.mark.passed(self.memory.passed);
            }
            Want::Begun(cpu) => next.worker.mark.begun(self.memory.begun[cpu]),
            Want::Placed(cpu) => {
                let is_through = fault == Fault::DoesNotSettle;
                next.worker.mark.placed(if is_through {
                    u64::MAX
                } else {
                    self.memory.placed[cpu]
                });
            }
            Want::Waiting if fault == Fault::CountsFirst => {
                next.worker.mark.waiting(
                    self.worker.taken,
                    self.worker.counted.saturating_sub(self.worker.taken),
                );
            }
            Want::Waiting => next.worker.mark.waiting(self.worker.taken, self.waiting()),
            Want::Nothing => return None,
        }
        (next != *self).then_some(next)
    }

    /// The worker ends its turn.
    fn commit(&self, fault: Fault) -> Option<World> {
        let mut next = self.clone();
        let marker = next.worker.mark.committed(self.worker.taken);
        if marker.is_none() && self.worker.hand.is_empty() {
            return None;
        }
        let packets = next.worker.hand.drain(..).map(Queued::Packet);
        next.queue.extend(packets);
        match marker {
            Some(number) if fault == Fault::StoresAtCommit => next.memory.done = number,
            Some(number) => next.queue.push_back(Queued::Marker(number)),
            None => {}
        }
        Some(next)
    }

    fn steps(&self, fault: Fault, steps: &mut Steps) {
        for (at, name) in ["flow's CPU", "other CPU"].into_iter().enumerate() {
            steps.extend(self.cpu(at, fault).map(|next| (name, next)));
        }
        steps.extend(self.look(fault).map(|next| ("worker looks", Ok(next))));
        if self.ring.front().is_some_and(|(_, is_filled)| *is_filled) {
            let mut next = self.clone();
            let taken = next.ring.pop_front().map(|(packet, _)| packet);
            next.worker.hand.extend(taken);
            next.worker.taken += 1;
            if fault == Fault::CommitsEarly
                && let Some(number) = next.worker.mark.committed(next.worker.taken)
            {
                next.queue.push_back(Queued::Marker(number));
            }
            steps.push(("worker takes", Ok(next)));
        }
        steps.extend(self.commit(fault).map(|next| ("worker commits", Ok(next))));
        if let Some(first) = self.queue.front() {
            let mut next = self.clone();
            next.queue.pop_front();
            if self.losses > 0 {
                let mut lost = next.clone();
                lost.losses -= 1;
                lost.lost += u8::from(matches!(
                    first,
                    Queued::Packet(Packet::Own(_) | Packet::Fragment(_))
                ));
                steps.push(("queue loses", Ok(lost)));
            }
            let next = match first {
                Queued::Packet(packet) => next.arrive(*packet, false),
                Queued::Marker(number) => {
                    next.memory.done = next.memory.done.max(*number);
                    Ok(next)
                }
            };
            steps.push(("queue", next));
        }
        let mut next = self.clone();
        if let Some(write) = next.writes.pop_front() {
            next.write(write, fault);
            steps.push(("writer", Ok(next)));
        }
    }

    fn write(&mut self, write: Write, fault: Fault) {
        match write {
            Write::Insert => {
                let mut entry = Passage::inserted();
                if fault == Fault::OpensAtOnce {
                    entry.open(0);
                }
                self.memory.entry = Some(entry);
            }
            Write::Read => self.read = self.memory.passed,
            Write::Remove => self.memory.entry = None,
            Write::Open | Write::On | Write::Off => {
                if let Some(entry) = &mut self.memory.entry {
                    match write {
                        Write::Open => entry.open(self.read),
                        _ => entry.is_on = write == Write::On,
                    }
                }
            }
        }
    }
}

/// What was found of all orders.
#[derive(Debug, Default)]
struct Explored {
    worlds: usize,
    /// Ends in which packets came by both paths, slow ones first, and fast ones first.
    promoted: usize,
    demoted: usize,
}

/// A world in 128 bits: two of some millions are the same by chance once in 10²⁴ runs.
fn mark_of(world: &World) -> (u64, u64) {
    let hash = |seed: u64| {
        let mut hasher = DefaultHasher::new();
        (seed, world).hash(&mut hasher);
        hasher.finish()
    };
    (hash(0), hash(1))
}

fn explore(start: &World, fault: Fault) -> Result<Explored, String> {
    let mut explored = Explored::default();
    let mut seen = HashSet::from([mark_of(start)]);
    let mut open = vec![start.clone()];
    let mut steps = Vec::new();
    let own = start.to_come[FLOW].len();
    while let Some(world) = open.pop() {
        world.steps(fault, &mut steps);
        if steps.is_empty() {
            let came = world.arrived.len() + usize::from(world.lost);
            if came != own {
                return Err(format!("{came} of {own} packets came or are lost: {world:?}"));
            }
            if world.losses == start.losses && world.memory.done != world.memory.passed {
                return Err(format!("it ends before all is done: {world:?}"));
            }
            let changes = |from: bool| {
                let pairs = world.arrived.windows(2);
                usize::from(
                    pairs
                        .into_iter()
                        .any(|pair| pair[0].1 == from && pair[1].1 != from),
                )
            };
            explored.promoted += changes(false);
            explored.demoted += changes(true);
        }
        for (name, next) in steps.drain(..) {
            let next = next.map_err(|wrong| format!("{name}: {wrong}, from {world:?}"))?;
            if seen.insert(mark_of(&next)) {
                open.push(next);
            }
        }
    }
    explored.worlds = seen.len();
    Ok(explored)
}

const TWO: [Packet; 2] = [Packet::Own(0), Packet::Own(1)];
const THREE: [Packet; 3] = [Packet::Own(0), Packet::Own(1), Packet::Own(2)];
const PROMOTE: [Write; 3] = [Write::Insert, Write::Read, Write::Open];

#[test]
fn a_promoted_flow_stays_in_order() {
    let explored = explore(&World::new(&TWO, 1, &PROMOTE, 0), Fault::None).unwrap();
    assert!(explored.promoted > 0, "{explored:?}");
}

#[test]
fn a_demoted_flow_stays_in_order() {
    let writes = [Write::Insert, Write::Read, Write::Open, Write::Off, Write::On];
    let explored = explore(&World::new(&THREE, 0, &writes, 0), Fault::None).unwrap();
    assert!(explored.promoted > 0 && explored.demoted > 0, "{explored:?}");
}

#[test]
fn an_entry_that_is_removed_and_inserted_again_knows_nothing_and_needs_nothing() {
    let writes = [PROMOTE.as_slice(), &[Write::Remove], &PROMOTE].concat();
    let explored = explore(&World::new(&THREE, 0, &writes, 0), Fault::None).unwrap();
    assert!(explored.promoted > 0 && explored.demoted > 0, "{explored:?}");
}

#[test]
fn what_the_queue_loses_holds_nothing_up_and_disorders_nothing() {
    let explored = explore(&World::new(&THREE, 0, &PROMOTE, 1), Fault::None).unwrap();
    assert!(explored.promoted > 0, "{explored:?}");
}

#[test]
fn fragments_stay_in_order() {
    let own = [Packet::Own(0), Packet::Fragment(1), Packet::Own(2)];
    let explored = explore(&World::new(&own, 0, &PROMOTE, 0), Fault::None).unwrap();
    assert!(explored.promoted > 0 && explored.demoted > 0, "{explored:?}");
}

#[test]
fn the_exploration_finds_mistakes() {
    let faults = [
        Fault::NumbersEarly,
        Fault::StoresAtCommit,
        Fault::DoesNotSettle,
        Fault::CountsFirst,
        Fault::OpensAtOnce,
        Fault::ReadsFirst,
        Fault::DoesNotRecord,
        Fault::LooksUpFirst,
        Fault::IgnoresFragments,
        Fault::CommitsEarly,
    ];
    for fault in faults {
        let own = match fault {
            Fault::IgnoresFragments => vec![Packet::Own(0), Packet::Fragment(1), Packet::Own(2)],
            _ => TWO.to_vec(),
        };
        let writes = match fault {
            Fault::ReadsFirst => vec![Write::Read, Write::Insert, Write::Open],
            _ => PROMOTE.to_vec(),
        };
        let found = explore(&World::new(&own, 1, &writes, 0), fault);
        let wrong = found.map(|explored| format!("{fault:?} is not found in {explored:?}"));
        let wrong = wrong.unwrap_err();
        assert!(wrong.contains("came after"), "{fault:?}: {wrong}");
    }
}
