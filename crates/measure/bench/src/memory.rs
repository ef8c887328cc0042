//! Memory of the contestants: hugepages for all if the machine has enough, otherwise ordinary pages for all.

use std::fs;

use dpdk::MempoolConfig;

use super::cleanup::Cleanup;

/// The kernel's number of 2 MiB pages.
const COUNT: &str = "/proc/sys/vm/nr_hugepages";
/// Bytes of a page.
const PAGE: usize = 2 << 20;
/// Spare pages: EAL's own needs differ between releases.
const SPARE_PAGES: usize = 16;
/// Mbufs besides the capture's: those of the sinks and of the core's cache.
const SPARE_MBUFS: usize = 32_768;
/// Memory of a DPDK program besides its mbufs, in bytes.
const OTHER_BYTES: usize = 96 << 20;
/// Memory of OVS in MiB: its pool has 262,144 mbufs of 3 KiB.
const OVS_MIB: usize = 1088;

/// Hugepages reserved for a bench; released when dropped and when the bench is interrupted.
pub(super) struct Memory {
    pages: Option<Cleanup>,
}

impl Memory {
    /// Bytes of an mbuf's data room with headroom; the same for all contestants.
    pub(super) const MBUF_ROOM: usize = 2176;

    /// Reserves pages for `programs` programs with a capture of `frames` frames each, plus `more_mib` MiB, plus OVS
    /// if it takes part.
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
                pages: Some(Cleanup::by(give_back)),
            };
        }
        let _as_before = fs::write(COUNT, before.to_string());
        Memory { pages: None }
    }

    /// No hugepages.
    pub(super) const fn none() -> Memory {
        Memory { pages: None }
    }

    /// Whether hugepages are used.
    pub(super) fn is_huge(&self) -> bool {
        self.pages.is_some()
    }

    /// Mbufs of a program with a capture of `frames` frames.
    pub(super) fn mbufs(frames: usize) -> usize {
        frames + SPARE_MBUFS
    }

    /// The mbuf pool of a program with a capture of `frames` frames.
    pub(super) fn pool(frames: usize) -> MempoolConfig {
        MempoolConfig {
            mbufs: Memory::mbufs(frames) as u32,
            frame_bytes: (Memory::MBUF_ROOM - 128) as u16,
            ..MempoolConfig::default()
        }
    }

    /// DPDK memory of a program with a capture of `frames` frames, in MiB.
    pub(super) fn mib(frames: usize, huge: bool) -> usize {
        // Whole pages: a program cannot use a part of one.
        (Memory::pool(frames).memory_bytes(huge) as usize + OTHER_BYTES).next_multiple_of(PAGE) >> 20
    }

    /// OVS's memory options: a separate `other_config` key, if needed, and the arguments in `dpdk-extra`.
    pub(super) fn ovs_options(&self) -> (Option<String>, String) {
        if self.is_huge() {
            (Some(format!("dpdk-socket-mem={OVS_MIB}")), self.kind().to_owned())
        } else {
            // Without `--legacy-mem` OVS adds an option that excludes ordinary pages. EAL accepts only one option
            // for the size.
            (None, format!("--legacy-mem {} -m {OVS_MIB}", self.kind()))
        }
    }

    /// EAL's arguments for a capture of `frames` frames.
    pub(super) fn eal_args(&self, frames: usize, prefix: &str) -> Vec<String> {
        self.eal_args_and(0, frames, prefix)
    }

    /// EAL's arguments for a capture of `frames` frames and `more_mib` MiB besides the mbufs.
    pub(super) fn eal_args_and(&self, more_mib: usize, frames: usize, prefix: &str) -> Vec<String> {
        // Whole pages: a program cannot use a part of one.
        let mib = (Memory::mib(frames, self.is_huge()) + more_mib).next_multiple_of(PAGE >> 20);
        let mut args = vec!["-m".to_owned(), mib.to_string()];
        args.push(format!(
            "--file-prefix=inco-bench-{prefix}-{}",
            std::process::id()
        ));
        args.push(self.kind().to_owned());
        args
    }

    /// EAL's argument for hugepages without files, or for ordinary pages.
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
    fn ovs_gets_valid_settings_for_ordinary_pages() {
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
