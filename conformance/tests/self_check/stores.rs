use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use botmesh_conformance::{Backend, Claims, OpenError, Opened, Place, Runner};
use botmesh_core::async_trait;
use botmesh_core::coordinator::{Fence, Turn, TurnHandle};
use botmesh_core::error::{Cas, LeaseLost, LeaseLostReason, StoreError};
use botmesh_core::id::{ChatId, ConversationKey, ParticipantId};
use botmesh_core::inbound::InboundBody;
use botmesh_core::memory::{MemoryKv, MemoryStore};
use botmesh_core::scope::Scope;
use botmesh_core::store::{ChatState, Checkpoint, CheckpointPhase, LogEntry, LogPosition, Revision, Store};
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
    /// What a row says of this is not kept.
    Loses(Field),
    /// When a row is due is kept in whole minutes.
    DueInMinutes,
    /// Every write and clear is applied, as if nobody else wrote.
    NothingIsCompared,
    /// Every clear is applied.
    ClearsAlways,
    ClearedRowsStay,
    RevisionsRestart,
    FencesForgotten,
}

/// What a checkpoint says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    State,
    Answer,
    AnsweringMessage,
    Caption,
    Input,
    Earlier,
    Midway,
    Callers,
    BegunWith,
    Fingerprint,
    Expires,
    Deadline,
    Due,
    Phase,
}

impl Field {
    fn lose(self, row: &mut Checkpoint) {
        match self {
            Self::State => row.state = Value::Null,
            Self::Answer => row.answer = None,
            Self::AnsweringMessage => row.answer.iter_mut().for_each(|answer| answer.inbound = None),
            Self::Caption => {
                let message = row.answer.as_mut().and_then(|answer| answer.inbound.as_mut());
                if let Some(InboundBody::Image(media)) =
                    message.map(|message| &mut Arc::make_mut(message).body)
                {
                    media.caption = None;
                }
            }
            Self::Input => (row.input, row.input_order) = (None, None),
            Self::Earlier => row.earlier.clear(),
            Self::Midway => row.midway = None,
            Self::Callers => row.callers.clear(),
            Self::BegunWith => row.begun_with = None,
            Self::Fingerprint => row.fingerprint.clear(),
            Self::Expires => row.expires = None,
            Self::Deadline => row.deadline = None,
            Self::Due => row.due = None,
            Self::Phase => row.phase = CheckpointPhase::Waiting,
        }
    }
}

/// The reference with one rule broken.
#[derive(Clone)]
struct Broken {
    bug: Bug,
    inner: Arc<dyn Store>,
    clears: Arc<AtomicU64>,
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
    /// Where the reference keeps the checkpoints.
    fn rows(&self) -> Arc<dyn Store> {
        match (self.bug, self.clears.load(Ordering::Relaxed)) {
            (Bug::RevisionsRestart, clears @ 1..) => {
                self.inner.scoped(&Scope::bot(format!("after {clears} clears")))
            }
            _ => Arc::clone(&self.inner),
        }
    }

    /// The turn that the reference is told of.
    async fn turn(&self, turn: &Turn, key: &ConversationKey) -> Result<Turn, StoreError> {
        let stored = self.inner.checkpoint(key).await?;
        let Some(stored) = stored else { return Ok(turn.clone()) };
        let forged = |fence: Fence| Turn::new(fence, stored.session.clone(), None, Arc::new(Gone));
        Ok(match self.bug {
            Bug::FencesIgnored | Bug::NothingIsCompared | Bug::ClearsAlways => {
                forged(turn.fence().max(stored.fence))
            }
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
        Arc::new(Self { inner: self.inner.scoped(scope), ..self.clone() })
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
        self.rows().checkpoint(key).await
    }

    async fn set_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Option<Revision>,
        checkpoint: &Checkpoint,
    ) -> Result<Cas<Revision>, StoreError> {
        let turn = if self.bug == Bug::ClearsAlways { turn } else { &self.turn(turn, key).await? };
        let ignored = matches!(self.bug, Bug::RevisionsIgnored | Bug::NothingIsCompared);
        let expect = if ignored { self.stored_revision(key).await? } else { expect };
        let mut row = checkpoint.clone();
        match self.bug {
            Bug::Loses(field) => field.lose(&mut row),
            Bug::DueInMinutes => {
                row.due = row.due.map(|due| Timestamp::from_millis(due.as_millis() / 60_000 * 60_000));
            }
            _ => {}
        }
        self.rows().set_checkpoint(turn, key, expect, &row).await
    }

    async fn clear_checkpoint(
        &self,
        turn: &Turn,
        key: &ConversationKey,
        expect: Revision,
    ) -> Result<Cas<()>, StoreError> {
        let always = matches!(self.bug, Bug::NothingIsCompared | Bug::ClearsAlways);
        let ignored = always || self.bug == Bug::ClearsIgnoreRevisions;
        let stored = if ignored { self.stored_revision(key).await? } else { None };
        let turn = if always { &self.turn(turn, key).await? } else { turn };
        if self.bug == Bug::ClearedRowsStay {
            return Ok(Cas::Applied(()));
        }
        let cleared = self.rows().clear_checkpoint(turn, key, stored.unwrap_or(expect)).await?;
        if cleared == Cas::Applied(()) {
            self.clears.fetch_add(1, Ordering::Relaxed);
        }
        Ok(cleared)
    }

    async fn last_fence(&self) -> Result<Fence, StoreError> {
        let last = self.inner.last_fence().await?;
        Ok(if self.bug == Bug::FencesForgotten { Fence(0) } else { last })
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
        Ok(Opened::kv(Arc::new(MemoryKv::new())).with_store(Arc::new(broken(self.bug))))
    }
}

fn broken(bug: Bug) -> Broken {
    Broken { bug, inner: Arc::new(MemoryStore::new()), clears: Arc::default() }
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

/// The cases among these that fail.
async fn failures_among(bug: Bug, cases: &[&str]) -> Vec<String> {
    let mut runner = Runner::new(7).with_backend(Arc::new(broken(bug)));
    for case in cases {
        runner = runner.with_suite(case).unwrap();
    }
    let report = runner.run(|_| ()).await.unwrap();
    report.failures().map(|case| case.name()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_store_that_no_conversation_survives_is_caught_by_its_case() {
    use Field::{
        Answer, AnsweringMessage, BegunWith, Callers, Caption, Deadline, Due, Earlier, Expires, Fingerprint,
        Input, Midway, Phase, State,
    };
    let exact = "store::a_checkpoint_is_exact";
    let rules: &[(Bug, &[&str])] = &[
        (Bug::Loses(State), &["handover::a_persistent_flow_goes_on_elsewhere"]),
        (Bug::Loses(Answer), &[exact, "handover::a_step_cut_short_keeps_its_answer"]),
        (Bug::Loses(AnsweringMessage), &[exact, "handover::an_answer_is_kept_without_journals"]),
        (Bug::Loses(Caption), &[exact, "handover::a_picture_is_kept_without_journals"]),
        (Bug::Loses(Input), &[exact, "handover::a_message_is_acknowledged_after_its_checkpoint"]),
        (Bug::Loses(Earlier), &[exact, "handover::messages_before_the_last_are_remembered"]),
        (Bug::Loses(Midway), &[exact, "handover::a_step_that_asks_goes_on_elsewhere"]),
        (Bug::Loses(Callers), &[exact, "handover::a_called_flow_goes_on_elsewhere"]),
        (Bug::Loses(BegunWith), &[exact, "handover::what_a_flow_began_with_is_kept"]),
        (Bug::Loses(Fingerprint), &[exact, "handover::a_forwarded_flow_goes_on_within_its_time"]),
        (Bug::Loses(Expires), &[exact, "handover::a_forwarded_flow_goes_on_within_its_time"]),
        (Bug::Loses(Deadline), &[exact, "handover::a_timer_of_a_dead_replica_fires_elsewhere"]),
        (Bug::Loses(Due), &[exact, "handover::a_timer_of_a_dead_replica_fires_elsewhere"]),
        (Bug::Loses(Phase), &[exact, "handover::a_conversation_in_memory_is_told_of"]),
        (Bug::DueInMinutes, &[exact, "store::due_checkpoints_come_earliest_first"]),
        (Bug::NothingIsCompared, &["handover::a_late_write_is_refused"]),
        (Bug::ClearsIgnoreRevisions, &["store::a_stale_revision_is_refused"]),
        (Bug::ClearsAlways, &["handover::a_late_clear_leaves_the_newer_row"]),
        (Bug::ClearedRowsStay, &["handover::a_conversation_in_memory_writes_twice"]),
        (
            Bug::RevisionsRestart,
            &[
                "store::revisions_grow_beyond_a_clear_in_one_turn",
                "handover::revisions_go_on_after_a_conversation",
            ],
        ),
        (
            Bug::FencesForgotten,
            &["store::the_largest_fence_is_remembered", "handover::turns_follow_what_the_store_has_seen"],
        ),
    ];
    let all: Vec<_> = rules.iter().flat_map(|(_, cases)| cases.iter().copied()).collect();
    assert_eq!(failures_among(Bug::None, &all).await, [""; 0]);
    for (bug, cases) in rules {
        assert_eq!(
            failures_among(*bug, cases).await.len(),
            cases.len(),
            "{bug:?} is not caught by {cases:?}"
        );
    }
}

/// The reference without journals.
struct WithoutJournals;

#[async_trait]
impl Backend for WithoutJournals {
    fn name(&self) -> &str {
        "without-journals"
    }

    fn claims(&self) -> Claims {
        Claims::NONE
    }

    async fn open(&self, _: &Place) -> Result<Opened, OpenError> {
        Ok(Opened::store(Arc::new(MemoryStore::new())))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_journals_hands_conversations_over_too() {
    let backend = Arc::new(WithoutJournals);
    let runner = Runner::new(7).with_backend(backend).with_suite("handover").unwrap();
    let report = runner.run(|_| ()).await.unwrap();
    assert_eq!(report.failures().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
    let case = |name| report.cases().iter().find(|case| case.case == name).unwrap().words();
    assert_eq!(case("a_persistent_flow_goes_on_elsewhere"), "passed");
    assert_eq!(case("a_step_that_asks_goes_on_elsewhere"), "passed");
    assert_eq!(case("a_step_cut_short_keeps_its_answer"), "not claimed");
    assert_eq!(case("a_process_goes_on_with_a_persistent_flow"), "not claimed");
}
