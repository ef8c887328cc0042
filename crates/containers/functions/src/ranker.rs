//! The function `ranker`: the most frequent keys of a stream of tuples. See docs/functions/ranker.md.

use model::{Nanos, mix};
use serde::Deserialize;

use crate::about::{About, Metric};
use crate::burst::Burst;
use crate::configuration::{Error, from_toml, within};
use crate::function::{Function, Setup, Summary};
use crate::heavy::HeavyHitters;
use crate::requests::{self, BAD_REQUEST};

/// Keys with a count, at most: 70 MB.
const KEYS_LIMIT: usize = 1 << 20;
/// Keys of an answer, at most: they fit a packet of 1500 bytes.
pub const TOP_LIMIT: usize = 60;

/// The first byte of a request. That of an answer has [`ANSWER`] besides.
const COUNT: u8 = 1;
const TOP: u8 = 2;
const COUNT_AND_TOP: u8 = 3;
const ANSWER: u8 = 0x80;
/// Bytes of the header of requests and answers, of a tuple, and of a key in an answer.
const HEADER: usize = 4;
const TUPLE: usize = 12;
const ROW: usize = 24;

const METRICS: &[Metric] = &[
    Metric::counter("other", "Packets that are no requests, which passed on"),
    Metric::counter("tuples", "Tuples that were counted"),
    Metric::counter("queries", "Requests that were answered with the top keys"),
];

/// Counts keys, and answers with the most frequent ones.
///
/// ```toml
/// port = 9102         # UDP port of requests
/// keys_limit = 1024   # keys with a count at once
/// top = 10            # keys of an answer to a request that does not say how many, at most 60
/// ```
#[derive(Debug)]
pub struct Ranker {
    state: State,
    other: u64,
    tuples: u64,
    queries: u64,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    keys: HeavyHitters<u64>,
    /// Where the keys of an answer are sorted.
    sorted: Vec<Ranked>,
}

/// The configuration of [`Ranker`], without counts.
#[derive(Debug)]
pub struct Configuration(Box<State>);

/// A key with its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// Which one.
    pub key: u64,
    /// Its count, at most.
    pub count: u64,
    /// By how much that may be too much: 0 as long as there are not more keys than `keys_limit`.
    pub error: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    port: u16,
    keys_limit: usize,
    top: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            port: 9102,
            keys_limit: 1024,
            top: 10,
        }
    }
}

impl State {
    /// The most frequent keys, the most frequent first; of two that are equally frequent, the smaller one first.
    fn top(&mut self, count: usize) -> &[Ranked] {
        let rank = |of: &Ranked| (std::cmp::Reverse(of.count), of.key);
        let sorted = &mut self.sorted;
        sorted.clear();
        sorted.extend(self.keys.all().map(|of| Ranked {
            key: of.key,
            count: of.count,
            error: of.error,
        }));
        if count > 0 && count < sorted.len() {
            sorted.select_nth_unstable_by_key(count - 1, rank);
        }
        sorted.truncate(count);
        sorted.sort_unstable_by_key(rank);
        sorted
    }
}

impl Ranker {
    /// The most frequent keys, at most `count`, the most frequent first.
    pub fn top(&mut self, count: usize) -> &[Ranked] {
        self.state.top(count)
    }
}

impl Function for Ranker {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "ranker",
            help: "Counts the keys of tuples in UDP requests, and answers with the most frequent ones",
            reasons: &requests::REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, setup: &Setup) -> Result<Configuration, Error> {
        let settings: Settings = from_toml(text)?;
        within("port", settings.port.into(), 1, 65_535, "")?;
        within("keys_limit", settings.keys_limit, 1, KEYS_LIMIT, "keys")?;
        within("top", settings.top, 1, TOP_LIMIT, "keys")?;
        Ok(Configuration(Box::new(State {
            keys: HeavyHitters::new(settings.keys_limit, mix(setup.seed)),
            sorted: Vec::with_capacity(settings.keys_limit),
            settings,
        })))
    }

    fn new(configuration: Configuration, _setup: &Setup) -> Ranker {
        Ranker {
            state: *configuration.0,
            other: 0,
            tuples: 0,
            queries: 0,
        }
    }

    /// Counts stay if `keys_limit` does.
    fn reload(&mut self, mut configuration: Configuration) -> Configuration {
        let (new, old) = (&mut *configuration.0, &mut self.state);
        if new.settings.keys_limit == old.settings.keys_limit {
            std::mem::swap(&mut new.settings, &mut old.settings);
        } else {
            std::mem::swap(new, old);
        }
        configuration
    }

    fn process(&mut self, burst: &mut Burst, _now: Nanos) {
        let Ranker {
            state,
            other,
            tuples,
            queries,
        } = self;
        *other += requests::serve(burst, state.settings.port, |packet, mut request| {
            let payload = request.payload(packet.frame());
            let (&[kind, wanted, high, low], body) =
                payload.split_first_chunk::<HEADER>().ok_or(BAD_REQUEST)?;
            let count = usize::from(u16::from_be_bytes([high, low]));
            if !(COUNT..=COUNT_AND_TOP).contains(&kind) || (kind == TOP) != (count == 0) {
                return Err(BAD_REQUEST);
            }
            let given = body.get(..count * TUPLE).ok_or(BAD_REQUEST)?;
            for tuple in given.as_chunks::<TUPLE>().0 {
                let &[a, b, c, d, e, f, g, h, ref amount @ ..] = tuple;
                let key = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
                let amount = u32::from_be_bytes(*amount);
                // The table of keys has a secret of its own.
                state.keys.add(key, key, amount.into());
            }
            *tuples += count as u64;
            if kind == COUNT {
                packet.consume();
                return Ok(());
            }
            let wanted = match wanted {
                0 => state.settings.top,
                wanted => usize::from(wanted).min(TOP_LIMIT),
            };
            // An answer is no longer than its request, so that a forged source address gains nothing.
            let wanted = wanted.min(body.len() / ROW);
            let mut answer = [0; HEADER + TOP_LIMIT * ROW];
            let top = state.top(wanted);
            answer[..HEADER].copy_from_slice(&[kind | ANSWER, top.len() as u8, 0, 0]);
            for (row, of) in answer[HEADER..].chunks_exact_mut(ROW).zip(top) {
                let words = [of.key, of.count, of.error];
                for (place, word) in row.chunks_exact_mut(8).zip(words) {
                    place.copy_from_slice(&word.to_be_bytes());
                }
            }
            let len = HEADER + top.len() * ROW;
            *queries += 1;
            request.answer(packet, &answer[..len])
        });
    }

    fn metrics(&self, values: &mut [u64]) {
        let all = [self.other, self.tuples, self.queries];
        for (value, of) in values.iter_mut().zip(all) {
            *value = of;
        }
    }

    /// `flows` are keys.
    fn summary(&self) -> Summary {
        Summary {
            entries: 0,
            flows: self.state.keys.len() as u64,
            flows_limit: self.state.settings.keys_limit as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::burst::Verdict;
    use crate::requests::tests::ask;

    const SETUP: Setup = Setup {
        instance: 1,
        ports: 1,
        seed: 3,
        external: None,
    };

    fn ranker(text: &str) -> Ranker {
        Ranker::new(Ranker::compile(text, &SETUP).unwrap(), &SETUP)
    }

    /// A request with room for 60 keys.
    fn request(kind: u8, wanted: u8, tuples: &[(u64, u32)]) -> Vec<u8> {
        let mut bytes = vec![kind, wanted];
        bytes.extend((tuples.len() as u16).to_be_bytes());
        for (key, count) in tuples {
            bytes.extend(key.to_be_bytes());
            bytes.extend(count.to_be_bytes());
        }
        bytes.resize(HEADER + TOP_LIMIT * ROW, 0);
        bytes
    }

    fn rows(answer: &[u8]) -> Vec<Ranked> {
        let words = |row: &[u8]| -> Vec<u64> {
            let words = row.chunks(8).map(|word| word.try_into().unwrap());
            words.map(u64::from_be_bytes).collect()
        };
        let rows = answer[HEADER..].chunks(ROW).map(words);
        rows.map(|row| Ranked {
            key: row[0],
            count: row[1],
            error: row[2],
        })
        .collect()
    }

    proptest! {
        /// With a place for each key, the answer is what sorting all exact counts gives.
        #[test]
        fn the_top_keys_are_those_of_a_sorted_table(
            requests in prop::collection::vec(prop::collection::vec((0..50_u64, 0..u32::MAX), 1..80), 1..20), wanted in 1..80_u8,
        ) {
            let mut ranker = ranker("keys_limit = 50");
            let mut exact: HashMap<u64, u64> = HashMap::new();
            for tuples in requests {
                for (key, count) in &tuples {
                    *exact.entry(*key).or_default() += u64::from(*count);
                }
                let (verdict, answer) = ask(&mut ranker, 9102, &request(COUNT_AND_TOP, wanted, &tuples));
                prop_assert_eq!(verdict, Verdict::Answer);
                let mut all: Vec<Ranked> = exact.iter().map(|(key, count)| Ranked { key: *key, count: *count, error: 0 }).collect();
                all.sort_by_key(|of| (std::cmp::Reverse(of.count), of.key));
                all.truncate(usize::from(wanted).min(TOP_LIMIT));
                prop_assert_eq!(&answer[..4], &[COUNT_AND_TOP | ANSWER, all.len() as u8, 0, 0]);
                prop_assert_eq!(rows(&answer), all);
            }
            prop_assert_eq!(ranker.summary().flows, exact.len() as u64);
        }

        #[test]
        fn foreign_requests_are_refused_or_answered(payload in prop::collection::vec(0..5_u8, 0..100)) {
            let mut ranker = ranker("");
            match ask(&mut ranker, 9102, &payload).0 {
                Verdict::Answer | Verdict::Consume => prop_assert!(payload.len() >= HEADER),
                verdict => prop_assert_eq!(verdict, Verdict::Drop(BAD_REQUEST)),
            }
        }
    }

    #[test]
    fn counting_alone_is_not_answered_and_a_query_counts_nothing() {
        let mut ranker = ranker("top = 2");
        let tuples = [(1, 5), (2, 7), (3, 6), (1, 1)];
        assert_eq!(
            ask(&mut ranker, 9102, &request(COUNT, 0, &tuples)).0,
            Verdict::Consume
        );
        let keys = |answer: &[u8]| {
            rows(answer)
                .iter()
                .map(|of| (of.key, of.count))
                .collect::<Vec<_>>()
        };
        let (_, answer) = ask(&mut ranker, 9102, &request(TOP, 0, &[]));
        assert_eq!(keys(&answer), [(2, 7), (1, 6)]);
        // The answer is as long as the request at most.
        let (_, answer) = ask(&mut ranker, 9102, &request(TOP, 9, &[])[..HEADER + ROW + 5]);
        assert_eq!(keys(&answer), [(2, 7)]);
        assert_eq!(ranker.top(9).len(), 3);
        let mut values = [0; METRICS.len()];
        ranker.metrics(&mut values);
        assert_eq!(values, [0, 4, 2]);
        // Other packets pass.
        let mut burst = Burst::new();
        burst.begin(0, 1);
        assert!(burst.push(&crate::requests::tests::frame(9, b"none", false)));
        ranker.process(&mut burst, Nanos::ZERO);
        assert_eq!(burst.packet(0).unwrap().verdict(), Verdict::Forward(1));
    }

    #[test]
    fn a_reload_keeps_counts_of_as_many_keys() {
        let mut ranker = ranker("keys_limit = 8");
        ask(&mut ranker, 9102, &request(COUNT, 0, &[(1, 5)]));
        drop(ranker.reload(Ranker::compile("keys_limit = 8\nport = 9", &SETUP).unwrap()));
        assert_eq!(ask(&mut ranker, 9, &request(TOP, 0, &[])).1.len(), HEADER + ROW);
        drop(ranker.reload(Ranker::compile("", &SETUP).unwrap()));
        assert!(ranker.top(1).is_empty());
        for text in ["keys_limit = 0", "top = 61", "port = 0", "ports = 1"] {
            assert!(Ranker::compile(text, &SETUP).is_err(), "{text}");
        }
    }
}
