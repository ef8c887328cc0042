//! An image with one layer, as tools exchange images.

use std::fs;
use std::path::Path;

use engine::ImageRef;
use engine::image::Store;
use serde_json::{Value, json};

/// Puts an image into a store: these files, and this configuration of what runs.
pub fn import(store: &Store, name: &str, rootfs: &Path, config: &Value) {
    let dir = tempfile::tempdir().unwrap();
    let blobs = dir.path().join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8], kind: &str| {
        let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
        let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(blobs.join(&digest), bytes).unwrap();
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"), "size": bytes.len(),
        })
    };
    let mut layer = tar::Builder::new(Vec::new());
    layer.follow_symlinks(false);
    layer.append_dir_all(".", rootfs).unwrap();
    let layer = put(&layer.into_inner().unwrap(), "layer.v1.tar");
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture, "os": "linux", "config": config,
        "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
    });
    let config = put(config.to_string().as_bytes(), "config.v1+json");
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": [layer],
    });
    let manifest = put(manifest.to_string().as_bytes(), "manifest.v1+json");
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(dir.path().join("index.json"), index.to_string()).unwrap();
    fs::write(
        dir.path().join("oci-layout"),
        json!({ "imageLayoutVersion": "1.0.0" }).to_string(),
    )
    .unwrap();
    store.import(&ImageRef::from(name), dir.path(), &[], &[]).unwrap();
}
