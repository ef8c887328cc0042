//! The network of a bed: a generator on the uplink, for the whole run, and what it observes.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use model::Random;
use traffic::{
    Control, FlowNow, Generator, Interval, LengthSource, MemifPort, NamedSize, Phase, Port, Profile,
    Protocol, Rate, Size, Span,
};

use crate::garbage::random_bytes;
use crate::web::Web;

/// Interval of the generator's observations: the resolution of outages.
const INTERVAL: Span = Span::from_millis(20);
/// Maximum time until the uplink accepts the connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Time for which a packet waits for a free slot of the uplink: longer than any fault holds up the switch.
const UPLINK_WAIT: Span = Span::from_millis(20_000);
/// Phases of flows that last, at the beginning of the profile.
const LASTING_PHASES: u16 = 6;
/// Packets per second of a lasting flow.
const FLOW_PPS: f64 = 20.0;
/// New short flows per second, of UDP and of TCP, and packets of each.
const SHORT_FLOWS_PER_S: [f64; 2] = [10.0, 5.0];
const SHORT_FLOW_PACKETS: u32 = 8;
/// Frames of garbage that are sent at once.
const GARBAGE_BURST: u64 = 16;

/// What the generator is asked to do to its link, and what it tells of it.
#[derive(Debug, Default)]
struct Orders {
    /// Leave the peer, for this many ms.
    away_ms: AtomicU64,
    /// Frames of garbage to send.
    garbage: AtomicU64,
    /// Slots that the peer had not emptied a moment ago.
    untaken: AtomicU64,
}

/// The uplink's peer. It can leave, and send garbage.
struct NetworkPort {
    memif: MemifPort,
    orders: Arc<Orders>,
    random: Random,
    away_until: Option<Instant>,
}

impl NetworkPort {
    /// Sends random bytes.
    fn send_garbage(&mut self) {
        let wanted = self.orders.garbage.load(Ordering::Relaxed).min(GARBAGE_BURST);
        for _ in 0..wanted {
            if !self.memif.push(&random_bytes(&mut self.random)) {
                break;
            }
            self.orders.garbage.fetch_sub(1, Ordering::Relaxed);
        }
        if wanted > 0 {
            self.memif.flush();
        }
    }
}

impl Port for NetworkPort {
    fn frame_bytes_limit(&self) -> usize {
        self.memif.frame_bytes_limit()
    }
    fn free(&mut self) -> usize {
        self.memif.free()
    }
    fn slots(&self, frame_bytes: usize) -> usize {
        self.memif.slots(frame_bytes)
    }
    fn push(&mut self, frame: &[u8]) -> bool {
        self.memif.push(frame)
    }
    fn flush(&mut self) {
        self.memif.flush();
    }
    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.memif.receive(buffer)
    }
    fn release(&mut self) {
        self.memif.release();
    }
    fn arm(&mut self) -> bool {
        self.memif.arm()
    }
    fn disarm(&mut self) {
        self.memif.disarm();
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.memif.wake_fd()
    }
    fn is_away(&self) -> bool {
        self.memif.is_away()
    }
    fn maintain(&mut self) {
        let away_ms = self.orders.away_ms.swap(0, Ordering::Relaxed);
        if away_ms > 0 {
            self.memif.disconnect();
            self.away_until = Some(Instant::now() + Duration::from_millis(away_ms));
        }
        if self.away_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.away_until = None;
        self.memif.maintain();
        self.send_garbage();
        let untaken = self.memif.untaken();
        self.orders.untaken.store(untaken.into(), Ordering::Relaxed);
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
struct Seen {
    /// Number of the newest interval.
    serial: u64,
    interval: Interval,
    outages: Outages,
}

/// How long flows waited for a packet to return.
#[derive(Debug, Default)]
struct Outages {
    /// By source and index: packets returned, packets given up, and since when one is missing.
    flows: HashMap<(u16, u32), (u64, u64, Option<f64>)>,
    longest_s: f64,
}

impl Outages {
    fn observe(&mut self, interval: &Interval) {
        // A packet that returned had waited; one that is lost is known by its flow's next one. A short flow may have
        // no next one.
        self.longest_s = self.longest_s.max(interval.latency_us.max / 1e6);
        for flow in lasting(interval) {
            let (returned, given_up, waits_since) = self
                .flows
                .entry((flow.source, flow.index))
                .or_insert((0, 0, None));
            if flow.returned_packets > *returned {
                *returned = flow.returned_packets;
                *waits_since = None;
            }
            if flow.offered_packets > *returned + *given_up {
                let since = *waits_since.get_or_insert(interval.at_s);
                self.longest_s = self.longest_s.max(interval.at_s - since);
            }
        }
    }

    /// Begins anew, at rest: what is missing now does not return any more.
    fn begin(&mut self, interval: &Interval) {
        self.longest_s = 0.0;
        for flow in &interval.flows {
            let missing = flow.offered_packets - flow.returned_packets;
            self.flows
                .insert((flow.source, flow.index), (flow.returned_packets, missing, None));
        }
    }
}

/// Packets that had returned of each flow that lasts, at some moment.
pub(crate) struct Lasting(HashMap<(u16, u32), u64>);

impl Lasting {
    pub(crate) fn of(interval: &Interval) -> Lasting {
        let flows = lasting(interval);
        Lasting(
            flows
                .map(|flow| ((flow.source, flow.index), flow.returned_packets))
                .collect(),
        )
    }

    /// How many flows have had no packet since.
    pub(crate) fn waiting(&self, interval: &Interval) -> usize {
        let has_none = |flow: &&FlowNow| {
            let before = self.0.get(&(flow.source, flow.index)).copied();
            flow.returned_packets <= before.unwrap_or(0)
        };
        lasting(interval).filter(has_none).count()
    }
}

fn lasting(interval: &Interval) -> impl Iterator<Item = &FlowNow> {
    interval.flows.iter().filter(|flow| flow.source < LASTING_PHASES)
}

/// What is before the uplink of a bed: a generator of packets, or clients of web servers.
pub(crate) enum Network {
    Packets(Box<Packets>),
    Web(Box<Web>),
}

impl Network {
    /// For the follower of events.
    pub(crate) fn control(&self) -> Arc<Control> {
        match self {
            Network::Packets(of) => Arc::clone(&of.control),
            // Clients see by themselves whether their connection goes on.
            Network::Web(_) => Arc::new(Control::new()),
        }
    }

    /// The newest observation and its number.
    pub(crate) fn newest(&self) -> (u64, Interval) {
        match self {
            Network::Packets(of) => of.newest(),
            Network::Web(of) => of.newest(),
        }
    }

    /// Pauses sending, or continues.
    pub(crate) fn hold(&self, hold: bool) {
        match self {
            Network::Packets(of) => of.control.hold(hold),
            Network::Web(of) => of.hold(hold),
        }
    }

    /// Whether the peer has taken everything that was sent: a switch that waits for a CPU takes it later.
    pub(crate) fn is_taken(&self) -> bool {
        match self {
            Network::Packets(of) => of.is_taken(),
            Network::Web(of) => of.is_taken(),
        }
    }

    /// At rest: outages are measured anew.
    pub(crate) fn begin_outages(&self) {
        match self {
            Network::Packets(of) => of.begin_outages(),
            Network::Web(of) => of.begin_outages(),
        }
    }

    /// The longest time for which a flow waited for a packet, or a client for an answer, in ms.
    pub(crate) fn longest_outage_ms(&self) -> u64 {
        match self {
            Network::Packets(of) => of.longest_outage_ms(),
            Network::Web(of) => of.longest_outage_ms(),
        }
    }

    /// Why requests have failed since the last rest; nothing where packets are sent.
    pub(crate) fn causes(&self) -> Vec<String> {
        match self {
            Network::Packets(_) => Vec::new(),
            Network::Web(of) => of.causes(),
        }
    }

    /// The network leaves, and connects again after `away`.
    ///
    /// # Errors
    /// The interface cannot be set.
    pub(crate) fn flap(&self, away: Duration) -> Result<()> {
        match self {
            Network::Packets(of) => {
                of.flap(away);
                Ok(())
            }
            Network::Web(of) => of.flap(away),
        }
    }

    /// Sends that many frames of garbage among the others: random bytes, or beside web clients all kinds.
    ///
    /// # Errors
    /// They cannot be sent.
    pub(crate) fn send_garbage(&self, frames: u64, random: Random) -> Result<()> {
        match self {
            Network::Packets(of) => {
                of.orders.garbage.fetch_add(frames, Ordering::Relaxed);
                Ok(())
            }
            Network::Web(of) => of.send_garbage(frames, random),
        }
    }

    /// Returns an error if sending has ended by itself.
    ///
    /// # Errors
    /// It has.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Network::Packets(of) => of.check(),
            Network::Web(of) => of.check(),
        }
    }
}

/// A running generator.
pub(crate) struct Packets {
    control: Arc<Control>,
    orders: Arc<Orders>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<Result<traffic::Report, traffic::Error>>>,
}

impl Packets {
    /// Connects to the uplink on `socket` and begins to send, for at most `duration`.
    ///
    /// # Errors
    /// The uplink does not answer, or there is no memory for so many flows.
    pub(crate) fn start(socket: &Path, seed: u64, duration: Duration) -> Result<Packets> {
        let generator = Generator::new(profile(seed, duration))?;
        let memif = MemifPort::connect(socket, 0, CONNECT_LIMIT)
            .with_context(|| format!("the uplink does not answer on {}", socket.display()))?;
        let (control, orders) = (Arc::new(Control::new()), Arc::new(Orders::default()));
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut port = [NetworkPort {
            memif,
            orders: Arc::clone(&orders),
            random: Random::new(seed),
            away_until: None,
        }];
        let thread = std::thread::Builder::new()
            .name("soak-traffic".to_owned())
            .spawn({
                let (control, seen) = (Arc::clone(&control), Arc::clone(&seen));
                move || {
                    generator.run(&mut port, &control, |interval| {
                        let mut seen = lock(&seen);
                        seen.serial += 1;
                        seen.outages.observe(interval);
                        seen.interval = interval.clone();
                    })
                }
            })
            .context("cannot start the thread that sends")?;
        Ok(Packets {
            control,
            orders,
            seen,
            thread: Some(thread),
        })
    }

    /// The newest observation and its number.
    pub(crate) fn newest(&self) -> (u64, Interval) {
        let seen = lock(&self.seen);
        (seen.serial, seen.interval.clone())
    }

    /// Whether the peer has taken everything that was sent: a switch that waits for a CPU takes it later.
    pub(crate) fn is_taken(&self) -> bool {
        self.orders.untaken.load(Ordering::Relaxed) == 0
    }

    /// At rest: outages are measured anew.
    pub(crate) fn begin_outages(&self) {
        let mut seen = lock(&self.seen);
        let interval = seen.interval.clone();
        seen.outages.begin(&interval);
    }

    /// The longest time for which a flow waited for a packet, in ms.
    pub(crate) fn longest_outage_ms(&self) -> u64 {
        (lock(&self.seen).outages.longest_s * 1e3).round() as u64
    }

    /// The network leaves, and connects again after `away`.
    pub(crate) fn flap(&self, away: Duration) {
        let ms = u64::try_from(away.as_millis()).unwrap_or(u64::MAX).max(1);
        self.orders.away_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns an error if sending has ended by itself.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.thread {
            Some(thread) if !thread.is_finished() => Ok(()),
            _ => Err(anyhow!("the generator has ended by itself")),
        }
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.thread.take() {
            let _report = thread.join();
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All kinds of traffic: both IP versions, UDP and TCP, VLAN tags, small and large frames, flows that last and flows
/// of a few packets. The lasting ones come first: the generator lists the first flows of a profile.
fn profile(seed: u64, duration: Duration) -> Profile {
    let lasting = |flows: u32, number: u8| Phase {
        duration: Span(duration),
        flows,
        rate_per_flow: Some(Rate(FLOW_PPS)),
        size: Size::Named(NamedSize::Imix),
        src: IpAddr::V4(Ipv4Addr::new(10, number, 0, 1)),
        dst_port: 4000 + u16::from(number),
        ..Phase::default()
    };
    let v6 = |of: Phase, number: u16| Phase {
        src: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, number, 0, 0, 0, 0, 1)),
        dst: IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1)),
        ..of
    };
    let short = |number: u8, per_second: f64, protocol| Phase {
        arrivals: Some(per_second),
        lengths: Some(LengthSource::Packets(SHORT_FLOW_PACKETS)),
        protocol,
        ..lasting((duration.as_secs_f64() * per_second * 1.2) as u32 + 64, number)
    };
    let tcp = |of: Phase| Phase {
        protocol: Protocol::Tcp,
        ..of
    };
    Profile {
        seed,
        interval: INTERVAL,
        tick: Span::from_millis(1),
        uplink_wait: UPLINK_WAIT,
        phases: vec![
            lasting(16, 1),
            tcp(lasting(10, 2)),
            v6(lasting(8, 3), 3),
            v6(tcp(lasting(4, 4)), 4),
            Phase {
                vlan: vec![7],
                ..lasting(6, 5)
            },
            Phase {
                size: Size::Fixed(1518),
                ..lasting(4, 6)
            },
            short(16, SHORT_FLOWS_PER_S[0], Protocol::Udp),
            short(32, SHORT_FLOWS_PER_S[1], Protocol::Tcp),
        ],
        ..Profile::default()
    }
}

/// A count for each reason, in words.
pub(crate) fn in_words(counts: &BTreeMap<String, u64>) -> String {
    let words: Vec<String> = counts
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_valid_for_an_hour_and_for_a_day() {
        for hours in [1, 24] {
            let profile = profile(1, Duration::from_secs(3600 * hours));
            profile.check().unwrap();
            let lasting = profile.phases.iter().take_while(|phase| phase.arrivals.is_none());
            assert_eq!(lasting.count(), usize::from(LASTING_PHASES));
        }
    }

    #[test]
    fn what_the_peer_has_not_taken_is_under_way() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("wan.sock");
        let listening = std::thread::spawn({
            let socket = socket.clone();
            move || MemifPort::listen(&socket, CONNECT_LIMIT).unwrap()
        });
        let network = Packets::start(&socket, 1, Duration::from_secs(60)).unwrap();
        let mut peer = listening.join().unwrap();
        let until = |what: &str, is_so: &mut dyn FnMut() -> bool| {
            let since = Instant::now();
            while !is_so() {
                assert!(since.elapsed() < CONNECT_LIMIT, "{what}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        until("packets wait", &mut || !network.is_taken());
        network.control.hold(true);
        let mut buffer = [0; 2048];
        until("the peer takes them", &mut || {
            while peer.receive(&mut buffer).is_some() {}
            peer.release();
            network.is_taken()
        });
    }

    #[test]
    fn a_flow_waits_until_a_packet_of_it_returns() {
        let at = |returned: [u64; 2]| Interval {
            flows: (0..)
                .zip(returned)
                .map(|(index, returned_packets)| FlowNow {
                    index,
                    returned_packets,
                    ..FlowNow::default()
                })
                .chain([FlowNow {
                    source: LASTING_PHASES,
                    ..FlowNow::default()
                }])
                .collect(),
            ..Interval::default()
        };
        let lasting = Lasting::of(&at([5, 7]));
        assert_eq!(
            [[5, 7], [5, 8], [6, 8]].map(|now| lasting.waiting(&at(now))),
            [2, 1, 0]
        );
    }

    #[test]
    fn an_outage_lasts_from_the_first_missing_packet_to_the_next_that_returns() {
        let at = |at_s, offered, returned| Interval {
            at_s,
            flows: vec![FlowNow {
                offered_packets: offered,
                returned_packets: returned,
                ..FlowNow::default()
            }],
            ..Interval::default()
        };
        let mut outages = Outages::default();
        // Two packets are lost for good before the beginning.
        outages.begin(&at(1.0, 10, 8));
        outages.observe(&at(1.1, 10, 8));
        assert_eq!(outages.longest_s, 0.0);
        outages.observe(&at(1.2, 11, 8));
        outages.observe(&at(1.7, 12, 8));
        outages.observe(&at(1.8, 12, 10));
        outages.observe(&at(3.0, 12, 10));
        assert!((outages.longest_s - 0.5).abs() < 1e-9, "{}", outages.longest_s);
        // Packets that wait outside the uplink are not offered yet; they tell by their latency.
        let mut late = at(3.1, 13, 11);
        late.latency_us.max = 700_000.0;
        outages.observe(&late);
        assert_eq!(outages.longest_s, 0.7);
    }
}
