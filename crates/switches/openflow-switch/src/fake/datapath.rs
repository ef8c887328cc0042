//! Packets: looked up in the cache, and carried to the other ends of ports.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use model::{FlowKey, Nanos};
use openflow::{
    Action, ConnectionTracking, Field, FieldKind, Match, Message, PacketIn, PacketInReason, PacketOut,
    PortStats, port,
};
use packet::{Parsed, parse};

use super::{AtPlace, CACHE_IDLE, Cached, Delivered, FakeNic, Key, Mask, is_within, masked};

impl FakeNic {
    /// The counters of a port. What carries frames to and from it counts them there. It is made with the first
    /// call.
    pub fn port(&mut self, number: u32) -> &mut PortStats {
        self.ports.entry(number).or_insert_with(|| PortStats {
            port: number,
            ..PortStats::default()
        })
    }

    /// Packets that no rule sent anywhere.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// When the next frame arrives at the other end of a port, if none comes in before.
    pub fn next_delivery(&self) -> Option<Nanos> {
        let lines = self.lines.values();
        lines.filter_map(|line| Some(line.front()?.0)).min()
    }

    /// Decides anew for the packet of an entry. One that rests on more than it did cannot stay: others may have to be
    /// told apart.
    pub(super) fn revalidate(&mut self, mask: &Mask, key: &Key, now: Nanos) {
        let found = self.cache.get(mask).and_then(|of| of.get(key));
        let Some((packet, used)) = found.map(|cached| (cached.packet.clone(), cached.used)) else {
            return;
        };
        let decided = self.decide(&packet, used);
        let Some(of) = self.cache.get_mut(mask) else {
            return;
        };
        if is_within(&decided.mask, mask) && now.since(used) < CACHE_IDLE {
            let mask = mask.clone();
            of.insert(key.clone(), Cached { mask, ..decided });
        } else {
            of.remove(key);
        }
    }

    /// What was decided before for such a packet: what is done to it, and by which rule.
    pub(super) fn cached(&mut self, key: &Key, now: Nanos) -> Option<(Arc<[Action]>, Option<AtPlace>)> {
        let found = |(mask, of): (&Mask, &mut BTreeMap<Key, Cached>)| {
            let cached = of.get_mut(&masked(key, mask))?;
            cached.used = now;
            Some((Arc::clone(&cached.actions), cached.rule.clone()))
        };
        self.cache.iter_mut().find_map(found)
    }

    /// A frame comes in by a port.
    pub fn packet(&mut self, in_port: u32, frame: &[u8], now: Nanos) {
        self.look_up((0, fields(in_port, frame)), frame, in_port, now);
    }

    pub(super) fn look_up(&mut self, key: Key, frame: &[u8], in_port: u32, now: Nanos) {
        let (actions, rule) = match self.cached(&key, now) {
            Some(cached) => cached,
            None => {
                let decided = self.decide(&key, now);
                let common = decided.key();
                if !self.entering.iter().any(|(.., of)| of.key() == common) {
                    let last = self.entering.back().map_or(0, |(at, ..)| at.0);
                    let at = Nanos((now.0 + self.below(self.faults.round.0 / 2 + 1)).max(last));
                    self.entering.push_back((at, self.version, decided.clone()));
                }
                (decided.actions, decided.rule)
            }
        };
        if let Some((place, matches)) = &rule
            && let Some(rule) = self.rules.get_mut(place).and_then(|of| of.get_mut(matches))
        {
            rule.packets += 1;
            rule.bytes += frame.len() as u64;
        }
        if actions.is_empty() {
            self.dropped += 1;
        }
        self.execute(&actions, frame, in_port, now);
    }

    pub(super) fn packet_out(&mut self, out: &PacketOut, now: Nanos) {
        self.execute(&out.actions, &out.data, out.in_port, now);
    }

    pub(super) fn execute(&mut self, actions: &[Action], frame: &[u8], in_port: u32, now: Nanos) {
        let mut frame = frame.to_vec();
        for action in actions {
            match action {
                Action::Output { port: to, .. } if *to == port::CONTROLLER => {
                    self.say(&Message::PacketIn(PacketIn {
                        total_bytes: frame.len() as u16,
                        reason: PacketInReason::Action,
                        table: 0,
                        cookie: 0,
                        context: Match::new([Field::in_port(in_port)]),
                        data: frame.clone(),
                    }));
                }
                Action::Output { port: to, .. } => {
                    let to = if *to == port::IN_PORT { in_port } else { *to };
                    self.put(to, frame.clone(), now);
                }
                Action::PushVlan(kind) => {
                    let [high, low] = kind.to_be_bytes();
                    if frame.len() >= 12 {
                        frame.splice(12..12, [high, low, 0, 0]);
                    }
                }
                Action::PopVlan if frame.len() >= 16 => {
                    frame.drain(12..16);
                }
                Action::SetField(field) => {
                    if let Some([high, low]) = frame.get_mut(14..16).and_then(|at| at.first_chunk_mut()) {
                        match (field.kind(), field.value()) {
                            (FieldKind::VLAN_VID, [to_high, to_low]) => {
                                *high = *high & 0xf0 | to_high & 0x0f;
                                *low = *to_low;
                            }
                            (FieldKind::VLAN_PCP, [to]) => *high = *high & 0x1f | to << 5,
                            _ => {}
                        }
                    }
                }
                Action::ConnectionTracking(of) => self.track(of, &frame, in_port, now),
                _ => {}
            }
        }
    }

    /// Both directions of a connection are one.
    pub(super) fn track(&mut self, of: &ConnectionTracking, frame: &[u8], in_port: u32, now: Nanos) {
        let Parsed::Flow(info) = parse(frame) else { return };
        if of.commit {
            let marks = of.actions.iter().filter_map(|action| match action {
                Action::SetField(mark) => Some(*mark),
                _ => None,
            });
            self.marks.extend(marks.map(|mark| ((of.zone, info.key), mark)));
        }
        if let Some(table) = of.table {
            let none = Field::u32(FieldKind::CT_MARK, 0);
            let mark = self.marks.get(&(of.zone, info.key)).copied().unwrap_or(none);
            let known = fields(in_port, frame);
            let key = Match::new(known.fields().iter().copied().chain([mark]));
            self.look_up((table, key), frame, in_port, now);
        }
    }

    pub(super) fn put(&mut self, to: u32, frame: Vec<u8>, now: Nanos) {
        let (shortest, longest) = self.faults.port_delay;
        let delay = shortest.0 + self.below(longest.0.saturating_sub(shortest.0) + 1);
        let line = self.lines.entry(to).or_default();
        let last = line.back().map_or(0, |(at, _)| at.0);
        line.push_back((Nanos((now.0 + delay).max(last)), frame));
    }

    /// What has arrived at the other ends of its ports, in order within each.
    pub fn delivered(&mut self, now: Nanos) -> Vec<Delivered> {
        let mut delivered = Vec::new();
        for (port, line) in &mut self.lines {
            while line.front().is_some_and(|(at, _)| *at <= now) {
                if let Some((_, frame)) = line.pop_front() {
                    delivered.push(Delivered { port: *port, frame });
                }
            }
        }
        delivered
    }

    /// Whether nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.control.is_empty() && self.lines.values().all(VecDeque::is_empty)
    }
}

/// Every field of a frame that a rule can match here.
pub(super) fn fields(in_port: u32, frame: &[u8]) -> Match {
    let mut fields = vec![Field::in_port(in_port)];
    let two = |at: usize| frame.get(at..).and_then(|rest| rest.first_chunk::<2>()).copied();
    let word = |at: usize| two(at).map_or(0, u16::from_be_bytes);
    if word(12) == 0x8100 {
        fields.push(Field::vlan(word(14)));
        fields.push(Field::new(FieldKind::VLAN_PCP, &[(word(14) >> 13) as u8]));
    } else {
        fields.push(Field::no_vlan());
    }
    if let Parsed::Flow(info) = parse(frame) {
        let tuple = info.key.tuple(info.direction);
        fields.push(Field::eth_type(match info.key {
            FlowKey::V4(_) => 0x0800,
            FlowKey::V6(_) => 0x86dd,
        }));
        fields.push(Field::ip_proto(info.protocol));
        fields.push(Field::source(tuple.src));
        fields.push(Field::destination(tuple.dst));
        let ports = match info.protocol {
            model::protocol::TCP => Some((FieldKind::TCP_SRC, FieldKind::TCP_DST)),
            model::protocol::UDP => Some((FieldKind::UDP_SRC, FieldKind::UDP_DST)),
            model::protocol::SCTP => Some((FieldKind::SCTP_SRC, FieldKind::SCTP_DST)),
            _ => None,
        };
        if let Some((source, destination)) = ports {
            fields.push(Field::u16(source, tuple.src_port));
            fields.push(Field::u16(destination, tuple.dst_port));
        }
    } else {
        let behind_tag = if word(12) == 0x8100 { 4 } else { 0 };
        fields.push(Field::eth_type(word(12 + behind_tag)));
    }
    Match::new(fields)
}
