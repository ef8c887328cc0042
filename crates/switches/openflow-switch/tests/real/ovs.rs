//! A private Open vSwitch. Its ports are sockets (dummy ports), of which each has its other end here.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::ServiceId;
use openvswitch::{BridgeSpec, Endpoint, Ovsdb, PortSpec};
use real_parts::available;

pub(crate) const LIMIT: Duration = Duration::from_secs(30);
pub(crate) const SERVICE: ServiceId = ServiceId(0);
pub(crate) const WAN: u32 = 1;
pub(crate) const MONITOR: u32 = 9;
pub(crate) const FIRST_INSTANCE: u32 = 100;
pub(crate) const INSTANCES: u16 = 4;
/// New flows for each number of instances.
pub(crate) const FLOWS_EACH: u32 = 100;

/// One end of a port: frames with their lengths before them.
pub(crate) struct Line {
    pub(crate) stream: UnixStream,
    pub(crate) received: Vec<u8>,
    pub(crate) unsent: Vec<u8>,
}

impl Line {
    pub(crate) fn connect(path: &Path) -> Line {
        let since = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(path) {
                stream.set_nonblocking(true).unwrap();
                return Line {
                    stream,
                    received: Vec::new(),
                    unsent: Vec::new(),
                };
            }
            assert!(since.elapsed() < LIMIT, "no listener at {}", path.display());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn send(&mut self, frame: &[u8]) {
        self.unsent.extend_from_slice(&(frame.len() as u16).to_be_bytes());
        self.unsent.extend_from_slice(frame);
        self.flush();
    }

    pub(crate) fn flush(&mut self) {
        match self.stream.write(&self.unsent) {
            Ok(written) => drop(self.unsent.drain(..written)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
    }

    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 16_384];
        match self.stream.read(&mut buffer) {
            Ok(read) => self.received.extend_from_slice(&buffer[..read]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        let length = usize::from(u16::from_be_bytes(*self.received.first_chunk::<2>()?));
        let frame = self.received.get(2..2 + length)?.to_vec();
        self.received.drain(..2 + length);
        Some(frame)
    }
}

/// A switch and its database in a directory of their own.
pub(crate) struct Ovs {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) children: Vec<Child>,
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Ovs {
    /// [`None`] where Open vSwitch is not installed.
    pub(crate) fn start() -> Option<Ovs> {
        let missing = ["ovsdb-server", "ovs-vswitchd", "ovsdb-tool"]
            .iter()
            .find(|program| Command::new(program).arg("--version").output().is_err());
        if !available("ovs", missing.map(|program| format!("there is no {program}"))) {
            return None;
        }
        let directory = tempfile::Builder::new().prefix("ovs").tempdir_in("/tmp").unwrap();
        let mut ovs = Ovs {
            directory,
            children: Vec::new(),
        };
        let run = |command: &mut Command| assert!(command.output().unwrap().status.success(), "{command:?}");
        run(Command::new("ovsdb-tool").args([
            "create",
            &ovs.of("conf.db"),
            "/usr/share/openvswitch/vswitch.ovsschema",
        ]));
        ovs.spawn(
            "ovsdb-server",
            &[ovs.of("conf.db"), format!("--remote=punix:{}", ovs.of("db.sock"))],
        );
        let since = Instant::now();
        while UnixStream::connect(ovs.of("db.sock")).is_err() {
            assert!(since.elapsed() < LIMIT, "the database does not listen");
            std::thread::sleep(Duration::from_millis(2));
        }
        run(Command::new("ovs-vsctl").args([
            &format!("--db=unix:{}", ovs.of("db.sock")),
            "--no-wait",
            "init",
        ]));
        ovs.start_switch();
        Some(ovs)
    }

    /// A bridge with all ports. `max_revalidator_ms`: how long the switch may leave counters unread.
    pub(crate) fn bridge(&self, max_revalidator_ms: u32) {
        let mut database = Ovsdb::connect(&Endpoint::Unix(self.of("db.sock").into()), LIMIT).unwrap();
        let lag = BTreeMap::from([("max-revalidator".to_owned(), max_revalidator_ms.to_string())]);
        database.set_other_config(&lag).unwrap();
        database
            .ensure_bridge(&BridgeSpec {
                name: "br0".into(),
                datapath: "dummy".into(),
                external_ids: BTreeMap::new(),
                listens: None,
            })
            .unwrap();
        let instances = (0..INSTANCES).map(|slot| FIRST_INSTANCE + u32::from(slot));
        let numbers: Vec<u32> = [WAN, MONITOR].into_iter().chain(instances).collect();
        let spec = |number: &u32| PortSpec {
            name: format!("p{number}"),
            kind: "dummy".into(),
            options: BTreeMap::from([(
                "pstream".into(),
                format!("punix:{}", self.of(&format!("p{number}"))),
            )]),
            number: Some(*number as u16),
        };
        let ports: Vec<PortSpec> = numbers.iter().map(spec).collect();
        assert_eq!(database.ensure_ports("br0", &ports).unwrap(), numbers);
    }

    /// The other ends of the ports: wide area, monitor, instances.
    pub(crate) fn lines(&self) -> (Line, Line, Vec<Line>) {
        let instances = (0..INSTANCES).map(|slot| self.line(FIRST_INSTANCE + u32::from(slot)));
        (self.line(WAN), self.line(MONITOR), instances.collect())
    }

    /// The other end of a port. It may have several: the port takes from each, and gives to all.
    pub(crate) fn line(&self, number: u32) -> Line {
        Line::connect(Path::new(&self.of(&format!("p{number}"))))
    }

    /// The switch; its database is the first child.
    pub(crate) fn start_switch(&mut self) {
        let arguments = [
            format!("unix:{}", self.of("db.sock")),
            "--enable-dummy".to_owned(),
            "--disable-system".to_owned(),
        ];
        self.spawn("ovs-vswitchd", &arguments);
    }

    pub(crate) fn kill_switch(&mut self) {
        let mut switch = self.children.pop().unwrap();
        switch.kill().unwrap();
        switch.wait().unwrap();
    }

    pub(crate) fn of(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    pub(crate) fn spawn(&mut self, program: &str, arguments: &[String]) {
        let child = Command::new(program)
            .args(arguments)
            .arg(format!("--unixctl={}", self.of(&format!("{program}.ctl"))))
            .arg(format!("--log-file={}", self.of(&format!("{program}.log"))))
            .arg("-vconsole:off")
            .env("OVS_RUNDIR", self.directory.path())
            .env("OVS_DBDIR", self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.children.push(child.unwrap());
    }
}
