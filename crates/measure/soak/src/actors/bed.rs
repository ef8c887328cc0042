//! An inco with the three applications, and their clients.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actor_load::analytics::{self, Analytics};
use actor_load::store::{self, Store};
use actor_load::transactions::{self, Transactions};
use actor_load::{Counts, Load, Pace, Times, Workload};
use anyhow::{Context as _, Result, anyhow, bail};
use testbed::actors::{Application, Applications, Kind};
use testbed::{Environment, Interrupt};

use super::verdict::Checked;

/// The names of the services.
pub(crate) const APPLICATIONS: [&str; 3] = ["store", "transactions", "analytics"];
/// Operations per second of each, and of all, that are recorded.
const RATES: [f64; 3] = [500.0, 300.0, 600.0];
pub(crate) const RATE: u32 = 1_400;
const REPLICAS: usize = 3;
const CLIENTS: usize = 8;
const KEYS: u64 = 20;
const VALUE_BYTES: usize = 100;
/// Of analytics: rows and slots of a window, milliseconds of a slot, tags.
const ROWS: usize = 10;
const SLOTS: u64 = 4;
const SLOT_MS: u64 = 250;
const TAGS: u64 = 300;
/// How long an application may take to answer at all.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);

/// It, and its clients.
pub(crate) struct Bed<'g> {
    // In the order in which they end.
    store: Load<Store>,
    transactions: Load<Transactions>,
    /// The counts of both when the segment began.
    before: [Counts; 2],
    inco: Applications<'g>,
}

/// What clients have seen in a segment.
pub(crate) struct Found {
    analytics: Analytics,
    /// The longest time of a request: of the store, of transactions, of a tuple.
    longest: [f64; 3],
}

impl Found {
    /// The longest time of a request to the store, in milliseconds.
    pub(crate) fn longest_ms(&self) -> f64 {
        self.longest[0]
    }
}

/// What a checker has said of an application.
#[derive(Default)]
pub(crate) struct Judgement {
    pub(crate) checked: Checked,
    pub(crate) problems: Vec<String>,
}

/// What the three have said.
#[derive(Default)]
pub(crate) struct Judged {
    pub(crate) store: Judgement,
    pub(crate) transactions: Judgement,
    pub(crate) analytics: Judgement,
}

fn applications() -> [Application; 3] {
    let [store, transactions, analytics] = APPLICATIONS;
    let application = |name, address, port, kind| Application {
        name,
        address,
        port,
        kind,
        sides: "moves = \"manual\"\n".to_owned(),
    };
    let window = Kind::Analytics {
        slots: SLOTS,
        slot_time: SLOT_MS,
        n: ROWS,
    };
    [
        application(store, "10.78.0.100", 7000, Kind::Store { replicas: REPLICAS }),
        application(transactions, "10.78.0.101", 7100, Kind::Transactions),
        application(analytics, "10.78.0.102", 7200, window),
    ]
}

/// Clients at work until the end, and then until all is answered. The times of their requests.
fn at_work<W: Workload>(load: &mut Load<W>, rate: f64, is_over: &AtomicBool) -> Result<Times> {
    let pace = Pace {
        rate: Some(rate),
        lasts: Duration::MAX,
    };
    let mut times = load.run(pace, || !is_over.load(Ordering::Relaxed))?;
    times.add(load.settle()?);
    Ok(times)
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread has panicked"))?
}

impl<'g> Bed<'g> {
    pub(crate) fn start(ground: &'g Environment, interrupt: &Interrupt) -> Result<Bed<'g>> {
        let applications = applications();
        let inco = Applications::start(ground, "soak-actors", 1.0, &applications)?;
        let [replicas, coordinator, _] = &applications;
        let (replicas, coordinator) = (replicas.addresses()?, coordinator.addresses()?);
        let (mut store, mut transactions) = inco.clients().within(|| {
            let store = Load::new(Store::new(of_store())?, CLIENTS, &replicas)?;
            let transactions = Load::new(Transactions::new(of_transactions())?, CLIENTS, &coordinator)?;
            Ok((store, transactions))
        })?;
        for of in [store.wait(BEGIN_LIMIT)?, transactions.wait(BEGIN_LIMIT)?] {
            interrupt.check()?;
            if !of {
                bail!("an application has not answered for {} s", BEGIN_LIMIT.as_secs());
            }
        }
        let before = [store.counts(), transactions.counts()];
        Ok(Bed {
            store,
            transactions,
            before,
            inco,
        })
    }

    /// A segment: clients ask while `harm` runs, and have all answers at its end. Its keys are its own.
    pub(crate) fn under_load(&mut self, harm: impl FnOnce(&Applications<'g>)) -> Result<Found> {
        // Tuples of the segment before are of earlier slots.
        std::thread::sleep(Duration::from_millis(2 * SLOT_MS));
        *self.store.workload_mut() = Store::new(of_store())?;
        *self.transactions.workload_mut() = Transactions::new(of_transactions())?;
        self.before = [self.store.counts(), self.transactions.counts()];
        let [_, _, windows] = applications();
        let addresses = windows.addresses()?;
        let (aggregator, filters) = addresses.split_last().context("analytics has no port")?;
        let settings = analytics::Settings {
            keys: TAGS,
            pattern: "inco".to_owned(),
            n: ROWS,
            slots: SLOTS,
            slot_time: SLOT_MS,
        };
        let new = || Analytics::new(settings, filters, *aggregator);
        let mut analytics = self.inco.clients().within(new)?;
        let is_over = AtomicBool::new(false);
        let (store, transactions, inco) = (&mut self.store, &mut self.transactions, &self.inco);
        let times = std::thread::scope(|scope| -> Result<[Times; 3]> {
            let is_over = &is_over;
            let store = scope.spawn(move || at_work(store, RATES[0], is_over));
            let transactions = scope.spawn(move || at_work(transactions, RATES[1], is_over));
            let analytics = &mut analytics;
            let analytics = scope.spawn(move || {
                let pace = Pace {
                    rate: Some(RATES[2]),
                    lasts: Duration::MAX,
                };
                let mut times = analytics.run(pace, || !is_over.load(Ordering::Relaxed))?;
                times.add(analytics.settle()?);
                Ok(times)
            });
            harm(inco);
            is_over.store(true, Ordering::Relaxed);
            Ok([joined(store)?, joined(transactions)?, joined(analytics)?])
        })?;
        let longest = times.map(|of| of.percentile_ms(1.0));
        Ok(Found { analytics, longest })
    }

    /// The actors that were lost with their processes, as `service actor`.
    pub(crate) fn lost(&self) -> Result<Vec<String>> {
        self.in_state("lost")
    }

    /// The actors that are stopped, in the same form: no fault stops one.
    pub(crate) fn stopped(&self) -> Result<Vec<String>> {
        self.in_state("stopped")
    }

    fn in_state(&self, state: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for service in APPLICATIONS {
            let row = self.inco.row(service)?;
            let of = row.actors.iter().filter(|of| of.state == state);
            found.extend(of.map(|of| format!("{service} {}", of.actor)));
        }
        Ok(found)
    }

    /// What the checkers say of a segment.
    pub(crate) fn judge(&self, found: &Found, lost: &[String], crashes: &[Range<u64>]) -> Judged {
        let mut parts: [BTreeSet<&str>; 3] = Default::default();
        for of in lost {
            let place = APPLICATIONS.iter().position(|name| of.starts_with(name));
            // An actor of the store ends with the number of its replica, of which a majority is needed.
            if let (Some(place), Some(last)) = (place, of.get(of.len() - 1..)) {
                parts[place].insert(last);
            }
        }
        let is_lost = |place: usize| parts[place].len() > if place == 0 { (REPLICAS - 1) / 2 } else { 0 };
        let mut judged = Judged {
            store: of_requests(
                self.store.workload().check(),
                self.store.counts(),
                self.before[0],
                is_lost(0),
            ),
            transactions: of_requests(
                self.transactions.workload().check(),
                self.transactions.counts(),
                self.before[1],
                is_lost(1),
            ),
            analytics: of_windows(&found.analytics, crashes, is_lost(2)),
        };
        let all = [&mut judged.store, &mut judged.transactions, &mut judged.analytics];
        for (of, longest) in std::iter::zip(all, found.longest) {
            of.checked.longest_ms = longest;
        }
        judged
    }

    /// Stops inco.
    pub(crate) fn stop(self) -> Result<()> {
        self.inco.stop()
    }
}

fn of_store() -> store::Settings {
    store::Settings {
        keys: KEYS,
        reads: 0.5,
        written: 0,
        value_bytes: VALUE_BYTES,
        records: true,
    }
}

fn of_transactions() -> transactions::Settings {
    transactions::Settings {
        keys: KEYS,
        value_bytes: VALUE_BYTES,
        records: true,
    }
}

/// Of an application with requests. `is_explained`: what is needed for an answer was lost.
fn of_requests(checked: Result<usize>, counts: Counts, before: Counts, is_explained: bool) -> Judgement {
    let mut of = Judgement::default();
    match checked {
        Ok(count) => of.checked.checked = count as u64,
        Err(error) => {
            of.checked.violations = 1;
            of.problems.push(format!("{error:#}"));
        }
    }
    of.unanswered(counts.lost, is_explained);
    of.checked.answered_twice = counts.twice - before.twice;
    if of.checked.answered_twice > 0 {
        of.problems.push(format!(
            "{} requests were answered twice",
            of.checked.answered_twice
        ));
    }
    of
}

fn of_windows(analytics: &Analytics, crashes: &[Range<u64>], is_explained: bool) -> Judgement {
    let mut of = Judgement::default();
    match analytics.judge(crashes) {
        Ok(judged) => {
            of.checked.checked = judged.exact as u64;
            of.checked.explained = judged.excused as u64;
        }
        Err(error) => {
            of.checked.violations = 1;
            of.problems.push(format!("{error:#}"));
        }
    }
    of.unanswered(analytics.counts().lost, is_explained);
    of
}

impl Judgement {
    fn unanswered(&mut self, count: u64, is_explained: bool) {
        if is_explained {
            self.checked.explained += count;
        } else if count > 0 {
            self.checked.unanswered = count;
            self.problems
                .push(format!("{count} requests or tuples have no answer"));
        }
    }
}
