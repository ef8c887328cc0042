//! Open vSwitch over TLS: its database and its bridge, with an authority of the test's own.

use std::path::Path;

use crate::support::{Authority, Engine, FORWARD, Ovs, Place, assert_clean, free_port};

fn configuration(database: u16, control: u16, keys: &Path) -> String {
    format!(
        r#"
[switch]
driver = "openflow"
[switch.openflow]
database = "ssl:127.0.0.1:{database}"
control = "ssl:127.0.0.1:{control}"
tls = "{}"
{FORWARD}
symmetric = false
instances = 2
{}"#,
        keys.display(),
        Engine::Oci.toml()
    )
}

#[test]
fn a_switch_is_steered_over_tls_and_one_of_another_authority_is_refused() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let Some(ovs) = Ovs::start_here() else { return };
    let ours = Authority::new("an authority");
    let (database, control) = (free_port(), free_port());
    ovs.listen_over_tls(database, &ours.keys(place.path("switch")));

    let stranger = Authority::new("another authority").keys(place.path("stranger"));
    let file = place.file("stranger.toml", &configuration(database, control, &stranger));
    let refused = place.output(&["run", "-f", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("certificate"),
        "{said}"
    );

    let inco = place.run(&configuration(database, control, &ours.keys(place.path("inco"))));
    inco.settled(2, 0);
    assert_eq!(ovs.controllers().trim(), format!("pssl:{control}:127.0.0.1"));
    let mut traffic = place.traffic(
        r#"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "3s"
flows = 32
rate_per_flow = "50pps"
"#,
    );
    let mut installed = 0;
    while traffic.is_running() {
        let table = place.must(&["flows", "--limit", "100"]);
        installed = installed.max(table.lines().filter(|line| line.contains("installed")).count());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_clean(&traffic.report());
    assert_eq!(installed, 32, "{}", inco.told());
    inco.stop(&place);
    assert_eq!(ovs.bridges(), "", "the bridge is removed");
    assert_eq!(ovs.complaints(), "");
}
