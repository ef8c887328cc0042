//! The invariants: what the generator and inco say before and after a fault, compared.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use api::types::Accounting;
use model::DropReason;
use traffic::{Counts, FlowNow};

/// One bed at rest: nothing is sent, nothing is under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// The generator's counts.
    pub(crate) counts: Counts,
    /// Its flows.
    pub(crate) flows: Vec<FlowNow>,
    /// inco's process.
    pub(crate) pid: u32,
    /// Packets that inco dropped, by reason.
    pub(crate) drops: BTreeMap<String, u64>,
    /// Those of the inco that was killed since the reading before, with its process.
    pub(crate) last_drops: Option<(u32, BTreeMap<String, u64>)>,
    /// inco's own accounting, since its start.
    pub(crate) accounting: Accounting,
    /// Whether requests are counted and not packets: inco does not count those that fail with their instance.
    pub(crate) are_requests: bool,
}

impl Reading {
    /// Packets that inco cannot account for.
    fn unaccounted(&self) -> i64 {
        unaccounted(&self.accounting)
    }
}

/// Packets that are neither returned nor dropped: those in flight, and those of which inco says nothing.
pub(crate) fn unaccounted(of: &Accounting) -> i64 {
    of.gap().saturating_add_unsigned(of.in_flight)
}

/// Which losses a fault explains, besides those of flows of instances that fail by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Losses {
    /// None.
    #[default]
    None,
    /// What was between the network and inco when the network left.
    UnderWay,
    /// All: the switch itself was gone.
    All,
}

/// What a fault explains.
#[derive(Clone, Debug, Default)]
pub(crate) struct Excuse {
    /// Instances that may fail: their flows may move, and lose what inco counts as dropped. An event must name each.
    pub(crate) instances: BTreeSet<u32>,
    /// Other losses.
    pub(crate) losses: Losses,
    /// Whether inco itself may end. A successor takes over.
    pub(crate) inco_ends: bool,
}

/// Broken promises, in packets and flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Packets on another instance than their flow's.
    pub(crate) mis_steered: u64,
    /// Flows that moved although the fault does not explain it.
    pub(crate) unexpected_moves: u64,
    /// Packets that are missing and neither counted nor explained.
    pub(crate) unaccounted: u64,
    /// Packets that came twice.
    pub(crate) duplicated: u64,
    /// Packets that came after a later one of their flow.
    pub(crate) reordered: u64,
    /// Packets that are missing, explained ones included.
    pub(crate) lost: u64,
    /// Flows that moved, explained ones included.
    pub(crate) moved: u64,
}

impl Findings {
    /// Whether every promise was kept.
    pub(crate) fn is_clean(&self) -> bool {
        self.mis_steered + self.unexpected_moves + self.unaccounted + self.duplicated + self.reordered == 0
    }
}

/// Compares two readings of a bed. `named`: the instances that events between them name as failed or purged. `gone`:
/// those that earlier faults explained, to which this one's are added. A flow that had no packet since its instance
/// failed is found elsewhere later.
pub(crate) fn judge(
    before: &Reading,
    after: &Reading,
    named: &BTreeSet<u32>,
    excuse: &Excuse,
    gone: &mut BTreeSet<u32>,
) -> Findings {
    let (b, a) = (&before.counts, &after.counts);
    let lost = a.missing().saturating_sub(b.missing());
    let moved = a.expected_moves.saturating_sub(b.expected_moves);
    let explained: BTreeSet<u32> = named.intersection(&excuse.instances).copied().collect();
    let known: HashMap<(u16, u32), &FlowNow> = before
        .flows
        .iter()
        .map(|flow| ((flow.source, flow.index), flow))
        .collect();
    let late_moves = before
        .flows
        .iter()
        .filter(|flow| gone.contains(&flow.instance))
        .count() as u64;
    gone.extend(&explained);
    let (mut stray_moves, mut stray_losses) = (0, 0);
    for flow in &after.flows {
        let Some(was) = known
            .get(&(flow.source, flow.index))
            .filter(|was| was.instance != 0)
        else {
            continue;
        };
        if gone.contains(&was.instance) {
            continue;
        }
        stray_moves += u64::from(flow.instance != was.instance);
        let missing = |of: &FlowNow| of.offered_packets - of.returned_packets;
        stray_losses += missing(flow).saturating_sub(missing(was));
    }
    let drops = drops_between(before, after);
    let explained_losses = match excuse.losses {
        Losses::All => lost,
        Losses::UnderWay => a.lost_in_restarts - b.lost_in_restarts,
        Losses::None if !explained.is_empty() && after.are_requests => lost,
        Losses::None if !explained.is_empty() => drops.values().sum(),
        // Flows of an instance that failed by an earlier fault still wait for another one.
        Losses::None if late_moves > 0 => drops.get(DropReason::NoInstance.name()).copied().unwrap_or(0),
        Losses::None => 0,
    };
    let unexplained = lost.saturating_sub(explained_losses);
    let unaccounted_before = match before.pid == after.pid {
        true => before.unaccounted(),
        false => 0,
    };
    Findings {
        mis_steered: a.mis_steered.saturating_sub(b.mis_steered),
        unexpected_moves: match explained.is_empty() {
            true => moved.saturating_sub(late_moves).max(stray_moves),
            false => stray_moves,
        },
        unaccounted: (after.unaccounted() - unaccounted_before).unsigned_abs()
            + match excuse.losses {
                Losses::None => unexplained.max(stray_losses),
                _ => unexplained,
            },
        duplicated: a.duplicated - b.duplicated,
        reordered: (a.reordered + a.beyond_window) - (b.reordered + b.beyond_window),
        lost,
        moved,
    }
}

/// Packets that inco dropped between two readings by reason, without reasons that did not grow. A new process counts
/// from 0.
pub(crate) fn drops_between(before: &Reading, after: &Reading) -> BTreeMap<String, u64> {
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |pid: u32, drops: &BTreeMap<String, u64>| {
        for (reason, count) in drops {
            let was = before.drops.get(reason).filter(|_| before.pid == pid);
            *all.entry(reason.clone()).or_default() += count.saturating_sub(was.copied().unwrap_or(0));
        }
    };
    add(after.pid, &after.drops);
    if let Some((pid, drops)) = &after.last_drops {
        add(*pid, drops);
    }
    all.retain(|_, count| *count > 0);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(index: u32, instance: u32, offered: u64, returned: u64) -> FlowNow {
        FlowNow {
            index,
            instance,
            offered_packets: offered,
            returned_packets: returned,
            ..FlowNow::default()
        }
    }

    fn reading(flows: Vec<FlowNow>, moves: u64, dropped: u64) -> Reading {
        Reading {
            counts: Counts {
                offered_packets: flows.iter().map(|flow| flow.offered_packets).sum(),
                returned_packets: flows.iter().map(|flow| flow.returned_packets).sum(),
                expected_moves: moves,
                ..Counts::default()
            },
            flows,
            pid: 1,
            drops: [("instance_lost".to_owned(), dropped)].into(),
            ..Reading::default()
        }
    }

    fn judge(before: &Reading, after: &Reading, named: &BTreeSet<u32>, excuse: &Excuse) -> Findings {
        super::judge(before, after, named, excuse, &mut BTreeSet::new())
    }

    fn excuse(instances: &[u32]) -> Excuse {
        Excuse {
            instances: instances.iter().copied().collect(),
            ..Excuse::default()
        }
    }

    #[test]
    fn flows_of_a_failed_instance_may_move_and_lose_what_is_counted() {
        let before = reading(vec![flow(0, 1, 10, 10), flow(1, 2, 10, 10)], 0, 5);
        let after = reading(vec![flow(0, 3, 20, 16), flow(1, 2, 20, 20)], 1, 9);
        let named = BTreeSet::from([1]);
        let found = judge(&before, &after, &named, &excuse(&[1]));
        assert!(
            found.is_clean() && found.lost == 4 && found.moved == 1,
            "{found:?}"
        );
        // The fault has nothing to do with the instance, or no event names it.
        for (named, excuse) in [(named.clone(), excuse(&[2])), (BTreeSet::new(), excuse(&[1]))] {
            let found = judge(&before, &after, &named, &excuse);
            assert_eq!((found.unexpected_moves, found.unaccounted), (1, 4), "{found:?}");
        }
        // One packet more is missing than inco dropped.
        let after = reading(vec![flow(0, 3, 20, 15), flow(1, 2, 20, 20)], 1, 9);
        assert_eq!(judge(&before, &after, &named, &excuse(&[1])).unaccounted, 1);
        // The missing ones are of a flow of another instance.
        let after = reading(vec![flow(0, 3, 20, 20), flow(1, 2, 20, 16)], 1, 9);
        assert_eq!(judge(&before, &after, &named, &excuse(&[1])).unaccounted, 4);
    }

    #[test]
    fn requests_fail_with_their_instance_alone() {
        let requests = |of: Reading| Reading {
            are_requests: true,
            ..of
        };
        let before = requests(reading(vec![flow(0, 1, 10, 10), flow(1, 2, 10, 10)], 0, 0));
        let after = requests(reading(vec![flow(0, 3, 20, 19), flow(1, 2, 20, 20)], 1, 0));
        let named = BTreeSet::from([1]);
        assert!(judge(&before, &after, &named, &excuse(&[1])).is_clean());
        assert_eq!(
            judge(&before, &after, &BTreeSet::new(), &excuse(&[1])).unaccounted,
            1
        );
        // One of an instance that goes on.
        let after = requests(reading(vec![flow(0, 3, 20, 20), flow(1, 2, 20, 19)], 1, 0));
        assert_eq!(judge(&before, &after, &named, &excuse(&[1])).unaccounted, 1);
    }

    #[test]
    fn losses_without_a_failed_instance_need_their_own_explanation() {
        let before = reading(vec![flow(0, 1, 10, 10)], 0, 0);
        let mut after = reading(vec![flow(0, 1, 20, 17)], 0, 3);
        let none = BTreeSet::new();
        let with = |losses| Excuse {
            losses,
            ..Excuse::default()
        };
        assert_eq!(judge(&before, &after, &none, &with(Losses::None)).unaccounted, 3);
        assert!(judge(&before, &after, &none, &with(Losses::All)).is_clean());
        after.counts.lost_in_restarts = 2;
        assert_eq!(
            judge(&before, &after, &none, &with(Losses::UnderWay)).unaccounted,
            1
        );
        // What inco itself cannot account for is never explained.
        (after.accounting.returned, after.accounting.in_flight) = (4, 2);
        assert_eq!(judge(&before, &after, &none, &with(Losses::All)).unaccounted, 4);
        // It is counted once.
        assert!(judge(&after, &after, &none, &Excuse::default()).is_clean());
    }

    #[test]
    fn a_flow_that_waits_is_found_elsewhere_after_the_fault() {
        let mut gone = BTreeSet::new();
        let before = reading(vec![flow(0, 1, 10, 10), flow(1, 2, 10, 10)], 0, 0);
        let after = reading(vec![flow(0, 1, 12, 10), flow(1, 2, 20, 20)], 0, 2);
        let found = super::judge(&before, &after, &BTreeSet::from([1]), &excuse(&[1]), &mut gone);
        assert!(found.is_clean() && found.moved == 0, "{found:?}");
        let later = reading(vec![flow(0, 2, 20, 18), flow(1, 2, 30, 30)], 1, 2);
        let none = BTreeSet::new();
        let found = super::judge(&after, &later, &none, &Excuse::default(), &mut gone);
        assert!(found.is_clean() && found.moved == 1, "{found:?}");
        // Once, and without a loss.
        let found = super::judge(&before, &later, &none, &Excuse::default(), &mut gone);
        assert_eq!(found.unaccounted, 2, "{found:?}");
        let again = reading(vec![flow(0, 3, 30, 28), flow(1, 2, 40, 40)], 2, 2);
        let found = super::judge(&later, &again, &none, &Excuse::default(), &mut gone);
        assert_eq!(found.unexpected_moves, 1, "{found:?}");
    }

    #[test]
    fn while_no_instance_has_replaced_a_failed_one_its_flows_lose_what_is_dropped_for_that() {
        let at = |missing: u64, dropped, reason: DropReason| Reading {
            drops: [(reason.name().to_owned(), dropped)].into(),
            ..reading(vec![flow(0, 1, 20, 20 - missing)], 0, 0)
        };
        let (before, none) = (at(2, 2, DropReason::NoInstance), BTreeSet::new());
        let later = |gone: &[u32], after: &Reading| {
            let mut gone = gone.iter().copied().collect();
            super::judge(&before, after, &none, &Excuse::default(), &mut gone)
        };
        assert!(later(&[1], &at(9, 9, DropReason::NoInstance)).is_clean());
        // One packet more than was dropped; another reason; the flow's instance has not failed.
        assert_eq!(later(&[1], &at(10, 9, DropReason::NoInstance)).unaccounted, 1);
        assert_eq!(later(&[1], &at(9, 9, DropReason::InstanceLost)).unaccounted, 7);
        assert_eq!(later(&[2], &at(9, 9, DropReason::NoInstance)).unaccounted, 7);
    }

    #[test]
    fn a_new_process_counts_its_drops_from_0() {
        let before = reading(vec![], 0, 9);
        let mut after = reading(vec![], 0, 4);
        assert!(drops_between(&before, &after).is_empty());
        // What the killed one had dropped since is not forgotten.
        (after.pid, after.last_drops) = (2, Some((1, [("instance_lost".to_owned(), 11)].into())));
        assert_eq!(
            drops_between(&before, &after),
            [("instance_lost".to_owned(), 6)].into()
        );
        after.last_drops = None;
        assert_eq!(
            drops_between(&before, &after),
            [("instance_lost".to_owned(), 4)].into()
        );
    }
}
