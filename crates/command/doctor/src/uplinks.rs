//! Checks of the kernel's interfaces that are uplinks: how long packets may be, and what their card does.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use super::Finding;
use interfaces::Links;

const CHECK: &str = "kernel uplinks";

/// What a configuration expects of its kernel uplinks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Uplinks {
    /// Their interfaces.
    pub(super) names: Vec<String>,
    /// The longest packet of instances, in bytes without the Ethernet header.
    pub(super) longest_packet: u16,
    /// Bytes of a frame beside that packet.
    pub(super) header: u16,
    /// Whether programs in the kernel forward: they leave packets whole, and the card may divide them.
    pub(super) in_kernel: bool,
}

/// Findings of each interface of this thread's network namespace.
pub(super) fn all(uplinks: &Uplinks) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in &uplinks.names {
        findings.push(match Links::new().and_then(|mut links| links.find(name)) {
            Ok(link) => longest(uplinks, name, link.mtu),
            Err(error) => Finding::fail(
                CHECK,
                format!("{name}: {error}"),
                "run `ip link`, and write the name of an interface",
            ),
        });
        findings.extend(features(name).map_or_else(|cannot| vec![cannot], |of| offloads(uplinks, name, &of)));
    }
    findings
}

/// Whether the interface carries what instances send, and instances what comes by it.
fn longest(uplinks: &Uplinks, name: &str, mtu: u32) -> Finding {
    let (wanted, header) = (u32::from(uplinks.longest_packet), u32::from(uplinks.header));
    let found = format!("the MTU of {name} is {mtu}, that of instances {wanted}");
    let frame = format!("max_frame = {}", mtu + header);
    if mtu < wanted {
        let change = format!("run `ip link set {name} mtu {wanted}`, or write {frame}");
        return Finding::warn(
            CHECK,
            format!("{found}: longer packets of instances are lost"),
            change,
        );
    }
    if mtu > wanted {
        let change = format!("write {frame}, or run `ip link set {name} mtu {wanted}`");
        return Finding::warn(
            CHECK,
            format!("{found}: longer packets that come are lost"),
            change,
        );
    }
    Finding::ok(CHECK, format!("the MTU of {name} and of instances is {mtu}"))
}

/// Whether a feature is on, and whether that can be changed.
type Features = BTreeMap<String, (bool, bool)>;

/// The features of an interface.
fn features(name: &str) -> Result<Features, Finding> {
    let cannot = |why: String, change: &str| {
        Finding::warn(
            CHECK,
            format!("{name}: its features are not known: {why}"),
            change,
        )
    };
    let asked = Command::new("ethtool")
        .args(["-k", name])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| cannot(format!("ethtool: {error}"), "install ethtool"))?;
    if !asked.status.success() {
        let said = String::from_utf8_lossy(&asked.stderr);
        let said = said.lines().next().unwrap_or("no reason given").to_owned();
        return Err(cannot(said, "run inco as root"));
    }
    Ok(read(&String::from_utf8_lossy(&asked.stdout)))
}

/// Reads lines as in `large-receive-offload: off [fixed]`.
fn read(text: &str) -> Features {
    let line = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let mut words = value.split_whitespace();
        let is_on = match words.next()? {
            "on" => true,
            "off" => false,
            _ => return None,
        };
        Some((name.trim().to_owned(), (is_on, words.next() != Some("[fixed]"))))
    };
    text.lines().filter_map(line).collect()
}

/// What a card should do or leave, by who forwards: the feature, its short name for `ethtool -K`, how it should be, and
/// what happens otherwise.
fn wanted(in_kernel: bool) -> &'static [(&'static str, &'static str, bool, &'static str)] {
    const LRO: (&str, &str, bool, &str) = (
        "large-receive-offload",
        "lro",
        false,
        "it merges packets for good; they cannot be passed on as they were sent",
    );
    if in_kernel {
        &[
            LRO,
            (
                "tx-checksumming",
                "tx",
                true,
                "a CPU computes the checksums of what instances send",
            ),
            (
                "tcp-segmentation-offload",
                "tso",
                true,
                "a CPU divides what instances send into packets",
            ),
            (
                "generic-receive-offload",
                "gro",
                true,
                "each packet of a connection costs as much as a whole burst of them",
            ),
        ]
    } else {
        &[
            LRO,
            (
                "generic-receive-offload",
                "gro",
                false,
                "a worker divides merged packets again, with a system call for each",
            ),
        ]
    }
}

fn offloads(uplinks: &Uplinks, name: &str, features: &Features) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut told = Vec::new();
    for (feature, short, should, otherwise) in wanted(uplinks.in_kernel) {
        let Some((is_on, can_change)) = features.get(*feature) else {
            continue;
        };
        let word = |is_on: bool| if is_on { "on" } else { "off" };
        let found = format!("{feature} {}", word(*is_on));
        if is_on == should || !can_change {
            told.push(found);
            continue;
        }
        findings.push(Finding::warn(
            CHECK,
            format!("{name}: {found}: {otherwise}"),
            format!("run `ethtool -K {name} {short} {}`", word(*should)),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("{name}: {}", told.join(", "))));
    }
    findings
}

#[cfg(test)]
mod tests {
    use real_parts::{Namespace, run};

    use super::*;
    use crate::Health;

    fn uplinks(in_kernel: bool) -> Uplinks {
        Uplinks {
            names: vec!["up0".to_owned()],
            longest_packet: 1500,
            header: 22,
            in_kernel,
        }
    }

    /// A namespace with the interface, one of a pair.
    fn namespace() -> Option<Namespace> {
        let lacks = |program: &str| {
            std::process::Command::new(program)
                .arg("--version")
                .output()
                .is_err()
        };
        let missing = if !rustix::process::geteuid().is_root() {
            Some("interfaces can be made by root alone".to_owned())
        } else {
            lacks("ethtool").then(|| "ethtool is not installed".to_owned())
        };
        real_parts::available("root", missing).then(|| {
            let namespace = Namespace::new("up");
            namespace.ip("link add up0 type veth peer name net0");
            namespace
        })
    }

    fn changes(findings: &[Finding]) -> Vec<&str> {
        findings.iter().filter_map(|of| of.change.as_deref()).collect()
    }

    #[test]
    fn an_mtu_is_compared_with_that_of_instances() {
        let Some(namespace) = namespace() else { return };
        let found = |mtu: u32| {
            namespace.ip(&format!("link set up0 mtu {mtu}"));
            namespace.within(|| all(&uplinks(true)).remove(0))
        };
        assert_eq!(found(1500).health, Health::Ok);
        let small = found(1400);
        assert_eq!(small.health, Health::Warn);
        assert_eq!(
            small.found,
            "the MTU of up0 is 1400, that of instances 1500: longer packets of instances are lost"
        );
        assert_eq!(
            small.change.as_deref(),
            Some("run `ip link set up0 mtu 1500`, or write max_frame = 1422")
        );
        let large = found(9000);
        assert_eq!(
            large.change.as_deref(),
            Some("write max_frame = 9022, or run `ip link set up0 mtu 1500`")
        );
    }

    /// What the remedy says is done, and then there is nothing left to do.
    fn remedies_help(in_kernel: bool, set: &str, expected: &[&str]) {
        let Some(namespace) = namespace() else { return };
        let ask = || namespace.within(|| all(&uplinks(in_kernel)));
        let ethtool = |arguments: &str| {
            let words: Vec<&str> = arguments.split_whitespace().collect();
            namespace.within(|| run("ethtool", &words));
        };
        ethtool(&format!("-K up0 {set}"));
        let findings = ask();
        assert_eq!(changes(&findings), expected);
        for change in expected {
            let command = change.trim_start_matches("run `").trim_end_matches('`');
            ethtool(command.strip_prefix("ethtool ").unwrap());
        }
        let findings = ask();
        assert_eq!(changes(&findings), [""; 0], "{findings:?}");
        assert_eq!(findings.len(), 2);
    }

    #[test]
    fn cards_help_programs_in_the_kernel() {
        let changes = [
            "run `ethtool -K up0 tx on`",
            "run `ethtool -K up0 tso on`",
            "run `ethtool -K up0 gro on`",
        ];
        remedies_help(true, "tx off tso off gro off", &changes);
    }

    #[test]
    fn cards_leave_packets_to_workers_as_they_are() {
        remedies_help(false, "gro on", &["run `ethtool -K up0 gro off`"]);
    }

    /// No pair of interfaces merges packets for good.
    #[test]
    fn merged_packets_are_reported_where_that_can_be_changed() {
        let text = |value: &str| format!("Features for up0:\nlarge-receive-offload: {value}\n");
        for in_kernel in [false, true] {
            let of = |value: &str| offloads(&uplinks(in_kernel), "up0", &read(&text(value)));
            assert_eq!(changes(&of("on")), ["run `ethtool -K up0 lro off`"]);
            assert_eq!(changes(&of("off")), [""; 0]);
            assert_eq!(of("on [fixed]")[0].health, Health::Ok);
        }
    }

    #[test]
    fn an_interface_that_is_not_there_fails() {
        let Some(namespace) = namespace() else { return };
        let missing = Uplinks {
            names: vec!["none0".to_owned()],
            ..uplinks(true)
        };
        let findings = namespace.within(|| all(&missing));
        assert_eq!(findings[0].health, Health::Fail);
    }
}
