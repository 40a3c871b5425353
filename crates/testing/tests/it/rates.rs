//! A bot on Telegram that sends as fast as Telegram takes it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use botmesh::Broadcast;
use botmesh::core::CancellationToken;
use botmesh::core::error::ChannelError;
use botmesh::core::id::ChatId;
use botmesh::core::kv::DurableKv;
use botmesh::core::memory::MemoryKv;
use botmesh::core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, Rate, SendReceipt, SendRequest,
};
use botmesh::core::time::Clock;
use botmesh::prelude::*;
use botmesh_telegram::Telegram;
use botmesh_testing::{FakeTelegram, TelegramFault, VirtualClock, test_seams};
use tokio::sync::watch;

const CHATS: usize = 300;
const SECOND: Duration = Duration::from_secs(1);

/// Telegram, and how many sends are under way: they take real time, while which the virtual one stands still.
struct Counted {
    telegram: Telegram,
    under_way: Arc<AtomicUsize>,
}

#[async_trait]
impl Provider for Counted {
    fn id(&self) -> &str {
        self.telegram.id()
    }

    fn capabilities(&self) -> Capabilities {
        self.telegram.capabilities()
    }

    fn chat_rate(&self, chat: &ChatId) -> Option<Rate> {
        self.telegram.chat_rate(chat)
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.telegram.connection()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        self.telegram.run(sink, stop).await
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let sent = self.telegram.send(request).await;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        sent
    }
}

/// Takes 30 messages in any second of this clock, and refuses the next.
fn limit(server: &FakeTelegram, clock: VirtualClock) {
    let taken: Mutex<VecDeque<Duration>> = Mutex::default();
    server.fault_when(move |call| {
        let mut taken = taken.lock().unwrap();
        let now = clock.monotonic();
        while taken.front().is_some_and(|then| now - *then >= SECOND) {
            taken.pop_front();
        }
        if call.method != "sendMessage" {
            return None;
        }
        if taken.len() == 30 {
            return Some(TelegramFault::refuse(429, "Too Many Requests: retry after 1"));
        }
        taken.push_back(now);
        None
    });
}

/// Sends news to all chats, and counts the calls that it takes.
async fn calls_of(rate: Option<Rate>) -> usize {
    let server = FakeTelegram::start().await;
    let chats: Vec<String> = (0..CHATS).map(|number| (5_000_000_000 + number).to_string()).collect();
    for chat in &chats {
        server.user(chat.parse().unwrap(), "Ana");
    }
    let (seams, clock, _spawner) = test_seams(7);
    limit(&server, clock.clone());
    let under_way = Arc::new(AtomicUsize::new(0));
    let telegram = Telegram::polling(server.token()).with_api_url(&server.url());
    let provider = Counted { telegram, under_way: Arc::clone(&under_way) };
    let kv: Arc<dyn DurableKv> = Arc::new(MemoryKv::new());
    let journals = Durability::new(kv).with_instance_id("one");
    let bot = Bot::builder().provider(provider).durability(journals).seams(seams);
    let bot = bot.otherwise(|c: Ctx| async move { c.reply("hello").await }).build().expect("a bot");
    let scenario = async {
        server.until("a bot that runs", || bot.durability().is_some()).await;
        let list = Broadcast::new("news", chats);
        let list = match rate {
            Some(rate) => list.with_rate(rate),
            None => list,
        };
        bot.broadcast(list, "We are open on Sunday.").await.expect("a broadcast");
        while server.done("sendMessage").len() < CHATS {
            clock.advance(Duration::from_millis(20)).await;
            server.until("the answers", || under_way.load(Ordering::Relaxed) == 0).await;
        }
        bot.stop();
    };
    let (ended, ()) = tokio::join!(bot.run(), scenario);
    ended.expect("a good end");
    server.calls().iter().filter(|call| call.method == "sendMessage").count()
}

#[tokio::test]
async fn a_broadcast_is_never_refused_for_being_too_fast() {
    assert_eq!(calls_of(None).await, CHATS);
    assert_eq!(calls_of(Some(Rate::new(1_000, SECOND))).await, CHATS, "whatever was asked for");
}
