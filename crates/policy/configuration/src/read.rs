//! Reads values of a TOML table and notes what is wrong with them, so that one reading tells everything.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::keys;
use crate::nearest::{list, nearest};
use crate::problem::{Lines, Places, Problem};
use crate::units::Wrong;

/// A table of the file, with the path of its keys.
#[derive(Clone)]
pub(crate) struct Section<'a> {
    /// As written: `service.firewall.match`. Empty at the top.
    pub(crate) path: String,
    pub(crate) table: &'a DeTable<'a>,
    /// Keys that were refused.
    pub(crate) unknown: Vec<&'a str>,
}

impl<'a> Section<'a> {
    pub(crate) fn new(path: String, table: &'a DeTable<'a>) -> Section<'a> {
        Section {
            path,
            table,
            unknown: Vec::new(),
        }
    }

    /// The path of one of its keys.
    pub(crate) fn key(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(name)
    }
}

/// Collects problems while values are read.
pub(crate) struct Reader<'a> {
    file: &'a str,
    lines: Lines<'a>,
    pub(crate) places: Places,
    pub(crate) problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str) -> Reader<'a> {
        Reader {
            file,
            lines: Lines::new(text),
            places: Places::default(),
            problems: Vec::new(),
        }
    }

    /// Notes a problem with a key, at the key's place or that of the table around it.
    pub(crate) fn wrong(&mut self, key: &str, wrong: Wrong) {
        let place = self.places.of(key);
        self.problems.push(Problem {
            file: self.file.to_owned(),
            line: place.line,
            column: place.column,
            key: key.to_owned(),
            what: wrong.what,
            write: wrong.write,
        });
    }

    /// Notes a problem at a byte of the file.
    pub(crate) fn wrong_at(&mut self, offset: usize, wrong: Wrong) {
        let place = self.lines.place(offset);
        self.problems.push(Problem {
            file: self.file.to_owned(),
            line: place.line,
            column: place.column,
            key: String::new(),
            what: wrong.what,
            write: wrong.write,
        });
    }

    pub(crate) fn note(&mut self, path: &str, offset: usize) {
        let place = self.lines.place(offset);
        self.places.note(path, place);
    }

    /// A table whose keys are those of `kind` in [`keys::KEYS`]; others are refused.
    pub(crate) fn section(&mut self, path: String, kind: &str, table: &'a DeTable<'a>) -> Section<'a> {
        let known: Vec<&str> = keys::of_table(kind).map(|key| key.name).collect();
        self.section_with(path, &known, table)
    }

    /// A table whose keys are `known`; others are refused.
    pub(crate) fn section_with(
        &mut self,
        path: String,
        known: &[&str],
        table: &'a DeTable<'a>,
    ) -> Section<'a> {
        let mut section = Section::new(path, table);
        self.note_keys(&section);
        for key in table.keys() {
            let name = key.get_ref().as_ref();
            if !known.contains(&name) {
                section.unknown.push(name);
                let write = match nearest(name, known.iter().copied()) {
                    Some(near) => format!("write {near:?}"),
                    None => format!("remove it, or write one of {}", list(known.iter().copied())),
                };
                self.wrong(&section.key(name), Wrong::new("there is no such key", write));
            }
        }
        section
    }

    /// Notes where the keys of a table stand.
    pub(crate) fn note_keys(&mut self, section: &Section<'a>) {
        for key in section.table.keys() {
            self.note(&section.key(key.get_ref()), key.span().start);
        }
    }

    /// The value of a key, where it is written and right.
    pub(crate) fn read<T>(
        &mut self,
        section: &Section<'a>,
        name: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Result<T, Wrong>,
    ) -> Option<T> {
        match read(section.get(name)?.get_ref()) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.wrong(&section.key(name), wrong);
                None
            }
        }
    }

    /// The value of a key that must be written.
    pub(crate) fn require<T>(
        &mut self,
        section: &Section<'a>,
        name: &str,
        example: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Result<T, Wrong>,
    ) -> Option<T> {
        if section.get(name).is_none() {
            // Where it is written with a slip, that is the problem, and was told.
            if section
                .unknown
                .iter()
                .any(|unknown| nearest(unknown, [name]).is_some())
            {
                return None;
            }
            let wrong = Wrong::new("this key is missing", format!("write {name} = {example}"));
            self.wrong(&section.key(name), wrong);
            return None;
        }
        self.read(section, name, read)
    }

    /// The table at a key, as a section of the keys of `kind`.
    pub(crate) fn subsection(
        &mut self,
        section: &Section<'a>,
        name: &str,
        kind: &str,
    ) -> Option<Section<'a>> {
        let table = self.read(section, name, table)?;
        Some(self.section(section.key(name), kind, table))
    }

    /// What was read, or every problem in the order of the file.
    pub(crate) fn finish(mut self) -> (Places, Vec<Problem>) {
        self.problems
            .sort_by(|a, b| (a.line, a.column, &a.key).cmp(&(b.line, b.column, &b.key)));
        (self.places, self.problems)
    }
}

/// What a value is, for messages.
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

pub(crate) fn not(value: &DeValue<'_>, kind: &str, write: &str) -> Wrong {
    Wrong::new(
        format!("{} is not {kind}", shown(value)),
        format!("write {write}"),
    )
}

pub(crate) fn table<'a>(value: &'a DeValue<'a>) -> Result<&'a DeTable<'a>, Wrong> {
    value
        .as_table()
        .ok_or_else(|| not(value, "a table", "a table, for example { key = value }"))
}

pub(crate) fn array<'a>(value: &'a DeValue<'a>) -> Result<&'a DeArray<'a>, Wrong> {
    value
        .as_array()
        .ok_or_else(|| not(value, "a list", "a list in brackets"))
}

pub(crate) fn text<'a>(value: &'a DeValue<'a>) -> Result<&'a str, Wrong> {
    let text = value
        .as_str()
        .ok_or_else(|| not(value, "text", "text in quotes"))?;
    if text.contains('\0') {
        return Err(Wrong::new("it contains a NUL", "write text without it"));
    }
    Ok(text)
}

pub(crate) fn boolean(value: &DeValue<'_>) -> Result<bool, Wrong> {
    value
        .as_bool()
        .ok_or_else(|| not(value, "true or false", "true or false, without quotes"))
}

/// An integer as written, if it is one.
pub(crate) fn integer(value: &DeValue<'_>) -> Option<i128> {
    let integer = value.as_integer()?;
    i128::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// Any number, if it is one.
pub(crate) fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().parse().ok(),
        _ => integer(value).map(|integer| integer as f64),
    }
}

/// A whole number within bounds; text may carry a unit of `count`.
pub(crate) fn whole(
    low: u64,
    high: u64,
    of_text: fn(&str) -> Result<u64, Wrong>,
) -> impl Fn(&DeValue<'_>) -> Result<u64, Wrong> {
    move |value| {
        let bounds = || format!("write a whole number from {low} to {high}");
        let number = match value {
            DeValue::String(text) => i128::from(of_text(text)?),
            _ => integer(value)
                .ok_or_else(|| not(value, "a whole number", &format!("one from {low} to {high}")))?,
        };
        match u64::try_from(number) {
            Ok(number) if number < low => Err(Wrong::new(format!("{number} is less than {low}"), bounds())),
            Ok(number) if number > high => Err(Wrong::new(format!("{number} is more than {high}"), bounds())),
            Ok(number) => Ok(number),
            Err(_) => Err(Wrong::new(format!("{number} is out of range"), bounds())),
        }
    }
}

/// Texts in a list.
pub(crate) fn texts(value: &DeValue<'_>) -> Result<Vec<String>, Wrong> {
    let example = "a list of text, for example [\"one\", \"two\"]";
    let items = value
        .as_array()
        .ok_or_else(|| not(value, "a list of text", example))?;
    let one = |item: &Spanned<DeValue<'_>>| match item.get_ref().as_str() {
        Some(text) if !text.contains('\0') => Ok(text.to_owned()),
        Some(_) => Err(Wrong::new("it contains a NUL", "write text without it")),
        None => Err(Wrong::new(
            format!("{} in the list is not text", shown(item.get_ref())),
            format!("write {example}"),
        )),
    };
    items.iter().map(one).collect()
}

/// One of a few words.
pub(crate) fn word<T: Copy>(
    words: &'static [(&'static str, T)],
) -> impl Fn(&DeValue<'_>) -> Result<T, Wrong> {
    move |value| {
        let known = || words.iter().map(|(word, _)| *word);
        let one_of = || format!("one of {}", list(known()));
        let text = value.as_str().ok_or_else(|| not(value, "text", &one_of()))?;
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(*value),
            None => Err(Wrong::new(
                format!("there is no {text:?} here"),
                crate::nearest::write_one_of(text, known().collect::<Vec<_>>()),
            )),
        }
    }
}
