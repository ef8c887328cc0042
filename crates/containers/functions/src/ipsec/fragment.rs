//! Divides IPv4 packets that are too long for a tunnel, before they enter it (RFC 4301, section 8.2.2): each part is
//! a packet of its own for the tunnel, and the other end puts nothing together.

use packet::checksum;

use super::headers::{IPV4, Ip, be16};

const MORE: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;
/// The unit of offsets, in bytes.
const UNIT: usize = 8;

/// The parts of a packet, in order.
pub(super) struct Parts<'p> {
    frame: &'p [u8],
    at: usize,
    /// The packet's data, and how much of it the parts so far have.
    data: &'p [u8],
    done: usize,
    /// Bytes of data in each part but the last.
    step: usize,
    /// Offset and flags of the packet itself.
    word: u16,
}

/// One part.
pub(super) struct Part<'p> {
    /// The Ethernet and IPv4 header of the packet.
    headers: &'p [u8],
    at: usize,
    data: &'p [u8],
    word: u16,
}

impl<'p> Parts<'p> {
    /// Parts of at most `limit` bytes of layer 3. [`None`] for a packet with options: not all are for each part.
    pub(super) fn new(frame: &'p [u8], ip: &Ip, limit: usize) -> Option<Parts<'p>> {
        if ip.is_v6 || ip.transport - ip.at != IPV4 {
            return None;
        }
        let step = limit.saturating_sub(IPV4) / UNIT * UNIT;
        let data = frame.get(ip.transport..ip.at + ip.len)?;
        (step > 0).then_some(Parts {
            frame,
            at: ip.at,
            data,
            done: 0,
            step,
            word: be16(frame, ip.at + 6)?,
        })
    }
}

impl<'p> Iterator for Parts<'p> {
    type Item = Part<'p>;

    fn next(&mut self) -> Option<Part<'p>> {
        let rest = self.data.get(self.done..).filter(|rest| !rest.is_empty())?;
        let (data, rest) = rest.split_at(rest.len().min(self.step));
        let offset = (self.word & OFFSET).checked_add((self.done / UNIT) as u16)?;
        let more = if rest.is_empty() { self.word & MORE } else { MORE };
        self.done += data.len();
        Some(Part {
            headers: self.frame.get(..self.at + IPV4)?,
            at: self.at,
            data,
            word: (offset & OFFSET) | more,
        })
    }
}

impl Part<'_> {
    /// Bytes of its frame.
    pub(super) fn len(&self) -> usize {
        self.headers.len() + self.data.len()
    }

    /// Writes it into a frame of its length.
    pub(super) fn write(&self, frame: &mut [u8]) {
        let (headers, data) = frame.split_at_mut(self.headers.len());
        headers.copy_from_slice(self.headers);
        data.copy_from_slice(self.data);
        let len = ((IPV4 + self.data.len()) as u16).to_be_bytes();
        if let Some(header) = headers
            .get_mut(self.at..)
            .and_then(<[u8]>::first_chunk_mut::<IPV4>)
        {
            [header[2], header[3]] = len;
            [header[6], header[7]] = self.word.to_be_bytes();
            [header[10], header[11]] = [0; 2];
            let sum = checksum::internet(header);
            [header[10], header[11]] = sum.to_be_bytes();
        }
    }
}
