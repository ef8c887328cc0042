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
            state: InstanceState::Active,
            capacity_pps: 1e6,
            active_since: model::Nanos::ZERO,
            weight: 256,
            edits: switch::Edits::default(),
        }));
    }
    plan.generation.0 = 5;
    switch.request(SwitchRequest::Publish(Arc::new(plan))).unwrap();
    println!("ready");
    loop {
        switch.poll(monotonic(), &mut events);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts that process, with two instances.
fn child(world: &mut World) -> Child {
    let this = std::env::current_exe().unwrap();
    // It begins in this thread's namespace; `ip netns exec` would hide the file system with the pinned maps.
    let mut command = std::process::Command::new(this);
    command.args([
        "restart::steers_until_it_is_killed",
        "--exact",
        "--ignored",
        "--nocapture",
    ]);
    command.env(CHILD, &world.config.name).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
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

fn packet(flow: u16) -> Vec<u8> {
    udp(
        &format!("198.51.100.{}:{}", 1 + flow % 200, 2000 + flow),
        "10.0.0.100:80",
        &flow.to_be_bytes(),
    )
}

/// The flow that a packet is of.
fn flow_of(frame: &[u8]) -> Option<u16> {
    let length = frame.len();
    (length >= 44).then(|| u16::from_be_bytes([frame[42], frame[43]]))
}

/// Where each flow's packets have come.
fn places(world: &World, wanted: usize) -> BTreeMap<u16, Slot> {
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
