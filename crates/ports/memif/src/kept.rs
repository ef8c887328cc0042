//! A link that outlives its program: what describes it, and how the next run goes on with it. The descriptors are
//! kept elsewhere meanwhile, so that the peer's socket stays open and its memory mapped.

// UNSAFETY: rings lie where the state says, after the checks beside each.
#![expect(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::interrupt::Interrupt;
use crate::link::{Control, Link};
use crate::queue::{Buffers, QueuePair, RxQueue, TxQueue};
use crate::region::{self, Memory};
use crate::ring::{self, Ring};
use crate::socket::Socket;
use crate::{Error, MAX_BUFFER_BYTES, MAX_LOG2_SLOTS, MAX_QUEUES};

/// The largest region that is mapped again: offsets in a ring have 32 bits.
const MAX_REGION_BYTES: u64 = 1 << 32;
/// As many as a server accepts.
const MAX_REGIONS: usize = 16;

/// A link in words: with its descriptors ([`Link::files`]) it is enough to go on ([`Link::resume`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    pub(crate) interface_id: u32,
    pub(crate) peer_name: String,
    pub(crate) peer_interface: String,
    /// Bytes of each region.
    pub(crate) regions: Vec<u64>,
    pub(crate) to_server: Vec<RingState>,
    pub(crate) to_client: Vec<RingState>,
    /// Where this side is the client: its buffers.
    pub(crate) buffers: Option<BuffersState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingState {
    pub(crate) region: u16,
    pub(crate) offset: u32,
    pub(crate) log2_slots: u8,
    /// Where this side is the client: the ring's first buffer.
    #[serde(default)]
    pub(crate) first_buffer: u64,
    /// Where this side is the server, of a ring to the client: the length of the client's buffers when it connected.
    /// 0: they differed, or the note is of a release that did not keep it.
    #[serde(default)]
    pub(crate) peer_buffer: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BuffersState {
    pub(crate) stride: u64,
    pub(crate) capacity: u32,
}

/// A turn of a program that its last run did not finish: it had noted what it was about to publish, and died while it
/// did. Publishing it again changes nothing where it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The turn. A client's rings have what was noted in it themselves.
    pub turn: u64,
    /// Of a server's ring towards the client: the noted [`TxQueue::position`].
    pub tx: Option<u16>,
    /// Of a server's ring from the client: the noted [`RxQueue::position`].
    pub rx: Option<u16>,
}

impl LinkState {
    /// Pairs of rings.
    pub fn queues(&self) -> usize {
        self.to_server.len()
    }

    /// Descriptors that a link of this state has.
    pub fn files(&self) -> usize {
        1 + self.regions.len() + 2 * self.queues()
    }

    fn is_possible(&self) -> bool {
        let queues = self.to_server.len();
        let slots = |ring: &RingState| (1..=MAX_LOG2_SLOTS).contains(&ring.log2_slots);
        (1..=usize::from(MAX_QUEUES)).contains(&queues)
            && queues == self.to_client.len()
            && (1..=MAX_REGIONS).contains(&self.regions.len())
            && self.to_server.iter().chain(&self.to_client).all(slots)
    }
}

fn wrong(what: &'static str) -> Error {
    Error::Kept { what }
}

impl Link {
    /// What describes it.
    pub fn state(&self) -> &LinkState {
        &self.state
    }

    /// Its descriptors, in the order in which [`Link::resume`] wants them: control socket, regions, interrupts of the
    /// rings to the server and of those to the client.
    pub fn files(&self) -> Vec<BorrowedFd<'_>> {
        let is_client = self.state.buffers.is_some();
        let tx = self.queues.iter().map(|pair| pair.tx.interrupt_file());
        let rx = self.queues.iter().map(|pair| pair.rx.interrupt_fd());
        let regions = self.regions.iter().map(AsFd::as_fd);
        let first = [self.control.as_fd()].into_iter().chain(regions);
        if is_client {
            first.chain(tx).chain(rx).collect()
        } else {
            first.chain(rx).chain(tx).collect()
        }
    }

    /// Goes on with a link of an earlier run: no packet in its rings is lost, and the peer notices nothing. What that
    /// run took and did not release comes again, and what it filled in and did not publish is forgotten, except for
    /// what `unfinished` says of a queue pair.
    ///
    /// # Errors
    /// [`Error::Kept`] where state and descriptors do not fit each other, [`Error::Closed`] where the peer has gone
    /// meanwhile. No ring is changed then.
    pub fn resume(
        state: &LinkState,
        files: Vec<OwnedFd>,
        unfinished: impl Fn(usize) -> Option<Unfinished>,
    ) -> Result<Link, Error> {
        if !state.is_possible() {
            return Err(wrong("its numbers of rings, regions or slots are impossible"));
        }
        let queues = state.queues();
        if files.len() != state.files() {
            return Err(wrong("descriptors are missing"));
        }
        let mut files = files.into_iter();
        let control = files
            .next()
            .ok_or_else(|| wrong("the control socket is missing"))?;
        let socket = Socket::new(control);
        if socket.is_hung_up() {
            return Err(Error::Closed { during: "" });
        }
        let regions: Vec<OwnedFd> = files.by_ref().take(state.regions.len()).collect();
        let mapped = (0..).zip(regions.iter().zip(&state.regions));
        let mapped = mapped
            .map(|(index, (file, bytes))| region::accept(file, index, *bytes, MAX_REGION_BYTES))
            .collect::<Result<Vec<_>, Error>>()?;
        let memory = Arc::new(Memory { regions: mapped });
        let interrupts = (0..)
            .zip(files)
            .map(|(index, file)| Interrupt::accept(file, index));
        let interrupts = interrupts.collect::<Result<Vec<_>, Error>>()?;
        let rings = state.to_server.iter().chain(&state.to_client);
        let parts = rings
            .map(|ring| part(ring, state.buffers.as_ref(), &memory))
            .collect::<Result<Vec<_>, Error>>()?;
        let mut to_server: Vec<_> = parts.into_iter().zip(interrupts).collect();
        let to_client = to_server.split_off(queues);
        let is_client = state.buffers.is_some();
        let (tx, rx) = if is_client {
            (to_server, to_client)
        } else {
            (to_client, to_server)
        };
        let pair = |(queue, (tx, rx)): (usize, (RingEnd, RingEnd))| {
            let of = unfinished(queue);
            let redo = |noted: Option<u16>, ring: &Ring| match of {
                Some(of) if is_client => ring.intent(of.turn),
                _ => noted,
            };
            let (tx_redo, rx_redo) = (of.and_then(|of| of.tx), of.and_then(|of| of.rx));
            let ((tx, tx_interrupt), (rx, rx_interrupt)) = (tx, rx);
            let (tx_redo, rx_redo) = (redo(tx_redo, &tx.ring), redo(rx_redo, &rx.ring));
            let memory = || Arc::clone(&memory);
            QueuePair {
                tx: TxQueue::new(tx.ring, tx.slots, tx.buffers, tx_interrupt, memory())
                    .resume(tx_redo, tx.peer_buffer),
                rx: RxQueue::new(rx.ring, rx.slots, rx.buffers, rx_interrupt, memory()).resume(rx_redo),
            }
        };
        let queues = tx.into_iter().zip(rx).enumerate().map(pair).collect();
        Ok(Link {
            interface_id: state.interface_id,
            peer_name: state.peer_name.clone(),
            peer_interface: state.peer_interface.clone(),
            queues,
            control: Control {
                socket: Arc::new(socket),
            },
            state: state.clone(),
            regions,
        })
    }
}

struct Part {
    ring: Ring,
    slots: u16,
    buffers: Buffers,
    peer_buffer: u32,
}

type RingEnd = (Part, Interrupt);

/// A ring that lies where the state says, if it does.
fn part(of: &RingState, buffers: Option<&BuffersState>, memory: &Memory) -> Result<Part, Error> {
    let outside = || wrong("a ring or a buffer lies outside its region");
    let mapping = memory.regions.get(usize::from(of.region)).ok_or_else(outside)?;
    let slots = 1_usize << of.log2_slots;
    let end = u64::from(of.offset) + ring::ring_bytes(slots) as u64;
    if !(of.offset as usize).is_multiple_of(ring::ALIGNMENT) || end > mapping.bytes() as u64 {
        return Err(outside());
    }
    // SAFETY: aligned and within the mapping, as just checked; slots ≤ 2^14. The queues that get the ring hold the
    // memory.
    let ring = unsafe { Ring::new(mapping.address().add(of.offset as usize), slots as u16) };
    if !ring.has_cookie() {
        return Err(wrong("a ring has no memif cookie"));
    }
    let Some(&BuffersState { stride, capacity }) = buffers else {
        let buffers = Buffers::Peer;
        return Ok(Part {
            ring,
            slots: slots as u16,
            buffers,
            peer_buffer: of.peer_buffer,
        });
    };
    // A region of a client has all its buffers in one: no product of these overflows.
    let limit = mapping.bytes() as u64;
    let is_buffer =
        (1..=MAX_BUFFER_BYTES).contains(&capacity) && u64::from(capacity) <= stride && stride <= limit;
    if !is_buffer || of.first_buffer > limit || of.first_buffer + stride * slots as u64 > limit {
        return Err(outside());
    }
    let first = mapping.address().as_ptr().wrapping_add(of.first_buffer as usize);
    Ok(Part {
        ring,
        slots: slots as u16,
        buffers: Buffers::Own {
            first,
            stride: stride as usize,
            capacity,
        },
        peer_buffer: 0,
    })
}
