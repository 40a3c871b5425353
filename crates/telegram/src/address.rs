//! What a chat's id says: the chat itself, and through which topic, business account or query it is reached.

use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::ChatId;
use serde_json::{Map, Value};

/// Where a message came from and an answer goes to.
///
/// | id | is |
/// | - | - |
/// | `5025045066`, `-1001557912345`, `@news` | a chat |
/// | `-1001557912345:17` | topic 17 of a group |
/// | `-1009876543210:dm17` | the direct messages of one user to a channel |
/// | `5025045066@bc_1` | a customer's chat with the account of the business connection `bc_1` |
/// | `-1001557912345?gq1` | a chat that the bot is no member of, for one answer to the query `gq1` |
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) chat: ChatId,
    pub(crate) topic: Option<Topic>,
    pub(crate) business: Option<String>,
    pub(crate) guest: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Thread(i64),
    Direct(i64),
}

impl Address {
    pub(crate) fn chat(chat: impl Into<ChatId>) -> Self {
        Self { chat: chat.into(), topic: None, business: None, guest: None }
    }

    pub(crate) fn id(&self) -> ChatId {
        if (self.topic, &self.business, &self.guest) == (None, &None, &None) {
            return self.chat.clone();
        }
        let mut id = self.chat.as_str().to_owned();
        match self.topic {
            Some(Topic::Thread(thread)) => id.push_str(&format!(":{thread}")),
            Some(Topic::Direct(topic)) => id.push_str(&format!(":dm{topic}")),
            None => {}
        }
        for (mark, part) in [('@', &self.business), ('?', &self.guest)] {
            if let Some(part) = part {
                id.push(mark);
                id.push_str(part);
            }
        }
        id.into()
    }

    pub(crate) fn parse(id: &ChatId) -> Result<Self, ChannelError> {
        Self::read(id.as_str()).ok_or_else(|| {
            let detail =
                format!("`{id}` is no chat of Telegram: use the id of one, or the `@name` of a channel");
            ChannelError::new(ErrorClass::RecipientUnreachable, Phase::NotWritten, detail)
        })
    }

    fn read(id: &str) -> Option<Self> {
        if let Some(name) = id.strip_prefix('@') {
            let valid = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
            return valid.then(|| Self::chat(id));
        }
        let (id, guest) = split(id, '?');
        let (id, business) = split(id, '@');
        let (chat, topic) = split(id, ':');
        chat.parse::<i64>().ok()?;
        let topic = match topic {
            Some(topic) => Some(match topic.strip_prefix("dm") {
                Some(topic) => Topic::Direct(topic.parse().ok()?),
                None => Topic::Thread(topic.parse().ok()?),
            }),
            None => None,
        };
        let part = |part: Option<&str>| part.map(str::to_owned);
        Some(Self { chat: chat.into(), topic, business: part(business), guest: part(guest) })
    }

    /// The parameters that every method with a chat takes.
    pub(crate) fn params(&self) -> Map<String, Value> {
        let chat = self.chat.as_str();
        let chat = chat.parse::<i64>().map_or_else(|_| Value::from(chat), Value::from);
        let mut params = Map::from_iter([("chat_id".to_owned(), chat)]);
        match self.topic {
            Some(Topic::Thread(thread)) => params.insert("message_thread_id".into(), thread.into()),
            Some(Topic::Direct(topic)) => params.insert("direct_messages_topic_id".into(), topic.into()),
            None => None,
        };
        if let Some(business) = &self.business {
            params.insert("business_connection_id".into(), business.as_str().into());
        }
        params
    }
}

fn split(text: &str, mark: char) -> (&str, Option<&str>) {
    match text.split_once(mark) {
        Some((before, after)) if !after.is_empty() => (before, Some(after)),
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests;
