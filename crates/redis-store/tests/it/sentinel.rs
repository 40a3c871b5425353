//! A master that Sentinels name, and that changes.

use botmesh_core::error::StoreErrorKind as Kind;
use botmesh_core::kv::Expect;
use botmesh_redis_store::{RedisConfig, RedisStore};
use botmesh_test_servers::{Options, Sentinel};

use crate::tools::{create, get, put, refused, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_go_on_at_the_new_master() {
    let set = Sentinel::start(&Options::new(), 1).unwrap();
    let store = RedisStore::open(&set.url()).await.unwrap();
    let kv = store.durability();
    let before = create(&kv, "before").await;
    set.fail_over().unwrap();
    until("a write at the new master", async || {
        match kv.commit(vec![put("after", Expect::Absent, "v")]).await {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), Kind::Unavailable, "{error}");
                false
            }
        }
    })
    .await;
    assert!(get(&kv, "after").await.unwrap().version > before);
    let master = set.master().unwrap();
    assert_eq!(master.command(&["HEXISTS", "{botmesh:}:journal", "after"]).unwrap().int(), Some(1));
}

#[tokio::test]
async fn a_sentinel_is_no_server() {
    let set = Sentinel::start(&Options::new(), 1).unwrap();
    let error = refused(set.sentinels()[0].url(), RedisConfig::default()).await;
    assert_eq!(error.kind(), Kind::Misuse, "{error}");
    assert!(error.to_string().contains("redis-sentinel://"), "{error}");
}
