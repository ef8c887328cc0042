//! One list of servers out of those of several Services.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use model::{BackEnd, BackEndState};

/// What the largest share becomes. The others are whole parts of it, so the smallest one is rounded by 1/65535 of that.
const LARGEST: u16 = u16::MAX;

/// The servers of several Services, each with its weight and its list, in a stable order.
///
/// A Service gets flows by its weight, however many servers it has: each of those that serve has an equal part of it. What a
/// Service would get that has none goes to the others. A server of two Services has the parts of both.
pub fn joined(services: &[(u32, &[BackEnd])]) -> Vec<BackEnd> {
    let mut all: Vec<(BackEnd, f64)> = Vec::new();
    let mut places: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    for (weight, list) in services {
        let serves = |of: &&BackEnd| of.state == BackEndState::Serving;
        let count = match list.iter().filter(serves).count() {
            // Those that end may be all that there is.
            0 => list.len(),
            count => count,
        };
        let share = f64::from(*weight) / count.max(1) as f64;
        for server in *list {
            let place = *places.entry(server.at).or_insert(all.len());
            match all.get_mut(place) {
                Some((other, sum)) => {
                    *sum += share;
                    if server.state == BackEndState::Serving {
                        *other = server.clone();
                    }
                }
                None => all.push((server.clone(), share)),
            }
        }
    }
    let largest = all.iter().map(|(_, share)| *share).fold(0.0, f64::max);
    let weighed = all.into_iter().map(|(server, share)| BackEnd {
        // A share is at most the largest one, and a weight at least one.
        weight: ((share / largest * f64::from(LARGEST)).round() as u16).max(1),
        ..server
    });
    weighed.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server(number: u16, state: BackEndState) -> BackEnd {
        BackEnd {
            state,
            ..BackEnd::at(SocketAddr::from(([10, 0, 0, 1], number)))
        }
    }

    fn serving(numbers: std::ops::Range<u16>) -> Vec<BackEnd> {
        numbers
            .map(|number| server(number, BackEndState::Serving))
            .collect()
    }

    /// The part of new flows that those of these ports get.
    fn part(all: &[BackEnd], ports: std::ops::Range<u16>) -> f64 {
        let (mut own, mut sum) = (0.0, 0.0);
        for of in all.iter().filter(|of| of.state == BackEndState::Serving) {
            sum += f64::from(of.weight);
            if ports.contains(&of.at.port()) {
                own += f64::from(of.weight);
            }
        }
        own / sum
    }

    fn join<const COUNT: usize>(services: [(u32, &Vec<BackEnd>); COUNT]) -> Vec<BackEnd> {
        joined(&services.map(|(weight, list)| (weight, list.as_slice())))
    }

    #[test]
    fn a_service_gets_its_part_however_many_servers_it_has() {
        let (web, canary) = (serving(1..10), serving(20..21));
        let all = join([(90, &web), (10, &canary)]);
        assert!((part(&all, 20..21) - 0.1).abs() < 1e-4, "{all:?}");
        assert_eq!(
            all.iter().map(|of| of.at.port()).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 20]
        );
        // A server that does not serve changes nothing for the others.
        let mut more = web.clone();
        more.push(server(11, BackEndState::NotReady));
        more.push(server(12, BackEndState::Draining));
        let all = join([(90, &more), (10, &canary)]);
        assert!((part(&all, 20..21) - 0.1).abs() < 1e-4, "{all:?}");
    }

    #[test]
    fn the_part_of_a_service_without_servers_goes_to_the_others() {
        let web = serving(1..3);
        assert_eq!(part(&join([(1, &web), (9, &Vec::new())]), 1..3), 1.0);
        let ends = vec![server(20, BackEndState::Draining)];
        let all = join([(1, &web), (9, &ends)]);
        assert_eq!(part(&all, 1..3), 1.0);
        // Where all end, they go on by their weights.
        let all = join([(1, &vec![server(1, BackEndState::Draining)]), (3, &ends)]);
        assert_eq!(all[1].weight / all[0].weight, 3);
        assert_eq!(joined(&[]), []);
        assert_eq!(join([(1, &Vec::new()), (2, &Vec::new())]), []);
    }

    #[test]
    fn a_server_of_two_services_is_there_once_with_both_parts() {
        let (one, mut two) = (serving(1..3), serving(2..4));
        two[0].id = Some("pod".to_owned());
        let all = join([(1, &one), (1, &two)]);
        assert_eq!(all.len(), 3);
        assert_eq!(all[1].id.as_deref(), Some("pod"));
        assert!((part(&all, 2..3) - 0.5).abs() < 1e-4, "{all:?}");
        two[0].state = BackEndState::Draining;
        assert_eq!(join([(1, &one), (1, &two)])[1].state, BackEndState::Serving);
    }

    proptest! {
        /// Any weights of any Services: each server has a weight, and each Service its part of the flows, but for rounding.
        #[test]
        fn parts_are_those_of_the_weights(
            of in prop::collection::vec((1..1_000_000_u32, 1..30_u16), 1..17),
        ) {
            let lists: Vec<Vec<BackEnd>> = of
                .iter()
                .enumerate()
                .map(|(index, (_, count))| serving(index as u16 * 100..index as u16 * 100 + count))
                .collect();
            let services: Vec<(u32, &[BackEnd])> =
                of.iter().zip(&lists).map(|((weight, _), list)| (*weight, list.as_slice())).collect();
            let all = joined(&services);
            prop_assert!(all.iter().all(|of| of.weight > 0));
            prop_assert_eq!(all.iter().map(|of| of.weight).max(), Some(LARGEST));
            let sum: f64 = of.iter().map(|(weight, _)| f64::from(*weight)).sum();
            for (index, (weight, _)) in of.iter().enumerate() {
                let is = part(&all, index as u16 * 100..index as u16 * 100 + 100);
                // A step of the weights of all servers, at most.
                let off = (is - f64::from(*weight) / sum).abs();
                prop_assert!(off < 16.0 * 30.0 / f64::from(LARGEST), "{index}: {off}");
            }
        }
    }
}
