//! Packets per flow: constant, or drawn from a fitted mixture of distributions.

use std::path::Path;

use serde::Deserialize;

use crate::Error;
use model::Random;

/// Longest flow drawn, in packets. The mixtures' tails exceed what a run can send.
pub const LENGTH_LIMIT: u32 = 1 << 30;

/// The source of flow lengths.
#[derive(Clone, Debug, PartialEq)]
pub enum FlowLengths {
    /// Every flow has this many packets.
    Constant(u32),
    /// Drawn from a mixture.
    Mixture(Mixture),
}

impl FlowLengths {
    /// The next flow's length in packets, at least 1.
    pub fn draw(&self, random: &mut Random) -> u32 {
        match self {
            FlowLengths::Constant(n) => (*n).max(1),
            FlowLengths::Mixture(mixture) => mixture.draw(random),
        }
    }
}

/// A mixture in the format of the flow-models data set (P. Jurkiewicz, G. Rzym, P. Boryło, "Flow length and
/// size distributions in campus Internet traffic", Computer Communications 167, 2021): weighted components
/// with scipy's parameters, `uniform [loc, scale]` or `lognorm [s, loc, scale]`. Samples are rounded up to
/// whole packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// Cumulative weight (the last is 1.0) and component.
    components: Vec<(f64, Component)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Component {
    Uniform { from: f64, width: f64 },
    LogNormal { sigma: f64, from: f64, scale: f64 },
}

#[derive(Deserialize)]
struct MixtureFile {
    mix: Vec<(f64, String, Vec<f64>)>,
}

impl Mixture {
    /// Reads a mixture file.
    ///
    /// # Errors
    /// Returns [`Error::Read`] if the file cannot be read, and [`Error::Mixture`] if it has an unknown component or a
    /// weight that is not positive.
    pub fn load(path: &Path) -> Result<Mixture, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_path_buf(),
            source,
        })?;
        Mixture::parse(&text).map_err(|reason| Error::Mixture {
            path: path.to_path_buf(),
            reason,
        })
    }

    fn parse(text: &str) -> Result<Mixture, MixtureProblem> {
        let file: MixtureFile =
            serde_json::from_str(text).map_err(|e| MixtureProblem::Json(e.to_string()))?;
        let total: f64 = file.mix.iter().map(|(weight, _, _)| weight).sum();
        let mut cumulated = 0.0;
        let mut components = Vec::with_capacity(file.mix.len());
        for (index, (weight, name, parameters)) in file.mix.iter().enumerate() {
            if !(*weight > 0.0 && weight.is_finite()) || parameters.iter().any(|p| !p.is_finite()) {
                return Err(MixtureProblem::Component { index });
            }
            let component = match (name.as_str(), parameters.as_slice()) {
                ("uniform", &[from, width]) => Component::Uniform { from, width },
                ("lognorm", &[sigma, from, scale]) => Component::LogNormal { sigma, from, scale },
                _ => return Err(MixtureProblem::Component { index }),
            };
            cumulated += weight / total;
            components.push((cumulated, component));
        }
        match components.last_mut() {
            Some(last) => last.0 = 1.0,
            None => return Err(MixtureProblem::Empty),
        }
        Ok(Mixture { components })
    }

    /// The next length in packets, from 1 to [`LENGTH_LIMIT`].
    pub fn draw(&self, random: &mut Random) -> u32 {
        let u = random.unit();
        let at = self.components.partition_point(|(cumulated, _)| *cumulated < u);
        let (_, component) = self.components[at.min(self.components.len() - 1)];
        let sample = match component {
            Component::Uniform { from, width } => from + width * random.unit(),
            Component::LogNormal { sigma, from, scale } => from + scale * (sigma * random.normal()).exp(),
        };
        sample.ceil().clamp(1.0, f64::from(LENGTH_LIMIT)) as u32
    }
}

/// A problem of a mixture file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixtureProblem {
    /// Not JSON of the expected structure.
    #[error("{0}")]
    Json(String),
    /// It has no components.
    #[error("`mix` is empty")]
    Empty,
    /// A component that is neither `uniform` with 2 parameters nor `lognorm` with 3, or that has a weight of 0 or
    /// less.
    #[error(
        "`mix[{index}]` must be [weight > 0, \"uniform\", [loc, scale]] or [weight > 0, \"lognorm\", [s, loc, scale]]"
    )]
    Component {
        /// Its index, from 0.
        index: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_measured_histogram() {
        let Some(data) = real_parts::data() else { return };
        let mixture = Mixture::load(&data.join("agh_2015/mixture_all_length_flows.json")).unwrap();
        let histogram = std::fs::read_to_string(data.join("agh_2015/histogram_all_length.csv")).unwrap();
        let bins: Vec<(u32, f64)> = histogram
            .lines()
            .skip(1)
            .map(|line| {
                let mut cells = line.split(',');
                let _low = cells.next().unwrap();
                let high: f64 = cells.next().unwrap().parse().unwrap();
                (high as u32, cells.next().unwrap().parse().unwrap())
            })
            .collect();
        let total: f64 = bins.iter().map(|(_, flows)| flows).sum();
        let mut random = Random::new(7);
        let n = 200_000;
        let drawn: Vec<u32> = (0..n).map(|_| mixture.draw(&mut random)).collect();
        let mut measured = 0.0;
        for (high, flows) in bins.iter().filter(|(high, _)| *high <= 2000) {
            measured += flows / total;
            let ours = drawn.iter().filter(|d| *d < high).count() as f64 / f64::from(n);
            assert!(
                (ours - measured).abs() < 0.015,
                "below {high} packets: {ours} instead of {measured}"
            );
        }
    }

    #[test]
    fn invalid_mixtures_are_rejected() {
        let bad = |text: &str| Mixture::parse(text).unwrap_err();
        assert_eq!(bad(r#"{"mix": []}"#), MixtureProblem::Empty);
        assert_eq!(
            bad(r#"{"mix": [[0.5, "gamma", [1]]]}"#),
            MixtureProblem::Component { index: 0 }
        );
        assert_eq!(
            bad(r#"{"mix": [[1, "uniform", [0, 1]], [-1, "uniform", [0, 1]]]}"#),
            MixtureProblem::Component { index: 1 }
        );
        assert!(matches!(bad("{"), MixtureProblem::Json(_)));
    }

    #[test]
    fn a_length_is_at_least_one_packet() {
        let mixture = Mixture::parse(r#"{"mix": [[1, "uniform", [-5, 1]]]}"#).unwrap();
        assert_eq!(mixture.draw(&mut Random::new(1)), 1);
        assert_eq!(FlowLengths::Constant(0).draw(&mut Random::new(1)), 1);
    }
}
