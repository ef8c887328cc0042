//! Flows that get rules of their own, and lose them again, all the time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use model::{FlowSetup, Nanos};
use real_parts::is_full_length;

use crate::ovs::{Line, WAN};
use crate::tracked::Outcome;
use crate::world::World;

/// Flows in all, and those that send at a time.
const FLOWS: u32 = 1_000;
const SENDING: usize = 48;
/// Packets that a flow sends before it pauses: the first ones meet the rule of its bucket, the others its own.
const TRAIN: u32 = 4;
/// A flow loses its rule after so long without a packet: much less than its pauses.
const IDLE: Nanos = Nanos::from_millis(150);
/// Packets on their way at a time. A dummy port of Open vSwitch holds a hundred, and loses what would be more.
const UNDER_WAY: u64 = 80;
/// Connections to the port by which packets come, each flow by one of them. In a round of its main thread Open vSwitch
/// reads the length of a frame or its bytes from each, and forwards one packet of the port.
const LINES: usize = 4;

#[test]
fn packets_keep_their_order_while_flows_get_and_lose_rules() {
    let Some(mut world) = World::start_with(FlowSetup::Proactive, 500, IDLE) else {
        return;
    };
    let mut lines: Vec<Line> = (0..LINES).map(|_| world.ovs.line(WAN)).collect();
    let moved = world.steering.figures().moved_buckets;
    let span = Duration::from_secs(if is_full_length() { 60 } else { 5 });
    let mut pausing: VecDeque<u32> = (0..FLOWS).collect();
    let mut sending: VecDeque<(u32, u32)> = VecDeque::new();
    let (began, mut sent) = (Instant::now(), 0_u64);
    while began.elapsed() < span {
        while sending.len() < SENDING {
            sending.extend(pausing.pop_front().map(|flow| (flow, TRAIN)));
        }
        let (flow, left) = sending.pop_front().unwrap();
        let frame = world.packets.next(flow, false);
        lines[flow as usize % LINES].send(&frame);
        sent += 1;
        match left {
            1 => pausing.push_back(flow),
            _ => sending.push_back((flow, left - 1)),
        }
        world.until("few packets are under way", |world| {
            world.packets.missing() < UNDER_WAY
        });
    }
    let seconds = began.elapsed().as_secs_f64();
    let outcome = world.outcome();
    world.until("all flows have lost their rules", |world| {
        world.steering.figures().rules == 0 && world.steering.is_settled()
    });
    let figures = world.steering.figures();
    let by_rules = sent.saturating_sub(world.copies);
    println!(
        "{sent} packets in {seconds:.1} s, {by_rules} by rules of their own; {} promotions, {} demotions: {outcome:?}",
        figures.promotions, figures.demotions
    );
    assert_eq!(outcome, Outcome::default(), "{figures:?}");
    assert_eq!(
        (
            figures.mis_steered,
            figures.refused,
            figures.errors,
            figures.moved_buckets
        ),
        (0, 0, 0, moved),
        "{figures:?}"
    );
    assert_eq!(figures.promotions, figures.demotions, "{figures:?}");
    assert!(
        by_rules > sent / 10 && world.copies > sent / 10,
        "{by_rules} of {sent}"
    );
    let changes = (figures.promotions + figures.demotions) as f64;
    // Beside other tests it takes its time.
    let rate = if is_full_length() { 1_000.0 } else { 100.0 };
    assert!(changes > rate * seconds, "{changes} changes in {seconds:.1} s");
}
