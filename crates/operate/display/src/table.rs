//! Text tables: columns fit their widest cell, and numbers are right-aligned.

/// A table.
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns. A heading that begins with `>` right-aligns its column.
    pub fn new(headings: &[&'static str]) -> Table {
        Table {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        // Names from containers and peers must not contain control characters.
        let plain = |cell: String| {
            cell.chars()
                .map(|c| if c.is_control() { '?' } else { c })
                .collect()
        };
        self.rows.push(cells.into_iter().map(plain).collect());
    }

    /// All cells, the headings first.
    pub fn cells(&self) -> Vec<Vec<String>> {
        let headings = self
            .headings
            .iter()
            .map(|heading| heading.trim_start_matches('>').to_owned());
        std::iter::once(headings.collect())
            .chain(self.rows.iter().cloned())
            .collect()
    }

    /// As [`Table::text`], with longer lines cut to `columns`; a cut line ends with `~`.
    pub fn text_within(&self, columns: usize) -> String {
        let line = |line: &str| cut(line, columns) + "\n";
        self.text().lines().map(line).collect()
    }

    /// The table as text; only the headings if it has no rows.
    pub fn text(&self) -> String {
        let heading = |column: usize| self.headings[column].trim_start_matches('>');
        let cell = |row: &Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
        let columns = 0..self.headings.len();
        let widths: Vec<usize> = columns
            .clone()
            .map(|column| {
                let cells = self.rows.iter().map(|row| cell(row, column).chars().count());
                cells
                    .chain([heading(column).chars().count()])
                    .max()
                    .unwrap_or_default()
            })
            .collect();
        let mut text = String::new();
        let mut add = |cells: Vec<String>| {
            let mut line = String::new();
            for (column, cell) in cells.iter().enumerate() {
                let width = widths[column];
                if column > 0 {
                    line.push_str("  ");
                }
                if self.headings[column].starts_with('>') {
                    line.push_str(&format!("{cell:>width$}"));
                } else {
                    line.push_str(&format!("{cell:<width$}"));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        };
        add(columns
            .clone()
            .map(|column| heading(column).to_uppercase())
            .collect());
        for row in &self.rows {
            add(columns.clone().map(|column| cell(row, column)).collect());
        }
        text
    }
}

/// The beginning of a text, in at most `columns` characters; it ends with `~` where there is more.
pub fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(columns.saturating_sub(1)).collect();
    short.push('~');
    short
}

/// A number in short form: `12.3M`, `980k`, `17`.
pub fn short(number: f64) -> String {
    let scaled = [(1e9, "G"), (1e6, "M"), (1e3, "k")]
        .into_iter()
        .find(|(factor, _)| number.abs() >= *factor);
    match scaled {
        Some((factor, unit)) => {
            let number = number / factor;
            let digits = if number.abs() < 10.0 {
                2
            } else {
                usize::from(number.abs() < 100.0)
            };
            format!("{number:.digits$}{unit}")
        }
        None if number.fract() == 0.0 || number.abs() >= 100.0 => format!("{number:.0}"),
        None => format!("{number:.1}"),
    }
}

/// A number with thousands separators: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in microseconds, in a unit that suits it: `12.5 µs`, `3.1 ms`, `2.0 s`.
pub fn micros(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.1} µs"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// A share as a percentage: `12.5%`.
pub fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// A duration in milliseconds in short form: `850ms`, `12.3s`, `5m12s`, `3h20m`.
pub fn span_ms(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{:.1}s", ms as f64 / 1000.0),
        60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms / 1000 % 60),
        _ => format!("{}h{:02}m", ms / 3_600_000, ms / 60_000 % 60),
    }
}

/// The shown value, or a dash for [`None`].
pub fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let mut table = Table::new(&["name", ">rate"]);
        table.row(["web".to_owned(), "5".to_owned()]);
        table.row(["a\u{1b}[2Jb".to_owned(), "1,000,000".to_owned()]);
        table.row(["short".to_owned()]);
        assert_eq!(
            table.text(),
            "NAME         RATE\nweb             5\na?[2Jb  1,000,000\nshort\n"
        );
        assert_eq!(Table::new(&["a", "b"]).text(), "A  B\n");
        assert_eq!(
            table.text_within(12),
            "NAME       ~\nweb        ~\na?[2Jb  1,0~\nshort\n"
        );
        assert_eq!(
            (cut("firewall", 5), cut("web", 3)),
            ("fire~".to_owned(), "web".to_owned())
        );
    }

    #[test]
    fn figures_are_short() {
        for (number, shown) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (17.0, "17"),
            (980.4, "980"),
            (1234.0, "1.23k"),
            (98_765.0, "98.8k"),
            (123_456.0, "123k"),
            (1.05e7, "10.5M"),
            (2e9, "2.00G"),
        ] {
            assert_eq!(short(number), shown);
        }
        for (number, shown) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), shown);
        }
        for (ms, shown) in [
            (0, "0ms"),
            (999, "999ms"),
            (1500, "1.5s"),
            (61_000, "1m01s"),
            (7_260_000, "2h01m"),
        ] {
            assert_eq!(span_ms(ms), shown);
        }
        assert_eq!(percent(0.125), "12.5%");
        assert_eq!(or_dash(None::<u8>, |n| n.to_string()), "-");
    }
}
