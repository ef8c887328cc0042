//! A hostile peer, or one that is no switch, listens at the bridge's socket: memory stays bounded, only the
//! connection ends, and the driver connects again.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::{FlowSetup, Nanos, ServiceId, Slot};
use openflow::{
    Event, Features, Field, Limits, Match, Message, PacketIn, PacketInReason, Session, Side as End,
};
use openflow_switch::{InstanceTerms, Part, ServiceRules, Settings, Side, Spread, Steering};
use openvswitch::{Endpoint, Reconnecting, Turned};
use packet::build::Frame;
use scheduling::Scheduler;

const LIMIT: Duration = Duration::from_secs(60);
/// What a flood comes to, in bytes, and by how much memory may grow meanwhile: one turn's reading and its messages.
const FLOOD_BYTES: u64 = 64 << 20;
const GROWTH_LIMIT_BYTES: u64 = 32 << 20;
/// Flows and rules that are known at most.
const FLOWS: usize = 1_000;

/// What is to be said next, when that was received.
type Speak = Box<dyn FnMut(&[u8]) -> Option<Vec<u8>>>;

/// Listens, and treats every client in the same way.
struct Hostile {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Hostile {
    /// `speak` is asked again and again for what is to be sent next, with what was received; nothing ends the
    /// connection.
    fn start(path: &Path, speak: impl Fn() -> Speak + Send + 'static) -> Hostile {
        let _none = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => serve(stream, speak(), &stopped, &counted),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Hostile {
            stop,
            sent,
            thread: Some(thread),
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(mut stream: UnixStream, mut speak: Speak, stopped: &AtomicBool, sent: &AtomicU64) {
    let patience = Some(Duration::from_millis(1));
    stream.set_read_timeout(patience).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut buffer = [0; 4096];
    while !stopped.load(Ordering::Relaxed) {
        let is_nothing = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
        let read = match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) if is_nothing(error.kind()) => 0,
            Err(_) => return,
        };
        let Some(bytes) = speak(&buffer[..read]) else {
            continue;
        };
        let mut rest = bytes.as_slice();
        while !rest.is_empty() && !stopped.load(Ordering::Relaxed) {
            match stream.write(rest) {
                Ok(written) => {
                    sent.fetch_add(written as u64, Ordering::Relaxed);
                    rest = &rest[written..];
                }
                Err(error) if is_nothing(error.kind()) => {}
                Err(_) => return,
            }
        }
    }
}

/// What inco has at its end.
struct Controller {
    began: Instant,
    connection: Reconnecting,
    steering: Steering,
    turned: Vec<Turned>,
    downs: u32,
    garbled: u64,
    packets: u64,
}

impl Controller {
    fn new(path: &Path, setup: FlowSetup) -> Controller {
        let service = ServiceRules {
            id: ServiceId(0),
            sides: vec![Side {
                uplink: 0,
                port: 1,
                data_port: 0,
                is_answering: false,
                fields: vec![Field::eth_type(0x0800)],
            }],
            spread: Spread {
                parts: vec![(Part::SourceAddress, 4)],
            },
            uplinks: vec![1],
            fit: 1.0,
        };
        let settings = Settings {
            setup,
            rule_limit: FLOWS,
            flow_limit: FLOWS,
            ..Settings::default()
        };
        let scheduler = Scheduler::from_name("round-robin").unwrap();
        let mut steering = Steering::new(settings, vec![(service, scheduler)], 9);
        steering.attach(Slot(0), ServiceId(0), vec![100]);
        steering.set_terms(
            Slot(0),
            InstanceTerms {
                takes_flows: true,
                capacity: 1e6,
                ..InstanceTerms::default()
            },
        );
        let limits = Limits {
            quiet_ns: 50_000_000,
            silent_ns: 200_000_000,
            ..Limits::default()
        };
        Controller {
            began: Instant::now(),
            connection: Reconnecting::new(Endpoint::Unix(path.to_owned()), limits),
            steering,
            turned: Vec::new(),
            downs: 0,
            garbled: 0,
            packets: 0,
        }
    }

    /// As the driver does it, until it is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&Controller) -> bool) {
        let since = Instant::now();
        while !is_so(self) {
            assert!(
                since.elapsed() < LIMIT,
                "not within {LIMIT:?}: {what}; {} downs",
                self.downs
            );
            let now = Nanos(self.began.elapsed().as_nanos() as u64);
            self.connection.turn(now.0, &mut self.turned);
            for turned in self.turned.drain(..) {
                match turned {
                    Turned::Up(_) => self.steering.connected(),
                    Turned::Said(Event::Message { xid, message }) => {
                        self.packets += u64::from(matches!(message, Message::PacketIn(_)));
                        self.steering.message(xid, &message, now);
                    }
                    Turned::Said(Event::Garbled { .. }) => self.garbled += 1,
                    Turned::Said(Event::Agreed(_)) => {}
                    Turned::Down(_) => {
                        self.downs += 1;
                        self.steering.disconnected();
                    }
                }
            }
            self.steering.tick(now);
            while self.steering.next_injection().is_some() {}
            if let Some(connection) = self.connection.connection() {
                self.steering.send(|message| connection.send(message).ok());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Memory of this process that is in use, in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Bytes of which no eight are the same for long.
fn noise(seed: u64) -> Vec<u8> {
    let mut chance = seed;
    let words = (0..512).map(|_| {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (chance >> 24).to_be_bytes()
    });
    words.flatten().collect()
}

/// A friendly switch up to here: versions, and who it is.
fn greeting() -> Session {
    Session::new(End::Switch, Limits::default(), 0)
}

fn answer(session: &mut Session, received: &[u8]) -> Vec<u8> {
    session.receive(received, 0);
    while let Ok(Some(event)) = session.next_event() {
        if let Event::Message {
            xid,
            message: Message::FeaturesRequest,
        } = event
        {
            let features = Features {
                datapath: 1,
                tables: 254,
                ..Features::default()
            };
            session.answer(xid, &Message::FeaturesReply(features)).unwrap();
        }
    }
    take(session)
}

fn take(session: &mut Session) -> Vec<u8> {
    let bytes = session.output().to_vec();
    session.written(bytes.len());
    bytes
}

/// Packets of many flows that the switch claims to have no rule for.
fn packet_ins(session: &mut Session) -> Vec<u8> {
    let mut bytes = Vec::new();
    for flow in 0..4096_u32 {
        let from = SocketAddr::from((Ipv4Addr::from(0x0a00_0000 | flow), 1000));
        let frame = Frame::udp(
            from,
            SocketAddr::from((Ipv4Addr::new(10, 128, 0, 1), 80)),
            &[0; 22],
        )
        .unwrap();
        session
            .send(&Message::PacketIn(PacketIn {
                total_bytes: 64,
                reason: PacketInReason::NoMatch,
                table: 0,
                cookie: 7,
                context: Match::new([Field::in_port(1)]),
                data: frame.to_vec().unwrap(),
            }))
            .unwrap();
        bytes.extend(take(session));
    }
    bytes
}

/// One after the other: they are measured by the memory of the process.
#[test]
fn memory_is_bounded_whatever_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("switch");

    // Bytes without meaning, from the first one on.
    let hostile = Hostile::start(&path, || {
        let mut seed = 0;
        Box::new(move |_| {
            seed += 1;
            Some(noise(seed))
        })
    });
    let mut controller = Controller::new(&path, FlowSetup::Proactive);
    controller.until("it gives up again and again", |controller| controller.downs >= 5);
    assert!(hostile.sent.load(Ordering::Relaxed) > 0);
    drop(hostile);

    // A message that is announced as long as one can be, and never comes.
    let hostile = Hostile::start(&path, || {
        let mut is_said = false;
        Box::new(move |_| {
            (!std::mem::replace(&mut is_said, true)).then(|| vec![6, 0, 0xff, 0xff, 0, 0, 0, 1])
        })
    });
    let mut controller = Controller::new(&path, FlowSetup::Proactive);
    controller.until("it does not wait for ever", |controller| controller.downs >= 2);
    drop(hostile);

    // Messages whose frames are right and whose contents are not.
    let hostile = Hostile::start(&path, || {
        let (mut session, mut seed) = (greeting(), 0);
        Box::new(move |received| {
            let mut bytes = answer(&mut session, received);
            seed += 1;
            let content = noise(seed);
            for (kind, content) in (10_u8..30).zip(content.chunks(40)) {
                bytes.extend([6, kind, 0, 48, 0, 0, 0, 1]);
                bytes.extend_from_slice(content);
            }
            Some(bytes)
        })
    });
    let mut controller = Controller::new(&path, FlowSetup::Proactive);
    controller.until("what cannot be read is counted", |controller| {
        controller.garbled > 1_000
    });
    drop(hostile);

    // Packets without end, and nothing that we say is carried out.
    for setup in [FlowSetup::Proactive, FlowSetup::Reactive] {
        let hostile = Hostile::start(&path, || {
            let mut session = greeting();
            let mut flood: Option<Vec<u8>> = None;
            Box::new(move |received| {
                let answer = answer(&mut session, received);
                if !answer.is_empty() {
                    return Some(answer);
                }
                session.version()?;
                let flood = flood.get_or_insert_with(|| packet_ins(&mut session));
                Some(flood.clone())
            })
        });
        let mut controller = Controller::new(&path, setup);
        controller.until("the flood has begun", |controller| controller.packets > 100_000);
        let (before, began) = (resident_bytes(), hostile.sent.load(Ordering::Relaxed));
        let flood = || hostile.sent.load(Ordering::Relaxed) - began;
        controller.until("it has gone on", |_| flood() > FLOOD_BYTES);
        let grown = resident_bytes().saturating_sub(before);
        let figures = controller.steering.figures();
        println!(
            "{setup:?}: {} MiB of packets, memory grew by {} KiB",
            flood() >> 20,
            grown >> 10
        );
        assert!(
            grown < GROWTH_LIMIT_BYTES,
            "{setup:?}: {grown} bytes more; {figures:?}"
        );
        assert!(controller.steering.flow_count() <= FLOWS, "{figures:?}");
        assert!(figures.queued < 20_000, "{figures:?}");
    }
}
