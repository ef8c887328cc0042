//! inco's contestant: the soft switch of `inco run` in a separate process, controlled over its standard input.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use dpdk::{DeviceArgs, Eal, EalConfig, Mempool};
use flow_table::{Ownership, TableConfig};
use model::{
    Generation, InstanceId, InstanceState, Nanos, PlaceId, Polling, ServiceId, Slot, Timeouts, UplinkId,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scheduling::Scheduler;
use serde::{Deserialize, Serialize};
use soft_switch::{
    DpdkQueue, HeapMemory, MbufMemory, SoftSwitch, SoftSwitchConfig, UplinkConfig, UplinkDevice,
};
use switch::{
    Edits, Plan, PortKind, PortSpec, ServicePlan, SlotPlan, Switch, SwitchEvent, SwitchReading, SwitchRequest,
};

use super::args::SinkPort;
use super::contestant::{Contestant, KilledOnDrop, command_line, pin_to_cpu};
use super::memory::Memory;
use display::output;

/// Slots of the instances' memif rings as a power of two, as in `inco traffic`.
pub(super) const MEMIF_LOG2_SLOTS: u8 = 12;
/// The longest frame of the captures, in bytes.
const MAX_FRAME: usize = 1522;

impl SinkPort {
    pub(super) fn name(self) -> &'static str {
        match self {
            SinkPort::NetNull => "net_null",
            SinkPort::Null => "null",
            SinkPort::Memif => "memif",
        }
    }
}

/// The scheduler where it does not matter: all flows are established.
pub(super) const SCHEDULER: &str = "round-robin";

/// The configuration of the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Spec {
    /// Sources and destinations of packets.
    pub(super) way: Way,
    /// The scheduler's name.
    pub(super) scheduler: String,
    pub(super) instances: u16,
    /// Instances that take flows; the others are standbys, which are polled too.
    pub(super) active: u16,
    /// Sockets of the instances, if their ports are memif.
    pub(super) sockets: Vec<PathBuf>,
    /// Slots of a ring of these as a power of two.
    pub(super) log2_slots: u8,
    /// One CPU per worker.
    pub(super) cpus: Vec<usize>,
    pub(super) control_cpu: usize,
    /// Capacity of each worker's table in flows, for each address family.
    pub(super) table_flows: usize,
    /// Whether returned packets are counted per flow.
    pub(super) return_counters: bool,
    /// Whether each worker's capture has only the flows that a card would deal to it.
    pub(super) is_dealt: bool,
}

/// Sources and destinations of packets.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// From captures to sinks.
    Sinks {
        /// One capture per worker: the receive queues of one uplink.
        captures: Vec<PathBuf>,
        /// Frames in the largest capture.
        frames: usize,
        port: SinkPort,
        huge: bool,
    },
    /// From the client of this memif socket to instances on memif ports, and back.
    Chain(PathBuf),
}

/// The process's reply to a request.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Reading {
    pub(super) received: u64,
    pub(super) delivered: u64,
    pub(super) dropped: u64,
    pub(super) flows: u64,
}

/// The running process.
pub(super) struct Steering {
    child: KilledOnDrop,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    commands: Vec<String>,
}

impl Steering {
    /// Starts the process and waits until it forwards.
    pub(super) fn start(spec: &Spec) -> Result<Steering> {
        let program = std::env::current_exe().context("cannot find inco's own executable")?;
        let mut command = Command::new(program);
        command.args(["bench", "contestant", "--spec", &serde_json::to_string(spec)?]);
        let commands = vec![command_line(&command)];
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start inco's own contestant")?;
        let input = child.stdin.take().context("the contestant has no input")?;
        let output = BufReader::new(child.stdout.take().context("the contestant has no output")?);
        let mut started = Steering {
            child: KilledOnDrop::new(child),
            input,
            output,
            commands,
        };
        started.read()?;
        Ok(started)
    }

    /// Requests all figures.
    pub(super) fn read(&mut self) -> Result<Reading> {
        writeln!(self.input, "read").context("inco's contestant does not accept commands any more")?;
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!(
                "inco's contestant ended; it was started by: {}",
                self.commands.join(" ")
            );
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Checks that all flows are pinned, and that no packet was dropped unless `may_be_dropped`.
    pub(super) fn check(&mut self, flows: u64, may_be_dropped: bool) -> Result<()> {
        let reading = self.read()?;
        if reading.dropped > 0 && !may_be_dropped || reading.flows != flows {
            bail!(
                "of {flows} flows {} are pinned, and {} packets were dropped",
                reading.flows,
                reading.dropped
            );
        }
        Ok(())
    }
}

impl Contestant for Steering {
    fn name(&self) -> &'static str {
        "inco"
    }

    fn commands(&self) -> &[String] {
        &self.commands
    }

    fn pid(&self) -> u32 {
        self.child.pid()
    }

    fn packets(&mut self) -> Result<u64> {
        Ok(self.read()?.delivered)
    }
}

/// Maximum time for the switch to attach its instances.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between two turns of the switch's control side.
const STEP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};
const SERVICE: ServiceId = ServiceId(0);

/// The process itself: `inco bench contestant`.
pub(super) fn serve(spec: &Spec) -> Result<()> {
    pin_to_cpu(spec.control_cpu)?;
    let mut switch: Box<dyn Switch> = match &spec.way {
        Way::Sinks {
            captures,
            frames,
            port,
            huge,
        } => Box::new(start_sinks(
            spec,
            captures,
            frames * captures.len(),
            *port,
            *huge,
        )?),
        Way::Chain(uplink) => Box::new(start_chain(spec, uplink)?),
    };
    let mut reading = SwitchReading::new(1, 1, spec.cpus.len());
    let mut input = BufReader::new(std::io::stdin());
    let mut events = Vec::new();
    loop {
        switch.poll(clock::monotonic(), &mut events);
        events.clear();
        let stdin = std::io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        if poll(&mut fds, Some(&STEP))? == 0 {
            continue;
        }
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        switch.read(&mut reading);
        output::json(
            &Reading {
                received: reading.offered(),
                delivered: reading.slots.iter().map(|slot| slot.to_packets).sum(),
                dropped: reading.dropped(),
                flows: reading.workers.iter().map(|worker| worker.live_flows).sum(),
            },
            false,
        )?;
    }
}

/// A switch that receives from captures, with sinks as instances.
fn start_sinks(
    spec: &Spec,
    captures: &[PathBuf],
    frames: usize,
    port: SinkPort,
    huge: bool,
) -> Result<SoftSwitch<MbufMemory>> {
    let workers = spec.cpus.len();
    let eal = Eal::init(
        &EalConfig {
            memory_mib: Memory::mib(frames, huge) as u32,
            hugepages: huge,
            cpu: spec.control_cpu as u16,
            ..EalConfig::new(format!("inco-bench-{}", std::process::id()))
        }
        .args(),
    )?;
    let pool = Mempool::create(&eal, &Memory::pool(frames))?;
    let mut source = "net_pcap0,infinite_rx=1".to_owned();
    for capture in captures {
        source.push_str(&format!(",rx_pcap={}", capture.display()));
    }
    let source = DpdkQueue::open(
        &eal,
        &DeviceArgs::named(source),
        pool,
        workers as u16,
        0,
        MAX_FRAME,
    )?;
    let config = spec.switch(UplinkDevice::Device, Polling::Busy)?;
    // The source is attached last: packets that arrive before the instances would be dropped.
    let mut switch = SoftSwitch::start(&config, MbufMemory::shares(workers, pool), Vec::new())?;
    for instance in 0..spec.instances {
        let slot = Slot(instance);
        match port {
            SinkPort::Null => switch.request(attach(slot, PortSpec::new(PortKind::Null, "")))?,
            SinkPort::Memif => switch.request(attach(slot, spec.memif(instance)?))?,
            SinkPort::NetNull => {
                let device = DeviceArgs::named(format!("net_null{instance},no-rx=1"));
                let opened = DpdkQueue::open(&eal, &device, pool, workers as u16, 0, MAX_FRAME)?;
                switch.attach_devices(slot, vec![opened.queues])?;
            }
        }
    }
    wait_for_instances(&mut switch, spec)?;
    switch.attach_uplink_device(UplinkId(0), source)?;
    Ok(switch)
}

/// A switch between a memif uplink and instances that listen on memif sockets.
fn start_chain(spec: &Spec, uplink: &Path) -> Result<SoftSwitch<HeapMemory>> {
    let device = UplinkDevice::Memif {
        socket: uplink.to_owned(),
        queues: 1,
    };
    // It may sleep, as the peer's poller may: waiting is not part of a packet's cost.
    let config = spec.switch(device, Polling::Adaptive)?;
    let workers = spec.cpus.len();
    // Two full rings and those in flight.
    let frames = 3 << spec.log2_slots;
    let memories = HeapMemory::shares(workers, workers * frames, MAX_FRAME);
    let mut switch = SoftSwitch::start(&config, memories, Vec::new())?;
    for instance in 0..spec.instances {
        switch.request(attach(Slot(instance), spec.memif(instance)?))?;
    }
    wait_for_instances(&mut switch, spec)?;
    Ok(switch)
}

impl Spec {
    fn switch(&self, device: UplinkDevice, polling: Polling) -> Result<SoftSwitchConfig> {
        Ok(SoftSwitchConfig {
            fast: None,
            tunnel: None,
            half_open: None,
            kernel_ports: soft_switch::KernelPorts::default(),
            keep: None,
            workers: self.cpus.iter().copied().map(Some).collect(),
            polling,
            table: TableConfig {
                ipv4_flows: self.table_flows,
                ipv6_flows: self.table_flows,
                return_counters: self.return_counters,
                pin_times: true,
            },
            timeouts: Timeouts::default(),
            uplinks: vec![UplinkConfig {
                name: "source".to_owned(),
                device,
                max_frame: MAX_FRAME,
                waits: false,
            }],
            hash_key: orchestrator::secret()?,
            ownership: if self.is_dealt {
                Ownership::Card
            } else {
                Ownership::Keyed
            },
        })
    }

    /// The memif port of an instance that listens on its socket.
    fn memif(&self, instance: u16) -> Result<PortSpec> {
        let socket = self.sockets.get(usize::from(instance));
        Ok(PortSpec {
            ring_slots: 1 << self.log2_slots,
            deadline: Nanos::from_secs(TIMEOUT.as_secs()),
            ..PortSpec::new(PortKind::Memif, socket.context("the instance has no socket")?)
        })
    }

    /// One service for all packets, with active and standby instances.
    fn plan(&self) -> Result<Plan> {
        let mut plan = plan(self.instances, vec![UplinkId(0)])?;
        for slot in plan.slots.iter_mut().skip(usize::from(self.active)).flatten() {
            slot.state = InstanceState::Standby;
        }
        for service in &mut plan.services {
            service.return_counters = self.return_counters;
            service.scheduler = Scheduler::from_name(&self.scheduler)?;
        }
        Ok(plan)
    }
}

/// Attaches the port of the instance in `slot`.
pub(super) fn attach(slot: Slot, port: PortSpec) -> SwitchRequest {
    SwitchRequest::Attach {
        slot,
        service: SERVICE,
        port,
    }
}

/// Publishes the plan and waits until all instances are attached and all workers use it.
fn wait_for_instances(switch: &mut dyn Switch, spec: &Spec) -> Result<()> {
    let plan = switch.publish(spec.plan()?)?;
    let mut attached = 0;
    let mut events = Vec::new();
    let mut reading = SwitchReading::new(1, 1, spec.cpus.len());
    let started = Instant::now();
    while attached < spec.instances || reading.acknowledged < plan {
        switch.poll(clock::monotonic(), &mut events);
        for event in events.drain(..) {
            match event {
                SwitchEvent::Attached { .. } => attached += 1,
                SwitchEvent::AttachFailed { reason, .. } => bail!(reason),
                _ => {}
            }
        }
        switch.read(&mut reading);
        if started.elapsed() > TIMEOUT {
            bail!(
                "{attached} of {} instances are attached after {} s",
                spec.instances,
                TIMEOUT.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// One service for all packets, with all instances active.
pub(super) fn plan(instances: u16, uplinks: Vec<UplinkId>) -> Result<Plan> {
    let service = ServicePlan {
        uplinks,
        fit: 1.0,
        ..ServicePlan::of_all(SERVICE, Scheduler::from_name(SCHEDULER)?)
    };
    let slot = |instance| SlotPlan {
        instance: InstanceId(instance),
        service: SERVICE,
        place: PlaceId::default(),
        state: InstanceState::Active,
        capacity_pps: 1e9,
        active_since: Nanos::ZERO,
        weight: 256,
        block: None,
        edits: Edits::default(),
    };
    Ok(Plan {
        generation: Generation(1),
        services: vec![service],
        slots: (0..u32::from(instances))
            .map(|instance| Some(slot(instance)))
            .collect(),
        ..Plan::default()
    })
}

/// The captures of `workers` workers: all flows for a single worker, otherwise a share each.
pub(super) fn captures(folder: &Path, workers: usize) -> Vec<PathBuf> {
    (0..workers)
        .map(|worker| folder.join(format!("flows{worker}.pcap")))
        .collect()
}
