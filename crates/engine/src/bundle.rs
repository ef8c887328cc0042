//! What a container of the `oci` engine is, as the runtime specification's `config.json`.

use std::path::Path;

use serde_json::{Value, json};

use crate::ContainerSpec;
use crate::image::Image;

/// Open files that a program may have: a packet function with 256 ports needs a few for each.
const OPEN_FILES: u64 = 4_096;
/// Room in the container's `/tmp`, in KiB.
const TMP_KIB: u32 = 16 * 1024;
/// Room in its `/run`, in KiB. DPDK keeps its runtime files there.
const RUN_KIB: u32 = 64 * 1024;
/// Room in its `/dev/shm`, in KiB.
const SHM_KIB: u32 = 64 * 1024;

/// Its `config.json`. The CPU quota is not in it: a create under a quota takes three times as long, so it is
/// written once the program runs.
pub(crate) fn config(spec: &ContainerSpec, rootfs: &Path, image: &Image, cgroup: &str) -> Value {
    let arguments = if spec.command.is_empty() {
        &image.entrypoint
    } else {
        &spec.command
    };
    let mut env = vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
    env.extend(
        image
            .env
            .iter()
            .chain(&spec.env)
            .map(|(key, value)| format!("{key}={value}")),
    );
    let mut resources = json!({
        "devices": [{ "allow": false, "access": "rwm" }],
        "pids": { "limit": spec.pids_limit },
    });
    if let Some(bytes) = spec.memory_bytes {
        resources["memory"] = json!({ "limit": bytes });
    }
    if let Some(cpus) = &spec.cpuset {
        resources["cpu"] = json!({ "cpus": cpus });
    }
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": rootfs, "readonly": true },
        "hostname": spec.name.chars().take(63).collect::<String>(),
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": arguments,
            "env": env,
            "cwd": "/",
            "capabilities": { "bounding": [], "effective": [], "inheritable": [], "permitted": [], "ambient": [] },
            "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": OPEN_FILES, "soft": OPEN_FILES }],
            "noNewPrivileges": true,
        },
        "mounts": mounts(spec),
        "linux": {
            "cgroupsPath": cgroup,
            "resources": resources,
            // Each of its own; the network is empty.
            "namespaces": [
                { "type": "pid" }, { "type": "network" }, { "type": "ipc" }, { "type": "uts" },
                { "type": "mount" }, { "type": "cgroup" },
            ],
            "rootfsPropagation": "private",
            "maskedPaths": [
                "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
                "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
            ],
            "readonlyPaths": [
                "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
            ],
        },
    })
}

fn mounts(spec: &ContainerSpec) -> Vec<Value> {
    let memory = |target: &str, mode: &str, kib: u32| {
        json!({
            "destination": target, "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "nodev", "noexec", format!("mode={mode}"), format!("size={kib}k")],
        })
    };
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"] }),
        // Its few devices are bind-mounted into it: no `nodev` here.
        json!({
            "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "noexec", "strictatime", "mode=755", "size=64k"],
        }),
        memory("/dev/shm", "1777", SHM_KIB),
        json!({
            "destination": "/sys", "type": "sysfs", "source": "sysfs",
            "options": ["nosuid", "noexec", "nodev", "ro"],
        }),
        memory("/tmp", "1777", TMP_KIB),
        memory("/run", "755", RUN_KIB),
    ];
    if spec.hugepages {
        mounts.push(json!({
            "destination": "/dev/hugepages", "type": "hugetlbfs", "source": "hugetlbfs",
            "options": ["nosuid", "noexec", "nodev"],
        }));
    }
    mounts.extend(spec.mounts.iter().map(|mount| {
        let access = if mount.read_only { "ro" } else { "rw" };
        json!({
            "destination": mount.target, "type": "bind", "source": mount.source,
            "options": ["bind", "rprivate", "nosuid", "nodev", access],
        })
    }));
    mounts
}

#[cfg(test)]
mod tests {
    use libcontainer::oci_spec::runtime::Spec;

    use super::*;
    use crate::Mount;

    fn image() -> Image {
        Image {
            name: "a:latest".into(),
            entrypoint: vec!["/a".into(), "-v".into()],
            env: vec![("A".into(), "1".into())],
            created_unix_ms: 0,
            bytes: 0,
        }
    }

    fn read(spec: &ContainerSpec) -> Spec {
        let config = config(spec, Path::new("/images/a/rootfs"), &image(), "/inco/inco-a-1");
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn a_container_gets_what_it_asks_for() {
        let mut spec = ContainerSpec::new("inco-a-1", "a");
        spec.env = vec![("B".into(), "2".into())];
        spec.memory_bytes = Some(1 << 20);
        spec.cpuset = Some("0-1".into());
        spec.hugepages = true;
        spec.mounts = vec![Mount {
            source: "/s".into(),
            target: "/run/s".into(),
            read_only: false,
        }];
        let config = read(&spec);
        let process = config.process().as_ref().unwrap();
        assert_eq!(process.args().as_ref().unwrap(), &["/a", "-v"]);
        assert_eq!(process.env().as_ref().unwrap()[1..], ["A=1", "B=2"]);
        let resources = config.linux().as_ref().unwrap().resources().as_ref().unwrap();
        assert_eq!(resources.memory().as_ref().unwrap().limit(), Some(1 << 20));
        assert_eq!(resources.cpu().as_ref().unwrap().cpus().as_deref(), Some("0-1"));
        assert_eq!(
            resources.pids().as_ref().unwrap().limit(),
            i64::from(crate::PIDS_LIMIT)
        );
        let targets: Vec<String> = config
            .mounts()
            .iter()
            .flatten()
            .map(|mount| mount.destination().display().to_string())
            .collect();
        assert!(
            targets.ends_with(&["/dev/hugepages".to_owned(), "/run/s".to_owned()]),
            "{targets:?}"
        );
        spec.command = vec!["/b".into()];
        assert_eq!(
            read(&spec).process().as_ref().unwrap().args().as_ref().unwrap(),
            &["/b"]
        );
    }

    #[test]
    fn whatever_it_asks_for_it_is_confined() {
        let config = read(&ContainerSpec::new("inco-a-1", "a"));
        let process = config.process().as_ref().unwrap();
        assert_eq!(process.no_new_privileges(), Some(true));
        let capabilities = process.capabilities().as_ref().unwrap();
        assert!(capabilities.bounding().as_ref().unwrap().is_empty());
        assert!(capabilities.effective().as_ref().unwrap().is_empty());
        assert_eq!(config.root().as_ref().unwrap().readonly(), Some(true));
        let linux = config.linux().as_ref().unwrap();
        let namespaces = linux.namespaces().as_ref().unwrap();
        assert_eq!(namespaces.len(), 6);
        assert!(namespaces.iter().all(|namespace| namespace.path().is_none()));
        let cpu = linux.resources().as_ref().unwrap().cpu();
        assert!(cpu.is_none(), "a quota in it would slow the create");
    }
}
