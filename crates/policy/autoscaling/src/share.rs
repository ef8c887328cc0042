//! Parameters that are shares, and counts that follow from them.

use serde::{Deserialize, Deserializer};

/// Rounding errors of a product of rates must not ask for one more instance than the exact figure would.
pub(crate) const ROUNDING: f64 = 1e-9;

/// A share above 0 and at most 1.
pub(crate) fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if value > 0.0 && value <= 1.0 {
        Ok(value)
    } else {
        Err(serde::de::Error::custom(format_args!(
            "{value} is not a share above 0 and at most 1"
        )))
    }
}

/// A share from 0 to 1.
pub(crate) fn any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(serde::de::Error::custom(format_args!(
            "{value} is not a share from 0 to 1"
        )))
    }
}

/// So much of an instance rounded up to whole ones.
pub(crate) fn whole(instances: f64) -> u32 {
    // What is more than a number can hold is cut here and by the limits after.
    (instances * (1.0 - ROUNDING))
        .ceil()
        .clamp(0.0, f64::from(u32::MAX)) as u32
}
