use std::net::IpAddr;

use model::{Tuple, protocol};
use serde::{Deserialize, Serialize};

use crate::{Candidates, NewFlow, Parameter, Policy};

/// The standard key of Microsoft's "Verifying the RSS hash calculation" and Intel's 82599 data sheet
/// §7.1.2.8.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];
/// Entries of a network card's indirection table.
pub const ENTRIES: usize = 128;
/// The longest input: two IPv6 addresses and two ports.
const INPUT_BYTES: usize = 36;

/// Receive-side scaling as network cards do it: the Toeplitz hash of addresses and ports with the standard
/// key selects one of 128 entries, which are assigned to instances in turn. It ignores load and is the
/// baseline for comparison. As on a card, the two directions of a flow have different hashes; the pin is the
/// same.
///
/// TCP and UDP include ports unless `ports` is off; other protocols use addresses only. A full instance's
/// flows go to the next that they fit, unless `spill` is off, as on a card. A fresh instance gets entries by
/// its [ramp](Candidates::ramp). A change in the number of instances reassigns all entries.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rss {
    /// Whether ports are part of the hash.
    ports: bool,
    #[serde(skip)]
    shape: u64,
    /// Candidate indices.
    #[serde(skip)]
    entries: Box<[u16]>,
}

impl Default for Rss {
    fn default() -> Self {
        Rss {
            ports: true,
            shape: 0,
            entries: vec![0; ENTRIES].into_boxed_slice(),
        }
    }
}

/// The hash of each nibble at each input position: a hash is the exclusive or of one lookup per nibble. 4.5
/// KiB.
static HALVES: [[u32; 16]; 2 * INPUT_BYTES] = halves();

const fn halves() -> [[u32; 16]; 2 * INPUT_BYTES] {
    let mut table = [[0; 16]; 2 * INPUT_BYTES];
    let mut half = 0;
    while half < 2 * INPUT_BYTES {
        let mut value = 0;
        while value < 16 {
            let mut bit = 0;
            while bit < 4 {
                if value & (8 >> bit) != 0 {
                    table[half][value] ^= key_window(4 * half + bit);
                }
                bit += 1;
            }
            value += 1;
        }
        half += 1;
    }
    table
}

/// The 32 key bits from that bit on.
const fn key_window(bit: usize) -> u32 {
    let mut window = 0;
    let mut byte = 0;
    while byte < 5 {
        let place = bit / 8 + byte;
        let of_key = if place < KEY.len() { KEY[place] } else { 0 };
        window = window << 8 | of_key as u64;
        byte += 1;
    }
    (window >> (8 - bit % 8)) as u32
}

#[inline]
fn toeplitz(input: &[u8]) -> u32 {
    let (pairs, _) = HALVES.as_chunks::<2>();
    input.iter().zip(pairs).fold(0, |hash, (byte, [high, low])| {
        hash ^ high[usize::from(byte >> 4)] ^ low[usize::from(byte & 15)]
    })
}

/// The Toeplitz hash of a packet with the standard key, over source and destination address, and over the
/// ports if `with_ports`.
#[inline]
pub fn rss_hash(tuple: &Tuple, with_ports: bool) -> u32 {
    let mut input = [0; INPUT_BYTES];
    let mut length = 0;
    let mut put = |bytes: &[u8]| {
        if let Some(place) = input.get_mut(length..length + bytes.len()) {
            place.copy_from_slice(bytes);
            length += bytes.len();
        }
    };
    for address in [tuple.src, tuple.dst] {
        match address {
            IpAddr::V4(v4) => put(&v4.octets()),
            IpAddr::V6(v6) => put(&v6.octets()),
        }
    }
    if with_ports {
        put(&tuple.src_port.to_be_bytes());
        put(&tuple.dst_port.to_be_bytes());
    }
    toeplitz(input.get(..length).unwrap_or_default())
}

impl Rss {
    #[inline]
    fn hash_of(&self, flow: &NewFlow<'_>) -> u32 {
        let tuple = flow.key.tuple(flow.direction);
        let has_ports = matches!(tuple.protocol, protocol::TCP | protocol::UDP);
        rss_hash(&tuple, has_ports && self.ports)
    }
}

impl Policy for Rss {
    const NAME: &'static str = "rss";
    const RULE: &'static str = "the Toeplitz hash's entry of the table";
    const BY_FLOW: bool = true;
    const BY_HASH: bool = true;
    const HASH_BITS: usize = 32;
    const PARAMETERS: &'static [Parameter] = &[Parameter {
        name: "ports",
        kind: "true or false",
        default: "true",
        meaning: "whether the hash includes TCP and UDP ports or only addresses",
    }];

    fn refill(&mut self, candidates: &Candidates) {
        let count = candidates.len();
        if candidates.shape() == self.shape || count == 0 {
            return;
        }
        self.shape = candidates.shape();
        let of_each = ENTRIES.div_ceil(count) as f32;
        for (entry, place) in self.entries.iter_mut().enumerate() {
            let own = entry % count;
            let round = entry / count;
            // A fresh instance keeps the share of its entries given by its ramp; the rest are reassigned.
            let is_taken = (round as f32) < candidates.ramp(own) * of_each;
            let others = || (0..count).map(|n| (own + 1 + round + n) % count);
            let heir = || others().find(|heir| candidates.ramp(*heir) >= 1.0);
            *place = if is_taken { own } else { heir().unwrap_or(own) } as u16;
        }
    }

    #[inline]
    fn choose(&mut self, flow: &NewFlow<'_>, _candidates: &Candidates) -> usize {
        let entry = self.hash_of(flow) as usize % ENTRIES;
        self.entries.get(entry).copied().map_or(0, usize::from)
    }

    fn shares(&self, candidates: &Candidates) -> Option<Vec<f64>> {
        let mut shares = vec![0.0; candidates.len()];
        for index in &self.entries {
            if let Some(share) = shares.get_mut(usize::from(*index)) {
                *share += 1.0 / ENTRIES as f64;
            }
        }
        Some(shares)
    }

    fn hash(&self, flow: &NewFlow<'_>) -> Option<u64> {
        Some(u64::from(self.hash_of(flow)))
    }
}
