//! What wakes the control plane up.

use std::time::{Duration, Instant};

use model::{InstanceState, Slot};
use scheduling::Scheduler;
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
    // What woke this thread up before, while instances were started, is over.
    std::thread::park_timeout(Duration::ZERO);
    alarm.take_rise();
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
    // On a busy machine, it is told late of what came before.
    while sleep(Duration::from_millis(50)) < Duration::from_millis(50) {
        bed.turn();
    }
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
    // These packets are of one flow, and make many packets usual. All are counted before the next ones come: what a busy
    // machine takes late would be a rise.
    for round in 1..=20 {
        (0..500).for_each(|_| bed.world.wire.send(&packet(4000)));
        bed.until("they are counted", |bed| bed.reading.offered() >= 500 * round);
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

/// Picks that are prepared know of each other: a burst between two turns of the control loop is spread as if each flow
/// had been picked when it came, also right after an instance was activated or drains.
#[test]
fn prepared_picks_do_not_overshoot() {
    if !available() {
        return;
    }
    let mut bed = Bed::with_two(|_, service| {
        service.scheduler = Scheduler::from_name("least-connections").unwrap();
    });
    let mut port = 4000;
    // All in one moment, without a turn.
    let mut burst = |bed: &mut Bed, count: u16| {
        let before = live(bed).iter().sum::<u64>();
        for _ in 0..count {
            bed.world.wire.send(&packet(port));
            port += 1;
        }
        let mut now = [0; 3];
        bed.until("all are pinned", |bed| {
            now = live(bed);
            now.iter().sum::<u64>() == before + u64::from(count)
        });
        now
    };
    assert_eq!(burst(&mut bed, 60), [30, 30, 0]);
    bed.world.start_instance(Slot(2), &[]);
    bed.activate(Slot(2));
    // It gets what it lacks, and not one more than the others.
    assert_eq!(burst(&mut bed, 60), [40, 40, 40]);
    bed.set_state(Slot(0), Some(InstanceState::Draining));
    assert_eq!(burst(&mut bed, 60), [40, 70, 70]);
    assert_eq!(bed.reading.services[0].unprepared, 0);
    bed.switch.stop();
}

/// Flows by slot.
fn live(bed: &Bed) -> [u64; 3] {
    [0, 1, 2].map(|slot| bed.reading.slots[slot].live_flows)
}
