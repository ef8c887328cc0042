//! SmartLB's manager on the host (LB §III.B): it watches how busy the functions of a service are. If one is busy, it
//! wakes an instance; if one is idle and the others can do its work, it sends that one to sleep. One at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use signal::Wish;

use crate::options::{Manager, Watch};
use crate::sender::{InstanceRow, KeyFile, ServiceRow, ask};

/// After one went to sleep, the others must stay below this share of the upper threshold: else one would wake again.
const ROOM: f64 = 0.75;
/// Complaints about the same failure come at most this often, in turns.
const COMPLAIN_EVERY: u32 = 100;

/// An instance, and how busy it is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Member {
    id: u32,
    state: State,
    /// The share of its CPUs that it uses; [`None`] before that is known.
    busy: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Active,
    /// It keeps its flows and takes no new ones.
    Draining,
    /// It has no flows.
    Asleep,
}

impl State {
    fn of(word: &str) -> Option<State> {
        match word {
            "active" => Some(State::Active),
            "draining" => Some(State::Draining),
            "standby" => Some(State::Asleep),
            _ => None,
        }
    }
}

/// When to decide what.
#[derive(Clone, Copy, Debug)]
struct Rules {
    up: f64,
    down: f64,
    window_ns: u64,
    hold_ns: u64,
}

/// What is remembered of a service.
#[derive(Debug, Default)]
struct Memory {
    signalled_at: Option<u64>,
    /// Which instance could go to sleep, and since when.
    idle: Option<(u32, u64)>,
}

impl Memory {
    /// Decides about the instances of a service.
    fn decide(
        &mut self,
        members: &[Member],
        range: (u32, u32),
        rules: Rules,
        now: u64,
    ) -> Option<(u32, Wish)> {
        let active: Vec<_> = members.iter().filter(|of| of.state == State::Active).collect();
        let known: Option<Vec<(u32, f64)>> = active.iter().map(|of| Some((of.id, of.busy?))).collect();
        let known = known?;
        let rests = self
            .signalled_at
            .is_some_and(|at| now.saturating_sub(at) < rules.window_ns);
        let decided = if known.iter().any(|(_, busy)| *busy >= rules.up) {
            self.idle = None;
            let of = |state| members.iter().find(|of| of.state == state);
            let next = of(State::Draining).or(of(State::Asleep));
            next.filter(|_| !rests && (known.len() as u32) < range.1)
                .map(|of| (of.id, Wish::Wake))
        } else {
            let idlest = self.idlest(&known, range, rules, now);
            idlest.filter(|_| !rests).map(|id| (id, Wish::Sleep))
        };
        if decided.is_some() {
            *self = Memory {
                signalled_at: Some(now),
                idle: None,
            };
        }
        decided
    }

    /// The instance that has been idle for long enough.
    fn idlest(&mut self, known: &[(u32, f64)], range: (u32, u32), rules: Rules, now: u64) -> Option<u32> {
        // The youngest of those that are equally idle.
        let lowest = known
            .iter()
            .min_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        let sum: f64 = known.iter().map(|(_, busy)| busy).sum();
        let others = known.len().saturating_sub(1).max(1) as f64;
        let may_sleep = |(id, busy): &(u32, f64)| {
            let fits = sum / others < rules.up * ROOM;
            (known.len() as u32 > range.0 && *busy <= rules.down && fits).then_some(*id)
        };
        let Some(id) = lowest.and_then(may_sleep) else {
            self.idle = None;
            return None;
        };
        let since = match self.idle {
            // Which one it is may change while all are idle.
            Some((_, since)) => since,
            None => now,
        };
        self.idle = Some((id, since));
        (now.saturating_sub(since) >= rules.hold_ns).then_some(id)
    }
}

/// CPU time of an instance at some times: the oldest is at least a window old, if there are so many.
#[derive(Debug, Default)]
struct Usage {
    samples: VecDeque<(u64, f64)>,
}

impl Usage {
    /// Adds a sample: when, and how much time of how many CPUs was used so far. Gives the share in the window.
    fn add(&mut self, now: u64, used_ns: f64, window_ns: u64) -> Option<f64> {
        self.samples.push_back((now, used_ns));
        while self
            .samples
            .get(1)
            .is_some_and(|(at, _)| now.saturating_sub(*at) >= window_ns)
        {
            self.samples.pop_front();
        }
        let (at, before) = *self.samples.front()?;
        let passed = now.saturating_sub(at);
        // Half a window says enough at the start.
        (passed * 2 >= window_ns).then(|| (used_ns - before) / passed as f64)
    }
}

/// Where the control groups of this machine are.
const GROUPS: &str = "/sys/fs/cgroup";

/// A control group of a process: that of the controller, in version 1, else the only one.
fn group_of(groups: &str, controller: &str) -> Option<PathBuf> {
    let rows = || {
        groups
            .lines()
            .filter_map(|line| line.splitn(3, ':').skip(1).collect::<Vec<_>>().try_into().ok())
    };
    let has = |[names, _]: &[&str; 2]| names.split(',').any(|name| name == controller);
    let [names, path] = rows()
        .find(has)
        .or_else(|| rows().find(|[names, _]| names.is_empty()))?;
    Some(Path::new(GROUPS).join(names).join(path.trim_start_matches('/')))
}

/// The number in a file.
fn number(file: &Path) -> Option<f64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// CPU time in nanoseconds that a control group has used, as a share of its quota.
fn group_time(groups: &str) -> Option<f64> {
    let group = group_of(groups, "cpuacct")?;
    if let Some(used_ns) = number(&group.join("cpuacct.usage")) {
        let of = group_of(groups, "cpu")?;
        let limit = |file: &str| fs::read_to_string(of.join(file)).unwrap_or_default();
        let (quota_us, period_us) = (limit("cpu.cfs_quota_us"), limit("cpu.cfs_period_us"));
        return Some(used_ns / quota(&format!("{quota_us} {period_us}")));
    }
    let stat = fs::read_to_string(group.join("cpu.stat")).ok()?;
    let used_us = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    let limit = fs::read_to_string(group.join("cpu.max")).unwrap_or_default();
    Some(used_us.parse::<f64>().ok()? * 1e3 / quota(&limit))
}

/// The CPUs of a quota: `50000 100000` is half a CPU. One CPU without a quota.
fn quota(text: &str) -> f64 {
    let mut words = text.split_whitespace().map(str::parse::<f64>);
    match (words.next(), words.next()) {
        (Some(Ok(quota)), Some(Ok(period))) if quota > 0.0 && period > 0.0 => quota / period,
        _ => 1.0,
    }
}

/// The time in which the CPUs of a control group were busy, divided by their number.
fn cpus_time(groups: &str) -> Option<f64> {
    let group = group_of(groups, "cpuset")?;
    let files = ["cpuset.cpus.effective", "cpuset.effective_cpus"].iter();
    let cpus = cpu_list(
        &files
            .flat_map(|file| fs::read_to_string(group.join(file)))
            .next()?,
    );
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let busy: Vec<f64> = cpus.iter().filter_map(|cpu| busy_ticks(&stat, *cpu)).collect();
    // A tick is a hundredth of a second on every Linux.
    (!busy.is_empty()).then(|| busy.iter().sum::<f64>() * 1e7 / busy.len() as f64)
}

/// `0-2,5` as numbers.
fn cpu_list(text: &str) -> BTreeSet<u32> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (last < 4_096).then_some(first..=last)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// Ticks in which a CPU was not idle, in the kernel's table.
fn busy_ticks(stat: &str, cpu: u32) -> Option<f64> {
    let name = format!("cpu{cpu} ");
    let row = stat.lines().find_map(|line| line.strip_prefix(&name))?;
    let ticks: Vec<f64> = row
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guests are in the first two already.
    let all: f64 = ticks.iter().take(8).sum();
    Some(all - ticks.get(3)? - ticks.get(4)?)
}

/// The manager with what it knows.
struct Manage<'a> {
    options: &'a Manager,
    keys: BTreeMap<u32, KeyFile>,
    usage: BTreeMap<u32, Usage>,
    services: BTreeMap<String, Memory>,
    /// The counter of the last signal.
    counter: u64,
}

impl Manage<'_> {
    /// Looks at all services once.
    fn turn(&mut self) -> Result<()> {
        let now = clock::monotonic().0;
        self.read_keys();
        let run_dir = &self.options.run_dir;
        let instances: Vec<InstanceRow> = ask(run_dir, "/v1/instances")?;
        let services: Vec<ServiceRow> = ask(run_dir, "/v1/services")?;
        self.usage.retain(|id, _| instances.iter().any(|of| of.id == *id));
        let is_managed = |of: &&ServiceRow| self.options.service.as_ref().is_none_or(|name| *name == of.name);
        for service in services.iter().filter(is_managed).cloned().collect::<Vec<_>>() {
            let rows: Vec<_> = instances
                .iter()
                .filter(|of| of.service == service.name && self.keys.contains_key(&of.id))
                .collect();
            let members: Vec<Member> = rows.iter().filter_map(|row| self.member(row, now)).collect();
            let rules = Rules {
                up: self.options.up,
                down: self.options.down,
                window_ns: self.options.window_ms * 1_000_000,
                hold_ns: self.options.hold_ms * 1_000_000,
            };
            let memory = self.services.entry(service.name.clone()).or_default();
            let Some((id, wish)) = memory.decide(&members, (service.min, service.max), rules, now) else {
                continue;
            };
            let pid = rows.iter().find(|row| row.id == id).and_then(|row| row.pid);
            self.counter = clock::monotonic().0.max(self.counter + 1);
            if let Some(key) = self.keys.get(&id) {
                key.send(wish, self.counter, pid)?;
                say(format!(
                    "{}: {wish} of instance {id}; {}",
                    service.name,
                    figures(&members)
                ));
            }
        }
        Ok(())
    }

    fn read_keys(&mut self) {
        let run_dir = &self.options.run_dir;
        let there = KeyFile::list(run_dir);
        self.keys.retain(|id, _| there.contains(id));
        for id in there {
            if !self.keys.contains_key(&id)
                && let Ok(key) = KeyFile::read(run_dir, id)
                && key.instance == id
            {
                self.keys.insert(id, key);
            }
        }
    }

    fn member(&mut self, row: &InstanceRow, now: u64) -> Option<Member> {
        let state = State::of(&row.state)?;
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", row.pid?)).ok()?;
        let used = match self.options.watch {
            Watch::Group => group_time(&groups),
            Watch::Cpus => cpus_time(&groups),
        };
        let window_ns = self.options.window_ms * 1_000_000;
        let usage = self.usage.entry(row.id).or_default();
        Some(Member {
            id: row.id,
            state,
            busy: used.and_then(|used| usage.add(now, used, window_ns)),
        })
    }
}

/// How busy the active instances are.
fn figures(members: &[Member]) -> String {
    let active = members.iter().filter(|of| of.state == State::Active);
    let busy = active.map(|of| format!("{} {:.0} %", of.id, 100.0 * of.busy.unwrap_or_default()));
    format!("busy: {}", busy.collect::<Vec<_>>().join(", "))
}

fn say(what: impl std::fmt::Display) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "inco-nf manager: {what}");
}

/// Runs until it is ended.
pub(crate) fn run(options: &Manager) -> Result<()> {
    fs::metadata(&options.run_dir)
        .with_context(|| format!("no inco runs in {}", options.run_dir.display()))?;
    let mut manager = Manage {
        options,
        keys: BTreeMap::new(),
        usage: BTreeMap::new(),
        services: BTreeMap::new(),
        counter: 0,
    };
    let mut failed = 0;
    loop {
        match manager.turn() {
            Ok(()) => failed = 0,
            // inco may be starting again.
            Err(error) => {
                if failed % COMPLAIN_EVERY == 0 {
                    say(format!("{error:#}"));
                }
                failed += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(options.period_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        up: 0.8,
        down: 0.3,
        window_ns: 500,
        hold_ns: 3_000,
    };

    fn members(busy: &[f64], asleep: u32) -> Vec<Member> {
        let active = (1..).zip(busy).map(|(id, busy)| Member {
            id,
            state: State::Active,
            busy: Some(*busy),
        });
        let others = (100..100 + asleep).map(|id| Member {
            id,
            state: State::Asleep,
            busy: Some(0.0),
        });
        active.chain(others).collect()
    }

    #[test]
    fn one_busy_instance_wakes_one_other_at_a_time() {
        let mut memory = Memory::default();
        let busy = members(&[0.2, 0.81], 2);
        assert_eq!(
            memory.decide(&busy, (1, 4), RULES, 1_000),
            Some((100, Wish::Wake))
        );
        assert_eq!(memory.decide(&busy, (1, 4), RULES, 1_499), None);
        assert_eq!(
            memory.decide(&busy, (1, 4), RULES, 1_500),
            Some((100, Wish::Wake))
        );
        // At the upper limit of the range, with nobody asleep, and below the threshold: nothing.
        assert_eq!(memory.decide(&busy, (1, 2), RULES, 9_000), None);
        assert_eq!(memory.decide(&members(&[0.9], 0), (1, 4), RULES, 9_000), None);
        assert_eq!(
            memory.decide(&members(&[0.79, 0.79], 2), (1, 4), RULES, 9_000),
            None
        );
        // One that still has flows is woken first.
        let mut drains = members(&[0.9], 1);
        drains.push(Member {
            id: 7,
            state: State::Draining,
            busy: Some(0.5),
        });
        assert_eq!(
            memory.decide(&drains, (1, 4), RULES, 9_000),
            Some((7, Wish::Wake))
        );
    }

    #[test]
    fn an_instance_sleeps_once_it_has_been_idle_and_the_others_have_room() {
        let mut memory = Memory::default();
        let idle = members(&[0.3, 0.1, 0.1], 1);
        assert_eq!(memory.decide(&idle, (1, 4), RULES, 0), None);
        assert_eq!(memory.decide(&idle, (1, 4), RULES, 2_999), None);
        // A moment of work starts the wait again.
        assert_eq!(
            memory.decide(&members(&[0.5, 0.5, 0.5], 1), (1, 4), RULES, 3_000),
            None
        );
        assert_eq!(memory.decide(&idle, (1, 4), RULES, 3_001), None);
        assert_eq!(memory.decide(&idle, (1, 4), RULES, 6_001), Some((3, Wish::Sleep)));
        // Not below the range, and not if the others would become busy.
        for (busy, least) in [(&[0.1, 0.1][..], 2), (&[0.79, 0.2], 1)] {
            let mut memory = Memory::default();
            for now in [0, 10_000, 20_000] {
                assert_eq!(memory.decide(&members(busy, 1), (least, 4), RULES, now), None);
            }
        }
    }

    #[test]
    fn nothing_is_decided_before_all_is_known() {
        let mut unknown = members(&[0.9, 0.1], 1);
        unknown[1].busy = None;
        assert_eq!(Memory::default().decide(&unknown, (1, 4), RULES, 0), None);
    }

    #[test]
    fn use_is_averaged_over_the_window() {
        let mut usage = Usage::default();
        assert_eq!(usage.add(0, 0.0, 1_000), None);
        assert_eq!(usage.add(400, 400.0, 1_000), None);
        assert_eq!(usage.add(500, 400.0, 1_000), Some(0.8));
        assert_eq!(usage.add(1_400, 400.0, 1_000), Some(0.0));
    }

    #[test]
    fn the_kernels_tables_are_read() {
        assert_eq!(
            (quota("50000 100000\n"), quota("max 100000\n"), quota("")),
            (0.5, 1.0, 1.0)
        );
        assert_eq!(cpu_list("0-2,5\n").into_iter().collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert!(cpu_list("0-4294967295").is_empty() && cpu_list("x").is_empty());
        let stat = "cpu  9 9 9 9\ncpu0 10 1 5 100 7 2 3 4 0 0\ncpu10 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat, 0), Some(25.0));
        assert_eq!(busy_ticks(stat, 1), None);
    }
}
