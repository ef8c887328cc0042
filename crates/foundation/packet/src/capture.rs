//! Classic pcap files as byte slices. File input and output are left to the caller.
//!
//! Why not a crate: `pcap-file` 2.0, the best maintained one, rejects frames cut off at the snapshot length
//! and files whose snapshot length is 0 (no limit). Both are common. The format is 24 + 16 bytes of headers.

use crate::Error;

const LEN: usize = 24;
const RECORD_LEN: usize = 16;
const ETHERNET: u32 = 1;
const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;

/// Longest frame a record may declare, in bytes: libpcap's limit (`MAXIMUM_SNAPLEN`).
const MAX_FRAME_LEN: u32 = 262_144;

/// One frame of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured<'a> {
    /// Capture time, in nanoseconds since 1970.
    pub timestamp_ns: u64,
    /// The captured bytes.
    pub frame: &'a [u8],
    /// Length on the wire, in bytes; more than `frame` has if the frame was cut off.
    pub original_len: u32,
}

/// Reads a capture frame by frame. Stops after the first error.
#[derive(Clone, Debug)]
pub struct CaptureReader<'a> {
    bytes: &'a [u8],
    offset: usize,
    is_big_endian: bool,
    ns_per_tick: u64,
}

impl<'a> CaptureReader<'a> {
    /// Reads the file's header.
    /// Reads the file header.
    /// # Errors
    /// [`Error::NotACapture`], [`Error::LinkType`] if it is not Ethernet, [`Error::Truncated`].
    pub fn new(bytes: &'a [u8]) -> Result<CaptureReader<'a>, Error> {
        let truncated = Error::Truncated { offset: 0 };
        let magic = *bytes.first_chunk::<4>().ok_or(truncated)?;
        let (is_big_endian, ns_per_tick) = match (u32::from_be_bytes(magic), u32::from_le_bytes(magic)) {
            (MICROSECONDS, _) => (true, 1000),
            (NANOSECONDS, _) => (true, 1),
            (_, MICROSECONDS) => (false, 1000),
            (_, NANOSECONDS) => (false, 1),
            (magic, _) => return Err(Error::NotACapture { magic }),
        };
        if bytes.len() < LEN {
            return Err(truncated);
        }
        let reader = CaptureReader {
            bytes,
            offset: LEN,
            is_big_endian,
            ns_per_tick,
        };
        // The upper bits hold the length of a frame check sequence, if any.
        match reader.word(20).ok_or(truncated)? & 0x0fff_ffff {
            ETHERNET => Ok(reader),
            link_type => Err(Error::LinkType { link_type }),
        }
    }

    fn word(&self, offset: usize) -> Option<u32> {
        let bytes = *self.bytes.get(offset..)?.first_chunk::<4>()?;
        Some(if self.is_big_endian {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    }

    fn record(&self) -> Result<Captured<'a>, Error> {
        let offset = self.offset;
        let truncated = Error::Truncated { offset };
        let field = |index: usize| self.word(offset + 4 * index).ok_or(truncated);
        let (seconds, ticks, length, original_len) = (field(0)?, field(1)?, field(2)?, field(3)?);
        if length > MAX_FRAME_LEN {
            return Err(Error::FrameLength { offset, length });
        }
        let start = offset + RECORD_LEN;
        let frame = self.bytes.get(start..start + length as usize).ok_or(truncated)?;
        Ok(Captured {
            timestamp_ns: u64::from(seconds) * 1_000_000_000 + u64::from(ticks) * self.ns_per_tick,
            frame,
            original_len,
        })
    }
}

impl<'a> Iterator for CaptureReader<'a> {
    type Item = Result<Captured<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        let record = self.record();
        self.offset = match &record {
            Ok(captured) => self.offset + RECORD_LEN + captured.frame.len(),
            Err(_) => self.bytes.len(),
        };
        Some(record)
    }
}

/// Appends frames to a capture with nanosecond timestamps, little-endian, link type Ethernet.
#[derive(Clone, Debug)]
pub struct CaptureWriter {
    bytes: Vec<u8>,
}

impl Default for CaptureWriter {
    fn default() -> Self {
        CaptureWriter::new()
    }
}

impl CaptureWriter {
    /// An empty capture.
    pub fn new() -> CaptureWriter {
        let mut bytes = Vec::with_capacity(LEN);
        bytes.extend(NANOSECONDS.to_le_bytes());
        bytes.extend(2u16.to_le_bytes()); // version 2.4
        bytes.extend(4u16.to_le_bytes());
        bytes.extend([0; 8]); // time zone and accuracy: always 0
        bytes.extend(MAX_FRAME_LEN.to_le_bytes());
        bytes.extend(ETHERNET.to_le_bytes());
        CaptureWriter { bytes }
    }

    /// Appends a frame. Set `original_len` to its length on the wire if it is cut off.
    pub fn push(&mut self, captured: &Captured<'_>) {
        let frame = &captured.frame[..captured.frame.len().min(MAX_FRAME_LEN as usize)];
        let seconds = captured.timestamp_ns / 1_000_000_000;
        let nanoseconds = captured.timestamp_ns % 1_000_000_000;
        self.bytes.reserve(RECORD_LEN + frame.len());
        for field in [
            seconds as u32,
            nanoseconds as u32,
            frame.len() as u32,
            captured.original_len,
        ] {
            self.bytes.extend(field.to_le_bytes());
        }
        self.bytes.extend(frame);
    }

    /// The bytes written since the last [`clear`](Self::clear), to append to the file. The first time they
    /// include the header.
    pub fn written(&self) -> &[u8] {
        &self.bytes
    }

    /// Discards the written bytes but keeps the buffer. Call it once they are in the file.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// All bytes written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file with one frame of two captured bytes, at 1.5 s, 60 bytes on the wire.
    fn file(magic: u32, ticks: u32, is_big_endian: bool, snapshot_len: u32) -> Vec<u8> {
        let word = |n: u32| {
            if is_big_endian {
                n.to_be_bytes()
            } else {
                n.to_le_bytes()
            }
        };
        let version = if is_big_endian { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
        let header = [
            word(magic),
            version,
            word(0),
            word(0),
            word(snapshot_len),
            word(ETHERNET),
        ];
        let record = [word(1), word(ticks), word(2), word(60)];
        [header.concat(), record.concat(), vec![0xaa, 0xbb]].concat()
    }

    #[test]
    fn every_byte_order_and_resolution_is_read() {
        for is_big_endian in [false, true] {
            for (magic, ticks) in [(MICROSECONDS, 500_000), (NANOSECONDS, 500_000_000)] {
                for snapshot_len in [0, 2, 65_535] {
                    let bytes = file(magic, ticks, is_big_endian, snapshot_len);
                    let frames: Result<Vec<_>, _> = CaptureReader::new(&bytes).unwrap().collect();
                    let expected = Captured {
                        timestamp_ns: 1_500_000_000,
                        frame: &[0xaa, 0xbb],
                        original_len: 60,
                    };
                    assert_eq!(frames.unwrap(), [expected]);
                }
            }
        }
    }

    #[test]
    fn other_file_formats_are_rejected() {
        let pcapng = [0x0a, 0x0d, 0x0d, 0x0a];
        assert_eq!(
            CaptureReader::new(&pcapng).err(),
            Some(Error::NotACapture { magic: 0x0a0d_0d0a })
        );
        assert_eq!(
            CaptureReader::new(&[]).err(),
            Some(Error::Truncated { offset: 0 })
        );
        let mut bytes = file(MICROSECONDS, 0, false, 0);
        assert_eq!(
            CaptureReader::new(&bytes[..23]).err(),
            Some(Error::Truncated { offset: 0 })
        );
        bytes[20] = 101;
        assert_eq!(
            CaptureReader::new(&bytes).err(),
            Some(Error::LinkType { link_type: 101 })
        );
    }

    #[test]
    fn a_truncated_file_ends_with_an_error() {
        let bytes = file(MICROSECONDS, 0, false, 0);
        for end in 25..bytes.len() {
            let frames: Vec<_> = CaptureReader::new(&bytes[..end]).unwrap().collect();
            assert_eq!(frames, [Err(Error::Truncated { offset: 24 })]);
        }
        let mut damaged = bytes;
        damaged[24 + 11] = 0xff;
        let frames: Vec<_> = CaptureReader::new(&damaged).unwrap().collect();
        assert!(matches!(frames[..], [Err(Error::FrameLength { offset: 24, .. })]));
    }

    proptest! {
        #[test]
        fn written_frames_are_read_back(
            frames in prop::collection::vec((0..u64::from(u32::MAX) * 1_000_000_000, prop::collection::vec(any::<u8>(), 0..80)), 0..20),
        ) {
            let mut writer = CaptureWriter::new();
            let mut file = Vec::new();
            for (timestamp_ns, frame) in &frames {
                writer.push(&Captured { timestamp_ns: *timestamp_ns, frame, original_len: frame.len() as u32 });
                if frame.len() % 3 == 0 {
                    file.extend(writer.written());
                    writer.clear();
                }
            }
            file.extend(writer.into_bytes());
            let read: Vec<(u64, Vec<u8>)> = CaptureReader::new(&file)
                .unwrap()
                .map(|c| c.map(|c| (c.timestamp_ns, c.frame.to_vec())))
                .collect::<Result<_, _>>()
                .unwrap();
            prop_assert_eq!(read, frames);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), magic in prop_oneof![Just(MICROSECONDS), Just(NANOSECONDS)]) {
            let mut bytes = bytes;
            bytes.splice(..4.min(bytes.len()), magic.to_le_bytes());
            if bytes.len() > 24 {
                bytes[20..24].copy_from_slice(&ETHERNET.to_le_bytes());
            }
            if let Ok(reader) = CaptureReader::new(&bytes) {
                prop_assert!(reader.count() <= bytes.len());
            }
        }
    }
}
