//! Where a reply of the Redis protocol ends, and whether it is a push.

use std::ops::ControlFlow;

/// What a server sends to subscribers, of its own accord. The confirmation of a subscription is a reply.
const PUSHES: [&[u8]; 3] = [b"message", b"pmessage", b"smessage"];

/// Cuts a stream into replies.
#[derive(Default)]
pub(super) struct Frames {
    pending: Vec<u8>,
}

impl Frames {
    /// Takes in what came, and gives each reply that is whole to `take`. What is not of this protocol is given as it is.
    pub(super) fn push(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) {
        self.pending.extend_from_slice(bytes);
        let mut start = 0;
        while start < self.pending.len() {
            let rest = &self.pending[start..];
            match end(rest) {
                ControlFlow::Continue(()) => break,
                ControlFlow::Break(length) => {
                    let length = length.unwrap_or(rest.len());
                    take(&rest[..length]);
                    start += length;
                }
            }
        }
        self.pending.drain(..start);
    }
}

/// The length of the first reply in `bytes`, `None` if it is none; or more is needed to tell.
fn end(bytes: &[u8]) -> ControlFlow<Option<usize>> {
    let (mut at, mut wanted) = (0, 1_usize);
    while wanted > 0 {
        let Some(line) = bytes[at..].windows(2).position(|two| two == b"\r\n") else {
            return ControlFlow::Continue(());
        };
        let header = &bytes[at..at + line];
        at += line + 2;
        wanted -= 1;
        let Some((kind, number)) = header.split_first() else { return ControlFlow::Break(None) };
        // Negative where there is no value.
        let number = std::str::from_utf8(number).ok().and_then(|text| text.parse::<i64>().ok());
        let number = number.map(|number| usize::try_from(number).ok());
        match (kind, number) {
            (b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(', _) | (b'$' | b'!' | b'=' | b'*', Some(None)) => {
            }
            (b'$' | b'!' | b'=', Some(Some(length))) => at = at.saturating_add(length).saturating_add(2),
            (b'*' | b'~' | b'>', Some(Some(length))) => wanted = wanted.saturating_add(length),
            (b'%' | b'|', Some(Some(length))) => wanted = wanted.saturating_add(length.saturating_mul(2)),
            _ => return ControlFlow::Break(None),
        }
        if at > bytes.len() {
            return ControlFlow::Continue(());
        }
    }
    ControlFlow::Break(Some(at))
}

pub(super) fn is_push(frame: &[u8]) -> bool {
    let mut lines = frame.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let aggregate = lines.next().is_some_and(|line| matches!(line.first(), Some(b'*' | b'>')));
    aggregate && lines.nth(1).is_some_and(|first| PUSHES.contains(&first))
}

#[cfg(test)]
mod tests;
