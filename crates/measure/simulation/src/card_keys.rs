//! The keys of a scenario's `[card]`.

use model::FlowSetup;
use openflow_switch::Spread;
use serde::Deserialize;

use crate::Error;
use crate::error::within;
use crate::scenario::Range;

/// A card that forwards by rules, as with `[switch] driver = "openflow"`, and its faults.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Card {
    /// `switch.openflow.setup`.
    pub setup: FlowSetup,
    /// `switch.openflow.rules`: maximum number of exact rules.
    pub rules: usize,
    /// `switch.openflow.buckets`: a power of two.
    pub buckets: usize,
    /// `switch.timeouts`: idle timeout of flows, in seconds.
    pub idle_s: f64,
    /// Capacity for rules, including those of buckets and instances.
    pub places: usize,
    /// Rule writes per second. Left out: unlimited.
    pub rules_per_s: Option<f64>,
    /// Maximum latency of a message to it, in milliseconds.
    pub control_ms: f64,
    /// Whether it reorders messages between two barriers.
    pub reorders: bool,
    /// Refuses one in this many new rules. 0: none.
    pub refuse_one_in: u64,
    /// Replies to one in this many messages with garbage. 0: none.
    pub garbage_one_in: u64,
    /// How long it may keep using an old rule after a change, in milliseconds.
    pub round_ms: f64,
    /// Latency from a port to its peer, in microseconds: a value, or a minimum and a maximum.
    pub port_us: Range,
    /// Maximum age of its rule counters, in milliseconds. Flow expiry depends on them. Packets to instances
    /// are counted at their ports, with the delay of `counters`.
    pub counters_ms: f64,
    /// Connection outages: `[[start in seconds, duration in seconds], …]`.
    pub cut: Vec<(f64, f64)>,
}

impl Default for Card {
    fn default() -> Self {
        Card {
            setup: FlowSetup::Proactive,
            rules: 10_000,
            buckets: 64,
            idle_s: 60.0,
            places: 1_000_000,
            rules_per_s: None,
            control_ms: 0.2,
            reorders: false,
            refuse_one_in: 0,
            garbage_one_in: 0,
            round_ms: 20.0,
            port_us: Range::Between(5.0, 30.0),
            counters_ms: 100.0,
            cut: Vec::new(),
        }
    }
}

impl Card {
    /// Validates each value.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.buckets.is_power_of_two() || self.buckets.ilog2() > u32::from(Spread::LIMIT_BITS) {
            let most = 1_u32 << Spread::LIMIT_BITS;
            let problem = format!("{} is not a power of two up to {most}", self.buckets);
            return Err(Error::value("card.buckets", problem));
        }
        within("card.rules", self.rules as f64, 0.0, 1e6)?;
        within("card.places", self.places as f64, 0.0, 1e7)?;
        within("card.idle_s", self.idle_s, 0.01, 1e6)?;
        if let Some(rules_per_s) = self.rules_per_s {
            within("card.rules_per_s", rules_per_s, 1.0, 1e9)?;
        }
        within("card.control_ms", self.control_ms, 0.0, 60_000.0)?;
        within("card.round_ms", self.round_ms, 0.0, 60_000.0)?;
        within("card.counters_ms", self.counters_ms, 0.0, 60_000.0)?;
        let (low, high) = self.port_us.bounds();
        within("card.port_us", low, 0.0, 1e9)?;
        within("card.port_us", high, low, 1e9)?;
        let mut from = 0.0;
        for (at_s, lasts_s) in &self.cut {
            within("card.cut", *at_s, from, 1e9)?;
            within("card.cut", *lasts_s, 0.001, 1e9)?;
            from = at_s + lasts_s;
        }
        Ok(())
    }
}
