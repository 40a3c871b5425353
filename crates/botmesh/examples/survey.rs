//! A survey with buttons and pictures, as one `async fn`.
//!
//! `cargo run --example survey`, then type `survey`. A terminal has no pictures: press the button by typing `skip`.

use std::process::ExitCode;

use botmesh::prelude::*;
use botmesh_terminal::Terminal;

async fn survey(c: Conv) -> Result {
    c.idle(Duration::from_secs(30), "Take your time. `stop` ends the survey.");
    let choice = Content::text("Which one do you like?")
        .with_buttons([Button::new("tea", "Tea"), Button::new("coffee", "Coffee")]);
    let drink = c
        .ask(choice)
        .check(|answer| match answer.button() {
            Some(button) => Ok(button.to_owned()),
            None if answer.is(&["tea", "coffee"]) => Ok(answer.text().to_lowercase()),
            None => Err("Tea or coffee?".into()),
        })
        .await?;
    let cups = c
        .ask(format!("How many cups of {drink} a day?"))
        .timeout(Duration::from_secs(300))
        .check(|answer| answer.text().parse::<u32>().map_err(|_| "A whole number, please.".into()))
        .await?;
    let request = Content::text("Send me a picture of your cup.").with_buttons([Button::new("skip", "Skip")]);
    let cup = c.ask(request).await?;
    let picture = match cup.media() {
        Some(_) => c.ctx().load_media().await.map(|bytes| format!("a picture of {} bytes", bytes.len())),
        None => None,
    };
    let picture = picture.unwrap_or_else(|| "no picture".to_owned());
    c.say(format!("{cups} cups of {drink}, and {picture}. Thank you!")).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    let survey = conversation("survey", survey)
        .cancel_on(["stop"], "All right, no survey.")
        .on_timeout("You were away for too long. Write `survey` to begin again.");
    let bot = Bot::builder()
        .provider(Terminal::new().with_hint("Write `survey`."))
        .when("survey", |c: Ctx| async move { c.enter("survey") })
        .otherwise(|c: Ctx| async move { c.reply("Write `survey`.").await })
        .add_conversation(survey)
        .build();
    let ended = match bot {
        Ok(bot) => bot.run().await,
        Err(error) => Err(error.into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("survey: {}", botmesh::describe(&*error));
            ExitCode::FAILURE
        }
    }
}
