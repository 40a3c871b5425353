//! Long texts, and albums for channels that have none: one send for each part.

use super::Egress;
use crate::core::content::{Content, ContentBody};
use crate::core::error::{ChannelError, ErrorClass, Phase, StoreError};
use crate::core::id::SendKey;
use crate::core::journal::{Change, OutboxRecord, Part, Send, Stored};
use crate::core::kv::Version;
use crate::core::provider::{Capabilities, TextLimit, TextUnit};
use crate::core::split::SPLITTER;
use crate::core::time::Timestamp;
use crate::world::OpenJournal;

/// The most messages that one text may become.
const MAX_PARTS: usize = 1000;

/// Of media that no caption is shown with.
const NO_CAPTION: TextLimit = TextLimit { max: 0, unit: TextUnit::Utf16 };

/// Cuts content into what the channel takes in one message, and writes its formatting as the channel shows it: what it
/// answers stays with the first, the buttons go with the last. Media whose caption is too long is followed by it as a text, and
/// so is an album that has buttons.
pub(super) fn cut(content: Content, takes: Capabilities) -> Result<Vec<Content>, ChannelError> {
    if let ContentBody::Album { items } = &content.body {
        check_album(items.len())?;
        if !takes.albums {
            return one_by_one(content, takes);
        }
    }
    if let ContentBody::Location { latitude, longitude, .. } = &content.body
        && !(latitude.is_finite() && longitude.is_finite())
    {
        // JSON has no such number: the record could not be read back.
        let detail = format!("there is no place at {latitude}, {longitude}");
        return Err(ChannelError::new(ErrorClass::UnsupportedContent, Phase::NotWritten, detail));
    }
    if is_caption_too_long(&content, takes) || is_album_with_buttons(&content)? {
        let mut text = Content::from(content.formatted());
        text.buttons.clone_from(&content.buttons);
        let media = Content { buttons: Vec::new(), ..content.with_text("") };
        return Ok(std::iter::once(media).chain(cut(text, takes)?).collect());
    }
    let limit = takes.text_limit.filter(|_| matches!(content.body, ContentBody::Text { .. }));
    if content.spans.is_empty() && !is_too_long(&content, limit) {
        return Ok(vec![content]);
    }
    let mut texts = content.formatted().parts(takes.markup, limit);
    if texts.len() > MAX_PARTS {
        let detail = format!("the text would become {} messages, and {MAX_PARTS} is the most", texts.len());
        return Err(ChannelError::new(ErrorClass::PayloadTooLarge, Phase::NotWritten, detail));
    }
    if texts.len() == 1 {
        return Ok(texts.into_iter().map(|text| content.clone().with_text(text)).collect());
    }
    let mut parts: Vec<Content> = texts.drain(..).map(Content::from).collect();
    if let Some(first) = parts.first_mut() {
        first.reply_to = content.reply_to;
    }
    if let Some(last) = parts.last_mut() {
        last.buttons = content.buttons;
    }
    Ok(parts)
}

fn check_album(items: usize) -> Result<(), ChannelError> {
    if (2..=ContentBody::MAX_ALBUM).contains(&items) {
        return Ok(());
    }
    let detail = format!("an album has 2 to {} items, and this one has {items}", ContentBody::MAX_ALBUM);
    Err(ChannelError::new(ErrorClass::UnsupportedContent, Phase::NotWritten, detail))
}

/// An album as a message for each item, each of which may be cut in turn.
fn one_by_one(content: Content, takes: Capabilities) -> Result<Vec<Content>, ChannelError> {
    let ContentBody::Album { items } = content.body else { return Ok(vec![content]) };
    let mut messages: Vec<Content> = items.into_iter().map(|item| ContentBody::from(item).into()).collect();
    if let Some(first) = messages.first_mut() {
        (first.spans, first.reply_to) = (content.spans, content.reply_to);
    }
    if let Some(last) = messages.last_mut() {
        last.buttons = content.buttons;
    }
    let mut parts = Vec::with_capacity(messages.len());
    for message in messages {
        parts.extend(cut(message, takes)?);
    }
    Ok(parts)
}

/// Whether it is an album whose buttons go with its caption, as no channel shows them with the album itself.
fn is_album_with_buttons(content: &Content) -> Result<bool, ChannelError> {
    let is = matches!(content.body, ContentBody::Album { .. }) && !content.buttons.is_empty();
    if is && content.readable_text().is_empty() {
        let detail = "an album cannot have buttons; give it a caption, which follows it with them";
        return Err(ChannelError::new(ErrorClass::UnsupportedContent, Phase::NotWritten, detail));
    }
    Ok(is)
}

/// Whether the caption of media is longer than the channel takes, as the channel shows it.
fn is_caption_too_long(content: &Content, takes: Capabilities) -> bool {
    let limit = match &content.body {
        ContentBody::Sticker(_) => Some(NO_CAPTION),
        ContentBody::Audio(_) if !takes.audio_captions => Some(NO_CAPTION),
        ContentBody::Image(_)
        | ContentBody::Audio(_)
        | ContentBody::Video(_)
        | ContentBody::Document(_)
        | ContentBody::Album { .. } => takes.caption_limit,
        _ => None,
    };
    let Some(limit) = limit else { return false };
    let shown = content.formatted().parts(takes.markup, None);
    shown.iter().map(|caption| limit.measure(caption.text())).sum::<usize>() > limit.max
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

/// A send in one or more parts, all of which wait.
pub(super) struct Parts {
    pub(super) first: OutboxRecord,
    /// What journals the others. They must be durable before the first is journaled: where it is, all are.
    pub(super) others: Vec<Change>,
    /// The key of the last one.
    pub(super) last: SendKey,
    /// What the key of the first stands for already.
    pub(super) known: Option<Stored<OutboxRecord>>,
}

impl Egress {
    /// Puts a send together from its parts. Their keys are `key#2`, `key#3` and so on; a send that has such a key for
    /// reasons of its own keeps it. Parts that a crash left without a first one are written over. With `later`, they wait
    /// behind something until it is time, or until the chat is sent something else.
    pub(super) async fn parts(
        &self,
        open: &OpenJournal,
        send: &Send,
        contents: Vec<Content>,
        order: i64,
        now: Timestamp,
        later: Option<(&SendKey, Timestamp)>,
    ) -> Result<Parts, StoreError> {
        let mut keys: Vec<SendKey> = (1..=contents.len())
            .map(|n| if n == 1 { send.key.clone() } else { SendKey::from(format!("{}#{n}", send.key)) })
            .collect();
        let several = keys.len() > 1;
        let mut there = match several {
            true => open.journal.outbox().get_all(&keys).await?.into_iter(),
            false => Vec::new().into_iter(),
        };
        let known = there.next().flatten();
        let mut left: Vec<Option<Version>> = vec![None; keys.len()];
        for (n, stored) in there.enumerate().filter_map(|(n, stored)| Some((n + 1, stored?))) {
            if is_foreign_part(&stored.record) {
                left[n] = Some(stored.version);
            } else {
                keys[n] = SendKey::from(format!("{}~part", keys[n]));
            }
        }
        let cut = known.as_ref().and_then(|known| known.record.part.clone());
        let record = |n: usize, content: Content| {
            let (key, chat, source) = (keys[n].clone(), send.chat.clone(), send.source.clone());
            let fingerprint = send.fingerprint.filter(|_| n == 0);
            let record = OutboxRecord::waiting(Send { key, chat, content, fingerprint, source }, order, now);
            let record = match later.map(|(behind, due)| record.wait_behind(behind.clone(), due, now)) {
                Some(Ok(waiting)) => waiting,
                _ => record,
            };
            if !several {
                return record;
            }
            record.as_part(Part {
                // Pieces of a part keep its place.
                number: cut.as_ref().map_or(u32::try_from(n + 1).unwrap_or(u32::MAX), |cut| cut.number),
                previous: n.checked_sub(1).map(|before| keys[before].clone()),
                next: keys.get(n + 1).or_else(|| cut.as_ref()?.next.as_ref()).cloned(),
                splitter: SPLITTER,
            })
        };
        let mut records = contents.into_iter().enumerate().map(|(n, content)| record(n, content));
        let first = records.next().unwrap_or_else(|| record(0, send.content.clone()));
        let others = records.zip(&left[1..]).filter_map(|(record, left)| match left {
            None => Some(Change::insert(&record)),
            // With a first one, they are its own.
            Some(_) if known.is_some() => None,
            Some(version) => Some(Change::update(*version, &record)),
        });
        let others = others.collect();
        let last = keys.last().unwrap_or(&send.key).clone();
        Ok(Parts { first, others, last, known })
    }

    /// Journals the parts after the first one.
    pub(super) async fn journal_others(
        &self,
        open: &OpenJournal,
        others: Vec<Change>,
        waits: bool,
    ) -> Result<(), StoreError> {
        if others.is_empty() {
            return Ok(());
        }
        let outcomes = match waits {
            true => open.journal.commit_patiently(others, &self.world.abort).await?,
            false => open.journal.commit(others).await?,
        };
        self.count_journaled(&outcomes);
        Ok(())
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
