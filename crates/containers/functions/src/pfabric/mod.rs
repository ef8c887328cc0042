//! The function `pfabric`: a bounded queue by priority in front of a slower link. See docs/functions/pfabric.md.

mod heap;
mod queue;

use model::{FlowKey, Nanos, mix, protocol};
use packet::{PacketInfo, Parsed, parse};
use serde::Deserialize;

use crate::about::{About, Metric, Reason};
use crate::burst::{Burst, RECEIVED_LIMIT, Verdict};
use crate::configuration::{Error, from_toml, rate, within};
use crate::function::{Function, Setup, Summary};
use crate::keyed::Keyed;

use queue::{Pushed, Queue};

/// Packets that wait in one direction, at most.
const PACKETS_LIMIT: usize = 1 << 16;
/// Bytes of a frame, at most.
const FRAME_BYTES_LIMIT: usize = 16_384;
/// Bytes of frames that wait in one direction, at most.
const MEMORY_LIMIT: usize = 1 << 28;
/// Offset of the field in a payload, at most.
const OFFSET_LIMIT: usize = 1024;
/// How far the link may be behind: the loop around functions is late by that at times.
const BEHIND: Nanos = Nanos::from_micros(100);
/// Parts of a nanosecond in which the link's time is counted.
const PARTS: u64 = 64;

const MALFORMED: Reason = Reason(0);
const TOO_LONG: Reason = Reason(1);
const FULL: Reason = Reason(2);
const EVICTED: Reason = Reason(3);

const REASONS: &[Metric] = &[
    Metric::counter(
        "malformed",
        "Truncated or inconsistent headers, or a wrong IPv4 header checksum",
    ),
    Metric::counter("too_long", "Longer than frame_bytes"),
    Metric::counter("full", "The full queue had no packet of lower priority"),
    Metric::counter(
        "evicted",
        "Left the full queue for a packet of higher priority, and is counted in its place",
    ),
];

const METRICS: &[Metric] = &[
    Metric::counter("control", "Packets without the field, which leave first"),
    Metric::counter("sent", "Packets that left the queue"),
    Metric::counter(
        "lost_in_reloads",
        "Packets that waited when another size of the queue came",
    ),
    Metric::gauge("waiting", "Packets that wait"),
];

/// Sends the packets of the flow that has the fewest bytes left first.
///
/// ```toml
/// rate = "1Gbit/s"       # of the link in each direction: bits of frames
/// packets = 64           # that wait in each direction
/// frame_bytes = 1536     # longer frames are dropped
/// priority = "payload"   # bytes that remain are in the payload of TCP and UDP; or "dscp"
/// offset = 0             # where in the payload: 4 bytes, in the byte order of networks
/// ```
#[derive(Debug)]
pub struct Pfabric {
    state: State,
    keyed: Keyed,
    control: u64,
    sent: u64,
    lost: u64,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    /// By the port to which packets go.
    links: [Link; 2],
}

#[derive(Debug)]
struct Link {
    queue: Queue,
    /// When it is free again, in parts of a nanosecond.
    free_at: u64,
}

/// The configuration of [`Pfabric`], with empty queues.
#[derive(Debug)]
pub struct Configuration(Box<State>);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    rate: String,
    #[serde(default = "packets")]
    packets: usize,
    #[serde(default = "frame_bytes")]
    frame_bytes: usize,
    #[serde(default)]
    priority: Priority,
    #[serde(default)]
    offset: usize,
}

/// pFabric's queues are as long as twice a path's bandwidth-delay product: 36 KB at 10 Gbit/s there.
const fn packets() -> usize {
    64
}

/// The usual longest frame, in whole cache lines.
const fn frame_bytes() -> usize {
    1536
}

/// Where the priority of a packet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Priority {
    #[default]
    Payload,
    Dscp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settings {
    bits_per_s: u64,
    packets: usize,
    frame_bytes: usize,
    priority: Priority,
    offset: usize,
}

impl Settings {
    fn parse(text: &str) -> Result<Settings, Error> {
        let text: Text = from_toml(text)?;
        within("packets", text.packets, 1, PACKETS_LIMIT, "packets")?;
        within("frame_bytes", text.frame_bytes, 64, FRAME_BYTES_LIMIT, "bytes")?;
        within(
            "packets * frame_bytes",
            text.packets * text.frame_bytes,
            1,
            MEMORY_LIMIT,
            "bytes",
        )?;
        within("offset", text.offset, 0, OFFSET_LIMIT, "bytes")?;
        let bits_per_s = match rate(&text.rate) {
            Some(rate) if rate.counts_bytes => rate.amount,
            _ => {
                return Err(Error::whole(format!(
                    "rate: {:?} is no rate such as \"10Mbit/s\" or \"1Gbit/s\"",
                    text.rate
                )));
            }
        };
        Ok(Settings {
            bits_per_s,
            packets: text.packets,
            frame_bytes: text.frame_bytes,
            priority: text.priority,
            offset: text.offset,
        })
    }

    /// How long the link takes for a frame, in parts of a nanosecond.
    fn time(&self, bytes: usize) -> u64 {
        let parts = bytes as u128 * 8 * u128::from(1_000_000_000 * PARTS) / u128::from(self.bits_per_s);
        u64::try_from(parts).unwrap_or(u64::MAX)
    }

    /// The bytes that remain of a packet's flow; [`None`] if it does not say. A later fragment cannot say, and comes
    /// last.
    fn remaining(&self, info: &PacketInfo, frame: &[u8], is_later: bool) -> Option<u32> {
        if self.priority == Priority::Dscp {
            return Some(u32::from(63 - info.dscp.min(63)));
        }
        if is_later {
            return Some(u32::MAX);
        }
        if info.is_icmp_error {
            return None;
        }
        let l4 = usize::from(info.l4_offset);
        let header = match info.protocol {
            protocol::UDP => 8,
            protocol::TCP => usize::from(frame.get(l4 + 12)? >> 4) * 4,
            _ => return None,
        };
        let end = usize::from(info.l3_offset) + info.l3_len as usize;
        let payload = frame.get(l4 + header..end)?;
        Some(u32::from_be_bytes(*payload.get(self.offset..)?.first_chunk()?))
    }
}

impl Link {
    /// Sends what the link has had time for. Returns how many packets that were.
    fn send(&mut self, settings: &Settings, to: u8, burst: &mut Burst, now: Nanos) -> u64 {
        let now = now.0.saturating_mul(PARTS);
        self.free_at = self.free_at.max(now.saturating_sub(BEHIND.0 * PARTS));
        let mut sent = 0;
        while self.free_at <= now && sent < RECEIVED_LIMIT as u64 {
            let Some(frame) = self.queue.next() else { break };
            let Some(mut packet) = burst.originate(frame.len()) else {
                break;
            };
            packet.frame_mut().copy_from_slice(frame);
            packet.decide(Verdict::Forward(to));
            self.free_at = self.free_at.saturating_add(settings.time(frame.len()));
            self.queue.pop();
            sent += 1;
        }
        sent
    }
}

/// The flow of a packet as a number. Fragments have no ports.
fn flow(keyed: &Keyed, key: &FlowKey, is_reverse: bool) -> u64 {
    let side = u64::from(is_reverse);
    match key {
        FlowKey::V4(key) => {
            let ends = u64::from(u32::from_be_bytes(key.a)) << 32 | u64::from(u32::from_be_bytes(key.b));
            let ports = u64::from(key.a_port) << 48 | u64::from(key.b_port) << 32;
            let rest = u64::from(key.vlan) << 8 | u64::from(key.protocol);
            keyed.hash([ports | rest, ends, side])
        }
        FlowKey::V6(key) => {
            let (a, b) = (u128::from_be_bytes(key.a), u128::from_be_bytes(key.b));
            let ports = u64::from(key.a_port) << 48 | u64::from(key.b_port) << 32;
            let rest = u64::from(key.vlan) << 8 | u64::from(key.protocol);
            let [a, c] = [(a >> 64) as u64, a as u64];
            keyed.hash([ports | rest, a, c, (b >> 64) as u64, b as u64, side])
        }
    }
}

impl Function for Pfabric {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "pfabric",
            help: "Queues packets in front of a slower link, and sends those first whose flow has the fewest bytes left",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, setup: &Setup) -> Result<Configuration, Error> {
        let settings = Settings::parse(text)?;
        let link = |at: u64| Link {
            // Memory that is not touched is not resident: with one port, one queue is in use.
            queue: Queue::new(settings.packets, settings.frame_bytes, mix(setup.seed ^ at)),
            free_at: 0,
        };
        Ok(Configuration(Box::new(State {
            settings,
            links: [link(0), link(1)],
        })))
    }

    fn new(configuration: Configuration, setup: &Setup) -> Pfabric {
        Pfabric {
            state: *configuration.0,
            keyed: Keyed::new(mix(setup.seed ^ 2)),
            control: 0,
            sent: 0,
            lost: 0,
        }
    }

    /// What waits stays if the queue has the same size.
    fn reload(&mut self, mut configuration: Configuration) -> Configuration {
        let (new, old) = (&mut *configuration.0, &mut self.state);
        let size = |of: &Settings| (of.packets, of.frame_bytes);
        if size(&new.settings) == size(&old.settings) {
            std::mem::swap(&mut new.settings, &mut old.settings);
        } else {
            self.lost += old.links.iter().map(|of| of.queue.len() as u64).sum::<u64>();
            std::mem::swap(new, old);
        }
        configuration
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        let to = burst.opposite();
        let State { settings, links } = &mut self.state;
        let link = &mut links[usize::from(to) % 2];
        for mut packet in burst.packets() {
            let frame = packet.frame();
            let (flow, remaining) = match parse(frame) {
                Parsed::Flow(info) => {
                    let is_reverse = info.direction == model::Direction::Reverse;
                    let flow = flow(&self.keyed, &info.key, is_reverse);
                    (flow, settings.remaining(&info, frame, false))
                }
                Parsed::Fragment(fragment) => {
                    let info = &fragment.info;
                    let is_reverse = info.direction == model::Direction::Reverse;
                    let flow = flow(&self.keyed, &info.key, is_reverse);
                    (flow, settings.remaining(info, frame, !fragment.is_first()))
                }
                Parsed::Other { .. } => (0, None),
                Parsed::Invalid(_) => {
                    packet.drop(MALFORMED);
                    continue;
                }
            };
            if frame.len() > settings.frame_bytes {
                packet.drop(TOO_LONG);
                continue;
            }
            self.control += u64::from(remaining.is_none());
            match link.queue.push(frame, flow, remaining.unwrap_or(0)) {
                Pushed::Waits => packet.consume(),
                // The packet that has left was consumed before: this one is counted for it.
                Pushed::InPlaceOfAnother => packet.drop(EVICTED),
                Pushed::Full => packet.drop(FULL),
            }
        }
        self.sent += link.send(settings, to, burst, now);
    }

    fn due(&self) -> Option<Nanos> {
        let links = self.state.links.iter().filter(|of| of.queue.len() > 0);
        links.map(|of| Nanos(of.free_at.div_ceil(PARTS))).min()
    }

    fn tick(&mut self, burst: &mut Burst, now: Nanos) {
        let State { settings, links } = &mut self.state;
        for (link, to) in links.iter_mut().zip(0..) {
            if link.queue.len() > 0 {
                self.sent += link.send(settings, to, burst, now);
            }
        }
    }

    fn metrics(&self, values: &mut [u64]) {
        let waiting = self.state.links.iter().map(|of| of.queue.len() as u64).sum();
        let all = [self.control, self.sent, self.lost, waiting];
        for (value, of) in values.iter_mut().zip(all) {
            *value = of;
        }
    }

    /// `flows` are those with packets that wait.
    fn summary(&self) -> Summary {
        Summary {
            entries: 0,
            flows: self.state.links.iter().map(|of| of.queue.flows() as u64).sum(),
            flows_limit: 2 * self.state.settings.packets as u64,
        }
    }
}

#[cfg(test)]
mod tests;
