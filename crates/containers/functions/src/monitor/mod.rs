//! The function `monitor`: counts what passes, and tells a collector of flows. See docs/functions/monitor.md.

mod configuration;
mod flows;
mod ipfix;
mod sketch;

use model::{Direction, FlowKey, Nanos, mix};
use packet::build::Frame;
use packet::{PacketInfo, Parsed, TcpFlags, parse};

use crate::about::{About, Metric};
use crate::addresses::addresses;
use crate::burst::{Burst, RECEIVED_LIMIT, Verdict};
use crate::configuration::Error;
use crate::function::{Function, Setup, Summary};
use crate::heavy::HeavyHitters;
use crate::keyed::Keyed;

use configuration::{Export, Settings};
use flows::Flows;
use ipfix::Messages;
use sketch::Sketch;

pub use flows::{EndReason, Flow, FlowId};

/// Between two looks at a part of the flows.
const TICK: Nanos = Nanos::from_millis(10);
/// Ticks in which all flows are looked at once: a second.
const TICKS_PER_ROUND: usize = 100;
/// Flows looked at in one tick, at least.
const LOOKS_MIN: usize = 64;
/// Messages of one tick, at most.
const MESSAGES_PER_TICK: usize = 16;

const METRICS: &[Metric] = &[
    Metric::counter("ip_packets", "IP packets that were counted"),
    Metric::counter("ip_bytes", "Bytes of these packets from their IP header on"),
    Metric::counter(
        "other",
        "Packets that are not IP, or not sound; they are not counted",
    ),
    Metric::counter("flows_exported", "Records of flows, written into messages"),
    Metric::counter(
        "flows_unexported",
        "Records of flows that ended without a collector",
    ),
    Metric::counter(
        "packets_unrecorded",
        "Packets of new flows beyond flows_limit: counted, but in no record",
    ),
    Metric::counter("messages", "Messages to the collector"),
    Metric::counter(
        "messages_lost",
        "Messages to the collector that found no room in a burst",
    ),
    Metric::gauge(
        "heaviest_bytes",
        "Bytes of the heaviest flow since the function began, at most",
    ),
];

/// Counts packets, and changes none.
///
/// ```toml
/// sketch_width = 65536       # counters in a row of the count-min sketch, rounded up to a power of two
/// sketch_depth = 4           # rows, at most 8
/// heavy_limit = 1024         # heaviest flows that are known by name
/// flows_limit = 65536        # flows with a record at once
/// idle_timeout_s = 15        # a flow without packets for so long is exported and ends
/// active_timeout_s = 60      # one that goes on is exported after so long
///
/// [export]                   # without it, nothing is exported
/// collector = "192.0.2.9:4739"
/// source = "192.0.2.1:4739"
/// collector_mac = "02:00:00:00:00:01"
/// source_mac = "02:00:00:00:00:02"
/// port = 0                   # the port of the instance by which messages leave
/// domain = 0                 # the observation domain
/// message_bytes = 1400
/// template_interval_s = 60
/// boot_unix_s = 0            # Unix time at the start of the monotonic clock, for the times in records
/// ```
#[derive(Debug)]
pub struct Monitor {
    state: State,
    keyed: Keyed,
    due: Option<Nanos>,
    packets: u64,
    other: u64,
    exported: u64,
    unexported: u64,
    unrecorded: u64,
    messages: u64,
    messages_lost: u64,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    /// Bytes by flow.
    sketch: Sketch,
    heavy: HeavyHitters<FlowId>,
    flows: Flows,
    exporter: Option<Exporter>,
}

#[derive(Debug)]
struct Exporter {
    export: Export,
    messages: Messages,
    /// When templates are due.
    templates: Nanos,
}

/// The configuration of [`Monitor`], with empty tables.
#[derive(Debug)]
pub struct Configuration(Box<State>);

/// A heavy flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heaviest {
    /// Which one.
    pub id: FlowId,
    /// Its bytes, at most.
    pub bytes: u64,
    /// By how much that may be too much.
    pub error: u64,
}

/// A packet that is counted.
#[derive(Clone, Copy, Debug)]
struct Seen {
    id: FlowId,
    hash: u64,
    bytes: u64,
    flags: TcpFlags,
}

impl Seen {
    #[inline(always)]
    fn new(info: &PacketInfo, frame: &[u8], keyed: &Keyed) -> Option<Seen> {
        let (source, destination) = addresses(info, frame)?;
        let (a, b, vlan) = match info.key {
            FlowKey::V4(key) => (key.a_port, key.b_port, key.vlan),
            FlowKey::V6(key) => (key.a_port, key.b_port, key.vlan),
        };
        let (source_port, destination_port) = match info.direction {
            // An error has the ports of the packet that it quotes, which are not its own.
            _ if info.is_icmp_error => (0, 0),
            Direction::Forward => (a, b),
            Direction::Reverse => (b, a),
        };
        let id = FlowId {
            source,
            destination,
            source_port,
            destination_port,
            protocol: info.protocol,
            vlan,
        };
        Some(Seen {
            id,
            hash: id.hash(keyed),
            bytes: info.l3_len.into(),
            flags: info.tcp_flags,
        })
    }
}

impl State {
    fn new(settings: Settings, secret: u64) -> State {
        let exporter = settings.export.clone().map(|export| Exporter {
            messages: Messages::new(
                export.message_bytes,
                export.domain,
                export.boot_unix_s.saturating_mul(1000),
            ),
            templates: Nanos::ZERO,
            export,
        });
        let mut flows = Flows::new(settings.flows_limit, mix(secret ^ 1));
        flows.set_timeouts(
            Nanos::from_secs(settings.idle_timeout_s),
            Nanos::from_secs(settings.active_timeout_s),
        );
        State {
            sketch: Sketch::new(settings.sketch_width, settings.sketch_depth),
            heavy: HeavyHitters::new(settings.heavy_limit, mix(secret ^ 2)),
            flows,
            exporter,
            settings,
        }
    }
}

impl Exporter {
    /// The message as a frame. False if the burst has no room.
    fn send(&mut self, burst: &mut Burst, now: Nanos) -> bool {
        let export = &self.export;
        let mut is_sent = false;
        self.messages.finish(now, |message| {
            let Ok(mut frame) = Frame::udp(export.source, export.collector, message) else {
                return;
            };
            (frame.dst_mac, frame.src_mac) = (export.collector_mac, export.source_mac);
            if let Some(mut packet) = burst.originate(frame.len()) {
                is_sent = frame.write(packet.frame_mut()).is_ok();
                packet.decide(Verdict::Forward(export.port));
            }
        });
        is_sent
    }
}

impl Monitor {
    /// At most `count` of the heaviest flows by bytes, heaviest first.
    pub fn heaviest(&self, count: usize) -> Vec<Heaviest> {
        let mut all: Vec<_> = self.state.heavy.all().collect();
        all.sort_by_key(|of| std::cmp::Reverse(of.count));
        let all = all.into_iter().take(count).map(|of| Heaviest {
            id: of.key,
            bytes: of.count,
            error: of.error,
        });
        all.collect()
    }

    /// The bytes of a flow since the function began: never less than they are.
    pub fn bytes(&self, id: &FlowId) -> u64 {
        self.state.sketch.estimate(id.hash(&self.keyed))
    }

    fn export(&mut self, burst: &mut Burst, now: Nanos) {
        let looks = (self.state.flows.limit() / TICKS_PER_ROUND).max(LOOKS_MIN);
        let mut budget = looks;
        let mut room = MESSAGES_PER_TICK;
        while room > 0 {
            let Some((flow, reason)) = self.state.flows.next_due(now, &mut budget) else {
                break;
            };
            let Some(exporter) = &mut self.state.exporter else {
                self.unexported += 1;
                continue;
            };
            if exporter.messages.is_empty() && now >= exporter.templates {
                exporter.messages.add_templates();
                exporter.templates = now + Nanos::from_secs(exporter.export.template_interval_s);
            }
            if !exporter.messages.add(&flow, reason) {
                let is_sent = exporter.send(burst, now);
                self.messages += u64::from(is_sent);
                self.messages_lost += u64::from(!is_sent);
                room -= 1;
                // An empty message has room for any record.
                exporter.messages.add(&flow, reason);
            }
            self.exported += 1;
        }
        if let Some(exporter) = self
            .state
            .exporter
            .as_mut()
            .filter(|of| of.messages.records() > 0)
        {
            let is_sent = exporter.send(burst, now);
            self.messages += u64::from(is_sent);
            self.messages_lost += u64::from(!is_sent);
        }
    }
}

impl Function for Monitor {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "monitor",
            help: "Counts flows, finds the heaviest ones, and exports records of them by IPFIX",
            reasons: &[],
            metrics: METRICS,
        }
    }

    fn compile(text: &str, setup: &Setup) -> Result<Configuration, Error> {
        let settings = Settings::parse(text, setup.ports)?;
        Ok(Configuration(Box::new(State::new(settings, setup.seed))))
    }

    fn new(configuration: Configuration, setup: &Setup) -> Monitor {
        Monitor {
            state: *configuration.0,
            keyed: Keyed::new(mix(setup.seed ^ 3)),
            due: None,
            packets: 0,
            other: 0,
            exported: 0,
            unexported: 0,
            unrecorded: 0,
            messages: 0,
            messages_lost: 0,
        }
    }

    /// Each table whose size is the same keeps what it holds; records of flows that do not stay are lost.
    fn reload(&mut self, mut configuration: Configuration) -> Configuration {
        let (new, old) = (&mut *configuration.0, &mut self.state);
        let (to, from) = (&new.settings, &old.settings);
        if (to.sketch_width, to.sketch_depth) == (from.sketch_width, from.sketch_depth) {
            std::mem::swap(&mut new.sketch, &mut old.sketch);
        }
        if to.heavy_limit == from.heavy_limit {
            std::mem::swap(&mut new.heavy, &mut old.heavy);
        }
        if to.flows_limit == from.flows_limit {
            std::mem::swap(&mut new.flows, &mut old.flows);
            let timeouts = [new.settings.idle_timeout_s, new.settings.active_timeout_s].map(Nanos::from_secs);
            new.flows.set_timeouts(timeouts[0], timeouts[1]);
        }
        if let (Some(to), Some(from)) = (&mut new.exporter, &old.exporter) {
            to.messages.continue_after(&from.messages);
        }
        std::mem::swap(new, old);
        configuration
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        let mut seen = [None; RECEIVED_LIMIT];
        for (packet, seen) in burst.packets().zip(&mut seen) {
            let frame = packet.frame();
            let info = match parse(frame) {
                Parsed::Flow(info) => info,
                Parsed::Fragment(fragment) => fragment.info,
                Parsed::Other { .. } | Parsed::Invalid(_) => {
                    self.other += 1;
                    continue;
                }
            };
            *seen = Seen::new(&info, frame, &self.keyed);
            if let Some(seen) = seen {
                self.state.sketch.prefetch(seen.hash);
                self.state.heavy.prefetch(seen.hash);
                self.state.flows.prefetch(seen.hash);
            }
        }
        for seen in seen.iter().flatten() {
            self.packets += 1;
            self.state.sketch.add(seen.hash, seen.bytes);
            self.state.heavy.add(seen.hash, seen.id, seen.bytes);
            let is_recorded = self
                .state
                .flows
                .count(seen.hash, &seen.id, seen.bytes, seen.flags, now);
            self.unrecorded += u64::from(!is_recorded);
        }
        if self.due.is_none() && self.state.flows.len() > 0 {
            self.due = Some(now + TICK);
        }
    }

    fn due(&self) -> Option<Nanos> {
        self.due
    }

    fn tick(&mut self, burst: &mut Burst, now: Nanos) {
        self.export(burst, now);
        self.due = (self.state.flows.len() > 0).then_some(now + TICK);
    }

    fn metrics(&self, values: &mut [u64]) {
        let all = [
            self.packets,
            self.state.sketch.total(),
            self.other,
            self.exported,
            self.unexported,
            self.unrecorded,
            self.messages,
            self.messages_lost,
            self.state.heavy.all().map(|of| of.count).max().unwrap_or(0),
        ];
        for (value, of) in values.iter_mut().zip(all) {
            *value = of;
        }
    }

    fn summary(&self) -> Summary {
        Summary {
            entries: 0,
            flows: self.state.flows.len() as u64,
            flows_limit: self.state.flows.limit() as u64,
        }
    }
}

#[cfg(test)]
mod tests;
