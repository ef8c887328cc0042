//! The function `ids` in the place of the paper's Snort: with as many rules as make a packet cost what it costs there.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use clock::thread_cpu;
use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, Setup, find};
use model::Nanos;
use packet::TcpFlags;
use packet::build::{Frame, Network, Transport};
use testbed::FORWARD_IMAGE;

use super::bed::{COST_NS, COST_NS_PER_BYTE, Function, PACE_CPUS};

/// Payload of a full frame, and its bytes.
const PAYLOAD: usize = 1_448;
const FRAME: usize = 1_514;
/// Numbers of rules whose times are compared, and the most that there may be.
const FEW: usize = 1;
const MORE: usize = 9;
const MOST: usize = 1_000;
/// Bursts that are timed.
const BURSTS: usize = 16;
/// Attempts; the shortest time of each counts.
const ATTEMPTS: usize = 5;

/// The function with its rules. They are found by the CPU time that an inspection takes here, and none of them matches
/// what the server sends.
///
/// # Errors
/// The function refuses its configuration, or packets do not pass it.
pub(super) fn function() -> Result<Function> {
    let [few, more] = [FEW, MORE].map(frame_ns);
    let (few, more) = (few?, more?);
    let of_rule = (more - few) / (MORE - FEW) as f64;
    ensure!(of_rule > 0.0, "rules take no time: the clock is too coarse");
    let aim = f64::from(COST_NS) + COST_NS_PER_BYTE * FRAME as f64;
    let rules = (FEW as f64 + (aim - few) / of_rule).round();
    let rules = (rules.max(1.0) as usize).min(MOST);
    let command = [
        "/inco-nf",
        "ids",
        "--cross",
        "--pace-cpus",
        PACE_CPUS,
        "--config-text",
    ];
    let mut command: Vec<String> = command.map(str::to_owned).to_vec();
    command.push(configuration(rules));
    Ok(Function {
        name: "ids",
        image: FORWARD_IMAGE,
        command,
        cost: format!(
            "{rules} regular expressions, {:.1} µs a full frame by this machine's clock, with 0.16 CPUs",
            (few + of_rule * (rules - FEW) as f64) / 1e3
        ),
    })
}

/// Rules about what the server sends. Each is searched for in the last kilobyte of the stream and what is new of it.
fn configuration(rules: usize) -> String {
    let rules = (1..=rules).map(|sid| {
        let times = 8 + sid % 24;
        format!(
            "drop tcp any 80 -> any any (msg:\"inspection {sid}\"; flow:to_client; \
             pcre:\"/(?:[\\x00-\\x7f][\\x80-\\xff]){{{times}}}/\"; sid:{sid};)\n"
        )
    });
    let rules: String = rules.collect();
    format!("flows = 16384\nwindow = 256\nmemory_mib = 64\nidle_s = 2\nrules = '''\n{rules}'''\n")
}

/// CPU time of a full frame of the server, in nanoseconds.
fn frame_ns(rules: usize) -> Result<f64> {
    let setup = Setup {
        instance: 1,
        ports: 2,
        seed: 1,
        external: None,
    };
    let stage = find(LIBRARY, "ids")?.make(&configuration(rules), &setup)?;
    let mut chain = Chain::new(vec![stage])?;
    let [client, server] = [([10, 79, 0, 2], 4_000), ([10, 79, 1, 1], 80)].map(SocketAddr::from);
    let mut burst = Burst::new();
    let syn = Frame::tcp(client, server, TcpFlags(TcpFlags::SYN), b"")?.to_vec()?;
    burst.begin(0, 1);
    burst.push(&syn);
    chain.process(&mut burst, Nanos::ZERO);
    let network = Network::between(server.ip(), client.ip())?;
    // As nginx sends them of a file without content.
    let payload = [0; PAYLOAD];
    let mut sequence = 0_u32;
    let mut shortest = f64::INFINITY;
    for _ in 0..ATTEMPTS {
        let mut spent = Nanos::ZERO;
        for _ in 0..BURSTS {
            burst.begin(1, 0);
            for _ in 0..RECEIVED_LIMIT {
                let transport = Transport::Tcp {
                    src_port: server.port(),
                    dst_port: client.port(),
                    sequence,
                    acknowledgement: 1,
                    flags: TcpFlags(TcpFlags::ACK),
                    options: &[],
                };
                burst.push(&Frame::new(network, transport, &payload).to_vec()?);
                sequence = sequence.wrapping_add(PAYLOAD as u32);
            }
            let began = thread_cpu();
            chain.process(&mut burst, Nanos::ZERO);
            spent = spent + thread_cpu().since(began);
            let left = burst.leaving().len();
            ensure!(
                left == RECEIVED_LIMIT,
                "{left} of {RECEIVED_LIMIT} packets left the function"
            );
        }
        shortest = shortest.min(spent.0 as f64 / (BURSTS * RECEIVED_LIMIT) as f64);
    }
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_are_read_and_cost_what_they_should() {
        let function = function().unwrap();
        let text = function.command.last().unwrap();
        let rules = text.matches("sid:").count();
        assert!((1..=MOST).contains(&rules), "{}", function.cost);
        // A clock that others disturb. Without optimisation, one rule may cost more.
        let aim = f64::from(COST_NS) + COST_NS_PER_BYTE * FRAME as f64;
        let took = frame_ns(rules).unwrap();
        assert!(took > 0.6 * aim, "{took} ns, {}", function.cost);
        assert!(took < 1.5 * aim || rules == 1, "{took} ns, {}", function.cost);
    }
}
