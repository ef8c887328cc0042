//! The traffic profile: its TOML format and validation.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stamp::{Form, Ip, Transport};

use crate::Error;
use crate::units::{Rate, Span};

/// Flows per run, including ended ones. Each takes about 150 B.
pub const FLOWS_LIMIT: u32 = 1 << 21;
/// Phases and captures per profile.
pub const SOURCES_LIMIT: usize = 64;
/// Largest generated frame on the wire, in bytes (jumbo).
pub const WIRE_BYTES_LIMIT: u16 = 9216;

/// A whole profile.
///
/// ```toml
/// seed = 1
///
/// [[phase]]
/// duration = "60s"
/// flows = 32
/// ramp = "1s"          # one more flow each second
/// keep = 4             # from `keep_from` on, all but 4 end
/// keep_from = "45s"
/// rate_per_flow = "3kpps"
/// size = 64
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// The seed of all randomness.
    pub seed: u64,
    /// Period of the observer's [`crate::Interval`]s.
    pub interval: Span,
    /// Due times are rounded up to a multiple of this. 0 sends each packet at its own time, which keeps a CPU
    /// busy above some 10 k packets/s; 200 us lets the generator sleep between bursts.
    pub tick: Span,
    /// A packet that finds its uplink's ring full is given up after this time and counted as lost at the
    /// uplink. The generator's own lateness does not count.
    pub uplink_wait: Span,
    /// How long to wait for missing packets after the last packet was sent or received.
    pub settle: Span,
    /// How late the generator may be by its own fault and still send at once what was due meanwhile. What is later moves the
    /// schedule, as a pause does: no burst follows for which no ring has room. Off by default: then all is sent at once.
    pub catch_up: Option<Span>,
    /// A flow idle for this long begins anew with its next packet, which may go to another instance. That is no move.
    /// Off by default: then a flow never ends.
    pub idle_timeout: Option<Span>,
    /// Which bytes of a returned frame must be unchanged.
    pub verify: Verify,
    /// Generated flows.
    #[serde(rename = "phase")]
    pub phases: Vec<Phase>,
    /// Replayed captures.
    #[serde(rename = "capture")]
    pub captures: Vec<Capture>,
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            seed: 1,
            interval: Span::from_millis(100),
            tick: Span::default(),
            uplink_wait: Span::from_millis(20),
            settle: Span::from_millis(500),
            catch_up: None,
            idle_timeout: None,
            verify: Verify::Exact,
            phases: Vec::new(),
            captures: Vec::new(),
        }
    }
}

/// Which bytes of a returned frame must be unchanged. The instance's stamp, and the checksum change it
/// causes, are always accounted for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// All bytes.
    #[default]
    Exact,
    /// All but the two MAC addresses, for functions that rewrite them (`testpmd`'s `macswap` and `mac`).
    Payload,
    /// Only the stamp. The cheapest.
    Off,
}

/// Packets per flow of an arrival phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LengthSource {
    /// The same number for every flow.
    Packets(u32),
    /// A mixture file of the AGH data set; see [`crate::Mixture`].
    File(PathBuf),
}

/// Frame sizes on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Size {
    /// The same size for all frames, in bytes on the wire, including the frame check sequence.
    Fixed(u16),
    /// These sizes in turn.
    Cycle(Vec<u16>),
    /// A named mix: `"imix"`.
    Named(NamedSize),
}

/// Named mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedSize {
    /// Seven of 64 B (or the format's minimum, if larger), four of 594 B, one of 1518 B, spread evenly: the
    /// simple Internet mix of RFC 6985's example "IMIX".
    Imix,
}

impl Size {
    /// The sizes in turn, in bytes on the wire.
    pub fn cycle(&self, form: Form) -> Vec<u16> {
        let small = (form.minimum_wire_bytes() as u16).max(64);
        match self {
            Size::Fixed(bytes) => vec![*bytes],
            Size::Cycle(sizes) => sizes.clone(),
            Size::Named(NamedSize::Imix) => {
                let (s, m, l) = (small, 594, 1518);
                vec![s, m, s, s, m, s, l, s, m, s, s, m]
            }
        }
    }
}

/// Transport of generated packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// UDP.
    #[default]
    Udp,
    /// TCP: the first packet of a flow has SYN, the last FIN.
    Tcp,
}

/// A set of generated flows with one rate, size and format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Phase {
    /// Start, from the start of the run.
    pub start: Span,
    /// How long it sends.
    pub duration: Span,
    /// Number of flows.
    pub flows: u32,
    /// Time between two flow starts, until there are `flows`. 0 starts all at once.
    pub ramp: Span,
    /// From `keep_from` on only this many flows continue.
    pub keep: Option<u32>,
    /// When the others end, from the start of the phase.
    pub keep_from: Option<Span>,
    /// Rate per flow.
    pub rate_per_flow: Option<Rate>,
    /// Total rate of all flows.
    pub rate: Option<Rate>,
    /// New flows per second (Poisson), each of `lengths` packets. Without it flows last as long as the phase.
    pub arrivals: Option<f64>,
    /// Packets per flow, with `arrivals`.
    pub lengths: Option<LengthSource>,
    /// Frame sizes on the wire.
    pub size: Size,
    /// Transport.
    pub protocol: Protocol,
    /// VLAN ids, outermost first, at most two.
    pub vlan: Vec<u16>,
    /// The first flow's source address; each further flow has the next address. IPv4 or IPv6, as `dst`.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// The uplink to send into, as an index into the generator's ports.
    pub uplink: usize,
    /// The uplink that packets must return from; by default the same.
    pub returns: Option<usize>,
    /// Flows pause again and again. Only with `rate_per_flow`.
    pub trains: Option<Trains>,
}

/// Trains of packets, with pauses between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trains {
    /// Packets of a train, at the flow's rate.
    pub packets: u32,
    /// From the last packet of a train to the first one of the next.
    pub pause: Span,
}

impl Default for Phase {
    fn default() -> Self {
        Phase {
            start: Span::default(),
            duration: Span::default(),
            flows: 1,
            ramp: Span::default(),
            keep: None,
            keep_from: None,
            rate_per_flow: None,
            rate: None,
            arrivals: None,
            lengths: None,
            size: Size::Fixed(64),
            protocol: Protocol::Udp,
            vlan: Vec::new(),
            src: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            dst: IpAddr::V4(Ipv4Addr::new(10, 128, 0, 1)),
            src_port: 1024,
            dst_port: 9,
            uplink: 0,
            returns: None,
            trains: None,
        }
    }
}

impl Phase {
    /// The packet format.
    pub fn form(&self) -> Form {
        Form {
            ip: if self.src.is_ipv4() { Ip::V4 } else { Ip::V6 },
            transport: match self.protocol {
                Protocol::Udp => Transport::Udp,
                Protocol::Tcp => Transport::Tcp,
            },
            tags: self.vlan.len() as u8,
        }
    }

    /// The uplink that its packets must return from.
    pub fn returns(&self) -> usize {
        self.returns.unwrap_or(self.uplink)
    }
}

/// The send times of a capture's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// As captured, `speed` times as fast.
    #[default]
    Captured,
    /// Back to back, as fast as the uplink accepts them: the system sets the load, nothing is lost at the
    /// uplink, and latency counts from sending.
    Fast,
}

/// A replayed capture. Its packets are stamped in the source MAC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// A classic pcap file.
    pub file: PathBuf,
    /// Start, from the start of the run.
    #[serde(default)]
    pub start: Span,
    /// The send times.
    #[serde(default)]
    pub timing: Timing,
    /// Speed relative to the capture.
    #[serde(default = "one")]
    pub speed: f64,
    /// A constant rate instead of the captured timing.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// Number of repetitions.
    #[serde(default = "once")]
    pub repeat: u32,
    /// The uplink to send into.
    #[serde(default)]
    pub uplink: usize,
    /// If given, packets from each flow's responder (the side that did not send the first packet) go into
    /// this uplink, and each side's packets must return from the other's uplink.
    #[serde(default)]
    pub reply_uplink: Option<usize>,
}

fn one() -> f64 {
    1.0
}

fn once() -> u32 {
    1
}

impl Profile {
    /// Reads a profile from TOML; paths in it are relative to the working directory.
    ///
    /// # Errors
    /// Returns [`Error::Toml`] for invalid TOML or an unknown key, and the errors of [`Profile::check`].
    pub fn parse(text: &str) -> Result<Profile, Error> {
        let profile: Profile = toml::from_str(text).map_err(|e| Error::Toml(Box::new(e)))?;
        profile.check()?;
        Ok(profile)
    }

    /// Reads a profile from a file; paths in it are relative to that file.
    ///
    /// # Errors
    /// Returns [`Error::Read`] if the file cannot be read, and the errors of [`Profile::parse`].
    pub fn load(path: &Path) -> Result<Profile, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.into(),
            source,
        })?;
        let mut profile = Profile::parse(&text)?;
        let base = path.parent().unwrap_or(Path::new("."));
        for phase in &mut profile.phases {
            if let Some(LengthSource::File(file)) = &mut phase.lengths {
                *file = base.join(&file);
            }
        }
        for capture in &mut profile.captures {
            capture.file = base.join(&capture.file);
        }
        Ok(profile)
    }

    /// Validates a profile before anything is sent.
    ///
    /// # Errors
    /// Returns [`Error::Profile`] with the key and the correction, and [`Error::FrameSize`] for an impossible size.
    pub fn check(&self) -> Result<(), Error> {
        let sources = self.phases.len() + self.captures.len();
        if sources == 0 {
            return Err(wrong(
                "phase",
                "a profile needs at least one [[phase]] or [[capture]]",
            ));
        }
        if sources > SOURCES_LIMIT {
            return Err(wrong("phase", "at most 64 phases and captures together"));
        }
        if self.interval.0.is_zero() {
            return Err(wrong("interval", "must be above 0, such as \"100ms\""));
        }
        let mut flows = 0u64;
        for (index, phase) in self.phases.iter().enumerate() {
            phase.check().map_err(|error| error.within("phase", index))?;
            flows += u64::from(phase.flows);
        }
        if flows > u64::from(FLOWS_LIMIT) {
            return Err(wrong("flows", "at most 2097152 flows in all phases together"));
        }
        for (index, capture) in self.captures.iter().enumerate() {
            if !(capture.speed.is_finite() && capture.speed > 0.0) {
                return Err(wrong("speed", "must be above 0").within("capture", index));
            }
            if capture.timing == Timing::Fast && (capture.rate.is_some() || capture.speed != 1.0) {
                return Err(
                    wrong("timing", "\"fast\" takes neither `rate` nor `speed`").within("capture", index)
                );
            }
        }
        Ok(())
    }

    /// The highest uplink it uses, plus one.
    pub fn uplinks(&self) -> usize {
        let phases = self.phases.iter().flat_map(|p| [p.uplink, p.returns()]);
        let captures = self
            .captures
            .iter()
            .flat_map(|c| [c.uplink, c.reply_uplink.unwrap_or(0)]);
        phases.chain(captures).max().map_or(0, |highest| highest + 1)
    }
}

fn wrong(key: &'static str, write: &'static str) -> Error {
    Error::Profile {
        key: key.into(),
        write,
    }
}

impl Phase {
    fn check(&self) -> Result<(), Error> {
        if self.duration.0.is_zero() {
            return Err(wrong("duration", "must be above 0, such as \"10s\""));
        }
        if self.flows == 0 {
            return Err(wrong("flows", "must be at least 1"));
        }
        if self.rate.is_some() == self.rate_per_flow.is_some() {
            return Err(wrong(
                "rate",
                "write either `rate` (all flows together) or `rate_per_flow`",
            ));
        }
        if self.keep.is_some() != self.keep_from.is_some() {
            return Err(wrong("keep", "write both `keep` and `keep_from`, or neither"));
        }
        match (self.arrivals, &self.lengths) {
            (None, None) => {}
            (Some(arrivals), Some(_)) => {
                if !(arrivals.is_finite() && arrivals > 0.0) {
                    return Err(wrong("arrivals", "must be above 0 flows per second"));
                }
                if self.keep.is_some() || !self.ramp.0.is_zero() {
                    return Err(wrong("arrivals", "cannot be combined with `ramp` or `keep`"));
                }
            }
            _ => {
                return Err(wrong(
                    "arrivals",
                    "write both `arrivals` and `lengths`, or neither",
                ));
            }
        }
        if let Some(trains) = self.trains {
            if trains.packets == 0 {
                return Err(wrong("trains.packets", "must be at least 1"));
            }
            if self.rate_per_flow.is_none() {
                return Err(wrong("trains", "needs `rate_per_flow`"));
            }
        }
        if self.src.is_ipv4() != self.dst.is_ipv4() {
            return Err(wrong("dst", "must have the same IP version as `src`"));
        }
        if self.vlan.len() > 2 || self.vlan.iter().any(|id| *id > 4095) {
            return Err(wrong("vlan", "at most two ids up to 4095"));
        }
        let form = self.form();
        let sizes = self.size.cycle(form);
        if sizes.is_empty() || sizes.len() > 64 {
            return Err(wrong("size", "1 to 64 sizes"));
        }
        for size in sizes {
            let minimum = form.minimum_wire_bytes() as u16;
            if size < minimum || size > WIRE_BYTES_LIMIT {
                return Err(Error::FrameSize {
                    size,
                    minimum,
                    limit: WIRE_BYTES_LIMIT,
                    form: Box::new(form),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMO: &str = r#"
        seed = 3
        idle_timeout = "30s"
        [[phase]]
        duration = "60s"
        flows = 32
        ramp = "1s"
        keep = 4
        keep_from = "45s"
        rate_per_flow = "3kpps"
        size = "imix"
        trains = { packets = 8, pause = "2s" }
        [[capture]]
        file = "x.pcap"
        timing = "fast"
    "#;

    #[test]
    fn a_profile_survives_the_round_trip() {
        let profile = Profile::parse(DEMO).unwrap();
        assert_eq!(profile.phases[0].flows, 32);
        assert_eq!(profile.phases[0].rate_per_flow, Some(Rate(3000.0)));
        assert_eq!(profile.uplinks(), 1);
        let written = toml::to_string(&profile).unwrap();
        assert_eq!(Profile::parse(&written).unwrap(), profile);
    }

    #[test]
    fn imix_has_the_ratio_seven_four_one() {
        let form = Form {
            ip: Ip::V6,
            transport: Transport::Udp,
            tags: 0,
        };
        let cycle = Size::Named(NamedSize::Imix).cycle(form);
        let count = |size| cycle.iter().filter(|s| **s == size).count();
        assert_eq!([count(84), count(594), count(1518)], [7, 4, 1]);
    }

    #[test]
    fn each_mistake_is_reported() {
        let message = |from: &str, to: &str| {
            let text = DEMO.replace(from, to);
            assert_ne!(text, DEMO);
            Profile::parse(&text).unwrap_err().to_string()
        };
        let has = |text: String, parts: &[&str]| {
            for part in parts {
                assert!(text.contains(part), "{text:?} lacks {part:?}");
            }
        };
        has(message("ramp =", "rampp ="), &["rampp", "ramp"]);
        has(message("\"3kpps\"", "\"3 apples\""), &["rate_per_flow", "10kpps"]);
        has(message("keep = 4", ""), &["phase[0]", "keep_from"]);
        has(
            message("rate_per_flow", "rate"),
            &["phase[0].trains", "rate_per_flow"],
        );
        has(
            message("packets = 8", "packets = 0"),
            &["phase[0].trains.packets"],
        );
        has(message("duration = \"60s\"", ""), &["phase[0].duration"]);
        has(message("flows = 32", "flows = 0"), &["phase[0].flows"]);
        has(message("\"imix\"", "63"), &["phase[0].size", "63", "64"]);
        has(message("\"imix\"", "64\nvlan = [5]"), &["68"]);
        has(message("\"imix\"", "64\nprotocol = \"tcp\""), &["76"]);
        has(
            message("\"imix\"", "64\nsrc = \"fd00::1\""),
            &["dst", "IP version"],
        );
        has(message("\"fast\"", "\"fast\"\nspeed = 2"), &["capture[0].timing"]);
        has(
            Profile::parse("seed = 1").unwrap_err().to_string(),
            &["[[phase]]"],
        );
    }
}
