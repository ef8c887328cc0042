//! Services with an address: ordinary programs with the kernel's network. When they are ready, how they are checked,
//! and what happens to those that stall.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use model::{Event, EventKind, InstanceId, InstanceState};
use real_parts::is_full_length;
use rustix::process::Signal;

use crate::support::{
    Engine, Inco, Network, PATIENCE, Place, Session, available, changes, eventually, example, kill,
};

/// What an image of this machine needs for a program that listens when it is told to.
const PROGRAMS: [&str; 3] = ["sh", "sleep", "nc"];

pub(crate) fn are_here(engine: Engine, programs: &[&str]) -> bool {
    let lacks = |program: &&str| {
        let paths = ["/usr/bin", "/usr/sbin", "/sbin", "/bin"];
        (!paths.iter().any(|path| Path::new(path).join(program).exists()))
            .then(|| format!("{program} is not installed"))
    };
    let missing = programs.iter().find_map(lacks);
    available("servers", missing) && engine.is_here()
}

/// A service with an address on a machine with `eth1`; other keys of the service follow.
pub(crate) fn service(engine: Engine, driver: &str, name: &str, ports: &str) -> String {
    format!(
        "{}[switch]\ndriver = \"{driver}\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth1\"\n[service.{name}]\nport = \
         \"kernel\"\nvip = {{ address = \"10.0.0.100\", ports = \"{ports}\" }}\nmemory = \"64MiB\"\n",
        engine.toml()
    )
}

fn an_instance_is_ready_when_its_program_listens(engine: Engine, driver: &str) {
    if !are_here(engine, &PROGRAMS) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let image = "inco-test/late";
    place.import_image(image, &PROGRAMS);
    let flag = place.path("flag");
    std::fs::create_dir(&flag).unwrap();
    let listens = |port: u16| format!("nc -lk{} {port}", if port == 53 { "u" } else { "" });
    let script = format!(
        "while ! [ -e /run/flag/ready ]; do sleep 0.01; done; {} & {} & exec {}",
        listens(80),
        listens(53),
        listens(8042)
    );
    let text = format!(
        "{}image = \"{image}\"\ncommand = [\"/bin/sh\", \"-c\", \"{script}\"]\ninstances = 2\nautoscaler = \"fixed\"\n\
         mounts = [\"{}:/run/flag:ro\"]\nready_deadline = \"60s\"\nstop_grace = \"100ms\"\n",
        service(engine, driver, "late", "80,53,8000-8099"),
        flag.display()
    );
    let inco = network.run(&place, &text);
    eventually("what is missing is shown", PATIENCE, || {
        let rows = inco.instances();
        let waits = |row: &api::types::InstanceRow| {
            row.state == InstanceState::Starting && row.reason == "its program does not listen on port 80 yet"
        };
        (rows.len() == 2 && rows.iter().all(waits)).then_some(())
    });
    std::fs::write(flag.join("ready"), "yes\n").unwrap();
    let rows = inco.settled(2, 0);
    let events = inco.events();
    for row in rows {
        let reasons: Vec<String> = changes(&events, row.id)
            .into_iter()
            .map(|(_, _, why)| why)
            .collect();
        assert!(reasons.contains(&"its program listens".to_owned()), "{reasons:?}");
    }
    inco.stop(&place);
}

#[test]
fn an_instance_is_ready_when_its_program_listens_oci() {
    an_instance_is_ready_when_its_program_listens(Engine::Oci, "ebpf");
}

#[test]
fn an_instance_is_ready_when_its_program_listens_soft() {
    an_instance_is_ready_when_its_program_listens(Engine::Oci, "soft");
}

#[test]
fn an_instance_is_ready_when_its_program_listens_docker() {
    an_instance_is_ready_when_its_program_listens(Engine::Docker, "ebpf");
}

/// Changes the number of instances while somebody asks again and again. No question may fail.
fn scaled(place: &Place, inco: &Inco, service: &str, counts: &[usize], ask: impl Fn()) {
    for count in counts {
        place.must(&["scale", service, &count.to_string()]);
        // Each is used as soon as it serves, which is before it is known to do so here.
        eventually("it is scaled", PATIENCE, || {
            (0..8).for_each(|_| ask());
            (inco.count(InstanceState::Active) == *count).then_some(())
        });
        (0..20).for_each(|_| ask());
    }
}

#[test]
fn the_nginx_example_runs_as_it_is() {
    if !are_here(Engine::Oci, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    place.must(&["image", "import", "nginx"]);
    let file = example("nginx.toml");
    let inco = network.run_file(&place, &file);
    inco.settled(1, 1);
    scaled(&place, &inco, "web", &[4, 1, 3, 1], || {
        let body = network.get("http://10.0.0.100/").unwrap();
        assert!(body.contains("nginx"), "{body}");
    });
    inco.stop(&place);
}

#[test]
fn the_haproxy_example_runs_as_it_is() {
    if !are_here(Engine::Oci, &["haproxy", "nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    place.must(&["image", "import", "haproxy"]);
    network.machine_ip("address add 10.0.0.3/24 dev eth1");
    network.client_ip("address add 10.0.0.10/24 dev eth0");
    let root = place.path("served");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("index.html"), "from outside\n").unwrap();
    let own = NGINX
        .replace("listen 80", "listen 10.0.0.10:8080")
        .replace("/tmp/", &place.path("").display().to_string())
        .replace("/srv", &root.display().to_string());
    let own = place.file("outside.conf", &own);
    let mut outside = network
        .client("/usr/sbin/nginx", &["-c", own.to_str().unwrap()])
        .spawn()
        .unwrap();
    eventually("the server outside listens", PATIENCE, || {
        network.get("http://10.0.0.10:8080/").ok()
    });
    let inco = network.run_file(&place, &example("haproxy.toml"));
    inco.settled(2, 1);
    scaled(&place, &inco, "balancer", &[4, 2, 3, 2], || {
        assert_eq!(network.get("http://10.0.0.100/").unwrap(), "from outside\n");
    });
    outside.kill().unwrap();
    outside.wait().unwrap();
    // HAProxy says so, and is healthy itself.
    let said = network.get("http://10.0.0.100/").unwrap_err();
    assert!(said.contains("503"), "{said}");
    assert!(!inco.told().contains("Health"), "{}", inco.told());
    let status = inco.at_rest();
    assert_eq!(
        status.drops.get("spoofed").copied().unwrap_or(0),
        0,
        "{:?}",
        status.drops
    );
    inco.stop(&place);
}

#[test]
fn the_dns_example_runs_as_it_is() {
    if !are_here(Engine::Oci, &["dnsmasq", "dig"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    place.must(&["image", "import", "dnsmasq"]);
    let inco = network.run_file(&place, &example("dns.toml"));
    inco.settled(2, 1);
    let dig = |more: &[&str]| {
        let usual = ["@10.0.0.53", "www.example.test", "+short", "+tries=1", "+time=5"];
        let said = network.client("dig", &[&usual, more].concat()).output().unwrap();
        String::from_utf8(said.stdout).unwrap()
    };
    let is_answered = || {
        for more in [&[][..], &["+tcp"]] {
            assert_eq!(dig(more), "192.0.2.80\n", "{more:?}");
        }
    };
    scaled(&place, &inco, "dns", &[4, 2], is_answered);
    // One that hangs gets no more questions.
    let rows = inco.settled(2, 1);
    kill(rows[0].pid.unwrap(), Signal::STOP);
    let why = eventually("it is noticed", PATIENCE, || {
        let (takes, why) = health_events(&inco, rows[0].id).pop()?;
        (!takes).then_some(why)
    });
    assert_eq!(
        why,
        "3 checks in a row did not pass: port 53 does not answer the question in time"
    );
    // One whose checks do not pass for 10 s has failed, for good.
    (0..4).for_each(|_| is_answered());
    kill(rows[0].pid.unwrap(), Signal::CONT);
    eventually("it is back", PATIENCE, || {
        health_events(&inco, rows[0].id).pop()?.0.then_some(())
    });
    inco.stop(&place);
}

/// nginx as one process, so that a signal stops all of it: it serves files of `/srv`.
const NGINX: &str = "daemon off;\nmaster_process off;\nuser root;\nerror_log stderr warn;\npid /tmp/nginx.pid;\nevents \
                     {}\nhttp { access_log off; client_body_temp_path /tmp/b; proxy_temp_path /tmp/p; \
                     fastcgi_temp_path /tmp/f; uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s; sendfile on; server { \
                     listen 80; root /srv; } }\n";

/// A service of such servers. `/srv` is the folder `srv` of the place.
pub(crate) fn nginx(place: &Place, engine: Engine, driver: &str, more: &str) -> String {
    place.must(&["image", "import", "nginx"]);
    let configuration = place.file("nginx.conf", NGINX);
    let srv = place.path("srv");
    if !srv.exists() {
        std::fs::create_dir(&srv).unwrap();
        std::fs::write(srv.join("index.html"), "served\n").unwrap();
    }
    format!(
        "{}image = \"nginx\"\ncommand = [\"/usr/sbin/nginx\", \"-c\", \"/etc/web.conf\"]\nmounts = \
         [\"{}:/etc/web.conf:ro\", \"{}:/srv:ro\"]\nautoscaler = \"fixed\"\nstop_grace = \"1s\"\n{more}",
        service(engine, driver, "web", "80"),
        configuration.display(),
        srv.display()
    )
}

fn health_events(inco: &Inco, id: InstanceId) -> Vec<(bool, String)> {
    let of = |event: Event| match event.kind {
        EventKind::Health { takes, reason, .. } if event.instance == Some(id) => Some((takes, reason)),
        _ => None,
    };
    inco.events().into_iter().filter_map(of).collect()
}

fn a_stalled_instance_gets_no_new_flows_and_is_replaced(engine: Engine, driver: &str) {
    if !are_here(engine, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let text = nginx(
        &place,
        engine,
        driver,
        "instances = { min = 2, max = 3, standby = 0 }\ndrain_deadline = \"60s\"\nscheduler = { policy = \
         \"round-robin\", slow_start = \"0s\" }\nhealth = { http = \"/\", every = \"200ms\", timeout = \"150ms\" }\n",
    );
    let inco = network.run(&place, &text);
    let rows = inco.settled(2, 0);
    let all_are_served = |count: usize| {
        for _ in 0..count {
            assert_eq!(network.get("http://10.0.0.100/").unwrap(), "served\n");
        }
    };
    all_are_served(4);
    let stalled = &rows[0];
    kill(stalled.pid.unwrap(), Signal::STOP);
    let since = Instant::now();
    let said = eventually("the stall is seen", PATIENCE, || {
        let (takes, why) = health_events(&inco, stalled.id).pop()?;
        (!takes).then_some(why)
    });
    // Three intervals, the time of the last check, and what a busy machine is late.
    let limit = Duration::from_millis(3 * 200 + 150 + 1000);
    assert!(since.elapsed() < limit, "{:?}", since.elapsed());
    assert_eq!(
        said,
        "3 checks in a row did not pass: port 80 does not answer in time"
    );
    // Another one comes in its place; it stays, with the flows that it has.
    eventually("it is replaced", PATIENCE, || {
        (inco.count(InstanceState::Active) == 3).then_some(())
    });
    all_are_served(12);
    assert!(
        place
            .must(&["instances"])
            .contains("failing: port 80 does not answer in time")
    );
    assert!(
        place
            .must(&["services"])
            .contains("1 of 3 active instances take no new flows")
    );
    kill(stalled.pid.unwrap(), Signal::CONT);
    eventually("it is back", PATIENCE, || {
        let (takes, why) = health_events(&inco, stalled.id).pop()?;
        (takes && why == "2 checks in a row passed").then_some(())
    });
    // One is too many now.
    inco.settled(2, 0);
    all_are_served(8);
    let status = inco.at_rest();
    assert_eq!(
        status.drops.get("spoofed").copied().unwrap_or(0),
        0,
        "{:?}",
        status.drops
    );
    inco.stop(&place);
}

#[test]
fn a_stalled_instance_gets_no_new_flows_and_is_replaced_oci() {
    a_stalled_instance_gets_no_new_flows_and_is_replaced(Engine::Oci, "ebpf");
}

#[test]
fn a_stalled_instance_gets_no_new_flows_and_is_replaced_soft() {
    a_stalled_instance_gets_no_new_flows_and_is_replaced(Engine::Oci, "soft");
}

#[test]
fn a_stalled_instance_gets_no_new_flows_and_is_replaced_docker() {
    a_stalled_instance_gets_no_new_flows_and_is_replaced(Engine::Docker, "ebpf");
}

/// Checks find an instance where its own address and port are the translated ones, and by IPv6.
fn checks_reach_every_kind_of_address(driver: &str) {
    let engine = Engine::Oci;
    if !are_here(engine, &["nginx"]) {
        return;
    }
    for (vip, switch) in [
        (
            "address = '10.0.0.100', ports = 80, mode = 'dnat', target_port = 8080",
            "ebpf = { instance_addresses = '10.0.1.0/24' }\n",
        ),
        ("address = '2001:db8::100', ports = 8080", ""),
        (
            "address = '2001:db8::100', ports = 80, mode = 'dnat', target_port = 8080",
            "ebpf = { instance_addresses = '2001:db8:1::/64' }\n",
        ),
    ] {
        let (place, network) = (Place::new(), Network::new());
        let text = nginx(
            &place,
            engine,
            driver,
            "instances = { min = 1, max = 1, standby = 0 }\nhealth = { http = \"/\", every = \"200ms\" }\n",
        );
        place.file(
            "nginx.conf",
            &NGINX.replace("listen 80", "listen [::]:8080 ipv6only=off"),
        );
        let text = text
            .replace("address = \"10.0.0.100\", ports = \"80\"", vip)
            .replace("[[uplink]]", &format!("{switch}[[uplink]]"));
        let inco = network.run(&place, &text);
        let row = inco.settled(1, 0).remove(0);
        // Five checks, of which three would be enough.
        std::thread::sleep(std::time::Duration::from_secs(1));
        assert_eq!(health_events(&inco, row.id), [], "{vip}");
        kill(row.pid.unwrap(), Signal::STOP);
        let seen = |takes: bool| {
            eventually(vip, PATIENCE, || {
                let (now, why) = health_events(&inco, row.id).pop()?;
                (now == takes).then_some(why)
            })
        };
        let why = seen(false);
        assert_eq!(
            why, "3 checks in a row did not pass: port 8080 does not answer in time",
            "{vip}"
        );
        kill(row.pid.unwrap(), Signal::CONT);
        seen(true);
        inco.stop(&place);
    }
}

#[test]
fn checks_reach_every_kind_of_address_ebpf() {
    checks_reach_every_kind_of_address("ebpf");
}

#[test]
fn checks_reach_every_kind_of_address_soft() {
    checks_reach_every_kind_of_address("soft");
}

#[test]
fn one_that_stays_stalled_is_removed() {
    let engine = Engine::Oci;
    if !are_here(engine, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let text = nginx(
        &place,
        engine,
        "ebpf",
        "instances = { min = 1, max = 2, standby = 0 }\ndrain_deadline = \"500ms\"\nhealth = { tcp = 80, every = \
         \"200ms\", timeout = \"150ms\", fall = 2 }\n",
    );
    // A check of a port that nobody serves is wrong for all: nobody is removed.
    let inco = network.run(&place, &text.replace("tcp = 80", "tcp = 81"));
    let rows = inco.settled(1, 0);
    eventually("all are used", PATIENCE, || {
        inco.told().contains("all of them are used").then_some(())
    });
    assert_eq!(network.get("http://10.0.0.100/").unwrap(), "served\n");
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(inco.instance(rows[0].id).is_some(), "{}", inco.told());
    inco.stop(&place);

    let text = text.replace("tcp = 80", "http = \"/\"");
    let inco = network.run(&place, &text);
    let rows = inco.settled(1, 0);
    kill(rows[0].pid.unwrap(), Signal::STOP);
    eventually("it is removed", PATIENCE, || {
        let told = inco.told().contains("its checks have not passed for");
        (told && inco.instance(rows[0].id).is_none()).then_some(())
    });
    inco.settled(1, 0);
    assert_eq!(network.get("http://10.0.0.100/").unwrap(), "served\n");
    inco.stop(&place);
}

/// Instances of `server.pl`, which do what stands in the files of the folder `says`, and write into `out`.
struct Servers {
    says: PathBuf,
    out: PathBuf,
    text: String,
}

impl Servers {
    /// The service `web`, with more keys.
    fn new(place: &Place, engine: Engine, driver: &str, more: &str) -> Servers {
        use std::os::unix::fs::PermissionsExt as _;
        let image = "inco-test/server";
        place.import_image(image, &["perl", "sh"]);
        let script = place.file("server.pl", include_str!("support/server.pl"));
        let [says, out] = ["says", "out"].map(|name| place.path(name));
        for folder in [&says, &out] {
            std::fs::create_dir(folder).unwrap();
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let text = format!(
            "{}image = \"{image}\"\ncommand = [\"/bin/perl\", \"/server.pl\"]\nautoscaler = \"fixed\"\nmounts = \
             [\"{}:/server.pl:ro\", \"{}:/says:ro\", \"{}:/out\"]\nscheduler = {{ policy = \"round-robin\", \
             slow_start = \"0s\" }}\nstop_grace = \"1s\"\n{more}",
            service(engine, driver, "web", "80,53"),
            script.display(),
            says.display(),
            out.display()
        );
        Servers { says, out, text }
    }

    /// Has an instance do something; nothing, as usual.
    fn say(&self, file: &str, word: &str) {
        if word.is_empty() {
            std::fs::remove_file(self.says.join(file)).unwrap();
            return;
        }
        std::fs::write(self.says.join("new"), format!("{word}\n")).unwrap();
        std::fs::rename(self.says.join("new"), self.says.join(file)).unwrap();
    }

    /// Whether an instance was asked to end.
    fn has_ended(&self, id: InstanceId) -> bool {
        self.out.join(format!("{}.ended", id.0)).exists()
    }
}

const WEB: &str = "10.0.0.100:80";

fn open(network: &Network, count: usize) -> Vec<Session> {
    (0..count).map(|_| network.connect(WEB).unwrap()).collect()
}

/// They are still where they were.
fn all_answer(connections: &mut [Session]) {
    for connection in connections {
        assert_eq!(connection.ask("still there").unwrap(), "still there");
        assert_eq!(connection.ask("id").unwrap(), connection.id.to_string());
    }
}

/// Each kind of check: its keys, what makes an instance fail it, and what is said then.
const KINDS: [(&str, &str, &str); 6] = [
    ("tcp = 80", "refuse", "port 80 refuses the connection"),
    ("http = '/'", "error", "it answers with status 503"),
    ("http = '/'", "endless", "what port 80 answers has no end"),
    (
        "dns = 'example.com', port = 53",
        "error",
        "its answer is a failure of the server (SERVFAIL)",
    ),
    (
        "dns = 'example.com', port = 53",
        "flood",
        "port 53 does not answer the question in time",
    ),
    (
        "command = ['/bin/sh', '-c', '! [ -e /says/$INCO_INSTANCE_ID ]']",
        "fail",
        "its command exited with 1",
    ),
];

fn one_that_fails_keeps_its_flows_and_gets_no_new_ones(engine: Engine, driver: &str) {
    if !are_here(engine, &["perl"]) {
        return;
    }
    for (keys, word, said) in KINDS {
        // What an instance says is the checker's matter, whichever driver brings it there.
        if driver == "soft" && !is_full_length() && !["refuse", "error"].contains(&word) {
            continue;
        }
        let (place, network) = (Place::new(), Network::new());
        // A command takes its time, with Docker on a busy machine up to half a second.
        let every = if keys.starts_with("command") {
            "1s"
        } else {
            "100ms"
        };
        let more = format!(
            "instances = {{ min = 2, max = 3, standby = 0 }}\nhealth = {{ {keys}, every = \"{every}\", timeout = \
             \"{every}\" }}\n"
        );
        let servers = Servers::new(&place, engine, driver, &more);
        let inco = network.run(&place, &servers.text);
        let rows = inco.settled(2, 0);
        let victim = rows[0].id;
        let mut before = open(&network, 8);
        for row in &rows {
            assert!(before.iter().any(|of| of.id == row.id.0), "{keys}");
        }
        let file = victim.0.to_string();
        servers.say(&file, word);
        let why = eventually("its failure is seen", PATIENCE, || {
            let (takes, why) = health_events(&inco, victim).pop()?;
            (!takes).then_some(why)
        });
        assert_eq!(why, format!("3 checks in a row did not pass: {said}"));
        eventually("another one comes", PATIENCE, || {
            (inco.count(InstanceState::Active) == 3).then_some(())
        });
        let after = open(&network, 8);
        assert!(
            after.iter().all(|of| of.id != victim.0),
            "{keys}: a new flow went there"
        );
        all_answer(&mut before);
        let counters = inco.client().counters().unwrap();
        let of = &counters.services[0];
        assert_eq!(of.unfit, 1);
        assert!(of.failed_checks >= 3 && of.checks > of.failed_checks, "{of:?}");
        drop(after);
        servers.say(&file, "");
        eventually("it is back", PATIENCE, || {
            let (takes, why) = health_events(&inco, victim).pop()?;
            (takes && why == "2 checks in a row passed").then_some(())
        });
        eventually("it gets new flows", PATIENCE, || {
            let id = network.connect(WEB).unwrap().id;
            (id == victim.0).then_some(())
        });
        all_answer(&mut before);
        inco.stop(&place);
    }
}

#[test]
fn one_that_fails_keeps_its_flows_and_gets_no_new_ones_oci() {
    one_that_fails_keeps_its_flows_and_gets_no_new_ones(Engine::Oci, "ebpf");
}

#[test]
fn one_that_fails_keeps_its_flows_and_gets_no_new_ones_soft() {
    one_that_fails_keeps_its_flows_and_gets_no_new_ones(Engine::Oci, "soft");
}

#[test]
fn one_that_fails_keeps_its_flows_and_gets_no_new_ones_docker() {
    one_that_fails_keeps_its_flows_and_gets_no_new_ones(Engine::Docker, "ebpf");
}

#[test]
fn an_agent_sets_weight_and_state() {
    let engine = Engine::Oci;
    if !are_here(engine, &["perl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let servers = Servers::new(
        &place,
        engine,
        "ebpf",
        "instances = { min = 2, max = 3, standby = 0 }\nagent = { port = 8080, every = \"200ms\" }\n",
    );
    let inco = network.run(&place, &servers.text);
    let id = inco.settled(2, 0)[0].id;
    let file = format!("{}.agent", id.0);
    let becomes = |what: &str, expected: (bool, u32)| {
        let weight = || {
            let of = |event: &Event| match &event.kind {
                EventKind::Health { takes, weight, .. } if event.instance == Some(id) => {
                    Some((*takes, *weight))
                }
                _ => None,
            };
            inco.events().iter().rev().find_map(of)
        };
        eventually(what, PATIENCE, || (weight() == Some(expected)).then_some(()));
    };
    servers.say(&file, "75%");
    becomes("three quarters", (true, 75));
    let mut before = open(&network, 12);
    assert!(before.iter().any(|of| of.id == id.0));
    for word in ["drain", "maint"] {
        servers.say(&file, word);
        becomes("no new flows", (false, 75));
        eventually("another one comes", PATIENCE, || {
            (inco.count(InstanceState::Active) == 3).then_some(())
        });
        let after = open(&network, 6);
        assert!(after.iter().all(|of| of.id != id.0), "{word}");
        all_answer(&mut before);
        servers.say(&file, "ready up 50%");
        becomes("half", (true, 50));
        // One is too many now: the newest has the fewest connections.
        drop(after);
        inco.settled(2, 0);
        servers.say(&file, "75%");
        becomes("three quarters again", (true, 75));
    }
    servers.say(&file, "down # its disk is full");
    becomes("it fails", (false, 75));
    assert!(place.must(&["instances"]).contains("down, as its agent says"));
    // It says nothing more: the reports have no effect after a while.
    servers.say(&file, "");
    becomes("as if it had said nothing", (true, 100));
    all_answer(&mut before);
    inco.stop(&place);
}

/// How many of so many new connections, all open at once, each of these instances gets. Before and after, none is open.
fn shares(network: &Network, inco: &Inco, count: usize, of: &[InstanceId]) -> Vec<usize> {
    let all_have_ended = || {
        eventually("no connection is left", PATIENCE, || {
            let live: u64 = inco.instances().iter().map(|row| row.live_flows).sum();
            (live == 0).then_some(())
        });
    };
    all_have_ended();
    let connections = open(network, count);
    let at = |id: &InstanceId| connections.iter().filter(|of| of.id == id.0).count();
    let shares = of.iter().map(at).collect();
    drop(connections);
    all_have_ended();
    shares
}

/// What an agent says changes who gets new flows, and a report that is not repeated does so no more.
fn an_agent_changes_shares(driver: &str) {
    /// Picks that were prepared before a turn of the control loop may miss the last flows.
    const TOLERANCE: usize = 1;
    let engine = Engine::Oci;
    if !are_here(engine, &["perl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let servers = Servers::new(
        &place,
        engine,
        driver,
        "instances = { min = 2, max = 3, standby = 0 }\nagent = { port = 8080, every = \"1s\" }\n",
    );
    let linger = format!("driver = \"{driver}\"\ntimeouts = {{ tcp_linger = \"100ms\" }}\n");
    let text = servers
        .text
        .replace("round-robin", "least-connections")
        .replace(&format!("driver = \"{driver}\"\n"), &linger);
    let inco = network.run(&place, &text);
    let ids: Vec<InstanceId> = inco.settled(2, 0).iter().map(|row| row.id).collect();
    let file = format!("{}.agent", ids[0].0);
    let newest = || {
        let of = |event: &Event| match &event.kind {
            EventKind::Health { takes, weight, .. } if event.instance == Some(ids[0]) => {
                Some((*takes, *weight))
            }
            _ => None,
        };
        inco.events().iter().rev().find_map(of).unwrap_or((true, 100))
    };
    let says = |word: &str, becomes: (bool, u32)| {
        servers.say(&file, word);
        eventually(word, PATIENCE, || (newest() == becomes).then_some(()));
    };
    let share = |count: usize| shares(&network, &inco, count, &ids)[0];
    let is_about = |share: usize, expected: usize| share.abs_diff(expected) <= TOLERANCE;
    let of_40 = share(40);
    assert!(is_about(of_40, 20), "without a word it gets {of_40} of 40");
    // A share of what it would have: of four, the other one gets three.
    for (word, percent, expected) in [("75%", 75, 12), ("33%", 33, 7), ("100%", 100, 14)] {
        says(word, (true, percent));
        let of_28 = share(28);
        assert!(is_about(of_28, expected), "{word}: {of_28} of 28");
    }
    for word in ["drain", "maint"] {
        says(word, (false, 100));
        eventually("another one comes", PATIENCE, || {
            (inco.count(InstanceState::Active) == 3).then_some(())
        });
        assert_eq!(share(20), 0, "{word}");
        says("ready", (true, 100));
        eventually("one is too many", PATIENCE, || {
            (inco.instances().len() == 2).then_some(())
        });
        // The others may have changed places.
        let rows = inco.settled(2, 0);
        assert!(rows.iter().any(|row| row.id == ids[0]), "{word}: {rows:#?}");
        let of_20 = share(20);
        assert!(is_about(of_20, 10), "ready: {of_20} of 20");
    }
    says("33%", (true, 33));
    assert!(is_about(share(28), 7));
    // It is not said again: after three times the interval it has no effect.
    says("", (true, 100));
    let of_28 = share(28);
    assert!(
        is_about(of_28, 14),
        "after its last word was long ago: {of_28} of 28"
    );
    inco.stop(&place);
}

#[test]
fn an_agent_changes_shares_ebpf() {
    an_agent_changes_shares("ebpf");
}

#[test]
fn an_agent_changes_shares_soft() {
    an_agent_changes_shares("soft");
}

/// An instance that comes has the share of its age, and in the end as many new flows as any other one.
fn a_slow_start_changes_shares(driver: &str) {
    const SLOW_START: Duration = Duration::from_secs(4);
    const FLOWS: usize = 32;
    let engine = Engine::Oci;
    if !are_here(engine, &["perl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let servers = Servers::new(
        &place,
        engine,
        driver,
        "instances = { min = 1, max = 2, standby = 0 }\n",
    );
    let text = servers.text.replace("slow_start = \"0s\"", "slow_start = \"4s\"");
    let inco = network.run(&place, &text);
    let old = inco.settled(1, 0)[0].id;
    eventually("its own slow start is over", PATIENCE, || {
        (inco.instances()[0].state_ms > SLOW_START.as_millis() as u64).then_some(())
    });
    let began = Instant::now();
    place.must(&["scale", "web", "2"]);
    let rows = inco.settled(2, 0);
    let new = rows.iter().find(|row| row.id != old).unwrap().id;
    let active = Instant::now();
    let mut last = 0;
    loop {
        let is_over = active.elapsed() > SLOW_START;
        let connections = open(&network, FLOWS);
        // It is not older than that. What is counted begins and ends within a round of the scheduler's turns.
        let age = began.elapsed().as_secs_f64() / SLOW_START.as_secs_f64();
        let of_new = connections.iter().filter(|of| of.id == new.0).count();
        let most = FLOWS as f64 * age / (1.0 + age) + 2.0;
        assert!(
            of_new as f64 <= most,
            "{of_new} of {FLOWS} at {age:.2} of its slow start"
        );
        drop(connections);
        if is_over {
            let difference = of_new.abs_diff(FLOWS / 2);
            assert!(difference <= 2, "{of_new} of {FLOWS} after its slow start");
            break;
        }
        last = last.max(of_new);
        std::thread::sleep(SLOW_START / 16);
    }
    assert!(last > 0, "it gets some before");
    inco.stop(&place);
}

#[test]
fn a_slow_start_changes_shares_ebpf() {
    a_slow_start_changes_shares("ebpf");
}

#[test]
fn a_slow_start_changes_shares_soft() {
    a_slow_start_changes_shares("soft");
}

fn a_removed_instance_ends_after_its_connections(engine: Engine) {
    if !are_here(engine, &["perl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let servers = Servers::new(
        &place,
        engine,
        "ebpf",
        "instances = { min = 1, max = 3, standby = 0 }\ndrain_deadline = \"60s\"\n",
    );
    let inco = network.run(&place, &servers.text);
    inco.settled(1, 0);
    place.must(&["scale", "web", "3"]);
    inco.settled(3, 0);
    let mut connections = open(&network, 9);
    place.must(&["scale", "web", "1"]);
    let draining = eventually("two drain", PATIENCE, || {
        let rows = inco.instances().into_iter();
        let draining: Vec<InstanceId> = rows
            .filter(|row| row.state == InstanceState::Draining)
            .map(|row| row.id)
            .collect();
        (draining.len() == 2).then_some(draining)
    });
    // Nobody is asked to end, and what comes anew goes elsewhere.
    for _ in 0..20 {
        all_answer(&mut connections);
        let id = InstanceId(network.connect(WEB).unwrap().id);
        assert!(!draining.contains(&id));
    }
    assert!(!draining.iter().any(|id| servers.has_ended(*id)));
    // The first ends after its own last connection; the other one goes on.
    let (first, second) = (draining[0], draining[1]);
    connections.retain(|of| of.id != first.0);
    eventually("it is asked to end", PATIENCE, || {
        all_answer(&mut connections);
        servers.has_ended(first).then_some(())
    });
    assert!(!servers.has_ended(second));
    let reasons: Vec<String> = changes(&inco.events(), first)
        .into_iter()
        .map(|(_, _, why)| why)
        .collect();
    assert!(
        reasons.contains(&"its last flow has ended".to_owned()),
        "{reasons:?}"
    );
    connections.retain(|of| of.id != second.0);
    eventually("so does the other one", PATIENCE, || {
        servers.has_ended(second).then_some(())
    });
    all_answer(&mut connections);
    inco.settled(1, 0);
    inco.stop(&place);
}

#[test]
fn a_removed_instance_ends_after_its_connections_oci() {
    a_removed_instance_ends_after_its_connections(Engine::Oci);
}

#[test]
fn a_removed_instance_ends_after_its_connections_docker() {
    a_removed_instance_ends_after_its_connections(Engine::Docker);
}

#[test]
fn a_drain_has_an_end() {
    let engine = Engine::Oci;
    if !are_here(engine, &["perl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let servers = Servers::new(
        &place,
        engine,
        "ebpf",
        "instances = { min = 1, max = 2, standby = 0 }\ndrain_deadline = \"2s\"\n",
    );
    let inco = network.run(&place, &servers.text);
    inco.settled(1, 0);
    place.must(&["scale", "web", "2"]);
    inco.settled(2, 0);
    let _connections = open(&network, 4);
    place.must(&["scale", "web", "1"]);
    inco.settled(1, 0);
    let told = inco.told();
    assert!(
        told.contains("the drain's deadline passed with 2 flows left"),
        "{told}"
    );
    inco.stop(&place);
}

/// Where the only instance drains and no other is there yet, it takes new flows.
#[test]
fn where_only_draining_instances_are_left_they_serve() {
    let engine = Engine::Oci;
    if !are_here(engine, &["perl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let servers = Servers::new(
        &place,
        engine,
        "ebpf",
        "instances = { min = 1, max = 1, standby = 0 }\ndrain_deadline = \"6s\"\nready_deadline = \"60s\"\nready = { \
         exec = ['/bin/sh', '-c', '[ -e /says/ready ]'] }\n",
    );
    servers.say("ready", "yes");
    let inco = network.run(&place, &servers.text);
    let old = inco.settled(1, 0)[0].id;
    let mut before = open(&network, 2);
    servers.say("ready", "");
    place.must(&["drain", &old.0.to_string()]);
    eventually("it drains", PATIENCE, || {
        (inco.count(InstanceState::Draining) == 1).then_some(())
    });
    // For longer than a drain may take.
    let began = std::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_secs(7) {
        assert_eq!(network.connect(WEB).unwrap().id, old.0);
    }
    all_answer(&mut before);
    servers.say("ready", "yes");
    eventually("another one takes over", PATIENCE, || {
        let id = network.connect(WEB).unwrap().id;
        (id != old.0).then_some(())
    });
    all_answer(&mut before);
    assert!(!servers.has_ended(old));
    drop(before);
    eventually("it is asked to end", PATIENCE, || {
        servers.has_ended(old).then_some(())
    });
    let told = inco.told();
    assert!(!told.contains("deadline passed"), "{told}");
    inco.settled(1, 0);
    inco.stop(&place);
}

/// Downloads over a link that becomes narrower and narrower, also while inco is dead and once it is back: its errors
/// reach the instance, or the download would stand still. The driver soft forwards nothing without inco.
fn a_narrow_path_is_found_also_after_inco(driver: &str) {
    let engine = Engine::Oci;
    if !are_here(engine, &["nginx", "curl"]) {
        return;
    }
    for (mode, switch) in [
        ("l2", ""),
        (
            "dnat",
            "ebpf = { instance_addresses = ['10.0.1.0/24', '2001:db8:1::/64'] }\n",
        ),
    ] {
        if driver == "soft" && mode == "l2" && !is_full_length() {
            continue;
        }
        let (place, network) = (Place::new(), Network::new());
        let text = nginx(
            &place,
            engine,
            driver,
            "instances = { min = 1, max = 1, standby = 0 }\n",
        );
        place.file(
            "nginx.conf",
            &NGINX.replace("listen 80", "listen [::]:80 ipv6only=off"),
        );
        let bytes: Vec<u8> = (0..4_u32 << 20).map(|at| (at % 251) as u8).collect();
        std::fs::write(place.path("srv").join("large"), &bytes).unwrap();
        let vip = format!("address = ['10.0.0.100', '2001:db8::100'], ports = 80, mode = '{mode}'");
        let text = text
            .replace("address = \"10.0.0.100\", ports = \"80\"", &vip)
            .replace("[[uplink]]", &format!("{switch}[[uplink]]"));
        let inco = network.run(&place, &text);
        inco.settled(1, 0);
        let far = network.far_client();
        let downloads = |mtu: u16| {
            network.client_ip(&format!("link set far0 mtu {mtu}"));
            for host in ["10.0.0.100", "[2001:db8::100]"] {
                let url = format!("http://{host}/large");
                let curl = || {
                    Command::new("curl")
                        .args(["-sSf", "--max-time", "20", &url])
                        .output()
                };
                let got = far.within(curl).unwrap();
                let said = String::from_utf8_lossy(&got.stderr);
                assert!(got.status.success(), "{mode}, {mtu}, {url}: {said}");
                assert!(got.stdout == bytes, "{mode}, {mtu}, {url}: other bytes");
            }
        };
        downloads(1_400);
        let _traces = inco.kill();
        if driver == "ebpf" {
            downloads(1_350);
        }
        let inco = network.run(&place, &text);
        inco.settled(1, 0);
        downloads(1_300);
        inco.stop(&place);
    }
}

#[test]
fn a_narrow_path_is_found_also_without_inco_and_after_it() {
    a_narrow_path_is_found_also_after_inco("ebpf");
}

#[test]
fn a_narrow_path_is_found_also_after_inco_soft() {
    a_narrow_path_is_found_also_after_inco("soft");
}

/// Questions that come while inco is dead lie in the ring of the uplink's socket, which the launcher keeps. The driver
/// ebpf needs no ring: its programs go on.
fn what_comes_while_inco_is_dead_is_answered(driver: &str) {
    /// As many as the socket of one server holds.
    const QUESTIONS: u16 = 150;
    let engine = Engine::Oci;
    if !are_here(engine, &["perl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let servers = Servers::new(
        &place,
        engine,
        driver,
        "instances = { min = 2, max = 2, standby = 0 }\n",
    );
    let mut inco = network.run(&place, &servers.text);
    inco.settled(2, 0);
    let socket = network.as_client(|| UdpSocket::bind("10.0.0.2:0").unwrap());
    socket.connect("10.0.0.100:53").unwrap();
    // A header with a number, and the question for the root.
    let ask = |number: u16| {
        let mut question = vec![0; 17];
        question[..2].copy_from_slice(&number.to_be_bytes());
        (question[2], question[5], question[16]) = (1, 1, 1);
        socket.send(&question).unwrap();
    };
    let answers = |count: u16| {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut numbers = BTreeSet::new();
        let mut answer = [0; 512];
        while numbers.len() < usize::from(count) {
            match socket.recv(&mut answer) {
                Ok(_) => numbers.insert(u16::from_be_bytes([answer[0], answer[1]])),
                Err(error) => panic!("{} of {count} answers: {error}", numbers.len()),
            };
        }
        numbers
    };
    ask(0);
    assert_eq!(answers(1).len(), 1);
    for round in 0..3 {
        let _traces = inco.kill();
        let first = 1 + round * QUESTIONS;
        (first..first + QUESTIONS).for_each(ask);
        inco = network.run(&place, &servers.text);
        assert!(answers(QUESTIONS).iter().all(|number| *number >= first));
    }
    inco.settled(2, 0);
    let status = inco.at_rest();
    assert_eq!(status.accounting.expected_moves, 0, "{status:#?}");
    inco.stop(&place);
}

#[test]
fn what_comes_while_inco_is_dead_is_answered_ebpf() {
    if is_full_length() {
        what_comes_while_inco_is_dead_is_answered("ebpf");
    }
}

#[test]
fn what_comes_while_inco_is_dead_is_answered_soft() {
    what_comes_while_inco_is_dead_is_answered("soft");
}
