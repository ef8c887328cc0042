//! Native actors of a side in processes of their own: what one does that it must not ends its process only.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use actor_control::{Side, What};
use actor_processes::offence;
use actor_runtime::{Actor, ActorId, Address, Context, Message, Progress};
use actor_supervisor::EventKind;

use crate::groups;
use crate::world::{WAIT, World};

/// What a message asks for.
const COUNT: u8 = 0;
const LOOP: u8 = 1;
const WRITE: u8 = 2;
const ABORT: u8 = 3;
/// Where the actor's object lies in the memory of its process.
const PLACE: u8 = 4;

/// The kinds of these tests, and those that come with inco.
pub(crate) fn make(kind: &str, number: u32) -> Option<Box<dyn Actor>> {
    match kind.split(' ').next() {
        Some("relay") => Some(Box::new(Relay)),
        Some("tested") => Some(Box::new(Tested)),
        Some("forwards") => Some(Box::new(groups::Forwards)),
        Some("works") => Some(Box::new(groups::Works)),
        _ => inco_actors::kinds::make(kind, number),
    }
}

/// Sends a client's message to the actor whose number is its first byte.
struct Relay;

impl Actor for Relay {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        if let (Some((to, rest)), Address::Outside(client)) = (message.body.split_first(), message.from) {
            let body = [&client.to_le_bytes()[..], rest].concat();
            context.send(Address::Actor(ActorId(u32::from(*to))), 7, body);
        }
        Progress::Done
    }
}

/// Counts its messages in an object and answers the client; or does what it must not.
struct Tested;

impl Actor for Tested {
    fn init(&mut self, context: &mut Context<'_>) {
        context.objects().unwrap().allocate(8).unwrap();
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let (client, asked) = (word(&message.body), message.body[8]);
        let objects = context.objects().unwrap();
        let (id, bytes) = objects.iter().next().unwrap();
        let (count, place) = (word(bytes) + 1, bytes.as_ptr().addr() as u64);
        objects.write(id, 0, &count.to_le_bytes()).unwrap();
        match asked {
            LOOP => offence::run_for_ever(),
            WRITE => offence::write_to(word(&message.body[9..])),
            ABORT => std::process::abort(),
            _ => {}
        }
        let answer = [count, place].map(u64::to_le_bytes).concat();
        context.send(Address::Outside(client), 7, answer);
        Progress::Done
    }
}

/// A client that asks one after the other.
struct Client {
    socket: UdpSocket,
}

impl Client {
    fn new(to: SocketAddr) -> Client {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.connect(to).unwrap();
        socket.set_nonblocking(true).unwrap();
        Client { socket }
    }

    fn send(&self, actor: u8, asks: u8, more: &[u8]) {
        self.socket.send(&[&[actor, asks][..], more].concat()).unwrap();
    }

    /// The count of an actor after one more message, and the place of its object.
    fn ask(&self, world: &mut World, actor: u8, asks: u8) -> (u64, u64) {
        self.send(actor, asks, &[]);
        let (since, mut answer) = (Instant::now(), [0; 16]);
        while self.socket.recv(&mut answer).is_err() {
            world.turn();
            std::thread::sleep(Duration::from_micros(200));
            assert!(since.elapsed() < WAIT, "{actor}: {:?}", world.supervisor.rows());
        }
        let word = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().unwrap());
        (word(0), word(8))
    }
}

/// Why an actor was stopped, once it was.
fn stopped(world: &mut World, actor: u32) -> String {
    let failed = |world: &World| {
        let mut reasons = world.events.iter().filter_map(|event| match &event.kind {
            EventKind::Actor(of) if of.actor == actor => match &of.what {
                What::Failed { reason, .. } => Some(reason.clone()),
                _ => None,
            },
            _ => None,
        });
        reasons.next_back()
    };
    world.until("it is stopped", |world| failed(world).is_some());
    failed(world).unwrap()
}

#[test]
fn a_native_actor_in_a_process_of_its_own_takes_no_other_one_with_it() {
    let process = |name: &str| format!("tested process={name} budget_ms=60");
    let (left, right) = (process("left"), process("right"));
    // A relay, four actors of one group, one of another, and one in the process of the side.
    let kinds = ["relay", &left, &left, &left, &left, &right, "tested"];
    let mut world = World::new(&kinds);
    world.until_running();
    let client = Client::new(world.address);
    for count in 1..4 {
        for actor in 1..7 {
            assert_eq!(client.ask(&mut world, actor, COUNT).0, count);
        }
    }
    // The counts are those of the memory that inco has given.
    world.until("all is reported", |world| {
        (1..7).all(|actor| world.supervisor.rows()[actor].line.objects == 1)
    });
    let offends =
        |world: &mut World, (actor, asks): (u8, u8), more: &[u8], is_why: &str, left: &[(u8, u64)]| {
            client.send(actor, asks, more);
            let why = stopped(world, actor.into());
            assert!(why.contains(is_why), "{why}");
            // The others go on from their objects.
            for (other, count) in left {
                assert_eq!(client.ask(world, *other, COUNT).0, *count, "actor {other}");
            }
        };
    let all = [(2, 4), (3, 4), (4, 4), (5, 4), (6, 4)];
    offends(&mut world, (1, LOOP), &[], "more than its budget", &all);
    // The objects of an actor in the side's own process, which are not mapped in that of a group.
    let (_, place) = client.ask(&mut world, 6, PLACE);
    let more = place.to_le_bytes();
    let all = [(3, 5), (4, 5), (5, 5), (6, 6)];
    offends(&mut world, (2, WRITE), &more, "signal 11", &all);
    offends(&mut world, (3, ABORT), &[], "signal 6", &[(4, 6), (5, 6), (6, 7)]);
    // Neither process of a side has ended.
    assert_eq!(world.started, 2);
    let is_broken =
        |of: &actor_supervisor::Event| matches!(of.kind, EventKind::Ended { .. } | EventKind::Broken { .. });
    assert!(!world.events.iter().any(is_broken), "{:?}", world.events);

    // It moves as any other one, with what its process has written.
    for (to, count) in [(Side::Host, 7), (Side::Card, 8), (Side::Host, 9)] {
        world.moves(4, to);
        assert_eq!(client.ask(&mut world, 4, COUNT).0, count);
    }
    // A side that ends takes its groups with it, and they begin again with their objects.
    world.kill(Side::Host);
    world.start(Side::Host);
    world.until_running();
    assert_eq!(client.ask(&mut world, 4, COUNT).0, 10);
    assert_eq!(client.ask(&mut world, 5, COUNT).0, 7);
}
