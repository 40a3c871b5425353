//! I2. A replica writes only while its lease is good, and nothing of it arrives after the next turn began: unless its process
//! stood still between its check and the write.

use super::run::{At, Chat, Grant, Run, Write};
use super::{Invariant, Violation, ms};
use crate::history::Event;

pub(super) fn check(run: &Run<'_>) -> Vec<Violation> {
    let mut found: Vec<_> = run.chats.iter().flat_map(|(name, chat)| overlaps(run, name, chat)).collect();
    for (index, record) in run.records.iter().enumerate() {
        let Event::WriteCall { chat, checked_t, valid_for_ms: Some(left), .. } = &record.event else {
            continue;
        };
        let Some(process) = run.process_of(index) else { continue };
        // The margin is there for what happens between the check and the write.
        let over = u64::try_from(-left).unwrap_or(0).saturating_mul(1_000_000);
        if over > run.margin / 2 && !run.processes[process].pauses.hits(*checked_t, record.t) {
            let what = format!("{} acted {} after its lease was over", record.replica, ms(over));
            let at = At { t: record.t, index };
            found.push(Run::found(Invariant::I2Validity, chat, what, [at]));
        }
    }
    found
}

/// A write that arrived after somebody with a larger fence had the turn.
pub(super) struct Overlap<'r, 'a> {
    pub(super) write: &'r Write<'a>,
    pub(super) grant: Grant<'a>,
}

/// All of them, those that a pause excuses too.
pub(super) fn all<'r, 'a>(run: &'r Run<'a>, chat: &'r Chat<'a>) -> Vec<Overlap<'r, 'a>> {
    let grants = run.grants(chat);
    let mut found = Vec::new();
    let (mut next, mut largest) = (0, None::<Grant<'a>>);
    for write in &chat.writes {
        while let Some((_, grant)) = grants.get(next)
            && grant.at.index < write.arrived.index
        {
            if largest.is_none_or(|largest| grant.n > largest.n) {
                largest = Some(*grant);
            }
            next += 1;
        }
        if let Some(grant) = largest.filter(|grant| grant.n > write.n) {
            found.push(Overlap { write, grant });
        }
    }
    found
}

fn overlaps(run: &Run<'_>, name: &str, chat: &Chat<'_>) -> Vec<Violation> {
    let found = all(run, chat).into_iter().filter_map(|Overlap { write, grant }| {
        let (process, checked, call) = write.from?;
        // What two masters gave out meanwhile may lie about for long; the fence holds.
        if run.amnesia.hits(checked.min(grant.at.t), write.arrived.t) {
            return None;
        }
        let who = run.replica(process);
        let what = if checked > grant.at.t {
            format!(
                "{who} passed the check for the fence {} {} after another session had the turn",
                write.n,
                ms(checked - grant.at.t)
            )
        } else if run.processes[process].pauses.hits(checked, call.t)
            || run.late_between(checked, write.arrived.t)
            || run.processes[process].pauses.hits(checked, write.arrived.t)
        {
            return None;
        } else {
            let under_way = ms(write.arrived.t - checked);
            format!(
                "a write of {who} under the fence {} arrived in the next turn, {under_way} after its check",
                write.n
            )
        };
        Some(Run::found(Invariant::I2Validity, name, what, [grant.at, call, write.arrived]))
    });
    found.collect()
}
