//! Compares parse time with etherparse in the same run: `cargo run --release -p packet --example parse_rate`.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use model::FlowKey;
use packet::build::{self, Extension, Frame, Network, Tag};
use packet::{Error, PacketInfo, Parsed, TcpFlags, parse};

/// Rounds over all frames of a kind.
const ROUNDS: u32 = 10_000;
/// Frames per kind. Their ports differ, so that branch predictor and caches see more than one frame.
const FRAMES: u16 = 256;

fn main() -> Result<(), Error> {
    let mut out = io::stdout().lock();
    type Form = (&'static str, fn(u16) -> Result<Vec<u8>, Error>);
    let forms: [Form; 6] = [
        ("IPv4 UDP, 64 B", |port| padded(v4(port, 1).to_vec()?)),
        ("IPv4 TCP, 64 B", |port| {
            let (src, dst) = (([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], 80).into());
            padded(Frame::tcp(src, dst, TcpFlags(TcpFlags::ACK), b"")?.to_vec()?)
        }),
        ("IPv4 UDP in a VLAN", |port| {
            Frame {
                tags: &[Tag::vlan(7)],
                ..v4(port, 18)
            }
            .to_vec()
        }),
        ("IPv6 UDP", |port| v6(port, &[]).to_vec()),
        ("IPv6 UDP, 2 extension headers", |port| {
            const OPTIONS: Extension<'static> = Extension {
                number: 60,
                body: &[1, 4, 0, 0, 0, 0],
            };
            v6(port, &[OPTIONS, OPTIONS]).to_vec()
        }),
        ("IPv4 fragment", |port| {
            let fragments = build::fragment(&v4(port, 1400).to_vec()?, 1000, port.into())?;
            Ok(fragments.into_iter().next_back().unwrap_or_default())
        }),
    ];
    let _ = writeln!(
        out,
        "{:32} {:>8} {:>8} {:>12}",
        "ns per frame", "used", "stored", "etherparse"
    );
    for (name, frame) in forms {
        let frames: Vec<Vec<u8>> = (0..FRAMES).map(|i| frame(1000 + i)).collect::<Result<_, _>>()?;
        let ours = ns_per_frame(&frames, |frame| {
            black_box(parse(frame));
        });
        let mut key_bytes = 0;
        let ours_used = ns_per_frame(&frames, |frame| {
            if let Parsed::Flow(PacketInfo {
                key: FlowKey::V4(key),
                direction,
                frame_len,
                ..
            }) = parse(frame)
            {
                key_bytes += u64::from(key.a_port) + u64::from(key.b_port) + u64::from(key.b[3]);
                key_bytes += u64::from(frame_len) + direction.index() as u64;
            }
        });
        black_box(key_bytes);
        let theirs = ns_per_frame(&frames, |frame| {
            let _ = black_box(etherparse::SlicedPacket::from_ethernet(frame));
        });
        let _ = writeln!(out, "{name:32} {ours_used:>8.1} {ours:>8.1} {theirs:>12.1}");
    }
    Ok(())
}

fn v4(port: u16, len: usize) -> Frame<'static> {
    let network = Network::V4 {
        src: [10, 0, 0, 1],
        dst: [10, 0, 0, 2],
        dscp: 0,
        ttl: 64,
        identification: 0,
        options: &[],
    };
    let transport = build::Transport::Udp {
        src_port: port,
        dst_port: 80,
    };
    const DATA: &[u8] = &[0; 1400];
    Frame::new(network, transport, &DATA[..len])
}

fn v6(port: u16, extensions: &'static [Extension<'static>]) -> Frame<'static> {
    let network = Network::V6 {
        src: [0x20; 16],
        dst: [0x21; 16],
        dscp: 0,
        hop_limit: 64,
        extensions,
    };
    let transport = build::Transport::Udp {
        src_port: port,
        dst_port: 80,
    };
    Frame::new(network, transport, &[0; 18])
}

fn padded(mut frame: Vec<u8>) -> Result<Vec<u8>, Error> {
    frame.resize(60, 0);
    Ok(frame)
}

/// The best of all rounds. A round takes a few microseconds, so the best one was not preempted.
fn ns_per_frame(frames: &[Vec<u8>], mut work: impl FnMut(&[u8])) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for frame in frames {
            work(black_box(frame));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / frames.len() as f64);
    }
    best
}
