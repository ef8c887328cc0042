//! Compiled edits: a worker compiles each [`Edit`] of a plan to a [`Rewrite`] when it loads the plan. A packet
//! without an edit costs nothing.
//!
//! Edits see frames in the worker's own memory, between a flow's lookup and the copy into the instance's ring, and
//! after the copy out of it. Each has [`HEADROOM`](crate::frame::HEADROOM) bytes in front for an edit that adds a
//! header. Only such an edit pays for them. One that changes lengths says anew how many bytes the frames have and
//! between which lengths they are; the port then drops what it cannot carry, as too large.

use switch::Edit;

use crate::frame::{Frame, Sizes};

/// Bytes of an Ethernet header's two addresses: the destination's, then the source's.
const ADDRESSES: usize = 12;

/// A compiled edit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// No change.
    #[default]
    None,
    /// Replaces the first bytes of the frame: bits that are 1 in `keep` stay, the others come from `put`.
    Mac {
        keep: [u8; ADDRESSES],
        put: [u8; ADDRESSES],
    },
    /// Adds these bytes in front of the frame. For tests, until there are tunnels.
    #[cfg(test)]
    Before(&'static [u8]),
}

impl Rewrite {
    /// Compiles an edit. An unsupported one becomes no change: the switch refuses such plans before.
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

    /// Edits a burst of frames. `known` is their number of bytes in all and their sizes; returns both after the edit.
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

/// A function of its own, so that a burst without an edit costs one comparison.
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

    /// Adds a header. A frame without headroom becomes empty, and ports drop empty frames.
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
            // A frame that is too short for both addresses is not Ethernet and stays unchanged.
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
