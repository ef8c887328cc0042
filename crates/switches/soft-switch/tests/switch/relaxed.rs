//! Flows that move between instances that are well, under load.

use model::{InstanceState, Match, Slot};
use switch::SwitchRequest;

use crate::bed::{Bed, echo, service};
use crate::load::{Load, Shape};

/// Flows of the load, and packets of each that are under way at most: 256 in all.
const FLOWS: u32 = 32;
const UNDER_WAY: u64 = 256 / FLOWS as u64;

/// Moves all flows to and fro until enough of them waited for their packets. On a busy machine a function may have to
/// wait for a CPU for longer than a flow is held: such a move is counted, and may let as many packets overtake others
/// as were under way. (`tests/worker/moves.rs` holds a flow with a clock of its own.)
#[test]
fn flows_change_instances_under_load_and_keep_their_order() {
    let mut of = service(0, &[0, 1], Match::default());
    of.relaxed = true;
    let mut bed = Bed::new(2, 2, vec![of]);
    bed.add_function(0, 0, 0, 2, 1, echo);
    bed.add_function(1, 1, 0, 2, 1, echo);
    let shape = Shape {
        flows: FLOWS,
        two_uplinks: true,
        ..Shape::default()
    };
    let load = Load::start(&mut bed, shape);
    let moves = |bed: &Bed| -> (u64, u64) {
        let of = &bed.reading.workers;
        (
            of.iter().map(|w| w.held_moves).sum(),
            of.iter().map(|w| w.early_moves).sum(),
        )
    };
    for round in 0..40 {
        let (from, to) = (round % 2, 1 - round % 2);
        bed.set_state(to, 0, InstanceState::Active);
        bed.publish();
        load.wait_for(&mut bed, 300);
        bed.set_state(from, 0, InstanceState::Draining);
        bed.publish();
        bed.ask(SwitchRequest::PurgeSlot(Slot(from)));
        load.wait_for(&mut bed, 300);
        bed.until("it has no flow", |bed| {
            bed.slot(from).live_flows == 0 && bed.is_empty(from)
        });
        let (held, early) = moves(&bed);
        if held - early >= 100 {
            break;
        }
    }
    let outcome = load.finish(&mut bed);
    let (held, early) = moves(&bed);
    assert!(
        held >= u64::from(FLOWS),
        "{held} moves waited, {early} of them in vain"
    );
    assert!(
        outcome.late <= early * UNDER_WAY,
        "{early} early moves, {outcome:?}"
    );
    assert_eq!((outcome.sent - outcome.received, outcome.wrong_uplink), (0, 0));
    // A flow that has no packet between two moves has moved there and back unseen.
    assert!(outcome.moves >= u64::from(FLOWS), "{outcome:?}");
    bed.assert_accounts_close();
    assert_eq!(bed.reading.dropped(), 0);
    bed.finish();
}
