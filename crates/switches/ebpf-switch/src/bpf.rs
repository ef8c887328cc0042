//! What the crate for loading programs lacks: entries of a table in batches, and a file system for what is pinned.

// UNSAFETY: the system call bpf(2), with pointers to buffers of this module.
#![expect(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::mount::{MountFlags, mount};

use aya::maps::{MapData, MapError};

use crate::layout::{FLOW_BYTES, Flow};

/// Entries that one call copies out at most: about a tenth of a millisecond of work.
const BATCH: usize = 512;
/// `BPF_MAP_LOOKUP_BATCH`.
const LOOKUP_BATCH: libc::c_long = 24;
/// `BPF_FS_MAGIC`.
const FS_MAGIC: i64 = 0xcafe_4a11;
/// Where the kernel's file system for programs and maps belongs.
pub(crate) const FS: &str = "/sys/fs/bpf";

/// The arguments of a batch (`union bpf_attr`).
#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Copies the entries of a map out, a batch at a time: of a table by hash, or of an array.
pub(crate) struct Entries<'a> {
    map: BorrowedFd<'a>,
    place: u32,
    begun: bool,
    is_over: bool,
    key_bytes: usize,
    value_bytes: usize,
    limit: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl<'a> Entries<'a> {
    pub(crate) fn of(map: &'a MapData) -> Result<Entries<'a>, MapError> {
        let info = map.info()?;
        Ok(Entries {
            map: map.fd().as_fd(),
            place: 0,
            begun: false,
            is_over: false,
            key_bytes: info.key_size() as usize,
            value_bytes: info.value_size() as usize,
            limit: info.max_entries() as usize,
            keys: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Copies the next batch out: keys and values. Gives false when there is no more. An entry that comes or goes
    /// meanwhile may be left out.
    pub(crate) fn next(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> io::Result<bool> {
        if self.is_over {
            return Ok(false);
        }
        let mut room = BATCH.min(self.limit).max(self.values.len() / self.value_bytes);
        loop {
            self.keys.resize(room * self.key_bytes, 0);
            self.values.resize(room * self.value_bytes, 0);
            let mut out = 0_u32;
            let mut attr = BatchAttr {
                in_batch: if self.begun {
                    (&raw const self.place) as u64
                } else {
                    0
                },
                out_batch: (&raw mut out) as u64,
                keys: self.keys.as_mut_ptr() as u64,
                values: self.values.as_mut_ptr() as u64,
                count: room as u32,
                map_fd: self.map.as_raw_fd() as u32,
                ..BatchAttr::default()
            };
            // SAFETY: the kernel writes at most `count` keys and values of the sizes that it has told, for which the
            // buffers have room, and a place of four bytes, which is what a table by hash and an array need.
            let result =
                unsafe { libc::syscall(libc::SYS_bpf, LOOKUP_BATCH, &raw mut attr, size_of::<BatchAttr>()) };
            let error = (result != 0).then(io::Error::last_os_error);
            match error.as_ref().and_then(io::Error::raw_os_error) {
                // A bucket has more entries than there is room.
                Some(libc::ENOSPC) if room < 1 << 20 => {
                    room *= 2;
                    continue;
                }
                Some(libc::ENOENT) => self.is_over = true,
                Some(libc::EINTR | libc::EAGAIN) => continue,
                Some(_) => return Err(error.unwrap_or_else(|| io::Error::from(io::ErrorKind::Other))),
                None => {}
            }
            self.place = out;
            self.begun = true;
            let keys = self.keys.chunks_exact(self.key_bytes);
            let values = self.values.chunks_exact(self.value_bytes);
            for (key, value) in keys.zip(values).take(attr.count as usize) {
                each(key, value);
            }
            return Ok(!self.is_over);
        }
    }
}

/// Mounts the file system for programs and maps where it is missing.
pub(crate) fn mount_fs() -> io::Result<()> {
    let place = Path::new(FS);
    if is_mounted(place)? {
        return Ok(());
    }
    mount("bpf", place, "bpf", MountFlags::empty(), c"mode=0700")?;
    Ok(())
}

/// Whether that directory is of the file system for programs and maps.
pub(crate) fn is_mounted(place: &Path) -> io::Result<bool> {
    Ok(rustix::fs::statfs(place)?.f_type as i64 == FS_MAGIC)
}

/// `BPF_PROG_TEST_RUN`: runs a program once, here and now.
const RUN: libc::c_long = 10;

/// The arguments of such a run (`union bpf_attr`).
#[repr(C)]
#[derive(Default)]
struct RunAttr {
    prog_fd: u32,
    result: u32,
    sizes: [u32; 2],
    data: [u64; 2],
    repeat: u32,
    duration: u32,
    context_sizes: [u32; 2],
    context: [u64; 2],
    flags: u32,
    cpu: u32,
    batch_size: u32,
    zero: u32,
}

/// Runs a program that takes no packet.
pub(crate) fn run(program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = RunAttr {
        prog_fd: program.as_raw_fd() as u32,
        ..RunAttr::default()
    };
    // SAFETY: the kernel reads the arguments, in which there are no pointers.
    let result = unsafe { libc::syscall(libc::SYS_bpf, RUN, &raw mut attr, size_of::<RunAttr>()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`.
const TAKE: libc::c_long = 21;

/// `BPF_MAP_LOOKUP_ELEM`.
const LOOKUP: libc::c_long = 1;
/// `BPF_MAP_UPDATE_ELEM`.
const UPDATE: libc::c_long = 2;
/// `BPF_NOEXIST`: an entry that is there stays.
const NOEXIST: u64 = 1;

/// A map whose entries are written one by one.
pub(crate) struct Writer<'a> {
    map: BorrowedFd<'a>,
    key_bytes: usize,
    value_bytes: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn of(map: &'a MapData) -> Result<Writer<'a>, MapError> {
        let info = map.info()?;
        Ok(Writer {
            map: map.fd().as_fd(),
            key_bytes: info.key_size() as usize,
            value_bytes: info.value_size() as usize,
        })
    }

    /// Whether a key and a value have the lengths that they have in the map.
    pub(crate) fn takes(&self, key: &[u8], value: &[u8]) -> bool {
        (self.key_bytes, self.value_bytes) == (key.len(), value.len())
    }

    /// Whether there is an entry of that key.
    pub(crate) fn has(&self, key: &[u8]) -> io::Result<bool> {
        let mut value = vec![0_u8; self.value_bytes];
        let found = self.call(LOOKUP, key, value.as_mut_ptr() as u64, 0);
        known(found, libc::ENOENT)
    }

    /// Writes an entry. Gives false where `is_new` and there is one of that key.
    pub(crate) fn write(&self, key: &[u8], value: &[u8], is_new: bool) -> io::Result<bool> {
        if value.len() != self.value_bytes {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let flags = if is_new { NOEXIST } else { 0 };
        known(self.call(UPDATE, key, value.as_ptr() as u64, flags), libc::EEXIST)
    }

    /// `value` points to as many bytes as a value has, and is written to by `LOOKUP`.
    fn call(&self, what: libc::c_long, key: &[u8], value: u64, flags: u64) -> io::Result<()> {
        if key.len() != self.key_bytes {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let mut attr = EntryAttr {
            map_fd: self.map.as_raw_fd() as u32,
            key: key.as_ptr() as u64,
            value,
            flags,
            ..EntryAttr::default()
        };
        // SAFETY: the kernel reads a key, which has the map's length; the callers give a value of the map's length.
        let result = unsafe { libc::syscall(libc::SYS_bpf, what, &raw mut attr, size_of::<EntryAttr>()) };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// False for that one error.
fn known(result: io::Result<()>, error: i32) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(of) if of.raw_os_error() == Some(error) => Ok(false),
        Err(of) => Err(of),
    }
}

/// The arguments of a call about one entry (`union bpf_attr`).
#[repr(C)]
#[derive(Default)]
struct EntryAttr {
    map_fd: u32,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Removes an entry, and gives it.
pub(crate) fn take_entry(table: BorrowedFd<'_>, key: &[u8]) -> io::Result<Option<Flow>> {
    let mut value = [0_u8; FLOW_BYTES];
    let mut attr = EntryAttr {
        map_fd: table.as_raw_fd() as u32,
        key: key.as_ptr() as u64,
        value: value.as_mut_ptr() as u64,
        ..EntryAttr::default()
    };
    // SAFETY: the kernel reads a key, which has the table's length, and writes a value, for which there is room.
    let result = unsafe { libc::syscall(libc::SYS_bpf, TAKE, &raw mut attr, size_of::<EntryAttr>()) };
    if result == 0 {
        return Ok(Some(Flow::read(&value)));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOENT) => Ok(None),
        _ => Err(error),
    }
}
