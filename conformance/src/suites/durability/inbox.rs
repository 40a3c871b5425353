//! What arrived.

use std::time::Duration;

use botmesh_core::error::{Cas, StoreErrorKind};
use botmesh_core::id::RecordId;
use botmesh_core::inbound::{Inbound, InboundBody, Participant};
use botmesh_core::journal::{Change, InboxRecord, InboxState, Record};
use botmesh_core::kv::{Expect, Index, Op};

use super::tools::{Done, Life, MAX_ATTEMPTS, World, event};
use crate::case::{cases, ensure, ensure_eq};
use crate::suites::parallel::parallel;
use crate::{Case, CaseResult, Context, PASSED, REFUSED};

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn cases() -> Vec<Case> {
    cases![
        an_event_is_born_owned: "one write takes an event over, says whose it is, and charges the attempt",
        a_redelivery_is_recognised: "an event that arrives again is refused, while it is worked on and when it is done",
        look_alike_events_are_different: "the same id of another person, chat or kind is another event",
        a_done_record_stays_done: "a finished record takes no other transition, and a stale write of it loses",
        a_failed_attempt_waits_for_its_time: "a failed record is due at its time and not before, and is then adopted",
        the_last_failure_is_the_dead_letter: "after the last attempt a record is dead, still recognised, and can be revived",
        attempts_that_end_with_the_process_count: "a record whose process dies each time is dead after the last attempt",
        a_released_attempt_is_refunded: "an attempt that is given back costs nothing",
        one_of_two_adopters_wins: "of processes that adopt the same twenty records each record has one new owner",
        events_at_the_same_time_are_all_taken: "64 events that arrive at once, each twice, are 64 records",
        a_listing_pages_through_a_state: "25 records of one state read 7 at a time are 25 records, oldest first",
        only_what_is_old_is_purged: "a purge removes finished records older than a time, at most so many, and no others",
        error_texts_are_kept_short: "an error text with NUL and of 10 MB is stored, cut where a character ends",
        bots_see_only_their_own: "the same event in two scopes is two records, each due in its own scope",
        a_newer_format_is_refused_by_name: "a record of a newer format is left as it is and named",
        unfinished_records_survive_a_reopen: "what was taken over is found when opened again, or nothing is",
    ]
}

async fn take(life: &Life, id: &str) -> Done<botmesh_core::journal::Stored<InboxRecord>> {
    life.insert(life.working(event(id))).await
}

async fn an_event_is_born_owned(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let before = life.kv.commits();
    let stored = take(&life, "1").await?;
    ensure_eq!(life.kv.commits() - before, 1, "the commits of one event");
    let found = life.inbox(&stored.record.id).await?;
    ensure_eq!(found, stored, "the record");
    let (owner, attempts) = (found.record.owner.clone(), found.record.attempts);
    ensure_eq!((owner, attempts), (Some(life.journal.owner()), 1), "owner and attempts");
    let working = life.journal.inbox().list(InboxState::Working, None, 10).await?;
    ensure_eq!(working.records, [found], "the records that are worked on");
    ensure!(life.journal.due(world.now() + SECOND, None, 10).await?.inbox.records.is_empty(), "it is due");
    life.kill().await;
    PASSED
}

async fn a_redelivery_is_recognised(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let stored = take(&life, "1").await?;
    let again = life.try_one(Change::insert(&life.working(event("1")))).await?;
    ensure_eq!(again, Cas::Lost, "a redelivery while it is worked on");
    let done = life.step(&stored, stored.record.finish(world.now())).await?;
    let again = life.try_one(Change::insert(&life.working(event("1")))).await?;
    ensure_eq!(again, Cas::Lost, "a redelivery when it is done");
    ensure_eq!(life.inbox(&stored.record.id).await?, done, "the record");
    life.kill().await;
    PASSED
}

async fn look_alike_events_are_different(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let group = |sender: &str, event: &str| Inbound {
        sender: Some(Participant::new(sender)),
        group: true,
        ..Inbound::text(event, "-1001557912345", "hi")
    };
    let press = InboundBody::Interaction { id: "yes".into(), title: "Yes".into() };
    let mut events = vec![
        group("ana", "3EB0AA"),
        group("bea", "3EB0AA"),
        group("ana", "3eb0aa"),
        Inbound::text("3EB0AA", "-1001557912345", "hi"),
        Inbound::private("3EB0AA", "-1001557912345", press),
        Inbound::text("a/b", "c", "hi"),
        Inbound::text("b", "c/a", "hi"),
        Inbound::text("a%2Fb", "c", "hi"),
    ];
    let ids = ["300000000", "3e+8", "1", "01", "1.0", "9007199254740993", "9007199254740992"];
    events.extend(ids.map(event));
    for inbound in &events {
        let outcome = life.try_one(Change::insert(&life.working(inbound.clone()))).await?;
        ensure!(outcome != Cas::Lost, "{} is taken for another event", inbound.record_id());
    }
    for inbound in &events {
        let found = life.inbox(&inbound.record_id()).await?;
        ensure_eq!(*found.record.inbound, *inbound, "the event of {}", inbound.record_id());
    }
    life.kill().await;
    PASSED
}

async fn a_done_record_stays_done(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let stored = take(&life, "1").await?;
    let now = world.now();
    let done = life.step(&stored, stored.record.finish(now)).await?;
    ensure!(done.record.finish(now).is_err(), "it finishes twice");
    ensure!(done.record.fail("late", now, MAX_ATTEMPTS, now).is_err(), "it fails");
    ensure!(done.record.adopt(&life.journal.owner(), MAX_ATTEMPTS, now).is_err(), "it is adopted");
    let failed = stored.record.fail("late", now, MAX_ATTEMPTS, now);
    let failed = failed.map_err(|refused| crate::Failure::new(refused.to_string()))?;
    let late = life.try_one(Change::update(stored.version, &failed)).await?;
    ensure_eq!(late, Cas::Lost, "a stale write");
    ensure_eq!(life.inbox(&stored.record.id).await?, done, "the record");
    let due = life.journal.due(world.now() + SECOND, None, 10).await?;
    ensure!(due.inbox.records.is_empty(), "a finished record is due");
    life.kill().await;
    PASSED
}

async fn a_failed_attempt_waits_for_its_time(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let stored = take(&life, "1").await?;
    let at = world.now() + SECOND;
    let waiting =
        life.step(&stored, stored.record.fail("the store is down", at, MAX_ATTEMPTS, world.now())).await?;
    let early = life.journal.due(at - Duration::from_millis(1), None, 10).await?;
    ensure!(early.inbox.records.is_empty(), "it is due too early");
    let due = life.journal.due(at, None, 10).await?.inbox.records;
    ensure_eq!(due, [waiting], "what is due");
    let owner = life.journal.owner();
    let adopted = life.step(&due[0], due[0].record.adopt(&owner, MAX_ATTEMPTS, at)).await?;
    ensure_eq!(adopted.record.attempts, 1, "adoption and waiting cost no attempt");
    let started = life.step(&adopted, adopted.record.start(&owner, at)).await?;
    ensure_eq!(
        (started.record.attempts, started.record.state),
        (2, InboxState::Working),
        "the second attempt"
    );
    ensure!(life.journal.due(at, None, 10).await?.inbox.records.is_empty(), "it is still due");
    life.kill().await;
    PASSED
}

async fn the_last_failure_is_the_dead_letter(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let owner = life.journal.owner();
    let mut stored = take(&life, "1").await?;
    for attempt in 1..=MAX_ATTEMPTS {
        ensure_eq!(stored.record.attempts, attempt, "the attempts");
        stored = life.step(&stored, stored.record.fail("no", world.now(), MAX_ATTEMPTS, world.now())).await?;
        if attempt < MAX_ATTEMPTS {
            stored = life.step(&stored, stored.record.adopt(&owner, MAX_ATTEMPTS, world.now())).await?;
            stored = life.step(&stored, stored.record.start(&owner, world.now())).await?;
        }
    }
    ensure_eq!(stored.record.state, InboxState::Dead, "the state after the last attempt");
    let dead = life.journal.inbox().list(InboxState::Dead, None, 10).await?;
    ensure_eq!(dead.records, [stored.clone()], "the dead letters");
    ensure!(life.journal.due(world.now() + SECOND, None, 10).await?.inbox.records.is_empty(), "it is due");
    for _ in 0..3 {
        let again = life.try_one(Change::insert(&life.working(event("1")))).await?;
        ensure_eq!(again, Cas::Lost, "a redelivery of a dead letter");
    }
    let revived = life.step(&stored, stored.record.replay(None, world.now())).await?;
    ensure_eq!(revived.record.attempts, 0, "a fresh budget");
    ensure_eq!(life.journal.due(world.now(), None, 10).await?.inbox.records, [revived], "what is due");
    life.kill().await;
    PASSED
}

async fn attempts_that_end_with_the_process_count(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let mut stored = take(&life, "1").await?;
    life.kill().await;
    for attempt in 2..=MAX_ATTEMPTS {
        let life = world.start("one").await?;
        let owner = life.journal.owner();
        stored = life.inbox(&stored.record.id).await?;
        stored = life.step(&stored, stored.record.adopt(&owner, MAX_ATTEMPTS, world.now())).await?;
        stored = life.step(&stored, stored.record.start(&owner, world.now())).await?;
        ensure_eq!(stored.record.attempts, attempt, "the attempts");
        life.kill().await;
    }
    let life = world.start("one").await?;
    let owner = life.journal.owner();
    stored = life.step(&stored, stored.record.adopt(&owner, MAX_ATTEMPTS, world.now())).await?;
    ensure_eq!((stored.record.state, stored.record.attempts), (InboxState::Dead, MAX_ATTEMPTS), "the record");
    life.kill().await;
    PASSED
}

async fn a_released_attempt_is_refunded(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let stored = take(&life, "1").await?;
    let released = life.step(&stored, stored.record.release(world.now())).await?;
    let found = life.inbox(&stored.record.id).await?;
    ensure_eq!((found.record.attempts, found.record.state), (0, InboxState::Queued), "the record");
    let queued = life.journal.inbox().list(InboxState::Queued, None, 10).await?;
    ensure_eq!(queued.records, [released], "the queue");
    life.kill().await;
    PASSED
}

async fn one_of_two_adopters_wins(context: &mut Context) -> CaseResult {
    const RECORDS: usize = 20;
    let mut world = World::new(context)?;
    let dead = world.start("dead").await?;
    for n in 0..RECORDS {
        take(&dead, &n.to_string()).await?;
    }
    dead.journal.end_session().await?;
    let lives = [world.start("one").await?, world.start("two").await?];
    let listed = lives[0].journal.inbox().list(InboxState::Working, None, 100).await?.records;
    ensure_eq!(listed.len(), RECORDS, "the records that were left behind");
    let now = world.now();
    let tasks = lives.iter().map(|life| {
        let (journal, records) = (life.journal.clone(), listed.clone());
        async move {
            let mut won = 0;
            for stored in records {
                tokio::task::yield_now().await;
                let adopted = stored.record.adopt(&journal.owner(), MAX_ATTEMPTS, now);
                let adopted = adopted.map_err(|refused| crate::Failure::new(refused.to_string()))?;
                let outcome = journal.commit_one(Change::update(stored.version, &adopted)).await?;
                won += usize::from(outcome != Cas::Lost);
            }
            Ok((journal.owner(), won))
        }
    });
    let won = parallel(tasks.collect::<Vec<_>>()).await?;
    let queued = lives[0].journal.inbox().list(InboxState::Queued, None, 100).await?.records;
    for (owner, won) in &won {
        let owned = queued.iter().filter(|stored| stored.record.owner.as_ref() == Some(owner)).count();
        ensure_eq!(owned, *won, "the records of {owner:?} and what it was told");
    }
    ensure_eq!(won.iter().map(|(_, won)| won).sum::<usize>(), RECORDS, "the records that were adopted");
    for life in lives {
        life.kill().await;
    }
    PASSED
}

async fn events_at_the_same_time_are_all_taken(context: &mut Context) -> CaseResult {
    const EVENTS: usize = 64;
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let tasks = (0..2 * EVENTS).map(|n| {
        let (journal, record) = (life.journal.clone(), life.working(event(&(n % EVENTS).to_string())));
        async move { Ok(journal.commit_one(Change::insert(&record)).await? != Cas::Lost) }
    });
    let taken = parallel(tasks.collect::<Vec<_>>()).await?;
    for n in 0..EVENTS {
        ensure!(taken[n] != taken[n + EVENTS], "event {n}: {} and {}", taken[n], taken[n + EVENTS]);
    }
    let found = life.journal.inbox().list(InboxState::Working, None, 1_000).await?;
    ensure_eq!(found.records.len(), EVENTS, "the records");
    life.kill().await;
    PASSED
}

async fn a_listing_pages_through_a_state(context: &mut Context) -> CaseResult {
    const RECORDS: usize = 25;
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    for n in 0..RECORDS {
        let stored = take(&life, &n.to_string()).await?;
        life.step(&stored, stored.record.finish(world.now())).await?;
        take(&life, &format!("other {n}")).await?;
    }
    for (state, prefix) in [(InboxState::Working, "other "), (InboxState::Done, "")] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = life.journal.inbox().list(state, after.as_ref(), 7).await?;
            found.extend(page.records.into_iter().map(|stored| stored.record.inbound.event.to_string()));
            ensure!(found.len() <= RECORDS, "the pages repeat themselves");
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        if state == InboxState::Done {
            // All of them reached the state in the same millisecond.
            found.sort_by_key(|event| event.parse::<usize>().ok());
        }
        let expected: Vec<_> = (0..RECORDS).map(|n| format!("{prefix}{n}")).collect();
        ensure_eq!(found, expected, "the records in {state:?}");
    }
    life.kill().await;
    PASSED
}

async fn only_what_is_old_is_purged(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    for n in 0..5 {
        let stored = take(&life, &n.to_string()).await?;
        life.step(&stored, stored.record.finish(world.now())).await?;
    }
    take(&life, "unfinished").await?;
    world.clock.jump(SECOND * 10);
    let young = take(&life, "young").await?;
    life.step(&young, young.record.finish(world.now())).await?;
    let before = world.now() - SECOND;
    let inbox = life.journal.inbox();
    let purge = async |state, limit| {
        life.journal.purge::<InboxRecord>(state, before, None, limit).await.map(|purged| purged.removed)
    };
    ensure_eq!(inbox.count(InboxState::Done, before, 4).await?, 4, "counted up to 4");
    ensure_eq!(inbox.count(InboxState::Done, before, 9).await?, 5, "the old records");
    ensure_eq!(purge(InboxState::Dead, 10).await?, 0, "purged dead letters");
    ensure_eq!(purge(InboxState::Done, 3).await?, 3, "purged with a limit of 3");
    ensure_eq!(purge(InboxState::Done, 10).await?, 2, "purged after that");
    ensure_eq!(purge(InboxState::Done, 10).await?, 0, "purged in the end");
    let left = inbox.list(InboxState::Done, None, 10).await?.records;
    ensure_eq!(left.len(), 1, "the finished records that are left");
    ensure_eq!(left[0].record.id, young.record.id, "the record that is left");
    ensure_eq!(inbox.list(InboxState::Working, None, 10).await?.records.len(), 1, "the unfinished records");
    take(&life, "0").await.map_err(|failure| failure.during("an event that was purged arrives again"))?;
    life.kill().await;
    PASSED
}

async fn error_texts_are_kept_short(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let stored = take(&life, "1").await?;
    let text = format!("bad\0\u{FEFF}{}", "\u{1F600}".repeat(2_500_000));
    life.step(&stored, stored.record.fail(&text, world.now(), MAX_ATTEMPTS, world.now())).await?;
    let error = life.inbox(&stored.record.id).await?.record.error.unwrap_or_default();
    ensure!(error.starts_with("bad\0\u{FEFF}\u{1F600}"), "the text begins with {:?}", error.get(..20));
    ensure!(error.len() <= 1_100, "the text has {} bytes", error.len());
    life.kill().await;
    PASSED
}

async fn bots_see_only_their_own(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let mut lives = Vec::new();
    for name in ["a_c", "abc", "a%", "a"] {
        world.scope = context.bot(name);
        lives.push(world.start("one").await?);
    }
    for life in &lives {
        let stored = take(life, "1").await?;
        life.step(&stored, stored.record.fail("no", world.now(), MAX_ATTEMPTS, world.now())).await?;
    }
    for life in &lives {
        let due = life.journal.due(world.now(), None, 10).await?.inbox.records;
        ensure_eq!(due.len(), 1, "the records that are due in one scope");
        ensure_eq!(life.journal.sessions().await?.len(), 1, "the sessions of one scope");
    }
    for life in lives {
        life.kill().await;
    }
    PASSED
}

async fn a_newer_format_is_refused_by_name(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let kv = context.unscoped_kv()?.scoped(&world.scope.id());
    let mut key = vec![InboxRecord::PREFIX];
    key.extend(b"m/ana/new");
    let mut value = vec![0; 16];
    value.extend(br#"{"v":4000000000,"id":"m/ana/new","new":"field"}"#);
    let index = Index { due: Some(world.now()), list: Some((InboxRecord::bucket(InboxState::Working), 1)) };
    let op = Op::Put { key: key.into(), expect: Expect::Absent, value: value.into(), index };
    drop(kv.commit(vec![op]).await?);
    take(&life, "1").await?;
    let page = life.journal.inbox().list(InboxState::Working, None, 10).await?;
    ensure_eq!(page.records.len(), 1, "the readable records");
    ensure_eq!(page.unreadable.len(), 1, "the unreadable records");
    ensure!(page.unreadable[0].key.contains("m/ana/new"), "the name is {:?}", page.unreadable[0].key);
    let error = life.journal.inbox().get(&RecordId::from("m/ana/new")).await;
    let kind = error.err().map(|error| error.kind());
    ensure_eq!(kind, Some(StoreErrorKind::Incompatible), "the error of a read");
    let newer = Inbound::text("new", "ana", "hi");
    let again = life.try_one(Change::insert(&life.working(newer))).await?;
    ensure_eq!(again, Cas::Lost, "a redelivery of what a newer version took over");
    life.kill().await;
    PASSED
}

async fn unfinished_records_survive_a_reopen(context: &mut Context) -> CaseResult {
    let id = {
        let mut world = World::new(context)?;
        let life = world.start("one").await?;
        let stored = take(&life, "1").await?;
        life.insert(life.in_flight("k")).await?;
        life.kill().await;
        stored.record.id
    };
    context.reopen().await?;
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let found = life.journal.inbox().get(&id).await?;
    if !context.claims().survives_reopen() {
        ensure!(found.is_none(), "the backend claims that nothing survives, yet a record did");
        life.kill().await;
        return REFUSED;
    }
    let Some(stored) = found else { return Err(crate::Failure::new("the record is lost")) };
    let owner = stored.record.owner.clone();
    let orphaned = owner.is_some_and(|owner| owner.epoch < life.journal.owner().epoch);
    ensure!(orphaned, "the record is not owned by an earlier epoch");
    let adopted =
        life.step(&stored, stored.record.adopt(&life.journal.owner(), MAX_ATTEMPTS, world.now())).await?;
    life.step(&adopted, adopted.record.start(&life.journal.owner(), world.now())).await?;
    ensure_eq!(life.outbox("k").await?.record.attempts, 1, "the attempts of the send");
    let again = life.try_one(Change::insert(&life.working(event("1")))).await?;
    ensure_eq!(again, Cas::Lost, "a redelivery after the data was opened again");
    life.kill().await;
    PASSED
}
