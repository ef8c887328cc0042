//! Signals of the host's manager: the keys of instances, and what becomes of a signal that the switch tells.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use api::run_dir::in_run_dir;
use clock::monotonic;
use controller::{Command, CommandError, CommandId, Instance};
use model::{EventKind, InstanceId, Nanos, Slot};
use rustix::fs::OFlags;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use signal::{Gate, Key, Received, Refusal, Wish};

use super::journal::new_event;
use super::{ControlLoop, wiring};

/// The folder of keys, in the run directory.
pub(crate) const FOLDER: &str = "signals";
/// Only root may read a key, and nobody writes it.
const KEY_MODE: u32 = 0o400;
/// Longest file that is read as a key, in bytes.
const KEY_FILE_LIMIT: u64 = 4_096;
/// Refusals are told in an event at most this often.
const TOLD_EVERY: Nanos = Nanos::from_secs(1);

/// The file with the key of an instance: what the manager needs to send its signals.
#[derive(Debug, Serialize, Deserialize)]
struct KeyFile {
    service: String,
    instance: InstanceId,
    /// The kind of its port.
    port: String,
    /// Where its function takes signals to send, for a port that its function alone has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    socket: Option<PathBuf>,
    key: String,
}

/// The state of this part.
#[derive(Default)]
pub(super) struct Signals {
    gates: HashMap<Slot, Gate>,
    /// Signals that the controller is to carry out, each with its instance.
    ordered: HashMap<CommandId, (InstanceId, Wish)>,
    /// Signals that were carried out, by wish.
    accepted: BTreeMap<&'static str, u64>,
    /// Signals that were refused, by reason.
    refused: BTreeMap<&'static str, u64>,
    /// When a refusal was told, and how many have not been told since.
    told_at: Option<Nanos>,
    untold: u64,
}

impl Signals {
    /// Signals that were carried out, by wish.
    pub(super) fn accepted(&self) -> BTreeMap<String, u64> {
        let all = [Wish::Wake, Wish::Sleep].into_iter();
        counts(all.map(Wish::name), &self.accepted)
    }

    /// Signals that were refused, by reason.
    pub(super) fn refused(&self) -> BTreeMap<String, u64> {
        counts(Refusal::ALL.iter().map(|of| of.name()), &self.refused)
    }

    /// Looks at a signal that came through the port in that slot.
    fn accept(&mut self, slot: Slot, frame: &Received) -> Result<(InstanceId, Wish), Refusal> {
        let gate = self.gates.get_mut(&slot).ok_or(Refusal::NotExpected)?;
        let signal = gate.accept(frame)?;
        Ok((InstanceId(signal.instance), signal.wish))
    }
}

/// Every word with its count.
fn counts(
    words: impl Iterator<Item = &'static str>,
    counted: &BTreeMap<&'static str, u64>,
) -> BTreeMap<String, u64> {
    words
        .map(|word| (word.to_owned(), counted.get(word).copied().unwrap_or(0)))
        .collect()
}

fn file_of(instance: InstanceId) -> PathBuf {
    in_run_dir(&Path::new(FOLDER).join(format!("{}.key", instance.0)))
}

/// The key that an earlier run made for the instance.
fn known_key(instance: InstanceId) -> Option<Key> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        .open(file_of(instance));
    let file = opened.ok()?;
    let of = file.metadata().ok()?;
    let is_ours = of.is_file() && of.uid() == rustix::process::geteuid().as_raw() && of.mode() & 0o077 == 0;
    let mut text = String::new();
    file.take(KEY_FILE_LIMIT).read_to_string(&mut text).ok()?;
    let known: KeyFile = serde_json::from_str(&text).ok()?;
    if !is_ours || known.instance != instance {
        return None;
    }
    Key::from_text(&known.key).ok()
}

fn new_key() -> io::Result<Key> {
    let mut bytes = [0; 24];
    // Up to 256 bytes come in one piece.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(Key::of_random(bytes))
}

/// Writes the file of a key, in the place of one that was there.
fn write(file: &KeyFile) -> io::Result<()> {
    let path = file_of(file.instance);
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    remove(file.instance)?;
    let mut to = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(KEY_MODE)
        .open(&path)?;
    to.write_all(&serde_json::to_vec(file)?)
}

fn remove(instance: InstanceId) -> io::Result<()> {
    match fs::remove_file(file_of(instance)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The key of an instance: the one that an earlier run has given it, or a new one.
fn make_key(instance: &Instance, service: &configuration::Service) -> io::Result<Key> {
    let id = instance.id();
    if let Some(known) = known_key(id).filter(|_| instance.is_adopted()) {
        return Ok(known);
    }
    let key = new_key()?;
    let port = instance.port_kind();
    let socket = || instance.socket_dir().join(wiring::SIGNAL_SOCKET);
    write(&KeyFile {
        service: service.name.clone(),
        instance: id,
        port: port.name().to_owned(),
        socket: port.has_socket().then(socket),
        key: key.to_text(),
    })?;
    Ok(key)
}

impl ControlLoop {
    /// Gives the instance in that slot a key, if its service takes signals.
    pub(super) fn open_gate(&mut self, slot: Slot) {
        let instances = self.decide.shell.controller().instances();
        let Some(instance) = instances.iter().find(|of| of.slot() == slot) else {
            return;
        };
        let id = instance.id();
        let service = self.configuration.services.get(instance.service().index());
        let Some(service) = service.filter(|of| of.signals) else {
            return;
        };
        // An attachment that is tried again has its key.
        let known = self.signals.gates.get(&slot);
        if known.is_some_and(|gate| gate.instance() == id.0) {
            return;
        }
        match make_key(instance, service) {
            Ok(key) => {
                let gate = Gate::new(id.0, key, monotonic().0);
                self.signals.gates.insert(slot, gate);
            }
            Err(error) => self.journal.add(EventKind::Failure {
                what: "signal".to_owned(),
                reason: format!(
                    "the key of instance {id} cannot be written: {error}; its signals are refused"
                ),
            }),
        }
    }

    /// The instance in that slot is gone.
    pub(super) fn close_gate(&mut self, slot: Slot) {
        if let Some(gate) = self.signals.gates.remove(&slot)
            && let Err(error) = remove(InstanceId(gate.instance()))
        {
            tracing::warn!(%error, instance = gate.instance(), "the key of an instance that is gone stays");
        }
    }

    /// A signal came through the port in that slot.
    pub(super) fn take_signal(&mut self, slot: Slot, frame: &Received, now: Nanos) {
        match self.signals.accept(slot, frame) {
            Ok((instance, wish)) => {
                let id = self.decide.order(Command::Signal { instance, wish });
                self.signals.ordered.insert(id, (instance, wish));
            }
            Err(refusal) => {
                let instances = self.decide.shell.controller().instances();
                let instance = instances.iter().find(|of| of.slot() == slot).map(Instance::id);
                self.refuse_signal(instance, refusal, refusal.text(), now);
            }
        }
    }

    /// The controller has carried a signal out, or not.
    pub(super) fn conclude_signal(&mut self, id: CommandId, result: &Result<String, CommandError>) {
        let Some((instance, wish)) = self.signals.ordered.remove(&id) else {
            return;
        };
        match result {
            Ok(_) => *self.signals.accepted.entry(wish.name()).or_default() += 1,
            Err(error) => {
                let why = error.to_string();
                self.refuse_signal(Some(instance), Refusal::NotPermitted, &why, monotonic());
            }
        }
    }

    fn refuse_signal(&mut self, instance: Option<InstanceId>, refusal: Refusal, why: &str, now: Nanos) {
        let signals = &mut self.signals;
        *signals.refused.entry(refusal.name()).or_default() += 1;
        if signals.told_at.is_some_and(|at| now.since(at) < TOLD_EVERY) {
            signals.untold += 1;
            return;
        }
        signals.told_at = Some(now);
        let more = match std::mem::take(&mut signals.untold) {
            0 => String::new(),
            untold => format!("; {untold} more since the last such event"),
        };
        let mut event = new_event(
            None,
            EventKind::Failure {
                what: "signal".to_owned(),
                reason: format!("refused ({}): {why}{more}", refusal.name()),
            },
        );
        event.instance = instance;
        self.journal.push(event);
    }
}
