//! The paths: what each is, between which ends it leads and what it carries.

use path_costs::{Scope, Work};

use crate::args::{PathName, PathScope, PathWork};

impl PathName {
    /// All, in the order of the report.
    pub(super) const ALL: [PathName; 14] = [
        PathName::Bridge,
        PathName::Nftables,
        PathName::Ebpf,
        PathName::SoftKernel,
        PathName::Hybrid,
        PathName::Ovs,
        PathName::Vxlan,
        PathName::OvsVxlan,
        PathName::AfXdp,
        PathName::Memif,
        PathName::Esp,
        PathName::Device,
        PathName::Representors,
        PathName::CardRules,
    ];

    /// Its name in tables and files.
    pub(super) fn name(self) -> &'static str {
        match self {
            PathName::Bridge => "bridge",
            PathName::Nftables => "nftables",
            PathName::Ebpf => "ebpf",
            PathName::SoftKernel => "soft-kernel",
            PathName::Hybrid => "hybrid",
            PathName::AfXdp => "af-xdp",
            PathName::Memif => "memif",
            PathName::Ovs => "ovs",
            PathName::Vxlan => "vxlan",
            PathName::OvsVxlan => "ovs-vxlan",
            PathName::Esp => "esp",
            PathName::Device => "device",
            PathName::Representors => "representors",
            PathName::CardRules => "card-rules",
        }
    }

    /// What it is, for the report.
    pub(super) fn about(self) -> &'static str {
        match self {
            PathName::Bridge => "veth pairs on a bridge of the kernel",
            PathName::Nftables => {
                "veth pairs, routed; nftables translates the service's address, 64 services"
            }
            PathName::Ebpf => "programs of inco's driver ebpf, to an ordinary container",
            PathName::SoftKernel => "inco's own switch, uplink and container by interfaces of the kernel",
            PathName::Hybrid => {
                "inco's driver hybrid: as soft-kernel, with programs of the kernel for flows that are worth it"
            }
            PathName::AfXdp => "inco's own switch, uplink over AF_XDP, function forward over memif, and back",
            PathName::Memif => "inco's own switch, uplink and function forward over memif, and back",
            PathName::Ovs => "Open vSwitch in userspace, without DPDK, with veth pairs",
            PathName::Vxlan => "bridges of the kernel, joined by its VXLAN tunnel",
            PathName::OvsVxlan => "Open vSwitch in userspace, joined by its VXLAN tunnel",
            PathName::Esp => {
                "inco's own switch, memif; function ipsec encrypts a packet, decrypts it, and back"
            }
            PathName::Device => "two functions of a card, joined by the card",
            PathName::Representors => {
                "two functions of a card, whose representors a bridge of the kernel joins"
            }
            PathName::CardRules => "two functions of a card, joined by rules of the card",
        }
    }

    /// Whether its ends are functions of a card.
    pub(super) fn is_of_card(self) -> bool {
        matches!(
            self,
            PathName::Device | PathName::Representors | PathName::CardRules
        )
    }

    /// Why it does not lead there; none if it does.
    pub(super) fn excludes(self, scope: PathScope) -> Option<&'static str> {
        match (self, scope) {
            (PathName::Vxlan | PathName::OvsVxlan, PathScope::Local) => Some("a tunnel is between two hosts"),
            (PathName::AfXdp | PathName::Memif | PathName::Esp, PathScope::Across) => {
                Some("its packets go from one uplink to a function and back")
            }
            (path, PathScope::Across) if path.is_of_card() => {
                Some("a card joins its own functions, on one host")
            }
            _ => None,
        }
    }

    /// Why it does not carry that; none if it does.
    pub(super) fn refuses(self, work: PathWork) -> Option<&'static str> {
        match (self, work) {
            (
                PathName::AfXdp | PathName::Memif | PathName::Esp,
                PathWork::Tcp
                | PathWork::Requests
                | PathWork::Tiers
                | PathWork::MixLarge
                | PathWork::MixHalf
                | PathWork::MixSmall,
            ) => Some("its end is a function, which is no host"),
            _ => None,
        }
    }
}

impl PathScope {
    /// Both.
    pub(super) const ALL: [PathScope; 2] = [PathScope::Local, PathScope::Across];

    pub(super) fn scope(self) -> Scope {
        match self {
            PathScope::Local => Scope::Local,
            PathScope::Across => Scope::Across,
        }
    }

    /// Its name in tables and files.
    pub(super) fn name(self) -> &'static str {
        match self {
            PathScope::Local => "local",
            PathScope::Across => "across",
        }
    }
}

impl PathWork {
    /// All.
    pub(super) const ALL: [PathWork; 7] = [
        PathWork::Tcp,
        PathWork::Requests,
        PathWork::Tiers,
        PathWork::Packets,
        PathWork::MixLarge,
        PathWork::MixHalf,
        PathWork::MixSmall,
    ];

    pub(super) fn work(self) -> Work {
        match self {
            PathWork::Tcp => Work::Tcp,
            PathWork::Requests => Work::Requests,
            PathWork::Tiers => Work::Tiers,
            PathWork::Packets => Work::Packets,
            PathWork::MixLarge => Work::MixLarge,
            PathWork::MixHalf => Work::MixHalf,
            PathWork::MixSmall => Work::MixSmall,
        }
    }

    /// Its name in tables and files.
    pub(super) fn name(self) -> &'static str {
        match self {
            PathWork::Tcp => "tcp",
            PathWork::Requests => "requests",
            PathWork::Tiers => "tiers",
            PathWork::Packets => "packets",
            PathWork::MixLarge => "mix-large",
            PathWork::MixHalf => "mix-half",
            PathWork::MixSmall => "mix-small",
        }
    }
}
