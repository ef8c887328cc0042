//! Checks of tunnels: their near end at an uplink, and services whose instances are machines at far ends.

use std::net::IpAddr;

use model::{PortKind, Ready, UplinkKind};

use super::back_ends::OF_CONTAINERS;
use crate::limits::BY_REPORTS;
use crate::read::Reader;
use crate::types::*;
use crate::units::ValueError;

/// The UDP port of VXLAN.
const UDP_PORT: u16 = 4789;
/// The smallest `max_frame` of an uplink that carries tunnels: a packet of 1,280 bytes, which each link of IPv6 takes, with 14
/// bytes of Ethernet and 50 bytes of outer headers, and room for two VLAN tags.
const FRAME_MIN: u16 = 1_352;

pub(super) fn check(reader: &mut Reader, configuration: &Configuration) {
    let mut ends = Vec::new();
    for (index, uplink) in configuration.uplinks.iter().enumerate() {
        if let Some(tunnel) = &uplink.tunnel {
            check_end(reader, configuration, (index, uplink, tunnel), ends.is_empty());
            ends.push((index, uplink, tunnel));
        }
    }
    let mut services = configuration.services.iter();
    for service in services.by_ref().filter(|of| of.port == PortKind::Tunnel) {
        check_service(reader, configuration, service, ends.first().copied());
    }
    let by_edge = |of: &&Service| of.replies == Replies::Edge;
    for service in configuration.services.iter().filter(by_edge) {
        check_replies(reader, configuration, service, ends.first().copied());
    }
}

type End<'a> = (usize, &'a Uplink, &'a UplinkTunnel);

fn check_end(reader: &mut Reader, configuration: &Configuration, of: End<'_>, is_first: bool) {
    let (index, uplink, tunnel) = of;
    let mut wrong = |name: &str, what: String, write: &str| {
        reader.report(&format!("uplink[{index}].{name}"), ValueError::new(what, write));
    };
    if !configuration.switch.can.ports.contains(&PortKind::Tunnel) {
        let what = format!("the driver {} has no tunnels", configuration.switch.driver.name());
        wrong("tunnel", what, "remove it, or write driver = \"soft\"");
    } else if uplink.device.kind() != UplinkKind::Kernel {
        let what = "tunnels go by interfaces of the kernel only".to_owned();
        wrong("tunnel", what, "write device = \"kernel:INTERFACE\"");
    } else if !is_first {
        let what = "another uplink has an end of tunnels, and there can be one".to_owned();
        wrong("tunnel", what, "remove one of them");
    } else if uplink.max_frame < FRAME_MIN {
        let what = format!(
            "a packet of 1,280 bytes, which any way must take, needs {FRAME_MIN} bytes in a tunnel, and max_frame of the \
             uplink is {}",
            uplink.max_frame
        );
        let write = "write max_frame = 1572, and give the interface an MTU of 1,550 bytes or more";
        wrong("tunnel", what, write);
    }
    if tunnel.edges_key.is_some() && !configuration.switch.can.asks_machines {
        let what = format!(
            "the driver {} finds no flows that other edges have pinned",
            configuration.switch.driver.name()
        );
        wrong("tunnel.edges_key", what, "remove it, or write driver = \"soft\"");
    }
    if tunnel.edges_key.is_some() && !tunnel.from.is_empty() {
        let what = "it is for edges, and `from` of the tunnel is for machines behind them".to_owned();
        wrong("tunnel.edges_key", what, "remove it; machines need no key");
    }
    if tunnel.from.contains(&tunnel.address) {
        let what = format!("{} is the near end itself", tunnel.address);
        wrong("tunnel.from", what, "write the addresses of other machines");
    }
}

fn check_service(
    reader: &mut Reader,
    configuration: &Configuration,
    service: &Service,
    end: Option<End<'_>>,
) {
    let key = |name: &str| format!("service.{}.{name}", service.name);
    let mut wrong = |name: &str, what: &str, write: &str| {
        reader.report(&key(name), ValueError::new(what, write));
    };
    let Origin::Addresses(machines) = &service.instances.from else {
        let what = "tunnels lead to machines with an address each, and none is listed";
        let write = "write instances = { from = [\"10.9.0.2:4789\"] }, or another port";
        return wrong("port", what, write);
    };
    match end {
        None => {
            let what = "no uplink has an end of tunnels";
            let write = "write tunnel = { address = \"10.9.0.1\", network = 7 } at an [[uplink]]";
            wrong("port", what, write);
        }
        Some((_, _, tunnel)) => {
            if !tunnel.from.is_empty() {
                let what = "what comes out of a tunnel must not go into another one, and `tunnel.from` of the uplink lists \
                            machines";
                wrong(
                    "port",
                    what,
                    "remove `from` of the uplink's tunnel, or write another port",
                );
            }
            if tunnel.edges_key.is_some() && service.scheduler.name() != BY_REPORTS {
                let what = "other edges find flows only where they go by their hash to one of a few machines, and `edges_key` of \
                            the uplink's tunnel says that there are other edges";
                let write = "write scheduler = \"machines\", or remove `edges_key`";
                wrong("scheduler", what, write);
            }
            if machines.iter().any(|at| at.ip() == IpAddr::V4(tunnel.address)) {
                let what = "the list has the near end itself";
                wrong("instances.from", what, "write the addresses of other machines");
            }
        }
    }
    if service.scheduler.name() == BY_REPORTS && !configuration.switch.can.asks_machines {
        let what = format!(
            "the driver {} does not go by reports of machines",
            configuration.switch.driver.name()
        );
        let write = "write another scheduler, or driver = \"soft\"";
        wrong("scheduler", &what, write);
    }
    if machines.iter().any(|at| at.is_ipv6() || at.port() != UDP_PORT) {
        let what = "a tunnel ends at an IPv4 address and the UDP port of VXLAN";
        wrong("instances.from", what, "write each as \"10.9.0.2:4789\"");
    }
    let refused = [
        (
            "health",
            service.health.is_some(),
            "inco asks no machine behind a tunnel, but whether its address answers",
        ),
        (
            "agent",
            service.agent.is_some(),
            "inco asks no agent behind a tunnel",
        ),
        (
            "flow_counters",
            service.flow_counters && service.replies == Replies::Direct,
            "replies do not come back through a tunnel",
        ),
        (
            "affinity",
            service.affinity != Affinity::Strict,
            "flows cannot move in order where replies do not come back",
        ),
        (
            "next",
            service.next.is_some(),
            "packets do not come back through a tunnel, to go on to another service",
        ),
        (
            "ready",
            service.ready != Ready::Connected,
            "a machine is ready when its address answers",
        ),
        (
            "signals",
            service.signals,
            "there are no signals through a tunnel",
        ),
    ];
    for (name, _, what) in refused.into_iter().filter(|(_, is_there, _)| *is_there) {
        reader.report(&key(name), ValueError::new(what, format!("remove {name}")));
    }
    for name in OF_CONTAINERS {
        if reader.positions.has(&key(name)) {
            let what = "it is about containers, and others run the machines of `instances.from`";
            reader.report(&key(name), ValueError::new(what, format!("remove {name}")));
        }
    }
}

/// A service whose replies return through the edge: at a machine, or at the edge itself.
fn check_replies(
    reader: &mut Reader,
    configuration: &Configuration,
    service: &Service,
    end: Option<End<'_>>,
) {
    let name = &service.name;
    let mut wrong = |what: String, write: &str| {
        reader.report(&format!("service.{name}.replies"), ValueError::new(what, write));
    };
    let switch = &configuration.switch;
    if !switch.can.replies_by_edge {
        let what = format!(
            "the driver {} has no replies through the edge",
            switch.driver.name()
        );
        return wrong(what, "write replies = \"direct\", or driver = \"soft\"");
    }
    let Some((uplink, _, tunnel)) = end else {
        let what = "no uplink has an end of tunnels, and so there is no way to an edge".to_owned();
        return wrong(what, "remove it, or write `tunnel` at an [[uplink]]");
    };
    let is_of_tunnel = service.uplinks.iter().map(|of| of.index()).eq([uplink]);
    if service.port != PortKind::Tunnel && (tunnel.from.is_empty() || !is_of_tunnel) {
        let what = "no edge sends packets of this service through a tunnel".to_owned();
        let write = "list the edges in `from` of the uplink's tunnel, with that uplink as the only one of the service, or remove it";
        wrong(what, write);
    }
    let is_next = |of: &Service| of.next.as_ref() == Some(name);
    if service.next.is_some() || configuration.services.iter().any(is_next) {
        let what = "what leaves a chain of services leaves by the machine's own uplink".to_owned();
        wrong(what, "write replies = \"direct\", or remove `next`");
    }
    if service.external.is_some() {
        let what = "packets from external addresses leave by the machine's own uplink".to_owned();
        wrong(what, "write replies = \"direct\", or remove `external`");
    }
}
