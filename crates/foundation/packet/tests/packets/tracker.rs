//! The fragment tracker: each rule, each limit, and all of it against a reference model.

use std::collections::HashMap;

use model::{DropReason, FlowKey, Nanos};
use packet::build::{self, Frame};
use packet::{
    DATAGRAM_LIFETIME, DATAGRAM_LIMIT, Fragment, FragmentTracker, GAP_LIMIT, Offer, PacketInfo, Parsed,
    WAITING_LIMIT, WAITING_LIMIT_PER_DATAGRAM, WAITING_TIME, parse,
};
use proptest::prelude::*;

use crate::golden::{A, A6, B, B6, at};

const KEY: [u64; 2] = [1, 2];

fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// Fragments of a UDP datagram with `len` bytes of payload, 80 bytes each except the last. `host` varies the
/// addresses.
fn datagram(v6: bool, src_port: u16, len: usize, identification: u32) -> Vec<Fragment> {
    let (mut src, dst) = if v6 { (at(A6), at(B6)) } else { (at(A), at(B)) };
    src.set_port(src_port);
    let payload = vec![7; len];
    let frame = Frame::udp(src, dst, &payload).unwrap().to_vec().unwrap();
    let mtu = 80 + if v6 { 48 } else { 20 };
    build::fragment(&frame, mtu, identification)
        .unwrap()
        .iter()
        .map(|frame| match parse(frame) {
            Parsed::Fragment(fragment) => fragment,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn flow_of(offer: Offer<u32>) -> FlowKey {
    match offer {
        Offer::Resolved { info, .. } => info.key,
        other => panic!("{other:?}"),
    }
}

fn refused(offer: &Offer<u32>, reason: DropReason) -> bool {
    matches!(offer, Offer::Refused { reason: found, .. } if *found == reason)
}

#[test]
fn later_fragments_follow_the_first() {
    for v6 in [false, true] {
        let fragments = datagram(v6, 4000, 300, 9);
        let mut tracker = FragmentTracker::new(KEY);
        let first = flow_of(tracker.offer(&fragments[0], 0, ms(0)));
        assert_eq!(first, fragments[0].info.key);
        for fragment in &fragments[1..] {
            let Offer::Resolved { info, .. } = tracker.offer(fragment, 1, ms(1)) else {
                panic!()
            };
            assert_eq!((info.key, info.direction), (first, fragments[0].info.direction));
            assert_eq!(info.l3_len, fragment.info.l3_len);
        }
        assert_eq!((tracker.occupied(), tracker.release()), (0, None));
        assert_eq!(tracker.counters().resolved, 4);
    }
}

#[test]
fn followed_fragments_are_of_a_first_one_and_none_waits() {
    for v6 in [false, true] {
        let of = |identification| datagram(v6, 4000, 300, identification);
        let mut tracker: FragmentTracker<u32> = FragmentTracker::new(KEY);
        let one = of(9);
        assert_eq!(tracker.follow(&one[1], ms(0)), Err(DropReason::FragmentTimeout));
        for fragment in &one {
            assert_eq!(tracker.follow(fragment, ms(0)), Ok(()));
        }
        // It was complete.
        assert_eq!(tracker.follow(&one[1], ms(0)), Err(DropReason::FragmentTimeout));
        // More datagrams than there are places, with nobody who expires any: the oldest make room.
        for identification in 0..DATAGRAM_LIMIT as u32 + 100 {
            assert_eq!(tracker.follow(&of(identification)[0], ms(1)), Ok(()));
        }
        let last = of(DATAGRAM_LIMIT as u32 + 99);
        assert_eq!(tracker.follow(&of(0)[1], ms(1)), Err(DropReason::FragmentTimeout));
        assert_eq!(tracker.follow(&last[1], ms(1)), Ok(()));
        let late = ms(1) + DATAGRAM_LIFETIME;
        assert_eq!(tracker.follow(&last[2], late), Err(DropReason::FragmentTimeout));
        assert_eq!(tracker.occupied(), 0);
    }
}

#[test]
fn early_fragments_wait_and_leave_in_order_of_arrival() {
    let fragments = datagram(false, 4000, 300, 9);
    let mut tracker = FragmentTracker::new(KEY);
    for i in [3, 1, 2] {
        assert_eq!(tracker.offer(&fragments[i], i as u32, ms(0)), Offer::Waiting);
    }
    assert_eq!(
        (tracker.occupied(), tracker.next_deadline()),
        (3, Some(WAITING_TIME))
    );
    assert!(tracker.release().is_none());
    let first = flow_of(tracker.offer(&fragments[0], 0, ms(49)));
    let released: Vec<(u32, FlowKey)> = std::iter::from_fn(|| tracker.release())
        .map(|(frame, info)| (frame, info.key))
        .collect();
    assert_eq!(released, [(3, first), (1, first), (2, first)]);
    assert_eq!((tracker.occupied(), tracker.next_deadline()), (0, None));
    assert_eq!(tracker.expire(ms(1000)), None);
}

#[test]
fn fragments_without_a_first_one_time_out() {
    let one = datagram(false, 4000, 300, 9);
    let two = datagram(false, 4000, 300, 10);
    let mut tracker = FragmentTracker::new(KEY);
    tracker.offer(&one[1], 1, ms(0));
    tracker.offer(&two[1], 2, ms(20));
    tracker.offer(&one[2], 3, ms(40));
    assert_eq!(tracker.expire(ms(49)), None);
    assert_eq!(tracker.expire(ms(50)), Some(1));
    assert_eq!(tracker.expire(ms(50)), None);
    assert_eq!(tracker.next_deadline(), Some(ms(70)));
    assert_eq!(tracker.expire(ms(90)), Some(2));
    assert_eq!(tracker.expire(ms(90)), Some(3));
    assert_eq!(tracker.expire(ms(90)), None);
    assert_eq!((tracker.counters().timed_out, tracker.occupied()), (3, 0));
}

#[test]
fn identifications_are_scoped_to_their_addresses() {
    let v4 = datagram(false, 4000, 300, 9);
    let v6 = datagram(true, 4000, 300, 9);
    let mut back = v4[1];
    back.info.direction = back.info.direction.flipped();
    let mut tagged = v4[1];
    let FlowKey::V4(key) = &mut tagged.info.key else {
        panic!()
    };
    key.vlan = 3;
    let mut other_protocol = v4[1];
    other_protocol.protocol = 6;
    let mut tracker = FragmentTracker::new(KEY);
    flow_of(tracker.offer(&v4[0], 0, ms(0)));
    for fragment in [v6[1], back, tagged, other_protocol] {
        assert_eq!(tracker.offer(&fragment, 1, ms(0)), Offer::Waiting);
    }
}

#[test]
fn overlaps_and_contradictions_are_invalid() {
    let fragments = datagram(false, 4000, 300, 9);
    let mut tracker = FragmentTracker::new(KEY);
    flow_of(tracker.offer(&fragments[0], 0, ms(0)));
    flow_of(tracker.offer(&fragments[1], 0, ms(0)));
    assert!(
        refused(
            &tracker.offer(&fragments[1], 0, ms(0)),
            DropReason::FragmentInvalid
        ),
        "a copy"
    );
    let mut into_first = fragments[1];
    into_first.offset -= 1;
    assert!(refused(
        &tracker.offer(&into_first, 0, ms(0)),
        DropReason::FragmentInvalid
    ));
    flow_of(tracker.offer(&fragments[3], 0, ms(0)));
    let mut beyond_end = fragments[3];
    beyond_end.offset += 20;
    assert!(refused(
        &tracker.offer(&beyond_end, 0, ms(0)),
        DropReason::FragmentInvalid
    ));
    let mut early_end = fragments[2];
    early_end.more = false;
    assert!(refused(
        &tracker.offer(&early_end, 0, ms(0)),
        DropReason::FragmentInvalid
    ));
    let other_ports = datagram(false, 4001, 300, 9);
    assert!(refused(
        &tracker.offer(&other_ports[0], 0, ms(0)),
        DropReason::FragmentInvalid
    ));
    assert_eq!(tracker.counters().invalid, 5);
    // The rejected fragments changed nothing.
    flow_of(tracker.offer(&fragments[2], 0, ms(0)));
    // The datagram is complete, so its identification is free again.
    flow_of(tracker.offer(&other_ports[0], 0, ms(0)));
}

#[test]
fn identifications_are_reused() {
    let fragments = datagram(false, 4000, 300, 9);
    let mut tracker = FragmentTracker::new(KEY);
    flow_of(tracker.offer(&fragments[0], 0, ms(0)));
    flow_of(tracker.offer(&fragments[1], 0, ms(0)));
    // The rest was lost. The flow reuses the identification; past the lifetime another flow does.
    flow_of(tracker.offer(&fragments[0], 0, ms(500)));
    flow_of(tracker.offer(&fragments[1], 0, ms(500)));
    let other = datagram(false, 4001, 300, 9);
    let late = ms(500) + DATAGRAM_LIFETIME;
    assert_eq!(tracker.offer(&other[2], 2, late), Offer::Waiting);
    assert_eq!(flow_of(tracker.offer(&other[0], 0, late)), other[0].info.key);
    assert_eq!(tracker.release().unwrap().1.key, other[0].info.key);
    assert_eq!(tracker.counters().expired_datagrams, 1);
}

#[test]
fn one_datagram_cannot_take_all_slots() {
    let fragments = datagram(false, 4000, 80 * (WAITING_LIMIT_PER_DATAGRAM + 10), 9);
    let mut tracker = FragmentTracker::new(KEY);
    for fragment in &fragments[1..=WAITING_LIMIT_PER_DATAGRAM] {
        assert_eq!(tracker.offer(fragment, 0, ms(0)), Offer::Waiting);
    }
    let over = tracker.offer(&fragments[WAITING_LIMIT_PER_DATAGRAM + 1], 77, ms(0));
    assert_eq!(
        over,
        Offer::Refused {
            frame: 77,
            reason: DropReason::FragmentLimit
        }
    );
    assert_eq!(tracker.counters().over_limit, 1);
}

#[test]
fn gaps_are_limited() {
    let fragments = datagram(false, 4000, 80 * (2 * GAP_LIMIT + 5), 9);
    let mut tracker = FragmentTracker::new(KEY);
    flow_of(tracker.offer(&fragments[0], 0, ms(0)));
    for i in 1..GAP_LIMIT {
        flow_of(tracker.offer(&fragments[2 * i], 0, ms(0)));
    }
    assert!(refused(
        &tracker.offer(&fragments[2 * GAP_LIMIT], 0, ms(0)),
        DropReason::FragmentLimit
    ));
    flow_of(tracker.offer(&fragments[1], 0, ms(0)));
    flow_of(tracker.offer(&fragments[2 * GAP_LIMIT], 0, ms(0)));
}

#[test]
fn waiting_slots_are_limited_and_reused() {
    let mut tracker = FragmentTracker::new(KEY);
    let later = |identification: u32| datagram(true, 4000, 200, identification)[1];
    for i in 0..WAITING_LIMIT as u32 {
        assert_eq!(tracker.offer(&later(i), i, ms(0)), Offer::Waiting);
    }
    assert!(refused(
        &tracker.offer(&later(9999), 0, ms(0)),
        DropReason::FragmentLimit
    ));
    assert_eq!(tracker.occupied(), WAITING_LIMIT);
    for i in 0..WAITING_LIMIT as u32 {
        assert_eq!(tracker.expire(ms(50)), Some(i));
    }
    assert_eq!(tracker.expire(ms(50)), None);
    assert_eq!(tracker.offer(&later(1), 1, ms(50)), Offer::Waiting);
    assert_eq!(tracker.drain(), Some(1));
    assert_eq!(tracker.drain(), None);
}

#[test]
fn a_flood_of_first_fragments_evicts_no_waiting_fragment() {
    let mut tracker = FragmentTracker::new(KEY);
    let waiting = datagram(true, 4000, 200, u32::MAX);
    assert_eq!(tracker.offer(&waiting[1], 5, ms(0)), Offer::Waiting);
    let limit = DATAGRAM_LIMIT as u32;
    let first = datagram(true, 4000, 200, 0)[0];
    let numbered = |identification| Fragment {
        identification,
        ..first
    };
    for i in 0..3 * limit {
        flow_of(tracker.offer(&numbered(i), i, ms(0)));
    }
    assert_eq!(tracker.counters().evicted_datagrams, u64::from(2 * limit + 1));
    let later = datagram(true, 4000, 200, 3 * limit - 1)[1];
    flow_of(tracker.offer(&later, 0, ms(0)));
    assert_eq!(
        tracker.offer(
            &Fragment {
                identification: 2 * limit,
                ..later
            },
            0,
            ms(0)
        ),
        Offer::Waiting,
        "that one is forgotten"
    );
    flow_of(tracker.offer(&waiting[0], 0, ms(0)));
    assert_eq!(tracker.release().map(|(frame, _)| frame), Some(5));
}

#[test]
fn nothing_is_allocated_after_construction() {
    let mut tracker = FragmentTracker::new(KEY);
    let frames: Vec<Vec<Fragment>> = (0..2000).map(|i| datagram(i % 2 == 0, 4000, 300, i)).collect();
    let bytes = Frame::udp(at(A), at(B), &[0; 40]).unwrap().to_vec().unwrap();
    let work = allocation_counter::measure(|| {
        for (i, fragments) in frames.iter().enumerate() {
            assert!(matches!(parse(&bytes), Parsed::Flow(_)));
            let now = ms(i as u64 / 10);
            for place in [2, 1, 0, 3] {
                // Every third datagram has no first fragment.
                if place > 0 || i % 3 > 0 {
                    tracker.offer(&fragments[place], i, now);
                }
                while tracker.release().is_some() {}
            }
            while tracker.expire(now).is_some() {}
        }
    });
    assert_eq!(work.count_total, 0);
    let counters = tracker.counters();
    assert!(
        counters.resolved > 5000 && counters.timed_out > 1000,
        "{counters:?}"
    );
}

/// The reference model: a map and a list, without limits.
#[derive(Default)]
struct Model {
    known: HashMap<u32, Known>,
    waiting: Vec<(u32, u32, Nanos, Fragment)>,
}

#[derive(Default)]
struct Known {
    flow: Option<FlowKey>,
    since: Nanos,
    seen: Vec<(u16, u16)>,
    end: Option<u16>,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Resolved(u32, FlowKey),
    Waiting,
    Invalid,
}

impl Model {
    fn offer(&mut self, fragment: &Fragment, frame: u32, now: Nanos) -> Vec<Outcome> {
        let id = fragment.identification;
        if self
            .known
            .get(&id)
            .is_some_and(|k| k.flow.is_some() && now.since(k.since) >= DATAGRAM_LIFETIME)
        {
            self.known.remove(&id);
        }
        let known = self.known.entry(id).or_default();
        let key = fragment.info.key;
        if fragment.is_first() && known.flow.is_some() {
            if known.flow != Some(key) {
                return vec![Outcome::Invalid];
            }
            known.seen.clear();
            known.end = None;
        }
        let (start, stop) = (fragment.offset, fragment.offset + fragment.len.div_ceil(8));
        let overlaps = known.seen.iter().any(|&(a, b)| a < stop && start < b);
        let last_seen = known.seen.iter().map(|run| run.1).max().unwrap_or(0);
        let after_end = known
            .end
            .is_some_and(|end| stop > end || (!fragment.more && stop != end));
        if overlaps || after_end || (!fragment.more && last_seen > stop) {
            return vec![Outcome::Invalid];
        }
        known.seen.push((start, stop));
        if !fragment.more {
            known.end = Some(stop);
        }
        let mut outcomes = Vec::new();
        if fragment.is_first() {
            known.flow = Some(key);
            known.since = now;
            outcomes.push(Outcome::Resolved(frame, key));
            for (waiter, _, _, _) in self.waiting.extract_if(.., |w| w.1 == id) {
                outcomes.push(Outcome::Resolved(waiter, key));
            }
        } else if let Some(key) = known.flow {
            outcomes.push(Outcome::Resolved(frame, key));
        } else {
            self.waiting.push((frame, id, now, *fragment));
            outcomes.push(Outcome::Waiting);
        }
        let seen: u16 = known.seen.iter().map(|run| run.1 - run.0).sum();
        if known.flow.is_some() && known.end == Some(seen) {
            self.known.remove(&id);
        }
        outcomes
    }

    fn expire(&mut self, now: Nanos) -> Vec<u32> {
        let expired: Vec<_> = self
            .waiting
            .extract_if(.., |w| now.since(w.2) >= WAITING_TIME)
            .map(|w| (w.0, w.1))
            .collect();
        for (_, id) in &expired {
            if !self.waiting.iter().any(|w| w.1 == *id) {
                self.known.remove(id);
            }
        }
        expired.into_iter().map(|w| w.0).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_tracker_matches_the_model(
        steps in prop::collection::vec((0u32..5, 0usize..6, 0u16..2, prop_oneof![9 => Just(0u64), 3 => 0u64..30, 1 => 900u64..1100]), 1..120),
    ) {
        let sent: Vec<Vec<Vec<Fragment>>> = (0..5)
            .map(|id| (0..2).map(|port| datagram(id % 2 == 0, 4000 + port, 400, id)).collect())
            .collect();
        let mut tracker: FragmentTracker<u32> = FragmentTracker::new(KEY);
        let mut model = Model::default();
        let mut now = Nanos::ZERO;
        let mut back = 0;
        for (frame, &(id, place, port, pause)) in steps.iter().enumerate() {
            now = now + ms(pause);
            let mut expired = Vec::new();
            while let Some(frame) = tracker.expire(now) {
                expired.push(frame);
            }
            prop_assert_eq!(&expired, &model.expire(now));
            back += expired.len();
            let fragment = &sent[id as usize][port as usize][place];
            let frame = frame as u32;
            let mut outcomes = vec![match tracker.offer(fragment, frame, now) {
                Offer::Resolved { frame, info: PacketInfo { key, .. } } => Outcome::Resolved(frame, key),
                Offer::Waiting => Outcome::Waiting,
                Offer::Refused { frame: refused, reason } => {
                    prop_assert_eq!((refused, reason), (frame, DropReason::FragmentInvalid));
                    Outcome::Invalid
                }
            }];
            while let Some((frame, info)) = tracker.release() {
                outcomes.push(Outcome::Resolved(frame, info.key));
            }
            back += outcomes.iter().filter(|o| **o != Outcome::Waiting).count();
            prop_assert_eq!(&outcomes, &model.offer(fragment, frame, now));
            prop_assert_eq!(tracker.occupied(), model.waiting.len());
        }
        while tracker.drain().is_some() {
            back += 1;
        }
        prop_assert_eq!((back, tracker.occupied()), (steps.len(), 0));
    }
}
