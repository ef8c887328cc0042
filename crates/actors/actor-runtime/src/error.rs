use actor_scheduling::ActorId;

/// Why a runtime cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The number is above the runtime's limit of actors.
    #[error("{0} is above the limit of {1} actors")]
    AboveLimit(ActorId, u32),
    /// An actor with that number is registered.
    #[error("{0} is registered already")]
    Registered(ActorId),
    /// No actor with that number is registered.
    #[error("{0} is not registered")]
    NotRegistered(ActorId),
    /// It runs on a core now.
    #[error("{0} runs now")]
    Runs(ActorId),
    /// A registration without an instance.
    #[error("{0} has no instance")]
    NoInstance(ActorId),
    /// It could not prepare its state.
    #[error("{0} failed: {1}")]
    Failed(ActorId, String),
    /// A thread could not be started.
    #[error("a core's thread could not be started")]
    Thread(#[source] std::io::Error),
}
