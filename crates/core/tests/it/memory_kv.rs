use botmesh_core::Bytes;
use botmesh_core::error::{Effect, StoreErrorKind};
use botmesh_core::kv::{Cursor, DurableKv, Expect, Index, MAX_KEY, Op, Outcome, Range, Version};
use botmesh_core::memory::MemoryKv;
use botmesh_core::time::Timestamp;

fn put(key: &str, expect: Expect, value: &str, index: Index) -> Op {
    Op::Put {
        key: Bytes::copy_from_slice(key.as_bytes()),
        expect,
        value: Bytes::copy_from_slice(value.as_bytes()),
        index,
    }
}

fn due(millis: i64) -> Index {
    Index { due: Some(Timestamp::from_millis(millis)), list: None }
}

fn listed(bucket: u8, place: i64) -> Index {
    Index { due: None, list: Some((bucket, place)) }
}

async fn one(kv: &dyn DurableKv, op: Op) -> Outcome {
    kv.commit(vec![op]).await.unwrap()[0]
}

async fn applied(kv: &dyn DurableKv, op: Op) -> Version {
    match one(kv, op).await {
        Outcome::Applied(version) => version,
        Outcome::Conflict(found) => panic!("conflict with {found:?}"),
    }
}

async fn keys(kv: &dyn DurableKv, range: Range, after: Option<&Cursor>, limit: usize) -> Vec<String> {
    let entries = kv.scan(range, after, limit).await.unwrap();
    entries.iter().map(|entry| String::from_utf8(entry.key.to_vec()).unwrap()).collect()
}

#[tokio::test]
async fn a_stale_writer_is_told_which_version_is_there() {
    let kv = MemoryKv::new();
    let first = applied(&kv, put("k", Expect::Absent, "a", Index::default())).await;
    let second = applied(&kv, put("k", Expect::Version(first), "b", Index::default())).await;
    assert!(second > first);

    let stale = one(&kv, put("k", Expect::Version(first), "c", Index::default())).await;
    assert_eq!(stale, Outcome::Conflict(Some(second)));
    let taken = one(&kv, put("k", Expect::Absent, "c", Index::default())).await;
    assert_eq!(taken, Outcome::Conflict(Some(second)));
    let missing = one(&kv, put("other", Expect::Version(first), "c", Index::default())).await;
    assert_eq!(missing, Outcome::Conflict(None));

    let entry = kv.get(&[Bytes::from("k")]).await.unwrap().remove(0).unwrap();
    assert_eq!((entry.value.as_ref(), entry.version), (b"b".as_ref(), second));
}

#[tokio::test]
async fn versions_go_on_after_a_delete() {
    let kv = MemoryKv::new();
    let first = applied(&kv, put("k", Expect::Absent, "a", Index::default())).await;
    let delete = Op::Delete { key: Bytes::from("k"), expect: first };
    assert_eq!(one(&kv, delete.clone()).await, Outcome::Applied(first));
    assert_eq!(one(&kv, delete).await, Outcome::Conflict(None));
    assert!(applied(&kv, put("k", Expect::Absent, "a", Index::default())).await > first);
}

#[tokio::test]
async fn a_conflict_leaves_the_other_writes_of_the_call_alone() {
    let kv = MemoryKv::new();
    let there = applied(&kv, put("b", Expect::Absent, "old", Index::default())).await;
    let outcomes = kv
        .commit(vec![
            put("a", Expect::Absent, "1", Index::default()),
            put("b", Expect::Absent, "2", Index::default()),
            put("a", Expect::Absent, "3", Index::default()),
        ])
        .await
        .unwrap();
    let Outcome::Applied(version) = outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(outcomes[1..], [Outcome::Conflict(Some(there)), Outcome::Conflict(Some(version))]);
}

#[tokio::test]
async fn an_oversized_entry_refuses_the_whole_call_before_any_write() {
    let kv = MemoryKv::new();
    let limit = kv.caps().max_value;
    let large = Op::Put {
        key: Bytes::from("large"),
        expect: Expect::Absent,
        value: Bytes::from(vec![0; limit + 1]),
        index: Index::default(),
    };
    let long = put(&"k".repeat(MAX_KEY + 1), Expect::Absent, "v", Index::default());
    for refused in [large, long] {
        let small = put("small", Expect::Absent, "v", Index::default());
        let error = kv.commit(vec![small, refused]).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (StoreErrorKind::TooLarge, Effect::None));
        assert!(!error.retry());
    }
    assert_eq!(kv.get(&[Bytes::from("small")]).await.unwrap(), [None]);

    applied(&kv, put(&"k".repeat(MAX_KEY), Expect::Absent, &"v".repeat(limit), Index::default())).await;
}

#[tokio::test]
async fn keys_and_values_are_any_bytes() {
    let kv = MemoryKv::new();
    let raw = Bytes::from_static(&[0, 255, b'%', b'/', 0]);
    let empty = Bytes::new();
    for key in [&raw, &empty] {
        let op =
            Op::Put { key: key.clone(), expect: Expect::Absent, value: raw.clone(), index: Index::default() };
        applied(&kv, op).await;
    }
    let found = kv.get(&[empty, Bytes::from("none"), raw.clone()]).await.unwrap();
    assert_eq!(found[0].as_ref().unwrap().value, raw);
    assert_eq!(found[1], None);
    assert_eq!(found[2].as_ref().unwrap().key, raw);
}

#[tokio::test]
async fn due_entries_come_in_order_page_by_page() {
    let kv = MemoryKv::new();
    for (key, at) in [("c", 5), ("a", 5), ("late", 90), ("b", -7), ("edge", 20)] {
        applied(&kv, put(key, Expect::Absent, "", due(at))).await;
    }
    applied(&kv, put("never", Expect::Absent, "", Index::default())).await;
    let range = Range::Due { until: Timestamp::from_millis(20) };
    assert_eq!(keys(&kv, range, None, 10).await, ["b", "a", "c", "edge"]);

    let mut seen = Vec::new();
    let mut cursor = None;
    loop {
        let page = kv.scan(range, cursor.as_ref(), 3).await.unwrap();
        cursor = page.last().and_then(|entry| range.cursor(entry)).or(cursor);
        let full = page.len() == 3;
        seen.extend(page.into_iter().map(|entry| entry.key));
        if !full {
            break;
        }
    }
    assert_eq!(seen, ["b", "a", "c", "edge"]);
    assert!(keys(&kv, range, None, 0).await.is_empty());
}

#[tokio::test]
async fn a_bucket_shows_only_its_own_entries_between_the_places_asked_for() {
    let kv = MemoryKv::new();
    let places = [("a", 1, 3), ("b", 1, i64::MIN), ("c", 1, i64::MAX), ("d", 2, 3), ("e", 0, 9), ("f", 1, 3)];
    for (key, bucket, place) in places {
        applied(&kv, put(key, Expect::Absent, "", listed(bucket, place))).await;
    }
    let list = |from, until| Range::List { bucket: 1, from, until };
    assert_eq!(keys(&kv, list(i64::MIN, i64::MAX), None, 9).await, ["b", "a", "f", "c"]);
    assert_eq!(keys(&kv, list(3, 3), None, 9).await, ["a", "f"]);
    assert!(keys(&kv, list(4, 3), None, 9).await.is_empty());

    let before = Cursor { place: i64::MIN, key: Bytes::from("b") };
    assert_eq!(keys(&kv, list(3, 3), Some(&before), 9).await, ["a", "f"]);
    let within = Cursor { place: 3, key: Bytes::from("a") };
    assert_eq!(keys(&kv, list(3, 3), Some(&within), 9).await, ["f"]);
}

#[tokio::test]
async fn an_entry_is_found_only_where_its_last_write_put_it() {
    let kv = MemoryKv::new();
    let all_due = Range::Due { until: Timestamp::MAX };
    let all_listed = Range::List { bucket: 1, from: i64::MIN, until: i64::MAX };
    let both = |at| Index { list: Some((1, at)), ..due(at) };
    let mut version = applied(&kv, put("k", Expect::Absent, "", both(1))).await;
    for index in [both(2), both(2), due(2)] {
        version = applied(&kv, put("k", Expect::Version(version), "", index)).await;
        assert_eq!(keys(&kv, all_due, None, 9).await, ["k"]);
        let expected: &[&str] = if index.list.is_some() { &["k"] } else { &[] };
        assert_eq!(keys(&kv, all_listed, None, 9).await, expected);
    }
    let _ = one(&kv, Op::Delete { key: Bytes::from("k"), expect: version }).await;
    assert!(keys(&kv, all_due, None, 9).await.is_empty());
}

#[tokio::test]
async fn scopes_are_apart_and_clones_share() {
    let kv = MemoryKv::new();
    let (a, b) = (kv.scoped("a"), kv.scoped("b"));
    let first = applied(&*a, put("k", Expect::Absent, "a", due(1))).await;
    let second = applied(&*b, put("k", Expect::Absent, "b", due(1))).await;
    assert_ne!(first, second);
    let again = kv.clone().scoped("a");
    assert_eq!(again.get(&[Bytes::from("k")]).await.unwrap()[0].as_ref().unwrap().value, "a");
    assert_eq!(keys(&*b, Range::Due { until: Timestamp::MAX }, None, 9).await, ["k"]);
    assert_eq!(kv.get(&[Bytes::from("k")]).await.unwrap(), [None]);
}
