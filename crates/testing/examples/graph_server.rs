//! Meta's server on a port of this host, for clients in any language.
//!
//! `cargo run -p botmesh-testing --example graph_server`. Each line typed here shows what users got since; `/block` makes them
//! block the bot.

use std::io::{BufRead, Write};

use botmesh_testing::{FakeGraph, GraphProduct};

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let server = runtime.block_on(FakeGraph::start());
    let users = [
        server.whatsapp_user("Ana", "15551234567"),
        server.user(GraphProduct::Messenger, "Ben", "24000000000001"),
    ];
    say(&format!("url {}", server.url()));
    say(&format!("phone_number_id {}", FakeGraph::PHONE_NUMBER_ID));
    say(&format!("page_token {}", FakeGraph::PAGE_TOKEN));
    say(&format!("token {}", FakeGraph::ACCESS_TOKEN));
    let mut shown = 0;
    for line in std::io::stdin().lock().lines() {
        if line? == "/block" {
            users.iter().for_each(|user| user.blocks());
        }
        let delivered = server.delivered();
        delivered[shown..].iter().for_each(|message| say(&format!("bot: {}", message.text())));
        shown = delivered.len();
        say(&format!("shown {shown} and {} other calls", server.other_calls().len()));
    }
    Ok(())
}

fn say(line: &str) {
    println!("{line}");
    // A pipe shows a line when it is whole.
    let _ = std::io::stdout().flush();
}
