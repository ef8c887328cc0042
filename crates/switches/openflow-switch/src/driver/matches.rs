//! A service's match as the fields of rules: ranges of ports become prefixes of bits, protocols and IP versions rules
//! of their own.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use model::{Match, Prefix, UplinkId, protocol};
use openflow::{Field, FieldKind};
use switch::ServicePlan;

use crate::rules::{Part, ServiceRules, Side, Spread, ports_of};

/// What the rules of a service match. `port_of`: the switch's port of an uplink. `bucket_bits`: a bucket's number has
/// so many at most; fewer where the match leaves fewer open.
pub(super) fn service_rules(
    plan: &ServicePlan,
    port_of: impl Fn(UplinkId) -> u32,
    bucket_bits: u8,
) -> ServiceRules {
    let mut sides = Vec::new();
    for (data_port, uplink) in plan.uplinks.iter().enumerate() {
        for is_answering in [false, true] {
            if is_answering && !plan.symmetric {
                continue;
            }
            let matches = match is_answering {
                true => mirrored(&plan.matches),
                false => plan.matches.clone(),
            };
            for fields in field_lists(&matches) {
                sides.push(Side {
                    uplink: uplink.0,
                    port: port_of(*uplink),
                    data_port: data_port as u8,
                    is_answering,
                    fields,
                });
            }
        }
    }
    ServiceRules {
        id: plan.id,
        sides,
        spread: spread(&plan.matches, bucket_bits),
        uplinks: plan.uplinks.iter().map(|uplink| port_of(*uplink)).collect(),
        fit: plan.fit,
    }
}

fn mirrored(of: &Match) -> Match {
    Match {
        src: of.dst,
        dst: of.src,
        src_port: of.dst_port.clone(),
        dst_port: of.src_port.clone(),
        ..of.clone()
    }
}

/// The fields of each rule that the match needs.
fn field_lists(of: &Match) -> Vec<Vec<Field>> {
    let is_v6 = |prefix: Option<Prefix>| prefix.map(|prefix| prefix.address.is_ipv6());
    let families = match is_v6(of.src).or(is_v6(of.dst)) {
        Some(is_v6) => vec![is_v6],
        None => vec![false, true],
    };
    let has_ports = of.src_port.is_some() || of.dst_port.is_some();
    let protocols = match of.protocol {
        Some(protocol) => vec![Some(protocol)],
        None if has_ports => vec![Some(protocol::TCP), Some(protocol::UDP), Some(protocol::SCTP)],
        None => vec![None],
    };
    let mut lists = Vec::new();
    for is_v6 in families {
        for ip_proto in &protocols {
            let mut fields = vec![Field::eth_type(if is_v6 { 0x86dd } else { 0x0800 })];
            fields.extend(ip_proto.map(Field::ip_proto));
            fields.extend(of.src.and_then(|prefix| address(Field::source, prefix)));
            fields.extend(of.dst.and_then(|prefix| address(Field::destination, prefix)));
            fields.extend(of.vlan.map(|id| match id {
                0 => Field::no_vlan(),
                id => Field::vlan(id),
            }));
            let kinds = ip_proto.and_then(ports_of);
            let sources = masks(of.src_port.as_ref());
            let destinations = masks(of.dst_port.as_ref());
            for source in &sources {
                for destination in &destinations {
                    let mut fields = fields.clone();
                    match kinds {
                        Some((source_kind, destination_kind)) => {
                            fields.extend(port_field(source_kind, *source));
                            fields.extend(port_field(destination_kind, *destination));
                        }
                        // The protocol has no ports that could match.
                        None if has_ports => continue,
                        None => {}
                    }
                    lists.push(fields);
                }
            }
        }
    }
    lists
}

fn address(field: fn(IpAddr) -> Field, prefix: Prefix) -> Option<Field> {
    let (bytes, width) = match prefix.address {
        IpAddr::V4(_) => (4, 32),
        IpAddr::V6(_) => (16, 128),
    };
    let bits = u32::from(prefix.bits).min(width);
    if bits == 0 {
        return None;
    }
    let mask: Vec<u8> = (0..bytes)
        .map(|byte| {
            let own = bits.saturating_sub(8 * byte).min(8);
            (0xff00_u16 >> own) as u8
        })
        .collect();
    Some(field(prefix.address).masked(&mask))
}

/// A value and its mask.
type Masked = (u16, u16);

fn port_field(kind: FieldKind, (value, mask): Masked) -> Option<Field> {
    (mask != 0).then(|| Field::u16(kind, value).masked(&mask.to_be_bytes()))
}

/// The fewest prefixes of bits that are exactly this range; all values where there is none.
fn masks(range: Option<&RangeInclusive<u16>>) -> Vec<Masked> {
    let Some(range) = range else {
        return vec![(0, 0)];
    };
    let mut masks = Vec::new();
    let (mut from, end) = (u32::from(*range.start()), u32::from(*range.end()) + 1);
    while from < end {
        // The largest block that begins here and does not pass the end.
        let aligned = if from == 0 { 16 } else { from.trailing_zeros() };
        let fits = (end - from).ilog2();
        let bits = aligned.min(fits).min(16);
        masks.push((from as u16, !(((1_u32 << bits) - 1) as u16)));
        from += 1 << bits;
    }
    masks
}

/// Which bits choose a bucket: those that the match leaves open, ports and addresses of who begins a flow first.
fn spread(of: &Match, bucket_bits: u8) -> Spread {
    let mut left = bucket_bits.min(Spread::LIMIT_BITS);
    let mut parts = Vec::new();
    let mut take = |part: Part, most: u8| {
        let bits = most.min(left);
        if bits > 0 {
            parts.push((part, bits));
            left -= bits;
        }
    };
    let has_ports = of.protocol.is_some_and(|of| ports_of(of).is_some());
    if has_ports && of.src_port.is_none() {
        take(Part::SourcePort, bucket_bits / 2);
    }
    // Rules of both IP versions have the same buckets.
    let open = |prefix: Option<Prefix>| match prefix {
        Some(Prefix { address, bits }) if address.is_ipv6() => 128 - bits.min(128),
        Some(Prefix { bits, .. }) => 32 - bits.min(32),
        None => 32,
    };
    take(Part::SourceAddress, open(of.src));
    take(Part::DestinationAddress, open(of.dst));
    Spread { parts }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn masks_are_the_range_and_no_more(a: u16, b: u16, port: u16) {
            let range = a.min(b)..=a.max(b);
            let masks = masks(Some(&range));
            prop_assert!(masks.len() <= 30);
            for port in [port, *range.start(), *range.end(), range.start().wrapping_sub(1), range.end().wrapping_add(1)] {
                let meets = masks.iter().filter(|(value, mask)| port & mask == *value).count();
                prop_assert_eq!(meets, usize::from(range.contains(&port)));
            }
        }
    }

    #[test]
    fn a_match_is_as_many_rules_as_it_needs() {
        assert_eq!(field_lists(&Match::default()).len(), 2, "IPv4 and IPv6");
        let web = Match {
            protocol: Some(protocol::TCP),
            dst: Some(Prefix {
                address: "10.128.0.0".parse().unwrap(),
                bits: 9,
            }),
            dst_port: Some(80..=83),
            ..Match::default()
        };
        let lists = field_lists(&web);
        assert_eq!(lists.len(), 1);
        let masked = |mask: &[u8]| lists[0].iter().any(|field| field.mask() == Some(mask));
        assert!(masked(&[255, 128, 0, 0]) && masked(&[0xff, 0xfc]), "{lists:?}");
        let ports_alone = Match {
            dst_port: Some(53..=53),
            ..Match::default()
        };
        assert_eq!(
            field_lists(&ports_alone).len(),
            6,
            "two IP versions, three protocols with ports"
        );
    }

    #[test]
    fn buckets_take_only_bits_that_are_open() {
        let one_host = Match {
            protocol: Some(protocol::UDP),
            src: Some(Prefix {
                address: "10.0.0.1".parse().unwrap(),
                bits: 31,
            }),
            ..Match::default()
        };
        let spread_of = spread(&one_host, 6);
        assert_eq!(
            spread_of.parts,
            [
                (Part::SourcePort, 3),
                (Part::SourceAddress, 1),
                (Part::DestinationAddress, 2)
            ]
        );
        assert_eq!(spread(&Match::default(), 6).parts, [(Part::SourceAddress, 6)]);
    }
}
