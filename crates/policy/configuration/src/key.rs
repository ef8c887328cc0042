//! What a row of the table of keys says, and what is kept of a key's value.

/// The default of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDefault {
    /// It must be written.
    Required,
    /// As if this TOML value had been written.
    Value(&'static str),
    /// A rule, in words.
    Words(&'static str),
}

/// The effect of a reload on a changed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// It takes effect.
    Applies,
    /// It takes effect for new instances: a rollout replaces the others.
    Instances,
    /// The reload is refused: inco must start again.
    Restart,
    /// The reload is refused where the driver is `openflow`: the rules of new flows are laid out when it starts.
    Rules,
    /// The reload is refused where returned packets would be counted per flow and no flow table does so yet.
    Counts,
    /// The reload is refused where instances at some place would have another kind of ports: ports are made when the switch
    /// starts.
    Ports,
    /// Each key of this table has its own rule.
    Keys,
}

/// A key of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its table: `switch`, `uplink[]`, `service.NAME`, `service.NAME.match`.
    pub table: &'static str,
    /// Its name within the table.
    pub name: &'static str,
    /// The permitted values, in words.
    pub kind: &'static str,
    /// An example value, as TOML.
    pub example: &'static str,
    /// Its default.
    pub default: KeyDefault,
    /// The effect of a reload.
    pub reload: Reload,
    /// Its meaning.
    pub meaning: &'static str,
}

/// The heading of a table, as written in a file.
pub(crate) fn heading(table: &str) -> String {
    match table.strip_suffix("[]") {
        Some(list) => format!("[[{list}]]"),
        None => format!("[{table}]"),
    }
}

/// The value of a key, for comparison on a reload.
#[derive(Clone, Debug)]
pub(crate) struct KeptValue {
    /// The effect of a reload on it.
    pub(crate) reload: Reload,
    /// The parsed value, the same for all notations.
    pub(crate) value: String,
    /// The value as written, on one line; the default if not written.
    pub(crate) text: String,
    pub(crate) is_written: bool,
}
