//! The configuration of the function `ipsec`: associations and policies.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::Nanos;
use ring::digest;
use serde::Deserialize;

use super::hex;
use super::policy::{Action, Policies, Policy, Prefix};
use super::replay::{WINDOW_LIMIT, WINDOW_MIN, Window};
use super::suite::{Keys, SALT, Suite};
use super::tunnel::{DontFragment, Dscp, Ends, Inbound, Outbound, describe};
use crate::configuration::{Error, from_toml};

/// Associations of each direction, at most.
pub const ASSOCIATIONS_LIMIT: usize = 1024;
/// Policies, at most. A packet is compared with each until one matches.
pub const POLICIES_LIMIT: usize = 1024;
/// Prefixes of a list in a policy, at most.
pub const PREFIXES_LIMIT: usize = 64;
/// Shortest of the longest packets of a tunnel, in bytes of layer 3: an inner IPv6 packet has at least 1,280.
pub const MTU_MIN: usize = 1280 + super::tunnel::OVERHEAD_LIMIT;
/// Longest of the longest packets of a tunnel, in bytes of layer 3.
pub const MTU_LIMIT: usize = 9_600;
/// Longest interval of keepalives, in seconds.
pub const KEEPALIVE_LIMIT_S: u64 = 3_600;
/// SPIs below are reserved (RFC 4303, section 2.1).
const SPI_MIN: u32 = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    mtu: usize,
    keepalive_s: u64,
    udp_port: u16,
    otherwise: Otherwise,
    outbound: Vec<OutboundFile>,
    inbound: Vec<InboundFile>,
    policy: Vec<PolicyFile>,
}

impl Default for File {
    fn default() -> File {
        File {
            mtu: 1500,
            // RFC 3948, section 4: the default.
            keepalive_s: 20,
            udp_port: 4500,
            otherwise: Otherwise::Discard,
            outbound: Vec::new(),
            inbound: Vec::new(),
            policy: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Otherwise {
    Discard,
    Pass,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutboundFile {
    name: String,
    spi: u32,
    suite: Suite,
    key: String,
    salt: String,
    #[serde(default)]
    authentication_key: String,
    source: IpAddr,
    destination: IpAddr,
    udp_destination_port: Option<u16>,
    #[serde(default)]
    extended_sequence_numbers: bool,
    #[serde(default = "hop_limit")]
    hop_limit: u8,
    dscp: Option<u8>,
    #[serde(default)]
    dont_fragment: DontFragment,
}

fn hop_limit() -> u8 {
    64
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InboundFile {
    name: String,
    spi: u32,
    suite: Suite,
    key: String,
    salt: String,
    #[serde(default)]
    authentication_key: String,
    destination: IpAddr,
    #[serde(default)]
    extended_sequence_numbers: bool,
    #[serde(default = "window")]
    window: u32,
}

fn window() -> u32 {
    128
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(default)]
    source: Vec<String>,
    #[serde(default)]
    destination: Vec<String>,
    protocol: Option<u8>,
    action: ActionFile,
    outbound: Option<String>,
    #[serde(default)]
    inbound: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ActionFile {
    Protect,
    Pass,
    Discard,
}

/// A checked configuration, with its associations.
pub struct Configuration {
    /// Bytes of the longest packet of a tunnel, in layer 3.
    pub(super) mtu: usize,
    /// Time without a packet after which a keepalive is sent; [`None`] for never.
    pub(super) keepalive: Option<Nanos>,
    pub(super) udp_port: u16,
    pub(super) outbound: Vec<Outbound>,
    /// In the order of their SPIs.
    pub(super) inbound: Vec<Inbound>,
    pub(super) policies: Policies,
    /// The tunnels' own ends, in order.
    pub(super) own: Vec<IpAddr>,
}

impl Configuration {
    /// Reads and checks it.
    ///
    /// # Errors
    /// It is wrong; the message has no key.
    pub(super) fn read(text: &str) -> Result<Configuration, Error> {
        let file: File = from_toml(text)?;
        in_range("mtu", file.mtu, MTU_MIN, MTU_LIMIT, "bytes")?;
        in_range("keepalive_s", file.keepalive_s, 0, KEEPALIVE_LIMIT_S, "seconds")?;
        in_range("udp_port", file.udp_port, 1, u16::MAX, "")?;
        for (what, count, limit) in [
            ("outbound associations", file.outbound.len(), ASSOCIATIONS_LIMIT),
            ("inbound associations", file.inbound.len(), ASSOCIATIONS_LIMIT),
            ("policies", file.policy.len(), POLICIES_LIMIT),
        ] {
            if count > limit {
                return Err(Error::whole(format!(
                    "{count} {what}; at most {limit} are possible"
                )));
            }
        }
        let mut names = BTreeSet::new();
        let of_file = file
            .outbound
            .iter()
            .map(|of| &of.name)
            .chain(file.inbound.iter().map(|of| &of.name));
        for name in of_file {
            if !names.insert(name) {
                return Err(Error::whole(format!("two associations have the name {name:?}")));
            }
        }
        let outbound = file
            .outbound
            .iter()
            .map(|of| self::outbound(of, file.udp_port))
            .collect::<Result<Vec<_>, _>>()?;
        let mut inbound = file
            .inbound
            .iter()
            .map(self::inbound)
            .collect::<Result<Vec<_>, _>>()?;
        inbound.sort_by_key(|of| of.spi);
        if let Some([one, two]) = inbound.windows(2).find_map(|pair| match pair {
            [one, two] if one.spi == two.spi => Some([one, two]),
            _ => None,
        }) {
            return Err(Error::whole(format!(
                "inbound {:?} and {:?} have one spi; each needs its own",
                one.name, two.name
            )));
        }
        let mut keys = BTreeSet::new();
        for of in &file.outbound {
            if !keys.insert((of.key.to_ascii_lowercase(), of.salt.to_ascii_lowercase())) {
                return Err(Error::whole(format!(
                    "outbound {:?}: another outbound association has its key; one key is for one association",
                    of.name
                )));
            }
        }
        let mut own: Vec<IpAddr> = outbound
            .iter()
            .map(|of| of.ends.src)
            .chain(inbound.iter().map(|of| of.dst))
            .collect();
        own.sort_unstable();
        own.dedup();
        let mut policies = Vec::with_capacity(file.policy.len());
        for (at, of) in file.policy.iter().enumerate() {
            let policy = self::policy(of, &outbound, &mut inbound, at)
                .map_err(|what| Error::whole(format!("policy {}: {what}", at + 1)))?;
            policies.push(policy);
        }
        let otherwise = match file.otherwise {
            Otherwise::Discard => Action::Discard,
            Otherwise::Pass => Action::Pass,
        };
        Ok(Configuration {
            mtu: file.mtu,
            keepalive: (file.keepalive_s > 0).then(|| Nanos::from_secs(file.keepalive_s)),
            udp_port: file.udp_port,
            outbound,
            inbound,
            policies: Policies::new(policies, otherwise),
            own,
        })
    }
}

fn in_range<T: PartialOrd + std::fmt::Display>(
    what: &str,
    value: T,
    least: T,
    most: T,
    unit: &str,
) -> Result<(), Error> {
    if value < least || value > most {
        let unit = if unit.is_empty() {
            String::new()
        } else {
            format!(" {unit}")
        };
        return Err(Error::whole(format!(
            "{what} is {least} to {most}{unit}, not {value}"
        )));
    }
    Ok(())
}

/// What both directions have in common.
struct Secret<'a> {
    direction: &'static str,
    name: &'a str,
    spi: u32,
    suite: Suite,
    key: &'a str,
    salt: &'a str,
    authentication_key: &'a str,
    is_extended: bool,
}

impl Secret<'_> {
    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        Error::whole(format!("{} {:?}: {what}", self.direction, self.name))
    }

    /// The keys, and a digest of what makes the association this one.
    fn read(&self) -> Result<(Keys, [u8; 32]), Error> {
        if self.spi < SPI_MIN {
            return Err(self.wrong(format_args!("spi is {SPI_MIN} or more, not {}", self.spi)));
        }
        let bytes = |field: &str, text: &str, len: usize| match hex::decode(text) {
            Some(bytes) if bytes.len() == len => Ok(bytes),
            // Never the text itself.
            _ => Err(self.wrong(format_args!(
                "{field} of {} is {len} bytes: {} hexadecimal digits",
                describe(self.suite),
                2 * len
            ))),
        };
        let (key_bytes, authentication_bytes) = self.suite.key_bytes();
        let key = bytes("key", self.key, key_bytes)?;
        let salt = bytes("salt", self.salt, SALT)?;
        let authentication = bytes(
            "authentication_key",
            self.authentication_key,
            authentication_bytes,
        )?;
        let salt = *salt
            .first_chunk::<SALT>()
            .ok_or_else(|| self.wrong("salt is too short"))?;
        let keys = Keys::new(self.suite, &key, salt, &authentication)
            .ok_or_else(|| self.wrong("the keys do not fit the suite"))?;
        let mut identity = digest::Context::new(&digest::SHA256);
        for part in [
            self.direction.as_bytes(),
            &self.spi.to_be_bytes(),
            describe(self.suite).as_bytes(),
            &[u8::from(self.is_extended)],
            &key,
            &salt,
            &authentication,
        ] {
            identity.update(&(part.len() as u64).to_be_bytes());
            identity.update(part);
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(identity.finish().as_ref());
        Ok((keys, digest))
    }
}

fn outbound(of: &OutboundFile, udp_port: u16) -> Result<Outbound, Error> {
    let secret = Secret {
        direction: "outbound",
        name: &of.name,
        spi: of.spi,
        suite: of.suite,
        key: &of.key,
        salt: &of.salt,
        authentication_key: &of.authentication_key,
        is_extended: of.extended_sequence_numbers,
    };
    let (keys, identity) = secret.read()?;
    if of.source.is_ipv4() != of.destination.is_ipv4() {
        return Err(secret.wrong("source and destination are of one address family"));
    }
    if of.dscp.is_some_and(|dscp| dscp > 63) {
        return Err(secret.wrong("dscp is 0 to 63; without it, that of the packet is copied"));
    }
    if of.hop_limit == 0 || of.udp_destination_port == Some(0) {
        return Err(secret.wrong("hop_limit and udp_destination_port are 1 or more"));
    }
    Ok(Outbound {
        name: of.name.clone(),
        identity,
        spi: of.spi,
        ends: Ends {
            src: of.source,
            dst: of.destination,
            udp: of.udp_destination_port.map(|port| (udp_port, port)),
            hop_limit: of.hop_limit,
            dscp: of.dscp.map_or(Dscp::Copy, Dscp::Value),
            dont_fragment: of.dont_fragment,
        },
        keys,
        is_extended: of.extended_sequence_numbers,
        sequence: 0,
        mask: 0,
        sent: None,
    })
}

fn inbound(of: &InboundFile) -> Result<Inbound, Error> {
    let secret = Secret {
        direction: "inbound",
        name: &of.name,
        spi: of.spi,
        suite: of.suite,
        key: &of.key,
        salt: &of.salt,
        authentication_key: &of.authentication_key,
        is_extended: of.extended_sequence_numbers,
    };
    let (keys, identity) = secret.read()?;
    if !(WINDOW_MIN..=WINDOW_LIMIT).contains(&of.window) {
        let what = format_args!(
            "window is {WINDOW_MIN} to {WINDOW_LIMIT} packets, not {}",
            of.window
        );
        return Err(secret.wrong(what));
    }
    Ok(Inbound {
        name: of.name.clone(),
        identity,
        spi: of.spi,
        dst: of.destination,
        keys,
        is_extended: of.extended_sequence_numbers,
        window: Window::new(of.window),
        policies: Vec::new(),
    })
}

fn policy(
    of: &PolicyFile,
    outbound: &[Outbound],
    inbound: &mut [Inbound],
    at: usize,
) -> Result<Policy, String> {
    let prefixes = |field: &str, texts: &[String]| {
        if texts.len() > PREFIXES_LIMIT {
            return Err(format!(
                "{field} has {} prefixes; at most {PREFIXES_LIMIT} are possible",
                texts.len()
            ));
        }
        let read = |text: &String| {
            text.parse::<Prefix>().map_err(|_| {
                format!("{field}: {text:?} is no prefix; write it as in 10.1.0.0/16 or fd00::/8")
            })
        };
        texts.iter().map(read).collect::<Result<Vec<_>, _>>()
    };
    let is_protected = of.action == ActionFile::Protect;
    if is_protected != (of.outbound.is_some() || !of.inbound.is_empty()) {
        return Err(
            "an action of protect names associations in outbound, inbound or both, and only it does"
                .to_owned(),
        );
    }
    let find = |name: &String| {
        let found = outbound.iter().position(|of| of.name == *name);
        found.ok_or_else(|| format!("there is no outbound association {name:?}"))
    };
    let action = match of.action {
        ActionFile::Pass => Action::Pass,
        ActionFile::Discard => Action::Discard,
        ActionFile::Protect => Action::Protect(of.outbound.as_ref().map(find).transpose()?),
    };
    for name in &of.inbound {
        match inbound.iter_mut().find(|of| of.name == *name) {
            Some(of) => of.policies.push(at),
            None => return Err(format!("there is no inbound association {name:?}")),
        }
    }
    Ok(Policy {
        sources: prefixes("source", &of.source)?,
        destinations: prefixes("destination", &of.destination)?,
        protocol: of.protocol,
        action,
        is_expected: !of.inbound.is_empty(),
    })
}
