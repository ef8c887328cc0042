//! Memory of the contestants: hugepages for all of them where the machine gives as many, else ordinary pages for all.

use std::fs;

use dpdk::MempoolConfig;

use super::undo::Undo;

/// The kernel's count of 2 MiB pages.
const COUNT: &str = "/proc/sys/vm/nr_hugepages";
/// Bytes of a page.
const PAGE: usize = 2 << 20;
/// Pages beside those that are asked for: EAL's own needs differ from release to release.
const SPARE_PAGES: usize = 16;
/// Mbufs beside those that the capture holds: the sinks' and the core's own.
const SPARE_MBUFS: usize = 32_768;
/// What a DPDK program needs beside its mbufs, in bytes.
const OTHER_BYTES: usize = 96 << 20;
/// What OVS needs: its pool has 262,144 mbufs of 3 KiB.
const OVS_MIB: usize = 1088;

/// Pages that were set aside for a bench; given back when dropped, and when the bench is interrupted.
pub(super) struct Memory {
    pages: Option<Undo>,
}

impl Memory {
    /// Room in an mbuf with its headroom, in bytes; the same for all.
    pub(super) const MBUF_ROOM: usize = 2176;

    /// Sets pages aside for `programs` with a capture of `frames` frames each, for `more_mib` MiB that these need beside, and
    /// for OVS where it takes part.
    pub(super) fn reserve(programs: usize, frames: usize, more_mib: usize, with_ovs: bool) -> Memory {
        let mib = programs * Memory::mib(frames, true) + more_mib + if with_ovs { OVS_MIB } else { 0 };
        let pages = (mib << 20).div_ceil(PAGE) + SPARE_PAGES;
        let read = || {
            fs::read_to_string(COUNT)
                .ok()
                .and_then(|text| text.trim().parse::<usize>().ok())
        };
        let Some(before) = read() else {
            return Memory { pages: None };
        };
        let wanted = before + pages;
        if fs::write(COUNT, wanted.to_string()).is_ok() && read().is_some_and(|now| now >= wanted) {
            let give_back = move || {
                let _given_back = fs::write(COUNT, before.to_string());
            };
            return Memory {
                pages: Some(Undo::by(give_back)),
            };
        }
        let _as_before = fs::write(COUNT, before.to_string());
        Memory { pages: None }
    }

    /// Ordinary pages.
    pub(super) const fn none() -> Memory {
        Memory { pages: None }
    }

    /// Whether there are hugepages.
    pub(super) fn is_huge(&self) -> bool {
        self.pages.is_some()
    }

    /// Mbufs of a program with such a capture.
    pub(super) fn mbufs(frames: usize) -> usize {
        frames + SPARE_MBUFS
    }

    /// The pool of a program with such a capture.
    pub(super) fn pool(frames: usize) -> MempoolConfig {
        MempoolConfig {
            mbufs: Memory::mbufs(frames) as u32,
            frame_bytes: (Memory::MBUF_ROOM - 128) as u16,
            ..MempoolConfig::default()
        }
    }

    /// MiB of DPDK memory of a program with such a capture.
    pub(super) fn mib(frames: usize, huge: bool) -> usize {
        // In whole pages: a program asks for no part of one.
        (Memory::pool(frames).memory_bytes(huge) as usize + OTHER_BYTES).next_multiple_of(PAGE) >> 20
    }

    /// What OVS's `other_config` says of memory: a key of its own, where there is one, and what belongs into `dpdk-extra`.
    pub(super) fn ovs_options(&self) -> (Option<String>, String) {
        if self.is_huge() {
            (Some(format!("dpdk-socket-mem={OVS_MIB}")), self.kind().to_owned())
        } else {
            // Without `--legacy-mem` OVS adds an option that does not go with ordinary pages, and EAL takes one of both sizes.
            (None, format!("--legacy-mem {} -m {OVS_MIB}", self.kind()))
        }
    }

    /// The arguments that tell EAL so.
    pub(super) fn eal_args(&self, frames: usize, prefix: &str) -> Vec<String> {
        self.eal_args_and(0, frames, prefix)
    }

    /// The same for a program that needs `more_mib` MiB beside its mbufs.
    pub(super) fn eal_args_and(&self, more_mib: usize, frames: usize, prefix: &str) -> Vec<String> {
        // In whole pages: a program asks for no part of one.
        let mib = (Memory::mib(frames, self.is_huge()) + more_mib).next_multiple_of(PAGE >> 20);
        let mut args = vec!["-m".to_owned(), mib.to_string()];
        args.push(format!(
            "--file-prefix=inco-bench-{prefix}-{}",
            std::process::id()
        ));
        args.push(self.kind().to_owned());
        args
    }

    /// Hugepages without files in any folder, or none.
    pub(super) fn kind(&self) -> &'static str {
        if self.is_huge() {
            "--in-memory"
        } else {
            "--no-huge"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ovs_is_told_of_ordinary_pages_in_words_that_it_takes() {
        let (key, extra) = Memory::none().ovs_options();
        assert_eq!((key, extra.as_str()), (None, "--legacy-mem --no-huge -m 1088"));
    }

    #[test]
    fn programs_ask_for_whole_pages() {
        for frames in [32, 1000, 10_000, 100_000, 1_000_000] {
            for huge in [true, false] {
                let bytes = Memory::mib(frames, huge) << 20;
                assert!(bytes.is_multiple_of(PAGE), "{frames}");
                assert!(bytes as u64 > Memory::pool(frames).memory_bytes(huge));
            }
        }
    }
}
