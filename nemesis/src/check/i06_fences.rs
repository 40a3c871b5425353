//! I6. Whoever asks for a turn of a chat after another one began gets a larger fence; whatever the server forgot, and however
//! its clock was set. No fence is given twice.

use std::collections::HashMap;

use super::run::{Chat, Run};
use super::{Invariant, Violation, i03_order};

pub(super) fn check(run: &Run<'_>) -> Vec<Violation> {
    run.chats.iter().flat_map(|(name, chat)| of_chat(run, name, chat)).collect()
}

fn of_chat(run: &Run<'_>, name: &str, chat: &Chat<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (first, second) in i03_order::swapped(run, chat) {
        let (first, second) = (&run.calls[first], &run.calls[second]);
        let Some(grant) = first.granted.filter(|grant| grant.at.index < second.call.index) else { continue };
        let Some((ok, n)) = second.ok else { continue };
        let what = format!("a turn had the fence {}, and one that was asked for later got {n}", grant.n);
        found.push(Run::found(Invariant::I6Fences, name, what, [grant.at, second.call, ok]));
    }
    let mut numbers = HashMap::new();
    for place in &chat.calls {
        let Some((at, n)) = run.calls[*place].ok else { continue };
        let first = *numbers.entry(n).or_insert(at);
        if first != at && !run.amnesia.hits(first.t.min(at.t), first.t.max(at.t)) {
            let what = format!("two tickets have the number {n}");
            found.push(Run::found(Invariant::I6Fences, name, what, [first, at]));
        }
    }
    found
}
