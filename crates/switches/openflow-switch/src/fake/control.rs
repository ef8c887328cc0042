//! The end of the connection: messages wait, are carried out and answered.

use std::collections::HashMap;

use model::Nanos;
use openflow::{
    ErrorMessage, Event, Features, Field, FlowStats, Limits, Match, Message, MultipartReply,
    MultipartRequest, PacketIn, PacketInReason, Session, SessionError, Side,
};

use super::{FakeNic, Refusal, Rule};

impl FakeNic {
    /// The connection is cut; what was under way in it is lost. A new one can be made at once.
    pub fn disconnect(&mut self, now: Nanos) {
        self.session = Session::new(Side::Switch, Limits::default(), now.0);
        self.control.clear();
        self.bundles.clear();
        self.busy_until = now;
    }

    /// Takes what came by the connection.
    ///
    /// # Errors
    /// Where it is not OpenFlow: the connection is to be cut.
    pub fn receive(&mut self, bytes: &[u8], now: Nanos) -> Result<(), SessionError> {
        self.session.receive(bytes, now.0);
        while let Some(event) = self.session.next_event()? {
            if let Event::Message { xid, message } = event {
                self.take(xid, message, now);
            }
        }
        Ok(())
    }

    /// Puts a message in its place among those that wait.
    pub(super) fn take(&mut self, xid: u32, message: Message, now: Nanos) {
        let delay = Nanos(self.below(self.faults.control_delay.0 + 1));
        if matches!(message, Message::FlowMod(_) | Message::BundleAdd { .. }) {
            self.busy_until = self.busy_until.max(now) + self.faults.rule_time;
        }
        let is_barrier = matches!(message, Message::BarrierRequest);
        let last = self.control.back().map_or(now, |(at, ..)| *at);
        let is_of_bundle = matches!(message, Message::BundleControl(_) | Message::BundleAdd { .. });
        let earliest = match self.faults.reorders && !is_barrier && !is_of_bundle {
            true => self.barrier_at,
            false => last.max(self.barrier_at),
        };
        let at = (now + delay).max(earliest).max(self.busy_until);
        if is_barrier {
            self.barrier_at = at;
        }
        let place = self.control.partition_point(|(before, ..)| *before <= at);
        self.control.insert(place, (at, xid, message));
    }

    /// What waits to be written to the connection.
    pub fn output(&self) -> &[u8] {
        self.session.output()
    }

    /// That many bytes of it were written.
    pub fn written(&mut self, bytes: usize) {
        self.session.written(bytes);
    }

    pub(super) fn say(&mut self, message: &Message) {
        // A controller that does not read loses what has no room, as with a real one.
        let _no_room = self.session.send(message);
    }

    pub(super) fn carry_out(&mut self, xid: u32, message: Message, now: Nanos) {
        for number in 0..self.faults.packet_in_flood {
            self.say(&Message::PacketIn(PacketIn {
                total_bytes: 60,
                reason: PacketInReason::NoMatch,
                table: 0,
                cookie: number,
                context: Match::new([Field::in_port(1)]),
                data: vec![number as u8; 60],
            }));
        }
        if self.happens(self.faults.garbage_one_in) {
            let body = (0..32).map(|_| self.below(256) as u8).collect();
            let kind = self.below(40) as u8;
            self.say(&Message::Other { kind, body });
        }
        let answer = match message {
            Message::FeaturesRequest => Message::FeaturesReply(Features {
                datapath: 1,
                tables: 254,
                ..Features::default()
            }),
            Message::BarrierRequest => Message::BarrierReply,
            Message::FlowMod(flow) => match self.change(flow) {
                Ok(()) => return,
                Err(refusal) => refused(refusal),
            },
            Message::BundleControl(_) | Message::BundleAdd { .. } if self.faults.knows_no_bundles => {
                refused((ErrorMessage::BAD_REQUEST, 1))
            }
            Message::BundleControl(control) => match self.step_bundle(control) {
                Ok(done) => done,
                Err(refusal) => refused(refusal),
            },
            Message::BundleAdd { bundle, message, .. } => match (self.bundles.get_mut(&bundle), *message) {
                (Some(of), Message::FlowMod(flow)) => return of.push((xid, flow)),
                _ => refused((ErrorMessage::BUNDLE_FAILED, 2)),
            },
            // What Open vSwitch is asked for in a message of its own: to forget the connections of the zone at its
            // end.
            Message::Other { body, .. } => {
                let forgotten = body.last_chunk::<2>().map(|zone| u16::from_be_bytes(*zone));
                self.marks.retain(|(zone, _), _| Some(*zone) != forgotten);
                return;
            }
            Message::PacketOut(out) => {
                self.packet_out(&out, now);
                return;
            }
            Message::MultipartRequest(MultipartRequest::Flows(filter)) => {
                let all = (self.rules.values().flat_map(HashMap::values))
                    .filter(|rule| (rule.flow.cookie ^ filter.cookie) & filter.cookie_mask == 0);
                let flows: Vec<FlowStats> = all.map(shown).collect();
                // As many as surely fit a message.
                let mut parts = flows.chunks(100).peekable();
                if parts.peek().is_none() {
                    let reply = MultipartReply::Flows(Vec::new());
                    let _no_room = self
                        .session
                        .answer(xid, &Message::MultipartReply { more: false, reply });
                }
                while let Some(part) = parts.next() {
                    let reply = MultipartReply::Flows(part.to_vec());
                    let more = parts.peek().is_some();
                    let _no_room = self.session.answer(xid, &Message::MultipartReply { more, reply });
                }
                return;
            }
            Message::MultipartRequest(MultipartRequest::Ports(_)) => Message::MultipartReply {
                more: false,
                reply: MultipartReply::Ports(self.ports.values().copied().collect()),
            },
            _ => return,
        };
        let _no_room = self.session.answer(xid, &answer);
    }
}

pub(super) fn refused((kind, code): Refusal) -> Message {
    Message::Error(ErrorMessage {
        kind,
        code,
        data: Vec::new(),
    })
}

pub(super) fn shown(rule: &Rule) -> FlowStats {
    FlowStats {
        table: rule.flow.table,
        priority: rule.flow.priority,
        flags: rule.flow.flags.0,
        cookie: rule.flow.cookie,
        packets: rule.shown.0,
        bytes: rule.shown.1,
        matches: rule.flow.matches.clone(),
        instructions: rule.flow.instructions.clone(),
        ..FlowStats::default()
    }
}
