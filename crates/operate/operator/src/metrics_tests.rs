//! Tests of external metrics: the shapes that Kubernetes wants, and who may ask.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream as StdTcpStream;

use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::*;

const NOW: &str = "2026-01-01T00:00:00Z";

fn row(namespace: &str, name: &str) -> Row {
    Row {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        figures: Figures {
            active: 3,
            desired: 4,
            flows: 12,
            offered_pps: 250_000,
            load_percent: 65,
            queueing_us: 120,
            ..Figures::default()
        },
    }
}

fn rows() -> Vec<Row> {
    vec![row("edge", "dns"), row("edge", "firewall"), row("shop", "web")]
}

fn asked(path: &str, query: &str) -> (u16, Value) {
    answer(
        &format!("/apis/external.metrics.k8s.io/v1beta1{path}"),
        query,
        Some(&rows()),
        NOW,
    )
}

/// The functions whose values an answer has.
fn names(query: &str) -> Vec<String> {
    let (code, body) = asked("/namespaces/edge/inco_load", query);
    assert_eq!(code, 200, "{body}");
    let items = body["items"].as_array().unwrap().iter();
    items
        .map(|of| of["metricLabels"]["networkfunction"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_group_says_which_metrics_there_are() {
    let (code, body) = asked("", "timeout=32s");
    assert_eq!(code, 200);
    assert_eq!(
        (&body["kind"], &body["apiVersion"]),
        (&json!("APIResourceList"), &json!("v1"))
    );
    assert_eq!(body["groupVersion"], "external.metrics.k8s.io/v1beta1");
    let first = json!({ "name": "inco_load", "singularName": "", "namespaced": true,
        "kind": "ExternalMetricValueList", "verbs": ["get"] });
    assert_eq!(body["resources"][0], first);
    assert_eq!(body["resources"].as_array().unwrap().len(), METRICS.len());
}

#[test]
fn a_value_has_the_shape_that_an_hpa_reads() {
    let (code, body) = asked(
        "/namespaces/edge/inco_load",
        "labelSelector=networkfunction%3Dfirewall",
    );
    let expected = json!({ "kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1",
        "metadata": {}, "items": [{ "metricName": "inco_load", "metricLabels": { "networkfunction": "firewall" },
        "timestamp": NOW, "value": "650m" }] });
    assert_eq!((code, body), (200, expected));
    let value = |metric: &str| {
        let (_, body) = asked(&format!("/namespaces/shop/{metric}"), "");
        body["items"][0]["value"].as_str().unwrap().to_owned()
    };
    let all = METRICS.iter().map(|(name, _)| (*name, value(name)));
    let expected = [
        ("inco_load", "650m"),
        ("inco_offered_pps", "250000"),
        ("inco_queueing_delay_seconds", "120u"),
        ("inco_instances", "3"),
        ("inco_desired_instances", "4"),
        ("inco_flows", "12"),
    ];
    let expected = expected.map(|(name, value)| (name, value.to_owned()));
    assert_eq!(all.collect::<Vec<_>>(), expected);
}

#[test]
fn only_the_functions_of_the_namespace_that_are_selected_are_told() {
    assert_eq!(names(""), ["dns", "firewall"]);
    for (selector, expected) in [
        ("networkfunction=dns", vec!["dns"]),
        ("networkfunction==dns", vec!["dns"]),
        ("networkfunction!=dns", vec!["firewall"]),
        ("networkfunction+in+(dns,web),networkfunction", vec!["dns"]),
        ("networkfunction%20notin%20%28dns%2Cweb%29", vec!["firewall"]),
        ("networkfunction=web", vec![]),
        ("!networkfunction", vec![]),
        ("!other", vec!["dns", "firewall"]),
        ("other=dns", vec![]),
        ("other!=dns", vec!["dns", "firewall"]),
    ] {
        assert_eq!(
            names(&format!("limit=1&labelSelector={selector}")),
            expected,
            "{selector}"
        );
    }
}

#[test]
fn what_cannot_be_answered_is_a_status_of_kubernetes() {
    for (path, query, code, reason) in [
        ("/namespaces/edge/absent", "", 404, "NotFound"),
        ("/namespaces/edge", "", 404, "NotFound"),
        ("/namespaces/edge/inco_load/more", "", 404, "NotFound"),
        (
            "/namespaces/edge/inco_load",
            "labelSelector=a+b",
            400,
            "BadRequest",
        ),
        (
            "/namespaces/edge/inco_load",
            "labelSelector=a+in+(b",
            400,
            "BadRequest",
        ),
        (
            "/namespaces/edge/inco_load",
            "labelSelector=a+of+(b)",
            400,
            "BadRequest",
        ),
        (
            "/namespaces/edge/inco_load",
            "labelSelector==b",
            400,
            "BadRequest",
        ),
    ] {
        let (is, body) = asked(path, query);
        assert_eq!(
            (is, &body["reason"], &body["code"]),
            (code, &json!(reason), &json!(code)),
            "{path} {query}"
        );
        assert_eq!(
            (&body["kind"], &body["status"]),
            (&json!("Status"), &json!("Failure"))
        );
    }
    assert_eq!(answer("/metrics", "", Some(&rows()), NOW).0, 404);
    // What is old is not told as if it were new.
    let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/edge/inco_load";
    assert_eq!(answer(path, "", None, NOW).0, 503);
    assert_eq!(Board::default().rows(), None);
}

proptest! {
    #[test]
    fn any_selector_is_read_or_refused(text in "[a-z%=!(), +0-9ä]{0,40}") {
        let (code, _) = asked("/namespaces/edge/inco_load", &format!("labelSelector={text}"));
        prop_assert!(code == 200 || code == 400);
    }
}

/// Certificates of an authority for the server and for a client, and those of a stranger.
struct Made {
    listen: Listen,
    roots: RootCertStore,
    own: (CertificateDer<'static>, KeyPair),
    strange: (CertificateDer<'static>, KeyPair),
    _folder: tempfile::TempDir,
}

fn made() -> Made {
    let folder = tempfile::tempdir().unwrap();
    let authority = || {
        let mut of = CertificateParams::new(Vec::new()).unwrap();
        of.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = of.self_signed(&key).unwrap();
        (certificate, Issuer::new(of, key))
    };
    let (root, issuer) = authority();
    let (_, stranger) = authority();
    let of = |issuer: &Issuer<'_, KeyPair>| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.signed_by(&key, issuer).unwrap(), key)
    };
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (certificate, key) = of(&issuer);
    let listen = Listen {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        certificate: write("own.pem", &certificate.pem()),
        key: write("own.key", &key.serialize_pem()),
        client_ca: write("ca.pem", &root.pem()),
    };
    let mut roots = RootCertStore::empty();
    roots.add(root.der().clone()).unwrap();
    let client = |issuer: &Issuer<'_, KeyPair>| {
        let (certificate, key) = of(issuer);
        (certificate.der().clone(), key)
    };
    Made {
        listen,
        roots,
        own: client(&issuer),
        strange: client(&stranger),
        _folder: folder,
    }
}

/// What comes back for a request over TLS with that certificate of the client; empty: nothing.
fn talked(
    at: SocketAddr,
    roots: &RootCertStore,
    client: Option<&(CertificateDer<'static>, KeyPair)>,
) -> String {
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots.clone());
    let config = match client {
        Some((certificate, key)) => {
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            config
                .with_client_auth_cert(vec![certificate.clone()], key)
                .unwrap()
        }
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = StdTcpStream::connect(at).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut stream = StreamOwned::new(connection, socket);
    let request = "GET /apis/external.metrics.k8s.io/v1beta1/namespaces/shop/inco_instances HTTP/1.1\r\n\
                   Host: x\r\nConnection: close\r\n\r\n";
    let mut answer = Vec::new();
    if stream.write_all(request.as_bytes()).is_ok() {
        let _ended = stream.read_to_end(&mut answer);
    }
    String::from_utf8(answer).unwrap()
}

#[test]
fn only_who_has_a_certificate_of_the_authority_is_answered() {
    let made = made();
    let board = Board::default();
    let server = serve(&made.listen, &board).unwrap();
    let ask = |client| talked(server.address, &made.roots, client);
    let none = ask(Some(&made.own));
    assert!(none.starts_with("HTTP/1.1 503"), "{none}");
    board.show(rows());
    let said = ask(Some(&made.own));
    assert!(
        said.starts_with("HTTP/1.1 200") && said.contains("application/json"),
        "{said}"
    );
    let (_, body) = said.split_once("\r\n\r\n").unwrap();
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["items"][0]["value"], "3");
    assert_eq!(ask(None), "");
    assert_eq!(ask(Some(&made.strange)), "");
}

#[test]
fn files_that_are_no_certificates_are_told() {
    let made = made();
    let mut listen = made.listen.clone();
    listen.client_ca = listen.key.clone();
    let said = serve(&listen, &Board::default()).err().unwrap().to_string();
    assert!(said.contains("own.key"), "{said}");
}
