//! Gets images: pulled from a registry, built from a built-in function, or made of a program of this machine. Loads
//! them into an engine.
#![forbid(unsafe_code)]

mod host;
mod pull;

pub use host::import_program;
pub use pull::{Pulled, may_be_pulled, pull, registry_of};
pub use registry::Options as RegistryOptions;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use engine::image::{Image, ImageFile, Store};
use engine::{DockerConfig, ImageRef, LeftOut};

use clap::ValueEnum;
use display::output::WrongUsage;

/// Whether `inco image build` knows the name: that of a function, or [`ACTORS`].
pub fn is_built_in(name: &str) -> bool {
    name == ACTORS || function_names().any(|function| function == name)
}

/// The names of the functions built into `inco-nf`.
fn function_names() -> impl Iterator<Item = &'static str> + Clone {
    functions::LIBRARY.iter().map(|entry| entry.about().name)
}

/// The word for the program of a service of actors, among the names of functions.
pub const ACTORS: &str = "actors";

/// The program name of DPDK's testpmd in Debian and Ubuntu.
pub const TESTPMD: &str = "dpdk-testpmd";
/// The name of its image.
const TESTPMD_IMAGE: &str = "testpmd";

/// The container engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// Embedded: containers without a daemon.
    #[default]
    Oci,
    /// Docker or Podman.
    Docker,
}

/// The image store.
pub fn store() -> Store {
    Store::at(Store::default_dir())
}

/// Builds the image of a built-in function, or of [`ACTORS`]: FROM scratch, with only its static program.
pub fn build_function(function: &str, name: &ImageRef) -> anyhow::Result<Image> {
    if !is_built_in(function) {
        let known = || function_names().chain([ACTORS]);
        let write = match configuration::nearest(function, known()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("known functions: {}", known().collect::<Vec<_>>().join(", ")),
        };
        return Err(WrongUsage(format!("unknown built-in function {function:?}; {write}")).into());
    }
    let (program, entrypoint) = if function == ACTORS {
        (find_program("inco-actors")?, vec!["/inco-actors".to_owned()])
    } else {
        (find_inco_nf()?, vec!["/inco-nf".to_owned(), function.to_owned()])
    };
    let path = entrypoint.first().map_or("", String::as_str);
    let files = [ImageFile::program(&program, path)];
    store()
        .build_scratch(name, &files, &entrypoint, &[])
        .map_err(|error| in_store(error.into()))
}

/// Adds advice if the store is not writable.
pub fn in_store(error: anyhow::Error) -> anyhow::Error {
    let directory = Store::default_dir();
    error.context(format!(
        "cannot make an image in {} (run this with sudo, or set INCO_STATE_DIR to a directory of yours)",
        directory.display()
    ))
}

/// Finds the static `inco-nf`: `$INCO_NF`, or next to this program.
pub fn find_inco_nf() -> anyhow::Result<PathBuf> {
    find_program("inco-nf")
}

/// Finds a static program: for `inco-nf` at `$INCO_NF`, for others beside that; else as [`find_inco_nf`].
fn find_program(program: &str) -> anyhow::Result<PathBuf> {
    if let Some(given) = std::env::var_os("INCO_NF").filter(|given| !given.is_empty()) {
        let given = PathBuf::from(given);
        let given = match program {
            "inco-nf" => given,
            other => given.with_file_name(other),
        };
        return match is_static(&given) {
            Ok(true) => Ok(given),
            Ok(false) => anyhow::bail!(
                "INCO_NF: {} is not static; build a static one with `make build`",
                given.display()
            ),
            Err(error) => Err(error).with_context(|| format!("INCO_NF: {} cannot be read", given.display())),
        };
    }
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let candidate = beside(&own, program);
    match is_static(&candidate) {
        Ok(true) => Ok(candidate),
        found => anyhow::bail!(
            "no static {program} at {}{}: run `make build`, or set INCO_NF to the path of inco-nf, beside which others \
             are looked for",
            candidate.display(),
            if found.is_ok() { " (it is not static)" } else { "" }
        ),
    }
}

/// The path of `program` in the folder of `own`, a program too. Cargo has programs of tests in the folder `deps` there.
fn beside(own: &Path, program: &str) -> PathBuf {
    let directory = own.parent().unwrap_or(Path::new("."));
    match directory.parent() {
        Some(parent) if directory.ends_with("deps") => parent.join(program),
        _ => directory.join(program),
    }
}

/// Whether an ELF program runs without a dynamic loader: it has no PT_INTERP program header.
fn is_static(program: &Path) -> std::io::Result<bool> {
    const PT_INTERP: u32 = 3;
    let bytes = std::fs::read(program)?;
    let wrong = || {
        std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            "this is not a 64-bit little-endian ELF program",
        )
    };
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return Err(wrong());
    }
    let number = |at: usize, size: usize| -> Option<usize> {
        let bytes = bytes.get(at..at.checked_add(size)?)?;
        let number = bytes
            .iter()
            .rev()
            .fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        usize::try_from(number).ok()
    };
    let header = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    let (Some(start), Some(size), Some(count)) = header else {
        return Err(wrong());
    };
    for segment in 0..count {
        let at = segment
            .checked_mul(size)
            .and_then(|offset| offset.checked_add(start))
            .ok_or_else(wrong)?;
        let kind = number(at, 4).ok_or_else(wrong)?;
        if kind == PT_INTERP as usize {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Remarks about parts of the source that an image omits.
pub fn remarks(of: &LeftOut) -> Vec<String> {
    let mut remarks = Vec::new();
    if of.special_files > 0 {
        remarks.push(format!(
            "skipped: {} device files, pipes or sockets (a container gets its own /dev)",
            of.special_files
        ));
    }
    if of.privileged_bits > 0 {
        remarks.push(format!(
            "removed: {} set-user-id and set-group-id bits",
            of.privileged_bits
        ));
    }
    remarks
}

/// Loads an image into Docker if that is the engine.
pub fn deliver(engine: EngineName, host: &str, image: &Image) -> anyhow::Result<()> {
    if engine == EngineName::Docker {
        let name = ImageRef::from(image.name.as_str());
        engine::import_into_docker(&DockerConfig::at(host.to_owned()), &store(), &name)
            .with_context(|| format!("cannot give {} to Docker at {host}", image.name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_loader_is_not_static() {
        // The test program itself is dynamically linked.
        let own = std::env::current_exe().unwrap();
        assert!(!is_static(&own).unwrap());
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("text");
        std::fs::write(&text, "#!/bin/sh").unwrap();
        assert!(is_static(&text).is_err());
        // An ELF header without program headers: no loader is requested.
        let mut elf = vec![0; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        std::fs::write(&text, &elf).unwrap();
        assert!(is_static(&text).unwrap());
        // Program headers beyond the end of the file.
        elf[0x20] = 64;
        elf[0x36] = 56;
        elf[0x38] = 2;
        std::fs::write(&text, &elf).unwrap();
        assert!(is_static(&text).is_err());
    }

    #[test]
    fn the_program_is_looked_for_beside_this_one() {
        let expected = Path::new("/code/target/release/inco-nf");
        assert_eq!(
            beside(Path::new("/code/target/release/inco"), "inco-nf"),
            expected
        );
        assert_eq!(
            beside(Path::new("/code/target/release/deps/images-1"), "inco-nf"),
            expected
        );
    }
}
