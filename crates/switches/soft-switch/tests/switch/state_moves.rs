//! Flows that move with the state of their function between workers and instances, under load.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use model::{
    AffinityKey, Association, External, InstanceState, Match, Nanos, Prefix, Selector, ServiceId, Slot,
    Timeouts, Tuple,
};
use packet::Parsed;
use packet::build::Frame;
use state_moves::{FRAME_BYTES_LIMIT, Message, NotMoved};
use switch::{MappingsEvent, MappingsRequest, SwitchEvent, SwitchRequest};

use crate::bed::{Bed, echo, ends, service, udp_packet};
use crate::load::{Load, Shape};

const FLOWS: u32 = 48;
/// Moves of flows, there and back, that each machine must see.
const MOVES: u64 = 4 * FLOWS as u64;

thread_local! {
    /// Packets that this function has had of each flow.
    static HAD: RefCell<HashMap<IpAddr, u64>> = RefCell::default();
}
/// Packets that a function got whose number is not the one after the last that its state knows.
static WRONG: AtomicU64 = AtomicU64::new(0);

fn answer(message: Message<'_>, state: &mut [u8; 8]) -> Option<usize> {
    let of = |flow: &Tuple| flow.src;
    HAD.with_borrow_mut(|had| match message {
        Message::Export(flow) => {
            *state = had.get(&of(&flow)).copied().unwrap_or(0).to_be_bytes();
            Some(state.len())
        }
        Message::Import(flow, moved) => {
            had.insert(of(&flow), u64::from_be_bytes(moved.try_into().unwrap()));
            None
        }
        Message::Forget(flow) => {
            had.remove(&of(&flow));
            None
        }
        _ => None,
    })
}

/// Counts the packets of each flow, which carry their number, and gives and takes these counts.
fn counting(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
    let mut room = [0; FRAME_BYTES_LIMIT];
    if let Some((of_move, message)) = Message::read(frame) {
        let mut state = [0; 8];
        let mapping;
        let length = answer(message, &mut state);
        let says = match message {
            Message::Pass { port: of } => Message::Passed { of, by: of },
            Message::Export(_) => Message::Exported(&state[..length.unwrap()]),
            Message::Import(..) => Message::Imported,
            Message::Forget(_) => return None,
            // As if one message in three got lost.
            Message::HandOver(_) | Message::TakeOver(_) | Message::Count(_)
                if ASKED.fetch_add(1, Ordering::Relaxed) % 3 == 2 =>
            {
                return None;
            }
            Message::HandOver(from) => {
                mapping = from.to_be_bytes();
                let next = (from < MAPPINGS - 1).then_some(from + 1);
                Message::HandedOver {
                    next,
                    mappings: &mapping,
                }
            }
            Message::TakeOver(mappings) => {
                let of = u32::from_be_bytes(mappings.try_into().unwrap());
                TAKEN.fetch_or(1 << of, Ordering::Relaxed);
                match REFUSED.load(Ordering::Relaxed) == u64::from(of) {
                    true => Message::Refused(NotMoved::Conflict),
                    false => Message::Imported,
                }
            }
            Message::Count(ports) => Message::Counted(ports.first.into()),
            other => panic!("{other:?} is nothing that a switch says"),
        };
        let length = says.write(of_move, &mut room).unwrap();
        // What is behind the message is padding, as it was.
        frame[..length].copy_from_slice(&room[..length]);
        return Some(port);
    }
    let Parsed::Flow(info) = packet::parse(frame) else {
        panic!("no packet of the load");
    };
    let src = info.key.tuple(info.direction).src;
    let sent = u64::from_be_bytes(frame[46..54].try_into().unwrap());
    HAD.with_borrow_mut(|had| {
        let had = had.entry(src).or_default();
        WRONG.fetch_add(u64::from(sent != *had + 1), Ordering::Relaxed);
        *had = sent;
    });
    echo(frame, port, number)
}

/// The association that protects the packets of a source: each has 16 of the load's flows.
fn association(source: IpAddr) -> usize {
    match source {
        IpAddr::V4(of) => usize::from(of.octets()[3]) / 16,
        IpAddr::V6(_) => panic!("{source}"),
    }
}

/// Counts the packets of each association over all of its flows, as one that protects them would, and gives and takes these
/// counts.
fn protecting(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
    if state_moves::is_message(frame) {
        return counting(frame, port, number);
    }
    let Parsed::Flow(info) = packet::parse(frame) else {
        panic!("no packet of the load");
    };
    let of = association(info.key.tuple(info.direction).src);
    if of >= PROTECTED.len() {
        return echo(frame, port, number);
    }
    // Messages name it so.
    let (key, direction) = packet::association_key(SPI + of as u32, PEER);
    let label = key.tuple(direction).src;
    let next = HAD.with_borrow_mut(|had| {
        let had = had.entry(label).or_default();
        *had += 1;
        *had
    });
    let expected = PROTECTED[of].fetch_add(1, Ordering::Relaxed) + 1;
    WRONG.fetch_add(u64::from(next != expected), Ordering::Relaxed);
    echo(frame, port, number)
}

const SPI: u32 = 0x1000;
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 2));
/// Packets of each association, at whatever instance.
static PROTECTED: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Mappings of an instance that hands them over, and which of them an heir has had.
const MAPPINGS: u32 = 12;
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// The mapping that it does not take.
static REFUSED: AtomicU64 = AtomicU64::new(u64::MAX);
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Tests of one process at a time use what is counted above.
static ONE: Mutex<()> = Mutex::new(());

/// Moved with state, and cancelled.
fn moves(bed: &Bed) -> (u64, u64) {
    let of = &bed.reading.workers;
    let cancelled = |w: &switch::WorkerTotals| {
        w.state_moves_at_limit + w.state_moves_refused + w.state_moves_without_room + w.state_moves_gone
    };
    (
        of.iter().map(|w| w.state_moves).sum(),
        of.iter().map(cancelled).sum(),
    )
}

/// An instance has a queue for each worker, or its messages go through the worker that has its one queue. On a busy machine
/// a function may wait for a CPU for longer than a move may last: then the flow stays, its state with it, and moves later.
#[test]
fn flows_of_several_workers_move_with_their_state_and_in_order() {
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (workers, queues) in [(2, 1), (2, 2), (3, 1), (3, 2)] {
        let mut of = service(0, &[0], Match::default());
        (of.relaxed, of.moves_state) = (true, true);
        let mut bed = Bed::new(workers, 1, vec![of]);
        bed.add_function(0, 0, 0, 1, queues, counting);
        bed.add_function(1, 1, 0, 1, queues, counting);
        let shape = Shape {
            flows: FLOWS,
            ..Shape::default()
        };
        let load = Load::start(&mut bed, shape);
        load.wait_for(&mut bed, 2 * u64::from(FLOWS));
        let mut round = 0;
        while moves(&bed).0 < MOVES {
            round += 1;
            assert!(round < 100, "{:?} after {round} rounds", moves(&bed));
            let (from, to) = (round % 2, 1 - round % 2);
            bed.set_state(to, 0, InstanceState::Active);
            bed.set_state(from, 0, InstanceState::Draining);
            bed.publish();
            bed.until("the gauges are those of now", |bed| {
                bed.slot(from).live_flows + bed.slot(to).live_flows == u64::from(FLOWS)
            });
            let (flows, moved) = (bed.slot(from).live_flows, moves(&bed).0);
            bed.ask(SwitchRequest::PurgeSlot(Slot(from)));
            bed.until("each flow has moved", |bed| {
                moves(bed).0 - moved == flows && bed.slot(from).live_flows == 0
            });
            load.wait_for(&mut bed, 200);
        }
        load.finish(&mut bed).assert_in_order();
        assert_eq!(WRONG.load(Ordering::Relaxed), 0, "packets with wrong state");
        let (_, cancelled) = moves(&bed);
        let stayed: u64 = [0, 1]
            .map(|slot| bed.slot(slot))
            .iter()
            .map(|of| of.stayed_at_limit + of.stayed_refused + of.stayed_without_room + of.stayed_gone)
            .sum();
        assert_eq!(stayed, cancelled);
        let workers = &bed.reading.workers;
        assert!(workers.iter().all(|of| of.state_moves > 0), "{workers:?}");
        let refused: u64 = workers.iter().map(|of| of.state_messages_refused).sum();
        assert!(
            refused <= 3 * cancelled,
            "{refused} messages of {cancelled} cancelled moves"
        );
        assert_eq!(workers.iter().map(|of| of.state_forgets_lost).sum::<u64>(), 0);
        bed.assert_accounts_close();
        assert_eq!(bed.reading.dropped(), 0);
        bed.finish();
    }
}

/// Requests that get no answer yet.
static UNANSWERED: AtomicU64 = AtomicU64::new(0);

/// An instance that has no CPU for longer than a move may last: its flows stay, and move when it answers again.
#[test]
fn flows_that_stayed_at_a_limit_are_tried_again() {
    fn silent_at_first(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
        let is_pass = matches!(Message::read(frame), Some((_, Message::Pass { .. })));
        let one_less = |left: u64| left.checked_sub(1);
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        if is_pass && UNANSWERED.fetch_update(success, failure, one_less).is_ok() {
            return None;
        }
        counting(frame, port, number)
    }
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut of = service(0, &[0], Match::default());
    (of.relaxed, of.moves_state) = (true, true);
    let mut bed = Bed::new(2, 1, vec![of]);
    bed.add_function(0, 0, 0, 1, 2, silent_at_first);
    let shape = Shape {
        flows: FLOWS,
        ..Shape::default()
    };
    let load = Load::start(&mut bed, shape);
    load.wait_for(&mut bed, 2 * u64::from(FLOWS));
    bed.add_function(1, 1, 0, 1, 2, counting);
    // Each flow stays once.
    UNANSWERED.store(FLOWS.into(), Ordering::Relaxed);
    bed.set_state(0, 0, InstanceState::Draining);
    bed.publish();
    bed.ask(SwitchRequest::PurgeSlot(Slot(0)));
    bed.until("each flow has moved", |bed| {
        moves(bed).0 == u64::from(FLOWS) && bed.slot(0).live_flows == 0
    });
    load.wait_for(&mut bed, 200);
    load.finish(&mut bed).assert_in_order();
    assert_eq!(WRONG.load(Ordering::Relaxed), 0, "packets with wrong state");
    assert!(
        bed.slot(0).stayed_at_limit >= u64::from(FLOWS),
        "{:?}",
        bed.slot(0)
    );
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 0);
    bed.finish();
}

/// The function of each instance refuses: no flow moves, and the instance says how many stay, and why.
#[test]
fn what_a_function_refuses_is_counted_for_its_instance() {
    fn refusing(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
        let Some((of_move, message)) = Message::read(frame) else {
            return echo(frame, port, number);
        };
        let says = match message {
            Message::Pass { port: of } => Message::Passed { of, by: of },
            Message::Export(_) => Message::Refused(NotMoved::Unsupported),
            _ => return None,
        };
        says.write(of_move, frame).map(|_| port)
    }
    let mut of = service(0, &[0], Match::default());
    (of.relaxed, of.moves_state) = (true, true);
    let mut bed = Bed::new(2, 1, vec![of]);
    bed.add_function(0, 0, 0, 1, 1, refusing);
    let shape = Shape {
        flows: FLOWS,
        ..Shape::default()
    };
    let load = Load::start(&mut bed, shape);
    load.wait_for(&mut bed, 2 * u64::from(FLOWS));
    bed.add_function(1, 1, 0, 1, 1, refusing);
    bed.set_state(0, 0, InstanceState::Draining);
    bed.publish();
    bed.ask(SwitchRequest::PurgeSlot(Slot(0)));
    bed.until("each flow stays", |bed| moves(bed).1 >= u64::from(FLOWS));
    load.finish(&mut bed).assert_perfect();
    let of = bed.slot(0);
    assert_eq!((moves(&bed).0, of.live_flows), (0, u64::from(FLOWS)), "{of:?}");
    assert!(of.stayed_refused > 0);
    assert_eq!(bed.slot(1).to_packets, 0);
    bed.finish();
}

/// Packets that enter an association are counted by one instance at a time, from however many workers they come: each gets
/// the number after the last one, whichever instance has had that.
#[test]
fn an_association_has_one_instance_and_moves_with_its_numbers() {
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    for workers in [1, 2, 3] {
        let mut of = service(0, &[0], Match::default());
        (of.relaxed, of.moves_state) = (true, true);
        of.affinity_key = AffinityKey::Spi;
        let outbound = |number: u8| Association {
            spi: SPI + u32::from(number),
            to: PEER,
            protects: Some(Selector {
                sources: vec![Prefix {
                    address: IpAddr::from([10, 0, 0, 16 * number]),
                    bits: 28,
                }],
                ..Selector::default()
            }),
        };
        of.associations = (0..3).map(outbound).collect();
        let mut bed = Bed::with(workers, 1, vec![of], |config| {
            config.timeouts = Timeouts::all(Nanos::from_millis(600));
        });
        bed.add(0, 0, 1, protecting);
        bed.add(1, 0, 1, protecting);
        PROTECTED.iter().for_each(|of| of.store(0, Ordering::Relaxed));
        let shape = Shape {
            flows: FLOWS,
            ..Shape::default()
        };
        let load = Load::start(&mut bed, shape);
        load.wait_for(&mut bed, 4 * u64::from(FLOWS));
        let mut round = 0;
        while moves(&bed).0 < 20 {
            round += 1;
            assert!(round < 100, "{:?} after {round} rounds", moves(&bed));
            let (from, to) = (round % 2, 1 - round % 2);
            bed.set_state(to, 0, InstanceState::Active);
            bed.set_state(from, 0, InstanceState::Draining);
            bed.publish();
            bed.until("each association is a flow", |bed| {
                bed.slot(from).live_flows + bed.slot(to).live_flows == 3
            });
            let flows = bed.slot(from).live_flows;
            let (moved, cancelled) = moves(&bed);
            bed.ask(SwitchRequest::PurgeSlot(Slot(from)));
            bed.until("each association has moved or stays", |bed| {
                let now = moves(bed);
                now.0 - moved + now.1 - cancelled == flows && bed.slot(from).live_flows == now.1 - cancelled
            });
            load.wait_for(&mut bed, 200);
        }
        load.finish(&mut bed).assert_in_order();
        assert_eq!(WRONG.load(Ordering::Relaxed), 0, "numbers came twice, or none");
        // A flow that is not listed ends; associations stay where their numbers are.
        bed.send(0, [udp_packet(1000, b"not protected").as_slice()]);
        bed.take_all(0, 1);
        bed.until("it is there", |bed| {
            bed.reading.workers.iter().map(|of| of.live_flows).sum::<u64>() == 4
        });
        bed.until("it has ended", |bed| {
            bed.reading.workers.iter().map(|of| of.live_flows).sum::<u64>() == 3
        });
        bed.assert_accounts_close();
        assert_eq!(bed.reading.dropped(), 0);
        bed.finish();
    }
}

/// An instance that translates hands over what it has: flows in order and with their state, all mappings though messages get
/// lost, and its ports; what came to those meanwhile follows.
#[test]
fn an_heir_gets_flows_mappings_and_ports() {
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let prefix = |address: [u8; 4], bits| Prefix {
        address: address.into(),
        bits,
    };
    let external = External::new(&[prefix([203, 0, 113, 4], 31)], 4032).unwrap();
    let from_outside = |host: u8, block: u16| {
        let to = external.ports_of(block).unwrap();
        let from = SocketAddr::from(([198, 51, 100, host], 443));
        let to = SocketAddr::from((to.address, to.first));
        let mut payload = [0; 18];
        payload[4..12].copy_from_slice(&1_u64.to_be_bytes());
        Frame::udp(from, to, &payload).unwrap().to_vec().unwrap()
    };
    for (workers, queues) in [(1, 1), (2, 1), (3, 2)] {
        TAKEN.store(0, Ordering::Relaxed);
        let matches = Match {
            src: Some(prefix([10, 0, 0, 0], 8)),
            ..Match::default()
        };
        let mut of = service(0, &[0], matches);
        (of.external, of.moves_state) = (Some(external.clone()), true);
        of.affinity_key = AffinityKey::Source;
        let mut bed = Bed::new(workers, 1, vec![of]);
        bed.add_function(0, 0, 0, 1, queues, counting);
        bed.plan.slots[0].as_mut().unwrap().block = Some(3);
        bed.publish();
        // Flows of both directions, all at the only instance.
        bed.send(
            0,
            (0..40)
                .map(|host| from_outside(host, 3))
                .collect::<Vec<_>>()
                .iter()
                .map(Vec::as_slice),
        );
        bed.take_all(0, 40);
        let shape = Shape {
            flows: FLOWS,
            ..Shape::default()
        };
        let load = Load::start(&mut bed, shape);
        load.wait_for(&mut bed, 2 * u64::from(FLOWS));
        bed.add_function(1, 1, 0, 1, queues, counting);
        bed.set_state(0, 0, InstanceState::Draining);
        bed.plan.slots[0].as_mut().unwrap().block = Some(3);
        bed.plan.slots[1].as_mut().unwrap().block = Some(0);
        bed.plan.mappings.heirs = vec![(Slot(0), Slot(1))];
        bed.publish();
        let told = |bed: &Bed, of: MappingsEvent| {
            bed.saw(|event| matches!(event, SwitchEvent::Mappings(event) if *event == of))
        };
        let moved = MappingsEvent::FlowsMoved { slot: Slot(0) };
        let mut rounds = 0;
        while bed.slot(0).live_flows > 0 || rounds == 0 {
            rounds += 1;
            assert!(rounds < 100, "{:?}", moves(&bed));
            bed.events.clear();
            bed.ask(SwitchRequest::PurgeSlot(Slot(0)));
            bed.until("its flows have been tried", |bed| told(bed, moved));
            bed.until("gauges are those of now", |bed| {
                let of = [0, 1].map(|slot| bed.slot(slot).live_flows);
                of.iter().sum::<u64>() == u64::from(FLOWS) + 40
            });
        }
        assert!(moves(&bed).0 >= u64::from(FLOWS) + 40, "{:?}", moves(&bed));
        let hand_over = MappingsRequest::HandOver {
            from: Slot(0),
            to: Slot(1),
        };
        for (refused, is_complete) in [(5, false), (u64::MAX, true)] {
            REFUSED.store(refused, Ordering::Relaxed);
            bed.events.clear();
            bed.ask(SwitchRequest::Mappings(hand_over));
            let over = MappingsEvent::HandedOver {
                slot: Slot(0),
                is_complete,
            };
            bed.until("the mappings are handed over", |bed| told(bed, over));
            assert_eq!(TAKEN.load(Ordering::Relaxed), (1 << MAPPINGS) - 1);
        }
        load.wait_for(&mut bed, 200);
        load.finish(&mut bed).assert_in_order();
        assert_eq!(WRONG.load(Ordering::Relaxed), 0, "packets with wrong state");
        // Until the plan says otherwise, what is new goes to the old one; it follows with the next purge.
        let before = bed.slot(0).to_packets;
        bed.send(0, [from_outside(100, 3).as_slice()]);
        bed.take_all(0, 1);
        bed.until("it is at the old one", |bed| bed.slot(0).to_packets == before + 1);
        bed.plan.slots[0].as_mut().unwrap().block = None;
        bed.plan.mappings.blocks = vec![(ServiceId(0), 3, Slot(1))];
        bed.publish();
        for _ in 0..100 {
            bed.events.clear();
            bed.ask(SwitchRequest::PurgeSlot(Slot(0)));
            bed.until("its last flow has been tried", |bed| told(bed, moved));
            bed.until("it has moved or stays", |bed| {
                bed.slot(0).live_flows + bed.slot(1).live_flows == u64::from(FLOWS) + 41
            });
            if bed.slot(0).live_flows == 0 {
                break;
            }
        }
        let hosts = [0, 100, 101].map(|host| from_outside(host, 3));
        bed.send(0, hosts.iter().map(Vec::as_slice));
        bed.take_all(0, hosts.len());
        // A client that had the old one has the heir, with a new flow, too.
        let (mut client, server) = ends(0);
        client.set_port(7);
        let new = Frame::udp(client, server, &[0; 18]).unwrap().to_vec().unwrap();
        bed.send(0, [new.as_slice()]);
        bed.take_all(0, 1);
        assert_eq!((bed.slot(0).to_packets, bed.slot(0).live_flows), (before + 1, 0));
        let ports = external.ports_of(3).unwrap();
        bed.events.clear();
        let count = MappingsRequest::Count { slot: Slot(1), ports };
        bed.ask(SwitchRequest::Mappings(count));
        let counted = MappingsEvent::Counted {
            slot: Slot(1),
            ports,
            mappings: ports.first.into(),
        };
        bed.until("they are counted", |bed| told(bed, counted));
        // One that is gone cannot give anything.
        bed.remove(0);
        bed.ask(SwitchRequest::Mappings(hand_over));
        let over = MappingsEvent::HandedOver {
            slot: Slot(0),
            is_complete: false,
        };
        bed.until("it is known to have failed", |bed| told(bed, over));
        assert_eq!(bed.reading.dropped(), 0);
        // Hosts have begun to count anew.
        WRONG.store(0, Ordering::Relaxed);
        bed.finish();
    }
}
