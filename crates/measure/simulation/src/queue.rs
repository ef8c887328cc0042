//! An instance's queue: servers and queueing discipline.

use std::collections::VecDeque;

use engine::CpuQuota;

use crate::scenario::{Discipline, Queue};

/// Weight of a new sample in an actor's mean and variance.
const SAMPLE_WEIGHT: f64 = 0.01;
/// Samples of an actor before its dispersion counts.
const SAMPLES_ENOUGH: u64 = 50;
/// Nanoseconds between two evaluations of the server groups' utilisation.
const GROUP_WINDOW_NS: u64 = 10_000_000;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) arrived: u64,
    pub(crate) work_ns: f64,
    pub(crate) actor: u32,
    pub(crate) source: u32,
    pub(crate) flow: u32,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    job: Request,
    since: u64,
}

/// Statistics of an actor.
#[derive(Clone, Debug, Default)]
struct Actor {
    mailbox: VecDeque<Request>,
    is_drr: bool,
    deficit_ns: f64,
    mean_ns: f64,
    variance: f64,
    work_mean_ns: f64,
    samples: u64,
}

impl Actor {
    /// Mean plus three standard deviations of its response time (iPipe §3.2).
    fn tail_ns(&self) -> f64 {
        self.mean_ns + 3.0 * self.variance.max(0.0).sqrt()
    }
}

/// An instance's queue and servers.
#[derive(Debug)]
pub(crate) struct Station {
    discipline: Discipline,
    ring: usize,
    line: VecDeque<Request>,
    actors: Vec<Actor>,
    /// Actors with jobs under deficit round-robin, in order; the first is next.
    round: VecDeque<u32>,
    /// Whether the first actor has received its quantum in this turn.
    has_quantum: bool,
    /// Actors under deficit round-robin, with or without jobs.
    drr_actors: usize,
    running: Vec<Option<Running>>,
    free: Vec<u32>,
    /// Hybrid: number of servers, from the end, under deficit round-robin.
    drr_servers: usize,
    waiting: usize,
    in_service: usize,
    work_ns: f64,
    /// Run time and period of the quota, in nanoseconds.
    quota: Option<(u64, u64)>,
    quantum_ns: f64,
    switch_ns: f64,
    threshold_ns: f64,
    hysteresis: f64,
    /// Mean and variance of the response time of the FCFS group.
    group_mean_ns: f64,
    group_variance: f64,
    looked: u64,
    busy_ns: [f64; 2],
    last_actor: Vec<u32>,
}

impl Station {
    pub(crate) fn new(queue: &Queue, ring: usize) -> Station {
        let servers = queue.servers as usize;
        let actors = match queue.discipline {
            Discipline::Fcfs => 0,
            Discipline::Drr | Discipline::Hybrid => queue.actors,
        };
        let is_drr = queue.discipline == Discipline::Drr;
        Station {
            discipline: queue.discipline,
            ring,
            line: VecDeque::new(),
            actors: vec![
                Actor {
                    is_drr,
                    ..Actor::default()
                };
                actors as usize
            ],
            round: VecDeque::new(),
            drr_actors: if is_drr { actors as usize } else { 0 },
            has_quantum: false,
            running: vec![None; servers],
            // The first server is used first.
            free: (0..queue.servers).rev().collect(),
            drr_servers: 0,
            waiting: 0,
            in_service: 0,
            work_ns: 1_000.0,
            quota: None,
            quantum_ns: queue.quantum_us * 1e3,
            switch_ns: queue.switch_us * 1e3,
            threshold_ns: queue.tail_threshold_us * 1e3,
            hysteresis: queue.hysteresis,
            group_mean_ns: 0.0,
            group_variance: 0.0,
            looked: 0,
            busy_ns: [0.0; 2],
            last_actor: vec![u32::MAX; servers],
        }
    }

    /// Sets packets per second of one CPU, the number of CPUs, and the quota.
    pub(crate) fn set_speed(&mut self, pps: f64, threads: f64, quota: Option<CpuQuota>) {
        self.work_ns = self.running.len() as f64 * 1e9 / (pps * threads).max(1e-9);
        self.quota = quota.filter(|quota| quota.cpus() < threads).map(|quota| {
            let period = u64::from(quota.period_us) * 1_000;
            let run = (quota.cpus() / threads * period as f64).round() as u64;
            (run.max(1), period)
        });
    }

    /// Service time of an ordinary job on one server, in nanoseconds.
    pub(crate) fn work_ns(&self) -> f64 {
        self.work_ns
    }

    /// Waiting jobs.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Waiting and running jobs.
    pub(crate) fn len(&self) -> usize {
        self.waiting + self.in_service
    }

    /// Enqueues a job; false if the ring is full.
    pub(crate) fn take(&mut self, job: Request) -> bool {
        if self.waiting >= self.ring {
            return false;
        }
        self.waiting += 1;
        match self.actors.get_mut(job.actor as usize) {
            Some(actor) if actor.is_drr => {
                if actor.mailbox.is_empty() {
                    self.round.push_back(job.actor);
                }
                actor.mailbox.push_back(job);
            }
            _ => self.line.push_back(job),
        }
        true
    }

    /// Starts the next job on a free server, if there are both; returns the server and the completion time.
    pub(crate) fn start(&mut self, now: u64) -> Option<(u32, u64)> {
        let servers = self.running.len();
        let first_drr = match self.discipline {
            Discipline::Fcfs => servers,
            Discipline::Drr => 0,
            Discipline::Hybrid => servers - self.drr_servers,
        };
        for place in (0..self.free.len()).rev() {
            let server = self.free[place];
            let is_drr = server as usize >= first_drr;
            let job = if is_drr {
                self.next_in_round()
            } else {
                self.line.pop_front()
            };
            let Some(job) = job else { continue };
            self.free.remove(place);
            self.waiting -= 1;
            self.in_service += 1;
            let mut work = job.work_ns;
            let last = &mut self.last_actor[server as usize];
            if is_drr && *last != job.actor {
                work += self.switch_ns;
            }
            *last = job.actor;
            self.running[server as usize] = Some(Running { job, since: now });
            return Some((server, self.after(now, work)));
        }
        None
    }

    /// Deficit round-robin: each actor with jobs gets the quantum in its turn, and is served while its
    /// deficit covers its mean service time.
    fn next_in_round(&mut self) -> Option<Request> {
        // Terminates: each round adds a quantum to each actor, so at the latest when the deficit covers the longest
        // mean service time.
        loop {
            let id = *self.round.front()?;
            let actor = &mut self.actors[id as usize];
            // Once per turn.
            if !std::mem::replace(&mut self.has_quantum, true) {
                actor.deficit_ns += self.quantum_ns;
            }
            if actor.deficit_ns >= actor.work_mean_ns {
                actor.deficit_ns -= actor.work_mean_ns;
                let job = actor.mailbox.pop_front();
                if actor.mailbox.is_empty() {
                    actor.deficit_ns = 0.0;
                    self.round.pop_front();
                    self.has_quantum = false;
                }
                return job;
            }
            self.round.rotate_left(1);
            self.has_quantum = false;
        }
    }

    /// The completion time of work that starts now, including quota stalls.
    fn after(&self, now: u64, work_ns: f64) -> u64 {
        let mut work = work_ns.max(0.0).round() as u64;
        let Some((run, period)) = self.quota else {
            return now + work;
        };
        let into = now % period;
        if into < run {
            let left = run - into;
            if work <= left {
                return now + work;
            }
            work -= left;
        }
        let next = now - into + period;
        next + work / run * period + work % run
    }

    /// Completes a server's job; returns the job and its service time in nanoseconds.
    pub(crate) fn finish(&mut self, server: u32, now: u64) -> Option<(Request, u64)> {
        let running = self.running.get_mut(server as usize)?.take()?;
        self.in_service -= 1;
        self.free.push(server);
        let worked = now - running.since;
        self.learn(server, &running.job, worked, now);
        Some((running.job, worked))
    }

    /// Updates the hybrid's statistics and moves actors (iPipe §3.2, algorithms 1 and 2, as described in its text):
    /// the actor with the highest dispersion moves to DRR, the one with the lowest moves back. Migration to the host
    /// is not modelled.
    fn learn(&mut self, server: u32, job: &Request, worked: u64, now: u64) {
        let response = (now - job.arrived) as f64;
        let servers = self.running.len();
        let Some(actor) = self.actors.get_mut(job.actor as usize) else {
            return;
        };
        let sample = |mean: &mut f64, variance: &mut f64, value: f64, weight: f64| {
            let off = value - *mean;
            *mean += weight * off;
            *variance = (1.0 - weight) * (*variance + weight * off * off);
        };
        actor.samples += 1;
        let weight = SAMPLE_WEIGHT.max(1.0 / actor.samples as f64);
        sample(&mut actor.mean_ns, &mut actor.variance, response, weight);
        actor.work_mean_ns += weight * (worked as f64 - actor.work_mean_ns);
        if self.discipline != Discipline::Hybrid {
            return;
        }
        let is_drr = server as usize >= servers - self.drr_servers;
        self.busy_ns[usize::from(is_drr)] += worked as f64;
        if !is_drr {
            sample(
                &mut self.group_mean_ns,
                &mut self.group_variance,
                response,
                SAMPLE_WEIGHT,
            );
        }
        if now - self.looked < GROUP_WINDOW_NS {
            return;
        }
        let window = (now - self.looked) as f64;
        self.looked = now;
        self.balance_groups(window);
        let tail = self.group_mean_ns + 3.0 * self.group_variance.max(0.0).sqrt();
        let candidates = |drr: bool| {
            let actors = self.actors.iter().enumerate();
            actors.filter(move |(_, actor)| actor.is_drr == drr && actor.samples >= SAMPLES_ENOUGH)
        };
        if tail > self.threshold_ns {
            // One actor must stay, otherwise the first group would be idle.
            let many = candidates(false).count() > 1;
            let worst = candidates(false).max_by(|a, b| a.1.tail_ns().total_cmp(&b.1.tail_ns()));
            if let Some((index, _)) = worst.filter(|_| many) {
                self.move_to_drr(index);
            }
        } else {
            // Compared with its own tail. The first group's tail is low because the actor has left it, so the actor
            // would return immediately.
            let low = (1.0 - self.hysteresis) * self.threshold_ns;
            let best = candidates(true)
                .filter(|(_, actor)| actor.tail_ns() < low)
                .min_by(|a, b| a.1.tail_ns().total_cmp(&b.1.tail_ns()));
            if let Some((index, _)) = best {
                self.move_to_fcfs(index);
            }
        }
    }

    /// Gives a nearly saturated group a server of the other group, if that one has spare capacity.
    fn balance_groups(&mut self, window_ns: f64) {
        let servers = self.running.len();
        let drr = self.drr_servers;
        let fcfs = servers - drr;
        let use_of = |busy: f64, count: usize| {
            if count == 0 {
                1.0
            } else {
                busy / window_ns / count as f64
            }
        };
        let (fcfs_use, drr_use) = (use_of(self.busy_ns[0], fcfs), use_of(self.busy_ns[1], drr));
        self.busy_ns = [0.0; 2];
        let spare = |count: usize| (count as f64 - 1.0) / count.max(1) as f64;
        if self.drr_actors == 0 {
            self.drr_servers = 0;
        } else if drr_use >= 0.95 && fcfs > 1 && fcfs_use < spare(fcfs) {
            self.drr_servers += 1;
        } else if fcfs_use >= 0.95 && drr > 1 && drr_use < spare(drr) {
            self.drr_servers -= 1;
        }
    }

    fn move_to_drr(&mut self, index: usize) {
        let id = index as u32;
        let Some(actor) = self.actors.get_mut(index) else {
            return;
        };
        actor.is_drr = true;
        self.drr_actors += 1;
        self.drr_servers = self.drr_servers.max(1);
        let (moved, kept): (VecDeque<Request>, VecDeque<Request>) =
            self.line.drain(..).partition(|job| job.actor == id);
        self.line = kept;
        if !moved.is_empty() {
            actor.mailbox = moved;
            self.round.push_back(id);
        }
    }

    fn move_to_fcfs(&mut self, index: usize) {
        let id = index as u32;
        let Some(actor) = self.actors.get_mut(index) else {
            return;
        };
        actor.is_drr = false;
        actor.deficit_ns = 0.0;
        self.line.extend(actor.mailbox.drain(..));
        if self.round.front() == Some(&id) {
            self.has_quantum = false;
        }
        self.round.retain(|other| *other != id);
        self.drr_actors -= 1;
        if self.drr_actors == 0 {
            self.drr_servers = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(arrived: u64, work_ns: f64, actor: u32) -> Request {
        Request {
            arrived,
            work_ns,
            actor,
            source: 0,
            flow: u32::MAX,
        }
    }

    #[test]
    fn a_quota_interrupts_a_job() {
        let mut station = Station::new(&Queue::default(), 8);
        station.set_speed(
            1e6,
            1.0,
            Some(CpuQuota {
                quota_us: 4_000,
                period_us: 10_000,
            }),
        );
        let ms = |n: u64| n * 1_000_000;
        for (now, work_ms, done) in [
            (0, 3, 3),
            (0, 4, 4),
            (0, 5, 11),
            (2, 3, 11),
            (5, 1, 11),
            (0, 9, 21),
            (12, 2, 14),
        ] {
            assert_eq!(
                station.after(ms(now), ms(work_ms) as f64),
                ms(done),
                "{work_ms} ms at {now} ms"
            );
        }
    }

    #[test]
    fn a_full_ring_drops_and_servers_take_in_order() {
        let queue = Queue {
            servers: 2,
            ..Queue::default()
        };
        let mut station = Station::new(&queue, 2);
        assert!(station.take(job(0, 10.0, 0)) && station.take(job(0, 20.0, 0)));
        assert!(!station.take(job(0, 1.0, 0)));
        assert_eq!(station.start(0), Some((0, 10)));
        assert_eq!(station.start(0), Some((1, 20)));
        assert!(station.take(job(5, 1.0, 0)));
        assert_eq!(station.start(5), None);
        assert_eq!((station.waiting(), station.len()), (1, 3));
        assert_eq!(station.finish(0, 10).unwrap().1, 10);
        assert_eq!(station.start(10), Some((0, 11)));
    }

    #[test]
    fn deficit_round_robin_gives_each_actor_the_same_time() {
        let queue = Queue {
            discipline: Discipline::Drr,
            actors: 2,
            quantum_us: 10.0,
            ..Queue::default()
        };
        let mut station = Station::new(&queue, 10_000);
        for _ in 0..4_000 {
            station.take(job(0, 40_000.0, 0));
            station.take(job(0, 10_000.0, 1));
        }
        let (mut now, mut time) = (0, [0u64; 2]);
        while now < 40_000_000 {
            let (server, until) = station.start(now).unwrap();
            now = until;
            let (job, worked) = station.finish(server, now).unwrap();
            time[job.actor as usize] += worked;
        }
        let share = time[0] as f64 / (time[0] + time[1]) as f64;
        assert!((share - 0.5).abs() < 0.02, "{share}");
    }
}
