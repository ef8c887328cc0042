//! Device strings: the operator's notation for an uplink, and DPDK's.
//!
//! | written | device |
//! | --- | --- |
//! | `0000:03:00.0`, `03:00.0`, either with `,representor=0` and the like | a PCI network card |
//! | `auxiliary:mlx5_core.sf.4` | a scalable function |
//! | `veth:eth1` | a kernel interface, by AF_PACKET |
//! | `xdp:eth1` | a kernel interface, by AF_XDP |
//! | `pcap:in.pcap`, `pcap:in.pcap,loop`, `pcap:in.pcap,tx=out.pcap` | a capture |
//! | `net_ring0,…`, any other name of a DPDK driver | itself |

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;

/// Overhead per frame in AF_PACKET's ring: header, link address and alignment, in bytes.
const AF_PACKET_OVERHEAD_BYTES: usize = 128;

/// Block size of AF_PACKET's ring in bytes: the largest page size of supported machines.
const AF_PACKET_BLOCK_BYTES: usize = 65_536;

/// AF_PACKET's default frame size in bytes.
const AF_PACKET_FRAME_BYTES: usize = 2048;

/// AF_XDP's frame room in bytes at least: the kernel refuses memory whose chunks, an mbuf each, have less than 2048.
const AF_XDP_FRAME_BYTES: usize = 2048;

/// Size of one of AF_PACKET's rings in bytes: 4,096 usual frames, enough while a worker sleeps.
const AF_PACKET_RING_BYTES: usize = 8 << 20;

/// A device's name for DPDK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceArgs {
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Passed on unchanged.
    Named(String),
    /// A virtual device: the driver, which gets a number when attached, and its parameters.
    Virtual {
        driver: &'static str,
        parameters: String,
    },
}

/// Numbers of virtual devices: names must be unique in the process.
static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);

/// Parses an operator's device string.
///
/// # Errors
/// [`Error::Device`] with the correction. `memif:` is one of them: the switch serves it without DPDK.
///
/// ```
/// let device = dpdk::device::from_shorthand("veth:eth1")?;
/// assert_eq!(device.to_string(), "net_af_packet,iface=eth1,qdisc_bypass=1");
/// # Ok::<(), dpdk::Error>(())
/// ```
pub fn from_shorthand(device: &str) -> Result<DeviceArgs, Error> {
    let wrong = |problem, write: &str| Error::Device {
        given: device.to_owned(),
        problem,
        write: write.to_owned(),
    };
    if device.trim() != device || device.is_empty() || device.contains(char::is_control) {
        return Err(wrong("is empty or has spaces around it", KINDS));
    }
    if let Some((kind, rest)) = device.split_once(':') {
        match kind {
            "pcap" => return capture(device, rest),
            "veth" => {
                let name = interface(device, rest, "veth")?;
                return Ok(virtual_device(
                    "net_af_packet",
                    format!("iface={name},qdisc_bypass=1"),
                ));
            }
            "xdp" => {
                let name = interface(device, rest, "xdp")?;
                return Ok(virtual_device("net_af_xdp", format!("iface={name}")));
            }
            "memif" => {
                return Err(wrong(
                    "is served by the switch, not by DPDK",
                    "it as a memif uplink of the switch",
                ));
            }
            "auxiliary" if !rest.is_empty() => return Ok(named(device.to_owned())),
            "vdev" if !rest.is_empty() => return from_shorthand(rest),
            "pci" => return from_shorthand(rest),
            _ => {}
        }
    }
    if let Some(address) = pci(device) {
        return Ok(named(address));
    }
    let (name, _) = device.split_once(',').unwrap_or((device, ""));
    if DRIVERS.iter().any(|driver| name.starts_with(driver)) {
        if !name.ends_with(|c: char| c.is_ascii_digit()) {
            return Err(wrong(
                "lacks a number after the driver's name",
                &device.replacen(name, &format!("{name}0"), 1),
            ));
        }
        return Ok(named(device.to_owned()));
    }
    if name.ends_with(".pcap") || name.contains('/') {
        return Err(wrong(
            "has no kind",
            &format!("\"pcap:{device}\" if it is a capture"),
        ));
    }
    if !name.contains(':') && name.len() <= INTERFACE_NAME_MAX {
        return Err(wrong(
            "has no kind",
            &format!("\"veth:{device}\" if it is a kernel interface"),
        ));
    }
    Err(wrong("is of unknown kind", KINDS))
}

const KINDS: &str =
    "a PCI address (0000:03:00.0), veth:INTERFACE, xdp:INTERFACE, pcap:FILE or a DPDK device (net_ring0)";

/// Prefixes of the names of DPDK's virtual devices.
const DRIVERS: [&str; 3] = ["net_", "eth_", "virtio_user"];

/// The longest name of a kernel interface in bytes (IFNAMSIZ minus its zero).
const INTERFACE_NAME_MAX: usize = 15;

fn named(name: String) -> DeviceArgs {
    DeviceArgs {
        kind: Kind::Named(name),
    }
}

fn virtual_device(driver: &'static str, parameters: String) -> DeviceArgs {
    DeviceArgs {
        kind: Kind::Virtual { driver, parameters },
    }
}

fn interface<'a>(device: &str, rest: &'a str, kind: &str) -> Result<&'a str, Error> {
    let name = rest.split(',').next().unwrap_or_default();
    let plausible = !name.is_empty()
        && name.len() <= INTERFACE_NAME_MAX
        && !name.contains(|c: char| c == '/' || c == '=' || c.is_whitespace());
    if !plausible {
        return Err(Error::Device {
            given: device.to_owned(),
            problem: "names no kernel interface",
            write: format!(
                "{kind}:INTERFACE, a name of at most {INTERFACE_NAME_MAX} letters as `ip link` shows it"
            ),
        });
    }
    // Further parameters are passed on unchanged.
    Ok(rest)
}

fn capture(device: &str, rest: &str) -> Result<DeviceArgs, Error> {
    let wrong = |problem, write: &str| Error::Device {
        given: device.to_owned(),
        problem,
        write: write.to_owned(),
    };
    let mut parts = rest.split(',');
    let file = parts.next().unwrap_or_default();
    if file.is_empty() {
        return Err(wrong("names no file", "pcap:FILE"));
    }
    let mut parameters = format!("rx_pcap={file}");
    for part in parts {
        match part.split_once('=') {
            None if part == "loop" => parameters.push_str(",infinite_rx=1"),
            Some(("tx", out)) if !out.is_empty() => {
                parameters.push_str(",tx_pcap=");
                parameters.push_str(out);
            }
            _ => {
                return Err(wrong(
                    "has an unknown option (a file name cannot contain a comma)",
                    "pcap:FILE, pcap:FILE,loop or pcap:FILE,tx=FILE",
                ));
            }
        }
    }
    Ok(virtual_device("net_pcap", parameters))
}

/// The full address with options, if this is a PCI address: `[domain:]bus:device.function[,…]`.
fn pci(text: &str) -> Option<String> {
    let (address, rest) = text.find(',').map_or((text, ""), |at| text.split_at(at));
    let (place, function) = address.rsplit_once('.')?;
    let hexadecimal = |part: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    if !matches!(function.as_bytes(), [b'0'..=b'7']) {
        return None;
    }
    let parts: Vec<&str> = place.split(':').collect();
    match parts[..] {
        [bus, slot] if hexadecimal(bus, 1..=2) && hexadecimal(slot, 1..=2) => {
            Some(format!("0000:{bus:0>2}:{slot:0>2}.{function}{rest}").to_ascii_lowercase())
        }
        [domain, bus, slot]
            if hexadecimal(domain, 4..=8) && hexadecimal(bus, 2..=2) && hexadecimal(slot, 2..=2) =>
        {
            Some(format!("{domain}:{bus}:{slot}.{function}").to_ascii_lowercase() + rest)
        }
        _ => None,
    }
}

impl DeviceArgs {
    /// A device string passed on to DPDK unchanged, such as `net_null0,no-rx=1`.
    pub fn named(device: impl Into<String>) -> DeviceArgs {
        named(device.into())
    }

    /// The same device for frames of `bytes` bytes and `queues` queues, if the driver needs to know:
    /// AF_PACKET truncates longer frames. The pool's mbufs need as much room ([`DeviceArgs::frame_bytes`]).
    #[must_use]
    pub fn with(mut self, bytes: usize, queues: u16) -> DeviceArgs {
        let frame = self.frame_bytes(bytes);
        if let Kind::Virtual {
            driver: "net_af_packet",
            parameters,
        } = &mut self.kind
        {
            let block = frame.max(AF_PACKET_BLOCK_BYTES);
            let count = AF_PACKET_RING_BYTES.max(block) / frame;
            parameters.push_str(&format!(
                ",qpairs={queues},framesz={frame},blocksz={block},framecnt={count}"
            ));
        }
        self
    }

    /// Its kernel interface, if it is one.
    pub fn interface(&self) -> Option<&str> {
        let parameters = match &self.kind {
            Kind::Named(text) | Kind::Virtual { parameters: text, .. } => text,
        };
        parameters.split(',').find_map(|part| part.strip_prefix("iface="))
    }

    /// Room in bytes that an mbuf needs for a frame of `bytes` bytes of this device: AF_PACKET needs a whole
    /// ring slot, AF_XDP a chunk that the kernel takes.
    pub fn frame_bytes(&self, bytes: usize) -> usize {
        match &self.kind {
            Kind::Virtual {
                driver: "net_af_xdp", ..
            } => bytes.max(AF_XDP_FRAME_BYTES),
            Kind::Named(name) if name.starts_with("net_af_xdp") => bytes.max(AF_XDP_FRAME_BYTES),
            Kind::Virtual {
                driver: "net_af_packet",
                ..
            } => (bytes + AF_PACKET_OVERHEAD_BYTES)
                .next_power_of_two()
                .max(AF_PACKET_FRAME_BYTES),
            _ => bytes,
        }
    }

    /// Its PCI address, if any: EAL needs it at start.
    pub fn pci_address(&self) -> Option<&str> {
        match &self.kind {
            Kind::Named(name) => {
                let address = name.split(',').next().unwrap_or_default();
                pci(address).is_some().then_some(name.as_str())
            }
            Kind::Virtual { .. } => None,
        }
    }

    /// The string for DPDK: a virtual device gets a number unique in this process.
    pub fn to_devargs(&self) -> String {
        match &self.kind {
            Kind::Named(name) => name.clone(),
            Kind::Virtual { driver, parameters } => {
                let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
                // Above the small numbers that operators use themselves.
                format!("{driver}{},{parameters}", number + 1000)
            }
        }
    }
}

impl fmt::Display for DeviceArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Named(name) => f.write_str(name),
            Kind::Virtual { driver, parameters } => write!(f, "{driver},{parameters}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(device: &str) -> String {
        from_shorthand(device).map_or_else(|e| e.to_string(), |d| d.to_string())
    }

    #[test]
    fn shorthands_expand_to_dpdk_device_strings() {
        for (written, read) in [
            ("pcap:trace.pcap", "net_pcap,rx_pcap=trace.pcap"),
            ("pcap:/a/b.pcap,loop", "net_pcap,rx_pcap=/a/b.pcap,infinite_rx=1"),
            (
                "pcap:a.pcap,tx=out.pcap",
                "net_pcap,rx_pcap=a.pcap,tx_pcap=out.pcap",
            ),
            ("veth:eth1", "net_af_packet,iface=eth1,qdisc_bypass=1"),
            ("xdp:eth1", "net_af_xdp,iface=eth1"),
            ("xdp:eth1,start_queue=1", "net_af_xdp,iface=eth1,start_queue=1"),
            ("0000:03:00.0", "0000:03:00.0"),
            ("03:00.1", "0000:03:00.1"),
            ("3:0.1", "0000:03:00.1"),
            ("0000:AF:00.0,representor=[0-3]", "0000:af:00.0,representor=[0-3]"),
            ("pci:0000:03:00.0", "0000:03:00.0"),
            ("auxiliary:mlx5_core.sf.4", "auxiliary:mlx5_core.sf.4"),
            ("net_null0,no-rx=1", "net_null0,no-rx=1"),
            ("vdev:net_ring0", "net_ring0"),
        ] {
            assert_eq!(shown(written), read, "{written}");
        }
    }

    #[test]
    fn errors_contain_the_correction() {
        for (written, hint) in [
            ("eth1", "\"veth:eth1\""),
            ("trace.pcap", "\"pcap:trace.pcap\""),
            ("/tmp/trace.pcap", "\"pcap:/tmp/trace.pcap\""),
            ("net_null", "net_null0"),
            ("net_null,no-rx=1", "net_null0,no-rx=1"),
            ("memif:/run/inco/wan.sock", "switch"),
            ("pcap:", "pcap:FILE"),
            ("pcap:a.pcap,fast", "pcap:FILE,loop"),
            ("veth:", "veth:INTERFACE"),
            ("veth:a-name-that-is-too-long", "at most 15"),
            ("", "a PCI address"),
            (" 0000:03:00.0", "a PCI address"),
            ("0000:03:00.9", "a PCI address"),
            ("tap:eth1", "a PCI address"),
        ] {
            let error = from_shorthand(written)
                .map(|d| d.to_string())
                .unwrap_err()
                .to_string();
            assert!(error.contains(hint), "{written}: {error}");
            assert!(error.contains(&format!("{written:?}")), "{written}: {error}");
        }
    }

    #[test]
    fn two_captures_get_different_names() {
        let device = from_shorthand("pcap:a.pcap").unwrap();
        assert_ne!(device.to_devargs(), device.to_devargs());
    }

    #[test]
    fn kernel_interfaces_get_queues_and_frame_room() {
        let device = from_shorthand("veth:eth1").unwrap();
        assert_eq!(device.interface(), Some("eth1"));
        for (bytes, queues, told) in [
            (1522, 1, ",qpairs=1,framesz=2048,blocksz=65536,framecnt=4096"),
            (9022, 2, ",qpairs=2,framesz=16384,blocksz=65536,framecnt=512"),
        ] {
            let text = device.clone().with(bytes, queues).to_string();
            assert!(text.ends_with(told), "{text}");
        }
        assert_eq!(device.frame_bytes(1522), 2048);
        for device in ["xdp:eth1", "net_af_xdp0,iface=eth1"] {
            let device = from_shorthand(device).unwrap();
            assert_eq!((device.frame_bytes(1522), device.frame_bytes(3000)), (2048, 3000));
        }
        let capture = from_shorthand("pcap:a.pcap").unwrap();
        assert_eq!(capture.clone().with(9022, 1), capture);
        assert_eq!(capture.interface(), None);
        assert_eq!(
            from_shorthand("net_af_packet3,iface=eth2,qpairs=2")
                .unwrap()
                .interface(),
            Some("eth2")
        );
    }

    #[test]
    fn only_pci_addresses_are_passed_to_eal() {
        assert_eq!(
            from_shorthand("03:00.0").unwrap().pci_address(),
            Some("0000:03:00.0")
        );
        assert_eq!(from_shorthand("net_null0").unwrap().pci_address(), None);
        assert_eq!(from_shorthand("veth:eth1").unwrap().pci_address(), None);
    }

    proptest! {
        #[test]
        fn any_text_is_a_device_or_an_error(text in ".{0,40}") {
            if let Ok(device) = from_shorthand(&text) {
                prop_assert!(!device.to_devargs().is_empty());
                prop_assert!(!device.to_devargs().contains('\0'));
            }
        }
    }
}
