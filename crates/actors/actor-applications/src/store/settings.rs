//! Settings of a replica's consensus.

use actor_runtime::Address;

use crate::store::REPLICAS_LIMIT;

/// What a consensus actor is made with.
#[derive(Clone, Debug)]
pub struct ConsensusSettings {
    /// The index of this replica.
    pub me: u8,
    /// Where the consensus actors of all replicas are, by index; the entry of this one is not used. No client has one of
    /// these addresses.
    pub replicas: Vec<Address>,
    /// Ticks without a leader before an election, at least; at most twice as many.
    pub election_ticks: u32,
    /// Ticks between two heartbeats of a leader.
    pub heartbeat_ticks: u32,
    /// Slots of the log that are kept, at least 128. A replica that lags more catches up with a snapshot.
    pub log_slots: u32,
    /// What the random number of ticks is drawn from.
    pub seed: u64,
    /// The memtable of this replica.
    pub memtable: Address,
}

impl ConsensusSettings {
    pub(crate) fn is_valid(&self) -> bool {
        (1..=REPLICAS_LIMIT).contains(&self.replicas.len())
            && usize::from(self.me) < self.replicas.len()
            && self.election_ticks > self.heartbeat_ticks
            && self.heartbeat_ticks > 0
            && self.log_slots >= 128
    }
}
