//! Flows that are not persistent and are forwarded: how long, to whom, and which cannot be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use botmesh::core::store::CheckpointPhase;
use botmesh::core::time::Clock;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Fallback, HandoverConfig, HandoverFlows, HandoverOutcome, InterruptedReason};
use serde::{Deserialize, Serialize};

use crate::fleet::{Fleet, MINUTE, Signup, Write, forward, signup, with};

#[tokio::test]
async fn a_forwarded_flow_goes_on_until_it_expires() {
    for (handover, after, answer) in [
        (forward(), 4, "How old are you, Ana?"),
        (forward(), 6, "What?"),
        (forward().with_ttl(10 * MINUTE), 9, "How old are you, Ana?"),
        (forward().with_ttl(10 * MINUTE), 11, "What?"),
    ] {
        let mut fleet = Fleet::new(handover);
        let (a, b) = fleet.pair(|bot| with(signup())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        a.dies().await;
        fleet.pass(after * MINUTE).await;
        assert_eq!(b.hears("2", "Ana").await, [answer], "after {after} minutes");
    }
}

#[tokio::test]
async fn a_forwarded_flow_does_not_expire_before_its_own_wait() {
    let patient = || signup_with_timeout(20 * MINUTE);
    for (after, answers) in [(15, ["How old are you, Ana?"].as_slice()), (25, &["Too late.", "What?"])] {
        let mut fleet = Fleet::new(forward());
        let (a, b) = fleet.pair(|bot| with(patient())(bot));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        a.dies().await;
        fleet.pass(after * MINUTE).await;
        b.hears("2", "Ana").await;
        assert_eq!(b.said(), answers, "after {after} minutes");
    }
}

fn signup_with_timeout(wait: Duration) -> Flow<Signup> {
    flow::<Signup>("signup")
        .ask("name", "What is your name?", |s: &mut Signup, a| {
            s.name = a.text().to_owned();
            Ok(())
        })
        .timeout(wait)
        .ask("age", |s: &Signup| format!("How old are you, {}?", s.name), |_, _| Ok(()))
        .on_timeout("Too late.")
}

#[tokio::test]
async fn the_time_of_a_forwarded_flow_begins_anew_at_every_wait() {
    let mut fleet = Fleet::new(forward());
    let (a, b) = fleet.pair(|bot| with(signup())(bot));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    fleet.pass(4 * MINUTE).await;
    assert_eq!(a.hears("2", "Ana").await, ["How old are you, Ana?"]);
    fleet.pass(4 * MINUTE).await;
    assert_eq!(b.hears("3", "30").await, ["Done, Ana."]);
}

#[tokio::test]
async fn a_forwarded_flow_does_not_expire_for_the_replica_that_wrote_it() {
    let mut fleet = Fleet::new(forward());
    let (a, _b) = fleet.pair(|bot| with(signup())(bot));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    fleet.pass(60 * MINUTE).await;
    assert_eq!(a.hears("2", "Ana").await, ["How old are you, Ana?"]);
}

/// The flow after a deploy: with one more step.
fn changed() -> Flow<Signup> {
    signup().ask("colour", "What colour?", |_, _| Ok(()))
}

#[tokio::test]
async fn a_forwarded_flow_that_a_deploy_changed_falls_back() {
    let told = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&told);
    let function = Fallback::function(move |info, c: Ctx| {
        *tell.lock().expect("a lock") =
            Some((info.name, info.reason, info.step, info.state, info.conversation));
        async move {
            c.reply("The form changed.").await?;
            Ok(true)
        }
    });
    for (fallback, answer, outcome) in [
        (Fallback::Drop, "What?", HandoverOutcome::Dropped),
        (Fallback::Notify, "Sorry", HandoverOutcome::Notified),
        (Fallback::Restart, "What is your name?", HandoverOutcome::Restarted),
        (function, "The form changed.", HandoverOutcome::Taken),
    ] {
        let mut fleet = Fleet::new(forward().with_fallback(fallback.clone()));
        let (a, mut b) = (fleet.start(with(signup())), fleet.start(with(changed())));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        assert_eq!(a.hears("2", "Ana").await, ["How old are you, Ana?"]);
        let said = b.hears("3", "30").await;
        assert!(said.len() == 1 && said[0].starts_with(answer), "{fallback:?}: {said:?}");
        assert_eq!(b.outcomes(), [outcome], "{fallback:?}");
    }
    let told = told.lock().expect("a lock").take().expect("the function was asked");
    let state = serde_json::json!({ "name": "Ana" });
    let (name, reason) = ("signup".to_owned(), InterruptedReason::Changed);
    assert_eq!((told.0, told.1, told.2, told.3), (name, reason, Some("age".to_owned()), Some(state)));
    assert_eq!(told.4.chat.as_str(), "ana");
}

#[tokio::test]
async fn a_persistent_flow_that_a_deploy_changed_goes_on_at_its_step() {
    let mut fleet = Fleet::new(forward().with_fallback(Fallback::Notify));
    let (a, b) = (fleet.start(with(signup().persistent())), fleet.start(with(changed().persistent())));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    assert_eq!(b.hears("2", "Ana").await, ["How old are you, Ana?"]);
}

#[tokio::test]
async fn a_forwarded_flow_is_kept_after_a_graceful_stop() {
    for same in [true, false] {
        for (minutes, answer) in [(4, "How old are you, Ana?"), (6, "What?")] {
            let mut fleet = Fleet::new(forward());
            let a = fleet.start_as("a", with(signup()));
            assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
            a.life.stop().await;
            fleet.pass(minutes * MINUTE).await;
            let next = fleet.start_as(if same { "a" } else { "b" }, with(signup()));
            assert_eq!(next.hears("2", "Ana").await, [answer], "same: {same}, after {minutes} minutes");
        }
    }
}

#[tokio::test]
async fn a_replica_that_does_not_forward_resumes_a_forwarded_flow_and_clears_it() {
    for durable in [true, false] {
        let mut fleet = Fleet::new(forward()).with_durability(durable);
        let a = fleet.start(with(signup()));
        fleet.handover.flows = HandoverFlows::Drop;
        let mut b = fleet.start(with(signup()));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        assert_eq!(b.hears("2", "Ana").await, ["How old are you, Ana?"]);
        assert_eq!(b.outcomes(), [HandoverOutcome::Resumed]);
        assert_eq!(b.hears("3", "30").await, ["Done, Ana."]);
        assert_eq!(b.hears("4", "30").await, ["What?"]);
        let row = fleet.row().map(|row| row.phase);
        assert!(matches!(row, None | Some(CheckpointPhase::Ended)), "durable: {durable}: {row:?}");
    }
}

#[tokio::test]
async fn what_a_replica_that_does_not_forward_took_over_is_lost_when_another_one_takes_the_chat() {
    let mut fleet = Fleet::new(forward());
    let a = fleet.start(with(signup()));
    fleet.handover.flows = HandoverFlows::Drop;
    let b = fleet.start(with(signup()));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    assert_eq!(b.hears("2", "Ana").await, ["How old are you, Ana?"]);
    assert_eq!(a.hears("3", "30").await, ["What?"]);
}

#[tokio::test]
async fn a_checkpoint_is_written_at_each_step_of_a_forwarded_flow() {
    let mut fleet = Fleet::new(forward());
    let a = fleet.start(with(signup()));
    for (event, text) in [("1", "sign up"), ("2", "Ana")] {
        a.hears(event, text).await;
        let row = fleet.row().expect("a row");
        assert_eq!((row.phase, row.session.as_str().is_empty()), (CheckpointPhase::Waiting, false));
        assert_eq!(row.expires, Some(fleet.stage.clock.now() + 5 * MINUTE), "{text}");
    }
}

/// State that JSON has no form for.
#[derive(Default, Serialize, Deserialize)]
struct Seats {
    taken: HashMap<(u32, u32), String>,
}
impl FlowState for Seats {}

fn seats() -> Flow<Seats> {
    flow::<Seats>("signup")
        .ask("seat", "Which seat?", |s, a| {
            s.taken.insert((1, 2), a.text().to_owned());
            Ok(())
        })
        .ask("next", |s: &Seats| format!("{} seats taken. Another one?", s.taken.len()), |_, _| Ok(()))
        .say("Done.")
}

/// State that becomes JSON, but not of it again: a number that is none is null there.
#[derive(Serialize, Deserialize)]
struct Price {
    price: f64,
}
impl FlowState for Price {}

impl Default for Price {
    fn default() -> Self {
        Self { price: 1.0 }
    }
}

fn price() -> Flow<Price> {
    flow::<Price>("signup")
        .ask("seat", "Which seat?", |s, _| {
            s.price = f64::NAN;
            Ok(())
        })
        .ask("next", "1 seats taken. Another one?", |_, _| Ok(()))
        .say("Done.")
}

async fn waits_in_memory(build: impl Fn(BotBuilder) -> BotBuilder) {
    for elsewhere in [false, true] {
        let mut fleet = Fleet::new(forward().with_fallback(Fallback::Notify));
        let (a, mut b) = fleet.pair(&build);
        assert_eq!(a.hears("1", "sign up").await, ["Which seat?"]);
        assert_eq!(a.hears("2", "window").await, ["1 seats taken. Another one?"]);
        if elsewhere {
            let said = b.hears("3", "no").await;
            assert!(said.len() == 1 && said[0].starts_with("Sorry"), "{said:?}");
            assert_eq!(b.outcomes(), [HandoverOutcome::Notified]);
            assert_eq!(a.hears("4", "no").await, ["What?"], "its copy answers");
        } else {
            assert_eq!(a.hears("3", "no").await, ["Done."]);
        }
    }
}

#[tokio::test]
async fn a_flow_whose_state_is_not_plain_data_waits_in_memory_and_falls_back() {
    waits_in_memory(|bot| with(seats())(bot)).await;
    waits_in_memory(|bot| with(price())(bot)).await;
}

#[tokio::test]
async fn a_persistent_flow_whose_state_is_not_plain_data_says_what_to_do() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let mut a = fleet.start(with(seats().persistent()));
    assert_eq!(a.hears("1", "sign up").await, ["Which seat?"]);
    a.hears("2", "window").await;
    let told = a.events().into_iter().any(|event| {
        matches!(event, BotEvent::Error { error, .. }
            if error.contains("the state of the flow `signup` cannot be stored")
                && error.contains("keep plain data in it"))
    });
    assert!(told);
}

#[tokio::test]
async fn a_forwarded_flow_that_ends_leaves_nothing_in_the_store() {
    let mut fleet = Fleet::new(forward());
    let a = fleet.start(with(signup()));
    for (event, text) in [("1", "sign up"), ("2", "Ana"), ("3", "30")] {
        a.hears(event, text).await;
    }
    assert_eq!(fleet.row(), None);
    assert_eq!(fleet.store.writes().last(), Some(&Write::Clear));
}
