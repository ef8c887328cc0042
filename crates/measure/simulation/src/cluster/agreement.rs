//! How edges agree on the machine of a flow, and what it costs.
//!
//! | mechanism | at set-up | when another edge gets the flow |
//! | --- | --- | --- |
//! | `second_look` | nothing | the packet names the other machines; one without the pin forwards it |
//! | `hash` | nothing | the hash, as far as machines have not changed |
//! | `announce` | a pin to each other edge, in batches | the edge has it |
//! | `forward` | the first packets go to the owner of the hash, which answers | likewise |
//! | `alone` | nothing | it picks anew |

use edge_steering::{MachineId, ONWARD_BYTES};
use model::Slot;

use super::Run;
use super::flows::{Flow, bit};
use super::keys::Agreement;

/// A pin in a message between edges: 8 bytes of the flow's keyed hash, 4 of the key's check, 2 of machine, 2 of age.
const PIN_BYTES: f64 = 16.0;
/// Bytes of a datagram with pins beside them: those of a report without rows.
const DATAGRAM_BYTES: f64 = 60.0;
/// Pins of a datagram at most.
const PINS_OF_DATAGRAM: f64 = 83.0;

impl Run<'_> {
    /// The machine of a flow's first packet, and which edges pin it.
    pub(super) fn set_up(&mut self, flow: &mut Flow) -> Option<MachineId> {
        let edge = flow.edge;
        let mut picks = edge;
        if self.cluster.agreement == Agreement::Forward
            && let (Some(owner), _) = self.owners.of(flow.hash)
            && owner != edge
            && self.is_edge_up(owner)
        {
            // The first packets go through the owner until its answer is here.
            picks = owner;
            let packets = self.packets_within(flow, 2.0);
            let counts = &mut self.measure.counts;
            counts.extra_hops += packets;
            counts.messages += 1.0;
            counts.bytes += DATAGRAM_BYTES + PIN_BYTES;
        }
        let is_hashed = self.cluster.agreement == Agreement::Hash;
        let machines = &mut self.edges.get_mut(usize::from(picks))?.machines;
        let machine = if is_hashed {
            machines.by_hash(flow.hash)?
        } else {
            machines.pick(flow.hash)?.machine
        };
        for of in [edge, picks] {
            self.pin_at(flow, of);
        }
        Some(machine)
    }

    /// An edge pins a flow, if it has not.
    fn pin_at(&mut self, flow: &mut Flow, edge: u8) {
        if !flow.is_pinned_at(edge)
            && let Some(of) = self.edges.get_mut(usize::from(edge))
        {
            flow.pinned_at |= bit(edge);
            of.add_pin();
        }
    }

    /// A flow was pinned at its edge.
    pub(super) fn pinned(&mut self, number: u32, edge: u8) {
        if self.cluster.agreement == Agreement::Announce {
            self.unannounced.push((number, edge));
        }
    }

    /// Edges send the pins of the last interval to each other.
    pub(super) fn announce(&mut self) {
        if self.cluster.agreement != Agreement::Announce {
            return;
        }
        let up: Vec<u8> = (0..self.edges.len() as u8)
            .filter(|edge| self.is_edge_up(*edge))
            .collect();
        let mut sent = vec![0.0_f64; self.edges.len()];
        for (number, from) in std::mem::take(&mut self.unannounced) {
            if let Some(sent) = sent.get_mut(usize::from(from)) {
                *sent += 1.0;
            }
            let Some(mut flow) = self.flows.get(number).copied() else {
                continue;
            };
            for edge in &up {
                self.pin_at(&mut flow, *edge);
            }
            if let Some(place) = self.flows.get_mut(number) {
                *place = flow;
            }
        }
        let peers = up.len().saturating_sub(1) as f64;
        for pins in sent {
            let datagrams = (pins / PINS_OF_DATAGRAM).ceil();
            let counts = &mut self.measure.counts;
            counts.messages += peers * datagrams;
            counts.bytes += peers * (datagrams * DATAGRAM_BYTES + pins * PIN_BYTES);
        }
    }

    /// An edge that begins gets all pins, where edges announce them.
    pub(super) fn copy_pins(&mut self, edge: u8) {
        if self.cluster.agreement != Agreement::Announce {
            return;
        }
        let mut pins = 0_u32;
        for number in self.flows.numbers(|_| true) {
            if let Some(mut flow) = self.flows.get(number).copied() {
                self.pin_at(&mut flow, edge);
                pins += 1;
                if let Some(place) = self.flows.get_mut(number) {
                    *place = flow;
                }
            }
        }
        let datagrams = (f64::from(pins) / PINS_OF_DATAGRAM).ceil();
        self.measure.counts.messages += datagrams;
        self.measure.counts.bytes += datagrams * DATAGRAM_BYTES + f64::from(pins) * PIN_BYTES;
    }

    /// Routers have changed: each flow's next packet comes to the edge that they say now.
    pub(super) fn reroute(&mut self) {
        let unnoticed_s = self.cluster.ecmp_ms as f64 / 1e3;
        for number in self.flows.numbers(|_| true) {
            let Some(mut flow) = self.flows.get(number).copied() else {
                continue;
            };
            let Some(edge) = self.routers.edge(flow.hash).filter(|edge| *edge != flow.edge) else {
                continue;
            };
            let counts = &mut self.measure.counts;
            counts.edge_moved += 1;
            // An edge that leaves in order is down, too, but has lost nothing: its pins are forgotten after this.
            if !flow.is_pinned_at(flow.edge) {
                counts.lost += flow.pps() * unnoticed_s;
            }
            flow.edge = edge;
            if !flow.is_pinned_at(edge) {
                self.measure.counts.looked_up += 1;
                self.find(&mut flow);
                self.pinned(number, edge);
            }
            if let Some(place) = self.flows.get_mut(number) {
                *place = flow;
            }
        }
    }

    /// A packet in the middle of a flow comes to an edge without its pin.
    fn find(&mut self, flow: &mut Flow) {
        let edge = flow.edge;
        let is_found = match self.cluster.agreement {
            Agreement::SecondLook => {
                let look = self
                    .edges
                    .get(usize::from(edge))
                    .map(|edge| edge.machines.look(flow.hash))
                    .unwrap_or_default();
                let asked = look
                    .machines()
                    .iter()
                    .position(|machine| machine.0 == flow.machine);
                if let Some(before) = asked {
                    let before = before as f64;
                    // Each packet until the edge has seen a reply, and knows from which machine it is.
                    let packets = if self.cluster.replies_through_edge {
                        self.packets_within(flow, before + 2.0)
                    } else {
                        self.packets_left(flow)
                    };
                    let counts = &mut self.measure.counts;
                    counts.extra_hops += before * packets;
                    counts.misdirected += if before > 0.0 { packets } else { 0.0 };
                    counts.bytes += ONWARD_BYTES as f64 * packets;
                }
                asked.is_some()
            }
            Agreement::Forward => {
                let (owner, before) = self.owners.of(flow.hash);
                let knows = |of: Option<u8>| of.filter(|of| self.is_edge_up(*of) && flow.is_pinned_at(*of));
                let asked = if knows(owner).is_some() {
                    Some(1.0)
                } else if knows(before).is_some() {
                    Some(2.0)
                } else {
                    None
                };
                if let Some(asked) = asked {
                    let packets = self.packets_within(flow, 2.0 * asked);
                    let counts = &mut self.measure.counts;
                    counts.extra_hops += asked * packets;
                    counts.messages += asked;
                    counts.bytes += asked * (DATAGRAM_BYTES + PIN_BYTES);
                    // The owner of now pins it, too.
                    if let Some(owner) = owner {
                        self.pin_at(flow, owner);
                    }
                }
                asked.is_some()
            }
            Agreement::Hash | Agreement::Announce | Agreement::Alone => false,
        };
        if is_found {
            self.pin_at(flow, edge);
            return;
        }
        // Nobody knows it: as good as new.
        let before = *flow;
        let Some(machine) = self.set_up(flow) else {
            return;
        };
        if machine.0 == before.machine {
            return;
        }
        let had_state = before.slot != Slot::NONE
            && self
                .machines
                .get(usize::from(before.machine))
                .is_some_and(|machine| machine.is_up());
        if had_state {
            self.measure.counts.broken += 1;
        } else {
            self.measure.counts.failed_over += 1;
        }
        self.release(&before);
        flow.machine = machine.0;
        flow.slot = self.accept(edge, machine, flow);
    }

    /// The packets that a flow sends in the time of so many hops, at least one.
    fn packets_within(&self, flow: &Flow, hops: f64) -> f64 {
        1.0 + (flow.pps() * hops * self.cluster.hop_us / 1e6).floor()
    }

    /// The packets that a flow still sends, at least one.
    fn packets_left(&self, flow: &Flow) -> f64 {
        let left = f64::from(flow.ends.saturating_sub(self.interval)) * self.cluster.report_ms as f64 / 1e3;
        (flow.pps() * left).max(1.0)
    }
}
