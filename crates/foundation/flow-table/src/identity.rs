use crate::TableError;

/// Whose table it is, and what its entries mean. Fixed when the table is made. [`FlowTable::attach`] takes over a
/// table of the same identity only; [`FlowTable::convert`] carries over flows of any other.
///
/// The default is for a table in memory that no other process attaches.
///
/// [`FlowTable::attach`]: crate::FlowTable::attach
/// [`FlowTable::convert`]: crate::FlowTable::convert
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The boot of the machine, `/proc/sys/kernel/random/boot_id` as 16 bytes. Times are nanoseconds of
    /// `CLOCK_MONOTONIC`: processes of one boot can compare them.
    pub boot: [u8; 16],
    /// A fingerprint of all that gives the numbers in an entry their meaning: which service has which
    /// [`ServiceId`](model::ServiceId).
    pub configuration: u64,
    /// The worker whose flows these are, counted from 0.
    pub worker: u16,
    /// Workers in all: they and the hash key determine the owner of a flow. 0 or 1: the table has every flow.
    pub workers: u16,
}

impl Identity {
    pub(crate) fn boot_words(&self) -> [u64; 2] {
        let boot = u128::from_le_bytes(self.boot);
        [boot as u64, (boot >> 64) as u64]
    }

    pub(crate) fn boot_of(words: [u64; 2]) -> [u8; 16] {
        (u128::from(words[0]) | u128::from(words[1]) << 64).to_le_bytes()
    }

    /// Whether a table of identity `found` can be attached by a process that expects this one.
    pub(crate) fn accept(&self, found: &Identity) -> Result<(), TableError> {
        if found.boot != self.boot {
            return Err(TableError::OtherBoot);
        }
        if (found.worker, found.workers) != (self.worker, self.workers) {
            return Err(TableError::OtherWorker {
                found: (found.worker, found.workers),
                expected: (self.worker, self.workers),
            });
        }
        if found.configuration != self.configuration {
            return Err(TableError::OtherConfiguration {
                found: found.configuration,
                expected: self.configuration,
            });
        }
        Ok(())
    }
}

/// Who held a table last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// A process that has the table now, or ended without
    /// [`FlowTable::into_storage`](crate::FlowTable::into_storage).
    Running,
    /// A process that has the table now, or ended while it attached it.
    Attaching,
    /// Nobody: the last one gave the storage back.
    Nobody,
    /// The word in the storage is none of these.
    Damaged,
}

impl Holder {
    pub(crate) const fn word(self) -> u64 {
        match self {
            Holder::Damaged => 0,
            Holder::Running => 1,
            Holder::Attaching => 2,
            Holder::Nobody => 3,
        }
    }

    pub(crate) const fn of(word: u64) -> Holder {
        match word {
            1 => Holder::Running,
            2 => Holder::Attaching,
            3 => Holder::Nobody,
            _ => Holder::Damaged,
        }
    }
}
