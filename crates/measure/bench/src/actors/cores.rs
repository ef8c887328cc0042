//! Host cores that a card saves (iPipe, sections 5.2 and 5.3): MODEL. What actors need per request is measured: their run
//! times, as their runtime counts them, in three applications under clients. What packets cost the host is declared, and
//! so is where actors are.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use actor_load::analytics::{self, Analytics};
use actor_load::store::{self, Store};
use actor_load::transactions::{self, Transactions};
use actor_load::{Load, Pace, Workload};
use anyhow::{Result, ensure};
use api::types::ActorsRow;
use images::EngineName;
use testbed::actors::{Application, Applications, Kind};
use testbed::{Environment, Interrupt, SwitchName};

use super::store::sides;
use super::{Outcome, Row};

const NOTE: &str = "MODEL. Run times of actors are measured on this machine. A packet in or out costs the host 1,000 ns in its \
    network stack, and a message through the channel to the card 100 ns: declared. Actors are where iPipe has them: those with a \
    disk on the host (tables, compaction, journal), and the aggregator of all windows; others on the card. The card's own time \
    is not counted, and it is taken to keep up. An actor's run times include no part of the runtime.";

/// From the one that saves most in the paper.
const APPLICATIONS: [&str; 3] = ["transactions", "analytics", "store"];
/// CPU time of the host for a packet in or out.
const STACK_NS: f64 = 1_000.0;
/// CPU time of the host for a message through the channel.
const CHANNEL_NS: f64 = 100.0;
const LASTS: Duration = Duration::from_secs(8);
const BEGIN_LIMIT: Duration = Duration::from_secs(20);
const CLIENTS: usize = 32;
const KEYS: u64 = 1_000_000;
/// Requests per second: few enough for all, so that actors do not wait for CPUs.
const RATE: f64 = 800.0;

/// An actor's part of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Part {
    /// Run time in nanoseconds.
    ran_ns: f64,
    /// Messages that it was given.
    messages: f64,
}

/// A role of an application, per request of a client.
#[derive(Clone, Debug)]
struct Role {
    name: &'static str,
    /// Those that the card may have.
    card: Vec<Part>,
    host: Vec<Part>,
    /// Packets in and out of this role's machine.
    packets: f64,
    /// Whose role it is, and on how many machines.
    application: &'static str,
    machines: f64,
}

impl Role {
    /// Host CPU time of a request without a card, and with one: in nanoseconds.
    fn host_ns(&self) -> (f64, f64) {
        let run = |parts: &[Part]| parts.iter().fold(0.0, |sum, of| sum + of.ran_ns);
        let messages = self.host.iter().fold(0.0, |sum, of| sum + of.messages);
        let without = run(&self.card) + run(&self.host) + self.packets * STACK_NS;
        // Each message for the host has one back, at most.
        let with = run(&self.host) + 2.0 * messages * CHANNEL_NS;
        (without, with)
    }

    fn ratio(&self) -> f64 {
        let (without, with) = self.host_ns();
        with / without.max(1e-9)
    }
}

/// Measures what is measured, and computes the rest.
pub(super) fn measure() -> Result<Outcome> {
    let interrupt = Interrupt::listen()?;
    let ground = Environment::new(EngineName::Oci, SwitchName::Soft, false, interrupt.clone())?;
    let of = |name, address, port, kind| Application {
        name,
        address,
        port,
        kind,
        sides: "moves = \"manual\"\n".to_owned(),
    };
    let analytics = Kind::Analytics {
        slots: 4,
        slot_time: 250,
        n: 10,
    };
    let all = [
        of("transactions", "10.78.0.100", 7200, Kind::Transactions),
        of("analytics", "10.78.0.101", 7300, analytics),
        of("store", "10.78.0.102", 7400, Kind::Store { replicas: 3 }),
    ];
    let inco = Applications::start(&ground, "cores", 1.0, &all)?;
    for application in &all {
        sides(&inco, application.name, &interrupt)?;
    }
    let roles = roles_of(&inco, &all)?;
    inco.stop()?;
    Ok(Outcome {
        rows: rows(&roles),
        note: NOTE.into(),
    })
}

/// What each role has, from its least ratio in the paper to its greatest.
fn roles_of(inco: &Applications<'_>, all: &[Application; 3]) -> Result<Vec<Role>> {
    let [transactions, analytics, store] = all;
    let workload = Transactions::new(transactions::Settings {
        keys: KEYS,
        value_bytes: 100,
        records: false,
    })?;
    let of = requests(inco, transactions, workload)?;
    let get = |parts: &BTreeMap<String, Part>, name: &str| parts.get(name).copied().unwrap_or_default();
    let (left, right) = (get(&of, "left"), get(&of, "right"));
    let coordinator = get(&of, "coordinator");
    // A participant has a packet for each message, and sends one back.
    let half = Part {
        ran_ns: (left.ran_ns + right.ran_ns) / 2.0,
        messages: (left.messages + right.messages) / 2.0,
    };
    let participant = Role {
        name: "transactions: participant",
        application: APPLICATIONS[0],
        machines: 2.0,
        card: vec![half],
        host: Vec::new(),
        packets: 2.0 * half.messages,
    };
    let coordinator = Role {
        name: "transactions: coordinator",
        application: APPLICATIONS[0],
        machines: 1.0,
        card: vec![coordinator],
        host: vec![get(&of, "journal")],
        // The client's packets, and those of the participants.
        packets: 2.0 + 2.0 * (left.messages + right.messages),
    };
    let of = tuples(inco, analytics)?;
    let both = |name: &str| [0, 1].map(|side| get(&of, &format!("{name}{side}")));
    let worker = Role {
        name: "analytics: worker",
        application: APPLICATIONS[1],
        machines: 1.0,
        card: [both("filter"), both("counter"), both("ranker")].concat(),
        host: vec![get(&of, "aggregator")],
        // A tuple and its acknowledgement.
        packets: 2.0,
    };
    let workload = Store::new(store::Settings {
        keys: KEYS,
        reads: 0.95,
        written: 2_000,
        value_bytes: 100,
        records: false,
    })?;
    let of = requests(inco, store, workload)?;
    let replica = |number: usize| {
        let of = |name: &str| get(&of, &format!("{name}{number}"));
        (
            of("tables").messages,
            vec![of("consensus"), of("memtable")],
            vec![of("tables"), of("compaction")],
        )
    };
    let mut replicas = [0, 1, 2].map(replica);
    // The leader has the reads.
    replicas.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [
        (_, follower_card, follower_host),
        _,
        (_, leader_card, leader_host),
    ] = replicas;
    let peers = |card: &[Part]| card.first().map_or(0.0, |of| of.messages);
    let follower = Role {
        name: "store: follower",
        application: APPLICATIONS[2],
        machines: 2.0,
        packets: 2.0 * peers(&follower_card),
        card: follower_card,
        host: follower_host,
    };
    let leader = Role {
        name: "store: leader",
        application: APPLICATIONS[2],
        machines: 1.0,
        // Requests and what followers say; as many packets leave.
        packets: 2.0 * peers(&leader_card),
        card: leader_card,
        host: leader_host,
    };
    Ok(vec![participant, coordinator, worker, follower, leader])
}

fn rows(roles: &[Role]) -> Vec<Row> {
    let mut rows = Vec::new();
    for role in roles {
        let (without, with) = role.host_ns();
        let unit = "ns of host CPU time per request (MODEL)";
        rows.push(Row::plain(
            format!("{}: without a card", role.name),
            without,
            unit,
        ));
        rows.push(Row::plain(format!("{}: with a card", role.name), with, unit));
        let case = format!("{}: with / without", role.name);
        rows.push(Row::plain(case, role.ratio(), "ratio of host CPU time (MODEL)").below(1.0));
    }
    let mut ratios = Vec::new();
    for application in APPLICATIONS {
        let its = roles.iter().filter(|of| of.application == application);
        let (without, with) = its.fold((0.0, 0.0), |sum, of| {
            let (without, with) = of.host_ns();
            (sum.0 + of.machines * without, sum.1 + of.machines * with)
        });
        let ratio = with / f64::max(without, 1e-9);
        ratios.push(ratio);
        let case = format!("{application}, all machines: with / without");
        rows.push(Row::plain(case, ratio, "ratio of host CPU time (MODEL)").below(1.0));
    }
    let in_order = ratios.windows(2).filter(|of| of[0] <= of[1]).count();
    rows.push(
        Row::plain(
            "neighbours in the order transactions, analytics, store",
            in_order as f64,
            "pairs (MODEL)",
        )
        .at_least(2.0)
        .paper("participant, coordinator, worker, follower, leader"),
    );
    rows
}

/// The actors' parts of a request of a client.
fn requests<W: Workload + Send>(
    inco: &Applications<'_>,
    application: &Application,
    workload: W,
) -> Result<BTreeMap<String, Part>> {
    let addresses: Vec<SocketAddr> = application.addresses()?;
    let mut load = inco
        .clients()
        .within(|| Load::new(workload, CLIENTS, &addresses))?;
    ensure!(load.wait(BEGIN_LIMIT)?, "{} does not answer", application.name);
    // The first keys, and the first elections.
    let pace = |lasts| Pace {
        rate: Some(RATE),
        lasts,
    };
    load.run(pace(LASTS / 2), || true)?;
    let mut meter = Meter::new(inco, application.name)?;
    let times = load.run(pace(LASTS), || meter.look())?;
    let parts = meter.parts(times.count() as f64)?;
    load.settle()?;
    Ok(parts)
}

/// The same of a tuple.
fn tuples(inco: &Applications<'_>, application: &Application) -> Result<BTreeMap<String, Part>> {
    let addresses = application.addresses()?;
    let (filters, results) = addresses.split_at(2);
    let settings = analytics::Settings {
        keys: 500,
        pattern: "inco".to_owned(),
        n: 10,
        slots: 4,
        slot_time: 250,
    };
    let mut load = inco
        .clients()
        .within(|| Analytics::new(settings, filters, results[0]))?;
    let mut meter = Meter::new(inco, application.name)?;
    let pace = Pace {
        rate: Some(RATE),
        lasts: LASTS,
    };
    let times = load.run(pace, || meter.look())?;
    meter.parts(times.count() as f64)
}

/// What actors do in a while.
struct Meter<'i> {
    inco: &'i Applications<'i>,
    service: &'static str,
    before: ActorsRow,
    next: Instant,
    /// Sums of the loads that were read each second, and how many there were.
    loads: BTreeMap<String, f64>,
    looks: f64,
    began: Instant,
}

impl<'i> Meter<'i> {
    fn new(inco: &'i Applications<'i>, service: &'static str) -> Result<Meter<'i>> {
        let now = Instant::now();
        Ok(Meter {
            inco,
            service,
            before: inco.row(service)?,
            // A load is that of the last second.
            next: now + Duration::from_millis(1_500),
            loads: BTreeMap::new(),
            looks: 0.0,
            began: now,
        })
    }

    /// Reads the loads, if it is time. Whether clients go on.
    fn look(&mut self) -> bool {
        if Instant::now() >= self.next
            && let Ok(row) = self.inco.row(self.service)
        {
            self.next += Duration::from_secs(1);
            self.looks += 1.0;
            for actor in row.actors {
                *self.loads.entry(actor.actor).or_default() += actor.load;
            }
        }
        true
    }

    fn parts(self, requests: f64) -> Result<BTreeMap<String, Part>> {
        ensure!(
            requests > 0.0 && self.looks > 0.0,
            "{}: nothing was answered",
            self.service
        );
        let per_second = requests / self.began.elapsed().as_secs_f64();
        let after = self.inco.row(self.service)?;
        let parts = std::iter::zip(self.before.actors, after.actors).map(|(before, after)| {
            let load = self.loads.get(&after.actor).copied().unwrap_or(0.0) / self.looks;
            let part = Part {
                ran_ns: load * 1e9 / per_second,
                messages: after.served.saturating_sub(before.served) as f64 / requests,
            };
            (after.actor, part)
        });
        Ok(parts.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_without_actors_on_the_host_costs_the_host_nothing() {
        let part = Part {
            ran_ns: 500.0,
            messages: 2.0,
        };
        let role = |application, host: Vec<Part>| Role {
            name: "role",
            application,
            machines: 2.0,
            card: vec![part],
            host,
            packets: 4.0,
        };
        assert_eq!(role("store", Vec::new()).host_ns(), (4_500.0, 0.0));
        assert_eq!(role("store", vec![part]).host_ns(), (5_000.0, 900.0));
        let all = |hosts: [Vec<Part>; 3]| {
            let roles = std::iter::zip(APPLICATIONS, hosts).map(|(name, host)| role(name, host));
            rows(&roles.collect::<Vec<_>>()).pop().unwrap()
        };
        let ordered = all([Vec::new(), vec![part], vec![part, part]]);
        assert_eq!((ordered.value, ordered.met), (2.0, Some(true)));
        assert_eq!(all([vec![part], Vec::new(), vec![part]]).met, Some(false));
    }
}
