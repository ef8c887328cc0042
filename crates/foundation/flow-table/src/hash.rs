use std::net::IpAddr;

use model::{FlowKey, key_bits};

use crate::entry::KeyWords;

/// The keyed hash of flows, and of the address pairs that determine the owner.
///
/// Each step is a folded multiply (the two halves of a 64 × 64 → 128-bit product combined by exclusive or)
/// over words mixed with the key, as in wyhash: about 2 ns for IPv4. The key comes from the control plane's
/// random source and never leaves the process, so that no sender can target a bucket or a worker. For a given
/// key, a flow's hash is the same on every processor, because a table can outlive the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHasher {
    key: [u64; 4],
    owner_key: [u64; 4],
    ownership: Ownership,
}

/// How the owner of a flow is determined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// By a keyed hash of the two addresses and the VLAN: no sender can target a worker.
    #[default]
    Keyed,
    /// As a network card's RSS with [`RSS_KEY`] distributes packets to receive queues: every packet then
    /// arrives at the worker that owns its flow. Senders who choose their addresses can target a worker.
    Card,
}

/// The Toeplitz key for RSS, repeated for as many bytes as the card's key has. A key that repeats every 16
/// bits gives both directions of a flow one hash, a function of the exclusive or of the 16-bit words of the
/// addresses. (Woo and Park, "Scalable TCP session monitoring with symmetric receive-side scaling", 2012.)
pub const RSS_KEY: [u8; 2] = [0x6d, 0x5a];

/// Entries of the RSS redirection table: the last bits of the hash select one. 64 is the smallest table of
/// any supported card (Intel's virtual functions).
pub const RSS_BUCKETS: usize = 64;

/// The worker or queue, of `parts`, that an entry of the redirection table names.
#[inline(always)]
pub const fn rss_queue(share: usize, parts: usize) -> usize {
    share % RSS_BUCKETS * parts / RSS_BUCKETS
}

/// The last bits of the Toeplitz hash with [`RSS_KEY`], for each value of the upper and of the lower byte of
/// the exclusive or of all 16-bit words. The hash of a word is the exclusive or of its bytes' hashes.
const SHARES: [[u8; 256]; 2] = {
    let key = u16::from_be_bytes(RSS_KEY);
    let mut shares = [[0; 256]; 2];
    let mut byte = 0;
    while byte < 2 {
        let mut value = 0;
        while value < 256 {
            let mut bit = 0;
            while bit < 8 {
                if value & 0x80 >> bit != 0 {
                    // The last bits of the 32-bit key window that starts at this bit.
                    let last = key.rotate_left((byte as u32 * 8 + bit as u32 + 32) % 16);
                    shares[byte][value] ^= last as u8 & (RSS_BUCKETS as u8 - 1);
                }
                bit += 1;
            }
            value += 1;
        }
        byte += 1;
    }
    shares
};

/// The redirection-table entry of an address pair, from the exclusive or of its words of four times 16 bits.
#[inline(always)]
fn card_share(words: u64) -> usize {
    let words = words ^ words >> 32;
    let [upper, lower, ..] = (words ^ words >> 16).to_le_bytes();
    let [uppers, lowers] = &SHARES;
    usize::from(uppers[usize::from(upper)] ^ lowers[usize::from(lower)])
}

/// Arbitrary odd words with as many ones as zeroes. They keep a weak key (all zeroes in a test) from
/// cancelling out.
const SALT: [u64; 4] = [
    0x9e37_79b9_7f4a_7c15,
    0xd1b5_4a32_d192_ed03,
    0x8cb9_2ba7_2f3d_8dd7,
    0xa076_1d64_78bd_642f,
];

#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

impl FlowHasher {
    /// A hasher with this secret key, and keyed ownership.
    pub const fn new(key: [u64; 4]) -> FlowHasher {
        let mixed = [
            key[0] ^ SALT[0],
            key[1] ^ SALT[1],
            key[2] ^ SALT[2],
            key[3] ^ SALT[3],
        ];
        // Separate keys for the owner: otherwise a worker's flows would crowd into a part of its table.
        let owner_key = [
            fold(mixed[0], SALT[1]) ^ mixed[2],
            fold(mixed[1], SALT[2]) ^ mixed[3],
            fold(mixed[2], SALT[3]) ^ mixed[0],
            fold(mixed[3], SALT[0]) ^ mixed[1],
        ];
        FlowHasher {
            key,
            owner_key,
            ownership: Ownership::Keyed,
        }
    }

    /// The same with this kind of ownership.
    pub const fn owning(self, ownership: Ownership) -> FlowHasher {
        FlowHasher { ownership, ..self }
    }

    /// How it determines owners.
    pub const fn ownership(&self) -> Ownership {
        self.ownership
    }

    /// The key it was made with.
    pub const fn key(&self) -> [u64; 4] {
        self.key
    }

    /// Secrets for the flow cache.
    pub(crate) const fn flow_cache_key(&self) -> [u32; 4] {
        let first = fold(self.key[0] ^ SALT[3], self.key[1] ^ SALT[2]);
        let second = fold(self.key[2] ^ SALT[1], self.key[3] ^ SALT[0]);
        [
            first as u32,
            (first >> 32) as u32,
            second as u32,
            (second >> 32) as u32,
        ]
    }

    /// The hash of a flow, the same for both directions.
    #[inline(always)]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        match key {
            FlowKey::V4(key) => self.hash_words(KeyWords::v4(key)),
            FlowKey::V6(key) => self.hash_words(KeyWords::v6(key)),
        }
    }

    #[inline(always)]
    pub(crate) fn hash_words<const N: usize>(&self, words: KeyWords<N>) -> u64 {
        let [k0, k1, k2, k3] = self.key;
        let mut state = fold(words.addresses[0] ^ k0 ^ SALT[0], words.ports ^ k1 ^ SALT[1]);
        if N == 4 {
            // Not a loop over pairs, because N is 1 or 4.
            let rest = [
                words.addresses[1 % N],
                words.addresses[2 % N],
                words.addresses[3 % N],
            ];
            state =
                fold(state ^ rest[0] ^ k2, rest[1] ^ k3 ^ SALT[2]) ^ fold(rest[2] ^ k1, state ^ k0 ^ SALT[3]);
        }
        fold(state ^ k2 ^ SALT[2], k3 ^ SALT[3])
    }

    /// The worker that owns this flow, 0 to `workers` - 1. It depends on the two addresses and, if keyed, the
    /// VLAN, so that fragments and quoted headers without ports reach the same worker; not on the bits
    /// [above it](key_bits). 0 if there are no workers.
    #[inline]
    pub fn owner(&self, key: &FlowKey, workers: usize) -> usize {
        match key {
            FlowKey::V4(key) => {
                let (a, b) = (u32::from_le_bytes(key.a), u32::from_le_bytes(key.b));
                self.owner_v4(a, b, key.vlan, workers)
            }
            FlowKey::V6(key) => {
                let (a, b) = (u128::from_le_bytes(key.a), u128::from_le_bytes(key.b));
                self.owner_v6(a, b, key.vlan, workers)
            }
        }
    }

    /// The same, for the words of an IPv4 flow.
    #[inline(always)]
    pub(crate) fn owner_of_words(&self, words: KeyWords<1>, workers: usize) -> usize {
        let [addresses] = words.addresses;
        let (a, b) = (addresses as u32, (addresses >> 32) as u32);
        self.owner_v4(a, b, words.vlan(), workers)
    }

    #[inline(always)]
    fn owner_v4(&self, a: u32, b: u32, vlan: u16, workers: usize) -> usize {
        match self.ownership {
            Ownership::Keyed => share(self.pair_v4(a, b, vlan & key_bits::VLAN), workers),
            Ownership::Card => rss_queue(card_share(u64::from(a ^ b)), workers),
        }
    }

    #[inline(always)]
    fn owner_v6(&self, a: u128, b: u128, vlan: u16, workers: usize) -> usize {
        match self.ownership {
            Ownership::Keyed => share(self.pair_v6(a, b, vlan & key_bits::VLAN), workers),
            Ownership::Card => {
                let both = a ^ b;
                rss_queue(card_share((both ^ both >> 64) as u64), workers)
            }
        }
    }

    /// The owner of any packet with these addresses, in either order. Same as the flow's
    /// [`owner`](FlowHasher::owner), whatever the ports. If the families differ, the IPv4 address counts as
    /// IPv4-mapped, as in [`FlowKey::new`].
    #[inline]
    pub fn owner_of(&self, src: IpAddr, dst: IpAddr, vlan: u16, workers: usize) -> usize {
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.owner_v4(
                u32::from_le_bytes(src.octets()),
                u32::from_le_bytes(dst.octets()),
                vlan,
                workers,
            ),
            (src, dst) => self.owner_v6(
                u128::from_le_bytes(octets(src)),
                u128::from_le_bytes(octets(dst)),
                vlan,
                workers,
            ),
        }
    }

    #[inline(always)]
    fn pair_v4(&self, a: u32, b: u32, vlan: u16) -> u64 {
        let [k0, k1, k2, k3] = self.owner_key;
        let pair = u64::from(a.min(b)) | u64::from(a.max(b)) << 32;
        fold(fold(pair ^ k0, u64::from(vlan) ^ k1) ^ k2, k3)
    }

    #[inline(always)]
    fn pair_v6(&self, a: u128, b: u128, vlan: u16) -> u64 {
        let [k0, k1, k2, k3] = self.owner_key;
        let (low, high) = (a.min(b), a.max(b));
        let first = fold(low as u64 ^ k0, (low >> 64) as u64 ^ k1);
        let second = fold(high as u64 ^ first ^ k2, (high >> 64) as u64 ^ k3);
        fold(second ^ u64::from(vlan) ^ k0, first ^ k2 ^ SALT[0])
    }
}

/// Maps `hash` evenly to 0..`parts` by its upper half.
#[inline(always)]
fn share(hash: u64, parts: usize) -> usize {
    (((hash >> 32) * parts as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{Ipv4Addr, Ipv6Addr};

    use model::Tuple;
    use proptest::prelude::*;

    use super::*;

    const HASHER: FlowHasher = FlowHasher::new([1, 2, 3, 4]);
    const AS_CARDS: FlowHasher = HASHER.owning(Ownership::Card);

    /// The Toeplitz hash by its definition: for each set input bit, the 32 key bits from there.
    fn toeplitz(input: &[u8]) -> u32 {
        let key: Vec<u8> = RSS_KEY.repeat(input.len() / 2 + 2);
        let bit = |of: &[u8], at: usize| of[at / 8] >> (7 - at % 8) & 1;
        let window =
            |at: usize| (at..at + 32).fold(0_u32, |bits, place| bits << 1 | u32::from(bit(&key, place)));
        (0..input.len() * 8)
            .filter(|&at| bit(input, at) == 1)
            .fold(0, |hash, at| hash ^ window(at))
    }

    fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
        prop_oneof![
            any::<(u32, u32)>().prop_map(|(a, b)| (IpAddr::V4(a.into()), IpAddr::V4(b.into()))),
            any::<(u128, u128)>().prop_map(|(a, b)| (IpAddr::V6(a.into()), IpAddr::V6(b.into()))),
            any::<(u32, u128)>().prop_map(|(a, b)| (IpAddr::V4(a.into()), IpAddr::V6(b.into()))),
            any::<u32>().prop_map(|a| (IpAddr::V4(a.into()), IpAddr::V4(a.into()))),
        ]
    }

    proptest! {
        #[test]
        fn both_directions_have_one_hash_and_one_owner(
            (src, dst) in addresses(), ports: (u16, u16), protocol: u8, vlan in 0_u16..4096, workers in 1_usize..9,
        ) {
            let tuple = Tuple { src, dst, src_port: ports.0, dst_port: ports.1, protocol, vlan };
            let back = Tuple { src: dst, dst: src, src_port: ports.1, dst_port: ports.0, protocol, vlan };
            let (key, _) = FlowKey::new(&tuple);
            let (back, _) = FlowKey::new(&back);
            prop_assert_eq!(HASHER.hash(&key), HASHER.hash(&back));
            for hasher in [HASHER, AS_CARDS] {
                let owner = hasher.owner(&key, workers);
                prop_assert!(owner < workers);
                prop_assert_eq!(owner, hasher.owner(&back, workers));
                prop_assert_eq!(owner, hasher.owner_of(src, dst, vlan, workers));
                prop_assert_eq!(owner, hasher.owner_of(dst, src, vlan, workers));
            }
        }

        #[test]
        fn rss_delivers_flows_to_their_owner((src, dst) in addresses(), workers in 1_usize..33) {
            let input: Option<Vec<u8>> = match (src, dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => Some([src.octets(), dst.octets()].concat()),
                (IpAddr::V6(src), IpAddr::V6(dst)) => Some([src.octets(), dst.octets()].concat()),
                _ => None,
            };
            if let Some(input) = input {
                // As a card does: the last bits of the hash index a table of at least 64 entries.
                let table: Vec<usize> = (0..128).map(|place| rss_queue(place % RSS_BUCKETS, workers)).collect();
                let queue = table[toeplitz(&input) as usize % table.len()];
                prop_assert_eq!(AS_CARDS.owner_of(src, dst, 7, workers), queue);
            }
        }

        #[test]
        fn ports_and_protocol_do_not_move_a_flow_between_workers((src, dst) in addresses(), ports: (u16, u16), protocol: u8) {
            let fragment = Tuple { src, dst, src_port: 0, dst_port: 0, protocol, vlan: 5 };
            let whole = Tuple { src_port: ports.0, dst_port: ports.1, ..fragment };
            for hasher in [HASHER, AS_CARDS] {
                let owners = [fragment, whole].map(|tuple| hasher.owner(&FlowKey::new(&tuple).0, 4));
                prop_assert_eq!(owners[0], owners[1]);
            }
        }

        #[test]
        fn each_bit_of_the_flow_and_of_the_key_counts(a: u32, b: u32, ports: (u16, u16), bit in 0_u32..64, word in 0_usize..4) {
            let tuple = Tuple { src: IpAddr::V4(a.into()), dst: IpAddr::V4(b.into()), src_port: ports.0, dst_port: ports.1,
                protocol: 6, vlan: 0 };
            let (key, _) = FlowKey::new(&tuple);
            let mut other_key = HASHER.key();
            other_key[word] ^= 1 << bit;
            prop_assert_ne!(HASHER.hash(&key), FlowHasher::new(other_key).hash(&key));
            let (neighbour, _) = FlowKey::new(&Tuple { dst_port: ports.1 ^ 1 << (bit % 16), ..tuple });
            if neighbour != key {
                prop_assert_ne!(HASHER.hash(&key), HASHER.hash(&neighbour));
            }
        }
    }

    /// These values are part of the storage layout: existing tables were filled with them.
    #[test]
    fn values_never_change() {
        let tuple = |src, dst| Tuple {
            src,
            dst,
            src_port: 1234,
            dst_port: 80,
            protocol: 6,
            vlan: 7,
        };
        let v4 = tuple(
            Ipv4Addr::new(10, 0, 0, 1).into(),
            Ipv4Addr::new(10, 0, 0, 2).into(),
        );
        let v6 = tuple(Ipv6Addr::from(1 << 100).into(), Ipv6Addr::from(2).into());
        let hashes = [v4, v6].map(|tuple| HASHER.hash(&FlowKey::new(&tuple).0));
        assert_eq!(hashes, [0x1345_833c_5de1_c1a8, 0x700a_8544_de27_b9ca]);
    }

    /// Sequential addresses and ports, the least random traffic possible, spread evenly over buckets and
    /// workers.
    #[test]
    fn sequential_flows_spread() {
        const FLOWS: usize = 1 << 16;
        const PARTS: usize = 256;
        let mut high = [0_usize; PARTS];
        let mut low = [0_usize; PARTS];
        let mut distinct = HashSet::new();
        for i in 0..FLOWS as u32 {
            let tuple = Tuple {
                src: Ipv4Addr::from(0x0a00_0000 + i / 16).into(),
                dst: Ipv4Addr::from(0x0a80_0000).into(),
                src_port: 1024 + (i % 16) as u16,
                dst_port: 80,
                protocol: 17,
                vlan: 0,
            };
            let hash = HASHER.hash(&FlowKey::new(&tuple).0);
            high[share(hash, PARTS)] += 1;
            low[hash as usize % PARTS] += 1;
            distinct.insert(hash);
        }
        assert_eq!(distinct.len(), FLOWS);
        // 255 degrees of freedom: chi-square stays below 360 except for one key in 10,000.
        let mean = (FLOWS / PARTS) as f64;
        for counts in [high, low] {
            let chi_square: f64 = counts.iter().map(|&n| (n as f64 - mean).powi(2) / mean).sum();
            assert!(chi_square < 360.0, "{chi_square}");
        }
        for hasher in [HASHER, AS_CARDS] {
            let mut owners = [0_usize; 4];
            for host in 0..4096_u32 {
                owners[hasher.owner_of(
                    Ipv4Addr::from(host).into(),
                    Ipv4Addr::from(0x0a80_0000).into(),
                    0,
                    4,
                )] += 1;
            }
            assert!(owners.iter().all(|&n| (900..1150).contains(&n)), "{owners:?}");
        }
    }
}
