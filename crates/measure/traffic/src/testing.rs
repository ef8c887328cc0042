use std::path::PathBuf;

/// The folder of public test inputs; `None`, with a message, if it is absent. With `data` in `INCO_REQUIRE`
/// its absence is a failure.
pub(crate) fn data_dir() -> Option<PathBuf> {
    let dir = std::env::var_os("INCO_DATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data"),
        PathBuf::from,
    );
    if dir.join("trex").is_dir() {
        return Some(dir);
    }
    let required =
        std::env::var("INCO_REQUIRE").is_ok_and(|parts| parts.split(',').any(|part| part == "data"));
    assert!(
        !required,
        "the public inputs are required, but {} does not exist",
        dir.display()
    );
    eprintln!("skipped: no public inputs in {}", dir.display());
    None
}
