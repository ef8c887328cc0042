//! Files: configurations, images, event logs.

use std::fs;
use std::path::Path;

use configuration::{Configuration, SwitchDriver, parse};
use engine::ImageRef;
use engine::image::Store;
use model::{Capabilities, Event};

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
            let there = first.changes_to(second);
            assert_eq!(there.len(), second.changes_to(first).len());
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
        assert!(!display::event::event_text(&event).contains('\n'), "{event:?}");
    }
}
