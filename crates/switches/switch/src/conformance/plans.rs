//! Plans that a driver carries out, or refuses, by what it declares.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use model::{AffinityKey, Fallback, Generation, Vip, VipMode};

use super::{Conforming, PORT};
use crate::{Plan, SwitchRequest};

pub(super) fn that_ask_for_more_are_refused(of: &mut Conforming<'_>) {
    let can = of.bed.switch().capabilities();
    let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let vip = |mode| Vip {
        addresses: vec![address],
        ports: vec![PORT..=PORT],
        mode,
        target_port: None,
    };
    let mut asked: Vec<(&str, bool, Plan)> = Vec::new();
    let mut ask = |what, is_able, change: &dyn Fn(&mut Plan)| {
        let mut plan = of.plan.clone();
        change(&mut plan);
        asked.push((what, is_able, plan));
    };
    for (word, mode) in VipMode::WORDS {
        let change = |plan: &mut Plan| plan.services[0].vip = Some(vip(*mode));
        ask(word, can.vips.contains(mode), &change);
    }
    for (word, key) in AffinityKey::WORDS {
        let change = |plan: &mut Plan| plan.services[0].affinity_key = *key;
        ask(word, can.affinity_keys.contains(key), &change);
    }
    ask("host", can.passes_to_host, &|plan| {
        plan.unmatched = Fallback::Host
    });
    ask("two pins", can.returns, &|plan| {
        plan.services[0].symmetric = false
    });
    ask("relaxed", can.relaxed_moves && can.return_matching, &|plan| {
        plan.services[0].relaxed = true;
        plan.services[0].return_counters = true;
    });
    for (what, is_able, plan) in asked {
        of.plan = Plan {
            generation: Generation(of.plan.generation.0 + 1),
            ..plan
        };
        let generation = of.plan.generation;
        let published = of
            .bed
            .switch()
            .request(SwitchRequest::Publish(Arc::new(of.plan.clone())));
        assert_eq!(published.is_ok(), is_able, "{what}: {published:?}");
        if is_able {
            of.until("the plan is acknowledged", |of| {
                of.reading.acknowledged >= generation
            });
        } else {
            assert!(of.reading.acknowledged < generation, "{what}");
        }
    }
}
