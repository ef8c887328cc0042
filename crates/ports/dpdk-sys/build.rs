//! Generates bindings from the installed DPDK headers and compiles the C side. Does nothing without the
//! feature `link`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=native");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    #[cfg(feature = "link")]
    if let Err(reason) = link::build() {
        // A single line with the remedy; cargo shows it in the summary of the failed build script.
        eprintln!("\n{reason}\n");
        println!("cargo::error={}", reason.replace('\n', " "));
        std::process::exit(1);
    }
}

#[cfg(feature = "link")]
mod link {
    use std::path::PathBuf;
    use std::process::Command;

    /// The libraries with the called functions. EAL loads drivers as plugins.
    const LIBRARIES: [&str; 8] = [
        "rte_acl",
        "rte_fib",
        "rte_lpm",
        "rte_ethdev",
        "rte_mbuf",
        "rte_mempool",
        "rte_ring",
        "rte_eal",
    ];

    const FUNCTIONS: [&str; 18] = [
        "inco_.*",
        "rte_dev_probe",
        "rte_eal_get_runtime_dir",
        "rte_eal_init",
        "rte_eth_dev_get_port_by_name",
        "rte_eth_dev_is_removed",
        "rte_eth_dev_is_valid_port",
        "rte_eth_dev_start",
        "rte_eth_dev_stop",
        "rte_eth_rx_burst",
        "rte_eth_tx_burst",
        "rte_lcore_id",
        "rte_mempool_avail_count",
        "rte_pktmbuf_(alloc|alloc_bulk|free|free_bulk|linearize|pool_create)",
        "rte_strerror",
        "rte_thread_register",
        "rte_thread_unregister",
        "rte_version",
    ];

    pub(crate) fn build() -> Result<(), String> {
        // The `pkg-config` crate drops `-include rte_config.h` and `-march`, without which inline functions
        // differ from those in the libraries, so the flags are taken unchanged.
        let cflags = pkg_config("--cflags")?;
        let search = pkg_config("--libs-only-L")?;
        let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo gave no OUT_DIR")?);
        let wrappers = out.join("wrappers.c");

        let mut builder = bindgen::Builder::default()
            .header("native/shim.h")
            .clang_args(&cflags)
            .clang_arg("-DALLOW_EXPERIMENTAL_API")
            .use_core()
            .layout_tests(false)
            .derive_default(true)
            .no_default("inco_port_(info|config)")
            .generate_comments(false)
            .prepend_enum_name(false)
            .wrap_static_fns(true)
            .wrap_static_fns_path(&wrappers)
            .allowlist_var("INCO_.*")
            .allowlist_type("inco_.*")
            // The mbuf is the crate's own type, with a pinned layout instead of one per release.
            .allowlist_recursively(false)
            .merge_extern_blocks(true)
            .raw_line("use super::{rte_acl_ctx, rte_mbuf, rte_mempool};");
        for function in FUNCTIONS {
            builder = builder.allowlist_function(function);
        }
        builder
            .generate()
            .map_err(|error| {
                format!("bindgen cannot read DPDK's headers: {error}; on Debian and Ubuntu: sudo apt-get install libclang-dev")
            })?
            .write_to_file(out.join("bindings.rs"))
            .map_err(|error| format!("cannot write the bindings: {error}"))?;

        let mut compiler = cc::Build::new();
        compiler
            .file("native/acl.c")
            .file("native/routes.c")
            .file("native/shim.c")
            .file(&wrappers)
            .include(".")
            .include("native")
            .define("ALLOW_EXPERIMENTAL_API", None)
            .warnings(false)
            .opt_level(3);
        for flag in &cflags {
            compiler.flag(flag);
        }
        compiler.try_compile("inco_dpdk_shim").map_err(|error| {
            format!(
                "cannot compile the C side: {error}; on Debian and Ubuntu: sudo apt-get install gcc libc6-dev"
            )
        })?;

        for folder in search.iter().filter_map(|flag| flag.strip_prefix("-L")) {
            println!("cargo::rustc-link-search=native={folder}");
        }
        for library in LIBRARIES {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
        Ok(())
    }

    fn pkg_config(what: &str) -> Result<Vec<String>, String> {
        let program = std::env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
        let missing = "DPDK is needed for the feature `dpdk` and was not found by pkg-config; on Debian and Ubuntu: \
             sudo apt-get install libdpdk-dev pkg-config libclang-dev (or build without the feature `dpdk`)";
        let output = Command::new(program)
            .args([what, "libdpdk"])
            .output()
            .map_err(|error| format!("{missing}: {error}"))?;
        if !output.status.success() {
            return Err(missing.to_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.split_whitespace().map(str::to_owned).collect())
    }
}
