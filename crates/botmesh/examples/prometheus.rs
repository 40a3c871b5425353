//! A bot whose numbers Prometheus scrapes: everything it counts and measures is emitted through the `metrics` facade, and
//! any exporter for it will do.
//!
//! `cargo run --example prometheus -- 127.0.0.1:9464`, then open <http://127.0.0.1:9464/metrics>.

use std::error::Error;

use botmesh::core::memory::MemoryStore;
use botmesh::prelude::*;
use botmesh_terminal::Terminal;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// In seconds: from what a commit takes to what nobody wants to wait.
const BUCKETS: [f64; 12] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9464".to_owned());
    // Before the bot is built: it asks the recorder for its counters then.
    let prometheus = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .install_recorder()?;
    let listener = TcpListener::bind(&address).await?;
    println!("http://{}/metrics", listener.local_addr()?);
    let bot = Bot::builder()
        .provider(Terminal::new())
        .store(MemoryStore::new())
        .scope(Scope::bot("example"))
        .durability(Durability::default().with_instance_id("example"))
        .otherwise(|c: Ctx| async move { c.reply(format!("You said: {}", c.text())).await })
        .build()?;
    tokio::select! {
        ended = bot.run() => ended,
        failed = serve(listener, prometheus) => failed,
    }
}

/// Answers every request with the numbers. A real service mounts `render` in the HTTP server that it has.
async fn serve(
    listener: TcpListener,
    prometheus: PrometheusHandle,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    loop {
        let (mut connection, _) = listener.accept().await?;
        let body = prometheus.render();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close";
        let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let mut request = [0; 1024];
        // One that goes away is none.
        if connection.read(&mut request).await.is_ok() {
            let _ = connection.write_all(answer.as_bytes()).await;
        }
    }
}
