//! What an idle switch costs, and how soon it wakes. Alone in its process, so that the workers' CPU time is its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what goes wrong here fails the test"
)]

#[path = "switch/bed.rs"]
mod bed;

use model::Match;
use std::time::{Duration, Instant};

use bed::{Bed, PATIENCE, echo, service, udp_flows};
use switch::Switch as _;

fn is_worker(task: &std::path::Path) -> bool {
    std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("inco-worker"))
}

/// CPU time that this process' workers have used.
fn cpu_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let nanoseconds = tasks
        .filter_map(|task| {
            let task = task.ok()?.path();
            let stat = is_worker(&task).then(|| std::fs::read_to_string(task.join("schedstat")).ok())??;
            stat.split(' ').next()?.parse::<u64>().ok()
        })
        .sum();
    Duration::from_nanos(nanoseconds)
}

/// Turns of an idle worker per second: its longest sleep is 4 ms.
const TURNS_LIMIT: f64 = 300.0;
/// Share of a core. The release build is limited to 2 % by `inco bench idle`. This build is not optimised, and a host
/// that is busy makes each turn take longer.
const CPU_LIMIT: f64 = 0.06;

/// Turns of all workers since the start.
fn turns(bed: &mut Bed) -> u64 {
    bed.switch.read(&mut bed.reading);
    bed.reading.workers.iter().map(|worker| worker.turns).sum()
}

#[test]
fn an_idle_switch_sleeps_and_wakes_for_the_first_packet() {
    let mut bed = Bed::new(1, 1, vec![service(0, &[0], Match::default())]);
    for slot in 0..8 {
        bed.add(slot, 0, 1, echo);
    }
    let frames = udp_flows(8);
    bed.send(0, frames.iter().map(Vec::as_slice));
    bed.take_all(0, 8);
    // Awake for a moment after the last packet.
    std::thread::sleep(Duration::from_millis(20));
    let before = cpu_time();
    assert!(before > Duration::ZERO, "no worker was found");
    let turns_before = turns(&mut bed);
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(1));
    let seconds = began.elapsed().as_secs_f64();
    let turns = (turns(&mut bed) - turns_before) as f64 / seconds;
    assert!(
        turns < TURNS_LIMIT,
        "an idle worker made {turns:.0} turns a second"
    );
    let share = (cpu_time() - before).as_secs_f64() / seconds;
    println!(
        "idle: {turns:.0} turns a second, {:.1} % of a core",
        share * 100.0
    );
    assert!(
        share < CPU_LIMIT,
        "an idle worker used {:.1} % of a core",
        share * 100.0
    );
    // So does the thread that started the switch, until the first packet wakes it.
    let alarm = bed.switch.wake_up().expect("the soft switch sees every packet");
    let began = Instant::now();
    let mut rang = false;
    while !rang {
        // On a busy machine the worker may not have noticed yet that it is quiet.
        std::thread::sleep(Duration::from_millis(5));
        alarm.set();
        let slept = Instant::now();
        bed.send(0, [frames[0].as_slice()]);
        std::thread::park_timeout(Duration::from_secs(2));
        rang = slept.elapsed() < Duration::from_secs(2);
        alarm.clear();
        bed.take_all(0, 1);
        assert!(began.elapsed() < PATIENCE, "the alarm did not ring");
    }
    // The interrupt of the ring wakes it: the best of some tries is well below the 4 ms of its longest sleep. Its
    // function looks every 50 µs.
    let mut best = Duration::MAX;
    let mut buffer = [0; 2048];
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(7));
        let link = &mut bed.uplinks[0].queues[0];
        let began = Instant::now();
        link.tx.push(&frames[0]).unwrap();
        link.tx.flush();
        while link.rx.pop(&mut buffer).is_none() {
            assert!(
                began.elapsed() < Duration::from_secs(5),
                "the packet never came back"
            );
            std::thread::sleep(Duration::from_micros(20));
        }
        best = best.min(began.elapsed());
    }
    assert!(
        best < Duration::from_millis(2),
        "the first packet took {best:?} at best"
    );
    bed.finish();
}
