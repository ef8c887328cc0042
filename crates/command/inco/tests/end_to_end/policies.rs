//! Policies change while inco runs, and what they want of quotas reaches the kernel.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use model::EventKind;
use serde_json::Value;

use crate::support::{Engine, FORWARD, PATIENCE, Place, eventually};

fn configuration(engine: Engine) -> String {
    format!(
        r#"
{FORWARD}
cpus = 0.1
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

/// What `inco explain autoscaler` says of an input.
fn explained(place: &Place, input: &str) -> Value {
    let mut explain = place
        .inco(&["explain", "autoscaler", "--input", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    explain.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = explain.wait_with_output().unwrap();
    assert!(output.status.success(), "{input}");
    serde_json::from_slice(&output.stdout).unwrap()
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
        let case = case.as_ref().unwrap().to_string();
        let answer = explained(&place, &case);
        let again = answer["steps"][0]["quotas"][0]["cpus"].as_f64().unwrap();
        assert!((again - to_cpus).abs() < 0.001, "{answer} instead of {to_cpus}");
    }
    assert!(resized >= 2, "{}", inco.told());
    inco.stop(&place);
}

/// More than what one instance takes by `capacity`, for as long as the test goes on.
const TOO_MUCH: &str = r#"
tick = "1ms"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "120s"
flows = 8
rate_per_flow = "500pps"
"#;

/// Each autoscaler, given to the running service while it has one instance, decides for a second one; what it decided
/// is what it decides again from its own event.
#[test]
fn every_autoscaler_decides_live_as_it_is_explained() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    // Half of the flows are too much for one instance, too: those that an instance keeps that is drained do not
    // count.
    let configuration = configuration(Engine::Oci)
        .replace("cpus = 0.1\n", "")
        .replace("capacity = \"2.5kpps\"", "capacity = \"1kpps\"")
        .replace("standby = 0", "standby = 1");
    let inco = place.run(&configuration);
    inco.settled(1, 1);
    let mut traffic = place.traffic(TOO_MUCH);
    let autoscalers = inco.client().policies().unwrap().autoscalers;
    assert!(autoscalers.len() >= 7, "{autoscalers:?}");
    for name in autoscalers.iter().map(|row| row.name.as_str()) {
        place.must(&["scale", "forward", "1"]);
        // Shorter windows and periods than those for use.
        let parameters: &[&str] = match name {
            "fixed" => &["count=2"],
            "hpa" => &["target_percent=50", "period=100ms", "window=500ms"],
            "kpa" => &["stable_window=6s", "period=100ms"],
            "threshold" => &["period=100ms", "window=500ms"],
            _ => &[],
        };
        let mut arguments = vec!["policy", "forward", "--autoscaler", name];
        arguments.extend(parameters.iter().flat_map(|parameter| ["--set", *parameter]));
        place.must(&arguments);
        let from = inco.events().last().unwrap().sequence;
        place.must(&["scale", "forward", "--auto"]);
        let event = eventually(&format!("{name} decides"), PATIENCE, || {
            inco.events().into_iter().find(|event| {
                event.sequence > from
                    && matches!(&event.kind, EventKind::Scaled { policy, .. } if policy == name)
            })
        });
        let EventKind::Scaled { from, to, .. } = &event.kind else {
            unreachable!()
        };
        assert_eq!((*from, *to), (1, 2), "{name}: {event:?}");
        let line = serde_json::to_string(&event).unwrap();
        let answer = explained(&place, &line);
        // HPA's answer has no steps.
        let decided = answer.pointer("/steps/0").unwrap_or(&answer);
        assert_eq!(decided["replicas"].as_u64(), Some(2), "{name}: {line}");
    }
    assert!(
        traffic.is_running(),
        "the decisions took longer than the traffic: {}",
        inco.told()
    );
    traffic.interrupt();
    let _report = traffic.report();
    inco.stop(&place);
}
