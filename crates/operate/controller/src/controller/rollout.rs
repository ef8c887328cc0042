//! Rollouts: instances are replaced one after the other, and a replacement is ready before an instance drains.

use model::{EventKind, InstanceId, InstanceState, Rollout, RolloutState, ServiceId};

use super::Controller;
use crate::instance::Instance;

/// A rollout of a service: the one in progress, or the last one.
#[derive(Clone, Debug)]
pub(super) struct RolloutPlan {
    /// Instances with a smaller id are replaced.
    first_new: InstanceId,
    /// The Active instance that is replaced next.
    replacing: Option<InstanceId>,
    pub(super) status: Rollout,
}

impl RolloutPlan {
    fn is_running(&self) -> bool {
        self.status.state == RolloutState::Running
    }
}

impl Controller {
    /// Begins to replace every present instance of the service and returns their number.
    pub(super) fn begin_rollout(&mut self, index: usize) -> u32 {
        let first_new = InstanceId(self.next_id);
        let id = self.services[index].id;
        let total = self.count(id, |i| i.id < first_new && stays(i));
        self.services[index].rollout = Some(RolloutPlan {
            first_new,
            replacing: None,
            status: Rollout {
                state: RolloutState::Running,
                replaced: 0,
                total,
                reason: String::new(),
            },
        });
        self.report_rollout(index, RolloutState::Running, "started".to_owned());
        total
    }

    /// Ends a rollout early. Old instances that still take flows stay.
    pub(super) fn abort_rollout(&mut self, index: usize, reason: String) {
        let replacing = match &mut self.services[index].rollout {
            Some(rollout) if rollout.is_running() => rollout.replacing.take(),
            _ => return,
        };
        if let Some(at) = replacing.and_then(|id| self.position(id))
            && self.instances[at].state == InstanceState::Active
        {
            self.instances[at].leaving = false;
        }
        self.report_rollout(index, RolloutState::Aborted, reason);
    }

    /// Whether a rollout in progress replaces that instance.
    pub(super) fn is_replaced(&self, instance: &Instance) -> bool {
        let service = self.services.get(instance.service.index());
        let rollout = service.and_then(|service| service.rollout.as_ref());
        rollout.is_some_and(|rollout| rollout.is_running() && instance.id < rollout.first_new)
    }

    /// Whether that instance is replaced next, by a rollout or at another place: it takes flows until its replacement
    /// does.
    pub(super) fn is_being_replaced(&self, instance: &Instance) -> bool {
        if instance.relocates_to.is_some() {
            return instance.state == InstanceState::Active;
        }
        let service = self.services.get(instance.service.index());
        let rollout = service.and_then(|service| service.rollout.as_ref());
        instance.state == InstanceState::Active
            && rollout.is_some_and(|rollout| rollout.replacing == Some(instance.id))
    }

    /// Whether a rollout in progress created that instance.
    pub(super) fn is_replacement(&self, instance: &Instance) -> bool {
        let service = self.services.get(instance.service.index());
        let rollout = service.and_then(|service| service.rollout.as_ref());
        rollout.is_some_and(|rollout| rollout.is_running() && instance.id >= rollout.first_new)
    }

    /// Advances a rollout: first the pool, so that a replacement is ready, then the active instances.
    pub(super) fn advance_rollout(&mut self, index: usize) {
        let service = &self.services[index];
        let (id, total) = match &service.rollout {
            Some(rollout) if rollout.is_running() => (service.id, rollout.status.total),
            _ => return,
        };
        let left = self.count(id, |i| self.is_replaced(i) && stays(i));
        if let Some(rollout) = &mut self.services[index].rollout {
            rollout.status.replaced = total.saturating_sub(left);
        }
        if left == 0 {
            let ready = self.count(id, |i| i.state == InstanceState::Active);
            if ready >= self.services[index].wanted {
                self.report_rollout(
                    index,
                    RolloutState::Finished,
                    "all instances are replaced".to_owned(),
                );
            }
            return;
        }
        let find =
            |test: &dyn Fn(&Instance) -> bool| self.instances.iter().position(|i| i.service == id && test(i));
        if let Some(at) = find(&|i| self.is_replaced(i) && (i.leaving || i.state == InstanceState::Draining))
        {
            let old = &self.instances[at];
            if old.state == InstanceState::Active && self.services[index].no_slot_told {
                let reason = "no slot is free for a replacement".to_owned();
                return self.abort_rollout(index, reason);
            }
            if old.state == InstanceState::Active && self.services[index].no_room_told {
                let reason = "no place has room for a replacement".to_owned();
                return self.abort_rollout(index, reason);
            }
            let reason = match old.state {
                InstanceState::Active => format!("instance {} waits for its replacement", old.id),
                _ => format!("instance {} drains", old.id),
            };
            return self.report_rollout(index, RolloutState::Running, reason);
        }
        // One at a time, so that a failure shows before the next is replaced.
        if let Some(at) = find(&|i| {
            matches!(
                i.state,
                InstanceState::Creating | InstanceState::Starting | InstanceState::Stopping
            ) || i.is_on_its_way()
        }) {
            let instance = &self.instances[at];
            let reason = format!("instance {} is {}", instance.id, instance.state.name());
            return self.report_rollout(index, RolloutState::Running, reason);
        }
        let there = self.count(id, |i| !self.is_replaced(i) && i.is_for_pool());
        if let Some(at) = find(&|i| self.is_replaced(i) && i.is_for_pool()) {
            let name = self.instances[at].id;
            self.stop(at, "the rollout replaces it");
            return self.report_rollout(index, RolloutState::Running, format!("standby {name} is removed"));
        }
        // The pool is filled first: it supplies the next replacement.
        if there < self.services[index].settings.standby {
            return self.report_rollout(
                index,
                RolloutState::Running,
                "the pool is being refilled".to_owned(),
            );
        }
        if let Some(at) = find(&|i| self.is_replaced(i) && i.state == InstanceState::Active) {
            self.instances[at].leaving = true;
            let old = self.instances[at].id;
            if let Some(rollout) = &mut self.services[index].rollout {
                rollout.replacing = Some(old);
            }
            let reason = format!("instance {old} waits for its replacement");
            self.report_rollout(index, RolloutState::Running, reason);
        }
    }

    /// Records the progress of a rollout and reports a change as an event.
    fn report_rollout(&mut self, index: usize, state: RolloutState, reason: String) {
        let service = &mut self.services[index];
        let id: ServiceId = service.id;
        let Some(rollout) = &mut service.rollout else {
            return;
        };
        let status = &mut rollout.status;
        if (status.state, &status.reason) == (state, &reason) {
            return;
        }
        status.state = state;
        status.reason = reason;
        let Rollout {
            state,
            replaced,
            total,
            reason,
        } = status.clone();
        let kind = EventKind::Rollout {
            state,
            replaced,
            total,
            reason,
        };
        self.event(Some(id), None, kind);
    }
}

/// Whether the instance exists and is not being removed.
fn stays(instance: &Instance) -> bool {
    !matches!(
        instance.state,
        InstanceState::Stopping | InstanceState::Failed | InstanceState::Gone
    )
}
