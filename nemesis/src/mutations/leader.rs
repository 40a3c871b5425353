//! A bot whose channel permits one connection, and brings nothing.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, SendReceipt, SendRequest,
};
use botmesh::{Bot, Coordination, Ctx, ReplicaRole};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Failure;
use super::actor::Actor;
use super::stage::{Resource, Stage};
use crate::history::Event;

pub(super) struct Leader {
    pub(super) bot: Bot,
    channel: Arc<Channel>,
}

impl Leader {
    /// The bot of a replica.
    pub(super) async fn new(stage: &Stage, actor: &Actor) -> Result<Self, Failure> {
        let channel = Arc::new(Channel {
            server: Arc::clone(&stage.resource),
            state: watch::Sender::new(ConnectionState::Closed),
            bot: OnceLock::new(),
        });
        let bot = Bot::builder()
            .shared_provider(Arc::clone(&channel) as _)
            .store(stage.store(&actor.url).await?)
            .coordination(Coordination::new(actor.coordinator.clone()).with_replica_id(actor.name))
            .otherwise(nothing)
            .build()?;
        if channel.bot.set(bot.clone()).is_err() {
            return Err("the channel has a bot already".into());
        }
        Ok(Self { bot, channel })
    }

    /// Waits until its channel is connected.
    pub(super) async fn connected(&self) {
        let mut state = self.channel.state.subscribe();
        // The channel keeps the sender.
        drop(state.wait_for(|state| *state == ConnectionState::Open).await);
    }
}

async fn nothing(_: Ctx) -> botmesh::Result {
    Ok(())
}

struct Channel {
    server: Arc<Resource>,
    state: watch::Sender<ConnectionState>,
    bot: OnceLock<Bot>,
}

/// What the other end sees of a connection, from its beginning to its end.
struct Connection<'a> {
    channel: &'a Channel,
    n: u64,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        let (name, peer_pid) = (ID.to_owned(), std::process::id());
        self.channel.server.record(Event::TransportClosed { name, n: self.n, peer_pid });
        self.channel.state.send_replace(ConnectionState::Closed);
    }
}

const ID: &str = "channel";

#[async_trait]
impl Provider for Channel {
    fn id(&self) -> &str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.exclusive_session = true;
        capabilities
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.state.subscribe()
    }

    async fn run(&self, _: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        let n = match self.bot.get().and_then(Bot::coordination).map(|status| status.role) {
            Some(ReplicaRole::Leader { fence }) => fence.0,
            _ => 0,
        };
        let (name, peer_pid) = (ID.to_owned(), std::process::id());
        self.server.record(Event::TransportOpen { name, n, peer_pid });
        let _connection = Connection { channel: self, n };
        self.state.send_replace(ConnectionState::Open);
        stop.cancelled().await;
        Ok(())
    }

    async fn send(&self, _: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        Err(ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, "nothing is said here"))
    }
}
