//! What comes from the switch and goes to it: messages by the connection, frames by the monitor port.

use std::path::{Path, PathBuf};
use std::time::Duration;

use memif::{ControlEvent, Link, Listener};
use model::{FlowSetup, Nanos};
use openflow::{Event, Message, MultipartReply};
use openvswitch::{Reconnecting, Turned};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::Worker;
use crate::driver::troubles::{Counts, Kind, Troubles};

/// Frames taken from the monitor port in one turn.
pub(super) const BURST: usize = 256;

/// Whether a memif socket exists without a listener. It is tested with a socket of another kind, which is
/// refused either way: a connection that is closed again before it has said anything ends DPDK 22.11, which then
/// polls a socket that it has closed itself (`memif_listener_handler`; "PANIC in `eal_intr_thread_main()`: Error
/// adding fd").
pub(super) fn is_dead(socket: &Path) -> bool {
    let Ok(address) = SocketAddrUnix::new(socket) else {
        return false;
    };
    let try_it = || {
        let ours = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        connect(&ours, &address)
    };
    // With a listener it is EPROTOTYPE.
    try_it() == Err(Errno::CONNREFUSED)
}

/// The connection to the switch, and the sockets on which it listens.
pub(super) struct SwitchEnd {
    pub(super) connection: Reconnecting,
    pub(super) turned: Vec<Turned>,
    pub(super) sockets: Vec<PathBuf>,
}

/// The monitor port: a memif link whose other end is a port of the bridge.
pub(super) struct MonitorPort {
    pub(super) listener: Listener,
    pub(super) link: Option<Link>,
    /// Where a frame is copied to that is taken out.
    pub(super) frame: Box<[u8]>,
}

/// What is to be told of the switch beside its counters.
pub(super) struct Noticed {
    pub(super) troubles: Troubles,
    /// Messages that could not be read.
    pub(super) garbled: u64,
    /// Packets that came over the connection unasked.
    pub(super) unasked: u64,
}

impl Worker {
    pub(super) fn take_messages(&mut self, now: Nanos) {
        self.switch.connection.turn(now.0, &mut self.switch.turned);
        let mut turned = std::mem::take(&mut self.switch.turned);
        for event in turned.drain(..) {
            match event {
                Turned::Up(features) => {
                    tracing::info!(
                        datapath = format!("{:016x}", features.datapath),
                        "the switch answers"
                    );
                    match &mut self.adoption {
                        Some(waiting) if self.wanted.plan.generation.0 == 0 => waiting.is_up = true,
                        _ => self.steering.connected(),
                    }
                    if let Some(event) = self.noticed.troubles.back(now) {
                        self.tell(event);
                    }
                }
                Turned::Said(Event::Message {
                    xid,
                    message:
                        Message::MultipartReply {
                            more,
                            reply: MultipartReply::Ports(ports),
                        },
                }) => self.ports_counted(xid, ports, more, now),
                Turned::Said(Event::Message { xid, message }) => {
                    match &message {
                        Message::Error(error) => tracing::debug!(?error, "the switch refuses"),
                        Message::PacketIn(_) if self.settings.setup == FlowSetup::Proactive => {
                            self.noticed.unasked += 1
                        }
                        _ => {}
                    }
                    self.steering.message(xid, &message, now);
                    self.note_taken_over(now);
                }
                Turned::Said(Event::Garbled { kind, error }) => {
                    tracing::debug!(kind, %error, "cannot decode a message of the switch");
                    self.noticed.garbled += 1;
                }
                Turned::Said(Event::Agreed(_)) => {}
                Turned::Down(error) => {
                    tracing::debug!(%error, "no connection to the switch");
                    if let Some(event) = self.noticed.troubles.away(&error.to_string(), now) {
                        self.tell(event);
                    }
                    self.ports.asked = None;
                    if let Some(waiting) = &mut self.adoption {
                        waiting.is_up = false;
                    }
                    self.steering.disconnected();
                    self.remove_dead_sockets();
                }
            }
        }
        self.switch.turned = turned;
    }

    pub(super) fn tell_troubles(&mut self, now: Nanos) {
        let figures = self.steering.figures();
        let counts: Counts = [
            (Kind::Refused, figures.refused),
            (Kind::Evicted, figures.evicted),
            (Kind::Errors, figures.errors),
            (Kind::Garbled, self.noticed.garbled),
            (Kind::Unasked, self.noticed.unasked),
        ];
        let tell = &self.above.tell;
        self.noticed.troubles.look(&counts, now, |event| {
            // The receiver is gone only when the control plane has ended.
            let _ended = tell.send(event);
        });
    }

    /// A switch that was killed has left its sockets, and could not listen there again.
    pub(super) fn remove_dead_sockets(&self) {
        for socket in &self.switch.sockets {
            if is_dead(socket) {
                let _none = std::fs::remove_file(socket);
            }
        }
    }

    pub(super) fn take_frames(&mut self, now: Nanos) {
        // It listens for as long as this runs; a client that is refused is the switch's to try again.
        if let Ok(Some(link)) = self.monitor.listener.accept(Duration::ZERO) {
            self.monitor.link = Some(link);
        }
        let Some(link) = &mut self.monitor.link else {
            return;
        };
        for pair in &mut link.queues {
            for _ in 0..BURST {
                match pair.rx.pop(&mut self.monitor.frame) {
                    Some(Ok(length)) => {
                        self.steering
                            .monitor(self.monitor.frame.get(..length).unwrap_or_default(), now);
                    }
                    Some(Err(_)) => {}
                    None => break,
                }
            }
            pair.rx.release();
        }
        let is_over = !matches!(link.control.poll(), Ok(ControlEvent::None))
            || (link.queues.iter()).any(|pair| pair.rx.is_violated() || pair.tx.is_violated());
        if is_over {
            tracing::warn!("the monitor port is down");
            self.monitor.link = None;
        }
    }

    pub(super) fn send(&mut self) {
        if let Some(link) = &mut self.monitor.link
            && let Some(pair) = link.queues.first_mut()
        {
            while pair.tx.free() > 0
                && let Some(frame) = self.steering.next_injection()
            {
                // There is room; a frame that is too long for all of the ring came out of one like it.
                let _pushed = pair.tx.push(&frame);
            }
            pair.tx.flush();
        }
        if let Some(connection) = self.switch.connection.connection() {
            self.steering.send(|message| connection.send(message).ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{accept, bind, listen};

    use super::*;

    #[test]
    fn whoever_listens_is_not_disturbed_by_the_question() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wan.sock");
        assert!(!is_dead(&path), "there is none");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        assert!(!is_dead(&path));
        assert_eq!(
            accept(&listener).unwrap_err(),
            Errno::AGAIN,
            "nobody has connected"
        );
        drop(listener);
        assert!(is_dead(&path));
    }
}
