//! Isolation in a service of actors: containers behind inco's switch, a neighbour that clients ask over the network, and
//! actors beside it that loop or write where they may not. Each offender has a process of its own, and offends once.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use actor_load::{Heard, Load, Pace, Times, Workload};
use anyhow::{Context as _, Result, bail, ensure};
use images::EngineName;
use model::{ActorSide, Random};
use testbed::actors::{Application, Applications, Kind};
use testbed::network::Namespace;
use testbed::{Environment, Interrupt, SwitchName};

use super::Row;
use super::isolation::{Noticed, noticed, region_of};
use super::store::sides;

pub(super) const NOTE: &str = "In containers: a service of actors behind inco's switch. Clients over UDP ask the neighbour 1,000 \
    times a second; times include network, switch and the side's process.";

const SERVICE: &str = "isolation";
const ROUNDS: u16 = 5;
const BUDGET_MS: u64 = 20;
const CLIENTS: usize = 32;
const RATE: f64 = 1_000.0;
/// How long times are taken, before an offence and after it.
const SPAN: Duration = Duration::from_millis(700);
/// From an offence to the end of its process, at most.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Requests to a counter: it answers with the request and its count.
#[derive(Default)]
struct Counting {
    /// The greatest count so far, and answers that were none.
    count: u64,
    wrong: u64,
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.first_chunk()?))
}

impl Workload for Counting {
    fn request(&mut self, _place: usize, number: u64, id: u64, _random: &mut Random) -> Result<Vec<u8>> {
        Ok([id.to_le_bytes(), number.to_le_bytes()].concat())
    }

    fn hear(&self, _asked: u64, body: &[u8]) -> Option<(u64, Heard)> {
        (body.len() == 24).then_some((number(body)?, Heard::Ended))
    }

    fn ended(&mut self, _place: usize, _begin: u64, _end: u64, body: &[u8]) -> Result<()> {
        match body.get(16..).and_then(number) {
            Some(count) if count > 0 => self.count = self.count.max(count),
            _ => self.wrong += 1,
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Offence {
    Loop,
    Write,
}

/// The service with its clients.
struct Bed<'b> {
    inco: &'b Applications<'b>,
    addresses: Vec<SocketAddr>,
    load: Load<Counting>,
}

/// Measures it.
pub(super) fn measure() -> Result<Vec<Row>> {
    let interrupt = Interrupt::listen()?;
    let ground = Environment::new(EngineName::Oci, SwitchName::Soft, false, interrupt.clone())?;
    let application = Application {
        name: SERVICE,
        address: "10.78.0.100",
        port: 7000,
        kind: Kind::Offenders {
            count: 2 * ROUNDS,
            budget_ms: BUDGET_MS,
        },
        // A stand-in keeps a thread busy while it waits for its process: another one serves the neighbour.
        sides: "moves = \"manual\"\ncard_cores = 2\n".to_owned(),
    };
    let addresses = application.addresses()?;
    let inco = Applications::start(&ground, "isolation", 1.0, &[application])?;
    sides(&inco, SERVICE, &interrupt)?;
    let new = || Load::new(Counting::default(), CLIENTS, &addresses[..1]);
    let mut bed = Bed {
        inco: &inco,
        load: inco.clients().within(new)?,
        addresses: addresses.clone(),
    };
    ensure!(bed.load.wait(TIMEOUT)?, "the neighbour does not answer");
    let mut rows = Vec::new();
    let mut offender = 0;
    for (offence, name) in [
        (Offence::Loop, "endless loop"),
        (Offence::Write, "write into the side's memory"),
    ] {
        let (mut stopped, mut rounds) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            interrupt.check()?;
            offender += 1;
            let before = bed.p99_ms()?;
            let (stopped_ms, meanwhile) = bed.offend(offence, offender)?;
            stopped.push(stopped_ms);
            let after = bed.p99_ms()?;
            rounds.push(Noticed {
                ratio: after / before.max(1e-9),
                longest_ms: meanwhile.percentile_ms(1.0),
            });
        }
        let case = |what: &str| format!("in containers, {name}: {what}");
        let row = Row::rounds(case("its process ends after"), &stopped, "ms");
        rows.push(match offence {
            Offence::Loop => row.at_most(2.0 * BUDGET_MS as f64),
            Offence::Write => row,
        });
        let rounds: Vec<&Noticed> = rounds.iter().collect();
        rows.extend(noticed(&case("neighbour"), &rounds));
    }
    bed.load.settle()?;
    rows.push(bed.unharmed()?);
    inco.stop()?;
    Ok(rows)
}

impl Bed<'_> {
    /// Requests to the neighbour.
    fn run(&mut self, lasts: Duration) -> Result<Times> {
        let pace = Pace {
            rate: Some(RATE),
            lasts,
        };
        self.load.run(pace, || true)
    }

    /// The 99th percentile of requests to the neighbour, after a warm-up.
    fn p99_ms(&mut self) -> Result<f64> {
        self.run(SPAN / 5)?;
        Ok(self.run(SPAN)?.percentile_ms(0.99))
    }

    fn state(&self, offender: u16) -> Result<String> {
        let name = format!("offender{offender}");
        let row = self.inco.row(SERVICE)?;
        let of = row.actors.into_iter().find(|of| of.actor == name);
        Ok(of.with_context(|| format!("there is no {name}"))?.state)
    }

    /// Has an actor offend, while the neighbour is asked: after how many milliseconds it is stopped, and how long the
    /// requests of that time took. None of them waits any more.
    fn offend(&mut self, offence: Offence, offender: u16) -> Result<(f64, Times)> {
        let message = match offence {
            Offence::Loop => b"loop".to_vec(),
            Offence::Write => {
                let side = self.inco.pid(SERVICE, ActorSide::Card)?;
                let address = region_of(side.context("the card's side does not run")?)?;
                [&b"write"[..], &address.to_le_bytes()].concat()
            }
        };
        send(
            self.inco.clients(),
            self.addresses[usize::from(offender)],
            &message,
        )?;
        let (began, mut meanwhile) = (Instant::now(), Times::default());
        while self.state(offender)? != "stopped" {
            if began.elapsed() > TIMEOUT {
                bail!("offender{offender} is not stopped");
            }
            meanwhile.add(self.run(Duration::from_millis(1))?);
        }
        let stopped_ms = began.elapsed().as_secs_f64() * 1e3;
        meanwhile.add(self.load.settle()?);
        Ok((stopped_ms, meanwhile))
    }

    /// Messages of the neighbour that were lost, or changed its state twice.
    fn unharmed(&self) -> Result<Row> {
        let counts = self.load.counts();
        let of = self.load.workload();
        // What is sent again is counted again: no more than that.
        let executed = of.count.abs_diff(counts.requests).saturating_sub(counts.again);
        let starts = |side: &api::types::ActorSideRow| side.starts - 1;
        let begun: u64 = self.inco.row(SERVICE)?.sides.iter().map(starts).sum();
        ensure!(begun == 0, "a side has begun {begun} times again");
        let row = Row::plain(
            "in containers: neighbour's messages lost, answered twice or handled twice",
            (counts.lost + counts.twice + of.wrong + executed) as f64,
            "messages",
        );
        Ok(row.at_most(0.0))
    }
}

fn send(clients: &Namespace, to: SocketAddr, message: &[u8]) -> Result<()> {
    let socket = clients.within(|| Ok(std::net::UdpSocket::bind("0.0.0.0:0")?))?;
    socket
        .send_to(message, to)
        .with_context(|| format!("cannot send to {to}"))?;
    Ok(())
}
