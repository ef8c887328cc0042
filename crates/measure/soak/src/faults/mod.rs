//! The faults. A new one is a type with [`Fault`], in a file by its subject, and a line in [`FAULTS`].

mod disk;
mod engine;
mod files;
mod garbage;
mod inco;
mod instance;
mod launcher;
mod limits;
mod machine;
mod place;
mod quota;
mod switch;
mod uplink;

use std::time::Duration;

use anyhow::Result;
use model::Random;

use crate::bed::{Bed, BedName};
use crate::check::Excuse;
use crate::guard::Guard;

/// All faults.
pub(crate) const FAULTS: &[&dyn Fault] = &[
    &instance::Kill,
    &instance::Freeze,
    &instance::Memory,
    &launcher::Kill,
    &launcher::Freeze,
    &inco::Kill,
    &inco::Freeze,
    &engine::Kill,
    &engine::Freeze,
    &place::Away,
    &quota::Refused,
    &switch::Kill,
    &switch::Freeze,
    &disk::EventLog,
    &disk::ImageStore,
    &limits::Descriptors,
    &limits::Memory,
    &machine::Contention,
    &machine::ClockJump,
    &uplink::Flap,
    &garbage::Frames,
    &garbage::Sockets,
    &files::InvalidReload,
    &files::SecondInco,
];

/// Undoes a fault.
pub(crate) type Heal = Box<dyn FnOnce(&mut Bed, &mut Guard) -> Result<()>>;

/// A fault that was injected.
pub(crate) struct Injected {
    /// What was done, for the line.
    pub(crate) what: String,
    /// What that explains.
    pub(crate) excuse: Excuse,
    /// Time until it is healed.
    pub(crate) lasts: Duration,
    /// Heals it; [`None`] if inco does that alone.
    pub(crate) heal: Option<Heal>,
}

impl Injected {
    /// A fault that explains nothing and that inco heals alone.
    fn alone(what: impl Into<String>) -> Injected {
        Injected {
            what: what.into(),
            excuse: Excuse::default(),
            lasts: Duration::ZERO,
            heal: None,
        }
    }

    /// Flows of this instance may move, and lose packets.
    fn of_instance(mut self, instance: u32) -> Injected {
        self.excuse.instances.insert(instance);
        self
    }

    /// It lasts so long and is then healed by `heal`.
    fn healed(
        mut self,
        after: Duration,
        heal: impl FnOnce(&mut Bed, &mut Guard) -> Result<()> + 'static,
    ) -> Injected {
        self.lasts = after;
        self.heal = Some(Box::new(heal));
        self
    }
}

/// Whom a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// One bed.
    Bed,
    /// All of them.
    Machine,
}

/// A kind of fault.
pub(crate) trait Fault: Sync {
    /// Its name: a key of the verdict.
    fn name(&self) -> &'static str;

    /// What it does, in one line.
    fn about(&self) -> &'static str;

    /// Whether a bed has what it harms.
    fn suits(&self, _bed: BedName) -> bool {
        true
    }

    /// Whom it concerns.
    fn reach(&self) -> Reach {
        Reach::Bed
    }

    /// Harms the bed. All choices come from `random`.
    ///
    /// # Errors
    /// The harm could not be done; nothing of it remains.
    fn inject(&self, bed: &mut Bed, random: &mut Random, guard: &mut Guard) -> Result<Injected>;
}

/// The name of a fault, for the command line.
///
/// # Errors
/// There is none of that name.
pub(crate) fn name(text: &str) -> Result<&'static str, String> {
    let names = FAULTS.iter().map(|fault| fault.name());
    names.clone().find(|name| *name == text).ok_or_else(|| {
        format!(
            "there is no fault {text:?}; there are {}",
            names.collect::<Vec<_>>().join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_each_fault_suits_a_bed() {
        let mut names: Vec<_> = FAULTS.iter().map(|fault| fault.name()).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for fault in FAULTS {
            let suits = BedName::ALL.iter().any(|bed| fault.suits(*bed));
            // Not with version 2 of control groups.
            assert!(suits || fault.name() == "quota-refused", "{}", fault.name());
            assert!(fault.name().len() <= 18 && !fault.about().is_empty());
        }
        assert_eq!(name("inco-kill"), Ok("inco-kill"));
        assert!(name("inco-kil").is_err());
    }

    /// The page says of each what it does, in the same words.
    #[test]
    fn the_page_lists_every_fault() {
        let page = include_str!("../../../../../docs/soak.md");
        for fault in FAULTS {
            let row = format!("| `{}` | {} |", fault.name(), fault.about());
            assert!(page.contains(&row), "docs/soak.md lacks the row\n{row}");
        }
    }
}
