//! Real clients through each function of the library, and a real server behind it, while instances come and go: curl,
//! iperf3, dig and ping notice nothing. Functions have memif ports, or whole frames on interfaces.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::{
    Engine, IMAGE, Inco, Load, Namespace, Network, PATIENCE, Place, available, eventually, kill, text,
};
use model::{EventKind, InstanceState};

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
/// A TCP flow of which nothing is seen ends after this. A held download's server asks at doubling intervals whether its
/// client reads again: after 13 s at the latest where the client was held for less than 25 s.
const TCP_TIMEOUT: Duration = Duration::from_secs(15);
/// Questions of a run of dig.
const QUESTIONS: usize = 40;
/// Ports of iperf3's servers, each of which serves one client at a time.
const IPERF_PORTS: [&str; 2] = ["5201", "5202"];
/// What an upload of iperf3 sends at once and in a second, in bytes and bits; and how often it tells of it, in seconds.
const IPERF: [&str; 6] = ["--length", "2K", "--bitrate", "1M", "--interval", "0.1"];

/// One process: another one would outlive the test.
const NGINX: &str = "daemon off;\nmaster_process off;\nuser root;\nerror_log stderr warn;\npid PLACE/nginx.pid;\nevents { \
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

    /// Whether a drain may outlast the clients.
    fn outlasts(&self) -> bool {
        self.service.contains(EXTERNAL) && !self.moves
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
/// Mappings end soon after their connections. All clients are one host: it may have each port of an instance, because a
/// mapping has its port for two or three seconds.
const NAT: &str = "inside = [\"10.0.0.2/32\"]\nblock_ports = 252\nblocks_per_host = 16\nudp_timeout_s = \
                   2\ntcp_transitory_timeout_s = 2\nicmp_timeout_s = 2\n";
const EXTERNAL: &str = "203.0.113.1";
/// Echo requests of the client.
const PINGS: u64 = 60;
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
        "{}[switch]\ndriver = \"soft\"\ntimeouts = {{ udp = \"500ms\", icmp = \"500ms\", tcp = \"{}s\", tcp_linger \
         = \"100ms\" }}\n{second}[[uplink]]\nname = \"lan\"\ndevice = \"kernel:eth1\"\n[service.function]\nmatch = {{ src = \
         \"10.0.0.0/15\" }}\nuplinks = {uplinks}\nport = \"{}\"\nimage = \"{IMAGE}\"\ncommand = {command:?}\nmemory = \"256MiB\"\nring = \
         {{ slots = 8192 }}\ninstances = {{ min = 1, max = 4, standby = 0 }}\nautoscaler = \"fixed\"\nscheduler = {{ policy = \
         \"round-robin\", slow_start = \"0s\" }}\ndrain_deadline = \"60s\"\n{}{}",
        engine.toml(),
        TCP_TIMEOUT.as_secs(),
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
    fn end(self, place: &Place) -> u64 {
        self.stop.store(true, Relaxed);
        let answers = self.thread.join().unwrap();
        answers.unwrap_or_else(|said| panic!("{said}\n{}", functions(place)))
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

/// What functions count, of instances that are there.
fn functions(place: &Place) -> String {
    place.must(&["instances", "--functions", "--json"])
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

/// Drains end for a reason that the function allows. The switch sees one direction of a translated connection in each
/// flow, and cannot tell its end: where mappings do not move, such a drain lasts until the flow has timed out.
fn assert_ends(inco: &Inco, function: &Function) {
    let ends = inco.events().into_iter().filter_map(|event| match event.kind {
        EventKind::State {
            from: InstanceState::Draining,
            reason,
            ..
        } => Some(reason),
        _ => None,
    });
    let ends: Vec<String> = ends.collect();
    let is_expected = |reason: &String| match reason.as_str() {
        "its flows have moved" => function.moves,
        "its last flow has ended" => true,
        _ => false,
    };
    assert!(ends.len() == 3 && ends.iter().all(is_expected), "{ends:#?}");
}

/// Echo replies that this thread's network namespace has received. The program `ping` waits for the last one only twice
/// as long as for the slowest before it.
fn echo_replies() -> u64 {
    let counters = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut rows = counters.lines().filter_map(|row| row.strip_prefix("Icmp: "));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    let (_, replies) = pairs.find(|(name, _)| *name == "InEchoReps").unwrap();
    replies.parse().unwrap()
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
        let near = format!(
            "route add {EXTERNAL}/32 dev eth0\nneigh add {EXTERNAL} lladdr {CLIENT_MAC} dev eth0 nud permanent"
        );
        let routed = format!("route add {EXTERNAL}/32 via 10.1.0.1 dev eth0");
        server.ip(if function.routes { &routed } else { &near });
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
    let ping = ["-c", &PINGS.to_string(), "-i", "0.02", "-q", address];
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
    let answers = questions.end(&place);
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.requests > 100 && answers > 0,
        "{outcome:#?}\n{answers} answers\n{}\n{:#?}",
        inco.told(),
        inco.status()
    );
    let pinged = text(&ping.wait_with_output().unwrap().stdout);
    // Uploads fill rings, as TCP does. What finds one full is dropped and counted, and may be a ping; nothing else is.
    let pinged = format!(
        "{pinged}\n{:#?}\neach echo request is answered or dropped",
        inco.status()
    );
    eventually(&pinged, PATIENCE, || {
        let status = inco.status();
        let full = status
            .drops
            .iter()
            .filter(|(reason, _)| reason.ends_with("_ring_full"));
        let dropped: u64 = full.map(|(_, packets)| packets).sum();
        (network.as_client(echo_replies) + dropped >= PINGS).then_some(())
    });
    // The others end with their last flows.
    if function.outlasts() {
        eventually("three instances have ended", TCP_TIMEOUT + PATIENCE, || {
            (inco.instances().len() == 1).then_some(())
        });
    }
    inco.settled(1, 0);
    assert_ends(&inco, function);
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
fn clients_through_a_translator_on_an_interface_with_docker() {
    let function = nat().on_interfaces().routed(Arms::One);
    clients_notice_nothing(Engine::Docker, &function, Arms::One);
}

#[test]
fn clients_through_a_translator_whose_mappings_move_with_one_arm() {
    let function = moving_nat().routed(Arms::One);
    clients_notice_nothing(Engine::Oci, &function, Arms::One);
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
        "{}[switch]\ndriver = \"soft\"\ntimeouts = {{ udp = \"2s\" }}\n[[uplink]]\nname = \"wan\"\ndevice = \
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
    let answers = questions.end(&place);
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

/// Clients of a function that answers requests in datagrams, until they are stopped: some stay, and new ones come.
struct Clients {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

/// Clients that stay.
const STAYING: usize = 16;
/// Requests of each of the others.
const REQUESTS: u32 = 20;

impl Clients {
    /// `open` makes the client of that number: each call sends a request, and checks the answer.
    fn start<C: FnMut()>(network: &Network, open: impl Fn(u32) -> C + Send + 'static) -> Clients {
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = network.as_client(|| {
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
            std::thread::spawn(move || {
                let mut numbers = 0..;
                let mut open = || open(numbers.next().unwrap());
                let mut staying: Vec<C> = (0..STAYING).map(|_| open()).collect();
                while !stop.load(Relaxed) {
                    let mut passing = open();
                    for _ in 0..REQUESTS {
                        passing();
                    }
                    staying.iter_mut().for_each(|ask| ask());
                    answers.fetch_add(u64::from(REQUESTS) + STAYING as u64, Relaxed);
                }
            })
        });
        Clients {
            stop,
            answers,
            thread,
        }
    }

    /// Waits for so many more answers.
    fn more(&self, answers: u64) {
        let before = self.answers.load(Relaxed);
        eventually("requests are answered", PATIENCE, || {
            assert!(
                !self.thread.is_finished(),
                "a client has no answer, or a wrong one"
            );
            (self.answers.load(Relaxed) > before + answers).then_some(())
        });
    }

    fn end(self) {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap();
    }
}

/// A socket of the client's, for datagrams to that endpoint.
fn socket_to(endpoint: &str) -> UdpSocket {
    let socket = UdpSocket::bind("10.0.0.2:0").unwrap();
    socket.connect(endpoint).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// A request in a datagram, and its answer.
fn exchange(socket: &UdpSocket, request: &[u8]) -> Vec<u8> {
    socket.send(request).unwrap();
    let mut answer = vec![0; 1500];
    let len = socket.recv(&mut answer).unwrap();
    answer.truncate(len);
    answer
}

/// Each client has the answers of its own instance, while instances come and go.
fn clients_are_answered<C: FnMut()>(
    (engine, port): (Engine, &str),
    (name, configuration): (&str, &str),
    (address, ports): (&str, &str),
    open: impl Fn(u32) -> C + Send + 'static,
) {
    if !engine.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let vip = format!("address = \"{address}\", ports = \"{ports}\"");
    let inco = network.run(&place, &answering(engine, port, name, configuration, &vip));
    inco.settled(1, 0);
    let clients = Clients::start(&network, open);
    clients.more(100);
    scale(
        &place,
        &inco,
        "function",
        || clients.more(200),
        || clients.more(200),
    );
    clients.end();
    inco.settled(1, 0);
    assert_accounted(&inco);
    inco.stop(&place);
}

/// A client with a value in the cache.
struct CacheClient {
    socket: UdpSocket,
    number: u32,
}

impl CacheClient {
    fn open(number: u32) -> CacheClient {
        let socket = socket_to("10.0.0.7:11211");
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

    fn ask(&self, request: &str) -> String {
        let mut datagram = vec![0, 7, 0, 0, 0, 1, 0, 0];
        datagram.write_all(request.as_bytes()).unwrap();
        let answer = exchange(&self.socket, &datagram);
        assert_eq!(answer[..8], datagram[..8]);
        text(&answer[8..])
    }
}

fn each_client_finds_its_value(engine: Engine, port: &str) {
    let cache = ("cache", "memory_mib = 8\n");
    clients_are_answered((engine, port), cache, ("10.0.0.7", "11211"), |number| {
        let client = CacheClient::open(number);
        move || client.get()
    });
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

/// Keys that clients which pass share. With those of the others, all find room in an answer.
const SHARED_KEYS: u32 = 40;
/// Keys of an answer of the ranker, at most, and the bytes of one.
const KEYS: usize = 60;
const KEY_BYTES: usize = 24;

/// A client that stays has a key of its own: its count is what this client has sent, because its instance stays.
fn each_client_finds_its_count(engine: Engine, port: &str) {
    clients_are_answered((engine, port), ("ranker", ""), ("10.0.0.8", "9102"), |number| {
        let socket = socket_to("10.0.0.8:9102");
        let has_own = (number as usize) < STAYING;
        let key = if has_own {
            u64::from(number) + 1000
        } else {
            u64::from(number % SHARED_KEYS)
        };
        let mut sent = 0;
        move || {
            sent += 3;
            let mut request = vec![3, KEYS as u8, 0, 1];
            request.extend(key.to_be_bytes());
            request.extend(3_u32.to_be_bytes());
            request.resize(4 + KEYS * KEY_BYTES, 0);
            let answer = exchange(&socket, &request);
            assert_eq!(
                (answer[0], usize::from(answer[1])),
                (3 + 128, (answer.len() - 4) / KEY_BYTES)
            );
            let word = |row: &[u8], at: usize| u64::from_be_bytes(row[at..at + 8].try_into().unwrap());
            let row = answer[4..].chunks(KEY_BYTES).find(|row| word(row, 0) == key);
            let (count, error) = row.map(|row| (word(row, 8), word(row, 16))).unwrap();
            assert!(
                error == 0 && (count == sent || !has_own && count > sent),
                "{count} of {sent}"
            );
        }
    });
}

#[test]
fn each_client_of_a_ranker_finds_its_count() {
    each_client_finds_its_count(Engine::Oci, "memif");
}

#[test]
fn each_client_of_a_ranker_finds_its_count_on_an_interface() {
    each_client_finds_its_count(Engine::Oci, "frames");
}

#[test]
fn each_client_of_a_ranker_finds_its_count_on_an_interface_with_docker() {
    each_client_finds_its_count(Engine::Docker, "frames");
}

const CLASSES: &str = "classes = [\"web\", \"video\"]\nfeatures = 3\nvalues = 16\n[[sample]]\nclass = \
                       \"web\"\nfeatures = [1, 0, 15]\n[[sample]]\nclass = \"video\"\nfeatures = [9, 3, 15]\n";

/// Asks for the one class and the other one.
fn classifier_client(number: u32) -> impl FnMut() {
    let socket = socket_to("10.0.0.9:9103");
    let mut asked = number;
    move || {
        asked += 1;
        let (class, features) = match asked % 2 {
            0 => (0, [1, 0]),
            _ => (1, [9, 3]),
        };
        let answer = exchange(&socket, &[1, 0, features[0], features[1], 15, 0, 0, 0]);
        assert_eq!(answer[..4], [129, class, 0, 0]);
        let margin = u32::from_be_bytes(answer[4..].try_into().unwrap());
        assert!(margin > 0, "{answer:?}");
    }
}

fn each_request_has_its_class(engine: Engine, port: &str) {
    let classifier = ("classifier", CLASSES);
    clients_are_answered(
        (engine, port),
        classifier,
        ("10.0.0.9", "9103"),
        classifier_client,
    );
}

#[test]
fn each_request_to_a_classifier_has_its_class() {
    each_request_has_its_class(Engine::Oci, "memif");
}

#[test]
fn each_request_to_a_classifier_has_its_class_on_an_interface() {
    each_request_has_its_class(Engine::Oci, "frames");
}

#[test]
fn each_request_to_a_classifier_has_its_class_on_an_interface_with_docker() {
    each_request_has_its_class(Engine::Docker, "frames");
}

/// Each instance is a chain of one replica. A client's writes and reads find the same one, and versions only rise.
fn each_client_reads_what_it_wrote(engine: Engine, port: &str) {
    const REPLICA: &str = "address = \"10.0.0.10:9105\"\nmac = \"02:00:00:00:00:0a\"\n";
    clients_are_answered(
        (engine, port),
        ("replica", REPLICA),
        ("10.0.0.10", "9105"),
        |number| {
            let socket = socket_to("10.0.0.10:9105");
            let (mut asked, mut version) = (0_u32, 0);
            move || {
                asked += 1;
                let value = format!("value {number} {asked}").into_bytes();
                for kind in [1, 2] {
                    let mut request = vec![0; 48];
                    request[0] = kind;
                    if kind == 1 {
                        request[2..4].copy_from_slice(&(value.len() as u16).to_be_bytes());
                    }
                    request[4..8].copy_from_slice(&asked.to_be_bytes());
                    request[8..16].copy_from_slice(&u64::from(number).to_be_bytes());
                    request.extend(&value);
                    let answer = exchange(&socket, &request);
                    assert_eq!((answer[0], answer[1]), (kind + 128, 0), "{answer:?}");
                    assert_eq!(answer[4..16], request[4..16]);
                    let written = u64::from_be_bytes(answer[16..24].try_into().unwrap());
                    if kind == 1 {
                        assert!(written > version, "{written} after {version}");
                        version = written;
                    } else {
                        assert_eq!((written, &answer[48..]), (version, &value[..]));
                    }
                }
            }
        },
    );
}

#[test]
fn each_client_of_a_replica_reads_what_it_wrote() {
    each_client_reads_what_it_wrote(Engine::Oci, "memif");
}

#[test]
fn each_client_of_a_replica_reads_what_it_wrote_on_an_interface() {
    each_client_reads_what_it_wrote(Engine::Oci, "frames");
}

#[test]
fn each_client_of_a_replica_reads_what_it_wrote_on_an_interface_with_docker() {
    each_client_reads_what_it_wrote(Engine::Docker, "frames");
}

/// Whether its program takes frames from an interface is not seen, so a command in the container says that it hangs.
#[test]
fn a_function_on_an_interface_that_hangs_is_replaced() {
    let engine = Engine::Oci;
    if !engine.is_here() {
        return;
    }
    let (place, network) = (Place::with_a_cpu(), Network::new());
    let image = "inco-test/function-and-shell";
    place.import_image(image, &["sh"]);
    // In the container the function is process 1. `T`: it was stopped.
    let health = "health = { command = ['/bin/sh', '-c', 'read -r _ _ state _ < /proc/1/stat && [ $state != T ]'], \
                  every = \"500ms\", timeout = \"500ms\", fall = 2 }\n";
    let vip = "address = \"10.0.0.9\", ports = \"9103\"";
    let text = answering(engine, "frames", "classifier", CLASSES, vip)
        .replace(IMAGE, image)
        .replace("drain_deadline = \"60s\"", "drain_deadline = \"2s\"")
        + health;
    let inco = network.run(&place, &text);
    inco.settled(1, 0);
    let clients = Clients::start(&network, classifier_client);
    clients.more(100);
    clients.end();
    place.must(&["scale", "function", "2"]);
    let rows = inco.settled(2, 0);
    // All checks pass as long as the program runs.
    assert!(!inco.told().contains("did not pass"), "{}", inco.told());
    // A later client may get the port of an earlier one, whose flow stays with an instance that hangs.
    eventually("the flows of the clients have ended", PATIENCE, || {
        inco.instances().iter().all(|of| of.live_flows == 0).then_some(())
    });
    let victim = &rows[0];
    let began = Instant::now();
    kill(victim.pid.unwrap(), rustix::process::Signal::STOP);
    eventually("another one is there", PATIENCE, || {
        (inco.count(InstanceState::Active) == 3).then_some(())
    });
    let told = inco.told();
    assert!(told.contains("2 checks in a row did not pass"), "{told}");
    println!("another one was there after {:?}", began.elapsed());
    let clients = Clients::start(&network, classifier_client);
    clients.more(200);
    clients.end();
    eventually("it is removed", PATIENCE, || {
        inco.instance(victim.id).is_none().then_some(())
    });
    inco.settled(2, 0);
    inco.stop(&place);
}
