//! Which parts of a region are free, in units: the smallest piece that is long enough is taken, and pieces that touch are
//! joined.

use std::collections::{BTreeMap, BTreeSet};

/// The pieces that are free.
#[derive(Debug, Default)]
pub(crate) struct FreeSpace {
    /// Length of each piece, by where it begins.
    by_place: BTreeMap<u32, u32>,
    /// Length and place of each piece.
    by_length: BTreeSet<(u32, u32)>,
}

impl FreeSpace {
    /// One piece from the beginning on.
    pub(crate) fn new(units: u32) -> FreeSpace {
        let mut free = FreeSpace::default();
        free.add(0, units);
        free
    }

    fn add(&mut self, place: u32, units: u32) {
        if units > 0 {
            self.by_place.insert(place, units);
            self.by_length.insert((units, place));
        }
    }

    fn remove(&mut self, place: u32, units: u32) {
        self.by_place.remove(&place);
        self.by_length.remove(&(units, place));
    }

    /// Takes so many units; [`None`] if no piece is that long.
    pub(crate) fn take(&mut self, units: u32) -> Option<u32> {
        let (length, place) = *self.by_length.range((units, 0)..).next()?;
        self.remove(place, length);
        self.add(place + units, length - units);
        Some(place)
    }

    /// Gives units back that were taken.
    pub(crate) fn give(&mut self, mut place: u32, mut units: u32) {
        if let Some((before, length)) = self
            .by_place
            .range(..place)
            .next_back()
            .map(|(at, of)| (*at, *of))
            && before + length == place
        {
            self.remove(before, length);
            place = before;
            units += length;
        }
        if let Some(length) = self.by_place.get(&(place + units)).copied() {
            self.remove(place + units, length);
            units += length;
        }
        self.add(place, units);
    }

    /// Units of the longest piece.
    pub(crate) fn longest(&self) -> u32 {
        self.by_length.last().map_or(0, |(units, _)| *units)
    }

    /// Number of pieces.
    #[cfg(test)]
    pub(crate) fn pieces(&self) -> usize {
        self.by_place.len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_smallest_piece_that_is_long_enough_is_taken() {
        let mut free = FreeSpace::new(100);
        let places: Vec<u32> = [10, 1, 5, 1, 20, 1].map(|units| free.take(units).unwrap()).into();
        assert_eq!(places, [0, 10, 11, 16, 17, 37]);
        for (place, units) in [(0, 10), (11, 5), (17, 20)] {
            free.give(place, units);
        }
        assert_eq!(free.take(4), Some(11));
        assert_eq!(free.take(7), Some(0));
        assert_eq!(free.take(63), None);
        assert_eq!(free.take(62), Some(38));
    }

    proptest! {
        #[test]
        fn nothing_is_taken_twice_and_all_comes_back(
            steps in proptest::collection::vec((any::<bool>(), 1..40_u32), 1..300)
        ) {
            let mut free = FreeSpace::new(256);
            let mut taken: Vec<(u32, u32)> = Vec::new();
            let mut used = [false; 256];
            for (takes, number) in steps {
                if takes {
                    if let Some(place) = free.take(number) {
                        for unit in place..place + number {
                            prop_assert!(!std::mem::replace(&mut used[unit as usize], true));
                        }
                        taken.push((place, number));
                    } else {
                        let longest = used.split(|used| *used).map(<[bool]>::len).max().unwrap();
                        prop_assert!(longest < number as usize, "{} units were free", longest);
                    }
                } else if !taken.is_empty() {
                    let (place, units) = taken.swap_remove(number as usize % taken.len());
                    free.give(place, units);
                    used[place as usize..(place + units) as usize].fill(false);
                }
                let longest = used.split(|used| *used).map(<[bool]>::len).max().unwrap();
                prop_assert_eq!(free.longest() as usize, longest);
            }
            for (place, units) in taken {
                free.give(place, units);
            }
            prop_assert_eq!(free.take(256), Some(0));
        }
    }
}
