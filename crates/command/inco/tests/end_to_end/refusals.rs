//! What cannot run is refused before anything is started, with one line that says where and what to write.

use std::process::Output;

use crate::support::{Authority, Engine, IMAGE, PATIENCE, Place, eventually, free_port, text};

const UPLINK: &str = "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n";

fn service(image: &str) -> String {
    format!("[service.forward]\nimage = \"{image}\"\ninstances = 1\n")
}

/// Exit status 2, and exactly this one line about the file; nothing was started.
fn assert_refused(place: &Place, output: &Output, line: u32, said: &str) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    let file = place.path("inco.toml").display().to_string();
    let expected = format!("{file}:{line}: {said}");
    assert!(error.starts_with(&expected), "{error}\nis not\n{expected}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

fn run(place: &Place, configuration: &str) -> Output {
    let file = place.file("inco.toml", configuration);
    place.output(&["run", "-f", file.to_str().unwrap()])
}

fn assert_nothing_started(place: &Place) {
    let there: Vec<_> = std::fs::read_dir(place.run_dir())
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    assert!(there.is_empty(), "{there:?}");
}

#[test]
fn what_the_machine_does_not_have_is_refused() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let output = run(&place, &format!("{UPLINK}{}", service("inco-test/forwadr")));
    let said = "service.forward.image: image \"inco-test/forwadr\" does not exist; write \"inco-test/forward";
    assert_refused(&place, &output, 5, said);
    let host = "unix:///nonexistent/docker.sock";
    let engine = format!("[engine]\ndriver = \"docker\"\nhost = \"{host}\"\n");
    let output = run(&place, &format!("{UPLINK}{}{engine}", service(IMAGE)));
    let said = format!("engine.host: no engine answers at {host}");
    assert_refused(&place, &output, 9, &said);
    assert!(
        text(&output.stderr).contains("start Docker or Podman"),
        "{}",
        text(&output.stderr)
    );
    assert_nothing_started(&place);
}

#[test]
fn what_another_inco_uses_is_refused() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let first = place.run(&format!("{UPLINK}{}", service(IMAGE)));
    let rows = first.settled(1, 0);
    // Its API alone.
    let uplink = UPLINK.replace("wan.sock", "lan.sock");
    let output = run(
        &place,
        &format!("{uplink}[api]\nsocket = \"api.sock\"\n{}", service(IMAGE)),
    );
    let socket = place.run_dir().join("api.sock");
    let said = format!(
        "api.socket: another inco listens on {}; stop it",
        socket.display()
    );
    assert_refused(&place, &output, 5, &said);
    // Its uplink alone.
    let other = place.beside();
    let socket = place.run_dir().join("wan.sock");
    let uplink = format!(
        "[[uplink]]\nname = \"wan\"\ndevice = \"memif:{}\"\n",
        socket.display()
    );
    let output = run(&other, &format!("{uplink}{}", service(IMAGE)));
    let said = format!(
        "uplink[0].device: another program listens on {}; stop it",
        socket.display()
    );
    assert_refused(&other, &output, 3, &said);
    assert_nothing_started(&other);
    // The first one noticed nothing.
    assert_eq!(first.settled(1, 0)[0].pid, rows[0].pid);
    first.stop(&place);
}

/// What `run` refuses is refused by `check` in the same words.
#[test]
fn a_check_refuses_what_run_refuses() {
    if !Engine::Oci.is_here() {
        return;
    }
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    let secret = "0123456789abcdef0123456789abcdef";
    let tokens = place.file("tokens", &format!("admin ops {secret}\n"));
    let keys = Authority::new("a").keys(place.path("keys"));
    let (certificate, key) = (keys.join("cert.pem"), keys.join("key.pem"));
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let file = place.file("no-capture", "nothing that DPDK reads");
    let sink = "[service.sink]\nport = \"null\"\ninstances = 1\n";
    let api = |listen: &str| {
        format!(
            "{UPLINK}{sink}[api]\nlisten = \"{listen}\"\ncertificate = \"{}\"\nkey = \"{}\"\ntokens = \"{}\"\n",
            certificate.display(),
            key.display(),
            tokens.display()
        )
    };
    let free = format!("127.0.0.1:{}", free_port());
    let function = |keys: &str| format!("{UPLINK}{}{keys}\n", service(IMAGE));
    let refused = |configuration: &str, line: u32, said: &str| {
        let file = place.file("inco.toml", configuration);
        for command in ["check", "run"] {
            let output = place.output(&[command, "-f", file.to_str().unwrap()]);
            assert_refused(&place, &output, line, said);
        }
    };
    let set_mode = |mode| std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o644);
    let of_tokens = format!("api.tokens: {}: ", tokens.display());
    refused(
        &api(&free),
        11,
        &format!("{of_tokens}every user can read it; run chmod 0600"),
    );
    set_mode(0o600);
    std::fs::write(&tokens, "admin ops short\n").unwrap();
    refused(
        &api(&free),
        11,
        &format!("{of_tokens}line 1: the token of \"ops\" is shorter than 32"),
    );
    std::fs::write(&tokens, format!("admin ops {secret}\n")).unwrap();
    let taken = occupied.local_addr().unwrap();
    refused(
        &api(&taken.to_string()),
        8,
        &format!(
            "api.listen: cannot listen on {taken} (Address already in use (os error 98)); stop the program that listens"
        ),
    );
    let wrong = api(&free).replace(&key.display().to_string(), &file.display().to_string());
    refused(&wrong, 9, "api.certificate: ");
    refused(
        &format!("{UPLINK}{sink}[event_log]\ndirectory = \"{}\"\n", file.display()),
        8,
        &format!("event_log.directory: {} is not a directory; ", file.display()),
    );
    refused(
        &format!(
            "[[uplink]]\nname = \"wan\"\ndevice = \"memif:{}\"\n{sink}",
            file.display()
        ),
        3,
        &format!(
            "uplink[0].device: {} exists and is not a socket; remove it",
            file.display()
        ),
    );
    assert!(file.exists(), "inco does not remove another program's file");
    for (keys, line, said) in [
        (
            "command = [\"/inco-fn\"]",
            7,
            "service.forward.command: the image inco-test/forward:latest has no file /inco-fn; write",
        ),
        (
            "command = [\"./inco-fn\"]",
            7,
            "service.forward.command: the image inco-test/forward:latest has no file /./inco-fn; write",
        ),
        (
            "command = [\"inco-nf\", \"forward\"]",
            7,
            "service.forward.command: the image inco-test/forward:latest has no program \"inco-nf\": looked for \
             /usr/local/sbin/inco-nf, ",
        ),
        (
            "command = [\"/dev\"]",
            7,
            "service.forward.command: /dev of the image inco-test/forward:latest is not an executable file",
        ),
        (
            "ready = { exec = [\"/bin/ready\"] }",
            7,
            "service.forward.ready: the image inco-test/forward:latest has no file /bin/ready; write a program of ",
        ),
    ] {
        refused(&function(keys), line, said);
    }
    assert_nothing_started(&place);
    // By the image's PATH, from the root, and under what is mounted.
    let root = place.path("root");
    std::fs::create_dir_all(root.join("opt/app")).unwrap();
    std::fs::copy(std::env::var_os("INCO_NF").unwrap(), root.join("opt/app/nf")).unwrap();
    let root_text = root.display().to_string();
    place.must(&[
        "image",
        "import",
        "inco-test/path",
        &root_text,
        "--env",
        "PATH=/opt/app",
        "--",
        "nf",
        "forward",
    ]);
    let of_path = |command: &str| {
        format!(
            "{UPLINK}{}{command}mounts = [\"{root_text}/opt/app:/more:ro\"]\n",
            service("inco-test/path")
        )
    };
    for command in [
        "",
        "command = [\"opt/app/nf\", \"forward\"]\n",
        "command = [\"/more/nf\", \"forward\"]\n",
    ] {
        let file = place.file("inco.toml", &of_path(command)).display().to_string();
        place.must(&["check", "-f", &file]);
        let inco = place.run_file(std::path::Path::new(&file));
        inco.settled(1, 0);
        inco.stop(&place);
    }
    place.must(&["image", "remove", "inco-test/path"]);
}

/// Beside a running inco, a check of its configuration tells what is wrong with the file, and not that inco runs.
#[test]
fn a_check_counts_what_its_own_inco_uses_as_free() {
    let place = Place::new();
    let sink = "[service.sink]\nport = \"null\"\ninstances = 1\n";
    let first = place.run(&format!("{UPLINK}{sink}"));
    let file = place.path("inco.toml").display().to_string();
    let said = place.must(&["check", "-f", &file]);
    let pid = first.status().pid;
    assert!(
        said.contains(&format!(
            "inco runs with {file} (process {pid}): `inco reload --check`"
        )),
        "{said}"
    );
    let plan: serde_json::Value =
        serde_json::from_str(&place.must(&["check", "--json", "-f", &file])).unwrap();
    assert_eq!(plan["running"]["pid"], pid);

    // What another inco uses is in use for every user.
    let other = place.beside();
    let taken = |of: &Place| {
        let socket = of.run_dir().join("wan.sock").display().to_string();
        let text = format!("[[uplink]]\nname = \"wan\"\ndevice = \"memif:{socket}\"\n{sink}");
        (
            text,
            format!("uplink[0].device: another program listens on {socket}; stop it"),
        )
    };
    let check = |place: &Place, text: &str| {
        let file = place.file("inco.toml", text).display().to_string();
        place.output(&["check", "-f", &file])
    };
    let listens = |of: &Place| {
        let socket = of.run_dir().join("wan.sock");
        eventually("an uplink's socket", PATIENCE, || socket.exists().then_some(()))
    };
    listens(&place);
    let (text, said) = taken(&place);
    assert_refused(&other, &check(&other, &text), 3, &said);
    let second = other.run(&format!("{UPLINK}{sink}"));
    listens(&other);
    let (text, said) = taken(&other);
    assert_refused(&place, &check(&place, &text), 3, &said);
    for (place, inco) in [(&other, second), (&place, first)] {
        place.must(&["stop"]);
        inco.ended();
        let file = place.path("inco.toml").display().to_string();
        let plan: serde_json::Value =
            serde_json::from_str(&place.must(&["check", "--json", "-f", &file])).unwrap();
        assert_eq!(plan.get("running"), None);
    }
}

/// As a user without rights, with a program and a run directory that it may use.
#[test]
fn without_root_one_line_names_the_remedy() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    place.allow_other_users();
    let file = place.file(
        "inco.toml",
        &format!("{UPLINK}{}[engine]\ndriver = \"oci\"\n", service(IMAGE)),
    );
    let as_nobody = |run_dir: &std::path::Path| {
        let mut command = place.inco_unprivileged(&["run", "-f"]);
        command.arg(&file).env("INCO_RUN_DIR", run_dir).output().unwrap()
    };
    let said = "engine.driver: containers of the oci engine need root; run inco as root, or";
    assert_refused(&place, &as_nobody(&place.run_dir()), 8, said);
    assert_nothing_started(&place);
    // Where it may not even have a run directory, that is told, too.
    let output = as_nobody(std::path::Path::new("/nonexistent/inco"));
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("run inco as root, or set INCO_RUN_DIR to a directory of your own"),
        "{error}"
    );
}

/// The longest run directory in which every socket has its place works; one byte more is refused before anything
/// starts.
#[test]
fn a_run_directory_is_refused_when_it_is_too_long_for_sockets() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let configuration = format!("{UPLINK}{}{}", service(IMAGE), Engine::Oci.toml());
    let file = place.file("inco.toml", &configuration);
    let file = file.to_str().unwrap();
    let longest = 107 - "/launcher.sock".len() - place.path("").as_os_str().len();
    let inco = |arguments: &[&str], length: usize| {
        let mut command = place.inco(arguments);
        command.env("INCO_RUN_DIR", place.path(&"r".repeat(length)));
        command
    };
    for command in ["check", "run"] {
        let output = inco(&[command, "-f", file], longest + 1).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains(
                "/launcher.sock has 108 bytes, more than the limit of 107; set INCO_RUN_DIR to a shorter directory"
            ),
            "{error}"
        );
        assert!(!place.path(&"r".repeat(longest + 1)).exists());
    }
    assert!(
        inco(&["check", "-f", file], longest)
            .output()
            .unwrap()
            .status
            .success()
    );
    let mut running = inco(&["run", "-f", file], longest)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the instance is active", PATIENCE, || {
        let output = inco(&["instances", "--json"], longest).output().unwrap();
        text(&output.stdout).contains("\"active\"").then_some(())
    });
    assert!(inco(&["stop"], longest).status().unwrap().success());
    assert!(running.wait().unwrap().success());
}
