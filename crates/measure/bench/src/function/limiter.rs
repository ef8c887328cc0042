//! `limiter` beside a dynamic set of nftables with `limit rate`.

use anyhow::Result;

use super::frames::{SIZES, sources};
use super::nftables::{self, Kernel};
use super::service::Served;
use super::session::{Case, Peer, Session};
use super::through::{Through, chain};

/// What was measured.
pub(super) const NOTE: &str = "a bucket for each source, none over its rate, with the copy into the burst. The kernel forwards \
    the same packets, with a dynamic set of `limit rate over`; its sender is subtracted";

/// Buckets and packet sizes.
const CASES: [(usize, usize); 5] = [
    (1_000, SIZES[0]),
    (1_000, SIZES[1]),
    (1_000, SIZES[2]),
    (100_000, SIZES[0]),
    (1_000_000, SIZES[0]),
];

const CONFIGURATION: &str = "[[rule]]\nrate = \"100Mpps\"\nburst_packets = 100000000\n";
const RULES: &str = "table ip filter { set m { type ipv4_addr; size 1048576; flags dynamic; }; \
                     chain forward { type filter hook forward priority 0; \
                     add @m { ip saddr limit rate over 1000000/second burst 100000 packets } drop; }; }";

/// Measures it.
pub(super) fn measure(session: &mut Session) -> Result<()> {
    for (count, size) in CASES {
        let frames = sources(count, size)?;
        let mut ours = Through::new(Some(chain("limiter", CONFIGURATION)?), &frames)?;
        let peer = Peer::of(nftables::NAME, Kernel::new(RULES, &frames));
        session.case(&Case::new("buckets", count, size), &mut ours, Some(peer))?;
    }
    Ok(())
}

/// As the instance of a service.
pub(super) fn served() -> Result<Served> {
    let (count, size) = CASES[0];
    Ok(Served::of(CONFIGURATION, count, sources(count, size)?))
}
