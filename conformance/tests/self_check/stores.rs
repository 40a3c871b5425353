use std::sync::Arc;

use botmesh_conformance::{Backend, Claims, OpenError, Opened, Place};
use botmesh_core::async_trait;
use botmesh_core::coordinator::{Fence, Turn, TurnHandle};
use botmesh_core::error::{Cas, LeaseLost, LeaseLostReason, StoreError};
use botmesh_core::id::{ChatId, ConversationKey, ParticipantId};
use botmesh_core::memory::MemoryStore;
use botmesh_core::scope::Scope;
use botmesh_core::store::{ChatState, Checkpoint, LogEntry, LogPosition, Revision, Store};
use botmesh_core::time::Timestamp;
use serde_json::{Value, json};

use crate::failures;

/// One broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    NamesOverwriteEachOther,
    NullRemoves,
    NumbersAreDoubles,
    RevisionsIgnored,
    FencesIgnored,
    SessionsIgnored,
    ClearsIgnoreRevisions,
    DeadlinesExcluded,
    ScopesShared,
    LogPagesRepeat,
    LogOldestFirst,
    OpenAfterClose,
}

/// The reference with one rule broken.
#[derive(Clone)]
struct Broken {
    bug: Bug,
    inner: Arc<dyn Store>,
}

struct Gone;

#[async_trait]
impl TurnHandle for Gone {
    fn check(&self) -> Result<(), LeaseLost> {
        Err(LeaseLost { reason: LeaseLostReason::Released })
    }

    async fn lost(&self) -> LeaseLost {
        LeaseLost { reason: LeaseLostReason::Released }
    }

    fn release(&self) {}
}

impl Broken {
    /// The turn that the reference is told of.
    async fn turn(&self, turn: &Turn, key: &ConversationKey) -> Result<Turn, StoreError> {
        let stored = self.inner.checkpoint(key).await?;
        let Some(stored) = stored else { return Ok(turn.clone()) };
        let forged = |fence: Fence| Turn::new(fence, stored.session.clone(), None, Arc::new(Gone));
        Ok(match self.bug {
            Bug::FencesIgnored => forged(turn.fence().max(stored.fence)),
            Bug::SessionsIgnored => forged(turn.fence()),
            _ => turn.clone(),
        })
    }

    async fn stored_revision(&self, key: &ConversationKey) -> Result<Option<Revision>, StoreError> {
        Ok(self.inner.checkpoint(key).await?.map(|stored| stored.revision))
    }
}

#[async_trait]
impl Store for Broken {
    fn scoped(&self, scope: &Scope) -> Arc<dyn Store> {
        let scope = if self.bug == Bug::ScopesShared { &Scope::default() } else { scope };
        Arc::new(Self { bug: self.bug, inner: self.inner.scoped(scope) })
    }

    async fn chat(&self, chat: &ChatId) -> Result<Option<ChatState>, StoreError> {
        self.inner.chat(chat).await
    }

    async fn set_chat(&self, chat: &ChatId, state: &ChatState) -> Result<(), StoreError> {
        self.inner.set_chat(chat, state).await
    }

    async fn user_value(&self, user: &ParticipantId, name: &str) -> Result<Option<Value>, StoreError> {
        self.inner.user_value(user, name).await
    }

    async fn set_user_value(
        &self,
        user: &ParticipantId,
        name: &str,
        value: Option<&Value>,
    ) -> Result<(), StoreError> {
        if self.bug == Bug::NamesOverwriteEachOther {
            for (other, _) in self.inner.user_values(user).await? {
                self.inner.set_user_value(user, &other, None).await?;
            }
        }
        let value = value.filter(|value| self.bug != Bug::NullRemoves || !value.is_null());
        let double = value.and_then(Value::as_f64).filter(|_| self.bug == Bug::NumbersAreDoubles);
        let double = double.map(|double| json!(double));
        self.inner.set_user_value(user, name, double.as_ref().or(value)).await
    }

    async fn user_values(&self, user: &ParticipantId) -> Result<Vec<(String, Value)>, StoreError> {
        self.inner.user_values(user).await
    }

    async fn checkpoint(&self, key: &ConversationKey) -> Result<Option<Checkpoint>, StoreError> {
        self.inner.checkpoint(key).await
    }

    async fn set_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Option<Revision>,
        checkpoint: &Checkpoint,
    ) -> Result<Cas<Revision>, StoreError> {
        let turn = self.turn(turn, key).await?;
        let ignored = self.bug == Bug::RevisionsIgnored;
        let expect = if ignored { self.stored_revision(key).await? } else { expect };
        self.inner.set_checkpoint(&turn, key, expect, checkpoint).await
    }

    async fn clear_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Revision,
    ) -> Result<Cas<()>, StoreError> {
        let ignored = self.bug == Bug::ClearsIgnoreRevisions;
        let stored = if ignored { self.stored_revision(key).await? } else { None };
        self.inner.clear_checkpoint(turn, key, stored.unwrap_or(expect)).await
    }

    async fn last_fence(&self) -> Result<Fence, StoreError> {
        self.inner.last_fence().await
    }

    async fn due_checkpoints(
        &self,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<(ConversationKey, Timestamp)>, StoreError> {
        let mut due = self.inner.due_checkpoints(until, limit).await?;
        due.retain(|(_, deadline)| self.bug != Bug::DeadlinesExcluded || *deadline < until);
        Ok(due)
    }

    async fn append_log(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        self.inner.append_log(entries).await
    }

    async fn log(
        &self,
        chat: &ChatId,
        before: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<(LogPosition, LogEntry)>, StoreError> {
        let repeated = before.filter(|_| self.bug == Bug::LogPagesRepeat);
        let before = repeated.map(|before| LogPosition(before.0 + 1)).or(before);
        let mut page = self.inner.log(chat, before, limit).await?;
        if self.bug == Bug::LogOldestFirst {
            page.reverse();
        }
        Ok(page)
    }

    async fn close(&self) -> Result<(), StoreError> {
        if self.bug == Bug::OpenAfterClose { Ok(()) } else { self.inner.close().await }
    }
}

#[async_trait]
impl Backend for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn claims(&self) -> Claims {
        Claims::NONE
    }

    async fn open(&self, _: &Place) -> Result<Opened, OpenError> {
        Ok(Opened::store(Arc::new(Self { bug: self.bug, inner: Arc::new(MemoryStore::new()) })))
    }
}

fn broken(bug: Bug) -> Broken {
    Broken { bug, inner: Arc::new(MemoryStore::new()) }
}

#[tokio::test]
async fn every_broken_rule_is_caught_by_its_case() {
    let rules: &[(Bug, &[&str])] = &[
        (Bug::NamesOverwriteEachOther, &["names_of_a_user_are_separate"]),
        (Bug::NullRemoves, &["null_is_a_value"]),
        (Bug::NumbersAreDoubles, &["json_is_exact"]),
        (Bug::RevisionsIgnored, &["a_stale_revision_is_refused", "concurrent_writers_have_one_winner"]),
        (Bug::FencesIgnored, &["an_older_turn_is_refused"]),
        (Bug::SessionsIgnored, &["an_equal_fence_of_another_session_is_refused"]),
        (Bug::ClearsIgnoreRevisions, &["a_stale_revision_is_refused"]),
        (Bug::DeadlinesExcluded, &["due_checkpoints_come_earliest_first"]),
        (Bug::ScopesShared, &["scopes_see_only_their_own"]),
        (Bug::LogPagesRepeat, &["the_log_is_paged_by_position"]),
        (Bug::LogOldestFirst, &["the_log_comes_newest_first"]),
        (Bug::OpenAfterClose, &["a_closed_store_refuses"]),
    ];
    let unbroken = failures(broken(Bug::None), "store").await;
    for (bug, expected) in rules {
        let failed = failures(broken(*bug), "store").await;
        for case in *expected {
            assert!(!unbroken.contains(case), "{case} fails without a bug");
            assert!(failed.contains(case), "{bug:?} is not caught by {case}, only by {failed:?}");
        }
    }
}

#[tokio::test]
async fn random_operations_find_broken_rules_too() {
    let found = [
        Bug::NamesOverwriteEachOther,
        Bug::RevisionsIgnored,
        Bug::FencesIgnored,
        Bug::ClearsIgnoreRevisions,
        Bug::DeadlinesExcluded,
        Bug::LogPagesRepeat,
    ];
    assert!(failures(broken(Bug::None), "model").await.is_empty());
    for bug in found {
        let failed = failures(broken(bug), "model").await;
        assert!(failed.contains(&"store_follows_the_reference"), "{bug:?} is not found");
    }
}
