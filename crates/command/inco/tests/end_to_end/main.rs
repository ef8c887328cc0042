//! The built program end to end: real containers, real traffic, both engines.
//!
//! Each test has a run directory of its own, so that it disturbs no other inco on the machine. What a machine lacks
//! is said and skipped; where `INCO_REQUIRE` names it (`root`, `oci`, `docker`, `dpdk`, `data`, `ovs`, `prometheus`,
//! `schemathesis`, `browser`, `kubernetes`, `swarm`) that is a failure.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by it"
)]

#[path = "../../../../operate/api/tests/browser/mod.rs"]
#[expect(dead_code, reason = "the test of the page alone measures its memory")]
mod browser;
#[path = "../../../../containers/registry/tests/support/mod.rs"]
#[expect(dead_code, reason = "the tests of the crate use the rest")]
mod registry_server;

mod actor_applications;
mod actor_functions;
mod actor_groups;
mod actor_isolation;
mod actors;
mod addresses;
mod back_ends;
mod captures;
mod chains;
mod clients;
mod containers;
mod demo;
mod devices;
mod documentation;
mod edges;
mod engine_away;
mod examples;
mod failures;
mod functions;
mod gaps;
mod hostile_container;
mod hybrid;
mod ipsec;
mod kubernetes;
mod kubernetes_operator;
mod kubernetes_pods;
mod load_reports;
mod memory;
mod monitoring;
mod named_tests;
mod nat;
mod openflow;
mod openflow_host;
mod openflow_tls;
mod operations;
mod packet_capture;
mod page;
#[cfg(feature = "dpdk")]
mod paths;
mod places;
mod policies;
mod pool;
mod port_kinds;
mod pull;
mod readiness;
mod refusals;
mod relaxed;
mod replicas;
mod replies;
mod restart;
mod rollout;
mod service;
mod services;
mod signals;
mod small_machines;
mod soak;
mod state_moves;
mod strangers;
mod support;
mod swarm;
mod testpmd;
mod tunnels;
mod upgrade;

mod scaling;
mod scheduling;
