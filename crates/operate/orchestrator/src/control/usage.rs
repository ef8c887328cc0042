//! What the containers of instances use: their control groups, read in turns.

use std::collections::HashMap;

use model::{Nanos, Slot};
use switch::SlotCounters;

use super::rota::Rota;

/// In which time each instance is looked at, whether its control group is due: in less than [`WAIT`].
const LOOK_PERIOD: Nanos = Nanos::from_millis(5);
/// Interval of reading an instance's control group while packets wait in its ring and it takes none: short enough to tell a
/// throttled function from one that hangs.
const USAGE_PERIOD_WAITING: Nanos = Nanos::from_millis(20);
/// The same, while it takes packets from its ring. Throttled time is then as the kernel reports it.
const USAGE_PERIOD: Nanos = Nanos::from_millis(200);
/// The same, while its ring is empty.
const USAGE_PERIOD_IDLE: Nanos = Nanos::from_secs(1);
/// From how long on an instance that takes no packets is observed closely. Others had its CPU for so long, often.
const WAIT: Nanos = Nanos::from_millis(10);
/// For how long a program is excused that waits for a disk: its code may have to be read again. Then it hangs there.
const DISK_LIMIT: Nanos = Nanos::from_secs(1);
/// Averaging span of an instance's CPU time: many quota periods.
const CPU_SPAN: Nanos = Nanos::from_secs(1);
/// Of the instances that are looked at in a turn, one in so many is read, and one at least: control groups that become due
/// together are read one after the other. Those of instances that take no packets are read at once.
const READ_OF: usize = 8;

/// An instance with a container.
pub(super) struct Watched<'a> {
    pub(super) slot: Slot,
    /// The name of its container.
    pub(super) name: &'a str,
    /// The process of its program.
    pub(super) pid: Option<u32>,
}

/// What all instances use, as of the last time that each was read.
#[derive(Debug)]
pub(super) struct Usages {
    notes: HashMap<Slot, UsageNote>,
    looks: Rota,
}

impl Default for Usages {
    fn default() -> Usages {
        Usages {
            notes: HashMap::new(),
            looks: Rota::new(LOOK_PERIOD),
        }
    }
}

impl Usages {
    /// The slot's instance is gone.
    pub(super) fn forget(&mut self, slot: Slot) {
        self.notes.remove(&slot);
    }

    /// CPUs that a slot's instance uses.
    pub(super) fn cpus(&self, slot: Slot) -> Option<f64> {
        self.notes.get(&slot)?.cpus
    }

    /// CPU time that a slot's instance has used, in seconds.
    pub(super) fn cpu_time(&self, slot: Slot) -> Option<f64> {
        self.notes.get(&slot).map(|note| note.cpu_ns as f64 / 1e9)
    }

    /// Looks at the instances whose turn it is, reads the control groups that are due, and adds each instance's memory and
    /// its throttled and waiting time to its counters. `watched` gives the instances by number, of so many; `usage` reads
    /// the control group of a container.
    pub(super) fn look<'a>(
        &mut self,
        (count, watched): (usize, impl Fn(usize) -> Option<Watched<'a>>),
        slots: &mut [SlotCounters],
        mut usage: impl FnMut(&str) -> Option<engine::Usage>,
        now: Nanos,
    ) {
        let looked_at = self.looks.due(count, now);
        let mut may_read = (looked_at.len() / READ_OF).max(1);
        for of in looked_at.filter_map(watched) {
            let Some(counters) = slots.get_mut(of.slot.index()) else {
                continue;
            };
            let note = self.notes.entry(of.slot).or_default();
            let period = note.period(counters, now);
            let is_close = period == USAGE_PERIOD_WAITING;
            if now.since(note.read_at) >= period && (is_close || may_read > 0) {
                may_read = may_read.saturating_sub(usize::from(!is_close));
                match usage(of.name) {
                    Some(usage) => note.note(&usage, || of.pid.map(Threads::of).unwrap_or_default(), now),
                    None => note.read_at = now,
                }
            }
            counters.throttled_ns = note.held_up_ns;
            counters.container_memory_bytes = note.memory_bytes;
        }
    }
}

/// The usage of an instance's control group, as the engine reports it.
#[derive(Clone, Copy, Debug, Default)]
struct UsageNote {
    read_at: Nanos,
    /// What the instance had taken from its ring at the last look, and since when packets wait there untouched.
    consumed: u64,
    waits_since: Option<Nanos>,
    memory_bytes: Option<u64>,
    /// Nanoseconds in which it could not run: throttled, or waiting for a busy CPU.
    held_up_ns: u64,
    /// The part of that from the present wait, of which the kernel has not told yet.
    held_up_so_far_ns: u64,
    /// For how long its threads had waited for a CPU, while packets wait untouched.
    run_delay_ns: Option<u64>,
    throttled_ns: u64,
    cpu_ns: u64,
    /// CPUs used, averaged over the last [`CPU_SPAN`].
    cpus: Option<f64>,
    /// Start of the present span, and the CPU time used until then.
    cpu_since: Option<(Nanos, u64)>,
}

impl UsageNote {
    /// After which time the control group is due again.
    fn period(&mut self, counters: &SlotCounters, now: Nanos) -> Nanos {
        let takes = std::mem::replace(&mut self.consumed, counters.consumed) != counters.consumed;
        if counters.ring_used == 0 {
            self.waits_since = None;
            return USAGE_PERIOD_IDLE;
        }
        if takes {
            self.waits_since = None;
        }
        match now.since(*self.waits_since.get_or_insert(now)) >= WAIT {
            true => USAGE_PERIOD_WAITING,
            false => USAGE_PERIOD,
        }
    }

    /// Processes a new report of the engine. `threads` tells what the threads of the program wait for; it is asked only
    /// while packets wait untouched.
    fn note(&mut self, usage: &engine::Usage, threads: impl FnOnce() -> Threads, now: Nanos) {
        // Before, it may have had nothing to do.
        let passed = now.since(self.read_at.max(self.waits_since.unwrap_or(now))).0;
        let threads = (passed > 0).then(threads);
        let throttled = usage.throttled_ns.saturating_sub(self.throttled_ns);
        let before = std::mem::replace(&mut self.run_delay_ns, threads.as_ref().map(|of| of.run_delay_ns));
        let delayed = match (before, self.run_delay_ns) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => 0,
        };
        let state = threads.map_or(ThreadState::Sleeps, |of| of.state);
        let cannot_run = usage.cpu_ns == self.cpu_ns && state != ThreadState::Sleeps;
        if cannot_run {
            let excused = match state {
                ThreadState::WantsDisk => passed.min(DISK_LIMIT.0.saturating_sub(self.held_up_so_far_ns)),
                _ => passed,
            };
            self.held_up_ns += excused;
            self.held_up_so_far_ns += excused;
        } else {
            // The kernel tells of throttling and of a wait for a CPU when they end. Most was already counted.
            let told = throttled + delayed.min(passed + self.held_up_so_far_ns);
            self.held_up_ns += told.saturating_sub(self.held_up_so_far_ns);
            self.held_up_so_far_ns = 0;
        }
        self.read_at = now;
        self.throttled_ns = usage.throttled_ns;
        self.cpu_ns = usage.cpu_ns;
        let (since, before) = *self.cpu_since.get_or_insert((now, usage.cpu_ns));
        let span = now.since(since);
        if span >= CPU_SPAN {
            self.cpus = Some(usage.cpu_ns.saturating_sub(before) as f64 / span.0 as f64);
            self.cpu_since = Some((now, usage.cpu_ns));
        }
        self.memory_bytes = (usage.memory_bytes > 0).then_some(usage.memory_bytes);
    }
}

/// What keeps a program from running, at this moment: that of its threads which is nearest to running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum ThreadState {
    /// All sleep: they want nothing.
    #[default]
    Sleeps,
    /// One waits for a disk, or for its memory.
    WantsDisk,
    /// One runs, or waits for a CPU.
    WantsCpu,
}

/// What the threads of a program wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Threads {
    state: ThreadState,
    /// For how long they have waited for a CPU since they began, together. What goes on is not in it.
    run_delay_ns: u64,
}

impl Threads {
    /// Those of a process; none if there is no such process.
    fn of(pid: u32) -> Threads {
        let mut threads = Threads::default();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let stat = read("stat");
            // The state follows the name, which may contain any character.
            let state = match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
                Some('R') => ThreadState::WantsCpu,
                Some('D') => ThreadState::WantsDisk,
                _ => ThreadState::Sleeps,
            };
            threads.state = threads.state.max(state);
            let delay = read("schedstat");
            threads.run_delay_ns += delay
                .split_whitespace()
                .nth(1)
                .and_then(|word| word.parse::<u64>().ok())
                .unwrap_or(0);
        }
        threads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_averaged_over_whole_seconds() {
        let mut note = UsageNote::default();
        let mut at = |ms: u64, cpu_ms: u64| {
            let usage = engine::Usage {
                cpu_ns: cpu_ms * 1_000_000,
                ..engine::Usage::default()
            };
            note.note(&usage, || SLEEPS, Nanos::from_millis(ms));
            note.cpus
        };
        // Usage before the first reading does not count.
        assert_eq!(at(5_000, 700), None);
        assert_eq!(at(5_900, 790), None);
        assert_eq!(at(6_000, 800), Some(0.1));
        assert_eq!(at(6_999, 1_700), Some(0.1));
        assert_eq!(at(8_000, 1_800), Some(0.5));
    }

    const WANTS_CPU: Threads = Threads {
        state: ThreadState::WantsCpu,
        run_delay_ns: 0,
    };
    const SLEEPS: Threads = Threads {
        state: ThreadState::Sleeps,
        run_delay_ns: 0,
    };

    /// A note of an instance whose packets wait from the start; reports and what follows from them, in milliseconds.
    fn waiting() -> impl FnMut(u64, u64, u64, Threads) -> u64 {
        let mut note = UsageNote {
            waits_since: Some(Nanos::ZERO),
            ..UsageNote::default()
        };
        move |ms, cpu_ns, throttled_ms, threads| {
            let usage = engine::Usage {
                cpu_ns,
                throttled_ns: throttled_ms * 1_000_000,
                ..engine::Usage::default()
            };
            note.note(&usage, || threads, Nanos::from_millis(ms));
            note.held_up_ns / 1_000_000
        }
    }

    #[test]
    fn time_without_a_cpu_is_counted_once() {
        let mut at = waiting();
        assert_eq!(at(20, 5, 0, WANTS_CPU), 0, "it ran");
        assert_eq!(at(40, 5, 0, WANTS_CPU), 20, "others had the CPU");
        assert_eq!(at(60, 5, 0, SLEEPS), 20, "it wanted none: it hangs");
        assert_eq!(at(80, 5, 0, WANTS_CPU), 40);
        assert_eq!(
            at(100, 6, 15, WANTS_CPU),
            40,
            "most of the wait was throttling, told at its end"
        );
        assert_eq!(at(120, 7, 45, WANTS_CPU), 70);
    }

    #[test]
    fn a_wait_for_a_cpu_between_two_looks_is_counted_once() {
        let delayed = |ms: u64| Threads {
            run_delay_ns: ms * 1_000_000,
            ..WANTS_CPU
        };
        let mut at = waiting();
        assert_eq!(at(20, 1, 0, delayed(500)), 0, "what was before does not count");
        assert_eq!(
            at(40, 2, 0, delayed(515)),
            15,
            "it had the CPU for a quarter of the time"
        );
        assert_eq!(at(60, 2, 0, delayed(515)), 35, "none at all");
        assert_eq!(at(80, 2, 0, delayed(515)), 55);
        assert_eq!(at(100, 3, 0, delayed(570)), 70, "which is told at its end");
        assert_eq!(
            at(120, 4, 0, delayed(700)),
            90,
            "several threads wait no longer than one"
        );
    }

    #[test]
    fn a_program_that_waits_for_a_disk_is_excused_for_a_second() {
        let mut at = waiting();
        let disk = Threads {
            state: ThreadState::WantsDisk,
            run_delay_ns: 0,
        };
        for ms in 1..=100 {
            at(ms * 20, 0, 0, disk);
        }
        assert_eq!(at(2_020, 0, 0, disk), 1_000);
    }

    #[test]
    fn an_instance_that_takes_no_packets_is_observed_closely() {
        let mut note = UsageNote::default();
        let mut at = |ms: u64, ring_used: u64, consumed: u64| {
            let counters = SlotCounters {
                ring_used,
                consumed,
                ..SlotCounters::default()
            };
            note.period(&counters, Nanos::from_millis(ms))
        };
        assert_eq!(at(1, 0, 0), USAGE_PERIOD_IDLE);
        assert_eq!(at(2, 3, 5), USAGE_PERIOD, "it takes some");
        assert_eq!(at(11, 3, 5), USAGE_PERIOD, "it has not for 9 ms");
        assert_eq!(at(12, 3, 5), USAGE_PERIOD_WAITING);
        assert_eq!(at(13, 3, 6), USAGE_PERIOD, "it goes on");
        assert_eq!(at(23, 3, 6), USAGE_PERIOD_WAITING);
        assert_eq!(at(24, 0, 6), USAGE_PERIOD_IDLE);
    }

    #[test]
    fn time_with_nothing_to_do_is_not_waited() {
        let mut note = UsageNote::default();
        let usage = engine::Usage::default();
        note.note(&usage, || WANTS_CPU, Nanos::from_secs(1));
        assert_eq!(note.held_up_ns, 0);
        note.waits_since = Some(Nanos::from_millis(1_990));
        note.note(&usage, || WANTS_CPU, Nanos::from_secs(2));
        assert_eq!(
            note.held_up_ns, 10_000_000,
            "packets wait for 10 ms of this second"
        );
    }

    #[test]
    fn a_thread_that_works_is_runnable_and_one_that_sleeps_is_not() {
        // The kernel ends its list of threads early where one of them exits meanwhile, as those of other tests do.
        let is_seen = (0..1_000).any(|_| Threads::of(std::process::id()).state == ThreadState::WantsCpu);
        assert!(is_seen, "this very thread");
        assert_eq!(Threads::of(u32::MAX), Threads::default());
    }

    const INSTANCES: u16 = 64;

    /// How often control groups are read in a second of turns of 1 ms, how many at once at most, and the longest time
    /// between two readings of one. `ring` gives the packets that wait and those consumed, by milliseconds.
    fn reads(ring: impl Fn(u64) -> (u64, u64)) -> (usize, usize, Nanos) {
        let names: Vec<String> = (0..INSTANCES).map(|slot| slot.to_string()).collect();
        let mut slots = vec![SlotCounters::default(); INSTANCES.into()];
        let mut usages = Usages::default();
        let (mut all, mut most, mut longest) = (0, 0, Nanos::ZERO);
        let mut read_at = vec![None::<Nanos>; INSTANCES.into()];
        for ms in 1_000..6_000 {
            let now = Nanos::from_millis(ms);
            for counters in &mut slots {
                (counters.ring_used, counters.consumed) = ring(ms);
            }
            let watched = |at: usize| {
                Some(Watched {
                    slot: Slot(at as u16),
                    name: &names[at],
                    pid: None,
                })
            };
            let mut at_once = 0;
            let usage = |name: &str| {
                at_once += 1;
                let before = read_at[name.parse::<usize>().unwrap()].replace(now);
                longest = longest.max(before.map_or(Nanos::ZERO, |before| now.since(before)));
                Some(engine::Usage {
                    memory_bytes: ms,
                    ..engine::Usage::default()
                })
            };
            usages.look((names.len(), watched), &mut slots, usage, now);
            all += at_once;
            // At first all are new.
            if ms >= 2_000 {
                most = most.max(at_once);
            }
        }
        let newest = Nanos::from_millis(5_999);
        let is_recent = |of: &SlotCounters| {
            let read_at = Nanos::from_millis(of.container_memory_bytes.unwrap());
            newest.since(read_at) <= longest
        };
        assert!(slots.iter().all(is_recent), "all are read");
        (all / 5, most, longest)
    }

    #[test]
    fn control_groups_of_64_instances_are_read_in_turns() {
        let (busy, at_once, longest) = reads(|ms| (3, ms));
        assert!(
            (290..=330).contains(&busy),
            "{busy} reads/s while they take packets"
        );
        assert!(at_once <= 2, "{at_once}");
        assert!(longest <= Nanos::from_millis(270), "{longest:?}");

        let (idle, at_once, longest) = reads(|_| (0, 5));
        assert!((60..=77).contains(&idle), "{idle} reads/s while rings are empty");
        assert!(at_once <= 2, "{at_once}");
        assert!(longest <= Nanos::from_millis(1_070), "{longest:?}");

        // Those that take no packets are all read in time.
        let (waiting, _, longest) = reads(|_| (3, 5));
        assert!(
            (2_500..=3_250).contains(&waiting),
            "{waiting} reads/s while packets wait"
        );
        assert!(longest <= Nanos::from_millis(26), "{longest:?}");
    }
}
