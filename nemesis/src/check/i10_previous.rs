//! I10. A turn whose previous holder is its own session follows a turn of this session: nobody else had the chat between.

use super::run::{Chat, Run};
use super::{Invariant, Violation};

pub(super) fn check(run: &Run<'_>) -> Vec<Violation> {
    run.chats.iter().flat_map(|(name, chat)| of_chat(run, name, chat)).collect()
}

fn of_chat(run: &Run<'_>, name: &str, chat: &Chat<'_>) -> Vec<Violation> {
    let mut grants = run.grants(chat);
    grants.sort_unstable_by_key(|(_, grant)| grant.n);
    let mut found = Vec::new();
    for pair in grants.windows(2) {
        let ((before, first), (place, second)) = (pair[0], pair[1]);
        if second.prev != Some(second.sid) || first.sid == second.sid {
            continue;
        }
        // A server that lost the last writes may have lost the turn between.
        let forgot = run.windows.iter().any(|window| {
            window.fault.loses_writes() && window.to > run.calls[before].call.t && window.from.t < second.at.t
        });
        if forgot {
            continue;
        }
        let what = format!(
            "{} was told that it had the chat before, but {} did",
            run.replica(run.calls[place].process),
            run.replica(run.calls[before].process)
        );
        found.push(Run::found(Invariant::I10Previous, name, what, [first.at, second.at]));
    }
    found
}
