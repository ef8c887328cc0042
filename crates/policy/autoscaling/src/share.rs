//! Parameters that are shares, and rounding to whole instances.

use serde::{Deserialize, Deserializer};

/// Tolerated rounding error, so that a product of rates does not ask for an extra instance.
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

/// The same, or nothing.
pub(crate) fn positive_or_unset<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    #[derive(Deserialize)]
    struct Share(#[serde(deserialize_with = "positive")] f64);
    Ok(Option::<Share>::deserialize(deserializer)?.map(|share| share.0))
}

/// A number above 0, or left out.
pub(crate) fn above_zero_or_unset<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    let value = Option::<f64>::deserialize(deserializer)?;
    match value {
        Some(value) if !(value.is_finite() && value > 0.0) => Err(serde::de::Error::custom(format_args!(
            "{value} is not a number above 0"
        ))),
        value => Ok(value),
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

/// Rounds up to whole instances.
pub(crate) fn whole(instances: f64) -> u32 {
    // A larger number saturates here; limits apply later.
    (instances * (1.0 - ROUNDING))
        .ceil()
        .clamp(0.0, f64::from(u32::MAX)) as u32
}
