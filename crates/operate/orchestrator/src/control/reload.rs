//! Reload: applies a changed configuration at run time, completely or not at all. Flows keep their pins.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};

use api::types::{Outcome, Refusal};
use configuration::{ApiTcp, Configuration, Facts, InstanceDevice, Service, Unusable, Uplink, check_facts};
use controller::{Command, ServiceSettings};
use model::{Action, EventKind, KeyChange, Nanos, ServiceId};

use super::request::Asked;
use super::{ControlLoop, wiring};
use crate::load;
use crate::machine::Machine;
use crate::pull::pull_missing;
use crate::reports::Keys;

/// Time limit to read and check a file: shorter than the API client's timeout.
const READING_TIME: Nanos = Nanos::from_secs(8);
/// Threads that may hang in a file system at once. Each later attempt takes a new thread, since the file may have
/// moved to another file system.
const HANGING_READERS_MAX: usize = 4;

/// A configuration, with the keys that its files have.
type Whole = (Configuration, Keys);
type Read = Receiver<Result<Whole, String>>;

/// Reads and checks the configuration's file on a separate thread.
#[derive(Default)]
pub(super) struct FileReader {
    current: Option<Reading>,
    /// Abandoned reads whose threads have not returned.
    hanging: Vec<Read>,
}

struct Reading {
    asked: Asked,
    since: Nanos,
    result: Read,
    /// Whether it is just pulling an image: that goes on where the requester waits no longer.
    pulls: Arc<AtomicBool>,
}

impl FileReader {
    /// Whether a requester waits for the result.
    pub(super) fn is_busy(&self) -> bool {
        self.current.is_some()
    }

    /// Begins to read. Returns the request with a refusal if a read is in progress or too many threads hang.
    fn begin(&mut self, asked: Asked, file: String, now: Nanos) -> Option<(Asked, Refusal)> {
        self.hanging
            .retain(|result| matches!(result.try_recv(), Err(TryRecvError::Empty)));
        if self.current.is_some() {
            let refusal = Refusal::new(
                "the file is already being read",
                "wait until that has ended, and try again",
            );
            return Some((asked, refusal));
        }
        if self.hanging.len() >= HANGING_READERS_MAX {
            return Some((asked, read_timeout(&file)));
        }
        let (sender, result) = mpsc::channel();
        let pulls = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&pulls);
        // Checks of images take time and a file system may hang, so a thread does both.
        let thread = std::thread::Builder::new().name("inco-reload".to_owned());
        let run = move || {
            // The receiver is gone if the loop has ended or abandoned this read.
            let _ = sender.send(read(&file, &told));
        };
        match thread.spawn(run) {
            Ok(_detached) => {
                self.current = Some(Reading {
                    asked,
                    since: now,
                    result,
                    pulls,
                });
                None
            }
            Err(error) => {
                let refusal = Refusal::new(format!("cannot start a thread: {error}"), "try again");
                Some((asked, refusal))
            }
        }
    }

    /// The result and its requester, once the read has ended or timed out.
    fn take(&mut self, file: &str, now: Nanos) -> Option<(Asked, Result<Whole, Refusal>)> {
        let reading = self.current.as_ref()?;
        let wrong = |problems| Refusal::new(problems, "correct the file; nothing was changed");
        let read = match reading.result.try_recv() {
            Ok(read) => read.map_err(wrong),
            Err(TryRecvError::Disconnected) => Err(wrong("reading it ended with a panic".to_owned())),
            Err(TryRecvError::Empty) if now.since(reading.since) >= READING_TIME => {
                Err(if reading.pulls.load(Ordering::Relaxed) {
                    still_pulling()
                } else {
                    read_timeout(file)
                })
            }
            Err(TryRecvError::Empty) => return None,
        };
        let Reading {
            asked, since, result, ..
        } = self.current.take()?;
        if read.is_err() && now.since(since) >= READING_TIME {
            self.hanging.push(result);
        }
        Some((asked, read))
    }
}

fn read_timeout(file: &str) -> Refusal {
    Refusal::new(
        format!(
            "{file} was not read and checked within {} s: a file system or the engine does not answer",
            READING_TIME.as_secs_f64()
        ),
        "check that `cat` shows the file, and try again; nothing was changed",
    )
}

fn still_pulling() -> Refusal {
    Refusal::new(
        "an image of the file is still being pulled; that goes on, and nothing was changed yet",
        "reload again when `inco image list` shows the image; the log has the progress",
    )
}

/// This machine as seen by a running inco: whatever is in use is used by this inco and cannot change.
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

    fn kubernetes(&self, of: &configuration::Kubernetes) -> Result<(), Unusable> {
        self.0.kubernetes(of)
    }

    fn tokens(&self, _: &ApiTcp) -> Result<(), Unusable> {
        Ok(())
    }

    fn report_key(&self, file: &Path) -> Result<(), Unusable> {
        self.0.report_key(file)
    }

    fn takes_reports(&self, _: std::net::SocketAddr) -> Result<(), Unusable> {
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
        // The hugepages that it needs are already allocated.
        Ok(())
    }
}

fn read(file: &str, pulls: &AtomicBool) -> Result<Whole, String> {
    let configuration = load::load(Path::new(file)).map_err(|error| error.to_string())?;
    check(&configuration)?;
    let say = |line: &str| {
        pulls.store(true, Ordering::Relaxed);
        tracing::info!("{line}");
    };
    let pulled = pull_missing(&configuration, &say);
    let pulled = pulled.map_err(|error| display::output::explain(&error))?;
    pulls.store(false, Ordering::Relaxed);
    if pulled > 0 {
        // What depends on the images.
        check(&configuration)?;
    }
    let keys = Keys::read(&configuration.reports)?;
    Ok((configuration, keys))
}

fn check(configuration: &Configuration) -> Result<(), String> {
    let problems = check_facts(configuration, &InUse(Machine::now()));
    if problems.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Err(lines.join("\n"))
}

/// The changes of a new configuration.
struct Changes {
    keys: Vec<KeyChange>,
    /// The existing services in their order, followed by the new ones.
    configuration: Configuration,
    /// Existing services whose keys changed.
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
    /// The changes from `old` to `new`.
    ///
    /// # Errors
    /// Some keys cannot change at run time. The refusal lists each with its place.
    fn between(old: &Configuration, mut new: Configuration) -> Result<Changes, Refusal> {
        let keys = old.changes_to(&new);
        let fixed = fixed_text(&keys);
        if !fixed.is_empty() {
            return Err(Refusal::new(
                format!("these keys cannot change while inco runs: {fixed}"),
                "undo the change, or restart inco with the new file; nothing was changed",
            ));
        }
        let place = |service: &Service| {
            old.service(&service.name)
                .map_or(usize::MAX, |(id, _)| id.index())
        };
        // A stable sort keeps new services in the file's order.
        new.services.sort_by_key(place);
        let settings = |service: &Service| {
            wiring::service_settings(service, &new)
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

/// The keys that need a restart, separated by commas; empty if there are none.
fn fixed_text(changes: &[KeyChange]) -> String {
    let fixed = changes.iter().filter(|change| change.needs_restart);
    let text = fixed.map(|change| {
        let why = match (&change.old, &change.new) {
            (None, _) => " (it is new)",
            (_, None) => " (it is removed)",
            _ => "",
        };
        format!("{}{why}", change.key)
    });
    text.collect::<Vec<_>>().join(", ")
}

/// Describes what a reload would do.
///
/// # Errors
/// The new configuration cannot be applied for a reason other than keys that need a restart. The outcome lists those
/// keys.
fn preview(old: &Configuration, new: Configuration) -> Result<Outcome, Refusal> {
    let changes = old.changes_to(&new);
    let fixed = fixed_text(&changes);
    let result = if changes.is_empty() {
        UNCHANGED.to_owned()
    } else if fixed.is_empty() {
        Changes::between(old, new)?;
        format!("a reload would change {}", keys_text(&changes))
    } else {
        format!("a reload would be refused: these keys cannot change while inco runs: {fixed}")
    };
    Ok(Outcome {
        changes,
        ..Outcome::new(result)
    })
}

/// The message for an unchanged file.
const UNCHANGED: &str = "nothing has changed in the file";
/// Keys that a message names; the others are counted.
const KEYS_NAMED: usize = 20;

/// The names of changed keys, for a message.
fn keys_text(changes: &[KeyChange]) -> String {
    let named = changes.iter().take(KEYS_NAMED).map(|change| change.key.as_str());
    let text = named.collect::<Vec<_>>().join(", ");
    match changes.len().saturating_sub(KEYS_NAMED) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

impl ControlLoop {
    /// Begins to read the file again. The answer follows when the result was applied or refused.
    pub(super) fn begin_reload(&mut self, asked: Asked, now: Nanos) {
        let file = self.configuration.file.clone();
        if let Some((asked, refusal)) = self.apply.file_reader.begin(asked, file, now) {
            self.conclude(asked, Err(refusal));
        }
    }

    /// Applies the configuration once it was read.
    pub(super) fn take_reload(&mut self, now: Nanos) {
        let Some((asked, read)) = self.apply.file_reader.take(&self.configuration.file, now) else {
            return;
        };
        if asked.action == (Action::Reload { check: true }) {
            let result = read.and_then(|(new, _)| preview(&self.configuration, new));
            return self.conclude(asked, result);
        }
        let changes = read.and_then(|(new, keys)| Ok((Changes::between(&self.configuration, new)?, keys)));
        match changes {
            // The changes go into the next plan, which the switch may refuse.
            Ok((changes, keys)) => {
                let outcome = self.reconfigure(changes);
                self.follow_reports(keys);
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
        self.health.forget();
        if let Err(error) = self.actors.follow(&self.configuration, self.keeper.as_ref()) {
            let reason = format!("{error:#}; the service has no actors until inco is started again");
            self.journal.add(EventKind::Failure {
                what: "actors".to_owned(),
                reason,
            });
        }
        let mut has_ended = false;
        for change in changes.changed {
            if let Some(service) = self.configuration.services.get(change.id.index()) {
                has_ended |= self
                    .run_time
                    .file_sets(&service.name, change.scheduler, change.autoscaler);
            }
            self.decide.order(Command::Reconfigure {
                service: change.id,
                settings: Box::new(change.settings),
                autoscaler: change.autoscaler,
                scheduler: change.scheduler,
            });
        }
        if has_ended {
            self.keep_run_time();
        }
        if let Some(keep) = self.keep.as_ref().filter(|_| !changes.added.is_empty()) {
            // Before any flow has the number of a new service.
            keep.renumber(wiring::numbering(&self.configuration));
        }
        for settings in changes.added {
            self.gather.reading.services.push(Default::default());
            self.decide.order(Command::AddService {
                settings: Box::new(settings),
            });
        }
        self.follow_endpoints();
        if changes.keys.is_empty() {
            return Outcome::new(UNCHANGED);
        }
        if is_matched_anew {
            self.decide.order(Command::Match(matching));
        }
        let result = format!(
            "changed: {}; running instances keep their containers",
            keys_text(&changes.keys)
        );
        Outcome {
            changes: changes.keys,
            ..Outcome::new(result)
        }
    }
}
