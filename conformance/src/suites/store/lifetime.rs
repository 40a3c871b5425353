//! Scopes, and what is left when the store is opened again.

use botmesh_core::error::{Cas, StoreError, StoreErrorKind};
use botmesh_core::id::{ChatId, MessageId, ParticipantId};
use botmesh_core::scope::Scope;
use botmesh_core::store::{ChatState, Checkpoint, Direction, LogEntry};
use botmesh_core::time::Timestamp;
use serde_json::json;

use super::tools::{Done, Held, applied, conversation, existing, is_lost, plain_checkpoint, turn};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, Failure, PASSED, REFUSED, Sharing};

pub(super) fn cases() -> Vec<Case> {
    cases![
        scopes_see_only_their_own: "look-alike scopes keep chats, users, checkpoints, deadlines and logs apart",
        acknowledged_writes_survive_a_reopen: "what was acknowledged is there when opened again, or nothing is",
        a_second_opening_shares_or_is_refused: "a store that is shared may be opened twice; another refuses it",
        a_closed_store_refuses: "after a close every call fails as misuse",
    ]
}

/// Writes one of everything, marked with `mark`.
async fn fill(store: &Held, mark: &str) -> Done {
    let chat = ChatId::from("ana");
    store.set_chat(&chat, &ChatState { language: Some(mark.to_owned()) }).await?;
    store.set_user_value(&ParticipantId::from("ana"), "k", Some(&json!(mark))).await?;
    let checkpoint = Checkpoint { due: Some(Timestamp::from_millis(5)), ..plain_checkpoint(mark) };
    applied(store, &turn(7, "s1"), &conversation("ana"), None, &checkpoint).await?;
    let entry = LogEntry {
        chat,
        direction: Direction::Out,
        at: Timestamp::from_millis(1),
        message: MessageId::from("1"),
        text: mark.to_owned(),
    };
    store.append_log(&[entry]).await?;
    Ok(())
}

/// Everything that is there is marked with `mark`.
async fn holds(store: &Held, mark: &str) -> Done {
    let chat = ChatId::from("ana");
    let language = store.chat(&chat).await?.and_then(|state| state.language);
    ensure_eq!(language.as_deref(), Some(mark), "the chat");
    let values = store.user_values(&ParticipantId::from("ana")).await?;
    ensure_eq!(values, [("k".to_owned(), json!(mark))], "the user's values");
    ensure_eq!(existing(store, &conversation("ana")).await?.step, mark, "the checkpoint");
    let due = store.due_checkpoints(Timestamp::MAX, 100).await?;
    ensure_eq!(due, [(conversation("ana"), Timestamp::from_millis(5))], "what is due");
    let log = store.log(&chat, None, 100).await?;
    let texts: Vec<_> = log.iter().map(|(_, entry)| entry.text.as_str()).collect();
    ensure_eq!(texts, [mark], "the log");
    Ok(())
}

async fn is_empty(store: &Held) -> Done {
    let chat = ChatId::from("ana");
    ensure!(store.chat(&chat).await?.is_none(), "a chat is known");
    ensure!(store.user_values(&ParticipantId::from("ana")).await?.is_empty(), "a user has values");
    ensure!(store.checkpoint(&conversation("ana")).await?.is_none(), "there is a checkpoint");
    ensure!(store.due_checkpoints(Timestamp::MAX, 10).await?.is_empty(), "a checkpoint is due");
    ensure!(store.log(&chat, None, 10).await?.is_empty(), "there is a log");
    Ok(())
}

async fn scopes_see_only_their_own(context: &mut Context) -> CaseResult {
    let names =
        ["a_c", "abc", "a%", "a*", "a[b]", "a:b", "a", "A", "a/b", "a%2Fb", "á", "a\u{301}", "a ", ""];
    let mut scopes: Vec<_> = names.into_iter().map(Scope::bot).collect();
    let four = |tenant: &str, environment: &str, bot: &str, connection: &str| {
        let [tenant, environment, bot, connection] =
            [tenant, environment, bot, connection].map(str::to_owned);
        Scope { tenant, environment, bot, connection }
    };
    scopes.push(four("a/b", "c", "d", "e"));
    scopes.push(four("a", "b/c", "d", "e"));
    scopes.push(four("a", "b", "c", "d/e"));
    scopes.push(four("a", "b", "c", "d"));
    for (n, scope) in scopes.iter().enumerate() {
        let store = context.store_in(scope)?;
        is_empty(&store).await.map_err(|failure| failure.during(&format!("a new scope {scope}")))?;
        fill(&store, &n.to_string()).await?;
    }
    for (n, scope) in scopes.iter().enumerate() {
        let store = context.store_in(scope)?;
        holds(&store, &n.to_string())
            .await
            .map_err(|failure| failure.during(&format!("the scope {scope}")))?;
    }
    PASSED
}

async fn acknowledged_writes_survive_a_reopen(context: &mut Context) -> CaseResult {
    fill(&context.store()?, "before").await?;
    let before = existing(&context.store()?, &conversation("ana")).await?;
    let log = context.store()?.log(&ChatId::from("ana"), None, 10).await?;
    context.reopen().await?;
    let store = context.store()?;
    if !context.claims().survives_reopen() {
        is_empty(&store).await?;
        return REFUSED;
    }
    holds(&store, "before").await?;
    ensure_eq!(existing(&store, &conversation("ana")).await?, before, "the whole checkpoint");
    ensure_eq!(store.log(&ChatId::from("ana"), None, 10).await?, log, "the log with its positions");
    let stale = is_lost(&store, &turn(6, "s2"), &conversation("ana"), Some(before.revision)).await?;
    ensure!(stale, "an older turn writes after the store was opened again");
    let cleared = store.clear_checkpoint(&turn(8, "s2"), &conversation("ana"), before.revision).await?;
    ensure_eq!(cleared, Cas::Applied(()), "a clear by a later turn");
    PASSED
}

async fn a_second_opening_shares_or_is_refused(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    fill(&store, "first").await?;
    let own = context.claims().sharing == Sharing::Process;
    let second = match context.open_again().await {
        Ok(second) => second,
        Err(_) if own => {
            holds(&store, "first").await?;
            return REFUSED;
        }
        Err(error) => return Err(Failure::from(error).during("the second opening of a shared store")),
    };
    let scope = Scope { tenant: context.scope(&Scope::default().tenant), ..Scope::default() };
    let Some(other) = second.store.as_ref().map(|store| store.scoped(&scope)) else {
        return Err(Failure::new("the second opening has no store"));
    };
    if own {
        is_empty(&other).await.map_err(|failure| failure.during("a second opening of what is not shared"))?;
        second.close().await?;
        return REFUSED;
    }
    holds(&other, "first").await?;
    let key = conversation("ana");
    let revision = existing(&other, &key).await?.revision;
    let next = applied(&other, &turn(8, "s2"), &key, Some(revision), &plain_checkpoint("second")).await?;
    ensure!(is_lost(&store, &turn(7, "s1"), &key, Some(next)).await?, "an older turn writes");
    ensure_eq!(existing(&store, &key).await?.step, "second", "the checkpoint through the first opening");
    second.close().await?;
    ensure_eq!(existing(&store, &key).await?.step, "second", "the checkpoint after the second was closed");
    PASSED
}

async fn a_closed_store_refuses(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    fill(&store, "before").await?;
    context.close().await?;
    let (chat, user, key, turn) =
        (ChatId::from("ana"), ParticipantId::from("ana"), conversation("ana"), turn(7, "s1"));
    let checkpoint = plain_checkpoint("late");
    misuse("chat", store.chat(&chat).await)?;
    misuse("set_chat", store.set_chat(&chat, &ChatState::default()).await)?;
    misuse("user_value", store.user_value(&user, "k").await)?;
    misuse("set_user_value", store.set_user_value(&user, "k", None).await)?;
    misuse("user_values", store.user_values(&user).await)?;
    misuse("checkpoint", store.checkpoint(&key).await)?;
    misuse("set_checkpoint", store.set_checkpoint(&turn, &key, None, &checkpoint).await)?;
    misuse("clear_checkpoint", store.clear_checkpoint(&turn, &key, checkpoint.revision).await)?;
    misuse("due_checkpoints", store.due_checkpoints(Timestamp::MAX, 1).await)?;
    misuse("log", store.log(&chat, None, 1).await)?;
    PASSED
}

fn misuse<T: std::fmt::Debug>(method: &str, result: Result<T, StoreError>) -> Done {
    match result {
        Err(error) => {
            ensure_eq!(
                error.kind(),
                StoreErrorKind::Misuse,
                "the error of {method} on a closed store: {error}"
            );
            Ok(())
        }
        Ok(value) => Err(Failure::new(format!("{method} on a closed store gives {value:?}"))),
    }
}
