//! Users who are known beside their own id by one that somebody else may get, such as a phone number.
//!
//! Of the alias it is kept who has it, and of the user, under their first id, which alias they have. The first id of a user is
//! their own, unless the bot keeps something under the alias and nothing under the user when it hears that the two are one.

use serde_json::json;

use super::known::Entry;
use super::links::{Holder, Link};
use super::{ALIAS, BEFORE, Forgets, HOLDER, NOW};
use crate::core::error::StoreError;
use crate::core::id::{ChatId, ConversationKey, ParticipantId};
use crate::core::inbound::Inbound;
use crate::core::notice::Moved;
use crate::core::time::Timestamp;
use crate::events::BotEvent;
use crate::world::World;

/// What the names begin with of the bot's own values among those of an id.
const OWN: &str = "botmesh:";

/// Whether a message of a conversation is being handled or waits for it.
pub(crate) type IsServing<'a> = &'a (dyn Fn(&ConversationKey) -> bool + Sync);

impl World {
    /// The id beside their own that an event has of its sender.
    pub(super) fn alias_in(&self, inbound: &Inbound) -> Option<ChatId> {
        let sender = inbound.sender.as_ref().filter(|sender| !sender.aliases.is_empty())?;
        let is_alias = |id: &&ParticipantId| self.provider.is_alias(id.as_str());
        let alias = sender.aliases.iter().find(is_alias).filter(|_| !is_alias(&&sender.id))?;
        Some(ChatId::new(alias.as_str()))
    }

    /// Records that this user has this alias, unless that is known. To be called in the lanes of both.
    ///
    /// # Errors
    /// The store's failure: it may be recorded in part, and is to be told again.
    pub(super) async fn join(
        &self,
        user: &ChatId,
        alias: &ChatId,
        at: Timestamp,
        is_serving: IsServing<'_>,
    ) -> Result<(), StoreError> {
        // However long ago it was looked up: that the two are one does not change.
        let known = self.known_ids().get(alias, None);
        if let Some(known) = known
            && is_joined(&known, user, &self.entry(user).await?, at)
        {
            return Ok(());
        }
        let found = self.look_up(alias).await?;
        let of_user = self.entry(user).await?;
        if is_joined(&found, user, &of_user, at) {
            return Ok(());
        }
        const CONTEXT: &str = "recording that two ids are of one user";
        let joined = self.join_anew(user, alias, (&of_user, &found), at, is_serving).await;
        joined.inspect_err(|error| self.trouble(CONTEXT, error))?;
        self.events.over(CONTEXT);
        // For what comes next of them.
        self.look_up(alias).await.map(|_| ())
    }

    async fn join_anew(
        &self,
        user: &ChatId,
        alias: &ChatId,
        (of_user, found): (&Entry, &Entry),
        at: Timestamp,
        is_serving: IsServing<'_>,
    ) -> Result<(), StoreError> {
        let first = found.owner.as_ref().unwrap_or(alias);
        if found.left.is_none()
            && self.links_of(alias).await?.holder_until(None).is_none()
            && self.goes_on_with(first, user, of_user, is_serving).await?
        {
            // If more is known of either, other ids may lead there.
            let is_all = found.owner.is_none() && of_user.owner.is_none();
            self.adopt(first, user, at, is_all.then_some([user, alias, first])).await?;
        }
        let _one = self.identities.linking.lock().await;
        let key = self.first_id(user).await?;
        let last = self.read_link(&key, ALIAS).await?;
        let is_all = found.owner.is_none() && last.is_none();
        let _forgets = Forgets { world: self, ids: is_all.then_some([user, alias, &key]) };
        let later = self.take_alias(&key, last, alias, at).await?;
        // It may have been left already when this was told.
        let gone = self.read_link(alias, NOW).await?.filter(|now| self.provider.is_alias(now.id.as_str()));
        let left = gone.map(|now| now.at).filter(|left| *left >= at).or(later);
        self.hold(alias, Holder { id: user.clone(), at, left }).await
    }

    /// Whether a user goes on with what is kept under this id, which is nobody's.
    async fn goes_on_with(
        &self,
        first: &ChatId,
        user: &ChatId,
        of_user: &Entry,
        is_serving: IsServing<'_>,
    ) -> Result<bool, StoreError> {
        if let Some(owner) = of_user.owner.as_ref().filter(|owner| *owner != user) {
            // It was recorded in part.
            return Ok(owner == first);
        }
        Ok(self.read_link(user, ALIAS).await?.is_none()
            && self.is_kept(first, is_serving).await?
            && !self.is_kept(user, is_serving).await?)
    }

    /// A user goes on with what is kept under this id. The two were one before anything that is told with it, as that the user has
    /// another id now.
    async fn adopt(
        &self,
        first: &ChatId,
        user: &ChatId,
        at: Timestamp,
        known: Option<[&ChatId; 3]>,
    ) -> Result<(), StoreError> {
        let _one = self.identities.linking.lock().await;
        let _forgets = Forgets { world: self, ids: known };
        let at = Timestamp::from_millis(at.as_millis().saturating_sub(1));
        self.link(user, BEFORE, Link { id: first.clone(), at }).await?;
        self.link(first, NOW, Link { id: user.clone(), at }).await?;
        tracing::info!(key = %first, %user, "a chat has another id");
        self.events.emit(BotEvent::Moved { chat: first.clone(), address: user.clone() });
        Ok(())
    }

    /// An alias of a user becomes another one. `false` if these are none, or nobody knows whose.
    pub(super) async fn note_alias_moved(
        &self,
        Moved { from, to, .. }: &Moved,
        at: Timestamp,
    ) -> Result<bool, StoreError> {
        let are_aliases = [from, to].iter().all(|id| self.provider.is_alias(id.as_str()));
        let holder = if are_aliases { self.read_holder(from).await? } else { None };
        let Some(holder) = holder.filter(|holder| holder.at <= at) else { return Ok(false) };
        let key = self.first_id(&holder.id).await?;
        let last = self.read_link(&key, ALIAS).await?;
        self.take_alias(&key, last, to, at).await?;
        self.leave(from, &key, at).await?;
        self.hold(to, Holder { id: holder.id, at, left: None }).await?;
        Ok(true)
    }

    /// The alias that whoever has this first id had last.
    pub(crate) async fn last_alias(&self, first: &ChatId) -> Result<Option<ChatId>, StoreError> {
        if !self.may_move(first.as_str()) {
            return Ok(None);
        }
        Ok(self.read_link(first, ALIAS).await?.map(|alias| alias.id))
    }

    /// Records that a user has this alias now, and has not the one that they had. If they have a later one already, since when.
    async fn take_alias(
        &self,
        key: &ChatId,
        last: Option<Link>,
        alias: &ChatId,
        at: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let link = Link { id: alias.clone(), at };
        match last {
            Some(last) if !link.replaces(&last) => return Ok((last.id != *alias).then_some(last.at)),
            Some(last) => self.leave(&last.id, key, at).await?,
            None => {}
        }
        self.write(key, ALIAS, &json!(link)).await?;
        Ok(None)
    }

    /// Records that a user has this alias no more.
    async fn leave(&self, alias: &ChatId, key: &ChatId, at: Timestamp) -> Result<(), StoreError> {
        let Some(holder) = self.read_holder(alias).await? else { return Ok(()) };
        if holder.left.is_some() || holder.at > at || self.first_id(&holder.id).await? != *key {
            return Ok(());
        }
        self.write(alias, HOLDER, &json!(Holder { left: Some(at), ..holder })).await
    }

    /// Records who has an alias, unless somebody had it later.
    async fn hold(&self, alias: &ChatId, holder: Holder) -> Result<(), StoreError> {
        if self.read_holder(alias).await?.is_some_and(|stored| stored.at >= holder.at) {
            return Ok(());
        }
        self.write(alias, HOLDER, &json!(holder)).await
    }

    /// Whether the bot keeps anything under this id, or is about to.
    async fn is_kept(&self, id: &ChatId, is_serving: IsServing<'_>) -> Result<bool, StoreError> {
        let key = ConversationKey::private(id.clone());
        if is_serving(&key) {
            return Ok(true);
        }
        let user = ParticipantId::new(id.as_str());
        let unfinished = async {
            let Some(open) = &self.journal else { return Ok(false) };
            Ok(!open.journal.outbox().unfinished_of(id, None, 1).await?.is_empty())
        };
        let store = &self.store;
        let (checkpoint, values, chat, unfinished) =
            tokio::try_join!(store.checkpoint(&key), store.user_values(&user), store.chat(id), unfinished)?;
        let has_values = values.iter().any(|(name, _)| !name.starts_with(OWN));
        Ok(checkpoint.is_some() || has_values || chat.is_some() || unfinished)
    }
}

/// Whether what is known of an alias says that it is this user's at that time.
fn is_joined(alias: &Entry, user: &ChatId, of_user: &Entry, at: Timestamp) -> bool {
    let first = of_user.owner.as_ref().unwrap_or(user);
    alias.holder.is_some() && alias.owner.as_ref() == Some(first) && alias.left.is_none_or(|left| at <= left)
}
