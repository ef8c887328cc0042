//! An engine without containers: for a configuration whose services have none, and a user who may not make any.

use crate::{Container, Engine, EngineError, EngineEvent, Execution, Label, Request, Ticket, Usage};

/// Has no containers and makes none. Every request fails with [`EngineError::NeedsRoot`].
#[derive(Debug, Default)]
pub struct NoEngine {
    refused: Vec<EngineEvent>,
}

impl NoEngine {
    /// One without containers.
    pub fn new() -> NoEngine {
        NoEngine::default()
    }
}

impl Engine for NoEngine {
    fn driver(&self) -> &'static str {
        "none"
    }

    fn is_local(&self) -> bool {
        true
    }

    fn submit(&mut self, ticket: Ticket, _request: Request) {
        let what = "making containers";
        self.refused.push(EngineEvent::Failed {
            ticket,
            error: EngineError::NeedsRoot { what },
            at: clock::monotonic(),
        });
    }

    fn execute(&mut self, execution: Execution) {
        let name = execution.name;
        (execution.answer)(Err(EngineError::NotFound { name }));
    }

    fn poll(&mut self, events: &mut Vec<EngineEvent>) {
        events.append(&mut self.refused);
    }

    fn list(&mut self, _label: &Label) -> Result<Vec<Container>, EngineError> {
        Ok(Vec::new())
    }

    fn usage(&self, name: &str) -> Result<Usage, EngineError> {
        let name = name.to_owned();
        Err(EngineError::NotFound { name })
    }
}
