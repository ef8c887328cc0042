//! In the place of the engine `swarm` where inco is built without it.

use crate::docker_config::DockerConfig;
use crate::{Container, Engine, EngineError, EngineEvent, Execution, Label, Request, Ticket, Usage};

/// The engine `swarm` of a program that was built without it: there is none.
#[derive(Debug)]
pub enum SwarmEngine {}

impl SwarmEngine {
    /// Starts nothing.
    ///
    /// # Errors
    /// Always [`EngineError::LeftOut`].
    pub fn start(_config: DockerConfig) -> Result<SwarmEngine, EngineError> {
        Err(EngineError::LeftOut { engine: "swarm" })
    }
}

impl Engine for SwarmEngine {
    fn driver(&self) -> &'static str {
        match *self {}
    }

    fn is_local(&self) -> bool {
        match *self {}
    }

    fn submit(&mut self, _ticket: Ticket, _request: Request) {
        match *self {}
    }

    fn execute(&mut self, _execution: Execution) {
        match *self {}
    }

    fn poll(&mut self, _events: &mut Vec<EngineEvent>) {
        match *self {}
    }

    fn list(&mut self, _label: &Label) -> Result<Vec<Container>, EngineError> {
        match *self {}
    }

    fn usage(&self, _name: &str) -> Result<Usage, EngineError> {
        match *self {}
    }
}
