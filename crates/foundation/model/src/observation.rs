use serde::{Deserialize, Serialize};

use crate::{InstanceId, InstanceState, Nanos, ServiceId, Slot};

macro_rules! signals {
    (
        {}
        rates { $(#[doc = $rate_doc:tt] $rate:ident = $counter:ident;)* }
        values { $(#[doc = $value_doc:tt] $value:ident = $gauge:ident;)* }
    ) => {
        /// What is seen of an instance's counters: a row of [`instance_signals!`](crate::instance_signals) each. One
        /// that a written observation lacks is 0.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct InstanceSignals {
            $(#[doc = $rate_doc] pub $rate: f64,)*
            $(#[doc = $value_doc] pub $value: u64,)*
        }
    };
}

crate::instance_signals! { signals! {} }

/// One instance's measurements. Rates are packets per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceObservation {
    /// Its id.
    pub id: InstanceId,
    /// Its slot; [`Slot::NONE`] before it has one.
    pub slot: Slot,
    /// Its state.
    pub state: InstanceState,
    /// Its capacity in packets per second.
    pub capacity_pps: f64,
    /// Packets per second for it, forwarded or dropped: the demand of its flows. Fast window.
    pub arrivals_fast_pps: f64,
    /// The same over the stable window.
    pub arrivals_stable_pps: f64,
    /// Packets per second dropped because its ring was full, fast window.
    pub ring_drops_fast_pps: f64,
    /// Occupied share of its ring, 0 to 1.
    pub ring_occupancy: f64,
    /// What is seen of its counters as they are.
    #[serde(flatten)]
    pub signals: InstanceSignals,
    /// The function's busy share of time, 0 to 1, if published.
    pub busy: Option<f64>,
    /// The share of its memory limit that it uses, 0 to 1, if both are known. Unknown where a written observation lacks it.
    #[serde(default)]
    pub memory: Option<f64>,
    /// Its CPU quota in CPUs, if any. At a place with a share, what it would have with the whole share.
    pub cpu_quota: Option<f64>,
    /// Its place: a position in [`Observation::places`]; 0 where there are none.
    #[serde(default)]
    pub place: u8,
}

/// A place where instances of the service may run, and what is there of all services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlaceObservation {
    /// Its name.
    pub name: String,
    /// Packets per second for its instances, without those that leave: the larger of both windows.
    pub arrivals_pps: f64,
    /// Most packets per second for which it is to have instances; [`None`] for no limit.
    pub limit_pps: Option<f64>,
    /// Whether one more instance of the service can be created there.
    pub has_room: bool,
    /// Its position in the order in which the service fills the places. Of equal ones, the first comes first.
    #[serde(default)]
    pub rank: u8,
}

/// An autoscaler's input for one service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The service.
    pub service: ServiceId,
    /// When the newest counter was read.
    pub at: Nanos,
    /// The counter's age at that time: 0 for the soft switch.
    pub counter_age: Nanos,
    /// The service's limits on Active instances.
    pub min: u32,
    /// See `min`.
    pub max: u32,
    /// Currently wanted Active instances: the last decision, whether or not it is carried out.
    pub wanted: u32,
    /// Packets per second offered to the service, fast window: forwarded or dropped.
    pub offered_fast_pps: f64,
    /// The same over the stable window.
    pub offered_stable_pps: f64,
    /// Packets per second dropped because no instance is Active, fast window.
    pub unserved_fast_pps: f64,
    /// Whether a ring was full, or a quarter full twice in a row, since the last observation.
    pub hot: bool,
    /// Its instances by id, without `Gone` ones.
    pub instances: Vec<InstanceObservation>,
    /// The places, in the order of the configuration. Empty where a service does not fill several of them in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<PlaceObservation>,
}

impl Observation {
    /// The number of instances in that state.
    pub fn count(&self, state: InstanceState) -> usize {
        self.instances.iter().filter(|i| i.state == state).count()
    }
}
