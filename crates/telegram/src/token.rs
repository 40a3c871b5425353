use std::fmt;

/// The token of a bot. It is shown nowhere: whoever has it is the bot.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    pub(crate) fn new(token: impl Into<String>) -> Self {
        Self(token.into().trim().to_owned())
    }

    /// The token, if it has the form of one. Anything else must not become a part of a URL.
    pub(crate) fn valid(&self) -> Option<&str> {
        let (id, secret) = self.0.split_once(':')?;
        let is_secret = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let valid = !id.is_empty()
            && id.bytes().all(|c| c.is_ascii_digit())
            && !secret.is_empty()
            && secret.chars().all(is_secret);
        valid.then_some(&self.0)
    }

    /// `text` without the token.
    pub(crate) fn redact(&self, text: &str) -> String {
        match self.0.split_once(':') {
            Some((_, secret)) if !secret.is_empty() => {
                text.replace(&self.0, "<token>").replace(secret, "<token>")
            }
            _ => text.to_owned(),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<token>")
    }
}
