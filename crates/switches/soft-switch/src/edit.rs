//! Edits as packets need them: a worker compiles each [`Edit`] of a plan to a [`Rewrite`] when it loads the plan, so
//! that a packet costs what its edit does, and nothing where there is none.
//!
//! Edits see frames in the worker's own memory, between a flow's lookup and the copy into the instance's ring, and
//! after the copy out of it. Each has [`HEADROOM`](crate::frame::HEADROOM) bytes in front for an edit that adds a
//! header. Only such an edit pays for them. One that changes lengths says anew how many bytes the frames have and
//! between which lengths they are; the port then drops what it cannot carry, as too large.

use switch::Edit;

use crate::frame::{Frame, Sizes};

/// Bytes of an Ethernet header's two addresses: the destination's, then the source's.
const ADDRESSES: usize = 12;

/// An edit as packets need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// Nothing changes.
    #[default]
    None,
    /// The first bytes of the frame become what they were, where `keep` has ones, and `put` elsewhere.
    Mac {
        keep: [u8; ADDRESSES],
        put: [u8; ADDRESSES],
    },
    /// These bytes come before the frame. For tests, until there are tunnels.
    #[cfg(test)]
    Before(&'static [u8]),
}

impl Rewrite {
    /// The compiled form. One that the switch cannot do changes nothing: no such plan is taken.
    pub(crate) fn new(edit: &Edit) -> Rewrite {
        let Edit::Mac { destination, source } = *edit else {
            return Rewrite::None;
        };
        if destination.is_none() && source.is_none() {
            return Rewrite::None;
        }
        let (mut keep, mut put) = ([0xff; ADDRESSES], [0; ADDRESSES]);
        for (place, address) in [destination, source].into_iter().enumerate() {
            let at = place * 6..place * 6 + 6;
            if let (Some(address), Some(keep), Some(put)) =
                (address, keep.get_mut(at.clone()), put.get_mut(at))
            {
                keep.fill(0);
                put.copy_from_slice(&address);
            }
        }
        Rewrite::Mac { keep, put }
    }

    /// Whether it changes nothing.
    #[inline(always)]
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Rewrite::None)
    }

    /// Edits a burst of frames, of so many bytes in all and of each of these sizes. Gives both as they are then.
    #[inline(always)]
    pub(crate) fn apply<F: Frame>(&self, frames: &mut [F], known: (u64, Sizes)) -> (u64, Sizes) {
        match self {
            Rewrite::None => known,
            Rewrite::Mac { keep, put } => {
                rewrite_macs(frames, keep, put);
                known
            }
            #[cfg(test)]
            Rewrite::Before(header) => tests::put_before(frames, header),
        }
    }
}

/// Apart, so that frames without an edit pass by it with a comparison for all of them.
#[inline(never)]
fn rewrite_macs<F: Frame>(frames: &mut [F], keep: &[u8; ADDRESSES], put: &[u8; ADDRESSES]) {
    for frame in frames {
        let Some(addresses) = frame.bytes_mut().first_chunk_mut::<ADDRESSES>() else {
            continue;
        };
        for ((byte, keep), put) in addresses.iter_mut().zip(keep).zip(put) {
            *byte = *byte & keep | put;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::HeapFrame;

    /// As a tunnel will do it. A frame without headroom becomes empty, which no port sends.
    pub(super) fn put_before<F: Frame>(frames: &mut [F], header: &[u8]) -> (u64, Sizes) {
        let (mut bytes, mut sizes) = (0, Sizes::NONE);
        for frame in frames {
            match frame.add_front(header.len()) {
                Some(front) => front.copy_from_slice(header),
                None => frame.set_len(0),
            }
            bytes += frame.len() as u64;
            sizes.note(frame.len());
        }
        (bytes, sizes)
    }

    fn frame(bytes: &[u8]) -> HeapFrame {
        let mut frame = HeapFrame::with_room(64);
        frame.room()[..bytes.len()].copy_from_slice(bytes);
        frame.set_len(bytes.len());
        frame
    }

    proptest! {
        #[test]
        fn given_addresses_are_written_and_nothing_else_changes(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            destination: Option<[u8; 6]>,
            source: Option<[u8; 6]>,
        ) {
            let mut frames = [frame(&bytes), frame(&bytes)];
            let known = (7, Sizes { shortest: 1, longest: 2 });
            let then = Rewrite::new(&Edit::Mac { destination, source }).apply(&mut frames, known);
            prop_assert_eq!(then, known);
            let mut expected = bytes.clone();
            // A frame that is too short for both has neither: it is no Ethernet frame.
            if bytes.len() >= ADDRESSES {
                for (at, address) in [(0, destination), (6, source)] {
                    if let Some(address) = address {
                        expected[at..at + 6].copy_from_slice(&address);
                    }
                }
            }
            for frame in &frames {
                prop_assert_eq!(frame.bytes(), &expected[..]);
            }
        }
    }

    #[test]
    fn what_changes_nothing_is_none() {
        assert!(Rewrite::new(&Edit::None).is_none());
        let nothing = Edit::Mac {
            destination: None,
            source: None,
        };
        assert!(Rewrite::new(&nothing).is_none());
    }
}
