//! Watts of instances: their part of what the machine's meter says, or a model of what they add.
//!
//! - **Metered.** RAPL (the packages of the processors, in `/sys/class/powercap`), or else a power meter of the machine that
//!   hwmon knows (`/sys/class/hwmon`). An instance on this machine has the part of it that it has of the CPU time that all
//!   programs use, as Kepler and Scaphandre attribute it.
//! - **MODEL.** Without a meter, or at another machine: `watts_per_core` of its place times the CPUs that it uses.
//!   Estimates from what an operating system sees are wrong by 3 to 15 W for a machine (Kepler, number 2466): each
//!   instance has its part of [`WATTS_ERROR`].

use std::fs;
use std::path::{Path, PathBuf};

use api::types::{Watts, WattsSource};
use configuration::estimate::WATTS_ERROR;
use model::Nanos;

/// Span of a mean: long enough that a meter which is renewed each second has moved.
const SPAN: Nanos = Nanos::from_secs(2);
/// Ticks per second of `/proc/stat`, the same on all architectures of Linux that inco runs on.
const TICKS_PER_S: f64 = 100.0;

/// What the meter counts.
enum Kind {
    /// Packages of RAPL: a counter of microjoules, and where it begins again.
    Rapl(Vec<(PathBuf, u64)>),
    /// Files with microwatts.
    Hwmon(Vec<PathBuf>),
}

/// The meter of this machine, if it has one.
pub(super) struct Meter {
    kind: Option<Kind>,
    stat: PathBuf,
    /// When it was read last, with the counters of RAPL and the busy seconds of all CPUs.
    last: Option<(Nanos, Vec<u64>, f64)>,
    /// Watts of the machine for each of its busy CPUs, over the last span.
    watts_per_busy_cpu: Option<f64>,
}

impl Meter {
    /// The meter that `sys` (usually `/sys`) and `proc` (usually `/proc`) show.
    pub(super) fn find(sys: &Path, proc: &Path) -> Meter {
        let packages = entries(&sys.join("class/powercap"), |name| {
            // Packages are `intel-rapl:0`; their parts, which a package has in it, `intel-rapl:0:1`.
            name.starts_with("intel-rapl:") && name.matches(':').count() == 1
        });
        let package = |folder: PathBuf| {
            let file = folder.join("energy_uj");
            number(&file)?;
            Some((
                file,
                number(&folder.join("max_energy_range_uj")).unwrap_or(u64::MAX),
            ))
        };
        let packages: Vec<_> = packages.into_iter().filter_map(package).collect();
        let meters = entries(&sys.join("class/hwmon"), |_| true).into_iter();
        let meters = meters.filter(|folder| {
            let name = fs::read_to_string(folder.join("name")).unwrap_or_default();
            name.trim() == "power_meter"
        });
        let file = |folder: PathBuf| {
            let files = ["power1_average", "power1_input"].map(|name| folder.join(name));
            files.into_iter().find(|file| number(file).is_some())
        };
        let meters: Vec<PathBuf> = meters.filter_map(file).collect();
        let kind = if !packages.is_empty() {
            Some(Kind::Rapl(packages))
        } else if !meters.is_empty() {
            Some(Kind::Hwmon(meters))
        } else {
            None
        };
        Meter {
            kind,
            stat: proc.join("stat"),
            last: None,
            watts_per_busy_cpu: None,
        }
    }

    /// Reads it, if a span is over.
    pub(super) fn read(&mut self, now: Nanos) {
        let Some(kind) = &self.kind else {
            return;
        };
        let before = self.last.as_ref();
        if before.is_some_and(|(at, ..)| now.since(*at) < SPAN) {
            return;
        }
        let Some(busy_s) = busy_seconds(&self.stat) else {
            return;
        };
        let counters: Vec<u64> = match kind {
            Kind::Rapl(packages) => packages
                .iter()
                .map(|(file, _)| number(file).unwrap_or(0))
                .collect(),
            Kind::Hwmon(_) => Vec::new(),
        };
        if let Some((at, old, old_busy_s)) = before {
            let span_s = now.since(*at).as_secs_f64();
            let watts = match kind {
                Kind::Rapl(packages) => {
                    let all = packages.iter().zip(&counters).zip(old);
                    let grown = all.map(|(((_, range), new), old)| {
                        let grown = new.checked_sub(*old);
                        grown.unwrap_or_else(|| range.saturating_sub(*old).saturating_add(*new))
                    });
                    grown.sum::<u64>() as f64 / 1e6 / span_s
                }
                Kind::Hwmon(files) => files.iter().filter_map(|file| number(file)).sum::<u64>() as f64 / 1e6,
            };
            let busy = (busy_s - old_busy_s) / span_s;
            self.watts_per_busy_cpu = (busy > 0.0).then_some(watts / busy);
        }
        self.last = Some((now, counters, busy_s));
    }

    /// Watts of an instance that uses so many CPUs. `place` is what its place says, if there are places: watts of a busy
    /// core, and how many instances are there. [`None`] if nothing is known.
    pub(super) fn watts(&self, cpus: f64, is_here: bool, place: Option<(f64, u32)>) -> Option<Watts> {
        let source = match &self.kind {
            Some(Kind::Rapl(_)) => WattsSource::Rapl,
            Some(Kind::Hwmon(_)) => WattsSource::Hwmon,
            None => WattsSource::Model,
        };
        match self.watts_per_busy_cpu.filter(|_| is_here) {
            Some(each) => Some(Watts {
                expected: each * cpus,
                low: each * cpus,
                high: each * cpus,
                source,
            }),
            None => place.map(|(each, instances)| {
                let (expected, error) = (each * cpus, WATTS_ERROR / f64::from(instances.max(1)));
                Watts {
                    expected,
                    low: (expected - error).max(0.0),
                    high: expected + error,
                    source: WattsSource::Model,
                }
            }),
        }
    }
}

/// What is in a folder and has such a name, in order.
fn entries(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let wanted = all.filter(|entry| is_wanted(&entry.file_name().to_string_lossy()));
    let mut paths: Vec<PathBuf> = wanted.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Seconds for which the CPUs together were not idle.
fn busy_seconds(stat: &Path) -> Option<f64> {
    let text = fs::read_to_string(stat).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    let is_busy = [0, 1, 2, 5, 6];
    let busy = is_busy.iter().filter_map(|at| ticks.get(*at)).sum::<f64>();
    (ticks.len() > 4).then_some(busy / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Two packages take 20 W, with a counter that begins again; a fifth of the busy time is the instance's.
    #[test]
    fn an_instance_has_its_part_of_what_rapl_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let energy = |zone: &str, uj: u64| {
            write(
                root,
                &format!("class/powercap/{zone}/energy_uj"),
                &format!("{uj}\n"),
            )
        };
        energy("intel-rapl:0", 90_000_000);
        energy("intel-rapl:1", 5);
        energy("intel-rapl:0:0", 1);
        write(
            root,
            "class/powercap/intel-rapl:0/max_energy_range_uj",
            "100000000",
        );
        write(root, "stat", "cpu  100 0 50 900 10 0 50 7 0 0\ncpu0 1 2 3\n");
        let mut meter = Meter::find(root, root);
        meter.read(Nanos::from_secs(1));
        assert_eq!(meter.watts(0.5, true, None), None, "nothing to compare with");
        energy("intel-rapl:0", 20_000_000);
        energy("intel-rapl:1", 10_000_005);
        energy("intel-rapl:0:0", 9_000_000);
        write(root, "stat", "cpu  300 0 150 1300 10 0 250 9 0 0\n");
        meter.read(Nanos::from_secs(2));
        assert_eq!(meter.watts(0.5, true, None), None, "the span is not over");
        meter.read(Nanos::from_secs(3));
        // 40 J in 2 s, and 5 busy seconds in them.
        let of = meter.watts(0.5, true, Some((99.0, 1))).unwrap();
        assert!((of.expected - 4.0).abs() < 1e-9, "{of:?}");
        assert_eq!(
            (of.source, of.low, of.high),
            (WattsSource::Rapl, of.expected, of.expected)
        );
        // The meter knows nothing of another machine.
        let of = meter.watts(0.5, false, Some((8.0, 3))).unwrap();
        assert_eq!(
            (of.source, of.expected, of.low, of.high),
            (WattsSource::Model, 4.0, 0.0, 9.0)
        );
    }

    #[test]
    fn a_meter_of_the_machine_comes_next_and_then_the_model() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "class/hwmon/hwmon0/name", "coretemp\n");
        write(root, "class/hwmon/hwmon0/power1_input", "1\n");
        write(root, "stat", "cpu  0 0 0 0 0 0 0 0 0 0\n");
        assert_eq!(Meter::find(root, root).watts(1.0, true, None), None);
        let model = Meter::find(root, root).watts(1.0, true, Some((11.0, 2))).unwrap();
        assert_eq!(
            (model.source, model.low, model.high),
            (WattsSource::Model, 3.5, 18.5)
        );
        write(root, "class/hwmon/hwmon1/name", "power_meter\n");
        write(root, "class/hwmon/hwmon1/power1_average", "42000000\n");
        let mut meter = Meter::find(root, root);
        meter.read(Nanos::from_secs(1));
        write(root, "stat", "cpu  300 0 0 0 0 0 100 0 0 0\n");
        meter.read(Nanos::from_secs(3));
        let of = meter.watts(1.0, true, None).unwrap();
        assert_eq!((of.source, of.expected), (WattsSource::Hwmon, 21.0));
        // Files that say nothing of use are no meter, and no failure.
        write(root, "class/hwmon/hwmon1/power1_average", "unknown\n");
        assert_eq!(Meter::find(root, root).watts(1.0, true, None), None);
    }
}
