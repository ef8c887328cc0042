//! Which number each service has in the flow tables of a run. The next run may have other services, or the same ones in
//! another order: it knows by this which of its services a flow belongs to.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;

use model::ServiceId;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

/// The name under which it is kept. After those of the tables: a run that ends while it writes these leaves the numbers of
/// the tables that it did not replace.
pub(crate) const NAME: &str = "tables/services";

/// Most bytes of what a file of an earlier run is read for.
const BYTES_MAX: u64 = 64 << 10;

/// The services of a run, in the order of their numbers. FNV-1a, the same for every build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbering {
    /// What the run's tables have in their headers: a fingerprint of the services at its start.
    pub(crate) tables: u64,
    /// A fingerprint of each service, also of those that were added since.
    services: Vec<u64>,
}

impl Numbering {
    /// Of services that have the numbers 0, 1 and so on. Each gives the words that tell it from others: its name, and
    /// what the keys of its flows depend on.
    pub fn new(services: impl Iterator<Item = String>) -> Numbering {
        let mut tables = FNV_BASIS;
        let services = services.map(|words| {
            tables = fnv(fnv(tables, words.as_bytes()), &[0xff]);
            fnv(FNV_BASIS, words.as_bytes())
        });
        let services = services.collect();
        Numbering { tables, services }
    }

    /// The same tables, when services were added to these.
    pub(crate) fn of_tables(self, tables: u64) -> Numbering {
        Numbering { tables, ..self }
    }

    /// A file of it, to be kept.
    pub(crate) fn to_file(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("inco-services", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(file.into())
    }

    /// What an earlier run's file says.
    pub(crate) fn of_file(file: OwnedFd) -> io::Result<Numbering> {
        let mut file = File::from(file);
        file.rewind()?;
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// The number that each of these services has in another run.
    pub(crate) fn in_run(&self, other: &Numbering) -> Vec<Option<ServiceId>> {
        let number = |service: &u64| other.services.iter().position(|of| of == service);
        let number = |service| number(service).map(|index| ServiceId(index as u16));
        self.services.iter().map(number).collect()
    }
}

/// Whether each service has the number that it had.
pub(crate) fn are_same(numbers: &[Option<ServiceId>]) -> bool {
    let number = |index| Some(ServiceId(index as u16));
    numbers.iter().enumerate().all(|(index, of)| *of == number(index))
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(services: &[&str]) -> Numbering {
        Numbering::new(services.iter().map(|of| (*of).to_owned()))
    }

    #[test]
    fn services_have_the_numbers_of_the_other_run() {
        let id = |number| Some(ServiceId(number));
        let before = of(&["a", "b", "c"]);
        assert_eq!(before.in_run(&of(&["c", "new", "a"])), [id(2), None, id(0)]);
        assert!(are_same(&before.in_run(&of(&["a", "b", "c", "d"]))));
        assert!(!are_same(&before.in_run(&of(&["a", "b"]))));
        assert!(!are_same(&before.in_run(&of(&["a", "c", "b"]))));
    }

    #[test]
    fn a_file_says_what_was_written_and_other_bytes_are_an_error() {
        let of_most = Numbering::new((0..ServiceId::LIMIT).map(|number| format!("a-long-name-{number}")));
        assert_eq!(Numbering::of_file(of_most.to_file().unwrap()).unwrap(), of_most);
        let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        assert!(Numbering::of_file(other).is_err());
    }

    /// Tables of earlier releases have this value in their headers.
    #[test]
    fn the_fingerprint_of_tables_does_not_change() {
        assert_eq!(of(&[]).tables, 0xcbf2_9ce4_8422_2325);
        assert_eq!(of(&["web"]).tables, fnv(FNV_BASIS, b"web\xff"));
        assert_ne!(of(&["a", "b"]).tables, of(&["b", "a"]).tables);
        assert_ne!(of(&["ab"]).tables, of(&["a", "b"]).tables);
    }
}
