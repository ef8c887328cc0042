//! Rules are written while flows go on.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Instant;

use model::{FlowSetup, Nanos};
use openflow::{Action, Field, FieldKind, FlowMod, Instruction, Match, Message};
use openflow_switch::RuleState;

use crate::ovs::{FIRST_INSTANCE, INSTANCES, WAN};
use crate::tracked::{Outcome, Tracked};
use crate::world::World;

#[test]
fn exact_rules_are_written_while_flows_go_on() {
    let Some(mut world) = World::start(FlowSetup::Proactive, 500) else {
        return;
    };
    // A table of its own, without packets: the test measures writing, not lookups.
    let pin = |number: u32| {
        Message::FlowMod(FlowMod {
            table: 7,
            priority: 300,
            matches: Match::new([
                Field::in_port(WAN),
                Field::eth_type(0x0800),
                Field::ip_proto(17),
                Field::source(Ipv4Addr::from(number >> 16).into()),
                Field::destination(Ipv4Addr::new(10, 128, 0, 1).into()),
                Field::u16(FieldKind::UDP_SRC, number as u16),
                Field::u16(FieldKind::UDP_DST, 80),
            ]),
            instructions: vec![Instruction::ApplyActions(vec![Action::output(FIRST_INSTANCE)])],
            ..FlowMod::default()
        })
    };
    world.flows_while_scaling(&[4], 20);
    let count = if real_parts::is_full_length() {
        100_000
    } else {
        5_000
    };
    let since = Instant::now();
    let mut written = 0;
    while written < count {
        let connection = world.connection.connection().unwrap();
        while written < count && connection.waiting_bytes() < 64 << 10 {
            connection.send(&pin(written)).unwrap();
            written += 1;
        }
        if world.packets.missing() < 10 {
            let frame = world.packets.next(written % 20, false);
            world.wan.send(&frame);
        }
        world.turn();
    }
    // A proof waits behind them.
    world.scale(3);
    world.until("buckets move", |world| world.steering.is_moving());
    world.until("buckets have moved", |world| !world.steering.is_moving());
    let rate = f64::from(count) / since.elapsed().as_secs_f64();
    let outcome = world.outcome();
    println!(
        "{count} rules, then buckets moved, in {:?}: {rate:.0} rules/s; {outcome:?}",
        since.elapsed()
    );
    assert_eq!(outcome, Outcome::default(), "{:?}", world.steering.figures());
}

impl World {
    /// Has these flows begin all at once: copies of their first packets come to us, as if each had met the rule of an
    /// instance.
    fn begin_together(&mut self, flows: std::ops::Range<u32>) {
        let now = Nanos(self.began.elapsed().as_nanos() as u64);
        let mut packets = Tracked::default();
        for flow in flows {
            let mut frame = packets.next(flow, false);
            // The tag of an instance is its slot and one more, with the uplink as its priority.
            frame.splice(
                12..12,
                [0x81, 0x00, 0x00, 1 + (flow % u32::from(INSTANCES)) as u8],
            );
            self.steering.monitor(&frame, now);
        }
    }

    fn installed(&self) -> usize {
        let flows = self.steering.flows();
        flows.filter(|flow| flow.state == RuleState::Installed).count()
    }

    /// How many rules the switch's first table has.
    fn rules(&self) -> usize {
        let output = Command::new("ovs-ofctl")
            .args(["-O", "OpenFlow15", "--no-stats", "dump-flows"])
            .arg(format!("unix:{}", self.ovs.of("br0.mgmt")))
            .arg("table=0")
            .output()
            .unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .matches("priority=")
            .count()
    }
}

#[test]
fn rules_that_wait_together_go_in_bundles_and_a_refused_one_goes_alone() {
    let Some(mut world) = World::start(FlowSetup::Proactive, 500) else {
        return;
    };
    let before = world.rules();
    let count = 4_000;
    let since = Instant::now();
    world.begin_together(0..count);
    world.until("all have rules", |world| world.installed() == count as usize);
    let rate = f64::from(count) / since.elapsed().as_secs_f64();
    let figures = world.steering.figures();
    println!(
        "{count} rules of flows in {} batches: {rate:.0} rules/s",
        figures.batches
    );
    assert_eq!(world.rules() - before, count as usize);
    assert!(figures.batches >= u64::from(count) / 256, "{figures:?}");
    assert_eq!(
        (figures.split_batches, figures.refused, figures.errors),
        (0, 0, 0)
    );

    // A table that has room for 60 of 100 more.
    let limited = Command::new("ovs-vsctl")
        .arg(format!("--db=unix:{}", world.ovs.of("db.sock")))
        .args(["--timeout=10", "--id=@table", "create", "Flow_Table"])
        .arg(format!("flow_limit={}", world.rules() + 60))
        .args(["--", "set", "Bridge", "br0", "flow_tables:0=@table"])
        .output()
        .unwrap();
    assert!(limited.status.success(), "{limited:?}");
    world.begin_together(count..count + 100);
    // The others are tried again, and refused again, all the time.
    world.until(
        "as many as there is room for, and the others are refused",
        |world| {
            let refused = RuleState::Refused { kind: 5, code: 1 };
            let others = world.steering.flows().filter(|flow| flow.state == refused);
            world.installed() == count as usize + 60 && others.count() == 40
        },
    );
    assert!(world.steering.figures().split_batches > 0);
    assert_eq!(world.rules() - before, count as usize + 60);
}
