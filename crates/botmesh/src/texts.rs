//! What a bot says of itself, in the languages of its users.

use std::collections::{BTreeMap, HashMap};

use crate::core::content::{Content, ContentBody};
use crate::core::error::ConfigError;

/// How much of a language tag is looked at, since channels may send anything. No tag in use is longer.
const MAX_TAG: usize = 64;

/// A text that is built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Text {
    /// The conversation was interrupted and does not go on, and the user may start again. It is what
    /// [`Fallback::Notify`](crate::Fallback::Notify) says.
    Interrupted,
}

impl Text {
    const ALL: [Self; 1] = [Self::Interrupted];

    fn english(self) -> &'static str {
        match self {
            Self::Interrupted => "Sorry, our conversation was interrupted. You can start again at any time.",
        }
    }

    /// The text in exactly this language, if it is built in.
    fn built_in(self, language: &str) -> Option<&'static str> {
        Some(match (self, language) {
            (_, "en") => self.english(),
            (Self::Interrupted, "es") => {
                "Lo sentimos, la conversación se interrumpió. Se puede empezar de nuevo en cualquier momento."
            }
            (Self::Interrupted, "pt") => {
                "Desculpe, a conversa foi interrompida. É possível recomeçar a qualquer momento."
            }
            _ => return None,
        })
    }
}

/// The built-in texts: in English (`en`), Spanish (`es`) and Portuguese (`pt`), each of which may be replaced, and in the
/// languages that are added.
///
/// Languages are BCP 47 tags such as `pt-BR`; case does not matter, and `_` is as good as `-`. What is not there in `pt-BR`
/// is looked up in `pt`, and then in the default language.
///
/// ```
/// use botmesh::{Text, Texts};
///
/// let texts = Texts::default()
///     .with("es-AR", Text::Interrupted, "Perdón, se cortó. Podés empezar de nuevo.")
///     .with("fr", Text::Interrupted, "Désolé, la conversation a été interrompue.")
///     .with_default_language("fr");
/// let says = |language| texts.get(Text::Interrupted, language).readable_text().to_owned();
/// assert!(says(Some("es_ar")).starts_with("Perdón"));
/// assert!(says(Some("es-MX")).starts_with("Lo sentimos"));
/// assert!(says(Some("de")).starts_with("Désolé"));
/// ```
#[derive(Clone, Debug)]
pub struct Texts {
    default_language: String,
    /// What was given, by folded language.
    given: BTreeMap<String, HashMap<Text, Content>>,
}

impl Default for Texts {
    fn default() -> Self {
        Self { default_language: "en".to_owned(), given: BTreeMap::new() }
    }
}

impl Texts {
    /// With this text in this language, in place of the one that may be there.
    #[must_use]
    pub fn with(mut self, language: &str, text: Text, content: impl Into<Content>) -> Self {
        self.given.entry(folded(language)).or_default().insert(text, content.into());
        self
    }

    /// With this language for chats whose own is unknown or has no text. It must have every text. Default `en`.
    #[must_use]
    pub fn with_default_language(mut self, language: &str) -> Self {
        self.default_language = folded(language);
        self
    }

    /// A text in this language, or in the nearest one that has it.
    pub fn get(&self, text: Text, language: Option<&str>) -> Content {
        let own = language.and_then(|language| self.nearest(text, &folded(language)));
        let default = || self.nearest(text, &self.default_language);
        own.or_else(default).unwrap_or_else(|| text.english().into())
    }

    /// A text in a language, or in one that it is a variety of.
    fn nearest(&self, text: Text, language: &str) -> Option<Content> {
        let mut varieties =
            std::iter::successors(Some(language), |language| Some(language.rsplit_once('-')?.0));
        varieties.find_map(|language| {
            let given = self.given.get(language).and_then(|texts| texts.get(&text));
            given.cloned().or_else(|| text.built_in(language).map(Content::from))
        })
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        for (language, texts) in &self.given {
            let field = format!("texts.{language}");
            if !is_tag(language) {
                let fix = "write a BCP 47 tag such as \"fr\" or \"pt-BR\"";
                return Err(ConfigError::new(field, "is no language", fix));
            }
            if let Some((text, _)) = texts.iter().find(|(_, content)| is_empty(content)) {
                let fix = "give it words, or leave it out to keep the built-in text";
                return Err(ConfigError::new(field, format!("the text `{text:?}` is empty"), fix));
            }
        }
        let language = &self.default_language;
        match Text::ALL.into_iter().find(|text| self.nearest(*text, language).is_none()) {
            Some(text) => Err(ConfigError::new(
                "texts.default_language",
                format!("is `{language}`, which has no text `{text:?}`"),
                format!("add `.with({language:?}, Text::{text:?}, …)`, or choose `en`, `es` or `pt`"),
            )),
            None => Ok(()),
        }
    }
}

/// A language tag as it is looked up.
fn folded(language: &str) -> String {
    let folded = |c: char| if c == '_' { '-' } else { c.to_ascii_lowercase() };
    language.trim().chars().take(MAX_TAG).map(folded).collect()
}

fn is_tag(language: &str) -> bool {
    let is_subtag =
        |part: &str| matches!(part.len(), 1..=8) && part.bytes().all(|b| b.is_ascii_alphanumeric());
    language.split('-').all(is_subtag)
}

/// Whether a user would see nothing.
pub(crate) fn is_empty(content: &Content) -> bool {
    matches!(&content.body, ContentBody::Text { text } if text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(texts: &Texts, language: &str) -> String {
        texts.get(Text::Interrupted, Some(language)).readable_text().to_owned()
    }

    #[test]
    fn every_text_is_there_in_three_languages_of_its_own() {
        for text in Text::ALL {
            let texts = ["en", "es", "pt"].map(|language| text.built_in(language).expect("a translation"));
            assert!(texts.iter().all(|text| (20..120).contains(&text.len())), "{texts:?}");
            assert!(texts[0] != texts[1] && texts[1] != texts[2] && texts[2] != texts[0], "{texts:?}");
        }
    }

    #[test]
    fn a_language_falls_back_to_what_it_is_a_variety_of_and_then_to_the_default() {
        let texts = Texts::default();
        for (language, beginning) in [
            ("en", "Sorry,"),
            ("en-GB", "Sorry,"),
            ("es", "Lo sentimos,"),
            ("ES-mx", "Lo sentimos,"),
            ("es-419", "Lo sentimos,"),
            ("pt", "Desculpe,"),
            ("pt-BR", "Desculpe,"),
            (" pt_PT ", "Desculpe,"),
            ("pt-Latn-BR", "Desculpe,"),
            ("ptx", "Sorry,"),
            ("de", "Sorry,"),
            ("", "Sorry,"),
            ("-", "Sorry,"),
        ] {
            assert!(said(&texts, language).starts_with(beginning), "{language}: {}", said(&texts, language));
        }
        let texts = texts.with_default_language("pt_BR");
        assert!(said(&texts, "de").starts_with("Desculpe,"));
        assert!(texts.get(Text::Interrupted, None).readable_text().starts_with("Desculpe,"));
        assert!(said(&texts, "en").starts_with("Sorry,"));
    }

    #[test]
    fn what_is_given_replaces_the_built_in_text_of_its_language_and_its_varieties() {
        let texts =
            Texts::default().with("ES", Text::Interrupted, "es").with("pt_br", Text::Interrupted, "br");
        assert_eq!(
            ["es", "es-MX", "pt-BR", "pt-br-x-a"].map(|tag| said(&texts, tag)),
            ["es", "es", "br", "br"]
        );
        assert!(said(&texts, "pt").starts_with("Desculpe,"));
        assert!(said(&texts, "en").starts_with("Sorry,"));
        assert_eq!(said(&texts.with("es", Text::Interrupted, "again"), "es"), "again");
    }

    #[test]
    fn a_tag_without_end_is_looked_up_like_a_short_one() {
        assert!(said(&Texts::default(), &"es-".repeat(1 << 20)).starts_with("Lo sentimos,"));
    }
}
