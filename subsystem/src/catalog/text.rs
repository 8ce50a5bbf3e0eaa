//! Values as the text that people write them, for serde.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

/// Writes the text.
///
/// # Errors
/// The serializer's.
pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Reads the text.
///
/// # Errors
/// It is no such value.
pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
    text.parse().map_err(D::Error::custom)
}
