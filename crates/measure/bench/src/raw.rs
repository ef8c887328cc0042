//! Raw results as comma-separated values, preceded by the machine's facts as comments.

use std::path::Path;

use anyhow::{Context as _, Result};

/// The rows so far.
pub(super) struct Raw {
    text: String,
}

impl Raw {
    /// An empty table with these facts and columns.
    pub(super) fn new(facts: &[(&'static str, String)], columns: &[&str]) -> Raw {
        let mut text = String::new();
        for (name, value) in facts {
            text.push_str(&format!("# {name}: {value}\n"));
        }
        text.push_str(&columns.join(","));
        text.push('\n');
        Raw { text }
    }

    /// Appends a row.
    pub(super) fn row(&mut self, cells: &[String]) {
        let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
        self.text.push_str(&cells.join(","));
        self.text.push('\n');
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Returns the error of the failed system call with the file's name.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, &self.text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A cell, quoted as in RFC 4180.
fn quoted(cell: &str) -> String {
    if cell.contains(['"', ',', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        let mut raw = Raw::new(&[("cpu", "a, b".to_owned())], &["x", "y"]);
        raw.row(&["1".to_owned(), "say \"a,b\"".to_owned()]);
        assert_eq!(raw.text, "# cpu: a, b\nx,y\n1,\"say \"\"a,b\"\"\"\n");
    }
}
