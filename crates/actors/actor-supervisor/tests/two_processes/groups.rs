//! A side whose policy parts an actor from the others, and takes it back: inco hears of both, with what they depend on.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use actor_control::Side;
use actor_runtime::{Actor, ActorId, Address, Context, Group, Message, Progress};
use actor_scheduling::groups::Decided;
use actor_scheduling::{CoreId, Decision};
use actor_supervisor::{EventKind, Service};
use model::Nanos;

use crate::world::{WAIT, World, region};

const WORKER: ActorId = ActorId(1);
const THRESHOLD: Nanos = Nanos::from_millis(20);
/// What the first actor does for each message.
const FORWARDS: Nanos = Nanos::from_micros(100);
/// What the worker does: 16 of them at a time take longer than the threshold; and less than the other one.
const LONG: Nanos = Nanos::from_millis(5);
const SHORT: Nanos = Nanos::from_micros(20);
/// Requests without an answer, at most.
const WINDOW: usize = 16;

fn work(time: Nanos) {
    let until = clock::monotonic() + time;
    while clock::monotonic() < until {
        std::hint::spin_loop();
    }
}

/// Works for as long as it always does, and sends the message on to the worker.
pub(crate) struct Forwards;

impl Actor for Forwards {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        if let Address::Outside(client) = message.from {
            work(FORWARDS);
            let body = [&client.to_le_bytes()[..], &message.body].concat();
            context.send(Address::Actor(WORKER), 7, body);
        }
        Progress::Done
    }
}

/// Works for as many nanoseconds as the message says, and answers.
pub(crate) struct Works;

impl Actor for Works {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        let word = |at: usize| u64::from_le_bytes(message.body[at..at + 8].try_into().unwrap());
        work(Nanos(word(8)));
        context.send(Address::Outside(word(0)), 7, vec![0]);
        Progress::Done
    }
}

/// What the card has decided, once the worker is in this group.
fn decided(world: &World, group: Group) -> Option<Decided> {
    let mut all = world.events.iter().filter_map(|event| match &event.kind {
        EventKind::Decided(of) if event.side == Side::Card => Some(of),
        _ => None,
    });
    let found = all.find(|of| of.decisions.contains(&Decision::Actor(WORKER, group)))?;
    Some((**found).clone())
}

/// Asks for work until that is decided.
fn ask_until(world: &mut World, socket: &UdpSocket, time: Nanos, group: Group) -> Decided {
    let (began, mut heard, mut under_way) = (Instant::now(), Instant::now(), 0);
    loop {
        let mut answer = [0; 16];
        while socket.recv(&mut answer).is_ok() {
            (heard, under_way) = (Instant::now(), under_way - 1);
        }
        // The network may lose some.
        if heard.elapsed() > Duration::from_secs(1) {
            (heard, under_way) = (Instant::now(), 0);
        }
        while under_way < WINDOW as i32 {
            socket.send(&time.0.to_le_bytes()).unwrap();
            under_way += 1;
        }
        world.turn();
        if let Some(decided) = decided(world, group) {
            return decided;
        }
        assert!(began.elapsed() < WAIT, "{:?}", world.supervisor.rows());
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_side_says_which_groups_it_has_changed_and_why() {
    let mut service = Service::new(["forwards", "works"], region());
    for runs in &mut service.runs {
        (runs.cores, runs.tail_threshold) = (2, THRESHOLD);
    }
    let mut world = World::of(service, |address, _| format!("--udp {address}"));
    world.until_running();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect(world.address).unwrap();
    socket.set_nonblocking(true).unwrap();
    for (time, group) in [(LONG, Group::Drr), (SHORT, Group::Fcfs)] {
        let of = ask_until(&mut world, &socket, time, group);
        let case = &of.case;
        assert_eq!(case.decide(), of.decisions, "{of:#?}");
        assert_eq!((case.tail_threshold_ns, case.cores), (THRESHOLD.0, 2));
        let seen = case.actors.iter().find(|seen| seen.actor == WORKER).unwrap();
        assert_ne!(seen.group, group);
        if group == Group::Drr {
            assert!(
                case.line_tail_ns > THRESHOLD.0 && seen.service_tail_ns >= LONG.0,
                "{of:#?}"
            );
            // With the first actor of the round it has a core.
            assert!(
                of.decisions.contains(&Decision::Core(CoreId(1), group)) || case.round_cores == 1,
                "{of:#?}"
            );
        } else {
            assert!(seen.response_tail_ns < case.returns_below_ns, "{of:#?}");
        }
    }
}
