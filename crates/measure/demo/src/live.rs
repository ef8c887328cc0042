//! The live display of a run: a full screen on a terminal, otherwise one line per second.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

use model::{EventKind, InstanceState};

use super::loss::{drops_text, loss_text};
use super::measure::{Recording, Sample};
use display::event::event_sentence;
use display::table::{grouped, short};

/// Width in columns: fits a terminal of 80 columns.
const WIDTH: usize = 79;
/// Instances shown: eight, one standby, and one that starts or stops.
const INSTANCES_SHOWN: usize = 10;
/// Events shown.
const EVENTS_SHOWN: usize = 4;
/// Length of a bar, in characters.
const BAR: usize = 30;

/// The display.
pub(super) struct Live {
    /// Whether standard output is reserved for JSON. All other output then goes to standard error.
    json: bool,
    terminal: bool,
    /// Lines of the screen that is currently drawn.
    drawn: usize,
    last_line_s: f64,
    events: Vec<String>,
}

impl Live {
    pub(super) fn new(json: bool) -> Live {
        let terminal = if json {
            io::stderr().is_terminal()
        } else {
            io::stdout().is_terminal()
        };
        Live {
            json,
            terminal,
            drawn: 0,
            last_line_s: f64::NEG_INFINITY,
            events: Vec::new(),
        }
    }

    /// Prints text that stays visible.
    pub(super) fn print_line(&mut self, text: &str) {
        self.clear();
        self.write(&format!("{text}\n"));
    }

    /// Shows the current state of a run.
    pub(super) fn sample(&mut self, title: &str, sample: &Sample, seen: &Recording) {
        if self.terminal {
            self.note_events(sample, seen);
            let lines = lines_of(title, sample, &self.events);
            self.draw(&lines);
        } else if sample.at_s - self.last_line_s >= 1.0 || sample.at_s < self.last_line_s {
            self.last_line_s = sample.at_s;
            self.write(&format!("{}\n", line(sample)));
        }
    }

    /// Prints the one-line result of a finished run.
    pub(super) fn finish_run(&mut self, title: &str, recording: &Recording) {
        self.events.clear();
        self.last_line_s = f64::NEG_INFINITY;
        let counts = &recording.report.counts;
        self.print_line(&format!(
            "{title}: {} packets offered, {} returned; {}",
            grouped(counts.offered_packets),
            grouped(counts.returned_packets),
            loss_text(recording),
        ));
        for left in &recording.left {
            self.print_line(&format!("  left behind: {left}"));
        }
    }

    /// Clears the screen that was drawn.
    pub(super) fn clear(&mut self) {
        self.last_line_s = f64::NEG_INFINITY;
        if self.drawn > 0 {
            // Moves to the first line, clears everything below, and shows the cursor.
            let up = format!("\x1b[{}A\x1b[J\x1b[?25h", self.drawn);
            self.drawn = 0;
            self.write(&up);
        }
    }

    /// Restores the terminal.
    pub(super) fn end(&mut self) {
        self.clear();
    }

    fn note_events(&mut self, sample: &Sample, seen: &Recording) {
        for event in &sample.events {
            if let EventKind::State {
                to: InstanceState::Gone,
                ..
            } = event.kind
            {
                continue;
            }
            let at_s = event.at.0 as f64 / 1e9 - seen.began_s;
            self.events
                .push(format!("{at_s:6.1} s  {}", event_sentence(event)));
        }
        let old = self.events.len().saturating_sub(EVENTS_SHOWN);
        self.events.drain(..old);
    }

    fn draw(&mut self, lines: &[String]) {
        let mut text = String::from("\x1b[?25l");
        if self.drawn > 0 {
            let _ = write!(text, "\x1b[{}A", self.drawn);
        }
        for line in lines {
            let line: String = line.chars().take(WIDTH).collect();
            let _ = writeln!(text, "{line}\x1b[K");
        }
        // Clears the remaining lines of a longer previous screen.
        text.push_str("\x1b[J");
        self.drawn = lines.len();
        self.write(&text);
    }

    /// Writes to the terminal. Ignores errors: the demo continues without a reader and still writes its report.
    fn write(&self, text: &str) {
        let _ = match self.json {
            true => io::stderr().lock().write_all(text.as_bytes()),
            false => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
        };
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.clear();
    }
}

fn bar(value: f64, whole: f64) -> String {
    let share = if whole > 0.0 {
        (value / whole).clamp(0.0, 1.0)
    } else {
        0.0
    };
    let full = (share * BAR as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "·".repeat(BAR - full))
}

/// The screen for one sample, in at most 23 lines.
fn lines_of(title: &str, sample: &Sample, events: &[String]) -> Vec<String> {
    let whole = sample.offered_pps.max(sample.returned_pps).max(1.0);
    let mut lines = vec![
        format!(
            "inco demo · {title} · {:.1} s · {} flows",
            sample.at_s, sample.flows
        ),
        format!(
            "offered   {:>6}/s  {}",
            short(sample.offered_pps.round()),
            bar(sample.offered_pps, whole)
        ),
        format!(
            "returned  {:>6}/s  {}",
            short(sample.returned_pps.round()),
            bar(sample.returned_pps, whole)
        ),
        format!("lost      {}", drops_text(&sample.drops, sample.lost_at_uplink)),
        format!(
            "mis-steered {}, duplicated {}, reordered {}; latency p50 {:.1} ms, p99 {:.1} ms",
            sample.mis_steered,
            sample.duplicated,
            sample.reordered,
            sample.latency_us.p50 / 1e3,
            sample.latency_us.p99 / 1e3,
        ),
        format!(
            "instances: {} active, target {}, {} standby, {} starting, {} draining",
            sample.active, sample.wanted, sample.standby, sample.starting, sample.draining
        ),
        format!(
            "{:>5}  {:<9} {:>7}  {:<BAR$} {:>6} {:>5}",
            "ID", "STATE", "RATE", "", "FLOWS", "RING"
        ),
    ];
    let highest = sample.instances.iter().map(|i| i.back_pps).fold(1.0, f64::max);
    for instance in sample.instances.iter().take(INSTANCES_SHOWN) {
        lines.push(format!(
            "{:>5}  {:<9} {:>5}/s  {} {:>6} {:>4.0}%",
            instance.id.0,
            instance.state.name(),
            short(instance.back_pps.round()),
            bar(instance.back_pps, highest),
            instance.flows,
            100.0 * instance.ring_occupancy,
        ));
    }
    // A constant height keeps the screen from jumping.
    lines.resize(7 + INSTANCES_SHOWN, String::new());
    lines.push("events".to_owned());
    lines.extend(events.iter().map(|event| format!("  {event}")));
    lines.resize(8 + INSTANCES_SHOWN + EVENTS_SHOWN, String::new());
    lines
}

/// One sample as a line.
fn line(sample: &Sample) -> String {
    let flows: Vec<String> = sample
        .instances
        .iter()
        .filter(|i| matches!(i.state, InstanceState::Active | InstanceState::Draining))
        .map(|i| i.flows.to_string())
        .collect();
    format!(
        "{:6.1} s  {:>2} flows  offered {:>6}/s  returned {:>6}/s  lost {}  active {} of {}  flows per instance {}",
        sample.at_s,
        sample.flows,
        short(sample.offered_pps.round()),
        short(sample.returned_pps.round()),
        drops_text(&sample.drops, sample.lost_at_uplink),
        sample.active,
        sample.wanted,
        flows.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::super::measure::InstanceNow;
    use super::*;
    use model::InstanceId;

    fn sample(instances: u32) -> Sample {
        Sample {
            at_s: 12.3,
            flows: 12,
            offered_pps: 17_000.0,
            returned_pps: 8_500.0,
            active: instances,
            instances: (1..=instances)
                .map(|id| InstanceNow {
                    id: InstanceId(id),
                    state: InstanceState::Active,
                    back_pps: f64::from(id) * 100.0,
                    flows: u64::from(id),
                    ring_occupancy: 0.25,
                })
                .collect(),
            drops: [("instance_ring_full".to_owned(), 7)].into(),
            ..Sample::default()
        }
    }

    #[test]
    fn the_picture_fits_a_terminal_of_80_by_24() {
        for instances in [0, 3, 8, 30] {
            let events = vec!["x".repeat(200); EVENTS_SHOWN];
            let lines = lines_of("best-fit", &sample(instances), &events);
            assert_eq!(lines.len(), 22);
            let own = lines.iter().filter(|line| !line.contains("xxx"));
            for line in own {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
            assert!(lines[3].contains('7'), "{}", lines[3]);
        }
    }

    #[test]
    fn a_line_has_what_the_picture_has() {
        let line = line(&sample(3));
        for part in ["12.3 s", "12 flows", "17.0k/s", "8.50k/s", "active 3", "1 2 3"] {
            assert!(line.contains(part), "{line} lacks {part}");
        }
    }
}
