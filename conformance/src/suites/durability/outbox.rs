//! What is sent.

use std::time::Duration;

use botmesh_core::error::{Cas, ChannelError, ErrorClass, Phase};
use botmesh_core::id::MessageId;
use botmesh_core::journal::{Change, ErrorNote, OutboxRecord, OutboxState};

use super::tools::{World, event, send};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, Failure, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_send_is_born_in_flight: "one write journals a send, says who calls the channel, and charges the attempt",
        a_key_is_one_send: "a second send of a key is refused, and the first says what became of it",
        look_alike_keys_are_different: "keys that look like one number, or like a part of another send, are different",
        a_failed_send_waits_for_its_time: "a failed send is due at its time and not before",
        a_refused_send_is_dead: "a final error makes a dead letter, which can be sent again with a fresh budget",
        a_sent_message_stays_sent: "a delivered send keeps the channel's id and takes no other transition",
        an_unknown_send_can_be_resolved: "a send of unknown outcome is never due and becomes sent when an echo arrives",
        sent_and_done_share_one_commit: "a send and its inbound record end with one commit, each by itself",
        a_message_with_one_reply_costs_three_commits: "taken over, in flight, ended: three commits, counted",
    ]
}

fn note(class: ErrorClass) -> ErrorNote {
    ErrorNote::from(&ChannelError::new(class, Phase::Answered, "no\0").with_code("429"))
}

async fn a_send_is_born_in_flight(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let before = life.kv.commits();
    let stored = life.insert(life.in_flight("k")).await?;
    ensure_eq!(life.kv.commits() - before, 1, "the commits of one send");
    let found = life.outbox("k").await?;
    ensure_eq!(found, stored, "the record");
    let owner = found.record.owner.clone();
    ensure_eq!((owner, found.record.attempts), (Some(life.journal.owner()), 1), "owner and attempts");
    ensure_eq!(found.record.fingerprint, Some(u64::MAX), "the fingerprint");
    ensure!(life.journal.due(world.now(), None, 10).await?.outbox.records.is_empty(), "it is due");
    life.kill().await;
    PASSED
}

async fn a_key_is_one_send(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let stored = life.insert(life.in_flight("k")).await?;
    let waiting = OutboxRecord::waiting(send("k"), 1, world.now());
    for again in [Change::insert(&life.in_flight("k")), Change::insert(&waiting)] {
        ensure_eq!(life.try_one(again).await?, Cas::Lost, "a second send of the key");
    }
    let sent = life.step(&stored, stored.record.sent(MessageId::from("m1"), world.now())).await?;
    ensure_eq!(life.try_one(Change::insert(&life.in_flight("k"))).await?, Cas::Lost, "when it is sent");
    ensure_eq!(life.outbox("k").await?, sent, "the record");
    life.kill().await;
    PASSED
}

async fn look_alike_keys_are_different(context: &mut Context) -> CaseResult {
    let keys = [
        "300000000",
        "3e+8",
        "1",
        "01",
        "1.0",
        "9007199254740993",
        "k",
        "K",
        "k#2",
        "k#2#2",
        "m/ana/1:1",
        "m/ana/1:01",
    ];
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    // An inbound record of the same text is no send.
    life.insert(life.working(event("1"))).await?;
    life.insert(life.in_flight("m/ana/1")).await?;
    for key in keys {
        let outcome = life.try_one(Change::insert(&life.in_flight(key))).await?;
        ensure!(outcome != Cas::Lost, "{key} is taken for another send");
    }
    let found = life.journal.outbox().list(OutboxState::InFlight, None, 100).await?.records;
    let mut found: Vec<_> = found.iter().map(|stored| stored.record.key.as_str()).collect();
    found.retain(|key| *key != "m/ana/1");
    found.sort_unstable();
    let mut expected = keys;
    expected.sort_unstable();
    ensure_eq!(found, expected, "the keys of the sends");
    life.kill().await;
    PASSED
}

async fn a_failed_send_waits_for_its_time(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let stored = life.insert(life.in_flight("k")).await?;
    let at = world.now() + Duration::from_secs(60);
    let waiting =
        life.step(&stored, stored.record.fail(note(ErrorClass::RateLimited), Some(at), world.now())).await?;
    let early = life.journal.due(at - Duration::from_millis(1), None, 10).await?;
    ensure!(early.outbox.records.is_empty(), "it is due too early");
    let due = life.journal.due(at, None, 10).await?;
    ensure!(due.inbox.records.is_empty(), "a send is taken for an inbound record");
    ensure_eq!(due.outbox.records, vec![waiting.clone()], "what is due");
    let started = life.step(&waiting, waiting.record.start(&life.journal.owner(), at)).await?;
    ensure_eq!(
        (started.record.attempts, started.record.state),
        (2, OutboxState::InFlight),
        "the second attempt"
    );
    ensure_eq!(life.outbox("k").await?.record.error, Some(note(ErrorClass::RateLimited)), "the last error");
    life.kill().await;
    PASSED
}

async fn a_refused_send_is_dead(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let stored = life.insert(life.in_flight("k")).await?;
    let now = world.now();
    let dead =
        life.step(&stored, stored.record.fail(note(ErrorClass::RecipientUnreachable), None, now)).await?;
    let listed = life.journal.outbox().list(OutboxState::Dead, None, 10).await?;
    ensure_eq!(listed.records, vec![dead.clone()], "the dead letters");
    ensure!(life.journal.due(now, None, 10).await?.outbox.records.is_empty(), "a dead letter is due");
    let again = life.step(&dead, dead.record.retry(None, now)).await?;
    ensure_eq!((again.record.attempts, again.record.due), (0, Some(now)), "a fresh budget, due at once");
    ensure_eq!(life.journal.due(now, None, 10).await?.outbox.records, [again], "what is due");
    life.kill().await;
    PASSED
}

async fn a_sent_message_stays_sent(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let stored = life.insert(life.in_flight("k")).await?;
    let now = world.now();
    let sent = life.step(&stored, stored.record.sent(MessageId::from("9007199254740993"), now)).await?;
    let found = life.outbox("k").await?;
    ensure_eq!(found.record.message, Some(MessageId::from("9007199254740993")), "the channel's id");
    ensure!(sent.record.start(&life.journal.owner(), now).is_err(), "it starts again");
    ensure!(sent.record.retry(None, now).is_err(), "it is sent again");
    ensure!(sent.record.give_up_unknown(now).is_err(), "it becomes unknown");
    let failed = stored.record.fail(note(ErrorClass::Transient), Some(now), now);
    let failed = failed.map_err(|refused| Failure::new(refused.to_string()))?;
    ensure_eq!(life.try_one(Change::update(stored.version, &failed)).await?, Cas::Lost, "a stale failure");
    ensure_eq!(life.outbox("k").await?, found, "the record");
    life.kill().await;
    PASSED
}

async fn an_unknown_send_can_be_resolved(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let stored = life.insert(life.in_flight("k")).await?;
    let unknown = life.step(&stored, stored.record.give_up_unknown(world.now())).await?;
    let late = world.now() + Duration::from_secs(1_000_000);
    ensure!(life.journal.due(late, None, 10).await?.outbox.records.is_empty(), "an unknown send is due");
    let listed = life.journal.outbox().list(OutboxState::Unknown, None, 10).await?;
    ensure_eq!(listed.records, vec![unknown.clone()], "the unknown sends");
    life.step(&unknown, unknown.record.confirm(MessageId::from("m1"), world.now())).await?;
    ensure_eq!(life.outbox("k").await?.record.state, OutboxState::Sent, "the state after an echo");
    life.kill().await;
    PASSED
}

async fn sent_and_done_share_one_commit(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let now = world.now();
    for (id, stale) in [("1", false), ("2", true)] {
        let inbound = life.insert(life.working(event(id))).await?;
        let outbound = life.insert(life.in_flight(id)).await?;
        if stale {
            // Somebody else has taken the inbound record meanwhile.
            let other = inbound.record.adopt(&life.journal.owner(), 9, now);
            life.step(&inbound, other).await?;
        }
        let done = inbound.record.finish(now).map_err(|refused| Failure::new(refused.to_string()))?;
        let sent = outbound.record.sent(MessageId::from("m"), now);
        let sent = sent.map_err(|refused| Failure::new(refused.to_string()))?;
        let before = life.kv.commits();
        let changes = vec![Change::update(outbound.version, &sent), Change::update(inbound.version, &done)];
        let outcomes = life.commit(changes).await?;
        ensure_eq!(life.kv.commits() - before, 1, "the commits");
        ensure_eq!(outcomes.len(), 2, "the number of outcomes");
        ensure!(outcomes[0] != Cas::Lost, "the send of {id} lost");
        ensure_eq!(outcomes[1] == Cas::Lost, stale, "whether the inbound record of {id} lost");
        ensure_eq!(life.outbox(id).await?.record.state, OutboxState::Sent, "the send of {id}");
    }
    life.kill().await;
    PASSED
}

async fn a_message_with_one_reply_costs_three_commits(context: &mut Context) -> CaseResult {
    let mut world = World::new(context)?;
    let life = world.start("one").await?;
    let (commits, ops) = (life.kv.commits(), life.kv.ops());
    super::faults::converse(&life, &mut 0).await?;
    ensure_eq!((life.kv.commits() - commits, life.kv.ops() - ops), (3, 4), "commits and writes");
    life.kill().await;
    PASSED
}
