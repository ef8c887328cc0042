//! Maps from small ids to values, with a value for each possible id: a look-up cannot fail.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use model::{ServiceId, Slot, UplinkId};

/// An id that is an index of a map.
pub trait Id: Copy {
    /// Exclusive upper limit of the ids.
    const LIMIT: usize;
    /// The id as a number.
    fn number(self) -> usize;
}

macro_rules! ids {
    ($($id:ty: $limit:expr,)*) => {
        $(impl Id for $id {
            const LIMIT: usize = $limit;
            #[inline(always)]
            fn number(self) -> usize {
                self.index()
            }
        })*
    };
}

ids! {
    Slot: Slot::LIMIT,
    ServiceId: ServiceId::LIMIT,
    UplinkId: UplinkId::LIMIT,
}

/// A value for each id below the limit, rounded up to a power of two: [`Slot::NONE`] has the last value. The index is
/// the id's lower bits, so that no look-up needs a comparison.
#[derive(Debug)]
pub struct IdMap<I, T, const PLACES: usize> {
    values: Box<[T; PLACES]>,
    id: PhantomData<I>,
}

/// A value for each slot.
pub type SlotMap<T> = IdMap<Slot, T, { 2 * Slot::LIMIT }>;
/// A value for each service.
pub type ServiceMap<T> = IdMap<ServiceId, T, { 2 * ServiceId::LIMIT }>;
/// A value for each uplink.
pub type UplinkMap<T> = IdMap<UplinkId, T, { 2 * UplinkId::LIMIT }>;

impl<I: Id, T, const PLACES: usize> IdMap<I, T, PLACES> {
    /// A map with the result of one call of `value` for each id.
    pub fn from_fn(mut value: impl FnMut() -> T) -> IdMap<I, T, PLACES> {
        const { assert!(PLACES.is_power_of_two() && PLACES == 2 * I::LIMIT) };
        IdMap {
            values: Box::new(std::array::from_fn(|_| value())),
            id: PhantomData,
        }
    }

    /// The values of all ids, in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.values[..PLACES / 2].iter()
    }

    /// The values of all ids, to change.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.values[..PLACES / 2].iter_mut()
    }
}

impl<I: Id, T: Default, const PLACES: usize> Default for IdMap<I, T, PLACES> {
    fn default() -> Self {
        IdMap::from_fn(T::default)
    }
}

impl<I: Id, T, const PLACES: usize> Index<I> for IdMap<I, T, PLACES> {
    type Output = T;

    #[inline(always)]
    fn index(&self, id: I) -> &T {
        &self.values[id.number() % PLACES]
    }
}

impl<I: Id, T, const PLACES: usize> IndexMut<I> for IdMap<I, T, PLACES> {
    #[inline(always)]
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.values[id.number() % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_has_its_own_value_and_none_has_another() {
        let mut next = 0;
        let mut map: SlotMap<u32> = IdMap::from_fn(|| {
            next += 1;
            next
        });
        assert_eq!(map.iter().len(), Slot::LIMIT);
        assert!((0..Slot::LIMIT as u16).all(|slot| map[Slot(slot)] == u32::from(slot) + 1));
        map[Slot::NONE] = 0;
        assert_eq!(map[Slot::NONE], 0);
        assert!(map.iter().eq((1..=Slot::LIMIT as u32).collect::<Vec<_>>().iter()));
    }
}
