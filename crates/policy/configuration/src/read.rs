//! Reads values of TOML tables and collects all problems in one pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::PathBuf;

use model::{Nanos, PortKind};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::key::{KeptValue, Key, KeyDefault, Reload, heading};
use crate::limits::QUEUES_MAX;
use crate::nearest::{distance, list, nearest, write_one_of};
use crate::problem::{Lines, Positions, Problem};
use crate::types::Drivers;
use crate::units::{self, ValueError};

/// A table of the file and the path of its keys.
pub(crate) struct Section<'a> {
    /// The path as written: `service.firewall.match`. Empty at the top level.
    pub(crate) path: String,
    /// Its table, as rows of the table of keys name it.
    kind: &'static str,
    /// `None` if the file does not contain it.
    pub(crate) table: Option<&'a DeTable<'a>>,
    /// Unknown keys.
    unknown: Vec<String>,
}

impl<'a> Section<'a> {
    /// The path of one of its keys.
    pub(crate) fn key(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table?.get(name)
    }
}

/// Reads a table, with its path and keys besides.
pub(crate) type TableReader<T> = fn(&mut Reader, String, Option<&DeTable<'_>>, &[&str]) -> T;

/// Collects problems, positions and values while a file is read.
pub(crate) struct Reader {
    file: String,
    /// Every key that there is.
    keys: &'static [Key],
    lines: Lines,
    pub(crate) positions: Positions,
    pub(crate) problems: Vec<Problem>,
    pub(crate) values: BTreeMap<String, KeptValue>,
    /// The names of all uplinks, valid or not, so that references to them can be checked.
    pub(crate) uplinks: Vec<String>,
    /// Those of all places, likewise.
    pub(crate) places: Vec<String>,
    /// Number of the switch's workers.
    pub(crate) workers: usize,
    /// The kind of ports that instances have with the switch's driver.
    pub(crate) usual_port: PortKind,
    /// Capabilities of each driver.
    pub(crate) drivers: Drivers,
}

impl Reader {
    pub(crate) fn new(file: &str, text: &str, keys: &'static [Key], drivers: Drivers) -> Reader {
        Reader {
            file: file.to_owned(),
            keys,
            lines: Lines::new(text),
            positions: Positions::default(),
            problems: Vec::new(),
            values: BTreeMap::new(),
            uplinks: Vec::new(),
            places: Vec::new(),
            workers: 1,
            usual_port: PortKind::Memif,
            drivers,
        }
    }

    /// Records a problem with a key, at the key's place or that of the enclosing table.
    pub(crate) fn report(&mut self, key: &str, wrong: ValueError) {
        let place = self.positions.of(key);
        self.problems.push(Problem::new(&self.file, place, key, wrong));
    }

    /// Records a problem at a byte offset in the file.
    pub(crate) fn report_at(&mut self, offset: usize, wrong: ValueError) {
        let place = self.lines.place(offset);
        self.problems.push(Problem::new(&self.file, place, "", wrong));
    }

    pub(crate) fn note(&mut self, path: &str, offset: usize) {
        let place = self.lines.place(offset);
        self.positions.note(path, place);
    }

    /// The keys of a table.
    fn keys_of(&self, table: &str) -> impl Iterator<Item = &'static Key> {
        self.keys.iter().filter(move |key| key.table == table)
    }

    /// A table whose keys are those of `kind` and `own`; others are refused.
    pub(crate) fn section<'a>(
        &mut self,
        path: String,
        kind: &'static str,
        own: &[&str],
        table: Option<&'a DeTable<'a>>,
    ) -> Section<'a> {
        let mut section = Section {
            path,
            kind,
            table,
            unknown: Vec::new(),
        };
        let known = self.keys_of(kind).map(|key| key.name);
        let known: Vec<&str> = known.chain(own.iter().copied()).collect();
        for key in table.into_iter().flat_map(DeTable::keys) {
            let name = key.get_ref().as_ref();
            self.note(&section.key(name), key.span().start);
            if !known.contains(&name) {
                section.unknown.push(name.to_owned());
                let wrong = unknown_key(name, &known, self.keys);
                self.report(&section.key(name), wrong);
            }
        }
        section
    }

    /// The value of a key, if it is written and valid.
    pub(crate) fn read<T>(
        &mut self,
        section: &Section<'_>,
        name: &str,
        read: impl FnOnce(At<'_>) -> Result<T, ValueError>,
    ) -> Option<T> {
        self.value(&section.key(name), section.get(name)?.get_ref(), read)
    }

    /// A parsed value, if it is valid.
    pub(crate) fn value<T>(
        &mut self,
        path: &str,
        value: &DeValue<'_>,
        read: impl FnOnce(At<'_>) -> Result<T, ValueError>,
    ) -> Option<T> {
        let at = At {
            reader: self,
            path,
            value,
        };
        read(at).map_err(|wrong| self.report(path, wrong)).ok()
    }

    /// The value that a row of the table of keys gives as default.
    pub(crate) fn default<T>(&mut self, toml: &str, read: impl FnOnce(At<'_>) -> Result<T, ValueError>) -> T {
        let value = DeValue::parse(toml).ok();
        let value = value.and_then(|value| self.value("", value.get_ref(), read));
        #[expect(
            clippy::expect_used,
            reason = "a row of the table; a test writes every default"
        )]
        value.expect("a default in the table of keys is a value of its key")
    }

    /// Reports a missing key.
    pub(crate) fn missing(&mut self, section: &Section<'_>, name: &str, wrong: impl FnOnce() -> ValueError) {
        // If a similar unknown key is written, that problem was already reported.
        let is_misspelling = |unknown: &String| nearest(unknown, [name]).is_some();
        if section.get(name).is_none() && !section.unknown.iter().any(is_misspelling) {
            self.report(&section.key(name), wrong());
        }
    }

    /// Reports a missing required key.
    pub(crate) fn required(&mut self, section: &Section<'_>, name: &str) {
        let example = self.keys_of(section.kind).find(|key| key.name == name);
        let example = example.map_or("", |key| key.example);
        self.missing(section, name, || {
            ValueError::new("this key is missing", format!("write {name} = {example}"))
        });
    }

    /// Stores a key's value, for comparison on a reload.
    pub(crate) fn keep(&mut self, section: &Section<'_>, name: &str, reload: Reload, value: &impl Debug) {
        // A list is compared as a whole, and so is a key with several notations.
        if reload != Reload::Keys && !section.path.contains('[') {
            let path = section.key(name);
            let inside = format!("{path}.");
            self.values.retain(|other, _| !other.starts_with(&inside));
            let written = section.get(name);
            let text = match written {
                Some(value) => toml_text(value.get_ref()),
                None => default_text(self.keys_of(section.kind).find(|key| key.name == name)),
            };
            let kept = KeptValue {
                reload,
                value: format!("{value:?}"),
                text,
                is_written: written.is_some(),
            };
            self.values.insert(path, kept);
        }
    }

    /// Most queue pairs of a port: one per worker.
    pub(crate) fn queues_max(&self) -> u64 {
        QUEUES_MAX.min(self.workers as u64)
    }

    /// All problems in the order of the file.
    pub(crate) fn into_problems(mut self) -> Vec<Problem> {
        self.problems
            .sort_by(|a, b| (a.line, a.column, &a.key).cmp(&(b.line, b.column, &b.key)));
        // Both sides of a service of actors may lack the same, and so may the instances of several places.
        let mut known = BTreeSet::new();
        self.problems
            .retain(|of| known.insert((of.line, of.column, of.key.clone(), of.what.clone())));
        self.problems
    }
}

/// What to say of a key that its table does not have: the one that was probably meant, the table that it belongs to,
/// or those that there are.
fn unknown_key(name: &str, known: &[&str], keys: &[Key]) -> ValueError {
    let near = nearest(name, known.iter().copied());
    let mut homes: Vec<String> = keys
        .iter()
        .filter(|key| key.name == name && !key.table.is_empty())
        .map(|key| heading(key.table))
        .collect();
    homes.dedup();
    match near {
        Some(near) if homes.is_empty() || distance(name, near) <= 1 => {
            ValueError::new("unknown key", format!("write {near:?}"))
        }
        _ if !homes.is_empty() => {
            let what = format!("this key belongs to {}", homes.join(" or "));
            ValueError::new(what, "move it there, or remove it")
        }
        _ => {
            let known = list(known.iter().copied());
            ValueError::new("unknown key", format!("remove it, or write one of {known}"))
        }
    }
}

/// A value and its place.
pub(crate) struct At<'a> {
    pub(crate) reader: &'a mut Reader,
    /// The path of its key: `service.a.mounts[0]`.
    pub(crate) path: &'a str,
    pub(crate) value: &'a DeValue<'a>,
}

impl<'a> At<'a> {
    /// The message for a value of the wrong kind.
    pub(crate) fn wrong_kind(&self, kind: &str, write: &str) -> ValueError {
        wrong_kind(self.value, kind, write)
    }

    pub(crate) fn text(&self) -> Result<&'a str, ValueError> {
        let text = self.value.as_str();
        let text = text.ok_or_else(|| self.wrong_kind("text", "text in quotes"))?;
        if text.contains('\0') {
            return Err(ValueError::new(
                "the text contains a NUL character",
                "write text without it",
            ));
        }
        Ok(text)
    }

    /// A table, read by its function in `keys.rs`.
    pub(crate) fn table<T>(
        self,
        read: impl FnOnce(&mut Reader, String, Option<&DeTable<'_>>, &[&str]) -> T,
    ) -> Result<T, ValueError> {
        self.table_with(read, &[])
    }

    /// The same, with additional keys.
    pub(crate) fn table_with<T>(
        self,
        read: impl FnOnce(&mut Reader, String, Option<&DeTable<'_>>, &[&str]) -> T,
        own: &[&str],
    ) -> Result<T, ValueError> {
        let table = self.value.as_table();
        let table =
            table.ok_or_else(|| self.wrong_kind("a table", "a table, for example { key = value }"))?;
        Ok(read(self.reader, self.path.to_owned(), Some(table), own))
    }

    /// The valid values of a list, each with its index.
    pub(crate) fn items<T>(
        self,
        mut read: impl FnMut(At<'_>) -> Result<T, ValueError>,
    ) -> Result<(Vec<T>, usize), ValueError> {
        let items = self.value.as_array();
        let items = items.ok_or_else(|| self.wrong_kind("a list", "a list in brackets"))?;
        let mut values = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{}[{index}]", self.path);
            self.reader.note(&path, item.span().start);
            values.extend(self.reader.value(&path, item.get_ref(), &mut read));
        }
        Ok((values, items.len()))
    }
}

/// The value's kind, for messages.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the text {text:?}"),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(value) => format!("{value}"),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// The value as TOML, on one line.
fn toml_text(value: &DeValue<'_>) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(value) => value.to_string(),
        DeValue::Array(items) => {
            let items = items.iter().map(|item| toml_text(item.get_ref()));
            format!("[{}]", joined(items.collect()))
        }
        DeValue::Table(table) => {
            let pair = |(key, value): (&Spanned<_>, &Spanned<_>)| {
                format!("{} = {}", key.get_ref(), toml_text(value.get_ref()))
            };
            format!("{{ {} }}", joined(table.iter().map(pair).collect()))
        }
    }
}

/// What holds where a key is not written.
fn default_text(key: Option<&Key>) -> String {
    match key.map(|key| key.default) {
        Some(KeyDefault::Value(toml)) => format!("{toml} (default)"),
        Some(KeyDefault::Words(words)) => format!("{words} (default)"),
        Some(KeyDefault::Required) | None => "not written".to_owned(),
    }
}

fn wrong_kind(value: &DeValue<'_>, kind: &str, write: &str) -> ValueError {
    ValueError::new(
        format!("{} is not {kind}", shown(value)),
        format!("write {write}"),
    )
}

/// Reads a string with `parse`.
pub(crate) fn text<T>(
    parse: impl Fn(&str) -> Result<T, ValueError>,
) -> impl Fn(At<'_>) -> Result<T, ValueError> {
    move |at| parse(at.text()?)
}

/// Reads the path of a file or directory, without checking that it exists.
pub(crate) fn path(at: At<'_>) -> Result<PathBuf, ValueError> {
    match at.text()? {
        "" => Err(ValueError::new("the path is empty", "write a path")),
        text => Ok(PathBuf::from(text)),
    }
}

pub(crate) fn boolean(at: At<'_>) -> Result<bool, ValueError> {
    let value = at.value.as_bool();
    value.ok_or_else(|| at.wrong_kind("true or false", "true or false, without quotes"))
}

/// The integer as written; `None` for other kinds.
pub(crate) fn integer(value: &DeValue<'_>) -> Option<i128> {
    let integer = value.as_integer()?;
    i128::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// The number; `None` for other kinds.
pub(crate) fn float(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().parse().ok(),
        _ => integer(value).map(|integer| integer as f64),
    }
}

/// Reads an integer within bounds. A string may have a unit of counts.
pub(crate) fn number<T: TryFrom<u64>>(low: u64, high: u64) -> impl Fn(At<'_>) -> Result<T, ValueError> {
    whole(low, high, units::count)
}

/// Reads a size in bytes within bounds. A string may have a unit of sizes.
pub(crate) fn bytes<T: TryFrom<u64>>(low: u64, high: u64) -> impl Fn(At<'_>) -> Result<T, ValueError> {
    whole(low, high, units::size)
}

fn whole<T: TryFrom<u64>>(
    low: u64,
    high: u64,
    of_text: fn(&str) -> Result<u64, ValueError>,
) -> impl Fn(At<'_>) -> Result<T, ValueError> {
    move |at| {
        let wrong =
            |what: String| ValueError::new(what, format!("write a whole number from {low} to {high}"));
        let number = match at.value {
            DeValue::String(text) => i128::from(of_text(text)?),
            value => integer(value).ok_or_else(|| {
                at.wrong_kind("a whole number", &format!("a whole number from {low} to {high}"))
            })?,
        };
        let out_of_range = || wrong(format!("{number} is out of range"));
        match u64::try_from(number).map_err(|_| out_of_range())? {
            number if number < low => Err(wrong(format!("{number} is less than {low}"))),
            number if number > high => Err(wrong(format!("{number} is more than {high}"))),
            number => T::try_from(number).map_err(|_| out_of_range()),
        }
    }
}

/// Reads a power of two with `number`. The bounds must be powers of two.
pub(crate) fn power_of_two<T: TryFrom<u64>>(
    number: impl Fn(At<'_>) -> Result<u64, ValueError>,
) -> impl Fn(At<'_>) -> Result<T, ValueError> {
    move |at| {
        let number = number(at)?;
        let above = number.next_power_of_two();
        let wrong = || {
            let what = format!("{number} is not a power of two");
            ValueError::new(what, format!("write {} or {above}", above / 2))
        };
        let is_one = number.is_power_of_two().then_some(number);
        is_one
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(wrong)
    }
}

/// Reads a duration within bounds.
pub(crate) fn span(low: Nanos, high: Nanos) -> impl Fn(At<'_>) -> Result<Nanos, ValueError> {
    move |at| {
        let units = "text with a unit of ns, us, ms, s, m, h, d, for example \"50ms\"";
        let text = at.value.as_str();
        let span = units::span(text.ok_or_else(|| at.wrong_kind("a duration", units))?)?;
        if span < low {
            let what = match low {
                Nanos(1) => "the duration is 0".to_owned(),
                _ => format!("the duration is less than {}", units::show_span(low)),
            };
            return Err(ValueError::new(what, "write a longer duration"));
        }
        if span > high {
            let what = format!("the duration is more than {}", units::show_span(high));
            return Err(ValueError::new(what, "write a shorter duration"));
        }
        Ok(span)
    }
}

/// Reads a list of strings.
pub(crate) fn texts(at: At<'_>) -> Result<Vec<String>, ValueError> {
    let example = "a list of text, for example [\"one\", \"two\"]";
    let items = at.value.as_array();
    let items = items.ok_or_else(|| at.wrong_kind("a list of text", example))?;
    let one = |item: &Spanned<DeValue<'_>>| match item.get_ref().as_str() {
        Some(text) if !text.contains('\0') => Ok(text.to_owned()),
        Some(_) => Err(ValueError::new(
            "the text contains a NUL character",
            "write text without it",
        )),
        None => Err(ValueError::new(
            format!("{} in the list is not text", shown(item.get_ref())),
            format!("write {example}"),
        )),
    };
    items.iter().map(one).collect()
}

/// Reads one of the given words.
pub(crate) fn word<T: Copy>(words: &'static [(&'static str, T)]) -> impl Fn(At<'_>) -> Result<T, ValueError> {
    move |at| {
        let known = || words.iter().map(|(word, _)| *word);
        let one_of = || format!("one of {}", list(known()));
        let text = at
            .value
            .as_str()
            .ok_or_else(|| at.wrong_kind("text", &one_of()))?;
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(*value),
            None => {
                let write = write_one_of(text, known().collect::<Vec<_>>());
                Err(ValueError::new(format!("unknown value {text:?}"), write))
            }
        }
    }
}

/// Reads a share above 0 and at most 1.
pub(crate) fn share(at: At<'_>) -> Result<f64, ValueError> {
    let share = match at.value {
        DeValue::String(text) => units::share(text)?,
        value => float(value).ok_or_else(|| at.wrong_kind("a share", "a number above 0 and at most 1"))?,
    };
    if share > 0.0 && share <= 1.0 {
        Ok(share)
    } else {
        Err(ValueError::new(
            format!("{share} is out of range"),
            "write a number above 0 and at most 1",
        ))
    }
}
