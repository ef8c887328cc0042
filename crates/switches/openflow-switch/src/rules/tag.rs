//! Frames of our own in the switch: what tells a copy, a marker and a probe from a packet.

use model::Slot;
use openflow::{Action, Field, FieldKind};

/// VLAN ids on the monitor port. An instance's slot is its number plus one.
pub(super) const FIRST_SLOT: u16 = 1;
/// The packet went nowhere else: it waits for us to send it on.
pub(super) const HELD: u16 = 4000;
/// A marker on its way out.
pub(super) const MARKER: u16 = 4001;
/// A marker that came back has this plus the number of its round.
pub(super) const MARKED: u16 = 4002;
/// Rounds are numbered up to this, then anew.
pub(crate) const ROUNDS: u8 = 64;
pub(super) const TAG_TYPE: u16 = 0x8100;
/// EtherType of markers and probes: the first for local experiments (IEEE 802, 9.2.4).
pub(super) const LOCAL_TYPE: u16 = 0x88b5;
/// Bytes of the two addresses before the tag.
pub(super) const ADDRESSES: usize = 12;
/// The shortest frame, without its check sequence.
pub(super) const SHORTEST: usize = 60;

const _: () = assert!((Slot::LIMIT as u16) < HELD - FIRST_SLOT && MARKED + (ROUNDS as u16) < 4095);

/// What the tag of a frame on the monitor port says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// From us: to this data port of the instance. To us: a copy of what was sent to it, received on that uplink, or
    /// a probe that it has given back on that data port.
    Instance(Slot, u8),
    /// To us: not sent to any instance; received on that uplink.
    Held(u8),
    /// From us.
    Marker,
    /// To us: the marker met the rule of that round.
    Marked(u8),
}

impl Tag {
    pub(super) const fn id(self) -> u16 {
        match self {
            Tag::Instance(slot, _) => slot.0 + FIRST_SLOT,
            Tag::Held(_) => HELD,
            Tag::Marker => MARKER,
            Tag::Marked(round) => MARKED + (round % ROUNDS) as u16,
        }
    }

    pub(super) const fn priority(self) -> u8 {
        match self {
            Tag::Instance(_, number) | Tag::Held(number) => number & 7,
            Tag::Marker | Tag::Marked(_) => 0,
        }
    }

    pub(super) fn from_control(control: u16) -> Option<Tag> {
        let (id, number) = (control & 0xfff, (control >> 13) as u8);
        match id {
            HELD => Some(Tag::Held(number)),
            MARKER => Some(Tag::Marker),
            MARKED.. => u8::try_from(id - MARKED).ok().map(Tag::Marked),
            FIRST_SLOT.. => Some(Tag::Instance(Slot(id - FIRST_SLOT), number)),
            0 => None,
        }
    }

    /// The frame with the tag.
    pub(crate) fn put(self, frame: &[u8]) -> Vec<u8> {
        let (addresses, rest) = frame.split_at_checked(ADDRESSES).unwrap_or((frame, &[]));
        let control = u16::from(self.priority()) << 13 | self.id();
        let mut tagged = Vec::with_capacity(frame.len() + 4);
        tagged.extend_from_slice(addresses);
        tagged.extend_from_slice(&TAG_TYPE.to_be_bytes());
        tagged.extend_from_slice(&control.to_be_bytes());
        tagged.extend_from_slice(rest);
        tagged
    }

    /// The tag and the frame without it. [`None`] for what has no tag of ours.
    pub(crate) fn take(frame: &[u8]) -> Option<(Tag, Vec<u8>)> {
        let (addresses, rest) = frame.split_at_checked(ADDRESSES)?;
        let (tag, rest) = rest.split_first_chunk::<4>()?;
        let [a, b, c, d] = *tag;
        if u16::from_be_bytes([a, b]) != TAG_TYPE {
            return None;
        }
        let tag = Tag::from_control(u16::from_be_bytes([c, d]))?;
        Some((tag, [addresses, rest].concat()))
    }

    /// The actions that tag a copy and send it to the monitor port.
    pub(super) fn to_monitor(self, monitor: u32) -> Vec<Action> {
        vec![
            Action::PushVlan(TAG_TYPE),
            Action::SetField(Field::vlan(self.id())),
            Action::SetField(Field::new(FieldKind::VLAN_PCP, &[self.priority()])),
            Action::output(monitor),
        ]
    }

    pub(super) fn fields(self) -> [Field; 2] {
        [
            Field::vlan(self.id()),
            Field::new(FieldKind::VLAN_PCP, &[self.priority()]),
        ]
    }
}

/// A marker, ready for the monitor port.
pub(crate) fn marker_frame() -> Vec<u8> {
    let mut frame = vec![0; SHORTEST];
    // Locally administered addresses: a marker never leaves the switch.
    frame.splice(..6, [0x02, 0, 0, 0, 0, 0x01]);
    frame.splice(6..12, [0x02, 0, 0, 0, 0, 0x02]);
    frame.splice(12..14, LOCAL_TYPE.to_be_bytes());
    Tag::Marker.put(&frame)
}

/// A probe: with a destination that no host has, and not IP, so that no packet of a flow can be taken for one.
pub(crate) fn probe_frame() -> Vec<u8> {
    let mut frame = vec![0; SHORTEST];
    frame.splice(..6, [0x02, 0, 0, 0, 0, 0x01]);
    frame.splice(6..12, [0x02, 0, 0, 0, 0, 0x02]);
    frame.splice(12..14, LOCAL_TYPE.to_be_bytes());
    frame
}

/// Whether this is a probe: whatever has its EtherType and is no marker.
pub(crate) fn is_probe(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&LOCAL_TYPE.to_be_bytes())
}
