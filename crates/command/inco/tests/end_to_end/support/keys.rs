//! Certificates of a test's own.

use std::net::TcpListener;
use std::path::PathBuf;

use super::Place;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Whose certificates count.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Authority { issuer }
    }

    /// `ca.pem`, `cert.pem` and `key.pem` for a peer on this machine, in a directory that is named after it.
    pub(crate) fn keys(&self, directory: PathBuf) -> PathBuf {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        // Whose name is its authority's would count as signed by itself.
        let whose = directory.file_name().unwrap().to_string_lossy().into_owned();
        params.distinguished_name.push(DnType::CommonName, whose);
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("ca.pem"), self.issuer.pem()).unwrap();
        std::fs::write(directory.join("cert.pem"), signed.pem()).unwrap();
        std::fs::write(directory.join("key.pem"), key.serialize_pem()).unwrap();
        directory
    }
}

/// An API over TLS at a port of this machine.
pub(crate) struct ApiOverTls {
    pub(crate) address: String,
    pub(crate) certificate: PathBuf,
    /// Its part of a configuration.
    pub(crate) toml: String,
}

impl ApiOverTls {
    /// The tokens of who may act, and of who may read.
    pub(crate) const ADMIN: &str = "0123456789abcdef0123456789abcdef";
    pub(crate) const READ: &str = "fedcba9876543210fedcba9876543210";

    pub(crate) fn new(place: &Place) -> ApiOverTls {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let address = format!("localhost:{}", free_port());
        let certificate = place.file("api.pem", &made.cert.pem());
        let key = place.secret_file("api.key", &made.signing_key.serialize_pem());
        let (admin, read) = (ApiOverTls::ADMIN, ApiOverTls::READ);
        let tokens = place.secret_file("tokens", &format!("admin ops {admin}\nread prometheus {read}\n"));
        let toml = format!(
            "[api]\nlisten = \"{}\"\ncertificate = {certificate:?}\nkey = {key:?}\ntokens = {tokens:?}\n",
            address.replace("localhost", "127.0.0.1"),
        );
        ApiOverTls {
            address,
            certificate,
            toml,
        }
    }
}

/// A free port of this machine.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
