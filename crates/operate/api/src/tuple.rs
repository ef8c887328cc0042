use std::net::{IpAddr, SocketAddr};

use model::{Tuple, key_bits, protocol};
use thiserror::Error;

/// A text that is not a flow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{text:?} is not a flow: write for example \"tcp 10.0.0.1:1000 > 10.0.0.2:80\", with [..] around IPv6 addresses \
     and \"vlan N\" after it where it has a tag"
)]
pub struct TupleError {
    /// The text.
    pub text: String,
}

/// Parses the text form of a [`Tuple`]: `tcp 10.0.0.1:1000 > 10.0.0.2:80 vlan 7`, `ip-47 10.0.0.1 > 10.0.0.2`. Flows of
/// a service that knows them by what their packets carry have `inner` or `label` at the end, and `network N` in the place
/// of `vlan N` if they are of a VXLAN network.
///
/// # Errors
/// [`TupleError`] if the text has another form.
pub fn parse_tuple(text: &str) -> Result<Tuple, TupleError> {
    read(text).ok_or_else(|| TupleError {
        text: text.to_owned(),
    })
}

fn read(text: &str) -> Option<Tuple> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (words, bits) = match words.as_slice() {
        [words @ .., "inner"] => (words, key_bits::OF_CONTENT),
        [words @ .., "label"] => (words, key_bits::OF_CONTENT | key_bits::LABEL),
        words => (words, 0),
    };
    let (words, vlan) = match words {
        [words @ .., "vlan", vlan] => (
            words,
            bits | vlan.parse::<u16>().ok().filter(|vlan| *vlan <= 4094)?,
        ),
        [words @ .., "network", network] if bits == key_bits::OF_CONTENT => {
            let network = network.parse::<u16>().ok().filter(|of| *of <= key_bits::VLAN)?;
            (words, bits | key_bits::NETWORK | network)
        }
        words => (words, bits),
    };
    let [name, src, ">", dst] = words else { return None };
    let protocol = match *name {
        "icmp" => protocol::ICMP,
        "tcp" => protocol::TCP,
        "udp" => protocol::UDP,
        "icmpv6" => protocol::ICMPV6,
        "sctp" => protocol::SCTP,
        other => {
            let protocol = other.strip_prefix("ip-")?.parse().ok()?;
            let (src, dst): (IpAddr, IpAddr) = (src.parse().ok()?, dst.parse().ok()?);
            let same_version = src.is_ipv4() == dst.is_ipv4();
            return same_version.then_some(Tuple {
                src,
                dst,
                src_port: 0,
                dst_port: 0,
                protocol,
                vlan,
            });
        }
    };
    let (src, dst): (SocketAddr, SocketAddr) = (src.parse().ok()?, dst.parse().ok()?);
    (src.is_ipv4() == dst.is_ipv4()).then(|| Tuple {
        src: src.ip(),
        dst: dst.ip(),
        src_port: src.port(),
        dst_port: dst.port(),
        protocol,
        vlan,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_flow_is_refused_with_an_example() {
        for text in [
            "",
            "tcp",
            "tcp 1.2.3.4 > 1.2.3.5",
            "tcp 1.2.3.4:1 1.2.3.5:2",
            "tcp 1.2.3.4:1 > [::1]:2",
            "xyz 1.2.3.4:1 > 1.2.3.5:2",
            "ip-300 1.2.3.4 > 1.2.3.5",
            "tcp 1.2.3.4:1 > 1.2.3.5:2 vlan 5000",
            "tcp 1.2.3.4:1 > 1.2.3.5:2 network 5",
            "tcp 1.2.3.4:1 > 1.2.3.5:2 network 5000 inner",
        ] {
            let error = parse_tuple(text).unwrap_err();
            assert!(
                error.to_string().contains("tcp 10.0.0.1:1000 > 10.0.0.2:80"),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(
            v6 in any::<bool>(), a in any::<u128>(), b in any::<u128>(),
            src_port in any::<u16>(), dst_port in any::<u16>(),
            protocol in any::<u8>(), vlan in 0u16..=4094,
            bits in prop::sample::select(&[0, 0x8000, 0xa000, 0xc000_u16][..]),
        ) {
            let address = |bits: u128| if v6 { IpAddr::V6(bits.into()) } else { IpAddr::V4((bits as u32).into()) };
            let named = [1, 6, 17, 58, 132].contains(&protocol);
            let port = |port| if named { port } else { 0 };
            let vlan = bits | vlan;
            let (src_port, dst_port) = (port(src_port), port(dst_port));
            let tuple = Tuple { src: address(a), dst: address(b), src_port, dst_port, protocol, vlan };
            prop_assert_eq!(parse_tuple(&tuple.to_string()).unwrap(), tuple);
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,60}") {
            let _ = parse_tuple(&text);
        }
    }
}
