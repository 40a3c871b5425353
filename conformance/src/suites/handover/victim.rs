//! The processes that have a conversation one after the other.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Coordination, Fallback};
use botmesh_core::CancellationToken;
use botmesh_core::coordinator::MemoryHub;
use botmesh_core::entropy::OsEntropy;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::MessageId;
use botmesh_core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, SendReceipt, SendRequest,
};
use botmesh_core::time::SystemClock;
use botmesh_testing::{Crash, CrashableStore};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::watch;

use super::processes::BOT;
use super::tools::{NAME, Signup, at_work, desk, done, effects, forward, how_old, signup, take_name};
use crate::{Backend, Place};

/// What a child does: a bot over the backend at the place, until there is nothing more to read.
pub(crate) async fn run_child(backend: &dyn Backend, id: &str, folder: &Path) -> Result {
    let place = Place::existing(id.to_owned(), folder);
    let opened = backend.open(&place).await?;
    let Some(store) = opened.store.clone() else { return Err("the backend is no store".into()) };
    let scope = Scope { tenant: id.to_owned(), ..Scope::bot(BOT) };
    // Its turns are its own, but the store refuses those that are older than what it has seen.
    let floor = store.scoped(&scope).last_fence().await?;
    let hub = MemoryHub::new(Arc::new(SystemClock::new())).with_floor(floor);
    let handover = forward().with_fallback(Fallback::Notify);
    let coordination = Coordination::new(hub.coordinator(&OsEntropy::new())).with_handover(handover);
    let mut bot = Bot::builder()
        .provider(Terminal { connection: watch::Sender::new(ConnectionState::Open) })
        .store(CrashableStore::new(store, Crash::new()))
        .scope(scope)
        .coordination(coordination);
    if let Some(kv) = opened.kv.clone() {
        bot = bot.durability(Durability::new(kv));
    }
    talkative(bot, folder).build()?.run().await?;
    Ok(opened.close().await?)
}

/// All that the cases talk about, in one bot.
fn talkative(bot: BotBuilder, folder: &Path) -> BotBuilder {
    let (effects, at_work) = (effects(folder), at_work(folder));
    let joining = flow::<Signup>("joining").ask("name", NAME, take_name).ask("age", how_old, |_, _| Ok(()));
    let search = flow::<Signup>("search")
        .do_("find", move |c: FlowCtx<Signup>| {
            let at_work = at_work.clone();
            async move {
                let name = c.ask(NAME).await?;
                if File::create_new(at_work).is_ok() {
                    std::future::pending::<()>().await;
                }
                c.update(|search| search.name = name.text().to_owned());
                Ok(Step::Next)
            }
        })
        .ask("age", how_old, |_, _| Ok(()))
        .say(done);
    let order = conversation("order", move |c: Conv| {
        let effects = effects.clone();
        async move {
            let dish = c.ask("Which dish?").await?;
            c.run("cook", async || {
                let file = File::options().create(true).append(true).open(effects);
                Ok(file.and_then(|mut file| writeln!(file, "{}", dish.text()))?)
            })
            .await?;
            let pieces = c.ask(format!("How many of {}?", dish.text())).await?;
            c.say(format!("{} of {}.", pieces.text(), dish.text())).await?;
            Ok::<_, botmesh::Error>(())
        }
    });
    desk(bot, signup().persistent())
        .when("join", |c: Ctx| async move { c.enter("joining") })
        .flow(joining.say(done))
        .when("search", |c: Ctx| async move { c.enter("search") })
        .flow(search.persistent())
        .when("order", |c: Ctx| async move { c.enter("order") })
        .add_conversation(order.replayable())
        .when("talk", |c: Ctx| async move { c.enter("chat") })
        .conversation("chat", |c: Conv| async move {
            let name = c.ask(NAME).await?;
            c.say(format!("Hello, {}.", name.text())).await?;
            Ok::<_, botmesh::Error>(())
        })
}

/// A channel that reads what Ana says, with an id for each message, and prints what she is told.
struct Terminal {
    connection: watch::Sender<ConnectionState>,
}

#[async_trait]
impl Provider for Terminal {
    fn id(&self) -> &str {
        "terminal"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.connection.subscribe()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, _: CancellationToken) -> Result<(), ChannelError> {
        let failed = |error: &dyn std::fmt::Display| {
            ChannelError::new(ErrorClass::Transient, Phase::Answered, error.to_string())
        };
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Some(line) = lines.next_line().await.map_err(|error| failed(&error))? {
            let (event, text) = line.split_once('\t').unwrap_or((&line, ""));
            let admitted = sink.admit(Inbound::text(event, "ana", text)).await;
            drop(admitted.map_err(|error| failed(&error))?);
        }
        Ok(())
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        let text = request.content.readable_text();
        println!("{text}");
        Ok(SendReceipt { message: MessageId::from(text) })
    }
}
