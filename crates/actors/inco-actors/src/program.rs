//! The main thread: it hears inco, reports, and makes links to the switch.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use actor_control::{FromSide, InOfSide, Listener, Received, ToSide, VERSION, reason};
use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::network::Network;
use crate::side::{Declarations, Running, end};
use crate::{Make, Options, say};

/// How often the side reports, and looks for the switch.
const REPORTS: Duration = Duration::from_millis(10);
/// Messages of inco that are heard before something else is done.
const HEARD: usize = 64;

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(options: &Options, make: Make) -> Result<()> {
    let stop = stop_signal().context("cannot watch for signals")?;
    let network = Network::open(options)?;
    let listener = Listener::bind(&options.control)?;
    let mut program = Program {
        options,
        make,
        network,
        connection: None,
        declarations: None,
        side: None,
        channel: None,
    };
    loop {
        if wait(&stop, &listener, program.connection.as_ref())? {
            return Ok(());
        }
        program.turn(&listener)?;
    }
}

/// Becomes readable on a termination signal.
fn stop_signal() -> io::Result<UnixStream> {
    let (receiver, sender) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, sender.try_clone()?)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGINT, sender)?;
    Ok(receiver)
}

/// Sleeps until there is something to do; gives whether that is to end.
fn wait(stop: &UnixStream, listener: &Listener, connection: Option<&InOfSide>) -> Result<bool> {
    let mut all = vec![
        PollFd::new(stop, PollFlags::IN),
        PollFd::new(listener, PollFlags::IN),
    ];
    if let Some(connection) = connection {
        all.push(PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN));
    }
    let longest = Timespec {
        tv_sec: 0,
        tv_nsec: REPORTS.subsec_nanos().into(),
    };
    match poll(&mut all, Some(&longest)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!all[0].revents().is_empty()),
        Err(error) => Err(error).context("cannot wait"),
    }
}

struct Program<'o> {
    options: &'o Options,
    make: Make,
    network: Network,
    connection: Option<InOfSide>,
    declarations: Option<Declarations>,
    side: Option<Running>,
    /// The number of the channel that the side has, or that it begins with.
    channel: Option<u64>,
}

impl Program<'_> {
    fn turn(&mut self, listener: &Listener) -> Result<()> {
        // The newest run of inco is the one that counts.
        while let Some(connection) = listener.accept()? {
            self.meet(connection);
        }
        for _ in 0..HEARD {
            let Some(connection) = &mut self.connection else {
                break;
            };
            match connection.receive() {
                Received::Message(said, file) => self.hear(said, file)?,
                Received::Nothing => break,
                Received::Ended => self.connection = None,
                Received::Nonsense(error) => {
                    say(format_args!(
                        "inco says what this program does not understand: {error}"
                    ));
                    self.connection = None;
                }
            }
        }
        self.network.link()?;
        if let Some(side) = &mut self.side {
            side.turn(clock::monotonic());
            if let Some(connection) = &self.connection {
                side.report(&self.network, |report| {
                    connection.send(&report, None).unwrap_or(false)
                });
            }
        }
        Ok(())
    }

    fn meet(&mut self, connection: InOfSide) {
        let hello = FromSide::Hello {
            version: VERSION,
            side: self.options.side,
            has_begun: self.side.is_some(),
            channel: self.channel.filter(|_| self.side.is_some()),
        };
        self.declarations = None;
        if let Some(side) = &mut self.side {
            side.forget_told();
        }
        // One that has gone again shows at the next look.
        self.connection = connection.send(&hello, None).is_ok().then_some(connection);
    }

    /// Does what inco says.
    fn hear(&mut self, said: ToSide, file: Option<OwnedFd>) -> Result<()> {
        match (said, file) {
            (ToSide::Settings(settings), _) if self.side.is_none() => {
                self.declarations = Some(Declarations::new(settings));
                self.channel = None;
            }
            (ToSide::Actor { declaration, begin }, Some(region)) => {
                if let Some(declarations) = &mut self.declarations {
                    declarations.add(declaration, begin, region);
                }
            }
            (
                ToSide::Attach {
                    number,
                    latency_ns,
                    bytes_per_second,
                },
                Some(file),
            ) => {
                let end = end(&file, self.options.side, latency_ns, bytes_per_second)?;
                match (&self.side, &mut self.declarations) {
                    (Some(side), _) => side.attach(end)?,
                    (None, Some(declarations)) => declarations.attach(end),
                    (None, None) => {}
                }
                self.channel = Some(number);
            }
            (ToSide::Begin, _) => {
                if let Some(declarations) = self.declarations.take() {
                    let begun = declarations.begin(self.options.side, &self.network, self.make);
                    let answer = match begun {
                        Ok(side) => {
                            self.side = Some(side);
                            FromSide::Ready
                        }
                        Err(error) => FromSide::Refused {
                            reason: reason(format_args!("{error:#}")),
                        },
                    };
                    self.answer(&answer);
                }
            }
            (ToSide::Start, _) => {
                if let Some(side) = &mut self.side {
                    side.start()?;
                }
            }
            (ToSide::PeerEnded { records }, _) => {
                if let Some(side) = &self.side {
                    let heard = side.peer_ended(&records);
                    self.answer(&heard);
                }
            }
            (ToSide::Command { id, actor, what }, _) => {
                let done = match &self.side {
                    Some(side) => side.command(actor, what),
                    None => Err(anyhow::anyhow!("nothing has begun")),
                };
                let error = done.err().map(|error| reason(format_args!("{error:#}")));
                self.answer(&FromSide::Answer { id, error });
            }
            (ToSide::Settings(_) | ToSide::Actor { .. } | ToSide::Attach { .. }, _) => {
                say("inco begins a side that has begun");
                self.connection = None;
            }
        }
        Ok(())
    }

    /// Says something that inco waits for. An inco that reads nothing any more is as good as gone.
    fn answer(&mut self, said: &FromSide) {
        if let Some(connection) = &self.connection
            && !connection.send(said, None).unwrap_or(false)
        {
            self.connection = None;
        }
    }
}
