//! Functions of network cards that containers get: where the kernel has them, and what a container needs of them.

use std::fs;
use std::path::{Path, PathBuf};

use model::{InterfaceSetup, NetFunction};

use crate::{EngineError, port};

/// Where the kernel tells of devices.
pub const SYS: &str = "/sys";

/// Whether a function can be: nothing in it leads out of a directory. Looks at nothing outside.
///
/// # Errors
/// [`EngineError::BadSpec`].
pub(crate) fn check(function: &NetFunction) -> Result<(), EngineError> {
    let is_name = |name: &str| {
        let allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
        !name.is_empty() && name != "." && name != ".." && name.bytes().all(allowed)
    };
    let is_device = |path: &Path| {
        let climbs = path
            .components()
            .any(|part| part == std::path::Component::ParentDir);
        path.starts_with("/dev/vfio") && !climbs
    };
    let is_right = match function {
        NetFunction::Pci { address, vfio } => is_name(address) && vfio.as_deref().is_none_or(is_device),
        NetFunction::Sf(_) => true,
        NetFunction::Interface(name) => port::is_name(name),
        NetFunction::Port(setup) | NetFunction::Frames(setup) => return port::check(setup),
    };
    if is_right {
        return Ok(());
    }
    Err(EngineError::BadSpec {
        what: "this function of a card",
        reason: format!("{function} is none, or its device file is not below /dev/vfio"),
    })
}

/// What a container needs for its functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Network interfaces that are moved into it, under their names.
    pub interfaces: Vec<String>,
    /// Those that are moved into it and set up there, for the kernel's network.
    pub ports: Vec<InterfaceSetup>,
    /// Those that are moved into it and set up there, for whole frames.
    pub frames: Vec<InterfaceSetup>,
    /// Device files.
    pub devices: Vec<PathBuf>,
    /// Environment: `INCO_INTERFACES` and `INCO_PCI`, in the order of the functions, with commas.
    pub env: Vec<(String, String)>,
}

impl Given {
    /// Whether its program takes whole frames from interfaces, which needs packet sockets.
    pub(crate) fn has_frames(&self) -> bool {
        !self.interfaces.is_empty() || !self.frames.is_empty()
    }

    /// The interfaces that are set up in the container.
    #[cfg(feature = "docker")]
    pub(crate) fn set_up(&self) -> Vec<InterfaceSetup> {
        self.ports.iter().chain(&self.frames).cloned().collect()
    }

    /// What is to be given for these functions, as the kernel has them now below `sys` ([`SYS`]).
    ///
    /// # Errors
    /// [`EngineError::NoFunction`] where one is not there, or no program could use it.
    pub fn find(functions: &[NetFunction], sys: &Path) -> Result<Given, EngineError> {
        let mut given = Given::default();
        let mut addresses = Vec::new();
        for function in functions {
            match function {
                NetFunction::Pci { address, vfio } => {
                    addresses.push(address.clone());
                    given.add_pci(function, address, vfio.as_deref(), sys)?;
                }
                NetFunction::Sf(number) => given.add_sf(function, *number, sys)?,
                NetFunction::Interface(name) => {
                    let directory = interface(function, name, sys)?;
                    given.interfaces.push(name.clone());
                    given.devices.extend(verbs(&directory.join("device")));
                }
                NetFunction::Port(setup) | NetFunction::Frames(setup) => {
                    // `/sys` may be that of another network namespace.
                    if !port::is_here(&setup.host) {
                        return Err(no_interface(function));
                    }
                    let is_of_kernel = matches!(function, NetFunction::Port(_));
                    let all = if is_of_kernel {
                        &mut given.ports
                    } else {
                        &mut given.frames
                    };
                    all.push(setup.clone());
                }
            }
        }
        let interfaces = given.interfaces.iter().map(String::as_str);
        let frames = given.frames.iter().map(|setup| setup.name.as_str());
        let names: Vec<&str> = interfaces.chain(frames).collect();
        if !names.is_empty() {
            given.env.push(("INCO_INTERFACES".to_owned(), names.join(",")));
        }
        if !addresses.is_empty() {
            given.env.push(("INCO_PCI".to_owned(), addresses.join(",")));
        }
        given.devices.sort();
        given.devices.dedup();
        Ok(given)
    }

    fn add_pci(
        &mut self,
        function: &NetFunction,
        address: &str,
        vfio: Option<&Path>,
        sys: &Path,
    ) -> Result<(), EngineError> {
        let control = PathBuf::from("/dev/vfio/vfio");
        if let Some(group) = vfio {
            self.devices.extend([control, group.to_owned()]);
            return Ok(());
        }
        let device = sys.join("bus/pci/devices").join(address);
        if !device.exists() {
            let write = "make virtual functions with `echo 2 > /sys/class/net/p0/device/sriov_numvfs`; `lspci -D` shows them";
            return Err(missing(function, "is not there", write));
        }
        if last_of_link(&device.join("driver")).as_deref() == Some("vfio-pci") {
            let Some(group) = last_of_link(&device.join("iommu_group")) else {
                let write = "switch the IOMMU on (intel_iommu=on iommu=pt at boot)";
                return Err(missing(function, "has no IOMMU group", write));
            };
            self.devices.extend([control, Path::new("/dev/vfio").join(group)]);
            return Ok(());
        }
        let Some(interface) = names(&device.join("net")).into_iter().next() else {
            let write = format!(
                "a container may have it still; else give it a driver: `dpdk-devbind.py -b mlx5_core {address}`, or `-b vfio-pci` for a program that drives it by itself"
            );
            return Err(missing(
                function,
                "has no network interface here, and vfio-pci does not have it",
                write,
            ));
        };
        self.devices.extend(verbs(&device));
        self.interfaces.push(interface);
        Ok(())
    }

    fn add_sf(&mut self, function: &NetFunction, number: u32, sys: &Path) -> Result<(), EngineError> {
        let all = sys.join("bus/auxiliary/devices");
        let is_it = |device: &PathBuf| {
            let text = fs::read_to_string(device.join("sfnum")).unwrap_or_default();
            text.trim().parse() == Ok(number)
        };
        let found: Vec<PathBuf> = names(&all)
            .iter()
            .map(|name| all.join(name))
            .filter(is_it)
            .collect();
        let device = match found.as_slice() {
            [device] => device,
            [] => {
                let write = format!(
                    "make it: `mlnx-sf -a create -d 0000:03:00.0 -n {number} -m 02:00:00:00:00:11 -t`; `mlnx-sf -a show` lists them"
                );
                return Err(missing(function, "is not there", write));
            }
            _ => {
                let write = "write interface = \"NAME\" instead";
                return Err(missing(
                    function,
                    "is there more than once: several cards have one",
                    write,
                ));
            }
        };
        let Some(interface) = names(&device.join("net")).into_iter().next() else {
            let write = "a container may have it still; else `mlxdevm port show` says whether it is active";
            return Err(missing(function, "has no network interface here", write));
        };
        self.devices.extend(verbs(device));
        self.interfaces.push(interface);
        Ok(())
    }
}

/// Where the kernel tells of an interface.
fn interface(function: &NetFunction, name: &str, sys: &Path) -> Result<PathBuf, EngineError> {
    let directory = sys.join("class/net").join(name);
    if directory.exists() {
        return Ok(directory);
    }
    Err(no_interface(function))
}

fn no_interface(function: &NetFunction) -> EngineError {
    let write = "`ip link` shows those that there are; a container may have it still";
    missing(function, "is not there", write)
}

fn missing(function: &NetFunction, what: &str, write: impl Into<String>) -> EngineError {
    EngineError::NoFunction {
        what: format!("{function} {what}"),
        write: write.into(),
    }
}

/// The device files by which a program drives a card's function beside the kernel, as DPDK's driver for mlx5 does.
fn verbs(device: &Path) -> Vec<PathBuf> {
    let names = names(&device.join("infiniband_verbs"));
    let directory = Path::new("/dev/infiniband");
    names.iter().map(|name| directory.join(name)).collect()
}

/// Names in a directory, sorted; none where it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The last part of what a link points to.
fn last_of_link(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine with these directories, and files where there is a text.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = sys.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix("-> ") {
                Some(target) => symlink(target, path).unwrap(),
                None if text.is_empty() => fs::create_dir_all(path).unwrap(),
                None => fs::write(path, text).unwrap(),
            }
        }
        sys
    }

    fn pci(address: &str) -> NetFunction {
        NetFunction::Pci {
            address: address.into(),
            vfio: None,
        }
    }

    #[test]
    fn a_function_of_the_kernel_gives_its_interface_and_one_of_vfio_its_device_file() {
        let sys = machine(&[
            (
                "bus/pci/devices/0000:03:00.2/driver",
                "-> ../../drivers/mlx5_core",
            ),
            ("bus/pci/devices/0000:03:00.2/net/enp3s0f0v0", ""),
            ("bus/pci/devices/0000:03:00.2/infiniband_verbs/uverbs3", ""),
            ("bus/pci/devices/0000:03:00.3/driver", "-> ../../drivers/vfio-pci"),
            (
                "bus/pci/devices/0000:03:00.3/iommu_group",
                "-> ../../../kernel/iommu_groups/42",
            ),
            ("bus/pci/devices/0000:03:00.4/driver", "-> ../../drivers/vfio-pci"),
            ("bus/pci/devices/0000:03:00.5/class", "0x020000"),
            ("bus/auxiliary/devices/mlx5_core.sf.2/sfnum", "88\n"),
            ("bus/auxiliary/devices/mlx5_core.sf.2/net/enp3s0f0s88", ""),
            ("bus/auxiliary/devices/mlx5_core.sf.3/sfnum", "89\n"),
            ("bus/auxiliary/devices/mlx5_core.sf.4/sfnum", "90\n"),
            ("bus/auxiliary/devices/mlx5_core.sf.5/sfnum", "90\n"),
            ("class/net/veth0", ""),
        ]);
        let find = |functions: &[NetFunction]| Given::find(functions, sys.path());
        let env = |name: &str, value: &str| (name.to_owned(), value.to_owned());

        let given = find(&[pci("0000:03:00.2")]).unwrap();
        assert_eq!(given.interfaces, ["enp3s0f0v0"]);
        assert_eq!(given.devices, [Path::new("/dev/infiniband/uverbs3")]);
        assert_eq!(
            given.env,
            [
                env("INCO_INTERFACES", "enp3s0f0v0"),
                env("INCO_PCI", "0000:03:00.2")
            ]
        );
        let given = find(&[pci("0000:03:00.3")]).unwrap();
        assert_eq!(given.interfaces, Vec::<String>::new());
        assert_eq!(
            given.devices,
            [Path::new("/dev/vfio/42"), Path::new("/dev/vfio/vfio")]
        );
        let given = find(&[NetFunction::Sf(88), NetFunction::Interface("veth0".into())]).unwrap();
        assert_eq!(given.env, [env("INCO_INTERFACES", "enp3s0f0s88,veth0")]);
        // Of another machine there is only what the configuration says.
        let there = NetFunction::Pci {
            address: "0000:81:00.2".into(),
            vfio: Some("/dev/vfio/7".into()),
        };
        assert_eq!(find(&[there]).unwrap().devices[0], Path::new("/dev/vfio/7"));

        for (function, what) in [
            (pci("0000:03:00.9"), "is not there"),
            (pci("0000:03:00.4"), "no IOMMU group"),
            (pci("0000:03:00.5"), "no network interface here"),
            (NetFunction::Sf(1), "is not there"),
            (NetFunction::Sf(89), "no network interface here"),
            (NetFunction::Sf(90), "more than once"),
            (NetFunction::Interface("eth9".into()), "is not there"),
        ] {
            let error = find(std::slice::from_ref(&function)).unwrap_err().to_string();
            assert!(
                error.contains(what) && error.contains(&function.to_string()),
                "{error}"
            );
        }
    }
}
