//! Prefixes as ranges of addresses that do not overlap.

use super::Prefix;

/// A range that starts at an address and ends before the next range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<V> {
    /// The first address, from the highest bit on.
    pub start: u128,
    /// The value of the longest prefix that holds its addresses.
    pub value: V,
}

/// Flattens prefixes of one family, in ascending order and each at most once, into ranges in ascending order. The first
/// range starts at 0; addresses that no prefix holds have `none`. Neighbours differ in their values.
pub fn flatten<V: Copy + PartialEq>(
    prefixes: impl IntoIterator<Item = (Prefix, V)>,
    none: V,
) -> Vec<Range<V>> {
    let mut ranges = vec![Range {
        start: 0,
        value: none,
    }];
    // The prefixes that hold the current address, the longest last.
    let mut holding: Vec<(Prefix, V)> = Vec::new();
    for (prefix, value) in prefixes {
        leave(&mut ranges, &mut holding, prefix.first_bits(), none);
        enter(&mut ranges, prefix.first_bits(), value);
        holding.push((prefix, value));
    }
    // To the end of the last prefix, and beyond unless that is the last address.
    while let Some((prefix, _)) = holding.pop() {
        if let Some(next) = prefix.last_bits().checked_add(1) {
            enter(
                &mut ranges,
                next,
                holding.last().map_or(none, |&(_, value)| value),
            );
        }
    }
    ranges
}

/// Ends the prefixes that end before an address.
fn leave<V: Copy + PartialEq>(
    ranges: &mut Vec<Range<V>>,
    holding: &mut Vec<(Prefix, V)>,
    before: u128,
    none: V,
) {
    while let Some(&(prefix, _)) = holding.last()
        && prefix.last_bits() < before
    {
        holding.pop();
        let outer = holding.last().map_or(none, |&(_, value)| value);
        enter(ranges, prefix.last_bits() + 1, outer);
    }
}

/// Starts a range, in place of one that would start at the same address.
fn enter<V: Copy + PartialEq>(ranges: &mut Vec<Range<V>>, start: u128, value: V) {
    if ranges.last().is_some_and(|last| last.start == start) {
        ranges.pop();
    }
    if ranges.last().is_none_or(|last| last.value != value) {
        ranges.push(Range { start, value });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::super::prefix::left_aligned;
    use super::*;

    proptest! {
        #[test]
        fn a_range_has_the_value_of_the_longest_prefix(
            entries in prop::collection::btree_map((any::<u32>(), 0_u8..=32), any::<u16>(), 0..40),
            dense in prop::collection::btree_map((0_u32..64, 26_u8..=32), any::<u16>(), 0..40),
            addresses in prop::collection::vec(prop_oneof![any::<u32>(), 0_u32..80], 1..100),
        ) {
            let prefixes: BTreeMap<Prefix, u16> = entries
                .into_iter()
                .chain(dense)
                .map(|((address, len), value)| (Prefix::of(Ipv4Addr::from(address).into(), len), value))
                .collect();
            let ranges = flatten(prefixes.iter().map(|(&p, &v)| (p, Some(v))), None);
            prop_assert_eq!(ranges[0].start, 0);
            for pair in ranges.windows(2) {
                prop_assert!(pair[0].start < pair[1].start && pair[0].value != pair[1].value);
            }
            let ends = prefixes.keys().flat_map(|p| {
                let IpAddr::V4(first) = p.address() else { unreachable!() };
                let first = u32::from(first);
                let last = first | u32::MAX.checked_shr(p.len().into()).unwrap_or(0);
                [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
            });
            for address in addresses.iter().copied().chain(ends) {
                let address = IpAddr::V4(Ipv4Addr::from(address));
                let longest = prefixes.iter().filter(|(p, _)| p.contains(address)).max_by_key(|(p, _)| p.len());
                let at = ranges.partition_point(|r| r.start <= left_aligned(address)) - 1;
                prop_assert_eq!(ranges[at].value, longest.map(|(_, &v)| v));
            }
        }
    }
}
