//! Zones as they are looked up: a tree of names in one hash table.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hasher as _;

use domain::base::iana::Class;
use domain::base::name::ToName;
use domain::base::rdata::ComposeRecordData as _;
use domain::base::record::Ttl;
use domain::rdata::ZoneRecordData;
use domain::zonefile::inplace::{Entry, Zonefile};
use model::mix;
use siphasher::sip::SipHasher13;

/// Records, at most.
pub(super) const RECORDS_LIMIT: usize = 4_000_000;
/// Bytes of a name with the lengths of its labels, at most (RFC 1035, 2.3.4).
pub(super) const NAME_BYTES_LIMIT: usize = 255;

/// Types of records that are treated in a way of their own.
pub(super) mod rtype {
    pub(crate) const NS: u16 = 2;
    pub(crate) const CNAME: u16 = 5;
    pub(crate) const SOA: u16 = 6;
    pub(crate) const PTR: u16 = 12;
    pub(crate) const MX: u16 = 15;
    pub(crate) const OPT: u16 = 41;
    pub(crate) const DS: u16 = 43;
    pub(crate) const ANY: u16 = 255;
    pub(crate) const A: u16 = 1;
    pub(crate) const AAAA: u16 = 28;
}
use rtype::{CNAME, DS, NS, SOA};

/// No node.
const NONE: u32 = u32::MAX;

/// A node, by its place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node(u32);

/// Records of one name and type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Set {
    pub(super) rtype: u16,
    /// Seconds.
    pub(super) ttl: u32,
    first: u32,
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Of {
    /// Its name in lower case, in `bytes`.
    name: u32,
    name_len: u8,
    /// Its sets.
    first: u32,
    count: u16,
    /// The apex of its zone.
    apex: u32,
    /// The highest name below the apex, from there to here, that another server is responsible for.
    cut: u32,
    /// The wildcard below it.
    wildcard: u32,
}

/// All zones.
#[derive(Debug)]
pub(super) struct Zones {
    table: Box<[u32]>,
    nodes: Vec<Of>,
    sets: Vec<Set>,
    /// Where the data of each record is, and its length.
    records: Vec<(u32, u16)>,
    bytes: Vec<u8>,
    zones: usize,
    /// Labels of the longest name that there is, without the root.
    labels_limit: usize,
    secret: [u64; 2],
}

/// A name as it is written in messages, with the root's label.
type Name = Vec<u8>;

/// Sets of a name by their types, each with its time to live and its records.
type Sets = BTreeMap<u16, (u32, Vec<Vec<u8>>)>;

/// The name above a name; [`None`] for the root.
fn parent(name: &[u8]) -> Option<&[u8]> {
    let (&len, rest) = name.split_first()?;
    (len > 0).then(|| rest.get(usize::from(len)..)).flatten()
}

/// A name in words, for errors.
fn words(name: &[u8]) -> String {
    domain::base::Name::from_octets(name).map_or_else(|_| String::from("?"), |name| format!("{name}."))
}

/// The labels of a name, without the root.
fn labels(name: &[u8]) -> usize {
    std::iter::successors(Some(name), |name| parent(name)).count() - 1
}

fn is_wildcard(name: &[u8]) -> bool {
    name.starts_with(b"\x01*")
}

/// Reads records. The errors of the parser have line and column.
fn read(text: &str) -> Result<HashMap<Name, Sets>, String> {
    let mut names: HashMap<Name, Sets> = HashMap::new();
    let mut count = 0;
    let mut file = Zonefile::with_capacity(text.len() + 1);
    file.extend_from_slice(text.as_bytes());
    file.extend_from_slice(b"\n");
    file.set_default_class(Class::IN);
    while let Some(entry) = file.next_entry().map_err(|error| error.to_string())? {
        let Entry::Record(record) = entry else {
            return Err("$INCLUDE: a function reads no files; write the records here".to_owned());
        };
        count += 1;
        if count > RECORDS_LIMIT {
            return Err(format!("more than {RECORDS_LIMIT} records"));
        }
        let mut owner = record.owner().to_vec().as_slice().to_vec();
        owner.make_ascii_lowercase();
        let name = || words(&owner);
        if record.class() != Class::IN {
            return Err(format!("{}: the class is {}, not IN", name(), record.class()));
        }
        let rtype = record.rtype().to_int();
        match record.data() {
            ZoneRecordData::Rrsig(_)
            | ZoneRecordData::Nsec(_)
            | ZoneRecordData::Nsec3(_)
            | ZoneRecordData::Nsec3param(_)
            | ZoneRecordData::Dnskey(_) => {
                return Err(format!(
                    "{} {}: signed zones are not supported",
                    name(),
                    record.rtype()
                ));
            }
            ZoneRecordData::Dname(_) => return Err(format!("{} DNAME is not supported", name())),
            ZoneRecordData::Ns(_) if is_wildcard(&owner) => {
                return Err(format!("{} NS: a wildcard cannot be delegated", name()));
            }
            _ => {}
        }
        let mut data = Vec::new();
        record
            .data()
            .compose_rdata(&mut data)
            .map_err(|_| format!("{} {}: too long", name(), record.rtype()))?;
        let ttl = Ttl::as_secs(&record.ttl()).min(i32::MAX as u32);
        let sets = names.entry(owner).or_default();
        let set = sets.entry(rtype).or_insert((ttl, Vec::new()));
        // Those of a set have one time to live (RFC 2181, 5.2).
        set.0 = set.0.min(ttl);
        if !set.1.contains(&data) {
            set.1.push(data);
        }
    }
    Ok(names)
}

/// What must hold for the records of a name.
fn check(name: &[u8], sets: &Sets) -> Result<(), String> {
    let count = |rtype| {
        sets.get(&rtype)
            .map_or(0, |set: &(u32, Vec<Vec<u8>>)| set.1.len())
    };
    if count(CNAME) > 1 || (count(CNAME) == 1 && sets.len() > 1) {
        return Err(format!("{} has a CNAME and other records", words(name)));
    }
    if count(SOA) > 1 {
        return Err(format!("{} has two SOA records", words(name)));
    }
    if count(SOA) == 1 && count(NS) == 0 {
        return Err(format!("{} has no NS record", words(name)));
    }
    Ok(())
}

impl Zones {
    /// Reads zones from master files (RFC 1035, 5), one behind the other. Each SOA record begins a zone at its name.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub(super) fn parse(text: &str, seed: u64) -> Result<Zones, String> {
        let mut names = read(text)?;
        if names.is_empty() {
            return Err("there are no records".to_owned());
        }
        for (name, sets) in &names {
            check(name, sets)?;
        }
        // Names between those with records exist, too (RFC 4592, 2.2.2).
        let known: Vec<Name> = names.keys().cloned().collect();
        for name in &known {
            let mut above: &[u8] = name;
            let of = loop {
                if names.get(above).is_some_and(|sets| sets.contains_key(&SOA)) {
                    break true;
                }
                match parent(above) {
                    Some(next) => above = next,
                    None => break false,
                }
            };
            if !of {
                return Err(format!(
                    "{} is in no zone: no SOA record is above it",
                    words(name)
                ));
            }
            let apex = above.to_vec();
            let mut between = parent(name);
            while let Some(of) = between.filter(|of| of.len() > apex.len()) {
                names.entry(of.to_vec()).or_default();
                between = parent(of);
            }
        }
        Ok(Zones::build(names, seed))
    }

    fn build(names: HashMap<Name, Sets>, seed: u64) -> Zones {
        let mut ordered: Vec<(Name, Sets)> = names.into_iter().collect();
        // A name comes behind those above it. The rest of the order makes the layout always the same.
        ordered.sort_by_cached_key(|(name, _)| (labels(name), name.clone()));
        let size = (ordered.len() * 2).next_power_of_two();
        let mut zones = Zones {
            table: vec![NONE; size].into_boxed_slice(),
            nodes: Vec::with_capacity(ordered.len()),
            sets: Vec::new(),
            records: Vec::new(),
            bytes: Vec::new(),
            zones: 0,
            labels_limit: 0,
            secret: [mix(seed), mix(mix(seed))],
        };
        for (name, sets) in ordered {
            zones.add(&name, sets);
        }
        zones
    }

    fn add(&mut self, name: &[u8], sets: Sets) {
        let at = self.nodes.len() as u32;
        let above = parent(name).and_then(|above| self.find(above));
        let is_apex = sets.contains_key(&SOA);
        self.zones += usize::from(is_apex);
        let above_of = above.and_then(|above| self.nodes.get(above.0 as usize)).copied();
        let (apex, cut) = match above_of {
            Some(above) if !is_apex => {
                let cut = if above.cut != NONE {
                    above.cut
                } else if sets.contains_key(&NS) {
                    at
                } else {
                    NONE
                };
                (above.apex, cut)
            }
            _ => (at, NONE),
        };
        if is_wildcard(name)
            && let Some(above) = above.and_then(|above| self.nodes.get_mut(above.0 as usize))
        {
            above.wildcard = at;
        }
        self.nodes.push(Of {
            name: self.bytes.len() as u32,
            name_len: name.len() as u8,
            first: self.sets.len() as u32,
            count: sets.len() as u16,
            apex,
            cut,
            wildcard: NONE,
        });
        self.bytes.extend_from_slice(name);
        for (rtype, (ttl, records)) in sets {
            self.sets.push(Set {
                rtype,
                ttl,
                first: self.records.len() as u32,
                count: records.len() as u32,
            });
            for data in records {
                self.records.push((self.bytes.len() as u32, data.len() as u16));
                self.bytes.extend_from_slice(&data);
            }
        }
        self.labels_limit = self.labels_limit.max(labels(name));
        let mask = self.table.len() - 1;
        let mut place = self.hash(name) as usize & mask;
        while self.table[place] != NONE {
            place = (place + 1) & mask;
        }
        self.table[place] = at;
    }

    /// The keyed hash of a name in lower case.
    fn hash(&self, name: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.secret[0], self.secret[1]);
        hasher.write(name);
        hasher.finish()
    }

    /// Records that there are.
    pub(super) fn records(&self) -> usize {
        self.records.len()
    }

    /// Zones that there are.
    pub(super) fn len(&self) -> usize {
        self.zones
    }

    /// The node of a name in lower case.
    pub(super) fn find(&self, name: &[u8]) -> Option<Node> {
        let mask = self.table.len() - 1;
        let mut place = self.hash(name) as usize & mask;
        loop {
            let at = *self.table.get(place)?;
            let of = self.nodes.get(at as usize)?;
            if self.name_of(of) == name {
                return Some(Node(at));
            }
            place = (place + 1) & mask;
        }
    }

    /// The node of the longest name that there is of a name in lower case and those above it, and whether it is the name
    /// itself. [`None`]: the name is in no zone.
    pub(super) fn closest(&self, name: &[u8]) -> Option<(Node, bool)> {
        let mut above = name;
        // Nothing has more labels than the longest.
        for _ in self.labels_limit..labels(name) {
            above = parent(above)?;
        }
        loop {
            if let Some(node) = self.find(above) {
                return Some((node, above.len() == name.len()));
            }
            above = parent(above)?;
        }
    }

    fn of(&self, node: Node) -> Option<&Of> {
        self.nodes.get(node.0 as usize)
    }

    fn name_of(&self, of: &Of) -> &[u8] {
        let from = of.name as usize;
        self.bytes
            .get(from..from + usize::from(of.name_len))
            .unwrap_or_default()
    }

    /// Its name, in lower case.
    pub(super) fn name(&self, node: Node) -> &[u8] {
        self.of(node).map_or(&[], |of| self.name_of(of))
    }

    /// The apex of its zone.
    pub(super) fn apex(&self, node: Node) -> Node {
        Node(self.of(node).map_or(node.0, |of| of.apex))
    }

    /// The name at or above it from which on another server is responsible. The parent has the record DS of that name.
    pub(super) fn cut(&self, node: Node, is_there: bool, rtype: u16) -> Option<Node> {
        let cut = self.of(node).map(|of| of.cut).filter(|cut| *cut != NONE)?;
        (!(is_there && rtype == DS && cut == node.0)).then_some(Node(cut))
    }

    /// The wildcard below it.
    pub(super) fn wildcard(&self, node: Node) -> Option<Node> {
        let wildcard = self.of(node)?.wildcard;
        (wildcard != NONE).then_some(Node(wildcard))
    }

    /// The records of a node.
    pub(super) fn sets(&self, node: Node) -> &[Set] {
        let sets = self.of(node).and_then(|of| {
            let first = of.first as usize;
            self.sets.get(first..first + usize::from(of.count))
        });
        sets.unwrap_or_default()
    }

    /// Its records of a type.
    pub(super) fn set(&self, node: Node, rtype: u16) -> Option<&Set> {
        self.sets(node).iter().find(|set| set.rtype == rtype)
    }

    /// The data of the records of a set.
    pub(super) fn data<'z>(&'z self, set: &Set) -> impl Iterator<Item = &'z [u8]> + use<'z> {
        let first = set.first as usize;
        let records = self.records.get(first..first + set.count as usize);
        records.unwrap_or_default().iter().map(|(at, len)| {
            let at = *at as usize;
            self.bytes.get(at..at + usize::from(*len)).unwrap_or_default()
        })
    }
}
