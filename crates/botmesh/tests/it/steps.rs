//! Steps that ask more than once, forms, flows within flows, and ways into a flow; across crashes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use botmesh::core::id::ConversationKey;
use botmesh::core::inbound::Inbound;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, EnterError, OnHandlerError};
use botmesh_testing::Fault;
use serde::{Deserialize, Serialize};

use crate::support::{Life, Stage};

#[derive(Default, Serialize, Deserialize)]
struct Order {
    dish: String,
    extras: Vec<String>,
    place: Address,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct Address {
    street: String,
    floor: u32,
}

impl FlowState for Order {}
impl FlowState for Address {}

/// One step asks twice, and says something before and between.
fn order() -> Flow<Order> {
    flow("order")
        .ask("dish", "dish?", |order: &mut Order, answer| {
            order.dish = answer.text().to_owned();
            Ok(())
        })
        .do_("extras", |c: FlowCtx<Order>| async move {
            c.say("extras cost more").await?;
            let first = c.ask("first?").await?;
            c.update(|order| order.extras.push(first.text().to_owned()));
            c.say(format!("noted {}", first.text())).await?;
            let second = c.ask("second?").await?;
            c.update(|order| order.extras.push(second.text().to_owned()));
            c.user().increment("extras", 2).await?;
            Ok(Step::Next)
        })
        .say(|order: &Order| format!("{} with {}", order.dish, order.extras.join("+")))
        .cancel_on(["stop"], "stopped")
}

const ORDERED: [&str; 7] =
    ["dish?", "extras cost more", "first?", "noted egg", "second?", "soup with egg+ham", "? more"];

fn with<S: FlowState>(flow: Flow<S>) -> impl FnOnce(BotBuilder) -> BotBuilder {
    move |bot| {
        bot.when("start", |c: Ctx| async move { c.enter("order") })
            .otherwise(|c: Ctx| async move { c.reply(format!("? {}", c.text())).await })
            .flow(flow)
    }
}

async fn talk(life: &Life, dialogue: &[(&str, &[&str])]) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    for (say, replies) in dialogue {
        let event = format!("m{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        assert_eq!(life.say(&event, say, replies.len()).await, *replies, "{say}");
        life.settled().await;
    }
}

#[tokio::test]
async fn a_step_asks_more_than_once() {
    for flow in [order(), order().persistent()] {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(with(flow));
        for (n, text) in ["start", "soup", "egg", "ham", "more"].iter().enumerate() {
            assert!(life.deliver(Inbound::text(format!("m{n}"), "ana", *text)).await);
        }
        life.until("all replies", || stage.channel.texts_to("ana").len() == ORDERED.len()).await;
        assert_eq!(stage.channel.texts_to("ana"), ORDERED);
        talk(&life, &[("start", &["dish?"]), ("a", &["extras cost more", "first?"]), ("stop", &["stopped"])])
            .await;
        life.stop().await;
    }
}

#[tokio::test]
async fn a_step_parked_on_its_first_question_takes_the_answer_after_a_crash() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(with(order().persistent()));
    talk(&life, &[("start", &["dish?"]), ("soup", &["extras cost more", "first?"])]).await;
    life.kill().await;
    let life = stage.start(with(order().persistent()));
    talk(&life, &[("egg", &["noted egg", "second?"]), ("ham", &["soup with egg+ham"])]).await;
    life.stop().await;
}

#[tokio::test]
async fn a_step_parked_on_a_later_question_begins_again_after_a_crash() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(with(order().persistent()));
    talk(
        &life,
        &[
            ("start", &["dish?"]),
            ("soup", &["extras cost more", "first?"]),
            ("egg", &["noted egg", "second?"]),
        ],
    )
    .await;
    life.kill().await;
    let life = stage.start(with(order().persistent()));
    talk(
        &life,
        &[
            ("ham", &["extras cost more", "first?"]),
            ("egg", &["noted egg", "second?"]),
            ("ham", &["soup with egg+ham"]),
        ],
    )
    .await;
    life.stop().await;
}

/// Delivers everything, in as many lives as it takes: the first one has the fault. `false` if it was not reached.
async fn survives(fault: impl FnOnce(&Life), paced: bool) -> (Vec<String>, String, bool) {
    let stage = Stage::new(Resolve::Lookup);
    let mut fault = Some(fault);
    loop {
        let life = stage.start(with(order().persistent()));
        if let Some(fault) = fault.take() {
            fault(&life);
        }
        'messages: for (n, text) in ["start", "soup", "egg", "ham", "more"].iter().enumerate() {
            while !life.deliver(Inbound::text(format!("m{n}"), "ana", *text)).await {
                if life.journal.crashed() {
                    break 'messages;
                }
            }
            if paced {
                life.settled().await;
            }
        }
        life.settled().await;
        if !life.journal.crashed() {
            life.stop().await;
            break;
        }
        life.kill().await;
    }
    let restarted = stage.channel.texts_to("ana").iter().filter(|text| *text == "first?").count() > 1;
    (stage.channel.texts_to("ana"), stage.channel.transcript(), restarted)
}

fn die_at(life: &Life, write: u64, after: bool) {
    match after {
        true => life.store.crash_after_write(write),
        false => life.store.crash_before_write(write),
    }
}

/// What a crash may do to the dialogue: nothing, or the step begins again once, with the answer that woke it taken for
/// nothing, so that the messages after it answer other questions. Nothing is lost, mixed up or said twice otherwise.
fn is_sound(replies: &[String], restarted: bool) -> bool {
    if !restarted {
        return replies == ORDERED;
    }
    let again = [
        "dish?",
        "extras cost more",
        "first?",
        "noted egg",
        "second?",
        "extras cost more",
        "first?",
        "noted more",
        "second?",
    ];
    replies == again
}

#[tokio::test]
async fn no_crash_loses_or_doubles_what_a_step_says() {
    let (mut whole, mut again) = (0, 0);
    for paced in [false, true] {
        for fault in [Fault::FailBefore, Fault::LoseAnswer, Fault::CrashBefore, Fault::CrashAfter] {
            for n in 1..=20 {
                let (replies, transcript, restarted) =
                    survives(|life| life.journal.fail_commit(n, fault), paced).await;
                assert!(is_sound(&replies, restarted), "{fault:?} at commit {n}\n{transcript}");
                if restarted { again += 1 } else { whole += 1 }
            }
        }
        for after in [false, true] {
            for nth in 1..=6 {
                let (replies, transcript, restarted) = survives(|life| die_at(life, nth, after), paced).await;
                assert!(is_sound(&replies, restarted), "write {nth}, after: {after}\n{transcript}");
                if restarted { again += 1 } else { whole += 1 }
            }
        }
    }
    assert!(whole > 20 && again > 3, "{whole} {again}");
}

fn form() -> Flow<Order> {
    let fields = || {
        [
            field("street", "street?"),
            field("floor", "floor?").check(|answer| {
                answer.text().parse::<u32>().map(drop).map_err(|_| "a number, please".into())
            }),
        ]
    };
    flow("order")
        .form("place", fields(), |order: &mut Order, filled| {
            order.place = Address {
                street: filled.text("street").to_owned(),
                floor: filled.text("floor").parse().unwrap_or_default(),
            };
            if order.place.floor > 9 { Err("we do not go that high".into()) } else { Ok(()) }
        })
        .say(|order: &Order| format!("to {} {}", order.place.street, order.place.floor))
        .cancel_on(["stop"], "stopped")
}

#[tokio::test]
async fn a_form_asks_for_one_thing_after_the_other() {
    for flow in [form(), form().persistent()] {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(with(flow));
        talk(
            &life,
            &[
                ("start", &["street?"]),
                ("Elm", &["floor?"]),
                ("up", &["a number, please"]),
                ("10", &["we do not go that high", "street?"]),
                ("Oak", &["floor?"]),
                ("1", &["to Oak 1"]),
                ("2", &["? 2"]),
            ],
        )
        .await;
        life.stop().await;
    }
}

fn address() -> Flow<Address> {
    flow("address")
        .ask("street", "street?", |address: &mut Address, answer| {
            address.street = answer.text().to_owned();
            Ok(())
        })
        .timeout(Duration::from_secs(60))
        .ask("floor", "floor?", |address: &mut Address, answer| {
            address.floor = answer.text().parse().map_err(|_| "a number, please")?;
            Ok(())
        })
}

fn delivered() -> Flow<Order> {
    flow("order")
        .ask("dish", "dish?", |order: &mut Order, answer| {
            order.dish = answer.text().to_owned();
            Ok(())
        })
        .call("place", "address", |order: &Order| order.place.clone(), |order, place| order.place = place)
        .say(|order: &Order| format!("{} to {} {}", order.dish, order.place.street, order.place.floor))
        .cancel_on(["stop"], "stopped")
        .on_timeout("too late")
}

#[tokio::test]
async fn a_flow_calls_another_one_and_takes_what_it_found() {
    for persistent in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let build = || {
            let outer = if persistent { delivered().persistent() } else { delivered() };
            |bot: BotBuilder| with(outer)(bot).flow(address())
        };
        let mut life = stage.start(build());
        talk(&life, &[("start", &["dish?"]), ("soup", &["street?"]), ("Elm", &["floor?"])]).await;
        if persistent {
            life.kill().await;
            life = stage.start(build());
        }
        talk(&life, &[("1", &["soup to Elm 1"]), ("x", &["? x"])]).await;
        talk(
            &life,
            &[("start", &["dish?"]), ("soup", &["street?"]), ("stop", &["stopped"]), ("x", &["? x"])],
        )
        .await;
        talk(&life, &[("start", &["dish?"]), ("soup", &["street?"])]).await;
        stage.clock.advance(Duration::from_secs(62)).await;
        assert_eq!(stage.channel.texts_to("ana").last().map(String::as_str), Some("too late"));
        talk(&life, &[("x", &["? x"])]).await;
        life.stop().await;
    }
}

#[test]
fn a_flow_that_calls_nothing_is_refused() {
    let bot = Bot::builder().shared_provider(Arc::new(botmesh_testing::MockProvider::new()));
    let error = with(delivered())(bot).build().expect_err("a call of nothing").to_string();
    assert!(error.contains("calls `address`"), "{error}");
}

#[test]
fn a_flow_that_calls_a_conversation_is_refused() {
    let calls = flow::<()>("order").call("talk", "desk", |()| (), |(), ()| ());
    let bot = Bot::builder().shared_provider(Arc::new(botmesh_testing::MockProvider::new()));
    let bot = with(calls)(bot).add_conversation(conversation("desk", |_: Conv| async {}).replayable());
    let error = bot.build().expect_err("a call of a conversation").to_string();
    for part in ["flow `order`", "calls `desk`", "conversation", "make `desk` a flow", "`c.enter(\"desk\")`"]
    {
        assert!(error.contains(part), "`{error}` does not say `{part}`");
    }
}

#[tokio::test]
async fn flows_that_call_or_enter_each_other_for_ever_are_stopped() {
    for calls in [true, false] {
        let stage = Stage::new(Resolve::Never);
        let mut life = stage.start(move |bot| {
            let flow = match calls {
                true => flow::<()>("order").call("again", "order", |()| (), |(), ()| ()),
                false => flow::<()>("order").do_("again", |c| async move {
                    c.enter("order");
                    Ok(Step::Next)
                }),
            };
            with(flow)(bot)
        });
        assert!(life.deliver(Inbound::text("begins", "ana", "start")).await);
        life.settled().await;
        assert!(life.event_names().contains(&"error"));
        talk(&life, &[("x", &["? x"])]).await;
        life.stop().await;
    }
}

#[tokio::test]
async fn a_step_enters_another_flow_in_place_of_its_own() {
    for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
        let kept = |flow: Flow<Order>, persistent| if persistent { flow.persistent() } else { flow };
        let stage = Stage::new(Resolve::Never);
        let build = || {
            let choose = flow("order")
                .do_("choose", |c: FlowCtx<Order>| async move {
                    let dish = c.ask("dish?").await?.text().to_owned();
                    c.enter_with("place", &Order { dish, ..Order::default() })?;
                    Ok(Step::Next)
                })
                .say("never");
            let place = flow("place")
                .ask("street", "street?", |order: &mut Order, answer| {
                    order.place.street = answer.text().to_owned();
                    Ok(())
                })
                .say(|order: &Order| format!("{} to {}", order.dish, order.place.street));
            move |bot: BotBuilder| with(kept(choose, first))(bot).flow(kept(place, second))
        };
        let mut life = stage.start(build());
        talk(&life, &[("start", &["dish?"]), ("soup", &["street?"])]).await;
        if second {
            life.kill().await;
            life = stage.start(build());
        }
        talk(&life, &[("Elm", &["soup to Elm"]), ("x", &["? x"]), ("start", &["dish?"])]).await;
        life.stop().await;
    }
}

/// A flow whose last step fails until it is mended.
fn failing() -> Flow<Order> {
    flow("order")
        .do_("first", |c: FlowCtx<Order>| async move {
            c.ask("dish?").await?;
            Ok(Step::Next)
        })
        .do_("second", |_| async move { Err("broken".into()) })
        .cancel_on(["stop"], "stopped")
        .persistent()
}

#[tokio::test]
async fn a_step_that_keeps_failing_can_be_cancelled_and_ends_by_itself() {
    for policy in [OnHandlerError::Ack, OnHandlerError::Retry] {
        for cancels in [true, false] {
            let stage = Stage::new(Resolve::Never);
            let mut durability = Durability::default().with_instance_id("bot");
            durability.inbox.on_handler_error = policy;
            let life = stage.start_with(durability, with(failing()));
            talk(&life, &[("start", &["dish?"])]).await;
            assert!(life.deliver(Inbound::text("soup", "ana", "soup")).await);
            life.settled().await;
            if cancels {
                talk(&life, &[("stop", &["stopped"])]).await;
            } else {
                assert!(life.deliver(Inbound::text("again", "ana", "again")).await);
                life.settled().await;
            }
            talk(&life, &[("x", &["? x"])]).await;
            life.stop().await;
        }
    }
}

#[tokio::test]
async fn a_flow_is_entered_from_outside() {
    for durable in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let life = if durable {
            stage.start(with(order().persistent()))
        } else {
            stage.start_plain(with(order().persistent()))
        };
        life.until("the start", || life.bot.durability().is_some() || !durable).await;
        life.settled().await;
        let unknown = life.bot.enter("ana", "elsewhere", &()).await.expect_err("no such flow");
        assert!(matches!(&unknown, EnterError::Unknown { .. }) && unknown.to_string().contains("order"));
        life.bot.enter("ana", "order", &Order::default()).await.expect("entered");
        life.until("the question", || stage.channel.texts_to("ana").len() == 1).await;
        talk(&life, &[("soup", &["extras cost more", "first?"])]).await;
        // It replaces what is going on.
        life.bot.enter("ana", "order", &Order::default()).await.expect("entered");
        life.until("the question", || stage.channel.texts_to("ana").len() == 4).await;
        talk(&life, &[("rice", &["extras cost more", "first?"])]).await;
        let participant = ConversationKey::in_group("group", "eve");
        life.bot.enter(participant, "order", &Order::default()).await.expect("entered");
        life.until("the question", || stage.channel.texts_to("group") == ["dish?"]).await;
        life.stop().await;
    }
}

#[tokio::test]
async fn a_flow_entered_from_outside_begins_once_whichever_write_is_the_last() {
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        for n in 1..=6 {
            let stage = Stage::new(Resolve::Lookup);
            let life = stage.start(with(order().persistent()));
            life.started().await;
            life.settled().await;
            life.journal.fail_commit(life.journal.commits() + n, fault);
            let (dish, bot) = (Order::default(), life.bot.clone());
            let mut entering = std::pin::pin!(bot.enter("ana", "order", &dish));
            let entered = loop {
                tokio::select! {
                    biased;
                    entered = &mut entering => break entered.is_ok(),
                    () = stage.clock.advance(Duration::from_millis(100)) => {
                        if life.journal.crashed() { break false }
                    }
                }
            };
            life.settled().await;
            life.kill().await;
            let life = stage.start(with(order().persistent()));
            life.settled().await;
            let asked = stage.channel.texts_to("ana");
            assert!(asked == ["dish?"] || (!entered && asked.is_empty()), "{fault:?} at {n}: {asked:?}");
            if !asked.is_empty() {
                talk(&life, &[("soup", &["extras cost more", "first?"])]).await;
            }
            life.stop().await;
        }
    }
}

#[tokio::test]
async fn no_channel_makes_the_events_of_the_bot_itself() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(with(order()));
    let detail = serde_json::json!({ "flow": "order", "state": null });
    let event = "botmesh:enter".to_owned();
    let forged = Inbound::private("m1", "ana", InboundBody::System { event, detail });
    assert!(!life.deliver(forged).await);
    assert_eq!(stage.channel.texts_to("ana"), [""; 0]);
    life.stop().await;
}
