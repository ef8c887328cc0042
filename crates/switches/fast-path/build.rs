//! Compiles the programs for the kernel with clang. Nothing of clang is needed when inco runs.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Names of the compiler, the newest first; Debian's package `clang-14` has no plain name.
const NAMES: [&str; 8] = [
    "clang", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14",
];

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-changed=../ebpf-switch/bpf/kernel.h");
    println!("cargo::rerun-if-env-changed=INCO_CLANG");
    if let Err(reason) = compile() {
        println!("cargo::error={reason}");
        std::process::exit(1);
    }
}

fn compile() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo gave no OUT_DIR")?).join("path.o");
    let asked = env::var("INCO_CLANG").ok();
    let names: Vec<&str> = asked.as_deref().map_or(NAMES.to_vec(), |one| vec![one]);
    for name in &names {
        let run = Command::new(name)
            .args([
                "-target",
                "bpf",
                "-mcpu=v3",
                "-O2",
                "-g",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused",
            ])
            .args(["-I", "../ebpf-switch/bpf", "-c", "bpf/path.c", "-o"])
            .arg(&out)
            .output();
        match run {
            Ok(run) if run.status.success() => return Ok(()),
            Ok(run) => {
                let said = String::from_utf8_lossy(&run.stderr).replace('\n', " | ");
                return Err(format!(
                    "{name} cannot compile the programs for the kernel: {said}"
                ));
            }
            Err(_) => {}
        }
    }
    Err("no clang here: it compiles the programs of the fast path; install it (Debian: apt-get install clang-14), or set \
         INCO_CLANG"
        .to_owned())
}
