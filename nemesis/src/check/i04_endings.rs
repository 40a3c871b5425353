//! I4. Each ticket that was taken comes to exactly one end; in the end no queue has a ticket; every message was answered.

use std::collections::HashSet;

use super::run::{At, How, Run};
use super::{Invariant, Violation};
use crate::history::Event;

pub(super) fn check(run: &Run<'_>) -> Vec<Violation> {
    let mut found: Vec<_> = run.calls.iter().filter_map(|call| ends(run, call)).collect();
    found.extend(left_over(run));
    found
}

fn ends(run: &Run<'_>, call: &super::run::Call<'_>) -> Option<Violation> {
    let process = &run.processes[call.process];
    let who = process.replica;
    let begins = [Some(call.call), call.ok.map(|(at, _)| at), call.granted.map(|grant| grant.at)];
    let shows = begins.into_iter().flatten().chain(call.ends.iter().map(|(at, _)| *at));
    // To be told twice of a loss is another matter (I13).
    let ends = call.ends.iter().filter(|(_, how)| *how != How::Lost).count()
        + usize::from(call.ends.iter().any(|(_, how)| *how == How::Lost));
    let what = match (ends, process.killed, process.down) {
        (0, None, Some((_, true))) => {
            format!("{who} ended as if all were given back, but one of its tickets was not")
        }
        (0, None, None) if run.quiet.is_some() => format!("a ticket of {who} came to no end"),
        (0 | 1, ..) => return None,
        _ => format!("a ticket of {who} came to {ends} ends"),
    };
    Some(Run::found(Invariant::I4Endings, call.chat, what, shows))
}

fn left_over(run: &Run<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let replies: HashSet<(&str, u64)> = run
        .records
        .iter()
        .filter_map(|record| match &record.event {
            Event::Reply { chat, id, .. } => Some((chat.as_str(), *id)),
            _ => None,
        })
        .collect();
    for (index, record) in run.records.iter().enumerate() {
        let at = At { t: record.t, index };
        match &record.event {
            Event::Queues { left } if *left > 0 => {
                let what = format!("{left} tickets are left on the server");
                found.push(Run::found(Invariant::I4Endings, "the server", what, [at]));
            }
            Event::Message { chat, id }
                if run.quiet.is_some()
                    && !replies.contains(&(chat, *id))
                    && !run.lost.hits(record.t, record.t) =>
            {
                let what = format!("the message {id} was acknowledged and never answered");
                found.push(Run::found(Invariant::I4Endings, chat, what, [at]));
            }
            _ => {}
        }
    }
    found
}
