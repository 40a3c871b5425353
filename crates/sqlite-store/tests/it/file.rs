//! The file itself: made with its folders, readable by its owner only, and let go.

use std::os::unix::fs::PermissionsExt;

use botmesh_core::error::StoreErrorKind;
use botmesh_core::id::ChatId;
use botmesh_core::kv::Durable;
use botmesh_core::scope::Scope;
use botmesh_core::store::{ChatState, Store};
use botmesh_sqlite_store::{SqliteConfig, SqliteStore, Synchronous};

use crate::tools::{beside, block_on, create, get, length, until, version};

#[test]
fn missing_folders_are_made_and_the_file_is_its_owners() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data/ä b/bot.db");
    block_on(async {
        let store = SqliteStore::open(&path).await.unwrap();
        store.durability().commit(vec![create("k", "v")]).await.unwrap();
        for suffix in ["", "-wal", "-shm"] {
            let mode = std::fs::metadata(beside(&path, suffix)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{suffix}");
        }
    });
}

#[test]
fn closing_finishes_what_is_queued_and_leaves_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    block_on(async {
        let store = SqliteStore::open(&path).await.unwrap();
        let kv = store.durability();
        let (queued, closed) = tokio::join!(kv.commit(vec![create("k", "v")]), store.close());
        version(&queued.unwrap()[0]);
        closed.unwrap();
        store.close().await.unwrap();
        assert!(!beside(&path, "-wal").exists() && !beside(&path, "-shm").exists());

        let chat = ChatId::from("ana");
        for error in [
            kv.commit(vec![create("l", "v")]).await.unwrap_err(),
            kv.get(&["k".into()]).await.unwrap_err(),
            store.set_chat(&chat, &ChatState::default()).await.unwrap_err(),
            store.scoped(&Scope::bot("b")).chat(&chat).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Misuse);
            assert!(error.to_string().contains("closed"), "{error}");
        }
        kv.close().await.unwrap();
        let kv = SqliteStore::open(&path).await.unwrap().durability();
        assert_eq!(get(&*kv, "k").await.unwrap().value, "v");
    });
}

#[test]
fn closing_the_journals_leaves_the_store_open() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let store = SqliteStore::open(folder.path().join("bot.db")).await.unwrap();
        let kv = store.durability();
        kv.close().await.unwrap();
        assert_eq!(kv.commit(vec![create("k", "v")]).await.unwrap_err().kind(), StoreErrorKind::Misuse);
        assert_eq!(kv.scoped("a").get(&["k".into()]).await.unwrap_err().kind(), StoreErrorKind::Misuse);
        store.set_chat(&ChatId::from("ana"), &ChatState::default()).await.unwrap();
        version(&store.durability().commit(vec![create("k", "v")]).await.unwrap()[0]);
    });
}

#[test]
fn dropping_the_last_handle_lets_the_file_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    block_on(async {
        let store = SqliteStore::open(&path).await.unwrap();
        let kv = store.durability();
        drop(store);
        version(&kv.commit(vec![create("k", "v")]).await.unwrap()[0]);
        assert!(length(&beside(&path, "-wal")) > 0);
        drop(kv);
        until("the end of the threads", || !beside(&path, "-wal").exists());
    });
}

#[test]
fn the_claims_follow_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let full = SqliteStore::open(folder.path().join("full.db")).await.unwrap().durability().caps();
        assert_eq!((full.durable, full.shared, full.groups_commits), (Durable::PowerLoss, true, true));
        let config = SqliteConfig::default().with_synchronous(Synchronous::Normal);
        let normal = SqliteStore::open_with(folder.path().join("normal.db"), config).await.unwrap();
        assert_eq!(normal.durability().caps().durable, Durable::ProcessCrash);
    });
}

#[test]
fn tasks_that_open_one_new_file_at_once_share_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data/bot.db");
    block_on(async {
        let opens: Vec<_> = (0..8)
            .map(|n| {
                let path = path.clone();
                crate::tools::spawn(async move {
                    let kv = SqliteStore::open(path).await.unwrap().durability();
                    version(&kv.commit(vec![create(n.to_string(), "v")]).await.unwrap()[0]).0
                })
            })
            .collect();
        let mut versions = Vec::new();
        for open in opens {
            versions.push(open.await.unwrap());
        }
        versions.sort_unstable();
        assert_eq!(versions, (1..=8).collect::<Vec<_>>());
    });
}
