use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Answer;
use super::talk::Fed;
use crate::core::content::Content;
use crate::core::error::SendError;
use crate::core::hash::stable_hash;
use crate::core::id::{MessageId, SendKey};
use crate::core::inbound::Inbound;
use crate::egress::Sent;
use crate::events::describe;

/// Bounds of what one conversation remembers.
const MAX_ENTRIES: usize = 1000;
const MAX_BYTES: usize = 256 << 10;
/// How much of a history an event shows.
const SHOWN: usize = 20;

/// One thing that replayable code did. Readable by people and by other languages.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "did", rename_all = "snake_case")]
pub(super) enum Entry {
    Said { what: String, hash: String, outcome: Outcome },
    Answered { text: String, inbound: Box<Inbound> },
    TimedOut,
    Ran { name: String, result: Result<Value, String> },
    Slept,
}

/// What became of something said.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Sent { key: SendKey, message: Option<MessageId> },
    Deferred { key: SendKey },
    Failed { reason: String },
}

impl Outcome {
    /// `None` if the conversation does not go on after it.
    pub(super) fn of(result: &Result<Sent, SendError>) -> Option<Self> {
        match result {
            Ok(sent) => Some(Self::Sent { key: sent.key.clone(), message: sent.message.clone() }),
            Err(SendError::Deferred { key }) => Some(Self::Deferred { key: key.clone() }),
            Err(SendError::LeaseLost(_) | SendError::Journal(_) | SendError::NotLeader(_)) => None,
            Err(error) => Some(Self::Failed { reason: describe(error) }),
        }
    }

    pub(super) fn result(self) -> Result<Sent, SendError> {
        match self {
            Self::Sent { key, message } => Ok(Sent { key, message, deduped: true }),
            Self::Deferred { key } => Err(SendError::Deferred { key }),
            Self::Failed { reason } => Err(SendError::Stopped { reason }),
        }
    }
}

/// What replayable code does next.
pub(super) enum Doing<'a> {
    Say(&'a Content),
    Wait,
    Run(&'a str),
    Sleep,
}

impl Doing<'_> {
    fn is(&self, entry: &Entry) -> bool {
        match (self, entry) {
            (Self::Say(content), Entry::Said { hash, .. }) => content_hash(content) == *hash,
            (Self::Run(name), Entry::Ran { name: recorded, .. }) => name == recorded,
            (Self::Wait, Entry::Answered { .. } | Entry::TimedOut) | (Self::Sleep, Entry::Slept) => true,
            _ => false,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Say(content) => format!("say {:?}", shown(content)),
            Self::Wait => "wait".to_owned(),
            Self::Run(name) => format!("run `{name}`"),
            Self::Sleep => "sleep".to_owned(),
        }
    }
}

impl Entry {
    pub(super) fn said(content: &Content, outcome: Outcome) -> Self {
        Self::Said { what: shown(content), hash: content_hash(content), outcome }
    }

    /// The answer is kept without its media's live token.
    pub(super) fn fed(fed: &Fed) -> Self {
        match fed {
            Fed::Answer(answer) => {
                let inbound = answer.inbound().with_media_token(Value::Null);
                Self::Answered { text: answer.text().to_owned(), inbound: Box::new(inbound) }
            }
            Fed::TimedOut => Self::TimedOut,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Said { what, .. } => format!("say {what:?}"),
            Self::Answered { .. } | Self::TimedOut => "wait".to_owned(),
            Self::Ran { name, .. } => format!("run `{name}`"),
            Self::Slept => "sleep".to_owned(),
        }
    }
}

impl From<Entry> for Option<Fed> {
    fn from(entry: Entry) -> Self {
        match entry {
            Entry::Answered { text, inbound } => Some(Fed::Answer(Answer::recorded(text, *inbound))),
            Entry::TimedOut => Some(Fed::TimedOut),
            _ => None,
        }
    }
}

fn content_hash(content: &Content) -> String {
    let json = serde_json::to_vec(content).unwrap_or_default();
    format!("{:016x}", stable_hash(json))
}

fn shown(content: &Content) -> String {
    content.readable_text().chars().take(60).collect()
}

/// What replayable code did so far, while it is being run again and afterwards.
#[derive(Debug, Default)]
pub(super) struct History {
    entries: Vec<Entry>,
    /// How many of them the code has done again.
    at: usize,
    bytes: usize,
    fault: Option<Fault>,
}

/// Why replayable code cannot go on.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    Diverged(String),
    TooLong,
}

/// What is known of what the code does next.
pub(super) enum Known {
    /// It was done before.
    Done(Entry),
    /// It is done now.
    New,
    /// The code does something else than it did before.
    Never,
}

impl History {
    pub(super) fn read(stored: Value) -> serde_json::Result<Self> {
        let entries: Vec<Entry> = serde_json::from_value(stored)?;
        let bytes = entries.iter().map(size).sum();
        Ok(Self { entries, bytes, ..Self::default() })
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    pub(super) fn next(&mut self, doing: &Doing<'_>) -> Known {
        if self.fault.is_some() {
            return Known::Never;
        }
        let Some(entry) = self.entries.get(self.at) else { return Known::New };
        if doing.is(entry) {
            self.at += 1;
            return Known::Done(entry.clone());
        }
        let recorded = list(self.entries.iter().map(Entry::describe));
        let now = self.entries[..self.at].iter().map(Entry::describe).chain([doing.describe()]);
        let now = list(now);
        self.fault = Some(Fault::Diverged(format!(
            "its code does something else than before: it did [{recorded}], now it does [{now}]"
        )));
        Known::Never
    }

    pub(super) fn record(&mut self, entry: Entry) {
        self.bytes += size(&entry);
        self.entries.push(entry);
        self.at = self.entries.len();
        if self.at > MAX_ENTRIES || self.bytes > MAX_BYTES {
            self.fault = Some(Fault::TooLong);
        }
    }
}

fn size(entry: &Entry) -> usize {
    serde_json::to_vec(entry).map_or(0, |json| json.len())
}

/// The last of them, in one line.
fn list(entries: impl Iterator<Item = String>) -> String {
    let entries: Vec<_> = entries.collect();
    let left_out = entries.len().saturating_sub(SHOWN);
    let mut text = if left_out > 0 { format!("{left_out} more, ") } else { String::new() };
    text.push_str(&entries[left_out..].join(", "));
    text
}

impl Fault {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Diverged(reason) => reason.clone(),
            Self::TooLong => format!(
                "the conversation did more than {MAX_ENTRIES} things or remembers more than {MAX_BYTES} bytes, too much to be \
                 run again; let it end by entering another conversation with `c.enter_with(..)`"
            ),
        }
    }
}
