//! What a registry says that an image consists of.

use std::collections::BTreeMap;

use oci_spec::image::{
    Arch, Descriptor, Digest, DigestAlgorithm, ImageIndex, ImageManifest, MediaType, Os, Platform,
};
use serde_json::Value;

/// Bytes of a document: an index, a manifest, a configuration.
pub const MAX_DOCUMENT_BYTES: u64 = 4 << 20;
/// Layers of an image. Docker itself makes no more than 127.
pub const MAX_LAYERS: usize = 128;
/// Bytes of all packed layers of an image.
pub const MAX_IMAGE_BYTES: u64 = 16 << 30;
/// Images that an index may name.
const MAX_IMAGES: usize = 4_096;

/// The documents that a client of registries reads, for the header `Accept`.
pub(crate) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// A document that a tag or a digest leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// Images for several machines.
    Index(Box<ImageIndex>),
    /// An image.
    Image(Box<ImageManifest>),
}

/// A file of an image, by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// In hexadecimal digits, by SHA-256.
    pub digest: String,
    /// Its size, as the manifest says.
    pub bytes: u64,
}

/// Reads a document. What its text says of its type counts more than what the server says.
///
/// # Errors
/// What is wrong with it.
pub fn read(text: &[u8], content_type: Option<&str>) -> Result<Document, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| format!("it is no JSON: {error}"))?;
    let own = value.get("mediaType").and_then(Value::as_str);
    let kind = own.or(content_type).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if value.get("schemaVersion").and_then(Value::as_u64) == Some(1) || kind.contains("manifest.v1+prettyjws")
    {
        return Err("it is in the format of 2015 (schema 1): push it again with a current Docker".to_owned());
    }
    let is_index = match kind {
        "application/vnd.oci.image.index.v1+json"
        | "application/vnd.docker.distribution.manifest.list.v2+json" => true,
        "application/vnd.oci.image.manifest.v1+json"
        | "application/vnd.docker.distribution.manifest.v2+json" => false,
        // Servers that send files as they are do not know.
        _ => value.get("manifests").is_some(),
    };
    let wrong = |error: serde_json::Error| format!("it is no manifest: {error}");
    if is_index {
        let index: ImageIndex = serde_json::from_value(value).map_err(wrong)?;
        if index.manifests().len() > MAX_IMAGES {
            return Err(format!("it names more than {MAX_IMAGES} images"));
        }
        return Ok(Document::Index(Box::new(index)));
    }
    let manifest = serde_json::from_value(value).map_err(wrong)?;
    Ok(Document::Image(Box::new(manifest)))
}

/// The image of an index that is for this machine: the first one, as Docker chooses.
///
/// # Errors
/// For which machines the images are.
pub fn choose(index: &ImageIndex) -> Result<&Descriptor, String> {
    let ours =
        |platform: &Platform| *platform.os() == Os::Linux && *platform.architecture() == Arch::default();
    // Without a platform there is but one image, or an index of another one.
    let found = index
        .manifests()
        .iter()
        .find(|descriptor| descriptor.platform().as_ref().is_none_or(ours));
    found.ok_or_else(|| {
        let platforms = index
            .manifests()
            .iter()
            .filter_map(|descriptor| descriptor.platform().as_ref());
        let mut platforms: Vec<String> = platforms
            // What BuildKit notes beside images is for no machine.
            .filter(|platform| platform.os().to_string() != "unknown")
            .map(|platform| format!("{}/{}", platform.os(), platform.architecture()))
            .take(32)
            .collect();
        platforms.dedup();
        format!(
            "there is none for {}/{}; there is {}",
            Os::Linux,
            Arch::default(),
            if platforms.is_empty() {
                "none".to_owned()
            } else {
                platforms.join(", ")
            }
        )
    })
}

/// What is to be downloaded of an image, each once: configuration and layers.
///
/// # Errors
/// What is wrong with the manifest, or which limit it exceeds.
pub fn blobs(manifest: &ImageManifest) -> Result<Vec<Blob>, String> {
    let config = manifest.config();
    let is_docker_config = config.media_type().as_ref() == "application/vnd.docker.container.image.v1+json";
    if *config.media_type() != MediaType::ImageConfig && !is_docker_config {
        return Err(format!(
            "it is no image of a container: its configuration is {}",
            config.media_type()
        ));
    }
    if config.size() > MAX_DOCUMENT_BYTES {
        return Err(format!(
            "its configuration has {} bytes, {MAX_DOCUMENT_BYTES} may be",
            config.size()
        ));
    }
    let layers = manifest.layers();
    if layers.len() > MAX_LAYERS {
        return Err(format!("it has {} layers, {MAX_LAYERS} may be", layers.len()));
    }
    let mut blobs = BTreeMap::new();
    let mut bytes = 0_u64;
    for (number, descriptor) in std::iter::once(config).chain(layers).enumerate() {
        let what = if number == 0 {
            "its configuration".to_owned()
        } else {
            format!("layer {number}")
        };
        let digest = sha256(descriptor.digest()).map_err(|reason| format!("{what}: {reason}"))?;
        let size = descriptor.size();
        match blobs.insert(digest, size) {
            Some(before) if before != size => {
                return Err(format!(
                    "{what} has {size} bytes, and elsewhere in the manifest {before}"
                ));
            }
            Some(_) => continue,
            None => {}
        }
        bytes = bytes.saturating_add(size);
        if bytes > MAX_IMAGE_BYTES {
            return Err(format!(
                "with {what} it has {bytes} bytes, {MAX_IMAGE_BYTES} may be"
            ));
        }
    }
    let blobs = blobs.into_iter().map(|(digest, bytes)| Blob { digest, bytes });
    Ok(blobs.collect())
}

/// The digits of a digest by SHA-256.
pub(crate) fn sha256(digest: &Digest) -> Result<String, String> {
    if *digest.algorithm() != DigestAlgorithm::Sha256 {
        return Err(format!(
            "{digest} is no digest by sha256, the only one that inco reads"
        ));
    }
    Ok(digest.digest().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn digest(number: u8) -> String {
        format!("sha256:{}", format!("{number:02x}").repeat(32))
    }

    fn manifest(layers: &[(u8, u64)]) -> Value {
        let layers = layers.iter().map(|&(number, size)| {
            json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(number), "size": size })
        });
        json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(0), "size": 10,
            },
            "layers": layers.collect::<Vec<_>>(),
        })
    }

    fn of(value: &Value) -> Result<Vec<Blob>, String> {
        match read(value.to_string().as_bytes(), None)? {
            Document::Image(manifest) => blobs(&manifest),
            Document::Index(_) => Err("an index".to_owned()),
        }
    }

    #[test]
    fn each_blob_counts_once_and_within_limits() {
        let found = of(&manifest(&[(1, 5), (2, 6), (1, 5)])).unwrap();
        let sizes: Vec<u64> = found.iter().map(|blob| blob.bytes).collect();
        assert_eq!(sizes, [10, 5, 6]);
        let mut no_image = manifest(&[]);
        no_image["config"]["mediaType"] = "application/vnd.cncf.helm.config.v1+json".into();
        let mut large = manifest(&[]);
        large["config"]["size"] = (MAX_DOCUMENT_BYTES + 1).into();
        let mut other = manifest(&[(1, 5)]);
        other["layers"][0]["digest"] = format!("sha512:{}", "a".repeat(128)).into();
        let mut short = manifest(&[(1, 5)]);
        short["layers"][0]["digest"] = "sha256:../../etc/passwd".into();
        let mut negative = manifest(&[(1, 5)]);
        negative["layers"][0]["size"] = (-1).into();
        for (value, word) in [
            (manifest(&[(1, MAX_IMAGE_BYTES), (2, 1)]), "17179869184 may be"),
            (manifest(&[(1, u64::MAX), (2, u64::MAX)]), "layer 1"),
            (manifest(&[(1, 5), (1, 6)]), "elsewhere"),
            (manifest(&[(1, 0); MAX_LAYERS + 1]), "129 layers"),
            (no_image, "helm"),
            (large, "4194304 may be"),
            (other, "sha512"),
            (short, "no manifest"),
            (negative, "no manifest"),
            (json!({ "schemaVersion": 1, "fsLayers": [] }), "schema 1"),
            (json!({ "schemaVersion": 2 }), "no manifest"),
            (json!([]), "no manifest"),
        ] {
            let error = of(&value).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        assert!(read(b"<html>", None).unwrap_err().contains("no JSON"));
    }

    #[test]
    fn an_index_gives_the_image_for_this_machine() {
        let entry = |number: u8, os: &str, architecture: &str| {
            json!({
                "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(number), "size": 1,
                "platform": { "os": os, "architecture": architecture },
            })
        };
        let own = Arch::default().to_string();
        let index = |entries: &[Value]| {
            let text = json!({ "schemaVersion": 2, "manifests": entries }).to_string();
            match read(
                text.as_bytes(),
                Some("application/vnd.oci.image.index.v1+json; charset=utf-8"),
            )
            .unwrap()
            {
                Document::Index(index) => index,
                Document::Image(_) => panic!("an index"),
            }
        };
        let many = index(&[
            entry(1, "windows", &own),
            entry(2, "linux", "s390x"),
            entry(3, "linux", &own),
            entry(4, "linux", &own),
        ]);
        assert_eq!(choose(&many).unwrap().digest().to_string(), digest(3));
        let others = index(&[entry(1, "linux", "s390x"), entry(2, "unknown", "unknown")]);
        let said = choose(&others).unwrap_err();
        assert!(
            said.contains(&format!("none for linux/{own}; there is linux/s390x")),
            "{said}"
        );
        assert!(choose(&index(&[])).unwrap_err().ends_with("there is none"));
    }
}
