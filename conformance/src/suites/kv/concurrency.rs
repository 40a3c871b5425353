//! Callers at the same time, and callers that go away.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as Polling, Poll};

use botmesh_core::entropy::Entropy;
use botmesh_core::kv::{Entry, Expect, Index, Op, Outcome, Version};
use botmesh_core::time::Timestamp;
use futures_util::future::poll_fn;

use super::tools::{
    Done, Kv, commit, create, create_at, due, due_until, existing, get, key, kv, paged, put, put_at,
};
use crate::case::{cases, ensure, ensure_eq};
use crate::suites::parallel::parallel;
use crate::{Case, CaseResult, Context, Failure, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        concurrent_increments_lose_nothing: "16 tasks increment one counter 50 times each by compare-and-set: 800",
        concurrent_creations_have_one_winner: "of 16 tasks that create one key, one is applied and all others see it",
        opposite_batches_do_not_block_each_other: "batches over the same 60 keys in opposite orders all end",
        concurrent_batches_of_one_key_are_ordered: "every write of batches at the same time has its own version",
        readers_see_whole_entries: "while an entry is rewritten, value, version and index always fit together",
        a_dropped_commit_applies_wholly_or_not_at_all: "each write of a call dropped half-way is there whole or not",
        a_dropped_commit_leaves_the_backend_working: "after many dropped calls the next ones work as ever",
    ]
}

async fn concurrent_increments_lose_nothing(context: &mut Context) -> CaseResult {
    const TASKS: u64 = 16;
    const EACH: u64 = 50;
    let kv = kv(context)?;
    create(&kv, "counter", "0").await?;
    parallel((0..TASKS).map(|_| increment(Arc::clone(&kv), EACH))).await?;
    ensure_eq!(number(&existing(&kv, "counter").await?)?, TASKS * EACH, "the counter");
    PASSED
}

async fn increment(kv: Kv, times: u64) -> Done {
    for _ in 0..times {
        let mut entry = existing(&kv, "counter").await?;
        loop {
            // On a runtime with one thread too, others come between the read and the write.
            tokio::task::yield_now().await;
            let next = (number(&entry)? + 1).to_string();
            match commit(&kv, put("counter", Expect::Version(entry.version), next)).await? {
                Outcome::Applied(version) => {
                    ensure!(version > entry.version, "version {version:?} after {:?}", entry.version);
                    break;
                }
                Outcome::Conflict(Some(current)) => {
                    ensure!(current > entry.version, "a conflict with {current:?} after {:?}", entry.version);
                    entry = existing(&kv, "counter").await?;
                    ensure!(entry.version >= current, "a read goes back behind a conflict");
                }
                Outcome::Conflict(None) => return Err(Failure::new("the counter is gone")),
            }
        }
    }
    Ok(())
}

fn number(entry: &Entry) -> Done<u64> {
    let text = String::from_utf8_lossy(&entry.value).into_owned();
    text.parse().map_err(|_| Failure::new(format!("the value {text:?} is no number")))
}

async fn concurrent_creations_have_one_winner(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    for round in 0..10 {
        let name = format!("k{round}");
        let tasks = (0..16).map(|task: u8| {
            let (kv, op) = (Arc::clone(&kv), put(&name, Expect::Absent, task.to_string()));
            async move { commit(&kv, op).await }
        });
        let outcomes = parallel(tasks).await?;
        let entry = existing(&kv, &name).await?;
        let winners = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Applied(_))).count();
        ensure_eq!(winners, 1, "the writes that were applied");
        for (task, outcome) in outcomes.iter().enumerate() {
            let won = entry.value == task.to_string();
            let expected =
                if won { Outcome::Applied(entry.version) } else { Outcome::Conflict(Some(entry.version)) };
            ensure_eq!(*outcome, expected, "task {task}");
        }
    }
    PASSED
}

async fn opposite_batches_do_not_block_each_other(context: &mut Context) -> CaseResult {
    const KEYS: usize = 60;
    const ROUNDS: usize = 20;
    let kv = kv(context)?;
    let name = |n: usize| format!("{n:02}");
    kv.commit((0..KEYS).map(|n| put(name(n), Expect::Absent, "start")).collect()).await?;
    let rewrite = |descending: bool| {
        let kv = Arc::clone(&kv);
        async move {
            let mut applied = 0;
            for _ in 0..ROUNDS {
                let mut names: Vec<_> = (0..KEYS).map(|n| key(name(n))).collect();
                if descending {
                    names.reverse();
                }
                let entries = kv.get(&names).await?;
                tokio::task::yield_now().await;
                let ops = entries
                    .into_iter()
                    .flatten()
                    .map(|entry| put_at(entry.key, Expect::Version(entry.version), "next", due(1)));
                let outcomes = kv.commit(ops.collect()).await?;
                ensure_eq!(outcomes.len(), KEYS, "the number of outcomes");
                applied += outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Applied(_))).count();
            }
            Ok(applied)
        }
    };
    let applied: usize = parallel([false, true, false, true].map(rewrite)).await?.into_iter().sum();
    ensure!(applied >= KEYS * ROUNDS, "only {applied} writes were applied");
    PASSED
}

async fn concurrent_batches_of_one_key_are_ordered(context: &mut Context) -> CaseResult {
    const ROUNDS: u32 = 20;
    let kv = kv(context)?;
    let tasks = (0..8).map(|task: u32| {
        let kv = Arc::clone(&kv);
        async move {
            let mut versions = Vec::new();
            for round in 0..ROUNDS {
                let own = put(format!("{task}-{round}"), Expect::Absent, "own");
                let current = get(&kv, "shared").await?.map(|entry| entry.version);
                let expect = current.map_or(Expect::Absent, Expect::Version);
                tokio::task::yield_now().await;
                let outcomes = kv.commit(vec![own, put("shared", expect, "value")]).await?;
                ensure!(
                    matches!(outcomes[0], Outcome::Applied(_)),
                    "task {task}'s own key: {:?}",
                    outcomes[0]
                );
                if let Outcome::Applied(version) = outcomes[1] {
                    versions.push(version);
                }
            }
            Ok(versions)
        }
    });
    let each = parallel(tasks).await?;
    ensure!(each.iter().all(|versions| versions.is_sorted()), "a task's later write has a smaller version");
    let mut all: Vec<Version> = each.into_iter().flatten().collect();
    all.sort_unstable();
    let last = all.last().copied();
    let count = all.len();
    all.dedup();
    ensure_eq!(all.len(), count, "the number of different versions");
    ensure_eq!(Some(existing(&kv, "shared").await?.version), last, "the last version");
    PASSED
}

/// A write whose value says its index.
fn consistent(expect: Expect, n: i64) -> Op {
    let index = Index { due: Some(Timestamp::from_millis(n)), list: Some((1, n)) };
    put_at("k", expect, n.to_string(), index)
}

fn is_consistent(entry: &Entry) -> bool {
    let due = entry.index.due.map(|due| due.as_millis().to_string());
    let place = entry.index.list.map(|(_, place)| place.to_string());
    due.is_some_and(|due| entry.value == due) && place.is_some_and(|place| entry.value == place)
}

async fn readers_see_whole_entries(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    let mut version = super::tools::applied(&kv, consistent(Expect::Absent, 0)).await?;
    let done = Arc::new(AtomicBool::new(false));
    let readers = (0..3).map(|_| read_until(Arc::clone(&kv), Arc::clone(&done)));
    let (writer, ended) = (Arc::clone(&kv), Arc::clone(&done));
    let writing = async move {
        let mut result = Ok(());
        for n in 1..=200 {
            match super::tools::applied(&writer, consistent(Expect::Version(version), n)).await {
                Ok(next) => version = next,
                Err(failure) => {
                    result = Err(failure);
                    break;
                }
            }
        }
        ended.store(true, Ordering::SeqCst);
        result
    };
    type Boxed = Pin<Box<dyn Future<Output = Done> + Send>>;
    let readers = readers.map(|reader| Box::pin(reader) as Boxed);
    parallel(readers.chain([Box::pin(writing) as Boxed])).await?;
    PASSED
}

async fn read_until(kv: Kv, done: Arc<AtomicBool>) -> Done {
    let mut last = Version(0);
    while !done.load(Ordering::SeqCst) {
        let entry = existing(&kv, "k").await?;
        ensure!(is_consistent(&entry), "value and index of different writes: {entry:?}");
        ensure!(entry.version >= last, "a read goes back from {last:?} to {:?}", entry.version);
        last = entry.version;
        for range in [due_until(i64::MAX), super::tools::list(1, 0, i64::MAX)] {
            let found = kv.scan(range, None, 10).await?;
            ensure!(found.iter().all(is_consistent), "value and index of different writes: {found:?}");
            ensure!(found.len() <= 1, "{range:?} shows the entry twice: {found:?}");
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Polls a commit so many times and drops it, unless it ends before. Says whether it ended.
async fn dropped_after(polls: u64, commit: impl Future<Output = Done<Vec<Outcome>>>) -> Done<bool> {
    let mut commit = Box::pin(commit);
    let mut left = polls;
    let ended = poll_fn(|polling: &mut Polling<'_>| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match commit.as_mut().poll(polling) {
            Poll::Ready(outcomes) => Poll::Ready(Some(outcomes)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    Ok(ended.transpose()?.is_some())
}

async fn a_dropped_commit_applies_wholly_or_not_at_all(context: &mut Context) -> CaseResult {
    const KEYS: usize = 5;
    let (kv, entropy) = (kv(context)?, context.entropy());
    for round in 0..60_i64 {
        let name = |n: usize| format!("{round}-{n}");
        for n in 0..KEYS {
            create_at(&kv, name(n), due(-1)).await?;
        }
        let names: Vec<_> = (0..KEYS).map(|n| key(name(n))).collect();
        let before: Vec<_> = kv.get(&names).await?.into_iter().flatten().collect();
        let index = Index { due: due(round).due, list: Some((1, round)) };
        let ops = before
            .iter()
            .map(|entry| put_at(&entry.key, Expect::Version(entry.version), round.to_string(), index));
        let (writer, ops) = (Arc::clone(&kv), ops.collect());
        let commit = async move { Ok(writer.commit(ops).await?) };
        let ended = dropped_after(entropy.next_u64() % 6, commit).await?;
        // A write that follows must see the dropped ones as done or not, whatever still goes on.
        for old in &before {
            let found = existing(&kv, &old.key).await?;
            let was_applied = found.version > old.version;
            ensure!(was_applied || !ended, "a commit ended and is not there");
            let (value, places) =
                if was_applied { (key(round.to_string()), index) } else { (key("value"), due(-1)) };
            ensure_eq!((found.value, found.index), (value, places), "an entry of a dropped commit");
        }
    }
    settled(&kv).await?;
    PASSED
}

/// Every entry that is due is found under its key with the same content: no half-written index is left.
async fn settled(kv: &Kv) -> Done {
    // A write through the same handle is behind every dropped one.
    create(kv, "last", "value").await?;
    let due = paged(kv, due_until(i64::MAX), 50).await?;
    let names: Vec<_> = due.iter().map(|entry| entry.key.clone()).collect();
    let direct: Vec<_> = kv.get(&names).await?.into_iter().flatten().collect();
    ensure_eq!(due, direct, "what is due, and the same entries by key");
    Ok(())
}

async fn a_dropped_commit_leaves_the_backend_working(context: &mut Context) -> CaseResult {
    let kv = kv(context)?;
    for n in 0..100_u64 {
        let (writer, op) = (Arc::clone(&kv), put_at(n.to_string(), Expect::Absent, "value", due(1)));
        let commit = async move { Ok(writer.commit(vec![op]).await?) };
        dropped_after(n % 4, commit).await?;
    }
    let tasks = (0..8).map(|task: u8| {
        let kv = Arc::clone(&kv);
        async move { create(&kv, format!("after {task}"), "value").await }
    });
    parallel(tasks).await?;
    settled(&kv).await?;
    PASSED
}
