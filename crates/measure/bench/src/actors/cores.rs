//! Host cores that a card saves (iPipe, sections 5.2 and 5.3): MODEL. What actors need per request is measured: their run
//! times, as their runtime counts them, in three applications under clients. What packets cost the host is declared, and
//! so is where actors are.
//!
//! All applications run at once. Clients ask them in turn, round by round, so that what else the machine does meets all
//! alike. Each round has its own ratios; the figures are medians of rounds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use actor_load::analytics::{self, Analytics};
use actor_load::store::{self, Store};
use actor_load::transactions::{self, Transactions};
use actor_load::{Load, Pace, Workload};
use anyhow::{Context as _, Result, ensure};
use api::types::ActorsRow;
use images::EngineName;
use testbed::actors::{Application, Applications, Kind};
use testbed::{Environment, Interrupt, SwitchName};

use super::store::sides;
use super::{Outcome, Row};
use crate::contestant::median;

const NOTE: &str = "MODEL. Run times of actors are measured on this machine, with data in memory, so that no disk is waited for. \
    A packet in or out costs the host 1,000 ns in its network stack, and a message through the channel to the card 100 ns: \
    declared. Actors are where iPipe has them: those with a disk on the host (tables, compaction, journal), and the aggregator \
    of all windows; others on the card. The card's own time is not counted, and it is taken to keep up. An actor's run times \
    include no part of the runtime. A request to analytics is a packet with about six tuples. Medians of rounds.";

/// From the one that saves most in the paper.
const APPLICATIONS: [&str; 3] = ["transactions", "analytics", "store"];
/// CPU time of the host for a packet in or out.
const STACK_NS: f64 = 1_000.0;
/// CPU time of the host for a message through the channel.
const CHANNEL_NS: f64 = 100.0;
const ROUNDS: usize = 5;
/// How long clients ask an application in a round, and before the first one.
const LASTS: Duration = Duration::from_millis(1_600);
const BEGIN_LIMIT: Duration = Duration::from_secs(20);
const CLIENTS: usize = 32;
const KEYS: u64 = 1_000_000;
/// Requests per second: few enough for all, so that actors do not wait for CPUs.
const RATE: f64 = 800.0;
/// Tuples per second: 200 packets of 512 bytes, as in the paper.
const TUPLES: f64 = 1_200.0;
/// Slots of a window, milliseconds of a slot, and rows of a window.
const WINDOW: (u64, u64, usize) = (4, 250, 10);
/// Where files are in memory.
const MEMORY: &str = "/dev/shm";

/// An actor's part of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Part {
    /// Run time in nanoseconds.
    ran_ns: f64,
    /// Messages that it was given.
    messages: f64,
}

/// The actors' parts of a request, by name.
type Parts = BTreeMap<String, Part>;

fn part(of: &Parts, name: &str) -> Part {
    of.get(name).copied().unwrap_or_default()
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
    fn host_ns(&self) -> [f64; 2] {
        let run = |parts: &[Part]| parts.iter().fold(0.0, |sum, of| sum + of.ran_ns);
        let messages = self.host.iter().fold(0.0, |sum, of| sum + of.messages);
        let without = run(&self.card) + run(&self.host) + self.packets * STACK_NS;
        // Each message for the host has one back, at most.
        let with = run(&self.host) + 2.0 * messages * CHANNEL_NS;
        [without, with]
    }
}

fn ratio([without, with]: [f64; 2]) -> f64 {
    with / without.max(1e-9)
}

/// A directory for data, which is removed at the end.
struct Data(PathBuf);

impl Data {
    fn new() -> Result<Data> {
        let parent = PathBuf::from(MEMORY);
        let parent = if parent.is_dir() {
            parent
        } else {
            std::env::temp_dir()
        };
        let directory = parent.join(format!("inco-cores-{}", std::process::id()));
        std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(Data(directory))
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        // What remains is in memory, until the machine starts anew.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures what is measured, and computes the rest.
pub(super) fn measure() -> Result<Outcome> {
    let interrupt = Interrupt::listen()?;
    let ground = Environment::new(EngineName::Oci, SwitchName::Soft, false, interrupt.clone())?;
    let data = Data::new()?;
    let of = |name, address, port, kind| Application {
        name,
        address,
        port,
        kind,
        sides: "moves = \"manual\"\n".to_owned(),
    };
    let (slots, slot_time, n) = WINDOW;
    let all = [
        of("transactions", "10.78.0.100", 7200, Kind::Transactions),
        of(
            "analytics",
            "10.78.0.101",
            7300,
            Kind::Analytics { slots, slot_time, n },
        ),
        of("store", "10.78.0.102", 7400, Kind::Store { replicas: 3 }),
    ];
    let inco = Applications::start_with_data(&ground, "cores", 1.0, &all, &data.0)?;
    for application in &all {
        sides(&inco, application.name, &interrupt)?;
    }
    let mut clients = Clients::new(&inco, &all)?;
    // The first keys, and the first elections.
    clients.round(&inco)?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        interrupt.check()?;
        rounds.push(roles(&clients.round(&inco)?));
    }
    inco.stop()?;
    Ok(Outcome {
        rows: rows(&rounds),
        note: NOTE.into(),
    })
}

/// The clients of all applications.
struct Clients {
    transactions: Load<Transactions>,
    analytics: Analytics,
    store: Load<Store>,
}

impl Clients {
    fn new(inco: &Applications<'_>, all: &[Application; 3]) -> Result<Clients> {
        let [transactions, analytics, store] = [&all[0], &all[1], &all[2]].map(Application::addresses);
        let (transactions, windows, store) = (transactions?, analytics?, store?);
        let (results, filters) = windows.split_last().context("analytics has no port")?;
        let of_transactions = transactions::Settings {
            keys: KEYS,
            value_bytes: 100,
            records: false,
        };
        let (slots, slot_time, n) = WINDOW;
        let of_analytics = analytics::Settings {
            keys: 500,
            pattern: "inco".to_owned(),
            n,
            slots,
            slot_time,
        };
        let of_store = store::Settings {
            keys: KEYS,
            reads: 0.95,
            written: 1_000,
            value_bytes: 100,
            records: false,
        };
        inco.clients().within(|| {
            Ok(Clients {
                transactions: begun(Transactions::new(of_transactions)?, &transactions)?,
                analytics: {
                    let mut of = Analytics::new(of_analytics, filters, *results)?;
                    ensure!(of.wait(BEGIN_LIMIT)?, "analytics does not answer");
                    of
                },
                store: begun(Store::new(of_store)?, &store)?,
            })
        })
    }

    /// What a request has needed, of each application in turn.
    fn round(&mut self, inco: &Applications<'_>) -> Result<[Parts; 3]> {
        let pace = |rate| Pace {
            rate: Some(rate),
            lasts: LASTS,
        };
        let [transactions, analytics, store] = APPLICATIONS;
        let (before, after, answered) = while_asked(inco, transactions, || {
            Ok(self.transactions.run(pace(RATE), || true)?.count())
        })?;
        let transactions = parts(&before, &after, answered as f64);
        let (before, after, _) = while_asked(inco, analytics, || {
            Ok(self.analytics.run(pace(TUPLES), || true)?.count())
        })?;
        let all = parts(&before, &after, 1.0);
        let packets = part(&all, "filter0").messages + part(&all, "filter1").messages;
        let analytics = parts(&before, &after, packets);
        let (before, after, answered) =
            while_asked(inco, store, || Ok(self.store.run(pace(RATE), || true)?.count()))?;
        Ok([transactions, analytics, parts(&before, &after, answered as f64)])
    }
}

/// A service before and after clients ask it, and how much was answered.
fn while_asked(
    inco: &Applications<'_>,
    service: &str,
    ask: impl FnOnce() -> Result<usize>,
) -> Result<(ActorsRow, ActorsRow, usize)> {
    let before = inco.row(service)?;
    let answered = ask()?;
    Ok((before, inco.row(service)?, answered))
}

fn begun<W: Workload>(workload: W, addresses: &[std::net::SocketAddr]) -> Result<Load<W>> {
    let mut load = Load::new(workload, CLIENTS, addresses)?;
    ensure!(load.wait(BEGIN_LIMIT)?, "{} does not answer", addresses[0]);
    Ok(load)
}

/// The actors' parts of each of so many requests.
fn parts(before: &ActorsRow, after: &ActorsRow, requests: f64) -> Parts {
    let requests = requests.max(1.0);
    let parts = std::iter::zip(&before.actors, &after.actors).map(|(before, after)| {
        let part = Part {
            ran_ns: (after.run_s - before.run_s) * 1e9 / requests,
            messages: after.served.saturating_sub(before.served) as f64 / requests,
        };
        (after.actor.clone(), part)
    });
    parts.collect()
}

/// What each role has in a round, from its least ratio in the paper to its greatest.
fn roles([transactions, analytics, store]: &[Parts; 3]) -> Vec<Role> {
    let role = |name, application, machines| Role {
        name,
        application,
        machines,
        card: Vec::new(),
        host: Vec::new(),
        packets: 0.0,
    };
    let (left, right) = (part(transactions, "left"), part(transactions, "right"));
    // A participant has a packet for each message, and sends one back.
    let half = Part {
        ran_ns: (left.ran_ns + right.ran_ns) / 2.0,
        messages: (left.messages + right.messages) / 2.0,
    };
    let participant = Role {
        card: vec![half],
        packets: 2.0 * half.messages,
        ..role("transactions: participant", APPLICATIONS[0], 2.0)
    };
    let coordinator = Role {
        card: vec![part(transactions, "coordinator")],
        host: vec![part(transactions, "journal")],
        // The client's packets, and those of the participants.
        packets: 2.0 + 2.0 * (left.messages + right.messages),
        ..role("transactions: coordinator", APPLICATIONS[0], 1.0)
    };
    let both = |name: &str| [0, 1].map(|side| part(analytics, &format!("{name}{side}")));
    let worker = Role {
        card: [both("filter"), both("counter"), both("ranker")].concat(),
        host: vec![part(analytics, "aggregator")],
        // A source's packet, and what each counter says of it.
        packets: 1.0 + both("counter").iter().fold(0.0, |sum, of| sum + of.messages),
        ..role("analytics: worker", APPLICATIONS[1], 1.0)
    };
    let mut replicas = [0, 1, 2].map(|number| {
        let of = |name: &str| part(store, &format!("{name}{number}"));
        (
            vec![of("consensus"), of("memtable")],
            vec![of("tables"), of("compaction")],
        )
    });
    // The leader has the requests, and what followers say.
    replicas.sort_by(|a, b| a.0[0].messages.total_cmp(&b.0[0].messages));
    let [(follower_card, follower_host), _, (leader_card, leader_host)] = replicas;
    let follower = Role {
        packets: 2.0 * follower_card[0].messages,
        card: follower_card,
        host: follower_host,
        ..role("store: follower", APPLICATIONS[2], 2.0)
    };
    let leader = Role {
        // As many packets leave as come.
        packets: 2.0 * leader_card[0].messages,
        card: leader_card,
        host: leader_host,
        ..role("store: leader", APPLICATIONS[2], 1.0)
    };
    vec![participant, coordinator, worker, follower, leader]
}

/// Of all machines of an application: host CPU time of a request without a card, and with one.
fn application_ns(roles: &[Role], application: &str) -> [f64; 2] {
    let its = roles.iter().filter(|of| of.application == application);
    its.fold([0.0, 0.0], |[without, with], of| {
        let [more, less] = of.host_ns();
        [without + of.machines * more, with + of.machines * less]
    })
}

/// Neighbours in the paper's order.
fn in_order(ratios: &[f64]) -> usize {
    ratios.windows(2).filter(|of| of[0] <= of[1]).count()
}

fn rows(rounds: &[Vec<Role>]) -> Vec<Row> {
    let mut rows = Vec::new();
    let of_rounds = |of: &dyn Fn(&[Role]) -> f64| rounds.iter().map(|round| of(round)).collect::<Vec<f64>>();
    let names: Vec<&str> = (rounds.first().into_iter().flatten())
        .map(|role| role.name)
        .collect();
    let mut of_roles = Vec::new();
    for (place, name) in names.iter().enumerate() {
        let unit = "ns of host CPU time per request (MODEL)";
        for (which, word) in ["without a card", "with a card"].into_iter().enumerate() {
            let values = of_rounds(&|round| round[place].host_ns()[which]);
            rows.push(Row::rounds(format!("{name}: {word}"), &values, unit));
        }
        let values = of_rounds(&|round| ratio(round[place].host_ns()));
        of_roles.push(median(values.iter().copied()));
        let case = format!("{name}: with / without");
        rows.push(Row::rounds(case, &values, "ratio of host CPU time (MODEL)").below(1.0));
    }
    let mut of_applications = Vec::new();
    for application in APPLICATIONS {
        let values = of_rounds(&|round| ratio(application_ns(round, application)));
        of_applications.push(median(values.iter().copied()));
        let case = format!("{application}, all machines: with / without");
        rows.push(Row::rounds(case, &values, "ratio of host CPU time (MODEL)").below(1.0));
    }
    let is_ordered = |round: &Vec<Role>| {
        let ratios = APPLICATIONS.map(|of| ratio(application_ns(round, of)));
        in_order(&ratios) == APPLICATIONS.len() - 1
    };
    let ordered = rounds.iter().filter(|round| is_ordered(round)).count();
    rows.push(Row::plain(
        format!(
            "rounds of {} with applications in the paper's order",
            rounds.len()
        ),
        ordered as f64,
        "rounds (MODEL)",
    ));
    let pairs = |case: &str, ratios: &[f64], paper| {
        let row = Row::plain(case, in_order(ratios) as f64, "neighbouring pairs (MODEL)");
        row.at_least(ratios.len() as f64 - 1.0).paper(paper)
    };
    rows.push(pairs(
        "applications, by medians, in the paper's order",
        &of_applications,
        "transactions, analytics, store",
    ));
    rows.push(pairs(
        "roles, by medians, in the paper's order",
        &of_roles,
        "participant, coordinator, worker, follower, leader",
    ));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Part = Part {
        ran_ns: 500.0,
        messages: 2.0,
    };

    fn role(application: &'static str, host: Vec<Part>) -> Role {
        Role {
            name: "role",
            application,
            machines: 2.0,
            card: vec![PART],
            host,
            packets: 4.0,
        }
    }

    #[test]
    fn a_role_without_actors_on_the_host_costs_the_host_nothing() {
        assert_eq!(role("store", Vec::new()).host_ns(), [4_500.0, 0.0]);
        assert_eq!(role("store", vec![PART]).host_ns(), [5_000.0, 900.0]);
    }

    #[test]
    fn the_order_of_medians_is_compared_with_the_papers() {
        let round = |hosts: [usize; 3]| {
            let roles = std::iter::zip(APPLICATIONS, hosts).map(|(name, of)| role(name, vec![PART; of]));
            roles.collect::<Vec<_>>()
        };
        let (right, wrong) = (round([0, 1, 2]), round([2, 1, 0]));
        let judged = |rounds: &[Vec<Role>]| {
            let rows = rows(rounds);
            let of = |case: &str| rows.iter().find(|row| row.case.starts_with(case)).unwrap();
            (
                of("rounds of").value,
                of("applications, by medians").met,
                of("roles, by medians").met,
            )
        };
        let all = [right.clone(), wrong.clone(), right];
        assert_eq!(judged(&all), (2.0, Some(true), Some(true)));
        let all = [wrong.clone(), all[0].clone(), wrong];
        assert_eq!(judged(&all), (1.0, Some(false), Some(false)));
        let rows = rows(&all);
        let of = rows
            .iter()
            .find(|row| row.case.starts_with("store, all"))
            .unwrap();
        assert_eq!((of.value, of.range.map(|of| of[0])), (0.0, Some(0.0)));
        assert!(of.range.unwrap()[1] > 0.1, "{of:?}");
    }

    #[test]
    fn the_replica_with_most_messages_is_the_leader() {
        let parts = |of: &[(&str, f64)]| -> Parts {
            let part = |messages| Part { messages, ..PART };
            of.iter()
                .map(|(name, of)| ((*name).to_owned(), part(*of)))
                .collect()
        };
        let store = parts(&[("consensus0", 1.0), ("consensus1", 3.0), ("consensus2", 1.5)]);
        let all = roles(&[Parts::new(), Parts::new(), store]);
        let packets: Vec<f64> = all.iter().map(|role| role.packets).collect();
        assert_eq!(packets, [0.0, 2.0, 1.0, 2.0, 6.0]);
    }
}
