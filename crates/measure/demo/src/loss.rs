//! Lost packets of a run, and where they were lost.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use model::DropReason;
use serde::Serialize;

use super::measure::Recording;
use display::table::grouped;

/// Packets that did not return, by place.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Lost {
    /// Dropped because an instance's ring was full.
    pub(super) ring: u64,
    /// Received by a function and not returned.
    pub(super) function: u64,
    /// In the rings of an instance that failed.
    pub(super) instance_lost: u64,
    /// Packets missing from every counter: 0 is expected. Negative if more packets were counted as dropped than are
    /// missing.
    pub(super) other: i64,
    /// Not sent by the generator because the uplink's ring was full.
    pub(super) uplink: u64,
    /// Dropped for other reasons, by reason.
    pub(super) by_reason: BTreeMap<String, u64>,
}

impl Lost {
    /// Accounts for the packets that did not return.
    pub(super) fn of(recording: &Recording) -> Lost {
        let mut by_reason = recording.status.drops.clone();
        let mut take = |reason: DropReason| by_reason.remove(reason.name()).unwrap_or_default();
        let ring = take(DropReason::InstanceRingFull);
        let function = take(DropReason::Function);
        let instance_lost = take(DropReason::InstanceLost);
        let uplink = recording.report.counts.lost_at_uplink;
        let counted = ring + function + instance_lost + uplink + by_reason.values().sum::<u64>();
        let signed = |packets: u64| i64::try_from(packets).unwrap_or(i64::MAX);
        let other = signed(recording.report.lost).saturating_sub(signed(counted));
        Lost {
            ring,
            function,
            instance_lost,
            other,
            uplink,
            by_reason,
        }
    }

    pub(super) fn total(&self) -> i64 {
        let counted = self.ring
            + self.function
            + self.instance_lost
            + self.uplink
            + self.by_reason.values().sum::<u64>();
        i64::try_from(counted)
            .unwrap_or(i64::MAX)
            .saturating_add(self.other)
    }
}

/// Lost packets by place: the switch's drops and the packets lost at the uplink.
pub(super) fn drops_text(drops: &BTreeMap<String, u64>, at_uplink: u64) -> String {
    let all = drops.values().sum::<u64>() + at_uplink;
    if all == 0 {
        return "0".to_owned();
    }
    let uplink = (at_uplink > 0).then(|| format!("before the uplink {}", grouped(at_uplink)));
    let places = drops
        .iter()
        .map(|(reason, packets)| format!("{} {}", reason.replace('_', " "), grouped(*packets)));
    format!(
        "{} ({})",
        grouped(all),
        places.chain(uplink).collect::<Vec<_>>().join(", ")
    )
}

/// The number of lost packets of a run, and where they were lost.
pub(super) fn loss_text(recording: &Recording) -> String {
    let lost = Lost::of(recording);
    let mut text = format!("lost {}", drops_text(&recording.status.drops, lost.uplink));
    if lost.other != 0 {
        let _ = write!(text, ", and {} without a counter", lost.other);
    }
    text
}
