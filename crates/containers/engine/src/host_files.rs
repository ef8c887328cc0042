//! The files by which a program knows itself and finds others by name, as Docker makes them: `hostname`, `hosts` and
//! `resolv.conf`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use model::InterfaceSetup;

/// The longest host name that the kernel takes, in bytes.
const MAX_HOSTNAME: usize = 63;
/// What is read of a file of name servers, in bytes.
const MAX_RESOLVER_BYTES: u64 = 16 * 1024;
/// Where this machine says which name servers it asks; and which ones stand behind systemd's own.
const RESOLVERS: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// The host name of a container.
pub(crate) fn hostname(container: &str) -> String {
    container.chars().take(MAX_HOSTNAME).collect()
}

/// The addresses that a container's own name stands for: those of its first port.
pub(crate) fn own_addresses(ports: &[InterfaceSetup]) -> impl Iterator<Item = IpAddr> {
    let addresses = ports.first().into_iter().flat_map(|port| &port.addresses);
    addresses.map(|&(address, _)| address)
}

/// All three, each with its place in the container.
pub(crate) fn all(container: &str, ports: &[InterfaceSetup]) -> Vec<(PathBuf, String)> {
    let name = hostname(container);
    let found = RESOLVERS.iter().map(|path| resolver(&read(Path::new(path))));
    let resolver = found.reduce(|own, behind| if has_server(&own) { own } else { behind });
    vec![
        ("/etc/hosts".into(), hosts(&name, ports)),
        ("/etc/hostname".into(), name + "\n"),
        ("/etc/resolv.conf".into(), resolver.unwrap_or_default()),
    ]
}

/// Nothing where it cannot be read.
fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    let file = File::open(path);
    let _ = file.and_then(|file| file.take(MAX_RESOLVER_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hosts(name: &str, ports: &[InterfaceSetup]) -> String {
    let mut text = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::\tip6-localnet\n\
                    ff00::\tip6-mcastprefix\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n"
        .to_owned();
    for address in own_addresses(ports) {
        let _ = writeln!(text, "{address}\t{name}");
    }
    text
}

/// The server that a line of `resolv.conf` names.
fn server(line: &str) -> Option<&str> {
    line.trim().strip_prefix("nameserver")?.split_whitespace().next()
}

fn has_server(text: &str) -> bool {
    text.lines().any(|line| server(line).is_some())
}

/// The same without the servers that only this machine reaches: those on its loopback interface.
fn resolver(text: &str) -> String {
    let is_reached = |line: &&str| {
        let address = server(line).and_then(|server| server.parse::<IpAddr>().ok());
        address.is_none_or(|address| !address.is_loopback())
    };
    let lines = text.lines().filter(is_reached);
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_asks_the_servers_that_it_reaches() {
        let text = "# by a tool\nnameserver 127.0.0.53\nnameserver ::1\nsearch example.org\noptions edns0\n";
        let reached = resolver(text);
        assert_eq!(reached, "# by a tool\nsearch example.org\noptions edns0\n");
        assert!(!has_server(&reached));
        let reached = resolver("nameserver 10.0.0.1\nnameserver 2001:db8::1");
        assert_eq!(reached, "nameserver 10.0.0.1\nnameserver 2001:db8::1\n");
        assert!(has_server(&reached));
    }

    #[test]
    fn a_container_knows_itself_by_its_name() {
        let port = InterfaceSetup {
            addresses: vec![
                (IpAddr::from([10, 0, 0, 7]), 32),
                ("2001:db8::7".parse().unwrap(), 128),
            ],
            ..crate::port::example()
        };
        let files = all("inco-web-7", &[port]);
        let text = |name: &str| {
            let of = files.iter().find(|(path, _)| path.ends_with(name));
            of.map(|(_, text)| text.as_str()).unwrap()
        };
        assert_eq!(text("hostname"), "inco-web-7\n");
        assert!(text("hosts").starts_with("127.0.0.1\tlocalhost\n"));
        assert!(text("hosts").ends_with("10.0.0.7\tinco-web-7\n2001:db8::7\tinco-web-7\n"));
        assert_eq!(hostname(&"x".repeat(100)).len(), 63);
    }
}
