//! The channel of a whole bot: one connection to the world, over which messages come, and others for what is said.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::provider::{
    AdmitError, Capabilities, ConnectionState, InboundSink, Provider, Resolve, SendReceipt, SendRequest,
};
use botmesh::{Bot, ReplicaRole};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use super::Replica;
use super::connection::Connection;
use crate::history::{Event, now};
use crate::link::{Ack, Frame, Hello, Post, Posted};

pub(super) const ID: &str = "nemesis";

pub(super) struct Channel {
    replica: Arc<Replica>,
    state: watch::Sender<ConnectionState>,
    pub(super) bot: OnceLock<Bot>,
    posts: Mutex<Option<Connection>>,
}

impl Channel {
    pub(super) fn new(replica: &Arc<Replica>) -> Self {
        Self {
            replica: Arc::clone(replica),
            state: watch::Sender::new(ConnectionState::Closed),
            bot: OnceLock::new(),
            posts: Mutex::default(),
        }
    }

    /// The number of the leadership, 0 for none.
    fn fence(&self) -> u64 {
        match self.bot.get().and_then(Bot::coordination).map(|status| status.role) {
            Some(ReplicaRole::Leader { fence }) => fence.0,
            _ => 0,
        }
    }

    async fn receive(&self, sink: &dyn InboundSink) -> Result<(), ChannelError> {
        let (replica, n) = (self.replica.args.name.clone(), self.fence());
        let name = format!("provider:{ID}");
        let hello = Hello::Transport { replica, name: name.clone(), n, pid: std::process::id() };
        let mut connection = Connection::open(self.replica.args.world, &hello).await.map_err(failed)?;
        self.state.send_replace(ConnectionState::Open);
        while let Some(Frame { id, chat }) = connection.read().await.map_err(failed)? {
            let checked_t = loop {
                let before = now();
                match sink.admit(Inbound::text(id.to_string(), chat.as_str(), id.to_string())).await {
                    Ok(_) => break before,
                    // The channel delivers it again.
                    Err(AdmitError::Journal(_) | AdmitError::NoPlace) => {
                        self.replica.sleep(Duration::from_millis(50)).await;
                    }
                    // And here it delivers to nobody before the connection is cut.
                    Err(_) => std::future::pending().await,
                }
            };
            self.replica.tell(Event::Frame { name: name.clone(), n, checked_t });
            connection.write(&Ack { id }).await.map_err(failed)?;
        }
        Err(ChannelError::new(ErrorClass::Transient, Phase::NotWritten, "the world closed the connection"))
    }
}

fn failed(error: std::io::Error) -> ChannelError {
    ChannelError::new(ErrorClass::Transient, Phase::Unknown, "the world cannot be reached").with_source(error)
}

/// However the connection ends, it is told.
struct Connected<'a>(&'a Channel);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.state.send_replace(ConnectionState::Closed);
    }
}

#[async_trait]
impl Provider for Channel {
    fn id(&self) -> &str {
        ID
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.exclusive_session = true;
        capabilities.resolve = Resolve::Dedupe { window: Duration::from_secs(24 * 3600) };
        capabilities
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.state.subscribe()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        self.state.send_replace(ConnectionState::Connecting);
        let _connected = Connected(self);
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = self.receive(&*sink) => ended,
        }
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        let mut posts = self.posts.lock().await;
        // A call that is dropped half way takes its connection with it.
        let mut connection = match posts.take() {
            Some(connection) => connection,
            None => {
                let hello = Hello::Posts { replica: self.replica.args.name.clone() };
                Connection::open(self.replica.args.world, &hello).await.map_err(failed)?
            }
        };
        let post = Post {
            chat: request.chat.to_string(),
            text: request.content.readable_text().to_owned(),
            key: request.token.map(ToString::to_string).unwrap_or_default(),
        };
        let Posted { message } = connection.ask(&post).await.map_err(failed)?;
        *posts = Some(connection);
        Ok(SendReceipt { message: message.into() })
    }
}
