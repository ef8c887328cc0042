//! Files: configurations, images and what registries say of them, event logs.

use std::fs;
use std::path::Path;

use configuration::{Configuration, SwitchDriver, parse};
use engine::ImageRef;
use engine::image::Store;
use model::{Capabilities, Event, KeyChange};
use registry::manifest::{self, Document};
use registry::{Login, Reference};

use crate::scratch;

fn capabilities(_: SwitchDriver) -> Capabilities {
    soft_switch::CAPABILITIES
}

fn parsed(bytes: &[u8]) -> Option<Configuration> {
    let text = String::from_utf8_lossy(bytes);
    match parse(&text, "inco.toml", capabilities) {
        Ok(configuration) => Some(configuration),
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a problem");
            let lines = text.lines().count().max(1) + 1;
            for problem in &problems {
                assert!(problem.line <= lines, "{problem:?} of {lines} lines");
                assert!(!problem.to_string().is_empty());
            }
            None
        }
    }
}

/// A configuration, and after a byte 0 a second one as its reload: a problem has a line of the file, and a
/// configuration does not differ from itself.
pub(crate) fn configuration(bytes: &[u8]) {
    let mut texts = bytes.splitn(2, |byte| *byte == 0);
    let first = texts.next().and_then(parsed);
    let second = texts.next().and_then(parsed);
    if let Some(first) = &first {
        assert!(first.changes_to(first).is_empty());
        for service in &first.services {
            assert!(!first.settings_of(service).is_empty());
        }
        if let Some(second) = &second {
            // The keys of a service that comes are listed, and not those of one that goes.
            let of_both = |key: &str| {
                let name = key
                    .strip_prefix("service.")
                    .and_then(|rest| rest.split('.').next());
                name.is_none_or(|name| first.service(name).is_some() && second.service(name).is_some())
            };
            let keys = |changes: Vec<KeyChange>| -> Vec<String> {
                changes
                    .into_iter()
                    .map(|change| change.key)
                    .filter(|key| of_both(key))
                    .collect()
            };
            assert_eq!(keys(first.changes_to(second)), keys(second.changes_to(first)));
        }
    }
}

fn entries(directory: &Path) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}

/// An archive: its import ends with an image or an error, and changes nothing beside the store.
pub(crate) fn images(bytes: &[u8]) {
    let place = scratch("images");
    let (source, store) = (place.join("source.tar"), place.join("store"));
    fs::create_dir_all(place.join("outside")).unwrap();
    fs::write(&source, bytes).unwrap();
    let images = Store::at(&store);
    let name = ImageRef::from("fuzzed");
    if images
        .import(&name, &source, &["/program".to_owned()], &[])
        .is_ok()
    {
        assert_eq!(images.list().unwrap().len(), 1);
        images.remove(&name).unwrap();
    }
    assert_eq!(entries(&place.join("outside")), 0);
    assert_eq!(entries(&place), if store.exists() { 3 } else { 2 });
    assert_eq!(fs::read(&source).unwrap(), bytes);
    fs::remove_dir_all(&place).unwrap();
}

/// The name of an image: one that is read has parts that fit into a request, and is written as one that is read to
/// the same parts. After a byte 0 a `config.json` of Docker, in which its login is looked for.
pub(crate) fn references(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let text = parts.next().unwrap_or_default();
    let registry = match Reference::parse(&String::from_utf8_lossy(text)) {
        Ok(read) => {
            let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
            assert!(is_plain(read.host()) && is_plain(read.repository()) && is_plain(read.wanted()));
            assert!(
                !read
                    .repository()
                    .split('/')
                    .any(|part| part.is_empty() || part.starts_with('.'))
            );
            assert!(!read.host().contains(['/', '@', '?', '#']) && !read.wanted().contains(['/', '?', '#']));
            assert_eq!(Reference::parse(&read.to_string()).as_ref(), Ok(&read));
            // One name in the store has one image.
            let name = ImageRef(read.to_string()).with_tag();
            assert_eq!(ImageRef(name.clone()).with_tag(), name);
            read.registry().to_owned()
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            "docker.io".to_owned()
        }
    };
    let helper = |name: &str, _: &str| Err(format!("asked {name}"));
    if let Some(file) = parts.next()
        && let Ok(Some(login)) = registry::find_in(file, &registry, helper)
    {
        // Passwords are in no log.
        let user = login.user.clone();
        let without = Login {
            user,
            password: String::new(),
        };
        assert_eq!(format!("{login:?}"), format!("{without:?}"));
    }
}

/// An answer of a registry to a request for a manifest: what is to be downloaded is within the limits, and each name
/// is one of a file.
pub(crate) fn manifests(bytes: &[u8]) {
    match manifest::read(bytes, None) {
        Ok(Document::Index(index)) => match manifest::choose(&index) {
            Ok(chosen) => assert!(index.manifests().contains(chosen)),
            Err(reason) => assert!(!reason.is_empty()),
        },
        Ok(Document::Image(image)) => match manifest::blobs(&image) {
            Ok(blobs) => {
                assert!(blobs.len() <= manifest::MAX_LAYERS + 1);
                assert!(blobs.iter().map(|blob| blob.bytes).sum::<u64>() <= manifest::MAX_IMAGE_BYTES);
                let is_hexadecimal =
                    |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                assert!(blobs.iter().all(|blob| is_hexadecimal(&blob.digest)), "{blobs:?}");
            }
            Err(reason) => assert!(!reason.is_empty()),
        },
        Err(reason) => assert!(!reason.is_empty()),
    }
}

/// Lines of an event log: one that is an event is written as the same event, and has a sentence.
pub(crate) fn events(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(event) = serde_json::from_slice::<Event>(line) else {
            continue;
        };
        let written = serde_json::to_string(&event).unwrap();
        let again: Event = serde_json::from_str(&written).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), written);
        assert!(!display::event::event_sentence(&event).is_empty());
        assert!(
            !display::event::event_text(&event, event.unix_ms).contains('\n'),
            "{event:?}"
        );
    }
}
