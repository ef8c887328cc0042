//! Reads and checks configurations.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use configuration::{Configuration, EngineDriver, Problem, Service, check_facts};
use display::output::WrongUsage;
use model::{Match, Prefix, protocol};
use rustix::fs::OFlags;

use crate::drivers;
use crate::machine::Machine;
use api::longest_path;
use api::run_dir::{api_socket, in_run_dir};

/// Longest path of a unix socket in bytes: the kernel's address has 108, including the final NUL.
const SOCKET_PATH_LIMIT: usize = 107;
/// Largest configuration in bytes: a thousand times the usual size.
const FILE_LIMIT: u64 = 1 << 20;

/// Reads and checks a configuration file, without the machine's facts.
pub fn load(file: &Path) -> anyhow::Result<Configuration> {
    let name = file.display().to_string();
    let text = text_of(file).map_err(|wrong| WrongUsage(format!("{name}: {wrong}")))?;
    let mut configuration = parse(&text, &name).map_err(|problems| wrong(&problems))?;
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let folder = folder.canonicalize()?;
    for mount in configuration.services.iter_mut().flat_map(|of| &mut of.mounts) {
        if let Ok(path) = mount.source.strip_prefix(".") {
            mount.source = folder.join(path);
        }
    }
    Ok(configuration)
}

/// Parses and checks the text of a configuration against the capabilities of this build's drivers. `file_name`
/// appears in messages.
///
/// # Errors
/// Returns every problem that can be found without the machine's facts, in the order of the text.
pub fn parse(text: &str, file_name: &str) -> Result<Configuration, Vec<Problem>> {
    configuration::parse(text, file_name, drivers::capabilities)
}

/// The text of a configuration file, or an error message. Reads regular files only: a FIFO or a device may never end.
fn text_of(file: &Path) -> Result<String, String> {
    let cannot = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            "the file does not exist; name one with -f, for example -f examples/forward.toml".to_owned()
        }
        io::ErrorKind::InvalidData => "this is not UTF-8 text; write TOML".to_owned(),
        _ => format!("it cannot be read ({error})"),
    };
    let open = File::options()
        .read(true)
        // Opening a FIFO must not wait for its other end.
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(file)
        .map_err(cannot)?;
    let kind = open.metadata().map_err(cannot)?.file_type();
    if !kind.is_file() {
        let found = match kind {
            _ if kind.is_dir() => "a directory",
            _ if kind.is_fifo() => "a FIFO",
            _ => "a device",
        };
        return Err(format!("this is {found}; name a regular file"));
    }
    let mut text = String::new();
    open.take(FILE_LIMIT + 1)
        .read_to_string(&mut text)
        .map_err(cannot)?;
    if text.len() as u64 > FILE_LIMIT {
        return Err(format!(
            "the file is longer than {} KiB; name a configuration",
            FILE_LIMIT / 1024
        ));
    }
    Ok(text)
}

/// Reads and checks a configuration file, including this machine's facts.
pub fn load_for_this_machine(file: &Path, machine: &Machine) -> anyhow::Result<Configuration> {
    let configuration = load(file)?;
    let problems = check_facts(&configuration, machine);
    if !problems.is_empty() {
        return Err(wrong(&problems).into());
    }
    let in_file = |problem: String| WrongUsage(format!("{}: {problem}", file.display()));
    if let Some(problem) = too_long(&sockets(&configuration)) {
        return Err(in_file(problem).into());
    }
    // A running inco already has the devices and memory that it needs.
    if !machine.has_own_inco() {
        let checked = drivers::driver(&configuration).check_devices(&configuration);
        checked.map_err(|error| in_file(format!("{error:#}")))?;
    }
    Ok(configuration)
}

/// All paths at which this inco, or a switch for it, listens on a unix socket. Containers have theirs under a short
/// path of their own.
fn sockets(configuration: &Configuration) -> Vec<PathBuf> {
    let api = api_socket(configuration.api.socket.as_deref());
    let mut sockets = vec![longest_path(&api)];
    sockets.extend(
        configuration
            .uplinks
            .iter()
            .filter_map(|uplink| Some(in_run_dir(uplink.device.socket()?))),
    );
    let engines = configuration.engines();
    let has_oci = engines
        .iter()
        .any(|(_, engine)| engine.driver == EngineDriver::Oci);
    if has_oci && configuration.has_containers() {
        sockets.push(in_run_dir(Path::new(engine::launcher::SOCKET)));
    }
    sockets.extend(drivers::driver(configuration).sockets(configuration));
    sockets
}

/// What is wrong with the longest of these paths of sockets, if the kernel would not take it.
fn too_long(sockets: &[PathBuf]) -> Option<String> {
    let bytes = |socket: &PathBuf| socket.as_os_str().len();
    let longest = sockets.iter().max_by_key(|socket| bytes(socket))?;
    (bytes(longest) > SOCKET_PATH_LIMIT).then(|| {
        format!(
            "the path of the socket {} has {} bytes, more than the limit of {SOCKET_PATH_LIMIT}; set INCO_RUN_DIR \
             to a shorter directory, or write a shorter path",
            longest.display(),
            bytes(longest)
        )
    })
}

fn wrong(problems: &[Problem]) -> WrongUsage {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    WrongUsage(lines.join("\n"))
}

/// A short text for the packets of a service.
pub fn service_text(service: &Service) -> String {
    let Some(vip) = &service.vip else {
        return match_text(&service.matches);
    };
    let listed = |items: Vec<String>| items.join(",");
    let addresses = listed(vip.addresses.iter().map(ToString::to_string).collect());
    let ports = vip.ports.iter().map(|range| match range.start() == range.end() {
        true => range.start().to_string(),
        false => format!("{}-{}", range.start(), range.end()),
    });
    let vlan = service.matches.vlan.map(|vlan| format!(" vlan {vlan}"));
    format!(
        "to {addresses} port {}{}",
        listed(ports.collect()),
        vlan.unwrap_or_default()
    )
}

/// A short text for a match.
fn match_text(matches: &Match) -> String {
    let mut words = Vec::new();
    if let Some(number) = matches.protocol {
        words.push(match number {
            protocol::TCP => "tcp".to_owned(),
            protocol::UDP => "udp".to_owned(),
            protocol::SCTP => "sctp".to_owned(),
            protocol::ICMP => "icmp".to_owned(),
            protocol::ICMPV6 => "icmpv6".to_owned(),
            other => format!("ip-{other}"),
        });
    }
    let mut end = |word: &str, prefix: Option<Prefix>, ports: Option<&std::ops::RangeInclusive<u16>>| {
        if prefix.is_none() && ports.is_none() {
            return;
        }
        let mut text = format!("{word} ");
        if let Some(prefix) = prefix {
            let _ = write!(text, "{}/{}", prefix.address, prefix.bits);
        }
        if let Some(ports) = ports {
            let _ = write!(text, " port {}", ports.start());
            if ports.start() != ports.end() {
                let _ = write!(text, "-{}", ports.end());
            }
        }
        words.push(text.replace("  ", " "));
    };
    end("from", matches.src, matches.src_port.as_ref());
    end("to", matches.dst, matches.dst_port.as_ref());
    if let Some(vlan) = matches.vlan {
        words.push(format!("vlan {vlan}"));
    }
    if words.is_empty() {
        "all IP".to_owned()
    } else {
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_with_a_path_that_is_too_long_is_named() {
        let folder = format!("/{}", "d".repeat(90));
        // The configuration's own check sees the written path; here the run directory is prepended.
        let room = SOCKET_PATH_LIMIT - api::run_dir::in_run_dir(Path::new("l")).as_os_str().len() + 1;
        let text = format!(
            "[[uplink]]\nname = \"wan\"\ndevice = \"memif:{}\"\n\
             [service.a]\nport = \"null\"\n[api]\nsocket = \"{folder}/a\"\n",
            "l".repeat(room + 1)
        );
        let of = |text: &str| too_long(&sockets(&parse(text, "a.toml").unwrap()));
        let said = of(&text).unwrap();
        assert!(
            said.contains("llll has 108 bytes, more than the limit of 107") && said.contains("INCO_RUN_DIR"),
            "{said}"
        );
        assert_eq!(of(&text.replace("llll", "lll")), None);
        // The API's socket has a longer name until its permissions are set.
        let said = of(&text.replace("llll", "l").replace("ddd/a", "ddddddddddd/a")).unwrap();
        assert!(said.contains("ddd/.4194304 has 108 bytes"), "{said}");
    }

    #[test]
    fn a_mount_may_begin_at_the_directory_of_its_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("inco.toml");
        let text = "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[service.a]\nimage = \"x\"\nmounts = \
                    [\"./rules/a:/a:ro\", { source = \"./b\", target = \"/b\" }, \"/c:/c\"]\n";
        std::fs::write(&path, text).unwrap();
        let mounts = load(&path).unwrap().services.remove(0).mounts;
        let sources: Vec<_> = mounts.into_iter().map(|mount| mount.source).collect();
        let own = |name: &str| directory.path().join(name);
        assert_eq!(sources, [own("rules/a"), own("b"), "/c".into()]);
    }

    #[test]
    fn only_a_regular_file_of_a_limited_size_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("inco.toml");
        let refused = |path: &Path| load(path).unwrap_err().to_string();
        assert!(refused(directory.path()).contains("this is a directory; name a regular file"));
        assert!(refused(Path::new("/dev/zero")).contains("this is a device; name a regular file"));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(refused(&path).ends_with("inco.toml: this is a FIFO; name a regular file"));
        std::fs::remove_file(&path).unwrap();
        let long = format!("#{}", "x".repeat(FILE_LIMIT as usize));
        std::fs::write(&path, &long).unwrap();
        assert!(refused(&path).contains("the file is longer than 1024 KiB"));
        // The longest file that is read: its text is invalid.
        std::fs::write(&path, &long[1..]).unwrap();
        assert!(!refused(&path).contains("longer than"));
    }
}
