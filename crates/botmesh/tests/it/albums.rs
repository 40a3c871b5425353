//! Albums, on channels that have them and on others.

use botmesh::core::content::{AlbumItem, ContentBody, MediaSource, OutboundMedia};
use botmesh::core::markup::Markup;
use botmesh::core::provider::{Capabilities, Resolve, TextLimit, TextUnit};
use botmesh::prelude::*;
use botmesh_testing::MockProvider;

use crate::support::Stage;

fn album(items: usize, caption: &str) -> Content {
    let media =
        OutboundMedia { source: MediaSource::Id("1".into()), caption: None, mime: None, file_name: None };
    let items = (0..items).map(|n| match n {
        1 => AlbumItem::Video(media.clone()),
        _ => AlbumItem::Image(media.clone()),
    });
    Content::album(items).with_text(Formatted::parse(caption)).in_reply_to("m0")
}

fn shown(content: &Content) -> String {
    let kind = match &content.body {
        ContentBody::Image(_) => "[image] ",
        ContentBody::Video(_) => "[video] ",
        ContentBody::Album { items } => return format!("[{}] {}", items.len(), content.readable_text()),
        _ => "",
    };
    format!("{kind}{}", content.readable_text())
}

async fn answer(c: Ctx, reply: Content) -> Result {
    if c.reply(reply).await.is_err() {
        c.reply("refused").await?;
    }
    Ok(())
}

/// What the channel is sent of a reply.
async fn sent(albums: bool, reply: Content, messages: usize) -> Vec<Content> {
    let mut capabilities = Capabilities::default();
    capabilities.albums = albums;
    capabilities.markup = Markup::Spans;
    capabilities.caption_limit = Some(TextLimit { max: 6, unit: TextUnit::Utf16 });
    let mut stage = Stage::new(Resolve::Never);
    stage.channel = MockProvider::with_capabilities(capabilities);
    let life = stage.start(move |bot| {
        bot.otherwise(move |c: Ctx| {
            let reply = reply.clone();
            async move { answer(c, reply).await }
        })
    });
    life.say("m1", "hi", messages).await;
    life.settled().await;
    life.stop().await;
    stage.channel.delivered().into_iter().map(|sent| sent.content).collect()
}

#[tokio::test]
async fn an_album_is_one_send_or_one_for_each_item_and_its_buttons_come_last() {
    let yes = || [Button::new("y", "Yes")];
    for (albums, reply, expected) in [
        (true, album(3, "a **cat**"), vec!["[3] a cat"]),
        (true, album(3, ""), vec!["[3] "]),
        (true, album(3, "a **black** cat"), vec!["[3] ", "a black cat"]),
        (true, album(2, "a **cat**").with_buttons(yes()), vec!["[2] ", "a cat"]),
        (false, album(3, "a **cat**"), vec!["[image] a cat", "[video] ", "[image] "]),
        (false, album(2, "a **black** cat").with_buttons(yes()), vec!["[image] ", "a black cat", "[video] "]),
    ] {
        let buttons = reply.buttons.len();
        let spans = reply.spans.len();
        let sent = sent(albums, reply, expected.len()).await;
        assert_eq!(sent.iter().map(shown).collect::<Vec<_>>(), expected);
        assert_eq!(sent[0].reply_to, Some("m0".into()));
        assert_eq!(sent.iter().map(|content| content.spans.len()).sum::<usize>(), spans, "{expected:?}");
        assert_eq!(sent.last().map(|last| last.buttons.len()), Some(buttons), "{expected:?}");
    }
}

#[tokio::test]
async fn an_album_of_too_few_or_too_many_items_or_with_buttons_alone_is_refused() {
    for albums in [false, true] {
        for items in [0, 1, 11] {
            assert_eq!(sent(albums, album(items, ""), 1).await[0].readable_text(), "refused", "{items}");
        }
    }
    let buttons = album(2, "").with_buttons([Button::new("y", "Yes")]);
    assert_eq!(sent(true, buttons, 1).await[0].readable_text(), "refused");
}
