//! A module: what it must and must not have, and its code.

use std::sync::Arc;
use std::time::Duration;

use sha1::{Digest as _, Sha1};
use wasmparser::{ExternalKind, Operator, Parser, Payload, TypeRef, ValType};
use wasmtime::{Config, Engine, InstancePre, Linker};

use crate::host::{self, Host};
use crate::memory::{InObject, PAGE};

/// The step in which time is measured: a message may take up to one more than its budget.
pub const TICK: Duration = Duration::from_millis(10);
/// Mutable globals of a module, at most.
pub(crate) const GLOBALS_LIMIT: usize = 8;
/// Bytes of a module, at most.
const MODULE_LIMIT: usize = 16 << 20;

/// Why a module is refused.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// Longer than 16 MiB.
    #[error("the module has {0} bytes; at most {MODULE_LIMIT} are read")]
    TooLong(usize),
    /// Neither a binary nor a text.
    #[error("the module cannot be read: {0}")]
    Invalid(String),
    /// A memory of another actor, none, or several.
    #[error("the module must have one memory of its own and export it as `memory`")]
    Memory,
    /// Something that must be there.
    #[error("the module does not export {0}")]
    Missing(&'static str),
    /// State that does not move.
    #[error(
        "global {0} of the module changes and is not exported, so its value would be lost when the actor moves; export \
         it (clang and rustc: the linker's option --export=__stack_pointer), or keep the value in memory"
    )]
    HiddenGlobal(u32),
    /// More than 8, or of another type.
    #[error("the module has a mutable global that is no i32 or i64, or more than {GLOBALS_LIMIT} of them")]
    Globals,
    /// State that does not move.
    #[error(
        "the module uses {0}, which changes state outside of its memory; that does not move with the actor"
    )]
    Elsewhere(&'static str),
    /// It would run again after a move.
    #[error("the module has a start function; export it as `init` instead")]
    Start,
    /// An import that inco does not have, or code that cannot be compiled.
    #[error("the module cannot be compiled: {0}")]
    Compile(String),
}

/// A module: checked, and compiled for this processor. Clones share the code.
#[derive(Clone)]
pub struct Module(Arc<Compiled>);

struct Compiled {
    engine: Engine,
    instance: InstancePre<Host>,
    /// Names of the mutable globals.
    globals: Vec<String>,
    /// Pages of memory at the beginning.
    pages: u64,
    /// Says which module it is: the beginning of its SHA-1.
    number: u64,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module").field("pages", &self.0.pages).finish()
    }
}

impl Module {
    /// Checks and compiles a module, given as binary (`\0asm`) or as text (WAT). That takes milliseconds to seconds.
    ///
    /// # Errors
    /// [`ModuleError`]: what is wrong, and what to do.
    pub fn compile(module: &[u8]) -> Result<Module, ModuleError> {
        if module.len() > MODULE_LIMIT {
            return Err(ModuleError::TooLong(module.len()));
        }
        let binary = wat::parse_bytes(module).map_err(|error| ModuleError::Invalid(error.to_string()))?;
        let engine = Engine::new(&config()).map_err(|error| ModuleError::Compile(format!("{error:#}")))?;
        let code = wasmtime::Module::new(&engine, &binary)
            .map_err(|error| ModuleError::Compile(format!("{error:#}")))?;
        let (globals, pages) = check(&binary)?;
        let mut linker = Linker::new(&engine);
        let instance = host::add(&mut linker)
            .and_then(|()| linker.instantiate_pre(&code))
            .map_err(|error| ModuleError::Compile(format!("{error:#}")))?;
        tick(&engine)?;
        Ok(Module(Arc::new(Compiled {
            engine,
            instance,
            globals,
            pages,
            number: Sha1::digest(&binary)
                .first_chunk()
                .map_or(0, |bytes| u64::from_le_bytes(*bytes)),
        })))
    }

    /// Bytes of memory that it begins with.
    pub fn memory_bytes(&self) -> u64 {
        self.0.pages.saturating_mul(PAGE as u64)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(crate) fn instance(&self) -> &InstancePre<Host> {
        &self.0.instance
    }

    /// The same for the same module, on each processor.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    pub(crate) fn globals(&self) -> &[String] {
        &self.0.globals
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        // Memory is where an object is: no reservation, no guard pages. Each access is checked in the code.
        .with_host_memory(Arc::new(InObject))
        .memory_reservation(0)
        .memory_guard_size(0)
        .memory_init_cow(false)
        // Checks in the code instead of signals: a process of actors may have other actors' faults to tell apart.
        .signals_based_traps(false)
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        // The same results on all processors.
        .cranelift_nan_canonicalization(true)
        .wasm_relaxed_simd(false);
    config
}

/// Counts ticks of an engine until its last module is gone.
fn tick(engine: &Engine) -> Result<(), ModuleError> {
    let engine = engine.weak();
    let thread = std::thread::Builder::new().name("wasm-ticks".to_owned());
    let started = thread.spawn(move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::sleep(TICK);
        }
    });
    match started {
        Ok(_) => Ok(()),
        Err(error) => Err(ModuleError::Compile(format!(
            "no thread for its time limit: {error}"
        ))),
    }
}

/// What wasmtime does not check: nothing may keep state outside of the memory and the exported globals. Gives the names
/// of the mutable globals, and the pages of memory. The module is valid.
fn check(binary: &[u8]) -> Result<(Vec<String>, u64), ModuleError> {
    let invalid = |error: wasmparser::BinaryReaderError| ModuleError::Invalid(error.to_string());
    let mut memories = Vec::new();
    let mut globals = Vec::new();
    let mut exported: Vec<Option<String>> = Vec::new();
    let mut exports = Vec::new();
    for payload in Parser::new(0).parse_all(binary) {
        match payload.map_err(invalid)? {
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    match import.map_err(invalid)?.ty {
                        TypeRef::Func(_) | TypeRef::FuncExact(_) => {}
                        TypeRef::Memory(_) => return Err(ModuleError::Memory),
                        _ => return Err(ModuleError::Elsewhere("an import that is no function")),
                    }
                }
            }
            Payload::MemorySection(section) => {
                for memory in section {
                    memories.push(memory.map_err(invalid)?.initial);
                }
            }
            Payload::GlobalSection(section) => {
                for global in section {
                    globals.push(global.map_err(invalid)?.ty);
                }
            }
            Payload::ExportSection(section) => {
                exported = vec![None; globals.len()];
                for export in section {
                    let export = export.map_err(invalid)?;
                    exports.push(export.name);
                    if export.kind == ExternalKind::Global
                        && let Some(name) = exported.get_mut(export.index as usize)
                    {
                        *name = Some(export.name.to_owned());
                    }
                }
            }
            Payload::StartSection { .. } => return Err(ModuleError::Start),
            Payload::CodeSectionEntry(body) => {
                for operator in body.get_operators_reader().map_err(invalid)? {
                    if let Some(what) = elsewhere(&operator.map_err(invalid)?) {
                        return Err(ModuleError::Elsewhere(what));
                    }
                }
            }
            _ => {}
        }
    }
    let [pages] = memories[..] else {
        return Err(ModuleError::Memory);
    };
    for name in ["memory", "inbox", "inbox_bytes", "exec"] {
        if !exports.contains(&name) {
            return Err(ModuleError::Missing(name));
        }
    }
    exported.resize(globals.len(), None);
    let mut names = Vec::new();
    for (index, (global, name)) in (0..).zip(globals.iter().zip(exported)) {
        if !global.mutable {
            continue;
        }
        let name = name.ok_or(ModuleError::HiddenGlobal(index))?;
        if !matches!(global.content_type, ValType::I32 | ValType::I64) || names.len() == GLOBALS_LIMIT {
            return Err(ModuleError::Globals);
        }
        names.push(name);
    }
    Ok((names, pages))
}

/// An instruction that changes state outside of memory and globals.
fn elsewhere(operator: &Operator<'_>) -> Option<&'static str> {
    match operator {
        Operator::TableSet { .. } => Some("table.set"),
        Operator::TableGrow { .. } => Some("table.grow"),
        Operator::TableFill { .. } => Some("table.fill"),
        Operator::TableInit { .. } => Some("table.init"),
        Operator::TableCopy { .. } => Some("table.copy"),
        Operator::DataDrop { .. } => Some("data.drop"),
        Operator::ElemDrop { .. } => Some("elem.drop"),
        _ => None,
    }
}
