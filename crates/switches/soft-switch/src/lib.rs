//! The soft switch: takes packets from uplinks, gives each new flow to an instance, keeps it there, counts everything
//! and sends what comes back out again. It decides nothing about how many instances there are and starts none; it
//! must never put a packet of a pinned flow on another instance.
//!
//! Key types: [`SoftSwitch`] (a [`Switch`](switch::Switch)), [`WorkerPlan`] (the snapshot that workers steer by),
//! [`Worker`] (one thread of the data plane), [`Port`] (one queue of an uplink or an instance).
//!
//! The way of a packet:
//! 1. The worker that polls an uplink copies or takes a burst of frames from it.
//! 2. Each is parsed. Its owner is a keyed hash of its two addresses and its VLAN: where that is another worker, the
//!    frame crosses to it in a ring. All of a flow, its fragments and the ICMP errors that quote it have one owner,
//!    and cross in order.
//! 3. The owner looks the flow up. A hit is counted and sent to the instance that it is pinned to. A miss is
//!    classified, given to an instance by the scheduler, pinned and sent, before the next packet is looked at.
//! 4. The instance's home worker puts the frame into its ring; at the end of the turn the ring's new
//!    head is published once.
//! 5. What an instance gives back on data port k leaves by uplink k of its service, whatever it is; replies can go by a
//!    tunnel to the edge that their flow came by.
#![forbid(unsafe_code)]

mod counters;
mod dump;
mod edit;
mod ends;
mod frame;
mod id_map;
mod idle;
mod instance;
mod keep;
#[cfg(feature = "dpdk")]
mod mbufs;
mod message;
mod neighbours;
mod numbering;
mod plan;
mod port;
mod shares;
mod soft;
mod table_memory;
mod tunnels;
mod ways_back;
mod worker;

pub use counters::{Counter, ServiceCounters, SlotCounters, UplinkCounters, WorkerCounters, WorkerFigures};
pub use dump::{FlowDump, HeavyDump};
pub use ends::{Ends, KernelPlace};
pub use frame::{
    Device, DeviceState, DeviceWatch, Frame, FrameMemory, HEADROOM, HeapFrame, HeapMemory, NoDevice, Sizes,
    Unsendable,
};
pub use id_map::{Id, IdMap, ServiceMap, SlotMap, UplinkMap};
pub use idle::{Alarm, Idle, Rest, WakeSet, Waker};
pub use instance::InstancePorts;
pub use keep::{Keep, NOT_OF_A_SWITCH};
#[cfg(feature = "dpdk")]
pub use mbufs::{DpdkQueue, MbufMemory};
pub use message::{Command, Destination, Ending, HandOff, WorkerEvent};
pub use numbering::Numbering;
pub use plan::{LoadBoard, WorkerPlan};
pub use port::{
    Capabilities, DevicePort, KernelPort, MemifPort, NullPort, Occupancy, Pending, Port, Queue, Received,
    TunnelPort,
};
pub use shares::SharedPins;
pub use soft::{
    CAPABILITIES, FAST_CAPABILITIES, FastConfig, KernelPorts, OpenDevice, SoftSwitch, SoftSwitchConfig,
    UplinkConfig, UplinkDevice, pairs_in_use, remove_pairs,
};
pub use table_memory::TableMemory;
pub use tunnels::TunnelEnd;
pub use worker::{BURST_FRAMES, CommitPage, HalfOpen, Peers, Sleep, Worker, WorkerParts};
