//! Every write point, failing in every way, under every policy.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;

use botmesh_core::entropy::{Entropy, SeededEntropy};
use botmesh_testing::{Fault, WritePoint};
use futures_util::FutureExt;

use super::drive::{self, Ground, Play, Site, Trouble, ensure_known_writes};
use super::scenario::{Policy, Scenario};
use super::verify::{verify, verify_removal};
use crate::case::{cases, ensure};
use crate::{Case, CaseResult, Context, Failure, PASSED};

/// How many random runs a round has, and how many things may go wrong in one.
const RANDOM_RUNS: u64 = 24;
const MAX_TROUBLES: u64 = 3;

pub(super) fn cases() -> Vec<Case> {
    cases![
        every_write_point_is_reached: "the scenarios write at every point of the list, and nowhere else",
        a_failed_write_under_skip: "every write fails before it happens: each reply comes once",
        a_failed_write_under_resend: "every write fails before it happens: each reply comes once",
        a_failed_write_under_auto: "every write fails before it happens: each reply comes once",
        a_failed_write_with_tokens: "every write fails before it happens: each reply comes once",
        a_lost_answer_under_skip: "the answer of every write is lost: each reply comes once",
        a_lost_answer_under_resend: "the answer of every write is lost: each reply comes once",
        a_lost_answer_under_auto: "the answer of every write is lost: each reply comes once",
        a_lost_answer_with_tokens: "the answer of every write is lost: each reply comes once",
        a_write_that_hangs_under_skip: "every write stands still, goes on late or never: no reply comes twice",
        a_write_that_hangs_under_resend: "every write stands still, goes on late or never: no reply is lost",
        a_write_that_hangs_under_auto: "every write stands still, goes on late or never: no reply comes twice",
        a_write_that_hangs_with_tokens: "every write stands still, goes on late or never: each reply comes once",
        a_crash_before_a_write_under_skip: "the bot dies before every write: no reply comes twice",
        a_crash_before_a_write_under_resend: "the bot dies before every write: no reply is lost",
        a_crash_before_a_write_under_auto: "the bot dies before every write: no reply comes twice",
        a_crash_before_a_write_with_tokens: "the bot dies before every write: each reply comes once",
        a_crash_after_a_write_under_skip: "the bot dies after every write: no reply comes twice",
        a_crash_after_a_write_under_resend: "the bot dies after every write: no reply is lost",
        a_crash_after_a_write_under_auto: "the bot dies after every write: no reply comes twice",
        a_crash_after_a_write_with_tokens: "the bot dies after every write: each reply comes once",
        a_crash_amid_a_commit_under_skip: "the bot dies when one write of a commit is done: no reply comes twice",
        a_crash_amid_a_commit_under_resend: "the bot dies when one write of a commit is done: no reply is lost",
        a_crash_amid_a_commit_under_auto: "the bot dies when one write of a commit is done: no reply comes twice",
        a_crash_amid_a_commit_with_tokens: "the bot dies when one write of a commit is done: each reply comes once",
        random_faults_at_random_writes: "up to three random faults in several lives: what the policy promises",
    ]
}

macro_rules! matrix {
    ($($name:ident: $faults:expr, $policy:ident;)+) => {
        $(async fn $name(context: &mut Context) -> CaseResult {
            at_every_point(context, &$faults, Policy::$policy).await
        })+
    };
}

matrix! {
    a_failed_write_under_skip: [Fault::FailBefore], Skip;
    a_failed_write_under_resend: [Fault::FailBefore], Resend;
    a_failed_write_under_auto: [Fault::FailBefore], Auto;
    a_failed_write_with_tokens: [Fault::FailBefore], AutoWithTokens;
    a_lost_answer_under_skip: [Fault::LoseAnswer], Skip;
    a_lost_answer_under_resend: [Fault::LoseAnswer], Resend;
    a_lost_answer_under_auto: [Fault::LoseAnswer], Auto;
    a_lost_answer_with_tokens: [Fault::LoseAnswer], AutoWithTokens;
    a_write_that_hangs_under_skip: [Fault::Hang, Fault::HangAfter], Skip;
    a_write_that_hangs_under_resend: [Fault::Hang, Fault::HangAfter], Resend;
    a_write_that_hangs_under_auto: [Fault::Hang, Fault::HangAfter], Auto;
    a_write_that_hangs_with_tokens: [Fault::Hang, Fault::HangAfter], AutoWithTokens;
    a_crash_before_a_write_under_skip: [Fault::CrashBefore], Skip;
    a_crash_before_a_write_under_resend: [Fault::CrashBefore], Resend;
    a_crash_before_a_write_under_auto: [Fault::CrashBefore], Auto;
    a_crash_before_a_write_with_tokens: [Fault::CrashBefore], AutoWithTokens;
    a_crash_after_a_write_under_skip: [Fault::CrashAfter], Skip;
    a_crash_after_a_write_under_resend: [Fault::CrashAfter], Resend;
    a_crash_after_a_write_under_auto: [Fault::CrashAfter], Auto;
    a_crash_after_a_write_with_tokens: [Fault::CrashAfter], AutoWithTokens;
    a_crash_amid_a_commit_under_skip: [Fault::CrashAmid], Skip;
    a_crash_amid_a_commit_under_resend: [Fault::CrashAmid], Resend;
    a_crash_amid_a_commit_under_auto: [Fault::CrashAmid], Auto;
    a_crash_amid_a_commit_with_tokens: [Fault::CrashAmid], AutoWithTokens;
}

/// The runs of one case, each with data of its own.
struct Runs<'a> {
    context: &'a mut Context,
    dice: SeededEntropy,
}

impl<'a> Runs<'a> {
    fn new(context: &'a mut Context) -> Self {
        let dice = context.entropy();
        Self { context, dice }
    }

    /// Plays a scenario to its end and verifies it. Whether every fault happened.
    async fn play(
        &mut self,
        scenario: Scenario,
        policy: Policy,
        troubles: &[Trouble],
    ) -> Result<(Play, bool), Failure> {
        let run = self.context.tally().runs;
        self.context.tally().runs += 1;
        let ground = Ground::new(self.context, &format!("bot {run}"))?;
        let dice = SeededEntropy::new(self.dice.next_u64());
        let mut play = Play::new(&ground, scenario, policy, troubles.to_vec(), dice);
        let whole = AssertUnwindSafe(play_and_verify(&mut play)).catch_unwind().await;
        let result = whole.unwrap_or_else(|panic| Err(Failure::new(text_of(&*panic))));
        let what = || format!("{}, {policy:?}, with {troubles:?}", scenario.name);
        result.map_err(|failure| failure.during(&what()))?;
        let (pending, _) = play.leftovers();
        Ok((play, pending == 0))
    }

    fn below(&self, bound: u64) -> u64 {
        self.dice.next_u64() % bound.max(1)
    }
}

async fn play_and_verify(play: &mut Play) -> Result<(), Failure> {
    play.run().await?;
    verify(play).await?;
    if play.scenario.purges && play.concerns_removal() {
        play.outlive_retention().await?;
        verify_removal(play).await?;
    }
    ensure_known_writes(play)
}

/// Where a point is written: in which scenario, in which of its lives, the how many-th time.
type Place = (Scenario, u64, u64);

/// Where the scenarios write when nothing goes wrong. They do the same over every backend, so memory will do.
async fn places(policy: Policy) -> Result<BTreeMap<WritePoint, Vec<Place>>, Failure> {
    let mut places: BTreeMap<_, Vec<Place>> = BTreeMap::new();
    for scenario in Scenario::ALL {
        let mut play = Play::new(&Ground::in_memory(), scenario, policy, Vec::new(), SeededEntropy::new(0));
        play.run().await.map_err(|failure| failure.during("without faults, in memory"))?;
        let mut lives = play.points();
        if scenario.purges {
            play.outlive_retention().await?;
            // Only runs about removals go on so long.
            for (life, points) in lives.iter_mut().zip(play.points()) {
                life.extend(points.into_iter().filter(|(point, _)| drive::removes(*point)));
            }
        }
        for (life, points) in (1..).zip(lives) {
            for (point, times) in points {
                let all = (1..=times).map(|nth| (scenario, life, nth));
                places.entry(point).or_default().extend(all);
            }
        }
    }
    Ok(places)
}

async fn at_every_point(context: &mut Context, faults: &[Fault], policy: Policy) -> CaseResult {
    let rounds = context.rounds();
    let mut runs = Runs::new(context);
    let mut reached = BTreeSet::new();
    for (point, places) in places(policy).await? {
        // Random places, and at least one for each kind of fault.
        for fault in (0..rounds).flat_map(|_| faults) {
            let place = runs.below(places.len() as u64);
            let (scenario, life, nth) = places[usize::try_from(place).unwrap_or_default()];
            let trouble = Trouble { life, place: Site::Point(point, nth), fault: *fault };
            let (_, happened) = runs.play(scenario, policy, &[trouble]).await?;
            if happened {
                reached.insert(point);
            }
        }
    }
    let names = reached.iter().map(|point| point.name());
    runs.context.tally().points.extend(names);
    let missing: Vec<_> = all_points(policy).filter(|point| !reached.contains(point)).collect();
    ensure!(missing.is_empty(), "nothing went wrong at {missing:?}");
    PASSED
}

/// The points that a bot reaches under a policy: where outcomes are known for sure or repeated, no send stays unknown.
fn all_points(policy: Policy) -> impl Iterator<Item = WritePoint> {
    let reached = move |point: &&WritePoint| policy.may_lose() || **point != WritePoint::OutboxUnknown;
    WritePoint::ALL.iter().filter(reached).copied()
}

async fn every_write_point_is_reached(context: &mut Context) -> CaseResult {
    let mut runs = Runs::new(context);
    let mut reached = BTreeSet::new();
    for scenario in Scenario::ALL {
        let (play, _) = runs.play(scenario, Policy::Skip, &[]).await?;
        reached.extend(play.points().into_iter().flat_map(BTreeMap::into_keys));
    }
    runs.context.tally().points.extend(reached.iter().map(|point| point.name()));
    let missing: Vec<_> = WritePoint::ALL.iter().filter(|point| !reached.contains(point)).collect();
    ensure!(missing.is_empty(), "no scenario writes at {missing:?}");
    PASSED
}

async fn random_faults_at_random_writes(context: &mut Context) -> CaseResult {
    let rounds = u64::from(context.rounds());
    let mut runs = Runs::new(context);
    for _ in 0..RANDOM_RUNS * rounds {
        let scenario = Scenario::ALL[runs.below(Scenario::ALL.len() as u64) as usize];
        let policy = Policy::ALL[runs.below(Policy::ALL.len() as u64) as usize];
        let mut troubles = Vec::new();
        for life in 1..=1 + runs.below(MAX_TROUBLES) {
            let fault = Fault::ALL[runs.below(Fault::ALL.len() as u64) as usize];
            let place = Site::Commit(1 + runs.below(40));
            troubles.push(Trouble { life, place, fault });
        }
        runs.play(scenario, policy, &troubles).await?;
    }
    PASSED
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panicked".to_owned())
}
