use std::collections::HashSet;
use std::time::Duration;

use super::Bot;
use crate::core::content::Content;
use crate::core::error::SendError;
use crate::core::id::ChatId;
use crate::core::provider::Rate;
use crate::egress::Later;

/// The longest name of a broadcast, in bytes, and the most chats of one.
const MAX_ID: usize = 128;
const MAX_CHATS: usize = 1_000_000;

/// How fast a broadcast goes where the channel declares no rate.
const DEFAULT_RATE: Rate = Rate::new(50, Duration::from_secs(1));

/// A list of chats that are to get the same content, under a name of its own.
#[derive(Clone, Debug)]
pub struct Broadcast {
    id: String,
    chats: Vec<ChatId>,
    rate: Option<Rate>,
}

impl Broadcast {
    /// To these chats, each once. A broadcast of the same name is the same one: it goes to nobody twice.
    pub fn new(id: impl Into<String>, chats: impl IntoIterator<Item = impl Into<ChatId>>) -> Self {
        let mut seen = HashSet::new();
        let chats =
            chats.into_iter().map(Into::into).filter(|chat: &ChatId| seen.insert(chat.clone())).collect();
        Self { id: id.into(), chats, rate: None }
    }

    /// At this rate. Default: four fifths of what the channel takes in all chats, so that replies find room, or 50 a second if
    /// it declares nothing.
    #[must_use]
    pub fn with_rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    fn check(&self) -> Result<(), String> {
        let (id, count) = (&self.id, self.chats.len());
        if id.is_empty() || id.len() > MAX_ID || id.contains('/') {
            return Err(format!("the name of a broadcast has 1 to {MAX_ID} bytes and no `/`, unlike `{id}`"));
        }
        if count > MAX_CHATS {
            return Err(format!(
                "a broadcast to {count} chats is too large: divide it, {MAX_CHATS} is the most"
            ));
        }
        Ok(())
    }
}

/// A broadcast that is journaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Broadcasting {
    /// The chats of the list.
    pub chats: usize,
    /// Those that were journaled before: by an earlier call, or under another id of the same chat.
    pub known: usize,
    /// Those that a hook before the send left out.
    pub stopped: usize,
    /// How long it takes to begin the last send, if nothing is in the way.
    pub takes: Duration,
}

/// How far a broadcast is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BroadcastProgress {
    /// The sends that are still to come.
    pub waiting: usize,
    /// Those that went out.
    pub sent: usize,
    /// Those of which nobody knows whether they arrived.
    pub unknown: usize,
    /// Those that were given up.
    pub dead: usize,
}

impl Bot {
    /// Sends content to each chat of a list, in the background and as fast as the channel takes it, up to 32 at a time. It
    /// returns as soon as the whole list is journaled: then it goes on after a restart where it stopped, on any replica, and
    /// each chat gets the content once. If the process dies before, call it again with the same list.
    ///
    /// What a chat is sent in the meantime comes after the content, which then goes out earlier. The events
    /// `broadcast:progress` and `broadcast:done` tell how far it is, and [`broadcast_progress`](Self::broadcast_progress).
    ///
    /// ```no_run
    /// # use botmesh::{Bot, Broadcast, Result};
    /// # async fn news(bot: Bot, subscribers: Vec<String>) -> Result {
    /// bot.broadcast(Broadcast::new("news-7", subscribers), "We are open on Sunday.").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SendError::Stopped`] before the bot runs, without durability, or if the list or its name is not accepted;
    /// [`SendError::Journal`] if the outbox cannot be written. A part of the list may be journaled.
    ///
    /// # Cancel safety
    /// As after an error: a part of the list may be journaled.
    pub async fn broadcast(
        &self,
        list: Broadcast,
        content: impl Into<Content>,
    ) -> Result<Broadcasting, SendError> {
        let running = self.running()?;
        list.check().map_err(|reason| SendError::Stopped { reason })?;
        let of_channel = running.world.provider.capabilities().rate;
        let interval = match (list.rate, of_channel) {
            (Some(rate), _) => rate.per / rate.messages.max(1),
            (None, Some(rate)) => rate.per * 5 / rate.messages.max(1).saturating_mul(4),
            (None, None) => DEFAULT_RATE.per / DEFAULT_RATE.messages,
        };
        let content = content.into();
        let first = running.world.now();
        let mut broadcasting =
            Broadcasting { chats: list.chats.len(), known: 0, stopped: 0, takes: Duration::ZERO };
        let mut number = 0;
        for chats in list.chats.chunks(BATCH) {
            let later = Later { broadcast: &list.id, first: first + interval * number, interval };
            let (journaled, stopped) = running.egress.enqueue_all(chats, &content, later).await?;
            broadcasting.stopped += stopped;
            broadcasting.known += chats.len() - journaled - stopped;
            number = number.saturating_add(u32::try_from(journaled).unwrap_or(u32::MAX));
        }
        broadcasting.takes = interval * number.saturating_sub(1);
        running.wake.notify_one();
        Ok(broadcasting)
    }

    /// How far a broadcast is. Looks at every send that the outbox remembers.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast), and if the outbox cannot be read.
    pub async fn broadcast_progress(&self, id: &str) -> Result<BroadcastProgress, SendError> {
        self.running()?.egress.broadcast_progress(id).await
    }
}

/// How many sends are journaled at once.
const BATCH: usize = 100;
