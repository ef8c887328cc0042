//! The function `maglev`: balances connections over back ends. See docs/functions/maglev.md.

mod connections;

use std::net::IpAddr;

use ::maglev::{ENTRIES, Member, NOBODY, Table};
use model::{FlowKey, Nanos, mix};
use packet::{Parsed, parse};
use serde::Deserialize;

use crate::about::{About, Metric, Reason};
use crate::addresses::addresses;
use crate::burst::{Burst, RECEIVED_LIMIT};
use crate::configuration::{Error, from_toml, mac, within};
use crate::function::{Function, Setup, Summary};
use crate::keyed::Keyed;

use connections::Connections;

const BACK_ENDS_LIMIT: usize = 256;
const ADDRESSES_LIMIT: usize = 64;
/// Connections, at most: 1 GiB.
const CONNECTIONS_LIMIT: usize = 1 << 25;
/// A day.
const IDLE_LIMIT_S: usize = 86_400;
/// Ids of back ends. One is used again after 4096 others, when connections with it have ended.
const IDS: usize = 4096;
/// The unit of connections' times: 2^26 ns, 67 ms.
const UNIT_LOG2: u32 = 26;

const MALFORMED: Reason = Reason(0);
const NO_BACK_END: Reason = Reason(1);

const REASONS: &[Metric] = &[
    Metric::counter(
        "malformed",
        "Truncated or inconsistent headers, or a wrong IPv4 header checksum",
    ),
    Metric::counter("no_back_end", "All back ends have weight 0"),
];

const METRICS: &[Metric] = &[
    Metric::counter("other", "Packets to other addresses, which passed on"),
    Metric::counter(
        "connections_begun",
        "Connections that got a back end by the table",
    ),
    Metric::counter(
        "connections_moved",
        "Connections whose back end has left, and that got another one",
    ),
    Metric::counter(
        "connections_evicted",
        "Connections that lost their place to others; the table decides on their packets",
    ),
];

/// Balances connections.
///
/// ```toml
/// addresses = ["192.0.2.10"]      # of the service
/// mac = "02:00:00:00:00:09"       # source of frames to back ends; without it, the received one stays
/// connections = 65536             # with a place at once; 32 bytes each
/// idle_s = 300                    # a connection without packets for so long ends
/// table = 65537                   # entries of the table, a prime
///
/// [[back_end]]                    # at most 256
/// name = "a"                      # what its entries of the table depend on
/// mac = "02:00:00:00:00:0a"
/// weight = 1                      # 0: it keeps its connections, and gets no new ones
/// ```
#[derive(Debug)]
pub struct Maglev {
    state: State,
    /// Of connections: a sender must not choose which of them meet.
    keyed: Keyed,
    /// The back end of each id; [`NOBODY`] if it has none.
    by_id: Box<[u16; IDS]>,
    next_id: usize,
    other: u64,
    begun: u64,
    moved: u64,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    table: Table,
    connections: Connections,
    /// The id of each back end, which it keeps in another configuration.
    ids: Vec<u16>,
}

/// The configuration of [`Maglev`], with its table, and without connections.
#[derive(Debug)]
pub struct Configuration(Box<State>);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    addresses: Vec<IpAddr>,
    #[serde(default, deserialize_with = "some_mac")]
    mac: Option<[u8; 6]>,
    #[serde(default = "connections")]
    connections: usize,
    #[serde(default = "idle")]
    idle_s: usize,
    #[serde(default = "table")]
    table: u32,
    back_end: Vec<BackEnd>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackEnd {
    name: String,
    #[serde(deserialize_with = "mac")]
    mac: [u8; 6],
    #[serde(default = "weight")]
    weight: u16,
}

const fn connections() -> usize {
    65_536
}

const fn idle() -> usize {
    300
}

const fn table() -> u32 {
    ENTRIES
}

const fn weight() -> u16 {
    1
}

fn some_mac<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<[u8; 6]>, D::Error> {
    mac(from).map(Some)
}

/// A number that depends on a name alone: FNV-1a.
fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Settings {
    fn parse(text: &str) -> Result<Settings, Error> {
        let settings: Settings = from_toml(text)?;
        within(
            "addresses",
            settings.addresses.len(),
            1,
            ADDRESSES_LIMIT,
            "addresses",
        )?;
        within(
            "connections",
            settings.connections,
            1,
            CONNECTIONS_LIMIT,
            "connections",
        )?;
        within("idle_s", settings.idle_s, 1, IDLE_LIMIT_S, "seconds")?;
        within(
            "back_end",
            settings.back_end.len(),
            1,
            BACK_ENDS_LIMIT,
            "back ends",
        )?;
        if !::maglev::is_size(settings.table) {
            let write = ::maglev::size_from(settings.table);
            return Err(Error::whole(format!(
                "table: {} is no prime from 3 to {}; write {write}",
                settings.table,
                ::maglev::ENTRIES_LIMIT
            )));
        }
        for (at, of) in settings.back_end.iter().enumerate() {
            if settings.back_end[..at]
                .iter()
                .any(|before| before.name == of.name)
            {
                return Err(Error::whole(format!("back_end: {:?} is there twice", of.name)));
            }
        }
        Ok(settings)
    }

    /// What the times of connections are compared with.
    fn idle(&self) -> u32 {
        (Nanos::from_secs(self.idle_s as u64).0 >> UNIT_LOG2) as u32
    }
}

/// The flow of a packet as words. Fragments have no ports, so that those of a datagram stay together.
#[inline(always)]
fn words(key: &FlowKey, is_fragment: bool) -> [u64; 5] {
    let ports = |a: u16, b: u16, vlan: u16, protocol: u8| {
        let ports = if is_fragment {
            0
        } else {
            u64::from(a) << 48 | u64::from(b) << 32
        };
        ports | u64::from(vlan) << 8 | u64::from(protocol)
    };
    match key {
        FlowKey::V4(key) => {
            let ends = u64::from(u32::from_be_bytes(key.a)) << 32 | u64::from(u32::from_be_bytes(key.b));
            [
                ports(key.a_port, key.b_port, key.vlan, key.protocol),
                ends,
                0,
                0,
                0,
            ]
        }
        FlowKey::V6(key) => {
            let (a, b) = (u128::from_be_bytes(key.a), u128::from_be_bytes(key.b));
            let ports = ports(key.a_port, key.b_port, key.vlan, key.protocol);
            [ports, (a >> 64) as u64, a as u64, (b >> 64) as u64, b as u64]
        }
    }
}

/// The hash for the table, without a secret: two balancers with one configuration agree.
const TABLE_HASH: Keyed = Keyed::new(0);

/// A packet to the service.
#[derive(Clone, Copy, Debug)]
struct Seen {
    words: [u64; 5],
    tag: u64,
    /// It belongs to a connection, but must not begin one.
    is_error: bool,
}

impl Maglev {
    /// Gives the back ends of the configuration their ids: the same as before to those that stay.
    fn enrol(&mut self, before: Option<&State>) {
        let State { settings, ids, .. } = &mut self.state;
        let is_kept = |name: &str| {
            let old = before?;
            let at = old.settings.back_end.iter().position(|of| of.name == name)?;
            old.ids.get(at).copied()
        };
        ids.clear();
        ids.extend(
            settings
                .back_end
                .iter()
                .map(|of| is_kept(&of.name).unwrap_or(NOBODY)),
        );
        self.by_id.fill(NOBODY);
        for (at, id) in ids.iter().enumerate() {
            if let Some(place) = self.by_id.get_mut(usize::from(*id)) {
                *place = at as u16;
            }
        }
        for (at, id) in ids.iter_mut().enumerate().filter(|(_, id)| **id == NOBODY) {
            while self.by_id[self.next_id] != NOBODY {
                self.next_id = (self.next_id + 1) % IDS;
            }
            *id = self.next_id as u16;
            self.by_id[self.next_id] = at as u16;
            self.next_id = (self.next_id + 1) % IDS;
        }
    }

    /// The back end of a packet.
    #[inline]
    fn back_end(&mut self, seen: &Seen, now: u32) -> Option<usize> {
        let state = &mut self.state;
        let id = state.connections.get(seen.tag, now);
        let kept = id.and_then(|id| self.by_id.get(usize::from(id))).copied();
        if let Some(at) = kept.filter(|at| *at != NOBODY) {
            return Some(at.into());
        }
        let place = state.table.place(TABLE_HASH.hash(seen.words));
        let at = *state.table.entries().get(place)?;
        let new = *state.ids.get(usize::from(at))?;
        if !seen.is_error {
            state.connections.set(seen.tag, new, now);
            if id.is_some() {
                self.moved += 1;
            } else {
                self.begun += 1;
            }
        }
        Some(at.into())
    }
}

impl Function for Maglev {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "maglev",
            help: "Balances connections over back ends by Maglev's table, and sends each to its own",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, _setup: &Setup) -> Result<Configuration, Error> {
        let settings = Settings::parse(text)?;
        let mut table = Table::new(settings.table, settings.back_end.len());
        let weights = || settings.back_end.iter().map(|of| of.weight);
        // With no weight at all, nobody gets new connections.
        if weights().any(|weight| weight > 0) {
            table.begin(settings.back_end.iter().zip(0..).map(|(of, id)| Member {
                id,
                name: name_hash(&of.name),
                weight: of.weight.into(),
            }));
            table.fill(settings.table);
        }
        Ok(Configuration(Box::new(State {
            connections: Connections::new(settings.connections, settings.idle()),
            ids: Vec::with_capacity(settings.back_end.len()),
            table,
            settings,
        })))
    }

    fn new(configuration: Configuration, setup: &Setup) -> Maglev {
        let mut maglev = Maglev {
            state: *configuration.0,
            keyed: Keyed::new(mix(setup.seed)),
            by_id: Box::new([NOBODY; IDS]),
            next_id: 0,
            other: 0,
            begun: 0,
            moved: 0,
        };
        maglev.enrol(None);
        maglev
    }

    /// Connections stay with their back ends, by name, if `connections` stays.
    fn reload(&mut self, mut configuration: Configuration) -> Configuration {
        let (new, old) = (&mut *configuration.0, &mut self.state);
        if new.settings.connections == old.settings.connections {
            std::mem::swap(&mut new.connections, &mut old.connections);
            new.connections.set_idle(new.settings.idle());
        }
        std::mem::swap(new, old);
        self.enrol(Some(&*configuration.0));
        configuration
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        let now = (now.0 >> UNIT_LOG2) as u32;
        let mut seen = [None; RECEIVED_LIMIT];
        for (mut packet, seen) in burst.packets().zip(&mut seen) {
            let frame = packet.frame();
            let (info, is_fragment) = match parse(frame) {
                Parsed::Flow(info) => (info, false),
                Parsed::Fragment(fragment) => (fragment.info, true),
                Parsed::Other { .. } => {
                    self.other += 1;
                    continue;
                }
                Parsed::Invalid(_) => {
                    packet.drop(MALFORMED);
                    continue;
                }
            };
            let destination = addresses(&info, frame).map(|of| of.1);
            if !destination.is_some_and(|of| self.state.settings.addresses.contains(&of)) {
                self.other += 1;
                continue;
            }
            let words = words(&info.key, is_fragment);
            let tag = Connections::tag(&self.keyed, words);
            self.state.connections.prefetch(tag);
            *seen = Some(Seen {
                words,
                tag,
                is_error: info.is_icmp_error,
            });
        }
        for (mut packet, seen) in burst.packets().zip(&seen) {
            let Some(seen) = seen else { continue };
            let Some(at) = self.back_end(seen, now) else {
                packet.drop(NO_BACK_END);
                continue;
            };
            let settings = &self.state.settings;
            if let (Some(to), Some(macs)) = (settings.back_end.get(at), packet.frame_mut().get_mut(..12)) {
                macs[..6].copy_from_slice(&to.mac);
                if let Some(from) = settings.mac {
                    macs[6..].copy_from_slice(&from);
                }
            }
        }
    }

    fn metrics(&self, values: &mut [u64]) {
        let evicted = self.state.connections.evicted;
        let all = [self.other, self.begun, self.moved, evicted];
        for (value, of) in values.iter_mut().zip(all) {
            *value = of;
        }
    }

    /// `entries` are back ends, `flows` connections, idle ones among them.
    fn summary(&self) -> Summary {
        Summary {
            entries: self.state.settings.back_end.len() as u64,
            flows: self.state.connections.taken() as u64,
            flows_limit: self.state.connections.limit() as u64,
        }
    }
}

#[cfg(test)]
mod tests;
