use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Where an instance is in its life. Only [`Active`](InstanceState::Active) takes new flows.
///
/// ```text
/// Creating → Starting → Standby ⇄ Active → Draining → Standby | Stopping → Gone,  and Failed from any
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum InstanceState {
    /// The engine makes the container.
    Creating,
    /// The program runs; it is not ready yet.
    Starting,
    /// Connected, given no flows.
    Standby,
    /// Takes new flows.
    Active,
    /// Serves the flows that it has, takes no new ones.
    Draining,
    /// The container is being stopped and removed.
    Stopping,
    /// Died, hung or never became ready; its flows go to others.
    Failed,
    /// Nothing is left of it.
    Gone,
}

/// What makes an instance change its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceStep {
    /// The engine reports the program running.
    Started,
    /// The service's `ready` condition holds.
    Ready,
    /// New flows may come.
    Activate,
    /// No new flows from now on.
    Drain,
    /// The drain is taken back.
    Undrain,
    /// The drain has ended, or its deadline has passed, and the instance is kept for later.
    Park,
    /// The container is to go.
    Stop,
    /// Death, stall, or an engine's error.
    Fail,
    /// The container and its port are gone.
    Removed,
}

/// A step that the state does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("an instance in state {state:?} cannot take the step {step:?}")]
pub struct IllegalTransition {
    /// Where the instance is.
    pub state: InstanceState,
    /// What was asked of it.
    pub step: InstanceStep,
}

impl InstanceState {
    /// Every state, in the order of a life.
    pub const ALL: [InstanceState; 8] = [
        InstanceState::Creating,
        InstanceState::Starting,
        InstanceState::Standby,
        InstanceState::Active,
        InstanceState::Draining,
        InstanceState::Stopping,
        InstanceState::Failed,
        InstanceState::Gone,
    ];

    /// The one transition table.
    ///
    /// # Errors
    /// [`IllegalTransition`] where the state does not have that step; the state then stays as it is.
    pub fn step(self, step: InstanceStep) -> Result<InstanceState, IllegalTransition> {
        use InstanceState as S;
        use InstanceStep as T;
        Ok(match (self, step) {
            (S::Creating, T::Started) => S::Starting,
            (S::Starting, T::Ready) => S::Standby,
            (S::Standby, T::Activate) => S::Active,
            (S::Active, T::Drain) => S::Draining,
            (S::Draining, T::Undrain) => S::Active,
            (S::Draining, T::Park) => S::Standby,
            (S::Creating | S::Starting | S::Standby | S::Draining | S::Failed, T::Stop) => S::Stopping,
            (S::Stopping | S::Failed, T::Removed) => S::Gone,
            (S::Gone, T::Fail) => return Err(IllegalTransition { state: self, step }),
            (_, T::Fail) => S::Failed,
            _ => return Err(IllegalTransition { state: self, step }),
        })
    }

    /// Whether the scheduler may give it a new flow.
    pub const fn takes_new_flows(self) -> bool {
        matches!(self, InstanceState::Active)
    }

    /// Whether packets of flows that it has still go to it.
    pub const fn serves(self) -> bool {
        matches!(
            self,
            InstanceState::Active | InstanceState::Draining | InstanceState::Standby
        )
    }

    /// The word in tables, logs and labels.
    pub const fn name(self) -> &'static str {
        match self {
            InstanceState::Creating => "creating",
            InstanceState::Starting => "starting",
            InstanceState::Standby => "standby",
            InstanceState::Active => "active",
            InstanceState::Draining => "draining",
            InstanceState::Stopping => "stopping",
            InstanceState::Failed => "failed",
            InstanceState::Gone => "gone",
        }
    }
}
