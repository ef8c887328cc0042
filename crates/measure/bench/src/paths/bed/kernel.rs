//! Paths of the kernel: bridges, rules of nftables, its VXLAN tunnel.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};
use testbed::network::{Namespace, output};

use super::{Bed, CLIENT, END, Ground, TUNNEL_MTU, end, namespace};
use crate::args::PathScope;

/// Clients, without the length of their network: in the server's, and in another one.
pub(super) const NEAR: &str = "10.76.0.1";
pub(super) const FAR: &str = "10.76.1.2";
/// The ends of one network.
pub(super) const CLIENT_ADDRESS: &str = "10.76.0.1/24";
pub(super) const SERVER: &str = "10.76.0.2";
pub(super) const SERVER_ADDRESS: &str = "10.76.0.2/24";
/// Where the generator's packets come from.
pub(super) const SOURCE: &str = "10.76.0.10";
/// The ends of two networks, and the service's address, which is in neither.
const ROUTED_CLIENT: &str = "10.76.1.2/24";
const ROUTED_SOURCE: &str = "10.76.1.10";
const ROUTER_OF_CLIENT: &str = "10.76.1.1";
const ROUTED_SERVER: &str = "10.76.2.2/24";
const ROUTER_OF_SERVER: &str = "10.76.2.1";
const SERVICE: &str = "10.76.3.1";
/// Hosts have these on the link between them.
pub(super) const UNDERLAY: [&str; 2] = ["10.76.9.1", "10.76.9.2"];
/// Services for which a host has rules, as kube-proxy writes them.
const SERVICES: u32 = 64;
/// Interfaces of hosts: towards the client, the server, and the other host.
pub(super) const NEAR_CLIENT: &str = "client0";
pub(super) const NEAR_SERVER: &str = "server0";
pub(super) const UPLINK: &str = "up0";

/// The hosts of the two ends: one or two, with a link between them.
pub(super) struct Hosts(Vec<Namespace>);

impl Hosts {
    pub(super) fn new(scope: PathScope) -> Result<Hosts> {
        let first = namespace("host1")?;
        if scope == PathScope::Local {
            return Ok(Hosts(vec![first]));
        }
        let second = namespace("host2")?;
        first.connect(UPLINK, &second, UPLINK)?;
        for host in [&first, &second] {
            host.ip(&["link", "set", UPLINK, "up"])?;
        }
        Ok(Hosts(vec![first, second]))
    }

    /// Each with the interfaces that its bridge joins; `between` is the one towards the other host.
    pub(super) fn with_interfaces<'h>(&'h self, between: &'h str) -> Vec<(&'h Namespace, [&'h str; 2])> {
        match self.0.as_slice() {
            [first, second] => vec![(first, [NEAR_CLIENT, between]), (second, [NEAR_SERVER, between])],
            all => all
                .iter()
                .map(|host| (host, [NEAR_CLIENT, NEAR_SERVER]))
                .collect(),
        }
    }

    /// The client's host and the server's.
    pub(super) fn ends(&self) -> Result<(&Namespace, &Namespace)> {
        match (self.0.first(), self.0.last()) {
            (Some(first), Some(last)) => Ok((first, last)),
            _ => anyhow::bail!("there is no host"),
        }
    }

    pub(super) fn into_namespaces(self) -> Vec<Namespace> {
        self.0
    }
}

/// Client and server in one network.
pub(super) fn ends(hosts: &Hosts) -> Result<(Namespace, Namespace)> {
    let (first, last) = hosts.ends()?;
    let client = end(CLIENT, first, NEAR_CLIENT, CLIENT_ADDRESS)?;
    let server = end("server", last, NEAR_SERVER, SERVER_ADDRESS)?;
    Ok((client, server))
}

/// Lets packets in a tunnel be as short as they must be.
pub(super) fn shorten(ends: [&Namespace; 2]) -> Result<()> {
    ends.into_iter()
        .try_for_each(|end| end.ip(&["link", "set", END, "mtu", TUNNEL_MTU]))
}

/// Makes a bridge of a host's interfaces.
pub(super) fn join(host: &Namespace, interfaces: &[&str]) -> Result<()> {
    host.ip(&["link", "add", "br0", "type", "bridge"])?;
    host.ip(&["link", "set", "br0", "up"])?;
    interfaces
        .iter()
        .try_for_each(|interface| host.ip(&["link", "set", interface, "master", "br0", "up"]))
}

/// Bridges.
pub(super) fn bridge<'g>(scope: PathScope) -> Result<Bed<'g>> {
    let hosts = Hosts::new(scope)?;
    let (client, server) = ends(&hosts)?;
    for (host, interfaces) in hosts.with_interfaces(UPLINK) {
        join(host, &interfaces)?;
    }
    Ok(Bed::of(client, server, hosts.into_namespaces(), SERVER))
}

/// Bridges with a tunnel between them.
pub(super) fn vxlan<'g>() -> Result<Bed<'g>> {
    let hosts = Hosts::new(PathScope::Across)?;
    let (client, server) = ends(&hosts)?;
    let [first, second] = UNDERLAY;
    let tunnels = [(first, second), (second, first)];
    for ((host, interfaces), (local, remote)) in hosts.with_interfaces("vxlan0").into_iter().zip(tunnels) {
        host.ip(&["address", "add", &format!("{local}/24"), "dev", UPLINK])?;
        host.ip(&[
            "link", "add", "vxlan0", "type", "vxlan", "id", "76", "local", local, "remote", remote,
            "dstport", "4789", "dev", UPLINK,
        ])?;
        join(host, &interfaces)?;
    }
    shorten([&client, &server])?;
    Ok(Bed::of(client, server, hosts.into_namespaces(), SERVER))
}

/// Routers with rules.
pub(super) fn nftables<'g>(ground: &Ground, scope: PathScope) -> Result<Bed<'g>> {
    let hosts = Hosts::new(scope)?;
    let (first, last) = hosts.ends()?;
    let client = end(CLIENT, first, NEAR_CLIENT, ROUTED_CLIENT)?;
    let server = end("server", last, NEAR_SERVER, ROUTED_SERVER)?;
    for (host, near, end, router) in [
        (first, NEAR_CLIENT, &client, ROUTER_OF_CLIENT),
        (last, NEAR_SERVER, &server, ROUTER_OF_SERVER),
    ] {
        host.ip(&["address", "add", &format!("{router}/24"), "dev", near])?;
        host.forward()?;
        end.ip(&["route", "add", "default", "via", router])?;
    }
    if scope == PathScope::Across {
        let [near, far] = UNDERLAY;
        for (host, own, other, network) in [
            (first, near, far, "10.76.2.0/24"),
            (last, far, near, "10.76.1.0/24"),
        ] {
            host.ip(&["address", "add", &format!("{own}/24"), "dev", UPLINK])?;
            host.ip(&["route", "add", network, "via", other])?;
        }
        load(ground, last, None)?;
    }
    load(ground, first, Some(SERVICE))?;
    let mut bed = Bed::of(client, server, hosts.into_namespaces(), SERVICE);
    bed.next_hop = ROUTER_OF_CLIENT;
    bed.own = FAR;
    bed.source = ROUTED_SOURCE;
    Ok(bed)
}

/// Gives a host its rules.
fn load(ground: &Ground, host: &Namespace, service: Option<&str>) -> Result<()> {
    let file = ground.directory().join("rules.nft");
    fs::write(&file, rules(service)).with_context(|| format!("cannot write {}", file.display()))?;
    output(host.command("nft").arg("--file").arg(file)).map(drop)
}

/// The rules of a host: the addresses of many services, of which `service` is the last one, and connections that are
/// followed.
fn rules(service: Option<&str>) -> String {
    let mut text =
        "table ip inco-paths {\n  chain services {\n    type nat hook prerouting priority dstnat;\n"
            .to_owned();
    for number in 1..SERVICES {
        let _ = writeln!(
            text,
            "    ip daddr 10.99.{number}.1 tcp dport 80 dnat to 10.98.{number}.1"
        );
    }
    if let Some(service) = service {
        let server = ROUTED_SERVER.trim_end_matches("/24");
        let _ = writeln!(text, "    ip daddr {service} dnat to {server}");
    }
    text.push_str(
        "  }\n  chain forwarded {\n    type filter hook forward priority filter; policy accept;\n    ct state \
         established,related accept\n    ct state invalid drop\n",
    );
    for number in 1..SERVICES {
        let _ = writeln!(text, "    ip saddr 10.97.{number}.0/24 drop");
    }
    text.push_str("  }\n}\n");
    text
}
