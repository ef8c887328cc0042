//! Carries decisions out: it owns the state machine of every instance and decides what the engine and the switch do
//! next. It never touches a container, a packet, a socket or a clock itself: what happened goes into a step, what is
//! to be done comes out.
//!
//! Key types: [`Controller`] (the core), [`Inputs`] and [`Outputs`] (of one step), [`Instance`], [`Settings`] and
//! [`ServiceSettings`], [`Reactions`] (how fast it was), [`Shell`] (the thin part that talks to an engine).
//!
//! The life of a run:
//! 1. [`Controller::new`] with the services; [`Controller::adopt`] with the containers of an earlier run.
//! 2. [`Controller::step`] every millisecond and whenever something has happened. A step in which nothing changes
//!    allocates nothing.
//! 3. [`Command::Shutdown`]; then steps until [`Controller::is_finished`].
//!
//! The life of an instance, with what is asked of whom:
//! ```text
//! Creating   engine: create
//! Starting   switch: attach; readiness: connected | a probe packet taken | a command
//! Standby    in the plan, takes no flows; engine: pause, where the pool is paused
//! Active     in the plan, takes new flows
//! Draining   in the plan, keeps its flows; until every worker has acknowledged, no flow is left and both rings are
//!            empty, or the deadline passes
//! Stopping   out of the plan; acknowledged → switch: detach → engine: stop, remove → Gone
//! Failed     out of the plan; switch: fail, its flows move; acknowledged → detach → engine: remove → Gone
//! ```
//! More instances, in this order: a drain taken back, a warm standby, a paused standby, one that is on its way to
//! the pool, a new one. Fewer: those not ready yet, then the Active one with the fewest live flows, the youngest
//! among equals.
//!
//! A rollout replaces the pool, then the Active ones, one after the other: a replacement is Active before one drains.

mod backoff;
mod controller;
mod instance;
mod message;
mod reaction;
mod settings;
mod shell;

pub use controller::{Controller, Failing, HeldBack, ServiceStatus};
pub use instance::{Container, Instance, Port};
pub use message::{Command, CommandError, CommandId, HoldBack, Inputs, Outputs};
pub use reaction::{REACTION_LIMIT, Reactions, Times};
pub use settings::{
    ATTACH_AGAIN, BACK_OFF_FIRST, BACK_OFF_LONGEST, CAPACITY_STEP, CHECK_AGAIN, CHECK_LIMIT, CREATES_AT_ONCE,
    LABEL_INSTANCE, LABEL_RUN_DIR, LABEL_SERVICE, LABEL_SLOT, Matching, OLDEST_COUNTERS, PortPlace,
    SAME_EVENT_AGAIN, STALL_AFTER, ServiceSettings, Settings, YOUNG,
};
pub use shell::{EngineCalls, Shell};
