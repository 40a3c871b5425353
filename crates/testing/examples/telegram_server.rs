//! A Bot API server on a port of this host, for bots in any language: what is typed here, a user writes to the bot.
//!
//! `cargo run -p botmesh-testing --example telegram_server`. A line that begins with `/press ` presses a button.

use std::io::{BufRead, Write};

use botmesh_testing::FakeTelegram;
use tokio::sync::mpsc;

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (lines, mut typed) = mpsc::channel::<String>(64);
    std::thread::Builder::new().name("keyboard".into()).spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    })?;
    runtime.block_on(async {
        let server = FakeTelegram::start().await;
        let ana = server.user(5_025_045_066, "Ana");
        say(&format!("url {}", server.url()));
        say(&format!("token {}", server.token()));
        let mut shown = 0;
        loop {
            let line = tokio::select! {
                line = typed.recv() => line,
                () = server.changed() => {
                    let replies = ana.replies();
                    replies[shown..].iter().for_each(|reply| say(&format!("bot: {reply}")));
                    shown = replies.len();
                    continue;
                }
            };
            match line.as_deref().map(|line| (line, line.strip_prefix("/press "))) {
                None => return,
                Some((_, Some(button))) => drop(ana.presses(button)),
                Some((text, None)) => drop(ana.writes(text)),
            }
        }
    });
    Ok(())
}

fn say(line: &str) {
    println!("{line}");
    // A pipe shows a line when it is whole.
    let _ = std::io::stdout().flush();
}
