//! Frames of all kinds, most of them broken: what the programs make of each is compared with inco's own parser.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData};
use model::{FlowKey, Slot, protocol};
use packet::{Fragment, PacketInfo, Parsed};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use shared_memory::Mapping;
use switch::Switch;

use crate::bed::{Bed, available};
use crate::frames::{
    ACK, FIN, RST, SYN, fix_ip_checksum, fragment, icmp_error, icmp6_error, tagged, tcp, udp, with_macs,
};

const VIPS: [&str; 2] = ["10.0.0.100", "2001:db8::100"];
const PORTS: [u16; 2] = [80, 443];
/// How long the kernel may have a frame before it is counted.
const COUNTED_WITHIN: Duration = Duration::from_millis(200);
/// Frames that are sent.
const FRAMES: usize = 12_000;

/// What the programs have counted, of all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    dropped: u64,
    to_host: u64,
    answered: u64,
    offered: u64,
    /// Flows that have begun.
    started: u64,
    to: [u64; 3],
}

impl Counted {
    fn since(self, before: Counted) -> Counted {
        Counted {
            dropped: self.dropped - before.dropped,
            to_host: self.to_host - before.to_host,
            answered: self.answered - before.answered,
            offered: self.offered - before.offered,
            started: self.started - before.started,
            to: [0, 1, 2].map(|at| self.to[at] - before.to[at]),
        }
    }

    fn delivered(&self) -> u64 {
        self.to.iter().sum()
    }

    /// Where the frames went. Each went one way.
    fn ways(&self) -> u64 {
        self.delivered() + self.dropped + self.to_host + self.answered
    }

    fn slot(&self) -> Option<Slot> {
        (0..)
            .map(Slot)
            .zip(self.to)
            .find(|(_, count)| *count > 0)
            .map(|(slot, _)| slot)
    }
}

/// The programs' memory.
struct Memory {
    counts: Mapping,
    row_words: usize,
    rows: usize,
    v4: HashMap<MapData, [u8; 16], [u8; 80]>,
    v6: HashMap<MapData, [u8; 40], [u8; 80]>,
}

impl Memory {
    fn of(name: &str) -> Memory {
        let pinned = |map: &str| MapData::from_pin(format!("/sys/fs/bpf/inco/{name}/{map}")).unwrap();
        let data = pinned("counts");
        let info = data.info().unwrap();
        let (row, rows) = (info.value_size() as usize, info.max_entries() as usize);
        let bytes = (row * rows).next_multiple_of(shared_memory::PAGE);
        Memory {
            counts: Mapping::new(data.fd().as_fd(), bytes, false).unwrap(),
            row_words: row / 8,
            rows,
            v4: HashMap::try_from(Map::HashMap(pinned("flows_v4"))).unwrap(),
            v6: HashMap::try_from(Map::HashMap(pinned("flows_v6"))).unwrap(),
        }
    }

    /// `struct counts`, by words: see the reference of the layout.
    fn counted(&self) -> Counted {
        const UPLINK: usize = 320 / 8;
        const SERVICE: usize = UPLINK + 8 * 8;
        const SLOTS: usize = SERVICE + 64 * 8;
        // SAFETY: the mapping has that many words, which programs write.
        let words: &[AtomicU64] = unsafe {
            std::slice::from_raw_parts(self.counts.address().cast().as_ptr(), self.row_words * self.rows)
        };
        let sum = |at: usize| -> u64 {
            let rows = words.chunks_exact(self.row_words);
            rows.map(|row| row[at].load(Ordering::Acquire)).sum()
        };
        Counted {
            dropped: (0..16).map(sum).sum(),
            to_host: sum(UPLINK + 5),
            answered: sum(UPLINK + 6),
            offered: sum(SERVICE),
            started: sum(17) + sum(18),
            to: [0, 1, 2].map(|slot| sum(SLOTS + 16 * slot)),
        }
    }

    /// The slot to which a flow is pinned, and the state of its connection.
    fn pin(&self, key: &FlowKey) -> Option<(Slot, u8)> {
        let mut bytes = Vec::new();
        let value = match key {
            FlowKey::V4(k) => {
                bytes.extend([k.a, k.b].concat());
                bytes.extend([k.a_port, k.b_port, k.vlan].map(u16::to_ne_bytes).concat());
                bytes.extend([k.protocol, 0]);
                self.v4.get(&bytes.try_into().unwrap(), 0).ok()
            }
            FlowKey::V6(k) => {
                bytes.extend([k.a, k.b].concat());
                bytes.extend([k.a_port, k.b_port, k.vlan].map(u16::to_ne_bytes).concat());
                bytes.extend([k.protocol, 0]);
                self.v6.get(&bytes.try_into().unwrap(), 0).ok()
            }
        };
        value.map(|value| (Slot(u16::from_ne_bytes([value[0], value[1]]) & 0x3ff), value[76]))
    }

    fn flows(&self) -> usize {
        self.v4.keys().count() + self.v6.keys().count()
    }
}

/// Whether a frame ends within a tag: the kernel itself drops it.
fn is_cut(frame: &[u8]) -> bool {
    [[0x81, 0x00], [0x88, 0xa8]].contains(&[frame[12], frame[13]]) && frame.len() < 20
}

/// Whether a packet is one to the service.
fn is_ours(info: &PacketInfo) -> bool {
    let tuple = info.key.tuple(info.direction);
    VIPS.iter().any(|vip| tuple.dst.to_string() == *vip)
        && PORTS.contains(&tuple.dst_port)
        && [protocol::TCP, protocol::UDP].contains(&tuple.protocol)
        && tuple.vlan == 0
}

/// What the next frames are judged by.
#[derive(Default)]
struct Judge {
    /// Flows of datagrams of which a first fragment has come.
    datagrams: BTreeMap<(FlowKey, u32), FlowKey>,
    seen: BTreeMap<&'static str, u32>,
}

/// What is known before a frame is sent.
enum Known {
    /// The receiver drops it, if the programs do not.
    Invalid,
    /// A later fragment: of the first one, nothing is known for sure.
    Unknown,
    /// Its flow, and where that was pinned.
    Flow(PacketInfo, Option<(Slot, u8)>),
}

/// The state of a connection that is over.
const CLOSED: u8 = 5;

/// The key of all fragments of a datagram: that of the first one, without ports.
fn without_ports(key: FlowKey) -> FlowKey {
    match key {
        FlowKey::V4(mut k) => {
            (k.a_port, k.b_port) = (0, 0);
            FlowKey::V4(k)
        }
        FlowKey::V6(mut k) => {
            (k.a_port, k.b_port) = (0, 0);
            FlowKey::V6(k)
        }
    }
}

impl Judge {
    /// Looks at a frame before it is sent.
    fn look(&mut self, frame: &[u8], memory: &Memory) -> Known {
        // The programs leave the header's checksum to the receiver.
        let mut frame = frame.to_vec();
        if frame.get(12..14) == Some(&[8, 0]) && frame.len() > 26 {
            frame[24..26].fill(0);
        }
        let (info, flow) = match packet::parse(&frame) {
            Parsed::Flow(info) => (info, Some(info.key)),
            Parsed::Fragment(of) => (of.info, self.flow_of(&of)),
            Parsed::Other { .. } | Parsed::Invalid(_) => {
                // The programs may have taken it for the first fragment of a datagram.
                self.datagrams.clear();
                return Known::Invalid;
            }
        };
        match flow {
            Some(key) => Known::Flow(PacketInfo { key, ..info }, memory.pin(&key)),
            None => Known::Unknown,
        }
    }

    /// Says what is wrong with what became of it.
    fn judge(&mut self, frame: &[u8], known: Known, counted: Counted, memory: &Memory) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {counted:?} {:?}", packet::parse(frame)));
        let mut seen = |kind| *self.seen.entry(kind).or_default() += 1;
        if counted.ways() != u64::from(!is_cut(frame)) || counted.offered < counted.delivered() {
            return wrong("it is counted otherwise than once");
        }
        let slot = counted.slot();
        if slot == Some(Slot(2)) {
            return wrong("there is no such instance");
        }
        let (info, before) = match known {
            Known::Invalid => {
                seen("invalid");
                return Ok(());
            }
            Known::Unknown => {
                seen("later fragment");
                return Ok(());
            }
            Known::Flow(info, before) => (info, before),
        };
        let tags = frame.get(12..14) == Some(&[0x81, 0]) && frame.get(16..18).is_some_and(|of| of[0] == 0x81);
        if !is_ours(&info) || tags {
            seen("not ours");
            return if slot.is_none() {
                Ok(())
            } else {
                wrong("it is not the service's")
            };
        }
        let Some(slot) = slot else {
            return wrong("no instance got it");
        };
        if info.is_icmp_error {
            seen("error");
            return match before {
                Some((before, _)) if before != slot => wrong("an error is not where its flow is"),
                _ if counted.started != 0 => wrong("an error has made a flow"),
                _ => Ok(()),
            };
        }
        if memory.pin(&info.key).map(|(pin, _)| pin) != Some(slot) {
            return wrong("it is not where its flow is pinned");
        }
        let begins = info.protocol == protocol::TCP && info.tcp_flags.syn() && !info.tcp_flags.ack();
        let may_move = |state: u8| begins && state == CLOSED;
        if before.is_some_and(|(before, state)| before != slot && !may_move(state)) {
            return wrong("its flow has moved");
        }
        seen(if before.is_some() { "known" } else { "new" });
        Ok(())
    }

    /// The flow of a fragment, if it is known.
    fn flow_of(&mut self, of: &Fragment) -> Option<FlowKey> {
        let datagram = (without_ports(of.info.key), of.identification);
        if of.is_first() {
            self.datagrams.insert(datagram, of.info.key);
        }
        self.datagrams.get(&datagram).copied()
    }
}

/// Frames that the fuzzer has found.
fn found() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (_, input) in real_parts::fuzz_inputs("packets") {
        // Each frame has its length before it.
        let mut rest = &input[..];
        while let Some((&length, tail)) = rest.split_first() {
            let (frame, tail) = tail.split_at(tail.len().min(usize::from(length)));
            frames.push(frame.to_vec());
            rest = tail;
        }
    }
    frames.retain(|frame| frame.len() >= 14);
    frames
}

/// Some frames of each kind that is for the service.
fn ours() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (client, server) in [
        ("198.51.100.7:4000", "10.0.0.100:80"),
        ("[2001:db8:1::7]:4000", "[2001:db8::100]:443"),
    ] {
        for flags in [SYN, ACK, FIN | ACK, RST, SYN | ACK] {
            seeds.push(tcp(client, server, flags));
            seeds.push(tagged(tcp(client, server, flags), 0));
        }
        seeds.push(udp(client, server, &[7; 40]));
        seeds.push(tagged(udp(client, server, b"tagged"), 42));
        seeds.push(tagged(tagged(udp(client, server, b"twice"), 42), 43));
        seeds.push(udp(server, client, b"from the service's own address"));
    }
    let (client, server) = ("198.51.100.9:4000", "10.0.0.100:80");
    seeds.push(fragment(client, server, 5, 0, true, &[1; 16]));
    seeds.push(fragment(client, server, 5, 24, false, &[2; 8]));
    seeds.push(icmp_error(
        "203.0.113.1",
        VIPS[0],
        &udp(server, client, b"quoted"),
    ));
    seeds.push(icmp_error("203.0.113.1", VIPS[0], &tcp(server, client, ACK)));
    seeds.push(icmp6_error(
        "2001:db8:9::1",
        VIPS[1],
        &udp("[2001:db8::100]:443", "[2001:db8:1::7]:4000", b"quoted"),
    ));
    // As many extension headers as are followed, and one more.
    for count in [8, 9] {
        let mut frame = udp("[2001:db8:1::7]:4000", "[2001:db8::100]:443", b"far down");
        (0..count).for_each(|_| Change::Extension(60, 0, [0; 6]).apply(&mut frame));
        seeds.push(frame);
    }
    seeds
}

/// How a frame is changed.
#[derive(Clone, Debug)]
enum Change {
    /// A byte, wherever.
    Byte(Index, u8),
    /// A byte of the headers.
    Header(u8, u8),
    CutAt(Index),
    Longer(u8),
    Tag(u16),
    /// IPv4 options, in words; an IPv6 extension header of that kind and length.
    Options(u8, Vec<u8>),
    Extension(u8, u8, [u8; 6]),
    /// The fragment field of IPv4.
    Fragment(u16),
    /// Another client, by its last byte, so that flows are met again.
    Client(u8),
}

fn change() -> impl Strategy<Value = Change> {
    let kinds = prop_oneof![
        Just(0_u8),
        Just(43),
        Just(60),
        Just(44),
        Just(51),
        Just(135),
        any::<u8>()
    ];
    prop_oneof![
        2 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        2 => (12_u8..60, any::<u8>()).prop_map(|(at, byte)| Change::Header(at, byte)),
        1 => any::<Index>().prop_map(Change::CutAt),
        1 => any::<u8>().prop_map(Change::Longer),
        1 => prop_oneof![Just(0_u16), any::<u16>()].prop_map(Change::Tag),
        2 => (1_u8..=10, prop::collection::vec(any::<u8>(), 40)).prop_map(|(n, bytes)| Change::Options(n, bytes)),
        4 => (kinds, 0_u8..3, any::<[u8; 6]>()).prop_map(|(kind, n, bytes)| Change::Extension(kind, n, bytes)),
        1 => prop_oneof![Just(0x2000_u16), 0_u16..4, any::<u16>()].prop_map(Change::Fragment),
        4 => (0_u8..32).prop_map(Change::Client),
    ]
}

impl Change {
    fn apply(&self, frame: &mut Vec<u8>) {
        let is_v4 = frame.len() >= 34 && frame[12..14] == [8, 0];
        let is_v6 = frame.len() >= 54 && frame[12..14] == [0x86, 0xdd];
        match self {
            Change::Byte(at, byte) => {
                let at = at.index(frame.len());
                frame[at] = *byte;
            }
            Change::Header(at, byte) => {
                if let Some(to) = frame.get_mut(usize::from(*at)) {
                    *to = *byte;
                }
            }
            Change::CutAt(at) => frame.truncate(at.index(frame.len()).max(14)),
            Change::Longer(by) => frame.resize(frame.len() + usize::from(*by), *by),
            Change::Tag(vlan) => *frame = tagged(std::mem::take(frame), *vlan),
            Change::Options(words, bytes) if is_v4 && frame[14] == 0x45 => {
                let options = &bytes[..usize::from(*words) * 4];
                frame.splice(34..34, options.iter().copied());
                frame[14] = 0x45 + words;
                let total = u16::from_be_bytes([frame[16], frame[17]]).wrapping_add(options.len() as u16);
                frame[16..18].copy_from_slice(&total.to_be_bytes());
            }
            Change::Extension(kind, length, bytes) if is_v6 => {
                let mut header = vec![frame[20], *length];
                header.extend(bytes);
                let more = match kind {
                    44 => 0,
                    // It counts words of four bytes, of which the first two are not counted.
                    51 => usize::from(*length) * 4,
                    _ => usize::from(*length) * 8,
                };
                header.resize(8 + more, 0);
                frame[20] = *kind;
                let payload = u16::from_be_bytes([frame[18], frame[19]]).wrapping_add(header.len() as u16);
                frame[18..20].copy_from_slice(&payload.to_be_bytes());
                frame.splice(54..54, header);
            }
            Change::Fragment(field) if is_v4 => frame[20..22].copy_from_slice(&field.to_be_bytes()),
            Change::Client(last) if is_v4 => frame[29] = *last,
            Change::Client(last) if is_v6 => frame[37] = *last,
            _ => {}
        }
    }
}

/// No frame leads to an instance that is not its flow's, or is counted twice or not at all.
#[test]
fn no_frame_goes_the_wrong_way() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    // What is left to this machine is of no interest to it.
    bed.world.host.ip("link set up0 arp off");
    let memory = Memory::of(&bed.world.config.name);
    let (ours, found) = (ours(), found());
    let mut judge = Judge::default();
    let mut runner = TestRunner::deterministic();
    let frames = (
        any::<bool>(),
        any::<Index>(),
        prop::collection::vec(change(), 0..5),
        any::<bool>(),
    );
    let mut wrong: BTreeMap<String, u32> = BTreeMap::new();
    let mut before = memory.counted();
    let as_they_are: Vec<&Vec<u8>> = found.iter().chain(&ours).collect();
    for number in 0..as_they_are.len() + FRAMES {
        let mut frame = match as_they_are.get(number) {
            Some(seed) => seed.to_vec(),
            None => {
                let (is_ours, seed, changes, fixes) = frames.new_tree(&mut runner).unwrap().current();
                let mut frame = seed.get(if is_ours { &ours } else { &found }).clone();
                changes.iter().for_each(|change| change.apply(&mut frame));
                if fixes && frame.len() >= 34 && frame[12..15] == [8, 0, 0x45] {
                    fix_ip_checksum(&mut frame);
                }
                frame
            }
        };
        frame = with_macs(frame);
        frame.truncate(1514);
        let known = judge.look(&frame, &memory);
        bed.world.wire.send(&frame);
        let mut counted = memory.counted().since(before);
        let began = std::time::Instant::now();
        while counted.ways() == 0 && !is_cut(&frame) && began.elapsed() < COUNTED_WITHIN {
            std::thread::yield_now();
            counted = memory.counted().since(before);
        }
        before = memory.counted();
        if let Err(what) = judge.judge(&frame, known, counted, &memory) {
            let of_kind = wrong
                .entry(what.split(':').next().unwrap_or_default().to_owned())
                .or_default();
            *of_kind += 1;
            if *of_kind <= 3 {
                println!("{what}\n  {frame:02x?}");
            }
        }
    }
    println!("{:?}, {} flows", judge.seen, memory.flows());
    assert!(wrong.is_empty(), "{wrong:?}");
    for kind in ["new", "known", "error", "later fragment", "not ours", "invalid"] {
        assert!(
            judge.seen.get(kind).is_some_and(|count| *count > 20),
            "{kind}: {:?}",
            judge.seen
        );
    }
    bed.turn();
    let reading = &bed.reading;
    assert_eq!(
        reading.offered() + reading.originated(),
        reading.sent() + reading.delivered() + reading.dropped()
    );
    bed.switch.stop();
}
