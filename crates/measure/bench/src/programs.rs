//! The driver `ebpf`: what its programs cost for each packet, and how many packets pass from a client's network through
//! them into the networks of instances, which drop them.
//!
//! The kernel does all of it in the sending thread: a rate is packets per second of CPU time of that thread, with its
//! system calls. The programs' own share is the kernel's count of their time, from a pass of its own, because counting
//! makes them slower.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clock::monotonic;
use ebpf_switch::{EbpfSwitch, EbpfSwitchConfig, PreparedPort, Statistics};
use interfaces::container_end;
use model::{
    Generation, InstanceId, InstanceState, Nanos, PlaceId, PortKind, ServiceId, Slot, Timeouts, Vip, VipMode,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use scheduling::Scheduler;
use serde::Serialize;
use switch::{
    Edits, Plan, PortSpec, ServicePlan, SlotPlan, Switch, SwitchEvent, SwitchReading, SwitchRequest,
};
use testbed::network::{Namespace, run as run_program};

use super::contestant::median;
use super::facts::facts;
use super::raw::Raw;
use crate::args::SteerArgs;
use display::output;
use display::table::{Table, grouped};

/// Instances that take flows.
const INSTANCES: u16 = 4;
/// The service's address and the client's.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Flows that a sender has sockets for.
pub(super) const FLOWS_LIMIT: u32 = 10_000;
/// Packets of a pass over established flows.
const PACKETS: u64 = 500_000;
/// New flows of a pass, and connections that are opened in a flood.
const NEW_FLOWS: u64 = 100_000;
const SYNS: u64 = 50_000;
/// Connections that may be half open before a SYN counts as a flood's.
const HALF_OPEN: u32 = 64;
/// Entries of the table: more than all flows of a run.
const TABLE: u32 = 1 << 21;
/// Maximum time until an instance is attached, or packets have arrived.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One row of the result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// `established`, `new` or `flood`.
    case: &'static str,
    /// Established flows; 0 where each packet is of another one.
    flows: u32,
    packet_bytes: usize,
    /// Packets per second of the sender's CPU time, its system calls included.
    pps: f64,
    /// The program's time for each packet.
    program_ns: f64,
    /// Packets that were pinned, or sent on without a pin, as the case demands, of all.
    as_expected: f64,
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
enum Case {
    Established(u32),
    New,
    Flood,
}

/// What a pass has sent.
struct Sent {
    packets: u64,
    cpu: Duration,
}

/// Runs the bench.
pub(super) fn run(args: &SteerArgs) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("programs in the kernel need root: run it with sudo");
    }
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, all).context("cannot open as many sockets")?;
    let process = std::process::id();
    let host = Namespace::new(format!("inco-bench-{process}-host"))?;
    let net = Namespace::new(format!("inco-bench-{process}-net"))?;
    host.connect("up0", &net, "net0")?;
    host.ip(&["link", "set", "up0", "up"])?;
    net.ip(&["address", "add", &format!("{CLIENT}/24"), "dev", "net0"])?;
    net.ip(&["link", "set", "net0", "up"])?;
    let rows = host.within(|| {
        let mut bed = Bed::start(&host)?;
        let measured = bed.measure(&net, args);
        bed.switch.stop();
        measured
    })?;
    if args.json {
        return output::json(&rows, output::is_terminal());
    }
    let mut table = Table::new(&["case", ">flows", ">packets/s", ">program ns", ">as expected"]);
    for row in &rows {
        table.row([
            row.case.to_owned(),
            match row.flows {
                0 => "-".to_owned(),
                flows => grouped(flows.into()),
            },
            grouped(row.pps as u64),
            format!("{:.0}", row.program_ns),
            format!("{:.1}%", row.as_expected * 100.0),
        ]);
    }
    output::text(&table.text())?;
    output::line(format!(
        "driver ebpf, {INSTANCES} instances; packets/s of the sender's CPU time. All measurements: {}",
        args.csv.display()
    ))
}

/// A switch with its instances.
struct Bed {
    switch: EbpfSwitch,
    reading: SwitchReading,
    events: Vec<SwitchEvent>,
    name: String,
    _instances: Vec<Namespace>,
}

impl Bed {
    /// Starts it in this thread's namespace, `host`.
    fn start(host: &Namespace) -> Result<Bed> {
        let name = host.name().to_owned();
        let port = |slot| PreparedPort {
            slot: Slot(slot),
            service: ServiceId(0),
            own: Vec::new(),
            egress: false,
            kind: PortKind::Kernel,
        };
        let config = EbpfSwitchConfig {
            name: name.clone(),
            prefix: "inco".to_owned(),
            uplinks: vec!["up0".to_owned()],
            tunnel: None,
            ports: (0..INSTANCES).map(port).collect(),
            mtu: 1500,
            flows: [TABLE, 1024],
            timeouts: Timeouts::default(),
            half_open: Some(HALF_OPEN),
            shares: false,
            hash_key: [1, 2],
        };
        let mut bed = Bed {
            switch: EbpfSwitch::start(&config)?,
            reading: SwitchReading::new(1, 1, 1),
            events: Vec::new(),
            name,
            _instances: Vec::new(),
        };
        for slot in (0..INSTANCES).map(Slot) {
            let instance = Namespace::new(format!("{}-{}", host.name(), slot.0))?;
            let end = container_end(&config.prefix, slot);
            run_program(
                "ip",
                &["-n", host.name(), "link", "set", &end, "netns", instance.name()],
            )?;
            instance.ip(&["link", "set", &end, "up"])?;
            bed._instances.push(instance);
            let (service, port) = (ServiceId(0), PortSpec::new(PortKind::Kernel, ""));
            bed.switch
                .request(SwitchRequest::Attach { slot, service, port })?;
        }
        let is_attached = |event: &SwitchEvent| matches!(event, SwitchEvent::Attached { .. });
        bed.until("instances are attached", |bed| {
            bed.events.iter().filter(|event| is_attached(event)).count() == usize::from(INSTANCES)
        })?;
        let vip = Vip {
            addresses: vec![SERVER.into()],
            ports: vec![1..=u16::MAX],
            mode: VipMode::L2,
            target_port: None,
        };
        let slot = |number: u16| SlotPlan {
            instance: InstanceId(u32::from(number) + 1),
            service: ServiceId(0),
            place: PlaceId::default(),
            state: InstanceState::Active,
            capacity_pps: 1e6,
            active_since: Nanos::ZERO,
            weight: 256,
            block: None,
            edits: Edits::default(),
        };
        let plan = Plan {
            generation: Generation(1),
            services: vec![ServicePlan {
                vip: Some(vip),
                ..ServicePlan::of_all(ServiceId(0), Scheduler::from_name("round-robin")?)
            }],
            slots: (0..INSTANCES).map(|number| Some(slot(number))).collect(),
            ..Plan::default()
        };
        bed.switch.request(SwitchRequest::Publish(Arc::new(plan)))?;
        bed.until("the plan is in force", |bed| {
            bed.reading.acknowledged == Generation(1)
        })?;
        Ok(bed)
    }

    fn turn(&mut self) {
        self.switch.poll(monotonic(), &mut self.events);
        self.switch.read(&mut self.reading);
        std::thread::sleep(Duration::from_millis(1));
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Bed) -> bool) -> Result<()> {
        let since = Instant::now();
        while !is_so(self) {
            self.turn();
            if since.elapsed() > TIMEOUT {
                bail!("not within {} s: {what}", TIMEOUT.as_secs());
            }
        }
        Ok(())
    }

    /// Sends from a thread in the client's network, while the switch turns as in a running inco.
    fn drive<T: Send>(&mut self, net: &Namespace, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| net.within(work));
            while !sender.is_finished() {
                self.turn();
            }
            let panicked = |_| anyhow::anyhow!("the sender panicked");
            sender.join().map_err(panicked)?
        })
    }

    fn measure(&mut self, net: &Namespace, args: &SteerArgs) -> Result<Vec<Row>> {
        let columns = [
            "case",
            "flows",
            "round",
            "packets",
            "cpu_s",
            "pps",
            "program_ns",
            "as_expected",
        ];
        let mut raw = Raw::new(&facts(false), &columns);
        let counts = args.flows.iter().filter(|flows| **flows <= FLOWS_LIMIT);
        let cases = counts.map(|flows| Case::Established(*flows));
        let mut rows = Vec::new();
        for case in cases.chain([Case::New, Case::Flood]) {
            let (mut rates, mut costs, mut shares) = (Vec::new(), Vec::new(), Vec::new());
            let (name, flows) = case.name();
            for round in 1..=args.rounds {
                let (sent, share) = self.pass(net, case)?;
                let statistics = Statistics::start(&self.name)?;
                let before = cost(&statistics)?;
                self.pass(net, case)?;
                let after = cost(&statistics)?;
                let rate = sent.packets as f64 / sent.cpu.as_secs_f64();
                let cost = (after.1 - before.1).as_nanos() as f64 / (after.0 - before.0).max(1) as f64;
                raw.row(&[
                    name.to_owned(),
                    flows.to_string(),
                    round.to_string(),
                    sent.packets.to_string(),
                    format!("{:.6}", sent.cpu.as_secs_f64()),
                    format!("{rate:.0}"),
                    format!("{cost:.1}"),
                    format!("{share:.4}"),
                ]);
                rates.push(rate);
                costs.push(cost);
                shares.push(share);
            }
            rows.push(Row {
                case: name,
                flows,
                packet_bytes: PAYLOAD.len() + 42,
                pps: median(rates),
                program_ns: median(costs),
                as_expected: median(shares),
            });
        }
        raw.write(&args.csv)?;
        Ok(rows)
    }

    /// One pass, and the share of its packets that were treated as the case demands.
    fn pass(&mut self, net: &Namespace, case: Case) -> Result<(Sent, f64)> {
        let before = self.counted(case);
        let received = self.reading.uplinks.first().map_or(0, |of| of.received_packets);
        let sent = self.drive(net, || case.send())?;
        self.until("all packets have arrived", |bed| {
            let now = bed.reading.uplinks.first().map_or(0, |of| of.received_packets);
            now >= received + sent.packets
        })?;
        let share = (self.counted(case) - before) as f64 / sent.packets as f64;
        Ok((sent, share))
    }

    /// What the case is about, as the programs have counted it so far.
    fn counted(&self, case: Case) -> u64 {
        let slots = self.reading.slots.iter();
        match case {
            Case::Established(_) => slots.map(|of| of.to_packets).sum(),
            Case::New => slots.map(|of| of.new_flows).sum(),
            Case::Flood => self.reading.services.iter().map(|of| of.flooded).sum(),
        }
    }
}

/// What the packets carry.
const PAYLOAD: [u8; 22] = [0; 22];

/// Runs and time of the program at uplinks.
fn cost(statistics: &Statistics) -> Result<(u64, Duration)> {
    let costs = statistics.read()?;
    let uplink = costs.into_iter().find(|of| of.program == "inco_uplink");
    let uplink = uplink.context("the kernel has no program inco_uplink")?;
    Ok((uplink.runs, uplink.time))
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Case {
    fn name(self) -> (&'static str, u32) {
        match self {
            Case::Established(flows) => ("established", flows),
            Case::New => ("new", 0),
            Case::Flood => ("flood", 0),
        }
    }

    /// Sends its packets.
    fn send(self) -> Result<Sent> {
        let mut packets = 0;
        let socket = |port: u16| -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind((CLIENT, 0))?;
            socket.connect((SERVER, port))?;
            Ok(socket)
        };
        match self {
            Case::Established(flows) => {
                let sockets: Vec<UdpSocket> = (0..flows).map(|_| socket(80)).collect::<Result<_, _>>()?;
                for socket in &sockets {
                    socket.send(&PAYLOAD)?;
                    packets += 1;
                }
                let began = cpu_time();
                let first = packets;
                while packets < PACKETS {
                    for socket in &sockets {
                        socket.send(&PAYLOAD)?;
                        packets += 1;
                    }
                }
                let cpu = (cpu_time() - began).mul_f64(packets as f64 / (packets - first) as f64);
                Ok(Sent { packets, cpu })
            }
            Case::New => {
                let began = cpu_time();
                // Each pass begins elsewhere, so that its flows are new.
                let mut port = (monotonic().0 / 1_000_000) as u16;
                while packets < NEW_FLOWS {
                    port = port.wrapping_add(1).max(1);
                    socket(port)?.send(&PAYLOAD)?;
                    packets += 1;
                }
                let cpu = cpu_time() - began;
                Ok(Sent { packets, cpu })
            }
            Case::Flood => {
                let began = cpu_time();
                let mut port = (monotonic().0 / 1_000_000) as u16;
                while packets < SYNS {
                    port = port.wrapping_add(1).max(1);
                    let socket = socket_with(
                        AddressFamily::INET,
                        SocketType::STREAM,
                        SocketFlags::NONBLOCK,
                        None,
                    )?;
                    // It is under way; nobody answers.
                    let _under_way = connect(&socket, &SocketAddr::from((SERVER, port)));
                    packets += 1;
                }
                let cpu = cpu_time() - began;
                Ok(Sent { packets, cpu })
            }
        }
    }
}
