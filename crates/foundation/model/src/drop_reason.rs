use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// Why a packet went no further. Each reason has one counter per worker.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $name,)* }

        impl DropReason {
            /// Every reason, in the order of the counters.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The word in tables and labels.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$name => $word,)* }
            }

            /// The place of its counter.
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

reasons! {
    /// Too short for the header that it announces, or a header that contradicts itself.
    Malformed = "malformed",
    /// An IPv4 header whose checksum is wrong.
    BadChecksum = "bad_checksum",
    /// More extension headers or VLAN tags than the parser follows.
    HeaderLimit = "header_limit",
    /// A fragment whose first one did not come in time.
    FragmentTimeout = "fragment_timeout",
    /// A fragment beyond the number that may wait.
    FragmentLimit = "fragment_limit",
    /// Fragments that overlap, or whose first one ends within the ports.
    FragmentInvalid = "fragment_invalid",
    /// IP, but of no service, where `unmatched = "drop"`.
    Unmatched = "unmatched",
    /// Not IP, where `other = "drop"`.
    Other = "other",
    /// The flow table is full and the service says `drop`.
    TableFull = "table_full",
    /// No instance of the service takes new flows.
    NoInstance = "no_instance",
    /// The instance's ring had no free slot.
    InstanceRingFull = "instance_ring_full",
    /// Was in the rings of an instance that died, or on its way to one.
    InstanceLost = "instance_lost",
    /// Taken by the function and never given back.
    Function = "function",
    /// Of a length that a port does not carry: larger than its buffers or than the uplink's longest frame, or shorter
    /// than an Ethernet header where a device has to send it.
    TooLarge = "too_large",
    /// The uplink's transmit queue had no free slot.
    UplinkRingFull = "uplink_ring_full",
    /// The uplink is down.
    UplinkDown = "uplink_down",
    /// The ring to another worker had no free slot.
    HandOffFull = "hand_off_full",
    /// The frame pool was empty.
    NoBuffer = "no_buffer",
    /// A descriptor of a peer pointed outside of its memory, or had a length that cannot be.
    BadDescriptor = "bad_descriptor",
    /// In a ring or a buffer when the switch stopped.
    Shutdown = "shutdown",
}
