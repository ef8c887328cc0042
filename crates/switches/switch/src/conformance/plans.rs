//! Plans that a driver carries out, or refuses, by what it declares.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use model::{AffinityKey, External, Fallback, Generation, Match, Prefix, ServiceId, Vip, VipMode};

use super::{Conforming, PORT};
use crate::{Plan, ServicePlan, SwitchRequest};

pub(super) fn that_ask_for_more_are_refused(of: &mut Conforming<'_>) {
    let can = of.bed.switch().capabilities();
    let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let vip = |mode| Vip {
        addresses: vec![address],
        ports: vec![PORT..=PORT],
        mode,
        target_port: None,
    };
    let mut asked: Vec<(String, bool, Plan)> = Vec::new();
    // Part of what is said where it is refused, whether the driver can do it, and what asks for it.
    let mut ask = |said: &str, is_able, change: &dyn Fn(&mut Plan)| {
        let mut plan = of.plan.clone();
        change(&mut plan);
        asked.push((said.to_owned(), is_able, plan));
    };
    for (_, mode) in VipMode::WORDS {
        let change = |plan: &mut Plan| plan.services[0].vip = Some(vip(*mode));
        ask("an address in that mode", can.vips.contains(mode), &change);
    }
    for (_, key) in AffinityKey::WORDS {
        let change = |plan: &mut Plan| plan.services[0].affinity_key = *key;
        let said = if key.reads_content() {
            "flows by what packets carry"
        } else {
            "that flows with a common address share an instance"
        };
        ask(said, can.affinity_keys.contains(key), &change);
    }
    ask("this machine's own network", can.passes_to_host, &|plan| {
        plan.unmatched = Fallback::Host
    });
    ask("this machine's own network", can.passes_to_host, &|plan| {
        plan.other = Fallback::Host
    });
    ask("a pin for each direction", can.returns, &|plan| {
        plan.services[0].symmetric = false
    });
    ask("by a match that both have", can.sees_openers, &|plan| {
        plan.services[0].matches = Match::default()
    });
    let counts = "that returned packets are counted for each flow";
    ask(counts, can.return_matching, &|plan| {
        plan.services[0].return_counters = true
    });
    let moves = if can.relaxed_moves {
        counts
    } else {
        "that its flows move in order"
    };
    ask(moves, can.relaxed_moves && can.return_matching, &|plan| {
        plan.services[0].relaxed = true;
        plan.services[0].return_counters = true;
    });
    let external = || External::new(&[Prefix::of(address)], 4032).ok();
    ask("the owner of their external port", can.port_blocks, &|plan| {
        plan.services[0].external = external()
    });
    if can.port_blocks && can.affinity_keys.contains(&AffinityKey::Inner) {
        ask("external addresses together with", false, &|plan| {
            plan.services[0].external = external();
            plan.services[0].affinity_key = AffinityKey::Inner;
        });
    }
    ask("that signals of its instances are told", can.signals, &|plan| {
        plan.services[0].signals = true
    });
    let goes_on = "that what its instances return goes on to another service";
    ask(goes_on, can.chains, &|plan| {
        let next = ServiceId(1);
        plan.services.push(ServicePlan {
            id: next,
            ..plan.services[0].clone()
        });
        plan.services[0].next = Some(next);
    });
    for (said, is_able, plan) in asked {
        let before = of.reading.acknowledged;
        of.plan = Plan {
            generation: Generation(of.plan.generation.0 + 1),
            ..plan
        };
        let generation = of.plan.generation;
        let plan = Arc::new(of.plan.clone());
        match of.bed.switch().request(SwitchRequest::Publish(plan)) {
            Ok(()) => {
                assert!(is_able, "{said}: it is taken");
                of.until("the plan is acknowledged", |of| {
                    of.reading.acknowledged >= generation
                });
            }
            Err(refused) => {
                let refused = refused.to_string();
                assert!(!is_able && refused.contains(&said), "{said}: {refused}");
                // The plan before stays in force.
                of.until("a turn", |_| true);
                assert_eq!(of.reading.acknowledged, before, "{said}");
            }
        }
    }
}
