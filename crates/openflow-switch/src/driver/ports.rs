//! Ports of Open vSwitch, made and removed by a thread of their own: the database answers when the switch has carried a
//! change out, which takes longer than a packet may wait.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::{Nanos, Slot};
use openvswitch::{Control, DatapathFlow, Endpoint, Ovsdb, OvsdbError, PortSpec};

use super::OpenFlowSwitchConfig;

/// How long the database may take for one change: the first port of DPDK takes seconds.
pub(super) const DATABASE_LIMIT: Duration = Duration::from_secs(30);
/// How long the switch may take to list the flows that its hardware has.
const CONTROL_LIMIT: Duration = Duration::from_secs(2);
/// How long an instance may take to take its first packet, once its ports are made.
pub(super) const ATTACH_LIMIT: Nanos = Nanos::from_secs(5);
/// How often it is looked whether an instance listens.
const LOOK: Duration = Duration::from_millis(2);
/// Between two attempts after a failure.
const AGAIN: Duration = Duration::from_millis(50);

/// What is to be done.
pub(super) enum PortTask {
    /// Make ports, once somebody listens at their sockets.
    Add(NewPorts),
    /// Look which flows the hardware has.
    Offloaded,
    /// Give up what was asked for with this serial number, and remove these ports.
    Remove {
        slot: Slot,
        serial: u64,
        names: Vec<String>,
    },
}

pub(super) struct NewPorts {
    pub(super) slot: Slot,
    /// Counts attachments: an answer about an earlier one is told apart.
    pub(super) serial: u64,
    pub(super) socket: PathBuf,
    pub(super) ports: Vec<PortSpec>,
    pub(super) until: Instant,
}

/// What came of it.
pub(super) enum PortDone {
    Added {
        slot: Slot,
        serial: u64,
        numbers: Result<Vec<u32>, String>,
    },
    Removed {
        slot: Slot,
        serial: u64,
    },
    /// The flows that the hardware has; [`None`] where there is no telling.
    Offloaded(Option<Vec<DatapathFlow>>),
}

/// The thread, as the driver sees it.
pub(super) struct Ports {
    tasks: Option<Sender<PortTask>>,
    done: Receiver<PortDone>,
    thread: Option<JoinHandle<()>>,
}

impl Ports {
    /// Starts it.
    ///
    /// # Errors
    /// The system's, where there is no thread to be had.
    pub(super) fn start(database: Ovsdb, config: &OpenFlowSwitchConfig) -> std::io::Result<Ports> {
        let (tasks, asked) = channel();
        let (tell, done) = channel();
        let (endpoint, bridge) = (config.database.clone(), config.bridge.clone());
        let datapath = config.datapath.clone();
        let thread = std::thread::Builder::new()
            .name("inco-ovsdb".to_owned())
            .spawn(move || {
                let mut keeper = Keeper {
                    database: Some(database),
                    endpoint,
                    bridge,
                    datapath,
                    waiting: Vec::new(),
                    tell,
                };
                keeper.run(&asked);
            })?;
        Ok(Ports {
            tasks: Some(tasks),
            done,
            thread: Some(thread),
        })
    }

    pub(super) fn ask(&self, task: PortTask) {
        if let Some(tasks) = &self.tasks {
            // It ends only when this is dropped.
            let _ended = tasks.send(task);
        }
    }

    pub(super) fn done(&self) -> Option<PortDone> {
        self.done.try_recv().ok()
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _result = thread.join();
        }
    }
}

struct Keeper {
    database: Option<Ovsdb>,
    endpoint: Endpoint,
    bridge: String,
    datapath: String,
    waiting: Vec<NewPorts>,
    tell: Sender<PortDone>,
}

impl Keeper {
    fn run(&mut self, asked: &Receiver<PortTask>) {
        loop {
            let patience = if self.waiting.is_empty() {
                Duration::from_secs(3600)
            } else {
                LOOK
            };
            match asked.recv_timeout(patience) {
                Ok(task) => self.take(task),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(task) = asked.try_recv() {
                self.take(task);
            }
            self.add_ready();
        }
    }

    fn take(&mut self, task: PortTask) {
        match task {
            PortTask::Add(new) => self.waiting.push(new),
            PortTask::Offloaded => {
                let found = self.offloaded();
                let _ended = self.tell.send(PortDone::Offloaded(found));
            }
            PortTask::Remove { slot, serial, names } => {
                self.waiting.retain(|new| new.serial != serial);
                self.remove(&names);
                let _ended = self.tell.send(PortDone::Removed { slot, serial });
            }
        }
    }

    /// Which flows the hardware has. That can be asked on the switch's own machine alone.
    fn offloaded(&mut self) -> Option<Vec<DatapathFlow>> {
        let Endpoint::Unix(socket) = &self.endpoint else {
            return None;
        };
        let directory = socket.parent()?.to_owned();
        let is_on = self.with_database(|database, _| database.other_config("hw-offload"));
        if !matches!(is_on, Ok(Some(value)) if value == "true") {
            return None;
        }
        let found = Control::connect(&directory, CONTROL_LIMIT)
            .and_then(|mut control| control.offloaded_flows(&self.datapath));
        match found {
            Ok(found) => Some(found),
            Err(error) => {
                tracing::debug!(%error, "which flows the hardware has");
                None
            }
        }
    }

    /// Makes the ports of all instances that listen, in one change.
    fn add_ready(&mut self) {
        let now = Instant::now();
        let (ready, rest): (Vec<NewPorts>, Vec<NewPorts>) =
            self.waiting.drain(..).partition(|new| new.socket.exists());
        self.waiting = rest;
        let mut failed = Vec::new();
        for new in ready {
            match self.with_database(|database, bridge| database.ensure_ports(bridge, &new.ports)) {
                Ok(numbers) => self.added(&new, Ok(numbers)),
                Err(error) => {
                    // What was made of it would stay as it is, and would not be tried again by the switch.
                    let names: Vec<String> = new.ports.iter().map(|port| port.name.clone()).collect();
                    self.remove(&names);
                    failed.push((new, error.to_string()));
                }
            }
        }
        if !failed.is_empty() {
            std::thread::sleep(AGAIN);
        }
        for (new, error) in failed {
            if now >= new.until {
                self.added(&new, Err(error));
            } else {
                self.waiting.push(new);
            }
        }
        let (late, rest): (Vec<NewPorts>, Vec<NewPorts>) =
            self.waiting.drain(..).partition(|new| now >= new.until);
        self.waiting = rest;
        for new in late {
            let error = format!("{}: nobody listens there", new.socket.display());
            self.added(&new, Err(error));
        }
    }

    fn added(&self, new: &NewPorts, numbers: Result<Vec<u32>, String>) {
        let _ended = self.tell.send(PortDone::Added {
            slot: new.slot,
            serial: new.serial,
            numbers,
        });
    }

    fn remove(&mut self, names: &[String]) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if let Err(error) = self.with_database(|database, bridge| database.delete_ports(bridge, &names)) {
            // They are removed with the bridge, at the end or by the next run.
            tracing::warn!(%error, ?names, "ports of the switch were not removed");
        }
    }

    /// Asks the database; where the connection has ended since the last call, on a new one.
    fn with_database<T>(
        &mut self,
        ask: impl Fn(&mut Ovsdb, &str) -> Result<T, OvsdbError>,
    ) -> Result<T, OvsdbError> {
        let was_there = self.database.is_some();
        let mut database = match self.database.take() {
            Some(database) => database,
            None => Ovsdb::connect(&self.endpoint, DATABASE_LIMIT)?,
        };
        match ask(&mut database, &self.bridge) {
            Err(OvsdbError::Socket { .. }) if was_there => {
                let mut database = Ovsdb::connect(&self.endpoint, DATABASE_LIMIT)?;
                let answer = ask(&mut database, &self.bridge);
                self.database = Some(database);
                answer
            }
            answer => {
                if matches!(
                    answer,
                    Ok(_) | Err(OvsdbError::Refused { .. } | OvsdbError::Interface { .. })
                ) {
                    self.database = Some(database);
                }
                answer
            }
        }
    }
}
