//! Flows that move with the state of their function between workers and instances, under load.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use model::{InstanceState, Match, Slot, Tuple};
use packet::Parsed;
use state_moves::{FRAME_BYTES_LIMIT, Message, NotMoved};
use switch::SwitchRequest;

use crate::bed::{Bed, echo, service};
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
        let length = answer(message, &mut state);
        let says = match message {
            Message::Pass { port: of } => Message::Passed { of, by: of },
            Message::Export(_) => Message::Exported(&state[..length.unwrap()]),
            Message::Import(..) => Message::Imported,
            Message::Forget(_) => return None,
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
/// a function may wait for a CPU for longer than a move may last: then the flow stays, and its state with it.
#[test]
fn flows_of_several_workers_move_with_their_state_and_in_order() {
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
            let flows = bed.slot(from).live_flows;
            let (moved, cancelled) = moves(&bed);
            bed.ask(SwitchRequest::PurgeSlot(Slot(from)));
            bed.until("each flow has moved or stays", |bed| {
                let now = moves(bed);
                now.0 - moved + now.1 - cancelled == flows && bed.slot(from).live_flows == now.1 - cancelled
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
    bed.until("each flow stays", |bed| moves(bed) == (0, u64::from(FLOWS)));
    load.finish(&mut bed).assert_perfect();
    let of = bed.slot(0);
    assert_eq!(of.stayed_refused + of.stayed_at_limit, u64::from(FLOWS), "{of:?}");
    assert!(of.stayed_refused > 0);
    assert_eq!(bed.slot(1).to_packets, 0);
    bed.finish();
}
