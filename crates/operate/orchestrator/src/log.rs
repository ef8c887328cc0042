//! The daemon's log: text or JSON lines on standard error. A rate limit per call site keeps frequent messages from
//! hiding others.

use std::collections::HashMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::json;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

/// Messages of one call site per [`WINDOW`]; further ones are counted.
const LIMIT: u32 = 20;
/// Long enough for a disk to keep up, short enough that a watcher sees that the program runs.
const WINDOW: Duration = Duration::from_secs(10);

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts the log, at level warning or as `INCO_LOG` says.
pub fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env("INCO_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    // Fails only if a log was already started.
    let _already = log(
        format,
        filter,
        std::io::stderr,
        std::io::stderr().is_terminal(),
        LIMIT,
        WINDOW,
    )
    .try_init();
}

fn log<W>(
    format: LogFormat,
    filter: EnvFilter,
    writer: W,
    colours: bool,
    limit: u32,
    window: Duration,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Clone + Send + Sync + 'static,
{
    let limited = RateLimit {
        format,
        writer: writer.clone(),
        limit,
        window,
        places: Mutex::default(),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(colours)
        .with_writer(writer);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    Box::new(
        tracing_subscriber::registry()
            .with(filter)
            .with(limited)
            .with(lines),
    )
}

/// Passes a limited number of messages per call site and window.
struct RateLimit<W> {
    format: LogFormat,
    writer: W,
    limit: u32,
    window: Duration,
    /// One entry per call site in the program.
    places: Mutex<HashMap<Identifier, Place>>,
}

struct Place {
    since: Instant,
    passed: u32,
    suppressed: u64,
}

impl<W> RateLimit<W> {
    /// Permits or drops a message of that call site. `Ok` has the number of messages dropped before it.
    fn take(&self, place: Identifier, now: Instant) -> Result<u64, ()> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(place).or_insert(Place {
            since: now,
            passed: 0,
            suppressed: 0,
        });
        let mut before = 0;
        if now.duration_since(place.since) >= self.window {
            before = std::mem::take(&mut place.suppressed);
            place.since = now;
            place.passed = 0;
        }
        if place.passed < self.limit {
            place.passed += 1;
            return Ok(before);
        }
        place.suppressed += 1;
        Err(())
    }
}

impl<W: for<'w> MakeWriter<'w>> RateLimit<W> {
    fn say(&self, suppressed: u64, about: &Metadata<'_>) {
        let words = format!("{suppressed} messages like the next one were suppressed");
        let line = match self.format {
            LogFormat::Text => format!("{:>5} {}: {words}", about.level(), about.target()),
            LogFormat::Json => json!({
                "level": about.level().as_str(),
                "target": about.target(),
                "message": words,
                "left_out": suppressed,
            })
            .to_string(),
        };
        let _nobody_reads = writeln!(self.writer.make_writer(), "{line}");
    }
}

impl<S, W> Layer<S> for RateLimit<W>
where
    S: Subscriber,
    W: for<'w> MakeWriter<'w> + 'static,
{
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let about = event.metadata();
        match self.take(about.callsite(), Instant::now()) {
            Ok(0) => true,
            Ok(suppressed) => {
                self.say(suppressed, about);
                true
            }
            Err(()) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    /// Keeps the log in memory.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'w> MakeWriter<'w> for Kept {
        type Writer = Kept;
        fn make_writer(&'w self) -> Kept {
            self.clone()
        }
    }

    fn logged(format: LogFormat, window: Duration, write: impl FnOnce()) -> Vec<String> {
        let kept = Kept::default();
        let log = log(format, EnvFilter::new("warn"), kept.clone(), false, 3, window);
        tracing::subscriber::with_default(log, write);
        let bytes = kept.0.lock().unwrap().clone();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    fn flood(messages: u32) {
        for number in 0..messages {
            tracing::warn!(number, "the engine does not answer");
        }
    }

    #[test]
    fn what_repeats_is_left_out_and_counted() {
        let lines = logged(LogFormat::Text, Duration::from_secs(3600), || {
            flood(10);
            tracing::error!("something else");
            tracing::info!("not asked for");
        });
        assert_eq!(lines.len(), 4, "{lines:#?}");
        assert!(
            lines[2].contains("number=2") && lines[3].contains("something else"),
            "{lines:#?}"
        );

        let lines = logged(LogFormat::Text, Duration::from_millis(20), || {
            let once_more = |messages| (0..messages).for_each(|_| tracing::warn!("again"));
            once_more(10);
            std::thread::sleep(Duration::from_millis(25));
            once_more(1);
        });
        assert!(
            lines
                .iter()
                .any(|line| line.contains("messages like the next one were suppressed")),
            "{lines:#?}"
        );
        assert!(lines.last().unwrap().contains("again"), "{lines:#?}");
    }

    #[test]
    fn json_is_an_object_in_each_line() {
        let lines = logged(LogFormat::Json, Duration::from_secs(3600), || flood(5));
        assert_eq!(lines.len(), 3, "{lines:#?}");
        let line: serde_json::Value = serde_json::from_str(&lines[1]).unwrap();
        assert_eq!(line["level"], "WARN");
        assert_eq!(line["message"], "the engine does not answer");
        assert_eq!(line["number"], 1);
    }
}
