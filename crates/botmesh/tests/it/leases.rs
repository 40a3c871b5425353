//! Leases: who may act on what, when processes stand still, are cut off, replaced, or have clocks that step.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use botmesh::core::CancellationToken;
use botmesh::core::error::{ChannelError, ErrorClass, LeaseLost, LeaseLostReason, Phase, SendError};
use botmesh::core::inbound::Inbound;
use botmesh::core::journal::InboxState;
use botmesh::core::kv::Op;
use botmesh::core::provider::{
    AdmitError, Capabilities, ConnectionState, InboundSink, Provider, Resolve, SendReceipt, SendRequest,
};
use botmesh::core::time::{Clock, Timestamp};
use botmesh::prelude::*;
use botmesh::{BotBuilder, BotEvent};
use botmesh_testing::{Fault, LossyKv, VirtualClock};
use tokio::sync::{Semaphore, broadcast, watch};

use crate::support::{Life, Stage};

const SECOND: Duration = Duration::from_secs(1);

/// The clock of one machine: it may stand still with everything that sleeps on it, and its wall clock may step.
#[derive(Clone)]
struct MachineClock {
    time: VirtualClock,
    wall: Arc<AtomicI64>,
    frozen: watch::Sender<bool>,
}

impl MachineClock {
    /// Gives the next bot of `stage` a machine of its own.
    fn of_next(stage: &mut Stage) -> Self {
        let clock =
            Self { time: stage.clock.clone(), wall: Arc::default(), frozen: watch::Sender::new(false) };
        stage.own_clock = Some(Arc::new(clock.clone()));
        clock
    }

    fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    fn step_wall(&self, millis: i64) {
        self.wall.fetch_add(millis, Ordering::Relaxed);
    }
}

#[async_trait]
impl Clock for MachineClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.time.now().as_millis() + self.wall.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        self.time.monotonic()
    }

    async fn sleep(&self, duration: Duration) {
        self.time.sleep(duration).await;
        let thawed = self.frozen.subscribe().wait_for(|frozen| !frozen).await.is_ok();
        debug_assert!(thawed, "this clock holds the sender");
    }
}

/// A handler that waits for the gate and then replies, with what it noticed.
#[derive(Clone, Default)]
struct Gated {
    gate: Arc<Mutex<Option<Arc<Semaphore>>>>,
    starts: Arc<AtomicUsize>,
    refused: Arc<Mutex<Vec<LeaseLostReason>>>,
}

impl Gated {
    fn new() -> Self {
        let gated = Self::default();
        gated.gate.lock().expect("nobody panicked").replace(Arc::new(Semaphore::new(0)));
        gated
    }

    fn build(&self, bot: BotBuilder) -> BotBuilder {
        let gated = self.clone();
        bot.otherwise(move |c: Ctx| {
            let gated = gated.clone();
            async move {
                gated.starts.fetch_add(1, Ordering::Relaxed);
                let gate = gated.gate.lock().expect("nobody panicked").clone();
                if let Some(gate) = gate {
                    drop(gate.acquire().await);
                }
                let replied = c.reply(c.text()).await;
                if let Err(SendError::LeaseLost(LeaseLost { reason })) = &replied {
                    gated.refused.lock().expect("nobody panicked").push(*reason);
                }
                replied
            }
        })
    }

    fn open(&self) {
        if let Some(gate) = self.gate.lock().expect("nobody panicked").as_ref() {
            gate.add_permits(1_000);
        }
    }

    fn starts(&self) -> usize {
        self.starts.load(Ordering::Relaxed)
    }

    fn refused(&self) -> Vec<LeaseLostReason> {
        self.refused.lock().expect("nobody panicked").clone()
    }
}

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

fn named(instance: &str) -> Durability {
    Durability::default().with_instance_id(instance)
}

fn with_leases(instance: &str, messages: Duration, sends: Duration) -> Durability {
    let mut durability = named(instance);
    (durability.inbox.lease, durability.outbox.lease) = (messages, sends);
    durability
}

fn count(life: &mut Life, names: &[&str]) -> Vec<usize> {
    let told = life.event_names();
    names.iter().map(|name| told.iter().filter(|one| one == &name).count()).collect()
}

/// Whether the event was told since the last look.
fn tells(events: &mut broadcast::Receiver<BotEvent>, name: &str) -> bool {
    std::iter::from_fn(|| events.try_recv().ok()).any(|event| event.name() == name)
}

async fn in_state(life: &Life, state: InboxState) -> usize {
    life.journals().inbox().list(state, None, 1_000).await.expect("a listing").records.len()
}

#[tokio::test]
async fn a01_a_process_that_stood_still_past_its_lease_sends_nothing_and_the_message_is_answered_once() {
    let mut stage = Stage::new(Resolve::Never);
    let machine = MachineClock::of_next(&mut stage);
    let slow = Gated::new();
    let mut frozen = stage.start(|bot| slow.build(bot));
    assert!(frozen.deliver(Inbound::text("m1", "ana", "hi")).await);
    machine.freeze(true);
    stage.own_clock = None;
    let other = stage.start_with(named("other"), echo);
    other.until("the other one's reply", || stage.channel.texts_to("ana") == ["hi"]).await;
    stage.clock.advance(10 * SECOND).await;
    // It goes on where it stood: right before its reply.
    slow.open();
    frozen.until("its refusal", || !slow.refused().is_empty()).await;
    machine.freeze(false);
    frozen.until("its end", || frozen.ended.get().is_some()).await;
    assert_eq!(slow.refused(), [LeaseLostReason::Stalled]);
    assert_eq!((stage.channel.sent().len(), slow.starts()), (1, 1));
    assert_eq!(frozen.bot.metrics().stale_leases, 1);
    assert_eq!(in_state(&other, InboxState::Done).await, 1);
    let error = frozen.ended.get().expect("an end").as_ref().expect_err("a reason");
    assert!(error.contains("`bot`") && error.contains("outbox.lease"), "{error}");
    assert_eq!(count(&mut frozen, &["durability:lease-lost", "durability:superseded"]), [1, 1]);
    other.stop().await;
}

#[tokio::test]
async fn a_process_that_stood_still_goes_on_when_nobody_took_anything_over() {
    let mut stage = Stage::new(Resolve::Never);
    let machine = MachineClock::of_next(&mut stage);
    let slow = Gated::new();
    let mut life = stage.start(|bot| slow.build(bot));
    assert!(life.deliver(Inbound::text("m1", "ana", "1")).await);
    assert!(life.deliver(Inbound::text("m2", "ana", "2")).await);
    machine.freeze(true);
    stage.clock.advance(120 * SECOND).await;
    slow.open();
    life.until("its refusal", || !slow.refused().is_empty()).await;
    // Not one handler more begins without the lease.
    stage.clock.advance(10 * SECOND).await;
    assert_eq!((slow.starts(), stage.channel.sent().len()), (1, 0));
    machine.freeze(false);
    life.until("both replies", || stage.channel.texts_to("ana") == ["1", "2"]).await;
    life.settled().await;
    assert_eq!((slow.starts(), stage.channel.sent().len()), (3, 2));
    assert_eq!(in_state(&life, InboxState::Done).await, 2);
    assert_eq!(life.bot.metrics().stale_leases, 0);
    let events = ["durability:lease-lost", "durability:lease-renewed", "durability:superseded"];
    assert_eq!(count(&mut life, &events), [1, 1, 0]);
    life.stop().await;
}

#[tokio::test]
async fn no_handler_begins_before_the_lease_is_held_again() {
    let mut stage = Stage::new(Resolve::Never);
    let machine = MachineClock::of_next(&mut stage);
    let (gate, starts) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (waits, count) = (Arc::clone(&gate), Arc::clone(&starts));
    // It says nothing, so that nothing of it is refused.
    let life = stage.start(|bot| {
        bot.otherwise(move |_: Ctx| {
            let gate = Arc::clone(&waits);
            count.fetch_add(1, Ordering::Relaxed);
            async move { drop(gate.acquire().await) }
        })
    });
    for event in ["m1", "m2"] {
        assert!(life.deliver(Inbound::text(event, "ana", "hi")).await);
    }
    machine.freeze(true);
    stage.clock.advance(120 * SECOND).await;
    gate.add_permits(10);
    stage.clock.advance(10 * SECOND).await;
    assert_eq!((starts.load(Ordering::Relaxed), in_state(&life, InboxState::Done).await), (1, 1));
    machine.freeze(false);
    life.until("the second", || starts.load(Ordering::Relaxed) == 2).await;
    life.settled().await;
    assert_eq!(in_state(&life, InboxState::Done).await, 2);
    life.stop().await;
}

#[tokio::test]
async fn what_was_taken_over_meanwhile_is_not_sent_although_the_lease_is_held_again() {
    let mut stage = Stage::new(Resolve::Never);
    let machine = MachineClock::of_next(&mut stage);
    let (slow, slower) = (Gated::new(), Gated::new());
    let first = stage.start(|bot| slow.build(bot));
    let mut events = first.bot.events();
    assert!(first.deliver(Inbound::text("m1", "ana", "hi")).await);
    machine.freeze(true);
    stage.own_clock = None;
    let second = stage.start_with(named("other"), |bot| slower.build(bot));
    // Right then, before the session is removed.
    second.until("the takeover", || slower.starts() == 1).await;
    machine.freeze(false);
    first.until("the renewal", || tells(&mut events, "durability:lease-renewed")).await;
    slow.open();
    first.until("its refusal", || slow.refused() == [LeaseLostReason::Expired]).await;
    assert!(stage.channel.sent().is_empty());
    slower.open();
    second.until("the reply", || stage.channel.texts_to("ana") == ["hi"]).await;
    stage.clock.advance(120 * SECOND).await;
    assert_eq!((slow.starts(), slower.starts(), stage.channel.sent().len()), (1, 1, 1));
    assert_eq!(first.bot.metrics().stale_leases, 1);
    assert!(first.ended.get().is_none(), "it ended although it lost one message only");
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn a03_the_lease_is_held_until_what_is_in_flight_is_finished() {
    let stage = Stage::new(Resolve::Never);
    let slow = Gated::new();
    let lease = SECOND;
    let stopping = stage.start_with(with_leases("bot", lease, lease), |bot| slow.build(bot));
    assert!(stopping.deliver(Inbound::text("m1", "ana", "hi")).await);
    let other = stage.start_with(with_leases("other", lease, lease), |bot| slow.build(bot));
    stopping.bot.stop();
    stage.clock.advance(20 * SECOND).await;
    assert_eq!((slow.starts(), stage.channel.sent().len()), (1, 0));
    slow.open();
    stopping.until("its end", || stopping.ended.get().is_some()).await;
    stage.clock.advance(20 * SECOND).await;
    assert_eq!((slow.starts(), stage.channel.texts_to("ana").len()), (1, 1));
    assert_eq!((stopping.bot.metrics().stale_leases, other.bot.metrics().inbound_replayed), (0, 0));
    other.stop().await;
}

#[tokio::test]
async fn a03_what_is_not_finished_in_time_is_released_at_once() {
    let stage = Stage::new(Resolve::Never);
    let slow = Gated::new();
    let stopping = stage.start(|bot| slow.build(bot));
    assert!(stopping.deliver(Inbound::text("m1", "ana", "hi")).await);
    let other = stage.start_with(named("other"), echo);
    stopping.stop().await;
    // Far less than the lease.
    stage.clock.advance(2 * SECOND).await;
    assert_eq!(stage.channel.texts_to("ana"), ["hi"]);
    other.stop().await;
}

#[tokio::test]
async fn a05_a_process_that_drains_beside_its_successor_strands_nothing() {
    let stage = Stage::new(Resolve::Never);
    let slow = Gated::new();
    let durability = || with_leases("bot", 10 * SECOND, 10 * SECOND);
    let old = stage.start_with(durability(), |bot| slow.build(bot));
    for n in 0..20 {
        assert!(old.deliver(Inbound::text(format!("m{n}"), format!("chat-{}", n % 4), "hi")).await);
    }
    old.bot.stop();
    stage.clock.advance(SECOND / 2).await;
    let new = stage.start_with(durability(), echo);
    stage.clock.advance(SECOND / 2).await;
    slow.open();
    stage.clock.advance(SECOND / 2).await;
    old.kill().await;
    // The lease and one poll.
    stage.clock.advance(11 * SECOND).await;
    let states = [InboxState::Done, InboxState::Working, InboxState::Queued, InboxState::Waiting];
    let mut found = Vec::new();
    for state in states {
        found.push(in_state(&new, state).await);
    }
    assert_eq!(found, [20, 0, 0, 0]);
    assert_eq!(stage.channel.delivered().len(), 20);
    new.stop().await;
}

#[tokio::test]
async fn a_superseded_process_begins_nothing_more() {
    let stage = Stage::new(Resolve::Never);
    let slow = Gated::new();
    let mut old = stage.start(|bot| slow.build(bot));
    let mut events = old.bot.events();
    for n in 1..=3 {
        assert!(old.deliver(Inbound::text(format!("m{n}"), "ana", n.to_string())).await);
    }
    let new = stage.start(echo);
    new.until("all replies", || stage.channel.texts_to("ana") == ["1", "2", "3"]).await;
    old.until("the notice", || tells(&mut events, "durability:superseded")).await;
    slow.open();
    old.until("its end", || old.ended.get().is_some()).await;
    assert_eq!((slow.starts(), slow.refused()), (1, vec![LeaseLostReason::Superseded]));
    assert_eq!(old.bot.metrics().stale_leases, 1);
    assert_eq!(stage.channel.sent().len(), 3);
    assert_eq!(count(&mut old, &["durability:superseded", "durability:lease-lost"]), [1, 0]);
    new.stop().await;
}

/// A channel that does not hear that it is to stop.
struct DeafChannel {
    connection: watch::Sender<ConnectionState>,
    sink: Mutex<Option<Arc<dyn InboundSink>>>,
}

#[async_trait]
impl Provider for DeafChannel {
    fn id(&self) -> &str {
        "deaf"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.connection.subscribe()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, _: CancellationToken) -> Result<(), ChannelError> {
        self.sink.lock().expect("nobody panicked").replace(sink);
        std::future::pending().await
    }

    async fn send(&self, _: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        Ok(SendReceipt { message: "sent".into() })
    }
}

#[tokio::test]
async fn a_superseded_process_takes_no_message_over() {
    let mut stage = Stage::new(Resolve::Never);
    let (connection, sink) = (watch::Sender::new(ConnectionState::Open), Mutex::new(None));
    let channel = Arc::new(DeafChannel { connection, sink });
    stage.provider = Some(Arc::<DeafChannel>::clone(&channel));
    let mut old = stage.start(echo);
    old.until("the channel", || channel.sink.lock().expect("nobody panicked").is_some()).await;
    let sink = channel.sink.lock().expect("nobody panicked").clone().expect("it runs");
    stage.provider = None;
    let new = stage.start(echo);
    let mut superseded = false;
    while !superseded {
        stage.clock.advance(SECOND / 10).await;
        superseded = count(&mut old, &["durability:superseded"]) == [1];
    }
    assert!(matches!(sink.admit(Inbound::text("m1", "ana", "hi")).await, Err(AdmitError::Stopping)));
    assert!(new.deliver(Inbound::text("m1", "ana", "hi")).await);
    new.until("the reply", || stage.channel.texts_to("ana") == ["hi"]).await;
    old.until("its end", || old.ended.get().is_some()).await;
    new.stop().await;
}

#[tokio::test]
async fn a07_a_takeover_that_comes_second_runs_nothing() {
    let stage = Stage::new(Resolve::Never);
    let stuck = Gated::new();
    let life = stage.start(|bot| stuck.build(bot));
    for n in 0..20 {
        assert!(life.deliver(Inbound::text(format!("m{n}"), format!("chat-{n}"), "hi")).await);
    }
    life.kill().await;
    let handled = [Gated::default(), Gated::default()];
    let late = stage.start_with(named("late"), |bot| handled[0].build(bot));
    // It has read the list of all twenty, and is slow to write that it takes them over.
    late.journal.fail_when(|ops| ops.len() == 20, Fault::Hang);
    late.until("the takeover that hangs", || late.journal.hanging() == 1).await;
    let quick = stage.start_with(named("quick"), |bot| handled[1].build(bot));
    quick.until("all replies", || stage.channel.delivered().len() == 20).await;
    late.journal.release();
    stage.clock.advance(120 * SECOND).await;
    assert_eq!((handled[0].starts(), handled[1].starts()), (0, 20));
    assert_eq!(stage.channel.sent().len(), 20);
    late.stop().await;
    quick.stop().await;
}

#[tokio::test]
async fn a15_a_wall_clock_that_steps_steals_no_lease_and_sends_nothing_early() {
    let mut stage = Stage::new(Resolve::Never);
    // A backend with a clock of its own.
    stage.kv = Arc::new(LossyKv::new(Arc::clone(&stage.kv)).with_clock(Arc::new(stage.clock.clone())));
    let slow = Gated::new();
    let steady = stage.start_with(named("steady"), |bot| slow.build(bot));
    assert!(steady.deliver(Inbound::text("m1", "ben", "hi")).await);
    let machine = MachineClock::of_next(&mut stage);
    let stepping = stage.start(echo);
    stepping.started().await;

    let slower = "in half a minute";
    let wait = 30 * SECOND;
    for (n, step) in [(0, -3_600_000), (1, 7_200_000)] {
        let busy = ChannelError::new(ErrorClass::RateLimited, Phase::Answered, "later");
        stage.channel.fail_next(busy.with_retry_after(wait));
        let failed = stage.clock.monotonic();
        stepping.bot.enqueue(format!("k{n}"), "ana", slower).await.expect("enqueued");
        stepping.until("the first attempt", || stage.channel.sent().len() == 1 + 2 * n).await;
        machine.step_wall(step);
        let polls = stepping.journal.reads();
        stage.clock.advance(10 * SECOND).await;
        assert!(stepping.journal.reads() >= polls + 10, "the sweeper slept through the step");
        assert_eq!(stage.channel.delivered().len(), n, "sent before it was due");
        stepping.until("the second attempt", || stage.channel.delivered().len() == 1 + n).await;
        assert!(stage.clock.monotonic() - failed >= wait, "sent before it was due");
        stage.clock.advance(120 * SECOND).await;
        assert_eq!((slow.starts(), stepping.bot.metrics().inbound_replayed), (1, 0));
    }
    slow.open();
    steady.until("the reply", || stage.channel.texts_to("ben") == ["hi"]).await;
    for life in [stepping, steady] {
        assert_eq!(life.bot.metrics().stale_leases, 0);
        life.stop().await;
    }
}

#[tokio::test]
async fn a15_a_step_of_the_one_clock_of_all_processes_steals_no_lease() {
    let stage = Stage::new(Resolve::Never);
    let slow = Gated::new();
    let one = stage.start_with(named("one"), |bot| slow.build(bot));
    assert!(one.deliver(Inbound::text("m1", "ana", "hi")).await);
    let other = stage.start_with(named("other"), echo);
    other.started().await;
    for step in [-3_600_000, 7_200_000, 60_000] {
        stage.clock.step_wall(step);
        stage.clock.advance(120 * SECOND).await;
        assert_eq!((slow.starts(), other.bot.metrics().inbound_replayed), (1, 0), "after {step} ms");
    }
    // A process that is gone is still found out.
    one.kill().await;
    stage.clock.step_wall(3_600_000);
    stage.clock.advance(70 * SECOND).await;
    assert_eq!(stage.channel.texts_to("ana"), ["hi"]);
    other.stop().await;
}

#[tokio::test]
async fn sends_are_taken_over_after_their_lease_and_messages_after_theirs() {
    let stage = Stage::new(Resolve::Lookup);
    let durability = |instance| with_leases(instance, 60 * SECOND, 10 * SECOND);
    let life = stage.start_with(durability("bot"), echo);
    stage.channel.hang_next();
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.until("the send", || stage.channel.sent().len() == 1).await;
    life.kill().await;
    let other = stage.start_with(durability("other"), echo);
    stage.clock.advance(15 * SECOND).await;
    assert_eq!(stage.channel.texts_to("ana"), ["hi"]);
    assert_eq!(other.bot.metrics().inbound_replayed, 0, "the message's lease was shortened");
    other.until("the takeover", || other.bot.metrics().inbound_replayed == 1).await;
    stage.clock.advance(10 * SECOND).await;
    assert_eq!(stage.channel.texts_to("ana"), ["hi"]);
    assert_eq!(in_state(&other, InboxState::Done).await, 1);
    other.stop().await;
}

fn is_beat(ops: &[Op]) -> bool {
    ops.iter().any(|op| op.key().starts_with(b"s"))
}

#[tokio::test]
async fn a_beat_that_is_never_answered_costs_nothing() {
    for fault in [Fault::Hang, Fault::HangAfter] {
        let stage = Stage::new(Resolve::Never);
        let mut life = stage.start(echo);
        life.say("m0", "0", 1).await;
        life.journal.fail_when(is_beat, fault);
        life.until("a beat that hangs", || life.journal.hanging() == 1).await;
        stage.clock.advance(300 * SECOND).await;
        assert_eq!(life.journal.hanging(), 0, "{fault:?}: it waits for an answer for ever");
        assert_eq!(life.say("m1", "1", 1).await, ["1"], "{fault:?}");
        let events = ["durability:lease-lost", "durability:lease-renewed", "durability:superseded"];
        assert_eq!(count(&mut life, &events), [1, 1, 0], "{fault:?}");
        life.stop().await;
    }
}

#[tokio::test]
async fn an_outage_is_told_once_and_not_at_every_beat() {
    let stage = Stage::new(Resolve::Never);
    let mut life = stage.start(echo);
    life.say("m0", "0", 1).await;
    life.settled().await;
    life.journal.set_down(true);
    stage.clock.advance(600 * SECOND).await;
    let renewals = std::iter::from_fn(|| life.events.try_recv().ok())
        .filter(|event| event.to_string().contains("renewing the session"))
        .count();
    assert_eq!(renewals, 1);
    life.journal.set_down(false);
    assert_eq!(life.say("m1", "1", 1).await, ["1"]);
    life.stop().await;
}

#[tokio::test]
async fn a_run_that_is_dropped_gives_up_what_it_owns() {
    let stage = Stage::new(Resolve::Never);
    let slow = Gated::new();
    let life = stage.start(|bot| slow.build(bot));
    assert!(life.deliver(Inbound::text("m1", "ana", "hi")).await);
    life.spawner.kill("bot");
    let other = stage.start_with(named("other"), echo);
    stage.clock.advance(5 * SECOND).await;
    assert_eq!(stage.channel.texts_to("ana"), ["hi"]);
    assert!(life.spawner.running().is_empty(), "{:?} still run", life.spawner.running());
    other.stop().await;
}

#[tokio::test]
async fn k03_a_thousand_starts_leave_only_a_few_sessions() {
    let stage = Stage::new(Resolve::Never);
    let live = stage.start_with(named("live"), echo);
    live.started().await;
    for n in 0..1_000 {
        let life = stage.start_with(named(&format!("bot/{n:04}")), echo);
        life.started().await;
        if n % 2 == 0 { life.kill().await } else { life.stop().await }
    }
    // One more looks.
    let journal = stage.journal("the test").await;
    let mut left = usize::MAX;
    for _ in 0..100 {
        // The lease and one poll.
        stage.clock.advance(62 * SECOND).await;
        left = journal.sessions().await.expect("the sessions").len();
        if left <= 12 {
            return live.stop().await;
        }
    }
    panic!("{left} sessions are left");
}
