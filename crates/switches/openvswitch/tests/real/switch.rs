//! The switch itself: restarts, failures, where it listens, what its datapath has.

use std::collections::BTreeMap;

use openflow::{Action, FlowFilter, Message};
use openvswitch::{
    BridgeSpec, DatapathFlow, Endpoint, Offload, Ovsdb, OvsdbError, PortSpec, Turned, Unixctl, datapath_flows,
};

use crate::bed::{Controller, LIMIT, PACKET, Switch, free_port, port, rule, until, vswitchd};

#[test]
fn a_restarted_switch_is_reconnected() {
    let Some(mut switch) = Switch::start() else { return };
    switch.bridge();
    let mut controller = Controller::new(switch.endpoint("br0.mgmt"));
    controller.up();
    controller.send(&Message::FlowMod(rule(9, 1, vec![Action::output(2)])));
    controller.barrier();
    switch.switch.kill().unwrap();
    switch.switch.wait().unwrap();
    controller.wait("down", |turned| matches!(turned, Turned::Down(_)).then_some(()));
    assert!(!controller.connection.is_up());
    switch.switch = vswitchd(switch.directory.path());
    controller.turned.clear();
    controller.up();
    assert_eq!(
        controller.flows(FlowFilter::default()),
        [],
        "its rules went with it"
    );
}

#[test]
fn creation_failures_are_reported_with_the_reason() {
    let Some(switch) = Switch::start() else { return };
    switch.bridge();
    let mut database = switch.database();
    let wrong = PortSpec {
        kind: "nonsense".into(),
        ..port("p9", 9)
    };
    match database.ensure_ports("br0", &[wrong]) {
        Err(OvsdbError::Interface { interface, what }) => {
            assert_eq!(interface, "p9");
            assert!(what.contains("could not open network device p9"), "{what}");
        }
        other => panic!("{other:?}"),
    }
    database.delete_ports("br0", &["p9", "p1", "not-there"]).unwrap();
    assert_eq!(database.interface("p1").unwrap().number, None);
    database
        .set_other_config(&BTreeMap::from([("max-revalidator".into(), "100".into())]))
        .unwrap();
    database.delete_bridge("br0").unwrap();
    database.delete_bridge("br0").unwrap();
    assert!(!switch.directory.path().join("br0.mgmt").exists());
    let nowhere = Ovsdb::connect(&switch.endpoint("nobody.sock"), LIMIT);
    assert!(matches!(nowhere, Err(OvsdbError::Socket { .. })));
}

#[test]
fn a_bridge_listens_on_tcp() {
    let Some(switch) = Switch::start() else { return };
    let control: Endpoint = format!("tcp:127.0.0.1:{}", free_port()).parse().unwrap();
    let bridge = BridgeSpec {
        name: "br0".into(),
        datapath: "dummy".into(),
        external_ids: BTreeMap::new(),
        listens: control.passive(),
    };
    switch.database().ensure_bridge(&bridge).unwrap();
    Controller::new(control).up();
}

#[test]
fn offloaded_flows_are_read_from_the_switch() {
    let Some(switch) = Switch::start() else { return };
    switch.bridge();
    let mut controller = Controller::new(switch.endpoint("br0.mgmt"));
    controller.up();
    controller.send(&Message::FlowMod(rule(9, 0x77, vec![Action::output(2)])));
    controller.barrier();
    switch.receive("p1", PACKET);
    let mut control = Unixctl::connect(switch.directory.path(), LIMIT).unwrap();
    let mut flows: Vec<DatapathFlow> = Vec::new();
    until("the packet's flow is in the datapath", || {
        flows = datapath_flows(&control.dump_flows("dummy", "all").unwrap()).collect();
        !flows.is_empty()
    });
    let [flow] = flows.as_slice() else {
        panic!("{flows:?}");
    };
    assert_eq!(flow.offload, Offload::None);
    let tuple = flow.tuple;
    assert_eq!(
        (
            tuple.src,
            tuple.dst,
            tuple.src_port,
            tuple.dst_port,
            tuple.protocol
        ),
        (
            "10.0.0.7".parse().unwrap(),
            "10.128.0.1".parse().unwrap(),
            1000,
            9,
            17
        )
    );
    // There is no card here.
    assert_eq!(control.offloaded_flows("dummy").unwrap(), []);
    let refused = control.dump_flows("dummy", "bogus").unwrap_err();
    assert!(
        matches!(&refused, OvsdbError::Refused { what } if what.contains("bogus")),
        "{refused}"
    );
    drop(switch);
}
