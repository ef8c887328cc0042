//! The configuration of the function `ids`: limits, variables and rules.

use std::sync::Arc;

use model::Nanos;
use serde::Deserialize;

use super::alert::Signature;
use super::matcher::Prefilter;
use super::parse::{self, Variables};
use super::rule::{Action, Protocol, Rule};
use super::stream;
use crate::configuration::{Error, from_toml};

/// Flows whose state is kept, at most.
pub const FLOWS_LIMIT: usize = 1 << 20;
/// Bytes of a stream in which a match may lie, at least and at most.
pub const WINDOW_MIN: usize = 256;
/// See [`WINDOW_MIN`].
pub const WINDOW_LIMIT: usize = 1 << 16;
/// Bytes of a stream that wait for a gap to be filled, at most.
pub const WAITING_LIMIT: usize = 1 << 20;
/// MiB that all streams take, at most.
pub const MEMORY_LIMIT_MIB: usize = 4_096;
/// Seconds after which an idle flow is forgotten, at most.
pub const IDLE_LIMIT_S: u64 = 3_600;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    flows: usize,
    window: usize,
    waiting: usize,
    memory_mib: usize,
    idle_s: u64,
    midstream: bool,
    verify_checksums: bool,
    variables: Variables,
    rules: String,
}

impl Default for File {
    fn default() -> File {
        File {
            flows: 1 << 16,
            window: 4_096,
            waiting: 1 << 16,
            memory_mib: 128,
            idle_s: 60,
            midstream: true,
            verify_checksums: true,
            variables: Variables::new(),
            rules: String::new(),
        }
    }
}

/// A checked configuration, with the automata of its rules.
#[derive(Debug)]
pub struct Configuration {
    pub(super) flows: usize,
    pub(super) limits: stream::Limits,
    pub(super) memory: usize,
    pub(super) idle: Nanos,
    pub(super) midstream: bool,
    pub(super) verify_checksums: bool,
    /// Those that let flows pass come first, then those that drop: the first match decides.
    pub(super) rules: Vec<Rule>,
    pub(super) signatures: Vec<Arc<Signature>>,
    /// For packets that are not TCP.
    pub(super) datagrams: Prefilter,
    /// For each TCP packet by itself.
    pub(super) segments: Prefilter,
    /// For streams of TCP.
    pub(super) streams: Prefilter,
}

impl Configuration {
    pub(super) fn read(text: &str) -> Result<Configuration, Error> {
        let file: File = from_toml(text)?;
        for (what, value, least, most) in [
            ("flows", file.flows, 1, FLOWS_LIMIT),
            ("window, in bytes,", file.window, WINDOW_MIN, WINDOW_LIMIT),
            ("waiting, in bytes,", file.waiting, 0, WAITING_LIMIT),
            ("memory_mib", file.memory_mib, 1, MEMORY_LIMIT_MIB),
            ("idle_s", file.idle_s as usize, 1, IDLE_LIMIT_S as usize),
        ] {
            if !(least..=most).contains(&value) {
                return Err(Error::whole(format!("{what} is {least} to {most}, not {value}")));
            }
        }
        let mut rules = parse::rules(&file.rules, &file.variables)?;
        rules.sort_by_key(|rule| match rule.action {
            Action::Pass => 0,
            Action::Drop => 1,
            Action::Alert => 2,
        });
        let signatures = rules.iter().map(|rule| {
            Arc::new(Signature {
                sid: rule.sid,
                revision: rule.revision,
                message: rule.message.clone(),
                class: rule.class.clone(),
                priority: rule.priority,
            })
        });
        let signatures = signatures.collect();
        let prefilter = |is_one: fn(&Rule) -> bool| {
            let all = (0..).zip(&rules).filter(|(_, rule)| is_one(rule));
            Prefilter::new(all)
                .map_err(|error| Error::whole(format!("rules: their contents are too many: {error}")))
        };
        Ok(Configuration {
            flows: file.flows,
            limits: stream::Limits {
                window: file.window,
                waiting: file.waiting,
            },
            memory: file.memory_mib << 20,
            idle: Nanos::from_secs(file.idle_s),
            midstream: file.midstream,
            verify_checksums: file.verify_checksums,
            datagrams: prefilter(|rule| rule.protocol != Protocol::Tcp)?,
            segments: prefilter(|rule| is_tcp(rule) && rule.is_per_packet())?,
            streams: prefilter(|rule| is_tcp(rule) && !rule.is_per_packet())?,
            signatures,
            rules,
        })
    }
}

/// Whether a rule may be for TCP.
fn is_tcp(rule: &Rule) -> bool {
    matches!(rule.protocol, Protocol::Tcp | Protocol::Ip)
}
