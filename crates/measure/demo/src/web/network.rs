//! The networks of the demo: a client's namespace, and one in which a peer balances.

use anyhow::Result;
pub(super) use testbed::network::{Link, Namespace, output, run};

/// The address of the service in all runs.
pub(super) const ADDRESS: &str = "10.77.0.100";
/// The client's address.
const CLIENT: &str = "10.77.0.2";
/// The balancer's own address.
const BALANCER: &str = "10.77.0.1";
/// The client's interface, in its namespace.
const INTERFACE: &str = "eth0";

fn namespace(role: &str) -> Result<Namespace> {
    Namespace::new(format!("inco-web-{}-{role}", std::process::id()))
}

/// The client's namespace, whose link ends in the namespace of this process: inco's uplink.
pub(super) fn client_of_inco() -> Result<(Namespace, Link, String)> {
    let client = namespace("client")?;
    let uplink = format!("incow{}", std::process::id() % 1_000_000);
    let link = Link::into(&uplink, &client, INTERFACE)?;
    run("ip", &["link", "set", &uplink, "up"])?;
    set_up_client(&client)?;
    Ok((client, link, uplink))
}

/// The client's namespace and the one of a peer, with a link between them.
pub(super) fn client_and_balancer() -> Result<(Namespace, Namespace)> {
    let client = namespace("client")?;
    let balancer = namespace("balancer")?;
    client.connect(INTERFACE, &balancer, INTERFACE)?;
    for address in [format!("{BALANCER}/24"), format!("{ADDRESS}/32")] {
        balancer.ip(&["address", "add", &address, "dev", INTERFACE])?;
    }
    balancer.ip(&["link", "set", INTERFACE, "up"])?;
    balancer.forward()?;
    set_up_client(&client)?;
    client.ip(&["route", "add", "default", "via", BALANCER])?;
    Ok((client, balancer))
}

fn set_up_client(client: &Namespace) -> Result<()> {
    client.ip(&["address", "add", &format!("{CLIENT}/24"), "dev", INTERFACE])?;
    client.ip(&["link", "set", INTERFACE, "up"])
}
