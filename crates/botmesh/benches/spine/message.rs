//! The message that every program here handles.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use botmesh::core::Bytes;
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{InboxRecord, InboxState, OutboxRecord, OutboxState, Record};
use botmesh::core::kv::{Expect, Op};

use crate::bot::{Backend, Running, RuntimeKind};

/// What is asked and answered: as long as people write.
const ASKED: &str = "Good morning! I would like to see the doctor on Thursday afternoon, if that is possible. It is about my knee.";
pub(crate) const ANSWERED: &str = "Of course. Thursday the 14th at 16:30 is free with Dr. Fernandez: shall I book it for you, or is another \
     hour better?";

/// How far the chat's number is from the beginning of an inbox key: `im/chat-`.
const CHAT_AT: usize = 8;
const CHAT_DIGITS: usize = 6;

/// A message of a chat. Numbers are padded, so that each message costs the same bytes.
pub(crate) fn inbound(chat: u32, number: u64) -> Inbound {
    Inbound::text(format!("{number:010}"), format!("chat-{chat:06}"), ASKED)
}

/// The keys of a message's inbox and outbox records.
pub(crate) fn keys(chat: u32, number: u64) -> [String; 2] {
    [format!("im/chat-{chat:06}/{number:010}"), format!("om/chat-{chat:06}/{number:010}:0")]
}

/// The chat to which an inbox key belongs.
pub(crate) fn chat_of(key: &[u8]) -> Option<u32> {
    let digits = key.get(CHAT_AT..CHAT_AT + CHAT_DIGITS)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// What one message writes: three commits.
#[derive(Clone)]
pub(crate) struct Template {
    pub(crate) commits: Vec<Vec<Write>>,
}

/// One write of the template.
#[derive(Clone)]
pub(crate) struct Write {
    /// 0 for the inbox record, 1 for the outbox record.
    pub(crate) journal: usize,
    pub(crate) insert: bool,
    pub(crate) value: Bytes,
    pub(crate) bucket: u8,
    /// Its place in the bucket. It grows with each message, so that rows of the same time are neighbours in the index.
    pub(crate) place: Place,
}

/// What a place counts, and from where.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// The order of arrival: each record has one of its own.
    Order(i64),
    /// The milliseconds at which the record was finished.
    Finished(i64),
}

impl Template {
    /// The bytes of values that one message writes.
    pub(crate) fn bytes(&self) -> usize {
        self.commits.iter().flatten().map(|write| write.value.len()).sum()
    }
}

/// Lets a bot handle one message and notes what it writes.
pub(crate) fn capture() -> Template {
    let runtime = RuntimeKind::Current.build();
    let noted: Arc<Mutex<Vec<Vec<Op>>>> = Arc::default();
    let note = Arc::clone(&noted);
    let running = runtime.block_on(Running::start(Backend::Memory, Path::new(""), 1));
    running.probe.note_commits(move |ops| {
        note.lock().unwrap_or_else(PoisonError::into_inner).push(ops.to_vec());
    });
    runtime.block_on(async {
        running.cycle(0, 0).await;
        running.stop().await;
    });
    let noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
    // The last one ends the session.
    let commits = noted.iter().map(|ops| ops.iter().filter_map(write).collect::<Vec<_>>());
    let template = Template { commits: commits.filter(|writes| !writes.is_empty()).collect() };
    assert_eq!(template.commits.len(), 3, "a message with one reply is three commits");
    template
}

fn write(op: &Op) -> Option<Write> {
    let Op::Put { key, expect, value, index } = op else { return None };
    let journal = keys(0, 0).iter().position(|known| known.as_bytes() == &key[..])?;
    assert!(index.due.is_none(), "nothing of a message that succeeds is due later");
    let (bucket, place) = index.list?;
    let finished = [InboxRecord::bucket(InboxState::Done), OutboxRecord::bucket(OutboxState::Sent)];
    let place = if finished.contains(&bucket) { Place::Finished(place) } else { Place::Order(place) };
    Some(Write { journal, insert: *expect == Expect::Absent, value: value.clone(), bucket, place })
}
