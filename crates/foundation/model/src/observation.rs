use serde::{Deserialize, Serialize};

use crate::{InstanceId, InstanceState, Nanos, ServiceId, Slot};

/// What is known of one instance at one moment. Rates are packets per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceObservation {
    /// Which instance.
    pub id: InstanceId,
    /// Its place in the data plane; [`Slot::NONE`] before it has one.
    pub slot: Slot,
    /// Its state.
    pub state: InstanceState,
    /// Packets per second that it can process.
    pub capacity_pps: f64,
    /// Packets per second given to it or dropped on the way to it: what its flows ask for. Fast window.
    pub arrivals_fast_pps: f64,
    /// The same over the stable window.
    pub arrivals_stable_pps: f64,
    /// Packets per second back from it, fast window.
    pub returns_fast_pps: f64,
    /// Packets per second dropped because its ring was full, fast window.
    pub ring_drops_fast_pps: f64,
    /// Share of its ring that is occupied, 0 to 1.
    pub ring_occupancy: f64,
    /// Packets in its ring that it has not taken yet.
    #[serde(default)]
    pub ring_packets: u64,
    /// Flows pinned to it.
    pub live_flows: u64,
    /// Flows newly pinned per second, fast window.
    pub new_flows_fast_per_s: f64,
    /// Share of time that the function was busy, 0 to 1, where it tells.
    pub busy: Option<f64>,
    /// CPUs that its quota allows, where it has one.
    pub cpu_quota: Option<f64>,
}

/// What an autoscaler sees of one service at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Which service.
    pub service: ServiceId,
    /// When the newest counter in it was read.
    pub at: Nanos,
    /// How old that counter was when it was read: 0 for the soft switch.
    pub counter_age: Nanos,
    /// The service's limits on active instances.
    pub min: u32,
    /// See `min`.
    pub max: u32,
    /// Active instances wanted so far: the result of the last decision, whether it is carried out yet or not.
    pub wanted: u32,
    /// Packets per second offered to the service, fast window: served or dropped.
    pub offered_fast_pps: f64,
    /// The same over the stable window.
    pub offered_stable_pps: f64,
    /// Packets per second of this service dropped for want of an instance, fast window.
    pub unserved_fast_pps: f64,
    /// Whether a ring was full, or a quarter full twice in a row, since the last observation.
    pub hot: bool,
    /// Its instances, in the order of their ids; `Gone` ones are not among them.
    pub instances: Vec<InstanceObservation>,
}

impl Observation {
    /// Instances in that state.
    pub fn count(&self, state: InstanceState) -> usize {
        self.instances.iter().filter(|i| i.state == state).count()
    }
}
