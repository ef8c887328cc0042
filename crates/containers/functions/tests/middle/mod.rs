//! A function between two kernels, each in a network namespace of its own.

use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, TryRecvError};

use functions::{Burst, Chain, Compiled, RECEIVED_LIMIT};
use packet_socket::{Config, PacketSocket};
use real_parts::{Namespace, available, run};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

const CONFIG: Config = Config {
    slots: 1024,
    frame_bytes: 1514,
};
/// The thread in the middle looks at least so often whether there is something else.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Whether namespaces can be made here.
pub(crate) fn is_possible() -> bool {
    let missing = (!rustix::process::geteuid().is_root()).then(|| "this is not run as root".to_owned());
    available("root", missing)
}

/// Connects two namespaces with one in the middle, each by a link with this name there, and with this MAC address. The
/// sockets at the ends in the middle.
pub(crate) fn connect(middle: &Namespace, ends: [(&Namespace, &str, &str); 2]) -> [PacketSocket; 2] {
    for (number, (of, there, mac)) in ends.into_iter().enumerate() {
        of.set("ipv6/conf/default/disable_ipv6", "1");
        middle.set("ipv6/conf/default/disable_ipv6", "1");
        middle.ip(&format!(
            "link add name m{number} type veth peer name {there} netns {}",
            of.name
        ));
        middle.ip(&format!("link set m{number} up"));
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
    ["m0", "m1"].map(|name| middle.within(|| PacketSocket::open(name, CONFIG).unwrap()))
}

fn now() -> model::Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    model::Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Passes frames between two sockets through a chain of one function, and gives it the configurations that come, until nobody
/// can send one any more. The metrics of the function in the end.
pub(crate) fn pass(
    mut sockets: [PacketSocket; 2],
    mut chain: Chain,
    configurations: &Receiver<Compiled>,
) -> Vec<u64> {
    let mut burst = Burst::new();
    loop {
        match configurations.try_recv() {
            Ok(next) => drop(chain.reload(0, next).unwrap()),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break,
        }
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
