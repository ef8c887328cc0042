//! What crosses between the control plane and a worker, and between two workers, in bounded single-producer
//! single-consumer rings.

use model::{InstanceId, ServiceId, Slot, UplinkId};
use switch::{Change, PickRecord};

use crate::dump::{FlowDump, HeavyDump};
use crate::frame::FrameMemory;
use crate::instance::InstancePorts;
use crate::port::Port;

/// What the control plane asks of a worker. Everything that has to be allocated comes with the command.
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
        /// Whether the instance failed: what it held then counts as lost, else as kept by it.
        failed: bool,
    },
    /// The instance failed: what it gave back so far goes out, and nothing that it gives from now on.
    FailInstance {
        /// The instance's place.
        slot: Slot,
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

/// What a worker tells the control plane.
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
        /// Packets that the instance held: lost with it, or kept by it.
        outstanding: u64,
    },
    /// The ports of a removed instance, to be freed: from its home worker.
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
    /// A scheduling decision. Without a flow where there is no such service, or another record was asked for since.
    Recorded(Box<PickRecord>),
}

/// A frame on its way to another worker.
pub struct HandOff<F> {
    /// The frame.
    pub frame: F,
    /// Where it is going.
    pub to: Destination,
}

/// Where a frame handed to another worker is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Received on that uplink: the worker owns its flow.
    Steering(UplinkId),
    /// To an instance whose home worker it is.
    Instance {
        /// The instance's place.
        slot: Slot,
        /// Which instance had it then: the slot may have another one when the frame arrives.
        instance: InstanceId,
        /// Of which service.
        service: ServiceId,
        /// Which of its data ports.
        port: u8,
    },
    /// Out of an uplink whose queue the worker has.
    Uplink(UplinkId),
    /// Back from an instance, to be counted with its flow and then sent out of the uplink.
    Return {
        /// The instance that it came from.
        slot: Slot,
        /// Where it leaves.
        uplink: UplinkId,
    },
}
