//! Messages between the control plane and a worker, and between two workers, in bounded single-producer
//! single-consumer rings.

use std::net::Ipv4Addr;
use std::sync::Arc;

use model::{InstanceId, ServiceId, Slot, UplinkId};
use switch::{Capture, Change, MappingsEvent, MappingsRequest, PickRecord};

use crate::dump::{FlowDump, HeavyDump};
use crate::frame::FrameMemory;
use crate::instance::InstancePorts;
use crate::port::Port;

/// A command of the control plane to a worker. It carries all memory that the worker needs for it.
pub enum Command<M: FrameMemory> {
    /// The worker is a home worker of this instance from now on.
    AttachInstance {
        /// The instance's place.
        slot: Slot,
        /// Its data ports.
        ports: Box<InstancePorts<M>>,
    },
    /// No pin to the slot remains after this, and none is made unless a plan published later says so.
    /// The home worker gives the ports back.
    RemoveInstance {
        /// The instance's place.
        slot: Slot,
        /// Whether the instance failed: packets in it then count as lost, else as kept by it.
        failed: bool,
    },
    /// The instance failed: packets that it has returned so far leave, later ones do not.
    FailInstance {
        /// The instance's place.
        slot: Slot,
    },
    /// Packets were lost on their way to the instance or back.
    CountLost {
        /// The instance's place.
        slot: Slot,
        /// How many.
        packets: u64,
    },
    /// Puts a probe into the instance's ring.
    Probe {
        /// The instance's place.
        slot: Slot,
    },
    /// Removes the pins to a slot and leaves its ports.
    PurgeSlot {
        /// The instance's place.
        slot: Slot,
        /// Whether the instance failed: its flows then count as expected moves.
        failed: bool,
    },
    /// Has instances hand mappings over, or count them.
    Mappings(MappingsRequest),
    /// Changes what the worker has of it.
    Change(Change),
    /// The worker serves this queue of an uplink from now on.
    AttachUplink {
        /// Which uplink.
        uplink: UplinkId,
        /// The queue.
        port: Box<Port<M>>,
    },
    /// The uplink went down; the worker gives its queue back.
    DetachUplink {
        /// Which uplink.
        uplink: UplinkId,
    },
    /// Fills the dump with flows.
    Dump(Box<FlowDump>),
    /// Fills the dump with the heaviest flows.
    DumpHeavy(Box<HeavyDump>),
    /// Writes the next scheduling decision of a service down.
    Record(Box<PickRecord>),
    /// Copies packets for it, until it is over.
    Capture(Arc<Capture>),
    /// Ends the worker.
    Stop(Ending),
}

/// What becomes of packets that wait in a worker when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// They are dropped, and counted.
    Drop,
    /// They go on to their instances first: the next run continues with the rings.
    Forward,
}

/// An event of a worker for the control plane.
pub enum WorkerEvent<M: FrameMemory> {
    /// A [`Command::AttachInstance`] is done here.
    InstanceAttached {
        /// The instance's place.
        slot: Slot,
    },
    /// A [`Command::FailInstance`] is done here.
    InstanceFailed {
        /// The instance's place.
        slot: Slot,
    },
    /// A [`Command::RemoveInstance`] is done here.
    InstanceRemoved {
        /// The instance's place.
        slot: Slot,
        /// Packets in the instance: lost with it, or kept by it.
        outstanding: u64,
    },
    /// The ports of a removed instance, from its home worker, to be freed.
    PortsReturned {
        /// The ports.
        ports: Box<InstancePorts<M>>,
    },
    /// A peer broke the ring's protocol; the port must go.
    PortBroken {
        /// The instance's place.
        slot: Slot,
    },
    /// A [`Command::AttachUplink`] is done here.
    UplinkAttached {
        /// Which uplink.
        uplink: UplinkId,
    },
    /// The peer of an uplink broke the ring's protocol; the port must go.
    UplinkBroken {
        /// Which uplink.
        uplink: UplinkId,
    },
    /// A [`Command::DetachUplink`] is done here.
    UplinkDetached {
        /// Which uplink.
        uplink: UplinkId,
        /// The queue, where the worker had one.
        port: Option<Box<Port<M>>>,
    },
    /// The dump, filled.
    Dumped(Box<FlowDump>),
    /// The heaviest flows.
    DumpedHeavy(Box<HeavyDump>),
    /// A scheduling decision. Without a flow if the service does not exist, or a later request replaced this one.
    Recorded(Box<PickRecord>),
    /// What became of mappings. That flows have moved is told by each worker.
    Mappings(MappingsEvent),
    /// A signal of an instance.
    Signal {
        /// The instance's place.
        slot: Slot,
        /// The frame.
        frame: signal::Received,
    },
}

/// A frame that is handed to another worker.
pub struct HandOff<F> {
    /// The frame.
    pub frame: F,
    /// Its destination.
    pub to: Destination,
}

/// The destination of a frame that is handed to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The lookup of its owner; received on that uplink.
    Steering(UplinkId),
    /// The same, where a service knows the flow by what the packet carries.
    Content(UplinkId),
    /// The same, still in its tunnel: an edge looks for its flow.
    Look(UplinkId),
    /// The owner of the flow of a packet that a machine sent back, which does not know it.
    CameBack {
        /// The uplink that received it.
        uplink: UplinkId,
        /// The machine's place.
        from: Slot,
        /// How many machines had been asked before it.
        asked: u8,
    },
    /// An instance whose home worker it is.
    Instance {
        /// The instance's place.
        slot: Slot,
        /// The instance that had the slot then: it may have another one when the frame arrives.
        instance: InstanceId,
        /// Of which service.
        service: ServiceId,
        /// Which of its data ports.
        port: u8,
    },
    /// The same with a message about a move with state.
    Message {
        /// The instance's place.
        slot: Slot,
        /// Which of its data ports.
        port: u8,
    },
    /// The worker whose move a message of the instance in that slot is about.
    Said {
        /// The instance's place.
        slot: Slot,
    },
    /// An uplink whose queue the worker has.
    Uplink(UplinkId),
    /// Returned by an instance: to be counted with its flow and then sent out.
    Return(Returned),
    /// The same, to return through the edge.
    Reply(Returned),
    /// The owner of the flow of a reply that came out of the tunnel from a machine at that address.
    OfMachine(Ipv4Addr),
    /// Returned by an instance of a chain of services: to be steered to the next one.
    Passed(Passed),
}

/// A packet that an instance of a chain of services has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The instance that it came from.
    pub slot: Slot,
    /// Of which service that is.
    pub service: ServiceId,
    /// The uplink of the port by which it came.
    pub uplink: UplinkId,
}

/// A packet that an instance has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The instance that it came from.
    pub slot: Slot,
    /// Where it leaves.
    pub uplink: UplinkId,
    /// Of whose flow it is.
    pub flow: FlowOf,
}

/// Of whose flow a returned packet is. Where addresses are translated, an instance's packet may be one of a service's
/// flow, known by the service's address, or one of a flow that the instance has opened itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowOf {
    /// Not known yet.
    Unknown,
    /// The service has no such flow: the instance's.
    Instance {
        /// Where the instance has none either, it is an answer of the service, whose flow was forgotten.
        or_service: bool,
    },
    /// The service's.
    Service,
}
