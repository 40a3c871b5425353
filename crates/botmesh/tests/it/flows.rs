//! Guided conversations, across restarts and changed code.

use std::time::Duration;

use botmesh::core::inbound::{Inbound, Participant};
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, MigrateError, OnIncompatible};
use botmesh_testing::Fault;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::{Life, Stage};

#[derive(Default, Serialize, Deserialize)]
struct Person {
    name: String,
    age: u32,
}

impl FlowState for Person {}

fn signup() -> Flow<Person> {
    flow("signup")
        .ask("name", "name?", |person: &mut Person, answer| {
            person.name = answer.text().to_owned();
            if person.name.len() < 2 { Err("too short".into()) } else { Ok(()) }
        })
        .label("age")
        .ask(
            "age",
            |person: &Person| format!("{}, how old?", person.name),
            |person: &mut Person, answer| {
                person.age = answer.text().parse().map_err(|_| "a number, please")?;
                Ok(())
            },
        )
        .timeout(Duration::from_secs(300))
        .do_("check", |c| async move {
            if c.get(|person| person.age) < 18 {
                c.say("adults only").await?;
                return Ok(Step::Goto("age"));
            }
            Ok(Step::Next)
        })
        .say(|person: &Person| format!("welcome {} of {}", person.name, person.age))
        .cancel_on(["stop"], "stopped")
        .on_timeout("too late")
}

fn with(flow: Flow<Person>) -> impl FnOnce(BotBuilder) -> BotBuilder {
    move |bot| {
        bot.when("start", |c: Ctx| async move {
            c.enter("signup");
            c.reply("first").await
        })
        .otherwise(|c: Ctx| async move { c.reply(format!("? {}", c.text())).await })
        .flow(flow)
    }
}

#[tokio::test]
async fn it_asks_checks_branches_and_ends() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(with(signup()));
    for (n, (say, replies)) in [
        ("start", vec!["first", "name?"]),
        ("A", vec!["too short"]),
        ("Ana", vec!["Ana, how old?"]),
        ("old", vec!["a number, please"]),
        ("7", vec!["adults only", "Ana, how old?"]),
        ("30", vec!["welcome Ana of 30"]),
        ("30", vec!["? 30"]),
        ("start", vec!["first", "name?"]),
        ("STÓP", vec!["stopped"]),
        ("more", vec!["? more"]),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(life.say(&format!("m{n}"), say, replies.len()).await, replies, "{say}");
        life.settled().await;
    }
    life.stop().await;
}

#[tokio::test]
async fn a_persistent_flow_goes_on_after_a_restart_and_another_is_forgotten() {
    for (flow, reply) in [(signup().persistent(), "Ana, how old?"), (signup(), "? Ana")] {
        let persistent = reply != "? Ana";
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(with(flow));
        life.say("m1", "start", 2).await;
        life.settled().await;
        life.kill().await;
        let life = stage.start(with(if persistent { signup().persistent() } else { signup() }));
        life.settled().await;
        assert_eq!(stage.channel.texts_to("ana").len(), 2, "it asked again");
        assert_eq!(life.say("m2", "Ana", 1).await, [reply]);
        life.stop().await;
    }
}

#[tokio::test]
async fn a_wait_ends_in_time_also_across_a_restart() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(with(signup().persistent()));
    life.say("m1", "start", 2).await;
    life.say("m2", "Ana", 1).await;
    life.settled().await;
    stage.clock.advance(Duration::from_secs(299)).await;
    life.kill().await;
    let mut life = stage.start(with(signup().persistent()));
    life.until("the end of the wait", || stage.channel.texts_to("ana").len() == 4).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana")[3], "too late");
    assert!(life.event_names().contains(&"flow:timeout"));
    assert_eq!(life.say("m3", "30", 1).await, ["? 30"]);
    life.stop().await;
}

#[tokio::test]
async fn everybody_in_a_group_has_a_conversation_of_their_own() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(with(signup()));
    let says = |event: &str, who: &str, text: &str| {
        let mut inbound = Inbound::text(event, "group", text);
        inbound.group = true;
        inbound.sender = Some(Participant::new(who));
        inbound
    };
    assert!(life.deliver(says("1", "ana", "start")).await);
    life.until("ana's question", || stage.channel.texts_to("group").len() == 2).await;
    assert!(life.deliver(says("2", "bob", "Bob")).await);
    life.until("bob's answer", || stage.channel.texts_to("group").len() == 3).await;
    assert!(life.deliver(says("3", "ana", "Ana")).await);
    life.until("ana's next question", || stage.channel.texts_to("group").len() == 4).await;
    assert_eq!(stage.channel.texts_to("group")[2..], ["? Bob", "Ana, how old?"]);
    life.stop().await;
}

#[derive(Default, Serialize, Deserialize)]
struct NewPerson {
    full_name: String,
}

impl FlowState for NewPerson {
    const VERSION: u32 = 2;

    fn migrate(from: u32, state: Value) -> Result<Value, MigrateError> {
        match (from, state["name"].as_str()) {
            (1, Some(name)) if name != "unlucky" => Ok(json!({ "full_name": name })),
            _ => Err(MigrateError("no name".to_owned())),
        }
    }
}

fn new_signup(step: &'static str, policy: OnIncompatible) -> impl FnOnce(BotBuilder) -> BotBuilder {
    move |bot| {
        let flow = flow::<NewPerson>("signup")
            .ask("name", "name again?", |_, _| Ok(()))
            .ask(step, "?", |_, _| Ok(()))
            .say(|person: &NewPerson| format!("welcome {}", person.full_name))
            .on_incompatible(policy)
            .persistent();
        bot.otherwise(|c: Ctx| async move { c.reply(format!("? {}", c.text())).await }).flow(flow)
    }
}

#[tokio::test]
async fn changed_code_never_locks_a_user_out() {
    let notify = || OnIncompatible::Notify(Box::new(Content::text("sorry")));
    for (name, step, policy, reply) in [
        ("Ana", "age", OnIncompatible::Restart, "welcome Ana"),
        ("unlucky", "age", OnIncompatible::Restart, "name again?"),
        ("unlucky", "age", OnIncompatible::Drop, "? 30"),
        ("unlucky", "age", notify(), "sorry"),
        ("Ana", "renamed", OnIncompatible::Restart, "name again?"),
        ("Ana", "renamed", OnIncompatible::Drop, "? 30"),
    ] {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(with(signup().persistent()));
        life.say("m1", "start", 2).await;
        life.say("m2", name, 1).await;
        life.settled().await;
        life.stop().await;
        let mut life = stage.start(new_signup(step, policy));
        assert_eq!(life.say("m3", "30", 1).await, [reply], "{name} {step}");
        let told = life.event_names().contains(&"flow:incompatible");
        assert_eq!(told, reply != "welcome Ana");
        life.settled().await;
        life.say("m4", "on", 1).await;
        life.stop().await;
    }
}

#[tokio::test]
async fn a_flow_that_is_gone_frees_its_users() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(with(signup().persistent()));
    life.say("m1", "start", 2).await;
    life.settled().await;
    life.stop().await;
    let life = stage.start(|bot| {
        let other = flow::<()>("other").ask("x", "x?", |(), _| Ok(())).persistent();
        bot.otherwise(|c: Ctx| async move { c.reply("free").await }).flow(other)
    });
    assert_eq!(life.say("m2", "Ana", 1).await, ["free"]);
    life.stop().await;
}

#[test]
fn a_flow_that_cannot_work_is_refused_by_name() {
    let refused = |flow: Flow<()>| {
        let bot = Bot::builder().shared_provider(std::sync::Arc::new(botmesh_testing::MockProvider::new()));
        let error =
            bot.otherwise(|_: Ctx| async {}).flow(flow).build().expect_err("a broken flow").to_string();
        assert!(error.starts_with("flow `f`: "), "{error}");
        error
    };
    assert!(refused(flow("f")).contains("no steps"));
    assert!(refused(flow("f").label("a").say("x").goto("b")).contains("`b`"));
    assert!(refused(flow("f").label("a").say("x").label("a").say("y")).contains("twice"));
    assert!(refused(flow("f").ask("q", "?", |(), _| Ok(())).ask("q", "?", |(), _| Ok(()))).contains("`q`"));
    let twice = Bot::builder()
        .shared_provider(std::sync::Arc::new(botmesh_testing::MockProvider::new()))
        .otherwise(|_: Ctx| async {})
        .flow(flow::<()>("f").say("x"))
        .flow(flow::<()>("f").say("y"));
    assert!(twice.build().expect_err("two of a name").to_string().contains("registered twice"));
    assert!(refused(flow("f").say("x").timeout(Duration::from_secs(1))).contains("timeout"));
}

/// A chat with the bot where every second message comes before the answer to the first.
async fn hurry(life: &Life, texts: &[&str]) {
    for (n, text) in texts.iter().enumerate() {
        assert!(life.deliver(Inbound::text(format!("h{n}"), "ana", *text)).await);
    }
}

#[tokio::test]
async fn a_store_that_fails_once_mixes_no_answers_up() {
    let mut failed = 0;
    loop {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(with(signup().persistent()));
        life.store.fail_write(failed + 1);
        hurry(&life, &["start", "Ana", "30", "more"]).await;
        life.until("all replies", || stage.channel.texts_to("ana").len() >= 5).await;
        life.settled().await;
        stage.clock.advance(Duration::from_secs(60)).await;
        let transcript = stage.channel.transcript();
        let replies = ["first", "name?", "Ana, how old?", "welcome Ana of 30", "? more"];
        assert_eq!(stage.channel.texts_to("ana"), replies, "write {failed}\n{transcript}");
        if life.store.writes() <= failed {
            break;
        }
        failed += 1;
        life.stop().await;
    }
    assert!(failed > 3, "only {failed} writes");
}

/// Counts to the number it is told, in the ways a flow can go on.
#[derive(Default, Serialize, Deserialize)]
struct Left(u32);

impl FlowState for Left {}

fn counter() -> Flow<Left> {
    flow("counter")
        .label("again")
        .ask("target", "how far?", |left: &mut Left, answer| {
            left.0 = answer.text().parse().map_err(|_| "a number, please")?;
            Ok(())
        })
        .do_("count", |c| async move {
            let left = c.get(|left| left.0);
            match left {
                0 => return Ok(Step::Next),
                13 => return Ok(Step::End),
                14 => return Ok(Step::Goto("nowhere")),
                15 => return Err("broken".into()),
                16 => return Ok(Step::Repeat),
                _ => {}
            }
            c.say(left.to_string()).await?;
            c.update(|left| left.0 -= 1);
            Ok(Step::Repeat)
        })
        .say("zero")
        .goto("last")
        .say("never")
        .label("last")
        .say("done")
        .end()
        .say("never")
}

fn counting(flow: Flow<Left>) -> impl FnOnce(BotBuilder) -> BotBuilder {
    move |bot| {
        bot.when("start", |c: Ctx| async move { c.enter("counter") })
            .otherwise(|c: Ctx| async move { c.reply(format!("? {}", c.text())).await })
            .flow(flow)
    }
}

#[tokio::test]
async fn steps_repeat_jump_and_end() {
    for flow in [counter(), counter().persistent()] {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(counting(flow));
        assert_eq!(life.say("m1", "start", 1).await, ["how far?"]);
        assert_eq!(life.say("m2", "2", 4).await, ["2", "1", "zero", "done"]);
        assert_eq!(life.say("m3", "2", 1).await, ["? 2"]);
        assert_eq!(life.say("m4", "start", 1).await, ["how far?"]);
        assert!(life.deliver(Inbound::text("m5", "ana", "13")).await);
        assert_eq!(life.say("m6", "free", 1).await, ["? free"]);
        life.stop().await;
    }
}

#[tokio::test]
async fn a_step_that_fails_is_told_and_leaves_nobody_stuck() {
    for persistent in [false, true] {
        for wrong in ["14", "15", "16"] {
            let stage = Stage::new(Resolve::Never);
            let flow = if persistent { counter().persistent() } else { counter() };
            let mut life = stage.start(counting(flow));
            assert_eq!(life.say("m1", "start", 1).await, ["how far?"]);
            assert!(life.deliver(Inbound::text("m2", "ana", wrong)).await);
            life.settled().await;
            assert!(life.event_names().contains(&"error"), "{wrong}");
            if persistent && wrong == "16" {
                // It stands in the step that fails, which gets one more chance; then it is over.
                assert_eq!(life.say("m3", "1", 1).await, ["? 1"]);
            } else {
                // The question is still open.
                assert_eq!(life.say("m3", "1", 3).await, ["1", "zero", "done"], "{wrong}");
            }
            life.stop().await;
        }
    }
}

#[tokio::test]
async fn a_flow_that_is_not_there_is_told_and_the_bot_goes_on() {
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(|bot| {
        bot.when("start", |c: Ctx| async move { c.enter("elsewhere") })
            .otherwise(|c: Ctx| async move { c.reply("fine").await })
            .flow(signup())
    });
    assert!(life.deliver(Inbound::text("m1", "ana", "start")).await);
    assert_eq!(life.say("m2", "hi", 1).await, ["fine"]);
    let errors: Vec<String> =
        std::iter::from_fn(|| life.events.try_recv().ok()).map(|event| event.to_string()).collect();
    assert!(
        errors.iter().any(|error| error.contains("`elsewhere`") && error.contains("signup")),
        "{errors:?}"
    );
    life.stop().await;
}

#[tokio::test]
async fn a_flow_begins_with_the_state_it_is_given() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| {
        bot.when("start", |c: Ctx| async move {
            c.enter_with("signup", &Person { name: "Eva".to_owned(), age: 0 })
        })
        .when("wrong", |c: Ctx| async move { c.enter_with("signup", &"text") })
        .otherwise(|c: Ctx| async move { c.reply("fine").await })
        .flow(flow::<Person>("signup").say(|person: &Person| format!("hello {}", person.name)))
    });
    assert_eq!(life.say("m1", "start", 1).await, ["hello Eva"]);
    assert!(life.deliver(Inbound::text("m2", "ana", "wrong")).await);
    assert_eq!(life.say("m3", "hi", 1).await, ["fine"]);
    life.stop().await;
}

#[tokio::test]
async fn a_wait_that_is_over_does_not_take_the_next_message() {
    for persistent in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let flow = if persistent { signup().persistent() } else { signup() };
        let life = stage.start(with(flow));
        life.say("m1", "start", 2).await;
        life.say("m2", "Ana", 1).await;
        life.settled().await;
        stage.clock.advance(Duration::from_secs(302)).await;
        assert_eq!(stage.channel.texts_to("ana")[3..], ["too late"]);
        assert_eq!(life.say("m3", "30", 1).await, ["? 30"]);
        stage.clock.advance(Duration::from_secs(600)).await;
        assert_eq!(stage.channel.texts_to("ana").len(), 5);
        life.stop().await;
    }
}

#[tokio::test]
async fn the_end_of_a_wait_is_said_once_whichever_write_is_the_last() {
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        for n in 1.. {
            let stage = Stage::new(Resolve::Lookup);
            let life = stage.start(with(signup().persistent()));
            life.say("m1", "start", 2).await;
            life.say("m2", "Ana", 1).await;
            life.settled().await;
            stage.clock.advance(Duration::from_secs(280)).await;
            life.journal.fail_commit(life.journal.commits() + n, fault);
            stage.clock.advance(Duration::from_secs(30)).await;
            if !life.journal.crashed() {
                break;
            }
            life.kill().await;
            let life = stage.start(with(signup().persistent()));
            stage.clock.advance(Duration::from_secs(30)).await;
            assert_eq!(stage.channel.texts_to("ana")[3..], ["too late"], "{fault:?} at {n}");
            assert_eq!(life.say("m3", "30", 1).await, ["? 30"]);
            life.stop().await;
        }
    }
}

#[tokio::test]
async fn a_clock_set_back_over_a_restart_keeps_every_conversation() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(with(signup().persistent()));
    life.say("m1", "start", 2).await;
    life.settled().await;
    life.kill().await;
    stage.clock.step_wall(-3_600_000);
    let life = stage.start(with(signup().persistent()));
    assert_eq!(life.say("m2", "Ana", 1).await, ["Ana, how old?"]);
    assert_eq!(life.say("m3", "30", 1).await, ["welcome Ana of 30"]);
    life.settled().await;
    life.stop().await;
}
