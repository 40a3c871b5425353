//! A channel that runs, and a bot that writes down what it is told.

use std::sync::{Arc, Mutex, PoisonError};

use botmesh_core::error::{StoreError, StoreErrorKind};
use botmesh_core::id::{EventId, SendKey};
use botmesh_core::inbound::Inbound;
use botmesh_core::notice::{Moved, Notice};
use botmesh_core::provider::{AdmitError, Admitted, ConnectionState, InboundSink, Provider, SendReceipt};
use botmesh_core::{CancellationToken, async_trait};
use botmesh_meta::axum::Router;
use botmesh_meta::{Instagram, Messenger, MetaConfig, WhatsApp};
use botmesh_testing::{FakeGraph, GraphProduct};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a channel handed over, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    Event(Box<Inbound>),
    Sent(String, String),
    Poison(String, String),
    Notice(Notice),
    Moved(Moved),
}

#[derive(Clone, Default)]
pub(crate) struct Diary {
    told: Arc<Mutex<Vec<Told>>>,
    /// How many calls the journal refuses.
    refusals: Arc<Mutex<usize>>,
}

impl Diary {
    /// What was told since the last call.
    pub(crate) fn take(&self) -> Vec<Told> {
        std::mem::take(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn refuse(&self, calls: usize) {
        *self.refusals.lock().unwrap_or_else(PoisonError::into_inner) = calls;
    }

    /// The events since the last call.
    pub(crate) fn events(&self) -> Vec<Inbound> {
        let event = |told| match told {
            Told::Event(inbound) => Some(*inbound),
            _ => None,
        };
        self.take().into_iter().filter_map(event).collect()
    }

    /// Their texts and titles.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.events().iter().map(|inbound| inbound.readable_text().to_owned()).collect()
    }

    fn write(&self, told: Told) -> Result<(), AdmitError> {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if *refusals > 0 {
            *refusals -= 1;
            return Err(StoreError::new(StoreErrorKind::Unavailable, "test", "commit", "it is away").into());
        }
        self.told.lock().unwrap_or_else(PoisonError::into_inner).push(told);
        Ok(())
    }
}

#[async_trait]
impl InboundSink for Diary {
    async fn admit(&self, inbound: Inbound) -> Result<Admitted, AdmitError> {
        let admitted = Admitted { record: inbound.record_id(), duplicate: false };
        self.write(Told::Event(Box::new(inbound)))?;
        Ok(admitted)
    }

    async fn poison(&self, event: EventId, _: &[u8], problem: &str) -> Result<Admitted, AdmitError> {
        self.write(Told::Poison(event.to_string(), problem.to_owned()))?;
        Ok(Admitted { record: event.as_str().into(), duplicate: false })
    }

    async fn confirm_sent(&self, token: &SendKey, receipt: SendReceipt) -> Result<(), AdmitError> {
        self.write(Told::Sent(token.to_string(), receipt.message.to_string()))
    }

    async fn moved(&self, moved: Moved) -> Result<(), AdmitError> {
        self.write(Told::Moved(moved))
    }

    fn notice(&self, notice: Notice) {
        // It is never refused.
        let _ = self.write(Told::Notice(notice));
    }
}

/// A server and what a bot hears of it.
pub(crate) struct Stage {
    pub(crate) graph: FakeGraph,
    pub(crate) diary: Diary,
}

pub(crate) fn config(graph: &FakeGraph) -> MetaConfig {
    MetaConfig::new(FakeGraph::ACCESS_TOKEN, FakeGraph::APP_SECRET, FakeGraph::VERIFY_TOKEN)
        .with_base_url(graph.url())
        .with_app_id(FakeGraph::APP_ID)
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self { graph: FakeGraph::start().await, diary: Diary::default() }
    }

    /// Runs a channel, and tells the server where it takes posts of `product`.
    pub(crate) async fn run(
        &self,
        product: GraphProduct,
        path: &str,
        provider: impl Provider + Clone,
        router: Router,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        self.graph.set_webhook(product, format!("http://{address}{path}"));
        let sink: Arc<dyn InboundSink> = Arc::new(self.diary.clone());
        let running = provider.clone();
        spawn(async move { drop(running.run(sink, CancellationToken::new()).await) });
        spawn(async move { drop(botmesh_meta::axum::serve(listener, router).await) });
        let mut states = provider.connection();
        states.wait_for(|state| *state == ConnectionState::Open).await.expect("it runs");
    }
}

pub(crate) async fn whatsapp() -> (Stage, WhatsApp) {
    let stage = Stage::new().await;
    let channel = WhatsApp::new(FakeGraph::PHONE_NUMBER_ID, config(&stage.graph)).expect("a channel");
    stage.run(GraphProduct::WhatsApp, "/webhooks/whatsapp", channel.clone(), channel.router()).await;
    (stage, channel)
}

pub(crate) async fn messenger() -> (Stage, Messenger) {
    let stage = Stage::new().await;
    let channel = Messenger::new(FakeGraph::PAGE_ID, config(&stage.graph)).expect("a channel");
    stage.run(GraphProduct::Messenger, "/webhooks/messenger", channel.clone(), channel.router()).await;
    (stage, channel)
}

pub(crate) async fn instagram() -> (Stage, Instagram) {
    let stage = Stage::new().await;
    let channel = Instagram::new(FakeGraph::ACCOUNT_ID, config(&stage.graph)).expect("a channel");
    stage.run(GraphProduct::Instagram, "/webhooks/instagram", channel.clone(), channel.router()).await;
    (stage, channel)
}

/// The status of the answer to a post of which only the head comes, with these headers.
pub(crate) async fn status_of_head(router: Router, path: &str, headers: &str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    spawn(async move { drop(botmesh_meta::axum::serve(listener, router).await) });
    let mut stream = TcpStream::connect(address).await.expect("a server");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: bot\r\nconnection: close\r\ncontent-length: 9999\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("it listens");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

#[expect(clippy::disallowed_methods, reason = "a bot and its server beside the test")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

/// Waits until something is so.
#[expect(clippy::disallowed_methods, reason = "looks again in real time, for a server in real time")]
pub(crate) async fn eventually(mut is_so: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
    }
    panic!("it has not become so within 30 s");
}
