//! The process that is killed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use botmesh::prelude::*;
use botmesh::{InboxConfig, OnAmbiguous, OutboxConfig};
use botmesh_core::CancellationToken;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::MessageId;
use botmesh_core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, SendReceipt, SendRequest,
};
use tokio::sync::watch;

use super::kill::{BEGAN, BOT, CHATS, KILLS, MESSAGES, name};
use crate::{Backend, Place};

/// How long a handler works between its replies, so that a kill meets it there.
const WORK: Duration = Duration::from_millis(3);
const POLL: Duration = Duration::from_millis(20);

/// What a child does: a bot over the backend at the place, until everything is answered.
pub(crate) async fn run_child(backend: &dyn Backend, id: &str, folder: &Path, policy: &str) -> Result {
    let place = Place::existing(id.to_owned(), folder);
    let opened = backend.open(&place).await?;
    let Some(kv) = opened.kv.clone() else { return Err("the backend holds no journals".into()) };
    let policy = if policy == name(OnAmbiguous::Resend) { OnAmbiguous::Resend } else { OnAmbiguous::Skip };
    let attempts = u32::try_from(KILLS).unwrap_or(u32::MAX).saturating_mul(1000);
    let durability = Durability::new(kv)
        .with_instance_id("child")
        .with_inbox(InboxConfig { max_attempts: attempts, ..InboxConfig::default() })
        .with_outbox(OutboxConfig { retries: attempts, ..OutboxConfig::default() })
        .with_on_ambiguous(policy)
        .with_poll(POLL);
    let scope = Scope { tenant: id.to_owned(), ..Scope::bot(BOT) };
    let bot = Bot::builder()
        .provider(FileChannel::new(folder.join("delivered")))
        .scope(scope)
        .durability(durability)
        .otherwise(handle)
        .build()?;
    bot.run().await?;
    Ok(opened.close().await?)
}

async fn handle(c: Ctx) -> Result {
    println!("{BEGAN}");
    let text = format!("{} {}", c.chat(), c.text());
    c.reply(format!("{text} first")).await?;
    work().await;
    c.reply(format!("{text} second")).await?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the handler of a real process takes real time")]
async fn work() {
    tokio::time::sleep(WORK).await;
}

/// A channel that delivers the same messages in each life, and appends what it is told to a file.
struct FileChannel {
    file: PathBuf,
    connection: watch::Sender<ConnectionState>,
}

impl FileChannel {
    fn new(file: PathBuf) -> Self {
        Self { file, connection: watch::Sender::new(ConnectionState::Open) }
    }
}

#[async_trait]
impl Provider for FileChannel {
    fn id(&self) -> &str {
        "file"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.connection.subscribe()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, _: CancellationToken) -> Result<(), ChannelError> {
        for n in 0..MESSAGES {
            for chat in 0..CHATS {
                let inbound = Inbound::text(format!("{chat}-{n}"), format!("chat-{chat}"), n.to_string());
                if let Err(error) = sink.admit(inbound).await {
                    return Err(ChannelError::new(ErrorClass::Transient, Phase::Answered, error.to_string()));
                }
            }
        }
        Ok(())
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        let line = format!("{}\t{}\n", request.chat, request.content.readable_text());
        let file = std::fs::File::options().create(true).append(true).open(&self.file);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        let failed = |error: std::io::Error| {
            ChannelError::new(ErrorClass::Transient, Phase::NotWritten, error.to_string())
        };
        written.map_err(failed)?;
        Ok(SendReceipt { message: MessageId::from(line.trim_end()) })
    }
}
