//! Texts with formatting, the same for all channels.
//!
//! ```
//! use botmesh_core::markup::{Formatted, Style};
//!
//! let name = "Ana *the* great";
//! let greeting = Formatted::parse(&format!("Hello **{}**!", Formatted::escape(name)));
//! assert_eq!(greeting, Formatted::from("Hello ") + Formatted::styled(name, Style::Bold) + "!");
//! assert_eq!(greeting.to_plain(), "Hello Ana *the* great!");
//! ```

mod order;
mod parse;
mod render;
#[cfg(test)]
mod tests;
mod whatsapp;

use std::ops::{Add, Range};

use serde::{Deserialize, Serialize};

use crate::provider::TextLimit;
use crate::split::split_formatted;

/// How a piece of a text is shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "style", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Style {
    /// **Bold.**
    Bold,
    /// *Italic.*
    Italic,
    /// Struck through.
    Strikethrough,
    /// Code within a line.
    Code,
    /// Lines of code.
    Pre {
        /// In what language, such as `rust`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        language: Option<String>,
    },
    /// A link.
    Link {
        /// Where to.
        url: String,
    },
}

/// A piece of a text, and how it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    /// Where it begins, in bytes of UTF-8.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
    /// How it is shown.
    #[serde(flatten)]
    pub style: Style,
}

impl Span {
    /// The bytes of `range`, shown so.
    pub fn new(range: Range<usize>, style: Style) -> Self {
        Self { start: range.start, end: range.end, style }
    }
}

/// A plain text, and spans over it that say how it is shown. Made by [`parse`](Self::parse) from a small markup, or piece by
/// piece: a `&str` or a `String` is a text as it is, [`styled`](Self::styled) is one in a style, and `+` puts two together.
///
/// The spans are in order: of any two, one contains the other or they have nothing in common, those that begin first come
/// first, and of those that begin together the longer one. Code has no other style within or around it, a link has no link
/// within it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Formatted {
    text: String,
    spans: Vec<Span>,
}

impl Formatted {
    /// A text with these spans, put in order: ends that are outside of the text or within a character are moved, spans of one
    /// style that overlap or touch become one, and where two cannot both be shown, a link is kept first and code second.
    pub fn new(text: impl Into<String>, spans: impl IntoIterator<Item = Span>) -> Self {
        let text = text.into();
        let spans = order::in_order(&text, spans);
        Self { text, spans }
    }

    /// A text that is all in one style. Nothing in it is markup: for what a user wrote.
    pub fn styled(text: impl Into<String>, style: Style) -> Self {
        let text = text.into();
        let span = Span::new(0..text.len(), style);
        Self::new(text, [span])
    }

    /// Reads a text in a small part of Markdown. It never fails: what is no markup is text.
    ///
    /// | written | shown |
    /// | - | - |
    /// | `**bold**` or `__bold__` | bold |
    /// | `*italic*` or `_italic_` | italic; not within a word |
    /// | `~~gone~~` | struck through |
    /// | `` `code` `` | code; with more backticks around it, it may have some within |
    /// | `[label](https://example.org)` | a link |
    /// | lines between two lines of three backticks, the first with a language or not | lines of code |
    /// | `- item`, `* item` or `+ item` at the beginning of a line | `• item` |
    /// | `\*` | `*`, and so for each ASCII punctuation |
    ///
    /// Marks do not reach over an empty line or into another item. A text from elsewhere goes through
    /// [`escape`](Self::escape) first.
    pub fn parse(source: &str) -> Self {
        parse::parse(source)
    }

    /// A text that [`parse`](Self::parse) reads as `text`, whatever it contains: for what a user wrote, within markup.
    pub fn escape(text: &str) -> String {
        parse::escape(text)
    }

    /// The text without its formatting. The targets of links are not in it; [`to_plain`](Self::to_plain) writes them out.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How it is shown, in order.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The text and the spans.
    pub fn into_parts(self) -> (String, Vec<Span>) {
        (self.text, self.spans)
    }

    /// The bytes of `range`, with what is shown of the spans. The ends must be between characters, else they are moved back.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = self.text.floor_char_boundary(range.end);
        let start = self.text.floor_char_boundary(range.start).min(end);
        let within = |span: &Span| {
            let (from, to) = (span.start.max(start), span.end.min(end));
            (from < to).then(|| Span::new(from - start..to - start, span.style.clone()))
        };
        Self::new(&self.text[start..end], self.spans.iter().filter_map(within))
    }

    /// The spans with their places in UTF-16 code units, as Telegram counts, in order.
    pub fn utf16_spans(&self) -> Vec<Utf16Span<'_>> {
        render::utf16_spans(self)
    }

    /// The text for a channel without formatting, with the target of each link after its label: `label (https://…)`.
    pub fn to_plain(&self) -> String {
        render::without_links(self).text
    }

    /// The text with WhatsApp's marks: `*bold*`, `_italic_`, `~gone~`, `` `code` ``, and three backticks around lines of code.
    /// Links are written out.
    ///
    /// WhatsApp has no way to write a mark that is none: where one of the text would be read as formatting, a character that
    /// looks like it takes its place (`∗ ＿ ∼ ‵`). A style that WhatsApp would not show, such as that of a part of a word, is
    /// left out.
    pub fn to_whatsapp(&self) -> String {
        whatsapp::render(&render::without_links(self))
    }

    /// What a channel with this markup takes in one message each, at most `limit` long as the channel counts. Only with
    /// [`Markup::Spans`] have the parts spans. A span that is cut goes on in the next part. The same text gives the same parts
    /// at any time; see [`split`](crate::split::split) for where it is cut.
    #[must_use]
    pub fn parts(&self, markup: Markup, limit: Option<TextLimit>) -> Vec<Self> {
        let shown = match markup {
            Markup::Plain => Self::from(self.to_plain()),
            Markup::Spans => self.clone(),
            Markup::WhatsApp => render::without_links(self),
        };
        let written = |part: &Self| match markup {
            Markup::WhatsApp if !part.spans.is_empty() => Self::from(whatsapp::render(part)),
            _ => part.clone(),
        };
        let parts = match limit {
            Some(limit) => split_formatted(&shown, limit, |part| limit.measure(&written(part).text)),
            None => vec![shown],
        };
        parts.iter().map(written).collect()
    }
}

/// How a channel shows formatting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Markup {
    /// Not at all: it is sent plain text with its links written out.
    #[default]
    Plain,
    /// As it likes: it is sent the text with its [spans](crate::content::Content::spans).
    Spans,
    /// By WhatsApp's marks: it is sent a text with them.
    WhatsApp,
}

/// A span with its place in UTF-16 code units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utf16Span<'a> {
    /// Where it begins.
    pub offset: usize,
    /// How long it is.
    pub length: usize,
    /// How it is shown.
    pub style: &'a Style,
}

impl From<&str> for Formatted {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<String> for Formatted {
    fn from(text: String) -> Self {
        Self { text, spans: Vec::new() }
    }
}

impl<T: Into<Self>> Add<T> for Formatted {
    type Output = Self;

    fn add(mut self, other: T) -> Self {
        let Self { text, spans } = other.into();
        let from = self.text.len();
        self.text.push_str(&text);
        let moved = spans.into_iter().map(|span| Span::new(span.start + from..span.end + from, span.style));
        self.spans.extend(moved);
        Self::new(self.text, self.spans)
    }
}
