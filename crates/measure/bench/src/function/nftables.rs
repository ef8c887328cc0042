//! The kernel with rules of nftables: packets are sent into a veth, forwarded, and dropped behind another veth. The kernel
//! does all of it in the sending thread. What a packet costs that is dropped behind the first veth is subtracted: that is
//! the sender.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clock::thread_cpu;
use functions::RECEIVED_LIMIT;
use model::Nanos;
use packet_socket::{Config, PacketSocket};
use testbed::network::{Namespace, output, run};

use super::frames::ROUTER_MAC;
use super::side::{Side, measured};
use crate::cleanup::Cleanup;
use crate::contestant::Measured;

/// The name of the peer.
pub(super) const NAME: &str = "nftables";

const CONFIG: Config = Config {
    slots: 1024,
    frame_bytes: 1514,
};
/// Packets that are dropped behind the first veth.
const NOBODYS: usize = 1024;
/// An Ethernet type that nobody takes (IEEE 802, for experiments).
const NOBODYS_TYPE: [u8; 2] = [0x88, 0xb5];
/// Bursts between two looks at the clock.
const BURSTS: usize = 4;
/// The share of packets that must be forwarded when each is sent once. The kernel drops some where it gets no CPU.
const FORWARDED_MIN: f64 = 0.9;

/// A network namespace that is also removed when the bench is interrupted.
struct Network {
    namespace: Namespace,
    _removed: Cleanup,
}

impl Network {
    fn new(what: &str) -> Result<Network> {
        let name = format!("inco-bench-{}-{what}", std::process::id());
        let namespace = Namespace::new(name.clone())?;
        let removed = Cleanup::by(move || {
            // It is gone where the bench ends by itself.
            let _ = run("ip", &["netns", "del", &name]);
        });
        Ok(Network {
            namespace,
            _removed: removed,
        })
    }

    /// Sets kernel parameters of its network.
    fn set(&self, parameters: &[&str]) -> Result<()> {
        output(self.namespace.command("sysctl").arg("-qw").args(parameters)).map(drop)
    }
}

/// A kernel that forwards packets by rules.
pub(super) struct Kernel<'f> {
    sender: PacketSocket,
    frames: &'f [Vec<u8>],
    nobodys: Vec<Vec<u8>>,
    /// The next frame.
    at: usize,
    // In this order: the sender's end of the links goes first.
    _host: Network,
    router: Network,
}

impl<'f> Kernel<'f> {
    /// Two namespaces with a veth each way, of which the second one forwards by the rules. Each packet is sent once, so that
    /// what they begin is there.
    ///
    /// # Errors
    /// This is not root, a program is missing, or the rules let too few packets pass.
    pub(super) fn new(rules: &str, frames: &'f [Vec<u8>]) -> Result<Kernel<'f>> {
        ensure!(rustix::process::geteuid().is_root(), "it needs root");
        let host = Network::new("host")?;
        let router = Network::new("router")?;
        host.set(&["net.ipv6.conf.default.disable_ipv6=1"])?;
        router.set(&[
            "net.ipv6.conf.default.disable_ipv6=1",
            "net.ipv4.conf.all.rp_filter=0",
            "net.ipv4.conf.default.rp_filter=0",
            "net.ipv4.ip_forward=1",
        ])?;
        for (near, far) in [("a0", "a1"), ("b0", "b1")] {
            host.namespace.connect(near, &router.namespace, far)?;
            host.namespace.ip(&["link", "set", near, "up"])?;
        }
        let [a, b, c, d, e, f] = ROUTER_MAC;
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        let of = &router.namespace;
        of.ip(&["link", "set", "a1", "address", &mac])?;
        for (interface, address) in [("a1", "10.255.255.254/8"), ("b1", "192.0.2.1/24")] {
            of.ip(&["addr", "add", address, "dev", interface])?;
            of.ip(&["link", "set", interface, "up"])?;
        }
        let neighbour = ["lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "b1"];
        of.ip(&[&["neigh", "add", "192.0.2.254"][..], &neighbour].concat())?;
        of.ip(&["route", "add", "default", "via", "192.0.2.254"])?;
        load(of, rules)?;
        let sender = host.namespace.within(|| Ok(PacketSocket::open("a0", CONFIG)?))?;
        let nobodys = frames.iter().take(NOBODYS).cloned().map(|mut frame| {
            frame[12..14].copy_from_slice(&NOBODYS_TYPE);
            frame
        });
        let mut kernel = Kernel {
            sender,
            frames,
            nobodys: nobodys.collect(),
            at: 0,
            _host: host,
            router,
        };
        let before = kernel.forwarded()?;
        for frames in frames.chunks(RECEIVED_LIMIT) {
            send(&mut kernel.sender, frames.iter())?;
        }
        let forwarded = kernel.forwarded()? - before;
        if (forwarded as f64) < FORWARDED_MIN * frames.len() as f64 {
            bail!("the kernel forwarded {forwarded} of {} packets", frames.len());
        }
        Ok(kernel)
    }

    /// Packets that have left the router.
    fn forwarded(&self) -> Result<u64> {
        let file = Path::new("/proc/thread-self/net/dev");
        let text = self
            .router
            .namespace
            .within(|| Ok(std::fs::read_to_string(file)?))?;
        let line = text.lines().find_map(|line| line.trim().strip_prefix("b1:"));
        let count = line.and_then(|line| line.split_whitespace().nth(9)?.parse().ok());
        count.context("the kernel does not count what leaves b1")
    }

    /// Nanoseconds of a packet that is dropped behind the first veth.
    fn sender_ns(&mut self, time: Nanos) -> Result<f64> {
        let (began, mut packets) = (thread_cpu(), 0);
        loop {
            for frames in self.nobodys.chunks(RECEIVED_LIMIT) {
                packets += send(&mut self.sender, frames.iter())?;
            }
            let spent = thread_cpu().since(began);
            if spent >= time {
                return Ok(spent.0 as f64 / packets as f64);
            }
        }
    }
}

/// Loads rules in a namespace.
fn load(namespace: &Namespace, rules: &str) -> Result<()> {
    let file = std::env::temp_dir().join(format!("{}.nft", namespace.name()));
    std::fs::write(&file, rules).with_context(|| format!("cannot write {}", file.display()))?;
    let loaded = output(namespace.command("nft").arg("-f").arg(&file));
    std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    loaded.map(drop)
}

/// Sends some frames with one system call. Returns how many.
fn send<'f>(socket: &mut PacketSocket, frames: impl Iterator<Item = &'f Vec<u8>>) -> Result<u64> {
    let (_, sender) = socket.rings();
    let mut count = 0;
    for frame in frames {
        let put = sender.put(frame);
        put.map_err(|error| anyhow!("the ring of the sender takes no packet: {error:?}"))?;
        count += 1;
    }
    sender.send().context("the kernel refuses packets")?;
    Ok(count)
}

impl Side for Kernel<'_> {
    /// A third of the time goes to packets that measure the sender.
    fn turn(&mut self, time: Nanos) -> Result<Measured> {
        let sender_ns = self.sender_ns(Nanos(time.0 / 3))?;
        let time = Nanos(time.0 - time.0 / 3);
        let before = self.forwarded()?;
        let (began, mut sent) = (thread_cpu(), 0);
        let spent = loop {
            for _ in 0..BURSTS {
                let end = (self.at + RECEIVED_LIMIT).min(self.frames.len());
                sent += send(&mut self.sender, self.frames[self.at..end].iter())?;
                self.at = if end < self.frames.len() { end } else { 0 };
            }
            let spent = thread_cpu().since(began);
            if spent >= time {
                break spent;
            }
        };
        let forwarded = self.forwarded()? - before;
        let net = spent.0 as f64 - sender_ns * sent as f64;
        ensure!(
            forwarded > 0 && net > 0.0,
            "the kernel forwarded {forwarded} of {sent} packets"
        );
        Ok(measured(forwarded, Nanos(net as u64)))
    }
}
