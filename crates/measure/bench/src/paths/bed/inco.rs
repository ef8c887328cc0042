//! Paths of inco: to an ordinary container by the drivers `ebpf` and `soft`, and to a function and back.

use std::fs;

use anyhow::{Context as _, Result};
use images::EngineName;
use testbed::network::{Link, Network, run};
use testbed::{FORWARD_IMAGE, Session, WEB_SERVER_IMAGE};

use super::kernel::{CLIENT_ADDRESS, NEAR, NEAR_CLIENT, SOURCE, UPLINK, join};
use super::{Bed, CLIENT, END, FIRST_PORT, Ground, LAST_PORT, Place, STORE_PORT, address_of, end, namespace};
use crate::args::{PathName, PathScope};
use crate::function::ipsec::tunnel;

/// The address of the service.
const SERVICE: &str = "10.76.0.100";
/// From where to where packets go that a gateway protects; other functions take any.
const TUNNEL: [&str; 2] = ["10.1.0.10", "10.2.0.6"];
/// Where the function finds its configurations.
const GATEWAYS: [&str; 2] = ["/enter.toml", "/leave.toml"];

/// The end of a link in the network of this process: inco's uplink.
fn uplink_name() -> String {
    format!("incop{}u", std::process::id() % 1_000_000)
}

/// A service with one ordinary container.
pub(super) fn container<'g>(ground: &'g Ground, path: PathName, scope: PathScope) -> Result<Bed<'g>> {
    testbed::make_web_server_image()?;
    let uplink = uplink_name();
    let (client, hosts, link) = match scope {
        PathScope::Local => {
            let client = namespace(CLIENT)?;
            let link = Link::into(&uplink, &client, END)?;
            address_of(&client, CLIENT_ADDRESS)?;
            (client, Vec::new(), link)
        }
        PathScope::Across => {
            let host = namespace("host1")?;
            let client = end(CLIENT, &host, NEAR_CLIENT, CLIENT_ADDRESS)?;
            let link = Link::into(&uplink, &host, UPLINK)?;
            join(&host, &[NEAR_CLIENT, UPLINK])?;
            (client, vec![host], link)
        }
    };
    run("ip", &["link", "set", &uplink, "up"])?;
    let driver = match path {
        PathName::Ebpf => "driver = \"ebpf\"",
        // Its worker needs a CPU of its own.
        PathName::Hybrid => "driver = \"hybrid\"\nworkers = [0]",
        _ => "driver = \"soft\"",
    };
    let text = format!(
        "# Written by `inco bench paths`.\n[engine]\ndriver = {:?}\n\n[switch]\n{driver}\n\n[[uplink]]\nname = \
         \"wan\"\ndevice = \"kernel:{uplink}\"\n\n[service.server]\nvip = {{ address = {SERVICE:?}, ports = \
         \"80,{STORE_PORT},{FIRST_PORT}-{LAST_PORT}\" }}\nport = \"kernel\"\nready = \"connected\"\nimage = {WEB_SERVER_IMAGE:?}\ncommand = \
         [\"/usr/sbin/nginx\", \"-c\", \"/srv/container.conf\"]\nmounts = [\"{}:/srv:ro\"]\nmemory = \
         \"256MiB\"\ninstances = 1\nautoscaler = \"fixed\"\n",
        ground.environment.engine_word(),
        ground.root.display(),
    );
    let session = Session::start(&ground.environment, path.name(), &text, 1)?;
    let rows = session.client()?.instances()?;
    let pid = rows.iter().find_map(|row| row.pid);
    let server = Network::of_process(pid.context("the container has no process")?);
    Ok(Bed {
        programs: Vec::new(),
        session: Some(session),
        _switches: Vec::new(),
        _card: Vec::new(),
        client,
        server: Some(server),
        _namespaces: hosts,
        _links: vec![link],
        address: SERVICE,
        own: NEAR,
        next_hop: SERVICE,
        source: SOURCE,
        generator: Place::Ends,
        servers: 0,
        has_store: false,
    })
}

/// A service with one function, from whose uplink packets come and to which they go back.
pub(super) fn function<'g>(ground: &'g Ground, path: PathName) -> Result<Bed<'g>> {
    testbed::make_image(EngineName::Oci)?;
    let client = namespace(CLIENT)?;
    let mut links = Vec::new();
    let device = if path == PathName::AfXdp {
        let uplink = uplink_name();
        links.push(Link::into(&uplink, &client, END)?);
        address_of(&client, CLIENT_ADDRESS)?;
        run("ip", &["link", "set", &uplink, "up"])?;
        format!("net_af_xdp0,iface={uplink}")
    } else {
        "memif:wan.sock".to_owned()
    };
    let (mut command, mut mounts) = (vec!["/inco-nf"], Vec::new());
    if path == PathName::Esp {
        for (side, inside) in (1..).zip(GATEWAYS) {
            let file = ground.root.join(format!("gateway{side}.toml"));
            fs::write(&file, tunnel(side)).with_context(|| format!("cannot write {}", file.display()))?;
            mounts.push(format!("{}:{inside}:ro", file.display()));
        }
        let [enter, leave] = GATEWAYS;
        command.extend(["ipsec", "--config", enter, "--", "ipsec", "--config", leave]);
    } else {
        command.push("forward");
    }
    let text = format!(
        "# Written by `inco bench paths`.\n[engine]\ndriver = {:?}\n\n[[uplink]]\nname = \"wan\"\ndevice = \
         {device:?}\n\n[service.function]\nimage = {FORWARD_IMAGE:?}\ncommand = {command:?}\nmounts = {mounts:?}\nmemory = \
         \"64MiB\"\nring = {{ slots = 4096 }}\ninstances = 1\nautoscaler = \"fixed\"\n",
        ground.environment.engine_word(),
    );
    let session = Session::start(&ground.environment, path.name(), &text, 1)?;
    Ok(Bed {
        programs: Vec::new(),
        session: Some(session),
        _switches: Vec::new(),
        _card: Vec::new(),
        client,
        server: None,
        _namespaces: Vec::new(),
        _links: links,
        address: TUNNEL[1],
        own: TUNNEL[0],
        next_hop: TUNNEL[1],
        source: TUNNEL[0],
        generator: match path {
            PathName::AfXdp => Place::Client,
            _ => Place::Uplink,
        },
        servers: 0,
        has_store: false,
    })
}
