//! What requests over the API name: actions, and flows.

use api::types::{Outcome, Refusal};
use api::{Answer, Caller};
use model::{Action, FlowKey};

/// An action whose requester waits for an answer.
pub(super) struct Asked {
    pub(super) action: Action,
    pub(super) caller: Caller,
    pub(super) answer: Answer<Result<Outcome, Refusal>>,
}

/// Parses a flow as `inco flows` shows it into its key.
pub(super) fn flow_key(flow: &str) -> Result<FlowKey, Refusal> {
    match api::parse_tuple(flow) {
        Ok(tuple) => Ok(FlowKey::new(&tuple).0),
        Err(error) => Err(Refusal::new(
            error.to_string(),
            "write it as `inco flows` shows it",
        )),
    }
}
