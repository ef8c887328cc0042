//! The rate of the function `ipsec`, and of its cipher alone, in the same run:
//! `cargo run --release -p functions --example ipsec_rate`. With
//! `RUSTFLAGS='--cfg aes_backend="soft" --cfg sha1_backend="soft"'` AES in counter mode and SHA-1 do without the
//! processor's instructions.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::Instant;

use aes::Aes256;
use cipher::{InnerIvInit, KeyInit, StreamCipher, StreamCipherCoreWrapper};
use ctr::CtrCore;
use ctr::flavors::Ctr32BE;
use functions::{Burst, Chain, Error, LIBRARY, RECEIVED_LIMIT, Setup, find};
use hmac::{Hmac, Mac};
use model::Nanos;
use packet::build::Frame;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use sha1::Sha1;

/// Measurements, of which the best counts: others share the machine.
const ROUNDS: usize = 2_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:26} {:>6} {:>9} {:>9} {:>9} {:>8} {:>8} {:>7}",
        "suite", "bytes", "enter ns", "leave ns", "cipher ns", "Mpps", "Gbit/s", "ratio"
    )?;
    for suite in ["aes-256-gcm", "aes-256-ctr-hmac-sha1-96"] {
        for len in [64, 256, 1024, 1400] {
            // Each in turn, several times: a busy neighbour meets all of them.
            let mut best = [f64::INFINITY; 3];
            for _ in 0..5 {
                let (enter, leave) = gateway(suite, len)?;
                let cipher = match suite {
                    "aes-256-gcm" => gcm(len)?,
                    _ => ctr_hmac(len)?,
                };
                for (best, ns) in best.iter_mut().zip([enter, leave, cipher]) {
                    *best = best.min(ns);
                }
            }
            let [enter, leave, cipher] = best;
            writeln!(
                out,
                "{suite:26} {len:6} {enter:9.1} {leave:9.1} {cipher:9.1} {:8.2} {:8.2} {:7.2}",
                1e3 / enter,
                8.0 * len as f64 / enter,
                cipher / enter,
            )?;
        }
    }
    Ok(())
}

fn configuration(suite: &str, side: u8) -> String {
    let other = 3 - side;
    let hex = |count: usize, side: u8| format!("{side:02x}").repeat(count);
    let keys = |side| {
        let authentication = if suite == "aes-256-gcm" { 0 } else { 20 };
        format!(
            "suite = {suite:?}\nkey = {:?}\nsalt = {:?}\nauthentication_key = {:?}\n",
            hex(32, side),
            hex(4, side),
            hex(authentication, side)
        )
    };
    format!(
        "[[outbound]]\nname = \"out\"\nspi = {}\n{}source = \"192.0.2.{side}\"\ndestination = \"192.0.2.{other}\"\n\
         [[inbound]]\nname = \"in\"\nspi = {}\n{}destination = \"192.0.2.{side}\"\n\
         [[policy]]\nsource = [\"10.{side}.0.0/16\"]\ndestination = [\"10.{other}.0.0/16\"]\n\
         action = \"protect\"\noutbound = \"out\"\ninbound = [\"in\"]\n",
        1000 + u32::from(side),
        keys(side),
        1000 + u32::from(other),
        keys(other),
    )
}

fn chain(suite: &str, side: u8) -> Result<Chain, Error> {
    let setup = Setup {
        instance: 1,
        ports: 2,
        seed: side.into(),
    };
    Chain::new(vec![
        find(LIBRARY, "ipsec")?.make(&configuration(suite, side), &setup)?,
    ])
}

/// Nanoseconds for a packet of `len` bytes of layer 3 to enter a tunnel, and to leave it.
fn gateway(suite: &str, len: usize) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let (mut here, mut there) = (chain(suite, 1)?, chain(suite, 2)?);
    let (src, dst) = (([10, 1, 0, 5], 1000).into(), ([10, 2, 0, 6], 1000).into());
    let payload = vec![7; len - 28];
    let frame = Frame::udp(src, dst, &payload)?.to_vec()?;
    let (mut outer, mut inner) = (Burst::new(), Burst::new());
    let (mut enter, mut leave) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        outer.begin(0, 1);
        while outer.push(&frame) {}
        let start = Instant::now();
        here.process(&mut outer, Nanos::ZERO);
        enter = enter.min(start.elapsed().as_nanos() as f64);
        inner.begin(1, 0);
        for extent in outer.leaving() {
            inner.push(outer.bytes_of(extent));
        }
        let start = Instant::now();
        there.process(&mut inner, Nanos::ZERO);
        leave = leave.min(start.elapsed().as_nanos() as f64);
        if inner.leaving().len() != RECEIVED_LIMIT {
            return Err("packets were lost".into());
        }
    }
    Ok((enter / RECEIVED_LIMIT as f64, leave / RECEIVED_LIMIT as f64))
}

/// Nanoseconds for `work` on one of as many buffers as a burst has.
fn each(len: usize, mut work: impl FnMut(&mut [u8])) -> f64 {
    let mut buffers = vec![vec![7; len]; RECEIVED_LIMIT];
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        // As fresh in the caches as the packets of a burst.
        for buffer in &mut buffers {
            buffer.fill(7);
        }
        let start = Instant::now();
        for buffer in &mut buffers {
            work(black_box(buffer));
        }
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    best / RECEIVED_LIMIT as f64
}

/// Bytes that AES protects in a packet: with padding, and the two bytes of the trailer.
fn protected(len: usize) -> usize {
    (len + 2).next_multiple_of(4)
}

fn gcm(len: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let key = UnboundKey::new(&AES_256_GCM, &[1; 32]).map_err(|_| "no key")?;
    let key = LessSafeKey::new(key);
    let mut failed = false;
    let ns = each(protected(len), |text| {
        let nonce = Nonce::assume_unique_for_key([3; 12]);
        failed |= black_box(key.seal_in_place_separate_tag(nonce, Aad::from([0; 8]), text)).is_err();
    });
    if failed { Err("not sealed".into()) } else { Ok(ns) }
}

fn ctr_hmac(len: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let aes = Aes256::new_from_slice(&[1; 32])?;
    let mac = Hmac::<Sha1>::new_from_slice(&[1; 20])?;
    Ok(each(16 + protected(len), |text| {
        let core = CtrCore::<&Aes256, Ctr32BE>::inner_iv_init(&aes, &[3; 16].into());
        StreamCipherCoreWrapper::from_core(core).apply_keystream(&mut text[16..]);
        let mut mac = mac.clone();
        mac.update(text);
        black_box(mac.finalize());
    }))
}
