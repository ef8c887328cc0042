//! Publish: sends the switch its requests. Plans and ports come first, since packets wait for them; then loads, and
//! uplinks to open.

use std::sync::Arc;

use collector::Collector;
use configuration::Configuration;
use controller::Controller;
use model::{InstanceState, Nanos, ServiceId, Slot, UplinkId};
use switch::{Change, FlowFilter, Switch, SwitchError, SwitchEvent, SwitchRequest, WakeUp};

use super::ControlLoop;
use super::reports::Reports;
use api::types::Refusal;

/// How long uplinks stay closed while adopted containers reconnect. After it, uplinks are opened regardless: the flows
/// of those that are here wait no longer for the others.
const TAKE_OVER_WAIT: Nanos = Nanos::from_secs(1);

/// The same, where nothing is known of their flows. These are recovered by a hash over the instances, which is right
/// only once all are here.
const RECOVERY_WAIT: Nanos = Nanos::from_secs(5);

/// What an earlier run has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// No container.
    Nothing,
    /// Containers, and their flows where there were any.
    Containers,
    /// Containers whose flows are to be recovered.
    LostFlows,
}

/// The state of this part.
pub(super) struct Publish {
    pub(super) switch: Box<dyn Switch>,
    /// Rung by the first packet after a quiet period.
    pub(super) alarm: Option<Arc<dyn WakeUp>>,
    /// Uplinks that are not open yet, each with the latest time to open it.
    waiting_uplinks: Vec<(UplinkId, Nanos)>,
    newest_request: u64,
    /// Refilled each turn: loads by slot, and the expected load of a new flow by service.
    loads: Vec<(Slot, f32)>,
    expected: Vec<(ServiceId, f32)>,
}

impl Publish {
    /// The initial state, with all uplinks closed.
    pub(super) fn new(
        switch: Box<dyn Switch>,
        configuration: &Configuration,
        before: Before,
        now: Nanos,
    ) -> Publish {
        let wait = match before {
            Before::Nothing => Nanos::ZERO,
            Before::Containers => TAKE_OVER_WAIT,
            Before::LostFlows => RECOVERY_WAIT,
        };
        let latest = |uplink: &configuration::Uplink| {
            if uplink.device.captures_read().is_empty() {
                Nanos(now.0.saturating_add(wait.0))
            } else {
                // A capture's frames come at once and only once, so it waits for its services.
                Nanos(u64::MAX)
            }
        };
        let uplinks = (0u8..).map(UplinkId).zip(&configuration.uplinks);
        Publish {
            alarm: switch.wake_up(),
            switch,
            waiting_uplinks: uplinks.map(|(id, uplink)| (id, latest(uplink))).collect(),
            newest_request: 0,
            loads: Vec::new(),
            expected: Vec::new(),
        }
    }

    /// Whether every uplink was requested to open.
    pub(super) fn has_opened_all(&self) -> bool {
        self.waiting_uplinks.is_empty()
    }

    /// Requests up to `limit` flow rows. They arrive as [`SwitchEvent::Flows`] with the returned number.
    pub(super) fn ask_flows(&mut self, filter: FlowFilter, limit: usize) -> Result<u64, Refusal> {
        self.ask(|id| SwitchRequest::Flows { id, filter, limit })
    }

    /// Requests the heaviest flows. They arrive as [`SwitchEvent::HeavyFlows`] with the returned number.
    pub(super) fn ask_heavy_flows(&mut self, filter: FlowFilter) -> Result<u64, Refusal> {
        self.ask(|id| SwitchRequest::HeavyFlows { id, filter })
    }

    /// Requests a record of the service's next scheduling decision. It arrives as [`SwitchEvent::Recorded`].
    pub(super) fn ask_record(&mut self, service: ServiceId) -> Result<u64, Refusal> {
        self.ask(|id| SwitchRequest::Record { id, service })
    }

    /// Changes pins of flows in the switch.
    pub(super) fn change(&mut self, change: Change) -> Result<(), Refusal> {
        self.switch.request(SwitchRequest::Change(change)).map_err(busy)
    }

    fn ask(&mut self, request: impl FnOnce(u64) -> SwitchRequest) -> Result<u64, Refusal> {
        self.newest_request += 1;
        let id = self.newest_request;
        self.switch.request(request(id)).map_err(busy)?;
        Ok(id)
    }

    /// Sends the switch the loads of instances.
    pub(super) fn loads(
        &mut self,
        controller: &Controller,
        collector: &Collector,
        reports: &mut Reports,
        now: Nanos,
    ) {
        self.loads.clear();
        self.expected.clear();
        let known: Vec<_> = controller
            .services()
            .map(|of| {
                let metric = of.plan.scheduler.settings().metric;
                let mut instances = controller.plan().instances();
                let capacity_pps = instances
                    .find(|(_, row)| row.service == of.id)
                    .map_or(0.0, |(_, row)| f64::from(row.capacity_pps));
                (metric, collector.service(of.id), capacity_pps)
            })
            .collect();
        for slot in collector.assigned() {
            if let Some(rates) = collector.slot(*slot)
                && let Some((metric, service, capacity_pps)) = known.get(rates.service.index())
            {
                let load = rates.load(*metric, service, *capacity_pps);
                self.loads.push((*slot, load as f32));
            }
        }
        for (index, (metric, service, capacity_pps)) in known.iter().enumerate() {
            let expected = service.expected(*metric, *capacity_pps);
            self.expected.push((ServiceId(index as u16), expected as f32));
        }
        let (loads, expected) = (&mut self.loads, &mut self.expected);
        let trust = reports.replace(controller, collector, loads, expected, now);
        if !trust.is_empty() {
            self.switch.set_trust(trust);
        }
        self.switch.set_loads(&self.loads, &self.expected);
    }

    /// Opens each uplink once all of its services have their minimum of active instances, or once its time has come.
    /// Refusals of the switch go to `switch_events`.
    pub(super) fn open_uplinks(
        &mut self,
        configuration: &Configuration,
        controller: &Controller,
        switch_events: &mut Vec<SwitchEvent>,
        now: Nanos,
    ) {
        if self.waiting_uplinks.is_empty() {
            return;
        }
        // Only with a plan that every worker uses.
        let is_known = controller.plan().generation == controller.acknowledged();
        let instances = controller.instances();
        let serves = |(id, service): (usize, &configuration::Service)| {
            let of_service = || instances.iter().filter(|i| i.service().index() == id);
            let active = of_service()
                .filter(|i| i.state() == InstanceState::Active)
                .count();
            // Flows are pinned to those that come back.
            active >= service.instances.min as usize && !of_service().any(controller::Instance::comes_back)
        };
        let switch = &mut self.switch;
        self.waiting_uplinks.retain(|(uplink, latest)| {
            let services = configuration.services.iter().enumerate();
            let mut of_uplink = services.filter(|(_, service)| service.uplinks.contains(uplink));
            let opens = *latest <= now || (is_known && of_uplink.all(serves));
            if opens {
                switch.submit(SwitchRequest::OpenUplink(*uplink), switch_events);
            }
            !opens
        });
    }
}

impl ControlLoop {
    /// Sends the switch the requests of a step.
    pub(super) fn publish(&mut self, requests: Vec<SwitchRequest>, now: Nanos) {
        for request in requests {
            if let SwitchRequest::Attach { slot, service, .. } = &request {
                self.note_new_instance(*slot, *service, now);
                self.open_gate(*slot);
            }
            self.publish
                .switch
                .submit(request, &mut self.decide.switch_events);
        }
    }

    /// Sends the switch the present loads of instances.
    pub(super) fn publish_loads(&mut self, now: Nanos) {
        let controller = self.decide.shell.controller();
        self.publish
            .loads(controller, &self.gather.collector, &mut self.reports, now);
    }

    /// Opens the uplinks that are due.
    pub(super) fn open_uplinks(&mut self, now: Nanos) {
        let controller = self.decide.shell.controller();
        let switch_events = &mut self.decide.switch_events;
        self.publish
            .open_uplinks(&self.configuration, controller, switch_events, now);
    }
}

/// The refusal for a switch that takes no more requests now.
fn busy(error: SwitchError) -> Refusal {
    Refusal::new(error.to_string(), "try again")
}
