use std::collections::BTreeMap;
use std::thread::{Builder, JoinHandle};

use autoscaling::{Fit, Fitted};
use collector::Collector;
use engine::{Engine, EngineEvent, Execution, Request, Ticket};
use model::{Generation, Histogram, Nanos, ServiceId};
use switch::{SwitchEvent, SwitchRequest};

use crate::Controller;
use crate::message::{Command, CommandId, Inputs, Outputs};

/// How long creates of a step that also changed the plan wait: a container that is made takes milliseconds of a CPU, in
/// parts that the kernel does not interrupt, and packets that wait for that plan need it first.
const CREATES_WAIT: Nanos = Nanos::from_millis(2);

/// How the engine answered, by kind of call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineCalls {
    /// How long calls took that were carried out.
    pub took: BTreeMap<&'static str, Histogram>,
    /// How many failed.
    pub failed: BTreeMap<&'static str, u64>,
}

/// The word for a kind of call in metrics.
const fn call_name(request: &Request) -> &'static str {
    match request {
        Request::Create(_) => "create",
        Request::Pause { .. } => "pause",
        Request::Resume { .. } => "resume",
        Request::SetQuota { .. } => "set_quota",
        Request::Stop { .. } => "stop",
        Request::Remove { .. } => "remove",
        Request::Exec { .. } => "exec",
    }
}

/// The thin part around the core: it carries what the engine says in and what the engine should do out, removes what
/// is left of instances' directories, and runs what autoscalers have to reckon for longer than a turn may take. Switch, event log and clock are its caller's.
pub struct Shell {
    controller: Controller,
    engine: Box<dyn Engine>,
    engine_events: Vec<EngineEvent>,
    containers: Option<Vec<engine::Container>>,
    outputs: Outputs,
    waiting: Waiting,
    calls: EngineCalls,
    /// Calls that are not answered yet.
    in_hand: BTreeMap<Ticket, &'static str>,
    /// Fits, each on a thread of its own while it runs.
    fits: Vec<(ServiceId, JoinHandle<Fitted>)>,
    fitted: Vec<(ServiceId, Fitted)>,
}

/// Requests for the engine that wait for packets.
#[derive(Debug, Default)]
struct Waiting {
    /// In their order.
    requests: Vec<(Ticket, Request)>,
    until: Nanos,
}

impl Waiting {
    /// What the engine is to be asked now, of what has waited and what a step asks for, in that order; `asked` is empty then. Where
    /// the step changes the plan and asks for nothing but creates, these wait for [`CREATES_WAIT`], or until anything
    /// else is asked for.
    fn due(
        &mut self,
        asked: &mut Vec<(Ticket, Request)>,
        changes_plan: bool,
        now: Nanos,
    ) -> Vec<(Ticket, Request)> {
        let mut due = Vec::new();
        if now >= self.until || !asked.is_empty() {
            due.append(&mut self.requests);
        }
        let is_create = |(_, request): &(Ticket, Request)| matches!(request, Request::Create(_));
        if changes_plan && !asked.is_empty() && asked.iter().all(is_create) {
            self.requests.append(asked);
            self.until = now + CREATES_WAIT;
        }
        due.append(asked);
        due
    }
}

impl Shell {
    /// Puts a controller and an engine together and adopts what the engine has. May block as long as
    /// [`Engine::list`] does.
    ///
    /// # Errors
    /// The engine's, where it cannot list its containers: without knowing what runs, nothing may be started.
    pub fn new(
        mut controller: Controller,
        mut engine: Box<dyn Engine>,
        now: Nanos,
    ) -> Result<Shell, engine::EngineError> {
        let containers = engine.list(&controller.settings().label())?;
        controller.adopt(&containers, now);
        Ok(Shell {
            controller,
            engine,
            engine_events: Vec::new(),
            containers: None,
            outputs: Outputs::default(),
            waiting: Waiting::default(),
            calls: EngineCalls::default(),
            in_hand: BTreeMap::new(),
            fits: Vec::new(),
            fitted: Vec::new(),
        })
    }

    /// One step: takes in what the engine has to say and what is given. What comes of it for the switch, the event log and those
    /// who asked is the caller's to carry out; what is for the engine waits for [`Shell::carry_out`], so that what packets wait
    /// for can come first.
    pub fn turn(
        &mut self,
        (switch, acknowledged): (&[SwitchEvent], Generation),
        commands: &[(CommandId, Command)],
        collector: &mut Collector,
        now: Nanos,
    ) -> &Outputs {
        self.engine_events.clear();
        self.engine.poll(&mut self.engine_events);
        self.note_calls();
        self.take_fitted();
        let containers = self.containers.take();
        let inputs = Inputs {
            engine: &self.engine_events,
            containers: containers.as_deref(),
            switch,
            acknowledged,
            commands,
            fitted: &self.fitted,
        };
        self.controller.step(inputs, collector, now, &mut self.outputs);
        &self.outputs
    }

    /// Hands the engine its requests of the last step, and does what else there is to do outside of the switch.
    /// Creates wait for a moment where the plan has changed, in which packets need the CPU. To be called after each step.
    pub fn carry_out(&mut self, now: Nanos) {
        let is_publish = |request: &SwitchRequest| matches!(request, SwitchRequest::Publish { .. });
        let changes_plan = self.outputs.switch.iter().any(is_publish);
        let due = self.waiting.due(&mut self.outputs.engine, changes_plan, now);
        for (ticket, request) in due {
            self.in_hand.insert(ticket, call_name(&request));
            self.engine.submit(ticket, request);
        }
        if self.outputs.list_containers {
            // Where the engine does not answer after all, it will say that it is down, and up again later.
            self.containers = self.engine.list(&self.controller.settings().label()).ok();
        }
        for (service, fit) in self.outputs.fits.drain(..) {
            self.fits.extend(start_fit(fit).map(|thread| (service, thread)));
        }
        for dir in self.outputs.remove_dirs.drain(..) {
            // What is left there does no harm: a name is never used twice.
            let _ = engine::exchange::remove(&dir);
        }
    }

    /// Takes in what came of the fits that have ended.
    fn take_fitted(&mut self) {
        self.fitted.clear();
        for at in (0..self.fits.len()).rev() {
            if self.fits[at].1.is_finished() {
                let (service, thread) = self.fits.swap_remove(at);
                self.fitted.extend(thread.join().map(|fitted| (service, fitted)));
            }
        }
    }

    fn note_calls(&mut self) {
        for event in &self.engine_events {
            let (ticket, took) = match event {
                EngineEvent::Created { ticket, took, .. } | EngineEvent::Done { ticket, took, .. } => {
                    (ticket, Some(*took))
                }
                EngineEvent::Failed { ticket, .. } => (ticket, None),
                EngineEvent::Exited { .. }
                | EngineEvent::EngineDown { .. }
                | EngineEvent::EngineUp { .. } => {
                    continue;
                }
            };
            let Some(call) = self.in_hand.remove(ticket) else {
                continue;
            };
            match took {
                Some(took) => self.calls.took.entry(call).or_default().note(took),
                None => *self.calls.failed.entry(call).or_default() += 1,
            }
        }
    }

    /// How the engine answered so far.
    pub fn engine_calls(&self) -> &EngineCalls {
        &self.calls
    }

    /// The core.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Has the engine run a command for somebody. The controller knows nothing of it.
    pub fn execute(&mut self, execution: Execution) {
        self.engine.execute(execution);
    }

    /// The engine.
    pub fn engine(&self) -> &dyn Engine {
        self.engine.as_ref()
    }
}

/// Runs a fit on a thread. Where there can be none, the autoscaler goes on with what it has, and asks again later.
fn start_fit(fit: Fit) -> Option<JoinHandle<Fitted>> {
    let thread = Builder::new().name("inco-fit".to_owned());
    thread.spawn(move || fit.run()).ok()
}

#[cfg(test)]
mod tests {
    use engine::ContainerSpec;

    use super::*;

    fn create(ticket: u64) -> (Ticket, Request) {
        let spec = ContainerSpec::new(format!("nf-{ticket}"), "nf");
        (Ticket(ticket), Request::Create(Box::new(spec)))
    }

    fn remove(ticket: u64) -> (Ticket, Request) {
        let name = "nf-0".to_owned();
        (Ticket(ticket), Request::Remove { name })
    }

    /// The tickets of what is due, at `ms` milliseconds.
    fn due(waiting: &mut Waiting, asked: &[(Ticket, Request)], changes_plan: bool, ms: u64) -> Vec<u64> {
        let mut asked = asked.to_vec();
        let due = waiting.due(&mut asked, changes_plan, Nanos::from_millis(ms));
        assert!(asked.is_empty());
        due.iter().map(|(ticket, _)| ticket.0).collect()
    }

    const NONE: [u64; 0] = [];

    #[test]
    fn creates_wait_for_packets_and_nothing_else_does() {
        let mut waiting = Waiting::default();
        assert_eq!(due(&mut waiting, &[create(1)], false, 10), [1]);
        assert_eq!(due(&mut waiting, &[create(2), create(3)], true, 20), NONE);
        assert_eq!(due(&mut waiting, &[], true, 21), NONE);
        assert_eq!(due(&mut waiting, &[], false, 22), [2, 3]);
        assert_eq!(due(&mut waiting, &[], false, 23), NONE);
        assert_eq!(due(&mut waiting, &[remove(4)], true, 24), [4]);
        assert_eq!(due(&mut waiting, &[create(5), remove(6)], true, 25), [5, 6]);
    }

    #[test]
    fn nothing_overtakes_what_waits() {
        let mut waiting = Waiting::default();
        assert_eq!(due(&mut waiting, &[create(1)], true, 10), NONE);
        assert_eq!(due(&mut waiting, &[remove(2)], false, 11), [1, 2]);
        assert_eq!(due(&mut waiting, &[create(3)], true, 12), NONE);
        assert_eq!(due(&mut waiting, &[create(4)], true, 13), [3]);
        assert_eq!(due(&mut waiting, &[create(5)], false, 14), [4, 5]);
    }
}
