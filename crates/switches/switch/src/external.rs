//! Packets to external addresses: who owns the block of their port.

use model::{External, ServiceId, Slot, Sought, Tuple, UplinkId};

use crate::plan::Plan;

/// What a packet to or from an external address of a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalPacket {
    /// It is for that instance, which owns its port's block.
    Owned {
        /// The service.
        service: ServiceId,
        /// The instance.
        slot: Slot,
    },
    /// No instance owns its port: it goes to none.
    Unowned {
        /// The service.
        service: ServiceId,
    },
    /// It claims to come from one of the addresses, which is this switch's own.
    Spoofed {
        /// The service.
        service: ServiceId,
    },
}

/// The external addresses of a plan's services, with the owner of each block: a lookup of constant time.
#[derive(Clone, Debug, Default)]
pub struct BlockOwners {
    services: Vec<Owners>,
}

#[derive(Clone, Debug)]
struct Owners {
    id: ServiceId,
    external: External,
    uplinks: Vec<UplinkId>,
    /// By block; [`Slot::NONE`] where nobody owns it.
    slots: Box<[Slot]>,
}

impl BlockOwners {
    /// The owners in this plan: instances that serve.
    pub fn of(plan: &Plan) -> BlockOwners {
        let with = plan
            .services
            .iter()
            .filter_map(|service| Some((service, service.external.as_ref()?)));
        let services = with.map(|(service, external)| {
            let mut slots = vec![Slot::NONE; external.blocks().into()].into_boxed_slice();
            for (slot, row) in plan.instances() {
                if row.service == service.id
                    && row.state.serves()
                    && let Some(place) = row.block.and_then(|block| slots.get_mut(usize::from(block)))
                {
                    *place = slot;
                }
            }
            for &(of, block, slot) in &plan.mappings.blocks {
                if of == service.id
                    && plan.slot(slot).is_some_and(|row| row.state.serves())
                    && let Some(place) = slots.get_mut(usize::from(block))
                {
                    *place = slot;
                }
            }
            Owners {
                id: service.id,
                external: external.clone(),
                uplinks: service.uplinks.clone(),
                slots,
            }
        });
        BlockOwners {
            services: services.collect(),
        }
    }

    /// Whether no service has external addresses.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// What a packet with these addresses, received on that uplink, is to them. [`None`]: nothing, and matches decide.
    /// An ICMP error is looked up by the flow that it quotes, in the opposite direction.
    #[cold]
    pub fn find(&self, tuple: &Tuple, uplink: UplinkId) -> Option<ExternalPacket> {
        let of_uplink = self.services.iter().filter(|of| of.uplinks.contains(&uplink));
        // A packet from one service's addresses to another's is that one's.
        let mut spoofed = None;
        for of in of_uplink {
            let service = of.id;
            match of.external.look_up(tuple) {
                Sought::Block(block) => {
                    let slot = of.slots.get(usize::from(block)).copied();
                    return Some(match slot.filter(|slot| *slot != Slot::NONE) {
                        Some(slot) => ExternalPacket::Owned { service, slot },
                        None => ExternalPacket::Unowned { service },
                    });
                }
                Sought::NoBlock => return Some(ExternalPacket::Unowned { service }),
                Sought::FromThem => spoofed = Some(ExternalPacket::Spoofed { service }),
                Sought::Other => {}
            }
        }
        spoofed
    }
}
