//! The bot's state beside the journals: chats, user values, checkpoints and the message log.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use botmesh_core::coordinator::{Fence, Turn};
use botmesh_core::error::{Cas, StoreError, StoreErrorKind};
use botmesh_core::id::{ChatId, ConversationKey, MessageId, ParticipantId, SessionId};
use botmesh_core::kv::DurableKv;
use botmesh_core::scope::Scope;
use botmesh_core::store::{ChatState, Checkpoint, Direction, LogEntry, LogPosition, Revision, Store};
use botmesh_core::time::Timestamp;
use rusqlite::{OptionalExtension, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::{Client, Lane, Reading, Tx, weight};
use crate::config::SqliteConfig;
use crate::error::{BACKEND, Fault};
use crate::kv::SqliteKv;

/// The layout of `checkpoints.body`.
const CHECKPOINT_FORMAT: i64 = 1;

const INSERT_CHECKPOINT: &str = "INSERT INTO checkpoints \
     (scope, conversation, chat, participant, revision, fence, session, deadline, format, body) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7, ?8, ?9) \
     ON CONFLICT (scope, conversation) DO UPDATE \
     SET revision = max(revision + 1, excluded.fence), fence = excluded.fence, session = excluded.session, \
         deadline = excluded.deadline, format = excluded.format, body = excluded.body \
     WHERE body IS NULL AND revision < 9223372036854775807 RETURNING revision";
// The rule of `Checkpoint::accepts`, where the row is.
const UPDATE_CHECKPOINT: &str = "UPDATE checkpoints \
     SET revision = max(revision + 1, ?4), fence = ?4, session = ?5, deadline = ?6, format = ?7, body = ?8 \
     WHERE scope = ?1 AND conversation = ?2 AND body IS NOT NULL AND revision = ?3 AND revision < 9223372036854775807 \
     AND (fence < ?4 OR (fence = ?4 AND session = ?5)) RETURNING revision";
const CLEAR_CHECKPOINT: &str = "UPDATE checkpoints SET deadline = NULL, body = NULL \
     WHERE scope = ?1 AND conversation = ?2 AND body IS NOT NULL AND revision = ?3 \
     AND (fence < ?4 OR (fence = ?4 AND session = ?5))";

/// A bot's state and journals in one SQLite file. Clones are cheap and share the file.
///
/// It is opened in the default [`Scope`]. Dropping the last clone (and the last journal made from it) lets its threads finish what is queued and end;
/// [`close`](Store::close) waits for that.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    client: Arc<Client>,
    scope: Arc<str>,
}

impl SqliteStore {
    /// Opens the file at `path` with the defaults of [`SqliteConfig`]; makes it and its folders if they are missing.
    /// A new file can be read and written by its owner only (mode 0600), because it holds what customers wrote.
    ///
    /// # Errors
    /// The file cannot be used. The message names the path and what to do. Kinds:
    /// [`Misuse`](StoreErrorKind::Misuse) (a directory, or no file name),
    /// [`Denied`](StoreErrorKind::Denied) (no permission, or read-only),
    /// [`Full`](StoreErrorKind::Full),
    /// [`Incompatible`](StoreErrorKind::Incompatible) (not a database, another program's, or a newer version's),
    /// [`Corrupt`](StoreErrorKind::Corrupt),
    /// [`UnsupportedFilesystem`](StoreErrorKind::UnsupportedFilesystem) (a network or FUSE file system) and
    /// [`Unavailable`](StoreErrorKind::Unavailable) (another program holds the write lock for too long).
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, SqliteConfig::default()).await
    }

    /// Like [`open`](Self::open), with a configuration.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Misuse`](StoreErrorKind::Misuse) too for a configuration that cannot work, with the
    /// field in the error's source.
    pub async fn open_with(path: impl AsRef<Path>, config: SqliteConfig) -> Result<Self, StoreError> {
        let client = Client::open(path.as_ref(), config).await?;
        Ok(Self { client: Arc::new(client), scope: Scope::default().id().into() })
    }

    /// The journals in the same file, for inbox and outbox, in a scope of their own: the empty text. Closing them waits
    /// for their writes and refuses later ones; the file stays open for the store.
    pub fn durability(&self) -> Arc<dyn DurableKv> {
        Arc::new(SqliteKv::new(Arc::clone(&self.client), "".into()))
    }

    async fn write<T: Send + 'static>(
        &self,
        operation: &'static str,
        weight: u32,
        mut run: impl FnMut(&mut Tx<'_>, &Arc<str>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let scope = Arc::clone(&self.scope);
        self.client.write(operation, weight, move |tx| run(tx, &scope)).await
    }

    /// Reads in this scope; the default if nothing was ever written in it.
    async fn read<T: Default + Send + 'static>(
        &self,
        lane: Lane,
        operation: &'static str,
        run: impl FnOnce(&mut Reading<'_>, i64) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let scope = Arc::clone(&self.scope);
        let run = move |reading: &mut Reading<'_>| match reading.scope(&scope)? {
            Some(scope) => run(reading, scope),
            None => Ok(T::default()),
        };
        self.client.read(lane, operation, run).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn scoped(&self, scope: &Scope) -> Arc<dyn Store> {
        Arc::new(Self { client: Arc::clone(&self.client), scope: scope.id().into() })
    }

    async fn chat(&self, chat: &ChatId) -> Result<Option<ChatState>, StoreError> {
        let chat = chat.clone();
        self.read(Lane::Rows, "chat", move |reading, scope| {
            let text: Option<String> = reading
                .statement("SELECT state FROM chats WHERE scope = ?1 AND chat = ?2")?
                .query_row(params![scope, chat.as_str()], |row| row.get(0))
                .optional()?;
            text.map(|text| from_json(&text, "the state of a chat")).transpose()
        })
        .await
    }

    async fn set_chat(&self, chat: &ChatId, state: &ChatState) -> Result<(), StoreError> {
        let (chat, text) = (chat.clone(), to_json("set_chat", state)?);
        self.write("set_chat", weight(1, text.len()), move |tx, scope| {
            let scope = tx.scope(scope)?;
            let rows = tx
                .statement(
                    "INSERT INTO chats (scope, chat, state) VALUES (?1, ?2, ?3) \
                     ON CONFLICT (scope, chat) DO UPDATE SET state = excluded.state",
                )?
                .execute(params![scope, chat.as_str(), text])?;
            tx.changed(rows);
            Ok(())
        })
        .await
    }

    async fn user_value(&self, user: &ParticipantId, name: &str) -> Result<Option<Value>, StoreError> {
        let (user, name) = (user.clone(), name.to_owned());
        self.read(Lane::Rows, "user_value", move |reading, scope| {
            let text: Option<String> = reading
                .statement("SELECT value FROM user_values WHERE scope = ?1 AND user = ?2 AND name = ?3")?
                .query_row(params![scope, user.as_str(), name], |row| row.get(0))
                .optional()?;
            text.map(|text| from_json(&text, "a value of a user")).transpose()
        })
        .await
    }

    async fn set_user_value(
        &self,
        user: &ParticipantId,
        name: &str,
        value: Option<&Value>,
    ) -> Result<(), StoreError> {
        let (user, name) = (user.clone(), name.to_owned());
        let text = value.map(|value| to_json("set_user_value", value)).transpose()?;
        let weight = weight(1, text.as_ref().map_or(0, String::len));
        self.write("set_user_value", weight, move |tx, scope| {
            set_user_value(tx, scope, user.as_str(), &name, text.as_deref())
        })
        .await
    }

    async fn user_values(&self, user: &ParticipantId) -> Result<Vec<(String, Value)>, StoreError> {
        let user = user.clone();
        self.read(Lane::Rows, "user_values", move |reading, scope| {
            let mut statement = reading.statement(
                "SELECT name, value FROM user_values WHERE scope = ?1 AND user = ?2 ORDER BY name",
            )?;
            let rows = statement.query_map(params![scope, user.as_str()], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
            })?;
            rows.map(|row| {
                let (name, text) = row?;
                Ok((name, from_json(&text, "a value of a user")?))
            })
            .collect()
        })
        .await
    }

    async fn checkpoint(&self, key: &ConversationKey) -> Result<Option<Checkpoint>, StoreError> {
        let conversation = key.encode();
        self.read(Lane::Rows, "checkpoint", move |reading, scope| {
            let mut statement = reading.statement(
                "SELECT format, body, revision, fence, session FROM checkpoints \
                 WHERE scope = ?1 AND conversation = ?2 AND body IS NOT NULL",
            )?;
            let row = statement.query_row(params![scope, conversation], StoredCheckpoint::of).optional()?;
            row.map(|row| row.read(&conversation)).transpose()
        })
        .await
    }

    async fn set_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Option<Revision>,
        checkpoint: &Checkpoint,
    ) -> Result<Cas<Revision>, StoreError> {
        let operation = "set_checkpoint";
        let fence = stored_fence(operation, turn.fence())?;
        let Ok(expected) = expect.map(|revision| i64::try_from(revision.0)).transpose() else {
            return Ok(Cas::Lost);
        };
        let row = CheckpointRow {
            conversation: key.encode(),
            key: key.clone(),
            fence,
            session: turn.session().clone(),
            deadline: checkpoint.due.map(Timestamp::as_millis),
            body: checkpoint_body(operation, checkpoint)?,
        };
        self.write(operation, weight(1, row.body.len()), move |tx, scope| {
            Ok(row.write(tx, scope, expected)?.map_or(Cas::Lost, Cas::Applied))
        })
        .await
    }

    async fn clear_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Revision,
    ) -> Result<Cas<()>, StoreError> {
        let operation = "clear_checkpoint";
        let fence = stored_fence(operation, turn.fence())?;
        let Ok(expected) = i64::try_from(expect.0) else { return Ok(Cas::Lost) };
        let (conversation, session) = (key.encode(), turn.session().clone());
        self.write(operation, 1, move |tx, scope| {
            let Some(scope) = tx.known_scope(scope)? else { return Ok(Cas::Lost) };
            let rows = tx.statement(CLEAR_CHECKPOINT)?.execute(params![
                scope,
                conversation,
                expected,
                fence,
                session.as_str()
            ])?;
            Ok(if tx.changed(rows) { Cas::Applied(()) } else { Cas::Lost })
        })
        .await
    }

    async fn last_fence(&self) -> Result<Fence, StoreError> {
        self.read(Lane::Ranges, "last_fence", move |reading, scope| {
            let mut statement = reading.statement("SELECT max(fence) FROM checkpoints WHERE scope = ?1")?;
            let fence: Option<i64> = statement.query_row(params![scope], |row| row.get(0))?;
            Ok(Fence(unsigned(fence.unwrap_or(0), "fence")?))
        })
        .await
    }

    async fn due_checkpoints(
        &self,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(ConversationKey, Timestamp)>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.read(Lane::Ranges, "due_checkpoints", move |reading, scope| {
            let mut statement = reading.statement(
                "SELECT chat, participant, deadline FROM checkpoints WHERE scope = ?1 AND deadline <= ?2 \
                 ORDER BY deadline, chat, participant LIMIT ?3",
            )?;
            let rows = statement.query_map(params![scope, until.as_millis(), limit], |row| {
                let (chat, participant): (String, Option<String>) = (row.get(0)?, row.get(1)?);
                let key = ConversationKey { chat: chat.into(), participant: participant.map(Into::into) };
                Ok((key, Timestamp::from_millis(row.get(2)?)))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn append_log(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let entries = entries.to_vec();
        let weight = weight(entries.len(), entries.iter().map(|entry| entry.text.len()).sum());
        self.write("append_log", weight, move |tx, scope| append_log(tx, scope, &entries)).await
    }

    async fn log(
        &self,
        chat: &ChatId,
        before: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<(LogPosition, LogEntry)>, StoreError> {
        let before = before.map_or(i64::MAX, |before| i64::try_from(before.0).unwrap_or(i64::MAX));
        let (chat, limit) = (chat.clone(), i64::try_from(limit).unwrap_or(i64::MAX));
        self.read(Lane::Ranges, "log", move |reading, scope| log(reading, scope, &chat, before, limit)).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.client.close().await
    }
}

fn set_user_value(
    tx: &mut Tx<'_>,
    scope: &Arc<str>,
    user: &str,
    name: &str,
    text: Option<&str>,
) -> Result<(), Fault> {
    let rows = if let Some(text) = text {
        let scope = tx.scope(scope)?;
        tx.statement(
            "INSERT INTO user_values (scope, user, name, value) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (scope, user, name) DO UPDATE SET value = excluded.value",
        )?
        .execute(params![scope, user, name, text])?
    } else {
        let Some(scope) = tx.known_scope(scope)? else { return Ok(()) };
        tx.statement("DELETE FROM user_values WHERE scope = ?1 AND user = ?2 AND name = ?3")?
            .execute(params![scope, user, name])?
    };
    tx.changed(rows);
    Ok(())
}

/// A checkpoint to be written.
struct CheckpointRow {
    conversation: String,
    key: ConversationKey,
    fence: i64,
    session: SessionId,
    deadline: Option<i64>,
    body: String,
}

impl CheckpointRow {
    /// Its revision, if it was written.
    fn write(
        &self,
        tx: &mut Tx<'_>,
        scope: &Arc<str>,
        expected: Option<i64>,
    ) -> Result<Option<Revision>, Fault> {
        let Self { conversation, key, fence, session, deadline, body } = self;
        let session = session.as_str();
        let revision: Option<i64> = if let Some(expected) = expected {
            let Some(scope) = tx.known_scope(scope)? else { return Ok(None) };
            tx.statement(UPDATE_CHECKPOINT)?
                .query_row(
                    params![scope, conversation, expected, fence, session, deadline, CHECKPOINT_FORMAT, body],
                    |row| row.get(0),
                )
                .optional()?
        } else {
            let scope = tx.scope(scope)?;
            let (chat, participant) =
                (key.chat.as_str(), key.participant.as_ref().map(ParticipantId::as_str));
            tx.statement(INSERT_CHECKPOINT)?
                .query_row(
                    params![
                        scope,
                        conversation,
                        chat,
                        participant,
                        fence,
                        session,
                        deadline,
                        CHECKPOINT_FORMAT,
                        body
                    ],
                    |row| row.get(0),
                )
                .optional()?
        };
        tx.changed(usize::from(revision.is_some()));
        revision.map(|revision| unsigned(revision, "revision").map(Revision)).transpose()
    }
}

/// The checkpoint as JSON, without what the columns say.
fn checkpoint_body(operation: &'static str, checkpoint: &Checkpoint) -> Result<String, StoreError> {
    let mut body = serde_json::to_value(checkpoint).map_err(|error| not_json(operation, error))?;
    if let Value::Object(fields) = &mut body {
        for column in ["revision", "fence", "session"] {
            fields.remove(column);
        }
    }
    to_json(operation, &body)
}

/// A checkpoint as it was stored.
struct StoredCheckpoint {
    format: i64,
    body: String,
    revision: i64,
    fence: i64,
    session: String,
}

impl StoredCheckpoint {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            format: row.get(0)?,
            body: row.get(1)?,
            revision: row.get(2)?,
            fence: row.get(3)?,
            session: row.get(4)?,
        })
    }

    fn read(self, conversation: &str) -> Result<Checkpoint, Fault> {
        let Self { format, body, revision, fence, session } = self;
        if format > CHECKPOINT_FORMAT {
            return Err(Fault::own(
                StoreErrorKind::Incompatible,
                format!(
                    "the checkpoint of conversation {conversation} has format {format}, and this program knows formats \
                     up to {CHECKPOINT_FORMAT}; upgrade the program"
                ),
            ));
        }
        let read: Checkpoint = from_json(&body, &format!("the checkpoint of conversation {conversation}"))?;
        Ok(Checkpoint {
            revision: Revision(unsigned(revision, "revision")?),
            fence: Fence(unsigned(fence, "fence")?),
            session: session.into(),
            ..read
        })
    }
}

fn append_log(tx: &mut Tx<'_>, scope: &Arc<str>, entries: &[LogEntry]) -> Result<(), Fault> {
    let scope = tx.scope(scope)?;
    for entry in entries {
        let position = tx.next_number()?;
        let direction = match entry.direction {
            Direction::In => "in",
            Direction::Out => "out",
        };
        let rows = tx
            .statement(
                "INSERT INTO log (scope, chat, position, direction, at, message, text) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![
                scope,
                entry.chat.as_str(),
                position,
                direction,
                entry.at.as_millis(),
                entry.message.as_str(),
                entry.text
            ])?;
        tx.changed(rows);
    }
    Ok(())
}

fn log(
    reading: &Reading<'_>,
    scope: i64,
    chat: &ChatId,
    before: i64,
    limit: i64,
) -> Result<Vec<(LogPosition, LogEntry)>, Fault> {
    let mut statement = reading.statement(
        "SELECT position, direction, at, message, text FROM log \
         WHERE scope = ?1 AND chat = ?2 AND position < ?3 ORDER BY position DESC LIMIT ?4",
    )?;
    let rows = statement.query_map(params![scope, chat.as_str(), before, limit], |row| {
        let (position, direction): (i64, String) = (row.get(0)?, row.get(1)?);
        let (at, message, text) = (row.get(2)?, row.get::<_, String>(3)?, row.get(4)?);
        Ok((position, direction, at, message, text))
    })?;
    rows.map(|row| {
        let (position, direction, at, message, text) = row?;
        let direction = match direction.as_str() {
            "in" => Direction::In,
            "out" => Direction::Out,
            other => return Err(corrupt(format!("the log has the unknown direction `{other}`"))),
        };
        let position = unsigned(position, "position")?;
        let (at, message) = (Timestamp::from_millis(at), MessageId::from(message));
        Ok((LogPosition(position), LogEntry { chat: chat.clone(), direction, at, message, text }))
    })
    .collect()
}

fn corrupt(what: impl Into<String>) -> Fault {
    Fault::own(StoreErrorKind::Corrupt, format!("{}; restore a backup", what.into()))
}

fn unsigned(number: i64, what: &str) -> Result<u64, Fault> {
    u64::try_from(number).map_err(|_| corrupt(format!("a stored {what} is negative")))
}

fn to_json(operation: &'static str, value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| not_json(operation, error))
}

fn not_json(operation: &'static str, error: serde_json::Error) -> StoreError {
    StoreError::new(StoreErrorKind::Misuse, BACKEND, operation, "the value cannot be written as JSON")
        .with_source(error)
}

fn from_json<T: DeserializeOwned>(text: &str, what: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| corrupt(format!("{what} cannot be read ({error})")))
}

fn stored_fence(operation: &'static str, fence: Fence) -> Result<i64, StoreError> {
    i64::try_from(fence.0).map_err(|_| {
        let message = format!("the fence {} is beyond {}, SQLite's largest number", fence.0, i64::MAX);
        StoreError::new(StoreErrorKind::Misuse, BACKEND, operation, message)
    })
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
