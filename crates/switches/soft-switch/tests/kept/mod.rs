//! A keeper for tests: what a run of the switch leaves outlives it there.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use keeper::{Keeper, Order, Server};
use rustix::event::{PollFd, PollFlags, poll};
use soft_switch::{Keep, Numbering};

/// What a run has of the keeper of that directory.
pub(crate) fn keep_of(directory: &Path) -> Keep {
    let keeper = Keeper::connect(directory).unwrap().unwrap();
    Keep::new(
        Arc::new(keeper),
        Numbering::new(std::iter::once("one".to_owned())),
        [5; 16],
    )
    .in_hugepages(false)
}

/// A keeper's server in a thread.
pub(crate) struct Kept {
    pub(crate) directory: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    /// While set, it answers nothing.
    pub(crate) hangs: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kept {
    pub(crate) fn start() -> Kept {
        let directory = tempfile::tempdir().unwrap();
        let mut server = Server::bind(directory.path()).unwrap();
        let (stop, hangs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (is_over, waits) = (Arc::clone(&stop), Arc::clone(&hangs));
        let step = Duration::from_millis(5);
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                if waits.load(Ordering::Relaxed) {
                    std::thread::sleep(step);
                    continue;
                }
                assert_eq!(server.serve(), Order::None);
                let files = server.files();
                let mut fds: Vec<_> = files
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                    .collect();
                poll(&mut fds, Some(&step.try_into().unwrap())).unwrap();
            }
        });
        Kept {
            directory,
            stop,
            hangs,
            thread: Some(thread),
        }
    }

    pub(crate) fn client(&self) -> Keeper {
        Keeper::connect(self.directory.path()).unwrap().unwrap()
    }

    /// What a run has.
    pub(crate) fn run(&self) -> Option<Keep> {
        Some(keep_of(self.directory.path()))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}
