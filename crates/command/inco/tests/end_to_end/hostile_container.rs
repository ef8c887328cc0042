//! A container does what it may in its own directory: nothing of the host's becomes its own by that.

use std::os::unix::fs::PermissionsExt as _;

use memif::{Client, ClientConfig};
use model::EventKind;

use crate::support::{Engine, Inco, PATIENCE, Place, eventually};

const IMAGE: &str = "inco-test/shell";

/// The peers that the uplink has had.
fn uplink_peers(inco: &Inco) -> Vec<String> {
    let of = |event: model::Event| match event.kind {
        EventKind::Uplink { up: true, detail, .. } => Some(detail),
        _ => None,
    };
    inco.events().into_iter().filter_map(of).collect()
}

/// A link where its port should be, to the socket at which the network connects, is not followed: the network's side
/// stays the network's.
fn a_link_to_the_uplink_is_not_followed(engine: Engine) {
    if !engine.is_here() {
        return;
    }
    let place = Place::new();
    place.import_image(IMAGE, &["sh", "ln", "sleep"]);
    let inco = place.run(&format!(
        r#"
[[uplink]]
name = "wan"
device = "memif:wan.sock"

[service.hostile]
image = "{IMAGE}"
command = ["/bin/sh", "-c", "ln -s ../../wan.sock /run/inco/port.sock; exec sleep 1000"]
instances = 1
autoscaler = "fixed"
stop_grace = "1ms"
{}"#,
        engine.toml()
    ));
    let socket = place.run_dir().join("wan.sock");
    let row = eventually("the link is refused", PATIENCE, || {
        let mut rows = inco.instances().into_iter();
        rows.find(|row| row.reason.contains("is a symbolic link, not a socket"))
    });
    let mode = std::fs::symlink_metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660, "{mode:o}");
    // Through the link, the socket that it names is there: it is not for want of one.
    let link = place
        .run_dir()
        .join("instances")
        .join(row.container.unwrap())
        .join("port.sock");
    assert_eq!(
        std::fs::canonicalize(link).unwrap(),
        std::fs::canonicalize(&socket).unwrap()
    );
    assert!(uplink_peers(&inco).is_empty(), "{}", inco.told());
    // The network itself is still welcome.
    let link = Client::connect_when_ready(&ClientConfig::new(&socket, 0), PATIENCE).unwrap();
    eventually("the network is there", PATIENCE, || {
        (uplink_peers(&inco).len() == 1).then_some(())
    });
    drop(link);
    inco.stop(&place);
}

#[test]
fn a_link_to_the_uplink_is_not_followed_in_oci() {
    a_link_to_the_uplink_is_not_followed(Engine::Oci);
}

#[test]
fn a_link_to_the_uplink_is_not_followed_in_docker() {
    a_link_to_the_uplink_is_not_followed(Engine::Docker);
}
