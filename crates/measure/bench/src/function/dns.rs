//! `dns`, which has no peer yet: questions of which each has an answer.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::Result;
use functions::firewall::synthetic::Sequence;
use packet::build::Frame;

use super::frames::zipf;
use super::service::Served;
use super::session::{Case, Session};
use super::through::{Through, chain};

/// What was measured.
pub(super) const NOTE: &str = "questions for addresses of names in one zone, with the copy into the burst. `kept`: with the cache \
    of 4,096 answers, questions by Zipf's law; `searched`: without that cache, each name as often; `no such name`: the same for \
    names that the zone does not have";

/// Records of the zone.
const RECORDS: [usize; 2] = [1_000, 100_000];
/// Questions, which come again and again.
const QUESTIONS: usize = 1 << 16;
/// Bytes of the check sequence, which is on the wire only.
const CHECK: usize = 4;

/// Measures it.
pub(super) fn measure(session: &mut Session) -> Result<()> {
    for records in RECORDS {
        let zone = zone(records);
        let mut numbers = Sequence::new(1);
        let hosts: Vec<usize> = (0..records).collect();
        let drawn = zipf(&hosts, QUESTIONS, &mut numbers);
        let even: Vec<usize> = (0..QUESTIONS)
            .map(|_| numbers.below(records as u64) as usize)
            .collect();
        for (name, letter, hosts, kept) in [
            ("kept", 'h', &drawn, 4_096),
            ("searched", 'h', &even, 0),
            ("no such name", 'n', &even, 0),
        ] {
            let frames = hosts
                .iter()
                .map(|&host| question(letter, host))
                .collect::<Result<Vec<_>>>()?;
            let text = format!("cache_answers = {kept}\n{zone}");
            let size = frames.first().map_or(0, |frame| frame.len() + CHECK);
            let mut ours = Through::new(Some(chain("dns", &text)?), &frames)?;
            session.case(&Case::new(name, records, size), &mut ours, None)?;
        }
    }
    Ok(())
}

/// As the instance of a service.
pub(super) fn served() -> Result<Served> {
    let records = RECORDS[0];
    let frames = (0..records).map(|host| question('h', host));
    Ok(Served::of(zone(records), records, frames.collect::<Result<_>>()?))
}

/// A zone with the address of each of so many hosts.
fn zone(records: usize) -> String {
    let mut text = String::from(
        "zones = '''\n$ORIGIN example.org.\n$TTL 300\n@ SOA ns1 hostmaster 1 7200 900 1209600 60\n@ NS ns1\nns1 A 192.0.2.53\n",
    );
    for host in 0..records {
        let [_, a, b, c] = (host as u32).to_be_bytes();
        // Writing into a string does not fail.
        let _ = writeln!(text, "h{host:07} A 10.{a}.{b}.{c}");
    }
    text.push_str("'''\n");
    text
}

/// A question for the address of a host.
fn question(letter: char, host: usize) -> Result<Vec<u8>> {
    // Recursion desired, one question.
    let mut message = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in [format!("{letter}{host:07}").as_str(), "example", "org"] {
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    // The root, type A, class IN.
    message.extend_from_slice(&[0, 0, 1, 0, 1]);
    let from = SocketAddr::from(([198, 51, 100, 1], 4000));
    Ok(Frame::udp(from, ([192, 0, 2, 53], 53).into(), &message)?.to_vec()?)
}

#[cfg(test)]
mod tests {
    use functions::Burst;
    use model::Nanos;

    use super::*;

    #[test]
    fn names_of_the_zone_have_an_answer_and_others_have_none() {
        let mut chain = chain("dns", &zone(10)).unwrap();
        // The response code, and the number of answers.
        for (letter, expected) in [('h', (0, 1)), ('n', (3, 0))] {
            let mut burst = Burst::new();
            burst.begin(0, 1);
            burst.push(&question(letter, 7).unwrap());
            chain.process(&mut burst, Nanos::from_secs(1));
            let message = &burst.bytes_of(&burst.leaving()[0])[42..];
            assert_eq!((message[3] & 15, message[7]), expected, "{letter}");
        }
    }
}
