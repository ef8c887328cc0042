//! Tests with DPDK's software devices, in one process, without root, hugepages or a network card. All tests
//! share one EAL.
//!
//! Without the feature `link` the tests are skipped with a message; with `INCO_REQUIRE` naming `dpdk` that is
//! a failure.
// UNSAFETY: one test gives its thread its own network namespace.
#![cfg_attr(feature = "link", expect(unsafe_code))]
#![cfg_attr(
    feature = "link",
    expect(clippy::unwrap_used, reason = "what the tests share fails like a test")
)]

#[cfg(not(feature = "link"))]
#[test]
fn dpdk_is_linked() {
    let missing = "this build is without DPDK (cargo test --features dpdk/link)";
    real_parts::available("dpdk", Some(missing.to_owned()));
}

#[cfg(feature = "link")]
mod linked;
