//! The two indexes.

use botmesh_core::kv::{Cursor, Expect, Index, Range};
use botmesh_core::time::Timestamp;

use super::tools::{
    NOWHERE, applied, create, create_at, delete, due, due_until, get, key, keys, kv, list, listed, page,
    paged, put_at,
};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        due_is_ordered_by_time_and_key: "what is due comes earliest first, and by key where times are equal",
        due_includes_its_last_time: "an entry is due at its time and not a millisecond earlier",
        a_list_is_ordered_by_place_and_key: "a bucket comes by place, and by key where places are equal",
        a_list_includes_both_bounds: "the first and the last place of a range belong to it",
        buckets_are_separate: "a list shows its own bucket only",
        equal_places_page_completely: "25 entries of one place, read 7 at a time, are 25 entries",
        pages_go_on_where_the_last_one_ended: "pages of every size give the same entries in the same order",
        a_cursor_needs_no_entry: "a page goes on after a place and key that are no longer there",
        a_limit_of_any_size_is_taken: "a limit of one, of all, and of the largest number",
        an_entry_leaves_an_index_when_put_without: "a put without a place takes the entry out of the index",
        an_entry_moves_with_its_place: "a put with another place moves the entry",
        an_entry_keeps_its_place_when_put_again: "a put with the same place finds the entry once",
        an_entry_may_be_in_both_indexes: "leaving one index is not leaving the other",
        extreme_places_are_ordered: "the smallest and the largest numbers are places like any other",
        keys_of_one_place_are_ordered_by_bytes: "where places are equal, keys come by their bytes, not as text",
        an_empty_range_is_empty: "a range whose end is before its start has no entries",
    ]
}

async fn due_is_ordered_by_time_and_key(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    for (name, millis) in [("e", 30), ("c", 20), ("d", 10), ("a", 20), ("b", 20), ("f", -5)] {
        create_at(&kv, name, due(millis)).await?;
    }
    create(&kv, "never", "value").await?;
    ensure_eq!(keys(&kv, due_until(100)).await?, ["f", "d", "a", "b", "c", "e"], "the order");
    PASSED
}

async fn due_includes_its_last_time(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    create_at(&kv, "k", due(1_000)).await?;
    ensure!(keys(&kv, due_until(999)).await?.is_empty(), "an entry is due before its time");
    ensure_eq!(keys(&kv, due_until(1_000)).await?, ["k"], "at its time");
    PASSED
}

async fn a_list_is_ordered_by_place_and_key(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    for (name, place) in [("e", 3), ("c", 2), ("d", 1), ("a", 2), ("b", 2), ("f", -1)] {
        create_at(&kv, name, listed(1, place)).await?;
    }
    create(&kv, "nowhere", "value").await?;
    ensure_eq!(keys(&kv, list(1, -10, 10)).await?, ["f", "d", "a", "b", "c", "e"], "the order");
    PASSED
}

async fn a_list_includes_both_bounds(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    for place in 0..6 {
        create_at(&kv, place.to_string(), listed(1, place)).await?;
    }
    ensure_eq!(keys(&kv, list(1, 2, 4)).await?, ["2", "3", "4"], "from 2 to 4");
    ensure_eq!(keys(&kv, list(1, 3, 3)).await?, ["3"], "from 3 to 3");
    PASSED
}

async fn buckets_are_separate(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let buckets = [0, 1, 2, 127, 128, 255];
    for bucket in buckets {
        create_at(&kv, format!("in {bucket}"), listed(bucket, 5)).await?;
    }
    for bucket in buckets {
        let found = keys(&kv, list(bucket, i64::MIN, i64::MAX)).await?;
        ensure_eq!(found, [format!("in {bucket}")], "the bucket {bucket}");
    }
    ensure!(keys(&kv, list(3, i64::MIN, i64::MAX)).await?.is_empty(), "an empty bucket has entries");
    PASSED
}

/// Case D05.
async fn equal_places_page_completely(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let index = Index { due: due(7).due, list: Some((1, 7)) };
    let mut expected: Vec<_> = (0..25).map(|n| key(format!("k{n}"))).collect();
    for name in &expected {
        create_at(&kv, name, index).await?;
    }
    expected.sort();
    for range in [due_until(7), list(1, 0, 10)] {
        let found: Vec<_> = paged(&kv, range, 7).await?.into_iter().map(|entry| entry.key).collect();
        ensure_eq!(found, expected, "{range:?}");
    }
    PASSED
}

async fn pages_go_on_where_the_last_one_ended(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    for n in 0..40_i64 {
        let (time, place) = (n * 7 % 5, n * 11 % 9 - 4);
        let index = Index { due: due(time).due, list: Some((u8::from(n % 3 == 0), place)) };
        create_at(&kv, format!("{}-{n}", n * 13 % 40), index).await?;
    }
    for range in [due_until(3), list(0, -4, 3), list(1, -2, 100)] {
        let whole = kv.scan(range, None, 1_000).await?;
        let mut sorted = whole.clone();
        sorted.sort_by_key(|entry| range.cursor(entry));
        ensure!(whole.iter().all(|entry| range.cursor(entry).is_some()), "{range:?} has a foreign entry");
        ensure_eq!(whole, sorted, "the order of {range:?}");
        ensure!(whole.len() > 8, "{range:?} has only {} entries", whole.len());
        for limit in [1, 2, 3, 7, whole.len(), whole.len() + 1] {
            ensure_eq!(paged(&kv, range, limit).await?, whole, "{range:?} read {limit} at a time");
        }
    }
    PASSED
}

async fn a_cursor_needs_no_entry(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let mut versions = Vec::new();
    for name in ["a", "b", "c", "d"] {
        versions.push(create_at(&kv, name, Index { due: due(1).due, list: Some((1, 1)) }).await?);
    }
    let after = Cursor { place: 1, key: key("b") };
    applied(&kv, delete("b", versions[1])).await?;
    applied(&kv, put_at("c", Expect::Version(versions[2]), "moved", NOWHERE)).await?;
    for range in [due_until(10), list(1, 0, 10)] {
        ensure_eq!(page(&kv, range, Some(&after), 10).await?, ["d"], "{range:?} after a deleted entry");
        let before = Cursor { place: 0, key: key("zzz") };
        ensure_eq!(
            page(&kv, range, Some(&before), 10).await?,
            ["a", "d"],
            "{range:?} after an earlier place"
        );
        let end = Cursor { place: 1, key: key("d") };
        ensure!(page(&kv, range, Some(&end), 10).await?.is_empty(), "{range:?} has entries after the last");
    }
    let below = Cursor { place: -5, key: key("a") };
    ensure_eq!(page(&kv, list(1, 1, 1), Some(&below), 10).await?, ["a", "d"], "a cursor below the range");
    PASSED
}

async fn a_limit_of_any_size_is_taken(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    for name in ["a", "b", "c"] {
        create_at(&kv, name, Index { due: due(1).due, list: Some((1, 1)) }).await?;
    }
    for range in [due_until(10), list(1, 0, 10)] {
        for (limit, expected) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (usize::MAX, 3)] {
            let found = kv.scan(range, None, limit).await?.len();
            ensure_eq!(found, expected, "{range:?} with limit {limit}");
        }
    }
    PASSED
}

async fn an_entry_leaves_an_index_when_put_without(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let version = create_at(&kv, "k", Index { due: due(1).due, list: Some((1, 1)) }).await?;
    applied(&kv, put_at("k", Expect::Version(version), "plain", NOWHERE)).await?;
    ensure!(keys(&kv, due_until(100)).await?.is_empty(), "the entry is still due");
    ensure!(keys(&kv, list(1, 0, 100)).await?.is_empty(), "the entry is still listed");
    let found = get(&kv, "k").await?.map(|entry| entry.index);
    ensure_eq!(found, Some(NOWHERE), "the indexes of the entry");
    PASSED
}

async fn an_entry_moves_with_its_place(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let version = create_at(&kv, "k", Index { due: due(10).due, list: Some((1, 10)) }).await?;
    let moved = Index { due: due(20).due, list: Some((2, 20)) };
    applied(&kv, put_at("k", Expect::Version(version), "moved", moved)).await?;
    ensure!(keys(&kv, due_until(19)).await?.is_empty(), "it is due at its old time");
    ensure_eq!(keys(&kv, due_until(20)).await?, ["k"], "at its new time");
    ensure!(keys(&kv, list(1, 0, 100)).await?.is_empty(), "it is in its old bucket");
    ensure!(keys(&kv, list(2, 0, 19)).await?.is_empty(), "it is at its old place");
    ensure_eq!(keys(&kv, list(2, 20, 20)).await?, ["k"], "at its new place");
    PASSED
}

async fn an_entry_keeps_its_place_when_put_again(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let index = Index { due: due(10).due, list: Some((1, 10)) };
    let mut version = create_at(&kv, "k", index).await?;
    for n in 0..3 {
        version = applied(&kv, put_at("k", Expect::Version(version), n.to_string(), index)).await?;
    }
    for range in [due_until(100), list(1, 0, 100)] {
        let found = kv.scan(range, None, 10).await?;
        ensure_eq!(found.len(), 1, "{range:?}: one entry");
        ensure_eq!(
            (found[0].version, &found[0].value[..]),
            (version, &b"2"[..]),
            "{range:?}: the last write"
        );
    }
    PASSED
}

async fn an_entry_may_be_in_both_indexes(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let version = create_at(&kv, "k", Index { due: due(1).due, list: Some((1, 1)) }).await?;
    let version = applied(&kv, put_at("k", Expect::Version(version), "listed", listed(1, 1))).await?;
    ensure!(keys(&kv, due_until(100)).await?.is_empty(), "it is still due");
    ensure_eq!(keys(&kv, list(1, 0, 100)).await?, ["k"], "it left the list too");
    applied(&kv, put_at("k", Expect::Version(version), "due", due(1))).await?;
    ensure_eq!(keys(&kv, due_until(100)).await?, ["k"], "it is due again");
    ensure!(keys(&kv, list(1, 0, 100)).await?.is_empty(), "it is still listed");
    PASSED
}

async fn extreme_places_are_ordered(context: &mut Context) -> CaseResult {
    const EDGE: i64 = 1 << 53;
    let places = [i64::MIN, i64::MIN + 1, -EDGE - 1, -EDGE, -1, 0, 1, EDGE, EDGE + 1, i64::MAX - 1, i64::MAX];
    let kv = kv(context)?;
    for (n, place) in places.into_iter().enumerate().rev() {
        let index = Index { due: Some(Timestamp::from_millis(place)), list: Some((1, place)) };
        create_at(&kv, format!("{n:02}"), index).await?;
    }
    let expected: Vec<_> = (0..places.len()).map(|n| format!("{n:02}")).collect();
    for range in [Range::Due { until: Timestamp::MAX }, list(1, i64::MIN, i64::MAX)] {
        ensure_eq!(keys(&kv, range).await?, expected, "the order of {range:?}");
        let read: Vec<_> = paged(&kv, range, 1).await?;
        let cursors = read.iter().map(|entry| range.cursor(entry).map(|cursor| cursor.place));
        ensure_eq!(cursors.collect::<Vec<_>>(), places.map(Some), "the places of {range:?}, one by one");
    }
    ensure_eq!(keys(&kv, due_until(i64::MIN)).await?, ["00"], "due at the smallest time");
    ensure_eq!(keys(&kv, list(1, i64::MAX, i64::MAX)).await?, ["10"], "the largest place");
    ensure_eq!(keys(&kv, list(1, EDGE + 1, EDGE + 1)).await?, ["08"], "a place that a double cannot hold");
    PASSED
}

async fn keys_of_one_place_are_ordered_by_bytes(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let mut names: Vec<&[u8]> = vec![
        b"b",
        b"a",
        b"B",
        b"a\0",
        b"aa",
        b"a\xff",
        b"\0",
        b"\x7f",
        b"\x80",
        b"\xff",
        b"\xff\xff",
        b"10",
        b"9",
        "é".as_bytes(),
        "e\u{301}".as_bytes(),
        "\u{1F600}".as_bytes(),
        "\u{FFFD}".as_bytes(),
    ];
    for name in &names {
        create_at(&kv, name, Index { due: due(1).due, list: Some((1, 1)) }).await?;
    }
    names.sort_unstable();
    for range in [due_until(1), list(1, 1, 1)] {
        for limit in [100, 4] {
            let found: Vec<_> = paged(&kv, range, limit).await?.into_iter().map(|entry| entry.key).collect();
            let expected: Vec<_> = names.iter().map(key).collect();
            ensure_eq!(found, expected, "{range:?} read {limit} at a time");
        }
    }
    PASSED
}

async fn an_empty_range_is_empty(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    create_at(&kv, "k", Index { due: due(5).due, list: Some((1, 5)) }).await?;
    for range in [list(1, 6, 4), list(1, i64::MAX, i64::MIN), list(1, 6, 10), due_until(i64::MIN)] {
        ensure!(keys(&kv, range).await?.is_empty(), "{range:?} has entries");
        let cursor = Cursor { place: 5, key: key("a") };
        ensure!(
            page(&kv, range, Some(&cursor), 10).await?.is_empty(),
            "{range:?} has entries after a cursor"
        );
    }
    PASSED
}
