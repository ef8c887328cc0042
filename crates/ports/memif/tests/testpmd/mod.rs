//! DPDK's `dpdk-testpmd` as the other end of a link: started, watched and killed by the test.

#![allow(dead_code, reason = "each program that includes this uses a part of it")]

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Distinguishes files of concurrent tests in one process.
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A running testpmd; killed and reaped when dropped.
pub(crate) struct Testpmd {
    child: Child,
    log: tempfile::NamedTempFile,
}

/// How to run it.
pub(crate) struct Options<'a> {
    /// "server" or "client".
    pub(crate) role: &'a str,
    pub(crate) socket: &'a Path,
    pub(crate) log2_slots: u8,
    pub(crate) queues: u16,
    /// Appended to the device string, from the comma on.
    pub(crate) device: &'a str,
    /// testpmd's own arguments.
    pub(crate) arguments: &'a [&'a str],
    /// Whether it waits for [`Testpmd::command`]s instead of forwarding at once.
    pub(crate) interactive: bool,
    /// CPU of the thread that forwards; the main thread, which only waits, gets the other.
    pub(crate) cpu: usize,
}

impl<'a> Options<'a> {
    pub(crate) fn new(role: &'a str, socket: &'a Path) -> Options<'a> {
        Options {
            role,
            socket,
            log2_slots: 10,
            queues: 1,
            device: "",
            arguments: &["--forward-mode=io"],
            interactive: false,
            cpu: 1,
        }
    }
}

/// Whether testpmd is installed. A machine without it skips, unless `INCO_REQUIRE` names dpdk.
pub(crate) fn is_available() -> bool {
    let found = Command::new("dpdk-testpmd")
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let missing = "dpdk-testpmd is not installed: apt install dpdk-dev";
    real_parts::available("dpdk", found.is_err().then(|| missing.to_owned()))
}

impl Testpmd {
    /// Starts it with one memif port.
    pub(crate) fn start(options: &Options<'_>) -> io::Result<Testpmd> {
        let log = tempfile::NamedTempFile::new()?;
        let prefix = format!(
            "memif-{}-{}",
            std::process::id(),
            COUNTER.fetch_add(1, Ordering::Relaxed)
        );
        let cpus = std::thread::available_parallelism()?.get();
        let (forwarding, main) = (options.cpu % cpus, (options.cpu + 1) % cpus);
        let device = format!(
            "--vdev=net_memif0,role={},socket={},socket-abstract=no,id=0,rsize={}{}",
            options.role,
            options.socket.display(),
            options.log2_slots,
            options.device
        );
        let queues = options.queues.to_string();
        // Its reports go to a file, and would come in blocks of 4 KiB.
        let child = Command::new("stdbuf")
            .args(["--output=L", "dpdk-testpmd"])
            .arg(format!("--lcores=0@{main},1@{forwarding}"))
            .args([
                "--no-huge",
                "--no-pci",
                "--no-shconf",
                "--no-telemetry",
                "-m",
                "256",
            ])
            .arg(format!("--file-prefix={prefix}"))
            .args([
                "--log-level=pmd.net.memif:debug",
                &device,
                "--",
                if options.interactive { "-i" } else { "--auto-start" },
                "--no-flush-rx",
            ])
            .args([format!("--rxq={queues}"), format!("--txq={queues}")])
            .args(["--total-num-mbufs=16384"])
            .args(options.arguments)
            .stdin(Stdio::piped())
            .stdout(log.reopen()?)
            .stderr(log.reopen()?)
            .spawn()?;
        Ok(Testpmd { child, log })
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap_or_default()
    }

    /// Gives it a command, if it was started to take any.
    pub(crate) fn command(&mut self, line: &str) -> io::Result<()> {
        let mut input = self.child.stdin.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{line}")?;
        input.flush()
    }

    /// Kills it like a crash.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- testpmd's output ---\n{}", self.output());
        }
    }
}
