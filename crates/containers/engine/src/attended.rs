//! A launcher beside an engine that has no use for it: a thread starts it again where it ends.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::Timespec;

use crate::EngineError;
use crate::launcher::Launcher;
use crate::wire::{Notice, Received};

/// Time between attempts to start it again.
const RETRY: Duration = Duration::from_secs(1);

/// A launcher that lives for as long as this does. Whenever it ends, another one gets what it kept.
#[derive(Debug)]
pub struct AttendedLauncher {
    /// The thread ends when this is closed.
    open: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl AttendedLauncher {
    /// Attends to the launcher.
    ///
    /// # Errors
    /// [`EngineError::Io`] where the system has no pipe or thread to give.
    pub fn new(launcher: Launcher) -> Result<AttendedLauncher, EngineError> {
        let failed = |error: std::io::Error| EngineError::io("attend to", Path::new("launcher"), &error);
        let (closed, open) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let thread = std::thread::Builder::new()
            .name("inco-launcher".to_owned())
            .spawn(move || attend(launcher, &closed))
            .map_err(failed)?;
        Ok(AttendedLauncher {
            open: Some(open),
            thread: Some(thread),
        })
    }
}

impl Drop for AttendedLauncher {
    fn drop(&mut self) {
        self.open = None;
        if let Some(thread) = self.thread.take() {
            // Where it panicked, that was said on standard error.
            let _ = thread.join();
        }
    }
}

/// Waits until the launcher has something to tell, or until the next attempt to start it. True once the pipe is closed.
fn is_closed(closed: &OwnedFd, launcher: &Launcher, runs: bool) -> bool {
    let mut files = vec![PollFd::new(closed, PollFlags::IN)];
    files.extend(runs.then(|| PollFd::new(launcher.channel(), PollFlags::IN)));
    let retry: Option<Timespec> = RETRY.try_into().ok();
    let waited = poll(&mut files, retry.as_ref().filter(|_| !runs));
    let is_over = files.first().is_some_and(|file| !file.revents().is_empty());
    is_over || waited.is_err_and(|errno| errno != Errno::INTR)
}

/// Until the pipe is closed.
fn attend(mut launcher: Launcher, closed: &OwnedFd) {
    let mut runs = true;
    loop {
        if is_closed(closed, &launcher, runs) {
            return;
        }
        // It has nothing to tell: it was asked for nothing.
        runs = runs
            && !matches!(
                launcher.channel().receive::<Notice>(),
                Ok(Received::Closed) | Err(_)
            );
        if !runs {
            match launcher.again() {
                Ok(again) => (launcher, runs) = (again, true),
                Err(error) => tracing::warn!(%error, "the launcher has ended: another attempt follows"),
            }
        }
    }
}
