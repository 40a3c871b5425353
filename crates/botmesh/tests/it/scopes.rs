//! Many bots in one backend: each sees, claims and sends only what is its own.

use std::sync::Arc;
use std::time::Duration;

use botmesh::core::coordinator::MemoryHub;
use botmesh::core::entropy::OsEntropy;
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::{InboxState, KvDurability, OutboxState};
use botmesh::core::memory::{MemoryKv, MemoryStore};
use botmesh::core::spawn::Spawner;
use botmesh::core::time::{Clock, SystemClock};
use botmesh::prelude::*;
use botmesh::{Bot, Coordination, TokioSpawner};
use botmesh_sqlite_store::SqliteStore;
use botmesh_testing::MockProvider;
use tokio::sync::oneshot;

/// Names that a pattern, a separator or an empty text would mix up.
const NAMES: [&str; 12] = ["a_c", "abc", "a%", "a*", "a[b]", "a:b", "a", "a/b", "a%2Fb", "A", "", "a\0"];

struct Running {
    channel: MockProvider,
    bot: Bot,
    ended: oneshot::Receiver<Result<(), String>>,
}

fn start(durability: Durability, scope: Scope) -> Running {
    let channel = MockProvider::new();
    let bot = Bot::builder()
        .provider(channel.clone())
        .store(MemoryStore::new())
        .durability(durability.with_instance_id("bot"))
        .scope(scope)
        .otherwise(|c: Ctx| async move { c.reply(c.text()).await })
        .build()
        .expect("a bot that can be built");
    let (end, ended) = oneshot::channel();
    let running = bot.clone();
    TokioSpawner.spawn(
        "bot",
        Box::pin(async move {
            let result = running.run().await.map_err(|error| error.to_string());
            let _ = end.send(result);
        }),
    );
    Running { channel, bot, ended }
}

#[tokio::test]
async fn bots_of_different_scopes_do_not_wait_for_each_others_chats() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let hub = MemoryHub::new(clock);
    let (open, _) = tokio::sync::watch::channel(false);
    let start = |scope: Scope, waits: bool| {
        let channel = MockProvider::new();
        let open = open.subscribe();
        let bot = Bot::builder()
            .provider(channel.clone())
            .store(MemoryStore::new())
            .scope(scope)
            .coordination(Coordination::new(hub.coordinator(&OsEntropy::new())))
            .otherwise(move |c: Ctx| {
                let mut open = open.clone();
                async move {
                    c.reply("begun").await?;
                    if waits {
                        let _ = open.wait_for(|open| *open).await;
                    }
                    Ok::<_, botmesh::Error>(())
                }
            })
            .build()
            .expect("a bot that can be built");
        let running = bot.clone();
        TokioSpawner.spawn("bot", Box::pin(async move { drop(running.run().await) }));
        (channel, bot)
    };
    let bots = [
        start(Scope::bot("one"), true),
        start(Scope::bot("other"), true),
        start(Scope::default(), true),
        start(Scope { tenant: "c/ana".into(), ..Scope::default() }, false),
    ];
    for (channel, _) in &bots {
        let _ = channel.deliver(Inbound::text("m1", "ana", "hi")).await.expect("an admission");
        #[expect(
            clippy::disallowed_methods,
            reason = "a bot that waits for the others' turn would wait for ever"
        )]
        let answered = tokio::time::timeout(Duration::from_secs(20), channel.wait_for_deliveries(1)).await;
        assert!(answered.is_ok(), "a bot waits for the turn of another one's chat");
    }
    open.send_replace(true);
    for (_, bot) in &bots {
        bot.stop();
    }
}

/// Case C09.
async fn each_bot_sees_its_own(backend: KvDurability) {
    let scopes = NAMES.iter().flat_map(|name| {
        let as_tenant = Scope { tenant: (*name).to_owned(), ..Scope::default() };
        [as_tenant, Scope::bot(*name)]
    });
    let bots: Vec<Running> = scopes.map(|scope| start(Durability::new(backend.clone()), scope)).collect();
    for (n, Running { channel, bot, .. }) in bots.iter().enumerate() {
        let _ = channel.deliver(Inbound::text("m1", "ana", format!("hi {n}"))).await.expect("an admission");
        let enqueued = bot.enqueue("reminder:1", "bob", format!("reminder {n}")).await.expect("a send");
        assert!(!enqueued.known, "bot {n} finds another bot's key");
    }
    for (n, Running { channel, bot, ended }) in bots.into_iter().enumerate() {
        channel.wait_for_deliveries(2).await;
        assert_eq!(channel.texts_to("ana"), [format!("hi {n}")]);
        assert_eq!(channel.texts_to("bob"), [format!("reminder {n}")]);
        let journals = bot.durability().expect("a durable bot that runs");
        bot.stop();
        ended.await.expect("an end").expect("a good end");
        let done = journals.inbox().list(InboxState::Done, None, 100).await.expect("a listing");
        let sent = journals.outbox().list(OutboxState::Sent, None, 100).await.expect("a listing");
        let texts: Vec<_> = sent.records.iter().map(|stored| stored.record.content.readable_text()).collect();
        assert_eq!((done.records.len(), texts.len()), (1, 2), "bot {n} sees {texts:?}");
        assert!(texts.iter().all(|text| text.ends_with(&format!(" {n}"))), "bot {n} sees {texts:?}");
    }
}

#[tokio::test]
async fn bots_in_one_memory_see_their_own_records() {
    each_bot_sees_its_own(KvDurability::new(Arc::new(MemoryKv::new()))).await;
}

#[tokio::test]
async fn bots_in_one_sqlite_file_see_their_own_records() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path().join("bots.db")).await.expect("a store");
    each_bot_sees_its_own(store.durability().into()).await;
}
