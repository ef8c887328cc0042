//! Machines that have little: one CPU, or a user without rights.

use std::process::Stdio;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::support::{Engine, FORWARD, Inco, Network, PATIENCE, Place, assert_clean, eventually};

const LOAD: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "2s"
flows = 10
rate_per_flow = "100pps"
"#;

/// Does something on a thread that may use one CPU. Programs that are started there may use it alone, too.
fn on_one_cpu<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let all = sched_getaffinity(None).unwrap();
            let mut one = CpuSet::new();
            one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
            sched_setaffinity(None, &one).unwrap();
            run()
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Switch, engine, containers and generator share the one that there is.
#[test]
fn one_cpu_is_enough() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    let text = format!(
        r#"
{FORWARD}
capacity = "100kpps"
instances = {{ min = 1, max = 3, standby = 1 }}
autoscaler = "fixed"
ring = {{ slots = 8192 }}
"#
    );
    let inco = on_one_cpu(|| place.run(&text));
    inco.settled(1, 1);
    let traffic = on_one_cpu(|| place.traffic(LOAD));
    place.must(&["scale", "forward", "3"]);
    inco.settled(3, 1);
    let report = traffic.report();
    assert_clean(&report);
    let status = inco.at_rest();
    assert_eq!(status.accounting.returned, report.counts.offered_packets);
    for pid in inco.instances().iter().filter_map(|row| row.pid) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed_list:"));
        assert!(
            allowed.is_some_and(|line| !line.contains(['-', ','])),
            "{allowed:?}"
        );
    }
    // A worker for a CPU that it may not use is refused.
    let other = place.beside();
    let file = other.file("two.toml", &format!("[switch]\nworkers = [0, 1]\n{text}"));
    let output = on_one_cpu(|| other.output(&["check", "-f", file.to_str().unwrap()]));
    let said = crate::support::text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("two.toml:2: switch.workers") && said.lines().count() == 1,
        "{said}"
    );
    inco.stop(&place);
}

/// Without containers nothing needs root: the switch itself, a memif uplink, the generator.
#[test]
fn a_sink_needs_no_root() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    place.allow_other_users();
    let text = "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[service.all]\nport = \"null\"\n\
                instances = 2\n";
    let file = place.file("inco.toml", text);
    let mut command = place.inco_unprivileged(&["run", "-f"]);
    command.arg(&file);
    let inco = place.start(command);
    inco.settled(2, 0);
    let profile = place.file("profile.toml", LOAD);
    let traffic = place
        .inco_unprivileged(&["traffic", "--json", "--uplink", "memif:wan.sock", "-f"])
        .arg(&profile)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = crate::support::text(&traffic.stderr);
    assert!(traffic.status.success(), "{said}");
    let report: traffic::Report = serde_json::from_slice(&traffic.stdout).unwrap();
    let offered = report.counts.offered_packets;
    assert!(
        offered > 1000 && report.counts.returned_packets == 0,
        "{:#?}",
        report.counts
    );
    let rows = eventually("all packets are in the sinks", PATIENCE, || {
        let rows = inco.instances();
        (rows.iter().map(|row| row.to_packets).sum::<u64>() == offered).then_some(rows)
    });
    assert!(rows.iter().all(|row| row.to_packets > 0), "{rows:#?}");
    let stopped = place.inco_unprivileged(&["stop"]).output().unwrap();
    assert!(
        stopped.status.success(),
        "{}",
        crate::support::text(&stopped.stderr)
    );
    inco.ended();
}

/// No thread can load modules, reboot, set the clock or read the kernel's log, nor can a program that it starts.
#[test]
fn a_running_inco_keeps_only_the_capabilities_that_it_needs() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&format!(
        "{FORWARD}\ncapacity = \"100kpps\"\nautoscaler = \"fixed\"\n"
    ));
    inco.settled(1, 1);
    // CAP_SYS_MODULE, RAWIO, BOOT, TIME, CAP_MAC_ADMIN, CAP_SYSLOG, CAP_PERFMON, CAP_BPF.
    assert_lacks(&inco, &[16, 17, 22, 25, 33, 34, 38, 39]);
    inco.stop(&place);
    // With interfaces of the kernel it needs no more; for programs in the kernel, the last two.
    let network = Network::new();
    let image = "inco-test/idle";
    place.import_image(image, &["sleep"]);
    for (driver, lacks) in [
        ("soft", &[16, 17, 22, 25, 33, 34, 38, 39][..]),
        ("ebpf", &[16, 17, 22, 25, 33, 34][..]),
    ] {
        let text = format!(
            "[switch]\ndriver = \"{driver}\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\n[service.idle]\n\
             port = \"kernel\"\nvip = {{ address = \"10.0.0.100\", ports = \"80\" }}\nimage = \"{image}\"\ncommand = \
             [\"/bin/sleep\", \"1000\"]\nready = \"connected\"\ninstances = 1\nautoscaler = \"fixed\"\n"
        );
        let inco = network.run(&place, &text);
        inco.settled(1, 0);
        assert_lacks(&inco, lacks);
        inco.stop(&place);
    }
}

/// No thread has these capabilities; all keep CAP_SYS_ADMIN.
fn assert_lacks(inco: &Inco, capabilities: &[u32]) {
    let mut threads = 0;
    for task in std::fs::read_dir(format!("/proc/{}/task", inco.pid())).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let mask = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
        };
        for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
            let has = |capability: u32| mask(set) >> capability & 1 == 1;
            assert!(has(21), "{set} {status}");
            assert!(!capabilities.iter().any(|of| has(*of)), "{set} {status}");
        }
        assert_eq!(mask("CapInh:"), 0);
        threads += 1;
    }
    assert!(threads > 2, "{threads} threads");
}
