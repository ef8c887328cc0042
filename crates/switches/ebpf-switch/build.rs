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
    println!("cargo::rerun-if-env-changed=INCO_CLANG");
    // The second one is for the tests of take-overs.
    for (object, options) in [("switch.o", &[][..]), ("older.o", &["-DOLDER_LAYOUT"])] {
        if let Err(reason) = compile(object, options) {
            println!("cargo::error={reason}");
            std::process::exit(1);
        }
    }
}

fn compile(object: &str, options: &[&str]) -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo gave no OUT_DIR")?).join(object);
    let asked = env::var("INCO_CLANG").ok();
    let names: Vec<&str> = asked.as_deref().map_or(NAMES.to_vec(), |one| vec![one]);
    for name in &names {
        let run = Command::new(name)
            // The third version of the instruction set has the atomic operations that Linux knows since 5.12.
            .args([
                "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror",
            ])
            .args(options)
            .args(["-c", "bpf/switch.c", "-o"])
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
    Err(format!(
        "no {} here: it compiles the programs of the driver ebpf; install it (Debian: apt-get install clang-14), or \
         set INCO_CLANG",
        names.first().unwrap_or(&"clang")
    ))
}
