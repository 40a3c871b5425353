//! The journals under a model checker: every order in which a few faults can meet, not a sample of them.
//!
//! Two instances handle a message or two of one chat, each with a send or two, or with one text in two parts. Any of them
//! may die and start again, lose its lease while it lives and goes on writing, or lose the backend's or the channel's
//! answer; sweepers act on what they saw some time ago; an operator replays and retries. Every step is taken by the code
//! that the program runs: the transitions of [`InboxRecord`] and [`OutboxRecord`], [`Sessions`], [`OnAmbiguous`],
//! [`Follows`], and the committer of the journals for answers that are lost.
//! Compare-and-set is the only way to write. What is checked in each state is listed in `bots.rs`.
//!
//! `cargo test -p botmesh-core --test model -- --nocapture` prints how many states each setting has, and which rule each
//! promise needs. With `BOTMESH_MODEL=deep` in the environment it checks larger settings, which takes minutes; add
//! `--release`.
//!
//! # Reading a counterexample
//!
//! A broken promise is shown as its shortest history: the steps, and between them, indented, what is stored. `a@1` is
//! the first start of instance `a`; messages and sends are counted from 0; a step with `loses its answer` wrote to a
//! backend whose answer did not come (the write takes effect with `Land`, `LandLate` or `FindOut`, if ever). A record is
//! its state, version, attempts, owner and, if it has one, its due time. Read the last step first: it breaks the promise.
//! Then look upwards for the write that it did not know of.
//!
//! # What it does not show
//!
//! Time stands still, so nothing is said about delays. A sweep may find the same thing for ever: that it must not is only
//! shown for states in which nothing else can happen ("no record is stuck"). User state and flows are not in it; turns have
//! a model of their own (`tests/turns`).
//!
//! [`Follows`]: botmesh_core::journal::Follows
//! [`InboxRecord`]: botmesh_core::journal::InboxRecord
//! [`OutboxRecord`]: botmesh_core::journal::OutboxRecord
//! [`Sessions`]: botmesh_core::journal::Sessions

mod bots;
mod real;
mod run;
mod sends;
mod setting;
mod state;
mod steps;

use std::fmt::Write as _;
use std::num::NonZero;

use botmesh_core::journal::OnAmbiguous::{Auto, Resend, Skip};
use stateright::{Checker, HasDiscoveries, Model, Path};

use bots::{Action, BUDGET, Bots, CLAIMED, DONE, KEPT, ORDER, SENT, UNDOUBLED, UNSTUCK, USEFUL};
use setting::{Broken, Faults, Setting};
use state::State;
use steps::rows;

const NONE: Faults = Faults {
    crashes: 0,
    usurpers: 0,
    expiries: 0,
    lost_answers: 0,
    refusals: 0,
    timeouts: 0,
    failures: 0,
    lost_turns: 0,
    redeliveries: 0,
    replays: 0,
    retries: 0,
};

/// The settings of every run.
fn usual() -> Vec<Setting> {
    let lease = Faults { crashes: 1, expiries: 1, ..NONE };
    let ambiguous = Faults { crashes: 1, timeouts: 1, ..NONE };
    vec![
        Setting::new(Skip, Faults { lost_answers: 1, ..lease }),
        Setting::new(Skip, Faults { timeouts: 1, refusals: 1, ..lease }),
        Setting::new(Skip, Faults { expiries: 2, lost_answers: 1, ..NONE }),
        Setting::new(Skip, Faults { lost_turns: 1, refusals: 1, lost_answers: 1, ..NONE }),
        Setting::new(Skip, Faults { usurpers: 1, expiries: 1, ..NONE }),
        Setting::new(Skip, Faults { replays: 1, retries: 1, redeliveries: 1, ..ambiguous }),
        Setting::new(Skip, Faults { failures: 2, ..ambiguous }),
        Setting { sends: 2, ..Setting::new(Skip, ambiguous) },
        Setting { messages: 2, ..Setting::new(Skip, Faults { crashes: 1, ..NONE }) },
        Setting::new(Skip, Faults { refusals: 1, ..ambiguous }).in_parts(),
        Setting::new(Skip, Faults { refusals: 1, lost_answers: 1, lost_turns: 1, ..NONE }).in_parts(),
        Setting::new(Resend, Faults { expiries: 1, timeouts: 1, ..NONE }),
        Setting::new(Resend, Faults { refusals: 1, ..ambiguous }),
        Setting::new(Resend, Faults { expiries: 1, timeouts: 1, ..NONE }).deduping(),
        Setting::new(Skip, Faults { retries: 1, ..ambiguous }).deduping(),
        Setting::new(Auto, Faults { expiries: 1, timeouts: 1, ..NONE }).echoing(),
        Setting::new(Auto, Faults { lost_answers: 1, ..ambiguous }).echoing(),
        Setting::new(Resend, Faults { timeouts: 2, ..ambiguous }).echoing(),
        Setting::new(Skip, Faults { refusals: 1, lost_answers: 1, ..ambiguous }).answering(),
    ]
}

/// The settings for somebody who has time.
fn deep() -> Vec<Setting> {
    let lease = Faults { crashes: 1, expiries: 1, ..NONE };
    let ambiguous = Faults { crashes: 1, timeouts: 1, ..NONE };
    let two_messages = |faults| Setting { messages: 2, ..Setting::new(Skip, faults) };
    let two_sends = |policy, faults| Setting { sends: 2, ..Setting::new(policy, faults) };
    vec![
        Setting::new(Skip, Faults { lost_answers: 2, ..lease }),
        Setting::new(Skip, Faults { lost_answers: 1, timeouts: 1, refusals: 1, ..lease }),
        Setting::new(Skip, Faults { crashes: 2, expiries: 2, timeouts: 1, ..NONE }),
        Setting::new(Skip, Faults { lost_turns: 1, refusals: 1, lost_answers: 1, ..lease }),
        Setting::new(Skip, Faults { usurpers: 1, timeouts: 1, ..lease }),
        Setting::new(Skip, Faults { replays: 1, retries: 1, redeliveries: 1, lost_answers: 1, ..ambiguous }),
        two_sends(Skip, Faults { lost_answers: 1, timeouts: 1, ..lease }),
        two_sends(Resend, Faults { lost_answers: 1, ..ambiguous }),
        two_messages(Faults { lost_answers: 1, ..ambiguous }),
        two_messages(Faults { timeouts: 1, ..lease }),
        Setting::new(Skip, Faults { timeouts: 1, refusals: 2, ..lease }).in_parts(),
        Setting::new(Resend, Faults { lost_answers: 1, ..ambiguous }).in_parts(),
        Setting::new(Resend, Faults { timeouts: 1, lost_answers: 1, ..lease }),
        Setting::new(Resend, Faults { timeouts: 2, refusals: 1, ..lease }),
        Setting::new(Resend, Faults { timeouts: 1, lost_answers: 1, retries: 1, ..lease }).deduping(),
    ]
}

#[test]
fn the_promises_hold_in_every_order_of_a_few_faults() {
    let is_deep = std::env::var("BOTMESH_MODEL").is_ok_and(|value| value == "deep");
    let settings = if is_deep { deep() } else { usual() };
    let threads = if is_deep { std::thread::available_parallelism().map_or(1, NonZero::get) } else { 1 };
    println!("{:>9}  {:>5}  setting", "states", "depth");
    for setting in settings {
        let name = setting.to_string();
        let bots = Bots::new(setting).checker().threads(threads);
        let checked = bots.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        println!("{:>9}  {:>5}  {name}", checked.unique_state_count(), checked.max_depth());
        let mut found = checked.discoveries();
        assert!(found.remove(USEFUL).is_some(), "{name}: nothing is ever done and sent");
        if let Some((promise, path)) = found.into_iter().next() {
            panic!("{name}: it is broken that {promise}\n{}", history(path));
        }
    }
}

/// A rule, the promise that needs it, and the setting that shows so.
fn rules() -> Vec<(Broken, &'static str, Setting)> {
    use Broken::*;
    let skip = |faults| Setting::new(Skip, faults);
    let (crash, expiry) = (Faults { crashes: 1, ..NONE }, Faults { expiries: 1, ..NONE });
    let lost = Faults { lost_answers: 1, ..NONE };
    let operator = Faults { retries: 1, ..NONE };
    let timeout = Faults { timeouts: 1, ..NONE };
    let dropped = Faults { lost_turns: 1, lost_answers: 1, ..NONE };
    vec![
        (BlindWrites, DONE, skip(expiry)),
        (BlindWrites, UNDOUBLED, skip(expiry)),
        (StaleRescue, DONE, skip(expiry)),
        (RunsWithoutTheClaim, CLAIMED, skip(Faults { crashes: 1, ..expiry })),
        (NoWriteIds, UNSTUCK, skip(lost)),
        (InsertOverwrites, DONE, skip(Faults { redeliveries: 1, ..NONE })),
        (FreeStart, BUDGET, skip(Faults { crashes: 3, ..NONE })),
        (FreeSend, BUDGET, skip(Faults { refusals: 3, ..NONE })),
        (ReleasedAndForgotten, UNSTUCK, skip(Faults { lost_turns: 1, ..NONE })),
        (RetryWithoutDue, UNSTUCK, skip(Faults { refusals: 1, ..NONE })),
        (EpochIgnored, UNSTUCK, skip(crash)),
        (AckBeforeSends, KEPT, skip(NONE)),
        (CallBeforeIntent, UNDOUBLED, skip(Faults { crashes: 1, lost_answers: 1, ..NONE })),
        (TimeoutIsFailure, UNDOUBLED, skip(timeout)),
        (IgnoresIntent, UNDOUBLED, skip(expiry)),
        (RetrySent, SENT, skip(operator)),
        (TakesBackAnothers, UNDOUBLED, skip(dropped)),
        (GivesUpUnderResend, KEPT, Setting::new(Resend, timeout)),
        (PartsOutOfOrder, ORDER, skip(Faults { refusals: 1, ..NONE }).in_parts()),
        (EchoNotAwaited, UNDOUBLED, Setting::new(Auto, timeout).echoing()),
        (TokenPerAttempt, UNDOUBLED, Setting::new(Resend, timeout).deduping()),
    ]
}

#[test]
fn the_checker_finds_each_rule_that_is_broken() {
    println!("{:>9}  {:>5}  {:<22}promise", "states", "steps", "rule");
    for (rule, promise, setting) in rules() {
        let whole =
            Bots::new(setting.clone()).checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        assert!(whole.discovery(promise).is_none(), "{rule:?}: it is broken without it");
        let bots = Bots::new(Setting { broken: Some(rule), ..setting });
        let this = HasDiscoveries::AllOf([promise].into());
        let checked = bots.checker().finish_when(this).spawn_bfs().join();
        let path = checked.discovery(promise);
        let path = path.unwrap_or_else(|| panic!("{rule:?}: {promise}, all the same"));
        let (states, steps) = (checked.unique_state_count(), path.into_actions().len());
        println!("{states:>9}  {steps:>5}  {:<22}{promise}", format!("{rule:?}"));
    }
}

/// A history, a line for each step.
fn history(path: Path<State, Action>) -> String {
    let mut text = String::new();
    for (state, action) in path.into_vec() {
        let State { sessions, sends, .. } = &state;
        let inbox: Vec<_> = rows(&state.inbox).map(|(_, row)| &row.held).collect();
        let outbox: Vec<_> = rows(&state.outbox).map(|(_, row)| &row.held).collect();
        let leases = sessions.map(|session| (session.epoch, session.lease));
        let delivered: Vec<u8> = sends.iter().map(|send| send.delivered).collect();
        let _ = writeln!(
            text,
            "    inbox {inbox:?}, outbox {outbox:?}, sessions {leases:?}, delivered {delivered:?}"
        );
        if let Some(Action { step, loses_answer }) = action {
            let _ = writeln!(text, "{step:?}{}", if loses_answer { ", loses its answer" } else { "" });
        }
    }
    text
}
