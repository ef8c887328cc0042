//! What stands for functions of a card, where there is no card.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use super::text;

/// A veth pair that stands for a function of a card: one end is its representor, the other the function.
pub(crate) struct Function {
    pub(crate) representor: String,
    pub(crate) interface: String,
}

impl Function {
    pub(crate) fn make(number: usize) -> Function {
        let name = |what: &str| format!("in{what}{number}p{}", std::process::id() % 1_000_000);
        let (representor, interface) = (name("r"), name("f"));
        ip(&[
            "link",
            "add",
            &representor,
            "type",
            "veth",
            "peer",
            "name",
            &interface,
        ]);
        let function = Function {
            representor,
            interface,
        };
        bring_up(&function.representor);
        function
    }

    pub(crate) fn address(&self) -> Option<String> {
        std::fs::read_to_string(format!("/sys/class/net/{}/address", self.interface)).ok()
    }

    /// As an entry of `devices`, with its interface.
    pub(crate) fn toml(&self, mac: &str) -> String {
        let Function {
            representor,
            interface,
        } = self;
        format!("{{ representor = \"{representor}\", interface = \"{interface}\", mac = \"{mac}\" }}")
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        let _gone = Command::new("ip")
            .args(["link", "del", &self.representor])
            .output();
    }
}

/// A function that a program drives by a device file. In place of `vfio-pci`'s there is one of macvtap, on the
/// function's end of the pair: who opens it reads and writes the frames of the function, each behind a header of 10
/// bytes.
pub(crate) struct FileFunction {
    function: Function,
    file: PathBuf,
    /// The file by which programs ask `vfio-pci` for groups, where there was none; nothing is behind it.
    control: Option<PathBuf>,
}

/// The memory devices, and of them `/dev/null`.
const NULL: (u32, u32) = (1, 3);
const DIRECTORY: &str = "/dev/vfio";

impl FileFunction {
    pub(crate) fn make(number: usize) -> FileFunction {
        let function = Function::make(number);
        let tap = format!("int{number}p{}", std::process::id() % 1_000_000);
        let interface = &function.interface;
        // Its frames are those of the function, whatever their addresses are. It goes with the pair.
        ip(&[
            "link", "add", "link", interface, "name", &tap, "type", "macvtap", "mode", "passthru",
        ]);
        bring_up(interface);
        bring_up(&tap);
        let of_tap = Path::new("/sys/class/net").join(&tap).join("macvtap");
        let character = of_tap.read_dir().unwrap().next().unwrap().unwrap();
        let numbers = std::fs::read_to_string(character.path().join("dev")).unwrap();
        let (major, minor) = numbers.trim().split_once(':').unwrap();
        std::fs::create_dir_all(DIRECTORY).unwrap();
        let control = Path::new(DIRECTORY).join("vfio");
        let control = (!control.exists()).then(|| make_device(control, NULL));
        // The number of no group that there can be here.
        let group = 1_000_000_000 + u64::from(std::process::id()) * 10 + number as u64;
        let file = Path::new(DIRECTORY).join(group.to_string());
        let numbers = (major.parse().unwrap(), minor.parse().unwrap());
        FileFunction {
            function,
            file: make_device(file, numbers),
            control,
        }
    }

    /// As an entry of `devices`, with its device file.
    pub(crate) fn toml(&self, address: &str) -> String {
        let representor = &self.function.representor;
        let file = self.file.display();
        format!("{{ representor = \"{representor}\", pci = \"{address}\", vfio = \"{file}\" }}")
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }
}

impl Drop for FileFunction {
    fn drop(&mut self) {
        for file in self.control.iter().chain([&self.file]) {
            let _gone = std::fs::remove_file(file);
        }
        // Where another one has files in it, it stays.
        let _gone = std::fs::remove_dir(DIRECTORY);
    }
}

fn make_device(file: PathBuf, (major, minor): (u32, u32)) -> PathBuf {
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, &file, FileType::CharacterDevice, mode, makedev(major, minor)).unwrap();
    assert!(std::fs::metadata(&file).unwrap().file_type().is_char_device());
    file
}

/// Without the kernel's own stack speaking on it.
fn bring_up(interface: &str) {
    let _no_ipv6 = std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1");
    ip(&["link", "set", interface, "up"]);
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "ip {arguments:?}: {}",
        text(&output.stderr)
    );
}
