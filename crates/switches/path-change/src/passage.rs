//! What the program knows of a flow in one direction.

/// A flow that has a rule, or had one, or is to get one. The program writes `last`, who writes rules the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Passage {
    /// Whether the fast path may take packets of the flow.
    pub is_on: bool,
    /// Packets that were numbered when the entry was there: those of the flow are among them.
    pub floor: u64,
    /// The number of the flow's last packet that was passed up since.
    pub last: u64,
}

impl Passage {
    /// An entry that has just been inserted: nothing is taken before it is [open](Passage::open).
    #[must_use]
    pub const fn inserted() -> Passage {
        Passage {
            is_on: false,
            floor: u64::MAX,
            last: 0,
        }
    }

    /// It is there, and after that so many packets had been numbered.
    pub const fn open(&mut self, passed: u64) {
        self.floor = passed;
        self.is_on = true;
    }

    /// A packet of the flow was passed up under that number.
    pub const fn pass(&mut self, number: u64) {
        self.last = number;
    }

    /// Whether no packet of the flow is on the slow path. `unread` is the number of the last packet whose flow is not known,
    /// `done` what the slow path has done.
    #[must_use]
    pub fn is_clear(&self, done: u64, unread: u64) -> bool {
        self.floor.max(self.last).max(unread) <= done
    }

    /// Whether the fast path takes the flow's next packet.
    #[must_use]
    pub fn takes(&self, done: u64, unread: u64) -> bool {
        self.is_on && self.is_clear(done, unread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_taken_when_its_last_packet_is_done() {
        let mut passage = Passage::inserted();
        assert!(!passage.takes(u64::MAX - 1, 0));
        passage.open(10);
        assert!(!passage.takes(9, 0));
        assert!(passage.takes(10, 0));
        assert!(!passage.takes(10, 11), "a fragment may be its own");
        passage.pass(12);
        assert!(!passage.takes(11, 0));
        assert!(passage.takes(12, 11));
        passage.is_on = false;
        assert!(passage.is_clear(12, 11) && !passage.takes(12, 11));
    }
}
