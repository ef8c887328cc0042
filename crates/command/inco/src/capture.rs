//! `inco capture`: packets of a running inco into a pcapng file.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use api::{CaptureEnder, CaptureQuery, CaptureTally, Client};
use display::output::{self, OutputClosed};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::CaptureArgs;
use crate::client_commands::connect;
use crate::target::Target;

/// What the arguments ask for.
fn query_of(args: &CaptureArgs) -> CaptureQuery {
    let mut query = CaptureQuery {
        packets: Some(args.packets),
        bytes: Some(args.bytes),
        seconds: Some(args.seconds),
        snaplen: Some(args.snaplen),
        ..CaptureQuery::default()
    };
    match args.target.as_deref() {
        Some(text) if text.contains('>') => query.flow = Some(text.to_owned()),
        Some(text) => {
            let target = Target::of(text);
            query.service = target.service.map(str::to_owned);
            query.instance = target.instance;
        }
        None => {}
    }
    if let Some(reason) = &args.drops {
        query.point = Some("dropped".to_owned());
        query.reason.clone_from(reason);
    } else if args.point != "all" {
        query.point = Some(args.point.clone());
    }
    query
}

pub(crate) fn run(args: &CaptureArgs) -> Result<()> {
    let client = connect(&args.connection)?;
    let query = query_of(args);
    let captured = if args.write == Path::new("-") {
        copy(&client, &query, || Ok(io::stdout().lock()))?
    } else {
        let name = args.write.display();
        let open = || File::create(&args.write).with_context(|| format!("cannot write {name}"));
        copy(&client, &query, open)?
    };
    output::complain(&captured.in_words());
    Ok(())
}

/// What was captured.
struct Captured {
    tally: CaptureTally,
    /// Whether a signal ended it.
    was_ended: bool,
}

impl Captured {
    fn in_words(&self) -> String {
        let CaptureTally {
            packets, left_out, ..
        } = &self.tally;
        let mut line = format!("{packets} packets captured");
        if *left_out > 0 {
            line.push_str(&format!(
                "; {left_out} left out, because they came faster than they were written"
            ));
        }
        match (self.tally.is_whole, self.was_ended) {
            (true, _) => {}
            (false, true) => line.push_str("; ended before inco told how many were left out"),
            (false, false) => line.push_str("; inco ended before the capture did"),
        }
        line
    }
}

/// Copies a capture, whole blocks at a time, until it ends or a signal comes: the file is always valid. It is made once
/// inco has not refused the capture.
fn copy<W: Write>(
    client: &Client,
    query: &CaptureQuery,
    open: impl FnOnce() -> Result<W>,
) -> Result<Captured> {
    let pieces = client.capture(query)?;
    let ender = pieces.ender();
    end_on_signals(ender.clone())?;
    let mut file = open()?;
    let mut tally = CaptureTally::default();
    for piece in pieces {
        let blocks = tally.take(&piece);
        match file.write_all(&blocks).and_then(|()| file.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(OutputClosed.into()),
            Err(error) => return Err(anyhow::Error::new(error).context("the capture cannot be written")),
        }
    }
    Ok(Captured {
        tally,
        was_ended: ender.has_ended(),
    })
}

/// Ends the capture at Ctrl-C, and when the program is to end.
fn end_on_signals(ender: CaptureEnder) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for signals")?;
    std::thread::Builder::new()
        .name("inco-signals".to_owned())
        .spawn(move || {
            if signals.forever().next().is_some() {
                ender.end();
            }
        })
        .context("cannot start the thread for signals")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use model::InstanceId;

    use super::*;
    use crate::cli::{Cli, Command};

    fn query(line: &str) -> CaptureQuery {
        let words = ["inco", "capture", "-w", "-"].into_iter();
        let cli = Cli::try_parse_from(words.chain(line.split('|').filter(|word| !word.is_empty())));
        match cli.unwrap().command {
            Command::Capture(args) => query_of(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_target_is_a_service_an_instance_or_a_flow() {
        assert_eq!(query("firewall").service.as_deref(), Some("firewall"));
        assert_eq!(query("3").instance, Some(InstanceId(3)));
        let both = query("firewall/3");
        assert_eq!(
            (both.service.as_deref(), both.instance),
            (Some("firewall"), Some(InstanceId(3)))
        );
        let flow = "udp 10.0.0.7:1024 > 10.128.0.1:9";
        let of_flow = query(flow);
        assert_eq!((of_flow.flow.as_deref(), of_flow.service), (Some(flow), None));
    }

    #[test]
    fn points_and_reasons_are_those_of_the_api() {
        assert_eq!(query("").point, None);
        assert_eq!(query("--point|before").point.as_deref(), Some("before"));
        let drops = query("--drops");
        assert_eq!((drops.point.as_deref(), drops.reason), (Some("dropped"), None));
        let drops = query("web|--drops|unmatched");
        assert_eq!(drops.reason.as_deref(), Some("unmatched"));
        assert_eq!(drops.service.as_deref(), Some("web"));
    }
}
