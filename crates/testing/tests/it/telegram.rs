//! A bot on Telegram, from the user's side.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use botmesh::core::content::ContentBody;
use botmesh::core::coordinator::MemoryHub;
use botmesh::core::entropy::OsEntropy;
use botmesh::core::kv::DurableKv;
use botmesh::core::memory::{MemoryKv, MemoryStore};
use botmesh::core::spawn::Spawner;
use botmesh::core::time::SystemClock;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Coordination, ReplicaRole};
use botmesh_telegram::Telegram;
use botmesh_testing::{FakeTelegram, TelegramFault, TestSpawner};
use botmesh_webhook::Server;
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};

const ANA: i64 = 5_025_045_066;
const BEA: i64 = 5_025_045_067;

fn polling(server: &FakeTelegram) -> Telegram {
    Telegram::polling(server.token()).with_api_url(&server.url())
}

/// A bot with journals, while `scenario` lasts.
async fn with_bot(
    server: &FakeTelegram,
    kv: &Arc<dyn DurableKv>,
    build: impl FnOnce(BotBuilder) -> BotBuilder,
    scenario: impl AsyncFnOnce(&Bot),
) {
    let journals = Durability::new(Arc::clone(kv)).with_instance_id("one");
    let bot = build(Bot::builder().provider(polling(server)).durability(journals)).build().expect("a bot");
    let scenario = async {
        scenario(&bot).await;
        bot.stop();
    };
    let (ended, ()) = tokio::join!(bot.run(), scenario);
    ended.expect("a good end");
}

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(format!("you said {}", c.text())).await })
}

fn kv() -> Arc<dyn DurableKv> {
    Arc::new(MemoryKv::new())
}

/// Cases A, redelivery.
#[tokio::test]
async fn what_telegram_delivers_again_is_answered_once_also_after_a_restart() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let ana = server.user(ANA, "Ana");
    for life in 1..=3 {
        with_bot(&server, &kv, echo, async |_| {
            let text = format!("hello {life}");
            ana.writes(&text);
            ana.expect_reply(&format!("you said {text}")).await;
            server.redeliver();
            server.until("the second delivery", || server.unconfirmed() == 0).await;
        })
        .await;
    }
    assert_eq!(ana.replies(), ["you said hello 1", "you said hello 2", "you said hello 3"]);
}

/// Case A7.
#[tokio::test]
async fn a_slow_handler_holds_up_neither_the_polls_nor_the_others() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let (ana, bea) = (server.user(ANA, "Ana"), server.user(BEA, "Bea"));
    let go_on = Arc::new(Notify::new());
    let slow = Arc::clone(&go_on);
    let build = move |bot: BotBuilder| {
        let bot = bot.when("slow", move |c: Ctx| {
            let slow = Arc::clone(&slow);
            async move {
                slow.notified().await;
                c.reply("at last").await
            }
        });
        echo(bot)
    };
    with_bot(&server, &kv, build, async |_| {
        let id = ana.writes("slow");
        server.until("its confirmation", || server.confirmed().contains(&id)).await;
        bea.writes("hi");
        bea.expect_reply("you said hi").await;
        server.redeliver();
        server.until("the second delivery", || server.unconfirmed() == 0).await;
        go_on.notify_one();
        ana.expect_reply("at last").await;
    })
    .await;
    assert_eq!(ana.replies(), ["at last"]);
}

/// Cases C31, C35, C43, C45, C47.
#[tokio::test]
async fn what_is_no_message_to_the_bot_is_not_answered() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let ana = server.user(ANA, "Ana");
    let group = server.group(-4_012_345_678, "Old group");
    // Where the payloads come from; an answer would arrive.
    for (id, title) in [(-1_001_557_912_345, "Super"), (-1_009_876_543_210, "News")] {
        drop(server.group(id, title));
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../telegram/tests/payloads/updates");
    with_bot(&server, &kv, echo, async |bot| {
        for name in [
            "edited_message",
            "message_auto_forward_from_linked_channel",
            "unknown_message_content",
            "deleted_business_messages",
            "my_chat_member_unblocked",
            "service_new_chat_members",
            "service_left_chat_member",
        ] {
            let payload = std::fs::read_to_string(format!("{folder}/{name}.json")).expect("a payload");
            server.push(serde_json::from_str(&payload).expect("JSON"));
        }
        ana.writes("first");
        ana.expect_reply("you said first").await;
        ana.edits("changed");
        drop(group.migrates(-1_001_557_912_345));
        ana.writes("last");
        ana.expect_reply("you said last").await;
        assert_eq!(bot.metrics().inbound_dead, 0);
    })
    .await;
    assert_eq!(server.calls().iter().filter(|call| call.method == "sendMessage").count(), 2);
}

/// A bot that shows a button, says back what it gets, and tells how many of its handlers ever ran at once.
fn menu() -> (Arc<AtomicUsize>, impl FnOnce(BotBuilder) -> BotBuilder) {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let build = move |bot: BotBuilder| {
        bot.when("menu", |c: Ctx| async move {
            c.reply(Content::text("Tea?").with_buttons([Button::new("tea:yes", "Yes")])).await
        })
        .otherwise(move |c: Ctx| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&seen));
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                c.reply(format!("{}!", c.text())).await?;
                running.fetch_sub(1, Ordering::SeqCst);
                Result::<()>::Ok(())
            }
        })
    };
    (most, build)
}

/// Case C41, in one answer to a poll.
#[tokio::test]
async fn what_comes_at_the_same_time_in_one_chat_is_handled_one_after_the_other() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let ana = server.user(ANA, "Ana");
    let (most, build) = menu();
    with_bot(&server, &kv, build, async |_| {
        ana.writes("menu");
        ana.expect_reply("Tea?").await;
        for text in ["one", "two", "three"] {
            ana.presses("Yes");
            ana.writes(text);
        }
        ana.expect_reply("three!").await;
    })
    .await;
    assert_eq!(most.load(Ordering::SeqCst), 1);
    assert_eq!(ana.replies(), ["Tea?", "Yes!", "one!", "Yes!", "two!", "Yes!", "three!"]);
}

/// Case C41: presses and messages are in different queues of Telegram, which are posted at the same time.
#[tokio::test]
async fn what_is_posted_at_the_same_time_in_one_chat_is_handled_one_after_the_other() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let ana = server.user(ANA, "Ana");
    let (most, build) = menu();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/telegram", listener.local_addr().expect("an address"));
    let channel = Telegram::webhook(server.token(), "a-secret").with_api_url(&server.url());
    channel.set_webhook(&url).await.expect("a webhook");
    let router = channel.router();
    let journals = Durability::new(Arc::clone(&kv)).with_instance_id("one");
    let bot = build(Bot::builder().provider(channel).durability(journals)).build().expect("a bot");
    let scenario = async {
        ana.writes("menu");
        ana.expect_reply("Tea?").await;
        for _ in 0..20 {
            ana.presses("Yes");
            ana.writes("one");
        }
        server.until("all answers", || ana.replies().len() == 41).await;
        bot.stop();
    };
    let (served, ()) = tokio::join!(Server::new().with_bot(bot.clone(), router).serve_on(listener), scenario);
    served.expect("a good end");
    assert_eq!(most.load(Ordering::SeqCst), 1);
    let replies = ana.replies();
    let count = |text| replies.iter().filter(|reply| *reply == text).count();
    assert_eq!((count("Yes!"), count("one!")), (20, 20));
}

/// Cases C51 and commands in groups.
#[tokio::test]
async fn a_command_is_for_the_bot_that_it_names_and_keeps_what_follows() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let ana = server.user(ANA, "Ana");
    let build = |bot: BotBuilder| {
        bot.when(command("start"), |c: Ctx| async move { c.reply(format!("started by {}", c.arg(1))).await })
            .when("end", |c: Ctx| async move { c.reply("the end").await })
    };
    with_bot(&server, &kv, build, async |_| {
        for text in ["/start ref_42", "/start@demo_bot again", "/start@another_bot no", "end"] {
            ana.writes(text);
        }
        ana.expect_reply("the end").await;
    })
    .await;
    assert_eq!(ana.replies(), ["started by ref_42", "started by again", "the end"]);
}

#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Signup {
    name: String,
}

impl FlowState for Signup {}

/// Cases G125 and G129.
#[tokio::test]
async fn everybody_in_a_group_has_a_conversation_of_their_own() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let group = server.group(-1_001_557_912_345, "Super");
    let (ana, bea) = (server.user(ANA, "Ana").in_group(&group), server.user(BEA, "Bea").in_group(&group));
    let build = |bot: BotBuilder| {
        let signup = flow("signup")
            .ask(
                "name",
                |_: &Signup| "Your name?",
                |signup: &mut Signup, answer| {
                    signup.name = answer.text().to_owned();
                    Ok(())
                },
            )
            .do_("greet", |c| async move {
                c.say(format!("Welcome, {}!", c.get(|signup: &Signup| signup.name.clone()))).await?;
                Ok(Step::Next)
            })
            .persistent();
        bot.when("join", |c: Ctx| async move { c.enter("signup") }).flow(signup)
    };
    with_bot(&server, &kv, build, async |_| {
        for user in [&ana, &bea] {
            user.writes("join");
        }
        server.until("both questions", || ana.replies().len() == 2).await;
        bea.writes("Bea B.");
        bea.expect_reply("Welcome, Bea B.!").await;
        ana.writes("Ana A.");
        ana.expect_reply("Welcome, Ana A.!").await;
    })
    .await;
}

/// Case D73.
#[tokio::test]
async fn who_blocked_the_bot_is_tried_once_and_the_send_is_a_dead_letter() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let (ana, bea) = (server.user(ANA, "Ana"), server.user(BEA, "Bea"));
    with_bot(&server, &kv, echo, async |bot| {
        ana.writes("hi");
        ana.blocks();
        server.until("the dead letter", || bot.metrics().outbox_dead == 1).await;
        bea.writes("hi");
        bea.expect_reply("you said hi").await;
    })
    .await;
    let tried = server.calls().iter().filter(|call| call.chat() == Some(ANA)).count();
    assert_eq!((tried, ana.replies().len()), (1, 0));
}

/// Case D59.
#[tokio::test]
async fn after_a_flood_a_send_waits_as_long_as_it_is_told_and_goes_out_once() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let ana = server.user(ANA, "Ana");
    server.fault_next("sendMessage", TelegramFault::flood(1));
    with_bot(&server, &kv, echo, async |_| {
        ana.writes("hi");
        ana.expect_reply("you said hi").await;
    })
    .await;
    assert_eq!(ana.replies(), ["you said hi"]);
    assert_eq!(server.calls().iter().filter(|call| call.method == "sendMessage").count(), 2);
}

#[tokio::test]
async fn a_lost_answer_is_told_and_nothing_is_sent_twice() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let ana = server.user(ANA, "Ana");
    server.fault_next("sendMessage", TelegramFault::LoseAnswer);
    with_bot(&server, &kv, echo, async |bot| {
        ana.writes("one");
        server.until("that it is told", || bot.metrics().outbox_ambiguous == 1).await;
        ana.writes("two");
        ana.expect_reply("you said two").await;
    })
    .await;
    assert_eq!(ana.replies(), ["you said one", "you said two"]);
}

/// Cases D63 and D67.
#[tokio::test]
async fn a_long_text_arrives_in_parts_and_no_character_falls_apart() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let ana = server.user(ANA, "Ana");
    let texts = [
        "a".repeat(4095) + "\u{1F3A9}" + &"b".repeat(5000),
        "\u{1F600}".repeat(4000),
        "\u{1F468}\u{200D}\u{1F469}\u{200D}\u{1F467}".repeat(600),
        "\u{fdfd}".repeat(4096),
    ];
    let said = texts.clone();
    let build = move |bot: BotBuilder| {
        bot.when(regex(r"^long (\d)$"), move |c: Ctx| {
            let text = c.arg(1).parse::<usize>().ok().and_then(|n| said.get(n)).cloned().unwrap_or_default();
            async move { c.reply(text).await }
        })
        .when("end", |c: Ctx| async move { c.reply("the end").await })
    };
    with_bot(&server, &kv, build, async |_| {
        for n in 0..texts.len() {
            ana.writes(&format!("long {n}"));
        }
        ana.writes("end");
        ana.expect_reply("the end").await;
    })
    .await;
    let parts = ana.replies();
    assert_eq!(parts.concat(), texts.concat() + "the end");
    assert!(parts.len() > texts.len() + 2, "{}", parts.len());
}

/// Case D65.
#[tokio::test]
async fn formatting_that_is_cut_goes_on_in_the_next_message() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let ana = server.user(ANA, "Ana");
    let build = |bot: BotBuilder| {
        bot.otherwise(|c: Ctx| async move { c.reply(Formatted::styled("a".repeat(5000), Style::Bold)).await })
    };
    with_bot(&server, &kv, build, async |_| {
        ana.writes("hi");
        server.until("both parts", || ana.replies().len() == 2).await;
    })
    .await;
    assert_eq!(ana.replies().concat(), "a".repeat(5000));
    for call in server.done("sendMessage") {
        let length = call.text().expect("a text").len();
        let bold = serde_json::json!([{ "type": "bold", "offset": 0, "length": length }]);
        assert_eq!(call.params["entities"], bold);
    }
}

#[tokio::test]
async fn what_only_telegram_has_is_journaled_and_sent_like_anything_else() {
    let (server, kv) = (FakeTelegram::start().await, kv());
    let ana = server.user(ANA, "Ana");
    let build = |bot: BotBuilder| {
        bot.otherwise(|c: Ctx| async move {
            let payload =
                serde_json::json!({ "method": "sendMessage", "text": "quiet", "disable_notification": true });
            c.reply(ContentBody::Native { channel: "telegram".into(), payload, text: String::new() }).await
        })
    };
    with_bot(&server, &kv, build, async |_| {
        ana.writes("hi");
        ana.expect_reply("quiet").await;
    })
    .await;
    assert_eq!(server.done("sendMessage")[0].params["disable_notification"], true);
}

/// One of the processes of a bot, until it is told to stop.
struct Replica {
    bot: Bot,
    ended: oneshot::Receiver<()>,
}

/// What the replicas of a bot share.
struct Fleet {
    server: FakeTelegram,
    kv: Arc<dyn DurableKv>,
    store: MemoryStore,
    hub: MemoryHub,
    spawner: TestSpawner,
    started: usize,
    /// Which replicas answered.
    answered: Arc<Mutex<BTreeSet<usize>>>,
}

impl Fleet {
    fn start(&mut self) -> Replica {
        self.started += 1;
        let number = self.started;
        let journals = Durability::new(Arc::clone(&self.kv)).with_instance_id(format!("replica-{number}"));
        let answered = Arc::clone(&self.answered);
        let bot = Bot::builder()
            .provider(polling(&self.server).with_poll_timeout(Duration::from_secs(1)))
            .store(self.store.clone())
            .durability(journals)
            .coordination(Coordination::new(self.hub.coordinator(&OsEntropy::new())))
            .otherwise(move |c: Ctx| {
                answered.lock().expect("no panic").insert(number);
                async move { c.reply(format!("you said {}", c.text())).await }
            })
            .build()
            .expect("a bot");
        let (tell, ended) = oneshot::channel();
        let running = bot.clone();
        let run = async move {
            running.run().await.expect("a good end");
            drop(tell);
        };
        self.spawner.spawn("replica", Box::pin(run));
        Replica { bot, ended }
    }
}

impl Replica {
    async fn stop(self) {
        self.bot.stop();
        let _ = self.ended.await;
    }
}

#[tokio::test]
async fn over_fifty_rolling_restarts_two_replicas_never_poll_at_the_same_time() {
    let server = FakeTelegram::start().await;
    let ana = server.user(ANA, "Ana");
    let mut fleet = Fleet {
        server: server.clone(),
        kv: kv(),
        store: MemoryStore::new(),
        hub: MemoryHub::new(Arc::new(SystemClock::new())),
        spawner: TestSpawner::new(),
        started: 0,
        answered: Arc::default(),
    };
    let mut old = fleet.start();
    for n in 0..50 {
        let new = fleet.start();
        let role = || new.bot.coordination().map(|standing| standing.role);
        server.until("that the new one stands by", || role() == Some(ReplicaRole::Standby)).await;
        if n % 10 == 0 {
            let (polls, _) = server.polls();
            server.until("that the old one goes on alone", || server.polls().0 >= polls + 2).await;
        }
        ana.writes(&format!("before {n}"));
        old.stop().await;
        ana.writes(&format!("after {n}"));
        ana.expect_reply(&format!("you said after {n}")).await;
        old = new;
    }
    old.stop().await;
    fleet.spawner.join_all().await;
    let (polls, overlaps) = server.polls();
    assert_eq!(overlaps, 0, "of {polls} polls");
    assert_eq!(server.unconfirmed(), 0);
    let expected: Vec<String> =
        (0..50).flat_map(|n| [format!("you said before {n}"), format!("you said after {n}")]).collect();
    assert_eq!(ana.replies(), expected);
    assert!(fleet.answered.lock().expect("no panic").len() > 25, "the replicas took turns");
}
