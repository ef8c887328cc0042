//! The rate of the function `ids` by the number of rules, and of Hyperscan with the same contents over the same
//! payloads, in the same run: `cargo run --release -p functions --example ids_rate -- target/hyperscan`, after
//! `cc -O2 -o target/hyperscan crates/containers/functions/examples/hyperscan.c $(pkg-config --cflags --libs libhs)`
//! (Debian: libhyperscan-dev). Without an argument, Hyperscan is left out.

use std::fs;
use std::io::{self, Write};
use std::process::Command;
use std::time::Instant;

use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, Setup, find};
use model::Nanos;
use packet::TcpFlags;
use packet::build::{Frame, Network, Transport};

/// Bytes of a payload.
const PAYLOAD: usize = 1024;
/// Payloads: more than the caches of the first level hold.
const PAYLOADS: usize = 256;
/// Passes over all payloads, of which the best counts: others share the machine.
const ROUNDS: usize = 60;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let peer = std::env::args().nth(1);
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:>6} {:>12} {:>12} {:>12} {:>10}",
        "rules", "UDP Gbit/s", "TCP Gbit/s", "peer Gbit/s", "UDP/peer"
    )?;
    for count in [10, 100, 1000, 5000] {
        let mut random = Random(7);
        let patterns: Vec<String> = (0..count).map(|_| random.word(8, 16)).collect();
        let payloads: Vec<Vec<u8>> = (0..PAYLOADS).map(|_| random.text()).collect();
        // One of each in turn, several times: a busy neighbour meets all of them.
        let mut best = [0.0_f64; 3];
        for _ in 0..3 {
            let ours = [
                function("udp", &patterns, &payloads)?,
                function("tcp", &patterns, &payloads)?,
                match &peer {
                    Some(peer) => hyperscan(peer, &patterns, &payloads)?,
                    None => f64::NAN,
                },
            ];
            for (best, rate) in best.iter_mut().zip(ours) {
                *best = best.max(rate);
            }
        }
        let [udp, tcp, other] = best;
        writeln!(
            out,
            "{count:6} {udp:12.2} {tcp:12.2} {other:12.2} {:10.2}",
            udp / other
        )?;
    }
    Ok(())
}

/// Numbers that are the same in each run (Knuth's linear congruential generator for 64 bits).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn word(&mut self, least: usize, most: usize) -> String {
        // As often as in English, roughly.
        const LETTERS: &[u8] = b"eeeeettttaaaooiinnsshhrrddlluccmfwypvbgkjqxz";
        let len = least + self.below(most - least);
        (0..len)
            .map(|_| char::from(LETTERS[self.below(LETTERS.len())]))
            .collect()
    }

    fn text(&mut self) -> Vec<u8> {
        let mut text = b"GET /index.html HTTP/1.1\r\nHost: www.example.org\r\n\r\n".to_vec();
        while text.len() < PAYLOAD {
            text.extend(self.word(2, 10).into_bytes());
            text.push(b' ');
        }
        text.truncate(PAYLOAD);
        text
    }
}

/// Gbit/s of payloads through the function.
fn function(protocol: &str, patterns: &[String], payloads: &[Vec<u8>]) -> Outcome<f64> {
    let rules: String = (1..)
        .zip(patterns)
        .map(|(sid, pattern)| {
            format!("alert {protocol} any any -> any 80 (msg:\"word\"; content:\"{pattern}\"; nocase; sid:{sid};)\n")
        })
        .collect();
    let setup = Setup {
        instance: 1,
        ports: 2,
        seed: 7,
    };
    let text = format!("rules = '''\n{rules}'''\n");
    let mut chain = Chain::new(vec![find(LIBRARY, "ids")?.make(&text, &setup)?])?;
    let ends = [([10, 0, 0, 1], 1234).into(), ([10, 0, 0, 2], 80).into()];
    let network = Network::between([10, 0, 0, 1].into(), [10, 0, 0, 2].into())?;
    let mut sequence = 0_u32;
    let mut burst = Burst::new();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let mut spent = 0.0;
        for some in payloads.chunks(RECEIVED_LIMIT) {
            burst.begin(0, 1);
            for payload in some {
                let transport = Transport::Tcp {
                    src_port: 1234,
                    dst_port: 80,
                    sequence,
                    acknowledgement: 0,
                    flags: TcpFlags(TcpFlags::ACK),
                    options: &[],
                };
                let frame = match protocol {
                    "udp" => Frame::udp(ends[0], ends[1], payload)?,
                    _ => Frame::new(network, transport, payload),
                };
                sequence = sequence.wrapping_add(payload.len() as u32);
                burst.push(&frame.to_vec()?);
            }
            let start = Instant::now();
            chain.process(&mut burst, Nanos::ZERO);
            spent += start.elapsed().as_nanos() as f64;
        }
        best = best.min(spent);
    }
    Ok(8.0 * (payloads.len() * PAYLOAD) as f64 / best)
}

/// Gbit/s of payloads through Hyperscan.
fn hyperscan(program: &str, patterns: &[String], payloads: &[Vec<u8>]) -> Outcome<f64> {
    let folder = std::env::temp_dir().join(format!("ids-rate-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let (words, texts) = (folder.join("patterns"), folder.join("payloads"));
    fs::write(&words, patterns.join("\n") + "\n")?;
    fs::write(&texts, payloads.concat())?;
    let output = Command::new(program)
        .args([&words, &texts])
        .args([PAYLOAD.to_string(), ROUNDS.to_string()])
        .output()?;
    fs::remove_dir_all(&folder)?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
