//! In the place of the Docker engine where inco is built without it.

use crate::docker_config::DockerConfig;
use crate::image::Store;
use crate::{
    Container, Engine, EngineError, EngineEvent, Execution, ImageRef, Label, Request, Ticket, Usage,
};

/// The Docker engine of a program that was built without it: there is none.
#[derive(Debug)]
pub enum DockerEngine {}

impl DockerEngine {
    /// Starts nothing.
    ///
    /// # Errors
    /// Always [`EngineError::LeftOut`].
    pub fn start(_config: DockerConfig) -> Result<DockerEngine, EngineError> {
        Err(EngineError::LeftOut { engine: "docker" })
    }
}

/// Gives Docker nothing.
///
/// # Errors
/// Always [`EngineError::LeftOut`].
pub fn import_into_docker(
    _config: &DockerConfig,
    _store: &Store,
    _name: &ImageRef,
) -> Result<(), EngineError> {
    Err(EngineError::LeftOut { engine: "docker" })
}

impl Engine for DockerEngine {
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
