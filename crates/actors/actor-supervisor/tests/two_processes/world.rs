//! A service with its processes, and its clients.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use actor_control::{Side, What};
use actor_supervisor::{Event, EventKind, Service, Supervisor, Wish};
use keeper::Entry;

/// How long something may take on a machine that does other work.
pub(crate) const WAIT: Duration = Duration::from_secs(60);
/// Requests without an answer, at most: they fit into the socket's buffer.
const WINDOW: u64 = 64;
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// A service with its processes.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) supervisor: Supervisor,
    pub(crate) processes: [Option<Process>; 2],
    network: fn(SocketAddr, &Path) -> String,
    service: Service,
    paths: [PathBuf; 2],
    /// What a keeper has.
    kept: Vec<Entry>,
    changes: u64,
    pub(crate) started: u32,
    pub(crate) events: Vec<Event>,
}

fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.local_addr().unwrap()
}

pub(crate) fn region() -> actor_objects::Limits {
    actor_objects::Limits {
        bytes: 1 << 16,
        objects: 64,
    }
}

impl World {
    pub(crate) fn new(kinds: &[&str]) -> World {
        World::with_network(kinds, |address, _| format!("--udp {address}"))
    }

    /// The same with another network of the card: what its options are, by the free address and the folder.
    pub(crate) fn with_network(kinds: &[&str], network: fn(SocketAddr, &Path) -> String) -> World {
        World::of(Service::new(kinds.iter().copied(), region()), network)
    }

    /// A service, with a network of the card.
    pub(crate) fn of(service: Service, network: fn(SocketAddr, &Path) -> String) -> World {
        let mut world = World {
            folder: tempfile::tempdir().unwrap(),
            address: free_address(),
            supervisor: Supervisor::new(service.clone()).unwrap(),
            service,
            paths: [PathBuf::new(), PathBuf::new()],
            kept: Vec::new(),
            changes: 0,
            processes: [None, None],
            network,
            started: 0,
            events: Vec::new(),
        };
        Side::BOTH.into_iter().for_each(|side| world.start(side));
        world
    }

    pub(crate) fn start(&mut self, side: Side) {
        self.started += 1;
        let path = self.folder.path().join(format!("{side}-{}.sock", self.started));
        let mut arguments = format!("inco-actors --side {side} --control {}", path.display());
        if side == Side::Card {
            let network = (self.network)(self.address, self.folder.path());
            arguments += &format!(" {network}");
        }
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process", "--ignored", "--nocapture"])
            .env("ARGUMENTS", arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.processes[side.index()] = Some(Process(child));
        self.paths[side.index()] = path.clone();
        self.supervisor.began(side, path, clock::monotonic());
    }

    pub(crate) fn kill(&mut self, side: Side) {
        self.processes[side.index()] = None;
        self.supervisor.ended(side).unwrap();
    }

    /// Another inco takes the place of this one.
    pub(crate) fn resume(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        self.supervisor = Supervisor::resume(self.service.clone(), kept).unwrap();
        self.changes = u64::MAX;
        for side in Side::BOTH {
            match &self.processes[side.index()] {
                Some(_) => {
                    let path = self.paths[side.index()].clone();
                    self.supervisor.began(side, path, clock::monotonic());
                }
                None => self.supervisor.ended(side).unwrap(),
            }
        }
    }

    /// Keeps what has changed, and does what can be done.
    pub(crate) fn turn(&mut self) {
        if self.supervisor.changes() != self.changes {
            self.kept = self.supervisor.entries("kv").unwrap();
            self.changes = self.supervisor.changes();
        }
        self.supervisor.turn(clock::monotonic()).unwrap();
        self.events.extend(self.supervisor.take_events());
        for side in Side::BOTH {
            assert!(!self.supervisor.broken(side), "{side}: {:?}", self.events);
        }
    }

    /// Turns until something is so.
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&World) -> bool) {
        let since = Instant::now();
        while !is_so(self) {
            self.turn();
            std::thread::sleep(Duration::from_millis(1));
            assert!(since.elapsed() < WAIT, "{what}: {:?}", self.supervisor.rows());
        }
    }

    pub(crate) fn until_running(&mut self) {
        self.until("both run", |world| {
            Side::BOTH.iter().all(|side| world.supervisor.is_running(*side))
        });
    }

    /// Whether an actor is lost, by the events.
    pub(crate) fn is_lost(&self, actor: u32) -> bool {
        let lost = |event: &Event| match &event.kind {
            EventKind::Actor(of) => of.actor == actor && of.what == What::Lost,
            _ => false,
        };
        self.events.iter().any(lost)
    }

    /// The side of an actor, once it is on one of them or lost.
    pub(crate) fn place(&mut self, actor: u32) -> Option<Side> {
        self.until("it is somewhere", |world| {
            world.supervisor.side_of(actor).is_some() || world.is_lost(actor)
        });
        self.supervisor.side_of(actor)
    }

    /// Has an actor move, and waits until it is there.
    pub(crate) fn moves(&mut self, actor: u32, to: Side) {
        let before = self.supervisor.rows()[actor as usize].moves;
        self.supervisor.command(actor, Wish::Move(to)).unwrap();
        self.until("it is there", |world| {
            let row = &world.supervisor.rows()[actor as usize];
            row.side == Some(to) && row.moves > before
        });
    }
}

/// A client that counts.
pub(crate) struct Client {
    socket: UdpSocket,
    to: SocketAddr,
    pub(crate) next: u64,
    /// Numbers and counts, as they came.
    pub(crate) answers: Vec<(u64, u64)>,
    /// The first number that was sent after the last loss.
    given_up: u64,
}

impl Client {
    pub(crate) fn new(to: SocketAddr) -> Client {
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

    pub(crate) fn receive(&mut self) {
        let mut answer = [0; 64];
        while let Ok(length) = self.socket.recv(&mut answer) {
            assert_eq!(length, 16);
            let word = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().unwrap());
            self.answers.push((word(0), word(8)));
        }
    }

    /// Takes answers, and sends as many requests as may be without one.
    pub(crate) fn turn(&mut self) {
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
    pub(crate) fn give_up(&mut self) {
        self.given_up = self.next - 1;
    }

    /// A window of requests, until all are answered.
    pub(crate) fn settle_alone(&mut self) {
        let since = Instant::now();
        self.turn();
        while self.answers.last().map(|last| last.0) != Some(self.next - 1) {
            self.receive();
            std::thread::sleep(Duration::from_millis(1));
            assert!(
                since.elapsed() < WAIT,
                "{:?} of {}",
                self.answers.last(),
                self.next - 1
            );
        }
    }

    /// Requests one after the other, each with its answer.
    pub(crate) fn ask(&mut self, count: u64, world: &mut World) {
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
    pub(crate) fn check(&self) {
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
