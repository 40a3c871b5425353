//! One slow chat, call or answer holds nobody else up.

use std::sync::Arc;
use std::time::Duration;

use botmesh::core::error::{ChannelError, ErrorClass, Phase};
use botmesh::core::inbound::Inbound;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, HookVerdict, InboxConfig, OnAmbiguous, OnHandlerError, TurnsConfig};
use tokio::sync::Semaphore;

use crate::support::Stage;

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

#[tokio::test]
async fn a_call_that_hangs_holds_back_the_background_sends_of_its_chat_only() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(echo);
    life.say("m0", "hi", 1).await;
    stage.channel.hang_next();
    life.bot.enqueue("k1", "bob", "1").await.expect("a journaled send");
    life.until("the call", || stage.channel.sent().len() == 2).await;
    life.bot.enqueue("k2", "bob", "2").await.expect("a journaled send");
    life.bot.enqueue("k3", "eve", "3").await.expect("a journaled send");
    life.until("eve's message", || stage.channel.texts_to("eve") == ["3"]).await;
    assert!(stage.channel.texts_to("bob").is_empty());
    stage.channel.release();
    life.until("bob's messages", || stage.channel.texts_to("bob") == ["1", "2"]).await;
    life.settled().await;
    assert_eq!(stage.channel.sent().len(), 4);
    life.stop().await;
}

#[tokio::test]
async fn a_call_that_hangs_after_a_restart_does_not_keep_others_waiting() {
    let stage = Stage::new(Resolve::Never);
    let durability = || Durability::default().with_instance_id("bot").with_on_ambiguous(OnAmbiguous::Resend);
    let life = stage.start_with(durability(), echo);
    stage.channel.hang_next();
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.until("the call", || stage.channel.sent().len() == 1).await;
    life.kill().await;
    stage.channel.hang_next();
    stage.channel.hang_next();
    let life = stage.start_with(durability(), echo);
    life.until("the second call", || stage.channel.sent().len() == 2).await;
    assert!(life.deliver(Inbound::text("m2", "bob", "1")).await);
    assert!(life.deliver(Inbound::text("m3", "bob", "2")).await);
    stage.channel.heal();
    life.until("bob's reply", || stage.channel.texts_to("bob").contains(&"2".to_owned())).await;
    stage.channel.release();
    life.until("ana's reply", || stage.channel.texts_to("ana") == ["hi"]).await;
    life.stop().await;
}

#[tokio::test]
async fn a_chat_that_is_answered_slowly_holds_back_the_waits_of_no_other() {
    let stage = Stage::new(Resolve::Never);
    let gate = Arc::new(Semaphore::new(0));
    let life = stage.start(|bot| {
        let gate = Arc::clone(&gate);
        let flow = flow::<()>("quiz")
            .ask("q", "?", |(), _| Ok(()))
            .timeout(Duration::from_secs(60))
            .do_("slow", move |_| {
                let gate = Arc::clone(&gate);
                async move {
                    gate.acquire().await?.forget();
                    Ok(Step::End)
                }
            })
            .on_timeout("too late");
        bot.otherwise(|c: Ctx| async move { c.enter("quiz") }).flow(flow)
    });
    for chat in ["ana", "bob"] {
        assert!(life.deliver(Inbound::text(format!("{chat}-1"), chat, "hi")).await);
    }
    life.until("the questions", || stage.channel.delivered().len() == 2).await;
    life.settled().await;
    // Ana answers in time, but what follows outlasts her wait.
    assert!(life.deliver(Inbound::text("ana-2", "ana", "here")).await);
    stage.clock.advance(Duration::from_secs(62)).await;
    assert_eq!(stage.channel.texts_to("bob"), ["?", "too late"]);
    life.bot.enqueue("k", "eve", "news").await.expect("a journaled send");
    life.until("eve's message", || stage.channel.texts_to("eve") == ["news"]).await;
    gate.add_permits(1);
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["?"]);
    life.stop().await;
}

#[tokio::test]
async fn people_whose_wait_is_over_need_not_wait_for_a_channel_that_fails_others() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| {
        let flow = flow::<()>("quiz")
            .ask("q", "?", |(), _| Ok(()))
            .timeout(Duration::from_secs(60))
            .on_timeout("too late");
        bot.otherwise(|c: Ctx| async move { c.enter("quiz") }).flow(flow)
    });
    for n in 0..8 {
        assert!(life.deliver(Inbound::text("m", format!("chat-{n}"), "hi")).await);
    }
    life.until("the questions", || stage.channel.delivered().len() == 8).await;
    life.settled().await;
    stage.channel.fault_when(|sent| {
        let busy = ChannelError::new(ErrorClass::Transient, Phase::Answered, "busy");
        (sent.chat.as_str() != "chat-7").then_some(botmesh_testing::SendFault::Fail(busy))
    });
    stage.clock.advance(Duration::from_secs(65)).await;
    assert_eq!(stage.channel.texts_to("chat-7"), ["?", "too late"]);
    life.stop().await;
}

#[tokio::test]
async fn a_message_that_waits_for_its_next_attempt_takes_no_place_from_others() {
    let stage = Stage::new(Resolve::Never);
    let limits = TurnsConfig { max_concurrent: 1, ..TurnsConfig::default() };
    let inbox = InboxConfig { on_handler_error: OnHandlerError::Retry, ..InboxConfig::default() };
    let durability = Durability::default().with_instance_id("bot").with_inbox(inbox);
    let life = stage.start_with(durability, |bot| {
        bot.when("fail", |_: Ctx| async { Result::<()>::Err("broken".into()) })
            .otherwise(|c: Ctx| async move { c.reply(c.text()).await })
            .turns(limits)
    });
    assert!(life.deliver(Inbound::text("m1", "ana", "fail")).await);
    stage.clock.advance(Duration::from_millis(10)).await;
    assert!(life.deliver(Inbound::text("m2", "bob", "hi")).await);
    stage.clock.advance(Duration::from_millis(10)).await;
    assert_eq!(stage.channel.texts_to("bob"), ["hi"]);
    life.until("the end of the attempts", || life.bot.metrics().inbound_dead == 1).await;
    life.stop().await;
}

#[tokio::test]
async fn a_message_in_the_moment_its_wait_ends_is_told_so_once_and_answered() {
    for persistent in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let mut life = stage.start(move |bot| {
            let quiz = flow::<()>("quiz")
                .ask("q", "?", |(), _| Ok(()))
                .timeout(Duration::from_millis(60_500))
                .on_timeout("too late");
            let quiz = if persistent { quiz.persistent() } else { quiz };
            bot.when("quiz", |c: Ctx| async move { c.enter("quiz") })
                .otherwise(|c: Ctx| async move { c.reply(c.text()).await })
                .flow(quiz)
        });
        assert_eq!(life.say("m1", "quiz", 1).await, ["?"]);
        life.settled().await;
        // Between two sweeps.
        stage.clock.advance(Duration::from_millis(60_600)).await;
        assert!(stage.channel.deliver(Inbound::text("m2", "ana", "hi")).await.is_ok());
        life.until("the answers", || stage.channel.texts_to("ana").len() >= 3).await;
        stage.clock.advance(Duration::from_secs(10)).await;
        assert_eq!(stage.channel.texts_to("ana"), ["?", "too late", "hi"]);
        assert_eq!(life.event_names().iter().filter(|name| **name == "flow:timeout").count(), 1);
        life.stop().await;
    }
}

/// A quiz that waits a minute, behind a hook that lets `slow` messages through with a permit.
fn quiz(gate: &Arc<Semaphore>, persistent: bool) -> impl FnOnce(BotBuilder) -> BotBuilder + use<> {
    let gate = Arc::clone(gate);
    move |bot| {
        let quiz = flow::<()>("quiz")
            .ask("q", "?", |(), _| Ok(()))
            .timeout(Duration::from_secs(60))
            .say("right")
            .on_timeout("too late");
        let quiz = if persistent { quiz.persistent() } else { quiz };
        bot.when("quiz", |c: Ctx| async move { c.enter("quiz") })
            .otherwise(|c: Ctx| async move { c.reply(format!("? {}", c.text())).await })
            .before_message(move |c: Ctx| {
                let gate = Arc::clone(&gate);
                async move {
                    match c.text() {
                        "slow" => gate.acquire().await?.forget(),
                        "fails" if gate.try_acquire().is_err() => return Err("not yet".into()),
                        _ => {}
                    }
                    Ok(HookVerdict::Continue)
                }
            })
            .flow(quiz)
    }
}

#[tokio::test]
async fn an_answer_that_came_in_time_counts_however_late_it_is_handled() {
    for persistent in [false, true] {
        for text in ["slow", "fails"] {
            let stage = Stage::new(Resolve::Never);
            let gate = Arc::new(Semaphore::new(0));
            let inbox = InboxConfig { on_handler_error: OnHandlerError::Retry, ..InboxConfig::default() };
            let durability = Durability::default().with_instance_id("bot").with_inbox(inbox);
            let life = stage.start_with(durability, quiz(&gate, persistent));
            assert_eq!(life.say("m1", "quiz", 1).await, ["?"]);
            life.settled().await;
            stage.clock.advance(Duration::from_secs(58)).await;
            assert!(life.deliver(Inbound::text("m2", "ana", text)).await);
            stage.clock.advance(Duration::from_secs(4)).await;
            gate.add_permits(1);
            life.until("the end", || stage.channel.texts_to("ana").len() == 2).await;
            life.settled().await;
            stage.clock.advance(Duration::from_secs(60)).await;
            assert_eq!(stage.channel.texts_to("ana"), ["?", "right"], "{text}, persistent: {persistent}");
            life.stop().await;
        }
    }
}

#[tokio::test]
async fn an_answer_that_came_in_time_counts_though_the_bot_was_away_at_the_end_of_the_wait() {
    let stage = Stage::new(Resolve::Never);
    let gate = Arc::new(Semaphore::new(0));
    let life = stage.start(quiz(&gate, true));
    assert_eq!(life.say("m1", "quiz", 1).await, ["?"]);
    life.settled().await;
    stage.clock.advance(Duration::from_secs(50)).await;
    assert!(life.deliver(Inbound::text("m2", "ana", "slow")).await);
    life.kill().await;
    stage.clock.advance(Duration::from_secs(100)).await;
    gate.add_permits(1);
    let life = stage.start(quiz(&gate, true));
    life.until("the end", || stage.channel.texts_to("ana").len() == 2).await;
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["?", "right"]);
    life.stop().await;
}

#[tokio::test]
async fn a_hook_before_a_send_may_send_to_the_same_chat() {
    let stage = Stage::new(Resolve::Never);
    let bot = Arc::new(std::sync::OnceLock::<Bot>::new());
    let sends = Arc::clone(&bot);
    let life = stage.start(move |builder| {
        echo(builder).before_send(move |chat, content| {
            let bot = sends.get().cloned();
            async move {
                if let (Some(bot), "hi") = (bot, content.readable_text()) {
                    bot.send_keyed("notice", chat, "notice").await.expect("a send");
                }
                Ok(content)
            }
        })
    });
    assert!(bot.set(life.bot.clone()).is_ok());
    assert_eq!(life.say("m1", "hi", 2).await, ["notice", "hi"]);
    life.stop().await;
}

#[tokio::test]
async fn a_sweep_costs_the_same_however_much_is_unfinished() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| bot.otherwise(|_: Ctx| std::future::pending::<()>()));
    assert!(life.deliver(Inbound::text("first", "ana", "x")).await);
    let reads_in_ten_sweeps = async || {
        stage.clock.advance(Duration::from_secs(3)).await;
        let before = life.journal.reads();
        stage.clock.advance(Duration::from_secs(10)).await;
        life.journal.reads() - before
    };
    let few = reads_in_ten_sweeps().await;
    for n in 0..600 {
        assert!(life.deliver(Inbound::text(format!("m{n}"), "ana", "x")).await);
    }
    assert_eq!(reads_in_ten_sweeps().await, few);
    life.kill().await;
}
