use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::burst::Verdict;

const SETUP: Setup = Setup {
    instance: 1,
    ports: 1,
    seed: 3,
    external: None,
};
const PORT: u16 = 9105;
const CLIENT: u8 = 9;

fn endpoint(host: u8) -> SocketAddr {
    let port = if host == CLIENT { 40_000 } else { PORT };
    SocketAddr::from(([10, 0, 0, host], port))
}

/// A replica between its neighbours in a chain of hosts.
fn text(chain: &[u8], at: usize) -> String {
    let one = |host: u8| {
        format!(
            "address = \"{}\"\nmac = \"02:00:00:00:00:{host:02x}\"\n",
            endpoint(host)
        )
    };
    let mut text = one(chain[at]) + "keys_limit = 6\nvalue_bytes = 20\npending_limit = 5\n";
    if let Some(before) = at.checked_sub(1) {
        text += &format!("[predecessor]\n{}", one(chain[before]));
    }
    if let Some(after) = chain.get(at + 1) {
        text += &format!("[successor]\n{}", one(*after));
    }
    text
}

fn compile(text: &str) -> Configuration {
    Replica::compile(text, &SETUP).unwrap()
}

fn message(kind: u8, key: u64, value: &[u8]) -> Vec<u8> {
    let message = Message {
        kind,
        detail: 0,
        len: value.len() as u16,
        request: 7,
        key,
        version: 0,
        client: endpoint(0),
        mac: [0; 6],
    };
    let mut bytes = message.bytes().to_vec();
    bytes.extend(value);
    if kind == READ {
        bytes.extend([0; 20]);
    }
    bytes
}

fn frame(host: u8, payload: &[u8]) -> Vec<u8> {
    let frame = Frame::udp(endpoint(CLIENT), endpoint(host), payload).unwrap();
    frame.to_vec().unwrap()
}

/// Gives a frame to a replica. Returns what it sends, by the hosts to which that goes.
fn give(replica: &mut Replica, frame: &[u8], now: Nanos) -> Vec<(u8, Vec<u8>)> {
    let mut burst = Burst::new();
    burst.begin(0, 0);
    assert!(burst.push(frame));
    replica.process(&mut burst, now);
    sent(&mut burst)
}

fn tick(replica: &mut Replica, now: Nanos) -> Vec<(u8, Vec<u8>)> {
    let mut burst = Burst::new();
    burst.begin(0, 0);
    replica.tick(&mut burst, now);
    sent(&mut burst)
}

fn sent(burst: &mut Burst) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(packet) = burst.packet(at) {
        at += 1;
        if packet.verdict() == Verdict::Answer {
            let frame = packet.frame();
            let ports = [PORT, 40_000].map(|port| requests::find(frame, port));
            let to = ports.iter().find_map(|found| match found {
                Found::Request(request) => Some(request.destination),
                _ => None,
            });
            let Some(SocketAddr::V4(to)) = to else {
                panic!("{frame:02x?}")
            };
            let host = to.ip().octets()[3];
            let mac = if host == CLIENT {
                [2, 0, 0, 0, 0, 1]
            } else {
                [2, 0, 0, 0, 0, host]
            };
            assert_eq!(frame[..6], mac);
            all.push((host, frame.to_vec()));
        }
    }
    all
}

fn parse(frame: &[u8]) -> (Message, Vec<u8>) {
    let (message, value) = Message::read(&frame[42..]).unwrap();
    (message, value[..usize::from(message.len)].to_vec())
}

type Map = HashMap<u64, (u64, Vec<u8>)>;

fn map(replica: &Replica) -> Map {
    let keys = (0..10).filter_map(|key| {
        let (version, value) = replica.state.store.get(key)?;
        Some((key, (version, value.to_vec())))
    });
    keys.collect()
}

/// A chain over a network that loses, doubles and reorders packets, with a model of what the head has taken.
struct World {
    chain: Vec<u8>,
    replicas: HashMap<u8, Replica>,
    under_way: Vec<(u8, Vec<u8>)>,
    /// The map after each update that the head has taken.
    history: Vec<Map>,
    now: Nanos,
    answers: usize,
}

impl World {
    fn new() -> World {
        let chain = vec![1, 2, 3];
        let replica = |at: usize| (chain[at], Replica::new(compile(&text(&chain, at)), &SETUP));
        World {
            replicas: (0..3).map(replica).collect(),
            chain,
            under_way: Vec::new(),
            history: vec![Map::new()],
            now: Nanos::from_secs(1),
            answers: 0,
        }
    }

    fn deliver(&mut self, host: u8, frame: &[u8]) {
        if host == CLIENT {
            return self.answered(frame);
        }
        let Some(replica) = self.replicas.get_mut(&host) else {
            return;
        };
        let before = replica.applied;
        let sent = give(replica, frame, self.now);
        if host == self.chain[0] && replica.applied > before {
            assert_eq!(replica.applied, self.history.len() as u64);
            let (message, value) = parse(frame);
            let mut next = self.history.last().unwrap().clone();
            if message.kind == WRITE {
                next.insert(message.key, (replica.applied, value));
            } else {
                next.remove(&message.key);
            }
            self.history.push(next);
        }
        self.under_way.extend(sent);
        assert_eq!(
            map(&self.replicas[&host]),
            self.history[self.replicas[&host].applied as usize]
        );
    }

    fn answered(&mut self, frame: &[u8]) {
        let (message, value) = parse(frame);
        self.answers += 1;
        assert_eq!(message.request, 7);
        if message.detail != DONE {
            return;
        }
        // What the tail has told a client, each replica has.
        assert!(
            self.replicas
                .values()
                .all(|replica| replica.applied >= message.version)
        );
        let found = self.history[message.version as usize].get(&message.key);
        match message.kind {
            of if of == READ | ANSWER => assert_eq!(found, Some(&(message.version, value))),
            of if of == WRITE | ANSWER => assert_eq!(found.unwrap().0, message.version),
            _ => assert_eq!((message.kind, found), (REMOVE | ANSWER, None)),
        }
    }

    fn fail(&mut self, at: usize) {
        let host = self.chain.remove(at);
        self.replicas.remove(&host);
        for (at, host) in self.chain.iter().enumerate() {
            drop(
                self.replicas
                    .get_mut(host)
                    .unwrap()
                    .reload(compile(&text(&self.chain, at))),
            );
        }
        // What no other replica has got was never answered, and is lost.
        self.history
            .truncate(self.replicas[&self.chain[0]].applied as usize + 1);
    }

    fn let_time_pass(&mut self) {
        self.now = self.now + Nanos::from_millis(20);
        for replica in self.replicas.values_mut() {
            if replica.due().is_some_and(|due| due <= self.now) {
                self.under_way.extend(tick(replica, self.now));
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            while !self.under_way.is_empty() {
                let (host, frame) = self.under_way.remove(0);
                self.deliver(host, &frame);
            }
            self.let_time_pass();
        }
        assert!(self.under_way.is_empty());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u8, u64, Vec<u8>),
    Deliver(usize),
    Lose(usize),
    Double(usize),
    Tick,
    Fail(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop::collection::vec(any::<u8>(), 0..21);
    prop_oneof![
        8 => (WRITE..=REMOVE, 0..8_u64, value).prop_map(|(kind, key, value)| {
            Step::Ask(kind, key, if kind == WRITE { value } else { Vec::new() })
        }),
        16 => any::<usize>().prop_map(Step::Deliver),
        2 => any::<usize>().prop_map(Step::Lose),
        2 => any::<usize>().prop_map(Step::Double),
        2 => Just(Step::Tick),
        1 => any::<usize>().prop_map(Step::Fail),
    ]
}

proptest! {
    #[test]
    fn replicas_agree_and_what_a_client_was_told_stays(steps in prop::collection::vec(step(), 1..200)) {
        let mut world = World::new();
        for step in steps {
            let count = world.under_way.len();
            match step {
                Step::Ask(kind, key, value) => {
                    let host = if kind == READ { world.chain.last() } else { world.chain.first() };
                    let host = *host.unwrap();
                    world.under_way.push((host, frame(host, &message(kind, key, &value))));
                }
                Step::Deliver(at) if count > 0 => {
                    let (host, frame) = world.under_way.swap_remove(at % count);
                    world.deliver(host, &frame);
                }
                Step::Lose(at) if count > 0 => drop(world.under_way.swap_remove(at % count)),
                Step::Double(at) if count > 0 => world.under_way.push(world.under_way[at % count].clone()),
                Step::Tick => world.let_time_pass(),
                Step::Fail(at) if world.chain.len() > 1 => {
                    // A client's request that is on its way to a replica which is none any more is answered by none, and
                    // one that was on its way to the one before is served.
                    world.under_way.retain(|(host, _)| *host != CLIENT);
                    world.fail(at % world.chain.len());
                }
                _ => {}
            }
        }
        world.settle();
        for host in &world.chain {
            prop_assert_eq!(&map(&world.replicas[host]), world.history.last().unwrap());
            prop_assert_eq!(world.replicas[host].acknowledged, world.replicas[host].applied);
        }
    }

    #[test]
    fn foreign_requests_are_refused_or_answered(kind in 0..8_u8, mut payload in prop::collection::vec(0..3_u8, 0..80)) {
        if let Some(first) = payload.first_mut() {
            *first = kind;
        }
        let mut replica = Replica::new(compile(&text(&[1, 2, 3], 1)), &SETUP);
        for (host, sent) in give(&mut replica, &frame(2, &payload), Nanos::ZERO) {
            prop_assert_eq!((host, parse(&sent).0.detail), (CLIENT, WRONG_REPLICA));
        }
        prop_assert_eq!(replica.applied, 0, "only the predecessor gives it updates");
    }
}

#[test]
fn a_write_passes_down_the_chain_and_the_tail_answers() {
    let mut world = World::new();
    let request = frame(1, &message(WRITE, 5, b"hello"));
    let sent = give(world.replicas.get_mut(&1).unwrap(), &request, Nanos::ZERO);
    assert_eq!(sent.iter().map(|of| of.0).collect::<Vec<_>>(), [2]);
    let sent = give(world.replicas.get_mut(&2).unwrap(), &sent[0].1, Nanos::ZERO);
    assert_eq!(sent.iter().map(|of| of.0).collect::<Vec<_>>(), [3]);
    let sent = give(world.replicas.get_mut(&3).unwrap(), &sent[0].1, Nanos::ZERO);
    assert_eq!(sent.iter().map(|of| of.0).collect::<Vec<_>>(), [CLIENT, 2]);
    let (answer, value) = parse(&sent[0].1);
    assert_eq!(
        (answer.kind, answer.detail, answer.version),
        (WRITE | ANSWER, DONE, 1)
    );
    assert!(value.is_empty());
    let sent = give(world.replicas.get_mut(&2).unwrap(), &sent[1].1, Nanos::ZERO);
    assert_eq!(sent.iter().map(|of| of.0).collect::<Vec<_>>(), [1]);
    assert_eq!(world.replicas[&1].acknowledged, 0);
    assert!(give(world.replicas.get_mut(&1).unwrap(), &sent[0].1, Nanos::ZERO).is_empty());
    assert_eq!(
        (world.replicas[&1].acknowledged, world.replicas[&1].due()),
        (1, None)
    );
    let tail = world.replicas.get_mut(&3).unwrap();
    // A read without room for its answer.
    let sent = give(tail, &frame(3, &message(READ, 5, b"")[..HEADER + 4]), Nanos::ZERO);
    assert_eq!(parse(&sent[0].1).0.detail, NO_ROOM);
    let mut read = message(READ, 5, b"");
    read.truncate(HEADER + 5);
    let sent = give(tail, &frame(3, &read), Nanos::ZERO);
    assert_eq!(parse(&sent[0].1).1, b"hello");
}

#[test]
fn a_head_without_room_says_so() {
    let mut head = Replica::new(compile(&text(&[1, 2], 0)), &SETUP);
    for (key, detail) in (0..6).zip([DONE, DONE, DONE, DONE, DONE, BUSY]) {
        let sent = give(&mut head, &frame(1, &message(WRITE, key, b"x")), Nanos::ZERO);
        let (message, _) = parse(&sent[0].1);
        assert_eq!(
            (message.kind == UPDATE, message.detail == BUSY),
            (detail == DONE, detail == BUSY)
        );
    }
    assert_eq!((head.applied, head.refused, head.summary().flows), (5, 1, 5));
    assert_eq!(tick(&mut head, Nanos::from_secs(1)).len(), 5);
    let mut alone = Replica::new(compile(&text(&[1], 0)), &SETUP);
    for (key, detail) in (0..8).zip([DONE, DONE, DONE, DONE, DONE, DONE, BUSY, BUSY]) {
        let sent = give(&mut alone, &frame(1, &message(WRITE, key, b"x")), Nanos::ZERO);
        assert_eq!(parse(&sent[0].1).0.detail, detail, "{key}");
    }
}

#[test]
fn mistakes_are_said() {
    let good = text(&[1, 2], 0);
    for (text, says) in [
        (good.replace("10.0.0.2", "10.0.0.1"), "cannot be a neighbour"),
        (good.replace("10.0.0.2:9105", "[::1]:1"), "cannot be a neighbour"),
        (
            good.replace("value_bytes = 20", "value_bytes = 1401"),
            "value_bytes: 1401 bytes",
        ),
        (good.replace("02:00", "zz:00"), "is no MAC address"),
    ] {
        let error = Replica::compile(&text, &SETUP).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
