//! What the crash of the store's leader costs its clients: the side with the leader is killed, and the longest time between
//! two answers to a client is taken. Clients have one request at a time, so this is the longest time of a request.

use std::time::{Duration, Instant};

use actor_load::store::{Settings, Store};
use actor_load::{Load, Pace, Times};
use anyhow::{Context as _, Result, bail, ensure};
use images::EngineName;
use model::{Action, ActorSide};
use rustix::process::{Pid, Signal, kill_process};
use testbed::actors::{Application, Applications, Kind};
use testbed::{Environment, Interrupt, SwitchName};

use super::store::sides;
use super::{Outcome, Row};
use crate::contestant::median;

const NOTE: &str = "Three rounds, each with a store of its own: three replicas, 8 clients with one request at a time, half of them \
    reads; each key was linearizable. The leader's replica is on the side that is killed with SIGKILL, the others are on the \
    other side. A client asks the next replica after 100 ms without an answer, which is a part of these times. Sides are older \
    than 10 s: one that ends earlier is started again only after a second. An actor whose process ends within a message is \
    lost (docs/actors.md); the other replicas go on.";

const SERVICE: &str = "store";
const REPLICAS: usize = 3;
const CLIENTS: usize = 8;
/// Before the crash, and with it.
const BEFORE: Duration = Duration::from_millis(500);
const LASTS: Duration = Duration::from_millis(2_500);
const PATIENCE: Duration = Duration::from_secs(20);
/// inco starts a side again only after a second if it ends earlier than 10 s after its start: such a program may never work.
const OLD: Duration = Duration::from_secs(11);
/// What the crash of a leader may cost, in milliseconds.
const LIMIT_MS: f64 = 1_000.0;

/// What a round has shown.
struct Round {
    /// The longest time of a request, in milliseconds.
    longest_ms: f64,
    /// Requests without an answer.
    unanswered: u64,
    /// Answers that came a second time to a request that was sent once.
    twice: u64,
    /// Operations whose order was checked.
    checked: usize,
    /// Actors that ended within a message: their state is not used again.
    lost: usize,
}

/// Measures it.
pub(super) fn measure() -> Result<Outcome> {
    let interrupt = Interrupt::listen()?;
    let ground = Environment::new(EngineName::Oci, SwitchName::Soft, false, interrupt.clone())?;
    let sides = [ActorSide::Card, ActorSide::Host, ActorSide::Card];
    let rounds = sides.map(|side| round(&ground, side, &interrupt));
    let rounds = rounds.into_iter().collect::<Result<Vec<Round>>>()?;
    let times: Vec<f64> = rounds.iter().map(|of| of.longest_ms).collect();
    let longest = times.iter().copied().fold(0.0, f64::max);
    let unanswered: u64 = rounds.iter().map(|of| of.unanswered).sum();
    let twice: u64 = rounds.iter().map(|of| of.twice).sum();
    let checked: usize = rounds.iter().map(|of| of.checked).sum();
    let lost: usize = rounds.iter().map(|of| of.lost).sum();
    let rows = vec![
        Row::plain("longest time of a request, all rounds", longest, "ms").below(LIMIT_MS),
        Row::plain("longest time of a request, median of rounds", median(times), "ms"),
        Row::plain("requests without an answer", unanswered as f64, "requests").at_most(0.0),
        Row::plain("requests answered twice", twice as f64, "requests").at_most(0.0),
        Row::plain("operations checked", checked as f64, "operations"),
        Row::plain("actors lost with their process", lost as f64, "actors"),
    ];
    Ok(Outcome {
        rows,
        note: NOTE.into(),
    })
}

/// A store of its own, whose leader ends.
fn round(ground: &Environment, side: ActorSide, interrupt: &Interrupt) -> Result<Round> {
    let application = Application {
        name: SERVICE,
        address: "10.78.0.100",
        port: 7000,
        kind: Kind::Store { replicas: REPLICAS },
        sides: "moves = \"manual\"\n".to_owned(),
    };
    let inco = Applications::start(ground, "crash", 1.0, std::slice::from_ref(&application))?;
    sides(&inco, SERVICE, interrupt)?;
    let began = Instant::now();
    let addresses = application.addresses()?;
    let mut load = inco.clients().within(|| {
        let store = Store::new(Settings {
            keys: 50,
            reads: 0.5,
            written: 0,
            value_bytes: 100,
            records: true,
        })?;
        Load::new(store, CLIENTS, &addresses)
    })?;
    ensure!(load.wait(PATIENCE)?, "the store does not answer");
    let leader = leader(&inco, &mut load)?;
    for replica in 0..REPLICAS {
        let to = if replica == leader { side } else { side.other() };
        put(&inco, replica, to, interrupt)?;
    }
    // Nothing is under way meanwhile.
    load.settle()?;
    while began.elapsed() < OLD {
        interrupt.check()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut times = crash(&inco, &mut load, side, interrupt)?;
    // Those that have waited since the crash.
    times.add(load.settle()?);
    let row = inco.row(SERVICE)?;
    let round = Round {
        longest_ms: times.percentile_ms(1.0),
        unanswered: load.counts().lost,
        twice: load.counts().twice,
        checked: load.workload().check()?,
        lost: row.actors.iter().filter(|of| of.state == "lost").count(),
    };
    inco.stop()?;
    Ok(round)
}

/// The replica that leads: it alone answers.
fn leader(inco: &Applications<'_>, load: &mut Load<Store>) -> Result<usize> {
    let served = || -> Result<Vec<u64>> {
        let row = inco.row(SERVICE)?;
        let of = |replica: usize| {
            let name = format!("memtable{replica}");
            let actor = row.actors.iter().find(|of| of.actor == name);
            actor.map_or(0, |of| of.served)
        };
        Ok((0..REPLICAS).map(of).collect())
    };
    let before = served()?;
    load.run(pace(BEFORE), || true)?;
    let after = served()?;
    let more = |replica: &usize| after[*replica].saturating_sub(before[*replica]);
    (0..REPLICAS).max_by_key(more).context("there is no replica")
}

fn pace(lasts: Duration) -> Pace {
    Pace { rate: None, lasts }
}

/// Has a replica be on a side.
fn put(inco: &Applications<'_>, replica: usize, to: ActorSide, interrupt: &Interrupt) -> Result<()> {
    let group = format!("replica{replica}");
    let began = Instant::now();
    let mut is_asked = false;
    loop {
        let row = inco.row(SERVICE)?;
        let mut its = row
            .actors
            .iter()
            .filter(|of| of.group.as_deref() == Some(&*group));
        if its.all(|of| of.side == Some(to)) {
            return Ok(());
        }
        if !is_asked {
            let action = Action::ActorMove {
                service: SERVICE.to_owned(),
                actor: format!("consensus{replica}"),
                to,
            };
            // One that has just begun again may not be ready to move.
            is_asked = inco.session().client()?.act(&action).is_ok();
        }
        interrupt.check()?;
        if began.elapsed() > PATIENCE {
            bail!(
                "{group} is not on the {} after {} s",
                to.name(),
                PATIENCE.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills a side under clients; gives the times of their requests.
fn crash(
    inco: &Applications<'_>,
    load: &mut Load<Store>,
    side: ActorSide,
    interrupt: &Interrupt,
) -> Result<Times> {
    let pid = sides(inco, SERVICE, interrupt)?[side.index()];
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.context("the side has no process")?;
    let began = Instant::now();
    let mut is_killed = false;
    load.run(pace(LASTS), || {
        if !is_killed && began.elapsed() > BEFORE {
            is_killed = true;
            // Its end shows in the side's next process.
            let _ = kill_process(pid, Signal::KILL);
        }
        true
    })
}
