//! `firewall` beside DPDK's `rte_acl`, with the same rules and headers, and beside nftables.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::{Result, bail};
use dpdk::{Acl, AclKey, AclRule, Eal};
use functions::RECEIVED_LIMIT;
use functions::firewall::synthetic::{self, Kind, Sequence};
use functions::firewall::{Classifier, Fields, Header, NO_RULE, Verdicts, classbench};
use functions::lpm::Prefix;
use packet::TcpFlags;
use packet::build::Transport;

use super::frames::{SIZES, frame, zipf};
use super::nftables::{self, Kernel};
use super::service::Served;
use super::session::{Case, Peer, Session, refused};
use super::side::lookups;
use super::through::{Through, chain};

/// What was measured.
pub(super) const NOTE: &str = "`rules`: the lookup alone, of headers in the form that each side reads, beside rte_acl; both \
    must find the same rule of each. `packets`: all of the function; nftables has the rules one behind the other. Headers are distinct, or those of 100,000 flows by \
    Zipf's law";

/// Rules of a set, at most.
const RULES: usize = 8_192;
/// Distinct headers.
const HEADERS: usize = 1 << 19;
/// Flows of which few have most of the packets.
const FLOWS: usize = 100_000;
/// Flows where it is the instance of a service.
const SERVED_FLOWS: usize = 1_000;
/// Packets through the kernel, which compares each with one rule after the other.
const PACKETS: usize = 4_096;
/// Rule sets of the folder of data.
const FILES: [&str; 2] = ["fw1_10k", "acl1_1k"];
/// The size for which rates of lookups are given in Gbit/s.
const LOOKUP_SIZE: usize = SIZES[0];

/// Measures it.
pub(super) fn measure(session: &mut Session) -> Result<()> {
    let eal = session.eal();
    for (name, rules) in rule_sets()? {
        let distinct = synthetic::headers::<u32>(&rules, HEADERS, 1);
        let classifier = Classifier::new(&rules)?;
        let acl = eal.as_ref().ok().map(|eal| list(eal, &rules)).transpose()?;
        for (kind, headers) in [
            ("distinct", distinct.clone()),
            ("zipf", zipf(&distinct[..FLOWS], HEADERS, &mut Sequence::new(3))),
        ] {
            let keys: Vec<AclKey> = headers.iter().map(key).collect();
            let peer = match (&acl, &eal) {
                (Some(acl), _) => {
                    agree(&classifier, &headers, acl, &keys)?;
                    Ok(lookups(&keys, |keys, found| {
                        acl.classify(keys, found).map_err(refused)
                    }))
                }
                (None, Err(error)) => Err(anyhow::anyhow!("{error:#}")),
                (None, Ok(_)) => bail!("there is no list"),
            };
            let mut verdicts = Verdicts::default();
            let mut ours = lookups(&headers, |headers, found| {
                verdicts.classify(&classifier, headers, found);
                Ok(())
            });
            let case = Case::new(format!("rules: {name}, {kind}"), rules.len(), LOOKUP_SIZE);
            session.case(&case, &mut ours, Some(Peer::of("rte_acl", peer)))?;
        }
    }
    packets(session)
}

/// As the instance of a service.
pub(super) fn served() -> Result<Served> {
    let rules = synthetic::rules(Kind::Firewall, false, RULES, 7);
    let headers = synthetic::headers::<u32>(&rules, SERVED_FLOWS, 1);
    let frames = headers.iter().map(|header| packet(header, SIZES[0]));
    let text = format!("midstream = true\n{}", configuration(&rules));
    Ok(Served::of(text, RULES, frames.collect::<Result<_>>()?))
}

/// All of the function: packets of flows, with the rules of a firewall.
fn packets(session: &mut Session) -> Result<()> {
    let rules = synthetic::rules(Kind::Firewall, false, RULES, 7);
    let headers = synthetic::headers::<u32>(&rules, FLOWS, 1);
    let drawn = zipf(&headers, FLOWS, &mut Sequence::new(3));
    let text = configuration(&rules);
    for (name, connections) in [("rules alone", 0), ("connections", 2 * FLOWS)] {
        let text = format!("connections = {connections}\nmidstream = true\n{text}");
        let mut functions = Some(chain("firewall", &text)?);
        for size in SIZES {
            let frames = drawn
                .iter()
                .map(|header| packet(header, size))
                .collect::<Result<Vec<_>>>()?;
            let mut ours = Through::new(functions.take(), &frames)?;
            let case = Case::new(format!("packets: {name}, zipf"), RULES, size);
            session.case(&case, &mut ours, None)?;
            functions = ours.into_chain();
        }
    }
    let some = headers.iter().filter(|header| is_forwarded(header)).take(PACKETS);
    let frames = some
        .map(|header| packet(header, SIZES[0]))
        .collect::<Result<Vec<_>>>()?;
    let text = format!("connections = 0\n{text}");
    let mut ours = Through::new(Some(chain("firewall", &text)?), &frames)?;
    let peer = Peer::of(nftables::NAME, Kernel::new(&ruleset(&rules), &frames));
    let case = Case::new("packets: rules alone, distinct", RULES, SIZES[0]);
    session.case(&case, &mut ours, Some(peer))
}

fn rule_sets() -> Result<Vec<(String, Vec<Fields>)>> {
    let mut sets = Vec::new();
    // A relative one is below the current folder, which is that of the repository where it is built.
    let data = std::env::var_os("INCO_DATA").map_or("../shared/data".into(), PathBuf::from);
    for file in FILES {
        if let Ok(text) = std::fs::read_to_string(data.join("classbench").join(file)) {
            let mut rules = classbench::read(&text)?;
            rules.truncate(RULES);
            sets.push((format!("ClassBench {file}"), rules));
        }
    }
    for (name, kind) in [
        ("like a firewall", Kind::Firewall),
        ("like an access list", Kind::AccessList),
    ] {
        sets.push((
            format!("synthetic, {name}"),
            synthetic::rules(kind, false, RULES, 7),
        ));
    }
    Ok(sets)
}

/// Both find the same rule of each header.
fn agree(classifier: &Classifier<u32>, headers: &[Header<u32>], acl: &Acl, keys: &[AclKey]) -> Result<()> {
    let (mut ours, mut theirs) = ([NO_RULE; RECEIVED_LIMIT], [0; RECEIVED_LIMIT]);
    for (headers, keys) in headers.chunks(RECEIVED_LIMIT).zip(keys.chunks(RECEIVED_LIMIT)) {
        classifier.classify(headers, &mut ours[..headers.len()]);
        acl.classify(keys, &mut theirs[..keys.len()]).map_err(refused)?;
        for ((header, ours), theirs) in headers.iter().zip(ours).zip(theirs) {
            // Rules are counted from 0 here and from 1 there.
            if ours.wrapping_add(1) != theirs {
                bail!("{header:?}: rule {ours}, and {theirs} by rte_acl");
            }
        }
    }
    Ok(())
}

/// The rules for `rte_acl`.
fn list(eal: &Eal, rules: &[Fields]) -> Result<Acl> {
    let end = |prefix: Prefix| match prefix.address() {
        IpAddr::V4(address) => Ok((address, prefix.len())),
        IpAddr::V6(address) => bail!("a rule of IPv4 has the address {address}"),
    };
    let rule = |fields: &Fields| -> Result<AclRule> {
        Ok(AclRule {
            src: end(fields.src)?,
            dst: end(fields.dst)?,
            src_ports: fields.src_ports,
            dst_ports: fields.dst_ports,
            protocol: fields.protocol,
        })
    };
    Ok(Acl::new(
        eal,
        &rules.iter().map(rule).collect::<Result<Vec<_>>>()?,
    )?)
}

fn key(header: &Header<u32>) -> AclKey {
    AclKey::new(
        Ipv4Addr::from(header.src),
        Ipv4Addr::from(header.dst),
        header.src_port(),
        header.dst_port(),
        header.protocol(),
    )
}

/// The rules in the format of ClassBench, as the function's configuration.
fn configuration(rules: &[Fields]) -> String {
    let line = |fields: &Fields| {
        let ports = |(first, last): (u16, u16)| format!("{first} : {last}");
        let protocol = fields
            .protocol
            .map_or("0x00/0x00".to_owned(), |protocol| format!("{protocol:#04x}/0xFF"));
        format!(
            "@{}/{}\t{}/{}\t{}\t{}\t{protocol}\n",
            fields.src.address(),
            fields.src.len(),
            fields.dst.address(),
            fields.dst.len(),
            ports(fields.src_ports),
            ports(fields.dst_ports),
        )
    };
    let lines: String = rules.iter().map(line).collect();
    format!("classbench = '''\n{lines}'''\n")
}

/// Whether the kernel forwards packets with this header: not to or from groups, itself, and networks of its own.
fn is_forwarded(header: &Header<u32>) -> bool {
    [header.src, header.dst].iter().all(|address| {
        let [first, second, third, _] = address.to_be_bytes();
        matches!(first, 1..=223) && !matches!(first, 10 | 127) && (first, second, third) != (192, 0, 2)
    })
}

/// The rules for nftables, one behind the other.
fn ruleset(rules: &[Fields]) -> String {
    let address = |word: &str, prefix: Prefix| match prefix.len() {
        0 => String::new(),
        len => format!("ip {word} {}/{len} ", prefix.address()),
    };
    let ports = |word: &str, (first, last): (u16, u16)| match (first, last) {
        (0, u16::MAX) => String::new(),
        _ => format!("th {word} {first}-{last} "),
    };
    let line = |fields: &Fields| {
        let protocol = fields
            .protocol
            .map_or(String::new(), |protocol| format!("meta l4proto {protocol} "));
        format!(
            "{}{}{protocol}{}{}accept\n",
            address("saddr", fields.src),
            address("daddr", fields.dst),
            ports("sport", fields.src_ports),
            ports("dport", fields.dst_ports),
        )
    };
    let lines: String = rules.iter().map(line).collect();
    format!(
        "table ip filter {{ chain forward {{ type filter hook forward priority 0; policy drop;\n{lines}}}; }}\n"
    )
}

/// A packet with this header.
fn packet(header: &Header<u32>, size: usize) -> Result<Vec<u8>> {
    let (src_port, dst_port) = (header.src_port(), header.dst_port());
    let transport = match header.protocol() {
        6 => Transport::Tcp {
            src_port,
            dst_port,
            sequence: 1,
            acknowledgement: 1,
            flags: TcpFlags(TcpFlags::ACK),
            options: &[],
        },
        17 => Transport::Udp { src_port, dst_port },
        1 => Transport::Icmp {
            kind: 8,
            code: 0,
            word: [0; 4],
        },
        protocol => Transport::Raw { protocol },
    };
    let [src, dst] = [header.src, header.dst].map(|address| IpAddr::V4(Ipv4Addr::from(address)));
    frame(src, dst, transport, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_rules_that_are_compared() {
        let rules = synthetic::rules(Kind::Firewall, false, 200, 7);
        let text = configuration(&rules);
        let body = text.split("'''").nth(1).unwrap();
        let read = classbench::read(body.trim_start()).unwrap();
        assert_eq!(read.len(), rules.len());
        for (read, rule) in read.iter().zip(&rules) {
            assert_eq!(
                (read.src, read.dst, read.src_ports),
                (rule.src, rule.dst, rule.src_ports)
            );
            assert_eq!((read.dst_ports, read.protocol), (rule.dst_ports, rule.protocol));
        }
    }
}
