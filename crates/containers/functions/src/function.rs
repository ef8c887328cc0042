//! What an author of a function implements.

use model::{Nanos, PortBlock, Tuple};
use state_moves::NotMoved;

use crate::about::About;
use crate::burst::Burst;
use crate::configuration::Error;

/// What a function learns of the instance that it runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The instance's id, 0 if it has none.
    pub instance: u32,
    /// Data ports: 1, or 2. With one, packets of both directions arrive at port 0 and leave by it.
    pub ports: u8,
    /// Drawn at random by the runner: for the keys of hash tables, and for what must not be guessed. The same in a
    /// test gives the same behaviour.
    pub seed: u64,
    /// The external ports that the instance owns, if inco has given it some.
    pub external: Option<PortBlock>,
}

/// What a function holds, for the shared page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Entries of its configuration: rules, routes, patterns, security associations.
    pub entries: u64,
    /// Flows, mappings, sessions or keys that it holds state of now; 0 if it holds none.
    pub flows: u64,
    /// How many of them it can hold; 0 if it holds none.
    pub flows_limit: u64,
}

/// A network function. It is pure: no input or output, no clock, no random source. It runs on one thread, and is called
/// by the runner between the ports.
///
/// In [`process`](Function::process) and [`tick`](Function::tick) it does not allocate in the steady state, does not
/// log and never panics, whatever the bytes of a packet are. What it allocates is bounded by its configuration.
pub trait Function: Send + Sized + 'static {
    /// A configuration as the function uses it: parsed, checked, with its tables built.
    type Configuration: Send + 'static;

    /// Its name, why it drops packets, and what it counts. Always the same.
    fn about() -> About;

    /// Builds a configuration from its text, which is empty if there is none. Slow work belongs here: a running
    /// function goes on meanwhile, because this is called on another thread.
    ///
    /// # Errors
    /// The text is wrong; the error says where and what to write instead. See [`crate::from_toml`].
    fn compile(text: &str, setup: &Setup) -> Result<Self::Configuration, Error>;

    /// A function that begins to work.
    fn new(configuration: Self::Configuration, setup: &Setup) -> Self;

    /// Takes a new configuration, between two bursts, and gives the old one back, which is freed elsewhere. It must be
    /// quick: swap what [`compile`](Function::compile) has built, and keep the state of flows as far as the new
    /// configuration allows.
    fn reload(&mut self, configuration: Self::Configuration) -> Self::Configuration;

    /// Works on a burst: changes packets in place and gives each a verdict. Without one, a packet leaves by the port
    /// opposite to that it came from (with one port: by that). `now` is the monotonic clock at the burst's start.
    fn process(&mut self, burst: &mut Burst, now: Nanos);

    /// When [`tick`](Function::tick) is due; [`None`] if it need not be called. Asked after each burst, so a field is to
    /// be returned, not computed.
    fn due(&self) -> Option<Nanos> {
        None
    }

    /// Does what time requires: ends flows, sends what waits. The burst holds no packets; the function may originate
    /// some. It is called when [`due`](Function::due) has passed, at the latest a few milliseconds afterwards, and must
    /// not take longer than some tens of microseconds: do a part, and be due again.
    fn tick(&mut self, burst: &mut Burst, now: Nanos) {
        let _ = (burst, now);
    }

    /// Writes the values of [`About::metrics`] into `values`, which is as long, in their order.
    fn metrics(&self, values: &mut [u64]) {
        let _ = values;
    }

    /// What it holds now.
    fn summary(&self) -> Summary {
        Summary::default()
    }

    /// Writes the next record of its log behind `line`, oldest first, without a line break, and drops its copy; returns
    /// whether there was one. `since_1970` is what must be added to the monotonic clock to get the wall clock. It is called
    /// between bursts, some records at a time, and may allocate. What waits meanwhile is bounded, and what finds no room is
    /// counted.
    fn record(&mut self, since_1970: Nanos, line: &mut String) -> bool {
        let _ = (since_1970, line);
        false
    }

    /// Writes what it knows of a flow into `state`, for the function of another instance with the same configuration,
    /// and returns how many bytes those are: 0 if it knows nothing of the flow. It keeps its copy: the flow goes on here
    /// if the other instance does not take it. `flow` is the flow in the direction of its first packet; its packets of
    /// both directions have been processed.
    ///
    /// A function without state returns 0. A function that does not implement this has flows that stay.
    ///
    /// # Errors
    /// Why the flow cannot leave the instance.
    fn export(&self, flow: &Tuple, state: &mut [u8], now: Nanos) -> Result<usize, NotMoved> {
        let _ = (flow, state, now);
        Err(NotMoved::Unsupported)
    }

    /// Takes a flow over with what [`export`](Function::export) wrote, in place of what it knows of it. The bytes may be
    /// any: they come from another container.
    ///
    /// # Errors
    /// Why it does not; nothing has changed then.
    fn import(&mut self, flow: &Tuple, state: &[u8], now: Nanos) -> Result<(), NotMoved> {
        let _ = (flow, state, now);
        Err(NotMoved::Unsupported)
    }

    /// Drops what it knows of a flow: another instance has it.
    fn forget(&mut self, flow: &Tuple, now: Nanos) {
        let _ = (flow, now);
    }

    /// For a function with mappings, which are of several flows or of none: writes them into `room`, from that number
    /// on, as many as there is room for, and returns how many bytes those are and where it goes on; [`None`] after the
    /// last one. It begins with 0. The instance is about to end; until then both have the mappings, and this one gives
    /// their external ports to no other.
    ///
    /// # Errors
    /// [`NotMoved::Unsupported`]: it has none, or they cannot leave the instance.
    fn hand_over(
        &mut self,
        from: u32,
        room: &mut [u8],
        now: Nanos,
    ) -> Result<(usize, Option<u32>), NotMoved> {
        let _ = (from, room, now);
        Err(NotMoved::Unsupported)
    }

    /// Takes over mappings that [`hand_over`](Function::hand_over) of another instance wrote, with their external
    /// endpoints. The bytes may be any: they come from another container.
    ///
    /// # Errors
    /// Why it did not take all of them; it has those that it could take.
    fn take_over(&mut self, mappings: &[u8], now: Nanos) -> Result<(), NotMoved> {
        let _ = (mappings, now);
        Err(NotMoved::Unsupported)
    }

    /// How many mappings with external ports of that block it has; [`None`] if it has no mappings.
    fn mappings_in(&mut self, ports: &PortBlock, now: Nanos) -> Option<u32> {
        let _ = (ports, now);
        None
    }
}
