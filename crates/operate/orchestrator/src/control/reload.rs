//! A changed configuration, applied while everything runs: all of it or nothing. Flows keep their pins.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, TryRecvError};

use api::types::{Action, Outcome, Refusal};
use configuration::{ApiTcp, Configuration, Facts, InstanceDevice, Service, Unusable, Uplink, check_facts};
use controller::{Command, ServiceSettings};
use model::{KeyChange, Nanos, ServiceId};

use super::apply::Asked;
use super::{ControlLoop, wiring};
use crate::load;
use crate::machine::Machine;

/// How long a file may take to be read and checked: shorter than whoever asked waits for an answer.
const READING_TIME: Nanos = Nanos::from_secs(8);
/// Threads that may hang in a file system at once. Each later attempt takes a new one, since the file may be on another by then.
const HANGING_LIMIT: usize = 4;

type Read = Receiver<Result<Configuration, String>>;

/// The file of the configuration, read and checked away from the control loop.
#[derive(Default)]
pub(super) struct FileReader {
    current: Option<Reading>,
    /// Given up, each on a thread that has not come back.
    hanging: Vec<Read>,
}

struct Reading {
    asked: Asked,
    since: Nanos,
    result: Read,
}

impl FileReader {
    /// Whether somebody waits for what comes of it.
    pub(super) fn is_busy(&self) -> bool {
        self.current.is_some()
    }

    /// Begins to read. Gives back what is refused, where that is under way or hangs too often.
    fn begin(&mut self, asked: Asked, file: String, now: Nanos) -> Option<(Asked, Refusal)> {
        self.hanging
            .retain(|result| matches!(result.try_recv(), Err(TryRecvError::Empty)));
        if self.current.is_some() {
            let refusal = Refusal::new("the file is being read already", "wait for that, and try again");
            return Some((asked, refusal));
        }
        if self.hanging.len() >= HANGING_LIMIT {
            return Some((asked, hangs(&file)));
        }
        let (sender, result) = mpsc::channel();
        // Looking for images may take its time, and a file system need not answer; the loop does not wait.
        let thread = std::thread::Builder::new().name("inco-reload".to_owned());
        let run = move || {
            // Nobody waits for it where the loop has ended, or has given it up.
            let _ = sender.send(read(&file));
        };
        match thread.spawn(run) {
            Ok(_detached) => {
                self.current = Some(Reading {
                    asked,
                    since: now,
                    result,
                });
                None
            }
            Err(error) => {
                let refusal = Refusal::new(format!("no thread can be started: {error}"), "try again");
                Some((asked, refusal))
            }
        }
    }

    /// What was read, and for whom, once it was or has taken too long.
    fn take(&mut self, file: &str, now: Nanos) -> Option<(Asked, Result<Configuration, Refusal>)> {
        let reading = self.current.as_ref()?;
        let wrong = |problems| Refusal::new(problems, "correct the file; nothing was changed");
        let read = match reading.result.try_recv() {
            Ok(read) => read.map_err(wrong),
            Err(TryRecvError::Disconnected) => Err(wrong("reading it ended with a panic".to_owned())),
            Err(TryRecvError::Empty) if now.since(reading.since) >= READING_TIME => Err(hangs(file)),
            Err(TryRecvError::Empty) => return None,
        };
        let Reading { asked, since, result } = self.current.take()?;
        if read.is_err() && now.since(since) >= READING_TIME {
            self.hanging.push(result);
        }
        Some((asked, read))
    }
}

fn hangs(file: &str) -> Refusal {
    Refusal::new(
        format!(
            "{file} was not read and checked within {} s: its file system, or one that it names, or the engine does not answer",
            READING_TIME.as_secs_f64()
        ),
        "see that `cat` shows the file, and try again; nothing was changed",
    )
}

/// This machine as a running inco sees it: what is in use is so by itself, and cannot change anyway.
struct InUse(Machine);

impl Facts for InUse {
    fn cpu(&self, cpu: u16) -> Result<(), Unusable> {
        self.0.cpu(cpu)
    }

    fn device(&self, _uplink: &Uplink) -> Result<(), Unusable> {
        Ok(())
    }

    fn interface(&self, _name: &str) -> Result<(), Unusable> {
        Ok(())
    }

    fn function(&self, _: &configuration::Engine, _: &InstanceDevice) -> Result<(), Unusable> {
        Ok(())
    }

    fn engine(&self, engine: &configuration::Engine) -> Result<(), Unusable> {
        self.0.engine(engine)
    }

    fn image(&self, engine: &configuration::Engine, image: &str) -> Result<(), Unusable> {
        self.0.image(engine, image)
    }

    fn api_socket(&self, _socket: Option<&Path>) -> Result<(), Unusable> {
        Ok(())
    }

    fn program(
        &self,
        engine: &configuration::Engine,
        service: &Service,
        command: &[String],
    ) -> Result<(), Unusable> {
        self.0.program(engine, service, command)
    }

    fn listen(&self, _: &ApiTcp) -> Result<(), Unusable> {
        Ok(())
    }

    fn certificate(&self, _: &ApiTcp) -> Result<(), Unusable> {
        Ok(())
    }

    fn tokens(&self, _: &ApiTcp) -> Result<(), Unusable> {
        Ok(())
    }

    fn event_log(&self, _: Option<&Path>) -> Result<(), Unusable> {
        Ok(())
    }

    fn switch(&self, _: &configuration::Switch) -> Result<(), (&'static str, Unusable)> {
        Ok(())
    }

    fn path(&self, path: &Path) -> Result<(), Unusable> {
        self.0.path(path)
    }

    fn hugepages(&self) -> Result<(), Unusable> {
        // Those that are needed are taken already.
        Ok(())
    }
}

fn read(file: &str) -> Result<Configuration, String> {
    let configuration = load::load(Path::new(file)).map_err(|error| error.to_string())?;
    let problems = check_facts(&configuration, &InUse(Machine::now()));
    if problems.is_empty() {
        return Ok(configuration);
    }
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Err(lines.join("\n"))
}

/// What a new configuration changes.
struct Changes {
    keys: Vec<KeyChange>,
    /// With the services that there are in their old order, and the new ones after them.
    configuration: Configuration,
    /// Services that there are and whose keys changed.
    changed: Vec<Changed>,
    /// Settings of the new services, in their order.
    added: Vec<ServiceSettings>,
}

struct Changed {
    id: ServiceId,
    settings: ServiceSettings,
    scheduler: bool,
    autoscaler: bool,
}

impl Changes {
    /// What is to be done to come from `old` to `new`.
    ///
    /// # Errors
    /// The keys that cannot change while inco runs, each with its place.
    fn between(old: &Configuration, mut new: Configuration) -> Result<Changes, Refusal> {
        let keys = old.changes_to(&new);
        let fixed = fixed_text(&keys);
        if !fixed.is_empty() {
            return Err(Refusal::new(
                format!("this cannot change while inco runs: {fixed}"),
                "take it back, or stop inco and run it again with the new file; nothing was changed",
            ));
        }
        let place = |service: &Service| {
            old.service(&service.name)
                .map_or(usize::MAX, |(id, _)| id.index())
        };
        // Stable: new services stay in the file's order.
        new.services.sort_by_key(place);
        let new_engine = new.engine.clone();
        let settings = |service: &Service| {
            wiring::service_settings(service, &new_engine)
                .map_err(|error| Refusal::new(format!("{error:#}"), "correct the file; nothing was changed"))
        };
        let mut changed = Vec::new();
        for (id, service) in new.services_with_ids().take(old.services.len()) {
            let differs = |key: &str| old.changes_service(&new, &service.name, key);
            if differs("") {
                changed.push(Changed {
                    id,
                    settings: settings(service)?,
                    scheduler: differs("scheduler"),
                    autoscaler: differs("autoscaler"),
                });
            }
        }
        let added = new.services.iter().skip(old.services.len()).map(settings);
        let added = added.collect::<Result<Vec<_>, _>>()?;
        Ok(Changes {
            keys,
            configuration: new,
            changed,
            added,
        })
    }
}

/// The keys that need a restart, with commas; empty where there is none.
fn fixed_text(changes: &[KeyChange]) -> String {
    let fixed = changes.iter().filter(|change| change.needs_restart);
    let text = fixed.map(|change| {
        let why = match (&change.old, &change.new) {
            (None, _) => " (it is new)",
            (_, None) => " (it is not there any more)",
            _ => "",
        };
        format!("{}{why}", change.key)
    });
    text.collect::<Vec<_>>().join(", ")
}

/// What a reload would do.
///
/// # Errors
/// What is wrong with the new configuration, beside keys that need a restart: those are told by the outcome.
fn preview(old: &Configuration, new: Configuration) -> Result<Outcome, Refusal> {
    let changes = old.changes_to(&new);
    let fixed = fixed_text(&changes);
    let result = if changes.is_empty() {
        UNCHANGED.to_owned()
    } else if fixed.is_empty() {
        Changes::between(old, new)?;
        format!("a reload would change {}", keys_text(&changes))
    } else {
        format!("a reload would be refused: this cannot change while inco runs: {fixed}")
    };
    Ok(Outcome {
        changes,
        ..Outcome::new(result)
    })
}

/// What is said of a file that is as it was.
const UNCHANGED: &str = "nothing has changed in the file";
/// Keys that a sentence names; the rest is counted.
const KEYS_NAMED: usize = 20;

/// The names of the changed keys in a sentence.
fn keys_text(changes: &[KeyChange]) -> String {
    let named = changes.iter().take(KEYS_NAMED).map(|change| change.key.as_str());
    let text = named.collect::<Vec<_>>().join(", ");
    match changes.len().saturating_sub(KEYS_NAMED) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

impl ControlLoop {
    /// Begins to read the file again. The answer comes when it was checked and applied, or refused.
    pub(super) fn begin_reload(&mut self, asked: Asked, now: Nanos) {
        let file = self.configuration.file.clone();
        if let Some((asked, refusal)) = self.apply.file_reader.begin(asked, file, now) {
            self.conclude(asked, Err(refusal));
        }
    }

    /// Applies what was read, once it was.
    pub(super) fn take_reload(&mut self, now: Nanos) {
        let Some((asked, read)) = self.apply.file_reader.take(&self.configuration.file, now) else {
            return;
        };
        if asked.action == (Action::Reload { check: true }) {
            let result = read.and_then(|new| preview(&self.configuration, new));
            return self.conclude(asked, result);
        }
        match read.and_then(|new| Changes::between(&self.configuration, new)) {
            // What it changes goes into the next plan, which the switch may refuse.
            Ok(changes) => {
                let outcome = self.reconfigure(changes);
                self.apply.note_reloaded(asked, outcome);
            }
            Err(refusal) => {
                self.apply.note_reload(false);
                self.conclude(asked, Err(refusal));
            }
        }
    }

    fn reconfigure(&mut self, changes: Changes) -> Outcome {
        let matching = wiring::matching(&changes.configuration);
        let is_matched_anew = matching != wiring::matching(&self.configuration);
        self.configuration = changes.configuration;
        for change in changes.changed {
            self.decide.order(Command::Reconfigure {
                service: change.id,
                settings: Box::new(change.settings),
                autoscaler: change.autoscaler,
                scheduler: change.scheduler,
            });
        }
        for settings in changes.added {
            self.gather.reading.services.push(Default::default());
            self.decide.order(Command::AddService {
                settings: Box::new(settings),
            });
        }
        if changes.keys.is_empty() {
            return Outcome::new(UNCHANGED);
        }
        if is_matched_anew {
            self.decide.order(Command::Match(matching));
        }
        let result = format!(
            "changed: {}; instances that run keep the containers that they have",
            keys_text(&changes.keys)
        );
        Outcome {
            changes: changes.keys,
            ..Outcome::new(result)
        }
    }
}
