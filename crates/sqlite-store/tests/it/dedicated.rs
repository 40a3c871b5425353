//! A connection of its own for heartbeats.

use botmesh_core::error::StoreErrorKind;
use botmesh_core::kv::{Expect, Index, Outcome};
use botmesh_core::store::Store;
use botmesh_sqlite_store::SqliteStore;

use crate::tools::{block_on, create, get, put_at, version};

#[test]
fn a_dedicated_connection_has_the_same_entries_and_ends_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    block_on(async {
        let store = SqliteStore::open(&path).await.unwrap();
        let kv = store.durability().scoped("one");
        let own = kv.dedicated().await.unwrap().expect("a connection");
        let first = version(&kv.commit(vec![create("session", b"x")]).await.unwrap()[0]);
        let beat = put_at("session", Expect::Version(first), b"beat", Index::default());
        let second = version(&own.commit(vec![beat.clone()]).await.unwrap()[0]);
        assert!(second > first);
        assert_eq!(&get(&*kv, "session").await.unwrap().value[..], b"beat");
        assert!(
            matches!(kv.commit(vec![beat]).await.unwrap()[0], Outcome::Conflict(Some(there)) if there == second)
        );
        assert!(get(&*store.durability().scoped("two"), "session").await.is_none());

        own.close().await.unwrap();
        assert_eq!(own.commit(vec![create("late", b"x")]).await.unwrap_err().kind(), StoreErrorKind::Misuse);
        kv.commit(vec![create("after", b"x")]).await.unwrap();
        store.close().await.unwrap();
    });
    assert!(!folder.path().join("bot.db-wal").exists(), "a connection was left open");
}
