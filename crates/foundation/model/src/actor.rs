//! Words about services of actors.

use serde::{Deserialize, Serialize};

crate::words! {
    /// A side of a service of actors.
    #[derive(Default, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    pub enum ActorSide {
        /// The cores of the card.
        #[default]
        Card = "card",
        /// Those of the host.
        Host = "host",
    }

    /// What happened to an actor, or was decided about it.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    pub enum ActorChange {
        /// Its move to the other side has begun.
        MoveBegun = "move_begun",
        /// Its move has ended on the other side.
        MoveEnded = "move_ended",
        /// Its move has ended where it began.
        MoveFailed = "move_failed",
        /// Its messages wait in a mailbox of its own from now on, served by deficit round-robin.
        Downgraded = "downgraded",
        /// Its messages wait in the line of the others again, first come, first served.
        Upgraded = "upgraded",
        /// It starts no message.
        Paused = "paused",
        /// It goes on.
        Resumed = "resumed",
        /// It has ended: by its own word, by an operator, or because a message ran for too long.
        Stopped = "stopped",
        /// It runs nowhere: its process ended with a message under way in it, or its region cannot be used.
        Lost = "lost",
    }

    /// What happened to a side of a service of actors, or was decided there.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    pub enum SideChange {
        /// Its actors run.
        Started = "started",
        /// Its process has ended. inco starts another one.
        Ended = "ended",
        /// It has broken the rules or does not answer. inco ends its process.
        Broken = "broken",
        /// One of its cores serves mailboxes in turns from now on, by deficit round-robin.
        CoreToRound = "core_to_round",
        /// One of its cores serves first come, first served again.
        CoreToLine = "core_to_line",
    }
}

impl ActorSide {
    /// Both.
    pub const BOTH: [ActorSide; 2] = [ActorSide::Card, ActorSide::Host];

    /// 0 for the card, 1 for the host.
    pub const fn index(self) -> usize {
        match self {
            ActorSide::Card => 0,
            ActorSide::Host => 1,
        }
    }

    /// The other one.
    pub const fn other(self) -> ActorSide {
        match self {
            ActorSide::Card => ActorSide::Host,
            ActorSide::Host => ActorSide::Card,
        }
    }
}
