//! `inco top`: shows a running inco live in a terminal.
//!
//! 1. [`feed`] queries inco in a thread of its own and executes actions.
//! 2. [`Top`] is the state and the selection; keys and updates change it.
//! 3. [`view`] draws it. The last two use no clock, terminal or network, so that tests can compare their output.
#![forbid(unsafe_code)]

mod feed;
mod history;
#[cfg(test)]
mod snapshots;
mod state;
mod view;

use std::io::{self, IsTerminal as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::terminal::disable_raw_mode;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use api::Endpoint;
use display::output::{self, WrongUsage};
use feed::Feed;
use state::{KeyAction, Top};
use view::Theme;

/// Maximum delay of a key or an update.
const TURN: Duration = Duration::from_millis(50);
/// Time to restore the terminal before the process is ended: a few turns.
const LEAVE: Duration = Duration::from_millis(200);

/// Shows the inco that answers there until the user quits. Queries it every `interval`. With `ascii`, draws only
/// ASCII.
///
/// # Errors
/// Returns an error if there is no terminal.
pub fn run(endpoint: Endpoint, interval: Duration, ascii: bool) -> anyhow::Result<()> {
    if !output::is_terminal() {
        let hint = "inco top needs a terminal; use `inco instances --watch`, or `--json` in programs";
        return Err(WrongUsage(hint.to_owned()).into());
    }
    let ended = Arc::new(AtomicBool::new(false));
    watch(Arc::clone(&ended)).context("cannot listen for signals")?;
    let feed = Feed::start(endpoint, interval).context("cannot start the thread that polls inco")?;
    // Its panic hook restores the terminal before the message is shown.
    let terminal = ratatui::try_init().context("cannot set the terminal up")?;
    let shown = show(terminal, &feed, Theme::of(ascii), &ended);
    let restored = ratatui::try_restore().context("cannot restore the terminal; `reset` does");
    shown.and(restored)
}

/// Sets `ended` at a signal or when the terminal hangs up. Reading keys from a terminal that is gone, and drawing on
/// one that accepts no output, may block forever. The thread therefore ends the process after [`LEAVE`].
fn watch(ended: Arc<AtomicBool>) -> io::Result<()> {
    let (signals, noted) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        pipe::register(signal, noted.try_clone()?)?;
    }
    std::thread::Builder::new()
        .name("inco-top-end".to_owned())
        .spawn(move || {
            let (input, output) = (io::stdin(), io::stdout());
            let mut watched = vec![PollFd::new(&signals, PollFlags::IN)];
            // `poll` reports a hang-up without a requested event.
            if input.is_terminal() {
                watched.push(PollFd::new(&input, PollFlags::empty()));
            }
            watched.push(PollFd::new(&output, PollFlags::empty()));
            while poll(&mut watched, None) == Err(Errno::INTR) {}
            ended.store(true, Ordering::Relaxed);
            std::thread::sleep(LEAVE);
            // No call that could wait for the terminal.
            let _gone = disable_raw_mode();
            std::process::exit(0);
        })?;
    Ok(())
}

fn show(mut terminal: DefaultTerminal, feed: &Feed, theme: Theme, ended: &AtomicBool) -> anyhow::Result<()> {
    let mut top = Top::default();
    let mut is_stale = true;
    while !ended.load(Ordering::Relaxed) {
        while let Some(update) = feed.take() {
            top.update(update);
            is_stale = true;
        }
        if std::mem::take(&mut is_stale) {
            terminal.draw(|frame| view::draw(frame, &top, theme))?;
        }
        if !event::poll(TURN)? {
            continue;
        }
        is_stale = true;
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match top.key(key) {
                Some(KeyAction::Quit) => return Ok(()),
                Some(KeyAction::Act(action)) => feed.act(action),
                Some(KeyAction::LookAt(instance)) => feed.set_instance(instance),
                None => {}
            },
            // The next drawing reads the size.
            _ => {}
        }
    }
    Ok(())
}
