//! A run of the switch, in this process or in one that is killed.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flow_table::{FlowRow, Ownership, TableConfig};
use model::{
    Generation, InstanceId, InstanceState, Match, Nanos, PlaceId, Polling, ServiceId, Timeouts, UplinkId,
};
use soft_switch::{
    FrameMemory, HeapFrame, HeapMemory, Keep, NoDevice, SoftSwitch, SoftSwitchConfig, UplinkConfig,
    UplinkDevice,
};
use switch::{
    Edits, FlowFilter, Plan, PortKind, PortSpec, ServicePlan, SlotPlan, Switch as _, SwitchEvent,
    SwitchReading, SwitchRequest,
};

use crate::bed::{PATIENCE, attach, service};
use crate::kept::{Kept, keep_of};

/// Instances of the run's only service.
pub(crate) const INSTANCES: u16 = 2;
/// Slots of the rings of instances, and bytes of a buffer: a long frame takes several.
pub(crate) const RING_SLOTS: u32 = 64;
pub(crate) const BUFFER_BYTES: u32 = 192;
/// The run directory of a run in a process of its own, in its environment, and after how many frames it panics.
const RUN_DIR: &str = "INCO_TEST_RUN_DIR";
const PANICS_AFTER: &str = "INCO_TEST_PANICS_AFTER";
/// Whether it counts packets that come back with their flows: else they go from ring to ring.
const COUNTS_RETURNS: &str = "INCO_TEST_COUNTS_RETURNS";
/// What such a run says when packets may come.
const SERVES: &str = "the run serves";

pub(crate) fn uplink_socket(directory: &Path) -> PathBuf {
    directory.join("uplink.sock")
}

pub(crate) fn function_socket(directory: &Path, number: u16) -> PathBuf {
    directory.join(format!("function-{number}.sock"))
}

fn config(directory: &Path, keep: Keep) -> SoftSwitchConfig {
    SoftSwitchConfig {
        fast: None,
        tunnel: None,
        half_open: None,
        kernel_ports: soft_switch::KernelPorts::default(),
        workers: vec![None],
        polling: Polling::Adaptive,
        table: TableConfig {
            ipv4_flows: 24,
            ipv6_flows: 6,
            return_counters: true,
            pin_times: true,
        },
        timeouts: Timeouts::default(),
        uplinks: vec![UplinkConfig {
            name: "uplink".to_owned(),
            device: UplinkDevice::Memif {
                socket: uplink_socket(directory),
                queues: 1,
            },
            max_frame: 2048,
            waits: true,
        }],
        hash_key: [1, 2, 3, 4],
        ownership: Ownership::Keyed,
        keep: Some(keep),
    }
}

/// Frames of a run whose worker panics when it has taken and given back so many of them: as it receives, or between
/// what it has put into a ring and the commit.
pub(crate) struct Panics {
    frames: HeapMemory,
    after: u64,
}

impl Panics {
    fn step(&mut self) {
        self.after = self.after.checked_sub(1).expect("the worker of this test panics");
    }
}

impl FrameMemory for Panics {
    type Frame = HeapFrame;
    type Device = NoDevice;
    type Registration = ();

    fn register_thread() {}

    fn take(&mut self) -> Option<HeapFrame> {
        self.step();
        self.frames.take()
    }

    fn give(&mut self, frame: HeapFrame) {
        self.step();
        self.frames.give(frame);
    }

    fn frame_limit(&self) -> usize {
        self.frames.frame_limit()
    }
}

/// A run of the switch, its instances and its uplink.
pub(crate) struct Run {
    pub(crate) switch: SoftSwitch<Panics>,
    pub(crate) reading: SwitchReading,
    events: Vec<SwitchEvent>,
    started: Instant,
    counts_returns: bool,
}

impl Run {
    /// Takes over what there is, connects what is missing, and lets packets come.
    pub(crate) fn start(directory: &Path, keep: Keep, panics_after: u64, counts_returns: bool) -> Run {
        let config = config(directory, keep.clone());
        let memory = Panics {
            frames: HeapMemory::shares(1, 1024, 2048).pop().unwrap(),
            after: panics_after,
        };
        let switch = SoftSwitch::start(&config, vec![memory], Vec::new()).unwrap();
        keep.begin();
        let mut run = Run {
            switch,
            reading: SwitchReading::new(1, 1, 1),
            events: Vec::new(),
            started: Instant::now(),
            counts_returns,
        };
        run.publish(InstanceState::Standby);
        for number in 0..INSTANCES {
            let port = PortSpec {
                ring_slots: RING_SLOTS,
                buffer_bytes: BUFFER_BYTES,
                ..PortSpec::new(PortKind::Memif, function_socket(directory, number))
            };
            run.switch.request(attach(number, 0, port)).unwrap();
        }
        run.until("the instances are attached", |run| {
            let attached = run
                .events
                .iter()
                .filter(|e| matches!(e, SwitchEvent::Attached { .. }));
            attached.count() == usize::from(INSTANCES)
        });
        run.publish(InstanceState::Active);
        run.switch
            .request(SwitchRequest::OpenUplink(UplinkId(0)))
            .unwrap();
        run.until("the uplink is up", |run| {
            run.events
                .iter()
                .any(|e| matches!(e, SwitchEvent::UplinkUp { .. }))
        });
        run
    }

    /// Publishes the plan with all instances in that state, and waits until the worker steers by it.
    fn publish(&mut self, state: InstanceState) {
        let slot = |number| SlotPlan {
            instance: InstanceId(number),
            service: ServiceId(0),
            place: PlaceId::default(),
            state,
            capacity_pps: 1e6,
            active_since: Nanos::ZERO,
            weight: 256,
            block: None,
            edits: Edits::default(),
        };
        let plan = Plan {
            generation: Generation(1 + u64::from(state == InstanceState::Active)),
            services: vec![ServicePlan {
                return_counters: self.counts_returns,
                ..service(0, &[0], Match::default())
            }],
            slots: (0..INSTANCES).map(|number| Some(slot(number.into()))).collect(),
            ..Plan::default()
        };
        let generation = self.switch.publish(plan).unwrap();
        self.until("the plan is acknowledged", |run| {
            run.reading.acknowledged >= generation
        });
    }

    pub(crate) fn poll(&mut self) {
        let now = Nanos(self.started.elapsed().as_nanos() as u64);
        self.switch.poll(now, &mut self.events);
        self.switch.read(&mut self.reading);
    }

    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Run) -> bool) {
        let ends = Instant::now() + PATIENCE;
        loop {
            self.poll();
            if holds(self) {
                return;
            }
            assert!(
                Instant::now() < ends,
                "not within {PATIENCE:?}: {what}\n{:#?}",
                self.events
            );
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Every flow of the table.
    pub(crate) fn flows(&mut self) -> Vec<FlowRow> {
        let (id, filter, limit) = (7, FlowFilter::default(), 100);
        self.switch
            .request(SwitchRequest::Flows { id, filter, limit })
            .unwrap();
        let mut found = None;
        self.until("the flows are listed", |run| {
            found = run.events.iter_mut().find_map(|event| match event {
                SwitchEvent::Flows { rows, .. } => Some(std::mem::take(rows)),
                _ => None,
            });
            found.is_some()
        });
        found.unwrap()
    }

    /// Nothing was dropped, and all that came has left.
    pub(crate) fn assert_accounts_close(&mut self) {
        self.until("the accounts close with nothing in flight", |run| {
            let r = &run.reading;
            r.in_flight() == 0 && r.offered() + r.originated() == r.sent() + r.dropped()
        });
        assert_eq!(self.reading.dropped(), 0, "{:?}", self.reading.drops);
    }
}

/// The run of another process, until it is killed. Run alone, it does nothing.
#[test]
fn the_run_that_ends() {
    let Some(directory) = std::env::var_os(RUN_DIR).map(PathBuf::from) else {
        return;
    };
    let after = std::env::var(PANICS_AFTER).unwrap().parse().unwrap();
    let counts_returns = std::env::var(COUNTS_RETURNS).unwrap() == "true";
    let mut run = Run::start(&directory, keep_of(&directory), after, counts_returns);
    println!("\n{SERVES}");
    std::io::stdout().flush().unwrap();
    loop {
        run.poll();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// That process.
pub(crate) struct Process {
    pub(crate) child: Child,
}

impl Process {
    /// Starts it; it may panic after so many frames.
    pub(crate) fn start(kept: &Kept, panics_after: u64, counts_returns: bool) -> Process {
        let environment = [
            (RUN_DIR, kept.directory.path().as_os_str().to_owned()),
            (PANICS_AFTER, OsString::from(panics_after.to_string())),
            (COUNTS_RETURNS, OsString::from(counts_returns.to_string())),
        ];
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "run::the_run_that_ends", "--nocapture"])
            .envs(environment)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Process { child }
    }

    /// Waits until it serves. What it says later is not read.
    pub(crate) fn serves(&mut self) {
        let output = BufReader::new(self.child.stdout.take().unwrap());
        let mut lines = output.lines().map(Result::unwrap);
        assert!(lines.any(|line| line == SERVES), "the run ended");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
