//! The flows of a datapath and their offload state, from `ovs-appctl dpctl/dump-flows -m`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::{Tuple, protocol};
use serde_json::{Value, json};

use crate::endpoint::Endpoint;
use crate::ovsdb::OvsdbError;
use crate::rpc::Rpc;

/// How much of a flow is offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Nothing: the switch forwards it in software.
    None,
    /// The card does the lookup, the switch the rest.
    Partial,
    /// Everything.
    Full,
}

/// A datapath flow that matches exactly one 5-tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatapathFlow {
    /// Its 5-tuple. Ports are 0 for protocols without ports.
    pub tuple: Tuple,
    /// Its offload state.
    pub offload: Offload,
}

/// Parses the output of `dpctl/dump-flows -m`. Skips flows that match more than one 5-tuple, and other lines.
pub fn datapath_flows(text: &str) -> impl Iterator<Item = DatapathFlow> + '_ {
    text.lines().filter_map(datapath_flow)
}

fn datapath_flow(line: &str) -> Option<DatapathFlow> {
    // The match is one word; counters and actions follow after ", ".
    let (_, line) = line.split_once("recirc_id(0)")?;
    let (matched, rest) = line.split_once(", ")?;
    let addresses = fields(matched, "ipv4").or_else(|| fields(matched, "ipv6"))?;
    let ip_proto = value(addresses, "proto")?.parse().ok()?;
    let (src_port, dst_port) = match ip_proto {
        protocol::TCP => ports(matched, "tcp")?,
        protocol::UDP => ports(matched, "udp")?,
        protocol::SCTP => ports(matched, "sctp")?,
        _ => (0, 0),
    };
    let address = |key: &str| value(addresses, key)?.parse::<IpAddr>().ok();
    let vlan = match fields(matched, "vlan") {
        Some(tag) => value(tag, "vid")?.parse().ok()?,
        None => 0,
    };
    let offload = match rest.split(", ").find_map(|word| word.strip_prefix("offloaded:")) {
        Some("yes") => Offload::Full,
        Some("partial") => Offload::Partial,
        _ => Offload::None,
    };
    Some(DatapathFlow {
        tuple: Tuple {
            src: address("src")?,
            dst: address("dst")?,
            src_port,
            dst_port,
            protocol: ip_proto,
            vlan,
        },
        offload,
    })
}

/// The text in brackets after that name.
fn fields<'a>(matched: &'a str, name: &str) -> Option<&'a str> {
    let begins = |at: &usize| matched[..*at].ends_with([',', '(']) || *at == 0;
    let at = (matched.match_indices(name).map(|(at, _)| at))
        .find(|at| begins(at) && matched[at + name.len()..].starts_with('('))?;
    let (inside, _) = matched[at + name.len() + 1..].split_once(')')?;
    Some(inside)
}

/// The value of a key if it is exact: a mask would follow after `/`.
fn value<'a>(fields: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = fields.split(',').filter_map(|pair| pair.split_once('='));
    pairs.find_map(|(name, value)| (name == key).then_some(value))
}

fn ports(matched: &str, protocol: &str) -> Option<(u16, u16)> {
    let of = fields(matched, protocol)?;
    Some((value(of, "src")?.parse().ok()?, value(of, "dst")?.parse().ok()?))
}

/// The control socket of a running `ovs-vswitchd` on the same machine, as used by `ovs-appctl`.
#[derive(Debug)]
pub struct Unixctl {
    rpc: Rpc,
}

impl Unixctl {
    /// Connects to the switch with that run directory, such as `/run/openvswitch`.
    ///
    /// # Errors
    /// [`OvsdbError::Socket`] if none runs.
    pub fn connect(run_directory: &Path, limit: Duration) -> Result<Unixctl, OvsdbError> {
        let socket = control_socket(run_directory).map_err(|source| OvsdbError::Socket {
            endpoint: Endpoint::Unix(run_directory.join(PID_FILE)),
            source,
        })?;
        let rpc = Rpc::connect(&Endpoint::Unix(socket), limit)?;
        Ok(Unixctl { rpc })
    }

    /// The fully or partially offloaded flows of a datapath. `datapath`: `netdev` or `system`.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn offloaded_flows(&mut self, datapath: &str) -> Result<Vec<DatapathFlow>, OvsdbError> {
        let text = self.dump_flows(datapath, "offloaded,partially-offloaded")?;
        Ok(datapath_flows(&text).collect())
    }

    /// The output of `ovs-appctl dpctl/dump-flows -m type=KIND` for a datapath.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn dump_flows(&mut self, datapath: &str, kind: &str) -> Result<String, OvsdbError> {
        let arguments = [
            json!("-m"),
            json!(format!("{datapath}@ovs-{datapath}")),
            // It parses arguments from the end.
            json!(format!("type={kind}")),
        ];
        self.call("dpctl/dump-flows", &arguments)
    }

    /// Packets that the switch has dropped since its start because they are no Ethernet frames: shorter than a header.
    /// Its ports count them as received, and no rule meets them. Threads that poll add theirs about once a second.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn invalid_packets(&mut self) -> Result<u64, OvsdbError> {
        let text = self.call("coverage/read-counter", &[json!(INVALID_PACKETS)])?;
        match text.trim().parse() {
            Ok(count) => Ok(count),
            Err(_) => Err(self.rpc.not_rpc(text)),
        }
    }

    fn call(&mut self, method: &str, arguments: &[Value]) -> Result<String, OvsdbError> {
        let mut answer = self.rpc.call(method, arguments)?;
        if let Some(error) = answer.get("error").and_then(Value::as_str) {
            return Err(OvsdbError::Refused {
                what: error.trim_end().to_owned(),
            });
        }
        match answer.get_mut("result").map(Value::take) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(self.rpc.not_rpc(answer.to_string())),
        }
    }
}

/// The name of that counter.
const INVALID_PACKETS: &str = "datapath_drop_rx_invalid_packet";
const PID_FILE: &str = "ovs-vswitchd.pid";

fn control_socket(run_directory: &Path) -> std::io::Result<PathBuf> {
    let pid = std::fs::read_to_string(run_directory.join(PID_FILE))?;
    Ok(run_directory.join(format!("ovs-vswitchd.{}.ctl", pid.trim())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    /// The format of Open vSwitch 3.1, with offload as on a card.
    const OUTPUT: &str = "\
flow-dump from the main thread:
ufid:90fa5b29-8b92-4650-9b1a-7c996386177f, skb_priority(0/0),recirc_id(0),dp_hash(0/0),in_port(p1),packet_type(ns=0,id=0),eth(src=50:54:00:00:00:05/00:00:00:00:00:00,dst=50:54:00:00:00:07/00:00:00:00:00:00),eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=0/0,ttl=64/0,frag=no),udp(src=7,dst=9), packets:2, bytes:212, used:0.392s, offloaded:yes, dp:tc, actions:p2
ufid:2f41ac30-52a0-44b3-bb0c-315ab500546f, recirc_id(0),in_port(p1),packet_type(ns=0,id=0),eth_type(0x0800),ipv4(src=10.0.0.3/255.255.255.254,dst=10.0.0.2/0.0.0.0,proto=17,tos=0/0,ttl=64/0,frag=no),udp(src=7/0,dst=10/0), packets:0, bytes:0, used:never, offloaded:yes, dp:tc, actions:p2,push_vlan(vid=5,pcp=0),p3
ufid:28f86b77-1ecf-41e6-a953-ea06c25c432b, recirc_id(0),in_port(p1),packet_type(ns=0,id=0),eth_type(0x8100),vlan(vid=7,pcp=0),encap(eth_type(0x86dd),ipv6(src=2001:db8::1,dst=2001:db8::2,label=0/0,proto=6,tclass=0/0,hlimit=64/0,frag=no),tcp(src=5,dst=6)), packets:0, bytes:0, used:never, offloaded:partial, dp:ovs, actions:p2
ufid:28f86b77-1ecf-41e6-a953-ea06c25c432c, recirc_id(0),in_port(p1),packet_type(ns=0,id=0),eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=1,tos=0/0,ttl=64/0,frag=no), packets:9, bytes:0, used:never, dp:ovs, actions:p2
";

    #[test]
    fn offloaded_flows_are_parsed() {
        let flows: Vec<DatapathFlow> = datapath_flows(OUTPUT).collect();
        let told: Vec<(String, u16, u16, u8, u16, Offload)> = flows
            .iter()
            .map(|flow| {
                let of = flow.tuple;
                let ends = format!("{} {}", of.src, of.dst);
                (ends, of.src_port, of.dst_port, of.protocol, of.vlan, flow.offload)
            })
            .collect();
        let expected = [
            ("10.0.0.1 10.0.0.2", 7, 9, 17, 0, Offload::Full),
            ("2001:db8::1 2001:db8::2", 5, 6, 6, 7, Offload::Partial),
            ("10.0.0.1 10.0.0.2", 0, 0, 1, 0, Offload::None),
        ];
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for (told, (ends, src, dst, protocol, vlan, offload)) in told.into_iter().zip(expected) {
            assert_eq!(told, (ends.to_owned(), src, dst, protocol, vlan, offload));
        }
    }

    #[test]
    fn other_lines_are_skipped() {
        for line in [
            "",
            "recirc_id(0)",
            "recirc_id(0),ipv4(, packets:1",
            "recirc_id(0),ipv4(src=1.2.3.4,dst=1.2.3.4,proto=17), x",
            "recirc_id(0),ipv4(src=a,dst=b,proto=6),tcp(src=1,dst=2), x",
            "recirc_id(0),ipv4(src=1.2.3.4,dst=1.2.3.4,proto=17),udp(src=99999,dst=1), x",
            "recirc_id(1),ipv4(src=1.2.3.4,dst=1.2.3.4,proto=1), x",
        ] {
            assert_eq!(datapath_flow(line), None, "{line}");
        }
        // Non-ASCII text must not stop the parser.
        assert!(datapath_flow("recirc_id(0),é(ipv4(src=1.2.3.4,dst=1.2.3.4,proto=1)), x").is_some());
    }
}
