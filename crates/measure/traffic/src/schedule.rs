//! The due time of every packet: a lazily generated sequence that depends only on profile and seed, not on
//! the system under load.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::Error;
use crate::lengths::{FlowLengths, Mixture};
use crate::profile::{Capture, LengthSource, Phase, Profile, Timing};
use crate::replay::Replay;
use model::Random;

/// Times are in ns with this many binary places, so that rates that do not divide a second stay accurate: the
/// error is below 0.04 ms after an hour at 5 Mpps.
const PLACES: u32 = 16;
const NEVER: u64 = u64::MAX;

/// A due packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// Due time, in ns from the start of the run. 0 means as soon as there is room.
    pub(crate) at: u64,
    /// Its phase or capture, in the order of [`Schedule::sources`].
    pub(crate) source: u16,
    /// Its flow record.
    pub(crate) record: u32,
    /// The flow of the phase, or the packet of the capture.
    pub(crate) index: u32,
    /// Whether it is the last of its flow.
    pub(crate) last: bool,
    /// Whether it waits for room instead of being given up.
    pub(crate) patient: bool,
}

/// All packets of a profile, in the order of their due times.
#[derive(Debug)]
pub(crate) struct Schedule {
    heads: Vec<(Option<Due>, Source)>,
    /// Index of the source with the earliest packet.
    first: usize,
    tick: u64,
}

#[derive(Debug)]
enum Source {
    Phase(PhaseSchedule),
    Capture(CaptureSchedule),
}

impl Source {
    fn advance(&mut self) -> Option<Due> {
        match self {
            Source::Phase(phase) => phase.advance(),
            Source::Capture(capture) => capture.advance(),
        }
    }
}

impl Schedule {
    /// The schedule of a validated profile with loaded captures. `first_records` gives the start of each
    /// source's flow records.
    pub(crate) fn new(
        profile: &Profile,
        replays: &[Arc<Replay>],
        first_records: &[u32],
    ) -> Result<Schedule, Error> {
        let mut random = Random::new(profile.seed);
        let mut heads = Vec::new();
        for phase in &profile.phases {
            let source = heads.len() as u16;
            let seeded = Random::new(random.bits());
            let schedule = PhaseSchedule::new(phase, source, first_records[heads.len()], seeded)?;
            heads.push((None, Source::Phase(schedule)));
        }
        for (capture, replay) in profile.captures.iter().zip(replays) {
            let source = heads.len() as u16;
            let schedule = CaptureSchedule::new(capture, replay.clone(), source, first_records[heads.len()]);
            heads.push((None, Source::Capture(schedule)));
        }
        for (head, source) in &mut heads {
            *head = source.advance();
        }
        let mut schedule = Schedule {
            heads,
            first: 0,
            tick: profile.tick.as_nanos(),
        };
        schedule.find_first();
        Ok(schedule)
    }

    fn find_first(&mut self) {
        let due = |(head, _): &(Option<Due>, Source)| head.map_or(NEVER, |due| due.at);
        self.first = (0..self.heads.len())
            .min_by_key(|i| due(&self.heads[*i]))
            .unwrap_or(0);
    }

    /// The next packet, until [`Schedule::pop`].
    pub(crate) fn peek(&self) -> Option<Due> {
        let (head, _) = self.heads.get(self.first)?;
        let mut due = (*head)?;
        if self.tick > 0 {
            due.at = due.at.next_multiple_of(self.tick);
        }
        Some(due)
    }

    /// Advances to the next packet.
    pub(crate) fn pop(&mut self) {
        if let Some((head, source)) = self.heads.get_mut(self.first) {
            *head = source.advance();
        }
        if self.heads.len() > 1 {
            self.find_first();
        }
    }
}

#[derive(Debug)]
struct Active {
    due: u64,
    end: u64,
    index: u32,
    left: u64,
    /// Packets that it has sent of its train; 0 without trains.
    of_train: u32,
}

#[derive(Debug)]
struct PhaseSchedule {
    source: u16,
    first_record: u32,
    count: u32,
    started: u32,
    /// When the next flow starts; [`NEVER`] if none does.
    next_start: u64,
    start: u64,
    ramp: u64,
    end: u64,
    keep: u32,
    keep_from: u64,
    /// Gap between packets of one flow, or of all together.
    interval: u64,
    /// Active flows, next due first. All have the same interval, so a flow just served goes to the end,
    /// without sorting.
    active: VecDeque<Active>,
    /// Packets of a train, and the pause behind its last one.
    trains: Option<(u32, u64)>,
    /// Flows that pause, next due first: all pause equally long.
    pausing: VecDeque<Active>,
    /// With a total rate: when the next packet is due.
    together: Option<u64>,
    arrivals: Option<(f64, FlowLengths)>,
    random: Random,
}

fn fixed(ns: f64) -> u64 {
    (ns * f64::from(1u32 << PLACES)).round() as u64
}

impl PhaseSchedule {
    fn new(
        phase: &Phase,
        source: u16,
        first_record: u32,
        mut random: Random,
    ) -> Result<PhaseSchedule, Error> {
        let ns = |span: crate::units::Span| span.as_nanos() << PLACES;
        let start = ns(phase.start);
        let end = start + ns(phase.duration);
        let rate = phase.rate.or(phase.rate_per_flow).map_or(1.0, |rate| rate.0);
        let arrivals = match (phase.arrivals, &phase.lengths) {
            (Some(per_second), Some(LengthSource::Packets(n))) => {
                Some((per_second, FlowLengths::Constant(*n)))
            }
            (Some(per_second), Some(LengthSource::File(path))) => {
                Some((per_second, FlowLengths::Mixture(Mixture::load(path)?)))
            }
            _ => None,
        };
        let mut next_start = start;
        if let Some((per_second, _)) = &arrivals {
            next_start += fixed(random.exponential() / per_second * 1e9);
        }
        let mut schedule = PhaseSchedule {
            source,
            first_record,
            count: phase.flows,
            started: 0,
            next_start,
            start,
            ramp: ns(phase.ramp),
            end,
            keep: phase.keep.unwrap_or(u32::MAX),
            keep_from: start + phase.keep_from.map_or(0, ns),
            interval: fixed(1e9 / rate).max(1),
            active: VecDeque::new(),
            trains: phase.trains.map(|trains| (trains.packets, ns(trains.pause))),
            pausing: VecDeque::new(),
            together: phase.rate.map(|_| start),
            arrivals,
            random,
        };
        if schedule.next_start >= schedule.end_of(0) {
            schedule.next_start = NEVER;
        }
        Ok(schedule)
    }

    /// When flow `index` ends at the latest.
    fn end_of(&self, index: u32) -> u64 {
        if index >= self.keep {
            self.end.min(self.keep_from)
        } else {
            self.end
        }
    }

    /// Starts the next flow.
    fn start_flow(&mut self) -> Active {
        let index = self.started;
        self.started += 1;
        let flow = Active {
            due: self.next_start,
            end: self.end_of(index),
            index,
            left: match &self.arrivals {
                Some((_, lengths)) => u64::from(lengths.draw(&mut self.random)),
                None => u64::MAX,
            },
            of_train: 0,
        };
        self.next_start = if self.started == self.count {
            NEVER
        } else if let Some((per_second, _)) = &self.arrivals {
            self.next_start + fixed(self.random.exponential() / per_second * 1e9)
        } else {
            // Flows with a rate of their own start evenly spread over one interval, or one train and its pause, not in one
            // burst.
            let period = match (self.together, self.trains) {
                (Some(_), _) => 0,
                (None, Some((packets, pause))) => self
                    .interval
                    .saturating_mul(u64::from(packets) - 1)
                    .saturating_add(pause),
                (None, None) => self.interval,
            };
            let spread = (u128::from(period) * u128::from(self.started) / u128::from(self.count)) as u64;
            self.start
                + self
                    .ramp
                    .saturating_mul(u64::from(self.started))
                    .saturating_add(spread)
        };
        if self.next_start >= self.end_of(self.started) {
            self.next_start = NEVER;
        }
        flow
    }

    fn advance(&mut self) -> Option<Due> {
        match self.together {
            Some(at) => self.advance_together(at),
            None => self.advance_each(),
        }
    }

    fn due(&self, at: u64, index: u32, last: bool) -> Option<Due> {
        Some(Due {
            at: at >> PLACES,
            source: self.source,
            record: self.first_record + index,
            index,
            last,
            patient: false,
        })
    }

    fn advance_each(&mut self) -> Option<Due> {
        let next = |flows: &VecDeque<Active>| flows.front().map_or(NEVER, |flow| flow.due);
        let (active, pausing) = (next(&self.active), next(&self.pausing));
        let mut flow = if self.next_start != NEVER && self.next_start <= active.min(pausing) {
            self.start_flow()
        } else if pausing < active {
            self.pausing.pop_front()?
        } else {
            self.active.pop_front()?
        };
        let (at, index) = (flow.due, flow.index);
        flow.left -= 1;
        let (next, gap) = match self.trains {
            Some((packets, pause)) if flow.of_train + 1 == packets => {
                flow.of_train = 0;
                (&mut self.pausing, pause)
            }
            Some(_) => {
                flow.of_train += 1;
                (&mut self.active, self.interval)
            }
            None => (&mut self.active, self.interval),
        };
        flow.due = flow.due.saturating_add(gap);
        let last = flow.left == 0 || flow.due >= flow.end;
        if !last {
            next.push_back(flow);
        }
        self.due(at, index, last)
    }

    fn advance_together(&mut self, mut at: u64) -> Option<Due> {
        loop {
            if at >= self.end {
                return None;
            }
            while self.next_start <= at {
                let flow = self.start_flow();
                self.active.push_back(flow);
            }
            while self.active.front().is_some_and(|flow| flow.end <= at) {
                self.active.pop_front();
            }
            let Some(mut flow) = self.active.pop_front() else {
                if self.next_start == NEVER {
                    return None;
                }
                at = self.next_start;
                continue;
            };
            flow.left -= 1;
            // Its turn comes again after all others.
            let again = at + self.interval * (self.active.len() as u64 + 1);
            let last = flow.left == 0 || again >= flow.end;
            let index = flow.index;
            if !last {
                self.active.push_back(flow);
            }
            self.together = Some(at + self.interval);
            return self.due(at, index, last);
        }
    }
}

#[derive(Debug)]
struct CaptureSchedule {
    source: u16,
    first_record: u32,
    replay: Arc<Replay>,
    start: u64,
    rounds: u32,
    round: u32,
    next: u32,
    /// Packets of the whole replay, for constant rates.
    sent: u64,
    timing: Timing,
    speed: f64,
    rate: Option<f64>,
}

impl CaptureSchedule {
    fn new(capture: &Capture, replay: Arc<Replay>, source: u16, first_record: u32) -> CaptureSchedule {
        CaptureSchedule {
            source,
            first_record,
            replay,
            start: capture.start.as_nanos(),
            rounds: capture.repeat,
            round: 0,
            next: 0,
            sent: 0,
            timing: capture.timing,
            speed: capture.speed,
            rate: capture.rate.map(|rate| rate.0),
        }
    }

    fn advance(&mut self) -> Option<Due> {
        if self.round >= self.rounds {
            return None;
        }
        let index = self.next;
        let packet = &self.replay.packets[index as usize];
        let offset = match (self.timing, self.rate) {
            (Timing::Fast, _) => 0.0,
            (Timing::Captured, Some(rate)) => self.sent as f64 * 1e9 / rate,
            (Timing::Captured, None) => {
                (self.replay.round_ns() * u64::from(self.round) + packet.offset_ns) as f64 / self.speed
            }
        };
        let due = Due {
            at: self.start + offset as u64,
            source: self.source,
            record: self.first_record + packet.stream,
            index,
            last: false,
            patient: self.timing == Timing::Fast,
        };
        self.sent += 1;
        self.next += 1;
        if self.next as usize == self.replay.packets.len() {
            self.next = 0;
            self.round += 1;
        }
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Trains;
    use crate::units::{Rate, Span};
    use proptest::prelude::*;

    fn all(profile: &Profile) -> Vec<Due> {
        profile.check().unwrap();
        let mut records = Vec::new();
        let mut next = 0;
        for phase in &profile.phases {
            records.push(next);
            next += phase.flows;
        }
        let mut schedule = Schedule::new(profile, &[], &records).unwrap();
        let mut out = Vec::new();
        while let Some(due) = schedule.peek() {
            out.push(due);
            schedule.pop();
        }
        out
    }

    fn phase() -> Phase {
        Phase {
            duration: Span::from_millis(1000),
            rate: Some(Rate(1000.0)),
            ..Phase::default()
        }
    }

    fn run(phase: Phase) -> Vec<Due> {
        all(&Profile {
            phases: vec![phase],
            ..Profile::default()
        })
    }

    #[test]
    fn a_constant_rate_is_exact() {
        for pps in [1_000.0, 50_000.0, 499_999.0, 3_000_000.0] {
            let dues = run(Phase {
                rate: Some(Rate(pps)),
                flows: 7,
                ..phase()
            });
            assert!((dues.len() as f64 - pps).abs() <= 1.0, "{pps}: {}", dues.len());
            for (k, due) in dues.iter().enumerate() {
                assert!(
                    (due.at as f64 - k as f64 * 1e9 / pps).abs() < 20.0,
                    "packet {k} of {pps}"
                );
            }
        }
    }

    #[test]
    fn a_phase_ramps_up_and_all_but_four_flows_end() {
        let dues = run(Phase {
            duration: Span::from_millis(60_000),
            flows: 32,
            ramp: Span::from_millis(1000),
            keep: Some(4),
            keep_from: Some(Span::from_millis(45_000)),
            rate: None,
            rate_per_flow: Some(Rate(100.0)),
            ..phase()
        });
        let flows_in = |second: u64| {
            let mut flows: Vec<u32> = dues
                .iter()
                .filter(|d| d.at / 1_000_000_000 == second)
                .map(|d| d.index)
                .collect();
            flows.sort_unstable();
            flows.dedup();
            flows.len()
        };
        assert_eq!(
            [flows_in(0), flows_in(9), flows_in(31), flows_in(44)],
            [1, 10, 32, 32]
        );
        assert_eq!([flows_in(45), flows_in(59)], [4, 4]);
        assert_eq!(
            dues.iter().filter(|d| d.last).count(),
            32,
            "each flow has one last packet"
        );
        let of_first = dues.iter().filter(|d| d.index == 0).count();
        assert_eq!(of_first, 6000, "100 a second for 60 s");
    }

    #[test]
    fn arrivals_have_their_rate_and_length() {
        let dues = run(Phase {
            duration: Span::from_millis(10_000),
            flows: 100_000,
            arrivals: Some(500.0),
            lengths: Some(LengthSource::Packets(3)),
            rate: None,
            rate_per_flow: Some(Rate(1000.0)),
            ..phase()
        });
        let flows = dues.iter().map(|d| d.index).max().unwrap() + 1;
        assert!((4700..5300).contains(&flows), "{flows} flows");
        let last = dues.iter().filter(|d| d.last).count();
        assert!(flows as usize - last <= 2, "only the last few may not have ended");
        assert!(
            dues.len() >= 3 * (last - 2),
            "the end of the phase cuts off two flows at most"
        );
    }

    #[test]
    fn flows_with_trains_pause_between_them() {
        let dues = run(Phase {
            flows: 20,
            trains: Some(Trains {
                packets: 4,
                pause: Span::from_millis(97),
            }),
            rate: None,
            rate_per_flow: Some(Rate(1000.0)),
            ..phase()
        });
        // Ten trains of each in a second, spread evenly.
        assert_eq!(dues.len(), 20 * 10 * 4);
        let begun = dues.iter().filter(|due| due.at < 50_000_000);
        assert_eq!(begun.map(|due| due.index).max(), Some(9));
        for index in 0..20 {
            let of: Vec<u64> = dues
                .iter()
                .filter(|due| due.index == index)
                .map(|due| due.at)
                .collect();
            let gaps: Vec<u64> = of
                .windows(2)
                .map(|pair| (pair[1] - pair[0]) / 1_000_000)
                .collect();
            assert_eq!(gaps[..5], [1, 1, 1, 97, 1], "flow {index}");
        }
        assert_eq!(dues.iter().filter(|due| due.last).count(), 20);
    }

    #[test]
    fn a_tick_groups_packets_into_bursts() {
        let profile = Profile {
            tick: Span::from_millis(10),
            phases: vec![phase()],
            ..Profile::default()
        };
        let dues = all(&profile);
        assert_eq!(dues.len(), 1000);
        assert!(dues.iter().all(|d| d.at % 10_000_000 == 0));
    }

    #[test]
    fn the_seed_determines_the_schedule() {
        let with = |seed| {
            let phase = Phase {
                flows: 1000,
                arrivals: Some(500.0),
                lengths: Some(LengthSource::Packets(3)),
                ..phase()
            };
            all(&Profile {
                seed,
                phases: vec![phase],
                ..Profile::default()
            })
        };
        assert_eq!(with(1), with(1));
        assert_ne!(with(1), with(2));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn packets_are_in_order_and_within_their_phase(
            phases in prop::collection::vec(
                (1u32..20, 0u64..50, 1u64..300, 10.0f64..20_000.0, any::<bool>(), 0u64..200,
                 prop::option::of((0u32..5, 0u64..300)), prop::option::of(1u32..20),
                 prop::option::of((1u32..5, 0u64..100))),
                1..4,
            ),
        ) {
            let phases = phases.into_iter();
            let phases: Vec<Phase> = phases.map(|(flows, ramp, duration, rate, each, start, keep, lengths, trains)| {
                let arrivals = lengths.filter(|_| keep.is_none() && ramp == 0);
                Phase {
                    flows,
                    ramp: Span::from_millis(ramp),
                    start: Span::from_millis(start),
                    duration: Span::from_millis(duration),
                    rate: (!each).then_some(Rate(rate)),
                    rate_per_flow: each.then_some(Rate(rate)),
                    keep: keep.map(|k| k.0),
                    keep_from: keep.map(|k| Span::from_millis(k.1)),
                    arrivals: arrivals.map(|_| 200.0),
                    lengths: arrivals.map(LengthSource::Packets),
                    trains: trains.filter(|_| each).map(|(packets, pause)| Trains {
                        packets,
                        pause: Span::from_millis(pause),
                    }),
                    ..Phase::default()
                }
            }).collect();
            let profile = Profile { phases, ..Profile::default() };
            let dues = all(&profile);
            prop_assert!(dues.is_sorted_by_key(|d| d.at));
            let mut ended = std::collections::HashSet::new();
            for due in &dues {
                let phase = &profile.phases[usize::from(due.source)];
                let from = phase.start.as_nanos();
                prop_assert!(due.at >= from && due.at < from + phase.duration.as_nanos());
                prop_assert!(due.index < phase.flows);
                if phase.keep.is_some_and(|keep| due.index >= keep) {
                    prop_assert!(due.at < from + phase.keep_from.unwrap().as_nanos());
                }
                if let Some(LengthSource::Packets(n)) = phase.lengths {
                    let sent = dues.iter().filter(|d| d.record == due.record).count();
                    prop_assert!(sent <= n as usize);
                }
                prop_assert!(!ended.contains(&due.record), "a packet after the last one");
                if due.last {
                    ended.insert(due.record);
                }
            }
        }
    }
}
