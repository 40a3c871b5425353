//! The bot's state beside the journals: chats, user values, checkpoints and the message log.

mod checkpoints;
mod log;

use std::sync::Arc;

use async_trait::async_trait;
use botmesh_core::Bytes;
use botmesh_core::coordinator::{Fence, Turn};
use botmesh_core::error::{Cas, StoreError, StoreErrorKind};
use botmesh_core::id::{ChatId, ConversationKey, ParticipantId};
use botmesh_core::kv::DurableKv;
use botmesh_core::scope::Scope;
use botmesh_core::store::{ChatState, Checkpoint, LogEntry, LogPosition, Revision, Store};
use botmesh_core::time::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::{Client, Reply, Unexpected};
use crate::config::RedisConfig;
use crate::error::{Access, BACKEND};
use crate::keys::Keys;
use crate::kv::RedisKv;

/// A bot's state and journals on a Redis server. Clones are cheap and share one connection, over which calls are
/// pipelined.
///
/// It is opened in the default [`Scope`]. Dropping the last clone (and the last journal made from it) ends the connection;
/// [`close`](Store::close) waits for what was called before.
#[derive(Clone, Debug)]
pub struct RedisStore {
    pub(crate) client: Arc<Client>,
    keys: Keys,
}

impl RedisStore {
    /// Connects to the server at `url` with the defaults of [`RedisConfig`], and looks whether it can serve: version, memory
    /// policy, persistence, permissions and the layout of the keys. It must be called within a tokio runtime, which then
    /// drives the connection.
    ///
    /// | URL | |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/database]` | one server |
    /// | `redis-cluster://[user:password@]host:port[?node=host:port&node=…]` | a Cluster, found through any of its nodes |
    /// | `redis-sentinel://…host:port[/database]?sentinelServiceName=name[&node=host:port…]` | the master that Sentinels name |
    /// | `rediss://…`, `rediss-cluster://…`, `rediss-sentinel://…` | the same over TLS, with the certificates that this host trusts |
    ///
    /// # Errors
    /// The server cannot be used. The message names it (never the password) and says what to do. Kinds:
    /// [`Unavailable`](StoreErrorKind::Unavailable) (not reachable, still loading, a replica),
    /// [`Denied`](StoreErrorKind::Denied) (password, user or a missing permission),
    /// [`Incompatible`](StoreErrorKind::Incompatible) (too old, or another layout under the prefix) and
    /// [`Misuse`](StoreErrorKind::Misuse) (the URL; a server that evicts keys or keeps less than
    /// [`least_persistence`](RedisConfig::least_persistence)).
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, RedisConfig::default()).await
    }

    /// Like [`open`](Self::open), with a configuration.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Misuse`](StoreErrorKind::Misuse) too for a configuration that cannot work, with the
    /// field in the error's source.
    pub async fn open_with(url: &str, config: RedisConfig) -> Result<Self, StoreError> {
        Ok(Self::over(Client::open(url, config).await?))
    }

    /// Like [`open_with`](Self::open_with), over a client of [`fred`](crate::fred) that is connected and stays the caller's:
    /// [`close`](Store::close) does not end it, and [`connect_timeout`](RedisConfig::connect_timeout) is its own. Commands
    /// of the store are sent once and with [`command_timeout`](RedisConfig::command_timeout), whatever the client is set
    /// to.
    ///
    /// A client of a Cluster only says how to connect: its nodes, credentials, TLS and socket options. The store sends nothing
    /// over it, since the driver makes all nodes wait while it connects again to one of them, but has a connection of its own to
    /// each master, as with a URL; `close` ends those. Delays between attempts to connect are the store's own.
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    pub async fn with_client(client: fred::clients::Client, config: RedisConfig) -> Result<Self, StoreError> {
        Ok(Self::over(Client::with(client, config).await?))
    }

    fn over(client: Client) -> Self {
        let keys = Keys::new(&client.config().prefix, &Scope::default().id());
        Self { client: Arc::new(client), keys }
    }

    /// For the tests of this project: a store that does not keep a rule, over a connection of its own.
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    #[cfg(feature = "mutations")]
    #[doc(hidden)]
    pub async fn open_without(rule: crate::Rule, url: &str, config: RedisConfig) -> Result<Self, StoreError> {
        Ok(Self::over(Client::open(url, config).await?.without(rule)))
    }

    /// The journals on the same server, for inbox and outbox, in a scope of their own: the empty text. Closing them waits
    /// for their writes and refuses later ones; the connection stays open for the store.
    pub fn durability(&self) -> Arc<dyn DurableKv> {
        Arc::new(RedisKv::new(Arc::clone(&self.client), ""))
    }

    fn strange(&self, operation: &'static str, access: Access, what: Unexpected) -> StoreError {
        what.error(operation, self.client.place(), access)
    }

    async fn hash(
        &self,
        operation: &'static str,
        name: &'static str,
        args: Vec<Bytes>,
    ) -> Result<Reply, StoreError> {
        let access = if matches!(name, "HSET" | "HDEL") { Access::Write } else { Access::Read };
        self.client.command(operation, access, name, args).await
    }

    /// A field of a hash, as it was written with [`to_json`].
    async fn field<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        what: &str,
        key: Bytes,
        field: &str,
    ) -> Result<Option<T>, StoreError> {
        let reply = self.hash(operation, "HGET", vec![key, text(field)]).await?;
        let found = reply.bytes().map_err(|what| self.strange(operation, Access::Read, what))?;
        found.map(|found| self.read_json(operation, what, &found)).transpose()
    }

    fn read_json<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        what: &str,
        json: &[u8],
    ) -> Result<T, StoreError> {
        serde_json::from_slice(json).map_err(|error| self.damaged(operation, &format!("{what} ({error})")))
    }

    fn damaged(&self, operation: &'static str, what: &str) -> StoreError {
        let message = format!("{}: {what} cannot be read; restore a backup", self.client.place());
        StoreError::new(StoreErrorKind::Corrupt, BACKEND, operation, message)
    }
}

#[async_trait]
impl Store for RedisStore {
    fn scoped(&self, scope: &Scope) -> Arc<dyn Store> {
        let keys = Keys::new(&self.client.config().prefix, &scope.id());
        Arc::new(Self { client: Arc::clone(&self.client), keys })
    }

    async fn chat(&self, chat: &ChatId) -> Result<Option<ChatState>, StoreError> {
        self.field("chat", "the state of a chat", self.keys.chats(), chat.as_str()).await
    }

    async fn set_chat(&self, chat: &ChatId, state: &ChatState) -> Result<(), StoreError> {
        let args = vec![self.keys.chats(), text(chat.as_str()), to_json("set_chat", state)?];
        self.hash("set_chat", "HSET", args).await.map(drop)
    }

    async fn user_value(&self, user: &ParticipantId, name: &str) -> Result<Option<Value>, StoreError> {
        self.field("user_value", "a value of a user", self.keys.user(user.as_str()), name).await
    }

    async fn set_user_value(
        &self,
        user: &ParticipantId,
        name: &str,
        value: Option<&Value>,
    ) -> Result<(), StoreError> {
        let mut args = vec![self.keys.user(user.as_str()), text(name)];
        let command = match value {
            Some(value) => {
                args.push(to_json("set_user_value", value)?);
                "HSET"
            }
            None => "HDEL",
        };
        self.hash("set_user_value", command, args).await.map(drop)
    }

    async fn user_values(&self, user: &ParticipantId) -> Result<Vec<(String, Value)>, StoreError> {
        let operation = "user_values";
        let reply = self.hash(operation, "HGETALL", vec![self.keys.user(user.as_str())]).await?;
        let pairs = reply.texts().map_err(|what| self.strange(operation, Access::Read, what))?;
        let mut values = Vec::with_capacity(pairs.len() / 2);
        for pair in pairs.chunks_exact(2) {
            let name = String::from_utf8(pair[0].to_vec())
                .map_err(|_| self.damaged(operation, "the name of a user's value"))?;
            values.push((name, self.read_json(operation, "a value of a user", &pair[1])?));
        }
        values.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(values)
    }

    async fn checkpoint(&self, key: &ConversationKey) -> Result<Option<Checkpoint>, StoreError> {
        self.read_checkpoint(key).await
    }

    async fn set_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Option<Revision>,
        checkpoint: &Checkpoint,
    ) -> Result<Cas<Revision>, StoreError> {
        self.write_checkpoint(turn, key, expect, checkpoint).await
    }

    async fn clear_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Revision,
    ) -> Result<Cas<()>, StoreError> {
        self.remove_checkpoint(turn, key, expect).await
    }

    async fn last_fence(&self) -> Result<Fence, StoreError> {
        self.largest_fence().await
    }

    async fn due_checkpoints(
        &self,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(ConversationKey, Timestamp)>, StoreError> {
        self.checkpoints_until(until, limit).await
    }

    async fn append_log(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        self.append(entries).await
    }

    async fn log(
        &self,
        chat: &ChatId,
        before: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<(LogPosition, LogEntry)>, StoreError> {
        self.read_log(chat, before, limit).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.client.close().await
    }
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn to_json(operation: &'static str, value: &impl Serialize) -> Result<Bytes, StoreError> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| not_json(operation, error))
}

fn not_json(operation: &'static str, error: serde_json::Error) -> StoreError {
    StoreError::new(StoreErrorKind::Misuse, BACKEND, operation, "the value cannot be written as JSON")
        .with_source(error)
}
