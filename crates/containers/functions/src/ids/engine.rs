//! Compares payloads with a set of rules, and writes the records.

use std::collections::VecDeque;
use std::sync::Arc;

use model::{Nanos, protocol};

use super::alert::Alert;
use super::configuration::Configuration;
use super::flows::{Fate, Marks};
use super::matcher::{self, Buffer, Found, Prefilter};
use super::rule::{Action, Flowbit, Header};
use super::stream::{ACTIVE_RULES_LIMIT, Stream};
use super::threshold::Thresholds;
use super::{DROPPED_BY_RULE, Outcome};

/// Records that wait for the runner, at most.
pub const ALERTS_LIMIT: usize = 4_096;

/// Totals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) inspected: u64,
    pub(super) payload_bytes: u64,
    pub(super) uninspected: u64,
    pub(super) fragments: u64,
    pub(super) bad_checksums: u64,
    pub(super) candidates: u64,
    pub(super) matches: u64,
    pub(super) alerts: u64,
    pub(super) alerts_lost: u64,
    pub(super) alerts_suppressed: u64,
    pub(super) passed: u64,
    pub(super) flows_over_limit: u64,
    pub(super) memory_over_limit: u64,
    pub(super) active_over_limit: u64,
    pub(super) places_over_limit: u64,
}

/// What a set of rules is compared with, and what it writes.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) configuration: Configuration,
    /// The number of the set of rules.
    pub(super) generation: u64,
    pub(super) counters: Counters,
    pub(super) thresholds: Thresholds,
    pub(super) alerts: VecDeque<Alert>,
    pub(super) candidates: Candidates,
}

/// Rules to be compared with the payload in hand, each once.
#[derive(Debug)]
pub(super) struct Candidates {
    rules: Vec<u32>,
    /// By rule: the payload for which it was added last.
    payloads: Vec<u64>,
    payload: u64,
}

impl Candidates {
    pub(super) fn new(rules: usize) -> Candidates {
        Candidates {
            rules: Vec::with_capacity(rules),
            payloads: vec![0; rules],
            payload: 0,
        }
    }

    fn clear(&mut self) {
        self.rules.clear();
        self.payload += 1;
    }

    #[inline]
    fn add(&mut self, rule: u32) {
        if let Some(last) = self
            .payloads
            .get_mut(rule as usize)
            .filter(|last| **last != self.payload)
        {
            *last = self.payload;
            self.rules.push(rule);
        }
    }

    /// Adds the rules whose fast pattern is in a payload, and those without one.
    #[inline]
    fn collect(&mut self, prefilter: &Prefilter, payload: &[u8]) {
        prefilter.search(payload, |rule| self.add(rule));
        prefilter.others.iter().for_each(|rule| self.add(*rule));
    }
}

impl Engine {
    /// Compares a packet that is no part of a stream.
    pub(super) fn by_itself(
        &mut self,
        header: Header,
        payload: &[u8],
        marks: Option<&mut Marks>,
        now: Nanos,
    ) -> Outcome {
        let is_tcp = header.protocol == protocol::TCP;
        self.candidates.clear();
        let configuration = &self.configuration;
        if is_tcp {
            self.candidates.collect(&configuration.streams, payload);
            self.candidates.collect(&configuration.segments, payload);
        } else {
            self.candidates.collect(&configuration.datagrams, payload);
        }
        self.compare(header, Buffer::whole(payload), payload, marks, now)
    }

    /// Compares a segment, and what its stream has got.
    pub(super) fn in_stream(
        &mut self,
        header: Header,
        payload: &[u8],
        stream: &mut Stream,
        fresh: usize,
        marks: &mut Marks,
        now: Nanos,
    ) -> Outcome {
        self.candidates.clear();
        let configuration = &self.configuration;
        let (kept, base) = stream.kept();
        let seen = kept.len() - fresh;
        if fresh > 0 {
            // A pattern may begin in what came before.
            let from = seen.saturating_sub(configuration.streams.longest.saturating_sub(1));
            let end = base + kept.len() as u64;
            self.candidates
                .collect(&configuration.streams, kept.get(from..).unwrap_or(&[]));
            let active = stream.active(self.generation);
            let mut lost = 0;
            for at in &self.candidates.rules {
                let rule = configuration.rules.get(*at as usize);
                // A single part is found as a whole or not at all.
                if !rule.is_some_and(|rule| rule.parts.len() > 1 && rule.has(&header)) {
                    continue;
                }
                if let Some((_, last)) = active.iter_mut().find(|(of, _)| of == at) {
                    *last = end;
                } else if active.len() < ACTIVE_RULES_LIMIT {
                    active.push((*at, end));
                } else {
                    lost += 1;
                }
            }
            active.iter().for_each(|(rule, _)| self.candidates.add(*rule));
            self.counters.active_over_limit += lost;
        } else {
            configuration
                .streams
                .others
                .iter()
                .for_each(|rule| self.candidates.add(*rule));
        }
        self.candidates.collect(&configuration.segments, payload);
        let (bytes, base) = stream.kept();
        self.compare(header, Buffer { bytes, base, seen }, payload, Some(marks), now)
    }

    /// Compares the candidates. Rules that look at packets by themselves get the payload, others the buffer.
    fn compare(
        &mut self,
        header: Header,
        buffer: Buffer<'_>,
        payload: &[u8],
        mut marks: Option<&mut Marks>,
        now: Nanos,
    ) -> Outcome {
        self.candidates.rules.sort_unstable();
        let mut outcome = Outcome::Forward;
        for at in &self.candidates.rules {
            let at = *at as usize;
            let (Some(rule), Some(signature)) = (
                self.configuration.rules.get(at),
                self.configuration.signatures.get(at),
            ) else {
                continue;
            };
            if !rule.has(&header) {
                continue;
            }
            let bits = marks
                .as_deref_mut()
                .map_or(0, |marks| *marks.bits(self.generation));
            let fits = rule.bits.iter().all(|bit| match bit {
                Flowbit::IsSet(bit) => bits & bit != 0,
                Flowbit::IsNotSet(bit) => bits & bit == 0,
                Flowbit::Set(_) | Flowbit::Unset(_) | Flowbit::Toggle(_) => true,
            });
            if !fits {
                continue;
            }
            self.counters.candidates += 1;
            let buffer = if rule.is_per_packet() {
                Buffer::whole(payload)
            } else {
                buffer
            };
            match matcher::matches(&rule.parts, buffer) {
                Found::Yes => {}
                Found::No => continue,
                Found::Unknown => {
                    self.counters.places_over_limit += 1;
                    continue;
                }
            }
            self.counters.matches += 1;
            if let Some(marks) = marks.as_deref_mut() {
                let bits = marks.bits(self.generation);
                for bit in &rule.bits {
                    match bit {
                        Flowbit::Set(bit) => *bits |= bit,
                        Flowbit::Unset(bit) => *bits &= !bit,
                        Flowbit::Toggle(bit) => *bits ^= bit,
                        Flowbit::IsSet(_) | Flowbit::IsNotSet(_) => {}
                    }
                }
                match rule.action {
                    Action::Pass => marks.fate = Fate::Pass,
                    Action::Drop => marks.fate = Fate::Drop,
                    Action::Alert => {}
                }
            }
            match rule.action {
                Action::Pass => return outcome,
                Action::Drop => outcome = Outcome::Drop(DROPPED_BY_RULE),
                Action::Alert => {}
            }
            if rule.is_silent {
                continue;
            }
            if let Some(of) = rule.threshold {
                let address = if of.by_source { header.src } else { header.dst };
                if !self.thresholds.count(rule.sid, of, address, now) {
                    self.counters.alerts_suppressed += 1;
                    continue;
                }
            }
            if self.alerts.len() == ALERTS_LIMIT {
                self.counters.alerts_lost += 1;
                continue;
            }
            self.counters.alerts += 1;
            self.alerts.push_back(Alert {
                at: now,
                signature: Arc::clone(signature),
                is_blocked: rule.action == Action::Drop,
                src: header.src,
                dst: header.dst,
                src_port: header.src_port,
                dst_port: header.dst_port,
                protocol: header.protocol,
            });
        }
        outcome
    }
}
