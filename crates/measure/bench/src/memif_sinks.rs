//! Sinks on memif ports: a thread that takes the packets sent to instances and returns none.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use memif::{Link, Listener, ServerConfig};

use super::contestant::pin_to_cpu;

/// Packets taken from one instance before the next one.
const BURST: usize = 256;
/// Turns without a packet before it sleeps.
const EMPTY_POLLS: u32 = 1000;
const IDLE_SLEEP: Duration = Duration::from_micros(50);
/// Largest packet, in bytes.
const PACKET_BYTES: usize = 2048;

/// Listening sinks, one per instance. Dropping this ends them.
pub(super) struct MemifSinks {
    /// Their sockets, in the order of the instances.
    pub(super) sockets: Vec<PathBuf>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MemifSinks {
    /// Listens on one socket in `folder` per instance; the thread runs on that CPU.
    ///
    /// # Errors
    /// Returns an error if a socket or the thread cannot be created.
    pub(super) fn start(folder: &Path, count: u16, cpu: usize) -> Result<MemifSinks> {
        let sockets: Vec<PathBuf> = (0..count).map(|n| folder.join(format!("sink{n}.sock"))).collect();
        let listeners = sockets
            .iter()
            .map(|socket| Listener::bind(socket, ServerConfig::new("inco bench")))
            .collect::<Result<Vec<_>, _>>()
            .context("cannot listen for the switch")?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name("bench-sinks".to_owned())
            .spawn({
                let stop = Arc::clone(&stop);
                move || {
                    // On another CPU it would compete with the measured thread.
                    let _stays = pin_to_cpu(cpu);
                    empty(listeners, &stop);
                }
            })
            .context("cannot start the thread that empties memif ports")?;
        Ok(MemifSinks {
            sockets,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for MemifSinks {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _result = thread.join();
        }
    }
}

/// Takes packets until `stop` is set.
fn empty(mut waiting: Vec<Listener>, stop: &AtomicBool) {
    let mut links: Vec<Link> = Vec::new();
    // Listeners are kept: dropping one removes its socket.
    let mut connected: Vec<Listener> = Vec::new();
    let mut packet = vec![0; PACKET_BYTES];
    let mut dry = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut place = 0;
        while place < waiting.len() {
            match waiting[place].accept(Duration::ZERO) {
                Ok(Some(link)) => {
                    links.push(link);
                    connected.push(waiting.swap_remove(place));
                }
                // After an error it listens again; the switch reports the reason.
                Ok(None) | Err(_) => place += 1,
            }
        }
        let mut taken = 0;
        for link in &mut links {
            for pair in &mut link.queues {
                let mut left = BURST;
                while left > 0 && pair.rx.pop(&mut packet).is_some() {
                    left -= 1;
                }
                taken += BURST - left;
                pair.rx.release();
            }
        }
        dry = if taken > 0 { 0 } else { dry + 1 };
        if dry > EMPTY_POLLS {
            std::thread::sleep(IDLE_SLEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use memif::{Client, ClientConfig};

    use super::*;

    #[test]
    fn what_is_sent_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let sinks = MemifSinks::start(folder.path(), 2, 0).unwrap();
        for socket in &sinks.sockets {
            let config = ClientConfig::new(socket, 0);
            let mut link = Client::connect_when_ready(&config, Duration::from_secs(20)).unwrap();
            let slots = link.queues[0].tx.slots();
            let began = std::time::Instant::now();
            // More than the ring's slots.
            let mut sent = 0;
            while sent < 4 * slots {
                match link.queues[0].tx.push(&[0; 64]) {
                    Ok(()) => sent += 1,
                    Err(_) => std::thread::yield_now(),
                }
                link.queues[0].tx.flush();
                assert!(
                    began.elapsed() < Duration::from_secs(20),
                    "only {sent} packets were taken"
                );
            }
        }
    }
}
