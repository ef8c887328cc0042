//! What protects the payload of an ESP packet: AES-GCM (RFC 4106), or AES in counter mode (RFC 3686) with
//! HMAC-SHA1-96 (RFC 2404).
//!
//! AES-GCM is `ring`'s. `ring` has no counter mode, and its HMAC-SHA1 takes seven times as long as that of the crates
//! `sha1` and `hmac`: those and `aes` are used for the other suite.

use aes::Aes256;
use cipher::{InnerIvInit, KeyInit, StreamCipher, StreamCipherCoreWrapper};
use ctr::CtrCore;
use ctr::flavors::Ctr32BE;
use hmac::{Hmac, Mac};
use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use serde::Deserialize;
use sha1::Sha1;

/// Bytes of the ESP header: SPI and sequence number.
pub(super) const HEADER: usize = 8;
/// Bytes of the initialisation vector, in both suites.
pub(super) const IV: usize = 8;
/// Where the protected payload begins.
pub(super) const TEXT: usize = HEADER + IV;
/// Bytes of the longest check value.
pub(super) const CHECK_LIMIT: usize = 16;
/// Bytes of the part of a nonce that comes with the key.
pub(super) const SALT: usize = 4;
/// Bytes of HMAC-SHA1-96.
const HMAC: usize = 12;
/// Bytes of a nonce: the part that comes with the key, and the initialisation vector.
const NONCE: usize = SALT + IV;

/// A cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suite {
    /// AES-GCM with a key of 128 bits and a check value of 128 bits.
    #[serde(rename = "aes-128-gcm")]
    Aes128Gcm,
    /// AES-GCM with a key of 256 bits and a check value of 128 bits.
    #[serde(rename = "aes-256-gcm")]
    Aes256Gcm,
    /// AES in counter mode with a key of 256 bits, and HMAC-SHA1 of which 96 bits are sent.
    #[serde(rename = "aes-256-ctr-hmac-sha1-96")]
    Aes256CtrHmacSha1,
}

impl Suite {
    /// Bytes of its key, and of its key for authentication, 0 if it has none.
    pub(super) const fn key_bytes(self) -> (usize, usize) {
        match self {
            Suite::Aes128Gcm => (16, 0),
            Suite::Aes256Gcm => (32, 0),
            Suite::Aes256CtrHmacSha1 => (32, 20),
        }
    }

    /// Bytes of the check value behind the payload.
    pub(super) const fn check_bytes(self) -> usize {
        match self {
            Suite::Aes128Gcm | Suite::Aes256Gcm => CHECK_LIMIT,
            Suite::Aes256CtrHmacSha1 => HMAC,
        }
    }
}

/// The keys of a security association, ready for use.
pub(super) struct Keys {
    suite: Suite,
    salt: [u8; SALT],
    cipher: Cipher,
}

enum Cipher {
    Gcm(LessSafeKey),
    CtrHmac { aes: Aes256, mac: Hmac<Sha1> },
}

impl Keys {
    /// [`None`] if a key is not as long as [`Suite::key_bytes`] says.
    pub(super) fn new(suite: Suite, key: &[u8], salt: [u8; SALT], authentication: &[u8]) -> Option<Keys> {
        if (key.len(), authentication.len()) != suite.key_bytes() {
            return None;
        }
        let gcm = |algorithm| {
            Some(Cipher::Gcm(LessSafeKey::new(
                UnboundKey::new(algorithm, key).ok()?,
            )))
        };
        let cipher = match suite {
            Suite::Aes128Gcm => gcm(&aead::AES_128_GCM)?,
            Suite::Aes256Gcm => gcm(&aead::AES_256_GCM)?,
            Suite::Aes256CtrHmacSha1 => Cipher::CtrHmac {
                aes: Aes256::new_from_slice(key).ok()?,
                mac: Hmac::<Sha1>::new_from_slice(authentication).ok()?,
            },
        };
        Some(Keys { suite, salt, cipher })
    }

    pub(super) fn suite(&self) -> Suite {
        self.suite
    }

    /// Protects a packet in place. `esp` is the ESP packet: header, initialisation vector, payload, and room for the
    /// check value. `high` is the upper half of an extended sequence number. False if the packet is too short.
    #[inline]
    pub(super) fn seal(&self, esp: &mut [u8], high: Option<u32>) -> bool {
        let Some((esp, check)) = split_check(esp, self.suite.check_bytes()) else {
            return false;
        };
        let Some((nonce, additional, additional_len)) = self.nonce(esp, high) else {
            return false;
        };
        match &self.cipher {
            Cipher::Gcm(key) => {
                let Some(text) = esp.get_mut(TEXT..) else {
                    return false;
                };
                let additional = Aad::from(additional.get(..additional_len).unwrap_or(&[]));
                let nonce = Nonce::assume_unique_for_key(nonce);
                match key.seal_in_place_separate_tag(nonce, additional, text) {
                    Ok(tag) => {
                        check.copy_from_slice(tag.as_ref());
                        true
                    }
                    Err(_) => false,
                }
            }
            Cipher::CtrHmac { aes, mac } => {
                let Some(text) = esp.get_mut(TEXT..) else {
                    return false;
                };
                Self::count(aes, nonce, text);
                let tag = authenticate(mac, esp, high).finalize().into_bytes();
                match tag.first_chunk::<HMAC>() {
                    Some(tag) => check.copy_from_slice(tag),
                    None => return false,
                }
                true
            }
        }
    }

    /// Checks a packet, and uncovers its payload in place. False if it was changed or made with another key; its
    /// bytes are then unspecified.
    #[inline]
    pub(super) fn open(&self, esp: &mut [u8], high: Option<u32>) -> bool {
        let Some((nonce, additional, additional_len)) = self.nonce(esp, high) else {
            return false;
        };
        match &self.cipher {
            Cipher::Gcm(key) => {
                let Some(text) = esp.get_mut(TEXT..) else {
                    return false;
                };
                let additional = Aad::from(additional.get(..additional_len).unwrap_or(&[]));
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, additional, text).is_ok()
            }
            Cipher::CtrHmac { aes, mac } => {
                let Some((esp, check)) = split_check(esp, HMAC) else {
                    return false;
                };
                if authenticate(mac, esp, high).verify_truncated_left(check).is_err() {
                    return false;
                }
                let Some(text) = esp.get_mut(TEXT..) else {
                    return false;
                };
                Self::count(aes, nonce, text);
                true
            }
        }
    }

    /// The nonce of a packet, and what AES-GCM authenticates besides the payload: SPI and sequence number.
    #[inline]
    fn nonce(&self, esp: &[u8], high: Option<u32>) -> Option<([u8; NONCE], [u8; HEADER + 4], usize)> {
        let header = esp.first_chunk::<TEXT>()?;
        // As one number: what is stored in smaller pieces than it is read in would have to be in the cache before.
        let vector = u64::from_le_bytes(*header.last_chunk::<IV>()?);
        let nonce = u128::from(u32::from_le_bytes(self.salt)) | u128::from(vector) << (8 * SALT);
        let nonce = *nonce.to_le_bytes().first_chunk::<NONCE>()?;
        let mut additional = [0; HEADER + 4];
        let len = match high {
            None => {
                additional
                    .first_chunk_mut::<HEADER>()?
                    .copy_from_slice(header.first_chunk::<HEADER>()?);
                HEADER
            }
            Some(high) => {
                additional
                    .first_chunk_mut::<4>()?
                    .copy_from_slice(header.first_chunk::<4>()?);
                additional.get_mut(4..8)?.copy_from_slice(&high.to_be_bytes());
                additional.get_mut(8..)?.copy_from_slice(header.get(4..8)?);
                HEADER + 4
            }
        };
        Some((nonce, additional, len))
    }

    /// Applies the key stream: its blocks are counted from 1 (RFC 3686, section 4).
    #[inline]
    fn count(aes: &Aes256, nonce: [u8; NONCE], text: &mut [u8]) {
        let mut first = [0; 16];
        if let Some(part) = first.first_chunk_mut() {
            *part = nonce;
        }
        first[15] = 1;
        let core = CtrCore::<&Aes256, Ctr32BE>::inner_iv_init(aes, &first.into());
        StreamCipherCoreWrapper::from_core(core).apply_keystream(text);
    }
}

/// HMAC over the packet and, behind it, the upper half of an extended sequence number (RFC 4303, section 2.2.1).
#[inline]
fn authenticate(mac: &Hmac<Sha1>, esp: &[u8], high: Option<u32>) -> Hmac<Sha1> {
    let mut mac = mac.clone();
    mac.update(esp);
    if let Some(high) = high {
        mac.update(&high.to_be_bytes());
    }
    mac
}

#[inline]
fn split_check(esp: &mut [u8], check: usize) -> Option<(&mut [u8], &mut [u8])> {
    let text = esp.len().checked_sub(check)?;
    esp.split_at_mut_checked(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        super::super::hex::decode(&text.split_whitespace().collect::<String>()).unwrap()
    }

    /// RFC 3686, section 6, test vector 9: AES-CTR with a key of 256 bits, 36 bytes.
    #[test]
    fn the_key_stream_is_that_of_rfc_3686() {
        let key = hex("FF7A617CE69148E4F1726E2F43581DE2AA62D9F805532EDFF1EED687FB54153D");
        let nonce: [u8; NONCE] = hex("001CC5B7 51A51D70A1C11148").try_into().unwrap();
        let mut text: Vec<u8> = (0..36).collect();
        let cipher = Aes256::new_from_slice(&key).unwrap();
        Keys::count(&cipher, nonce, &mut text);
        let expected = "EB6C52821D0BBBF7CE7594462ACA4FAAB407DF866569FD07F48CC0B583D6071F1EC0E6B8";
        assert_eq!(text, hex(expected));
    }

    /// RFC 2202, section 3, test case 1, in the form that ESP sends it in.
    #[test]
    fn the_check_value_is_that_of_rfc_2202() {
        let mac = Hmac::<Sha1>::new_from_slice(&[0x0b; 20]).unwrap();
        let tag = authenticate(&mac, b"Hi There", None);
        assert!(
            tag.verify_truncated_left(&hex("b617318655057264e28bc0b6"))
                .is_ok()
        );
    }

    /// Packets of draft-mcgrew-gcm-test-01, section 4: with an extended sequence number, and with a key of 256 bits.
    #[test]
    fn aes_gcm_is_that_of_the_published_packets() {
        struct Case {
            suite: Suite,
            key: &'static str,
            salt: &'static str,
            header: &'static str,
            high: Option<u32>,
            text: &'static str,
            sealed: &'static str,
        }
        let cases = [
            Case {
                suite: Suite::Aes128Gcm,
                key: "4c80cdefbb5d10da906ac73c3613a634",
                salt: "2e443b68",
                header: "00004321 00000000 4956ed7e3b244cfe",
                high: Some(0x8765_4321),
                text:
                    "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f75
                    647003736970096379626572636974790264 6b000021000101020201",
                sealed:
                    "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1
                    f4a13c5d15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732 459018148f6cbe722fd04796562dfdb4",
            },
            Case {
                suite: Suite::Aes256Gcm,
                key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
                salt: "11223344",
                header: "4a2cbfe3 00000002 0102030405060708",
                high: None,
                text:
                    "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee0000000007002400020bf0000020405b4
                    0101040201020201",
                sealed:
                    "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763748a637985771d347f054565
                    9f14e99def842d8e b335f4eecfdbf831824b4c4915956c96",
            },
        ];
        for case in cases {
            let salt = hex(case.salt).try_into().unwrap();
            let keys = Keys::new(case.suite, &hex(case.key), salt, &[]).unwrap();
            let plain = [hex(case.header), hex(case.text)].concat();
            let mut packet = plain.clone();
            packet.extend([0; CHECK_LIMIT]);
            assert!(keys.seal(&mut packet, case.high));
            assert_eq!(packet[TEXT..], hex(case.sealed), "{:?}", case.suite);
            assert!(keys.open(&mut packet, case.high));
            assert_eq!(packet[..plain.len()], plain);
        }
    }

    fn keys(suite: Suite, byte: u8) -> Keys {
        let (key, authentication) = suite.key_bytes();
        Keys::new(suite, &vec![byte; key], [byte; 4], &vec![byte; authentication]).unwrap()
    }

    fn suites() -> impl Strategy<Value = Suite> {
        prop_oneof![
            Just(Suite::Aes128Gcm),
            Just(Suite::Aes256Gcm),
            Just(Suite::Aes256CtrHmacSha1)
        ]
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_and_what_is_changed_does_not(
            suite in suites(), text in proptest::collection::vec(any::<u8>(), 0..300), high: Option<u32>,
            header: [u8; TEXT], at: prop::sample::Index, bit in 0_u8..8,
        ) {
            let keys = keys(suite, 7);
            let plain = [&header[..], &text].concat();
            let mut sealed = plain.clone();
            sealed.resize(plain.len() + suite.check_bytes(), 0);
            prop_assert!(keys.seal(&mut sealed, high));
            let mut changed = sealed.clone();
            changed[at.index(sealed.len())] ^= 1 << bit;
            prop_assert!(!keys.open(&mut changed, high));
            let other_half = high.map_or(Some(0), |high| Some(high ^ 1));
            prop_assert!(!keys.open(&mut sealed.clone(), other_half));
            prop_assert!(keys.open(&mut sealed, high));
            prop_assert_eq!(&sealed[..plain.len()], &plain[..]);
        }

        /// `ring` computes HMAC-SHA1 on its own.
        #[test]
        fn the_check_value_is_that_of_another_library(
            key: [u8; 20], esp in proptest::collection::vec(any::<u8>(), 0..300), high: Option<u32>,
        ) {
            let mac = Hmac::<Sha1>::new_from_slice(&key).unwrap();
            let mut signed = esp.clone();
            signed.extend(high.iter().flat_map(|high| high.to_be_bytes()));
            let expected = ring::hmac::sign(
                &ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &key), &signed,
            );
            let tag = authenticate(&mac, &esp, high);
            prop_assert!(tag.verify_truncated_left(&expected.as_ref()[..HMAC]).is_ok());
        }

        #[test]
        fn short_packets_are_refused(suite in suites(), bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let keys = keys(suite, 7);
            prop_assert!(!keys.open(&mut bytes.clone(), None));
            let sealed = keys.seal(&mut bytes.clone(), None);
            prop_assert_eq!(sealed, bytes.len() >= TEXT + suite.check_bytes());
        }
    }
}
