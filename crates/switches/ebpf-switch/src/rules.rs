//! The matches of services as rules for the programs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::{Relaxed, Release};

use model::{Match, Prefix, ServiceId, UplinkId};
use switch::{Plan, ServicePlan};

use crate::layout::{BANKS, RULES, RuleRow, World, store_words};

/// A match, as the programs try it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    src: ([u64; 2], [u64; 2]),
    dst: ([u64; 2], [u64; 2]),
    src_port: RangeInclusive<u16>,
    dst_port: RangeInclusive<u16>,
    service: u16,
    vlan: u16,
    protocol: u8,
    family: u8,
    uplinks: u8,
}

/// The words of an address, IPv4 in mapped form, as they lie in a packet.
pub(crate) fn words(address: IpAddr) -> [u64; 2] {
    split(bytes(address))
}

/// An address as the programs know it: IPv4 in mapped form.
pub(crate) fn bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn split(bytes: [u8; 16]) -> [u64; 2] {
    let (words, _) = bytes.as_chunks::<8>();
    [0, 1].map(|at| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word)))
}

/// The value and the mask of a prefix.
fn masked(prefix: Option<Prefix>) -> ([u64; 2], [u64; 2]) {
    let Some(prefix) = prefix else {
        return ([0; 2], [0; 2]);
    };
    let of_family = if prefix.address.is_ipv4() { 96 } else { 0 };
    let bits = u32::from(prefix.bits) + of_family;
    let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
    (words(prefix.first()), split(mask.to_be_bytes()))
}

/// The matches of a service: its own, or those of its address.
fn matches(service: &ServicePlan) -> Vec<Match> {
    match &service.vip {
        Some(vip) => vip.matches(service.matches.vlan),
        None => vec![service.matches.clone()],
    }
}

/// The rules of a plan, in the order in which they are tried.
pub(crate) fn compile(plan: &Plan) -> Vec<Rule> {
    let any = || 0..=u16::MAX;
    let of = |service: &ServicePlan| {
        let uplinks = service
            .uplinks
            .iter()
            .fold(0, |bits, id| bits | 1_u8 << (id.0 & 7));
        let id = service.id.0;
        matches(service).into_iter().map(move |of| Rule {
            src: masked(of.src),
            dst: masked(of.dst),
            src_port: of.src_port.unwrap_or_else(any),
            dst_port: of.dst_port.unwrap_or_else(any),
            service: id,
            vlan: of.vlan.unwrap_or(0),
            protocol: of.protocol.unwrap_or(0),
            family: of
                .src
                .or(of.dst)
                .map_or(0, |prefix| if prefix.address.is_ipv4() { 4 } else { 6 }),
            uplinks,
        })
    };
    plan.services.iter().flat_map(of).collect()
}

/// Publishes rules in a bank that no program reads.
pub(crate) fn publish(world: &World, rules: &[Rule]) {
    let settings = &world.settings;
    let bank = ((settings.rules.load(Relaxed) >> 16) as usize + 1) % BANKS;
    for (row, rule) in world.rules[bank].iter().zip(rules) {
        write(row, rule);
    }
    // Both at once: a number belongs to its bank.
    let count = rules.len().min(RULES);
    settings.rules.store((bank << 16 | count) as u32, Release);
}

/// The addresses of a plan's services and of their instances, each with a bit for each uplink. `receives`: the uplink
/// where others answer for them, who send into tunnels. `end`: the near end of tunnels.
pub(crate) fn addresses(
    plan: &Plan,
    own: impl Iterator<Item = (ServiceId, IpAddr)>,
    (receives, end): (Option<UplinkId>, Option<(IpAddr, UplinkId)>),
) -> Vec<(IpAddr, u32)> {
    let services = plan.services.iter();
    let vips = services.flat_map(|of| {
        of.vip
            .iter()
            .flat_map(|vip| vip.addresses.iter().map(|ip| (of.id, *ip)))
    });
    let mut all: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for (service, address) in vips.chain(own) {
        let uplinks = plan.service(service).map_or(&[][..], |of| of.uplinks.as_slice());
        let here = uplinks.iter().filter(|id| receives != Some(**id));
        let bits = here.fold(0, |bits, id| bits | 1 << id.0);
        if bits != 0 {
            *all.entry(address).or_default() |= bits;
        }
    }
    if let Some((address, uplink)) = end {
        *all.entry(address).or_default() |= 1 << uplink.0;
    }
    all.into_iter().collect()
}

fn write(row: &RuleRow, rule: &Rule) {
    store_words(&row.src, rule.src.0);
    store_words(&row.src_mask, rule.src.1);
    store_words(&row.dst, rule.dst.0);
    store_words(&row.dst_mask, rule.dst.1);
    for (to, range) in [(&row.src_port, &rule.src_port), (&row.dst_port, &rule.dst_port)] {
        to[0].store(*range.start(), Relaxed);
        to[1].store(*range.end(), Relaxed);
    }
    row.service.store(rule.service, Relaxed);
    row.vlan.store(rule.vlan, Relaxed);
    row.protocol.store(rule.protocol, Relaxed);
    row.family.store(rule.family, Relaxed);
    row.uplinks.store(rule.uplinks, Relaxed);
}

#[cfg(test)]
mod tests {
    use scheduling::Scheduler;

    use super::*;

    #[test]
    fn an_address_has_a_rule_for_each_range_and_protocol() {
        let mut service =
            ServicePlan::of_all(model::ServiceId(3), Scheduler::from_name("round-robin").unwrap());
        service.vip = Some(model::Vip {
            addresses: vec!["10.0.0.100".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            ports: vec![80..=80, 443..=444],
            mode: model::VipMode::L2,
            target_port: None,
        });
        let plan = Plan {
            services: vec![service],
            ..Plan::default()
        };
        let rules = compile(&plan);
        assert_eq!(rules.len(), 8);
        let first = &rules[0];
        assert_eq!(
            (first.service, first.protocol, first.family, first.uplinks),
            (3, 6, 4, 1)
        );
        assert_eq!(first.dst, (words("10.0.0.100".parse().unwrap()), [u64::MAX; 2]));
        assert_eq!(first.src, ([0; 2], [0; 2]));
        assert_eq!(rules[7].dst_port, 443..=444);
    }

    #[test]
    fn a_prefix_masks_its_first_bits() {
        let prefix = |text: &str, bits| {
            masked(Some(Prefix {
                address: text.parse().unwrap(),
                bits,
            }))
        };
        for bits in 0..=32 {
            let (value, mask) = prefix("10.128.3.4", bits);
            let own = words("10.128.3.4".parse().unwrap());
            assert_eq!([own[0] & mask[0], own[1] & mask[1]], value, "/{bits}");
        }
        assert_eq!(prefix("::1", 0), ([0; 2], [0; 2]));
        assert_eq!(prefix("2001:db8::", 128).1, [u64::MAX; 2]);
    }
}
