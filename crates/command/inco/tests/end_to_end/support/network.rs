//! A network of a test's own, in which inco gives services an address: its machine, and a client behind `eth1`.

use std::process::{Command, Output, Stdio};

use super::{Inco, Namespace, Place, text};

/// The machine of inco and the client.
pub(crate) struct Network {
    router: Namespace,
    client: Namespace,
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

    /// `inco run` on its machine.
    pub(crate) fn run(&self, place: &Place, configuration: &str) -> Inco {
        self.router.within(|| place.run(configuration))
    }

    /// A command of the client, not started yet.
    pub(crate) fn client(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.client.pid()))
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// `ip` on inco's machine, a command a line.
    pub(crate) fn ip(&self, commands: &str) {
        self.router.ip(commands);
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
}
