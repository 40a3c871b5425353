//! Named values of users.

use botmesh_core::id::ParticipantId;
use serde_json::json;

use super::tools::{LOOK_ALIKES, exact_values, same_json};
use crate::case::{cases, ensure, ensure_eq};
use crate::suites::parallel::parallel;
use crate::{Case, CaseResult, Context, PASSED};
use std::sync::Arc;

pub(super) fn cases() -> Vec<Case> {
    cases![
        names_of_a_user_are_separate: "setting one name leaves the others untouched, also at the same time",
        a_value_is_replaced: "setting a name again replaces its value",
        a_value_is_removed_alone: "removing a name leaves the others, and removing what is not there is no error",
        values_are_ordered_by_name: "all values of a user come by the bytes of their names",
        users_are_separate: "users whose ids look alike have values of their own",
        names_are_exact: "names that look alike, empty ones and long ones are different names",
        null_is_a_value: "a null that was set is there, and is not the same as none",
        json_is_exact: "numbers, text and structures come back as they were, to the last bit",
    ]
}

async fn names_of_a_user_are_separate(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let user = ParticipantId::from("ana");
    let tasks = (0..20).map(|n: u32| {
        let (store, user) = (Arc::clone(&store), user.clone());
        async move { Ok(store.set_user_value(&user, &format!("name {n}"), Some(&json!(n))).await?) }
    });
    parallel(tasks).await?;
    ensure_eq!(store.user_values(&user).await?.len(), 20, "the number of names");
    store.set_user_value(&user, "name 3", Some(&json!("changed"))).await?;
    for n in 0..20 {
        let expected = if n == 3 { json!("changed") } else { json!(n) };
        ensure_eq!(store.user_value(&user, &format!("name {n}")).await?, Some(expected), "name {n}");
    }
    PASSED
}

async fn a_value_is_replaced(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let user = ParticipantId::from("ana");
    ensure!(store.user_value(&user, "k").await?.is_none(), "the case does not start empty");
    for value in [json!({"a": 1, "b": 2}), json!({"b": 3}), json!(7)] {
        store.set_user_value(&user, "k", Some(&value)).await?;
        ensure_eq!(store.user_value(&user, "k").await?, Some(value), "the value");
    }
    ensure_eq!(store.user_values(&user).await?.len(), 1, "the number of names");
    PASSED
}

async fn a_value_is_removed_alone(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let user = ParticipantId::from("ana");
    for name in ["a", "b", "c"] {
        store.set_user_value(&user, name, Some(&json!(name))).await?;
    }
    store.set_user_value(&user, "b", None).await?;
    store.set_user_value(&user, "none", None).await?;
    store.set_user_value(&ParticipantId::from("nobody"), "b", None).await?;
    ensure!(store.user_value(&user, "b").await?.is_none(), "the removed value is there");
    let expected = ["a", "c"].map(|name| (name.to_owned(), json!(name)));
    ensure_eq!(store.user_values(&user).await?, expected, "what is left");
    for name in ["a", "c"] {
        store.set_user_value(&user, name, None).await?;
    }
    ensure!(store.user_values(&user).await?.is_empty(), "a user without values has some");
    store.set_user_value(&user, "b", Some(&json!("again"))).await?;
    ensure_eq!(store.user_value(&user, "b").await?, Some(json!("again")), "a value that was set again");
    PASSED
}

async fn values_are_ordered_by_name(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let user = ParticipantId::from("ana");
    let mut names =
        vec!["b", "a", "B", "aa", "10", "9", "é", "e\u{301}", "z", "\u{1F600}", "\u{FFFD}", " ", "_"];
    for name in &names {
        store.set_user_value(&user, name, Some(&json!(1))).await?;
    }
    names.sort_unstable();
    let found: Vec<_> = store.user_values(&user).await?.into_iter().map(|(name, _)| name).collect();
    ensure_eq!(found, names, "the names");
    PASSED
}

async fn users_are_separate(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    for user in LOOK_ALIKES {
        store.set_user_value(&ParticipantId::from(*user), "k", Some(&json!(user))).await?;
    }
    for user in LOOK_ALIKES {
        let found = store.user_values(&ParticipantId::from(*user)).await?;
        ensure_eq!(found, [("k".to_owned(), json!(user))], "the values of {user:?}");
    }
    store.set_user_value(&ParticipantId::from("a"), "k", None).await?;
    let b = store.user_value(&ParticipantId::from("a/b"), "k").await?;
    ensure_eq!(b, Some(json!("a/b")), "another user's value after a removal");
    PASSED
}

async fn names_are_exact(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let user = ParticipantId::from("ana");
    let long = "n".repeat(1_000);
    let names: Vec<&str> = LOOK_ALIKES.iter().copied().chain(["", &long]).collect();
    for name in &names {
        store.set_user_value(&user, name, Some(&json!(name))).await?;
    }
    for name in &names {
        ensure_eq!(store.user_value(&user, name).await?, Some(json!(name)), "the value of {name:?}");
    }
    ensure_eq!(store.user_values(&user).await?.len(), names.len(), "the number of names");
    PASSED
}

async fn null_is_a_value(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let user = ParticipantId::from("ana");
    store.set_user_value(&user, "k", Some(&json!(null))).await?;
    ensure_eq!(store.user_value(&user, "k").await?, Some(json!(null)), "the value");
    ensure_eq!(store.user_values(&user).await?, [("k".to_owned(), json!(null))], "all values");
    store.set_user_value(&user, "k", None).await?;
    ensure_eq!(store.user_value(&user, "k").await?, None, "the removed value");
    PASSED
}

async fn json_is_exact(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let user = ParticipantId::from("ana");
    for (n, value) in exact_values().iter().enumerate() {
        let name = format!("{n:02}");
        store.set_user_value(&user, &name, Some(value)).await?;
        let found = store.user_value(&user, &name).await?;
        let same = found.as_ref().is_some_and(|found| same_json(found, value));
        ensure!(same, "{value} came back as {found:?}");
    }
    for ((name, found), value) in store.user_values(&user).await?.iter().zip(&exact_values()) {
        ensure!(same_json(found, value), "{value} came back as {found} among all values, as {name}");
    }
    PASSED
}
