//! The web page, in a real browser, of a running inco with containers.

use model::InstanceState;

use crate::browser::{Browser, browser, port_to};
use crate::support::{Engine, FORWARD, Place};

/// One instance, and more of them as soon as there is traffic: each takes little.
fn configuration() -> String {
    format!(
        r#"
{FORWARD}
capacity = "2kpps"
instances = {{ min = 1, max = 3, standby = 0 }}
autoscaler = {{ policy = "smartinco", target = 0.5, scale_down_window = "60s" }}
ring = {{ slots = 8192 }}
"#
    )
}

const LOAD: &str = r#"
tick = "1ms"
uplink_wait = "5s"
settle = "10s"
[[phase]]
duration = "3s"
flows = 12
ramp = "100ms"
rate_per_flow = "200pps"
"#;

const ROWS: &str = "#instance-rows tbody tr";

#[test]
fn the_page_agrees_with_the_api_and_connects_to_the_next_inco() {
    let Some(program) = browser() else { return };
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let inco = place.run(&configuration());
    inco.settled(1, 0);
    let port = port_to(&place.run_dir().join("api.sock"));
    let mut page = Browser::open(&program, &format!("http://127.0.0.1:{port}/"));
    page.until("document.querySelector('#connection')?.textContent === 'live'");
    page.until(&format!("document.querySelectorAll('{ROWS}').length === 1"));
    assert!(page.text("#about").contains(&inco.status().version));
    assert_eq!(page.text("#services tbody td"), "forward");
    assert_eq!(
        page.text(&format!("{ROWS} td")),
        inco.instances()[0].id.to_string()
    );

    // A scale-out, live: its rows and its reason.
    let traffic = place.traffic(LOAD);
    page.until(&format!(
        "[...document.querySelectorAll('{ROWS}')].filter((row) => row.textContent.includes('active')).length === 3"
    ));
    assert_eq!(inco.count(InstanceState::Active), 3);
    page.until("document.querySelector('#decisions').textContent.includes('instances wanted by smartinco')");

    // At rest it shows the API's rows and counters.
    traffic.report();
    let accounting = inco.at_rest().accounting;
    assert!(accounting.offered > 1000, "{accounting:?}");
    page.until(&format!(
        "state.snapshot.status.accounting.offered === {} && state.snapshot.status.accounting.returned === {}",
        accounting.offered, accounting.returned
    ));
    let ids: Vec<String> = inco.instances().iter().map(|row| row.id.to_string()).collect();
    assert_eq!(page.texts(&format!("{ROWS} td:first-child")), ids);

    // It is killed; the next one takes its containers over, and the page finds it.
    inco.kill();
    page.until("document.querySelector('#connection').className === 'gone'");
    let inco = place.run(&configuration());
    page.until(&format!("state.pid === {}", inco.status().pid));
    page.until("document.querySelector('#events').textContent.includes('adopted 3 containers')");
    assert_eq!(page.complaints(), Vec::<String>::new());
    drop(page);
    inco.stop(&place);
}
