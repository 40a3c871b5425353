//! Broadcasts: sends that wait in the outbox until each one's time has come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;

use super::Egress;
use crate::bot::BroadcastProgress;
use crate::core::content::Content;
use crate::core::error::{Cas, SendError, StoreError};
use crate::core::id::{ChatId, SendKey};
use crate::core::journal::{Change, OutboxState, Send};
use crate::core::time::Timestamp;
use crate::events::BotEvent;
use crate::identities::Recipient;
use crate::world::OpenJournal;

const PREFIX: &str = "broadcast/";

/// How often it is told how far broadcasts are.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// When the sends of a broadcast are due.
#[derive(Clone, Copy)]
pub(crate) struct Later<'a> {
    pub(crate) broadcast: &'a str,
    pub(crate) first: Timestamp,
    pub(crate) interval: Duration,
}

/// The broadcasts of which something was sent since they were told of, and when that was, on the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Broadcasts(Mutex<(BTreeSet<String>, Duration)>);

impl Broadcasts {
    /// Something happens to a send, which may be of a broadcast.
    pub(super) fn note(&self, key: &SendKey) {
        let Some(id) = broadcast_of(key) else { return };
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !noted.0.contains(id) {
            noted.0.insert(id.to_owned());
        }
    }

    /// Those to be told of now.
    fn take_due(&self, now: Duration) -> BTreeSet<String> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.0.is_empty() || now.saturating_sub(noted.1) < TOLD_EVERY {
            return BTreeSet::new();
        }
        noted.1 = now;
        std::mem::take(&mut noted.0)
    }
}

/// The name of the broadcast that a send belongs to.
fn broadcast_of(key: &SendKey) -> Option<&str> {
    key.as_str().strip_prefix(PREFIX)?.split_once('/').map(|(id, _)| id)
}

fn key_of(broadcast: &str, chat: &ChatId) -> SendKey {
    SendKey::from(format!("{PREFIX}{broadcast}/{chat}"))
}

impl Egress {
    /// Journals a send to each of these chats that has none of this broadcast yet, under its first id. How many it journaled,
    /// and how many a hook stopped.
    pub(crate) async fn enqueue_all(
        &self,
        chats: &[ChatId],
        content: &Content,
        later: Later<'_>,
    ) -> Result<(usize, usize), SendError> {
        let open = self.open()?;
        let Later { broadcast, first, interval } = later;
        let new = self.without_send(open, broadcast, chats).await?;
        let behind = SendKey::from(format!("{PREFIX}{broadcast}"));
        let (mut firsts, mut others, mut due, mut stopped) = (Vec::new(), Vec::new(), first, 0);
        for chat in &new {
            let key = key_of(broadcast, chat);
            let content = match self.run_before_hooks(chat, content.clone()).await {
                Ok(content) => content,
                Err(reason) => {
                    tracing::info!(%chat, %reason, "left out of the broadcast");
                    stopped += 1;
                    continue;
                }
            };
            let contents = self.cut(content.clone())?;
            let send = Send { key, chat: chat.clone(), content, fingerprint: None, source: None };
            let now = self.world.now();
            let order = open.journal.next_order(now);
            let parts = self.parts(open, &send, contents, order, now, Some((&behind, due))).await?;
            others.extend(parts.others);
            firsts.push(Change::insert(&parts.first));
            self.world.backlog.note(chat);
            due = due + interval;
        }
        self.journal_others(open, others, false).await?;
        let outcomes = open.journal.commit(firsts).await?;
        self.count_journaled(&outcomes);
        new.iter().for_each(|chat| self.world.backlog.note(chat));
        Ok((outcomes.iter().filter(|outcome| matches!(outcome, Cas::Applied(_))).count(), stopped))
    }

    /// The first ids of those chats, each once, that have no send of the broadcast: under none of the ids that are known of
    /// them, as one that was journaled before a move has the id of then.
    async fn without_send(
        &self,
        open: &OpenJournal,
        broadcast: &str,
        chats: &[ChatId],
    ) -> Result<Vec<ChatId>, StoreError> {
        let mut of_chats: BTreeMap<ChatId, BTreeSet<ChatId>> = BTreeMap::new();
        let mut firsts = Vec::with_capacity(chats.len());
        for (key, known) in try_join_all(chats.iter().map(|chat| self.known_ids(chat))).await? {
            let ids = of_chats.entry(key.clone()).or_default();
            if ids.is_empty() {
                firsts.push(key);
            }
            ids.extend(known);
        }
        let ids = || of_chats.iter().flat_map(|(first, ids)| ids.iter().map(move |id| (first, id)));
        let keys: Vec<SendKey> = ids().map(|(_, id)| key_of(broadcast, id)).collect();
        let known = open.journal.outbox().get_all(&keys).await?;
        let have: BTreeSet<&ChatId> =
            ids().zip(known).filter(|(_, known)| known.is_some()).map(|((first, _), _)| first).collect();
        firsts.retain(|first| !have.contains(first));
        Ok(firsts)
    }

    /// The first id of a chat, and all that are known of it.
    async fn known_ids(&self, chat: &ChatId) -> Result<(ChatId, Vec<ChatId>), StoreError> {
        let Recipient { key, address } = self.world.recipient(chat).await?;
        let mut ids = vec![key.clone()];
        for id in [chat.clone(), address].into_iter().chain(self.world.last_alias(&key).await?) {
            // A chat may have as its name what is somebody else's number by now.
            if self.world.named(&id).await?.key == key {
                ids.push(id);
            }
        }
        Ok((key, ids))
    }

    /// How far a broadcast is.
    pub(crate) async fn broadcast_progress(&self, id: &str) -> Result<BroadcastProgress, SendError> {
        let open = self.open()?;
        let all = [
            OutboxState::Waiting,
            OutboxState::InFlight,
            OutboxState::Sent,
            OutboxState::Unknown,
            OutboxState::Dead,
        ];
        Ok(count(open, &all).await?.remove(id).unwrap_or_default())
    }

    /// Tells now and then how far the broadcasts are of which something was sent.
    pub(crate) async fn tell_broadcasts(&self, open: &OpenJournal) -> Result<(), StoreError> {
        let due = self.world.broadcasts.take_due(self.world.monotonic());
        if due.is_empty() {
            return Ok(());
        }
        let mut counts =
            count(open, &[OutboxState::Waiting, OutboxState::InFlight, OutboxState::Dead]).await?;
        for id in due {
            let BroadcastProgress { waiting, dead, .. } = counts.remove(&id).unwrap_or_default();
            self.world.events.emit(BotEvent::Broadcast { id, waiting, dead });
        }
        Ok(())
    }

    fn open(&self) -> Result<&OpenJournal, SendError> {
        let reason = "a broadcast needs durability: without it, a restart would not know who has it already";
        self.world.journal.as_ref().ok_or_else(|| SendError::Stopped { reason: reason.to_owned() })
    }
}

/// The sends of each broadcast in these states. A text in several parts counts as one: by its last part.
async fn count(
    open: &OpenJournal,
    states: &[OutboxState],
) -> Result<BTreeMap<String, BroadcastProgress>, StoreError> {
    let mut counts: BTreeMap<String, BroadcastProgress> = BTreeMap::new();
    for &state in states {
        let mut pages = open.journal.outbox().pages(state);
        while let Some(page) = pages.next().await? {
            for record in page.records.iter().map(|stored| &stored.record) {
                let Some(id) = broadcast_of(&record.key).filter(|_| record.next_part().is_none()) else {
                    continue;
                };
                let progress = counts.entry(id.to_owned()).or_default();
                *match state {
                    OutboxState::Waiting | OutboxState::InFlight => &mut progress.waiting,
                    OutboxState::Sent => &mut progress.sent,
                    OutboxState::Unknown => &mut progress.unknown,
                    OutboxState::Dead => &mut progress.dead,
                } += 1;
            }
        }
    }
    Ok(counts)
}
