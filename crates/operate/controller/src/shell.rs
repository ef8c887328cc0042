use std::collections::BTreeMap;
use std::path::Path;
use std::thread::{Builder, JoinHandle};
use std::{fs, io};

use autoscaling::{Fit, Fitted};
use collector::Collector;
use engine::{Engine, EngineEvent, Execution, Request, Ticket};
use model::{Generation, Histogram, Nanos, ServiceId};
use switch::{Resumed, SwitchEvent, SwitchRequest};

use crate::Controller;
use crate::blocks::ReservedBlock;
use crate::message::{Command, CommandId, Inputs, Outputs, Report};

/// How long creates wait after a step that changed the plan. A create takes milliseconds of CPU time in parts that
/// the kernel does not preempt; packets that wait for the plan need that CPU first.
const CREATES_WAIT: Nanos = Nanos::from_millis(2);

/// The file in the run directory with reserved blocks of external ports, a line each.
const BLOCKS_FILE: &str = "port-blocks";

/// Keeps the reserved blocks for the next run.
///
/// # Errors
/// The system's: the file stays as it was.
fn keep_blocks(run_dir: &Path, reserved: &[ReservedBlock]) -> io::Result<()> {
    let file = run_dir.join(BLOCKS_FILE);
    if reserved.is_empty() {
        return match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let text: String = reserved.iter().map(|block| format!("{block}\n")).collect();
    let new = file.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(&new, &file)
}

/// The blocks that an earlier run had reserved, and why there may have been more, if that is so.
fn kept_blocks(run_dir: &Path) -> (Vec<ReservedBlock>, Option<String>) {
    let text = match fs::read_to_string(run_dir.join(BLOCKS_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (Vec::new(), None),
        Err(error) => return (Vec::new(), Some(error.to_string())),
        Ok(text) => text,
    };
    let blocks = text.lines().filter_map(ReservedBlock::from_line).collect();
    let foreign = text.lines().find(|line| ReservedBlock::from_line(line).is_none());
    (
        blocks,
        foreign.map(|line| format!("{line:?} is no reserved block")),
    )
}

/// The engine's calls by kind: how many, how long, how many failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineCalls {
    /// Duration of successful calls.
    pub took: BTreeMap<&'static str, Histogram>,
    /// Failed calls.
    pub failed: BTreeMap<&'static str, u64>,
}

/// The `call` label of a request in metrics.
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

/// Connects the controller to an engine. It passes engine events in and requests out, removes the directories of
/// instances that are gone, and runs long computations of autoscalers on their own threads. The caller owns the
/// switch, the event log and the clock.
pub struct Shell {
    controller: Controller,
    engine: Box<dyn Engine>,
    engine_events: Vec<EngineEvent>,
    containers: Option<Vec<engine::Container>>,
    outputs: Outputs,
    waiting: Waiting,
    calls: EngineCalls,
    /// Calls without an answer yet.
    outstanding: BTreeMap<Ticket, &'static str>,
    /// Running fits, each on its own thread.
    fits: Vec<(ServiceId, JoinHandle<Fitted>)>,
    fitted: Vec<(ServiceId, Fitted)>,
}

/// Creates that are delayed by [`CREATES_WAIT`].
#[derive(Debug, Default)]
struct Waiting {
    /// In the order of the requests.
    requests: Vec<(Ticket, Request)>,
    until: Nanos,
}

impl Waiting {
    /// The requests that are due now: delayed ones first, then those of this step. Leaves `asked` empty. If the step
    /// changes the plan and requests only creates, these wait for [`CREATES_WAIT`] or until the next other request.
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
    /// Connects a controller to an engine and adopts the engine's containers; `resumed` is what the switch took over.
    /// May block as long as [`Engine::list`] does.
    ///
    /// # Errors
    /// The engine cannot list its containers. Nothing may be started without knowing what already runs.
    pub fn new(
        mut controller: Controller,
        mut engine: Box<dyn Engine>,
        resumed: &Resumed,
        now: Nanos,
    ) -> Result<Shell, engine::EngineError> {
        let containers = engine.list(&controller.settings().label())?;
        controller.adopt(&containers, resumed, now);
        let (kept, trouble) = kept_blocks(&controller.settings().run_dir);
        if let Some(reason) = trouble {
            controller.tell_of_blocks(&reason);
        }
        controller.reserve_blocks(&kept, now);
        Ok(Shell {
            controller,
            engine,
            engine_events: Vec::new(),
            containers: None,
            outputs: Outputs::default(),
            waiting: Waiting::default(),
            calls: EngineCalls::default(),
            outstanding: BTreeMap::new(),
            fits: Vec::new(),
            fitted: Vec::new(),
        })
    }

    /// One step: passes the engine's events and the given inputs to the controller. The caller carries out the
    /// outputs for the switch, the event log and the operators. Engine requests wait for [`Shell::carry_out`], so
    /// that the switch is served first.
    pub fn turn(
        &mut self,
        (switch, acknowledged): (&[SwitchEvent], Generation),
        reports: &[Report],
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
            reports,
        };
        self.controller.step(inputs, collector, now, &mut self.outputs);
        &self.outputs
    }

    /// Sends the engine its requests of the last step and removes directories. Call it after each step. Creates wait
    /// if the plan has changed; see [`CREATES_WAIT`].
    pub fn carry_out(&mut self, now: Nanos) {
        let is_publish = |request: &SwitchRequest| matches!(request, SwitchRequest::Publish { .. });
        let changes_plan = self.outputs.switch.iter().any(is_publish);
        let due = self.waiting.due(&mut self.outputs.engine, changes_plan, now);
        for (ticket, request) in due {
            self.outstanding.insert(ticket, call_name(&request));
            self.engine.submit(ticket, request);
        }
        if self.outputs.list_containers {
            // If the engine fails here, it reports that it is down, and later that it is up again.
            self.containers = self.engine.list(&self.controller.settings().label()).ok();
        }
        for (service, fit) in self.outputs.fits.drain(..) {
            self.fits.extend(start_fit(fit).map(|thread| (service, thread)));
        }
        if let Some(reserved) = self.outputs.reserved.take() {
            // No reason to stop: it concerns a next run, within the lifetime of mappings.
            if let Err(error) = keep_blocks(&self.controller.settings().run_dir, &reserved) {
                self.controller.tell_of_blocks(&error.to_string());
            }
        }
        for dir in self.outputs.remove_dirs.drain(..) {
            // A directory that cannot be removed is harmless: names are never reused.
            let _ = engine::exchange::remove(&dir);
        }
    }

    /// Collects the results of finished fits.
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
            let Some(call) = self.outstanding.remove(ticket) else {
                continue;
            };
            match took {
                Some(took) => self.calls.took.entry(call).or_default().note(took),
                None => *self.calls.failed.entry(call).or_default() += 1,
            }
        }
    }

    /// Figures of the engine's calls so far.
    pub fn engine_calls(&self) -> &EngineCalls {
        &self.calls
    }

    /// The controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Has the engine run a command for a client. The controller is not involved.
    pub fn execute(&mut self, execution: Execution) {
        self.engine.execute(execution);
    }

    /// The engine.
    pub fn engine(&self) -> &dyn Engine {
        self.engine.as_ref()
    }
}

/// Runs a fit on a new thread. If no thread can be started, the autoscaler keeps its present fit and requests another
/// later.
fn start_fit(fit: Fit) -> Option<JoinHandle<Fitted>> {
    let thread = Builder::new().name("inco-fit".to_owned());
    thread.spawn(move || fit.run()).ok()
}

#[cfg(test)]
mod tests {
    use engine::ContainerSpec;

    use super::*;

    #[test]
    fn reserved_blocks_are_kept_or_it_is_told_that_they_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let empty = (Vec::new(), None);
        assert_eq!(kept_blocks(at), empty);
        keep_blocks(at, &[]).unwrap();
        let address = model::Prefix::of("203.0.113.1".parse().unwrap());
        let external = model::External::new(&[address], 4032).unwrap();
        let of = |block| ReservedBlock {
            owner: None,
            until_unix_ms: 7,
            ports: external.ports_of(block).unwrap(),
            service: "nat".to_owned(),
        };
        let all = vec![of(0), of(2)];
        keep_blocks(at, &all).unwrap();
        assert_eq!(kept_blocks(at), (all.clone(), None));
        fs::write(at.join(BLOCKS_FILE), format!("{}\nwhat is this\n", all[0])).unwrap();
        let (kept, trouble) = kept_blocks(at);
        assert_eq!(kept, all[..1]);
        assert!(trouble.unwrap().contains("what is this"));
        keep_blocks(at, &[]).unwrap();
        assert_eq!(kept_blocks(at), empty);
        keep_blocks(&at.join("none"), &all).unwrap_err();
    }

    fn create(ticket: u64) -> (Ticket, Request) {
        let spec = ContainerSpec::new(format!("nf-{ticket}"), "nf");
        (Ticket(ticket), Request::Create(Box::new(spec)))
    }

    fn remove(ticket: u64) -> (Ticket, Request) {
        let name = "nf-0".to_owned();
        (Ticket(ticket), Request::Remove { name })
    }

    /// The tickets of the requests that are due at `ms` milliseconds.
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
