//! A running bot with a channel that does nothing.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use botmesh::core::CancellationToken;
use botmesh::core::error::ChannelError;
use botmesh::core::kv::DurableKv;
use botmesh::core::memory::MemoryKv;
use botmesh::core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, SendReceipt, SendRequest,
};
use botmesh::core::store::Store;
use botmesh::{Bot, BotBuilder, Ctx, Durability, FileDurability};
use botmesh_sqlite_store::SqliteStore;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::message::{self, ANSWERED};
use crate::probe::Probe;

/// Where the journals are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Backend {
    Memory,
    File,
    Sqlite,
}

impl Backend {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::File => "file",
            Self::Sqlite => "sqlite",
        }
    }
}

/// What runs the bot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RuntimeKind {
    /// One thread.
    Current,
    /// One thread for each core.
    Multi,
}

impl RuntimeKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Multi => "multi",
        }
    }

    pub(crate) fn build(self) -> Runtime {
        match self {
            Self::Current => Builder::new_current_thread().enable_all().build().unwrap(),
            Self::Multi => Builder::new_multi_thread().enable_all().build().unwrap(),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the load comes from outside of the bot and its spawner")]
pub(crate) fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(task)
}

/// An open backend.
pub(crate) struct Opened {
    pub(crate) kv: Arc<dyn DurableKv>,
    store: Option<SqliteStore>,
}

impl Opened {
    pub(crate) async fn new(backend: Backend, file: &Path) -> Self {
        let mut store = None;
        let kv: Arc<dyn DurableKv> = match backend {
            Backend::Memory => Arc::new(MemoryKv::new()),
            Backend::File => Arc::new(FileDurability::open(file).await.unwrap()),
            Backend::Sqlite => store.insert(SqliteStore::open(file).await.unwrap()).durability(),
        };
        Self { kv, store }
    }

    pub(crate) async fn close(self) {
        self.kv.close().await.unwrap();
        if let Some(store) = self.store {
            store.close().await.unwrap();
        }
    }
}

/// A bot that answers everything, and the way in.
pub(crate) struct Running {
    bot: Bot,
    task: JoinHandle<botmesh::Result>,
    sink: Arc<dyn InboundSink>,
    opened: Opened,
    pub(crate) probe: Arc<Probe>,
}

impl Running {
    pub(crate) async fn start(backend: Backend, file: &Path, lanes: u32) -> Self {
        let opened = Opened::new(backend, file).await;
        let answer = async |c: Ctx| c.reply(ANSWERED).await;
        Self::start_on(opened, lanes, |durability| durability, |bot| bot.otherwise(answer)).await
    }

    /// With more to say about the journals and the bot.
    pub(crate) async fn start_on(
        opened: Opened,
        lanes: u32,
        durability: impl FnOnce(Durability) -> Durability,
        routes: impl FnOnce(BotBuilder) -> BotBuilder,
    ) -> Self {
        let probe = Probe::new(lanes);
        let (channel, connected) = NoChannel::new();
        let mut builder = routes(Bot::builder().provider(channel));
        if let Some(store) = &opened.store {
            builder = builder.store(store.clone());
        }
        let durability = durability(Durability::new(probe.watch(Arc::clone(&opened.kv))));
        let bot = builder.durability(durability).build().unwrap();
        let run = bot.clone();
        let task = spawn(async move { run.run().await });
        Self { bot, task, sink: connected.await.unwrap(), opened, probe }
    }

    /// One message, until it is done.
    pub(crate) async fn cycle(&self, chat: u32, number: u64) {
        cycle(&*self.sink, &self.probe, chat, number).await;
    }

    pub(crate) fn sink(&self) -> Arc<dyn InboundSink> {
        Arc::clone(&self.sink)
    }

    pub(crate) async fn stop(self) {
        self.end().await.close().await;
    }

    /// Stops the bot, and leaves its backend open.
    pub(crate) async fn end(self) -> Opened {
        self.bot.stop();
        self.task.await.unwrap().unwrap();
        self.opened
    }
}

/// Admits a message and waits until it is done.
pub(crate) async fn cycle(sink: &dyn InboundSink, probe: &Probe, chat: u32, number: u64) {
    let admitted = sink.admit(message::inbound(chat, number)).await.unwrap();
    assert!(!admitted.duplicate, "each message is new");
    probe.done(chat).await;
}

/// Takes every message at once.
pub(crate) struct NoChannel {
    open: Mutex<Option<oneshot::Sender<Arc<dyn InboundSink>>>>,
    connection: watch::Receiver<ConnectionState>,
    _connected: watch::Sender<ConnectionState>,
}

impl NoChannel {
    /// With the way in, which is there once a bot runs on the channel.
    pub(crate) fn new() -> (Self, oneshot::Receiver<Arc<dyn InboundSink>>) {
        let (open, connected) = oneshot::channel();
        let (state, connection) = watch::channel(ConnectionState::Open);
        (Self { open: Mutex::new(Some(open)), connection, _connected: state }, connected)
    }
}

#[async_trait]
impl Provider for NoChannel {
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
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(open) = open {
            // Whoever started the bot waits for it.
            let _ = open.send(sink);
        }
        stop.cancelled().await;
        Ok(())
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        Ok(SendReceipt { message: request.chat.as_str().into() })
    }
}
