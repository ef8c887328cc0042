//! The verdicts of recent headers, so that the packets of a flow are classified once.

use super::classifier::{Classifier, HEADERS_LIMIT, Header, NO_RULE};

/// Verdicts that are kept: 2 MB, which a second-level cache holds. Thousands of flows have most of the packets.
const CAPACITY: usize = 1 << 17;
/// Verdicts of a line, in order of age.
const WAYS: usize = 4;
/// Headers after which the share of hits decides.
const WINDOW: u32 = 2048;
/// Headers that are not looked up after a window with too few hits. Then another window is tried: it costs 1/64 of a
/// lookup per header, and some milliseconds pass before flows that repeat are noticed.
const PAUSE: u32 = 64 * WINDOW;
/// A window needs a hit for so many headers: below that a lookup costs more than it saves.
const HEADERS_PER_HIT: u32 = 4;

/// The number of no rule, in 16 bits.
const NONE: u16 = u16::MAX;
/// The number of a free place.
const FREE: u16 = u16::MAX - 1;

/// A line of the cache: each place has a header's fields in its upper 112 bits, and the number of the rule below.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([u128; WAYS]);

/// A cache of verdicts before a classifier of IPv4.
#[derive(Debug)]
pub struct Verdicts {
    lines: Box<[Line]>,
    /// Headers that are still to be looked up in this window, or to be passed by in this pause.
    remaining: u32,
    is_paused: bool,
    window_hits: u32,
    hits: u64,
    misses: u64,
}

impl Default for Verdicts {
    fn default() -> Verdicts {
        Verdicts {
            lines: vec![Line([u128::from(FREE); WAYS]); CAPACITY / WAYS].into_boxed_slice(),
            remaining: WINDOW,
            is_paused: false,
            window_hits: 0,
            hits: 0,
            misses: 0,
        }
    }
}

impl Verdicts {
    /// As [`Classifier::classify`], of the one classifier that this cache is for.
    #[inline]
    pub fn classify(&mut self, classifier: &Classifier<u32>, headers: &[Header<u32>], rules: &mut [u32]) {
        let len = headers.len().min(rules.len()).min(HEADERS_LIMIT);
        if len as u32 >= self.remaining {
            self.begin_window();
        } else {
            self.remaining -= len as u32;
        }
        if self.is_paused {
            classifier.classify(headers, rules);
            return;
        }
        let mut keys = [(0_u128, 0_usize); HEADERS_LIMIT];
        for (header, key) in headers[..len].iter().zip(&mut keys) {
            *key = self.key(header);
            simd::prefetch_at(&self.lines, key.1);
        }
        let mut missed = [0_usize; HEADERS_LIMIT];
        let mut misses = 0;
        for (at, (&(key, line), rule)) in keys[..len].iter().zip(&mut *rules).enumerate() {
            let mut found = FREE;
            for place in self.lines[line].0 {
                found = if (place ^ key) >> 16 == 0 && place as u16 != FREE {
                    place as u16
                } else {
                    found
                };
            }
            *rule = if found == NONE { NO_RULE } else { u32::from(found) };
            missed[misses] = at;
            misses += usize::from(found == FREE);
        }
        let hits = len - misses;
        self.window_hits += hits as u32;
        self.hits += hits as u64;
        self.misses += misses as u64;
        if misses > 0 {
            self.learn(classifier, headers, rules, &keys, &missed[..misses]);
        }
    }

    /// Classifies the headers that were not found.
    fn learn(
        &mut self,
        classifier: &Classifier<u32>,
        headers: &[Header<u32>],
        rules: &mut [u32],
        keys: &[(u128, usize); HEADERS_LIMIT],
        missed: &[usize],
    ) {
        let mut some = [Header::new(0, 0, 0, 0, 0, 0); HEADERS_LIMIT];
        for (header, &at) in some.iter_mut().zip(missed) {
            *header = headers[at];
        }
        let mut found = [NO_RULE; HEADERS_LIMIT];
        classifier.classify(&some[..missed.len()], &mut found);
        for (&at, rule) in missed.iter().zip(found) {
            rules[at] = rule;
            let (key, line) = keys[at];
            let number = if rule == NO_RULE { NONE } else { rule as u16 };
            let Line([a, b, c, _]) = self.lines[line];
            self.lines[line] = Line([key | u128::from(number), a, b, c]);
        }
    }

    fn begin_window(&mut self) {
        let is_worth_it = self.is_paused || self.window_hits >= WINDOW / HEADERS_PER_HIT;
        self.is_paused = !is_worth_it;
        self.remaining = if is_worth_it { WINDOW } else { PAUSE };
        self.window_hits = 0;
    }

    /// A header's fields, and its line.
    #[inline(always)]
    fn key(&self, header: &Header<u32>) -> (u128, usize) {
        let kind = u64::from(header.protocol()) << 8 | u64::from(header.icmp_type());
        let addresses = u64::from(header.src) << 32 | u64::from(header.dst);
        let others = u64::from(header.src_port()) << 48 | u64::from(header.dst_port()) << 32 | kind << 16;
        let product =
            u128::from(addresses ^ 0x9e37_79b9_7f4a_7c15) * u128::from(others ^ 0xd1b5_4a32_d192_ed03);
        let hash = (product >> 64) as u64 ^ product as u64;
        let line = (hash >> 32) as usize & (self.lines.len() - 1);
        (u128::from(addresses) << 64 | u128::from(others), line)
    }

    /// Headers whose verdict was known, and others that were looked up.
    pub fn counts(&self) -> [u64; 2] {
        [self.hits, self.misses]
    }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::{self, Kind, Sequence};
    use super::*;

    #[test]
    fn verdicts_are_those_of_the_classifier() {
        let rules = synthetic::rules(Kind::Firewall, false, 500, 1);
        let classifier = Classifier::<u32>::new(&rules).unwrap();
        let flows = synthetic::headers::<u32>(&rules, 30_000, 2);
        let mut verdicts = Verdicts::default();
        let mut numbers = Sequence::new(3);
        // Repeated flows, then flows that never repeat, then repeated ones.
        for round in 0..12_000_u64 {
            let headers: [Header<u32>; 32] = std::array::from_fn(|_| {
                let limit = if (2000..4000).contains(&round) {
                    30_000
                } else {
                    200
                };
                let header = flows[numbers.below(limit) as usize];
                if limit > 200 {
                    let port = numbers.next_number() as u16;
                    return Header::new(
                        header.src,
                        header.dst,
                        port,
                        header.dst_port(),
                        header.protocol(),
                        0,
                    );
                }
                header
            });
            let (mut expected, mut found) = ([0; 32], [0; 32]);
            classifier.classify(&headers, &mut expected);
            verdicts.classify(&classifier, &headers, &mut found);
            assert_eq!(expected, found);
        }
        let [hits, misses] = verdicts.counts();
        // Nearly all of the repeated ones are found, and few of the others are looked up at all.
        assert!(hits > 100_000, "{hits} hits, {misses} misses");
        assert!(misses < 20_000, "{hits} hits, {misses} misses");
    }

    #[test]
    fn fields_that_differ_are_different_flows() {
        let rules = synthetic::rules(Kind::AccessList, false, 10, 1);
        let classifier = Classifier::<u32>::new(&rules).unwrap();
        let mut verdicts = Verdicts::default();
        let all = [
            Header::new(0, 0, 0, 0, 0, 0),
            Header::new(1, 0, 0, 0, 0, 0),
            Header::new(0, 1, 0, 0, 0, 0),
            Header::new(0, 0, 1, 0, 0, 0),
            Header::new(0, 0, 0, 1, 0, 0),
            Header::new(0, 0, 0, 0, 1, 0),
            Header::new(0, 0, 0, 0, 0, 1),
            Header::new(u32::MAX, u32::MAX, u16::MAX, u16::MAX, u8::MAX, u8::MAX),
        ];
        for _ in 0..2 {
            verdicts.classify(&classifier, &all, &mut [0; 8]);
        }
        assert_eq!(verdicts.counts(), [8, 8]);
    }
}
