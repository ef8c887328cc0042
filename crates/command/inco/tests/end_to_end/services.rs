//! Services with an address, while their instances and inco itself come and go: no connection and no request notices.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use model::InstanceState;
use real_parts::is_full_length;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use testbed::http::Connection;

use crate::restart::{launcher_is_replaced, pids};
use crate::support::{Engine, Inco, Load, Network, PATIENCE, Place, Systemd, available, eventually};
use crate::upgrade::{copy_of_inco, program_of};

/// The services, each with the address that clients connect to: one whose instances carry it, and one for which it is
/// translated to theirs.
const SERVICES: [(&str, &str); 2] = [("web", "10.0.0.100:80"), ("api", "10.0.0.101:80")];
/// Clients of each service.
const CLIENTS: usize = 4;
/// For so long there is no inco, between one and the next.
const PAUSE: Duration = Duration::from_millis(300);
/// No connection lasts as long as this.
const DRAIN: &str = "600s";

/// nginx that serves files of `/srv`, and says at `/` which server it is. Keep-alive connections last.
const NGINX: &str = "daemon off;\nworker_processes 1;\nworker_rlimit_nofile 20000;\nuser root;\nerror_log stderr \
                     warn;\npid /tmp/nginx.pid;\nevents { worker_connections 16384; }\nhttp {\n  access_log off;\n  \
                     client_body_temp_path /tmp/b;\n  proxy_temp_path /tmp/p;\n  fastcgi_temp_path /tmp/f;\n  \
                     uwsgi_temp_path /tmp/u;\n  scgi_temp_path /tmp/s;\n  sendfile on;\n  keepalive_timeout 1h;\n  \
                     keepalive_requests 1000000;\n  server {\n    listen 80 backlog=4096;\n    listen 8080 \
                     backlog=4096;\n    location = / { return 200 $hostname; }\n    location /file/ { alias /srv/; \
                     limit_rate LIMIT_RATE; }\n  }\n}\n";

fn address(service: usize) -> SocketAddr {
    SERVICES[service].1.parse().unwrap()
}

fn are_here(engine: Engine) -> bool {
    let paths = ["/usr/bin", "/usr/sbin", "/sbin", "/bin"];
    let is_there = paths.iter().any(|path| Path::new(path).join("nginx").exists());
    available(
        "servers",
        (!is_there).then(|| "nginx is not installed".to_owned()),
    ) && engine.is_here()
}

/// Both services on one uplink. `/srv` is the folder `srv` of the place; `rate` limits a download, in bytes/s.
fn configuration(place: &Place, engine: Engine, driver: &str, rate: &str, instances: &str) -> String {
    place.must(&["image", "import", "nginx"]);
    let nginx = place.file("nginx.conf", &NGINX.replace("LIMIT_RATE", rate));
    let srv = place.path("srv");
    std::fs::create_dir_all(&srv).unwrap();
    let service = |number: usize, more: &str| {
        let (name, to) = SERVICES[number];
        let (address, port) = to.split_once(':').unwrap();
        format!(
            "[service.{name}]\nport = \"kernel\"\nvip = {{ address = \"{address}\", ports = \"{port}\"{more} }}\nimage = \
             \"nginx\"\ncommand = [\"/usr/sbin/nginx\", \"-c\", \"/etc/web.conf\"]\nmounts = \
             [\"{}:/etc/web.conf:ro\", \"{}:/srv:ro\"]\nmemory = \"256MiB\"\n{instances}\nautoscaler = \
             \"fixed\"\nscheduler = {{ policy = \"least-connections\", slow_start = \"0s\" }}\ndrain_deadline = \
             \"{DRAIN}\"\nready = {{ exec = [\"/usr/sbin/nginx\", \"-c\", \"/etc/web.conf\", \"-s\", \"reopen\"] }}\n",
            nginx.display(),
            srv.display(),
        )
    };
    format!(
        "{}[switch]\ndriver = \"{driver}\"\nebpf = {{ instance_addresses = \"10.0.0.128/25\" }}\ntimeouts = {{ tcp_linger \
         = \"100ms\" }}\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\n{}{}",
        engine.toml(),
        service(0, ""),
        service(1, ", mode = \"dnat\", target_port = 8080"),
    )
}

const ONE: &str = "instances = { min = 1, max = 4, standby = 0 }";

/// Asks for so many instances of each service, without waiting for them.
fn ask_for(place: &Place, count: usize) {
    for (service, _) in SERVICES {
        place.must(&["scale", service, &count.to_string()]);
    }
}

/// Waits until so many instances of each service are active.
fn are_active(inco: &Inco, count: usize) {
    eventually(&format!("{count} active instances of each"), PATIENCE, || {
        let rows = inco.instances();
        let all = SERVICES.iter().all(|(service, _)| {
            let of = rows.iter().filter(|row| row.service == *service);
            of.filter(|row| row.state == InstanceState::Active).count() == count
        });
        all.then_some(())
    });
}

/// Changes the number of instances of each service, and waits until those that drain have ended.
fn scale(place: &Place, inco: &Inco, count: usize) {
    ask_for(place, count);
    inco.settled(count * SERVICES.len(), 0);
    are_active(inco, count);
}

/// Nothing failed, and so many servers answered.
fn assert_unnoticed(load: Load, servers: usize, inco: &Inco) {
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.requests > 100 && outcome.servers == servers,
        "{outcome:#?}\n{}\n{:#?}",
        inco.told(),
        inco.status().drops
    );
    println!(
        "{} requests by {} servers, the longest took {:?}",
        outcome.requests, outcome.servers, outcome.longest
    );
}

fn no_connection_notices_scaling(engine: Engine, driver: &str) {
    /// How many there are after each change.
    const COUNTS: [usize; 6] = [2, 1, 3, 2, 4, 1];
    if !are_here(engine) {
        return;
    }
    let changes = if is_full_length() { 200 } else { 8 };
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let inco = network.run(&place, &configuration(&place, engine, driver, "0", ONE));
    inco.settled(2, 0);
    let loads: Vec<Load> = (0..SERVICES.len())
        .map(|service| Load::start(&network, address(service), CLIENTS))
        .collect();
    let (mut active, mut made) = (1, 1);
    for count in COUNTS.iter().cycle().take(changes) {
        scale(&place, &inco, *count);
        made += count.saturating_sub(active);
        active = *count;
        eventually("each one that was made answers", PATIENCE, || {
            let all = loads.iter().all(|load| load.first_answers().len() == made);
            all.then_some(())
        });
    }
    for load in loads {
        assert_unnoticed(load, made, &inco);
    }
    let status = inco.at_rest();
    assert_eq!(status.accounting.expected_moves, 0, "{status:#?}");
    inco.stop(&place);
}

#[test]
fn no_connection_notices_scaling_oci() {
    no_connection_notices_scaling(Engine::Oci, "ebpf");
}

#[test]
fn no_connection_notices_scaling_docker() {
    no_connection_notices_scaling(Engine::Docker, "ebpf");
}

#[test]
fn no_connection_notices_scaling_oci_soft() {
    no_connection_notices_scaling(Engine::Oci, "soft");
}

/// What the engine does and what the driver does are tested by themselves; both together at full length.
#[test]
fn no_connection_notices_scaling_docker_soft() {
    if is_full_length() {
        no_connection_notices_scaling(Engine::Docker, "soft");
    }
}

/// Kills inco, or its launcher and then inco, waits a moment and starts it again.
fn kill_and_run(place: &Place, network: &Network, inco: Inco, text: &str, with_launcher: bool) -> Inco {
    if with_launcher {
        // The next one has what the first one kept: with the driver `soft` that is the flow table.
        launcher_is_replaced(place, 0);
    }
    drop(inco.kill());
    std::thread::sleep(PAUSE);
    network.run(place, text)
}

/// Two servers of each service, which stay.
const TWO: &str = "instances = { min = 2, max = 4, standby = 0 }";

/// The packet sockets of inco's machine, by their numbers: a socket has one for as long as it is open.
fn packet_sockets(network: &Network) -> BTreeSet<u64> {
    let text = network.as_machine(|| std::fs::read_to_string("/proc/thread-self/net/packet").unwrap());
    let number = |line: &str| line.split_whitespace().last()?.parse().ok();
    text.lines().skip(1).filter_map(number).collect()
}

/// One inco takes over from another, again and again, beside requests: `next` ends the one and starts the other. All
/// is taken over each time, and no connection breaks.
fn no_connection_notices_the_next_inco(
    network: &Network,
    driver: &str,
    mut inco: Inco,
    rounds: usize,
    mut next: impl FnMut(Inco, usize) -> Inco,
) -> Inco {
    /// Sending a lost packet again takes at least 0.2 s, in Linux. Nothing else takes as long.
    const PAUSE_LIMIT: Duration = Duration::from_millis(200);
    let is_soft = driver == "soft";
    inco.settled(4, 0);
    let before = pids(&inco);
    let sockets = packet_sockets(network);
    assert_ne!(sockets.is_empty(), is_soft, "{sockets:?}");
    let loads: Vec<Load> = (0..SERVICES.len())
        .map(|service| Load::start(network, address(service), CLIENTS))
        .collect();
    for round in 0..rounds {
        let asked: Vec<u64> = loads.iter().map(Load::requests).collect();
        eventually("many requests are answered", PATIENCE, || {
            let more = loads
                .iter()
                .zip(&asked)
                .all(|(load, asked)| load.requests() > asked + 500);
            more.then_some(())
        });
        inco = next(inco, round);
        inco.settled(4, 0);
        assert_eq!(pids(&inco), before);
        let resumed = inco.status().resumed.expect("there was an earlier run");
        assert!(resumed.flows > 0 && resumed.unusable.is_empty(), "{resumed:?}");
        // One more is open for a moment, where addresses are announced.
        eventually("the same packet sockets are there", PATIENCE, || {
            (packet_sockets(network) == sockets).then_some(())
        });
    }
    for load in loads {
        let outcome = load.end();
        assert!(
            outcome.failures == 0 && outcome.servers == 2 && (is_soft || outcome.longest < PAUSE_LIMIT),
            "{outcome:#?}\n{}\n{:#?}",
            inco.told(),
            inco.status()
        );
    }
    let status = inco.at_rest();
    assert_eq!(status.accounting.expected_moves, 0, "{status:#?}");
    inco
}

fn no_connection_notices_a_kill_9(engine: Engine, driver: &str) {
    if !are_here(engine) {
        return;
    }
    let rounds = if is_full_length() { 20 } else { 3 };
    let (place, network) = (Place::quiet(), Network::new());
    let text = configuration(&place, engine, driver, "0", TWO);
    let inco = network.run(&place, &text);
    let next = |inco: Inco, round: usize| {
        let with_launcher = engine == Engine::Oci && round % 3 == 2;
        kill_and_run(&place, &network, inco, &text, with_launcher)
    };
    no_connection_notices_the_next_inco(&network, driver, inco, rounds, next).stop(&place);
}

#[test]
fn no_connection_notices_a_kill_9_of_inco_oci() {
    no_connection_notices_a_kill_9(Engine::Oci, "ebpf");
}

#[test]
fn no_connection_notices_a_kill_9_of_inco_docker() {
    no_connection_notices_a_kill_9(Engine::Docker, "ebpf");
}

#[test]
fn no_connection_ends_with_a_kill_9_of_inco_oci_soft() {
    no_connection_notices_a_kill_9(Engine::Oci, "soft");
}

#[test]
fn no_connection_ends_with_a_kill_9_of_inco_docker_soft() {
    if is_full_length() {
        no_connection_notices_a_kill_9(Engine::Docker, "soft");
    }
}

fn no_connection_notices_an_upgrade(engine: Engine, driver: &str) {
    if !are_here(engine) {
        return;
    }
    let rounds = if is_full_length() { 20 } else { 3 };
    let (place, network) = (Place::quiet(), Network::new());
    let inco = network.run(&place, &configuration(&place, engine, driver, "0", TWO));
    let programs = ["first", "second"].map(|name| copy_of_inco(&place, name));
    let next = |inco: Inco, round: usize| {
        let (before, program) = (inco.status().pid, &programs[round % 2]);
        // Who asks for it checks the configuration, and looks for the interfaces that it names.
        let ask = || place.must(&["upgrade", "--program", program.to_str().unwrap()]);
        let said = network.as_machine(ask);
        assert!(said.contains("adopted 4 containers"), "{said}");
        let now = inco.status().pid;
        assert!(now != before && program_of(now) == *program, "{said}");
        inco
    };
    no_connection_notices_the_next_inco(&network, driver, inco, rounds, next).stop(&place);
    place.is_left_clean();
}

#[test]
fn no_connection_notices_an_upgrade_oci() {
    no_connection_notices_an_upgrade(Engine::Oci, "ebpf");
}

#[test]
fn no_connection_notices_an_upgrade_docker() {
    if is_full_length() {
        no_connection_notices_an_upgrade(Engine::Docker, "ebpf");
    }
}

#[test]
fn no_connection_ends_with_an_upgrade_oci_soft() {
    no_connection_notices_an_upgrade(Engine::Oci, "soft");
}

/// SIGTERM of systemd, and a next run in time. Without one, all is removed; the programs of the driver `ebpf` forward
/// until then.
fn what_systemd_stops_goes_on_and_then_is_removed(driver: &str) {
    if !are_here(Engine::Oci) {
        return;
    }
    let rounds = if is_full_length() { 20 } else { 2 };
    let (place, network) = (Place::quiet(), Network::new());
    let systemd = Systemd::new(&place);
    let text = configuration(&place, Engine::Oci, driver, "0", TWO);
    let text = |linger: &str| text.replacen("[engine]\n", &format!("[engine]\nlinger = \"{linger}\"\n"), 1);
    let run = |text: &str| network.as_machine(|| systemd.run(text));
    let log = || std::fs::read_to_string(place.path("inco.log")).unwrap_or_default();
    let interfaces = || {
        let text = network.as_machine(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        text.lines().filter(|line| line.contains(':')).count()
    };
    let inco = run(&text("60s"));
    let next = |inco: Inco, round: usize| {
        let traces = inco.terminated();
        systemd.hears("STOPPING=1");
        assert_eq!(traces.processes_alive().len(), 4, "{}", log());
        std::thread::sleep(PAUSE);
        run(&text(if round + 1 < rounds { "60s" } else { "10s" }))
    };
    let inco = no_connection_notices_the_next_inco(&network, driver, inco, rounds, next);
    let before = interfaces();
    assert!(before > 2, "lo, eth1, and those towards instances");
    let traces = inco.terminated();
    if driver == "ebpf" {
        network.get("http://10.0.0.100/").unwrap();
    }
    let there = (interfaces(), traces.processes_alive().len());
    assert_eq!(there, (before, 4), "{}", log());
    place.is_left_clean();
    traces.assert_nothing_left();
    assert_eq!((interfaces(), packet_sockets(&network)), (2, BTreeSet::new()));
}

#[test]
fn what_systemd_stops_goes_on_and_then_is_removed_ebpf() {
    what_systemd_stops_goes_on_and_then_is_removed("ebpf");
}

#[test]
fn what_systemd_stops_waits_and_then_is_removed_soft() {
    what_systemd_stops_goes_on_and_then_is_removed("soft");
}

/// Without a running inco, `inco stop` removes what a killed one left, also in the kernel: programs, maps, interfaces,
/// packet sockets.
fn stop_removes_what_a_killed_inco_left(driver: &str) {
    if !are_here(Engine::Oci) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let inco = network.run(&place, &configuration(&place, Engine::Oci, driver, "0", ONE));
    inco.settled(2, 0);
    let shown = |program: &str, arguments: &[&str]| {
        let output = network.as_machine(|| Command::new(program).args(arguments).output().unwrap());
        String::from_utf8(output.stdout).unwrap()
    };
    let interfaces = || shown("ip", &["-o", "link"]).lines().count();
    let filters = || shown("tc", &["filter", "show", "dev", "eth1", "ingress"]);
    let before = interfaces();
    assert!(before > 2, "lo, eth1, and those towards instances");
    assert_eq!(filters().is_empty(), driver != "ebpf", "{}", filters());
    // A run's maps are in a folder of its own. Other tests have theirs.
    let folders = || -> BTreeSet<PathBuf> {
        let there = std::fs::read_dir("/sys/fs/bpf/inco")
            .into_iter()
            .flatten()
            .flatten();
        there.map(|folder| folder.path()).collect()
    };
    let with_it = folders();
    let traces = inco.kill();
    assert_eq!(traces.processes_alive().len(), 2);
    if driver == "ebpf" {
        // Nobody is there, and the programs forward.
        assert!(network.get("http://10.0.0.100/").unwrap().contains("-web-"));
    }
    let said = network.as_machine(|| place.must(&["stop"]));
    assert!(
        said.contains("2 containers of an earlier run are removed"),
        "{said}"
    );
    traces.assert_nothing_left();
    assert_eq!((interfaces(), filters()), (2, String::new()));
    assert_eq!(packet_sockets(&network), BTreeSet::new());
    if driver == "ebpf" {
        let gone: Vec<_> = with_it.difference(&folders()).cloned().collect();
        assert!(!gone.is_empty(), "the maps stay: {with_it:?}");
    }
    network.get("http://10.0.0.100/").unwrap_err();
}

#[test]
fn stop_removes_what_a_killed_inco_left_ebpf() {
    stop_removes_what_a_killed_inco_left("ebpf");
}

#[test]
fn stop_removes_what_a_killed_inco_left_soft() {
    stop_removes_what_a_killed_inco_left("soft");
}

/// They stay open while instances come, drain with them, and inco is killed twice.
fn many_connections_outlast_scaling_and_a_kill_9(driver: &str) {
    if !are_here(Engine::Oci) {
        return;
    }
    let count = if is_full_length() { 10_000 } else { 1_000 };
    let limit = getrlimit(Resource::Nofile);
    let files = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, files).unwrap();
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let text = configuration(&place, Engine::Oci, driver, "0", ONE);
    let mut inco = network.run(&place, &text);
    inco.settled(2, 0);
    let open = |service: usize, count: usize| {
        network.as_client(|| {
            let one = |_| {
                let mut connection = Connection::open(address(service)).unwrap();
                let server = connection.get("/", false).unwrap();
                (connection, server)
            };
            (0..count).map(one).collect::<Vec<_>>()
        })
    };
    let mut connections = Vec::new();
    for instances in [1, 2, 4] {
        ask_for(&place, instances);
        are_active(&inco, instances);
        for service in 0..SERVICES.len() {
            connections.extend(open(service, count / 6));
        }
    }
    // Three of four drain, with the connections that they have.
    ask_for(&place, 1);
    eventually("the others drain", PATIENCE, || {
        (inco.count(InstanceState::Draining) == 6).then_some(())
    });
    for with_launcher in [false, true] {
        inco = kill_and_run(&place, &network, inco, &text, with_launcher);
        eventually("all are there", PATIENCE, || {
            (inco.instances().len() == 8).then_some(())
        });
        let mut failures = Vec::new();
        for (connection, server) in &mut connections {
            match connection.get("/", false) {
                Ok(now) if now == *server => {}
                other => failures.push((server.clone(), other)),
            }
        }
        assert!(failures.is_empty(), "{failures:#?}\n{}", inco.told());
    }
    let live: u64 = inco.instances().iter().map(|row| row.live_flows).sum();
    assert_eq!(live, connections.len() as u64, "{:#?}", inco.instances());
    drop(connections);
    // With their connections, those that drain end.
    scale(&place, &inco, 1);
    assert_eq!(inco.at_rest().accounting.expected_moves, 0);
    inco.stop(&place);
}

#[test]
fn many_connections_outlast_scaling_and_a_kill_9_of_inco() {
    many_connections_outlast_scaling_and_a_kill_9("ebpf");
}

#[test]
fn many_connections_outlast_scaling_and_a_kill_9_of_inco_soft() {
    many_connections_outlast_scaling_and_a_kill_9("soft");
}

/// Files that are downloaded meanwhile are whole.
fn downloads_are_whole_across_scaling_and_a_kill_9(driver: &str) {
    /// A prime number: what is left out or comes twice does not fit.
    const PATTERN: usize = 1_048_573;
    /// Downloads of each service.
    const DOWNLOADS: usize = 3;
    if !are_here(Engine::Oci) {
        return;
    }
    // They take about as long as four changes and a restart.
    let (bytes, rate) = if is_full_length() {
        (1_u64 << 30, "64m")
    } else {
        (32 << 20, "4m")
    };
    let mut state = 1_u64;
    let pattern: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(PATTERN)
    .collect();
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let text = configuration(&place, Engine::Oci, driver, rate, ONE);
    let mut file = std::io::BufWriter::new(std::fs::File::create(place.path("srv").join("data")).unwrap());
    let mut left = bytes as usize;
    while left > 0 {
        let part = left.min(PATTERN);
        std::io::Write::write_all(&mut file, &pattern[..part]).unwrap();
        left -= part;
    }
    drop(file);
    let inco = network.run(&place, &text);
    inco.settled(2, 0);
    ask_for(&place, 2);
    are_active(&inco, 2);
    let started = Instant::now();
    let pattern = &pattern;
    let inco = std::thread::scope(|scope| {
        let mut downloads = Vec::new();
        for service in 0..SERVICES.len() {
            for _ in 0..DOWNLOADS {
                let network = &network;
                downloads.push(scope.spawn(move || {
                    network.as_client(|| {
                        let mut connection = Connection::open(address(service)).unwrap();
                        let mut at = 0;
                        let got = connection.fetch("/file/data", true, |mut part| {
                            while !part.is_empty() {
                                let here = &pattern[at % PATTERN..];
                                let count = here.len().min(part.len());
                                assert!(part[..count] == here[..count], "other bytes than sent, near {at}");
                                (part, at) = (&part[count..], at + count);
                            }
                        });
                        (got, started.elapsed())
                    })
                }));
            }
        }
        for count in [4, 1] {
            ask_for(&place, count);
            are_active(&inco, count);
        }
        let inco = kill_and_run(&place, &network, inco, &text, false);
        let changed = started.elapsed();
        for download in downloads {
            let (got, ended) = download.join().unwrap();
            assert_eq!(got.unwrap(), bytes, "{}", inco.told());
            assert!(ended > changed, "it took {ended:?}, and the changes {changed:?}");
        }
        inco
    });
    scale(&place, &inco, 1);
    inco.stop(&place);
}

#[test]
fn downloads_are_whole_across_scaling_and_a_kill_9_of_inco() {
    downloads_are_whole_across_scaling_and_a_kill_9("ebpf");
}

#[test]
fn downloads_are_whole_across_scaling_and_a_kill_9_of_inco_soft() {
    downloads_are_whole_across_scaling_and_a_kill_9("soft");
}

/// The time from a rise of the load until an instance that was added for it answers its first request.
fn added_instances_answer_soon(standby: u32, limit: Duration) {
    /// Clients before the rise, and those that come then.
    const LIGHT: usize = 1;
    const HEAVY: usize = 8;
    if !are_here(Engine::Oci) {
        return;
    }
    let rounds = if is_full_length() { 20 } else { 4 };
    let (place, network) = (Place::quiet(), Network::new());
    // Two services would disturb each other's measurement.
    let text = configuration(
        &place,
        Engine::Oci,
        "ebpf",
        "0",
        &format!("instances = {{ min = 1, max = 2, standby = {standby} }}\ncapacity = \"3kpps\""),
    )
    .replace(
        "autoscaler = \"fixed\"",
        "autoscaler = { policy = \"ladder\", window = \"100ms\", calm = \"100ms\", burst = \"100ms\" }",
    );
    let text = text.split("[service.api]").next().unwrap();
    let inco = network.run(&place, text);
    let light = Load::start(&network, address(0), LIGHT);
    let mut times = Vec::new();
    for _ in 0..rounds {
        inco.settled(1, standby as usize);
        let rise = Instant::now();
        let heavy = Load::start(&network, address(0), HEAVY);
        // The second server that answers those clients is the one that was added.
        let added = eventually("a second server answers", PATIENCE, || {
            heavy.first_answers().get(1).copied()
        });
        times.push(added.duration_since(rise));
        let outcome = heavy.end();
        assert_eq!(outcome.failures, 0, "{}", inco.told());
    }
    let outcome = light.end();
    assert_eq!(outcome.failures, 0, "{}", inco.told());
    times.sort_unstable();
    println!("{standby} on standby: answers {times:?} after the load has risen");
    let median = times[times.len() / 2];
    // A short run on a machine that does other things shows that it works.
    let limit = if is_full_length() { limit } else { 5 * limit };
    assert!(median <= limit, "{times:?}");
    inco.stop(&place);
}

#[test]
fn a_warm_instance_answers_soon_after_the_load_rises() {
    added_instances_answer_soon(1, Duration::from_millis(20));
}

#[test]
fn a_new_container_answers_soon_after_the_load_rises() {
    added_instances_answer_soon(0, Duration::from_millis(150));
}

/// How often the threads of a process have gone to sleep.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    tasks.filter_map(of).sum()
}

/// Without a packet, inco wakes up now and then; with packets, each millisecond.
#[test]
fn an_idle_inco_rests() {
    const SECOND: Duration = Duration::from_secs(1);
    if !are_here(Engine::Oci) {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let inco = network.run(&place, &configuration(&place, Engine::Oci, "ebpf", "0", ONE));
    inco.settled(2, 0);
    let in_a_second = || {
        let before = sleeps(inco.pid());
        std::thread::sleep(SECOND);
        sleeps(inco.pid()) - before
    };
    assert!(network.get("http://10.0.0.100/").unwrap().contains("-web-"));
    let busy = in_a_second();
    let idle = eventually("it rests", PATIENCE, || {
        Some(in_a_second()).filter(|count| *count < 200)
    });
    println!("it sleeps {busy} times in the second after a packet, {idle} times in one without");
    assert!(network.get("http://10.0.0.101/").unwrap().contains("-api-"));
    let busy = in_a_second();
    assert!(busy > 500, "it turned {busy} times in the second after a packet");
    inco.stop(&place);
}
