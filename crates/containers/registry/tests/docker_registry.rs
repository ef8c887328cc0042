//! Against Debian's `docker-registry`: without a login, with passwords, with tokens, and over TLS.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]
#![allow(dead_code, reason = "not each test uses all of the servers")]

mod support;

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use registry::{Options, RegistryError};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::json;

use crate::support::{INDEX, Registry, Server, answer, blob, options, sha256};

/// `tester` with the password `secret`, by bcrypt.
const HTPASSWD: &str = "tester:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";
const BASIC: &str = "Basic dGVzdGVyOnNlY3JldA==";

fn layers() -> [Vec<u8>; 3] {
    [1_u8, 2, 3].map(|number| {
        (0..300_000_u32)
            .map(|at| (at as u8).wrapping_mul(number))
            .collect()
    })
}

fn log_in(options: &Options, registry: &str, password: &str) {
    let auth = STANDARD.encode(format!("tester:{password}"));
    let text = json!({ "auths": { registry: { "auth": auth } } }).to_string();
    fs::write(&options.docker_config, text).unwrap();
}

fn check_whole(into: &Path, layers: &[&[u8]]) {
    for layer in layers {
        assert_eq!(fs::read(blob(into, layer)).unwrap(), *layer);
    }
}

#[test]
fn an_image_is_pulled_by_tag_by_digest_and_from_an_index() {
    let Some(registry) = Registry::start(|_| String::new()) else {
        return;
    };
    let own = layers();
    let [first, second, third] = &own;
    // Two layers are the same: as in real images, of an empty one.
    let named = registry.push("lab/ids", "1", "", &[first, second, first]);
    let digest = named["digest"].as_str().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    for name in [
        "lab/ids:1".to_owned(),
        format!("lab/ids@{digest}"),
        format!("lab/ids:9@{digest}"),
    ] {
        let (into, found) = registry.pull(&name, &options).unwrap();
        assert_eq!(found, digest);
        check_whole(into.path(), &[first, second]);
        let files = fs::read_dir(into.path().join("blobs/sha256")).unwrap().count();
        assert_eq!(files, 4, "configuration, manifest and two layers");
    }

    let other = registry.push("lab/ids", "other", "", &[third]);
    let architecture = oci_spec::image::Arch::default().to_string();
    let entry = |of: &serde_json::Value, architecture: &str| {
        let mut entry = of.clone();
        entry["platform"] = json!({ "os": "linux", "architecture": architecture });
        entry
    };
    let index = json!({
        "schemaVersion": 2, "mediaType": INDEX,
        "manifests": [entry(&other, "s390x"), entry(&named, &architecture)],
    });
    registry.push_manifest("lab/ids", "many", "", INDEX, &index);
    let (into, found) = registry.pull("lab/ids:many", &options).unwrap();
    assert_eq!(found, digest);
    check_whole(into.path(), &[first, second]);
    let foreign = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry(&other, "s390x")] });
    registry.push_manifest("lab/ids", "foreign", "", INDEX, &foreign);
    let error = registry
        .pull("lab/ids:foreign", &options)
        .unwrap_err()
        .to_string();
    assert!(error.contains("there is linux/s390x"), "{error}");

    let missing = sha256(b"nothing");
    for name in [
        "lab/ids:2".to_owned(),
        "nobody/has-this".to_owned(),
        format!("lab/ids@{missing}"),
    ] {
        let error = registry.pull(&name, &options).unwrap_err();
        assert!(matches!(error, RegistryError::Missing { .. }), "{name}: {error}");
    }
}

#[test]
fn a_registry_with_passwords_takes_those_of_dockers_configuration() {
    let more = |directory: &Path| {
        let file = directory.join("htpasswd");
        fs::write(&file, HTPASSWD).unwrap();
        format!(
            "auth:\n  htpasswd:\n    realm: lab\n    path: {}\n",
            file.display()
        )
    };
    let Some(registry) = Registry::start(more) else {
        return;
    };
    let own = layers();
    registry.push("lab/ids", "1", BASIC, &[&own[0]]);
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    let error = registry.pull("lab/ids:1", &options).unwrap_err().to_string();
    let advice = format!("`docker login {}`", registry.address);
    assert!(
        error.contains(&advice) && error.contains("which has none"),
        "{error}"
    );
    log_in(&options, &registry.address, "wrong");
    let error = registry.pull("lab/ids:1", &options).unwrap_err().to_string();
    assert!(
        error.contains("the user \"tester\"") && error.contains(&advice),
        "{error}"
    );
    log_in(&options, &registry.address, "secret");
    let (into, _) = registry.pull("lab/ids:1", &options).unwrap();
    check_whole(into.path(), &[&own[0]]);
}

#[test]
fn a_registry_with_tokens_gets_one_of_its_server() {
    let Ok(key) = rcgen::KeyPair::generate() else {
        panic!("a key")
    };
    let certificate = rcgen::CertificateParams::new(vec!["tokens".to_owned()]).unwrap();
    let certificate = certificate.self_signed(&key).unwrap();
    let random = ring::rand::SystemRandom::new();
    let signer =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.serialized_der(), &random).unwrap();
    let chain = STANDARD.encode(certificate.der());
    let token_for = move |access: &[(&str, &[&str])]| {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let access: Vec<_> = access
            .iter()
            .map(|(name, actions)| json!({ "type": "repository", "name": name, "actions": actions }))
            .collect();
        let head = json!({ "typ": "JWT", "alg": "ES256", "x5c": [chain] });
        let claims = json!({
            "iss": "lab", "sub": "tester", "aud": "lab-registry", "exp": now + 60, "nbf": now - 60, "iat": now,
            "jti": "1", "access": access,
        });
        let text = [head, claims]
            .map(|of| URL_SAFE_NO_PAD.encode(of.to_string()))
            .join(".");
        let signature = signer.sign(&random, text.as_bytes()).unwrap();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    };
    let pushes = token_for(&[("lab/ids", &["push", "pull"]), ("lab/open", &["push", "pull"])]);
    let tokens = Server::start(move |message| {
        let is_tester = message
            .headers
            .get("authorization")
            .is_some_and(|value| value == BASIC);
        let name = ["lab/ids", "lab/open"].into_iter().find(|name| {
            message
                .path
                .contains(&format!("scope=repository%3A{}%3Apull", name.replace('/', "%2F")))
        });
        match name {
            Some(name) if is_tester || name == "lab/open" => {
                let token = token_for(&[(name, &["pull"])]);
                // Both names are in use.
                let field = if is_tester { "token" } else { "access_token" };
                answer(200, &[], json!({ field: token }).to_string().as_bytes())
            }
            Some(_) => answer(
                401,
                &[],
                br#"{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}"#,
            ),
            None => answer(400, &[], b""),
        }
    });
    let realm = format!("http://{}/token", tokens.address);
    let more = |directory: &Path| {
        let bundle = directory.join("tokens.pem");
        fs::write(&bundle, certificate.pem()).unwrap();
        format!(
            "auth:\n  token:\n    realm: {realm}\n    service: lab-registry\n    issuer: lab\n    rootcertbundle: {}\n",
            bundle.display()
        )
    };
    let Some(registry) = Registry::start(more) else {
        return;
    };
    let own = layers();
    let authorization = format!("Bearer {pushes}");
    registry.push("lab/ids", "1", &authorization, &[&own[0], &own[1]]);
    registry.push("lab/open", "1", &authorization, &[&own[2]]);
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    // Anybody gets a token for what is open.
    let (into, _) = registry.pull("lab/open:1", &options).unwrap();
    check_whole(into.path(), &[&own[2]]);
    let error = registry.pull("lab/ids:1", &options).unwrap_err().to_string();
    assert!(
        error.contains("who are you") && error.contains("docker login"),
        "{error}"
    );
    log_in(&options, &registry.address, "secret");
    let before = tokens.asked("/token").len();
    let (into, _) = registry.pull("lab/ids:1", &options).unwrap();
    check_whole(into.path(), &[&own[0], &own[1]]);
    let asked = tokens.asked("service=lab-registry").len() - before;
    assert_eq!(asked, 1, "one token for all requests");
}

#[test]
fn a_registry_over_tls_needs_an_authority_that_is_trusted() {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let names = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = names.signed_by(&key, &issuer).unwrap();
    let more = |directory: &Path| {
        let (file, key_file) = (directory.join("cert.pem"), directory.join("key.pem"));
        fs::write(&file, certificate.pem()).unwrap();
        fs::write(&key_file, key.serialize_pem()).unwrap();
        format!(
            "  tls:\n    certificate: {}\n    key: {}\n",
            file.display(),
            key_file.display()
        )
    };
    let Some(registry) = Registry::start(more) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    // Without TLS, as a registry of this machine is asked, it answers that it wants TLS.
    let error = registry.pull("lab/ids:1", &options).unwrap_err().to_string();
    assert!(error.contains("400"), "{error}");
    let trusted = options.certificates.join(&registry.address);
    fs::create_dir_all(&trusted).unwrap();
    fs::write(trusted.join("ca.crt"), &authority_pem).unwrap();
    let error = registry.pull("lab/ids:1", &options).unwrap_err();
    assert!(matches!(error, RegistryError::Missing { .. }), "{error}");
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    fs::write(trusted.join("ca.crt"), other.cert.pem()).unwrap();
    let error = registry.pull("lab/ids:1", &options).unwrap_err().to_string();
    assert!(
        error.contains("invalid peer certificate") && error.contains("certs.d"),
        "{error}"
    );
    fs::write(trusted.join("ca.crt"), "-----BEGIN CERTIFICATE-----\nnonsense\n").unwrap();
    let error = registry.pull("lab/ids:1", &options).unwrap_err().to_string();
    assert!(error.contains("cannot read the certificate"), "{error}");
    // And one that has no TLS is not asked as if it had.
    let Some(plain) = Registry::start(|_| String::new()) else {
        return;
    };
    let trusted = options.certificates.join(&plain.address);
    fs::create_dir_all(&trusted).unwrap();
    fs::write(trusted.join("ca.crt"), &authority_pem).unwrap();
    let error = plain.pull("lab/ids:1", &options).unwrap_err().to_string();
    assert!(
        error.contains("does not speak TLS") && error.contains("--plain-http"),
        "{error}"
    );
}
