use regex::Regex;

/// What a reply is expected to say: a text, word for word, or [`containing`] or [`matching`] one.
pub trait Expected: Send + Sync {
    /// Whether `text` is it.
    fn is_met_by(&self, text: &str) -> bool;

    /// What is expected, for the assertion's message.
    fn describe(&self) -> String;
}

impl Expected for &str {
    fn is_met_by(&self, text: &str) -> bool {
        *self == text
    }

    fn describe(&self) -> String {
        format!("{self:?}")
    }
}

impl Expected for String {
    fn is_met_by(&self, text: &str) -> bool {
        self == text
    }

    fn describe(&self) -> String {
        format!("{self:?}")
    }
}

/// See [`containing`].
#[derive(Clone, Debug)]
pub struct Containing(String);

/// Expects a reply with `part` somewhere in it.
pub fn containing(part: impl Into<String>) -> Containing {
    Containing(part.into())
}

impl Expected for Containing {
    fn is_met_by(&self, text: &str) -> bool {
        text.contains(&self.0)
    }

    fn describe(&self) -> String {
        format!("something containing {:?}", self.0)
    }
}

/// See [`matching`].
#[derive(Clone, Debug)]
pub struct Matching(Regex);

/// Expects a reply in which the regular expression `pattern` is found; `^` and `$` hold it to the whole reply.
///
/// # Panics
/// If `pattern` is no regular expression.
#[track_caller]
pub fn matching(pattern: &str) -> Matching {
    match Regex::new(pattern) {
        Ok(regex) => Matching(regex),
        Err(error) => panic!("{error}"),
    }
}

impl Expected for Matching {
    fn is_met_by(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    fn describe(&self) -> String {
        format!("something matching /{}/", self.0)
    }
}
