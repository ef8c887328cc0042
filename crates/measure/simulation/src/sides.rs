//! The two sides of a service of actors: the servers of the card, and those of the host, between which actors move. The
//! live step decides on moves. A move has the phases of the live one: what comes is held, what the actor has is served where
//! it is, its state takes its time, and then it serves what was held.

use std::collections::VecDeque;

use actor_scheduling::ActorId;
use actor_scheduling::migration::{ActorLoad, Memory, Observation, Settings, step};
use engine::CpuQuota;
use model::{ActorSide, Nanos};

use crate::queue::{Request, Station};
use crate::scenario::{HostSide, Queue};

/// Between two steps of what decides on moves, as live.
const STEP_NS: u64 = 10_000_000;

/// A move.
#[derive(Debug, Default)]
struct Moving {
    /// Since when the actor has nothing to do where it was.
    quiet: Option<u64>,
    /// What came meanwhile.
    held: VecDeque<Request>,
}

/// An actor.
#[derive(Debug)]
struct Resident {
    side: ActorSide,
    moving: Option<Moving>,
    /// Requests that wait or run.
    under_way: u64,
    /// Since the last step: requests that ended, and their run time.
    ended: u64,
    ran_ns: u64,
}

/// The host's side, and who is where.
#[derive(Debug)]
struct Host {
    station: Station,
    servers_of_card: u32,
    move_ns: u64,
    settings: Settings,
    memory: Memory,
    looked: u64,
    residents: Vec<Resident>,
    held: usize,
    /// Moves to the card and to the host.
    moves: [u64; 2],
    served: u64,
}

/// What was counted of a host's side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moves {
    pub(crate) to_host: u64,
    pub(crate) to_card: u64,
    /// Requests that ended on the host.
    pub(crate) served_on_host: u64,
}

/// An instance's servers: those of the card, which is all of them without a host's side.
#[derive(Debug)]
pub(crate) struct Sides {
    card: Station,
    ring: usize,
    host: Option<Box<Host>>,
}

impl Host {
    fn new(of: &HostSide, queue: &Queue, ring: usize) -> Host {
        let millis = |ms: f64| Nanos((ms * 1e6).round() as u64);
        let resident = |_| Resident {
            side: ActorSide::Card,
            moving: None,
            under_way: 0,
            ended: 0,
            ran_ns: 0,
        };
        let own = Queue {
            servers: of.servers,
            ..queue.clone()
        };
        Host {
            station: Station::new(&own, ring).times_as_fast(of.speed),
            servers_of_card: queue.servers,
            move_ns: millis(of.move_ms).0,
            settings: Settings {
                overload_us: of.overload_us,
                busy: of.busy,
                backlog: Some(of.backlog),
                spare: of.spare,
                hysteresis: of.margin,
                patience: millis(of.patience_ms),
                settle: millis(of.settle_ms),
                pause: millis(of.pause_ms),
            },
            memory: Memory::default(),
            looked: 0,
            residents: (0..queue.actors).map(resident).collect(),
            held: 0,
            moves: [0; 2],
            served: 0,
        }
    }

    /// Has actors begin where their moves have ended.
    fn settle(&mut self, card: &mut Station, now: u64) {
        for index in 0..self.residents.len() {
            let resident = &mut self.residents[index];
            let Some(moving) = &mut resident.moving else {
                continue;
            };
            if resident.under_way > 0 {
                continue;
            }
            if now < *moving.quiet.get_or_insert(now) + self.move_ns {
                continue;
            }
            let held = std::mem::take(&mut moving.held);
            (resident.moving, resident.side) = (None, resident.side.other());
            let side = resident.side;
            resident.under_way = held.len() as u64;
            self.moves[side.index()] += 1;
            self.held -= held.len();
            for job in held {
                match side {
                    ActorSide::Card => card.put(job),
                    ActorSide::Host => self.station.put(job),
                }
            }
        }
    }

    /// Lets the live step decide.
    fn look(&mut self, card: &Station, now: u64) {
        let span_s = (now - self.looked) as f64 / 1e9;
        self.looked = now;
        let actors = (0..).map(ActorId).zip(&mut self.residents);
        let actors = actors.map(|(actor, of)| {
            let station = match of.side {
                ActorSide::Card => card,
                ActorSide::Host => &self.station,
            };
            let response = station.response_of(actor);
            ActorLoad {
                actor: actor.0.to_string(),
                group: None,
                side: of.side,
                can_move: of.moving.is_none(),
                load: std::mem::take(&mut of.ran_ns) as f64 / 1e9 / span_s,
                rate: std::mem::take(&mut of.ended) as f64 / span_s,
                mean_us: response.mean() / 1e3,
                tail_us: response.tail() / 1e3,
                waiting: of.under_way,
            }
        });
        let observation = Observation {
            now: Nanos(now),
            both_run: true,
            card_cores: self.servers_of_card as u16,
            actors: actors.collect(),
        };
        let (memory, decided) = step(&self.settings, self.memory, &observation);
        self.memory = memory;
        for actor in decided.into_iter().flat_map(|of| of.actors) {
            let resident = actor
                .parse()
                .ok()
                .and_then(|index: usize| self.residents.get_mut(index));
            if let Some(resident) = resident {
                resident.moving = Some(Moving::default());
            }
        }
    }
}

impl Sides {
    pub(crate) fn new(queue: &Queue, ring: usize) -> Sides {
        Sides {
            card: Station::new(queue, ring),
            ring,
            host: queue.host.as_ref().map(|of| Box::new(Host::new(of, queue, ring))),
        }
    }

    /// As [`Station::set_speed`]; a quota is the card's.
    pub(crate) fn set_speed(&mut self, pps: f64, threads: f64, quota: Option<CpuQuota>) {
        self.card.set_speed(pps, threads, quota);
    }

    pub(crate) fn work_ns(&self) -> f64 {
        self.card.work_ns()
    }

    pub(crate) fn waiting(&self) -> usize {
        let host = self.host.as_ref();
        self.card.waiting() + host.map_or(0, |host| host.station.waiting() + host.held)
    }

    pub(crate) fn len(&self) -> usize {
        let host = self.host.as_ref();
        self.card.len() + host.map_or(0, |host| host.station.len() + host.held)
    }

    /// Enqueues a job where its actor is; false if that ring is full, or too much is held.
    pub(crate) fn take(&mut self, job: Request) -> bool {
        let Some(host) = &mut self.host else {
            return self.card.take(job);
        };
        let Some(resident) = host.residents.get_mut(job.actor as usize) else {
            return self.card.take(job);
        };
        if let Some(moving) = &mut resident.moving {
            let has_room = host.held < self.ring;
            if has_room {
                moving.held.push_back(job);
                host.held += 1;
            }
            return has_room;
        }
        let taken = match resident.side {
            ActorSide::Card => self.card.take(job),
            ActorSide::Host => host.station.take(job),
        };
        resident.under_way += u64::from(taken);
        taken
    }

    /// As [`Station::start`]; servers of the host come after those of the card.
    pub(crate) fn start(&mut self, now: u64) -> Option<(u32, u64)> {
        if let Some(host) = &mut self.host {
            if now >= host.looked + STEP_NS {
                host.look(&self.card, now);
            }
            host.settle(&mut self.card, now);
        }
        self.card.start(now).or_else(|| {
            let host = self.host.as_mut()?;
            let (server, until) = host.station.start(now)?;
            Some((host.servers_of_card + server, until))
        })
    }

    /// As [`Station::finish`]; the time is that of a server of the card, else 0.
    pub(crate) fn finish(&mut self, server: u32, now: u64) -> Option<(Option<Request>, u64)> {
        let Some(host) = &mut self.host else {
            return self.card.finish(server, now);
        };
        let (actor, ended, ran, of_card) = match server.checked_sub(host.servers_of_card) {
            None => {
                let actor = self.card.runs_on(server)?;
                let (ended, ran) = self.card.finish(server, now)?;
                (actor, ended, ran, ran)
            }
            Some(own) => {
                let actor = host.station.runs_on(own)?;
                let (ended, ran) = host.station.finish(own, now)?;
                host.served += u64::from(ended.is_some());
                (actor, ended, ran, 0)
            }
        };
        if let Some(resident) = host.residents.get_mut(actor as usize) {
            resident.ran_ns += ran;
            resident.ended += u64::from(ended.is_some());
            resident.under_way -= u64::from(ended.is_some());
        }
        Some((ended, of_card))
    }

    /// What actors moved; nothing without a host's side.
    pub(crate) fn moves(&self) -> Option<Moves> {
        let host = self.host.as_ref()?;
        Some(Moves {
            to_host: host.moves[ActorSide::Host.index()],
            to_card: host.moves[ActorSide::Card.index()],
            served_on_host: host.served,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(arrived: u64, actor: u32) -> Request {
        Request {
            arrived,
            work_ns: 1e6,
            actor,
            source: 0,
            flow: u32::MAX,
        }
    }

    fn sides() -> Sides {
        let queue = Queue {
            actors: 2,
            host: Some(HostSide {
                // What had to wait before a move is no reason for another one.
                overload_us: 1e9,
                patience_ms: 20.0,
                settle_ms: 100.0,
                pause_ms: 300.0,
                ..HostSide::default()
            }),
            ..Queue::default()
        };
        Sides::new(&queue, 1_000)
    }

    /// Requests of 1 ms at this distance, to two actors in turn, for so long; then until all have ended.
    fn play(sides: &mut Sides, from: u64, every: u64, until: u64) -> (u64, Vec<Request>) {
        let (mut now, mut next, mut runs, mut ended) = (from, from, Vec::new(), Vec::new());
        let mut number = 0;
        loop {
            while let Some(started) = sides.start(now) {
                runs.push(started);
            }
            let first = runs.iter().copied().min_by_key(|(_, at)| *at);
            match first {
                Some((server, at)) if at <= next || next >= until => {
                    runs.retain(|of| *of != (server, at));
                    now = at;
                    ended.extend(sides.finish(server, now).unwrap().0);
                }
                _ if next < until => {
                    now = next;
                    next += every;
                    number += 1;
                    assert!(sides.take(job(now, number % 2)));
                }
                // What is held waits for the end of a move.
                _ if sides.len() > 0 => now += 1_000_000,
                _ => return (now, ended),
            }
        }
    }

    #[test]
    fn an_actor_goes_to_the_host_under_load_and_comes_back_and_serves_each_request_once_in_order() {
        let mut sides = sides();
        let ms = 1_000_000;
        // 1.6 times what the server of the card can do, for half a second.
        let (now, ended) = play(&mut sides, 0, 625_000, 500 * ms);
        let loaded = sides.moves().unwrap();
        assert_eq!((loaded.to_host, loaded.to_card), (1, 0), "{loaded:?}");
        assert!(loaded.served_on_host > 300, "{loaded:?}");
        assert_eq!(ended.len(), 800);
        for actor in 0..2 {
            let of: Vec<u64> = (ended.iter().filter(|of| of.actor == actor))
                .map(|of| of.arrived)
                .collect();
            assert!(of.is_sorted() && of.len() == 400, "actor {actor}");
        }
        // A tenth of it.
        let (_, ended) = play(&mut sides, now, 10 * ms, now + 2_000 * ms);
        assert_eq!((sides.moves().unwrap().to_card, ended.len()), (1, 200));
        assert_eq!((sides.len(), sides.waiting()), (0, 0));
    }
}
