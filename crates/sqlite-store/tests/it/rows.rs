//! Rows come back as they were written: bytes, numbers, scopes and order.

use std::collections::HashSet;

use botmesh_core::error::StoreErrorKind;
use botmesh_core::id::{ChatId, ConversationKey, MessageId, ParticipantId};
use botmesh_core::kv::{Expect, Index, MAX_KEY, Op, Outcome, Range, Version};
use botmesh_core::scope::Scope;
use botmesh_core::store::{Direction, LogEntry, Store};
use botmesh_core::time::Timestamp;
use botmesh_sqlite_store::{MAX_VALUE, SqliteStore};
use serde_json::{Value, json};

use crate::tools::{all_applied, block_on, create, get, put_at, version};

fn with_store(test: impl AsyncFnOnce(SqliteStore)) {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let store = SqliteStore::open(folder.path().join("bot.db")).await.unwrap();
        test(store.clone()).await;
        store.close().await.unwrap();
    });
}

const SCOPES: [&str; 9] = ["a_c", "abc", "a%", "a*", "a[b]", "a:b", "a", "A", ""];

#[test]
fn scopes_that_look_like_patterns_see_only_their_own() {
    with_store(async |store| {
        let index = Index { due: Some(Timestamp::from_millis(1)), list: Some((1, 1)) };
        for scope in SCOPES {
            let kv = store.durability().scoped(scope);
            version(&kv.commit(vec![put_at("k", Expect::Absent, scope, index)]).await.unwrap()[0]);
        }
        for scope in SCOPES {
            let kv = store.durability().scoped(scope);
            let list = Range::List { bucket: 1, from: i64::MIN, until: i64::MAX };
            for range in [Range::Due { until: Timestamp::MAX }, list] {
                let entries = kv.scan(range, None, 100).await.unwrap();
                assert_eq!(entries.len(), 1, "{scope}");
                assert_eq!(entries[0].value, scope, "{scope}");
            }
        }
        for scope in SCOPES {
            let store = store.scoped(&Scope::bot(scope));
            store.set_user_value(&ParticipantId::from("u"), "k", Some(&json!(scope))).await.unwrap();
        }
        for scope in SCOPES {
            let values =
                store.scoped(&Scope::bot(scope)).user_values(&ParticipantId::from("u")).await.unwrap();
            assert_eq!(values, [("k".to_owned(), json!(scope))]);
        }
    });
}

#[test]
fn keys_that_look_like_numbers_stay_distinct() {
    with_store(async |store| {
        let keys =
            ["300000000", "3e+8", "1", "01", "1.0", "9007199254740993", "9007199254740992", " 1", "1 "];
        let kv = store.durability();
        let index = Index { due: Some(Timestamp::from_millis(1)), list: None };
        let ops = keys.iter().map(|key| put_at(key, Expect::Absent, key, index)).collect();
        all_applied(&kv.commit(ops).await.unwrap());
        let due = kv.scan(Range::Due { until: Timestamp::MAX }, None, 100).await.unwrap();
        let mut expected: Vec<_> = keys.iter().map(|key| key.as_bytes()).collect();
        expected.sort_unstable();
        let found: Vec<_> = due.iter().map(|entry| &entry.key[..]).collect();
        assert_eq!(found, expected);

        let user = ParticipantId::from("1");
        for key in keys {
            store.set_user_value(&user, key, Some(&json!(key))).await.unwrap();
            store.set_user_value(&ParticipantId::from(key), "name", Some(&json!(key))).await.unwrap();
        }
        for key in keys {
            assert_eq!(store.user_value(&user, key).await.unwrap(), Some(json!(key)));
            assert_eq!(store.user_value(&ParticipantId::from(key), "name").await.unwrap(), Some(json!(key)));
        }
    });
}

#[test]
fn bytes_and_extreme_numbers_come_back() {
    with_store(async |store| {
        let kv = store.durability();
        let numbers = [i64::MIN, -1, 0, 1 << 53, (1 << 53) + 1, i64::MAX];
        let keys: Vec<Vec<u8>> =
            vec![vec![], vec![0], vec![0, 0], b"a\0b".to_vec(), (0..=255).collect(), vec![0xff; MAX_KEY]];
        let mut n = 0_u8;
        for key in &keys {
            for number in numbers {
                let key = [key, &number.to_be_bytes()[..]].concat();
                let key = &key[..key.len().min(MAX_KEY)];
                let index = Index { due: Some(Timestamp::from_millis(number)), list: Some((n, number)) };
                let expect = get(&*kv, key).await.map_or(Expect::Absent, |e| Expect::Version(e.version));
                let written = version(&kv.commit(vec![put_at(key, expect, key, index)]).await.unwrap()[0]);
                let entry = get(&*kv, key).await.unwrap();
                assert_eq!((&entry.key[..], &entry.value[..]), (key, key));
                assert_eq!((entry.version, entry.index), (written, index));
                let list = Range::List { bucket: n, from: number, until: number };
                assert_eq!(kv.scan(list, None, 2).await.unwrap(), [entry]);
                n = n.wrapping_add(9);
            }
        }
        let texts = ["a\0b", "\0", "", "ä\u{1F600}", "'; DROP TABLE log; --", "\u{feff}x"];
        let values = [json!(i64::MIN), json!(u64::MAX), json!(0.1), json!(-0.0), json!(1e308), json!(null)];
        let user = ParticipantId::from("-1001234567890123");
        for (text, value) in texts.iter().zip(&values) {
            store.set_user_value(&user, text, Some(value)).await.unwrap();
            let found = store.user_value(&user, text).await.unwrap().unwrap();
            assert_eq!(&found, value);
            assert_eq!(found.as_f64().map(f64::to_bits), value.as_f64().map(f64::to_bits), "{value}");
        }
        let mut names: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
        names.sort_unstable();
        let found: Vec<_> =
            store.user_values(&user).await.unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, names);
        log_entries(&store, &texts).await;
    });
}

async fn log_entries(store: &SqliteStore, texts: &[&str]) {
    let chat = ChatId::from("9223372036854775807\0");
    let entries: Vec<_> = texts
        .iter()
        .map(|text| LogEntry {
            chat: chat.clone(),
            direction: Direction::In,
            at: Timestamp::from_millis(i64::MIN),
            message: MessageId::from(*text),
            text: (*text).to_owned(),
        })
        .collect();
    store.append_log(&entries).await.unwrap();
    let found = store.log(&chat, None, 100).await.unwrap();
    assert!(found.windows(2).all(|pair| pair[0].0 > pair[1].0));
    let found: Vec<_> = found.into_iter().rev().map(|(_, entry)| entry).collect();
    assert_eq!(found, entries);
}

#[test]
fn equal_places_are_paged_without_loss() {
    with_store(async |store| {
        let kv = store.durability();
        let index = Index { due: Some(Timestamp::from_millis(5)), list: Some((2, 5)) };
        let ops = (0..25).map(|n| put_at(format!("k{n}"), Expect::Absent, "v", index)).collect();
        all_applied(&kv.commit(ops).await.unwrap());
        let list = Range::List { bucket: 2, from: 0, until: 9 };
        for range in [Range::Due { until: Timestamp::from_millis(5) }, list] {
            let mut found = Vec::new();
            let mut after = None;
            loop {
                let page = kv.scan(range, after.as_ref(), 7).await.unwrap();
                after = page.last().and_then(|last| range.cursor(last));
                let last = page.len() < 7;
                found.extend(page.into_iter().map(|entry| entry.key));
                if last {
                    break;
                }
            }
            assert_eq!(found.len(), 25);
            assert!(found.is_sorted());
            assert_eq!(found.into_iter().collect::<HashSet<_>>().len(), 25);
        }
    });
}

#[test]
fn one_conflict_of_ten_leaves_nine_applied() {
    with_store(async |store| {
        let kv = store.durability();
        let there = version(&kv.commit(vec![create("4", "old")]).await.unwrap()[0]);
        let outcomes = kv.commit((0..10).map(|n| create(n.to_string(), "new")).collect()).await.unwrap();
        for (n, outcome) in outcomes.iter().enumerate() {
            if n == 4 {
                assert_eq!(*outcome, Outcome::Conflict(Some(there)));
            } else {
                version(outcome);
            }
            let value = get(&*kv, n.to_string()).await.unwrap().value;
            assert_eq!(value, if n == 4 { "old" } else { "new" });
        }
    });
}

#[test]
fn what_is_too_large_is_refused_before_anything_is_written() {
    with_store(async |store| {
        let kv = store.durability();
        let large = vec![0; MAX_VALUE + 1];
        for op in [create("k", &large), create(&large[..=MAX_KEY], "v")] {
            let error = kv.commit(vec![create("first", "v"), op]).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::TooLarge);
            assert!(get(&*kv, "first").await.is_none());
        }
        let ops = vec![create(vec![1; MAX_KEY], &large[..MAX_VALUE])];
        version(&kv.commit(ops).await.unwrap()[0]);
        assert_eq!(get(&*kv, vec![1; MAX_KEY]).await.unwrap().value.len(), MAX_VALUE);
        let delete = Op::Delete { key: vec![1; MAX_KEY + 1].into(), expect: Version(1) };
        assert_eq!(kv.commit(vec![delete]).await.unwrap_err().kind(), StoreErrorKind::TooLarge);
    });
}

#[test]
fn a_long_text_is_kept_whole() {
    with_store(async |store| {
        let text = "0123456789".repeat(200_000);
        let user = ParticipantId::from("u");
        store.set_user_value(&user, "long", Some(&Value::String(text.clone()))).await.unwrap();
        assert_eq!(store.user_value(&user, "long").await.unwrap(), Some(Value::String(text)));
        assert!(store.checkpoint(&ConversationKey::private("nobody")).await.unwrap().is_none());
    });
}
