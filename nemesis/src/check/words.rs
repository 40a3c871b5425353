//! A record in words.

use super::run::Run;
use crate::history::Event;

/// One record: when, who, what.
pub(super) fn line(run: &Run<'_>, index: usize) -> String {
    let record = &run.records[index];
    let micros = record.t.saturating_sub(run.start) / 1000;
    let what = words(&record.event);
    format!(
        "{:>6}.{:06} s  {} ({}) {what}",
        micros / 1_000_000,
        micros % 1_000_000,
        record.replica,
        record.pid
    )
}

/// What happened. Times are those of the record.
pub(super) fn words(event: &Event) -> String {
    match event {
        Event::EnterCall { chat, call, .. } => format!("call {call} asks for a ticket of {chat}"),
        Event::EnterOk { chat, call, n } => format!("call {call} has the ticket {n} of {chat}"),
        Event::EnterErr { chat, call, error } => format!("call {call} for {chat} fails: {error}"),
        Event::Granted { chat, call, n, sid, prev } => {
            let prev = prev.as_deref().unwrap_or("nobody that is remembered");
            format!("call {call} has the turn {n} of {chat} as {sid}, after {prev}")
        }
        Event::Cancelled { chat, call } => format!("call {call} for {chat} is given up"),
        Event::Released { chat, call, n } => format!("call {call} gives back the turn {n} of {chat}"),
        Event::Lost { sid, call: None, reason, .. } => format!("the session {sid} is over: {reason}"),
        Event::Lost { call: Some(call), chat, reason, .. } => {
            format!("call {call} lost its turn of {}: {reason}", chat.as_deref().unwrap_or("a chat"))
        }
        Event::CheckFailed { chat, n, reason, .. } => {
            format!("the check of the turn {n} of {chat} fails: {reason}")
        }
        Event::WriteCall { chat, n, .. } => format!("checked, and writes to {chat} under {n}"),
        Event::Write { chat, n, sid, accepted: true } => {
            format!("takes a write to {chat} under {n} of {sid}")
        }
        Event::Write { chat, n, sid, accepted: false } => {
            format!("refuses a write to {chat} under {n} of {sid}")
        }
        Event::Nemesis { what, target, detail, .. } => {
            let target =
                target.as_deref().map_or_else(|| "the server".into(), |target| format!("replica {target}"));
            format!("{what:?} of {target} {}", detail.as_deref().unwrap_or_default())
        }
        Event::Up { sid } => format!("begins with the session {sid}"),
        Event::Session { sid, .. } => format!("has the session {sid}"),
        Event::Down { clean: true } => "has given everything back and ends".into(),
        Event::TransportOpen { name, n, peer_pid } => format!("{peer_pid} connects to {name} under {n}"),
        Event::TransportClosed { name, n, peer_pid } => {
            format!("the connection of {peer_pid} to {name} under {n} ends")
        }
        Event::Frame { name, n, .. } => format!("works on what {name} brought under {n}"),
        Event::Message { chat, id } => format!("the message {id} of {chat} is acknowledged"),
        Event::Reply { chat, id, key } => format!("a reply to the message {id} of {chat} arrives ({key})"),
        other => format!("{other:?}"),
    }
}
