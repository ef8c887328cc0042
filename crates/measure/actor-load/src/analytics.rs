//! Sources of made-up short messages with tags, and a reader of the most frequent tags of each window.
//!
//! Times are milliseconds since 1970. A source sends its tuples in messages with numbers, and each again until all counters
//! have counted it. So the windows that lie in the run as a whole are known, and are compared with what was read.
//! [`Analytics::settle`] ends the last slot, so no window is open then.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use actor_applications::analytics::{Ranked, Taken, Tuple, WindowPart, encode_numbered};
use anyhow::{Context as _, Result, bail};
use model::Random;

use crate::clients::{Counts, PAUSE};
use crate::wire::{ANSWER_BYTES, receive, send, socket};
use crate::zipf::Zipf;
use crate::{Pace, Times, drawn};

/// A message that not all counters have counted goes out again after so long, with those behind it.
const AGAIN: Duration = Duration::from_millis(100);
/// Messages of a source that are not counted yet, at most.
const WINDOW: usize = 64;
/// Between two messages of a source.
const EVERY: Duration = Duration::from_millis(10);
/// Bytes of a message with several tuples, at most: it is one packet, since no side puts fragments together.
const MESSAGE_BYTES: usize = 1_400;
/// Bytes of a message beside its tuples, and of a tuple beside its key and text.
const HEAD_BYTES: usize = 26;
const TUPLE_BYTES: usize = 11;
/// Between two questions of the reader.
const ASKS: Duration = Duration::from_millis(20);
/// How long the last messages and windows may take.
const SETTLED: Duration = Duration::from_secs(20);
/// Words of a message.
const WORDS: [&str; 16] = [
    "a", "card", "takes", "every", "packet", "of", "the", "host", "and", "gives", "each", "flow", "its",
    "own", "place", "today",
];

/// What sources send, and what the service counts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tags.
    pub keys: u64,
    /// What a message needs to be counted.
    pub pattern: String,
    /// Rows of a window, as in the service's options.
    pub n: usize,
    /// Slots of a window, as there.
    pub slots: u64,
    /// Milliseconds of a slot, as there.
    pub slot_time: u64,
}

/// How many windows there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Windows with the rows that they must have.
    pub exact: usize,
    /// Windows that were not looked at.
    pub excused: usize,
}

/// A message on its way.
struct Sent {
    sequence: u64,
    body: Vec<u8>,
    intended: Instant,
    /// Tuples in it.
    tuples: usize,
}

struct Source {
    socket: UdpSocket,
    number: u16,
    next: u64,
    on_the_way: VecDeque<Sent>,
    /// The last message that was sent.
    sent: u64,
    /// The last message that each counter has counted.
    taken: Vec<u64>,
    again: Instant,
    /// The slot of its last watermark.
    slot: u64,
}

impl Source {
    fn taken(&self) -> u64 {
        self.taken.iter().min().copied().unwrap_or(0)
    }
}

/// Sources and a reader.
pub struct Analytics {
    settings: Settings,
    sources: Vec<Source>,
    reader: UdpSocket,
    zipf: Zipf,
    random: Random,
    session: u64,
    /// The first time of the run: the begin of a slot.
    begin: u64,
    /// The time of the next tuples.
    now: u64,
    /// All slots before have ended: no window that ends until then is open.
    settled: u64,
    /// The tuples of a slot that count, by key.
    counted: BTreeMap<u64, BTreeMap<String, u64>>,
    windows: BTreeMap<u64, WindowPart>,
    /// The end of the last window that was read.
    read: u64,
    asked: Option<Instant>,
    counts: Counts,
    buffer: Vec<u8>,
}

impl Analytics {
    /// A source for each of these filters, numbered in their order, and a reader of that aggregator's windows.
    ///
    /// # Errors
    /// There is no socket; the clock is wrong.
    pub fn new(settings: Settings, filters: &[SocketAddr], aggregator: SocketAddr) -> Result<Analytics> {
        if filters.is_empty() || settings.slot_time == 0 || settings.slots == 0 {
            bail!("analytics needs a source, and slots with a time");
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
        let source = |(number, address): (u16, &SocketAddr)| -> Result<Source> {
            Ok(Source {
                socket: socket(*address)?,
                number,
                next: 1,
                on_the_way: VecDeque::new(),
                sent: 0,
                taken: Vec::new(),
                again: Instant::now(),
                slot: 0,
            })
        };
        let begin = now.next_multiple_of(settings.slot_time);
        Ok(Analytics {
            sources: (0..).zip(filters).map(source).collect::<Result<_>>()?,
            reader: socket(aggregator)?,
            zipf: Zipf::new(settings.keys),
            random: Random::new(drawn()?),
            session: now,
            begin,
            now: begin,
            settled: begin,
            counted: BTreeMap::new(),
            windows: BTreeMap::new(),
            read: begin,
            asked: None,
            counts: Counts::default(),
            buffer: vec![0; ANSWER_BYTES],
            settings,
        })
    }

    /// What was counted so far; requests are tuples.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Windows that were read.
    pub fn windows(&self) -> usize {
        self.windows.len()
    }

    /// Waits until all counters have a tuple of each source, at most so long. Whether they do.
    ///
    /// # Errors
    /// The network's; an answer that is none.
    pub fn wait(&mut self, longest: Duration) -> Result<bool> {
        let mut times = Times::default();
        if self.is_idle() {
            self.round(1, Instant::now());
        }
        let until = Instant::now() + longest;
        while !self.is_idle() && Instant::now() < until {
            self.turn(&mut times)?;
            std::thread::sleep(PAUSE);
        }
        Ok(self.is_idle())
    }

    /// Sends tuples at this rate (1,000 a second, where there is none) from all sources together, and reads windows.
    /// The times are those of tuples until all counters have them. `goes_on` is asked at each turn. The next run goes on
    /// where this one ends.
    ///
    /// # Errors
    /// The network's; an answer that is none.
    pub fn run(&mut self, pace: Pace, mut goes_on: impl FnMut() -> bool) -> Result<Times> {
        let mut times = Times::default();
        let rate = pace.rate.unwrap_or(1_000.0) / self.sources.len() as f64;
        let began = Instant::now();
        let mut rounds = 0_u32;
        let mut made = 0_u64;
        while began.elapsed() < pace.lasts && goes_on() {
            let due = EVERY * rounds;
            if began.elapsed() >= due {
                rounds += 1;
                let until = (rate * (EVERY * rounds).as_secs_f64()) as u64;
                self.round(until - made, began + due);
                made = until;
            }
            self.turn(&mut times)?;
            std::thread::sleep(PAUSE);
        }
        times.lasted = began.elapsed();
        Ok(times)
    }

    /// Ends the slot under way: all sources say that no earlier tuple comes. Waits until all tuples are counted and all
    /// windows are read, and gives the times of these tuples. What is not counted then is lost.
    ///
    /// # Errors
    /// As [`run`](Analytics::run).
    pub fn settle(&mut self) -> Result<Times> {
        let began = Instant::now();
        let mut times = Times::default();
        self.now = self.now.next_multiple_of(self.settings.slot_time);
        self.settled = self.now;
        for place in 0..self.sources.len() {
            self.queue(place, self.now, &[], began);
        }
        let last = self.expected().keys().next_back().copied().unwrap_or(0);
        while began.elapsed() < SETTLED && (self.read < last || !self.is_idle()) {
            self.turn(&mut times)?;
            std::thread::sleep(PAUSE);
        }
        let missing = self.sources.iter().flat_map(|of| &of.on_the_way);
        self.counts.lost = missing.map(|of| of.tuples as u64).sum();
        times.lasted = began.elapsed();
        Ok(times)
    }

    fn is_idle(&self) -> bool {
        self.sources.iter().all(|of| of.on_the_way.is_empty())
    }

    /// So many tuples of each source. The next ones are later.
    fn round(&mut self, tuples: u64, intended: Instant) {
        for place in 0..self.sources.len() {
            self.make(place, tuples, intended);
        }
        self.now += EVERY.as_millis() as u64;
    }

    /// Makes tuples of this time, in messages of one packet each. Without tuples, the source says only that a slot has
    /// begun.
    fn make(&mut self, place: usize, tuples: u64, intended: Instant) {
        let (time, slot) = (self.now, self.now / self.settings.slot_time);
        let (mut made, mut bytes) = (Vec::new(), HEAD_BYTES);
        for _ in 0..tuples {
            let (key, text) = self.tuple(slot);
            let length = TUPLE_BYTES + key.len() + text.len();
            if bytes + length > MESSAGE_BYTES && !made.is_empty() {
                self.queue_made(place, time, &made, intended);
                (made, bytes) = (Vec::new(), HEAD_BYTES);
            }
            bytes += length;
            made.push((key, text));
        }
        if !made.is_empty() || self.sources[place].slot != slot {
            self.queue_made(place, time, &made, intended);
        }
        self.sources[place].slot = slot;
    }

    /// A key and a text, which count in this slot if the pattern is in the text.
    fn tuple(&mut self, slot: u64) -> (String, String) {
        let key = format!("#tag{:06}", self.zipf.draw(&mut self.random));
        let mut text = String::new();
        for _ in 0..8 {
            text.push_str(WORDS[self.random.below(WORDS.len() as u64) as usize]);
            text.push(' ');
        }
        if self.random.happens(0.5) {
            text.push_str(&self.settings.pattern);
            let of = self.counted.entry(slot).or_default();
            *of.entry(key.clone()).or_default() += 1;
        }
        (key, text)
    }

    fn queue_made(&mut self, place: usize, time: u64, made: &[(String, String)], intended: Instant) {
        let tuples: Vec<_> = (made.iter())
            .map(|(key, text)| Tuple {
                time,
                key: key.as_bytes(),
                text: text.as_bytes(),
            })
            .collect();
        self.counts.requests += tuples.len() as u64;
        self.queue(place, time, &tuples, intended);
    }

    /// The next message of a source.
    fn queue(&mut self, place: usize, watermark: u64, tuples: &[Tuple<'_>], intended: Instant) {
        let source = &mut self.sources[place];
        let body = encode_numbered((self.session, source.next), source.number, watermark, tuples);
        source.on_the_way.push_back(Sent {
            sequence: source.next,
            body,
            intended,
            tuples: tuples.len(),
        });
        source.next += 1;
    }

    fn turn(&mut self, times: &mut Times) -> Result<()> {
        let now = Instant::now();
        for source in &mut self.sources {
            while let Some(body) = receive(&source.socket, &mut self.buffer)? {
                let taken = Taken::decode(body).context("a counter has said what it must not")?;
                if taken.session != self.session || taken.source != source.number {
                    continue;
                }
                source.taken.resize(usize::from(taken.counters.max(1)), 0);
                let of = source.taken.get_mut(usize::from(taken.counter));
                let of = of.context("a counter has an index beyond their number")?;
                *of = taken.last.max(*of);
            }
            let before = source.on_the_way.len();
            while source
                .on_the_way
                .front()
                .is_some_and(|of| of.sequence <= source.taken())
                && let Some(of) = source.on_the_way.pop_front()
            {
                let took = now.duration_since(of.intended).as_secs_f64() * 1e3;
                times.ms.extend(std::iter::repeat_n(took, of.tuples));
            }
            if source.on_the_way.len() < before {
                source.again = now + AGAIN;
            }
            // One that is lost goes out again, with those behind it.
            let again = now >= source.again;
            for of in source.on_the_way.iter().take(WINDOW) {
                if again || of.sequence > source.sent {
                    send(&source.socket, &of.body)?;
                    source.sent = source.sent.max(of.sequence);
                }
            }
            if again {
                source.again = now + AGAIN;
            }
        }
        self.read(now)
    }

    /// Asks for the next window, and takes what comes.
    fn read(&mut self, now: Instant) -> Result<()> {
        while let Some(body) = receive(&self.reader, &mut self.buffer)? {
            let part = WindowPart::decode(body).context("the aggregator has sent what is no window")?;
            if part.end > self.read {
                self.read = part.end;
                self.windows.insert(part.end, part);
                self.asked = None;
            }
        }
        if self.asked.is_none_or(|asked| now.duration_since(asked) >= ASKS) {
            send(&self.reader, &self.read.to_le_bytes())?;
            self.asked = Some(now);
        }
        Ok(())
    }

    /// The windows with a tuple that lie in the run as a whole and have ended: what a run with all tuples at once says of
    /// them.
    fn expected(&self) -> BTreeMap<u64, Vec<Ranked>> {
        let (slots, slot_time) = (self.settings.slots, self.settings.slot_time);
        let (first, last) = (self.begin / slot_time + slots, self.settled / slot_time);
        let mut windows = BTreeMap::new();
        for behind in first..=last {
            let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
            for (key, count) in self.counted.range(behind - slots..behind).flat_map(|(_, of)| of) {
                *counts.entry(key).or_default() += count;
            }
            let ranked = |(key, count): (&str, u64)| Ranked {
                count,
                key: key.as_bytes().to_vec(),
            };
            let mut rows: Vec<_> = counts.into_iter().map(ranked).collect();
            Ranked::sort(&mut rows);
            rows.truncate(self.settings.n);
            if !rows.is_empty() {
                windows.insert(behind * slot_time, rows);
            }
        }
        windows
    }

    /// Whether all windows that lie in the run as a whole were read, and are exact; how many.
    ///
    /// # Errors
    /// One is missing, or has other rows.
    pub fn check(&self) -> Result<usize> {
        Ok(self.judge(&[])?.exact)
    }

    /// The same without the windows that end in these times, in milliseconds since 1970: when a side ends, what was
    /// between counters and aggregator is lost with it.
    ///
    /// # Errors
    /// As [`check`](Analytics::check).
    pub fn judge(&self, excused: &[Range<u64>]) -> Result<Judged> {
        let (judged, wrong) = self.compare(excused);
        match wrong.into_iter().next() {
            Some(what) => bail!(what),
            None => Ok(judged),
        }
    }

    /// How many windows there were, and what is wrong with each of the others.
    pub fn compare(&self, excused: &[Range<u64>]) -> (Judged, Vec<String>) {
        let (mut judged, mut wrong) = (Judged::default(), Vec::new());
        for (end, rows) in &self.expected() {
            if excused.iter().any(|of| of.contains(end)) {
                judged.excused += 1;
                continue;
            }
            let what = match self.windows.get(end) {
                None => "was not read".to_owned(),
                Some(part) if part.is_inexact => {
                    format!("says that it is not exact: {} refused", part.refused)
                }
                Some(part) if part.rows != *rows => {
                    format!("has {:?}, and must have {rows:?}", part.rows)
                }
                Some(_) => {
                    judged.exact += 1;
                    continue;
                }
            };
            wrong.push(format!("the window that ends at {end} {what}"));
        }
        (judged, wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sources with tuples, and the windows that they must get. Nobody takes what they send.
    fn with_windows() -> Analytics {
        let settings = Settings {
            keys: 20,
            pattern: "inco".to_owned(),
            n: 3,
            slots: 2,
            slot_time: 100,
        };
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut of = Analytics::new(settings, &[nobody; 2], nobody).unwrap();
        for _ in 0..45 {
            of.round(50, Instant::now());
        }
        of.settled = of.now.next_multiple_of(100);
        for (end, rows) in of.expected() {
            let part = WindowPart {
                end,
                rows,
                is_last: true,
                ..WindowPart::default()
            };
            of.windows.insert(end, part);
        }
        of
    }

    #[test]
    fn windows_up_to_the_last_tuple_are_compared() {
        let of = with_windows();
        // 450 ms are five slots; the first window is whole after two.
        let (judged, wrong) = of.compare(&[]);
        assert_eq!((judged.exact, wrong.len()), (4, 0), "{wrong:?}");
        assert_eq!(of.counts.requests, 2 * 45 * 50);
        for break_it in [
            |part: &mut WindowPart| part.rows[0].count += 1,
            |part: &mut WindowPart| drop(part.rows.pop()),
            |part: &mut WindowPart| part.is_inexact = true,
        ] {
            let mut of = with_windows();
            break_it(of.windows.get_mut(&of.settled).unwrap());
            let (judged, wrong) = of.compare(&[]);
            assert_eq!((judged.exact, wrong.len()), (3, 1), "{wrong:?}");
            assert!(of.check().is_err());
        }
        let mut of = with_windows();
        of.windows.remove(&of.settled);
        assert!(of.check().is_err(), "a window that was not read passes");
        let excused = of.settled..of.settled + 1;
        let judged = of.judge(std::slice::from_ref(&excused)).unwrap();
        assert_eq!((judged.exact, judged.excused), (3, 1));
    }

    #[test]
    fn a_message_is_one_packet_and_says_when_a_slot_begins() {
        let of = with_windows();
        for source in &of.sources {
            assert!(source.on_the_way.len() > 45, "one message for each round");
            assert!(source.on_the_way.iter().all(|of| of.body.len() <= MESSAGE_BYTES));
            let tuples: usize = source.on_the_way.iter().map(|of| of.tuples).sum();
            assert_eq!(tuples, 45 * 50);
        }
        let mut of = with_windows();
        let before = of.sources[0].on_the_way.len();
        for _ in 0..20 {
            of.round(0, Instant::now());
        }
        // 200 ms are two slots more.
        assert_eq!(of.sources[0].on_the_way.len() - before, 2);
    }
}
