//! Registries that answer wrongly: nothing of that becomes an image, and nothing is read without an end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]
#![allow(dead_code, reason = "not each test uses all of the servers")]

mod support;

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use registry::RegistryError;
use serde_json::json;

use crate::support::{Answer, Image, Message, Server, answer, blob, options, pull_to, sha256};

const LAYER: &[u8] = b"a layer with some bytes";

fn server(other: impl Fn(&Message) -> Option<Answer> + Send + Sync + 'static) -> Server {
    Server::with(Image::of(&[LAYER]), &[LAYER], other)
}

fn is_layer(message: &Message) -> bool {
    message.path.ends_with(&sha256(LAYER))
}

#[test]
fn a_whole_image_becomes_a_layout() {
    let (into, digest) = server(|_| None).pull().unwrap();
    assert_eq!(
        digest,
        sha256(Image::of(&[LAYER]).manifest.to_string().as_bytes())
    );
    assert_eq!(fs::read(blob(into.path(), LAYER)).unwrap(), LAYER);
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(into.path().join("index.json")).unwrap()).unwrap();
    assert_eq!(index["manifests"][0]["digest"], digest.as_str());
    assert!(into.path().join("oci-layout").exists());
}

#[test]
fn a_layer_with_another_digest_is_refused_and_not_kept() {
    let other: Vec<u8> = LAYER.iter().map(|byte| byte ^ 1).collect();
    let sent = other.clone();
    let server = server(move |message| is_layer(message).then(|| answer(200, &[], &sent)));
    let directory = tempfile::tempdir().unwrap();
    let name = format!("{}/a", server.address);
    let error = pull_to(&name, &options(directory.path()), directory.path(), &|_| ()).unwrap_err();
    let RegistryError::Digest { expected, found, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(
        (expected.as_str(), found.as_str()),
        (sha256(LAYER).as_str(), sha256(&other).as_str())
    );
    let kept = fs::read_dir(directory.path().join("blobs/sha256")).unwrap();
    let kept: Vec<_> = kept
        .map(|of| of.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        !kept
            .iter()
            .any(|name| sha256(LAYER).contains(name.trim_end_matches(".part"))),
        "{kept:?}"
    );
}

#[test]
fn a_manifest_is_what_its_digest_says() {
    let text = Image::of(&[LAYER]).manifest.to_string();
    let wanted = sha256(b"another manifest");
    let path = format!("/v2/a/manifests/{wanted}");
    let server = server(move |message| (message.path == path).then(|| answer(200, &[], text.as_bytes())));
    let directory = tempfile::tempdir().unwrap();
    let name = format!("{}/a@{wanted}", server.address);
    let error = pull_to(&name, &options(directory.path()), directory.path(), &|_| ()).unwrap_err();
    assert!(
        matches!(&error, RegistryError::Digest { expected, .. } if *expected == wanted),
        "{error}"
    );
}

#[test]
fn a_broken_connection_is_continued_where_it_broke() {
    let attempts = AtomicUsize::new(0);
    let server = server(move |message| {
        if !is_layer(message) || attempts.fetch_add(1, Ordering::Relaxed) > 0 {
            return is_layer(message).then(|| {
                assert_eq!(message.headers["range"], "bytes=7-");
                answer(206, &[], LAYER.get(7..).unwrap())
            });
        }
        let whole = LAYER.len().to_string();
        Some(answer(
            200,
            &[("Content-Length", &whole)],
            LAYER.get(..7).unwrap(),
        ))
    });
    let directory = tempfile::tempdir().unwrap();
    let told = Mutex::new(Vec::new());
    let name = format!("{}/a", server.address);
    let tell = |progress| told.lock().unwrap().push(progress);
    pull_to(&name, &options(directory.path()), directory.path(), &tell).unwrap();
    assert_eq!(fs::read(blob(directory.path(), LAYER)).unwrap(), LAYER);
    let last = *told.lock().unwrap().last().unwrap();
    assert_eq!(last.done, last.bytes);
}

#[test]
fn a_server_that_sends_all_of_it_again_is_understood() {
    let attempts = AtomicUsize::new(0);
    let server = server(move |message| {
        let is_first = is_layer(message) && attempts.fetch_add(1, Ordering::Relaxed) == 0;
        let whole = LAYER.len().to_string();
        is_first.then(|| answer(200, &[("Content-Length", &whole)], LAYER.get(..7).unwrap()))
    });
    let (into, _) = server.pull().unwrap();
    assert_eq!(fs::read(blob(into.path(), LAYER)).unwrap(), LAYER);
}

#[test]
fn a_layer_that_never_arrives_whole_is_kept_for_the_next_attempt() {
    let server_that_breaks = server(|message| {
        is_layer(message).then(|| {
            let from: usize = message.headers.get("range").map_or(0, |range| {
                range
                    .trim_start_matches("bytes=")
                    .trim_end_matches('-')
                    .parse()
                    .unwrap()
            });
            let left = (LAYER.len() - from).to_string();
            answer(
                if from > 0 { 206 } else { 200 },
                &[("Content-Length", &left)],
                LAYER.get(from..from + 1).unwrap(),
            )
        })
    });
    let directory = tempfile::tempdir().unwrap();
    let name = format!("{}/a", server_that_breaks.address);
    let error = pull_to(&name, &options(directory.path()), directory.path(), &|_| ()).unwrap_err();
    let RegistryError::Truncated { got, bytes, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((got, bytes), (5, LAYER.len() as u64));
    // The next attempt asks for the rest.
    let whole = server(|message| {
        is_layer(message).then(|| {
            assert_eq!(message.headers["range"], "bytes=5-");
            answer(206, &[], LAYER.get(5..).unwrap())
        })
    });
    let name = format!("{}/a", whole.address);
    pull_to(&name, &options(directory.path()), directory.path(), &|_| ()).unwrap();
    assert_eq!(whole.asked(&sha256(LAYER)).len(), 1);
    // And the one after that for nothing.
    pull_to(&name, &options(directory.path()), directory.path(), &|_| ()).unwrap();
    assert_eq!(whole.asked(&sha256(LAYER)).len(), 1);
}

#[test]
fn sizes_have_limits() {
    let mut image = Image::of(&[LAYER]);
    image.manifest["layers"][0]["size"] = json!(1_u64 << 50);
    let error = Server::with(image, &[LAYER], |_| None).pull().unwrap_err();
    assert!(error.to_string().contains("17179869184 may be"), "{error}");

    // More than the manifest says: by the server's own word, and without one.
    let declared =
        server(|message| is_layer(message).then(|| answer(200, &[("Content-Length", "1000000")], LAYER)));
    let chunked = server(|message| {
        is_layer(message).then(|| {
            let mut bytes = b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            for _ in 0..100 {
                bytes.extend(b"10\r\n0123456789abcdef\r\n");
            }
            bytes
        })
    });
    for server in [declared, chunked] {
        let error = server.pull().unwrap_err();
        assert!(
            matches!(error, RegistryError::TooLarge { limit, .. } if limit == LAYER.len() as u64),
            "{error}"
        );
    }

    let large = server(|message| {
        let is_it = message.path.contains("manifests");
        is_it.then(|| answer(200, &[], &vec![b' '; (4 << 20) + 1]))
    });
    let huge = server(|message| {
        let is_it = message.path.contains("manifests");
        is_it.then(|| answer(200, &[("Content-Length", "1099511627776")], b"{"))
    });
    for server in [large, huge] {
        let error = server.pull().unwrap_err();
        assert!(
            matches!(error, RegistryError::TooLarge { limit: 4_194_304, .. }),
            "{error}"
        );
    }
}

#[test]
fn indexes_in_each_other_have_an_end() {
    let index = json!({
        "schemaVersion": 2, "mediaType": support::INDEX,
        "manifests": [{ "mediaType": support::INDEX, "digest": sha256(b"x"), "size": 1 }],
    })
    .to_string();
    let server = Server::start(move |_| answer(200, &[], index.as_bytes()));
    // The second one has not the digest that the first one names.
    assert!(matches!(server.pull().unwrap_err(), RegistryError::Digest { .. }));
}

#[test]
fn a_redirect_takes_no_credentials_along_and_has_an_end() {
    let elsewhere = Server::start(|_| answer(200, &[], LAYER));
    let target = format!("http://{}/layer?signature=1", elsewhere.address);
    let redirecting = server(move |message| {
        if !message.headers.contains_key("authorization") {
            return Some(answer(401, &[("WWW-Authenticate", "Basic realm=\"x\"")], b"{}"));
        }
        is_layer(message).then(|| answer(307, &[("Location", &target)], b""))
    });
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path());
    let login = json!({ "auths": { &redirecting.address: { "auth": "dGVzdGVyOnNlY3JldA==" } } });
    fs::write(&options.docker_config, login.to_string()).unwrap();
    let name = format!("{}/a", redirecting.address);
    pull_to(&name, &options, directory.path(), &|_| ()).unwrap();
    assert_eq!(
        redirecting.asked(&sha256(LAYER))[0]["authorization"],
        "Basic dGVzdGVyOnNlY3JldA=="
    );
    let asked = elsewhere.asked("/layer");
    assert_eq!(asked.len(), 1);
    assert!(!asked[0].contains_key("authorization"), "{asked:?}");

    let circle = Server::start(|message| answer(302, &[("Location", &message.path.clone())], b""));
    let error = circle.pull().unwrap_err().to_string();
    assert!(error.contains("more than 5 times"), "{error}");
    let nowhere = Server::start(|_| answer(302, &[], b""));
    assert!(nowhere.pull().unwrap_err().to_string().contains("to nowhere"));
    for target in ["file:///etc/passwd", "ftp://127.0.0.1/x"] {
        let server = Server::start(move |_| answer(302, &[("Location", target)], b""));
        let error = server.pull().unwrap_err().to_string();
        assert!(error.contains("without TLS"), "{error}");
    }
}

#[test]
fn refusals_say_what_to_do() {
    let refuses = |status: u16, headers: &'static [(&'static str, &'static str)], body: &'static str| {
        Server::start(move |_| answer(status, headers, body.as_bytes()))
            .pull()
            .unwrap_err()
            .to_string()
    };
    let said = r#"{"errors":[{"code":"DENIED","message":"\u001b[31mnot \u0007 you"}]}"#;
    for (error, words) in [
        (refuses(404, &[], ""), &["has no image 127.0.0.1"][..]),
        (
            refuses(403, &[], said),
            &["docker login", "not   you", "which has none"],
        ),
        (
            refuses(401, &[("WWW-Authenticate", "Basic realm=\"x\"")], ""),
            &["docker login"],
        ),
        (refuses(401, &[], ""), &["not known"]),
        (
            refuses(401, &[("WWW-Authenticate", "Digest realm=\"x\"")], ""),
            &["not known"],
        ),
        (
            refuses(401, &[("WWW-Authenticate", "Bearer realm=\"nowhere\"")], ""),
            &["tokens are at nowhere"],
        ),
        (
            refuses(
                401,
                &[("WWW-Authenticate", "Bearer realm=\"file:///etc/passwd\"")],
                "",
            ),
            &["without TLS"],
        ),
        (refuses(401, &[("WWW-Authenticate", "\"\\")], ""), &["not known"]),
        (refuses(429, &[], said), &["no more requests", "docker login"]),
        (refuses(500, &[], "<html>"), &["500"]),
        (refuses(418, &[], ""), &["418"]),
        (refuses(200, &[], "<html>"), &["no JSON"]),
        (refuses(200, &[], "{}"), &["no manifest"]),
        (refuses(200, &[], r#"{"schemaVersion":1}"#), &["schema 1"]),
    ] {
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(!error.contains(char::is_control), "{error:?}");
    }
    // Nobody listens there.
    let directory = tempfile::tempdir().unwrap();
    let error = support::pull("127.0.0.1:1/a", &options(directory.path()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("127.0.0.1:1 cannot be reached") && error.contains("refused"),
        "{error}"
    );
}
