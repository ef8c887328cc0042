//! Which instance owns which block of a service's external ports. A block has one owner at a time. After an owner with
//! mappings it is reserved for their lifetime, so that what still comes for them reaches nobody else.

use std::fmt;

use model::{External, InstanceId, Nanos, PortBlock};

use crate::instance::Instance;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    /// Nobody's since then.
    Free(Nanos),
    /// That instance's.
    Owned(InstanceId),
    /// Nobody's until then.
    Reserved(Nanos),
}

/// A block that no new instance may have: it is nobody's for some time, or an instance has it from another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedBlock {
    /// Until when, in milliseconds since 1970; 0 where an instance has it.
    pub until_unix_ms: u64,
    /// The instance that has it, or gets it.
    pub owner: Option<InstanceId>,
    /// Its ports.
    pub ports: PortBlock,
    /// The name of its service.
    pub service: String,
}

/// As a line of the file in which reservations outlive a run.
impl fmt::Display for ReservedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.owner {
            Some(owner) => write!(f, "@{} {} {}", owner.0, self.ports, self.service),
            None => write!(f, "{} {} {}", self.until_unix_ms, self.ports, self.service),
        }
    }
}

impl ReservedBlock {
    /// A line of that file; [`None`] for any other line.
    pub fn from_line(line: &str) -> Option<ReservedBlock> {
        let mut words = line.splitn(3, ' ');
        let first = words.next()?;
        let (until_unix_ms, owner) = match first.strip_prefix('@') {
            Some(owner) => (0, Some(InstanceId(owner.parse().ok()?))),
            None => (first.parse().ok()?, None),
        };
        Some(ReservedBlock {
            until_unix_ms,
            owner,
            ports: words.next()?.parse().ok()?,
            service: words.next()?.to_owned(),
        })
    }
}

/// The blocks of a service.
#[derive(Debug)]
pub(crate) struct Blocks {
    external: External,
    lifetime: Nanos,
    blocks: Vec<Block>,
    /// Whether reservations have changed since they were last asked for.
    has_changed: bool,
}

impl Blocks {
    /// Those of these addresses, all free. `lifetime`: for how long a mapping may live without a packet.
    pub(crate) fn new(external: &External, lifetime: Nanos) -> Blocks {
        Blocks {
            blocks: vec![Block::Free(Nanos::ZERO); external.blocks().into()],
            external: external.clone(),
            lifetime,
            has_changed: false,
        }
    }

    /// The ports of a block.
    pub(crate) fn ports_of(&self, block: u16) -> Option<PortBlock> {
        self.external.ports_of(block)
    }

    /// Number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Gives a block to a new instance: the one that has been nobody's for longest. [`None`] if all are owned or
    /// reserved.
    pub(crate) fn take(&mut self, owner: InstanceId, now: Nanos) -> Option<u16> {
        let free_since = |block: &Block| match *block {
            Block::Free(since) => Some(since),
            Block::Reserved(until) => (until <= now).then_some(until),
            Block::Owned(_) => None,
        };
        let free = self.blocks.iter().enumerate();
        let free = free.filter_map(|(at, block)| Some((free_since(block)?, at)));
        let (_, at) = free.min()?;
        self.has_changed |= matches!(self.blocks[at], Block::Reserved(_));
        self.blocks[at] = Block::Owned(owner);
        Some(at as u16)
    }

    /// An instance of an earlier run has these ports. [`None`], and no change, where they are no block, or somebody
    /// else's.
    pub(crate) fn take_again(&mut self, owner: InstanceId, ports: &PortBlock) -> Option<u16> {
        let at = self.external.block_of(ports.address.into(), ports.first)?;
        if self.external.ports_of(at) != Some(*ports) {
            return None;
        }
        let block = self.blocks.get_mut(usize::from(at))?;
        if matches!(block, Block::Owned(_)) {
            return None;
        }
        *block = Block::Owned(owner);
        Some(at)
    }

    /// The owner of that block is gone. `has_mappings`: some of its mappings may be known in the network.
    pub(crate) fn give_back(&mut self, block: u16, has_mappings: bool, now: Nanos) {
        if let Some(place) = self.blocks.get_mut(usize::from(block)) {
            self.has_changed = true;
            *place = if has_mappings {
                Block::Reserved(now + self.lifetime)
            } else {
                Block::Free(now)
            };
        }
    }

    /// The blocks of an instance.
    pub(crate) fn owned(&self, owner: InstanceId) -> impl Iterator<Item = u16> {
        let blocks = (0..).zip(&self.blocks);
        blocks.filter_map(move |(at, block)| (*block == Block::Owned(owner)).then_some(at))
    }

    /// One instance takes over what another one has.
    pub(crate) fn pass_on(&mut self, from: InstanceId, to: InstanceId) {
        for block in &mut self.blocks {
            if *block == Block::Owned(from) {
                *block = Block::Owned(to);
                self.has_changed = true;
            }
        }
    }

    /// Blocks that instances have from others, with their owners.
    pub(crate) fn inherited(&self, instances: &[Instance]) -> impl Iterator<Item = (u16, InstanceId)> {
        let blocks = (0..).zip(&self.blocks);
        blocks.filter_map(|(at, block)| {
            let Block::Owned(owner) = *block else { return None };
            let is_own = |of: &Instance| of.id == owner && of.block == Some(at);
            (!instances.iter().any(is_own)).then_some((at, owner))
        })
    }

    /// An inherited block has no mappings any more. Whether it was one of that instance, whose `own` is another one.
    pub(crate) fn end_inherited(
        &mut self,
        owner: InstanceId,
        own: Option<u16>,
        ports: &PortBlock,
        now: Nanos,
    ) -> bool {
        let at = self.external.block_of(ports.address.into(), ports.first);
        let Some(at) = at.filter(|at| own != Some(*at) && self.external.ports_of(*at) == Some(*ports)) else {
            return false;
        };
        let is_it = self.blocks.get(usize::from(at)) == Some(&Block::Owned(owner));
        if is_it {
            self.give_back(at, false, now);
        }
        is_it
    }

    /// Has reservations told again.
    pub(crate) fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// An instance has these ports from another one that is gone. False, and no change, where they are no block, or
    /// somebody's.
    pub(crate) fn inherit(&mut self, owner: InstanceId, ports: &PortBlock) -> bool {
        let has_changed = self.take_again(owner, ports).is_some();
        self.has_changed |= has_changed;
        has_changed
    }

    /// The ports of the block that an instance was made with.
    pub(crate) fn ports_of_instance(&self, of: &Instance) -> Option<PortBlock> {
        self.ports_of(of.block?)
    }

    /// Whether somebody has that block.
    #[cfg(test)]
    fn is_owned(&self, ports: &PortBlock) -> bool {
        let at = self.external.block_of(ports.address.into(), ports.first);
        let block = at.and_then(|at| self.blocks.get(usize::from(at)));
        matches!(block, Some(Block::Owned(_)))
    }

    /// An instance that is gone had these ports: every block with one of them is reserved, as far as it is nobody's.
    pub(crate) fn reserve(&mut self, ports: &PortBlock, until: Nanos) {
        for at in self.external.overlapping(ports) {
            let place = &mut self.blocks[usize::from(at)];
            let until = match *place {
                Block::Owned(_) => continue,
                Block::Reserved(before) => until.max(before),
                Block::Free(_) => until,
            };
            *place = Block::Reserved(until);
            self.has_changed = true;
        }
    }

    /// When mappings that were used just now have ended.
    pub(crate) fn end_of_mappings(&self, now: Nanos) -> Nanos {
        now + self.lifetime
    }

    /// When the next reserved block is free, if one is reserved.
    pub(crate) fn next_free(&self) -> Option<Nanos> {
        let reserved = self.blocks.iter().filter_map(|block| match block {
            Block::Reserved(until) => Some(*until),
            _ => None,
        });
        reserved.min()
    }

    /// Whether reservations have changed since the last call.
    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// The blocks that are reserved now, and until when.
    pub(crate) fn reserved(&self, now: Nanos) -> impl Iterator<Item = (PortBlock, Nanos)> {
        let blocks = self.blocks.iter().enumerate();
        blocks.filter_map(move |(at, block)| match *block {
            Block::Reserved(until) if until > now => Some((self.external.ports_of(at as u16)?, until)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr};

    use model::Prefix;
    use proptest::prelude::*;

    use super::*;

    const LIFETIME: Nanos = Nanos::from_secs(100);

    fn external(block_ports: u16) -> External {
        let prefix = Prefix {
            address: IpAddr::V4(Ipv4Addr::new(203, 0, 113, 0)),
            bits: 31,
        };
        External::new(&[prefix], block_ports).unwrap()
    }

    #[test]
    fn the_block_that_was_free_for_longest_is_next() {
        let mut blocks = Blocks::new(&external(32_256), LIFETIME);
        let at = Nanos::from_secs;
        let take = |blocks: &mut Blocks, id, now| blocks.take(InstanceId(id), now);
        assert_eq!(take(&mut blocks, 1, at(1)), Some(0));
        assert_eq!(take(&mut blocks, 2, at(1)), Some(1));
        blocks.give_back(0, false, at(2));
        assert_eq!(take(&mut blocks, 3, at(3)), Some(2));
        assert_eq!(take(&mut blocks, 4, at(3)), Some(3));
        assert_eq!(take(&mut blocks, 5, at(3)), Some(0));
        assert_eq!((take(&mut blocks, 6, at(4)), blocks.next_free()), (None, None));
        // With mappings it is nobody's for their lifetime.
        blocks.give_back(1, true, at(10));
        assert!(blocks.take_change() && !blocks.take_change());
        assert_eq!(blocks.next_free(), Some(at(110)));
        assert_eq!(take(&mut blocks, 6, at(110) - Nanos(1)), None);
        assert_eq!(blocks.reserved(at(109)).count(), 1);
        assert_eq!(take(&mut blocks, 6, at(110)), Some(1));
        assert!(blocks.take_change());
    }

    #[test]
    fn an_heir_has_blocks_of_others_until_their_mappings_have_ended() {
        let mut blocks = Blocks::new(&external(32_256), LIFETIME);
        let at = Nanos::from_secs;
        let [one, two, three] = [1, 2, 3].map(InstanceId);
        for owner in [one, two, three] {
            blocks.take(owner, at(1)).unwrap();
        }
        blocks.pass_on(one, two);
        blocks.pass_on(two, three);
        assert_eq!(blocks.owned(three).collect::<Vec<u16>>(), [0, 1, 2]);
        assert!(blocks.take_change());
        let ports = |block| external(32_256).ports_of(block).unwrap();
        // Its own block stays, and so does what it has not.
        assert!(!blocks.end_inherited(three, Some(2), &ports(2), at(2)));
        assert!(!blocks.end_inherited(two, None, &ports(1), at(2)));
        assert!(blocks.end_inherited(three, Some(2), &ports(0), at(2)));
        assert!(blocks.take_change() && !blocks.is_owned(&ports(0)) && blocks.is_owned(&ports(1)));
        assert_eq!(blocks.take(InstanceId(4), at(3)), Some(3));
        assert_eq!(blocks.take(InstanceId(5), at(3)), Some(0));
        assert_eq!(blocks.take(InstanceId(6), at(3)), None);
    }

    #[test]
    fn blocks_of_an_earlier_run_are_known_again() {
        let mut blocks = Blocks::new(&external(32_256), LIFETIME);
        let ports = |text: &str| text.parse::<PortBlock>().unwrap();
        let second = ports("203.0.113.0:33280-65535");
        assert_eq!(blocks.take_again(InstanceId(7), &second), Some(1));
        // It cannot have two owners, whatever labels say; and this is no block.
        assert_eq!(blocks.take_again(InstanceId(8), &second), None);
        assert_eq!(
            blocks.take_again(InstanceId(8), &ports("203.0.113.0:1024-2047")),
            None
        );
        assert_eq!(
            blocks.take_again(InstanceId(8), &ports("203.0.113.9:1024-33279")),
            None
        );
        // Ports of another division reserve what they touch, unless it is owned.
        blocks.reserve(&ports("203.0.113.0:30000-40000"), Nanos::from_secs(50));
        blocks.reserve(&ports("203.0.113.1:65535-65535"), Nanos::from_secs(60));
        blocks.reserve(&ports("203.0.113.1:65535-65535"), Nanos::from_secs(55));
        let reserved: Vec<(String, Nanos)> = blocks
            .reserved(Nanos::ZERO)
            .map(|(ports, until)| (ports.to_string(), until))
            .collect();
        let expected = [
            ("203.0.113.0:1024-33279".to_owned(), Nanos::from_secs(50)),
            ("203.0.113.1:33280-65535".to_owned(), Nanos::from_secs(60)),
        ];
        assert_eq!(reserved, expected);
        assert_eq!(blocks.take(InstanceId(9), Nanos::from_secs(1)), Some(2));
        assert_eq!(blocks.take(InstanceId(10), Nanos::from_secs(1)), None);
    }

    #[test]
    fn reservations_are_lines_of_text() {
        for line in [
            "1764000000000 203.0.113.0:1024-5055 nat",
            "@7 203.0.113.0:1024-5055 nat",
        ] {
            let of = ReservedBlock::from_line(line).unwrap();
            assert_eq!((of.to_string().as_str(), of.service.as_str()), (line, "nat"));
        }
        for wrong in [
            "@ 203.0.113.0:1024-5055 nat",
            "",
            "1 203.0.113.0:1024-5055",
            "x 203.0.113.0:1024-5055 nat",
            "1 203.0.113.0 nat",
        ] {
            assert_eq!(ReservedBlock::from_line(wrong), None);
        }
    }

    proptest! {
        /// Against a model: owners have blocks of their own, and nobody gets a block in the lifetime of mappings that
        /// an earlier owner left, over restarts, too.
        #[test]
        fn nobody_has_a_block_that_another_one_may_have_mappings_in(
            block_ports in prop::sample::select(vec![16_128_u16, 20_000, 64_512]),
            steps in prop::collection::vec((0_u8..4, any::<prop::sample::Index>(), any::<bool>(), 0_u64..60), 1..120),
        ) {
            let external = external(block_ports);
            let mut blocks = Blocks::new(&external, LIFETIME);
            let mut now = Nanos::ZERO;
            let mut owners: BTreeMap<u32, u16> = BTreeMap::new();
            let mut left: BTreeMap<u16, Nanos> = BTreeMap::new();
            let mut next = 1;
            for (step, which, has_mappings, seconds) in steps {
                now = now + Nanos::from_secs(seconds);
                match step {
                    0 | 1 => {
                        let taken = blocks.take(InstanceId(next), now);
                        let usable = |block: &u16| {
                            owners.values().all(|of| of != block) && left.get(block).is_none_or(|until| *until <= now)
                        };
                        match taken {
                            Some(block) => {
                                prop_assert!(usable(&block), "{block} at {now:?}: {owners:?}, {left:?}");
                                owners.insert(next, block);
                                next += 1;
                            }
                            None => prop_assert_eq!((0..external.blocks()).find(usable), None),
                        }
                    }
                    2 if !owners.is_empty() => {
                        let id = *which.get(&owners.keys().copied().collect::<Vec<_>>());
                        let block = owners.remove(&id).unwrap();
                        blocks.give_back(block, has_mappings, now);
                        if has_mappings {
                            left.insert(block, now + LIFETIME);
                        }
                    }
                    3 => {
                        // A restart: what was reserved comes from a file, owners from their labels.
                        let reserved: Vec<(PortBlock, Nanos)> = blocks.reserved(now).collect();
                        blocks = Blocks::new(&external, LIFETIME);
                        for (id, block) in &owners {
                            let ports = external.ports_of(*block).unwrap();
                            prop_assert_eq!(blocks.take_again(InstanceId(*id), &ports), Some(*block));
                        }
                        for (ports, until) in reserved {
                            blocks.reserve(&ports, until);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
