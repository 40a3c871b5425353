//! I1. Per chat, the writes that the resource took have fences that never fall, and one fence belongs to one session; what it
//! refused it had to refuse.

use std::collections::HashMap;

use super::run::{Chat, Run};
use super::{Invariant, Violation};

pub(super) fn check(run: &Run<'_>) -> Vec<Violation> {
    run.chats.iter().flat_map(|(name, chat)| of_chat(run, name, chat)).collect()
}

fn of_chat(run: &Run<'_>, name: &str, chat: &Chat<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut taken: Option<&super::run::Write<'_>> = None;
    for write in &chat.writes {
        let must = taken.is_none_or(|last| write.n > last.n || (write.n == last.n && write.sid == last.sid));
        if write.accepted != must {
            let last = taken.map_or(0, |last| last.n);
            let what = match write.accepted {
                true if write.n == last => format!("two sessions wrote under the fence {last}"),
                true => format!("a write under the fence {} was taken after one under {last}", write.n),
                false => {
                    format!("a write under the fence {} was refused, and the last one was {last}", write.n)
                }
            };
            let shows = taken.map(|last| last.arrived).into_iter().chain([write.arrived]);
            found.push(Run::found(Invariant::I1Exclusion, name, what, shows));
        }
        if write.accepted && taken.is_none_or(|last| write.n >= last.n) {
            taken = Some(write);
        }
    }
    // Two masters may give out the same number; then the resource decides.
    let mut holders: HashMap<u64, (&str, super::run::At)> = HashMap::new();
    for (_, grant) in run.grants(chat) {
        let (sid, at) = *holders.entry(grant.n).or_insert((grant.sid, grant.at));
        if sid != grant.sid && !run.amnesia.hits(at.t, grant.at.t) {
            let what = format!("the fence {} was given to two sessions", grant.n);
            found.push(Run::found(Invariant::I1Exclusion, name, what, [at, grant.at]));
        }
    }
    found
}
