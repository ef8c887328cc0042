//! The state of an actor: objects in a region of shared memory that only this actor has. It must never give the bytes of
//! another object, or of another actor, and never a pointer.
//!
//! Key types: [`Objects`] (the objects of one actor), [`ObjectId`] (names one of them, on both sides), [`Export`] and
//! [`Import`] (all of them as a stream of bytes).
//!
//! 1. [`Objects::create`] makes the region, in a file that cannot shrink. What is beyond it is [`ObjectError::Exhausted`]
//!    for this actor; others do not notice.
//! 2. While the actor handles messages it allocates, frees and changes objects by their ids. An id has the generation of
//!    its place: a stale one is [`ObjectError::Stale`], also after the objects have moved.
//! 3. [`Objects::begin`] and [`Objects::complete`] stand around each message. If the process ends in between, what the
//!    region holds is not the state behind a completed message, and [`Objects::open`] refuses it.
//! 4. To move, [`Objects::export`] gives everything as bytes. [`Import`] checks them and places the objects anew, with
//!    equal ids, one behind the other: free space is in one piece afterwards.
//!
//! # Layout of the region
//! Numbers are little-endian. The table is the only truth: free space is derived from it.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..64 | mark, layout, bytes for objects, places, messages completed, whether one is under way, a word for others |
//! | 64.. | the table: for each place generation (4), bytes (4; 0 is free), where (4, in units of 16 bytes), 0 (4) |
//! | then | the objects, each at a multiple of 16 bytes |
//!
//! # Cost
//! Access by id is an index and a comparison. Allocation takes the smallest piece of free space that is long enough, and
//! freeing joins pieces that touch; both are logarithmic in the number of pieces.
#![forbid(unsafe_code)]

mod free_space;
mod objects;
mod region;
mod stream;

pub use objects::{ObjectError, ObjectId, Objects};
pub use region::{Limits, RegionError};
pub use stream::{Export, Import, ImportError};
