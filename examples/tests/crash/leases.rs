//! Leases between real processes: blocked, frozen, asked to end and replaced.

use std::sync::Arc;
use std::time::Duration;

use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{Change, InboxRecord, InboxState, Journal, KvDurability};
use botmesh::core::memory::MemoryKv;
use botmesh::core::provider::Resolve;
use botmesh::core::scope::Scope;
use botmesh::core::spawn::Seams;
use botmesh::core::time::Timestamp;
use botmesh::prelude::*;
use botmesh::{BotBuilder, TokioSpawner};
use botmesh_sqlite_store::SqliteStore;
use botmesh_testing::MockProvider;
use tokio::sync::Semaphore;

use crate::child::Place;
use crate::replica::Replica;

/// Longer than a busy disk of a busy machine may stand still.
const LEASE: Duration = Duration::from_secs(5);

fn starts(told: &[String]) -> usize {
    told.iter().filter(|line| line.starts_with("start ")).count()
}

fn sent(place: &Place) -> Vec<String> {
    String::from_utf8(place.bytes("sent")).expect("text").lines().map(str::to_owned).collect()
}

/// How many messages are in each state: done, and all others.
fn inbox(place: &Place) -> (usize, usize) {
    on_runtime(async {
        let store = SqliteStore::open(place.path("bot.db")).await.expect("the store");
        let journal = journal_of(&store, "looking").await;
        let mut others = 0;
        for state in [InboxState::Queued, InboxState::Working, InboxState::Waiting, InboxState::Dead] {
            others += journal.inbox().list(state, None, 100).await.expect("a listing").records.len();
        }
        let done = journal.inbox().list(InboxState::Done, None, 100).await.expect("a listing").records.len();
        journal.end_session().await.expect("the end");
        store.close().await.expect("the end");
        (done, others)
    })
}

async fn journal_of(store: &SqliteStore, instance: &str) -> Journal {
    let seams = Seams::system(Arc::new(TokioSpawner));
    let durability = KvDurability::new(store.durability());
    durability.open(&Scope::default(), instance.into(), LEASE, seams).await.expect("the journals")
}

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build();
    runtime.expect("a runtime").block_on(work)
}

#[test]
fn a01_a_handler_that_blocks_the_only_thread_for_several_leases_loses_nothing() {
    let place = Place::new();
    let blocked = Replica::start(&place, "a", LEASE, &[("ana", "block 16")]);
    blocked.wait_for_line(&place, "start");
    let other = Replica::start(&place, "b", LEASE, &[]);
    blocked.wait_for_line(&place, "replied");
    let (a, b) = (blocked.stop(&place), other.stop(&place));
    assert_eq!((starts(&a), starts(&b)), (1, 0), "{a:?}\n{b:?}");
    assert_eq!(sent(&place), ["ana\tblock 16"]);
    assert!(a.contains(&"stale 0 replayed 0".to_owned()), "{a:?}");
    assert!(!a.iter().any(|line| line.contains("lease-lost")), "{a:?}");
    assert_eq!(inbox(&place), (1, 0));
}

#[test]
fn a01_a_process_frozen_past_its_lease_sends_nothing_when_it_goes_on() {
    let place = Place::new();
    let mut frozen = Replica::start(&place, "a", LEASE, &[("ana", "stall go")]);
    frozen.wait_for_line(&place, "start");
    frozen.signal("STOP");
    let other = Replica::start(&place, "b", LEASE, &[]);
    other.wait_for_line(&place, "start");
    place.write("go", "");
    other.wait_for_line(&place, "replied");
    frozen.signal("CONT");
    frozen.wait_for_line(&place, "refused");
    frozen.signal("TERM");
    frozen.wait(&place);
    let (a, b) = (frozen.told(&place), other.stop(&place));
    assert_eq!(sent(&place), ["ana\tstall go"]);
    assert_eq!((starts(&a), starts(&b)), (1, 1), "{a:?}\n{b:?}");
    assert!(a.contains(&"stale 1 replayed 0".to_owned()), "{a:?}");
    assert!(b.contains(&"stale 0 replayed 1".to_owned()), "{b:?}");
    let told = a.iter().filter(|line| line.contains("durability:lease-lost")).count();
    assert_eq!(told, 1, "{a:?}");
    assert_eq!(inbox(&place), (1, 0));
}

#[test]
fn a03_asked_to_end_in_the_middle_of_a_handler_it_holds_its_lease_to_the_end() {
    let place = Place::new();
    let mut stopping = Replica::start(&place, "a", LEASE, &[("ana", "wait go")]);
    stopping.wait_for_line(&place, "start");
    let other = Replica::start(&place, "b", LEASE, &[]);
    stopping.signal("TERM");
    let asked = place.elapsed();
    place.wait_for("some leases", || (place.elapsed() - asked > 2 * LEASE).then_some(()));
    place.write("go", "");
    let status = stopping.wait(&place);
    let (a, b) = (stopping.told(&place), other.stop(&place));
    assert!(status.success(), "{a:?}");
    assert_eq!((starts(&a), starts(&b)), (1, 0), "{a:?}\n{b:?}");
    assert_eq!(sent(&place), ["ana\twait go"]);
    assert!(a.contains(&"stale 0 replayed 0".to_owned()), "{a:?}");
    assert_eq!(inbox(&place), (1, 0));
}

#[test]
fn a05_replaced_under_its_own_name_while_it_drains_and_then_killed_it_strands_nothing() {
    let place = Place::new();
    let messages: Vec<(String, &str)> = (0..10).map(|n| (format!("chat-{}", n % 3), "wait go")).collect();
    let messages: Vec<(&str, &str)> = messages.iter().map(|(chat, text)| (chat.as_str(), *text)).collect();
    let old = Replica::start_logging(&place, "old", "a", LEASE, &messages);
    old.wait_for_line(&place, "all taken over");
    place.wait_for("all chats", || (starts(&old.told(&place)) == 3).then_some(()));
    old.signal("TERM");
    let new = Replica::start_logging(&place, "new", "a", LEASE, &[]);
    place.wait_for("the takeover", || (starts(&new.told(&place)) == 3).then_some(()));
    old.signal("KILL");
    drop(old);
    place.write("go", "");
    place.wait_for("all replies", || (sent(&place).len() >= 10).then_some(()));
    place.wait_for("the end of all", || (inbox(&place) == (10, 0)).then_some(()));
    assert_eq!(sent(&place).len(), 10);
    new.stop(&place);
}

/// A bot with a short lease on the store, with handlers that wait for the gate.
fn busy_bot(store: &SqliteStore, instance: &str, channel: &MockProvider, gate: &Arc<Semaphore>) -> Bot {
    let mut durability = Durability::new(store.durability())
        .with_instance_id(instance)
        .with_poll(Duration::from_millis(50))
        .with_retention(Duration::from_secs(24 * 3600));
    (durability.inbox.lease, durability.outbox.lease) = (LEASE, LEASE);
    let gate = Arc::clone(gate);
    let handler = move |c: Ctx| {
        let gate = Arc::clone(&gate);
        async move {
            drop(gate.acquire().await);
            c.reply(c.text()).await
        }
    };
    build(Bot::builder().durability(durability).store(store.clone()).otherwise(handler), channel)
}

fn build(bot: BotBuilder, channel: &MockProvider) -> Bot {
    bot.shared_provider(Arc::new(channel.clone())).build().expect("a bot")
}

#[expect(clippy::disallowed_methods, reason = "polling a store has nothing to wait on")]
async fn rest() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

#[test]
fn a17_a_large_purge_beside_busy_handlers_loses_no_lease() {
    const OLD: usize = if cfg!(debug_assertions) { 50_000 } else { 500_000 };
    const HANDLERS: usize = 200;
    let place = Place::new();
    on_runtime(async {
        let stores = [
            SqliteStore::open(place.path("bot.db")).await.expect("the store"),
            SqliteStore::open(place.path("bot.db")).await.expect("the store"),
        ];
        let journal = journal_of(&stores[0], "before").await;
        fill_with_old(&journal, OLD).await;
        let gate = Arc::new(Semaphore::new(0));
        let channels = [MockProvider::with_resolve(Resolve::Never), MockProvider::new()];
        let bots =
            [busy_bot(&stores[0], "a", &channels[0], &gate), busy_bot(&stores[1], "b", &channels[1], &gate)];
        let mut events = bots.each_ref().map(Bot::events);
        #[expect(clippy::disallowed_methods, reason = "two bots on a real runtime")]
        let runs =
            bots.clone().map(|bot| tokio::spawn(async move { bot.run().await.map_err(|e| e.to_string()) }));
        for n in 0..HANDLERS {
            let inbound = Inbound::text(format!("m{n}"), format!("chat-{n}"), "hi");
            assert!(channels[0].deliver(inbound).await.is_ok(), "it was not taken over");
        }
        let is_left = async || {
            !journal.inbox().list(InboxState::Done, None, 1).await.expect("a listing").records.is_empty()
        };
        while is_left().await {
            rest().await;
        }
        gate.add_permits(HANDLERS);
        channels[0].wait_for_deliveries(HANDLERS).await;
        bots.iter().for_each(Bot::stop);
        for run in runs {
            run.await.expect("no panic").expect("a good end");
        }
        let metrics = bots.map(|bot| bot.metrics());
        let stale = metrics.each_ref().map(|metrics| metrics.stale_leases);
        let lost = events.each_mut().map(|events| {
            let told = std::iter::from_fn(|| events.try_recv().ok());
            told.filter(|event| event.name() == "durability:lease-lost").count()
        });
        assert_eq!((lost, stale, metrics[1].inbound_replayed), ([0, 0], [0, 0], 0));
        assert_eq!(channels.map(|channel| channel.sent().len()), [HANDLERS, 0]);
    });
}

async fn fill_with_old(journal: &Journal, count: usize) {
    const BATCH: usize = 1_000;
    let long_ago = Timestamp::from_millis(1_000_000);
    for batch in 0..count / BATCH {
        let done = |n: usize| {
            let inbound = Inbound::text(format!("old-{batch}-{n}"), "old", "hi");
            let order = journal.next_order(long_ago);
            let record = InboxRecord::working(Arc::new(inbound), order, journal.owner(), long_ago);
            Change::insert(&record.finish(long_ago).expect("it was working"))
        };
        journal.commit((0..BATCH).map(done).collect()).await.expect("written");
    }
}

/// Under which instance id the bot owns a message.
async fn default_instance(durability: Durability, event: &str) -> String {
    let channel = MockProvider::new();
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (waits, begins) = (Arc::clone(&gate), Arc::clone(&begun));
    let handler = move |_: Ctx| {
        let gate = Arc::clone(&waits);
        begins.add_permits(1);
        async move { drop(gate.acquire().await) }
    };
    let bot = build(Bot::builder().durability(durability).otherwise(handler), &channel);
    let owner = async {
        assert!(channel.deliver(Inbound::text(event, "ana", "hi")).await.is_ok(), "it was not taken over");
        drop(begun.acquire().await);
        let journals = bot.durability().expect("journals");
        let page = journals.inbox().list(InboxState::Working, None, 10).await.expect("a listing");
        gate.add_permits(1);
        bot.stop();
        page.records[0].record.owner.clone().expect("an owner").instance.to_string()
    };
    let (ended, owner) = tokio::join!(bot.run(), owner);
    ended.expect("a good end");
    owner
}

#[test]
fn the_default_instance_id_is_stable_where_one_process_is_alone_and_unique_where_several_may_be() {
    let place = Place::new();
    on_runtime(async {
        let memory = Arc::new(MemoryKv::new());
        let alone = || Durability::new(KvDurability::new(Arc::clone(&memory) as _));
        let stable = default_instance(alone(), "m1").await;
        assert_eq!(stable, default_instance(alone(), "m2").await);
        let scope = Scope::default();
        assert!(stable.ends_with(&format!("/{}/{}", scope.bot, scope.connection)), "{stable}");

        let store = SqliteStore::open(place.path("bot.db")).await.expect("the store");
        let shared = || Durability::new(store.durability());
        let first = default_instance(shared(), "m1").await;
        let second = default_instance(shared(), "m2").await;
        assert_ne!(first, second);
        for unique in [first, second] {
            let suffix = unique.strip_prefix(&format!("{stable}/")).map(str::len);
            assert!(suffix.is_some_and(|length| length >= 8), "{unique} after {stable}");
        }
        let given = default_instance(shared().with_instance_id("bot-1"), "m3").await;
        assert_eq!(given, "bot-1");
        store.close().await.expect("the end");
    });
}
