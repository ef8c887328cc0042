//! The keys of a scenario's `[cluster]`.

use edge_steering::{MACHINES_LIMIT, Settings};
use model::{Nanos, Slot};
use serde::Deserialize;

use crate::Error;
use crate::error::within;
use crate::scenario::{Model, Scenario};

/// Edges of a run at most, with those that join: a flow has a bit for each.
pub const EDGES_LIMIT: u32 = 16;

/// Many machines behind several edges, each with the instances of `[service]` (`max` of them).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Machines at the beginning.
    pub machines: u32,
    /// Edges at the beginning.
    pub edges: u32,
    /// How edges agree on the machine of a flow.
    pub agreement: Agreement,
    /// How routers spread flows over edges.
    pub ecmp: Ecmp,
    /// Interval of load reports, in milliseconds.
    pub report_ms: u64,
    /// [`Settings::fresh`], in intervals.
    pub fresh: u32,
    /// [`Settings::half_life`], in intervals.
    pub half_life: u32,
    /// [`Settings::silent`], in intervals.
    pub silent: u32,
    /// [`Settings::lost`], in intervals.
    pub lost: u32,
    /// Time of a packet from an edge to a machine, or between two of either, in microseconds.
    pub hop_us: f64,
    /// Until routers notice that an edge died, in milliseconds.
    pub ecmp_ms: u64,
    /// Whether replies go through the edge: it hears machines without their reports, and learns pins from replies.
    pub replies_through_edge: bool,
    /// What happens.
    pub event: Vec<Event>,
}

impl Default for Cluster {
    fn default() -> Self {
        let settings = Settings::default();
        Cluster {
            machines: 100,
            edges: 4,
            agreement: Agreement::SecondLook,
            ecmp: Ecmp::Resilient,
            report_ms: settings.interval.as_millis(),
            fresh: settings.fresh,
            half_life: settings.half_life,
            silent: settings.silent,
            lost: settings.lost,
            hop_us: 50.0,
            ecmp_ms: 300,
            replies_through_edge: true,
            event: Vec::new(),
        }
    }
}

/// How an edge finds the machine of a flow that another edge has had. Only `second_look` and `hash` are rules of inco; the
/// others are modelled here to compare what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// Two machines by hash, the less loaded one gets the flow, and a machine without the pin forwards to the others.
    #[default]
    SecondLook,
    /// The machine by hash alone, whatever its load.
    Hash,
    /// Each edge tells all others each pin, in batches once an interval.
    Announce,
    /// The edge that owns the flow's hash picks; others ask it, and remember the answer.
    Forward,
    /// Not at all: an edge without a pin picks anew.
    Alone,
}

/// How routers spread flows over edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ecmp {
    /// Only flows of an edge that goes get another one, and a new edge takes its share from all.
    #[default]
    Resilient,
    /// The hash modulo the number of edges: most flows get another edge with each change.
    Modulo,
}

/// What happens at a time. Machines and edges are numbered from 0, those that join after all others.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// A machine dies with its flows.
    MachineFails {
        /// When, in seconds.
        at_s: f64,
        /// Which one.
        machine: u16,
        /// When it is back, in seconds after that. Left out: never.
        #[serde(default)]
        back_after_s: Option<f64>,
    },
    /// A machine joins the cluster.
    MachineJoins {
        /// When, in seconds.
        at_s: f64,
    },
    /// A machine drains, ends, and is no member any more.
    MachineLeaves {
        /// When, in seconds.
        at_s: f64,
        /// Which one.
        machine: u16,
    },
    /// All machines drain, begin anew, and come back, some at a time.
    RollingUpdate {
        /// When the first ones begin, in seconds.
        at_s: f64,
        /// So many at a time.
        at_a_time: u32,
        /// From the end of a drain until it serves again, in seconds.
        restart_s: f64,
    },
    /// An edge joins.
    EdgeJoins {
        /// When, in seconds.
        at_s: f64,
    },
    /// An edge leaves in order: routers stop sending to it first.
    EdgeLeaves {
        /// When, in seconds.
        at_s: f64,
        /// Which one.
        edge: u8,
    },
    /// An edge dies with its pins.
    EdgeFails {
        /// When, in seconds.
        at_s: f64,
        /// Which one.
        edge: u8,
        /// When it is back, without its pins, in seconds after that. Left out: never.
        #[serde(default)]
        back_after_s: Option<f64>,
    },
    /// Reports of some machines do not reach some edges.
    ReportsCut {
        /// When, in seconds.
        at_s: f64,
        /// For so long, in seconds.
        lasts_s: f64,
        /// Which edges. Left out: all.
        #[serde(default)]
        edges: Vec<u8>,
        /// The first of these machines, and the first one that is not cut off.
        machines: (u16, u16),
        /// Whether packets do not arrive either.
        #[serde(default)]
        packets: bool,
    },
}

impl Event {
    pub(crate) fn at_s(&self) -> f64 {
        match self {
            Event::MachineFails { at_s, .. }
            | Event::MachineJoins { at_s }
            | Event::MachineLeaves { at_s, .. }
            | Event::RollingUpdate { at_s, .. }
            | Event::EdgeJoins { at_s }
            | Event::EdgeLeaves { at_s, .. }
            | Event::EdgeFails { at_s, .. }
            | Event::ReportsCut { at_s, .. } => *at_s,
        }
    }
}

impl Cluster {
    /// The settings of an edge.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            interval: Nanos::from_millis(self.report_ms),
            fresh: self.fresh,
            half_life: self.half_life,
            silent: self.silent,
            lost: self.lost,
        }
    }

    pub(crate) fn check(&self, of: &Scenario) -> Result<(), Error> {
        if of.model != Model::Cluster {
            let problem = "machines and edges have a model of their own: set model = \"cluster\"";
            return Err(Error::value("cluster", problem));
        }
        let (mut joining_edges, mut joining_machines) = (0, 0);
        for event in &self.event {
            joining_edges += u32::from(matches!(event, Event::EdgeJoins { .. }));
            joining_machines += u32::from(matches!(event, Event::MachineJoins { .. }));
        }
        let edges = f64::from(EDGES_LIMIT.saturating_sub(joining_edges));
        let machines = f64::from((MACHINES_LIMIT as u32).saturating_sub(joining_machines));
        within("cluster.edges", f64::from(self.edges), 1.0, edges)?;
        within("cluster.machines", f64::from(self.machines), 1.0, machines)?;
        within("service.max", f64::from(of.service.max), 1.0, Slot::LIMIT as f64)?;
        within("cluster.report_ms", self.report_ms as f64, 1.0, 60_000.0)?;
        within("cluster.hop_us", self.hop_us, 0.0, 1e6)?;
        within("cluster.ecmp_ms", self.ecmp_ms as f64, 0.0, 60_000.0)?;
        for (key, intervals) in [
            ("cluster.fresh", self.fresh),
            ("cluster.half_life", self.half_life),
            ("cluster.silent", self.silent),
            ("cluster.lost", self.lost),
        ] {
            within(key, f64::from(intervals), 1.0, 1e9)?;
        }
        let all_machines = self.machines + joining_machines;
        let all_edges = self.edges + joining_edges;
        for (index, event) in self.event.iter().enumerate() {
            let key = |name: &str| format!("cluster.event.{index}.{name}");
            within(&key("at_s"), event.at_s(), 0.0, of.duration_s)?;
            let of_machine = |machine: u16| {
                within(
                    &key("machine"),
                    f64::from(machine),
                    0.0,
                    f64::from(all_machines) - 1.0,
                )
            };
            let of_edge = |edge: u8| within(&key("edge"), f64::from(edge), 0.0, f64::from(all_edges) - 1.0);
            let later = |name: &str, s: Option<f64>| within(&key(name), s.unwrap_or(0.0), 0.0, 1e9);
            match event {
                Event::MachineFails {
                    machine,
                    back_after_s,
                    ..
                } => {
                    of_machine(*machine)?;
                    later("back_after_s", *back_after_s)?;
                }
                Event::MachineLeaves { machine, .. } => of_machine(*machine)?,
                Event::EdgeLeaves { edge, .. } => of_edge(*edge)?,
                Event::EdgeFails {
                    edge, back_after_s, ..
                } => {
                    of_edge(*edge)?;
                    later("back_after_s", *back_after_s)?;
                }
                Event::RollingUpdate {
                    at_a_time, restart_s, ..
                } => {
                    within(
                        &key("at_a_time"),
                        f64::from(*at_a_time),
                        1.0,
                        f64::from(all_machines),
                    )?;
                    later("restart_s", Some(*restart_s))?;
                }
                Event::ReportsCut { lasts_s, edges, .. } => {
                    edges.iter().try_for_each(|edge| of_edge(*edge))?;
                    later("lasts_s", Some(*lasts_s))?;
                }
                Event::MachineJoins { .. } | Event::EdgeJoins { .. } => {}
            }
        }
        Ok(())
    }
}
