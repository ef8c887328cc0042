//! An actor that runs a module.

use std::time::Duration;

use actor_objects::{ObjectError, ObjectId, Objects};
use actor_runtime::{Actor, Address, Context, Message, Progress};
use wasmtime::{Global, Instance, Memory, Store, TypedFunc, Val};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::host::Host;
use crate::memory::{self, PAGE, Place};
use crate::module::{GLOBALS_LIMIT, Module, TICK};

/// The first object of an actor: place 0, generation 1.
const ROOT: ObjectId = ObjectId::from_bits(1 << 32);
/// Marks a root.
const MARK: u64 = u64::from_le_bytes(*b"incowasm");

/// The state beside the memory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Root {
    mark: U64,
    /// Says which module it is.
    module: U64,
    /// The object that is the memory.
    memory: U64,
    /// Bytes of it that the module has.
    bytes: U64,
    /// Values of the mutable globals.
    globals: [U64; GLOBALS_LIMIT],
}

/// Why an actor cannot run.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("an actor in WebAssembly needs a region")]
    NoObjects,
    #[error("its region: {0}")]
    Objects(#[from] ObjectError),
    #[error("its region has room for {room} bytes of memory; the module begins with {needed}")]
    Room { room: usize, needed: u64 },
    #[error("its region is not one of this module")]
    Foreign,
    #[error("it does not export {0} as it should")]
    Export(&'static str),
    /// A trap, or its budget is used up.
    #[error("{0:#}")]
    Trap(#[from] wasmtime::Error),
    /// What the module said itself.
    #[error("{0}")]
    Said(String),
}

/// An actor whose code is a [`Module`]. Its state is in its region: another actor of the same module goes on with it, on
/// this side or the other.
#[derive(Debug)]
pub struct WasmActor {
    module: Module,
    /// Ticks that a message may take.
    budget: u64,
    running: Option<Running>,
}

/// A module at work on the memory of a region.
struct Running {
    store: Store<Host>,
    exec: TypedFunc<(i32, i32, i64, i32), i32>,
    init: Option<TypedFunc<(), ()>>,
    memory: Memory,
    globals: Vec<Global>,
    object: ObjectId,
    place: Place,
    /// Where bodies are put in memory, and the room there.
    inbox: usize,
    inbox_bytes: usize,
    /// As it is in the region.
    root: Root,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl WasmActor {
    /// An actor of this module. A message that takes longer than `budget` stops it; that is noticed up to one [`TICK`]
    /// later.
    pub fn new(module: Module, budget: Duration) -> WasmActor {
        let ticks = budget.as_nanos().div_ceil(TICK.as_nanos()).max(1);
        WasmActor {
            module,
            // The first tick may come at once.
            budget: u64::try_from(ticks).unwrap_or(u64::MAX / 4).min(u64::MAX / 4) + 1,
            running: None,
        }
    }

    /// Makes the state of a new actor.
    fn begin(&mut self, objects: &mut Objects) -> Result<(), Failure> {
        let root = objects.allocate(size_of::<Root>())?;
        if root != ROOT {
            return Err(Failure::Foreign);
        }
        let room = objects.longest_free_bytes() / PAGE * PAGE;
        let needed = self.module.memory_bytes();
        if (room as u64) < needed || room == 0 {
            return Err(Failure::Room { room, needed });
        }
        let object = objects.allocate(room)?;
        let mut running = Running::start(&self.module, self.budget, objects, object, None)?;
        running.init(self.budget)?;
        running.keep(objects)?;
        let failure = running.store.data_mut().failure.take();
        self.running = Some(running);
        failure.map_or(Ok(()), |reason| Err(Failure::Said(reason)))
    }

    /// The module at work on these objects: the one that is, or a new one after a move or a start.
    fn running(&mut self, objects: &mut Objects) -> Result<&mut Running, Failure> {
        let is_here = match &self.running {
            Some(running) => {
                let object = objects.get_mut(running.object);
                object.is_ok_and(|object| Place::of(object) == running.place)
            }
            None => false,
        };
        if !is_here {
            let root = objects.get(ROOT).ok();
            let root = root.and_then(|bytes| Root::read_from_bytes(bytes).ok());
            let root =
                root.filter(|root| root.mark.get() == MARK && root.module.get() == self.module.number());
            let root = root.ok_or(Failure::Foreign)?;
            let object = ObjectId::from_bits(root.memory.get());
            self.running = None;
            self.running = Some(Running::start(
                &self.module,
                self.budget,
                objects,
                object,
                Some(root),
            )?);
        }
        self.running.as_mut().ok_or(Failure::Foreign)
    }

    fn handle(&mut self, message: &Message, context: &mut Context<'_>) -> Result<Progress, Failure> {
        let (me, now, budget) = (context.me().0, context.now().0, self.budget);
        let objects = context.objects().ok_or(Failure::NoObjects)?;
        let running = self.running(objects)?;
        let host = running.store.data_mut();
        (host.me, host.now) = (me, now);
        let progress = running.exec(message, budget)?;
        running.keep(objects)?;
        let host = running.store.data_mut();
        if let Some(reason) = host.failure.take() {
            return Err(Failure::Said(reason));
        }
        host.send_all(context);
        Ok(progress)
    }

    /// Stops the actor for this reason.
    fn fail(&mut self, failure: &Failure, context: &mut Context<'_>) {
        // What the module was doing is not its state.
        self.running = None;
        context.fail(failure.to_string());
    }
}

impl Actor for WasmActor {
    fn init(&mut self, context: &mut Context<'_>) {
        let begun = match context.objects() {
            Some(objects) => self.begin(objects),
            None => Err(Failure::NoObjects),
        };
        match begun {
            Ok(()) => {
                if let Some(running) = &mut self.running {
                    running.store.data_mut().send_all(context);
                }
            }
            Err(failure) => self.fail(&failure, context),
        }
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        match self.handle(message, context) {
            Ok(progress) => progress,
            Err(failure) => {
                self.fail(&failure, context);
                Progress::Done
            }
        }
    }

    fn exec_all(&mut self, messages: &mut [Message], context: &mut Context<'_>) -> usize {
        for (ended, message) in messages.iter_mut().enumerate() {
            context.begin();
            match self.handle(message, context) {
                Ok(Progress::Done) => context.complete(),
                Ok(Progress::Yielded) => return ended,
                Err(failure) => {
                    self.fail(&failure, context);
                    return ended;
                }
            }
        }
        messages.len()
    }
}

impl Running {
    /// Starts a module on the memory that `object` is; on what is there, if a root says so.
    fn start(
        module: &Module,
        budget: u64,
        objects: &mut Objects,
        object: ObjectId,
        root: Option<Root>,
    ) -> Result<Running, Failure> {
        let bytes = objects.get_mut(object)?;
        let place = Place::of(bytes);
        let saved = match &root {
            Some(root) => {
                let used = usize::try_from(root.bytes.get()).ok();
                let used =
                    used.filter(|used| *used as u64 >= module.memory_bytes() && used.is_multiple_of(PAGE));
                Some(
                    used.and_then(|used| bytes.get(..used))
                        .ok_or(Failure::Foreign)?
                        .to_vec(),
                )
            }
            None => None,
        };
        let mut store = Store::new(module.engine(), Host::default());
        store.set_epoch_deadline(budget);
        let instance = memory::at(place, || module.instance().instantiate(&mut store))?;
        let memory = instance.get_memory(&mut store, "memory");
        let memory = memory.ok_or(Failure::Export("memory"))?;
        store.data_mut().memory = Some(memory);
        let globals: Vec<Global> = (module.globals().iter())
            .filter_map(|name| instance.get_global(&mut store, name))
            .collect();
        if let (Some(root), Some(saved)) = (&root, saved) {
            // The instance has begun with the module's initial data.
            let more = saved.len().saturating_sub(memory.data_size(&store));
            memory.grow(&mut store, (more / PAGE) as u64)?;
            let bytes = memory.data_mut(&mut store).get_mut(..saved.len());
            bytes.ok_or(Failure::Foreign)?.copy_from_slice(&saved);
            for (global, value) in globals.iter().zip(root.globals) {
                let value = match global.get(&mut store) {
                    Val::I32(_) => Val::I32(value.get() as i32),
                    _ => Val::I64(value.get() as i64),
                };
                global.set(&mut store, value)?;
            }
        }
        let inbox = number(&instance, &mut store, "inbox")?;
        let inbox_bytes = number(&instance, &mut store, "inbox_bytes")?;
        if inbox
            .checked_add(inbox_bytes)
            .is_none_or(|end| end > memory.data_size(&store))
        {
            return Err(Failure::Export("an inbox in its memory"));
        }
        let exec = instance.get_typed_func(&mut store, "exec");
        let init = instance.get_typed_func(&mut store, "init").ok();
        Ok(Running {
            init,
            exec: exec.map_err(|_| Failure::Export("exec(i32, i32, i64, i32) -> i32"))?,
            store,
            memory,
            globals,
            object,
            place,
            inbox,
            inbox_bytes,
            root: root.unwrap_or(Root {
                mark: MARK.into(),
                module: module.number().into(),
                memory: object.to_bits().into(),
                bytes: 0.into(),
                globals: [0.into(); GLOBALS_LIMIT],
            }),
        })
    }

    /// The module's own preparation, where it has one.
    fn init(&mut self, budget: u64) -> Result<(), Failure> {
        let Some(init) = self.init.clone() else {
            return Ok(());
        };
        self.store.set_epoch_deadline(budget);
        Ok(init.call(&mut self.store, ())?)
    }

    /// Gives the module a message.
    fn exec(&mut self, message: &Message, budget: u64) -> Result<Progress, Failure> {
        let whole = message.body.len();
        let fits = whole.min(self.inbox_bytes);
        let memory = self.memory.data_mut(&mut self.store);
        let inbox = memory.get_mut(self.inbox..self.inbox + fits);
        if let (Some(inbox), Some(body)) = (inbox, message.body.get(..fits)) {
            inbox.copy_from_slice(body);
        }
        let (outside, from) = match message.from {
            Address::Actor(id) => (0, i64::from(id.0)),
            Address::Outside(number) => (1, number as i64),
        };
        self.store.set_epoch_deadline(budget);
        let arguments = (message.kind as i32, outside, from, whole as i32);
        match self.exec.call(&mut self.store, arguments)? {
            0 => Ok(Progress::Done),
            1 => Ok(Progress::Yielded),
            _ => Err(Failure::Export("an exec that gives 0 or 1")),
        }
    }

    /// Notes in the region what is not in memory.
    fn keep(&mut self, objects: &mut Objects) -> Result<(), Failure> {
        let mut root = self.root;
        root.bytes = (self.memory.data_size(&self.store) as u64).into();
        for (global, kept) in self.globals.iter().zip(&mut root.globals) {
            *kept = match global.get(&mut self.store) {
                Val::I32(value) => u64::from(value as u32).into(),
                Val::I64(value) => (value as u64).into(),
                _ => 0.into(),
            };
        }
        if root.as_bytes() != self.root.as_bytes() {
            objects.write(ROOT, 0, root.as_bytes())?;
            self.root = root;
        }
        Ok(())
    }
}

/// What a function without arguments of a new instance gives.
fn number(instance: &Instance, store: &mut Store<Host>, name: &'static str) -> Result<usize, Failure> {
    let function = instance.get_typed_func::<(), i32>(&mut *store, name);
    let function = function.map_err(|_| Failure::Export(name))?;
    Ok(function.call(store, ())? as u32 as usize)
}
