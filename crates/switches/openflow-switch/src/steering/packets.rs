//! Frames that come out of the monitor port, and packets that come by the connection.

use model::{FlowKey, FlowSetup, Nanos, Slot, Tuple};
use openflow::{Action, Message, PacketIn, PacketOut};
use packet::{PacketInfo, Parsed, parse};

use super::{Outgoing, Steering};
use crate::flows::FlowId;
use crate::rules::{Side, Tag, data_port, has_ports, is_probe};

impl Steering {
    /// A frame came out of the monitor port.
    pub fn monitor(&mut self, frame: &[u8], now: Nanos) {
        match Tag::take(frame) {
            Some((Tag::Marked(round), _)) => self.prover.marked(round),
            Some((Tag::Instance(slot, _), packet)) if is_probe(&packet) => {
                self.counted.slots.entry(slot).or_default().probes_back += 1;
            }
            Some((Tag::Instance(slot, uplink), packet)) => self.copied(slot, uplink, &packet, now),
            Some((Tag::Held(uplink), packet)) => self.held(uplink, &packet, now),
            Some((Tag::Marker, _)) | None => self.counted.figures.unknown_frames += 1,
        }
    }

    /// The service, the side and the flow of a packet that was received on an uplink.
    pub(super) fn find(&self, uplink: u8, packet: &[u8]) -> Option<(usize, usize, FlowId, usize)> {
        let tuple = seen_by_switch(packet)?;
        self.find_tuple(|side| side.uplink == uplink, &tuple)
    }

    /// The same of a packet with these addresses, as it travels, where such sides are its.
    pub(super) fn find_tuple(
        &self,
        is_its: impl Fn(&Side) -> bool,
        tuple: &Tuple,
    ) -> Option<(usize, usize, FlowId, usize)> {
        self.services.iter().enumerate().find_map(|(index, service)| {
            let takes = |side: &Side| is_its(side) && side.takes(tuple);
            let place = service.rules.sides.iter().position(takes)?;
            let is_answering = service.rules.sides.get(place)?.is_answering;
            let bucket = match self.settings.setup {
                FlowSetup::Proactive => service.rules.spread.bucket(tuple, is_answering),
                FlowSetup::Reactive => 0,
            };
            Some((index, place, FlowId::new(tuple, is_answering), bucket))
        })
    }

    pub(super) fn copied(&mut self, slot: Slot, uplink: u8, packet: &[u8], now: Nanos) {
        let Some((service, _, id, bucket)) = self.find(uplink, packet) else {
            self.counted.figures.unknown_frames += 1;
            return;
        };
        if !self.book.flows.contains_key(&id) {
            if !self.instances.contains_key(&slot) {
                return;
            }
            self.enter(id, (service, bucket), slot, now);
        }
        if let Some(of) = self.count(id, packet.len(), now)
            && of != slot
        {
            self.counted.figures.mis_steered += 1;
        }
    }

    pub(super) fn held(&mut self, uplink: u8, packet: &[u8], now: Nanos) {
        let Some((service, side, id, bucket)) = self.find(uplink, packet) else {
            self.counted.figures.unknown_frames += 1;
            return;
        };
        if !self.book.flows.contains_key(&id) {
            let slot = self.bucket((service, bucket)).and_then(|bucket| bucket.slot);
            let Some(slot) = slot else {
                self.counted.figures.unserved += 1;
                return;
            };
            self.enter(id, (service, bucket), slot, now);
        }
        let slot = match self.count(id, packet.len(), now) {
            Some(slot) => slot,
            // It found no place among the flows known.
            None => match self.bucket((service, bucket)).and_then(|bucket| bucket.slot) {
                Some(slot) => slot,
                None => return,
            },
        };
        let number = self.services.get(service).and_then(|of| of.rules.sides.get(side));
        let number = number.map_or(0, |side| side.data_port);
        self.counted.figures.held_packets += 1;
        if !self.inject(Tag::Instance(slot, number).put(packet)) {
            self.counted.figures.inject_full += 1;
        }
    }

    /// Gives a frame to the monitor port. Returns whether there was room.
    pub(super) fn inject(&mut self, frame: Vec<u8>) -> bool {
        let has_room = self.injections.len() < self.settings.inject_limit;
        if has_room {
            self.injections.push_back(frame);
        }
        has_room
    }

    pub(super) fn packet_in(&mut self, packet: &PacketIn, now: Nanos) {
        let Some(side_port) = packet.in_port() else { return };
        let uplink = self.services.iter().find_map(|service| {
            let side = service.rules.sides.iter().find(|side| side.port == side_port)?;
            Some(side.uplink)
        });
        let Some((service, side, id, bucket)) = uplink.and_then(|uplink| self.find(uplink, &packet.data))
        else {
            self.counted.figures.unknown_frames += 1;
            return;
        };
        if !self.book.flows.contains_key(&id) {
            let Some(slot) = self.pick(service, &id, now) else {
                self.counted.figures.unserved += 1;
                return;
            };
            self.enter(id, (service, bucket), slot, now);
        }
        let Some(slot) = self.count(id, packet.data.len(), now) else {
            return;
        };
        let number = self.services.get(service).and_then(|of| of.rules.sides.get(side));
        let number = number.map_or(0, |side| side.data_port);
        let Some(instance) = self.instances.get(&slot) else {
            return;
        };
        if self.outbox.len() >= 2 * self.settings.queue_limit {
            self.counted.figures.inject_full += 1;
            return;
        }
        self.outbox
            .queue
            .push_back(Outgoing::Message(Message::PacketOut(PacketOut {
                in_port: side_port,
                actions: vec![Action::output(data_port(&instance.ports, number))],
                data: packet.data.clone(),
            })));
    }

    /// The next frame for the monitor port.
    pub fn next_injection(&mut self) -> Option<Vec<u8>> {
        self.injections.pop_front()
    }
}

/// A packet's addresses as a switch matches them: those of its own header, also in an ICMP error; ports only where
/// the protocol has ports that rules match, and none in fragments.
pub(super) fn seen_by_switch(packet: &[u8]) -> Option<Tuple> {
    let (info, is_whole) = match parse(packet) {
        Parsed::Flow(info) => (info, true),
        Parsed::Fragment(fragment) => (fragment.info, false),
        Parsed::Other { .. } | Parsed::Invalid(_) => return None,
    };
    let (src, dst) = own_addresses(packet, &info)?;
    let ports = info.key.tuple(info.direction);
    let has_ports = is_whole && !info.is_icmp_error && has_ports(info.protocol);
    Some(Tuple {
        src,
        dst,
        src_port: if has_ports { ports.src_port } else { 0 },
        dst_port: if has_ports { ports.dst_port } else { 0 },
        protocol: info.protocol,
        vlan: info.vlan,
    })
}

pub(super) fn own_addresses(
    packet: &[u8],
    info: &PacketInfo,
) -> Option<(std::net::IpAddr, std::net::IpAddr)> {
    let header = packet.get(usize::from(info.l3_offset)..)?;
    Some(match info.key {
        FlowKey::V4(_) => {
            let of = |from: usize| header.get(from..)?.first_chunk::<4>().copied();
            (of(12)?.into(), of(16)?.into())
        }
        FlowKey::V6(_) => {
            let of = |from: usize| header.get(from..)?.first_chunk::<16>().copied();
            (of(8)?.into(), of(24)?.into())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steering::Settings;

    #[test]
    fn a_probe_that_finds_no_room_is_no_dropped_packet() {
        let settings = Settings {
            inject_limit: 2,
            ..Settings::default()
        };
        let mut steering = Steering::new(settings, Vec::new(), 15);
        let sent = [1, 1, 2].map(|slot| steering.probe(Slot(slot), 0));
        assert_eq!(sent, [true, true, false]);
        assert_eq!(steering.figures().inject_full, 0);
        assert_eq!([1, 2].map(|slot| steering.queued_probes(Slot(slot))), [2, 0]);
    }
}
