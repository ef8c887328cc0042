//! The first rule that matches a header, among thousands.
//!
//! A header's two addresses become classes: the longest prefix of any rule that holds the address
//! ([`crate::lpm`]). A pair of classes names a leaf: the few rules whose prefixes hold both addresses. The leaf's rules
//! are compared by protocol and ports, four at a time.
//!
//! A wildcard belongs to every class, so one table of pairs would multiply rules with classes. The rules are therefore
//! divided into groups by the lengths of their prefixes ([`plan`]): a group whose rules have a long source
//! and a wildcard destination has few pairs. A lookup consults every group and takes the first rule of all. The pairs
//! of a group are sparse; rows are shifted over one another until no two pairs share a cell (Tarjan and Yao, "Storing a
//! sparse table", CACM 1979), so a pair is one read. A leaf of more than [`leaves::LEAF_RULES`] rules is divided
//! further by ports and protocol, as in HyperSplit (Qi et al., "Packet Classification Algorithms: From Theory to
//! Practice", INFOCOM 2009).
//!
//! A lookup of a burst goes through these stages for all headers at a time, each stage prefetching for the next one.
//! No branch depends on which rule matches, except beyond four rules in a leaf.

mod leaves;
mod pairs;
mod plan;

use crate::lpm::{Classes4, Classes6, Prefix, flatten};

use leaves::{Bounds, Leaves};
use pairs::Pairs;
use plan::Tree;

/// What a lookup returns where no rule matches.
pub const NO_RULE: u32 = u32::MAX;

/// Headers of one lookup.
pub const HEADERS_LIMIT: usize = 64;

/// What a rule demands of a header. Ranges include both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// The source, of the same family as the destination.
    pub src: Prefix,
    /// The destination.
    pub dst: Prefix,
    /// Source ports.
    pub src_ports: (u16, u16),
    /// Destination ports.
    pub dst_ports: (u16, u16),
    /// The protocol, or all.
    pub protocol: Option<u8>,
    /// The type of an ICMP message, or all. Only where the protocol is ICMP or ICMPv6.
    pub icmp_type: Option<u8>,
}

impl Fields {
    /// Protocol and ICMP type in one number, so that either is a range of it.
    fn kinds(&self) -> (u16, u16) {
        match (self.protocol, self.icmp_type) {
            (None, _) => (0, u16::MAX),
            (Some(protocol), None) => (u16::from(protocol) << 8, u16::from(protocol) << 8 | 0xff),
            (Some(protocol), Some(icmp_type)) => {
                let kind = u16::from(protocol) << 8 | u16::from(icmp_type);
                (kind, kind)
            }
        }
    }

    /// Whether a header fulfils these demands: the definition that the compiled form is tested against.
    pub fn matches<A: Address>(&self, header: &Header<A>) -> bool {
        let within = |(first, last): (u16, u16), value: u16| (first..=last).contains(&value);
        self.src.contains(header.src.to_ip())
            && self.dst.contains(header.dst.to_ip())
            && within(self.src_ports, header.values[0])
            && within(self.dst_ports, header.values[1])
            && within(self.kinds(), header.values[2])
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u128 {}
}

/// An address of a family, as a number: `u32` or `u128`.
pub trait Address: Copy + sealed::Sealed {
    /// The compiled classes of the family.
    #[doc(hidden)]
    type Classes: Classes<Self>;
    /// Whether this is IPv6.
    const IS_V6: bool;
    /// The address.
    fn to_ip(self) -> std::net::IpAddr;
    /// The first bits of a number.
    #[doc(hidden)]
    fn from_left_aligned(bits: u128) -> Self;
}

/// The classes of a family's addresses.
#[doc(hidden)]
pub trait Classes<A>: Sized {
    fn compile(ranges: &[crate::lpm::Range<u16>]) -> Self;
    fn prefetch(&self, address: A);
    fn first(&self, address: A) -> u32;
    fn second(&self, address: A, first: u32) -> u32;
    fn class(&self, address: A, second: u32) -> u16;
    fn bytes(&self) -> usize;
}

macro_rules! family {
    ($address:ty, $classes:ty, $ip:ty, $is_v6:literal) => {
        impl Address for $address {
            type Classes = $classes;
            const IS_V6: bool = $is_v6;
            fn to_ip(self) -> std::net::IpAddr {
                <$ip>::from(self).into()
            }
            fn from_left_aligned(bits: u128) -> Self {
                (bits >> (128 - <$address>::BITS)) as $address
            }
        }
        impl Classes<$address> for $classes {
            fn compile(ranges: &[crate::lpm::Range<u16>]) -> Self {
                <$classes>::new(ranges)
            }
            #[inline(always)]
            fn prefetch(&self, address: $address) {
                <$classes>::prefetch(self, address);
            }
            #[inline(always)]
            fn first(&self, address: $address) -> u32 {
                <$classes>::first(self, address)
            }
            #[inline(always)]
            fn second(&self, address: $address, first: u32) -> u32 {
                <$classes>::second(self, address, first)
            }
            #[inline(always)]
            fn class(&self, address: $address, second: u32) -> u16 {
                <$classes>::class(self, address, second)
            }
            fn bytes(&self) -> usize {
                <$classes>::bytes(self)
            }
        }
    };
}
family!(u32, Classes4, std::net::Ipv4Addr, false);
family!(u128, Classes6, std::net::Ipv6Addr, true);

/// What rules look at in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<A> {
    /// The source.
    pub src: A,
    /// The destination.
    pub dst: A,
    /// Ports, protocol and ICMP type, and their complements: see [`simd::reached`].
    values: [u16; 8],
}

impl<A> Header<A> {
    /// A header. A protocol without ports has 0 for both; what is not ICMP has 0 as its type.
    #[inline(always)]
    pub const fn new(src: A, dst: A, src_port: u16, dst_port: u16, protocol: u8, icmp_type: u8) -> Header<A> {
        let kind = (protocol as u16) << 8 | icmp_type as u16;
        Header {
            src,
            dst,
            values: [
                src_port,
                dst_port,
                kind,
                !src_port,
                !dst_port,
                !kind,
                u16::MAX,
                u16::MAX,
            ],
        }
    }

    /// The source port.
    #[inline(always)]
    pub const fn src_port(&self) -> u16 {
        self.values[0]
    }

    /// The destination port.
    #[inline(always)]
    pub const fn dst_port(&self) -> u16 {
        self.values[1]
    }

    /// The protocol.
    #[inline(always)]
    pub const fn protocol(&self) -> u8 {
        (self.values[2] >> 8) as u8
    }

    /// The type of an ICMP message.
    #[inline(always)]
    pub const fn icmp_type(&self) -> u8 {
        self.values[2] as u8
    }
}

/// Why rules cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooComplex {
    /// More rules than their numbers have room for.
    #[error("{rules} rules are too many: at most {} of a family", Classifier::<u32>::RULES_LIMIT)]
    Rules {
        /// The rules.
        rules: usize,
    },
    /// Their prefixes overlap in too many ways.
    #[error(
        "the rules' prefixes overlap in {pairs} pairs of source and destination, at most {limit} can be compiled: \
         remove rules, or write fewer that overlap"
    )]
    Pairs {
        /// Pairs that the tables would hold.
        pairs: u64,
        /// Their limit.
        limit: u64,
    },
    /// Their ports overlap in too many ways.
    #[error(
        "the rules' ports need {rows} rows of four rules, at most {limit} can be compiled: remove rules, or write fewer \
         port ranges that overlap"
    )]
    Leaves {
        /// Rows that the leaves would hold.
        rows: usize,
        /// Their limit.
        limit: usize,
    },
}

/// Rules of one family, compiled. Immutable: new rules are compiled beside it and then take its place.
#[derive(Debug)]
pub struct Classifier<A: Address> {
    src: A::Classes,
    dst: A::Classes,
    /// For each class of sources the shift of its row in each group. Empty where there is one group and 16 bits are enough:
    /// a class is then the shift or the column itself, which saves two reads.
    shifts: Vec<u32>,
    /// For each class of destinations its column in each group, or empty as well.
    columns: Vec<u32>,
    groups: Vec<Pairs>,
    leaves: Leaves,
}

impl<A: Address> Classifier<A> {
    /// Rules that can be compiled: classes are numbered by 16 bits.
    pub const RULES_LIMIT: usize = 1 << 15;

    /// Compiles rules, the first one having precedence. Rules of the other family match nothing. Takes some 50 ms for
    /// ten thousand rules.
    ///
    /// # Errors
    /// [`TooComplex`].
    pub fn new(rules: &[Fields]) -> Result<Classifier<A>, TooComplex> {
        if rules.len() > Self::RULES_LIMIT {
            return Err(TooComplex::Rules { rules: rules.len() });
        }
        let numbers: Vec<u32> = (0..rules.len() as u32)
            .filter(|&n| {
                let fields = &rules[n as usize];
                fields.src.is_v6() == A::IS_V6 && fields.dst.is_v6() == A::IS_V6
            })
            .collect();
        let src = Tree::new(rules, &numbers, |fields| fields.src);
        let dst = Tree::new(rules, &numbers, |fields| fields.dst);
        let bounds: Vec<Bounds> = rules.iter().map(Bounds::of).collect();
        let mut leaves = Leaves::new();
        let mut groups = Vec::new();
        let (mut shifts, mut columns) = (Vec::new(), Vec::new());
        for members in plan::groups(numbers, &src, &dst)? {
            let (src, dst) = (src.of_group(&members), dst.of_group(&members));
            let (pairs, shift_of_row) = Pairs::new(&members, &src, &dst, &bounds, &mut leaves)?;
            let shifts_of_group = src.group_of.iter().map(|&row| shift_of_row[row as usize]);
            shifts.push(shifts_of_group.collect::<Vec<u32>>());
            columns.push(dst.group_of);
            groups.push(pairs);
        }
        leaves.finish();
        let direct = match (&*shifts, &*columns) {
            ([shifts], [columns]) => {
                let mut numbers = shifts.iter().chain(columns);
                let fit = numbers.all(|&number| number <= u32::from(u16::MAX));
                fit.then_some((shifts, columns))
            }
            _ => None,
        };
        let compile = |tree: &Tree, of_class: &dyn Fn(u16) -> u16| {
            let classes = tree.classes().map(|(prefix, class)| (prefix, of_class(class)));
            A::Classes::compile(&flatten(classes, of_class(0)))
        };
        let number = |of: &[u32], class: u16| of[usize::from(class)] as u16;
        Ok(Classifier {
            src: compile(&src, &|class| {
                direct.map_or(class, |(shifts, _)| number(shifts, class))
            }),
            dst: compile(&dst, &|class| {
                direct.map_or(class, |(_, columns)| number(columns, class))
            }),
            shifts: direct.map_or_else(|| side_by_side(&shifts), |_| Vec::new()),
            columns: direct.map_or_else(|| side_by_side(&columns), |_| Vec::new()),
            groups,
            leaves,
        })
    }

    /// Writes the number of the first rule that matches each header, or [`NO_RULE`]. At most [`HEADERS_LIMIT`] headers,
    /// as many as `rules`; what exceeds that is not looked at.
    #[inline]
    pub fn classify(&self, headers: &[Header<A>], rules: &mut [u32]) {
        let len = headers.len().min(rules.len()).min(HEADERS_LIMIT);
        let (headers, rules) = (&headers[..len], &mut rules[..len]);
        for header in headers {
            self.src.prefetch(header.src);
            self.dst.prefetch(header.dst);
        }
        rules.fill(NO_RULE);
        let stride = self.groups.len();
        let mut classes = [(0_usize, 0_usize); HEADERS_LIMIT];
        let mut reads = [(0_u32, 0_u32); HEADERS_LIMIT];
        for (header, read) in headers.iter().zip(&mut reads) {
            *read = (self.src.first(header.src), self.dst.first(header.dst));
        }
        for (header, read) in headers.iter().zip(&mut reads) {
            *read = (
                self.src.second(header.src, read.0),
                self.dst.second(header.dst, read.1),
            );
        }
        let mut cells = [(0_u32, 0_u32); HEADERS_LIMIT];
        if let ([pairs], true) = (&*self.groups, self.shifts.is_empty()) {
            for ((header, read), cell) in headers.iter().zip(&reads).zip(&mut cells) {
                let shift = u32::from(self.src.class(header.src, read.0));
                let column = u32::from(self.dst.class(header.dst, read.1));
                *cell = (shift, shift + column);
                pairs.prefetch(cell.1);
            }
            self.find(pairs, headers, &cells, rules);
            return;
        }
        for ((header, read), classes) in headers.iter().zip(&reads).zip(&mut classes) {
            let src = self.src.class(header.src, read.0);
            let dst = self.dst.class(header.dst, read.1);
            *classes = (usize::from(src) * stride, usize::from(dst) * stride);
            simd::prefetch_at(&self.shifts, classes.0);
            simd::prefetch_at(&self.columns, classes.1);
        }
        for (group, pairs) in self.groups.iter().enumerate() {
            for (&(src, dst), cell) in classes[..len].iter().zip(&mut cells) {
                let shift = self.shifts[src + group];
                *cell = (shift, shift + self.columns[dst + group]);
                pairs.prefetch(cell.1);
            }
            self.find(pairs, headers, &cells, rules);
        }
    }

    /// Looks in the cells of a group, and keeps the first rule of each header.
    #[inline(always)]
    fn find(
        &self,
        pairs: &Pairs,
        headers: &[Header<A>],
        cells: &[(u32, u32); HEADERS_LIMIT],
        rules: &mut [u32],
    ) {
        let mut leaves = [0_u32; HEADERS_LIMIT];
        for (&(shift, at), leaf) in cells[..headers.len()].iter().zip(&mut leaves) {
            *leaf = pairs.leaf(shift, at);
            self.leaves.prefetch(*leaf);
        }
        for ((header, &leaf), rule) in headers.iter().zip(&leaves).zip(rules) {
            *rule = (*rule).min(self.leaves.first(leaf, &header.values));
        }
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        let groups: usize = self.groups.iter().map(Pairs::bytes).sum();
        let numbers = size_of_val(&*self.shifts) + size_of_val(&*self.columns);
        self.src.bytes() + self.dst.bytes() + self.leaves.bytes() + numbers + groups
    }

    /// The groups of rules that each lookup consults.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }
}

/// Puts the numbers that a class has in the groups beside each other: one line of the cache holds them.
fn side_by_side(groups: &[Vec<u32>]) -> Vec<u32> {
    let classes = groups.first().map_or(0, Vec::len);
    (0..classes)
        .flat_map(|class| groups.iter().map(move |group| group[class]))
        .collect()
}

/// The first rule that matches, found by comparing one after the other: the definition of what a [`Classifier`] finds.
pub fn first_match<A: Address>(rules: &[Fields], header: &Header<A>) -> u32 {
    rules
        .iter()
        .position(|fields| fields.matches(header))
        .map_or(NO_RULE, |at| at as u32)
}
