//! I3. Turns of a chat begin in the order of their numbers; who had its ticket before another one was asked for has the
//! smaller number; calls that a process made one after the other keep their order; so do the replies of a bot.

use std::collections::{BTreeMap, HashMap};

use super::run::{At, Chat, Run};
use super::{Invariant, Violation};
use crate::history::Event;

/// The record of a turn may come this much after the check that let it begin.
const RECORDED: u64 = 20_000_000;

pub(super) fn check(run: &Run<'_>) -> Vec<Violation> {
    let chats = run.chats.iter();
    let mut found: Vec<_> = chats
        .flat_map(|(name, chat)| {
            let mut found = turns(run, name, chat);
            found.extend(tickets(run, name, chat));
            found.extend(local(run, name, chat));
            found
        })
        .collect();
    found.extend(replies(run));
    found
}

fn turns(run: &Run<'_>, name: &str, chat: &Chat<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut largest: Option<(usize, super::run::Grant<'_>)> = None;
    for (place, grant) in run.grants(chat) {
        if let Some((before, last)) = largest.filter(|(_, last)| last.n > grant.n) {
            let process = run.calls[place].process;
            let pauses = &run.processes[process].pauses;
            let excused = pauses.hits(grant.at.t.saturating_sub(RECORDED), grant.at.t)
                || run.amnesia.hits(last.at.t, grant.at.t);
            if !excused {
                let what = format!(
                    "the turn {} of {} began after the turn {} of {}",
                    grant.n,
                    run.replica(process),
                    last.n,
                    run.replica(run.calls[before].process)
                );
                found.push(Run::found(Invariant::I3Order, name, what, [last.at, grant.at]));
            }
        } else {
            largest = Some((place, grant));
        }
    }
    found
}

/// Pairs of tickets of which one was there before the other was asked for, and has the larger number. For each one that is
/// too small, the one with the largest number.
pub(super) fn swapped(run: &Run<'_>, chat: &Chat<'_>) -> Vec<(usize, usize)> {
    let mut taken: Vec<(At, u64, usize)> = Vec::new();
    for place in &chat.calls {
        taken.extend(run.calls[*place].ok.map(|(at, n)| (at, n, *place)));
    }
    taken.sort_unstable_by_key(|(at, ..)| at.index);
    let (mut next, mut largest) = (0, None::<(u64, usize)>);
    let mut found = Vec::new();
    for place in &chat.calls {
        let call = &run.calls[*place];
        while let Some((at, n, other)) = taken.get(next)
            && at.index < call.call.index
        {
            largest = largest.max(Some((*n, *other)));
            next += 1;
        }
        if let (Some((largest, other)), Some((_, n))) = (largest, call.ok)
            && n <= largest
        {
            found.push((other, *place));
        }
    }
    found
}

fn tickets(run: &Run<'_>, name: &str, chat: &Chat<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (first, second) in swapped(run, chat) {
        let (first, second) = (&run.calls[first], &run.calls[second]);
        let (Some((first_ok, first_n)), Some((second_ok, second_n))) = (first.ok, second.ok) else {
            continue;
        };
        // A turn that had begun makes it worse: see I6.
        if first.granted.is_some_and(|grant| grant.at.index < second.call.index) {
            continue;
        }
        let what = format!(
            "{} had the ticket {first_n} before {} asked for its own, which is {second_n}",
            run.replica(first.process),
            run.replica(second.process)
        );
        found.push(Run::found(Invariant::I3Order, name, what, [first_ok, second.call, second_ok]));
    }
    found
}

fn local(run: &Run<'_>, name: &str, chat: &Chat<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for place in &chat.calls {
        let call = &run.calls[*place];
        let Some(first) = call.after.map(|after| &run.calls[after]) else { continue };
        if let (Some((first_ok, first_n)), Some((ok, n))) = (first.ok, call.ok)
            && n <= first_n
        {
            let who = run.replica(call.process);
            let what = format!("{who} asked for the ticket {first_n} before it asked for {n}");
            found.push(Run::found(Invariant::I3Order, name, what, [first.call, call.call, first_ok, ok]));
        }
    }
    found
}

fn replies(run: &Run<'_>) -> Vec<Violation> {
    let mut messages: BTreeMap<&str, Vec<(u64, At)>> = BTreeMap::new();
    let mut replies: HashMap<(&str, u64), At> = HashMap::new();
    for (index, record) in run.records.iter().enumerate() {
        let at = At { t: record.t, index };
        match &record.event {
            Event::Message { chat, id } => messages.entry(chat).or_default().push((*id, at)),
            Event::Reply { chat, id, .. } => {
                replies.entry((chat, *id)).or_insert(at);
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    for (chat, messages) in messages {
        let mut last: Option<(u64, At, At)> = None;
        for (id, at) in messages {
            let Some(reply) = replies.get(&(chat, id)).copied() else { continue };
            if let Some((before, message, earlier)) = last.filter(|(.., earlier)| earlier.index > reply.index)
                && !run.amnesia.hits(message.t, earlier.t)
            {
                let what = format!("the message {id} was answered before the message {before}");
                found.push(Run::found(Invariant::I3Order, chat, what, [message, at, reply, earlier]));
            } else {
                last = Some((id, at, reply));
            }
        }
    }
    found
}
