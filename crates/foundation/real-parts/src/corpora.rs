//! Inputs of fuzz targets, which tests replay.

use std::io::Read as _;
use std::path::Path;

/// What a target is replayed with: its seeds, the files in `fuzz/corpora/TARGET`, then what a fuzzer has found, the
/// archive `fuzz/found/TARGET.tar.gz` if there is one. Each with its name.
///
/// # Panics
/// Where there are no seeds, or what is there cannot be read.
pub fn fuzz_inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz");
    let seeds = fuzz.join("corpora").join(target);
    let mut inputs = Vec::new();
    let files = std::fs::read_dir(&seeds).unwrap_or_else(|error| panic!("{target} has no corpus: {error}"));
    for file in files.map_while(Result::ok) {
        let input = std::fs::read(file.path());
        inputs.push((
            file.path().display().to_string(),
            input.unwrap_or_else(|error| panic!("{}: {error}", file.path().display())),
        ));
    }
    inputs.sort();
    let archive = fuzz.join("found").join(format!("{target}.tar.gz"));
    if archive.exists() {
        found(&archive, &mut inputs).unwrap_or_else(|error| panic!("{}: {error}", archive.display()));
    }
    inputs
}

fn found(archive: &Path, inputs: &mut Vec<(String, Vec<u8>)>) -> std::io::Result<()> {
    let file = flate2::read::GzDecoder::new(std::fs::File::open(archive)?);
    for entry in tar::Archive::new(file).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let name = format!("{} in {}", entry.path()?.display(), archive.display());
            let mut input = Vec::new();
            entry.read_to_end(&mut input)?;
            inputs.push((name, input));
        }
    }
    Ok(())
}
