use std::fmt;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Figures per reason.
pub const FIGURE_LIMIT: usize = 8;

/// A figure behind a decision. Its name ends in its unit, if any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
}

/// The rule that decided and its figures. Made without allocation; formatted only when read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// The rule's name, with underscores.
    pub rule: &'static str,
    figures: [Figure; FIGURE_LIMIT],
    count: usize,
}

impl Reason {
    /// A reason without figures.
    pub const fn new(rule: &'static str) -> Reason {
        Reason {
            rule,
            figures: [Figure { name: "", value: 0.0 }; FIGURE_LIMIT],
            count: 0,
        }
    }

    /// Adds a figure; ignored beyond [`FIGURE_LIMIT`].
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Reason {
        if let Some(place) = self.figures.get_mut(self.count) {
            *place = Figure { name, value };
            self.count += 1;
        }
        self
    }

    /// The same figures under another rule.
    #[must_use]
    pub const fn named(mut self, rule: &'static str) -> Reason {
        self.rule = rule;
        self
    }

    /// Its figures.
    pub fn figures(&self) -> &[Figure] {
        self.figures.get(..self.count).unwrap_or_default()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule)?;
        for (index, figure) in self.figures().iter().enumerate() {
            let separator = if index == 0 { ":" } else { "," };
            write!(f, "{separator} {} ", figure.name)?;
            if figure.value.fract() == 0.0 || figure.value.abs() >= 1_000.0 {
                write!(f, "{:.0}", figure.value)?;
            } else {
                write!(f, "{:.3}", figure.value)?;
            }
        }
        Ok(())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.count + 1))?;
        map.serialize_entry("rule", self.rule)?;
        for figure in self.figures() {
            map.serialize_entry(figure.name, &figure.value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_formats_as_a_line_and_as_a_table() {
        let reason = Reason::new("above_target")
            .with("load_pps", 12_345.6)
            .with("target", 0.5)
            .with("n", 3.0);
        assert_eq!(
            reason.to_string(),
            "above_target: load_pps 12346, target 0.500, n 3"
        );
        assert_eq!(
            serde_json::to_string(&reason).unwrap(),
            r#"{"rule":"above_target","load_pps":12345.6,"target":0.5,"n":3.0}"#
        );
        assert_eq!(Reason::new("manual").to_string(), "manual");
    }

    #[test]
    fn figures_beyond_the_limit_are_ignored() {
        let mut reason = Reason::new("many");
        for n in 0..20 {
            reason = reason.with("n", f64::from(n));
        }
        assert_eq!(reason.figures().len(), FIGURE_LIMIT);
    }
}
