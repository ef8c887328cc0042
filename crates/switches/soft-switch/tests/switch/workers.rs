//! Several workers: who owns a flow, what crosses between them, and in which order.

use flow_table::{FlowHasher, Ownership};
use model::Match;
use switch::{ServicePlan, Switch as _, SwitchEvent};

use crate::bed::{Bed, PATIENCE, cross, echo, ends, service, udp_packet};
use crate::load::{Load, Shape};

fn one_arm_on_two_uplinks() -> Vec<ServicePlan> {
    vec![
        service(0, &[0], Match::default()),
        service(1, &[1], Match::default()),
    ]
}

#[test]
fn two_workers_two_uplinks_and_instances_of_one_queue_keep_the_order() {
    for ownership in [Ownership::Keyed, Ownership::Card] {
        keep_the_order(ownership);
    }
}

fn keep_the_order(ownership: Ownership) {
    let mut bed = Bed::with(2, 2, one_arm_on_two_uplinks(), |config| {
        config.ownership = ownership
    });
    for slot in 0..4 {
        bed.add(slot, slot % 2, 1, echo);
    }
    let shape = Shape {
        two_uplinks: true,
        flows: 64,
        ..Shape::default()
    };
    let load = Load::start(&mut bed, shape);
    load.wait_for(&mut bed, 20_000);
    load.finish(&mut bed).assert_perfect();
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 0);
    let workers = &bed.reading.workers;
    assert!(
        workers.iter().all(|w| w.handed_off > 0 && w.live_flows > 10),
        "{workers:?}"
    );
    let (off, over) = workers
        .iter()
        .fold((0, 0), |(a, b), w| (a + w.handed_off, b + w.taken_over));
    assert_eq!(off, over, "what one hands over the other takes");
    bed.finish();
}

#[test]
fn nothing_crosses_between_workers_where_a_card_deals() {
    let services = vec![service(0, &[0], Match::default())];
    let mut bed = Bed::with(2, 1, services, |config| config.ownership = Ownership::Card);
    // A peer that deals: it takes the place of the one with a single queue.
    let mut card = memif::ClientConfig::new(bed.directory.path().join("uplink-0.sock"), 0);
    card.ring.queues = 2;
    bed.events.clear();
    bed.uplinks.clear();
    bed.until("it is down", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::UplinkDown { .. }))
    });
    let card = memif::Client::connect(&card, PATIENCE).unwrap();
    bed.uplinks.push(card);
    bed.until("it is up", |bed| {
        bed.saw(|e| matches!(e, SwitchEvent::UplinkUp { .. }))
    });
    bed.add_function(0, 0, 0, 1, 2, echo);
    let hasher = FlowHasher::new([0; 4]).owning(Ownership::Card);
    let mut dealt = [0, 0];
    for flow in 0..200 {
        let (src, dst) = ends(flow);
        let queue = hasher.owner_of(src.ip(), dst.ip(), 0, 2);
        let tx = &mut bed.uplinks[0].queues[queue].tx;
        tx.push(&udp_packet(flow, b"dealt")).unwrap();
        tx.flush();
        dealt[queue] += 1;
    }
    assert!(dealt.iter().all(|n| *n > 50), "{dealt:?}");
    let (mut back, mut buffer) = ([0, 0], [0; 2048]);
    bed.until("all are back", |bed| {
        for (queue, count) in bed.uplinks[0].queues.iter_mut().zip(&mut back) {
            while let Some(Ok(_)) = queue.rx.pop(&mut buffer) {
                *count += 1;
            }
            queue.rx.release();
        }
        back == dealt
    });
    bed.assert_accounts_close();
    assert!(bed.reading.workers.iter().all(|worker| worker.handed_off == 0));
    bed.until("each tells of its flows", |bed| {
        let workers = bed.reading.workers.iter();
        workers.map(|worker| worker.live_flows).eq(dealt)
    });
    bed.finish();
}

#[test]
fn two_arm_flows_keep_their_order_with_two_and_three_workers_and_any_number_of_queues() {
    for (workers, queues) in [(2, 1), (2, 2), (3, 1), (3, 2), (3, 3)] {
        let mut bed = Bed::new(workers, 2, vec![service(0, &[0, 1], Match::default())]);
        for slot in 0..3 {
            bed.add_function(slot, slot.into(), 0, 2, queues, cross);
        }
        let shape = Shape {
            two_arm: true,
            flows: 60,
            ..Shape::default()
        };
        let load = Load::start(&mut bed, shape);
        load.wait_for(&mut bed, 6_000);
        load.finish(&mut bed).assert_perfect();
        bed.assert_accounts_close();
        assert_eq!(bed.reading.dropped(), 0, "{workers} workers, {queues} queues");
        assert!(bed.reading.workers.iter().all(|w| w.live_flows > 5));
        bed.finish();
    }
}

#[test]
fn an_instance_that_takes_fewer_queues_than_offered_is_reached_by_all_workers() {
    let mut bed = Bed::new(2, 1, vec![service(0, &[0], Match::default())]);
    let socket = bed.directory.path().join("one-queue.sock");
    let server = memif::ServerConfig {
        max_queues: 1,
        ..memif::ServerConfig::new("one-queue")
    };
    let mut listener = memif::Listener::bind(&socket, server).unwrap();
    bed.begin_attach(1, 0, socket, 1, 2);
    let mut link = None;
    bed.until("the instance is attached", |bed| {
        link = link
            .take()
            .or(listener.accept(std::time::Duration::ZERO).unwrap());
        bed.saw(|e| matches!(e, SwitchEvent::Attached { .. }))
    });
    let mut link = link.unwrap();
    assert_eq!(link.queues.len(), 1);
    bed.set_state(1, 0, model::InstanceState::Active);
    bed.publish();
    bed.send(0, crate::bed::udp_flows(100).iter().map(Vec::as_slice));
    let mut taken = 0;
    let mut buffer = [0; 2048];
    bed.until("all reach it", |_| {
        while link.queues[0].rx.pop(&mut buffer).is_some() {
            taken += 1;
        }
        taken == 100
    });
    assert_eq!(bed.remove(1), 100);
    bed.assert_accounts_close();
    bed.finish();
}

/// What waits in a worker, or on its way to one, when the switch leaves everything to the next run is in the rings of
/// instances afterwards.
#[test]
fn a_switch_that_leaves_forwards_what_its_workers_have() {
    for _ in 0..10 {
        let mut bed = Bed::new(2, 2, one_arm_on_two_uplinks());
        for slot in 0..4 {
            bed.add(slot, slot % 2, 1, echo);
        }
        let shape = Shape {
            two_uplinks: true,
            lossy: true,
            flows: 64,
            ..Shape::default()
        };
        let load = Load::start(&mut bed, shape);
        load.wait_for(&mut bed, 5_000);
        bed.switch.leave();
        bed.switch.read(&mut bed.reading);
        let of = &bed.reading;
        let received: u64 = of.uplinks.iter().map(|uplink| uplink.received_packets).sum();
        let forwarded: u64 = of.slots.iter().map(|slot| slot.to_packets).sum();
        assert!(
            of.workers.iter().all(|worker| worker.handed_off > 0),
            "{:?}",
            of.workers
        );
        assert_eq!(received, forwarded, "{:?}", of.drops);
        load.finish(&mut bed);
    }
}
