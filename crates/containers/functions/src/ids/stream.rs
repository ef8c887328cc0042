//! The bytes of a TCP connection in one direction, in order.
//!
//! Bytes that came first count: a later segment that covers the same sequence numbers changes nothing. Segments that
//! come early wait until the gap before them is filled, or until too many wait; then the gap is skipped.

/// Segments of a direction that wait, at most.
pub const WAITING_SEGMENTS_LIMIT: usize = 128;
/// Rules of a direction whose fast pattern was found and that are searched again with each segment, at most.
pub const ACTIVE_RULES_LIMIT: usize = 64;
/// A segment this far behind the next byte is old, not early: half of all sequence numbers.
const HALF: u32 = 1 << 31;

/// How much a stream may keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes behind the newest that are kept at least, so that a match may lie in several segments.
    pub(super) window: usize,
    /// Bytes that wait for a gap to be filled.
    pub(super) waiting: usize,
}

/// What was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Events {
    /// Gaps that were skipped.
    pub(super) gaps: u64,
    /// Bytes that had come before.
    pub(super) repeated_bytes: u64,
}

#[derive(Clone, Debug)]
struct Segment {
    sequence: u32,
    bytes: Vec<u8>,
}

/// One direction.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    /// The sequence number of the next byte, once it is known.
    next: Option<u32>,
    /// How many bytes of the stream lie before those that are kept.
    base: u64,
    kept: Vec<u8>,
    /// In order, without overlaps.
    waiting: Vec<Segment>,
    waiting_bytes: usize,
    /// Rules whose fast pattern lies in the kept bytes, each with where that ends in the stream; valid for one set of
    /// rules.
    active: Vec<(u32, u64)>,
    rules: u64,
}

impl Stream {
    /// The connection begins: the first byte has this sequence number. Ignored if that is known already.
    pub(super) fn begin(&mut self, sequence: u32) {
        self.next.get_or_insert(sequence);
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        self.kept.capacity() + self.waiting_bytes
    }

    /// The kept bytes, and how many of the stream lie before them.
    pub(super) fn kept(&self) -> (&[u8], u64) {
        (&self.kept, self.base)
    }

    /// Forgets all bytes; gives the memory back for another stream.
    pub(super) fn clear(&mut self) -> Vec<u8> {
        self.waiting = Vec::new();
        self.waiting_bytes = 0;
        self.active.clear();
        self.base += self.kept.len() as u64;
        let mut kept = std::mem::take(&mut self.kept);
        kept.clear();
        kept
    }

    /// Gives it memory, if it has none.
    pub(super) fn lend(&mut self, memory: Vec<u8>) {
        if self.kept.capacity() == 0 {
            self.kept = memory;
        }
    }

    pub(super) fn has_memory(&self) -> bool {
        self.kept.capacity() > 0
    }

    /// Takes a segment. Returns how many bytes at the end of [`Stream::kept`] are new.
    pub(super) fn push(&mut self, sequence: u32, bytes: &[u8], limits: Limits, events: &mut Events) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        let next = *self.next.get_or_insert(sequence);
        self.trim(limits.window);
        let before = self.kept.len();
        let behind = next.wrapping_sub(sequence);
        let is_behind = behind < HALF;
        if is_behind && self.waiting.is_empty() {
            self.append(sequence, bytes, events);
            return self.kept.len() - before;
        }
        let (sequence, bytes) = if is_behind {
            let old = bytes.len().min(behind as usize);
            events.repeated_bytes += old as u64;
            (next, bytes.get(old..).unwrap_or(&[]))
        } else {
            (sequence, bytes)
        };
        self.wait(next, sequence, bytes, events);
        self.take_waiting(events);
        if self.waiting_bytes <= limits.waiting && self.waiting.len() <= WAITING_SEGMENTS_LIMIT {
            return self.kept.len() - before;
        }
        // What lies before the gap does not continue behind it.
        events.gaps += 1;
        self.base += self.kept.len() as u64;
        self.kept.clear();
        self.active.clear();
        if let (Some(first), Some(next)) = (self.waiting.first(), self.next) {
            self.base += u64::from(first.sequence.wrapping_sub(next));
            self.next = Some(first.sequence);
        }
        self.take_waiting(events);
        while self.waiting_bytes > limits.waiting {
            let Some(last) = self.waiting.pop() else { break };
            self.waiting_bytes -= last.bytes.len();
            events.gaps += 1;
        }
        self.kept.len()
    }

    /// Drops old bytes, when there are twice as many as must be kept.
    fn trim(&mut self, window: usize) {
        if self.kept.len() >= 2 * window {
            let old = self.kept.len() - window;
            self.kept.copy_within(old.., 0);
            self.kept.truncate(window);
            self.base += old as u64;
            let base = self.base;
            self.active.retain(|(_, end)| *end > base);
        }
    }

    /// Adds what is new of a segment that begins at the next byte or before.
    fn append(&mut self, sequence: u32, bytes: &[u8], events: &mut Events) {
        let Some(next) = self.next else { return };
        let old = next.wrapping_sub(sequence) as usize;
        let new = bytes.get(old..).unwrap_or(&[]);
        events.repeated_bytes += (bytes.len() - new.len()) as u64;
        self.kept.extend_from_slice(new);
        self.next = Some(next.wrapping_add(new.len() as u32));
    }

    /// Adds the waiting segments that the next byte has reached.
    fn take_waiting(&mut self, events: &mut Events) {
        let mut taken = 0;
        while let Some(first) = self.waiting.get_mut(taken) {
            let ahead = first.sequence.wrapping_sub(self.next.unwrap_or(first.sequence));
            if ahead != 0 && ahead < HALF {
                break;
            }
            let segment = Segment {
                sequence: first.sequence,
                bytes: std::mem::take(&mut first.bytes),
            };
            self.waiting_bytes -= segment.bytes.len();
            self.append(segment.sequence, &segment.bytes, events);
            taken += 1;
        }
        self.waiting.drain(..taken);
    }

    /// Keeps those bytes of an early segment that no waiting one has.
    fn wait(&mut self, next: u32, sequence: u32, bytes: &[u8], events: &mut Events) {
        let offset = |sequence: u32| sequence.wrapping_sub(next) as usize;
        let (mut from, end) = (offset(sequence), offset(sequence) + bytes.len());
        let first = from;
        let mut at = 0;
        while from < end {
            let covered = self
                .waiting
                .get(at)
                .map(|of| (offset(of.sequence), offset(of.sequence) + of.bytes.len()));
            let until = covered.map_or(end, |(start, _)| start.min(end));
            if from < until {
                if let Some(part) = bytes.get(from - first..until - first) {
                    let segment = Segment {
                        sequence: next.wrapping_add(from as u32),
                        bytes: part.to_vec(),
                    };
                    self.waiting_bytes += part.len();
                    self.waiting.insert(at, segment);
                    at += 1;
                }
                from = until;
            }
            let Some((start, stop)) = covered else { break };
            if start < end && stop > from {
                events.repeated_bytes += (stop.min(end) - from) as u64;
                from = stop;
            }
            at += 1;
        }
    }

    /// Rules that are searched again with each segment, of the set of rules with that number.
    pub(super) fn active(&mut self, rules: u64) -> &mut Vec<(u32, u64)> {
        if self.rules != rules {
            self.rules = rules;
            self.active.clear();
        }
        &mut self.active
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        window: 1 << 20,
        waiting: 1 << 20,
    };

    proptest! {
        /// Whatever the order, repetition and overlap of segments: the bytes are those that came first.
        #[test]
        fn bytes_come_out_in_order(
            start: u32,
            segments in proptest::collection::vec((0_usize..200, 1_usize..40, any::<u8>()), 1..60),
        ) {
            let mut stream = Stream::default();
            stream.begin(start);
            let mut model: Vec<Option<u8>> = vec![None; 240];
            let mut events = Events::default();
            for (offset, len, fill) in segments {
                let bytes: Vec<u8> = (0..len).map(|at| fill.wrapping_add(at as u8)).collect();
                for (at, byte) in bytes.iter().enumerate() {
                    model[offset + at].get_or_insert(*byte);
                }
                let before = stream.kept().0.len();
                let fresh = stream.push(start.wrapping_add(offset as u32), &bytes, LIMITS, &mut events);
                let expected: Vec<u8> = model.iter().map_while(|byte| *byte).collect();
                prop_assert_eq!(stream.kept(), (&expected[..], 0));
                prop_assert_eq!(fresh, expected.len() - before);
                let waiting: usize = model.iter().skip(expected.len()).flatten().count();
                prop_assert_eq!(stream.waiting_bytes, waiting);
            }
            prop_assert_eq!(events.gaps, 0);
        }

        /// With small limits it keeps little, whatever comes.
        #[test]
        fn it_is_bounded(segments in proptest::collection::vec((any::<u32>(), 1_usize..600), 1..300), near: bool) {
            let limits = Limits { window: 256, waiting: 1000 };
            let mut stream = Stream::default();
            let mut events = Events::default();
            for (sequence, len) in segments {
                let sequence = if near { sequence % 5000 } else { sequence };
                stream.push(sequence, &vec![1; len], limits, &mut events);
                prop_assert!(stream.waiting_bytes <= limits.waiting);
                prop_assert!(stream.waiting.len() <= WAITING_SEGMENTS_LIMIT);
                prop_assert!(stream.kept.len() <= 2 * limits.window + limits.waiting + 1200);
            }
        }
    }

    #[test]
    fn a_gap_is_skipped_when_too_much_waits() {
        let limits = Limits {
            window: 100,
            waiting: 10,
        };
        let mut stream = Stream::default();
        let mut events = Events::default();
        assert_eq!(stream.push(0, b"abc", limits, &mut events), 3);
        assert_eq!(stream.push(10, b"0123456789", limits, &mut events), 0);
        assert_eq!(stream.push(20, b"X", limits, &mut events), 11);
        assert_eq!(stream.kept(), (&b"0123456789X"[..], 10));
        assert_eq!(events.gaps, 1);
    }
}
