use std::collections::HashMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::Error;
use crate::core::id::{ParticipantId, RecordId};
use crate::world::World;

/// Named values of one user. Each name is stored by itself, so that handlers do not overwrite each other's.
///
/// With durability, what a handler changes here happens once even if the handler runs again after a crash: each value
/// remembers which message changed it and what it was before, and the rerun of that message sees it as it was. So
/// counting, adding to a list or removing from it is safe, as long as no other message of the same user (in another
/// chat) changed the same name in between.
#[derive(Clone)]
pub struct UserState {
    inner: Arc<Inner>,
}

struct Inner {
    world: Arc<World>,
    user: ParticipantId,
    record: Option<RecordId>,
    /// What this run has read or written.
    seen: Mutex<HashMap<String, Seen>>,
}

#[derive(Clone)]
struct Seen {
    value: Option<Value>,
    /// The value before this message changed it for the first time.
    before: Option<Value>,
    /// Whether this run changed it.
    written: bool,
}

/// A value as stored.
#[derive(Serialize, Deserialize)]
struct UserEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<RecordId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<Value>,
}

impl UserState {
    pub(crate) fn new(world: Arc<World>, user: ParticipantId, record: Option<RecordId>) -> Self {
        Self { inner: Arc::new(Inner { world, user, record, seen: Mutex::default() }) }
    }

    /// Whose state it is.
    pub fn id(&self) -> &ParticipantId {
        &self.inner.user
    }

    /// The value under `name`, if there is one.
    ///
    /// # Errors
    /// The store's failure, or a value that is not a `T`.
    pub async fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        let mut seen = self.inner.seen.lock().await;
        let value = self.inner.look(&mut seen, name).await?.value;
        value.map(serde_json::from_value).transpose().map_err(|error| {
            format!("the value `{name}` of user {} does not have the expected form: {error}", self.inner.user)
                .into()
        })
    }

    /// Sets the value under `name`, as JSON: a float that is no number, or infinite, becomes null.
    ///
    /// # Errors
    /// The store's failure, or a value that cannot be written as JSON.
    pub async fn set<T: Serialize + ?Sized>(&self, name: &str, value: &T) -> Result<(), Error> {
        let value = serde_json::to_value(value)?;
        self.inner.change(name, |_| Ok(Some(value))).await
    }

    /// Removes the value under `name`.
    ///
    /// # Errors
    /// The store's failure.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        self.inner.change(name, |_| Ok(None)).await
    }

    /// Adds `by` to the number under `name` (0 if there is none) and returns the sum.
    ///
    /// # Errors
    /// The store's failure, or a value that is not a whole number.
    pub async fn increment(&self, name: &str, by: i64) -> Result<i64, Error> {
        let mut sum = 0;
        let add = |now: Option<Value>| {
            let now: i64 = now.map(serde_json::from_value).transpose()?.unwrap_or(0);
            sum = now.checked_add(by).ok_or_else(|| format!("the number `{name}` would exceed 64 bits"))?;
            Ok(Some(sum.into()))
        };
        self.inner.change(name, add).await?;
        Ok(sum)
    }
}

impl Inner {
    async fn look(&self, seen: &mut HashMap<String, Seen>, name: &str) -> Result<Seen, Error> {
        if let Some(known) = seen.get(name) {
            return Ok(known.clone());
        }
        let fresh = self.read(seen, name).await?;
        seen.insert(name.to_owned(), fresh.clone());
        Ok(fresh)
    }

    /// The value as it is now: a message in another chat may have changed it since this run saw it.
    async fn read(&self, seen: &HashMap<String, Seen>, name: &str) -> Result<Seen, Error> {
        let stored = self.world.store.user_value(&self.user, name).await?;
        let entry: Option<UserEntry> = stored.map(serde_json::from_value).transpose()?;
        let value = match (entry, seen.get(name)) {
            (Some(entry), known) if entry.by.is_some() && entry.by == self.record => match known {
                Some(known) if known.written => return Ok(known.clone()),
                // An earlier run of this message changed it.
                _ => entry.before,
            },
            (entry, _) => entry.and_then(|entry| entry.value),
        };
        Ok(Seen { value: value.clone(), before: value, written: false })
    }

    async fn change(
        &self,
        name: &str,
        change: impl FnOnce(Option<Value>) -> Result<Option<Value>, Error>,
    ) -> Result<(), Error> {
        let mut seen = self.seen.lock().await;
        let _alone = self.world.users.enter(&self.user).await;
        let Seen { value, before, .. } = self.read(&seen, name).await?;
        let value = change(value)?;
        let entry = UserEntry { value: value.clone(), by: self.record.clone(), before: before.clone() };
        let gone = value.is_none() && (self.record.is_none() || before.is_none());
        let stored = (!gone).then(|| serde_json::to_value(&entry)).transpose()?;
        self.world.store.set_user_value(&self.user, name, stored.as_ref()).await?;
        seen.insert(name.to_owned(), Seen { value, before, written: true });
        Ok(())
    }
}

impl std::fmt::Debug for UserState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserState").field("user", &self.inner.user).finish_non_exhaustive()
    }
}
