//! In the place of the engine `kubernetes` where inco is built without it.

use crate::kubernetes_config::KubernetesConfig;
use crate::{Container, Engine, EngineError, EngineEvent, Execution, Label, Request, Ticket, Usage};

/// The engine `kubernetes` of a program that was built without it: there is none.
#[derive(Debug)]
pub enum KubernetesEngine {}

impl KubernetesEngine {
    /// Starts nothing.
    ///
    /// # Errors
    /// Always [`EngineError::LeftOut`].
    pub fn start(_config: KubernetesConfig) -> Result<KubernetesEngine, EngineError> {
        Err(EngineError::LeftOut { engine: "kubernetes" })
    }
}

impl Engine for KubernetesEngine {
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
