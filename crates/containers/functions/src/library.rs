//! The functions that there are, by name.

use std::any::Any;

use crate::about::About;
use crate::cache::Cache;
use crate::chain::Stage;
use crate::classifier::Classifier;
use crate::configuration::Error;
use crate::dns::Dns;
use crate::firewall::Firewall;
use crate::forward::Forward;
use crate::function::{Function, Setup};
use crate::ids::Ids;
use crate::ipsec::Ipsec;
use crate::limiter::Limiter;
use crate::maglev::Maglev;
use crate::monitor::Monitor;
use crate::nat::Nat;
use crate::pfabric::Pfabric;
use crate::ranker::Ranker;
use crate::replica::Replica;
use crate::router::Router;

/// The functions of this crate.
pub const LIBRARY: &[Entry] = &[
    Entry::of::<Cache>(),
    Entry::of::<Classifier>(),
    Entry::of::<Dns>(),
    Entry::of::<Firewall>(),
    Entry::of::<Forward>(),
    Entry::of::<Ids>(),
    Entry::of::<Ipsec>(),
    Entry::of::<Limiter>(),
    Entry::of::<Maglev>(),
    Entry::of::<Monitor>(),
    Entry::of::<Nat>(),
    Entry::of::<Pfabric>(),
    Entry::of::<Ranker>(),
    Entry::of::<Replica>(),
    Entry::of::<Router>(),
];

/// A function in the list of a runner.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    about: fn() -> About,
    compile: fn(&str, &Setup) -> Result<Compiled, Error>,
    make: fn(&str, &Setup) -> Result<Stage, Error>,
}

/// A configuration that [`Entry::compile`] has built and [`Chain::reload`](crate::Chain::reload) takes: an
/// `Option<Function::Configuration>`.
#[derive(Debug)]
pub struct Compiled(pub(crate) Box<dyn Any + Send>);

impl Entry {
    /// The entry of a function.
    pub const fn of<F: Function>() -> Entry {
        Entry {
            about: F::about,
            compile: |text, setup| Ok(Compiled(Box::new(Some(F::compile(text, setup)?)))),
            make: |text, setup| {
                let function = F::new(F::compile(text, setup)?, setup);
                Ok(Stage::new(F::about(), Box::new(function)))
            },
        }
    }

    /// What the function is.
    pub fn about(&self) -> About {
        (self.about)()
    }

    /// Builds another configuration for a running function of this kind, on any thread.
    ///
    /// # Errors
    /// The text is wrong.
    pub fn compile(&self, text: &str, setup: &Setup) -> Result<Compiled, Error> {
        (self.compile)(text, setup)
    }

    /// Makes a function from the text of its configuration.
    ///
    /// # Errors
    /// The text is wrong.
    pub fn make(&self, text: &str, setup: &Setup) -> Result<Stage, Error> {
        (self.make)(text, setup)
    }
}

/// The entry with that name.
///
/// # Errors
/// [`Error::Unknown`], with the names that there are.
pub fn find<'a>(entries: &'a [Entry], name: &str) -> Result<&'a Entry, Error> {
    let known = || entries.iter().map(|entry| entry.about().name);
    let found = entries.iter().find(|entry| entry.about().name == name);
    found.ok_or_else(|| Error::Unknown {
        name: name.to_owned(),
        known: known().collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: Setup = Setup {
        instance: 1,
        ports: 1,
        seed: 0,
        external: None,
    };

    #[test]
    fn names_are_unique_and_fit_where_they_are_published() {
        let mut names = Vec::new();
        for entry in LIBRARY {
            let about = entry.about();
            assert_eq!(about.mistake(), None, "{}", about.name);
            assert!(!names.contains(&about.name), "{} is there twice", about.name);
            names.push(about.name);
        }
    }

    #[test]
    fn a_function_is_found_by_its_name() {
        let entry = find(LIBRARY, "forward").unwrap();
        assert_eq!(entry.make("", &SETUP).unwrap().about().name, "forward");
        let error = find(LIBRARY, "foreward").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("there are: cache, classifier, dns, firewall, forward"),
            "{error}"
        );
    }
}
