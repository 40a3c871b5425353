//! A bot whose spans and events go to OpenTelemetry: one `message` span for each message that is handled, with its record
//! and its chat, and in it one `send` span for each call of the channel.
//!
//! `cargo run --example opentelemetry`, type something, and end the input. The spans are printed here; put the exporter of
//! your collector in the place of the one for the standard output.

use std::error::Error;

use botmesh::core::memory::MemoryStore;
use botmesh::prelude::*;
use botmesh_terminal::Terminal;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(opentelemetry_stdout::SpanExporter::default())
        .build();
    tracing_subscriber::registry()
        .with(tracing_subscriber::EnvFilter::new("botmesh=info"))
        .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("bot")))
        .init();
    let bot = Bot::builder()
        .provider(Terminal::new())
        .store(MemoryStore::new())
        .durability(Durability::default().with_instance_id("example"))
        .otherwise(|c: Ctx| async move { c.reply(format!("You said: {}", c.text())).await })
        .build()?;
    let ended = bot.run().await;
    provider.shutdown()?;
    ended
}
