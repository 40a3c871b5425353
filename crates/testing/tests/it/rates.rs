//! A bot that sends as fast as its channel takes it.

use std::collections::{HashMap, VecDeque};
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
use botmesh::core::spawn::Seams;
use botmesh::core::time::Clock;
use botmesh::prelude::*;
use botmesh_meta::{MetaConfig, WhatsApp};
use botmesh_telegram::Telegram;
use botmesh_testing::{FakeGraph, FakeTelegram, GraphFault, TelegramFault, VirtualClock, test_seams};
use tokio::sync::watch;

use crate::graph::until;

const CHATS: usize = 300;
const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(20);

/// A channel, and how many sends are under way: they take real time, while which the virtual one stands still.
struct Counted<P> {
    channel: P,
    under_way: Arc<AtomicUsize>,
}

#[async_trait]
impl<P: Provider> Provider for Counted<P> {
    fn id(&self) -> &str {
        self.channel.id()
    }

    fn capabilities(&self) -> Capabilities {
        self.channel.capabilities()
    }

    fn chat_rate(&self, chat: &ChatId) -> Option<Rate> {
        self.channel.chat_rate(chat)
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.channel.connection()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        self.channel.run(sink, stop).await
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let sent = self.channel.send(request).await;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        sent
    }
}

/// When sends were taken, as far as it matters.
#[derive(Default)]
struct Window(VecDeque<Duration>);

impl Window {
    /// Whether one more is taken now, of which `max` may be in any `span`.
    fn takes(&mut self, now: Duration, max: usize, span: Duration) -> bool {
        while self.0.front().is_some_and(|then| now - *then >= span) {
            self.0.pop_front();
        }
        let takes = self.0.len() < max;
        if takes {
            self.0.push_back(now);
        }
        takes
    }
}

/// Takes 30 messages in any second of this clock, and refuses the next.
fn limit(server: &FakeTelegram, clock: VirtualClock) {
    let taken: Mutex<Window> = Mutex::default();
    server.fault_when(move |call| {
        let takes =
            call.method != "sendMessage" || taken.lock().unwrap().takes(clock.monotonic(), 30, SECOND);
        (!takes).then(|| TelegramFault::refuse(429, "Too Many Requests: retry after 1"))
    });
}

/// Takes 80 messages from the number in any second of this clock, and 45 for each user in any 270 s.
fn limit_graph(graph: &FakeGraph, clock: VirtualClock) {
    let (all, pairs): (Mutex<Window>, Mutex<HashMap<String, Window>>) = Default::default();
    graph.fault_when(move |body| {
        let (now, to) = (clock.monotonic(), body["to"].as_str().unwrap_or_default().to_owned());
        if !pairs.lock().unwrap().entry(to).or_default().takes(now, 45, 270 * SECOND) {
            return Some(GraphFault::Refuse { status: 400, code: 131_056, subcode: 0 });
        }
        let takes = all.lock().unwrap().takes(now, 80, SECOND);
        (!takes).then_some(GraphFault::Refuse { status: 400, code: 130_429, subcode: 0 })
    });
}

/// Runs a bot in virtual time until `done`, which is asked whenever no send is under way.
async fn until_done<P: Provider>(
    channel: P,
    (seams, clock, step): (Seams, &VirtualClock, Duration),
    begin: impl AsyncFnOnce(&Bot),
    done: impl Fn() -> bool,
) {
    let under_way = Arc::new(AtomicUsize::new(0));
    let provider = Counted { channel, under_way: Arc::clone(&under_way) };
    let kv: Arc<dyn DurableKv> = Arc::new(MemoryKv::new());
    let journals = Durability::new(kv).with_instance_id("one");
    let bot = Bot::builder().provider(provider).durability(journals).seams(seams);
    let bot = bot.otherwise(|c: Ctx| async move { c.reply("hello").await }).build().expect("a bot");
    let scenario = async {
        until("a bot that runs", async || bot.durability().is_some()).await;
        begin(&bot).await;
        while !done() {
            clock.advance(step).await;
            until("the answers", async || under_way.load(Ordering::Relaxed) == 0).await;
        }
        bot.stop();
    };
    let (ended, ()) = tokio::join!(bot.run(), scenario);
    ended.expect("a good end");
}

fn news(chats: Vec<String>, rate: Option<Rate>) -> Broadcast {
    let list = Broadcast::new("news", chats);
    match rate {
        Some(rate) => list.with_rate(rate),
        None => list,
    }
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
    let telegram = Telegram::polling(server.token()).with_api_url(&server.url());
    let begin = async |bot: &Bot| {
        bot.broadcast(news(chats, rate), "We are open on Sunday.").await.expect("a broadcast");
    };
    until_done(telegram, (seams, &clock, STEP), begin, || server.done("sendMessage").len() >= CHATS).await;
    server.calls().iter().filter(|call| call.method == "sendMessage").count()
}

#[tokio::test]
async fn a_broadcast_is_never_refused_for_being_too_fast() {
    assert_eq!(calls_of(None).await, CHATS);
    assert_eq!(calls_of(Some(Rate::new(1_000, SECOND))).await, CHATS, "whatever was asked for");
}

fn whatsapp(graph: &FakeGraph) -> WhatsApp {
    let config = MetaConfig::new(FakeGraph::ACCESS_TOKEN, FakeGraph::APP_SECRET, FakeGraph::VERIFY_TOKEN);
    WhatsApp::new(FakeGraph::PHONE_NUMBER_ID, config.with_base_url(graph.url())).expect("a channel")
}

#[tokio::test]
async fn a_broadcast_on_whatsapp_is_never_refused_for_being_too_fast() {
    for rate in [None, Some(Rate::new(1_000, SECOND))] {
        let graph = FakeGraph::start().await;
        let chats: Vec<String> =
            (0..CHATS).map(|number| (15_550_000_000_u64 + number as u64).to_string()).collect();
        let (seams, clock, _spawner) = test_seams(7);
        limit_graph(&graph, clock.clone());
        let begin = async |bot: &Bot| {
            bot.broadcast(news(chats, rate), "We are open on Sunday.").await.expect("a broadcast");
        };
        until_done(whatsapp(&graph), (seams, &clock, STEP), begin, || graph.sent_count() >= CHATS).await;
        assert_eq!((graph.attempts(), graph.sent_count()), (CHATS, CHATS), "{rate:?}");
    }
}

/// More to one user than WhatsApp takes at once.
#[tokio::test]
async fn many_messages_to_one_user_of_whatsapp_are_never_refused_either() {
    const MESSAGES: usize = 60;
    let graph = FakeGraph::start().await;
    let (seams, clock, _spawner) = test_seams(7);
    limit_graph(&graph, clock.clone());
    let begin = async |bot: &Bot| {
        for number in 0..MESSAGES {
            bot.enqueue(format!("news:{number}"), "15551234567", format!("news {number}"))
                .await
                .expect("a send");
        }
    };
    until_done(whatsapp(&graph), (seams, &clock, SECOND), begin, || graph.sent_count() >= MESSAGES).await;
    let texts: Vec<_> = graph.sent().iter().map(|sent| sent.text().to_owned()).collect();
    let expected: Vec<_> = (0..MESSAGES).map(|number| format!("news {number}")).collect();
    assert_eq!((graph.attempts(), texts), (MESSAGES, expected));
}
