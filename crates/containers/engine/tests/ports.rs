//! Ordinary programs behind kernel ports, on both engines: they run as they are, and a client reaches them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // these are tests

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use engine::{ContainerSpec, DEFAULT_HOST, DockerConfig, DockerEngine, Engine, ImageRef};
use model::Nanos;
use serde_json::json;
use support::wire::{self, SERVICE, SERVICE_V6, Wire};
use support::{PATIENCE, Place, Told, available, oci_missing};

/// The daemon is one for all.
static ONE: Mutex<()> = Mutex::new(());

/// Docker over the images of a place, if it is there.
fn docker(place: &Place) -> Option<(Box<dyn Engine>, MutexGuard<'static, ()>)> {
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut config = DockerConfig::at(DEFAULT_HOST);
    config.images = Some(place.store());
    config.logs = place.logs.clone();
    config.status_limit = Nanos::from_secs(10);
    match DockerEngine::start(config) {
        Ok(engine) => Some((Box::new(engine), one)),
        Err(error) => {
            available("docker", Some(error.to_string()));
            None
        }
    }
}

/// Both engines in turn, where they and these programs are there.
fn on_both(programs: &[&str], test: impl Fn(&Place, &mut Told, &str)) {
    let absent = programs.iter().find(|program| !Path::new(program).exists());
    let missing = absent.map(|program| format!("there is no {program}"));
    let missing = missing.or_else(wire::missing);
    if !available("oci", oci_missing().or(missing)) {
        return;
    }
    let place = Place::new();
    test(&place, &mut Told::new(Box::new(place.engine())), "oci");
    if let Some((engine, _one)) = docker(&place) {
        let prefix = format!("docker-{}", std::process::id());
        let _left = Left(format!("inco-{prefix}-"));
        test(&place, &mut Told::new(engine), &prefix);
    }
}

/// Removes what a test that failed left in Docker: containers whose names begin so.
struct Left(String);

impl Drop for Left {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let name = format!("name={}", self.0);
        let listed = Command::new("docker")
            .args(["ps", "-aq", "--filter", &name])
            .output();
        for id in String::from_utf8(listed.unwrap().stdout).unwrap().lines() {
            let _ = Command::new("docker").args(["rm", "-f", id]).output();
        }
    }
}

/// A root file system with these programs of the machine and their libraries, and little else: as an official image
/// has them.
fn rootfs(dir: &Path, programs: &[&str]) -> PathBuf {
    let root = dir.join("rootfs");
    let mut files: BTreeSet<PathBuf> = programs.iter().map(PathBuf::from).collect();
    for program in programs {
        let output = Command::new("ldd").arg(program).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        files.extend(
            text.split_whitespace()
                .filter(|word| word.starts_with('/'))
                .map(PathBuf::from),
        );
    }
    for file in files {
        let at = root.join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::copy(&file, at).unwrap();
    }
    write(
        &root,
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nserver:x:101:101::/nonexistent:/bin/false\n",
    );
    write(&root, "etc/group", "root:x:0:\nserver:x:101:\n");
    root
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A container of that image, with the end of a wire.
fn spec(prefix: &str, image: &str, wire: &Wire) -> ContainerSpec {
    let mut spec = ContainerSpec::new(
        format!("inco-{prefix}-{image}"),
        format!("inco/test-{image}:1").as_str(),
    );
    spec.labels.insert("inco.test".to_owned(), prefix.to_owned());
    spec.functions = vec![wire.function()];
    spec.memory_bytes = Some(128 << 20);
    spec
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

const CURL: [&str; 4] = ["curl", "--silent", "--fail", "--max-time"];

fn page(wire: &Wire, url: &str) -> String {
    wire.client_gets(&[&CURL[..], &["5", url]].concat())
}

#[test]
fn nginx_serves_a_page_as_in_its_own_image() {
    let nginx = "/usr/sbin/nginx";
    on_both(&[nginx, "/usr/bin/curl"], |place, told, prefix| {
        let dir = tempfile::tempdir().unwrap();
        let root = rootfs(dir.path(), &[nginx]);
        // As in the official image: logs are links to the program's output, and one of its users serves.
        write(
            &root,
            "etc/nginx/nginx.conf",
            "user server; worker_processes 1; pid /run/nginx.pid; error_log /var/log/nginx/error.log notice;\n\
             events { worker_connections 1024; }\n\
             http { access_log /var/log/nginx/access.log; client_body_temp_path /var/cache/nginx/body;\n\
             server { listen 80; listen [::]:80; root /usr/share/nginx/html; } }\n",
        );
        write(&root, "usr/share/nginx/html/index.html", "a page of nginx\n");
        for (path, mode) in [
            ("var/cache/nginx", 0o755),
            ("var/log/nginx", 0o755),
            ("var/lib/nginx", 0o755),
            ("tmp", 0o1777),
            ("run", 0o755),
        ] {
            fs::create_dir_all(root.join(path)).unwrap();
            fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        for (name, stream) in [("access", "stdout"), ("error", "stderr")] {
            symlink(
                format!("/dev/{stream}"),
                root.join(format!("var/log/nginx/{name}.log")),
            )
            .unwrap();
        }
        let config = json!({
            "Entrypoint": ["nginx"], "Cmd": ["-g", "daemon off;"], "StopSignal": "SIGQUIT", "WorkingDir": "/",
        });
        support::layout::import(&place.store(), "inco/test-nginx:1", &root, &config);
        let wire = Wire::new();
        let spec = spec(prefix, "nginx", &wire);
        told.create(&spec);
        assert_eq!(page(&wire, &format!("http://{SERVICE}/")), "a page of nginx\n");
        assert_eq!(
            page(&wire, &format!("http://[{SERVICE_V6}]/")),
            "a page of nginx\n"
        );
        let logs = || place.logs.read(&spec.name, 0, 65_536).unwrap_or_default().1;
        until("its log is kept", || {
            String::from_utf8_lossy(&logs()).contains("\"GET / HTTP/1.1\" 200")
        });
        told.stop(&spec.name, 5_000).unwrap();
        let (exit, _, _) = told.exit_of(&spec.name);
        assert_eq!(exit.status, Some(0), "{exit:?}");
        // SIGQUIT, and not SIGTERM, which it would not call graceful. Docker tells the end before the last words.
        until("its last words are kept", || {
            String::from_utf8_lossy(&logs()).contains("gracefully shutting down")
        });
        told.remove(&spec.name).unwrap();
        until("its port is gone", || !wire.is_plugged());
    });
}

#[test]
fn redis_and_haproxy_serve_as_they_are() {
    let (redis, haproxy) = ("/usr/bin/redis-server", "/usr/sbin/haproxy");
    on_both(
        &[redis, haproxy, "/usr/bin/curl", "/bin/bash"],
        |place, told, prefix| {
            let dir = tempfile::tempdir().unwrap();
            let root = rootfs(dir.path(), &[redis, haproxy]);
            fs::create_dir_all(root.join("var/lib/haproxy")).unwrap();
            fs::create_dir_all(root.join("data")).unwrap();
            // The kernel lets nobody but root change what the image has there.
            std::os::unix::fs::chown(root.join("data"), Some(101), Some(101)).unwrap();
            write(
                &root,
                "etc/haproxy.cfg",
                "global\n chroot /var/lib/haproxy\n user server\n group server\n stats socket /run/haproxy.sock\n\
             defaults\n mode http\n timeout client 5s\n timeout server 5s\n timeout connect 5s\n\
             frontend web\n bind :80\n http-request return status 200 content-type text/plain string \"haproxy is here\"\n",
            );
            let redis_config = json!({
                "Entrypoint": ["redis-server"], "Cmd": ["--protected-mode", "no", "--port", "6379"],
                "User": "server", "WorkingDir": "/data",
            });
            support::layout::import(&place.store(), "inco/test-redis:1", &root, &redis_config);
            let haproxy_config = json!({
                "Entrypoint": ["haproxy"], "Cmd": ["-W", "-db", "-f", "/etc/haproxy.cfg"], "StopSignal": "SIGUSR1",
            });
            support::layout::import(&place.store(), "inco/test-haproxy:1", &root, &haproxy_config);

            let wire = Wire::new();
            let spec_of_redis = spec(prefix, "redis", &wire);
            told.create(&spec_of_redis);
            let ask = format!(
                "exec 3<>/dev/tcp/{SERVICE}/6379; printf 'SET key value\\r\\nSAVE\\r\\nGET key\\r\\nQUIT\\r\\n' >&3; cat <&3"
            );
            let answer = wire.client_gets(&["bash", "-c", &ask]);
            assert_eq!(answer, "+OK\r\n+OK\r\n$5\r\nvalue\r\n+OK\r\n");
            told.stop(&spec_of_redis.name, 5_000).unwrap();
            assert_eq!(told.exit_of(&spec_of_redis.name).0.status, Some(0));
            told.remove(&spec_of_redis.name).unwrap();
            until("its port is gone", || !wire.is_plugged());

            wire.plug();
            let spec_of_haproxy = spec(prefix, "haproxy", &wire);
            told.create(&spec_of_haproxy);
            assert_eq!(page(&wire, &format!("http://{SERVICE}/")), "haproxy is here");
            told.stop(&spec_of_haproxy.name, 5_000).unwrap();
            told.exit_of(&spec_of_haproxy.name);
            told.remove(&spec_of_haproxy.name).unwrap();
        },
    );
}

#[test]
fn a_container_is_asked_to_end_by_the_signal_of_its_image() {
    on_both(&[], |place, told, prefix| {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("rootfs");
        fs::create_dir(&root).unwrap();
        fs::copy(support::probe(), root.join("probe")).unwrap();
        let config = json!({ "Entrypoint": ["/probe", "quit"], "StopSignal": "3" });
        support::layout::import(&place.store(), "inco/test-quit:1", &root, &config);
        let image = ImageRef::from("inco/test-quit:1");
        assert_eq!(place.store().resolve(&image).unwrap().1.stop_signal, Some(3));
        let spec = ContainerSpec::new(format!("inco-{prefix}-quit"), image);
        told.create(&spec);
        let logs = || place.logs.read(&spec.name, 0, 64).unwrap_or_default().1;
        until("it waits for signals", || logs() == b"waits\n");
        told.stop(&spec.name, 8_000).unwrap();
        assert_eq!(told.exit_of(&spec.name).0.status, Some(7));
        told.remove(&spec.name).unwrap();
    });
}

/// Entry point, its arguments and the environment, with what a shell would take for its own.
#[test]
fn a_program_has_the_arguments_and_the_environment_of_its_image() {
    on_both(&[], |place, told, prefix| {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("rootfs");
        fs::create_dir(&root).unwrap();
        fs::copy(support::probe(), root.join("probe")).unwrap();
        let config = json!({
            "Entrypoint": ["/probe"], "Cmd": ["exit", "5"], "Env": ["PATH=/", "PROBE=a \"b\" $HOME \\ c=d"],
        });
        support::layout::import(&place.store(), "inco/test-env:1", &root, &config);
        let run = |told: &mut Told, name: &str, change: &dyn Fn(&mut ContainerSpec)| {
            let mut spec = ContainerSpec::new(format!("inco-{prefix}-{name}"), "inco/test-env:1");
            change(&mut spec);
            told.create(&spec);
            let (exit, output, _) = told.exit_of(&spec.name);
            told.remove(&spec.name).unwrap();
            (exit.status, output.trim_end().to_owned())
        };
        let of_image = "leaving with 5; PROBE=a \"b\" $HOME \\ c=d";
        assert_eq!(run(told, "own", &|_| {}), (Some(5), of_image.to_owned()));
        // What the service says goes before.
        let said = run(told, "said", &|spec| {
            spec.command = ["/probe", "exit", "6"].map(str::to_owned).to_vec();
            spec.env = vec![("PROBE".to_owned(), "of the service".to_owned())];
        });
        assert_eq!(said, (Some(6), "leaving with 6; PROBE=of the service".to_owned()));
    });
}

#[test]
fn what_a_program_writes_has_a_limit_and_goes_with_it() {
    if !available("oci", oci_missing().or_else(wire::missing)) {
        return;
    }
    let place = Place::new();
    let mut told = Told::new(Box::new(place.engine()));
    let wire = Wire::new();
    let mut fill = support::spec("inco-fills-1", &["fill", "/var"]);
    fill.functions = vec![wire.function()];
    let pid = told.create(&fill);
    let logs = || place.logs.read(&fill.name, 0, 65_536).unwrap_or_default().1;
    until("it is full", || logs().ends_with(b"\n"));
    let room = rustix::fs::statvfs(format!("/proc/{pid}/root")).unwrap();
    assert_eq!((room.f_blocks * room.f_frsize, room.f_files), (256 << 20, 65_536));
    // The image is as it was, and so is what the next container finds.
    told.remove(&fill.name).unwrap();
    let (rootfs, _) = place.store().resolve(&ImageRef::from(support::IMAGE)).unwrap();
    let names = |dir: &Path| fs::read_dir(dir).unwrap().count();
    assert_eq!(names(&rootfs.join("var")), 1, "the link to /run");
    until("its port is gone", || !wire.is_plugged());
    wire.plug();
    let mut list = support::spec("inco-fills-2", &["cat", "/var/run/../etc/hosts"]);
    list.functions = vec![wire.function()];
    told.create(&list);
    let (_, output, _) = told.exit_of(&list.name);
    assert!(output.ends_with("inco-fills-2"), "{output}");
    told.remove(&list.name).unwrap();
}
