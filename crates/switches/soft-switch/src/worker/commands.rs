//! Commands of the control plane, carried out between the packets of two turns.

use model::{DropReason, Slot, UplinkId};
use switch::{CHAIN_LIMIT, Change};

use crate::dump::HeavyDump;
use crate::frame::FrameMemory;
use crate::instance::InstancePorts;
use crate::message::{Command, WorkerEvent};
use crate::port::{Port, Queue as _};
use crate::worker::housekeeping::{Removal, Sweep};
use crate::worker::rules::{entrance_of_slot, entrance_of_uplink};
use crate::worker::{DRAIN_BURSTS, Worker};

/// Commands taken per turn: an upper bound on what a turn may spend on the control plane.
const COMMANDS_PER_TURN: usize = 8;

impl<M: FrameMemory> Worker<M> {
    pub(super) fn take_commands(&mut self) {
        for _ in 0..COMMANDS_PER_TURN {
            // Commands (some of them twice), sweeps, a running dump and a record of each service are answered; each
            // port may break. Wait with commands until there is room for all that.
            let records = self.set_up.services();
            let ports = self.cx.ports.attached.len() + UplinkId::LIMIT;
            let needed = 3 + self.housekeeping.sweeps() + ports + records + self.state_moves.events();
            if self.cx.events.slots() < needed {
                return;
            }
            let Ok(command) = self.commands.pop() else {
                return;
            };
            self.carry_out(command);
        }
    }

    fn carry_out(&mut self, command: Command<M>) {
        match command {
            Command::AttachInstance { slot, ports } => self.attach_instance(slot, ports),
            Command::RemoveInstance { slot, failed } => self.remove_instance(slot, failed),
            Command::FailInstance { slot } => {
                self.cx.shut_paths_of(slot);
                self.take_back(slot);
                self.returns.set_pollable(slot, false);
                // Out of this worker, before another worker moves one of its flows.
                self.egress.flush(&mut self.cx);
                self.cx.send_event(WorkerEvent::InstanceFailed { slot });
            }
            Command::CountLost { slot, packets } => {
                // Of one that is gone, all that it had not given back is counted.
                if let Some(instance) = &mut self.cx.ports.instances[slot] {
                    instance.lost(packets, &self.cx.counters.slots[slot]);
                    self.cx
                        .counters
                        .drop_packets(DropReason::InstanceRingFull, packets);
                }
            }
            Command::Probe { slot } => {
                self.egress.outboxes.flush_instance(slot, &mut self.cx);
                if let Some(instance) = &mut self.cx.ports.instances[slot] {
                    instance.probe(&mut self.cx.memory);
                }
            }
            Command::PurgeSlot { slot, failed } => {
                self.cx.shut_paths_of(slot);
                if failed || !self.begin_to_empty(slot) {
                    self.sweep(Sweep {
                        slot,
                        failed,
                        then: None,
                    });
                }
            }
            Command::Mappings(request) => self.begin_with_mappings(request),
            Command::Change(Change::PurgeFlow(key)) => {
                let hash = self.cx.hasher.hash(&key);
                self.cx.shut_path(&key, hash);
                if self.cx.view.chains.are_there {
                    self.unpin_in_chain(&key);
                } else if !self.begin_move(&key, None) && !self.unpin_relaxed(&key, hash) {
                    self.lookup.table.purge(&key, hash);
                }
            }
            Command::Change(Change::MoveFlow { key, to }) => {
                let hash = self.cx.hasher.hash(&key);
                // Its next packet waits for those before it, as one that was purged.
                if !self.begin_move(&key, Some(to)) && self.unpin_relaxed(&key, hash) {
                    self.set_up.send_to(key, to);
                }
            }
            Command::Change(Change::SetScheduler { service, scheduler }) => {
                // The plan that made the service may be newer than the last turn.
                self.load_plan();
                self.set_up.set_scheduler(service, scheduler);
            }
            Command::AttachUplink { uplink, port } => self.attach_uplink(uplink, port),
            Command::DetachUplink { uplink } => self.detach_uplink(uplink),
            Command::Dump(dump) => {
                if let Some(unfinished) = self.housekeeping.dump.replace(dump) {
                    self.cx.send_event(WorkerEvent::Dumped(unfinished));
                }
            }
            Command::DumpHeavy(mut dump) => {
                let HeavyDump { filter, rows, .. } = &mut *dump;
                let (lookup, now) = (&mut self.lookup, self.cx.now);
                lookup
                    .elephants
                    .list(&lookup.table, now, |row| filter.matches(row), rows);
                self.cx.send_event(WorkerEvent::DumpedHeavy(dump));
            }
            Command::Record(record) => {
                self.load_plan();
                if let Some(record) = self.set_up.record(record) {
                    self.cx.send_event(WorkerEvent::Recorded(record));
                }
            }
            Command::Capture(capture) => {
                self.begin_capture(capture);
                // It is to see all packets.
                if let Some((paths, with)) = self.cx.paths() {
                    paths.shut_all(&with, |_| false);
                }
            }
            Command::Stop(ending) => self.ending = Some(ending),
        }
    }

    fn attach_instance(&mut self, slot: Slot, mut ports: Box<InstancePorts<M>>) {
        for port in ports.ports() {
            self.sleep.watch(port);
        }
        if let Some((paths, _)) = self.cx.paths() {
            paths.restart(entrance_of_slot(slot));
        }
        let plan = self.cx.view.published();
        if let Some(slot_plan) = plan.slot(slot) {
            ports.note(slot_plan, plan);
        }
        for (port, room) in ports.rooms.iter_mut().enumerate() {
            *self.egress.outboxes.room(slot, port) = std::mem::take(room);
        }
        self.egress.lanes_are_stale = true;
        let is_pollable = ports.ports().any(|port| port.capabilities().receives);
        self.returns.set_pollable(slot, is_pollable);
        if self.cx.ports.instances[slot].replace(ports).is_none() {
            self.cx.ports.attached.push(slot);
        }
        self.tap_new_ports();
        self.cx.send_event(WorkerEvent::InstanceAttached { slot });
    }

    fn remove_instance(&mut self, slot: Slot, failed: bool) {
        self.cx.shut_paths_of(slot);
        if failed {
            // Packets that it returned after its failure are dropped.
            self.egress.outboxes.flush_instance(slot, &mut self.cx);
        } else {
            self.take_back(slot);
            // Committed while its rings are still kept: what it gave back is then in the uplinks' rings.
            self.egress.flush(&mut self.cx);
        }
        let mut outstanding = 0;
        if let Some(mut ports) = self.cx.ports.instances[slot].take() {
            let counters = &self.cx.counters.slots[slot];
            self.cx.ports.attached.retain(|s| *s != slot);
            self.returns.set_pollable(slot, false);
            self.egress.lanes_are_stale = true;
            for (port, room) in ports.rooms.iter_mut().enumerate() {
                *room = std::mem::take(self.egress.outboxes.room(slot, port));
            }
            outstanding = std::mem::take(&mut ports.outstanding);
            let (counter, reason) = if failed {
                (&counters.lost, DropReason::InstanceLost)
            } else {
                (&counters.kept, DropReason::Function)
            };
            counter.add(outstanding);
            self.cx.counters.drop_packets(reason, outstanding);
            // The gauges of the rings are the port's. The next one may have another home worker.
            counters.ring_used.set(0);
            counters.ring_slots.set(0);
            counters.back_used.set(0);
            counters.consumed.set(0);
            for port in ports.ports() {
                self.sleep.unwatch(port);
            }
            self.cx.send_event(WorkerEvent::PortsReturned { ports });
        }
        // A failed instance's pins went with the failure; others have some left only after a deadline.
        self.sweep(Sweep {
            slot,
            failed,
            then: Some(Removal { outstanding }),
        });
    }

    /// Unpins a relaxed flow without ending it: its packets are still counted, which shows when all have returned.
    /// Whether the flow exists.
    fn unpin_relaxed(&mut self, key: &model::FlowKey, hash: u64) -> bool {
        let entry = self.lookup.table.lookup(key, hash);
        let Some(entry) = entry.filter(|entry| self.lookup.is_relaxed(*entry, &self.cx)) else {
            return false;
        };
        self.lookup.table.set_pins(entry, [Slot::NONE; 2], self.cx.now);
        true
    }

    /// Unpins a flow in each service of its chain without ending it there: else what its instances hold would pin it to
    /// them again when it comes back. A flow of another service ends.
    #[cold]
    fn unpin_in_chain(&mut self, key: &model::FlowKey) {
        for place in 0..CHAIN_LIMIT as u8 {
            let key = key.at_hop(place);
            let hash = self.cx.hasher.hash(&key);
            let Some(entry) = self.lookup.table.lookup(&key, hash) else {
                continue;
            };
            if self.cx.view.chains.has(self.lookup.table.service(entry)) {
                self.lookup.table.set_pins(entry, [Slot::NONE; 2], self.cx.now);
            } else if !self.unpin_relaxed(&key, hash) {
                self.lookup.table.purge(&key, hash);
            }
        }
    }

    fn attach_uplink(&mut self, uplink: UplinkId, port: Box<Port<M>>) {
        self.sleep.watch(&port);
        if let Some((paths, _)) = self.cx.paths() {
            paths.restart(entrance_of_uplink(uplink));
        }
        self.cx.ports.uplinks[uplink] = Some(port);
        self.housekeeping.forget_broken(uplink);
        self.tap_new_ports();
        self.cx.send_event(WorkerEvent::UplinkAttached { uplink });
    }

    /// Gives an uplink's port back, after the packets that its peer had sent: they were offered, so they are steered.
    fn detach_uplink(&mut self, uplink: UplinkId) {
        if let Some((paths, with)) = self.cx.paths() {
            paths.shut_all(&with, |rule| rule.uplink != uplink);
        }
        // Steering needs the plan that was in force for the earlier commands.
        self.load_plan();
        for _ in 0..DRAIN_BURSTS {
            if self.poll_uplink(uplink) == 0 {
                break;
            }
        }
        self.egress.flush(&mut self.cx);
        let mut port = self.cx.ports.uplinks[uplink].take();
        if let Some(port) = &mut port {
            self.sleep.unwatch(port);
        }
        self.cx.send_event(WorkerEvent::UplinkDetached { uplink, port });
    }

    /// Begins to remove the pins to a slot. They are invalid from now on; a sweep clears the entries.
    fn sweep(&mut self, sweep: Sweep) {
        let slot = sweep.slot;
        self.cx.counters.slots[slot].live_flows.set(0);
        self.egress.lanes_are_stale = true;
        // New flows go to other slots until no entry names this one: the table refuses a pin to it.
        self.set_up.leave_out(slot);
        let done = self.housekeeping.begin_sweep(sweep, &mut self.lookup.table);
        self.end_sweep(done);
    }

    /// Continues a sweep, if there is one.
    pub(super) fn continue_sweep(&mut self) {
        let done = self.housekeeping.continue_sweep(&mut self.lookup.table);
        self.end_sweep(done);
    }

    fn end_sweep(&mut self, done: Option<Sweep>) {
        let Some(Sweep { slot, then, .. }) = done else {
            return;
        };
        // It may be a candidate again.
        self.set_up.relist();
        self.egress.lanes_are_stale = true;
        if let Some(Removal { outstanding }) = then {
            self.cx
                .send_event(WorkerEvent::InstanceRemoved { slot, outstanding });
        }
    }
}
