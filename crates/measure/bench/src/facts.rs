//! Facts about the machine and the versions, stored with the figures.

use std::fs;
use std::process::Command;

/// Name and value of each fact.
pub(super) fn facts(hugepages: bool) -> Vec<(&'static str, String)> {
    let uname = rustix::system::uname();
    vec![
        ("cpu", cpu()),
        (
            "cpus",
            std::thread::available_parallelism()
                .map_or(0, usize::from)
                .to_string(),
        ),
        ("kernel", uname.release().to_string_lossy().into_owned()),
        ("memory", memory()),
        (
            "hugepages",
            if hugepages {
                "2 MiB for all"
            } else {
                "none for all"
            }
            .to_owned(),
        ),
        ("dpdk", first_line("pkg-config", &["--modversion", "libdpdk"])),
        ("ovs", first_line("ovs-vswitchd", &["--version"])),
        ("inco", env!("CARGO_PKG_VERSION").to_owned()),
        (
            "commit",
            first_line("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
        ),
    ]
}

fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        let line = info.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let names: Vec<String> = ["model name", "cpu MHz"].into_iter().filter_map(value).collect();
    if names.is_empty() {
        std::env::consts::ARCH.to_owned()
    } else {
        names.join(", MHz ")
    }
}

fn memory() -> String {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    info.lines()
        .next()
        .unwrap_or_default()
        .replace("MemTotal:", "")
        .trim()
        .to_owned()
}

/// The first line of a program's output, or a dash.
fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    match text.as_deref().unwrap_or_default().lines().next() {
        Some(line) if !line.is_empty() => line.to_owned(),
        _ => "-".to_owned(),
    }
}
