//! Problems of a configuration, with their positions.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use crate::units::ValueError;

/// A problem: its place, its description and the remedy. Displayed as `inco.toml:12: service.firewall.instances.min:
/// 5 is more than max (3); write a min of at most 3`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Problem {
    /// The file's name as given.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// The full key: `service.firewall.instances.min`. Empty if no key could be parsed.
    pub key: String,
    /// The description.
    pub what: String,
    /// The remedy.
    pub write: String,
}

impl Problem {
    pub(crate) fn new(file: &str, place: Position, key: &str, wrong: ValueError) -> Problem {
        Problem {
            file: file.to_owned(),
            line: place.line,
            column: place.column,
            key: key.to_owned(),
            what: wrong.what,
            write: wrong.write,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}; {}", self.what, self.write)
    }
}

/// A position in the file: line and column, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// The position of each key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Positions(BTreeMap<String, Position>);

impl Positions {
    pub(crate) fn note(&mut self, path: &str, place: Position) {
        self.0.entry(path.to_owned()).or_insert(place);
    }

    /// Whether the file has that very key.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// The position of that key; else of the nearest enclosing table; else the start of the file.
    pub(crate) fn of(&self, path: &str) -> Position {
        let mut path = path;
        loop {
            if let Some(place) = self.0.get(path) {
                return *place;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = path.get(..end).unwrap_or_default(),
                None => return Position { line: 1, column: 1 },
            }
        }
    }
}

/// Converts byte offsets to lines and columns.
pub(crate) struct Lines {
    text: String,
    starts: Vec<usize>,
}

impl Lines {
    pub(crate) fn new(text: &str) -> Lines {
        let starts = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(at, _)| at + 1))
            .collect();
        Lines {
            text: text.to_owned(),
            starts,
        }
    }

    pub(crate) fn place(&self, offset: usize) -> Position {
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        let start = self.starts.get(line - 1).copied().unwrap_or_default();
        let mut end = offset.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let column = self
            .text
            .get(start..end)
            .map_or(0, |before| before.chars().count())
            + 1;
        Position { line, column }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters() {
        let lines = Lines::new("a = 1\nü = 2\n\nc");
        for (offset, line, column) in [
            (0, 1, 1),
            (4, 1, 5),
            (6, 2, 1),
            (8, 2, 2),
            (9, 2, 3),
            (13, 3, 1),
            (14, 4, 1),
        ] {
            assert_eq!(lines.place(offset), Position { line, column }, "{offset}");
        }
        assert_eq!(lines.place(999).line, 4);
        assert_eq!(Lines::new("").place(0), Position { line: 1, column: 1 });
    }

    #[test]
    fn a_key_that_is_not_written_is_placed_at_its_table() {
        let mut positions = Positions::default();
        positions.note("service.a", Position { line: 7, column: 1 });
        positions.note("service.a.instances", Position { line: 9, column: 1 });
        assert_eq!(positions.of("service.a.instances.min").line, 9);
        assert_eq!(positions.of("service.a.env[0]").line, 7);
        assert_eq!(positions.of("engine.host").line, 1);
    }
}
