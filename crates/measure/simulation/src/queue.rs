//! An instance's queue: servers, and the scheduler of actors that says which of them serves what.

use std::collections::VecDeque;

use actor_scheduling::{
    ActorId, CoreId, Decision, Ended, Group, Line, Moments, Round, Scheduler, Served, Settings,
};
use engine::CpuQuota;
use model::Nanos;

use crate::scenario::Queue;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) arrived: u64,
    pub(crate) work_ns: f64,
    pub(crate) actor: u32,
    pub(crate) source: u32,
    pub(crate) flow: u32,
}

/// A request that waits, perhaps after it was interrupted.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    request: Request,
    left_ns: f64,
    /// How long it has run.
    ran_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    of: Waiting,
    from: Group,
    since: u64,
    /// What is left of it after this.
    left_ns: f64,
}

/// An instance's queue and servers.
#[derive(Debug)]
pub(crate) struct Station {
    scheduler: Scheduler,
    round: Round,
    ring: usize,
    line: Line<Waiting>,
    /// By actor.
    mailboxes: Vec<VecDeque<Waiting>>,
    running: Vec<Option<Running>>,
    free: Vec<u32>,
    waiting: usize,
    in_service: usize,
    work_ns: f64,
    /// How many times as fast as others its servers are.
    speed: f64,
    /// Run time and period of the quota, in nanoseconds.
    quota: Option<(u64, u64)>,
    switch_ns: f64,
    last_actor: Vec<u32>,
}

impl Station {
    pub(crate) fn new(queue: &Queue, ring: usize) -> Station {
        let servers = queue.servers as usize;
        let micros = |us: f64| Nanos((us * 1e3).round() as u64);
        Station {
            scheduler: Scheduler::new(Settings {
                policy: queue.discipline,
                cores: queue.servers as u16,
                actors: queue.actors,
                quantum: micros(queue.quantum_us),
                tail_threshold: micros(queue.tail_threshold_us),
                hysteresis: queue.hysteresis,
            }),
            round: Round::new(queue.actors),
            ring,
            line: Line::new(queue.queues, queue.servers as u16),
            mailboxes: vec![VecDeque::new(); queue.actors as usize],
            running: vec![None; servers],
            // The first server is used first.
            free: (0..queue.servers).rev().collect(),
            waiting: 0,
            in_service: 0,
            work_ns: 1_000.0,
            speed: 1.0,
            quota: None,
            switch_ns: queue.switch_us * 1e3,
            last_actor: vec![u32::MAX; servers],
        }
    }

    /// The same with servers that are so many times as fast.
    pub(crate) fn times_as_fast(self, speed: f64) -> Station {
        Station { speed, ..self }
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

    /// Response times of an actor.
    pub(crate) fn response_of(&self, actor: ActorId) -> Moments {
        let of = self.scheduler.statistics(actor);
        of.map_or(Moments::of_last(1), |of| *of.response())
    }

    /// The actor whose job a server runs.
    pub(crate) fn runs_on(&self, server: u32) -> Option<u32> {
        let running = self.running.get(server as usize)?.as_ref()?;
        Some(running.of.request.actor)
    }

    /// Enqueues a job that waited elsewhere, also if the ring is full.
    pub(crate) fn put(&mut self, job: Request) {
        self.wait(Waiting {
            left_ns: job.work_ns / self.speed,
            ran_ns: 0,
            request: job,
        });
    }

    /// Enqueues a job; false if the ring is full.
    pub(crate) fn take(&mut self, job: Request) -> bool {
        if self.waiting >= self.ring {
            return false;
        }
        self.put(job);
        true
    }

    fn wait(&mut self, of: Waiting) {
        self.waiting += 1;
        let actor = ActorId(of.request.actor);
        match self.mailboxes.get_mut(actor.index()) {
            Some(mailbox) if self.scheduler.group_of(actor) == Group::Drr => {
                if mailbox.is_empty() {
                    self.round.enter(actor);
                }
                mailbox.push_back(of);
            }
            _ => self.line.push(flow_of(&of.request), of),
        }
    }

    /// Starts the next job on a free server, if there are both; returns the server, and when it ends or is interrupted.
    pub(crate) fn start(&mut self, now: u64) -> Option<(u32, u64)> {
        for place in (0..self.free.len()).rev() {
            let server = self.free[place];
            let core = CoreId(server as u16);
            let groups = self.scheduler.serves(core);
            let next = groups
                .iter()
                .find_map(|&group| Some((group, self.next_of(core, group)?)));
            let Some((from, of)) = next else { continue };
            self.free.remove(place);
            self.waiting -= 1;
            self.in_service += 1;
            let slice = self
                .scheduler
                .slice()
                .map_or(f64::INFINITY, |slice| slice.0 as f64);
            let mut work = of.left_ns.min(slice);
            let left_ns = of.left_ns - work;
            let last = &mut self.last_actor[server as usize];
            if from == Group::Drr && *last != of.request.actor {
                work += self.switch_ns;
            }
            *last = of.request.actor;
            self.running[server as usize] = Some(Running {
                of,
                from,
                since: now,
                left_ns,
            });
            return Some((server, self.after(now, work)));
        }
        None
    }

    fn next_of(&mut self, core: CoreId, group: Group) -> Option<Waiting> {
        if group == Group::Fcfs {
            return self.line.take(self.line.source(core)?);
        }
        let scheduler = &self.scheduler;
        let actor = self.round.next(|actor| scheduler.turn(actor))?;
        let mailbox = self.mailboxes.get_mut(actor.index())?;
        let next = mailbox.pop_front();
        if mailbox.is_empty() {
            self.round.emptied(actor);
        }
        next
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

    /// Ends or interrupts a server's job; returns the time that it ran, in nanoseconds, and the job if it has ended.
    pub(crate) fn finish(&mut self, server: u32, now: u64) -> Option<(Option<Request>, u64)> {
        let running = self.running.get_mut(server as usize)?.take()?;
        self.in_service -= 1;
        self.free.push(server);
        let ran = now - running.since;
        let (of, request) = (running.of, running.of.request);
        let has_ended = running.left_ns <= 0.0;
        let service = of.ran_ns + ran;
        let served = Served {
            core: CoreId(server as u16),
            from: running.from,
            actor: ActorId(request.actor),
            ran: Nanos(ran),
            ended: has_ended.then(|| Ended {
                response: Nanos(now - request.arrived),
                service: Nanos(service),
            }),
        };
        if !has_ended {
            self.wait(Waiting {
                request,
                left_ns: running.left_ns,
                ran_ns: service,
            });
        }
        let mut cores_change = false;
        for decision in self.scheduler.step(&served, Nanos(now)) {
            match *decision {
                Decision::Actor(actor, group) => {
                    move_waiting(&mut self.line, &mut self.mailboxes, &mut self.round, actor, group);
                }
                Decision::Core(..) => cores_change = true,
            }
        }
        if cores_change {
            self.line.serve_by(self.scheduler.line_cores());
        }
        Some((has_ended.then_some(request), ran))
    }
}

/// The flow by which a request is steered. Those of an aggregate belong to many flows: its arrival stands for one.
fn flow_of(request: &Request) -> u64 {
    match request.flow {
        u32::MAX => request.arrived,
        flow => flow.into(),
    }
}

/// Has the waiting messages of an actor go with it.
fn move_waiting(
    line: &mut Line<Waiting>,
    mailboxes: &mut [VecDeque<Waiting>],
    round: &mut Round,
    actor: ActorId,
    group: Group,
) {
    let Some(mailbox) = mailboxes.get_mut(actor.index()) else {
        return;
    };
    match group {
        Group::Drr => {
            let mut moved = line.extract(|of| of.request.actor == actor.0);
            if !moved.is_empty() {
                moved.sort_by_key(|of| of.request.arrived);
                *mailbox = moved.into();
                round.enter(actor);
            }
        }
        Group::Fcfs => {
            if !mailbox.is_empty() {
                round.leave(actor);
            }
            for of in mailbox.drain(..) {
                line.push(flow_of(&of.request), of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use actor_scheduling::PolicyName;

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

    /// Requests of one flow are of one server; the other one steals them, and serves its own first.
    #[test]
    fn a_server_without_requests_steals_from_another_one() {
        let queue = Queue {
            servers: 2,
            queues: actor_scheduling::Queues::PerCore,
            ..Queue::default()
        };
        let of = |flow, work_ns| Request {
            flow,
            ..job(0, work_ns, 0)
        };
        let is_of_first = |flow: &u32| {
            let mut station = Station::new(&queue, 8);
            station.take(of(*flow, 1.0));
            station.line.source(CoreId(0)).is_some_and(|of| !of.is_stolen)
        };
        let first = (0..).find(is_of_first).unwrap();
        let second = (0..).find(|flow| !is_of_first(flow)).unwrap();
        let mut station = Station::new(&queue, 8);
        for (flow, work_ns) in [(first, 10.0), (first, 20.0), (first, 30.0), (second, 5.0)] {
            station.take(of(flow, work_ns));
        }
        assert_eq!(station.start(0), Some((0, 10)));
        assert_eq!(station.start(0), Some((1, 5)), "its own before the older ones");
        station.finish(1, 5).unwrap();
        assert_eq!(station.start(5), Some((1, 25)), "stolen");
        station.finish(0, 10).unwrap();
        assert_eq!(station.start(10), Some((0, 40)));
        assert_eq!(station.start(10), None);
    }

    #[test]
    fn deficit_round_robin_gives_each_actor_the_same_time() {
        let queue = Queue {
            discipline: PolicyName::Drr,
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
            time[job.unwrap().actor as usize] += worked;
        }
        let share = time[0] as f64 / (time[0] + time[1]) as f64;
        assert!((share - 0.5).abs() < 0.02, "{share}");
    }

    #[test]
    fn a_slice_interrupts_a_job_and_its_rest_comes_after_the_others() {
        let queue = Queue {
            discipline: PolicyName::Preemptive,
            actors: 2,
            quantum_us: 10.0,
            ..Queue::default()
        };
        let mut station = Station::new(&queue, 8);
        station.take(job(0, 25_000.0, 0));
        station.take(job(0, 8_000.0, 1));
        let (mut now, mut ended) = (0, Vec::new());
        while let Some((server, until)) = station.start(now) {
            now = until;
            if let (Some(job), _) = station.finish(server, now).unwrap() {
                ended.push((job.actor, now));
            }
        }
        assert_eq!(ended, [(1, 18_000), (0, 33_000)]);
        assert_eq!(station.len(), 0);
    }
}
