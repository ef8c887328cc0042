//! Three replicas of the store on machines that crash, with actors that move, over a network that loses, duplicates,
//! reorders and divides. A seed decides all. The history of each key is that of a register.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod network;

use std::collections::BTreeMap;
use std::path::Path;

use actor_applications::Folder;
use actor_applications::store::{
    ANSWER, Answer, Compaction, Consensus, ConsensusSettings, Memtable, MemtableSettings, Operation, REQUEST,
    Request, TICK, Tables,
};
use actor_histories::linearizability::{self, Action, is_linearizable};
use actor_runtime::{ActorId, Address};
use network::{DRIVER, Faults, Machine, Member, Packet, World, address};
use proptest::prelude::*;

const REPLICAS: usize = 3;
const CONSENSUS: usize = 0;
const MEMTABLE: usize = 1;
const TABLES: usize = 2;
const CLIENTS: usize = 4;

fn actor(number: u32) -> Address {
    Address::Actor(ActorId(number))
}

/// The actors of a replica; small tables, so that they are merged often.
fn members(me: usize, folder: &Path, seed: u64, log_slots: u32) -> Vec<Member> {
    let folder = Folder::open(&folder.join(me.to_string())).unwrap();
    let (consensus, memtable, tables, compaction) = (actor(0), actor(1), actor(2), actor(3));
    let of_consensus = ConsensusSettings {
        me: me as u8,
        replicas: (0..REPLICAS).map(address).collect(),
        election_ticks: 8,
        heartbeat_ticks: 2,
        log_slots,
        seed,
        memtable,
    };
    let of_memtable = MemtableSettings {
        bytes: 2 << 10,
        clients: 64,
        consensus,
        tables,
        compaction,
    };
    let make_consensus = move || Consensus::new(of_consensus.clone()).unwrap();
    let make_memtable = move || Memtable::new(of_memtable.clone()).unwrap();
    let storage = folder.clone();
    let make_tables = move || Tables::new(Box::new(storage.clone()), memtable, compaction, 2 << 10);
    vec![
        Member::new("consensus", make_consensus().region_bytes(), make_consensus),
        Member::new("memtable", make_memtable().region_bytes(), make_memtable),
        Member::new("tables", make_tables().region_bytes(), make_tables),
        Member::new("compaction", 0, move || {
            Compaction::new(Box::new(folder.clone()), memtable, tables)
        }),
    ]
}

/// A client with its request under way.
#[derive(Default)]
struct Client {
    id: u64,
    leader: usize,
    request: Option<(Request, u64)>,
}

struct Cluster {
    world: World,
    clients: Vec<Client>,
    values: u64,
    /// By key.
    history: BTreeMap<u64, Vec<linearizability::Operation>>,
    answered: u64,
    folder: tempfile::TempDir,
}

impl Cluster {
    fn new(seed: u64) -> Cluster {
        Cluster::with_log(seed, 512)
    }

    fn with_log(seed: u64, log_slots: u32) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let machine = |me| Machine::new(members(me, folder.path(), seed, log_slots));
        Cluster {
            world: World::new((0..REPLICAS).map(machine).collect(), seed),
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            values: 0,
            history: BTreeMap::new(),
            answered: 0,
            folder,
        }
    }

    fn step(&mut self, faults: Faults, keys: u64) {
        match self.world.random.below(100) {
            0..40 => {
                // As many more as wait longer, so that repeated packets do not pile up.
                for _ in 0..=self.world.packets.len() / 8 {
                    self.deliver(faults);
                }
            }
            40..67 => self.world.serve(),
            67..75 => {
                let replica = self.world.any();
                self.world.machines[replica].deliver(CONSENSUS, DRIVER, TICK, Vec::new());
            }
            _ => self.act(keys),
        }
        self.world.disturb(faults);
    }

    fn deliver(&mut self, faults: Faults) {
        if let Some(packet) = self.world.deliver(faults) {
            assert_eq!(packet.kind, ANSWER);
            let client = (0..CLIENTS).find(|client| packet.to == Address::Outside(*client as u64));
            self.answer(client.unwrap(), &packet.body);
        }
    }

    /// A client sends a request, or sends it again, or gives up.
    fn act(&mut self, keys: u64) {
        let number = self.world.random.below(CLIENTS as u64) as usize;
        if self.clients[number].request.is_none() {
            let key = self.world.random.below(keys);
            self.ask(number, key);
        } else if self.world.random.happens(0.1) {
            // It tries another replica, as a client without an answer does.
            self.clients[number].leader = self.world.random.below(REPLICAS as u64) as usize;
            self.send(number);
        } else if self.world.random.happens(0.003) {
            let (request, begin) = self.clients[number].request.take().unwrap();
            self.record(&request, begin, None, None);
        }
    }

    /// A request for anything.
    fn ask(&mut self, number: usize, key: u64) {
        let operation = match self.world.random.below(10) {
            0..5 => Operation::Get,
            5..9 => {
                self.values += 1;
                let mut value = self.values.to_le_bytes().to_vec();
                value.resize(8 + self.world.random.below(60) as usize, 7);
                Operation::Put(value)
            }
            _ => Operation::Delete,
        };
        self.ask_for(number, key, operation);
    }

    fn ask_for(&mut self, number: usize, key: u64, operation: Operation) {
        let begin = self.world.now();
        let client = &mut self.clients[number];
        client.id += 1;
        let request = Request {
            client: number as u64,
            id: client.id,
            key: key.to_be_bytes().to_vec(),
            operation,
        };
        client.request = Some((request, begin));
        self.send(number);
    }

    fn send(&mut self, number: usize) {
        let client = &self.clients[number];
        if let Some((request, _)) = &client.request {
            self.world.packets.push(Packet {
                from: Address::Outside(number as u64),
                to: address(client.leader),
                kind: REQUEST,
                body: request.encode().unwrap(),
            });
        }
    }

    fn answer(&mut self, number: usize, body: &[u8]) {
        let (id, answer) = Answer::decode(body).unwrap();
        let client = &mut self.clients[number];
        let Some((request, begin)) = client.request.take_if(|(request, _)| request.id == id) else {
            return;
        };
        match &answer {
            Answer::NotLeader(leader) => {
                client.leader = leader.map_or(client.leader, usize::from);
                client.request = Some((request, begin));
            }
            Answer::Busy => client.request = Some((request, begin)),
            Answer::Refused => panic!("{request:?}"),
            Answer::Written | Answer::Found(_) | Answer::NotFound => {
                let end = self.world.now();
                self.answered += 1;
                self.record(&request, begin, Some(end), Some(&answer));
            }
        }
    }

    fn record(&mut self, request: &Request, call: u64, end: Option<u64>, answer: Option<&Answer>) {
        let value = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let action = match (&request.operation, answer) {
            (Operation::Get, Some(Answer::Found(found))) => Action::Read(Some(value(found))),
            (Operation::Get, None | Some(Answer::NotFound)) => Action::Read(None),
            (Operation::Put(put), None | Some(Answer::Written)) => Action::Write(Some(value(put))),
            (Operation::Delete, None | Some(Answer::Written)) => Action::Write(None),
            other => panic!("{other:?}"),
        };
        let key = u64::from_be_bytes(request.key[..].try_into().unwrap());
        let operation = linearizability::Operation { call, end, action };
        self.history.entry(key).or_default().push(operation);
    }

    /// Time passes without faults, and without requests.
    fn idle(&mut self, ticks: u64) {
        for _ in 0..ticks {
            for machine in &self.world.machines {
                machine.deliver(CONSENSUS, DRIVER, TICK, Vec::new());
            }
            for _ in 0..3 {
                self.world.settle();
                while !self.world.packets.is_empty() {
                    self.deliver(Faults::default());
                }
            }
        }
    }

    /// Whether a replica answers a request itself: the others are not asked.
    fn leads(&mut self, replica: usize) -> bool {
        self.clients[3].leader = replica;
        self.ask_for(3, 1, Operation::Get);
        // There and back: request, question, answers, memtable, tables.
        for _ in 0..8 {
            while !self.world.packets.is_empty() {
                self.deliver(Faults::default());
            }
            self.world.settle();
        }
        let is_answered = self.clients[3].request.is_none();
        self.finish();
        is_answered
    }

    /// What a replica that does not lead answers to a request.
    fn named_by(&mut self, replica: usize) -> Answer {
        let request = Request {
            client: 3,
            id: 0,
            key: vec![1],
            operation: Operation::Get,
        };
        self.world.packets.clear();
        let body = request.encode().unwrap();
        self.world.machines[replica].deliver(CONSENSUS, Address::Outside(3), REQUEST, body);
        self.world.settle();
        let mut packets = self.world.packets.iter();
        let answer = packets.find(|packet| packet.to == Address::Outside(3)).unwrap();
        Answer::decode(&answer.body).unwrap().1
    }

    /// Everything works again; all requests are answered, and all keys read.
    fn heal(&mut self, keys: u64) {
        self.world.heal();
        self.finish();
        for key in 0..keys {
            self.ask_for(0, key, Operation::Get);
            self.finish();
        }
    }

    /// Runs in order and without faults until no client waits.
    fn finish(&mut self) {
        for _ in 0..2_000 {
            for number in 0..CLIENTS {
                self.send(number);
            }
            for _ in 0..3 {
                while !self.world.packets.is_empty() {
                    self.deliver(Faults::default());
                }
                self.world.settle();
            }
            if self.clients.iter().all(|client| client.request.is_none()) {
                return;
            }
            for machine in &self.world.machines {
                machine.deliver(CONSENSUS, DRIVER, TICK, Vec::new());
            }
            // One that knows no leader tries others.
            let number = self.world.random.below(CLIENTS as u64) as usize;
            self.clients[number].leader = self.world.random.below(REPLICAS as u64) as usize;
        }
        panic!("no answer without faults");
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for (key, history) in &self.history {
            prop_assert!(is_linearizable(history), "key {}: {:?}", key, history);
        }
        Ok(())
    }
}

fn run(seed: u64, faults: Faults, steps: u64, keys: u64) -> Result<Cluster, TestCaseError> {
    run_with_log(seed, 512, faults, steps, keys)
}

fn run_with_log(
    seed: u64,
    log_slots: u32,
    faults: Faults,
    steps: u64,
    keys: u64,
) -> Result<Cluster, TestCaseError> {
    let mut cluster = Cluster::with_log(seed, log_slots);
    for _ in 0..steps {
        cluster.step(faults, keys);
    }
    cluster.heal(keys);
    cluster.check()?;
    Ok(cluster)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn histories_are_linearizable_whatever_fails(
        seed in any::<u64>(),
        lost in 0..200_u64,
        duplicated in 0..200_u64,
        moves in 0..40_u64,
        crashes in 0..3_u64,
        divisions in 0..3_u64,
    ) {
        // A short log, so that replicas are left behind.
        run_with_log(seed, 128, Faults { lost, duplicated, moves, crashes, divisions }, 10_000, 6)?;
    }
}

proptest! {
    #[test]
    fn no_bytes_stop_an_actor(
        body in prop::collection::vec(prop_oneof![3 => 0..3_u8, 1 => any::<u8>()], 0..80),
        kind in prop_oneof![0x200..0x204_u32, 0x210..0x21d_u32, 0x220..0x22e_u32],
    ) {
        let mut cluster = Cluster::new(1);
        for from in (0..REPLICAS).map(address).chain([DRIVER]) {
            for machine in &cluster.world.machines {
                machine.deliver(CONSENSUS, from, kind, body.clone());
            }
        }
        cluster.world.settle();
    }
}

/// The first test is worth something: its steps answer many requests while all kinds of faults happen.
#[test]
fn faults_happen_while_requests_are_answered() {
    let faults = Faults {
        lost: 50,
        duplicated: 50,
        moves: 20,
        crashes: 1,
        divisions: 1,
    };
    let cluster = run(1, faults, 30_000, 12).unwrap();
    let happened = cluster.world.happened;
    assert!(cluster.answered > 250, "{} answers", cluster.answered);
    assert!(happened.lost.min(happened.duplicated) > 200, "{happened:?}");
    assert!(
        happened.moves > 300 && happened.crashes.min(happened.divisions) > 15,
        "{happened:?}"
    );
}

/// With keys enough, memtables are written and merged through several levels.
#[test]
fn reads_come_from_all_levels() {
    let faults = Faults {
        moves: 10,
        ..Faults::default()
    };
    let cluster = run(11, faults, 100_000, 300).unwrap();
    assert!(cluster.answered > 2_000, "{} answers", cluster.answered);
    let folder = cluster.folder.path();
    for replica in 0..REPLICAS {
        let files = std::fs::read_dir(folder.join(replica.to_string())).unwrap();
        let names: Vec<_> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        let numbers = names
            .iter()
            .filter_map(|name| name.strip_suffix(".data")?.parse::<u64>().ok());
        let merges = numbers
            .filter(|number| number % 2 == 1)
            .max()
            .map(|number| number / 2);
        assert!(merges > Some(20), "{names:?}");
        assert!(names.len() < 30, "tables that were merged are removed: {names:?}");
    }
}

/// A leader that ends, or that no other reaches, is replaced; what it answered is not lost.
#[test]
fn another_replica_leads_when_the_leader_is_away() {
    for is_crash in [true, false] {
        let mut cluster = Cluster::new(3);
        for key in 0..20 {
            cluster.ask(1, key);
            cluster.finish();
        }
        let leader = cluster.clients[1].leader;
        if is_crash {
            cluster.world.machines[leader].crash();
        } else {
            cluster.world.alone = Some(leader);
        }
        for client in &mut cluster.clients {
            client.leader = (leader + 1) % REPLICAS;
        }
        let before = cluster.answered;
        for key in 0..20 {
            cluster.ask(2, key);
            cluster.finish();
        }
        assert_eq!(cluster.answered, before + 20);
        cluster.heal(20);
        cluster.check().unwrap();
    }
}

/// Clients are sent to a leader while it is heard, and no longer when it has ended.
#[test]
fn a_leader_that_is_silent_is_named_to_nobody() {
    let mut cluster = Cluster::new(3);
    cluster.ask(1, 1);
    cluster.finish();
    cluster.idle(4);
    let leader = cluster.clients[1].leader;
    let follower = (leader + 1) % REPLICAS;
    assert_eq!(cluster.named_by(follower), Answer::NotLeader(Some(leader as u8)));
    cluster.world.machines[leader].crash();
    // Two heartbeats of two ticks: no election has begun.
    for _ in 0..5 {
        cluster.world.machines[follower].deliver(CONSENSUS, DRIVER, TICK, Vec::new());
        cluster.world.settle();
    }
    assert_eq!(cluster.named_by(follower), Answer::NotLeader(None));
}

/// A leader whose memtable or tables are lost hands over, and does not lead again while they are away; its log remains a part
/// of majorities.
#[test]
fn a_replica_without_its_memtable_or_its_tables_does_not_lead() {
    for lost in [MEMTABLE, TABLES] {
        let mut cluster = Cluster::new(9);
        cluster.ask(1, 1);
        cluster.finish();
        let old = cluster.clients[1].leader;
        cluster.world.machines[old].lose(lost);
        let before = cluster.answered;
        for key in 0..20 {
            cluster.ask(2, key);
            cluster.finish();
        }
        assert_eq!(cluster.answered, before + 20);
        // The third one ends: a majority needs the log of the one that cannot lead.
        assert!(!cluster.leads(old), "it leads without what it has lost");
        let others = [1, 2].map(|step| (old + step) % REPLICAS);
        let leader = others.into_iter().find(|of| cluster.leads(*of)).unwrap();
        // The third one ends: a majority needs the log of the one that cannot lead.
        cluster.world.machines[3 - leader - old].crash();
        cluster.idle(100);
        for key in 0..20 {
            cluster.ask(2, key);
            cluster.finish();
        }
        assert!(!cluster.leads(old), "it leads without what it has lost");
        assert!(cluster.leads(leader));
        cluster.check().unwrap();
    }
}

/// A copy of a request that was executed, or that its client has followed by another one, changes nothing.
#[test]
fn a_late_copy_of_a_request_changes_nothing() {
    let mut cluster = Cluster::new(6);
    let put = |value: u64| Operation::Put(value.to_le_bytes().to_vec());
    cluster.ask_for(1, 1, put(1));
    cluster.finish();
    let copy = |id, value| Packet {
        from: Address::Outside(1),
        to: address(0),
        kind: REQUEST,
        body: Request {
            client: 1,
            id,
            key: 1_u64.to_be_bytes().to_vec(),
            operation: put(value),
        }
        .encode()
        .unwrap(),
    };
    for is_followed in [false, true] {
        if is_followed {
            cluster.ask_for(1, 2, put(9));
            cluster.finish();
        }
        cluster.ask_for(2, 1, put(5));
        cluster.finish();
        let leader = cluster.clients[2].leader;
        cluster.world.packets.push(Packet {
            to: address(leader),
            ..copy(1, 1)
        });
        cluster.finish();
        cluster.ask_for(2, 1, Operation::Get);
        cluster.finish();
        cluster.check().unwrap();
    }
}

/// A client asks another replica again when its leader is gone, and comes there from another address: its request, which
/// was executed, is answered and not executed again.
#[test]
fn a_request_is_executed_once_whoever_leads_and_wherever_it_comes_from() {
    let mut cluster = Cluster::new(8);
    let put = |value: u64| Operation::Put(value.to_le_bytes().to_vec());
    cluster.ask_for(1, 1, put(1));
    cluster.finish();
    let old = cluster.clients[1].leader;
    cluster.world.machines[old].crash();
    cluster.clients[2].leader = (old + 1) % REPLICAS;
    cluster.ask_for(2, 1, put(5));
    cluster.finish();
    let again = Request {
        client: 1,
        id: 1,
        key: 1_u64.to_be_bytes().to_vec(),
        operation: put(1),
    };
    for other in (0..REPLICAS).filter(|other| *other != old) {
        cluster.world.packets.push(Packet {
            from: Address::Outside(3),
            to: address(other),
            kind: REQUEST,
            body: again.encode().unwrap(),
        });
    }
    // Client 3 waits for nothing else, so the answer to the copy is its own.
    let key = 1_u64.to_be_bytes().to_vec();
    let begin = cluster.world.now();
    let expected = Request {
        client: 3,
        id: 1,
        key,
        operation: put(1),
    };
    cluster.clients[3].request = Some((expected, begin));
    for _ in 0..50 {
        while !cluster.world.packets.is_empty() {
            cluster.deliver(Faults::default());
        }
        cluster.world.settle();
    }
    assert!(cluster.clients[3].request.is_none(), "it is answered");
    cluster.history.clear();
    cluster.ask_for(2, 1, Operation::Get);
    cluster.finish();
    let read = cluster.history[&1].last().unwrap().action;
    assert_eq!(read, Action::Read(Some(5)), "it was executed again");
}

/// A replica that was away for longer than the logs of the others reach back takes a snapshot, in several parts, while the
/// others go on; and then answers what it must when it leads.
#[test]
fn a_replica_that_was_left_behind_catches_up() {
    for (seed, faults) in [
        (1, Faults::default()),
        (
            2,
            Faults {
                lost: 100,
                duplicated: 50,
                moves: 20,
                crashes: 0,
                divisions: 0,
            },
        ),
    ] {
        let mut cluster = Cluster::with_log(seed, 128);
        const KEYS: u64 = 900;
        let mut value = [7_u8; 200].to_vec();
        let mut put = |cluster: &mut Cluster, key: u64| {
            cluster.values += 1;
            value[..8].copy_from_slice(&cluster.values.to_le_bytes());
            cluster.ask_for(1, key, Operation::Put(value.clone()));
            cluster.finish();
        };
        (0..20).for_each(|key| put(&mut cluster, key));
        let late = (cluster.clients[1].leader + 1) % REPLICAS;
        cluster.world.machines[late].crash();
        (10..KEYS).for_each(|key| put(&mut cluster, key));
        for key in (0..KEYS).step_by(7) {
            cluster.ask_for(2, key, Operation::Delete);
            cluster.finish();
        }
        cluster.world.machines[late].restart();
        // It catches up while requests and faults go on.
        for _ in 0..6_000 {
            cluster.step(faults, KEYS);
        }
        cluster.world.heal();
        cluster.finish();
        cluster.idle(200);
        let folder = cluster.folder.path().join(late.to_string());
        let names = std::fs::read_dir(&folder).unwrap();
        let numbers: Vec<u64> = names
            .filter_map(|file| {
                let name = file.unwrap().file_name().into_string().unwrap();
                name.strip_suffix(".data")?.parse().ok()
            })
            .collect();
        assert!(
            numbers.iter().any(|of| of >> 62 == 1),
            "no snapshot is there: {numbers:?}"
        );
        assert!(
            !numbers.iter().any(|of| of >> 63 == 1),
            "its parts are removed: {numbers:?}"
        );
        // The others take turns in being away, until it leads.
        let other = |turn: usize| (late + 1 + turn % 2) % REPLICAS;
        let mut has_led = false;
        for turn in 0..40 {
            cluster.world.machines[other(turn)].crash();
            for client in &mut cluster.clients {
                client.leader = late;
            }
            cluster.ask_for(3, 0, Operation::Get);
            cluster.finish();
            has_led = cluster.leads(late);
            if has_led {
                break;
            }
            cluster.world.machines[other(turn)].restart();
            cluster.ask_for(3, 0, Operation::Get);
            cluster.finish();
        }
        assert!(has_led, "it never leads");
        for key in 0..KEYS {
            cluster.ask_for(0, key, Operation::Get);
            cluster.finish();
        }
        cluster.check().unwrap();
    }
}

/// A leader that no other reaches does not know of a later one: it must not answer what was replaced since.
#[test]
fn an_old_leader_answers_no_read() {
    let mut cluster = Cluster::new(4);
    let put = |value: u64| Operation::Put(value.to_le_bytes().to_vec());
    cluster.ask_for(1, 1, put(1));
    cluster.finish();
    let old = cluster.clients[1].leader;
    cluster.world.alone = Some(old);
    cluster.clients[2].leader = (old + 1) % REPLICAS;
    cluster.ask_for(2, 1, put(2));
    cluster.finish();
    cluster.clients[1].leader = old;
    cluster.ask_for(1, 1, Operation::Get);
    for _ in 0..50 {
        while !cluster.world.packets.is_empty() {
            cluster.deliver(Faults::default());
        }
        cluster.world.settle();
    }
    assert!(
        cluster.clients[1].request.is_some(),
        "answered by a leader of the past"
    );
    cluster.heal(2);
    cluster.check().unwrap();
}

/// A replica that has only itself answers nothing.
#[test]
fn a_minority_answers_nothing() {
    let mut cluster = Cluster::new(5);
    cluster.ask(0, 1);
    cluster.finish();
    let before = cluster.answered;
    let leader = cluster.clients[0].leader;
    for other in (0..REPLICAS).filter(|other| *other != leader) {
        cluster.world.machines[other].crash();
    }
    cluster.ask(0, 1);
    for _ in 0..200 {
        cluster.clients[0].leader = leader;
        cluster.send(0);
        while !cluster.world.packets.is_empty() {
            cluster.deliver(Faults::default());
        }
        cluster.world.machines[leader].deliver(CONSENSUS, DRIVER, TICK, Vec::new());
        cluster.world.settle();
    }
    assert_eq!(cluster.answered, before);
    cluster.heal(2);
    assert!(cluster.answered > before);
    cluster.check().unwrap();
}
