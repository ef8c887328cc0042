//! The second look: where the pin of a flow can be that another edge has picked a machine for.

use thiserror::Error;

use crate::MachineId;

/// Machines of a look at most: those of the flow's sequence, and the first two of the members before. It bounds how
/// often a packet of an unknown flow is forwarded.
pub const LOOKS_LIMIT: usize = crate::SEQUENCE + 2;
/// Bytes of an [`Onward`] in a packet.
pub const ONWARD_BYTES: usize = 2 * LOOKS_LIMIT;

/// The machines that can have a flow's pin, the likeliest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    machines: [MachineId; LOOKS_LIMIT],
    count: u8,
}

impl Look {
    /// Adds a machine, if it is not there and there is room.
    pub(crate) fn add(&mut self, machine: MachineId) {
        if !self.machines().contains(&machine)
            && let Some(place) = self.machines.get_mut(usize::from(self.count))
        {
            *place = machine;
            self.count += 1;
        }
    }

    /// The machines.
    #[inline]
    pub fn machines(&self) -> &[MachineId] {
        self.machines.get(..usize::from(self.count)).unwrap_or_default()
    }

    /// Where a packet goes first, and what it says of the others. [`None`] if there is no machine.
    pub fn first(&self) -> Option<(MachineId, Onward)> {
        Onward(*self).next()
    }
}

/// The machines that a packet without a pin has yet to ask. In a packet it takes [`ONWARD_BYTES`]:
///
/// ```text
/// offset  bytes
///      0      1  how many, n: at most 7
///      1      1  0
///      2     14  their numbers; behind the n-th 0
/// ```
/// It is not keyed: who can write it into packets of the fabric can have each forwarded seven times, no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Onward(Look);

/// Bytes that are no [`Onward`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is no list of machines: a number from 0 to 7, a zero, so many different machines, and zeros")]
pub struct NoOnward;

impl Onward {
    /// The next machine, and what is left then.
    pub fn next(self) -> Option<(MachineId, Onward)> {
        let (first, rest) = self.0.machines().split_first()?;
        let mut left = Look::default();
        for machine in rest {
            left.add(*machine);
        }
        Some((*first, Onward(left)))
    }

    /// As a packet has it.
    pub fn bytes(self) -> [u8; ONWARD_BYTES] {
        let mut bytes = [0; ONWARD_BYTES];
        let (head, numbers) = bytes.split_at_mut(2);
        for (place, machine) in numbers.chunks_exact_mut(2).zip(self.0.machines()) {
            place.copy_from_slice(&machine.0.to_be_bytes());
            head[0] += 1;
        }
        bytes
    }

    /// Reads what [`Onward::bytes`] gives.
    ///
    /// # Errors
    /// It is none.
    pub fn from_bytes(bytes: &[u8; ONWARD_BYTES]) -> Result<Onward, NoOnward> {
        let [count, zero, numbers @ ..] = bytes;
        let mut look = Look::default();
        for (nth, number) in numbers.as_chunks::<2>().0.iter().enumerate() {
            if nth < usize::from(*count) {
                look.add(MachineId(u16::from_be_bytes(*number)));
            } else if *number != [0; 2] {
                return Err(NoOnward);
            }
        }
        // Fewer than were said: too many, or one twice.
        if *zero != 0 || look.count != *count {
            return Err(NoOnward);
        }
        Ok(Onward(look))
    }
}

/// What a machine does with a packet of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has the pin, or sets it: the flow is new.
    Serve,
    /// It has no pin: the packet goes to this machine, with this list.
    Forward(MachineId, Onward),
    /// No machine that could have the pin has it. The flow is as good as new: TCP answers with a reset, and another
    /// protocol's flow is pinned here.
    Unknown,
}

/// What a machine does with a packet that an edge sent to it.
///
/// `begins`: whether it begins a flow (TCP: SYN without ACK). `onward`: what the packet says of other machines; empty if
/// the edge has a pin, or has just picked this machine.
pub fn at_machine(has_pin: bool, begins: bool, onward: Onward) -> Verdict {
    if has_pin || begins {
        return Verdict::Serve;
    }
    match onward.next() {
        Some((machine, rest)) => Verdict::Forward(machine, rest),
        None => Verdict::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn look(machines: &[u16]) -> Look {
        let mut look = Look::default();
        for machine in machines {
            look.add(MachineId(*machine));
        }
        look
    }

    #[test]
    fn a_packet_asks_each_machine_once_and_then_none() {
        let (first, mut onward) = look(&[3, 9, 3, 0]).first().unwrap();
        let mut asked = vec![first.0];
        while let Verdict::Forward(machine, rest) = at_machine(false, false, onward) {
            asked.push(machine.0);
            onward = Onward::from_bytes(&rest.bytes()).unwrap();
        }
        assert_eq!(asked, [3, 9, 0]);
        assert_eq!(at_machine(false, false, onward), Verdict::Unknown);
        assert_eq!(at_machine(true, false, Onward(look(&[1]))), Verdict::Serve);
        assert_eq!(at_machine(false, true, Onward(look(&[1]))), Verdict::Serve);
        assert_eq!(Look::default().first(), None);
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_is_written(machines in prop::collection::btree_set(any::<u16>(), 0..LOOKS_LIMIT)) {
            let machines: Vec<u16> = machines.into_iter().collect();
            let onward = Onward(look(&machines));
            prop_assert_eq!(Onward::from_bytes(&onward.bytes()), Ok(onward));
        }

        #[test]
        fn what_is_read_is_written_again(bytes: [u8; ONWARD_BYTES]) {
            if let Ok(onward) = Onward::from_bytes(&bytes) {
                prop_assert_eq!(onward.bytes(), bytes);
            }
        }
    }
}
