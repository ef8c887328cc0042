//! The pause of a restart: inco is killed, and the next one takes over its flows, rings and sockets. The network stays
//! connected over memif and goes on sending.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use memif::{Client, ClientConfig, Link, RingConfig};
use model::Nanos;
use packet::build::Frame;
use serde::Serialize;

use super::cleanup::Cleanup;
use super::contestant::median;
use super::facts::facts;
use super::raw::Raw;
use crate::args::RestartArgs;
use display::output;
use display::table::{Table, grouped};
use images::EngineName;
use testbed::{Environment, FORWARD_IMAGE, Interrupt, Session, SwitchName, make_image};

/// Up to so many flows the pause is to be at most [`LIMIT_MS`], above them [`LARGE_LIMIT_MS`].
const SMALL_FLOWS: u32 = 1_000_000;
const LIMIT_MS: f64 = 100.0;
const LARGE_LIMIT_MS: f64 = 1_000.0;
/// Free entries of the flow table beyond the flows.
const SPARE_FLOWS: u32 = 65_536;
/// Flows between one pair of addresses; they differ in their source port, from [`FIRST_PORT`] on.
const PORTS: u32 = 1 << 15;
const FIRST_PORT: u32 = 1024;
/// The destination of all flows.
const DESTINATION: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 53);
/// Offsets in a frame: the UDP source port, the UDP checksum, and the mark in the payload.
const SOURCE_PORT_AT: usize = 34;
const CHECKSUM_AT: usize = 40;
const MARK_AT: usize = 42;
/// Packets between two flushes while the table is filled.
const FILL_BURST: u32 = 64;
/// How often each flow gets a packet at most, until all are in the table: a packet is lost where a ring is full.
const FILL_PASSES: u32 = 5;
/// Interval of packets while inco is away.
const SEND_INTERVAL: Duration = Duration::from_micros(500);
/// Interval of looking for packets meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_micros(20);
/// Maximum time without progress.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Handshake with the uplink.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A restart, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Pause {
    /// From the start of the next inco to its first forwarded packet.
    whole: f64,
    /// Until the launcher has handed everything over.
    exec_to_keeper: f64,
    /// Until flow table and rings are ready for use.
    attach: f64,
    /// Until the first packet that was sent after the kill is back.
    first_packet: f64,
}

/// The result for one number of flows. Times are medians.
#[derive(Clone, Debug, Serialize)]
struct Row {
    flows: u32,
    rounds: u32,
    /// From exec of the next inco to its first forwarded packet.
    pause_ms: f64,
    /// The longest of all rounds.
    longest_pause_ms: f64,
    /// The parts of the pause.
    exec_to_keeper_ms: f64,
    attach_ms: f64,
    first_packet_ms: f64,
    /// What the pause is to stay below.
    limit_ms: f64,
}

/// Runs the bench.
pub(super) fn run(args: &RestartArgs) -> Result<()> {
    let columns = [
        "flows",
        "pause_ms",
        "exec_to_keeper_ms",
        "attach_ms",
        "first_packet_ms",
    ];
    let mut raw = Raw::new(&facts(false), &columns);
    let mut rows = Vec::new();
    for &flows in &args.flows {
        let pauses = measure(flows, args.rounds)?;
        for pause in &pauses {
            let parts = [
                pause.whole,
                pause.exec_to_keeper,
                pause.attach,
                pause.first_packet,
            ];
            let mut cells = vec![flows.to_string()];
            cells.extend(parts.map(|ms| format!("{ms:.3}")));
            raw.row(&cells);
        }
        rows.push(row(flows, &pauses));
    }
    raw.write(&args.csv)?;
    if args.json {
        return output::json(&rows, output::is_terminal());
    }
    let mut table = Table::new(&[
        ">flows",
        ">pause",
        ">longest",
        ">exec to keeper",
        ">attach",
        ">first packet",
        ">limit",
    ]);
    for row in &rows {
        let mut cells = vec![grouped(row.flows.into())];
        let times = [
            row.pause_ms,
            row.longest_pause_ms,
            row.exec_to_keeper_ms,
            row.attach_ms,
            row.first_packet_ms,
            row.limit_ms,
        ];
        cells.extend(times.map(|ms| format!("{ms:.1} ms")));
        table.row(cells);
    }
    output::text(&table.text())
}

fn row(flows: u32, pauses: &[Pause]) -> Row {
    let of = |part: fn(&Pause) -> f64| median(pauses.iter().map(part));
    Row {
        flows,
        rounds: pauses.len() as u32,
        pause_ms: of(|pause| pause.whole),
        longest_pause_ms: pauses.iter().map(|pause| pause.whole).fold(0.0, f64::max),
        exec_to_keeper_ms: of(|pause| pause.exec_to_keeper),
        attach_ms: of(|pause| pause.attach),
        first_packet_ms: of(|pause| pause.first_packet),
        limit_ms: if flows > SMALL_FLOWS {
            LARGE_LIMIT_MS
        } else {
            LIMIT_MS
        },
    }
}

/// The measured inco's configuration: one instance, and flows that stay.
fn configuration(flows: u32) -> String {
    let entries = flows + SPARE_FLOWS;
    format!(
        r#"# Written by `inco bench restart`.
[engine]
driver = "oci"

[switch]
flows = {entries}
timeouts = {{ udp = "1h" }}

[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = {FORWARD_IMAGE:?}
command = ["/inco-nf", "forward"]
memory = "64MiB"
ready = "connected"
ready_deadline = "30s"
instances = 1
"#
    )
}

fn measure(flows: u32, rounds: u32) -> Result<Vec<Pause>> {
    make_image(EngineName::Oci)?;
    let ground = Environment::new(EngineName::Oci, SwitchName::Soft, false, Interrupt::default())?;
    let directory = ground.directory().to_owned();
    // If the bench is interrupted; inco itself ends with this process.
    let _removed = Cleanup::by(move || {
        let _gone = std::fs::remove_dir_all(directory);
    });
    let mut session = Session::start(&ground, "restart", &configuration(flows), 1)?;
    let mut network = Network::connect(&ground.directory().join("wan.sock"), flows)?;
    network.fill(&session)?;
    let mut pauses = Vec::new();
    for round in 1..=rounds {
        pauses.push(restart(&mut session, &mut network, round)?);
    }
    drop(network);
    let left = session.stop()?;
    if !left.is_empty() {
        bail!("inco left behind: {}", left.join(", "));
    }
    Ok(pauses)
}

/// Kills inco, starts the next one, and waits for the first packet that this one forwards.
fn restart(session: &mut Session<'_>, network: &mut Network, mark: u32) -> Result<Pause> {
    session.kill()?;
    network.take(0)?;
    let started = clock::monotonic();
    session.start_again()?;
    let forwarded = network.first_back(mark)?;
    session.wait_until_ready(1)?;
    let resumed = session.client()?.status()?.resumed;
    let resumed = resumed.context("the next inco took nothing over")?;
    if resumed.flows < u64::from(network.flows) {
        bail!("{} of {} flows were taken over", resumed.flows, network.flows);
    }
    let ms = |from: Nanos, to: Nanos| to.since(from).0 as f64 / 1e6;
    let (taken, attached) = (Nanos(resumed.taken_at_ns), Nanos(resumed.attached_at_ns));
    Ok(Pause {
        whole: ms(started, forwarded),
        exec_to_keeper: ms(started, taken),
        attach: ms(taken, attached),
        first_packet: ms(attached, forwarded),
    })
}

/// The network on the uplink.
struct Network {
    link: Link,
    flows: u32,
    /// A frame for each pair of addresses.
    frames: Vec<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Network {
    fn connect(socket: &Path, flows: u32) -> Result<Network> {
        let config = ClientConfig {
            ring: RingConfig {
                log2_slots: memif::MAX_LOG2_SLOTS,
                ..RingConfig::default()
            },
            ..ClientConfig::new(socket, 0)
        };
        let link = Client::connect(&config, CONNECT_LIMIT)
            .with_context(|| format!("the uplink does not answer on {}", socket.display()))?;
        let frames = (0..flows.div_ceil(PORTS)).map(frame).collect::<Result<_>>()?;
        Ok(Network {
            link,
            flows,
            frames,
            buffer: vec![0; 2048],
        })
    }

    /// Puts a packet of that flow, with a mark, into the ring. Whether there was room.
    fn send(&mut self, flow: u32, mark: u32) -> Result<bool> {
        let frame = self.frames.get_mut((flow / PORTS) as usize);
        let frame = frame.context("a flow beyond the last one")?;
        let port = (FIRST_PORT + flow % PORTS) as u16;
        put(frame, SOURCE_PORT_AT, &port.to_be_bytes());
        put(frame, MARK_AT, &mark.to_be_bytes());
        let queue = self.link.queues.first_mut().context("a link has a queue")?;
        Ok(queue.tx.push(frame).is_ok())
    }

    fn flush(&mut self) {
        for queue in &mut self.link.queues {
            queue.tx.flush();
        }
    }

    /// Takes what has come back. Whether a packet with that mark was among it.
    fn take(&mut self, mark: u32) -> Result<bool> {
        let queue = self.link.queues.first_mut().context("a link has a queue")?;
        let mut is_there = false;
        while let Some(length) = queue.rx.pop(&mut self.buffer) {
            let length = length.context("the uplink's ring is damaged")?;
            let frame = self.buffer.get(..length).unwrap_or_default();
            is_there |= frame.get(MARK_AT..MARK_AT + 4) == Some(&mark.to_be_bytes()[..]);
        }
        queue.rx.release();
        Ok(is_there)
    }

    /// Sends a packet of each flow until all are in the table.
    fn fill(&mut self, session: &Session<'_>) -> Result<()> {
        let mut live = 0;
        for _ in 0..FILL_PASSES {
            for flow in 0..self.flows {
                let since = Instant::now();
                while !self.send(flow, 0)? {
                    self.flush();
                    self.take(0)?;
                    std::thread::yield_now();
                    if since.elapsed() > TIMEOUT {
                        bail!("inco takes no packets");
                    }
                }
                if flow % FILL_BURST == 0 {
                    self.flush();
                    self.take(0)?;
                }
            }
            self.flush();
            // Until the ring is empty, and what inco shows of its table does not change any more.
            loop {
                self.take(0)?;
                std::thread::sleep(POLL_INTERVAL);
                let now = session.client()?.status()?.live_flows;
                if now >= u64::from(self.flows) {
                    return Ok(());
                }
                if now == live {
                    break;
                }
                live = now;
            }
        }
        bail!(
            "{live} of {} flows are in the table after {FILL_PASSES} packets each",
            self.flows
        )
    }

    /// Goes on sending packets with this mark, and waits for the first of them.
    fn first_back(&mut self, mark: u32) -> Result<Nanos> {
        let since = Instant::now();
        let mut sent = 0_u32;
        loop {
            if self.take(mark)? {
                return Ok(clock::monotonic());
            }
            let elapsed = since.elapsed();
            if elapsed > TIMEOUT {
                bail!(
                    "no packet came back within {} s after a restart",
                    TIMEOUT.as_secs()
                );
            }
            if elapsed >= SEND_INTERVAL * sent {
                // Where the ring is full, it holds enough.
                self.send(sent % self.flows, mark)?;
                self.flush();
                sent += 1;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}

/// A frame of flows from that address. Without a checksum, which is optional in IPv4.
fn frame(address: u32) -> Result<Vec<u8>> {
    let source = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 1)) + address);
    let frame = Frame::udp(
        SocketAddr::from((source, FIRST_PORT as u16)),
        DESTINATION,
        &[0; 22],
    )
    .context("a frame")?;
    let mut frame = frame.to_vec().context("a frame")?;
    put(&mut frame, CHECKSUM_AT, &[0; 2]);
    Ok(frame)
}

fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = frame.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_has_a_key_of_its_own() {
        let mut keys = std::collections::BTreeSet::new();
        for flow in [0, 1, PORTS - 1, PORTS, 3 * PORTS + 7] {
            let mut bytes = frame(flow / PORTS).unwrap();
            put(
                &mut bytes,
                SOURCE_PORT_AT,
                &((FIRST_PORT + flow % PORTS) as u16).to_be_bytes(),
            );
            put(&mut bytes, MARK_AT, &9_u32.to_be_bytes());
            let packet::Parsed::Flow(info) = packet::parse(&bytes) else {
                panic!("{bytes:?}")
            };
            assert!(keys.insert(info.key), "{:?}", info.key);
        }
    }

    #[test]
    fn the_configuration_is_valid() {
        for flows in [1, 16_000_000] {
            orchestrator::load::parse(&configuration(flows), "restart.toml").unwrap();
        }
    }
}
