//! Reading JSON of which nobody knows what the next version says.

use botmesh_core::time::Timestamp;
use serde_json::Value;

/// A text that is there and not empty.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str().filter(|text| !text.is_empty())
}

/// An id: a text, or a number of the same digits.
pub(crate) fn id(value: &Value, key: &str) -> Option<String> {
    match value.get(key)? {
        Value::String(id) if !id.is_empty() => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

/// `true`, or the word.
pub(crate) fn is_set(value: &Value, key: &str) -> bool {
    value.get(key).is_some_and(|flag| *flag == Value::Bool(true) || flag.as_str() == Some("true"))
}

/// The elements of a list; none if there is no list.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A whole number, also as a text.
pub(crate) fn number(value: &Value, key: &str) -> Option<i64> {
    match value.get(key)? {
        Value::String(digits) => digits.parse().ok(),
        number => number.as_i64(),
    }
}

/// Seconds since 1970.
pub(crate) fn seconds(value: &Value, key: &str) -> Option<Timestamp> {
    Some(Timestamp::from_millis(number(value, key)?.checked_mul(1000)?))
}

/// Milliseconds since 1970.
pub(crate) fn millis(value: &Value, key: &str) -> Option<Timestamp> {
    number(value, key).map(Timestamp::from_millis)
}

pub(crate) fn degrees(value: &Value, key: &str) -> Option<f64> {
    match value.get(key)? {
        Value::String(digits) => digits.parse().ok(),
        number => number.as_f64(),
    }
}

/// The parts of an object that are there, under their own names.
pub(crate) fn picked(value: &Value, keys: &[&str]) -> Value {
    let parts = keys.iter().filter_map(|&key| Some((key.to_owned(), value.get(key)?.clone())));
    let parts: serde_json::Map<_, _> = parts.collect();
    if parts.is_empty() { Value::Null } else { parts.into() }
}
