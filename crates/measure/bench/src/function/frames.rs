//! The packets of cases.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use functions::firewall::synthetic::Sequence;
use packet::build::{Frame, Network, Transport};

/// Bytes of a packet on the wire, with its check sequence: the shortest one, a middle one, a long one.
pub(super) const SIZES: [usize; 3] = [64, 512, 1500];
/// The MAC address that packets are sent to.
pub(super) const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Bytes of the check sequence, which is on the wire only.
const CHECK: usize = 4;
/// Bytes of the Ethernet header.
const ETHERNET: usize = 14;

/// A UDP packet of `size` bytes on the wire.
pub(super) fn udp(from: SocketAddr, to: SocketAddr, size: usize) -> Result<Vec<u8>> {
    let transport = Transport::Udp {
        src_port: from.port(),
        dst_port: to.port(),
    };
    frame(from.ip(), to.ip(), transport, size)
}

/// A packet with this transport header, of `size` bytes on the wire.
///
/// # Errors
/// The headers are longer.
pub(super) fn frame(from: IpAddr, to: IpAddr, transport: Transport<'_>, size: usize) -> Result<Vec<u8>> {
    let headers = ETHERNET
        + if to.is_ipv4() { 20 } else { 40 }
        + match transport {
            Transport::Tcp { .. } => 20,
            Transport::Raw { .. } => 0,
            _ => 8,
        };
    let payload = size
        .checked_sub(CHECK + headers)
        .context("a packet is shorter than its headers")?;
    let payload = vec![0; payload];
    let mut frame = Frame::new(Network::between(from, to)?, transport, &payload);
    frame.dst_mac = ROUTER_MAC;
    Ok(frame.to_vec()?)
}

/// UDP packets, one of each flow. A host has 128 flows.
pub(super) fn flows(count: usize, size: usize) -> Result<Vec<Vec<u8>>> {
    let each = (0..count).map(|at| {
        let host = at / 128;
        let to = SocketAddr::from(([198, 51, 100, (host % 250) as u8], 53));
        let from = (
            [10, (host >> 16) as u8, (host >> 8) as u8, host as u8],
            1024 + (at % 128) as u16,
        );
        udp(from.into(), to, size)
    });
    each.collect::<Result<_>>().map(shuffled)
}

/// UDP packets, one of each source address.
pub(super) fn sources(count: usize, size: usize) -> Result<Vec<Vec<u8>>> {
    let to = SocketAddr::from(([198, 51, 100, 1], 53));
    let each = (0..count).map(|at| {
        let from = ([10, (at >> 16) as u8, (at >> 8) as u8, at as u8], 1024);
        udp(from.into(), to, size)
    });
    each.collect::<Result<_>>().map(shuffled)
}

/// In an order in which neighbours in time are none in memory.
fn shuffled(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut numbers = Sequence::new(1);
    for at in (1..frames.len()).rev() {
        frames.swap(at, numbers.below(at as u64 + 1) as usize);
    }
    frames
}

/// `count` items, of which the n-th of `items` comes with a frequency of 1/n (Zipf's law).
pub(super) fn zipf<T: Copy>(items: &[T], count: usize, numbers: &mut Sequence) -> Vec<T> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=items.len())
        .map(|n| {
            sum += 1.0 / n as f64;
            sum
        })
        .collect();
    let last = items.len().saturating_sub(1);
    (0..count)
        .map(|_| {
            let at = numbers.below(1 << 53) as f64 / (1_u64 << 53) as f64 * sum;
            items[sums.partition_point(|&sum| sum <= at).min(last)]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_have_the_size_that_they_have_on_the_wire() {
        for size in SIZES {
            assert!(
                flows(300, size)
                    .unwrap()
                    .iter()
                    .all(|frame| frame.len() + CHECK == size)
            );
        }
        let from = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 1));
        assert_eq!(udp(from, from, 128).unwrap().len(), 124);
        assert!(udp(from, from, 64).is_err());
    }

    #[test]
    fn flows_and_sources_are_distinct() {
        for frames in [flows(1000, 64).unwrap(), sources(1000, 64).unwrap()] {
            let distinct: std::collections::HashSet<&[u8]> =
                frames.iter().map(|frame| &frame[26..38]).collect();
            assert_eq!(distinct.len(), 1000);
        }
    }

    #[test]
    fn the_first_is_twice_as_frequent_as_the_second() {
        let items: Vec<usize> = (0..1000).collect();
        let drawn = zipf(&items, 100_000, &mut Sequence::new(1));
        let of = |item| drawn.iter().filter(|&&drawn| drawn == item).count() as f64;
        assert!((1.8..2.2).contains(&(of(0) / of(1))), "{} {}", of(0), of(1));
    }
}
