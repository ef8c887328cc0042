//! Answer: queries of the API. Most answers come from the gathered state. Flow queries go to the switch and are
//! answered when its rows arrive.

use std::collections::HashMap;
use std::sync::Arc;

use api::types::{FlowExplanation, FlowPage, FlowRow, Refusal};
use api::{Answer, Caller, CaptureQuery, ControlRequest, RequestReceiver, RunningCapture};
use model::{EventKind, InstanceId, Nanos, ServiceId, Slot};
use switch::{Capture, CaptureFilter, FlowFilter, SwitchError, SwitchEvent, SwitchRequest};

use super::ControlLoop;
use super::journal::new_event;
use super::request::{Asked, flow_key};

type FlowAnswer = Answer<Result<FlowPage, Refusal>>;

/// The state of this part.
pub(super) struct Answers {
    inbox: RequestReceiver,
    /// Queries that wait for rows of the switch, by request number.
    pending: HashMap<u64, Pending>,
}

/// The purpose of requested flow rows.
enum Pending {
    /// A page of flows.
    Page(FlowAnswer),
    /// The given number of heaviest flows.
    Heaviest(u32, FlowAnswer),
    /// The explanation of one flow's placement.
    Explanation(String, Answer<Result<FlowExplanation, Refusal>>),
}

impl Answers {
    pub(super) fn new(inbox: RequestReceiver) -> Answers {
        Answers {
            inbox,
            pending: HashMap::new(),
        }
    }

    /// Whether no query waits for the switch.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}

impl ControlLoop {
    /// Answers the queries since the last turn, and begins their actions.
    pub(super) fn answer(&mut self, now: Nanos) {
        while let Some(control_request) = self.answer.inbox.take() {
            match control_request {
                ControlRequest::Status(answer) => {
                    self.note_gaps(now);
                    answer.give(self.status(now));
                }
                ControlRequest::Services(answer) => answer.give(self.service_rows(now)),
                ControlRequest::Settings(service, answer) => answer.give(self.settings(&service)),
                ControlRequest::Logs(service, answer) => answer.give(self.log_rows(&service)),
                ControlRequest::Log(service, instance, from, answer) => {
                    answer.give(self.log_piece(&service, instance, from));
                }
                ControlRequest::Instances(answer) => answer.give(self.instance_rows(now)),
                ControlRequest::Actors(answer) => answer.give(self.actors.rows()),
                ControlRequest::Flows(filter, answer) => self.answer_flows(&filter, answer),
                ControlRequest::Snapshot(answer) => {
                    self.note_gaps(now);
                    answer.give(self.snapshot(now));
                }
                ControlRequest::Explain(flow, answer) => self.answer_explanation(flow, answer),
                ControlRequest::Policies(answer) => answer.give(self.policies()),
                ControlRequest::Counters(answer) => {
                    self.note_gaps(now);
                    answer.give(Box::new(self.counters()));
                }
                ControlRequest::Capture(query, caller, answer) => {
                    let result = self.begin_capture(&query);
                    self.note_capture(&query, caller, result.as_ref().err());
                    answer.give(result);
                }
                ControlRequest::Act(action, caller, answer) => {
                    let asked = Asked {
                        action,
                        caller,
                        answer,
                    };
                    self.act(asked, now);
                }
            }
        }
    }

    fn answer_flows(&mut self, filter: &api::types::FlowFilter, answer: FlowAnswer) {
        let asked = self.flow_filter(filter).and_then(|wanted| match filter.top {
            Some(top) => {
                let id = self.publish.ask_heavy_flows(wanted)?;
                Ok((id, Some(top)))
            }
            None => {
                let id = self.publish.ask_flows(wanted, filter.limit() as usize)?;
                Ok((id, None))
            }
        });
        let (id, pending) = match asked {
            Ok((id, Some(top))) => (id, Pending::Heaviest(top, answer)),
            Ok((id, None)) => (id, Pending::Page(answer)),
            Err(refusal) => return answer.give(Err(refusal)),
        };
        self.answer.pending.insert(id, pending);
    }

    /// Requests the row of a flow to explain its placement.
    fn answer_explanation(&mut self, flow: String, answer: Answer<Result<FlowExplanation, Refusal>>) {
        let asked = flow_key(&flow).and_then(|key| {
            let filter = FlowFilter {
                key: Some(key),
                ..FlowFilter::default()
            };
            self.publish.ask_flows(filter, 1)
        });
        match asked {
            Ok(id) => {
                self.answer.pending.insert(id, Pending::Explanation(flow, answer));
            }
            Err(refusal) => answer.give(Err(refusal)),
        }
    }

    /// Completes the query that the switch's rows belong to.
    pub(super) fn take_found(&mut self, event: &SwitchEvent) {
        match event {
            SwitchEvent::HeavyFlows { id, rows } => {
                if let Some(Pending::Heaviest(top, answer)) = self.answer.pending.remove(id) {
                    let heaviest = rows.iter().take(top as usize);
                    let flows = heaviest.map(|heavy| self.heavy_row(heavy)).collect();
                    answer.give(Ok(FlowPage {
                        flows,
                        complete: true,
                    }));
                }
            }
            SwitchEvent::Recorded(record) => self.note_record(record),
            SwitchEvent::Flows {
                id,
                rows,
                rules,
                complete,
            } => match self.answer.pending.remove(id) {
                Some(Pending::Explanation(flow, answer)) => {
                    answer.give(Ok(self.explain_flow(flow, rows.first())));
                }
                Some(Pending::Page(answer)) => {
                    let mut rules = rules.iter();
                    let flows = rows.iter().map(|row| FlowRow {
                        rule: rules.next().cloned(),
                        ..self.flow_row(row)
                    });
                    let (flows, complete) = (flows.collect(), *complete);
                    answer.give(Ok(FlowPage { flows, complete }));
                }
                Some(Pending::Heaviest(..)) => {}
                None => {
                    if let Some(asked) = self.apply.take_move(*id) {
                        let result = self.move_flow(&asked.action, rows.first());
                        self.conclude(asked, result);
                    }
                }
            },
            _ => {}
        }
    }

    /// Has the switch copy packets for a capture.
    fn begin_capture(&mut self, query: &CaptureQuery) -> Result<RunningCapture, Refusal> {
        let wanted = self.flow_filter(&api::types::FlowFilter {
            service: query.service.clone(),
            instance: query.instance,
            flow: query.flow.clone(),
            ..Default::default()
        })?;
        let plan = self.decide.shell.controller().plan();
        let filter = CaptureFilter {
            points: query.points(),
            service: wanted.service.and_then(|id| plan.service(id).cloned()),
            slot: wanted.slot,
            key: wanted.key,
            reason: query.drop_reason(),
        };
        let capture = Capture::new(filter, query.limits());
        let request = SwitchRequest::Capture(Arc::clone(&capture));
        let names = &self.configuration;
        let running = RunningCapture {
            capture,
            services: names.services.iter().map(|of| of.name.clone()).collect(),
            uplinks: names.uplinks.iter().map(|of| of.name.clone()).collect(),
        };
        self.publish.switch.request(request).map_err(|error| {
            let hint = match error {
                SwitchError::Capturing => "wait until it ends, or end the `inco capture` that asked for it",
                SwitchError::Unsupported { .. } => "captures need `driver = \"soft\"`",
                _ => "try again",
            };
            Refusal::new(error.to_string(), hint)
        })?;
        Ok(running)
    }

    /// Records who captures what: packets are their senders' secrets.
    fn note_capture(&mut self, query: &CaptureQuery, caller: Caller, refusal: Option<&Refusal>) {
        let mut event = new_event(
            query.service.clone(),
            EventKind::Action {
                action: "capture".to_owned(),
                request: serde_json::to_value(query).unwrap_or_default(),
                by: caller.name,
                refused: refusal.is_some(),
                result: refusal.map_or_else(|| "packets are captured".to_owned(), Refusal::to_string),
            },
        );
        event.instance = query.instance;
        self.journal.push(event);
    }

    fn flow_filter(&self, filter: &api::types::FlowFilter) -> Result<FlowFilter, Refusal> {
        let service = match &filter.service {
            Some(name) => Some(self.service_id(name)?),
            None => None,
        };
        let slot = match filter.instance {
            Some(id) => Some(self.slot_of(id)?),
            None => None,
        };
        Ok(FlowFilter {
            service,
            slot,
            address: filter.address,
            key: filter.flow.as_deref().map(flow_key).transpose()?,
        })
    }

    pub(super) fn service_id(&self, name: &str) -> Result<ServiceId, Refusal> {
        let known = || {
            self.configuration
                .services
                .iter()
                .map(|s| s.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        self.configuration.service(name).map(|(id, _)| id).ok_or_else(|| {
            Refusal::new(
                format!("unknown service {name:?}"),
                format!("known services: {}", known()),
            )
        })
    }

    pub(super) fn slot_of(&self, id: InstanceId) -> Result<Slot, Refusal> {
        let instances = self.decide.shell.controller().instances();
        instances
            .iter()
            .find(|i| i.id() == id)
            .map(|i| i.slot())
            .ok_or_else(|| Refusal::new(format!("unknown instance {id}"), "see `inco instances`"))
    }
}
