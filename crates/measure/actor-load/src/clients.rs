//! Clients with one request at a time each.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use model::Random;

use crate::wire::{ANSWER_BYTES, Wire};
use crate::{Pace, Times, drawn};

/// A request without an answer for so long goes to the next address.
const AGAIN: Duration = Duration::from_millis(100);
/// One that has not answered is not asked for so long because others name it: they do not know yet. After that they do, and
/// it may be back.
const SILENT: Duration = Duration::from_millis(100);
/// After an answer that says to ask later or elsewhere.
const LATER: Duration = Duration::from_millis(5);
/// How long requests may take that have no answer at the end: then they are lost.
const SETTLED: Duration = Duration::from_secs(20);
/// A second answer may come so late.
const LATE: Duration = Duration::from_millis(200);
/// Between two looks.
pub(crate) const PAUSE: Duration = Duration::from_micros(200);
/// What an answer means for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It is the answer.
    Ended,
    /// Another address is to be asked: this one, or the next.
    Elsewhere(Option<usize>),
    /// The same is to be asked again.
    Later,
    /// It never will be answered.
    Refused,
}

/// What clients ask, and what they think of answers.
pub trait Workload {
    /// The next request of the client in this place: its message. `number` is what the application knows the client by.
    fn request(&mut self, place: usize, number: u64, id: u64, random: &mut Random) -> Result<Vec<u8>>;

    /// Of a stream: the length of the first message, if all of it has come.
    fn whole(&self, bytes: &[u8]) -> Option<usize> {
        (!bytes.is_empty()).then_some(bytes.len())
    }

    /// The id of the request that a message answers, and what it says; nothing if it is no answer. `asked` is the id of
    /// the client's last request.
    fn hear(&self, asked: u64, body: &[u8]) -> Option<(u64, Heard)>;

    /// The request of a client has ended, between these times, with this answer. All times differ.
    fn ended(&mut self, place: usize, begin: u64, end: u64, body: &[u8]) -> Result<()>;
}

/// What clients have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were begun.
    pub requests: u64,
    /// Those that have no answer.
    pub lost: u64,
    /// Answers that came a second time to a request that was sent once.
    pub twice: u64,
    /// Requests that were sent again.
    pub again: u64,
}

/// A request under way.
struct UnderWay {
    body: Vec<u8>,
    begin: u64,
    intended: Instant,
    /// When it was sent last, or something was heard of it.
    sent: Instant,
    /// When it goes out again; never, where nothing is lost.
    again: Option<Instant>,
    times: u32,
}

impl UnderWay {
    /// Something was heard: it goes out again soon, and not at once.
    fn wait(&mut self) {
        self.sent = Instant::now();
        self.again = Some(self.sent + LATER);
    }
}

struct Client {
    number: u64,
    wires: Vec<Wire>,
    asked: usize,
    /// The last one that has not answered, and when that was seen.
    silent: Option<(usize, Instant)>,
    id: u64,
    under_way: Option<UnderWay>,
    /// How often the last answered request was sent.
    last_times: u32,
}

impl Client {
    /// Whether this one has just been found silent.
    fn is_silent(&self, wire: usize) -> bool {
        self.silent
            .is_some_and(|(of, since)| of == wire && since.elapsed() < SILENT)
    }

    /// The one after this, without one that is silent, if there is another one.
    fn next(&self, wire: usize) -> usize {
        let count = self.wires.len();
        let mut others = (1..=count).map(|step| (wire + step) % count);
        others.find(|of| !self.is_silent(*of)).unwrap_or(wire)
    }

    fn send(&mut self) -> Result<()> {
        let Some(of) = &mut self.under_way else {
            return Ok(());
        };
        let wire = &mut self.wires[self.asked];
        let now = Instant::now();
        (of.sent, of.again) = (now, wire.may_lose().then(|| now + AGAIN));
        of.times += 1;
        wire.send(&of.body)
    }
}

/// Clients at work.
pub struct Load<W> {
    workload: W,
    clients: Vec<Client>,
    free: VecDeque<usize>,
    /// Intended times of requests for which no client was free.
    due: VecDeque<Instant>,
    next: Option<Instant>,
    counts: Counts,
    random: Random,
    stamp: u64,
    buffer: Vec<u8>,
}

impl<W: Workload> Load<W> {
    /// Clients of an application at these addresses, which all have a part of it: the replicas of a store. Sockets are
    /// made in the network of the calling thread.
    ///
    /// # Errors
    /// A client has no socket.
    pub fn new(workload: W, clients: usize, addresses: &[SocketAddr]) -> Result<Load<W>> {
        Load::over(workload, clients, addresses, Wire::datagrams)
    }

    /// The same over connections.
    ///
    /// # Errors
    /// A client cannot connect.
    pub fn connected(workload: W, clients: usize, addresses: &[SocketAddr]) -> Result<Load<W>> {
        Load::over(workload, clients, addresses, Wire::stream)
    }

    fn over(
        workload: W,
        clients: usize,
        addresses: &[SocketAddr],
        wire: impl Fn(SocketAddr) -> Result<Wire>,
    ) -> Result<Load<W>> {
        if addresses.is_empty() || clients == 0 {
            bail!("a load needs an address and a client");
        }
        let client = |_| -> Result<Client> {
            Ok(Client {
                number: drawn()?,
                wires: addresses.iter().map(|of| wire(*of)).collect::<Result<_>>()?,
                asked: 0,
                silent: None,
                id: 0,
                under_way: None,
                last_times: 0,
            })
        };
        Ok(Load {
            workload,
            clients: (0..clients).map(client).collect::<Result<_>>()?,
            free: (0..clients).collect(),
            due: VecDeque::new(),
            next: None,
            counts: Counts::default(),
            random: Random::new(drawn()?),
            stamp: 0,
            buffer: vec![0; ANSWER_BYTES],
        })
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What the clients ask.
    pub fn workload(&self) -> &W {
        &self.workload
    }

    /// The same, to change it.
    pub fn workload_mut(&mut self) -> &mut W {
        &mut self.workload
    }

    /// Waits until the application answers a request, at most so long. Whether it does.
    ///
    /// # Errors
    /// The network's; an answer that is none.
    pub fn wait(&mut self, longest: Duration) -> Result<bool> {
        let mut times = Times::default();
        // One that is under way will do.
        if self.due.is_empty() && self.free.len() == self.clients.len() {
            self.due.push_back(Instant::now());
        }
        let until = Instant::now() + longest;
        while times.ms.is_empty() && Instant::now() < until {
            self.turn(&mut times)?;
            std::thread::sleep(PAUSE);
        }
        Ok(!times.ms.is_empty())
    }

    /// Requests at this pace, and how long those took that were answered. `goes_on` is asked at each turn.
    ///
    /// # Errors
    /// The network's; an answer that is none; a request was refused.
    pub fn run(&mut self, pace: Pace, mut goes_on: impl FnMut() -> bool) -> Result<Times> {
        let began = Instant::now();
        let gap = pace.rate.map(|rate| Duration::from_secs_f64(1.0 / rate));
        let mut next = self.next.filter(|next| *next > began).unwrap_or(began);
        let mut times = Times::default();
        while began.elapsed() < pace.lasts && goes_on() {
            let now = Instant::now();
            match gap {
                Some(gap) => {
                    while next <= now {
                        self.due.push_back(next);
                        next += gap;
                    }
                }
                None => self.due.extend(self.free.iter().map(|_| now)),
            }
            self.turn(&mut times)?;
            std::thread::sleep(PAUSE);
        }
        self.next = Some(next);
        times.lasted = began.elapsed();
        Ok(times)
    }

    /// Waits for all answers, and gives the times of these. What has none then is lost.
    ///
    /// # Errors
    /// As [`run`](Load::run).
    pub fn settle(&mut self) -> Result<Times> {
        let began = Instant::now();
        let mut times = Times::default();
        while began.elapsed() < SETTLED && (!self.due.is_empty() || self.free.len() < self.clients.len()) {
            self.turn(&mut times)?;
            std::thread::sleep(PAUSE);
        }
        let late = Instant::now() + LATE;
        while Instant::now() < late {
            self.turn(&mut times)?;
            std::thread::sleep(PAUSE);
        }
        self.counts.lost = (self.clients.len() - self.free.len() + self.due.len()) as u64;
        times.lasted = began.elapsed();
        Ok(times)
    }

    fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    fn turn(&mut self, times: &mut Times) -> Result<()> {
        for place in 0..self.clients.len() {
            for wire in 0..self.clients[place].wires.len() {
                self.receive(place, wire, times)?;
            }
        }
        while let Some(intended) = self.due.front().copied()
            && let Some(place) = self.free.pop_front()
        {
            self.due.pop_front();
            let begin = self.stamp();
            let client = &mut self.clients[place];
            client.id += 1;
            let body = self
                .workload
                .request(place, client.number, client.id, &mut self.random)?;
            let now = Instant::now();
            client.under_way = Some(UnderWay {
                body,
                begin,
                intended,
                sent: now,
                again: None,
                times: 0,
            });
            client.send()?;
            self.counts.requests += 1;
        }
        let now = Instant::now();
        for client in &mut self.clients {
            let Some(of) = client
                .under_way
                .as_ref()
                .filter(|of| of.again.is_some_and(|again| now >= again))
            else {
                continue;
            };
            // One that was told so waits; one that has heard nothing asks the next one.
            if now.duration_since(of.sent) >= AGAIN {
                client.silent = Some((client.asked, now));
                client.asked = client.next(client.asked);
            }
            self.counts.again += 1;
            client.send()?;
        }
        Ok(())
    }

    fn receive(&mut self, place: usize, wire: usize, times: &mut Times) -> Result<()> {
        loop {
            let client = &mut self.clients[place];
            let workload = &self.workload;
            let came = client.wires[wire].receive(&mut self.buffer, |bytes| workload.whole(bytes))?;
            let Some(body) = came else {
                return Ok(());
            };
            client.silent = client.silent.filter(|(of, _)| *of != wire);
            let Some((id, heard)) = self.workload.hear(client.id, body) else {
                bail!("the application has answered what is no answer");
            };
            let Some(of) = client.under_way.as_mut().filter(|_| client.id == id) else {
                let is_copy = client.last_times == 1 && id == client.id && client.under_way.is_none();
                self.counts.twice += u64::from(is_copy);
                continue;
            };
            match heard {
                // One that was asked before may answer late: the question is elsewhere by now.
                Heard::Elsewhere(_) if wire != client.asked => {}
                Heard::Elsewhere(to) => {
                    of.wait();
                    let to = to.filter(|to| *to < client.wires.len() && !client.is_silent(*to));
                    client.asked = to.unwrap_or_else(|| client.next(wire));
                }
                Heard::Later => of.wait(),
                Heard::Refused => bail!("the application refuses a request"),
                Heard::Ended => {
                    times.ms.push(of.intended.elapsed().as_secs_f64() * 1e3);
                    let (begin, sent) = (of.begin, of.times);
                    client.last_times = sent;
                    client.under_way = None;
                    self.stamp += 1;
                    self.workload.ended(place, begin, self.stamp, body)?;
                    self.free.push_back(place);
                }
            }
        }
    }
}
