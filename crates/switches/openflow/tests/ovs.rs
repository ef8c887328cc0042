//! Checks the encoder with Open vSwitch's own tools: `ovs-ofctl ofp-print` decodes the messages.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::process::Command;

use openflow::{
    Action, BundleControl, BundleStep, ConnectionTracking, Field, FieldKind, FlowCommand, FlowFilter,
    FlowFlags, FlowMod, Instruction, Match, Message, MultipartRequest, PacketOut, Version, encode,
};

/// Open vSwitch's decoding of a message; [`None`] if its tools are not installed.
fn printed(version: Version, message: &Message) -> Option<String> {
    use std::fmt::Write as _;
    let mut bytes = Vec::new();
    encode(version, 1, message, &mut bytes).unwrap();
    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    });
    let Ok(output) = Command::new("ovs-ofctl").args(["ofp-print", &hex, "2"]).output() else {
        real_parts::available("ovs", Some("there is no ovs-ofctl".to_owned()));
        return None;
    };
    Some(String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
}

fn flow() -> FlowMod {
    FlowMod {
        cookie: 0x1234,
        priority: 100,
        idle_timeout_s: 30,
        flags: FlowFlags::SEND_REMOVED,
        matches: Match::new([
            Field::in_port(1),
            Field::eth_type(0x0800),
            Field::ip_proto(17),
            Field::source("10.0.0.7".parse().unwrap()).masked(&[255, 255, 255, 0]),
            Field::destination("10.128.0.1".parse().unwrap()),
            Field::u16(FieldKind::UDP_DST, 443),
            Field::u32(FieldKind::CT_MARK, 5),
        ]),
        instructions: vec![Instruction::ApplyActions(vec![
            Action::output(3),
            Action::PushVlan(0x8100),
            Action::SetField(Field::vlan(7)),
            Action::output(4),
        ])],
        ..FlowMod::default()
    }
}

#[test]
fn open_vswitch_decodes_rules() {
    for (version, name) in [(Version::V13, "OF1.3"), (Version::V15, "OF1.5")] {
        let Some(text) = printed(version, &Message::FlowMod(flow())) else {
            return;
        };
        for part in [
            "OFPT_FLOW_MOD",
            name,
            "ADD",
            "priority=100",
            "udp",
            "in_port=1",
            "nw_src=10.0.0.0/24",
            "nw_dst=10.128.0.1",
            "tp_dst=443",
            "ct_mark=0x5",
            "cookie:0x1234",
            "idle:30",
            "send_flow_rem",
            "actions=output:3,push_vlan:0x8100,set_field:4103->vlan_vid,output:4",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}

#[test]
fn open_vswitch_decodes_connection_tracking() {
    let commit = ConnectionTracking {
        commit: true,
        zone: 9,
        table: Some(2),
        actions: vec![Action::SetField(Field::u32(FieldKind::CT_MARK, 6))],
    };
    let flow = FlowMod {
        command: FlowCommand::ModifyStrict,
        matches: Match::new([Field::eth_type(0x0800)]),
        instructions: vec![Instruction::ApplyActions(vec![Action::ConnectionTracking(
            commit,
        )])],
        ..FlowMod::default()
    };
    let Some(text) = printed(Version::V13, &Message::FlowMod(flow)) else {
        return;
    };
    assert!(
        text.contains("ct(commit,table=2,zone=9,exec(set_field:0x6->ct_mark))"),
        "{text}"
    );
}

#[test]
fn open_vswitch_decodes_multipath() {
    let flow = FlowMod {
        instructions: vec![Instruction::ApplyActions(vec![Action::Multipath { highest: 6 }])],
        ..FlowMod::default()
    };
    let Some(text) = printed(Version::V13, &Message::FlowMod(flow)) else {
        return;
    };
    assert!(
        text.contains("multipath(symmetric_l3l4+udp,0,modulo_n,7,0,NXM_NX_REG0[])"),
        "{text}"
    );
}

#[test]
fn open_vswitch_decodes_the_other_messages() {
    let packet = PacketOut {
        in_port: openflow::port::CONTROLLER,
        actions: vec![Action::output(5)],
        data: vec![0xab; 64],
    };
    let add = Message::BundleAdd {
        bundle: 7,
        flags: BundleControl::ATOMIC,
        xid: 1,
        message: Box::new(Message::FlowMod(flow())),
    };
    let open = Message::BundleControl(BundleControl {
        bundle: 7,
        step: BundleStep::Open,
        flags: BundleControl::ATOMIC | BundleControl::ORDERED,
    });
    let of_port = FlowFilter {
        out_port: 3,
        cookie: 0x10,
        cookie_mask: 0xf0,
        ..FlowFilter::default()
    };
    let messages: [(Message, &[&str]); 9] = [
        (
            Message::PacketOut(packet),
            &[
                "OFPT_PACKET_OUT",
                "in_port=CONTROLLER",
                "actions=output:5",
                "data_len=64",
            ],
        ),
        (
            open,
            &[
                "BUNDLE_CONTROL",
                "bundle_id=0x7",
                "type=OPEN_REQUEST",
                "atomic ordered",
            ],
        ),
        (
            add,
            &[
                "BUNDLE_ADD_MESSAGE",
                "bundle_id=0x7",
                "OFPT_FLOW_MOD",
                "tp_dst=443",
            ],
        ),
        (
            Message::MultipartRequest(MultipartRequest::Flows(of_port.clone())),
            &["OFPST_FLOW request", "out_port=3"],
        ),
        (
            Message::MultipartRequest(MultipartRequest::Aggregate(of_port)),
            &["OFPST_AGGREGATE request"],
        ),
        (
            Message::MultipartRequest(MultipartRequest::Ports(openflow::port::ANY)),
            &["OFPST_PORT request", "port_no=ANY"],
        ),
        (
            Message::MultipartRequest(MultipartRequest::PortDescriptions),
            &["OFPST_PORT_DESC request"],
        ),
        (
            Message::Hello { versions: vec![4, 6] },
            &["OFPT_HELLO", "version bitmap: 0x04, 0x06"],
        ),
        (
            Message::RoleRequest {
                role: openflow::Role::Primary,
                generation: 2,
            },
            &["OFPT_ROLE_REQUEST", "generation_id=2"],
        ),
    ];
    for (message, parts) in messages {
        for version in Version::ALL {
            let Some(text) = printed(version, &message) else {
                return;
            };
            for part in parts {
                assert!(text.contains(part), "{part:?} is not in {text}");
            }
        }
    }
}
