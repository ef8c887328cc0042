//! What systemd is told.

use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;

use crate::support::{Engine, PATIENCE, Place, kill};

#[test]
fn systemd_gets_readiness_watchdog_and_stop_notifications() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let socket = UnixDatagram::bind(place.path("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut bytes = [0; 512];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).trim().to_owned()
    };
    let text = "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[service.sink]\nport = \"null\"\n";
    let file = place.file("inco.toml", text);
    let mut child = place
        .inco(&["run", "-f", file.to_str().unwrap()])
        .env("NOTIFY_SOCKET", place.path("notify"))
        .env("WATCHDOG_USEC", "200000")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(told(), "READY=1");
    // A unit that is ordered after it starts when it serves.
    place.must(&["status"]);
    for _ in 0..3 {
        assert_eq!(told(), "WATCHDOG=1");
    }
    // A process that does not run gives no sign of life: systemd would end it.
    kill(child.id(), rustix::process::Signal::STOP);
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut bytes = [0; 512];
    while socket.recv(&mut bytes).is_ok() {}
    socket.set_read_timeout(Some(Duration::from_millis(600))).unwrap();
    assert!(
        socket.recv(&mut bytes).is_err(),
        "a stopped inco still notifies the watchdog"
    );
    kill(child.id(), rustix::process::Signal::CONT);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(told(), "WATCHDOG=1");
    kill(child.id(), rustix::process::Signal::TERM);
    while told() != "STOPPING=1" {}
    assert!(child.wait().unwrap().success());
}
