//! The contract of a switch: what the control plane may ask, and what it is told.
//!
//! 1. [`Switch::publish`] a plan in which the instance is not Active, then [`Switch::attach`] its ports;
//!    [`SwitchEvent::Attached`] or [`SwitchEvent::AttachFailed`] follows.
//! 2. Publish it as Active: new flows come. Publish it as Draining: no more, once
//!    [`SwitchReading::acknowledged`] has reached that generation.
//! 3. [`Switch::remove`] it; [`SwitchEvent::Removed`] says that no worker knows the slot any more and how many packets
//!    the instance still held. Only then may the slot be used again.

use std::path::PathBuf;
use std::sync::Arc;

use model::{FlowKey, Generation, Nanos, ServiceId, Slot, UplinkId};
use scheduling::Scheduler;
use thiserror::Error;

use collector::RawCounters;

use crate::counters::WorkerTotals;
use crate::idle::Alarm;
use flow_table::FlowRow;

use crate::dump::FlowFilter;
use crate::plan::Plan;
use crate::record::PickRecord;
use crate::worker::HeavyFlow;

/// Where an instance's data ports are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachSpec {
    /// The instance listens on this memif socket; its ports are interface ids from 0.
    Memif {
        /// Of which service the instance is: a switch that steers by rules must know before the plan has the slot.
        service: ServiceId,
        /// The socket, as the switch sees it.
        socket: PathBuf,
        /// Data ports: one per uplink of the service, one or two.
        ports: u8,
        /// Queue pairs per port, at most the number of workers.
        queues: u16,
        /// Slots per ring as a power of two: 10 is 1024.
        log2_slots: u8,
        /// Bytes per buffer; longer frames are chained.
        buffer_bytes: u32,
        /// How long to go on trying: the container may still be starting.
        deadline: Nanos,
    },
    /// The switch has made the ports of this slot when it started; the instance has been told of them.
    Made {
        /// Of which service the instance is.
        service: ServiceId,
        /// How long the instance may take to take packets from them.
        deadline: Nanos,
    },
    /// A sink that takes everything.
    Null,
}

/// What a switch tells.
#[derive(Debug)]
pub enum SwitchEvent {
    /// All data ports are connected and every worker knows the slot.
    Attached {
        /// The instance's place.
        slot: Slot,
        /// How the peer calls itself.
        peer: String,
    },
    /// The ports could not be connected in time.
    AttachFailed {
        /// The instance's place.
        slot: Slot,
        /// What was wrong.
        error: SwitchError,
    },
    /// The instance closed a port or broke its protocol.
    PortDown {
        /// The instance's place.
        slot: Slot,
        /// What it did.
        reason: String,
    },
    /// The instance was given packets, and gives nothing back, nor probes. Told by switches that do not show how full a ring is.
    Stalled {
        /// The instance's place.
        slot: Slot,
        /// For how long nothing has come back.
        silent: Nanos,
    },
    /// No worker knows the slot any more.
    Removed {
        /// The instance's place.
        slot: Slot,
        /// Packets that it had been given and had not given back.
        outstanding: u64,
    },
    /// An uplink has a peer.
    UplinkUp {
        /// Which uplink.
        uplink: UplinkId,
        /// How the peer calls itself.
        peer: String,
    },
    /// An uplink lost its peer.
    UplinkDown {
        /// Which uplink.
        uplink: UplinkId,
        /// Why.
        reason: String,
    },
    /// Something failed between inco and the switch.
    Trouble {
        /// What failed.
        what: String,
        /// What happened, and what it means for packets.
        reason: String,
    },
    /// What had failed works again.
    Recovered {
        /// What had failed.
        what: String,
        /// For how long it had.
        after: Nanos,
    },
    /// The flows asked for with [`Switch::request_flows`].
    Flows {
        /// The number of the request.
        id: u64,
        /// What was found.
        rows: Vec<FlowRow>,
        /// How the switch's own rule for each of them is; empty where flows have none.
        rules: Vec<String>,
        /// Whether these are all; if not, the limit cut them off.
        complete: bool,
    },
    /// The heaviest flows, asked for with [`Switch::request_heavy_flows`], the heaviest first.
    HeavyFlows {
        /// The number of the request.
        id: u64,
        /// What was found.
        rows: Vec<HeavyFlow>,
    },
    /// A scheduling decision, asked for with [`Switch::request_record`].
    Recorded(Box<PickRecord>),
}

/// What can go wrong between inco and a switch.
#[derive(Debug, Error)]
pub enum SwitchError {
    /// A memif link could not be made.
    #[error("memif socket {}: {source}", socket.display())]
    Memif {
        /// The socket.
        socket: PathBuf,
        /// What was wrong.
        source: memif::Error,
    },
    /// The system refused something that the switch needs.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A limit of the switch.
    #[error("{what}: {asked} is not between 1 and {limit}")]
    Limit {
        /// What there are too many of, or none.
        what: &'static str,
        /// How many were asked for.
        asked: usize,
        /// How many there can be.
        limit: usize,
    },
    /// The slot has an instance, or one that is still being removed.
    #[error("{slot} is in use: an instance is attached there, or its removal has not been answered yet")]
    SlotInUse {
        /// Which slot.
        slot: Slot,
    },
    /// A worker's command ring is full: it has not run for a long time.
    #[error("worker {worker} takes no commands: it has not run since {pending} commands")]
    WorkerStuck {
        /// Which worker.
        worker: usize,
        /// Commands waiting for it.
        pending: usize,
    },
    /// A port of another program's switch could not be made.
    #[error("{error}")]
    Port {
        /// What it said.
        error: String,
    },
    /// The driver has no such ability.
    #[error("this switch cannot {what}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// The flow table's storage does not fit its configuration.
    #[error("flow table: {0}")]
    Table(flow_table::TableError),
}

/// Every counter of a switch at about one moment. The caller keeps one and has it filled again each time.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchReading {
    /// What the collector works on, summed over workers.
    pub counters: RawCounters,
    /// By worker, what is beyond that.
    pub workers: Vec<WorkerTotals>,
    /// The newest plan by which every worker works.
    pub acknowledged: Generation,
}

impl SwitchReading {
    /// All zero, for a switch with that many services, uplinks and workers.
    pub fn new(services: usize, uplinks: usize, workers: usize) -> SwitchReading {
        SwitchReading {
            counters: RawCounters::new(services, uplinks, workers),
            workers: vec![WorkerTotals::default(); workers],
            acknowledged: Generation(0),
        }
    }

    /// Packets received on all uplinks.
    pub fn offered(&self) -> u64 {
        self.counters.uplinks.iter().map(|u| u.received_packets).sum()
    }

    /// Packets sent on all uplinks: returned by instances, or passed.
    pub fn sent(&self) -> u64 {
        self.counters.uplinks.iter().map(|u| u.sent_packets).sum()
    }

    /// Packets dropped, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.counters.drops.iter().sum()
    }

    /// Packets that functions made themselves.
    pub fn originated(&self) -> u64 {
        self.counters.slots.iter().map(|s| s.originated).sum()
    }

    /// Packets inside: in rings, in functions, waiting for a first fragment, or between workers. At rest,
    /// offered + originated = sent + dropped + in flight.
    pub fn in_flight(&self) -> u64 {
        let in_instances: u64 = self
            .counters
            .slots
            .iter()
            .map(|s| (s.to_packets + s.originated).saturating_sub(s.back_packets + s.lost + s.kept))
            .sum();
        in_instances + self.workers.iter().map(|w| w.held).sum::<u64>()
    }
}

/// What forwards packets. All calls return at once; what takes time is told by [`Switch::poll`].
pub trait Switch: Send {
    /// Makes a plan the one that workers steer by. Its generation is set here.
    fn publish(&mut self, plan: Plan) -> Generation;

    /// Connects the data ports of the instance in that slot.
    ///
    /// # Errors
    /// [`SwitchError::Limit`] for a slot, or a number of ports, that does not exist; [`SwitchError::SlotInUse`] before the
    /// slot's last instance is [`SwitchEvent::Removed`].
    fn attach(&mut self, slot: Slot, spec: AttachSpec) -> Result<(), SwitchError>;

    /// The instance in that slot failed. Publish a plan without it next: its flows are then given to others on their
    /// next packet, counted as expected moves. What it gave back so far goes out before any of them; nothing does that it
    /// gives later, should it come back to life, or it would meet packets that went another way after it. That, and what
    /// it holds, counts as lost once it is removed.
    ///
    /// # Errors
    /// [`SwitchError::WorkerStuck`].
    fn fail(&mut self, slot: Slot) -> Result<(), SwitchError>;

    /// Removes every pin to the slot, and its ports. Publish a plan without it first.
    ///
    /// # Errors
    /// [`SwitchError::WorkerStuck`].
    fn remove(&mut self, slot: Slot) -> Result<(), SwitchError>;

    /// Puts a probe packet into the instance's ring. That it was taken shows in [`collector::SlotCounters::consumed`].
    ///
    /// # Errors
    /// [`SwitchError::WorkerStuck`].
    fn probe(&mut self, slot: Slot) -> Result<(), SwitchError>;

    /// Removes every pin to the slot and leaves its ports.
    ///
    /// # Errors
    /// [`SwitchError::WorkerStuck`].
    fn purge_slot(&mut self, slot: Slot) -> Result<(), SwitchError>;

    /// Removes the pin of one flow.
    ///
    /// # Errors
    /// [`SwitchError::WorkerStuck`].
    fn purge_flow(&mut self, key: FlowKey) -> Result<(), SwitchError>;

    /// Gives one flow of a relaxed, symmetric service to the instance in that slot, once what it sent before is back. Where
    /// that instance takes no new flows by then, the scheduler picks.
    ///
    /// # Errors
    /// [`SwitchError::WorkerStuck`].
    fn move_flow(&mut self, key: FlowKey, to: Slot) -> Result<(), SwitchError>;

    /// Replaces the scheduler of a service without touching pinned flows.
    ///
    /// # Errors
    /// [`SwitchError::WorkerStuck`].
    fn set_scheduler(&mut self, service: ServiceId, scheduler: Scheduler) -> Result<(), SwitchError>;

    /// Begins to receive from an uplink that waits for it ([`UplinkConfig::waits`](crate::UplinkConfig::waits)); any
    /// other one is left as it is.
    fn open_uplink(&mut self, uplink: UplinkId);

    /// Publishes loads by slot, and what a new flow is expected to bring by service, both in the service's metric.
    fn set_loads(&mut self, loads: &[(Slot, f32)], expected: &[(ServiceId, f32)]);

    /// Reads every counter. Slots that no plan has had since the switch started are left as they are.
    fn read(&mut self, into: &mut SwitchReading);

    /// Asks for flows, at most `limit` rows; [`SwitchEvent::Flows`] with this `id` follows.
    ///
    /// # Errors
    /// [`SwitchError::WorkerStuck`].
    fn request_flows(&mut self, id: u64, filter: FlowFilter, limit: usize) -> Result<(), SwitchError>;

    /// Asks for the heaviest of the flows meant, at most [`ELEPHANT_LIMIT`](crate::ELEPHANT_LIMIT) of each worker;
    /// [`SwitchEvent::HeavyFlows`] with this `id` follows.
    ///
    /// # Errors
    /// [`SwitchError::WorkerStuck`].
    fn request_heavy_flows(&mut self, id: u64, filter: FlowFilter) -> Result<(), SwitchError>;

    /// Asks every worker to write its next scheduling decision of the service down; a [`SwitchEvent::Recorded`] with this
    /// `id` follows for each worker that makes one.
    ///
    /// # Errors
    /// [`SwitchError::WorkerStuck`].
    fn request_record(&mut self, id: u64, service: ServiceId) -> Result<(), SwitchError>;

    /// Moves what is under way and appends what happened.
    fn poll(&mut self, now: Nanos, events: &mut Vec<SwitchEvent>);

    /// The largest gap between two turns of a worker that did not sleep, since the last call, by worker.
    fn take_longest_gaps(&mut self) -> Vec<Nanos>;

    /// What wakes the thread that started the switch when a packet or a peer comes after a quiet time, or more packets than usual
    /// since it last [`read`](Switch::read) the counters; [`None`] for a switch that does not see each packet, whose counters
    /// must be looked at all the time.
    fn alarm(&self) -> Option<Arc<Alarm>> {
        None
    }

    /// Stops the workers and frees every port.
    fn stop(&mut self);
}
