use std::sync::Arc;

use flow_table::{FlowRow, TableError};
use model::{Capabilities, EditKind, FlowKey, Generation, Nanos, ServiceId, Slot, UplinkId};
use scheduling::Scheduler;
use thiserror::Error;

use crate::capture::Capture;
use crate::flows::{FlowFilter, HeavyFlow};
use crate::mappings::{MappingsEvent, MappingsRequest};
use crate::plan::Plan;
use crate::ports::PortSpec;
use crate::reading::SwitchReading;
use crate::record::PickRecord;
use crate::resumed::Resumed;

/// Something that a switch is to do. Requests are carried out in the order in which they are made.
#[derive(Clone, Debug)]
pub enum SwitchRequest {
    /// Steer by this plan. [`SwitchReading::acknowledged`] tells when every worker does.
    Publish(Arc<Plan>),
    /// Connect the data ports of an instance. [`SwitchEvent::Attached`] or [`SwitchEvent::AttachFailed`] follows.
    Attach {
        /// Its place, where no instance is attached.
        slot: Slot,
        /// Of which service it is.
        service: ServiceId,
        /// Where its ports are.
        port: PortSpec,
    },
    /// Disconnect an instance that is not in the plan, or give up connecting it: every pin to the slot and its ports
    /// go. [`SwitchEvent::Detached`] follows.
    Detach(Slot),
    /// The instance failed. A plan without it comes next: its flows are then given to others on their next packet,
    /// counted as expected moves. What it gave back so far goes out before any of them; nothing does that it gives
    /// later, should it come back to life, or it would meet packets that went another way after it. That, and what it
    /// holds, counts as lost once it is detached.
    Fail(Slot),
    /// Put a probe packet into the instance's ring. That it was taken shows in
    /// [`SlotCounters::consumed`](crate::SlotCounters::consumed).
    Probe(Slot),
    /// Remove every pin to the slot and leave its ports.
    PurgeSlot(Slot),
    /// Have instances that translate hand mappings over, or count them.
    Mappings(MappingsRequest),
    /// Begin to receive from an uplink that waits for it; any other one is left as it is.
    OpenUplink(UplinkId),
    /// Change a pin, or who decides about new ones.
    Change(Change),
    /// List flows, at most `limit` rows. [`SwitchEvent::Flows`] with this `id` follows. A flow whose packets are not
    /// set up by the switch's own worker may be listed a moment after its first packet.
    Flows {
        /// A number for the answer.
        id: u64,
        /// Which flows.
        filter: FlowFilter,
        /// Rows at most.
        limit: usize,
    },
    /// List the heaviest of the flows meant, at most [`HEAVY_FLOW_LIMIT`](crate::HEAVY_FLOW_LIMIT) of each worker.
    /// [`SwitchEvent::HeavyFlows`] with this `id` follows.
    HeavyFlows {
        /// A number for the answer.
        id: u64,
        /// Which flows.
        filter: FlowFilter,
    },
    /// Write the next scheduling decision of the service down. A [`SwitchEvent::Recorded`] with this `id` follows for
    /// each worker that makes one. Needs [`Capabilities::pick_records`].
    Record {
        /// A number for the answer.
        id: u64,
        /// Whose decision.
        service: ServiceId,
    },
    /// Copy packets for a reader until it ends the capture, which is [over](Capture::is_over) then. Needs
    /// [`Capabilities::captures`].
    Capture(Arc<Capture>),
}

/// A change that each worker makes by itself and that nothing answers.
#[derive(Clone, Debug)]
pub enum Change {
    /// Remove the pin of one flow.
    PurgeFlow(FlowKey),
    /// Give one flow of a relaxed, symmetric service to the instance in that slot, once what it sent before is back.
    /// Where that instance takes no new flows by then, the scheduler picks. Needs [`Capabilities::relaxed_moves`].
    MoveFlow {
        /// Which one.
        key: FlowKey,
        /// Where it goes.
        to: Slot,
    },
    /// Replace the scheduler of a service without touching pinned flows. The plan's own counts for new services
    /// alone.
    SetScheduler {
        /// Whose.
        service: ServiceId,
        /// What picks from now on.
        scheduler: Scheduler,
    },
}

/// What a switch tells.
#[derive(Clone, Debug)]
pub enum SwitchEvent {
    /// All data ports are connected and every worker has the slot.
    Attached {
        /// The instance's place.
        slot: Slot,
        /// How the peer calls itself.
        peer: String,
    },
    /// The ports could not be connected in time. The slot is free for another attempt.
    AttachFailed {
        /// The instance's place.
        slot: Slot,
        /// What was wrong.
        reason: String,
    },
    /// The instance closed a port or broke its protocol.
    PortDown {
        /// The instance's place.
        slot: Slot,
        /// What it did.
        reason: String,
    },
    /// The instance was given packets, and gives nothing back, nor probes. Told by switches that do not show how full
    /// a ring is.
    Stalled {
        /// The instance's place.
        slot: Slot,
        /// For how long nothing has come back.
        silent: Nanos,
    },
    /// Nothing refers to the slot any more.
    Detached {
        /// The instance's place.
        slot: Slot,
        /// Packets that it had been given and had not given back: lost where it failed, else kept by the function.
        outstanding: u64,
    },
    /// The switch cannot carry out a plan; the one before it stays in force. Another one may be published.
    PlanRefused {
        /// Which one.
        generation: Generation,
        /// What it cannot do.
        reason: String,
    },
    /// The switch could not take a request to detach, which may be made again.
    DetachFailed {
        /// The instance's place.
        slot: Slot,
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
    /// Answers [`SwitchRequest::Flows`].
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
    /// Answers [`SwitchRequest::HeavyFlows`], the heaviest first.
    HeavyFlows {
        /// The number of the request.
        id: u64,
        /// What was found.
        rows: Vec<HeavyFlow>,
    },
    /// Answers [`SwitchRequest::Record`].
    Recorded(Box<PickRecord>),
    /// What became of mappings of instances that translate.
    Mappings(MappingsEvent),
    /// A signal came through a port of the instance: at most one in [`signal::INTERVAL_NS`]. Nobody has looked at more
    /// than its EtherType. Needs [`Capabilities::signals`].
    Signal {
        /// The instance's place.
        slot: Slot,
        /// The frame.
        frame: signal::Received,
    },
}

/// What can go wrong between inco and a switch.
#[derive(Debug, Error)]
pub enum SwitchError {
    /// A port could not be made or connected.
    #[error("{reason}")]
    Port {
        /// Which one, and what was wrong.
        reason: String,
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
    /// A worker takes no more requests: it has not run for a long time.
    #[error("worker {worker} takes no commands: it has not run since {pending} commands")]
    WorkerStuck {
        /// Which worker.
        worker: usize,
        /// Commands waiting for it.
        pending: usize,
    },
    /// The driver has no such ability: see [`Capabilities`].
    #[error("this switch cannot {what}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// A capture runs already.
    #[error("a capture runs already, and there is one at a time")]
    Capturing,
    /// A plan has a service that asks for what the driver cannot do: see [`Capabilities`]. The plan before it stays
    /// in force.
    #[error("the plan asks of {service} {what}, which this switch cannot do")]
    Service {
        /// Which one.
        service: ServiceId,
        /// What it asks for.
        what: &'static str,
    },
    /// A plan has edits that the driver cannot do: see [`Capabilities::edits`]. The plan before it stays in force.
    #[error(
        "the plan edits packets of slot {} with {}, which this switch cannot do: leave that edit out",
        slot.0,
        kind.name()
    )]
    Edit {
        /// Of which instance.
        slot: Slot,
        /// What was planned.
        kind: EditKind,
    },
    /// The flow table's storage does not fit its configuration.
    #[error("flow table: {0}")]
    Table(TableError),
}

/// Wakes the thread that started a switch, when a packet or a peer comes after a quiet time, or more packets than
/// usual since it last read the counters.
pub trait WakeUp: Send + Sync {
    /// Has it wake the thread at the first packet. After that the thread reads the switch's counters once more: what
    /// they do not show yet will wake it. Then it may [`park`](std::thread::park_timeout).
    fn set(&self);

    /// The thread is awake.
    fn clear(&self);

    /// Whether more packets than usual have come since the last call. A thread that parks for another reason, too,
    /// asks this whenever it wakes.
    fn take_rise(&self) -> bool;
}

/// What forwards packets. All calls return at once; what takes time is told by [`Switch::poll`].
pub trait Switch: Send {
    /// What it can do beyond what every switch does.
    fn capabilities(&self) -> Capabilities;

    /// Has it do something. Nothing was done where this fails.
    ///
    /// # Errors [`SwitchError::WorkerStuck`]; what [`Plan::validate`] has against a plan;
    /// [`SwitchError::Unsupported`] for what [`Switch::capabilities`] does not have; for an attachment
    /// [`SwitchError::Limit`] for a slot, or a number of ports, that does not exist, and [`SwitchError::SlotInUse`]
    /// before the slot's last instance is [`SwitchEvent::Detached`].
    fn request(&mut self, request: SwitchRequest) -> Result<(), SwitchError>;

    /// Publishes loads by slot, and what a new flow is expected to bring by service, both in the service's metric.
    fn set_loads(&mut self, loads: &[(Slot, f32)], expected: &[(ServiceId, f32)]);

    /// Says how far loads are believed, 0 to 1, by slot ([`Candidate::trust`](scheduling::Candidate::trust)): where others
    /// report them. It holds from the next [`Switch::set_loads`] on; before it was ever said, loads are believed. Only
    /// switches with tunnels have such instances.
    fn set_trust(&mut self, _trust: &[(Slot, f32)]) {}

    /// Reads every counter. Slots that have had no instance since the switch started are left as they are, and so is
    /// what others tell of an instance ([`SlotCounters::function`](crate::SlotCounters::function),
    /// [`SlotCounters::container_memory_bytes`](crate::SlotCounters::container_memory_bytes) and
    /// [`SlotCounters::throttled_ns`](crate::SlotCounters::throttled_ns)).
    fn read(&mut self, into: &mut SwitchReading);

    /// Moves what is under way and appends what happened.
    fn poll(&mut self, now: Nanos, events: &mut Vec<SwitchEvent>);

    /// The largest gap between two turns of a worker that did not sleep, since the last call, by worker.
    fn take_longest_gaps(&mut self) -> Vec<Nanos>;

    /// What wakes the control plane; [`None`] for a switch that does not see each packet, whose counters must be
    /// looked at all the time.
    fn wake_up(&self) -> Option<Arc<dyn WakeUp>> {
        None
    }

    /// Whether its state stays for the next run after [`Switch::leave`].
    fn keeps_state(&self) -> bool {
        false
    }

    /// Why a faster path has a flow, or has it not, in a sentence; [`None`] for a switch with one path.
    fn path_of(&self, _flow: &FlowKey) -> Option<String> {
        None
    }

    /// What it took over from an earlier run; [`None`] for a switch that takes nothing over, or does not know yet what
    /// that is.
    fn resumed(&self) -> Option<&Resumed> {
        None
    }

    /// Stops the workers. Where its state [stays](Switch::keeps_state), leaves everything as it is for the next run:
    /// no instance and no peer of an uplink notices.
    fn leave(&mut self) {
        self.stop();
    }

    /// Stops the workers and frees every port.
    fn stop(&mut self);

    /// Publishes a plan: [`SwitchRequest::Publish`], for callers without another request at that moment. Gives
    /// its generation.
    ///
    /// # Errors
    /// As [`Switch::request`].
    fn publish(&mut self, plan: Plan) -> Result<Generation, SwitchError> {
        let generation = plan.generation;
        self.request(SwitchRequest::Publish(Arc::new(plan)))?;
        Ok(generation)
    }

    /// Makes a request of a caller that reads events only: a refusal is reported as
    /// [`SwitchEvent::PlanRefused`], [`SwitchEvent::AttachFailed`] or [`SwitchEvent::DetachFailed`], and in any case
    /// as [`SwitchEvent::Trouble`].
    fn submit(&mut self, request: SwitchRequest, events: &mut Vec<SwitchEvent>) {
        let (plan, attaches, detaches) = match &request {
            SwitchRequest::Publish(plan) => (Some(plan.generation), None, None),
            SwitchRequest::Attach { slot, .. } => (None, Some(*slot), None),
            SwitchRequest::Detach(slot) => (None, None, Some(*slot)),
            _ => (None, None, None),
        };
        let Err(error) = self.request(request) else { return };
        let reason = error.to_string();
        events.extend(plan.map(|generation| SwitchEvent::PlanRefused {
            generation,
            reason: reason.clone(),
        }));
        events.extend(attaches.map(|slot| SwitchEvent::AttachFailed {
            slot,
            reason: reason.clone(),
        }));
        events.extend(detaches.map(|slot| SwitchEvent::DetachFailed { slot }));
        events.push(SwitchEvent::Trouble {
            what: "switch".to_owned(),
            reason,
        });
    }
}
