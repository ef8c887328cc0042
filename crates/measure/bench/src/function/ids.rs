//! `ids` beside Hyperscan, with the same contents over the same payloads.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, ensure};
use functions::firewall::synthetic::Sequence;
use functions::{Burst, RECEIVED_LIMIT};
use model::Nanos;
use packet::TcpFlags;
use packet::build::{Frame, Network, Transport};

use super::frames::SIZES;
use super::service::Served;
use super::session::{Case, Peer, Session};
use super::side::{Part, Side, timed};
use super::through::{Through, chain, read};
use super::turns::Turns;
use crate::native;
use crate::steer::Folder;

/// What was measured.
pub(super) const NOTE: &str = "rules of one content each, none of which is found; packets with text, over UDP in one flow and over \
    TCP in one connection. Hyperscan searches the payloads alone, in block mode; the function has packets, flows and streams, \
    too";

/// Rules and packet sizes.
const CASES: [(usize, usize); 6] = [
    (100, SIZES[0]),
    (100, SIZES[1]),
    (10, SIZES[2]),
    (100, SIZES[2]),
    (1_000, SIZES[2]),
    (5_000, SIZES[2]),
];
/// Payloads: more than the caches of the first level hold.
const PAYLOADS: usize = 256;
/// Bytes of headers on the wire, with the check sequence: UDP and TCP.
const HEADERS: [usize; 2] = [46, 58];
const PEER: &str = "hyperscan";
const SOURCE: &str = include_str!("../../native/hyperscan.c");

/// Measures it.
pub(super) fn measure(session: &mut Session) -> Result<()> {
    let folder = Folder::new()?;
    let program = native::compile(&folder.path, "hyperscan", SOURCE, "libhs", "libhyperscan-dev");
    for (count, size) in CASES {
        let mut numbers = Sequence::new(7);
        let patterns: Vec<String> = (0..count).map(|_| word(&mut numbers, 8, 16)).collect();
        for (protocol, headers) in ["udp", "tcp"].into_iter().zip(HEADERS) {
            let payloads: Vec<Vec<u8>> = (0..PAYLOADS)
                .map(|_| text(&mut numbers, size.saturating_sub(headers)))
                .collect();
            let peer = Peer::of(PEER, hyperscan(&program, &folder.path, &patterns, &payloads));
            let case = Case::new(format!("rules, {protocol}"), count, size);
            let rules = rules(protocol, &patterns);
            if protocol == "udp" {
                let frames = payloads
                    .iter()
                    .map(|payload| datagram(payload))
                    .collect::<Result<Vec<_>>>()?;
                let mut ours = Through::new(Some(chain("ids", &rules)?), &frames)?;
                session.case(&case, &mut ours, Some(peer))?;
            } else {
                session.case(&case, &mut connection(&rules, &payloads)?, Some(peer))?;
            }
        }
    }
    Ok(())
}

/// As the instance of a service.
pub(super) fn served() -> Result<Served> {
    let (count, size) = CASES[1];
    let mut numbers = Sequence::new(7);
    let patterns: Vec<String> = (0..count).map(|_| word(&mut numbers, 8, 16)).collect();
    let frames = (0..PAYLOADS).map(|_| datagram(&text(&mut numbers, size - HEADERS[0])));
    let frames = frames.collect::<Result<_>>()?;
    Ok(Served::of(rules("udp", &patterns), count, frames))
}

fn word(numbers: &mut Sequence, least: usize, most: usize) -> String {
    // As often as in English, roughly.
    const LETTERS: &[u8] = b"eeeeettttaaaooiinnsshhrrddlluccmfwypvbgkjqxz";
    let len = least + numbers.below((most - least) as u64) as usize;
    (0..len)
        .map(|_| char::from(LETTERS[numbers.below(LETTERS.len() as u64) as usize]))
        .collect()
}

fn text(numbers: &mut Sequence, len: usize) -> Vec<u8> {
    let mut text = b"GET /index.html HTTP/1.1\r\nHost: www.example.org\r\n\r\n".to_vec();
    while text.len() < len {
        text.extend(word(numbers, 2, 10).into_bytes());
        text.push(b' ');
    }
    text.truncate(len);
    text
}

/// The function's configuration.
fn rules(protocol: &str, patterns: &[String]) -> String {
    let rules: String = (1..)
        .zip(patterns)
        .map(|(sid, pattern)| {
            format!("alert {protocol} any any -> any 80 (msg:\"word\"; content:\"{pattern}\"; nocase; sid:{sid};)\n")
        })
        .collect();
    format!("rules = '''\n{rules}'''\n")
}

fn ends() -> [SocketAddr; 2] {
    [([10, 0, 0, 1], 1234).into(), ([10, 0, 0, 2], 80).into()]
}

fn datagram(payload: &[u8]) -> Result<Vec<u8>> {
    let [from, to] = ends();
    Ok(Frame::udp(from, to, payload)?.to_vec()?)
}

/// A connection. Its packets are written before each burst, since each has a sequence number of its own; that time does not
/// count.
fn connection<'p>(rules: &str, payloads: &'p [Vec<u8>]) -> Result<impl Side + use<'p>> {
    let mut chain = chain("ids", rules)?;
    let [from, to] = ends();
    let network = Network::between(from.ip(), to.ip())?;
    let (mut sequence, mut at) = (0_u32, 0);
    let mut burst = Burst::new();
    Ok(Part(move || -> Result<(u64, Nanos)> {
        let mut frames = Vec::with_capacity(RECEIVED_LIMIT);
        while frames.len() < RECEIVED_LIMIT {
            let payload = &payloads[at];
            let transport = Transport::Tcp {
                src_port: from.port(),
                dst_port: to.port(),
                sequence,
                acknowledgement: 0,
                flags: TcpFlags(TcpFlags::ACK),
                options: &[],
            };
            frames.push(Frame::new(network, transport, payload).to_vec()?);
            sequence = sequence.wrapping_add(payload.len() as u32);
            at = (at + 1) % payloads.len();
        }
        let (left, spent) = timed(|| {
            burst.begin(0, 1);
            for frame in &frames {
                burst.push(frame);
            }
            chain.process(&mut burst, Nanos::ZERO);
            read(&burst)
        });
        ensure!(
            left == RECEIVED_LIMIT,
            "{left} of {RECEIVED_LIMIT} packets left the function"
        );
        Ok((left as u64, spent))
    }))
}

/// Hyperscan with the same patterns and payloads.
fn hyperscan(
    program: &Result<PathBuf>,
    folder: &Path,
    patterns: &[String],
    payloads: &[Vec<u8>],
) -> Result<Turns> {
    let program = program.as_ref().map_err(|error| anyhow!("{error:#}"))?;
    let (words, texts) = (folder.join("patterns"), folder.join("payloads"));
    let wrong = |file: &Path| format!("cannot write {}", file.display());
    std::fs::write(&words, patterns.join("\n") + "\n").with_context(|| wrong(&words))?;
    std::fs::write(&texts, payloads.concat()).with_context(|| wrong(&texts))?;
    let mut command = Command::new(program);
    command
        .args([&words, &texts])
        .arg(payloads.first().map_or(0, Vec::len).to_string());
    Turns::start(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_both_protocols_have_the_size_of_their_case() {
        let size = 512;
        let mut numbers = Sequence::new(7);
        let [udp, tcp] = HEADERS.map(|headers| text(&mut numbers, size - headers));
        let on_wire = |frame: Vec<u8>| frame.len() + 4;
        assert_eq!(on_wire(datagram(&udp).unwrap()), size);
        let transport = Transport::Tcp {
            src_port: 1,
            dst_port: 2,
            sequence: 0,
            acknowledgement: 0,
            flags: TcpFlags(TcpFlags::ACK),
            options: &[],
        };
        let [from, to] = ends().map(|end| end.ip());
        let network = Network::between(from, to).unwrap();
        assert_eq!(
            on_wire(Frame::new(network, transport, &tcp).to_vec().unwrap()),
            size
        );
    }

    #[test]
    fn a_connection_is_inspected_again_and_again() {
        let payloads = vec![text(&mut Sequence::new(1), 400); 3];
        let rules = rules("tcp", &["never-there".to_owned()]);
        let turn = connection(&rules, &payloads)
            .unwrap()
            .turn(Nanos::from_millis(1))
            .unwrap();
        assert!(turn.packets >= 32, "{turn:?}");
    }
}
