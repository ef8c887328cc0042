//! A pair of interfaces for tests of kernel ports: one end for a container, the other one in a network namespace with
//! a client. The client stands where the next hop of the container is.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use model::{InterfaceSetup, NetFunction};

use super::PATIENCE;

/// Where the service is.
pub const SERVICE: &str = "10.0.0.100";
pub const SERVICE_V6: &str = "2001:db8::100";
const GATEWAY_MAC: [u8; 6] = [2, 0x69, 0x6e, 0x63, 0x6f, 0];

/// What is missing here for such a pair.
pub fn missing() -> Option<String> {
    let has_ip = Path::new("/usr/sbin/ip").exists() || Path::new("/sbin/ip").exists();
    (!has_ip).then(|| "there is no ip (package iproute2)".to_owned())
}

pub struct Wire {
    namespace: String,
    /// The container's end.
    pub host: String,
}

fn ip(arguments: &str) -> Output {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

impl Wire {
    pub fn new() -> Wire {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let own = std::process::id();
        let wire = Wire {
            namespace: format!("inco-ports-{own}-{id}"),
            host: format!("incoc{own}.{id}"),
        };
        ip(&format!("netns add {}", wire.namespace));
        wire.plug();
        wire
    }

    /// Makes the pair, as the driver of a switch does.
    pub fn plug(&self) {
        let Wire { namespace, host } = self;
        let mac = GATEWAY_MAC.map(|byte| format!("{byte:02x}")).join(":");
        ip(&format!(
            "link add {host} type veth peer name wire netns {namespace} address {mac}"
        ));
        let within = |arguments: &str| ip(&format!("-n {namespace} {arguments}"));
        within("address add 10.9.0.1/24 dev wire");
        within("address add 2001:db8:9::1/64 dev wire nodad");
        within("link set wire up");
        within(&format!("route add {SERVICE}/32 dev wire"));
        within(&format!("route add {SERVICE_V6}/128 dev wire"));
    }

    /// The container's end, as a container gets it.
    pub fn port(&self) -> InterfaceSetup {
        InterfaceSetup {
            host: self.host.clone(),
            name: "eth0".to_owned(),
            mac: [2, 0x69, 0x6e, 0x63, 0, 7],
            mtu: 1_500,
            addresses: vec![(SERVICE.parse().unwrap(), 32), (SERVICE_V6.parse().unwrap(), 128)],
            gateway_v4: Ipv4Addr::new(169, 254, 1, 1),
            gateway_v6: "fe80::1".parse().unwrap(),
            gateway_mac: GATEWAY_MAC,
            local_ports: Some((20_000, 20_999)),
        }
    }

    pub fn function(&self) -> NetFunction {
        NetFunction::Port(self.port())
    }

    /// Whether the pair is there, seen from the client.
    pub fn is_plugged(&self) -> bool {
        let links = ip(&format!("-n {} -o link", self.namespace)).stdout;
        String::from_utf8_lossy(&links).contains("wire")
    }

    /// What a client's command writes.
    pub fn client(&self, command: &[&str]) -> Output {
        Command::new("ip")
            .args(["netns", "exec", &self.namespace])
            .args(command)
            .output()
            .unwrap()
    }

    /// Whether the container's kernel answers the client: that nobody listens there.
    pub fn answers(&self, address: &str) -> bool {
        let connect = format!("exec 3<>/dev/tcp/{address}/9");
        let output = self.client(&["timeout", "5", "bash", "-c", &connect]);
        String::from_utf8_lossy(&output.stderr).contains("refused")
    }

    /// What the client's command writes, once it succeeds.
    pub fn client_gets(&self, command: &[&str]) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.client(command);
            if output.status.success() {
                return String::from_utf8(output.stdout).unwrap();
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(Instant::now() < deadline, "{command:?}: {said}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // With it goes its end of the pair, and so the other one.
        let _ = Command::new("ip")
            .args(["netns", "del", &self.namespace])
            .status();
    }
}
