//! The paths: what each is, between which ends it leads and what it carries.

use path_costs::{Scope, Work};

use crate::args::{PathName, PathScope, PathWork};

impl PathName {
    /// All, in the order of the report.
    pub(super) const ALL: [PathName; 10] = [
        PathName::Bridge,
        PathName::Nftables,
        PathName::Ebpf,
        PathName::SoftKernel,
        PathName::Ovs,
        PathName::Vxlan,
        PathName::OvsVxlan,
        PathName::AfXdp,
        PathName::Memif,
        PathName::Esp,
    ];

    /// Its name in tables and files.
    pub(super) fn name(self) -> &'static str {
        match self {
            PathName::Bridge => "bridge",
            PathName::Nftables => "nftables",
            PathName::Ebpf => "ebpf",
            PathName::SoftKernel => "soft-kernel",
            PathName::AfXdp => "af-xdp",
            PathName::Memif => "memif",
            PathName::Ovs => "ovs",
            PathName::Vxlan => "vxlan",
            PathName::OvsVxlan => "ovs-vxlan",
            PathName::Esp => "esp",
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
            PathName::AfXdp => "inco's own switch, uplink over AF_XDP, function forward over memif, and back",
            PathName::Memif => "inco's own switch, uplink and function forward over memif, and back",
            PathName::Ovs => "Open vSwitch in userspace, without DPDK, with veth pairs",
            PathName::Vxlan => "bridges of the kernel, joined by its VXLAN tunnel",
            PathName::OvsVxlan => "Open vSwitch in userspace, joined by its VXLAN tunnel",
            PathName::Esp => {
                "inco's own switch, memif; function ipsec encrypts a packet, decrypts it, and back"
            }
        }
    }

    /// Why it does not lead there; none if it does.
    pub(super) fn excludes(self, scope: PathScope) -> Option<&'static str> {
        match (self, scope) {
            (PathName::Vxlan | PathName::OvsVxlan, PathScope::Local) => Some("a tunnel is between two hosts"),
            (PathName::AfXdp | PathName::Memif | PathName::Esp, PathScope::Across) => {
                Some("its packets go from one uplink to a function and back")
            }
            _ => None,
        }
    }

    /// Why it does not carry that; none if it does.
    pub(super) fn refuses(self, work: PathWork) -> Option<&'static str> {
        match (self, work) {
            (PathName::AfXdp | PathName::Memif | PathName::Esp, PathWork::Tcp | PathWork::Requests) => {
                Some("its end is a function, which is no host")
            }
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
    pub(super) const ALL: [PathWork; 3] = [PathWork::Tcp, PathWork::Requests, PathWork::Packets];

    pub(super) fn work(self) -> Work {
        match self {
            PathWork::Tcp => Work::Tcp,
            PathWork::Requests => Work::Requests,
            PathWork::Packets => Work::Packets,
        }
    }

    /// Its name in tables and files.
    pub(super) fn name(self) -> &'static str {
        match self {
            PathWork::Tcp => "tcp",
            PathWork::Requests => "requests",
            PathWork::Packets => "packets",
        }
    }
}
