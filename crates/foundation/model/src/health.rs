//! How instances are checked, and what their agents say.

use crate::Nanos;

/// How the instances of a service are checked.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthCheck {
    /// What each is asked.
    pub probe: Probe,
    /// From the beginning of one check to that of the next.
    pub every: Nanos,
    /// How long one may take.
    pub timeout: Nanos,
    /// An instance fails after so many checks in a row that did not pass.
    pub fall: u32,
    /// It is back after so many in a row that passed.
    pub rise: u32,
    /// If a smaller share of a service's instances pass, all are used.
    pub panic: f64,
}

impl HealthCheck {
    /// The same, with that port where none was said.
    #[must_use]
    pub fn at_port(mut self, first: u16) -> HealthCheck {
        if let Probe::Http(port @ 0, _) | Probe::Dns(port @ 0, _) = &mut self.probe {
            *port = first;
        }
        self
    }
}

/// What a check asks of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A connection to a port.
    Tcp(u16),
    /// A request for a path at a port; 0: the service's first.
    Http(u16, String),
    /// A question for a name at a port; 0: the service's first.
    Dns(u16, String),
    /// A command in its container exits with 0.
    Command(Vec<String>),
}

/// Where the agents of a service's instances are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentCheck {
    /// Their port.
    pub port: u16,
    /// How often.
    pub every: Nanos,
}

impl AgentCheck {
    /// How long a report has an effect.
    pub fn lasts(&self) -> Nanos {
        Nanos(self.every.0.saturating_mul(3))
    }
}

/// What an agent says of its instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentReport {
    /// Whether it serves.
    pub state: Option<AgentState>,
    /// Whether it wants new flows.
    pub mode: Option<AgentState>,
    /// Its weight, in percent.
    pub percent: Option<u32>,
}

/// A word of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// It serves.
    Up,
    /// It does not.
    Down,
    /// It wants new flows.
    Ready,
    /// It wants none.
    Drain,
    /// It is being worked on, and wants none.
    Maintenance,
}
