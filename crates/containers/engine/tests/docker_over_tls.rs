//! `docker` on another machine: a Docker engine of the test's own that listens on TCP with TLS alone. A client
//! without a certificate of its authority is refused, and so is an engine without one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // these are tests

mod support;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use engine::{ContainerState, CpuQuota, DockerConfig, DockerEngine, EngineError, Label, Request};
use model::Nanos;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use support::{Place, Told, available, spec};

/// A Docker engine may take its time to start, and to give up what it has mounted.
const PATIENCE: Duration = Duration::from_secs(60);

/// An authority, and the directories of keys that it signs.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { issuer }
    }

    /// `ca.pem`, `cert.pem` and `key.pem` in a directory, as Docker's own client has them.
    fn keys(&self, directory: PathBuf, whose: &str, purpose: ExtendedKeyUsagePurpose) -> PathBuf {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, whose);
        params.extended_key_usages = vec![purpose];
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("ca.pem"), self.issuer.pem()).unwrap();
        std::fs::write(directory.join("cert.pem"), signed.pem()).unwrap();
        std::fs::write(directory.join("key.pem"), key.serialize_pem()).unwrap();
        directory
    }
}

/// A `dockerd` with everything in one directory. It has nothing left and ends when it is dropped.
struct Dockerd {
    directory: PathBuf,
    port: u16,
    daemon: Child,
}

impl Dockerd {
    fn start(directory: PathBuf, keys: &Path) -> Dockerd {
        std::fs::create_dir(&directory).unwrap();
        let log = std::fs::File::create(directory.join("log")).unwrap();
        let path = |option: &str, path: PathBuf| format!("--{option}={}", path.display());
        let port = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let daemon = Command::new("dockerd")
            .args([
                "--iptables=false",
                "--ip6tables=false",
                "--bridge=none",
                "--tlsverify",
            ])
            .args([
                path("data-root", directory.join("data")),
                path("exec-root", directory.join("exec")),
                path("pidfile", directory.join("pid")),
                path("tlscacert", keys.join("ca.pem")),
                path("tlscert", keys.join("cert.pem")),
                path("tlskey", keys.join("key.pem")),
            ])
            .arg(format!("--host=tcp://127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone().unwrap()))
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        Dockerd {
            directory,
            port,
            daemon,
        }
    }

    fn config(&self, place: &Place, keys: &Path) -> DockerConfig {
        DockerConfig {
            certificates: Some(keys.to_owned()),
            images: Some(place.store()),
            ..DockerConfig::at(format!("tcp://127.0.0.1:{}", self.port))
        }
    }

    /// The engine, once it answers.
    fn engine(&mut self, place: &Place, keys: &Path) -> DockerEngine {
        let since = Instant::now();
        loop {
            match DockerEngine::start(self.config(place, keys)) {
                Ok(engine) => return engine,
                Err(error) => {
                    let log = || std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                    let ended = self.daemon.try_wait().unwrap();
                    assert!(ended.is_none(), "dockerd ended: {}", log());
                    assert!(since.elapsed() < PATIENCE, "{error}\n{}", log());
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.daemon);
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _status = self.daemon.wait();
        // It mounts its data directory on itself, and leaves that.
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let of_ours = |line: &&str| {
            line.split(' ')
                .nth(1)
                .is_some_and(|at| Path::new(at).starts_with(&self.directory))
        };
        for line in mounts
            .lines()
            .filter(of_ours)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            let at = line.split(' ').nth(1).unwrap_or_default();
            let _gone = rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

#[test]
fn an_engine_on_another_machine_works_over_tls_and_other_authorities_are_refused() {
    let is_there = Command::new("dockerd").arg("--version").output().is_ok();
    let missing = if is_there {
        support::oci_missing()
    } else {
        Some("there is no dockerd".to_owned())
    };
    if !available("docker", missing) {
        return;
    }
    let place = Place::new();
    let (authority, other) = (Authority::new(), Authority::new());
    let of = |name: &str| place.dir.path().join(name);
    let server = authority.keys(of("server"), "the engine", ExtendedKeyUsagePurpose::ServerAuth);
    let ours = authority.keys(of("ours"), "inco", ExtendedKeyUsagePurpose::ClientAuth);
    let theirs = other.keys(of("theirs"), "other", ExtendedKeyUsagePurpose::ClientAuth);
    let mut dockerd = Dockerd::start(of("docker"), &server);
    let mut told = Told::new(Box::new(dockerd.engine(&place, &ours)));
    assert!(!told.engine.is_local());

    // Whom another authority has signed, with and without trust in the engine's own.
    let trusting = of("trusting");
    std::fs::create_dir(&trusting).unwrap();
    std::fs::copy(ours.join("ca.pem"), trusting.join("ca.pem")).unwrap();
    for file in ["cert.pem", "key.pem"] {
        std::fs::copy(theirs.join(file), trusting.join(file)).unwrap();
    }
    for keys in [&theirs, &trusting] {
        let refused = DockerEngine::start(dockerd.config(&place, keys)).unwrap_err();
        assert!(matches!(refused, EngineError::Unavailable { .. }), "{refused}");
    }
    let nowhere = DockerEngine::start(dockerd.config(&place, &of("nowhere"))).unwrap_err();
    assert!(nowhere.to_string().contains("nowhere"), "{nowhere}");

    // The image goes over the connection, too.
    let spec = spec("inco-tls-life", &["sleep"]);
    let name = spec.name.clone();
    let label = Label::any("inco.service");
    assert_eq!(told.create(&spec), 0, "its process is on another machine");
    let listed = told.engine.list(&label).unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(
        (&listed[0].name, listed[0].state),
        (&name, ContainerState::Running)
    );
    told.pause(&name).unwrap();
    assert_eq!(told.engine.list(&label).unwrap()[0].state, ContainerState::Paused);
    told.resume(&name).unwrap();
    told.ask(Request::SetQuota {
        name: name.clone(),
        quota: Some(CpuQuota::of_cpus(0.5)),
    })
    .unwrap();
    told.ask(Request::Exec {
        name: name.clone(),
        command: vec!["/probe".to_owned(), "exit".to_owned(), "0".to_owned()],
        limit: Nanos::from_secs(10),
    })
    .unwrap();
    told.stop(&name, 5_000).unwrap();
    let (exit, ..) = told.exit_of(&name);
    assert!(exit.status == Some(0) || exit.signal == Some(15), "{exit:?}");
    told.remove(&name).unwrap();
    assert_eq!(told.engine.list(&label).unwrap(), []);
}
