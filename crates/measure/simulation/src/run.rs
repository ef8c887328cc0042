//! Runs all variants of a scenario with their seeds and evaluates its checks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use serde::Serialize;

use crate::expectation::Checked;
use crate::outcome::{Outcome, Recorder};
use crate::scenario::{Model, SEEDS_LIMIT, Scenario, ScenarioFile};
use crate::{Error, cluster, event, fluid, load};

/// Two-sided 95 % quantile of the normal distribution.
const NORMAL_95: f64 = 1.959_964;

/// Maximum parallel runs: the traffic of one may take some hundred megabytes.
const THREADS_LIMIT: usize = 8;

/// A metric over several seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Its mean.
    pub mean: f64,
    /// Half the width of the 95 % confidence interval of the mean (Student's t); 0 with one seed.
    pub half_width: f64,
}

/// The result of one variant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VariantResult {
    /// Its name; empty if the scenario has no variants.
    pub name: String,
    /// Metrics by name, over all seeds.
    pub metrics: BTreeMap<String, Figure>,
    /// The run with the first seed.
    pub first: Outcome,
}

/// The result of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScenarioResult {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub about: String,
    /// Its origin.
    pub source: String,
    /// Simulated seconds per run.
    pub duration_s: f64,
    /// Seeds per variant.
    pub seeds: u64,
    /// By variant, in order of name.
    pub variants: Vec<VariantResult>,
    /// The expectation.
    pub expected: String,
    /// Its checks.
    #[serde(skip)]
    pub checks: Vec<Checked>,
}

impl ScenarioResult {
    /// Whether all checks hold.
    pub fn is_met(&self) -> bool {
        self.checks.iter().all(|check| check.met)
    }

    /// The means of all metrics, by variant.
    pub fn means(&self) -> BTreeMap<String, BTreeMap<String, f64>> {
        let of = |variant: &VariantResult| {
            variant
                .metrics
                .iter()
                .map(|(name, f)| (name.clone(), f.mean))
                .collect()
        };
        self.variants
            .iter()
            .map(|variant| (variant.name.clone(), of(variant)))
            .collect()
    }
}

/// Runs one variant with one seed. `data` is the data folder, `beside` the scenario's own.
///
/// # Errors
/// Returns an error if the scenario or a data file is invalid.
pub fn play(scenario: &Scenario, seed: u64, data: &Path, beside: &Path) -> Result<Outcome, Error> {
    let compiled = load::compile(scenario, seed, data, beside)?;
    let mut recorder = Recorder::new(scenario);
    match scenario.model {
        Model::Fluid => fluid::run(scenario, compiled, seed, &mut recorder)?,
        Model::Event => event::run(scenario, compiled, seed, &mut recorder)?,
        Model::Cluster => {
            let cluster = scenario.cluster.clone().unwrap_or_default();
            return cluster::run(scenario, &cluster, compiled, seed);
        }
    }
    Ok(recorder.outcome(seed))
}

/// Runs every variant with `seeds` seeds, starting with the scenario's own; [`None`] for the number that its checks
/// need. `progress` is called after each run with the variant, the completed runs and the total.
///
/// # Errors
/// Returns an error if the scenario, a data file or a check is invalid.
pub fn run(
    file: &ScenarioFile,
    seeds: Option<u64>,
    data: &Path,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<ScenarioResult, Error> {
    let seeds = seeds.unwrap_or(file.expectation().seeds);
    if !(1..=SEEDS_LIMIT).contains(&seeds) {
        return Err(Error::value(
            "seeds",
            format!("{seeds} is not within 1 to {SEEDS_LIMIT}"),
        ));
    }
    let beside = file.path.parent().unwrap_or_else(|| Path::new("."));
    let names: Vec<String> = file.variants().map(str::to_owned).collect();
    let scenarios: Vec<Scenario> = names
        .iter()
        .map(|name| file.variant(name))
        .collect::<Result<_, _>>()?;
    let of_variant = seeds as usize;
    let mut outcomes = in_parallel(
        scenarios.len() * of_variant,
        |run| {
            let scenario = &scenarios[run / of_variant];
            let nth = run % of_variant;
            let mut outcome = play(scenario, scenario.seed.saturating_add(nth as u64), data, beside)?;
            if nth > 0 {
                // The first seed keeps its series and decisions; the others keep only metrics.
                (outcome.series, outcome.decisions) = (Vec::new(), Vec::new());
            }
            Ok(outcome)
        },
        &mut |run, done, all| progress(&names[run / of_variant], done as u64, all as u64),
    )?
    .into_iter();
    let mut variants = Vec::new();
    for name in &names {
        let mut first = None;
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for outcome in outcomes.by_ref().take(of_variant) {
            for (metric, value) in &outcome.metrics {
                values.entry(metric.clone()).or_default().push(*value);
            }
            first.get_or_insert(outcome);
        }
        let metrics = values
            .into_iter()
            .map(|(metric, values)| (metric, figure(&values)));
        variants.push(VariantResult {
            name: name.clone(),
            metrics: metrics.collect(),
            first: first.unwrap_or_default(),
        });
    }
    let head = scenarios.into_iter().next();
    let expectation = file.expectation();
    let mut result = ScenarioResult {
        name: head.as_ref().map_or_else(String::new, |s| s.name.clone()),
        about: head.as_ref().map_or_else(String::new, |s| s.about.clone()),
        source: head.as_ref().map_or_else(String::new, |s| s.source.clone()),
        duration_s: head.as_ref().map_or(0.0, |s| s.duration_s),
        seeds,
        variants,
        expected: expectation.what.clone(),
        checks: Vec::new(),
    };
    let means = result.means();
    let checks = expectation.checks.iter().map(|check| (check, false));
    let calibration = expectation.calibration.iter().map(|check| (check, true));
    result.checks = checks
        .chain(calibration)
        .map(|(check, calibration)| {
            let checked = check.evaluate(&means)?;
            Ok(Checked {
                calibration,
                ..checked
            })
        })
        .collect::<Result<_, Error>>()?;
    Ok(result)
}

/// Executes `count` runs on parallel threads, up to the number of CPUs, and returns the results in order. `progress`
/// is called after each with its index, the completed runs and the total.
///
/// # Errors
/// Returns the error of the first failed run, in order of index.
fn in_parallel<T: Send>(
    count: usize,
    run: impl Fn(usize) -> Result<T, Error> + Sync,
    progress: &mut dyn FnMut(usize, usize, usize),
) -> Result<Vec<T>, Error> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.min(THREADS_LIMIT).min(count);
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<Result<T, Error>>> = (0..count).map(|_| None).collect();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads {
            let (sender, next, run) = (sender.clone(), &next, &run);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let result = run(index);
                    if result.is_err() {
                        // Earlier runs are in progress; later ones are not needed.
                        next.store(count, Ordering::Relaxed);
                    }
                    if sender.send((index, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (done, (index, result)) in (1..).zip(receiver) {
            if result.is_ok() {
                progress(index, done, count);
            }
            results[index] = Some(result);
        }
    });
    results.into_iter().flatten().collect()
}

/// The mean and its 95 % confidence interval.
fn figure(values: &[f64]) -> Figure {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return Figure {
            mean,
            half_width: 0.0,
        };
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (squares / (count - 1.0) / count).sqrt();
    Figure {
        mean,
        half_width: student_95(values.len() - 1) * error,
    }
}

/// The 97.5 % quantile of Student's t distribution: exact for 1 and 2 degrees of freedom, otherwise Hill's
/// expansion around the normal quantile (Abramowitz and Stegun 26.7.5), within 1 % from 3 on.
fn student_95(freedom: usize) -> f64 {
    match freedom {
        1 => return 12.706_205,
        2 => return 4.302_653,
        _ => {}
    }
    let (n, z) = (freedom as f64, NORMAL_95);
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    z + (z3 + z) / (4.0 * n)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * n * n)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * n * n * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_runs_keep_their_order() {
        let mut told = Vec::new();
        let squares = in_parallel(100, |n| Ok(n * n), &mut |run, done, all| {
            told.push((run, done, all))
        });
        assert_eq!(squares.unwrap(), (0..100).map(|n| n * n).collect::<Vec<_>>());
        assert!(
            (1..)
                .zip(&told)
                .all(|(nth, (_, done, all))| *done == nth && *all == 100)
        );
        told.sort_unstable();
        assert_eq!(
            told.iter().map(|(run, ..)| *run).collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
        let fails = |n: usize| {
            if n % 7 == 5 {
                Err(Error::value(n.to_string(), "no"))
            } else {
                Ok(n)
            }
        };
        let error = in_parallel(100, fails, &mut |_, _, _| {}).unwrap_err();
        assert_eq!(error.to_string(), Error::value("5", "no").to_string());
        assert!(in_parallel(0, Ok, &mut |_, _, _| {}).unwrap().is_empty());
    }

    #[test]
    fn quantiles_match_the_tables() {
        for (freedom, quantile) in [
            (1, 12.706),
            (2, 4.303),
            (4, 2.776),
            (9, 2.262),
            (29, 2.045),
            (1_000, 1.962),
        ] {
            let ours = student_95(freedom);
            assert!((ours / quantile - 1.0).abs() < 0.01, "{freedom}: {ours}");
        }
        let figure = figure(&[1.0, 2.0, 3.0]);
        assert_eq!(figure.mean, 2.0);
        assert!((figure.half_width - 4.302_653 / 3f64.sqrt()).abs() < 1e-6);
    }
}
