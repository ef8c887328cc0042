//! What inco is compared with: HAProxy and nftables in front of the same containers, and the kernel's own routing to
//! one of them.

use std::net::Ipv4Addr;

use anyhow::Result;
use testbed::Haproxy;

use super::network::{ADDRESS, Namespace, output};

/// A balancer that is told its servers.
pub(super) enum Peer {
    /// HAProxy in TCP mode with two threads.
    Haproxy(Haproxy),
    /// nftables: destination NAT to each server in turn.
    Nftables,
    /// No balancer: the client addresses the first server.
    Routing,
}

impl Peer {
    /// Has it balance over these servers from now on.
    ///
    /// # Errors
    /// It refuses its configuration.
    pub(super) fn set(&mut self, balancer: &Namespace, servers: &[Ipv4Addr]) -> Result<()> {
        match self {
            Peer::Haproxy(haproxy) => haproxy.set(balancer, servers),
            Peer::Nftables => set_rules(balancer, servers),
            Peer::Routing => Ok(()),
        }
    }
}

/// Replaces the rules in one transaction: established connections keep their server.
fn set_rules(balancer: &Namespace, servers: &[Ipv4Addr]) -> Result<()> {
    let map: Vec<String> = servers
        .iter()
        .enumerate()
        .map(|(index, of)| format!("{index} : {of}"))
        .collect();
    let rules = format!(
        "table ip inco-web {{}}\ndelete table ip inco-web\ntable ip inco-web {{\n  chain prerouting {{\n    type nat \
         hook prerouting priority dstnat;\n    ip daddr {ADDRESS} tcp dport 80 dnat to numgen inc mod {} map {{ {} }}\n  \
         }}\n}}\n",
        servers.len(),
        map.join(", ")
    );
    output(balancer.command("nft").arg(rules)).map(drop)
}
