//! Images that come from a registry when a configuration names them.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::registry_server::{Image, Registry};
use crate::support::{Engine, Place, text};

/// A layer with the function, as a tar archive.
fn layer(place: &Place, note: &str) -> Vec<u8> {
    let root = place.path("layer");
    std::fs::create_dir_all(&root).unwrap();
    let function = std::env::var_os("INCO_NF").unwrap();
    std::fs::copy(Path::new(&function), root.join("inco-nf")).unwrap();
    std::fs::write(root.join("note"), note).unwrap();
    let packed = Command::new("tar")
        .arg("-C")
        .arg(&root)
        .args(["-c", "inco-nf", "note"])
        .output()
        .unwrap();
    assert!(packed.status.success(), "{}", text(&packed.stderr));
    packed.stdout
}

/// The store of the tests outlives them: an image of this name is of this run.
fn repository() -> String {
    format!("lab/forward-{}", std::process::id())
}

fn push(registry: &Registry, place: &Place, tag: &str) {
    let layer = layer(place, tag);
    let image = Image::with(
        &[&layer],
        &json!({ "Entrypoint": ["/inco-nf", "forward"], "StopSignal": "SIGTERM" }),
    );
    registry.push_image(&repository(), tag, "", &[&layer], &image);
}

/// A registry that has one image; nothing where there can be no registry or container.
fn with_an_image() -> Option<(Registry, Place)> {
    if !Engine::Oci.is_here() {
        return None;
    }
    let registry = Registry::start(|_| String::new())?;
    let place = Place::new();
    push(&registry, &place, "1");
    Some((registry, place))
}

fn configuration(image: &str, engine: &str) -> String {
    format!(
        "[[uplink]]\nname = \"wan\"\ndevice = \"memif:wan.sock\"\n[service.forward]\nimage = \"{image}\"\n\
         instances = 1\n{engine}"
    )
}

#[test]
fn images_that_are_missing_are_pulled_before_instances_are_made() {
    let Some((registry, place)) = with_an_image() else {
        return;
    };
    let image = format!("{}/{}", registry.address, repository());
    let file = place.file("inco.toml", &configuration(&format!("{image}:1"), ""));
    let file_name = file.to_str().unwrap();
    // A check asks no registry.
    let checked = place.must(&["check", "-f", file_name]);
    assert!(
        checked.contains("`inco run` pulls it from 127.0.0.1"),
        "{checked}"
    );
    assert!(!place.must(&["image", "list"]).contains(&image));

    let never = configuration(&format!("{image}:1"), "[engine]\npull = \"never\"\n");
    let never = place.file("never.toml", &never);
    let refused = place.output(&["run", "-f", never.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    let advice = format!("`inco image pull {image}:1`");
    assert!(
        text(&refused.stderr).contains(&advice),
        "{}",
        text(&refused.stderr)
    );
    let missing = place.file("missing.toml", &configuration(&format!("{image}:9"), ""));
    let refused = place.output(&["run", "-f", missing.to_str().unwrap()]);
    let said = text(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("has no image") && said.contains(":9"),
        "{said}"
    );

    let inco = place.run_file(&file);
    inco.settled(1, 0);
    assert!(place.must(&["image", "list"]).contains(&format!("{image}:1")));
    let current = place.must(&["image", "pull", &format!("{image}:1")]);
    assert!(current.contains("as in its registry"), "{current}");

    // A reload gets the image of another tag; new instances have it.
    push(&registry, &place, "2");
    place.file("inco.toml", &configuration(&format!("{image}:2"), ""));
    place.must(&["reload"]);
    place.must(&["rollout", "forward", "--wait"]);
    assert!(place.must(&["image", "list"]).contains(&format!("{image}:2")));
    inco.settled(1, 0);
    // One that no registry has changes nothing.
    place.file("inco.toml", &configuration(&format!("{image}:9"), ""));
    let refused = place.output(&["reload"]);
    let said = text(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("has no image"),
        "{said}"
    );
    inco.settled(1, 0);
    inco.stop(&place);
    for tag in ["1", "2"] {
        place.must(&["image", "remove", &format!("{image}:{tag}")]);
    }
}

#[test]
fn several_commands_that_pull_one_image_share_the_download() {
    let Some((registry, place)) = with_an_image() else {
        return;
    };
    let image = format!("{}/{}:1", registry.address, repository());
    let outputs: Vec<_> = std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| place.output(&["image", "pull", &image])))
            .collect();
        pulls.into_iter().map(|pull| pull.join().unwrap()).collect()
    });
    let said: Vec<String> = outputs.iter().map(|output| text(&output.stderr)).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{said:?}");
    let downloads = said.iter().filter(|said| said.contains("downloading")).count();
    assert_eq!(downloads, 1, "{said:?}");
    place.must(&["image", "remove", &image]);
}
