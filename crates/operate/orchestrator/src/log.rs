//! What the daemon logs: to standard error, as text or JSON lines, and no message so often that it hides the others.

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

/// Messages of one place in the program within [`WINDOW`]; further ones are counted.
const LIMIT: u32 = 20;
/// Long enough that a disk keeps up, short enough that a person who watches sees that it goes on.
const WINDOW: Duration = Duration::from_secs(10);

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object in each line.
    Json,
}

/// Starts the log: warnings and errors, or what `INCO_LOG` says.
pub(crate) fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env("INCO_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    // Fails only where there is a log already.
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

/// Lets so many messages of each place pass in each window of time.
struct RateLimit<W> {
    format: LogFormat,
    writer: W,
    limit: u32,
    window: Duration,
    /// There are as many as the program has places that log.
    places: Mutex<HashMap<Identifier, Place>>,
}

struct Place {
    since: Instant,
    passed: u32,
    left_out: u64,
}

impl<W> RateLimit<W> {
    /// Whether a message of that place may pass; with how many were left out before it.
    fn take(&self, place: Identifier, now: Instant) -> Result<u64, ()> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(place).or_insert(Place {
            since: now,
            passed: 0,
            left_out: 0,
        });
        let mut before = 0;
        if now.duration_since(place.since) >= self.window {
            before = std::mem::take(&mut place.left_out);
            place.since = now;
            place.passed = 0;
        }
        if place.passed < self.limit {
            place.passed += 1;
            return Ok(before);
        }
        place.left_out += 1;
        Err(())
    }
}

impl<W: for<'w> MakeWriter<'w>> RateLimit<W> {
    fn say(&self, left_out: u64, about: &Metadata<'_>) {
        let words = format!("{left_out} messages like the next one were left out");
        let line = match self.format {
            LogFormat::Text => format!("{:>5} {}: {words}", about.level(), about.target()),
            LogFormat::Json => json!({
                "level": about.level().as_str(),
                "target": about.target(),
                "message": words,
                "left_out": left_out,
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
            Ok(left_out) => {
                self.say(left_out, about);
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

    /// A log that is kept.
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
                .any(|line| line.contains("messages like the next one were left out")),
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
