//! The file format of captures, pcapng (draft-ietf-opsawg-pcapng): written, and counted by who receives it. Written by
//! hand, because it is five blocks, and `pcap-file` 2.0 writes the time of statistics in the wrong order.

use model::CapturePoint;

/// Types of blocks.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
/// Tells the order of bytes in a section.
const MAGIC: u32 = 0x1a2b_3c4d;
/// The link type of Ethernet.
const ETHERNET: u16 = 1;
/// Options of blocks.
const COMMENT: u16 = 1;
const PROGRAM: u16 = 4;
const NAME: u16 = 2;
const DESCRIPTION: u16 = 3;
const RESOLUTION: u16 = 9;
const FLAGS: u16 = 2;
const RECEIVED: u16 = 4;
const LEFT_OUT: u16 = 5;
/// Bytes of a block of statistics.
pub(crate) const STATISTICS_BYTES: usize = 52;
/// The longest option of a comment.
const COMMENT_LIMIT: usize = 1024;
/// The longest block that is taken for one: a packet, with its options.
const BLOCK_LIMIT: usize = 1 << 20;

/// A block that is written.
struct Block<'a> {
    into: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Block<'a> {
    fn begin(into: &'a mut Vec<u8>, kind: u32) -> Block<'a> {
        let start = into.len();
        into.extend_from_slice(&kind.to_le_bytes());
        into.extend_from_slice(&[0; 4]);
        Block { into, start }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.into.extend_from_slice(bytes);
    }

    /// Bytes up to a multiple of four.
    fn pad(&mut self) {
        while !(self.into.len() - self.start).is_multiple_of(4) {
            self.into.push(0);
        }
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.put(&code.to_le_bytes());
        self.put(&(value.len() as u16).to_le_bytes());
        self.put(value);
        self.pad();
    }

    /// Ends the options, and the block.
    fn end(mut self) {
        self.put(&[0; 4]);
        let length = (self.into.len() - self.start + 4) as u32;
        self.put(&length.to_le_bytes());
        if let Some(place) = self.into.get_mut(self.start + 4..self.start + 8) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }
}

/// Writes the beginning of a file with an interface for each of these points.
pub(crate) fn begin(into: &mut Vec<u8>, points: &[CapturePoint], snaplen: u32) {
    let mut section = Block::begin(into, SECTION);
    section.put(&MAGIC.to_le_bytes());
    section.put(&[1, 0, 0, 0]);
    // The length of the section is not known.
    section.put(&u64::MAX.to_le_bytes());
    section.option(PROGRAM, concat!("inco ", env!("CARGO_PKG_VERSION")).as_bytes());
    section.end();
    for point in points {
        let mut interface = Block::begin(into, INTERFACE);
        interface.put(&ETHERNET.to_le_bytes());
        interface.put(&[0; 2]);
        interface.put(&snaplen.to_le_bytes());
        interface.option(NAME, point.name().as_bytes());
        let description = match point {
            CapturePoint::Uplink => "packets at uplinks, in both directions",
            CapturePoint::Before => "packets on their way into an instance",
            CapturePoint::After => "packets that an instance gave back",
            CapturePoint::Dropped => "packets that the switch dropped",
        };
        interface.option(DESCRIPTION, description.as_bytes());
        // Nanoseconds.
        interface.option(RESOLUTION, &[9]);
        interface.end();
    }
}

/// A packet of a file.
pub(crate) struct Packet<'a> {
    /// The place of its point among those of the file.
    pub(crate) interface: u32,
    /// Nanoseconds since 1970.
    pub(crate) unix_ns: u64,
    /// Bytes that the packet has.
    pub(crate) length: u32,
    /// Those that were kept.
    pub(crate) bytes: &'a [u8],
    /// Whether it came from the network, or leaves into it.
    pub(crate) leaves: Option<bool>,
    pub(crate) comment: &'a str,
}

/// High and low half of a time.
fn time(unix_ns: u64) -> [u8; 8] {
    unix_ns.rotate_left(32).to_le_bytes()
}

/// Writes a packet.
pub(crate) fn packet(into: &mut Vec<u8>, of: &Packet<'_>) {
    let mut block = Block::begin(into, PACKET);
    block.put(&of.interface.to_le_bytes());
    block.put(&time(of.unix_ns));
    block.put(&(of.bytes.len() as u32).to_le_bytes());
    block.put(&of.length.to_le_bytes());
    block.put(of.bytes);
    block.pad();
    let comment = of.comment.as_bytes();
    block.option(COMMENT, comment.get(..COMMENT_LIMIT).unwrap_or(comment));
    if let Some(leaves) = of.leaves {
        block.option(FLAGS, &(1 + u32::from(leaves)).to_le_bytes());
    }
    block.end();
}

/// Writes at the end how many packets of an interface there are, and how many were left out.
pub(crate) fn statistics(into: &mut Vec<u8>, interface: u32, unix_ns: u64, packets: u64, left_out: u64) {
    let mut block = Block::begin(into, STATISTICS);
    block.put(&interface.to_le_bytes());
    block.put(&time(unix_ns));
    block.option(RECEIVED, &(packets + left_out).to_le_bytes());
    block.option(LEFT_OUT, &left_out.to_le_bytes());
    block.end();
}

/// Counts the packets of a file that comes in pieces.
#[derive(Debug, Default)]
pub struct CaptureTally {
    /// The bytes of a block whose end has not come.
    pending: Vec<u8>,
    /// Packets so far.
    pub packets: u64,
    /// Packets that were left out because the capture could not keep up: known at the end.
    pub left_out: u64,
    /// Whether the statistics of the end were there: it was not cut off.
    pub is_whole: bool,
}

impl CaptureTally {
    /// Takes the next piece, and returns the blocks that are whole with it: what is written of a file that is cut off
    /// stays valid.
    #[must_use]
    pub fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(piece);
        let number = |of: &[u8], at: usize| {
            let bytes = of.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let mut done = 0;
        while let Some(rest) = self.pending.get(done..)
            && let (Some(kind), Some(length)) = (number(rest, 0), number(rest, 4))
        {
            let length = length as usize;
            if !(12..=BLOCK_LIMIT).contains(&length) {
                // It is no such file: nothing more is counted.
                done = self.pending.len();
                break;
            }
            let Some(block) = rest.get(..length) else { break };
            match kind {
                PACKET => self.packets += 1,
                STATISTICS => {
                    self.is_whole = true;
                    // The second of two options of eight bytes.
                    self.left_out += u64::from(number(block, 36).unwrap_or(0));
                }
                _ => {}
            }
            done += length;
        }
        self.pending.drain(..done).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let mut file = Vec::new();
        begin(&mut file, &[CapturePoint::Uplink, CapturePoint::Dropped], 64);
        for (interface, length) in [(0, 60), (1, 61), (1, 1500)] {
            let bytes = vec![7; length as usize];
            packet(
                &mut file,
                &Packet {
                    interface,
                    unix_ns: 1_700_000_000_123_456_789,
                    length,
                    bytes: bytes.get(..64).unwrap_or(&bytes),
                    leaves: (interface == 0).then_some(true),
                    comment: "reason=unmatched",
                },
            );
        }
        statistics(&mut file, 0, 5, 1, 0);
        statistics(&mut file, 1, 5, 2, 9);
        file
    }

    #[test]
    fn packets_are_counted_however_the_file_comes() {
        let file = file();
        for piece in [1, 7, 64, file.len()] {
            let mut tally = CaptureTally::default();
            let mut whole = Vec::new();
            for part in file.chunks(piece) {
                assert!(!tally.is_whole || tally.packets == 3);
                whole.extend(tally.take(part));
                // What is there ends with the length of its last block.
                let last = whole
                    .last_chunk::<4>()
                    .map(|length| u32::from_le_bytes(*length) as usize);
                let start = whole.len() - last.unwrap_or(0);
                assert_eq!(
                    whole.get(start + 4..start + 8),
                    whole.last_chunk().map(<[u8; 4]>::as_slice)
                );
            }
            assert_eq!(whole, file);
            assert_eq!((tally.packets, tally.left_out, tally.is_whole), (3, 9, true));
            assert!(tally.pending.is_empty());
        }
    }

    #[test]
    fn what_is_no_capture_is_not_counted_and_not_kept() {
        let mut tally = CaptureTally::default();
        let _none = tally.take(b"HTTP/1.1 200 OK with more than a few bytes");
        let _none = tally.take(&[0; 100]);
        assert_eq!(
            (tally.packets, tally.is_whole, tally.pending.len()),
            (0, false, 0)
        );
    }

    #[test]
    fn blocks_have_their_length_at_both_ends_and_whole_words() {
        let file = file();
        let mut rest = file.as_slice();
        let mut blocks = 0;
        while !rest.is_empty() {
            let length = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
            assert_eq!(length % 4, 0);
            assert_eq!(rest[4..8], rest[length - 4..length]);
            rest = &rest[length..];
            blocks += 1;
        }
        assert_eq!(blocks, 1 + 2 + 3 + 2);
        let mut end = Vec::new();
        statistics(&mut end, 0, 5, 1, 0);
        assert_eq!(end.len(), STATISTICS_BYTES);
    }
}
