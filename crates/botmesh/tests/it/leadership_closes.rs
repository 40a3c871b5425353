//! What becomes of a channel that closes its connection itself: for somebody else, or for good. The cases of a letter and a
//! number are known failures of other systems.

use std::time::Duration;

use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::prelude::*;
use botmesh::{BotBuilder, CoordinationConfig, FollowerReason, ProviderSession, ReplicaRole};
use botmesh_testing::{MockProvider, TestBot};

use crate::leadership::{count, exclusive, followed, rest};

fn conflict() -> ChannelError {
    ChannelError::new(ErrorClass::Conflict, Phase::Answered, "terminated by another poll")
}

fn logged_out() -> ChannelError {
    ChannelError::new(ErrorClass::LoggedOut, Phase::Answered, "the device was removed")
}

fn quiet(_: usize, bot: BotBuilder) -> BotBuilder {
    bot.otherwise(async |c: Ctx| c.reply("hi").await)
}

fn role(bot: &TestBot, replica: usize) -> ReplicaRole {
    bot.replica(replica).bot().coordination().expect("a replica").role
}

/// Somebody else, who connects a second after every connection of the bot.
async fn fight(bot: &TestBot, seconds: u64) {
    for _ in 0..seconds {
        bot.advance("1s").await;
        for replica in bot.channel().connected() {
            bot.replica(replica).channel().disconnect(conflict());
        }
    }
    rest(bot).await;
}

#[tokio::test]
async fn f01_a_leader_whose_channel_went_to_somebody_else_gives_way_for_at_least_half_a_minute() {
    let bot = TestBot::replicas(2).channel(exclusive()).start_each(quiet);
    rest(&bot).await;
    bot.replica(1).channel().disconnect(conflict());
    rest(&bot).await;
    assert_eq!(bot.channel().connected(), [2], "the standby tries at once");
    assert_eq!(followed(&bot, 1), [FollowerReason::Conflict]);
    assert!(bot.transcript().contains("terminated by another poll"), "{}", bot.transcript());
    bot.replica(2).channel().disconnect(conflict());
    bot.advance("29s").await;
    assert!(bot.channel().connected().is_empty(), "{}", bot.transcript());
    bot.advance("20s").await;
    assert_eq!(bot.channel().connected().len(), 1);
    assert_eq!(bot.channel().connections().len(), 3);
    let ana = bot.user("ana");
    ana.says("hello").await;
    ana.expect_reply("hi").await;
}

#[tokio::test]
async fn two_bots_that_replace_each_other_do_it_less_and_less() {
    let shared =
        CoordinationConfig { provider_session: ProviderSession::Shared, ..CoordinationConfig::default() };
    for options in [TestBot::replicas(2), TestBot::replicas(2).coordination(shared)] {
        let bot = options.channel(exclusive()).start_each(quiet);
        fight(&bot, 3600).await;
        let first = bot.channel().connections().len();
        fight(&bot, 3600).await;
        let second = bot.channel().connections().len() - first;
        // Two replicas, each with 5 to 7.5 minutes between two tries in the end.
        assert!((16..=24).contains(&second) && second < first && first < 40, "{first}, {second}");
    }
}

#[tokio::test]
async fn who_kept_the_channel_for_long_gives_way_for_short_again() {
    let bot = TestBot::replicas(1).channel(exclusive()).start_each(quiet);
    fight(&bot, 3600).await;
    bot.advance("20m").await;
    assert_eq!(bot.channel().connected(), [1]);
    fight(&bot, 1).await;
    assert!(bot.channel().connected().is_empty());
    bot.advance("46s").await;
    assert_eq!(bot.channel().connected(), [1], "{}", bot.transcript());
}

#[tokio::test]
async fn a_replica_that_was_logged_out_is_no_candidate_until_somebody_acts() {
    let bot = TestBot::replicas(2).channel(exclusive()).start_each(quiet);
    rest(&bot).await;
    bot.replica(1).channel().disconnect(logged_out());
    rest(&bot).await;
    assert_eq!(bot.channel().connected(), [2]);
    assert_eq!(followed(&bot, 1), [FollowerReason::LoggedOut]);
    assert_eq!(count(&bot, 1, "coordination:logged-out"), 1);
    assert_eq!(role(&bot, 1), ReplicaRole::LoggedOut);
    bot.replica(2).stop().await;
    bot.advance("1h").await;
    assert!(bot.channel().connected().is_empty(), "{}", bot.transcript());
    assert_eq!(count(&bot, 1, "coordination:logged-out"), 1, "it is told once");
    let acted = bot.replica(1).does(|bot| async move { [bot.logged_in(), bot.logged_in()] }).await;
    assert_eq!(acted, Some([true, false]));
    rest(&bot).await;
    assert_eq!(bot.channel().connections(), [1, 2, 1], "one connection, however often it is asked for");
    assert!(matches!(role(&bot, 1), ReplicaRole::Leader { .. }));
    bot.replica(1).channel().disconnect(logged_out());
    rest(&bot).await;
    bot.replica(1).restart().await;
    rest(&bot).await;
    assert_eq!(bot.channel().connected(), [1], "a new process tries what it has");
}

#[tokio::test]
async fn what_a_logged_out_replica_was_asked_goes_out_through_the_next_leader() {
    let bot = TestBot::replicas(2).channel(exclusive()).start_each(quiet);
    rest(&bot).await;
    bot.channel().fail_next(logged_out());
    let ana = bot.user("ana");
    ana.says("hello").await;
    bot.replica(1).channel().disconnect(logged_out());
    ana.expect_reply("hi").await;
    assert_eq!(bot.channel().delivered().last().unwrap().replica, 2);
}

#[tokio::test]
async fn a_replica_that_was_logged_out_stops_in_good_order() {
    let bot = TestBot::replicas(1).channel(exclusive()).start_each(quiet);
    rest(&bot).await;
    bot.replica(1).channel().disconnect(logged_out());
    rest(&bot).await;
    bot.replica(1).stop().await;
    bot.replica(1).restart().await;
    bot.replica(1).channel().disconnect(conflict());
    rest(&bot).await;
    bot.replica(1).stop().await;
}

#[tokio::test]
async fn f03_two_starts_at_once_give_one_connection() {
    let channel = MockProvider::new();
    let built = quiet(1, Bot::builder()).provider(channel.clone()).build().unwrap();
    let again = built.clone();
    let ended = tokio::join!(built.run(), again.run(), async {
        built.ready().await;
        tokio::task::yield_now().await;
        assert_eq!(channel.connections(), [1]);
        built.stop();
    });
    assert!(ended.0.is_ok());
    assert!(ended.1.unwrap_err().to_string().contains("already"), "the second start is refused");
    assert_eq!((channel.connections(), channel.overlaps()), (vec![1], 0));
}

#[tokio::test]
async fn f13_nobody_waits_a_lease_for_a_leader_that_is_long_dead() {
    let bot = TestBot::replicas(2).channel(exclusive()).start_each(quiet);
    rest(&bot).await;
    bot.replica(2).stop().await;
    bot.replica(1).crash();
    bot.advance("1h").await;
    let before = bot.elapsed();
    bot.replica(2).restart().await;
    while bot.channel().connected().is_empty() {
        bot.advance("50ms").await;
    }
    assert!(
        bot.elapsed() - before < Duration::from_millis(1200),
        "more than the margin: {}",
        bot.transcript()
    );
}
