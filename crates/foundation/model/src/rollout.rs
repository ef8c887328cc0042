use serde::{Deserialize, Serialize};

/// The replacement of a service's instances, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Rollout {
    /// How far it is.
    pub state: RolloutState,
    /// Instances that are replaced, or left meanwhile for another reason.
    pub replaced: u32,
    /// Instances that there were when it began.
    pub total: u32,
    /// What it waits for, or why it ended.
    pub reason: String,
}

crate::words! {
    /// How far a rollout is.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    pub enum RolloutState {
        /// Under way.
        Running = "running",
        /// Every instance is replaced.
        Finished = "finished",
        /// Ended early: a replacement failed, or an operator cancelled it. The other instances stay.
        Aborted = "aborted",
    }
}
