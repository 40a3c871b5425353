//! I13. A replica whose turn went to somebody else is told so, exactly once, and within a third of the lease.

use super::run::{Call, Chat, Grant, How, Run};
use super::{Invariant, Violation, ms};

/// The record of an end may come this much after the check before it.
const RECORDED: u64 = 20_000_000;

pub(super) fn check(run: &Run<'_>) -> Vec<Violation> {
    run.chats.iter().flat_map(|(name, chat)| of_chat(run, name, chat)).collect()
}

fn of_chat(run: &Run<'_>, name: &str, chat: &Chat<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let grants = run.grants(chat);
    for (number, (place, grant)) in grants.iter().enumerate() {
        let call = &run.calls[*place];
        let losses: Vec<_> =
            call.ends.iter().filter(|(_, how)| *how == How::Lost).map(|(at, _)| *at).collect();
        if losses.len() > 1 {
            let what = format!("{} was told {} times of one loss", run.replica(call.process), losses.len());
            found.push(Run::found(Invariant::I13Told, name, what, losses));
        }
        let next = grants[number + 1..].iter().take(8).find(|(_, next)| next.n > grant.n);
        if let Some((_, next)) = next
            && let Some(what) = untold(run, call, next)
        {
            let end = call.end().map(|(at, _)| at);
            found.push(Run::found(
                Invariant::I13Told,
                name,
                what,
                [grant.at, next.at].into_iter().chain(end),
            ));
        }
    }
    found
}

fn untold(run: &Run<'_>, call: &Call<'_>, next: &Grant<'_>) -> Option<String> {
    let process = &run.processes[call.process];
    let who = process.replica;
    let end = call.end();
    if end.is_some_and(|(at, _)| at.index < next.at.index) {
        return None;
    }
    let gone = process.killed.into_iter().chain(process.down.map(|(at, _)| at)).map(|at| at.t).min();
    let until = end.map(|(at, _)| at.t).or(gone).unwrap_or(run.end);
    let forgot = run.amnesia.hits(next.at.t, next.at.t);
    match end {
        Some((at, How::Released)) => {
            let stood = process.pauses.hits(at.t.saturating_sub(RECORDED), at.t);
            (!forgot && !stood).then(|| format!("{who} gave back a turn that another one had since long"))
        }
        Some((_, How::Lost)) | None => {
            let bound = if forgot { run.lease } else { run.lease / 3 };
            let pause = process.pauses.length(next.at.t, until);
            let deadline = next.at.t + bound + pause + run.allowance(next.at.t, until);
            (until > deadline).then(|| {
                format!("{who} was not told that it had lost its turn for {}", ms(until - next.at.t))
            })
        }
        Some(_) => None,
    }
}
