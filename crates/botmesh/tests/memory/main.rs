//! How much memory conversations hold that wait for their users. A target of its own, because it counts every allocation.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use allocation_counter::AllocationInfo;
use async_trait::async_trait;
use botmesh::core::CancellationToken;
use botmesh::core::error::ChannelError;
use botmesh::core::inbound::Inbound;
use botmesh::core::kv::DurableKv;
use botmesh::core::memory::MemoryKv;
use botmesh::core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, SendReceipt, SendRequest,
};
use botmesh::prelude::*;
use botmesh::{Bot, BotBuilder};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};

/// Chats before those that are counted, so that what is made once is there; and those that are counted.
const BEFORE: u64 = 100;
const COUNTED: u64 = 1000;

/// 100,000 conversations are to fit into 400 MB, which what the allocator adds to each of some 20 pieces counts to.
const BOUND: i64 = 3000;

const QUESTION: &str =
    "Of course. Thursday the 14th at 16:30 is free: shall I book it for you, or is another hour better?";

#[test]
fn a_conversation_that_waits_takes_little_memory() {
    for durable in [false, true] {
        let handler = held(durable, |bot| bot.otherwise(async |c: Ctx| c.reply(QUESTION).await));
        let conversations = held(durable, |bot| {
            bot.otherwise(async |c: Ctx| c.enter("booking")).conversation("booking", booking)
        });
        let each = (conversations - handler) / COUNTED as i64;
        assert!((1..BOUND).contains(&each), "{each} bytes, with durability: {durable}");
    }
}

async fn booking(c: Conv) -> Result {
    let day = c.ask(QUESTION).await?;
    let people = c.ask("How many of you?");
    let people = people.check(|answer| answer.text().parse::<u32>().map_err(|_| "A number, please.".into()));
    let people = people.await?;
    c.say("Noted.").await?;
    c.say(format!("{}, {people} of you", day.text())).await?;
    Ok(())
}

/// Bytes that are held when every chat has written twice.
fn held(durable: bool, routes: impl FnOnce(BotBuilder) -> BotBuilder) -> i64 {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (channel, connected) = Channel::new();
    let handled = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&handled);
    let mut builder = routes(Bot::builder().provider(channel)).after_message(move |_| {
        counts.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    if durable {
        let journals: Arc<dyn DurableKv> = Arc::new(MemoryKv::new());
        builder = builder.durability(Durability::new(journals));
    }
    let bot = builder.build().expect("it can work");
    let run = bot.clone();
    let running = spawn(&runtime, async move { run.run().await });
    let sink = runtime.block_on(connected).expect("the bot connects");
    let say = async |chat: u64| {
        for number in 0..2 {
            let before = handled.load(Ordering::Relaxed);
            let text = "Good morning! I would like to see the doctor on Thursday afternoon.";
            let inbound = Inbound::text(format!("{number:04}"), format!("chat-{chat:04}"), text);
            assert!(!sink.admit(inbound).await.expect("it is admitted").duplicate);
            while handled.load(Ordering::Relaxed) == before {
                tokio::task::yield_now().await;
            }
        }
    };
    runtime.block_on(async {
        for chat in 0..BEFORE {
            say(chat).await;
        }
    });
    let AllocationInfo { bytes_current, .. } = allocation_counter::measure(|| {
        runtime.block_on(async {
            for chat in BEFORE..BEFORE + COUNTED {
                say(chat).await;
            }
        });
    });
    bot.stop();
    runtime.block_on(running).expect("no panic").expect("it stops");
    bytes_current
}

#[expect(clippy::disallowed_methods, reason = "the bot itself, beside whoever writes to it")]
fn spawn(
    runtime: &Runtime,
    run: impl Future<Output = Result> + Send + 'static,
) -> tokio::task::JoinHandle<Result> {
    runtime.spawn(run)
}

/// Takes every message at once, and keeps nothing.
struct Channel {
    open: Mutex<Option<oneshot::Sender<Arc<dyn InboundSink>>>>,
    connection: watch::Receiver<ConnectionState>,
    _connected: watch::Sender<ConnectionState>,
}

impl Channel {
    fn new() -> (Self, oneshot::Receiver<Arc<dyn InboundSink>>) {
        let (open, connected) = oneshot::channel();
        let (state, connection) = watch::channel(ConnectionState::Open);
        (Self { open: Mutex::new(Some(open)), connection, _connected: state }, connected)
    }
}

#[async_trait]
impl Provider for Channel {
    fn id(&self) -> &str {
        "none"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.connection.clone()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        let open = self.open.lock().expect("no panic").take();
        assert!(open.is_some_and(|open| open.send(sink).is_ok()), "somebody waits for it");
        stop.cancelled().await;
        Ok(())
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        Ok(SendReceipt { message: request.chat.as_str().into() })
    }
}
