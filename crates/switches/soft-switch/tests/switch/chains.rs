//! Chains of services: what one returns goes on to the next, there and back, and every packet is accounted for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use model::{DropReason, FlowKey, InstanceState, Match, ServiceId, Slot, UplinkId};
use packet::build::Frame;
use switch::{Change, FlowFilter, ServicePlan, Switch as _, SwitchRequest};

use crate::bed::{Bed, Work, ends, service, udp_packet};
use crate::kept::Kept;
use crate::trail::{
    OUTSIDE, TRAIL, adjust_checksum, answer, cross, echo, flow_of, sign, trail, translate_across,
    translate_back,
};

/// Flows of a case.
const FLOWS: u32 = 40;
/// So many services in a row.
fn chain(count: u16, uplinks: &[u8]) -> Vec<ServicePlan> {
    (0..count)
        .map(|id| ServicePlan {
            next: (id + 1 < count).then_some(ServiceId(id + 1)),
            ..service(id, uplinks, Match::default())
        })
        .collect()
}

/// The slot of an instance of a service: a service has up to ten.
fn slot_of(service: u16, instance: u16) -> u16 {
    service * 10 + instance
}

/// Adds instances to a service.
fn add(bed: &mut Bed, service: u16, instances: std::ops::Range<u16>, work: Work) {
    let ports = bed.plan.services[usize::from(service)].uplinks.len() as u8;
    for instance in instances {
        bed.add(slot_of(service, instance), service, ports, work);
    }
}

/// A chain of three services with two instances each, which send everything across.
fn three(workers: usize, uplinks: &[u8], work: Work) -> Bed {
    let mut bed = Bed::new(workers, uplinks.len(), chain(3, uplinks));
    for service in 0..3 {
        add(&mut bed, service, 0..2, work);
    }
    bed
}

fn there(flow: u32) -> Vec<u8> {
    udp_packet(flow, &TRAIL)
}

fn back(flow: u32) -> Vec<u8> {
    let (src, dst) = ends(flow);
    Frame::udp(dst, src, &TRAIL).unwrap().to_vec().unwrap()
}

/// Sends these frames in by one uplink, and takes as many from another one. Gives where each flow's was.
fn pass(bed: &mut Bed, (from, to): (usize, usize), frames: &[Vec<u8>]) -> BTreeMap<u32, Vec<u8>> {
    bed.send(from, frames.iter().map(Vec::as_slice));
    let came = bed.take_all(to, frames.len());
    let found: BTreeMap<u32, Vec<u8>> = came.iter().map(|f| (flow_of(f), trail(f))).collect();
    assert_eq!(found.len(), frames.len(), "a flow came twice");
    found
}

fn all_there(flows: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    flows.map(there).collect()
}

fn all_back(flows: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    flows.map(back).collect()
}

/// The same trails the other way around.
fn reversed(trails: &BTreeMap<u32, Vec<u8>>) -> BTreeMap<u32, Vec<u8>> {
    let turned = trails.iter().map(|(flow, trail)| {
        let mut trail = trail.clone();
        trail.reverse();
        (*flow, trail)
    });
    turned.collect()
}

/// Each service has been offered all packets, and has returned them.
fn assert_each_service_saw(bed: &mut Bed, packets: u64) {
    bed.assert_accounts_close();
    for service in 0..bed.plan.services.len() {
        assert_eq!(
            bed.reading.services[service].offered_packets, packets,
            "service {service}"
        );
        let mut slots = bed.plan.slots.iter().zip(&bed.reading.slots);
        let of_it = slots
            .by_ref()
            .filter(|(of, _)| of.is_some_and(|of| of.service.index() == service));
        let (to, from) = of_it.fold((0, 0), |(to, from), (_, c)| {
            (to + c.to_packets, from + c.back_packets)
        });
        assert_eq!((to, from), (packets, packets), "service {service}");
    }
}

#[test]
fn a_flow_passes_one_instance_of_each_service_there_and_back() {
    for (workers, uplinks) in [(1, &[0, 1][..]), (1, &[0]), (3, &[0, 1]), (3, &[0])] {
        let work = if uplinks.len() == 2 { cross } else { echo };
        let mut bed = three(workers, uplinks, work);
        let (inside, outside) = (0, uplinks.len() - 1);
        let first = pass(&mut bed, (inside, outside), &all_there(0..FLOWS));
        for (flow, trail) in &first {
            let services: Vec<u8> = trail.iter().map(|number| number / 10).collect();
            assert_eq!(services, [0, 1, 2], "flow {flow}");
        }
        let used: BTreeSet<u8> = first.values().flatten().copied().collect();
        assert_eq!(used.len(), 6, "{first:?}");
        for _ in 0..2 {
            let returned = pass(&mut bed, (outside, inside), &all_back(0..FLOWS));
            assert_eq!(
                returned,
                reversed(&first),
                "{workers} workers, uplinks {uplinks:?}"
            );
            assert_eq!(pass(&mut bed, (inside, outside), &all_there(0..FLOWS)), first);
        }
        assert_each_service_saw(&mut bed, 5 * u64::from(FLOWS));
        // Each flow is pinned once in each service.
        let (rows, _) = bed.flows(FlowFilter::default(), 1000);
        assert_eq!(rows.len(), 3 * FLOWS as usize);
        let key = FlowKey::new(&rows[0].key.tuple(model::Direction::Forward))
            .0
            .at_hop(0);
        let filter = FlowFilter {
            key: Some(key),
            ..FlowFilter::default()
        };
        let (rows, _) = bed.flows(filter, 1000);
        let services: BTreeSet<u16> = rows.iter().map(|row| row.service.0).collect();
        assert_eq!((rows.len(), services.len()), (3, 3));
        for row in rows {
            assert_eq!(row.packets.iter().sum::<u64>(), 5, "{row:?}");
        }
        bed.finish();
    }
}

#[test]
fn flows_that_the_outside_opens_enter_by_the_end_of_a_chain_with_two_uplinks() {
    for workers in [1, 3] {
        let mut bed = three(workers, &[0, 1], cross);
        let first = pass(&mut bed, (1, 0), &all_back(0..FLOWS));
        let services = |trail: &Vec<u8>| trail.iter().map(|number| number / 10).collect::<Vec<u8>>();
        assert!(
            first.values().all(|trail| services(trail) == [2, 1, 0]),
            "{first:?}"
        );
        assert_eq!(pass(&mut bed, (0, 1), &all_there(0..FLOWS)), reversed(&first));
        assert_eq!(pass(&mut bed, (1, 0), &all_back(0..FLOWS)), first);
        assert_each_service_saw(&mut bed, 3 * u64::from(FLOWS));
        bed.finish();
    }
}

#[test]
fn the_middle_scales_and_no_pinned_flow_moves() {
    for (workers, uplinks) in [(1, &[0][..]), (3, &[0, 1])] {
        let work = if uplinks.len() == 2 { cross } else { echo };
        let (inside, outside) = (0, uplinks.len() - 1);
        let mut bed = Bed::new(workers, uplinks.len(), chain(3, uplinks));
        for service in 0..3 {
            add(&mut bed, service, 0..1, work);
        }
        let first = pass(&mut bed, (inside, outside), &all_there(0..FLOWS));
        add(&mut bed, 1, 1..4, work);
        assert_eq!(pass(&mut bed, (inside, outside), &all_there(0..FLOWS)), first);
        assert_eq!(
            pass(&mut bed, (outside, inside), &all_back(0..FLOWS)),
            reversed(&first)
        );
        let second = pass(&mut bed, (inside, outside), &all_there(FLOWS..2 * FLOWS));
        let used: BTreeSet<u8> = second.values().map(|trail| trail[1]).collect();
        assert_eq!(used.len(), 4, "{second:?}");
        // A drain keeps its flows.
        for instance in 1..4 {
            bed.set_state(slot_of(1, instance), 1, InstanceState::Draining);
        }
        bed.publish();
        assert_eq!(
            pass(&mut bed, (inside, outside), &all_there(FLOWS..2 * FLOWS)),
            second
        );
        assert_eq!(
            pass(&mut bed, (outside, inside), &all_back(FLOWS..2 * FLOWS)),
            reversed(&second)
        );
        let third = pass(&mut bed, (inside, outside), &all_there(2 * FLOWS..3 * FLOWS));
        assert!(third.values().all(|trail| trail[1] == 10), "{third:?}");
        // Where an instance goes, its flows get another one, and keep those of the other services.
        for instance in 1..4 {
            bed.remove(slot_of(1, instance));
        }
        let later = pass(&mut bed, (outside, inside), &all_back(FLOWS..2 * FLOWS));
        for (flow, trail) in &later {
            assert_eq!(
                (trail[0], trail[1], trail[2]),
                (second[flow][2], 10, second[flow][0])
            );
        }
        bed.assert_accounts_close();
        bed.finish();
    }
}

#[test]
fn without_an_instance_the_next_service_drops_what_it_is_offered() {
    for workers in [1, 3] {
        let mut bed = Bed::new(workers, 1, chain(2, &[0]));
        add(&mut bed, 0, 0..1, echo);
        bed.send(0, all_there(0..FLOWS).iter().map(Vec::as_slice));
        let packets = u64::from(FLOWS);
        bed.until("all are dropped", |bed| {
            bed.drops(DropReason::NoInstance) == packets
        });
        assert_eq!(bed.slot(0).back_packets, packets);
        assert_eq!(bed.reading.services[1].offered_packets, packets);
        assert_eq!(bed.reading.services[1].unserved, packets);
        bed.assert_accounts_close();
        add(&mut bed, 1, 0..1, echo);
        pass(&mut bed, (0, 0), &all_there(0..FLOWS));
        bed.assert_accounts_close();
        bed.finish();
    }
}

#[test]
fn an_answer_goes_back_and_passes_the_services_before() {
    for (uplinks, before) in [(&[0, 1][..], cross as Work), (&[0], echo)] {
        let mut bed = Bed::new(1, uplinks.len(), chain(3, uplinks));
        add(&mut bed, 0, 0..2, before);
        add(&mut bed, 1, 0..2, answer);
        add(&mut bed, 2, 0..1, before);
        let found = pass(&mut bed, (0, 0), &all_there(0..FLOWS));
        for trail in found.values() {
            assert_eq!(
                (trail.len(), trail[0], trail[1] / 10),
                (3, trail[2], 1),
                "{found:?}"
            );
        }
        bed.assert_accounts_close();
        assert_eq!(bed.reading.services[2].offered_packets, 0);
        bed.finish();
    }
}

#[test]
fn what_an_instance_makes_itself_goes_on_as_what_it_returns() {
    // It turns each packet into one of a flow of its own.
    fn make(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
        sign(frame, number);
        frame[26..29].copy_from_slice(&[198, 51, 100]);
        adjust_checksum(frame);
        Some(port)
    }
    let mut bed = Bed::new(1, 1, chain(2, &[0]));
    add(&mut bed, 0, 0..1, make);
    add(&mut bed, 1, 0..1, echo);
    let found = pass(&mut bed, (0, 0), &all_there(0..FLOWS));
    assert!(found.values().all(|trail| trail == &[0, 10]), "{found:?}");
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn what_comes_back_to_a_changed_address_finds_the_instances_that_changed_it() {
    for at in 0..3 {
        for (workers, uplinks, plain, changes) in [
            (1, &[0, 1][..], cross as Work, translate_across as Work),
            (3, &[0, 1], cross, translate_across),
            (1, &[0], echo, translate_back),
            (3, &[0], echo, translate_back),
        ] {
            let mut bed = Bed::new(workers, uplinks.len(), chain(3, uplinks));
            for service in 0..3 {
                let work = if service == at { changes } else { plain };
                add(&mut bed, service, 0..2, work);
            }
            let (inside, outside) = (0, uplinks.len() - 1);
            for _ in 0..2 {
                let first = pass(&mut bed, (inside, outside), &all_there(0..FLOWS));
                let answers: Vec<Vec<u8>> = (0..FLOWS)
                    .map(|flow| {
                        let [a, b, c] = OUTSIDE;
                        let translator = first[&flow][usize::from(at)];
                        let to = SocketAddr::from(([a, b, c, translator], 1000 + flow as u16));
                        Frame::udp(ends(flow).1, to, &TRAIL).unwrap().to_vec().unwrap()
                    })
                    .collect();
                let returned = pass(&mut bed, (outside, inside), &answers);
                assert_eq!(
                    returned,
                    reversed(&first),
                    "service {at}, {workers} workers, {uplinks:?}"
                );
            }
            bed.assert_accounts_close();
            bed.finish();
        }
    }
}

#[test]
fn fragments_and_errors_follow_their_flow_through_the_chain() {
    for (workers, uplinks, work) in [(1, &[0][..], echo as Work), (3, &[0, 1], cross)] {
        let mut bed = three(workers, uplinks, work);
        let (inside, outside) = (0, uplinks.len() - 1);
        let first = pass(&mut bed, (inside, outside), &all_there(0..FLOWS));
        for flow in 0..FLOWS {
            // The first fragment has the ports, the other one none.
            let mut pieces = [there(flow), there(flow)];
            for (offset, piece) in (0..).zip(&mut pieces) {
                piece[18..20].copy_from_slice(&(flow as u16 + 1).to_be_bytes());
                // 24 bytes of data come before those of the second one.
                let flags: u16 = if offset == 0 { 0x2000 } else { 3 };
                piece[20..22].copy_from_slice(&flags.to_be_bytes());
                adjust_checksum(piece);
            }
            // The whole first one: 8 bytes of UDP header and 16 of data.
            pieces[0].truncate(14 + 20 + 24);
            pieces[0][16..18].copy_from_slice(&44_u16.to_be_bytes());
            pieces[0][38..40].copy_from_slice(&50_u16.to_be_bytes());
            adjust_checksum(&mut pieces[0]);
            bed.send(inside, pieces.iter().map(Vec::as_slice));
            let came = bed.take_all(outside, 2);
            assert_eq!(trail(&came[0]), first[&flow], "flow {flow}");
            assert_eq!(trail(&came[1]), first[&flow], "flow {flow}");
            // An error about it comes from outside, and quotes it.
            let quoted = &there(flow)[14..];
            let router = "203.0.113.1".parse().unwrap();
            let error = Frame::icmp(router, ends(flow).0.ip(), 3, 4, [0, 0, 5, 0], quoted).unwrap();
            let mut error = error.to_vec().unwrap();
            error.extend([0xee; 8]);
            let before: Vec<u64> = (0..3)
                .map(|of| bed.reading.services[of].offered_packets)
                .collect();
            bed.send(outside, [error.as_slice()]);
            bed.take_all(inside, 1);
            bed.assert_accounts_close();
            let after: Vec<u64> = (0..3)
                .map(|of| bed.reading.services[of].offered_packets)
                .collect();
            assert!(before.iter().zip(&after).all(|(before, after)| after > before));
        }
        assert_eq!(bed.drops(DropReason::FragmentInvalid), 0);
        bed.finish();
    }
}

#[test]
fn a_chain_that_begins_or_ends_leaves_pinned_flows_where_they_are() {
    for (workers, uplinks, work) in [(1, &[0][..], echo as Work), (3, &[0, 1], cross)] {
        let (inside, outside) = (0, uplinks.len() - 1);
        let mut bed = three(workers, uplinks, work);
        for service in &mut bed.plan.services {
            service.next = None;
        }
        bed.publish();
        let alone = pass(&mut bed, (inside, outside), &all_there(0..FLOWS));
        assert!(alone.values().all(|trail| trail.len() == 1), "{alone:?}");
        // Flows that were there go on without the others; new ones pass them.
        bed.plan.services = chain(3, uplinks);
        bed.publish();
        assert_eq!(pass(&mut bed, (inside, outside), &all_there(0..FLOWS)), alone);
        assert_eq!(pass(&mut bed, (outside, inside), &all_back(0..FLOWS)), alone);
        let chained = pass(&mut bed, (inside, outside), &all_there(FLOWS..2 * FLOWS));
        assert!(chained.values().all(|trail| trail.len() == 3), "{chained:?}");
        assert_eq!(
            pass(&mut bed, (outside, inside), &all_back(FLOWS..2 * FLOWS)),
            reversed(&chained)
        );
        // The chain gets shorter: its flows keep their instances in the services that remain.
        bed.plan.services[1].next = None;
        bed.plan.services[2].matches = Match {
            vlan: Some(9),
            ..Match::default()
        };
        bed.publish();
        let shorter = pass(&mut bed, (outside, inside), &all_back(FLOWS..2 * FLOWS));
        for (flow, trail) in &shorter {
            assert_eq!(trail[..], [chained[flow][1], chained[flow][0]], "flow {flow}");
        }
        assert_eq!(
            pass(&mut bed, (inside, outside), &all_there(FLOWS..2 * FLOWS)),
            reversed(&shorter)
        );
        // There is none any more.
        bed.plan.services[0].next = None;
        bed.plan.services[1].matches = Match {
            vlan: Some(8),
            ..Match::default()
        };
        bed.publish();
        for flows in [0..FLOWS, FLOWS..2 * FLOWS] {
            let there = pass(&mut bed, (inside, outside), &all_there(flows.clone()));
            let back = pass(&mut bed, (outside, inside), &all_back(flows));
            assert_eq!(there, back);
            for (flow, trail) in &there {
                let before = alone.get(flow).or(chained.get(flow)).unwrap();
                assert_eq!(trail[..], before[..1], "flow {flow}");
            }
        }
        let moves: u64 = bed.reading.slots.iter().map(|slot| slot.expected_moves).sum();
        assert_eq!(moves, 0);
        bed.assert_accounts_close();
        bed.finish();
    }
}

#[test]
fn a_flow_that_is_purged_gets_another_instance_of_each_service() {
    let mut bed = three(1, &[0], echo);
    let first = pass(&mut bed, (0, 0), &all_there(0..1));
    let (src, dst) = ends(0);
    let tuple = model::Tuple {
        src: src.ip(),
        dst: dst.ip(),
        src_port: src.port(),
        dst_port: dst.port(),
        protocol: 17,
        vlan: 0,
    };
    bed.ask(SwitchRequest::Change(Change::PurgeFlow(FlowKey::new(&tuple).0)));
    let second = pass(&mut bed, (0, 0), &all_there(0..1));
    // The scheduler picks by turns.
    for (first, second) in first[&0].iter().zip(&second[&0]) {
        assert_ne!(first, second);
        assert_eq!(first / 10, second / 10);
    }
    assert_eq!(pass(&mut bed, (0, 0), &all_back(0..1)), reversed(&second));
    bed.assert_accounts_close();
    bed.finish();
}

/// Instances of a failed service: what it had is lost, and its flows get another one.
#[test]
fn the_flows_of_a_failed_instance_get_another_one_and_keep_the_others() {
    for workers in [1, 3] {
        let mut bed = three(workers, &[0], echo);
        let first = pass(&mut bed, (0, 0), &all_there(0..FLOWS));
        bed.ask(SwitchRequest::Fail(Slot(slot_of(1, 0))));
        bed.remove(slot_of(1, 0));
        let second = pass(&mut bed, (0, 0), &all_back(0..FLOWS));
        for (flow, trail) in &second {
            assert_eq!(trail[..], [first[flow][2], 11, first[flow][0]]);
        }
        bed.assert_accounts_close();
        let moved = first.values().filter(|trail| trail[1] == 10).count() as u64;
        assert!(moved > 0);
        assert_eq!(bed.slot(slot_of(1, 1)).expected_moves, moved);
        bed.finish();
    }
}

#[test]
fn packets_of_a_flow_keep_their_order_through_the_chain() {
    const PACKETS: u32 = 300;
    for workers in [1, 3] {
        let mut bed = three(workers, &[0, 1], cross);
        let mut frames = Vec::new();
        for number in 0..PACKETS {
            for flow in 0..8 {
                let mut frame = there(flow);
                // Behind what functions write.
                let len = frame.len();
                frame[len - 4..].copy_from_slice(&number.to_be_bytes());
                frames.push(frame);
            }
        }
        let mut next: BTreeMap<u32, u32> = BTreeMap::new();
        for burst in frames.chunks(64) {
            bed.send(0, burst.iter().map(Vec::as_slice));
            for frame in bed.take_all(1, burst.len()) {
                let number = u32::from_be_bytes(*frame.last_chunk().unwrap());
                let expected = next.entry(flow_of(&frame)).or_default();
                assert_eq!(number, *expected);
                *expected += 1;
            }
        }
        bed.assert_accounts_close();
        bed.finish();
    }
}

#[test]
fn the_next_run_goes_on_with_a_chain_and_its_flows() {
    let kept = Kept::start();
    for workers in [1, 2] {
        let keep = |config: &mut soft_switch::SoftSwitchConfig| config.keep = kept.run();
        let mut bed = Bed::with(workers, 1, chain(3, &[0]), keep);
        for service in 0..3 {
            add(&mut bed, service, 0..2, echo);
        }
        let first = pass(&mut bed, (0, 0), &all_there(0..FLOWS));
        bed.run_again(|config| config.keep = kept.run());
        for place in 0..bed.functions.len() {
            let slot = slot_of(place as u16 / 2, place as u16 % 2);
            let (service, socket) = (slot / 10, bed.functions[place].socket.clone());
            bed.attach(slot, service, socket, 1, 1);
            bed.set_state(slot, service, InstanceState::Active);
        }
        bed.publish();
        bed.ask(SwitchRequest::OpenUplink(UplinkId(0)));
        assert_eq!(pass(&mut bed, (0, 0), &all_back(0..FLOWS)), reversed(&first));
        assert_eq!(pass(&mut bed, (0, 0), &all_there(0..FLOWS)), first);
        bed.finish();
    }
}

/// What the first service gives back meanwhile waits for the second one, which comes later.
#[test]
fn packets_wait_until_the_next_run_has_all_of_the_chain() {
    let kept = Kept::start();
    let keep = |config: &mut soft_switch::SoftSwitchConfig| config.keep = kept.run();
    let mut bed = Bed::with(1, 1, chain(2, &[0]), keep);
    for service in 0..2 {
        add(&mut bed, service, 0..1, echo);
    }
    let first = pass(&mut bed, (0, 0), &all_there(0..FLOWS));
    bed.functions[0].hangs.store(true, Ordering::Relaxed);
    let seen = |bed: &Bed| bed.functions[0].seen.load(Ordering::Relaxed);
    let before = seen(&bed);
    bed.send(0, all_there(0..FLOWS).iter().map(Vec::as_slice));
    bed.until("they are offered", |bed| {
        bed.reading.services[0].offered_packets == 2 * u64::from(FLOWS)
    });
    bed.run_again(|config| {
        config.keep = kept.run();
        config.uplinks[0].waits = true;
    });
    bed.functions[0].hangs.store(false, Ordering::Relaxed);
    let again = |bed: &mut Bed, service: u16| {
        let socket = bed.functions[usize::from(service)].socket.clone();
        bed.attach(slot_of(service, 0), service, socket, 1, 1);
        bed.set_state(slot_of(service, 0), service, InstanceState::Active);
        bed.publish();
    };
    again(&mut bed, 0);
    bed.until("they are given back", |bed| {
        seen(bed) == before + u64::from(FLOWS)
    });
    let until = Instant::now() + Duration::from_millis(50);
    bed.until("a while has passed", |_| Instant::now() > until);
    again(&mut bed, 1);
    bed.ask(SwitchRequest::OpenUplink(UplinkId(0)));
    let came = bed.take_all(0, FLOWS as usize);
    let found: BTreeMap<u32, Vec<u8>> = came.iter().map(|f| (flow_of(f), trail(f))).collect();
    assert_eq!(found, first);
    bed.assert_accounts_close();
    bed.finish();
}

#[test]
fn a_plan_with_a_chain_that_cannot_be_is_refused() {
    let mut bed = Bed::new(1, 2, chain(2, &[0]));
    for change in [
        (|of| of[1].next = Some(ServiceId(0))) as fn(&mut Vec<ServicePlan>),
        |of| of[0].next = Some(ServiceId(0)),
        |of| of[1].next = Some(ServiceId(7)),
        |of| of[1].uplinks = vec![UplinkId(1)],
        |of| of[0].symmetric = false,
    ] {
        let mut plan = bed.plan.clone();
        plan.generation.0 += 1;
        change(&mut plan.services);
        let refused = bed
            .switch
            .request(SwitchRequest::Publish(plan.into()))
            .unwrap_err();
        assert!(refused.to_string().contains("service"), "{refused}");
    }
    bed.finish();
}
