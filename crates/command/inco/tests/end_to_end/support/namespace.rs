//! Network namespaces of a test's own.

use std::fs::File;
use std::num::NonZero;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{PATIENCE, eventually, text};

/// A network namespace. Everything in it goes when it is dropped.
pub(crate) struct Namespace {
    /// A program that does nothing but be there. It ends with the thread that made it at the latest.
    holder: Child,
}

impl Namespace {
    pub(crate) fn new() -> Namespace {
        let holder = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let namespace = Namespace { holder };
        let of = |path: PathBuf| std::fs::read_link(path).ok();
        eventually("there is a network namespace", PATIENCE, || {
            let (ours, its) = (of("/proc/self/ns/net".into())?, of(namespace.path())?);
            (ours != its).then_some(())
        });
        // Nothing but ours on the wire.
        namespace.within(|| {
            let _no_ipv6 = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        });
        namespace
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.pid()))
    }

    /// For `ip link ... netns PID`.
    pub(crate) fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// Does something in it, on a thread of its own. Programs that are started there stay there.
    pub(crate) fn within<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        within_network_of(self.pid(), run)
    }

    /// A program in it, not started yet.
    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.path().display()))
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// `ip`, a command a line.
    pub(crate) fn ip(&self, commands: &str) {
        for command in commands.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let output = self.within(|| {
                Command::new("ip")
                    .args(command.split_whitespace())
                    .output()
                    .unwrap()
            });
            assert!(output.status.success(), "ip {command}: {}", text(&output.stderr));
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _gone = self.holder.kill();
        let _status = self.holder.wait();
    }
}

/// Does something in the network namespace of a process, on a thread of its own.
pub(crate) fn within_network_of<T: Send>(pid: u32, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let namespace = File::open(format!("/proc/{pid}/ns/net")).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            run()
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Every frame of the namespace that it was made in, as it leaves an interface and as it comes in.
pub(crate) struct Sniffer {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Sniffer {
    pub(crate) fn new() -> Sniffer {
        /// Every protocol, in the network's order.
        const ETH_P_ALL: u16 = 3;
        let all = NonZero::new(u32::from(ETH_P_ALL.to_be())).map(Protocol::from_raw);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, all).unwrap();
        set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
        Sniffer {
            socket,
            buffer: vec![0; 65_536],
        }
    }

    /// The next frame, if there is one.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        let (_, len) = recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()).ok()?;
        self.buffer.get(..len).map(<[u8]>::to_vec)
    }
}
