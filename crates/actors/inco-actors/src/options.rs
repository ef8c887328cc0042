//! Options behind the kind of an actor: `NAME=VALUE`, with spaces between them.

use std::collections::BTreeMap;
use std::str::FromStr;

use actor_runtime::{ActorId, Address};

/// The options of a kind, by name.
#[derive(Debug)]
pub(crate) struct Options<'k>(BTreeMap<&'k str, &'k str>);

impl<'k> Options<'k> {
    /// The name of a kind, and its options; nothing if there is an option without a value.
    pub(crate) fn of(kind: &'k str) -> Option<(&'k str, Options<'k>)> {
        let mut words = kind.split_whitespace();
        let name = words.next()?;
        let options: Option<_> = words.map(|word| word.split_once('=')).collect();
        Some((name, Options(options?)))
    }

    pub(crate) fn text(&self, name: &str) -> Option<&'k str> {
        self.0.get(name).copied()
    }

    pub(crate) fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }

    /// The number, or another one where it is not written; nothing for a text that is no number.
    pub(crate) fn number_or<T: FromStr>(&self, name: &str, other: T) -> Option<T> {
        match self.text(name) {
            Some(text) => text.parse().ok(),
            None => Some(other),
        }
    }

    /// Numbers of actors, with commas.
    pub(crate) fn actors(&self, name: &str) -> Option<Vec<Address>> {
        let numbers = self.text(name)?.split(',');
        numbers
            .map(|part| Some(Address::Actor(ActorId(part.parse().ok()?))))
            .collect()
    }

    pub(crate) fn actor(&self, name: &str) -> Option<Address> {
        Some(Address::Actor(ActorId(self.number(name)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_they_are_written() {
        let (name, options) = Options::of("store me=2 replicas=0,4,x tick=20").unwrap();
        assert_eq!((name, options.number::<u8>("me")), ("store", Some(2)));
        assert_eq!(options.number::<u8>("tick"), Some(20));
        assert_eq!(options.actors("replicas"), None, "x is no number");
        let (_, all) = Options::of("store replicas=0,4").unwrap();
        let number = |of| Address::Actor(ActorId(of));
        assert_eq!(all.actors("replicas"), Some(vec![number(0), number(4)]));
        assert_eq!(
            (options.number_or("seed", 7_u64), options.number::<u8>("seed")),
            (Some(7), None)
        );
        assert_eq!(options.number_or("replicas", 7_u64), None);
        assert_eq!(options.actor("me"), Some(Address::Actor(ActorId(2))));
        assert!(Options::of("store me").is_none() && Options::of("").is_none());
    }
}
