//! What the kernel says of this machine, without a configuration.

use std::path::{Path, PathBuf};
use std::{fs, io};

use configuration::Unusable;

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
}
