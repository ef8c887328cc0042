//! Many flows: inserted, listed, taken over and forgotten; what a walk over them costs; and a table that would be full
//! many times over while nobody looks after the programs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ebpf_switch::Statistics;
use model::{DropReason, FlowKey, Nanos, Slot, TableFull, Timeouts};
use real_parts::is_full_length;
use switch::{FlowFilter, Switch, SwitchEvent, SwitchRequest};

use crate::bed::{Bed, PATIENCE, available};
use crate::frames::{ACK, RST, SYN, tcp, udp};

const SERVER: &str = "10.0.0.100:80";

/// The client of a number below 2^32.
fn client(number: u32) -> String {
    let [a, b, c, d] = number.to_be_bytes();
    format!("198.{}.{c}.{b}:{}", 18 + a % 2, 1024 + u32::from(d))
}

/// All flows, each with its instance.
fn pins(bed: &mut Bed, count: usize) -> BTreeMap<FlowKey, Slot> {
    bed.ask(SwitchRequest::Flows {
        id: 7,
        filter: FlowFilter::default(),
        limit: count + 1,
    });
    let mut found = None;
    bed.until("the flows are listed", |bed| {
        found = bed.events.drain(..).find_map(|event| match event {
            SwitchEvent::Flows { rows, complete, .. } => Some((rows, complete)),
            _ => None,
        });
        found.is_some()
    });
    let (rows, complete) = found.unwrap();
    assert!(complete, "{} of {count} were listed", rows.len());
    rows.into_iter().map(|row| (row.key, row.pins[0])).collect()
}

fn live(bed: &Bed) -> u64 {
    bed.reading.workers[0].live_flows
}

/// The next run takes over, with these timeouts.
fn take_over(bed: &mut Bed, timeouts: Timeouts) {
    bed.switch.leave();
    bed.world.config.timeouts = timeouts;
    bed.switch = bed.world.start_switch();
}

#[test]
fn a_million_flows_are_listed_taken_over_and_forgotten() {
    /// The longest mean time of a step of the walk: its CPU does nothing else meanwhile.
    const STEP_LIMIT: Duration = Duration::from_millis(1);
    if !available() {
        return;
    }
    let count: u32 = if is_full_length() { 1_000_000 } else { 20_000 };
    let long = Timeouts::all(Nanos::from_secs(3600));
    let mut bed = Bed::with_two(|world, _| {
        world.config.flows = [count.next_power_of_two(), 1024];
        world.config.timeouts = long;
    });
    let statistics = Statistics::start(&bed.world.config.name).unwrap();
    let began = Instant::now();
    bed.until("all flows are pinned", |bed| {
        for number in 0..count {
            bed.world.wire.send(&udp(&client(number), SERVER, b"x"));
        }
        bed.turn();
        live(bed) == u64::from(count)
    });
    let inserted = began.elapsed();
    let before = pins(&mut bed, count as usize);
    assert_eq!(before.len(), count as usize);
    for slot in [Slot(0), Slot(1)] {
        let has = before.values().filter(|of| **of == slot).count() as u64;
        assert!(has > u64::from(count) / 3, "{slot:?} has {has}");
        assert_eq!(bed.reading.slots[slot.index()].live_flows, has);
    }
    // Each step of the walk looks at 1,024 flows of each table at most.
    let steps = |statistics: &Statistics| {
        let costs = statistics.read().unwrap();
        let sweep = costs.into_iter().find(|of| of.program == "inco_sweep").unwrap();
        (sweep.runs, sweep.time)
    };
    let (runs, time) = steps(&statistics);
    let mut walked = (0, Duration::ZERO);
    bed.until("all flows were looked at", |_| {
        let now = steps(&statistics);
        walked = (now.0 - runs, now.1 - time);
        walked.0 > u64::from(count / 1024)
    });
    let step = walked.1 / walked.0 as u32;
    println!(
        "{count} flows: sent in {inserted:?}; {} steps of the walk, {step:?} each",
        walked.0
    );
    assert!(step < STEP_LIMIT, "a step of the walk takes {step:?}");
    drop(statistics);

    let began = Instant::now();
    take_over(&mut bed, long);
    let resumed = bed.switch.resumed().unwrap();
    assert_eq!((resumed.flows.flows, resumed.instances), (u64::from(count), 2));
    println!("taken over after {:?}", began.elapsed());
    assert!(pins(&mut bed, count as usize) == before, "flows have moved");

    take_over(&mut bed, Timeouts::all(Nanos::from_millis(100)));
    let began = Instant::now();
    bed.until("all flows are forgotten", |bed| live(bed) == 0);
    println!("forgotten after {:?}", began.elapsed());
    assert!(pins(&mut bed, count as usize).is_empty());
    assert!(bed.reading.slots.iter().all(|of| of.live_flows == 0));
    bed.switch.stop();
}

#[test]
fn new_flows_find_room_while_nobody_looks_after_the_table() {
    /// New flows per second.
    const RATE: u32 = 10_000;
    if !available() {
        return;
    }
    // Half of them are connections that end, the others datagrams that time out.
    let (seconds, flows, timeouts) = if is_full_length() {
        (600, 1 << 20, Timeouts::default())
    } else {
        let timeouts = Timeouts {
            tcp_linger: Nanos::from_millis(50),
            ..Timeouts::all(Nanos::from_millis(100))
        };
        (3, 4096, timeouts)
    };
    let mut bed = Bed::with_two(|world, service| {
        world.config.flows = [flows, 1024];
        world.config.timeouts = timeouts;
        service.table_full = TableFull::Drop;
    });
    let count = seconds * RATE;
    assert!(count > 5 * flows, "the table would not be full many times over");
    bed.switch.leave();
    let began = Instant::now();
    let mut packets = 0;
    for number in 0..count {
        let due = Duration::from_secs(1) * number / RATE;
        if let Some(early) = due.checked_sub(began.elapsed()) {
            std::thread::sleep(early.max(Duration::from_millis(1)));
        }
        let client = client(number);
        if number % 2 == 0 {
            bed.world.wire.send(&udp(&client, SERVER, b"x"));
            packets += 1;
        } else {
            for flags in [SYN, ACK, RST] {
                bed.world.wire.send(&tcp(&client, SERVER, flags));
                packets += 1;
            }
        }
    }
    println!("{count} flows in {:?}, a table for {flows}", began.elapsed());
    bed.switch = bed.world.start_switch();
    let began = Instant::now();
    while bed.reading.uplinks[0].received_packets < packets {
        bed.turn();
        assert!(began.elapsed() < PATIENCE, "{:?}", bed.reading.uplinks[0]);
    }
    assert_eq!(bed.reading.uplinks[0].received_packets, packets);
    assert_eq!(bed.reading.drops[DropReason::TableFull.index()], 0);
    assert_eq!(bed.reading.workers[0].table_full, 0);
    let pinned: u64 = bed.reading.slots.iter().map(|of| of.new_flows).sum();
    assert_eq!(pinned, u64::from(count));
    bed.switch.stop();
}
