//! Drops the capabilities that a running inco does not need. `CapabilityBoundingSet` of `inco.service` has the same
//! list.

use configuration::Configuration;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

use crate::drivers::loads_programs;

/// For containers (mounts, namespaces, control groups, owners, signals), network interfaces, sockets, real-time
/// threads and locked memory. A new launcher, if the first one ends, inherits them. It needs those that ordinary
/// containers get to run commands there.
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SYS_PTRACE);

/// For programs in the kernel.
const FOR_PROGRAMS: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);

/// For DPDK's drivers of network devices in this process. Some load programs into the kernel.
const FOR_DEVICES: CapabilitySet = FOR_PROGRAMS.union(CapabilitySet::SYS_RAWIO);

/// Drops all other capabilities of this thread, and of the threads and programs that it starts, for good. Call it
/// before the first other thread starts. Returns the dropped ones.
///
/// # Errors
/// The system refuses it.
pub(crate) fn drop_unneeded(configuration: &Configuration) -> Result<CapabilitySet, Errno> {
    let mut kept = NEEDED;
    if configuration
        .uplinks
        .iter()
        .any(|uplink| uplink.device.is_of_dpdk())
    {
        kept |= FOR_DEVICES;
    }
    if loads_programs(configuration) {
        kept |= FOR_PROGRAMS;
    }
    let has = capabilities(None)?;
    if has.permitted.contains(CapabilitySet::SETPCAP) {
        for unneeded in kept.complement().iter() {
            match remove_capability_from_bounding_set(unneeded) {
                // This kernel has no such capability.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    let permitted = has.permitted & kept;
    let sets = CapabilitySets {
        effective: has.effective & kept,
        permitted,
        inheritable: has.inheritable & kept,
    };
    set_capabilities(None, sets)?;
    Ok(has.permitted - permitted)
}
