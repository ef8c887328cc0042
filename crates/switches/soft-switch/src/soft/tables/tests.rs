use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use flow_table::{Ownership, TableConfig};
use keeper::{Keeper, Order, Server};
use model::{Direction, FlowKey, FlowKeyV4, Polling, ServiceId, Timeouts, protocol};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use switch::Resumed;

use super::*;
use crate::frame::{FrameMemory, HeapFrame, HeapMemory};
use crate::keep::WorkerNote;
use crate::numbering::Numbering;
use crate::soft::{SoftSwitch, UplinkConfig, UplinkDevice};

const BOOT: [u8; 16] = [5; 16];
const SERVICES: &[&str] = &["dns", "web"];
const FLOWS: u16 = 3_000;
const KEY: [u64; 4] = [1, 2, 3, 4];
/// The run directory of a process of a test, in its environment.
const RUN_DIR: &str = "INCO_TEST_RUN_DIR";

/// A keeper's server in a thread.
struct Kept {
    directory: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kept {
    fn start() -> Kept {
        let directory = tempfile::tempdir().unwrap();
        let mut server = Server::bind(directory.path()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) && server.serve() == Order::None {
                let files = server.files();
                let mut fds: Vec<_> = files
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                    .collect();
                let step = Duration::from_millis(5).try_into().unwrap();
                poll(&mut fds, Some(&step)).unwrap();
            }
        });
        Kept {
            directory,
            stop,
            thread: Some(thread),
        }
    }

    /// What a run of these services has.
    fn run(&self, services: &[&str]) -> Keep {
        let keeper = Keeper::connect(self.directory.path()).unwrap().unwrap();
        Keep::new(Arc::new(keeper), numbering_of(services), BOOT)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn numbering_of(services: &[&str]) -> Numbering {
    Numbering::new(services.iter().map(|of| (*of).to_owned()))
}

fn config(workers: usize, flows: usize, keep: &Keep) -> SoftSwitchConfig {
    SoftSwitchConfig {
        fast: None,
        tunnel: None,
        half_open: None,
        kernel_ports: super::super::KernelPorts::default(),
        workers: vec![None; workers],
        polling: Polling::default(),
        table: TableConfig {
            ipv4_flows: flows,
            ipv6_flows: 100,
            return_counters: false,
            pin_times: false,
        },
        timeouts: Timeouts::default(),
        uplinks: vec![UplinkConfig {
            name: "null".to_owned(),
            device: UplinkDevice::Null,
            max_frame: 1518,
            waits: false,
        }],
        hash_key: [9; 4],
        ownership: Ownership::Keyed,
        keep: Some(keep.clone()),
    }
}

fn key(flow: u16) -> FlowKey {
    let [high, low] = flow.to_be_bytes();
    FlowKey::V4(FlowKeyV4 {
        a: [10, 0, high, low],
        b: [203, 0, 113, 1],
        a_port: flow,
        b_port: 53,
        vlan: 0,
        protocol: protocol::UDP,
        zero: 0,
    })
}

fn slot_of(flow: u16) -> Slot {
    Slot(flow % 7)
}

/// A third of them is of the second service.
fn service_of(flow: u16) -> ServiceId {
    ServiceId(u16::from(flow.is_multiple_of(3)))
}

/// A run that leaves a table for each of so many workers.
fn leave_tables(kept: &Kept, workers: usize) {
    leave_tables_of(kept, workers, SERVICES);
}

fn leave_tables_of(kept: &Kept, workers: usize, services: &[&str]) {
    let keep = kept.run(services);
    let of = config(workers, 4_000, &keep);
    let hasher = FlowHasher::new(KEY);
    for worker in 0..workers {
        let lines = of.table.lines_needed().unwrap();
        let (file, storage) = TableMemory::in_file(lines, false).unwrap();
        let (identity, now) = (identity(&of, &keep, worker), clock::monotonic());
        let table = FlowTable::new(storage, &of.table, &of.timeouts, hasher, &identity, now);
        let mut table = table.unwrap();
        for flow in (0..FLOWS).filter(|flow| hasher.owner(&key(*flow), workers) == worker) {
            let (key, pins, service) = (key(flow), [slot_of(flow); 2], service_of(flow));
            let hash = hasher.hash(&key);
            table
                .insert(&key, hash, Direction::Forward, pins, service, now)
                .unwrap();
        }
        keep.keep(&name_of(worker), &WorkerNote { workers }, &[file.as_fd()]);
    }
    keep.begin();
}

fn resume(kept: &Kept, workers: usize, flows: usize, services: &[&str]) -> Leftover {
    let keep = kept.run(services);
    let leftover = Leftover::take(&config(workers, flows, &keep)).unwrap();
    keep.begin();
    // The answer comes after all that was forgotten.
    keep.keeper().entries().unwrap();
    leftover
}

fn assert_all_pinned(leftover: &Leftover, converted: usize) {
    let Resumed {
        flows,
        live,
        rejected,
        converted: found,
        ..
    } = &leftover.resumed;
    assert_eq!(
        (flows.flows, flows.rejected_entries()),
        (FLOWS.into(), 0),
        "{flows:?}"
    );
    assert_eq!((rejected.as_slice(), *found), (&[][..], converted));
    assert_eq!(live.values().sum::<u64>(), u64::from(FLOWS));
    let hasher = leftover.hasher.unwrap();
    assert_eq!(hasher.key(), KEY);
    for flow in 0..FLOWS {
        let (key, workers) = (key(flow), leftover.workers.len());
        let share = &leftover.workers[hasher.owner(&key, workers)];
        let table = share.table.as_ref().unwrap();
        let row = table.get(&key, clock::monotonic()).unwrap();
        assert_eq!(row.pins, [slot_of(flow); 2]);
    }
}

#[test]
fn tables_of_other_sizes_and_numbers_of_workers_are_converted_and_no_flow_moves() {
    let kept = Kept::start();
    leave_tables(&kept, 2);
    // As they are, of another size, for fewer workers, and for more: each run has what the one before left.
    for (workers, flows, converted) in [
        (2, 4_000, 0),
        (2, 8_000, 2),
        (1, 8_000, 2),
        (3, 5_000, 1),
        (3, 5_000, 0),
    ] {
        assert_all_pinned(&resume(&kept, workers, flows, SERVICES), converted);
        // And the numbers of the services.
        assert_eq!(kept.run(SERVICES).keeper().entries().unwrap(), workers + 1);
    }
}

#[test]
fn a_run_that_does_not_start_leaves_the_tables_as_they_were() {
    let kept = Kept::start();
    leave_tables(&kept, 1);
    let keep = kept.run(SERVICES);
    assert_all_pinned(&Leftover::take(&config(2, 6_000, &keep)).unwrap(), 1);
    drop(keep);
    assert_all_pinned(&resume(&kept, 1, 4_000, SERVICES), 0);
}

/// The services of the flows that a run has, by name, if all of their flows are there, with their pins.
fn services_with_flows(leftover: &Leftover, services: &[&str]) -> Vec<String> {
    let (hasher, workers) = (leftover.hasher.unwrap(), leftover.workers.len());
    let mut found: BTreeMap<&str, u64> = BTreeMap::new();
    for flow in 0..FLOWS {
        let key = key(flow);
        let table = leftover.workers[hasher.owner(&key, workers)]
            .table
            .as_ref()
            .unwrap();
        let Some(row) = table.get(&key, clock::monotonic()) else {
            continue;
        };
        let service = services[row.service.index()];
        assert_eq!(
            (service, row.pins),
            (SERVICES[service_of(flow).index()], [slot_of(flow); 2])
        );
        *found.entry(service).or_default() += 1;
    }
    assert_eq!(found.values().sum::<u64>(), leftover.resumed.flows.flows);
    for (service, flows) in &found {
        let all = (0..FLOWS).filter(|flow| SERVICES[service_of(*flow).index()] == *service);
        assert_eq!(*flows, all.count() as u64, "{service}");
    }
    found.into_keys().map(str::to_owned).collect()
}

/// Each run has what the one before left.
#[test]
fn flows_go_on_with_their_service_whatever_number_it_has() {
    let kept = Kept::start();
    leave_tables(&kept, 2);
    // The first run knew its numbers, as each does that takes tables over.
    resume(&kept, 2, 4_000, SERVICES);
    let of = |services: &[&str], converted| {
        let leftover = resume(&kept, 2, 4_000, services);
        assert_eq!(
            (&*leftover.resumed.rejected, leftover.resumed.converted),
            (&[][..], converted)
        );
        assert_eq!(leftover.shares_of.is_some(), services.starts_with(SERVICES));
        services_with_flows(&leftover, services)
    };
    assert_eq!(of(&["dns", "web", "new"], 2), SERVICES);
    assert_eq!(of(&["dns", "web", "new"], 0), SERVICES);
    assert_eq!(of(&["first", "web", "dns"], 2), SERVICES);
    assert_eq!(of(&["web", "first"], 2), ["web"]);
}

#[test]
fn flows_of_a_service_that_a_reload_added_go_on() {
    let kept = Kept::start();
    let first = kept.run(&SERVICES[..1]);
    first.begin();
    leave_tables_of(&kept, 1, &SERVICES[..1]);
    resume(&kept, 1, 4_000, &SERVICES[..1]);
    let running = kept.run(&SERVICES[..1]);
    running.begin();
    running.renumber(numbering_of(SERVICES));
    let leftover = resume(&kept, 1, 4_000, SERVICES);
    assert_eq!(services_with_flows(&leftover, SERVICES), SERVICES);
    // The operator took it out of the file again: nobody gets its flows, also not one that has its number.
    let leftover = resume(&kept, 1, 4_000, &["dns", "other"]);
    assert_eq!(services_with_flows(&leftover, &["dns", "other"]), ["dns"]);
}

/// A run that replaces tables ends in the middle: what it has replaced goes on, and the rest is not taken for its own.
#[test]
fn tables_of_two_numberings_are_not_mixed() {
    let kept = Kept::start();
    leave_tables(&kept, 2);
    resume(&kept, 2, 4_000, SERVICES);
    let turned = ["web", "dns"];
    let keep = kept.run(&turned);
    keep.begin();
    let leftover = Leftover::take(&config(2, 4_000, &keep)).unwrap();
    assert_eq!(services_with_flows(&leftover, &turned), SERVICES);
    // As if it had ended before it wrote its numbers.
    keep.keep_numbering(&numbering_of(SERVICES));
    let leftover = resume(&kept, 2, 4_000, &turned);
    assert_eq!(services_with_flows(&leftover, &turned), SERVICES);
    assert_eq!(leftover.resumed.rejected, Vec::<String>::new());
}

/// Memory whose worker panics.
struct Panics;

impl FrameMemory for Panics {
    type Frame = HeapFrame;
    type Device = <HeapMemory as FrameMemory>::Device;
    type Registration = ();

    fn register_thread() {
        panic!("the worker of this test panics");
    }

    fn take(&mut self) -> Option<HeapFrame> {
        None
    }

    fn give(&mut self, _frame: HeapFrame) {}

    fn frame_limit(&self) -> usize {
        1522
    }
}

/// The process whose worker panics. Run alone, it does nothing.
#[test]
fn the_run_whose_worker_panics() {
    let Some(run_dir) = std::env::var_os(RUN_DIR) else {
        return;
    };
    let keeper = Keeper::connect(run_dir.as_ref()).unwrap().unwrap();
    let keep = Keep::new(Arc::new(keeper), numbering_of(SERVICES), BOOT);
    let _switch = SoftSwitch::start(&config(1, 4_000, &keep), vec![Panics], Vec::new()).unwrap();
    keep.begin();
    loop {
        std::thread::park();
    }
}

#[test]
fn a_worker_that_panics_ends_the_process_and_the_next_run_has_all_flows() {
    let kept = Kept::start();
    leave_tables(&kept, 1);
    let ended = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "soft::tables::tests::the_run_whose_worker_panics"])
        .env(RUN_DIR, kept.directory.path())
        .output()
        .unwrap();
    assert_eq!(ended.status.signal(), Some(Signal::ABORT.as_raw()), "{ended:?}");
    assert_all_pinned(&resume(&kept, 1, 4_000, SERVICES), 0);
}

#[test]
fn tables_of_other_services_and_of_unknown_layouts_are_rejected() {
    let kept = Kept::start();
    leave_tables(&kept, 2);
    let keep = kept.run(SERVICES);
    let (file, _memory) = TableMemory::in_file(100, false).unwrap();
    keep.keep(&name_of(1), &WorkerNote { workers: 2 }, &[file.as_fd()]);
    keep.begin();
    let leftover = resume(&kept, 2, 4_000, &["other"]);
    let rejected = &leftover.resumed.rejected;
    assert!(leftover.workers.iter().all(|share| share.table.is_none()));
    assert_eq!(leftover.resumed.live, BTreeMap::new());
    assert_eq!(rejected.len(), 2, "{rejected:?}");
    assert!(
        rejected
            .iter()
            .any(|of| of == "table/1: the storage holds no flow table")
    );
    assert!(rejected.iter().any(|of| of.contains("of other services")));
    assert_eq!(kept.run(SERVICES).keeper().entries().unwrap(), 1);
}
