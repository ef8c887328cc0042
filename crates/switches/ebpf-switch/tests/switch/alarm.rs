//! What wakes the control plane up.

use std::time::{Duration, Instant};

use model::Slot;
use switch::Switch as _;

use crate::bed::{Bed, available};
use crate::frames::udp;

/// Longer than a wake-up takes on a busy machine.
const LONG: Duration = Duration::from_secs(10);

fn packet(port: u16) -> Vec<u8> {
    udp(&format!("198.51.100.7:{port}"), "10.0.0.100:80", b"x")
}

#[test]
fn the_first_packet_wakes_the_thread_that_started_the_switch() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    bed.turn();
    let alarm = bed.switch.wake_up().unwrap();
    let sleep = |limit: Duration| {
        let began = Instant::now();
        // It may wake without a reason.
        while began.elapsed() < limit && !alarm.take_rise() {
            std::thread::park_timeout(limit.saturating_sub(began.elapsed()));
        }
        began.elapsed()
    };
    let wire = crate::namespaces::Tap::open(&bed.world.net, "net0");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            wire.send(&packet(4000));
        });
        alarm.set();
        let began = Instant::now();
        std::thread::park_timeout(LONG);
        assert!(began.elapsed() < LONG / 2, "it slept on");
        alarm.clear();
        assert!(!alarm.take_rise(), "a packet after a pause is no rise");
    });
    // As many as usual wake nobody; many more do. What came before the counters were read does not count.
    bed.turn();
    alarm.take_rise();
    (5000..5010).for_each(|port| bed.world.wire.send(&packet(port)));
    assert!(sleep(Duration::from_millis(200)) >= Duration::from_millis(200));
    bed.turn();
    // More flows than half of those for which picks are prepared, and more packets than usual.
    (6000..7000).for_each(|port| bed.world.wire.send(&packet(port)));
    assert!(sleep(LONG) < LONG / 2, "a rise was not told");
    bed.switch.stop();
}

/// A CPU that may have many packets more before it tells so tells that half of the prepared picks are used.
#[test]
fn used_picks_wake_it_up() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, _| {});
    // These packets are of one flow, and make many packets usual.
    for _ in 0..20 {
        (0..1000).for_each(|_| bed.world.wire.send(&packet(4000)));
        bed.turn();
    }
    let alarm = bed.switch.wake_up().unwrap();
    alarm.take_rise();
    (5000..5060).for_each(|port| bed.world.wire.send(&packet(port)));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!alarm.take_rise(), "fewer than half of 128 are used");
    (5060..5070).for_each(|port| bed.world.wire.send(&packet(port)));
    let began = Instant::now();
    while !alarm.take_rise() {
        assert!(began.elapsed() < LONG, "half of 128 are used");
        std::thread::sleep(Duration::from_millis(1));
    }
    bed.turn();
    assert_eq!(bed.reading.services[0].unprepared, 0);
    assert!(bed.reading.slots[Slot(0).index()].new_flows > 30);
    bed.switch.stop();
}
