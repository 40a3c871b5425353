//! A support desk as one `async fn` that survives being killed: it runs again from what it did and goes on.
//!
//! `cargo run --example desk`, then type `help me`. Kill it at any moment, start it again and answer.

use std::process::ExitCode;

use botmesh::prelude::*;
use botmesh_sqlite_store::SqliteStore;
use botmesh_terminal::Terminal;
use clap::Parser;

/// A support desk that forgets no customer.
#[derive(Parser)]
struct Args {
    /// Where unfinished conversations and journals are kept
    #[arg(long, value_name = "FILE", default_value = "data/desk.db")]
    data: std::path::PathBuf,
}

async fn desk(c: Conv) -> Result {
    let topics = [Button::new("order", "An order"), Button::new("other", "Something else")];
    let topic = c.ask(Content::text("What is it about?").with_buttons(topics)).await?;
    if topic.button() == Some("order") || topic.is(&["an order", "order"]) {
        let number = c
            .ask("Which number does the order have?")
            .check(|answer| answer.text().parse::<u32>().map_err(|_| "Digits only, please.".into()))
            .await?;
        // What differs from run to run is run by name: its result is kept.
        let status: String = c.run("look the order up", async || look_up(number)).await?;
        c.say(format!("Order {number} is {status}.")).await?;
        if c.ask("Does that help?").await?.is(&["yes", "y"]) {
            c.say("Good. Have a nice day!").await?;
            return Ok(());
        }
    }
    let problem = c.ask("Tell me in your own words.").await?;
    let ticket: i64 = c.run("open a ticket", async || c.user().increment("tickets", 1).await).await?;
    c.say(format!("I noted: {:?}. It is your ticket number {ticket}.", problem.text())).await?;
    Ok(())
}

/// What another service would know.
fn look_up(order: u32) -> Result<String> {
    Ok(if order.is_multiple_of(2) { "on its way" } else { "being packed" }.to_owned())
}

async fn run(args: Args) -> Result {
    let store = SqliteStore::open(&args.data).await?;
    let desk = conversation("desk", desk).replayable().cancel_on(["stop"], "All right.");
    let bot = Bot::builder()
        .provider(Terminal::new().with_hint("Write `help me`."))
        .durability(Durability::new(store.durability()).with_instance_id("desk"))
        .store(store.clone())
        .when("help me", |c: Ctx| async move { c.enter("desk") })
        .otherwise(|c: Ctx| async move { c.reply("Write `help me`.").await })
        .add_conversation(desk)
        .build()?;
    bot.run().await?;
    Ok(store.close().await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("desk: {}", botmesh::describe(&*error));
            ExitCode::FAILURE
        }
    }
}
