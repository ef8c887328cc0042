//! What becomes of a task that an orchestrator of several machines has placed.

use std::net::SocketAddr;

use crate::Exit;

/// What is known of a task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fate {
    /// It does not run yet; why, where the orchestrator says so.
    Begins(String),
    /// It runs.
    Runs(SocketAddr),
    /// Its program was started, and has ended.
    Ended(Exit, String),
    /// It never ran.
    NeverRan(String),
}

impl Fate {
    /// What a task becomes of which this is known, when the orchestrator says `said`; [`None`]: nothing else.
    pub(crate) fn after(&self, said: Fate) -> Option<Fate> {
        let fate = match (self, said) {
            // An end is final.
            (Fate::Ended(..) | Fate::NeverRan(_), _) => return None,
            (Fate::Runs(_), Fate::NeverRan(reason)) => Fate::Ended(Exit::default(), reason),
            // Where it is was known before.
            (Fate::Runs(_), Fate::Begins(_)) => return None,
            (_, said) => said,
        };
        (fate != *self).then_some(fate)
    }

    /// Whether it is over.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self, Fate::Ended(..) | Fate::NeverRan(_))
    }
}

/// How a program ended, of a runtime's exit code. It says 128 and the signal where a signal ended the program; so may a
/// program that exits with that status by itself.
pub(crate) fn exit_of(code: i64, out_of_memory: bool) -> Exit {
    let code = code as i32;
    match code {
        129..=192 => Exit {
            status: None,
            signal: Some(code - 128),
            out_of_memory,
        },
        _ => Exit {
            status: Some(code),
            signal: None,
            out_of_memory,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_final_and_what_runs_does_not_begin_again() {
        let begins = || Fate::Begins("x".to_owned());
        let runs = || Fate::Runs(SocketAddr::from(([10, 0, 0, 1], 80)));
        let ended = || Fate::Ended(exit_of(137, false), String::new());
        let never = || Fate::NeverRan("lost".to_owned());
        assert_eq!(begins().after(begins()), None);
        assert_eq!(begins().after(runs()), Some(runs()));
        assert_eq!(begins().after(never()), Some(never()));
        assert_eq!(runs().after(begins()), None);
        assert_eq!(
            runs().after(never()),
            Some(Fate::Ended(Exit::default(), "lost".to_owned()))
        );
        for said in [begins(), runs(), never()] {
            assert_eq!(ended().after(said), None);
        }
    }
}
