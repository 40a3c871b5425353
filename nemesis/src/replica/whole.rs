//! A whole bot: journals, store and turns on one server, and a channel that permits one connection.

use std::sync::Arc;
use std::time::Duration;

use botmesh::core::coordinator::Coordinator as _;
use botmesh::core::store::Store as _;
use botmesh::{
    Bot, BotEvent, Coordination, Ctx, Durability, FollowerReason, InboxConfig, OnAmbiguous, OutboxConfig,
};
use botmesh_redis_store::{RedisConfig, RedisStore};
use tokio::sync::broadcast::error::RecvError;

use super::channel::Channel;
use super::{BEGINS, Failure, Replica};
use crate::history::Event;

/// A message that is tried this often is not given up in any run.
const ATTEMPTS: u32 = 1_000_000;

/// Runs the bot until the end is asked for.
pub(super) async fn run(replica: &Arc<Replica>) -> Result<(), Failure> {
    let Some(coordinator) = replica.connect().await else { return Ok(()) };
    let config = RedisConfig::default().with_prefix(&replica.args.prefix);
    let store = replica
        .until_it_works(async || RedisStore::open_with(&replica.args.redis, config.clone()).await)
        .await;
    let Some(store) = store else { return Ok(()) };
    let session = coordinator.session();
    replica.tell(Event::Up { sid: session.to_string() });
    replica.saw(&session);
    let channel = Arc::new(Channel::new(replica));
    let id = replica.args.replica_id.as_ref().unwrap_or(&replica.args.name);
    let bot = Bot::builder()
        .shared_provider(Arc::clone(&channel) as _)
        .durability(durability(&store, replica.lease()))
        .store(store.clone())
        .coordination(Coordination::new(coordinator).with_replica_id(id))
        .otherwise(answer)
        .build()?;
    if channel.bot.set(bot.clone()).is_err() {
        return Err("the channel has a bot already".into());
    }
    let (told, mut events) = (Arc::clone(replica), bot.events());
    replica.seams.spawn("history", async move {
        let mut leads = None;
        loop {
            match events.recv().await {
                Ok(event) => tell(&told, &event, &mut leads),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
    // A signal that came before the bot listens to it.
    let (stop, stopped) = (replica.stop.clone(), bot.clone());
    replica.seams.spawn("stop", async move {
        stop.cancelled().await;
        stopped.stop();
    });
    tracing::info!("{BEGINS}");
    bot.run().await?;
    store.close().await?;
    Ok(())
}

async fn answer(c: Ctx) -> botmesh::Result {
    c.reply(format!("re {}", c.text())).await?;
    Ok(())
}

fn durability(store: &RedisStore, lease: Duration) -> Durability {
    let inbox = InboxConfig { lease, max_attempts: ATTEMPTS, ..InboxConfig::default() };
    let outbox = OutboxConfig { lease, retries: ATTEMPTS, ..OutboxConfig::default() };
    Durability::new(store.durability())
        .with_inbox(inbox)
        .with_outbox(outbox)
        .with_on_ambiguous(OnAmbiguous::Resend)
        .with_poll(Duration::from_millis(200))
}

fn tell(replica: &Replica, event: &BotEvent, leads: &mut Option<(String, u64)>) {
    match event {
        BotEvent::Leader { name, fence, .. } => {
            *leads = Some((name.clone(), fence.0));
            replica.tell(Event::Lead { name: name.clone(), n: fence.0 });
        }
        BotEvent::Follower { reason: FollowerReason::StandingBy, .. } => {}
        BotEvent::Follower { .. } => {
            if let Some((name, n)) = leads.take() {
                replica.tell(Event::LeadLost { name, n });
            }
        }
        _ => {}
    }
}
