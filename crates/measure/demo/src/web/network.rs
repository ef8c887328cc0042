//! Network namespaces and links of the demo: a client's namespace, and one in which a peer balances. Made with
//! iproute2, and removed with everything in them.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The address of the service in all runs.
pub(super) const ADDRESS: &str = "10.77.0.100";
/// The client's address.
const CLIENT: &str = "10.77.0.2";
/// The balancer's own address.
const BALANCER: &str = "10.77.0.1";
/// The client's interface, in its namespace.
const INTERFACE: &str = "eth0";

/// Runs a program; its output is read only if it fails.
///
/// # Errors
/// The program is not installed, or it failed: with what it said.
pub(super) fn run(program: &str, arguments: &[&str]) -> Result<()> {
    output(Command::new(program).args(arguments)).map(drop)
}

/// Runs a command and returns what it wrote to its standard output.
///
/// # Errors
/// The program is not installed, or it failed: with what it said.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let name = format!("{command:?}");
    let ended = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}; `make demo ARGS=--web` installs what it needs"))?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        bail!("{name}: {}: {}", ended.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// A network namespace. Dropping it removes it with all its interfaces.
pub(super) struct Namespace(String);

impl Namespace {
    /// Makes a namespace whose loopback interface is up.
    ///
    /// # Errors
    /// The kernel or iproute2 refuses it.
    pub(super) fn new(role: &str) -> Result<Namespace> {
        let namespace = Namespace(format!("inco-web-{}-{role}", std::process::id()));
        run("ip", &["netns", "add", &namespace.0])?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.0
    }

    /// A command that runs in it. The file systems stay as they are.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.0)).arg(program);
        command
    }

    /// Runs `ip` in it.
    ///
    /// # Errors
    /// `ip` failed.
    pub(super) fn ip(&self, arguments: &[&str]) -> Result<()> {
        output(self.command("ip").args(arguments)).map(drop)
    }

    /// Lets it forward packets.
    ///
    /// # Errors
    /// `sysctl` failed.
    pub(super) fn forward(&self) -> Result<()> {
        output(self.command("sysctl").args(["-qw", "net.ipv4.ip_forward=1"])).map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = run("ip", &["netns", "del", &self.0]);
    }
}

/// A veth pair with the end `near` in the namespace of this process. Dropping it removes both ends.
pub(super) struct Link(String);

impl Link {
    /// Makes a pair from this namespace into another one, where its end is `far`.
    ///
    /// # Errors
    /// `ip` failed.
    pub(super) fn into(near: &str, namespace: &Namespace, far: &str) -> Result<Link> {
        run(
            "ip",
            &[
                "link",
                "add",
                near,
                "type",
                "veth",
                "peer",
                "name",
                far,
                "netns",
                namespace.name(),
            ],
        )?;
        Ok(Link(near.to_owned()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Where the other namespace is removed first, the pair is gone already.
        let _ = run("ip", &["link", "del", &self.0]);
    }
}

/// The client's namespace, whose link ends in the namespace of this process: inco's uplink.
pub(super) fn client_of_inco() -> Result<(Namespace, Link, String)> {
    let client = Namespace::new("client")?;
    let uplink = format!("incow{}", std::process::id() % 1_000_000);
    let link = Link::into(&uplink, &client, INTERFACE)?;
    run("ip", &["link", "set", &uplink, "up"])?;
    set_up_client(&client)?;
    Ok((client, link, uplink))
}

/// The client's namespace and the one of a peer, with a link between them.
pub(super) fn client_and_balancer() -> Result<(Namespace, Namespace)> {
    let client = Namespace::new("client")?;
    let balancer = Namespace::new("balancer")?;
    client.ip(&[
        "link",
        "add",
        INTERFACE,
        "type",
        "veth",
        "peer",
        "name",
        INTERFACE,
        "netns",
        balancer.name(),
    ])?;
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
