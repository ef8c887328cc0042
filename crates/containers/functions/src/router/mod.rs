//! The function `router`: the longest prefix of a packet's destination says where it goes.

pub(crate) mod configuration;
mod errors;
#[cfg(test)]
mod tests;

use model::{FlowKey, Nanos, Tuple};
use packet::{PacketInfo, Parsed, checksum};
use state_moves::NotMoved;

use crate::about::{About, Metric, Reason};
use crate::burst::{Burst, CAPACITY, Verdict};
use crate::configuration::Error;
use crate::function::{Function, Setup, Summary};
use crate::lpm::{NO_ROUTE, Routes4, Routes6, flatten};

pub use configuration::{ERRORS_LIMIT, NEXT_HOPS_LIMIT, ROUTES_LIMIT};
use configuration::{Other, Settings, Target};
use errors::{Cause, Errors};

const NO_ROUTE_TO: Reason = Reason(0);
const UNREACHABLE: Reason = Reason(1);
const BLACKHOLE: Reason = Reason(2);
const EXPIRED: Reason = Reason(3);
const MALFORMED: Reason = Reason(4);
const NOT_UNICAST: Reason = Reason(5);
const OTHER: Reason = Reason(6);

/// Where the destination stands in a header.
const DESTINATION_V4: usize = 16;
const DESTINATION_V6: usize = 24;
/// Where the time to live stands, and the checksum.
const TTL_V4: usize = 8;
const CHECKSUM_V4: usize = 10;
const HOP_LIMIT_V6: usize = 7;

/// Routes as they are compiled.
#[derive(Debug)]
pub struct Routes {
    settings: Settings,
    v4: Routes4,
    v6: Routes6,
}

/// Forwards packets by the longest prefix of their destination. See docs/functions/router.md.
#[derive(Debug)]
pub struct Router {
    routes: Routes,
    ways: Ways,
    v4: Vec<u32>,
    v6: Vec<u128>,
    of_v4: Vec<Asked>,
    of_v6: Vec<Asked>,
}

/// What became of packets.
#[derive(Debug)]
struct Ways {
    errors: Errors,
    /// Packets that went to a next hop, of IPv4 and IPv6.
    routed: [u64; 2],
}

/// A packet whose route is looked up.
#[derive(Clone, Copy, Debug)]
struct Asked {
    index: usize,
    info: PacketInfo,
    /// Not a later fragment: its sender may learn of an error.
    is_first: bool,
}

impl Function for Router {
    type Configuration = Routes;

    fn about() -> About {
        const REASONS: &[Metric] = &[
            Metric::counter("no_route", "Packets to which no route leads"),
            Metric::counter("unreachable", "Packets of routes that are unreachable"),
            Metric::counter("blackhole", "Packets of routes that are blackholes"),
            Metric::counter("expired", "Packets whose time to live or hop limit has passed"),
            Metric::counter(
                "malformed",
                "Packets with a header that is cut off, wrong or too long",
            ),
            Metric::counter(
                "not_unicast",
                "Packets to or from a group, every host, no host or the host itself",
            ),
            Metric::counter("other", "Packets that are not IP, where other is drop"),
        ];
        const METRICS: &[Metric] = &[
            Metric::counter("routed_ipv4", "IPv4 packets that went to a next hop"),
            Metric::counter("routed_ipv6", "IPv6 packets that went to a next hop"),
            Metric::counter("errors_sent", "ICMP errors sent to senders"),
            Metric::counter(
                "errors_limited",
                "ICMP errors that were not sent because of their rate, or for lack of room",
            ),
        ];
        About {
            name: "router",
            help: "Forwards packets by the longest prefix of their destination",
            reasons: REASONS,
            metrics: METRICS,
        }
    }

    fn compile(text: &str, setup: &Setup) -> Result<Routes, Error> {
        let settings = Settings::read(text, setup.ports)?;
        let of_family = |is_v6: bool| {
            let routes = settings
                .routes
                .iter()
                .filter(move |(prefix, _)| prefix.is_v6() == is_v6);
            flatten(routes.map(|(&prefix, &target)| (prefix, target)), NO_ROUTE)
        };
        Ok(Routes {
            v4: Routes4::new(&of_family(false)),
            v6: Routes6::new(&of_family(true)),
            settings,
        })
    }

    fn new(routes: Routes, _setup: &Setup) -> Router {
        Router {
            ways: Ways {
                errors: Errors::new(routes.settings.icmp_errors_per_s),
                routed: [0; 2],
            },
            routes,
            v4: Vec::with_capacity(CAPACITY),
            v6: Vec::with_capacity(CAPACITY),
            of_v4: Vec::with_capacity(CAPACITY),
            of_v6: Vec::with_capacity(CAPACITY),
        }
    }

    fn reload(&mut self, routes: Routes) -> Routes {
        self.ways.errors.set_rate(routes.settings.icmp_errors_per_s);
        std::mem::replace(&mut self.routes, routes)
    }

    fn process(&mut self, burst: &mut Burst, now: Nanos) {
        self.v4.clear();
        self.v6.clear();
        self.of_v4.clear();
        self.of_v6.clear();
        for index in 0..burst.len().min(CAPACITY) {
            let frame = burst.frame(index);
            let reason = match packet::parse(frame) {
                Parsed::Flow(info) => self.ask(
                    Asked {
                        index,
                        info,
                        is_first: true,
                    },
                    frame,
                ),
                Parsed::Fragment(fragment) => {
                    let (info, is_first) = (fragment.info, fragment.is_first());
                    self.ask(
                        Asked {
                            index,
                            info,
                            is_first,
                        },
                        frame,
                    )
                }
                Parsed::Other { .. } if self.routes.settings.other == Other::Pass => None,
                Parsed::Other { .. } => Some(OTHER),
                Parsed::Invalid(_) => Some(MALFORMED),
            };
            if let (Some(reason), Some(mut packet)) = (reason, burst.packet(index)) {
                packet.drop(reason);
            }
        }
        let mut found = [NO_ROUTE; CAPACITY];
        self.routes.v4.lookup(&self.v4, &mut found);
        for (asked, &target) in self.of_v4.iter().zip(&found) {
            self.ways.route(&self.routes.settings, burst, asked, target, now);
        }
        self.routes.v6.lookup(&self.v6, &mut found);
        for (asked, &target) in self.of_v6.iter().zip(&found) {
            self.ways.route(&self.routes.settings, burst, asked, target, now);
        }
    }

    fn metrics(&self, values: &mut [u64]) {
        let [sent, limited] = self.ways.errors.counts();
        values.copy_from_slice(&[self.ways.routed[0], self.ways.routed[1], sent, limited]);
    }

    fn summary(&self) -> Summary {
        Summary {
            entries: self.routes.settings.routes.len() as u64,
            ..Summary::default()
        }
    }

    /// It has no state.
    fn export(&self, _flow: &Tuple, _state: &mut [u8], _now: Nanos) -> Result<usize, NotMoved> {
        Ok(0)
    }

    fn import(&mut self, _flow: &Tuple, state: &[u8], _now: Nanos) -> Result<(), NotMoved> {
        if state.is_empty() {
            Ok(())
        } else {
            Err(NotMoved::Malformed)
        }
    }
}

impl Router {
    /// Notes a packet whose route is looked up, or says why it has none.
    fn ask(&mut self, asked: Asked, frame: &[u8]) -> Option<Reason> {
        let Some(header) = frame.get(usize::from(asked.info.l3_offset)..) else {
            return Some(MALFORMED);
        };
        let destination = |at: usize| header.get(at..).unwrap_or_default();
        // What a link sends to all of its hosts is not to be passed on (RFC 1812, 5.3.4).
        if frame.first().is_some_and(|first| first & 1 == 1) {
            return Some(NOT_UNICAST);
        }
        if header.first().is_some_and(|first| first >> 4 == 4) {
            let (Some(dst), Some(src)) = (
                destination(DESTINATION_V4).first_chunk(),
                destination(DESTINATION_V4 - 4).first_chunk(),
            ) else {
                return Some(MALFORMED);
            };
            let (dst, src) = (std::net::Ipv4Addr::from(*dst), std::net::Ipv4Addr::from(*src));
            // Groups, reserved ones and all; this network; the host itself.
            if [dst, src]
                .iter()
                .any(|of| of.octets()[0] >= 224 || of.octets()[0] == 0 || of.is_loopback())
            {
                return Some(NOT_UNICAST);
            }
            self.v4.push(u32::from(dst));
            self.of_v4.push(asked);
        } else {
            let (Some(dst), Some(src)) = (
                destination(DESTINATION_V6).first_chunk(),
                destination(DESTINATION_V6 - 16).first_chunk(),
            ) else {
                return Some(MALFORMED);
            };
            let (dst, src) = (std::net::Ipv6Addr::from(*dst), std::net::Ipv6Addr::from(*src));
            let stays = |of: &std::net::Ipv6Addr| {
                of.is_multicast() || of.is_loopback() || of.is_unspecified() || of.is_unicast_link_local()
            };
            if [dst, src].iter().any(stays) {
                return Some(NOT_UNICAST);
            }
            self.v6.push(u128::from(dst));
            self.of_v6.push(asked);
        }
        None
    }
}

impl Ways {
    /// Sends a packet to its next hop, or drops it.
    fn route(&mut self, settings: &Settings, burst: &mut Burst, asked: &Asked, target: u32, now: Nanos) {
        let info = &asked.info;
        let target = settings.targets.get(target as usize).copied();
        let opposite = burst.opposite();
        let Some(mut packet) = burst.packet(asked.index) else {
            return;
        };
        let frame = packet.frame_mut();
        let (reason, cause) = match target {
            Some(Target::NextHop(hop)) => {
                if spend_hop(frame, usize::from(info.l3_offset)) {
                    if let (Some(mac), Some(to)) = (hop.mac, frame.first_chunk_mut::<6>()) {
                        *to = mac;
                    }
                    if let (Some(mac), Some(from)) = (settings.mac, frame.get_mut(6..12)) {
                        from.copy_from_slice(&mac);
                    }
                    packet.decide(Verdict::Forward(hop.port.unwrap_or(opposite)));
                    self.routed[usize::from(matches!(info.key, FlowKey::V6(_)))] += 1;
                    return;
                }
                (EXPIRED, Some(Cause::Expired))
            }
            Some(Target::Unreachable) => (UNREACHABLE, Some(Cause::Unreachable)),
            Some(Target::Blackhole) => (BLACKHOLE, None),
            None => (NO_ROUTE_TO, Some(Cause::Unreachable)),
        };
        packet.drop(reason);
        if let Some(cause) = cause
            && asked.is_first
        {
            self.errors.send(burst, asked.index, info, cause, settings, now);
        }
    }
}

/// Takes one from the time to live or the hop limit. False, and no change, if none would be left.
#[inline]
fn spend_hop(frame: &mut [u8], l3_offset: usize) -> bool {
    let Some(header) = frame.get_mut(l3_offset..) else {
        return false;
    };
    if header.first().is_some_and(|first| first >> 4 == 6) {
        return match header.get_mut(HOP_LIMIT_V6) {
            Some(limit) if *limit > 1 => {
                *limit -= 1;
                true
            }
            _ => false,
        };
    }
    let len = usize::from(header.first().map_or(0, |first| first & 0xf)) * 4;
    let Some(header) = header.get_mut(..len.max(20)) else {
        return false;
    };
    if header[TTL_V4] <= 1 {
        return false;
    }
    header[TTL_V4] -= 1;
    let sum = u16::from_be_bytes([header[CHECKSUM_V4], header[CHECKSUM_V4 + 1]]);
    let sum = match sum {
        // Its sender left it to its hardware.
        0 => !checksum::sum(header),
        // The word of the time to live has become less by 0x100 (RFC 1624, equation 3).
        _ => {
            let sum = u32::from(!sum) + u32::from(!0x0100_u16);
            !((sum & 0xffff) + (sum >> 16)) as u16
        }
    };
    header[CHECKSUM_V4..CHECKSUM_V4 + 2].copy_from_slice(&sum.to_be_bytes());
    true
}
