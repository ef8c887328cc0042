//! Downloads images from registries, by the OCI distribution specification: names, logins and certificates as Docker
//! has them. An image lands in a directory as an OCI image layout, from which `engine` imports it.
//!
//! Key types: [`Reference`] (which image), [`Options`] (how registries are reached), [`Remote`] (an image that was
//! found there), [`RegistryError`].
//!
//! Registries are not trusted: each file is checked against its digest while it arrives, and everything that is read
//! has a limit. A login goes to the registry that it is for, and to the address that this registry names for tokens.
#![forbid(unsafe_code)]

mod client;
mod credentials;
mod download;
mod error;
pub mod manifest;
mod reference;

pub use credentials::{Login, docker_config, find_in, login_of_image};
pub use error::RegistryError;
pub use reference::Reference;

use std::fmt;
use std::path::{Path, PathBuf};

use oci_spec::image::{Descriptor, MediaType};
use tokio::runtime::Runtime;

use crate::client::Client;
use crate::manifest::{Blob, Document, MAX_DOCUMENT_BYTES};

/// Indexes that lead from one to the next.
const MAX_INDEXES: usize = 4;

/// How registries are reached.
#[derive(Clone, Debug)]
pub struct Options {
    /// Docker's `config.json`, with logins.
    pub docker_config: PathBuf,
    /// A directory for each registry with authorities (`ca.crt`) that are trusted for it.
    pub certificates: PathBuf,
    /// Registries that are asked without TLS, as they are written in references: `10.0.0.5:5000`. Those of this
    /// machine need no entry.
    pub plain_http: Vec<String>,
}

impl Default for Options {
    /// As Docker has it on this machine.
    fn default() -> Options {
        Options {
            docker_config: docker_config(),
            certificates: PathBuf::from("/etc/docker/certs.d"),
            plain_http: Vec::new(),
        }
    }
}

/// How far a download is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are here.
    pub done: u64,
    /// All bytes.
    pub bytes: u64,
}

/// An image that a registry has.
pub struct Remote {
    runtime: Runtime,
    client: Client,
    digest: String,
    kind: MediaType,
    manifest: Vec<u8>,
    blobs: Vec<Blob>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

impl Remote {
    /// Asks the registry for an image, for a machine as this one. Blocks; not to be called on a thread of tokio.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn find(reference: &Reference, options: &Options) -> Result<Remote, RegistryError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| RegistryError::io("start", Path::new("a runtime"), &error))?;
        let client = Client::new(reference, options)?;
        let found = runtime.block_on(find(&client, reference))?;
        let Found {
            digest,
            kind,
            text,
            blobs,
        } = found;
        Ok(Remote {
            runtime,
            client,
            digest,
            kind,
            manifest: text,
            blobs,
        })
    }

    /// What identifies its content: `sha256:…` of the image's manifest.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// What has to be downloaded, in bytes.
    pub fn bytes(&self) -> u64 {
        self.blobs.iter().map(|blob| blob.bytes).sum()
    }

    /// Downloads it into a directory, as an OCI image layout. What is there of an earlier attempt is used. Blocks.
    ///
    /// # Errors
    /// [`RegistryError`]. Files that are complete stay for the next attempt.
    pub fn download(&self, into: &Path, progress: &(dyn Fn(Progress) + Sync)) -> Result<(), RegistryError> {
        let blobs = into.join("blobs/sha256");
        std::fs::create_dir_all(&blobs)
            .map_err(|error| RegistryError::io("make directory", &blobs, &error))?;
        self.runtime
            .block_on(download::all(&self.client, &self.blobs, &blobs, progress))?;
        let write = |path: PathBuf, text: &[u8]| {
            std::fs::write(&path, text).map_err(|error| RegistryError::io("write", &path, &error))
        };
        let digits = self.digest.trim_start_matches("sha256:");
        write(blobs.join(digits), &self.manifest)?;
        let index = serde_json::json!({
            "schemaVersion": 2,
            "manifests": [{
                "mediaType": self.kind, "digest": self.digest, "size": self.manifest.len(),
            }],
        });
        write(into.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        write(into.join("index.json"), index.to_string().as_bytes())
    }
}

struct Found {
    digest: String,
    kind: MediaType,
    text: Vec<u8>,
    blobs: Vec<Blob>,
}

async fn find(client: &Client, reference: &Reference) -> Result<Found, RegistryError> {
    let mut wanted = reference.wanted().to_owned();
    let mut expected = reference.digest().map(str::to_owned);
    let unusable = |reason: String| RegistryError::Unusable {
        image: client.image(),
        reason,
    };
    for _ in 0..=MAX_INDEXES {
        let path = format!("manifests/{wanted}");
        let answer = client.get(&path, manifest::ACCEPTED, 0).await?;
        let (host, kind) = (answer.host.clone(), answer.content_type().map(str::to_owned));
        let text = answer
            .read("its manifest", &client.image(), MAX_DOCUMENT_BYTES)
            .await?;
        let found = download::digest_of(&text);
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            let what = "the manifest".to_owned();
            return Err(RegistryError::Digest {
                host,
                what,
                expected,
                found,
            });
        }
        match manifest::read(&text, kind.as_deref()).map_err(unusable)? {
            Document::Index(index) => {
                let chosen: &Descriptor = manifest::choose(&index).map_err(unusable)?;
                let digits = manifest::sha256(chosen.digest()).map_err(unusable)?;
                wanted = format!("sha256:{digits}");
                expected = Some(wanted.clone());
            }
            Document::Image(image) => {
                let blobs = manifest::blobs(&image).map_err(unusable)?;
                let kind = image.media_type().clone().unwrap_or(MediaType::ImageManifest);
                return Ok(Found {
                    digest: found,
                    kind,
                    text,
                    blobs,
                });
            }
        }
    }
    Err(unusable(format!(
        "more than {MAX_INDEXES} indexes are in each other"
    )))
}
