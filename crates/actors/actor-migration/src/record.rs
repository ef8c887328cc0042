//! What outlives a process: a word beside the objects of an actor.

/// What a side has noted about an actor, where its objects are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Record {
    /// The actor is not here. What its region holds means nothing.
    #[default]
    Away,
    /// The actor runs here, or has not left.
    Here,
    /// All objects have come, and the actor was not told to start.
    Complete,
    /// The actor has left for a side with all its objects, and never comes back but by another move.
    Gone,
}

impl Record {
    /// The word. A region that nobody wrote has 0.
    pub const fn to_bits(self) -> u64 {
        match self {
            Record::Away => 0,
            Record::Here => 1,
            Record::Complete => 2,
            Record::Gone => 3,
        }
    }

    /// The record of a word; [`None`] for one that none has.
    pub const fn from_bits(bits: u64) -> Option<Record> {
        match bits {
            0 => Some(Record::Away),
            1 => Some(Record::Here),
            2 => Some(Record::Complete),
            3 => Some(Record::Gone),
            _ => None,
        }
    }
}

/// Where an actor runs after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On the first side.
    First,
    /// On the second side.
    Second,
    /// On neither: its state is lost.
    Lost,
}

/// Where an actor runs, by what both sides have noted. [`None`]: the region is lost, or it was left in the middle of a
/// message.
pub fn who_runs(first: Option<Record>, second: Option<Record>) -> Verdict {
    match (first, second) {
        // Two that have it: no order of steps leads here. Neither may go on.
        (Some(Record::Here), Some(Record::Here)) => Verdict::Lost,
        (Some(Record::Here), _) | (Some(Record::Complete), Some(Record::Gone)) => Verdict::First,
        (_, Some(Record::Here)) | (Some(Record::Gone), Some(Record::Complete)) => Verdict::Second,
        // Also if one is complete and the other one lost: that one may have cancelled the move and gone on.
        _ => Verdict::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Record; 4] = [Record::Away, Record::Here, Record::Complete, Record::Gone];

    #[test]
    fn a_record_is_read_as_written() {
        for record in ALL {
            assert_eq!(Record::from_bits(record.to_bits()), Some(record));
        }
        assert_eq!(Record::from_bits(4), None);
    }

    #[test]
    fn both_sides_come_to_the_same_verdict() {
        let records = || ALL.into_iter().map(Some).chain([None]);
        for (first, second) in records().flat_map(|first| records().map(move |second| (first, second))) {
            let mirrored = match who_runs(second, first) {
                Verdict::First => Verdict::Second,
                Verdict::Second => Verdict::First,
                Verdict::Lost => Verdict::Lost,
            };
            assert_eq!(who_runs(first, second), mirrored, "{first:?} {second:?}");
        }
    }
}
