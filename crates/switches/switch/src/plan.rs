//! What a switch steers by: services, instances and what happens to the rest. Loads change every millisecond and are
//! no part of it ([`Switch::set_loads`](crate::Switch::set_loads)).

use std::net::IpAddr;
use std::sync::Arc;

use model::{
    AffinityKey, Association, Capabilities, External, Fallback, Generation, InstanceId, InstanceState, Match,
    Nanos, PlaceId, ServiceId, Slot, TableFull, Tuple, UplinkId, Vip,
};
use scheduling::Scheduler;

use crate::chain;
use crate::contract::SwitchError;
use crate::edit::Edits;
use crate::machines::SharedMachines;
use crate::mappings::MappingsPlan;

/// A service in a plan.
#[derive(Clone, Debug)]
pub struct ServicePlan {
    /// Which service. Its place in [`Plan::services`] is the order in which matches are tried.
    pub id: ServiceId,
    /// Its packets; with an address, only the VLAN counts.
    pub matches: Match,
    /// Its address, if it has one: its packets are those to these addresses and ports, of TCP and UDP.
    pub vip: Option<Vip>,
    /// The external addresses to which its instances translate, if they do. Packets to them go to the owner of their
    /// port's block, before any match is tried.
    pub external: Option<External>,
    /// Whether both directions of a flow go to one instance.
    pub symmetric: bool,
    /// Which of its flows share an instance.
    pub affinity_key: AffinityKey,
    /// With [`AffinityKey::Spi`], the security associations that have one instance for as long as they are here, and the
    /// packets that enter them. The first entry that has a packet decides.
    pub associations: Arc<[Association]>,
    /// Its uplinks: data port k of an instance belongs to the k-th one. One or two.
    pub uplinks: Vec<UplinkId>,
    /// The scheduler, in its first state.
    pub scheduler: Scheduler,
    /// The machines behind tunnels that other edges give its flows to, too, if there are other edges.
    pub machines: Option<Arc<SharedMachines>>,
    /// Whether its replies return through the edge: a machine puts them into the tunnel to the edge that sent the flow's last
    /// packet, and an edge takes those of its machines out. Else they leave by the machine's own uplink.
    pub replies_by_edge: bool,
    /// What one instance takes in the scheduler's metric, where that is not packets.
    pub limit: Option<f32>,
    /// Share of an instance's capacity that scheduling may use, 0 to 1.
    pub fit: f32,
    /// What happens when the flow table is full.
    pub table_full: TableFull,
    /// Whether returned packets are counted per flow.
    pub return_counters: bool,
    /// Whether TCP connections in their middle that the switch does not know go by a hash without a secret, whatever
    /// the scheduler: to the same instance in each run and on each machine. So it is with an address, and where the
    /// instances of an earlier run go on and its flows were lost. A driver whose flows are not in this process has no
    /// use for it.
    pub recovers: bool,
    /// Whether its flows may be moved while their instance is well: a flow whose pin is taken away then has its
    /// packets held until those before are back, for at most a millisecond. Needs returned packets counted per flow. A
    /// flow by what packets carry moves with its state only.
    pub relaxed: bool,
    /// Whether a drain moves its flows with the state of their function, where they are [relaxed](Self::relaxed) and
    /// symmetric: by messages through the first data port of its instances. With [external](Self::external) addresses
    /// flows are not relaxed, and move to the [heir](MappingsPlan::heirs) only, because they need its ports.
    pub moves_state: bool,
    /// How long an instance may take no packet although some wait for it. A driver that counts what instances take
    /// has no use for it: the control plane judges them itself.
    pub stall_after: Nanos,
    /// Whether frames of its instances that are signals are told and not forwarded.
    pub signals: bool,
    /// The service that gets what its instances return, before that leaves by an uplink. What comes back by there
    /// passes both in the opposite order.
    pub next: Option<ServiceId>,
}

/// An instance in a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotPlan {
    /// Which instance has the slot.
    pub instance: InstanceId,
    /// Of which service.
    pub service: ServiceId,
    /// Where it runs. A switch forwards alike wherever that is; schedulers see it.
    pub place: PlaceId,
    /// Whether it takes new flows, serves those it has, or neither.
    pub state: InstanceState,
    /// Packets per second that it can process; 0 where that is not known.
    pub capacity_pps: f32,
    /// Since when it has taken new flows, where it does.
    pub active_since: Nanos,
    /// Share of new flows, out of 256, for schedulers that go by weight.
    pub weight: u16,
    /// The block of external ports that it owns, as [`ServicePlan::external`] numbers them. No other instance has it.
    pub block: Option<u16>,
    /// What the switch changes in its packets.
    pub edits: Edits,
}

/// The immutable snapshot.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The number of the plan: higher than that of any plan before it, from 1 on.
    pub generation: Generation,
    /// Services in the order in which their matches are tried.
    pub services: Vec<ServicePlan>,
    /// Instances by slot.
    pub slots: Vec<Option<SlotPlan>>,
    /// What happens to IP packets of no service.
    pub unmatched: Fallback,
    /// What happens to packets that are not IP.
    pub other: Fallback,
    /// Who takes mappings and blocks of external ports over.
    pub mappings: MappingsPlan,
}

impl Plan {
    /// Whether a switch that can do that much can carry it out. A driver asks that first of what it is given.
    ///
    /// # Errors
    /// [`SwitchError::Service`], [`SwitchError::Edit`].
    pub fn validate(&self, can: &Capabilities) -> Result<(), SwitchError> {
        if [self.unmatched, self.other].contains(&Fallback::Host) && !can.passes_to_host {
            return Err(SwitchError::Unsupported {
                what: "pass packets of no service to this machine's own network",
            });
        }
        for service in &self.services {
            let needed = [
                (
                    service.relaxed && !can.relaxed_moves,
                    "that its flows move in order",
                ),
                (
                    service.return_counters && !can.return_matching,
                    "that returned packets are counted for each flow",
                ),
                (
                    service
                        .vip
                        .as_ref()
                        .is_some_and(|vip| !can.vips.contains(&vip.mode)),
                    "an address in that mode",
                ),
                (
                    service.affinity_key.shares_addresses()
                        && !can.affinity_keys.contains(&service.affinity_key),
                    "that flows with a common address share an instance",
                ),
                (
                    service.affinity_key.reads_content()
                        && !can.affinity_keys.contains(&service.affinity_key),
                    "flows by what packets carry",
                ),
                (
                    service.affinity_key.reads_content()
                        && (service.vip.is_some() || service.return_counters),
                    "flows by what packets carry together with an address or counters of returned packets",
                ),
                (
                    service.external.is_some() && !can.port_blocks,
                    "that packets go to the owner of their external port",
                ),
                (
                    service.external.is_some()
                        && (service.vip.is_some() || service.relaxed || service.affinity_key.reads_content()),
                    "external addresses together with an address, flows that move, or flows by what packets carry",
                ),
                (
                    service.replies_by_edge && !can.replies_by_edge,
                    "that replies return through the edge",
                ),
                (
                    service.signals && !can.signals,
                    "that signals of its instances are told",
                ),
                (
                    !service.symmetric && !can.returns,
                    "a pin for each direction, although its instances answer for themselves",
                ),
                (
                    service.symmetric && !can.sees_openers && service.matches == service.matches.reversed(),
                    "that both directions of a flow stay together, by a match that both have",
                ),
            ];
            let missing = needed.into_iter().find(|(is_missing, _)| *is_missing);
            let missing = missing.map(|(_, what)| what);
            if let Some(what) = missing.or_else(|| chain::cannot(self, service, can)) {
                let service = service.id;
                return Err(SwitchError::Service { service, what });
            }
        }
        for (slot, row) in self.instances() {
            for edit in [row.edits.to_instance, row.edits.to_uplink] {
                if let Some(kind) = edit.kind()
                    && !can.edits.contains(&kind)
                {
                    return Err(SwitchError::Edit { slot, kind });
                }
            }
        }
        Ok(())
    }

    /// The instance in that slot.
    #[inline]
    pub fn slot(&self, slot: Slot) -> Option<&SlotPlan> {
        self.slots.get(slot.index())?.as_ref()
    }

    /// The instances, in ascending order of slot.
    pub fn instances(&self) -> impl Iterator<Item = (Slot, &SlotPlan)> {
        (0..)
            .map(Slot)
            .zip(&self.slots)
            .filter_map(|(slot, of)| Some((slot, of.as_ref()?)))
    }

    /// What that instance takes in the metric of its service's scheduler; 0 where that is not known.
    pub fn capacity(&self, of: &SlotPlan) -> f32 {
        let limit = self.service(of.service).and_then(|service| service.limit);
        limit.unwrap_or(of.capacity_pps)
    }

    /// The service of that id.
    pub fn service(&self, id: ServiceId) -> Option<&ServicePlan> {
        self.services.iter().find(|s| s.id == id)
    }

    /// The service whose next one it is.
    #[inline]
    pub fn previous(&self, of: ServiceId) -> Option<&ServicePlan> {
        self.services.iter().find(|s| s.next == Some(of))
    }

    /// The service that a packet with these addresses, received on that uplink, belongs to, by its place.
    /// A symmetric service also takes the packets of the opposite direction. One that is the next of another one takes
    /// only what that returns.
    #[inline]
    pub fn classify(&self, tuple: impl Fn() -> Tuple, uplink: UplinkId) -> Option<usize> {
        self.services.iter().position(|service| {
            service.uplinks.contains(&uplink)
                && (service.takes_all() || service.takes(&tuple))
                && self.previous(service.id).is_none()
        })
    }
}

impl ServicePlan {
    /// A symmetric service of all IP packets of the first uplink, with nothing that is optional.
    pub fn of_all(id: ServiceId, scheduler: Scheduler) -> ServicePlan {
        ServicePlan {
            id,
            matches: Match::default(),
            vip: None,
            external: None,
            symmetric: true,
            affinity_key: AffinityKey::Flow,
            associations: [].into(),
            uplinks: vec![UplinkId(0)],
            scheduler,
            machines: None,
            replies_by_edge: false,
            limit: None,
            fit: 0.8,
            table_full: TableFull::Hash,
            return_counters: false,
            recovers: false,
            relaxed: false,
            moves_state: false,
            signals: false,
            stall_after: Nanos::ZERO,
            next: None,
        }
    }

    /// The index and destination of the association of a packet from and to these addresses: that which it carries, if
    /// it is listed, or the first that it enters.
    pub fn association(
        &self,
        carried: Option<(u32, IpAddr)>,
        ends: impl FnOnce() -> Option<(IpAddr, IpAddr, u8)>,
    ) -> Option<(u32, IpAddr)> {
        let all = &self.associations;
        let carried = carried.filter(|of| all.iter().any(|listed| (listed.spi, listed.to) == *of));
        carried.or_else(|| {
            let (src, dst, protocol) = ends()?;
            let enters =
                |of: &&Association| of.protects.as_ref().is_some_and(|of| of.has(src, dst, protocol));
            all.iter().find(enters).map(|of| (of.spi, of.to))
        })
    }

    /// The client of a flow and the address that it asks, by a packet of the flow that is the service's own.
    pub fn ends(&self, tuple: &Tuple) -> [IpAddr; 2] {
        let is_asked = match &self.vip {
            Some(vip) => vip.takes(tuple),
            None => self.matches.matches(tuple),
        };
        if is_asked {
            [tuple.src, tuple.dst]
        } else {
            [tuple.dst, tuple.src]
        }
    }

    /// Whether a packet with these addresses is its own.
    pub fn is_its(&self, tuple: &Tuple) -> bool {
        self.takes(&|| *tuple)
    }

    /// Whether a packet with these addresses answers one of its own: from its address, if it has one.
    pub fn is_reply(&self, tuple: &Tuple) -> bool {
        let asked = tuple.reversed();
        let is_from = |vip: &Vip| vip.takes(&asked);
        self.vip.as_ref().is_none_or(is_from) && self.is_its(&asked)
    }

    /// Whether every packet of its uplinks is its own.
    #[inline]
    pub fn takes_all(&self) -> bool {
        self.vip.is_none() && self.matches.is_any()
    }

    /// Whether a packet with these addresses is its own: out of the way of services that take all.
    #[inline(never)]
    fn takes(&self, tuple: &impl Fn() -> Tuple) -> bool {
        let tuple = tuple();
        let back = || tuple.reversed();
        let is_meant = |of: &Match| of.matches(&tuple) || self.symmetric && of.matches(&back());
        match &self.vip {
            // Of the match only the VLAN counts.
            Some(vip) => {
                is_meant(&self.matches) && (vip.takes(&tuple) || self.symmetric && vip.takes(&back()))
            }
            None => is_meant(&self.matches),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Prefix;

    use super::*;

    fn tuple(src: &str, dst: &str, dst_port: u16) -> Tuple {
        Tuple {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port: 1000,
            dst_port,
            protocol: 6,
            vlan: 0,
        }
    }

    #[test]
    fn a_symmetric_service_takes_both_directions_and_only_its_uplinks() {
        let mut plan = Plan::default();
        plan.services.push(ServicePlan {
            id: ServiceId(0),
            matches: Match {
                protocol: Some(6),
                dst: Some(Prefix {
                    address: "10.128.0.0".parse().unwrap(),
                    bits: 16,
                }),
                dst_port: Some(80..=443),
                ..Match::default()
            },
            symmetric: true,
            uplinks: vec![UplinkId(0)],
            ..ServicePlan::of_all(ServiceId(0), Scheduler::from_name("round-robin").unwrap())
        });
        let there = tuple("192.0.2.1", "10.128.9.9", 443);
        let back = there.reversed();
        assert_eq!(plan.classify(|| there, UplinkId(0)), Some(0));
        assert_eq!(plan.classify(|| back, UplinkId(0)), Some(0));
        assert_eq!(plan.classify(|| there, UplinkId(1)), None);
        assert_eq!(
            plan.classify(|| tuple("192.0.2.1", "10.128.9.9", 444), UplinkId(0)),
            None
        );
        for packet in [there, back] {
            assert_eq!(plan.services[0].ends(&packet), [there.src, there.dst]);
        }
        plan.services[0].symmetric = false;
        assert_eq!(plan.classify(|| back, UplinkId(0)), None);
    }

    #[test]
    fn a_reply_is_from_the_address_and_port_of_the_service() {
        let mut service = ServicePlan::of_all(ServiceId(0), Scheduler::default());
        service.vip = Some(Vip {
            addresses: vec!["10.0.0.100".parse().unwrap()],
            ports: vec![80..=80],
            mode: model::VipMode::L2,
            target_port: None,
        });
        for symmetric in [true, false] {
            service.symmetric = symmetric;
            let asked = tuple("192.0.2.1", "10.0.0.100", 80);
            assert!(service.is_reply(&asked.reversed()));
            assert!(!service.is_reply(&asked));
            assert!(!service.is_reply(&tuple("192.0.2.1", "10.0.0.100", 81).reversed()));
            assert!(!service.is_reply(&tuple("192.0.2.1", "10.0.0.101", 80).reversed()));
        }
    }
}
