//! Kernel interfaces: `veth:`. Needs root, because it creates a veth pair in its own network namespace.

use std::process::Command;
use std::time::{Duration, Instant};

use dpdk::{Mbuf, Port, PortConfig, Refused, device, interface_mtu};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::{alone, assert_full, eal, frame, pool, receive};

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn frames_cross_a_veth_pair() {
    let _alone = alone();
    // EAL's threads stay in the process's namespace.
    let eal = eal();
    let done = std::thread::spawn(move || {
        // SAFETY: a network namespace belongs to the thread; no file descriptor is unshared.
        if unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.is_err() {
            return false;
        }
        // No foreign traffic on the link.
        let _no_ipv6 = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        ip("link add inco-a type veth peer name inco-b");
        for name in ["inco-a", "inco-b"] {
            ip(&format!("link set {name} mtu 9000 up"));
        }
        assert_eq!(interface_mtu("inco-a").unwrap(), 9000);
        let missing = interface_mtu("inco-none").unwrap_err().to_string();
        assert!(missing.contains("the MTU of inco-none"), "{missing}");
        let frame_bytes = 9022;
        let args = |name: &str| {
            device::from_shorthand(&format!("veth:{name}"))
                .unwrap()
                .with(frame_bytes, 1)
        };
        let pool = pool(
            2047,
            u16::try_from(args("inco-a").frame_bytes(frame_bytes)).unwrap(),
        );
        let mut config = PortConfig::new(pool);
        config.mtu = Some(9000);
        let mut a = Port::attach(&eal, &args("inco-a")).unwrap();
        let mut b = Port::attach(&eal, &args("inco-b")).unwrap();
        assert_eq!(a.info().driver, "net_af_packet");
        assert_ne!(a.info().mac, b.info().mac);
        let mut at_a = a.start(&config).unwrap();
        let mut at_b = b.start(&config).unwrap();
        for there in [true, false] {
            let (from, to) = if there {
                (&mut at_a, &mut at_b)
            } else {
                (&mut at_b, &mut at_a)
            };
            // Up to 8,970 B: the kernel drops frames longer than its MTU plus header.
            let frames: Vec<_> = (0..199).map(|n| frame(n, 60 + n * 45)).collect();
            let mut waiting: Vec<Mbuf> = frames.iter().map(|f| pool.copy_from_slice(f).unwrap()).collect();
            let mut received = Vec::new();
            let mut burst = Vec::with_capacity(64);
            let deadline = Instant::now() + Duration::from_secs(5);
            while received.len() < frames.len() && Instant::now() < deadline {
                // In small bursts, so that the kernel's ring does not overflow.
                let mut next: Vec<Mbuf> = waiting.drain(..waiting.len().min(16)).collect();
                from.tx[0].send_from(&mut next, usize::MAX, None);
                next.append(&mut waiting);
                waiting = next;
                to.rx[0].receive_into(&mut burst, 64);
                received.extend(burst.drain(..).map(|mbuf| mbuf.data().to_vec()));
            }
            assert_eq!(received, frames);
            assert_eq!(from.tx[0].refused(), Refused::default());
        }
        // Longer than the kernel would send, not counting an 802.1Q tag: freed and counted, not silently
        // lost.
        let tagged = |len| {
            let mut bytes = frame(7, len);
            bytes[12..14].copy_from_slice(&[0x81, 0x00]);
            bytes
        };
        let frames = [frame(1, 9014), frame(2, 9015), tagged(9018), tagged(9019)];
        let mut mbufs: Vec<Mbuf> = frames.iter().map(|f| pool.copy_from_slice(f).unwrap()).collect();
        assert_eq!(at_a.tx[0].send_from(&mut mbufs, usize::MAX, None), 2);
        let refused = Refused {
            packets: 2,
            bytes: 9015 + 9019,
        };
        assert_eq!((mbufs.len(), at_a.tx[0].refused()), (0, refused));
        let received: Vec<_> = receive(&mut at_b.rx[0], 2)
            .iter()
            .map(|m| m.data().to_vec())
            .collect();
        assert_eq!(received, [frame(1, 9014), tagged(9018)]);
        drop((at_a, at_b));
        a.close().unwrap();
        b.close().unwrap();
        assert_full(&pool);
        true
    })
    .join()
    .unwrap();
    if !done {
        real_parts::available("root", Some("no network namespace could be made".to_owned()));
    }
}
