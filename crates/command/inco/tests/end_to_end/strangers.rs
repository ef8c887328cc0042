//! What a container with a kernel port is and is not: it has its own address, names and namespaces, and can be nobody
//! else. It may open connections to what is outside.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Engine, Network, PATIENCE, Place, available, eventually, text};

const IMAGE: &str = "inco-test/stranger";
/// What the tests run in it.
const PROGRAMS: [&str; 6] = ["sh", "sleep", "cat", "readlink", "ip", "nc"];

fn are_here(engine: Engine, programs: &[&str]) -> bool {
    let paths = ["/usr/bin", "/usr/sbin", "/sbin", "/bin"];
    let lacks = |program: &&&str| !paths.iter().any(|path| Path::new(path).join(program).exists());
    let missing = programs.iter().find(lacks);
    available(
        "servers",
        missing.map(|program| format!("{program} is not installed")),
    ) && engine.is_here()
}

fn configuration(engine: Engine, service: &str) -> String {
    format!(
        "{}[switch]\ndriver = \"ebpf\"\nebpf = {{ instance_addresses = \"10.0.0.128/25\" }}\n[[uplink]]\nname = \
         \"wan\"\ndevice = \"kernel:eth1\"\n[service.lb]\nvip = {{ address = \"10.0.0.100\", ports = \"80\" \
         }}\nmemory = \"64MiB\"\ninstances = 1\nautoscaler = \"fixed\"\nstop_grace = \"1s\"\n{service}",
        engine.toml()
    )
}

fn a_container_can_be_nobody_else(engine: Engine) {
    if !are_here(engine, &PROGRAMS) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    place.import_image(IMAGE, &PROGRAMS);
    let service =
        format!("image = \"{IMAGE}\"\ncommand = [\"/bin/sleep\", \"1000\"]\nready = \"connected\"\n");
    let inco = network.run(&place, &configuration(engine, &service));
    let row = inco.settled(1, 0).remove(0);
    let exec = |command: &[&str]| {
        let target = format!("lb/{}", row.id);
        place.output(&[&["exec", &target, "--"], command].concat())
    };
    let said = |command: &[&str]| text(&exec(command).stdout);

    // Its own names and address, as Docker has them.
    let name = said(&["/bin/cat", "/etc/hostname"]);
    let hosts = said(&["/bin/cat", "/etc/hosts"]);
    assert!(hosts.contains("127.0.0.1\tlocalhost\n"), "{hosts}");
    assert!(
        hosts.contains(&format!("10.0.0.129\t{}\n", name.trim())),
        "{hosts}"
    );
    let resolver = said(&["/bin/cat", "/etc/resolv.conf"]);
    let own = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("nameserver"));
        let outside = lines.filter(|line| !line.contains(" 127.") && !line.ends_with(" ::1"));
        outside.map(str::to_owned).collect()
    };
    assert_eq!(servers(&resolver), servers(&own), "{resolver}");
    // Namespaces of its own.
    for kind in ["net", "mnt", "pid", "ipc", "uts"] {
        let its = said(&["/bin/readlink", &format!("/proc/self/ns/{kind}")]);
        let ours = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        assert!(
            its.starts_with(kind) && its.trim() != ours.to_str().unwrap(),
            "{its}"
        );
    }
    // Neither its network nor raw packets are its to make, nor the machine's to administer.
    let status = said(&["/bin/cat", "/proc/self/status"]);
    for set in ["CapEff:", "CapBnd:"] {
        let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
        let mask = u64::from_str_radix(line.trim(), 16).unwrap();
        // CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_MODULE, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_BPF.
        assert!(
            [12, 13, 16, 19, 21, 39].iter().all(|of| mask >> of & 1 == 0),
            "{set}{line}"
        );
    }
    let another = "10.0.0.200";
    let refused = exec(&["/bin/ip", "address", "add", another, "dev", "eth0"]);
    assert!(!refused.status.success(), "it gave itself an address");

    // What it could send if it had broken out of that is dropped: root of the machine does it in its place.
    let pid = row.pid.unwrap().to_string();
    let in_its_place = |arguments: &[&str]| {
        let mut command = Command::new("nsenter");
        command
            .args(["-n", "-t", &pid])
            .args(arguments)
            .stdin(Stdio::null());
        command.output().unwrap()
    };
    let added = in_its_place(&["ip", "address", "add", another, "dev", "eth0"]);
    assert!(added.status.success(), "{}", text(&added.stderr));
    let spoofed = || inco.status().drops.get("spoofed").copied().unwrap_or(0);
    assert_eq!(spoofed(), 0);
    let send = format!("echo hello | nc -u -w1 -s {another} 10.0.0.2 9");
    in_its_place(&["sh", "-c", &send]);
    eventually("what it spoofs is dropped", PATIENCE, || {
        (spoofed() > 0).then_some(())
    });
    // Nobody reaches it by that address, and its own one is answered for.
    let ping = |to: &str| {
        network
            .client("ping", &["-c1", "-W1", to])
            .output()
            .unwrap()
            .status
    };
    assert!(!ping(another).success());
    assert!(ping("10.0.0.100").success());
    inco.stop(&place);
}

#[test]
fn a_container_can_be_nobody_else_oci() {
    a_container_can_be_nobody_else(Engine::Oci);
}

#[test]
fn a_container_can_be_nobody_else_docker() {
    a_container_can_be_nobody_else(Engine::Docker);
}

/// HAProxy behind the service's address asks a server that is outside, from an address of its own.
#[test]
fn haproxy_reaches_a_server_outside() {
    const ANSWER: &str = "HTTP/1.0 200 OK\r\nContent-Length: 8\r\n\r\noutside\n";
    if !are_here(Engine::Oci, &["haproxy", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    // By which the kernel asks for neighbours.
    network.ip("address add 10.0.0.1/24 dev eth1");
    place.must(&["image", "import", "haproxy"]);
    let file = place.file(
        "haproxy.cfg",
        "global\n  maxconn 100\ndefaults\n  mode http\n  timeout connect 1s\n  retries 0\n  timeout client 5s\n  timeout server \
         5s\nlisten web\n  bind :80\n  server outside 10.0.0.2:8000\n",
    );
    let (tell, told) = std::sync::mpsc::channel();
    let listener = network.as_client(|| TcpListener::bind("10.0.0.2:8000").unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let from = stream.peer_addr();
            let _asked = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(ANSWER.as_bytes()).unwrap();
            if tell.send(from.unwrap().ip().to_string()).is_err() {
                return;
            }
        }
    });
    let service = |egress: bool| {
        format!(
            "image = \"haproxy\"\negress = {egress}\nmounts = [\"{}:/etc/haproxy/haproxy.cfg:ro\"]\n",
            file.display()
        )
    };
    let inco = network.run(&place, &configuration(Engine::Oci, &service(true)));
    inco.settled(1, 0);
    let body = eventually("HAProxy answers", PATIENCE, || {
        network.get("http://10.0.0.100/").ok()
    });
    assert_eq!(body, "outside\n");
    assert_eq!(told.recv().unwrap(), "10.0.0.129", "not from its own address");
    inco.stop(&place);
    // Where it may not, the server hears nothing.
    let inco = network.run(&place, &configuration(Engine::Oci, &service(false)));
    inco.settled(1, 0);
    let refused = eventually("HAProxy answers", PATIENCE, || {
        let error = network.get("http://10.0.0.100/").err()?;
        error.contains("503").then_some(error)
    });
    assert!(told.try_recv().is_err(), "{refused}");
    inco.stop(&place);
}
