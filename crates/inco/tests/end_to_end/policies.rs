//! Policies change while inco runs, and what they want of quotas reaches the kernel.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use model::EventKind;
use serde_json::Value;

use crate::support::{Engine, IMAGE, Place, eventually};

fn configuration(engine: Engine) -> String {
    format!(
        r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.forward]
image = "{IMAGE}"
command = ["/inco-nf", "forward", "--stamp"]
cpus = 0.1
memory = "64MiB"
capacity = "2.5kpps"
instances = {{ min = 1, max = 2, standby = 0 }}
autoscaler = "fixed"
ring = {{ slots = 8192 }}
{}"#,
        engine.toml()
    )
}

const STEADY: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "8s"
flows = 4
rate_per_flow = "500pps"
"#;

/// CPUs that the kernel allows a process, by its control group of version 1 or 2.
fn cpus_of(pid: u32) -> Option<f64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let number = |text: &str| text.trim().parse::<f64>().ok();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.is_empty() {
            let max = std::fs::read_to_string(format!("/sys/fs/cgroup{path}/cpu.max")).unwrap_or_default();
            if let Some((quota, period)) = max.split_once(' ') {
                return Some(number(quota)? / number(period)?);
            }
        }
        if controllers.split(',').any(|controller| controller == "cpu") {
            let file = |root: &str, name: &str| {
                std::fs::read_to_string(format!("/sys/fs/cgroup/{root}{path}/{name}")).ok()
            };
            for root in [controllers, "cpu"] {
                if let (Some(quota), Some(period)) =
                    (file(root, "cpu.cfs_quota_us"), file(root, "cpu.cfs_period_us"))
                {
                    return Some(number(&quota)? / number(&period)?);
                }
            }
        }
    }
    None
}

#[test]
fn a_policy_given_to_a_running_service_raises_quotas_in_the_kernel_oci() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&configuration(Engine::Oci));
    let pid = inco.settled(1, 0)[0].pid.unwrap();
    assert_eq!(cpus_of(pid), Some(0.1));
    let refused = place.output(&[
        "policy",
        "forward",
        "--autoscaler",
        "threshold",
        "--set",
        "hihg=0.5",
    ]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("hihg"),
        "{refused:?}"
    );

    let said = place.must(&[
        "policy",
        "forward",
        "--autoscaler",
        "threshold",
        "--set",
        "high=0.5",
        "--set",
        "low=0.01",
        "--set",
        "period=100ms",
        "--set",
        "window=500ms",
        "--set",
        "cpus_max=0.4",
    ]);
    assert_eq!(said.trim(), "threshold decides instead of fixed");
    let mut traffic = place.traffic(STEADY);
    // 2 kpps of 2.5 are above the mark; of what 0.16 CPUs process they are not.
    let cpus = eventually("the kernel allows more CPU", Duration::from_secs(10), || {
        cpus_of(pid).filter(|cpus| *cpus > 0.155)
    });
    assert!(cpus <= 0.41, "{cpus}");
    assert!(traffic.is_running(), "the quota came too late");
    let _report = traffic.report();
    let instances = inco.instances();
    assert_eq!(instances.len(), 1, "quota comes before count: {}", inco.told());
    assert_eq!(instances[0].pid, Some(pid));

    // The log says so, and its cases decide the same when they are asked again.
    let mut resized = 0;
    for event in inco.events() {
        let EventKind::Resized {
            to_cpus,
            policy,
            case,
            ..
        } = &event.kind
        else {
            continue;
        };
        resized += 1;
        assert_eq!(policy, "threshold");
        let mut explain = place
            .inco(&["explain", "autoscaler", "--input", "-", "--json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let case = case.as_ref().unwrap().to_string();
        explain.stdin.take().unwrap().write_all(case.as_bytes()).unwrap();
        let output = explain.wait_with_output().unwrap();
        assert!(output.status.success(), "{case}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let again = answer["steps"][0]["quotas"][0]["cpus"].as_f64().unwrap();
        assert!((again - to_cpus).abs() < 0.001, "{answer} instead of {to_cpus}");
    }
    assert!(resized >= 2, "{}", inco.told());
    inco.stop(&place);
}
