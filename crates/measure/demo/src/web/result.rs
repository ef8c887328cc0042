//! The results: figures for programs, and a table for people.

use serde::Serialize;

use super::beds::{Balancer, MAX};
use display::table::{Table, short};
use testbed::wrk::{Connections, Load};

/// The JSON of `inco demo --web --json`.
#[derive(Debug, Default, Serialize)]
pub(super) struct Web {
    pub(super) runs: Vec<Run>,
}

/// A balancer with one kind of connections.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    balancer: Balancer,
    driver: &'static str,
    connections: Connections,
    requests_per_s: f64,
    /// Requests that failed in the phases of speed and of scaling.
    pub(super) failed_requests: u64,
    /// Requests that failed while a server was killed; absent where nothing was.
    pub(super) failed_by_kill: Option<u64>,
    p50_ms: f64,
    p99_ms: f64,
    /// CPU time of the whole machine, client and server included, per million requests.
    cpu_s_per_million_requests: f64,
    /// Servers while they came and went; absent where they did not.
    pub(super) instances: Option<Instances>,
    /// What inco left in the system.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) left_behind: Vec<String>,
}

/// Numbers of servers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Instances {
    pub(super) start: usize,
    pub(super) peak: usize,
    pub(super) end: usize,
}

impl Run {
    /// The result of the phase of speed.
    pub(super) fn of_speed(balancer: Balancer, connections: Connections, load: &Load, cpu_s: f64) -> Run {
        Run {
            balancer,
            driver: balancer.driver(),
            connections,
            requests_per_s: load.requests_per_s,
            failed_requests: load.failed,
            failed_by_kill: None,
            p50_ms: load.p50_ms,
            p99_ms: load.p99_ms,
            cpu_s_per_million_requests: 1e6 * cpu_s / load.requests.max(1) as f64,
            instances: None,
            left_behind: Vec::new(),
        }
    }

    /// One line that stays visible.
    pub(super) fn line(&self) -> String {
        let by_kill = self
            .failed_by_kill
            .map_or(String::new(), |failed| format!(", {failed} by the kill"));
        format!(
            "{}, {}: {} requests/s, p99 {:.2} ms; {} failed{by_kill}\n",
            self.balancer.name(),
            self.connections.name(),
            short(self.requests_per_s),
            self.p99_ms,
            self.failed_requests,
        )
    }
}

impl Web {
    /// What inco promises and did not keep.
    pub(super) fn failed_checks(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for run in self
            .runs
            .iter()
            .filter(|run| matches!(run.balancer, Balancer::Inco | Balancer::IncoSoft))
        {
            let name = run.connections.name();
            if run.failed_requests > 0 {
                broken.push(format!(
                    "{name}: {} requests failed without a failed server",
                    run.failed_requests
                ));
            }
            match run.instances {
                Some(of) if (of.start, of.peak, of.end) == (1, MAX as usize, 1) => {}
                other => broken.push(format!("{name}: instances did not go 1, {MAX}, 1: {other:?}")),
            }
            broken.extend(
                run.left_behind
                    .iter()
                    .map(|left| format!("{name}: left behind: {left}")),
            );
        }
        broken
    }

    /// The table.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new(&[
            "balancer",
            "connections",
            ">requests/s",
            ">p50",
            ">p99",
            ">CPU s/million",
            ">failed",
            ">by kill",
            ">instances",
        ]);
        for run in &self.runs {
            table.row([
                run.balancer.name().to_owned(),
                run.connections.name().to_owned(),
                short(run.requests_per_s),
                format!("{:.2} ms", run.p50_ms),
                format!("{:.2} ms", run.p99_ms),
                format!("{:.1}", run.cpu_s_per_million_requests),
                run.failed_requests.to_string(),
                run.failed_by_kill
                    .map_or("-".to_owned(), |failed| failed.to_string()),
                run.instances.map_or("-".to_owned(), |of| {
                    format!("{}, {}, {}", of.start, of.peak, of.end)
                }),
            ]);
        }
        let mut text = table.text();
        text.push_str(
            "\nRequests/s, p50, p99 and CPU: one server without a quota, CPU of the whole machine. Failed: in that phase, \
             and while servers with a quota go 1, 6, 1. By kill: while one of two servers is killed.\n",
        );
        text
    }
}
