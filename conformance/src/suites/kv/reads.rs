//! Reading by key.

use botmesh_core::kv::Expect;

use super::tools::{applied, create, existing, key, kv, list, listed, put_at};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        get_answers_in_the_order_of_the_keys: "one answer for each key in order, also for missing and repeated keys",
        get_of_no_keys_is_empty: "no keys, no answers",
        an_entry_is_read_whole: "get and scan return key, value, version and both indexes as they were written",
        a_write_is_read_at_once: "after a commit returned, a read sees it",
    ]
}

async fn get_answers_in_the_order_of_the_keys(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    for name in ["a", "b", "c"] {
        create(&kv, name, name).await?;
    }
    let asked = ["c", "none", "a", "c", "", "b"];
    let found = kv.get(&asked.map(key)).await?;
    let names: Vec<_> = found.iter().map(|entry| entry.as_ref().map(|entry| entry.key.clone())).collect();
    let expected = [Some("c"), None, Some("a"), Some("c"), None, Some("b")].map(|name| name.map(key));
    ensure_eq!(names, expected, "the keys of the answers");
    PASSED
}

async fn get_of_no_keys_is_empty(context: &mut Context) -> CaseResult {
    ensure!(kv(context)?.get(&[]).await?.is_empty(), "answers without a question");
    PASSED
}

async fn an_entry_is_read_whole(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let mut index = listed(200, -7);
    index.due = Some(botmesh_core::time::Timestamp::from_millis(-1));
    let version = applied(&kv, put_at("k", Expect::Absent, "value", index)).await?;
    let found = existing(&kv, "k").await?;
    ensure_eq!(
        (&found.key[..], &found.value[..], found.version, found.index),
        (&b"k"[..], &b"value"[..], version, index),
        "the entry by its key"
    );
    ensure_eq!(kv.scan(list(200, -7, -7), None, 10).await?, vec![found.clone()], "the entry in its list");
    ensure_eq!(kv.scan(super::tools::due_until(-1), None, 10).await?, [found], "the entry that is due");
    PASSED
}

async fn a_write_is_read_at_once(context: &mut Context) -> CaseResult {
    let (writer, reader) = (kv(context)?, kv(context)?);
    for n in 0..50 {
        let name = format!("{n:02}");
        create(&writer, &name, "value").await?;
        existing(&reader, &name).await?;
        let listed = reader.scan(super::tools::due_until(i64::MAX), None, 1).await?;
        ensure!(listed.is_empty(), "an entry without a due time is due");
    }
    PASSED
}
