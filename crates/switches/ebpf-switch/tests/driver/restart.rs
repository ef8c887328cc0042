//! What happens when inco dies: the programs steer on, and the next run takes over.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clock::monotonic;
use ebpf_switch::EbpfSwitch;
use model::{InstanceState, Slot};
use switch::{PortKind, PortSpec, Switch, SwitchEvent, SwitchRequest};

use crate::bed::{Bed, World, available, config};
use crate::frames::udp;
use crate::namespaces::Tap;
use crate::steering::service;

const SLOTS: u16 = 3;
/// Names the switch that a child is to run.
const CHILD: &str = "INCO_TEST_EBPF_CHILD";

/// Not a test: the process that the tests below kill. It steers until then.
#[test]
#[ignore = "a part of other tests, which start it"]
fn steers_until_it_is_killed() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let mut switch = EbpfSwitch::start(&config(&name, SLOTS)).unwrap();
    let plan = attached(&mut switch);
    switch.request(SwitchRequest::Publish(Arc::new(plan))).unwrap();
    println!("ready");
    let mut events = Vec::new();
    loop {
        switch.poll(monotonic(), &mut events);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Attaches two instances, and gives a plan with them.
fn attached(switch: &mut EbpfSwitch) -> switch::Plan {
    let mut plan = switch::Plan {
        services: vec![service()],
        unmatched: model::Fallback::Host,
        other: model::Fallback::Host,
        ..switch::Plan::default()
    };
    let mut events = Vec::new();
    for slot in [Slot(0), Slot(1)] {
        let (service, port) = (model::ServiceId(0), PortSpec::new(PortKind::Kernel, ""));
        // The parent moves the interface once it is there.
        println!("made {}", slot.0);
        switch
            .request(SwitchRequest::Attach { slot, service, port })
            .unwrap();
        while !events
            .iter()
            .any(|e| matches!(e, SwitchEvent::Attached { slot: s, .. } if *s == slot))
        {
            switch.poll(monotonic(), &mut events);
            std::thread::sleep(Duration::from_millis(1));
        }
        plan.slots.push(Some(switch::SlotPlan {
            instance: model::InstanceId(1),
            service,
            place: model::PlaceId::default(),
            state: InstanceState::Active,
            capacity_pps: 1e6,
            active_since: model::Nanos::ZERO,
            weight: 256,
            block: None,
            edits: switch::Edits::default(),
        }));
    }
    plan.generation.0 = 5;
    plan
}

/// Not a test either: a process that takes over, and then changes rules, loads and picks without a pause.
#[test]
#[ignore = "a part of another test, which starts it"]
fn changes_until_it_is_killed() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let mut switch = EbpfSwitch::start(&config(&name, SLOTS)).unwrap();
    let mut plan = attached(&mut switch);
    let mut events = Vec::new();
    for turn in 0_u16.. {
        if turn.is_multiple_of(4) {
            // Other rules: they are written into the next bank.
            plan.generation.0 += 1;
            if let Some(vip) = &mut plan.services[0].vip {
                vip.ports[1] = 443..=443 + turn % 8;
            }
            switch
                .request(SwitchRequest::Publish(Arc::new(plan.clone())))
                .unwrap();
        }
        let load = f32::from(turn % 16);
        switch.set_loads(&[(Slot(0), load), (Slot(1), 16.0 - load)], &[]);
        switch.poll(monotonic(), &mut events);
        events.clear();
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Starts such a process.
fn spawn(name: &str, part: &str) -> Child {
    let this = std::env::current_exe().unwrap();
    // It begins in this thread's namespace; `ip netns exec` would hide the file system with the pinned maps.
    let mut command = std::process::Command::new(this);
    command.args([part, "--exact", "--ignored", "--nocapture"]);
    command.env(CHILD, name).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Starts the one that steers, with two instances.
fn child(world: &mut World) -> Child {
    let mut child = spawn(&world.config.name, "restart::steers_until_it_is_killed");
    let said = BufReader::new(child.stdout.take().unwrap());
    for line in said.lines() {
        let line = line.unwrap();
        eprintln!("child: {line}");
        if let Some(at) = line.find("made ") {
            let slot = line[at + 5..].trim().parse().unwrap();
            world.start_instance(Slot(slot), &[]);
        } else if line.contains("ready") {
            return child;
        }
    }
    panic!("it has ended: {:?}", child.wait());
}

pub(crate) fn packet(flow: u16) -> Vec<u8> {
    udp(
        &format!("198.51.100.{}:{}", 1 + flow % 200, 2000 + flow),
        "10.0.0.100:80",
        &flow.to_be_bytes(),
    )
}

/// The flow that a packet is of.
pub(crate) fn flow_of(frame: &[u8]) -> Option<u16> {
    let length = frame.len();
    (length >= 44).then(|| u16::from_be_bytes([frame[42], frame[43]]))
}

/// Where each flow's packets have come.
pub(crate) fn places(world: &World, wanted: usize) -> BTreeMap<u16, Slot> {
    let mut at = BTreeMap::new();
    let began = std::time::Instant::now();
    let mut count = 0;
    while count < wanted {
        for (slot, of) in &world.instances {
            while let Some(frame) = of.tap.receive() {
                if let Some(flow) = flow_of(&frame) {
                    let before = at.insert(flow, *slot);
                    assert!(
                        before.is_none_or(|before| before == *slot),
                        "flow {flow} is at two instances"
                    );
                    count += 1;
                }
            }
        }
        assert!(
            began.elapsed() < crate::bed::PATIENCE,
            "{count} of {wanted} have come"
        );
    }
    at
}

#[test]
fn a_kill_moves_no_flow_and_loses_no_packet() {
    if !available() {
        return;
    }
    const FLOWS: u16 = 400;
    let mut world = World::new(SLOTS);
    let mut child = child(&mut world);
    let wire = Tap::open(&world.net, "net0");
    let send = |flows: std::ops::Range<u16>| flows.for_each(|flow| wire.send(&packet(flow)));
    send(0..FLOWS);
    let before = places(&world, usize::from(FLOWS));
    assert!(before.values().any(|slot| *slot == Slot(0)) && before.values().any(|slot| *slot == Slot(1)));
    child.kill().unwrap();
    child.wait().unwrap();
    // Nobody looks after the programs.
    send(0..FLOWS);
    assert_eq!(
        places(&world, usize::from(FLOWS)),
        before,
        "a flow has moved while inco was dead"
    );
    send(FLOWS..2 * FLOWS);
    let fresh = places(&world, usize::from(FLOWS));
    // A stream of packets while the next run takes over.
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut all = before.clone();
    all.extend(&fresh);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut flow = 0;
            while !stop.load(Ordering::Relaxed) {
                wire.send(&packet(flow));
                sent.fetch_add(1, Ordering::Relaxed);
                flow = (flow + 1) % (2 * FLOWS);
                if flow.is_multiple_of(16) {
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
        });
        let mut bed = Bed::taken_over(world, service(), 5);
        let resumed = bed.switch.resumed().unwrap();
        assert!(resumed.rejected.is_empty(), "{resumed:?}");
        assert_eq!(
            (resumed.flows.flows, resumed.instances, resumed.uplinks),
            (u64::from(2 * FLOWS), 2, 1)
        );
        // Plans are counted anew: none of this run is in force yet.
        bed.turn();
        assert_eq!(bed.reading.acknowledged, model::Generation(0));
        // A plan without instances yet moves nothing either.
        bed.publish();
        for slot in [Slot(0), Slot(1)] {
            bed.attach(slot);
            bed.set_state(slot, Some(InstanceState::Active));
        }
        for _ in 0..100 {
            bed.turn();
        }
        stop.store(true, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(50));
        let sent = sent.load(Ordering::Relaxed) as usize;
        assert!(sent > 500, "{sent}");
        let during = places(&bed.world, sent);
        for (flow, slot) in &during {
            assert_eq!(all.get(flow), Some(slot), "flow {flow} has moved");
        }
        bed.turn();
        assert_eq!(bed.reading.dropped(), 0);
        assert_eq!(
            bed.reading.slots.iter().map(|of| of.expected_moves).sum::<u64>(),
            0
        );
        bed.switch.stop();
    });
}

/// Runs are killed at any moment: while they take over, exchange programs, write rules and prepare picks. Whatever the
/// next one finds is whole: no flow moves, no packet is lost, and what lives is counted.
#[test]
fn kills_at_any_moment_move_no_flow() {
    if !available() {
        return;
    }
    const KNOWN: u16 = 300;
    const FRESH: u16 = 1000;
    let mut bed = Bed::new(World::new(SLOTS), service());
    bed.add(0..2, &[]);
    let wire = Tap::open(&bed.world.net, "net0");
    (0..KNOWN).for_each(|flow| wire.send(&packet(flow)));
    let mut at = places(&bed.world, usize::from(KNOWN));
    bed.switch.leave();
    let mut fresh = FRESH;
    for round in 0..10 {
        let (stop, name) = (AtomicBool::new(false), bed.world.config.name.clone());
        bed.world.host.enter();
        let mut child = spawn(&name, "restart::changes_until_it_is_killed");
        let sent = std::thread::scope(|scope| {
            // Known flows, and in each step a new one, which goes on.
            let sender = scope.spawn(|| {
                let mut sent = 0;
                for step in 0..400 {
                    for flow in [step % KNOWN, fresh + step, fresh + step / 2] {
                        wire.send(&packet(flow));
                        sent += 1;
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                sent
            });
            // The numbers have no order, and are the same in each run of the test.
            let moment = Duration::from_micros(model::mix(round) % 400_000);
            std::thread::sleep(moment);
            child.kill().unwrap();
            child.wait().unwrap();
            stop.store(true, Ordering::Relaxed);
            sender.join().unwrap()
        });
        fresh += 400;
        for (flow, slot) in places(&bed.world, sent) {
            let before = *at.entry(flow).or_insert(slot);
            assert_eq!(before, slot, "round {round}: flow {flow} has moved");
        }
    }
    bed.switch = bed.world.start_switch();
    let resumed = bed.switch.resumed().unwrap();
    assert!(resumed.rejected.is_empty(), "{resumed:?}");
    assert_eq!((resumed.flows.flows, resumed.instances), (at.len() as u64, 2));
    bed.publish();
    for slot in [Slot(0), Slot(1)] {
        bed.attach(slot);
        bed.set_state(slot, Some(InstanceState::Active));
    }
    at.keys().for_each(|flow| wire.send(&packet(*flow)));
    assert_eq!(places(&bed.world, at.len()), at);
    assert_eq!(bed.flows().len(), at.len());
    bed.turn();
    assert_eq!(bed.reading.workers[0].live_flows, at.len() as u64);
    let moves: u64 = bed.reading.slots.iter().map(|of| of.expected_moves).sum();
    assert_eq!((bed.reading.dropped(), moves), (0, 0));
    bed.switch.stop();
}

/// Instances that are not found again lose their flows to others after a while; one that is detached does at once.
#[test]
fn instances_that_are_gone_give_their_flows_away() {
    if !available() {
        return;
    }
    let mut world = World::new(SLOTS);
    let mut child = child(&mut world);
    let wire = Tap::open(&world.net, "net0");
    (0..50).for_each(|flow| wire.send(&packet(flow)));
    let before = places(&world, 50);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut bed = Bed::taken_over(world, service(), 5);
    bed.activate(Slot(0));
    bed.ask(SwitchRequest::Detach(Slot(1)));
    bed.until("it is detached", |bed| {
        bed.events
            .iter()
            .any(|e| matches!(e, SwitchEvent::Detached { .. }))
    });
    (0..50).for_each(|flow| wire.send(&packet(flow)));
    let after = places(&bed.world, 50);
    assert!(after.values().all(|slot| *slot == Slot(0)), "{after:?}");
    let moved = before.values().filter(|slot| **slot == Slot(1)).count() as u64;
    bed.until("the moves are counted", |bed| {
        bed.reading.slots[0].expected_moves == moved
    });
    bed.switch.stop();
}

/// Maps of another layout cannot be taken over: that is said, and the switch starts afresh.
#[test]
fn what_does_not_fit_is_rejected() {
    if !available() {
        return;
    }
    let mut world = World::new(1);
    let mut first = world.start_switch();
    first.leave();
    drop(first);
    world.config.flows = [2048, 1024];
    // Another size of the tables is no other layout: they keep the size that they have.
    let mut second = world.start_switch();
    assert!(second.resumed().unwrap().rejected.is_empty());
    second.leave();
    drop(second);
    let pin = format!("/sys/fs/bpf/inco/{}/flows_v4", world.config.name);
    std::fs::remove_file(pin).unwrap();
    let mut third = world.start_switch();
    let rejected = third.resumed().unwrap().rejected.clone();
    assert!(
        rejected.iter().any(|reason| reason.contains("flows_v4")),
        "{rejected:?}"
    );
    third.leave();
    drop(third);
    // What a killed run has left goes without a switch, too.
    ebpf_switch::remove_all(&world.config.name, &world.config.prefix).unwrap();
    assert!(!std::path::Path::new(&format!("/sys/fs/bpf/inco/{}", world.config.name)).exists());
    let mut fourth = world.start_switch();
    assert!(fourth.resumed().unwrap().is_empty());
    fourth.stop();
}
