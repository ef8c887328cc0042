//! Answers "which policy, with which parameters, for my traffic?" without a packet: it plays traffic against the live
//! system's own schedulers, autoscalers, controller and collector, over modelled instances. It never touches a
//! container, a socket or a clock, and everything that it says is simulated, not measured.
//!
//! Key types: [`ScenarioFile`] (what is played), [`Scenario`] (one variant of it), [`Outcome`] (what came of one run),
//! [`ScenarioResult`] (of all variants and seeds, with confidence intervals and checks).
//!
//! How it is used:
//! 1. [`ScenarioFile::load`], and [`ScenarioFile::set`] to change a key.
//! 2. [`run`] plays every variant for every seed; [`play`] plays one.
//! 3. [`ScenarioResult::is_met`] says whether it came out as the scenario expects.
//!
//! What is the live system's and what is modelled:
//!
//! | live code | modelled |
//! | --- | --- |
//! | every pick (`scheduling`), every decision (`autoscaling`) | flows, their rates and lives |
//! | windows, rates, learned capacity (`collector`) | counters, and how late they are |
//! | states, standby, drain, the order of starts and stops (`controller`) | the times that these take (`engine`'s fake) |
//! | steering by a card's rules (`openflow-switch`), where a scenario has a card | the card (the fake switch of its tests) |
//! | | capacity, rings, contention, quota stalls |
//!
//! Every chance comes from a seed: the same scenario, seed and build give the same bytes.
#![forbid(unsafe_code)]

mod card;
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
mod steering;
mod sweep;

pub use card::{Card, CardSetup};
pub use error::Error;
pub use expectation::{Check, Checked};
pub use outcome::{DECISIONS_LIMIT, Decision, InstancePoint, Outcome, Point};
pub use recording::{RecordedDecision, Recording};
pub use run::{Figure, ScenarioResult, VariantResult, play, run};
pub use scenario::{
    Action, Burst, BurstOf, Capacities, Counters, DURATION_LIMIT_S, Discipline, Expectation, FlowMix,
    INSTANCES_LIMIT, Instances, Model, Noise, Queue, Range, SEEDS_LIMIT, Scenario, ScenarioFile, Service,
    Step, Traffic, VARIANTS_LIMIT, Work,
};
pub use sweep::{COMBINATIONS_LIMIT, SweepPoint, parse_vary, sweep};
