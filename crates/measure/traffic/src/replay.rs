//! A capture in memory, with its packets sorted into flows.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use model::{Direction, FlowKey};
use packet::Parsed;
use packet::capture::CaptureReader;

use crate::Error;

/// The shortest frame with a source MAC for the stamp and an EtherType.
const FRAME_BYTES_MIN: usize = 14;

/// The kind of flow of a replayed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReplayFlow {
    /// An IP flow.
    Flow(FlowKey),
    /// A packet without an IP flow, by EtherType.
    Other(u16),
    /// A packet that a switch drops as malformed.
    Malformed,
}

impl std::fmt::Display for ReplayFlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReplayFlow::Flow(key) => key.tuple(Direction::Forward).fmt(f),
            ReplayFlow::Other(ethertype) => write!(f, "ethertype {ethertype:#06x}"),
            ReplayFlow::Malformed => f.write_str("malformed"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ReplayPacket {
    /// Time since the capture's first packet, in ns. Never decreases.
    pub(crate) offset_ns: u64,
    /// The range of its bytes in the file.
    pub(crate) bytes: Range<usize>,
    /// The stream (flow and direction) within the capture, from 0: twice the flow, plus 1 for packets of the
    /// responder.
    pub(crate) stream: u32,
    /// Whether it opens a TCP connection between two ends whose previous connection was reset or has begun to end. The
    /// previous connection of the first packets is that of the preceding repetition.
    pub(crate) opens_again: bool,
}

/// A capture that is ready to be sent.
#[derive(Debug)]
pub(crate) struct Replay {
    bytes: Vec<u8>,
    pub(crate) packets: Vec<ReplayPacket>,
    pub(crate) flows: Vec<ReplayFlow>,
    /// Frames too short to be sent.
    pub(crate) skipped: u64,
}

/// Whether each packet opens a TCP connection after another one between the same ends: a SYN of either end after a RST
/// or FIN of either end. Each repetition continues the previous one, so the result is taken from the second.
fn openings(parsed: &[Parsed]) -> Vec<bool> {
    let mut ended: HashSet<FlowKey> = HashSet::new();
    let mut take = |parsed: &Parsed| match parsed {
        Parsed::Flow(info) if info.protocol == model::protocol::TCP && !info.is_icmp_error => {
            let flags = info.tcp_flags;
            if flags.rst() || flags.fin() {
                ended.insert(info.key);
                return false;
            }
            flags.syn() && !flags.ack() && ended.remove(&info.key)
        }
        _ => false,
    };
    parsed.iter().for_each(|parsed| {
        take(parsed);
    });
    parsed.iter().map(take).collect()
}

impl Replay {
    pub(crate) fn load(path: &Path) -> Result<Replay, Error> {
        let bytes = std::fs::read(path).map_err(|source| Error::Read {
            path: path.into(),
            source,
        })?;
        let failed = |source| Error::Capture {
            path: path.into(),
            source,
        };
        let base = bytes.as_ptr().addr();
        let mut frames = Vec::new();
        let mut skipped = 0;
        for captured in CaptureReader::new(&bytes).map_err(failed)? {
            let captured = captured.map_err(failed)?;
            if captured.frame.len() < FRAME_BYTES_MIN {
                skipped += 1;
                continue;
            }
            let start = captured.frame.as_ptr().addr() - base;
            frames.push((captured.timestamp_ns, start..start + captured.frame.len()));
        }
        if frames.is_empty() {
            return Err(Error::CaptureFrames {
                path: path.into(),
                reason: "no frame of at least 14 bytes",
            });
        }
        let parsed: Vec<Parsed> = frames
            .iter()
            .map(|(_, range)| packet::parse(&bytes[range.clone()]))
            .collect();
        // Later fragments have no ports. They belong to the flow of their datagram's first fragment, which may come
        // later.
        let datagrams: HashMap<_, FlowKey> = parsed
            .iter()
            .filter_map(|parsed| match parsed {
                Parsed::Fragment(f) if f.is_first() => Some((datagram(f), f.info.key)),
                _ => None,
            })
            .collect();
        let mut replay = Replay {
            packets: Vec::new(),
            flows: Vec::new(),
            skipped,
            bytes: Vec::new(),
        };
        let mut known: HashMap<ReplayFlow, (u32, Direction)> = HashMap::new();
        let start_ns = frames[0].0;
        let mut latest = 0;
        let opens_again = openings(&parsed);
        for (((timestamp, range), parsed), opens_again) in frames.into_iter().zip(parsed).zip(opens_again) {
            let (flow, direction) = match parsed {
                Parsed::Flow(info) => (ReplayFlow::Flow(info.key), info.direction),
                Parsed::Fragment(f) => {
                    let key = datagrams.get(&datagram(&f)).copied().unwrap_or(f.info.key);
                    (ReplayFlow::Flow(key), f.info.direction)
                }
                Parsed::Other { ethertype } => (ReplayFlow::Other(ethertype), Direction::Forward),
                Parsed::Invalid(_) => (ReplayFlow::Malformed, Direction::Forward),
            };
            let (index, opener) = *known.entry(flow).or_insert_with(|| {
                replay.flows.push(flow);
                (replay.flows.len() as u32 - 1, direction)
            });
            latest = latest.max(timestamp.saturating_sub(start_ns));
            replay.packets.push(ReplayPacket {
                offset_ns: latest,
                bytes: range,
                stream: 2 * index + u32::from(direction != opener),
                opens_again,
            });
        }
        replay.bytes = bytes;
        Ok(replay)
    }

    pub(crate) fn frame(&self, index: u32) -> &[u8] {
        &self.bytes[self.packets[index as usize].bytes.clone()]
    }

    pub(crate) fn longest_frame(&self) -> usize {
        self.packets.iter().map(|p| p.bytes.len()).max().unwrap_or(0)
    }

    /// The duration of one repetition, including one mean gap after the last packet.
    pub(crate) fn round_ns(&self) -> u64 {
        let span = self.packets.last().map_or(0, |p| p.offset_ns);
        span + (span / self.packets.len() as u64).max(1000)
    }
}

/// The fields that identify a fragment's datagram.
fn datagram(f: &packet::Fragment) -> (FlowKey, u32, u8) {
    let mut tuple = f.info.key.tuple(f.info.direction);
    tuple.src_port = 0;
    tuple.dst_port = 0;
    tuple.protocol = 0;
    (FlowKey::new(&tuple).0, f.identification, f.protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_are_sorted_into_flows() {
        let Some(data) = real_parts::data() else { return };
        let replay = Replay::load(&data.join("opennetvm_64B_download.pcap")).unwrap();
        assert_eq!(replay.packets.len(), 14_328);
        assert!(replay.packets.is_sorted_by_key(|p| p.offset_ns));
        let dns = Replay::load(&data.join("trex/dns.pcap")).unwrap();
        assert_eq!((dns.packets.len(), dns.flows.len()), (2, 1));
        assert_eq!(
            dns.packets.iter().map(|p| p.stream).collect::<Vec<_>>(),
            [0, 1],
            "a query and its answer"
        );
        assert!(dns.flows[0].to_string().starts_with("udp "));
    }

    /// A SYN after a RST or FIN, in a capture of real ones.
    #[test]
    fn connections_after_refused_and_ended_ones_are_new() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/captures/refused-connections.pcap"
        );
        let replay = Replay::load(Path::new(path)).unwrap();
        assert_eq!((replay.packets.len(), replay.flows.len()), (301, 9));
        // Also the first of each flow: its last one of the repetition before has ended.
        assert_eq!(replay.packets.iter().filter(|p| p.opens_again).count(), 64);
    }

    #[test]
    fn other_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pcap");
        std::fs::write(&path, b"hello, world, this is no capture").unwrap();
        assert!(matches!(Replay::load(&path), Err(Error::Capture { .. })));
        std::fs::write(&path, packet::capture::CaptureWriter::new().into_bytes()).unwrap();
        assert!(matches!(Replay::load(&path), Err(Error::CaptureFrames { .. })));
    }
}
