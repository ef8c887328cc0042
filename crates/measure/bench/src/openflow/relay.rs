//! A socket between inco and the bridge that can cut their connection while both keep running.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};

const POLL_INTERVAL: Duration = Duration::from_millis(2);
const BYTES: usize = 64 << 10;

/// Relays a connection while open. While closed, nothing listens on its socket.
pub(super) struct Relay {
    socket: PathBuf,
    bridge: PathBuf,
    open: Option<Open>,
}

struct Open {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Relay {
    /// A closed relay.
    pub(super) fn new(socket: PathBuf, bridge: PathBuf) -> Relay {
        Relay {
            socket,
            bridge,
            open: None,
        }
    }

    /// Listens and relays.
    ///
    /// # Errors
    /// Returns the error of the failed system call.
    pub(super) fn open(&mut self) -> Result<()> {
        self.interrupt_control();
        let listener = UnixListener::bind(&self.socket)
            .with_context(|| format!("cannot listen at {}", self.socket.display()))?;
        listener
            .set_nonblocking(true)
            .context("a socket that does not wait")?;
        let stop = Arc::new(AtomicBool::new(false));
        let (bridge, stopped) = (self.bridge.clone(), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("bench-relay".to_owned())
            .spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((controller, _)) => {
                            // The next connection is accepted after this one has ended.
                            let _ended = pass(&controller, &bridge, &stopped);
                        }
                        Err(_) => thread::sleep(POLL_INTERVAL),
                    }
                }
            })
            .context("cannot start the thread of the relay")?;
        self.open = Some(Open { stop, thread });
        Ok(())
    }

    /// Cuts the connection; new connections are refused.
    pub(super) fn interrupt_control(&mut self) {
        if let Some(Open { stop, thread }) = self.open.take() {
            stop.store(true, Ordering::Relaxed);
            let _ended = thread.join();
        }
        let _gone = std::fs::remove_file(&self.socket);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.interrupt_control();
    }
}

/// Relays between two sockets until one closes or `stopped` is set.
fn pass(controller: &UnixStream, bridge: &Path, stopped: &AtomicBool) -> io::Result<()> {
    let bridge = UnixStream::connect(bridge)?;
    controller.set_nonblocking(false)?;
    thread::scope(|scope| {
        let threads = [
            scope.spawn(|| copy(controller, &bridge)),
            scope.spawn(|| copy(&bridge, controller)),
        ];
        while !threads.iter().any(|thread| thread.is_finished()) && !stopped.load(Ordering::Relaxed) {
            thread::sleep(POLL_INTERVAL);
        }
        for end in [controller, &bridge] {
            let _is_over = end.shutdown(Shutdown::Both);
        }
    });
    Ok(())
}

/// Relays one direction until either end closes; then closes both.
fn copy(mut from: &UnixStream, mut to: &UnixStream) {
    let mut bytes = vec![0; BYTES];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if to.write_all(bytes.get(..read).unwrap_or_default()).is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _is_over = end.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_passes_on_until_it_is_cut() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, bridge) = (directory.path().join("relay"), directory.path().join("bridge"));
        let listener = UnixListener::bind(&bridge).unwrap();
        let mut relay = Relay::new(socket.clone(), bridge);
        for _ in 0..2 {
            relay.open().unwrap();
            let mut ours = UnixStream::connect(&socket).unwrap();
            let (mut its, _) = listener.accept().unwrap();
            let mut bytes = [0; 5];
            ours.write_all(b"hello").unwrap();
            its.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"hello");
            its.write_all(b"there").unwrap();
            ours.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"there");
            relay.interrupt_control();
            assert_eq!(ours.read(&mut bytes).unwrap(), 0);
            assert_eq!(its.read(&mut bytes).unwrap(), 0);
            assert!(UnixStream::connect(&socket).is_err());
        }
    }
}
