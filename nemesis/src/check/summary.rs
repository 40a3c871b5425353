//! What a run had, in numbers.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use super::i02_validity;
use super::ms;
use super::run::{How, Run};
use super::waits::{Behind, Wait};
use crate::history::{Event, Fault};

/// Counts of a run. Times are milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How long the run took.
    pub took_ms: u64,
    /// Processes of replicas.
    pub processes: usize,
    /// Chats.
    pub chats: usize,
    /// Tickets that were taken.
    pub tickets: usize,
    /// Turns that began.
    pub turns: usize,
    /// Tickets that were given up.
    pub cancelled: usize,
    /// Turns that were lost and told.
    pub losses: usize,
    /// Turns that began because a process died or stood still.
    pub takeovers: usize,
    /// The longest time from the end of a lease to the next turn, of those that no other fault disturbed.
    pub longest_takeover_ms: u64,
    /// The longest time from a ticket to its turn.
    pub longest_wait_ms: u64,
    /// Waits whose end was judged, and those where faults hid what was owed.
    pub judged: usize,
    /// See [`judged`](Self::judged).
    pub unjudged: usize,
    /// Writes that arrived after the next turn had begun, excused or not.
    pub overlaps: usize,
    /// Writes that the resource took.
    pub writes: usize,
    /// Writes that the resource refused.
    pub refused: usize,
    /// Messages that a bot acknowledged.
    pub messages: usize,
    /// Replies that came again under the same key.
    pub repeated_replies: usize,
    /// Faults by kind.
    pub faults: BTreeMap<Fault, usize>,
    /// The longest time by which a thread woke up late.
    pub latest_ms: u64,
}

impl Summary {
    pub(super) fn of(run: &Run<'_>, waits: &[Wait]) -> Self {
        let mut summary = Self {
            took_ms: (run.end - run.start) / 1_000_000,
            processes: run.processes.iter().filter(|process| !process.sessions.is_empty()).count(),
            chats: run.chats.len(),
            ..Self::default()
        };
        for call in &run.calls {
            summary.tickets += usize::from(call.ok.is_some());
            summary.turns += usize::from(call.granted.is_some());
            let ended = |how: How| usize::from(call.ends.iter().any(|(_, other)| *other == how));
            summary.cancelled += ended(How::Cancelled);
            summary.losses += usize::from(call.granted.is_some()) * ended(How::Lost);
            if let (Some((ok, _)), Some(grant)) = (call.ok, call.granted) {
                summary.longest_wait_ms =
                    summary.longest_wait_ms.max(grant.at.t.saturating_sub(ok.t) / 1_000_000);
            }
        }
        for wait in waits {
            summary.judged += usize::from(!wait.disturbed);
            summary.unjudged += usize::from(wait.disturbed);
            if wait.served && matches!(wait.behind, Behind::Dead(_)) {
                summary.takeovers += 1;
                if !wait.disturbed {
                    let took = (wait.until - wait.free) / 1_000_000;
                    summary.longest_takeover_ms = summary.longest_takeover_ms.max(took);
                }
            }
        }
        for chat in run.chats.values() {
            summary.overlaps += i02_validity::all(run, chat).len();
            summary.writes += chat.writes.iter().filter(|write| write.accepted).count();
            summary.refused += chat.writes.iter().filter(|write| !write.accepted).count();
        }
        for window in &run.windows {
            *summary.faults.entry(window.fault).or_default() += 1;
        }
        summary.events(run);
        summary
    }

    fn events(&mut self, run: &Run<'_>) {
        let mut keys = HashSet::new();
        for record in run.records {
            match &record.event {
                Event::Message { .. } => self.messages += 1,
                Event::Reply { key, .. } => self.repeated_replies += usize::from(!keys.insert(key)),
                Event::Late { ms } => self.latest_ms = self.latest_ms.max(*ms),
                _ => {}
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:.1} s, {} processes, {} chats: {} tickets, {} turns, {} given up, {} lost",
            std::time::Duration::from_millis(self.took_ms).as_secs_f64(),
            self.processes,
            self.chats,
            self.tickets,
            self.turns,
            self.cancelled,
            self.losses
        )?;
        writeln!(
            f,
            "longest wait {} ms; {} takeovers, the longest {} ms after the lease; {} waits judged, {} hidden by faults",
            self.longest_wait_ms, self.takeovers, self.longest_takeover_ms, self.judged, self.unjudged
        )?;
        writeln!(
            f,
            "{} writes taken, {} refused, {} after the next turn began; threads were late by up to {}",
            self.writes,
            self.refused,
            self.overlaps,
            ms(self.latest_ms * 1_000_000)
        )?;
        if self.messages > 0 {
            writeln!(f, "{} messages, {} replies repeated", self.messages, self.repeated_replies)?;
        }
        let faults: Vec<_> = self.faults.iter().map(|(fault, count)| format!("{count} {fault:?}")).collect();
        writeln!(f, "faults: {}", if faults.is_empty() { "none".into() } else { faults.join(", ") })
    }
}
