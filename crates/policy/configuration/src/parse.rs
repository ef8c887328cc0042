//! Parses the text of a configuration.

use model::Capabilities;
use scheduling::Scheduler;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::keys::{self, KEYS};
use crate::limits::FILE_LIMIT_BYTES;
use crate::policies::scheduler;
use crate::problem::Problem;
use crate::read::Reader;
use crate::types::{Configuration, Drivers};
use crate::units::ValueError;

/// Parses and checks a configuration. `file_name` appears in messages; `drivers` returns each driver's capabilities.
///
/// # Errors
/// Returns every problem that can be found without a machine, in the order of the file.
pub fn parse(text: &str, file_name: &str, drivers: Drivers) -> Result<Configuration, Vec<Problem>> {
    let mut reader = Reader::new(file_name, text, KEYS, drivers);
    if text.len() > FILE_LIMIT_BYTES {
        let what = format!(
            "the file has {} bytes, more than the limit of {FILE_LIMIT_BYTES}",
            text.len()
        );
        reader.report_at(0, ValueError::new(what, "write a shorter one"));
        return Err(reader.into_problems());
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in errors {
            reader.report_at(error.span().map_or(0, |span| span.start), syntax(error.message()));
        }
        let mut problems = reader.into_problems();
        // Further errors of the parser on one line follow from the first.
        problems.dedup_by_key(|problem| problem.line);
        return Err(problems);
    }
    reader.uplinks = names_of(document.get_ref(), "uplink");
    reader.places = names_of(document.get_ref(), "place");
    let mut configuration = keys::document(&mut reader, String::new(), Some(document.get_ref()), &[]);
    // With parts missing, the checks of the whole would report consequential errors.
    if !configuration.uplinks.is_empty() && !configuration.services.is_empty() {
        crate::check::check(&mut reader, &configuration);
    }
    if !reader.problems.is_empty() {
        return Err(reader.into_problems());
    }
    configuration.file = file_name.to_owned();
    configuration.positions = reader.positions;
    configuration.values = reader.values;
    Ok(configuration)
}

/// Parses the value of the key `scheduler`: a name, or an inline table. Returns the scheduler in its initial state,
/// and one instance's capacity in its metric; `None` for packets.
///
/// # Errors
/// Returns every problem of the text.
pub fn parse_scheduler(text: &str) -> Result<(Scheduler, Option<f64>), Vec<Problem>> {
    let trimmed = text.trim();
    let is_toml = trimmed.starts_with(['{', '"', '\'']);
    let value = if is_toml {
        trimmed.to_owned()
    } else {
        format!("{trimmed:?}")
    };
    let document = format!("scheduler = {value}");
    let mut reader = Reader::new("scheduler", &document, KEYS, |_| Capabilities::NONE);
    let (table, errors) = DeTable::parse_recoverable(&document);
    if !errors.is_empty() || table.get_ref().len() != 1 {
        let write = "write a name, or a table such as { policy = \"maglev\", table = 65537 }";
        reader.report(
            "scheduler",
            ValueError::new(format!("{trimmed:?} is not a scheduler"), write),
        );
        return Err(reader.into_problems());
    }
    let value = table.get_ref().get("scheduler").map(Spanned::get_ref);
    let read =
        value.and_then(|value| reader.value("scheduler", value, |at| scheduler(at, keys::scheduler_table)));
    match read {
        Some(read) if reader.problems.is_empty() => Ok(read),
        _ => Err(reader.into_problems()),
    }
}

fn syntax(message: &str) -> ValueError {
    let write = if message.contains("duplicate key") {
        "remove one of the two"
    } else if message.contains("quote") || message.contains("string") {
        "write key = value, with text in \"quotes\""
    } else {
        "write TOML: [table] headings and key = value lines"
    };
    ValueError::new(format!("this is not TOML: {message}"), write)
}

/// The names in all tables of a list, valid or not.
fn names_of(document: &DeTable<'_>, list: &str) -> Vec<String> {
    let tables = document.get(list).and_then(|value| value.get_ref().as_array());
    let name = |table: &Spanned<DeValue<'_>>| {
        let name = table.get_ref().as_table()?.get("name")?;
        name.get_ref().as_str().map(str::to_owned)
    };
    let tables = tables.into_iter().flatten();
    tables.map(|table| name(table).unwrap_or_default()).collect()
}
