//! `nat` beside `masquerade` of nftables in the kernel.

use anyhow::Result;

use super::frames::{SIZES, flows};
use super::nftables::{self, Kernel};
use super::service::Served;
use super::session::{Case, Peer, Session};
use super::through::{Through, chain};

/// What was measured.
pub(super) const NOTE: &str = "packets of established flows from the inside, 128 flows a host, with the copy into the burst. \
    The kernel forwards the same packets and masquerades them; its sender is subtracted";

/// Flows and packet sizes that are compared.
const COMPARED: [(usize, usize); 4] = [
    (1_000, SIZES[0]),
    (1_000, SIZES[1]),
    (1_000, SIZES[2]),
    (60_000, SIZES[0]),
];
/// Flows for which the kernel has too few ports with one address.
const MANY: usize = 250_000;

const CONFIGURATION: &str = "inside = [\"10.0.0.0/8\"]\nexternal = [\"192.0.2.1:1024-65535\", \"192.0.2.2:1024-65535\", \
     \"192.0.2.3:1024-65535\", \"192.0.2.4:1024-65535\", \"192.0.2.5:1024-65535\"]\nblock_ports = 128\n";
const RULES: &str =
    "table ip nat { chain post { type nat hook postrouting priority 100; oifname \"b1\" masquerade; }; }";

/// Measures it.
pub(super) fn measure(session: &mut Session) -> Result<()> {
    for (count, size) in COMPARED {
        let frames = flows(count, size)?;
        let mut ours = Through::new(Some(chain("nat", CONFIGURATION)?), &frames)?;
        let peer = Peer::of(nftables::NAME, Kernel::new(RULES, &frames));
        session.case(&Case::new("flows", count, size), &mut ours, Some(peer))?;
    }
    let frames = flows(MANY, SIZES[0])?;
    let mut ours = Through::new(Some(chain("nat", CONFIGURATION)?), &frames)?;
    session.case(&Case::new("flows", MANY, SIZES[0]), &mut ours, None)
}

/// As the instance of a service.
pub(super) fn served() -> Result<Served> {
    let (count, size) = COMPARED[0];
    Ok(Served::of(CONFIGURATION, count, flows(count, size)?))
}
