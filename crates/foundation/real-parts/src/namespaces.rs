//! Network namespaces for tests.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network namespace. It ends with this value, and with it the interfaces in it.
pub struct Namespace {
    /// Its name.
    pub name: String,
    /// Whether it ends with another value.
    is_borrowed: bool,
}

impl Namespace {
    /// A new one, whose name says what it is for.
    ///
    /// # Panics
    /// Without root.
    pub fn new(what: &str) -> Namespace {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("inco-test-{}-{number}-{what}", std::process::id());
        run("ip", &["netns", "add", &name]);
        let namespace = Namespace {
            name,
            is_borrowed: false,
        };
        namespace.ip("link set lo up");
        // A new namespace has what the machine has, where Docker may have switched it on.
        namespace.set("ipv4/ip_forward", "0");
        namespace
    }

    /// The same one, for another thread.
    pub fn clone_of(other: &Namespace) -> Namespace {
        Namespace {
            name: other.name.clone(),
            is_borrowed: true,
        }
    }

    /// Runs `ip` there.
    ///
    /// # Panics
    /// Where that fails.
    pub fn ip(&self, arguments: &str) {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments.split(' '));
        run("ip", &all);
    }

    /// Sets a kernel parameter of the network there.
    ///
    /// # Panics
    /// Where that fails.
    pub fn set(&self, parameter: &str, value: &str) {
        let path = format!("/proc/sys/net/{parameter}");
        let value = value.to_owned();
        self.within(move || std::fs::write(path, value).unwrap());
    }

    /// Moves this thread there.
    ///
    /// # Panics
    /// Where that fails.
    pub fn enter(&self) {
        let file = std::fs::File::open(format!("/run/netns/{}", self.name)).unwrap();
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Does something there. This thread stays where it is.
    ///
    /// # Panics
    /// Where that fails.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                work()
            });
            thread.join().unwrap()
        })
    }

    /// A command that runs there.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if !self.is_borrowed {
            let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
        }
    }
}

/// Runs a command that must succeed.
///
/// # Panics
/// Where it does not.
pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
