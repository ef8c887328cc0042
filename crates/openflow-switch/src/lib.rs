//! Steering by the rules of an OpenFlow switch: Open vSwitch, and the eSwitch of a card to which it hands its work. The core
//! has no input or output: [`OpenFlowSwitch`] has the connection, the monitor port and the ports of instances, gives what came
//! by them to [`Steering`], and sends what it wants sent. It must never give a packet of a flow to another instance than the
//! one that has the flow.
//!
//! Key types: [`OpenFlowSwitch`] (the driver), [`Steering`] (the core), [`ServiceRules`] and [`Spread`] (what the rules match), [`RuleState`] and [`FlowRow`]
//! (what is known of a flow), [`FakeNic`] (a switch that lags, refuses and forgets, for tests and simulations).
//!
//! # Life of a flow, set up proactively
//!
//! 1. Its first packet meets the rule of its bucket: it goes straight to the bucket's instance, and a copy with a tag
//!    that says which one goes to the monitor port.
//! 2. The copy enters the flow here, **at the instance of the tag**, whatever the bucket says by now. Exact rules for it,
//!    in both directions where the service is symmetric, follow. They change nothing for its packets.
//! 3. When no packet of it has been noticed for its idle time, its rules are deleted.
//!
//! # How a bucket gets another instance
//!
//! A rule is not in force when the switch says that it has it: its datapath forwards by the old one for a while, each
//! cached decision on its own. So each step waits for a proof (a marker frame that follows four changes of its own
//! rule) that everything written before is in force.
//!
//! 1. **Freeze**: new flows of the bucket get no exact rules, and those on their way come into force.
//! 2. **Hold**: the bucket's rule sends to the monitor port alone. Whatever comes that way is sent on by us, at once, to the
//!    old instance: nothing waits. Flows that have no rule of their own get one that sends them the same way, through us.
//! 3. **Turn**: nothing leaves by the old rule any more. Flows that are new from here on are the new instance's.
//! 4. **Release**: when the flows caught have their own rules, the bucket's rule becomes that of the new instance.
//!
//! A flow caught by a hold stays on the way through us until it ends: to move it to the short way while it sends would let
//! its next packet overtake one that is still with us. The only flows that change from the long way to the short one are
//! those that begin between the last look and the moment at which the release is in force; they may lose their order once,
//! and never their instance.
#![forbid(unsafe_code)]

mod driver;
mod fake;
mod flows;
mod prover;
mod rules;
mod steering;

pub use driver::{OpenFlowSwitch, OpenFlowSwitchConfig, PooledPorts, PortDevice, StartError};
pub use fake::{Delivered, FakeNic, Faults};
pub use flows::{FlowId, FlowRow, RuleState};
pub use rules::{Family, OWNER_MASK, Part, SERVICE_LIMIT, ServiceRules, Side, Spread, TABLE};
pub use steering::{Fallback, Figures, IdleTimes, InstanceTerms, Settings, Setup, SlotFigures, Steering};
