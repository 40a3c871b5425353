//! The message log.

use std::sync::Arc;

use botmesh_core::id::{ChatId, MessageId};
use botmesh_core::store::{Direction, LogEntry, LogPosition};
use botmesh_core::time::Timestamp;

use super::tools::{Done, Held, LOOK_ALIKES};
use crate::case::{cases, ensure, ensure_eq};
use crate::suites::parallel::parallel;
use crate::{Case, CaseResult, Context, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        the_log_comes_newest_first: "entries come in the reverse order in which they were appended, also within a batch",
        the_log_follows_no_clock: "entries with equal times, or times that go back, keep the order of appending",
        the_log_is_paged_by_position: "25 entries read 7 at a time are 25 entries, and a position is excluded",
        positions_stay: "an entry has the same position whenever it is read, larger than those before it",
        an_entry_is_exact: "every field comes back as it was",
        logs_are_separate: "chats whose ids look alike have logs of their own, also when appended in one call",
        an_empty_append_is_no_entry: "appending nothing succeeds",
        concurrent_appends_are_all_there: "appends at the same time each keep their own order and lose nothing",
    ]
}

fn entry(chat: &str, at: i64, text: &str) -> LogEntry {
    LogEntry {
        chat: ChatId::from(chat),
        direction: Direction::In,
        at: Timestamp::from_millis(at),
        message: MessageId::from(format!("m {text}")),
        text: text.to_owned(),
    }
}

async fn log(
    store: &Held,
    chat: &str,
    before: Option<LogPosition>,
    limit: usize,
) -> Done<Vec<(LogPosition, LogEntry)>> {
    let page = store.log(&ChatId::from(chat), before, limit).await?;
    ensure!(page.len() <= limit, "a page of {limit} has {} entries", page.len());
    let falling = page.windows(2).all(|pair| pair[0].0 > pair[1].0);
    ensure!(
        falling,
        "positions do not fall: {:?}",
        page.iter().map(|(position, _)| position).collect::<Vec<_>>()
    );
    Ok(page)
}

async fn texts(store: &Held, chat: &str) -> Done<Vec<String>> {
    Ok(log(store, chat, None, 1_000).await?.into_iter().map(|(_, entry)| entry.text).collect())
}

async fn the_log_comes_newest_first(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    ensure!(texts(&store, "ana").await?.is_empty(), "the case does not start empty");
    store.append_log(&[entry("ana", 1, "one")]).await?;
    store.append_log(&[entry("ana", 2, "two"), entry("ana", 3, "three")]).await?;
    store.append_log(&[entry("ana", 4, "four")]).await?;
    ensure_eq!(texts(&store, "ana").await?, ["four", "three", "two", "one"], "the log");
    let last = log(&store, "ana", None, 2).await?;
    let last: Vec<_> = last.iter().map(|(_, entry)| entry.text.as_str()).collect();
    ensure_eq!(last, ["four", "three"], "the last two");
    ensure!(log(&store, "ana", None, 0).await?.is_empty(), "a limit of none");
    ensure_eq!(log(&store, "ana", None, usize::MAX).await?.len(), 4, "a limit above the number");
    PASSED
}

async fn the_log_follows_no_clock(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    for (at, text) in
        [(5, "a"), (5, "c"), (5, "b"), (1, "back"), (i64::MIN, "first"), (i64::MAX, "last"), (5, "d")]
    {
        store.append_log(&[entry("ana", at, text)]).await?;
    }
    ensure_eq!(texts(&store, "ana").await?, ["d", "last", "first", "back", "b", "c", "a"], "the log");
    PASSED
}

async fn the_log_is_paged_by_position(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let entries: Vec<_> = (0..25).map(|n| entry("ana", 7, &n.to_string())).collect();
    for part in entries.chunks(4) {
        store.append_log(part).await?;
        store.append_log(&[entry("bea", 7, "other")]).await?;
    }
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = log(&store, "ana", before, 7).await?;
        let Some((position, _)) = page.last() else { break };
        ensure!(before.is_none_or(|before| *position < before), "a page repeats its position");
        before = Some(*position);
        found.extend(page.into_iter().map(|(_, entry)| entry));
        ensure!(found.len() <= 25, "paging does not come to an end");
    }
    found.reverse();
    ensure_eq!(found, entries, "the entries of all pages");
    PASSED
}

async fn positions_stay(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let mut known: Vec<(LogPosition, LogEntry)> = Vec::new();
    for n in 0..10 {
        store.append_log(&[entry("ana", 1, &n.to_string()), entry("ana", 1, "next")]).await?;
        let now = log(&store, "ana", None, 100).await?;
        ensure_eq!(now[2..], known[..], "the entries that were there before");
        known = now;
    }
    PASSED
}

async fn an_entry_is_exact(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let long = "x".repeat(200_000);
    let texts = ["", "a\0b", "\u{1F600} e\u{301} \u{FEFF}\u{2028}", "it's %_ \\ \"\r\n", &long];
    let entries = texts.iter().enumerate().map(|(n, text)| LogEntry {
        chat: ChatId::from("-1001557912345"),
        direction: if n % 2 == 0 { Direction::In } else { Direction::Out },
        at: Timestamp::from_millis(9_007_199_254_740_993 - i64::try_from(n).unwrap_or(0)),
        message: MessageId::from(LOOK_ALIKES[n]),
        text: (*text).to_owned(),
    });
    let entries: Vec<_> = entries.collect();
    store.append_log(&entries).await?;
    let mut found: Vec<_> =
        log(&store, "-1001557912345", None, 100).await?.into_iter().map(|(_, e)| e).collect();
    found.reverse();
    ensure!(found == entries, "the entries came back changed");
    PASSED
}

async fn logs_are_separate(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let entries: Vec<_> = LOOK_ALIKES.iter().map(|chat| entry(chat, 1, chat)).collect();
    store.append_log(&entries).await?;
    for chat in LOOK_ALIKES {
        ensure_eq!(texts(&store, chat).await?, [*chat], "the log of {chat:?}");
    }
    PASSED
}

async fn an_empty_append_is_no_entry(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    store.append_log(&[]).await?;
    ensure!(texts(&store, "ana").await?.is_empty(), "the log has entries");
    PASSED
}

async fn concurrent_appends_are_all_there(context: &mut Context) -> CaseResult {
    const EACH: usize = 20;
    let store = context.store()?;
    let tasks = (0..8).map(|task: u8| {
        let store = Arc::clone(&store);
        async move {
            for n in 0..EACH {
                store.append_log(&[entry("ana", 1, &format!("{task}-{n:02}"))]).await?;
            }
            Ok(())
        }
    });
    parallel(tasks).await?;
    let mut found = texts(&store, "ana").await?;
    found.reverse();
    for task in 0..8 {
        let prefix = format!("{task}-");
        let own: Vec<_> = found.iter().filter(|text| text.starts_with(&prefix)).cloned().collect();
        let expected: Vec<_> = (0..EACH).map(|n| format!("{task}-{n:02}")).collect();
        ensure_eq!(own, expected, "the entries of task {task}");
    }
    PASSED
}
