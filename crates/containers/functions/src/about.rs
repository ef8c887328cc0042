//! What a function says of itself: its name, why it drops packets, what it counts.

/// Bytes of the name of a function, a reason or a metric, at most: what the shared page has room for. Names consist of
/// lower-case letters, digits and underscores, as in `/metrics`.
pub const NAME_BYTES_LIMIT: usize = 31;
/// Reasons of one function, at most.
pub const REASONS_LIMIT: usize = 24;
/// Metrics of one function, at most.
pub const METRICS_LIMIT: usize = 24;

/// What a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// Its name, as in `inco-nf NAME`.
    pub name: &'static str,
    /// What it does, in one sentence without a full stop.
    pub help: &'static str,
    /// Why it drops packets: [`Reason`] is an index into these. The stage counts them. At most [`REASONS_LIMIT`].
    pub reasons: &'static [Metric],
    /// What it counts besides, in the order in which [`Function::metrics`](crate::Function::metrics) gives the values.
    /// At most [`METRICS_LIMIT`].
    pub metrics: &'static [Metric],
}

/// Why a function dropped a packet: an index into [`About::reasons`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason(pub u8);

/// Whether a number only rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A total since the function started.
    Counter,
    /// How many there are now.
    Gauge,
}

/// The name of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, such as `rules_matched`.
    pub name: &'static str,
    /// What it counts, in which unit, in one sentence without a full stop.
    pub help: &'static str,
    /// Whether it only rises.
    pub kind: Kind,
}

impl Metric {
    /// A total; also a reason.
    pub const fn counter(name: &'static str, help: &'static str) -> Metric {
        Metric {
            name,
            help,
            kind: Kind::Counter,
        }
    }

    /// How many there are now.
    pub const fn gauge(name: &'static str, help: &'static str) -> Metric {
        Metric {
            name,
            help,
            kind: Kind::Gauge,
        }
    }
}

/// Whether a name may be one.
pub(crate) fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    !name.is_empty() && name.len() <= NAME_BYTES_LIMIT && name.bytes().all(is_letter)
}

impl About {
    /// What is wrong with it, if anything: the test of the library asks.
    pub fn mistake(&self) -> Option<&'static str> {
        let all = || self.reasons.iter().chain(self.metrics);
        let mut names: Vec<&str> = all().map(|of| of.name).collect();
        names.sort_unstable();
        if !is_name(self.name) || !names.iter().all(|name| is_name(name)) {
            Some("a name is empty, too long, or has other characters than a-z, 0-9 and _")
        } else if names.windows(2).any(|pair| pair[0] == pair[1]) {
            Some("two of its reasons and metrics have one name")
        } else if self.reasons.len() > REASONS_LIMIT || self.metrics.len() > METRICS_LIMIT {
            Some("it has too many reasons or metrics")
        } else if self.help.is_empty() || all().any(|of| of.help.is_empty()) {
            Some("a help is empty")
        } else if self.reasons.iter().any(|of| of.kind != Kind::Counter) {
            Some("a reason is no counter")
        } else {
            None
        }
    }
}
