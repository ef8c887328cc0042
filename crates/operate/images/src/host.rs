//! Images of programs of this machine: the program with its libraries, and what it needs beside them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use engine::image::{Beside, Image, Store};
use engine::{ImageRef, Owner};

use crate::{TESTPMD, TESTPMD_IMAGE, in_store, store};

/// Where programs of servers are, beside `PATH`: that of a user often has no `sbin`.
const SBIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// Files that many programs look for.
const USUAL_FILES: [&str; 5] = [
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/openssl.cnf",
];
/// How names of users and hosts are found. Without it, the C library asks what is not there.
const NAME_SERVICES: &str = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n";

/// How a known program runs in a container. The paths are those of Debian and Ubuntu.
struct Recipe {
    program: &'static str,
    /// The package that has it.
    package: &'static str,
    arguments: &'static [&'static str],
    directories: &'static [&'static str],
    /// Empty directories; true for those of its user.
    made: &'static [(&'static str, bool)],
    links: &'static [(&'static str, &'static str)],
    /// A user that it has beside root.
    user: Option<&'static str>,
    /// Whether it runs as that user from its start.
    runs_as_user: bool,
    directory: Option<&'static str>,
    stop_signal: Option<i32>,
    volumes: &'static [&'static str],
}

/// What a program has that is not among the recipes.
const PLAIN: Recipe = Recipe {
    program: "",
    package: "",
    arguments: &[],
    directories: &[],
    made: &[],
    links: &[],
    user: None,
    runs_as_user: false,
    directory: None,
    stop_signal: None,
    volumes: &[],
};

const RECIPES: [Recipe; 5] = [
    Recipe {
        program: "nginx",
        package: "nginx-light",
        arguments: &["-g", "daemon off;"],
        directories: &[
            "/etc/nginx",
            "/usr/lib/nginx/modules",
            "/usr/share/nginx",
            "/var/www",
        ],
        made: &[("/var/lib/nginx", false), ("/var/log/nginx", false)],
        // As in the official image: what it logs is its output.
        links: &[
            ("/var/log/nginx/access.log", "/dev/stdout"),
            ("/var/log/nginx/error.log", "/dev/stderr"),
        ],
        user: Some("www-data"),
        // It ends connections that are idle, and lets requests end.
        stop_signal: Some(rustix::process::Signal::QUIT.as_raw()),
        volumes: &["/var/lib/nginx"],
        ..PLAIN
    },
    Recipe {
        program: "haproxy",
        package: "haproxy",
        arguments: &["-W", "-db", "-f", "/etc/haproxy/haproxy.cfg"],
        directories: &["/etc/haproxy"],
        made: &[("/run/haproxy", true), ("/var/lib/haproxy", false)],
        user: Some("haproxy"),
        stop_signal: Some(rustix::process::Signal::USR1.as_raw()),
        ..PLAIN
    },
    Recipe {
        program: "redis-server",
        package: "redis-server",
        // Without a file of configuration it would refuse everybody but the container itself.
        arguments: &["--protected-mode", "no"],
        made: &[("/data", true)],
        user: Some("redis"),
        runs_as_user: true,
        directory: Some("/data"),
        volumes: &["/data"],
        ..PLAIN
    },
    Recipe {
        program: "dnsmasq",
        package: "dnsmasq-base",
        arguments: &["--keep-in-foreground", "--log-facility=-"],
        made: &[("/run/dnsmasq", true)],
        user: Some("dnsmasq"),
        ..PLAIN
    },
    Recipe {
        program: TESTPMD,
        package: "dpdk-dev",
        ..PLAIN
    },
];

/// Makes an image of a program of this machine, named as its program: `nginx`, `testpmd`, or a path.
///
/// # Errors
/// There is no such program, one of its libraries is missing, or the store cannot be written.
pub fn import_program(name: &ImageRef, program: &str, arguments: &[String]) -> anyhow::Result<Image> {
    import_into(&store(), name, program, arguments)
}

fn import_into(store: &Store, name: &ImageRef, program: &str, arguments: &[String]) -> anyhow::Result<Image> {
    let program = if program == TESTPMD_IMAGE {
        TESTPMD
    } else {
        program
    };
    let of_name = Path::new(program).file_name().unwrap_or_default();
    let recipe = RECIPES.iter().find(|recipe| of_name == recipe.program);
    let found = find(program).with_context(|| match recipe {
        Some(recipe) => format!(
            "{program} is not installed: run `apt-get install {}`",
            recipe.package
        ),
        None => format!("this machine has no program {program:?}"),
    })?;
    let recipe = recipe.unwrap_or(&PLAIN);
    // The drivers of DPDK are found relative to the real file; other programs may have several names.
    let found = if recipe.program == TESTPMD {
        fs::canonicalize(&found).with_context(|| format!("{} cannot be read", found.display()))?
    } else {
        found
    };
    let beside = beside(recipe, arguments)?;
    store
        .from_host_program(name, &found, &beside)
        .map_err(|error| in_store(error.into()))
}

/// Where a program is.
fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        let path = std::path::absolute(program).ok()?;
        return path.is_file().then_some(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SBIN.map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|program| program.is_file())
}

fn beside(recipe: &Recipe, arguments: &[String]) -> anyhow::Result<Beside> {
    let line_of = |file: &str, name: &str| -> anyhow::Result<Vec<String>> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
        let lines = text
            .lines()
            .map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>());
        let found = lines
            .into_iter()
            .find(|columns| columns.first().is_some_and(|own| own == name));
        found.with_context(|| {
            format!(
                "{file} has no {name}: run `apt-get install {}` again",
                recipe.package
            )
        })
    };
    let mut passwd = "root:x:0:0:root:/root:/bin/sh\n".to_owned();
    let mut group = "root:x:0:\n".to_owned();
    let mut owner = Owner::ROOT;
    if let Some(user) = recipe.user {
        let columns = line_of("/etc/passwd", user)?;
        let number = |at: usize| {
            columns
                .get(at)
                .and_then(|text| text.parse().ok())
                .unwrap_or_default()
        };
        owner = Owner {
            uid: number(2),
            gid: number(3),
        };
        passwd.push_str(&(columns.join(":") + "\n"));
        group.push_str(&format!("{user}:x:{}:\n", owner.gid));
    }
    passwd.push_str("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n");
    group.push_str("nogroup:x:65534:\n");
    let own: &[String] = if arguments.is_empty() {
        &recipe
            .arguments
            .iter()
            .map(|&text| text.to_owned())
            .collect::<Vec<_>>()
    } else {
        arguments
    };
    let of_user = |is_users: bool| if is_users { owner } else { Owner::ROOT };
    let path = |text: &&str| PathBuf::from(*text);
    Ok(Beside {
        arguments: own.to_vec(),
        directories: recipe.directories.iter().map(path).collect(),
        files: USUAL_FILES.iter().map(path).collect(),
        made: recipe
            .made
            .iter()
            .map(|&(directory, is_users)| (directory.into(), 0o755, of_user(is_users)))
            .collect(),
        texts: vec![
            ("/etc/passwd".into(), passwd),
            ("/etc/group".into(), group),
            ("/etc/nsswitch.conf".into(), NAME_SERVICES.to_owned()),
        ],
        links: recipe
            .links
            .iter()
            .map(|&(path, target)| (path.into(), target.into()))
            .collect(),
        user: of_user(recipe.runs_as_user),
        directory: recipe.directory.map(PathBuf::from),
        stop_signal: recipe.stop_signal,
        volumes: recipe.volumes.iter().map(path).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        assert_eq!(find("/bin/true").as_deref(), Some(Path::new("/bin/true")));
        assert!(find("true").is_some());
        assert_eq!(find("nobody-has-this"), None);
        assert_eq!(find("/bin"), None);
        let error = import_program(&ImageRef::from("x"), "nobody-has-this", &[]).unwrap_err();
        assert!(error.to_string().contains("no program"), "{error:#}");
    }

    /// Runs the image's own command in its files and nothing else, and then a script of bash beside it.
    fn run_beside(program: &str, script: &str) -> Option<String> {
        let missing = find(program)
            .is_none()
            .then(|| format!("{program} is not installed"));
        let missing = missing.or_else(|| {
            (!rustix::process::geteuid().is_root()).then(|| "this is not run as root".to_owned())
        });
        if !real_parts::available("servers", missing) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().join("images"));
        let name = ImageRef::from(program);
        import_into(&store, &name, program, &[]).unwrap();
        let (root, image) = store.resolve(&name).unwrap();
        // A network, a view of the file system and processes of its own: all of it ends with the script.
        let all = format!(
            "set -e; cd {root}; ip link set lo up; mount --rbind /dev dev; mount -t proc proc proc\n\
             chroot --userspec={uid}:{gid} . \"$@\" >{log} 2>&1 &\n\
             (set +e; for try in $(seq 200); do {{ {script}; }} 2>>{log} && exit 0; sleep 0.05; done; exit 1) || \
             {{ cat {log} >&2; exit 1; }}",
            root = root.display(),
            uid = image.user.uid,
            gid = image.user.gid,
            log = directory.path().join("log").display(),
        );
        let output = std::process::Command::new("unshare")
            .args([
                "--mount",
                "--net",
                "--pid",
                "--fork",
                "--kill-child",
                "bash",
                "-c",
                &all,
                "bash",
            ])
            .args(image.command(&[]))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program}: {said}");
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[test]
    fn nginx_serves_its_pages_from_its_image() {
        let ask = "exec 3<>/dev/tcp/127.0.0.1/80 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3";
        if let Some(said) = run_beside("nginx", ask) {
            assert!(
                said.starts_with("HTTP/1.1 200 OK") && said.contains("nginx"),
                "{said}"
            );
        }
    }

    #[test]
    fn redis_answers_from_its_image() {
        let ask = "exec 3<>/dev/tcp/127.0.0.1/6379 && printf 'PING\\r\\n' >&3 && head -n 1 <&3";
        if let Some(said) = run_beside("redis-server", ask) {
            assert!(said.starts_with("+PONG"), "{said}");
        }
    }

    #[test]
    fn haproxy_runs_from_its_image_with_the_packages_configuration() {
        // That has no port, and a socket for its operator.
        if let Some(said) = run_beside("haproxy", "test -S run/haproxy/admin.sock && echo there") {
            assert_eq!(said, "there\n");
        }
    }

    #[test]
    fn a_program_has_its_user_and_what_is_written_for_it() {
        let of = |program: &str| RECIPES.iter().find(|recipe| recipe.program == program).unwrap();
        // Every Debian has it, also without nginx.
        let nginx = beside(of("nginx"), &[]).unwrap();
        let passwd = &nginx.texts[0].1;
        assert!(
            passwd.lines().any(|line| line.starts_with("www-data:x:33:33:")),
            "{passwd}"
        );
        assert_eq!((nginx.user, nginx.stop_signal), (Owner::ROOT, Some(3)));
        assert_eq!(nginx.arguments, ["-g", "daemon off;"]);
        let given = beside(of("nginx"), &["-t".to_owned()]).unwrap();
        assert_eq!(given.arguments, ["-t"]);
        let unknown = Recipe {
            user: Some("nobody-has-this"),
            ..PLAIN
        };
        assert!(
            beside(&unknown, &[])
                .unwrap_err()
                .to_string()
                .contains("/etc/passwd has no")
        );
    }
}
