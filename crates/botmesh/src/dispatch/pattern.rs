use std::cell::OnceCell;
use std::fmt;

use regex::Regex;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use crate::core::inbound::{Inbound, InboundBody};

/// Which messages a handler answers.
///
/// A text means the whole message: case, accents, spaces around it and repeated spaces do not matter. The first route
/// that matches wins, and a conversation gets the message before any route.
#[derive(Clone)]
#[non_exhaustive]
pub enum Pattern {
    /// One of these texts.
    Text(Vec<String>),
    /// A regular expression, somewhere in the text; its groups are the handler's arguments.
    Regex(Regex),
    /// A kind of message.
    Kind(Kind),
    /// A command such as `/start`; what follows it is argument 1. `/start@name` matches only if the name is the bot's.
    Command(String),
    /// A pressed button whose id begins with this; the rest of the id is argument 1.
    Interaction(String),
    /// A system event of this name, in the channel's word.
    System(String),
    /// Both; the arguments of the second follow those of the first.
    And(Box<Pattern>, Box<Pattern>),
    /// The first that matches.
    Or(Box<Pattern>, Box<Pattern>),
    /// The message does not match.
    Not(Box<Pattern>),
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(texts) => write!(f, "text {texts:?}"),
            Self::Regex(regex) => write!(f, "regex {regex}"),
            Self::Kind(kind) => write!(f, "{kind:?}"),
            Self::Command(name) => write!(f, "/{name}"),
            Self::Interaction(prefix) => write!(f, "interaction {prefix}"),
            Self::System(event) => write!(f, "system {event}"),
            Self::And(a, b) => write!(f, "({a:?} and {b:?})"),
            Self::Or(a, b) => write!(f, "({a:?} or {b:?})"),
            Self::Not(inner) => write!(f, "not {inner:?}"),
        }
    }
}

/// A kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Anything a user says: all kinds but reactions, edits, system events and unsupported ones.
    Any,
    /// A text.
    Text,
    /// A picture.
    Image,
    /// A voice note or audio file.
    Audio,
    /// A video.
    Video,
    /// A file.
    Document,
    /// A sticker.
    Sticker,
    /// A place.
    Location,
    /// A contact card.
    Contact,
    /// A reaction.
    Reaction,
    /// A pressed button or chosen row.
    Interaction,
    /// A vote in a poll.
    PollVote,
    /// An edited message.
    Edit,
    /// A system event.
    System,
    /// A kind the channel cannot read.
    Unsupported,
}

/// The kinds of messages, as patterns: `bot.when(IMAGE, …)`.
pub mod kinds {
    use super::Kind;

    /// Anything a user says.
    pub const ANY: Kind = Kind::Any;
    /// A text.
    pub const TEXT: Kind = Kind::Text;
    /// A picture.
    pub const IMAGE: Kind = Kind::Image;
    /// A voice note or audio file.
    pub const AUDIO: Kind = Kind::Audio;
    /// A video.
    pub const VIDEO: Kind = Kind::Video;
    /// A file.
    pub const DOCUMENT: Kind = Kind::Document;
    /// A sticker.
    pub const STICKER: Kind = Kind::Sticker;
    /// A place.
    pub const LOCATION: Kind = Kind::Location;
    /// A contact card.
    pub const CONTACT: Kind = Kind::Contact;
    /// A reaction.
    pub const REACTION: Kind = Kind::Reaction;
    /// A pressed button or chosen row.
    pub const INTERACTION: Kind = Kind::Interaction;
    /// A vote in a poll.
    pub const POLL_VOTE: Kind = Kind::PollVote;
    /// An edited message.
    pub const EDIT: Kind = Kind::Edit;
    /// A system event.
    pub const SYSTEM: Kind = Kind::System;
    /// A kind the channel cannot read.
    pub const UNSUPPORTED: Kind = Kind::Unsupported;
}

/// A command such as `/start`.
pub fn command(name: impl Into<String>) -> Pattern {
    let name: String = name.into();
    Pattern::Command(name.trim_start_matches('/').to_owned())
}

/// A pressed button whose id begins with `prefix`.
pub fn interaction(prefix: impl Into<String>) -> Pattern {
    Pattern::Interaction(prefix.into())
}

/// A system event of this name, in the channel's word, such as Telegram's `pre_checkout_query`. What the channel says of it is the
/// `detail` of [`InboundBody::System`].
pub fn system(event: impl Into<String>) -> Pattern {
    Pattern::System(event.into())
}

/// A regular expression over the text.
///
/// # Panics
/// If the expression is invalid; use [`Regex::new`] for one that is not fixed in the source.
pub fn regex(expression: &str) -> Pattern {
    match Regex::new(expression) {
        Ok(regex) => Pattern::Regex(regex),
        Err(error) => panic!("the pattern is not a regular expression: {error}"),
    }
}

impl Pattern {
    /// This and `other`.
    #[must_use]
    pub fn and(self, other: impl Into<Pattern>) -> Self {
        Self::And(Box::new(self), Box::new(other.into()))
    }

    /// This, else `other`.
    #[must_use]
    pub fn or(self, other: impl Into<Pattern>) -> Self {
        Self::Or(Box::new(self), Box::new(other.into()))
    }

    /// Everything else.
    #[must_use]
    pub fn negated(self) -> Self {
        Self::Not(Box::new(self))
    }

    /// The arguments for the handler, if the message matches.
    pub(super) fn matches(&self, subject: &Subject<'_>) -> Option<Vec<String>> {
        match self {
            Self::Text(texts) => (subject.is_text() && texts.contains(subject.folded())).then(Vec::new),
            Self::Regex(regex) => {
                let groups = subject.is_text().then(|| regex.captures(subject.text)).flatten()?;
                Some(
                    groups
                        .iter()
                        .skip(1)
                        .map(|group| group.map_or("", |group| group.as_str()).to_owned())
                        .collect(),
                )
            }
            Self::Kind(kind) => subject.is(*kind).then(Vec::new),
            Self::Command(name) => subject.command(name).map(|rest| vec![rest.to_owned()]),
            Self::Interaction(prefix) => match &subject.inbound.body {
                InboundBody::Interaction { id, .. } => {
                    id.strip_prefix(prefix.as_str()).map(|rest| vec![rest.to_owned()])
                }
                _ => None,
            },
            Self::System(name) => match &subject.inbound.body {
                InboundBody::System { event, .. } => (event == name).then(Vec::new),
                _ => None,
            },
            Self::And(a, b) => {
                let mut args = a.matches(subject)?;
                args.extend(b.matches(subject)?);
                Some(args)
            }
            Self::Or(a, b) => a.matches(subject).or_else(|| b.matches(subject)),
            Self::Not(inner) => inner.matches(subject).is_none().then(Vec::new),
        }
    }
}

impl From<&str> for Pattern {
    fn from(text: &str) -> Self {
        Self::Text(vec![fold(text)])
    }
}

impl From<String> for Pattern {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl<const N: usize> From<[&str; N]> for Pattern {
    fn from(texts: [&str; N]) -> Self {
        Self::Text(texts.iter().map(|text| fold(text)).collect())
    }
}

impl From<Vec<String>> for Pattern {
    fn from(texts: Vec<String>) -> Self {
        Self::Text(texts.iter().map(|text| fold(text)).collect())
    }
}

impl From<Regex> for Pattern {
    fn from(regex: Regex) -> Self {
        Self::Regex(regex)
    }
}

impl From<Kind> for Pattern {
    fn from(kind: Kind) -> Self {
        Self::Kind(kind)
    }
}

/// A text without what does not matter when people type: case, accents, surrounding and repeated spaces.
pub(crate) fn fold(text: &str) -> String {
    let plain: String = text.nfkd().filter(|c| !is_combining_mark(*c)).flat_map(char::to_lowercase).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A message as patterns see it.
pub(super) struct Subject<'a> {
    inbound: &'a Inbound,
    text: &'a str,
    /// Made when the first pattern asks for it.
    folded: OnceCell<String>,
    username: Option<&'a str>,
}

impl<'a> Subject<'a> {
    pub(super) fn new(inbound: &'a Inbound, text: &'a str, username: Option<&'a str>) -> Self {
        Self { inbound, text, folded: OnceCell::new(), username }
    }

    fn folded(&self) -> &String {
        self.folded.get_or_init(|| fold(self.text))
    }

    /// Whether the message says something in words; edits and events do not count.
    fn is_text(&self) -> bool {
        self.inbound.body.is_answer() && !self.text.is_empty()
    }

    fn is(&self, kind: Kind) -> bool {
        use InboundBody as Body;
        match kind {
            Kind::Any => self.inbound.body.is_answer(),
            Kind::Text => matches!(self.inbound.body, Body::Text { .. }),
            Kind::Image => matches!(self.inbound.body, Body::Image(_)),
            Kind::Audio => matches!(self.inbound.body, Body::Audio(_)),
            Kind::Video => matches!(self.inbound.body, Body::Video(_)),
            Kind::Document => matches!(self.inbound.body, Body::Document(_)),
            Kind::Sticker => matches!(self.inbound.body, Body::Sticker(_)),
            Kind::Location => matches!(self.inbound.body, Body::Location { .. }),
            Kind::Contact => matches!(self.inbound.body, Body::Contact { .. }),
            Kind::Reaction => matches!(self.inbound.body, Body::Reaction { .. }),
            Kind::Interaction => matches!(self.inbound.body, Body::Interaction { .. }),
            Kind::PollVote => matches!(self.inbound.body, Body::PollVote { .. }),
            Kind::Edit => matches!(self.inbound.body, Body::Edit { .. }),
            Kind::System => matches!(self.inbound.body, Body::System { .. }),
            Kind::Unsupported => matches!(self.inbound.body, Body::Unsupported { .. }),
        }
    }

    /// What follows the command `name`.
    fn command(&self, name: &str) -> Option<&'a str> {
        if !self.is_text() {
            return None;
        }
        let (word, rest) = self.text.split_once(char::is_whitespace).unwrap_or((self.text, ""));
        let word = word.strip_prefix('/')?;
        let (command, addressee) = match word.split_once('@') {
            Some((command, addressee)) => (command, Some(addressee)),
            None => (word, None),
        };
        let for_us = addressee.is_none_or(|addressee| {
            self.username.is_some_and(|username| addressee.eq_ignore_ascii_case(username))
        });
        (for_us && command.eq_ignore_ascii_case(name)).then(|| rest.trim())
    }
}
