//! Runs a scenario with every combination of some parameters' values and finds the Pareto front.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::Error;
use crate::run::{Figure, run};
use crate::scenario::ScenarioFile;

/// Combinations per sweep.
pub const COMBINATIONS_LIMIT: usize = 10_000;

/// One combination of one variant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepPoint {
    /// The variant; empty if the scenario has none.
    pub variant: String,
    /// Key and value of each varied parameter.
    pub set: Vec<(String, String)>,
    /// Metrics by name.
    pub metrics: BTreeMap<String, Figure>,
    /// Whether it is Pareto-optimal over all variants: no other combination has less loss without more
    /// instance-time, or less instance-time without more loss.
    pub on_front: bool,
}

impl SweepPoint {
    /// Its costs: lost packets and instance-seconds, both better when lower.
    pub fn costs(&self) -> (f64, f64) {
        let of = |name: &str| self.metrics.get(name).map_or(f64::INFINITY, |figure| figure.mean);
        (of("lost_packets"), of("instance_s"))
    }
}

/// Parses `KEY=VALUE,VALUE,…`.
///
/// # Errors
/// Returns [`Error::Value`] for any other text.
pub fn parse_vary(text: &str) -> Result<(String, Vec<String>), Error> {
    let wrong = || {
        Error::value(
            text,
            "write KEY=VALUE,VALUE,… as in service.autoscaler.target=0.5,0.6,0.7",
        )
    };
    let (key, values) = text.split_once('=').ok_or_else(wrong)?;
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    if key.trim().is_empty() || values.iter().any(String::is_empty) {
        return Err(wrong());
    }
    Ok((key.trim().to_owned(), values))
}

/// Runs every combination. `progress` is called after each with the completed combinations and the total.
///
/// # Errors
/// Returns an error if the scenario or a value is invalid.
pub fn sweep(
    file: &ScenarioFile,
    vary: &[(String, Vec<String>)],
    seeds: Option<u64>,
    data: &Path,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<SweepPoint>, Error> {
    let combinations = vary
        .iter()
        .try_fold(1_usize, |product, (_, values)| product.checked_mul(values.len()))
        .filter(|product| *product <= COMBINATIONS_LIMIT)
        .ok_or_else(|| Error::value("vary", format!("more than {COMBINATIONS_LIMIT} combinations")))?;
    let mut points = Vec::new();
    for number in 0..combinations {
        let mut rest = number;
        let mut set = Vec::new();
        let mut changed = file.clone();
        for (key, values) in vary {
            let value = &values[rest % values.len()];
            rest /= values.len();
            changed.set(&format!("{key}={value}"))?;
            set.push((key.clone(), value.clone()));
        }
        // The scenario's checks apply only to its own parameters.
        changed.expect_nothing();
        let result = run(&changed, seeds, data, &mut |_, _, _| {})?;
        for variant in result.variants {
            points.push(SweepPoint {
                variant: variant.name,
                set: set.clone(),
                metrics: variant.metrics,
                on_front: false,
            });
        }
        progress(number + 1, combinations);
    }
    mark_front(&mut points);
    Ok(points)
}

/// Marks the Pareto-optimal points.
fn mark_front(points: &mut [SweepPoint]) {
    let costs: Vec<(f64, f64)> = points.iter().map(SweepPoint::costs).collect();
    for (point, own) in points.iter_mut().zip(&costs) {
        let beats =
            |other: &(f64, f64)| other.0 <= own.0 && other.1 <= own.1 && (other.0 < own.0 || other.1 < own.1);
        point.on_front = !costs.iter().any(beats);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_contains_the_undominated_points() {
        let figure = |mean: f64| Figure {
            mean,
            half_width: 0.0,
        };
        let mut points: Vec<SweepPoint> = [
            (0.0, 10.0),
            (5.0, 5.0),
            (5.0, 6.0),
            (9.0, 1.0),
            (9.0, 1.0),
            (10.0, 10.0),
        ]
        .into_iter()
        .map(|(lost, time)| SweepPoint {
            variant: String::new(),
            set: Vec::new(),
            metrics: BTreeMap::from([
                ("lost_packets".to_owned(), figure(lost)),
                ("instance_s".to_owned(), figure(time)),
            ]),
            on_front: false,
        })
        .collect();
        mark_front(&mut points);
        let front: Vec<bool> = points.iter().map(|point| point.on_front).collect();
        assert_eq!(front, [true, true, false, true, true, false]);
    }

    #[test]
    fn a_varied_parameter_has_a_key_and_values() {
        let (key, values) = parse_vary("service.max=1, 2,x").unwrap();
        assert_eq!((key.as_str(), values.len()), ("service.max", 3));
        for text in ["", "a", "a=", "=1", "a=1,,2"] {
            assert!(parse_vary(text).is_err(), "{text}");
        }
    }
}
