use std::fmt;

use serde::{Deserialize, Serialize};

/// A key of the configuration whose value has changed, or a service that is new or gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KeyChange {
    /// The key, from the top: `service.firewall.fit`; `service.firewall` for a service as a whole.
    pub key: String,
    /// Its value so far, as TOML; absent where there was none.
    pub old: Option<String>,
    /// Its value in the changed file; absent where there is none any more.
    pub new: Option<String>,
    /// Whether inco must start again for it: a reload is refused.
    pub needs_restart: bool,
}

/// `service.firewall.fit: 0.9 (default) -> 0.8`.
impl fmt::Display for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "absent".to_owned());
        write!(f, "{}: {} -> {}", self.key, text(&self.old), text(&self.new))
    }
}

/// A key of a service as it holds in a running inco.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Setting {
    /// The key in the service's table: `fit`, `match.dst`.
    pub key: String,
    /// Its value, as TOML. Of `env` the names alone.
    pub value: String,
    /// Whether the file writes it.
    pub is_written: bool,
}
