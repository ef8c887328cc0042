//! What a switch on this machine tells beside OpenFlow: which flows the hardware has, and packets that it drops before
//! it looks for rules. It is asked by a thread of its own: the switch needs longer for its list than a packet may wait.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use openvswitch::{DatapathFlow, Endpoint, Ovsdb, OvsdbError, Unixctl};

use super::{DATABASE_LIMIT, OpenFlowSwitchConfig};

/// How long the switch may take to list the flows that its hardware has.
const CONTROL_LIMIT: Duration = Duration::from_secs(2);

/// What was found; [`None`] where there is no telling.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The flows that the hardware has.
    pub(super) flows: Option<Vec<DatapathFlow>>,
    /// Packets that the switch has dropped since its start because they are no Ethernet frames.
    pub(super) invalid_packets: Option<u64>,
}

/// The thread, as the driver sees it.
pub(super) struct OffloadedFlows {
    asks: Option<Sender<()>>,
    found: Receiver<Found>,
    thread: Option<JoinHandle<()>>,
}

impl OffloadedFlows {
    /// Starts it.
    ///
    /// # Errors
    /// The system's, where there is no thread to be had.
    pub(super) fn start(database: Ovsdb, config: &OpenFlowSwitchConfig) -> std::io::Result<OffloadedFlows> {
        let (asks, asked) = channel();
        let (tell, found) = channel();
        let mut looker = Looker {
            database: Some(database),
            endpoint: config.database.clone(),
            datapath: config.datapath.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("inco-offloaded".to_owned())
            .spawn(move || {
                while asked.recv().is_ok() {
                    let _ended = tell.send(looker.look());
                }
            })?;
        Ok(OffloadedFlows {
            asks: Some(asks),
            found,
            thread: Some(thread),
        })
    }

    pub(super) fn ask(&self) {
        if let Some(asks) = &self.asks {
            // It ends only when this is dropped.
            let _ended = asks.send(());
        }
    }

    pub(super) fn found(&self) -> Option<Found> {
        self.found.try_recv().ok()
    }
}

impl Drop for OffloadedFlows {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            let _result = thread.join();
        }
    }
}

struct Looker {
    /// [`None`] after it has failed.
    database: Option<Ovsdb>,
    endpoint: Endpoint,
    datapath: String,
}

impl Looker {
    /// That can be asked on the switch's own machine alone.
    fn look(&mut self) -> Found {
        let Endpoint::Unix(socket) = &self.endpoint else {
            return Found::default();
        };
        let Some(directory) = socket.parent().map(Path::to_owned) else {
            return Found::default();
        };
        let mut control = match Unixctl::connect(&directory, CONTROL_LIMIT) {
            Ok(control) => control,
            Err(error) => {
                tracing::debug!(%error, "no answer at the switch's control socket");
                return Found::default();
            }
        };
        let known = |what: &str, error: OvsdbError| tracing::debug!(%error, "{what}");
        let invalid_packets = control.invalid_packets();
        let flows = self.is_on().then(|| control.offloaded_flows(&self.datapath));
        Found {
            flows: flows.and_then(|of| {
                of.map_err(|error| known("which flows the hardware has", error))
                    .ok()
            }),
            invalid_packets: invalid_packets
                .map_err(|error| known("packets that are no Ethernet frames", error))
                .ok(),
        }
    }

    /// Whether the switch gives its flows to hardware. A connection that has failed is made anew the next time.
    fn is_on(&mut self) -> bool {
        let database = match self.database.take() {
            Some(database) => Ok(database),
            None => Ovsdb::connect(&self.endpoint, DATABASE_LIMIT),
        };
        let Ok(mut database) = database else { return false };
        match database.other_config("hw-offload") {
            Ok(value) => {
                self.database = Some(database);
                value.as_deref() == Some("true")
            }
            Err(_) => false,
        }
    }
}
