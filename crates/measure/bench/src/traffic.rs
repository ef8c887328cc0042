//! The packets of a bench: flows with different addresses and ports, all packets of one size.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result};
use packet::build::Frame;
use packet::capture::{CaptureWriter, Captured};

/// Frames per write to a capture.
const CHUNK: u32 = 4096;
/// An odd factor permutes the numbers below 2^24: consecutive flows get distant addresses.
const SCATTER: u32 = 0x9e_37b1;

/// The address family of a bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ip {
    /// IPv4
    #[value(name = "ipv4")]
    V4,
    /// IPv6
    #[value(name = "ipv6")]
    V6,
}

impl Ip {
    pub(super) fn name(self) -> &'static str {
        match self {
            Ip::V4 => "ipv4",
            Ip::V6 => "ipv6",
        }
    }
}

/// Source and destination of a flow with a number below 2^24: a unique client and one of 16 servers.
pub(super) fn ends(ip: Ip, flow: u32) -> (SocketAddr, SocketAddr) {
    let client = flow.wrapping_mul(SCATTER) & 0xff_ffff;
    let server = flow & 15;
    let (src, dst) = match ip {
        Ip::V4 => (
            IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | client)),
            IpAddr::V4(Ipv4Addr::from(0xc0a8_0100 | server)),
        ),
        Ip::V6 => {
            let net = 0x2001_0db8_u128 << 96;
            (
                IpAddr::V6(Ipv6Addr::from(net | u128::from(client))),
                IpAddr::V6(Ipv6Addr::from(net | 1 << 64 | u128::from(server))),
            )
        }
    };
    let port = 1024 + (flow % 50_000) as u16;
    (SocketAddr::new(src, port), SocketAddr::new(dst, 80))
}

/// A UDP frame of a flow with `size` bytes, or the headers' minimum if that is more.
pub(super) fn frame(ip: Ip, flow: u32, size: usize) -> Result<Vec<u8>> {
    let (src, dst) = ends(ip, flow);
    let headers = Frame::udp(src, dst, &[])?.len();
    let payload = vec![0; size.saturating_sub(headers)];
    Ok(Frame::udp(src, dst, &payload)?.to_vec()?)
}

/// Writes a capture with one frame per flow.
pub(super) fn write_capture(
    path: &Path,
    ip: Ip,
    flows: impl IntoIterator<Item = u32>,
    size: usize,
) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut file = BufWriter::new(File::create(path).with_context(failed)?);
    let mut writer = CaptureWriter::new();
    for (number, flow) in flows.into_iter().enumerate() {
        let frame = frame(ip, flow, size)?;
        writer.push(&Captured {
            timestamp_ns: number as u64,
            frame: &frame,
            original_len: frame.len() as u32,
        });
        if (number as u32).is_multiple_of(CHUNK) {
            file.write_all(writer.written()).with_context(failed)?;
            writer.clear();
        }
    }
    file.write_all(writer.written()).with_context(failed)?;
    file.flush().with_context(failed)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn flows_differ_and_frames_have_their_size() {
        for ip in [Ip::V4, Ip::V6] {
            let all: HashSet<_> = (0..100_000).map(|flow| ends(ip, flow)).collect();
            assert_eq!(all.len(), 100_000);
            assert_eq!(frame(ip, 7, 512).unwrap().len(), 512);
        }
        assert_eq!(frame(Ip::V4, 7, 64).unwrap().len(), 64);
    }

    #[test]
    fn a_capture_has_one_frame_of_each_flow() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pcap");
        write_capture(&path, Ip::V4, 0..5000, 64).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let frames: Vec<_> = packet::capture::CaptureReader::new(&bytes)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(frames.len(), 5000);
        let keys: HashSet<_> = frames
            .iter()
            .map(|captured| match packet::parse(captured.frame) {
                packet::Parsed::Flow(info) => info.key,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(keys.len(), 5000);
    }
}
