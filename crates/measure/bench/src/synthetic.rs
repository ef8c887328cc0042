//! A soft switch in this process with generated packets and discarding ports, to measure its worker alone.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use flow_table::{Ownership, TableConfig};
use model::{DropReason, Generation, Polling, Slot, Timeouts, UplinkId};
use soft_switch::{
    Device, Frame, FrameMemory, OpenDevice, Sizes, SoftSwitch, SoftSwitchConfig, Unsendable, UplinkConfig,
    UplinkDevice,
};
use switch::{Plan, PortKind, PortSpec, Switch as _, SwitchEvent, SwitchReading};

use super::contestant::on_cpu_ns;
use super::steer::cpus;
use super::steering::attach;
use super::traffic::{Ip, frame};

/// Bytes of a frame.
pub(super) const SIZE: usize = 64;
/// The measured thread.
const WORKER: &str = "inco-worker-0";
/// Interval between two turns of the switch's control side.
pub(super) const STEP: Duration = Duration::from_micros(500);
/// Maximum time for the switch to process a request.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Ring size of a source, in frames; further frames are dropped, as in a card's ring.
const RING_FRAMES: f64 = 1024.0;

/// Memory for frames of 64 bytes; moving a frame moves only its address, as with a card.
pub(super) struct Frames;

/// A frame of this memory.
pub(super) struct ShortFrame {
    bytes: Box<[u8; SIZE]>,
    len: usize,
}

thread_local! {
    /// Unused frames of this thread, which is a worker.
    static FREE: RefCell<Vec<ShortFrame>> = const { RefCell::new(Vec::new()) };
}

impl ShortFrame {
    fn new() -> ShortFrame {
        ShortFrame {
            bytes: Box::new([0; SIZE]),
            len: 0,
        }
    }
}

impl Frame for ShortFrame {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
    fn room(&mut self) -> &mut [u8] {
        &mut *self.bytes
    }
    fn set_len(&mut self, len: usize) {
        self.len = len.min(SIZE);
    }
}

impl FrameMemory for Frames {
    type Frame = ShortFrame;
    type Device = Source;
    type Registration = ();
    fn register_thread() {}
    fn take(&mut self) -> Option<ShortFrame> {
        let free = FREE.with_borrow_mut(Vec::pop);
        Some(free.unwrap_or_else(ShortFrame::new))
    }
    fn give(&mut self, frame: ShortFrame) {
        FREE.with_borrow_mut(|free| free.push(frame));
    }
    fn give_all(&mut self, frames: &mut Vec<ShortFrame>) {
        FREE.with_borrow_mut(|free| free.append(frames));
    }
    fn frame_limit(&self) -> usize {
        SIZE
    }
}

/// A source's rate and drops, shared with it.
#[derive(Debug, Default)]
pub(super) struct SourceRate {
    per_second: AtomicU64,
    missed: AtomicU64,
}

impl SourceRate {
    /// As fast as the worker receives.
    pub(super) const UNLIMITED: u64 = u64::MAX;

    /// Sets the packets per second of the worker's CPU time; 0 for none.
    pub(super) fn set(&self, per_second: u64) {
        self.per_second.store(per_second, Ordering::Relaxed);
    }

    /// Packets that found the source's ring full so far.
    pub(super) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

/// A port that generates packets.
pub(super) struct Source {
    flows: Flows,
    pace: Arc<SourceRate>,
    /// Packets in its ring, and the CPU time of that value.
    waiting: f64,
    looked_ns: u64,
}

/// The flows of its packets.
enum Flows {
    New(NewFlows),
    Known { frames: Vec<[u8; SIZE]>, next: usize },
}

impl Source {
    /// A source of new flows: each packet begins one.
    pub(super) fn of_new_flows(pace: &Arc<SourceRate>) -> Result<Source> {
        Ok(Source::of(Flows::New(NewFlows::new()?), pace))
    }

    /// A source of `count` established flows in turn, at most 2^24. They differ from the flows of
    /// [`Source::of_new_flows`].
    pub(super) fn of_known_flows(count: u32, pace: &Arc<SourceRate>) -> Result<Source> {
        let frames = (0..count).map(|flow| frame(Ip::V4, flow, SIZE)?.try_into().ok().context("64 bytes"));
        Ok(Source::of(
            Flows::Known {
                frames: frames.collect::<Result<_>>()?,
                next: 0,
            },
            pace,
        ))
    }

    fn of(flows: Flows, pace: &Arc<SourceRate>) -> Source {
        Source {
            flows,
            pace: Arc::clone(pace),
            waiting: 0.0,
            looked_ns: 0,
        }
    }

    /// Packets that may be received now, at most `limit`.
    fn due(&mut self, limit: usize) -> usize {
        let per_second = self.pace.per_second.load(Ordering::Relaxed);
        if per_second == SourceRate::UNLIMITED {
            return limit;
        }
        if self.waiting < limit as f64 {
            let now_ns = clock::thread_cpu().0;
            let since = now_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, now_ns));
            self.waiting += since as f64 * per_second as f64 / 1e9;
            let missed = (self.waiting - RING_FRAMES).max(0.0).floor();
            self.waiting -= missed;
            self.pace.missed.fetch_add(missed as u64, Ordering::Relaxed);
        }
        let due = (self.waiting as usize).min(limit);
        self.waiting -= due as f64;
        due
    }
}

impl Device<ShortFrame> for Source {
    fn receive(&mut self, into: &mut Vec<ShortFrame>, limit: usize) {
        let count = self.due(limit);
        match &mut self.flows {
            Flows::New(flows) => fill(into, count, |frame| *frame = flows.next()),
            Flows::Known { frames, next } => fill(into, count, |frame| {
                if let Some(bytes) = frames.get(*next) {
                    *frame = *bytes;
                }
                *next = if *next + 1 < frames.len() { *next + 1 } else { 0 };
            }),
        }
    }

    fn send(&mut self, frames: &mut Vec<ShortFrame>, _longest: usize, _known: Option<Sizes>) -> Unsendable {
        frames.clear();
        Unsendable::default()
    }
}

/// Receives `count` frames, each of which is written by `write`.
#[inline(always)]
fn fill(into: &mut Vec<ShortFrame>, count: usize, mut write: impl FnMut(&mut [u8; SIZE])) {
    FREE.with_borrow_mut(|free| {
        for _ in 0..count {
            let mut frame = free.pop().unwrap_or_else(ShortFrame::new);
            write(&mut frame.bytes);
            frame.len = SIZE;
            into.push(frame);
        }
    });
}

/// Frames that each begin a new flow.
struct NewFlows {
    template: [u8; SIZE],
    /// One's complement sum of the header without source address and checksum.
    sum: u32,
    next: u32,
}

impl NewFlows {
    const CHECKSUM: usize = 24;
    const SOURCE: usize = 26;
    /// Offset and value of the destination's last byte, which no established flow has.
    const SERVER: (usize, u8) = (33, 200);

    fn new() -> Result<NewFlows> {
        let mut template = [0; SIZE];
        template.copy_from_slice(
            frame(Ip::V4, 0, SIZE)?
                .get(..SIZE)
                .context("a frame of 64 bytes")?,
        );
        template[NewFlows::CHECKSUM..NewFlows::SOURCE + 4].fill(0);
        template[NewFlows::SERVER.0] = NewFlows::SERVER.1;
        let header = template[14..34].as_chunks::<2>().0;
        let sum = header
            .iter()
            .map(|&word| u32::from(u16::from_be_bytes(word)))
            .sum();
        Ok(NewFlows {
            template,
            sum,
            next: 0,
        })
    }

    fn next(&mut self) -> [u8; SIZE] {
        let mut bytes = self.template;
        // Visits each number once, in scattered order.
        let source = self.next.wrapping_mul(0x9e37_79b1);
        self.next = self.next.wrapping_add(1);
        bytes[NewFlows::SOURCE..NewFlows::SOURCE + 4].copy_from_slice(&source.to_be_bytes());
        let sum = self.sum + (source >> 16) + (source & 0xffff);
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        bytes[NewFlows::CHECKSUM..NewFlows::SOURCE].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }
}

/// A switch with one worker on the measured CPU and `null` ports as instances.
pub(super) struct Synthetic {
    pub(super) switch: SoftSwitch<Frames>,
    reading: SwitchReading,
    published: Generation,
    events: Vec<SwitchEvent>,
}

/// A snapshot of the counters and of the worker's CPU time.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) counters: SwitchReading,
    /// Packets that the switch dropped.
    pub(super) dropped: u64,
    pub(super) seconds: f64,
}

impl Synthetic {
    /// Starts it with a plan whose instances use the slots from 0 on, and one uplink per source.
    pub(super) fn start(plan: Plan, table: TableConfig, sources: Vec<Source>) -> Result<Synthetic> {
        let (_, cpu) = cpus()?;
        let uplinks = (0..sources.len()).map(|number| UplinkConfig {
            name: format!("source{number}"),
            device: UplinkDevice::Device,
            max_frame: usize::MAX,
            waits: false,
        });
        let config = SoftSwitchConfig {
            fast: None,
            tunnel: None,
            half_open: None,
            kernel_ports: soft_switch::KernelPorts::default(),
            keep: None,
            workers: vec![Some(cpu)],
            polling: Polling::Busy,
            table,
            timeouts: Timeouts::default(),
            uplinks: uplinks.collect(),
            hash_key: orchestrator::secret()?,
            ownership: Ownership::Keyed,
        };
        let mut started = Synthetic {
            switch: SoftSwitch::start(&config, vec![Frames], Vec::new())?,
            reading: SwitchReading::new(plan.services.len(), sources.len(), 1),
            published: Generation(0),
            events: Vec::new(),
        };
        for slot in (0..plan.slots.len() as u16).map(Slot) {
            started.attach(slot)?;
        }
        started.publish(plan)?;
        for (number, source) in sources.into_iter().enumerate() {
            let opened = OpenDevice {
                deals: false,
                queues: vec![source],
                watch: None,
            };
            started
                .switch
                .attach_uplink_device(UplinkId(number as u8), opened)?;
        }
        Ok(started)
    }

    /// Attaches a `null` port to `slot` and waits until the worker has it.
    pub(super) fn attach(&mut self, slot: Slot) -> Result<()> {
        self.switch
            .request(attach(slot, PortSpec::new(PortKind::Null, "")))?;
        self.wait_until(
            "an instance is attached",
            |event| matches!(event, SwitchEvent::Attached { slot: s, .. } if *s == slot),
        )
        .map(drop)
    }

    /// Publishes a plan and waits until the worker uses it.
    pub(super) fn publish(&mut self, mut plan: Plan) -> Result<()> {
        self.published.0 += 1;
        plan.generation = self.published;
        let generation = self.switch.publish(plan)?;
        let started = Instant::now();
        while self.reading.acknowledged < generation {
            self.go_on();
            self.switch.read(&mut self.reading);
            if started.elapsed() > TIMEOUT {
                bail!(
                    "the worker did not acknowledge a plan within {} s",
                    TIMEOUT.as_secs()
                );
            }
        }
        Ok(())
    }

    /// Waits for a matching event and returns it.
    pub(super) fn wait_until(
        &mut self,
        what: &str,
        is_it: impl Fn(&SwitchEvent) -> bool,
    ) -> Result<SwitchEvent> {
        let started = Instant::now();
        loop {
            if let Some(place) = self.events.iter().position(&is_it) {
                return Ok(self.events.swap_remove(place));
            }
            if started.elapsed() > TIMEOUT {
                bail!("timed out after {} s: {what}", TIMEOUT.as_secs());
            }
            self.events.clear();
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        std::thread::sleep(STEP);
        self.switch.poll(clock::monotonic(), &mut self.events);
    }

    /// Reads all counters.
    pub(super) fn read(&mut self) -> Result<Moment> {
        self.switch.read(&mut self.reading);
        let counters = self.reading.clone();
        let taken = counters.drops.get(DropReason::Function.index()).copied();
        Ok(Moment {
            counters,
            // A sink returns nothing: its unreturned packets are not losses when it is removed.
            dropped: self.reading.dropped() - taken.unwrap_or(0),
            seconds: on_cpu_ns(WORKER)? as f64 / 1e9,
        })
    }

    /// Runs until the worker has used `time` of CPU time; returns the counters before and after.
    pub(super) fn run_for(&mut self, time: Duration) -> Result<(Moment, Moment)> {
        let before = self.read()?;
        let started = Instant::now();
        loop {
            self.go_on();
            self.events.clear();
            let used = on_cpu_ns(WORKER)? as f64 / 1e9 - before.seconds;
            if used >= time.as_secs_f64() {
                return Ok((before, self.read()?));
            }
            if started.elapsed() > TIMEOUT {
                bail!(
                    "the worker used {used:.1} s of CPU time in {} s",
                    TIMEOUT.as_secs()
                );
            }
        }
    }
}

impl Drop for Synthetic {
    fn drop(&mut self) {
        self.switch.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_packet_is_right_and_of_another_flow() {
        let pace = Arc::new(SourceRate::default());
        pace.set(SourceRate::UNLIMITED);
        let mut frames = Vec::new();
        Source::of_new_flows(&pace).unwrap().receive(&mut frames, 10_000);
        Source::of_known_flows(1000, &pace)
            .unwrap()
            .receive(&mut frames, 2000);
        let keys: HashSet<_> = frames
            .iter()
            .map(|frame| packet::parse_fast(frame.bytes()).unwrap().key)
            .collect();
        assert_eq!((frames.len(), keys.len()), (12_000, 11_000));
    }

    #[test]
    fn a_source_keeps_its_rate_and_counts_its_losses() {
        let pace = Arc::new(SourceRate::default());
        let mut source = Source::of_known_flows(3, &pace).unwrap();
        let mut frames = Vec::new();
        source.receive(&mut frames, 64);
        assert!(frames.is_empty());
        pace.set(1_000_000_000);
        let busy: u64 = (0..2_000_000_u64).map(std::hint::black_box).sum();
        assert!(busy > 0);
        source.receive(&mut frames, 64);
        assert_eq!(frames.len(), 64);
        assert!(pace.missed() > 1000, "{}", pace.missed());
    }
}
