//! A network of a test's own, in which inco gives services an address: its machine, and a client behind `eth1`.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use super::{Inco, Namespace, Place, text};

/// What a client waits for at most.
const WAIT: Duration = Duration::from_secs(30);

/// The machine of inco and the client.
pub(crate) struct Network {
    router: Namespace,
    client: Namespace,
}

/// What `ip` is told to make a bridge. Without an address of its own, it has the lowest of its members': who knows the
/// earlier one is not heard once a lower one joins.
pub(crate) fn bridge(name: &str) -> String {
    format!("link add {name} address 02:00:00:00:00:b0 type bridge mcast_snooping 0")
}

impl Network {
    /// The client has 10.0.0.2/24, and inco's machine an interface `eth1` towards it without an address.
    pub(crate) fn new() -> Network {
        let (router, client) = (Namespace::new(), Namespace::new());
        router.ip(&format!(
            "link add eth1 type veth peer name eth0 netns {}\nlink set lo up\nlink set eth1 up",
            client.pid()
        ));
        client.ip("link set lo up\naddress add 10.0.0.2/24 dev eth0\nlink set eth0 up");
        Network { router, client }
    }

    /// A process in the network of inco's machine.
    pub(crate) fn machine_pid(&self) -> u32 {
        self.router.pid()
    }

    /// inco's machine.
    pub(crate) fn machine(&self) -> &Namespace {
        &self.router
    }

    /// `inco run` on its machine.
    pub(crate) fn run(&self, place: &Place, configuration: &str) -> Inco {
        self.router.within(|| place.run(configuration))
    }

    /// The same with a file as it is.
    pub(crate) fn run_file(&self, place: &Place, file: &Path) -> Inco {
        self.router.within(|| place.run_file(file))
    }

    /// `ip` on inco's machine, a command a line.
    pub(crate) fn machine_ip(&self, commands: &str) {
        self.router.ip(commands);
    }

    /// `ip` at the client.
    pub(crate) fn client_ip(&self, commands: &str) {
        self.client.ip(commands);
    }

    /// A server on the other side of inco's machine, behind its interface `eth2`, with that address on its `eth0`.
    pub(crate) fn server(&self, address: &str) -> Namespace {
        let server = Namespace::new();
        self.router.ip(&format!(
            "link add eth2 type veth peer name eth0 netns {}\nlink set eth2 up",
            server.pid()
        ));
        server.ip(&format!(
            "link set lo up\naddress add {address} dev eth0\nlink set eth0 up"
        ));
        server
    }

    /// The same on the client's own side: a bridge there connects the client, the server and inco's machine.
    pub(crate) fn server_beside(&self, address: &str) -> Namespace {
        let server = Namespace::new();
        // A bridge that snoops reports its own membership of a multicast group, from the client's address.
        self.client.ip(&format!(
            "{}\nlink add to-server type veth peer name eth0 netns {}\naddress flush dev eth0\n\
             link set eth0 master br0\nlink set to-server master br0 up\naddress add 10.0.0.2/24 dev br0\nlink set br0 up",
            bridge("br0"),
            server.pid()
        ));
        server.ip(&format!(
            "link set lo up\naddress add {address} dev eth0\nlink set eth0 up"
        ));
        server
    }

    /// A client behind the client, which forwards over the link `far0` of which nobody says how narrow it is. Both IP
    /// versions.
    pub(crate) fn far_client(&self) -> Namespace {
        let far = Namespace::new();
        let near = &self.client;
        near.ip(&format!(
            "link add far0 type veth peer name far1 netns {}",
            far.pid()
        ));
        for (namespace, interfaces) in [(near, &["eth0", "far0"][..]), (&far, &["far1"])] {
            namespace.within(|| {
                for interface in interfaces {
                    let path = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
                    std::fs::write(path, "0").unwrap();
                }
            });
        }
        near.ip("address add 2001:db8::2/64 dev eth0 nodad");
        near.ip(
            "address add 10.9.0.1/24 dev far0\naddress add 2001:db8:9::1/64 dev far0 nodad\nlink set far0 up",
        );
        far.ip(
            "address add 10.9.0.2/24 dev far1\naddress add 2001:db8:9::2/64 dev far1 nodad\nlink set far1 up",
        );
        far.ip("route add default via 10.9.0.1\n-6 route add default via 2001:db8:9::1");
        near.within(|| {
            for file in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{file}"), "1").unwrap();
            }
        });
        far
    }

    /// A command of the client, not started yet.
    pub(crate) fn client(&self, program: &str, arguments: &[&str]) -> Command {
        self.client.command(program, arguments)
    }

    /// `ip` on inco's machine, a command a line.
    pub(crate) fn ip(&self, commands: &str) {
        self.router.ip(commands);
    }

    /// Does something on inco's machine. Programs that are started there stay there.
    pub(crate) fn as_machine<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.router.within(run)
    }

    /// Does something on the client's side. Threads and programs that are started there stay there.
    pub(crate) fn as_client<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        self.client.within(run)
    }

    /// A request of the client with curl. The body; or why there is none.
    pub(crate) fn get(&self, url: &str) -> Result<String, String> {
        let said = |output: Output| match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        };
        let arguments = ["-sSf", "--max-time", "5", url];
        said(self.client("curl", &arguments).output().unwrap())
    }

    /// A connection of the client to a server of `server.pl`, which says whose it is.
    pub(crate) fn connect(&self, to: &str) -> io::Result<Session> {
        let to = to.parse().map_err(io::Error::other)?;
        let stream = self.client.within(|| TcpStream::connect_timeout(&to, WAIT))?;
        stream.set_read_timeout(Some(WAIT))?;
        let mut session = Session {
            stream: BufReader::new(stream),
            id: 0,
        };
        session.id = session.ask("id")?.parse().map_err(io::Error::other)?;
        Ok(session)
    }
}

/// A connection to an instance.
pub(crate) struct Session {
    stream: BufReader<TcpStream>,
    /// The instance's id.
    pub(crate) id: u32,
}

impl Session {
    /// Sends a line, and takes the one that comes back.
    pub(crate) fn ask(&mut self, line: &str) -> io::Result<String> {
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        match self.stream.read_line(&mut answer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer.trim_end().to_owned()),
        }
    }
}
