//! The results: figures for programs, and a table for people.

use std::time::Duration;

use display::table::{Table, short};
use serde::Serialize;

use super::load::Counts;

/// The JSON of `inco demo --cluster --json`.
#[derive(Debug, Default, Serialize)]
pub(super) struct Cluster {
    pub(super) phases: Vec<PhaseRow>,
    pub(super) edges: Vec<EdgeRow>,
    /// What incos left in the system.
    pub(super) left_behind: Vec<String>,
}

/// A phase.
#[derive(Debug, Serialize)]
pub(super) struct PhaseRow {
    phase: &'static str,
    seconds: f64,
    /// How long the change took.
    change_s: f64,
    requests_per_s: f64,
    longest_ms: f64,
    /// Requests that failed, questions without an answer, and answers of another machine than the one before in a connection or
    /// flow, but for those that the lost machine may have had.
    failed: u64,
    unanswered: u64,
    moved: u64,
    /// Such of connections and flows that were there while a machine was lost.
    by_loss: u64,
    /// Questions that were asked again after a second.
    asked_again: u64,
    /// Requests and questions that each machine has answered.
    requests: Vec<u64>,
    questions: Vec<u64>,
    /// Active web servers of each machine at its end.
    instances: Vec<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<String>,
}

/// An edge at the end.
#[derive(Debug, Serialize)]
pub(super) struct EdgeRow {
    pub(super) edge: u8,
    /// Flows that moved because their machine was lost.
    pub(super) expected_moves: u64,
    /// Packets that asked machines for flows of the other edge, and those of them that came back.
    pub(super) looks: u64,
    pub(super) looks_returned: u64,
}

impl PhaseRow {
    pub(super) fn of(
        phase: &'static str,
        lasted: Duration,
        change: Duration,
        counts: &Counts,
        instances: Vec<u32>,
    ) -> PhaseRow {
        PhaseRow {
            phase,
            seconds: lasted.as_secs_f64(),
            change_s: change.as_secs_f64(),
            requests_per_s: counts.requests() as f64 / lasted.as_secs_f64(),
            longest_ms: counts.longest.as_secs_f64() * 1e3,
            failed: counts.failed,
            unanswered: counts.unanswered,
            moved: counts.moved,
            by_loss: counts.by_loss,
            asked_again: counts.asked_again,
            requests: counts.answered.to_vec(),
            questions: counts.named.to_vec(),
            instances,
            causes: counts.causes.clone(),
        }
    }

    /// One line that stays visible.
    pub(super) fn line(&self) -> String {
        format!(
            "{:18} {:>6} requests/s; by machine {}; web servers {}; {} failed, {} moved, {} by the loss",
            self.phase,
            short(self.requests_per_s),
            joined(&self.requests),
            joined(&self.instances),
            self.failed + self.unanswered,
            self.moved,
            self.by_loss,
        )
    }
}

fn joined(numbers: &[impl ToString]) -> String {
    let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    texts.join(" ")
}

impl Cluster {
    /// Adds what was counted after the last phase to that.
    pub(super) fn add_rest(&mut self, counts: Counts) {
        if let Some(last) = self.phases.last_mut() {
            last.failed += counts.failed;
            last.unanswered += counts.unanswered;
            last.moved += counts.moved;
            last.by_loss += counts.by_loss;
            last.asked_again += counts.asked_again;
            last.causes.extend(counts.causes);
        }
    }

    /// What inco promises and did not keep.
    pub(super) fn failed_checks(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for row in &self.phases {
            for (count, what) in [
                (row.failed, "requests failed"),
                (row.unanswered, "questions had no answer"),
                (row.moved, "answers came from another server"),
            ] {
                if count > 0 {
                    broken.push(format!(
                        "{}: {count} {what}: {}",
                        row.phase,
                        row.causes.join("; ")
                    ));
                }
            }
        }
        broken.extend(self.left_behind.iter().map(|left| format!("left behind: {left}")));
        broken
    }

    /// The table.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new(&[
            "phase",
            ">s",
            ">change s",
            ">requests/s",
            ">longest ms",
            ">by machine",
            ">questions",
            ">web servers",
            ">failed",
            ">moved",
            ">by loss",
        ]);
        for row in &self.phases {
            table.row([
                row.phase.to_owned(),
                format!("{:.1}", row.seconds),
                format!("{:.1}", row.change_s),
                short(row.requests_per_s),
                format!("{:.0}", row.longest_ms),
                joined(&row.requests),
                joined(&row.questions),
                joined(&row.instances),
                (row.failed + row.unanswered).to_string(),
                row.moved.to_string(),
                row.by_loss.to_string(),
            ]);
        }
        let mut text = table.text();
        text.push_str(
            "\nFailed: requests and questions without an answer. Moved: answers of another server or machine than before, in one \
             connection or flow. By loss: both, of connections and flows that were there while machine 3 was away. All machines \
             share this one's CPUs, so requests/s say nothing of several machines.\n",
        );
        if let [of] = self.edges.as_slice() {
            text.push_str(&format!(
                "{} flows moved because their machine was lost\n",
                of.expected_moves
            ));
            return text;
        }
        for of in &self.edges {
            text.push_str(&format!(
                "edge {}: {} packets asked machines for flows of the other edge, {} came back; {} flows moved because their \
                 machine was lost\n",
                of.edge, of.looks, of.looks_returned, of.expected_moves
            ));
        }
        text
    }
}
