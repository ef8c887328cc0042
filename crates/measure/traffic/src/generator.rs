//! The loop that sends due packets and receives returned ones.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;
use crate::measurement::Measurement;
use crate::port::Port;
use crate::profile::Profile;
use crate::replay::Replay;
use crate::report::{GeneratorLimits, Interval, Report};
use crate::schedule::Schedule;
use crate::units::Span;

/// Packets sent, and packets received from each port, before switching to the other task.
const BURST: usize = 64;
/// The last part of a wait is spent polling, in ns: typical wake-up latency.
const SPIN_NS: u64 = 60_000;
/// A packet later than this, in ns, counts as late.
const LATE_NS: u64 = 100_000;
/// How often connections are maintained, in ns.
const MAINTAIN_NS: u64 = 5_000_000;
/// Settling ends after this multiple of `settle`, even if packets still arrive.
const SETTLE_LIMIT: u64 = 10;
/// Largest frame that may return, in bytes.
const FRAME_BYTES_LIMIT: usize = 65_536;

/// Controls a run from another thread.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    hold: AtomicBool,
    failed: Mutex<Vec<u32>>,
    /// The length of `failed`, readable without the lock.
    failed_count: AtomicUsize,
}

impl Control {
    /// No instruction yet.
    pub fn new() -> Control {
        Control::default()
    }

    /// Stops sending; the run settles and reports. Safe to call in a signal handler.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Pauses sending, or continues. A packet that was not due before the pause is due later by its length; packets
    /// still return meanwhile.
    pub fn hold(&self, hold: bool) {
        self.hold.store(hold, Ordering::Relaxed);
    }

    /// Declares that each flow of this instance may move once from now on, because it failed or was purged. Moves
    /// before that, of flows of this instance to one other, count likewise.
    pub fn expect_moves_from(&self, instance: u32) {
        let mut failed = self
            .failed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if !failed.contains(&instance) {
            failed.push(instance);
        }
        self.failed_count.store(failed.len(), Ordering::Release);
    }
}

/// Sends a profile's packets and measures what returns. Open loop: due times depend on the profile only, and
/// latency counts from them. See [`Generator::in_closed_loop`] for the alternative.
#[derive(Debug)]
pub struct Generator {
    profile: Profile,
    schedule: Schedule,
    measurement: Measurement,
    closed: Option<ClosedLoop>,
}

/// Sending follows returned packets, not the clock.
#[derive(Clone, Copy, Debug)]
struct ClosedLoop {
    /// Largest number of packets in flight.
    window: u64,
    /// Duration of sending, in ns.
    duration: u64,
}

/// The monotonic clock in ns.
fn now_ns() -> u64 {
    clock::monotonic().0
}

impl Generator {
    /// Prepares a run: reads captures and mixtures, builds frames and flow state.
    ///
    /// # Errors
    /// Returns an error if the profile, a capture or a mixture is invalid.
    pub fn new(profile: Profile) -> Result<Generator, Error> {
        profile.check()?;
        let replays = profile
            .captures
            .iter()
            .enumerate()
            .map(|(index, capture)| {
                Replay::load(&capture.file)
                    .map(Arc::new)
                    .map_err(|e| e.within("capture", index))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let (measurement, first_records) = Measurement::new(&profile, &replays)?;
        let schedule = Schedule::new(&profile, &replays, &first_records)?;
        Ok(Generator {
            profile,
            schedule,
            measurement,
            closed: None,
        })
    }

    /// Closed loop: sends the profile's packets in order, each as soon as fewer than `window` packets are in
    /// flight, for `duration` or until the profile ends. The rate is the system's own, and no ring with more
    /// slots overflows. Latency counts from sending. Lost packets stay in flight.
    #[must_use]
    pub fn in_closed_loop(mut self, window: u32, duration: Span) -> Generator {
        self.closed = Some(ClosedLoop {
            window: window.into(),
            duration: duration.as_nanos(),
        });
        self
    }

    /// Records latency for one in `packets` returned packets: the largest cost per packet. Every packet is
    /// still checked otherwise.
    #[must_use]
    pub fn with_latency_of_one_in(mut self, packets: u32) -> Generator {
        self.measurement.measure_latency_of_one_in(packets);
        self
    }

    /// Runs to the end, or until `control` stops it, on the calling thread. `ports` are the uplinks in the
    /// profile's order. `observer` is called each `interval` between packets and must not block.
    ///
    /// # Errors
    /// Returns [`Error::Uplinks`] or [`Error::UplinkFrame`] before anything is sent.
    pub fn run<P: Port>(
        self,
        ports: &mut [P],
        control: &Control,
        mut observer: impl FnMut(&Interval),
    ) -> Result<Report, Error> {
        let needed = self.profile.uplinks();
        if needed > ports.len() {
            return Err(Error::Uplinks {
                needed: needed - 1,
                given: ports.len(),
            });
        }
        for (uplink, frame_bytes) in self
            .measurement
            .longest_frames(ports.len())
            .into_iter()
            .enumerate()
        {
            let limit = ports[uplink].frame_bytes_limit();
            if frame_bytes > limit {
                return Err(Error::UplinkFrame {
                    frame_bytes,
                    uplink,
                    limit,
                });
            }
        }
        // Makes this thread's wake-ups exact to a few us instead of 50 us; if refused, it polls a little
        // longer.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
        let mut run = Run::new(self, ports.len());
        while !run.is_done() {
            run.step(ports, control, &mut observer);
        }
        Ok(run.report(control))
    }
}

/// The state of a run.
struct Run {
    generator: Generator,
    /// When the schedule began, later by all pauses.
    start: u64,
    /// When the current pause began.
    held_since: Option<u64>,
    cpu_start: u64,
    /// When the last packet was due, sent or received.
    last_sent: u64,
    last_received: u64,
    sending_ended: Option<u64>,
    next_interval: u64,
    next_maintenance: u64,
    /// Whether an uplink's peer was away at the last check.
    is_away: bool,
    /// Lateness up to this is the generator's own: it woke that late.
    own_lateness: u64,
    max_lateness: u64,
    /// By how much the schedule was moved, in ns.
    moved: u64,
    late_packets: u64,
    failed_seen: usize,
    frame: Vec<u8>,
    dirty: Vec<bool>,
    room: Vec<usize>,
    /// Whether an uplink with due packets was full at the last check.
    blocked: bool,
}

impl Run {
    fn new(mut generator: Generator, ports: usize) -> Run {
        let start = now_ns();
        generator.measurement.begin(start);
        Run {
            start,
            held_since: None,
            cpu_start: clock::thread_cpu().0,
            last_sent: start,
            last_received: start,
            sending_ended: None,
            next_interval: start + generator.profile.interval.as_nanos(),
            next_maintenance: start + MAINTAIN_NS,
            is_away: false,
            own_lateness: 0,
            max_lateness: 0,
            moved: 0,
            late_packets: 0,
            failed_seen: 0,
            frame: vec![0; FRAME_BYTES_LIMIT],
            dirty: vec![false; ports],
            room: vec![0; ports],
            blocked: false,
            generator,
        }
    }

    /// Whether everything was sent and everything expected has returned.
    fn is_done(&self) -> bool {
        let Some(ended) = self.sending_ended else {
            return false;
        };
        let counts = &self.generator.measurement.counts;
        if counts.missing() == counts.lost_at_uplink {
            return true;
        }
        let settle = self.generator.profile.settle.as_nanos();
        let now = now_ns();
        now - ended.max(self.last_received).min(now) > settle || now - ended > settle * SETTLE_LIMIT
    }

    fn step<P: Port>(&mut self, ports: &mut [P], control: &Control, observer: &mut impl FnMut(&Interval)) {
        let failed = control.failed_count.load(Ordering::Acquire);
        if failed != self.failed_seen {
            let list = control
                .failed
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            for instance in &list[self.failed_seen..failed] {
                self.generator.measurement.expect_moves_from(*instance);
            }
            self.failed_seen = failed;
        }
        let now = now_ns();
        if control.hold.load(Ordering::Relaxed) && !control.stop.load(Ordering::Relaxed) {
            self.held_since.get_or_insert(now);
        } else if let Some(since) = self.held_since.take() {
            self.start += now - since;
        }
        let received = self.receive(ports, now);
        let sent = match self.is_sending() {
            true => self.send(ports, control, now),
            false => false,
        };
        if now >= self.next_interval {
            observer(&self.generator.measurement.interval(now));
            self.next_interval += self.generator.profile.interval.as_nanos();
            self.next_interval = self.next_interval.max(now);
        }
        if now >= self.next_maintenance {
            ports.iter_mut().for_each(Port::maintain);
            let was_away = std::mem::replace(&mut self.is_away, ports.iter().any(Port::is_away));
            if self.is_away && !was_away {
                self.generator.measurement.peer_went();
            }
            self.next_maintenance = now + MAINTAIN_NS;
        }
        if !received && !sent {
            self.wait(ports);
        }
    }

    fn is_sending(&self) -> bool {
        self.sending_ended.is_none() && self.held_since.is_none()
    }

    fn receive<P: Port>(&mut self, ports: &mut [P], now: u64) -> bool {
        let mut any = false;
        for (index, port) in ports.iter_mut().enumerate() {
            let mut count = 0;
            while count < BURST
                && let Some(len) = port.receive(&mut self.frame)
            {
                self.generator.measurement.receive(index, &self.frame[..len], now);
                count += 1;
            }
            if count > 0 {
                port.release();
                any = true;
            }
        }
        if any {
            self.last_received = now;
        }
        any
    }

    /// Sends due packets; returns whether it did anything.
    fn send<P: Port>(&mut self, ports: &mut [P], control: &Control, now: u64) -> bool {
        let mut any = false;
        let mut blocked = false;
        let mut burst_limit = BURST;
        let is_closed = self.generator.closed.is_some();
        if let Some(closed) = self.generator.closed {
            if now - self.start >= closed.duration {
                self.sending_ended = Some(now);
                return false;
            }
            let counts = &self.generator.measurement.counts;
            let under_way = counts.missing().saturating_sub(counts.lost_at_uplink);
            let room = closed.window.saturating_sub(under_way);
            burst_limit = burst_limit.min(room as usize);
            blocked = burst_limit == 0;
        }
        self.move_schedule(now);
        // Reads each uplink's free slots once, and again when they are used up: the peer writes that cache
        // line, so reading it is slow.
        self.room.fill(0);
        for burst in 0..burst_limit {
            let Some(due) = self.generator.schedule.peek() else {
                self.sending_ended = Some(now);
                break;
            };
            // A packet that waits for a free slot is due when there is one.
            let at = match due.patient {
                _ if is_closed => now,
                true => now.max(self.start + due.at),
                false => self.start + due.at,
            };
            if at > now {
                if burst == 0 {
                    self.own_lateness = 0;
                }
                break;
            }
            if control.stop.load(Ordering::Relaxed) {
                self.sending_ended = Some(now);
                break;
            }
            let uplink = self.generator.measurement.uplink(&due);
            let port = &mut ports[uplink];
            let lateness = now - at;
            let slots = port.slots(self.generator.measurement.frame_len(&due));
            if self.room[uplink] < slots {
                self.room[uplink] = port.free();
            }
            if self.room[uplink] < slots {
                blocked = true;
                let limit = self.generator.profile.uplink_wait.as_nanos() + self.own_lateness;
                if is_closed || due.patient || lateness <= limit {
                    break;
                }
                self.generator.measurement.send(&due, at, &mut self.frame);
                self.generator.measurement.lost_at_uplink(port.is_away());
                self.generator.schedule.pop();
                any = true;
                continue;
            }
            let len = self.generator.measurement.send(&due, at, &mut self.frame);
            if port.push(&self.frame[..len]) {
                self.room[uplink] -= slots;
                self.dirty[uplink] = true;
                if !blocked {
                    // As far as known there was room since the due time: the generator itself was late.
                    self.own_lateness = self.own_lateness.max(lateness);
                    self.max_lateness = self.max_lateness.max(lateness);
                    self.late_packets += u64::from(lateness > LATE_NS);
                }
            } else {
                self.generator.measurement.lost_at_uplink(port.is_away());
            }
            self.generator.schedule.pop();
            self.last_sent = now;
            any = true;
        }
        self.blocked = blocked;
        for (port, dirty) in ports.iter_mut().zip(&mut self.dirty) {
            if std::mem::take(dirty) {
                port.flush();
            }
        }
        any
    }

    /// Moves the schedule by what the generator itself is later than it may make up for.
    fn move_schedule(&mut self, now: u64) {
        let (Some(limit), false) = (self.generator.profile.catch_up, self.blocked) else {
            return;
        };
        if let Some(due) = self.generator.schedule.peek().filter(|due| !due.patient) {
            let late = now.saturating_sub(self.start + due.at);
            let excess = late.saturating_sub(limit.as_nanos());
            self.start += excess;
            self.moved += excess;
        }
    }

    /// Sleeps until a packet is due or returns, and polls for the last part.
    fn wait<P: Port>(&mut self, ports: &mut [P]) {
        let now = now_ns();
        let mut until = self.next_interval.min(self.next_maintenance);
        if self.blocked && self.is_sending() && self.generator.closed.is_some() {
            // The process that returns packets may need this CPU.
            std::thread::yield_now();
            return;
        }
        if self.is_sending()
            && let Some(due) = self.generator.schedule.peek()
        {
            until = until.min((self.start + due.at).saturating_sub(SPIN_NS));
        }
        if until <= now {
            // The process that frees slots may need this CPU.
            match self.blocked {
                true => std::thread::yield_now(),
                false => std::hint::spin_loop(),
            }
            return;
        }
        let something = ports
            .iter_mut()
            .filter_map(|port| (!port.arm()).then_some(()))
            .count();
        if something == 0 {
            let mut fds: Vec<PollFd<'_>> = ports
                .iter()
                .filter_map(|port| port.wake_fd())
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let left = until - now;
            let timeout = Timespec {
                tv_sec: (left / 1_000_000_000) as i64,
                tv_nsec: (left % 1_000_000_000) as i64,
            };
            // A signal ends it early, which is harmless.
            let _ = poll(&mut fds, Some(&timeout));
        }
        ports.iter_mut().for_each(Port::disarm);
    }

    fn report(self, control: &Control) -> Report {
        let measurement = &self.generator.measurement;
        let counts = measurement.counts;
        let (flow_count, flows) = measurement.flows();
        let sending_s = self.last_sent.saturating_sub(self.start) as f64 / 1e9;
        let elapsed_s = (now_ns() - self.start) as f64 / 1e9;
        let per_second = |packets: u64| {
            if sending_s > 0.0 {
                packets as f64 / sending_s
            } else {
                0.0
            }
        };
        let cpu_s = (clock::thread_cpu().0 - self.cpu_start) as f64 / 1e9;
        Report {
            seed: self.generator.profile.seed,
            sending_s,
            counts,
            lost: counts.missing(),
            returned_pps: per_second(counts.returned_packets),
            latency_us: measurement.latency(),
            generator: GeneratorLimits {
                max_lateness_us: self.max_lateness as f64 / 1000.0,
                moved_us: self.moved as f64 / 1000.0,
                late_packets: self.late_packets,
                intended_pps: per_second(counts.offered_packets),
                achieved_pps: per_second(counts.offered_packets - counts.lost_at_uplink),
                uplink_full: counts.lost_at_uplink,
                cpu_share: cpu_s / elapsed_s.max(1e-9),
            },
            flow_count,
            flows,
            skipped_frames: measurement.skipped_frames(),
            stopped_early: control.stop.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::LoopbackPort;
    use crate::profile::Phase;
    use crate::units::{Rate, Span};

    fn profile(pps: f64, ms: u64) -> Profile {
        Profile {
            phases: vec![Phase {
                flows: 3,
                duration: Span::from_millis(ms),
                rate: Some(Rate(pps)),
                ..Phase::default()
            }],
            uplink_wait: Span::from_millis(5000),
            interval: Span::from_millis(10),
            ..Profile::default()
        }
    }

    #[test]
    fn a_loop_returns_everything() {
        let mut intervals = Vec::new();
        let report = Generator::new(profile(20_000.0, 100))
            .unwrap()
            .run(&mut [LoopbackPort::new(64)], &Control::new(), |i| {
                intervals.push(i.clone())
            })
            .unwrap();
        assert!(report.is_clean(), "{}", report.table(true));
        assert_eq!((report.counts.offered_packets, report.flow_count), (2000, 3));
        assert!(!intervals.is_empty() && !report.stopped_early);
        assert!(
            intervals
                .windows(2)
                .all(|w| w[0].counts.offered_packets <= w[1].counts.offered_packets)
        );
        let in_intervals: u64 = intervals.iter().map(|i| i.offered_packets).sum();
        assert!(in_intervals <= 2000);
    }

    /// A loop that records its highest occupancy.
    struct Watched {
        port: LoopbackPort,
        most: usize,
    }

    impl Port for Watched {
        fn frame_bytes_limit(&self) -> usize {
            self.port.frame_bytes_limit()
        }
        fn free(&mut self) -> usize {
            self.port.free()
        }
        fn slots(&self, frame_bytes: usize) -> usize {
            self.port.slots(frame_bytes)
        }
        fn push(&mut self, frame: &[u8]) -> bool {
            self.port.push(frame)
        }
        fn flush(&mut self) {
            self.port.flush();
            self.most = self.most.max(4096 - self.port.free());
        }
        fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
            self.port.receive(buffer)
        }
        fn release(&mut self) {}
        fn arm(&mut self) -> bool {
            self.port.arm()
        }
        fn disarm(&mut self) {}
        fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            None
        }
        fn maintain(&mut self) {}
    }

    #[test]
    fn a_closed_loop_limits_packets_in_flight() {
        for window in [1_u32, 100, 1_000] {
            let mut port = [Watched {
                port: LoopbackPort::new(4096),
                most: 0,
            }];
            let report = Generator::new(profile(1e9, 50))
                .unwrap()
                .in_closed_loop(window, Span::from_millis(50))
                .run(&mut port, &Control::new(), |_| {})
                .unwrap();
            assert!(report.is_clean(), "{}", report.table(true));
            assert!(port[0].most <= window as usize, "{} of {window}", port[0].most);
            assert!(report.counts.offered_packets > 500, "{}", report.table(true));
            assert!(report.sending_s <= 0.06 && !report.stopped_early);
        }
    }

    #[test]
    fn a_closed_loop_with_total_loss_ends_in_time() {
        /// Accepts everything and returns nothing.
        struct Hole;
        impl Port for Hole {
            fn frame_bytes_limit(&self) -> usize {
                2048
            }
            fn free(&mut self) -> usize {
                4096
            }
            fn slots(&self, _frame_bytes: usize) -> usize {
                1
            }
            fn push(&mut self, _frame: &[u8]) -> bool {
                true
            }
            fn flush(&mut self) {}
            fn receive(&mut self, _buffer: &mut [u8]) -> Option<usize> {
                None
            }
            fn release(&mut self) {}
            fn arm(&mut self) -> bool {
                true
            }
            fn disarm(&mut self) {}
            fn wake_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
                None
            }
            fn maintain(&mut self) {}
        }
        let mut profile = profile(1e9, 50);
        profile.settle = Span::from_millis(10);
        let report = Generator::new(profile)
            .unwrap()
            .in_closed_loop(100, Span::from_millis(50))
            .run(&mut [Hole], &Control::new(), |_| {})
            .unwrap();
        assert_eq!((report.counts.offered_packets, report.lost), (100, 100));
    }

    #[test]
    fn sampled_latency_leaves_other_checks_complete() {
        let run = |packets| {
            let generator = Generator::new(profile(20_000.0, 100)).unwrap();
            let mut run = Run::new(generator.with_latency_of_one_in(packets), 1);
            let (mut ports, control) = ([LoopbackPort::new(64)], Control::new());
            while !run.is_done() {
                run.step(&mut ports, &control, &mut |_| {});
            }
            let recorded = run.generator.measurement.recorded_latencies();
            let report = run.report(&control);
            assert!(report.is_clean(), "{}", report.table(true));
            assert_eq!(report.counts.returned_packets, 2000);
            recorded
        };
        assert_eq!((run(1), run(64), run(0)), (2000, 32, 2000));
    }

    #[test]
    fn stopping_ends_the_load_and_keeps_the_accounting() {
        let control = Control::new();
        let report = Generator::new(profile(1_000.0, 3_600_000))
            .unwrap()
            .run(&mut [LoopbackPort::new(64)], &control, |i| {
                if i.counts.offered_packets >= 20 {
                    control.stop();
                }
            })
            .unwrap();
        assert!(
            report.stopped_early && report.is_clean(),
            "{}",
            report.table(false)
        );
        assert!(report.counts.offered_packets >= 20);
    }

    #[test]
    fn a_pause_sends_nothing_and_moves_the_schedule() {
        let control = Control::new();
        control.hold(true);
        let started = now_ns();
        let report = Generator::new(profile(1_000.0, 50))
            .unwrap()
            .run(&mut [LoopbackPort::new(64)], &control, |i| {
                if now_ns() - started < 100_000_000 {
                    assert_eq!(i.counts.offered_packets, 0);
                } else {
                    control.hold(false);
                }
            })
            .unwrap();
        assert!(now_ns() - started >= 145_000_000);
        assert!(
            report.is_clean() && report.counts.offered_packets == 50,
            "{}",
            report.table(true)
        );
        // Nothing was overdue after the pause.
        assert!(report.latency_us.max < 50_000.0, "{}", report.table(true));
        assert!(report.sending_s < 0.09, "{}", report.table(true));
    }

    #[test]
    fn a_generator_without_a_cpu_makes_up_for_as_much_as_it_may() {
        let run = |catch_up| {
            let mut load = profile(1_000.0, 50);
            load.catch_up = catch_up;
            let (mut sleeps, began) = (true, now_ns());
            let report = Generator::new(load)
                .unwrap()
                .run(&mut [LoopbackPort::new(64)], &Control::new(), |_| {
                    if std::mem::take(&mut sleeps) {
                        std::thread::sleep(std::time::Duration::from_millis(100));
                    }
                })
                .unwrap();
            (report, now_ns() - began)
        };
        let ((all, _), (some, took)) = (run(None), run(Some(Span::from_millis(10))));
        assert!(all.is_clean() && some.is_clean());
        assert_eq!([&all, &some].map(|of| of.counts.offered_packets), [50; 2]);
        // The first interval ends after 10 ms: 40 packets are left.
        assert_eq!(all.generator.moved_us, 0.0);
        assert!(some.generator.moved_us >= 85_000.0, "{:?}", some.generator);
        let told = |of: &Report| of.table(false).to_string().contains("schedule was moved by");
        assert!(told(&some) && !told(&all));
        // The last packet is due 49 ms after the first, by a schedule that has moved.
        assert!(took >= 134_000_000, "{took}");
    }

    #[test]
    fn packets_for_a_blocked_port_are_lost_at_the_uplink() {
        let mut run = profile(10_000.0, 50);
        run.uplink_wait = Span::from_millis(1);
        let report = Generator::new(run)
            .unwrap()
            .run(&mut [LoopbackPort::new(0)], &Control::new(), |_| {})
            .unwrap();
        assert_eq!(
            (
                report.counts.offered_packets,
                report.lost,
                report.counts.lost_at_uplink
            ),
            (500, 500, 500)
        );
        assert_eq!(report.counts.returned_packets, 0);
    }

    #[test]
    fn an_oversized_frame_is_rejected_before_sending() {
        let mut run = profile(10.0, 10);
        run.phases[0].uplink = 1;
        let error = Generator::new(run)
            .unwrap()
            .run(&mut [LoopbackPort::new(1)], &Control::new(), |_| {})
            .unwrap_err();
        assert!(matches!(error, Error::Uplinks { needed: 1, given: 1 }), "{error}");
    }
}
