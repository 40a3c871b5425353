use std::sync::Arc;
use std::time::Duration;

use botmesh_core::CancellationToken;
use botmesh_core::async_trait;
use botmesh_core::content::Content;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::{ChatId, SendKey};
use botmesh_core::inbound::Inbound;
use botmesh_core::provider::{
    AdmitError, Admitted, ConnectionState, InboundSink, Provider, Resolution, Resolve, SendReceipt,
    SendRequest,
};
use botmesh_core::spawn::Spawner;
use botmesh_testing::{MockProvider, SendFault, SendOutcome, TestSpawner};

async fn send(provider: &MockProvider, text: &str, token: &str) -> Result<SendReceipt, ChannelError> {
    let (chat, content, token) = (ChatId::from("ana"), Content::text(text), SendKey::from(token));
    provider.send(SendRequest::new(&chat, &content).with_token(&token)).await
}

fn busy() -> ChannelError {
    ChannelError::new(ErrorClass::RateLimited, Phase::Answered, "busy")
}

#[tokio::test]
async fn sends_are_recorded_with_their_attempt_and_outcome() {
    let provider = MockProvider::new();
    provider.fail_next(busy());
    assert_eq!(send(&provider, "hello", "k1").await.unwrap_err().class, ErrorClass::RateLimited);
    let receipt = send(&provider, "hello", "k1").await.unwrap();
    send(&provider, "bye", "k2").await.unwrap();
    let sent = provider.sent();
    assert_eq!(sent.iter().map(|sent| sent.attempt).collect::<Vec<_>>(), [1, 2, 1]);
    assert_eq!(sent[0].outcome, SendOutcome::Failed(ErrorClass::RateLimited, Phase::Answered));
    assert_eq!(sent[1].outcome, SendOutcome::Delivered(receipt));
    assert_eq!(provider.texts_to("ana"), ["hello", "bye"]);
    let transcript = "bot -> ana: \"hello\" [k1] => failed: RateLimited (Answered)\n\
                      bot -> ana: \"hello\" [k1] attempt 2 => mock-1\nbot -> ana: \"bye\" [k2] => mock-2\n";
    assert_eq!(provider.transcript(), transcript);
}

#[tokio::test]
async fn a_lost_answer_is_delivered_and_can_be_looked_up() {
    let provider = MockProvider::with_resolve(Resolve::Lookup);
    provider.lose_answer_next();
    assert_eq!(send(&provider, "hello", "k1").await.unwrap_err().phase, Phase::Unknown);
    provider.fail_next(ChannelError::new(ErrorClass::Transient, Phase::Unknown, "cut"));
    assert_eq!(send(&provider, "bye", "k2").await.unwrap_err().phase, Phase::Unknown);
    let resolve = async |token: &str| provider.resolve(&token.into(), &"ana".into()).await;
    assert!(matches!(resolve("k1").await, Resolution::Sent(_)));
    assert_eq!(resolve("k2").await, Resolution::NotSent);
    assert_eq!(provider.texts_to("ana"), ["hello"]);
    assert_eq!(MockProvider::new().resolve(&"k1".into(), &"ana".into()).await, Resolution::Unknown);
}

#[tokio::test]
async fn a_channel_that_dedupes_delivers_a_token_once() {
    let provider = MockProvider::with_resolve(Resolve::Dedupe { window: Duration::from_secs(1) });
    provider.lose_answer_next();
    assert!(send(&provider, "hello", "k1").await.is_err());
    let receipt = send(&provider, "hello", "k1").await.unwrap();
    assert_eq!(provider.sent()[1].outcome, SendOutcome::Deduplicated(receipt));
    assert_eq!(provider.texts_to("ana"), ["hello"]);
}

#[tokio::test]
async fn a_hanging_send_is_delivered_only_when_released() {
    let (provider, spawner) = (MockProvider::new(), TestSpawner::new());
    provider.hang_next();
    let hanging = provider.clone();
    spawner.spawn("hanging", Box::pin(async move { drop(send(&hanging, "hello", "k1").await) }));
    provider.wait_for_hanging(1).await;
    assert!(provider.delivered().is_empty());
    provider.release();
    assert_eq!(provider.wait_for_deliveries(1).await[0].text(), "hello");
    provider.hang_next();
    let dropped = provider.clone();
    spawner.spawn("dropped", Box::pin(async move { drop(send(&dropped, "bye", "k2").await) }));
    provider.wait_for_hanging(1).await;
    spawner.kill_all().await;
    assert_eq!(provider.texts_to("ana"), ["hello"]);
}

#[tokio::test]
async fn a_rule_chooses_by_content_until_healed() {
    let provider = MockProvider::new();
    provider.fault_when(|sent| (sent.text() == "two").then(|| SendFault::Fail(busy())));
    assert!(send(&provider, "one", "k1").await.is_ok());
    assert!(send(&provider, "two", "k2").await.is_err());
    provider.heal();
    assert!(send(&provider, "two", "k2").await.is_ok());
    assert_eq!(provider.wait_for_sends(3).await.len(), 3);
}

struct Taking;

#[async_trait]
impl InboundSink for Taking {
    async fn admit(&self, inbound: Inbound) -> Result<Admitted, AdmitError> {
        Ok(Admitted { record: inbound.record_id(), duplicate: false })
    }
}

#[tokio::test]
async fn events_are_admitted_to_the_bot_that_runs() {
    let (provider, spawner, stop) = (MockProvider::new(), TestSpawner::new(), CancellationToken::new());
    let (running, stopped) = (provider.clone(), stop.clone());
    let run = async move { running.run(Arc::new(Taking), stopped).await.unwrap() };
    spawner.spawn("run", Box::pin(run));
    let admitted = provider.deliver(Inbound::text("1", "ana", "hello")).await.unwrap();
    assert_eq!(admitted.record.as_str(), "m/ana/1");
    assert_eq!(*provider.connection().borrow(), ConnectionState::Open);
    assert_eq!(provider.transcript(), "ana -> bot: \"hello\" (1)\n");
    stop.cancel();
    spawner.join_all().await;
    assert_eq!(*provider.connection().borrow(), ConnectionState::Closed);
}
