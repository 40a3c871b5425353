//! One replica connects a channel that permits one connection, and the others stand by. The cases of a letter and a number
//! are known failures of other systems.

use std::time::Duration;

use botmesh::core::coordinator::MemoryHub;
use botmesh::core::entropy::{Entropy, SeededEntropy};
use botmesh::core::error::LeaseLostReason;
use botmesh::core::inbound::Inbound;
use botmesh::core::memory::MemoryStore;
use botmesh::core::provider::{AdmitError, Capabilities};
use botmesh::prelude::*;
use botmesh::{
    BotBuilder, Coordination, CoordinationConfig, FollowerReason, LeadError, ProviderSession, ReplicaRole,
};
use botmesh_testing::{MockProvider, TestBot, TestBotOptions, VirtualClock, containing};
use futures_util::FutureExt;

/// A channel that permits one connection.
pub(crate) fn exclusive() -> MockProvider {
    let mut capabilities = Capabilities::default();
    capabilities.exclusive_session = true;
    MockProvider::with_capabilities(capabilities)
}

fn replicas(count: usize) -> TestBotOptions {
    TestBot::replicas(count).channel(exclusive())
}

fn echo(replica: usize, bot: BotBuilder) -> BotBuilder {
    bot.otherwise(move |c: Ctx| async move { c.reply(format!("{} at {replica}", c.text())).await })
}

/// Lets the bot come to rest.
pub(crate) async fn rest(bot: &TestBot) {
    bot.advance(Duration::from_millis(1)).await;
}

pub(crate) fn followed(bot: &TestBot, replica: usize) -> Vec<FollowerReason> {
    let told = bot.replica(replica).events().into_iter();
    told.filter_map(|event| match event {
        BotEvent::Follower { reason, .. } => Some(reason),
        _ => None,
    })
    .collect()
}

pub(crate) fn count(bot: &TestBot, replica: usize, name: &str) -> usize {
    bot.replica(replica).events().iter().filter(|event| event.name() == name).count()
}

#[tokio::test]
async fn one_replica_connects_and_the_others_stand_by() {
    let bot = replicas(3).start_each(echo);
    rest(&bot).await;
    assert_eq!(bot.channel().connections(), [1]);
    let leads = [1, 2, 3].map(|replica| count(&bot, replica, "coordination:leader"));
    assert_eq!(leads, [1, 0, 0]);
    assert_eq!(followed(&bot, 1), []);
    assert_eq!([2, 3].map(|replica| followed(&bot, replica)), [[FollowerReason::StandingBy]; 2]);
    let roles = [1, 2].map(|replica| bot.replica(replica).bot().coordination().unwrap().role);
    assert!(matches!(roles, [ReplicaRole::Leader { .. }, ReplicaRole::Standby]), "{roles:?}");
    let ana = bot.user("ana");
    ana.through(2).says("hi").await;
    ana.expect_reply("hi at 1").await;
}

#[tokio::test]
async fn every_replica_connects_where_the_channel_permits_it_or_the_operator_wants_it() {
    let shared =
        CoordinationConfig { provider_session: ProviderSession::Shared, ..CoordinationConfig::default() };
    let leader =
        CoordinationConfig { provider_session: ProviderSession::Leader, ..CoordinationConfig::default() };
    for (options, connections) in [
        (TestBot::replicas(2), vec![1, 2]),
        (TestBot::replicas(2).coordination(leader), vec![1]),
        (replicas(2).coordination(shared), vec![1, 2]),
    ] {
        let bot = options.start_each(echo);
        rest(&bot).await;
        assert_eq!(bot.channel().connections(), connections);
    }
}

#[tokio::test]
async fn a_bot_without_coordination_connects_an_exclusive_channel() {
    let bot = TestBot::options().channel(exclusive()).start(|bot| echo(1, bot));
    let ana = bot.user("ana");
    ana.says("hi").await;
    ana.expect_reply("hi at 1").await;
    assert!(bot.bot().coordination().is_none());
}

#[tokio::test]
async fn f09_after_a_clean_stop_the_next_replica_connects_at_once() {
    let bot = replicas(2).start_each(echo);
    rest(&bot).await;
    let before = bot.elapsed();
    bot.replica(1).stop().await;
    rest(&bot).await;
    assert_eq!(bot.channel().connected(), [2]);
    assert!(bot.elapsed() - before < Duration::from_millis(200), "{}", bot.transcript());
    bot.replica(1).restart().await;
    assert_eq!(bot.channel().connected(), [2], "who comes back stands by");
    let ana = bot.user("ana");
    ana.says("hi").await;
    ana.expect_reply("hi at 2").await;
}

#[tokio::test]
async fn f09_after_a_crash_the_next_replica_connects_when_the_margin_is_over() {
    let bot = replicas(3).start_each(echo);
    rest(&bot).await;
    bot.replica(1).crash();
    bot.advance("900ms").await;
    assert!(bot.channel().connected().is_empty(), "the last leader may not have noticed yet");
    bot.advance("200ms").await;
    assert_eq!(bot.channel().connected(), [2]);
    let ana = bot.user("ana");
    ana.says("hi").await;
    ana.expect_reply("hi at 2").await;
}

#[tokio::test]
async fn f11_a_leader_that_stood_still_takes_nothing_over_and_is_cut_when_it_goes_on() {
    let bot = replicas(2).start_each(echo);
    rest(&bot).await;
    let frozen = bot.replica(1);
    frozen.freeze();
    bot.advance("45s").await;
    assert_eq!(bot.channel().connected(), [1, 2], "who stands still cannot close a connection");
    // A frame that came meanwhile, and is read before anything else happens.
    let taken_over = frozen.channel().deliver(Inbound::text("late", "ana", "hello?")).await;
    assert!(matches!(taken_over, Err(AdmitError::NotLeader)), "{taken_over:?}");
    let sent = frozen.bot().send("ana", "psst").await;
    assert!(matches!(sent, Err(SendError::NotLeader(_) | SendError::LeaseLost(_))), "{sent:?}");
    frozen.thaw().await;
    assert_eq!(bot.channel().connected(), [2]);
    assert_eq!(followed(&bot, 1), [FollowerReason::LeaseLost(LeaseLostReason::Expired)]);
    bot.user("ana").expect_silence().await;
    bot.replica(2).stop().await;
    bot.advance("5s").await;
    assert_eq!(bot.channel().connected(), [1], "it stands by and takes over again");
}

#[tokio::test]
async fn f07_a_standby_whose_session_died_campaigns_under_its_new_one() {
    let bot = replicas(2).start_each(echo);
    rest(&bot).await;
    bot.replica(2).freeze();
    bot.advance("30s").await;
    bot.replica(2).thaw().await;
    bot.advance("5s").await;
    assert_eq!(bot.channel().connections(), [1]);
    bot.replica(1).stop().await;
    bot.advance("5s").await;
    assert_eq!(bot.channel().connected(), [2]);
    assert_eq!(count(&bot, 2, "error"), 1, "{}", bot.transcript());
    assert_eq!(count(&bot, 2, "recovered"), 1);
}

#[tokio::test]
async fn f01_never_are_two_connected_over_50_random_restarts() {
    for seed in [1, 2] {
        let bot = replicas(3).seed(seed).start_each(echo);
        let (dice, ana) = (SeededEntropy::new(seed), bot.user("ana"));
        let roll = |sides: u64| dice.next_u64() % sides;
        for round in 0..50 {
            let replica = bot.replica(roll(3) as usize + 1);
            match roll(3) {
                0 => replica.stop().await,
                1 => replica.crash(),
                _ => {}
            }
            if roll(2) == 0 {
                bot.advance(Duration::from_millis(roll(3_000))).await;
            }
            replica.restart().await;
            ana.says(format!("round {round}")).await;
            ana.expect_reply(containing(format!("round {round} at"))).await;
            assert!(bot.channel().connected().len() == 1, "{}", bot.transcript());
        }
        assert_eq!(bot.channel().overlaps(), 0, "seed {seed}: {}", bot.transcript());
        let leaders = bot.channel().connections();
        assert!(leaders.len() > 10 && [1, 2, 3].iter().all(|replica| leaders.contains(replica)));
    }
}

#[tokio::test]
async fn a_leader_whose_channel_stays_down_lets_another_replica_try() {
    let bot = replicas(2).start_each(echo);
    rest(&bot).await;
    let channel = bot.replica(1).channel();
    channel.set_reachable(false);
    bot.advance("50s").await;
    channel.set_reachable(true);
    bot.advance("50s").await;
    assert_eq!(bot.channel().connected(), [1], "it came back in time");
    channel.set_reachable(false);
    bot.advance("61s").await;
    assert_eq!(bot.channel().connected(), [2]);
    assert_eq!(followed(&bot, 1), [FollowerReason::ChannelDown]);
    channel.set_reachable(true);
    bot.advance("10m").await;
    assert_eq!(bot.channel().connected(), [2], "it stands behind the one that works");
    assert!(!bot.events().iter().any(|event| event.name() == "coordination:leader-unhealthy"));
    bot.replica(2).stop().await;
    bot.advance("1s").await;
    assert_eq!(bot.channel().connected(), [1]);
}

#[tokio::test]
async fn f05_a_channel_that_is_down_for_everybody_is_tried_less_and_less_and_told_of_once() {
    let bot = replicas(2).start_each(echo);
    for replica in [1, 2] {
        bot.replica(replica).channel().set_reachable(false);
    }
    let leaders = || [1, 2].map(|replica| count(&bot, replica, "coordination:leader"));
    bot.advance("1h").await;
    let first_hour = leaders();
    bot.advance("1h").await;
    for (first, all) in first_hour.into_iter().zip(leaders()) {
        let second = all - first;
        // A minute of trying, and then 5 to 6 of rest.
        assert!((7..=10).contains(&second) && first > second, "{first}, {second}: {}", bot.transcript());
    }
    let told = [1, 2].map(|replica| count(&bot, replica, "coordination:leader-unhealthy"));
    assert_eq!(told, [1, 1]);
    for replica in [1, 2] {
        bot.replica(replica).channel().set_reachable(true);
    }
    bot.advance("7m").await;
    assert_eq!(bot.channel().connected().len(), 1);
    assert_eq!(bot.channel().overlaps(), 0);
}

#[tokio::test]
async fn ready_pends_until_the_replica_has_connected() {
    let bot = replicas(2).start_each(echo);
    let is_ready =
        |replica: usize| bot.replica(replica).does(|bot| async move { bot.ready().now_or_never().is_some() });
    assert_eq!([is_ready(1).await, is_ready(2).await], [Some(true), Some(false)]);
    bot.replica(1).channel().set_reachable(false);
    assert_eq!(is_ready(1).await, Some(false));
    bot.replica(1).stop().await;
    assert_eq!(is_ready(2).await, Some(true));
}

#[tokio::test]
async fn one_replica_at_a_time_leads_a_job() {
    let bot = TestBot::replicas(2).start_each(echo);
    let lead = |replica: usize| {
        bot.replica(replica).does(|bot| async move { bot.try_lead("report").await.unwrap() })
    };
    let first = lead(1).await.unwrap().unwrap();
    assert_eq!((first.name(), first.check()), ("report", Ok(())));
    assert!(lead(2).await.unwrap().is_none());
    assert!(lead(1).await.unwrap().is_none(), "not even twice in one replica");
    let fence = first.fence();
    first.release();
    let second = lead(2).await.unwrap().unwrap();
    assert!(second.fence() > fence);
    drop(second);
    let third = lead(1).await.unwrap().unwrap();
    bot.replica(1).freeze();
    assert_eq!(third.check().unwrap_err().reason, LeaseLostReason::Expired);
    assert_eq!(third.lost().await.reason, LeaseLostReason::Expired);
    assert!(lead(2).await.unwrap().is_some(), "it is free again");
}

#[tokio::test]
async fn a_job_never_takes_the_channel_and_its_name_is_checked() {
    let bot = replicas(2).start_each(echo);
    rest(&bot).await;
    let taken = bot.replica(2).does(|bot| async move { bot.try_lead("provider:mock").await.unwrap() });
    let taken = taken.await.unwrap().unwrap();
    bot.replica(1).stop().await;
    rest(&bot).await;
    assert_eq!(bot.channel().connected(), [2]);
    drop(taken);
    let named = |name: String| bot.replica(2).does(|bot| async move { bot.try_lead(name).await.map(|_| ()) });
    for name in [String::new(), "n".repeat(513)] {
        assert!(matches!(named(name).await, Some(Err(LeadError::Name { .. }))));
    }
    let unused = echo(1, Bot::builder()).provider(exclusive()).build().unwrap();
    assert!(matches!(unused.try_lead("report").await, Err(LeadError::NotRunning)));
}

#[tokio::test]
async fn replicas_of_one_id_both_work_and_are_told_of() {
    let config = CoordinationConfig { replica_id: Some("blue".to_owned()), ..CoordinationConfig::default() };
    let bot = TestBot::replicas(2).coordination(config).start_each(echo);
    bot.advance("2m").await;
    let told = [1, 2].map(|replica| count(&bot, replica, "coordination:replica-id-taken"));
    assert_eq!(told, [0, 1]);
    let ana = bot.user("ana");
    for replica in [1, 2] {
        ana.through(replica).says("hi").await;
        ana.expect_reply(format!("hi at {replica}")).await;
        assert_eq!(bot.replica(replica).bot().coordination().unwrap().replica, "blue");
    }
    bot.replica(2).restart().await;
    bot.replica(1).restart().await;
    bot.advance("2m").await;
    let told = [1, 2].map(|replica| count(&bot, replica, "coordination:replica-id-taken"));
    assert_eq!(told, [1, 1], "the other one has it now");
}

#[tokio::test]
async fn a_replica_that_lost_its_session_claims_its_id_again() {
    let config = CoordinationConfig { replica_id: Some("blue".to_owned()), ..CoordinationConfig::default() };
    let bot = TestBot::replicas(2).coordination(config).start_each(echo);
    let told = || [1, 2].map(|replica| count(&bot, replica, "coordination:replica-id-taken"));
    bot.advance("10s").await;
    bot.replica(1).freeze();
    bot.advance("30s").await;
    bot.replica(1).thaw().await;
    bot.advance("50s").await;
    assert_eq!(told(), [0, 0], "the one that stood still waits for less than a minute");
    bot.advance("20s").await;
    assert_eq!(told(), [1, 0]);
}

#[test]
fn settings_are_read_from_files_and_checked() {
    let config: CoordinationConfig = serde_json::from_str(
        r#"{"turn_wait":"30s","provider_session":"leader","provider_down":"2m","replica_id":"blue","handover":{"ttl":"1m"}}"#,
    )
    .unwrap();
    assert_eq!(config.provider_session, ProviderSession::Leader);
    assert_eq!((config.turn_wait.as_secs(), config.provider_down.as_secs()), (30, 120));
    assert!(serde_json::from_str::<CoordinationConfig>(r#"{"lease":"1s"}"#).is_err(), "there is none");
    let refused = |config: CoordinationConfig| {
        let hub = MemoryHub::new(std::sync::Arc::new(VirtualClock::new()));
        let coordination = Coordination::new(hub.coordinator(&SeededEntropy::new(1))).with_config(config);
        let bot = echo(1, Bot::builder()).provider(exclusive()).store(MemoryStore::new());
        bot.coordination(coordination).build().unwrap_err().to_string()
    };
    let default = CoordinationConfig::default;
    let short = refused(CoordinationConfig { provider_down: Duration::from_millis(5), ..default() });
    assert!(short.starts_with("coordination.provider_down: is shorter than a second"), "{short}");
    for id in [String::new(), "x".repeat(129)] {
        let refused = refused(CoordinationConfig { replica_id: Some(id), ..default() });
        assert!(refused.starts_with("coordination.replica_id: has "), "{refused}");
    }
}
