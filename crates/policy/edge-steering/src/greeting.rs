//! How a machine learns for which run of an edge its reports are: the edge answers the first one.

use signal::Key;
use subtle::ConstantTimeEq as _;

use crate::MachineId;
use crate::report::{self, DATAGRAM_LIMIT, Head, ServiceLoad, TooManyServices, u64_of};

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 64;
/// Its first bytes. The tag of a report covers other ones.
const MAGIC: [u8; 4] = *b"inLG";
const VERSION: u8 = 1;
const TAG_BYTES: usize = 16;
/// An answer to a report that has so many later ones is too old: a second of reports.
const ANSWERED_WITHIN: u64 = 100;

/// What an edge answers to an authentic report that it cannot accept.
///
/// ```text
/// offset  bytes
///      0      4  "inLG"
///      4      1  version: 1
///      5      1  0
///      6      2  machine
///      8      8  nonce of the machine's key
///     16      8  audience: the run of the edge
///     24     16  incarnation and counter of the report that is answered
///     40      8  floor: the highest incarnation of the machine that was accepted
///     48     16  tag: SipHash-2-4-128 of all bytes before it with the machine's key
/// ```
/// It is shorter than the shortest report of a service, so nobody can have an edge send more than it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) machine: MachineId,
    pub(crate) audience: u64,
    pub(crate) incarnation: u64,
    pub(crate) counter: u64,
    pub(crate) floor: u64,
}

impl Greeting {
    pub(crate) fn bytes(&self, key: &Key) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[6..8].copy_from_slice(&self.machine.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&key.nonce());
        let numbers = [self.audience, self.incarnation, self.counter, self.floor];
        for (place, number) in bytes[16..48].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        let tag = key.tag(&bytes[..GREETING_BYTES - TAG_BYTES]);
        bytes[GREETING_BYTES - TAG_BYTES..].copy_from_slice(&tag);
        bytes
    }

    /// Reads an authentic one of a machine.
    fn of(datagram: &[u8], machine: MachineId, key: &Key) -> Option<Greeting> {
        let bytes: &[u8; GREETING_BYTES] = datagram.try_into().ok()?;
        let (tagged, tag) = bytes.split_at(GREETING_BYTES - TAG_BYTES);
        let is_one = bytes[..4] == MAGIC && bytes[4] == VERSION && bytes[5] == 0;
        let is_ours = bytes[6..8] == machine.0.to_be_bytes() && bytes[8..16] == key.nonce();
        if !is_one || !is_ours || !bool::from(key.tag(tagged).ct_eq(tag)) {
            return None;
        }
        Some(Greeting {
            machine,
            audience: u64_of(&bytes[16..24]),
            incarnation: u64_of(&bytes[24..32]),
            counter: u64_of(&bytes[32..40]),
            floor: u64_of(&bytes[40..48]),
        })
    }
}

/// A machine's reports to one edge: what the next one says of itself, and what the edge's answers change.
#[derive(Clone, Debug)]
pub struct Towards {
    head: Head,
    key: Key,
    /// The counter of the report whose answer was heard last.
    heard: u64,
}

impl Towards {
    /// Reports of a machine. `incarnation`: see [`Head::incarnation`]. It knows no run of the edge yet: the edge answers its
    /// first report.
    pub const fn new(machine: MachineId, key: Key, incarnation: u64) -> Towards {
        Towards {
            head: Head {
                machine,
                audience: 0,
                incarnation,
                counter: 0,
            },
            key,
            heard: 0,
        }
    }

    /// Whether the edge has said for which run of it reports are.
    pub const fn is_heard(&self) -> bool {
        self.heard > 0
    }

    /// Writes the next report; see [`report::write`].
    ///
    /// # Errors
    /// Too many services.
    pub fn write<'a>(
        &mut self,
        services: &[ServiceLoad],
        into: &'a mut [u8; DATAGRAM_LIMIT],
    ) -> Result<&'a [u8], TooManyServices> {
        self.head.counter += 1;
        report::write(&self.head, services, &self.key, into)
    }

    /// Takes a datagram from the edge. Whether it is the answer to a report of the last second: one of an earlier one, or
    /// that was heard before, changes nothing.
    pub fn hear(&mut self, datagram: &[u8]) -> bool {
        let Some(said) = Greeting::of(datagram, self.head.machine, &self.key) else {
            return false;
        };
        let answered = self.heard + 1..=self.head.counter;
        let is_new = said.incarnation == self.head.incarnation
            && answered.contains(&said.counter)
            && self.head.counter - said.counter < ANSWERED_WITHIN;
        if is_new {
            self.head.audience = said.audience;
            self.heard = said.counter;
            if said.floor > self.head.incarnation {
                // This machine's clock went back.
                self.head.incarnation = said.floor.saturating_add(1);
            }
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Gate, Refusal};

    const MACHINE: MachineId = MachineId(5);

    fn key() -> Key {
        Key::of_random(std::array::from_fn(|at| at as u8))
    }

    fn sent(towards: &mut Towards) -> Vec<u8> {
        towards.write(&[], &mut [0; DATAGRAM_LIMIT]).unwrap().to_vec()
    }

    #[test]
    fn an_edge_answers_the_first_report_and_a_later_run_of_it_the_next_one() {
        let mut towards = Towards::new(MACHINE, key(), 9);
        for audience in [77, 78] {
            let mut gate = Gate::new(MACHINE, key(), audience);
            let first = sent(&mut towards);
            assert_eq!(gate.accept(&first), Err(Refusal::OtherEdge));
            let answer = gate.answer(&first).unwrap();
            assert!(towards.hear(&answer) && !towards.hear(&answer));
            for _ in 0..3 {
                let next = sent(&mut towards);
                assert!(gate.accept(&next).is_ok());
                assert_eq!(gate.answer(&next), None, "it was accepted, or is a repetition");
            }
        }
    }

    #[test]
    fn a_machine_whose_clock_went_back_is_accepted_again() {
        let mut gate = Gate::new(MACHINE, key(), 77);
        let mut restart = |incarnation| {
            let mut towards = Towards::new(MACHINE, key(), incarnation);
            for _ in 0..4 {
                let report = sent(&mut towards);
                if gate.accept(&report).is_ok() {
                    return;
                }
                assert!(towards.hear(&gate.answer(&report).unwrap()));
            }
            panic!("a machine with the incarnation {incarnation} is not accepted");
        };
        restart(1_000);
        restart(10);
        restart(2);
    }

    #[test]
    fn strangers_get_no_answer_and_cannot_answer() {
        let gate = Gate::new(MACHINE, key(), 77);
        let mut stranger = Towards::new(MACHINE, Key::of_random([1; 24]), 9);
        assert_eq!(gate.answer(&sent(&mut stranger)), None);
        let mut other = Towards::new(MachineId(6), key(), 9);
        assert_eq!(gate.answer(&sent(&mut other)), None);

        let mut towards = Towards::new(MACHINE, key(), 9);
        let answer = gate.answer(&sent(&mut towards)).unwrap();
        for at in 0..GREETING_BYTES {
            let mut forged = answer;
            forged[at] ^= 1;
            assert!(!towards.hear(&forged));
        }
        assert!(!towards.hear(&answer[1..]));
        // Held back for more than a second.
        for _ in 0..ANSWERED_WITHIN {
            sent(&mut towards);
        }
        assert!(!towards.hear(&answer) && !towards.is_heard());
    }

    proptest! {
        #[test]
        fn random_datagrams_are_no_answer(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut towards = Towards::new(MACHINE, key(), 9);
            sent(&mut towards);
            prop_assert!(!towards.hear(&bytes));
        }
    }
}
