//! The clients of both applications at work: open loops whose rates change while they run. Times count from the intended
//! sending, so what waits because an application is slow counts, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actor_load::analytics::Analytics;
use actor_load::store::Store;
use actor_load::{Load, Pace, Times};
use anyhow::{Context as _, Result, anyhow, bail};
use testbed::actors::{Application, Applications};

/// Clients of the store, with one request at a time each.
const CLIENTS: usize = 64;
const KEYS: u64 = 10_000;
/// The share of requests to the store that read.
const READS: f64 = 0.5;
const VALUE_BYTES: usize = 100;
/// Tags of analytics.
const TAGS: u64 = 500;
/// How long an application may take to answer at all.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);
/// How soon a rate changes.
const STEP: Duration = Duration::from_millis(250);

/// What clients are to do, and what they have seen since that was taken.
pub(super) struct Steering {
    rate: f64,
    times: Times,
}

/// The same of one application, for its clients and for who steers them.
pub(super) struct Wheel(Mutex<Steering>);

impl Wheel {
    pub(super) fn new(rate: f64) -> Wheel {
        let times = Times::default();
        Wheel(Mutex::new(Steering { rate, times }))
    }

    fn lock(&self) -> MutexGuard<'_, Steering> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rate(&self) -> f64 {
        self.lock().rate
    }

    pub(super) fn set_rate(&self, rate: f64) {
        self.lock().rate = rate;
    }

    /// The times since the last call.
    pub(super) fn take(&self) -> Times {
        std::mem::take(&mut self.lock().times)
    }
}

/// Clients of an application.
pub(super) trait Clients: Send {
    fn is_answered(&mut self, longest: Duration) -> Result<bool>;
    fn step(&mut self, pace: Pace) -> Result<Times>;
    /// Waits for all answers.
    fn settle(&mut self) -> Result<()>;
}

impl Clients for Load<Store> {
    fn is_answered(&mut self, longest: Duration) -> Result<bool> {
        self.wait(longest)
    }

    fn step(&mut self, pace: Pace) -> Result<Times> {
        self.run(pace, || true)
    }

    fn settle(&mut self) -> Result<()> {
        Load::settle(self).map(drop)
    }
}

impl Clients for Analytics {
    fn is_answered(&mut self, longest: Duration) -> Result<bool> {
        self.wait(longest)
    }

    fn step(&mut self, pace: Pace) -> Result<Times> {
        self.run(pace, || true)
    }

    fn settle(&mut self) -> Result<()> {
        Analytics::settle(self).map(drop)
    }
}

/// Asks until the application answers.
pub(super) fn wait(clients: &mut impl Clients, name: &str) -> Result<()> {
    if !clients.is_answered(BEGIN_LIMIT)? {
        bail!("{name} has not answered within {} s", BEGIN_LIMIT.as_secs());
    }
    Ok(())
}

/// At work until the end, and then until all is answered.
pub(super) fn work(clients: &mut impl Clients, wheel: &Wheel, is_over: &AtomicBool) -> Result<()> {
    while !is_over.load(Ordering::Relaxed) {
        let pace = Pace {
            rate: Some(wheel.rate()),
            lasts: STEP,
        };
        let times = clients.step(pace)?;
        wheel.lock().times.add(times);
    }
    clients.settle()
}

pub(super) fn joined(thread: std::thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().map_err(|_| anyhow!("a thread has panicked"))?
}

/// Clients of the store that record what they have seen.
pub(super) fn of_store(inco: &Applications<'_>, store: &Application) -> Result<Load<Store>> {
    let replicas = store.addresses()?;
    let settings = actor_load::store::Settings {
        keys: KEYS,
        reads: READS,
        written: 0,
        value_bytes: VALUE_BYTES,
        records: true,
    };
    // Sockets stay in the network where they were made.
    inco.clients()
        .within(|| Load::new(Store::new(settings)?, CLIENTS, &replicas))
}

/// The sources of analytics, and the reader of its windows.
pub(super) fn of_analytics(
    inco: &Applications<'_>,
    analytics: &Application,
    (slots, slot_time, n): (u64, u64, usize),
) -> Result<Analytics> {
    let addresses = analytics.addresses()?;
    let (aggregator, filters) = addresses.split_last().context("analytics has no port")?;
    let settings = actor_load::analytics::Settings {
        keys: TAGS,
        pattern: "inco".to_owned(),
        n,
        slots,
        slot_time,
    };
    inco.clients()
        .within(|| Analytics::new(settings, filters, *aggregator))
}
