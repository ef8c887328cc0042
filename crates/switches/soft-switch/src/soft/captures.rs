//! Captures that workers may still have a part in. A worker frees no memory, so the last part is here.

use std::sync::Arc;

use switch::{Capture, SwitchError};

/// The capture that runs, and those that are over and some worker has not forgotten yet.
#[derive(Default)]
pub(super) struct Captures(Vec<Arc<Capture>>);

impl Captures {
    /// Adds one, if none runs.
    pub(super) fn begin(&mut self, capture: &Arc<Capture>) -> Result<(), SwitchError> {
        if self.0.iter().any(|of| !of.is_over()) {
            return Err(SwitchError::Capturing);
        }
        self.0.push(Arc::clone(capture));
        Ok(())
    }

    /// Frees those that nobody else has a part in.
    pub(super) fn free_old(&mut self) {
        self.0.retain(|capture| Arc::strong_count(capture) > 1);
    }
}
