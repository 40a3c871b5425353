//! A channel that posts lists of texts, and a bot that does as it is told.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use botmesh_core::CancellationToken;
use botmesh_core::async_trait;
use botmesh_core::error::{StoreError, StoreErrorKind};
use botmesh_core::host::{Health, Hosted};
use botmesh_core::inbound::Inbound;
use botmesh_core::provider::{AdmitError, Admitted, ConnectionState, InboundSink};
use botmesh_core::webhook::parse;
use botmesh_webhook::axum::http::HeaderMap;
use botmesh_webhook::{
    Door, Handshake, Limits, NotReceived, Sender, Server, Webhook, admit_all, query_pairs,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) const SIGNED: &str = "x-secret: right\r\n";

/// What the bot does with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Takes,
    /// The journal is away.
    Refuses,
    /// There is no room.
    Waits,
}

#[derive(Clone)]
pub(crate) struct Sink {
    pub(crate) mood: watch::Sender<Mood>,
    taken: Arc<Mutex<Vec<String>>>,
    /// How many calls of `admit` there were.
    pub(crate) calls: watch::Sender<usize>,
}

impl Sink {
    pub(crate) fn new(mood: Mood) -> Self {
        Self { mood: watch::Sender::new(mood), taken: Arc::default(), calls: watch::Sender::new(0) }
    }

    pub(crate) fn taken(&self) -> Vec<String> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl InboundSink for Sink {
    async fn admit(&self, inbound: Inbound) -> Result<Admitted, AdmitError> {
        self.calls.send_modify(|calls| *calls += 1);
        let mut moods = self.mood.subscribe();
        let mood = *moods.wait_for(|mood| *mood != Mood::Waits).await.expect("the sink is there");
        if mood == Mood::Refuses {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "test", "commit", "it is away").into());
        }
        if inbound.chat.as_str() == "impossible" {
            return Err(AdmitError::Invalid("no such chat".to_owned()));
        }
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).push(inbound.event.to_string());
        Ok(Admitted { record: inbound.record_id(), duplicate: false })
    }
}

pub(crate) struct Channel {
    pub(crate) door: Door,
}

#[async_trait]
impl Webhook for Channel {
    fn door(&self) -> &Door {
        &self.door
    }

    fn handshake(&self, query: &str) -> Handshake {
        let given = |name: &str| query_pairs(query).find(|(key, _)| key == name).map(|(_, value)| value);
        match (given("token"), given("challenge")) {
            (Some(token), Some(challenge)) if token == "a b+c" => Handshake::Challenge(challenge.into()),
            (None, None) => Handshake::None,
            _ => Handshake::Refused,
        }
    }

    fn sender(&self, headers: &HeaderMap) -> Sender {
        if headers.contains_key("x-stranger") { Sender::Stranger } else { Sender::Unknown }
    }

    fn verify(&self, headers: &HeaderMap, _: &[u8]) -> bool {
        headers.get("x-secret").is_some_and(|secret| secret == "right")
    }

    async fn receive(&self, body: &[u8], sink: &dyn InboundSink) -> Result<(), NotReceived> {
        let ids: Vec<String> = parse(body)?;
        Ok(admit_all(sink, ids.into_iter().map(|id| Inbound::text(id, "ana", "hi")).collect()).await?)
    }
}

/// A bot on the channel: it runs until it is told to end.
#[derive(Clone)]
pub(crate) struct Bot {
    pub(crate) channel: Arc<Channel>,
    pub(crate) sink: Sink,
    pub(crate) stop: CancellationToken,
    /// Stands still after it closed its door, until this is cancelled.
    pub(crate) stopped: CancellationToken,
    pub(crate) failure: Option<&'static str>,
}

#[async_trait]
impl Hosted for Bot {
    async fn run(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.channel.door.run(Arc::new(self.sink.clone()), self.stop.clone()).await?;
        self.stopped.cancelled().await;
        self.failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    fn health(&self) -> Health {
        if self.stopped.is_cancelled() {
            return Health::ENDED;
        }
        let open = *self.channel.door.connection().borrow() == ConnectionState::Open;
        if open { Health::READY } else { Health::NOT_READY }
    }
}

pub(crate) fn bot(mood: Mood, limits: Limits) -> Bot {
    let channel = Arc::new(Channel { door: Door::new(limits) });
    let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
    Bot { channel, sink: Sink::new(mood), stop, stopped, failure: None }
}

pub(crate) type Served = JoinHandle<Result<(), botmesh_webhook::ServeError>>;

/// Serves these bots at `/hook`, `/hook2` and so on, as soon as all of them take messages.
pub(crate) async fn start(bots: &[Bot], drain: Duration) -> (SocketAddr, Served) {
    start_as(Server::new().with_drain(drain), bots).await
}

#[expect(clippy::disallowed_methods, reason = "a test's server beside the test's client")]
pub(crate) async fn start_as(mut server: Server, bots: &[Bot]) -> (SocketAddr, Served) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    for (bot, number) in bots.iter().zip(1..) {
        let path = if number == 1 { "/hook".to_owned() } else { format!("/hook{number}") };
        server = server.with_bot(bot.clone(), botmesh_webhook::router(&path, Arc::clone(&bot.channel)));
    }
    let served = tokio::spawn(server.serve_on(listener));
    for bot in bots {
        let mut states = bot.channel.door.connection();
        states.wait_for(|state| *state == ConnectionState::Open).await.expect("the bot runs");
    }
    (address, served)
}

pub(crate) async fn serve(mood: Mood, limits: Limits) -> (SocketAddr, Bot) {
    let bot = bot(mood, limits);
    let (address, _) = start(std::slice::from_ref(&bot), Duration::from_secs(30)).await;
    (address, bot)
}
