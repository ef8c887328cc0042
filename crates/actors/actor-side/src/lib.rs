//! The actors of one side, card or host: they run here, their messages find them wherever they are, and they move to the
//! other side with their objects (Liu and others, SIGCOMM 2019, sections 3.2 and 3.3). It joins `actor-runtime`,
//! `actor-channel` and `actor-migration`, and decides neither when an actor moves nor whether a side has ended: the
//! caller does. It never reads a clock, and opens no file.
//!
//! Key types: [`ActorSide`] (a side), [`Member`] (an actor that both sides know), [`Begin`] (how it begins here), [`Event`]
//! (what became of a move).
//!
//! 1. [`ActorSide::new`] makes the side with its runtime; [`ActorSide::attach`] gives it its end of the channel.
//! 2. [`ActorSide::add`] on both sides for each actor: one has it, the other one has an empty region for it.
//! 3. The cores of [`ActorSide::runtime`] serve. A free one looks after the channel.
//! 4. [`ActorSide::move_away`] begins a move; [`ActorSide::take_events`] tells its phases and its end.
//! 5. If the process of the other side has ended: [`ActorSide::peer_ended`] here, before the other one is started again with
//!    [`Begin::Again`] and both get a new channel.
//!
//! What holds: messages from one sender to one actor are handled in order, each once, whatever moves. A process that ends
//! takes with it what it had not handled, and nothing else. An actor never runs on both sides.
//!
//! **Addresses.** An actor has one number on both sides. Numbers of [`Address::Outside`](actor_runtime::Address::Outside)
//! with the bit [`HOST_NETWORK`] belong to the host's network, others to the card's. An answer leaves by the network to
//! which its address belongs, wherever its sender runs.
#![forbid(unsafe_code)]

mod resident;
mod side;
mod wire;

pub use side::{ActorSide, Begin, Counts, Error, Event, EventKind, HOST_NETWORK, Make, Member, Row};
