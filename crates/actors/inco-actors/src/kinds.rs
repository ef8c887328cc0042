//! The kinds of actors that come with inco.

use std::path::Path;
#[cfg(feature = "wasm")]
use std::time::Duration;

use actor_applications::Folder;
use actor_applications::analytics::{self, Aggregator, CounterSettings, Filter, Ranker, Topology};
use actor_applications::store::{
    self, Compaction, Consensus, ConsensusSettings, Memtable, MemtableSettings, Tables,
};
use actor_applications::transactions::{self, Coordinator, CoordinatorSettings, Journal, Participant};
use actor_objects::ObjectId;
use actor_processes::offence;
use actor_runtime::{Actor, Address, Context, Message, Progress};

#[cfg(feature = "wasm")]
use actor_wasm::{Module, WasmActor};

use crate::function::FunctionActor;
use crate::options::Options;

/// Makes an actor of these kinds. Options follow a kind: `store-tables memtable=1 compaction=3 folder=/data/0`.
///
/// | kind | what it does |
/// | --- | --- |
/// | `echo` | answers each message with its body |
/// | `counter` | answers with its body, and how many messages it has had so far (8 bytes, little-endian): its state |
/// | `offender` | as `counter`, but the message `loop` runs for ever, and `write` writes to the address in the 8 bytes behind it: to see what its neighbours notice. Only with `process` |
/// | `store-consensus` | a replica of the store: its log, and what clients ask. Options: `me`, `replicas`, `memtable`, `seed` |
/// | `store-memtable` | its memtable. Options: `consensus`, `tables`, `compaction`, `bytes`, `clients` |
/// | `store-tables` | its list of tables. Options: `memtable`, `compaction`, `folder`, `level_bytes` |
/// | `store-compaction` | writes and merges its tables. Options: `memtable`, `tables`, `folder` |
/// | `transactions-coordinator` | leads transactions, and what clients ask. Options: `participants`, `journal`, `clients`, `log_bytes` |
/// | `transactions-participant` | has a part of the keys. Options: `coordinator` |
/// | `transactions-journal` | writes full segments of the coordinator's log. Options: `coordinator`, `folder` |
/// | `analytics-filter` | takes tuples of sources that have one of its patterns. Options: `patterns`, `counters` |
/// | `analytics-counter` | counts keys in a sliding window. Options: `ranker`, `slots`, `slot_time`, `keys`, `sources` |
/// | `analytics-ranker` | sorts the counts of a counter. Options: `aggregator`, `n` |
/// | `analytics-aggregator` | has the most frequent keys of each window, and answers who asks for them. Options: `rankers`, `n` |
/// | `function` | what a function of the library does: a frame is a message. Options: `name`, `config` (a file), `ports` |
/// | `wasm` | what its module does, see `actor-wasm`; with the cargo feature `wasm`. Options: `module`, a file; `budget_ms`, for each message |
///
/// With the option `tick=MS`, an actor of any kind gets a message of the kind [`TICKS`] every MS milliseconds on the side
/// where it is. With `process=NAME`, a native actor runs in a process of its own, with the others of that name on its side:
/// one that uses more than `budget_ms` (100) for a message, or writes where it may not, ends this process, and the others
/// begin again with their objects. `store-consensus` and `transactions-coordinator` need it.
pub fn make(kind: &str, _number: u32) -> Option<Box<dyn Actor>> {
    let (name, options) = Options::of(kind)?;
    match name {
        "echo" => Some(Box::new(Echo)),
        "counter" => Some(Box::new(Counter)),
        // In the process of the side it would end all.
        "offender" => options
            .text("process")
            .map(|_| -> Box<dyn Actor> { Box::new(Offender(Counter)) }),
        "store-consensus" => {
            let consensus = Consensus::new(ConsensusSettings {
                me: options.number("me")?,
                replicas: options.actors("replicas")?,
                election_ticks: 8,
                heartbeat_ticks: 2,
                log_slots: options.number_or("log_slots", 512)?,
                seed: options.number_or("seed", 0)?,
                memtable: options.actor("memtable")?,
            })?;
            Some(Box::new(Asked {
                inner: consensus,
                request: store::REQUEST,
                tick: Some(store::TICK),
            }))
        }
        "store-memtable" => Some(Box::new(Memtable::new(MemtableSettings {
            bytes: options.number_or("bytes", 56 << 10)?,
            clients: options.number_or("clients", 1_024)?,
            consensus: options.actor("consensus")?,
            tables: options.actor("tables")?,
            compaction: options.actor("compaction")?,
        })?)),
        "store-tables" => Some(Box::new(Tables::new(
            Box::new(folder(&options)?),
            options.actor("memtable")?,
            options.actor("compaction")?,
            options.number_or("level_bytes", 1 << 20)?,
        ))),
        "store-compaction" => Some(Box::new(Compaction::new(
            Box::new(folder(&options)?),
            options.actor("memtable")?,
            options.actor("tables")?,
        ))),
        "transactions-coordinator" => {
            let coordinator = Coordinator::new(CoordinatorSettings {
                participants: options.actors("participants")?,
                journal: options.actor("journal")?,
                clients: options.number_or("clients", 256)?,
                log_bytes: options.number_or("log_bytes", 56 << 10)?,
            })?;
            Some(Box::new(Asked {
                inner: coordinator,
                request: transactions::TRANSACTION,
                tick: Some(transactions::TICK),
            }))
        }
        "transactions-participant" => Some(Box::new(Participant::new(options.actor("coordinator")?))),
        "transactions-journal" => Some(Box::new(Journal::new(
            Box::new(folder(&options)?),
            options.actor("coordinator")?,
        ))),
        "analytics-filter" => {
            let patterns = options.text("patterns")?.split(',');
            let counters = Topology::new(options.actors("counters")?)?;
            let filter = Filter::new(patterns, counters)
                .inspect_err(|error| crate::say(format_args!("patterns: {error}")))
                .ok()?;
            Some(Box::new(Asked {
                inner: filter,
                request: analytics::NUMBERED,
                tick: None,
            }))
        }
        "analytics-counter" => Some(Box::new(analytics::Counter::new(CounterSettings {
            slots: options.number_or("slots", 10)?,
            slot_time: options.number_or("slot_time", 1_000)?,
            keys: options.number_or("keys", 1_000)?,
            sources: options.number_or("sources", 1)?,
            ranker: options.actor("ranker")?,
        })?)),
        "analytics-ranker" => Some(Box::new(Ranker::new(
            options.number_or("n", 10)?,
            options.actor("aggregator")?,
        )?)),
        "analytics-aggregator" => {
            let aggregator = Aggregator::new(options.number_or("n", 10)?, options.actors("rankers")?, None)?;
            Some(Box::new(Asked {
                inner: aggregator,
                request: analytics::ASK,
                tick: None,
            }))
        }
        FUNCTION => {
            let ports = options.number_or("ports", 2)?;
            let function = FunctionActor::new(options.text("name")?, options.text("config"), ports);
            let function = function.inspect_err(|error| crate::say(error)).ok()?;
            Some(Box::new(function))
        }
        #[cfg(feature = "wasm")]
        "wasm" => wasm(&options),
        _ => None,
    }
}

/// An actor whose code is a file of the container.
#[cfg(feature = "wasm")]
fn wasm(options: &Options<'_>) -> Option<Box<dyn Actor>> {
    let file = options.text("module")?;
    let budget = Duration::from_millis(options.number_or("budget_ms", 100)?);
    let module = std::fs::read(file).map_err(|error| error.to_string());
    let module = module.and_then(|bytes| Module::compile(&bytes).map_err(|error| error.to_string()));
    match module {
        Ok(module) => Some(Box::new(WasmActor::new(module, budget))),
        Err(error) => {
            crate::say(format_args!("{file}: {error}"));
            None
        }
    }
}

/// The kind of a function of the library.
const FUNCTION: &str = "function";

/// Whether the messages of an actor of this kind are whole frames, where it is the entry.
pub(crate) fn takes_frames(kind: &str) -> bool {
    Options::of(kind).is_some_and(|(name, _)| name == FUNCTION)
}

/// The kind of a message that says that time has passed.
pub const TICKS: u32 = 1;

/// The files of a replica or a journal: both sides have the same folder, by a mount.
fn folder(options: &Options<'_>) -> Option<Folder> {
    let path = options.text("folder")?;
    Folder::open(Path::new(path))
        .inspect_err(|error| crate::say(format_args!("{path}: {error}")))
        .ok()
}

/// An actor of an application that clients ask: what comes from a network is a request.
struct Asked<A> {
    inner: A,
    /// The kind of a request.
    request: u32,
    /// The kind of a message that says that time has passed.
    tick: Option<u32>,
}

impl<A: Actor> Actor for Asked<A> {
    fn init(&mut self, context: &mut Context<'_>) {
        self.inner.init(context);
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        message.kind = match (message.kind, message.from, self.tick) {
            (0, Address::Outside(_), _) => self.request,
            (TICKS, Address::Outside(_), Some(tick)) => tick,
            (kind, ..) => kind,
        };
        self.inner.exec(message, context)
    }
}

struct Echo;

impl Actor for Echo {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        context.send(message.from, message.kind, std::mem::take(&mut message.body));
        Progress::Done
    }
}

/// Its state is one object: the count.
struct Counter;

impl Counter {
    /// The next count, noted.
    fn next(context: &mut Context<'_>) -> Result<u64, String> {
        let objects = context.objects().ok_or("a counter needs objects")?;
        let (id, count) = match objects.iter().next() {
            Some((id, bytes)) => (
                id,
                bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)),
            ),
            None => return Err("the counter has no object".to_owned()),
        };
        let next = count.wrapping_add(1);
        let written = objects.write(id, 0, &next.to_le_bytes());
        written.map(|()| next).map_err(|error| error.to_string())
    }
}

impl Actor for Counter {
    fn init(&mut self, context: &mut Context<'_>) {
        let made: Result<ObjectId, String> = match context.objects() {
            Some(objects) => objects.allocate(8).map_err(|error| error.to_string()),
            None => Err("a counter needs objects".to_owned()),
        };
        if let Err(reason) = made {
            context.fail(reason);
        }
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        match Counter::next(context) {
            Ok(count) => {
                let mut body = std::mem::take(&mut message.body);
                body.extend(count.to_le_bytes());
                context.send(message.from, message.kind, body);
            }
            Err(reason) => context.fail(reason),
        }
        Progress::Done
    }
}

/// A counter that does what it must not, if a message says so.
struct Offender(Counter);

impl Actor for Offender {
    fn init(&mut self, context: &mut Context<'_>) {
        self.0.init(context);
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        match message.body.split_at_checked(5) {
            None if message.body == b"loop" => offence::run_for_ever(),
            Some((b"write", address)) => {
                if let Some(address) = address.first_chunk() {
                    offence::write_to(u64::from_le_bytes(*address));
                }
            }
            _ => {}
        }
        self.0.exec(message, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offender_needs_a_process_of_its_own() {
        assert!(make("offender", 0).is_none());
        assert!(make("offender process=other", 0).is_some());
    }

    #[test]
    fn each_kind_is_made_from_its_options_and_none_without_them() {
        let folder = tempfile::tempdir().unwrap();
        let folder = format!("folder={}", folder.path().display());
        let store = "store-consensus me=0 replicas=0,4 memtable=1 log_slots=256";
        let kinds = [
            store,
            "transactions-coordinator participants=1,2 journal=3",
            "transactions-participant coordinator=0",
            &format!("transactions-journal coordinator=0 {folder}"),
            "analytics-filter patterns=inco,dpu counters=1,2",
            "analytics-counter ranker=3 slots=4 slot_time=100 keys=50 sources=2",
            "analytics-ranker aggregator=5 n=20",
            "analytics-aggregator rankers=3,4 n=20",
        ];
        for kind in kinds {
            assert!(make(kind, 0).is_some(), "{kind}");
            let (name, options) = kind.split_once(' ').unwrap();
            assert!(make(name, 0).is_none(), "{name} has no options");
            let required = options.split(' ').next().unwrap();
            let wrong = format!("{name} {}=x", required.split_once('=').unwrap().0);
            let is_text = wrong.contains("patterns");
            assert!(is_text || make(&wrong, 0).is_none(), "{wrong}");
        }
        assert!(make("analytics-counter ranker=1 slots=17", 0).is_none());
    }
}
