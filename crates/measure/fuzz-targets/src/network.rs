//! Packets, fragments and captures.

use model::{DropReason, FlowKey, Nanos};
use packet::capture::CaptureReader;
use packet::{FragmentTracker, HeaderBurst, Offer, Parsed, parse};
use signal::{FRAME_BYTES, Gate, Key, Received, Signal, Wish, is_signal};

use crate::pieces;

/// Parses frames as a burst, with the instructions of this processor.
struct Load<'a>(&'a [&'a [u8]]);

impl simd::Kernel for Load<'_> {
    type Output = HeaderBurst;

    #[inline(always)]
    fn run<W: simd::Words>(self) -> HeaderBurst {
        let mut burst = HeaderBurst::default();
        let mut headers = [HeaderBurst::EMPTY; packet::BURST];
        for (at, frame) in self.0.iter().enumerate() {
            headers[at] = burst.put(at, frame);
        }
        for (group, headers) in headers.as_chunks().0.iter().enumerate() {
            burst.load::<W>(group * HeaderBurst::GROUP, headers);
        }
        burst.validate(self.0.len());
        burst
    }
}

/// A frame as the end of a tunnel sees it: what is taken out is within the frame, and gets the same outer headers again.
fn tunnels(frame: &[u8]) {
    use packet::vxlan::{OVERHEAD, Opening, Tunnel, flow_hash, open, turn_back};
    let address = frame.get(30..).and_then(|rest| rest.first_chunk::<4>());
    let address = std::net::Ipv4Addr::from(*address.unwrap_or(&[0; 4]));
    if let Opening::Inner {
        from,
        network,
        at,
        mark,
    } = open(frame, address)
    {
        let inner = frame.get(at.clone()).unwrap();
        let tunnel = Tunnel {
            macs: [[2; 6]; 2],
            ends: [from, address],
            network,
            mark,
        };
        let mut header = [0; OVERHEAD];
        tunnel.put(&mut header, inner.len(), flow_hash(inner)).unwrap();
        let again = [&header, inner].concat();
        let again_at = OVERHEAD..again.len();
        let same = Opening::Inner {
            from,
            network,
            at: again_at,
            mark,
        };
        assert_eq!(open(&again, address), same);
        let mut back = frame.to_vec();
        turn_back(&mut back, &at);
        assert!(
            matches!(open(&back, from), Opening::Inner { from, mark, .. } if from == address && mark.came_back().is_some())
        );
    }
}

/// Frames of a burst: the parsers of the slow path and of bursts agree, and offsets are within the frame.
pub(crate) fn packets(bytes: &[u8]) {
    let frames: Vec<&[u8]> = pieces(bytes).take(packet::BURST).collect();
    let burst = simd::Level::detect().run(Load(&frames));
    for (at, frame) in frames.iter().enumerate() {
        tunnels(frame);
        errors(frame);
        let parsed = parse(frame);
        if let Parsed::Flow(info) | Parsed::Fragment(packet::Fragment { info, .. }) = &parsed {
            assert_eq!(info.frame_len as usize, frame.len());
            assert!(
                usize::from(info.l3_offset) + info.l3_len as usize <= frame.len(),
                "{info:?}"
            );
            assert!(info.l4_offset >= info.l3_offset, "{info:?}");
            for key in [model::AffinityKey::Inner, model::AffinityKey::Spi] {
                content(frame, info, key);
            }
        }
        if let Some(fast) = packet::parse_fast(frame) {
            let Parsed::Flow(info) = parsed else {
                panic!("the slow path has {parsed:?}");
            };
            assert_eq!(info.key, FlowKey::V4(fast.key));
            assert_eq!(info.tcp_flags, fast.tcp_flags);
            assert_eq!(burst.info(at, frame), info);
        }
        if let Some(fast) = packet::parse_fast_v6(frame) {
            let Parsed::Flow(info) = parsed else {
                panic!("the slow path has {parsed:?}");
            };
            assert_eq!(info.key, FlowKey::V6(fast.key()));
        }
    }
}

/// The error about a packet that is too big: no error is about one.
fn errors(frame: &[u8]) {
    let mut error = [0; packet::ICMP_ERROR_LIMIT];
    if let Some(len) = packet::too_big(frame, frame.len() / 2, [2; 6], &mut error) {
        let mut next = [0; packet::ICMP_ERROR_LIMIT];
        assert_eq!(packet::too_big(&error[..len], 100, [2; 6], &mut next), None);
    }
}

/// What a packet carries: it is within the packet, and its key is none of a packet's own.
fn content(frame: &[u8], info: &packet::PacketInfo, key: model::AffinityKey) {
    let (Parsed::Flow(of) | Parsed::Fragment(packet::Fragment { info: of, .. })) =
        packet::parse_content(frame, info, key)
    else {
        panic!("there is always a flow");
    };
    assert_ne!(of.key.tuple(of.direction).vlan & model::key_bits::OF_CONTENT, 0);
    assert_eq!(of.frame_len, info.frame_len);
    let end = |of: &packet::PacketInfo| usize::from(of.l3_offset) + of.l3_len as usize;
    assert!(
        of.l3_offset >= info.l3_offset && end(&of) <= end(info),
        "{of:?} in {info:?}"
    );
}

/// Fragments, with time between them: none is lost, and held ones stay within the limits.
pub(crate) fn fragments(bytes: &[u8]) {
    let mut tracker = FragmentTracker::new([1, 2]);
    let mut now = Nanos::ZERO;
    let (mut offered, mut returned) = (0_u64, 0_u64);
    for piece in pieces(bytes) {
        let Some((time, frame)) = piece.split_first() else {
            continue;
        };
        // Up to 4 s in steps of a power of two, so that fragments and datagrams expire.
        now = now + Nanos(1 << (time % 33));
        if let Parsed::Fragment(fragment) = parse(frame) {
            offered += 1;
            match tracker.offer(&fragment, offered, now) {
                Offer::Waiting => {}
                Offer::Refused { reason, .. } => {
                    assert!(matches!(
                        reason,
                        DropReason::FragmentLimit | DropReason::FragmentInvalid
                    ));
                    returned += 1;
                }
                Offer::Resolved { info, .. } => {
                    assert_eq!(info.frame_len as usize, frame.len());
                    returned += 1;
                }
            }
            while tracker.release().is_some() {
                returned += 1;
            }
        }
        while tracker.expire(now).is_some() {
            returned += 1;
        }
        assert!(tracker.next_deadline().is_none_or(|deadline| deadline > now));
    }
    while tracker.drain().is_some() {
        returned += 1;
    }
    assert_eq!(offered, returned);
}

/// A capture ends, its frames are within the file, and the reader stops at the first error.
pub(crate) fn captures(bytes: &[u8]) {
    let Ok(reader) = CaptureReader::new(bytes) else {
        return;
    };
    let (mut sum, mut failed) = (0, false);
    for captured in reader {
        assert!(!failed, "it goes on after an error");
        match captured {
            Ok(captured) => sum += captured.frame.len() + 16,
            Err(_) => failed = true,
        }
        assert!(sum <= bytes.len());
    }
}

/// What an instance answers to a check: by the first byte a line of HTTP, a line of an agent, or a datagram of DNS. What
/// is said of it in messages is short and has no control characters.
pub(crate) fn answers(bytes: &[u8]) {
    let Some((kind, answer)) = bytes.split_first() else {
        return;
    };
    let verdict = match kind % 3 {
        0 => health::answers::status(answer),
        1 => health::answers::agent(answer).map(|report| {
            assert!(report.percent.is_none_or(|percent| percent <= 100));
            assert_ne!(report, health::AgentReport::default());
        }),
        _ => {
            let question = health::answers::question(7, "example.com").unwrap();
            match health::answers::resolved(answer, &question) {
                None => return,
                Some(verdict) => {
                    // It is an answer, and to this question.
                    assert!(answer.len() >= 12 && answer[..2] == question[..2] && answer[2] & 0x80 != 0);
                    verdict
                }
            }
        }
    };
    if let Err(why) = verdict {
        assert!(
            !why.is_empty() && why.len() < 1000 && !why.contains(char::is_control),
            "{why:?}"
        );
    }
}

/// Frames through the port of an instance, some of them genuine, some of those changed: a gate accepts each signal of
/// its own instance once, and nothing else changes it.
pub(crate) fn signals(bytes: &[u8]) {
    const INSTANCE: u32 = 7;
    let key = Key::of_random([3; 24]);
    let mut last = 1_000;
    let mut gate = Gate::new(INSTANCE, key.clone(), last);
    let of = |wish, counter, instance| {
        Signal {
            wish,
            instance,
            counter,
        }
        .frame(&key, [2; 6], [4; 6])
    };
    for piece in pieces(bytes) {
        let Some((how, rest)) = piece.split_first() else {
            continue;
        };
        let mut frame = rest.to_vec();
        if how & 1 == 1
            && let Some((counter, rest)) = rest.split_first_chunk::<8>()
        {
            let wish = if how & 2 == 0 { Wish::Wake } else { Wish::Sleep };
            let instance = if how & 4 == 0 {
                INSTANCE
            } else {
                u32::from(how & 8)
            };
            frame = of(wish, u64::from_be_bytes(*counter), instance).to_vec();
            if let [at, flip, ..] = rest {
                frame[usize::from(*at) % FRAME_BYTES] ^= flip;
            }
        }
        match gate.accept(&Received::new(&frame)) {
            Ok(signal) => {
                assert!(is_signal(&frame) && signal.instance == INSTANCE && signal.counter > last);
                let again = of(signal.wish, signal.counter, INSTANCE);
                assert_eq!(again[12..], frame[12..], "a tag is good for one frame");
                last = signal.counter;
            }
            Err(_) if last < u64::MAX => {
                let next = of(Wish::Wake, last + 1, INSTANCE);
                let accepted = gate.clone().accept(&Received::new(&next));
                assert!(
                    accepted.is_ok(),
                    "a refused frame has changed the gate: {accepted:?}"
                );
            }
            Err(_) => {}
        }
    }
}
