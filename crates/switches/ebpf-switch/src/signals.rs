//! Signals of instances, as the program hands them over.

use aya::Ebpf;
use aya::maps::{Map, MapData, RingBuf};
use model::Slot;
use signal::{FRAME_BYTES, Received};
use switch::SwitchEvent;

/// Signals that are taken up in one turn; more wait for the next one.
const TURN_LIMIT: usize = 64;
/// Bytes of a record before the frame: slot and length.
const HEAD_BYTES: usize = 8;

/// What the program has handed over and nobody has read yet.
pub(crate) struct Signals(RingBuf<MapData>);

impl Signals {
    /// Those of a program that is loaded.
    pub(crate) fn of(ebpf: &mut Ebpf) -> Option<Signals> {
        match ebpf.take_map("signals")? {
            map @ Map::RingBuf(_) => RingBuf::try_from(map).ok().map(Signals),
            _ => None,
        }
    }

    /// Tells of those that have come. No system call.
    pub(crate) fn tell(&mut self, events: &mut Vec<SwitchEvent>) {
        for _ in 0..TURN_LIMIT {
            let Some(record) = self.0.next() else { return };
            events.extend(signal_in(&record));
        }
    }
}

/// The signal in a record, which is `struct signal` of the programs.
fn signal_in(record: &[u8]) -> Option<SwitchEvent> {
    let (head, frame) = record.split_at_checked(HEAD_BYTES)?;
    let (words, _) = head.as_chunks::<4>();
    let [slot, len] = *words else { return None };
    let slot = u16::try_from(u32::from_ne_bytes(slot)).ok()?;
    let bytes: [u8; FRAME_BYTES] = frame.get(..FRAME_BYTES)?.try_into().ok()?;
    Some(SwitchEvent::Signal {
        slot: Slot(slot),
        frame: Received::copied(bytes, u32::from_ne_bytes(len) as usize),
    })
}
