//! Which flows are worth a rule of a faster path. Flows begin on the slow path, where software forwards each packet. A rule
//! takes a flow to the fast path, and costs CPU time once. This crate decides; it never writes a rule, reads a clock, or
//! sees a packet.
//!
//! Key types: [`Prices`] (CPU time of a packet on each path, from the file of `inco bench paths`, and of a rule),
//! [`Promotion`] (the decisions, and which flows have a rule), [`Seen`] (a flow's counters), [`Verdict`].
//!
//! 1. The slow path draws one packet of each burst, so flows are drawn as often as they are heavy. Each drawn flow goes to
//!    [`Promotion::note`] with its counters. New flows go there too while [`Promotion::wants_new`].
//! 2. A flow is promoted when the time that the fast path would have saved reaches a threshold. The threshold is learned from
//!    what flows bring in their first window ([`Promotion::brought`]): the one that would have cost least. Waiting for a threshold
//!    is the ski rental of Karlin, Manasse, Rudolph and Sleator, "Competitive snoopy caching", Algorithmica 3 (1988); choosing
//!    it by the distribution is its average case (Karlin, Manasse, McGeoch and Owicki, "Competitive randomized algorithms
//!    for nonuniform problems", Algorithmica 11 (1994)).
//! 3. Rules have a budget, and promotions a rate. Over the budget, a flow replaces the least worthy rule if it is worth
//!    [`Settings::displace_at`] times as much.
//! 4. [`Promotion::due`] names rules to look at, each once in a window. [`Promotion::review`] with the flow's counters says
//!    whether it stays.
//! 5. [`Promotion::withdraw`]: the rule is gone for another reason (the flow is over; its instance drains, moved or failed).
//!
//! **Floods.** A packet of a flood belongs to a flow of its own, so it saves nothing before the flow is over. Short flows raise
//! the threshold. While `is_flooded`, only flows that are open are promoted at all. Candidates are kept in a table of fixed
//! size, in which flows that are drawn again and again outlive those that are not.
#![forbid(unsafe_code)]

mod candidates;
mod lengths;
mod prices;
mod rules;

pub use prices::{Curve, KINDS, Kind, LARGE_BYTES, Paths, Prices, SMALL_BYTES};
pub use rules::{Promotion, Seen, Settings, Stay, Verdict, Why};
