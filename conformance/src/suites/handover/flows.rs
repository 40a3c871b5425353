//! Flows that go on in another replica.

use std::time::Duration;

use botmesh::prelude::*;
use botmesh::{Fallback, HandoverConfig, HandoverOutcome, InterruptedReason};
use serde::{Deserialize, Serialize};

use super::tools::{
    Ground, NAME, SORRY, Signup, WHAT, desk, done, forward, how_old, signup, take_name, talk,
};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_persistent_flow_goes_on_elsewhere: "a replica dies, and another one goes on at the question, with the state",
        a_forwarded_flow_goes_on_within_its_time: "so does a flow that is only forwarded, until its time is over, but not later",
        a_forwarded_flow_that_changed_falls_back: "where its steps are others, it does not go on; the fallback knows state and step",
        what_a_flow_began_with_is_kept: "a forwarded flow that changed can begin again, with what it was entered with",
        a_called_flow_goes_on_elsewhere: "the other replica ends a flow that another one called, and then goes on with that",
        a_step_that_asks_goes_on_elsewhere: "a step that waits at its own question is not asked again, nor says anything twice",
        a_replayable_conversation_goes_on_elsewhere: "its answers and effects are there in the other replica, and no effect happens twice",
    ]
}

async fn a_persistent_flow_goes_on_elsewhere(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default(), |_, bot| desk(bot, signup().persistent()));
    talk(&ana, 1, "sign up", &[NAME]).await;
    bot.replica(1).crash();
    talk(&ana, 2, "Ana", &["How old are you, Ana?"]).await;
    let replica = bot.expect_handover(&ana, "signup", HandoverOutcome::Resumed).await;
    ensure_eq!(replica, 2, "the replica that goes on");
    bot.replica(1).restart().await;
    talk(&ana, 1, "30", &["Done, Ana."]).await;
    talk(&ana, 2, "hello", &[WHAT]).await;
    talk(&ana, 1, "hello", &[WHAT]).await;
    ensure!(ground.row().await?.is_none(), "the checkpoint of a flow that ended is there");
    PASSED
}

async fn a_forwarded_flow_goes_on_within_its_time(context: &mut Context) -> CaseResult {
    for (minutes, reply) in [(4, "How old are you, Ana?"), (6, WHAT)] {
        let ground = Ground::new(context, &format!("after {minutes} minutes"))?;
        let (bot, ana) = ground.start(forward(), |_, bot| desk(bot, signup()));
        talk(&ana, 1, "sign up", &[NAME]).await;
        bot.replica(1).crash();
        bot.advance(Duration::from_secs(60 * minutes)).await;
        talk(&ana, 2, "Ana", &[reply]).await;
    }
    PASSED
}

/// The flow of a newer version.
fn longer() -> Flow<Signup> {
    flow::<Signup>("signup")
        .ask("name", NAME, take_name)
        .ask("town", "Where do you live?", |_, _| Ok(()))
        .ask("age", how_old, |_, _| Ok(()))
        .say(done)
}

async fn a_forwarded_flow_that_changed_falls_back(context: &mut Context) -> CaseResult {
    let version = |replica| if replica == 1 { signup() } else { longer() };
    let fallback = Fallback::function(|interrupted, c: Ctx| async move {
        let (step, state) = (interrupted.step.unwrap_or_default(), interrupted.state.unwrap_or_default());
        let changed = interrupted.reason == InterruptedReason::Changed;
        c.reply(format!("{} changed: {changed}, at {step} with {}", interrupted.name, state["name"])).await?;
        Ok(true)
    });
    let ground = Ground::new(context, "function")?;
    let (bot, ana) = ground.start(forward().with_fallback(fallback), move |n, bot| desk(bot, version(n)));
    talk(&ana, 1, "sign up", &[NAME]).await;
    talk(&ana, 1, "Ana", &["How old are you, Ana?"]).await;
    bot.replica(1).crash();
    talk(&ana, 2, "30", &["signup changed: true, at age with \"Ana\""]).await;
    talk(&ana, 2, "30", &[WHAT]).await;

    let ground = Ground::new(context, "notice")?;
    let (bot, ana) =
        ground.start(forward().with_fallback(Fallback::Notify), move |n, bot| desk(bot, version(n)));
    talk(&ana, 1, "sign up", &[NAME]).await;
    bot.replica(1).crash();
    ana.through(2).says("Ana").await;
    ana.expect_reply(botmesh_testing::containing(SORRY)).await;
    talk(&ana, 2, "Ana", &[WHAT]).await;
    PASSED
}

async fn what_a_flow_began_with_is_kept(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let handover = forward().with_fallback(Fallback::Restart);
    let (bot, ana) = ground.start(handover, |replica, bot| {
        let begun = flow::<Signup>("signup").ask("age", how_old, |_, _| Ok(()));
        let begun = if replica == 1 { begun } else { begun.ask("town", "Where do you live?", |_, _| Ok(())) };
        desk(bot, begun.say(done)).when("I am Ana", |c: Ctx| async move {
            c.enter_with("signup", &Signup { name: "Ana".to_owned() })
        })
    });
    talk(&ana, 1, "I am Ana", &["How old are you, Ana?"]).await;
    bot.replica(1).crash();
    talk(&ana, 2, "30", &["How old are you, Ana?"]).await;
    bot.expect_handover(&ana, "signup", HandoverOutcome::Restarted).await;
    talk(&ana, 2, "30", &["Where do you live?"]).await;
    talk(&ana, 2, "Rome", &["Done, Ana."]).await;
    PASSED
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Trip {
    rider: String,
    to: String,
}

impl FlowState for Trip {}

async fn a_called_flow_goes_on_elsewhere(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default(), |_, bot| {
        let trip = flow::<Trip>("trip")
            .ask("to", "Where to?", |trip: &mut Trip, answer| {
                trip.to = answer.text().to_owned();
                Ok(())
            })
            .call("rider", "signup", |_| Signup::default(), |trip: &mut Trip, rider| trip.rider = rider.name)
            .say(|trip: &Trip| format!("{} rides to {}.", trip.rider, trip.to))
            .persistent();
        desk(bot, signup()).flow(trip).when("ride", |c: Ctx| async move { c.enter("trip") })
    });
    talk(&ana, 1, "ride", &["Where to?"]).await;
    talk(&ana, 1, "Rome", &[NAME]).await;
    bot.replica(1).crash();
    talk(&ana, 2, "Ana", &["How old are you, Ana?"]).await;
    bot.replica(1).restart().await;
    bot.replica(2).crash();
    talk(&ana, 1, "30", &["Done, Ana.", "Ana rides to Rome."]).await;
    PASSED
}

async fn a_step_that_asks_goes_on_elsewhere(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    // Without journals, what a step said before its question is said again.
    let hello: &[&str] = if context.has_kv() { &[] } else { &["Hello."] };
    let (bot, ana) = ground.start(HandoverConfig::default(), |_, bot| {
        let asking = flow::<Signup>("signup")
            .do_("both", |c: FlowCtx<Signup>| async move {
                c.say("Hello.").await?;
                let name = c.ask(NAME).await?;
                let town = c.ask("Where do you live?").await?;
                c.update(|signup| signup.name = format!("{} of {}", name.text(), town.text()));
                Ok(Step::Next)
            })
            .say(done)
            .persistent();
        desk(bot, asking)
    });
    talk(&ana, 1, "sign up", &["Hello.", NAME]).await;
    bot.replica(1).crash();
    talk(&ana, 2, "Ana", &[hello, &["Where do you live?"]].concat()).await;
    talk(&ana, 2, "Rome", &["Done, Ana of Rome."]).await;
    PASSED
}

async fn a_replayable_conversation_goes_on_elsewhere(context: &mut Context) -> CaseResult {
    let ground = Ground::new(context, "handover")?;
    let (bot, ana) = ground.start(HandoverConfig::default(), |replica, bot| {
        let order = conversation("order", move |c: Conv| async move {
            let dish = c.ask("Which dish?").await?;
            let cook: usize = c.run("cook", async || Ok(replica)).await?;
            let pieces = c.ask(format!("How many of {}?", dish.text())).await?;
            c.say(format!("{} of {} from cook {cook}.", pieces.text(), dish.text())).await?;
            Ok::<_, botmesh::Error>(())
        });
        bot.when("order", |c: Ctx| async move { c.enter("order") })
            .otherwise(|c: Ctx| async move { c.reply(WHAT).await })
            .add_conversation(order.replayable())
    });
    talk(&ana, 1, "order", &["Which dish?"]).await;
    talk(&ana, 1, "soup", &["How many of soup?"]).await;
    bot.replica(1).crash();
    talk(&ana, 2, "2", &["2 of soup from cook 1."]).await;
    bot.expect_handover(&ana, "order", HandoverOutcome::Resumed).await;
    talk(&ana, 2, "2", &[WHAT]).await;
    PASSED
}
