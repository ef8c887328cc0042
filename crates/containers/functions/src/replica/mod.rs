//! The function `replica`: a replica of a chain. See docs/functions/replica.md.

mod message;
mod store;

use std::net::SocketAddr;

use model::{Nanos, mix};
use packet::build::Frame;
use serde::Deserialize;

use crate::about::{About, Metric, Reason};
use crate::burst::{Burst, Packet};
use crate::configuration::{Error, from_toml, mac, within};
use crate::function::{Function, Setup, Summary};
use crate::requests::{self, BAD_REQUEST, Found, Request};

use message::{
    ACKNOWLEDGE, ANSWER, BUSY, DONE, HEADER, Message, NO_ROOM, NOT_FOUND, READ, REMOVE, UPDATE, WRITE,
    WRONG_REPLICA,
};
use store::{Pending, Store};

const KEYS_LIMIT: usize = 1 << 24;
/// With the headers of IPv6 and UDP and that of a message, within a packet of 1500 bytes.
const VALUE_BYTES_LIMIT: usize = 1400;
const PENDING_LIMIT: usize = 1 << 20;
/// Bytes of all values, and of all pending updates, at most.
const MEMORY_LIMIT: usize = 1 << 32;
const RESEND_MS_LIMIT: usize = 60_000;
/// Updates sent again, or answers sent late, in one tick.
const PER_TICK: usize = 16;

const FOREIGN: Reason = Reason(3);
const OUT_OF_ORDER: Reason = Reason(4);
const NO_ROOM_FOR_UPDATE: Reason = Reason(5);

const REASONS: &[Metric] = &[
    requests::REASONS[0],
    requests::REASONS[1],
    requests::REASONS[2],
    Metric::counter(
        "foreign",
        "Messages of replicas that do not come from a neighbour",
    ),
    Metric::counter(
        "out_of_order",
        "Updates after one that is missing: the predecessor sends them again",
    ),
    Metric::counter(
        "no_room",
        "Updates for which there is no room among the pending ones or the keys: the predecessor sends them again",
    ),
];

const METRICS: &[Metric] = &[
    Metric::counter("other", "Packets to other endpoints, which passed on"),
    Metric::counter("reads", "Reads that were answered, also with an error"),
    Metric::counter("updates", "Writes and removals that were applied"),
    Metric::counter("duplicates", "Updates that had been applied before"),
    Metric::counter(
        "refused",
        "Requests that were answered with busy or wrong replica",
    ),
    Metric::counter("sent_again", "Updates that were sent again"),
    Metric::gauge("pending", "Updates that the tail has not acknowledged"),
];

/// Keeps keys with their values, in the same order as the other replicas of its chain.
///
/// ```toml
/// address = "192.0.2.1:9105"       # of this replica
/// mac = "02:00:00:00:00:01"
/// keys_limit = 65536
/// value_bytes = 64                 # of a value, at most
/// pending_limit = 1024             # updates that the tail has not acknowledged
/// resend_ms = 10                   # after so long without an acknowledgement they are sent again
///
/// [predecessor]                    # the head has none
/// address = "192.0.2.2:9105"
/// mac = "02:00:00:00:00:02"
///
/// [successor]                      # the tail has none
/// address = "192.0.2.3:9105"
/// mac = "02:00:00:00:00:03"
/// ```
#[derive(Debug)]
pub struct Replica {
    state: State,
    /// The version of the last update that is applied, and of the last one that the tail has acknowledged.
    applied: u64,
    acknowledged: u64,
    due: Option<Nanos>,
    /// Whether the predecessor is to learn of `acknowledged`.
    tells: bool,
    other: u64,
    reads: u64,
    updates: u64,
    duplicates: u64,
    refused: u64,
    sent_again: u64,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    store: Store,
    pending: Pending,
}

/// The configuration of [`Replica`], without keys.
#[derive(Debug)]
pub struct Configuration(Box<State>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    address: SocketAddr,
    #[serde(deserialize_with = "mac")]
    mac: [u8; 6],
    #[serde(default = "keys_limit")]
    keys_limit: usize,
    #[serde(default = "value_bytes")]
    value_bytes: usize,
    #[serde(default = "pending_limit")]
    pending_limit: usize,
    #[serde(default = "resend_ms")]
    resend_ms: usize,
    predecessor: Option<Neighbour>,
    successor: Option<Neighbour>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Neighbour {
    address: SocketAddr,
    #[serde(deserialize_with = "mac")]
    mac: [u8; 6],
}

const fn keys_limit() -> usize {
    65_536
}

const fn value_bytes() -> usize {
    64
}

const fn pending_limit() -> usize {
    1024
}

/// Some round trips within a data centre, with a pause of a peer.
const fn resend_ms() -> usize {
    10
}

impl Settings {
    fn parse(text: &str) -> Result<Settings, Error> {
        let settings: Settings = from_toml(text)?;
        within("keys_limit", settings.keys_limit, 1, KEYS_LIMIT, "keys")?;
        within("value_bytes", settings.value_bytes, 1, VALUE_BYTES_LIMIT, "bytes")?;
        within(
            "pending_limit",
            settings.pending_limit,
            1,
            PENDING_LIMIT,
            "updates",
        )?;
        within(
            "resend_ms",
            settings.resend_ms,
            1,
            RESEND_MS_LIMIT,
            "milliseconds",
        )?;
        let bytes = settings.keys_limit.max(settings.pending_limit) * (HEADER + settings.value_bytes);
        within(
            "keys_limit or pending_limit, times value_bytes",
            bytes,
            1,
            MEMORY_LIMIT,
            "bytes",
        )?;
        for of in settings.predecessor.iter().chain(&settings.successor) {
            if of.address.is_ipv4() != settings.address.is_ipv4() || of.address == settings.address {
                return Err(Error::whole(format!(
                    "{} cannot be a neighbour of {}; write another endpoint of the same IP version",
                    of.address, settings.address
                )));
            }
        }
        Ok(settings)
    }
}

/// Makes a packet one between these ends, and sends it by the port that it came from.
fn redirect(packet: &mut Packet<'_>, request: &Request, settings: &Settings, to: Neighbour) {
    let frame = packet.frame_mut();
    request.send(frame, settings.address, to.address);
    if let Some(macs) = frame.get_mut(..12) {
        macs[..6].copy_from_slice(&to.mac);
        macs[6..].copy_from_slice(&settings.mac);
    }
    packet.answer();
}

/// A new packet to a neighbour or a client. False if the burst has no room.
fn send(burst: &mut Burst, settings: &Settings, to: Neighbour, payload: &[u8]) -> bool {
    let Ok(mut frame) = Frame::udp(settings.address, to.address, payload) else {
        return false;
    };
    (frame.dst_mac, frame.src_mac) = (to.mac, settings.mac);
    let Some(mut packet) = burst.originate(frame.len()) else {
        return false;
    };
    packet.answer();
    frame.write(packet.frame_mut()).is_ok()
}

/// The answer to an update's client.
fn answer_of(update: &Message) -> Message {
    Message {
        kind: update.detail | ANSWER,
        detail: DONE,
        len: 0,
        ..*update
    }
}

impl Replica {
    fn apply(&mut self, of: &Message, value: &[u8]) {
        self.applied = of.version;
        self.updates += 1;
        if of.detail == REMOVE {
            self.state.store.remove(of.key);
        } else {
            self.state.store.set(of.key, of.version, value);
        }
    }

    /// Whether no more updates may wait for the tail.
    fn is_full(&self) -> bool {
        self.applied - self.acknowledged >= self.state.pending.limit() as u64
    }

    fn serve(&mut self, packet: &mut Packet<'_>, mut request: Request, now: Nanos) -> Result<(), Reason> {
        let payload = request.payload(packet.frame());
        let (message, rest) = Message::read(payload).ok_or(BAD_REQUEST)?;
        let settings = self.state.settings;
        let is_from = |of: Option<Neighbour>| of.is_some_and(|of| of.address == request.source);
        let value = rest.get(..usize::from(message.len)).ok_or(BAD_REQUEST)?;
        if value.len() > settings.value_bytes {
            return Err(BAD_REQUEST);
        }
        match message.kind {
            READ => {
                let is_tail = settings.successor.is_none();
                self.reads += u64::from(is_tail);
                self.refused += u64::from(!is_tail);
                let found = self.state.store.get(message.key).filter(|_| is_tail);
                let room = rest.len();
                let (detail, version, value) = match found {
                    _ if !is_tail => (WRONG_REPLICA, 0, &[][..]),
                    None => (NOT_FOUND, 0, &[][..]),
                    // An answer is no longer than its request, so that a forged source address gains nothing.
                    Some((version, value)) if value.len() > room => (NO_ROOM, version, &[][..]),
                    Some((version, value)) => (DONE, version, value),
                };
                let answer = Message {
                    kind: READ | ANSWER,
                    detail,
                    len: value.len() as u16,
                    version,
                    ..message
                };
                let mut bytes = [0; HEADER + VALUE_BYTES_LIMIT];
                bytes[..HEADER].copy_from_slice(&answer.bytes());
                let all = bytes.get_mut(..HEADER + value.len()).ok_or(BAD_REQUEST)?;
                all[HEADER..].copy_from_slice(value);
                request.answer(packet, all)
            }
            WRITE | REMOVE => {
                let is_head = settings.predecessor.is_none();
                let has_room = message.kind == REMOVE || self.state.store.has_room(message.key);
                let detail = match () {
                    () if !is_head => WRONG_REPLICA,
                    () if !has_room || settings.successor.is_some() && self.is_full() => BUSY,
                    () => DONE,
                };
                let mut update = Message {
                    kind: UPDATE,
                    detail: message.kind,
                    version: self.applied + 1,
                    client: request.source,
                    ..message
                };
                if let Some(mac) = packet.frame().get(6..).and_then(<[u8]>::first_chunk) {
                    update.mac = *mac;
                }
                if detail != DONE {
                    self.refused += 1;
                    let refusal = Message {
                        detail,
                        version: 0,
                        ..answer_of(&update)
                    };
                    return request.answer(packet, &refusal.bytes());
                }
                self.take(&update, value, now);
                self.pass_on(packet, &mut request, &update)
            }
            UPDATE if is_from(settings.predecessor) => {
                if !matches!(message.detail, WRITE | REMOVE) {
                    return Err(BAD_REQUEST);
                }
                if message.version <= self.applied {
                    self.duplicates += 1;
                    self.tells = true;
                    packet.consume();
                    return Ok(());
                }
                if message.version != self.applied + 1 {
                    self.tells = true;
                    return Err(OUT_OF_ORDER);
                }
                let has_room = message.detail == REMOVE || self.state.store.has_room(message.key);
                if !has_room || settings.successor.is_some() && self.is_full() {
                    return Err(NO_ROOM_FOR_UPDATE);
                }
                self.take(&message, value, now);
                self.pass_on(packet, &mut request, &message)
            }
            ACKNOWLEDGE if is_from(settings.successor) => {
                if message.version > self.acknowledged && message.version <= self.applied {
                    self.acknowledged = message.version;
                    self.tells = true;
                    self.due = (self.acknowledged < self.applied).then(|| self.later(now));
                }
                packet.consume();
                Ok(())
            }
            UPDATE | ACKNOWLEDGE => Err(FOREIGN),
            _ => Err(BAD_REQUEST),
        }
    }

    fn later(&self, now: Nanos) -> Nanos {
        now + Nanos::from_millis(self.state.settings.resend_ms as u64)
    }

    /// Applies an update, and keeps it until the tail has it.
    fn take(&mut self, update: &Message, value: &[u8], now: Nanos) {
        self.apply(update, value);
        if self.state.settings.successor.is_some() {
            self.state.pending.put(update, value);
            if self.due.is_none() {
                self.due = Some(self.later(now));
            }
        } else {
            self.acknowledged = self.applied;
            self.tells = true;
        }
    }

    /// Makes the packet of an update that was taken the one to the successor, or the tail's answer to the client.
    fn pass_on(
        &self,
        packet: &mut Packet<'_>,
        request: &mut Request,
        update: &Message,
    ) -> Result<(), Reason> {
        let settings = &self.state.settings;
        let (message, to, len) = match settings.successor {
            Some(successor) => (*update, successor, usize::from(update.len)),
            None => {
                let client = Neighbour {
                    address: update.client,
                    mac: update.mac,
                };
                (answer_of(update), client, 0)
            }
        };
        if !request.resize(packet, HEADER + len) || to.address.is_ipv4() != settings.address.is_ipv4() {
            return Err(BAD_REQUEST);
        }
        let payload = request.payload_mut(packet.frame_mut());
        if let Some(header) = payload.first_chunk_mut() {
            *header = message.bytes();
        }
        redirect(packet, request, settings, to);
        Ok(())
    }

    /// Tells the predecessor what the tail has.
    fn tell(&mut self, burst: &mut Burst) {
        let settings = self.state.settings;
        if let Some(predecessor) = settings.predecessor.filter(|_| std::mem::take(&mut self.tells)) {
            let message = Message {
                kind: ACKNOWLEDGE,
                detail: 0,
                len: 0,
                request: 0,
                key: 0,
                version: self.acknowledged,
                client: settings.address,
                mac: settings.mac,
            };
            // One that finds no room, or is lost, is told again after the predecessor has sent its updates again.
            send(burst, &settings, predecessor, &message.bytes());
        }
    }
}

impl Function for Replica {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "replica",
            help: "Keeps keys with values as one of a chain of replicas: the head takes writes, the tail answers",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, setup: &Setup) -> Result<Configuration, Error> {
        let settings = Settings::parse(text)?;
        Ok(Configuration(Box::new(State {
            store: Store::new(settings.keys_limit, settings.value_bytes, mix(setup.seed)),
            pending: Pending::new(settings.pending_limit, settings.value_bytes),
            settings,
        })))
    }

    fn new(configuration: Configuration, _setup: &Setup) -> Replica {
        Replica {
            state: *configuration.0,
            applied: 0,
            acknowledged: 0,
            due: None,
            tells: false,
            other: 0,
            reads: 0,
            updates: 0,
            duplicates: 0,
            refused: 0,
            sent_again: 0,
        }
    }

    /// Keys and pending updates stay if the limits do; otherwise the replica begins anew. A new successor gets what is
    /// pending; a replica that has become the tail answers to it.
    fn reload(&mut self, mut configuration: Configuration) -> Configuration {
        let (new, old) = (&mut *configuration.0, &mut self.state);
        let sizes = |of: &Settings| (of.keys_limit, of.value_bytes, of.pending_limit);
        if sizes(&new.settings) == sizes(&old.settings) {
            std::mem::swap(&mut new.settings, &mut old.settings);
        } else {
            std::mem::swap(new, old);
            (self.applied, self.acknowledged) = (0, 0);
        }
        // At once.
        self.due = (self.acknowledged < self.applied).then_some(Nanos::ZERO);
        configuration
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        let address = self.state.settings.address;
        for mut packet in burst.packets() {
            match requests::find(packet.frame(), address.port()) {
                Found::Request(request) if request.destination == address => {
                    if let Err(reason) = self.serve(&mut packet, request, now) {
                        packet.drop(reason);
                    }
                }
                Found::Request(_) | Found::Other => self.other += 1,
                Found::Bad(reason) => packet.drop(reason),
            }
        }
        self.tell(burst);
    }

    fn due(&self) -> Option<Nanos> {
        self.due
    }

    /// Sends pending updates again; a tail that was none before answers to them.
    fn tick(&mut self, burst: &mut Burst, now: Nanos) {
        let settings = self.state.settings;
        let mut version = self.acknowledged;
        for _ in 0..PER_TICK {
            if version >= self.applied {
                break;
            }
            version += 1;
            let Some((update, bytes)) = self.state.pending.get(version) else {
                break;
            };
            if let Some(successor) = settings.successor {
                self.sent_again += u64::from(send(burst, &settings, successor, bytes));
            } else {
                let client = Neighbour {
                    address: update.client,
                    mac: update.mac,
                };
                send(burst, &settings, client, &answer_of(&update).bytes());
                self.acknowledged = version;
                self.tells = true;
            }
        }
        self.tell(burst);
        self.due = (self.acknowledged < self.applied).then(|| self.later(now));
    }

    fn metrics(&self, values: &mut [u64]) {
        let all = [
            self.other,
            self.reads,
            self.updates,
            self.duplicates,
            self.refused,
            self.sent_again,
            self.applied - self.acknowledged,
        ];
        for (value, of) in values.iter_mut().zip(all) {
            *value = of;
        }
    }

    /// `flows` are keys.
    fn summary(&self) -> Summary {
        Summary {
            entries: 0,
            flows: self.state.store.len() as u64,
            flows_limit: self.state.store.limit() as u64,
        }
    }
}

#[cfg(test)]
mod tests;
