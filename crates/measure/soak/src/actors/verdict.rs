//! The result of a run.

use std::collections::BTreeMap;

use serde::Serialize;

/// What an application's checker has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Checked {
    /// Operations, transactions or windows that were checked.
    pub(crate) checked: u64,
    /// Segments in which the promise was broken.
    pub(crate) violations: u64,
    /// Requests (of analytics: tuples) without an answer although nothing that is needed for one was lost.
    pub(crate) unanswered: u64,
    /// Requests that were answered twice though they were sent once.
    pub(crate) answered_twice: u64,
    /// Requests without an answer, and windows around a crash, that a lost actor or a crash explains.
    pub(crate) explained: u64,
    /// The longest time of a request, in milliseconds.
    pub(crate) longest_ms: f64,
}

impl Checked {
    /// Adds what a further segment has shown.
    pub(crate) fn add(&mut self, other: &Checked) {
        self.checked += other.checked;
        self.violations += other.violations;
        self.unanswered += other.unanswered;
        self.answered_twice += other.answered_twice;
        self.explained += other.explained;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
    }
}

/// All counts are over all segments.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// Faults by kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) segments: u64,
    /// Incos that were started: one, and one after each segment in which an actor was lost.
    pub(crate) beds: u64,
    /// Actors that were lost with the process that ended within their message.
    pub(crate) lost_actors: u64,
    pub(crate) store: Checked,
    pub(crate) transactions: Checked,
    pub(crate) analytics: Checked,
    /// Whether each promise was kept, nothing was lost or answered twice without an explanation, and both sides ran again
    /// after each fault.
    pub(crate) ok: bool,
}

impl Verdict {
    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "\n{} faults in {} s and {} segments, seed {}; {} incos, {} actors lost\n",
            self.faults.values().sum::<u64>(),
            self.seconds,
            self.segments,
            self.seed,
            self.beds,
            self.lost_actors,
        );
        for (kind, count) in &self.faults {
            text += &format!("  {kind:<17} {count:>6}\n");
        }
        let mut table = display::table::Table::new(&[
            "application",
            ">checked",
            ">violations",
            ">unanswered",
            ">twice",
            ">explained",
            ">longest ms",
        ]);
        for (name, of) in [
            ("store", &self.store),
            ("transactions", &self.transactions),
            ("analytics", &self.analytics),
        ] {
            table.row([
                name.to_owned(),
                of.checked.to_string(),
                of.violations.to_string(),
                of.unanswered.to_string(),
                of.answered_twice.to_string(),
                of.explained.to_string(),
                format!("{:.0}", of.longest_ms),
            ]);
        }
        text + &table.text() + if self.ok { "ok\n" } else { "FAILED\n" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_has_exactly_these_keys() {
        let mut verdict = Verdict {
            seconds: 30,
            seed: 7,
            faults: [("side-crash", 2)].into(),
            ok: true,
            ..Verdict::default()
        };
        let of = Checked {
            checked: 5,
            longest_ms: 2.0,
            ..Checked::default()
        };
        verdict.store.add(&of);
        verdict.store.add(&Checked {
            longest_ms: 1.0,
            ..of
        });
        let none = "{\"checked\":0,\"violations\":0,\"unanswered\":0,\"answered_twice\":0,\"explained\":0,\
                    \"longest_ms\":0.0}";
        let store = none.replace("checked\":0", "checked\":10").replace("0.0", "2.0");
        assert_eq!(
            serde_json::to_string(&verdict).unwrap(),
            format!(
                "{{\"seconds\":30,\"seed\":7,\"faults\":{{\"side-crash\":2}},\"segments\":0,\"beds\":0,\
                 \"lost_actors\":0,\"store\":{store},\"transactions\":{none},\"analytics\":{none},\"ok\":true}}"
            )
        );
        assert!(
            verdict.text().contains("side-crash             2"),
            "{}",
            verdict.text()
        );
    }
}
