//! Blocks of external ports: who gets which, and which are reserved.

use engine::Container;
use model::{EventKind, InstanceId, Nanos, PortBlock, ServiceId};

use super::Controller;
use super::hand_over::{Heir, Step};
use crate::blocks::ReservedBlock;
use crate::instance::Instance;
use crate::settings::{LABEL_EXTERNAL, LABEL_SERVICE};

/// There is no block for an instance whose service has blocks.
pub(super) struct NoBlock;

impl Controller {
    /// A block for a new instance; [`None`] where its service has none.
    ///
    /// # Errors
    /// All blocks are owned or reserved. It is told once.
    pub(super) fn take_block(&mut self, index: usize, owner: InstanceId) -> Result<Option<u16>, NoBlock> {
        let now = self.now;
        let service = &mut self.services[index];
        let Some(blocks) = &mut service.blocks else {
            return Ok(None);
        };
        let block = blocks.take(owner, now);
        if block.is_some() {
            service.no_block_told = false;
            return Ok(block);
        }
        if !std::mem::replace(&mut service.no_block_told, true) {
            let wait = blocks.next_free().map_or_else(String::new, |at| {
                format!("; one is free in {} s", at.since(now).as_secs_f64().ceil())
            });
            let reason = format!(
                "all {} blocks of external ports are in use, or reserved for the mappings of instances that are gone; a \
                 new instance waits for a free block{wait}",
                blocks.len()
            );
            let id = service.id;
            let what = "external".to_owned();
            self.event(Some(id), None, EventKind::Failure { what, reason });
        }
        Err(NoBlock)
    }

    /// The external ports that an instance owns, if it does.
    pub fn external_ports(&self, instance: &Instance) -> Option<PortBlock> {
        let blocks = self.services.get(instance.service.index())?.blocks.as_ref()?;
        blocks.ports_of(instance.block?)
    }

    /// The instance does not come to be.
    pub(super) fn put_block_back(&mut self, index: usize, block: Option<u16>) {
        let now = self.now;
        if let Some((blocks, block)) = self.services[index].blocks.as_mut().zip(block) {
            blocks.give_back(block, false, now);
        }
    }

    /// The block of an adopted instance, by its label; [`None`] where its service has none.
    ///
    /// # Errors
    /// The label says none, or ports that are no block or somebody else's.
    pub(super) fn take_block_again(
        &mut self,
        service: ServiceId,
        owner: InstanceId,
        label: Option<&String>,
    ) -> Result<Option<u16>, NoBlock> {
        let Some(blocks) = self
            .services
            .get_mut(service.index())
            .and_then(|of| of.blocks.as_mut())
        else {
            return Ok(None);
        };
        let ports: Option<PortBlock> = label.and_then(|ports| ports.parse().ok());
        let block = ports.and_then(|ports| blocks.take_again(owner, &ports));
        block.map(Some).ok_or(NoBlock)
    }

    /// An instance is gone.
    pub(super) fn give_block_back(&mut self, instance: &Instance) {
        // Its container goes on, and has its label.
        if self.shutdown == Some(true) {
            return;
        }
        let now = self.now;
        // One that was never ready has had no packet.
        let has_mappings = instance.has_mappings && (instance.ready.is_some() || instance.adopted);
        let serves = |id: InstanceId| {
            self.position(id)
                .is_some_and(|at| self.instances[at].state.serves())
        };
        let heir = instance.heir.filter(|heir| heir.has_begun && serves(heir.id));
        let blocks = self
            .services
            .get_mut(instance.service.index())
            .and_then(|of| of.blocks.as_mut());
        let Some(blocks) = blocks else { return };
        if let Some(heir) = heir {
            // It has mappings in them.
            blocks.pass_on(instance.id, heir.id);
            self.plan_changed = true;
            return;
        }
        for block in blocks.owned(instance.id).collect::<Vec<u16>>() {
            blocks.give_back(block, has_mappings || instance.hands_over(), now);
        }
    }

    /// Reserves the ports of containers of an earlier run that have not become instances.
    pub(super) fn reserve_blocks_of_orphans(&mut self, containers: &[Container]) {
        let now = self.now;
        let orphans = containers
            .iter()
            .filter(|container| self.orphans.iter().any(|orphan| orphan.name == container.name));
        for container in orphans {
            let label = |key: &str| container.labels.get(key);
            let service = self
                .services
                .iter_mut()
                .find(|of| Some(&of.settings.name) == label(LABEL_SERVICE));
            let ports: Option<PortBlock> = label(LABEL_EXTERNAL).and_then(|ports| ports.parse().ok());
            if let Some((blocks, ports)) = service.and_then(|of| of.blocks.as_mut()).zip(ports) {
                let until = blocks.end_of_mappings(now);
                blocks.reserve(&ports, until);
            }
        }
    }

    /// Tells that reserved blocks are not kept from one run to the next.
    pub(crate) fn tell_of_blocks(&mut self, why: &str) {
        let what = "port blocks".to_owned();
        let reason = format!(
            "the file of reserved blocks in the run directory: {why}; a block may be given away while somebody still \
             sends to its ports"
        );
        self.event(None, None, EventKind::Failure { what, reason });
    }

    /// Reserves the blocks that were reserved in an earlier run. Call it after [`Controller::adopt`].
    pub fn reserve_blocks(&mut self, reserved: &[ReservedBlock], now: Nanos) {
        let at_zero = self.settings.unix_ms_at_zero;
        for of in reserved {
            let owner = of.owner.filter(|id| self.position(*id).is_some());
            let mut services = self.services.iter_mut();
            let service = services.find(|service| service.settings.name == of.service);
            let Some((id, blocks)) = service.and_then(|service| Some((service.id, service.blocks.as_mut()?)))
            else {
                continue;
            };
            let until = match of.owner {
                Some(_) => blocks.end_of_mappings(now),
                None => Nanos::from_millis(of.until_unix_ms.saturating_sub(at_zero)),
            };
            // The clock may have been set back.
            let until = until.min(blocks.end_of_mappings(now));
            if until <= now || owner.is_some_and(|owner| blocks.inherit(owner, &of.ports)) {
                continue;
            }
            blocks.reserve(&of.ports, until);
            // The instance that was to give it is there, and goes on with its heir when it is drained again.
            let is_its =
                |of: &Instance, ports| of.service == id && blocks.ports_of_instance(of) == Some(ports);
            if let Some(heir) = owner
                && let Some(instance) = self
                    .instances
                    .iter_mut()
                    .find(|instance| is_its(instance, of.ports))
            {
                instance.heir = Some(Heir {
                    id: heir,
                    step: Step::Named,
                    has_begun: true,
                });
            }
        }
    }

    /// Tells which blocks are reserved, if that has changed. After a stop that removes all instances nothing is: the
    /// next run begins with new mappings, and must not wait.
    pub(super) fn tell_reserved(&mut self) {
        let mut has_changed = false;
        for blocks in self.services.iter_mut().filter_map(|of| of.blocks.as_mut()) {
            has_changed |= blocks.take_change();
        }
        if !has_changed {
            return;
        }
        let (now, at_zero) = (self.now, self.settings.unix_ms_at_zero);
        let mut reserved = Vec::new();
        if self.shutdown != Some(false) {
            for (service, blocks) in self
                .services
                .iter()
                .filter_map(|of| Some((of, of.blocks.as_ref()?)))
            {
                reserved.extend(blocks.reserved(now).map(|(ports, until)| ReservedBlock {
                    until_unix_ms: at_zero.saturating_add(until.as_millis()),
                    owner: None,
                    ports,
                    service: service.settings.name.clone(),
                }));
                let inherited = blocks.inherited(&self.instances);
                let inherited = inherited.filter_map(|(block, owner)| Some((blocks.ports_of(block)?, owner)));
                let giving = self
                    .instances
                    .iter()
                    .filter(|of| of.service == service.id && of.hands_over());
                let giving = giving.filter_map(|of| Some((blocks.ports_of_instance(of)?, of.heir?.id)));
                reserved.extend(inherited.chain(giving).map(|(ports, owner)| ReservedBlock {
                    until_unix_ms: 0,
                    owner: Some(owner),
                    ports,
                    service: service.settings.name.clone(),
                }));
            }
        }
        self.out.reserved = Some(reserved);
    }
}
