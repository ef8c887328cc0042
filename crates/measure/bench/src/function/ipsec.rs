//! `ipsec` beside ciphers alone: OpenSSL's without the processor's instructions for them, and `ring`'s.

use std::hint::black_box;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, anyhow, ensure};
use functions::{Burst, Chain, RECEIVED_LIMIT};
use model::Nanos;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::frames::{SIZES, udp};
use super::service::Served;
use super::session::{Case, Peer, Session};
use super::side::{Part, Side, Work, timed};
use super::through::{Through, chain, read};
use super::turns::Turns;
use crate::contestant::median;
use crate::native;
use crate::steer::Folder;

/// What was measured.
pub(super) const NOTE: &str = "one tunnel, IPv4 in IPv4; a packet enters it or leaves it, with the copy into the burst. The peers \
    encrypt and authenticate as many bytes, and do nothing else: `openssl scalar` is OpenSSL that was told to use neither \
    instructions for AES, GCM and SHA nor vectors (OPENSSL_ia32cap=0:0); `ring` uses them as the function does";

const GCM: &str = "aes-256-gcm";
const CTR_HMAC: &str = "aes-256-ctr-hmac-sha1-96";
/// The size at which packets leave a tunnel.
const KIBIBYTE: usize = 1024;
const SCALAR: &str = "openssl scalar";
const SOURCE: &str = include_str!("../../native/esp.c");
/// Bytes of a packet on the wire that a tunnel does not protect: the Ethernet header and the check sequence.
const UNPROTECTED: usize = 18;
/// CPU time of a turn of [`speed_up`].
const SPEED_UP_TURN: Nanos = Nanos::from_millis(40);
/// Bytes of layer 3 of a packet in a tunnel: all sizes fit.
const MTU: usize = 9000;

/// Measures it.
pub(super) fn measure(session: &mut Session) -> Result<()> {
    let folder = Folder::new()?;
    let scalar = native::compile(&folder.path, "esp", SOURCE, "libcrypto", "libssl-dev");
    for suite in [GCM, CTR_HMAC] {
        for size in [SIZES[0], SIZES[1], KIBIBYTE, SIZES[2]] {
            let frames = vec![packet(size)?; RECEIVED_LIMIT];
            let mut ours = Through::new(Some(gateway(suite, 1)?), &frames)?;
            let case = Case::new(format!("enter, {suite}"), 1, size);
            session.case(&case, &mut ours, Some(scalar_peer(&scalar, suite, size)))?;
            if suite == GCM {
                session.case(&case, &mut ours, Some(Peer::is("ring", sealing(size)?)))?;
            }
        }
        let case = Case::new(format!("leave, {suite}"), 1, KIBIBYTE);
        session.case(
            &case,
            &mut leaving(suite)?,
            Some(scalar_peer(&scalar, suite, KIBIBYTE)),
        )?;
    }
    Ok(())
}

/// As the instance of a service.
pub(super) fn served() -> Result<Served> {
    let frames = vec![packet(SIZES[0])?; RECEIVED_LIMIT];
    Ok(Served::of(configuration(GCM, 1), 1, frames))
}

/// The configuration of a gateway with AES-GCM: of side 1, which protects packets from 10.1.0.0/16 to 10.2.0.0/16, or of
/// side 2, which takes them out of the tunnel.
pub(crate) fn tunnel(side: u8) -> String {
    configuration(GCM, side)
}

/// A packet from one network to the other.
fn packet(size: usize) -> Result<Vec<u8>> {
    udp(([10, 1, 0, 5], 1000).into(), ([10, 2, 0, 6], 1000).into(), size)
}

/// Packets that leave a tunnel. Each has to enter it before, with a sequence number of its own; that time does not count.
fn leaving(suite: &str) -> Result<impl Side> {
    let (mut here, mut there) = (gateway(suite, 1)?, gateway(suite, 2)?);
    let frame = packet(KIBIBYTE)?;
    let (mut outer, mut inner) = (Burst::new(), Burst::new());
    Ok(Part(move || -> Result<(u64, Nanos)> {
        outer.begin(0, 1);
        while outer.push(&frame) {}
        here.process(&mut outer, Nanos::ZERO);
        let (left, spent) = timed(|| {
            inner.begin(1, 0);
            for extent in outer.leaving() {
                inner.push(outer.bytes_of(extent));
            }
            there.process(&mut inner, Nanos::ZERO);
            read(&inner)
        });
        ensure!(
            left == RECEIVED_LIMIT,
            "{left} of {RECEIVED_LIMIT} packets left the tunnel"
        );
        Ok((left as u64, spent))
    }))
}

/// One of the two gateways of a tunnel.
fn gateway(suite: &str, side: u8) -> Result<Chain> {
    chain("ipsec", &configuration(suite, side))
}

/// Its configuration.
fn configuration(suite: &str, side: u8) -> String {
    let other = 3 - side;
    let hex = |count: usize, side: u8| format!("{side:02x}").repeat(count);
    let keys = |side| {
        let authentication = if suite == GCM { 0 } else { 20 };
        format!(
            "suite = {suite:?}\nkey = {:?}\nsalt = {:?}\nauthentication_key = {:?}\n",
            hex(32, side),
            hex(4, side),
            hex(authentication, side)
        )
    };
    format!(
        "mtu = {MTU}\n[[outbound]]\nname = \"out\"\nspi = {}\n{}source = \"192.0.2.{side}\"\ndestination = \
         \"192.0.2.{other}\"\n[[inbound]]\nname = \"in\"\nspi = {}\n{}destination = \"192.0.2.{side}\"\n\
         [[policy]]\nsource = [\"10.{side}.0.0/16\"]\ndestination = [\"10.{other}.0.0/16\"]\n\
         action = \"protect\"\noutbound = \"out\"\ninbound = [\"in\"]\n",
        1000 + u32::from(side),
        keys(side),
        1000 + u32::from(other),
        keys(other),
    )
}

/// Bytes that are encrypted of a packet: with padding, and the two bytes of the trailer.
const fn protected(size: usize) -> usize {
    (size - UNPROTECTED + 2).next_multiple_of(4)
}

/// OpenSSL without the processor's instructions.
fn scalar_peer<'p>(program: &Result<impl AsRef<Path>>, suite: &str, size: usize) -> Peer<'p> {
    let side = match program {
        Ok(program) => start_scalar(program.as_ref(), suite, size),
        Err(error) => Err(anyhow!("{error:#}")),
    };
    Peer::of(SCALAR, side)
}

fn start_scalar(program: &Path, suite: &str, size: usize) -> Result<Turns> {
    let mut command = Command::new(program);
    command.arg(suite).arg(protected(size).to_string());
    command.env("OPENSSL_ia32cap", "0:0");
    Turns::start(command)
}

/// How many times as many packets of full size enter a tunnel as OpenSSL encrypts without the processor's instructions,
/// per CPU time: the median of so many rounds.
pub(crate) fn speed_up(rounds: u32) -> Result<f64> {
    let folder = Folder::new()?;
    let program = native::compile(&folder.path, "esp", SOURCE, "libcrypto", "libssl-dev")?;
    let [.., size] = SIZES;
    let mut scalar = start_scalar(&program, GCM, size)?;
    let frames = vec![packet(size)?; RECEIVED_LIMIT];
    let mut ours = Through::new(Some(gateway(GCM, 1)?), &frames)?;
    let ratios =
        (0..rounds).map(|_| Ok(ours.turn(SPEED_UP_TURN)?.mpps() / scalar.turn(SPEED_UP_TURN)?.mpps()));
    Ok(median(ratios.collect::<Result<Vec<f64>>>()?))
}

/// `ring`'s AES-GCM.
fn sealing(size: usize) -> Result<impl Side> {
    let key = UnboundKey::new(&AES_256_GCM, &[1; 32]).map_err(|_| anyhow!("ring refuses a key"))?;
    let key = LessSafeKey::new(key);
    let mut buffers = vec![vec![7; protected(size)]; RECEIVED_LIMIT];
    Ok(Work(move || -> Result<u64> {
        for text in &mut buffers {
            let nonce = Nonce::assume_unique_for_key([3; 12]);
            let tag = key.seal_in_place_separate_tag(nonce, Aad::from([0; 8]), text);
            let tag = tag.map_err(|_| anyhow!("ring does not seal"))?;
            black_box(&tag);
        }
        Ok(RECEIVED_LIMIT as u64)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_enters_a_tunnel_leaves_it() {
        for suite in [GCM, CTR_HMAC] {
            let turn = leaving(suite).unwrap().turn(Nanos::from_millis(1)).unwrap();
            assert!(turn.packets >= 32, "{turn:?}");
        }
    }

    #[test]
    fn lengths_are_those_that_esp_pads_to() {
        assert_eq!((protected(64), protected(1024)), (48, 1008));
    }
}
