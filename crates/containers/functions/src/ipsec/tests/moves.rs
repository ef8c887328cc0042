//! Associations that move between instances of one gateway, beside a gateway that never moves them.

use model::key_bits;
use packet::association_key;
use state_moves::STATE_BYTES_LIMIT;

use super::*;

const NOW: Nanos = Nanos::from_secs(1);

/// The flow of an association, as a switch names it.
fn flow(spi: u32, to: &str) -> Tuple {
    let (key, direction) = association_key(spi, to.parse().unwrap());
    key.tuple(direction)
}

/// That of packets that leave the gateway of side 1, and of those that come to it.
fn flows(tunnel: Tunnel) -> [Tuple; 2] {
    let address = |side: u8| match tunnel.is_v6 {
        true => format!("2001:db8::{side}"),
        false => format!("192.0.2.{side}"),
    };
    [flow(1001, &address(2)), flow(1002, &address(1))]
}

fn exported(of: &Ipsec, flow: &Tuple) -> Result<Vec<u8>, NotMoved> {
    let mut room = [0; STATE_BYTES_LIMIT];
    Function::export(of, flow, &mut room, NOW).map(|length| room[..length].to_vec())
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The gateway protects a packet.
    Leaves,
    /// The peer protects a packet, which comes later.
    Made,
    /// One of the last so many packets of the peer comes, perhaps again.
    Comes(u8),
    /// An association moves: that of what leaves, or of what comes.
    Moves(bool),
    /// It is imported elsewhere, and goes on where it was.
    Cancelled(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Leaves),
        4 => Just(Step::Made),
        8 => (0..150_u8).prop_map(Step::Comes),
        1 => any::<bool>().prop_map(Step::Moves),
        1 => any::<bool>().prop_map(Step::Cancelled),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Three instances, each association at one of them. The peer takes each packet that leaves, in order and once, so no
    /// number comes twice. Each packet that comes has the verdict of a gateway that never moves: none is taken twice, also
    /// not below a window, and none that is new is refused.
    #[test]
    fn numbers_and_windows_go_on_where_they_were(tunnel in tunnels(), steps in steps()) {
        let config = text(tunnel, 1, "");
        let mut instances: Vec<Ipsec> = (10..13).map(|seed| make(&config, seed)).collect();
        let mut alone = make(&config, 20);
        let mut peer = gateway(tunnel, 2);
        // Of what leaves, and of what comes.
        let mut at = [0, 1];
        let mut made: Vec<Vec<u8>> = Vec::new();
        let mut left = 0_u64;
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Leaves => {
                    let clear = inner(&(number as u32).to_be_bytes());
                    let wire = forwarded(&mut instances[at[0]], &clear);
                    let (verdict, open) = one(&mut peer, &wire);
                    prop_assert_eq!(verdict, Verdict::Forward(1), "{}", why(verdict));
                    prop_assert_eq!(open, clear);
                    left += 1;
                    prop_assert_eq!(instances[at[0]].configuration.outbound[0].sequence, left);
                }
                Step::Made => {
                    let clear = udp("10.2.0.6", "10.1.0.5", &(number as u32).to_be_bytes());
                    made.push(forwarded(&mut peer, &clear));
                }
                Step::Comes(back) => {
                    let Some(place) = made.len().checked_sub(1 + usize::from(back)) else { continue };
                    let expected = one(&mut alone, &made[place]);
                    let got = one(&mut instances[at[1]], &made[place]);
                    prop_assert_eq!(&got.0, &expected.0, "{} and not {}", why(got.0), why(expected.0));
                    prop_assert_eq!(&got.1, &expected.1);
                }
                Step::Moves(comes) | Step::Cancelled(comes) => {
                    let which = usize::from(comes);
                    let flow = flows(tunnel)[which];
                    let (from, to) = (at[which], (at[which] + 1 + number % 2) % 3);
                    let state = exported(&instances[from], &flow).unwrap();
                    prop_assert!(!state.is_empty());
                    prop_assert_eq!(Function::import(&mut instances[to], &flow, &state, NOW), Ok(()));
                    let forgets = if matches!(step, Step::Moves(_)) {
                        at[which] = to;
                        from
                    } else {
                        to
                    };
                    instances[forgets].forget(&flow, NOW);
                }
            }
        }
    }

    /// What another instance says of an association reaches no other one, and takes no number back.
    #[test]
    fn foreign_bytes_change_no_other_association(
        bytes in prop::collection::vec(any::<u8>(), 0..400), sequence: u64, cut in any::<prop::sample::Index>(),
    ) {
        let mut here = gateway(PLAIN, 1);
        for _ in 0..5 {
            forwarded(&mut here, &inner(b"packet"));
        }
        let [leaves, comes] = flows(PLAIN);
        let before = exported(&here, &comes).unwrap();
        let mut state = exported(&here, &leaves).unwrap();
        let known = state.clone();
        let at = state.len() - 8;
        state[at..].copy_from_slice(&sequence.to_be_bytes());
        prop_assert_eq!(Function::import(&mut here, &leaves, &state, NOW), Ok(()));
        prop_assert!(here.configuration.outbound[0].sequence >= 5);
        prop_assert_eq!(Function::import(&mut here, &leaves, &bytes, NOW), Err(NotMoved::Malformed));
        let cut = cut.index(known.len() - 1) + 1;
        if cut != 4 {
            let cut = Function::import(&mut here, &leaves, &known[..cut], NOW);
            prop_assert_eq!(cut, Err(NotMoved::Malformed));
        }
        // The state of the one is none of the other.
        prop_assert_eq!(Function::import(&mut here, &comes, &known, NOW), Err(NotMoved::Conflict));
        prop_assert_eq!(exported(&here, &comes).unwrap(), before);
    }
}

#[test]
fn flows_without_an_association_move_unless_they_enter_a_tunnel() {
    let mut here = make(&text(PLAIN, 1, "otherwise = \"pass\""), 1);
    let tuple = |src: &str, dst: &str| Tuple {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        src_port: 1000,
        dst_port: 1000,
        protocol: 17,
        vlan: 0,
    };
    // Packets of the key exchange, and what passes.
    for flow in [tuple("192.0.2.2", "192.0.2.1"), tuple("10.1.0.5", "198.51.100.1")] {
        assert_eq!(exported(&here, &flow), Ok(vec![]));
        assert_eq!(Function::import(&mut here, &flow, &[], NOW), Ok(()));
        assert_eq!(
            Function::import(&mut here, &flow, b"esp1", NOW),
            Err(NotMoved::Malformed)
        );
    }
    // They count their association's numbers, so they cannot leave without it.
    for flow in [tuple("10.1.0.5", "10.2.0.6"), tuple("10.2.0.6", "10.1.0.5")] {
        assert_eq!(exported(&here, &flow), Err(NotMoved::Unsupported));
    }
    // An association of somebody else, and a label that is none.
    let other = flow(77_000, "192.0.2.9");
    assert_eq!(exported(&here, &other), Ok(b"esp1".to_vec()));
    assert_eq!(Function::import(&mut here, &other, b"esp1", NOW), Ok(()));
    let tunnel = Tuple {
        protocol: 17,
        vlan: key_bits::OF_CONTENT | key_bits::LABEL,
        ..tuple("0.0.3.233", "192.0.2.2")
    };
    assert_eq!(packet::association_of(&tunnel), None);
}

/// Who has the association sends its keepalives, and nobody else.
#[test]
fn keepalives_move_with_their_association() {
    let tunnel = Tunnel { udp: true, ..PLAIN };
    let config = text(tunnel, 1, "keepalive_s = 5");
    let (mut here, mut there) = (make(&config, 1), make(&config, 2));
    let keepalives = |of: &mut Ipsec, at: u64| {
        let mut burst = Burst::new();
        burst.begin(0, 1);
        if of.due().is_some_and(|due| due <= Nanos::from_secs(at)) {
            of.tick(&mut burst, Nanos::from_secs(at));
        }
        value(of, "keepalives_sent")
    };
    forwarded(&mut here, &inner(b"packet"));
    assert_eq!((keepalives(&mut here, 6), keepalives(&mut there, 6)), (1, 0));
    let flow = flows(tunnel)[0];
    let state = exported(&here, &flow).unwrap();
    Function::import(&mut there, &flow, &state, NOW).unwrap();
    here.forget(&flow, Nanos::from_secs(7));
    forwarded(&mut there, &inner(b"packet"));
    assert_eq!((keepalives(&mut here, 30), keepalives(&mut there, 30)), (1, 1));
}
