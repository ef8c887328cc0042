//! What a container of the `oci` engine is, as the runtime specification's `config.json`.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::image::Image;
use crate::{ContainerSpec, EngineError, Given};

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
///
/// # Errors
/// [`EngineError::Io`] and [`EngineError::BadSpec`] for a device that is not there, or none.
pub(crate) fn config(
    spec: &ContainerSpec,
    given: &Given,
    rootfs: &Path,
    image: &Image,
    cgroup: &str,
) -> Result<Value, EngineError> {
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
            .chain(&given.env)
            .chain(&spec.env)
            .map(|(key, value)| format!("{key}={value}")),
    );
    let devices: Vec<Device<'_>> = given
        .devices
        .iter()
        .map(|path| Device::at(path))
        .collect::<Result<_, _>>()?;
    let mut allowed = vec![json!({ "allow": false, "access": "rwm" })];
    allowed.extend(devices.iter().map(
        |of| json!({ "allow": true, "type": "c", "major": of.major, "minor": of.minor, "access": "rw" }),
    ));
    let mut resources = json!({ "devices": allowed, "pids": { "limit": spec.pids_limit } });
    if let Some(bytes) = spec.memory_bytes {
        resources["memory"] = json!({ "limit": bytes });
    }
    if let Some(cpus) = &spec.cpuset {
        resources["cpu"] = json!({ "cpus": cpus });
    }
    let has_interfaces = !given.interfaces.is_empty();
    // Whole frames need a right; the kernel's own stack is not to speak on a data port.
    let rights: &[&str] = if has_interfaces { &["CAP_NET_RAW"] } else { &[] };
    let is_ipv6_there = has_interfaces && Path::new("/proc/sys/net/ipv6").exists();
    let settings = ["all", "default"].map(|of| (format!("net.ipv6.conf.{of}.disable_ipv6"), json!("1")));
    let settings: serde_json::Map<String, Value> = settings.into_iter().filter(|_| is_ipv6_there).collect();
    let interfaces = given.interfaces.iter().map(|name| (name.clone(), json!({})));
    let interfaces: serde_json::Map<String, Value> = interfaces.collect();
    Ok(json!({
        "ociVersion": "1.0.2",
        "root": { "path": rootfs, "readonly": true },
        "hostname": spec.name.chars().take(63).collect::<String>(),
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": arguments,
            "env": env,
            "cwd": "/",
            "capabilities": {
                "bounding": rights, "effective": rights, "inheritable": [], "permitted": rights, "ambient": [],
            },
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
            "netDevices": interfaces,
            "sysctl": settings,
            "devices": devices.iter().map(Device::node).collect::<Vec<_>>(),
            "maskedPaths": [
                "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
                "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
            ],
            "readonlyPaths": [
                "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
            ],
        },
    }))
}

/// A device file that a container is given.
struct Device<'a> {
    path: &'a Path,
    major: u32,
    minor: u32,
}

impl<'a> Device<'a> {
    fn at(path: &'a Path) -> Result<Device<'a>, EngineError> {
        use std::os::unix::fs::FileTypeExt as _;
        let of = std::fs::metadata(path).map_err(|error| EngineError::io("look at", path, &error))?;
        if !of.file_type().is_char_device() {
            return Err(EngineError::BadSpec {
                what: "this device",
                reason: format!("{} is no character device", path.display()),
            });
        }
        Ok(Device {
            path,
            major: rustix::fs::major(of.rdev()),
            minor: rustix::fs::minor(of.rdev()),
        })
    }

    fn node(&self) -> Value {
        json!({
            "path": self.path, "type": "c", "major": self.major, "minor": self.minor,
            "fileMode": 0o600, "uid": 0, "gid": 0,
        })
    }
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
    use model::Mount;

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
        read_with(spec, &Given::default())
    }

    fn read_with(spec: &ContainerSpec, given: &Given) -> Spec {
        let config = config(
            spec,
            given,
            Path::new("/images/a/rootfs"),
            &image(),
            "/inco/inco-a-1",
        );
        serde_json::from_value(config.unwrap()).unwrap()
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
    fn interfaces_and_devices_come_with_what_they_need_and_nothing_else() {
        let spec = ContainerSpec::new("inco-a-1", "a");
        let mut given = Given {
            interfaces: vec!["enp3s0f0v0".into()],
            env: vec![("INCO_INTERFACES".into(), "enp3s0f0v0".into())],
            ..Given::default()
        };
        let config = read_with(&spec, &given);
        let env = config.process().as_ref().unwrap().env().as_ref().unwrap();
        assert!(env.contains(&"INCO_INTERFACES=enp3s0f0v0".to_owned()), "{env:?}");
        let linux = config.linux().as_ref().unwrap();
        let moved = linux.net_devices().as_ref().unwrap();
        assert_eq!(moved.keys().collect::<Vec<_>>(), ["enp3s0f0v0"]);
        let capabilities = config.process().as_ref().unwrap().capabilities();
        let bounding = capabilities.as_ref().unwrap().bounding().as_ref().unwrap();
        assert_eq!(bounding.len(), 1, "{bounding:?}");

        given = Given {
            devices: vec!["/dev/full".into()],
            ..Given::default()
        };
        let config = read_with(&spec, &given);
        let linux = config.linux().as_ref().unwrap();
        let node = &linux.devices().as_ref().unwrap()[0];
        assert_eq!((node.major(), node.minor()), (1, 7));
        let rules = linux.resources().as_ref().unwrap().devices().as_ref().unwrap();
        assert_eq!(
            (rules.len(), rules[1].allow(), rules[1].minor()),
            (2, true, Some(7))
        );
        let capabilities = config.process().as_ref().unwrap().capabilities();
        assert!(
            capabilities
                .as_ref()
                .unwrap()
                .bounding()
                .as_ref()
                .unwrap()
                .is_empty()
        );

        for no_device in ["/dev/none", "/dev/shm"] {
            given.devices = vec![no_device.into()];
            let refused = super::config(&spec, &given, Path::new("/r"), &image(), "/c").unwrap_err();
            assert!(refused.to_string().contains(no_device), "{refused}");
        }
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
