//! The turns of replicas under a model checker: every order in which a few faults can meet, not a sample of them.
//!
//! Two or three replicas want the turns of a chat or two. The server is the real [`Machine`]; whether the store takes a
//! write is decided by [`Checkpoint::accepts`]. The replicas' side (`client.rs`) keeps the rules that a coordinator's client
//! must keep: until when it may act, what it says of itself to the server, when it asks again, what it gives back.
//! Requests and answers arrive late, again, in another order or never; pushes are lost as they like; replicas die, start
//! again, stop, miss heartbeats or stand still; the server loses its data, goes back to an older state, or has its clock set.
//!
//! `cargo test -p botmesh-core --test turns -- --nocapture` prints how many states each setting has, and which rule each
//! promise needs. With `BOTMESH_MODEL=deep` in the environment it checks larger settings, which takes minutes; add
//! `--release`.
//!
//! # Reading a counterexample
//!
//! A broken promise is shown as its shortest history: the steps, and between them, indented, what the server knows (tickets
//! by key, sessions with the end of their lease, until when nobody is granted anything), what each replica believes, what is
//! under way, and what the store has. `a.0` is the first session of replica `a`. Times are ticks of a common clock for
//! replicas and microseconds for the server. Read the last step first.
//!
//! # What it does not show
//!
//! Where [`Setting::may_overlap`] says so, two replicas may act at a time, and only the fence is promised to tell. A server
//! that lost its data and whose clock was set back numbers tickets from what the replicas of its new epoch saw, which may
//! be less than what others wrote, until those open a session too ([`Setting::may_fall_back`]): then a holder's write may be
//! refused for a time. Heartbeats are sent at the beginning of a tick. All clocks run at one speed.
//!
//! [`Checkpoint::accepts`]: botmesh_core::store::Checkpoint::accepts
//! [`Machine`]: botmesh_core::coordinator::machine::Machine

mod client;
mod server;
mod setting;
mod settle;
mod state;
mod steps;

use std::fmt::Write as _;
use std::num::NonZero;

use stateright::{Checker, HasDiscoveries, Model, Path, Property};

use setting::{Broken, Faults, Setting};
use state::{Loss, State};
use steps::Step;

struct Turns {
    setting: Setting,
}

impl Model for Turns {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(&self.setting)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        actions.extend(state.steps(&self.setting));
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let next = state.step(&self.setting, step);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(UNIQUE, |turns, state| {
                turns.setting.may_overlap() || (0..setting::KEYS).all(|key| state.acting(key) <= 1)
            }),
            Property::<Self>::always(FENCED, |_, state| !state.offences.fence_fell),
            Property::<Self>::always(ACCEPTED, |turns, state| {
                turns.setting.may_fall_back() || !state.offences.holder_refused
            }),
            Property::<Self>::always(ORDER, |turns, state| {
                turns.setting.may_fall_back() || !state.offences.overtook
            }),
            Property::<Self>::always(DEAD, |_, state| !state.offences.revived),
            Property::<Self>::always(SERVED, |turns, state| {
                let waits = state.tick < turns.setting.ticks || !state.calls.is_empty();
                waits || settle::settles(state, &turns.setting)
            }),
            Property::<Self>::sometimes(OVERLAP, |_, state| {
                (0..setting::KEYS).any(|key| state.acting(key) > 1)
            }),
            Property::<Self>::sometimes(TAKEOVER, |_, state| state.was_taken_over()),
            Property::<Self>::sometimes(TOLD, |_, state| {
                state.replicas.iter().any(|replica| replica.lost == Some(Loss::Data))
            }),
            Property::<Self>::sometimes(GHOST, |_, state| state.has_ghost()),
            Property::<Self>::sometimes(USEFUL, |_, state| {
                let idle = |replica: &state::Replica| {
                    replica.todo == [0, 0]
                        && replica.session.as_ref().is_some_and(|session| session.tickets.is_empty())
                };
                state.replicas.iter().all(idle) && state.rows.iter().any(|row| row.written.is_some())
            }),
        ]
    }
}

const PROMISES: [&str; 6] = [UNIQUE, FENCED, ACCEPTED, ORDER, DEAD, SERVED];
const UNIQUE: &str = "one replica at a time may act for a chat";
const FENCED: &str = "no write comes after one of a later turn";
const ACCEPTED: &str = "the holder's write is accepted";
const ORDER: &str = "turns come in the order in which tickets were acknowledged";
const DEAD: &str = "a dead session does not come back";
const SERVED: &str = "everybody is served in a bounded number of rounds, and nothing is left behind";
const OVERLAP: &str = "two replicas act for a chat, and only the fence tells";
const TAKEOVER: &str = "the turn of a dead replica goes to the next one";
const TOLD: &str = "a loss of data is told";
const GHOST: &str = "the server has a ticket that its session does not know";
const USEFUL: &str = "all messages get their turns";

const NONE: Faults = Faults {
    network: 0,
    missed: 0,
    dropped: 0,
    crashes: 0,
    restarts: 0,
    closes: 0,
    flushes: 0,
    failovers: 0,
    forward: 0,
    back: 0,
    stalls: 0,
};

const ONE_EACH: &[[u8; 2]] = &[[1, 0], [1, 0]];
const THREE: &[[u8; 2]] = &[[1, 0], [1, 0], [1, 0]];
const THREE_TICKETS: &[[u8; 2]] = &[[2, 0], [1, 0]];
const ANOTHER_CHAT: &[[u8; 2]] = &[[1, 1], [1, 0]];
const TWO_CHATS: &[[u8; 2]] = &[[1, 1], [1, 1]];
const ALONE: &[[u8; 2]] = &[[2, 0]];

/// The settings of every run.
fn usual() -> Vec<Setting> {
    let two = |ticks, faults| Setting::new(ONE_EACH, ticks, faults);
    vec![
        Setting::new(THREE_TICKETS, 0, Faults { network: 2, ..NONE }).showing(&[GHOST]),
        Setting::new(THREE_TICKETS, 1, Faults { network: 1, dropped: 1, ..NONE }).showing(&[GHOST]),
        two(2, Faults { network: 2, ..NONE }).showing(&[GHOST]),
        two(3, Faults { network: 1, missed: 1, ..NONE }).showing(&[GHOST]),
        two(5, Faults { crashes: 1, missed: 1, ..NONE }).showing(&[TAKEOVER]),
        two(4, Faults { crashes: 1, restarts: 1, ..NONE }).showing(&[TAKEOVER]),
        two(4, Faults { closes: 1, missed: 1, ..NONE }),
        Setting::new(THREE, 4, Faults { crashes: 1, ..NONE }).showing(&[TAKEOVER]),
        Setting::new(THREE, 4, Faults { missed: 1, ..NONE }),
        two(5, Faults { flushes: 1, ..NONE }).showing(&[TOLD]),
        two(3, Faults { flushes: 1, missed: 1, ..NONE }).showing(&[TOLD]),
        Setting::new(ANOTHER_CHAT, 2, Faults { flushes: 1, ..NONE }).showing(&[TOLD]),
        two(2, Faults { flushes: 1, crashes: 1, restarts: 1, ..NONE }).showing(&[TOLD, OVERLAP]),
        two(3, Faults { failovers: 1, ..NONE }).showing(&[TOLD, OVERLAP]),
        two(4, Faults { stalls: 1, missed: 1, ..NONE }).showing(&[OVERLAP]),
        two(2, Faults { forward: 1, network: 1, ..NONE }),
        two(4, Faults { back: 1, crashes: 1, ..NONE }).showing(&[TAKEOVER]),
        two(3, Faults { back: 1, flushes: 1, ..NONE }).showing(&[TOLD]),
    ]
}

/// The settings for somebody who has time.
fn deep() -> Vec<Setting> {
    let two = |ticks, faults| Setting::new(ONE_EACH, ticks, faults);
    vec![
        two(3, Faults { network: 2, dropped: 1, ..NONE }).showing(&[GHOST]),
        Setting::new(THREE_TICKETS, 1, Faults { network: 2, ..NONE }).showing(&[GHOST]),
        Setting::new(THREE_TICKETS, 3, Faults { network: 1, dropped: 1, ..NONE }).showing(&[GHOST]),
        two(4, Faults { network: 1, missed: 1, ..NONE }).showing(&[GHOST]),
        Setting::new(THREE, 5, Faults { crashes: 1, missed: 1, ..NONE }).showing(&[TAKEOVER]),
        two(4, Faults { flushes: 1, network: 1, ..NONE }).showing(&[TOLD]),
        two(5, Faults { flushes: 1, crashes: 1, restarts: 1, ..NONE }).showing(&[TOLD, OVERLAP, TAKEOVER]),
        Setting::new(TWO_CHATS, 2, Faults { flushes: 1, ..NONE }).showing(&[TOLD]),
        two(4, Faults { back: 1, missed: 1, crashes: 1, ..NONE }).showing(&[TAKEOVER]),
        two(4, Faults { failovers: 1, network: 1, ..NONE }).showing(&[TOLD, OVERLAP]),
        two(4, Faults { forward: 1, missed: 1, network: 1, ..NONE }),
    ]
}

fn is_deep() -> bool {
    std::env::var("BOTMESH_MODEL").is_ok_and(|value| value == "deep")
}

#[test]
fn turns_keep_their_promises_in_every_order_of_a_few_faults() {
    let settings = if is_deep() { deep() } else { usual() };
    let threads = if is_deep() { std::thread::available_parallelism().map_or(1, NonZero::get) } else { 1 };
    println!("{:>9}  {:>5}  setting", "states", "depth");
    for setting in settings {
        let (name, shows) = (setting.to_string(), setting.shows);
        let checker = Turns { setting }.checker().threads(threads);
        let checked = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        println!("{:>9}  {:>5}  {name}", checked.unique_state_count(), checked.max_depth());
        let found = checked.discoveries();
        if let Some((promise, path)) = found.iter().find(|(promise, _)| PROMISES.contains(promise)) {
            panic!("{name}: it is broken that {promise}\n{}", history(path.clone()));
        }
        for shown in shows.iter().chain([&USEFUL]) {
            assert!(found.contains_key(shown), "{name}: it never happens that {shown}");
        }
    }
}

/// A rule, the promise that needs it, and the setting that shows so.
fn rules() -> Vec<(Broken, &'static str, Setting)> {
    use Broken::*;
    let two = |ticks, faults| Setting::new(ONE_EACH, ticks, faults);
    let late = Faults { network: 1, ..NONE };
    let flush = Faults { flushes: 1, ..NONE };
    vec![
        (NoGrace, UNIQUE, two(1, flush)),
        (BeatUnchecked, DEAD, two(4, late)),
        (GhostsKept, SERVED, two(1, late)),
        (CountedFences, ACCEPTED, two(4, flush)),
        (NoFloor, ORDER, Setting::new(ALONE, 3, Faults { back: 1, ..flush })),
        (NoMargin, UNIQUE, two(3, Faults { missed: 2, ..NONE })),
        (ClosesAtOnce, UNIQUE, two(2, Faults { missed: 1, ..NONE })),
        (TicketsAtOnce, ORDER, Setting::new(ALONE, 0, late)),
        (FenceUnchecked, FENCED, two(3, Faults { stalls: 1, missed: 1, ..NONE })),
        (LeaveUnchecked, ORDER, Setting::new(THREE_TICKETS, 0, late)),
    ]
}

#[test]
fn the_checker_finds_each_rule_of_turns_that_is_broken() {
    println!("{:>9}  {:>5}  {:<22}promise", "states", "steps", "rule");
    for (rule, promise, setting) in rules() {
        let whole = Turns { setting: setting.clone() };
        let whole = whole.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        assert!(whole.discovery(promise).is_none(), "{rule:?}: it is broken without it");
        let turns = Turns { setting: Setting { broken: Some(rule), ..setting } };
        let this = HasDiscoveries::AllOf([promise].into());
        let checked = turns.checker().finish_when(this).spawn_bfs().join();
        let path = checked.discovery(promise);
        let path = path.unwrap_or_else(|| panic!("{rule:?}: {promise}, all the same"));
        let (states, steps) = (checked.unique_state_count(), path.into_actions().len());
        println!("{states:>9}  {steps:>5}  {:<22}{promise}", format!("{rule:?}"));
    }
}

/// A history, a line for each step.
fn history(path: Path<State, Step>) -> String {
    let mut text = String::new();
    for (state, step) in path.into_vec() {
        let server = state.server.snapshot();
        let queues: Vec<_> = server.queues.iter().map(|queue| &queue.tickets).collect();
        let (grace, sessions) = (server.grace.1, &server.sessions);
        let _ =
            writeln!(text, "    tick {}: {queues:?}, {sessions:?}, nothing before {}", state.tick, grace.0);
        for replica in &state.replicas {
            let _ = match &replica.session {
                Some(state::Session { id, valid_until, tickets, leaving, .. }) => {
                    writeln!(text, "      {id:?} until {valid_until}: {tickets:?}, gives back {leaving:?}")
                }
                None => writeln!(text, "      no session: {:?}, wants {:?}", replica.lost, replica.todo),
            };
        }
        let _ = writeln!(text, "      on its way {:?} {:?}, stored {:?}", state.net, state.calls, state.rows);
        if let Some(step) = step {
            let _ = writeln!(text, "{step:?}");
        }
    }
    text
}
