//! One rule of the turns removed at a time, on a real server, with the fault that it is there for: the check must find what
//! goes wrong, and nothing where the rule is kept.

mod actor;
mod leader;
mod scenarios;
mod stage;

use std::path::Path;

use botmesh_redis_store::Rule;

use crate::check::{Invariant, Limits, Report, check};
use crate::history;
use stage::Stage;

/// Why a mutation cannot be played.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

type Play = for<'s> fn(&'s Stage) -> futures_util::future::BoxFuture<'s, Result<(), Failure>>;

/// A rule, the fault that shows what it is for, and what must be found without it.
pub struct Mutation {
    /// Short, for the command line.
    pub name: &'static str,
    /// What is removed.
    pub rule: Rule,
    /// What happens then.
    pub says: &'static str,
    /// What must not hold without the rule.
    pub breaks: Invariant,
    play: Play,
}

macro_rules! mutations {
    ($($name:literal, $rule:ident, $breaks:ident, $play:ident, $says:literal;)+) => {
        /// All of them.
        pub static ALL: &[Mutation] = &[$(Mutation {
            name: $name,
            rule: Rule::$rule,
            says: $says,
            breaks: Invariant::$breaks,
            play: |stage| Box::pin(scenarios::$play(stage)),
        }),+];
    };
}

mutations! {
    "beat", SessionInBeat, I5Takeover, late_beat,
        "the beat of a killed replica arrives after its lease and revives its session";
    "leave", OwnerInLeave, I2Validity, foreign_leave,
        "who gives up its place gives back the turn of another one";
    "fences", GrowingFences, I6Fences, fences_after_data_loss,
        "fences are counted, and begin again when the server lost its data";
    "unknown", LeaveUnknown, I8Ghosts, ghost,
        "a ticket that its replica does not know holds up its chat";
    "grace", Grace, I2Validity, data_loss,
        "the server lost its data, and gives a turn whose holder does not know yet";
    "fencing", SelfFencing, I2Validity, partition,
        "a replica that is cut off goes on after its lease";
    "order", LocalOrder, I3Order, unknown_script,
        "a retry lets the later call of a replica pass the earlier one";
    "polls", Polls, I9Liveness, lost_push,
        "a push is lost, and nobody asks";
    "unused", UnusedTickets, I10Previous, given_up_head,
        "who gave up its place before its turn passes for the previous holder";
    "clock", ClockClamp, I2Validity, clock_jump,
        "the server's clock is set forward, and every lease is over at once";
    "fenced", FencedWrites, I1Exclusion, late_write,
        "the store takes what a replica wrote that stood still in a turn that others have had since";
    "dropped", DroppedTickets, I4Endings, given_up,
        "who gives up its place leaves its ticket in the queue";
    "sessions", NewSessions, I7Resurrection, next_session,
        "a replica that lost its turns goes on under the session that had them";
    "leader", ToldLosses, I11Transport, leader,
        "a leader that is cut off keeps its connection, and the next one connects";
    "asks", RarePolls, I12Cost, long_wait,
        "who waits asks again and again";
    "idle", IdleQueues, I12Cost, idle_chats,
        "the server remembers every chat that there ever was";
    "told", ToldLosses, I13Told, loss,
        "a replica that lost its turn is not told";
}

impl Mutation {
    /// Plays its fault on a server of its own, with or without the rule, and checks what happened. The histories are in
    /// `folder`.
    ///
    /// # Errors
    /// The server or the folder cannot be used.
    pub async fn run(&self, removed: bool, folder: &Path) -> Result<Report, Failure> {
        std::fs::create_dir_all(folder)?;
        let stage = Stage::new(folder, removed.then_some(self.rule))?;
        (self.play)(&stage).await?;
        stage.end();
        Ok(check(&history::read(folder)?, Limits::default())?)
    }
}
