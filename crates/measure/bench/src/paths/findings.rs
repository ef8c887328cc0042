//! What the offload evaluation reported of cards (PT-11 to PT-20), beside what this machine shows. Here is no card: where
//! the thesis compares a card with the kernel, the programs of the driver `ebpf` stand in for the faster path, and the
//! bridge for the slower one. That is said with each figure.

use crate::args::{PathName, PathScope, PathWork};

use super::outcome::{Figures, Key, Outcome};
use super::requests;

/// Less of a difference says nothing: two runs differ by that much.
const NOISE: f64 = 0.05;
/// Encryption gains this many times, at least, where PT-15 holds.
const GAIN: f64 = 5.0;
/// What stands in for a card.
const STAND_IN: (PathName, PathName) = (PathName::Ebpf, PathName::Bridge);

/// Whether this machine shows what was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Same,
    Other,
    /// It lacks what would be needed, or that was not measured.
    Unseen,
}

impl Shape {
    /// In words.
    pub(super) fn word(self) -> &'static str {
        match self {
            Shape::Same => "same",
            Shape::Other => "other",
            Shape::Unseen => "not seen here",
        }
    }

    fn of(is_same: bool) -> Shape {
        match is_same {
            true => Shape::Same,
            false => Shape::Other,
        }
    }
}

/// A finding of the thesis.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) id: &'static str,
    pub(super) reported: &'static str,
    pub(super) measured: String,
    pub(super) shape: Shape,
}

/// What is compared: a figure of the stand-in ÷ that of the bridge, at so many streams.
fn of_stand_in(outcome: &Outcome, streams: u32, figure: fn(&Figures) -> Option<f64>) -> Option<f64> {
    let (fast, slow) = STAND_IN;
    let key = |path| Key {
        path,
        scope: PathScope::Local,
        work: PathWork::Tcp,
        streams,
    };
    outcome.ratio(key(fast), key(slow), figure)
}

fn rate(figures: &Figures) -> Option<f64> {
    figures.gbps
}

fn cpu(figures: &Figures) -> Option<f64> {
    figures.cpu_s_per_gbit
}

/// All of them. `encryption` is how many times as fast a packet is encrypted with the processor's instructions as
/// without, or why that was not measured.
pub(super) fn findings(outcome: &Outcome, encryption: &Result<f64, String>) -> Vec<Finding> {
    let all = [
        pt11(outcome),
        unseen(
            "PT-12",
            "A faster machine: near line rate; the card saves less CPU time.",
            "It needs a second machine.".to_owned(),
        ),
        unseen(
            "PT-13",
            "Tunnels (Geneve): 60 to 64 Gbit/s; a card limits their CPU time with many streams.",
            tunnels(outcome),
        ),
        pt14(outcome),
        pt15(encryption),
        unseen(
            "PT-16",
            "A faster machine: encryption still gains, but less.",
            "It needs a second machine.".to_owned(),
        ),
        pt17(outcome),
        unseen(
            "PT-18",
            "The network takes about 8 % of the CPU time of containers.",
            "These programs do little but send and receive; their share says nothing.".to_owned(),
        ),
        pt19(outcome),
        pt20(outcome, encryption),
    ];
    all.into()
}

fn unseen(id: &'static str, reported: &'static str, measured: String) -> Finding {
    Finding {
        id,
        reported,
        measured,
        shape: Shape::Unseen,
    }
}

/// A finding that is seen where its figures were measured.
fn seen(id: &'static str, reported: &'static str, what: Option<(String, bool)>) -> Finding {
    match what {
        Some((measured, is_same)) => Finding {
            id,
            reported,
            measured,
            shape: Shape::of(is_same),
        },
        None => unseen(id, reported, "It was not measured.".to_owned()),
    }
}

/// The numbers of streams that the bridge was measured with, in order.
fn streams(outcome: &Outcome) -> Vec<u32> {
    let turns = outcome.turns.iter().map(|turn| turn.key);
    let mut streams: Vec<u32> = turns
        .filter(|key| (key.path, key.scope, key.work) == (STAND_IN.1, PathScope::Local, PathWork::Tcp))
        .map(|key| key.streams)
        .collect();
    streams.sort_unstable();
    streams.dedup();
    streams
}

fn pt11(outcome: &Outcome) -> Finding {
    let what = || {
        let many = streams(outcome)
            .into_iter()
            .filter(|streams| *streams >= 12)
            .max()?;
        let (throughput, cpu) = (
            of_stand_in(outcome, many, rate)?,
            of_stand_in(outcome, many, cpu)?,
        );
        let text = format!(
            "ebpf (stand-in) ÷ bridge with {many} streams: {throughput:.2} in Gbit/s, {cpu:.2} in CPU time per Gbit."
        );
        Some((text, cpu < 1.0 - NOISE))
    };
    seen(
        "PT-11",
        "veth and SR-IOV level off at about 64 Gbit/s; the card saves CPU time at 12 and 24 streams.",
        what(),
    )
}

fn tunnels(outcome: &Outcome) -> String {
    let most = streams(outcome).into_iter().max();
    let what = || {
        let streams = most?;
        let key = |path| Key {
            path,
            scope: PathScope::Across,
            work: PathWork::Tcp,
            streams,
        };
        let ratio = |figure| outcome.ratio(key(PathName::Vxlan), key(PathName::Bridge), figure);
        Some((ratio(rate)?, ratio(cpu)?, streams))
    };
    match what() {
        Some((throughput, cpu, streams)) => format!(
            "It needs a card that does tunnels. What VXLAN costs without one, ÷ bridge with {streams} streams: \
             {throughput:.2} in Gbit/s, {cpu:.2} in CPU time per Gbit."
        ),
        None => "It needs a card that does tunnels.".to_owned(),
    }
}

fn pt14(outcome: &Outcome) -> Finding {
    let what = || {
        let few: Vec<(u32, f64)> = streams(outcome)
            .into_iter()
            .filter(|streams| *streams <= 4)
            .filter_map(|streams| Some((streams, of_stand_in(outcome, streams, rate)?)))
            .collect();
        let texts: Vec<String> = few
            .iter()
            .map(|(streams, ratio)| format!("{ratio:.2} ({streams})"))
            .collect();
        let text = format!(
            "ebpf (stand-in) ÷ bridge in Gbit/s (by streams): {}.",
            texts.join(", ")
        );
        (!few.is_empty()).then(|| (text, few.iter().all(|(_, ratio)| *ratio < 1.0 - NOISE)))
    };
    seen(
        "PT-14",
        "With 1 and 4 streams the card lowers throughput; with 12 and 32 it is equal, for slightly more CPU time.",
        what(),
    )
}

fn pt15(encryption: &Result<f64, String>) -> Finding {
    let reported = "VXLAN with IPsec: 2.5 to 27 Gbit/s with encryption by the card, for more CPU time.";
    match encryption {
        Ok(gain) => seen(
            "PT-15",
            reported,
            Some((
                format!(
                    "The function ipsec, with the processor's instructions (stand-in), ÷ OpenSSL without them: {gain:.1} in \
                     packets of 1500 bytes per CPU time."
                ),
                *gain >= GAIN,
            )),
        ),
        Err(reason) => unseen("PT-15", reported, format!("It was not measured: {reason}")),
    }
}

fn pt17(outcome: &Outcome) -> Finding {
    let what = || {
        let (fast, slow) = STAND_IN;
        let of = |work| {
            let key = |path| Key {
                path,
                scope: PathScope::Local,
                work,
                streams: requests::CONNECTIONS,
            };
            let rate = outcome.ratio(key(fast), key(slow), |of| of.requests_per_s)?;
            let cpu = outcome.ratio(key(fast), key(slow), |of| of.cpu_us_per_request)?;
            Some((rate, cpu))
        };
        let (tiers, one) = (of(PathWork::Tiers), of(PathWork::Requests));
        let (rate, cpu) = tiers.or(one)?;
        let through = if tiers.is_some() {
            "three tiers"
        } else {
            "one tier"
        };
        let text = format!(
            "ebpf (stand-in) ÷ bridge, through {through}: {rate:.2} in requests/s, {cpu:.2} in CPU time per request."
        );
        let is_near = |ratio: f64| (ratio - 1.0).abs() <= 2.0 * NOISE;
        Some((text, is_near(rate) && is_near(cpu)))
    };
    seen(
        "PT-17",
        "Microservices: as many requests with a card as with veth, CPU time within a few percent.",
        what(),
    )
}

fn pt19(outcome: &Outcome) -> Finding {
    let what = || {
        let streams = streams(outcome)
            .into_iter()
            .filter(|streams| *streams >= 4)
            .min()?;
        let key = |scope| Key {
            path: PathName::Bridge,
            scope,
            work: PathWork::Tcp,
            streams,
        };
        let ratio = |figure| outcome.ratio(key(PathScope::Across), key(PathScope::Local), figure);
        let (throughput, cpu) = (ratio(rate)?, ratio(cpu)?);
        let text = format!(
            "The bridge across an uplink (stand-in for the way over the card) ÷ on one host, with {streams} streams: \
             {throughput:.2} in Gbit/s, {cpu:.2} in CPU time per Gbit."
        );
        Some((text, cpu > 1.0 + NOISE || throughput < 1.0 - NOISE))
    };
    seen(
        "PT-19",
        "Traffic between containers of one host goes over the card and back, which adds cost.",
        what(),
    )
}

fn pt20(outcome: &Outcome, encryption: &Result<f64, String>) -> Finding {
    let what = || {
        let gain = *encryption.as_ref().ok()?;
        let gains: Vec<f64> = streams(outcome)
            .into_iter()
            .filter_map(|streams| of_stand_in(outcome, streams, rate))
            .collect();
        let (least, most) = (
            gains.iter().copied().reduce(f64::min)?,
            gains.iter().copied().reduce(f64::max)?,
        );
        let text = format!(
            "ebpf (stand-in) ÷ bridge in Gbit/s: {least:.2} to {most:.2}, by the number of streams. Encryption with the \
             processor's instructions gains {gain:.1} times."
        );
        Some((text, gain >= GAIN && gain > most))
    };
    seen(
        "PT-20",
        "A card saves CPU time rather than it adds throughput; encryption gains most; it does not always pay.",
        what(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::outcome::Turn;
    use super::*;

    fn outcome(rows: &[(PathName, PathScope, u32, f64, f64)]) -> Outcome {
        let turns = rows.iter().map(|(path, scope, streams, gbps, cpu)| Turn {
            key: Key {
                path: *path,
                scope: *scope,
                work: PathWork::Tcp,
                streams: *streams,
            },
            round: 1,
            figures: Figures {
                gbps: Some(*gbps),
                cpu_s_per_gbit: Some(*cpu),
                ..Figures::default()
            },
        });
        Outcome {
            turns: turns.collect(),
            ..Outcome::default()
        }
    }

    fn shapes(outcome: &Outcome, encryption: &Result<f64, String>) -> Vec<(&'static str, Shape)> {
        let all = findings(outcome, encryption);
        all.into_iter().map(|of| (of.id, of.shape)).collect()
    }

    #[test]
    fn nothing_is_claimed_of_what_was_not_measured() {
        let shapes = shapes(&Outcome::default(), &Err("no compiler".to_owned()));
        assert_eq!(shapes.len(), 10);
        assert!(
            shapes.iter().all(|(_, shape)| *shape == Shape::Unseen),
            "{shapes:?}"
        );
    }

    #[test]
    fn each_shape_follows_from_its_figures() {
        use PathName::{Bridge, Ebpf};
        use PathScope::{Across, Local};
        let as_reported = outcome(&[
            (Bridge, Local, 1, 10.0, 0.10),
            (Ebpf, Local, 1, 8.0, 0.09),
            (Bridge, Local, 4, 20.0, 0.10),
            (Ebpf, Local, 4, 17.0, 0.09),
            (Bridge, Local, 12, 20.0, 0.10),
            (Ebpf, Local, 12, 20.0, 0.08),
            (Bridge, Across, 4, 15.0, 0.12),
        ]);
        let of = |shapes: &[(&str, Shape)], id: &str| shapes.iter().find(|of| of.0 == id).map(|of| of.1);
        let same = shapes(&as_reported, &Ok(11.0));
        for id in ["PT-11", "PT-14", "PT-15", "PT-19", "PT-20"] {
            assert_eq!(of(&same, id), Some(Shape::Same), "{id}");
        }
        let otherwise = outcome(&[
            (Bridge, Local, 4, 20.0, 0.10),
            (Ebpf, Local, 4, 30.0, 0.07),
            (Bridge, Local, 12, 20.0, 0.10),
            (Ebpf, Local, 12, 20.0, 0.10),
            (Bridge, Across, 4, 20.0, 0.10),
        ]);
        let other = shapes(&otherwise, &Ok(1.2));
        for id in ["PT-11", "PT-14", "PT-15", "PT-19", "PT-20"] {
            assert_eq!(of(&other, id), Some(Shape::Other), "{id}");
        }
        assert_eq!(of(&other, "PT-12"), Some(Shape::Unseen));
    }
}
