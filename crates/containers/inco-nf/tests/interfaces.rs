//! The program on network interfaces: real connections between two networks pass it in a third one. Their senders leave
//! checksums to a card that is not there, and send packets of up to 64 KiB.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nf_page::{NfCounters, PageReader};
use real_parts::{Namespace, fetch, serve};

const PATIENCE: Duration = Duration::from_secs(10);
const BYTES: u64 = 8 << 20;

fn can_be_tested() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    real_parts::available("root", (!is_root).then(|| "this is not root".to_owned()))
}

/// The program between a network with 10.0.0.1 and one with 10.0.0.2.
struct Between {
    networks: [Namespace; 2],
    _own: Namespace,
    program: Child,
    dir: tempfile::TempDir,
}

impl Between {
    fn start() -> Between {
        let own = Namespace::new("f");
        let networks = ["a", "b"].map(Namespace::new);
        for namespace in networks.iter().chain([&own]) {
            // No frame but those of the test.
            namespace.set("ipv6/conf/default/disable_ipv6", "1");
        }
        for (number, network) in networks.iter().enumerate() {
            own.ip(&format!(
                "link add eth{number} type veth peer name lan0 netns {}",
                network.name
            ));
            own.ip(&format!("link set eth{number} up"));
            network.ip(&format!("address add 10.0.0.{}/24 dev lan0", number + 1));
            network.ip("link set lan0 up");
        }
        let dir = tempfile::tempdir().unwrap();
        let program = own
            .command(env!("CARGO_BIN_EXE_inco-nf"))
            .args(["forward", "--interfaces", "eth0,eth1", "--ports", "2", "--cross"])
            .env("INCO_PAGE", dir.path().join("page.sock"))
            .spawn()
            .unwrap();
        Between {
            networks,
            _own: own,
            program,
            dir,
        }
    }

    /// What the program has counted once nothing comes any more.
    fn counters(&self) -> NfCounters {
        let page = PageReader::create().unwrap();
        let path = self.dir.path().join("page.sock");
        let deadline = Instant::now() + PATIENCE;
        let wait = |what: &str| {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        };
        while !path.exists() {
            wait("the page's socket");
        }
        page.offer(&path).unwrap();
        let mut last = None;
        loop {
            let now = page.read().map(|of| (of.heartbeat_ns, of));
            match (last.take(), now) {
                // Two beats later all that came is in it.
                (Some((beat, before)), Some((now, counters))) if now > beat && counters.ports == before => {
                    return counters;
                }
                (_, now) => last = now.map(|(beat, of)| (beat, of.ports)),
            }
            wait("the counters are still");
        }
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn connections_through_interfaces_are_exact() {
    if !can_be_tested() {
        return;
    }
    let between = Between::start();
    let [client, server] = &between.networks;
    serve(server, "10.0.0.2:80");
    client.within(|| fetch("10.0.0.2:80", BYTES)).unwrap();
    // The other way: what is divided comes in by the first interface.
    serve(client, "10.0.0.1:80");
    server.within(|| fetch("10.0.0.1:80", BYTES)).unwrap();

    let counters = between.counters();
    let ports = &counters.ports[..counters.port_count];
    for port in ports {
        assert_eq!(port.dropped_malformed + port.dropped_unconnected, 0, "{ports:?}");
    }
    // Each packet that left was no longer than the link carries.
    let packets: u64 = ports.iter().map(|port| port.packets_out).sum();
    assert!(packets > 2 * BYTES / 1500, "{ports:?}");
}

#[test]
fn what_is_missing_is_named() {
    if !can_be_tested() {
        return;
    }
    let own = Namespace::new("r");
    own.ip("link add eth0 type veth peer name eth1");
    let run = |command: &mut Command| {
        let output = command.stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let arguments = ["forward", "--interfaces"];
    let program = env!("CARGO_BIN_EXE_inco-nf");
    let without = ["--bounding-set=-net_raw", "--inh-caps=-net_raw", program];
    let said = run(own.command("setpriv").args(without).args(arguments).arg("eth0"));
    assert!(
        said.contains("\"eth0\"") && said.contains("CAP_NET_RAW"),
        "{said}"
    );
    let said = run(own.command(program).args(arguments).arg("eth9"));
    assert!(said.contains("eth9") && !said.contains("CAP_NET_RAW"), "{said}");
}
