//! The result of a run.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::check::Findings;
use crate::footprint::Leaks;

/// All counts are over all beds and all faults.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) minutes: u32,
    pub(crate) seed: u64,
    /// Faults by kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) mis_steered: u64,
    pub(crate) unexpected_moves: u64,
    pub(crate) unaccounted: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) leaks: Leaks,
    /// The longest time for which a flow of the bed waited for a packet, by kind of fault.
    pub(crate) longest_outage_ms: BTreeMap<&'static str, u64>,
    /// Whether all promises were kept, nothing leaked, and every bed was well again after each fault.
    pub(crate) ok: bool,
}

impl Verdict {
    /// Adds what was found after a fault.
    pub(crate) fn add(&mut self, found: &Findings) {
        self.mis_steered += found.mis_steered;
        self.unexpected_moves += found.unexpected_moves;
        self.unaccounted += found.unaccounted;
        self.duplicated += found.duplicated;
        self.reordered += found.reordered;
    }

    /// Whether the counts alone are as promised.
    pub(crate) fn counts_are_clean(&self) -> bool {
        self.mis_steered + self.unexpected_moves + self.unaccounted + self.duplicated + self.reordered == 0
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "\n{} faults in {} min, seed {}\n\n{:<18} {:>6} {:>18}\n",
            self.faults.values().sum::<u64>(),
            self.minutes,
            self.seed,
            "fault",
            "count",
            "longest outage ms"
        );
        for (kind, count) in &self.faults {
            let outage = self.longest_outage_ms.get(kind).copied().unwrap_or(0);
            text += &format!("{kind:<18} {count:>6} {outage:>18}\n");
        }
        let leaks = &self.leaks;
        text += &format!(
            "\nmis-steered {}, unexpected moves {}, unaccounted {}, duplicated {}, reordered {}\nleaks: \
             processes {}, control groups {}, mounts {}, descriptors {}, memory {} kB/h\n{}\n",
            self.mis_steered,
            self.unexpected_moves,
            self.unaccounted,
            self.duplicated,
            self.reordered,
            leaks.processes,
            leaks.cgroups,
            leaks.mounts,
            leaks.descriptors,
            leaks.kilobytes_per_hour,
            if self.ok { "ok" } else { "FAILED" }
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_has_exactly_these_keys() {
        let verdict = Verdict {
            minutes: 5,
            seed: 7,
            faults: [("inco-kill", 2)].into(),
            longest_outage_ms: [("inco-kill", 80)].into(),
            ok: true,
            ..Verdict::default()
        };
        assert_eq!(
            serde_json::to_string(&verdict).unwrap(),
            "{\"minutes\":5,\"seed\":7,\"faults\":{\"inco-kill\":2},\"mis_steered\":0,\"unexpected_moves\":0,\
             \"unaccounted\":0,\"duplicated\":0,\"reordered\":0,\"leaks\":{\"processes\":0,\"cgroups\":0,\
             \"mounts\":0,\"descriptors\":0,\"kilobytes_per_hour\":0},\"longest_outage_ms\":{\"inco-kill\":80},\"ok\":true}"
        );
        assert!(
            verdict
                .text()
                .contains("inco-kill               2                 80")
        );
    }
}
