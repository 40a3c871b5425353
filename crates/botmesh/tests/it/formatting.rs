//! One formatted text, as each channel shows it.

use botmesh::core::content::{ContentBody, MediaSource, OutboundMedia};
use botmesh::core::markup::Markup;
use botmesh::core::provider::{Capabilities, Resolve, TextLimit, TextUnit};
use botmesh::prelude::*;
use botmesh_testing::MockProvider;

use crate::support::{Life, Stage};

fn stage(markup: Markup, max: usize) -> Stage {
    let mut stage = Stage::new(Resolve::Never);
    let mut capabilities = Capabilities::default();
    capabilities.markup = markup;
    capabilities.text_limit = Some(TextLimit { max, unit: TextUnit::Utf16 });
    stage.channel = MockProvider::with_capabilities(capabilities);
    stage
}

/// What the channel was sent, in parts.
async fn sent(stage: &Stage, life: &Life, parts: usize) -> Vec<Formatted> {
    life.say("m1", "hi", parts).await;
    life.settled().await;
    stage.channel.delivered().iter().map(|sent| sent.content.formatted()).collect()
}

fn menu(bot: botmesh::BotBuilder) -> botmesh::BotBuilder {
    bot.otherwise(|c: Ctx| async move {
        let name = Formatted::escape("*Ana*");
        let text = Formatted::parse(&format!("Hello **{name}**, see [the menu](https://x.org)"));
        c.reply(Content::from(text).with_buttons([Button::new("y", "Yes")])).await
    })
}

#[tokio::test]
async fn each_channel_gets_what_it_shows() {
    let spans = Formatted::from("Hello ")
        + Formatted::styled("*Ana*", Style::Bold)
        + ", see "
        + Formatted::styled("the menu", Style::Link { url: "https://x.org".to_owned() });
    for (markup, expected) in [
        (Markup::Plain, "Hello *Ana*, see the menu (https://x.org)".into()),
        (Markup::WhatsApp, "Hello *∗Ana∗*, see the menu (https://x.org)".into()),
        (Markup::Spans, spans),
    ] {
        let stage = stage(markup, 100);
        let life = stage.start(menu);
        assert_eq!(sent(&stage, &life, 1).await, [expected]);
        assert_eq!(stage.channel.delivered()[0].content.buttons.len(), 1);
        life.stop().await;
    }
}

#[tokio::test]
async fn a_style_goes_on_in_the_next_part_and_through_a_crash() {
    for (markup, expected) in [
        (Markup::Spans, ["aaa bbb", "ccc ddd"].map(|part| Formatted::styled(part, Style::Bold)).to_vec()),
        (Markup::WhatsApp, ["*aaa*", "*bbb*", "*ccc*", "*ddd*"].map(Formatted::from).to_vec()),
    ] {
        let stage = stage(markup, 8);
        stage.channel.hang_next();
        let bold = |bot: botmesh::BotBuilder| {
            bot.otherwise(|c: Ctx| async move { c.reply(Formatted::parse("**aaa bbb ccc ddd**")).await })
        };
        let life = stage.start(bold);
        assert!(life.deliver(botmesh::core::inbound::Inbound::text("m1", "ana", "hi")).await);
        stage.channel.wait_for_hanging(1).await;
        life.kill().await;
        stage.channel.release();
        let life = stage.start(bold);
        let last = expected.last().map(Formatted::text).map(str::to_owned);
        life.until("the last part", || stage.channel.texts_to("ana").last().cloned() == last).await;
        let told: Vec<_> = stage.channel.delivered().iter().map(|sent| sent.content.formatted()).collect();
        assert!(told.ends_with(&expected[1..]), "{told:?}");
        life.stop().await;
    }
}

#[tokio::test]
async fn a_text_without_formatting_goes_out_as_it_is() {
    let stage = stage(Markup::WhatsApp, 100);
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply("*as it is* _a_").await }));
    assert_eq!(sent(&stage, &life, 1).await, [Formatted::from("*as it is* _a_")]);
    life.stop().await;
}

fn picture(caption: &str) -> Content {
    let source = MediaSource::Url("https://x.org/cat.png".to_owned());
    let media = OutboundMedia { source, caption: None, mime: None, file_name: None };
    Content::from(ContentBody::Image(media)).with_text(Formatted::parse(caption)).in_reply_to("m0")
}

#[tokio::test]
async fn a_caption_that_is_too_long_follows_its_picture_as_a_text() {
    for (caption, shown) in [
        ("a **cat**", vec!["[image] a cat"]),
        ("a **cat** on a very long mat", vec!["[image] ", "a cat on a", "very long", "mat"]),
    ] {
        let mut capabilities = Capabilities::default();
        capabilities.markup = Markup::Spans;
        capabilities.text_limit = Some(TextLimit { max: 12, unit: TextUnit::Utf16 });
        capabilities.caption_limit = Some(TextLimit { max: 6, unit: TextUnit::Utf16 });
        let mut stage = Stage::new(Resolve::Never);
        stage.channel = MockProvider::with_capabilities(capabilities);
        let content = picture(caption).with_buttons([Button::new("y", "Yes")]);
        let life = stage.start(move |bot| {
            bot.otherwise(move |c: Ctx| {
                let content = content.clone();
                async move { c.reply(content).await }
            })
        });
        life.say("m1", "hi", shown.len()).await;
        life.settled().await;
        let sent: Vec<Content> = stage.channel.delivered().into_iter().map(|sent| sent.content).collect();
        let texts: Vec<String> = sent
            .iter()
            .map(|content| match &content.body {
                ContentBody::Image(_) => format!("[image] {}", content.readable_text()),
                _ => content.readable_text().to_owned(),
            })
            .collect();
        assert_eq!(texts, shown);
        assert_eq!(sent[0].reply_to, Some("m0".into()));
        let buttons: Vec<usize> = sent.iter().map(|content| content.buttons.len()).collect();
        assert_eq!(buttons.iter().sum::<usize>(), 1);
        assert_eq!(buttons.last(), Some(&1), "they go with the last");
        life.stop().await;
    }
}

#[tokio::test]
async fn where_media_has_no_caption_its_words_follow_it() {
    let media = |caption: &str| {
        let source = MediaSource::Url("https://x.org/file".to_owned());
        OutboundMedia { source, caption: Some(caption.to_owned()), mime: None, file_name: None }
    };
    let mut capabilities = Capabilities::default();
    capabilities.audio_captions = false;
    let mut stage = Stage::new(Resolve::Never);
    stage.channel = MockProvider::with_capabilities(capabilities);
    let life = stage.start(move |bot| {
        bot.otherwise(move |c: Ctx| async move {
            c.reply(Content::from(ContentBody::Audio(media("a song")))).await?;
            c.reply(Content::from(ContentBody::Sticker(media("a cat")))).await?;
            c.reply(Content::from(ContentBody::Video(media("a film")))).await
        })
    });
    life.say("m1", "hi", 5).await;
    life.settled().await;
    let sent = stage.channel.delivered().into_iter().map(|sent| {
        let kind = match &sent.content.body {
            ContentBody::Audio(_) => "audio",
            ContentBody::Sticker(_) => "sticker",
            ContentBody::Video(_) => "video",
            ContentBody::Text { .. } => "text",
            _ => "other",
        };
        (kind, sent.content.readable_text().to_owned())
    });
    let expected =
        [("audio", ""), ("text", "a song"), ("sticker", ""), ("text", "a cat"), ("video", "a film")];
    assert_eq!(sent.collect::<Vec<_>>(), expected.map(|(kind, text)| (kind, text.to_owned())));
    life.stop().await;
}
