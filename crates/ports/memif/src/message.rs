//! Encodes and decodes the 128-byte messages of the control socket. Decoding trusts no byte.
//!
//! Integers are in native byte order, as memif defines: both ends share memory, so they run on one machine.
//! Text fields are zero-padded; invalid UTF-8 is replaced.

use crate::ProtocolError;

/// Bytes of every control message.
pub(crate) const MESSAGE_BYTES: usize = 128;
/// Protocol version 2.0: major in the high byte.
pub(crate) const VERSION: u16 = 2 << 8;
/// Bytes of a name field, including its terminating zero.
pub(crate) const NAME_BYTES: usize = 32;
/// Bytes of the optional shared secret.
pub(crate) const SECRET_BYTES: usize = 24;
/// Bytes of the text in a DISCONNECT.
const REASON_BYTES: usize = 96;
/// Ethernet frames: the only supported interface mode.
const MODE_ETHERNET: u8 = 0;
/// ADD_RING flag: the ring runs from client to server.
const RING_CLIENT_TO_SERVER: u16 = 1;

/// A message before validation against the handshake's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    Ack,
    Hello {
        name: String,
        min_version: u16,
        max_version: u16,
        /// Highest region index that the server accepts.
        max_region: u16,
        /// Highest index of a server-to-client ring.
        max_s2c_ring: u16,
        /// Highest index of a client-to-server ring.
        max_c2s_ring: u16,
        max_log2_slots: u8,
    },
    Init {
        version: u16,
        interface_id: u32,
        /// The server refuses anything but 0 (Ethernet).
        mode: u8,
        secret: [u8; SECRET_BYTES],
        name: String,
    },
    AddRegion {
        index: u16,
        bytes: u64,
    },
    AddRing {
        client_to_server: bool,
        index: u16,
        region: u16,
        offset: u32,
        log2_slots: u8,
        private_header_bytes: u16,
    },
    Connect {
        interface_name: String,
    },
    Connected {
        interface_name: String,
    },
    Disconnect {
        code: u32,
        reason: String,
    },
}

impl Message {
    /// The message's name in the protocol's documentation.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Message::Ack => "ACK",
            Message::Hello { .. } => "HELLO",
            Message::Init { .. } => "INIT",
            Message::AddRegion { .. } => "ADD_REGION",
            Message::AddRing { .. } => "ADD_RING",
            Message::Connect { .. } => "CONNECT",
            Message::Connected { .. } => "CONNECTED",
            Message::Disconnect { .. } => "DISCONNECT",
        }
    }

    /// An INIT for Ethernet in this version.
    pub(crate) fn init(interface_id: u32, secret: [u8; SECRET_BYTES], name: &str) -> Message {
        Message::Init {
            version: VERSION,
            interface_id,
            mode: MODE_ETHERNET,
            secret,
            name: name.to_owned(),
        }
    }

    /// Whether `mode` of an INIT is Ethernet.
    pub(crate) fn is_ethernet(mode: u8) -> bool {
        mode == MODE_ETHERNET
    }

    /// The encoded bytes. Names longer than their field are cut at a character boundary.
    pub(crate) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut out = Writer {
            bytes: [0; MESSAGE_BYTES],
            at: 0,
        };
        match self {
            Message::Ack => out.u16(1),
            Message::Hello {
                name,
                min_version,
                max_version,
                max_region,
                max_s2c_ring,
                max_c2s_ring,
                max_log2_slots,
            } => {
                out.u16(2);
                out.text(name, NAME_BYTES);
                out.u16(*min_version);
                out.u16(*max_version);
                out.u16(*max_region);
                out.u16(*max_s2c_ring);
                out.u16(*max_c2s_ring);
                out.put(&[*max_log2_slots]);
            }
            Message::Init {
                version,
                interface_id,
                mode,
                secret,
                name,
            } => {
                out.u16(3);
                out.u16(*version);
                out.put(&interface_id.to_ne_bytes());
                out.put(&[*mode]);
                out.put(secret);
                out.text(name, NAME_BYTES);
            }
            Message::AddRegion { index, bytes } => {
                out.u16(4);
                out.u16(*index);
                out.put(&bytes.to_ne_bytes());
            }
            Message::AddRing {
                client_to_server,
                index,
                region,
                offset,
                log2_slots,
                private_header_bytes,
            } => {
                out.u16(5);
                out.u16(if *client_to_server {
                    RING_CLIENT_TO_SERVER
                } else {
                    0
                });
                out.u16(*index);
                out.u16(*region);
                out.put(&offset.to_ne_bytes());
                out.put(&[*log2_slots]);
                out.u16(*private_header_bytes);
            }
            Message::Connect { interface_name } => {
                out.u16(6);
                out.text(interface_name, NAME_BYTES);
            }
            Message::Connected { interface_name } => {
                out.u16(7);
                out.text(interface_name, NAME_BYTES);
            }
            Message::Disconnect { code, reason } => {
                out.u16(8);
                out.put(&code.to_ne_bytes());
                out.text(reason, REASON_BYTES);
            }
        }
        out.bytes
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`ProtocolError::MessageSize`] if it is not 128 bytes, [`ProtocolError::MessageType`] for an unknown
    /// type.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Message, ProtocolError> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes
            .try_into()
            .map_err(|_| ProtocolError::MessageSize { bytes: bytes.len() })?;
        let mut input = Reader { bytes, at: 0 };
        Ok(match input.u16() {
            1 => Message::Ack,
            2 => Message::Hello {
                name: input.text(NAME_BYTES),
                min_version: input.u16(),
                max_version: input.u16(),
                max_region: input.u16(),
                max_s2c_ring: input.u16(),
                max_c2s_ring: input.u16(),
                max_log2_slots: input.u8(),
            },
            3 => Message::Init {
                version: input.u16(),
                interface_id: u32::from_ne_bytes(input.take()),
                mode: input.u8(),
                secret: input.take(),
                name: input.text(NAME_BYTES),
            },
            4 => Message::AddRegion {
                index: input.u16(),
                bytes: u64::from_ne_bytes(input.take()),
            },
            5 => {
                let flags = input.u16();
                Message::AddRing {
                    client_to_server: flags & RING_CLIENT_TO_SERVER != 0,
                    index: input.u16(),
                    region: input.u16(),
                    offset: u32::from_ne_bytes(input.take()),
                    log2_slots: input.u8(),
                    private_header_bytes: input.u16(),
                }
            }
            6 => Message::Connect {
                interface_name: input.text(NAME_BYTES),
            },
            7 => Message::Connected {
                interface_name: input.text(NAME_BYTES),
            },
            8 => Message::Disconnect {
                code: u32::from_ne_bytes(input.take()),
                reason: input.text(REASON_BYTES),
            },
            other => return Err(ProtocolError::MessageType { value: other }),
        })
    }
}

/// Writes consecutive fields; every message is far shorter than 128 bytes.
struct Writer {
    bytes: [u8; MESSAGE_BYTES],
    at: usize,
}

impl Writer {
    fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    fn u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }

    fn text(&mut self, text: &str, field: usize) {
        let mut end = text.len().min(field - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &text.as_bytes()[..end];
        self.bytes[self.at..self.at + end].copy_from_slice(text);
        self.at += field;
    }
}

struct Reader<'a> {
    bytes: &'a [u8; MESSAGE_BYTES],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    fn u8(&mut self) -> u8 {
        let [value] = self.take();
        value
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn text(&mut self, field: usize) -> String {
        let bytes = &self.bytes[self.at..self.at + field];
        self.at += field;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(field);
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn add_ring_has_the_protocols_layout() {
        let bytes = Message::AddRing {
            client_to_server: true,
            index: 0x0102,
            region: 0x0304,
            offset: 0x0506_0708,
            log2_slots: 10,
            private_header_bytes: 0,
        }
        .encode();
        assert_eq!(bytes[..2], 5_u16.to_ne_bytes());
        assert_eq!(bytes[2..4], 1_u16.to_ne_bytes());
        assert_eq!(bytes[4..6], 0x0102_u16.to_ne_bytes());
        assert_eq!(bytes[6..8], 0x0304_u16.to_ne_bytes());
        assert_eq!(bytes[8..12], 0x0506_0708_u32.to_ne_bytes());
        assert_eq!(bytes[12], 10);
        assert!(bytes[13..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn init_has_the_protocols_layout() {
        let bytes = Message::init(7, [b's'; SECRET_BYTES], "app").encode();
        assert_eq!(bytes[..2], 3_u16.to_ne_bytes());
        assert_eq!(bytes[2..4], 0x0200_u16.to_ne_bytes());
        assert_eq!(bytes[4..8], 7_u32.to_ne_bytes());
        assert_eq!(bytes[8], 0);
        assert_eq!(bytes[9..33], [b's'; 24]);
        assert_eq!(&bytes[33..37], b"app\0");
    }

    #[test]
    fn a_long_name_is_cut_at_a_character_boundary() {
        let name = "ü".repeat(20);
        let Ok(Message::Connect { interface_name }) =
            Message::decode(&Message::Connect { interface_name: name }.encode())
        else {
            panic!("not a CONNECT");
        };
        assert_eq!(interface_name, "ü".repeat(15));
    }

    fn message() -> impl Strategy<Value = Message> {
        let name = "[a-z]{0,31}";
        prop_oneof![
            Just(Message::Ack),
            (name, any::<[u16; 5]>(), any::<u8>()).prop_map(|(name, v, max_log2_slots)| Message::Hello {
                name,
                min_version: v[0],
                max_version: v[1],
                max_region: v[2],
                max_s2c_ring: v[3],
                max_c2s_ring: v[4],
                max_log2_slots,
            }),
            (
                name,
                any::<u16>(),
                any::<u32>(),
                any::<u8>(),
                any::<[u8; SECRET_BYTES]>()
            )
                .prop_map(|(name, version, interface_id, mode, secret)| Message::Init {
                    version,
                    interface_id,
                    mode,
                    secret,
                    name
                }),
            (any::<u16>(), any::<u64>()).prop_map(|(index, bytes)| Message::AddRegion { index, bytes }),
            (any::<bool>(), any::<[u16; 3]>(), any::<u32>(), any::<u8>()).prop_map(
                |(client_to_server, v, offset, log2_slots)| Message::AddRing {
                    client_to_server,
                    index: v[0],
                    region: v[1],
                    offset,
                    log2_slots,
                    private_header_bytes: v[2],
                }
            ),
            name.prop_map(|interface_name| Message::Connect { interface_name }),
            name.prop_map(|interface_name| Message::Connected { interface_name }),
            (any::<u32>(), "[ -~]{0,95}").prop_map(|(code, reason)| Message::Disconnect { code, reason }),
        ]
    }

    proptest! {
        #[test]
        fn messages_survive_the_round_trip(message in message()) {
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        }

        #[test]
        fn decoding_arbitrary_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(bytes.len(), MESSAGE_BYTES);
                prop_assert!(!message.name().is_empty());
            }
        }
    }
}
