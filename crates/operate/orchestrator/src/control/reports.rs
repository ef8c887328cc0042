//! Load reports: a machine tells its edges what it has left; an edge has its scheduler `machines` go by what machines told.
//! Threads send and take them (`crate::reports`); this part says what is sent, and what follows from what came.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context as _, Result};
use api::counters::ReportCounters;
use api::types::{EdgeRow, MachineRow, ReportRow, ReportStatus};
use collector::Collector;
use configuration::{Configuration, SentReports, TakenReports};
use controller::{Controller, Instance};
use edge_steering::{MachineId, ServiceLoad, Serving, Settings, service_number};
use model::{EventKind, InstanceState, Nanos, ServiceId, Slot};
use scheduling::{Machines, Metric};
use signal::Key;

use super::ControlLoop;
use crate::reports::{Board, Heard, Keys, Receiver, Sender};

/// The scheduler that goes by reports.
const BY_REPORTS: &str = <Machines as scheduling::Policy>::NAME;
/// Refusals are told in an event at most this often.
const TOLD_EVERY: Nanos = Nanos::from_secs(10);
/// The reason with which each machine's first reports to a new run of an edge are refused, and answered: no attack.
const ORDINARY: &str = "other_edge";
/// A machine's load is its capacity times this at most, so that no report has it look as if it took no flows.
const LOAD_LIMIT: f64 = 1e6;
/// A share of time has so many parts in a report, where numbers are whole.
const PARTS: f64 = 1e6;

/// Loads of instances, and what a flow of a service is expected to add: what the switch gets.
type Loads = [(Slot, f32)];
type Expected = [(ServiceId, f32)];

/// The state of this part.
#[derive(Default)]
pub(super) struct Reports {
    sender: Option<(Sender, SentReports, Key)>,
    receiver: Option<Receiver>,
    /// Of an edge, in the order of the file.
    machines: Vec<Machine>,
    /// By slot: what its machine has been given since its last report.
    given: HashMap<Slot, Given>,
    /// Refilled each turn: how far loads are believed, by slot.
    trust: Vec<(Slot, f32)>,
    refusals: Refusals,
}

/// A machine that reports to this edge.
struct Machine {
    number: u16,
    address: IpAddr,
    last: Heard,
    /// Whether it was said that its reports stopped.
    is_lost: bool,
}

/// Flows that a machine has been given since a report.
#[derive(Clone, Copy, Default)]
struct Given {
    reported_at: Nanos,
    /// All flows that its slot had been given when the report was seen first.
    before: u64,
}

/// What was said of refused datagrams.
#[derive(Default)]
struct Refusals {
    told_at: Option<Nanos>,
    told: BTreeMap<&'static str, u64>,
}

/// What a machine said of a service, and how far it holds.
struct Said<'a> {
    load: &'a ServiceLoad,
    age: Nanos,
    trust: f32,
}

impl Said<'_> {
    /// Whether it takes no flows. That, too, has an effect for a while only.
    fn is_withdrawn(&self) -> bool {
        let settings = Settings::default();
        let limit = settings.interval.0 * u64::from(settings.silent);
        self.load.state != Serving::Serving && self.age.0 < limit
    }
}

impl Reports {
    /// Sends and takes what the configuration says from now on, with these keys of it.
    ///
    /// # Errors
    /// The address cannot be bound, or no thread can be started.
    pub(super) fn follow(&mut self, configuration: &Configuration, keys: Keys) -> Result<()> {
        self.send(configuration.reports.sends.as_ref().zip(keys.own))?;
        if let Some(of) = &configuration.reports.takes {
            self.take(of, keys.machines)?;
        }
        Ok(())
    }

    fn send(&mut self, wanted: Option<(&SentReports, Key)>) -> Result<()> {
        let Some((of, key)) = wanted else {
            self.sender = None;
            return Ok(());
        };
        let is_same = self
            .sender
            .as_ref()
            .is_some_and(|(_, before, with)| before == of && *with == key);
        if !is_same {
            // Its edges take it for a restart of this machine, which costs two reports.
            let sender = Sender::start(MachineId(of.machine), &key, &of.to);
            self.sender = Some((sender.context("load reports cannot be sent")?, of.clone(), key));
        }
        Ok(())
    }

    fn take(&mut self, of: &TakenReports, keys: Vec<Key>) -> Result<()> {
        let numbers = of.machines.iter().map(|of| MachineId(of.number));
        let machines = numbers.zip(keys);
        match &self.receiver {
            Some(receiver) => receiver.follow(machines),
            None => {
                let receiver = Receiver::start(of.listen, machines)
                    .with_context(|| format!("load reports cannot be taken at {}", of.listen))?;
                self.receiver = Some(receiver);
            }
        }
        let mut before = std::mem::take(&mut self.machines);
        let machines = of.machines.iter().map(|of| {
            let (number, address) = (of.number, of.address.unwrap_or(Ipv4Addr::UNSPECIFIED).into());
            let known = before
                .iter()
                .position(|of| of.number == number && of.address == address);
            match known {
                Some(index) => before.swap_remove(index),
                None => Machine {
                    number,
                    address,
                    last: Heard::default(),
                    is_lost: false,
                },
            }
        });
        self.machines = machines.collect();
        Ok(())
    }

    fn board(&self) -> Option<&Board> {
        self.sender.as_ref().map(|(sender, ..)| sender.board())
    }

    /// Takes over what came since the last turn. Returns events.
    fn hear(&mut self, now: Nanos) -> Vec<EventKind> {
        let Some(receiver) = &self.receiver else {
            return Vec::new();
        };
        let mut events = Vec::new();
        let settings = Settings::default();
        let lost = Nanos(settings.interval.0 * u64::from(settings.lost));
        let machines = &mut self.machines;
        receiver.heard(|index, heard| {
            let Some(machine) = machines.get_mut(index) else {
                return;
            };
            let what = || format!("reports of machine {} ({})", machine.number, machine.address);
            let before = machine.last.at;
            if heard.at != before {
                machine.last.follow(heard);
                if std::mem::take(&mut machine.is_lost) {
                    let after = heard.at.zip(before).map(|(at, before)| at.since(before));
                    events.push(EventKind::Recovered {
                        what: what(),
                        after_ms: after.unwrap_or_default().as_millis(),
                    });
                }
            } else if before.is_some_and(|at| now.since(at) >= lost) && !machine.is_lost {
                machine.is_lost = true;
                let reason =
                    "none came for a second; it keeps its flows, and gets new ones by their hash alone";
                events.push(EventKind::Failure {
                    what: what(),
                    reason: reason.to_owned(),
                });
            }
        });
        events.extend(self.refusals.due(receiver, now));
        events
    }

    /// What the machine of an instance said last of that service.
    fn said(&self, instance: &Instance, service: &str, now: Nanos) -> Option<Said<'_>> {
        let address = instance.address()?.ip();
        let machine = self.machines.iter().find(|of| of.address == address)?;
        let age = now.since(machine.last.at?);
        let number = service_number(service);
        let load = machine.last.loads.iter().find(|load| load.service == number)?;
        Some(Said {
            load,
            age,
            trust: Settings::default().trust(age),
        })
    }

    /// Where a service goes by reports, puts them in the place of the loads that this edge measured.
    pub(super) fn replace(
        &mut self,
        controller: &Controller,
        collector: &Collector,
        loads: &mut Loads,
        expected: &mut Expected,
        now: Nanos,
    ) -> &[(Slot, f32)] {
        self.trust.clear();
        if self.receiver.is_none() {
            return &self.trust;
        }
        // Who left, or goes by another policy now.
        self.trust.extend(loads.iter().map(|(slot, _)| (*slot, 1.0)));
        for service in controller.services() {
            if service.plan.scheduler.name() == BY_REPORTS {
                self.replace_of(
                    service.id,
                    service.name,
                    (controller, collector),
                    (loads, expected),
                    now,
                );
            }
        }
        &self.trust
    }

    fn replace_of(
        &mut self,
        service: ServiceId,
        name: &str,
        (controller, collector): (&Controller, &Collector),
        (loads, expected): (&mut Loads, &mut Expected),
        now: Nanos,
    ) {
        let instances = || controller.instances().iter().filter(|of| of.service() == service);
        // What a flow uses, by those whose reports are fresh.
        let said = instances().filter_map(|of| self.said(of, name, now));
        let fresh = said.filter(|said| said.trust >= 1.0 && said.load.capacity > 0);
        let (used, flows, capacity, count) = fresh.fold((0.0, 0_u64, 0.0, 0_u32), |sum, said| {
            let of = said.load;
            let flows = sum.1 + u64::from(of.live_flows);
            (
                sum.0 + of.used() as f64,
                flows,
                sum.2 + of.capacity as f64,
                sum.3 + 1,
            )
        });
        let per_flow = if flows > 0 { used / flows as f64 } else { 0.0 };
        let mut unit = 1.0;
        for instance in instances() {
            let slot = instance.slot();
            let Some(place) = loads.iter().position(|(of, _)| *of == slot) else {
                continue;
            };
            let plan = controller.plan();
            let of_plan = plan.slot(slot).map_or(0.0, |of| f64::from(plan.capacity(of)));
            unit = if of_plan > 0.0 { of_plan } else { 1.0 };
            let given = self.given(instance, collector);
            let (load, trust) = match self.said(instance, name, now) {
                None => (0.0, 0.0),
                Some(said) if said.is_withdrawn() => (f64::from(Machines::WITHDRAWN), 1.0),
                Some(said) if said.load.capacity == 0 => (1.0, said.trust),
                Some(said) => {
                    let since = given as f64 * per_flow / said.load.capacity as f64;
                    ((said.load.utilisation() + since).min(LOAD_LIMIT), said.trust)
                }
            };
            if let (Some(of), Some(trusted)) = (loads.get_mut(place), self.trust.get_mut(place)) {
                (of.1, trusted.1) = ((load * unit) as f32, trust);
            }
        }
        let mean = if count > 0 {
            capacity / f64::from(count)
        } else {
            0.0
        };
        if let Some(of) = expected.iter_mut().find(|(of, _)| *of == service) {
            of.1 = if mean > 0.0 {
                (per_flow / mean * unit) as f32
            } else {
                0.0
            };
        }
    }

    /// Flows that an instance's machine has been given since its last report.
    fn given(&mut self, instance: &Instance, collector: &Collector) -> u64 {
        let slot = instance.slot();
        let address = instance.address().map(|at| at.ip());
        let machine = self.machines.iter().find(|of| Some(of.address) == address);
        let (Some(at), Some(rates)) = (machine.and_then(|of| of.last.at), collector.slot(slot)) else {
            return 0;
        };
        let given = self.given.entry(slot).or_default();
        if given.reported_at != at {
            *given = Given {
                reported_at: at,
                before: rates.new_flows,
            };
        }
        // Counters begin anew with a new instance of the slot.
        rates.new_flows.saturating_sub(given.before)
    }

    /// Has the machine's load sent.
    fn tell(&self, controller: &Controller, collector: &Collector, is_stopping: bool, now: Nanos) {
        if let Some(board) = self.board() {
            let loads = controller.services().map(|service| {
                let metric = service.plan.scheduler.settings().metric;
                let instances = controller.instances().iter();
                let of_service = instances.filter(|of| of.service() == service.id);
                let (rates, name) = (collector.service(service.id), service.name);
                let mut load = own_load(controller, collector, of_service, metric);
                load.service = service_number(name);
                load.live_flows = u32::try_from(rates.live_flows).unwrap_or(u32::MAX);
                if is_stopping {
                    load.state = Serving::Leaving;
                }
                load
            });
            board.tell(now, loads);
        }
    }

    /// What an instance's machine reports, for a row of it.
    pub(super) fn row(&self, instance: &Instance, service: &str, now: Nanos) -> Option<ReportRow> {
        let said = self.said(instance, service, now)?;
        Some(ReportRow {
            state: match said.load.state {
                Serving::Serving => "serving",
                Serving::Draining => "draining",
                Serving::Leaving => "leaving",
            }
            .to_owned(),
            utilisation: said.load.utilisation(),
            instances: said.load.instances,
            live_flows: said.load.live_flows,
            age_ms: said.age.as_millis(),
            trust: f64::from(said.trust),
        })
    }

    /// Reports, for `inco status`.
    pub(super) fn status(&self, now: Nanos) -> Option<ReportStatus> {
        let edges = self.board().into_iter().flat_map(Board::edges);
        let taken = self.receiver.as_ref().map(Receiver::taken);
        let accepted = taken.iter().flat_map(|of| &of.accepted);
        let machines = self.machines.iter().zip(accepted);
        let refused = taken.iter().flat_map(|of| &of.refused);
        (self.sender.is_some() || self.receiver.is_some()).then(|| ReportStatus {
            edges: edges
                .map(|of| EdgeRow {
                    edge: of.to.to_string(),
                    known: of.is_known,
                    sent: of.sent,
                    failed: of.failed,
                })
                .collect(),
            machines: machines
                .map(|(of, accepted)| MachineRow {
                    number: of.number,
                    address: of.address.to_string(),
                    accepted: *accepted,
                    age_ms: of.last.at.map(|at| now.since(at).as_millis()),
                })
                .collect(),
            refused: refused
                .filter(|(_, count)| **count > 0)
                .map(|(reason, count)| ((*reason).to_owned(), *count))
                .collect(),
        })
    }

    /// Reports, for metrics.
    pub(super) fn counters(&self, now: Nanos) -> ReportCounters {
        let mut counters = ReportCounters::default();
        for of in self.board().into_iter().flat_map(Board::edges) {
            counters.sent.insert(of.to.to_string(), of.sent);
            counters.failed.insert(of.to.to_string(), of.failed);
        }
        if let Some(taken) = self.receiver.as_ref().map(Receiver::taken) {
            for (of, accepted) in self.machines.iter().zip(taken.accepted) {
                let number = of.number.to_string();
                if let Some(at) = of.last.at {
                    counters.age_s.insert(number.clone(), now.since(at).as_secs_f64());
                }
                counters.accepted.insert(number, accepted);
            }
            let refused = taken.refused.into_iter();
            counters.refused = refused.map(|(reason, n)| (reason.to_owned(), n)).collect();
            counters.answered = taken.answered;
        }
        counters
    }
}

impl Refusals {
    /// An event, if datagrams were refused since the last one.
    fn due(&mut self, receiver: &Receiver, now: Nanos) -> Option<EventKind> {
        if self.told_at.is_some_and(|at| now.since(at) < TOLD_EVERY) {
            return None;
        }
        let refused = receiver.taken().refused;
        let more = refused.iter().filter_map(|(reason, count)| {
            let more = count - self.told.get(reason).copied().unwrap_or(0);
            (more > 0 && *reason != ORDINARY).then(|| format!("{reason} {more}"))
        });
        let more: Vec<String> = more.collect();
        self.told_at = Some(now);
        self.told = refused;
        (!more.is_empty()).then(|| EventKind::Failure {
            what: "reports".to_owned(),
            reason: format!("refused, without any effect: {}", more.join(", ")),
        })
    }
}

/// The load of a service's instances here: what they can process together, and what they have left.
fn own_load<'a>(
    controller: &Controller,
    collector: &Collector,
    instances: impl Iterator<Item = &'a Instance>,
    metric: Metric,
) -> ServiceLoad {
    let mut load = ServiceLoad {
        service: 0,
        state: Serving::Draining,
        instances: 0,
        capacity: 0,
        capacity_left: 0,
        live_flows: 0,
    };
    let plan = controller.plan();
    for instance in instances.filter(|of| of.state() == InstanceState::Active && of.fitness().takes()) {
        let slot = instance.slot();
        let of_plan = plan.slot(slot);
        let capacity = of_plan.map_or(0.0, |of| f64::from(plan.capacity(of))).max(0.0);
        let capacity_pps = of_plan.map_or(0.0, |of| f64::from(of.capacity_pps));
        let used = collector.slot(slot).map_or(0.0, |rates| {
            rates.load(metric, &collector.service(rates.service), capacity_pps)
        });
        let whole = |figure: f64| match metric {
            Metric::Busy => (figure * PARTS) as u64,
            Metric::Packets | Metric::Bytes | Metric::Flows => figure as u64,
        };
        load.state = Serving::Serving;
        load.instances = load.instances.saturating_add(1);
        load.capacity = load.capacity.saturating_add(whole(capacity));
        load.capacity_left = load
            .capacity_left
            .saturating_add(whole((capacity - used).max(0.0)));
    }
    load
}

impl ControlLoop {
    /// Sends and takes what the configuration says from now on. What cannot be done is told, and the rest goes on.
    pub(super) fn follow_reports(&mut self, keys: Keys) {
        if let Err(error) = self.reports.follow(&self.configuration, keys) {
            self.journal.add(EventKind::Failure {
                what: "reports".to_owned(),
                reason: format!("{error:#}"),
            });
        }
    }

    /// Has this machine's load sent, and takes what others have sent.
    pub(super) fn attend_reports(&mut self, now: Nanos) {
        let controller = self.decide.shell.controller();
        let is_stopping = self.decide.is_stopping();
        self.reports
            .tell(controller, &self.gather.collector, is_stopping, now);
        for event in self.reports.hear(now) {
            self.journal.add(event);
        }
    }
}

#[cfg(test)]
#[path = "reports_tests.rs"]
mod tests;
