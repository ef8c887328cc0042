//! The rules: written, deleted, and asked what they say of a packet.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use model::Nanos;
use openflow::{
    Action, BundleControl, BundleStep, ErrorMessage, Field, FieldKind, FlowCommand, FlowFlags, FlowMod,
    FlowRemoved, FlowRemovedReason, Instruction, Match, Message,
};

use super::{ALL_TABLES, Cached, FakeNic, Key, Mask, Place, Refusal, Rule, refused};

impl FakeNic {
    /// Removes a rule as if there were a better use for its place. Whether there was one of that cookie.
    pub fn evict(&mut self, cookie: u64) -> bool {
        let found = (self.rules.values().flat_map(HashMap::values))
            .find(|rule| rule.flow.cookie == cookie)
            .map(|rule| (place(&rule.flow), rule.flow.matches.clone()));
        let Some((place, matches)) = found else {
            return false;
        };
        // Eviction (OFPRR_EVICTION, section 7.4.4 of the specification).
        self.delete(&place, &matches, FlowRemovedReason::Other(5));
        true
    }

    /// Cookies of all its rules.
    pub fn cookies(&self) -> Vec<u64> {
        let rules = self.rules.values().flat_map(HashMap::values);
        let mut cookies: Vec<u64> = rules.map(|rule| rule.flow.cookie).collect();
        cookies.sort_unstable();
        cookies
    }

    /// A bundle is carried out as a whole, or not at all. A rule that it deletes makes no place for one that it adds.
    pub(super) fn step_bundle(&mut self, control: BundleControl) -> Result<Message, Refusal> {
        let answered = |step| Ok(Message::BundleControl(BundleControl { step, ..control }));
        match control.step {
            BundleStep::Open => {
                self.bundles.insert(control.bundle, Vec::new());
                answered(BundleStep::OpenDone)
            }
            BundleStep::Commit => {
                // No bundle of that number (OFPBFC_BAD_ID), or one of its messages failed (OFPBFC_MSG_FAILED).
                let of = self.bundles.remove(&control.bundle);
                let of = of.ok_or((ErrorMessage::BUNDLE_FAILED, 2))?;
                let mut more = 0;
                for (xid, flow) in &of {
                    match self.may_change(flow, more) {
                        Ok(rules) => more += rules,
                        Err(refusal) => {
                            let _no_room = self.session.answer(*xid, &refused(refusal));
                            return Err((ErrorMessage::BUNDLE_FAILED, 13));
                        }
                    }
                }
                of.into_iter().for_each(|(_, flow)| self.carry_out_change(flow));
                answered(BundleStep::CommitDone)
            }
            _ => Err((ErrorMessage::BUNDLE_FAILED, 6)),
        }
    }

    pub(super) fn change(&mut self, flow: FlowMod) -> Result<(), Refusal> {
        self.may_change(&flow, 0)?;
        self.carry_out_change(flow);
        Ok(())
    }

    /// Whether it takes that change after it has `more` rules, and how many it has more then.
    pub(super) fn may_change(&mut self, flow: &FlowMod, more: usize) -> Result<usize, Refusal> {
        match flow.command {
            FlowCommand::Add => {
                let of_place = self.rules.get(&place(flow));
                let is_new = !of_place.is_some_and(|of| of.contains_key(&flow.matches));
                if self.happens(self.faults.refuse_one_in) && is_new {
                    return Err((ErrorMessage::FLOW_MOD_FAILED, 0));
                }
                if is_new && self.rule_count + more >= self.faults.rule_limit {
                    return Err((ErrorMessage::FLOW_MOD_FAILED, ErrorMessage::TABLE_FULL));
                }
                Ok(usize::from(is_new))
            }
            FlowCommand::DeleteStrict => Ok(0),
            FlowCommand::Modify | FlowCommand::ModifyStrict | FlowCommand::Delete => {
                Err((ErrorMessage::BAD_REQUEST, 0))
            }
        }
    }

    pub(super) fn carry_out_change(&mut self, flow: FlowMod) {
        match flow.command {
            FlowCommand::Add => {
                let place = place(&flow);
                let rule = Rule {
                    flow: flow.clone(),
                    packets: 0,
                    bytes: 0,
                    shown: (0, 0),
                };
                let before = self.rules.entry(place).or_default().insert(flow.matches, rule);
                self.rule_count += usize::from(before.is_none());
                self.changed();
            }
            FlowCommand::DeleteStrict => {
                let has_cookie = |rule: &Rule| (rule.flow.cookie ^ flow.cookie) & flow.cookie_mask == 0;
                let (of, priority, shape) = place(&flow);
                let is_meant = |place: &&Place| {
                    (of == ALL_TABLES || place.0 == of) && (place.1, &place.2) == (priority, &shape)
                };
                let places: Vec<Place> = self.rules.keys().filter(is_meant).cloned().collect();
                for place in places {
                    let rule = self.rules.get(&place).and_then(|of| of.get(&flow.matches));
                    if rule.is_some_and(has_cookie) {
                        self.delete(&place, &flow.matches, FlowRemovedReason::Deleted);
                    }
                }
            }
            // It refuses them.
            FlowCommand::Modify | FlowCommand::ModifyStrict | FlowCommand::Delete => {}
        }
    }

    pub(super) fn changed(&mut self) {
        self.version += 1;
        self.is_stale = true;
    }

    pub(super) fn delete(&mut self, place: &Place, matches: &Match, reason: FlowRemovedReason) {
        let Some(rule) = self.rules.get_mut(place).and_then(|of| of.remove(matches)) else {
            return;
        };
        if self.rules.get(place).is_some_and(HashMap::is_empty) {
            self.rules.remove(place);
        }
        self.rule_count -= 1;
        self.changed();
        if rule.flow.flags.0 & FlowFlags::SEND_REMOVED.0 != 0 {
            self.say(&Message::FlowRemoved(FlowRemoved {
                cookie: rule.flow.cookie,
                priority: rule.flow.priority,
                reason,
                table: rule.flow.table,
                duration_ns: 0,
                idle_timeout_s: 0,
                hard_timeout_s: 0,
                packets: rule.packets,
                bytes: rule.bytes,
                matches: matches.clone(),
            }));
        }
    }

    /// What the rules say now about packets with these fields.
    pub(super) fn decide(&self, packet: &Key, used: Nanos) -> Cached {
        let (table, key) = packet;
        // What other fields rest on is always looked at.
        let basic = [
            FieldKind::IN_PORT,
            FieldKind::ETH_TYPE,
            FieldKind::IP_PROTO,
            FieldKind::VLAN_VID,
        ];
        let mut mask = Mask::new();
        for field in key.fields().iter().filter(|field| basic.contains(&field.kind())) {
            mask.insert(field.kind(), vec![0xff; field.value().len()]);
        }
        for (place, rules) in self.rules.iter().filter(|(place, _)| place.0 == *table) {
            let (.., shape) = place;
            let part = shape.iter().map(|(kind, mask)| {
                let field = key.get(*kind)?;
                let exact = Field::new(*kind, field.value());
                Some(match mask {
                    Some(mask) => exact.masked(mask),
                    None => exact,
                })
            });
            let Some(part) = part.collect::<Option<Vec<Field>>>() else {
                continue;
            };
            for field in &part {
                let bits = mask
                    .entry(field.kind())
                    .or_insert_with(|| vec![0; field.value().len()]);
                for (index, bits) in bits.iter_mut().enumerate() {
                    *bits |= field
                        .mask()
                        .map_or(0xff, |mask| mask.get(index).copied().unwrap_or_default());
                }
            }
            let part = Match::new(part);
            if let Some(rule) = rules.get(&part) {
                return Cached {
                    packet: packet.clone(),
                    mask,
                    actions: actions(&rule.flow.instructions),
                    rule: Some((place.clone(), part)),
                    used,
                };
            }
        }
        Cached {
            packet: packet.clone(),
            mask,
            actions: Arc::new([]),
            rule: None,
            used,
        }
    }
}

/// The bits of a packet that a mask names.
pub(super) fn masked((table, packet): &Key, mask: &Mask) -> Key {
    let fields = packet.fields().iter();
    let named = fields
        .filter_map(|field| Some(Field::new(field.kind(), field.value()).masked(mask.get(&field.kind())?)));
    (*table, Match::new(named))
}

/// Whether a mask names no bit that the other one does not.
pub(super) fn is_within(mask: &Mask, other: &Mask) -> bool {
    mask.iter().all(|(kind, bits)| {
        let theirs = other.get(kind);
        theirs.is_some_and(|theirs| bits.iter().zip(theirs).all(|(bits, theirs)| bits & !theirs == 0))
    })
}

pub(super) fn place(flow: &FlowMod) -> Place {
    let fields = flow.matches.fields().iter();
    let shape = fields.map(|field| (field.kind(), field.mask().map(<[u8]>::to_vec)));
    (flow.table, Reverse(flow.priority), shape.collect())
}

pub(super) fn actions(instructions: &[Instruction]) -> Arc<[Action]> {
    let applied = instructions.iter().filter_map(|instruction| match instruction {
        Instruction::ApplyActions(actions) => Some(actions.clone()),
        _ => None,
    });
    applied.flatten().collect()
}
