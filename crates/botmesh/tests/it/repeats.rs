//! What users repeat: tasks with a schedule that is kept with what is put down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use botmesh::core::coordinator::{Coordinator, MemoryCoordinator, MemoryHub};
use botmesh::core::entropy::SeededEntropy;
use botmesh::core::journal::InboxState;
use botmesh::core::provider::Resolve;
use botmesh::core::time::Timestamp;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Cancel, Coordination, Missed, Tasks};
use tokio::sync::Semaphore;

use crate::support::{Life, Stage};

const MINUTE: Duration = Duration::from_secs(60);

fn named(instance: &str) -> Durability {
    Durability::default().with_instance_id(instance)
}

fn tasks(life: &Life) -> Tasks {
    life.bot.tasks().expect("a bot that runs")
}

fn clock(at: Timestamp) -> String {
    at.to_string()[8..16].to_owned()
}

/// Says which of them it is, and when it was to run.
async fn remind(c: TaskCtx) -> Result {
    let text: String = c.payload()?;
    c.send("ana", format!("{text} {} +{}", clock(c.scheduled()), c.missed())).await?;
    Ok(())
}

fn reminding(bot: BotBuilder) -> BotBuilder {
    bot.task("reminder", Schedule::on_demand(), remind).when("three times an hour", |c: Ctx| async move {
        let schedule = Schedule::cron("*/20 * * * *", "Europe/Madrid");
        let put = c.tasks().repeat(&schedule, "reminder", c.chat().as_str(), "coffee").await?;
        c.reply(if put.known { "Known." } else { "Noted." }).await?;
        Ok::<_, botmesh::Error>(())
    })
}

#[tokio::test]
async fn what_is_repeated_comes_until_it_is_cancelled_on_one_of_the_replicas() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start_with(named("one"), reminding);
    assert_eq!(life.say("m1", "three times an hour", 1).await, ["Noted."]);
    assert_eq!(life.say("m2", "three times an hour", 1).await, ["Known."]);
    life.kill().await;
    let one = stage.start_with(named("one"), reminding);
    let two = stage.start_with(named("two"), reminding);
    one.started().await;
    stage.clock.advance(61 * MINUTE).await;
    let reminders = || stage.channel.texts_to("ana").split_off(2);
    assert_eq!(reminders(), ["coffee 01T00:20 +0", "coffee 01T00:40 +0", "coffee 01T01:00 +0"]);
    let waiting = tasks(&two).list(None, 10).await.expect("a listing").tasks;
    let [info] = &waiting[..] else { panic!("one record is enough: {waiting:?}") };
    let last = info.last.as_ref().expect("a last run");
    assert_eq!((info.id.as_deref(), clock(info.scheduled)), (Some("ana"), "01T01:20".into()));
    assert_eq!((clock(last.scheduled), last.attempts), ("01T01:00".into(), 1));
    assert_eq!(tasks(&two).cancel("reminder", "ana").await.expect("a decision"), Cancel::Cancelled);
    stage.clock.advance(40 * MINUTE).await;
    assert_eq!(reminders().len(), 3);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn its_own_schedule_decides_about_what_was_missed() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(reminding);
    life.started().await;
    for (id, missed) in [("skip", Missed::Skip), ("once", Missed::Once), ("all", Missed::ALL)] {
        let five = Schedule::every(5 * MINUTE).on_missed(missed);
        tasks(&life).repeat(&five, "reminder", id, id).await.expect("put down");
    }
    life.kill().await;
    stage.clock.advance(17 * MINUTE).await;
    let life = stage.start(reminding);
    stage.clock.advance(MINUTE).await;
    let mut texts = stage.channel.texts_to("ana");
    texts.sort();
    assert_eq!(
        texts,
        ["all 01T00:05 +0", "all 01T00:10 +0", "all 01T00:15 +0", "once 01T00:15 +2"],
        "nothing of what is skipped"
    );
    life.stop().await;
}

#[tokio::test]
async fn what_is_repeated_goes_on_after_one_that_was_given_up() {
    let stage = Stage::new(Resolve::Never);
    let healthy = Arc::new(AtomicBool::new(false));
    let build = |bot: BotBuilder| {
        let healthy = Arc::clone(&healthy);
        bot.task("reminder", Schedule::on_demand(), move |c: TaskCtx| {
            let healthy = healthy.load(Ordering::SeqCst);
            async move { if healthy { remind(c).await } else { Err("no ink".into()) } }
        })
    };
    let life = stage.start(build);
    life.started().await;
    let hourly = Schedule::every(60 * MINUTE);
    tasks(&life).repeat(&hourly, "reminder", "ana", "tea").await.expect("put down");
    stage.clock.advance(90 * MINUTE).await;
    healthy.store(true, Ordering::SeqCst);
    let dead = life.journals().inbox().list(InboxState::Dead, None, 10).await.expect("a listing").records;
    let ids: Vec<&str> = dead.iter().map(|stored| stored.record.id.as_str()).collect();
    assert_eq!(ids, ["s/botmesh:task:reminder:ana/2026-01-01T01:00:00.000Z"]);
    let info = tasks(&life).get("reminder", Some("ana")).await.expect("a look").expect("it goes on");
    assert_eq!(info.last.and_then(|last| last.error).as_deref(), Some("no ink"));
    let _ = life.journals().replay_inbound(ids[0].to_owned()).await.expect("a replay");
    stage.clock.advance(90 * MINUTE).await;
    let expected = ["tea 01T01:00 +0", "tea 01T02:00 +0", "tea 01T03:00 +0"];
    assert_eq!(stage.channel.texts_to("ana"), expected);
    let waiting = tasks(&life).list(None, 10).await.expect("a listing").tasks;
    assert_eq!(waiting.len(), 1, "the one that was replayed is not repeated by itself: {waiting:?}");
    life.stop().await;
}

#[tokio::test]
async fn what_cannot_be_repeated_is_refused_with_what_to_do() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(reminding);
    life.started().await;
    let rows = [
        (Schedule::on_demand(), "task", "`Schedule::every`"),
        (Schedule::every(Duration::from_millis(500)), "task `reminder`.every", "durability.poll"),
        (Schedule::cron("0 25 * * *", "UTC"), "task `reminder`.cron", "`0 25 * * *`"),
        (Schedule::cron("0 9 * * *", "Mars/Base"), "task `reminder`.zone", "`Mars/Base`"),
        (Schedule::cron(format!("{} * * * *", "1,".repeat(999)), "UTC"), "2006 bytes", "ranges"),
    ];
    for (schedule, what, fix) in rows {
        let refused = tasks(&life).repeat(&schedule, "reminder", "x", "tea").await.expect_err("a refusal");
        let refused = refused.to_string();
        assert!(refused.contains(what) && refused.contains(fix), "{refused}");
    }
    let none = tasks(&life).repeat(&Schedule::every(MINUTE), "reminding", "x", "tea").await;
    assert!(none.expect_err("a refusal").to_string().contains("register it"));
    life.stop().await;
}

#[tokio::test]
async fn a_bot_puts_down_what_comes_once_as_soon_as_it_runs() {
    let stage = Stage::new(Resolve::Never);
    let idle = botmesh_testing::MockProvider::new();
    let built = reminding(Bot::builder().shared_provider(Arc::new(idle)).durability(Durability::default()));
    let early = built.build().expect("a bot").after(MINUTE, "reminder", "x", "tea").await;
    assert!(early.expect_err("a refusal").to_string().contains("does not run yet"));
    let life = stage.start(reminding);
    life.started().await;
    let at = "2026-01-01T00:20:00Z".parse::<jiff::Timestamp>().expect("an instant").as_millisecond();
    life.bot.after(10 * MINUTE, "reminder", "tea", "tea").await.expect("put down");
    life.bot.at(Timestamp::from_millis(at), "reminder", "cake", "cake").await.expect("put down");
    stage.clock.advance(30 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana"), ["tea 01T00:10 +0", "cake 01T00:20 +0"]);
    life.stop().await;
}

/// The second run goes through the chats the other way round.
#[tokio::test]
async fn what_a_task_sends_under_a_name_is_known_again_in_another_order() {
    let stage = Stage::new(Resolve::Never);
    let build = |bot: BotBuilder| {
        bot.task("news", Schedule::on_demand(), |c: TaskCtx| async move {
            let mut chats = vec!["ana", "luis", "eva"];
            if c.attempt() > 1 {
                chats.reverse();
            }
            for chat in chats {
                c.send_named(chat, chat, format!("news for {chat}")).await?;
                if (c.attempt(), chat) == (1, "luis") {
                    return Err("no ink".into());
                }
            }
            Ok::<_, botmesh::Error>(())
        })
    };
    let life = stage.start(build);
    life.started().await;
    life.bot.after(MINUTE, "news", "x", &()).await.expect("put down");
    stage.clock.advance(5 * MINUTE).await;
    for chat in ["ana", "luis", "eva"] {
        assert_eq!(stage.channel.texts_to(chat), [format!("news for {chat}")]);
    }
    life.stop().await;
}

/// Replicas that share the chats share the tasks as well; what has no name runs in each of them.
#[tokio::test]
async fn with_a_coordinator_each_occurrence_still_runs_on_one_of_the_replicas() {
    let stage = Stage::new(Resolve::Never);
    let hub = MemoryHub::new(Arc::new(stage.clock.clone()));
    let coordinator = |seed| Arc::new(hub.coordinator(&SeededEntropy::new(seed)));
    let go_on = Arc::new(Semaphore::new(1));
    let build = |name: &'static str, coordinator: &Arc<MemoryCoordinator>| {
        let (coordinator, go_on): (Arc<dyn Coordinator>, _) = (coordinator.clone(), Arc::clone(&go_on));
        move |bot: BotBuilder| {
            let task = move |c: TaskCtx| {
                let go_on = Arc::clone(&go_on);
                async move {
                    c.send("ana", clock(c.scheduled())).await?;
                    go_on.acquire().await?.forget();
                    Ok::<_, botmesh::Error>(())
                }
            };
            bot.coordination(Coordination::shared(coordinator))
                .task("report", Schedule::every(5 * MINUTE).on_missed(Missed::ALL), task)
                .every(5 * MINUTE, move |c: TaskCtx| async move { c.send(name, clock(c.scheduled())).await })
        }
    };
    let killed = coordinator(1);
    let one = stage.start_with(named("one"), build("one", &killed));
    stage.clock.advance(11 * MINUTE).await;
    // The one of 00:10 stands still on the one that is killed now.
    let two = stage.start_with(named("two"), build("two", &coordinator(2)));
    two.started().await;
    assert_eq!(stage.channel.texts_to("ana"), ["01T00:05", "01T00:10"]);
    one.kill().await;
    killed.crash();
    go_on.add_permits(9);
    stage.clock.advance(10 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana"), ["01T00:05", "01T00:10", "01T00:15", "01T00:20"]);
    assert_eq!(two.bot.metrics().task_runs, 3, "the one that was cut short runs again");
    assert_eq!(stage.channel.texts_to("one"), ["01T00:05", "01T00:10"]);
    let one = stage.start_with(named("one"), build("one", &coordinator(3)));
    stage.clock.advance(10 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana").split_off(4), ["01T00:25", "01T00:30"]);
    assert_eq!(stage.channel.texts_to("one").split_off(2), ["01T00:25", "01T00:30"]);
    let everywhere = ["01T00:15", "01T00:20", "01T00:25", "01T00:30"];
    assert_eq!(stage.channel.texts_to("two"), everywhere);
    one.stop().await;
    two.stop().await;
}
