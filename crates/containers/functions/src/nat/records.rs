//! The log of a translator: who had which external ports when.

use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use model::Nanos;
use serde::Deserialize;

use super::mapping::Class;
use super::pool::Assigned;

/// What is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Log {
    /// Nothing.
    Off,
    /// Blocks given to hosts and taken back: a record for many mappings (RFC 6888, section 4).
    #[default]
    Blocks,
    /// Each mapping as well.
    Mappings,
}

/// A record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When: on the monotonic clock, as the translator makes it; since 1970, as it is written.
    pub at: Nanos,
    /// What.
    pub event: Event,
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A host got a block, or gave it back.
    Block {
        /// Whether it got it.
        assigned: bool,
        /// The host.
        host: Ipv4Addr,
        /// The external address.
        external: Ipv4Addr,
        /// The first and the last port.
        ports: (u16, u16),
    },
    /// A mapping began, or ended.
    Mapping {
        /// Whether it began.
        began: bool,
        /// Its protocol.
        class: Class,
        /// The internal endpoint.
        internal: SocketAddrV4,
        /// The external endpoint.
        external: SocketAddrV4,
    },
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_secs_f64();
        match self.event {
            Event::Block {
                assigned,
                host,
                external,
                ports: (first, last),
            } => {
                let word = if assigned { "block" } else { "block_end" };
                write!(f, "{at:.3} {word} {host} {external}:{first}-{last}")
            }
            Event::Mapping {
                began,
                class,
                internal,
                external,
            } => {
                let word = if began { "mapping" } else { "mapping_end" };
                let class = match class {
                    Class::Tcp => "tcp",
                    Class::Udp => "udp",
                    Class::Icmp => "icmp",
                };
                write!(f, "{at:.3} {word} {class} {internal} {external}")
            }
        }
    }
}

/// Records that wait to be taken, at most `limit`; later ones are lost, and counted.
#[derive(Debug)]
pub(super) struct Records {
    log: Log,
    waiting: VecDeque<Record>,
    limit: usize,
    lost: u64,
    now: Nanos,
}

impl Records {
    pub(super) fn new(log: Log, limit: usize) -> Records {
        Records {
            log,
            waiting: VecDeque::with_capacity(if log == Log::Off { 0 } else { limit }),
            limit,
            lost: 0,
            now: Nanos::ZERO,
        }
    }

    /// The time of the records that follow.
    pub(super) fn set_time(&mut self, now: Nanos) {
        self.now = now;
    }

    pub(super) fn time(&self) -> Nanos {
        self.now
    }

    pub(super) fn block(&mut self, assigned: bool, of: Assigned) {
        if self.log != Log::Off {
            self.add(Event::Block {
                assigned,
                host: of.host,
                external: of.range.address,
                ports: (of.range.first, of.range.last),
            });
        }
    }

    pub(super) fn mapping(
        &mut self,
        began: bool,
        class: Class,
        internal: SocketAddrV4,
        external: SocketAddrV4,
    ) {
        if self.log == Log::Mappings {
            self.add(Event::Mapping {
                began,
                class,
                internal,
                external,
            });
        }
    }

    fn add(&mut self, event: Event) {
        if self.waiting.len() < self.limit {
            self.waiting.push_back(Record { at: self.now, event });
        } else {
            self.lost += 1;
        }
    }

    pub(super) fn take(&mut self) -> Option<Record> {
        self.waiting.pop_front()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Those of another log, oldest first, as far as there is room.
    pub(super) fn append(&mut self, other: &mut Records) {
        self.lost += std::mem::take(&mut other.lost);
        while let Some(record) = other.take() {
            if self.waiting.len() < self.limit {
                self.waiting.push_back(record);
            } else {
                self.lost += 1;
            }
        }
    }
}
