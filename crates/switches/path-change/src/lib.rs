//! How a flow changes between a slow path (a worker that takes packets from a ring) and a fast one (a program in front of that
//! ring) without a packet out of order. This crate has the rules; it holds no packet, and shares no memory by itself.
//!
//! Key types: [`Passage`] (what the program knows of a flow), [`Watermark`] (how the worker finds out what is done),
//! [`Want`] (what it has to look at next), [`FastPath`] (the contract of a fast path that keeps these rules).
//!
//! # The rule
//! The program numbers the packets that it passes up, over all flows. [`Passage::last`] is the number of the flow's last one.
//! The worker says up to which number the slow path is done. The program takes a packet of a flow that has a rule if the flow's
//! last packet is done ([`Passage::is_clear`]); else it passes it up, as if there was no rule. So nothing is held, a rule may
//! come and go at any time, and a flow whose packets leave no pause stays on the slow path. A flow that loses its rule needs
//! nothing, because a packet of the fast path is in the instance before the program sees the next one.
//!
//! Packets that the ring has no place for are numbered as well, so a loss holds nothing up. Packets whose flow the program
//! cannot tell (fragments) count as the last packets of all flows.
//!
//! # What is done
//! 1. [`Want::Passed`]: the worker reads how many packets were numbered, `n`. A packet is numbered after the kernel has put it
//!    into the ring, so each of these is in the ring, was taken from it, or is lost.
//! 2. [`Want::Begun`], [`Want::Placed`]: the kernel gives places of the ring in order, and fills them in any order. Each CPU
//!    counts packets that it began to put there, and those it is through with. When every CPU is through with what it had
//!    begun, no place before those of the `n` packets is empty.
//! 3. [`Want::Waiting`]: now the worker counts the frames that wait in the ring. The `n` packets are among these and those
//!    that it has taken.
//! 4. [`Watermark::committed`]: when all of these are taken and committed, it gives `n`.
//! 5. What is committed waits in a queue of the kernel. So `n` is not stored; it is sent, behind the committed packets, through
//!    the same queue. A program at its other end stores `n` as what is done.
//!
//! The worker begins again with step 1 when more packets were numbered. If a marker is lost, flows wait for the next one: the
//! next packet of each is numbered, so there will be one.
//!
//! # Promotion
//! Who writes rules inserts the flow with [`Passage::inserted`], reads then how many packets were numbered, and stores that in
//! [`Passage::floor`]. The program numbers a packet first and looks its flow up afterwards. So of each packet either the
//! number is read, or the entry is seen.
//!
//! # What must hold around it
//! Packets of a flow come to the program one after the other. All memory is shared in sequential order. A worker that passes
//! packets on to other workers is not covered: with more than one worker, `n` would have to follow them.
#![forbid(unsafe_code)]

mod fast;
mod passage;
mod watermark;

pub use fast::{Exit, FastError, FastPath, Way};
pub use passage::Passage;
pub use watermark::{Want, Watermark};
