//! Answers "which policy, with which parameters, for my traffic?" without packets: runs traffic models
//! against the live schedulers, autoscalers, controller and collector, with modelled instances. It never
//! touches a container, a socket or a clock. All results are simulated, not measured.
//!
//! Key types: [`ScenarioFile`] (the input), [`Scenario`] (one variant), [`Outcome`] (the result of one run),
//! [`ScenarioResult`] (over all variants and seeds, with confidence intervals and checks).
//!
//! Use:
//! 1. [`ScenarioFile::load`], and [`ScenarioFile::set`] to change a key.
//! 2. [`run`] runs every variant with every seed; [`play`] runs one.
//! 3. [`ScenarioResult::is_met`] says whether the scenario's expectations hold.
//!
//! What is live code and what is modelled:
//!
//! | live code | modelled |
//! | --- | --- |
//! | every pick (`scheduling`), every decision (`autoscaling`) | flows, their rates and lives |
//! | in a cluster: load reports as bytes, what edges make of them, every pick of a machine (`edge-steering`) | routers, edges, machines, the way between them |
//! | windows, rates, learned capacity (`collector`) | counters, and how late they are |
//! | states, standby, drain, the order of starts and stops (`controller`) | the times that these take (`engine`'s fake) |
//! | steering by a card's rules (`openflow-switch`), where a scenario has a card | the card (the fake switch of its tests) |
//! | | capacity, rings, contention, quota stalls |
//!
//! All randomness comes from a seed: the same scenario, seed and build give identical bytes.
#![forbid(unsafe_code)]

mod card;
mod card_keys;
mod cluster;
mod control;
mod error;
mod event;
mod expectation;
mod fluid;
mod load;
mod outcome;
mod queue;
mod recording;
mod run;
mod scenario;
mod sides;
mod site;
mod steering;
mod sweep;
mod time;

pub use card_keys::Card;
pub use cluster::{Agreement, Cluster, EDGES_LIMIT, Ecmp, Event};
pub use error::Error;
pub use expectation::{Check, Checked};
pub use outcome::{DECISIONS_LIMIT, Decision, InstancePoint, Outcome, Point};
pub use recording::{RecordedDecision, Recording};
pub use run::{Figure, ScenarioResult, VariantResult, play, run};
pub use scenario::{
    Action, Burst, BurstOf, Capacities, Counters, DURATION_LIMIT_S, Expectation, FlowMix, INSTANCES_LIMIT,
    Instances, Model, Noise, Queue, Range, SEEDS_LIMIT, Scenario, ScenarioFile, Service, Step, Traffic,
    VARIANTS_LIMIT, Work,
};
pub use site::Site;
pub use sweep::{COMBINATIONS_LIMIT, SweepPoint, parse_vary, sweep};
