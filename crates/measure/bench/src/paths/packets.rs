//! Packets of 64 bytes: the highest rates without loss and with a loss of 0.5 %, by the generator and MLRsearch.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rate_search::{Config, Counted, Goal, Search, Step, Trial};
use testbed::{CpuTime, Interrupt};
use traffic::{Control, Generator, Phase, Port, Profile, Rate, Report, Size, Span, Verify};

use super::bed::{Bed, FIRST_PORT};
use super::outcome::Figures;

/// Flows at a time.
pub(super) const FLOWS: u32 = 16;
/// Bytes of a packet on the wire.
pub(super) const SIZE: u16 = 64;
/// The rates between which the answer is searched.
const RATES: (u64, u64) = (2_000, 4_000_000);
/// A trial is this part of a turn.
const TRIALS_OF_A_TURN: u32 = 5;
/// The bounds of a rate are so far apart at most, as a share: the rounds differ by more.
const WIDTH: f64 = 0.08;
/// All trials together take so many turns at most.
const TURNS_LIMIT: u32 = 8;
/// How long packets may be on their way.
const SETTLE: Span = Span::from_millis(20);
/// The generator sends what is due at these intervals, and sleeps between: a packet waits for half of one on average.
const TICK: Span = Span(Duration::from_micros(200));
/// A trial that took this many times its duration counts by what came through in its duration.
const LATE: f64 = 1.05;
/// So many times the PDR is offered to see whether a path carries less where too much comes (receive livelock: Mogul and
/// Ramakrishnan, ACM TOCS 1997).
const OVERLOAD: u64 = 2;
/// The rate at which it is seen whether packets come through at all, for how long, and how often.
const PROBE: Trial = Trial {
    pps: 1_000,
    duration: Duration::from_millis(50),
};
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// What a trial showed beside its counts.
#[derive(Clone, Copy, Debug)]
struct Seen {
    p50_us: f64,
    p99_us: f64,
    cpu_s: f64,
    returned: u64,
}

/// A turn: a search.
pub(super) fn turn(bed: &Bed<'_>, interrupt: &Interrupt, seconds: u64) -> Result<Figures> {
    let mut ports = [bed.port()?];
    probe(bed, &mut ports, interrupt)?;
    let turn = Duration::from_secs(seconds);
    let length = turn / TRIALS_OF_A_TURN;
    let (min_pps, max_pps) = RATES;
    let mut search = Search::new(Config {
        goals: [Goal::ndr(length), Goal::pdr(length)]
            .map(|goal| Goal {
                relative_width: WIDTH,
                preceding_targets: 0,
                ..goal
            })
            .into(),
        min_pps,
        max_pps,
        duration_limit: turn * TURNS_LIMIT,
    })?;
    let mut seen = BTreeMap::new();
    let found = loop {
        interrupt.check()?;
        match search.step() {
            Step::Done(found) => break found,
            Step::Measure(next) => {
                let (report, cpu) = trial(bed, &mut ports, next)?;
                let of_trial = Seen {
                    p50_us: report.latency_us.p50,
                    p99_us: report.latency_us.p99,
                    cpu_s: cpu.busy_s,
                    returned: report.counts.returned_packets,
                };
                seen.insert(next.pps, of_trial);
                search.record(counted(&report, next))?;
            }
        }
    };
    let [ndr, pdr] = found.as_slice() else {
        anyhow::bail!("the search has {} results", found.len());
    };
    let at = pdr.lower_pps.context("even the lowest rate loses packets")?;
    let seen = seen.get(&at).context("the rate was not measured")?;
    let throughput = pdr.throughput_pps.unwrap_or_default();
    interrupt.check()?;
    let too_much = Trial {
        pps: OVERLOAD * at,
        duration: length,
    };
    let (report, _) = trial(bed, &mut ports, too_much)?;
    let gbit_of_packet = f64::from(SIZE) * 8.0 * 1e-9;
    let cpu_s_of_packet = seen.cpu_s / seen.returned.max(1) as f64;
    Ok(Figures {
        gbps: Some(throughput * gbit_of_packet),
        cpu_s_per_gbit: Some(cpu_s_of_packet / gbit_of_packet),
        cpu_ns_per_packet: Some(cpu_s_of_packet * 1e9),
        ndr_pps: ndr.throughput_pps,
        pdr_pps: Some(throughput),
        overload_pps: Some(counted(&report, too_much).forwarded as f64 / length.as_secs_f64()),
        p50_us: Some(seen.p50_us),
        p99_us: Some(seen.p99_us),
        ..Figures::default()
    })
}

/// Waits until packets come through.
pub(super) fn probe(bed: &Bed<'_>, ports: &mut [Box<dyn Port>], interrupt: &Interrupt) -> Result<()> {
    let since = Instant::now();
    while trial(bed, ports, PROBE)?.0.counts.returned_packets == 0 {
        interrupt.check()?;
        ensure!(since.elapsed() < PROBE_LIMIT, "no packet comes through");
    }
    Ok(())
}

/// From where to where packets go.
pub(super) fn ends(bed: &Bed<'_>) -> Result<[IpAddr; 2]> {
    let address = |text: &str| {
        text.parse::<IpAddr>()
            .with_context(|| format!("the address {text}"))
    };
    Ok([address(bed.source())?, address(bed.address())?])
}

/// Measures one rate.
fn trial(bed: &Bed<'_>, ports: &mut [Box<dyn Port>], trial: Trial) -> Result<(Report, CpuTime)> {
    let [src, dst] = ends(bed)?;
    let phase = Phase {
        duration: Span(trial.duration),
        flows: FLOWS,
        rate: Some(Rate(trial.pps as f64)),
        size: Size::Fixed(SIZE),
        src,
        dst,
        dst_port: FIRST_PORT,
        ..Phase::default()
    };
    run(ports, vec![phase])
}

/// Sends these packets, and says what came and what CPU time the machine took.
pub(super) fn run(ports: &mut [Box<dyn Port>], phases: Vec<Phase>) -> Result<(Report, CpuTime)> {
    // What a trial before left on its way.
    let mut buffer = vec![0; 65_536];
    for port in ports.iter_mut() {
        while port.receive(&mut buffer).is_some() {
            port.release();
        }
    }
    let profile = Profile {
        tick: TICK,
        settle: SETTLE,
        verify: Verify::Off,
        phases,
        ..Profile::default()
    };
    let generator = Generator::new(profile)?;
    let before = CpuTime::now()?;
    let report = generator.run(ports, &Control::new(), |_| {})?;
    Ok((report, CpuTime::now()? - before))
}

/// What a trial says of its rate. A generator that was late had a lower one: then as much counts as came through in the
/// time of the trial.
fn counted(report: &Report, trial: Trial) -> Counted {
    let share = trial.duration.as_secs_f64() / report.sending_s.max(1e-9);
    let returned = report.counts.returned_packets;
    let forwarded = match share * LATE < 1.0 {
        true => (returned as f64 * share) as u64,
        false => returned,
    };
    Counted {
        offered: report.counts.offered_packets,
        forwarded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_generator_has_a_lower_rate() {
        let trial = Trial {
            pps: 1_000,
            duration: Duration::from_secs(1),
        };
        let mut report = Report {
            sending_s: 1.02,
            ..Report::default()
        };
        report.counts.offered_packets = 1_000;
        report.counts.returned_packets = 1_000;
        assert!(counted(&report, trial).loss_ratio().abs() < 1e-9);
        report.sending_s = 2.0;
        assert!((counted(&report, trial).loss_ratio() - 0.5).abs() < 1e-9);
        report.counts.returned_packets = 0;
        assert!((counted(&report, trial).loss_ratio() - 1.0).abs() < 1e-9);
    }
}
