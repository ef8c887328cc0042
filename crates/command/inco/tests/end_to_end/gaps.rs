//! Making containers does not hold up a worker, however many flows it has.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use real_parts::is_full_length;

use crate::support::{Engine, FORWARD, Inco, PATIENCE, Place, assert_clean, eventually};

const LOAD: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "2s"
[[phase]]
duration = "60m"
flows = 100
rate_per_flow = "100pps"
dst_port = 80
"#;

/// The table's size, and the flows that are put into it.
const TABLE: u64 = 16_000_000;
/// Flows in one profile, at most (`traffic::FLOWS_LIMIT`).
const AT_ONCE: u64 = 2_000_000;
/// How often the flows are sent, at most.
const FILLINGS: usize = 5;
/// New flows per second: one packet each.
const NEW_FLOWS_PER_S: u64 = 200_000;
/// What a gap may last: a turn by the clock, from one poll of an uplink to the next or to its sleep.
const LIMIT_US: f64 = 1000.0;
/// Rounds of measuring, each with four containers made and removed. One in which another machine had the CPU says
/// nothing of inco. In the others, the median of the longest gaps is what the containers cost: one round can have an
/// interrupt, or a page that the kernel or a hypervisor was slow to give, and no clock tells these apart.
const ROUNDS: u32 = 12;
/// How many rounds are enough.
const ENOUGH: usize = 5;

/// Fills the table with flows of a service that returns nothing. What is lost on a busy machine is sent again.
fn fill(place: &Place, inco: &Inco, flows: u64) {
    let mut live = 0;
    for _ in 0..FILLINGS {
        for from in (0..flows).step_by(AT_ONCE as usize) {
            let count = AT_ONCE.min(flows - from);
            let mut profile =
                "tick = \"1ms\"\nuplink_wait = \"10s\"\nsettle = \"1ms\"\nverify = \"off\"\n".to_owned();
            let src = std::net::Ipv4Addr::from(0x0b00_0000 + u32::try_from(from).unwrap());
            let _ = write!(
                profile,
                "[[phase]]\nduration = \"{}ms\"\nflows = {count}\nrate = \"{NEW_FLOWS_PER_S}pps\"\nsrc = \"{src}\"\n\
                 dst_port = 9\n",
                1000 * count / NEW_FLOWS_PER_S,
            );
            place.traffic(&profile).report();
        }
        live = inco
            .status()
            .workers
            .iter()
            .map(|worker| worker.live_flows)
            .sum::<u64>();
        if live >= flows {
            return;
        }
    }
    panic!("{live} flows instead of {flows} after {FILLINGS} times");
}

#[test]
fn a_worker_with_16_million_flows_forwards_while_containers_are_made() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    let text = format!(
        r#"
[switch]
flows = 16_711_679
timeouts = {{ udp = "1h" }}

[service.sink]
match = {{ proto = "udp", dst_port = 9 }}
port = "null"
instances = 1

{FORWARD}
match = {{ proto = "udp", dst_port = 80 }}
capacity = "100kpps"
instances = {{ min = 1, max = 5, standby = 0 }}
autoscaler = "fixed"
ring = {{ slots = 8192 }}
"#
    );
    let inco = place.run(&text);
    inco.settled(2, 0);
    assert!(inco.status().flow_limit >= TABLE, "{:#?}", inco.status());
    let flows = if is_full_length() { TABLE } else { 400_000 };
    fill(&place, &inco, flows);
    let traffic = place.traffic(LOAD);
    eventually("packets flow", PATIENCE, || {
        (inco.status().accounting.returned > 100).then_some(())
    });
    let gap = || inco.status().workers[0].longest_gap_us;
    let worker = Preferred::thread("inco-worker-0", inco.status().pid);
    let mut gaps = Vec::new();
    for round in 1..=ROUNDS {
        // What is told is the longest of the last seconds: those before this round have to go by.
        eventually("gaps that are the worker's own", PATIENCE, || {
            (gap() < LIMIT_US).then_some(())
        });
        let stolen_before = stolen_us();
        place.must(&["scale", "forward", "5"]);
        inco.settled(6, 0);
        let longest = gap();
        let stolen = stolen_us() - stolen_before;
        println!(
            "round {round}: longest gap {longest:.0} us while 4 containers are made beside {flows} flows; other machines \
             had the CPUs for {stolen:.0} us"
        );
        assert!(longest > 0.0, "no gap is reported");
        if stolen == 0.0 {
            gaps.push(longest);
        }
        place.must(&["scale", "forward", "1"]);
        inco.settled(2, 0);
        if gaps.len() == ENOUGH {
            break;
        }
    }
    drop(worker);
    assert!(
        gaps.len() >= 3,
        "other machines had the CPUs in nearly every round: {gaps:?}"
    );
    gaps.sort_by(f64::total_cmp);
    let median = gaps[gaps.len() / 2];
    assert!(
        median < LIMIT_US,
        "the median of the longest gaps is {median} us, of {gaps:?}"
    );
    traffic.interrupt();
    assert_clean(&traffic.report());
    inco.stop(&place);
}

/// A thread before which no ordinary program has its CPU: as on a CPU of its own.
struct Preferred {
    task: String,
}

impl Preferred {
    fn thread(name: &str, pid: u32) -> Preferred {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let is_it =
            |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|of| of.trim() == name);
        let task = tasks.map(|task| task.unwrap().path()).find(is_it).unwrap();
        let preferred = Preferred {
            task: task.file_name().unwrap().to_str().unwrap().to_owned(),
        };
        preferred.schedule(&["--fifo", "--pid", "50"]);
        preferred
    }

    fn schedule(&self, arguments: &[&str]) {
        let done = Command::new("chrt")
            .args(arguments)
            .arg(&self.task)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
    }
}

impl Drop for Preferred {
    fn drop(&mut self) {
        self.schedule(&["--other", "--pid", "0"]);
    }
}

/// For how long this machine, where it is a virtual one, had to do without CPUs that it wanted, in microseconds.
fn stolen_us() -> f64 {
    /// What `/proc/stat` counts in.
    const TICK_US: f64 = 10_000.0;
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let of_all = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap();
    let ticks: f64 = of_all.split_whitespace().nth(7).unwrap().parse().unwrap();
    ticks * TICK_US
}
