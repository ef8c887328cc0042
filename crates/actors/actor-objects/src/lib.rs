//! The state of an actor: objects in a region of shared memory that only this actor has. It must never give the bytes
//! of another object, or of another actor, and never a pointer.
//!
//! Key types: [`Objects`] (the objects of one actor), [`ObjectId`] (names one of them, on both sides), [`Export`] and
//! [`Import`] (all of them as a stream of bytes).
//!
//! 1. [`Objects::create`] makes the region, in a file that cannot shrink. An object that does not fit is
//!    [`ObjectError::Exhausted`] for this actor; other actors do not notice.
//! 2. While the actor handles messages, it allocates, frees and changes objects by their ids. An id contains the
//!    generation of its place. The id of a freed object is [`ObjectError::Stale`], also after the objects have moved.
//! 3. The caller calls [`Objects::begin`] before each message and [`Objects::complete`] after it. If the process ends
//!    in between, the region may hold a half-done change, and [`Objects::open`] refuses it.
//! 4. To move, [`Objects::export`] writes everything as bytes. [`Import`] checks them and places the objects again,
//!    with equal ids, one after the other, so that all free space is in one piece.
//!
//! # Layout of the region
//! Numbers are little-endian. Free space is not stored: it is derived from the table.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..64 | mark, layout, bytes for objects, places, messages completed, whether one is under way, a word for others |
//! | 64.. | the table: for each place generation (4), bytes (4; 0 is free), where (4, in units of 16 bytes), 0 (4) |
//! | then | the objects, each at a multiple of 16 bytes |
//!
//! # Cost
//! Access by id is an index and a comparison. Allocation takes the smallest piece of free space that is long enough,
//! and freeing joins pieces that touch; both are logarithmic in the number of pieces.
#![forbid(unsafe_code)]

mod free_space;
mod objects;
mod region;
mod stream;

pub use objects::{ObjectError, ObjectId, Objects};
pub use region::{Limits, RegionError};
pub use stream::{Export, Import, ImportError};
