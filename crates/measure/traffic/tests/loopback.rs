//! The generator against a memif forwarder in this process that behaves correctly or injects known faults:
//! each fault must be found, exactly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use memif::{Listener, ServerConfig};
use traffic::{
    Capture, Control, Generator, Interval, LengthSource, MemifPort, NamedSize, Phase, Profile, Protocol,
    Rate, Report, Size, Span, Timing, Verify,
};

/// What the forwarder does with packet number `n` (from 0): frames to return, in order.
type Behave = Box<dyn FnMut(u64, &[u8]) -> Vec<Vec<u8>> + Send>;

struct Forwarder {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    seen: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    fn start(mut behave: Behave) -> Forwarder {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("uplink.sock");
        let mut listener = Listener::bind(&socket, ServerConfig::new("forwarder")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(AtomicU64::new(0));
        let (stopped, count) = (stop.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            let mut waiting = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let Some(mut link) = listener.accept(Duration::from_millis(10)).unwrap() else {
                    continue;
                };
                while !stopped.load(Ordering::Relaxed) {
                    if !matches!(link.control.poll(), Ok(memif::ControlEvent::None)) {
                        break;
                    }
                    let pair = &mut link.queues[0];
                    while let Some(len) = pair.rx.pop(&mut buffer) {
                        let n = count.fetch_add(1, Ordering::Relaxed);
                        waiting.append(&mut behave(n, &buffer[..len.unwrap()]));
                    }
                    pair.rx.release();
                    let before = waiting.len();
                    let mut sent = 0;
                    while sent < before && pair.tx.push(&waiting[sent]).is_ok() {
                        sent += 1;
                    }
                    waiting.drain(..sent);
                    pair.tx.flush();
                    if waiting.is_empty() {
                        memif::wait(&mut [&mut pair.rx], &[], Duration::from_millis(5)).unwrap();
                    }
                }
            }
        });
        Forwarder {
            _dir: dir,
            socket,
            stop,
            seen,
            thread: Some(thread),
        }
    }

    fn port(&self) -> MemifPort {
        MemifPort::connect(&self.socket, 0, Duration::from_secs(5)).unwrap()
    }

    fn run(&self, profile: Profile) -> Report {
        let report = Generator::new(profile)
            .unwrap()
            .run(&mut [self.port()], &Control::new(), |_| {})
            .unwrap();
        assert_eq!(
            report.counts.offered_packets,
            report.counts.returned_packets + report.lost
        );
        report
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

fn phase(pps: f64, ms: u64) -> Phase {
    Phase {
        duration: Span::from_millis(ms),
        flows: 8,
        rate: Some(Rate(pps)),
        ..Phase::default()
    }
}

fn profile(phase: Phase) -> Profile {
    // A test's machine may be busy: packets may be late, but must not be lost at the uplink.
    Profile {
        phases: vec![phase],
        uplink_wait: Span::from_millis(5000),
        ..Profile::default()
    }
}

#[test]
fn correct_forwarding_is_clean() {
    let forwarder = Forwarder::start(Box::new(|_, frame| vec![frame.to_vec()]));
    let mut lossless = vec![
        phase(20_000.0, 300),
        Phase {
            size: Size::Named(NamedSize::Imix),
            protocol: Protocol::Tcp,
            vlan: vec![7],
            ..phase(5_000.0, 200)
        },
        Phase {
            size: Size::Fixed(9000),
            ..phase(500.0, 200)
        },
        Phase {
            flows: 10_000,
            arrivals: Some(5_000.0),
            lengths: Some(LengthSource::Packets(4)),
            rate: None,
            rate_per_flow: Some(Rate(200.0)),
            ..phase(1.0, 300)
        },
    ];
    lossless.push(Phase {
        src: "fd00::1".parse().unwrap(),
        dst: "fd01::1".parse().unwrap(),
        size: Size::Cycle(vec![84, 512]),
        ..phase(5_000.0, 200)
    });
    for phase in lossless {
        let report = forwarder.run(profile(phase.clone()));
        assert!(report.is_clean(), "{phase:?}\n{}", report.table(true));
        assert!(report.counts.offered_packets >= 90);
        assert!(report.latency_us.p50 > 0.0 && report.latency_us.p50 <= report.latency_us.p999);
        assert_eq!(report.counts.unstamped, report.counts.returned_packets);
    }
}

#[test]
fn intended_rates_are_sent() {
    let forwarder = Forwarder::start(Box::new(|_, _| Vec::new()));
    for (pps, ms) in [(1_000.0, 500), (50_000.0, 300), (500_000.0, 200)] {
        let before = forwarder.seen.load(Ordering::Relaxed);
        let report = forwarder.run(Profile {
            settle: Span::from_millis(50),
            ..profile(phase(pps, ms))
        });
        let intended = pps * ms as f64 / 1000.0;
        let error = (report.counts.offered_packets as f64 - intended).abs() / intended;
        assert!(
            error <= 0.01,
            "{} packets instead of {intended}",
            report.counts.offered_packets
        );
        assert_eq!(report.counts.lost_at_uplink, 0);
        let arrived = forwarder.seen.load(Ordering::Relaxed) - before;
        assert_eq!(
            arrived, report.counts.offered_packets,
            "what was counted as sent has arrived"
        );
        assert_eq!(report.lost, arrived);
    }
}

#[test]
fn every_hundredth_packet_lost_is_found() {
    let forwarder = Forwarder::start(Box::new(|n, frame| {
        if n % 100 == 99 {
            vec![]
        } else {
            vec![frame.to_vec()]
        }
    }));
    let mut last = Interval::default();
    let run = profile(phase(20_000.0, 500));
    let report = Generator::new(Profile {
        settle: Span::from_millis(100),
        ..run
    })
    .unwrap()
    .run(&mut [forwarder.port()], &Control::new(), |interval| {
        last = interval.clone()
    })
    .unwrap();
    let dropped = forwarder.seen.load(Ordering::Relaxed) / 100;
    assert_eq!(report.lost, dropped);
    assert!(
        dropped >= 99 && last.lost_so_far > 0 && last.lost_so_far <= dropped,
        "{last:?}"
    );
    assert_eq!(last.flows.len(), 8);
    assert_eq!(report.flows.iter().map(|f| f.lost).sum::<u64>(), dropped);
    assert_eq!((report.counts.reordered, report.counts.duplicated), (0, 0));
}

#[test]
fn every_duplicate_is_found() {
    let forwarder = Forwarder::start(Box::new(|n, frame| {
        vec![frame.to_vec(); if n % 50 == 0 { 3 } else { 1 }]
    }));
    let report = forwarder.run(profile(phase(20_000.0, 300)));
    // Copies of the last packet may arrive after the run has everything it waits for.
    let expected = 2 * forwarder.seen.load(Ordering::Relaxed).div_ceil(50);
    assert_eq!(report.counts.duplicated, expected);
    assert_eq!((report.lost, report.counts.reordered), (0, 0));
}

#[test]
fn every_reordered_packet_is_found() {
    // Every 20th packet of the one flow arrives after its successor.
    let mut held: Option<Vec<u8>> = None;
    let forwarder = Forwarder::start(Box::new(move |n, frame| match held.take() {
        Some(before) => vec![frame.to_vec(), before],
        None if n % 20 == 10 => {
            held = Some(frame.to_vec());
            vec![]
        }
        None => vec![frame.to_vec()],
    }));
    let report = forwarder.run(profile(Phase {
        flows: 1,
        ..phase(20_000.0, 300)
    }));
    assert_eq!(report.counts.offered_packets, 6000);
    assert_eq!(report.counts.reordered, 300);
    assert_eq!((report.lost, report.counts.duplicated), (0, 0));
}

/// Stamps the instance that `choose` returns for packet number n.
fn stamping(mut choose: impl FnMut(u64) -> u32 + Send + 'static) -> Behave {
    Box::new(move |n, frame| {
        let mut frame = frame.to_vec();
        assert!(stamp::stamp_instance(&mut frame, choose(n)));
        vec![frame]
    })
}

#[test]
fn every_mis_steered_packet_is_found() {
    let forwarder = Forwarder::start(stamping(|n| if n > 100 && n % 25 == 0 { 2 } else { 1 }));
    let report = forwarder.run(profile(phase(20_000.0, 300)));
    let seen = forwarder.seen.load(Ordering::Relaxed);
    assert_eq!(report.counts.mis_steered, (seen - 1) / 25 - 4);
    assert_eq!(
        (
            report.counts.altered,
            report.counts.unstamped,
            report.counts.expected_moves
        ),
        (0, 0, 0)
    );
    assert!(report.flows.iter().all(|flow| flow.instance == 1));
}

/// Like a switch: gives each connection, from its SYN on, the next of three instances. Sends every `stray`th packet to
/// another one.
fn steering(stray: u64) -> Behave {
    let mut instances = HashMap::new();
    let mut connections = 0;
    Box::new(move |n, frame| {
        let packet::Parsed::Flow(info) = packet::parse(frame) else {
            panic!("{frame:?}")
        };
        if info.tcp_flags.syn() && !info.tcp_flags.ack() {
            connections += 1;
            instances.insert(info.key, 1 + connections % 3);
        }
        let its = instances[&info.key];
        let mut frame = frame.to_vec();
        let instance = if n % stray == stray - 1 { 1 + its % 3 } else { its };
        assert!(stamp::stamp_instance(&mut frame, instance));
        vec![frame]
    })
}

/// Connections between the same ends, many of them under way at once.
#[test]
fn a_connection_after_a_refused_or_ended_one_may_have_another_instance() {
    const REPEAT: u32 = 300;
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/captures/refused-connections.pcap"
    );
    let capture = Capture {
        file: file.into(),
        start: Span::default(),
        timing: Timing::Captured,
        speed: 1.0,
        rate: Some(Rate(200_000.0)),
        repeat: REPEAT,
        uplink: 0,
        reply_uplink: None,
    };
    let run = |stray| {
        let forwarder = Forwarder::start(steering(stray));
        let report = forwarder.run(Profile {
            captures: vec![capture.clone()],
            uplink_wait: Span::from_millis(5000),
            ..Profile::default()
        });
        assert_eq!(report.counts.offered_packets, 301 * u64::from(REPEAT));
        assert_eq!(
            (report.lost, report.counts.altered, report.counts.expected_moves),
            (0, 0, 0),
            "{}",
            report.table(true)
        );
        report.counts.mis_steered
    };
    assert_eq!(run(u64::MAX), 0);
    // The first packet of a connection gives it its instance, so a stray one there makes the others mis-steers.
    let strays = 301 * u64::from(REPEAT) / 101;
    assert!(run(101) >= strays * 9 / 10);
}

#[test]
fn declared_moves_are_counted_separately() {
    let failed = Arc::new(AtomicBool::new(false));
    let moved = failed.clone();
    let forwarder = Forwarder::start(stamping(
        move |_| if moved.load(Ordering::Relaxed) { 8 } else { 7 },
    ));
    let control = Control::new();
    let mut declared = false;
    let report = Generator::new(profile(phase(10_000.0, 400)))
        .unwrap()
        .run(&mut [forwarder.port()], &control, |interval| {
            if interval.at_s > 0.15 {
                if !declared {
                    control.expect_moves_from(7);
                    declared = true;
                } else {
                    failed.store(true, Ordering::Relaxed);
                }
            }
        })
        .unwrap();
    assert!(failed.load(Ordering::Relaxed));
    assert_eq!((report.counts.expected_moves, report.counts.mis_steered), (8, 0));
    assert!(report.flows.iter().all(|flow| flow.instance == 8));
}

#[test]
fn a_flow_begins_anew_after_its_idle_timeout() {
    for (idle_timeout, mis_steered) in [(Some(Span::from_millis(40)), 0), (None, 9)] {
        let forwarder = Forwarder::start(stamping(|n| n as u32 + 1));
        let flow = Phase {
            flows: 1,
            ..phase(20.0, 500)
        };
        let report = forwarder.run(Profile {
            idle_timeout,
            ..profile(flow)
        });
        assert_eq!(report.counts.offered_packets, 10);
        assert_eq!(
            (report.counts.mis_steered, report.counts.expected_moves),
            (mis_steered, 0)
        );
    }
}

#[test]
fn every_altered_packet_is_found() {
    let forwarder = Forwarder::start(Box::new(|n, frame| {
        let mut frame = frame.to_vec();
        match n % 40 {
            3 => frame[15] ^= 0x10,
            5 => frame[3] ^= 1,
            7 => frame.extend([0; 4]),
            _ => {}
        }
        vec![frame]
    }));
    let each = |seen: u64, at: u64| (seen + 39 - at) / 40;
    for (verify, classes) in [
        (Verify::Exact, &[3, 5, 7][..]),
        (Verify::Payload, &[3, 7]),
        (Verify::Off, &[]),
    ] {
        let before = forwarder.seen.load(Ordering::Relaxed);
        let report = forwarder.run(Profile {
            verify,
            ..profile(phase(20_000.0, 200))
        });
        let after = forwarder.seen.load(Ordering::Relaxed);
        let expected: u64 = classes
            .iter()
            .map(|class| each(after, *class) - each(before, *class))
            .sum();
        assert_eq!(report.counts.altered, expected, "{verify:?}");
        assert_eq!(report.lost, 0);
    }
}

#[test]
fn swapped_addresses_are_counted_apart_from_altered_bytes() {
    let forwarder = Forwarder::start(Box::new(|n, frame| {
        let mut frame = frame.to_vec();
        // Like an echo server: swaps both Ethernet addresses, both IPv4 addresses and both ports. No checksum
        // changes.
        for (at, len) in [(0, 6), (26, 4), (34, 2)] {
            let (one, other) = frame[at..at + 2 * len].split_at_mut(len);
            one.swap_with_slice(other);
        }
        if n % 10 == 3 {
            frame[50] ^= 1;
        }
        vec![frame]
    }));
    let report = forwarder.run(profile(phase(20_000.0, 200)));
    let seen = forwarder.seen.load(Ordering::Relaxed);
    let broken = (seen + 6) / 10;
    let counts = report.counts;
    assert_eq!(
        (counts.foreign, report.lost),
        (broken, broken),
        "the stamp itself is broken there"
    );
    assert_eq!(
        (counts.altered, counts.addresses_rewritten),
        (seen - broken, seen - broken)
    );
    let table = report.table(false).to_string();
    assert!(
        table.contains("addresses rewritten ") && table.contains("altered                    0"),
        "{table}"
    );
    assert!(!report.is_clean());
}

#[test]
fn a_slow_system_does_not_slow_the_load() {
    let forwarder = Forwarder::start(Box::new(|_, frame| {
        std::thread::sleep(Duration::from_micros(500));
        vec![frame.to_vec()]
    }));
    let run = Profile {
        uplink_wait: Span::from_millis(1),
        settle: Span::from_millis(20),
        ..profile(phase(100_000.0, 200))
    };
    let report = forwarder.run(run);
    assert_eq!(report.counts.offered_packets, 20_000);
    assert!(report.counts.lost_at_uplink > 10_000, "{}", report.table(false));
    assert_eq!(report.generator.uplink_full, report.counts.lost_at_uplink);
}

#[test]
fn a_run_continues_after_the_peer_reconnects() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("uplink.sock");
    let path = socket.clone();
    let thread = std::thread::spawn(move || {
        let mut returned = 0;
        for _ in 0..2 {
            let mut listener = Listener::bind(&path, ServerConfig::new("forwarder")).unwrap();
            let mut link = listener
                .accept(Duration::from_secs(5))
                .unwrap()
                .expect("the generator connects");
            let pair = &mut link.queues[0];
            let target = returned + 300;
            while returned < target {
                let moved = pair.rx.forward_to(&mut pair.tx, 64);
                returned += moved as u64;
                pair.tx.flush();
                memif::wait(&mut [&mut pair.rx], &[], Duration::from_millis(1)).unwrap();
            }
        }
        returned
    });
    while !socket.exists() {
        std::thread::yield_now();
    }
    let mut ports = [MemifPort::connect(&socket, 0, Duration::from_secs(5)).unwrap()];
    let run = Profile {
        settle: Span::from_millis(100),
        uplink_wait: Span::from_millis(1),
        ..profile(phase(1_000.0, 2_000))
    };
    let report = Generator::new(run)
        .unwrap()
        .run(&mut ports, &Control::new(), |_| {})
        .unwrap();
    let returned = thread.join().unwrap();
    assert!(ports[0].reconnects() >= 1);
    assert_eq!(report.counts.offered_packets, 2000);
    // The forwarder itself loses only the packets that it held when it disconnected.
    assert!(report.lost > 0);
    assert_eq!(
        report.counts.lost_in_restarts,
        report.lost,
        "{}",
        report.table(false)
    );
    assert!(
        report.counts.returned_packets > 300 && report.counts.returned_packets <= returned,
        "{}",
        report.table(false)
    );
    assert_eq!(
        (
            report.counts.foreign,
            report.counts.duplicated,
            report.counts.reordered
        ),
        (0, 0, 0)
    );
}

#[test]
fn two_arms_send_on_one_uplink_and_receive_on_the_other() {
    // One loop: port 0 sends to forwarder a, whose frames appear at b, to which port 1 is connected.
    let (to_b, from_a) = std::sync::mpsc::channel::<Vec<u8>>();
    let a = Forwarder::start(Box::new(move |_, frame| {
        to_b.send(frame.to_vec()).unwrap();
        vec![]
    }));
    // Forwarder b runs only when something arrives on its own uplink: a phase of one flow keeps it awake.
    let b = Forwarder::start(Box::new(move |_, frame| {
        let mut out = vec![frame.to_vec()];
        out.extend(from_a.try_iter());
        out
    }));
    let crossing = Phase {
        uplink: 0,
        returns: Some(1),
        ..phase(5_000.0, 200)
    };
    let staying = Phase {
        uplink: 1,
        flows: 1,
        src: "10.9.0.1".parse().unwrap(),
        ..phase(5_000.0, 300)
    };
    let mut run = profile(crossing.clone());
    run.phases.push(staying.clone());
    let report = Generator::new(run)
        .unwrap()
        .run(&mut [a.port(), b.port()], &Control::new(), |_| {})
        .unwrap();
    assert!(report.is_clean(), "{}", report.table(true));

    let mut run = profile(Phase {
        returns: Some(0),
        ..crossing
    });
    run.phases.push(staying);
    let report = Generator::new(run)
        .unwrap()
        .run(&mut [a.port(), b.port()], &Control::new(), |_| {})
        .unwrap();
    assert_eq!(report.counts.wrong_uplink, 1000);

    let needs_two = profile(Phase {
        uplink: 1,
        ..phase(1.0, 1)
    });
    let error = Generator::new(needs_two)
        .unwrap()
        .run(&mut [a.port()], &Control::new(), |_| {})
        .unwrap_err();
    assert!(error.to_string().contains("uplink 1"), "{error}");
}

#[test]
fn captures_return_unchanged_and_every_fault_is_found() {
    let Some(data) = real_parts::data() else { return };
    let file = data.join("opennetvm_64B_download.pcap");
    let run = |rate: Option<f64>, timing: Timing| Profile {
        phases: vec![],
        captures: vec![Capture {
            file: file.clone(),
            start: Span::default(),
            timing,
            speed: 1.0,
            rate: rate.map(Rate),
            repeat: 1,
            uplink: 0,
            reply_uplink: None,
        }],
        ..profile(phase(1.0, 1))
    };
    let good = Forwarder::start(stamping(|_| 3));
    for run in [run(Some(100_000.0), Timing::Captured), run(None, Timing::Fast)] {
        let report = good.run(run);
        assert_eq!(report.counts.offered_packets, 14_328);
        assert!(report.is_clean(), "{}", report.table(false));
        assert!(report.flow_count >= 1500 && report.counts.unstamped == 0);
    }
    let bad = Forwarder::start(Box::new(|n, frame| {
        let mut frame = frame.to_vec();
        match n % 1000 {
            10 => vec![],
            20 => vec![frame.clone(), frame],
            30 => {
                *frame.last_mut().unwrap() ^= 1;
                vec![frame]
            }
            _ => vec![frame],
        }
    }));
    let report = bad.run(Profile {
        settle: Span::from_millis(100),
        ..run(Some(100_000.0), Timing::Captured)
    });
    assert_eq!(
        (report.lost, report.counts.duplicated, report.counts.altered),
        (15, 15, 15)
    );
}
