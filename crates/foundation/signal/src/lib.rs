//! Signals: frames by which the host's manager tells the switch that an instance is awake and takes new flows, or that
//! it goes to sleep. A signal goes through the port of the instance that it is about, and is good for that one alone.
//!
//! Key types: [`Signal`] (what a frame says), [`Key`] (the secret of one instance), [`Gate`] (accepts each signal of an
//! instance at most once), [`Refusal`] (why one is not accepted).
//!
//! ```text
//! offset  bytes
//!      0     12  destination and source address: not looked at
//!     12      2  EtherType: 0x7777 wakes, 0x8888 sends to sleep
//!     14      1  version: 1
//!     15      1  0
//!     16      4  instance
//!     20      8  nonce of the key: each instance has its own
//!     28      8  counter: rises with each signal; nanoseconds since the machine's start
//!     36     16  tag: SipHash-2-4-128 of bytes 12 to 35 with the instance's key
//!     52      8  0: a frame has at least 60 bytes
//! ```
//! Numbers are in network byte order. The counter is a time, so that neither side has to store it: a manager that
//! begins anew has a higher one, and a switch that begins anew refuses those from before.
#![forbid(unsafe_code)]

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};
use subtle::ConstantTimeEq as _;
use thiserror::Error;

/// Bytes of a signal's frame.
pub const FRAME_BYTES: usize = 60;
/// The EtherType of a signal that wakes.
pub const WAKE: u16 = 0x7777;
/// The EtherType of a signal that sends to sleep.
pub const SLEEP: u16 = 0x8888;
/// The version of the format.
const VERSION: u8 = 1;
/// The shortest time between two signals of an instance at the switch, in nanoseconds. It drops those in between.
pub const INTERVAL_NS: u64 = 1_000_000;

/// Where the parts of a frame are.
mod at {
    use std::ops::Range;

    pub(super) const ETHER_TYPE: Range<usize> = 12..14;
    pub(super) const VERSION: usize = 14;
    pub(super) const ZERO: usize = 15;
    pub(super) const INSTANCE: Range<usize> = 16..20;
    pub(super) const NONCE: Range<usize> = 20..28;
    pub(super) const COUNTER: Range<usize> = 28..36;
    pub(super) const TAG: Range<usize> = 36..52;
    pub(super) const PADDING: Range<usize> = 52..super::FRAME_BYTES;
    /// What the tag covers.
    pub(super) const TAGGED: Range<usize> = 12..36;
}

/// What a signal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    /// The instance takes new flows from now on.
    Wake,
    /// It takes no new flows any more, and keeps those that it has.
    Sleep,
}

impl Wish {
    const fn ether_type(self) -> u16 {
        match self {
            Wish::Wake => WAKE,
            Wish::Sleep => SLEEP,
        }
    }

    /// Its word.
    pub const fn name(self) -> &'static str {
        match self {
            Wish::Wake => "wake",
            Wish::Sleep => "sleep",
        }
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a frame is a signal, by its EtherType. Only the switch's own ports ask this.
#[inline]
pub fn is_signal(frame: &[u8]) -> bool {
    matches!(frame.get(at::ETHER_TYPE), Some([0x77, 0x77] | [0x88, 0x88]))
}

/// A frame as a switch received it, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    len: u8,
    bytes: [u8; FRAME_BYTES],
}

impl Received {
    /// Of a frame. One that is too long stays too long, and one that is cut off is empty.
    pub fn new(frame: &[u8]) -> Received {
        let mut bytes = [0; FRAME_BYTES];
        if let Some(first) = frame.get(..FRAME_BYTES) {
            bytes.copy_from_slice(first);
        }
        Received {
            len: frame.len().min(FRAME_BYTES + 1) as u8,
            bytes,
        }
    }

    /// Of a frame of that length, of which a switch has copied these bytes.
    pub fn copied(bytes: [u8; FRAME_BYTES], len: usize) -> Received {
        Received {
            len: len.min(FRAME_BYTES + 1) as u8,
            bytes,
        }
    }

    /// The frame; [`None`] if it has not the length of a signal.
    fn bytes(&self) -> Option<&[u8; FRAME_BYTES]> {
        (usize::from(self.len) == FRAME_BYTES).then_some(&self.bytes)
    }
}

/// The secret of one instance, and the nonce that belongs to it. Machines have such keys for their load reports, too.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    secret: [u8; 16],
    nonce: [u8; 8],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// A text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is no key: 48 hexadecimal digits are needed")]
pub struct NoKey;

impl Key {
    /// A key of 24 random bytes.
    pub fn of_random(bytes: [u8; 24]) -> Key {
        let (mut secret, mut nonce) = ([0; 16], [0; 8]);
        secret.copy_from_slice(&bytes[..16]);
        nonce.copy_from_slice(&bytes[16..]);
        Key { secret, nonce }
    }

    /// The key as hexadecimal digits, as a file has it.
    pub fn to_text(&self) -> String {
        let bytes = self.secret.iter().chain(&self.nonce);
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads what [`Key::to_text`] gives.
    ///
    /// # Errors
    /// It is no key.
    pub fn from_text(text: &str) -> Result<Key, NoKey> {
        let (digits, rest) = text.trim_ascii().as_bytes().as_chunks::<2>();
        if digits.len() != 24 || !rest.is_empty() {
            return Err(NoKey);
        }
        let mut bytes = [0; 24];
        for (byte, digits) in bytes.iter_mut().zip(digits) {
            for digit in digits {
                let value = char::from(*digit).to_digit(16).ok_or(NoKey)?;
                *byte = *byte << 4 | value as u8;
            }
        }
        Ok(Key::of_random(bytes))
    }

    /// The nonce: public, and the same in all messages with this key.
    pub const fn nonce(&self) -> [u8; 8] {
        self.nonce
    }

    /// The tag of bytes: SipHash-2-4-128. What is tagged begins with what tells its kind from others'.
    pub fn tag(&self, tagged: &[u8]) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write(tagged);
        hasher.finish128().as_bytes()
    }
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// What is to happen.
    pub wish: Wish,
    /// The instance.
    pub instance: u32,
    /// Higher than that of each earlier signal of the instance.
    pub counter: u64,
}

impl Signal {
    /// Its frame, from one address to another.
    pub fn frame(&self, key: &Key, destination: [u8; 6], source: [u8; 6]) -> [u8; FRAME_BYTES] {
        let mut frame = [0; FRAME_BYTES];
        frame[..6].copy_from_slice(&destination);
        frame[6..12].copy_from_slice(&source);
        frame[at::ETHER_TYPE].copy_from_slice(&self.wish.ether_type().to_be_bytes());
        frame[at::VERSION] = VERSION;
        frame[at::INSTANCE].copy_from_slice(&self.instance.to_be_bytes());
        frame[at::NONCE].copy_from_slice(&key.nonce);
        frame[at::COUNTER].copy_from_slice(&self.counter.to_be_bytes());
        let tag = key.tag(&frame[at::TAGGED]);
        frame[at::TAG].copy_from_slice(&tag);
        frame
    }
}

macro_rules! refusals {
    ($($(#[doc = $doc:literal])* $name:ident = $word:literal,)*) => {
        /// Why a signal is not accepted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Refusal { $($(#[doc = $doc])* $name,)* }

        impl Refusal {
            /// All reasons.
            pub const ALL: &'static [Refusal] = &[$(Refusal::$name,)*];

            /// Its word in metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Refusal::$name => $word,)* }
            }

            /// The reason in words.
            pub const fn text(self) -> &'static str {
                match self { $(Refusal::$name => concat!($($doc),*).trim_ascii(),)* }
            }
        }
    };
}

refusals! {
    /// The frame is cut off, too long, or has bits where there must be none.
    Malformed = "malformed",
    /// The frame has another version of the format.
    Version = "version",
    /// The service takes no signals.
    NotExpected = "not_expected",
    /// The signal is about another instance than the one whose port it came through.
    OtherPort = "other_port",
    /// The signal belongs to the key of another instance, or of an earlier run of this one.
    OtherKey = "other_key",
    /// The tag is not that of the instance's key.
    WrongTag = "wrong_tag",
    /// The counter has not risen: the signal was sent before.
    Replayed = "replayed",
    /// The range of the service, a restriction, or the state of the instance does not permit it.
    NotPermitted = "not_permitted",
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Accepts the signals that came through the port of one instance.
#[derive(Clone, Debug)]
pub struct Gate {
    instance: u32,
    key: Key,
    /// The counter of the last signal that was accepted.
    last: u64,
}

impl Gate {
    /// The gate of an instance. Counters up to `floor`, the time now in nanoseconds since the machine's start, are
    /// refused.
    pub const fn new(instance: u32, key: Key, floor: u64) -> Gate {
        Gate {
            instance,
            key,
            last: floor,
        }
    }

    /// Its instance.
    pub const fn instance(&self) -> u32 {
        self.instance
    }

    /// Looks at a frame that came through the instance's port. Only a frame that is accepted changes the gate.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn accept(&mut self, received: &Received) -> Result<Signal, Refusal> {
        let frame = received.bytes().ok_or(Refusal::Malformed)?;
        let wish = match u16::from_be_bytes([frame[12], frame[13]]) {
            WAKE => Wish::Wake,
            SLEEP => Wish::Sleep,
            _ => return Err(Refusal::Malformed),
        };
        if frame[at::VERSION] != VERSION {
            return Err(Refusal::Version);
        }
        if frame[at::ZERO] != 0 || frame[at::PADDING] != [0; 8] {
            return Err(Refusal::Malformed);
        }
        let (mut instance, mut counter) = ([0; 4], [0; 8]);
        instance.copy_from_slice(&frame[at::INSTANCE]);
        counter.copy_from_slice(&frame[at::COUNTER]);
        let signal = Signal {
            wish,
            instance: u32::from_be_bytes(instance),
            counter: u64::from_be_bytes(counter),
        };
        if signal.instance != self.instance {
            return Err(Refusal::OtherPort);
        }
        if frame[at::NONCE] != self.key.nonce {
            return Err(Refusal::OtherKey);
        }
        let tag = self.key.tag(&frame[at::TAGGED]);
        if !bool::from(tag.ct_eq(&frame[at::TAG])) {
            return Err(Refusal::WrongTag);
        }
        if signal.counter <= self.last {
            return Err(Refusal::Replayed);
        }
        self.last = signal.counter;
        Ok(signal)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FLOOR: u64 = 1_000;

    fn key(byte: u8) -> Key {
        let mut bytes = [byte; 24];
        bytes[16..].fill(byte.wrapping_add(1));
        Key::of_random(bytes)
    }

    fn gate() -> Gate {
        Gate::new(7, key(3), FLOOR)
    }

    fn signal(wish: Wish, counter: u64) -> Signal {
        Signal {
            wish,
            instance: 7,
            counter,
        }
    }

    fn frame(signal: &Signal) -> [u8; FRAME_BYTES] {
        signal.frame(&key(3), [2; 6], [4; 6])
    }

    fn received(signal: &Signal) -> Received {
        Received::new(&frame(signal))
    }

    #[test]
    fn a_signal_is_accepted_once() {
        let mut gate = gate();
        for (counter, wish) in [(1_001, Wish::Wake), (1_002, Wish::Sleep), (u64::MAX, Wish::Wake)] {
            let sent = signal(wish, counter);
            assert!(is_signal(&frame(&sent)));
            assert_eq!(gate.accept(&received(&sent)), Ok(sent));
            assert_eq!(gate.accept(&received(&sent)), Err(Refusal::Replayed));
        }
        assert_eq!(
            gate.accept(&received(&signal(Wish::Wake, 1_001))),
            Err(Refusal::Replayed)
        );
    }

    #[test]
    fn what_is_older_than_the_gate_is_refused() {
        assert_eq!(
            gate().accept(&received(&signal(Wish::Wake, FLOOR))),
            Err(Refusal::Replayed)
        );
    }

    #[test]
    fn each_fault_has_its_reason() {
        let sent = signal(Wish::Wake, 2_000);
        let with = |at: usize, byte: u8| {
            let mut frame = frame(&sent);
            frame[at] = byte;
            frame.to_vec()
        };
        let other = Signal { instance: 8, ..sent };
        let mut long = frame(&sent).to_vec();
        long.push(0);
        for (frame, refusal) in [
            (frame(&sent)[..FRAME_BYTES - 1].to_vec(), Refusal::Malformed),
            (Vec::new(), Refusal::Malformed),
            (long, Refusal::Malformed),
            (with(12, 0x08), Refusal::Malformed),
            (with(14, 2), Refusal::Version),
            (with(15, 1), Refusal::Malformed),
            (with(59, 1), Refusal::Malformed),
            (frame(&other).to_vec(), Refusal::OtherPort),
            (with(20, 0), Refusal::OtherKey),
            (with(35, 0), Refusal::WrongTag),
            (with(51, 0), Refusal::WrongTag),
            (sent.frame(&key(9), [0; 6], [0; 6]).to_vec(), Refusal::OtherKey),
        ] {
            let mut gate = gate();
            assert_eq!(gate.accept(&Received::new(&frame)), Err(refusal), "{frame:02x?}");
            // Nothing has changed.
            assert_eq!(gate.accept(&received(&sent)), Ok(sent));
        }
        // Wake turned into sleep: the tag covers the EtherType.
        let mut turned = frame(&sent);
        turned[12..14].copy_from_slice(&SLEEP.to_be_bytes());
        assert_eq!(gate().accept(&Received::new(&turned)), Err(Refusal::WrongTag));
    }

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let text = key(0xa5).to_text();
        assert_eq!(Key::from_text(&format!("{text}\n")), Ok(key(0xa5)));
        for wrong in [
            "",
            "a5",
            &text[1..],
            &format!("{text}00"),
            &text.replace("a5", "g5"),
        ] {
            assert_eq!(Key::from_text(wrong), Err(NoKey), "{wrong}");
        }
        assert_eq!(format!("{:?}", key(0xa5)), "Key");
    }

    proptest! {
        #[test]
        fn no_other_frame_is_accepted(at in 12..FRAME_BYTES, flip in 1u8.., counter in FLOOR + 1..) {
            let mut frame = frame(&signal(Wish::Sleep, counter));
            frame[at] ^= flip;
            prop_assert!(gate().accept(&Received::new(&frame)).is_err());
        }

        #[test]
        fn random_frames_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(gate().accept(&Received::new(&bytes)).is_err());
        }
    }
}
