//! The switch over TLS.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use openflow::{Action, FlowFilter, Message};
use openvswitch::{BridgeSpec, Endpoint, Keys, Ovsdb, OvsdbError, Turned};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::bed::{Controller, LIMIT, Switch, free_port, port, rule};

/// An authority like that of `ovs-pki`: its certificates name no address.
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

    /// A key and a certificate signed by this authority, as files in that directory.
    fn keys(&self, directory: &Path, whose: &str) -> Keys {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        // A certificate with its authority's name would count as self-signed.
        params.distinguished_name.push(DnType::CommonName, whose);
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let write = |name: &str, text: String| {
            let path = directory.join(format!("{whose}-{name}.pem"));
            std::fs::write(&path, text).unwrap();
            path
        };
        Keys {
            certificate: write("cert", signed.pem()),
            key: write("key", key.serialize_pem()),
            ca: write("ca", self.issuer.pem()),
        }
    }
}

#[test]
fn everything_works_over_tls_and_untrusted_peers_are_rejected() {
    let Some(switch) = Switch::start() else { return };
    let directory = switch.directory.path();
    let (authority, other) = (Authority::new(), Authority::new());
    let theirs = authority.keys(directory, "switch");
    let ours = authority.keys(directory, "inco");
    let database = format!("--db=unix:{}", directory.join("db.sock").display());
    let (manager, control) = (free_port(), free_port());
    let text = |path: &Path| path.display().to_string();
    let set = [
        &database,
        "set-ssl",
        &text(&theirs.key),
        &text(&theirs.certificate),
        &text(&theirs.ca),
        "--",
        "set-manager",
        &format!("pssl:{manager}:127.0.0.1"),
    ];
    assert_eq!(switch.tool("ovs-vsctl", &set), "");
    let endpoint = |port: u16, keys: &Keys| {
        let endpoint: Endpoint = format!("ssl:127.0.0.1:{port}").parse().unwrap();
        endpoint.with_keys(Some(keys))
    };

    let since = Instant::now();
    let mut database = loop {
        let tried = Ovsdb::connect(&endpoint(manager, &ours), LIMIT)
            .and_then(|mut database| database.other_config("none").map(|_| database));
        match tried {
            Ok(database) => break database,
            Err(error) => assert!(since.elapsed() < LIMIT, "no answer over TLS: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let bridge = BridgeSpec {
        name: "br0".into(),
        datapath: "dummy".into(),
        external_ids: BTreeMap::new(),
        listens: endpoint(control, &ours).passive(),
    };
    database.ensure_bridge(&bridge).unwrap();
    let ports = [port("p1", 1), port("p2", 2)];
    assert_eq!(database.ensure_ports("br0", &ports).unwrap(), [1, 2]);

    let mut controller = Controller::new(endpoint(control, &ours));
    controller.up();
    // More than fits a socket's buffer, both ways.
    for port in 1..=2000 {
        let own = rule(port, u64::from(port), vec![Action::output(2)]);
        controller.send(&Message::FlowMod(own));
    }
    controller.barrier();
    assert_eq!(controller.flows(FlowFilter::default()).len(), 2000);

    // A certificate of another authority is rejected by both sides.
    let mixed = Keys {
        ca: ours.ca.clone(),
        ..other.keys(directory, "other")
    };
    let trusting_others = Keys {
        ca: mixed.certificate.with_file_name("other-ca.pem"),
        ..ours.clone()
    };
    for keys in [&mixed, &trusting_others] {
        let refused = Ovsdb::connect(&endpoint(manager, keys), LIMIT)
            .and_then(|mut database| database.other_config("none"))
            .unwrap_err();
        assert!(matches!(refused, OvsdbError::Socket { .. }), "{refused}");
        let mut controller = Controller::new(endpoint(control, keys));
        let what = controller.wait("refused", |turned| match turned {
            Turned::Down(error) => Some(Some(error.to_string())),
            Turned::Up(_) => Some(None),
            Turned::Said(_) => None,
        });
        assert!(what.is_some(), "it was accepted");
    }
    // Without keys, or with none in the files, the error says what is missing.
    let bare: Endpoint = format!("ssl:127.0.0.1:{manager}").parse().unwrap();
    let error = Ovsdb::connect(&bare, LIMIT).unwrap_err().to_string();
    assert!(error.contains("needs a certificate"), "{error}");
    let empty = Keys {
        ca: directory.join("conf.db"),
        ..ours
    };
    let error = Ovsdb::connect(&endpoint(manager, &empty), LIMIT)
        .unwrap_err()
        .to_string();
    assert!(error.contains("conf.db"), "{error}");
}
