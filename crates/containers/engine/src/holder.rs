//! The holder: a container of Docker whose program does nothing.
//!
//! Docker starts a container's program as soon as it has made its network namespace. So a network that is to be there
//! before the program is set up in a holder's namespace, which the program's container then joins. The holder is
//! removed once that program runs, and its namespace lives on with it.

use crate::EngineError;

/// Its image, which is made where Docker has none.
pub(crate) const IMAGE: &str = "inco/holder:1";
/// Its program, in the image.
pub(crate) const PROGRAM: &str = "/holder";
/// On holders: the container for which one is. With a dot and a label's key: that label of that container.
pub(crate) const LABEL: &str = "inco.holder-of";
/// Memory that it may use, in bytes. Its program needs two pages; the runtime that starts it begins in the same group, and
/// dies there for want of memory.
pub(crate) const MEMORY_BYTES: i64 = 32 << 20;
/// Tasks that it may have. Its program needs one; the runtime that starts it makes threads in the same group as its
/// scheduler sees fit. Where it may not, one start in some ten fails on a busy machine ("cannot start a stopped process").
pub(crate) const PIDS_LIMIT: i64 = 64;

/// The name of the holder of a container.
pub(crate) fn name(container: &str) -> String {
    format!("{container}.holder")
}

/// The instructions of its program: it waits for ever, and again after a signal.
#[cfg(target_arch = "x86_64")]
const CODE: [u8; 9] = [
    0xb8, 0x22, 0, 0, 0, // mov eax, 34: pause
    0x0f, 0x05, // syscall
    0xeb, 0xf7, // jmp to the first
];
#[cfg(target_arch = "aarch64")]
const CODE: [u8; 32] = [
    0x00, 0x00, 0x80, 0xd2, // mov x0, 0: no file
    0x01, 0x00, 0x80, 0xd2, // mov x1, 0
    0x02, 0x00, 0x80, 0xd2, // mov x2, 0: no time limit
    0x03, 0x00, 0x80, 0xd2, // mov x3, 0: no signal mask
    0x04, 0x00, 0x80, 0xd2, // mov x4, 0
    0x28, 0x09, 0x80, 0xd2, // mov x8, 73: ppoll
    0x01, 0x00, 0x00, 0xd4, // svc 0
    0xf9, 0xff, 0xff, 0x17, // b to the first
];
/// What an ELF file says of the machine that it is for.
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// Its program as an ELF file: a header, one segment, and the instructions. No part of it depends on the image.
fn program() -> Vec<u8> {
    const HEADER: u16 = 64;
    const SEGMENT: u16 = 56;
    // Where the file is in memory; any page will do.
    const BASE: u64 = 0x40_0000;
    let start = u64::from(HEADER + SEGMENT);
    let length = start + CODE.len() as u64;
    let mut file = Vec::new();
    // 64 bits, little-endian, version 1.
    file.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // A program.
    file.extend(2_u16.to_le_bytes());
    file.extend(MACHINE.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    // Where it begins, where its segments are described; no sections, no flags.
    for at in [BASE + start, u64::from(HEADER), 0] {
        file.extend(at.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for number in [HEADER, SEGMENT, 1, 0, 0, 0] {
        file.extend(number.to_le_bytes());
    }
    // The segment: loaded, read and executed.
    file.extend(1_u32.to_le_bytes());
    file.extend(5_u32.to_le_bytes());
    for number in [0, BASE, BASE, length, length, 0x1000] {
        file.extend(number.to_le_bytes());
    }
    file.extend(CODE);
    file
}

/// The files of its image, as a tar archive.
pub(crate) fn archive() -> Result<Vec<u8>, EngineError> {
    let program = program();
    let mut header = tar::Header::new_gnu();
    header.set_size(program.len() as u64);
    header.set_mode(0o755);
    let mut archive = tar::Builder::new(Vec::new());
    archive
        .append_data(&mut header, PROGRAM.trim_start_matches('/'), program.as_slice())
        .and_then(|()| archive.into_inner())
        .map_err(|error| EngineError::io("pack", std::path::Path::new(PROGRAM), &error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn its_program_waits_until_it_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = tar::Archive::new(std::io::Cursor::new(archive().unwrap()));
        archive.unpack(dir.path()).unwrap();
        let path = dir.path().join("holder");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = std::process::Command::new(&path).spawn().unwrap();
        // It sleeps in the call that its code makes.
        let calls = if cfg!(target_arch = "x86_64") {
            "34 "
        } else {
            "73 "
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        let waits = || {
            let at = std::fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap();
            at.starts_with(calls)
        };
        while !waits() {
            assert!(Instant::now() < deadline, "it does not wait");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
