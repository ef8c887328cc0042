//! The end of a tunnel on another machine: frames get outer headers here, and leave by the uplink of the tunnel, where
//! their worker puts them. What the machine answers does not come back by the port.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use model::{Slot, UplinkId};
use packet::ICMP_ERROR_LIMIT;
use packet::vxlan::{Mark, Tunnel};
use switch::{PortSpec, SwitchError};

use crate::ends::Ends;
use crate::frame::{Frame as _, FrameMemory, Sizes};
use crate::port::{Capabilities, Connection, Pending, Port, Queue, Received};
use crate::tunnels::{ERRORS_LIMIT, Tunnels};
use crate::worker::OUTBOX_FRAMES;

/// How long to wait between two looks whether a machine has answered.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// The way to the machine of a slot.
pub struct TunnelPort<M: FrameMemory> {
    slot: Slot,
    uplink: UplinkId,
    ends: Arc<Ends>,
    /// The longest frame that it carries, in bytes without the outer headers.
    frame_limit: usize,
    /// Frames with outer headers, until the worker takes them.
    leaving: Vec<M::Frame>,
    /// What tells senders that their packets are too big, until the worker takes it.
    errors: Vec<M::Frame>,
    /// What is said of packets from now on.
    mark: Mark,
}

impl<M: FrameMemory> TunnelPort<M> {
    /// Frames that are to leave, with outer headers, and by which uplink. The list is to be left empty.
    pub(crate) fn leaving(&mut self) -> (UplinkId, &mut Vec<M::Frame>) {
        (self.uplink, &mut self.leaving)
    }

    /// What is said of packets from now on.
    pub(crate) fn set_mark(&mut self, mark: Mark) {
        self.mark = mark;
    }

    /// Errors for senders, which leave by the uplink that their packets came in by.
    pub(crate) fn errors(&mut self) -> &mut Vec<M::Frame> {
        &mut self.errors
    }

    /// Makes a frame that does not fit an error for its sender, or gives it back.
    #[cold]
    fn tell_sender(&mut self, tunnel: &Tunnel, mut frame: M::Frame, memory: &mut M) {
        if !self.ends.tunnels().may_tell_sender() {
            return memory.give(frame);
        }
        let [near, _] = tunnel.macs;
        let mut error = [0; ICMP_ERROR_LIMIT];
        let written = packet::too_big(frame.bytes(), self.frame_limit, near, &mut error);
        let place = written.and_then(|len| Some((error.get(..len)?, frame.room().get_mut(..len)?)));
        let Some((error, place)) = place else {
            return memory.give(frame);
        };
        place.copy_from_slice(error);
        frame.set_len(error.len());
        self.errors.push(frame);
    }

    fn tunnel(&self) -> Option<Tunnel> {
        let end = self.ends.tunnels().end(self.uplink)?;
        let (to, next) = self.ends.tunnels().find(self.slot)?;
        Some(Tunnel {
            macs: [self.ends.mac(self.uplink)?, next],
            ends: [end.address, to],
            network: end.network,
            mark: self.mark,
        })
    }
}

impl<M: FrameMemory> Queue<M> for TunnelPort<M> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            receives: false,
            checksum: false,
            segmentation: false,
            max_frame: self.frame_limit,
        }
    }

    fn limit_frames(&mut self, bytes: usize) {
        self.frame_limit = bytes;
    }

    fn receive(&mut self, _memory: &mut M, _into: &mut Vec<M::Frame>, _limit: usize) -> Received {
        Received::default()
    }

    fn send(&mut self, frame: M::Frame, memory: &mut M) {
        // A probe or a message: nobody at the other end would know it.
        memory.give(frame);
    }

    fn send_burst(&mut self, frames: &mut Vec<M::Frame>, _known: Option<(u64, Sizes)>, memory: &mut M) {
        let _sent = self.send_all(frames, 0, Sizes::NONE, memory);
    }

    #[inline(always)]
    fn flush(&mut self, _memory: &mut M) -> Pending {
        Pending::default()
    }

    fn send_all(
        &mut self,
        frames: &mut Vec<M::Frame>,
        _bytes: u64,
        _sizes: Sizes,
        memory: &mut M,
    ) -> Pending {
        let mut sent = Pending::default();
        let Some(tunnel) = self.tunnel() else {
            sent.full = frames.len() as u64;
            memory.give_all(frames);
            return sent;
        };
        for mut frame in frames.drain(..) {
            let bytes = frame.len();
            if bytes > self.frame_limit {
                sent.too_large += 1;
                self.tell_sender(&tunnel, frame, memory);
                continue;
            }
            if !Tunnels::wrap(&tunnel, &mut frame) {
                sent.too_large += 1;
                memory.give(frame);
                continue;
            }
            sent.packets += 1;
            sent.bytes += bytes as u64;
            self.leaving.push(frame);
        }
        sent
    }
}

/// Waits until the machine of a slot is known to the uplink's worker, which asks for it.
pub(crate) fn connect<M: FrameMemory>(
    (slot, port): (Slot, &PortSpec),
    ends: &Arc<Ends>,
    workers: usize,
    abandoned: &AtomicBool,
) -> Result<Vec<Connection<M>>, SwitchError> {
    let wrong = |reason: &str| SwitchError::Port {
        reason: reason.to_owned(),
    };
    let end = ends
        .tunnels()
        .only()
        .ok_or_else(|| wrong("no uplink has an end of tunnels"))?;
    while ends.tunnels().find(slot).is_none() || ends.mac(end.uplink).is_none() {
        if abandoned.load(Ordering::Relaxed) {
            return Err(wrong("nobody waits for it any more"));
        }
        std::thread::sleep(LOOK_PAUSE);
    }
    let queue = |_| {
        Port::Tunnel(TunnelPort {
            slot,
            uplink: end.uplink,
            ends: Arc::clone(ends),
            frame_limit: ends.tunnels().frame_limit(),
            leaving: Vec::with_capacity(OUTBOX_FRAMES),
            errors: Vec::with_capacity(ERRORS_LIMIT as usize),
            mark: Mark::NONE,
        })
    };
    let address = port.back_end.map(|at| at.to_string()).unwrap_or_default();
    Ok(vec![Connection {
        queues: (0..workers).map(queue).collect(),
        control: None,
        interface: None,
        peer: format!("tunnel to {address}"),
        mac: None,
    }])
}
