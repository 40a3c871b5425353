use async_trait::async_trait;
use botmesh_core::coordinator::TurnHandle;
use botmesh_core::error::LeaseLost;
use botmesh_core::id::SessionId;
use botmesh_core::store::CheckpointPhase;
use serde_json::json;

use super::*;

struct Held;

#[async_trait]
impl TurnHandle for Held {
    fn check(&self) -> Result<(), LeaseLost> {
        Ok(())
    }

    async fn lost(&self) -> LeaseLost {
        std::future::pending().await
    }

    fn release(&self) {}
}

fn turn(fence: u64, session: &str) -> Turn {
    Turn::new(Fence(fence), SessionId::from(session), None, Arc::new(Held))
}

fn checkpoint(step: &str) -> Checkpoint {
    Checkpoint {
        flow: "signup".into(),
        version: 1,
        fingerprint: "f".into(),
        step: step.into(),
        phase: CheckpointPhase::Waiting,
        state: json!({"name": "a\0b"}),
        input: None,
        sends: 0,
        begun_with: None,
        input_order: None,
        earlier: Vec::new(),
        answer: None,
        midway: None,
        callers: Vec::new(),
        deadline: None,
        expires: None,
        due: None,
        revision: Checkpoint::unwritten_revision(),
        fence: Fence::default(),
        session: Checkpoint::unwritten_session(),
    }
}

fn with_store<T>(test: impl AsyncFnOnce(SqliteStore, &Path) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(&path).await.unwrap();
        test(store, &path).await
    })
}

#[test]
fn the_statements_follow_the_rule_of_the_core() {
    with_store(async |store, _| {
        let fences = [4, 5, 6];
        let sessions = ["ours", "theirs"];
        let expected = [None, Some(4), Some(5), Some(6), Some(u64::MAX)];
        for clear in [false, true] {
            for (stored, fence, session, expect) in [false, true]
                .into_iter()
                .flat_map(|stored| fences.map(|fence| (stored, fence)))
                .flat_map(|(stored, fence)| sessions.map(|session| (stored, fence, session)))
                .flat_map(|(stored, fence, session)| expected.map(|expect| (stored, fence, session, expect)))
            {
                let key = ConversationKey::private(format!("{clear}{stored}{fence}{session}{expect:?}"));
                if stored {
                    let first = store.set_checkpoint(&turn(5, "ours"), &key, None, &checkpoint("old")).await;
                    assert_eq!(first.unwrap(), Cas::Applied(Revision(5)));
                }
                let before = store.checkpoint(&key).await.unwrap();
                let (turn, expect) = (turn(fence, session), expect.map(Revision));
                let accepts = Checkpoint::accepts(before.as_ref(), expect, &turn);
                let case = format!("stored {stored}, {turn:?}, expect {expect:?}, clear {clear}");
                match (clear, expect) {
                    (true, None) => {}
                    (true, Some(expect)) => {
                        let cleared = store.clear_checkpoint(&turn, &key, expect).await.unwrap();
                        assert_eq!(cleared.applied().is_some(), accepts, "{case}");
                        let after = store.checkpoint(&key).await.unwrap();
                        assert_eq!(after, before.filter(|_| !accepts), "{case}");
                    }
                    (false, expect) => {
                        let set =
                            store.set_checkpoint(&turn, &key, expect, &checkpoint("new")).await.unwrap();
                        let next =
                            Revision::next(before.as_ref().map(|before| before.revision), turn.fence());
                        assert_eq!(set.applied(), accepts.then_some(next), "{case}");
                        let after = store.checkpoint(&key).await.unwrap();
                        if accepts {
                            let (revision, fence, session) = (next, turn.fence(), turn.session().clone());
                            let new = Checkpoint { revision, fence, session, ..checkpoint("new") };
                            assert_eq!(after, Some(new), "{case}");
                        } else {
                            assert_eq!(after, before, "{case}");
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn a_checkpoint_of_a_newer_format_is_refused_by_name() {
    with_store(async |store, path| {
        let key = ConversationKey::private("ana");
        assert_eq!(
            store.set_checkpoint(&turn(1, "s"), &key, None, &checkpoint("old")).await.unwrap(),
            Cas::Applied(Revision(1))
        );
        let other = rusqlite::Connection::open(path).unwrap();
        other.execute("UPDATE checkpoints SET format = 2, body = 'of the future'", []).unwrap();
        let error = store.checkpoint(&key).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Incompatible);
        assert!(error.to_string().contains(&key.encode()), "{error}");
        other.execute("UPDATE checkpoints SET format = 1", []).unwrap();
        assert_eq!(store.checkpoint(&key).await.unwrap_err().kind(), StoreErrorKind::Corrupt);
    });
}

#[test]
fn a_fence_beyond_the_largest_integer_is_misuse() {
    with_store(async |store, _| {
        let key = ConversationKey::private("ana");
        let error =
            store.set_checkpoint(&turn(1 << 63, "s"), &key, None, &checkpoint("x")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Misuse);
        let last = turn((1 << 63) - 1, "s");
        let set = store.set_checkpoint(&last, &key, None, &checkpoint("x")).await.unwrap();
        assert_eq!(set, Cas::Applied(Revision((1 << 63) - 1)));
        // There is no number after the last; what cannot be written again is lost, and never wraps.
        let over = store.set_checkpoint(&last, &key, Some(Revision((1 << 63) - 1)), &checkpoint("y")).await;
        assert_eq!(over.unwrap(), Cas::Lost);
    });
}

#[test]
fn due_checkpoints_come_by_time_chat_and_participant() {
    with_store(async |store, _| {
        let keys = [
            ConversationKey::in_group("a", "x"),
            ConversationKey::private("a"),
            ConversationKey::private("a/b"),
            ConversationKey::private("a%b"),
        ];
        for (n, key) in keys.iter().enumerate() {
            let at = Some(Timestamp::from_millis(if n == 3 { 1 } else { 2 }));
            let due = Checkpoint { due: at, ..checkpoint("x") };
            store.set_checkpoint(&turn(1, "s"), key, None, &due).await.unwrap().applied().unwrap();
        }
        let due = store.due_checkpoints(Timestamp::from_millis(2), 10).await.unwrap();
        let mut expected: Vec<_> =
            keys.iter().enumerate().map(|(n, key)| (if n == 3 { 1 } else { 2 }, key.clone())).collect();
        expected.sort();
        let found: Vec<_> = due.into_iter().map(|(key, deadline)| (deadline.as_millis(), key)).collect();
        assert_eq!(found, expected);
    });
}

#[test]
fn revisions_go_on_after_a_clear() {
    with_store(async |store, path| {
        let key = ConversationKey::private("ana");
        let mut last = 0;
        for fence in [5, 5, 6, 6, 20] {
            let turn = turn(fence, "s");
            let mut expect = None;
            for step in ["a", "b", "c", "d"] {
                let set = store.set_checkpoint(&turn, &key, expect, &checkpoint(step)).await.unwrap();
                let revision = set.applied().unwrap();
                assert!(revision.0 > last && revision.0 >= fence);
                (last, expect) = (revision.0, Some(revision));
            }
            let cleared = store.clear_checkpoint(&turn, &key, Revision(last)).await.unwrap();
            assert_eq!(cleared, Cas::Applied(()));
            assert_eq!(store.checkpoint(&key).await.unwrap(), None);
            let again = store.clear_checkpoint(&turn, &key, Revision(last)).await.unwrap();
            assert_eq!(again, Cas::Lost);
            let stale = store.set_checkpoint(&turn, &key, expect, &checkpoint("e")).await.unwrap();
            assert_eq!(stale, Cas::Lost);
        }
        let other = rusqlite::Connection::open(path).unwrap();
        let rows: i64 = other.query_row("SELECT count(*) FROM checkpoints", [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 1);
    });
}
