use std::fmt;
use std::net::IpAddr;

use crate::RegistryError;

/// Where Docker's registry answers.
const DOCKER_HUB: &str = "registry-1.docker.io";
/// The longest reference, in bytes.
const MAX_REFERENCE_BYTES: usize = 512;

/// The name of an image in a registry, as Docker reads it: `nginx` is `docker.io/library/nginx:latest`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference(oci_spec::distribution::Reference);

impl Reference {
    /// Reads a reference.
    ///
    /// # Errors
    /// [`RegistryError::BadReference`].
    pub fn parse(text: &str) -> Result<Reference, RegistryError> {
        let bad = |reason: String| RegistryError::BadReference {
            text: text.chars().take(MAX_REFERENCE_BYTES).collect(),
            reason,
        };
        let too_long = |bytes: usize| bad(format!("it has {bytes} bytes, {MAX_REFERENCE_BYTES} may be"));
        if text.len() > MAX_REFERENCE_BYTES {
            return Err(too_long(text.len()));
        }
        // The grammar's letters are ASCII; the library's are not.
        if !text.is_ascii() {
            return Err(bad("it has letters that are not ASCII".to_owned()));
        }
        let parsed: oci_spec::distribution::Reference = text.parse().map_err(
            |error: oci_spec::distribution::ParseError| match has_uppercase(text) {
                true => bad(format!("{error}; a name has no uppercase letters")),
                false => bad(error.to_string()),
            },
        )?;
        // The library takes a first part with uppercase letters for one of the name, and does not read it again.
        if has_uppercase(parsed.repository()) {
            return Err(bad("a name has no uppercase letters".to_owned()));
        }
        // As it is written, with the registry and the tag that it leaves out.
        let written = parsed.to_string().len();
        if written > MAX_REFERENCE_BYTES {
            return Err(too_long(written));
        }
        if let Some(digest) = parsed.digest().filter(|digest| !digest.starts_with("sha256:")) {
            let algorithm = digest.split(':').next().unwrap_or_default();
            return Err(bad(format!(
                "its digest is by {algorithm}, and inco reads sha256 alone"
            )));
        }
        if parsed.digest().is_some_and(has_uppercase) {
            return Err(bad("a digest has no uppercase letters".to_owned()));
        }
        Ok(Reference(parsed))
    }

    /// The registry as it is written: `docker.io`, `localhost:5000`.
    pub fn registry(&self) -> &str {
        self.0.registry()
    }

    /// Where that registry answers: host, and port if one is written.
    pub fn host(&self) -> &str {
        match self.registry() {
            "docker.io" => DOCKER_HUB,
            registry => registry,
        }
    }

    /// The image's name in the registry: `library/nginx`.
    pub fn repository(&self) -> &str {
        self.0.repository()
    }

    /// What of the repository is asked for: the digest where one is written, else the tag.
    pub fn wanted(&self) -> &str {
        self.0.digest().or(self.0.tag()).unwrap_or("latest")
    }

    /// The digest, as `sha256:…`, where one is written.
    pub fn digest(&self) -> Option<&str> {
        self.0.digest()
    }

    /// Whether the registry is on this machine, so that nobody listens in between.
    pub fn is_loopback(&self) -> bool {
        let host = self.registry();
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }
}

fn has_uppercase(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_uppercase())
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_as_docker_reads_them() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, host, repository, wanted, is_loopback) in [
            ("nginx", DOCKER_HUB, "library/nginx", "latest", false),
            ("nginx:1.27", DOCKER_HUB, "library/nginx", "1.27", false),
            ("lab/ids:2", DOCKER_HUB, "lab/ids", "2", false),
            ("docker.io/nginx", DOCKER_HUB, "library/nginx", "latest", false),
            ("index.docker.io/lab/ids", DOCKER_HUB, "lab/ids", "latest", false),
            ("registry.lan/ids", "registry.lan", "ids", "latest", false),
            (
                "registry:5000/a/b/c:x_1.y-z",
                "registry:5000",
                "a/b/c",
                "x_1.y-z",
                false,
            ),
            ("localhost/ids", "localhost", "ids", "latest", true),
            ("localhost:5000/lab/ids:1", "localhost:5000", "lab/ids", "1", true),
            ("127.0.0.9:5000/ids", "127.0.0.9:5000", "ids", "latest", true),
            ("10.0.0.1:5000/ids", "10.0.0.1:5000", "ids", "latest", false),
            ("localhost.lan/ids", "localhost.lan", "ids", "latest", false),
        ] {
            let read = Reference::parse(text).unwrap();
            assert_eq!(
                (read.host(), read.repository(), read.wanted(), read.is_loopback()),
                (host, repository, wanted, is_loopback),
                "{text}"
            );
        }
        for text in [format!("nginx@{digest}"), format!("nginx:1.27@{digest}")] {
            let read = Reference::parse(&text).unwrap();
            assert_eq!(
                (read.wanted(), read.digest()),
                (digest.as_str(), Some(digest.as_str()))
            );
        }
        let other = format!("a@sha512:{}", "a".repeat(128));
        let long = "a".repeat(600);
        // The tag that it leaves out makes it too long.
        let nearly = format!("{}.lan/nginx", "a".repeat(500));
        let upper = format!("nginx@sha256:{}", "A".repeat(64));
        for (text, word) in [
            ("", "at least one"),
            ("Nginx", "uppercase"),
            ("Lab/nginx", "uppercase"),
            ("a b", "invalid"),
            ("a:", "invalid"),
            ("/a", "invalid"),
            ("a/../b", "invalid"),
            ("a@sha256:123", "invalid"),
            ("http://a/b", "invalid"),
            ("ä", "ASCII"),
            ("a:ä", "ASCII"),
            (&other, "sha512"),
            (&upper, "uppercase"),
            (&long, "512"),
            (&nearly, "512"),
        ] {
            let error = Reference::parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text:?}: {error}");
        }
    }
}
