//! Gets the images of a configuration that are not on this machine from their registries.

use anyhow::Context as _;
use configuration::Configuration;
use engine::ImageRef;
use images::RegistryOptions;

use crate::machine::images_to_pull;

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
    for service in &configuration.services {
        let engines = configuration.engines_of(service);
        let mut missing = engines
            .iter()
            .flat_map(|engine| images_to_pull(engine, [service]));
        let Some((_, image)) = missing.next() else {
            continue;
        };
        let options = RegistryOptions {
            plain_http: configuration.engine.plain_http.clone(),
            ..RegistryOptions::default()
        };
        let got = images::pull(&ImageRef::from(image), &options, say);
        let got = got.with_context(|| format!("service.{}.image: cannot pull {image:?}", service.name))?;
        say(&format!("{}: in the store", got.image.name));
        pulled += 1;
    }
    Ok(pulled)
}
