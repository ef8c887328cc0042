//! Servers that others run, behind an address: real nginx in network namespaces that inco knows nothing of.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use api::types::InstanceRow;
use model::{InstanceState, VipMode};

use crate::support::{Inco, Load, Namespace, Network, PATIENCE, Place, available, bridge, eventually, text};

/// The service's address.
pub(crate) const SERVICE: &str = "10.0.0.100:80";
pub(crate) const CLIENTS: usize = 4;

/// Whether nginx and network namespaces are here.
pub(crate) fn are_here() -> bool {
    let paths = ["/usr/bin", "/usr/sbin", "/sbin", "/bin"];
    let is_there = paths.iter().any(|path| Path::new(path).join("nginx").exists());
    let is_root = rustix::process::geteuid().is_root();
    available("root", (!is_root).then(|| "this is not run as root".to_owned()))
        && available(
            "servers",
            (!is_there).then(|| "nginx is not installed".to_owned()),
        )
}

/// A machine with nginx, behind the bridge of inco's machine. Its default route leads there.
pub(crate) struct Server {
    address: &'static str,
    host: Namespace,
    program: Option<Child>,
    configuration: std::path::PathBuf,
}

impl Server {
    pub(crate) fn new(network: &Network, place: &Place, number: u8, address: &'static str) -> Server {
        let host = Namespace::new();
        let (ip, port) = address.split_once(':').unwrap();
        network.machine_ip(&format!(
            "link add to-{number} type veth peer name eth0 netns {}\nlink set to-{number} master lan up",
            host.pid()
        ));
        host.ip(&format!(
            "link set lo up\naddress add {ip}/24 dev eth0\nlink set eth0 up\nroute add default via 10.1.0.1"
        ));
        let temporary = place.path(&format!("server-{number}"));
        std::fs::create_dir_all(&temporary).unwrap();
        let temporary = temporary.display();
        let configuration = place.file(
            &format!("server-{number}.conf"),
            &format!(
                "daemon off;\nworker_processes 1;\nuser root;\nerror_log {temporary}/log;\npid {temporary}/pid;\nevents {{ \
                 worker_connections 1024; }}\nhttp {{\n  access_log off;\n  client_body_temp_path {temporary}/b;\n  \
                 proxy_temp_path {temporary}/p;\n  fastcgi_temp_path {temporary}/f;\n  uwsgi_temp_path {temporary}/u;\n  \
                 scgi_temp_path {temporary}/s;\n  keepalive_timeout 1h;\n  keepalive_requests 1000000;\n  server {{\n    \
                 listen {port};\n    location / {{ return 200 \"{address}\"; }}\n  }}\n}}\n"
            ),
        );
        let mut server = Server {
            address,
            host,
            program: None,
            configuration,
        };
        server.start();
        server
    }

    pub(crate) fn start(&mut self) {
        let configuration = self.configuration.display().to_string();
        let mut command = self.host.command("nginx", &["-c", &configuration]);
        self.program = Some(command.stderr(Stdio::null()).spawn().unwrap());
        eventually("nginx serves", PATIENCE, || {
            let to: SocketAddr = self.address.parse().unwrap();
            self.host.within(|| std::net::TcpStream::connect(to)).ok()
        });
    }

    /// Kills it and its worker, as a crash does.
    pub(crate) fn kill(&mut self) {
        let mut program = self.program.take().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", program.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        program.kill().unwrap();
        program.wait().unwrap();
        for child in children.split_whitespace() {
            crate::support::kill(child.parse().unwrap(), rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.program.is_some() {
            self.kill();
        }
    }
}

/// The client's network, and inco's machine with a bridge `lan` beside it.
pub(crate) fn network() -> Network {
    let network = Network::new();
    network.machine_ip(&format!(
        "{}\naddress add 10.1.0.1/24 dev lan\nlink set lan up",
        bridge("lan")
    ));
    network
}

fn configuration(from: &[&str], health: &str) -> String {
    format!(
        "[switch]\ndriver = \"ebpf\"\ntimeouts = {{ tcp_linger = \"100ms\" }}\n[[uplink]]\nname = \"wan\"\ndevice = \
         \"kernel:eth1\"\n[[uplink]]\nname = \"lan\"\ndevice = \"kernel:lan\"\n[service.web]\nuplinks = [\"wan\"]\nvip = {{ \
         address = \"10.0.0.100\", ports = 80, mode = \"{}\" }}\ninstances = {{ from = {from:?}, max = 4 }}\nscheduler = {{ \
         policy = \"round-robin\", slow_start = \"0s\" }}\ndrain_deadline = \"30s\"\n{health}",
        VipMode::Dnat.name()
    )
}

/// Fails after two checks, and is back after two.
pub(crate) const HEALTH: &str = "health = { http = \"/\", every = \"200ms\", fall = 2, rise = 2 }\n";

pub(crate) fn row(inco: &Inco, address: &str) -> Option<InstanceRow> {
    let mut rows = inco.instances().into_iter();
    rows.rfind(|row| row.address.as_deref() == Some(address))
}

pub(crate) fn is_active(inco: &Inco, address: &str) {
    eventually(&format!("{address} is active"), PATIENCE, || {
        row(inco, address).filter(|row| row.state == InstanceState::Active)
    });
}

/// New requests, all of which are answered, by so many servers.
pub(crate) fn all_are_answered(network: &Network, inco: &Inco, servers: usize) {
    let load = Load::start(network, SERVICE.parse().unwrap(), CLIENTS);
    eventually("some requests are answered", PATIENCE, || {
        (load.requests() > 300).then_some(())
    });
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.servers == servers,
        "{outcome:#?}\n{}\n{:#?}",
        inco.told(),
        inco.instances()
    );
}

/// A server comes and one goes by reload, one is drained, one is killed and comes back: requests fail by the kill alone.
#[test]
fn others_servers_are_added_drained_removed_and_lost() {
    if !are_here() {
        return;
    }
    const FIRST: &str = "10.1.0.11:8081";
    const SECOND: &str = "10.1.0.12:8082";
    const THIRD: &str = "10.1.0.13:80";
    let (place, network) = (Place::with_a_cpu(), network());
    let _first = Server::new(&network, &place, 1, FIRST);
    let mut second = Server::new(&network, &place, 2, SECOND);
    let _third = Server::new(&network, &place, 3, THIRD);
    let file = place.file("back-ends.toml", &configuration(&[FIRST, SECOND], HEALTH));
    let inco = network.run_file(&place, &file);
    is_active(&inco, FIRST);
    is_active(&inco, SECOND);

    let refused = place.output(&["scale", "web", "1"]);
    let said = text(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("servers that others run") && said.contains("inco reload"),
        "{said}"
    );

    let load = Load::start(&network, SERVICE.parse().unwrap(), CLIENTS);
    eventually("both answer", PATIENCE, || {
        (load.first_answers().len() == 2).then_some(())
    });
    let reload = |from: &[&str]| {
        std::fs::write(&file, configuration(from, HEALTH)).unwrap();
        network.as_machine(|| place.must(&["reload"]));
    };
    reload(&[FIRST, SECOND, THIRD]);
    eventually("the new one answers, too", PATIENCE, || {
        (load.first_answers().len() == 3).then_some(())
    });
    let id = row(&inco, FIRST).unwrap().id.to_string();
    place.must(&["drain", &id]);
    let drained =
        || row(&inco, FIRST).filter(|row| row.state == InstanceState::Draining && row.live_flows == 0);
    eventually("the first one is empty", PATIENCE, drained);
    let before = row(&inco, FIRST).unwrap().to_packets;
    let asked = load.requests();
    eventually("the others answer more", PATIENCE, || {
        (load.requests() > asked + 300).then_some(())
    });
    // It stays, and gets nothing.
    let row_now = row(&inco, FIRST).unwrap();
    assert_eq!(
        (row_now.state, row_now.to_packets),
        (InstanceState::Draining, before)
    );
    place.must(&["undrain", &id]);
    is_active(&inco, FIRST);
    reload(&[FIRST, SECOND]);
    eventually("the third one has gone", PATIENCE, || {
        row(&inco, THIRD).is_none().then_some(())
    });
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.servers == 3,
        "{outcome:#?}\n{}\n{:#?}",
        inco.told(),
        inco.status().drops
    );
    assert_eq!(inco.at_rest().accounting.expected_moves, 0);

    second.kill();
    eventually("the killed one fails", PATIENCE, || {
        row(&inco, SECOND).filter(|row| row.reason.contains("refuses the connection"))
    });
    all_are_answered(&network, &inco, 1);
    second.start();
    eventually("it is back", PATIENCE, || {
        row(&inco, SECOND).filter(|row| !row.reason.contains("failing"))
    });
    all_are_answered(&network, &inco, 2);
    let status = inco.at_rest();
    assert_eq!(status.accounting.in_flight, 0, "{status:#?}");
    drop(inco.stop_with(&place, &[]));
    place.is_left_clean();
}

/// After `kill -9` the next inco goes on with the same servers: no connection breaks.
#[test]
fn connections_to_others_servers_outlast_a_kill_9_of_inco() {
    if !are_here() {
        return;
    }
    const FIRST: &str = "10.1.0.11:8081";
    const SECOND: &str = "10.1.0.12:8082";
    let (place, network) = (Place::quiet(), network());
    let _servers = [
        Server::new(&network, &place, 1, FIRST),
        Server::new(&network, &place, 2, SECOND),
    ];
    let text = configuration(&[FIRST, SECOND], HEALTH);
    let mut inco = network.run(&place, &text);
    is_active(&inco, FIRST);
    is_active(&inco, SECOND);
    let load = Load::start(&network, SERVICE.parse().unwrap(), CLIENTS);
    for text in [&text, &configuration(&[SECOND, FIRST], HEALTH)] {
        let asked = load.requests();
        eventually("many requests are answered", PATIENCE, || {
            (load.requests() > asked + 300).then_some(())
        });
        drop(inco.kill());
        std::thread::sleep(Duration::from_millis(300));
        inco = network.run(&place, text);
        is_active(&inco, FIRST);
        is_active(&inco, SECOND);
        let resumed = inco.status().resumed.expect("there was an earlier run");
        assert!(resumed.unusable.is_empty(), "{resumed:?}");
    }
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.servers == 2,
        "{outcome:#?}\n{}\n{:#?}",
        inco.told(),
        inco.status()
    );
    assert_eq!(inco.at_rest().accounting.expected_moves, 0);
    drop(inco.stop_with(&place, &[]));
    place.is_left_clean();
}

/// A server that no route leads to, or by no uplink, is said to be so; the other one serves.
#[test]
fn a_server_that_no_uplink_reaches_is_said_to_be_so() {
    if !are_here() {
        return;
    }
    const HERE: &str = "10.1.0.11:8081";
    let (place, network) = (Place::new(), network());
    let _server = Server::new(&network, &place, 1, HERE);
    network.machine_ip(&format!(
        "{}\naddress add 10.2.0.1/24 dev other\nlink set other up",
        bridge("other")
    ));
    let inco = network.run(
        &place,
        &configuration(&[HERE, "10.2.0.5:80", "192.0.2.9:80"], HEALTH),
    );
    is_active(&inco, HERE);
    for (address, why) in [
        ("10.2.0.5:80", "device = \"kernel:other\""),
        ("192.0.2.9:80", "no route leads to 192.0.2.9"),
    ] {
        eventually(why, PATIENCE, || {
            row(&inco, address).filter(|row| row.state == InstanceState::Starting && row.reason.contains(why))
        });
    }
    all_are_answered(&network, &inco, 1);
    drop(inco.stop_with(&place, &[]));
    place.is_left_clean();
}
