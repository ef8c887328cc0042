//! Exact rules like inco's, written by a second controller as fast as the switch accepts them.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use model::protocol;
use openflow::{
    Action, BundleControl, BundleStep, Event, Field, FieldKind, FlowCommand, FlowMod, Instruction, Limits,
    Match, Message,
};
use openvswitch::{Endpoint, Reconnecting, Turned};

/// Distinguishes them from inco's rules.
const COOKIE: u64 = 0xbe9c << 48;
/// The priority of inco's exact rules.
const PRIORITY: u16 = 300;
/// Ports of the switch: the uplink and the first instance.
const UPLINK: u32 = 1;
const INSTANCE: u32 = 16;
/// Bytes that may wait to be written: enough that the switch never waits for this process.
const WAITING: usize = 64 << 10;
const LIMIT: Duration = Duration::from_secs(120);
const SLEEP: Duration = Duration::from_micros(100);

/// Writes `count` rules, `together` per bundle and at most `per_second` per second, waits until the switch confirms
/// all, and removes them. Returns the accepted rules per second.
///
/// # Errors
/// Returns an error if the bridge does not listen, the connection ends, or a rule is refused.
pub(super) fn write(bridge: &Path, count: u32, together: u32, per_second: f64) -> Result<f64> {
    let mut writer = Writer {
        connection: Reconnecting::new(Endpoint::Unix(bridge.to_owned()), Limits::default()),
        turned: Vec::new(),
        began: Instant::now(),
        is_up: false,
        barriers: 0,
    };
    while !writer.is_up {
        writer.turn()?;
        std::thread::sleep(SLEEP);
    }
    let since = Instant::now();
    let mut written = 0;
    while written < count {
        let due = (since.elapsed().as_secs_f64() * per_second).min(f64::from(count)) as u32;
        while written < due && writer.has_room() {
            let end = written.saturating_add(together).min(count);
            writer.write(written..end)?;
            written = end;
        }
        writer.turn()?;
        // The switch needs the CPU more than this process does.
        if written >= due || !writer.has_room() {
            std::thread::sleep(SLEEP);
        }
    }
    writer.barrier()?;
    let rate = f64::from(count) / since.elapsed().as_secs_f64();
    writer.send(&Message::FlowMod(FlowMod {
        command: FlowCommand::Delete,
        cookie: COOKIE,
        cookie_mask: u64::MAX,
        ..FlowMod::default()
    }))?;
    writer.barrier()?;
    Ok(rate)
}

/// A rule for a flow without packets.
fn rule(number: u32) -> Message {
    Message::FlowMod(FlowMod {
        cookie: COOKIE,
        priority: PRIORITY,
        matches: Match::new([
            Field::in_port(UPLINK),
            Field::eth_type(0x0800),
            Field::no_vlan(),
            Field::ip_proto(protocol::UDP),
            // Addresses of the benchmarking network (RFC 2544).
            Field::source(Ipv4Addr::from(0xc612_0000 | number >> 16).into()),
            Field::destination(Ipv4Addr::new(198, 19, 0, 1).into()),
            Field::u16(FieldKind::UDP_SRC, number as u16),
            Field::u16(FieldKind::UDP_DST, 9),
        ]),
        instructions: vec![Instruction::ApplyActions(vec![Action::output(INSTANCE)])],
        ..FlowMod::default()
    })
}

struct Writer {
    connection: Reconnecting,
    turned: Vec<Turned>,
    began: Instant,
    is_up: bool,
    /// Barriers with a received reply.
    barriers: u32,
}

impl Writer {
    fn turn(&mut self) -> Result<()> {
        if self.began.elapsed() > LIMIT {
            bail!("Open vSwitch did not answer within {} s", LIMIT.as_secs());
        }
        self.connection
            .turn(self.began.elapsed().as_nanos() as u64, &mut self.turned);
        for turned in self.turned.drain(..) {
            match turned {
                Turned::Up(_) => self.is_up = true,
                Turned::Down(error) => return Err(error.into()),
                Turned::Said(Event::Message { message, .. }) => match message {
                    Message::BarrierReply => self.barriers += 1,
                    Message::Error(error) => bail!("Open vSwitch refuses a rule: {error:?}"),
                    _ => {}
                },
                Turned::Said(_) => {}
            }
        }
        Ok(())
    }

    /// Writes these rules, several in one bundle: Open vSwitch waits for its pollers after each change of rules.
    fn write(&mut self, mut rules: Range<u32>) -> Result<()> {
        if rules.len() == 1 {
            return rules.try_for_each(|number| self.send(&rule(number)));
        }
        // Only one bundle is open at a time, so all can use the same id.
        let (bundle, flags) = (1, BundleControl::ATOMIC);
        let step = |step| Message::BundleControl(BundleControl { bundle, step, flags });
        self.send(&step(BundleStep::Open))?;
        for number in rules {
            self.send(&Message::BundleAdd {
                bundle,
                flags,
                xid: 0,
                message: Box::new(rule(number)),
            })?;
        }
        self.send(&step(BundleStep::Commit))
    }

    fn has_room(&mut self) -> bool {
        let connection = self.connection.connection();
        connection.is_some_and(|connection| connection.waiting_bytes() < WAITING)
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        match self.connection.connection() {
            Some(connection) => connection.send(message).map(drop)?,
            None => bail!("the connection to Open vSwitch has ended"),
        }
        Ok(())
    }

    /// Waits until the switch has processed all previous messages.
    fn barrier(&mut self) -> Result<()> {
        let before = self.barriers;
        self.send(&Message::BarrierRequest)?;
        while self.barriers == before {
            self.turn()?;
            std::thread::sleep(SLEEP);
        }
        Ok(())
    }
}
