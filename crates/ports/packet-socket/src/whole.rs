//! Whole frames: what a sender left to a card is done, and the kernel's part of a VLAN tag put back.

use packet::offload::{Division, Offload, Partial};

use crate::Received;

/// Bytes of a VLAN tag, and where it belongs.
const TAG_BYTES: usize = 4;
const TAG_AT: usize = 12;

impl Received<'_> {
    /// Bytes of the frame with its tag.
    #[inline]
    pub fn whole_len(&self) -> usize {
        self.bytes.len() + self.tag.map_or(0, |_| TAG_BYTES)
    }

    /// Writes the frame to the start of `room`, with its tag and its checksum, and gives its length. Not for one that is
    /// to be divided. [`None`]: there is too little room, or it has no such checksum.
    pub fn copy_to(&self, room: &mut [u8]) -> Option<usize> {
        let len = self.whole_len();
        let room = room.get_mut(..len)?;
        match self.tag {
            None => room.copy_from_slice(self.bytes),
            Some(tag) => {
                let (front, rest) = self.bytes.split_at_checked(TAG_AT)?;
                let (addresses, others) = room.split_at_mut(TAG_AT);
                addresses.copy_from_slice(front);
                let (own, others) = others.split_at_mut(TAG_BYTES);
                let [a, b] = tag.ethertype.to_be_bytes();
                let [c, d] = tag.control.to_be_bytes();
                own.copy_from_slice(&[a, b, c, d]);
                others.copy_from_slice(rest);
            }
        }
        let partial = self.behind_tag().partial;
        partial
            .is_none_or(|partial| partial.complete(room))
            .then_some(len)
    }

    /// What is left to do, with positions in a frame that has its tag.
    fn behind_tag(&self) -> Offload {
        let by = if self.tag.is_some() { TAG_BYTES } else { 0 };
        let partial = self.offload.partial.map(|of| Partial {
            start: of.start + by,
            ..of
        });
        Offload {
            partial,
            ..self.offload
        }
    }
}

/// A packet that is being divided: the frames that a link carries come out of it one by one.
#[derive(Debug, Default)]
pub struct Dividing {
    bytes: Vec<u8>,
    /// [`None`]: all of it has been given.
    division: Option<Division>,
}

impl Dividing {
    /// Begins to divide a packet. False, and nothing is given of it, where there is nothing in it to divide.
    pub fn begin(&mut self, frame: &Received<'_>) -> bool {
        self.bytes.clear();
        let (front, rest) = frame.bytes.split_at(TAG_AT.min(frame.bytes.len()));
        self.bytes.extend_from_slice(front);
        if let Some(tag) = frame.tag {
            self.bytes.extend_from_slice(&tag.ethertype.to_be_bytes());
            self.bytes.extend_from_slice(&tag.control.to_be_bytes());
        }
        self.bytes.extend_from_slice(rest);
        self.division = Division::new(&self.bytes, frame.behind_tag());
        self.division.is_some()
    }

    /// Whether all of it has been given.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.division.is_none()
    }

    /// Bytes of the next frame; [`None`] if all has been given.
    pub fn next_len(&mut self) -> Option<usize> {
        let len = self.division.as_ref()?.next_len(&self.bytes);
        if len.is_none() {
            self.division = None;
        }
        len
    }

    /// Writes the next frame to the start of `room`, with all checksums, and gives its length. [`None`]: there is too
    /// little room, or none is left; nothing more is given then.
    pub fn next(&mut self, room: &mut [u8]) -> Option<usize> {
        let len = self.division.as_mut()?.next(&self.bytes, room);
        if len.is_none() {
            self.division = None;
        }
        len
    }

    /// Leaves out what has not been given.
    pub fn end(&mut self) {
        self.division = None;
    }
}
