//! The recipe for albums of the documentation: what comes as several messages is gathered, and answered once.

use botmesh::BotBuilder;
use botmesh::prelude::*;
use botmesh_core::inbound::{InboundBody, InboundMedia};
use botmesh_testing::{CrashPoint, TestBot, WritePoint};

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
            let media =
                InboundMedia { album: Some("13".to_owned()), ..ana.upload(vec![picture], "image/jpeg") };
            ana.sends(InboundBody::Image(media)).await;
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
