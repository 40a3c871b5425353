//! What chats got, and what of it nobody knows.

use std::sync::Arc;
use std::time::Duration;

use botmesh::TokioSpawner;
use botmesh::core::journal::{InboxState, KvDurability, OutboxState};
use botmesh::core::scope::Scope;
use botmesh::core::spawn::Seams;
use botmesh::core::store::Store;
use botmesh::core::time::Timestamp;
use botmesh_sqlite_store::SqliteStore;

use crate::child::Place;

/// How many sends nobody knows of, as the journal in `place` says.
pub(crate) async fn unknown(place: &Place) -> usize {
    let store = SqliteStore::open(place.path("data").join("appointments.db")).await.expect("the database");
    let (lease, seams) = (Duration::from_secs(5), Seams::system(Arc::new(TokioSpawner)));
    let journals = KvDurability::new(store.durability());
    let scope = Scope::default();
    let opening = journals.open(&scope, "counting".into(), lease, seams);
    let journal = opening.await.expect("the journals");
    let unknown =
        journal.outbox().count(OutboxState::Unknown, Timestamp::MAX, 10_000).await.expect("a count");
    for state in [OutboxState::InFlight, OutboxState::Waiting, OutboxState::Dead] {
        let left = journal.outbox().count(state, Timestamp::MAX, 10_000).await.expect("a count");
        assert_eq!(left, 0, "{state:?}");
    }
    let given_up = journal.inbox().count(InboxState::Dead, Timestamp::MAX, 10_000).await.expect("a count");
    assert_eq!(given_up, 0, "messages were given up");
    journal.end_session().await.expect("its end");
    store.close().await.expect("its end");
    unknown
}

/// What a chat got is what it should, in order, but for some that are missing. How many.
pub(crate) fn missing(chat: &str, expected: &[String], said: &[String]) -> usize {
    let mut rest = said.iter().peekable();
    let missing = expected.iter().filter(|reply| rest.next_if(|said| said == reply).is_none()).count();
    let next = rest.next();
    assert!(next.is_none(), "{chat}: {next:?} came twice or out of order, in {said:#?} for {expected:#?}");
    missing
}

/// Waits until everything is taken over and, as far as can be seen, answered: `count` says how many replies there are, and how
/// many messages are still to be taken over.
pub(crate) fn wait_for_all(place: &Place, count: impl Fn() -> (usize, usize)) {
    const STILL: usize = 1_500;
    let (mut sent, mut still) = (0, 0);
    place.wait_for("no more replies", || {
        let (now, left) = count();
        still = if now == sent && left == 0 { still + 1 } else { 0 };
        sent = now;
        (still >= STILL).then_some(())
    });
}
