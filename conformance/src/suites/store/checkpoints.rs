//! Checkpoints: compare-and-set on the revision, and what is stored.

use std::sync::Arc;

use botmesh_core::coordinator::Fence;
use botmesh_core::error::Cas;
use botmesh_core::id::{ConversationKey, MessageId, ParticipantId, RecordId, SessionId};
use botmesh_core::inbound::{Inbound, InboundBody, InboundMedia, Participant};
use botmesh_core::media::MediaRef;
use botmesh_core::store::{Caller, Checkpoint, CheckpointPhase, Midway, RecordedAnswer, Revision};
use botmesh_core::time::Timestamp;

use super::tools::{
    LOOK_ALIKES, applied, conversation, exact_values, existing, is_lost, plain_checkpoint, same_json, turn,
};
use crate::case::{cases, ensure, ensure_eq};
use crate::suites::parallel::parallel;
use crate::{Case, CaseResult, Context, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_first_checkpoint_expects_none: "a first write expects no checkpoint, a second one the revision of the first",
        a_stale_revision_is_refused: "a write or clear of another revision is refused and changes nothing",
        a_checkpoint_takes_over_its_turn: "revision, fence and session are those of the write, not those passed in",
        a_checkpoint_is_exact: "every field comes back as it was, with every phase",
        the_state_is_exact: "JSON in the state comes back as it was, to the last bit",
        revisions_grow: "each write has a larger revision than the one before, and at least the fence",
        a_cleared_checkpoint_is_gone: "after a clear there is none, and a stale revision is refused",
        revisions_grow_beyond_a_clear_in_a_later_turn: "a checkpoint made again in a later turn has a larger revision",
        revisions_grow_beyond_a_clear_in_one_turn: "a checkpoint made again in the same turn has a larger revision",
        the_largest_fence_is_remembered: "the largest fence of the scope's checkpoints is known, zero without any",
        conversations_are_separate: "keys that look alike, in private chats and in groups, have their own checkpoints",
        concurrent_writers_have_one_winner: "of writers that expect the same revision one is applied",
    ]
}

async fn a_first_checkpoint_expects_none(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let (key, turn) = (conversation("ana"), turn(7, "s1"));
    ensure!(store.checkpoint(&key).await?.is_none(), "the case does not start empty");
    ensure!(is_lost(&store, &turn, &key, Some(Revision(7))).await?, "a first write that expects a revision");
    ensure!(store.clear_checkpoint(&turn, &key, Revision(7)).await? == Cas::Lost, "a clear of none");
    let first = applied(&store, &turn, &key, None, &plain_checkpoint("name")).await?;
    ensure!(is_lost(&store, &turn, &key, None).await?, "a second write that expects none");
    let second = applied(&store, &turn, &key, Some(first), &plain_checkpoint("day")).await?;
    let found = existing(&store, &key).await?;
    ensure_eq!((found.step.as_str(), found.revision), ("day", second), "the checkpoint");
    PASSED
}

async fn the_largest_fence_is_remembered(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    ensure_eq!(store.last_fence().await?, Fence(0), "the largest fence of an empty store");
    for (chat, fence) in [("ana", 7), ("bob", 1_785_000_000_000_000), ("eve", 9)] {
        applied(&store, &turn(fence, "s1"), &conversation(chat), None, &plain_checkpoint("name")).await?;
    }
    ensure_eq!(store.last_fence().await?, Fence(1_785_000_000_000_000), "the largest fence");
    PASSED
}

async fn a_stale_revision_is_refused(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let (key, turn) = (conversation("ana"), turn(7, "s1"));
    let first = applied(&store, &turn, &key, None, &plain_checkpoint("name")).await?;
    let mut with_deadline = plain_checkpoint("day");
    with_deadline.due = Some(Timestamp::from_millis(10));
    let second = applied(&store, &turn, &key, Some(first), &with_deadline).await?;
    let before = existing(&store, &key).await?;
    for wrong in
        [first, Revision(0), Revision(second.0 + 1), Revision(i64::MAX.unsigned_abs()), Revision(u64::MAX)]
    {
        ensure!(is_lost(&store, &turn, &key, Some(wrong)).await?, "a write that expects {wrong:?}");
        let cleared = store.clear_checkpoint(&turn, &key, wrong).await?;
        ensure_eq!(cleared, Cas::Lost, "a clear that expects {wrong:?}");
    }
    ensure_eq!(existing(&store, &key).await?, before, "the checkpoint after refused writes");
    let due = store.due_checkpoints(Timestamp::MAX, 10).await?;
    ensure_eq!(due, [(key, Timestamp::from_millis(10))], "the deadline after refused writes");
    PASSED
}

async fn a_checkpoint_takes_over_its_turn(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let key = conversation("ana");
    let mut checkpoint = plain_checkpoint("name");
    checkpoint.revision = Revision(999);
    checkpoint.fence = Fence(888);
    checkpoint.session = SessionId::from("forged");
    let revision = applied(&store, &turn(7, "s1"), &key, None, &checkpoint).await?;
    let found = existing(&store, &key).await?;
    let expected = (revision, Fence(7), SessionId::from("s1"));
    ensure_eq!((found.revision, found.fence, found.session), expected, "revision, fence and session");
    ensure!(revision < Revision(888), "the revision {revision:?} follows what was passed in");
    PASSED
}

/// An answer with all that a message may have.
fn picture() -> Inbound {
    let token = serde_json::json!({ "file": [9_007_199_254_740_993_i64, null, "a\0b"] });
    let body = InboundBody::Image(InboundMedia {
        media: MediaRef { provider: "mock".to_owned(), token },
        caption: Some("my caf\u{e9} \u{1F600}".to_owned()),
        mime: Some("image/png".to_owned()),
        file_name: Some("a/b.png".to_owned()),
        album: Some("13579".to_owned()),
    });
    let sender = Some(Participant::new(ParticipantId::from("300000000")));
    let reply_to = Some(MessageId::from("m/1"));
    Inbound { sender, group: true, reply_to, ..Inbound::private("e", "-1001557912345", body) }
}

async fn a_checkpoint_is_exact(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let phases =
        [CheckpointPhase::Waiting, CheckpointPhase::Running, CheckpointPhase::Ended, CheckpointPhase::Stub];
    for (n, phase) in phases.into_iter().enumerate() {
        let key = ConversationKey::in_group("-1001557912345", format!("user {n}"));
        let checkpoint = Checkpoint {
            flow: "flow \u{1F600} a\0b".into(),
            version: u32::MAX,
            fingerprint: "9e3779b97f4a7c15".into(),
            step: String::new(),
            phase,
            input: (n % 2 == 0).then(|| RecordId::from("m/-1001557912345/300000000%2F")),
            sends: u32::MAX - 1,
            midway: (n % 2 == 1).then(|| Midway {
                question: u32::MAX,
                key_base: Some("m/1:r7".into()),
                first_send: 3,
            }),
            callers: vec![Caller {
                flow: "outer".into(),
                version: 2,
                fingerprint: "0".into(),
                step: "inner".into(),
                state: serde_json::json!({ "a": [1, null] }),
            }],
            deadline: (n > 1).then(|| Timestamp::from_millis(9_007_199_254_740_993)),
            expires: (n > 1).then(|| Timestamp::from_millis(9_007_199_254_740_995)),
            due: (n > 1).then(|| Timestamp::from_millis(9_007_199_254_740_997)),
            begun_with: Some(serde_json::json!({ "a": null })),
            input_order: Some(-9_007_199_254_740_993),
            earlier: vec!["m/0".into(), "m/é".into()],
            answer: Some(RecordedAnswer {
                record: Some("m/1".into()),
                inbound: Some(Arc::new(picture())),
                text: Some("yes, as the hook heard it".into()),
                received: Timestamp::from_millis(4),
            }),
            ..plain_checkpoint("")
        };
        let revision = applied(&store, &turn(7, "s1"), &key, None, &checkpoint).await?;
        let expected = Checkpoint { revision, fence: Fence(7), session: SessionId::from("s1"), ..checkpoint };
        ensure_eq!(existing(&store, &key).await?, expected, "the checkpoint");
    }
    PASSED
}

async fn the_state_is_exact(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let (key, turn) = (conversation("ana"), turn(7, "s1"));
    let mut revision = None;
    for value in exact_values() {
        let checkpoint = Checkpoint { state: value.clone(), ..plain_checkpoint("name") };
        revision = Some(applied(&store, &turn, &key, revision, &checkpoint).await?);
        let found = existing(&store, &key).await?.state;
        ensure!(same_json(&found, &value), "{value} came back as {found}");
    }
    PASSED
}

async fn revisions_grow(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let key = conversation("ana");
    let (mut last, mut expect) = (Revision(0), None);
    for fence in [5, 5, 5, 6, 7, 7, 100, 101, 5_000] {
        let next = applied(&store, &turn(fence, "s1"), &key, expect, &plain_checkpoint("name")).await?;
        ensure!(next > last, "revision {next:?} after {last:?}");
        ensure!(next.0 >= fence, "revision {next:?} under fence {fence}");
        ensure_eq!(existing(&store, &key).await?.revision, next, "the revision that is read");
        (last, expect) = (next, Some(next));
    }
    PASSED
}

async fn a_cleared_checkpoint_is_gone(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let (key, turn) = (conversation("ana"), turn(7, "s1"));
    let revision = applied(&store, &turn, &key, None, &plain_checkpoint("name")).await?;
    ensure_eq!(store.clear_checkpoint(&turn, &key, revision).await?, Cas::Applied(()), "the clear");
    ensure!(store.checkpoint(&key).await?.is_none(), "the cleared checkpoint is there");
    ensure!(is_lost(&store, &turn, &key, Some(revision)).await?, "a write that expects the cleared revision");
    ensure_eq!(store.clear_checkpoint(&turn, &key, revision).await?, Cas::Lost, "a second clear");
    ensure!(store.checkpoint(&key).await?.is_none(), "a refused write made a checkpoint");
    PASSED
}

async fn grows_beyond_a_clear(context: &Context, later: u64) -> CaseResult {
    const WRITES: u64 = 5;
    let store = context.store()?;
    let (key, first) = (conversation("ana"), turn(1_000, "s1"));
    let mut revision = applied(&store, &first, &key, None, &plain_checkpoint("start")).await?;
    for _ in 0..WRITES {
        revision = applied(&store, &first, &key, Some(revision), &plain_checkpoint("next")).await?;
    }
    ensure_eq!(store.clear_checkpoint(&first, &key, revision).await?, Cas::Applied(()), "the clear");
    let again = turn(later, "s1");
    let new = applied(&store, &again, &key, None, &plain_checkpoint("again")).await?;
    ensure!(new > revision, "the new checkpoint has revision {new:?}, the cleared one had {revision:?}");
    ensure!(
        is_lost(&store, &again, &key, Some(revision)).await?,
        "a write that expects the cleared revision"
    );
    PASSED
}

async fn revisions_grow_beyond_a_clear_in_a_later_turn(context: &mut Context) -> CaseResult {
    grows_beyond_a_clear(context, 2_000).await
}

async fn revisions_grow_beyond_a_clear_in_one_turn(context: &mut Context) -> CaseResult {
    grows_beyond_a_clear(context, 1_000).await
}

async fn conversations_are_separate(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let turn = turn(7, "s1");
    let groups = [
        ("a", "b"),
        ("a/b", "c"),
        ("a", "b/c"),
        ("a", ""),
        ("-1001557912345", "1"),
        ("a%2Fb", "c"),
        ("c", "a"),
    ];
    let mut keys: Vec<_> = LOOK_ALIKES.iter().map(|chat| conversation(chat)).collect();
    keys.extend(groups.map(|(chat, participant)| ConversationKey::in_group(chat, participant)));
    for (n, key) in keys.iter().enumerate() {
        ensure!(store.checkpoint(key).await?.is_none(), "the key {key:?} is taken for an earlier one");
        let due = i64::try_from(n).ok().map(Timestamp::from_millis);
        let checkpoint = Checkpoint { due, ..plain_checkpoint(&n.to_string()) };
        applied(&store, &turn, key, None, &checkpoint).await?;
    }
    for (n, key) in keys.iter().enumerate() {
        ensure_eq!(existing(&store, key).await?.step, n.to_string(), "the step of {key:?}");
    }
    let due = store.due_checkpoints(Timestamp::MAX, 1_000).await?;
    let due: Vec<_> = due.into_iter().map(|(key, _)| key).collect();
    ensure_eq!(due, keys, "the keys by deadline");
    PASSED
}

async fn concurrent_writers_have_one_winner(context: &mut Context) -> CaseResult {
    const WRITERS: usize = 8;
    let store = context.store()?;
    let key = conversation("ana");
    let mut expect = None;
    for round in 0..10_u64 {
        let tasks = (0..WRITERS).map(|writer| {
            let (store, key) = (Arc::clone(&store), key.clone());
            async move {
                let (turn, checkpoint) = (turn(7, "s1"), plain_checkpoint(&writer.to_string()));
                Ok(store.set_checkpoint(&turn, &key, expect, &checkpoint).await?)
            }
        });
        let outcomes = parallel(tasks).await?;
        let found = existing(&store, &key).await?;
        for (writer, outcome) in outcomes.into_iter().enumerate() {
            let won = found.step == writer.to_string();
            let expected = if won { Cas::Applied(found.revision) } else { Cas::Lost };
            ensure_eq!(outcome, expected, "writer {writer} in round {round}");
        }
        expect = Some(found.revision);
    }
    PASSED
}
