//! Real clients through each function of the library, and a real server behind it, while instances come and go: curl,
//! iperf3, dig and ping notice nothing. Functions have memif ports, or whole frames on interfaces.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::{
    Engine, IMAGE, Inco, Load, Namespace, Network, PATIENCE, Place, available, eventually, text,
};
use model::InstanceState;

/// MAC addresses of the client, of the server, and of the router that a function is.
const CLIENT_MAC: &str = "02:00:00:00:00:0c";
const SERVER_MAC: &str = "02:00:00:00:00:05";
const ROUTER_MAC: &str = "02:00:00:00:00:09";
/// The server's address where it is in the client's network, and where a router is between them.
const NEAR: &str = "10.0.0.3";
const FAR: &str = "10.1.0.2";
/// Bytes of a download: more than anything on the way holds.
const BYTES: usize = 4 << 20;
/// Downloads that begin when all instances are there.
const DOWNLOADS: usize = 6;
/// What is read of a held download at once, how often, and up to which part of all.
const PART: usize = 8 << 10;
const PAUSE: Duration = Duration::from_millis(5);
const HELD: u64 = BYTES as u64 / 2;
/// Questions of a run of dig.
const QUESTIONS: usize = 40;
/// Ports of iperf3's servers, each of which serves one client at a time.
const IPERF_PORTS: [&str; 2] = ["5201", "5202"];
/// What an upload of iperf3 sends at once and in a second, in bytes and bits; and how often it tells of it, in seconds.
const IPERF: [&str; 6] = ["--length", "2K", "--bitrate", "1M", "--interval", "0.1"];

const NGINX: &str = "daemon off;\nworker_processes 1;\nuser root;\nerror_log stderr warn;\npid PLACE/nginx.pid;\nevents { \
                     worker_connections 1024; }\nhttp {\n  access_log off;\n  client_body_temp_path PLACE/b;\n  \
                     proxy_temp_path PLACE/p;\n  fastcgi_temp_path PLACE/f;\n  uwsgi_temp_path PLACE/u;\n  \
                     scgi_temp_path PLACE/s;\n  server {\n    listen 80 backlog=4096 sndbuf=64k;\n    location = / { return \
                     200 $hostname; }\n    location = /file { alias PLACE/file; }\n  }\n}\n";

/// Whether the function has a port towards each side, or one for both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arms {
    One,
    Two,
}

/// A function between a client and a server.
struct Function {
    /// The arguments of `inco-nf`, without those of ports.
    words: Vec<String>,
    /// Whether it is a router between two networks.
    routes: bool,
    /// The kind of its ports.
    port: &'static str,
    /// Further lines of its service.
    service: String,
    /// Whether a drain moves its flows.
    moves: bool,
}

impl Function {
    fn of(name: &str, configuration: &str) -> Function {
        Function {
            words: stage(name, configuration),
            routes: false,
            port: "memif",
            service: String::new(),
            moves: false,
        }
    }

    /// A router alone.
    fn router(arms: Arms) -> Function {
        let nothing = Function {
            words: Vec::new(),
            routes: true,
            port: "memif",
            service: String::new(),
            moves: false,
        };
        nothing.routed(arms)
    }

    /// With a function behind it.
    fn before(mut self, name: &str, configuration: &str) -> Function {
        self.words.push("--".to_owned());
        self.words.extend(stage(name, configuration));
        self
    }

    /// On interfaces of the kernel.
    fn on_interfaces(self) -> Function {
        Function {
            port: "frames",
            ..self
        }
    }

    /// In a chain with a router.
    fn routed(mut self, arms: Arms) -> Function {
        if !self.words.is_empty() {
            self.words.push("--".to_owned());
        }
        self.words.extend(stage("router", &routes(arms)));
        Function { routes: true, ..self }
    }
}

/// A translator of the client's address, whose instances have external ones that the server reaches at the client's MAC
/// address.
fn nat() -> Function {
    Function {
        service: format!("external = {{ addresses = [\"{EXTERNAL}\"], block = 4032, lifetime = \"20s\" }}\n"),
        ..Function::of("nat", NAT)
    }
}

/// The same, with mappings that move when an instance is drained.
fn moving_nat() -> Function {
    let nat = nat();
    Function {
        service: format!("{}affinity = \"relaxed\"\nmove_state = true\n", nat.service),
        moves: true,
        ..nat
    }
}

/// The words of a function.
fn stage(name: &str, configuration: &str) -> Vec<String> {
    [name, "--config-text", configuration].map(str::to_owned).to_vec()
}

fn routes(arms: Arms) -> String {
    let hop = |name: &str, mac: &str, port: u8| {
        let port = match arms {
            Arms::One => String::new(),
            Arms::Two => format!("port = {port}\n"),
        };
        format!("[[next_hop]]\nname = \"{name}\"\nmac = \"{mac}\"\n{port}")
    };
    format!(
        "mac = \"{ROUTER_MAC}\"\n{}{}[[route]]\nprefix = \"10.0.0.0/24\"\nnext_hop = \"client\"\n[[route]]\nprefix = \
         \"10.1.0.0/24\"\nnext_hop = \"server\"\n",
        hop("client", CLIENT_MAC, 0),
        hop("server", SERVER_MAC, 1),
    )
}

/// Only what belongs to a connection of the client passes.
const FIREWALL: &str = "default = \"deny\"\n[[rule]]\naction = \"allow\"\nprotocol = \"tcp\"\nsource = \
                        \"10.0.0.2\"\ndestination_ports = [80, \"5201-5202\"]\n[[rule]]\naction = \"allow\"\nprotocol = \"udp\"\nsource = \
                        \"10.0.0.2\"\ndestination_ports = 53\n[[rule]]\naction = \"allow\"\nprotocol = \"icmp\"\nsource = \
                        \"10.0.0.2\"\nicmp_type = 8\n";
/// What no packet has is searched in all.
const IDS: &str = "rules = '''\ndrop tcp any any -> any any (msg:\"none\"; content:\"nobody says so\"; sid:1;)\ndrop udp any \
                   any -> any any (msg:\"none\"; content:\"nobody says so\"; sid:2;)\n'''\n";
/// Mappings end soon after their connections.
const NAT: &str =
    "inside = [\"10.0.0.2/32\"]\nudp_timeout_s = 2\ntcp_transitory_timeout_s = 2\nicmp_timeout_s = 2\n";
const EXTERNAL: &str = "203.0.113.1";
const LIMITER: &str = "[[rule]]\nkey = \"flow\"\nrate = \"10Gbit/s\"\nburst_bytes = 10000000\n";

/// One of two gateways, with what it protects.
fn gateway(own: u8, inside: &str, outside: &str) -> String {
    let other = 3 - own;
    let keys = |of: u8| {
        format!(
            "suite = \"aes-256-gcm\"\nkey = \"{}\"\nsalt = \"{}\"\n",
            format!("{of:02x}").repeat(32),
            format!("{of:02x}").repeat(4)
        )
    };
    format!(
        "mtu = 9000\n[[outbound]]\nname = \"out\"\nspi = {}\n{}source = \"192.0.2.{own}\"\ndestination = \
         \"192.0.2.{other}\"\n[[inbound]]\nname = \"in\"\nspi = {}\n{}destination = \"192.0.2.{own}\"\n[[policy]]\nsource = \
         [\"{inside}\"]\ndestination = [\"{outside}\"]\naction = \"protect\"\noutbound = \"out\"\ninbound = [\"in\"]\n",
        1000 + u32::from(own),
        keys(own),
        1000 + u32::from(other),
        keys(other),
    )
}

/// A tunnel from end to end in each instance: what enters it leaves it.
fn tunnel() -> Function {
    let (client, server) = ("10.0.0.2/32", "10.0.0.3/32");
    Function::of("ipsec", &gateway(1, client, server)).before("ipsec", &gateway(2, server, client))
}

/// Longer than an instance waits for a CPU here. Rings of interfaces are not seen.
fn stall_after(port: &str) -> &'static str {
    match port {
        "memif" => "stall_after = \"2s\"\n",
        _ => "",
    }
}

/// inco's configuration with the function between both sides.
fn configuration(engine: Engine, function: &Function, arms: Arms) -> String {
    let mut command = vec!["/inco-nf".to_owned()];
    command.extend(function.words.iter().cloned());
    // The options of ports belong to the first function.
    let (second, uplinks) = match arms {
        Arms::One => ("", "[\"lan\"]"),
        Arms::Two => {
            command.insert(2, "--cross".to_owned());
            (
                "other = \"opposite\"\n[[uplink]]\nname = \"wan\"\ndevice = \"kernel:eth2\"\n",
                "[\"lan\", \"wan\"]",
            )
        }
    };
    format!(
        "{}[switch]\ndriver = \"soft\"\ntimeouts = {{ udp = \"500ms\", icmp = \"500ms\", tcp_linger = \"100ms\" \
         }}\n{second}[[uplink]]\nname = \"lan\"\ndevice = \"kernel:eth1\"\n[service.function]\nmatch = {{ src = \
         \"10.0.0.0/15\" }}\nuplinks = {uplinks}\nport = \"{}\"\nimage = \"{IMAGE}\"\ncommand = {command:?}\nmemory = \"256MiB\"\nring = \
         {{ slots = 8192 }}\ninstances = {{ min = 1, max = 4, standby = 0 }}\nautoscaler = \"fixed\"\nscheduler = {{ policy = \
         \"round-robin\", slow_start = \"0s\" }}\ndrain_deadline = \"60s\"\n{}{}",
        engine.toml(),
        function.port,
        stall_after(function.port),
        function.service,
    )
}

/// Whether the programs of clients and servers are here.
fn are_here(programs: &[&str]) -> bool {
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
    let missing = programs.iter().find(|program| {
        !folders
            .iter()
            .any(|folder| Path::new(folder).join(program).exists())
    });
    available(
        "servers",
        missing.map(|program| format!("{program} is not installed")),
    )
}

/// A program that is killed when this is dropped.
struct Program(Child);

impl Program {
    fn start(mut command: Command) -> Program {
        Program(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// A web server, a DNS server, and servers of iperf3.
fn serve(place: &Place, server: &Namespace, address: &str) -> Vec<Program> {
    let path = place.path("");
    let nginx = NGINX.replace("PLACE", path.to_str().unwrap().trim_end_matches('/'));
    let nginx = place.file("nginx.conf", &nginx);
    std::fs::write(place.path("file"), content()).unwrap();
    // Little is on its way at a time, so that a download is over when the client has read it and no sooner.
    server.within(|| std::fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 65536").unwrap());
    let listen = format!("--listen-address={address}");
    let dns = [
        "--no-daemon",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--bind-interfaces",
        "--address=/example.test/192.0.2.80",
        &listen,
    ];
    let mut programs = vec![
        Program::start(server.command("/usr/sbin/nginx", &["-c", nginx.to_str().unwrap()])),
        Program::start(server.command("/usr/sbin/dnsmasq", &dns)),
    ];
    programs.extend(IPERF_PORTS.map(|port| {
        let arguments = ["--server", "--bind", address, "--port", port];
        Program::start(server.command("/usr/bin/iperf3", &arguments))
    }));
    // Before there is anything between: they answer at home.
    server.within(|| {
        eventually("both servers are there", PATIENCE, || {
            std::net::TcpStream::connect((address, 80)).ok()?;
            std::net::TcpStream::connect((address, 53)).ok().map(drop)
        });
        // A connection that says nothing would make these begin anew.
        eventually("both servers of iperf3 listen", PATIENCE, || {
            let sockets = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
            let listens = |port: &&str| {
                let port: u16 = port.parse().unwrap();
                sockets.contains(&format!(":{port:04X} 00000000:0000 0A"))
            };
            IPERF_PORTS.iter().all(listens).then_some(())
        });
    });
    programs
}

/// An upload by iperf3, until it is ended.
struct Upload {
    client: Child,
    /// Intervals in which the connection carried something.
    intervals: Arc<AtomicU64>,
    reader: JoinHandle<String>,
}

impl Upload {
    fn start(network: &Network, address: &str, port: &str) -> Upload {
        let to = [
            "--client",
            address,
            "--port",
            port,
            "--forceflush",
            "--time",
            "600",
        ];
        let mut client = network.client("iperf3", &[&to[..], &IPERF].concat());
        let mut client = client
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let intervals = Arc::new(AtomicU64::new(0));
        let lines = BufReader::new(client.stdout.take().unwrap()).lines();
        let mut errors = client.stderr.take().unwrap();
        let reader = std::thread::spawn({
            let intervals = Arc::clone(&intervals);
            move || {
                for line in lines.map_while(Result::ok) {
                    // As in `[  5]   0.00-0.10   sec  12.0 KBytes`.
                    let mut words = line.split_whitespace().skip_while(|word| *word != "sec");
                    let carried = words.nth(1).and_then(|number| number.parse::<f64>().ok());
                    intervals.fetch_add(u64::from(carried.is_some_and(|of| of > 0.0)), Relaxed);
                }
                let mut said = String::new();
                errors.read_to_string(&mut said).unwrap();
                said
            }
        });
        Upload {
            client,
            intervals,
            reader,
        }
    }

    /// Waits until it has carried something in two more intervals.
    fn more(&self) {
        let before = self.intervals.load(Relaxed);
        eventually("the upload goes on", PATIENCE, || {
            assert!(!self.reader.is_finished(), "an upload has ended");
            (self.intervals.load(Relaxed) >= before + 2).then_some(())
        });
    }

    /// Ends it, as Ctrl-C does.
    fn end(mut self) {
        self.more();
        let client = rustix::process::Pid::from_child(&self.client);
        rustix::process::kill_process(client, rustix::process::Signal::INT).unwrap();
        self.client.wait().unwrap();
        let said = self.reader.join().unwrap();
        assert!(
            said.is_empty() || said.contains("client has terminated"),
            "{said}"
        );
    }
}

/// The bytes of the download.
fn content() -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()
    };
    (0..BYTES / 4).flat_map(|_| next()).collect()
}

/// A download by curl, which goes on slowly until it is released.
struct Download {
    is_free: Arc<AtomicBool>,
    taken: Arc<AtomicU64>,
    thread: JoinHandle<Result<Vec<u8>, String>>,
}

impl Download {
    fn start(network: &Network, url: &str) -> Download {
        let arguments = ["-sSf", "--no-buffer", "--max-time", "60", url];
        let mut curl = network.client("curl", &arguments);
        let mut curl = curl
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (is_free, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = std::thread::spawn({
            let (is_free, taken) = (Arc::clone(&is_free), Arc::clone(&taken));
            move || {
                let mut out = curl.stdout.take().unwrap();
                let (mut bytes, mut part) = (Vec::with_capacity(BYTES), vec![0; PART]);
                loop {
                    if !is_free.load(Relaxed) {
                        std::thread::sleep(PAUSE);
                        if bytes.len() as u64 >= HELD {
                            continue;
                        }
                    }
                    match out.read(&mut part) {
                        Ok(0) => break,
                        Ok(len) => bytes.extend_from_slice(&part[..len]),
                        Err(error) => return Err(error.to_string()),
                    }
                    taken.store(bytes.len() as u64, Relaxed);
                }
                let ended = curl.wait_with_output().unwrap();
                match ended.status.success() {
                    true => Ok(bytes),
                    false => Err(text(&ended.stderr)),
                }
            }
        });
        Download {
            is_free,
            taken,
            thread,
        }
    }

    fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Lets it go on as fast as it can.
    fn release(&self) {
        self.is_free.store(true, Relaxed);
    }
}

/// Asks by dig until it is stopped. How many questions had the right answer, and what dig said otherwise.
struct Questions {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64, String>>,
}

impl Questions {
    fn start(place: &Place, network: &Network, server: &str) -> Questions {
        let batch = place.file("questions", &"www.example.test\n".repeat(QUESTIONS));
        let server = format!("@{server}");
        let batch = batch.to_str().unwrap();
        let mut command = network.client("dig", &[&server, "+short", "+tries=1", "+time=5", "-f", batch]);
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut answers = 0;
                while !stop.load(Relaxed) {
                    let output = command.output().unwrap();
                    let said = text(&output.stdout);
                    if said != "192.0.2.80\n".repeat(QUESTIONS) {
                        return Err(format!("{said}{}", text(&output.stderr)));
                    }
                    answers += QUESTIONS as u64;
                }
                Ok(answers)
            }
        });
        Questions { stop, thread }
    }

    /// Ends it after a last run.
    fn end(self) -> u64 {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap().unwrap()
    }
}

/// Scales the service 1, 4, 1. `between` is called when there are four, `draining` when three of them take no new flows.
fn scale(place: &Place, inco: &Inco, service: &str, between: impl FnOnce(), draining: impl FnOnce()) {
    place.must(&["scale", service, "4"]);
    eventually("four are active", PATIENCE, || {
        (inco.count(InstanceState::Active) == 4).then_some(())
    });
    between();
    eventually("each of the four has flows", PATIENCE, || {
        let rows = inco.instances();
        rows.iter().all(|row| row.to_packets > 0).then_some(())
    });
    place.must(&["scale", service, "1"]);
    eventually("one is active", PATIENCE, || {
        (inco.count(InstanceState::Active) == 1).then_some(())
    });
    inco.note_traces();
    draining();
}

/// Nothing was dropped, and all is accounted for.
fn assert_accounted(inco: &Inco) {
    let status = inco.at_rest();
    let of = &status.accounting;
    assert_eq!(of.dropped, 0, "{:#?}", status.drops);
    assert_eq!(of.expected_moves, 0, "{of:#?}");
    assert!(
        of.offered + of.originated == of.returned + of.delivered,
        "{of:#?}"
    );
}

fn clients_notice_nothing(engine: Engine, function: &Function, arms: Arms) {
    if !are_here(&["nginx", "dnsmasq", "curl", "dig", "ping", "iperf3"]) || !engine.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let address = if function.routes { FAR } else { NEAR };
    let with_prefix = format!("{address}/24");
    let (server, own) = match arms {
        Arms::One => (network.server_beside(&with_prefix), "br0"),
        Arms::Two => (network.server(&with_prefix), "eth0"),
    };
    network.client_ip(&format!("link set {own} address {CLIENT_MAC}"));
    server.ip(&format!("link set eth0 address {SERVER_MAC}"));
    if function.routes {
        let by = |to: &str, router: &str, interface: &str| {
            format!(
                "neigh add {router} lladdr {ROUTER_MAC} dev {interface} nud permanent\nroute add {to} via {router} dev \
                 {interface}"
            )
        };
        network.client_ip(&by("10.1.0.0/24", "10.0.0.1", own));
        server.ip(&by("10.0.0.0/24", "10.1.0.1", "eth0"));
    }
    if function.service.contains(EXTERNAL) {
        server.ip(&format!(
            "route add {EXTERNAL}/32 dev eth0\nneigh add {EXTERNAL} lladdr {CLIENT_MAC} dev eth0 nud permanent"
        ));
    }
    network.as_client(|| std::fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 65536 131072").unwrap());
    let _servers = serve(&place, &server, address);
    let inco = network.run(&place, &configuration(engine, function, arms));
    inco.settled(1, 0);

    let url = format!("http://{address}/file");
    let load = Load::start(&network, SocketAddr::new(address.parse().unwrap(), 80), 4);
    let mut downloads = vec![Download::start(&network, &url)];
    let questions = Questions::start(&place, &network, address);
    let mut uploads = vec![Upload::start(&network, address, IPERF_PORTS[0])];
    let ping = ["-c", "60", "-i", "0.02", "-W", "10", "-q", address];
    let ping = network
        .client("ping", &ping)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("requests are answered", PATIENCE, || {
        (load.requests() > 20 && downloads[0].taken() > 0).then_some(())
    });
    uploads[0].more();
    let mut later = Vec::new();
    scale(
        &place,
        &inco,
        "function",
        || {
            later.extend((0..DOWNLOADS).map(|_| Download::start(&network, &url)));
            eventually("they have begun", PATIENCE, || {
                later.iter().all(|of| of.taken() > 0).then_some(())
            });
            uploads.push(Upload::start(&network, address, IPERF_PORTS[1]));
            uploads.iter().for_each(Upload::more);
        },
        || {
            let asked = load.requests();
            eventually("new connections are answered", PATIENCE, || {
                (load.requests() > asked + 50).then_some(())
            });
        },
    );
    // Connections that began with one instance and with four go on.
    downloads.append(&mut later);
    if function.moves {
        inco.settled(1, 0);
        let status = inco.status();
        assert!(status.workers.iter().any(|of| of.state_moves > 0), "{status:#?}");
    } else {
        assert!(inco.count(InstanceState::Draining) > 0, "{}", inco.told());
    }
    assert!(downloads.iter().all(|of| of.taken() < BYTES as u64));
    downloads.iter().for_each(Download::release);
    let expected = content();
    for download in downloads {
        let bytes = download.thread.join().unwrap();
        assert!(
            bytes.as_ref().is_ok_and(|bytes| *bytes == expected),
            "{:?} bytes\n{}\n{:#?}",
            bytes.map(|bytes| bytes.len()),
            inco.told(),
            inco.status()
        );
    }
    uploads.into_iter().for_each(Upload::end);
    let answers = questions.end();
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.requests > 100 && answers > 0,
        "{outcome:#?}\n{answers} answers\n{}\n{:#?}",
        inco.told(),
        inco.status()
    );
    let pinged = text(&ping.wait_with_output().unwrap().stdout);
    assert!(pinged.contains("60 received"), "{pinged}");
    // The others end with their last flows.
    inco.settled(1, 0);
    assert_accounted(&inco);
    println!(
        "{} requests, {answers} answers of the DNS server",
        outcome.requests
    );
    inco.stop(&place);
}

#[test]
fn clients_through_a_firewall() {
    clients_notice_nothing(Engine::Oci, &Function::of("firewall", FIREWALL), Arms::Two);
}

#[test]
fn clients_through_an_intrusion_detector() {
    clients_notice_nothing(Engine::Oci, &Function::of("ids", IDS), Arms::Two);
}

#[test]
fn clients_through_a_limiter() {
    clients_notice_nothing(Engine::Oci, &Function::of("limiter", LIMITER), Arms::Two);
}

#[test]
fn clients_through_a_monitor() {
    clients_notice_nothing(Engine::Oci, &Function::of("monitor", ""), Arms::Two);
}

#[test]
fn clients_through_a_router() {
    clients_notice_nothing(Engine::Oci, &Function::router(Arms::Two), Arms::Two);
}

#[test]
fn clients_through_a_tunnel() {
    clients_notice_nothing(Engine::Oci, &tunnel(), Arms::Two);
}

#[test]
fn clients_through_a_translator() {
    clients_notice_nothing(Engine::Oci, &nat(), Arms::Two);
}

#[test]
fn clients_through_a_translator_whose_mappings_move() {
    clients_notice_nothing(Engine::Oci, &moving_nat(), Arms::Two);
}

#[test]
fn clients_through_a_translator_on_interfaces() {
    clients_notice_nothing(Engine::Oci, &nat().on_interfaces(), Arms::Two);
}

#[test]
fn clients_through_a_firewall_with_one_arm_and_docker() {
    let function = Function::of("firewall", FIREWALL).routed(Arms::One);
    clients_notice_nothing(Engine::Docker, &function, Arms::One);
}

#[test]
fn clients_through_a_limiter_and_an_intrusion_detector_with_one_arm() {
    let function = Function::of("limiter", LIMITER).before("ids", IDS);
    clients_notice_nothing(Engine::Oci, &function.routed(Arms::One), Arms::One);
}

#[test]
fn clients_through_a_monitor_with_docker() {
    clients_notice_nothing(Engine::Docker, &Function::of("monitor", ""), Arms::Two);
}

#[test]
fn clients_through_a_firewall_on_interfaces() {
    let function = Function::of("firewall", FIREWALL).on_interfaces();
    clients_notice_nothing(Engine::Oci, &function, Arms::Two);
}

#[test]
fn clients_through_a_limiter_and_an_intrusion_detector_on_interfaces() {
    let function = Function::of("limiter", LIMITER).before("ids", IDS);
    clients_notice_nothing(Engine::Oci, &function.on_interfaces(), Arms::Two);
}

#[test]
fn clients_through_a_tunnel_on_interfaces() {
    clients_notice_nothing(Engine::Oci, &tunnel().on_interfaces(), Arms::Two);
}

#[test]
fn clients_through_a_monitor_on_interfaces_with_docker() {
    let function = Function::of("monitor", "").on_interfaces();
    clients_notice_nothing(Engine::Docker, &function, Arms::Two);
}

#[test]
fn clients_through_a_balancer_on_interfaces() {
    let maglev = format!("addresses = [\"{NEAR}\"]\n[[back_end]]\nname = \"a\"\nmac = \"{SERVER_MAC}\"\n");
    let function = Function::of("maglev", &maglev).on_interfaces();
    clients_notice_nothing(Engine::Oci, &function, Arms::Two);
}

#[test]
fn clients_through_a_queue_on_interfaces() {
    const PFABRIC: &str = "rate = \"10Gbit/s\"\npackets = 4096\npriority = \"dscp\"\n";
    let function = Function::of("pfabric", PFABRIC).on_interfaces();
    clients_notice_nothing(Engine::Oci, &function, Arms::Two);
}

#[test]
fn clients_through_a_router_on_an_interface() {
    let function = Function::router(Arms::One).on_interfaces();
    clients_notice_nothing(Engine::Oci, &function, Arms::One);
}

#[test]
fn clients_through_a_firewall_on_an_interface_with_docker() {
    let function = Function::of("firewall", FIREWALL).routed(Arms::One);
    clients_notice_nothing(Engine::Docker, &function.on_interfaces(), Arms::One);
}

/// inco's configuration with a function that answers at an address, over ports of that kind.
fn answering(engine: Engine, port: &str, name: &str, configuration: &str, vip: &str) -> String {
    let command = [vec!["/inco-nf".to_owned()], stage(name, configuration)].concat();
    format!(
        "{}[switch]\ndriver = \"soft\"\ntimeouts = {{ udp = \"500ms\" }}\n[[uplink]]\nname = \"wan\"\ndevice = \
         \"kernel:eth1\"\n[service.function]\nvip = {{ {vip} }}\nport = \"{port}\"\nimage = \"{IMAGE}\"\ncommand = \
         {command:?}\nmemory = \"256MiB\"\ninstances = {{ min = 1, max = 4, standby = 0 }}\nautoscaler = \
         \"fixed\"\nscheduler = {{ policy = \"round-robin\", slow_start = \"0s\" }}\ndrain_deadline = \"60s\"\n{}",
        engine.toml(),
        stall_after(port),
    )
}

const ZONE: &str = "zones = '''\n$ORIGIN example.test.\n$TTL 300\n@ SOA ns1 hostmaster 1 7200 900 1209600 60\n@ NS ns1\nns1 \
                    A 192.0.2.53\nwww A 192.0.2.80\n'''\n";

/// Each question of dig is a flow, while the servers that answer come and go.
fn dig_has_all_answers(engine: Engine, port: &str) {
    if !are_here(&["dig"]) || !engine.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let vip = "address = \"10.0.0.53\", ports = \"53\"";
    let inco = network.run(&place, &answering(engine, port, "dns", ZONE, vip));
    inco.settled(1, 0);
    let questions = Questions::start(&place, &network, "10.0.0.53");
    let answered = || inco.status().accounting.returned;
    let more = || {
        let before = answered();
        eventually("more questions are answered", PATIENCE, || {
            (answered() > before + 2 * QUESTIONS as u64).then_some(())
        });
    };
    more();
    scale(&place, &inco, "function", more, more);
    let answers = questions.end();
    inco.settled(1, 0);
    assert_accounted(&inco);
    let of = inco.status().accounting;
    assert!(of.returned >= answers, "{of:#?}, {answers} answers");
    inco.stop(&place);
}

#[test]
fn dig_has_all_answers_of_dns_oci() {
    dig_has_all_answers(Engine::Oci, "memif");
}

#[test]
fn dig_has_all_answers_of_dns_docker() {
    dig_has_all_answers(Engine::Docker, "memif");
}

#[test]
fn dig_has_all_answers_of_dns_on_an_interface() {
    dig_has_all_answers(Engine::Oci, "frames");
}

/// Clients of a cache, each with a value of its own: until it is stopped they ask for it again and again, and new ones
/// come.
struct Values {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

/// Clients that stay.
const STAYING: usize = 16;
/// What each of the others asks for.
const REQUESTS: u32 = 20;

impl Values {
    fn start(network: &Network, cache: &'static str) -> Values {
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = network.as_client(|| {
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
            std::thread::spawn(move || {
                let mut number = 0;
                let mut open = || {
                    number += 1;
                    CacheClient::open(cache, number)
                };
                let staying: Vec<CacheClient> = (0..STAYING).map(|_| open()).collect();
                while !stop.load(Relaxed) {
                    let passing = open();
                    for _ in 0..REQUESTS {
                        passing.get();
                    }
                    staying.iter().for_each(CacheClient::get);
                    answers.fetch_add(u64::from(REQUESTS) + STAYING as u64, Relaxed);
                }
            })
        });
        Values {
            stop,
            answers,
            thread,
        }
    }

    /// Waits for so many more answers.
    fn more(&self, answers: u64) {
        let before = self.answers.load(Relaxed);
        eventually("values are there", PATIENCE, || {
            assert!(!self.thread.is_finished(), "a client has no answer");
            (self.answers.load(Relaxed) > before + answers).then_some(())
        });
    }
}

/// A client with a value in the cache.
struct CacheClient {
    socket: UdpSocket,
    number: u32,
}

impl CacheClient {
    fn open(cache: &str, number: u32) -> CacheClient {
        let socket = UdpSocket::bind("10.0.0.2:0").unwrap();
        socket.connect(cache).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let client = CacheClient { socket, number };
        let value = format!("value-{number}");
        let set = format!("set key-{number} 0 0 {}\r\n{value}\r\n", value.len());
        assert_eq!(client.ask(&set), "STORED\r\n");
        client
    }

    fn get(&self) {
        let value = format!("value-{}", self.number);
        let expected = format!(
            "VALUE key-{} 0 {}\r\n{value}\r\nEND\r\n",
            self.number,
            value.len()
        );
        assert_eq!(self.ask(&format!("get key-{}\r\n", self.number)), expected);
    }

    /// A request in a datagram, and its answer.
    fn ask(&self, request: &str) -> String {
        let mut datagram = vec![0, 7, 0, 0, 0, 1, 0, 0];
        datagram.write_all(request.as_bytes()).unwrap();
        self.socket.send(&datagram).unwrap();
        let mut answer = [0; 1500];
        let len = self.socket.recv(&mut answer).unwrap();
        assert_eq!(answer[..8], datagram[..8]);
        text(&answer[8..len])
    }
}

fn each_client_finds_its_value(engine: Engine, port: &str) {
    if !engine.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let vip = "address = \"10.0.0.7\", ports = \"11211\"";
    let inco = network.run(&place, &answering(engine, port, "cache", "memory_mib = 8\n", vip));
    inco.settled(1, 0);
    let values = Values::start(&network, "10.0.0.7:11211");
    values.more(100);
    scale(
        &place,
        &inco,
        "function",
        || values.more(200),
        || values.more(200),
    );
    values.stop.store(true, Relaxed);
    values.thread.join().unwrap();
    inco.settled(1, 0);
    assert_accounted(&inco);
    inco.stop(&place);
}

#[test]
fn each_client_of_a_cache_finds_its_value_oci() {
    each_client_finds_its_value(Engine::Oci, "memif");
}

#[test]
fn each_client_of_a_cache_finds_its_value_docker() {
    each_client_finds_its_value(Engine::Docker, "memif");
}

#[test]
fn each_client_of_a_cache_finds_its_value_on_an_interface() {
    each_client_finds_its_value(Engine::Docker, "frames");
}
