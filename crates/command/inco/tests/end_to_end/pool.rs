//! The ports for instances: made before there is traffic, and used again.

use model::{EventKind, InstanceState};

use crate::support::{Engine, FORWARD, Function, Ovs, PATIENCE, Place, assert_clean, eventually, kill, text};

/// As many ports as instances, and none to spare.
fn configuration(ovs: &Ovs) -> String {
    format!(
        r#"
{}spare_ports = 0
[switch.timeouts]
udp = "1s"
{FORWARD}
symmetric = false
instances = 2
scheduler = "round-robin"
{}"#,
        ovs.toml(),
        Engine::Oci.toml()
    )
}

#[test]
fn an_instance_waits_for_a_port_and_gets_that_of_one_that_has_gone() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    let Some(ovs) = Ovs::start() else { return };
    let inco = place.run(&configuration(&ovs));
    let first = inco.settled(2, 0);
    let ports = ovs.watch_ports();
    let mut traffic = place.traffic(
        r#"
tick = "500us"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "6s"
flows = 32
rate_per_flow = "50pps"
"#,
    );
    let flows = |id| inco.instance(id).map_or(0, |i| i.live_flows);
    eventually("both have flows", PATIENCE, || {
        first.iter().all(|i| flows(i.id) > 0).then_some(())
    });
    // It has flows for as long as the traffic goes on, and its port so long.
    let (leaving, staying) = (&first[0], &first[1]);
    place.must(&["drain", &leaving.id.to_string()]);
    let waits = |kind: &EventKind| {
        matches!(kind, EventKind::Failure { what, reason }
            if what == "switch" && reason.contains("all 2 ports"))
    };
    let told = || inco.events().iter().filter(|event| waits(&event.kind)).count();
    eventually("it is told that there is no port", PATIENCE, || {
        (told() > 0).then_some(())
    });
    assert_eq!(
        inco.status().ports,
        Some(api::types::PortPool { made: 2, taken: 2 })
    );
    assert!(place.must(&["status"]).contains("ports for instances 2 of 2"));
    assert_eq!(inco.count(InstanceState::Draining), 1, "{}", inco.told());
    assert_eq!(told(), 1, "it is told once");
    assert!(traffic.is_running(), "{}", inco.told());
    let report = traffic.report();
    assert_clean(&report);
    let sent = report.counts.offered_packets;
    // Its flows have ended, and so has it: another one has its port.
    let second = inco.settled(2, 0);
    assert!(second.iter().any(|i| i.id == staying.id), "{}", inco.told());
    let newcomer = second.iter().find(|i| i.id != staying.id).unwrap();
    assert!(newcomer.id.0 > staying.id.0, "{}", inco.told());
    assert_eq!(newcomer.to_packets, 0, "what others had before does not count");
    // It has no bucket yet; now it gets those of the other one, which has no flow.
    place.must(&["drain", &staying.id.to_string()]);
    eventually("the other one has gone", PATIENCE, || {
        inco.instance(staying.id).is_none().then_some(())
    });
    inco.settled(2, 0);
    let report = place
        .traffic(
            r#"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "1s"
flows = 32
rate_per_flow = "50pps"
"#,
        )
        .report();
    assert_clean(&report);
    let sent = sent + report.counts.offered_packets;
    eventually("all packets are counted", PATIENCE, || {
        let of = inco.at_rest().accounting;
        ((of.offered, of.returned, of.dropped) == (sent, sent, 0)).then_some(())
    });
    let newcomer = inco.instance(newcomer.id).unwrap();
    assert!(
        newcomer.to_packets > 0 && newcomer.back_packets == newcomer.to_packets,
        "{newcomer:?}"
    );
    ports.assert_as_before();
    inco.stop(&place);
    assert_eq!(ovs.bridges(), "", "the bridge is removed");
    assert_eq!(ovs.complaints(), "");
}

fn with_devices(ovs: &Ovs, devices: &[String]) -> String {
    format!(
        r#"
{}
[switch.timeouts]
udp = "1s"
{FORWARD}
symmetric = false
instances = 2
port = "device"
devices = [{}]
{}"#,
        ovs.toml(),
        devices.join(", "),
        Engine::Oci.toml()
    )
}

const AT_EASE: &str = r#"
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "1500ms"
flows = 32
rate_per_flow = "20pps"
"#;

#[test]
fn interfaces_go_into_containers_and_come_back() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    let Some(ovs) = Ovs::start_here() else { return };
    let functions = [0, 1].map(Function::make);
    let macs = functions
        .each_ref()
        .map(|of| of.address().unwrap().trim().to_owned());

    // A wrong address, and one that is not there, are told before anything is made.
    let wrong = [
        functions[0].toml("02:00:00:00:00:99"),
        functions[1].toml(&macs[1]),
    ];
    let file = place.file("wrong.toml", &with_devices(&ovs, &wrong));
    let refused = place.output(&["run", "-f", file.to_str().unwrap()]);
    let said = text(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("service.forward.devices[0]") && said.contains(&macs[0]),
        "{said}"
    );
    let devices = [functions[0].toml(&macs[0]), functions[1].toml(&macs[1])];
    let absent = with_devices(&ovs, &devices).replace(&functions[1].interface, "absent9");
    let file = place.file("absent.toml", &absent);
    let doctor = place.output(&["doctor", "-f", file.to_str().unwrap()]);
    let said = text(&doctor.stdout);
    assert!(
        said.contains("devices[1]: the interface absent9 is not there"),
        "{said}"
    );

    let inco = place.run(&with_devices(&ovs, &devices));
    let first = inco.settled(2, 0);
    let inside = |of: &Function| of.address().is_none();
    assert!(functions.iter().all(inside), "{}", inco.told());
    assert_eq!(
        inco.status().ports,
        Some(api::types::PortPool { made: 2, taken: 2 })
    );
    let ports = ovs.watch_ports();
    // The second instance has its share of the buckets a moment after it is active. What came before is pinned to the
    // first one, so the next attempt waits until those flows are over.
    let since = std::time::Instant::now();
    loop {
        let report = place.traffic(AT_EASE).report();
        assert_clean(&report);
        let before = inco.instances();
        if before.iter().all(|i| i.back_packets > 0) {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "{before:#?}");
        eventually("the flows are over", PATIENCE, || {
            inco.instances().iter().all(|i| i.live_flows == 0).then_some(())
        });
    }

    // One is killed: the next one gets its interface, and its port of the switch.
    kill(first[0].pid.unwrap(), rustix::process::Signal::KILL);
    eventually("another one is there", PATIENCE, || {
        let rows = inco.instances();
        let is_new = |i: &api::types::InstanceRow| i.id.0 > 2 && i.state == InstanceState::Active;
        (rows.len() == 2 && rows.iter().any(is_new)).then_some(())
    });
    inco.note_traces();
    assert!(functions.iter().all(inside), "{}", inco.told());
    assert_clean(&place.traffic(AT_EASE).report());
    ports.assert_as_before();
    inco.stop(&place);
    let addresses = functions
        .each_ref()
        .map(|of| of.address().map(|text| text.trim().to_owned()));
    assert_eq!(addresses, macs.map(Some), "they are back");
    assert_eq!(ovs.bridges(), "", "the bridge is removed");
    assert_eq!(ovs.complaints(), "");
}
