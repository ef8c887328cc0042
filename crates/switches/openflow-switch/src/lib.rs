//! Steering by the rules of an OpenFlow switch: Open vSwitch, and the eSwitch of a card to which it offloads flows.
//! The core has no input or output: [`OpenFlowSwitch`] owns the connection, the monitor port and the ports of
//! instances, passes their input to [`Steering`], and sends its output. It must never send a packet of a flow to
//! another instance than the flow's own.
//!
//! Key types: [`OpenFlowSwitch`] (the driver), [`Steering`] (the core), [`ServiceRules`] and [`Spread`] (what the
//! rules match), [`RuleState`] and [`FlowRow`] (the state of a flow), [`FakeNic`] (a switch that is late, refuses
//! and evicts rules, for tests and simulations) and [`SteeredNic`] (both of them).
//!
//! # Life of a flow, set up proactively
//!
//! 1. Its first packet meets the rule of its bucket: it goes straight to the bucket's instance, and a copy with a tag
//!    that says which one goes to the monitor port. The rule reads all addresses and ports besides, so that what the
//!    switch keeps of its decision rests on as much as the exact rule.
//! 2. The copy enters the flow here, **at the instance of the tag**, whatever the bucket says by now. Exact rules for
//!    it, in both directions where the service is symmetric, follow. They change nothing for its packets.
//! 3. When no packet of it has been noticed for its idle time, its rules are deleted.
//!
//! # How a bucket gets another instance
//!
//! A rule is not in force when the switch says that it has it: its datapath forwards by the old one for a while, each
//! cached decision on its own. So each step waits for a proof (a marker frame that follows four changes of its own
//! rule) that everything written before is in force.
//!
//! 1. **Mark**: the bucket's rule looks a connection up: one with a mark stays with the marked instance, any other
//!    one comes to the old instance and gets its mark. When that is in force, the flows known by then get their exact
//!    rules, and those come into force.
//! 2. **Ask**: likewise, but a connection without a mark comes to the new instance and gets that one's mark. Each
//!    flow is in one of the two from its first packet on, in both directions, whatever the datapath has in its cache
//!    and in which order rules change.
//! 3. **Release**: when all flows of the old instance have exact rules in force, the bucket's rule becomes that of
//!    the new instance.
//!
//! A flow has its exact rules when it has one on each of its sides, and the switch has refused none of them. A flow that
//! lacks one holds its bucket, also if its other rules are written again ([`RuleState`]).
//!
//! All packets go straight to their instance all the time: none waits, and none takes a longer way than the one
//! before it.
#![forbid(unsafe_code)]

mod driver;
mod fake;
mod flows;
mod prover;
mod rules;
mod steering;

pub use driver::{
    CAPABILITIES, OpenFlowSwitch, OpenFlowSwitchConfig, PooledPorts, PortDevice, StartError, remove_bridge,
};
pub use fake::{Delivered, FakeNic, Faults, SteeredNic};
pub use flows::{FlowId, FlowRow, RuleState};
pub use rules::{Family, HANDOVER_TABLE, OWNER_MASK, Part, ServiceRules, Side, Spread, TABLE};
pub use steering::{Fallback, Figures, InstanceTerms, Settings, SlotFigures, Steering};
