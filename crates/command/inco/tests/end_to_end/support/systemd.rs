//! A stand-in for systemd: starts inco as a service, and hears what that tells.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{Inco, PATIENCE, Place, eventually, program, text};

pub(crate) struct Systemd<'a> {
    place: &'a Place,
    notify: UnixDatagram,
}

impl Systemd<'_> {
    pub(crate) fn new(place: &Place) -> Systemd<'_> {
        let notify = UnixDatagram::bind(place.path("notify")).unwrap();
        notify.set_read_timeout(Some(PATIENCE)).unwrap();
        Systemd { place, notify }
    }

    /// `inco run` with that configuration, once so many containers are active and on standby.
    pub(crate) fn start(&self, configuration: &str, active: usize, standby: usize) -> Child {
        let file = self.place.file("inco.toml", configuration);
        let mut command = self.place.inco(&["run", "-f", file.to_str().unwrap()]);
        let child = self
            .as_service(&mut command)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.hears("READY=1");
        eventually("its containers serve", PATIENCE, || {
            let listed = text(&self.place.output(&["instances"]).stdout);
            let count = |state: &str| listed.matches(&format!(" {state} ")).count();
            (count("active") == active && count("standby") == standby).then_some(())
        });
        child
    }

    /// The same, which can be asked.
    pub(crate) fn run(&self, configuration: &str) -> Inco {
        self.run_by(&program(), configuration)
    }

    /// The same by another program.
    pub(crate) fn run_by(&self, program: &Path, configuration: &str) -> Inco {
        let file = self.place.file("inco.toml", configuration);
        let mut command = self
            .place
            .inco_by(program, &["run", "-f", file.to_str().unwrap()]);
        self.as_service(&mut command);
        let inco = self.place.start(command);
        self.hears("READY=1");
        inco
    }

    /// Has the command run as systemd runs a service.
    fn as_service<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("NOTIFY_SOCKET", self.place.path("notify"))
            .env("INVOCATION_ID", "1")
    }

    /// Waits until a program tells this, and gives what follows it.
    pub(crate) fn hears(&self, wanted: &str) -> String {
        loop {
            let mut told = [0; 256];
            let bytes = self.notify.recv(&mut told).expect(wanted);
            let told = text(&told[..bytes]);
            if let Some(value) = told.trim().strip_prefix(wanted) {
                return value.to_owned();
            }
            // Nothing is asked to stop while something is waited for.
            assert!(!told.contains("STOPPING"), "{told}");
        }
    }
}
