//! The first of two levels of steering: an edge picks the **machine** of a new flow, that machine's own scheduler the
//! instance. Both pin. This crate decides; it never sends, receives, pins, allocates in a pick, or reads a clock.
//!
//! Key types: [`LoadReport`] (what a machine says of itself every 10 ms), [`Gate`] (accepts each report of a machine at
//! most once), [`Machines`] (an edge's view of the machines of a service, and the pick), [`Sequences`] (the machines that
//! a flow's hash leads to), [`Look`] (where else the pin of a flow can be), [`Onward`] (the same in a packet), [`at_machine`] (what a machine does with a packet).
//!
//! At an edge:
//! 1. [`Machines::set_members`] says which machines there are. Each edge has the same ones.
//! 2. Each datagram goes through the [`Gate`] of its [machine](machine_of); what it accepts goes to
//!    [`Machines::reported`].
//! 3. [`Machines::renew`] with the time, once an interval.
//! 4. For the first packet of a flow [`Machines::pick`]: power of two choices (Azar, Broder, Karlin and Upfal, "Balanced
//!    allocations", SIAM J. Comput. 29(1), 1999; Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing",
//!    IEEE TPDS 12(10), 2001). The two come from the flow's hash, as in 6LB (Desmouceaux and others, IEEE/ACM ToN 26(2),
//!    2018), not from a random draw. The edge pins.
//! 5. For a packet in the middle of a flow without a pin (another edge had it before): [`Machines::look`]. The machines
//!    named there are all that can have the pin. The packet goes to the first one, which forwards it if it has no pin, as
//!    in Beamer (Olteanu and others, NSDI 2018) and Faild (Araujo and others, NSDI 2018).
//! 6. [`Machines::must_move`] says whether a pin is void: its machine failed, or leaves with flows left.
//!
//! At a machine: [`Towards::write`] for each edge every interval, [`Towards::hear`] for what the edge answers, and
//! [`at_machine`] for each packet that an edge sent without a pin.
#![forbid(unsafe_code)]

mod greeting;
mod look;
mod machines;
mod report;
mod sequences;

pub use greeting::{GREETING_BYTES, Towards};
pub use look::{LOOKS_LIMIT, Look, NoOnward, ONWARD_BYTES, Onward, Verdict, at_machine};
pub use machines::{
    Counts, MACHINES_LIMIT, MachineId, Machines, Member, Picked, Rule, Settings, Standing, goes_by_load,
};
pub use report::{
    DATAGRAM_LIMIT, Gate, Head, LoadReport, Refusal, SERVICES_LIMIT, ServiceLoad, Serving, TooManyServices,
    machine_of, service_number, write,
};
pub use sequences::{SEQUENCE, Sequences, draws};
