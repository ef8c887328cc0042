use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        pub struct $name(pub $inner);

        impl $name {
            /// The id as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A data plane worker, counted from 0.
    WorkerId(u8), "worker-"
);
id!(
    /// An uplink, in the order of the configuration.
    UplinkId(u8), "uplink-"
);
id!(
    /// A service, in the order of the configuration.
    ServiceId(u16), "service-"
);
id!(
    /// One container of a service. Never used twice while inco runs; goes on counting over a restart.
    InstanceId(u32), ""
);
id!(
    /// The data plane's place for an instance: a small index that is used again once nothing refers to it.
    Slot(u16), "slot-"
);
id!(
    /// The version of a published snapshot; each one published is one higher.
    Generation(u64), "generation-"
);

id!(
    /// A place where instances run: its position in the configuration, from 0. Without places, all run at the first.
    PlaceId(u8), "place-"
);

impl PlaceId {
    /// Places that are configured at most: a server, its cards, and some machines beside it.
    pub const LIMIT: usize = 16;
}

impl WorkerId {
    /// Workers that a switch has at most: a ring goes from each to each other, and a set of them has 32 bits.
    pub const LIMIT: usize = 32;
}

impl UplinkId {
    /// Uplinks that a switch has at most: each worker has counters and queues for as many.
    pub const LIMIT: usize = 8;
}

impl ServiceId {
    /// Services that a switch has at most: each worker has counters and a scheduler for as many.
    pub const LIMIT: usize = 64;
}

impl Slot {
    /// The value in a flow entry that is pinned to nothing.
    pub const NONE: Slot = Slot(u16::MAX);
    /// Slots that a switch has: the limit on instances that exist at once, draining ones included.
    pub const LIMIT: usize = 1024;

    /// Whether this names a place at all.
    pub const fn is_some(self) -> bool {
        self.0 != u16::MAX
    }
}
