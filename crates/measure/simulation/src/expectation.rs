//! A scenario's expectations, as comparisons of metrics: `best-fit.instance_s <= 1.05 *
//! worst-fit.instance_s`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::Error;

/// A comparison of two values.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    left: Operand,
    comparison: Comparison,
    right: Operand,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
}

#[derive(Clone, Debug, PartialEq)]
struct Operand {
    factor: f64,
    figure: Option<(String, String)>,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// The check's text.
    pub check: String,
    /// The values of its two sides.
    pub left: f64,
    /// See `left`.
    pub right: f64,
    /// Whether it holds.
    pub met: bool,
    /// Whether it follows from the scenario's own input, so that it says nothing of inco.
    pub calibration: bool,
}

impl Check {
    /// Parses `SIDE OP SIDE`: OP is one of `<`, `<=`, `>`, `>=`, `==`; a side is a number, `VARIANT.METRIC`,
    /// `METRIC` (in a scenario without variants), or `NUMBER * ` one of the latter two.
    ///
    /// # Errors
    /// Returns [`Error::Value`] for any other text.
    pub fn parse(text: &str) -> Result<Check, Error> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let place = words
            .iter()
            .position(|word| matches!(*word, "<" | "<=" | ">" | ">=" | "=="));
        let wrong = || {
            Error::value(
                "expectation.checks",
                format!(
                    "{text:?} is not a check; write VARIANT.METRIC <= NUMBER * VARIANT.METRIC, with spaces"
                ),
            )
        };
        let place = place.ok_or_else(wrong)?;
        let comparison = match words[place] {
            "<" => Comparison::Less,
            "<=" => Comparison::AtMost,
            ">" => Comparison::Greater,
            ">=" => Comparison::AtLeast,
            _ => Comparison::Equal,
        };
        let side = |words: &[&str]| -> Option<Operand> {
            match words {
                [one] => match one.parse::<f64>() {
                    Ok(number) => Some(Operand {
                        factor: number,
                        figure: None,
                    }),
                    Err(_) => Some(Operand {
                        factor: 1.0,
                        figure: Some(figure(one)),
                    }),
                },
                [factor, "*", name] => Some(Operand {
                    factor: factor.parse().ok()?,
                    figure: Some(figure(name)),
                }),
                _ => None,
            }
        };
        let left = side(&words[..place]).ok_or_else(wrong)?;
        let right = side(&words[place + 1..]).ok_or_else(wrong)?;
        Ok(Check {
            left,
            comparison,
            right,
            text: words.join(" "),
        })
    }

    /// The variants in the check.
    pub fn variants(&self) -> impl Iterator<Item = &str> {
        let figures = [&self.left.figure, &self.right.figure];
        figures.into_iter().flatten().map(|(variant, _)| variant.as_str())
    }

    /// Evaluates the check on these metrics, by variant.
    ///
    /// # Errors
    /// Returns [`Error::Value`] for an unknown variant or metric.
    pub fn evaluate(&self, metrics: &BTreeMap<String, BTreeMap<String, f64>>) -> Result<Checked, Error> {
        let value = |operand: &Operand| match &operand.figure {
            None => Ok(operand.factor),
            Some((variant, metric)) => {
                let of = metrics.get(variant).ok_or_else(|| {
                    let known: Vec<&str> = metrics.keys().map(String::as_str).collect();
                    Error::value(
                        "expectation.checks",
                        format!(
                            "{:?}: unknown variant {variant:?}; write one of {}",
                            self.text,
                            known.join(", ")
                        ),
                    )
                })?;
                let value = of.get(metric).ok_or_else(|| {
                    let known: Vec<&str> = of.keys().map(String::as_str).collect();
                    Error::value(
                        "expectation.checks",
                        format!(
                            "{:?}: unknown metric {metric:?}; write one of {}",
                            self.text,
                            known.join(", ")
                        ),
                    )
                })?;
                Ok(operand.factor * value)
            }
        };
        let (left, right) = (value(&self.left)?, value(&self.right)?);
        let met = match self.comparison {
            Comparison::Less => left < right,
            Comparison::AtMost => left <= right,
            Comparison::Greater => left > right,
            Comparison::AtLeast => left >= right,
            Comparison::Equal => left == right,
        };
        Ok(Checked {
            check: self.text.clone(),
            left,
            right,
            met,
            calibration: false,
        })
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// `variant.metric`, or a metric of the only variant.
fn figure(name: &str) -> (String, String) {
    match name.rsplit_once('.') {
        Some((variant, metric)) => (variant.to_owned(), metric.to_owned()),
        None => (String::new(), name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> BTreeMap<String, BTreeMap<String, f64>> {
        let of = |lost: f64| BTreeMap::from([("lost".to_owned(), lost)]);
        BTreeMap::from([("a".to_owned(), of(10.0)), ("b-1".to_owned(), of(4.0))])
    }

    #[test]
    fn both_sides_may_be_metrics_numbers_or_multiples() {
        for (text, met) in [
            ("a.lost > b-1.lost", true),
            ("a.lost <= 2 * b-1.lost", false),
            ("a.lost >= 2.5 * b-1.lost", true),
            ("a.lost == 10", true),
            ("0 < b-1.lost", true),
            ("a.lost < 10", false),
        ] {
            let checked = Check::parse(text).unwrap().evaluate(&metrics()).unwrap();
            assert_eq!(checked.met, met, "{text}");
        }
    }

    #[test]
    fn invalid_checks_and_unknown_names_are_rejected() {
        for text in [
            "",
            "a.lost",
            "a.lost <",
            "a.lost < b c",
            "a.lost<1",
            "x * a.lost < 1",
        ] {
            assert!(Check::parse(text).is_err(), "{text}");
        }
        let error = Check::parse("c.lost < 1")
            .unwrap()
            .evaluate(&metrics())
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"c\"; write one of a, b-1"), "{error}");
        let error = Check::parse("a.won < 1")
            .unwrap()
            .evaluate(&metrics())
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"won\"; write one of lost"), "{error}");
    }
}
