//! How a worker finds out up to which number its part is done.

/// What the worker has to look at next, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// How many packets were numbered: [`Watermark::passed`].
    Passed,
    /// How many packets this CPU has begun to put into the ring: [`Watermark::begun`].
    Begun(usize),
    /// How many packets this CPU is through with: [`Watermark::placed`].
    Placed(usize),
    /// How many frames wait in the ring: [`Watermark::waiting`].
    Waiting,
    /// Nothing, until these are committed: [`Watermark::committed`].
    Nothing,
}

/// The worker's side of an interface. It looks at one number at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watermark {
    want: Want,
    /// What is, or was last, to be done.
    number: u64,
    /// By CPU.
    begun: Vec<u64>,
    /// Frames taken from the ring when all are done.
    until: u64,
}

impl Watermark {
    /// With as many CPUs as put packets into the ring.
    #[must_use]
    pub fn new(cpus: usize) -> Watermark {
        Watermark {
            want: Want::Passed,
            number: 0,
            begun: vec![0; cpus],
            until: 0,
        }
    }

    /// Begins anew, at another interface.
    pub fn restart(&mut self) {
        self.want = Want::Passed;
        self.number = 0;
        self.until = 0;
    }

    /// What comes next. A worker goes on as far as it can in each of its turns.
    #[must_use]
    pub const fn want(&self) -> Want {
        self.want
    }

    /// So many packets were numbered. Nothing follows if all of them have been told to be done.
    pub fn passed(&mut self, passed: u64) {
        if self.want == Want::Passed && passed > self.number {
            self.number = passed;
            self.want = self.begun_of(0);
        }
    }

    /// The CPU that was asked for has begun with so many packets.
    pub fn begun(&mut self, begun: u64) {
        if let Want::Begun(cpu) = self.want {
            if let Some(word) = self.begun.get_mut(cpu) {
                *word = begun;
            }
            self.want = self.begun_of(cpu + 1);
        }
    }

    /// The CPU that was asked for is through with so many packets. Whether that was enough; else it is asked for again.
    pub fn placed(&mut self, placed: u64) -> bool {
        let Want::Placed(cpu) = self.want else {
            return false;
        };
        let is_enough = self.begun.get(cpu).is_none_or(|begun| *begun <= placed);
        if is_enough {
            self.want = self.placed_of(cpu + 1);
        }
        is_enough
    }

    /// So many frames were ever taken from the ring, and so many wait in it, up to the first empty place.
    pub fn waiting(&mut self, taken: u64, waiting: u64) {
        if self.want == Want::Waiting {
            self.until = taken.saturating_add(waiting);
            self.want = Want::Nothing;
        }
    }

    /// All frames that were ever taken from the ring, so many, are committed. The number that is done when all that was
    /// committed has left: to be sent behind it.
    pub fn committed(&mut self, taken: u64) -> Option<u64> {
        let is_done = self.want == Want::Nothing && taken >= self.until;
        is_done.then(|| {
            self.want = Want::Passed;
            self.number
        })
    }

    fn begun_of(&self, cpu: usize) -> Want {
        if cpu < self.begun.len() {
            Want::Begun(cpu)
        } else {
            self.placed_of(0)
        }
    }

    fn placed_of(&self, cpu: usize) -> Want {
        if cpu < self.begun.len() {
            Want::Placed(cpu)
        } else {
            Want::Waiting
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_done_when_what_waited_is_committed() {
        let mut mark = Watermark::new(2);
        mark.passed(0);
        assert_eq!(mark.want(), Want::Passed, "there is nothing to be done");
        mark.passed(7);
        mark.begun(5);
        assert_eq!(mark.want(), Want::Begun(1));
        mark.begun(3);
        assert!(!mark.placed(4));
        assert_eq!(mark.want(), Want::Placed(0));
        assert!(mark.placed(5));
        assert!(mark.placed(9));
        assert_eq!(mark.committed(100), None, "it does not know yet for what to wait");
        mark.waiting(20, 3);
        assert_eq!(mark.want(), Want::Nothing);
        assert_eq!(mark.committed(22), None);
        assert_eq!(mark.committed(23), Some(7));
        assert_eq!(mark.want(), Want::Passed);
        assert_eq!(mark.committed(24), None);
        mark.passed(7);
        assert_eq!(mark.want(), Want::Passed, "it was told");
    }

    #[test]
    fn what_was_not_asked_for_changes_nothing() {
        let mut mark = Watermark::new(1);
        let before = mark.clone();
        mark.begun(1);
        assert!(!mark.placed(1));
        mark.waiting(1, 1);
        assert_eq!(mark, before);
    }
}
