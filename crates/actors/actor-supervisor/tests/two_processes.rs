//! Card and host as two processes of the program `inco-actors`, with clients over UDP. Processes are killed at any time under
//! load, while an actor moves: each request is answered at most once and in order, and changes the state once. The processes
//! are this test itself, with one test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use actor_control::{FromSide, InOfSide, Listener, Received, Side, VERSION, What};
use actor_supervisor::{Event, EventKind, Service, Supervisor, Wish};
use model::Nanos;

/// How long something may take on a machine that does other work.
const WAIT: Duration = Duration::from_secs(60);
/// Requests without an answer, at most: they fit into the socket's buffer.
const WINDOW: u64 = 64;
/// Processes that are killed, at least.
const KILLS: u64 = 40;

/// The process of a side.
#[test]
#[ignore = "the other tests start it"]
fn process() {
    let arguments = std::env::var("ARGUMENTS").unwrap();
    let arguments = arguments.split(' ').map(Into::into);
    assert_eq!(inco_actors::run(inco_actors::kinds::make, arguments), 0);
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// A service with its processes.
struct World {
    folder: tempfile::TempDir,
    address: SocketAddr,
    supervisor: Supervisor,
    processes: [Option<Process>; 2],
    started: u32,
    events: Vec<Event>,
}

fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.local_addr().unwrap()
}

fn region() -> actor_objects::Limits {
    actor_objects::Limits {
        bytes: 1 << 16,
        objects: 64,
    }
}

impl World {
    fn new(kinds: &[&str]) -> World {
        let service = Service::new(kinds.iter().copied(), region());
        let mut world = World {
            folder: tempfile::tempdir().unwrap(),
            address: free_address(),
            supervisor: Supervisor::new(service).unwrap(),
            processes: [None, None],
            started: 0,
            events: Vec::new(),
        };
        Side::BOTH.into_iter().for_each(|side| world.start(side));
        world
    }

    fn start(&mut self, side: Side) {
        self.started += 1;
        let path = self.folder.path().join(format!("{side}-{}.sock", self.started));
        let mut arguments = format!("inco-actors --side {side} --control {}", path.display());
        if side == Side::Card {
            arguments += &format!(" --udp {}", self.address);
        }
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process", "--ignored", "--nocapture"])
            .env("ARGUMENTS", arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.processes[side.index()] = Some(Process(child));
        self.supervisor.began(side, path, clock::monotonic());
    }

    fn kill(&mut self, side: Side) {
        self.processes[side.index()] = None;
        self.supervisor.ended(side).unwrap();
    }

    fn turn(&mut self) {
        self.supervisor.turn(clock::monotonic()).unwrap();
        self.events.extend(self.supervisor.take_events());
        for side in Side::BOTH {
            assert!(!self.supervisor.broken(side), "{side}: {:?}", self.events);
        }
    }

    /// Turns until something is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
        let since = Instant::now();
        while !is_so(self) {
            self.turn();
            std::thread::sleep(Duration::from_millis(1));
            assert!(since.elapsed() < WAIT, "{what}: {:?}", self.supervisor.rows());
        }
    }

    fn until_running(&mut self) {
        self.until("both run", |world| {
            Side::BOTH.iter().all(|side| world.supervisor.is_running(*side))
        });
    }

    /// Whether an actor is lost, by the events.
    fn is_lost(&self, actor: u32) -> bool {
        let lost = |event: &Event| matches!(&event.kind, EventKind::Actor(of) if of.actor == actor && of.what == What::Lost);
        self.events.iter().any(lost)
    }

    /// The side of an actor, once it is on one of them or lost.
    fn place(&mut self, actor: u32) -> Option<Side> {
        self.until("it is somewhere", |world| {
            world.supervisor.side_of(actor).is_some() || world.is_lost(actor)
        });
        self.supervisor.side_of(actor)
    }

    /// Has an actor move, and waits until it is there.
    fn moves(&mut self, actor: u32, to: Side) {
        let before = self.supervisor.rows()[actor as usize].moves;
        self.supervisor.command(actor, Wish::Move(to)).unwrap();
        self.until("it is there", |world| {
            let row = &world.supervisor.rows()[actor as usize];
            row.side == Some(to) && row.moves > before
        });
    }
}

/// A client that counts.
struct Client {
    socket: UdpSocket,
    to: SocketAddr,
    next: u64,
    /// Numbers and counts, as they came.
    answers: Vec<(u64, u64)>,
    /// The first number that was sent after the last loss.
    given_up: u64,
}

impl Client {
    fn new(to: SocketAddr) -> Client {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Client {
            socket,
            to,
            next: 1,
            answers: Vec::new(),
            given_up: 0,
        }
    }

    fn receive(&mut self) {
        let mut answer = [0; 64];
        while let Ok(length) = self.socket.recv(&mut answer) {
            assert_eq!(length, 16);
            let word = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().unwrap());
            self.answers.push((word(0), word(8)));
        }
    }

    /// Takes answers, and sends as many requests as may be without one.
    fn turn(&mut self) {
        self.receive();
        let answered = self.answers.last().map_or(0, |last| last.0).max(self.given_up);
        while self.next <= answered + WINDOW {
            if self.socket.send_to(&self.next.to_le_bytes(), self.to).is_err() {
                return;
            }
            self.next += 1;
        }
    }

    /// What has no answer gets none any more.
    fn give_up(&mut self) {
        self.given_up = self.next - 1;
    }

    /// Requests one after the other, each with its answer.
    fn ask(&mut self, count: u64, world: &mut World) {
        for _ in 0..count {
            let (number, since) = (self.next, Instant::now());
            self.socket.send_to(&number.to_le_bytes(), self.to).unwrap();
            self.next += 1;
            while self.answers.last().is_none_or(|last| last.0 < number) {
                world.turn();
                self.receive();
                std::thread::sleep(Duration::from_micros(200));
                assert!(
                    since.elapsed() < WAIT,
                    "{number} has no answer: {:?}",
                    world.supervisor.rows()
                );
            }
        }
    }

    /// Each number was answered at most once and in order, and changed the state once.
    fn check(&self) {
        let mut before = (0, 0);
        for &(number, count) in &self.answers {
            assert!(number > before.0, "{number} after {}", before.0);
            assert!(
                count > before.1 && count <= number,
                "count {count} at {number} after {before:?}"
            );
            before = (number, count);
        }
    }
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        // The generator of Knuth's MMIX.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn an_actor_moves_there_and_back_and_no_request_is_lost() {
    let mut world = World::new(&["counter", "echo"]);
    world.until_running();
    assert_eq!(world.place(0), Some(Side::Card));
    let mut client = Client::new(world.address);
    client.ask(5, &mut world);
    for to in [Side::Host, Side::Card, Side::Host, Side::Card] {
        client.turn();
        world.moves(0, to);
        client.ask(3, &mut world);
    }
    client.check();
    // All were answered, and each was counted.
    assert_eq!(client.answers.len() as u64, client.next - 1);
    assert!(client.answers.iter().all(|(number, count)| number == count));
    let rows = world.supervisor.rows();
    assert_eq!(
        (rows[0].moves, rows[1].moves, rows[1].side),
        (4, 0, Some(Side::Card))
    );
    world.until("all answers are counted", |world| {
        world.supervisor.counts(Side::Card).answers == client.next - 1
    });
}

#[test]
fn a_paused_actor_handles_nothing_until_it_goes_on() {
    let mut world = World::new(&["counter"]);
    world.until_running();
    assert_eq!(world.place(0), Some(Side::Card));
    let mut client = Client::new(world.address);
    client.ask(3, &mut world);
    let pause = world.supervisor.command(0, Wish::Pause).unwrap();
    world.until("it is paused", |world| world.supervisor.rows()[0].line.is_paused);
    client.turn();
    let waiting = client.next - 4;
    world.until("requests wait", |world| {
        world.supervisor.rows()[0].line.waiting == waiting
    });
    let refused = world.supervisor.command(0, Wish::Move(Side::Host)).unwrap();
    let resume = world.supervisor.command(0, Wish::Resume).unwrap();
    world.until("it has gone on", |world| {
        world.supervisor.rows()[0].line.served == 3 + waiting
    });
    let answers = world.supervisor.take_answers();
    let errors: Vec<_> = answers.iter().map(|of| (of.id, of.error.is_some())).collect();
    assert_eq!(errors, [(pause, false), (refused, true), (resume, false)]);
    client.ask(1, &mut world);
    client.check();
    assert_eq!(client.answers.len() as u64, client.next - 1);
}

#[test]
fn processes_are_killed_at_any_time_under_load() {
    let mut numbers = Numbers(22);
    let (mut kills, mut in_moves, mut recovered, mut lost) = (0, 0, 0, 0);
    while kills < KILLS {
        let mut world = World::new(&["counter", "counter"]);
        world.until_running();
        let mut client = Client::new(world.address);
        client.ask(3, &mut world);
        while kills < KILLS {
            let victim = Side::BOTH[numbers.below(2) as usize];
            let both = numbers.below(4) == 0;
            if let Some(side) = world.place(0)
                && numbers.below(3) > 0
            {
                world.supervisor.command(0, Wish::Move(side.other())).unwrap();
            }
            for _ in 0..numbers.below(400) {
                client.turn();
                world.turn();
            }
            kills += 1;
            let row = &world.supervisor.rows()[0];
            in_moves += u64::from(row.side.is_none() || row.line.phase.is_some());
            world.kill(victim);
            if both {
                kills += 1;
                world.kill(victim.other());
            }
            // The other one may go on meanwhile.
            for _ in 0..numbers.below(20) {
                client.turn();
                world.turn();
            }
            world.start(victim);
            if both {
                world.start(victim.other());
            }
            world.until_running();
            if world.place(0).is_none() {
                lost += 1;
                break;
            }
            client.give_up();
            client.ask(5, &mut world);
            client.check();
            let last = &client.answers[client.answers.len() - 5..];
            let is_next = |pair: &[(u64, u64)]| pair[1].0 == pair[0].0 + 1 && pair[1].1 == pair[0].1 + 1;
            assert!(last.windows(2).all(is_next), "{last:?}");
            recovered += 1;
        }
    }
    eprintln!(
        "{kills} killed, {in_moves} times in a move; {recovered} recovered, {lost} lost with a message under way"
    );
    // Most of the time no message is under way.
    assert!(recovered > lost, "{recovered} {lost}");
}

#[test]
fn a_process_that_ends_before_both_have_started_begins_anew() {
    let mut world = World::new(&["counter"]);
    // Without the host nothing starts.
    world.kill(Side::Host);
    for _ in 0..50 {
        world.turn();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!world.supervisor.is_running(Side::Card));
    world.start(Side::Host);
    world.until_running();
    let mut client = Client::new(world.address);
    client.ask(2, &mut world);
    assert_eq!(client.answers, [(1, 1), (2, 2)]);
}

#[test]
fn a_kind_that_nobody_makes_is_refused_with_its_name() {
    let mut world = World::new(&["counter", "dragon"]);
    let since = Instant::now();
    let reason = loop {
        world.supervisor.turn(clock::monotonic()).unwrap();
        let broken = |event: Event| match event.kind {
            EventKind::Broken { reason } => Some(reason),
            _ => None,
        };
        if let Some(reason) = world.supervisor.take_events().into_iter().find_map(broken) {
            break reason;
        }
        assert!(since.elapsed() < WAIT);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(reason.contains("no actor is of kind `dragon`"), "{reason}");
}

/// A side that says whatever the test says.
fn hostile(said: &[FromSide]) -> (Supervisor, InOfSide) {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("side.sock");
    let listener = Listener::bind(&path).unwrap();
    let mut supervisor = Supervisor::new(Service::new(["counter"], region())).unwrap();
    supervisor.began(Side::Card, path, Nanos(1));
    supervisor.turn(Nanos(1)).unwrap();
    let mut side = listener.accept().unwrap().unwrap();
    for said in said {
        assert!(side.send(said, None).unwrap());
    }
    supervisor.turn(Nanos(2)).unwrap();
    assert!(matches!(side.receive(), Received::Nothing | Received::Ended));
    (supervisor, side)
}

fn hello(version: u32, side: Side, has_begun: bool) -> FromSide {
    FromSide::Hello {
        version,
        side,
        has_begun,
    }
}

#[test]
fn a_side_that_breaks_the_rules_is_to_be_ended() {
    let right = hello(VERSION, Side::Card, false);
    let (supervisor, _side) = hostile(std::slice::from_ref(&right));
    assert!(!supervisor.broken(Side::Card));
    let report = FromSide::Report {
        rows: Vec::new(),
        events: Vec::new(),
        counts: Default::default(),
    };
    let heard = FromSide::Heard { records: Vec::new() };
    let answer = FromSide::Answer { id: 1, error: None };
    let wrong = [
        vec![hello(VERSION + 1, Side::Card, false)],
        vec![hello(VERSION, Side::Host, false)],
        vec![hello(VERSION, Side::Card, true)],
        vec![FromSide::Ready],
        vec![right.clone(), right.clone()],
        vec![right.clone(), FromSide::Ready],
        vec![right.clone(), report],
        vec![right.clone(), heard],
        vec![right.clone(), answer],
    ];
    for said in wrong {
        let (mut supervisor, _side) = hostile(&said);
        assert!(supervisor.broken(Side::Card), "{said:?}");
        let events = supervisor.take_events();
        assert!(
            matches!(
                events[..],
                [Event {
                    kind: EventKind::Broken { .. },
                    ..
                }]
            ),
            "{events:?}"
        );
    }
    // One that says nothing.
    let (mut supervisor, _side) = hostile(&[]);
    supervisor.turn(Nanos(0) + actor_supervisor::PATIENCE).unwrap();
    assert!(!supervisor.broken(Side::Card));
    supervisor.turn(Nanos(10) + actor_supervisor::PATIENCE).unwrap();
    assert!(supervisor.broken(Side::Card));
}
