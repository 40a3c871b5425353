//! JSON that borrows its texts from the update: most of an update is looked at once and kept nowhere.

use std::borrow::Cow;
use std::fmt;
use std::ops::Index;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

/// As many fields as most objects have.
const FIELDS: usize = 8;

/// One value. What is looked up where it is not is [`Json::Null`].
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Self>),
    Object(Fields<'a>),
}

/// The fields of an object. Of those with the same name, the last one counts.
pub(super) struct Fields<'a>(Vec<(Cow<'a, str>, Json<'a>)>);

impl<'a> Fields<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&Json<'a>> {
        self.0.iter().rev().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    /// The first field, in the order of the alphabet, whose name is `wanted`.
    pub(super) fn first(&self, wanted: impl Fn(&str) -> bool) -> Option<(&str, &Json<'a>)> {
        let name = self.0.iter().map(|(field, _)| &**field).filter(|field| wanted(field)).min()?;
        Some((name, self.get(name)?))
    }
}

impl<'a> Json<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        self.as_object()?.get(name)
    }

    pub(super) fn as_object(&self) -> Option<&Fields<'a>> {
        if let Self::Object(fields) = self { Some(fields) } else { None }
    }

    pub(super) fn as_array(&self) -> Option<&[Self]> {
        if let Self::List(values) = self { Some(values) } else { None }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(*value) } else { None }
    }

    fn as_number(&self) -> Option<&Number> {
        if let Self::Number(number) = self { Some(number) } else { None }
    }

    pub(super) fn as_i64(&self) -> Option<i64> {
        self.as_number()?.as_i64()
    }

    pub(super) fn as_u64(&self) -> Option<u64> {
        self.as_number()?.as_u64()
    }

    pub(super) fn as_f64(&self) -> Option<f64> {
        self.as_number()?.as_f64()
    }

    pub(super) fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    pub(super) fn is_string(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// The value, to be kept.
    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(number) => Value::Number(number.clone()),
            Self::Text(text) => Value::String(text.to_string()),
            Self::List(values) => values.iter().map(Self::to_value).collect(),
            Self::Object(Fields(fields)) => {
                fields.iter().map(|(name, value)| (name.to_string(), value.to_value())).collect()
            }
        }
    }
}

impl<'a> Index<&str> for Json<'a> {
    type Output = Self;

    fn index(&self, name: &str) -> &Self {
        self.get(name).unwrap_or(&Json::Null)
    }
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AnyObject)
    }
}

/// A name of a field, which `Cow` alone would copy.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

struct AnyObject;

impl<'de> Visitor<'de> for AnyObject {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Vec::with_capacity(FIELDS);
        while let Some((Name(name), value)) = map.next_entry()? {
            fields.push((name, value));
        }
        Ok(Fields(fields))
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json<'de>, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json<'de>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Json::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Json<'de>, A::Error> {
        AnyObject.visit_map(map).map(Json::Object)
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
