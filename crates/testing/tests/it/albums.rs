//! The recipes for albums of the documentation: what comes as several messages is gathered, and answered once.

use botmesh::BotBuilder;
use botmesh::prelude::*;
use botmesh_core::inbound::{InboundBody, InboundMedia};
use botmesh_testing::{CrashPoint, TestBot, TestUser, WritePoint};
use serde::{Deserialize, Serialize};

/// Case C37: keeps each picture, and asks once in an album whether this is all.
async fn keep(c: Ctx) -> Result {
    let mut pictures: Vec<String> = c.user().get("pictures").await?.unwrap_or_default();
    pictures.push(c.inbound().message_id().to_string());
    c.user().set("pictures", &pictures).await?;
    let album = c.media().and_then(|media| media.album.clone());
    let asked: Option<String> = c.user().get("album").await?.flatten();
    if album.is_none() || album != asked {
        c.user().set("album", &album).await?;
        c.reply(Content::text("Is that all?").with_buttons([Button::new("all", "That is all")])).await?;
    }
    Ok(())
}

async fn all(c: Ctx) -> Result {
    let pictures: Vec<String> = c.user().get("pictures").await?.unwrap_or_default();
    c.user().set("pictures", &Vec::<String>::new()).await?;
    c.reply(format!("{} pictures", pictures.len())).await?;
    Ok(())
}

fn studio(bot: BotBuilder) -> BotBuilder {
    bot.when(IMAGE, keep)
        .when(interaction("all"), all)
        .otherwise(|c: Ctx| async move { c.reply("A picture?").await })
}

async fn sends_a_picture(ana: &TestUser, album: &str, picture: u8) {
    let media = InboundMedia { album: Some(album.to_owned()), ..ana.upload(vec![picture], "image/jpeg") };
    ana.sends(InboundBody::Image(media)).await;
}

#[tokio::test]
async fn the_pictures_of_an_album_are_gathered_and_answered_once_wherever_the_bot_crashes() {
    let crashes = [WritePoint::InboxInsertWorking, WritePoint::InboxFinish];
    for (crash, at) in crashes.into_iter().flat_map(|crash| (0..3).map(move |at| (crash, at))) {
        let bot = TestBot::new(studio);
        let ana = bot.user("ana");
        for picture in 0..3u8 {
            if picture == at {
                bot.crash_before(CrashPoint::from(crash));
            }
            sends_a_picture(&ana, "13", picture).await;
            assert_eq!(bot.has_crashed(), picture == at, "{crash} of {at}");
            if bot.has_crashed() {
                bot.restart().await;
            }
        }
        ana.expect_reply("Is that all?").await;
        ana.expect_silence().await;
        ana.presses("That is all").await;
        ana.expect_reply("3 pictures").await;
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Album {
    id: String,
    pictures: Vec<String>,
}

/// Case C37: keeps each picture, and has the album answered a second after the last one.
async fn gather(c: Ctx) -> Result {
    let picture = c.inbound().message_id().to_string();
    let id = c.media().and_then(|media| media.album.clone()).unwrap_or_else(|| picture.clone());
    let mut album: Album = c.user().get("album").await?.unwrap_or_default();
    if album.id != id {
        album = Album { id, pictures: Vec::new() };
    }
    album.pictures.push(picture);
    c.user().set("album", &album).await?;
    let _ = c.tasks().cancel("album", &album.id).await?;
    let done = (c.chat(), &album);
    c.tasks().after(Duration::from_secs(1), "album", &album.id, &done).await?;
    Ok(())
}

async fn complete(c: TaskCtx) -> Result {
    let (chat, album): (String, Album) = c.payload()?;
    c.send(chat, format!("{} pictures", album.pictures.len())).await?;
    Ok(())
}

#[tokio::test]
async fn an_album_is_complete_a_second_after_its_last_picture_wherever_the_bot_crashes() {
    let points = WritePoint::ALL.iter().map(|point| Some(CrashPoint::from(*point)));
    let mut crashes = 0;
    for (crash, at) in points.chain([None]).flat_map(|crash| (0..3).map(move |at| (crash, at))) {
        let bot = TestBot::new(|bot: BotBuilder| {
            bot.when(IMAGE, gather).task("album", Schedule::on_demand(), complete)
        });
        let ana = bot.user("ana");
        for picture in 0..3 {
            if let Some(crash) = crash.filter(|_| picture == at) {
                bot.crash_before(crash);
            }
            sends_a_picture(&ana, "13", picture).await;
            bot.advance("300ms").await;
            if bot.has_crashed() {
                crashes += 1;
                bot.restart().await;
            }
        }
        ana.expect_silence().await;
        bot.advance("3s").await;
        if bot.has_crashed() {
            crashes += 1;
            bot.restart().await;
            bot.advance("3s").await;
        }
        assert_eq!(bot.channel().texts_to("ana"), ["3 pictures"], "{crash:?} at {at}\n{}", bot.transcript());

        sends_a_picture(&ana, "14", 0).await;
        bot.advance("3s").await;
        assert_eq!(bot.channel().texts_to("ana")[1..], ["1 pictures"]);
    }
    assert!(crashes >= 9, "only {crashes} crashes");
}
