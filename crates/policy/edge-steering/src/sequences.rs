//! The machines of a hash, in order: what edges agree on.

use maglev::{ENTRIES, NOBODY, Table};
use model::mix;

use crate::{MACHINES_LIMIT, MachineId, Member};

/// Machines that can get a flow by its hash: a pick takes the first two of them that take new flows. With a fifth of all
/// machines draining at once, all six drain for one flow in 15,000; with four it would be one in 600.
pub const SEQUENCE: usize = 6;
/// Draws for a sequence at most: with few machines, draws repeat.
const DRAWS: u64 = 24;
/// Between two draws of a hash: odd, without a pattern.
const NEXT_DRAW: u64 = 0x9e37_79b9_7f4a_7c15;

/// The sequences of a group of machines: Maglev's table of them, and further draws of a hash. Whoever has the same members
/// has the same sequences.
#[derive(Clone, Debug)]
pub struct Sequences(Table);

impl Sequences {
    /// Of nobody.
    pub fn empty() -> Sequences {
        Sequences(Table::new(ENTRIES, MACHINES_LIMIT))
    }

    /// Of these machines, in any order. It builds a table of 65,537 entries, which takes milliseconds: not on the path of
    /// packets.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Sequences {
        let mut members: Vec<Member> = members.into_iter().collect();
        members.sort_by_key(|member| (member.name, member.id));
        let mut table = Table::new(ENTRIES, members.len());
        table.begin(members.iter().map(|member| maglev::Member {
            id: member.id.0,
            name: member.name,
            weight: member.weight,
        }));
        let is_full = table.fill(u32::MAX);
        if is_full {
            Sequences(table)
        } else {
            Sequences::empty()
        }
    }

    /// The machines of a hash, the likeliest first: each different, at most [`SEQUENCE`].
    #[inline]
    pub fn of(&self, hash: u64) -> impl Iterator<Item = MachineId> {
        let mut seen = [NOBODY; SEQUENCE];
        let mut count = 0;
        draws(hash)
            .map_while(move |hash| self.at(hash))
            .filter(move |machine| {
                let is_new = !seen.contains(&machine.0);
                if is_new && let Some(place) = seen.get_mut(count) {
                    *place = machine.0;
                    count += 1;
                }
                is_new
            })
            .take(SEQUENCE)
    }

    /// The machine at a draw of a hash. That of the hash itself is Maglev's own.
    #[inline]
    pub(crate) fn at(&self, hash: u64) -> Option<MachineId> {
        let entry = self.0.entries().get(self.0.place(hash));
        entry.filter(|id| **id != NOBODY).map(|id| MachineId(*id))
    }
}

/// The hashes that a flow's machines come from, in order: the flow's own, then further draws of it.
#[inline]
pub fn draws(hash: u64) -> impl Iterator<Item = u64> {
    (0..DRAWS).map(move |draw| drawn(hash, draw))
}

/// Draws of a hash beyond those of its sequence.
pub(crate) fn draws_beyond(hash: u64, count: u64) -> impl Iterator<Item = u64> {
    (DRAWS..DRAWS + count).map(move |draw| drawn(hash, draw))
}

#[inline]
fn drawn(hash: u64, draw: u64) -> u64 {
    if draw == 0 {
        hash
    } else {
        mix(hash.wrapping_add(draw.wrapping_mul(NEXT_DRAW)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(id: u16) -> Member {
        Member {
            id: MachineId(id),
            name: 0x0a00_0000 + u64::from(id),
            weight: 1.0,
        }
    }

    proptest! {
        #[test]
        fn a_sequence_has_each_machine_once_whatever_the_order_of_members(
            ids in prop::collection::btree_set(0_u16..64, 1..20), turn in 0_usize..20, hashes: [u64; 16],
        ) {
            let ids: Vec<u16> = ids.into_iter().collect();
            let sequences = Sequences::new(ids.iter().copied().map(member));
            let mut others = ids.clone();
            others.rotate_left(turn % ids.len());
            let same = Sequences::new(others.into_iter().map(member));
            for hash in hashes {
                let of: Vec<MachineId> = sequences.of(hash).collect();
                prop_assert_eq!(&of, &same.of(hash).collect::<Vec<_>>());
                prop_assert!(!of.is_empty() && of.len() <= SEQUENCE);
                for (place, machine) in of.iter().enumerate() {
                    prop_assert!(ids.contains(&machine.0) && !of[..place].contains(machine));
                }
            }
        }
    }

    #[test]
    fn nobody_has_no_sequence() {
        assert_eq!(Sequences::empty().of(7).next(), None);
        assert_eq!(Sequences::new([]).of(7).next(), None);
    }

    #[test]
    fn with_up_to_six_machines_nearly_all_are_in_each_sequence() {
        let sequences = Sequences::new((0..6).map(member));
        let complete = (0..1_000_u64)
            .filter(|n| sequences.of(mix(*n)).count() == 6)
            .count();
        assert!(complete > 900, "{complete}");
    }
}
