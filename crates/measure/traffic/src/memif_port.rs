//! A port over memif. The generator is the client towards a switch's uplink or an instance; as server it
//! waits for a client.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use memif::{Client, ClientConfig, ControlEvent, Link, Listener, RingConfig, ServerConfig};

use crate::Error;
use crate::port::Port;

/// Handshake timeout of a listening server. Generous, because DPDK 22.11 crashes if its peer leaves before
/// HELLO.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Timeout of one attempt to accept a client. Attempts continue as long as the port lives.
const LISTEN_ATTEMPT: Duration = Duration::from_millis(500);
/// Pause between two connection attempts.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);
/// Ring size as a power of two: 4 ms at 1 Mpps.
const LOG2_SLOTS: u8 = 12;

/// Requested queue pairs; a server may grant fewer. Open vSwitch transmits on one per thread, so on the
/// second with one polling thread.
const QUEUE_PAIRS: u16 = 2;

/// How a port obtains its link.
#[derive(Clone, Debug)]
enum Origin {
    Connect(ClientConfig),
    Listen(PathBuf),
}

/// A memif link as a port. Sends on its first queue pair and receives on all. When its peer leaves, the port
/// is down (nothing fits, nothing arrives) until a background thread has reconnected.
#[derive(Debug)]
pub struct MemifPort {
    link: Option<Link>,
    origin: Origin,
    /// The source of the next link while there is none.
    coming: Option<Receiver<Link>>,
    frame_bytes_limit: usize,
    /// Bytes of a slot; for a client the usual value.
    buffer_bytes: usize,
    /// The queue pair of the last received frame, which is the one to wait for.
    receives_by: usize,
    reconnects: u64,
}

impl MemifPort {
    /// Connects to the server on `socket`, a switch's `memif:` uplink or an instance, waiting up to
    /// `deadline` for it to listen.
    ///
    /// # Errors
    /// Returns [`Error::Memif`] if there is no connection before `deadline`.
    pub fn connect(socket: &Path, interface_id: u32, deadline: Duration) -> Result<MemifPort, Error> {
        let mut config = ClientConfig::new(socket, interface_id);
        config.ring.log2_slots = LOG2_SLOTS;
        config.ring.queues = QUEUE_PAIRS;
        config.name = "inco traffic".into();
        MemifPort::connect_with(config, deadline)
    }

    /// Like [`MemifPort::connect`], with the rings of `config`.
    ///
    /// # Errors
    /// Returns [`Error::Memif`] if there is no connection before `deadline`.
    pub fn connect_with(config: ClientConfig, deadline: Duration) -> Result<MemifPort, Error> {
        let link = Client::connect_when_ready(&config, deadline)?;
        let RingConfig {
            log2_slots,
            buffer_bytes,
            ..
        } = config.ring;
        Ok(MemifPort {
            link: Some(link),
            frame_bytes_limit: (usize::from(1u16 << log2_slots) * buffer_bytes as usize)
                .min(memif::MAX_PACKET_BYTES),
            buffer_bytes: buffer_bytes as usize,
            origin: Origin::Connect(config),
            coming: None,
            receives_by: 0,
            reconnects: 0,
        })
    }

    /// Listens on `socket` and waits up to `deadline` for a client, with any interface id.
    ///
    /// # Errors
    /// Returns [`Error::Memif`] if it cannot listen, and [`Error::NoClient`] if no client connects before `deadline`.
    pub fn listen(socket: &Path, deadline: Duration) -> Result<MemifPort, Error> {
        let mut listener = Listener::bind(socket, ServerConfig::new("inco traffic"))?;
        let link = listener
            .accept(deadline)?
            .ok_or_else(|| Error::NoClient { path: socket.into() })?;
        Ok(MemifPort {
            link: Some(link),
            origin: Origin::Listen(socket.into()),
            coming: None,
            frame_bytes_limit: memif::MAX_PACKET_BYTES,
            buffer_bytes: 2048,
            receives_by: 0,
            reconnects: 0,
        })
    }

    /// How often the link was lost and re-established.
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// Leaves the peer, as a network whose cable is pulled. [`Port::maintain`] connects again.
    pub fn disconnect(&mut self) {
        self.link = None;
    }

    /// Slots with frames that the peer has not taken.
    pub fn untaken(&mut self) -> u32 {
        self.link.as_mut().map_or(0, |link| link.queues[0].tx.occupancy())
    }

    /// Whether the link is up.
    pub fn is_up(&self) -> bool {
        self.link.is_some()
    }

    /// Starts a thread that obtains the next link. It ends when it has one, or when the port is dropped.
    fn reconnect(origin: Origin) -> Receiver<Link> {
        let (sender, receiver) = sync_channel(1);
        // If no thread can be started the sender is dropped, and the next check starts another attempt.
        let _ = std::thread::Builder::new()
            .name("traffic-connect".into())
            .spawn(move || {
                let attempt = || match &origin {
                    Origin::Connect(config) => Client::connect(config, HANDSHAKE).ok(),
                    Origin::Listen(path) => {
                        let mut listener = Listener::bind(path, ServerConfig::new("inco traffic")).ok()?;
                        listener.accept(LISTEN_ATTEMPT).ok()?
                    }
                };
                // Sending fails if the port was dropped meanwhile; until then at most one attempt is pending.
                if let Some(link) = attempt() {
                    let _ = sender.send(link);
                } else {
                    std::thread::sleep(CONNECT_PAUSE);
                }
            });
        receiver
    }
}

impl Port for MemifPort {
    fn frame_bytes_limit(&self) -> usize {
        self.frame_bytes_limit
    }

    fn free(&mut self) -> usize {
        self.link
            .as_mut()
            .map_or(0, |link| link.queues[0].tx.free() as usize)
    }

    fn slots(&self, frame_bytes: usize) -> usize {
        frame_bytes.div_ceil(self.buffer_bytes).max(1)
    }

    fn push(&mut self, frame: &[u8]) -> bool {
        self.link
            .as_mut()
            .is_some_and(|link| link.queues[0].tx.push(frame).is_ok())
    }

    fn flush(&mut self) {
        if let Some(link) = &mut self.link {
            link.queues[0].tx.flush();
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let queues = &mut self.link.as_mut()?.queues;
        let count = queues.len();
        for step in 0..count {
            let place = (self.receives_by + step) % count;
            while let Some(popped) = queues[place].rx.pop(buffer) {
                if let Ok(len) = popped {
                    self.receives_by = place;
                    return Some(len);
                }
            }
        }
        None
    }

    fn release(&mut self) {
        if let Some(link) = &mut self.link {
            link.queues.iter_mut().for_each(|pair| pair.rx.release());
        }
    }

    fn arm(&mut self) -> bool {
        self.link.as_mut().is_none_or(|link| {
            let mut queues = link.queues.iter_mut();
            queues.all(|pair| {
                pair.rx.set_interrupts(true);
                pair.rx.available() == 0
            })
        })
    }

    fn disarm(&mut self) {
        if let Some(link) = &mut self.link {
            for pair in &mut link.queues {
                pair.rx.set_interrupts(false);
                pair.rx.clear_interrupt();
            }
        }
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        let queues = &self.link.as_ref()?.queues;
        let pair = queues.get(self.receives_by).or(queues.first())?;
        Some(pair.rx.interrupt_fd())
    }

    fn is_away(&self) -> bool {
        self.link.is_none()
    }

    fn maintain(&mut self) {
        if let Some(link) = &mut self.link {
            let is_open = matches!(link.control.poll(), Ok(ControlEvent::None));
            let mut queues = link.queues.iter();
            let is_violated = queues.any(|pair| pair.tx.is_violated() || pair.rx.is_violated());
            // Frames returned before the end are still received.
            let has_more = link.queues.iter_mut().any(|pair| pair.rx.available() > 0);
            if !is_violated && (is_open || has_more) {
                return;
            }
            self.link = None;
        }
        match self.coming.as_ref().map(Receiver::try_recv) {
            Some(Ok(link)) => {
                self.link = Some(link);
                self.coming = None;
                self.reconnects += 1;
            }
            Some(Err(TryRecvError::Empty)) => {}
            Some(Err(TryRecvError::Disconnected)) | None => {
                self.coming = Some(MemifPort::reconnect(self.origin.clone()));
            }
        }
    }
}
