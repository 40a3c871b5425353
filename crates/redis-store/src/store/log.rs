//! The message log: one stream a chat, whose entries have the positions as ids.

use botmesh_core::Bytes;
use botmesh_core::error::StoreError;
use botmesh_core::id::{ChatId, MessageId};
use botmesh_core::store::{Direction, LogEntry, LogPosition};
use botmesh_core::time::Timestamp;

use super::{RedisStore, text};
use crate::client::{Reply, Unexpected};
use crate::error::Access;
use crate::scripts::APPEND_LOG;

impl RedisStore {
    /// One script, so that all of it happens or nothing.
    pub(super) async fn append(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut chats: Vec<&ChatId> = Vec::new();
        let kept = self.client.config().log_length.unwrap_or(0);
        let mut args = vec![Bytes::from(kept.to_string())];
        for entry in entries {
            let known = chats.iter().position(|chat| **chat == entry.chat);
            let number = known.unwrap_or_else(|| {
                chats.push(&entry.chat);
                chats.len() - 1
            });
            let from = match entry.direction {
                Direction::In => "in",
                Direction::Out => "out",
            };
            args.extend([
                // The first key is the clock, and Lua counts from 1.
                (number + 2).to_string().into(),
                text(from),
                entry.at.as_millis().to_string().into(),
                text(entry.message.as_str()),
                text(&entry.text),
            ]);
        }
        let mut keys = vec![self.keys.clock()];
        keys.extend(chats.into_iter().map(|chat| self.keys.log(chat.as_str())));
        self.client.script("append_log", Access::Write, &APPEND_LOG, &keys, args).await.map(drop)
    }

    pub(super) async fn read_log(
        &self,
        chat: &ChatId,
        before: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<(LogPosition, LogEntry)>, StoreError> {
        let operation = "log";
        if limit == 0 {
            return Ok(Vec::new());
        }
        let end = before.map_or_else(|| "+".to_owned(), |before| format!("({}-0", before.0));
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let args = [&end, "-", "COUNT", &most.to_string()].map(text);
        let args = std::iter::once(self.keys.log(chat.as_str())).chain(args).collect();
        let reply = self.client.command(operation, Access::Read, "XREVRANGE", args).await?;
        let strange = |what| self.strange(operation, Access::Read, what);
        let entries = reply.list().map_err(strange)?;
        let damaged = || self.damaged(operation, &format!("the log of chat {chat}"));
        let read = |entry: Reply| read_entry(chat, entry).map_err(strange)?.ok_or_else(damaged);
        entries.into_iter().map(read).collect()
    }
}

/// An entry of a stream: its id, and its fields with their values. `None` if it is damaged.
fn read_entry(chat: &ChatId, entry: Reply) -> Result<Option<(LogPosition, LogEntry)>, Unexpected> {
    let mut parts = entry.list()?.into_iter();
    let (Some(id), Some(fields)) = (parts.next(), parts.next()) else { return Ok(None) };
    let (id, fields) = (id.bytes()?.unwrap_or_default(), fields.texts()?);
    let field = |name: &str| {
        let pair = fields.chunks_exact(2).find(|pair| pair[0] == name)?;
        std::str::from_utf8(&pair[1]).ok()
    };
    let read = || {
        let position = std::str::from_utf8(&id).ok()?.split_once('-')?.0.parse().ok()?;
        let direction = match field("from")? {
            "in" => Direction::In,
            "out" => Direction::Out,
            _ => return None,
        };
        let at = Timestamp::from_millis(field("at")?.parse().ok()?);
        let (message, text) = (MessageId::from(field("id")?), field("text")?.to_owned());
        Some((LogPosition(position), LogEntry { chat: chat.clone(), direction, at, message, text }))
    };
    Ok(read())
}
