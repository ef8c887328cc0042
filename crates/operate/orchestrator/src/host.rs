//! What the kernel says of this machine, without a configuration.

use std::path::{Path, PathBuf};
use std::{fs, io};

use configuration::{Engine, Unusable};

/// Free hugepages of the default size, in MiB.
pub fn free_hugepages_mib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let figure = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (free, kib) = (figure("HugePages_Free:"), figure("Hugepagesize:"));
    free.unwrap_or(0) * kib.unwrap_or(0) / 1024
}

/// The boot of this machine: times of its monotonic clock compare within one.
///
/// # Errors
/// `/proc` is not mounted.
pub(crate) fn boot_id() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
    Ok(number.to_be_bytes())
}

/// The id of this machine, which it has from its installation on.
const MACHINE_ID: &str = "/etc/machine-id";
/// The variable with the name of a node of Kubernetes, in a Pod of the chart.
const NODE_NAME: &str = "NODE_NAME";

/// The name of this machine where the engine has instances of other machines, too; [`None`]: it has not.
pub(crate) fn machine_name(engine: &Engine) -> Option<String> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let of_node = std::env::var(NODE_NAME).ok();
    engine
        .is_orchestrator()
        .then(|| named(engine.name.clone(), of_node, Path::new(MACHINE_ID), host))
}

/// The first of these that says something.
fn named(written: Option<String>, of_node: Option<String>, id: &Path, host: String) -> String {
    let says_something = |of: &String| !of.is_empty();
    let id = || fs::read_to_string(id).ok().map(|text| text.trim().to_owned());
    let name = written.or_else(|| of_node.filter(says_something));
    // A machine that was not set up completely has another word there.
    let is_id = |of: &String| !of.is_empty() && of.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.or_else(|| id().filter(is_id)).unwrap_or(host)
}

/// The folder with what the kernel knows of devices.
const SYS: &str = "/sys";

/// The NUMA node of a CPU; [`None`] where the kernel has no nodes.
pub(crate) fn node_of_cpu(cpu: u16) -> Option<u16> {
    let entries = fs::read_dir(format!("{SYS}/devices/system/cpu/cpu{cpu}")).ok()?;
    let mut names = entries.flatten().map(|entry| entry.file_name());
    names.find_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok())
}

/// The NUMA node of a network interface's device; [`None`] where it has none, as one of software.
pub(crate) fn node_of_interface(interface: &str) -> Option<u16> {
    node_in(&format!("{SYS}/class/net/{interface}/device"))
}

/// The NUMA node of a PCI device, with or without its domain.
pub(crate) fn node_of_device(address: &str) -> Option<u16> {
    let full = match address.matches(':').count() {
        1 => format!("0000:{address}"),
        _ => address.to_owned(),
    };
    node_in(&format!("{SYS}/bus/pci/devices/{full}"))
}

/// What a device's folder says; -1 is none.
fn node_in(folder: &str) -> Option<u16> {
    let text = fs::read_to_string(Path::new(folder).join("numa_node")).ok()?;
    text.trim().parse().ok()
}

/// Whether a process listens on a unix socket. Reads the kernel's list, because connecting would disturb the
/// listener. A socket without its file cannot be reached and does not count.
pub fn is_listened_on(socket: &Path) -> bool {
    if !socket.exists() {
        return false;
    }
    let full: PathBuf = fs::canonicalize(socket).unwrap_or_else(|_| socket.to_owned());
    fs::read_to_string("/proc/net/unix").is_ok_and(|list| {
        list.lines().any(|line| {
            // Num RefCount Protocol Flags Type St Inode Path; 10000 is __SO_ACCEPTCON.
            let mut fields = line.split_whitespace();
            let listens = fields.nth(3) == Some("00010000");
            let path = fields.nth(3).map(Path::new);
            listens && path.is_some_and(|path| path == full || path == socket)
        })
    })
}

/// Why a path cannot be read, and what to do.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Unusable {
    match error.kind() {
        io::ErrorKind::NotFound => Unusable::new(
            format!("{} does not exist", path.display()),
            "write the path of an existing file",
        ),
        io::ErrorKind::PermissionDenied => Unusable::new(
            format!("{} is not readable", path.display()),
            "run inco as root, or change the file's permissions",
        ),
        _ => Unusable::new(
            format!("{} cannot be read ({error})", path.display()),
            "write another path",
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]
    use super::*;

    #[test]
    fn a_cpu_has_the_node_that_the_kernel_says_and_software_has_none() {
        let nodes = fs::read_dir("/sys/devices/system/node")
            .into_iter()
            .flatten()
            .flatten();
        let names: Vec<String> = nodes
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        let node = node_of_cpu(0);
        assert!(
            node.is_none_or(|node| names.contains(&format!("node{node}"))),
            "{node:?} {names:?}"
        );
        assert_eq!(node_of_cpu(u16::MAX), None);
        assert_eq!(node_of_interface("lo"), None);
        assert_eq!(node_of_device("ffff:ff:1f.7"), None);
    }

    #[test]
    fn a_machine_is_named_as_the_file_says_else_as_a_node_else_by_its_id() {
        let folder = tempfile::tempdir().unwrap();
        let id = folder.path().join("machine-id");
        let text = |of: &str| Some(of.to_owned());
        let of = |written, of_node| named(written, of_node, &id, "host".to_owned());
        assert_eq!(of(None, text("")), "host");
        fs::write(&id, "uninitialized\n").unwrap();
        assert_eq!(of(None, None), "host");
        fs::write(&id, "0123456789abcdef0123456789abcdef\n").unwrap();
        assert_eq!(of(None, None), "0123456789abcdef0123456789abcdef");
        assert_eq!(of(None, text("n1")), "n1");
        assert_eq!(of(text("edge-1"), text("n1")), "edge-1");
    }
}
