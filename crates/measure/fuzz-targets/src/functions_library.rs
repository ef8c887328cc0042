//! The functions that instances run.

use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, STATE_BYTES_LIMIT, Setup};
use model::{Nanos, PortBlock, Tuple, key_bits};
use state_moves::{FRAME_BYTES_LIMIT, Message};

use crate::pieces;

/// Configurations by name, with small tables, so that they fill. A function without one has its defaults.
const CONFIGURATIONS: &[(&str, &str)] = &[
    ("cache", "memory_mib = 1"),
    (
        "classifier",
        "port = 53\nfeatures = 4\nvalues = 256\nclasses = [\"a\", \"b\"]\ntraining = true",
    ),
    (
        "dns",
        "addresses = [\"10.0.0.53\", \"2001:db8::53\"]\nmac = \"02:00:00:00:00:35\"\ncache_answers = 8\nothers = \"pass\"\n\
         zones = '''\n$ORIGIN a.\n$TTL 60\n@ SOA ns h 1 2 3 4 5\n@ NS ns\nns A 10.0.0.53\n*.w A 10.0.0.1\n\
         c CNAME d\nd CNAME c\nz NS ns.z\nns.z A 10.0.0.2\n@ TXT \"text\"\n'''\n",
    ),
    (
        "firewall",
        "default = \"allow\"\nconnections = 8\nmidstream = true\ncount_interval_s = 1\n[[rule]]\naction = \"deny\"\n\
         protocol = \"udp\"\ndestination_ports = \"1-99\"\n[[rule]]\naction = \"allow\"\nsource = \"10.0.0.0/8\"\n",
    ),
    (
        "ids",
        "flows = 4\nwindow = 256\nwaiting = 512\nmemory_mib = 1\nidle_s = 2\nverify_checksums = false\nrules = \'\'\'\n\
         alert ip any any -> any any (content:\"a\"; nocase; content:\"b\"; distance:0; within:9; sid:1;)\n\
         drop udp any any -> any 53 (content:\"|00 01|\"; offset:2; depth:8; pcre:\"/[a-z]{3}/\"; sid:2;)\n\
         alert tcp any any <> any any (flow:established; content:\"x\"; flowbits:set,f; \
         threshold:type limit, track by_src, count 1, seconds 2; sid:3;)\n\
         pass tcp any any -> any any (flowbits:isset,f; dsize:<3; sid:4;)\n\'\'\'\n",
    ),
    (
        "ipsec",
        "keepalive_s = 1\n[[outbound]]\nname = \"o\"\nspi = 1001\nsuite = \"aes-128-gcm\"\n\
         key = \"01010101010101010101010101010101\"\nsalt = \"01010101\"\nsource = \"10.0.0.1\"\n\
         destination = \"10.0.0.2\"\nudp_destination_port = 4500\n[[inbound]]\nname = \"i\"\nspi = 1001\n\
         suite = \"aes-128-gcm\"\nkey = \"01010101010101010101010101010101\"\nsalt = \"01010101\"\n\
         destination = \"10.0.0.2\"\nextended_sequence_numbers = true\n[[policy]]\nsource = [\"10.0.0.0/8\"]\n\
         destination = [\"0.0.0.0/0\"]\naction = \"protect\"\noutbound = \"o\"\ninbound = [\"i\"]\n",
    ),
    (
        "limiter",
        "buckets_limit = 16\n[[rule]]\nkey = \"flow\"\nrate = \"10pps\"\nburst_packets = 2\n",
    ),
    (
        "maglev",
        "addresses = [\"10.0.0.1\"]\n[[back_end]]\nname = \"a\"\nmac = \"02:00:00:00:00:01\"\n",
    ),
    (
        "monitor",
        "flows_limit = 8\nheavy_limit = 4\nsketch_width = 16\n[export]\ncollector = \"192.0.2.9:4739\"\n\
         source = \"192.0.2.1:4739\"\ncollector_mac = \"02:00:00:00:00:01\"\nsource_mac = \"02:00:00:00:00:02\"\n",
    ),
    (
        "nat",
        "inside = [\"0.0.0.0/1\"]\nexternal = [\"198.51.100.1:1024-65535\"]\nmappings_limit = 16\n",
    ),
    ("pfabric", "rate = \"100Mbit/s\"\npackets = 5\nframe_bytes = 2048"),
    ("ranker", "port = 53\nkeys_limit = 4"),
    (
        "replica",
        "address = \"10.0.0.1:53\"\nmac = \"02:00:00:00:00:01\"\nkeys_limit = 4\npending_limit = 4\n\
         [successor]\naddress = \"10.0.0.2:53\"\nmac = \"02:00:00:00:00:02\"\n",
    ),
    (
        "router",
        "address = \"192.0.2.1\"\nroutes = \"10.0.0.0/8 a\"\n[[next_hop]]\nname = \"a\"\n",
    ),
];

/// Messages to the functions with state, in one instance: what is read is written the same, and what a function takes of
/// a flow it can give on.
pub(crate) fn state_moves(bytes: &[u8]) {
    let setup = Setup {
        instance: 1,
        ports: 2,
        seed: 1,
        external: None,
    };
    let stages = LIBRARY.iter().filter_map(|entry| {
        let text = match entry.about().name {
            "firewall" => "default = \"deny\"\nconnections = 4\n",
            "limiter" => "buckets_limit = 4\n[[rule]]\nkey = \"flow\"\nrate = \"10pps\"\nburst_packets = 2\n",
            _ => return None,
        };
        Some(entry.make(text, &setup).unwrap())
    });
    let mut chain = Chain::new(stages.collect()).unwrap();
    let mut associations = Associations::new(&setup);
    let mut translators = [1024, 2024].map(translator);
    let now = Nanos::from_secs(1);
    for piece in pieces(bytes) {
        // The addresses and the EtherType are those of any message.
        let frame = [&[0; 12][..], &[0x88, 0xb6, 1], piece].concat();
        let Some((number, message)) = Message::read(&frame) else {
            continue;
        };
        let mut room = [0; FRAME_BYTES_LIMIT];
        let length = message.write(number, &mut room).unwrap();
        assert_eq!(Message::read(&room[..length]), Some((number, message)));
        let mut state = [0; STATE_BYTES_LIMIT];
        match message {
            Message::Import(flow, moved) => {
                if chain.import(&flow, moved, now).is_ok() {
                    let length = chain.export(&flow, &mut state, now).unwrap();
                    chain.import(&flow, &state[..length], now).unwrap();
                }
                associations.import_changed(moved, now);
            }
            Message::Forget(flow) => chain.forget(&flow, now),
            Message::Export(flow) => {
                let is_of_content = flow.vlan & key_bits::OF_CONTENT != 0;
                assert_eq!(chain.export(&flow, &mut state, now).is_err(), is_of_content);
            }
            Message::TakeOver(mappings) => {
                let [of, next] = &mut translators;
                let _ = of.take_over(mappings, now);
                let (length, _) = of.hand_over(0, &mut state, now).unwrap();
                let _ = next.take_over(&state[..length], now);
            }
            Message::HandOver(from) => {
                let (length, next) = translators[0].hand_over(from, &mut state, now).unwrap();
                assert!(length <= state.len() && next.is_none_or(|next| next > from));
            }
            Message::Count(ports) => {
                let held = translators[0].stages()[0].summary().flows;
                assert!(u64::from(translators[0].mappings_in(&ports, now).unwrap()) <= held);
            }
            _ => {}
        }
    }
}

/// A translator with 1000 ports that inco has given to it.
fn translator(first: u16) -> Chain {
    let setup = Setup {
        instance: 1,
        ports: 2,
        seed: first.into(),
        external: Some(PortBlock {
            address: [192, 0, 2, 1].into(),
            first,
            last: first + 999,
        }),
    };
    let entry = LIBRARY.iter().find(|of| of.about().name == "nat").unwrap();
    let text = "inside = [\"10.0.0.0/8\"]\nmappings_limit = 16\n";
    Chain::new(vec![entry.make(text, &setup).unwrap()]).unwrap()
}

/// A gateway with an association of each direction, which are one flow here.
struct Associations {
    chain: Chain,
    flow: Tuple,
}

impl Associations {
    fn new(setup: &Setup) -> Associations {
        let each = |direction: &str, byte: u8| {
            format!(
                "[[{direction}]]\nname = \"{direction}\"\nspi = 4097\nsuite = \"aes-128-gcm\"\nkey = \"{}\"\nsalt = \"00000000\"\n\
                 destination = \"192.0.2.2\"\n",
                format!("{byte:02x}").repeat(16)
            )
        };
        let text = format!(
            "{}source = \"192.0.2.1\"\n{}",
            each("outbound", 1),
            each("inbound", 2)
        );
        let entry = LIBRARY.iter().find(|of| of.about().name == "ipsec").unwrap();
        let (key, direction) = packet::association_key(4097, [192, 0, 2, 2].into());
        Associations {
            chain: Chain::new(vec![entry.make(&text, setup).unwrap()]).unwrap(),
            flow: key.tuple(direction),
        }
    }

    fn exported(&self, now: Nanos) -> Vec<u8> {
        let mut state = [0; STATE_BYTES_LIMIT];
        let length = self.chain.export(&self.flow, &mut state, now).unwrap();
        state[..length].to_vec()
    }

    /// Imports what it has itself, with the bits changed that these bytes say: numbers do not fall.
    fn import_changed(&mut self, bits: &[u8], now: Nanos) {
        /// The numbers behind the count, a length, the version, and a direction with an identity each.
        const NUMBERS: [usize; 2] = [1 + 2 + 4 + 33, 1 + 2 + 4 + 33 + 8 + 33];
        let before = self.exported(now);
        let mut changed = before.clone();
        for (byte, bits) in changed.iter_mut().zip(bits) {
            *byte ^= bits;
        }
        if self.chain.import(&self.flow, &changed, now).is_err() {
            assert_eq!(self.exported(now), before);
        }
        let after = self.exported(now);
        for at in NUMBERS {
            assert!(after[at..at + 8] >= before[at..at + 8]);
        }
    }
}

/// Frames through one function, chosen by the first byte, with time between bursts: each packet has one verdict.
pub(crate) fn functions(bytes: &[u8]) {
    let Some((which, rest)) = bytes.split_first() else {
        return;
    };
    let entry = &LIBRARY[usize::from(*which) % LIBRARY.len()];
    let name = entry.about().name;
    let configured = CONFIGURATIONS.iter().find(|of| of.0 == name);
    let setup = Setup {
        instance: 1,
        ports: 2,
        seed: 1,
        external: None,
    };
    let stage = entry.make(configured.map_or("", |of| of.1), &setup);
    let stage = stage.unwrap_or_else(|error| panic!("{name} needs another configuration here: {error}"));
    let mut chain = Chain::new(vec![stage]).unwrap();
    let mut burst = Burst::new();
    let mut now = Nanos::from_secs(1);
    let mut given = 0;
    let all: Vec<&[u8]> = pieces(rest).filter(|piece| piece.len() > 1).collect();
    for frames in all.chunks(RECEIVED_LIMIT) {
        // Of each burst the first one says where it comes from, and when: up to 4 s later.
        let how = frames[0][0];
        let port = how & 1;
        now = now + Nanos(1 << (how % 33));
        burst.begin(port, 1 - port);
        for frame in frames {
            assert!(burst.push(&frame[1..]));
        }
        given += frames.len() as u64;
        chain.process(&mut burst, now);
        check(&chain, given);
        chain.tick(0, &mut burst, 1, now);
        check(&chain, given);
        let mut line = String::new();
        while chain.record(Nanos::ZERO, &mut line) {
            assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");
            line.clear();
        }
    }
}

fn check(chain: &Chain, given: u64) {
    let totals = chain.stages()[0].totals();
    assert_eq!(
        totals.packets + totals.originated,
        totals.forwarded + totals.answered + totals.consumed + totals.dropped,
        "{totals:?}"
    );
    // Nothing turns back to a function that is alone.
    assert_eq!(totals.packets, given);
}
