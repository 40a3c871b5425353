use std::fmt;
use std::sync::Arc;

/// A text that is never shown.
#[derive(Clone)]
pub(crate) struct Secret(Arc<str>);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into().into())
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// The text without this secret in it.
    pub(crate) fn scrub(&self, text: &str) -> String {
        if self.0.is_empty() { text.to_owned() } else { text.replace(&*self.0, "***") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
