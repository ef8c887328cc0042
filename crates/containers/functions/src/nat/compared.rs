//! The rules of translation beside a model of them: a list of mappings, searched from end to end.

use std::collections::HashMap;
use std::net::SocketAddrV4;

use model::Nanos;
use packet::TcpFlags;
use proptest::prelude::*;

use super::configuration::Settings;
use super::mapping::Class;
use super::translator::{Refused, Translator};

const BLOCK: u16 = 4;
const BLOCKS_PER_HOST: usize = 2;
const TEXT: &str = "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1000-1011\", \"192.0.2.2:1000-1011\"]\n\
                    block_ports = 4\nblocks_per_host = 2\nmappings_limit = 40\nudp_timeout_s = 300\n";

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Out {
        class: Class,
        host: u8,
        port: u16,
        remote: u8,
        flags: u8,
    },
    In {
        class: Class,
        address: u8,
        port: u16,
        remote: u8,
        flags: u8,
    },
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Tcp), Just(Class::Udp), Just(Class::Icmp)]
}

fn flags() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => Just(TcpFlags::ACK),
        2 => Just(TcpFlags::SYN),
        1 => Just(TcpFlags::FIN | TcpFlags::ACK),
        1 => Just(TcpFlags::RST),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => prop_oneof![0..90_u64, 0..8000_u64].prop_map(Step::Wait),
        6 => (class(), 1..5_u8, 0..7_u16, 1..4_u8, flags())
            .prop_map(|(class, host, port, remote, flags)| Step::Out { class, host, port, remote, flags }),
        3 => (class(), 1..3_u8, 1000..1012_u16, 1..4_u8, flags())
            .prop_map(|(class, address, port, remote, flags)| Step::In { class, address, port, remote, flags }),
    ];
    prop::collection::vec(step, 0..120)
}

/// A mapping of the model.
#[derive(Clone, Copy, Debug)]
struct Known {
    external: SocketAddrV4,
    /// The last remote endpoint, which alone may refresh from outside.
    remote: u8,
    /// The last packet that refreshes a mapping of UDP or ICMP, or any packet of TCP that is no RST.
    touched: u64,
    /// Data came in, and data went out after that; and nothing that opens or closes a connection since.
    data_in: bool,
    data_out: bool,
    /// There was a FIN or an RST of the connection, and no other connection since.
    closes: bool,
}

impl Known {
    /// Whether it must be there, and whether it may be.
    fn is_there(&self, class: Class, now: u64) -> (bool, bool) {
        let idle = now - self.touched;
        match class {
            Class::Udp => (idle <= 300, idle <= 300),
            Class::Icmp => (idle <= 60, idle <= 60),
            Class::Tcp => (
                idle <= 240 || (self.data_out && self.data_in && idle <= 7440),
                idle <= 7440,
            ),
        }
    }
}

fn host_end(host: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new([10, 0, 0, host].into(), port)
}

fn block_of(external: SocketAddrV4) -> (u8, u16) {
    (external.ip().octets()[3], (external.port() - 1000) / BLOCK)
}

type Mappings = HashMap<(Class, u8, u16), Known>;

/// Checks a port that a host got anew.
fn check_new(
    all: &Mappings,
    now: u64,
    class: Class,
    host: u8,
    external: SocketAddrV4,
) -> Result<(), TestCaseError> {
    let there = || all.iter().filter(|((of, ..), known)| known.is_there(*of, now).0);
    prop_assert!((1000..1012).contains(&external.port()));
    for (&(of, other, _), known) in there() {
        prop_assert!(
            (of, known.external) != (class, external),
            "a port stands for two endpoints"
        );
        if other == host {
            prop_assert_eq!(
                known.external.ip(),
                external.ip(),
                "a host has two external addresses"
            );
        } else {
            prop_assert_ne!(
                block_of(known.external),
                block_of(external),
                "a block is of two hosts"
            );
        }
    }
    Ok(())
}

/// Checks that a host could get none. `may`: with the mappings that need not be there any more.
fn check_refused(
    all: &Mappings,
    now: u64,
    class: Class,
    host: u8,
    why: Refused,
) -> Result<(), TestCaseError> {
    let there = || all.iter().filter(|((of, ..), known)| known.is_there(*of, now).1);
    match why {
        Refused::HostLimit => {
            let own = there()
                .filter(|((of, other, _), _)| (*of, *other) == (class, host))
                .count();
            prop_assert!(own >= usize::from(BLOCK) * BLOCKS_PER_HOST, "{own} ports of 8");
        }
        Refused::NoBlock => {
            let mut blocks: Vec<_> = there().map(|(_, known)| block_of(known.external)).collect();
            blocks.sort_unstable();
            blocks.dedup();
            prop_assert!(blocks.len() >= 3, "{blocks:?}");
        }
        Refused::MappingLimit => prop_assert!(there().count() >= 40),
        Refused::NoMapping => prop_assert!(false, "only an RST makes no mapping"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn the_translator_does_what_the_model_does(steps in steps(), secret: u64) {
        let mut translator = Translator::new(Settings::parse(TEXT, None).unwrap(), secret);
        let mut all = Mappings::new();
        let mut now = 100_000_u64;
        for step in steps {
            while translator.turn(Nanos::from_secs(now)) {}
            match step {
                Step::Wait(seconds) => now += seconds,
                Step::Out { class, host, port, remote, flags } => {
                    let internal = host_end(host, port);
                    let to = SocketAddrV4::new([198, 51, 100, remote].into(), 80);
                    let result = translator.outbound(class, internal, to, TcpFlags(flags));
                    let known = all.get(&(class, host, port)).copied();
                    let (must, may) = known.map_or((false, false), |known| known.is_there(class, now));
                    let is_reset = class == Class::Tcp && flags == TcpFlags::RST;
                    let external = match result {
                        Ok(external) => external,
                        Err(why) => {
                            prop_assert!(!must, "it was there");
                            all.remove(&(class, host, port));
                            if !(is_reset && why == Refused::NoMapping) {
                                check_refused(&all, now, class, host, why)?;
                            }
                            continue;
                        }
                    };
                    let stays = known.filter(|known| may && (must || known.external == external));
                    prop_assert!(stays.is_none_or(|known| known.external == external), "another port");
                    if stays.is_none() {
                        prop_assert!(!is_reset);
                        all.remove(&(class, host, port));
                        check_new(&all, now, class, host, external)?;
                    }
                    let begun =
                        Known { external, remote, touched: now, data_in: false, data_out: false, closes: false };
                    let known = all.entry((class, host, port)).or_insert(begun);
                    let is_same = known.remote == remote;
                    let is_data = flags == TcpFlags::ACK;
                    if !is_reset {
                        known.touched = now;
                        known.remote = remote;
                        known.closes &= is_same && flags & TcpFlags::SYN == 0;
                        known.data_in &= is_data && is_same;
                        known.data_out = is_data && known.data_in;
                    }
                    if is_same && flags & (TcpFlags::FIN | TcpFlags::RST) != 0 {
                        (known.closes, known.data_in) = (true, false);
                    }
                }
                Step::In { class, address, port, remote, flags } => {
                    let external = SocketAddrV4::new([192, 0, 2, address].into(), port);
                    let from = SocketAddrV4::new([198, 51, 100, remote].into(), 80);
                    let result = translator.inbound(class, external, from, TcpFlags(flags)).ok();
                    let of = all.iter_mut().filter(|((of, ..), known)| {
                        (*of, known.external) == (class, external) && known.is_there(*of, now).1
                    });
                    let mut of: Vec<_> = of.collect();
                    match result {
                        None => prop_assert!(!of.iter().any(|((of, ..), known)| known.is_there(*of, now).0)),
                        Some(internal) => {
                            let known = of.iter_mut().find(|((_, host, port), _)| host_end(*host, *port) == internal);
                            let Some((_, known)) = known else {
                                return Err(TestCaseError::fail("an endpoint that has no mapping"));
                            };
                            if known.remote == remote {
                                let is_data = flags == TcpFlags::ACK;
                                if class != Class::Tcp || (known.data_in && is_data) {
                                    known.touched = now;
                                }
                                known.closes |= flags & (TcpFlags::FIN | TcpFlags::RST) != 0;
                                known.data_in = is_data && !known.closes;
                                known.data_out &= known.data_in;
                            }
                        }
                    }
                }
            }
            prop_assert!(translator.mappings() <= 40);
        }
        // What is idle for longer than any timeout is gone, with its ports.
        while translator.turn(Nanos::from_secs(now + 7442)) {}
        while translator.turn(Nanos::from_secs(now + 2 * 7442)) {}
        prop_assert_eq!((translator.mappings(), translator.pool().blocks_assigned()), (0, 0));
        prop_assert_eq!(translator.counters().begun, translator.counters().ended);
    }
}
