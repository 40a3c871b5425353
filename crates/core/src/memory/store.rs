use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::Value;

use crate::coordinator::{Fence, Turn};
use crate::error::{Cas, StoreError, StoreErrorKind};
use crate::id::{ChatId, ConversationKey, ParticipantId};
use crate::scope::Scope;
use crate::store::{ChatState, Checkpoint, LogEntry, LogPosition, Revision, Store};
use crate::time::Timestamp;

/// A [`Store`] in this process's memory.
///
/// Clones and scoped views share one set of data and are closed together; [`reopen`](Self::reopen) gives the same data
/// to the bot's next life.
#[derive(Clone)]
pub struct MemoryStore {
    data: Arc<Mutex<Data>>,
    closed: Arc<AtomicBool>,
    scope: Arc<str>,
}

#[derive(Default)]
struct Data {
    last_position: u64,
    spaces: HashMap<Arc<str>, Space>,
}

/// The data of one scope.
#[derive(Default)]
struct Space {
    chats: HashMap<ChatId, ChatState>,
    users: HashMap<ParticipantId, BTreeMap<String, Value>>,
    checkpoints: HashMap<ConversationKey, Box<Checkpoint>>,
    /// The largest revision that was cleared, so that none comes back.
    cleared: Option<Revision>,
    last_fence: Fence,
    due: BTreeSet<(Timestamp, ConversationKey)>,
    log: HashMap<ChatId, BTreeMap<LogPosition, LogEntry>>,
}

impl MemoryStore {
    /// An empty store, in the default scope.
    pub fn new() -> Self {
        Self { data: Arc::default(), closed: Arc::default(), scope: Arc::from(Scope::default().id()) }
    }

    /// The same data, open again: what a process finds that opens the store after another one has closed it.
    #[must_use]
    pub fn reopen(&self) -> Self {
        Self { data: Arc::clone(&self.data), closed: Arc::default(), scope: Arc::clone(&self.scope) }
    }

    /// Runs `operation` on everything there is.
    fn with_data<T>(
        &self,
        name: &'static str,
        operation: impl FnOnce(&mut Data, &Arc<str>) -> T,
    ) -> Result<T, StoreError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Misuse, "memory", name, "the store is closed"));
        }
        let mut data = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(operation(&mut data, &self.scope))
    }

    /// Reads what the scope holds, if it holds anything.
    fn read<T>(
        &self,
        name: &'static str,
        operation: impl FnOnce(&Space) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        self.with_data(name, |data, scope| data.spaces.get(scope).and_then(operation))
    }

    fn write<T>(&self, name: &'static str, operation: impl FnOnce(&mut Space) -> T) -> Result<T, StoreError> {
        self.with_data(name, |data, scope| operation(data.space(scope)))
    }
}

impl Data {
    fn space(&mut self, scope: &Arc<str>) -> &mut Space {
        self.spaces.entry(Arc::clone(scope)).or_default()
    }
}

impl Space {
    fn checkpoint(&self, key: &ConversationKey) -> Option<&Checkpoint> {
        self.checkpoints.get(key).map(Box::as_ref)
    }

    fn put_checkpoint(&mut self, key: &ConversationKey, checkpoint: Checkpoint) {
        self.forget_checkpoint(key);
        if let Some(due) = checkpoint.due {
            self.due.insert((due, key.clone()));
        }
        self.checkpoints.insert(key.clone(), Box::new(checkpoint));
    }

    fn forget_checkpoint(&mut self, key: &ConversationKey) {
        if let Some(due) = self.checkpoints.remove(key).and_then(|old| old.due) {
            self.due.remove(&(due, key.clone()));
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("scope", &self.scope).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn scoped(&self, scope: &Scope) -> Arc<dyn Store> {
        Arc::new(Self { scope: Arc::from(scope.id()), ..self.clone() })
    }

    async fn chat(&self, chat: &ChatId) -> Result<Option<ChatState>, StoreError> {
        self.read("chat", |space| space.chats.get(chat).cloned())
    }

    async fn set_chat(&self, chat: &ChatId, state: &ChatState) -> Result<(), StoreError> {
        self.write("set_chat", |space| {
            space.chats.insert(chat.clone(), state.clone());
        })
    }

    async fn user_value(&self, user: &ParticipantId, name: &str) -> Result<Option<Value>, StoreError> {
        self.read("user_value", |space| space.users.get(user)?.get(name).cloned())
    }

    async fn set_user_value(
        &self,
        user: &ParticipantId,
        name: &str,
        value: Option<&Value>,
    ) -> Result<(), StoreError> {
        self.write("set_user_value", |space| match value {
            Some(value) => {
                space.users.entry(user.clone()).or_default().insert(name.to_owned(), value.clone());
            }
            None => {
                if let Some(values) = space.users.get_mut(user) {
                    values.remove(name);
                    if values.is_empty() {
                        space.users.remove(user);
                    }
                }
            }
        })
    }

    async fn user_values(&self, user: &ParticipantId) -> Result<Vec<(String, Value)>, StoreError> {
        let values = self.read("user_values", |space| {
            let values = space.users.get(user)?;
            Some(values.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
        })?;
        Ok(values.unwrap_or_default())
    }

    async fn checkpoint(&self, key: &ConversationKey) -> Result<Option<Checkpoint>, StoreError> {
        self.read("checkpoint", |space| space.checkpoint(key).cloned())
    }

    async fn set_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Option<Revision>,
        checkpoint: &Checkpoint,
    ) -> Result<Cas<Revision>, StoreError> {
        self.write("set_checkpoint", |space| {
            let stored = space.checkpoint(key);
            if !Checkpoint::accepts(stored, expect, turn) {
                return Cas::Lost;
            }
            let revision =
                Revision::next(stored.map(|stored| stored.revision).or(space.cleared), turn.fence());
            let row = Checkpoint {
                revision,
                fence: turn.fence(),
                session: turn.session().clone(),
                ..checkpoint.clone()
            };
            space.last_fence = space.last_fence.max(turn.fence());
            space.put_checkpoint(key, row);
            Cas::Applied(revision)
        })
    }

    async fn clear_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Revision,
    ) -> Result<Cas<()>, StoreError> {
        self.write("clear_checkpoint", |space| {
            let stored = space.checkpoint(key);
            if !Checkpoint::accepts(stored, Some(expect), turn) {
                return Cas::Lost;
            }
            space.cleared = space.cleared.max(Some(expect));
            space.forget_checkpoint(key);
            Cas::Applied(())
        })
    }

    async fn last_fence(&self) -> Result<Fence, StoreError> {
        Ok(self.read("last_fence", |space| Some(space.last_fence))?.unwrap_or_default())
    }

    async fn due_checkpoints(
        &self,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(ConversationKey, Timestamp)>, StoreError> {
        let due = self.read("due_checkpoints", |space| {
            let found = space.due.iter().take_while(|(due, _)| *due <= until).take(limit);
            Some(found.map(|(due, key)| (key.clone(), *due)).collect())
        })?;
        Ok(due.unwrap_or_default())
    }

    async fn append_log(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        self.with_data("append_log", |data, scope| {
            for entry in entries {
                data.last_position += 1;
                let position = LogPosition(data.last_position);
                let chat = data.space(scope).log.entry(entry.chat.clone()).or_default();
                chat.insert(position, entry.clone());
            }
        })
    }

    async fn log(
        &self,
        chat: &ChatId,
        before: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<(LogPosition, LogEntry)>, StoreError> {
        let entries = self.read("log", |space| {
            let older = space.log.get(chat)?.range(..before.unwrap_or(LogPosition(u64::MAX)));
            Some(older.rev().take(limit).map(|(position, entry)| (*position, entry.clone())).collect())
        })?;
        Ok(entries.unwrap_or_default())
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.closed.store(true, Ordering::SeqCst);
        Ok(())
    }
}
