//! The function `cache`: values by key, in memcached's text protocol over UDP. See docs/functions/cache.md.

mod configuration;
mod store;
mod text;
mod workload;

use model::{Nanos, mix};

use crate::about::{About, Metric, Reason};
use crate::burst::Burst;
use crate::configuration::Error;
use crate::function::{Function, Setup, Summary};
use crate::serve::{Asked, MALFORMED_METRIC, NO_ROOM_METRIC, NOT_ASKED_METRIC, OPTIONS_METRIC, Seen};

use configuration::{Settings, VALUE_BYTES_LIMIT};
use store::{NEVER, Store};
use text::{Request, Wrong, read, unsigned, words};

pub use workload::Workload;

/// Bytes of the header of each datagram: request, number, how many there are, and two that are 0.
const HEADER: usize = 8;
/// Bytes of an answer in one datagram, with its header, at most: as memcached has it.
const DATAGRAM: usize = 1400;
const PAYLOAD: usize = DATAGRAM - HEADER;
/// Datagrams of an answer, at most: half of what a full burst leaves free.
const DATAGRAMS_LIMIT: usize = 16;
/// Seconds of an end that is relative, at most: 30 days. Greater ones are Unix time.
const RELATIVE_LIMIT_S: i32 = 30 * 24 * 3600;
/// Digits of the greatest number.
const DIGITS: usize = 20;

const SHORT: Reason = Reason(4);
const OF_SERVER: Reason = Reason(5);

const REASONS: &[Metric] = &[
    MALFORMED_METRIC,
    NOT_ASKED_METRIC,
    OPTIONS_METRIC,
    NO_ROOM_METRIC,
    Metric::counter("short", "Datagrams without a whole header"),
    Metric::counter(
        "of_server",
        "Datagrams from the port of a cache: two could answer each other for ever",
    ),
];

const METRICS: &[Metric] = &[
    Metric::counter("get_hits", "Keys that were asked for and found"),
    Metric::counter("get_misses", "Keys that were asked for and not found"),
    Metric::counter("stored", "Values that were stored"),
    Metric::counter("deleted", "Values that were deleted"),
    Metric::counter("evictions", "Values that had to go for others before their end"),
    Metric::counter(
        "expired",
        "Values whose end had passed, or that were flushed, when they were met",
    ),
    Metric::counter("wrong", "Requests that were wrong or of an unknown kind"),
    Metric::counter("too_large", "Values and answers that were too large"),
    Metric::counter(
        "link_answers",
        "Answers to ARP requests, neighbour solicitations and pings",
    ),
    Metric::gauge("used_bytes", "Bytes of memory that values take"),
];

const END: &[u8] = b"END\r\n";
const DELETED: &[u8] = b"DELETED\r\n";
const TOUCHED: &[u8] = b"TOUCHED\r\n";
const STORED: &[u8] = b"STORED\r\n";
const NOT_STORED: &[u8] = b"NOT_STORED\r\n";
const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
const EXISTS: &[u8] = b"EXISTS\r\n";
const OK: &[u8] = b"OK\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const TOO_LONG: &[u8] = b"SERVER_ERROR out of memory writing get response\r\n";
const IN_PIECES: &[u8] = b"SERVER_ERROR multi-packet request not supported\r\n";
const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
const NO_CLOCK: &[u8] = b"CLIENT_ERROR times above 30 days need boot_unix_s\r\n";

/// Keeps values by key.
///
/// ```toml
/// port = 11211              # UDP
/// addresses = ["192.0.2.7"] # without them, it answers on each address
/// mac = "02:00:00:00:00:07" # with it, it answers ARP, neighbour solicitations and pings, too
/// others = "drop"           # other packets: "drop", or "pass" to the next function
/// memory_mib = 64           # of values, keys and what describes them
/// value_bytes_limit = 16384 # bytes of a value, at most
/// boot_unix_s = 0           # Unix time at the start of the monotonic clock: for ends that are Unix time
/// ```
#[derive(Debug)]
pub struct Cache {
    state: Box<State>,
    out: Box<Out>,
    /// A value that is being made.
    made: Box<[u8; VALUE_BYTES_LIMIT]>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    hits: u64,
    misses: u64,
    deleted: u64,
    wrong: u64,
    too_large: u64,
    link_answers: u64,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    store: Store,
}

/// The configuration of [`Cache`], with an empty memory.
#[derive(Debug)]
pub struct Configuration(Box<State>);

/// The text of an answer, behind the place of its first header.
#[derive(Debug)]
struct Out {
    bytes: [u8; HEADER + DATAGRAMS_LIMIT * PAYLOAD],
    len: usize,
    /// Whether something found no room.
    is_over: bool,
}

impl Out {
    fn clear(&mut self) {
        (self.len, self.is_over) = (HEADER, false);
    }

    /// Room behind what is there.
    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.len + len;
        let room = self.bytes.get_mut(self.len..end);
        match room.is_some() {
            true => self.len = end,
            false => self.is_over = true,
        }
        room
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.room(bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }

    fn number(&mut self, number: u64) {
        let (digits, start) = digits(number);
        self.put(&digits[start..]);
    }

    /// What is there becomes this.
    fn say(&mut self, text: &[u8]) {
        self.clear();
        self.put(text);
    }
}

/// The decimal digits of a number, and where they begin.
fn digits(mut number: u64) -> ([u8; DIGITS], usize) {
    let mut digits = [b'0'; DIGITS];
    let mut at = DIGITS;
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 || at == 0 {
            return (digits, at);
        }
    }
}

/// What a request says, as a line; [`None`]: nothing is to be answered.
type Line = Option<&'static [u8]>;

impl Cache {
    /// Answers a request: the text is in `self.out`. False if there is none.
    fn respond(&mut self, request: &[u8], now: u64) -> bool {
        self.out.clear();
        self.state.store.begin(now);
        let (line, quiet) = match read(request) {
            Ok(request) => self.answer(request, now),
            Err(Wrong { says, quiet }) => {
                self.counts.wrong += 1;
                (Some(says), quiet)
            }
        };
        if let Some(line) = line {
            self.out.put(line);
        }
        if self.out.is_over {
            self.counts.too_large += 1;
            self.out.say(TOO_LONG);
        }
        !quiet
    }

    /// What a request says behind what is in `self.out`, and whether nothing is to be sent.
    fn answer(&mut self, request: Request<'_>, now: u64) -> (Line, bool) {
        match request {
            Request::Get { keys, has_unique } => {
                words(keys).for_each(|key| self.get(key, has_unique, now));
                (Some(END), false)
            }
            Request::Store {
                how,
                key,
                flags,
                time,
                value,
                quiet,
            } => {
                let line = match self.ends(time, now) {
                    Some(ends) => self.store(how, key, value, flags, ends, now),
                    None => NO_CLOCK,
                };
                (Some(line), quiet)
            }
            Request::Delete { key, quiet } => {
                let found = self.state.store.get(key, now);
                if let Some(found) = found {
                    self.state.store.remove(found);
                    self.counts.deleted += 1;
                }
                (Some(if found.is_some() { DELETED } else { NOT_FOUND }), quiet)
            }
            Request::Add {
                key,
                amount,
                is_less,
                quiet,
            } => (self.add(key, amount, is_less, now), quiet),
            Request::Touch { key, time, quiet } => {
                let line = match (self.ends(time, now), self.state.store.get(key, now)) {
                    (None, _) => NO_CLOCK,
                    (_, None) => NOT_FOUND,
                    (Some(ends), Some(found)) => {
                        self.state.store.touch(found, ends);
                        TOUCHED
                    }
                };
                (Some(line), quiet)
            }
            Request::FlushAll { time, quiet } => {
                // Without a time, and for one that has passed, at once.
                let at = if time <= 0 {
                    Some(now)
                } else {
                    self.ends(time, now)
                };
                if let Some(at) = at {
                    self.state.store.flush_at(at);
                    self.state.store.begin(now);
                }
                (Some(if at.is_some() { OK } else { NO_CLOCK }), quiet)
            }
            Request::Version => (
                Some(concat!("VERSION ", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes()),
                false,
            ),
            Request::Stats => {
                self.stats();
                (Some(END), false)
            }
        }
    }

    /// When a value ends; [`None`]: it is a Unix time, and nobody has said when the clock began.
    fn ends(&self, time: i32, now: u64) -> Option<u64> {
        const SECOND: u64 = 1_000_000_000;
        let boot = self.state.settings.boot_unix_s;
        match time {
            0 => Some(NEVER),
            // It has ended.
            ..0 => Some(now),
            1..=RELATIVE_LIMIT_S => Some(now + time as u64 * SECOND),
            _ if boot == 0 => None,
            time => Some(((time as u64).saturating_sub(boot) * SECOND).max(now)),
        }
    }

    fn get(&mut self, key: &[u8], has_unique: bool, now: u64) {
        let store = &mut self.state.store;
        let Some(found) = store.get(key, now) else {
            self.counts.misses += 1;
            return;
        };
        self.counts.hits += 1;
        let out = &mut self.out;
        out.put(b"VALUE ");
        out.put(key);
        out.put(b" ");
        out.number(u64::from(store.flags(found)));
        out.put(b" ");
        out.number(store.value_len(found) as u64);
        if has_unique {
            out.put(b" ");
            out.number(store.unique(found));
        }
        out.put(b"\r\n");
        if let Some(room) = out.room(store.value_len(found)) {
            store.read(found, room);
        }
        out.put(b"\r\n");
    }

    fn store(
        &mut self,
        how: text::Store,
        key: &[u8],
        value: &[u8],
        flags: u32,
        ends: u64,
        now: u64,
    ) -> &'static [u8] {
        use text::Store::{Add, Append, Cas, Prepend, Replace, Set};
        let limit = self.state.settings.value_bytes_limit;
        let store = &mut self.state.store;
        let found = store.get(key, now);
        let before = found.map_or(0, |found| store.value_len(found));
        let len = match how {
            Append | Prepend => before + value.len(),
            _ => value.len(),
        };
        if len > limit {
            // A value that is not the last one that was sent is worse than none.
            if let (Set, Some(found)) = (how, found) {
                store.remove(found);
            }
            self.counts.too_large += 1;
            return TOO_LARGE;
        }
        let is_stored = match (how, found) {
            (Set, _) | (Add, None) | (Replace, Some(_)) => store.set(key, [value, b""], flags, ends, now),
            (Append | Prepend, Some(found)) => {
                let Some(made) = self.made.get_mut(..before) else {
                    return TOO_LARGE;
                };
                store.read(found, made);
                let parts = if how == Append {
                    [&*made, value]
                } else {
                    [value, &*made]
                };
                store.set(key, parts, store.flags(found), store.ends(found), now)
            }
            (Cas(unique), Some(found)) if store.unique(found) == unique => {
                store.set(key, [value, b""], flags, ends, now)
            }
            (Cas(_), Some(_)) => return EXISTS,
            (Cas(_), None) => return NOT_FOUND,
            (Add, Some(_)) | (Replace | Append | Prepend, None) => return NOT_STORED,
        };
        if is_stored { STORED } else { TOO_LARGE }
    }

    /// Adds to a number, or takes from it.
    fn add(&mut self, key: &[u8], amount: u64, is_less: bool, now: u64) -> Line {
        let store = &mut self.state.store;
        let Some(found) = store.get(key, now) else {
            return Some(NOT_FOUND);
        };
        let Some(value) = self.made.get_mut(..store.value_len(found)) else {
            return Some(NOT_A_NUMBER);
        };
        store.read(found, value);
        // A number that has become shorter has spaces behind it.
        let number = words(value).next().and_then(unsigned);
        let Some(number) = number.filter(|_| !value.starts_with(b" ")) else {
            return Some(NOT_A_NUMBER);
        };
        let number = match is_less {
            true => number.saturating_sub(amount),
            false => number.wrapping_add(amount),
        };
        let (digits, start) = digits(number);
        let digits = &digits[start..];
        value.fill(b' ');
        let spaces = value.get(digits.len()..).unwrap_or_default();
        let (flags, ends) = (store.flags(found), store.ends(found));
        if !store.set(key, [digits, spaces], flags, ends, now) {
            return Some(TOO_LARGE);
        }
        self.out.put(digits);
        Some(b"\r\n")
    }

    fn stats(&mut self) {
        let (store, counts) = (&self.state.store, &self.counts);
        for (name, value) in [
            ("curr_items", store.len() as u64),
            ("total_items", store.counts.stored),
            ("bytes", store.used_bytes()),
            ("limit_maxbytes", (self.state.settings.memory_mib as u64) << 20),
            ("get_hits", counts.hits),
            ("get_misses", counts.misses),
            ("evictions", store.counts.evictions),
        ] {
            self.out.put(b"STAT ");
            self.out.put(name.as_bytes());
            self.out.put(b" ");
            self.out.number(value);
            self.out.put(b"\r\n");
        }
    }

    /// Answers a datagram, or says why not.
    fn serve(&mut self, burst: &mut Burst, index: usize, asked: Asked, now: u64) {
        let decide = |burst: &mut Burst, reason: Option<Reason>| {
            if let Some(mut packet) = burst.packet(index) {
                match reason {
                    Some(reason) => packet.drop(reason),
                    None => packet.consume(),
                }
            }
        };
        if asked.source_port == self.state.settings.port {
            return decide(burst, Some(OF_SERVER));
        }
        let Some((header, request)) = asked.payload(burst.frame(index)).split_first_chunk::<HEADER>() else {
            return decide(burst, Some(SHORT));
        };
        let id = [header[0], header[1]];
        let is_answered = if header[4..6] == [0, 1] {
            self.respond(request, now)
        } else {
            self.counts.wrong += 1;
            self.out.say(IN_PIECES);
            true
        };
        if !is_answered {
            return decide(burst, None);
        }
        let mut count = (self.out.len - HEADER).div_ceil(PAYLOAD);
        if count > 1 && count > burst.room() {
            self.counts.too_large += 1;
            self.out.say(TOO_LONG);
            count = 1;
        }
        let header = |number: usize| {
            let [number, count] = [number, count].map(|of| (of as u16).to_be_bytes());
            [id[0], id[1], number[0], number[1], count[0], count[1], 0, 0]
        };
        if count == 1 {
            self.out.bytes[..HEADER].copy_from_slice(&header(0));
            asked.reply(burst, index, &self.out.bytes[..self.out.len]);
            return;
        }
        for number in 0..count {
            let start = number * PAYLOAD;
            let end = (start + DATAGRAM).min(self.out.len);
            // Over the end of the datagram before, which has been sent.
            self.out.bytes[start..start + HEADER].copy_from_slice(&header(number));
            asked.originate(burst, index, &self.out.bytes[start..end]);
        }
        decide(burst, None);
    }
}

impl Function for Cache {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "cache",
            help: "Keeps values by key, in memcached's text protocol over UDP",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, setup: &Setup) -> Result<Configuration, Error> {
        let settings = Settings::parse(text)?;
        Ok(Configuration(Box::new(State {
            store: Store::new(settings.memory_mib << 20, mix(setup.seed)),
            settings,
        })))
    }

    fn new(configuration: Configuration, _setup: &Setup) -> Cache {
        Cache {
            state: configuration.0,
            out: Box::new(Out {
                bytes: [0; HEADER + DATAGRAMS_LIMIT * PAYLOAD],
                len: HEADER,
                is_over: false,
            }),
            made: Box::new([0; VALUE_BYTES_LIMIT]),
            counts: Counts::default(),
        }
    }

    /// Values stay if `memory_mib` is the same. Otherwise the memory is empty.
    fn reload(&mut self, mut configuration: Configuration) -> Configuration {
        let other = &mut *configuration.0;
        if other.settings.memory_mib == self.state.settings.memory_mib {
            std::mem::swap(&mut other.settings, &mut self.state.settings);
        } else {
            // What has happened is a total.
            other.store.counts = self.state.store.counts;
            std::mem::swap(other, &mut self.state);
        }
        configuration
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        for index in 0..burst.len() {
            let Some(mut packet) = burst.packet(index) else {
                return;
            };
            match self.state.settings.service.look(&mut packet) {
                Seen::Asked(asked) => self.serve(burst, index, asked, now.0),
                Seen::OfLink => self.counts.link_answers += 1,
                Seen::Other => {}
            }
        }
    }

    fn metrics(&self, values: &mut [u64]) {
        let (of, store) = (&self.counts, &self.state.store);
        let all = [
            of.hits,
            of.misses,
            store.counts.stored,
            of.deleted,
            store.counts.evictions,
            store.counts.expired,
            of.wrong,
            of.too_large,
            of.link_answers,
            store.used_bytes(),
        ];
        for (value, of) in values.iter_mut().zip(all) {
            *value = of;
        }
    }

    /// `flows` are values.
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
