//! A coordinator and two participants on machines that crash, with actors that move, over a network that loses,
//! duplicates, reorders and divides. A seed decides all. What was committed is serialisable, in the order of real time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod network;

use std::collections::BTreeMap;

use actor_applications::transactions::{
    Coordinator, CoordinatorSettings, Journal, OUTCOME, Outcome, Participant, TICK, TRANSACTION, Transaction,
    read_log, read_segment,
};
use actor_applications::{Folder, Storage as _};
use actor_histories::serialisability;
use actor_runtime::{ActorId, Address};
use network::{DRIVER, Faults, Machine, Member, Packet, World, address};
use proptest::prelude::*;

const CLIENTS: usize = 5;
const PARTICIPANTS: usize = 2;
const LOG_BYTES: u32 = 8 << 10;

/// A client with its transaction under way, and when it began.
#[derive(Default)]
struct Client {
    id: u64,
    request: Option<(Transaction, u64)>,
}

struct Cluster {
    world: World,
    clients: Vec<Client>,
    values: u64,
    history: Vec<serialisability::Transaction>,
    aborted: u64,
    folder: tempfile::TempDir,
}

impl Cluster {
    fn new(seed: u64) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let storage = Folder::open(folder.path()).unwrap();
        let settings = CoordinatorSettings {
            participants: (1..=PARTICIPANTS).map(address).collect(),
            journal: Address::Actor(ActorId(1)),
            clients: 16,
            log_bytes: LOG_BYTES,
        };
        let make = move || Coordinator::new(settings.clone()).unwrap();
        let coordinator = vec![
            Member::new("coordinator", make().region_bytes(), make),
            Member::new("journal", 0, move || {
                Journal::new(Box::new(storage.clone()), Address::Actor(ActorId(0)))
            }),
        ];
        let participant = || {
            let make = || Participant::new(address(0));
            Machine::new(vec![Member::new("participant", 1 << 20, make)])
        };
        let mut machines = vec![Machine::new(coordinator)];
        machines.extend((0..PARTICIPANTS).map(|_| participant()));
        Cluster {
            world: World::new(machines, seed),
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            values: 0,
            history: Vec::new(),
            aborted: 0,
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
            40..70 => self.world.serve(),
            70..75 => self.tick(),
            _ => {
                let number = self.world.random.below(CLIENTS as u64) as usize;
                if self.clients[number].request.is_none() {
                    self.begin(number, keys);
                } else if self.world.random.happens(0.05) {
                    self.send(number);
                }
            }
        }
        self.world.disturb(faults);
    }

    fn tick(&mut self) {
        self.world.machines[0].deliver(0, DRIVER, TICK, Vec::new());
    }

    fn deliver(&mut self, faults: Faults) {
        if let Some(packet) = self.world.deliver(faults) {
            assert_eq!(packet.kind, OUTCOME);
            let client = (0..CLIENTS).find(|client| packet.to == Address::Outside(*client as u64));
            self.end(client.unwrap(), &packet.body);
        }
    }

    /// A transaction that reads up to three keys, and writes a new value to some of them.
    fn begin(&mut self, number: usize, keys: u64) {
        let mut read: Vec<u64> = (0..=self.world.random.below(3))
            .map(|_| self.world.random.below(keys))
            .collect();
        read.sort_unstable();
        read.dedup();
        let written = self.world.random.below(read.len() as u64 + 1) as usize;
        let reads: Vec<_> = read.iter().map(|key| key.to_be_bytes().to_vec()).collect();
        let mut writes = Vec::new();
        for key in reads.iter().rev().take(written) {
            self.values += 1;
            let mut value = self.values.to_le_bytes().to_vec();
            value.resize(8 + self.world.random.below(100) as usize, 1);
            writes.push((key.clone(), value));
        }
        let begin = self.world.now();
        let client = &mut self.clients[number];
        client.id += 1;
        let request = Transaction {
            client: number as u64,
            id: client.id,
            reads,
            writes,
        };
        client.request = Some((request, begin));
        self.send(number);
    }

    fn send(&mut self, number: usize) {
        if let Some((request, _)) = &self.clients[number].request {
            self.world.packets.push(Packet {
                from: Address::Outside(number as u64),
                to: address(0),
                kind: TRANSACTION,
                body: request.encode().unwrap(),
            });
        }
    }

    fn end(&mut self, number: usize, body: &[u8]) {
        let (id, outcome) = Outcome::decode(body).unwrap();
        let client = &mut self.clients[number];
        let Some((request, begin)) = client.request.take_if(|(request, _)| request.id == id) else {
            return;
        };
        match outcome {
            Outcome::Busy => client.request = Some((request, begin)),
            Outcome::Refused => panic!("{request:?}"),
            Outcome::Aborted => self.aborted += 1,
            Outcome::Committed(read) => {
                let key = |key: &Vec<u8>| u64::from_be_bytes(key[..].try_into().unwrap());
                let value =
                    |value: &Vec<u8>| value.first_chunk().map_or(0, |value| u64::from_le_bytes(*value));
                let reads = std::iter::zip(&request.reads, &read);
                let writes = request.writes.iter();
                let end = self.world.now();
                self.history.push(serialisability::Transaction {
                    begin,
                    end,
                    reads: reads.map(|(of, read)| (key(of), value(&read.value))).collect(),
                    writes: writes.map(|(of, written)| (key(of), value(written))).collect(),
                });
            }
        }
    }

    /// Runs without faults until all clients have outcomes.
    fn finish(&mut self) {
        self.world.heal();
        for _ in 0..1_000 {
            for number in 0..CLIENTS {
                self.send(number);
            }
            self.tick();
            for _ in 0..8 {
                while !self.world.packets.is_empty() {
                    self.deliver(Faults::default());
                }
                self.world.settle();
            }
            if self.clients.iter().all(|client| client.request.is_none()) {
                return;
            }
        }
        panic!("no outcome without faults");
    }

    /// What the log says of each key: the value of its highest version.
    fn logged(&self) -> BTreeMap<Vec<u8>, (u64, Vec<u8>)> {
        let storage = Folder::open(self.folder.path()).unwrap();
        let mut records = self.world.machines[0].with_objects(0, |objects| read_log(objects).unwrap());
        let mut segment = 1;
        while storage.bytes(segment).is_ok() {
            records.extend(read_segment(&storage, segment).unwrap());
            segment += 1;
        }
        let mut values: BTreeMap<Vec<u8>, (u64, Vec<u8>)> = BTreeMap::new();
        for (key, version, value) in records.into_iter().flat_map(|record| record.writes) {
            let of = values.entry(key).or_default();
            if of.0 < version {
                *of = (version, value);
            }
        }
        values
    }

    /// What a transaction reads of each key.
    fn read_all(&mut self, keys: u64) -> BTreeMap<Vec<u8>, (u64, Vec<u8>)> {
        let mut values = BTreeMap::new();
        for key in 0..keys {
            let key = key.to_be_bytes().to_vec();
            let id = self.clients[0].id + 1;
            self.clients[0].id = id;
            let (reads, writes) = (vec![key.clone()], Vec::new());
            let request = Transaction {
                client: 0,
                id,
                reads,
                writes,
            };
            let begin = self.world.now();
            self.clients[0].request = Some((request, begin));
            self.send(0);
            let mut outcome = None;
            while outcome.is_none() {
                self.tick();
                self.world.settle();
                while !self.world.packets.is_empty() {
                    outcome = self.world.deliver(Faults::default()).or(outcome);
                }
            }
            let (of, outcome) = Outcome::decode(&outcome.unwrap().body).unwrap();
            let Outcome::Committed(read) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!(of, id);
            self.clients[0].request = None;
            if read[0].version > 0 {
                values.insert(key, (read[0].version, read[0].value.clone()));
            }
        }
        values
    }
}

fn run(seed: u64, faults: Faults, steps: u64, keys: u64) -> Result<Cluster, TestCaseError> {
    let mut cluster = Cluster::new(seed);
    for _ in 0..steps {
        cluster.step(faults, keys);
    }
    cluster.finish();
    prop_assert_eq!(serialisability::check(&cluster.history), Ok(()));
    // The log has what the participants have.
    let (logged, read) = (cluster.logged(), cluster.read_all(keys));
    prop_assert_eq!(logged, read);
    Ok(cluster)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn what_is_committed_is_serialisable_whatever_fails(
        seed in any::<u64>(),
        keys in 2..30_u64,
        lost in 0..200_u64,
        duplicated in 0..200_u64,
        moves in 0..40_u64,
        crashes in 0..3_u64,
        divisions in 0..3_u64,
    ) {
        run(seed, Faults { lost, duplicated, moves, crashes, divisions }, 6_000, keys)?;
    }

    #[test]
    fn no_bytes_stop_an_actor(
        body in prop::collection::vec(prop_oneof![3 => 0..3_u8, 1 => any::<u8>()], 0..80),
        kind in prop_oneof![0x300..0x312_u32, 0x320..0x328_u32],
    ) {
        let mut cluster = Cluster::new(1);
        for machine in 0..=PARTICIPANTS {
            for from in (0..=PARTICIPANTS).map(address).chain([DRIVER]) {
                cluster.world.machines[machine].deliver(0, from, kind, body.clone());
            }
        }
        cluster.world.settle();
    }
}

/// The test above is worth something: transactions are committed and aborted while all kinds of faults happen, and
/// segments of the log reach the disk.
#[test]
fn faults_happen_while_transactions_are_committed() {
    let faults = Faults {
        lost: 50,
        duplicated: 50,
        moves: 20,
        crashes: 1,
        divisions: 1,
    };
    let cluster = run(1, faults, 50_000, 12).unwrap();
    let happened = cluster.world.happened;
    let committed = cluster.history.len();
    assert!(
        committed > 300 && cluster.aborted > 50,
        "{committed} committed, {} aborted",
        cluster.aborted
    );
    assert!(happened.lost.min(happened.duplicated) > 300, "{happened:?}");
    assert!(
        happened.moves > 300 && happened.crashes.min(happened.divisions) > 15,
        "{happened:?}"
    );
    assert!(cluster.folder.path().join("3.data").exists());
}
