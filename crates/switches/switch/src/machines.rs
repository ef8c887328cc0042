//! Machines behind tunnels that several edges give flows to.

use std::net::Ipv4Addr;

use edge_steering::{MachineId, Member, Sequences};

/// Machines of which each edge knows at which a flow can be, whichever edge gave it to one: by the flow's hash, which all edges
/// compute alike.
#[derive(Clone, Debug)]
pub struct SharedMachines {
    addresses: Box<[Ipv4Addr]>,
    sequences: Sequences,
}

impl SharedMachines {
    /// Of these addresses, in any order. It takes milliseconds.
    pub fn new(addresses: impl IntoIterator<Item = Ipv4Addr>) -> SharedMachines {
        let addresses: Box<[Ipv4Addr]> = addresses.into_iter().collect();
        let member = |(id, address): (u16, &Ipv4Addr)| Member {
            id: MachineId(id),
            name: u64::from(address.to_bits()),
            weight: 1.0,
        };
        let sequences = Sequences::new((0..).zip(&addresses).map(member));
        SharedMachines { addresses, sequences }
    }

    /// The addresses of a flow's machines, the likeliest first.
    #[inline]
    pub fn of(&self, hash: u64) -> impl Iterator<Item = Ipv4Addr> {
        let of = |machine: MachineId| self.addresses.get(machine.index()).copied();
        self.sequences.of(hash).filter_map(of)
    }

    /// All of them.
    pub fn addresses(&self) -> &[Ipv4Addr] {
        &self.addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_with_other_lists_of_the_same_machines_agree() {
        let addresses = [1, 2, 3, 4].map(|last| Ipv4Addr::new(10, 0, 0, last));
        let (one, mut others) = (SharedMachines::new(addresses), addresses);
        others.reverse();
        let other = SharedMachines::new(others);
        for hash in (0..1_000_u64).map(model::mix) {
            assert!(one.of(hash).eq(other.of(hash)));
            assert!(one.of(hash).count() > 1);
        }
    }
}
