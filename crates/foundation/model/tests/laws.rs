//! Laws of the model's types.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Direction, FlowKey, InstanceState, InstanceStep, Tuple};
use proptest::prelude::*;

fn tuple() -> impl Strategy<Value = Tuple> {
    let ends = prop_oneof![
        (any::<u32>(), any::<u32>())
            .prop_map(|(a, b)| (IpAddr::V4(Ipv4Addr::from(a)), IpAddr::V4(Ipv4Addr::from(b)))),
        (any::<u128>(), any::<u128>())
            .prop_map(|(a, b)| (IpAddr::V6(Ipv6Addr::from(a)), IpAddr::V6(Ipv6Addr::from(b)))),
    ];
    (ends, any::<u16>(), any::<u16>(), any::<u8>(), 0u16..4095).prop_map(
        |((src, dst), src_port, dst_port, protocol, vlan)| Tuple {
            src,
            dst,
            src_port,
            dst_port,
            protocol,
            vlan,
        },
    )
}

const STEPS: [InstanceStep; 9] = [
    InstanceStep::Started,
    InstanceStep::Ready,
    InstanceStep::Activate,
    InstanceStep::Drain,
    InstanceStep::Undrain,
    InstanceStep::Park,
    InstanceStep::Stop,
    InstanceStep::Fail,
    InstanceStep::Removed,
];

proptest! {
    #[test]
    fn both_directions_have_one_key(t in tuple()) {
        let back = Tuple { src: t.dst, dst: t.src, src_port: t.dst_port, dst_port: t.src_port, ..t };
        let (key, direction) = FlowKey::new(&t);
        let (key_back, direction_back) = FlowKey::new(&back);
        prop_assert_eq!(key, key_back);
        prop_assert_eq!(key.tuple(direction), t);
        prop_assert_eq!(key_back.tuple(direction_back), back);
        if (t.src, t.src_port) != (t.dst, t.dst_port) {
            prop_assert_ne!(direction, direction_back);
        }
    }

    #[test]
    fn an_instance_takes_no_flows_before_ready_or_after_failure(
        steps in prop::collection::vec(prop::sample::select(STEPS.to_vec()), 0..40)
    ) {
        let mut state = InstanceState::Creating;
        let (mut ready, mut ended) = (false, false);
        for step in steps {
            if let Ok(next) = state.step(step) {
                ready |= step == InstanceStep::Ready;
                ended |= matches!(next, InstanceState::Failed | InstanceState::Stopping);
                state = next;
            }
            prop_assert!(!state.takes_new_flows() || (ready && !ended));
            prop_assert!(!state.serves() || (ready && !ended));
        }
    }
}

#[test]
fn gone_is_final_and_every_other_state_can_fail() {
    for &(_, state) in InstanceState::WORDS {
        for step in STEPS {
            if state == InstanceState::Gone {
                assert!(state.step(step).is_err());
            } else if step == InstanceStep::Fail {
                assert_eq!(state.step(step), Ok(InstanceState::Failed));
            }
        }
    }
}

#[test]
fn packets_between_equal_endpoints_are_forward() {
    let end = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let t = Tuple {
        src: end,
        dst: end,
        src_port: 7,
        dst_port: 7,
        protocol: 17,
        vlan: 0,
    };
    assert_eq!(FlowKey::new(&t).1, Direction::Forward);
}
