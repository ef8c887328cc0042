//! MODEL: what a load takes at each place and over all of them, by the figures that the owner of the places wrote.
//! Nothing here is measured. Each figure has a band: what the model leaves open.
//!
//! - **Throughput.** A place carries what its instances process and what its link carries. Beyond its collapse each
//!   dropped packet has already cost its reception, so it carries less (receive livelock, Mogul and Ramakrishnan, ACM
//!   TOCS 15(3), 1997). InReal, section 3, saw that beyond 40 Mpps on a BlueField-2. No paper has the share of the
//!   reception: see [`RECEIVE_SHARE`].
//! - **Latency.** The way there and back, the work on a packet, and the wait before it: none, M/D/1, M/M/1. Where packets
//!   are lost, a full ring waits.
//! - **Watts.** Idle watts, and those of each busy core. Functions that sleep are busy for their packets only, functions
//!   that poll for their whole quota. Estimates from what an operating system sees have an idle error of 3 to 15 W
//!   (Kepler, number 2466): [`WATTS_ERROR`].

use crate::order::{Costs, SAME, ranks};
use crate::{Goal, PlaceId, Placement};

/// The share of a packet's cost that is its reception: lowest, expected, highest.
pub const RECEIVE_SHARE: (f64, f64, f64) = (0.0, 0.2, 0.4);
/// Watts by which a model may be wrong.
pub const WATTS_ERROR: f64 = 15.0;
/// The share of its capacity to which autoscalers fill an instance, if nothing else is known.
pub const TARGET: f64 = 0.75;
/// Losses that differ by less are equal.
const SAME_LOSS: f64 = 0.001;
/// Bytes of a frame on the wire beside the frame: preamble, check sequence and gap of Ethernet.
pub const WIRE_BYTES: f64 = 24.0;

/// A figure and what the model leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Band {
    /// Least.
    pub low: f64,
    /// Expected.
    pub expected: f64,
    /// Most.
    pub high: f64,
}

impl Band {
    const fn exactly(value: f64) -> Band {
        Band {
            low: value,
            expected: value,
            high: value,
        }
    }

    fn each(self, other: Band, of: impl Fn(f64, f64) -> f64) -> Band {
        Band {
            low: of(self.low, other.low),
            expected: of(self.expected, other.expected),
            high: of(self.high, other.high),
        }
    }

    fn plus(self, other: Band) -> Band {
        self.each(other, |a, b| a + b)
    }
}

/// A place as its owner wrote it, for one service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Packets per second of one instance there, above 0.
    pub instance_pps: f64,
    /// CPUs of one instance there, above 0.
    pub instance_cpus: f64,
    /// Most instances.
    pub instances: u32,
    /// Most packets per second that it is given; [`None`] for no limit.
    pub limit_pps: Option<f64>,
    /// Packets per second beyond which it carries less; [`None`] if it is not known to.
    pub collapse_pps: Option<f64>,
    /// Seconds from the switch to the place.
    pub latency_s: f64,
    /// Bytes per second between the switch and the place, in each direction; [`None`] for no limit.
    pub link_bytes_per_s: Option<f64>,
    /// Watts without load.
    pub idle_watts: Option<f64>,
    /// Watts of a busy core.
    pub watts_per_core: Option<f64>,
}

/// What is offered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Packets per second.
    pub pps: f64,
    /// Bytes of a frame.
    pub frame_bytes: f64,
    /// Packets that the ring of an instance holds.
    pub ring_slots: f64,
    /// The share of its capacity to which an instance is filled.
    pub target: f64,
    /// Most instances of the service.
    pub instances: u32,
}

/// What a place gets of the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// The place.
    pub place: PlaceId,
    /// Packets per second that it is given.
    pub pps: f64,
    /// Instances there.
    pub instances: u32,
}

/// What one placement makes of the load.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The placement.
    pub placement: Placement,
    /// What each place gets that gets anything.
    pub parts: Vec<Part>,
    /// Packets per second that are carried.
    pub throughput_pps: Band,
    /// The lost share of the load.
    pub loss: Band,
    /// Mean seconds from the switch through a function and back.
    pub latency_s: Band,
    /// CPUs of the instances together.
    pub cpus: f64,
    /// Those at places other than the first.
    pub cpus_elsewhere: f64,
    /// Watts of all places, those without load included; [`None`] where one has no power figures.
    pub watts: Option<Band>,
}

/// One placement of those that were compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Its position in the list.
    pub index: usize,
    /// Why.
    pub reason: String,
}

impl Site {
    /// Most instances of which the sum of capacities is within the limits.
    fn most(&self, load: &Load) -> u32 {
        let each = self.each_pps(load);
        let limits = self.limit_pps.into_iter().chain(self.link_pps(load));
        let by_limit = limits.fold(f64::INFINITY, |least, limit| least.min((limit / each).floor()));
        by_limit.min(f64::from(self.instances.min(load.instances))) as u32
    }

    /// What counts in the order of the places.
    fn costs(&self) -> Costs {
        Costs {
            latency_s: self.latency_s,
            watts_per_core: self.watts_per_core,
            pps_per_core: self.instance_pps / self.instance_cpus,
        }
    }

    /// Packets per second of its link; [`None`] for no limit.
    fn link_pps(&self, load: &Load) -> Option<f64> {
        self.link_bytes_per_s
            .map(|link| link / (load.frame_bytes + WIRE_BYTES))
    }

    /// Packets per second of one instance, as much as its link carries at most.
    fn each_pps(&self, load: &Load) -> f64 {
        self.link_pps(load)
            .map_or(self.instance_pps, |link| link.min(self.instance_pps))
    }

    /// Packets per second up to which no further place is needed.
    fn room(&self, load: &Load) -> f64 {
        f64::from(self.most(load)) * self.each_pps(load) * load.target
    }

    /// Packets per second that `instances` carry of what is offered, where reception has that share of the cost.
    fn carries(&self, pps: f64, instances: u32, load: &Load, receive_share: f64) -> f64 {
        let bytes = load.frame_bytes + WIRE_BYTES;
        let arrives = self.link_bytes_per_s.map_or(pps, |link| pps.min(link / bytes));
        let of_place = match self.collapse_pps {
            Some(peak) if arrives > peak => {
                ((peak - receive_share * arrives) / (1.0 - receive_share)).max(0.0)
            }
            _ => arrives,
        };
        of_place.min(f64::from(instances) * self.instance_pps)
    }

    /// Seconds of a packet that is carried.
    fn latency(&self, pps: f64, instances: u32, load: &Load) -> Band {
        let work = 1.0 / self.instance_pps;
        let full = load.ring_slots * work;
        let busy = pps / (f64::from(instances) * self.instance_pps);
        let is_over = busy >= 1.0 || self.collapse_pps.is_some_and(|peak| pps > peak);
        let wait = |of: f64| if is_over { full } else { (of * work).min(full) };
        let way = 2.0 * self.latency_s + work;
        Band {
            low: way,
            expected: way + wait(busy / (2.0 * (1.0 - busy))),
            high: way + wait(busy / (1.0 - busy)),
        }
    }
}

/// What each placement makes of the load: `auto` in the order for the goal, `split` where there are several places, and
/// each place alone.
pub fn estimates(sites: &[Site], load: &Load, goal: Goal) -> Vec<Estimate> {
    let alone = (0..sites.len()).map(|index| Placement::At(PlaceId(index as u8)));
    let spread = [Placement::Auto, Placement::Split];
    let all = spread.into_iter().filter(|_| sites.len() > 1).chain(alone);
    all.map(|placement| estimate(sites, load, placement, goal))
        .collect()
}

/// Packets per second for each place.
fn divided(sites: &[Site], load: &Load, placement: Placement, goal: Goal) -> Vec<f64> {
    let rooms: Vec<f64> = sites.iter().map(|site| site.room(load)).collect();
    let all: f64 = rooms.iter().sum();
    match placement {
        Placement::At(place) => {
            let share = |index| if index == place.index() { load.pps } else { 0.0 };
            (0..sites.len()).map(share).collect()
        }
        Placement::Split => rooms
            .iter()
            .map(|room| load.pps * room / all.max(f64::MIN_POSITIVE))
            .collect(),
        Placement::Auto => {
            let mut left = load.pps;
            let mut gets = |most: f64| {
                let gets = left.min(most);
                left -= gets;
                gets
            };
            let mut order: Vec<usize> = (0..sites.len().min(PlaceId::LIMIT)).collect();
            let ranks = ranks(goal, sites.iter().map(Site::costs));
            order.sort_by_key(|index| ranks.get(*index));
            let mut parts = vec![0.0; sites.len()];
            // Where all are filled to the target, schedulers fill them further.
            let further = |room: f64| room / load.target - room;
            for is_full in [false, true] {
                for index in &order {
                    if let Some((part, room)) = parts.get_mut(*index).zip(rooms.get(*index)) {
                        *part += gets(if is_full { further(*room) } else { *room });
                    }
                }
            }
            if let Some(last) = order.last().and_then(|index| parts.get_mut(*index)) {
                *last += left;
            }
            parts
        }
    }
}

/// What one placement makes of the load.
pub fn estimate(sites: &[Site], load: &Load, placement: Placement, goal: Goal) -> Estimate {
    let (low, expected, high) = RECEIVE_SHARE;
    let mut result = Estimate {
        placement,
        parts: Vec::new(),
        throughput_pps: Band::default(),
        loss: Band::default(),
        latency_s: Band::default(),
        cpus: 0.0,
        cpus_elsewhere: 0.0,
        watts: Some(Band::default()),
    };
    for (index, (site, pps)) in sites
        .iter()
        .zip(divided(sites, load, placement, goal))
        .enumerate()
    {
        let needed = share_up(pps / (site.instance_pps * load.target));
        // One place alone is given everything, whatever its limit.
        let most = match placement {
            Placement::At(_) => site.instances.min(load.instances),
            Placement::Auto | Placement::Split => site.most(load),
        };
        let instances = if pps > 0.0 { needed.min(most).max(1) } else { 0 };
        let reserved = f64::from(instances) * site.instance_cpus;
        let mut busy = Band::default();
        if pps > 0.0 {
            let carries = |receive_share| site.carries(pps, instances, load, receive_share);
            let carried = Band {
                low: carries(high),
                expected: carries(expected),
                high: carries(low),
            };
            let is_over = site.collapse_pps.is_some_and(|peak| pps > peak);
            let used = carried.expected / site.instance_pps * site.instance_cpus;
            let used = if is_over { reserved } else { used };
            busy = Band {
                low: used,
                expected: used,
                high: reserved,
            };
            let place = PlaceId(index as u8);
            result.parts.push(Part {
                place,
                pps,
                instances,
            });
            result.throughput_pps = result.throughput_pps.plus(carried);
            let part = Band::exactly(pps / load.pps);
            let latency = site.latency(pps, instances, load).each(part, |s, part| s * part);
            result.latency_s = result.latency_s.plus(latency);
        }
        result.cpus += reserved;
        result.cpus_elsewhere += if index > 0 { reserved } else { 0.0 };
        let of_site = site.idle_watts.zip(site.watts_per_core);
        let of_site =
            of_site.map(|(idle, each)| busy.each(Band::exactly(each), |cpus, each| idle + cpus * each));
        result.watts = result.watts.zip(of_site).map(|(sum, of)| sum.plus(of));
    }
    let lost = |carried: f64| (1.0 - carried / load.pps.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
    result.loss = Band {
        low: lost(result.throughput_pps.high),
        expected: lost(result.throughput_pps.expected),
        high: lost(result.throughput_pps.low),
    };
    result.watts = result.watts.map(|watts| Band {
        low: (watts.low - WATTS_ERROR).max(0.0),
        expected: watts.expected,
        high: watts.high + WATTS_ERROR,
    });
    result
}

/// The estimate that suits the goal. Of those that do not differ by more than the model can tell, the first.
/// [`None`] if there is none.
pub fn choose(all: &[Estimate], goal: Goal) -> Option<Choice> {
    let least = all.iter().map(|of| of.loss.expected).reduce(f64::min)?;
    let loses_least = |of: &Estimate| of.loss.expected <= least + SAME_LOSS;
    let has_watts = all.iter().all(|of| of.watts.is_some());
    let cost = |of: &Estimate| match goal {
        Goal::Performance => of.latency_s.expected,
        Goal::Cpu => of.cpus_elsewhere,
        Goal::Power => of.watts.map_or(0.0, |watts| watts.expected),
    };
    let mut candidates = all.iter().enumerate().filter(|(_, of)| loses_least(of));
    let first = candidates.next()?;
    let margin = |known: f64| {
        if goal == Goal::Power {
            WATTS_ERROR
        } else {
            SAME * known
        }
    };
    let (index, best) = candidates.fold(first, |best, of| {
        let known = cost(best.1);
        if cost(of.1) < known - margin(known) {
            of
        } else {
            best
        }
    });
    let loss = format!("loses least ({:.2} %)", 100.0 * best.loss.expected);
    let others = all.iter().filter(|of| loses_least(of)).count();
    let reason = match goal {
        _ if others == 1 => format!("it {loss}"),
        Goal::Performance => format!(
            "of those that lose least, none has a shorter latency by more than {:.0} %",
            SAME * 100.0
        ),
        Goal::Cpu => format!(
            "of those that lose least, none needs fewer CPUs beside the first place ({:.2})",
            best.cpus_elsewhere
        ),
        Goal::Power if !has_watts => format!("it {loss}; a place has no idle_watts or watts_per_core"),
        Goal::Power => format!(
            "of those that lose least, none takes fewer watts by more than the error of the model ({WATTS_ERROR} W)"
        ),
    };
    Some(Choice { index, reason })
}

/// A count that is enough, without one more for a rounding error.
fn share_up(count: f64) -> u32 {
    (count - 1e-9).ceil().clamp(0.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GUARD;

    const CARD: Placement = Placement::At(PlaceId(0));
    const HOST: Placement = Placement::At(PlaceId(1));

    /// A BlueField-2 and its host with the figures of InReal: 8 cores each, a cliff at 40 Mpps, 42 W and 11 W for each
    /// function of the host. The paper has no watts of the card's cores.
    fn sites() -> [Site; 2] {
        let card = Site {
            instance_pps: 5e6,
            instance_cpus: 1.0,
            instances: 8,
            limit_pps: Some(GUARD * 40e6),
            collapse_pps: Some(40e6),
            latency_s: 0.0,
            link_bytes_per_s: None,
            idle_watts: Some(75.0),
            watts_per_core: Some(1.0),
        };
        let host = Site {
            instance_pps: 12.5e6,
            limit_pps: None,
            collapse_pps: None,
            latency_s: 1e-6,
            link_bytes_per_s: Some(12.5e9),
            idle_watts: Some(42.0),
            watts_per_core: Some(11.0),
            ..card
        };
        [card, host]
    }

    fn load(pps: f64) -> Load {
        Load {
            pps,
            frame_bytes: 64.0,
            ring_slots: 1024.0,
            target: 0.75,
            instances: 16,
        }
    }

    fn of(pps: f64, placement: Placement) -> Estimate {
        estimate(&sites(), &load(pps), placement, Goal::Performance)
    }

    #[test]
    fn the_card_collapses_beyond_its_cliff() {
        let carried = |pps| of(pps, CARD).throughput_pps;
        assert_eq!(carried(40e6), Band::exactly(40e6));
        let beyond = carried(60e6);
        assert_eq!(beyond.high, 40e6, "reception for nothing: a plateau");
        assert!(
            beyond.expected < 0.9 * 40e6 && beyond.low < beyond.expected,
            "{beyond:?}"
        );
        assert!(carried(100e6).expected < beyond.expected);
    }

    #[test]
    fn watts_of_the_host_meet_the_paper() {
        let host = [sites()[1]];
        let watts = |instances: f64| {
            let load = Load {
                pps: instances * 12.5e6,
                target: 1.0,
                ..load(0.0)
            };
            estimate(&host, &load, Placement::At(PlaceId(0)), Goal::Power)
                .watts
                .unwrap()
        };
        // InReal, figure 2a: about 75 W with three, up to 130 W with eight.
        for (instances, measured) in [(3.0, 75.0), (8.0, 130.0)] {
            let watts = watts(instances);
            assert!((watts.expected - measured).abs() < 0.01, "{watts:?}");
            assert!(watts.low <= measured - WATTS_ERROR && watts.high >= measured + WATTS_ERROR);
        }
    }

    #[test]
    fn auto_fills_the_card_and_gives_the_rest_to_the_host() {
        let parts = |pps| of(pps, Placement::Auto).parts;
        assert_eq!(parts(10e6).len(), 1);
        let both = parts(60e6);
        // Seven instances of 5 Mpps are within 36 Mpps, and are filled to three quarters.
        assert_eq!((both[0].pps, both[0].instances), (7.0 * 5e6 * 0.75, 7));
        assert_eq!(both[0].pps + both[1].pps, 60e6);
    }

    #[test]
    fn auto_is_within_two_percent_of_the_best_placement_at_every_load() {
        for mpps in 1..=130 {
            let all = estimates(&sites(), &load(f64::from(mpps) * 1e6), Goal::Performance);
            let best = all
                .iter()
                .map(|of| of.throughput_pps.expected)
                .fold(0.0, f64::max);
            assert_eq!(all[0].placement, Placement::Auto);
            assert!(
                all[0].throughput_pps.expected >= 0.98 * best,
                "{mpps} Mpps: {all:#?}"
            );
        }
    }

    #[test]
    fn the_choice_follows_the_goal_and_says_why() {
        let choose = |mpps: f64, goal| {
            let all = estimates(&sites(), &load(mpps * 1e6), goal);
            let choice = choose(&all, goal).unwrap();
            (all[choice.index].placement, choice.reason)
        };
        // At the card all is near, and no CPU of the host is used.
        assert_eq!(choose(10.0, Goal::Performance).0, Placement::Auto);
        assert_eq!(choose(10.0, Goal::Cpu).0, Placement::Auto);
        // Beyond the cliff the card alone loses packets.
        let (placement, reason) = choose(60.0, Goal::Cpu);
        assert_ne!(placement, CARD);
        assert!(reason.contains("CPUs beside the first place"), "{reason}");
        // Fewer watts than the error of the model are no reason.
        let (placement, reason) = choose(5.0, Goal::Power);
        assert_ne!(placement, HOST);
        assert!(reason.contains("15 W"), "{reason}");
        // Without watts, only the loss counts.
        let mut dark = sites();
        dark[0].idle_watts = None;
        let all = estimates(&dark, &load(5e6), Goal::Power);
        let reason = super::choose(&all, Goal::Power).unwrap().reason;
        assert!(reason.contains("no idle_watts"), "{reason}");
    }

    #[test]
    fn a_link_is_a_limit_and_a_distance() {
        let mut sites = sites();
        sites[1].link_bytes_per_s = Some(88.0 * 10e6);
        let carried = |sites: &[Site]| estimate(sites, &load(20e6), HOST, Goal::Performance).throughput_pps;
        assert_eq!(carried(&sites), Band::exactly(10e6));
        let (near, far) = (of(1e6, CARD).latency_s, of(1e6, HOST).latency_s);
        assert!((far.low - near.low - (2e-6 + 1.0 / 12.5e6 - 1.0 / 5e6)).abs() < 1e-12);
        assert!(near.low < near.expected && near.expected < near.high, "{near:?}");
    }
}
