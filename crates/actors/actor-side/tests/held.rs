//! Both sides in one thread, whose cores take turns: what waits for an actor that moves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

use actor_channel::{Declared, End, Limits, Order, Side};
use actor_objects::Objects;
use actor_runtime::{Actor, ActorId, Address, Context, CoreId, Message, Outside, Progress, Settings};
use actor_side::{ActorSide, Begin, EventKind, Member};
use model::Nanos;

const ACTOR: ActorId = ActorId(0);
/// Messages that its mailbox holds, and that come while it moves.
const MAILBOX: usize = 4;
const BURST: u8 = 200;

type Handled = Arc<Mutex<Vec<u8>>>;

/// Notes what it handles.
struct Notes(Handled);

impl Actor for Notes {
    fn init(&mut self, context: &mut Context<'_>) {
        context.objects().unwrap().allocate(16).unwrap();
    }

    fn exec(&mut self, message: &mut Message, _: &mut Context<'_>) -> Progress {
        self.0.lock().unwrap().push(message.body[0]);
        Progress::Done
    }
}

struct Nobody;

impl Outside for Nobody {
    fn poll(&mut self, _: Nanos, _: &mut Vec<Message>) {}

    fn send(&mut self, _: &mut Vec<Message>) {}
}

fn side(which: Side, end: End, handled: &Handled) -> ActorSide {
    let settings = Settings::first_come(1);
    let handled = Arc::clone(handled);
    let make = move |_: &str, _| Some(Box::new(Notes(Arc::clone(&handled))) as Box<dyn Actor>);
    let side = ActorSide::new(which, &settings, Box::new(Nobody), Box::new(make));
    let limits = actor_objects::Limits {
        bytes: 1 << 16,
        objects: 16,
    };
    let (region, objects) = Objects::create(limits).unwrap();
    drop(region);
    let member = Member {
        mailbox_limit: MAILBOX,
        ..Member::new(ACTOR, "notes")
    };
    let begin = if which == Side::Card {
        Begin::Here
    } else {
        Begin::Away
    };
    side.add(member, objects, begin).unwrap();
    side.attach(end).unwrap();
    side
}

/// More messages come during a move than the mailbox holds: each is handled once and in order, by whichever side has the
/// actor in the end.
#[test]
fn what_is_held_during_a_move_needs_no_room_in_the_mailbox() {
    for is_cancelled in [false, true] {
        let order = Order::Declared(Declared::CARD_TO_HOST);
        let (file, card_end) = End::create(Limits::default(), Side::Card, order, 7).unwrap();
        let order = Order::Declared(Declared::HOST_TO_CARD);
        let host_end = End::attach(file.as_fd(), Side::Host, order).unwrap();
        let handled = Handled::default();
        let card = side(Side::Card, card_end, &handled);
        let host = side(Side::Host, host_end, &handled);
        let mut cores = [&card, &host].map(|side| side.runtime().core(CoreId(0)));
        card.move_away(ACTOR).unwrap();
        for number in 0..BURST {
            let message = Message::new(
                Address::Actor(ACTOR),
                Address::Outside(1),
                0,
                vec![number],
                Nanos::ZERO,
            );
            card.runtime().deliver(message).unwrap();
        }
        // The card takes what was diverted, and holds it.
        cores[0].turn();
        assert_eq!(card.rows()[0].held, usize::from(BURST));
        if is_cancelled {
            card.cancel(ACTOR);
        }
        let mut ended = Vec::new();
        for _ in 0..10_000 {
            cores.iter_mut().for_each(|core| {
                core.turn();
            });
            ended.extend(
                card.take_events()
                    .into_iter()
                    .filter_map(|event| match event.kind {
                        EventKind::Ended(outcome) => Some(outcome),
                        EventKind::Phase(_) => None,
                    }),
            );
        }
        assert_eq!(ended.len(), 1, "{ended:?}");
        assert_eq!(host.rows()[0].is_here, !is_cancelled);
        assert_eq!(*handled.lock().unwrap(), (0..BURST).collect::<Vec<u8>>());
        for side in [&card, &host] {
            assert_eq!(side.counts().refused, 0);
            let rows = side.runtime().actors();
            assert!(rows.iter().all(|row| row.counts.mailbox_full == 0));
        }
    }
}
