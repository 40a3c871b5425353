//! Who is who: chats and users that got another id. What is kept of them stays under their first id, and only what is sent
//! goes to the newest.
//!
//! Two links of an id are kept in the store, beside what they lead to and for as long: which id came before it, and where
//! whoever had it first is now. Each is a value of its own that only a later move replaces, so that any order of moves, told by
//! any replicas and as often as they like, leads to the same.

mod joined;
mod known;
mod links;
#[cfg(test)]
mod links_tests;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::core::error::{StoreError, StoreErrorKind};
use crate::core::id::{ChatId, ParticipantId};
use crate::core::inbound::{Inbound, Origin};
use crate::core::notice::Moved;
use crate::core::time::Timestamp;
use crate::events::BotEvent;
use crate::lanes::{Lane, Lanes};
use crate::world::World;
pub(crate) use joined::IsServing;
use known::{Entry, Known};
use links::{Holder, Link, Links};

/// The names of the links among the values of an id.
const BEFORE: &str = "botmesh:before";
const NOW: &str = "botmesh:now";
/// Those of an alias, and of who has it.
const HOLDER: &str = "botmesh:holder";
const ALIAS: &str = "botmesh:alias";

/// The most ids that one chat is followed through.
const MOST: usize = 64;

/// For how long a replica goes by what it knows, and does not ask whether another one was told of a move.
const GOOD_FOR: Duration = Duration::from_secs(10);

/// How much later than it was left somebody writes from an id who is not the one who left it.
const STRANGER_AFTER: Duration = Duration::from_secs(3600);

/// Whom a message goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recipient {
    /// The first id: what everything is kept under.
    pub(crate) key: ChatId,
    /// The newest id: where messages go.
    pub(crate) address: ChatId,
}

/// What this process knows of it.
#[derive(Default)]
pub(crate) struct Identities {
    known: std::sync::Mutex<Known>,
    /// Who asks: events that come from one id keep their order meanwhile.
    lanes: Lanes<ChatId>,
    linking: Mutex<()>,
}

/// Forgets what was looked up before links were written.
struct Forgets<'a> {
    world: &'a World,
    /// Of these ids; of all if it is `None`.
    ids: Option<[&'a ChatId; 3]>,
}

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        match &self.ids {
            Some(ids) => self.world.known_ids().forget_these(ids),
            None => self.world.known_ids().forget_all(),
        }
    }
}

impl World {
    /// Whom a message to `chat` goes to. What was the first id of a chat stays its name, also if the channel gave it to somebody
    /// else since.
    ///
    /// # Errors
    /// The store's failure: then nobody knows.
    pub(crate) async fn recipient(&self, chat: &ChatId) -> Result<Recipient, StoreError> {
        let Some(entry) = self.at_hand(chat) else {
            return Ok(Box::pin(self.look_up(chat)).await?.recipient(chat));
        };
        Ok(entry.recipient(chat))
    }

    /// Whom a message goes to in the chat of this name: as [`recipient`](Self::recipient), whoever has the id now.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn named(&self, chat: &ChatId) -> Result<Recipient, StoreError> {
        let Some(entry) = self.at_hand(chat) else {
            return Ok(Box::pin(self.look_up(chat)).await?.named(chat));
        };
        Ok(entry.named(chat))
    }

    /// The event under the first ids of its chat and its sender. As long as the lanes are held, no later event of the chat comes
    /// so far.
    ///
    /// # Errors
    /// The store's failure.
    pub(crate) async fn identify(
        &self,
        inbound: Arc<Inbound>,
        is_serving: IsServing<'_>,
    ) -> Result<(Arc<Inbound>, [Option<Lane<'_>>; 2]), StoreError> {
        let moves = |id: &str| self.may_move(id);
        let sender = inbound.sender.as_ref().filter(|sender| moves(sender.id.as_str()));
        if sender.is_none() && !moves(inbound.chat.as_str()) {
            return Ok((inbound, [None, None]));
        }
        Box::pin(async {
            let alias = self.alias_in(&inbound);
            let lanes = match alias.as_ref().filter(|alias| **alias != inbound.chat) {
                Some(alias) => self.identities.lanes.enter_both([&inbound.chat, alias]).await.map(Some),
                None => [Some(self.identities.lanes.enter(&inbound.chat).await), None],
            };
            if let (Some(alias), Some(sender)) = (&alias, &inbound.sender) {
                let at = inbound.written_at.unwrap_or_else(|| self.now());
                self.join(&ChatId::new(sender.id.as_str()), alias, at, is_serving).await?;
            }
            Ok((Arc::new(self.under_first_ids(Arc::unwrap_or_clone(inbound)).await?), lanes))
        })
        .await
    }

    /// Records that a chat or a user has another id now.
    ///
    /// # Errors
    /// The store's failure: it may be recorded in part, and is to be told again.
    pub(crate) async fn note_moved(&self, moved: &Moved) -> Result<(), StoreError> {
        let Moved { from, to, at } = moved;
        if from == to {
            return Ok(());
        }
        let _one = self.identities.linking.lock().await;
        // Also if it is known already, or fails, or nobody waits for it any more: it may have been written by a call that
        // never heard so.
        let forgets = Forgets { world: self, ids: None };
        let at = at.unwrap_or_else(|| self.now());
        if self.note_alias_moved(moved, at).await? {
            return Ok(());
        }
        let (key, now_of) = tokio::try_join!(self.first_id(from), self.first_id(to))?;
        let mut is_new = false;
        if now_of != key && *to != key {
            is_new = self.link(to, BEFORE, Link { id: key.clone(), at }).await?;
        }
        is_new |= self.link(&key, NOW, Link { id: to.clone(), at }).await?;
        drop(forgets);
        if is_new {
            tracing::info!(%key, %from, %to, "a chat has another id");
            self.events.emit(BotEvent::Moved { chat: key, address: to.clone() });
        }
        Ok(())
    }

    /// Whether it may be another one's. The name of a stranger says the same as the id that they have.
    fn may_move(&self, id: &str) -> bool {
        self.provider.may_move(id.split('~').next().unwrap_or(id))
    }

    /// What needs no look into the store.
    fn at_hand(&self, id: &ChatId) -> Option<Entry> {
        if !self.may_move(id.as_str()) {
            return Some(Entry::default());
        }
        // A bot that is alone hears of every move.
        let since = self.coordinated.then(|| self.monotonic().saturating_sub(GOOD_FOR));
        self.known_ids().get(id, since)
    }

    fn known_ids(&self) -> MutexGuard<'_, Known> {
        self.identities.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look_up(&self, id: &ChatId) -> Result<Entry, StoreError> {
        const CONTEXT: &str = "looking up who has an id";
        let (epoch, looked) = (self.known_ids().epoch(), self.monotonic());
        let found = self.read_entry(id).await.inspect_err(|error| self.trouble(CONTEXT, error))?;
        self.events.over(CONTEXT);
        let mut known = self.known_ids();
        known.put(epoch, id, &found, looked);
        if let Some(owner) = found.owner.as_ref().filter(|owner| *owner != id) {
            // Where they are may have been looked up before they came here.
            known.forget(owner);
        }
        drop(known);
        Ok(found)
    }

    async fn entry(&self, id: &ChatId) -> Result<Entry, StoreError> {
        match self.at_hand(id) {
            Some(entry) => Ok(entry),
            None => self.look_up(id).await,
        }
    }

    /// The first id of who writes from `id` at this time.
    async fn owner(&self, id: &ChatId, written: Option<Timestamp>) -> Result<ChatId, StoreError> {
        let entry = self.entry(id).await?;
        let owner = entry.owner.unwrap_or_else(|| id.clone());
        let (Some(left), Some(written)) = (entry.left, written) else { return Ok(owner) };
        if written.since(left) <= STRANGER_AFTER {
            return Ok(owner);
        }
        // Whoever had the id has another one: this is somebody who got it since, as with numbers.
        let from = ChatId::from(format!("{id}~{}", left.as_millis()));
        self.note_moved(&Moved { from, to: id.clone(), at: Some(written) }).await?;
        Ok(self.entry(id).await?.owner.unwrap_or(owner))
    }

    async fn under_first_ids(&self, inbound: Inbound) -> Result<Inbound, StoreError> {
        let is_private = inbound.sender.as_ref().is_some_and(|s| s.id.as_str() == inbound.chat.as_str());
        let written = inbound.written_at.filter(|_| is_private);
        let chat = self.owner(&inbound.chat, written).await?;
        let sender = match &inbound.sender {
            Some(_) if is_private => Some(chat.clone()),
            Some(sender) => Some(self.owner(&ChatId::new(sender.id.as_str()), None).await?),
            None => None,
        };
        Ok(renamed(inbound, chat, sender))
    }

    async fn read_entry(&self, id: &ChatId) -> Result<Entry, StoreError> {
        let links = self.links_of(id).await?;
        if links == Links::default() {
            return Ok(Entry::default());
        }
        let owner = self.first_id(id).await?;
        let there = self.newest(&owner).await?;
        let left = match links.holder_until(None) {
            Some(holder) => holder.left,
            None => there.as_ref().filter(|there| there.id != *id).map(|there| there.at),
        };
        let to_owner = recipient(owner.clone(), there);
        let to_name = match links.now.is_some() && *id != owner {
            true => recipient(id.clone(), self.newest(id).await?),
            false => to_owner.clone(),
        };
        let holder = links.holder.map(|holder| holder.id);
        let by_id = if holder.is_some() { to_owner } else { to_name.clone() };
        let named = (by_id != to_name).then(|| Arc::new(to_name));
        Ok(Entry { owner: Some(owner), left, holder, recipient: Some(Arc::new(by_id)), named })
    }

    /// Where whoever has this as their first id is now, and since when; `None` if they never moved.
    async fn newest(&self, first: &ChatId) -> Result<Option<Link>, StoreError> {
        let mut newest: Option<Link> = None;
        for _ in 0..MOST {
            let id = newest.as_ref().map_or(first, |newest| &newest.id);
            let later = self.read_link(id, NOW).await?;
            match later.filter(|later| newest.as_ref().is_none_or(|newest| later.at > newest.at)) {
                Some(later) => newest = Some(later),
                None => break,
            }
        }
        Ok(newest)
    }

    /// The first id of whoever has this one now.
    async fn first_id(&self, id: &ChatId) -> Result<ChatId, StoreError> {
        let (mut first, mut until) = (id.clone(), None);
        // From an id of a user's own, the way back leads to names, whoever has them as an alias now.
        let mut by_names = !self.provider.is_alias(id.as_str());
        for _ in 0..MOST {
            let links = self.links_of(&first).await?;
            let holder = links.holder_until(until).filter(|_| !by_names);
            (first, until, by_names) = match (holder, links.owner_until(until)) {
                (Some(holder), _) => (holder.id.clone(), None, true),
                (None, Some(before)) => (before.id.clone(), Some(before.at), by_names),
                (None, None) => break,
            };
        }
        Ok(first)
    }

    async fn links_of(&self, id: &ChatId) -> Result<Links, StoreError> {
        let (before, now, holder) =
            tokio::try_join!(self.read_link(id, BEFORE), self.read_link(id, NOW), self.read_holder(id))?;
        Ok(Links { before, now, holder })
    }

    async fn read_holder(&self, id: &ChatId) -> Result<Option<Holder>, StoreError> {
        if !self.provider.is_alias(id.as_str()) {
            return Ok(None);
        }
        self.read(id, HOLDER).await
    }

    async fn read_link(&self, id: &ChatId, name: &str) -> Result<Option<Link>, StoreError> {
        self.read(id, name).await
    }

    async fn read<T: DeserializeOwned>(&self, id: &ChatId, name: &str) -> Result<Option<T>, StoreError> {
        let stored = self.store.user_value(&ParticipantId::new(id.as_str()), name).await?;
        stored.map(serde_json::from_value).transpose().map_err(|error| {
            StoreError::new(
                StoreErrorKind::Corrupt,
                "store",
                "identity",
                format!("`{name}` of {id}: {error}"),
            )
        })
    }

    async fn write(&self, id: &ChatId, name: &str, value: &Value) -> Result<(), StoreError> {
        self.store.set_user_value(&ParticipantId::new(id.as_str()), name, Some(value)).await
    }

    /// Writes a link, unless a later one is there. `false` if nothing changed.
    async fn link(&self, id: &ChatId, name: &str, link: Link) -> Result<bool, StoreError> {
        if self.read_link(id, name).await?.is_some_and(|stored| !link.replaces(&stored)) {
            return Ok(false);
        }
        self.write(id, name, &json!(link)).await?;
        Ok(true)
    }
}

/// Whom a message goes to whose chat has this name.
fn recipient(key: ChatId, there: Option<Link>) -> Recipient {
    let address = there.map_or_else(|| key.clone(), |there| there.id);
    Recipient { key, address }
}

/// The event with these ids, and with its own ones as its origin.
fn renamed(mut inbound: Inbound, chat: ChatId, sender: Option<ChatId>) -> Inbound {
    let same_sender =
        sender.as_ref().map(ChatId::as_str) == inbound.sender.as_ref().map(|sender| sender.id.as_str());
    if chat == inbound.chat && same_sender {
        return inbound;
    }
    let own = inbound.sender.as_ref().map(|sender| sender.id.clone());
    inbound.origin = Some(Origin { chat: std::mem::replace(&mut inbound.chat, chat), sender: own });
    if let (Some(person), Some(key), false) = (&mut inbound.sender, sender, same_sender) {
        let own = std::mem::replace(&mut person.id, ParticipantId::new(key.as_str()));
        person.aliases.retain(|alias| *alias != person.id);
        person.aliases.insert(0, own);
    }
    inbound
}
