use std::fmt;
use std::sync::Arc;

use botmesh_core::error::ConfigError;

/// A text that is never shown, without the white space around it, as a file has it at its end.
#[derive(Clone)]
pub(crate) struct Secret(Arc<str>);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into().trim().into())
    }

    /// The text, if it can be a secret. What Meta makes is visible ASCII; what `people` make up is any
    /// text of one line.
    pub(crate) fn checked(&self, field: &str, people: bool) -> Result<&str, ConfigError> {
        let problem = if self.0.is_empty() {
            "it is empty"
        } else if self.0.contains(|c: char| c.is_control() || (!people && !c.is_ascii_graphic())) {
            "it has a character in it that no secret has, such as a space or a line break"
        } else {
            return Ok(&self.0);
        };
        let fix = "copy it again from the settings of the app, in one piece";
        Err(ConfigError::new(format!("meta.{field}"), problem, fix))
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
