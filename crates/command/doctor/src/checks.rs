//! The checks. Each is a function from a machine to a finding.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use configuration::{EngineDriver, Facts as _};
use engine::image::Store;
use engine::{DockerConfig, DockerEngine, SwarmEngine, cgroup};
use openvswitch::Ovsdb;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};

use super::host::{Host, cpu_list, cpu_text};
use super::{Finding, Purpose, SwarmAt, uplinks};
use api::run_dir;
use orchestrator::leftovers::Ended;
use orchestrator::machine::{self, Machine};
use orchestrator::raise_priority;

/// Bits of the capabilities in `/proc/self/status`, from `capabilities(7)`.
const NET_ADMIN: u32 = 12;
const IPC_LOCK: u32 = 14;
const SYS_ADMIN: u32 = 21;
const SYS_NICE: u32 = 23;
const SYS_RESOURCE: u32 = 24;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// Memory locked by DPDK and the rings of several instances, in bytes.
const MEMLOCK_BYTES: u64 = 256 << 20;
/// Descriptors for 256 instances, with about eight each: socket, two shared memories, eventfds.
const OPEN_FILES: u64 = 2048;
/// Flow tables for which the size of pages matters: of about 4 million flows.
const LARGE_TABLES_MIB: u64 = 256;
/// Maximum time for a reply of Open vSwitch's database.
const OVS_TIME: Duration = Duration::from_secs(2);
const OVS_SOCKET: &str = "/run/openvswitch/db.sock";
const PODMAN_SOCKET: &str = "/run/podman/podman.sock";

/// All checks, in display order.
pub(super) fn all(host: &Host, purpose: &Purpose) -> Vec<Finding> {
    let mut findings = vec![
        permissions(host, purpose),
        run_directory(),
        cpus(),
        isolation(host, purpose),
        frequency(host),
        sessions(host),
        clock(host),
        real_time(),
        hugepages(host),
        memlock(host),
        open_files(host, purpose),
    ];
    findings.extend(flow_tables(host, purpose));
    findings.extend(user_namespaces(host, purpose));
    findings.extend(kernel(host));
    findings.push(control_groups(host));
    findings.push(namespaces(host, purpose));
    findings.push(images());
    findings.push(docker(purpose));
    findings.extend(purpose.swarm.as_ref().map(swarm));
    findings.push(dpdk(purpose));
    findings.push(packet_sockets());
    findings.extend(forwarding(host, purpose));
    findings.extend(uplinks::all(&purpose.uplinks));
    findings.push(express_data_path());
    findings.push(veth());
    findings.push(kernel_programs(host, purpose));
    findings.push(program_file_system(host, purpose));
    findings.push(traffic_control(purpose));
    findings.extend(compiler(host));
    findings.push(network_cards(host));
    findings.push(embedded_switches(host));
    findings.push(open_v_switch());
    findings.push(running());
    findings
}

fn capabilities(host: &Host) -> u64 {
    let status = host.read("proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn has(capabilities: u64, capability: u32) -> bool {
    capabilities >> capability & 1 == 1
}

fn permissions(host: &Host, purpose: &Purpose) -> Finding {
    const CHECK: &str = "permissions";
    let own = capabilities(host);
    let needed = [
        ("CAP_SYS_ADMIN (containers)", SYS_ADMIN),
        ("CAP_NET_ADMIN (interfaces)", NET_ADMIN),
        ("CAP_SYS_NICE (real-time priority)", SYS_NICE),
        ("CAP_IPC_LOCK (locked memory)", IPC_LOCK),
    ];
    let lacking: Vec<&str> = needed
        .iter()
        .filter(|(_, capability)| !has(own, *capability))
        .map(|(name, _)| *name)
        .collect();
    if lacking.is_empty() {
        return Finding::ok(CHECK, "containers, interfaces, priorities and locked memory");
    }
    let found = format!("without {}", lacking.join(", "));
    if purpose.engine == EngineDriver::Oci && !has(own, SYS_ADMIN) {
        let change = "run inco as root, or write driver = \"docker\" and join the group docker";
        return Finding::fail(CHECK, found, change);
    }
    Finding::warn(CHECK, found, "run inco as root to get all of them")
}

fn run_directory() -> Finding {
    const CHECK: &str = "run directory";
    match machine::directory_is_writable(&run_dir::api_socket(None)) {
        Ok(()) => Finding::ok(CHECK, format!("{} can be written", run_dir::run_dir().display())),
        Err(error) => Finding::fail(CHECK, error.what, error.write),
    }
}

fn cpus() -> Finding {
    const CHECK: &str = "cpus";
    let allowed = machine::allowed_cpus();
    match allowed.len() {
        0 | 1 => Finding::warn(
            CHECK,
            format!("one CPU is available: {}", cpu_text(&allowed)),
            "use at least two: one for a worker, one for the control loop and the containers",
        ),
        count => Finding::ok(
            CHECK,
            format!("{count} CPUs are available: {}", cpu_text(&allowed)),
        ),
    }
}

/// Whether the kernel keeps other tasks off the workers' CPUs.
fn isolation(host: &Host, purpose: &Purpose) -> Finding {
    const CHECK: &str = "isolation";
    let isolated = cpu_list(&host.read("sys/devices/system/cpu/isolated").unwrap_or_default());
    let online = cpu_list(&host.read("sys/devices/system/cpu/online").unwrap_or_default());
    let boot = |cpus: &str| {
        format!(
            "boot with isolcpus=managed_irq,domain,{cpus} nohz_full={cpus} rcu_nocbs={cpus}; otherwise other work \
             delays packets"
        )
    };
    if purpose.workers.is_empty() {
        let Some(last) = online.last().filter(|_| isolated.is_empty()) else {
            return Finding::ok(CHECK, format!("CPU {} isolated for workers", cpu_text(&isolated)));
        };
        return Finding::warn(CHECK, "no CPU is isolated for workers", boot(&last.to_string()));
    }
    let shared: Vec<u16> = purpose
        .workers
        .iter()
        .copied()
        .filter(|cpu| !isolated.contains(cpu))
        .collect();
    if shared.is_empty() {
        return Finding::ok(
            CHECK,
            format!("the workers' CPUs ({}) are isolated", cpu_text(&purpose.workers)),
        );
    }
    let list: Vec<String> = shared.iter().map(ToString::to_string).collect();
    Finding::warn(
        CHECK,
        format!("workers share CPU {} with other work", cpu_text(&shared)),
        boot(&list.join(",")),
    )
}

/// Whether the CPUs run at their maximum frequency.
fn frequency(host: &Host) -> Finding {
    const CHECK: &str = "frequency";
    let governors: Vec<String> = host
        .names("sys/devices/system/cpu")
        .into_iter()
        .filter_map(|cpu| host.read(&format!("sys/devices/system/cpu/{cpu}/cpufreq/scaling_governor")))
        .collect();
    match governors.iter().find(|governor| *governor != "performance") {
        None if governors.is_empty() => Finding::ok(CHECK, "the kernel does not scale it"),
        None => Finding::ok(CHECK, "governor performance"),
        Some(governor) => Finding::warn(
            CHECK,
            format!("governor {governor}"),
            "run `cpupower frequency-set -g performance`",
        ),
    }
}

/// Whether the kernel gives CPU time to sessions (autogroup): a container then waits for a CPU while a session gets what it
/// had too little of, which may last for over a second.
fn sessions(host: &Host) -> Finding {
    const CHECK: &str = "sessions";
    match host.read("proc/sys/kernel/sched_autogroup_enabled").as_deref() {
        Some("1") => Finding::warn(
            CHECK,
            "the kernel groups programs by session: a container may wait for a CPU for over a second",
            "run `sysctl kernel.sched_autogroup_enabled=0`",
        ),
        _ => Finding::ok(CHECK, "the kernel does not group programs by session"),
    }
}

/// Whether reading the clock is cheap: workers do so in each turn.
fn clock(host: &Host) -> Finding {
    const CHECK: &str = "clock";
    let source = host.read("sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source.as_deref() {
        Some(fast @ ("tsc" | "kvm-clock" | "arch_sys_counter" | "hyperv_clocksource_tsc_page")) => {
            Finding::ok(CHECK, format!("{fast}, read without a system call"))
        }
        Some(slow) => Finding::warn(
            CHECK,
            format!("{slow}, slow to read"),
            "boot with clocksource=tsc if the CPU's counter is stable",
        ),
        None => Finding::warn(CHECK, "the kernel does not report it", "mount /sys"),
    }
}

/// Whether the control loop gets real-time priority; tried in a separate thread.
fn real_time() -> Finding {
    const CHECK: &str = "real time";
    match std::thread::spawn(raise_priority).join() {
        Ok(Ok(())) => Finding::ok(CHECK, "the control loop can use SCHED_FIFO"),
        _ => Finding::warn(
            CHECK,
            "the control loop cannot use SCHED_FIFO: it wakes up to 5 ms late on a busy machine",
            "run inco as root, or give it CAP_SYS_NICE; with cgroup v1, give its group cpu.rt_runtime_us",
        ),
    }
}

fn hugepages(host: &Host) -> Finding {
    const CHECK: &str = "hugepages";
    let mib = orchestrator::host::free_hugepages_mib();
    if mib == 0 {
        return Finding::warn(
            CHECK,
            "none is free; DPDK devices and hugepages = true need them",
            "run `sysctl vm.nr_hugepages=512`, or boot with hugepages=512",
        );
    }
    let mounts = host.read("proc/mounts").unwrap_or_default();
    let is_mounted = mounts
        .lines()
        .any(|line| line.split_whitespace().nth(2) == Some("hugetlbfs"));
    if is_mounted {
        Finding::ok(CHECK, format!("{mib} MiB free"))
    } else {
        Finding::warn(
            CHECK,
            format!("{mib} MiB free, and no hugetlbfs is mounted"),
            "run `mkdir -p /dev/hugepages && mount -t hugetlbfs none /dev/hugepages`",
        )
    }
}

/// Whether large flow tables can lie in hugepages.
fn flow_tables(host: &Host, purpose: &Purpose) -> Option<Finding> {
    const CHECK: &str = "flow tables";
    let mib = purpose.tables_mib;
    if mib < LARGE_TABLES_MIB {
        return None;
    }
    let pages = |of: &str| -> u64 {
        let file = format!("sys/kernel/mm/hugepages/hugepages-2048kB/{of}");
        host.read(&file).and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let (all, free_mib) = (pages("nr_hugepages"), 2 * pages("free_hugepages"));
    if free_mib >= mib {
        return Some(Finding::ok(CHECK, format!("{mib} MiB, in hugepages")));
    }
    if host
        .read("sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
        .is_some()
    {
        return Some(Finding::ok(CHECK, format!("{mib} MiB, in transparent hugepages")));
    }
    let wanted = all + (mib - free_mib).div_ceil(2);
    Some(Finding::warn(
        CHECK,
        format!(
            "{mib} MiB, in ordinary pages: the kernel has no transparent hugepages, and {free_mib} MiB of the \
             reserved ones are free. A packet of a million flows then takes 1.7 times as long to look up, and a \
             restart maps them for longer"
        ),
        format!("run `sysctl vm.nr_hugepages={wanted}` before inco starts, or boot with hugepages={wanted}"),
    ))
}

fn memlock(host: &Host) -> Finding {
    const CHECK: &str = "locked memory";
    let limit = getrlimit(Resource::Memlock).current;
    match limit {
        _ if has(capabilities(host), IPC_LOCK) => Finding::ok(CHECK, "not limited (CAP_IPC_LOCK)"),
        None => Finding::ok(CHECK, "not limited"),
        Some(bytes) if bytes >= MEMLOCK_BYTES => Finding::ok(CHECK, format!("{} MiB", bytes >> 20)),
        Some(bytes) => Finding::warn(
            CHECK,
            format!("{} KiB; DPDK and AF_XDP want more", bytes >> 10),
            "run `ulimit -l unlimited`, or write LimitMEMLOCK=infinity in the unit",
        ),
    }
}

fn open_files(host: &Host, purpose: &Purpose) -> Finding {
    const CHECK: &str = "open files";
    let limits = host.read("proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    // The soft limit, then the hard limit; `None` if it is not a number.
    let mut limits = line
        .unwrap_or_default()
        .split_whitespace()
        .map(|word| word.parse().ok());
    let (soft, hard): (Option<u64>, Option<u64>) = (limits.next().flatten(), limits.next().flatten());
    let may_raise = has(capabilities(host), SYS_RESOURCE);
    match (soft, hard) {
        (_, Some(hard)) if purpose.engine == EngineDriver::Oci && hard < engine::OPEN_FILES && !may_raise => {
            let wanted = engine::OPEN_FILES;
            let found = format!(
                "the hard limit is {hard}, and a container needs {wanted}: inco cannot create \
                                 containers"
            );
            let change =
                format!("run `ulimit -Hn {wanted}` as root, or write LimitNOFILE={wanted} in the unit");
            Finding::fail(CHECK, found, change)
        }
        (None, _) => Finding::ok(CHECK, "not limited"),
        (Some(limit), _) if limit >= OPEN_FILES => Finding::ok(CHECK, format!("{limit}")),
        (Some(limit), _) => Finding::warn(
            CHECK,
            format!("{limit}, enough for about {} instances", limit / 8),
            format!("run `ulimit -n {OPEN_FILES}`, or write LimitNOFILE={OPEN_FILES} in the unit"),
        ),
    }
}

/// Whether containers can use ids that have no rights on the host.
fn user_namespaces(host: &Host, purpose: &Purpose) -> Option<Finding> {
    const CHECK: &str = "user namespaces";
    const FILE: &str = "proc/sys/user/max_user_namespaces";
    if purpose.engine != EngineDriver::Oci {
        return None;
    }
    let most: Option<u64> = host.read(FILE).and_then(|text| text.parse().ok());
    Some(match most {
        Some(1..) => Finding::ok(CHECK, "root in a container is an unprivileged user on the host"),
        Some(0) => Finding::fail(
            CHECK,
            "the kernel permits none: inco cannot create containers with user_namespace = true",
            "run `sysctl user.max_user_namespaces=16384`",
        ),
        None => Finding::fail(
            CHECK,
            "the kernel does not support them",
            "run a kernel with CONFIG_USER_NS, or write user_namespace = false in each service",
        ),
    })
}

/// Required kernel features, each tried.
fn kernel(host: &Host) -> Vec<Finding> {
    let release = host
        .read("proc/sys/kernel/osrelease")
        .unwrap_or_else(|| "of unknown version".to_owned());
    let newer = "run Linux 5.10 or newer";
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).map(drop);
    let memfd = memfd_create("inco-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|file| fcntl_add_seals(file.as_fd(), SealFlags::SHRINK | SealFlags::GROW));
    let mut findings = Vec::new();
    for (what, tried) in [("pidfd_open", pidfd), ("sealed memfd_create", memfd)] {
        if let Err(error) = tried {
            findings.push(Finding::fail(
                "kernel",
                format!("Linux {release}: {what} fails ({error})"),
                newer,
            ));
        }
    }
    let seccomp = host
        .read("proc/sys/kernel/seccomp/actions_avail")
        .unwrap_or_default();
    if !seccomp.split_whitespace().any(|action| action == "errno") {
        findings.push(Finding::fail(
            "kernel",
            format!("Linux {release} has no seccomp filters, which confine containers"),
            "run a kernel with CONFIG_SECCOMP_FILTER",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            "kernel",
            format!("Linux {release}: process descriptors, sealed memory, seccomp"),
        ));
    }
    findings
}

fn control_groups(host: &Host) -> Finding {
    const CHECK: &str = "control groups";
    let root = host.path(cgroup::ROOT.trim_start_matches('/'));
    let Ok(hierarchy) = cgroup::Hierarchy::at(&root) else {
        return Finding::fail(
            CHECK,
            format!("none at {}", root.display()),
            "mount them: systemd does, or `mount -t cgroup2 none /sys/fs/cgroup`",
        );
    };
    let (version, there) = match hierarchy.version() {
        cgroup::Version::V1 => ("v1", host.names("sys/fs/cgroup")),
        cgroup::Version::V2 => {
            let list = host.read("sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
            ("v2", list.split_whitespace().map(str::to_owned).collect())
        }
    };
    let has = |controller: &&str| there.iter().any(|name| name == controller);
    // The freezer is part of cgroup version 2 itself.
    let needed: &[&str] = match hierarchy.version() {
        cgroup::Version::V1 => &["cpu", "cpuacct", "memory", "pids", "freezer"],
        cgroup::Version::V2 => &["cpu", "memory", "pids"],
    };
    let lacking: Vec<&str> = needed
        .iter()
        .copied()
        .filter(|controller| !has(controller))
        .collect();
    if !lacking.is_empty() {
        return Finding::fail(
            CHECK,
            format!("{version} without {}", lacking.join(", ")),
            "enable them: in cgroup.subtree_control of the groups above (v2), by mounting them (v1), or with \
             cgroup_enable=memory at boot",
        );
    }
    if !has(&"cpuset") {
        return Finding::warn(
            CHECK,
            format!("{version} without cpuset: the key cpuset of a service is refused"),
            "enable the controller cpuset, or do not use the key",
        );
    }
    Finding::ok(CHECK, format!("{version} with {}, cpuset", needed.join(", ")))
}

fn namespaces(host: &Host, purpose: &Purpose) -> Finding {
    const CHECK: &str = "oci engine";
    let there = host.names("proc/self/ns");
    let lacking: Vec<&str> = ["mnt", "pid", "net", "ipc", "uts"]
        .into_iter()
        .filter(|name| !there.iter().any(|own| own == name))
        .collect();
    if !lacking.is_empty() {
        let found = format!("the kernel has no namespaces of {}", lacking.join(", "));
        let change = "run a kernel with CONFIG_NAMESPACES and these namespaces";
        return match purpose.engine {
            EngineDriver::Oci => Finding::fail(CHECK, found, change),
            EngineDriver::Docker | EngineDriver::Swarm | EngineDriver::Kubernetes => {
                Finding::warn(CHECK, found, change)
            }
        };
    }
    if rustix::process::geteuid().is_root() {
        Finding::ok(
            CHECK,
            "namespaces of mounts, processes, network, IPC and names; root",
        )
    } else {
        Finding::warn(CHECK, "containers need root", "run inco as root")
    }
}

fn images() -> Finding {
    const CHECK: &str = "images";
    let store = Store::default_dir();
    match Store::at(&store).list() {
        Ok(images) if images.is_empty() => Finding::warn(
            CHECK,
            format!("none in {}", store.display()),
            "create one: `inco image build forward`",
        ),
        Ok(images) => Finding::ok(CHECK, format!("{} in {}", images.len(), store.display())),
        Err(error) => Finding::warn(CHECK, error.to_string(), "run inco as root"),
    }
}

fn docker(purpose: &Purpose) -> Finding {
    const CHECK: &str = "docker engine";
    let podman = format!("unix://{PODMAN_SOCKET}");
    let mut reasons = Vec::new();
    for at in [purpose.docker_host.as_str(), podman.as_str()] {
        match DockerEngine::start(DockerConfig::at(at)) {
            Ok(_) => {
                let use_it = if at == purpose.docker_host {
                    String::new()
                } else {
                    format!("; use it with host = \"{at}\"")
                };
                return Finding::ok(CHECK, format!("answers at {at}{use_it}"));
            }
            Err(error) => reasons.push(error.to_string()),
        }
    }
    let reason = reasons.swap_remove(0);
    match purpose.engine {
        EngineDriver::Docker => Finding::fail(
            CHECK,
            reason,
            "start Docker or Podman, correct host, or write driver = \"oci\"",
        ),
        EngineDriver::Oci | EngineDriver::Swarm | EngineDriver::Kubernetes => Finding::warn(
            CHECK,
            reason,
            "only driver = \"docker\" needs it: install docker.io or podman",
        ),
    }
}

/// Whether a manager of a swarm answers where the configuration has one.
fn swarm(at: &SwarmAt) -> Finding {
    const CHECK: &str = "swarm engine";
    let host = &at.host;
    let config = DockerConfig {
        certificates: at.certificates.clone(),
        ..DockerConfig::at(host)
    };
    match SwarmEngine::start(config) {
        Ok(_) => Finding::ok(CHECK, format!("a manager of a swarm answers at {host}")),
        Err(error) => Finding::fail(
            CHECK,
            format!("{host}: {error}"),
            "run `docker swarm init` there, or write the host of a manager",
        ),
    }
}

fn dpdk(purpose: &Purpose) -> Finding {
    const CHECK: &str = "dpdk";
    match machine::dpdk_is_built_in() {
        Ok(()) => Finding::ok(
            CHECK,
            "built in: cards, AF_PACKET, AF_XDP and captures as uplinks",
        ),
        Err(error) if purpose.needs_dpdk => Finding::fail(CHECK, error.what, error.write),
        Err(_) => Finding::warn(
            CHECK,
            "not built in: uplinks are memif only",
            "build inco where DPDK is installed (`make build`)",
        ),
    }
}

/// Whether a raw socket of that address family can be created.
fn raw_socket(family: AddressFamily) -> Result<(), rustix::io::Errno> {
    socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None).map(drop)
}

fn packet_sockets() -> Finding {
    const CHECK: &str = "af_packet";
    match raw_socket(AddressFamily::PACKET) {
        Ok(()) => Finding::ok(CHECK, "\"veth:INTERFACE\" and \"kernel:INTERFACE\" uplinks work"),
        Err(error) => Finding::warn(
            CHECK,
            format!("no packet sockets ({error}): neither \"veth:\" nor \"kernel:\" uplinks work"),
            "run inco as root, on a kernel with CONFIG_PACKET",
        ),
    }
}

/// Whether this machine's own network forwards the packets that the switch takes from its interfaces.
fn forwarding(host: &Host, purpose: &Purpose) -> Vec<Finding> {
    const CHECK: &str = "kernel uplinks";
    let of = |interface: &String| {
        let setting = |family: &str| format!("net.{family}.conf.{interface}.forwarding");
        let forwards = |family: &&str| {
            let path = format!("proc/sys/net/{family}/conf/{interface}/forwarding");
            host.read(&path).is_some_and(|text| text == "1")
        };
        let on = ["ipv4", "ipv6"].into_iter().filter(forwards);
        let on: Vec<String> = on.map(setting).collect();
        if on.is_empty() {
            return Finding::ok(
                CHECK,
                format!("the kernel forwards nothing that comes by {interface}"),
            );
        }
        let found = format!(
            "the kernel also forwards what comes by {interface}: a packet of a service with `match` passes twice"
        );
        let change: Vec<String> = on.iter().map(|name| format!("{name}=0")).collect();
        Finding::warn(CHECK, found, format!("run `sysctl {}`", change.join(" ")))
    };
    purpose.beside_kernel.iter().map(of).collect()
}

fn express_data_path() -> Finding {
    const CHECK: &str = "af_xdp";
    match raw_socket(AddressFamily::XDP) {
        Ok(()) => Finding::ok(CHECK, "\"net_af_xdp0,iface=INTERFACE\" uplinks work"),
        Err(error) => Finding::warn(
            CHECK,
            format!("no XDP sockets ({error}): \"net_af_xdp\" uplinks do not work"),
            "run inco as root, on a kernel with CONFIG_XDP_SOCKETS; \"veth:INTERFACE\" does without",
        ),
    }
}

/// Whether the kernel can create veth pairs; tried in a temporary network namespace.
fn veth() -> Finding {
    const CHECK: &str = "veth";
    let tried = Command::new("unshare")
        .args([
            "--net", "ip", "link", "add", "inco-a", "type", "veth", "peer", "name", "inco-b",
        ])
        .stdin(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.success() => Finding::ok(CHECK, "the kernel can create veth pairs"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or("no reason given").to_owned();
            Finding::warn(CHECK, said, "run it as root, and `modprobe veth`")
        }
        Err(error) => Finding::warn(
            CHECK,
            format!("cannot test it: unshare: {error}"),
            "install util-linux and iproute2",
        ),
    }
}

/// What the driver `ebpf` lacks: an error where it is in use.
fn lacks_ebpf(purpose: &Purpose, check: &str, found: String, change: &str) -> Finding {
    let found = format!("{found}: driver = \"ebpf\" does not work");
    if purpose.needs_ebpf {
        Finding::fail(check, found, change)
    } else {
        Finding::warn(check, found, change)
    }
}

/// Whether the programs of the driver `ebpf` load here.
fn kernel_programs(host: &Host, purpose: &Purpose) -> Finding {
    const CHECK: &str = "ebpf";
    let release = host.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().ok());
    let (oldest_major, oldest_minor) = ebpf_switch::MINIMUM;
    if let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next())
        && (major, minor) < (u32::from(oldest_major), u32::from(oldest_minor))
    {
        let found = format!("Linux {release} is older than {oldest_major}.{oldest_minor}");
        let change = format!("run Linux {oldest_major}.{oldest_minor} or newer, or write driver = \"soft\"");
        return lacks_ebpf(purpose, CHECK, found, &change);
    }
    let own = capabilities(host);
    let has_all = has(own, NET_ADMIN) && (has(own, SYS_ADMIN) || (has(own, BPF) && has(own, PERFMON)));
    if !has_all {
        let found = "without CAP_BPF, CAP_PERFMON or CAP_NET_ADMIN".to_owned();
        return lacks_ebpf(purpose, CHECK, found, "run inco as root");
    }
    Finding::ok(
        CHECK,
        format!("Linux {release}: driver = \"ebpf\" can load programs"),
    )
}

/// Whether programs and maps can outlive inco.
fn program_file_system(host: &Host, purpose: &Purpose) -> Finding {
    const CHECK: &str = "bpf file system";
    const PLACE: &str = "/sys/fs/bpf";
    let mounts = host.read("proc/mounts").unwrap_or_default();
    let is_it = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(PLACE) && words.next() == Some("bpf")
    };
    if mounts.lines().any(is_it) {
        return Finding::ok(CHECK, format!("mounted at {PLACE}"));
    }
    let known = host.read("proc/filesystems").unwrap_or_default();
    if !known
        .lines()
        .any(|line| line.split_whitespace().last() == Some("bpf"))
    {
        let found = "the kernel has none".to_owned();
        return lacks_ebpf(purpose, CHECK, found, "run a kernel with CONFIG_BPF_SYSCALL");
    }
    if !host.path(&PLACE[1..]).is_dir() {
        let found = format!("{PLACE} does not exist");
        return lacks_ebpf(purpose, CHECK, found, "run `mount -t sysfs sysfs /sys`");
    }
    if has(capabilities(host), SYS_ADMIN) {
        return Finding::ok(CHECK, format!("not mounted; inco mounts it at {PLACE}"));
    }
    let found = "it is not mounted, and inco may not mount it".to_owned();
    lacks_ebpf(
        purpose,
        CHECK,
        found,
        "run `mount -t bpf bpf /sys/fs/bpf` as root",
    )
}

/// Whether programs can be attached to interfaces; tried in a temporary network namespace.
fn traffic_control(purpose: &Purpose) -> Finding {
    const CHECK: &str = "traffic control";
    let tried = Command::new("unshare")
        .args(["--net", "tc", "qdisc", "add", "dev", "lo", "clsact"])
        .stdin(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.success() => Finding::ok(CHECK, "programs can be attached to interfaces"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or("no reason given").to_owned();
            lacks_ebpf(
                purpose,
                CHECK,
                said,
                "run it as root, on a kernel with CONFIG_NET_SCH_INGRESS",
            )
        }
        Err(error) => Finding::warn(
            CHECK,
            format!("cannot test it: unshare: {error}"),
            "install util-linux and iproute2",
        ),
    }
}

/// Whether programs run as machine code.
fn compiler(host: &Host) -> Option<Finding> {
    const CHECK: &str = "bpf compiler";
    Some(match host.read("proc/sys/net/core/bpf_jit_enable")?.as_str() {
        "0" => Finding::warn(
            CHECK,
            "off: programs of driver = \"ebpf\" are interpreted, which is slow",
            "run `sysctl net.core.bpf_jit_enable=1`",
        ),
        _ => Finding::ok(CHECK, "on: programs run as machine code"),
    })
}

/// Network cards, and whether DPDK can use them.
fn network_cards(host: &Host) -> Finding {
    const CHECK: &str = "network cards";
    let devices = host.names("sys/bus/pci/devices");
    let cards: Vec<(String, String)> = devices
        .into_iter()
        .filter(|address| {
            // Class 02 is a network card.
            let class = host.read(&format!("sys/bus/pci/devices/{address}/class"));
            class.is_some_and(|class| class.starts_with("0x02"))
        })
        .map(|address| {
            let driver = host.link(&format!("sys/bus/pci/devices/{address}/driver"));
            (address, driver.unwrap_or_else(|| "no driver".to_owned()))
        })
        .collect();
    if cards.is_empty() {
        return Finding::ok(CHECK, "none on the PCI bus: uplinks are memif, veth or captures");
    }
    let list: Vec<String> = cards
        .iter()
        .map(|(address, driver)| format!("{address} ({driver})"))
        .collect();
    let found = list.join(", ");
    if cards
        .iter()
        .any(|(_, driver)| machine::USER_SPACE_DRIVERS.contains(&driver.as_str()))
    {
        return Finding::ok(CHECK, found);
    }
    let bind = cards.first().map_or("", |(address, _)| address.as_str());
    let change = if !host.path("sys/module/vfio_pci").exists() {
        format!("for DPDK: `modprobe vfio-pci`, then `dpdk-devbind.py -b vfio-pci {bind}`")
    } else if host.names("sys/kernel/iommu_groups").is_empty() {
        "for DPDK with vfio-pci: enable the IOMMU (intel_iommu=on iommu=pt at boot)".to_owned()
    } else {
        format!("for DPDK: `dpdk-devbind.py -b vfio-pci {bind}`")
    };
    Finding::warn(
        CHECK,
        format!("{found}: all are bound to drivers of the kernel"),
        change,
    )
}

/// Drivers of cards with an embedded switch.
const SWITCH_DRIVERS: [&str; 1] = ["mlx5_core"];

/// Cards with an embedded switch, and the representors of their functions. In switchdev mode the kernel gives each
/// port a switch id and a name: `p0` is an uplink of the card, `pf0vf1` and `pf0sf1` are representors.
fn embedded_switches(host: &Host) -> Finding {
    const CHECK: &str = "embedded switch";
    let mut legacy = Vec::new();
    let mut switches: BTreeMap<String, (Vec<String>, usize)> = BTreeMap::new();
    for interface in host.names("sys/class/net") {
        let of = |name: &str| host.read(&format!("sys/class/net/{interface}/{name}"));
        let port = of("phys_port_name").unwrap_or_default();
        if let Some(id) = of("phys_switch_id").filter(|id| !id.is_empty()) {
            let (uplinks, functions) = switches.entry(id).or_default();
            if port.starts_with("pf") {
                *functions += 1;
            } else {
                uplinks.push(interface);
            }
            continue;
        }
        let device = format!("sys/class/net/{interface}/device");
        let driver = host.link(&format!("{device}/driver")).unwrap_or_default();
        // A virtual function has no embedded switch; its card does.
        let is_function = host.path(&format!("{device}/physfn")).exists();
        if SWITCH_DRIVERS.contains(&driver.as_str()) && !is_function {
            legacy.push((interface, host.link(&device).unwrap_or_default()));
        }
    }
    if let Some((interface, address)) = legacy.first() {
        return Finding::warn(
            CHECK,
            format!("{interface} ({address}) is not in switchdev mode: rules do not reach its switch"),
            format!("`devlink dev eswitch set pci/{address} mode switchdev`"),
        );
    }
    let told = |(uplinks, functions): &(Vec<String>, usize)| {
        format!(
            "{} in switchdev mode, {functions} representors",
            uplinks.join(", ")
        )
    };
    let found = switches.values().map(told).collect::<Vec<_>>().join("; ");
    if switches.is_empty() {
        Finding::ok(CHECK, "no card has one: rules stay in software")
    } else if switches.values().any(|(_, functions)| *functions == 0) {
        Finding::warn(
            CHECK,
            found,
            "create functions for the instances before there is traffic: docs/smartnic.md",
        )
    } else {
        Finding::ok(CHECK, found)
    }
}

fn open_v_switch() -> Finding {
    const CHECK: &str = "open vswitch";
    let absent = |seen: String| {
        Finding::ok(
            CHECK,
            format!("does not answer ({seen}); only driver = \"openflow\" needs it"),
        )
    };
    let endpoint = match format!("unix:{OVS_SOCKET}").parse() {
        Ok(endpoint) => endpoint,
        Err(error) => return absent(format!("{error:?}")),
    };
    if !std::path::Path::new(OVS_SOCKET).exists() {
        return absent(format!("{OVS_SOCKET} does not exist"));
    }
    let asked =
        Ovsdb::connect(&endpoint, OVS_TIME).and_then(|mut database| database.other_config("hw-offload"));
    match asked {
        Ok(Some(value)) if value == "true" => Finding::ok(
            CHECK,
            "answers; hw-offload is on: cards that support it offload flows",
        ),
        Ok(_) => Finding::warn(
            CHECK,
            "answers; hw-offload is off: no flow is offloaded",
            "with a card that supports it: `ovs-vsctl set Open_vSwitch . other_config:hw-offload=true`, and restart \
             Open vSwitch",
        ),
        Err(error) => absent(error.to_string()),
    }
}

fn running() -> Finding {
    const CHECK: &str = "running";
    match Machine::now().api_socket(None) {
        Ok(()) => match Ended::of(&run_dir::run_dir()) {
            Some(of) => Finding::warn(CHECK, of.what(), of.remedy()),
            None => Finding::ok(CHECK, "no other inco uses this run directory"),
        },
        Err(error) => Finding::ok(CHECK, error.what),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::super::Health;
    use super::*;

    /// A machine with these files.
    fn machine_with(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let host = Host::at(directory.path());
        (directory, host)
    }

    fn with_workers(workers: &[u16]) -> Purpose {
        Purpose {
            workers: workers.to_vec(),
            ..Purpose::default()
        }
    }

    #[test]
    fn large_flow_tables_want_hugepages() {
        let machine = |all: &str, free: &str| {
            let of = "sys/kernel/mm/hugepages/hugepages-2048kB";
            machine_with(&[
                (&format!("{of}/nr_hugepages"), all),
                (&format!("{of}/free_hugepages"), free),
            ])
        };
        let with = |tables_mib| Purpose {
            tables_mib,
            ..Purpose::default()
        };
        let some = machine("300", "100");
        assert_eq!(flow_tables(&some.1, &with(200)), None, "small ones");
        let finding = flow_tables(&some.1, &with(1_000)).unwrap();
        assert_eq!(finding.health, Health::Warn);
        let change = finding.change.unwrap();
        assert!(change.contains("vm.nr_hugepages=700`"), "{change}");
        let none = machine_with(&[]);
        let finding = flow_tables(&none.1, &with(1_000)).unwrap();
        assert!(finding.change.unwrap().contains("vm.nr_hugepages=500`"));
        let enough = machine("700", "500");
        assert_eq!(flow_tables(&enough.1, &with(1_000)).unwrap().health, Health::Ok);
        let transparent = machine_with(&[("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152")]);
        assert_eq!(
            flow_tables(&transparent.1, &with(1_000)).unwrap().health,
            Health::Ok
        );
    }

    #[test]
    fn an_interface_whose_packets_the_kernel_forwards_too_is_told() {
        let (_directory, host) = machine_with(&[
            ("proc/sys/net/ipv4/conf/eth1/forwarding", "1\n"),
            ("proc/sys/net/ipv6/conf/eth1/forwarding", "0\n"),
            ("proc/sys/net/ipv4/conf/eth2/forwarding", "0\n"),
        ]);
        let purpose = Purpose {
            beside_kernel: vec!["eth1".to_owned(), "eth2".to_owned()],
            ..Purpose::default()
        };
        let findings = forwarding(&host, &purpose);
        assert_eq!(
            (findings[0].health, findings[1].health),
            (Health::Warn, Health::Ok)
        );
        assert_eq!(
            findings[0].change.as_deref(),
            Some("run `sysctl net.ipv4.conf.eth1.forwarding=0`")
        );
    }

    #[test]
    fn permissions_are_read_from_the_effective_set() {
        let all = machine_with(&[("proc/self/status", "Name:\tinco\nCapEff:\t000001ffffffffff\n")]);
        assert_eq!(permissions(&all.1, &Purpose::default()).health, Health::Ok);
        // Only CAP_NET_ADMIN.
        let some = machine_with(&[("proc/self/status", "CapEff:\t0000000000001000\n")]);
        let finding = permissions(&some.1, &Purpose::default());
        assert_eq!(finding.health, Health::Fail);
        assert!(
            finding.found.contains("CAP_SYS_ADMIN") && !finding.found.contains("CAP_NET_ADMIN"),
            "{finding:?}"
        );
        let docker = Purpose {
            engine: EngineDriver::Docker,
            ..Purpose::default()
        };
        assert_eq!(permissions(&some.1, &docker).health, Health::Warn);
    }

    #[test]
    fn what_the_driver_ebpf_lacks_fails_where_it_is_in_use() {
        let of = |release: &str, capabilities: &str, driver_is_ebpf: bool| {
            let machine = machine_with(&[
                ("proc/sys/kernel/osrelease", release),
                ("proc/self/status", capabilities),
            ]);
            let purpose = Purpose {
                needs_ebpf: driver_is_ebpf,
                ..Purpose::default()
            };
            kernel_programs(&machine.1, &purpose)
        };
        let (all, some) = ("CapEff:\t000001ffffffffff\n", "CapEff:\t0000000000001000\n");
        for new in ["6.1.0-18-amd64", "6.18.5", "7.0"] {
            assert_eq!(of(new, all, true).health, Health::Ok, "{new}");
        }
        for old in ["6.0.12", "5.15.0-91-generic"] {
            let finding = of(old, all, true);
            assert_eq!(finding.health, Health::Fail);
            assert_eq!(
                finding.found,
                format!("Linux {old} is older than 6.1: driver = \"ebpf\" does not work")
            );
            assert_eq!(of(old, all, false).health, Health::Warn);
        }
        assert_eq!(of("6.1.0", some, true).health, Health::Fail);
    }

    #[test]
    fn the_file_system_for_programs_is_mounted_or_can_be() {
        let mounted = (
            "proc/mounts",
            "sysfs /sys sysfs rw 0 0\nbpf /sys/fs/bpf bpf rw 0 0\n",
        );
        let elsewhere = ("proc/mounts", "bpf /mnt bpf rw 0 0\n");
        let known = ("proc/filesystems", "nodev\tsysfs\nnodev\tbpf\n\text4\n");
        let root = ("proc/self/status", "CapEff:\t000001ffffffffff\n");
        let place = ("sys/fs/bpf/readme", "");
        let used = Purpose {
            needs_ebpf: true,
            ..Purpose::default()
        };
        for (files, health, said) in [
            (vec![mounted], Health::Ok, "mounted at /sys/fs/bpf"),
            (vec![elsewhere, known, root, place], Health::Ok, "inco mounts it"),
            (
                vec![elsewhere, known, place],
                Health::Fail,
                "inco may not mount it",
            ),
            (vec![known, root], Health::Fail, "/sys/fs/bpf does not exist"),
            (vec![root, place], Health::Fail, "the kernel has none"),
        ] {
            let (_directory, host) = machine_with(&files);
            let finding = program_file_system(&host, &used);
            assert_eq!(finding.health, health, "{finding:?}");
            assert!(finding.found.contains(said), "{finding:?}");
        }
    }

    #[test]
    fn interpreted_programs_are_reported() {
        let of = |text: &str| {
            let (_directory, host) = machine_with(&[("proc/sys/net/core/bpf_jit_enable", text)]);
            compiler(&host).unwrap().health
        };
        assert_eq!(
            (of("0"), of("1"), of("2")),
            (Health::Warn, Health::Ok, Health::Ok)
        );
        assert_eq!(compiler(&machine_with(&[]).1), None);
    }

    #[test]
    fn a_hard_limit_of_open_files_below_what_a_container_gets_fails() {
        let limits = |soft: &str, hard: &str, capabilities: &str| {
            let limits = format!("Limit Soft Hard Units\nMax open files            {soft} {hard} files\n");
            machine_with(&[("proc/self/limits", &limits), ("proc/self/status", capabilities)])
        };
        let (all, none) = ("CapEff:\t000001ffffffffff\n", "CapEff:\t0\n");
        let of = |soft, hard, capabilities| {
            let (_directory, host) = limits(soft, hard, capabilities);
            open_files(&host, &Purpose::default())
        };
        let low = of("1024", "4095", none);
        assert_eq!(low.health, Health::Fail);
        assert!(low.found.contains("4095") && low.change.unwrap().contains("ulimit -Hn 4096"));
        // A process with the capability can raise the limit.
        assert_eq!(of("1024", "4095", all).health, Health::Warn);
        assert_eq!(of("1024", "4096", none).health, Health::Warn);
        assert_eq!(of("2048", "4096", none).health, Health::Ok);
        assert_eq!(of("unlimited", "unlimited", none).health, Health::Ok);
        let docker = Purpose {
            engine: EngineDriver::Docker,
            ..Purpose::default()
        };
        let (_directory, host) = limits("1024", "1024", none);
        assert_eq!(open_files(&host, &docker).health, Health::Warn);
    }

    #[test]
    fn user_namespaces_that_are_not_to_be_had_fail() {
        let of = |files: &[(&str, &str)]| {
            let (_directory, host) = machine_with(files);
            user_namespaces(&host, &Purpose::default()).unwrap().health
        };
        let file = "proc/sys/user/max_user_namespaces";
        assert_eq!(of(&[(file, "16384\n")]), Health::Ok);
        assert_eq!((of(&[(file, "0\n")]), of(&[])), (Health::Fail, Health::Fail));
    }

    #[test]
    fn workers_on_shared_cpus_are_named() {
        let (_directory, host) = machine_with(&[
            ("sys/devices/system/cpu/isolated", "2-3\n"),
            ("sys/devices/system/cpu/online", "0-3\n"),
        ]);
        assert_eq!(isolation(&host, &with_workers(&[2, 3])).health, Health::Ok);
        let finding = isolation(&host, &with_workers(&[1, 2]));
        assert_eq!(finding.found, "workers share CPU 1 with other work");
        assert!(finding.change.unwrap().contains("nohz_full=1 "));
        assert_eq!(isolation(&host, &with_workers(&[])).health, Health::Ok);
        let (_directory, host) = machine_with(&[
            ("sys/devices/system/cpu/isolated", "\n"),
            ("sys/devices/system/cpu/online", "0-3\n"),
        ]);
        let finding = isolation(&host, &with_workers(&[]));
        assert!(finding.change.unwrap().contains("isolcpus=managed_irq,domain,3 "));
    }

    #[test]
    fn a_kernel_that_groups_sessions_is_told() {
        let of = |value: &str| machine_with(&[("proc/sys/kernel/sched_autogroup_enabled", value)]);
        let finding = sessions(&of("1\n").1);
        assert_eq!(finding.health, Health::Warn);
        assert_eq!(
            finding.change.as_deref(),
            Some("run `sysctl kernel.sched_autogroup_enabled=0`")
        );
        assert_eq!(sessions(&of("0\n").1).health, Health::Ok);
        assert_eq!(sessions(&machine_with(&[]).1).health, Health::Ok);
    }

    #[test]
    fn a_power_saving_governor_is_reported() {
        let file = |cpu: u8| format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
        let (_directory, host) = machine_with(&[(&file(0), "performance\n"), (&file(1), "powersave\n")]);
        assert_eq!(frequency(&host).found, "governor powersave");
        let (_directory, host) = machine_with(&[(&file(0), "performance\n")]);
        assert_eq!(frequency(&host).health, Health::Ok);
        let (_directory, host) = machine_with(&[]);
        assert_eq!(frequency(&host).health, Health::Ok);
    }

    #[test]
    fn control_groups_need_their_controllers() {
        let controllers = "sys/fs/cgroup/cgroup.controllers";
        for (there, health, said) in [
            (
                "cpuset cpu io memory pids",
                Health::Ok,
                "v2 with cpu, memory, pids",
            ),
            ("cpu memory pids", Health::Warn, "without cpuset"),
            ("cpuset cpu pids", Health::Fail, "v2 without memory"),
        ] {
            let (_directory, host) = machine_with(&[(controllers, there)]);
            let finding = control_groups(&host);
            assert_eq!(finding.health, health, "{finding:?}");
            assert!(finding.found.contains(said), "{finding:?}");
        }
        let (_directory, host) = machine_with(&[("sys/fs/cgroup/readme", "")]);
        assert_eq!(control_groups(&host).health, Health::Fail);
        let (directory, host) = machine_with(&[]);
        for controller in ["cpu", "cpuacct", "memory", "freezer", "pids", "cpuset"] {
            fs::create_dir_all(directory.path().join("sys/fs/cgroup").join(controller)).unwrap();
        }
        assert_eq!(control_groups(&host).health, Health::Ok);
    }

    #[test]
    fn cards_with_a_switch_are_reported_with_its_mode() {
        let net = |interface: &str, file: &str| format!("sys/class/net/{interface}/{file}");
        let (_directory, host) = machine_with(&[(&net("lo", "address"), "")]);
        let finding = embedded_switches(&host);
        assert_eq!(
            (finding.health, finding.change),
            (Health::Ok, None),
            "{}",
            finding.found
        );

        let (directory, host) = machine_with(&[
            (&net("p0", "phys_port_name"), ""),
            ("sys/devices/0000:03:00.0/class", "0x020000"),
        ]);
        let device = directory.path().join("sys/devices/0000:03:00.0");
        symlink("../../../bus/pci/drivers/mlx5_core", device.join("driver")).unwrap();
        symlink(&device, directory.path().join(net("p0", "device"))).unwrap();
        let finding = embedded_switches(&host);
        assert_eq!(finding.health, Health::Warn, "{finding:?}");
        let change = finding.change.unwrap();
        assert!(change.contains("pci/0000:03:00.0 mode switchdev"), "{change}");
        // A virtual function passed to this machine has no embedded switch.
        fs::write(device.join("physfn"), "").unwrap();
        assert_eq!(embedded_switches(&host).health, Health::Ok);

        let switchdev = [
            (net("p0", "phys_switch_id"), "b8cef6"),
            (net("p0", "phys_port_name"), "p0"),
            (net("en3f0pf0sf1", "phys_switch_id"), "b8cef6"),
            (net("en3f0pf0sf1", "phys_port_name"), "pf0sf1"),
        ];
        let files: Vec<(&str, &str)> = switchdev
            .iter()
            .map(|(path, text)| (path.as_str(), *text))
            .collect();
        let (_directory, host) = machine_with(&files[..2]);
        let finding = embedded_switches(&host);
        assert_eq!(finding.found, "p0 in switchdev mode, 0 representors");
        assert_eq!(finding.health, Health::Warn);
        let (_directory, host) = machine_with(&files);
        let finding = embedded_switches(&host);
        assert_eq!(finding.found, "p0 in switchdev mode, 1 representors");
        assert_eq!(finding.health, Health::Ok);
    }

    #[test]
    fn cards_with_a_kernel_driver_get_the_bind_command() {
        let (directory, host) = machine_with(&[("sys/bus/pci/devices/0000:03:00.0/class", "0x020000\n")]);
        let driver = directory.path().join("sys/bus/pci/devices/0000:03:00.0/driver");
        symlink(Path::new("../../../bus/pci/drivers/ixgbe"), &driver).unwrap();
        let finding = network_cards(&host);
        assert!(finding.found.contains("0000:03:00.0 (ixgbe)"), "{finding:?}");
        assert!(finding.change.unwrap().contains("modprobe vfio-pci"));
        fs::create_dir_all(directory.path().join("sys/module/vfio_pci")).unwrap();
        assert!(network_cards(&host).change.unwrap().contains("iommu=pt"));
        fs::remove_file(&driver).unwrap();
        symlink(Path::new("../../../bus/pci/drivers/vfio-pci"), &driver).unwrap();
        assert_eq!(network_cards(&host).health, Health::Ok);
    }

    #[test]
    fn a_kernel_without_seccomp_fails() {
        let (_directory, host) = machine_with(&[("proc/sys/kernel/osrelease", "6.1.0\n")]);
        let findings = kernel(&host);
        assert!(
            findings
                .iter()
                .any(|finding| finding.health == Health::Fail && finding.found.contains("seccomp")),
            "{findings:?}"
        );
        let (_directory, host) = machine_with(&[(
            "proc/sys/kernel/seccomp/actions_avail",
            "kill_process trap errno trace log allow",
        )]);
        assert_eq!(kernel(&host)[0].health, Health::Ok);
    }

    #[test]
    fn a_slow_clock_is_reported() {
        let file = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        let (_directory, host) = machine_with(&[(file, "hpet\n")]);
        assert_eq!(clock(&host).health, Health::Warn);
        let (_directory, host) = machine_with(&[(file, "tsc\n")]);
        assert_eq!(clock(&host).health, Health::Ok);
    }

    #[test]
    fn this_machine_gets_a_finding_for_each_check() {
        let findings = all(&Host::here(), &Purpose::default());
        assert!(findings.len() >= 20, "{}", findings.len());
        for finding in &findings {
            assert_eq!(
                finding.health != Health::Ok,
                finding.change.is_some(),
                "{finding:?}"
            );
        }
    }
}
