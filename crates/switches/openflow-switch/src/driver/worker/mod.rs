//! The steering thread: passes all input to the core and carries out its output.

mod account;
mod attachments;
mod listing;
mod plans;
mod readings;
mod switch_end;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use account::Account;
use attachments::{Attachment, Base, DataPort, Phase};
use memif::Listener;
use model::{DropReason, Nanos, ServiceId, Slot, UplinkId};
use openflow::Limits;
use openvswitch::Reconnecting;
use plans::{Settling, Wanted};
use readings::{Hardware, INTRODUCTIONS, Ports};
use switch::{Change, SwitchEvent, SwitchRequest};
use switch_end::{MonitorPort, Noticed, SwitchEnd};

use super::counters::{Carried, PortCounters};
use super::offloaded::OffloadedFlows;
use super::troubles::Troubles;
use super::{OpenFlowSwitchConfig, Shared, lock};
use crate::steering::{Settings, Steering};

/// The longest sleep: the core's own times are no finer.
const SLEEP: Duration = Duration::from_micros(500);
/// The longest frame of the monitor port, in bytes.
const FRAME_BYTES: usize = memif::MAX_PACKET_BYTES;

/// Everything that the thread has.
pub(super) struct Worker {
    above: Above,
    steering: Steering,
    settings: Settings,
    bridge: String,
    switch: SwitchEnd,
    monitor: MonitorPort,
    hardware: Hardware,
    ports: Ports,
    wanted: Wanted,
    attachments: BTreeMap<Slot, Attachment>,
    /// While the rules of an earlier run are not taken over.
    adoption: Option<WaitingAdoption>,
    account: Account,
    noticed: Noticed,
    woken_at: Nanos,
    stopping: bool,
}

/// The ends towards the control plane.
struct Above {
    asked: Receiver<SwitchRequest>,
    tell: Sender<SwitchEvent>,
    shared: Arc<Mutex<Shared>>,
}

/// What waits until the rules of an earlier run are taken over.
struct WaitingAdoption {
    since: Nanos,
    /// Whether it is known what is taken over.
    is_known: bool,
    /// Whether the switch answers. It is not asked before the first table.
    is_up: bool,
    attach: Vec<(Slot, ServiceId, Nanos)>,
}

impl Worker {
    pub(super) fn new(
        config: &OpenFlowSwitchConfig,
        steering: Steering,
        adopts: bool,
        listener: Listener,
        offloaded: OffloadedFlows,
        (asked, tell, shared): (Receiver<SwitchRequest>, Sender<SwitchEvent>, Arc<Mutex<Shared>>),
    ) -> Worker {
        for uplink in 0..config.uplinks.len() as u8 {
            // Its port is there; who is behind it shows in packets alone.
            let _ended = tell.send(SwitchEvent::UplinkUp {
                uplink: UplinkId(uplink),
                peer: format!("a port of {}", config.bridge),
            });
        }
        Worker {
            above: Above { asked, tell, shared },
            steering,
            settings: config.steering.clone(),
            bridge: config.bridge.clone(),
            switch: SwitchEnd {
                connection: Reconnecting::new(config.control.clone(), Limits::default()),
                turned: Vec::new(),
                sockets: config.sockets().cloned().collect(),
            },
            monitor: MonitorPort {
                listener,
                link: None,
                frame: vec![0; FRAME_BYTES].into_boxed_slice(),
            },
            hardware: Hardware {
                flows: offloaded,
                is_asked: false,
                ask_at: Nanos::ZERO,
            },
            ports: Ports {
                uplinks: vec![PortCounters::default(); config.uplinks.len()],
                pool: (config.pool.iter())
                    .map(|of| (of.slot, vec![PortCounters::default(); of.devices.len()]))
                    .collect(),
                carried: vec![Carried::default(); config.uplinks.len()],
                asked: None,
                ask_at: Nanos::ZERO,
                found: Vec::new(),
            },
            wanted: Wanted {
                plan: Arc::default(),
                settling: None,
                purged: BTreeMap::new(),
                failing: Vec::new(),
                loads: BTreeMap::new(),
            },
            attachments: BTreeMap::new(),
            adoption: adopts.then(|| WaitingAdoption {
                since: clock::monotonic(),
                is_known: false,
                is_up: false,
                attach: Vec::new(),
            }),
            // A new bridge drops what comes before it has rules.
            account: Account::new((!adopts).then_some(DropReason::NoInstance), clock::monotonic()),
            noticed: Noticed {
                troubles: Troubles::default(),
                garbled: 0,
                unasked: 0,
            },
            woken_at: clock::monotonic(),
            stopping: false,
        }
    }

    pub(super) fn run(mut self) {
        while !self.stopping {
            let now = clock::monotonic();
            self.turn(now);
            self.note_turn();
            self.sleep();
            self.woken_at = clock::monotonic();
        }
    }

    fn turn(&mut self, now: Nanos) {
        self.take_asks(now);
        self.take_offloaded(now);
        self.take_messages(now);
        self.take_frames(now);
        self.set_terms();
        self.steering.tick(now);
        self.tell_troubles(now);
        self.settle(now);
        self.step_attachments(now);
        self.ask_ports(now);
        self.ask_offloaded(now);
        self.send();
    }

    fn note_turn(&mut self) {
        let figures = self.steering.figures();
        let flows = self.steering.flow_count() as u64;
        let took = clock::monotonic().since(self.woken_at).0;
        let mut shared = lock(&self.above.shared);
        if let Some(worker) = shared.reading.workers.first_mut() {
            worker.turns += 1;
            worker.awake_ns += took;
            worker.busy_ns += took;
            worker.longest_gap_ns = worker.longest_gap_ns.max(took);
            worker.generation = self.wanted.plan.generation.0;
            worker.live_flows = flows;
            worker.flow_limit = self.settings.flow_limit as u64;
            worker.table_full = figures.flow_limit;
            worker.held_moves = figures.moved_buckets;
            worker.promotions = figures.promotions;
            worker.demotions = figures.demotions;
        }
    }

    fn sleep(&mut self) {
        let mut others: Vec<BorrowedFd<'_>> = vec![self.monitor.listener.as_fd()];
        others.extend(
            self.switch
                .connection
                .connection()
                .map(|connection| AsFd::as_fd(&*connection)),
        );
        let mut queues = Vec::new();
        if let Some(link) = &mut self.monitor.link {
            others.push(link.control.as_fd());
            queues.extend(link.queues.iter_mut().map(|pair| &mut pair.rx));
        }
        if memif::wait(&mut queues, &others, SLEEP).is_err() {
            std::thread::sleep(SLEEP);
        }
    }

    fn take_asks(&mut self, now: Nanos) {
        loop {
            match self.above.asked.try_recv() {
                Ok(ask) => self.take_ask(ask, now),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
            }
        }
    }

    fn take_ask(&mut self, request: SwitchRequest, now: Nanos) {
        match request {
            SwitchRequest::Publish(plan) => self.publish(plan, now),
            SwitchRequest::Attach { slot, service, port } => {
                self.attach(slot, service, now + port.deadline, now);
            }
            SwitchRequest::Detach(slot) => self.detach(slot, now),
            // Its pins move by the plan that follows.
            SwitchRequest::Fail(slot) => self.wanted.failing.push(slot),
            SwitchRequest::Probe(slot) => self.probe(slot, now),
            SwitchRequest::PurgeSlot(slot) => {
                self.steering.purge(|_, of| of == slot);
                self.wanted.purged.insert(slot, Settling::from(now));
                self.count_flows();
            }
            SwitchRequest::Change(Change::PurgeFlow(key)) => self.steering.purge(|id, _| id.key == key),
            SwitchRequest::Change(Change::SetScheduler { service, scheduler }) => {
                self.steering.set_scheduler(service, scheduler);
            }
            SwitchRequest::Flows { id, filter, limit } => self.tell_flows(id, &filter, limit, now),
            SwitchRequest::HeavyFlows { id, filter } => self.tell_heavy_flows(id, &filter, now),
            // None of its uplinks waits, and what it cannot do it was not handed.
            SwitchRequest::OpenUplink(_)
            | SwitchRequest::Mappings(_)
            | SwitchRequest::Change(Change::MoveFlow { .. })
            | SwitchRequest::Record { .. }
            | SwitchRequest::Capture(_) => {}
        }
    }

    fn tell(&self, event: SwitchEvent) {
        // The receiver is gone only when the control plane has ended.
        let _ended = self.above.tell.send(event);
    }
}
