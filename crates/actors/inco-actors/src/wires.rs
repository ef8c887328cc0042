//! How frames come and leave: memif links to inco's switch, or interfaces of the kernel in the container.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use memif::{ControlEvent, Link, Listener, ServerConfig};
use packet_socket::Interface;

/// Frames that are taken from a queue before something else is done.
const TAKEN: usize = 32;
/// Queue pairs of a memif port.
const QUEUES_LIMIT: u16 = 4;
/// Free slots that each way out needs before frames are taken, so that their answers have room: those of all queues.
const SLOTS_FREE_MIN: u32 = 256;
/// Data ports, at most.
const PORTS: usize = 2;

/// The data ports of a side.
pub(crate) enum Wires {
    /// The switch connects. By data port.
    Memif {
        /// Where it does.
        listener: Box<Listener>,
        /// Its links.
        links: Vec<Option<Link>>,
    },
    /// By data port.
    Interfaces(Vec<Interface>),
}

impl Wires {
    /// Listens on a memif socket.
    pub(crate) fn memif(path: &Path) -> Result<Wires> {
        let mut config = ServerConfig::new("inco-actors");
        config.interface_ids = Some((0..PORTS as u32).collect());
        config.max_queues = QUEUES_LIMIT;
        let listener =
            Listener::bind(path, config).with_context(|| format!("cannot listen on {}", path.display()))?;
        let links = (0..PORTS).map(|_| None).collect();
        Ok(Wires::Memif {
            listener: Box::new(listener),
            links,
        })
    }

    /// Opens interfaces by name, with so many slots in each ring.
    pub(crate) fn interfaces(names: &[String], slots: u32) -> Result<Wires> {
        let names = names.iter().take(PORTS);
        let opened = names.map(|name| Interface::open(name, slots));
        Ok(Wires::Interfaces(opened.collect::<Result<_, _>>()?))
    }

    /// Ends links whose peer has left or has violated the protocol, and takes new ones.
    pub(crate) fn link(&mut self) -> Result<()> {
        let Wires::Memif { listener, links } = self else {
            return Ok(());
        };
        for link in links.iter_mut() {
            let Some(of) = link else { continue };
            let is_violated = of
                .queues
                .iter()
                .any(|pair| pair.tx.is_violated() || pair.rx.is_violated());
            if is_violated || !matches!(of.control.poll(), Ok(ControlEvent::None)) {
                *link = None;
            }
        }
        while let Some(new) = listener.accept(Duration::ZERO)? {
            if let Some(link) = links.get_mut(new.interface_id as usize) {
                *link = Some(new);
            }
        }
        Ok(())
    }

    /// Whether each way out has room for the answers of a few frames.
    fn has_room(&mut self) -> bool {
        match self {
            Wires::Memif { links, .. } => {
                let mut pairs = links.iter_mut().flatten().flat_map(|link| &mut link.queues);
                pairs.all(|pair| pair.tx.free() >= SLOTS_FREE_MIN.min(pair.tx.slots() / 2))
            }
            Wires::Interfaces(all) => all.iter_mut().all(|of| of.has_room(SLOTS_FREE_MIN)),
        }
    }

    /// Gives frames with their data ports; how many could not be taken. `room` has each for as long as it is given.
    pub(crate) fn receive(&mut self, room: &mut [u8], mut each: impl FnMut(u8, &[u8])) -> u64 {
        let mut malformed = 0;
        // What has no room for its answer stays in the ring.
        if !self.has_room() {
            return 0;
        }
        match self {
            Wires::Memif { links, .. } => {
                for (port, link) in (0..).zip(links) {
                    for pair in link.iter_mut().flat_map(|link| &mut link.queues) {
                        for _ in 0..TAKEN {
                            match pair.rx.pop(room) {
                                Some(Ok(length)) => each(port, &room[..length]),
                                Some(Err(_)) => malformed += 1,
                                None => break,
                            }
                        }
                        pair.rx.release();
                    }
                }
            }
            Wires::Interfaces(all) => {
                for (port, of) in (0..).zip(all) {
                    for _ in 0..TAKEN {
                        let Some(length) = of.receive(room, &mut malformed) else {
                            break;
                        };
                        each(port, &room[..length]);
                    }
                }
            }
        }
        malformed
    }

    /// Sends a frame by a data port, with the next [`flush`](Wires::flush). Whether there was room.
    pub(crate) fn push(&mut self, port: usize, frame: &[u8]) -> bool {
        match self {
            Wires::Memif { links, .. } => {
                let link = links.get_mut(port).and_then(Option::as_mut);
                let queue = link.and_then(|link| link.queues.first_mut());
                queue.is_some_and(|queue| queue.tx.push(frame).is_ok())
            }
            Wires::Interfaces(all) => all.get_mut(port).is_some_and(|of| of.send(frame)),
        }
    }

    /// Has what was sent leave.
    pub(crate) fn flush(&mut self) {
        match self {
            Wires::Memif { links, .. } => {
                for pair in links.iter_mut().flatten().flat_map(|link| &mut link.queues) {
                    pair.tx.flush();
                }
            }
            Wires::Interfaces(all) => {
                for of in all {
                    // What the kernel does not take now goes with the next one.
                    let _all = of.flush();
                }
            }
        }
    }
}
