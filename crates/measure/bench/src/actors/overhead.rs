//! Experiment 23 (iPipe, section 5.5): a key-value store on the host alone, with the runtime and without. Both have the
//! same network, which is datagrams over loopback behind epoll, and the same client; what is compared is the CPU time
//! of the thread that serves.

use std::collections::HashMap;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use actor_objects::{Limits, ObjectId, Objects};
use actor_runtime::{
    Actor, ActorId, Address, Context, CoreId, Idle, Message, Outside, PolicyName, Progress, Queues,
    Registration, Runtime, Settings,
};
use anyhow::{Context as _, Result, anyhow, ensure};
use model::{Nanos, Random};
use rustix::event::epoll;
use rustix::event::{Timespec, epoll::EventFlags};
use rustix::thread::CpuSet;

use super::{Outcome, Row};
use crate::contestant::median;

const NOTE: &str = "One store, 95 % reads, keys drawn by Zipf 0.99, packets of 512 bytes, 64 requests on their way. With the \
    runtime its values are objects, and requests are messages; without, they are in a hash map, and a loop serves them. \
    iPipe compares its replicated store, whose network is DPDK: a cheaper network than the kernel's makes the runtime's \
    part larger.";

const KEYS: usize = 10_000;
const KEY_BYTES: usize = 16;
const PACKET_BYTES: usize = 512;
const ZIPF: f64 = 0.99;
const READS: f64 = 0.95;
/// Requests that the client has on their way.
const WINDOW: u64 = 64;
/// Datagrams taken at a time.
const BURST: usize = 32;
const ROUNDS: usize = 7;
const REQUESTS: u64 = 100_000;
const GET: u8 = 0;
const PUT: u8 = 1;
/// iPipe's figure is 1.12 for a leader.
const LIMIT: f64 = 1.12;

type Key = [u8; KEY_BYTES];

/// Measures it.
pub(super) fn measure() -> Result<Outcome> {
    let (mut ratios, mut with_ns, mut without_ns) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        let without = serve(false, round, REQUESTS)?;
        let with = serve(true, round, REQUESTS)?;
        ratios.push(with / without);
        with_ns.push(with);
        without_ns.push(without);
    }
    let unit = "ns of CPU time per request";
    let rows = vec![
        Row::plain("store without the runtime", median(without_ns), unit),
        Row::plain("store with the runtime", median(with_ns), unit),
        Row::plain("with / without", median(ratios), "ratio of CPU time")
            .at_most(LIMIT)
            .paper("1.12 (leader), 1.11 (follower)"),
    ];
    Ok(Outcome {
        rows,
        note: NOTE.into(),
    })
}

/// A request, and an answer: the operation, the key and the value.
fn split(packet: &[u8]) -> Option<(u8, Key, &[u8])> {
    let (operation, rest) = packet.split_first()?;
    let (key, value) = rest.split_first_chunk()?;
    Some((*operation, *key, value))
}

fn key(number: usize) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&(number as u64).to_le_bytes());
    key[8..].copy_from_slice(b"-the-key");
    key
}

fn value(number: usize) -> Vec<u8> {
    vec![number as u8; PACKET_BYTES - 1 - KEY_BYTES]
}

/// The server's end: a socket, and epoll.
struct Net {
    socket: UdpSocket,
    epoll: OwnedFd,
}

impl Net {
    fn new() -> Result<Net> {
        let socket = UdpSocket::bind("127.0.0.1:0").context("the store's socket")?;
        socket.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(0), EventFlags::IN)?;
        Ok(Net { socket, epoll })
    }

    /// Waits for a datagram, but not for long: the end may have come.
    fn wait(&self) -> Result<()> {
        let mut events = Vec::with_capacity(1);
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&timeout),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A datagram, if there is one.
    fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        self.socket.recv(buffer).ok()
    }

    fn send(&self, packet: &[u8]) {
        // What the socket does not take the client misses, and says so.
        let _refused = self.socket.send(packet);
    }
}

/// Serves requests with or without the runtime; returns nanoseconds of CPU time for each.
fn serve(with_runtime: bool, seed: u64, requests: u64) -> Result<f64> {
    let net = Net::new()?;
    let client = Client::start(&net, seed, requests)?;
    net.socket.connect(client.address)?;
    pin(0);
    let began;
    let took;
    if with_runtime {
        let net = Arc::new(net);
        let (runtime, mut core) = store(&net)?;
        client.begin();
        began = clock::thread_cpu();
        while !client.has_ended() {
            if core.turn() == 0 {
                net.wait()?;
            }
        }
        took = clock::thread_cpu().since(began);
        let served = runtime.actors().iter().map(|row| row.counts.served).sum::<u64>();
        ensure!(
            served == requests,
            "the actor served {served} of {requests} requests"
        );
    } else {
        let mut map: HashMap<Key, Vec<u8>> = (0..KEYS).map(|n| (key(n), value(n))).collect();
        let mut buffer = [0; 2 * PACKET_BYTES];
        client.begin();
        began = clock::thread_cpu();
        while !client.has_ended() {
            let mut burst = 0;
            while burst < BURST
                && let Some(bytes) = net.receive(&mut buffer)
            {
                burst += 1;
                let Some((operation, key, given)) = split(&buffer[..bytes]) else {
                    continue;
                };
                let bytes = match map.get_mut(&key) {
                    Some(value) if operation == GET => {
                        let end = 1 + KEY_BYTES + value.len();
                        buffer[1 + KEY_BYTES..end].copy_from_slice(value);
                        end
                    }
                    Some(value) if operation == PUT && value.len() == given.len() => {
                        value.copy_from_slice(given);
                        1 + KEY_BYTES
                    }
                    _ => 0,
                };
                net.send(&buffer[..bytes]);
            }
            if burst == 0 {
                net.wait()?;
            }
        }
        took = clock::thread_cpu().since(began);
    }
    client.end()?;
    Ok(took.0 as f64 / requests as f64)
}

/// A runtime with the store, and its core.
fn store(net: &Arc<Net>) -> Result<(Runtime, actor_runtime::Core)> {
    let settings = Settings {
        policy: PolicyName::Hybrid,
        queues: Queues::Shared,
        cores: 1,
        actors_limit: 1,
        quantum: Nanos::from_micros(40),
        tail_threshold: Nanos::from_micros(50),
        hysteresis: 0.1,
        idle: Idle::Poll,
    };
    let datagrams = Datagrams {
        net: Arc::clone(net),
        spare: Vec::new(),
    };
    let runtime = Runtime::new(&settings, Box::new(datagrams));
    let (_file, objects) = Objects::create(Limits {
        bytes: (2 * KEYS * PACKET_BYTES) as u32,
        objects: 2 * KEYS as u32,
    })?;
    let kv = Registration::new("kv", Box::<Kv>::default()).objects(objects);
    runtime.register(ActorId(0), kv)?;
    let core = runtime.core(CoreId(0));
    Ok((runtime, core))
}

/// Requests as messages for the store.
struct Datagrams {
    net: Arc<Net>,
    /// Bodies of answers, for the next requests.
    spare: Vec<Vec<u8>>,
}

impl Outside for Datagrams {
    fn poll(&mut self, now: Nanos, into: &mut Vec<Message>) {
        for _ in 0..BURST {
            let mut body = self.spare.pop().unwrap_or_default();
            body.resize(PACKET_BYTES, 0);
            let Some(bytes) = self.net.receive(&mut body) else {
                self.spare.push(body);
                return;
            };
            body.truncate(bytes);
            let to = Address::Actor(ActorId(0));
            into.push(Message::new(to, Address::Outside(0), 0, body, now));
        }
    }

    fn send(&mut self, messages: &mut Vec<Message>) {
        for message in messages.drain(..) {
            self.net.send(&message.body);
            self.spare.push(message.body);
        }
    }
}

/// The store: each key and its value are an object. The index over them is made from the objects.
#[derive(Default)]
struct Kv {
    index: HashMap<Key, ObjectId>,
}

impl Kv {
    fn answer(&mut self, body: &mut Vec<u8>, objects: &mut Objects) -> Option<()> {
        let (operation, key, given) = split(body)?;
        let id = *self.index.get(&key)?;
        match operation {
            GET => {
                let value = objects.get(id).ok()?.get(KEY_BYTES..)?;
                body.truncate(1 + KEY_BYTES);
                body.extend(value);
            }
            PUT => {
                objects.write(id, KEY_BYTES, given).ok()?;
                body.truncate(1 + KEY_BYTES);
            }
            _ => return None,
        }
        Some(())
    }
}

impl Actor for Kv {
    fn init(&mut self, context: &mut Context<'_>) {
        let Some(objects) = context.objects() else { return };
        for number in 0..KEYS {
            let (key, value) = (key(number), value(number));
            // A region without room leaves the key out; the client then has a wrong answer.
            if let Ok(id) = objects.allocate(KEY_BYTES + value.len())
                && objects.write(id, 0, &key).is_ok()
                && objects.write(id, KEY_BYTES, &value).is_ok()
            {
                self.index.insert(key, id);
            }
        }
    }

    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        let mut body = std::mem::take(&mut message.body);
        let answer = (context.objects()).and_then(|objects| self.answer(&mut body, objects));
        if answer.is_none() {
            body.clear();
        }
        context.send(message.from, message.kind, body);
        Progress::Done
    }
}

/// The client: a thread on the other CPU.
struct Client {
    address: std::net::SocketAddr,
    may_begin: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Client {
    fn start(net: &Net, seed: u64, requests: u64) -> Result<Client> {
        let socket = UdpSocket::bind("127.0.0.1:0").context("the client's socket")?;
        socket.connect(net.socket.local_addr()?)?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        let (may_begin, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let address = socket.local_addr()?;
        let thread = std::thread::spawn({
            let (may_begin, ended) = (Arc::clone(&may_begin), Arc::clone(&ended));
            move || {
                pin(1);
                while !may_begin.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                let result = request(&socket, seed, requests);
                ended.store(true, Ordering::Release);
                result
            }
        });
        Ok(Client {
            address,
            may_begin,
            ended,
            thread,
        })
    }

    fn begin(&self) {
        self.may_begin.store(true, Ordering::Release);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn end(self) -> Result<()> {
        self.thread.join().map_err(|_| anyhow!("the client panicked"))?
    }
}

/// Sends requests, so many at a time, and checks the answers: a read gives a value of its key's length, which is of one
/// byte.
fn request(socket: &UdpSocket, seed: u64, requests: u64) -> Result<()> {
    let mut random = Random::new(seed);
    let shares: Vec<f64> = (1..=KEYS)
        .scan(0.0, |sum, rank| {
            *sum += (rank as f64).powf(-ZIPF);
            Some(*sum)
        })
        .collect();
    let all = shares.last().copied().unwrap_or(1.0);
    let (mut sent, mut answered) = (0, 0);
    let mut buffer = [0; 2 * PACKET_BYTES];
    while answered < requests {
        while sent < requests && sent - answered < WINDOW {
            let drawn = random.unit() * all;
            let number = shares.partition_point(|share| *share < drawn).min(KEYS - 1);
            let is_read = random.unit() < READS;
            let mut packet = vec![if is_read { GET } else { PUT }];
            packet.extend(key(number));
            if !is_read {
                packet.extend(value(number));
            }
            socket.send(&packet)?;
            sent += 1;
        }
        let bytes = socket.recv(&mut buffer).context("an answer is missing")?;
        let (operation, key, value) = split(&buffer[..bytes]).context("an answer is none")?;
        let is_right = if operation == GET {
            value.len() == PACKET_BYTES - 1 - KEY_BYTES && value.iter().all(|byte| *byte == key[0])
        } else {
            value.is_empty()
        };
        ensure!(is_right, "a wrong answer for {key:?}");
        answered += 1;
    }
    Ok(())
}

/// Binds this thread to a CPU, where there are so many.
fn pin(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    let _shared = rustix::thread::sched_setaffinity(None, &cpus);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_answered_rightly_with_the_runtime_and_without() {
        for with_runtime in [false, true] {
            let ns = serve(with_runtime, 3, 2_000).unwrap();
            assert!(ns > 0.0, "{with_runtime}: {ns}");
        }
    }
}
