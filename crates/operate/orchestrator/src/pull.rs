//! Gets the images of a configuration that are not on this machine from their registries.

use anyhow::Context as _;
use configuration::{Configuration, Service};
use engine::ImageRef;
use images::RegistryOptions;

use crate::machine::image_to_pull;

/// Pulls the images that are missing; tells how many. `say` gets a line for each step. Blocks for as long as that
/// takes.
///
/// # Errors
/// A registry does not give an image, or it cannot be stored.
pub(crate) fn pull_missing(
    configuration: &Configuration,
    say: &(dyn Fn(&str) + Sync),
) -> anyhow::Result<usize> {
    let mut pulled = 0;
    // Services may share an image: each is looked for when it is its turn.
    for variant in configuration.services.iter().flat_map(Service::variants) {
        let engines = configuration.engines_of_variant(&variant);
        let mut missing = engines
            .iter()
            .filter_map(|engine| image_to_pull(engine, &variant.service));
        let Some(image) = missing.next() else {
            continue;
        };
        let options = RegistryOptions {
            plain_http: configuration.engine.plain_http.clone(),
            ..RegistryOptions::default()
        };
        let got = images::pull(&ImageRef::from(image), &options, say);
        let got = got.with_context(|| format!("{}: cannot pull {image:?}", variant.key("image")))?;
        say(&format!("{}: in the store", got.image.name));
        pulled += 1;
    }
    Ok(pulled)
}
