//! What a frame costs between this program and a container's network, in CPU time: by the rings of a packet socket, by a
//! socket of AF_XDP, and by a TAP interface. The kernel's work in the container's network is part of sending. Needs root.
//!
//! cargo run --release -p packet-socket --example port_cost

#![allow(clippy::unwrap_used, reason = "what goes wrong ends the measurement")]

mod xdp;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use packet_socket::{Config, PacketSocket};
use real_parts::Namespace;
use rustix::time::{ClockId, clock_gettime};
use xdp::XdpSocket;

const CONFIG: Config = Config {
    slots: 1024,
    frame_bytes: 1514,
};
/// Frames of a burst, and bursts of a measurement.
const BURST: usize = 32;
const BURSTS: usize = 10_000;
/// Bytes before a frame of a TAP interface.
const LEFT: usize = 10;

/// The CPU time of this thread.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn ns_per_frame(time: Duration) -> u128 {
    time.as_nanos() / (BURST * BURSTS) as u128
}

/// A frame that every network drops.
fn frame(len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].fill(0xff);
    frame[6] = 2;
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// Bursts of frames from one packet socket to another one, or only into the interface.
fn by_packet_socket(here: &mut PacketSocket, there: Option<&mut PacketSocket>, len: usize) -> (u128, u128) {
    let (frame, mut taking) = (frame(len), Duration::ZERO);
    let (mut sum, mut there) = (0, there);
    let began = cpu();
    for _ in 0..BURSTS {
        let (_, sender) = here.rings();
        (0..BURST).for_each(|_| sender.put(&frame).unwrap());
        sender.send().unwrap();
        if let Some(there) = &mut there {
            let before = cpu();
            let (receiver, _) = there.rings();
            receiver.take(BURST, |frame| {
                sum += usize::from(frame.bytes[len - 1]) + frame.bytes.len();
                ControlFlow::Continue(())
            });
            receiver.release();
            taking += cpu() - before;
        }
    }
    assert!(there.is_none() || sum == len * BURST * BURSTS);
    (ns_per_frame(cpu() - began - taking), ns_per_frame(taking))
}

/// Bursts into the interface by AF_XDP, and bursts of a packet socket in the container from it.
fn by_xdp(here: &mut XdpSocket, there: &mut PacketSocket, len: usize) -> (u128, u128) {
    let frame = frame(len);
    let began = cpu();
    (0..BURSTS).for_each(|_| here.send(&frame, BURST));
    let sending = cpu() - began;
    let (mut taking, mut sum) = (Duration::ZERO, 0);
    for _ in 0..BURSTS {
        let (_, sender) = there.rings();
        (0..BURST).for_each(|_| sender.put(&frame).unwrap());
        sender.send().unwrap();
        let mut left = BURST;
        while left > 0 {
            let before = cpu();
            let (bytes, taken) = here.take(left);
            // The kernel may bring them in a thread of its own.
            if taken > 0 {
                taking += cpu() - before;
            }
            (sum, left) = (sum + bytes, left - taken);
        }
    }
    assert_eq!(sum, len * BURST * BURSTS);
    (ns_per_frame(sending), ns_per_frame(taking))
}

/// A TAP interface of this thread's network.
fn tap(name: &[u8]) -> File {
    let file = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .unwrap();
    // SAFETY: all fields of this structure are numbers.
    #[expect(unsafe_code)]
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    // SAFETY: the kernel reads and writes a structure that outlives the call.
    #[expect(unsafe_code)]
    let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(set, 0);
    file
}

fn by_tap(tap: &mut File, from: &mut PacketSocket, len: usize) -> (u128, u128) {
    let mut out = vec![0; LEFT];
    out.extend(frame(len));
    let began = cpu();
    for _ in 0..BURSTS * BURST {
        tap.write_all(&out).unwrap();
    }
    let sending = cpu() - began;
    let (frame, mut taking, mut room) = (frame(len), Duration::ZERO, vec![0; 2048]);
    for _ in 0..BURSTS {
        let (_, sender) = from.rings();
        (0..BURST).for_each(|_| sender.put(&frame).unwrap());
        sender.send().unwrap();
        let before = cpu();
        for _ in 0..BURST {
            assert_eq!(tap.read(&mut room).unwrap(), LEFT + len);
        }
        taking += cpu() - before;
    }
    (ns_per_frame(sending), ns_per_frame(taking))
}

fn main() {
    let (host, container) = (Namespace::new("host"), Namespace::new("container"));
    for of in [&host, &container] {
        of.set("ipv6/conf/default/disable_ipv6", "1");
    }
    host.ip(&format!(
        "link add name a0 type veth peer name b0 netns {}",
        container.name
    ));
    host.ip("link set a0 up");
    container.ip("link set b0 up");
    host.enter();
    let open = |of: &Namespace, name: &str| of.within(|| PacketSocket::open(name, CONFIG).unwrap());
    let mut tap = container.within(|| tap(b"t0"));
    container.ip("link set t0 up");
    println!("CPU time of a frame, in ns    bytes  to the container  from it");
    for len in [60, 1514] {
        let mut here = open(&host, "a0");
        let (to, _) = by_packet_socket(&mut here, None, len);
        let mut there = open(&container, "b0");
        let (_, from) = by_packet_socket(&mut there, Some(&mut here), len);
        println!("packet socket                 {len:>5}  {to:>16}  {from:>7}");
        drop(here);
        let mut here = XdpSocket::open("a0");
        let (to, from) = by_xdp(&mut here, &mut there, len);
        println!("AF_XDP                        {len:>5}  {to:>16}  {from:>7}");
        drop((here, there));
        let mut other = open(&container, "t0");
        let (to, from) = by_tap(&mut tap, &mut other, len);
        println!("TAP with vnet_hdr             {len:>5}  {to:>16}  {from:>7}");
    }
}
