//! Every message survives encoding and decoding in both versions; hostile bytes end in an error.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use openflow::{
    Action, Aggregate, BundleControl, BundleStep, ConnectionTracking, ErrorMessage, Features, Field,
    FieldKind, FlowCommand, FlowFilter, FlowFlags, FlowMod, FlowRemoved, FlowRemovedReason, FlowStats,
    Instruction, Match, Message, MultipartReply, MultipartRequest, PacketIn, PacketInReason, PacketOut,
    PortDescription, PortReason, PortStats, Role, SwitchDescription, TableStats, Version, decode, encode,
    frame_length,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn field() -> impl Strategy<Value = Field> {
    prop_oneof![
        any::<u32>().prop_map(Field::in_port),
        any::<u16>().prop_map(Field::eth_type),
        any::<u16>().prop_map(Field::vlan),
        Just(Field::no_vlan()),
        any::<u8>().prop_map(Field::ip_proto),
        any::<[u8; 4]>().prop_map(|a| Field::source(std::net::Ipv4Addr::from(a).into())),
        any::<[u8; 16]>().prop_map(|a| Field::destination(std::net::Ipv6Addr::from(a).into())),
        any::<u16>().prop_map(|p| Field::u16(FieldKind::UDP_DST, p)),
        any::<u32>().prop_map(|m| Field::u32(FieldKind::CT_MARK, m)),
        (any::<[u8; 4]>(), any::<[u8; 4]>())
            .prop_map(|(a, m)| Field::source(std::net::Ipv4Addr::from(a).into()).masked(&m)),
        any::<([u8; 6], [u8; 6])>().prop_map(|(a, m)| Field::new(FieldKind::ETH_SRC, &a).masked(&m)),
    ]
}

fn matches() -> impl Strategy<Value = Match> {
    vec(field(), 0..8).prop_map(Match::new)
}

fn action() -> impl Strategy<Value = Action> {
    let plain = prop_oneof![
        (any::<u32>(), any::<u16>()).prop_map(|(port, max_bytes)| Action::Output { port, max_bytes }),
        any::<u32>().prop_map(Action::Group),
        field().prop_map(Action::SetField),
        any::<u16>().prop_map(Action::PushVlan),
        Just(Action::PopVlan),
        any::<u16>().prop_map(|highest| Action::Multipath { highest }),
        vec(any::<u8>(), 4..=4).prop_map(|body| Action::Other { kind: 77, body }),
    ];
    let tracking = (
        any::<bool>(),
        any::<u16>(),
        proptest::option::of(0..0xff_u8),
        field(),
    )
        .prop_map(|(commit, zone, table, field)| {
            Action::ConnectionTracking(ConnectionTracking {
                commit,
                zone,
                table,
                actions: vec![Action::SetField(field)],
            })
        });
    prop_oneof![4 => plain, 1 => tracking]
}

fn instruction() -> impl Strategy<Value = Instruction> {
    prop_oneof![
        any::<u8>().prop_map(Instruction::GotoTable),
        vec(action(), 0..5).prop_map(Instruction::ApplyActions),
        vec(action(), 0..5).prop_map(Instruction::WriteActions),
        Just(Instruction::ClearActions),
        vec(any::<u8>(), 12..=12).prop_map(|body| Instruction::Other { kind: 99, body }),
    ]
}

fn flow_mod() -> impl Strategy<Value = FlowMod> {
    let command = prop_oneof![
        Just(FlowCommand::Add),
        Just(FlowCommand::Modify),
        Just(FlowCommand::ModifyStrict),
        Just(FlowCommand::Delete),
        Just(FlowCommand::DeleteStrict)
    ];
    (
        command,
        any::<(u64, u64, u8, u16, u16, u16, u32, u16)>(),
        matches(),
        vec(instruction(), 0..4),
    )
        .prop_map(
            |(
                command,
                (cookie, cookie_mask, table, priority, idle, hard, out_port, flags),
                matches,
                instructions,
            )| FlowMod {
                command,
                cookie,
                cookie_mask,
                table,
                priority,
                idle_timeout_s: idle,
                hard_timeout_s: hard,
                out_port,
                flags: FlowFlags(flags),
                importance: 0,
                matches,
                instructions,
            },
        )
}

fn flow_stats() -> impl Strategy<Value = FlowStats> {
    (
        any::<(u8, u32, u16, u16, u16, u16, u64, u64, u64)>(),
        matches(),
        vec(instruction(), 0..3),
    )
        .prop_map(
            |(
                (table, duration, priority, idle, hard, flags, cookie, packets, bytes),
                matches,
                instructions,
            )| FlowStats {
                table,
                duration_ns: u64::from(duration) * 7,
                priority,
                idle_timeout_s: idle,
                hard_timeout_s: hard,
                flags,
                importance: 0,
                cookie,
                packets,
                bytes,
                matches,
                instructions,
            },
        )
}

fn port_description() -> impl Strategy<Value = PortDescription> {
    (
        any::<u32>(),
        any::<[u8; 6]>(),
        "[a-z0-9]{0,15}",
        any::<(u32, u32)>(),
    )
        .prop_map(|(port, address, name, (config, state))| PortDescription {
            port,
            address,
            name,
            config,
            state,
        })
}

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..most)
}

fn multipart_reply() -> impl Strategy<Value = MultipartReply> {
    prop_oneof![
        ("[ -~]{0,40}", "[ -~]{0,31}").prop_map(|(text, serial)| {
            MultipartReply::Description(Box::new(SwitchDescription {
                manufacturer: text.clone(),
                hardware: text.clone(),
                software: text.clone(),
                serial,
                datapath: text,
            }))
        }),
        vec(flow_stats(), 0..6).prop_map(MultipartReply::Flows),
        any::<(u64, u64, u32)>().prop_map(|(packets, bytes, flows)| {
            MultipartReply::Aggregate(Aggregate {
                packets,
                bytes,
                flows,
            })
        }),
        vec(any::<(u8, u32, u64, u64)>(), 0..9).prop_map(|tables| {
            let table = |(table, active, lookups, matched)| TableStats {
                table,
                active,
                lookups,
                matched,
            };
            MultipartReply::Tables(tables.into_iter().map(table).collect())
        }),
        vec(any::<(u32, [u64; 8], u32)>(), 0..5).prop_map(|ports| {
            let stats = |(port, c, duration): (u32, [u64; 8], u32)| PortStats {
                port,
                received_packets: c[0],
                sent_packets: c[1],
                received_bytes: c[2],
                sent_bytes: c[3],
                received_dropped: c[4],
                sent_dropped: c[5],
                received_errors: c[6],
                sent_errors: c[7],
                duration_ns: u64::from(duration) * 11,
            };
            MultipartReply::Ports(ports.into_iter().map(stats).collect())
        }),
        vec(port_description(), 0..5).prop_map(MultipartReply::PortDescriptions),
        bytes(40).prop_map(|body| MultipartReply::Other { kind: 0x55, body }),
    ]
}

fn request() -> impl Strategy<Value = MultipartRequest> {
    let filter = || {
        (any::<(u8, u32, u64, u64)>(), matches()).prop_map(
            |((table, out_port, cookie, cookie_mask), matches)| FlowFilter {
                table,
                out_port,
                cookie,
                cookie_mask,
                matches,
            },
        )
    };
    prop_oneof![
        Just(MultipartRequest::Description),
        filter().prop_map(MultipartRequest::Flows),
        filter().prop_map(MultipartRequest::Aggregate),
        Just(MultipartRequest::Tables),
        any::<u32>().prop_map(MultipartRequest::Ports),
        Just(MultipartRequest::PortDescriptions),
    ]
}

fn plain() -> impl Strategy<Value = Message> {
    let role = || {
        prop_oneof![
            Just(Role::NoChange),
            Just(Role::Equal),
            Just(Role::Primary),
            Just(Role::Secondary)
        ]
    };
    prop_oneof![
        vec(0..32_u8, 1..5).prop_map(|mut versions| {
            versions.sort_unstable();
            versions.dedup();
            Message::Hello { versions }
        }),
        (any::<(u16, u16)>(), bytes(80)).prop_map(|((kind, code), data)| Message::Error(ErrorMessage {
            kind,
            code,
            data
        })),
        bytes(20).prop_map(Message::EchoRequest),
        bytes(20).prop_map(Message::EchoReply),
        Just(Message::FeaturesRequest),
        any::<(u64, u32, u8, u8, u32)>().prop_map(|(datapath, buffers, tables, auxiliary, capabilities)| {
            Message::FeaturesReply(Features {
                datapath,
                buffers,
                tables,
                auxiliary,
                capabilities,
            })
        }),
        any::<(u16, u16)>().prop_map(|(flags, miss_send_bytes)| Message::SetConfig {
            flags,
            miss_send_bytes
        }),
        (any::<(u16, u8, u64)>(), matches(), bytes(100)).prop_map(
            |((total_bytes, table, cookie), context, data)| {
                Message::PacketIn(PacketIn {
                    total_bytes,
                    reason: PacketInReason::Action,
                    table,
                    cookie,
                    context,
                    data,
                })
            }
        ),
        (any::<(u64, u16, u8, u32, u16, u16, u64, u64)>(), matches()).prop_map(
            |((cookie, priority, table, duration, idle, hard, packets, bytes), matches)| {
                Message::FlowRemoved(FlowRemoved {
                    cookie,
                    priority,
                    reason: FlowRemovedReason::Idle,
                    table,
                    duration_ns: u64::from(duration) * 3,
                    idle_timeout_s: idle,
                    hard_timeout_s: hard,
                    packets,
                    bytes,
                    matches,
                })
            }
        ),
        port_description().prop_map(|port| Message::PortStatus {
            reason: PortReason::Modified,
            port
        }),
        (any::<u32>(), vec(action(), 0..4), bytes(100)).prop_map(|(in_port, actions, data)| {
            Message::PacketOut(PacketOut {
                in_port,
                actions,
                data,
            })
        }),
        flow_mod().prop_map(Message::FlowMod),
        request().prop_map(Message::MultipartRequest),
        (any::<bool>(), multipart_reply()).prop_map(|(more, reply)| Message::MultipartReply { more, reply }),
        Just(Message::BarrierRequest),
        Just(Message::BarrierReply),
        (role(), any::<u64>()).prop_map(|(role, generation)| Message::RoleRequest { role, generation }),
        (role(), any::<u64>()).prop_map(|(role, generation)| Message::RoleReply { role, generation }),
        any::<(u32, u16)>().prop_map(|(bundle, flags)| Message::BundleControl(BundleControl {
            bundle,
            step: BundleStep::CommitDone,
            flags
        })),
        bytes(30).prop_map(|body| Message::Other { kind: 200, body }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let in_bundle =
        (any::<(u32, u16, u32)>(), flow_mod()).prop_map(|((bundle, flags, xid), flow)| Message::BundleAdd {
            bundle,
            flags,
            xid,
            message: Box::new(Message::FlowMod(flow)),
        });
    prop_oneof![20 => plain(), 2 => in_bundle]
}

fn encoded(version: Version, xid: u32, message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    encode(version, xid, message, &mut out).unwrap();
    out
}

proptest! {
    #[test]
    fn messages_survive_the_round_trip(xid in any::<u32>(), message in message()) {
        for version in Version::ALL {
            let bytes = encoded(version, xid, &message);
            prop_assert_eq!(frame_length(&bytes), Ok(Some(bytes.len())));
            prop_assert_eq!(decode(version, &bytes), Ok((xid, message.clone())));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(kind in 0..40_u8, body in vec(any::<u8>(), 0..300)) {
        for version in Version::ALL {
            let mut bytes = vec![version.number(), kind, 0, 0, 0, 0, 0, 1];
            bytes.extend(&body);
            let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
            bytes[2..4].copy_from_slice(&length);
            let _any = decode(version, &bytes);
        }
    }

    #[test]
    fn damaged_messages_never_panic(message in message(), at in any::<prop::sample::Index>(), to in any::<u8>(), cut in any::<prop::sample::Index>()) {
        for version in Version::ALL {
            let mut bytes = encoded(version, 1, &message);
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _any = decode(version, &bytes);
            let cut = cut.index(bytes.len());
            let _any = decode(version, &bytes[..cut]);
        }
    }
}

#[test]
fn a_message_over_64_kib_is_rejected() {
    let packet = PacketOut {
        in_port: openflow::port::CONTROLLER,
        actions: vec![Action::output(1)],
        data: vec![0; 65_535],
    };
    let mut out = vec![7];
    assert!(encode(Version::V13, 1, &Message::PacketOut(packet), &mut out).is_err());
    assert_eq!(out, [7], "nothing was added");
}

#[test]
fn a_nested_bundle_is_rejected() {
    let inner = Message::BundleAdd {
        bundle: 1,
        flags: 0,
        xid: 1,
        message: Box::new(Message::BarrierRequest),
    };
    let outer = Message::BundleAdd {
        bundle: 1,
        flags: 0,
        xid: 1,
        message: Box::new(inner),
    };
    for version in Version::ALL {
        assert!(decode(version, &encoded(version, 1, &outer)).is_err());
    }
}
