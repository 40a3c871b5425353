//! Long texts: one send for each part.

use super::Egress;
use crate::core::content::{Content, ContentBody};
use crate::core::error::{ChannelError, ErrorClass, Phase, StoreError};
use crate::core::id::SendKey;
use crate::core::journal::{OutboxRecord, Part, Send, Stored};
use crate::core::provider::TextLimit;
use crate::core::split::{SPLITTER, split};
use crate::core::time::Timestamp;
use crate::world::OpenJournal;

/// The most messages that one text may become.
const MAX_PARTS: usize = 1000;

/// Cuts content into what the channel takes in one message: what it answers stays with the first, the buttons go with the
/// last.
pub(super) fn cut(content: Content, limit: Option<TextLimit>) -> Result<Vec<Content>, ChannelError> {
    if let ContentBody::Location { latitude, longitude, .. } = &content.body
        && !(latitude.is_finite() && longitude.is_finite())
    {
        // JSON has no such number: the record could not be read back.
        let detail = format!("there is no place at {latitude}, {longitude}");
        return Err(ChannelError::new(ErrorClass::UnsupportedContent, Phase::NotWritten, detail));
    }
    let (Some(limit), ContentBody::Text { text }) = (limit, &content.body) else { return Ok(vec![content]) };
    if !is_too_long(&content, Some(limit)) {
        return Ok(vec![content]);
    }
    let texts = split(text, limit);
    if texts.len() > MAX_PARTS {
        let detail = format!("the text would become {} messages, and {MAX_PARTS} is the most", texts.len());
        return Err(ChannelError::new(ErrorClass::PayloadTooLarge, Phase::NotWritten, detail));
    }
    let mut parts: Vec<Content> = texts.into_iter().map(Content::text).collect();
    if let Some(first) = parts.first_mut() {
        first.reply_to = content.reply_to;
    }
    if let Some(last) = parts.last_mut() {
        last.buttons = content.buttons;
    }
    Ok(parts)
}

pub(super) fn is_too_long(content: &Content, limit: Option<TextLimit>) -> bool {
    match (limit, &content.body) {
        // No unit is smaller than a byte.
        (Some(limit), ContentBody::Text { text }) => {
            text.len() > limit.max && limit.measure(text) > limit.max
        }
        _ => false,
    }
}

/// A key of its own for a send whose key is that of another text's part.
pub(super) fn own_key(key: &SendKey) -> SendKey {
    SendKey::from(format!("{key}~own"))
}

/// Whether a record is a part of another text and only by chance under the key of an independent send.
pub(super) fn is_foreign_part(record: &OutboxRecord) -> bool {
    record.previous_part().is_some()
}

impl Egress {
    /// The keys of the parts after the first: `key#2`, `key#3` and so on. A send that has such a key for reasons of its own
    /// keeps it.
    async fn keys_of_parts(
        &self,
        open: &OpenJournal,
        key: &SendKey,
        count: usize,
    ) -> Result<Vec<SendKey>, StoreError> {
        if count < 2 {
            return Ok(vec![key.clone()]);
        }
        let wanted: Vec<SendKey> = (2..=count).map(|n| SendKey::from(format!("{key}#{n}"))).collect();
        let there = open.journal.outbox().get_all(&wanted).await?;
        let keys = wanted.into_iter().zip(there).map(|(wanted, there)| match there {
            Some(stored) if !is_foreign_part(&stored.record) => SendKey::from(format!("{wanted}~part")),
            _ => wanted,
        });
        Ok(std::iter::once(key.clone()).chain(keys).collect())
    }

    /// The records of a send in one or more parts, all of which wait.
    pub(super) async fn waiting_parts(
        &self,
        open: &OpenJournal,
        send: &Send,
        contents: Vec<Content>,
        order: i64,
        now: Timestamp,
    ) -> Result<Vec<OutboxRecord>, StoreError> {
        let keys = self.keys_of_parts(open, &send.key, contents.len()).await?;
        let records = contents.into_iter().enumerate().map(|(i, content)| {
            let part = Part {
                number: u32::try_from(i + 1).unwrap_or(u32::MAX),
                previous: i.checked_sub(1).and_then(|before| keys.get(before).cloned()),
                next: keys.get(i + 1).cloned(),
                splitter: SPLITTER,
            };
            let fingerprint = send.fingerprint.filter(|_| i == 0);
            let (key, chat, source) = (keys[i].clone(), send.chat.clone(), send.source.clone());
            let record = OutboxRecord::waiting(Send { key, chat, content, fingerprint, source }, order, now);
            if keys.len() > 1 { record.as_part(part) } else { record }
        });
        Ok(records.collect())
    }

    /// A send and the other parts of its text, in order.
    pub(super) async fn parts_of(
        &self,
        open: &OpenJournal,
        key: &SendKey,
    ) -> Result<Vec<Stored<OutboxRecord>>, StoreError> {
        let mut parts: Vec<Stored<OutboxRecord>> = Vec::new();
        let mut next = Some(key.clone());
        while let Some(key) = next.filter(|_| parts.len() < MAX_PARTS) {
            let Some(part) = open.journal.outbox().get(&key).await? else { break };
            next = part.record.next_part().cloned();
            parts.push(part);
        }
        Ok(parts)
    }
}
