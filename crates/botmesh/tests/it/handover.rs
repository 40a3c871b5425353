//! Two replicas in one process: what becomes of a conversation when the other one takes its chat.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use botmesh::core::coordinator::{MemoryCoordinator, MemoryHub};
use botmesh::core::entropy::SeededEntropy;
use botmesh::core::inbound::Inbound;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{
    BotBuilder, Coordination, Fallback, HandoverConfig, HandoverFlows, HandoverOutcome, TurnsConfig,
};
use botmesh_testing::{Fault, MockProvider, SendFault, WritePoint};
use serde::{Deserialize, Serialize};

use crate::support::{Life, Stage};

struct Replica {
    life: Life,
    channel: MockProvider,
    coordinator: MemoryCoordinator,
}

struct Fleet {
    stage: Stage,
    hub: MemoryHub,
    handover: HandoverConfig,
    durable: bool,
    started: u64,
}

impl Fleet {
    fn new(handover: HandoverConfig) -> Self {
        let stage = Stage::new(Resolve::Never);
        let hub = MemoryHub::new(Arc::new(stage.clock.clone()));
        Self { stage, hub, handover, durable: true, started: 0 }
    }

    fn start(&mut self, build: impl FnOnce(BotBuilder) -> BotBuilder) -> Replica {
        self.started += 1;
        let channel = MockProvider::new();
        self.stage.provider = Some(Arc::new(channel.clone()));
        let coordinator = self.hub.coordinator(&SeededEntropy::new(self.started));
        let coordination = Coordination::new(coordinator.clone()).with_handover(self.handover.clone());
        let build = |bot: BotBuilder| build(bot.coordination(coordination));
        let life = match self.durable {
            true => {
                let id = format!("replica-{}", self.started);
                self.stage.start_with(Durability::default().with_instance_id(id), build)
            }
            false => self.stage.start_plain(build),
        };
        Replica { life, channel, coordinator }
    }
}

impl Replica {
    /// Ana says something to this replica, which then has nothing more to do. What it answers.
    async fn hears(&mut self, event: &str, text: &str) -> Vec<String> {
        let before = self.channel.texts_to("ana").len();
        self.life.deliver_to(&self.channel, Inbound::text(event, "ana", text)).await;
        self.life.settled().await;
        self.channel.texts_to("ana").split_off(before)
    }

    async fn dies(self) {
        self.coordinator.crash();
        self.life.kill().await;
    }

    fn outcomes(&mut self) -> Vec<HandoverOutcome> {
        let events = std::iter::from_fn(|| self.life.events.try_recv().ok());
        events
            .filter_map(|event| match event {
                BotEvent::Handover { outcome, .. } => Some(outcome),
                _ => None,
            })
            .collect()
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Signup {
    name: String,
}
impl FlowState for Signup {}

fn signup() -> Flow<Signup> {
    flow::<Signup>("signup")
        .ask("name", "What is your name?", |s, a| {
            s.name = a.text().to_owned();
            Ok(())
        })
        .ask("age", |s: &Signup| format!("How old are you, {}?", s.name), |_, _| Ok(()))
        .say(|s: &Signup| format!("Done, {}.", s.name))
}

fn signup_within(wait: Duration) -> Flow<Signup> {
    flow::<Signup>("signup")
        .ask("name", "What is your name?", |_, _| Ok(()))
        .timeout(wait)
        .ask("age", "How old are you?", |_, _| Ok(()))
        .timeout(wait)
        .on_timeout("Too late.")
}

fn with(signup: Flow<Signup>) -> impl FnOnce(BotBuilder) -> BotBuilder {
    move |bot| {
        bot.when("sign up", |c: Ctx| async move { c.enter("signup") })
            .otherwise(|c: Ctx| async move { c.reply("What?").await })
            .flow(signup)
    }
}

fn forward() -> HandoverConfig {
    HandoverConfig::default().with_flows(HandoverFlows::Forward)
}

#[tokio::test]
async fn a_persistent_flow_goes_on_elsewhere_and_asks_nothing_twice() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let mut a = fleet.start(with(signup().persistent()));
    let mut b = fleet.start(with(signup().persistent()));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    assert_eq!(b.hears("2", "Ana").await, ["How old are you, Ana?"]);
    assert_eq!(b.outcomes(), [HandoverOutcome::Resumed]);
    assert_eq!(a.hears("3", "30").await, ["Done, Ana."]);
    assert_eq!(a.hears("4", "30").await, ["What?"]);
    assert_eq!(b.hears("5", "30").await, ["What?"]);
}

#[tokio::test]
async fn a_flow_that_is_not_persistent_is_lost_by_default() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let (mut a, mut b) = (fleet.start(with(signup())), fleet.start(with(signup())));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    assert_eq!(b.hears("2", "Ana").await, ["What?"]);
    assert_eq!(a.hears("3", "Ana").await, ["What?"], "a stale copy answers");
}

#[tokio::test]
async fn a_forwarded_flow_goes_on_until_it_expires() {
    for (minutes, answer) in [(4, "How old are you, Ana?"), (6, "What?")] {
        let mut fleet = Fleet::new(forward());
        let (mut a, mut b) = (fleet.start(with(signup())), fleet.start(with(signup())));
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        a.dies().await;
        fleet.stage.clock.advance(Duration::from_secs(60 * minutes)).await;
        assert_eq!(b.hears("2", "Ana").await, [answer], "after {minutes} minutes");
    }
}

#[tokio::test]
async fn a_conversation_in_memory_falls_back() {
    let chat = |c: Conv| async move {
        let name = c.ask("What is your name?").await?;
        c.say(format!("Hello, {}.", name.text())).await?;
        Ok::<_, botmesh::Error>(())
    };
    let build = move |bot: BotBuilder| {
        bot.when("talk", |c: Ctx| async move { c.enter("chat") })
            .otherwise(|c: Ctx| async move { c.reply("What?").await })
            .conversation("chat", chat)
    };
    let sorry = "Sorry, our conversation was interrupted";
    for (fallback, answers, outcome) in [
        (Fallback::Drop, vec!["What?", "What?"], None),
        (Fallback::Notify, vec![sorry, "What?"], Some(HandoverOutcome::Notified)),
        (Fallback::Restart, vec!["What is your name?", "Hello, Ana."], Some(HandoverOutcome::Restarted)),
        (
            Fallback::function(|info, c: Ctx| async move {
                c.reply(format!("{} is gone", info.name)).await?;
                Ok(true)
            }),
            vec!["chat is gone", "What?"],
            Some(HandoverOutcome::Taken),
        ),
    ] {
        let mut fleet = Fleet::new(HandoverConfig::default().with_fallback(fallback.clone()));
        let (mut a, mut b) = (fleet.start(build), fleet.start(build));
        assert_eq!(a.hears("1", "talk").await, ["What is your name?"]);
        a.dies().await;
        let said = [b.hears("2", "Ana").await, b.hears("3", "Ana").await].concat();
        assert_eq!(said.len(), answers.len(), "{fallback:?}: {said:?}");
        for (said, expected) in said.iter().zip(&answers) {
            assert!(said.starts_with(expected), "{fallback:?}: {said}");
        }
        assert_eq!(b.outcomes(), Vec::from_iter(outcome), "{fallback:?}");
    }
}

#[tokio::test]
async fn a_conversation_in_memory_is_told_of_once_though_its_first_message_may_come_again() {
    let build = |bot: BotBuilder| {
        bot.when("talk", |c: Ctx| async move { c.enter("chat") })
            .otherwise(|c: Ctx| async move { c.reply("What?").await })
            .conversation("chat", async |c: Conv| c.ask("What is your name?").await.map(drop))
    };
    let handover = HandoverConfig::default().with_fallback(Fallback::Notify);
    let mut fleet = Fleet::new(handover.with_notify_message("It is gone."));
    let (mut a, mut b) = (fleet.start(build), fleet.start(build));
    a.life.journal.fault_at(WritePoint::InboxFinish, 1, Fault::CrashBefore);
    assert_eq!(a.hears("1", "talk").await, ["What is your name?"]);
    assert!(a.life.journal.crashed());
    a.dies().await;
    assert_eq!(b.hears("2", "Ana").await, ["It is gone."]);
    assert_eq!(b.hears("3", "Ana").await, ["What?"]);
    fleet.stage.clock.advance(Duration::from_secs(300)).await;
    assert_eq!(b.channel.texts_to("ana"), ["It is gone.", "What?"], "the conversation begins again");
}

/// A flow whose step after the first question never ends in its first run.
fn slow(runs: Arc<AtomicUsize>) -> impl Fn(BotBuilder) -> BotBuilder + Clone {
    move |bot: BotBuilder| {
        let runs = Arc::clone(&runs);
        let flow = flow::<Signup>("signup")
            .do_("name", move |c: FlowCtx<Signup>| {
                let runs = Arc::clone(&runs);
                async move {
                    let name = c.ask("What is your name?").await?;
                    c.say(format!("Looking for {}...", name.text())).await?;
                    if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                        std::future::pending::<()>().await;
                    }
                    c.update(|s| s.name = name.text().to_owned());
                    Ok(Step::Next)
                }
            })
            .ask("age", |s: &Signup| format!("How old are you, {}?", s.name), |_, _| Ok(()))
            .say(|s: &Signup| format!("Done, {}.", s.name))
            .persistent();
        with(flow)(bot)
    }
}

#[tokio::test]
async fn a_step_cut_short_keeps_its_answer() {
    for durable in [true, false] {
        let mut fleet = Fleet { durable, ..Fleet::new(HandoverConfig::default()) };
        let build = slow(Arc::default());
        let turns = TurnsConfig { settle: Duration::from_secs(3600), ..TurnsConfig::default() };
        let (mut a, mut b) = (
            fleet.start(|bot| build.clone()(bot).turns(turns)),
            fleet.start(|bot| build.clone()(bot).turns(turns)),
        );
        assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
        let stuck = a.channel.deliver(Inbound::text("2", "ana", "Ana"));
        assert!(stuck.await.is_ok());
        let channel = a.channel.clone();
        a.life.until("the step is at work", || channel.texts_to("ana").len() == 2).await;
        // It stands still for longer than its lease, and the other one takes the chat.
        a.coordinator.lose();
        let answers = b.hears("3", "30").await;
        let again: &[&str] = if durable { &[] } else { &["Looking for Ana..."] };
        let expected = [again, &["How old are you, Ana?", "Done, Ana."]].concat();
        assert_eq!(answers, expected, "durable: {durable}");
        assert_eq!(b.outcomes(), [HandoverOutcome::Resumed]);
        fleet.stage.clock.advance(Duration::from_secs(120)).await;
        assert_eq!(a.channel.texts_to("ana").len(), 2, "a stale owner answers");
        assert_eq!(b.hears("4", "?").await, ["What?"]);
    }
}

/// The replica answers Ana, and dies before it acknowledges what she said.
async fn dies_before_acknowledging(a: Replica, event: &str, text: &str) {
    a.life.journal.fault_at(WritePoint::InboxFinish, 1, Fault::CrashBefore);
    a.life.deliver_to(&a.channel, Inbound::text(event, "ana", text)).await;
    a.life.until("the crash", || a.life.journal.crashed()).await;
    a.dies().await;
}

#[tokio::test]
async fn an_answer_that_comes_again_after_the_next_one_is_not_a_second_answer() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let mut a = fleet.start(with(signup().persistent()));
    let mut b = fleet.start(with(signup().persistent()));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    let channel = a.channel.clone();
    dies_before_acknowledging(a, "2", "Ana").await;
    assert_eq!(channel.texts_to("ana"), ["What is your name?", "How old are you, Ana?"]);
    assert_eq!(b.hears("3", "30").await, ["Done, Ana."]);
    // The lease of the dead one runs out, and what it had not acknowledged runs again.
    fleet.stage.clock.advance(Duration::from_secs(120)).await;
    assert_eq!(b.channel.texts_to("ana"), ["Done, Ana."]);
}

#[tokio::test]
async fn an_answer_that_comes_again_after_its_flow_timed_out_is_not_routed() {
    let brief = || signup_within(Duration::from_secs(20)).persistent();
    let mut fleet = Fleet::new(HandoverConfig::default());
    let mut a = fleet.start(with(brief()));
    let b = fleet.start(with(brief()));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    dies_before_acknowledging(a, "2", "Ana").await;
    fleet.stage.clock.advance(Duration::from_secs(180)).await;
    assert_eq!(b.channel.texts_to("ana"), ["Too late."]);
}

#[tokio::test]
async fn a_message_that_only_woke_a_step_which_then_ended_the_flow_is_routed() {
    let build = |runs: Arc<AtomicUsize>| {
        move |bot: BotBuilder| {
            let book = flow::<Signup>("signup")
                .ask("name", "What is your name?", |_, _| Ok(()))
                .do_("check", |_| async { Ok(Step::Next) })
                .do_("book", move |c: FlowCtx<Signup>| {
                    let first = runs.fetch_add(1, Ordering::SeqCst) == 0;
                    async move {
                        if first {
                            std::future::pending::<()>().await;
                        }
                        c.say("Booked.").await?;
                        Ok(Step::Next)
                    }
                })
                .persistent();
            with(book)(bot)
        }
    };
    let runs = Arc::new(AtomicUsize::new(0));
    let mut fleet = Fleet::new(HandoverConfig::default());
    let mut a = fleet.start(build(Arc::clone(&runs)));
    let mut b = fleet.start(build(Arc::clone(&runs)));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    a.life.deliver_to(&a.channel, Inbound::text("2", "ana", "Ana")).await;
    a.life.until("the booking", || runs.load(Ordering::SeqCst) == 1).await;
    a.dies().await;
    assert_eq!(b.hears("3", "Hello?").await, ["Booked.", "What?"]);
    fleet.stage.clock.advance(Duration::from_secs(120)).await;
    assert_eq!(b.channel.texts_to("ana"), ["Booked.", "What?"], "the answer that was left is handled again");
}

#[tokio::test]
async fn an_answer_to_a_question_whose_replica_died_before_it_wrote_that_it_waits_is_an_answer() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    let mut b = fleet.start(with(signup().persistent()));
    let a = fleet.start(with(signup().persistent()));
    // It writes that the flow begins, asks, and dies.
    a.life.store.crash_before_write(2);
    a.life.deliver_to(&a.channel, Inbound::text("1", "ana", "sign up")).await;
    a.life.until("the crash", || a.life.journal.crashed()).await;
    assert_eq!(a.channel.texts_to("ana"), ["What is your name?"]);
    a.dies().await;
    assert_eq!(b.hears("2", "Ana").await, ["How old are you, Ana?"]);
    fleet.stage.clock.advance(Duration::from_secs(120)).await;
    assert_eq!(b.hears("3", "30").await, ["Done, Ana."]);
}

#[tokio::test]
async fn a_step_whose_send_was_in_flight_waits_for_what_became_of_it() {
    let mut fleet = Fleet::new(HandoverConfig::default());
    // So that it never stands still by itself.
    let build = slow(Arc::new(AtomicUsize::new(1)));
    let (mut a, b) = (fleet.start(build.clone()), fleet.start(build));
    assert_eq!(a.hears("1", "sign up").await, ["What is your name?"]);
    a.channel.fault_when(|sent| (sent.text() == "Looking for Ana...").then_some(SendFault::HangAnswer));
    assert!(a.channel.deliver(Inbound::text("2", "ana", "Ana")).await.is_ok());
    let channel = a.channel.clone();
    a.life.until("the send is in flight", || channel.texts_to("ana").len() == 2).await;
    a.dies().await;
    // The next message comes long before it is known that nobody hears the answer of that send any more.
    assert!(b.channel.deliver(Inbound::text("3", "ana", "30")).await.is_ok());
    let said = || b.channel.texts_to("ana").len() >= 2;
    b.life.until("the end of the flow", said).await;
    b.life.settled().await;
    let said = b.channel.texts_to("ana");
    assert_eq!(said, ["How old are you, Ana?", "Done, Ana."], "{}", b.channel.transcript());
}
