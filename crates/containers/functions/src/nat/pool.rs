//! The external addresses and ports of an instance, in blocks; each internal host has blocks of its own.

use std::net::{Ipv4Addr, SocketAddrV4};

use model::Random;

use crate::keys::Keys;

/// Blocks of one host, at most: bounds the search for a free port.
pub(super) const BLOCKS_PER_HOST_LIMIT: usize = 16;
/// Protocols with ports of their own: TCP, UDP, ICMP.
pub(super) const CLASSES: usize = 3;

const NONE: u32 = u32::MAX;

/// Ports of an external address that belong to this instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) address: Ipv4Addr,
    pub(super) first: u16,
    pub(super) last: u16,
}

/// A range as far as whole blocks reach, and where it begins in the pool.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Address and first port as one number.
    begin: u64,
    ports: u32,
    base: u32,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    address: Ipv4Addr,
    first: u16,
    /// Index of its address.
    of: u16,
    /// Whose it is; [`NONE`]: of nobody. Ports of one without a host are of mappings that another instance made.
    host: u32,
    /// Ports in use, of all protocols.
    used: u32,
    /// Where it is in the list of free blocks of its address; [`NONE`] if it is not there.
    free_at: u32,
}

#[derive(Clone, Copy, Debug)]
struct Host {
    address: Ipv4Addr,
    blocks: [u32; BLOCKS_PER_HOST_LIMIT],
    count: u8,
}

/// Why a host gets no port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exhausted {
    /// All ports of as many blocks as a host may have are in use.
    Host,
    /// There is no free block; for a host that has one, none of its external address.
    Pool,
}

/// A block as the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Assigned {
    pub(super) host: Ipv4Addr,
    pub(super) range: Range,
}

/// A port as a number, below [`Pool::ports`].
pub(super) type Place = u32;

#[derive(Debug)]
pub(super) struct Pool {
    block_ports: u32,
    blocks_per_host: usize,
    /// Words of the bitmap of one block and protocol.
    words: usize,
    parts: Box<[Part]>,
    blocks: Box<[Block]>,
    /// Ports in use: a bit each, by block, protocol and port.
    bits: Box<[u64]>,
    /// Free blocks by address.
    free: Box<[Vec<u32>]>,
    hosts: Box<[Host]>,
    free_hosts: Vec<u32>,
    by_address: Keys,
    random: Random,
}

fn number(address: Ipv4Addr, port: u16) -> u64 {
    u64::from(u32::from(address)) << 16 | u64::from(port)
}

impl Pool {
    /// Of ranges that do not overlap, with `block_ports` ports a block. What remains of a range behind its last whole
    /// block is not used.
    pub(super) fn new(ranges: &[Range], block_ports: u16, blocks_per_host: usize, secret: u64) -> Pool {
        let mut ranges = ranges.to_vec();
        ranges.sort_by_key(|range| number(range.address, range.first));
        let (mut parts, mut blocks) = (Vec::new(), Vec::new());
        let mut free: Vec<Vec<u32>> = Vec::new();
        let mut before = None;
        for range in ranges {
            if before != Some(range.address) {
                before = Some(range.address);
                free.push(Vec::new());
            }
            let of = free.len() - 1;
            let whole = (u32::from(range.last - range.first) + 1) / u32::from(block_ports);
            parts.push(Part {
                begin: number(range.address, range.first),
                ports: whole * u32::from(block_ports),
                base: blocks.len() as u32 * u32::from(block_ports),
            });
            for block in 0..whole as u16 {
                let of_address = &mut free[of];
                blocks.push(Block {
                    address: range.address,
                    first: range.first + block * block_ports,
                    of: of as u16,
                    host: NONE,
                    used: 0,
                    free_at: of_address.len() as u32,
                });
                of_address.push(blocks.len() as u32 - 1);
            }
        }
        let words = usize::from(block_ports).div_ceil(64);
        let host = Host {
            address: Ipv4Addr::UNSPECIFIED,
            blocks: [NONE; BLOCKS_PER_HOST_LIMIT],
            count: 0,
        };
        Pool {
            block_ports: block_ports.into(),
            blocks_per_host: blocks_per_host.min(BLOCKS_PER_HOST_LIMIT),
            words,
            parts: parts.into(),
            bits: vec![0; blocks.len() * CLASSES * words].into(),
            free: free.into(),
            // A host has a block, so there are no more hosts than blocks.
            hosts: vec![host; blocks.len()].into(),
            free_hosts: (0..blocks.len() as u32).rev().collect(),
            by_address: Keys::new(blocks.len(), secret),
            blocks: blocks.into(),
            random: Random::new(secret),
        }
    }

    /// Ports of each protocol.
    pub(super) fn ports(&self) -> usize {
        self.blocks.len() * self.block_ports as usize
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn blocks_assigned(&self) -> usize {
        self.blocks.len() - self.free.iter().map(Vec::len).sum::<usize>()
    }

    /// Hosts that have blocks.
    pub(super) fn hosts(&self) -> usize {
        self.by_address.len()
    }

    pub(super) fn set_blocks_per_host(&mut self, blocks: usize) {
        self.blocks_per_host = blocks.min(BLOCKS_PER_HOST_LIMIT);
    }

    /// The number of an external port; [`None`] if it is not of the pool.
    #[inline]
    pub(super) fn place(&self, external: SocketAddrV4) -> Option<Place> {
        let wanted = number(*external.ip(), external.port());
        let after = self.parts.partition_point(|part| part.begin <= wanted);
        let part = self.parts.get(after.checked_sub(1)?)?;
        let from = wanted - part.begin;
        (from < u64::from(part.ports)).then(|| part.base + from as u32)
    }

    /// The port of that number.
    pub(super) fn external(&self, place: Place) -> SocketAddrV4 {
        let block = &self.blocks[(place / self.block_ports) as usize];
        SocketAddrV4::new(block.address, block.first + (place % self.block_ports) as u16)
    }

    pub(super) fn is_taken(&self, place: Place, class: usize) -> bool {
        let (block, port) = (place / self.block_ports, place % self.block_ports);
        let word = (block as usize * CLASSES + class) * self.words + (port / 64) as usize;
        self.bits
            .get(word)
            .is_some_and(|word| word >> (port % 64) & 1 == 1)
    }

    fn bits_of(&mut self, block: u32, class: usize) -> &mut [u64] {
        let from = (block as usize * CLASSES + class) * self.words;
        &mut self.bits[from..from + self.words]
    }

    /// A free port of a block, from a random one on (RFC 6056), marked as used.
    fn take_in(&mut self, block: u32, class: usize) -> Option<Place> {
        let ports = self.block_ports;
        if self.blocks[block as usize].used >= ports * CLASSES as u32 {
            return None;
        }
        let start = self.random.below(ports.into()) as u32;
        let bits = self.bits_of(block, class);
        let port = free_from(bits, start, ports)?;
        bits[(port / 64) as usize] |= 1 << (port % 64);
        self.blocks[block as usize].used += 1;
        Some(block * ports + port)
    }

    /// A port for a host, and the block if it is the first one of a block. All blocks of a host are of one external
    /// address (RFC 4787, REQ-2).
    pub(super) fn take(
        &mut self,
        address: Ipv4Addr,
        class: usize,
    ) -> Result<(Place, Option<Assigned>), Exhausted> {
        let known = self.by_address.get(host_key(address));
        if let Some(host) = known.and_then(|at| self.hosts.get(at as usize).copied()) {
            for &block in &host.blocks[..usize::from(host.count)] {
                if let Some(place) = self.take_in(block, class) {
                    return Ok((place, None));
                }
            }
            if usize::from(host.count) >= self.blocks_per_host {
                return Err(Exhausted::Host);
            }
        }
        let of = match known.and_then(|at| self.hosts[at as usize].blocks.first().copied()) {
            Some(block) => usize::from(self.blocks[block as usize].of),
            // The address that has most: hosts spread over them.
            None => (0..self.free.len())
                .max_by_key(|&of| self.free[of].len())
                .ok_or(Exhausted::Pool)?,
        };
        let block = self.free[of].last().copied().ok_or(Exhausted::Pool)?;
        self.assign(block, address).ok_or(Exhausted::Pool)?;
        let place = self.take_in(block, class).ok_or(Exhausted::Pool)?;
        Ok((place, Some(self.assigned(block))))
    }

    /// Takes one port for a host: of a mapping that was made elsewhere. [`None`] if it is in use. The block becomes the
    /// host's if it is nobody's, unless the address is 0.0.0.0.
    pub(super) fn take_this(
        &mut self,
        place: Place,
        class: usize,
        address: Ipv4Addr,
    ) -> Option<Option<Assigned>> {
        let (block, port) = (place / self.block_ports, place % self.block_ports);
        let (word, bit) = ((port / 64) as usize, 1 << (port % 64));
        if self.bits_of(block, class)[word] & bit != 0 {
            return None;
        }
        let is_free = self.blocks[block as usize].free_at != NONE;
        if is_free && (address.is_unspecified() || self.assign(block, address).is_none()) {
            self.leave_free_list(block);
        }
        self.bits_of(block, class)[word] |= bit;
        self.blocks[block as usize].used += 1;
        let is_assigned = is_free && self.blocks[block as usize].host != NONE;
        Some(is_assigned.then(|| self.assigned(block)))
    }

    /// Gives a port back. The block, if it was the last of one.
    pub(super) fn give_back(&mut self, place: Place, class: usize) -> Option<Assigned> {
        let (block, port) = (place / self.block_ports, place % self.block_ports);
        let (word, bit) = ((port / 64) as usize, 1 << (port % 64));
        let bits = self.bits_of(block, class);
        if bits[word] & bit == 0 {
            return None;
        }
        bits[word] &= !bit;
        let of = &mut self.blocks[block as usize];
        of.used -= 1;
        if of.used > 0 {
            return None;
        }
        let assigned = (of.host != NONE).then(|| self.assigned(block));
        self.unassign(block);
        assigned
    }

    fn assigned(&self, block: u32) -> Assigned {
        let of = &self.blocks[block as usize];
        let host = self.hosts.get(of.host as usize);
        Assigned {
            host: host.map_or(Ipv4Addr::UNSPECIFIED, |host| host.address),
            range: Range {
                address: of.address,
                first: of.first,
                last: of.first + (self.block_ports - 1) as u16,
            },
        }
    }

    /// Makes a free block that of a host, if the host may have another one.
    fn assign(&mut self, block: u32, address: Ipv4Addr) -> Option<()> {
        let key = host_key(address);
        let at = match self.by_address.get(key) {
            Some(at) => at,
            None => {
                let at = self.free_hosts.pop()?;
                if !self.by_address.insert(key, at) {
                    self.free_hosts.push(at);
                    return None;
                }
                self.hosts[at as usize] = Host {
                    address,
                    blocks: [NONE; BLOCKS_PER_HOST_LIMIT],
                    count: 0,
                };
                at
            }
        };
        let host = &mut self.hosts[at as usize];
        *host.blocks.get_mut(usize::from(host.count))? = block;
        host.count += 1;
        self.leave_free_list(block);
        self.blocks[block as usize].host = at;
        Some(())
    }

    fn leave_free_list(&mut self, block: u32) {
        let of = self.blocks[block as usize];
        let list = &mut self.free[usize::from(of.of)];
        list.swap_remove(of.free_at as usize);
        if let Some(&moved) = list.get(of.free_at as usize) {
            self.blocks[moved as usize].free_at = of.free_at;
        }
        self.blocks[block as usize].free_at = NONE;
    }

    fn unassign(&mut self, block: u32) {
        let of = &mut self.blocks[block as usize];
        let at = std::mem::replace(&mut of.host, NONE);
        let list = &mut self.free[usize::from(of.of)];
        of.free_at = list.len() as u32;
        list.push(block);
        let Some(host) = self.hosts.get_mut(at as usize) else {
            return;
        };
        let held = &mut host.blocks[..usize::from(host.count)];
        if let Some(which) = held.iter().position(|&held| held == block) {
            held[which..].rotate_left(1);
            host.count -= 1;
        }
        if host.count == 0 {
            let key = host_key(host.address);
            self.by_address.remove(key);
            self.free_hosts.push(at);
        }
    }
}

fn host_key(address: Ipv4Addr) -> u64 {
    u32::from(address).into()
}

/// The first zero bit of `bits[..count]` from `start` on, going round.
fn free_from(bits: &[u64], start: u32, count: u32) -> Option<u32> {
    let search = |from: u32, to: u32| {
        let mut at = from;
        while at < to {
            let word = bits.get((at / 64) as usize)? >> (at % 64);
            // Zeros that the shift brought in are of the next word.
            let found = at + (!word).trailing_zeros();
            if found < (at / 64 + 1) * 64 {
                return (found < to).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    };
    search(start, count).or_else(|| search(0, start))
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn range(text: &str) -> Range {
        let (address, ports) = text.split_once(':').unwrap();
        let (first, last) = ports.split_once('-').unwrap();
        Range {
            address: address.parse().unwrap(),
            first: first.parse().unwrap(),
            last: last.parse().unwrap(),
        }
    }

    #[test]
    fn the_profile_of_csit_has_1024_blocks_of_63_ports() {
        let pool = Pool::new(&[range("192.0.2.1:1024-65535")], 63, 1, 0);
        assert_eq!((pool.blocks(), pool.ports()), (1024, 64_512));
        assert_eq!(pool.external(64_511), "192.0.2.1:65535".parse().unwrap());
    }

    #[test]
    fn places_are_those_of_whole_blocks() {
        let ranges = [
            "192.0.2.9:2000-2019",
            "192.0.2.1:1000-1009",
            "192.0.2.9:1000-1007",
        ]
        .map(range);
        let pool = Pool::new(&ranges, 4, 1, 0);
        assert_eq!(pool.ports(), 8 + 8 + 20);
        let mut seen = HashSet::new();
        for place in 0..36 {
            let external = pool.external(place);
            assert_eq!(pool.place(external), Some(place));
            seen.insert(external);
        }
        assert_eq!(seen.len(), 36);
        for other in [
            "192.0.2.1:1008",
            "192.0.2.1:999",
            "192.0.2.9:1008",
            "192.0.2.9:2020",
            "192.0.2.2:1000",
        ] {
            assert_eq!(pool.place(other.parse().unwrap()), None, "{other}");
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take { host: u8, class: usize },
        TakeThis { host: u8, class: usize, place: u32 },
        GiveBack { which: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..6_u8, 0..CLASSES).prop_map(|(host, class)| Step::Take { host, class }),
            1 => (0..6_u8, 0..CLASSES, 0..24_u32).prop_map(|(host, class, place)| Step::TakeThis { host, class, place }),
            3 => any::<usize>().prop_map(|which| Step::GiveBack { which }),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn a_free_bit_is_found_where_there_is_one(bits: [u64; 2], start in 0..100_u32, count in 100..=128_u32) {
            let slow = (start..count).chain(0..start).find(|&at| bits[(at / 64) as usize] >> (at % 64) & 1 == 0);
            prop_assert_eq!(free_from(&bits, start, count), slow);
        }

        #[test]
        fn no_port_is_given_twice_and_blocks_are_of_one_host(steps in steps(), secret: u64) {
            let ranges = ["192.0.2.1:1000-1011", "192.0.2.2:1000-1011"].map(range);
            let mut pool = Pool::new(&ranges, 4, 2, secret);
            // Ports in use, with whose they are and whether they were taken as such.
            let mut used: Vec<(u8, usize, u32)> = Vec::new();
            let mut holders: HashMap<u32, Ipv4Addr> = HashMap::new();
            let address = |host: u8| Ipv4Addr::new(10, 0, 0, host);
            for step in steps {
                match step {
                    Step::Take { host, class } => match pool.take(address(host), class) {
                        Ok((place, assigned)) => {
                            prop_assert!(!used.iter().any(|&(_, c, p)| (c, p) == (class, place)));
                            prop_assert_eq!(assigned.is_some(), !used.iter().any(|&(.., p)| p / 4 == place / 4));
                            if assigned.is_some() {
                                holders.insert(place / 4, address(host));
                            }
                            prop_assert_eq!(holders.get(&(place / 4)), Some(&address(host)));
                            used.push((host, class, place));
                        }
                        Err(why) => {
                            let blocks: Vec<u32> =
                                holders.iter().filter(|(_, of)| **of == address(host)).map(|(b, _)| *b).collect();
                            for block in &blocks {
                                let taken = used.iter().filter(|&&(_, c, p)| c == class && p / 4 == *block).count();
                                prop_assert_eq!(taken, 4, "a port of its own block was free");
                            }
                            match why {
                                Exhausted::Host => prop_assert!(blocks.len() >= 2),
                                Exhausted::Pool => {
                                    let is_taken = |block: u32| used.iter().any(|&(.., p)| p / 4 == block);
                                    let of = blocks.first().map(|block| block / 3);
                                    let mut all = (0..6).filter(|block| of.is_none_or(|of| block / 3 == of));
                                    prop_assert!(all.all(is_taken));
                                }
                            }
                        }
                    },
                    Step::TakeThis { host, class, place } => {
                        let is_used = used.iter().any(|&(_, c, p)| (c, p) == (class, place));
                        let taken = pool.take_this(place, class, address(host));
                        prop_assert_eq!(taken.is_none(), is_used);
                        if let Some(assigned) = taken {
                            if assigned.is_some() {
                                holders.insert(place / 4, address(host));
                            }
                            used.push((host, class, place));
                        }
                    }
                    Step::GiveBack { which } if !used.is_empty() => {
                        let (_, class, place) = used.swap_remove(which % used.len());
                        let freed = pool.give_back(place, class);
                        let is_last = !used.iter().any(|&(.., p)| p / 4 == place / 4);
                        let holder = holders.get(&(place / 4)).copied().filter(|_| is_last);
                        prop_assert_eq!(freed.map(|freed| freed.host), holder);
                        if is_last {
                            holders.remove(&(place / 4));
                        }
                    }
                    Step::GiveBack { .. } => {}
                }
                let blocks: HashSet<u32> = used.iter().map(|&(.., p)| p / 4).collect();
                prop_assert_eq!(pool.blocks_assigned(), blocks.len());
                let hosts: HashSet<_> = holders.values().collect();
                prop_assert_eq!(pool.hosts(), hosts.len());
            }
        }
    }
}
