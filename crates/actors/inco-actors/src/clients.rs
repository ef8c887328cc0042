//! Who the clients are: a number for each, by which actors know them.

use std::collections::HashMap;
use std::hash::Hash;

/// Clients that are known at a time. One more takes the place of the one that came first.
pub(crate) const CLIENTS_LIMIT: usize = 1 << 16;

/// Bits of a number: the place, how often the place was taken, and which process of this side it was. The highest bit
/// is that of the host's network.
const PLACE_BITS: u32 = 16;
const TAKEN_BITS: u32 = 31;
const INCARNATION_BITS: u32 = 16;
const _: () = assert!(PLACE_BITS + TAKEN_BITS + INCARNATION_BITS == 63 && 1 << PLACE_BITS == CLIENTS_LIMIT);

/// The clients of a network. `K`: what an answer needs.
#[derive(Debug)]
pub(crate) struct Clients<K> {
    places: Vec<(K, u64)>,
    numbers: HashMap<K, usize>,
    next: usize,
    base: u64,
}

impl<K: Copy + Eq + Hash> Clients<K> {
    /// Nobody yet. `base` has the bits that all of its numbers have.
    pub(crate) fn new(incarnation: u32, base: u64) -> Clients<K> {
        let incarnation = u64::from(incarnation) & ((1 << INCARNATION_BITS) - 1);
        Clients {
            places: Vec::new(),
            numbers: HashMap::new(),
            next: 0,
            base: base | incarnation << (PLACE_BITS + TAKEN_BITS),
        }
    }

    fn number(&self, place: usize, taken: u64) -> u64 {
        self.base | (taken & ((1 << TAKEN_BITS) - 1)) << PLACE_BITS | place as u64
    }

    /// The number of a client; a new one for one that is not known.
    pub(crate) fn number_of(&mut self, client: K) -> u64 {
        if let Some(place) = self.numbers.get(&client) {
            let taken = self.places.get(*place).map_or(0, |(_, taken)| *taken);
            return self.number(*place, taken);
        }
        let place = self.next;
        self.next = (self.next + 1) % CLIENTS_LIMIT;
        let taken = match self.places.get_mut(place) {
            Some((before, taken)) => {
                self.numbers.remove(before);
                *before = client;
                *taken += 1;
                *taken
            }
            None => {
                self.places.push((client, 0));
                0
            }
        };
        self.numbers.insert(client, place);
        self.number(place, taken)
    }

    /// Who has a number, if the client is still known.
    pub(crate) fn client(&self, number: u64) -> Option<K> {
        let place = number as usize & (CLIENTS_LIMIT - 1);
        let (client, taken) = self.places.get(place)?;
        (self.number(place, *taken) == number).then_some(*client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_nobody_else_later() {
        let mut clients = Clients::new(3, 1 << 63);
        let first = clients.number_of(7_u32);
        assert_eq!((clients.number_of(7), clients.client(first)), (first, Some(7)));
        for other in 100..100 + CLIENTS_LIMIT as u32 {
            assert_ne!(clients.number_of(other), first);
        }
        assert_eq!(
            (clients.client(first), clients.numbers.len()),
            (None, CLIENTS_LIMIT)
        );
        let again = clients.number_of(7);
        assert!(again != first && clients.client(again) == Some(7));
        let next = Clients::<u32>::new(4, 1 << 63);
        assert_eq!(next.client(again), None);
        let mut next = Clients::new(4, 1 << 63);
        assert_ne!(next.number_of(7), first);
    }
}
