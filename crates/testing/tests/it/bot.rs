use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use botmesh::prelude::*;
use botmesh::{BotBuilder, InboxConfig, OnAmbiguous, OnHandlerError};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::kv::DurableKv;
use botmesh_core::memory::MemoryKv;
use botmesh_testing::{CrashPoint, Fault, TestBot, WritePoint, containing, matching};
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Order {
    size: String,
}

impl FlowState for Order {}

fn shop(bot: BotBuilder) -> BotBuilder {
    let order = flow("order")
        .ask(
            "size",
            |_: &Order| {
                Content::text("What size?")
                    .with_buttons([Button::new("s", "Small"), Button::new("l", "Large")])
            },
            |order: &mut Order, answer| {
                order.size = answer.text().to_owned();
                Ok(())
            },
        )
        .do_("save", |c| async move {
            let count = c.user().increment("orders", 1).await?;
            let size = c.get(|order: &Order| order.size.clone());
            c.say(format!("{size}, order {count}")).await?;
            Ok(Step::Next)
        })
        .persistent();
    bot.when("order", |c: Ctx| async move { c.enter("order") })
        .when("two", |c: Ctx| async move {
            c.reply("one").await?;
            c.reply("two").await
        })
        .when(IMAGE, |c: Ctx| async move {
            let bytes = c.load_media().await.unwrap_or_default();
            c.reply(format!("{} bytes", bytes.len())).await?;
            Result::<()>::Ok(())
        })
        .otherwise(|c: Ctx| async move { c.reply(format!("Hello, {}!", c.text())).await })
        .flow(order)
}

/// What a step panics with, if it does.
async fn failure(step: impl Future) -> String {
    match AssertUnwindSafe(step).catch_unwind().await {
        Ok(_) => "(it did not fail)".to_owned(),
        Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
    }
}

#[tokio::test]
async fn users_talk_to_the_bot_each_in_their_own_chat() {
    let bot = TestBot::new(shop);
    let (ana, ben) = (bot.user("ana"), bot.user("ben"));
    ana.says("Ana").await;
    ben.says("Ben").await;
    ben.expect_reply(containing("Ben")).await;
    ana.expect_reply(matching("^Hello, A")).await;
    let team = ben.in_group("team");
    team.says("all").await;
    team.expect_reply(String::from("Hello, all!")).await;
    ben.expect_silence().await;
    ana.says("order").await;
    let question = ana.expect_reply("What size?").await;
    assert_eq!(question.buttons.len(), 2);
    ana.presses("l").await;
    ana.expect_reply("Large, order 1").await;
    ana.says("order").await;
    ana.expect_reply("What size?").await;
    ana.presses("Small").await;
    ana.expect_reply("Small, order 2").await;
    ana.sends_image(&b"1234567"[..]).await;
    ana.expect_reply("7 bytes").await;
    ana.expect_silence().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_runtime_will_do() {
    let bot = TestBot::new(shop);
    let ana = bot.user("ana");
    ana.says("Ana").await;
    ana.expect_reply("Hello, Ana!").await;
    bot.restart().await;
    ana.says("again").await;
    ana.expect_reply("Hello, again!").await;
    bot.stop().await;
}

#[tokio::test]
async fn a_failed_step_says_what_was_expected_and_what_was_said() {
    let bot = TestBot::new(shop);
    let ana = bot.user("ana");
    ana.says("two").await;
    let wrong = failure(ana.expect_reply("three")).await;
    assert!(wrong.starts_with("ana: expected \"three\", but the bot says \"one\"\n"), "{wrong}");
    assert!(wrong.contains("ana: two\n"), "{wrong}");
    assert!(wrong.contains("bot to ana: one\n"), "{wrong}");
    let noise = failure(ana.expect_silence()).await;
    assert!(noise.starts_with("ana: expected silence, but the bot says \"two\"\n"), "{noise}");
    let nothing = failure(ana.expect_reply("three")).await;
    assert!(nothing.starts_with("ana: expected \"three\", but the bot says nothing\n"), "{nothing}");
    let button = failure(ana.presses("ok")).await;
    assert!(button.starts_with("ana: there is no button \"ok\"; the chat shows no button\n"), "{button}");
    let span = failure(bot.advance("soon")).await;
    assert!(span.starts_with("`soon` is not a duration"), "{span}");
    bot.crash();
    let dead = failure(ana.expect_reply("three")).await;
    assert!(dead.starts_with("ana: expected a reply, but the bot has crashed; `restart` it\n"), "{dead}");
}

#[tokio::test]
async fn a_failed_step_points_at_the_line_that_awaits_it() {
    let place = Arc::new(Mutex::new(None));
    let (seen, before) = (Arc::clone(&place), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>().cloned().unwrap_or_default();
        if text.starts_with("lena:") {
            *seen.lock().unwrap() = panic.location().map(|place| (place.file().to_owned(), place.line()));
        } else {
            before(panic);
        }
    }));
    let bot = TestBot::new(shop);
    let line = line!() + 1;
    let step = async { bot.user("lena").expect_reply("nothing").await };
    failure(step).await;
    assert_eq!(*place.lock().unwrap(), Some((file!().to_owned(), line)));
}

#[tokio::test]
async fn a_handler_that_fails_is_in_the_conversation() {
    let bot = TestBot::new(|bot| bot.otherwise(|_: Ctx| async { Result::<()>::Err("no paper".into()) }));
    let ana = bot.user("ana");
    ana.says("print").await;
    let nothing = failure(ana.expect_reply("done")).await;
    assert!(nothing.contains("no paper"), "{nothing}");
}

#[tokio::test]
async fn time_passes_only_when_told_or_when_a_reply_is_expected() {
    let bot = TestBot::new(shop);
    let ana = bot.user("ana");
    let busy = || ChannelError::new(ErrorClass::Transient, Phase::Answered, "busy");
    bot.channel().fail_next(busy());
    bot.channel().fail_next(busy());
    ana.says("Ana").await;
    ana.expect_silence().await;
    let before = bot.elapsed();
    ana.expect_reply("Hello, Ana!").await;
    let retried = bot.elapsed() - before;
    assert!(retried >= Duration::from_secs(3) && retried < Duration::from_secs(5), "{retried:?}");
    let before = bot.elapsed();
    bot.advance("5m").await;
    bot.advance(Duration::from_secs(7 * 24 * 3600)).await;
    assert_eq!(bot.elapsed() - before, Duration::from_secs(300 + 7 * 24 * 3600));
}

#[tokio::test]
async fn a_flow_goes_on_after_a_restart() {
    let bot = TestBot::new(shop);
    let ana = bot.user("ana");
    ana.says("order").await;
    ana.expect_reply("What size?").await;
    bot.restart().await;
    ana.presses("s").await;
    ana.expect_reply("Small, order 1").await;
    bot.crash();
    ana.says("order").await;
    ana.expect_silence().await;
    bot.restart().await;
    ana.expect_reply("What size?").await;
    bot.restart_as("another-host").await;
    ana.says("any").await;
    ana.expect_reply("any, order 2").await;
}

#[tokio::test]
async fn a_crash_at_any_write_of_a_reply_loses_nothing_that_was_not_told() {
    let (mut crashes, mut unknown) = (0, 0);
    for point in WritePoint::ALL {
        for before in [true, false] {
            let bot = TestBot::new(shop);
            let ana = bot.user("ana");
            match before {
                true => bot.crash_before(*point),
                false => bot.crash_after(*point),
            }
            ana.says("two").await;
            if !bot.has_crashed() {
                continue;
            }
            crashes += 1;
            bot.restart().await;
            let ambiguous = |event: &BotEvent| matches!(event, BotEvent::Ambiguous { .. });
            let told = bot.events().iter().filter(|event| ambiguous(event)).count();
            unknown += told;
            let texts = bot.channel().texts_to("ana");
            let lost = 2 - texts.iter().collect::<BTreeSet<_>>().len();
            assert!(
                texts.is_sorted() && texts.len() + lost == 2,
                "{point}, before: {before}\n{}",
                bot.transcript()
            );
            assert!(lost <= told, "{point}, before: {before}\n{}", bot.transcript());
        }
    }
    assert!(crashes >= 10, "only {crashes} crashes");
    assert!(unknown >= 1, "no crash left a send in flight");
}

#[tokio::test]
async fn a_crash_at_the_channel_is_ambiguous() {
    for (policy, before, expected) in [
        (OnAmbiguous::Skip, true, vec!["two"]),
        (OnAmbiguous::Skip, false, vec!["one", "two"]),
        (OnAmbiguous::Resend, true, vec!["one", "two"]),
        (OnAmbiguous::Resend, false, vec!["one", "one", "two"]),
    ] {
        let bot = TestBot::options().durability(Durability::default().with_on_ambiguous(policy)).start(shop);
        let ana = bot.user("ana");
        match before {
            true => bot.crash_before(CrashPoint::Send),
            false => bot.crash_after(CrashPoint::Send),
        }
        ana.says("two").await;
        assert!(bot.has_crashed());
        bot.restart().await;
        bot.advance("10s").await;
        assert_eq!(
            bot.channel().texts_to("ana"),
            expected,
            "{policy:?}, before: {before}\n{}",
            bot.transcript()
        );
    }
}

#[tokio::test]
async fn a_crash_that_never_comes_is_no_crash_test() {
    let bot = TestBot::new(shop);
    bot.crash_after(WritePoint::OutboxDead);
    bot.user("ana").says("Ana").await;
    let missed = failure(bot.restart()).await;
    assert!(
        missed.starts_with("the bot was to crash after the write outbox.dead, but it never comes to it"),
        "{missed}"
    );
}

#[tokio::test]
async fn what_the_bot_cannot_take_over_is_delivered_again() {
    let bot = TestBot::new(shop);
    let ana = bot.user("ana");
    ana.says("Ana").await;
    ana.expect_reply("Hello, Ana!").await;
    bot.backend().set_down(true);
    ana.says("you").await;
    ana.expect_silence().await;
    bot.advance("20s").await;
    bot.backend().set_down(false);
    ana.expect_reply("Hello, you!").await;
    bot.backend().fault_at(WritePoint::InboxInsertWorking, 1, Fault::Hang);
    ana.says("me").await;
    bot.crash();
    bot.restart().await;
    ana.expect_reply("Hello, me!").await;
}

#[tokio::test]
async fn the_bot_itself_can_be_used() {
    let kv: Arc<dyn DurableKv> = Arc::new(MemoryKv::new());
    let bot = TestBot::options().backend(Arc::clone(&kv)).start(shop);
    let ana = bot.user("ana");
    let sent = bot.does(|bot| async move { bot.send("ana", "Good morning").await }).await;
    sent.expect("no crash").expect("a send");
    ana.expect_reply("Good morning").await;
    bot.does(|bot| async move { bot.enqueue("reminder", "ana", "Drink!").await }).await;
    ana.expect_reply("Drink!").await;
    bot.crash_before(WritePoint::OutboxInsertInFlight);
    assert!(bot.does(|bot| async move { bot.send("ana", "Good night").await }).await.is_none());
    drop(bot);
    let next = TestBot::options().backend(kv).start(shop);
    let known = next.does(|bot| async move { bot.enqueue("reminder", "ana", "Drink!").await }).await;
    assert!(known.expect("no crash").expect("an answer").known);
    next.user("ana").expect_silence().await;
}

/// What a library does that a handler uses.
#[expect(clippy::disallowed_methods, reason = "a handler may use what starts tasks of its own")]
async fn elsewhere<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T> {
    Ok(tokio::spawn(work).await?)
}

#[tokio::test]
async fn a_handler_may_wait_for_something_real() {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let inbox = InboxConfig { on_handler_error: OnHandlerError::Retry, ..InboxConfig::default() };
    let bot = TestBot::options().durability(Durability::default().with_inbox(inbox)).start(|bot| {
        bot.otherwise(|c: Ctx| async move {
            let runs = elsewhere(async { RUNS.fetch_add(1, Ordering::Relaxed) }).await?;
            if runs == 0 {
                return Err("not yet".into());
            }
            c.reply("now").await?;
            Result::<()>::Ok(())
        })
    });
    let ana = bot.user("ana");
    ana.says("when?").await;
    ana.expect_silence().await;
    ana.expect_reply("now").await;
}
