//! The channel between two sides: messages per second between two threads, and messages torn by reordered writes.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use actor_channel::{Counters, Declared, End, Limits, Order, Side};
use anyhow::{Context as _, Result, bail, ensure};
use model::{Nanos, Random};

use super::{Outcome, Patience, Row, random_key};
use crate::contestant::median;

const NOTE: &str = "MODEL: latency and bandwidth of the DMA engine are declared; its work is done by the sender's core. Two \
                    threads of one machine stand in for card and host. They share caches: this shows the work of both ends, \
                    not the cost of a bus. A word of 8 bytes is written at once, as on PCIe.";

/// Bytes of a message.
const MESSAGE_BYTES: usize = 64;
/// Messages of a transfer.
const BATCH: usize = 32;
/// Messages of a round.
const ROUND_MESSAGES: u64 = 4_000_000;
const ROUNDS: usize = 5;
/// What the project promises, in messages per second.
const PROMISED: f64 = 5e6;
/// Messages with reordered writes, half of them by word and half by cache line.
const REORDERED: u64 = 10_000_000;
/// The probability that a message is taken when it is looked at, of which words are missing that are not related to what
/// lies in their place.
const FALSE_ACCEPT: f64 = 1.0 / (1_u64 << 32) as f64;
/// A side that waits longer without a message has lost one.
const LONGEST: Nanos = Nanos::from_secs(10);

/// Measures it.
pub(super) fn measure() -> Result<Outcome> {
    let mut rows = Vec::new();
    for (case, declared) in [
        ("card to host", Declared::CARD_TO_HOST),
        ("host to card", Declared::HOST_TO_CARD),
    ] {
        let latency_us = declared.latency.0 as f64 / 1e3;
        rows.push(
            Row::plain(format!("MODEL {case}, declared latency"), latency_us, "us").paper("0.5 to 2 us"),
        );
        let gigabytes = declared.bytes_per_second as f64 / 1e9;
        rows.push(
            Row::plain(format!("MODEL {case}, declared bandwidth"), gigabytes, "GB/s")
                .paper("2.1 written, 1.4 read by a core"),
        );
    }
    for (case, side, declared) in [
        (
            "card to host, 64 B, batches of 32",
            Side::Card,
            Declared::CARD_TO_HOST,
        ),
        (
            "host to card, 64 B, batches of 32",
            Side::Host,
            Declared::HOST_TO_CARD,
        ),
    ] {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(one_way(side, declared)?);
        }
        let of = |figure: fn(&Speed) -> f64| median(rounds.iter().map(figure));
        rows.push(Row::plain(case, of(|speed| speed.per_second), "messages/s").at_least(PROMISED));
        rows.push(Row::plain(
            format!("{case}: CPU time of the sender"),
            of(|speed| speed.sender_ns),
            "ns/message",
        ));
        rows.push(Row::plain(
            format!("{case}: CPU time of the receiver, which polls"),
            of(|speed| speed.receiver_ns),
            "ns/message",
        ));
    }
    for (name, piece_bytes) in [("words of 8 B", 8), ("lines of 64 B", 64)] {
        let torn = torn(piece_bytes, REORDERED / 2)?;
        let case = format!("{} messages, writes reordered by {name}", REORDERED / 2);
        rows.push(
            Row::plain(
                format!("{case}: corrupt, accepted"),
                torn.wrong as f64,
                "messages",
            )
            .at_most(0.0),
        );
        let looked = torn.receiver.not_whole as f64;
        rows.push(Row::plain(
            format!("{case}: looked at while torn"),
            looked,
            "times",
        ));
    }
    rows.push(
        Row::plain(
            "false-accept bound for each look at a torn message",
            FALSE_ACCEPT,
            "probability",
        )
        .paper("4-byte checksum"),
    );
    Ok(Outcome {
        rows,
        note: NOTE.into(),
    })
}

/// What a round took.
struct Speed {
    per_second: f64,
    sender_ns: f64,
    receiver_ns: f64,
}

/// Messages from one thread to another as fast as they go.
fn one_way(from: Side, declared: Declared) -> Result<Speed> {
    let order = Order::Declared(declared);
    let (file, mut sender) = End::create(Limits::default(), from, order, random_key()?)?;
    let mut receiver = End::attach(file.as_fd(), from.other(), order)?;
    let is_over = AtomicBool::new(false);
    let (sent, received) = thread::scope(|scope| {
        let sending = scope.spawn(|| send_all(&mut sender, &is_over));
        let received = receive_all(&mut receiver);
        is_over.store(true, Ordering::Relaxed);
        (sending.join(), received)
    });
    let (begin, sender_cpu) = sent.ok().context("the sender ended")??;
    let (end, receiver_cpu) = received?;
    let messages = ROUND_MESSAGES as f64;
    Ok(Speed {
        per_second: messages / (end.0.saturating_sub(begin.0).max(1) as f64 / 1e9),
        sender_ns: sender_cpu.0 as f64 / messages,
        receiver_ns: receiver_cpu.0 as f64 / messages,
    })
}

/// Sends all messages, each with its number. Gives when it began and its CPU time until the last one left.
fn send_all(end: &mut End, is_over: &AtomicBool) -> Result<(Nanos, Nanos)> {
    let begin = clock::monotonic();
    let cpu = clock::thread_cpu();
    let mut message = [0_u8; MESSAGE_BYTES];
    let mut number = 0_u64;
    let mut patience = Patience::default();
    while number < ROUND_MESSAGES && !is_over.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            message[..8].copy_from_slice(&number.to_le_bytes());
            if end.send(&[&message]).is_err() {
                patience.wait();
                break;
            }
            patience.reset();
            number += 1;
        }
        end.flush(clock::monotonic());
        ensure!(end.receive()?.is_none(), "nobody sends here");
    }
    let cpu = clock::thread_cpu().0 - cpu.0;
    while !is_over.load(Ordering::Relaxed) {
        end.flush(clock::monotonic());
        thread::yield_now();
    }
    Ok((begin, Nanos(cpu)))
}

/// Receives all messages. Gives when the last one came and the CPU time since the first one.
fn receive_all(end: &mut End) -> Result<(Nanos, Nanos)> {
    let cpu = clock::thread_cpu();
    let mut number = 0_u64;
    let mut heard = clock::monotonic();
    let mut patience = Patience::default();
    while number < ROUND_MESSAGES {
        let before = number;
        while let Some(message) = end.receive()? {
            ensure!(
                message.len() == MESSAGE_BYTES && message.starts_with(&number.to_le_bytes()),
                "message {number} is not what was sent"
            );
            number += 1;
            if number.is_multiple_of(BATCH as u64) {
                break;
            }
        }
        let now = clock::monotonic();
        end.flush(now);
        if number > before {
            heard = now;
            patience.reset();
        } else {
            ensure!(now.0 - heard.0 < LONGEST.0, "no message after {number}");
            patience.wait();
        }
    }
    Ok((clock::monotonic(), Nanos(clock::thread_cpu().0 - cpu.0)))
}

/// What came of reordered writes.
struct Torn {
    /// Messages that were taken and were not the next one.
    wrong: u64,
    receiver: Counters,
}

/// Sends messages whose words are written in random order, and polls in between.
fn torn(piece_bytes: u16, messages: u64) -> Result<Torn> {
    // A small ring: what lies in a place is from the lap before, a few messages ago.
    let limits = Limits {
        ring_bytes: 4096,
        message_bytes: 256,
    };
    let order = Order::Shuffled {
        piece_bytes,
        pieces: 128 / piece_bytes,
        seed: u64::from(piece_bytes),
    };
    let (file, mut sender) = End::create(limits, Side::Card, order, random_key()?)?;
    let mut receiver = End::attach(file.as_fd(), Side::Host, order)?;
    let mut random = Random::new(u64::from(piece_bytes));
    let mut under_way: VecDeque<(usize, u64)> = VecDeque::new();
    let (mut made, mut received, mut wrong) = (0, 0, 0);
    let mut message = [0_u8; 256];
    let mut idle = 0_u32;
    while received < messages {
        for _ in 0..random.below(4) {
            // Few lengths and contents: often what lies there from a lap before differs in some bytes only.
            let length = [8, 24, 56, 64, 128, 200, 256][random.below(7) as usize];
            let content = random.bits() & 0xff01;
            message[..length].fill(content as u8);
            message[..8].copy_from_slice(&content.to_le_bytes());
            if made < messages && sender.send(&[&message[..length]]).is_ok() {
                made += 1;
                under_way.push_back((length, content));
            }
        }
        sender.flush(Nanos::ZERO);
        idle += 1;
        for _ in 0..2 {
            let Some(taken) = receiver.receive()? else { break };
            received += 1;
            idle = 0;
            let is_next = under_way.pop_front().is_some_and(|(length, content)| {
                let rest = &taken[8.min(taken.len())..];
                taken.len() == length
                    && taken.starts_with(&content.to_le_bytes())
                    && rest.iter().all(|byte| *byte == content as u8)
            });
            wrong += u64::from(!is_next);
        }
        receiver.flush(Nanos::ZERO);
        ensure!(sender.receive()?.is_none(), "nobody sends here");
        if idle > 100_000 {
            bail!("no message after {received}: the channel stands still");
        }
    }
    Ok(Torn {
        wrong,
        receiver: receiver.counters(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_messages_are_seen_and_not_taken() {
        for piece_bytes in [8, 64] {
            let torn = torn(piece_bytes, 20_000).unwrap();
            assert_eq!(torn.wrong, 0);
            assert!(torn.receiver.not_whole > 2_000, "{:?}", torn.receiver);
            assert_eq!(torn.receiver.received, 20_000);
        }
    }
}
