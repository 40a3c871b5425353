//! What a channel may do: have a name, media and failures.

use std::sync::{Arc, Mutex};

use botmesh::BotEvent;
use botmesh::core::Bytes;
use botmesh::core::CancellationToken;
use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::id::{ChatId, SendKey};
use botmesh::core::inbound::Inbound;
use botmesh::core::media::{JournaledMedia, MediaRef};
use botmesh::core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, Resolution, Resolve, SendReceipt, SendRequest,
};
use botmesh::core::store::{Direction, Store};
use botmesh::prelude::*;
use botmesh_testing::{MockProvider, image};
use tokio::sync::watch;

use crate::support::Stage;

/// The mock channel, with a name, media that is its own token, and failures of its connection.
struct Special {
    inner: MockProvider,
    /// What the next calls of `run` fail with.
    failures: Mutex<Vec<ChannelError>>,
    /// The state of the connection, if it is not that of the mock channel.
    states: Option<watch::Sender<ConnectionState>>,
}

#[async_trait::async_trait]
impl Provider for Special {
    fn id(&self) -> &str {
        self.inner.id()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn username(&self) -> Option<String> {
        Some("shop_bot".to_owned())
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.states.as_ref().map_or_else(|| self.inner.connection(), watch::Sender::subscribe)
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        let failure = self.failures.lock().expect("no panic").pop();
        match failure {
            Some(failure) => Err(failure),
            None => self.inner.run(sink, stop).await,
        }
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        self.inner.send(request).await
    }

    async fn resolve(&self, token: &SendKey, chat: &ChatId) -> Resolution {
        self.inner.resolve(token, chat).await
    }

    /// However much was asked for.
    async fn load_media(&self, media: &MediaRef, _: usize) -> Result<Bytes, ChannelError> {
        Ok(Bytes::from(media.token.to_string()))
    }
}

fn special(failures: Vec<ChannelError>) -> Stage {
    let mut stage = Stage::new(Resolve::Never);
    let provider = Special { inner: stage.channel.clone(), failures: Mutex::new(failures), states: None };
    stage.provider = Some(Arc::new(provider));
    stage
}

fn echo(bot: botmesh::BotBuilder) -> botmesh::BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

#[tokio::test]
async fn a_command_may_name_the_bot() {
    let stage = special(Vec::new());
    let life = stage.start(|bot| {
        bot.when(command("/start"), |c: Ctx| async move { c.reply(format!("started {}", c.arg(1))).await })
            .otherwise(|c: Ctx| async move { c.reply("otherwise").await })
    });
    assert_eq!(life.say("m1", "/start@Shop_Bot now", 1).await, ["started now"]);
    assert_eq!(life.say("m2", "/start@other_bot now", 1).await, ["otherwise"]);
    life.stop().await;
}

#[tokio::test]
async fn a_connection_that_fails_is_made_again() {
    let failure = || ChannelError::new(ErrorClass::Transient, Phase::NotWritten, "the network is away");
    let stage = special(vec![failure(), failure()]);
    let mut life = stage.start(echo);
    stage.clock.advance(Duration::from_secs(10)).await;
    assert_eq!(life.say("m1", "hi", 1).await, ["hi"]);
    let events: Vec<BotEvent> = std::iter::from_fn(|| life.events.try_recv().ok()).collect();
    assert_eq!(
        events.iter().map(BotEvent::name).collect::<Vec<_>>(),
        ["started", "channel:unavailable", "channel:available"]
    );
    assert!(events[1].to_string().contains("the network is away"));
    assert!(matches!(events[2], BotEvent::ChannelAvailable { failures: 2, .. }), "{:?}", events[2]);
    life.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_lost_and_made_again_by_the_channel_itself_is_told() {
    let mut stage = Stage::new(Resolve::Never);
    let states = watch::Sender::new(ConnectionState::Closed);
    let (inner, failures) = (stage.channel.clone(), Mutex::default());
    stage.provider = Some(Arc::new(Special { inner, failures, states: Some(states.clone()) }));
    let mut life = stage.start(echo);
    assert_eq!(life.say("m1", "hi", 1).await, ["hi"]);
    use ConnectionState::{Closed, Connecting, Open};
    for state in [Connecting, Open, Connecting, Connecting, Connecting, Open, Closed] {
        states.send_replace(state);
        stage.clock.advance(Duration::from_secs(1)).await;
    }
    let told = ["started", "channel:unavailable", "channel:available"];
    assert_eq!(life.event_names(), told);
    life.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_refused_ends_the_bot_with_the_reason() {
    let stage = special(vec![ChannelError::new(ErrorClass::Auth, Phase::Answered, "the token was revoked")]);
    let life = stage.start(echo);
    life.until("the end", || life.ended.get().is_some()).await;
    let error = life.ended.get().expect("an end").as_ref().expect_err("a reason");
    assert!(error.contains("the token was revoked"), "{error}");
    life.stop().await;
}

#[tokio::test]
async fn a_bot_that_was_logged_out_ends_with_the_reason_and_one_that_was_replaced_tries_again_later() {
    let refusals = [ErrorClass::LoggedOut, ErrorClass::Conflict]
        .map(|class| ChannelError::new(class, Phase::Answered, "told by the channel"));
    let stage = special(refusals.into());
    let life = stage.start(echo);
    stage.clock.advance(Duration::from_secs(29)).await;
    assert!(life.ended.get().is_none());
    stage.clock.advance(Duration::from_secs(17)).await;
    life.until("the end", || life.ended.get().is_some()).await;
    let error = life.ended.get().expect("an end").as_ref().expect_err("a reason");
    assert!(error.contains("told by the channel"), "{error}");
    life.stop().await;
}

#[tokio::test]
async fn a_bot_stops_while_it_waits_for_its_connection() {
    let failure = || ChannelError::new(ErrorClass::Transient, Phase::NotWritten, "the network is away");
    let stage = special((0..50).map(|_| failure()).collect());
    let life = stage.start(echo);
    stage.clock.advance(Duration::from_secs(100)).await;
    life.bot.stop();
    stage.clock.advance(Duration::ZERO).await;
    assert!(life.ended.get().is_some(), "it does not stop");
    life.stop().await;
}

/// A picture whose token is a text of this length.
fn picture(length: usize) -> Inbound {
    let media = MediaRef { provider: "mock".to_owned(), token: "x".repeat(length).into() };
    Inbound::private(format!("m{length}"), "ana", image(media))
}

#[tokio::test]
async fn a_channel_that_loads_more_than_it_was_asked_for_is_not_trusted() {
    let stage = special(Vec::new());
    let life = stage.start(|bot| {
        bot.when(IMAGE, |c: Ctx| async move {
            let loaded = c.try_load_media().await;
            c.reply(format!("{:?}", loaded.map(|bytes| bytes.len()).map_err(|error| error.reason))).await
        })
        .max_media_bytes(5)
    });
    assert!(life.deliver(picture(3)).await);
    assert!(life.deliver(picture(4)).await);
    life.until("both replies", || stage.channel.texts_to("ana") == ["Ok(5)", "Err(TooLarge)"]).await;
    life.stop().await;
}

#[tokio::test]
async fn a_reference_as_large_as_media_is_not_journaled() {
    let stage = special(Vec::new());
    let life = stage.start(echo);
    for (length, kept) in [(65_534, true), (65_535, false)] {
        let inbound = picture(length);
        let id = inbound.record_id();
        assert!(life.deliver(inbound).await);
        life.settled().await;
        let journal = life.bot.durability().expect("a durable bot");
        let record = journal.inbox().get(&id).await.expect("a reading").expect("the message").record;
        assert_eq!(record.media != Some(JournaledMedia::NotDurable), kept, "{length}");
    }
    life.stop().await;
}

#[tokio::test]
async fn the_log_holds_each_message_once_in_both_directions() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| echo(bot).log_messages(true));
    life.say("m1", "hi", 1).await;
    life.say("m2", "ho", 1).await;
    life.settled().await;
    let mut log = life.store.log(&"ana".into(), None, 10).await.expect("a log");
    log.reverse();
    let log: Vec<_> = log.into_iter().map(|(_, entry)| (entry.direction, entry.text)).collect();
    let expected =
        [(Direction::In, "hi"), (Direction::Out, "hi"), (Direction::In, "ho"), (Direction::Out, "ho")];
    assert_eq!(log, expected.map(|(direction, text)| (direction, text.to_owned())));
    life.stop().await;
}

#[tokio::test]
async fn a_chosen_language_stays_chosen() {
    let stage = Stage::new(Resolve::Never);
    let speaks = |bot: botmesh::BotBuilder| {
        bot.when(regex("^speak (.+)$"), |c: Ctx| async move { c.set_language(c.arg(1)).await }).otherwise(
            |c: Ctx| async move {
                let language = c.language().await?.unwrap_or_default();
                c.reply(language).await?;
                Result::<()>::Ok(())
            },
        )
    };
    let from = |event: &str, text: &str| {
        let mut inbound = Inbound::text(event, "ana", text);
        if let Some(sender) = &mut inbound.sender {
            sender.language = Some("en".to_owned());
        }
        inbound
    };
    let life = stage.start(speaks);
    for inbound in [from("m1", "hi"), from("m2", "speak es"), from("m3", "hi")] {
        assert!(life.deliver(inbound).await);
    }
    life.until("two replies", || stage.channel.texts_to("ana") == ["en", "es"]).await;
    life.stop().await;
    let life = stage.start(speaks);
    assert!(life.deliver(from("m4", "hi")).await);
    life.until("the reply", || stage.channel.texts_to("ana") == ["en", "es", "es"]).await;
    life.stop().await;
}

#[tokio::test]
async fn a_bot_runs_once_and_sends_only_while_it_runs() {
    let bot = echo(Bot::builder().shared_provider(Arc::new(MockProvider::new()))).build().expect("a bot");
    let early = bot.send("ana", "hi").await.expect_err("it does not run");
    assert!(early.to_string().contains("not running"), "{early}");
    bot.stop();
    bot.run().await.expect("an end in good order");
    let again = bot.run().await.expect_err("a second run");
    assert!(again.to_string().contains("build another one"), "{again}");
}
