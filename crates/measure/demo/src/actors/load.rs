//! Clients of the store: an open loop with a prepared schedule. Times count from the intended sending of a request, so
//! what waits because the store is slow counts, too (no coordinated omission).

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use actor_applications::store::{Answer, Operation, Request};
use anyhow::{Context as _, Result, bail};

/// Clients. Each has one request at a time, and a key of its own.
const CLIENTS: usize = 64;
/// A request without an answer for so long goes to the next replica.
const AGAIN: Duration = Duration::from_millis(500);
/// After an answer that says that too many requests wait.
const BUSY: Duration = Duration::from_millis(5);
/// How long requests may take that have no answer at the end: then they are lost.
const SETTLED: Duration = Duration::from_secs(20);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(200);
/// Bytes of an answer.
const ANSWER_BYTES: usize = 2_048;

/// Whether an error says that nobody is there yet.
fn says_nobody(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
    )
}

/// What clients have counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Requests that were begun.
    pub(super) requests: u64,
    /// Those that have no answer.
    pub(super) lost: u64,
    /// Answers that came a second time to a request that was sent once.
    pub(super) twice: u64,
    /// Values that were not the client's last one.
    pub(super) wrong: u64,
    /// Requests that were sent again.
    pub(super) again: u64,
}

/// The answers of some time.
#[derive(Debug, Default)]
pub(super) struct Window {
    lasted: Duration,
    times_ms: Vec<f64>,
}

impl Window {
    pub(super) fn add(&mut self, other: Window) {
        self.lasted += other.lasted;
        self.times_ms.extend(other.times_ms);
    }

    pub(super) fn per_second(&self) -> f64 {
        self.times_ms.len() as f64 / self.lasted.as_secs_f64().max(1e-9)
    }

    /// The time that this share of the requests took at most; 0 without any.
    pub(super) fn percentile_ms(&self, share: f64) -> f64 {
        let mut times = self.times_ms.clone();
        times.sort_by(f64::total_cmp);
        let place = (share * times.len() as f64).ceil() as usize;
        times.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
    }
}

/// A request under way.
struct UnderWay {
    request: Request,
    intended: Instant,
    sent: Instant,
    /// When it goes out again.
    again: Instant,
    times: u32,
}

struct Client {
    /// What the store knows it by.
    number: u64,
    sockets: Vec<UdpSocket>,
    replica: usize,
    key: Vec<u8>,
    id: u64,
    /// What its last write was answered for.
    value: Option<Vec<u8>>,
    under_way: Option<UnderWay>,
    /// How often the last answered request was sent.
    last_times: u32,
}

/// A number that nobody else has.
fn drawn() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("cannot get random bytes")?;
    Ok(u64::from_ne_bytes(bytes))
}

/// All clients.
pub(super) struct Load {
    clients: Vec<Client>,
    free: VecDeque<usize>,
    /// Intended times of requests for which no client was free.
    due: VecDeque<Instant>,
    next: Option<Instant>,
    counts: Counts,
    draws: u64,
}

impl Load {
    /// Clients of replicas at consecutive ports.
    pub(super) fn new(address: &str, port: u16, replicas: usize) -> Result<Load> {
        let socket = |replica: usize| -> Result<UdpSocket> {
            let socket = UdpSocket::bind("0.0.0.0:0").context("a client has no socket")?;
            socket.connect((address, port + replica as u16))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let client = |number: usize| -> Result<Client> {
            Ok(Client {
                number: drawn()?,
                sockets: (0..replicas).map(socket).collect::<Result<_>>()?,
                replica: 0,
                key: format!("client{number}").into_bytes(),
                id: 0,
                value: None,
                under_way: None,
                last_times: 0,
            })
        };
        Ok(Load {
            clients: (0..CLIENTS).map(client).collect::<Result<_>>()?,
            free: (0..CLIENTS).collect(),
            due: VecDeque::new(),
            next: None,
            counts: Counts::default(),
            draws: 0,
        })
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether the store answers: one request, for some time.
    pub(super) fn is_answered(&mut self) -> Result<bool> {
        if self.counts.requests == 0 {
            self.due.push_back(Instant::now());
        }
        let mut window = Window::default();
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until && window.times_ms.is_empty() {
            self.turn(&mut window)?;
            std::thread::sleep(PAUSE);
        }
        Ok(!window.times_ms.is_empty())
    }

    /// Requests at this rate, for this time.
    pub(super) fn run(&mut self, rate: f64, lasts: Duration) -> Result<Window> {
        let began = Instant::now();
        let gap = Duration::from_secs_f64(1.0 / rate);
        let mut next = self.next.filter(|next| *next + gap > began).unwrap_or(began);
        let mut window = Window::default();
        while began.elapsed() < lasts {
            let now = Instant::now();
            while next <= now {
                self.due.push_back(next);
                next += gap;
            }
            self.turn(&mut window)?;
            std::thread::sleep(PAUSE);
        }
        self.next = Some(next);
        window.lasted = began.elapsed();
        Ok(window)
    }

    /// Waits for all answers. What has none then is lost.
    pub(super) fn settle(&mut self) -> Result<()> {
        let began = Instant::now();
        let mut window = Window::default();
        while began.elapsed() < SETTLED && (!self.due.is_empty() || self.free.len() < CLIENTS) {
            self.turn(&mut window)?;
            std::thread::sleep(PAUSE);
        }
        // A second answer may come late.
        let late = Instant::now() + Duration::from_millis(200);
        while Instant::now() < late {
            self.turn(&mut window)?;
            std::thread::sleep(PAUSE);
        }
        self.counts.lost = (CLIENTS - self.free.len() + self.due.len()) as u64;
        Ok(())
    }

    fn turn(&mut self, window: &mut Window) -> Result<()> {
        for number in 0..self.clients.len() {
            self.receive(number, window)?;
        }
        while let Some(intended) = self.due.front().copied()
            && let Some(number) = self.free.pop_front()
        {
            self.due.pop_front();
            self.draws = self.draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let client = &mut self.clients[number];
            client.begin(intended, (self.draws >> 33) & 1 == 0)?;
            self.counts.requests += 1;
        }
        let now = Instant::now();
        for client in &mut self.clients {
            let Some(of) = &client.under_way else { continue };
            if now < of.again {
                continue;
            }
            // One that was told so waits; one that has heard nothing asks another replica.
            if now.duration_since(of.sent) >= AGAIN {
                client.replica = (client.replica + 1) % client.sockets.len();
            }
            self.counts.again += 1;
            client.send()?;
        }
        Ok(())
    }

    fn receive(&mut self, number: usize, window: &mut Window) -> Result<()> {
        let client = &mut self.clients[number];
        let mut buffer = [0; ANSWER_BYTES];
        for socket in 0..client.sockets.len() {
            loop {
                let length = match client.sockets[socket].recv(&mut buffer) {
                    Ok(length) => length,
                    Err(error) if says_nobody(error.kind()) => continue,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error).context("a client cannot receive"),
                };
                let Some((id, answer)) = Answer::decode(&buffer[..length]) else {
                    bail!("the store has answered what is no answer");
                };
                let Some(of) = client.under_way.as_mut().filter(|of| of.request.id == id) else {
                    if client.last_times == 1 && id == client.id && client.under_way.is_none() {
                        self.counts.twice += 1;
                    }
                    continue;
                };
                match answer {
                    Answer::NotLeader(leader) => {
                        // One that says nothing new is asked again soon, and not at once.
                        if let Some(leader) = leader.map(usize::from).filter(|of| *of < client.sockets.len())
                        {
                            client.replica = leader;
                        } else {
                            client.replica = (socket + 1) % client.sockets.len();
                        }
                        of.again = Instant::now() + BUSY;
                    }
                    Answer::Busy => of.again = Instant::now() + BUSY,
                    Answer::Refused => bail!("the store refuses a request"),
                    Answer::Written | Answer::Found(_) | Answer::NotFound => {
                        window.times_ms.push(of.intended.elapsed().as_secs_f64() * 1e3);
                        let is_right = match (&of.request.operation, &answer) {
                            (Operation::Put(value), Answer::Written) => {
                                client.value = Some(value.clone());
                                true
                            }
                            (Operation::Get, Answer::Found(value)) => Some(value) == client.value.as_ref(),
                            (Operation::Get, Answer::NotFound) => client.value.is_none(),
                            _ => false,
                        };
                        self.counts.wrong += u64::from(!is_right);
                        client.last_times = of.times;
                        client.under_way = None;
                        self.free.push_back(number);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Client {
    fn begin(&mut self, intended: Instant, writes: bool) -> Result<()> {
        self.id += 1;
        let operation = match writes {
            true => Operation::Put(format!("value {}", self.id).into_bytes()),
            false => Operation::Get,
        };
        let now = Instant::now();
        self.under_way = Some(UnderWay {
            request: Request {
                client: self.number,
                id: self.id,
                key: self.key.clone(),
                operation,
            },
            intended,
            sent: now,
            again: now + AGAIN,
            times: 0,
        });
        self.send()
    }

    fn send(&mut self) -> Result<()> {
        let Some(of) = &mut self.under_way else {
            return Ok(());
        };
        let body = of.request.encode().context("a request is too long")?;
        (of.sent, of.again) = (Instant::now(), Instant::now() + AGAIN);
        of.times += 1;
        match self.sockets[self.replica].send(&body) {
            // The next attempt comes in time.
            Err(error) if says_nobody(error.kind()) || error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error).context("a client cannot send"),
            Ok(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_all_times() {
        let mut window = Window {
            lasted: Duration::from_secs(1),
            times_ms: (1..=50).map(f64::from).collect(),
        };
        window.add(Window {
            lasted: Duration::from_secs(1),
            times_ms: (51..=100).map(f64::from).collect(),
        });
        assert_eq!(
            (window.percentile_ms(0.5), window.percentile_ms(0.99)),
            (50.0, 99.0)
        );
        assert_eq!(window.per_second(), 50.0);
        assert_eq!(Window::default().percentile_ms(0.99), 0.0);
    }
}
