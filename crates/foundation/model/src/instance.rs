use serde::{Deserialize, Serialize};
use thiserror::Error;

crate::words! {
    /// Where an instance is in its life. Only [`Active`](InstanceState::Active) takes new flows.
    ///
    /// ```text
    /// Creating → Starting → Standby ⇄ Active → Draining → Standby | Stopping → Gone,  and Failed from any
    /// ```
    #[derive(Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    pub enum InstanceState {
        /// The engine makes the container.
        Creating = "creating",
        /// The program runs; it is not ready yet.
        Starting = "starting",
        /// Connected, given no flows.
        Standby = "standby",
        /// Takes new flows.
        Active = "active",
        /// Serves the flows that it has, takes no new ones.
        Draining = "draining",
        /// The container is being stopped and removed.
        Stopping = "stopping",
        /// Died, hung or never became ready; its flows go to others.
        Failed = "failed",
        /// Nothing is left of it.
        Gone = "gone",
    }
}

/// A transition of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceStep {
    /// The engine reports that the program runs.
    Started,
    /// The service's `ready` condition holds.
    Ready,
    /// Allow new flows.
    Activate,
    /// Stop new flows.
    Drain,
    /// Cancel the drain.
    Undrain,
    /// The drain has ended or reached its deadline, and the instance is kept as standby.
    Park,
    /// Stop the container.
    Stop,
    /// Failure: death, stall, or an engine's error.
    Fail,
    /// The container and its port have been removed.
    Removed,
}

/// An invalid transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("invalid transition {step:?} in state {state:?}")]
pub struct IllegalTransition {
    /// The current state.
    pub state: InstanceState,
    /// The attempted transition.
    pub step: InstanceStep,
}

impl InstanceState {
    /// The only transition table.
    ///
    /// # Errors
    /// [`IllegalTransition`] if the state has no such transition; the state is then unchanged.
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

    /// Whether the scheduler may pick it for new flows.
    pub const fn takes_new_flows(self) -> bool {
        matches!(self, InstanceState::Active)
    }

    /// Whether packets of its flows still go to it.
    pub const fn serves(self) -> bool {
        matches!(
            self,
            InstanceState::Active | InstanceState::Draining | InstanceState::Standby
        )
    }
}
