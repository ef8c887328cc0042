//! The same traffic over each path between two containers that this machine has: TCP, requests, packets. Paths take
//! turns: in each round every path is set up, measured and removed, so that nothing of one runs while another is measured.
//! CPU time is that of the whole machine, since the kernel's work for packets is not charged to a container.

mod bed;
mod catalog;
mod findings;
mod mixes;
mod outcome;
mod packets;
mod page;
mod port;
mod requests;
mod tcp;
mod tiers;

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, bail};
use display::output::{self, Interrupted};
use display::table::Table;
use images::EngineName;
use testbed::{Environment, Interrupt, SwitchName};

use super::facts::facts;
use super::raw::Raw;
use crate::args::{PathName, PathScope, PathWork, PathsArgs};
use crate::function::ipsec::speed_up;
use bed::{Card, Ground};
use outcome::{Key, Missing, Outcome, Turn};

/// Characters of a line of a reason, at most.
const REASON_LIMIT: usize = 300;
/// Numbers of connections of `--many-streams`.
const MANY_STREAMS: [u32; 2] = [24, 32];

/// Runs the bench.
pub(super) fn run(args: &PathsArgs) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("network namespaces need root: run it with sudo");
    }
    let interrupt = Interrupt::listen()?;
    let environment = Environment::new(EngineName::Oci, SwitchName::Soft, false, interrupt.clone())?;
    let card = match args.device.as_slice() {
        [] => None,
        functions => Some(Card::new(functions, &args.representors, args.stand_in)?),
    };
    let mut known = facts(false);
    known.extend(card.as_ref().map(|card| ("card", card.about())));
    let ground = Ground::new(environment, interrupt.clone(), card)?;
    let mut bench = Bench::new(args, &ground, &interrupt, &known);
    for round in 1..=args.rounds {
        bench.round(round)?;
    }
    let outcome = bench.outcome;
    if outcome.turns.is_empty() {
        bail!("nothing could be measured: {}", outcome.reasons().join("; "));
    }
    let write = |file: &std::path::Path, text: String| {
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    if let Some(file) = &args.costs {
        write(file, outcome.costs()?)?;
    }
    let findings = findings::findings(&outcome, &encryption(args));
    if let Some(file) = &args.html {
        let page = page::html(&outcome, &findings, &known, args.rounds);
        write(file, page)?;
    }
    if args.json {
        return output::json(&outcome.json(), output::is_terminal());
    }
    for work in PathWork::ALL {
        if let Some(table) = outcome.table(work) {
            output::text(&table.text())?;
            output::line("")?;
        }
    }
    if let Some(table) = outcome.comparison_table() {
        output::text(&table.text())?;
        output::line("")?;
    }
    let mut table = Table::new(&["finding", "shape", "measured here"]);
    for of in &findings {
        table.row([of.id.to_owned(), of.shape.word().to_owned(), of.measured.clone()]);
    }
    output::text(&table.text())?;
    output::line("")?;
    let reasons = outcome.reasons();
    if !reasons.is_empty() {
        output::line("Not measured:")?;
        reasons
            .iter()
            .try_for_each(|reason| output::line(format!("  {reason}")))?;
    }
    output::line(format!(
        "{}Medians of {} rounds, with the least and the greatest. CPU time is that of the whole machine, with the programs that \
         send and receive. All turns: {}",
        if outcome.card_is_stand_in {
            "STAND-IN: no card was measured, but the virtual interfaces of --device in its place. "
        } else {
            ""
        },
        args.rounds,
        args.csv.display()
    ))
}

/// The first and the last line of what programs said, which can be long.
fn shortened(text: &str) -> String {
    let mut lines = text
        .lines()
        .map(|line| line.trim().chars().take(REASON_LIMIT).collect());
    let first: String = lines.next().unwrap_or_default();
    match lines.next_back() {
        Some(last) => format!("{first} {last}"),
        None => first,
    }
}

/// How many times as fast a packet is encrypted with the processor's instructions as without, or why that was not measured.
fn encryption(args: &PathsArgs) -> Result<f64, String> {
    let is_chosen = (args.path.is_empty() || args.path.contains(&PathName::Esp))
        && (args.work.is_empty() || args.work.contains(&PathWork::Packets));
    if !is_chosen {
        return Err("the path esp was left out".to_owned());
    }
    speed_up(args.rounds).map_err(|error| output::explain(&error))
}

/// A run.
struct Bench<'a> {
    args: &'a PathsArgs,
    ground: &'a Ground,
    interrupt: &'a Interrupt,
    paths: Vec<(PathName, PathScope)>,
    works: Vec<PathWork>,
    streams: BTreeSet<u32>,
    raw: Raw,
    outcome: Outcome,
}

impl<'a> Bench<'a> {
    fn new(
        args: &'a PathsArgs,
        ground: &'a Ground,
        interrupt: &'a Interrupt,
        facts: &[(&'static str, String)],
    ) -> Bench<'a> {
        let chosen = |path: &PathName| args.path.is_empty() || args.path.contains(path);
        let works = PathWork::ALL.into_iter();
        let works: Vec<PathWork> = works
            .filter(|work| args.work.is_empty() || args.work.contains(work))
            .collect();
        let mut streams: BTreeSet<u32> = args.streams.iter().copied().collect();
        if args.many_streams {
            streams.extend(MANY_STREAMS);
        }
        let mut bench = Bench {
            args,
            ground,
            interrupt,
            paths: Vec::new(),
            works,
            streams,
            raw: Raw::new(facts, &Turn::COLUMNS),
            outcome: Outcome {
                card_is_stand_in: ground.card().is_some_and(Card::is_stand_in),
                ..Outcome::default()
            },
        };
        for path in PathName::ALL.into_iter().filter(chosen) {
            for scope in PathScope::ALL {
                if args.scope.is_some_and(|only| only != scope) {
                    continue;
                }
                let lacks = match ground.card() {
                    None if path.is_of_card() => Some("`--device` names no functions of a card"),
                    None => None,
                    Some(card) => card.lacks(path),
                };
                if let Some(reason) = path.excludes(scope).or(lacks) {
                    bench.miss(path, scope, None, reason.to_owned());
                    continue;
                }
                for work in bench.works.clone() {
                    if let Some(reason) = path.refuses(work) {
                        bench.miss(path, scope, Some(work), reason.to_owned());
                    }
                }
                bench.paths.push((path, scope));
            }
        }
        bench
    }

    fn miss(&mut self, path: PathName, scope: PathScope, work: Option<PathWork>, reason: String) {
        let missing = Missing {
            path,
            scope,
            work,
            reason,
        };
        if !self.outcome.missing.contains(&missing) {
            self.outcome.missing.push(missing);
        }
    }

    /// Measures each path once.
    fn round(&mut self, round: u32) -> Result<()> {
        let count = self.paths.len();
        for place in 0..count {
            // Each round begins with another one.
            let turn = (place + round as usize - 1) % count.max(1);
            let Some((path, scope)) = self.paths.get(turn).copied() else {
                continue;
            };
            self.interrupt.check()?;
            if let Err(error) = self.measure(path, scope, round) {
                self.fail(path, scope, None, &error)?;
            }
        }
        Ok(())
    }

    /// Notes why something cannot be measured. An interruption ends the run.
    fn fail(
        &mut self,
        path: PathName,
        scope: PathScope,
        work: Option<PathWork>,
        error: &anyhow::Error,
    ) -> Result<()> {
        self.interrupt.check()?;
        if error.is::<Interrupted>() {
            return Err(Interrupted.into());
        }
        let whole = output::explain(error);
        let reason = shortened(&whole);
        let what = work.map_or(String::new(), |work| format!(", {}", work.name()));
        output::complain(&format!("{}, {}{what}: {whole}", path.name(), scope.name()));
        self.miss(path, scope, work, reason);
        Ok(())
    }

    fn measure(&mut self, path: PathName, scope: PathScope, round: u32) -> Result<()> {
        let works: Vec<PathWork> = self
            .works
            .iter()
            .copied()
            .filter(|work| path.refuses(*work).is_none())
            .collect();
        if works.is_empty() {
            return Ok(());
        }
        let mut bed = self.ground.start(path, scope)?;
        for work in works {
            let streams: Vec<u32> = match work {
                PathWork::Tcp => self.streams.iter().copied().collect(),
                PathWork::Requests | PathWork::Tiers => vec![requests::CONNECTIONS],
                PathWork::Packets => vec![packets::FLOWS],
                PathWork::MixLarge | PathWork::MixHalf | PathWork::MixSmall => vec![mixes::LARGE_FLOWS],
            };
            for streams in streams {
                self.interrupt.check()?;
                let seconds = self.args.duration;
                let figures = match work {
                    PathWork::Tcp => tcp::turn(&mut bed, self.ground, self.interrupt, streams, seconds),
                    PathWork::Requests => requests::turn(&bed, self.ground, seconds),
                    PathWork::Tiers => tiers::turn(&mut bed, self.ground, self.interrupt, seconds),
                    PathWork::Packets => packets::turn(&bed, self.interrupt, seconds),
                    PathWork::MixLarge | PathWork::MixHalf | PathWork::MixSmall => {
                        mixes::turn(&bed, self.interrupt, work, seconds)
                    }
                };
                let figures = match figures {
                    Ok(figures) => figures,
                    Err(error) => {
                        self.fail(path, scope, Some(work), &error)?;
                        continue;
                    }
                };
                let turn = Turn {
                    key: Key {
                        path,
                        scope,
                        work,
                        streams,
                    },
                    round,
                    figures,
                };
                output::complain(&turn.line());
                self.raw.row(&turn.cells());
                self.outcome.turns.push(turn);
            }
            self.raw.write(&self.args.csv)?;
        }
        bed.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_short_and_has_the_cause() {
        assert_eq!(
            shortened("it has ended:\n  more\n  it is no device"),
            "it has ended: it is no device"
        );
        assert_eq!(shortened("one line"), "one line");
        assert_eq!(shortened(&"x".repeat(5_000)).len(), REASON_LIMIT);
        assert_eq!(shortened(""), "");
    }
}
