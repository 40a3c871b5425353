//! I7. After the first evidence that a session is dead, it gets no turn that was asked for later, and begins none.
//!
//! Evidence is that its own process said so, or that the turn of a chat went to a later ticket while the session had one
//! before it.

use std::collections::HashMap;

use super::run::{At, Chat, Run};
use super::{Invariant, Violation};

pub(super) fn check(run: &Run<'_>) -> Vec<Violation> {
    let mut dead: HashMap<&str, (At, bool)> = HashMap::new();
    for process in &run.processes {
        for (sid, over) in &process.sessions {
            if let Some(over) = over {
                dead.insert(sid, (*over, true));
            }
        }
    }
    for chat in run.chats.values() {
        passed_over(run, chat, &mut dead);
    }
    let mut found = Vec::new();
    for call in &run.calls {
        let Some(grant) = call.granted else { continue };
        let Some((died, own)) = dead.get(grant.sid).copied() else { continue };
        let later =
            call.call.index > died.index || (own && grant.at.t > died.t + run.allowance(died.t, grant.at.t));
        if later {
            let what = format!("the session {} has a turn after it was dead", grant.sid);
            found.push(Run::found(Invariant::I7Resurrection, call.chat, what, [died, call.call, grant.at]));
        }
    }
    found
}

/// Sessions whose ticket was passed over by a later one.
fn passed_over<'a>(run: &Run<'a>, chat: &Chat<'a>, dead: &mut HashMap<&'a str, (At, bool)>) {
    let grants = run.grants(chat);
    for pair in grants.windows(2) {
        let ((place, first), (_, second)) = (pair[0], pair[1]);
        let call = &run.calls[place];
        let ended = call.end().is_some_and(|(at, _)| at.index < second.at.index);
        // What the server forgot is no evidence.
        let forgot = run.windows.iter().any(|window| {
            (window.fault.loses_data() || window.fault.loses_writes())
                && window.from.t < second.at.t
                && window.to + 2 * run.lease > call.call.t
        });
        if first.n < second.n && first.sid != second.sid && !ended && !forgot {
            let evidence = dead.entry(first.sid).or_insert((second.at, false));
            if second.at.index < evidence.0.index {
                *evidence = (second.at, false);
            }
        }
    }
}
