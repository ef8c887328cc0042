//! The function `dns`: answers questions from zones. See docs/functions/dns.md.

mod answer;
mod answers;
mod configuration;
mod message;
mod zone;

use std::hash::Hasher as _;

use model::{Nanos, mix};
use siphasher::sip::SipHasher13;

use crate::about::{About, Metric, Reason};
use crate::burst::Burst;
use crate::configuration::Error;
use crate::function::{Function, Setup, Summary};
use crate::serve::{
    Asked, MALFORMED_METRIC, NO_ROOM_METRIC, NOT_ASKED_METRIC, OPTIONS_METRIC, Seen, Service,
};

use answer::{Kind, answer};
use answers::Answers;
use configuration::Settings;
use message::{ANSWER_LIMIT, Code, Fault, HEADER, Question, Writer};
use zone::Zones;

const SHORT: Reason = Reason(4);
const ANSWER: Reason = Reason(5);

const REASONS: &[Metric] = &[
    MALFORMED_METRIC,
    NOT_ASKED_METRIC,
    OPTIONS_METRIC,
    NO_ROOM_METRIC,
    Metric::counter("short", "Datagrams without a whole header of DNS"),
    Metric::counter("answer", "Datagrams that are answers themselves"),
];

const METRICS: &[Metric] = &[
    Metric::counter("data", "Answers with records"),
    Metric::counter("no_data", "Answers that the name has no records of the type"),
    Metric::counter("no_name", "Answers that there is no such name (NXDOMAIN)"),
    Metric::counter("referrals", "Answers that name other servers"),
    Metric::counter("refused", "Answers that the name is in no zone (REFUSED)"),
    Metric::counter("truncated", "Answers that were too long, and are empty (TC)"),
    Metric::counter(
        "wrong",
        "Questions that were wrong or of an unknown kind (FORMERR, NOTIMP, BADVERS)",
    ),
    Metric::counter("cache_hits", "Questions whose answer was in the cache"),
    Metric::counter("cache_misses", "Questions whose answer was not in the cache"),
    Metric::counter("cache_evictions", "Answers that left the cache for others"),
    Metric::counter(
        "link_answers",
        "Answers to ARP requests, neighbour solicitations and pings",
    ),
    Metric::gauge("zones", "Zones that there are"),
];

/// Answers questions from zones.
///
/// ```toml
/// port = 53                  # UDP
/// addresses = ["192.0.2.53"] # without them, it answers on each address
/// mac = "02:00:00:00:00:35"  # with it, it answers ARP, neighbour solicitations and pings, too
/// others = "drop"            # other packets: "drop", or "pass" to the next function
/// cache_answers = 4096       # answers that are kept as they are sent; 1300 bytes each
/// zones = '''
/// $ORIGIN example.com.
/// $TTL 300
/// @   SOA ns1 hostmaster 1 7200 900 1209600 60
/// @   NS  ns1
/// ns1 A   192.0.2.53
/// '''
/// ```
#[derive(Debug)]
pub struct Dns {
    state: Box<State>,
    secret: [u64; 2],
    out: Box<[u8; ANSWER_LIMIT]>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// By kind, in the order of the metrics.
    answers: [u64; 6],
    wrong: u64,
    hits: u64,
    misses: u64,
    evictions: u64,
    link_answers: u64,
}

#[derive(Debug)]
struct State {
    service: Service,
    zones: Zones,
    answers: Answers,
}

/// The configuration of [`Dns`], with an empty cache.
#[derive(Debug)]
pub struct Configuration(Box<State>);

impl Dns {
    /// The hash of what is asked.
    fn hash(&self, question: &Question) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.secret[0], self.secret[1]);
        hasher.write(question.name());
        hasher.write(&question.rtype.to_be_bytes());
        hasher.finish()
    }

    /// Answers a message: the answer is in `self.out`. Gives its length, or why there is none.
    fn respond(&mut self, message: &[u8]) -> Result<usize, Reason> {
        let len = match Question::read(message) {
            Ok(question) => {
                let len = self.look_up(&question);
                // The name as it was written, where the answer repeats it: a resolver may compare its letters.
                let asked = message.get(HEADER..HEADER + question.name().len());
                let repeated = self.out.get_mut(HEADER..HEADER + question.name().len());
                if let (Some(asked), Some(repeated)) = (asked, repeated) {
                    repeated.copy_from_slice(asked);
                }
                len
            }
            Err(Fault::Short) => return Err(SHORT),
            Err(Fault::Answer) => return Err(ANSWER),
            Err(Fault::Code(code)) => {
                self.counts.wrong += 1;
                self.out[..HEADER].fill(0);
                self.out[3] = if code == Code::NotImp { 4 } else { 1 };
                HEADER
            }
        };
        let asked = message.first_chunk::<HEADER>().ok_or(SHORT)?;
        self.out[..2].copy_from_slice(&asked[..2]);
        // Its operation, and whether recursion is desired.
        self.out[2] = self.out[2] & 0x06 | 0x80 | asked[2] & 0x79;
        Ok(len)
    }

    fn look_up(&mut self, question: &Question) -> usize {
        if let Some(code) = question.refusal() {
            match code {
                Code::Refused => self.counts.answers[Kind::Refused.place()] += 1,
                _ => self.counts.wrong += 1,
            }
            return Writer::new(&mut self.out, question).finish(code);
        }
        let hash = self.hash(question);
        let answers = &mut self.state.answers;
        if let Some((answer, kind)) = answers.get(hash, question) {
            self.out[..answer.len()].copy_from_slice(answer);
            self.counts.hits += 1;
            self.counts.answers[kind.place()] += 1;
            return answer.len();
        }
        let (len, kind) = answer(&self.state.zones, question, &mut self.out);
        self.counts.answers[kind.place()] += 1;
        self.counts.misses += 1;
        // A name in no zone is found to be so at once.
        if kind != Kind::Refused {
            self.counts.evictions += u64::from(answers.insert(hash, question, &self.out[..len], kind));
        }
        len
    }
}

impl Kind {
    /// Its place among the metrics.
    const fn place(self) -> usize {
        match self {
            Kind::Data => 0,
            Kind::NoData => 1,
            Kind::NxDomain => 2,
            Kind::Referral => 3,
            Kind::Refused => 4,
            Kind::Truncated => 5,
        }
    }
}

impl Function for Dns {
    type Configuration = Configuration;

    fn about() -> About {
        About {
            name: "dns",
            help: "Answers DNS questions over UDP from zones",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, setup: &Setup) -> Result<Configuration, Error> {
        let Settings {
            service,
            cache_answers,
            zones,
        } = Settings::parse(text, setup.seed)?;
        Ok(Configuration(Box::new(State {
            service,
            zones,
            answers: Answers::new(cache_answers),
        })))
    }

    fn new(configuration: Configuration, setup: &Setup) -> Dns {
        Dns {
            state: configuration.0,
            secret: [mix(!setup.seed), mix(mix(!setup.seed))],
            out: Box::new([0; ANSWER_LIMIT]),
            counts: Counts::default(),
        }
    }

    /// The cache begins empty: its answers were those of the zones before.
    fn reload(&mut self, mut configuration: Configuration) -> Configuration {
        std::mem::swap(&mut self.state, &mut configuration.0);
        configuration
    }

    fn process(&mut self, burst: &mut Burst, _now: Nanos) {
        for index in 0..burst.len() {
            let Some(mut packet) = burst.packet(index) else {
                return;
            };
            match self.state.service.look(&mut packet) {
                Seen::Asked(asked) => self.answer(burst, index, asked),
                Seen::OfLink => self.counts.link_answers += 1,
                Seen::Other => {}
            }
        }
    }

    fn metrics(&self, values: &mut [u64]) {
        let of = &self.counts;
        let rest = [
            of.wrong,
            of.hits,
            of.misses,
            of.evictions,
            of.link_answers,
            self.state.zones.len() as u64,
        ];
        for (value, of) in values.iter_mut().zip(of.answers.into_iter().chain(rest)) {
            *value = of;
        }
    }

    /// `flows` are answers in the cache.
    fn summary(&self) -> Summary {
        Summary {
            entries: self.state.zones.records() as u64,
            flows: self.state.answers.held() as u64,
            flows_limit: self.state.answers.limit() as u64,
        }
    }
}

impl Dns {
    fn answer(&mut self, burst: &mut Burst, index: usize, asked: Asked) {
        match self.respond(asked.payload(burst.frame(index))) {
            Ok(len) => {
                asked.reply(burst, index, &self.out[..len]);
            }
            Err(reason) => {
                if let Some(mut packet) = burst.packet(index) {
                    packet.drop(reason);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
