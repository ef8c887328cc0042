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
