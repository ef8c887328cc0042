use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use domain::base::iana::{Class, Rcode, Rtype};
use domain::base::{Message, MessageBuilder, Name, ParsedName, ToName as _};
use domain::rdata::AllRecordData;
use packet::build::Frame;
use packet::{Parsed, checksum, parse};
use proptest::prelude::*;

use super::*;
use crate::burst::{RECEIVED_LIMIT, Verdict};
use crate::chain::Chain;
use crate::library::{LIBRARY, find};

const SETUP: Setup = Setup {
    instance: 1,
    ports: 1,
    seed: 7,
    external: None,
};
const ZONE: &str = include_str!("../../tests/dns/example.zone");

fn text() -> String {
    format!("zones = '''\n{ZONE}'''\n")
}

fn chain(text: &str) -> Chain {
    Chain::new(vec![find(LIBRARY, "dns").unwrap().make(text, &SETUP).unwrap()]).unwrap()
}

fn frame(payload: &[u8], is_v6: bool) -> Vec<u8> {
    let ends: [SocketAddr; 2] = if is_v6 {
        ["[2001:db8::9]:4000", "[2001:db8::35]:53"]
    } else {
        ["192.0.2.9:4000", "192.0.2.53:53"]
    }
    .map(|end| end.parse().unwrap());
    Frame::udp(ends[0], ends[1], payload).unwrap().to_vec().unwrap()
}

/// What leaves, after a check of what must hold for each frame.
fn pass(chain: &mut Chain, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut left = Vec::new();
    let mut burst = Burst::new();
    for frames in frames.chunks(RECEIVED_LIMIT) {
        burst.begin(0, 0);
        for frame in frames {
            assert!(burst.push(frame));
        }
        chain.process(&mut burst, Nanos::from_secs(1));
        left.extend(burst.leaving().iter().map(|of| burst.bytes_of(of).to_vec()));
    }
    let totals = chain.stages()[0].totals();
    assert_eq!(
        totals.packets + totals.originated,
        totals.forwarded + totals.answered + totals.consumed + totals.dropped
    );
    left
}

/// The payload of an answer, whose headers must be right.
fn payload(frame: &[u8]) -> Vec<u8> {
    let Parsed::Flow(info) = parse(frame) else {
        panic!("{frame:02x?}");
    };
    let (l3, l4) = (usize::from(info.l3_offset), usize::from(info.l4_offset));
    let datagram = &frame[l4..l3 + info.l3_len as usize];
    let ends = if frame[l3] >> 4 == 4 {
        &frame[l3 + 12..l3 + 20]
    } else {
        &frame[l3 + 8..l3 + 40]
    };
    let pseudo = checksum::add(checksum::sum(ends), 17 + datagram.len() as u16);
    assert_eq!(checksum::add(pseudo, checksum::sum(datagram)) % 0xffff, 0);
    assert_eq!(&datagram[..4], [0, 53, 0x0f, 0xa0]);
    assert_eq!(frame.len(), l3 + info.l3_len as usize);
    datagram[8..].to_vec()
}

/// How a question is asked.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    size: Option<u16>,
    is_v6: bool,
}

fn question(name: &str, rtype: Rtype, size: Option<u16>) -> Vec<u8> {
    let mut builder = MessageBuilder::new_vec();
    builder.header_mut().set_id(0x1234);
    builder.header_mut().set_rd(true);
    let mut builder = builder.question();
    let name: Name<Vec<u8>> = name.parse().unwrap();
    builder.push((name, rtype)).unwrap();
    let mut builder = builder.additional();
    if let Some(size) = size {
        builder
            .opt(|opt| {
                opt.set_udp_payload_size(size);
                opt.set_dnssec_ok(true);
                Ok(())
            })
            .unwrap();
    }
    builder.finish()
}

fn ask(chain: &mut Chain, name: &str, rtype: Rtype, way: Way) -> Message<Vec<u8>> {
    let asked = question(name, rtype, way.size);
    let left = pass(chain, &[frame(&asked, way.is_v6)]);
    let [answer] = &left[..] else {
        panic!("{} frames for {name}", left.len())
    };
    let answer = payload(answer);
    let limit = way.size.map_or(512, |size| size.clamp(512, 1232));
    assert!(answer.len() <= usize::from(limit), "{} bytes", answer.len());
    let message = Message::from_octets(answer).unwrap();
    let header = message.header();
    assert!(header.qr() && header.rd() && !header.ra() && header.id() == 0x1234);
    // The question as it was asked, with the case of its letters.
    let len = name_len(&asked[12..]) + 4;
    assert_eq!(message.as_slice()[12..12 + len], asked[12..12 + len]);
    assert_eq!(message.opt().is_some(), way.size.is_some());
    assert!(message.opt().is_none_or(|opt| opt.dnssec_ok()));
    message
}

fn name_len(bytes: &[u8]) -> usize {
    message::name_len(bytes).unwrap()
}

/// A record in words.
type Line = (String, u16, u32, String);

fn lines(section: domain::base::message::RecordSection<'_, Vec<u8>>) -> BTreeSet<Line> {
    let records = section.into_records::<AllRecordData<_, ParsedName<_>>>();
    let mut lines = BTreeSet::new();
    for record in records {
        let record = record.unwrap();
        let owner = record.owner().to_string().to_lowercase();
        let data = record
            .data()
            .to_string()
            .to_lowercase()
            .trim_end_matches('.')
            .to_owned();
        let line = (owner, record.rtype().to_int(), record.ttl().as_secs(), data);
        assert!(lines.insert(line), "a record is there twice");
    }
    lines
}

/// The parts of an answer: code, whether it is authoritative, and its sections.
type Parts = (Rcode, bool, [BTreeSet<Line>; 3]);

fn parts(message: &Message<Vec<u8>>) -> Parts {
    let header = message.header();
    let opt = Rtype::OPT.to_int();
    let mut additional = BTreeSet::new();
    if message.header_counts().arcount() > 0 {
        additional = lines(message.additional().unwrap());
        additional.retain(|line| line.1 != opt);
    }
    (
        header.rcode(),
        header.aa(),
        [
            lines(message.answer().unwrap()),
            lines(message.authority().unwrap()),
            additional,
        ],
    )
}

fn data(message: &Message<Vec<u8>>) -> Vec<String> {
    let (.., [answer, ..]) = parts(message);
    answer.into_iter().map(|line| line.3).collect()
}

fn metric(chain: &Chain, name: &str) -> u64 {
    let stage = &chain.stages()[0];
    let mut values = vec![0; METRICS.len()];
    stage.metrics(&mut values);
    values[METRICS.iter().position(|of| of.name == name).unwrap()]
}

#[test]
fn the_usual_questions_are_answered() {
    let mut chain = chain(&text());
    for size in [None, Some(400), Some(1232), Some(4096)] {
        for is_v6 in [false, true] {
            let way = Way { size, is_v6 };
            let mut ask = |name, rtype| ask(&mut chain, name, rtype, way);
            assert_eq!(data(&ask("wWw.Example.com", Rtype::A)), ["192.0.2.80"]);
            assert_eq!(data(&ask("www.example.com", Rtype::AAAA)), ["2001:db8::80"]);
            assert_eq!(data(&ask("example.com", Rtype::MX)).len(), 2);
            let alias = ask("shop.example.com", Rtype::A);
            assert_eq!(data(&alias), ["www.example.com", "192.0.2.80"]);
            let wild = ask("any.thing.wild.example.com", Rtype::TXT);
            assert_eq!(data(&wild).len(), 1);
            let none = parts(&ask("none.example.com", Rtype::A));
            assert_eq!((none.0, none.1), (Rcode::NXDOMAIN, true));
            assert_eq!(none.2[1].first().unwrap().2, 60, "the least of SOA");
            let nothing = parts(&ask("www.example.com", Rtype::MX));
            assert_eq!((nothing.0, nothing.2[1].len()), (Rcode::NOERROR, 1));
            let away = parts(&ask("www.example.org", Rtype::A));
            assert_eq!((away.0, away.1), (Rcode::REFUSED, false));
            let referral = parts(&ask("host.child.example.com", Rtype::A));
            assert_eq!((referral.0, referral.1), (Rcode::NOERROR, false));
            assert_eq!((referral.2[1].len(), referral.2[2].len()), (2, 3));
        }
    }
    assert!(metric(&chain, "cache_hits") > 0 && metric(&chain, "cache_misses") > 0);
    assert_eq!(chain.stages()[0].totals().packets, 72);
}

#[test]
fn a_long_answer_is_cut_where_it_does_not_fit() {
    let mut chain = chain(&text());
    let is_cut = |chain: &mut Chain, name, size| {
        let message = ask(chain, name, Rtype::TXT, Way { size, is_v6: false });
        assert_eq!(message.header().tc(), data(&message).is_empty());
        message.header().tc()
    };
    for _ in 0..2 {
        // About 800 and 1,300 bytes.
        assert!(is_cut(&mut chain, "long.example.com", None));
        assert!(is_cut(&mut chain, "long.example.com", Some(700)));
        assert!(!is_cut(&mut chain, "long.example.com", Some(1232)));
        assert!(!is_cut(&mut chain, "long.example.com", Some(65_535)));
        assert!(is_cut(&mut chain, "longer.example.com", Some(65_535)));
    }
    assert_eq!(metric(&chain, "truncated"), 6);
    // Those that did not fit behind the question were packets of their own.
    assert_eq!(chain.stages()[0].totals().originated, 4);
}

#[test]
fn what_is_no_question_is_refused_or_dropped() {
    let mut chain = chain(&text());
    let right = question("www.example.com", Rtype::A, Some(1232));
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut message = right.clone();
        change(&mut message);
        message
    };
    let code = |chain: &mut Chain, message: Vec<u8>| {
        let left = pass(chain, &[frame(&message, false)]);
        left.first().map(|answer| {
            let answer = Message::from_octets(payload(answer)).unwrap();
            answer
                .opt()
                .map_or(u16::from(answer.header().rcode().to_int()), |opt| {
                    opt.rcode(answer.header()).to_int()
                })
        })
    };
    let end = right.len();
    for (message, expected) in [
        (right[..11].to_vec(), None),
        (changed(&|of| of[2] |= 0x80), None),
        (changed(&|of| of[2] |= 0x28), Some(4)),
        (changed(&|of| of[5] = 2), Some(1)),
        (changed(&|of| of[7] = 1), Some(1)),
        (changed(&|of| of[12] = 0xc0), Some(1)),
        (changed(&|of| of[12] = 200), Some(1)),
        (right[..20].to_vec(), Some(1)),
        (changed(&|of| of.push(0)), Some(1)),
        // Class CH.
        (changed(&|of| of[32] = 3), Some(5)),
        // AXFR.
        (changed(&|of| of[30] = 252), Some(4)),
        // Version 1 of EDNS.
        (changed(&|of| of[end - 5] = 1), Some(16)),
        // An option that is longer than the message.
        (changed(&|of| of[end - 1] = 1), Some(1)),
        (right.clone(), Some(0)),
    ] {
        assert_eq!(code(&mut chain, message.clone()), expected, "{message:02x?}");
    }
    assert_eq!(chain.stages()[0].dropped(), [0, 0, 0, 0, 1, 1]);
}

#[test]
fn other_packets_are_dropped_or_go_on() {
    let question = question("www.example.com", Rtype::A, None);
    let ends = |to: &str| {
        let from: SocketAddr = "192.0.2.9:4000".parse().unwrap();
        Frame::udp(from, to.parse().unwrap(), &question)
            .unwrap()
            .to_vec()
            .unwrap()
    };
    let of_link = "addresses = [\"192.0.2.53\"]\nmac = \"02:00:00:00:00:35\"\n";
    let mut server = chain(&format!("{of_link}{}", text()));
    let frames = [ends("192.0.2.53:54"), ends("192.0.2.54:53"), vec![0xff; 60]];
    assert_eq!(pass(&mut server, &frames), Vec::<Vec<u8>>::new());
    assert_eq!(server.stages()[0].dropped(), [0, 3, 0, 0, 0, 0]);
    let mut passes = chain(&format!("others = \"pass\"\n{of_link}{}", text()));
    assert_eq!(pass(&mut passes, &frames), frames);
    // ARP: who has the address?
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9]);
    arp.extend([192, 0, 2, 9, 0, 0, 0, 0, 0, 0, 192, 0, 2, 53]);
    let left = pass(&mut server, &[arp]);
    assert_eq!(left[0][..12], [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 0x35]);
    assert_eq!(metric(&server, "link_answers"), 1);
    // Options of IPv4: four that do nothing.
    let mut frame = ends("192.0.2.53:53");
    frame.splice(34..34, [1; 4]);
    frame[14] = 0x46;
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[24..26].fill(0);
    let sum = checksum::internet(&frame[14..38]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    pass(&mut server, &[frame]);
    assert_eq!(server.stages()[0].dropped()[2], 1);
}

#[test]
fn a_reload_answers_from_the_new_zones() {
    let mut dns = Dns::new(Dns::compile(&text(), &SETUP).unwrap(), &SETUP);
    let address = |dns: &mut Dns| {
        let message = question("www.example.com", Rtype::A, None);
        let len = dns.respond(&message).unwrap();
        data(&Message::from_octets(dns.out[..len].to_vec()).unwrap())
    };
    assert_eq!(address(&mut dns), ["192.0.2.80"]);
    assert_eq!(address(&mut dns), ["192.0.2.80"]);
    let other = text().replace("192.0.2.80", "192.0.2.81");
    dns.reload(Dns::compile(&other, &SETUP).unwrap());
    assert_eq!(address(&mut dns), ["192.0.2.81"]);
    assert_eq!((dns.counts.hits, dns.counts.misses), (1, 2));
}

#[test]
fn the_cache_is_bounded_and_forgets_what_is_not_asked_again() {
    let mut dns = Dns::new(
        Dns::compile(&format!("cache_answers = 64\n{}", text()), &SETUP).unwrap(),
        &SETUP,
    );
    let ask = |dns: &mut Dns, name: &str| dns.respond(&question(name, Rtype::A, None)).unwrap();
    for at in 0..5000 {
        ask(&mut dns, &format!("n{at}.example.com"));
        ask(&mut dns, "www.example.com");
    }
    assert_eq!(dns.summary().flows, 64);
    assert_eq!(dns.counts.misses + dns.counts.hits, 10_000);
    assert_eq!(dns.counts.misses, dns.counts.evictions + 64);
    // What is asked all the time stays, nearly always.
    assert!(dns.counts.hits > 4_800, "{:?}", dns.counts);
    let mut without = Dns::new(
        Dns::compile(&format!("cache_answers = 0\n{}", text()), &SETUP).unwrap(),
        &SETUP,
    );
    ask(&mut without, "www.example.com");
    ask(&mut without, "www.example.com");
    assert_eq!((without.counts.hits, without.summary().flows_limit), (0, 0));
}

/// A plain model: records by name, names from the root on.
#[derive(Debug, Default)]
struct Model(BTreeMap<Vec<String>, BTreeMap<u16, Vec<String>>>);

const NS: u16 = 2;
const CNAME: u16 = 5;
const SOA: u16 = 6;
const TTL: u32 = 300;

fn path(name: &str) -> Vec<String> {
    name.to_lowercase().split('.').rev().map(str::to_owned).collect()
}

fn written(path: &[String]) -> String {
    path.iter().rev().cloned().collect::<Vec<_>>().join(".")
}

impl Model {
    fn exists(&self, name: &[String]) -> bool {
        self.0.keys().any(|of| of.starts_with(name))
    }

    fn set(&self, name: &[String], rtype: u16) -> Option<Vec<String>> {
        self.0.get(name)?.get(&rtype).cloned()
    }

    fn answer(&self, asked: &str, rtype: u16) -> Parts {
        let apex = path("z.test");
        let mut sections = [(); 3].map(|()| BTreeSet::new());
        let mut name = path(asked);
        if !name.starts_with(&apex) {
            return (Rcode::REFUSED, false, sections);
        }
        let line = |owner: &[String], rtype, data: &String| (written(owner), rtype, TTL, data.clone());
        let soa = |sections: &mut [BTreeSet<Line>; 3]| {
            let data = &self.set(&apex, SOA).unwrap()[0];
            sections[1].insert((written(&apex), SOA, 60, data.clone()));
        };
        let mut is_authoritative = false;
        for _ in 0..16 {
            let cut = (apex.len() + 1..=name.len())
                .map(|len| &name[..len])
                .find(|of| self.set(of, NS).is_some());
            if let Some(cut) = cut {
                for server in self.set(cut, NS).unwrap() {
                    sections[1].insert(line(cut, NS, &server));
                    let server = path(&server);
                    if !server.starts_with(&apex) {
                        continue;
                    }
                    for address in self.set(&server, 1).unwrap_or_default() {
                        sections[2].insert(line(&server, 1, &address));
                    }
                }
                return (Rcode::NOERROR, is_authoritative, sections);
            }
            is_authoritative = true;
            let source = if self.exists(&name) {
                name.clone()
            } else {
                let closest = (0..name.len())
                    .rev()
                    .find(|len| self.exists(&name[..*len]))
                    .unwrap();
                let mut wildcard = name[..closest].to_vec();
                wildcard.push("*".to_owned());
                if !self.exists(&wildcard) {
                    soa(&mut sections);
                    return (Rcode::NXDOMAIN, true, sections);
                }
                wildcard
            };
            if let Some(set) = self.set(&source, rtype) {
                sections[0].extend(set.iter().map(|data| line(&name, rtype, data)));
                for server in set.iter().filter(|_| rtype == NS) {
                    let server = path(server);
                    let inside = server.starts_with(&apex);
                    for address in self.set(&server, 1).filter(|_| inside).unwrap_or_default() {
                        sections[2].insert(line(&server, 1, &address));
                    }
                }
                return (Rcode::NOERROR, true, sections);
            }
            let Some(alias) = self.set(&source, CNAME) else {
                soa(&mut sections);
                return (Rcode::NOERROR, true, sections);
            };
            if !sections[0].insert(line(&name, CNAME, &alias[0])) {
                break;
            }
            name = path(&alias[0]);
            if !name.starts_with(&apex) {
                break;
            }
        }
        (Rcode::NOERROR, true, sections)
    }
}

/// Names of few labels, so that they meet.
fn names() -> impl Strategy<Value = String> {
    let label = prop::sample::select(vec!["a", "b", "*", "cc"]);
    prop::collection::vec(label, 0..4).prop_map(|labels| {
        let mut name = labels.join(".");
        if !name.is_empty() {
            name.push('.');
        }
        name + "z.test"
    })
}

fn targets() -> impl Strategy<Value = String> {
    prop_oneof![8 => names(), 1 => Just("other.example".to_owned())]
}

fn records() -> impl Strategy<Value = (String, u16, String)> {
    let data = prop_oneof![
        3 => (1..9_u8).prop_map(|host| (1, format!("192.0.2.{host}"))),
        1 => targets().prop_map(|target| (NS, target)),
        2 => targets().prop_map(|target| (CNAME, target)),
        1 => targets().prop_map(|target| (15, format!("10 {target}"))),
    ];
    (names(), data).prop_map(|(name, (rtype, data))| (name, rtype, data))
}

/// A zone of random records, as far as they go together, as a model and as a master file.
fn zone(records: &[(String, u16, String)]) -> (Model, String) {
    let mut model = Model::default();
    let soa = "ns.z.test. h.z.test. 1 2 3 4 60";
    let mut all = vec![
        ("z.test".to_owned(), SOA, soa.to_owned()),
        ("z.test".to_owned(), NS, "other.example".to_owned()),
    ];
    all.extend(records.iter().cloned());
    let mut text = String::from("$TTL 300\n");
    for (name, rtype, data) in all {
        let sets = model.0.entry(path(&name)).or_default();
        let has_alias = sets.contains_key(&CNAME) || (rtype == CNAME && !sets.is_empty());
        let is_there = sets.get(&rtype).is_some_and(|set| set.contains(&data));
        if has_alias || is_there || (rtype == NS && name.starts_with('*')) {
            model.0.retain(|_, sets| !sets.is_empty());
            continue;
        }
        sets.entry(rtype).or_default().push(data.clone());
        let dot = if matches!(rtype, NS | CNAME | 15) { "." } else { "" };
        text += &format!("{name}. {} {data}{dot}\n", Rtype::from_int(rtype));
    }
    // In words of the library.
    model
        .0
        .get_mut(&path("z.test"))
        .unwrap()
        .insert(SOA, vec!["ns.z.test. h.z.test. 1 2 3 4 60".to_owned()]);
    (model, text)
}

/// Letters of either case.
fn cased(name: &str, cases: u32) -> String {
    let turn = |(at, letter): (usize, char)| match cases >> (at % 32) & 1 {
        1 => letter.to_ascii_uppercase(),
        _ => letter,
    };
    name.chars().enumerate().map(turn).collect()
}

proptest! {
    #[test]
    fn answers_are_those_of_a_plain_model(
        of_zone in prop::collection::vec(records(), 0..24),
        questions in prop::collection::vec((targets(), prop::sample::select(vec![1_u16, 2, 5, 6, 15, 16]), any::<u32>()), 1..40),
    ) {
        let (model, text) = zone(&of_zone);
        let mut server = chain(&format!("cache_answers = 8\nzones = '''\n{text}'''\n"));
        // Twice, so that the second answer of some is from the cache.
        for _ in 0..2 {
            for (name, rtype, cases) in &questions {
                let way = Way { size: (cases & 1 == 1).then_some(1232), is_v6: cases & 2 == 2 };
                let message = ask(&mut server, &cased(name, *cases), Rtype::from_int(*rtype), way);
                prop_assert_eq!(parts(&message), model.answer(name, *rtype), "{} {} of\n{}", name, rtype, text);
            }
        }
    }

    #[test]
    fn foreign_bytes_get_an_answer_that_can_be_read_or_none(
        messages in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..80), any::<[u8; 4]>()), 1..40),
    ) {
        let right = question("shop.example.com", Rtype::A, Some(1232));
        let mut server = chain(&text());
        for (bytes, [at, flip, cut, way]) in messages {
            let mut message = match way % 4 {
                // A header that asks something, and what follows it.
                0 => [&[1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, at % 3], &bytes[..]].concat(),
                1 => bytes,
                _ => right.clone(),
            };
            if let Some(byte) = message.get_mut(usize::from(at) % 80) {
                *byte ^= flip;
            }
            if way % 4 == 3 {
                message.truncate(usize::from(cut));
            }
            for answer in pass(&mut server, &[frame(&message, way & 4 == 4)]) {
                let answer = Message::from_octets(payload(&answer)).unwrap();
                prop_assert!(answer.header().qr() && answer.as_slice()[..2] == message[..2]);
                prop_assert!(answer.as_slice().len() <= 1232);
                for question in answer.question() {
                    prop_assert!(question.unwrap().qname().to_vec().len() <= 255);
                }
                parts(&answer);
            }
        }
    }

    #[test]
    fn foreign_frames_are_no_harm(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..120), 1..32)) {
        let frames: Vec<_> = frames.into_iter().enumerate().map(|(at, mut frame)| {
            if frame.len() > 14 {
                let kind = if at % 2 == 0 { [8, 0] } else { [0x86, 0xdd] };
                frame[12..14].copy_from_slice(&kind);
                frame[14] = if at % 2 == 0 { 0x45 } else { 0x60 };
            }
            frame
        }).collect();
        let of_link = "addresses = [\"192.0.2.53\"]\nmac = \"02:00:00:00:00:35\"\n";
        pass(&mut chain(&format!("{of_link}{}", text())), &frames);
    }
}

#[test]
fn no_more_than_a_burst_is_answered_by_packets_of_their_own() {
    let mut dns = Dns::new(Dns::compile(&text(), &SETUP).unwrap(), &SETUP);
    let long = frame(&question("long.example.com", Rtype::TXT, Some(1232)), false);
    let mut burst = Burst::new();
    burst.begin(0, 0);
    while burst.push(&long) {}
    dns.process(&mut burst, Nanos::ZERO);
    let is_consumed = |packet: crate::burst::Packet<'_>| packet.verdict() == Verdict::Consume;
    assert!(burst.packets().all(is_consumed));
    assert_eq!(burst.refused(), 0);
}

#[test]
fn names_of_other_classes_are_not_looked_up() {
    let mut dns = Dns::new(Dns::compile(&text(), &SETUP).unwrap(), &SETUP);
    let mut message = question("version.bind", Rtype::TXT, None);
    let end = message.len();
    message[end - 2..].copy_from_slice(&Class::CH.to_int().to_be_bytes());
    let len = dns.respond(&message).unwrap();
    assert_eq!(dns.out[3], 5);
    assert_eq!(len, message.len());
    assert_eq!(dns.counts.misses, 0);
}
