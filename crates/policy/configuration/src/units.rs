//! Numbers with units: `10Mpps`, `64k`, `50ms`, `1GiB`, `70%`.

use model::Nanos;

/// An error about a value, and what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {write}")]
pub struct ValueError {
    pub(crate) what: String,
    pub(crate) write: String,
}

impl ValueError {
    pub(crate) fn new(what: impl Into<String>, write: impl Into<String>) -> ValueError {
        ValueError {
            what: what.into(),
            write: write.into(),
        }
    }
}

/// Splits text into a number and its unit. Underscores between digits are allowed, as in TOML.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let number = digits.replace('_', "").parse::<f64>().ok()?;
    number.is_finite().then_some((number, unit.trim()))
}

/// The factor of a unit, as written, or in another case if only one unit matches.
fn factor(units: &[(&str, f64)], unit: &str) -> Option<f64> {
    if let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) {
        return Some(*factor);
    }
    let mut alike = units.iter().filter(|(name, _)| name.eq_ignore_ascii_case(unit));
    match (alike.next(), alike.next()) {
        (Some((_, factor)), None) => Some(*factor),
        _ => None,
    }
}

fn unit_wrong(text: &str, kind: &str, units: &[(&str, f64)], example: &str) -> ValueError {
    let what = match split(text) {
        None => format!("{text:?} is not {kind}"),
        Some((_, "")) => format!("{text:?} has no unit"),
        Some((_, unit)) => format!("unknown unit {unit:?} for {kind}"),
    };
    let names: Vec<&str> = units
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !name.is_empty())
        .collect();
    ValueError::new(
        what,
        format!(
            "write a number and one of {}, for example {example:?}",
            names.join(", ")
        ),
    )
}

const RATES: &[(&str, f64)] = &[
    ("", 1.0),
    ("pps", 1.0),
    ("kpps", 1e3),
    ("Mpps", 1e6),
    ("Gpps", 1e9),
];

/// Parses packets per second, such as `10Mpps`.
///
/// # Errors
/// It is not a number with one of the units.
pub fn rate(text: &str) -> Result<f64, ValueError> {
    let of = |(number, unit)| factor(RATES, unit).map(|factor| number * factor);
    split(text)
        .and_then(of)
        .ok_or_else(|| unit_wrong(text, "a packet rate", RATES, "10Mpps"))
}

const BIT_RATES: &[(&str, f64)] = &[
    ("bps", 0.125),
    ("kbps", 125.0),
    ("Mbps", 125e3),
    ("Gbps", 125e6),
    ("Tbps", 125e9),
];

/// Parses a bit rate such as `10Gbps` into bytes per second.
pub(crate) fn bit_rate(text: &str) -> Result<f64, ValueError> {
    let of = |(number, unit)| factor(BIT_RATES, unit).map(|factor| number * factor);
    split(text)
        .and_then(of)
        .ok_or_else(|| unit_wrong(text, "a bit rate", BIT_RATES, "10Gbps"))
}

const SPANS: &[(&str, f64)] = &[
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3_600e9),
    ("d", 86_400e9),
];

/// Parses a duration. A unit is required, because a bare number may mean seconds or milliseconds.
///
/// # Errors
/// The text has another form, or is longer than 100 years.
pub fn span(text: &str) -> Result<Nanos, ValueError> {
    let of = |(number, unit): (f64, &str)| {
        SPANS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, f)| number * f)
    };
    let nanos = split(text)
        .and_then(of)
        .ok_or_else(|| unit_wrong(text, "a duration", SPANS, "50ms"))?;
    if nanos > 3.2e18 {
        return Err(ValueError::new(
            format!("{text:?} is longer than 100 years"),
            "write a shorter duration",
        ));
    }
    Ok(Nanos(nanos.round() as u64))
}

/// `K`, `M`, `G` and `T` alone are powers of 1,024, as Docker reads them; so are `Ki` to `Ti` of Kubernetes.
const SIZES: &[(&str, f64)] = &[
    ("", 1.0),
    ("B", 1.0),
    ("K", 1024.0),
    ("M", 1_048_576.0),
    ("G", 1_073_741_824.0),
    ("T", 1_099_511_627_776.0),
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
];

/// Parses a size in bytes.
pub(crate) fn size(text: &str) -> Result<u64, ValueError> {
    let of = |(number, unit)| factor(SIZES, unit).map(|factor| number * factor);
    let bytes = split(text)
        .and_then(of)
        .ok_or_else(|| unit_wrong(text, "a size", SIZES, "512MiB"))?;
    whole(text, bytes)
}

/// CPUs, where `m` is a thousandth, as in Kubernetes.
pub(crate) fn cpus(text: &str) -> Option<f64> {
    match split(text)? {
        (number, "") => Some(number),
        (number, "m") => Some(number / 1000.0),
        _ => None,
    }
}

const COUNTS: &[(&str, f64)] = &[("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)];

/// Parses a count, where `k` is 1,000 and `M` 1,000,000.
pub(crate) fn count(text: &str) -> Result<u64, ValueError> {
    let of = |(number, unit)| factor(COUNTS, unit).map(|factor| number * factor);
    let number = split(text)
        .and_then(of)
        .ok_or_else(|| unit_wrong(text, "a number", COUNTS, "64k"))?;
    whole(text, number)
}

/// Parses a share, 0 to 1, from `70%`.
pub(crate) fn share(text: &str) -> Result<f64, ValueError> {
    match split(text) {
        Some((number, "%")) => Ok(number / 100.0),
        Some((number, "")) => Ok(number),
        _ => Err(ValueError::new(
            format!("{text:?} is not a share"),
            "write a number from 0 to 1, or a percentage, for example 0.7 or \"70%\"",
        )),
    }
}

fn whole(text: &str, number: f64) -> Result<u64, ValueError> {
    // Above 2^53 a double cannot represent every integer; no valid value is that large.
    if number > 9_007_199_254_740_992.0 {
        return Err(ValueError::new(
            format!("{text:?} is too large"),
            "write a smaller number",
        ));
    }
    if number.fract() != 0.0 {
        return Err(ValueError::new(
            format!("{text:?} is not a whole number"),
            "write a whole number",
        ));
    }
    Ok(number as u64)
}

/// A duration in the most readable unit, for messages and tables: `50ms`, `2m`, `1.5s`.
pub fn show_span(span: Nanos) -> String {
    for (name, factor) in SPANS.iter().rev() {
        let number = span.0 as f64 / factor;
        if span.0 != 0 && number >= 1.0 {
            let rounded = (number * 100.0).round() / 100.0;
            return format!("{rounded}{name}");
        }
    }
    "0s".to_owned()
}

/// A size in the most readable unit: `512MiB`, `1.5GiB`.
pub fn show_size(bytes: u64) -> String {
    for (name, factor) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << factor {
            let number = bytes as f64 / (1u64 << factor) as f64;
            return format!("{}{name}", (number * 10.0).round() / 10.0);
        }
    }
    format!("{bytes}B")
}

/// A packet rate in the most readable unit: `10Mpps`, `1.25kpps`.
pub fn show_rate(pps: f64) -> String {
    for (name, factor) in [("Gpps", 1e9), ("Mpps", 1e6), ("kpps", 1e3)] {
        if pps >= factor {
            return format!("{}{name}", (pps / factor * 100.0).round() / 100.0);
        }
    }
    format!("{}pps", (pps * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_are_read() {
        assert_eq!(rate("10Mpps"), Ok(10e6));
        assert_eq!(rate("10 mpps"), Ok(10e6));
        assert_eq!(rate("1.5kpps"), Ok(1500.0));
        assert_eq!(rate("250"), Ok(250.0));
        assert_eq!(span("50ms"), Ok(Nanos::from_millis(50)));
        assert_eq!(span("2m"), Ok(Nanos::from_secs(120)));
        assert_eq!(span("1.5s"), Ok(Nanos::from_millis(1500)));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert_eq!(size("1gib"), Ok(1 << 30));
        assert_eq!(size("2kB"), Ok(2000));
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("64m"), Ok(64 << 20));
        assert_eq!(size("64Mi"), Ok(64 << 20));
        assert_eq!(cpus("500m"), Some(0.5));
        assert_eq!(cpus("1.5"), Some(1.5));
        assert_eq!((cpus("500M"), cpus("half")), (None, None));
        assert_eq!(count("64k"), Ok(64_000));
        assert_eq!(count("1_000"), Ok(1000));
        assert_eq!(share("70%"), Ok(0.7));
    }

    #[test]
    fn wrong_units_are_reported_with_the_valid_ones() {
        let wrong = span("50").unwrap_err();
        assert_eq!(wrong.what, "\"50\" has no unit");
        assert_eq!(
            wrong.write,
            "write a number and one of ns, us, ms, s, m, h, d, for example \"50ms\""
        );
        assert_eq!(
            span("50sec").unwrap_err().what,
            "unknown unit \"sec\" for a duration"
        );
        assert_eq!(
            rate("10Mbps").unwrap_err().what,
            "unknown unit \"Mbps\" for a packet rate"
        );
        assert_eq!(rate("fast").unwrap_err().what, "\"fast\" is not a packet rate");
        assert!(size("1.5B").unwrap_err().what.contains("whole"));
        assert!(size("99999999TiB").unwrap_err().what.contains("too large"));
        assert!(span("9999999d").unwrap_err().what.contains("100 years"));
    }

    #[test]
    fn what_is_shown_is_what_was_read() {
        for text in ["50ms", "2m", "1.5s", "3h", "100us", "7ns"] {
            assert_eq!(show_span(span(text).unwrap()), text);
        }
        assert_eq!(show_span(Nanos::ZERO), "0s");
        assert_eq!(show_size(size("512MiB").unwrap()), "512MiB");
        assert_eq!(show_size(1536 << 20), "1.5GiB");
        assert_eq!(show_size(12), "12B");
        assert_eq!(show_rate(10e6), "10Mpps");
        assert_eq!(show_rate(1250.0), "1.25kpps");
        assert_eq!(show_rate(7.0), "7pps");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,20}") {
            let _ = (rate(&text), span(&text), size(&text), count(&text), share(&text));
        }

        #[test]
        fn numbers_with_units_are_read_back(n in 0u64..1_000_000, unit in 0usize..SPANS.len()) {
            let (name, factor) = SPANS[unit];
            if n as f64 * factor < 3.2e18 {
                prop_assert_eq!(span(&format!("{n}{name}")).unwrap().0, (n as f64 * factor) as u64);
            }
        }
    }
}
