use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[doc = $doc:tt])* $name:ident = $word:literal,)*) => {
        /// Why a packet was dropped. Each reason has one counter per worker.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc])* $name,)* }

        impl DropReason {
            /// Every reason, in the order of the counters.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// The name in tables and labels.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$name => $word,)* }
            }

            /// What it means, for the reference.
            pub const fn text(self) -> &'static str {
                match self { $(DropReason::$name => concat!($($doc),*).trim_ascii(),)* }
            }

            /// Index of its counter.
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

reasons! {
    /// Truncated or inconsistent headers.
    Malformed = "malformed",
    /// A wrong IPv4 header checksum.
    BadChecksum = "bad_checksum",
    /// More extension headers or VLAN tags than the parser accepts.
    HeaderLimit = "header_limit",
    /// A fragment whose first one did not arrive in time.
    FragmentTimeout = "fragment_timeout",
    /// A fragment beyond the limit of waiting fragments.
    FragmentLimit = "fragment_limit",
    /// Overlapping fragments, or a first fragment that ends within the ports.
    FragmentInvalid = "fragment_invalid",
    /// IP traffic of no service, with `unmatched = "drop"`.
    Unmatched = "unmatched",
    /// Non-IP traffic, with `other = "drop"`.
    Other = "other",
    /// The flow table is full, and the service's policy is `drop`.
    TableFull = "table_full",
    /// No instance of the service takes new flows.
    NoInstance = "no_instance",
    /// The instance's ring had no free slot.
    InstanceRingFull = "instance_ring_full",
    /// In the rings of a failed instance, or on the way to one.
    InstanceLost = "instance_lost",
    /// From an instance, with an address or in a flow that is not its own; or from the network, with an external
    /// address of a service.
    Spoofed = "spoofed",
    /// To an external address of a service, and to no port of a block that an instance owns.
    PortBlock = "port_block",
    /// From an instance, to an address that no neighbour of the uplink is known for.
    NoNeighbour = "no_neighbour",
    /// In a tunnel of another network, from a far end that is not listed, or malformed.
    Tunnel = "tunnel",
    /// Taken by the function and not returned.
    Function = "function",
    /// An invalid length for the port: larger than its buffers or the uplink's maximum frame, or shorter than
    /// an Ethernet header on a device.
    TooLarge = "too_large",
    /// The uplink's transmit queue had no free slot.
    UplinkRingFull = "uplink_ring_full",
    /// The uplink is down.
    UplinkDown = "uplink_down",
    /// The ring to another worker had no free slot.
    HandOffFull = "hand_off_full",
    /// The frame pool was empty.
    NoBuffer = "no_buffer",
    /// A peer's descriptor pointed outside its memory, or had an impossible length.
    BadDescriptor = "bad_descriptor",
    /// In a ring or a buffer when the switch shut down.
    Shutdown = "shutdown",
    /// A signal of an instance's host manager: taken by the switch, and never forwarded.
    Signal = "signal",
    /// A signal that came less than a millisecond after the one before it, or that the switch had no room for.
    SignalRate = "signal_rate",
}
