//! The core with a switch that says and sends anything: what waits stays bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::{Nanos, ServiceId, Slot};
use openflow::{Field, Message, Version, decode};
use openflow_switch::{InstanceTerms, Part, ServiceRules, Settings, Side, Spread, Steering};
use scheduling::Scheduler;

fuzz_target!(|inputs: Vec<(bool, u32, Vec<u8>)>| {
    let service = ServiceRules {
        id: ServiceId(0),
        sides: vec![Side {
            uplink: 0,
            port: 1,
            data_port: 0,
            is_answering: false,
            fields: vec![Field::eth_type(0x0800)],
        }],
        spread: Spread { parts: vec![(Part::SourceAddress, 2)] },
        uplinks: vec![1],
        fit: 1.0,
    };
    let settings = Settings { rule_limit: 64, flow_limit: 128, ..Settings::default() };
    let mut steering = Steering::new(settings, vec![(service, Scheduler::default())], 9);
    steering.attach(Slot(0), ServiceId(0), vec![100]);
    steering.set_terms(Slot(0), InstanceTerms { takes_flows: true, capacity: 1e6, ..InstanceTerms::default() });
    steering.connected();
    let mut xid = 0;
    for (time, (is_message, of, bytes)) in inputs.iter().enumerate() {
        let now = Nanos(time as u64 * 1_000_000);
        if *is_message {
            if let Ok((_, message)) = decode(Version::V15, bytes) {
                steering.message(*of % 64, &message, now);
            }
        } else {
            steering.monitor(bytes, now);
        }
        steering.tick(now);
        steering.send(|_: &Message| {
            xid += 1;
            (xid % 5 != 0).then_some(xid)
        });
        while steering.next_injection().is_some() {}
        let figures = steering.figures();
        assert!(figures.rules <= 64 && figures.queued <= 4096 + 64 && steering.flows().count() <= 128);
    }
});
