//! Golden frames with bytes changed, cut and inserted: no panic, no read past the end, and every flow that
//! etherparse finds is found.

use std::collections::BTreeMap;

use packet::{FragmentTracker, Offer, Parsed, parse};

use crate::golden;
use crate::oracle::{self, Kind};

/// Frames per run: seconds, not minutes, even without optimization.
const MUTATIONS: u64 = 200_000;

/// A deterministic random source (Steele, Lea and Flood's SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn mutate(random: &mut Random, frame: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        // The headers lie in the first hundred bytes.
        let at = random
            .below(frame.len().clamp(1, 120))
            .min(frame.len().saturating_sub(1));
        match random.below(8) {
            0 => frame.truncate(at),
            1 => frame.insert(at.min(frame.len()), random.next() as u8),
            2 => frame.extend((0..random.below(64)).map(|_| 0)),
            3 if at + 1 < frame.len() => {
                let words = [
                    0u16,
                    1,
                    7,
                    8,
                    20,
                    0xffff,
                    0x0800,
                    0x86dd,
                    0x8100,
                    frame.len() as u16,
                ];
                frame[at..at + 2].copy_from_slice(&words[random.below(words.len())].to_be_bytes());
            }
            4 if at < frame.len() => {
                let bytes = [
                    0, 1, 4, 6, 17, 41, 43, 44, 51, 58, 59, 60, 132, 0x45, 0x46, 0x60, 0xff,
                ];
                frame[at] = bytes[random.below(bytes.len())];
            }
            _ if at < frame.len() => frame[at] ^= 1 << random.below(8),
            _ => {}
        }
    }
    // Otherwise nearly all IPv4 mutations fail at the checksum.
    if random.below(4) > 0
        && frame.get(12..14) == Some(&[8, 0])
        && let Some(end) = frame.get(14).map(|b| 14 + usize::from(b & 15) * 4)
        && (34..=frame.len()).contains(&end)
    {
        frame[24..26].fill(0);
        let sum = packet::checksum::internet(&frame[14..end]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
}

#[test]
fn mutated_frames_parse_like_etherparse() {
    let golden = golden::frames();
    let mut random = Random(2);
    let mut kinds: BTreeMap<Kind, u64> = BTreeMap::new();
    let mut tracker = FragmentTracker::new([random.next(), random.next()]);
    for i in 0..MUTATIONS {
        let mut frame = golden[random.below(golden.len())].1.clone();
        mutate(&mut random, &mut frame);
        let kind = oracle::compare(&frame).unwrap_or_else(|why| panic!("mutation {i}: {why}"));
        *kinds.entry(kind).or_default() += 1;
        let now = model::Nanos::from_micros(20 * i);
        match parse(&frame) {
            Parsed::Flow(info) => {
                assert!(usize::from(info.l4_offset) <= frame.len());
                assert!(usize::from(info.l3_offset) + info.l3_len as usize <= frame.len());
            }
            Parsed::Fragment(fragment) => {
                let end = usize::from(fragment.info.l3_offset) + fragment.info.l3_len as usize;
                assert!(end <= frame.len());
                assert!(fragment.is_first() || usize::from(fragment.info.l4_offset + fragment.len) == end);
                if let Offer::Resolved { .. } = tracker.offer(&fragment, i, now) {
                    while tracker.release().is_some() {}
                }
            }
            Parsed::Other { .. } | Parsed::Invalid(_) => {}
        }
        while tracker.expire(now).is_some() {}
    }
    println!("{kinds:?} {:?}", tracker.counters());
    for kind in [
        Kind::Flow,
        Kind::IcmpError,
        Kind::FirstFragment,
        Kind::LaterFragment,
        Kind::Other,
        Kind::Invalid,
        Kind::BadChecksum,
    ] {
        assert!(
            kinds.get(&kind).is_some_and(|&count| count > 1000),
            "{kind:?} of {kinds:?}"
        );
    }
}
