//! Traffic from a thread of its own, while the test changes the switch.

#![allow(unreachable_pub, reason = "the modules share it")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use packet::build::Frame;

use crate::bed::{Bed, PATIENCE, ends, stamp, udp_packet};

/// Packets under way at once: fewer than any ring has slots, so that none is lost to a full one.
const WINDOW: u64 = 256;
/// Where a packet's flow and sequence number are.
const PAYLOAD: usize = 42;
/// Nothing coming back for so long means that what is missing is lost.
const GIVEN_UP: Duration = Duration::from_millis(150);

/// What the traffic is like.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Flows at a time.
    pub flows: u32,
    /// A flow ends and a new one begins every so many packets; 0 for never.
    pub fresh_every: u64,
    /// Both directions, each in at one uplink and out of the other, the first uplink's being the way there.
    pub two_arm: bool,
    /// Half of the flows on each of two uplinks, out where they came in.
    pub two_uplinks: bool,
    /// Whether packets may get lost: the load then goes on without them.
    pub lossy: bool,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            flows: 32,
            fresh_every: 0,
            two_arm: false,
            two_uplinks: false,
            lossy: false,
        }
    }
}

/// Traffic under way.
pub struct Load {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    thread: JoinHandle<(Outcome, Vec<memif::Link>)>,
}

/// What became of it.
#[derive(Default, Debug)]
pub struct Outcome {
    pub sent: u64,
    pub received: u64,
    /// Packets that came after a later one of their flow and direction, or a second time.
    pub late: u64,
    /// Packets of a flow that had been at another instance before.
    pub moves: u64,
    /// Came out of an uplink that is not theirs.
    pub wrong_uplink: u64,
    /// The instance of each flow.
    pub instance_of: HashMap<u32, u8>,
}

impl Outcome {
    pub fn assert_perfect(&self) {
        assert_eq!(self.moves, 0, "{self:?}");
        self.assert_in_order();
    }

    /// Flows may have moved.
    pub fn assert_in_order(&self) {
        assert_eq!((self.late, self.wrong_uplink), (0, 0), "{self:?}");
        assert_eq!(self.sent, self.received, "packets were lost");
        assert!(self.sent > 0);
    }
}

impl Load {
    pub fn start(bed: &mut Bed, shape: Shape) -> Load {
        let mut links = std::mem::take(&mut bed.uplinks);
        let stop = Arc::new(AtomicBool::new(false));
        let received = Arc::new(AtomicU64::new(0));
        let thread = std::thread::spawn({
            let (stop, received) = (Arc::clone(&stop), Arc::clone(&received));
            move || {
                let outcome = drive(&mut links, shape, &stop, &received);
                (outcome, links)
            }
        });
        Load {
            stop,
            received,
            thread,
        }
    }

    /// Waits until that many more packets have come back.
    pub fn wait_for(&self, bed: &mut Bed, packets: u64) {
        let goal = self.received.load(Ordering::Relaxed) + packets;
        bed.until("packets come back", |_| {
            self.received.load(Ordering::Relaxed) >= goal
        });
    }

    /// Ends it, when all that is under way has come back, and gives the uplinks back.
    pub fn finish(self, bed: &mut Bed) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        bed.until("the load ends", |_| self.thread.is_finished());
        let (outcome, links) = self.thread.join().unwrap();
        bed.uplinks = links;
        outcome
    }
}

/// A packet of a flow, there or back.
fn packet(flow: u32, back: bool, sequence: u64) -> Vec<u8> {
    let mut payload = [0; 18];
    payload[..4].copy_from_slice(&flow.to_be_bytes());
    payload[4..12].copy_from_slice(&sequence.to_be_bytes());
    payload[12] = u8::from(back);
    if back {
        let (src, dst): (SocketAddr, SocketAddr) = ends(flow);
        Frame::udp(dst, src, &payload).unwrap().to_vec().unwrap()
    } else {
        udp_packet(flow, &payload)
    }
}

fn drive(links: &mut [memif::Link], shape: Shape, stop: &AtomicBool, received: &AtomicU64) -> Outcome {
    let mut outcome = Outcome::default();
    let mut sequences: HashMap<(u32, bool), (u64, u64)> = HashMap::new();
    let mut buffer = vec![0; 65536];
    let (mut first, mut next, mut forgiven) = (0, 0, 0);
    let mut last_news = Instant::now();
    loop {
        let stopping = stop.load(Ordering::Relaxed);
        let under_way = (outcome.sent - outcome.received).saturating_sub(forgiven);
        if stopping && under_way == 0 {
            return outcome;
        }
        let room = if stopping {
            0
        } else {
            WINDOW.saturating_sub(under_way)
        };
        for _ in 0..room.min(32) {
            let flow = first + next % shape.flows;
            let back = shape.two_arm && (next / shape.flows) % 2 == 1;
            next += 1;
            let uplink = if shape.two_uplinks {
                (flow % 2) as usize
            } else {
                usize::from(back)
            };
            let sequence = &mut sequences.entry((flow, back)).or_default().0;
            *sequence += 1;
            let frame = packet(flow, back, *sequence);
            let tx = &mut links[uplink].queues[0].tx;
            if tx.push(&frame).is_err() {
                *sequence -= 1;
                break;
            }
            outcome.sent += 1;
            if shape.fresh_every > 0 && outcome.sent % shape.fresh_every == 0 {
                first += 1;
            }
        }
        let mut news = false;
        for (uplink, link) in links.iter_mut().enumerate() {
            link.queues[0].tx.flush();
            let rx = &mut link.queues[0].rx;
            while let Some(Ok(len)) = rx.pop(&mut buffer) {
                news = true;
                let frame = &buffer[..len];
                let number = |at: usize, n: usize| {
                    frame[PAYLOAD + at..][..n]
                        .iter()
                        .fold(0u64, |sum, b| sum << 8 | u64::from(*b))
                };
                let (flow, sequence, back) = (number(0, 4) as u32, number(4, 8), number(12, 1) == 1);
                let expected = match (shape.two_arm, shape.two_uplinks) {
                    (true, _) => usize::from(!back),
                    (_, true) => (flow % 2) as usize,
                    _ => 0,
                };
                outcome.received += 1;
                outcome.wrong_uplink += u64::from(uplink != expected);
                let newest = &mut sequences.get_mut(&(flow, back)).unwrap().1;
                outcome.late += u64::from(sequence <= *newest);
                *newest = sequence.max(*newest);
                let instance = outcome.instance_of.entry(flow).or_insert(stamp(frame));
                outcome.moves += u64::from(*instance != stamp(frame));
                *instance = stamp(frame);
            }
            rx.release();
        }
        received.store(outcome.received, Ordering::Relaxed);
        if news {
            last_news = Instant::now();
        } else if shape.lossy && last_news.elapsed() > GIVEN_UP {
            forgiven = outcome.sent - outcome.received;
            last_news = Instant::now();
        } else {
            assert!(last_news.elapsed() < PATIENCE, "nothing comes back: {outcome:?}");
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
