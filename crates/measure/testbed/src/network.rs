//! Network namespaces and links, made with iproute2 and removed with everything in them.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs a program; its output is read only if it fails.
///
/// # Errors
/// The program is not installed, or it failed: with what it said.
pub fn run(program: &str, arguments: &[&str]) -> Result<()> {
    output(Command::new(program).args(arguments)).map(drop)
}

/// Runs a command and returns what it wrote to its standard output.
///
/// # Errors
/// The program is not installed, or it failed: with what it said.
pub fn output(command: &mut Command) -> Result<String> {
    let name = format!("{command:?}");
    let ended = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}; is it installed?"))?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        bail!("{name}: {}: {}", ended.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// A network in which programs can run: a namespace, or that of a process.
#[derive(Clone, Debug)]
pub struct Network(PathBuf);

impl Network {
    /// The network of a process: of a container by the process id of its program.
    pub fn of_process(pid: u32) -> Network {
        Network(PathBuf::from(format!("/proc/{pid}/ns/net")))
    }

    /// A command that runs in it. The file systems stay as they are.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.0.display())).arg(program);
        command
    }

    /// The same for a program that lasts: it is killed when the thread that starts it ends, also by SIGKILL.
    pub fn server(&self, program: &str) -> Command {
        // Whoever is killed before its child asks for the signal is not its parent any more.
        let has_parent = format!("[ $PPID = {} ] && exec \"$0\" \"$@\"", std::process::id());
        let mut command = self.command("setpriv");
        command.args(["--pdeathsig", "KILL", "sh", "-c", &has_parent, program]);
        command
    }

    /// Does something in it, on a thread of its own. Threads that are started there stay there.
    ///
    /// # Errors
    /// The kernel refuses it, or what was done failed.
    pub fn within<T: Send>(&self, run: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let network = std::fs::File::open(&self.0)?;
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                    .context("cannot enter a network namespace")?;
                run()
            });
            let panicked = |_| anyhow::anyhow!("a thread in a network namespace panicked");
            thread.join().map_err(panicked)?
        })
    }
}

/// A network namespace. Dropping it removes it with all its interfaces.
#[derive(Debug)]
pub struct Namespace(String);

impl Namespace {
    /// Makes a namespace of that name, in which the loopback interface is up.
    ///
    /// # Errors
    /// The kernel or iproute2 refuses it.
    pub fn new(name: impl Into<String>) -> Result<Namespace> {
        let namespace = Namespace(name.into());
        run("ip", &["netns", "add", &namespace.0])?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Does something in it, as [`Network::within`].
    ///
    /// # Errors
    /// The kernel refuses it, or what was done failed.
    pub fn within<T: Send>(&self, run: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.network().within(run)
    }

    /// The network, for what runs in it. It ends with the namespace.
    pub fn network(&self) -> Network {
        Network(PathBuf::from(format!("/run/netns/{}", self.0)))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// A command that runs in it. The file systems stay as they are.
    pub fn command(&self, program: &str) -> Command {
        self.network().command(program)
    }

    /// Runs `ip` in it.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn ip(&self, arguments: &[&str]) -> Result<()> {
        output(self.command("ip").args(arguments)).map(drop)
    }

    /// Makes a veth pair with an end here and one in another namespace. It goes with either.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn connect(&self, near: &str, other: &Namespace, far: &str) -> Result<()> {
        output(self.command("ip").args(pair(near, other, far))).map(drop)
    }

    /// Lets it forward packets.
    ///
    /// # Errors
    /// `sysctl` failed.
    pub fn forward(&self) -> Result<()> {
        output(self.command("sysctl").args(["-qw", "net.ipv4.ip_forward=1"])).map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = run("ip", &["netns", "del", &self.0]);
    }
}

/// What makes a veth pair, for `ip`.
fn pair<'a>(near: &'a str, namespace: &'a Namespace, far: &'a str) -> [&'a str; 10] {
    [
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
    ]
}

/// A veth pair with the end `near` in the namespace of this process. Dropping it removes both ends.
#[derive(Debug)]
pub struct Link(String);

impl Link {
    /// Makes a pair from this namespace into another one, where its end is `far`.
    ///
    /// # Errors
    /// `ip` failed.
    pub fn into(near: &str, namespace: &Namespace, far: &str) -> Result<Link> {
        run("ip", &pair(near, namespace, far))?;
        Ok(Link(near.to_owned()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Where the other namespace is removed first, the pair is gone already.
        let _ = run("ip", &["link", "del", &self.0]);
    }
}
