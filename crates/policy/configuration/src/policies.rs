//! Reads schedulers and autoscalers: a name, or a table with the policy's parameters.

use autoscaling::Autoscaler;
use model::Parameter;
use scheduling::{Metric, Scheduler};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use crate::nearest::write_one_of;
use crate::read::{At, Reader, Section, TableReader, number, share, text};
use crate::units::{self, ValueError};

fn named(kind: &str, names: &[&'static str], name: &str) -> Result<&'static str, ValueError> {
    let known = names.iter().find(|known| **known == name);
    known.copied().ok_or_else(|| {
        let write = write_one_of(name, names.iter().copied());
        ValueError::new(format!("unknown {kind} {name:?}"), write)
    })
}

/// Checks the name of a scheduler.
pub(crate) fn known_scheduler(name: &str) -> Result<&'static str, ValueError> {
    named("scheduler", Scheduler::NAMES, name)
}

/// Checks the name of an autoscaler.
pub(crate) fn known_autoscaler(name: &str) -> Result<&'static str, ValueError> {
    named("autoscaler", Autoscaler::NAMES, name)
}

/// A scheduler, and what one instance takes in its metric where that is not packets. `table` reads its table.
pub(crate) fn scheduler(
    at: At<'_>,
    table: TableReader<(Scheduler, Option<f64>)>,
) -> Result<(Scheduler, Option<f64>), ValueError> {
    let default = Scheduler::default();
    match policy(at, default.name(), known_scheduler, Scheduler::parameters_of)? {
        Policy::Name(name) => Ok((Scheduler::from_name(name).unwrap_or_default(), None)),
        Policy::Table(at, own) => at.table_with(table, &own),
        Policy::Unknown => Ok((default, None)),
    }
}

/// An autoscaler. `table` reads its table.
pub(crate) fn autoscaler(at: At<'_>, table: TableReader<Autoscaler>) -> Result<Autoscaler, ValueError> {
    let default = Autoscaler::default();
    match policy(at, default.name(), known_autoscaler, Autoscaler::parameters_of)? {
        Policy::Name(name) => Ok(Autoscaler::from_name(name).unwrap_or_default()),
        Policy::Table(at, own) => at.table_with(table, &own),
        Policy::Unknown => Ok(default),
    }
}

/// The notation of a policy.
enum Policy<'a> {
    Name(&'static str),
    /// A table, and the names of the policy's parameters.
    Table(At<'a>, Vec<&'static str>),
    /// A table without a valid name, which was reported. The policy determines the valid parameters, so nothing else
    /// can be checked.
    Unknown,
}

fn policy<'a>(
    at: At<'a>,
    default: &'static str,
    named: fn(&str) -> Result<&'static str, ValueError>,
    parameters_of: fn(&str) -> Option<&'static [Parameter]>,
) -> Result<Policy<'a>, ValueError> {
    let Some(table) = at.value.as_table() else {
        return named(at.text()?).map(Policy::Name);
    };
    let name = match table.get_key_value("policy") {
        None => Some(default),
        Some((key, value)) => {
            let path = format!("{}.policy", at.path);
            at.reader.note(&path, key.span().start);
            at.reader.value(&path, value.get_ref(), text(named))
        }
    };
    Ok(match name {
        Some(name) => {
            let own = parameters_of(name).unwrap_or_default();
            Policy::Table(at, own.iter().map(|parameter| parameter.name).collect())
        }
        None => Policy::Unknown,
    })
}

/// Reads one instance's capacity, in a unit of the metric.
pub(crate) fn limit_in(metric: Metric) -> impl Fn(At<'_>) -> Result<f64, ValueError> {
    move |at| match metric {
        Metric::Packets => Err(ValueError::new(
            "the limit of the metric packets is the service's `capacity`",
            "remove this key, or write another metric",
        )),
        Metric::Bytes => {
            let rate = units::bit_rate(at.text()?)?;
            let write = "write a bit rate, for example \"10Gbps\"";
            let is_within = rate > 0.0 && rate <= 1e12;
            let wrong = || ValueError::new(format!("{rate} is out of range"), write);
            is_within.then_some(rate).ok_or_else(wrong)
        }
        Metric::Flows => number::<u32>(1, u64::from(u32::MAX))(at).map(f64::from),
        Metric::Busy => share(at),
    }
}

/// A policy with the parameters of a table. Reports parameters that do not go together and returns `None`.
pub(crate) fn with_parameters<'a, T>(
    reader: &mut Reader,
    section: &Section<'a>,
    policy: &str,
    parameters: Option<&[Parameter]>,
    make: impl Fn(ValueDeserializer<'a>) -> Result<T, toml::de::Error>,
) -> Option<T> {
    let see = || format!("see the parameters of {policy} in docs/reference/configuration.md");
    let is_own = |name: &str| parameters.is_some_and(|own| own.iter().any(|own| own.name == name));
    // Check each parameter alone first, so that each error has its own key.
    let mut written = DeTable::new();
    for (key, value) in section.table.into_iter().flatten() {
        if !is_own(key.get_ref()) {
            continue;
        }
        let one: DeTable<'_> = std::iter::once((key.clone(), value.clone())).collect();
        match make(deserializer(one)) {
            Ok(_) => {
                written.insert(key.clone(), value.clone());
            }
            Err(error) => {
                let message = error.message();
                let wrong = match message.split_once(", expected ") {
                    Some((what, expected)) => ValueError::new(what, format!("write {expected}")),
                    None => ValueError::new(message, see()),
                };
                reader.report(&section.key(key.get_ref()), wrong);
            }
        }
    }
    let made = make(deserializer(written));
    made.map_err(|error| reader.report(&section.path, ValueError::new(error.message(), see())))
        .ok()
}

fn deserializer(table: DeTable<'_>) -> ValueDeserializer<'_> {
    ValueDeserializer::from(Spanned::new(0..0, DeValue::Table(table)))
}
