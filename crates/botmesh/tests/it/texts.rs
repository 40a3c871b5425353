//! What a bot says of itself is in the language of the chat.

use botmesh::core::inbound::Inbound;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Text, Texts};

use crate::support::{Life, Stage};

fn apologises(bot: BotBuilder) -> BotBuilder {
    bot.when(regex("^speak (.+)$"), |c: Ctx| async move { c.set_language(c.arg(1)).await }).otherwise(
        |c: Ctx| async move {
            let sorry = c.text_of(Text::Interrupted).await;
            c.reply(sorry).await
        },
    )
}

/// Says something as somebody who has set this language in the channel.
async fn say(life: &Life, event: &str, language: Option<&str>, text: &str) {
    let mut inbound = Inbound::text(event, "ana", text);
    inbound.sender.as_mut().expect("a sender").language = language.map(str::to_owned);
    assert!(life.deliver(inbound).await);
    life.settled().await;
}

/// How the replies to Ana begin.
fn beginnings(stage: &Stage) -> Vec<String> {
    let first_word = |text: &String| text.split([' ', ',']).next().unwrap_or_default().to_owned();
    stage.channel.texts_to("ana").iter().map(first_word).collect()
}

#[tokio::test]
async fn a_text_is_in_the_language_of_the_chat_and_a_chosen_one_wins() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(apologises);
    for (event, language) in [("1", None), ("2", Some("en-US")), ("3", Some("es-AR")), ("4", Some("pt_BR"))] {
        say(&life, event, language, "hi").await;
    }
    say(&life, "5", Some("es"), "speak pt-PT").await;
    say(&life, "6", Some("es"), "hi").await;
    assert_eq!(beginnings(&stage), ["Sorry", "Sorry", "Lo", "Desculpe", "Desculpe"]);
    life.stop().await;
}

#[tokio::test]
async fn a_bot_has_texts_of_its_own_and_a_default_language() {
    let stage = Stage::new(Resolve::Never);
    let texts = Texts::default()
        .with("fr", Text::Interrupted, "Désolé, c’est interrompu.")
        .with("es", Text::Interrupted, "Perdón, se cortó.")
        .with_default_language("fr");
    let life = stage.start(|bot| apologises(bot).texts(texts));
    for (event, language) in [("1", None), ("2", Some("es-AR")), ("3", Some("en")), ("4", Some("de"))] {
        say(&life, event, language, "hi").await;
    }
    assert_eq!(beginnings(&stage), ["Désolé", "Perdón", "Sorry", "Désolé"]);
    life.stop().await;
}

#[tokio::test]
async fn a_store_that_fails_costs_the_chosen_language_but_not_the_text() {
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(apologises);
    say(&life, "1", Some("es"), "speak pt").await;
    life.event_names();
    life.store.set_down(true);
    say(&life, "2", Some("es"), "hi").await;
    say(&life, "3", None, "hi").await;
    assert_eq!(life.event_names(), ["error"]);
    life.store.set_down(false);
    say(&life, "4", Some("es"), "hi").await;
    assert_eq!(life.event_names(), ["recovered"]);
    assert_eq!(beginnings(&stage), ["Lo", "Sorry", "Desculpe"]);
    life.stop().await;
}
