//! The controller owns the state machine of every instance and decides what the engine and the switch do next. It
//! never touches a container, a packet, a socket or a clock: each step takes events and returns requests.
//!
//! Key types: [`Controller`] (the state and its step), [`Inputs`] and [`Outputs`] (of one step), [`Instance`],
//! [`Settings`] and [`ServiceSettings`], [`Reactions`] (reaction times), [`Shell`] (connects a controller to an
//! engine).
//!
//! The life of a run:
//! 1. [`Controller::new`] with the services; [`Controller::adopt`] with the containers of an earlier run.
//! 2. [`Controller::step`] every millisecond and whenever something has happened. A step in which nothing changes
//!    allocates nothing.
//! 3. [`model::Action::Stop`]; then steps until [`Controller::is_finished`].
//!
//! The life of an instance, with the requests to engine and switch:
//! ```text
//! Creating   engine: create
//! Starting   switch: attach; readiness: connected | a probe packet taken | a command
//! Standby    in the plan, takes no flows; engine: pause, if the pool is paused
//! Active     in the plan, takes new flows
//! Draining   in the plan, keeps its flows; until every worker has acknowledged, no flow is left and both rings are
//!            empty, or the deadline passes
//! Stopping   out of the plan; acknowledged → switch: detach → engine: stop, remove → Gone
//! Failed     out of the plan; switch: fail, its flows move; acknowledged → detach → engine: remove → Gone
//! ```
//! To add instances, in this order: cancel a drain, use a warm standby, use a paused standby, use an instance on its
//! way to the pool, create one. To remove: first those not ready yet, then the Active one with the fewest live flows,
//! the youngest if equal.
//!
//! Where places are configured, [`placement`] says at which of them the next instance is created, and at which one
//! drains first. An engine that does not answer stops changes at its own places only; instances of a place on another
//! machine have failed when it has been away for too long.
//!
//! A rollout replaces the pool, then the Active instances one by one. A replacement is Active before its predecessor
//! drains.

mod backoff;
mod blocks;
mod controller;
mod fitness;
mod instance;
mod message;
mod reaction;
mod settings;
mod shell;

pub use blocks::ReservedBlock;
pub use controller::{Checks, Controller, Failing, HeldBack, PlaceStatus, ServiceStatus, goal_of};
pub use fitness::Fitness;
pub use instance::{Container, Instance, Port};
pub use message::{Command, CommandError, CommandId, Inputs, Outputs, Report, ReportKind};
pub use reaction::{REACTION_LIMIT, Reactions, Times};
pub use settings::{
    ATTACH_AGAIN, AtPlace, BACK_OFF_FIRST, BACK_OFF_LONGEST, CAPACITY_STEP, CHECK_AGAIN, CHECK_LIMIT,
    CREATES_AT_ONCE, Core, LABEL_CORE, LABEL_EXTERNAL, LABEL_INSTANCE, LABEL_PLACE, LABEL_PORT,
    LABEL_RUN_DIR, LABEL_SERVICE, LABEL_SLOT, MadePort, Matching, OLDEST_COUNTERS, Place, SAME_EVENT_AGAIN,
    STALL_AFTER, ServiceSettings, Settings, YOUNG,
};
pub use shell::{EngineCalls, Shell};
