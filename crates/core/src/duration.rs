//! Durations in configuration files: a text such as `"15s"`, `"2m"` or `"7d"`, or a whole number of milliseconds.
//!
//! Use it with serde: `#[serde(with = "botmesh_core::duration")]`.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;

/// Reads `"15s"`, `"2m"`, `"1h 30m"`, `"7d"` or `"250ms"`.
///
/// # Errors
/// A text that is no duration, with what is expected instead.
pub fn parse(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim()).map_err(|error| {
        format!("`{text}` is not a duration ({error}); write for example \"15s\", \"2m\" or \"7d\"")
    })
}

/// Writes a duration as [`parse`] reads it.
pub fn format(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// Serializes as text.
///
/// # Errors
/// Only those of the serializer.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

/// Deserializes a text or a number of milliseconds.
///
/// # Errors
/// A negative or fractional number, or a text that [`parse`] refuses.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = Duration;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration such as \"15s\", or a whole number of milliseconds")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
            parse(text).map_err(E::custom)
        }
        fn visit_u64<E: de::Error>(self, millis: u64) -> Result<Duration, E> {
            Ok(Duration::from_millis(millis))
        }
        fn visit_i64<E: de::Error>(self, millis: i64) -> Result<Duration, E> {
            u64::try_from(millis)
                .map(Duration::from_millis)
                .map_err(|_| E::custom("a duration cannot be negative"))
        }
    }
    deserializer.deserialize_any(Text)
}
