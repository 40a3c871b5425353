//! A shop's bot as a service: any number of replicas behind a load balancer, on one Redis.
//!
//! `cargo run --example service --features redis`, then
//! `curl localhost:8080/messages --json '{"id": "1", "chat": "ana", "text": "order"}'`. What the bot answers is printed.
//! Recipes that run it are in `deploy/`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use botmesh::Coordination;
use botmesh::core::CancellationToken;
use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::provider::{
    AdmitError, Capabilities, ConnectionState, InboundSink, Provider, SendReceipt, SendRequest,
};
use botmesh::prelude::*;
use botmesh_redis_store::{RedisCoordinatorConfig, RedisStore};
use clap::Parser;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A shop's bot that takes messages over HTTP and prints its answers, on a Redis that its replicas share.
#[derive(Clone, Parser)]
struct Args {
    /// The Redis server that all replicas share
    #[arg(
        long,
        env = "BOT_REDIS",
        value_name = "URL",
        default_value = "redis://127.0.0.1",
        hide_env_values = true
    )]
    redis: String,
    /// The name of this replica; give it the same one after a restart
    #[arg(long, env = "BOT_INSTANCE", value_name = "NAME", default_value = "bot-1")]
    instance: String,
    /// How long the chats of a replica that died wait for another one; the same for all replicas
    #[arg(long, env = "BOT_LEASE", value_name = "TIME", default_value = "15s", value_parser = humantime::parse_duration)]
    lease: Duration,
    /// Where it takes messages and tells its health
    #[arg(long, env = "BOT_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
}

/// A channel over HTTP: what is posted comes in, and what goes out is printed.
#[derive(Clone)]
struct Http {
    sink: Arc<Mutex<Option<Arc<dyn InboundSink>>>>,
    state: watch::Sender<ConnectionState>,
}

impl Http {
    fn new() -> Self {
        Self { sink: Arc::default(), state: watch::Sender::new(ConnectionState::Closed) }
    }

    fn connect(&self, sink: Option<Arc<dyn InboundSink>>) {
        let state = if sink.is_some() { ConnectionState::Open } else { ConnectionState::Closed };
        *self.sink.lock().unwrap_or_else(PoisonError::into_inner) = sink;
        self.state.send_replace(state);
    }
}

#[async_trait]
impl Provider for Http {
    fn id(&self) -> &str {
        "http"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.state.subscribe()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        self.connect(Some(sink));
        stop.cancelled().await;
        self.connect(None);
        Ok(())
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        use std::io::Write as _;
        let line = json!({"chat": request.chat.as_str(), "text": request.content.readable_text()});
        writeln!(std::io::stdout().lock(), "{line}").map_err(|error| {
            let what = "the answer cannot be printed";
            ChannelError::new(ErrorClass::Transient, Phase::Unknown, what).with_source(error)
        })?;
        Ok(SendReceipt { message: "printed".into() })
    }
}

/// A message as it is posted. Posted again with its id, it is not answered again.
#[derive(Deserialize)]
struct Message {
    id: String,
    chat: String,
    text: String,
}

/// 200 says that the message is journaled. At any other answer, post it again: to this replica or to another one.
async fn message(State(http): State<Http>, Json(message): Json<Message>) -> (StatusCode, String) {
    let sink = http.sink.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(sink) = sink else {
        return (StatusCode::SERVICE_UNAVAILABLE, "this replica takes no messages now\n".to_owned());
    };
    match sink.admit(Inbound::text(message.id, message.chat, message.text)).await {
        Ok(_) => (StatusCode::OK, String::new()),
        Err(AdmitError::Invalid(why)) => (StatusCode::UNPROCESSABLE_ENTITY, format!("{why}\n")),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", botmesh::describe(&error))),
    }
}

async fn order(c: Conv) -> Result {
    let dish = c.ask("What would you like: soup, stew or salad?").await?;
    let table = c
        .ask("To which table?")
        .check(|answer| answer.text().parse::<u32>().map_err(|_| "Its number, please.".into()))
        .await?;
    let number: i64 = c.run("number the order", async || c.user().increment("orders", 1).await).await?;
    c.say(format!("{} to table {table}. It is your order number {number}.", dish.text())).await?;
    Ok(())
}

/// What the orchestrator and the load balancer ask for, beside the messages.
fn router(http: Http, bot: Bot, lease: Duration) -> Router {
    let status = |fine| if fine { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Only while it runs may messages come; a replica that stops says so before it ends.
    let state = http.connection();
    let is_ready = async move || status(*state.borrow() == ConnectionState::Open);
    // A new start helps a process that hangs, not one whose server is away; so be patient.
    let is_alive = async move || {
        let beat = bot.coordination().and_then(|status| status.last_beat);
        status(beat.is_none_or(|age| age < 8 * lease))
    };
    Router::new()
        .route("/messages", post(message))
        .with_state(http)
        .route("/ready", get(is_ready))
        .route("/live", get(is_alive))
        .layer(DefaultBodyLimit::max(64 * 1024))
}

async fn run(args: Args) -> Result {
    let store = RedisStore::open(&args.redis).await?;
    let turns = store.coordinator_with(RedisCoordinatorConfig::default().with_lease(args.lease)).await?;
    let http = Http::new();
    let bot = Bot::builder()
        .provider(http.clone())
        .store(store.clone())
        .durability(Durability::new(store.durability()).with_instance_id(args.instance.as_str()))
        .coordination(Coordination::new(turns).with_replica_id(args.instance))
        .when("order", |c: Ctx| async move { c.enter("order") })
        .otherwise(|c: Ctx| async move { c.reply("Write `order`.").await })
        .add_conversation(conversation("order", order).replayable().cancel_on(["stop"], "All right."))
        .build()?;
    let over = CancellationToken::new();
    let listener = TcpListener::bind(args.listen).await?;
    let server = axum::serve(listener, router(http, bot.clone(), args.lease))
        .with_graceful_shutdown(over.clone().cancelled_owned());
    let bot = async {
        let ended = bot.run().await;
        over.cancel();
        ended
    };
    let (ended, served) = tokio::join!(bot, server.into_future());
    ended?;
    served?;
    Ok(store.close().await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("service: {}", botmesh::describe(&*error));
            ExitCode::FAILURE
        }
    }
}
