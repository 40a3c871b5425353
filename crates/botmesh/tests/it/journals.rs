//! Nothing is lost and nothing comes twice, whichever write fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use botmesh::core::inbound::Inbound;
use botmesh::core::journal::InboxState;
use botmesh::core::provider::Resolve;
use botmesh::prelude::*;
use botmesh::{BotBuilder, OnAmbiguous};
use botmesh_testing::Fault;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};

use crate::support::{Life, Stage};

#[derive(Default, Serialize, Deserialize)]
struct Booking {
    name: String,
    day: String,
}

impl FlowState for Booking {}

async fn go(c: Ctx) -> Result {
    c.reply("one").await?;
    let times = c.user().increment("times", 1).await?;
    c.reply(format!("two {times}")).await?;
    Ok(())
}

pub(crate) fn desk(bot: BotBuilder) -> BotBuilder {
    let booking = flow("booking")
        .ask("name", "name?", |booking: &mut Booking, answer| {
            booking.name = answer.text().to_owned();
            Ok(())
        })
        .ask("day", "day?", |booking: &mut Booking, answer| {
            booking.day = answer.text().to_owned();
            Ok(())
        })
        .do_("save", |c| async move {
            c.user().increment("bookings", 1).await?;
            Ok(Step::Next)
        })
        .say(|booking: &Booking| format!("booked {} {}", booking.name, booking.day))
        .persistent();
    bot.when("go", go)
        .when("book", |c: Ctx| async move { c.enter("booking") })
        .when("count", |c: Ctx| async move {
            let bookings: i64 = c.user().get("bookings").await?.unwrap_or(0);
            c.reply(format!("{bookings} bookings")).await?;
            Result::<()>::Ok(())
        })
        .otherwise(|c: Ctx| async move { c.reply("what?").await })
        .flow(booking)
}

pub(crate) const MESSAGES: [&str; 7] = ["go", "book", "Ana", "monday", "go", "other", "count"];
pub(crate) const REPLIES: [&str; 9] =
    ["one", "two 1", "name?", "day?", "booked Ana monday", "one", "two 2", "what?", "1 bookings"];

/// Where something goes wrong.
#[derive(Clone, Copy, Debug)]
enum At {
    Commit(u64, Fault),
    Write { nth: u64, after: bool },
}

impl At {
    fn plan(self, life: &Life) {
        match self {
            Self::Commit(nth, fault) => life.journal.fail_commit(nth, fault),
            Self::Write { nth, after: true } => life.store.crash_after_write(nth),
            Self::Write { nth, after: false } => life.store.crash_before_write(nth),
        }
    }

    fn reached(self, life: &Life) -> bool {
        match self {
            Self::Commit(nth, _) => life.journal.commits() >= nth,
            Self::Write { nth, .. } => life.store.writes() >= nth,
        }
    }
}

/// A dialogue of one chat, in as many lives as it takes.
#[derive(Clone, Copy)]
struct Dialogue {
    resolve: Resolve,
    policy: OnAmbiguous,
    /// Whether each message waits for the answers before it.
    paced: bool,
}

impl Dialogue {
    const LOOKUP: Self = Self { resolve: Resolve::Lookup, policy: OnAmbiguous::Skip, paced: false };

    /// Delivers every message, as a channel does that repeats what was not confirmed; redeliveries are recognised.
    async fn deliver(self, life: &Life) {
        for (n, text) in MESSAGES.iter().enumerate() {
            while !life.deliver(Inbound::text(format!("m{n}"), "ana", *text)).await {
                if life.journal.crashed() {
                    return;
                }
            }
            if self.paced {
                life.settled().await;
            }
        }
        life.settled().await;
    }

    /// Lives with one fault each, and a last one without; `None` when not all faults were reached.
    async fn run(self, faults: &[At]) -> Option<Told> {
        let stage = Stage::new(self.resolve);
        let (mut events, mut last) = (Vec::new(), false);
        let mut faults = faults.iter();
        while !last {
            let durability = Durability::default().with_instance_id("bot").with_on_ambiguous(self.policy);
            let mut life = stage.start_with(durability, desk);
            let fault = faults.next();
            if let Some(fault) = fault {
                fault.plan(&life);
            }
            self.deliver(&life).await;
            events.extend(life.event_names());
            if fault.is_some_and(|fault| !fault.reached(&life)) {
                return None;
            }
            last = !life.journal.crashed();
            if last { life.stop().await } else { life.kill().await }
        }
        Some(Told { replies: stage.channel.texts_to("ana"), transcript: stage.channel.transcript(), events })
    }
}

/// What the user and the operator were told.
struct Told {
    replies: Vec<String>,
    transcript: String,
    events: Vec<&'static str>,
}

const FAULTS: [Fault; 4] = [Fault::FailBefore, Fault::LoseAnswer, Fault::CrashBefore, Fault::CrashAfter];

/// Case C03.
#[tokio::test]
async fn every_reply_comes_exactly_once_whichever_write_of_the_journal_fails() {
    for paced in [false, true] {
        for fault in FAULTS {
            let mut n = 0;
            let dialogue = Dialogue { paced, ..Dialogue::LOOKUP };
            while let Some(told) = dialogue.run(&[At::Commit(n + 1, fault)]).await {
                n += 1;
                assert_eq!(told.replies, REPLIES, "{fault:?} at commit {n}\n{}", told.transcript);
            }
            assert!(n > 16, "the dialogue has only {n} commits");
        }
    }
}

#[tokio::test]
async fn every_reply_comes_exactly_once_whichever_write_of_the_store_is_the_last() {
    for (paced, after) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut nth = 0;
        let dialogue = Dialogue { paced, ..Dialogue::LOOKUP };
        while let Some(told) = dialogue.run(&[At::Write { nth: nth + 1, after }]).await {
            nth += 1;
            assert_eq!(told.replies, REPLIES, "write {nth}, after: {after}\n{}", told.transcript);
        }
        assert!(nth > 6, "the dialogue has only {nth} writes");
    }
}

#[tokio::test]
async fn every_reply_comes_exactly_once_also_if_the_replay_dies() {
    for first in [Fault::CrashBefore, Fault::CrashAfter] {
        let mut tried = 0;
        for n in 1..20 {
            for m in 1..12 {
                let faults = [At::Commit(n, first), At::Commit(m, Fault::CrashAfter)];
                let Some(told) = Dialogue::LOOKUP.run(&faults).await else { break };
                tried += 1;
                assert_eq!(told.replies, REPLIES, "{first:?} at {n}, again at {m}\n{}", told.transcript);
            }
        }
        assert!(tried > 100, "only {tried} pairs of crashes");
    }
}

#[tokio::test]
async fn skipping_never_doubles_and_resending_never_loses() {
    // A channel that can say nothing leaves `Auto` no choice but to skip.
    for policy in [OnAmbiguous::Skip, OnAmbiguous::Resend, OnAmbiguous::Auto] {
        let mut ambiguous = 0;
        for fault in FAULTS {
            let mut n = 0;
            let dialogue = Dialogue { resolve: Resolve::Never, policy, paced: false };
            while let Some(told) = dialogue.run(&[At::Commit(n + 1, fault)]).await {
                n += 1;
                let mut expected = REPLIES.iter();
                let mut distinct = told.replies.clone();
                distinct.dedup();
                let transcript = told.transcript;
                match policy {
                    OnAmbiguous::Skip | OnAmbiguous::Auto => {
                        let once = told.replies.iter().all(|reply| expected.any(|next| next == reply));
                        assert!(once, "doubled, {fault:?} at commit {n}\n{transcript}");
                    }
                    OnAmbiguous::Resend => {
                        assert_eq!(distinct, REPLIES, "lost, {fault:?} at commit {n}\n{transcript}");
                    }
                }
                let told_so = told.events.contains(&"durability:ambiguous");
                ambiguous += usize::from(told_so);
                let exact = told.replies == REPLIES;
                assert!(exact || told_so, "nobody was told, {fault:?} at commit {n}\n{transcript}");
            }
        }
        assert!(ambiguous > 4, "only {ambiguous} crashes left a send ambiguous");
    }
}

#[tokio::test]
async fn a_message_with_one_reply_costs_three_commits() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| bot.when("hi", |c: Ctx| async move { c.reply("hello").await }));
    life.say("m1", "hi", 1).await;
    life.settled().await;
    let before = life.journal.commits();
    life.say("m2", "hi", 1).await;
    life.settled().await;
    assert_eq!(life.journal.commits() - before, 3);
    life.stop().await;
}

#[tokio::test]
async fn a_redelivery_is_recognised_also_after_a_restart() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(desk);
    life.say("m1", "go", 2).await;
    assert!(life.deliver(Inbound::text("m1", "ana", "go")).await);
    life.settled().await;
    life.stop().await;
    let life = stage.start(desk);
    assert!(life.deliver(Inbound::text("m1", "ana", "go")).await);
    life.settled().await;
    assert_eq!(stage.channel.texts_to("ana"), ["one", "two 1"]);
    assert_eq!(life.bot.metrics().inbound_duplicates, 1);
    life.stop().await;
}

/// Case C05.
#[tokio::test]
async fn the_same_id_of_two_people_or_two_kinds_is_not_a_redelivery() {
    let stage = Stage::new(Resolve::Never);
    let life = stage.start(|bot| bot.otherwise(|c: Ctx| async move { c.reply("yes").await }));
    let pressed = || InboundBody::Interaction { id: "b".to_owned(), title: "B".to_owned() };
    let said = || InboundBody::Text { text: "hi".to_owned() };
    for _ in 0..2 {
        for (person, body) in [("ana", said()), ("bob", said()), ("ana", pressed()), ("bob", pressed())] {
            let mut inbound = Inbound::private("3EB0AA", "group", body);
            inbound.group = true;
            inbound.sender = Some(botmesh::core::inbound::Participant::new(person));
            assert!(life.deliver(inbound).await);
        }
    }
    life.until("four answers", || stage.channel.texts_to("group").len() == 4).await;
    life.settled().await;
    assert_eq!((stage.channel.delivered().len(), life.bot.metrics().inbound_duplicates), (4, 4));
    life.stop().await;
}

#[tokio::test]
async fn an_event_whose_delivery_was_cut_off_is_handled_once() {
    for fault in [Fault::Hang, Fault::HangAfter] {
        let stage = Stage::new(Resolve::Never);
        let life = stage.start(desk);
        life.say("m0", "go", 2).await;
        life.settled().await;
        life.journal.fail_next(fault);
        let cut_off = stage.channel.deliver(Inbound::text("m1", "ana", "go")).now_or_never();
        assert!(cut_off.is_none(), "it was taken over at once");
        life.journal.release();
        assert!(life.deliver(Inbound::text("m1", "ana", "go")).await);
        life.until("its replies", || stage.channel.texts_to("ana").len() >= 4).await;
        life.settled().await;
        assert_eq!(stage.channel.texts_to("ana"), ["one", "two 1", "one", "two 2"], "{fault:?}");
        life.stop().await;
    }
}

/// Case B09.
#[tokio::test]
async fn a_failing_acknowledgement_does_not_run_the_handler_again() {
    let stage = Stage::new(Resolve::Never);
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let life = stage.start(move |bot| {
        bot.otherwise(move |c: Ctx| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move { c.reply(c.text()).await }
        })
    });
    life.say("m0", "hi", 1).await;
    life.settled().await;
    let first = life.journal.commits() + 1;
    // One commit takes the event over, one begins the send; the next three are tries to finish it.
    for n in 2..5 {
        life.journal.fail_commit(first + n, Fault::FailBefore);
    }
    life.say("m1", "ho", 1).await;
    life.settled().await;
    assert_eq!(life.journal.commits(), first + 5, "the acknowledgement was not tried four times");
    stage.clock.advance(Duration::from_secs(120)).await;
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert_eq!((stage.channel.sent().len(), life.bot.metrics().inbound_replayed), (2, 0));
    let journal = life.bot.durability().expect("a durable bot");
    let done = journal.inbox().list(InboxState::Done, None, 10).await.expect("a listing");
    assert_eq!(done.records.len(), 2);
    life.stop().await;
}

#[tokio::test]
async fn without_an_inbox_a_message_is_refused_or_handled_as_configured() {
    for fail_open in [false, true] {
        let stage = Stage::new(Resolve::Never);
        let runs = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&runs);
        let mut durability = Durability::default().with_instance_id("bot");
        durability.fail_open = fail_open;
        let mut life = stage.start_with(durability, |bot| {
            bot.otherwise(move |_: Ctx| {
                counted.fetch_add(1, Ordering::Relaxed);
                async {}
            })
        });
        assert!(life.deliver(Inbound::text("m0", "ana", "hi")).await);
        life.settled().await;
        life.journal.set_down(true);
        assert_eq!(life.deliver(Inbound::text("m1", "ana", "hi")).await, fail_open);
        life.settled().await;
        assert_eq!(runs.load(Ordering::Relaxed), 1 + u32::from(fail_open));
        assert!(life.event_names().contains(&"durability:unavailable"));
        life.journal.set_down(false);
        life.stop().await;
    }
}

#[tokio::test]
async fn a_message_handled_without_the_inbox_is_answered_without_the_outbox() {
    let stage = Stage::new(Resolve::Never);
    let mut durability = Durability::default().with_instance_id("bot");
    durability.fail_open = true;
    let life = stage.start_with(durability, |bot| {
        bot.otherwise(|c: Ctx| async move {
            c.reply(format!("{} one", c.text())).await?;
            c.reply(format!("{} two", c.text())).await
        })
    });
    life.started().await;
    life.journal.set_down(true);
    // Also when the backend is away for longer than a lease.
    for (n, text) in ["a", "b"].into_iter().enumerate() {
        assert!(life.deliver(Inbound::text(text, "ana", text)).await);
        life.until("both replies", || stage.channel.texts_to("ana").len() == 2 * (n + 1)).await;
        stage.clock.advance(std::time::Duration::from_secs(90)).await;
    }
    assert_eq!(stage.channel.texts_to("ana"), ["a one", "a two", "b one", "b two"]);
    let metrics = life.bot.metrics();
    assert_eq!((metrics.outbox_bypassed, metrics.outbox_journaled), (4, 0));
    life.journal.set_down(false);
    assert_eq!(life.say("c", "c", 2).await, ["c one", "c two"]);
    assert_eq!(life.bot.metrics().outbox_bypassed, 4);
    assert_eq!(stage.channel.sent().len(), 6);
    life.stop().await;
}

#[tokio::test]
async fn a_handler_finds_its_message_in_the_inbox() {
    let stage = Stage::new(Resolve::Never);
    let bot = Arc::new(std::sync::OnceLock::<Bot>::new());
    let looks = Arc::clone(&bot);
    let life = stage.start(move |builder| {
        builder.otherwise(move |c: Ctx| {
            let journal = looks.get().and_then(Bot::durability).expect("a durable bot");
            async move {
                let record = c.record().expect("a record").clone();
                let stored = journal.inbox().get(&record).await?.ok_or("it is not there")?.record;
                c.reply(format!("{:?} {} {}", stored.state, stored.attempts, stored.inbound.readable_text()))
                    .await?;
                Result::<()>::Ok(())
            }
        })
    });
    assert!(bot.set(life.bot.clone()).is_ok());
    assert_eq!(life.say("m1", "hi", 1).await, ["Working 1 hi"]);
    life.stop().await;
}
