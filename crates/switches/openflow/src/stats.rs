//! Rule counters in OpenFlow 1.5's format (OXS, section 7.2.4 of its specification).

use crate::wire::{DecodeError, Reader, Result, Write};

const CLASS_BASIC: u16 = 0x8002;
const DURATION: u8 = 0;
const FLOW_COUNT: u8 = 3;
const PACKET_COUNT: u8 = 4;
const BYTE_COUNT: u8 = 5;

/// The counters; 0 if not present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// The rule's age, in nanoseconds.
    pub(crate) duration_ns: u64,
    pub(crate) flows: u32,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Counted {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u16(0);
        out.put_u16(0);
        let head = |out: &mut Vec<u8>, field: u8, length: u8| {
            out.put_u16(CLASS_BASIC);
            out.put_u8(field << 1);
            out.put_u8(length);
        };
        head(out, DURATION, 8);
        put_duration(out, self.duration_ns);
        head(out, FLOW_COUNT, 4);
        out.put_u32(self.flows);
        head(out, PACKET_COUNT, 8);
        out.put_u64(self.packets);
        head(out, BYTE_COUNT, 8);
        out.put_u64(self.bytes);
        out.set_length(start, 2);
        out.pad_to_8(start);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Counted> {
        reader.skip(2)?;
        let length = usize::from(reader.u16()?);
        let own = length.checked_sub(4).ok_or(DecodeError::Length {
            what: "counters",
            length,
        })?;
        let mut part = reader.part(own, "counters")?;
        reader.skip(length.next_multiple_of(8) - length)?;
        let mut counted = Counted::default();
        while !part.is_empty() {
            let class = part.u16()?;
            let field = part.u8()? >> 1;
            let length = part.u8()?;
            let mut value = part.part(length.into(), "a counter")?;
            match (class, field) {
                (CLASS_BASIC, DURATION) => counted.duration_ns = duration(&mut value)?,
                (CLASS_BASIC, FLOW_COUNT) => counted.flows = value.u32()?,
                (CLASS_BASIC, PACKET_COUNT) => counted.packets = value.u64()?,
                (CLASS_BASIC, BYTE_COUNT) => counted.bytes = value.u64()?,
                _ => {}
            }
        }
        Ok(counted)
    }
}

/// Seconds and nanoseconds.
pub(crate) fn duration(reader: &mut Reader<'_>) -> Result<u64> {
    let seconds = u64::from(reader.u32()?);
    Ok(seconds * 1_000_000_000 + u64::from(reader.u32()?))
}

pub(crate) fn put_duration(out: &mut Vec<u8>, duration_ns: u64) {
    out.put_u32(u32::try_from(duration_ns / 1_000_000_000).unwrap_or(u32::MAX));
    out.put_u32((duration_ns % 1_000_000_000) as u32);
}
