//! `inco bench function`: each function of the library beside its peer, in turns on one thread.
//!
//! Key types: [`Subject`] (a function that can be measured), [`Session`](session::Session) (measures the cases of a
//! subject), [`Side`](side::Side) (what takes turns: the function, or its peer).
//!
//! A new function gets a file here with a function `measure`, and a line in [`SUBJECTS`].

mod cache;
mod dns;
mod firewall;
mod forward;
mod frames;
mod ids;
pub(super) mod ipsec;
mod limiter;
mod monitor;
mod nat;
mod nftables;
mod pump;
mod router;
mod service;
mod session;
mod side;
mod table3;
mod through;
mod turns;

use anyhow::Result;
use display::output::{self, WrongUsage};

use crate::args::FunctionArgs;
use service::MakeServed;
use session::Session;

/// A function of the library that can be measured, or a table of several ones.
struct Subject {
    name: &'static str,
    /// Measures its cases.
    measure: fn(&mut Session) -> Result<()>,
    /// What was measured, for the table.
    note: &'static str,
    /// Its configuration and packets as the instance of a service.
    served: Option<MakeServed>,
}

/// Those that there are, by name.
const SUBJECTS: &[Subject] = &[
    Subject {
        name: "cache",
        measure: cache::measure,
        note: cache::NOTE,
        served: Some(cache::served),
    },
    Subject {
        name: "classifier",
        measure: table3::measure_one,
        note: table3::NOTE,
        served: None,
    },
    Subject {
        name: "dns",
        measure: dns::measure,
        note: dns::NOTE,
        served: Some(dns::served),
    },
    Subject {
        name: "firewall",
        measure: firewall::measure,
        note: firewall::NOTE,
        served: Some(firewall::served),
    },
    Subject {
        name: "forward",
        measure: forward::measure,
        note: forward::NOTE,
        served: Some(forward::served),
    },
    Subject {
        name: "ids",
        measure: ids::measure,
        note: ids::NOTE,
        served: Some(ids::served),
    },
    Subject {
        name: "ipsec",
        measure: ipsec::measure,
        note: ipsec::NOTE,
        served: Some(ipsec::served),
    },
    Subject {
        name: "limiter",
        measure: limiter::measure,
        note: limiter::NOTE,
        served: Some(limiter::served),
    },
    Subject {
        name: "maglev",
        measure: table3::measure_one,
        note: table3::NOTE,
        served: None,
    },
    Subject {
        name: "monitor",
        measure: monitor::measure,
        note: monitor::NOTE,
        served: Some(monitor::served),
    },
    Subject {
        name: "nat",
        measure: nat::measure,
        note: nat::NOTE,
        served: Some(nat::served),
    },
    Subject {
        name: "pfabric",
        measure: table3::measure_one,
        note: table3::NOTE,
        served: None,
    },
    Subject {
        name: "ranker",
        measure: table3::measure_one,
        note: table3::NOTE,
        served: None,
    },
    Subject {
        name: "replica",
        measure: table3::measure_one,
        note: table3::NOTE,
        served: None,
    },
    Subject {
        name: "router",
        measure: router::measure,
        note: router::NOTE,
        served: Some(router::served),
    },
    Subject {
        name: "table3",
        measure: table3::measure,
        note: table3::NOTE,
        served: None,
    },
];

/// The word for all of them.
const ALL: &str = "all";

/// Runs the bench.
pub(super) fn run(args: &FunctionArgs) -> Result<()> {
    let chosen = chosen(args.name.as_deref())?;
    if args.service {
        return service::run(args, &chosen);
    }
    let mut session = Session::new(args);
    for subject in &chosen {
        session.begin(subject.name);
        (subject.measure)(&mut session)?;
    }
    session.write_raw(&args.csv)?;
    if args.json {
        return output::json(&session.rows(), output::is_terminal());
    }
    output::text(&session.table())?;
    for subject in &chosen {
        output::line(format!("{}: {}", subject.name, subject.note))?;
    }
    output::line(session.note(&args.csv))
}

/// The subjects that a word stands for.
fn chosen(name: Option<&str>) -> Result<Vec<&'static Subject>> {
    let chosen: Vec<&Subject> = SUBJECTS
        .iter()
        .filter(|subject| name.is_some_and(|name| name == ALL || name == subject.name))
        .collect();
    if !chosen.is_empty() {
        return Ok(chosen);
    }
    let known: Vec<&str> = SUBJECTS.iter().map(|subject| subject.name).collect();
    let known = known.join(", ");
    Err(WrongUsage(match name {
        Some(name) => format!("no function {name:?} to measure; there are: {known}, {ALL}"),
        None => format!("which function? There are: {known}, {ALL}"),
    })
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_in_the_library_and_they_are_in_order() {
        for subject in SUBJECTS {
            // A table of several functions.
            assert!(
                subject.name == "table3" || functions::find(functions::LIBRARY, subject.name).is_ok(),
                "{}",
                subject.name
            );
        }
        assert!(SUBJECTS.is_sorted_by_key(|subject| subject.name));
    }

    #[test]
    fn a_name_stands_for_one_and_all_for_all() {
        assert_eq!(chosen(Some("router")).unwrap()[0].name, "router");
        assert_eq!(chosen(Some("all")).unwrap().len(), SUBJECTS.len());
        for wrong in [None, Some("rooter")] {
            let error = chosen(wrong).err().unwrap();
            assert!(error.downcast_ref::<WrongUsage>().is_some());
            assert!(
                error.to_string().contains("cache, classifier, dns, firewall"),
                "{error}"
            );
        }
    }
}
