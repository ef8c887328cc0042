//! Real connections through the function `nat`: two kernels talk, and the function works between them.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, Setup, find};
use packet_socket::{Config, PacketSocket};
use real_parts::{Namespace, available, echo, echoes, fetch, refuses, run, serve};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

const TEXT: &str = "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1024-65535\"]\n";
const SERVER: &str = "198.51.100.1";
const CONFIG: Config = Config {
    slots: 1024,
    frame_bytes: 1514,
};
const SETUP: Setup = Setup {
    instance: 1,
    ports: 2,
    seed: 3,
    external: None,
};
/// The thread in the middle looks at least so often whether the test is over.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

fn now() -> model::Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    model::Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Passes frames between two sockets through a chain. The metrics of its function in the end.
fn pass(mut sockets: [PacketSocket; 2], mut chain: Chain, is_over: &AtomicBool) -> Vec<u64> {
    let mut burst = Burst::new();
    while !is_over.load(Ordering::Acquire) {
        for port in [0, 1] {
            burst.begin(port, 1 - port);
            let (receiver, _) = sockets[usize::from(port)].rings();
            receiver.take(RECEIVED_LIMIT, |frame| {
                assert!(burst.push(frame.bytes));
                ControlFlow::Continue(())
            });
            receiver.release();
            chain.process(&mut burst, now());
            for extent in burst.leaving() {
                let (_, sender) = sockets[usize::from(extent.port())].rings();
                // What finds no room is lost, as in any network.
                let _ = sender.put(burst.bytes_of(extent));
            }
            for socket in &mut sockets {
                socket.rings().1.send().unwrap();
            }
        }
        if chain.due().is_some_and(|due| due <= now()) {
            chain.tick(0, &mut burst, 0, now());
        }
        let mut wait = sockets
            .each_ref()
            .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
        poll(&mut wait, Some(&LOOK)).unwrap();
    }
    let stage = &chain.stages()[0];
    let mut values = vec![0; stage.about().metrics.len()];
    stage.metrics(&mut values);
    values
}

#[test]
fn two_kernels_talk_through_nat() {
    let missing = (!rustix::process::geteuid().is_root()).then(|| "this is not run as root".to_owned());
    if !available("root", missing) {
        return;
    }
    let [client, middle, server] = ["client", "middle", "server"].map(Namespace::new);
    for (of, there, here, mac) in [
        (&client, "c0", "c1", "02:00:00:00:00:0a"),
        (&server, "s0", "s1", "02:00:00:00:00:0b"),
    ] {
        of.set("ipv6/conf/default/disable_ipv6", "1");
        middle.set("ipv6/conf/default/disable_ipv6", "1");
        middle.ip(&format!(
            "link add name {here} type veth peer name {there} netns {}",
            of.name
        ));
        middle.ip(&format!("link set {here} up"));
        of.ip(&format!("link set {there} address {mac}"));
        of.ip(&format!("link set {there} up"));
        // Senders compute checksums and divide segments themselves: nobody does it for them here.
        for option in ["tx", "tso", "gso"] {
            run(
                "ip",
                &["netns", "exec", &of.name, "ethtool", "-K", there, option, "off"],
            );
        }
    }
    client.ip("addr add 10.0.0.2/24 dev c0");
    client.ip("neigh add 10.0.0.1 lladdr 02:00:00:00:00:0b nud permanent dev c0");
    client.ip("route add default via 10.0.0.1");
    server.ip(&format!("addr add {SERVER}/24 dev s0"));
    // It knows the external address alone.
    server.ip("route add 192.0.2.1 dev s0");
    server.ip("neigh add 192.0.2.1 lladdr 02:00:00:00:00:0a nud permanent dev s0");
    let sockets = ["c1", "s1"].map(|name| middle.within(|| PacketSocket::open(name, CONFIG).unwrap()));
    let chain = Chain::new(vec![find(LIBRARY, "nat").unwrap().make(TEXT, &SETUP).unwrap()]).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let passing = std::thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || pass(sockets, chain, &is_over)
    });

    serve(&server, &format!("{SERVER}:80"));
    for _ in 0..3 {
        assert_eq!(client.within(|| fetch(&format!("{SERVER}:80"), 300_000)), Ok(()));
    }
    echo(&server, &format!("{SERVER}:53"));
    assert!(echoes(&client, "10.0.0.2:4000", &format!("{SERVER}:53"), 100));
    // In fragments, both ways.
    assert!(echoes(&client, "10.0.0.2:4000", &format!("{SERVER}:53"), 8000));
    assert!(
        refuses(&client, "10.0.0.2:4000", &format!("{SERVER}:9")),
        "the error must quote what was sent"
    );
    run(
        "ip",
        &[
            "netns",
            "exec",
            &client.name,
            "ping",
            "-c",
            "2",
            "-W",
            "5",
            SERVER,
        ],
    );

    is_over.store(true, Ordering::Release);
    let metrics = passing.join().unwrap();
    // Three connections, a port of UDP, and the identifier of an echo.
    assert_eq!(metrics[0], 5, "{metrics:?}");
}
