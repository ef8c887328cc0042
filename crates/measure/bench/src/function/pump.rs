//! Frames in a closed loop: another one is sent for each that comes back.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use traffic::Port;

/// Frames in flight: half of a ring, so that none finds it full.
pub(super) const WINDOW: usize = 2_048;
/// Frames that are sent or taken between two looks at the other.
const BURST: usize = 64;
/// How long it is waited for a frame until the other side is looked after again.
const NAP: Duration = Duration::from_millis(1);
/// A frame that has not come back by then is lost.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// Sends frames by a port, in turn, and takes back what comes.
pub(super) struct Pump<P> {
    port: P,
    /// The next frame.
    at: usize,
    in_flight: usize,
    taken: u64,
    buffer: Vec<u8>,
}

impl<P: Port> Pump<P> {
    pub(super) fn new(port: P) -> Pump<P> {
        Pump {
            port,
            at: 0,
            in_flight: 0,
            taken: 0,
            buffer: vec![0; memif::MAX_PACKET_BYTES],
        }
    }

    /// Frames that have come back since the start.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Sends each frame once.
    ///
    /// # Errors
    /// One does not come back.
    pub(super) fn once(&mut self, frames: &[Vec<u8>]) -> Result<()> {
        for frames in frames.chunks(WINDOW) {
            self.at = 0;
            while self.at < frames.len() {
                self.push(&frames[self.at..]);
                self.take()?;
            }
            self.empty()?;
        }
        self.at = 0;
        Ok(())
    }

    /// Sends frames for `time`. [`Pump::empty`] waits for the last ones.
    ///
    /// # Errors
    /// The port's peer has gone.
    pub(super) fn send(&mut self, frames: &[Vec<u8>], time: Duration) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < time {
            if self.at >= frames.len() {
                self.at = 0;
            }
            self.push(&frames[self.at..]);
            self.take()?;
        }
        Ok(())
    }

    /// Waits until nothing is in flight.
    ///
    /// # Errors
    /// Something does not come back.
    pub(super) fn empty(&mut self) -> Result<()> {
        let mut last = (self.in_flight, Instant::now());
        while self.in_flight > 0 {
            self.take()?;
            if self.in_flight < last.0 {
                last = (self.in_flight, Instant::now());
            } else if last.1.elapsed() > LOST_AFTER {
                bail!("{} packets did not come back", self.in_flight);
            }
        }
        Ok(())
    }

    /// Sends as many as may be in flight, a burst at most.
    fn push(&mut self, frames: &[Vec<u8>]) {
        let room = BURST.min(WINDOW.saturating_sub(self.in_flight));
        let mut pushed = 0;
        for frame in frames.iter().take(room) {
            if !self.port.push(frame) {
                break;
            }
            pushed += 1;
        }
        if pushed > 0 {
            self.port.flush();
            (self.at, self.in_flight) = (self.at + pushed, self.in_flight + pushed);
        }
    }

    /// Takes what has come. Sleeps for a moment if nothing has, and nothing more may be sent.
    fn take(&mut self) -> Result<()> {
        let mut came = 0;
        while came < BURST && self.port.receive(&mut self.buffer).is_some() {
            came += 1;
        }
        if came > 0 {
            self.port.release();
            (self.taken, self.in_flight) = (self.taken + came as u64, self.in_flight.saturating_sub(came));
            return Ok(());
        }
        self.port.maintain();
        if self.port.is_away() {
            bail!("the link to the function has gone");
        }
        if self.in_flight < WINDOW {
            return Ok(());
        }
        if self.port.arm()
            && let Some(woken) = self.port.wake_fd()
        {
            memif::wait(&mut [], &[woken], NAP).context("cannot wait for packets")?;
        }
        self.port.disarm();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use traffic::LoopbackPort;

    use super::*;

    #[test]
    fn what_is_sent_comes_back_and_is_counted() {
        let frames: Vec<Vec<u8>> = (0..5_000).map(|at| vec![0; 60 + at % 7]).collect();
        let mut pump = Pump::new(LoopbackPort::new(WINDOW));
        pump.once(&frames).unwrap();
        assert_eq!((pump.taken(), pump.in_flight), (5_000, 0));
        pump.send(&frames, Duration::from_millis(2)).unwrap();
        pump.empty().unwrap();
        assert!(pump.taken() > 5_000);
    }
}
