//! Ports: where a worker's frames come in and go out. One worker owns one queue of a port.
//!
//! Life of a port: made by the control plane, given to its worker in a command, polled with [`Port::receive`], filled
//! with [`Port::send`], made visible with [`Port::flush`] once per turn, given back in an event, dropped by the
//! control plane.
//!
//! **To add a kind of ports**: a file here with a type that implements [`Queue`] and with what the control plane does
//! to connect one ([`Connect`], [`Control`], [`Listener`]), and a line in the list of `port_kinds!` below. Uplinks
//! and instances use the same kinds. Calls are dispatched by an enum, once per burst.

mod device;
pub(crate) mod kernel;
pub(crate) mod memif;
mod null;
pub(crate) mod tunnel;

use std::ops::AddAssign;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use switch::{PortKind, PortSpec, SwitchError};

use crate::frame::{Frame, FrameMemory, Sizes};
use crate::keep::KeptAs;
use crate::worker::tap::PortTap;

pub use device::DevicePort;
pub use kernel::KernelPort;
pub(crate) use memif::MAX_RING_SLOTS;
pub use memif::MemifPort;
pub use null::NullPort;
pub use tunnel::TunnelPort;

/// The capabilities of a kind of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether packets can come out of it.
    pub receives: bool,
    /// Whether it offloads checksums.
    pub checksum: bool,
    /// Whether it offloads segmentation.
    pub segmentation: bool,
    /// The longest frame that it carries, in bytes.
    pub max_frame: usize,
}

/// One queue of a port, of one kind. Nothing here allocates, locks, or waits; a system call is made only by
/// [`Queue::set_wakeups`].
pub trait Queue<M: FrameMemory> {
    /// Its capabilities.
    fn capabilities(&self) -> Capabilities;

    /// Limits frames to `bytes` bytes, in both directions.
    fn limit_frames(&mut self, bytes: usize);

    /// Appends at most `limit` received frames. Stops early where the memory has no frame left: the packets then stay
    /// where they are. Whether the frames are [valid](Queue::are_valid) is still to be seen.
    fn receive(&mut self, memory: &mut M, into: &mut Vec<M::Frame>, limit: usize) -> Received;

    /// Whether frames that it gave, the longest of so many bytes and in so many segments, are all such as it carries,
    /// and of one segment.
    #[inline(always)]
    fn are_valid(&self, _longest: usize, _segments: u16) -> bool {
        true
    }

    /// Takes a frame; it is sent with the next flush at the latest.
    fn send(&mut self, frame: M::Frame, memory: &mut M);

    /// Takes a burst of frames, and leaves the list empty. Where it is `known` how many bytes they have in all and
    /// between which sizes each lies, they need not be looked at one by one, and may be sent at once; else they may
    /// wait for others until the flush.
    fn send_burst(&mut self, frames: &mut Vec<M::Frame>, known: Option<(u64, Sizes)>, memory: &mut M);

    /// Makes all sent frames visible to the peer, and returns the counts since the last flush.
    fn flush(&mut self, memory: &mut M) -> Pending;

    /// Sends a burst of frames, `bytes` in all and each of these sizes, after those sent before, and leaves the list
    /// empty. Makes everything visible to the peer, at once or with [`Queue::publish`]. Says what came of it since the
    /// last flush.
    #[inline(always)]
    fn send_all(&mut self, frames: &mut Vec<M::Frame>, bytes: u64, sizes: Sizes, memory: &mut M) -> Pending {
        self.send_burst(frames, Some((bytes, sizes)), memory);
        self.flush(memory)
    }

    /// Makes visible what [`Queue::send_all`] left to this.
    #[inline(always)]
    fn publish(&mut self) {}

    /// Gives the peer the places back of all that was received, where these are its own: until then the packets are
    /// still there for the next run of this program.
    #[inline(always)]
    fn release(&mut self) {}

    /// Notes in its rings, where they are this program's own, which turn moves them next. Else gives where they will
    /// be, towards the peer and from it, where they outlive this program.
    #[inline(always)]
    fn intend(&mut self, _turn: u64) -> Option<[u16; 2]> {
        None
    }

    /// Moves packets straight into another port, where both are rings, as far as that has room and carries them; they
    /// are sent with its next flush. What stays is to be received and sent as from any port.
    #[inline(always)]
    fn pass_on(&mut self, _to: &mut Port<M>, _limit: usize) -> Received {
        Received::default()
    }

    /// Descriptors in the ring towards the peer that it has not taken, and how many there are, where that can be
    /// seen.
    #[inline(always)]
    fn fill(&mut self) -> Option<(u32, u32)> {
        None
    }

    /// How full its rings are now, where that can be seen.
    fn occupancy(&mut self) -> Option<Occupancy> {
        None
    }

    /// The descriptor that becomes readable when packets come, where there is one. Without it, a port that
    /// [receives](Capabilities::receives) must be polled.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Has the peer signal that descriptor, or no more. Whether packets are there already.
    fn set_wakeups(&mut self, _on: bool) -> bool {
        false
    }

    /// Shows a capture the frames that find no room, from now on, or no more. A port that takes all has no use for it,
    /// nor one that does not see them.
    fn tap(&mut self, _tap: Option<PortTap>) {}

    /// Whether the peer broke the protocol of its rings: the port passes nothing any more.
    fn is_broken(&self) -> bool {
        false
    }
}

/// The control plane's handle of a connected port.
pub(crate) trait Control: Send {
    /// Becomes readable when the port has ended, at the latest.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Why the port has ended, if it has.
    fn end(&mut self) -> Option<String>;

    /// Packets that were lost on the way to this program or from it since the last call, where that is counted outside.
    fn take_losses(&mut self) -> Losses {
        Losses::default()
    }
}

/// Packets that were lost outside this program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Before a worker could take them: the ring was full.
    pub(crate) missed: u64,
    /// After a worker had sent them.
    pub(crate) failed: u64,
}

impl AddAssign for Losses {
    fn add_assign(&mut self, other: Losses) {
        self.missed += other.missed;
        self.failed += other.failed;
    }
}

/// A connected port.
pub(crate) struct Connection<M: FrameMemory> {
    /// Each goes to one worker.
    pub(crate) queues: Vec<Port<M>>,
    /// [`None`] where the port never ends.
    pub(crate) control: Option<Box<dyn Control>>,
    /// The peer's name.
    pub(crate) peer: String,
    /// Its interface of the kernel, where it is one.
    pub(crate) interface: Option<String>,
    /// The MAC address of services' addresses there, where the control plane knows one.
    pub(crate) mac: Option<[u8; 6]>,
}

/// Where the peers of an uplink connect.
pub(crate) trait Listener<M: FrameMemory>: Send {
    /// Waits for a peer, for at most `limit`.
    fn accept(&mut self, limit: Duration) -> Result<Option<Connection<M>>, SwitchError>;
}

/// Connects all data ports of an instance, each with at most a queue for each of so many workers, and has them kept for
/// the next run. It blocks until the [deadline](PortSpec::deadline), or until it is abandoned.
pub(crate) type Connect<M> =
    fn(&PortSpec, usize, &AtomicBool, &KeptAs) -> Result<Vec<Connection<M>>, SwitchError>;

/// Makes the enum of all kinds, the calls of a [`Queue`] for it, and what connects the ports of an instance.
macro_rules! port_kinds {
    ($($(#[$doc:meta])* $kind:ident($queue:ty) $(connected by $connect:path)?,)*) => {
        /// One queue of a port, of any kind. What its calls do says [`Queue`].
        pub enum Port<M: FrameMemory> {
            $($(#[$doc])* $kind($queue),)*
        }

        impl<M: FrameMemory> Queue<M> for Port<M> {
            fn capabilities(&self) -> Capabilities {
                match self { $(Port::$kind(queue) => Queue::<M>::capabilities(queue),)* }
            }

            fn limit_frames(&mut self, bytes: usize) {
                match self { $(Port::$kind(queue) => Queue::<M>::limit_frames(queue, bytes),)* }
            }

            fn receive(&mut self, memory: &mut M, into: &mut Vec<M::Frame>, limit: usize) -> Received {
                match self { $(Port::$kind(queue) => queue.receive(memory, into, limit),)* }
            }

            #[inline]
            fn are_valid(&self, longest: usize, segments: u16) -> bool {
                match self { $(Port::$kind(queue) => Queue::<M>::are_valid(queue, longest, segments),)* }
            }

            fn send(&mut self, frame: M::Frame, memory: &mut M) {
                match self { $(Port::$kind(queue) => queue.send(frame, memory),)* }
            }

            #[inline(always)]
            fn send_burst(
                &mut self,
                frames: &mut Vec<M::Frame>,
                known: Option<(u64, Sizes)>,
                memory: &mut M,
            ) {
                match self { $(Port::$kind(queue) => queue.send_burst(frames, known, memory),)* }
            }

            #[inline(always)]
            fn send_all(
                &mut self,
                frames: &mut Vec<M::Frame>,
                bytes: u64,
                sizes: Sizes,
                memory: &mut M,
            ) -> Pending {
                match self { $(Port::$kind(queue) => queue.send_all(frames, bytes, sizes, memory),)* }
            }

            #[inline(always)]
            fn flush(&mut self, memory: &mut M) -> Pending {
                match self { $(Port::$kind(queue) => queue.flush(memory),)* }
            }

            #[inline(always)]
            fn publish(&mut self) {
                match self { $(Port::$kind(queue) => Queue::<M>::publish(queue),)* }
            }

            #[inline(always)]
            fn release(&mut self) {
                match self { $(Port::$kind(queue) => Queue::<M>::release(queue),)* }
            }

            #[inline(always)]
            fn intend(&mut self, turn: u64) -> Option<[u16; 2]> {
                match self { $(Port::$kind(queue) => Queue::<M>::intend(queue, turn),)* }
            }

            fn pass_on(&mut self, to: &mut Port<M>, limit: usize) -> Received {
                match self { $(Port::$kind(queue) => queue.pass_on(to, limit),)* }
            }

            #[inline(always)]
            fn fill(&mut self) -> Option<(u32, u32)> {
                match self { $(Port::$kind(queue) => Queue::<M>::fill(queue),)* }
            }

            fn occupancy(&mut self) -> Option<Occupancy> {
                match self { $(Port::$kind(queue) => Queue::<M>::occupancy(queue),)* }
            }

            fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
                match self { $(Port::$kind(queue) => Queue::<M>::wait_fd(queue),)* }
            }

            fn set_wakeups(&mut self, on: bool) -> bool {
                match self { $(Port::$kind(queue) => Queue::<M>::set_wakeups(queue, on),)* }
            }

            fn tap(&mut self, tap: Option<PortTap>) {
                match self { $(Port::$kind(queue) => Queue::<M>::tap(queue, tap),)* }
            }

            fn is_broken(&self) -> bool {
                match self { $(Port::$kind(queue) => Queue::<M>::is_broken(queue),)* }
            }
        }

        /// The function that connects the ports of an instance; [`None`] for a kind without one.
        pub(crate) fn connector<M: FrameMemory>(kind: PortKind) -> Option<Connect<M>> {
            match kind {
                $($(PortKind::$kind => Some($connect),)?)*
                // Its interfaces are those of the kernel: what an instance is for the worker is another matter.
                PortKind::Frames => Some(kernel::connect),
                _ => None,
            }
        }
    };
}

port_kinds! {
    /// A pair of rings shared with another process.
    Memif(MemifPort) connected by memif::connect,
    /// A sink: takes everything, gives nothing. For measuring the switch alone.
    Null(NullPort) connected by null::connect,
    /// A network interface of the kernel.
    Kernel(KernelPort) connected by kernel::connect,
    /// A device whose frames are already in the worker's memory: its opener hands it over.
    Device(DevicePort<M>),
    /// The end of a tunnel on another machine: connected by [`tunnel::connect`].
    Tunnel(TunnelPort<M>),
}

impl<M: FrameMemory> Port<M> {
    /// A sink.
    pub fn null() -> Port<M> {
        Port::Null(NullPort::default())
    }

    /// A port on one queue of a device. Nothing is received from it before `is_open` says so.
    pub fn device(device: M::Device, is_open: Arc<AtomicBool>) -> Port<M> {
        Port::Device(DevicePort::new(device, is_open))
    }

    /// The same port for frames of at most `bytes` bytes, in both directions.
    #[must_use]
    pub fn for_frames(mut self, bytes: usize) -> Port<M> {
        self.limit_frames(bytes);
        self
    }

    /// Makes frames that it gave one segment each, and drops those that cannot be, or are longer than it carries;
    /// gives how many.
    #[cold]
    pub fn linearize_or_drop(&self, frames: &mut Vec<M::Frame>, memory: &mut M) -> u64 {
        let mut too_large = 0;
        let is_invalid = |frame: &mut M::Frame| {
            frame.linearize();
            !self.are_valid(frame.len(), frame.segments())
        };
        for frame in frames.extract_if(.., is_invalid) {
            too_large += 1;
            memory.give(frame);
        }
        too_large
    }

    /// Whether the worker must poll it, because no descriptor signals new packets.
    pub fn must_be_polled(&self) -> bool {
        self.capabilities().receives && self.wait_fd().is_none()
    }
}

/// Counts of frames put into a port since its last flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Packets that the port took.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that found it full.
    pub full: u64,
    /// Packets of a length that it does not carry.
    pub too_large: u64,
}

impl AddAssign for Pending {
    #[inline(always)]
    fn add_assign(&mut self, other: Pending) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.full += other.full;
        self.too_large += other.too_large;
    }
}

/// Counts of frames taken out of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets received.
    pub packets: usize,
    /// Their bytes, if they went from ring to ring.
    pub bytes: u64,
    /// Packets with an invalid descriptor of the peer.
    pub bad: u64,
    /// Packets larger than a frame, or than the port carries.
    pub too_large: u64,
}

impl AddAssign for Received {
    fn add_assign(&mut self, other: Received) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.bad += other.bad;
        self.too_large += other.too_large;
    }
}

/// Occupancy of a port's rings, if known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Descriptors in the ring towards the peer that it has not taken.
    pub used: u32,
    /// Descriptors of this ring.
    pub slots: u32,
    /// Packets in the ring back that we have not taken.
    pub back: u32,
    /// Descriptors that the peer has taken since the port was attached.
    pub consumed: u64,
}
