//! Echoes what is typed, after a while: to see what a reply looks like that comes while the next line is being typed.
//!
//! `cargo run -p botmesh-terminal --example echo -- [--chat NAME] [--delay MILLISECONDS] [--history FILE]`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use botmesh_core::content::{Button, Content};
use botmesh_core::inbound::Inbound;
use botmesh_core::provider::{AdmitError, Admitted, InboundSink, Provider, SendRequest};
use botmesh_core::time::{Clock, SystemClock};
use botmesh_core::{CancellationToken, async_trait};
use botmesh_terminal::Terminal;
use tokio::sync::mpsc;

/// Hands events to the loop that answers.
struct Sink(mpsc::UnboundedSender<Inbound>);

#[async_trait]
impl InboundSink for Sink {
    async fn admit(&self, inbound: Inbound) -> Result<Admitted, AdmitError> {
        let record = inbound.record_id();
        self.0.send(inbound).map_err(|_| AdmitError::Stopping)?;
        Ok(Admitted { record, duplicate: false })
    }
}

fn reply(inbound: &Inbound) -> Content {
    match inbound.readable_text() {
        "buttons" => {
            Content::text("Which one?").with_buttons([Button::new("y", "Yes"), Button::new("n", "No")])
        }
        "poem" => Content::text("a first line\nand a second one"),
        text => Content::text(format!("You said: {text} ({})", inbound.event)),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut terminal =
        Terminal::new().with_hint("Type something; `buttons` or `poem`. `stop` stops at once.");
    let mut delay = 0;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--chat" => terminal = terminal.with_chat(value),
            "--delay" => delay = value.parse()?,
            "--history" => terminal = terminal.with_history(value),
            other => return Err(format!("{other} is unknown; see the top of the example").into()),
        }
    }
    let stop = CancellationToken::new();
    let (events, mut inbox) = mpsc::unbounded_channel::<Inbound>();
    let clock = SystemClock::new();
    let answer = async {
        while let Some(inbound) = inbox.recv().await {
            if inbound.readable_text() == "stop" {
                stop.cancel();
            }
            clock.sleep(Duration::from_millis(delay)).await;
            let content = reply(&inbound);
            if let Err(error) = terminal.send(SendRequest::new(&inbound.chat, &content)).await {
                eprintln!("not sent: {error}");
            }
        }
    };
    let (ended, ()) = tokio::join!(terminal.run(Arc::new(Sink(events)), stop.clone()), answer);
    Ok(ended?)
}
