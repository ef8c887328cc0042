use std::collections::BTreeMap;
use std::path::Path;
use std::thread::{Builder, JoinHandle};

use autoscaling::{Fit, Fitted};
use collector::Collector;
use engine::{Engine, EngineEvent, Request, Ticket};
use model::{Histogram, Nanos, ServiceId};

use crate::Controller;
use crate::message::{Command, CommandId, Inputs, Outputs, SwitchReply, SwitchRequest};

/// How long creates of a step that also changed the switch's table wait: a container that is made takes milliseconds of a CPU, in
/// parts that the kernel does not interrupt, and packets that wait for that table need it first.
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

/// The thin part around the core: it carries what the engine says in and what the engine should do out, makes and
/// removes the instances' directories, and runs what autoscalers have to reckon for longer than a turn may take. Switch, event log and clock are its caller's.
pub struct Shell {
    controller: Controller,
    engine: Box<dyn Engine>,
    engine_events: Vec<EngineEvent>,
    containers: Option<Vec<engine::Container>>,
    outputs: Outputs,
    /// Requests that wait for packets, in their order, and until when.
    waiting: Vec<(Ticket, Request)>,
    waiting_until: Nanos,
    calls: EngineCalls,
    /// Calls that are not answered yet.
    in_hand: BTreeMap<Ticket, &'static str>,
    /// Fits, each on a thread of its own while it runs.
    fits: Vec<(ServiceId, JoinHandle<Fitted>)>,
    fitted: Vec<(ServiceId, Fitted)>,
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
            waiting: Vec::new(),
            waiting_until: Nanos::ZERO,
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
        switch: &[SwitchReply],
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
            commands,
            fitted: &self.fitted,
        };
        self.controller.step(inputs, collector, now, &mut self.outputs);
        &self.outputs
    }

    /// Hands the engine its requests of the last step, and does what else there is to do outside of the switch.
    /// Creates wait for a moment where the table has changed, in which packets need the CPU. To be called after each step.
    pub fn carry_out(&mut self, now: Nanos) {
        let requests = &self.outputs.engine;
        // What comes after those that wait does not overtake them.
        let is_due = now >= self.waiting_until || !requests.is_empty();
        let mut due = if is_due {
            std::mem::take(&mut self.waiting)
        } else {
            Vec::new()
        };
        let has_new_table = self
            .outputs
            .switch
            .iter()
            .any(|request| matches!(request, SwitchRequest::Publish { .. }));
        let is_create = |(_, request): &(Ticket, Request)| matches!(request, Request::Create(_));
        if has_new_table && !requests.is_empty() && requests.iter().all(is_create) {
            self.waiting.append(&mut self.outputs.engine);
            self.waiting_until = now + CREATES_WAIT;
        }
        due.append(&mut self.outputs.engine);
        for (ticket, request) in due {
            if let engine::Request::Create(spec) = &request {
                let dirs = spec
                    .mounts
                    .iter()
                    .filter(|mount| mount.source.starts_with(self.controller.instances_dir()));
                for mount in dirs {
                    make_dir(&mount.source);
                }
            }
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
            let _ = std::fs::remove_dir_all(dir);
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

/// Makes an instance's directory. Where that fails the engine's create fails and says so: its mount has no source.
fn make_dir(dir: &Path) {
    let _ = std::fs::create_dir_all(dir);
}
