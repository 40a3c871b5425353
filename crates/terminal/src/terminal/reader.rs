//! Lines that are not typed but piped in.

use std::io::BufRead;
use std::thread;

use botmesh_core::error::ChannelError;
use tokio::sync::mpsc;

use crate::intake::{AHEAD, Feed, Item, rejected};
use crate::lines::{BadLine, Lines, Problem};

/// Reads on a thread of its own, which ends with the input or with the bot. It is never waited for: it may be blocked in
/// a read that no one can interrupt.
pub(super) fn start(input: Box<dyn BufRead + Send>) -> Result<Feed<String>, ChannelError> {
    let (items, feed) = mpsc::channel(AHEAD);
    thread::Builder::new()
        .name("terminal-in".into())
        .spawn(move || read(input, |item| items.blocking_send(item).is_ok()))
        .map_err(no_thread)?;
    Ok(Feed::Bounded(feed))
}

/// Hands over line after line until the end, an error, or until `take` says that nobody wants more.
pub(super) fn read(input: impl BufRead, mut take: impl FnMut(Item<String>) -> bool) {
    let mut lines = Lines::new(input);
    while let Some(line) = lines.next().transpose() {
        let last = line.is_err();
        if !take(line.map(|(_, text)| text).map_err(bad_line)) || last {
            return;
        }
    }
}

fn bad_line(bad: BadLine) -> ChannelError {
    let error = rejected(format!("line {} of the input: {}; {}", bad.number, bad.problem, bad.problem.fix()));
    match bad.problem {
        Problem::Unreadable(source) => error.with_source(source),
        _ => error,
    }
}

pub(super) fn no_thread(error: std::io::Error) -> ChannelError {
    rejected("no thread to read the input with; lower the machine's load").with_source(error)
}
