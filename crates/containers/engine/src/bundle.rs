//! What a container of the `oci` engine is, as the runtime specification's `config.json`.

use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use serde_json::{Value, json};

use crate::image::Image;
use crate::program::PATH;
use crate::seccomp::Calls;
use crate::stage::{self, Ordinary, Shown, Stage};
use crate::{ContainerSpec, EngineError, Given, OPEN_FILES, host_files};

/// Room in the container's `/tmp`, in KiB.
const TMP_KIB: u32 = 16 * 1024;
/// Room in its `/run`, in KiB. DPDK keeps its runtime files there.
const RUN_KIB: u32 = 64 * 1024;
/// Open files of an ordinary program at most.
const ORDINARY_OPEN_FILES: u64 = 65_536;
/// Room in its `/dev/shm`, in KiB.
const SHM_KIB: u32 = 64 * 1024;

/// What of the kernel's files no container may see: what tells of the machine's memory, devices and other programs.
pub(crate) const MASKED_PATHS: [&str; 17] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
/// What of them it may read only.
pub(crate) const READ_ONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// What is laid out for it before it is made.
///
/// # Errors
/// [`EngineError::Io`] and [`EngineError::BadSpec`] for a device that is not there, or none.
pub(crate) fn stage(
    spec: &ContainerSpec,
    given: &Given,
    rootfs: &Path,
    place: PathBuf,
    first_id: Option<u32>,
    image: &Image,
) -> Result<Stage, EngineError> {
    let mounts = spec.mounts.iter().map(|mount| Shown {
        source: mount.source.clone(),
        read_only: mount.read_only,
        mapped: true,
    });
    let exchange = spec.exchange.iter().map(|of| Shown {
        source: of.source.clone(),
        read_only: false,
        mapped: false,
    });
    let devices = given.devices.iter().map(|path| stage::device(path));
    let ordinary = spec.is_ordinary().then(|| Ordinary {
        ports: given.ports.clone(),
        files: host_files::all(&spec.name, &given.ports),
    });
    let calls = match &ordinary {
        Some(_) => Calls::Ordinary,
        // Whole frames take packet sockets.
        None if given.has_frames() => Calls::Frames,
        None => Calls::Usual,
    };
    Ok(Stage {
        place,
        first_id,
        user: image.user,
        directory: image.directory.clone(),
        rootfs: rootfs.to_owned(),
        shown: mounts.chain(exchange).collect(),
        devices: devices.collect::<Result<_, _>>()?,
        hugepages: spec.hugepages,
        calls,
        ordinary,
        frames: given.frames.clone(),
    })
}

/// Its `config.json`. The CPU quota is not in it: a create under a quota takes three times as long, so it is
/// written once the program runs.
pub(crate) fn config(
    spec: &ContainerSpec,
    given: &Given,
    stage: &Stage,
    image: &Image,
    cgroup: &str,
) -> Value {
    // All fields by name: the compiler asks what this engine does with a new one.
    let ContainerSpec {
        name,
        command,
        env: own_env,
        memory_bytes,
        pids_limit,
        cpuset,
        // In `mounts` and, with hugepages, in `stage`.
        mounts: _,
        exchange: _,
        hugepages: _,
        // It is there already.
        place: _,
        // For an orchestrator.
        task: _,
        // Before and after it is made: the image's files, its ids, its quota, its devices, what it is listed by.
        image: _,
        user_namespace: _,
        cpu: _,
        functions: _,
        labels: _,
        // In `rights`.
        capabilities: _,
    } = spec;
    let arguments = if command.is_empty() {
        image.command(&[])
    } else {
        command.clone()
    };
    let mut env = vec![format!("PATH={PATH}")];
    env.extend(
        image
            .env
            .iter()
            .chain(&given.env)
            .chain(own_env)
            .map(|(key, value)| format!("{key}={value}")),
    );
    let mut allowed = vec![json!({ "allow": false, "access": "rwm" })];
    allowed.extend(stage.devices.iter().map(
        |(major, minor)| json!({ "allow": true, "type": "c", "major": major, "minor": minor, "access": "rw" }),
    ));
    let mut resources = json!({ "devices": allowed, "pids": { "limit": pids_limit } });
    if let Some(bytes) = memory_bytes {
        resources["memory"] = json!({ "limit": bytes });
    }
    if let Some(cpus) = cpuset {
        resources["cpu"] = json!({ "cpus": cpus });
    }
    let has_interfaces = given.has_frames();
    // The kernel's own stack is not to speak on a port of whole frames.
    let is_ipv6_there = has_interfaces && Path::new("/proc/sys/net/ipv6").exists();
    let settings = ["all", "default"].map(|of| (format!("net.ipv6.conf.{of}.disable_ipv6"), json!("1")));
    let settings: serde_json::Map<String, Value> = settings.into_iter().filter(|_| is_ipv6_there).collect();
    // Each of its own; the network is empty.
    let kinds = ["pid", "network", "ipc", "uts", "mount", "cgroup"];
    let mut namespaces: Vec<Value> = kinds.iter().map(|kind| json!({ "type": kind })).collect();
    namespaces.extend(
        stage
            .user_path()
            .map(|path| json!({ "type": "user", "path": path })),
    );
    let interfaces = given.interfaces.iter().map(|name| (name.clone(), json!({})));
    let interfaces: serde_json::Map<String, Value> = interfaces.collect();
    let files = open_files(spec);
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": stage.rootfs_path(), "readonly": !spec.is_ordinary() },
        "hostname": host_files::hostname(name),
        "process": {
            "terminal": false,
            "user": { "uid": image.user.uid, "gid": image.user.gid },
            "args": arguments,
            "env": env,
            "cwd": image.directory,
            "capabilities": rights(spec, has_interfaces, image.user.uid, own_capabilities()),
            "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": files, "soft": files }],
            "noNewPrivileges": true,
        },
        "mounts": mounts(spec, given, stage),
        "linux": {
            "cgroupsPath": cgroup,
            "resources": resources,
            "namespaces": namespaces,
            "rootfsPropagation": "private",
            "netDevices": interfaces,
            "sysctl": settings,
            "maskedPaths": MASKED_PATHS,
            "readonlyPaths": READ_ONLY_PATHS,
        },
    })
}

/// The capabilities of its program. A user other than root has them only in reach, as with Docker: none is in effect.
/// With the host's ids it has only those of `own`, which inco has; a user namespace comes with all.
fn rights(spec: &ContainerSpec, has_interfaces: bool, user: u32, own: CapabilitySet) -> Value {
    let frames = has_interfaces.then(|| "CAP_NET_RAW".to_owned());
    let is_there = |name: &&str| {
        spec.user_namespace || CapabilitySet::from_name(name).is_some_and(|one| own.contains(one))
    };
    let named = spec.capabilities().filter(is_there);
    let named = named.map(|name| format!("CAP_{name}"));
    let in_reach: Vec<String> = frames.iter().cloned().chain(named).collect();
    let in_effect = if user == 0 {
        in_reach.clone()
    } else {
        frames.into_iter().collect()
    };
    json!({
        "bounding": in_reach, "effective": in_effect, "inheritable": [], "permitted": in_effect, "ambient": [],
    })
}

/// The capabilities of this process, which are those of its launcher or fewer.
fn own_capabilities() -> CapabilitySet {
    capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted)
}

/// How many files its program may have open. A server has one for each connection; the launcher cannot give more than
/// it may have itself.
pub(crate) fn open_files(spec: &ContainerSpec) -> u64 {
    if !spec.is_ordinary() {
        return OPEN_FILES;
    }
    let own = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    ORDINARY_OPEN_FILES.min(own).max(OPEN_FILES)
}

fn mounts(spec: &ContainerSpec, given: &Given, stage: &Stage) -> Vec<Value> {
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
    ];
    if !spec.is_ordinary() {
        mounts.extend([memory("/tmp", "1777", TMP_KIB), memory("/run", "755", RUN_KIB)]);
    }
    // How they may be used is said on the stage already, and cannot be loosened here.
    let bind = |target: &Path, source: PathBuf| json!({ "destination": target, "type": "bind", "source": source, "options": ["bind", "rprivate"] });
    if stage.hugepages {
        mounts.push(bind(Path::new("/dev/hugepages"), stage.hugepages_path()));
    }
    let devices = given.devices.iter().enumerate();
    mounts.extend(devices.map(|(number, path)| bind(path, stage.device_path(number))));
    let shown = spec.mounts.iter().map(|mount| &mount.target);
    let shown = shown.chain(spec.exchange.iter().map(|of| &of.target));
    mounts.extend(
        shown
            .enumerate()
            .map(|(number, target)| bind(target, stage.shown_path(number))),
    );
    mounts
}

#[cfg(test)]
mod tests {
    use libcontainer::oci_spec::runtime::Spec;

    use super::*;
    use crate::{Exchange, Owner};
    use model::Mount;

    fn image() -> Image {
        Image {
            name: "a:latest".into(),
            entrypoint: vec!["/a".into()],
            arguments: vec!["-v".into()],
            directory: "/work".into(),
            user: Owner { uid: 7, gid: 8 },
            env: vec![("A".into(), "1".into())],
            stop_signal: None,
            volumes: Vec::new(),
            digest: None,
            created_unix_ms: 0,
            bytes: 0,
        }
    }

    fn read(spec: &ContainerSpec) -> Spec {
        read_with(spec, &Given::default())
    }

    fn stage_of(spec: &ContainerSpec, given: &Given) -> Result<Stage, EngineError> {
        let first_id = spec.user_namespace.then(|| stage::first_id(3));
        stage(
            spec,
            given,
            Path::new("/images/a/rootfs"),
            "/mnt".into(),
            first_id,
            &image(),
        )
    }

    fn read_with(spec: &ContainerSpec, given: &Given) -> Spec {
        let stage = stage_of(spec, given).unwrap();
        serde_json::from_value(config(spec, given, &stage, &image(), "/inco/inco-a-1")).unwrap()
    }

    #[test]
    fn a_container_gets_its_configured_settings() {
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
        spec.exchange = Some(Exchange {
            source: "/instances/a".into(),
            target: "/run/inco".into(),
        });
        let config = read(&spec);
        let process = config.process().as_ref().unwrap();
        assert_eq!(process.args().as_ref().unwrap(), &["/a", "-v"]);
        assert_eq!((process.user().uid(), process.user().gid()), (7, 8));
        assert_eq!(process.cwd(), Path::new("/work"));
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
            targets.ends_with(&[
                "/dev/hugepages".to_owned(),
                "/run/s".to_owned(),
                "/run/inco".to_owned()
            ]),
            "{targets:?}"
        );
        let shown = stage_of(&spec, &Given::default()).unwrap().shown;
        let mapped: Vec<(&Path, bool)> = shown.iter().map(|of| (of.source.as_path(), of.mapped)).collect();
        assert_eq!(
            mapped,
            [(Path::new("/s"), true), (Path::new("/instances/a"), false)]
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
        let bound = config.mounts().iter().flatten();
        let bound: Vec<_> = bound
            .filter(|of| of.destination() == Path::new("/dev/full"))
            .collect();
        assert_eq!(bound[0].source().as_deref(), Some(Path::new("/mnt/device0")));
        assert_eq!(stage_of(&spec, &given).unwrap().devices, [(1, 7)]);
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
            let refused = stage_of(&spec, &given).unwrap_err();
            assert!(refused.to_string().contains(no_device), "{refused}");
        }
    }

    #[test]
    fn a_function_on_interfaces_has_packet_sockets_and_nothing_else() {
        let mut spec = ContainerSpec::new("inco-firewall-1", "a");
        let eth0 = crate::port::example();
        spec.functions = vec![model::NetFunction::Frames(eth0.clone())];
        let given = Given {
            frames: vec![eth0.clone()],
            ..Given::default()
        };
        let stage = stage_of(&spec, &given).unwrap();
        assert_eq!((stage.calls, stage.ports()), (Calls::Frames, vec![eth0]));
        assert_eq!(stage.ordinary, None);
        let config = read_with(&spec, &given);
        assert_eq!(config.root().as_ref().unwrap().readonly(), Some(true));
        let rights = rights(&spec, true, 0, CapabilitySet::empty());
        for kind in ["bounding", "effective", "permitted"] {
            assert_eq!(rights[kind], json!(["CAP_NET_RAW"]));
        }
    }

    #[test]
    fn an_ordinary_program_has_what_it_expects() {
        let mut spec = ContainerSpec::new("inco-web-1", "a");
        spec.functions = vec![model::NetFunction::Port(crate::port::example())];
        let given = Given {
            ports: vec![crate::port::example()],
            ..Given::default()
        };
        let stage = stage_of(&spec, &given).unwrap();
        assert_eq!(stage.calls, Calls::Ordinary);
        let ordinary = stage.ordinary.unwrap();
        assert_eq!((ordinary.ports, ordinary.files.len()), (given.ports.clone(), 3));
        let config = read_with(&spec, &given);
        assert_eq!(config.root().as_ref().unwrap().readonly(), Some(false));
        let mounts = config.mounts().iter().flatten();
        let covered = |of: &&libcontainer::oci_spec::runtime::Mount| {
            ["/tmp", "/run"]
                .map(Path::new)
                .contains(&of.destination().as_path())
        };
        assert_eq!(mounts.filter(covered).count(), 0);
        let moved = config.linux().as_ref().unwrap().net_devices().clone();
        assert!(
            moved.is_none_or(|moved| moved.is_empty()),
            "it is not the runtime that moves ports"
        );

        let all = CapabilitySet::all();
        let count = |of: &Value, kind: &str| of[kind].as_array().unwrap().len();
        let of_root = rights(&spec, false, 0, all);
        assert_eq!(
            (count(&of_root, "bounding"), count(&of_root, "effective")),
            (13, 13)
        );
        let of_user = rights(&spec, false, 7, all);
        assert_eq!(
            (count(&of_user, "bounding"), count(&of_user, "effective")),
            (13, 0)
        );
        // What inco does not have it can give in a user namespace only.
        let few = CapabilitySet::CHOWN | CapabilitySet::NET_RAW;
        assert_eq!(count(&rights(&spec, false, 0, few), "effective"), 13);
        spec.user_namespace = false;
        assert_eq!(rights(&spec, false, 0, few)["effective"], json!(["CAP_CHOWN"]));
    }

    #[test]
    fn every_container_is_confined() {
        let config = read(&ContainerSpec::new("inco-a-1", "a"));
        let process = config.process().as_ref().unwrap();
        assert_eq!(process.no_new_privileges(), Some(true));
        let capabilities = process.capabilities().as_ref().unwrap();
        assert!(capabilities.bounding().as_ref().unwrap().is_empty());
        assert!(capabilities.effective().as_ref().unwrap().is_empty());
        assert_eq!(config.root().as_ref().unwrap().readonly(), Some(true));
        let linux = config.linux().as_ref().unwrap();
        let namespaces = linux.namespaces().as_ref().unwrap();
        assert_eq!(namespaces.len(), 7);
        // Of its own is the user namespace, too: it is made beforehand.
        let joined = namespaces
            .iter()
            .filter_map(|namespace| namespace.path().as_deref());
        assert_eq!(joined.collect::<Vec<_>>(), [Path::new("/mnt/user")]);
        let mut with_ids_of_the_host = ContainerSpec::new("inco-a-1", "a");
        with_ids_of_the_host.user_namespace = false;
        let without = read(&with_ids_of_the_host);
        assert_eq!(
            without
                .linux()
                .as_ref()
                .unwrap()
                .namespaces()
                .as_ref()
                .unwrap()
                .len(),
            6
        );
        let cpu = linux.resources().as_ref().unwrap().cpu();
        assert!(cpu.is_none(), "a quota in it would slow the create");
    }
}
