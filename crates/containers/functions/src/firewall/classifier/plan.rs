//! Into which groups rules are divided.

use crate::lpm::Prefix;

use super::{Fields, TooComplex};

/// Groups are divided further while all of them have more pairs than this: 512 kB of cells, which a second-level cache
/// holds together with the rest.
const PAIRS_WANTED: u64 = 64 << 10;
/// Pairs that are compiled at most: 32 MB of cells.
const PAIRS_LIMIT: u64 = 4 << 20;
/// Groups at most: each costs a lookup two more reads.
const GROUPS_LIMIT: usize = 16;

/// The prefixes of rules at one end, in ascending order: each is followed by those that it contains.
#[derive(Debug)]
pub(super) struct Tree {
    prefixes: Vec<Prefix>,
    /// For each prefix the number after the last one that it contains.
    ends: Vec<u32>,
    /// For each rule its prefix.
    of_rule: Vec<u32>,
}

/// The prefixes of a group's rules at one end.
#[derive(Debug)]
pub(super) struct GroupTree {
    /// For each class the group's own: 0 is none, n + 1 its n-th prefix.
    pub(super) group_of: Vec<u32>,
    /// For each of the group's prefixes the number after the last one that it contains.
    pub(super) ends: Vec<u32>,
    /// For each of the group's rules its prefix.
    pub(super) of_rule: Vec<u32>,
}

impl Tree {
    pub(super) fn new(rules: &[Fields], numbers: &[u32], end: impl Fn(&Fields) -> Prefix) -> Tree {
        let mut prefixes: Vec<Prefix> = numbers.iter().map(|&n| end(&rules[n as usize])).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        let mut of_rule = vec![0; rules.len()];
        for &n in numbers {
            let at = prefixes.partition_point(|prefix| *prefix < end(&rules[n as usize]));
            of_rule[n as usize] = at as u32;
        }
        let mut ends = vec![prefixes.len() as u32; prefixes.len()];
        let mut holding: Vec<usize> = Vec::new();
        for (at, prefix) in prefixes.iter().enumerate() {
            while let Some(&outer) = holding.last()
                && !prefixes[outer].contains_prefix(prefix)
            {
                ends[outer] = at as u32;
                holding.pop();
            }
            holding.push(at);
        }
        Tree {
            prefixes,
            ends,
            of_rule,
        }
    }

    /// The class of each prefix: its number and 1, because addresses outside of all have 0.
    pub(super) fn classes(&self) -> impl Iterator<Item = (Prefix, u16)> {
        self.prefixes
            .iter()
            .zip(1..)
            .map(|(&prefix, class)| (prefix, class))
    }

    fn len_of(&self, rule: u32) -> u8 {
        self.prefixes[self.of_rule[rule as usize] as usize].len()
    }

    /// For each prefix how many of the members' prefixes precede it; one more at the end.
    fn preceding(&self, members: &[u32]) -> Vec<u32> {
        let mut preceding = vec![0; self.prefixes.len() + 1];
        for &rule in members {
            preceding[self.of_rule[rule as usize] as usize + 1] = 1;
        }
        let mut sum = 0;
        for count in &mut preceding {
            sum += *count;
            *count = sum;
        }
        preceding
    }

    /// How many of the members' prefixes are in the prefix of each member.
    fn nested<'a>(&'a self, members: &'a [u32]) -> impl Iterator<Item = u64> + 'a {
        let preceding = self.preceding(members);
        members.iter().map(move |&rule| {
            let at = self.of_rule[rule as usize] as usize;
            u64::from(preceding[self.ends[at] as usize] - preceding[at])
        })
    }

    pub(super) fn of_group(&self, members: &[u32]) -> GroupTree {
        let preceding = self.preceding(members);
        let number = |at: u32| preceding[at as usize];
        let is_member = |at: usize| preceding[at + 1] > preceding[at];
        let mut group_of = vec![0; self.prefixes.len() + 1];
        let mut ends = Vec::new();
        let mut holding: Vec<usize> = Vec::new();
        for at in 0..self.prefixes.len() {
            while holding
                .last()
                .is_some_and(|&outer| self.ends[outer] as usize <= at)
            {
                holding.pop();
            }
            if is_member(at) {
                holding.push(at);
                ends.push(number(self.ends[at]));
            }
            group_of[at + 1] = holding.last().map_or(0, |&own| number(own as u32) + 1);
        }
        GroupTree {
            group_of,
            ends,
            of_rule: members
                .iter()
                .map(|&rule| number(self.of_rule[rule as usize]))
                .collect(),
        }
    }
}

/// The pairs of classes that rules name, counted once for each rule.
fn pairs(members: &[u32], src: &Tree, dst: &Tree) -> u64 {
    let pairs = src.nested(members).zip(dst.nested(members));
    pairs
        .map(|(src, dst)| src.saturating_mul(dst))
        .fold(0, u64::saturating_add)
}

/// Divides rules into groups with few pairs: the group with the most pairs is divided where that leaves the fewest, by
/// the length of the source or of the destination, or else in halves.
pub(super) fn groups(rules: Vec<u32>, src: &Tree, dst: &Tree) -> Result<Vec<Vec<u32>>, TooComplex> {
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    let mut groups = vec![(pairs(&rules, src, dst), rules)];
    let total = |groups: &[(u64, Vec<u32>)]| groups.iter().map(|group| group.0).fold(0, u64::saturating_add);
    while total(&groups) > PAIRS_WANTED && groups.len() < GROUPS_LIMIT {
        let Some(most) = (0..groups.len()).max_by_key(|&at| groups[at].0) else {
            break;
        };
        let before = groups[most].0;
        let Some([left, right]) = divide(&groups[most].1, src, dst) else {
            break;
        };
        let after = left.0.saturating_add(right.0);
        // Another group must be worth its reads, unless there are too many pairs otherwise.
        if after > before / 4 * 3 && total(&groups) <= PAIRS_LIMIT {
            break;
        }
        groups[most] = left;
        groups.push(right);
    }
    let pairs = total(&groups);
    if pairs > PAIRS_LIMIT {
        return Err(TooComplex::Pairs {
            pairs,
            limit: PAIRS_LIMIT,
        });
    }
    Ok(groups.into_iter().map(|(_, members)| members).collect())
}

/// The division of a group that leaves the fewest pairs; none for a single rule.
fn divide(members: &[u32], src: &Tree, dst: &Tree) -> Option<[(u64, Vec<u32>); 2]> {
    let measured = |(left, right): (Vec<u32>, Vec<u32>)| {
        [left, right].map(|members| (pairs(&members, src, dst), members))
    };
    let mut best: Option<[(u64, Vec<u32>); 2]> = None;
    let mut consider = |division: (Vec<u32>, Vec<u32>)| {
        if division.0.is_empty() || division.1.is_empty() {
            return;
        }
        let division = measured(division);
        let sum = |[left, right]: &[(u64, Vec<u32>); 2]| left.0.saturating_add(right.0);
        if best.as_ref().is_none_or(|best| sum(&division) < sum(best)) {
            best = Some(division);
        }
    };
    for tree in [src, dst] {
        let mut lengths: Vec<u8> = members.iter().map(|&rule| tree.len_of(rule)).collect();
        lengths.sort_unstable();
        lengths.dedup();
        for longest in lengths {
            consider(members.iter().partition(|&&rule| tree.len_of(rule) <= longest));
        }
    }
    let (first, last) = members.split_at(members.len() / 2);
    consider((first.to_vec(), last.to_vec()));
    best
}
