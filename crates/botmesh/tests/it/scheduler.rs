//! Tasks: each occurrence once, whatever happens to the processes that run them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use botmesh::core::inbound::Inbound;
use botmesh::core::journal::InboxState;
use botmesh::core::provider::Resolve;
use botmesh::core::time::{Clock, Timestamp};
use botmesh::prelude::*;
use botmesh::{BotBuilder, Cancel, Missed, Tasks};
use botmesh_testing::MockProvider;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::support::{Life, Stage};

const MINUTE: Duration = Duration::from_secs(60);

fn named(instance: &str) -> Durability {
    Durability::default().with_instance_id(instance)
}

fn tasks(life: &Life) -> Tasks {
    life.bot.tasks().expect("a bot that runs")
}

/// Hours and minutes of an instant, as `10:05`.
fn clock(at: Timestamp) -> String {
    at.to_string()[11..16].to_owned()
}

/// Writes to `ana` when it was to run, and how many were missed before.
async fn report(c: TaskCtx) -> Result {
    c.send("ana", format!("{} +{}", clock(c.scheduled()), c.missed())).await?;
    Ok(())
}

fn reporting(schedule: Schedule) -> impl FnOnce(BotBuilder) -> BotBuilder {
    move |bot| bot.task("report", schedule, report)
}

fn every_five(missed: Missed) -> Schedule {
    Schedule::every(5 * MINUTE).on_missed(missed)
}

#[tokio::test]
async fn each_occurrence_runs_on_one_of_the_replicas() {
    let stage = Stage::new(Resolve::Never);
    let one = stage.start_with(named("one"), reporting(every_five(Missed::Once)));
    let two = stage.start_with(named("two"), reporting(every_five(Missed::Once)));
    stage.clock.advance(21 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana"), ["00:05 +0", "00:10 +0", "00:15 +0", "00:20 +0"]);
    assert_eq!(one.bot.metrics().task_runs + two.bot.metrics().task_runs, 4);
    one.kill().await;
    stage.clock.advance(5 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana").split_off(4), ["00:25 +0"], "by the other one");
    two.stop().await;
}

#[tokio::test]
async fn an_occurrence_cut_short_by_a_crash_runs_again_and_sends_nothing_twice() {
    let stage = Stage::new(Resolve::Never);
    let cut_short = |c: TaskCtx| async move {
        c.send("ana", format!("first {}", clock(c.scheduled()))).await?;
        std::future::pending::<Result>().await
    };
    let life = stage.start(|bot| bot.task("report", every_five(Missed::Once), cut_short));
    stage.clock.advance(5 * MINUTE + Duration::from_secs(2)).await;
    assert_eq!(stage.channel.texts_to("ana"), ["first 00:05"]);
    life.kill().await;
    stage.clock.advance(7 * MINUTE).await;
    let life = stage.start(|bot| {
        bot.task("report", every_five(Missed::Once), |c: TaskCtx| async move {
            c.send("ana", format!("first {}", clock(c.scheduled()))).await?;
            c.send("ana", format!("second, attempt {}", c.attempt())).await
        })
    });
    life.until("the runs", || stage.channel.texts_to("ana").len() == 4).await;
    let expected = ["first 00:05", "second, attempt 2", "first 00:10", "second, attempt 1"];
    assert_eq!(stage.channel.texts_to("ana"), expected);
    life.stop().await;
}

/// What runs at 01:02 after the process was down since 00:06, and the number of events about it.
async fn after_downtime(missed: Missed) -> (Vec<String>, usize) {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(reporting(every_five(missed)));
    stage.clock.advance(6 * MINUTE).await;
    life.stop().await;
    stage.clock.advance(56 * MINUTE).await;
    let mut life = stage.start(reporting(every_five(missed)));
    stage.clock.advance(4 * MINUTE).await;
    let told = life.event_names().into_iter().filter(|name| *name == "scheduler:missed").count();
    life.stop().await;
    (stage.channel.texts_to("ana"), told)
}

#[tokio::test]
async fn what_was_missed_while_nothing_ran_follows_the_policy() {
    let (texts, told) = after_downtime(Missed::Skip).await;
    assert_eq!((texts, told), (vec!["00:05 +0".into(), "01:05 +0".into()], 1));
    let (texts, told) = after_downtime(Missed::Once).await;
    assert_eq!((texts, told), (vec!["00:05 +0".into(), "01:00 +10".into(), "01:05 +0".into()], 1));
    let (texts, _) = after_downtime(Missed::All { at_most: 3 }).await;
    assert_eq!(texts, ["00:05 +0", "00:50 +8", "00:55 +0", "01:00 +0", "01:05 +0"]);
    let (texts, _) = after_downtime(Missed::ALL).await;
    assert_eq!((texts.len(), &*texts[1], &*texts[11]), (13, "00:10 +0", "01:00 +0"));
}

#[tokio::test]
async fn a_clock_that_jumps_is_like_a_downtime_and_one_that_is_set_back_repeats_nothing() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(reporting(every_five(Missed::Once)));
    stage.clock.advance(6 * MINUTE).await;
    stage.clock.step_wall(30 * 60 * 1000);
    stage.clock.advance(Duration::from_secs(2)).await;
    assert_eq!(stage.channel.texts_to("ana"), ["00:05 +0", "00:35 +5"]);
    stage.clock.step_wall(-20 * 60 * 1000);
    stage.clock.advance(23 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana"), ["00:05 +0", "00:35 +5"]);
    stage.clock.advance(2 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana").len(), 3);
    life.stop().await;
}

/// Before the network told the time, for example.
#[tokio::test]
async fn a_clock_that_was_years_ahead_and_is_set_back_does_not_silence_a_task_for_years() {
    const YEARS: i64 = 10 * 365 * 24 * 3600 * 1000;
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(reporting(every_five(Missed::Once)));
    stage.clock.advance(6 * MINUTE).await;
    stage.clock.step_wall(YEARS);
    stage.clock.advance(2 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana").len(), 2, "one for all that was jumped over");
    stage.clock.step_wall(-YEARS);
    stage.clock.advance(13 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana").split_off(2), ["00:10 +0", "00:15 +0", "00:20 +0"]);
    let set_back = |event: BotEvent| matches!(event, BotEvent::Error { context, error } if context == "task `report`" && error.contains("set back"));
    assert_eq!(
        std::iter::from_fn(|| life.events.try_recv().ok()).filter(|event| set_back(event.clone())).count(),
        1
    );
    life.stop().await;
}

#[tokio::test]
async fn a_task_longer_than_its_period_never_runs_beside_itself() {
    let stage = Stage::new(Resolve::Never);
    let go_on = Arc::new(Semaphore::new(0));
    let running = Arc::new(AtomicUsize::new(0));
    let slow = || {
        let (go_on, running) = (Arc::clone(&go_on), Arc::clone(&running));
        move |bot: BotBuilder| {
            bot.task("report", every_five(Missed::Once), move |c: TaskCtx| {
                let (go_on, running) = (Arc::clone(&go_on), Arc::clone(&running));
                async move {
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "another one runs");
                    go_on.acquire().await?.forget();
                    running.fetch_sub(1, Ordering::SeqCst);
                    report(c).await
                }
            })
        }
    };
    let one = stage.start_with(named("one"), slow());
    let two = stage.start_with(named("two"), slow());
    stage.clock.advance(18 * MINUTE).await;
    assert_eq!((running.load(Ordering::SeqCst), stage.channel.texts_to("ana").len()), (1, 0));
    go_on.add_permits(2);
    one.until("both runs", || stage.channel.texts_to("ana").len() == 2).await;
    assert_eq!(stage.channel.texts_to("ana"), ["00:05 +0", "00:15 +1"]);
    go_on.add_permits(9);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn what_fails_is_retried_then_dead_and_the_task_goes_on() {
    let stage = Stage::new(Resolve::Never);
    let healthy = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&healthy);
    let mut life = stage.start(|bot| {
        bot.task("report", Schedule::every(60 * MINUTE), move |c: TaskCtx| {
            let healthy = Arc::clone(&seen);
            async move {
                c.send("ana", format!("attempt of {}", clock(c.scheduled()))).await?;
                match healthy.load(Ordering::SeqCst) {
                    true => report(c).await,
                    false if c.attempt() == 2 => panic!("no paper"),
                    false => Err("no ink".into()),
                }
            }
        })
    });
    stage.clock.advance(90 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana"), ["attempt of 01:00"]);
    let events: Vec<BotEvent> = std::iter::from_fn(|| life.events.try_recv().ok()).collect();
    let errors = |error: &str| {
        let about = |event: &&BotEvent| matches!(event, BotEvent::Error { context, error: e } if context == "task `report`" && e == error);
        events.iter().filter(about).count()
    };
    assert_eq!((errors("no ink"), errors("panicked: no paper")), (4, 1));
    let dead = |event: &BotEvent| match event {
        BotEvent::Dead { id, error, .. } => Some((id.clone(), error.clone())),
        _ => None,
    };
    let id = "s/botmesh:task:report/2026-01-01T01:00:00.000Z".to_owned();
    assert_eq!(events.iter().filter_map(dead).collect::<Vec<_>>(), [(id.clone(), "no ink".to_owned())]);
    let info = tasks(&life).get("report", None).await.expect("a look").expect("a task");
    let last = info.last.expect("a last run");
    assert_eq!(
        (clock(info.scheduled), info.state, info.attempts),
        ("02:00".into(), InboxState::Scheduled, 0)
    );
    assert_eq!(
        (clock(last.scheduled), last.attempts, last.error.as_deref()),
        ("01:00".into(), 5, Some("no ink"))
    );

    healthy.store(true, Ordering::SeqCst);
    let _ = life.journals().replay_inbound(id).await.expect("a replay");
    life.until("the replay", || stage.channel.texts_to("ana").len() == 2).await;
    assert_eq!(stage.channel.texts_to("ana")[1], "01:00 +0", "what was sent is not sent again");
    stage.clock.advance(31 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana")[2..], ["attempt of 02:00", "02:00 +0"]);
    let last = tasks(&life).get("report", None).await.expect("a look").expect("a task").last;
    assert_eq!(last.map(|last| (last.attempts, last.error)), Some((1, None)));
    life.stop().await;
}

/// A task that kills its process is given up like a message, and goes on with its next occurrence.
#[tokio::test]
async fn an_occurrence_that_ends_the_process_each_time_is_given_up() {
    let stage = Stage::new(Resolve::Never);
    let deadly = |c: TaskCtx| async move {
        if clock(c.scheduled()) == "00:05" {
            std::future::pending::<()>().await;
        }
        report(c).await
    };
    let start = || stage.start(|bot| bot.task("report", every_five(Missed::ALL), deadly));
    let mut life = start();
    stage.clock.advance(5 * MINUTE).await;
    for _ in 0..5 {
        life.until("a run", || life.bot.metrics().task_runs == 1).await;
        life.kill().await;
        life = start();
    }
    stage.clock.advance(6 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana"), ["00:10 +0"]);
    let dead = life.journals().inbox().list(InboxState::Dead, None, 10).await.expect("a listing").records;
    let ids: Vec<&str> = dead.iter().map(|stored| stored.record.id.as_str()).collect();
    assert_eq!(ids, ["s/botmesh:task:report/2026-01-01T00:05:00.000Z"]);
    life.stop().await;
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Reminder {
    chat: String,
    text: String,
}

/// A message `remind` puts a reminder down under the id of the chat; it comes 10 minutes after the message.
fn reminding(bot: BotBuilder) -> BotBuilder {
    bot.when("remind", |c: Ctx| async move {
        let reminder = Reminder { chat: c.chat().to_string(), text: "Water the plants.".to_owned() };
        c.tasks().after(10 * MINUTE, "reminder", c.chat().as_str(), &reminder).await?;
        c.reply("Noted.").await?;
        Ok::<_, botmesh::Error>(())
    })
    .task("reminder", Schedule::on_demand(), |c: TaskCtx| async move {
        let Reminder { chat, text } = c.payload()?;
        c.send(chat, format!("{text} ({})", c.id().unwrap_or("-"))).await?;
        Ok::<_, botmesh::Error>(())
    })
}

#[tokio::test]
async fn what_a_handler_puts_down_comes_once_also_after_a_restart() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(reminding);
    life.say("m1", "remind", 1).await;
    life.say("m2", "remind", 1).await;
    let page = tasks(&life).list(None, 10).await.expect("a listing");
    let waiting: Vec<_> = page.tasks.iter().map(|info| (info.task.as_str(), info.id.as_deref())).collect();
    assert_eq!(waiting, [("reminder", Some("ana"))], "the second one under the same id is none");
    life.kill().await;
    stage.clock.advance(9 * MINUTE).await;
    let life = stage.start(reminding);
    let reminders = || stage.channel.texts_to("ana").iter().filter(|text| text.starts_with("Water")).count();
    assert_eq!(reminders(), 0);
    life.until("the reminder", || reminders() == 1).await;
    stage.clock.advance(30 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana").last().expect("a text"), "Water the plants. (ana)");
    // It ran, so that the id is free for another time.
    life.say("m3", "remind", 1).await;
    life.until("another reminder", || reminders() == 2).await;
    life.stop().await;
}

#[tokio::test]
async fn an_instant_is_known_again_by_its_id_until_another_one_is_wanted() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(reminding);
    life.started().await;
    let (tasks, now) = (tasks(&life), stage.clock.now());
    let reminder = |text: &str| Reminder { chat: "ana".to_owned(), text: text.to_owned() };
    let first = tasks.at(now + MINUTE, "reminder", "x", &reminder("one")).await.expect("put down");
    assert_eq!((first.at, first.known, first.state), (now + MINUTE, false, InboxState::Scheduled));
    let again = tasks.at(now + 2 * MINUTE, "reminder", "x", &reminder("two")).await.expect("known");
    assert_eq!((again.at, again.known), (now + MINUTE, true));
    stage.clock.advance(3 * MINUTE).await;
    let done = tasks.at(now + MINUTE, "reminder", "x", &reminder("three")).await.expect("known");
    assert_eq!((done.known, done.state), (true, InboxState::Done));
    let past = tasks.at(now + 2 * MINUTE, "reminder", "x", &reminder("four")).await.expect("put down");
    assert!(!past.known);
    life.until("the fourth", || stage.channel.texts_to("ana").len() == 2).await;
    assert_eq!(stage.channel.texts_to("ana"), ["one (x)", "four (x)"]);
    life.stop().await;
}

#[tokio::test]
async fn what_waits_is_listed_by_its_time_and_can_be_cancelled() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| reminding(reporting(every_five(Missed::Once))(bot)));
    life.started().await;
    let (tasks, now) = (tasks(&life), stage.clock.now());
    let reminder = Reminder { chat: "ana".to_owned(), text: "hi".to_owned() };
    for (id, minutes) in [("late", 30), ("soon", 2), ("later", 40)] {
        tasks.at(now + minutes * MINUTE, "reminder", id, &reminder).await.expect("put down");
    }
    life.until("the task's record", || {
        life.bot.metrics().task_runs == 0 && life.spawner.running().len() >= 3
    })
    .await;
    let first = tasks.list(None, 3).await.expect("a page");
    let second = tasks.list(first.next.as_ref(), 3).await.expect("a page");
    let ids: Vec<_> = first.tasks.iter().chain(&second.tasks).map(|info| info.id.as_deref()).collect();
    assert_eq!(ids, [Some("soon"), None, Some("late"), Some("later")]);
    assert_eq!(tasks.cancel("reminder", "late").await.expect("a decision"), Cancel::Cancelled);
    assert_eq!(tasks.cancel("reminder", "late").await.expect("a decision"), Cancel::Nothing);
    assert_eq!(tasks.skip_next("report").await.expect("a decision"), Cancel::Cancelled);
    stage.clock.advance(12 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana"), ["hi (soon)", "00:10 +0"]);
    assert_eq!(tasks.cancel("reminder", "soon").await.expect("a decision"), Cancel::Nothing);
    let unknown = tasks.cancel("remainder", "x").await.expect_err("a refusal").to_string();
    assert!(unknown.contains("`remainder`") && unknown.contains(".task("), "{unknown}");
    let error = tasks.skip_next("reminder").await.expect_err("a refusal").to_string();
    assert!(error.contains("has no schedule"), "{error}");
    let error = tasks.at(now, "reminder", "", &reminder).await.expect_err("a refusal").to_string();
    assert!(error.contains("give 1 to 256"), "{error}");
    let error =
        tasks.at(now, "reminder", "x", &"x".repeat(300_000)).await.expect_err("a refusal").to_string();
    assert!(error.contains("300002 bytes"), "{error}");
    life.stop().await;
}

#[tokio::test]
async fn a_running_occurrence_is_not_cancelled() {
    let stage = Stage::new(Resolve::Never);
    let go_on = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&go_on);
    let life = stage.start(|bot| {
        bot.task("slow", Schedule::on_demand(), move |c: TaskCtx| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await?.forget();
                c.send("ana", "done").await?;
                Ok::<_, botmesh::Error>(())
            }
        })
    });
    life.started().await;
    let tasks = tasks(&life);
    tasks.after(MINUTE, "slow", "x", &()).await.expect("put down");
    life.until("the run", || life.bot.metrics().task_runs == 1).await;
    assert_eq!(tasks.cancel("slow", "x").await.expect("a decision"), Cancel::Running);
    go_on.add_permits(1);
    life.until("its end", || stage.channel.texts_to("ana") == ["done"]).await;
    life.stop().await;
}

#[tokio::test]
async fn a_changed_schedule_counts_from_the_next_start_and_what_nobody_knows_is_given_up() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| reminding(reporting(Schedule::every(60 * MINUTE))(bot)));
    life.started().await;
    let reminder = Reminder { chat: "ana".to_owned(), text: "hi".to_owned() };
    tasks(&life).after(20 * MINUTE, "reminder", "x", &reminder).await.expect("put down");
    stage.clock.advance(MINUTE).await;
    life.stop().await;
    let mut life = stage.start(reporting(Schedule::cron("*/15 * * * *", "UTC")));
    stage.clock.advance(50 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana"), ["00:15 +0", "00:30 +0", "00:45 +0"]);
    assert!(!life.event_names().contains(&"durability:dead"), "it is left to others for an hour");
    stage.clock.advance(40 * MINUTE).await;
    let dead = life.journals().inbox().list(InboxState::Dead, None, 10).await.expect("a listing").records;
    let error = dead[0].record.error.as_deref().unwrap_or_default();
    assert_eq!((dead.len(), error.contains("no task `reminder` is registered")), (1, true), "{error}");
    life.stop().await;
    let life = stage.start(reminding);
    life.started().await;
    let _ = life.journals().replay_inbound(dead[0].record.id.clone()).await.expect("a replay");
    life.until("the reminder", || stage.channel.texts_to("ana").last().is_some_and(|text| text == "hi (x)"))
        .await;
    life.stop().await;
}

#[tokio::test]
async fn a_task_in_memory_runs_in_every_process_without_overlap_or_retry() {
    let stage = Stage::new(Resolve::Never);
    let go_on = Arc::new(Semaphore::new(1));
    let plain = |name: &'static str| {
        let go_on = Arc::clone(&go_on);
        move |bot: BotBuilder| {
            bot.otherwise(|_: Ctx| async {}).every(5 * MINUTE, move |c: TaskCtx| {
                let go_on = Arc::clone(&go_on);
                async move {
                    c.send("ana", format!("{name} {}", clock(c.scheduled()))).await?;
                    go_on.acquire().await?.forget();
                    Err::<(), botmesh::Error>("no ink".into())
                }
            })
        }
    };
    let mut one = stage.start_plain(plain("one"));
    stage.clock.advance(16 * MINUTE).await;
    assert_eq!(stage.channel.texts_to("ana"), ["one 00:05", "one 00:10"], "the second one still runs");
    assert_eq!(one.event_names().iter().filter(|name| **name == "error").count(), 1);
    go_on.add_permits(9);
    let two = stage.start_plain(plain("two"));
    stage.clock.advance(5 * MINUTE).await;
    let mut texts = stage.channel.texts_to("ana").split_off(2);
    texts.sort();
    assert_eq!(texts, ["one 00:20", "two 00:20"]);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn no_channel_can_speak_for_a_task() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| reporting(every_five(Missed::Once))(bot).otherwise(|_: Ctx| async {}));
    life.started().await;
    assert!(!life.deliver(Inbound::text("next", "botmesh:task:report", "hi")).await);
    assert!(life.deliver(Inbound::text("next", "botmesh", "hi")).await);
    life.stop().await;
}

#[test]
fn impossible_tasks_are_refused_by_name_with_what_to_do() {
    let durable =
        || Bot::builder().shared_provider(Arc::new(MockProvider::new())).durability(Durability::default());
    let refused = |bot: BotBuilder, expected: &[&str]| {
        let error = bot.build().expect_err("an impossible bot").to_string();
        for part in expected {
            assert!(error.contains(part), "`{error}` does not say `{part}`");
        }
    };
    let cron = |expression: &str, zone: &str| durable().task("t", Schedule::cron(expression, zone), report);
    refused(cron("0 9 * *", "UTC"), &["task `t`.cron", "`0 9 * *`", "0 9 * * mon-fri"]);
    refused(cron("0 25 * * *", "UTC"), &["task `t`.cron", "`0 25 * * *`"]);
    refused(cron("0 9 30 2 *", "UTC"), &["task `t`.cron", "never comes"]);
    refused(cron("0 9 * * *", "Europe/Madird"), &["task `t`.zone", "`Europe/Madird`", "Europe/Madrid"]);
    let half = Schedule::every(Duration::from_millis(500));
    refused(durable().task("t", half, report), &["task `t`.every", "durability.poll"]);
    refused(durable().task("t", Schedule::every(Duration::ZERO), report), &["task `t`.every"]);
    refused(durable().task("a:b", every_five(Missed::Once), report), &["task `a:b`", "letters, digits"]);
    let none = every_five(Missed::All { at_most: 0 });
    refused(durable().task("t", none, report), &["task `t`.on_missed", "Missed::Skip"]);
    let twice = durable().task("t", Schedule::on_demand(), report).task("t", Schedule::on_demand(), report);
    refused(twice, &["task `t`: is registered twice"]);
    let plain = || Bot::builder().shared_provider(Arc::new(MockProvider::new())).otherwise(|_: Ctx| async {});
    refused(
        plain().task("t", Schedule::on_demand(), report),
        &["task `t`: is durable", ".durability(", ".every("],
    );
    refused(plain().cron("0 9 * * *", "Mars/Base", report), &["cron.zone", "`Mars/Base`"]);
}
