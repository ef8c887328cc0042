//! Policies change while inco runs, and what they want of quotas reaches the kernel.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use model::EventKind;
use serde_json::Value;

use crate::support::{Engine, FORWARD, PATIENCE, PROGRAM, Place, available, eventually, example};

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
settle = "10s"
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
pub(crate) fn explained(place: &Place, input: &str) -> Value {
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
    let cpus = eventually("the kernel allows more CPU", PATIENCE, || {
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
settle = "10s"
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

/// More than what one instance processes, for as long as the test goes on.
const COSTLY: &str = r#"
tick = "1ms"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "120s"
flows = 8
rate_per_flow = "1500pps"
"#;

/// What all threads of a process have used; nothing if it is over.
fn cpu_time_of(pid: u32) -> Option<Duration> {
    let mut used = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        used += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(used))
}

fn cpu_time(pid: u32) -> Duration {
    cpu_time_of(pid).unwrap()
}

/// Where packets cost CPU time, throughput follows the quota down and up again (InReal, figure 2c).
fn throughput_follows_a_quota_set_by_hand(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let place = Place::quiet();
    // 0.2 of a CPU processes 5,000 packets in a second.
    let configuration = configuration(engine)
        .replace("\"--stamp\"", "\"--stamp\", \"--cost-ns\", \"40000\"")
        .replace("cpus = 0.1", "cpus = 0.2")
        .replace("max = 2", "max = 1")
        .replace("slots = 8192", "slots = 1024");
    let inco = place.run(&configuration);
    let row = inco.settled(1, 0).remove(0);
    let pid = row.pid.unwrap();
    let mut traffic = place.traffic(COSTLY);
    eventually("packets come back", PATIENCE, || {
        (inco.instances()[0].back_packets > 100).then_some(())
    });
    // Packets per second while the quota alone holds the program up, and not what else runs here.
    let rate = |cpus: f64| {
        eventually("it uses its whole quota", PATIENCE, || {
            let (since, used, before) = (Instant::now(), cpu_time(pid), inco.instances()[0].back_packets);
            std::thread::sleep(Duration::from_millis(1_500));
            let packets = inco.instances()[0].back_packets - before;
            let (used, seconds) = (
                (cpu_time(pid) - used).as_secs_f64(),
                since.elapsed().as_secs_f64(),
            );
            (used >= 0.97 * cpus * seconds).then_some(packets as f64 / seconds)
        })
    };
    let is_set = |cpus: f64| {
        eventually("the kernel has the quota", PATIENCE, || {
            cpus_of(pid).filter(|now| (now - cpus).abs() < 1e-3)
        });
    };
    let full = rate(0.2);
    // 12,000 packets a second come, and a full ring of 1,024 takes a fifth of a second.
    let seen = eventually("a second passes with a full ring", PATIENCE, || {
        let row = inco.instances().remove(0);
        row.ring_wait_us
            .is_some_and(|wait| wait.p50 > 150e3)
            .then_some(row)
    });
    let (wait, took) = (seen.ring_wait_us.unwrap(), seen.function_us.unwrap());
    println!(
        "{:?} µs apart, {wait:?} and {took:?}, held up {:.2}",
        seen.gap_us, seen.held_up
    );
    assert!((60.0..120.0).contains(&seen.gap_us.unwrap()), "{:?}", seen.gap_us);
    assert!(wait.p50 < 300e3 && wait.p99 < 600e3, "{wait:?}");
    assert!(took.p50 >= 40.0 && took.p99 < 200e3, "{took:?}");
    // 0.8 where it gets a CPU at once. While it waits for one that others use, it is not held up by its quota.
    assert!((0.2..0.95).contains(&seen.held_up), "{}", seen.held_up);
    let described = place.must(&["describe", &format!("forward/{}", seen.id.0)]);
    assert!(described.contains("of samples in the last second"), "{described}");
    let said = place.must(&["scale", "forward", "--cpus", "0.12"]);
    assert!(said.contains("0.120 CPUs for each instance; 1 change"), "{said}");
    is_set(0.12);
    let less = rate(0.12);
    place.must(&["scale", "forward", "--file-cpus"]);
    is_set(0.2);
    let again = rate(0.2);
    println!(
        "{full:.0}, {less:.0}, {again:.0} packets/s: {:.3} and {:.3}",
        less / full,
        less / again
    );
    for ratio in [less / full, less / again] {
        assert!(
            (ratio - 0.6).abs() <= 0.05,
            "{full}, {less}, {again}: {}",
            inco.told()
        );
    }
    assert!(traffic.is_running());
    let manual =
        |event: &model::Event| matches!(&event.kind, EventKind::Resized { policy, .. } if policy == "manual");
    assert_eq!(inco.events().iter().filter(|event| manual(event)).count(), 2);
    assert_eq!(inco.instances()[0].pid, Some(pid), "no other container");
    for (wrong, why) in [("5000", "0.001 to 1024"), ("0", "0.001 to 1024")] {
        let refused = place.output(&["scale", "forward", "--cpus", wrong]);
        assert!(
            String::from_utf8_lossy(&refused.stderr).contains(why),
            "{refused:?}"
        );
    }
    traffic.interrupt();
    let _report = traffic.report();
    inco.stop(&place);
}

/// From the event of a decision until the kernel has the quota, in milliseconds: the median of twenty changes.
fn a_quota_is_in_effect_soon(engine: Engine, limit_ms: f64) {
    if !engine.is_here() {
        return;
    }
    let place = Place::quiet();
    let inco = place.run(&configuration(engine));
    let pid = inco.settled(1, 0)[0].pid.unwrap();
    let mut took = Vec::new();
    for turn in 0..20 {
        let wanted = if turn % 2 == 0 { 0.15 } else { 0.2 };
        let seen = std::thread::spawn(move || {
            let since = Instant::now();
            while since.elapsed() < PATIENCE {
                if cpus_of(pid).is_some_and(|cpus| (cpus - wanted).abs() < 1e-3) {
                    return std::time::SystemTime::now();
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            panic!("the kernel never had {wanted} CPUs");
        });
        place.must(&["scale", "forward", "--cpus", &wanted.to_string()]);
        let at = seen.join().unwrap();
        let decided = eventually("the decision is in the log", PATIENCE, || {
            let events = inco.events().into_iter().rev();
            let mut resized = events.filter_map(|event| match event.kind {
                EventKind::Resized { to_cpus, .. } => Some((event.unix_ms, to_cpus)),
                _ => None,
            });
            resized.next().filter(|(_, cpus)| (cpus - wanted).abs() < 1e-3)
        });
        let at_ms = at.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64() * 1e3;
        // Events have whole milliseconds: up to one more.
        took.push((at_ms - decided.0 as f64).max(0.0));
    }
    took.sort_by(f64::total_cmp);
    println!("{engine:?}: {took:.1?} ms");
    assert!(took[took.len() / 2] <= limit_ms, "{took:.1?} ms: {}", inco.told());
    inco.stop(&place);
}

#[test]
fn a_quota_is_in_effect_within_5_ms_oci() {
    a_quota_is_in_effect_soon(Engine::Oci, 5.0);
}

#[test]
fn a_quota_is_in_effect_within_30_ms_docker() {
    a_quota_is_in_effect_soon(Engine::Docker, 30.0);
}

/// Little load, and for four seconds eight times as much.
const SWELL: &str = r#"
tick = "1ms"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "16s"
flows = 8
rate_per_flow = "50pps"
[[phase]]
start = "6s"
duration = "4s"
flows = 8
rate_per_flow = "350pps"
src = "10.9.0.1"
"#;

/// What a service took under [`SWELL`].
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// Quota times seconds.
    reserved_s: f64,
    /// CPU time of its programs, as the kernel counts it.
    consumed_s: f64,
    lost: u64,
    offered: u64,
}

/// What an autoscaler has instances take and lose under a profile, of the configuration with two to four instances.
fn taken(configuration: &str, autoscaler: &str, profile: &str) -> Taken {
    let place = Place::quiet();
    assert!(
        configuration.contains("autoscaler = \"fixed\""),
        "{configuration}"
    );
    let configuration =
        configuration.replace("autoscaler = \"fixed\"", &format!("autoscaler = {autoscaler}"));
    let inco = place.run(&configuration);
    let begun = inco.settled(2, 0).into_iter().filter_map(|row| row.pid);
    // Their start is not counted, that of others is.
    let mut used: BTreeMap<u32, [Duration; 2]> = begun.map(|pid| (pid, [cpu_time(pid); 2])).collect();
    let mut traffic = place.traffic(profile);
    let (mut reserved_s, mut since) = (0.0, Instant::now());
    while traffic.is_running() {
        std::thread::sleep(Duration::from_millis(50));
        let rows = inco.instances();
        let running = || rows.iter().filter(|row| row.pid.is_some());
        let sum: f64 = running().filter_map(|row| row.cpu_quota).sum();
        reserved_s += sum * since.elapsed().as_secs_f64();
        since = Instant::now();
        for pid in running().filter_map(|row| row.pid) {
            if let Some(now) = cpu_time_of(pid) {
                used.entry(pid).or_default()[1] = now;
            }
        }
    }
    let report = traffic.report();
    inco.at_rest();
    let taken = Taken {
        reserved_s,
        consumed_s: used
            .values()
            .map(|[first, last]| (*last - *first).as_secs_f64())
            .sum(),
        lost: report.lost,
        offered: report.counts.offered_packets,
    };
    println!("{autoscaler}: {taken:.2?}");
    inco.stop(&place);
    taken
}

/// How the goal `cpu` is compared with the default.
const BY_SIZE: &str = "{ policy = \"inreal\", goal = \"cpu\", calm = \"2s\" }";

/// Equal loss, within a packet in a thousand.
fn loses_no_more(by_size: Taken, by_count: Taken) {
    assert!(
        by_size.lost <= by_count.lost + by_size.offered / 1_000,
        "{by_size:?}, {by_count:?}"
    );
}

/// The live short form of the scenarios inreal-goals and inreal-flash.
#[test]
fn the_goal_cpu_reserves_a_fifth_less_than_scaling_by_count_alone() {
    if !Engine::Oci.is_here() {
        return;
    }
    // 0.2 of a CPU processes 5,000 packets in a second.
    let configuration = configuration(Engine::Oci)
        .replace("\"--stamp\"", "\"--stamp\", \"--cost-ns\", \"40000\"")
        .replace("cpus = 0.1", "cpus = 0.2")
        .replace("2.5kpps", "5kpps")
        .replace("min = 1, max = 2", "min = 2, max = 4");
    let [by_count, by_size] = ["\"ladder\"", BY_SIZE].map(|of| taken(&configuration, of, SWELL));
    assert!(
        by_size.reserved_s <= 0.8 * by_count.reserved_s,
        "{by_size:?}, {by_count:?}"
    );
    loses_no_more(by_size, by_count);
}

/// A function that polls uses all of its quota at any load: here what is not reserved is not used either. It is DPDK's
/// test program, as it is; its capacity is one that was made up, so that the load is much for it.
#[test]
fn the_goal_cpu_has_a_function_that_polls_consume_a_fifth_less() {
    let installed = std::process::Command::new("dpdk-testpmd")
        .arg("-v")
        .output()
        .is_ok();
    let missing = (!installed).then(|| "dpdk-testpmd is not installed".to_owned());
    if !available("dpdk", missing) || !Engine::Oci.is_here() {
        return;
    }
    Place::new().must(&["image", "import", "testpmd"]);
    let mut text = std::fs::read_to_string(example("testpmd.toml")).unwrap();
    for (of, by) in [
        ("cpus = 1.0", "cpus = 0.2"),
        ("1Mpps", "5kpps"),
        ("min = 1, max = 2", "min = 2, max = 4"),
        ("ready_deadline = \"30s\"", "ready_deadline = \"60s\""),
    ] {
        assert!(text.contains(of), "the example has no {of}");
        text = text.replace(of, by);
    }
    text.push_str(
        "autoscaler = \"fixed\"\nstop_grace = \"200ms\"\nstall_after = \"1s\"\nring = { slots = 8192 }\n",
    );
    text.push_str(&Engine::Oci.toml());
    // It does not stamp, and swaps addresses.
    let profile = SWELL.replace("settle", "verify = \"payload\"\nsettle");
    let [by_count, by_size] = ["\"ladder\"", BY_SIZE].map(|of| taken(&text, of, &profile));
    // It did poll: a third of what was reserved is much more than these packets need.
    assert!(by_count.consumed_s > 0.33 * by_count.reserved_s, "{by_count:?}");
    assert!(
        by_size.consumed_s <= 0.8 * by_count.consumed_s,
        "{by_size:?}, {by_count:?}"
    );
    loses_no_more(by_size, by_count);
}

/// Gaps, times in rings and functions, drops, busy time, memory, throttling and watts of 64 instances under load: CPU time
/// as the kernel counts it, so other programs of the machine are not in it. The goal is a hundredth of a core; a build that
/// is not optimised takes several times as much.
#[test]
fn observing_64_instances_takes_little_of_a_core() {
    // `make promises` has the program that is installed.
    let limit = if std::env::var_os(PROGRAM).is_some() {
        0.01
    } else {
        0.1
    };
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    let configuration = configuration(Engine::Oci)
        .replace("cpus = 0.1", "cpus = 0.5\nscheduler = \"least-connections\"")
        .replace("min = 1, max = 2", "min = 64, max = 64")
        .replace("slots = 8192", "slots = 256")
        .replace("64MiB", "32MiB");
    let inco = place.run(&configuration);
    eventually("all are active", 4 * PATIENCE, || {
        let rows = inco.instances();
        let active = rows
            .iter()
            .filter(|row| row.state == model::InstanceState::Active);
        (active.count() == 64).then_some(())
    });
    let steady = STEADY
        .replace("duration = \"8s\"", "duration = \"120s\"")
        .replace("flows = 4", "flows = 256")
        .replace("500pps", "10pps");
    let mut traffic = place.traffic(&steady);
    eventually("nearly all have packets", PATIENCE, || {
        let rows = inco.instances();
        let have = rows.iter().filter(|row| row.back_packets > 0);
        (have.count() >= 60).then_some(())
    });
    let cost = || {
        let control = inco.client().counters().unwrap().control;
        (Instant::now(), control.observing_cpu_s, control.samples)
    };
    let (since, before, samples) = cost();
    std::thread::sleep(Duration::from_secs(5));
    let (until, after, samples_after) = cost();
    assert!(traffic.is_running());
    let share = (after - before) / until.duration_since(since).as_secs_f64();
    let turns = samples_after - samples;
    println!("{:.2} % of a core, {turns} samples in 5 s", 100.0 * share);
    assert!(turns > 500, "{turns} samples in 5 s: it did not observe");
    assert!(share < limit, "{:.2} % of a core", 100.0 * share);
    traffic.interrupt();
    let _report = traffic.report();
    inco.stop(&place);
}

#[test]
fn throughput_follows_a_quota_set_by_hand_oci() {
    throughput_follows_a_quota_set_by_hand(Engine::Oci);
}

#[test]
fn throughput_follows_a_quota_set_by_hand_docker() {
    throughput_follows_a_quota_set_by_hand(Engine::Docker);
}
