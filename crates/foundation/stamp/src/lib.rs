//! The test field of generated packets: the generator writes it, a function may add its instance id, and the
//! generator reads it back. This crate only encodes and decodes; it never reads a clock or keeps state.
//!
//! Key types: [`Stamp`] (in the payload of generated packets) and [`MacStamp`] (in the source MAC of replayed
//! packets, whose payload must not change).
//!
//! 1. The generator writes a [`Stamp`] after the UDP or TCP header ([`Stamp::to_bytes`]) of a frame from
//!    [`GENERATED_MAC`], or a [`MacStamp`] over the source MAC of a replayed frame.
//! 2. A function with `--stamp` calls [`stamp_instance`], which keeps the checksum valid.
//! 3. The generator finds it with [`read`] or [`read_mac`].
//!
//! # What a function may write into
//! The source MAC tells a function where the stamp is, before it looks at the payload. A replayed frame has a
//! [`MacStamp`] there, so its payload is never written, whatever it holds: a recorded stamp of another run, too. A
//! payload is written only if the source MAC is [`GENERATED_MAC`], which no card and no capture on its way through the
//! generator has, and if magic and check agree: 48 + 16 + 8 = 72 bits. A frame whose source MAC was rewritten on the
//! way to the function stays without a stamp, and the generator counts it as that.
//!
//! # Layout of the payload stamp, 18 bytes, big-endian
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..2 | magic `0x1c0f` |
//! | 2..5 | instance, 0 where no function stamped |
//! | 5..8 | flow |
//! | 8..12 | sequence number within the flow |
//! | 12 | check of flow, sequence number and time |
//! | 13..18 | intended send time, monotonic clock in ns, modulo 2^40 (18 minutes) |
//!
//! A frame of "64 B" is 64 B on the wire: 60 B in memory and 4 B of frame check sequence, which no port here
//! sees. Ethernet, IPv4 and UDP take 42 of those 60, which leaves exactly the 18 of the stamp. Other packet
//! formats have a higher minimum: [`Form::minimum_wire_bytes`].
//!
//! # Layout of the MAC stamp, 6 bytes
//!
//! Octet 0 is `0x52` (locally administered, unicast), then 4 bits `0xc`, 16 bits instance, 20 bits packet
//! number. The last octet holds the lowest bits of the number.
#![forbid(unsafe_code)]

/// Bytes of a payload stamp.
pub const LEN: usize = 18;
/// Bytes of the frame check sequence, which is on the wire but not in memory.
pub const FCS_LEN: usize = 4;
/// Flow numbers are below this: a stamp has 24 bits for them.
pub const FLOWS_LIMIT: u32 = 1 << 24;
/// Packet numbers of MAC stamps wrap at this (20 bits): at most half of it may be in flight.
pub const MAC_NUMBERS: u32 = 1 << 20;

/// The source MAC of generated frames: locally administered, unicast, and drawn at random. No [`MacStamp`] begins like
/// it.
pub const GENERATED_MAC: [u8; 6] = [0x56, 0x9d, 0xc3, 0x1a, 0xf7, 0x4e];

const MAGIC: [u8; 2] = [0x1c, 0x0f];
const MAC_MAGIC: u8 = 0x52;
const MAC_MAGIC_NIBBLE: u8 = 0xc;
const TIME_MASK: u64 = (1 << 40) - 1;
/// IPv6 extension headers followed: hop-by-hop, routing, two destination options and a fragment header are
/// the most that a sane packet has.
const EXTENSIONS_LIMIT: usize = 6;
/// VLAN tags followed.
const TAGS_LIMIT: usize = 2;

/// The IP version of a generated packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ip {
    /// IPv4, no options.
    V4,
    /// IPv6, no extension headers.
    V6,
}

/// The transport of a generated packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// UDP.
    Udp,
    /// TCP without options.
    Tcp,
}

/// The format of a generated packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// IP version.
    pub ip: Ip,
    /// Transport.
    pub transport: Transport,
    /// Number of VLAN tags, 0 to 2.
    pub tags: u8,
}

impl Form {
    /// Bytes of all headers: Ethernet, tags, IP, transport. The stamp starts here.
    pub const fn header_bytes(self) -> usize {
        let ip = match self.ip {
            Ip::V4 => 20,
            Ip::V6 => 40,
        };
        let transport = match self.transport {
            Transport::Udp => 8,
            Transport::Tcp => 20,
        };
        14 + 4 * self.tags as usize + ip + transport
    }

    /// The smallest frame on the wire, including the 4 B frame check sequence, with room for the stamp: 64
    /// for UDP over IPv4, 76 for TCP over IPv4, 84 for UDP over IPv6, 96 for TCP over IPv6, and 4 more per
    /// VLAN tag.
    pub const fn minimum_wire_bytes(self) -> usize {
        self.header_bytes() + LEN + FCS_LEN
    }
}

/// The contents of a stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The generator's number of the flow, below [`FLOWS_LIMIT`].
    pub flow: u32,
    /// The packet's number within its flow, from 0, modulo 2^32.
    pub sequence: u32,
    /// The due time, in ns of the monotonic clock, modulo 2^40.
    pub sent: u64,
    /// The instance that it passed ([`instance_mark`]); 0 if none stamped it.
    pub instance: u32,
}

impl Stamp {
    /// The stamp as bytes.
    pub fn to_bytes(&self) -> [u8; LEN] {
        let [_, i0, i1, i2] = self.instance.to_be_bytes();
        let [_, f0, f1, f2] = self.flow.to_be_bytes();
        let [s0, s1, s2, s3] = self.sequence.to_be_bytes();
        let [_, _, _, t0, t1, t2, t3, t4] = self.sent.to_be_bytes();
        let mut bytes = [
            MAGIC[0], MAGIC[1], i0, i1, i2, f0, f1, f2, s0, s1, s2, s3, 0, t0, t1, t2, t3, t4,
        ];
        bytes[12] = check(&bytes);
        bytes
    }

    /// The stamp at the start of `field`; `None` if too short or not a stamp.
    pub fn from_bytes(field: &[u8]) -> Option<Stamp> {
        let b: &[u8; LEN] = field.first_chunk()?;
        if !is_stamp(b) {
            return None;
        }
        Some(Stamp {
            instance: u32::from_be_bytes([0, b[2], b[3], b[4]]),
            flow: u32::from_be_bytes([0, b[5], b[6], b[7]]),
            sequence: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            sent: u64::from_be_bytes([0, 0, 0, b[13], b[14], b[15], b[16], b[17]]),
        })
    }

    /// The time from the due time to `now`, in ns, if both are within 9 minutes; `None` if the stamp is in the
    /// future.
    pub fn age(&self, now_ns: u64) -> Option<u64> {
        let age = now_ns.wrapping_sub(self.sent) & TIME_MASK;
        (age <= TIME_MASK / 2).then_some(age)
    }
}

/// Byte 12 of a stamp: a sum of the bytes that the generator writes, without the instance, which a function writes.
/// The sum of zeros is not zero.
fn check(stamp: &[u8; LEN]) -> u8 {
    let words = stamp[5..12].iter().chain(&stamp[13..]);
    words.fold(0x5a_u8, |sum, byte| sum.rotate_left(3) ^ byte)
}

/// Whether a field is a stamp.
fn is_stamp(field: &[u8; LEN]) -> bool {
    field[..2] == MAGIC && field[12] == check(field)
}

/// A time truncated to the stamp's 40 bits.
pub const fn truncated_time(ns: u64) -> u64 {
    ns & TIME_MASK
}

/// An instance id in a payload stamp: the id up to 2^24 - 1, then wrapping to 1. Never 0.
pub const fn instance_mark(id: u32) -> u32 {
    match id {
        0 => 0,
        id => (id - 1) % ((1 << 24) - 1) + 1,
    }
}

/// An instance id in a MAC stamp: the id up to 65535, then wrapping to 1. Never 0.
pub const fn instance_mac_mark(id: u32) -> u16 {
    match id {
        0 => 0,
        id => ((id - 1) % 0xffff + 1) as u16,
    }
}

/// The contents of a MAC stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MacStamp {
    /// The generator's number of the packet, modulo [`MAC_NUMBERS`].
    pub number: u32,
    /// The instance that it passed ([`instance_mac_mark`]); 0 if none stamped it.
    pub instance: u16,
}

impl MacStamp {
    /// The stamp as a MAC address.
    pub fn to_mac(&self) -> [u8; 6] {
        let [i0, i1] = self.instance.to_be_bytes();
        let [_, n0, n1, n2] = (self.number % MAC_NUMBERS).to_be_bytes();
        [
            MAC_MAGIC,
            MAC_MAGIC_NIBBLE << 4 | i0 >> 4,
            i0 << 4 | i1 >> 4,
            i1 << 4 | n0,
            n1,
            n2,
        ]
    }

    /// Decodes a MAC address; `None` if it is not a stamp.
    pub fn from_mac(mac: &[u8]) -> Option<MacStamp> {
        let m: &[u8; 6] = mac.first_chunk()?;
        if m[0] != MAC_MAGIC || m[1] >> 4 != MAC_MAGIC_NIBBLE {
            return None;
        }
        Some(MacStamp {
            instance: u16::from_be_bytes([m[1] << 4 | m[2] >> 4, m[2] << 4 | m[3] >> 4]),
            number: u32::from_be_bytes([0, m[3] & 0xf, m[4], m[5]]),
        })
    }
}

/// Offsets of a frame's transport payload and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    payload: usize,
    checksum: usize,
    transport: Transport,
    /// Over IPv4, UDP may omit the checksum.
    v4: bool,
}

fn be16(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?))
}

/// Locates the transport payload of an Ethernet frame with up to two tags, IPv4 with options or IPv6 with
/// extension headers, and UDP or TCP. `None` for everything else, truncated frames and later fragments.
fn locate(frame: &[u8]) -> Option<Place> {
    let mut at = 12;
    let mut kind = be16(frame, at)?;
    for _ in 0..TAGS_LIMIT {
        if !matches!(kind, 0x8100 | 0x88a8 | 0x9100) {
            break;
        }
        at += 4;
        kind = be16(frame, at)?;
    }
    at += 2;
    let first = *frame.get(at)?;
    let (protocol, transport_at, v4) = match (kind, first >> 4) {
        (0x0800, 4) => {
            let header = usize::from(first & 0xf) * 4;
            if header < 20 || be16(frame, at + 6)? & 0x1fff != 0 {
                return None;
            }
            (*frame.get(at + 9)?, at + header, true)
        }
        (0x86dd, 6) => {
            let mut next = *frame.get(at + 6)?;
            let mut at = at + 40;
            for _ in 0..EXTENSIONS_LIMIT {
                match next {
                    0 | 43 | 60 => {
                        next = *frame.get(at)?;
                        at += 8 + 8 * usize::from(*frame.get(at + 1)?);
                    }
                    44 => {
                        if be16(frame, at + 2)? & 0xfff8 != 0 {
                            return None;
                        }
                        next = *frame.get(at)?;
                        at += 8;
                    }
                    _ => break,
                }
            }
            (next, at, false)
        }
        _ => return None,
    };
    match protocol {
        17 => Some(Place {
            payload: transport_at + 8,
            checksum: transport_at + 6,
            transport: Transport::Udp,
            v4,
        }),
        6 => {
            let header = usize::from(*frame.get(transport_at + 12)? >> 4) * 4;
            (header >= 20).then_some(Place {
                payload: transport_at + header,
                checksum: transport_at + 16,
                transport: Transport::Tcp,
                v4,
            })
        }
        _ => None,
    }
}

/// The payload stamp of a frame, if any.
pub fn read(frame: &[u8]) -> Option<Stamp> {
    let place = locate(frame)?;
    Stamp::from_bytes(frame.get(place.payload..)?)
}

/// The MAC stamp of a frame, if any: in the source MAC, or in the destination MAC after a swap.
pub fn read_mac(frame: &[u8]) -> Option<MacStamp> {
    MacStamp::from_mac(frame.get(6..12)?).or_else(|| MacStamp::from_mac(&frame[..6]))
}

/// Writes an instance id into a frame's stamp, replacing an earlier one, and updates the UDP or TCP checksum
/// incrementally (RFC 1624), so that a wrong checksum stays wrong. The source MAC decides whether it is written there,
/// into the payload, or nowhere. Returns whether there was a stamp; a frame without one is unchanged.
pub fn stamp_instance(frame: &mut [u8], id: u32) -> bool {
    stamp_mac(frame, id).is_some() || stamp_payload(frame, id).is_some()
}

fn stamp_mac(frame: &mut [u8], id: u32) -> Option<()> {
    let mac = frame.get_mut(6..12)?;
    let mut stamp = MacStamp::from_mac(mac)?;
    stamp.instance = instance_mac_mark(id);
    mac.copy_from_slice(&stamp.to_mac());
    Some(())
}

fn stamp_payload(frame: &mut [u8], id: u32) -> Option<()> {
    if frame.get(6..12)? != GENERATED_MAC {
        return None;
    }
    let place = locate(frame)?;
    let old_checksum = be16(frame, place.checksum)?;
    let field: &mut [u8; LEN] = frame.get_mut(place.payload..)?.first_chunk_mut()?;
    if !is_stamp(field) {
        return None;
    }
    // The stamp starts at an even offset from the transport header, so the instance is the 16-bit word at 2
    // and the upper half of the one at 4.
    let word = |field: &[u8; LEN], at: usize| u16::from_be_bytes([field[at], field[at + 1]]);
    let before = [word(field, 2), word(field, 4)];
    field[2..5].copy_from_slice(&instance_mark(id).to_be_bytes()[1..]);
    let after = [word(field, 2), word(field, 4)];
    let no_checksum = place.transport == Transport::Udp && place.v4 && old_checksum == 0;
    if !no_checksum {
        let mut sum = u32::from(!old_checksum);
        for (old, new) in before.into_iter().zip(after) {
            sum += u32::from(!old) + u32::from(new);
        }
        let mut checksum = !fold(sum);
        if checksum == 0 && place.transport == Transport::Udp {
            checksum = 0xffff;
        }
        frame[place.checksum..place.checksum + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    Some(())
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    /// A frame of that format with `payload`; checksums by etherparse.
    fn frame(form: Form, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let ethernet = PacketBuilder::ethernet2(GENERATED_MAC, [2; 6]);
        macro_rules! finish {
            ($b:expr) => {
                match form.transport {
                    Transport::Udp => $b.udp(1000, 53).write(&mut out, payload),
                    Transport::Tcp => $b.tcp(1000, 80, 7, 1024).write(&mut out, payload),
                }
            };
        }
        macro_rules! ip {
            ($b:expr) => {
                match form.ip {
                    Ip::V4 => finish!($b.ipv4([10, 0, 0, 1], [10, 1, 0, 1], 64)),
                    Ip::V6 => finish!($b.ipv6([1; 16], [2; 16], 64)),
                }
            };
        }
        match form.tags {
            0 => ip!(ethernet),
            1 => ip!(ethernet.single_vlan(7.try_into().unwrap())),
            _ => ip!(ethernet.double_vlan(3.try_into().unwrap(), 4.try_into().unwrap())),
        }
        .unwrap();
        out
    }

    /// Whether the transport checksum of `frame` is valid, by etherparse.
    fn checksum_is_right(frame: &[u8]) -> bool {
        let packet = etherparse::SlicedPacket::from_ethernet(frame).unwrap();
        match (packet.net.unwrap(), packet.transport.unwrap()) {
            (etherparse::NetSlice::Ipv4(ip), etherparse::TransportSlice::Udp(udp)) => {
                udp.to_header()
                    .calc_checksum_ipv4(&ip.header().to_header(), udp.payload())
                    .unwrap()
                    == udp.checksum()
            }
            (etherparse::NetSlice::Ipv4(ip), etherparse::TransportSlice::Tcp(tcp)) => {
                tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination())
                    .unwrap()
                    == tcp.checksum()
            }
            (etherparse::NetSlice::Ipv6(ip), etherparse::TransportSlice::Udp(udp)) => {
                udp.to_header()
                    .calc_checksum_ipv6(&ip.header().to_header(), udp.payload())
                    .unwrap()
                    == udp.checksum()
            }
            (etherparse::NetSlice::Ipv6(ip), etherparse::TransportSlice::Tcp(tcp)) => {
                tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination())
                    .unwrap()
                    == tcp.checksum()
            }
            _ => false,
        }
    }

    fn forms() -> impl Strategy<Value = Form> {
        (
            prop_oneof![Just(Ip::V4), Just(Ip::V6)],
            prop_oneof![Just(Transport::Udp), Just(Transport::Tcp)],
            0u8..3,
        )
            .prop_map(|(ip, transport, tags)| Form { ip, transport, tags })
    }

    #[test]
    fn minimum_sizes_are_the_documented_ones() {
        let minimum = |ip, transport, tags| Form { ip, transport, tags }.minimum_wire_bytes();
        assert_eq!(minimum(Ip::V4, Transport::Udp, 0), 64);
        assert_eq!(minimum(Ip::V4, Transport::Udp, 1), 68);
        assert_eq!(minimum(Ip::V4, Transport::Tcp, 0), 76);
        assert_eq!(minimum(Ip::V6, Transport::Udp, 0), 84);
        assert_eq!(minimum(Ip::V6, Transport::Tcp, 2), 104);
    }

    #[test]
    fn an_instances_mark_is_never_zero() {
        assert_eq!(instance_mark(0), 0);
        assert_eq!(instance_mark((1 << 24) - 1), (1 << 24) - 1);
        assert_eq!(instance_mark(1 << 24), 1);
        assert_eq!(instance_mac_mark(0xffff), 0xffff);
        assert_eq!(instance_mac_mark(0x10000), 1);
    }

    #[test]
    fn a_udp_frame_without_checksum_keeps_none() {
        let form = Form {
            ip: Ip::V4,
            transport: Transport::Udp,
            tags: 0,
        };
        let mut f = frame(form, &Stamp::default().to_bytes());
        f[40..42].fill(0);
        assert!(stamp_instance(&mut f, 3));
        assert_eq!(f[40..42], [0, 0]);
        assert_eq!(read(&f).unwrap().instance, 3);
    }

    #[test]
    fn later_fragments_and_foreign_payloads_are_unchanged() {
        let form = Form {
            ip: Ip::V4,
            transport: Transport::Udp,
            tags: 0,
        };
        let mut fragment = frame(form, &Stamp::default().to_bytes());
        fragment[21] = 1;
        let mut foreign = frame(form, &[9; 40]);
        for f in [&mut fragment, &mut foreign] {
            let before = f.clone();
            assert!(!stamp_instance(f, 3));
            assert_eq!(*f, before);
        }
    }

    /// Millions of payloads, half of them with a valid stamp of another run: as replayed frames and as foreign ones.
    #[test]
    fn no_payload_of_a_replayed_or_foreign_frame_is_written() {
        const FRAMES: u32 = 4_000_000;
        let form = Form {
            ip: Ip::V4,
            transport: Transport::Udp,
            tags: 0,
        };
        let mut f = frame(form, &[0; LEN + 8]);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            // xorshift64
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for number in 0..FRAMES {
            for chunk in f[42..].chunks_mut(8) {
                let len = chunk.len();
                chunk.copy_from_slice(&next().to_le_bytes()[..len]);
            }
            if number % 2 == 0 {
                let stamp = Stamp {
                    flow: next() as u32 % FLOWS_LIMIT,
                    sequence: next() as u32,
                    sent: truncated_time(next()),
                    instance: number % 7,
                };
                f[42..42 + LEN].copy_from_slice(&stamp.to_bytes());
            }
            let is_replayed = number % 4 < 2;
            let mac = match is_replayed {
                true => MacStamp {
                    number: number % MAC_NUMBERS,
                    instance: 0,
                }
                .to_mac(),
                false => [2, 0, 0, 0, 0, 1],
            };
            f[6..12].copy_from_slice(&mac);
            let before = f.clone();
            assert_eq!(stamp_instance(&mut f, 3), is_replayed, "frame {number}");
            assert_eq!(f[12..], before[12..], "frame {number}");
        }
        f[6..12].copy_from_slice(&GENERATED_MAC);
        f[42..42 + LEN].copy_from_slice(&Stamp::default().to_bytes());
        assert!(stamp_instance(&mut f, 3), "the generator's own is written");
    }

    #[test]
    fn age_is_none_for_the_future_and_survives_the_wrap() {
        let s = Stamp {
            sent: TIME_MASK - 10,
            ..Stamp::default()
        };
        assert_eq!(s.age(TIME_MASK + 11), Some(21));
        assert_eq!(s.age(TIME_MASK - 11), None);
    }

    proptest! {
        #[test]
        fn stamp_roundtrips(flow in 0..FLOWS_LIMIT, sequence: u32, sent in 0..=TIME_MASK, instance in 0u32..1 << 24) {
            let s = Stamp { flow, sequence, sent, instance };
            prop_assert_eq!(Stamp::from_bytes(&s.to_bytes()), Some(s));
        }

        #[test]
        fn mac_stamp_roundtrips(number in 0..MAC_NUMBERS, instance: u16) {
            let s = MacStamp { number, instance };
            let mac = s.to_mac();
            prop_assert_eq!(mac[0] & 3, 2, "local and unicast");
            prop_assert_eq!(GENERATED_MAC[0] & 3, 2, "local and unicast");
            prop_assert_eq!(MacStamp::from_mac(&GENERATED_MAC), None);
            prop_assert_eq!(MacStamp::from_mac(&mac), Some(s));
        }

        #[test]
        fn stamping_changes_the_instance_and_keeps_the_checksum(
            form in forms(), flow in 0..FLOWS_LIMIT, sequence: u32, sent in 0..=TIME_MASK,
            ids in prop::collection::vec(any::<u32>(), 1..4), tail in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let s = Stamp { flow, sequence, sent, instance: 0 };
            let mut payload = s.to_bytes().to_vec();
            payload.extend(&tail);
            let mut f = frame(form, &payload);
            prop_assert_eq!(f.len() - tail.len() + FCS_LEN, form.minimum_wire_bytes());
            prop_assert_eq!(read(&f), Some(s));
            for id in ids {
                prop_assert!(stamp_instance(&mut f, id));
                prop_assert_eq!(read(&f), Some(Stamp { instance: instance_mark(id), ..s }));
                prop_assert!(checksum_is_right(&f));
            }
            prop_assert_eq!(&f[form.header_bytes() + LEN..], &tail[..]);
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120), id: u32) {
            read(&bytes);
            read_mac(&bytes);
            let before = bytes.clone();
            if !stamp_instance(&mut bytes, id) {
                prop_assert_eq!(before, bytes);
            }
        }

        #[test]
        fn a_mac_stamp_receives_the_instance(number in 0..MAC_NUMBERS, id in 1u32.., rest in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut f = vec![2u8; 6];
            f.extend(MacStamp { number, instance: 0 }.to_mac());
            f.extend([0x88, 0x64]);
            f.extend(&rest);
            prop_assert!(stamp_instance(&mut f, id));
            prop_assert_eq!(read_mac(&f), Some(MacStamp { number, instance: instance_mac_mark(id) }));
            prop_assert_eq!(&f[14..], &rest[..]);
        }
    }
}
