//! Mixes of small and large flows, at a rate that every path carries: what a packet costs. And whether the path `hybrid`, which
//! gives each flow the path that it is worth, costs more than the best path for all flows.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use path_costs::Figure;
use testbed::Interrupt;
use traffic::{LengthSource, Phase, Rate, Size, Span};

use super::bed::{Bed, FIRST_PORT};
use super::outcome::{Figures, Key, Outcome};
use super::packets::{self, SIZE};
use crate::args::{PathName, PathScope, PathWork};

/// Large flows at a time: they last the whole turn.
pub(super) const LARGE_FLOWS: u32 = 16;
/// Packets per second of all flows.
const PPS: f64 = 40_000.0;
/// Packets of a small flow, and its rate: it lasts 50 ms.
const SMALL_PACKETS: u32 = 10;
const SMALL_PPS: f64 = 200.0;
/// A turn in which more is lost says nothing of what a packet costs.
const LOSS_LIMIT: f64 = 0.05;
/// Rounds from which on a bound is given.
const ROUNDS: usize = 10;
/// How much of the best path for all flows `hybrid` is to reach.
pub(super) const LIMIT: f64 = 0.93;
/// The same as the heading of a column.
pub(super) const LIMIT_HEADING: &str = "at least 0.93";
/// The paths for all flows: `hybrid` gives each flow one of them.
const STATIC: [PathName; 2] = [PathName::SoftKernel, PathName::Ebpf];
/// The mixes.
const WORKS: [PathWork; 3] = [PathWork::MixLarge, PathWork::MixHalf, PathWork::MixSmall];

/// Which part of the packets large flows have; none for other work.
fn large(work: PathWork) -> Option<f64> {
    match work {
        PathWork::MixLarge => Some(1.0),
        PathWork::MixHalf => Some(0.5),
        PathWork::MixSmall => Some(0.0),
        _ => None,
    }
}

/// The flows of a mix.
fn phases(work: PathWork, src: IpAddr, dst: IpAddr, duration: Duration) -> Result<Vec<Phase>> {
    let large = large(work).context("this work is no mix")?;
    let of = |flows, src| Phase {
        duration: Span(duration),
        flows,
        size: Size::Fixed(SIZE),
        src,
        dst,
        dst_port: FIRST_PORT,
        ..Phase::default()
    };
    let mut phases = Vec::new();
    if large > 0.0 {
        phases.push(Phase {
            rate: Some(Rate(PPS * large)),
            ..of(LARGE_FLOWS, src)
        });
    }
    if large < 1.0 {
        let per_second = PPS * (1.0 - large) / f64::from(SMALL_PACKETS);
        // More than the time brings, so that none is missing at its end.
        let flows = (per_second * duration.as_secs_f64() * 1.2) as u32 + 64;
        phases.push(Phase {
            rate_per_flow: Some(Rate(SMALL_PPS)),
            arrivals: Some(per_second),
            lengths: Some(LengthSource::Packets(SMALL_PACKETS)),
            // Their ports tell them from the large ones.
            src_port: 2048,
            ..of(flows, src)
        });
    }
    Ok(phases)
}

/// A turn.
pub(super) fn turn(bed: &Bed<'_>, interrupt: &Interrupt, work: PathWork, seconds: u64) -> Result<Figures> {
    let mut ports = [bed.port()?];
    packets::probe(bed, &mut ports, interrupt)?;
    let [src, dst] = packets::ends(bed)?;
    let phases = phases(work, src, dst, Duration::from_secs(seconds))?;
    let (report, cpu) = packets::run(&mut ports, phases)?;
    let (offered, returned) = (report.counts.offered_packets, report.counts.returned_packets);
    ensure!(offered > 0, "nothing was sent");
    let lost = offered.saturating_sub(returned) as f64 / offered as f64;
    ensure!(
        lost <= LOSS_LIMIT,
        "{:.0} % of {PPS} packets/s were lost",
        lost * 100.0
    );
    Ok(Figures {
        cpu_ns_per_packet: Some(cpu.busy_s * 1e9 / returned as f64),
        p50_us: Some(report.latency_us.p50),
        p99_us: Some(report.latency_us.p99),
        ..Figures::default()
    })
}

/// `hybrid` beside the best path for all flows, in one mix.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Comparison {
    pub(super) scope: PathScope,
    pub(super) work: PathWork,
    /// The path whose packets cost least, by its median.
    pub(super) best: PathName,
    /// What a packet costs there ÷ what it costs by `hybrid`, in the same round: as a CPU carries so many packets as its time
    /// permits, this is the quotient of throughputs, too. The median.
    pub(super) ratio: f64,
    /// With 95 % the median is at least that; none with fewer than ten rounds.
    pub(super) lower: Option<f64>,
    pub(super) rounds: usize,
}

impl Comparison {
    /// Whether the limit is reached, in a word.
    pub(super) fn verdict(&self) -> &'static str {
        match self.lower {
            None => "needs 10 rounds",
            Some(lower) if lower >= LIMIT => "reached",
            Some(_) => "missed",
        }
    }
}

/// Of each mix that `hybrid` and another path carried in the same rounds.
pub(super) fn comparisons(outcome: &Outcome) -> Vec<Comparison> {
    let mut all = Vec::new();
    for scope in PathScope::ALL {
        for work in WORKS {
            let key = |path| Key {
                path,
                scope,
                work,
                streams: LARGE_FLOWS,
            };
            let cost = |path| Some((outcome.median(key(path), of_packet)?, path));
            let best = STATIC.into_iter().filter_map(cost);
            let Some((_, best)) = best.min_by(|one, other| one.0.total_cmp(&other.0)) else {
                continue;
            };
            let ratios = outcome.ratios(key(best), key(PathName::Hybrid), of_packet);
            let Some(figure) = Figure::of(&ratios) else {
                continue;
            };
            all.push(Comparison {
                scope,
                work,
                best,
                ratio: figure.median,
                lower: lower(&ratios),
                rounds: ratios.len(),
            });
        }
    }
    all
}

fn of_packet(figures: &Figures) -> Option<f64> {
    figures.cpu_ns_per_packet
}

/// The lower bound of the median, without an assumption about how values are spread: the order statistic of the sign test
/// (Conover, "Practical Nonparametric Statistics", section 3.2). The median is below the k-th least of n values only if
/// fewer than k of them are below the median, which has the probability of fewer than k heads of n coins.
fn lower(values: &[f64]) -> Option<f64> {
    let count = values.len();
    if count < ROUNDS {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut heads = 0.5_f64.powi(i32::try_from(count).ok()?);
    let (mut fewer, mut bound) = (0.0, None);
    for (k, value) in sorted.iter().enumerate() {
        // `fewer` is the probability of at most k heads.
        fewer += heads;
        if fewer > 0.05 {
            break;
        }
        bound = Some(*value);
        heads *= (count - k) as f64 / (k + 1) as f64;
    }
    bound
}

#[cfg(test)]
mod tests {
    use super::super::outcome::Turn;
    use super::*;

    fn outcome(rounds: u32, of: impl Fn(PathName, u32) -> f64) -> Outcome {
        let paths = [PathName::SoftKernel, PathName::Ebpf, PathName::Hybrid];
        let turns = (1..=rounds).flat_map(|round| paths.map(|path| (round, path)));
        let turn = |(round, path)| Turn {
            key: Key {
                path,
                scope: PathScope::Local,
                work: PathWork::MixHalf,
                streams: LARGE_FLOWS,
            },
            round,
            figures: Figures {
                cpu_ns_per_packet: Some(of(path, round)),
                ..Figures::default()
            },
        };
        Outcome {
            turns: turns.map(turn).collect(),
            ..Outcome::default()
        }
    }

    #[test]
    fn hybrid_is_compared_with_the_best_path_round_by_round() {
        let of = |path, round| match path {
            PathName::SoftKernel => 4_000.0,
            // Rounds differ more than paths.
            PathName::Ebpf => 1_000.0 * f64::from(round),
            _ => 1_000.0 * f64::from(round) / if round == 3 { 0.5 } else { 0.96 },
        };
        let found = comparisons(&outcome(7, of));
        let [few] = &found[..] else { panic!("{found:?}") };
        assert_eq!((few.work, few.lower, few.rounds), (PathWork::MixHalf, None, 7));
        assert_eq!(few.verdict(), "needs 10 rounds");
        let of = |path, round| {
            let of = of(path, round);
            if path == PathName::SoftKernel { 1e6 } else { of }
        };
        let many = &comparisons(&outcome(10, of))[0];
        assert_eq!(many.best, PathName::Ebpf);
        assert!((many.ratio - 0.96).abs() < 1e-9, "{many:?}");
        // One low value of ten is no reason to doubt the median.
        assert!((many.lower.unwrap() - 0.96).abs() < 1e-9 && many.verdict() == "reached");
        let worse = |path, round| of(path, round) * if path == PathName::Hybrid { 1.1 } else { 1.0 };
        assert_eq!(comparisons(&outcome(10, worse))[0].verdict(), "missed");
    }

    #[test]
    fn without_one_of_them_nothing_is_compared() {
        let mut alone = outcome(10, |_, _| 1.0);
        alone.turns.retain(|turn| turn.key.path == PathName::Hybrid);
        assert_eq!(comparisons(&alone), []);
        let mut without = outcome(10, |_, _| 1.0);
        without.turns.retain(|turn| turn.key.path != PathName::Hybrid);
        assert_eq!(comparisons(&without), []);
    }

    #[test]
    fn the_bound_is_that_of_the_sign_test() {
        let values = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        // At most 1 of 10 heads: 0.011; 2 of 10: 0.055. At most 5 of 20: 0.021; 6 of 20: 0.058.
        assert_eq!(lower(&values(9)), None);
        assert_eq!(lower(&values(10)), Some(2.0));
        assert_eq!(lower(&values(20)), Some(6.0));
    }

    #[test]
    fn a_mix_has_its_packets_per_second() {
        let [src, dst] = ["10.76.0.10", "10.76.0.100"].map(|of| of.parse().unwrap());
        let mix = |work| phases(work, src, dst, Duration::from_secs(1)).unwrap();
        let half = mix(PathWork::MixHalf);
        assert_eq!(half[0].rate, Some(Rate(20_000.0)));
        assert_eq!(half[1].arrivals, Some(2_000.0));
        // Of all that arrive, whatever the chance is.
        assert_eq!((half[0].flows, half[1].flows), (LARGE_FLOWS, 2_464));
        assert_eq!(
            [PathWork::MixLarge, PathWork::MixSmall].map(|work| mix(work).len()),
            [1, 1]
        );
        assert!(phases(PathWork::Packets, src, dst, Duration::ZERO).is_err());
    }
}
