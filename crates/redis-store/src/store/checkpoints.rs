//! Checkpoints: one hash each, and an index of those that are due.

use botmesh_core::Bytes;
use botmesh_core::coordinator::{Fence, Turn};
use botmesh_core::error::{Cas, StoreError, StoreErrorKind};
use botmesh_core::id::{ConversationKey, SessionId};
use botmesh_core::store::{Checkpoint, Revision};
use botmesh_core::time::Timestamp;
use serde_json::Value;

use super::{RedisStore, not_json, text, to_json};
use crate::client::Unexpected;
use crate::error::{Access, BACKEND};
use crate::keys::{self, Bounds, PLACE};
use crate::scripts::{CLEAR_CHECKPOINT, SET_CHECKPOINT};

/// The layout of a checkpoint's `body`.
const FORMAT: u32 = 1;

/// How many due checkpoints are asked for at once.
const MOST_DUE: usize = 1_000;

/// The digits of a revision or fence, which scripts compare as texts.
const DIGITS: usize = 20;

fn digits(number: u64) -> Bytes {
    format!("{number:0DIGITS$}").into()
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl RedisStore {
    pub(super) async fn read_checkpoint(
        &self,
        key: &ConversationKey,
    ) -> Result<Option<Checkpoint>, StoreError> {
        let operation = "checkpoint";
        let conversation = key.encode();
        let fields = ["revision", "fence", "session", "format", "body"];
        let args = std::iter::once(self.keys.checkpoint(&conversation)).chain(fields.map(text)).collect();
        let reply = self.hash(operation, "HMGET", args).await?;
        let strange = |what| self.strange(operation, Access::Read, what);
        let row = reply.list().map_err(strange)?.into_iter().map(|field| field.bytes());
        let row = row.collect::<Result<Vec<_>, _>>().map_err(strange)?;
        let [revision, fence, session, format, body] = &row[..] else {
            return Err(strange(Unexpected::new("other fields than were asked for")));
        };
        let Some(revision) = revision else { return Ok(None) };
        let what = format!("the checkpoint of conversation {conversation}");
        let damaged = || self.damaged(operation, &what);
        let in_number =
            |field: &Option<Bytes>| field.as_ref().and_then(|field| number(field)).ok_or_else(damaged);
        let format = in_number(format)?;
        if format > u64::from(FORMAT) {
            let message = format!(
                "{}: {what} has format {format}, and this program knows formats up to {FORMAT}; upgrade the program",
                self.client.place()
            );
            return Err(StoreError::new(StoreErrorKind::Incompatible, BACKEND, operation, message));
        }
        let session = session.as_ref().and_then(|session| std::str::from_utf8(session).ok());
        let body = body.as_ref().ok_or_else(damaged)?;
        Ok(Some(Checkpoint {
            revision: Revision(number(revision).ok_or_else(damaged)?),
            fence: Fence(in_number(fence)?),
            session: SessionId::from(session.ok_or_else(damaged)?),
            ..self.read_json(operation, &what, body)?
        }))
    }

    fn checkpoint_keys(&self, conversation: &str) -> [Bytes; 3] {
        [self.keys.checkpoint(conversation), self.keys.checkpoints_due(), self.keys.checkpoint_bounds()]
    }

    pub(super) async fn write_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Option<Revision>,
        checkpoint: &Checkpoint,
    ) -> Result<Cas<Revision>, StoreError> {
        let operation = "set_checkpoint";
        let conversation = key.encode();
        let due = checkpoint.due.map(|due| member(due, &conversation)).unwrap_or_default();
        let next = match expect {
            // Nothing is stored that could be followed by one more.
            Some(Revision(u64::MAX)) => return Ok(Cas::Lost),
            Some(_) => digits(Revision::next(expect, turn.fence()).0),
            None => Bytes::new(),
        };
        let args = vec![
            expect.map(|revision| digits(revision.0)).unwrap_or_default(),
            digits(fence_of(operation, turn)?),
            text(turn.session().as_str()),
            next,
            due,
            FORMAT.to_string().into(),
            body(operation, checkpoint)?,
        ];
        let keys = self.checkpoint_keys(&conversation);
        let reply = self.client.script(operation, Access::Write, &SET_CHECKPOINT, &keys, args).await?;
        let strange = |what| self.strange(operation, Access::Write, what);
        let Some(revision) = reply.bytes().map_err(&strange)? else { return Ok(Cas::Lost) };
        let revision = number(&revision).ok_or_else(|| strange(Unexpected::new("no revision")))?;
        Ok(Cas::Applied(Revision(revision)))
    }

    pub(super) async fn remove_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Revision,
    ) -> Result<Cas<()>, StoreError> {
        let operation = "clear_checkpoint";
        let args = vec![digits(expect.0), digits(fence_of(operation, turn)?), text(turn.session().as_str())];
        let keys = self.checkpoint_keys(&key.encode());
        let reply = self.client.script(operation, Access::Write, &CLEAR_CHECKPOINT, &keys, args).await?;
        let done = reply.bytes().map_err(|what| self.strange(operation, Access::Write, what))?;
        Ok(done.map_or(Cas::Lost, |_| Cas::Applied(())))
    }

    pub(super) async fn largest_fence(&self) -> Result<Fence, StoreError> {
        let operation = "last_fence";
        let reply = self.hash(operation, "HGET", vec![self.keys.checkpoint_bounds(), text("fence")]).await?;
        let fence = reply.bytes().map_err(|what| self.strange(operation, Access::Read, what))?;
        let Some(fence) = fence else { return Ok(Fence(0)) };
        number(&fence).map(Fence).ok_or_else(|| self.damaged(operation, "the largest fence"))
    }

    pub(super) async fn checkpoints_until(
        &self,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(ConversationKey, Timestamp)>, StoreError> {
        let operation = "due_checkpoints";
        let end = Bounds::before_successor(&keys::place(until.as_millis()));
        let (mut due, mut from) = (Vec::new(), Bytes::from_static(b"-"));
        while due.len() < limit {
            let most = (limit - due.len()).min(MOST_DUE);
            let mut args = vec![self.keys.checkpoints_due(), from, end.clone()];
            args.extend([text("LIMIT"), text("0"), most.to_string().into()]);
            let reply = self.client.command(operation, Access::Read, "ZRANGEBYLEX", args).await?;
            let members = reply.texts().map_err(|what| self.strange(operation, Access::Read, what))?;
            for member in &members {
                let read = read_member(member);
                due.push(read.ok_or_else(|| self.damaged(operation, "the index of due checkpoints"))?);
            }
            match members.last() {
                Some(last) if members.len() == most => from = Bounds::behind(last),
                _ => break,
            }
        }
        Ok(due)
    }
}

/// A place in the index of due checkpoints.
fn member(due: Timestamp, conversation: &str) -> Bytes {
    [&keys::place(due.as_millis())[..], conversation.as_bytes()].concat().into()
}

fn read_member(member: &[u8]) -> Option<(ConversationKey, Timestamp)> {
    let conversation = std::str::from_utf8(member.get(PLACE..)?).ok()?;
    Some((keys::conversation(conversation)?, Timestamp::from_millis(keys::placed(member)?)))
}

/// The checkpoint as JSON, without what has fields of its own.
fn body(operation: &'static str, checkpoint: &Checkpoint) -> Result<Bytes, StoreError> {
    let mut body = serde_json::to_value(checkpoint).map_err(|error| not_json(operation, error))?;
    if let Value::Object(fields) = &mut body {
        for own in ["revision", "fence", "session"] {
            fields.remove(own);
        }
    }
    to_json(operation, &body)
}

/// Far from the largest number, so that revisions above it have room.
fn fence_of(operation: &'static str, turn: &Turn) -> Result<u64, StoreError> {
    let fence = turn.fence().0;
    if fence <= u64::MAX / 2 {
        return Ok(fence);
    }
    let message = format!("the fence {fence} is beyond {}, the largest that is taken", u64::MAX / 2);
    Err(StoreError::new(StoreErrorKind::Misuse, BACKEND, operation, message))
}
