//! The kinds of actors that come with inco.

use std::path::Path;
#[cfg(feature = "wasm")]
use std::time::Duration;

use actor_applications::Folder;
use actor_applications::store::{
    Compaction, Consensus, ConsensusSettings, Memtable, MemtableSettings, REQUEST, TICK, Tables,
};
use actor_objects::ObjectId;
use actor_runtime::{Actor, ActorId, Address, Context, Message, Progress};

#[cfg(feature = "wasm")]
use actor_wasm::{Module, WasmActor};

use crate::options::Options;

/// Makes an actor of these kinds. Options follow a kind: `store-tables memtable=1 compaction=3 folder=/data/0`.
///
/// | kind | what it does |
/// | --- | --- |
/// | `echo` | answers each message with its body |
/// | `counter` | answers with its body, and how many messages it has had so far (8 bytes, little-endian): its state |
/// | `store-consensus` | a replica of the store: its log, and what clients ask. Options: `me`, `replicas`, `memtable`, `seed` |
/// | `store-memtable` | its memtable. Options: `consensus`, `tables`, `compaction`, `bytes`, `clients` |
/// | `store-tables` | its list of tables. Options: `memtable`, `compaction`, `folder`, `level_bytes` |
/// | `store-compaction` | writes and merges its tables. Options: `memtable`, `tables`, `folder` |
/// | `wasm` | what its module does, see `actor-wasm`; with the cargo feature `wasm`. Options: `module`, a file; `budget_ms`, for each message |
///
/// With the option `tick=MS`, an actor of any kind gets a message of the kind [`TICKS`] every MS milliseconds on the side
/// where it is. A `store-consensus` needs it.
pub fn make(kind: &str, _number: u32) -> Option<Box<dyn Actor>> {
    let (name, options) = Options::of(kind)?;
    match name {
        "echo" => Some(Box::new(Echo)),
        "counter" => Some(Box::new(Counter)),
        "store-consensus" => {
            let replicas: Option<Vec<Address>> =
                options.numbers("replicas")?.map(|of| of.map(address)).collect();
            Some(Box::new(Replica(Consensus::new(ConsensusSettings {
                me: options.number("me")?,
                replicas: replicas?,
                election_ticks: 8,
                heartbeat_ticks: 2,
                log_slots: 512,
                seed: options.number_or("seed", 0)?,
                memtable: options.actor("memtable")?,
            })?)))
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

/// The kind of a message that says that time has passed.
pub const TICKS: u32 = 1;

fn address(number: u32) -> Address {
    Address::Actor(ActorId(number))
}

/// The files of a replica: both sides have the same folder, by a mount.
fn folder(options: &Options<'_>) -> Option<Folder> {
    let path = options.text("folder")?;
    Folder::open(Path::new(path))
        .inspect_err(|error| crate::say(format_args!("{path}: {error}")))
        .ok()
}

/// The actor of a replica that clients ask: what comes from a network is a request.
struct Replica(Consensus);

impl Actor for Replica {
    fn init(&mut self, context: &mut Context<'_>) {
        self.0.init(context);
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        message.kind = match (message.kind, message.from) {
            (0, Address::Outside(_)) => REQUEST,
            (TICKS, Address::Outside(_)) => TICK,
            (kind, _) => kind,
        };
        self.0.exec(message, context)
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
