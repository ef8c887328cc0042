//! Experiment 19: how many cores of a card forward at line rate, and how long a packet may take with all of them (iPipe,
//! section 2.2.2). MODEL: all figures are computed from declared cards.

use super::{Outcome, Row};

const NOTE: &str = "MODEL: computed, nothing runs. A packet takes (bytes + 20) x 8 / bandwidth of the link, and its cost of one core. The \
    cost of the CN2350 is 2.0 us and 0.55 ns for each byte; that of the PS225 is 0.22 us, with at most 16 million packets per second \
    of the whole card. Both were chosen so that the paper's eight numbers of cores follow: they are inputs, not findings. The \
    headroom is cores x time of a packet on the link, without a parameter; its limit is the paper's figure, and it is met within a \
    tenth.";

/// Preamble, start of frame and gap between frames on the link, in bytes. The paper's sizes have the check sequence.
const GAP_BYTES: u32 = 20;
/// At these no card reaches line rate.
const SMALL: [u32; 2] = [64, 128];
/// Sizes of packets of the paper's figures 2 and 3, in bytes.
const SIZES: [u32; 4] = [256, 512, 1_024, 1_500];
/// Those of figure 4.
const HEADROOM_SIZES: [u32; 2] = [256, 1_024];
/// How far a headroom may be from the paper's, which is read from a curve: a share of it.
const TOLERANCE: f64 = 0.1;

/// A card that echoes packets.
struct Card {
    name: &'static str,
    cores: u32,
    gigabits: f64,
    /// Time of a core for each packet, and for each of its bytes, in microseconds.
    packet_us: f64,
    byte_us: f64,
    /// What all cores together forward at most, in millions of packets per second.
    most_mpps: f64,
    /// The paper's cores for line rate, by [`SIZES`].
    paper_cores: [u32; 4],
    /// The paper's headroom, by [`HEADROOM_SIZES`], in microseconds.
    paper_headroom_us: [f64; 2],
}

const CARDS: [Card; 2] = [
    Card {
        name: "LiquidIOII CN2350, 12 cores, 10 Gbit/s",
        cores: 12,
        gigabits: 10.0,
        // The line through the bounds of all four sizes: 1.99 to 2.21, 2.13 to 2.55, 2.51 to 3.34, 2.43 to 3.65 us.
        packet_us: 2.0,
        byte_us: 0.000_55,
        most_mpps: f64::INFINITY,
        paper_cores: [10, 6, 4, 3],
        paper_headroom_us: [2.5, 9.8],
    },
    Card {
        name: "Stingray PS225, 8 cores, 25 Gbit/s",
        cores: 8,
        gigabits: 25.0,
        // The middle of the bounds of 256 B, 0.177 to 0.265 us, which those of the other sizes include.
        packet_us: 0.22,
        byte_us: 0.0,
        // Line rate is 11.3 at 256 B, which the card reaches, and 21.1 at 128 B, which it does not, although its cores could.
        most_mpps: 16.0,
        paper_cores: [3, 2, 1, 1],
        paper_headroom_us: [0.7, 2.6],
    },
];

impl Card {
    /// From one packet to the next at line rate, in microseconds.
    fn interval_us(&self, bytes: u32) -> f64 {
        f64::from(bytes + GAP_BYTES) * 8.0 / (self.gigabits * 1e3)
    }

    fn cost_us(&self, bytes: u32) -> f64 {
        self.packet_us + self.byte_us * f64::from(bytes)
    }

    /// The share of line rate that so many cores forward.
    fn share(&self, bytes: u32, cores: u32) -> f64 {
        let mpps = (f64::from(cores) / self.cost_us(bytes)).min(self.most_mpps);
        (mpps * self.interval_us(bytes)).min(1.0)
    }

    /// The cores that line rate needs, if the card has as many.
    fn cores_for(&self, bytes: u32) -> Option<u32> {
        (1..=self.cores).find(|cores| self.share(bytes, *cores) >= 1.0)
    }

    /// How long a core may take for each packet, if all cores together forward at line rate, in microseconds.
    fn headroom_us(&self, bytes: u32) -> f64 {
        f64::from(self.cores) * self.interval_us(bytes)
    }

    fn rows(&self) -> Vec<Row> {
        let name = self.name;
        let mut rows = Vec::new();
        for bytes in SMALL {
            let case = format!("{name}: {bytes} B, line rate with all cores");
            rows.push(
                Row::plain(case, self.share(bytes, self.cores), "share (MODEL)")
                    .below(1.0)
                    .paper("no line rate"),
            );
        }
        for (bytes, paper) in SIZES.into_iter().zip(self.paper_cores) {
            let case = format!("{name}: {bytes} B, cores for line rate");
            let cores = self.cores_for(bytes);
            let value = cores.map_or(f64::INFINITY, f64::from);
            rows.push(
                Row::plain(case, value, "cores (MODEL)")
                    .judged(f64::from(paper), cores == Some(paper))
                    .paper(paper.to_string()),
            );
        }
        for (bytes, paper) in HEADROOM_SIZES.into_iter().zip(self.paper_headroom_us) {
            let case = format!("{name}: {bytes} B, computing headroom");
            let value = self.headroom_us(bytes);
            rows.push(
                Row::plain(case, value, "us (MODEL)")
                    .judged(paper, (value / paper - 1.0).abs() <= TOLERANCE)
                    .paper(format!("{paper} us")),
            );
        }
        rows
    }
}

/// Computes it.
pub(super) fn measure() -> Outcome {
    Outcome {
        rows: CARDS.iter().flat_map(Card::rows).collect(),
        note: NOTE.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_of_cores_are_the_papers_and_headrooms_are_those_of_the_link() {
        let [liquid, stingray] = &CARDS;
        let cores = |card: &Card| SIZES.map(|bytes| card.cores_for(bytes));
        assert_eq!(cores(liquid), [Some(10), Some(6), Some(4), Some(3)]);
        assert_eq!(cores(stingray), [Some(3), Some(2), Some(1), Some(1)]);
        for card in &CARDS {
            assert_eq!(SMALL.map(|bytes| card.cores_for(bytes)), [None, None]);
        }
        for (card, expected) in [(liquid, [2.65, 10.02]), (stingray, [0.71, 2.67])] {
            for (bytes, expected) in HEADROOM_SIZES.into_iter().zip(expected) {
                let headroom = card.headroom_us(bytes);
                assert!((headroom - expected).abs() < 0.005, "{}: {headroom}", card.name);
            }
        }
        let rows = measure().rows;
        assert_eq!(rows.len(), 16);
        for row in &rows {
            assert_eq!(row.met, Some(true), "{row:?}");
            assert!(row.unit.ends_with("(MODEL)") && !row.paper.is_empty(), "{row:?}");
        }
    }

    /// The declared costs are within what the paper's numbers permit: of n cores, a packet takes more than n - 1 can give.
    #[test]
    fn the_declared_costs_are_within_the_bounds_of_the_papers_figures() {
        for card in &CARDS {
            for (bytes, cores) in SIZES.into_iter().zip(card.paper_cores) {
                let (cost, interval) = (card.cost_us(bytes), card.interval_us(bytes));
                assert!(cost > f64::from(cores - 1) * interval, "{}: {bytes}", card.name);
                assert!(cost <= f64::from(cores) * interval, "{}: {bytes}", card.name);
            }
        }
    }

    /// Another cost, or a card without its limit of packets, does not have the paper's figures.
    #[test]
    fn another_card_does_not_meet_the_limits() {
        let [liquid, stingray] = CARDS;
        let faster = Card {
            most_mpps: f64::INFINITY,
            ..stingray
        };
        assert_eq!(faster.cores_for(128), Some(5));
        let unmet = |card: &Card| card.rows().iter().filter(|row| row.met == Some(false)).count();
        // 128 B at line rate.
        assert_eq!(unmet(&faster), 1);
        let dearer = Card {
            packet_us: 3.0,
            ..liquid
        };
        // All four numbers of cores.
        assert_eq!(unmet(&dearer), 4);
    }
}
