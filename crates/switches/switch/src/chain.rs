//! Chains of services: what the instances of one return goes on to those of the next.
//!
//! A chain is a wire with services on it. With two uplinks, what an instance returns on its second port goes on to the
//! first port of the next service, or out of the second uplink behind the last one; what it returns on its first port
//! goes the other way. With one uplink, the direction of a packet in its flow says the same: packets of the side that
//! opened the flow go on, the others go back. So no packet goes round.

use model::{AffinityKey, Capabilities, ServiceId};

use crate::plan::{Plan, ServicePlan};

/// Services of a chain at most: their places, and the one behind the last, are numbers of three bits in keys of flows
/// ([`hop`](model::key_bits::hop)).
pub const CHAIN_LIMIT: usize = 7;

impl Plan {
    /// The services of the chain that a service begins, in order: itself alone where it has no next one. At most
    /// [`CHAIN_LIMIT`] are given.
    pub fn chain(&self, first: ServiceId) -> impl Iterator<Item = &ServicePlan> {
        let next = |service: &&ServicePlan| self.service(service.next?);
        std::iter::successors(self.service(first), next).take(CHAIN_LIMIT)
    }
}

/// What a switch cannot do of the link between a service and its next one.
pub(crate) fn cannot(plan: &Plan, service: &ServicePlan, can: &Capabilities) -> Option<&'static str> {
    let next = service.next?;
    if !can.chains {
        return Some("that what its instances return goes on to another service");
    }
    let Some(to) = plan.service(next) else {
        return Some("a next service that is not there");
    };
    // A service that can be reached from itself never ends; each has one before it, so a ring has no first one.
    let mut at = Some(next);
    for _ in 0..plan.services.len() {
        if at == Some(service.id) {
            return Some("a chain of services without an end");
        }
        at = at.and_then(|at| plan.service(at)?.next);
    }
    if plan.services.iter().filter(|of| of.next == Some(next)).count() > 1 {
        return Some("a next service that another one has, too");
    }
    let at_limit = plan.chain(service.id).nth(CHAIN_LIMIT - 1);
    if at_limit.is_some_and(|of| of.next.is_some()) {
        return Some("a chain of more than seven services");
    }
    if service.uplinks != to.uplinks {
        return Some("a next service on other uplinks");
    }
    let is_plain = |of: &ServicePlan| {
        of.symmetric
            && of.vip.is_none()
            && of.external.is_none()
            && !of.relaxed
            && !of.return_counters
            && of.affinity_key != AffinityKey::Inner
            && of.affinity_key != AffinityKey::Spi
    };
    (!is_plain(service) || !is_plain(to)).then_some(
        "a next service together with a pin for each direction, an address, external addresses, flows that move or are \
         counted as they return, or flows by what packets carry",
    )
}

#[cfg(test)]
mod tests {
    use model::UplinkId;
    use scheduling::Scheduler;

    use super::*;

    const CAN: Capabilities = Capabilities {
        chains: true,
        sees_openers: true,
        relaxed_moves: true,
        return_matching: true,
        affinity_keys: &[AffinityKey::Flow, AffinityKey::Inner],
        ..Capabilities::NONE
    };

    /// A plan of so many services, each with its next one.
    fn plan(next: &[Option<u16>]) -> Plan {
        let scheduler = Scheduler::from_name("round-robin").unwrap();
        let service = |(id, next): (u16, &Option<u16>)| ServicePlan {
            next: next.map(ServiceId),
            ..ServicePlan::of_all(ServiceId(id), scheduler.clone())
        };
        Plan {
            services: (0..).zip(next).map(service).collect(),
            ..Plan::default()
        }
    }

    #[test]
    fn a_chain_has_an_end_and_one_service_before_each() {
        let long: Vec<Option<u16>> = (1..8).map(Some).chain([None]).collect();
        for (next, said) in [
            (&[Some(1), None][..], None),
            (&[Some(1), Some(2), None], None),
            (&long[1..], Some("not there")),
            (&long[..6], Some("not there")),
            (&[Some(0)], Some("without an end")),
            (&[Some(1), Some(2), Some(0)], Some("without an end")),
            // One that runs into a ring has two before the ring's entrance.
            (&[Some(1), Some(2), Some(1)], Some("too")),
            (&[Some(2), Some(2), None], Some("too")),
            (&long, Some("more than seven")),
        ] {
            let plan = plan(next);
            let result = plan.validate(&CAN).map_err(|e| e.to_string());
            match said {
                None => assert_eq!(result, Ok(()), "{next:?}"),
                Some(said) => assert!(result.clone().unwrap_err().contains(said), "{next:?}: {result:?}"),
            }
            assert_eq!(
                plan.validate(&Capabilities { chains: false, ..CAN }).is_ok(),
                next.iter().all(Option::is_none),
            );
        }
        let ids = plan(&[Some(2), None, Some(1)]);
        let ids: Vec<u16> = ids.chain(ServiceId(0)).map(|of| of.id.0).collect();
        assert_eq!(ids, [0, 2, 1]);
    }

    #[test]
    fn a_chain_needs_services_that_are_alike() {
        let changes: [fn(&mut ServicePlan); 5] = [
            |of| of.uplinks = vec![UplinkId(1)],
            |of| of.symmetric = false,
            |of| of.return_counters = true,
            |of| of.relaxed = true,
            |of| of.affinity_key = AffinityKey::Inner,
        ];
        for (at, change) in changes.into_iter().enumerate() {
            for place in 0..2 {
                let mut plan = plan(&[Some(1), None]);
                change(&mut plan.services[place]);
                assert!(
                    plan.validate(&CAN)
                        .unwrap_err()
                        .to_string()
                        .contains("a next service"),
                    "{at}"
                );
                plan.services[0].next = None;
                plan.validate(&CAN).unwrap();
            }
        }
    }
}
