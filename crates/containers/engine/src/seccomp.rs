//! The system calls that a container may make: an allow-list for programs that compute, use sockets and shared
//! memory, including DPDK's memory policies. Ordinary programs behind a kernel port may make a few more. All others
//! fail with ENOSYS, for which C libraries have fallbacks.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use serde::{Deserialize, Serialize};

/// New namespaces are refused: a user namespace gives its process capabilities and with them a larger attack surface
/// of the kernel.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// The allowed socket families. `AF_VSOCK` leads out of a virtual machine; others are rarely used and reviewed.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// System calls by name, as the kernel numbers them here.
macro_rules! calls {
    ($($name:ident),* $(,)?) => { [$((stringify!($name), libc::$name)),*] };
}

/// Allowed with any arguments, on every architecture. Not `clone3`: its flags are behind a pointer, which a filter
/// cannot read.
#[rustfmt::skip] // one group a paragraph
const ALLOWED: &[(&str, libc::c_long)] = &calls![
    // Files.
    SYS_close, SYS_close_range, SYS_read, SYS_write,
    SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev,
    SYS_preadv2, SYS_pwritev2, SYS_lseek, SYS_fstat, SYS_newfstatat, SYS_statx,
    SYS_statfs, SYS_fstatfs, SYS_getdents64, SYS_readlinkat, SYS_faccessat,
    SYS_faccessat2, SYS_fcntl, SYS_flock, SYS_dup, SYS_dup3, SYS_pipe2,
    SYS_ftruncate, SYS_truncate, SYS_fallocate, SYS_fsync, SYS_fdatasync,
    SYS_sync_file_range, SYS_mkdirat, SYS_unlinkat, SYS_renameat2, SYS_linkat,
    SYS_symlinkat, SYS_fchown, SYS_fchownat,
    SYS_utimensat, SYS_umask, SYS_chdir, SYS_fchdir, SYS_getcwd, SYS_sendfile,
    SYS_splice, SYS_tee, SYS_vmsplice, SYS_copy_file_range, SYS_fadvise64,
    SYS_readahead, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch,
    SYS_getxattr, SYS_fgetxattr, SYS_lgetxattr, SYS_listxattr, SYS_flistxattr,
    // Memory.
    SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_mincore,
    SYS_msync, SYS_brk, SYS_mlock, SYS_mlock2, SYS_munlock, SYS_mlockall,
    SYS_munlockall, SYS_memfd_create, SYS_get_mempolicy, SYS_set_mempolicy, SYS_mbind,
    SYS_membarrier, SYS_pkey_alloc, SYS_pkey_free, SYS_pkey_mprotect, SYS_shmget,
    SYS_shmat, SYS_shmdt, SYS_shmctl,
    // Sockets, all but `socket` itself.
    SYS_socketpair, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect,
    SYS_getsockname, SYS_getpeername, SYS_getsockopt, SYS_setsockopt, SYS_shutdown,
    SYS_sendto, SYS_sendmsg, SYS_sendmmsg, SYS_recvfrom, SYS_recvmsg,
    SYS_recvmmsg,
    // Waiting.
    SYS_ppoll, SYS_pselect6, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait,
    SYS_epoll_pwait2, SYS_eventfd2, SYS_signalfd4, SYS_timerfd_create,
    SYS_timerfd_settime, SYS_timerfd_gettime, SYS_futex, SYS_futex_waitv,
    SYS_nanosleep, SYS_clock_nanosleep, SYS_restart_syscall,
    // Time.
    SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_times, SYS_getitimer,
    SYS_setitimer, SYS_timer_create, SYS_timer_settime, SYS_timer_gettime,
    SYS_timer_getoverrun, SYS_timer_delete,
    // Processes and threads.
    SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid,
    SYS_getpid, SYS_getppid, SYS_gettid, SYS_getpgid, SYS_setpgid, SYS_getsid,
    SYS_setsid, SYS_kill, SYS_tkill, SYS_tgkill, SYS_pidfd_open,
    SYS_pidfd_send_signal, SYS_set_tid_address, SYS_set_robust_list, SYS_get_robust_list,
    SYS_rseq, SYS_prctl, SYS_getrusage, SYS_getrlimit, SYS_setrlimit,
    SYS_prlimit64, SYS_getpriority, SYS_setpriority, SYS_sched_yield,
    SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_sched_getparam,
    SYS_sched_getscheduler, SYS_sched_setscheduler, SYS_sched_setparam,
    SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_getattr, SYS_getcpu,
    // Signals.
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending,
    SYS_rt_sigsuspend, SYS_rt_sigtimedwait, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
    SYS_sigaltstack,
    // Who and where one is.
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid,
    SYS_getresgid, SYS_getgroups, SYS_setuid, SYS_setgid, SYS_setresuid,
    SYS_setresgid, SYS_setgroups, SYS_capget, SYS_capset, SYS_uname, SYS_sysinfo,
    SYS_getrandom,
];

/// Allowed as well for ordinary programs, which have rights in their user namespace: servers shut themselves into a
/// directory, become another user, read files without waiting and share semaphores.
#[rustfmt::skip]
const ALLOWED_ORDINARY: &[(&str, libc::c_long)] = &calls![
    SYS_chroot, SYS_setreuid, SYS_setregid, SYS_setfsuid, SYS_setfsgid, SYS_sync, SYS_syncfs,
    SYS_io_setup, SYS_io_submit, SYS_io_getevents, SYS_io_cancel, SYS_io_destroy,
    SYS_semget, SYS_semop, SYS_semtimedop, SYS_semctl, SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl,
    SYS_setxattr, SYS_fsetxattr, SYS_lsetxattr, SYS_llistxattr, SYS_removexattr, SYS_fremovexattr,
    SYS_lremovexattr, SYS_ioprio_get, SYS_ioprio_set, SYS_sched_setattr,
];

/// Which calls a container may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Calls {
    /// Those of a network function.
    #[default]
    Usual,
    /// With packet sockets, for whole frames on the interfaces that it is given.
    Frames,
    /// Those of an ordinary program.
    Ordinary,
}

impl Calls {
    /// Those that are allowed with any arguments.
    fn allowed(self) -> impl Iterator<Item = &'static (&'static str, libc::c_long)> {
        let more = if self == Calls::Ordinary {
            ALLOWED_ORDINARY
        } else {
            &[]
        };
        ALLOWED.iter().chain(ALLOWED_HERE).chain(more)
    }

    fn families(self) -> impl Iterator<Item = i32> {
        FAMILIES
            .into_iter()
            .chain((self == Calls::Frames).then_some(libc::AF_PACKET))
    }
}

/// The old forms of the above, which newer architectures do not have.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_HERE: &[(&str, libc::c_long)] = &calls![
    SYS_stat, SYS_lstat, SYS_access, SYS_readlink,
    SYS_getdents, SYS_dup2, SYS_pipe, SYS_mkdir, SYS_rmdir, SYS_unlink,
    SYS_rename, SYS_renameat, SYS_link, SYS_symlink, SYS_chown,
    SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat, SYS_poll, SYS_select,
    SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_signalfd, SYS_inotify_init,
    SYS_time, SYS_alarm, SYS_pause, SYS_fork, SYS_vfork, SYS_getpgrp,
    SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[(&str, libc::c_long)] = &calls![SYS_renameat];

/// Allowed unless the mode has a set-user-id or set-group-id bit: such a file would run with its owner's rights on
/// the host. Each entry names the argument that is the mode, and the flags that say whether it counts. Not `openat2`:
/// its mode is behind a pointer.
const WITH_MODES: &[(&str, libc::c_long, u8, Option<u8>)] = &[
    ("fchmod", libc::SYS_fchmod, 1, None),
    ("fchmodat", libc::SYS_fchmodat, 2, None),
    ("openat", libc::SYS_openat, 3, Some(2)),
    #[cfg(target_arch = "x86_64")]
    ("chmod", libc::SYS_chmod, 1, None),
    #[cfg(target_arch = "x86_64")]
    ("creat", libc::SYS_creat, 1, None),
    #[cfg(target_arch = "x86_64")]
    ("open", libc::SYS_open, 2, Some(1)),
];
/// The bits in question.
const PRIVILEGED: u64 = (libc::S_ISUID | libc::S_ISGID) as u64;
/// With one of these flags a call makes a file, so that its mode counts.
const MAKES_FILE: u64 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u64;

/// The filter, compiled for this machine.
pub(crate) fn filter(calls: Calls) -> Result<BpfProgram, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        calls.allowed().map(|&(_, number)| (number, Vec::new())).collect();
    let rule = |conditions| SeccompRule::new(conditions);
    let is = |argument, length, value| SeccompCondition::new(argument, length, SeccompCmpOp::Eq, value);
    let is_not = |argument, length, value| SeccompCondition::new(argument, length, SeccompCmpOp::Ne, value);

    let no_namespace = SeccompCondition::new(0, Qword, SeccompCmpOp::MaskedEq(NEW_NAMESPACES), 0)?;
    rules.insert(libc::SYS_clone, vec![rule(vec![no_namespace])?]);
    let families = calls.families();
    let families = families.map(|family| rule(vec![is(0, Dword, family as u64)?]));
    rules.insert(libc::SYS_socket, families.collect::<Result<_, _>>()?);
    // Asking for the personality and setting the usual one; others weaken the layout of memory.
    let personalities = [0, 0xffff_ffff]
        .iter()
        .map(|&value| rule(vec![is(0, Dword, value)?]));
    rules.insert(libc::SYS_personality, personalities.collect::<Result<_, _>>()?);
    // Not the two that type into a terminal.
    let terminal = vec![
        is_not(1, Dword, libc::TIOCSTI)?,
        is_not(1, Dword, libc::TIOCLINUX)?,
    ];
    rules.insert(libc::SYS_ioctl, vec![rule(terminal)?]);

    let without = |argument, bits| SeccompCondition::new(argument, Dword, SeccompCmpOp::MaskedEq(bits), 0);
    for &(_, number, mode, flags) in WITH_MODES {
        let mut allowed = vec![rule(vec![without(mode, PRIVILEGED)?])?];
        if let Some(flags) = flags {
            allowed.push(rule(vec![without(flags, MAKES_FILE)?])?);
        }
        rules.insert(number, allowed);
    }

    let refused = SeccompAction::Errno(libc::ENOSYS as u32);
    SeccompFilter::new(
        rules,
        refused,
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}

/// The same list as a profile for Docker. What is refused fails with EPERM there, except `clone3`, for which C
/// libraries need ENOSYS.
#[cfg(feature = "docker")]
pub(crate) fn docker_profile(allowed: Calls) -> String {
    let name = |call: &(&'static str, libc::c_long)| call.0.trim_start_matches("SYS_");
    let names: Vec<&str> = allowed.allowed().map(name).collect();
    let when_at = |index: u8, call: &str, operation: &str, value: u64| {
        serde_json::json!({
            "names": [call], "action": "SCMP_ACT_ALLOW",
            "args": [{ "index": index, "value": value, "valueTwo": 0, "op": operation }],
        })
    };
    let when = |call: &str, operation: &str, value: u64| when_at(0, call, operation, value);
    let mut calls = vec![
        serde_json::json!({ "names": names, "action": "SCMP_ACT_ALLOW" }),
        serde_json::json!({ "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::ENOSYS }),
        serde_json::json!({
            "names": ["ioctl"], "action": "SCMP_ACT_ALLOW",
            "args": [{ "index": 1, "value": libc::TIOCSTI, "op": "SCMP_CMP_NE" }],
        }),
        when("clone", "SCMP_CMP_MASKED_EQ", NEW_NAMESPACES),
    ];
    calls.extend(
        allowed
            .families()
            .map(|family| when("socket", "SCMP_CMP_EQ", family as u64)),
    );
    calls.extend(
        [0, 0xffff_ffff]
            .iter()
            .map(|&value| when("personality", "SCMP_CMP_EQ", value)),
    );
    for &(call, _, mode, flags) in WITH_MODES {
        calls.push(when_at(mode, call, "SCMP_CMP_MASKED_EQ", PRIVILEGED));
        calls.extend(flags.map(|flags| when_at(flags, call, "SCMP_CMP_MASKED_EQ", MAKES_FILE)));
    }
    serde_json::json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": calls }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_and_fits_the_kernel() {
        for calls in [Calls::Usual, Calls::Frames, Calls::Ordinary] {
            let filter = filter(calls).unwrap();
            assert!(
                filter.len() > ALLOWED.len() && filter.len() < 4096,
                "{}",
                filter.len()
            );
        }
    }

    #[test]
    fn what_could_lead_out_of_a_container_is_not_allowed() {
        #[rustfmt::skip]
        let refused = [
            libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_setns, libc::SYS_unshare,
            libc::SYS_clone3, libc::SYS_ptrace, libc::SYS_process_vm_writev, libc::SYS_bpf, libc::SYS_keyctl,
            libc::SYS_io_uring_setup, libc::SYS_userfaultfd, libc::SYS_perf_event_open, libc::SYS_open_by_handle_at,
            libc::SYS_init_module, libc::SYS_kexec_load, libc::SYS_reboot, libc::SYS_openat2, libc::SYS_mknodat,
        ];
        for number in refused {
            assert!(
                Calls::Ordinary.allowed().all(|&(_, allowed)| allowed != number),
                "{number}"
            );
        }
    }
}
