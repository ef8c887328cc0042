use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{Candidates, Maglev, NewFlow, Parameter, Policy};
use model::mix;

/// All flows of a source address go to one instance (HAProxy's `source`, IPVS's `sh`), for functions with
/// per-client state. The source is that of the packet that opens the flow. Addresses are spread as [`Maglev`]
/// spreads flows, so that few move when instances come and go.
///
/// The hash is public: a client that chooses its address chooses its instance. One address loads one
/// instance, up to what fits there.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SourceHash {
    by_address: Maglev,
}

/// The hash of an address. IPv4 and IPv4-mapped IPv6 addresses hash alike.
#[inline]
fn hash(address: IpAddr) -> u64 {
    let bits = match address {
        IpAddr::V4(v4) => u128::from(v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => u128::from(v6),
    };
    mix(mix((bits >> 64) as u64) ^ bits as u64)
}

impl Policy for SourceHash {
    const NAME: &'static str = "source-hash";
    const RULE: &'static str = "the source's entry of the table";
    const BY_FLOW: bool = true;
    const BY_HASH: bool = true;
    const PARAMETERS: &'static [Parameter] = Maglev::PARAMETERS;

    fn refill(&mut self, candidates: &Candidates) {
        self.by_address.refill(candidates);
    }

    fn settle(&mut self, candidates: &Candidates) {
        self.by_address.settle(candidates);
    }

    #[inline]
    fn choose(&mut self, flow: &NewFlow<'_>, candidates: &Candidates) -> usize {
        let source = flow.key.tuple(flow.direction).src;
        self.by_address.table.index(hash(source), candidates)
    }

    fn shares(&self, candidates: &Candidates) -> Option<Vec<f64>> {
        self.by_address.shares(candidates)
    }

    fn hash(&self, flow: &NewFlow<'_>) -> Option<u64> {
        Some(hash(flow.key.tuple(flow.direction).src))
    }
}
