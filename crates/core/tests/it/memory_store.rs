use std::sync::Arc;

use botmesh_core::async_trait;
use botmesh_core::coordinator::{Fence, Turn, TurnHandle};
use botmesh_core::error::{Cas, LeaseLost, StoreErrorKind};
use botmesh_core::id::{ChatId, ConversationKey, MessageId, ParticipantId, SessionId};
use botmesh_core::memory::MemoryStore;
use botmesh_core::scope::Scope;
use botmesh_core::store::{ChatState, Checkpoint, CheckpointPhase, Direction, LogEntry, Revision, Store};
use botmesh_core::time::Timestamp;

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

fn checkpoint(step: &str, due: Option<i64>) -> Checkpoint {
    Checkpoint {
        flow: "signup".to_owned(),
        version: 1,
        fingerprint: "f".to_owned(),
        step: step.to_owned(),
        phase: CheckpointPhase::Waiting,
        state: serde_json::json!({}),
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
        due: due.map(Timestamp::from_millis),
        revision: Checkpoint::unwritten_revision(),
        fence: Fence(0),
        session: Checkpoint::unwritten_session(),
    }
}

fn message(chat: &str, id: &str) -> LogEntry {
    LogEntry {
        chat: ChatId::from(chat),
        direction: Direction::In,
        at: Timestamp::from_millis(1),
        message: MessageId::from(id),
        text: id.to_owned(),
    }
}

#[tokio::test]
async fn a_checkpoint_carries_the_turn_that_wrote_it() {
    let store = MemoryStore::new();
    let key = ConversationKey::private("anna");
    let written = store.set_checkpoint(&turn(7, "a"), &key, None, &checkpoint("name", None)).await.unwrap();
    assert_eq!(written, Cas::Applied(Revision(7)));
    let row = store.checkpoint(&key).await.unwrap().unwrap();
    assert_eq!((row.revision, row.fence, row.session.as_str()), (Revision(7), Fence(7), "a"));
    assert_eq!(row.step, "name");
}

#[tokio::test]
async fn a_checkpoint_refuses_what_is_stale() {
    let key = ConversationKey::private("anna");
    // (fence, session, expected revision, accepted), against a row of fence 7, session a, revision 7.
    let cases = [
        (7, "a", Some(7), true),
        (8, "b", Some(7), true),
        (7, "b", Some(7), false),
        (6, "a", Some(7), false),
        (8, "b", Some(6), false),
        (8, "b", None, false),
    ];
    for case @ (fence, session, expect, accepted) in cases {
        let store = MemoryStore::new();
        let _ = store.set_checkpoint(&turn(7, "a"), &key, None, &checkpoint("name", None)).await.unwrap();
        let expect = expect.map(Revision);
        let next = checkpoint("day", None);
        let set = store.set_checkpoint(&turn(fence, session), &key, expect, &next).await.unwrap();
        assert_eq!(set.applied().is_some(), accepted, "set {case:?}");
        let step = store.checkpoint(&key).await.unwrap().unwrap().step;
        assert_eq!(step, if accepted { "day" } else { "name" }, "{case:?}");
    }
    for (fence, session, expect, accepted) in cases {
        let Some(expect) = expect.map(Revision) else { continue };
        let store = MemoryStore::new();
        let _ = store.set_checkpoint(&turn(7, "a"), &key, None, &checkpoint("name", None)).await.unwrap();
        let cleared = store.clear_checkpoint(&turn(fence, session), &key, expect).await.unwrap();
        assert_eq!(cleared.applied().is_some(), accepted);
        assert_eq!(store.checkpoint(&key).await.unwrap().is_none(), accepted);
    }
}

#[tokio::test]
async fn revisions_grow_within_a_turn_and_after_a_clear() {
    let store = MemoryStore::new();
    let key = ConversationKey::private("anna");
    let first = turn(100, "a");
    let set = async |turn: &Turn, expect| {
        let next = checkpoint("s", None);
        store.set_checkpoint(turn, &key, expect, &next).await.unwrap().applied().unwrap()
    };
    let one = set(&first, None).await;
    let two = set(&first, Some(one)).await;
    assert_eq!((one, two), (Revision(100), Revision(101)));
    assert!(store.clear_checkpoint(&first, &key, two).await.unwrap().applied().is_some());
    assert!(store.clear_checkpoint(&first, &key, two).await.unwrap().applied().is_none());
    assert_eq!(set(&turn(200, "a"), None).await, Revision(200));
}

#[tokio::test]
async fn due_checkpoints_come_earliest_first() {
    let store = MemoryStore::new();
    let waits = [("c", Some(30)), ("a", Some(10)), ("b", Some(20)), ("never", None)];
    for (chat, deadline) in waits {
        let key = ConversationKey::private(chat);
        let _ = store.set_checkpoint(&turn(1, "s"), &key, None, &checkpoint("s", deadline)).await.unwrap();
    }
    let due = async |until, limit| {
        let due = store.due_checkpoints(Timestamp::from_millis(until), limit).await.unwrap();
        due.into_iter().map(|(key, at)| (key.to_string(), at.as_millis())).collect::<Vec<_>>()
    };
    let row = |chat: &str, at| (chat.to_owned(), at);
    assert_eq!(due(20, 9).await, [row("a", 10), row("b", 20)]);
    assert_eq!(due(99, 1).await, [row("a", 10)]);
    assert!(due(9, 9).await.is_empty());

    let a = ConversationKey::private("a");
    let moved = checkpoint("s", Some(40));
    let revision = store.set_checkpoint(&turn(2, "s"), &a, Some(Revision(1)), &moved).await.unwrap();
    assert_eq!(due(99, 9).await, [row("b", 20), row("c", 30), row("a", 40)]);
    let _ = store.clear_checkpoint(&turn(3, "s"), &a, revision.applied().unwrap()).await.unwrap();
    assert_eq!(due(99, 9).await, [row("b", 20), row("c", 30)]);
}

#[tokio::test]
async fn a_chats_log_is_read_backwards_page_by_page() {
    let store = MemoryStore::new();
    let entries: Vec<_> = (0..5).map(|n| message("anna", &n.to_string())).collect();
    store.append_log(&entries[..3]).await.unwrap();
    store.append_log(&[message("ben", "other")]).await.unwrap();
    store.append_log(&entries[3..]).await.unwrap();
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = store.log(&ChatId::from("anna"), before, 2).await.unwrap();
        let Some((position, _)) = page.last() else { break };
        before = Some(*position);
        seen.extend(page.into_iter().map(|(_, entry)| entry.text));
    }
    assert_eq!(seen, ["4", "3", "2", "1", "0"]);
    assert!(store.log(&ChatId::from("nobody"), None, 9).await.unwrap().is_empty());
}

#[tokio::test]
async fn values_of_a_user_are_set_one_by_one() {
    let store = MemoryStore::new();
    let anna = ParticipantId::from("anna");
    for (name, value) in [("b", 2), ("a", 1), ("B", 3)] {
        store.set_user_value(&anna, name, Some(&serde_json::json!(value))).await.unwrap();
    }
    store.set_user_value(&anna, "a", None).await.unwrap();
    store.set_user_value(&anna, "never-set", None).await.unwrap();
    let names: Vec<_> = store.user_values(&anna).await.unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["B", "b"]);
    assert_eq!(store.user_value(&anna, "b").await.unwrap(), Some(serde_json::json!(2)));
    assert_eq!(store.user_value(&anna, "a").await.unwrap(), None);
    assert_eq!(store.user_value(&ParticipantId::from("ben"), "b").await.unwrap(), None);
}

#[tokio::test]
async fn bots_of_different_scopes_do_not_see_each_other() {
    let store = MemoryStore::new();
    let other = store.scoped(&Scope::bot("other"));
    let chat = ChatId::from("anna");
    let state = ChatState { language: Some("es".to_owned()) };
    store.set_chat(&chat, &state).await.unwrap();
    store.append_log(&[message("anna", "1")]).await.unwrap();
    assert_eq!(store.scoped(&Scope::default()).chat(&chat).await.unwrap(), Some(state));
    assert_eq!(other.chat(&chat).await.unwrap(), None);
    assert!(other.log(&chat, None, 9).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_closed_store_refuses_and_its_data_is_there_when_opened_again() {
    let store = MemoryStore::new();
    let view = store.scoped(&Scope::bot("other"));
    let chat = ChatId::from("anna");
    store.set_chat(&chat, &ChatState::default()).await.unwrap();
    store.close().await.unwrap();
    for closed in [&store as &dyn Store, &*view] {
        assert_eq!(closed.chat(&chat).await.unwrap_err().kind(), StoreErrorKind::Misuse);
    }
    assert_eq!(store.reopen().chat(&chat).await.unwrap(), Some(ChatState::default()));
}
