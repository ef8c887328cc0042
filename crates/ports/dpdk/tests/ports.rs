//! Real devices, in one process, without root, hugepages or a network card: DPDK's own software devices. One EAL for
//! all tests of this file.
//!
//! Without the feature `link` this says so and is empty; with `INCO_REQUIRE` naming `dpdk` that is a failure.
// UNSAFETY: one test gives its thread a network namespace of its own.
#![cfg_attr(feature = "link", expect(unsafe_code))]
#![cfg_attr(
    feature = "link",
    expect(clippy::unwrap_used, reason = "what the tests share fails like a test")
)]

#[cfg(not(feature = "link"))]
#[test]
fn dpdk_is_linked() {
    let required = std::env::var("INCO_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|part| part == "dpdk"),
        "this build is without DPDK"
    );
    eprintln!("skipped: this build is without DPDK (cargo test --features dpdk/link)");
}

#[cfg(feature = "link")]
mod linked;
