//! Network namespaces, and packet sockets in them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network namespace. It ends with this value, and with it the interfaces in it.
pub(crate) struct Namespace {
    pub(crate) name: String,
    /// Whether it ends with another value.
    is_borrowed: bool,
}

impl Namespace {
    pub(crate) fn new(what: &str) -> Namespace {
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
    pub(crate) fn clone_of(other: &Namespace) -> Namespace {
        Namespace {
            name: other.name.clone(),
            is_borrowed: true,
        }
    }

    /// Runs `ip` there.
    pub(crate) fn ip(&self, arguments: &str) {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments.split(' '));
        run("ip", &all);
    }

    /// Sets a kernel parameter of the network there.
    pub(crate) fn set(&self, parameter: &str, value: &str) {
        let path = format!("/proc/sys/net/{parameter}");
        let value = value.to_owned();
        self.within(move || std::fs::write(path, value).unwrap());
    }

    /// Moves this thread there.
    pub(crate) fn enter(&self) {
        let file = std::fs::File::open(format!("/run/netns/{}", self.name)).unwrap();
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Does something there. This thread stays where it is.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter();
                work()
            });
            thread.join().unwrap()
        })
    }

    /// A command that runs there.
    pub(crate) fn command(&self, program: &str) -> Command {
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
pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Frames of an interface.
pub(crate) struct Tap {
    socket: OwnedFd,
}

impl Tap {
    /// Of an interface in a namespace.
    pub(crate) fn open(namespace: &Namespace, interface: &str) -> Tap {
        namespace.within(|| Tap {
            socket: packet_socket(interface).unwrap(),
        })
    }

    /// Sends a frame.
    pub(crate) fn send(&self, frame: &[u8]) {
        rustix::io::write(&self.socket, frame).unwrap();
    }

    /// The next frame that has been received.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 65_536];
        let length = rustix::io::read(&self.socket, &mut frame).ok()?;
        frame.truncate(length);
        Some(frame)
    }
}

fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: the name ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let all = (libc::ETH_P_ALL as u16).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a plain call.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(all)) };
    if fd < 0 || index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all fields of this structure are numbers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = index as i32;
    let (one, room): (libc::c_int, libc::c_int) = (1, 16 << 20);
    // SAFETY: the address and the options are valid for their lengths.
    let results = unsafe {
        [
            libc::bind(
                socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            ),
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                // PACKET_IGNORE_OUTGOING
                23,
                (&raw const one).cast(),
                4,
            ),
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const room).cast(),
                4,
            ),
        ]
    };
    if results.iter().any(|result| *result != 0) {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}
