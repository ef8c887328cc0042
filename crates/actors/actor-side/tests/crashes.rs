//! Two processes, card and host, with one actor under load. One of them ends before an effect of a move, whichever: the
//! actor then runs on exactly one side, with the state behind its last message, each message is handled once and in order,
//! and what comes afterwards is answered. The processes are this test itself, with one test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actor_channel::{Declared, End, Limits, Order, Side};
use actor_migration::{Effect, Message as Move, Record};
use actor_objects::Objects;
use actor_runtime::{Actor, ActorId, Address, Context, Idle, Message, Outside, Progress, Settings};
use actor_side::{ActorSide, Begin, Member};
use model::Nanos;

const ACTOR: ActorId = ActorId(0);
const CLIENT: Address = Address::Outside(1);
/// Bytes of the actor's objects beside what it counts in.
const BALLAST: usize = 300_000;
const PATIENCE: Duration = Duration::from_secs(20);
/// Effects of a whole move that are counted: of the source, and of the target.
const EFFECTS: [u32; 2] = [9, 10];

/// Notes the last number and how many there were, and answers with both. A number that is not above the last one is
/// answered with 0.
struct Ledger;

impl Actor for Ledger {
    fn init(&mut self, context: &mut Context<'_>) {
        let objects = context.objects().unwrap();
        objects.allocate(16).unwrap();
        for place in 0..BALLAST / 1_000 {
            let id = objects.allocate(1_000).unwrap();
            objects.set(id, 0..1_000, place as u8).unwrap();
        }
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        let number = u64::from_le_bytes(message.body[..8].try_into().unwrap());
        let objects = context.objects().unwrap();
        let (id, bytes) = objects.iter().next().unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (last, count) = (word(0), word(8) + 1);
        let is_whole = objects
            .iter()
            .skip(1)
            .enumerate()
            .all(|(place, (_, bytes))| bytes[0] == place as u8);
        assert!(is_whole && objects.len() == 1 + BALLAST / 1_000);
        objects.write(id, 0, &number.to_le_bytes()).unwrap();
        objects.write(id, 8, &count.to_le_bytes()).unwrap();
        let told = if number > last { number } else { 0 };
        context.send(
            message.from,
            0,
            [told.to_le_bytes(), count.to_le_bytes()].concat(),
        );
        Progress::Done
    }
}

/// The card's network: numbers of the test come, answers go there.
struct Network {
    socket: UnixDatagram,
    client: PathBuf,
}

impl Outside for Network {
    fn poll(&mut self, now: Nanos, into: &mut Vec<Message>) {
        let mut number = [0; 8];
        while into.len() < 32 && self.socket.recv(&mut number).is_ok() {
            into.push(Message::new(
                Address::Actor(ACTOR),
                CLIENT,
                0,
                number.to_vec(),
                now,
            ));
        }
    }

    fn send(&mut self, messages: &mut Vec<Message>) {
        for message in messages.drain(..) {
            while self.socket.send_to(&message.body, &self.client).is_err() {
                std::thread::yield_now();
            }
        }
    }
}

/// The host has none.
struct Nobody;

impl Outside for Nobody {
    fn poll(&mut self, _: Nanos, _: &mut Vec<Message>) {}

    fn send(&mut self, messages: &mut Vec<Message>) {
        assert!(messages.is_empty());
    }
}

fn record(text: &str) -> Option<Record> {
    text.parse().ok().and_then(Record::from_bits)
}

fn text_of(record: Option<Record>) -> String {
    record.map_or("-".to_owned(), |record| record.to_bits().to_string())
}

fn say(text: &str) {
    // Not print!: the test harness would keep it.
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(format!("\n> {text}\n").as_bytes()).unwrap();
    stdout.flush().unwrap();
}

/// A file of another process.
fn open(path: &str) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

fn end_at(path: &str, side: Side) -> End {
    let declared = match side {
        Side::Card => Declared::CARD_TO_HOST,
        Side::Host => Declared::HOST_TO_CARD,
    };
    End::attach(open(path).as_fd(), side, Order::Declared(declared)).unwrap()
}

/// Whether a crash before this effect counts: those of single messages are too many.
fn counts(effect: &Effect<Message>) -> bool {
    !matches!(
        effect,
        Effect::Deliver(_) | Effect::Refuse(_) | Effect::Send(Move::Request(_) | Move::Forward(..))
    )
}

/// The process of a side.
#[test]
#[ignore = "the other test starts it"]
fn process() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let (name, folder) = (variable("SIDE"), PathBuf::from(variable("FOLDER")));
    let network: Box<dyn Outside> = if name == "card" {
        let path = folder.join("card");
        let _none = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_nonblocking(true).unwrap();
        Box::new(Network {
            socket,
            client: folder.join("client"),
        })
    } else {
        Box::new(Nobody)
    };
    let side = if name == "card" { Side::Card } else { Side::Host };
    let settings = Settings {
        idle: Idle::Sleep(Duration::from_micros(100)),
        ..Settings::first_come(1)
    };
    let make = |kind: &str, _| (kind == "ledger").then(|| Box::new(Ledger) as Box<dyn Actor>);
    let actors = ActorSide::new(side, &settings, network, Box::new(make));
    let crash_at: u32 = variable("CRASH_AT").parse().unwrap();
    let mut effects = 0;
    actors.watch(move |_, effect| {
        effects += u32::from(counts(effect));
        if counts(effect) && effects == crash_at {
            std::process::abort();
        }
    });
    let objects = Objects::open(open(&variable("REGION")).as_fd()).unwrap();
    let begin = match variable("BEGIN").split(' ').collect::<Vec<_>>()[..] {
        ["here"] => Begin::Here,
        ["away"] => Begin::Away,
        ["again", own, peer] => Begin::Again {
            own: record(own),
            peer: record(peer),
        },
        _ => panic!(),
    };
    // The client sends faster than the actor works.
    let member = Member {
        mailbox_limit: 1 << 20,
        held_limit: 1 << 20,
        ..Member::new(ACTOR, "ledger")
    };
    actors.add(member, objects, begin).unwrap();
    actors.attach(end_at(&variable("CHANNEL"), side)).unwrap();
    let threads = actors.runtime().start(|_| ()).unwrap();
    say("ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["move"] => say(if actors.move_away(ACTOR).is_ok() {
                "moves"
            } else {
                "stays"
            }),
            ["ended", of] => {
                actors.peer_ended(|_| record(of));
                say(&format!("heard {}", text_of(Some(actors.rows()[0].record))));
            }
            ["attach", path] => {
                actors.attach(end_at(path, side)).unwrap();
                say("attached");
            }
            ["status"] => {
                let row = &actors.rows()[0];
                let counts = actors.counts();
                assert_eq!((counts.nonsense, counts.channels_lost, counts.refused), (0, 0, 0));
                let runs = actors.runtime().actors();
                assert!(runs.iter().all(|row| row.counts.mailbox_full == 0));
                say(&format!("status {} {}", row.is_here, row.phase.is_none()));
            }
            _ => panic!("{line}"),
        }
    }
    drop(threads);
}

/// A process, as the test sees it.
struct Process {
    child: Child,
    stdin: ChildStdin,
    said: Receiver<String>,
}

impl Process {
    fn ask(&mut self, what: &str) -> Option<String> {
        writeln!(self.stdin, "{what}").ok()?;
        self.said.recv_timeout(PATIENCE).ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// A path by which another process opens this file.
fn path_of(file: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// The two sides, and what outlives them.
struct World {
    folder: tempfile::TempDir,
    channel: OwnedFd,
    /// Of the card, and of the host.
    regions: [OwnedFd; 2],
    sides: [Option<Process>; 2],
}

const NAMES: [&str; 2] = ["card", "host"];

fn region() -> OwnedFd {
    let limits = actor_objects::Limits {
        bytes: 1 << 20,
        objects: 1_024,
    };
    Objects::create(limits).unwrap().0
}

fn new_channel() -> OwnedFd {
    let order = Order::Declared(Declared::CARD_TO_HOST);
    End::create(Limits::default(), Side::Card, order, 7).unwrap().0
}

impl World {
    /// Both sides, with the actor on that one.
    fn new(at: usize, crash_at: [u32; 2]) -> World {
        let mut world = World {
            folder: tempfile::tempdir().unwrap(),
            channel: new_channel(),
            regions: [region(), region()],
            sides: [None, None],
        };
        for (side, crash_at) in crash_at.into_iter().enumerate() {
            let begin = if side == at { "here" } else { "away" };
            world.start(side, begin, crash_at);
        }
        world
    }

    fn start(&mut self, side: usize, begin: &str, crash_at: u32) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process", "--ignored", "--nocapture"])
            .env("SIDE", NAMES[side])
            .env("FOLDER", self.folder.path())
            .env("REGION", path_of(&self.regions[side]))
            .env("CHANNEL", path_of(&self.channel))
            .env("BEGIN", begin)
            .env("CRASH_AT", crash_at.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, said) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            let told = lines.map_while(Result::ok);
            let told = told.filter_map(|line| line.strip_prefix("> ").map(str::to_owned));
            told.map_while(|line| tell.send(line).ok()).for_each(drop);
        });
        let stdin = child.stdin.take().unwrap();
        let process = Process { child, stdin, said };
        assert_eq!(process.said.recv_timeout(PATIENCE).unwrap(), "ready");
        self.sides[side] = Some(process);
    }

    fn side(&mut self, side: usize) -> &mut Process {
        self.sides[side].as_mut().unwrap()
    }

    /// The side whose process has ended, if one has.
    fn ended(&mut self) -> Option<usize> {
        (0..2).find(|side| self.side(*side).child.try_wait().unwrap().is_some())
    }

    /// Tells the other side, then starts this one again.
    fn start_again(&mut self, side: usize) {
        self.sides[side] = None;
        let objects = Objects::open(self.regions[side].as_fd());
        let own = objects.ok().and_then(|objects| Record::from_bits(objects.mark()));
        if own.is_none() {
            self.regions[side] = region();
        }
        let other = 1 - side;
        let heard = self.side(other).ask(&format!("ended {}", text_of(own))).unwrap();
        let peer = heard.strip_prefix("heard ").unwrap().to_owned();
        self.channel = new_channel();
        let path = path_of(&self.channel);
        assert_eq!(
            self.side(other).ask(&format!("attach {path}")).unwrap(),
            "attached"
        );
        self.start(side, &format!("again {} {peer}", text_of(own)), 0);
    }

    /// On which side the actor is, once no move is under way.
    fn place(&mut self) -> usize {
        let since = Instant::now();
        loop {
            let told: Vec<String> = (0..2)
                .map(|side| self.side(side).ask("status").unwrap())
                .collect();
            let is_here = |side: usize| told[side].starts_with("status true");
            if told.iter().all(|told| told.ends_with("true")) && is_here(0) != is_here(1) {
                return usize::from(is_here(1));
            }
            assert!(since.elapsed() < PATIENCE, "{told:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A client of the card's network.
struct Client {
    socket: UnixDatagram,
    to: PathBuf,
    next: u64,
    /// Numbers and counts, as they came.
    answers: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Client {
    fn new(folder: &Path) -> Client {
        let (socket, own) = (UnixDatagram::bind(folder.join("client")), UnixDatagram::unbound());
        let (socket, own) = (socket.unwrap(), own.unwrap());
        own.set_nonblocking(true).unwrap();
        let answers = Arc::new(Mutex::new(Vec::new()));
        // It takes answers at once: the card waits for it. The thread ends with the program.
        let noted = Arc::clone(&answers);
        std::thread::spawn(move || {
            let mut answer = [0; 16];
            while socket.recv(&mut answer).is_ok() {
                let word = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().unwrap());
                noted.lock().unwrap().push((word(0), word(8)));
            }
        });
        Client {
            socket: own,
            to: folder.join("card"),
            next: 1,
            answers,
        }
    }

    fn answers(&self) -> Vec<(u64, u64)> {
        self.answers.lock().unwrap().clone()
    }

    /// Sends the next number, if somebody takes it.
    fn turn(&mut self) {
        if self.socket.send_to(&self.next.to_le_bytes(), &self.to).is_ok() {
            self.next += 1;
        } else {
            std::thread::yield_now();
        }
    }

    /// Until so many numbers were taken.
    fn send(&mut self, count: u64) {
        let (since, enough) = (Instant::now(), self.next + count);
        while self.next < enough {
            self.turn();
            assert!(since.elapsed() < PATIENCE, "{} of {enough} are taken", self.next);
        }
    }

    /// Until the last number is answered.
    fn settle(&self) {
        let since = Instant::now();
        while self
            .answers()
            .last()
            .is_none_or(|(number, _)| number + 1 < self.next)
        {
            let answers = self.answers().len();
            assert!(since.elapsed() < PATIENCE, "{answers} of {}", self.next - 1);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether each number was handled at most once and in order, and each changed the state once. Gives how many answers
    /// are missing.
    fn check(&self) -> u64 {
        let (mut before, answers) = ((0, 0), self.answers());
        for &(number, count) in &answers {
            assert!(number > before.0, "{number} after {}", before.0);
            assert!(
                count > before.1 && count <= number,
                "count {count} at {number} after {before:?}"
            );
            before = (number, count);
        }
        self.next - 1 - answers.len() as u64
    }
}

/// Moves the actor from that side under load; the process of a side ends at an effect.
fn crash(from: usize, crashing: usize, at: u32) {
    let mut crash_at = [0, 0];
    crash_at[crashing] = at;
    let mut world = World::new(from, crash_at);
    let mut client = Client::new(world.folder.path());
    client.send(20);
    client.settle();
    // One that ends before its first effect says nothing.
    let _moves = world.side(from).ask("move");
    let since = Instant::now();
    let ended = loop {
        client.turn();
        if let Some(ended) = world.ended() {
            break ended;
        }
        assert!(
            since.elapsed() < PATIENCE,
            "effect {at} of {} did not come",
            NAMES[crashing]
        );
    };
    assert_eq!(ended, crashing);
    for _ in 0..100 {
        client.turn();
    }
    world.start_again(crashing);
    let place = world.place();
    for _ in 0..200 {
        client.turn();
    }
    let first_sure = client.next;
    client.send(50);
    client.settle();
    client.check();
    let answers = client.answers();
    let sure: Vec<(u64, u64)> = answers
        .into_iter()
        .filter(|answer| answer.0 >= first_sure)
        .collect();
    assert_eq!(sure.len(), 50);
    let is_next = |pair: &[(u64, u64)]| pair[1].0 == pair[0].0 + 1 && pair[1].1 == pair[0].1 + 1;
    assert!(sure.windows(2).all(is_next), "{sure:?}");
    // It can move there and back.
    for from in [place, 1 - place] {
        assert_eq!(world.side(from).ask("move").unwrap(), "moves");
        client.send(20);
        assert_eq!(world.place(), 1 - from);
    }
    client.settle();
    client.check();
}

#[test]
fn an_actor_moves_between_processes_under_load() {
    let mut world = World::new(0, [0, 0]);
    let mut client = Client::new(world.folder.path());
    for turn in 0..10 {
        client.send(50);
        assert_eq!(world.side(turn % 2).ask("move").unwrap(), "moves");
        client.send(50);
        assert_eq!(world.place(), 1 - turn % 2);
    }
    client.settle();
    assert_eq!(client.check(), 0);
    assert_eq!(client.answers().last().unwrap().1, client.next - 1);
}

#[test]
fn a_source_that_ends_at_any_effect_loses_what_it_had_and_nothing_else() {
    for from in 0..2 {
        (1..=EFFECTS[0]).for_each(|at| crash(from, from, at));
    }
}

#[test]
fn a_target_that_ends_at_any_effect_loses_what_it_had_and_nothing_else() {
    for from in 0..2 {
        (1..=EFFECTS[1]).for_each(|at| crash(from, 1 - from, at));
    }
}
