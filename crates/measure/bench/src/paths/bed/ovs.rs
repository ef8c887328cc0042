//! Paths of Open vSwitch, in userspace and without DPDK, and its VXLAN tunnel.

use anyhow::Result;
use testbed::OpenVSwitch;
use testbed::network::{Namespace, output};

use super::kernel::{Hosts, SERVER, UNDERLAY, UPLINK, ends, shorten};
use super::{Bed, END, Ground};
use crate::args::PathScope;

/// The bridge of the underlay: in userspace, a host's own address is on it.
const UNDERLAY_BRIDGE: &str = "br-up";

/// A bridge on each host.
pub(super) fn bridge<'g>(ground: &Ground, scope: PathScope) -> Result<Bed<'g>> {
    let hosts = Hosts::new(scope)?;
    let (client, server) = ends(&hosts)?;
    whole_packets([&client, &server])?;
    let mut switches = Vec::new();
    for (number, (host, interfaces)) in hosts.with_interfaces(UPLINK).into_iter().enumerate() {
        let switch = start(ground, host, number)?;
        add_bridge(&switch, "br0", &interfaces)?;
        switches.push(switch);
    }
    let mut bed = Bed::of(client, server, hosts.into_namespaces(), SERVER);
    bed._switches = switches;
    Ok(bed)
}

/// The same with a tunnel between the bridges.
pub(super) fn vxlan<'g>(ground: &Ground) -> Result<Bed<'g>> {
    let hosts = Hosts::new(PathScope::Across)?;
    let (client, server) = ends(&hosts)?;
    whole_packets([&client, &server])?;
    let mut switches = Vec::new();
    let [first, second] = UNDERLAY;
    let tunnels = [(first, second), (second, first)];
    let all = hosts.with_interfaces("vxlan0").into_iter().zip(tunnels);
    for (number, ((host, [near, tunnel]), (local, remote))) in all.enumerate() {
        let switch = start(ground, host, number)?;
        add_bridge(&switch, UNDERLAY_BRIDGE, &[UPLINK])?;
        host.ip(&["address", "add", &format!("{local}/24"), "dev", UNDERLAY_BRIDGE])?;
        host.ip(&["link", "set", UNDERLAY_BRIDGE, "up"])?;
        add_bridge(&switch, "br0", &[near])?;
        let remote = format!("options:remote_ip={remote}");
        switch.configure(&[
            "add-port",
            "br0",
            tunnel,
            "--",
            "set",
            "interface",
            tunnel,
            "type=vxlan",
            &remote,
            "options:key=76",
        ])?;
        switches.push(switch);
    }
    shorten([&client, &server])?;
    let mut bed = Bed::of(client, server, hosts.into_namespaces(), SERVER);
    bed._switches = switches;
    Ok(bed)
}

fn start(ground: &Ground, host: &Namespace, number: usize) -> Result<OpenVSwitch> {
    OpenVSwitch::start_in(host, ground.directory().join(format!("ovs{number}")))
}

fn add_bridge(switch: &OpenVSwitch, name: &str, interfaces: &[&str]) -> Result<()> {
    switch.configure(&[
        "add-br",
        name,
        "--",
        "set",
        "bridge",
        name,
        "datapath_type=netdev",
    ])?;
    for interface in interfaces {
        switch.configure(&["add-port", name, interface])?;
    }
    Ok(())
}

/// In userspace, Open vSwitch neither completes checksums nor divides packets: the ends must do it.
fn whole_packets(ends: [&Namespace; 2]) -> Result<()> {
    for end in ends {
        output(end.command("ethtool").args(["-K", END, "tx", "off"]))?;
    }
    Ok(())
}
