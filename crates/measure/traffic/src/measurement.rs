//! Accounts for sent and returned packets, per flow.

use std::sync::Arc;

use hdrhistogram::Histogram;
use stamp::{MAC_NUMBERS, MacStamp, Stamp};

use crate::order::{Arrival, OrderTracker};
use crate::pin::{PinTracker, Steer};
use crate::profile::{Phase, Profile, Verify};
use crate::replay::Replay;
use crate::report::{Counts, FlowNow, FlowReport, Interval, LatencyUs};
use crate::schedule::Due;
use crate::template::{Ends, Template};
use crate::{Error, FLOW_LATENCIES_LIMIT, FLOWS_REPORTED_LIMIT};

/// Replayed packets in flight. A packet that returns after more than this many later ones were sent counts as
/// foreign.
const REPLAYED_LIMIT: usize = 1 << 17;
const _: () = assert!(REPLAYED_LIMIT < MAC_NUMBERS as usize / 2);
/// Longest distinguished latency, in ns; longer ones count as this.
const LATENCY_LIMIT_NS: u64 = 60_000_000_000;
/// Significant digits of latencies: 0.1 % for the run, 1 % for a flow and an interval.
const DIGITS_RUN: u8 = 3;
const DIGITS_FLOW: u8 = 2;
const NONE: u64 = u64::MAX;

/// Frames of a phase or capture.
#[derive(Debug)]
pub(crate) enum SourceFrames {
    Phase {
        phase: Box<Phase>,
        /// One per size, in order.
        templates: Vec<Template>,
    },
    Capture {
        replay: Arc<Replay>,
        /// The uplink for packets of the opener and of the responder.
        uplinks: [usize; 2],
    },
}

/// A flow, or one direction of a replayed one.
#[derive(Debug)]
struct Record {
    sent: u64,
    last_due: u64,
    /// Sequence number of its last packet; [`NONE`] until that is sent.
    last_sequence: u64,
    returned: u64,
    order: OrderTracker,
    pin: PinTracker,
    /// Packets sent by all records that share the pin; valid only in the record [`Record::pin_at`].
    pin_sent: u64,
    duplicated: u64,
    reordered: u64,
    mis_steered: u64,
    expected_moves: u64,
    altered: u64,
    latency: Option<Box<Histogram<u32>>>,
    index: u32,
    /// The record with the pin: both directions of a replayed flow share one.
    pin_at: u32,
    source: u16,
    sent_in_interval: bool,
}

/// A replayed packet in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Replayed {
    sent: u64,
    sequence: u64,
    pin_sequence: u64,
    /// The full number: the stamp holds the lower 20 bits.
    number: u64,
    record: u32,
    index: u32,
    source: u16,
}

/// The kind of change in a returned packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Altered {
    No,
    /// Addresses and ports, and the checksums over them.
    Addresses,
    /// Other bytes.
    Bytes,
}

impl Altered {
    /// Classifies the difference between a frame and the sent one. The two must differ.
    fn of(frame: &[u8], sent: &[u8]) -> Altered {
        if frame.len() != sent.len() {
            return Altered::Bytes;
        }
        // The two Ethernet addresses.
        let mut spans = Vec::from([(0, 12)]);
        let info = match packet::parse(sent) {
            packet::Parsed::Flow(info) => Some(info),
            packet::Parsed::Fragment(of) => Some(of.info),
            _ => None,
        };
        if let Some(info) = info {
            let (l3, l4) = (usize::from(info.l3_offset), usize::from(info.l4_offset));
            match sent.get(l3).map(|first| first >> 4) {
                // The header checksum and the addresses.
                Some(4) => spans.push((l3 + 10, l3 + 20)),
                _ => spans.push((l3 + 8, l3 + 40)),
            }
            match info.protocol {
                model::protocol::UDP => spans.extend([(l4, l4 + 4), (l4 + 6, l4 + 8)]),
                model::protocol::TCP => spans.extend([(l4, l4 + 4), (l4 + 16, l4 + 18)]),
                model::protocol::SCTP => spans.push((l4, l4 + 4)),
                _ => {}
            }
        }
        let differs = frame.iter().zip(sent).enumerate().filter(|(_, (a, b))| a != b);
        let mut places = differs.map(|(at, _)| at);
        match places.all(|at| spans.iter().any(|(from, to)| (*from..*to).contains(&at))) {
            true => Altered::Addresses,
            false => Altered::Bytes,
        }
    }
}

/// The accounting state of a run.
#[derive(Debug)]
pub(crate) struct Measurement {
    pub(crate) sources: Vec<SourceFrames>,
    records: Vec<Record>,
    pub(crate) counts: Counts,
    holes: u64,
    latency: Histogram<u64>,
    interval_latency: Histogram<u32>,
    /// Latency is recorded for one in this many packets.
    latency_of_one_in: u32,
    /// Packets until the next recorded latency.
    until_latency: u32,
    /// Indexed by number modulo the length; empty without replays.
    replayed: Vec<Replayed>,
    next_number: u64,
    verify: Verify,
    idle_timeout: u64,
    /// Marks of the instances whose flows may move.
    given_up: Vec<u32>,
    start: u64,
    scratch: Vec<u8>,
    last_interval: Counts,
    last_interval_at: u64,
}

fn histogram<C: hdrhistogram::Counter>(digits: u8) -> Result<Histogram<C>, Error> {
    Histogram::new_with_bounds(1, LATENCY_LIMIT_NS, digits).map_err(|_| Error::Profile {
        key: "latency".into(),
        write: "the histogram cannot be created",
    })
}

impl Measurement {
    /// The frames and flows of a validated profile, and where each source's records start.
    pub(crate) fn new(profile: &Profile, replays: &[Arc<Replay>]) -> Result<(Measurement, Vec<u32>), Error> {
        let mut sources = Vec::new();
        let mut shapes = Vec::new();
        for (index, phase) in profile.phases.iter().enumerate() {
            let templates: Result<Vec<_>, Error> = phase
                .size
                .cycle(phase.form())
                .into_iter()
                .map(|size| Template::new(phase, size))
                .collect();
            shapes.push((phase.flows, 1));
            sources.push(SourceFrames::Phase {
                phase: Box::new(phase.clone()),
                templates: templates.map_err(|e| e.within("phase", index))?,
            });
        }
        for (capture, replay) in profile.captures.iter().zip(replays) {
            shapes.push((2 * replay.flows.len() as u32, 2));
            sources.push(SourceFrames::Capture {
                replay: replay.clone(),
                uplinks: [capture.uplink, capture.reply_uplink.unwrap_or(capture.uplink)],
            });
        }
        let total: u64 = shapes.iter().map(|(count, _)| u64::from(*count)).sum();
        if total > u64::from(crate::profile::FLOWS_LIMIT) {
            return Err(Error::Profile {
                key: "capture".into(),
                write: "at most 2097152 flows in all",
            });
        }
        let mut records = Vec::with_capacity(total as usize);
        let mut first_records = Vec::new();
        for (source, (count, streams)) in shapes.into_iter().enumerate() {
            let first = records.len() as u32;
            first_records.push(first);
            for index in 0..count {
                let latency = match total as usize <= FLOW_LATENCIES_LIMIT {
                    true => Some(Box::new(histogram(DIGITS_FLOW)?)),
                    false => None,
                };
                records.push(Record {
                    sent: 0,
                    last_due: 0,
                    last_sequence: NONE,
                    returned: 0,
                    order: OrderTracker::default(),
                    pin: PinTracker::default(),
                    pin_sent: 0,
                    duplicated: 0,
                    reordered: 0,
                    mis_steered: 0,
                    expected_moves: 0,
                    altered: 0,
                    latency,
                    index,
                    pin_at: first + index - index % streams,
                    source: source as u16,
                    sent_in_interval: false,
                });
            }
        }
        let longest = sources
            .iter()
            .map(|source| match source {
                SourceFrames::Phase { templates, .. } => {
                    templates.iter().map(Template::len).max().unwrap_or(0)
                }
                SourceFrames::Capture { replay, .. } => replay.longest_frame(),
            })
            .max()
            .unwrap_or(0);
        let measurement = Measurement {
            sources,
            records,
            counts: Counts::default(),
            holes: 0,
            latency: histogram(DIGITS_RUN)?,
            interval_latency: histogram(DIGITS_FLOW)?,
            latency_of_one_in: 1,
            until_latency: 0,
            replayed: match replays.is_empty() {
                true => Vec::new(),
                false => vec![
                    Replayed {
                        number: NONE,
                        ..Replayed::default()
                    };
                    REPLAYED_LIMIT
                ],
            },
            next_number: 0,
            verify: profile.verify,
            idle_timeout: profile.idle_timeout.map_or(NONE, |span| span.as_nanos()),
            given_up: Vec::new(),
            start: 0,
            scratch: vec![0; longest],
            last_interval: Counts::default(),
            last_interval_at: 0,
        };
        Ok((measurement, first_records))
    }

    /// The longest frame sent into each uplink.
    pub(crate) fn longest_frames(&self, uplinks: usize) -> Vec<usize> {
        let mut longest = vec![0; uplinks];
        for source in &self.sources {
            let (uplinks, len) = match source {
                SourceFrames::Phase { phase, templates } => (
                    [phase.uplink; 2],
                    templates.iter().map(Template::len).max().unwrap_or(0),
                ),
                SourceFrames::Capture { replay, uplinks } => (*uplinks, replay.longest_frame()),
            };
            for uplink in uplinks {
                longest[uplink] = len.max(longest[uplink]);
            }
        }
        longest
    }

    /// Records latency for one in this many packets from now on.
    pub(crate) fn measure_latency_of_one_in(&mut self, packets: u32) {
        self.latency_of_one_in = packets.max(1);
    }

    pub(crate) fn begin(&mut self, now: u64) {
        self.start = now;
        self.last_interval_at = now;
    }

    /// Marks an instance as failed or purged: its flows may move.
    pub(crate) fn expect_moves_from(&mut self, instance: u32) {
        for mark in [
            stamp::instance_mark(instance),
            u32::from(stamp::instance_mac_mark(instance)),
        ] {
            if !self.given_up.contains(&mark) {
                self.given_up.push(mark);
            }
            // The event may come late.
            for record in &mut self.records {
                let (moves, forgiven) = record.pin.forgive(mark);
                record.mis_steered = record.mis_steered.saturating_sub(forgiven);
                record.expected_moves += moves;
                self.counts.mis_steered = self.counts.mis_steered.saturating_sub(forgiven);
                self.counts.expected_moves += moves;
            }
        }
    }

    /// The uplink for a packet.
    pub(crate) fn uplink(&self, due: &Due) -> usize {
        match &self.sources[usize::from(due.source)] {
            SourceFrames::Phase { phase, .. } => phase.uplink,
            SourceFrames::Capture { replay, uplinks } => {
                uplinks[(replay.packets[due.index as usize].stream & 1) as usize]
            }
        }
    }

    /// The length of the due packet.
    pub(crate) fn frame_len(&self, due: &Due) -> usize {
        match &self.sources[usize::from(due.source)] {
            SourceFrames::Phase { templates, .. } => {
                let sequence = self.records[due.record as usize].sent;
                templates[size_index(templates.len(), sequence, due.index)].len()
            }
            SourceFrames::Capture { replay, .. } => replay.frame(due.index).len(),
        }
    }

    /// Writes the due packet into `buffer`, counts it as offered, and returns its length. `due_at` is on the
    /// monotonic clock.
    pub(crate) fn send(&mut self, due: &Due, due_at: u64, buffer: &mut [u8]) -> usize {
        let pin_at = self.records[due.record as usize].pin_at as usize;
        let opens_again = match &self.sources[usize::from(due.source)] {
            SourceFrames::Phase { .. } => false,
            SourceFrames::Capture { replay, .. } => replay.packets[due.index as usize].opens_again,
        };
        let pin_sequence = {
            let pin_record = &mut self.records[pin_at];
            let sequence = pin_record.pin_sent;
            let was_idle = due_at.saturating_sub(pin_record.last_due) >= self.idle_timeout;
            if sequence > 0 && (opens_again || was_idle) {
                pin_record.pin.begin_again(sequence);
            }
            pin_record.pin_sent += 1;
            pin_record.last_due = due_at;
            sequence
        };
        let record = &mut self.records[due.record as usize];
        let sequence = record.sent;
        record.sent += 1;
        record.sent_in_interval = true;
        if due.last {
            record.last_sequence = sequence;
        }
        let len = match &self.sources[usize::from(due.source)] {
            SourceFrames::Phase { templates, .. } => {
                let template = &templates[size_index(templates.len(), sequence, due.index)];
                let stamp = Stamp {
                    flow: due.record,
                    sequence: sequence as u32,
                    sent: stamp::truncated_time(due_at),
                    instance: 0,
                };
                template.render(
                    buffer,
                    due.index,
                    &stamp,
                    Ends {
                        first: sequence == 0,
                        last: due.last,
                    },
                );
                template.len()
            }
            SourceFrames::Capture { replay, .. } => {
                let frame = replay.frame(due.index);
                buffer[..frame.len()].copy_from_slice(frame);
                let number = self.next_number;
                self.next_number += 1;
                let mac = MacStamp {
                    number: (number % u64::from(MAC_NUMBERS)) as u32,
                    instance: 0,
                };
                buffer[6..12].copy_from_slice(&mac.to_mac());
                self.replayed[number as usize % REPLAYED_LIMIT] = Replayed {
                    sent: due_at,
                    sequence,
                    pin_sequence,
                    number,
                    record: due.record,
                    index: due.index,
                    source: due.source,
                };
                frame.len()
            }
        };
        self.counts.offered_packets += 1;
        self.counts.offered_bytes += len as u64;
        len
    }

    /// Records that a packet from [`Measurement::send`] was not sent because its uplink was full or its peer away.
    pub(crate) fn lost_at_uplink(&mut self, is_away: bool) {
        self.counts.lost_at_uplink += 1;
        self.counts.lost_in_restarts += u64::from(is_away);
    }

    /// Records that an uplink's peer has gone: packets sent after the last returned one of each flow are lost with
    /// it.
    pub(crate) fn peer_went(&mut self) {
        let under_way = |record: &Record| record.sent.saturating_sub(record.order.next());
        self.counts.lost_in_restarts += self.records.iter().map(under_way).sum::<u64>();
    }

    /// Accounts for a frame received on `port`.
    pub(crate) fn receive(&mut self, port: usize, frame: &[u8], now: u64) {
        let replayed = if self.replayed.is_empty() {
            None
        } else {
            self.find_replayed(frame)
        };
        let known = match replayed {
            Some((packet, instance)) => self.receive_replayed(port, frame, now, packet, instance),
            None => self.receive_generated(port, frame, now),
        };
        if known.is_none() {
            self.counts.foreign += 1;
        }
    }

    fn find_replayed(&self, frame: &[u8]) -> Option<(Replayed, u32)> {
        let mac = stamp::read_mac(frame)?;
        // The most recent number with these lower bits.
        let period = u64::from(MAC_NUMBERS);
        let newest = self.next_number.checked_sub(1)?;
        let behind = (newest % period + period - u64::from(mac.number)) % period;
        let number = newest.checked_sub(behind)?;
        let packet = self.replayed[number as usize % REPLAYED_LIMIT];
        (packet.number == number).then_some((packet, u32::from(mac.instance)))
    }

    fn receive_replayed(
        &mut self,
        port: usize,
        frame: &[u8],
        now: u64,
        packet: Replayed,
        instance: u32,
    ) -> Option<()> {
        let SourceFrames::Capture { replay, uplinks } = &self.sources[usize::from(packet.source)] else {
            return None;
        };
        let sent = replay.frame(packet.index);
        let responder = (replay.packets[packet.index as usize].stream & 1) as usize;
        let expected_port = uplinks[1 - responder];
        let is_altered = match self.verify {
            Verify::Off => false,
            Verify::Payload => frame.get(12..) != sent.get(12..),
            Verify::Exact => {
                frame.get(12..) != sent.get(12..)
                    || frame.get(..6) != sent.get(..6)
                    || MacStamp::from_mac(&frame[6..]).is_none()
            }
        };
        let altered = match is_altered {
            false => Altered::No,
            true => Altered::of(frame, sent),
        };
        let age = now.saturating_sub(packet.sent);
        self.arrived(
            port == expected_port,
            frame.len(),
            packet.record as usize,
            packet.sequence,
            packet.pin_sequence,
            age,
            instance,
            altered,
        );
        Some(())
    }

    fn receive_generated(&mut self, port: usize, frame: &[u8], now: u64) -> Option<()> {
        let stamp = stamp::read(frame)?;
        let age = stamp.age(now).filter(|age| *age <= now - self.start)?;
        let record = self.records.get(stamp.flow as usize)?;
        let SourceFrames::Phase { phase, templates } = &self.sources[usize::from(record.source)] else {
            return None;
        };
        // The stamp holds the lower 32 bits of the sequence number.
        let newest = record.sent.checked_sub(1)?;
        let behind = u64::from((newest as u32).wrapping_sub(stamp.sequence));
        let sequence = newest.checked_sub(behind)?;
        let altered = match self.verify {
            Verify::Off => Altered::No,
            verify => {
                let template = &templates[size_index(templates.len(), sequence, record.index)];
                let ends = Ends {
                    first: sequence == 0,
                    last: sequence == record.last_sequence,
                };
                let sent = &mut self.scratch[..template.len()];
                template.render(sent, record.index, &stamp, ends);
                let from = if verify == Verify::Exact { 0 } else { 12 };
                match frame.get(from..) != sent.get(from..) {
                    false => Altered::No,
                    true => Altered::of(frame, sent),
                }
            }
        };
        let port_is_right = port == phase.returns();
        self.arrived(
            port_is_right,
            frame.len(),
            stamp.flow as usize,
            sequence,
            sequence,
            age,
            stamp.instance,
            altered,
        );
        Some(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of one packet, from two callers"
    )]
    fn arrived(
        &mut self,
        port_is_right: bool,
        len: usize,
        at: usize,
        sequence: u64,
        pin_sequence: u64,
        age: u64,
        instance: u32,
        altered: Altered,
    ) {
        let pin_at = self.records[at].pin_at as usize;
        let is_overtaken = self.records[pin_at]
            .pin
            .is_overtaken(pin_sequence, usize::from(at != pin_at));
        let record = &mut self.records[at];
        let counts = &mut self.counts;
        let holes = record.order.holes();
        let arrival = record.order.arrive(sequence);
        self.holes = self.holes - holes + record.order.holes();
        match arrival {
            Arrival::Reordered if is_overtaken => {
                record.reordered += 1;
                counts.reordered += 1;
            }
            Arrival::Duplicate => {
                record.duplicated += 1;
                counts.duplicated += 1;
            }
            Arrival::BeyondWindow => counts.beyond_window += 1,
            // Also one that a packet of another connection has passed.
            Arrival::InOrder | Arrival::Reordered => {}
        }
        if matches!(arrival, Arrival::InOrder | Arrival::Reordered) {
            record.returned += 1;
            counts.returned_packets += 1;
            counts.returned_bytes += len as u64;
            if self.until_latency == 0 {
                self.until_latency = self.latency_of_one_in;
                let age = age.clamp(1, LATENCY_LIMIT_NS);
                self.latency.saturating_record(age);
                self.interval_latency.saturating_record(age);
                if let Some(latency) = &mut record.latency {
                    latency.saturating_record(age);
                }
            }
            self.until_latency -= 1;
        }
        counts.wrong_uplink += u64::from(!port_is_right);
        counts.altered += u64::from(altered != Altered::No);
        counts.addresses_rewritten += u64::from(altered == Altered::Addresses);
        record.altered += u64::from(altered != Altered::No);
        let pin = &mut self.records[pin_at].pin;
        match pin.returned(pin_sequence, instance, &self.given_up) {
            Steer::Kept => {}
            Steer::Unstamped => counts.unstamped += 1,
            Steer::ExpectedMove => {
                counts.expected_moves += 1;
                self.records[at].expected_moves += 1;
            }
            Steer::MisSteered => {
                counts.mis_steered += 1;
                self.records[at].mis_steered += 1;
            }
        }
    }

    /// Packets known to be lost so far.
    pub(crate) fn lost_so_far(&self) -> u64 {
        self.holes
    }

    /// Returns the current state and starts the next interval.
    pub(crate) fn interval(&mut self, now: u64) -> Interval {
        let listed = self.records.len().min(FLOW_LATENCIES_LIMIT);
        let flows = self.records[..listed]
            .iter()
            .filter(|r| r.sent > 0)
            .map(|r| FlowNow {
                index: r.index,
                source: r.source,
                instance: self.records[r.pin_at as usize].pin.home(),
                offered_packets: r.sent,
                returned_packets: r.returned,
                is_active: r.sent_in_interval,
            })
            .collect();
        let interval = Interval {
            at_s: (now - self.start) as f64 / 1e9,
            length_s: (now - self.last_interval_at) as f64 / 1e9,
            counts: self.counts,
            offered_packets: self.counts.offered_packets - self.last_interval.offered_packets,
            returned_packets: self.counts.returned_packets - self.last_interval.returned_packets,
            lost_so_far: self.lost_so_far(),
            latency_us: LatencyUs::of(&self.interval_latency),
            flows,
        };
        self.last_interval = self.counts;
        self.last_interval_at = now;
        self.interval_latency.reset();
        for record in &mut self.records[..listed] {
            record.sent_in_interval = false;
        }
        interval
    }

    /// Frames of captures that were not sent.
    pub(crate) fn skipped_frames(&self) -> u64 {
        let skipped = |source: &SourceFrames| match source {
            SourceFrames::Phase { .. } => 0,
            SourceFrames::Capture { replay, .. } => replay.skipped,
        };
        self.sources.iter().map(skipped).sum()
    }

    #[cfg(test)]
    pub(crate) fn recorded_latencies(&self) -> u64 {
        self.latency.len()
    }

    pub(crate) fn latency(&self) -> LatencyUs {
        LatencyUs::of(&self.latency)
    }

    /// The number of flows sent, and each flow unless there are too many.
    pub(crate) fn flows(&self) -> (usize, Vec<FlowReport>) {
        let sent = || self.records.iter().filter(|r| r.sent > 0);
        let count = sent().count();
        if count > FLOWS_REPORTED_LIMIT {
            return (count, Vec::new());
        }
        let flows = sent()
            .map(|r| FlowReport {
                index: r.index,
                source: r.source,
                name: self.name(r),
                offered_packets: r.sent,
                returned_packets: r.returned,
                lost: r.sent - r.returned,
                duplicated: r.duplicated,
                reordered: r.reordered,
                mis_steered: r.mis_steered,
                expected_moves: r.expected_moves,
                altered: r.altered,
                instance: self.records[r.pin_at as usize].pin.home(),
                latency_us: r.latency.as_deref().map(LatencyUs::of),
            })
            .collect();
        (count, flows)
    }

    fn name(&self, record: &Record) -> String {
        match &self.sources[usize::from(record.source)] {
            SourceFrames::Phase { phase, .. } => {
                let src = match phase.src {
                    std::net::IpAddr::V4(a) => {
                        std::net::IpAddr::V4(u32::from(a).wrapping_add(record.index).into())
                    }
                    std::net::IpAddr::V6(a) => {
                        let low = (u128::from(a) as u32).wrapping_add(record.index);
                        std::net::IpAddr::V6((u128::from(a) >> 32 << 32 | u128::from(low)).into())
                    }
                };
                let tuple = model::Tuple {
                    src,
                    dst: phase.dst,
                    src_port: phase.src_port,
                    dst_port: phase.dst_port,
                    protocol: match phase.form().transport {
                        stamp::Transport::Udp => model::protocol::UDP,
                        stamp::Transport::Tcp => model::protocol::TCP,
                    },
                    vlan: phase.vlan.first().copied().unwrap_or(0),
                };
                tuple.to_string()
            }
            SourceFrames::Capture { replay, .. } => {
                let side = if record.index.is_multiple_of(2) {
                    ""
                } else {
                    " (replies)"
                };
                format!("{}{side}", replay.flows[(record.index / 2) as usize])
            }
        }
    }
}

/// The index of a packet's size. Flows start at different sizes, so that their large packets do not coincide.
fn size_index(sizes: usize, sequence: u64, flow: u32) -> usize {
    match sizes {
        1 => 0,
        n => ((sequence + u64::from(flow)) % n as u64) as usize,
    }
}
