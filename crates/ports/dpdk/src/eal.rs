//! DPDK's environment abstraction layer: started once per process and never stopped, because its memory must
//! outlive every mbuf.

use std::ffi::{CString, c_char};
use std::marker::PhantomData;
use std::sync::Mutex;

use dpdk_sys as sys;

use crate::{Errno, Error};

/// Proof that EAL runs in this process.
#[derive(Clone, Copy, Debug)]
pub struct Eal {
    _only_from_init: (),
}

/// EAL's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalConfig {
    /// Distinguishes this program from other DPDK programs on the machine.
    pub file_prefix: String,
    /// Memory for mbufs and rings in MiB.
    pub memory_mib: u32,
    /// Whether to use hugepages. Network cards need them; software devices do not.
    pub hugepages: bool,
    /// The CPU of EAL's own threads; it starts no workers.
    pub cpu: u16,
    /// PCI devices to use, as [`DeviceArgs::pci_address`](crate::DeviceArgs::pci_address) returns them. If
    /// empty, the PCI bus is not scanned.
    pub pci: Vec<String>,
    /// EAL's log levels, in its own syntax (`"error"`, `"pmd.*:debug"`).
    pub log_level: String,
    /// Further arguments, passed on unchanged.
    pub more: Vec<String>,
}

impl EalConfig {
    /// 256 MiB without hugepages, no PCI, errors only, on the first CPU allowed to the calling thread.
    pub fn new(file_prefix: impl Into<String>) -> EalConfig {
        EalConfig {
            file_prefix: file_prefix.into(),
            memory_mib: 256,
            hugepages: false,
            cpu: first_allowed_cpu(),
            pci: Vec::new(),
            log_level: "error".to_owned(),
            more: Vec::new(),
        }
    }

    /// The arguments for [`Eal::init`].
    pub fn args(&self) -> Vec<String> {
        let mut args = vec![
            "--no-shconf".to_owned(),
            "--no-telemetry".to_owned(),
            format!("--file-prefix={}", self.file_prefix),
            // One logical core, so that EAL starts no worker threads, mapped to the CPU.
            format!("--lcores=0@{}", self.cpu),
            "-m".to_owned(),
            self.memory_mib.to_string(),
            format!("--log-level={}", self.log_level),
        ];
        if self.hugepages {
            // Needs no hugepage file system and leaves no files if the process is killed.
            args.push("--in-memory".to_owned());
        } else {
            args.push("--no-huge".to_owned());
        }
        if self.pci.is_empty() {
            args.push("--no-pci".to_owned());
        }
        for device in &self.pci {
            args.extend(["-a".to_owned(), device.clone()]);
        }
        args.extend(self.more.iter().cloned());
        args
    }
}

/// The first CPU allowed to the calling thread; 0 if unknown.
fn first_allowed_cpu() -> u16 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    first_cpu(&status).unwrap_or(0)
}

/// The first CPU of a `Cpus_allowed_list:` line, such as `2-5,8`.
fn first_cpu(status: &str) -> Option<u16> {
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?
        .trim();
    list.split(['-', ',']).next()?.parse().ok()
}

/// The result of [`Eal::init`], once called. EAL cannot be started again, even after a failure.
static STARTED: Mutex<Option<Result<Eal, Error>>> = Mutex::new(None);

/// Arguments that make EAL print something and exit.
const ENDS_THE_PROCESS: [&str; 4] = ["-h", "--help", "-v", "--version"];

/// The id of a thread that is not registered with EAL.
const NO_LCORE: u32 = u32::MAX;

impl Eal {
    /// Starts EAL with these arguments (without a program name), on a separate thread: EAL pins the calling
    /// thread, and later threads would inherit that.
    ///
    /// # Errors
    /// [`Error::EalRuns`] from the second call on; [`Error::EalInit`] if EAL fails, after which it cannot be
    /// retried in this process.
    pub fn init(args: &[String]) -> Result<Eal, Error> {
        let mut started = STARTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if started.is_some() {
            return Err(Error::EalRuns);
        }
        let mut owned = vec![CString::from(c"inco")];
        for arg in args {
            if ENDS_THE_PROCESS.contains(&arg.as_str()) {
                return Err(Error::EalArgument(arg.clone()));
            }
            owned.push(CString::new(arg.as_str()).map_err(|_| Error::EalArgument(arg.clone()))?);
        }
        let text = args.join(" ");
        let result = std::thread::Builder::new()
            .name("inco-eal".to_owned())
            .spawn(move || start(owned, &text))
            .map_err(|error| Error::Thread(Errno(error.raw_os_error().unwrap_or(0))))?
            .join()
            .unwrap_or(Err(Error::Thread(Errno(0))));
        *started = Some(result.clone());
        result
    }

    /// EAL, if it is running.
    pub fn running() -> Option<Eal> {
        let started = STARTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        started.as_ref().and_then(|result| result.as_ref().ok().copied())
    }

    /// Registers the calling thread with EAL until the guard is dropped: it then has its own cache in every
    /// pool. Unregistered threads may do everything too, but pay a locked ring operation per mbuf.
    ///
    /// # Errors
    /// [`Error::ThreadRegistered`]; [`Error::Refused`] if EAL has no free slot (128 in Debian's).
    pub fn register_thread(&self) -> Result<RegisteredThread, Error> {
        // SAFETY: reads a thread-local variable.
        if unsafe { sys::rte_lcore_id() } != NO_LCORE {
            return Err(Error::ThreadRegistered);
        }
        // SAFETY: EAL runs (self).
        if unsafe { sys::rte_thread_register() } != 0 {
            // SAFETY: reads a thread-local variable.
            let errno = unsafe { sys::inco_errno() };
            return Err(Error::refused("cannot register", "this thread", errno));
        }
        Ok(RegisteredThread {
            _of_this_thread: PhantomData,
        })
    }

    /// DPDK's version, such as `DPDK 22.11.11`.
    pub fn version(&self) -> String {
        // SAFETY: returns a zero-terminated static string.
        unsafe { std::ffi::CStr::from_ptr(sys::rte_version()) }
            .to_string_lossy()
            .into_owned()
    }
}

fn start(owned: Vec<CString>, text: &str) -> Result<Eal, Error> {
    // EAL keeps pointers to its arguments and permutes the array, so they are leaked.
    let mut argv: Vec<*mut c_char> = owned.into_iter().map(CString::into_raw).collect();
    let count = i32::try_from(argv.len()).map_err(|_| Error::EalArgument(text.to_owned()))?;
    argv.push(std::ptr::null_mut());
    let argv = argv.leak();
    // SAFETY: `argv` has `count` zero-terminated strings and a null after them, all leaked and writable. No
    // other call of EAL has been made in this process (the lock of `STARTED` is held).
    let ret = unsafe { sys::rte_eal_init(count, argv.as_mut_ptr()) };
    if ret < 0 {
        // SAFETY: reads a thread-local variable.
        let errno = unsafe { sys::inco_errno() };
        return Err(Error::EalInit(Errno(errno), text.to_owned()));
    }
    // EAL leaves an empty directory for files that it does not create. A directory with files stays.
    // SAFETY: EAL runs, so this returns a zero-terminated static string.
    let directory = unsafe { std::ffi::CStr::from_ptr(sys::rte_eal_get_runtime_dir()) };
    let _has_files = std::fs::remove_dir(directory.to_string_lossy().as_ref());
    Ok(Eal { _only_from_init: () })
}

/// Keeps its thread registered with EAL while it lives.
#[derive(Debug)]
pub struct RegisteredThread {
    // Not Send: the registration belongs to the thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for RegisteredThread {
    fn drop(&mut self) {
        // SAFETY: this thread was registered by this guard, which cannot leave its thread.
        unsafe { sys::rte_thread_unregister() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_reflect_the_configuration() {
        let mut config = EalConfig::new("t");
        assert!(config.args().contains(&"--no-pci".to_owned()));
        assert!(config.args().contains(&"--no-huge".to_owned()));
        config.hugepages = true;
        config.pci.push("0000:03:00.0".to_owned());
        config.more.push("--legacy-mem".to_owned());
        let args = config.args();
        assert!(!args.iter().any(|a| a == "--no-pci" || a == "--no-huge"));
        assert!(args.windows(2).any(|w| w == ["-a", "0000:03:00.0"]));
        assert_eq!(args.last().unwrap(), "--legacy-mem");
    }

    #[test]
    fn the_first_allowed_cpu_is_read() {
        assert_eq!(first_cpu("Name:\tinco\nCpus_allowed_list:\t2-5,8\n"), Some(2));
        assert_eq!(first_cpu("Cpus_allowed_list:\t17\n"), Some(17));
        assert_eq!(first_cpu("Name:\tinco\n"), None);
    }

    #[test]
    fn arguments_that_would_end_the_process_are_rejected() {
        for arg in ["--help", "-h", "-v", "--version", "a\0b"] {
            assert_eq!(
                Eal::init(&[arg.to_owned()]).unwrap_err(),
                Error::EalArgument(arg.to_owned())
            );
        }
        assert!(Eal::running().is_none());
    }
}
