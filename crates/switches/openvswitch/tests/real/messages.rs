//! Messages of both versions: rules, counters, packets, bundles.

use openflow::{
    Action, BundleControl, BundleStep, ErrorMessage, FlowCommand, FlowFilter, FlowMod, Message,
    MultipartReply, MultipartRequest, PacketOut, Role, Version,
};

use crate::bed::{Controller, PACKET, Switch, rule, until};

#[test]
fn rules_packets_and_counters_go_both_ways() {
    let Some(switch) = Switch::start() else { return };
    assert_eq!(switch.bridge(), [1, 2]);
    let mut controller = Controller::new(switch.endpoint("br0.mgmt"));
    controller.up();
    let own = rule(
        9,
        0x77,
        vec![Action::output(2), Action::output(openflow::port::CONTROLLER)],
    );
    controller.send(&Message::FlowMod(own.clone()));
    controller.barrier();
    let shown = switch.tool("ovs-ofctl", &["-O", "OpenFlow15", "dump-flows", "br0"]);
    assert!(
        shown.contains("priority=100,udp,in_port=p1,nw_src=10.0.0.7,nw_dst=10.128.0.1,tp_src=1000,tp_dst=9")
            || shown.contains(
                "priority=100,udp,in_port=1,nw_src=10.0.0.7,nw_dst=10.128.0.1,tp_src=1000,tp_dst=9"
            ),
        "{shown}"
    );
    switch.receive("p1", PACKET);
    let data = controller.message("the packet", |_, message| match message {
        Message::PacketIn(packet) if packet.in_port() == Some(1) && packet.cookie == 0x77 => {
            Some(packet.data.clone())
        }
        _ => None,
    });
    assert_eq!(data[..6], [2, 0, 0, 0, 0, 2]);
    until("it left by port 2", || controller.sent_by(2) == 1);
    // Datapath counters reach OpenFlow with the next revalidation.
    let all = || FlowFilter {
        cookie: 0x77,
        cookie_mask: u64::MAX,
        ..FlowFilter::default()
    };
    until("it is counted", || {
        let flows = controller.flows(all());
        assert_eq!(flows.len(), 1);
        assert_eq!((&flows[0].matches, flows[0].priority), (&own.matches, 100));
        assert_eq!(flows[0].instructions, own.instructions);
        flows[0].packets == 1
    });
    let packet = PacketOut {
        in_port: openflow::port::CONTROLLER,
        actions: vec![Action::output(2)],
        data,
    };
    controller.send(&Message::PacketOut(packet));
    until("ours left, too", || controller.sent_by(2) == 2);
    controller.send(&Message::FlowMod(FlowMod {
        command: FlowCommand::Delete,
        cookie: 0x77,
        cookie_mask: u64::MAX,
        table: openflow::ALL_TABLES,
        ..FlowMod::default()
    }));
    let removed = controller.message("its end", |_, message| match message {
        Message::FlowRemoved(removed) => Some((removed.cookie, removed.packets, removed.matches.clone())),
        _ => None,
    });
    assert_eq!(removed, (0x77, 1, own.matches));
}

/// Every message kind that this crate's controller sends or receives, in both versions.
#[test]
fn every_message_kind_works_in_both_versions() {
    let Some(switch) = Switch::start() else { return };
    switch.bridge();
    let database = format!("--db=unix:{}", switch.directory.path().join("db.sock").display());
    for (version, name) in [(Version::V13, "OpenFlow13"), (Version::V15, "OpenFlow15")] {
        let set = [&database, "set", "bridge", "br0", &format!("protocols={name}")];
        assert_eq!(switch.tool("ovs-vsctl", &set), "");
        // Hello, features, set-config.
        let mut controller = Controller::new(switch.endpoint("br0.mgmt"));
        controller.up();
        // The switch's own tool shows the version in use.
        let shown = switch.tool("ovs-ofctl", &["-O", name, "show", "br0"]);
        assert!(
            shown.contains("OFPT_FEATURES_REPLY") && shown.contains("p2"),
            "{version:?}: {shown}"
        );

        let asked = controller.send(&Message::EchoRequest(b"are you there".to_vec()));
        let other = controller.send(&Message::MultipartRequest(MultipartRequest::Description));
        // Replies come in order: an unanswered echo would have been an error before this.
        controller.message("who it is", |xid, message| match message {
            Message::MultipartReply {
                reply: MultipartReply::Description(of),
                ..
            } if xid == other && of.hardware.contains("Open vSwitch") => Some(()),
            _ => None,
        });
        assert!(asked < other);
        controller.send(&Message::RoleRequest {
            role: Role::Primary,
            generation: 7,
        });
        controller.message("the role", |_, message| match message {
            Message::RoleReply { role, .. } if *role == Role::Primary => Some(()),
            _ => None,
        });

        // A bundle with a rule; then a packet arrives, and another is sent.
        let flags = BundleControl::ATOMIC | BundleControl::ORDERED;
        let step = |step| {
            Message::BundleControl(BundleControl {
                bundle: 9,
                step,
                flags,
            })
        };
        let own = rule(
            9,
            0x99,
            vec![Action::output(2), Action::output(openflow::port::CONTROLLER)],
        );
        controller.send(&step(BundleStep::Open));
        controller.send(&Message::BundleAdd {
            bundle: 9,
            flags,
            xid: 0,
            message: Box::new(Message::FlowMod(own.clone())),
        });
        controller.send(&step(BundleStep::Commit));
        controller.message("the commit", |_, message| match message {
            Message::BundleControl(control) if control.step == BundleStep::CommitDone => Some(()),
            _ => None,
        });
        controller.barrier();
        let before = controller.sent_by(2);
        switch.receive("p1", PACKET);
        let data = controller.message("the packet", |_, message| match message {
            Message::PacketIn(packet) if packet.cookie == 0x99 => Some(packet.data.clone()),
            _ => None,
        });
        controller.send(&Message::PacketOut(PacketOut {
            in_port: openflow::port::CONTROLLER,
            actions: vec![Action::output(2)],
            data,
        }));
        until("both left by port 2", || controller.sent_by(2) == before + 2);

        // Statistics: of each flow, their sum, tables and ports.
        let filter = FlowFilter {
            cookie: 0x99,
            cookie_mask: u64::MAX,
            ..FlowFilter::default()
        };
        until("it is counted", || {
            controller.flows(filter.clone())[0].packets == 1
        });
        controller.send(&Message::MultipartRequest(MultipartRequest::Aggregate(filter)));
        controller.message("the sum", |_, message| match message {
            Message::MultipartReply {
                reply: MultipartReply::Aggregate(sum),
                ..
            } if (sum.flows, sum.packets) == (1, 1) => Some(()),
            _ => None,
        });
        controller.send(&Message::MultipartRequest(MultipartRequest::Tables));
        controller.message("tables", |_, message| match message {
            Message::MultipartReply {
                reply: MultipartReply::Tables(tables),
                ..
            } if tables.iter().map(|of| of.active).sum::<u32>() == 1 => Some(()),
            _ => None,
        });
        controller.send(&Message::MultipartRequest(MultipartRequest::PortDescriptions));
        controller.message("ports", |_, message| match message {
            Message::MultipartReply {
                reply: MultipartReply::PortDescriptions(ports),
                ..
            } if ports.iter().any(|port| port.name == "p2") => Some(()),
            _ => None,
        });

        // An error reports the problem, and the removal of the rule is reported.
        let bad = controller.send(&Message::FlowMod(FlowMod {
            table: openflow::ALL_TABLES,
            ..own.clone()
        }));
        let error = controller.error("the refusal");
        assert_eq!((error.0, error.1.kind), (bad, ErrorMessage::FLOW_MOD_FAILED));
        controller.send(&Message::FlowMod(FlowMod {
            command: FlowCommand::Delete,
            cookie: 0x99,
            cookie_mask: u64::MAX,
            table: openflow::ALL_TABLES,
            ..FlowMod::default()
        }));
        controller.message("its end", |_, message| match message {
            Message::FlowRemoved(removed) if (removed.cookie, removed.packets) == (0x99, 1) => Some(()),
            _ => None,
        });
    }
}

#[test]
fn a_bundle_is_atomic() {
    let Some(switch) = Switch::start() else { return };
    switch.bridge();
    let mut controller = Controller::new(switch.endpoint("br0.mgmt"));
    controller.up();
    let flags = BundleControl::ATOMIC | BundleControl::ORDERED;
    let step = |step| {
        Message::BundleControl(BundleControl {
            bundle: 5,
            step,
            flags,
        })
    };
    controller.send(&step(BundleStep::Open));
    for number in 0..500 {
        controller.send(&Message::BundleAdd {
            bundle: 5,
            flags,
            xid: 0,
            message: Box::new(Message::FlowMod(rule(
                number,
                number.into(),
                vec![Action::output(2)],
            ))),
        });
    }
    controller.barrier();
    assert_eq!(
        controller.flows(FlowFilter::default()),
        [],
        "nothing is done before"
    );
    controller.send(&step(BundleStep::Commit));
    controller.message("the commit", |_, message| match message {
        Message::BundleControl(control) if control.step == BundleStep::CommitDone => Some(()),
        _ => None,
    });
    let mut cookies: Vec<u64> = controller
        .flows(FlowFilter::default())
        .iter()
        .map(|flow| flow.cookie)
        .collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..500).collect::<Vec<_>>());
}
