//! Actors in WebAssembly: the same module runs on both sides, whatever their processors are. A module's linear memory is
//! an object of its actor, in the actor's region. So it outlives the process, and moves as other objects do.
//!
//! Key types: [`Module`] (checked and compiled), [`WasmActor`] (an actor that runs it).
//!
//! 1. [`Module::compile`] takes a module as binary or as text. It refuses what would keep state where it cannot move:
//!    see [`ModuleError`].
//! 2. [`WasmActor::new`] makes an actor. It needs a region ([`actor_runtime::Registration::objects`]): 64 KiB for each
//!    page of the module's memory, and 4 KiB.
//! 3. A trap, or a message that takes longer than the budget, stops the actor with the reason. Nothing else is touched:
//!    a module can write only to its own memory.
//!
//! # What a module exports
//! | export | meaning |
//! | --- | --- |
//! | `memory` | its one linear memory |
//! | `inbox() -> i32` | where in memory bodies of messages are put; called once |
//! | `inbox_bytes() -> i32` | the room there; called once |
//! | `init()` | optional; called once in the life of the actor, before its first message |
//! | `exec(kind: i32, outside: i32, from: i64, bytes: i32) -> i32` | handles a message: 0 if it has ended, 1 if it goes on later. `outside` is 1 where the sender is outside of the runtime. Of a body of more `bytes` than the inbox has, only the beginning is there |
//! | a mutable global | optional; its value moves with the memory. All mutable globals must be exported, at most 8, of type `i32` or `i64`: with clang and rustc, `--export=__stack_pointer` |
//!
//! # What it may import from `inco`
//! | import | meaning |
//! | --- | --- |
//! | `send(outside: i32, to: i64, kind: i32, at: i32, bytes: i32)` | sends a message when this one has ended |
//! | `me() -> i32` | the number of the actor |
//! | `now() -> i64` | the time at which this run began, in nanoseconds |
//! | `fail(at: i32, bytes: i32)` | stops the actor; the text is the reason |
//! | `crc32(at: i32, bytes: i32) -> i32` | the checksum of IEEE 802.3 |
//! | `sha1(at: i32, bytes: i32, to: i32)` | 20 bytes, to `to` |
//! | `aes256_ctr(key: i32, counter: i32, at: i32, bytes: i32)` | encrypts or decrypts in place: 32 bytes of key, 16 of the first counter block, big-endian |
//! | `find(at: i32, bytes: i32, pattern: i32, pattern_bytes: i32) -> i32` | where the pattern begins first, or -1 |
//!
//! The last four run natively, as iPipe's cards do such work in hardware.
//!
//! # Limits
//! The policy does not interrupt such an actor; its budget does, in steps of [`TICK`]. All memory of the region moves,
//! used or not, so a region should be as large as the module needs. A region whose process ended within a message is
//! refused, as with native actors.

// UNSAFETY: memory.rs gives a module memory of a region; its safety is argued there.

mod actor;
mod host;
#[expect(unsafe_code, reason = "see above")]
mod memory;
mod module;

pub use actor::WasmActor;
pub use module::{Module, ModuleError, TICK};
