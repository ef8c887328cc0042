//! Fragments that wait for the one with the ports, with their bytes.

use model::Nanos;
use packet::{Fragment, FragmentTracker, Offer, PacketInfo, WAITING_LIMIT};

/// Bytes of a fragment that can wait, at most. A longer one is refused: where frames are longer, a fragment that is
/// overtaken is lost.
const FRAGMENT_BYTES: usize = 2048;

/// What becomes of a fragment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// It is of this flow.
    Known(PacketInfo),
    /// Its bytes are kept.
    Waits,
    /// It contradicts others, or there is no room for it.
    Refused,
}

/// At most [`WAITING_LIMIT`] fragments wait, 2 MiB.
#[derive(Debug)]
pub(super) struct Fragments {
    tracker: FragmentTracker<u16>,
    bytes: Box<[u8]>,
    lengths: Box<[u16]>,
    free: Vec<u16>,
    /// Waited in vain.
    timed_out: u64,
}

impl Fragments {
    pub(super) fn new(secret: [u64; 2]) -> Fragments {
        Fragments {
            tracker: FragmentTracker::new(secret),
            bytes: vec![0; WAITING_LIMIT * FRAGMENT_BYTES].into(),
            lengths: vec![0; WAITING_LIMIT].into(),
            free: (0..WAITING_LIMIT as u16).collect(),
            timed_out: 0,
        }
    }

    /// Takes a fragment; after [`Outcome::Known`], those that waited for it are to be [released](Fragments::release).
    pub(super) fn offer(&mut self, fragment: &Fragment, frame: &[u8], now: Nanos) -> Outcome {
        let Some(place) = self.free.pop() else {
            return Outcome::Refused;
        };
        if !fragment.is_first() && frame.len() > FRAGMENT_BYTES {
            self.free.push(place);
            return Outcome::Refused;
        }
        match self.tracker.offer(fragment, place, now) {
            Offer::Resolved { frame: place, info } => {
                self.free.push(place);
                Outcome::Known(info)
            }
            Offer::Waiting => {
                let room = self.bytes.chunks_exact_mut(FRAGMENT_BYTES).nth(place.into());
                if let Some(room) = room.and_then(|room| room.get_mut(..frame.len())) {
                    room.copy_from_slice(frame);
                    self.lengths[usize::from(place)] = frame.len() as u16;
                }
                Outcome::Waits
            }
            Offer::Refused { frame: place, .. } => {
                self.free.push(place);
                Outcome::Refused
            }
        }
    }

    /// The next one whose flow has become known, in order of arrival.
    pub(super) fn release(&mut self) -> Option<(&[u8], PacketInfo)> {
        let (place, info) = self.tracker.release()?;
        self.free.push(place);
        let begin = usize::from(place) * FRAGMENT_BYTES;
        let end = begin + usize::from(self.lengths[usize::from(place)]);
        Some((self.bytes.get(begin..end)?, info))
    }

    /// Forgets those that have waited too long.
    pub(super) fn expire(&mut self, now: Nanos) {
        while let Some(place) = self.tracker.expire(now) {
            self.free.push(place);
            self.timed_out += 1;
        }
    }

    /// When one will have waited too long.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.tracker.next_deadline()
    }

    pub(super) fn waiting(&self) -> usize {
        self.tracker.occupied()
    }

    pub(super) fn timed_out(&self) -> u64 {
        self.timed_out
    }
}
