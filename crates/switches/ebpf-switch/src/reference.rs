//! The layout as it was released, and as this side has it: both are compared with what the compiler has made of
//! `bpf/layout.h`.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::path::PathBuf;

use object::{Object as _, ObjectSection as _};

use crate::layout::*;
use crate::release::Release;

/// A type in the programs' type information (BTF, as the kernel documents it).
struct Type {
    name: String,
    kind: u32,
    /// Its size, or the type that it is of.
    size_or_type: u32,
    /// The words after it: fields of a structure, the length of an array.
    rest: Vec<u32>,
}

/// Types by number, and the names in the rest of them.
struct Types {
    all: Vec<Type>,
    strings: Vec<u8>,
}

const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const VAR: u32 = 14;

impl Types {
    fn of(object: &[u8]) -> Types {
        let file = object::File::parse(object).unwrap();
        let bytes = file.section_by_name(".BTF").unwrap().data().unwrap().to_vec();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(0) & 0xffff, 0xeb9f);
        let header = word(4) as usize;
        let (types, length) = (header + word(8) as usize, word(12) as usize);
        let strings = bytes[header + word(16) as usize..].to_vec();
        let void = Type {
            name: "void".to_owned(),
            kind: 0,
            size_or_type: 0,
            rest: Vec::new(),
        };
        let mut of = Types {
            all: vec![void],
            strings,
        };
        let mut at = types;
        while at < types + length {
            let (name, info, size_or_type) = (word(at), word(at + 4), word(at + 8));
            let (kind, count) = (info >> 24 & 31, (info & 0xffff) as usize);
            let words = match kind {
                1 | VAR | 17 => 1,
                ARRAY => 3,
                STRUCT | 5 | 15 | 19 => 3 * count,
                6 | 13 => 2 * count,
                _ => 0,
            };
            at += 12;
            of.all.push(Type {
                name: of.text(name),
                kind,
                size_or_type,
                rest: (0..words).map(|word_at| word(at + 4 * word_at)).collect(),
            });
            at += 4 * words;
        }
        of
    }

    fn text(&self, at: u32) -> String {
        let bytes = self.strings[at as usize..]
            .split(|byte| *byte == 0)
            .next()
            .unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    fn get(&self, id: u32) -> &Type {
        &self.all[id as usize]
    }

    /// How a type is written, and the structures that it needs.
    fn name(&self, id: u32, needs: &mut BTreeSet<u32>) -> String {
        let of = self.get(id);
        match of.kind {
            STRUCT => {
                needs.insert(id);
                format!("struct {}", of.name)
            }
            ARRAY => format!("{}[{}]", self.name(of.rest[0], needs), of.rest[2]),
            PTR => format!("{} *", self.name(of.size_or_type, needs)),
            _ => of.name.clone(),
        }
    }

    /// Fields of a structure: where each begins, its name and its type.
    fn fields(&self, id: u32) -> impl Iterator<Item = (u32, String, u32)> {
        let fields = self.get(id).rest.chunks_exact(3);
        fields.map(|of| (of[2] / 8, self.text(of[0]), of[1]))
    }

    fn structure(&self, name: &str) -> u32 {
        let found = self
            .all
            .iter()
            .position(|of| of.kind == STRUCT && of.name == name);
        found.unwrap_or_else(|| panic!("no struct {name}")) as u32
    }
}

/// Maps that this release pins, and each structure in them, in words.
fn layout(types: &Types) -> String {
    let (mut text, mut needs, mut told) = (String::new(), BTreeSet::new(), BTreeSet::new());
    let maps: BTreeMap<&str, &Type> = types
        .all
        .iter()
        .filter(|of| of.kind == VAR && crate::kernel::MAPS.contains(&of.name.as_str()))
        .map(|of| (of.name.as_str(), of))
        .collect();
    assert_eq!(maps.len(), crate::kernel::MAPS.len());
    for (name, map) in maps {
        text += &format!("map {name}\n");
        for (_, field, of) in types.fields(map.size_or_type) {
            // Entries are as many as the configuration says.
            let target = types.get(of).size_or_type;
            if field == "key" || field == "value" {
                text += &format!("  {field} {}\n", types.name(target, &mut needs));
            } else if field != "max_entries" {
                text += &format!("  {field} {}\n", types.get(target).rest[2]);
            }
        }
    }
    while let Some(id) = needs.pop_first() {
        if told.insert(id) {
            text += &format!(
                "struct {}: {} bytes\n",
                types.get(id).name,
                types.get(id).size_or_type
            );
            for (at, field, of) in types.fields(id) {
                text += &format!("  {at} {field}: {}\n", types.name(of, &mut needs));
            }
        }
    }
    text
}

/// Words of the header that say what numbers mean, without comments.
fn meanings() -> String {
    let lines = include_str!("../bpf/layout.h").lines();
    let lines = lines.map(|line| line.split("//").next().unwrap_or_default());
    let code: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let code = code.join(" ");
    let enums = code
        .split("enum {")
        .skip(1)
        .map(|rest| rest.split("};").next().unwrap());
    let pins = code
        .split("#define PIN")
        .skip(1)
        .map(|rest| rest.split(" #").next().unwrap());
    let pins = pins.map(|rest| {
        rest.split(" struct {")
            .next()
            .unwrap()
            .trim_end_matches(['\\', ' '])
    });
    let mut text = String::new();
    enums.for_each(|of| text += &format!("enum {}\n", of.trim()));
    pins.for_each(|of| text += &format!("PIN{}\n", of.trim()));
    text
}

/// A field that has moved, or one of the same type that has changed places with another, without a new number is found
/// here. `release` has the steps.
#[test]
fn the_layout_is_as_it_was_released() {
    let text = layout(&Types::of(Release::THIS.object)) + &meanings();
    let name = format!("tests/layouts/v{LAYOUT}.txt");
    let place = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("INCO_WRITE_REFERENCE").is_some() {
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(&place, &text).unwrap();
    }
    let released = std::fs::read_to_string(&place).unwrap_or_default();
    let changed = text.lines().zip(released.lines()).find(|(is, was)| is != was);
    assert!(
        text == released,
        "layout {LAYOUT} is not as {} has it: {changed:?}; src/release.rs has the steps",
        place.display()
    );
}

/// Both sides have the same fields at the same places.
#[test]
fn this_side_has_the_layout_of_the_programs() {
    let types = Types::of(Release::THIS.object);
    macro_rules! compare {
        ($name:literal, $type:ty, $($field:ident $(. $inner:ident)?),+) => {
            let id = types.structure($name);
            assert_eq!(types.get(id).size_or_type as usize, size_of::<$type>(), $name);
            let theirs: BTreeMap<String, u32> = types.fields(id).map(|(at, name, _)| (name, at)).collect();
            let ours = [$((
                [stringify!($field) $(, stringify!($inner))?].last().unwrap().to_string(),
                offset_of!($type, $field $(. $inner)?) as u32,
            )),+];
            for (field, at) in &ours {
                assert_eq!(theirs.get(field), Some(at), "{}.{field}", $name);
            }
            // What is left is nobody's here: zeros, and what programs keep for themselves.
            let known: BTreeSet<&String> = ours.iter().map(|(field, _)| field).collect();
            let private = ["zero", "zeros", "more_zero", "last_zero", "event", "is_walked", "walk_after"];
            let missing: Vec<_> = theirs
                .keys()
                .filter(|field| !known.contains(field) && !private.contains(&field.as_str()))
                .collect();
            assert!(missing.is_empty(), "{}: {missing:?}", $name);
        };
    }
    compare!("world", World, settings, order, uplinks, slots, rules, services);
    compare!(
        "settings",
        SettingsRow,
        layout,
        by_hash,
        generation,
        hash_key,
        timeouts,
        rules,
        unmatched,
        other,
        gateway_mac,
        sweep_row,
        back_ends,
        shared_ns
    );
    compare!("order", OrderRow, head, tail, places);
    compare!(
        "uplink",
        UplinkRow,
        ifindex,
        mac,
        is_peer,
        is_up,
        unmatched_to,
        other_to
    );
    compare!(
        "slot",
        SlotRow,
        epoch,
        state,
        flags,
        service,
        ifindex,
        mac,
        port,
        target_port,
        vip4,
        own4,
        vip6,
        own6
    );
    compare!(
        "rule", RuleRow, src, src_mask, dst, dst_mask, src_port, dst_port, service, vlan, protocol, family,
        uplinks
    );
    compare!(
        "service",
        ServiceRow,
        by,
        drops_when_full,
        actives,
        vlan,
        uplink,
        filled,
        shared_by,
        half_open_limit,
        refill_at,
        moving.taken,
        moving.half_open,
        picks,
        table,
        active
    );
    compare!(
        "counts",
        Counts,
        drops,
        table_full,
        started,
        ended,
        moved,
        mark,
        lost_events,
        fresh,
        uplinks,
        services,
        slots
    );
    compare!(
        "slot_counts",
        SlotCounts,
        to_packets,
        to_bytes,
        back_packets,
        back_bytes,
        new_flows,
        expected_moves,
        opened,
        spoofed,
        started,
        ended
    );
    compare!(
        "service_counts",
        ServiceCounts,
        offered_packets,
        offered_bytes,
        unserved,
        unpinned,
        ran_out,
        recovered,
        skipped,
        flooded
    );
    compare!(
        "uplink_counts",
        UplinkCounts,
        received_packets,
        received_bytes,
        sent_packets,
        sent_bytes,
        dropped,
        to_host,
        answered,
        passed
    );
    compare!(
        "flow", Flow, pin, seen, packets, bytes, pinned_at, outside, place, opener, inside, tcp
    );
}
