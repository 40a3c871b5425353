//! Who waited for whom, and until when at the most.
//!
//! A ticket is owed its turn when every ticket before it must be gone: given back, or of a session that must be dead. Where
//! a fault hits the server or the replica that waits, nothing is owed until it is over.

use super::run::{At, Call, Chat, How, Run};
use super::{Invariant, Violation, ms, nanos};
use crate::history::Fault;

/// What holds a ticket up to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    Nobody,
    /// One that ended, or lost its session.
    Ended(usize),
    /// One whose process died or stood still.
    Dead(usize),
    /// One whose process ended by itself.
    Down(usize),
}

/// A ticket that was owed its turn.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub(super) call: usize,
    pub(super) behind: Behind,
    /// When everything before it must have been gone.
    pub(super) free: u64,
    /// When it got its turn, or gave up; the end of the history if neither.
    pub(super) until: u64,
    pub(super) served: bool,
    /// A call before it was given up before its number was known.
    pub(super) ghost: Option<usize>,
    /// A fault hid whose fault it is.
    pub(super) disturbed: bool,
    pub(super) without_pushes: bool,
}

/// Requests of a process that ends, or is cut off, this long after it said so may not have got out.
const UNDER_WAY: u64 = 300_000_000;

pub(super) fn all(run: &Run<'_>) -> Vec<Wait> {
    run.chats.values().flat_map(|chat| of_chat(run, chat)).collect()
}

fn of_chat(run: &Run<'_>, chat: &Chat<'_>) -> Vec<Wait> {
    let mut tickets: Vec<(u64, usize)> =
        chat.calls.iter().filter_map(|place| Some((run.calls[*place].n()?, *place))).collect();
    tickets.sort_unstable();
    let unknown = Unknown::new(run, chat);
    // The latest end of all tickets so far; `None` if one of them may go on for ever.
    let mut before: Option<(u64, Behind)> = Some((0, Behind::Nobody));
    let mut waits = Vec::new();
    for (_, place) in tickets {
        let call = &run.calls[place];
        if let (Some((at, _)), Some((gone, behind))) = (call.ok, before) {
            waits.extend(unknown.wait(run, place, at, gone, behind));
        }
        before = match (before, gone(run, place)) {
            (Some(before), Some(own)) => Some(if own.0 >= before.0 { own } else { before }),
            _ => None,
        };
    }
    waits
}

/// Calls whose ticket, if there ever was one, has no known number, in the order in which they were made.
struct Unknown {
    calls: Vec<(u64, usize)>,
    /// The latest end of those whose process died, up to each.
    dead: Vec<(u64, Behind)>,
}

impl Unknown {
    fn new(run: &Run<'_>, chat: &Chat<'_>) -> Self {
        let calls = chat.calls.iter().filter(|place| run.calls[**place].n().is_none());
        let calls: Vec<_> = calls.map(|place| (run.calls[*place].call.t, *place)).collect();
        let mut latest = (0, Behind::Nobody);
        let dead = calls
            .iter()
            .map(|(_, place)| {
                if let Some(own @ (_, Behind::Dead(_) | Behind::Down(_))) = gone(run, *place)
                    && own.0 > latest.0
                {
                    latest = own;
                }
                latest
            })
            .collect();
        Self { calls, dead }
    }

    fn wait(&self, run: &Run<'_>, place: usize, ok: At, gone: u64, behind: Behind) -> Option<Wait> {
        let call = &run.calls[place];
        let known = self.calls.partition_point(|(t, _)| *t < ok.t);
        let (mut free, mut behind) = (gone.max(ok.t), behind);
        if let Some((dead, who)) = known.checked_sub(1).map(|last| self.dead[last])
            && dead > free
        {
            (free, behind) = (dead, who);
        }
        let begins = call.granted.map_or(u64::MAX, |grant| grant.at.t);
        let given_up = |place: &usize| run.calls[*place].end().is_some_and(|(at, _)| at.t < begins);
        let ghosts = self.calls[..known].iter().rev().map(|(_, place)| *place).take(32).filter(given_up);
        let ghosts: Vec<_> = ghosts.collect();
        let served = call.granted.is_some();
        let process = &run.processes[call.process];
        let gave_up = call.end().map(|(at, _)| at.t).into_iter().chain(process.killed.map(|at| at.t));
        let gave_up = gave_up.chain(process.down.map(|(at, _)| at.t)).min();
        let until = call.granted.map(|grant| grant.at.t).or(gave_up).unwrap_or(run.end);
        if until < free {
            return None;
        }
        let (replica, to) = (process.replica, until.min(free + run.lease * 2));
        let cut_off = |replica| run.disturbed.get(replica).is_some_and(|spans| spans.hits(free, to));
        let deaf = |replica| run.without_pushes.get(replica).is_some_and(|spans| spans.hits(free, to));
        // Who may have left a ticket learns of it by a push.
        let mut holders = ghosts.iter().map(|ghost| run.replica(run.calls[*ghost].process));
        let hidden = holders.any(|replica| cut_off(replica) || deaf(replica));
        let disturbed = run.server.hits(free, to) || cut_off(replica) || hidden;
        let (ghost, lost) = (ghosts.first().copied(), deaf(replica));
        Some(Wait { call: place, behind, free, until, served, ghost, disturbed, without_pushes: lost })
    }
}

/// When a ticket must be gone from the queue at the latest; `None` if it may stay.
fn gone(run: &Run<'_>, place: usize) -> Option<(u64, Behind)> {
    let call = &run.calls[place];
    let process = &run.processes[call.process];
    let ended = call.end().map(|(at, how)| match how {
        How::Released | How::Cancelled => (got_out(run, call, at), Behind::Ended(place)),
        // Its session may be alive for the server, or may be dead since long.
        How::Lost | How::Refused => (at.t + run.lease, Behind::Ended(place)),
    });
    let over = ended.map_or(u64::MAX, |(t, _)| t);
    let killed = process.killed.map(|at| (dies(run, call.process, at.t), Behind::Dead(place)));
    let down = process.down.map(|(at, clean)| {
        let takes = if clean { nanos(run.limits.clean) } else { run.lease };
        (at.t + takes, Behind::Down(place))
    });
    // One that stood still for longer than its lease is dead, whatever it does afterwards; but what it has the answer to
    // only after that may be a ticket of its next session.
    let answered = call.ok.map(|(at, _)| at.t).or(call.granted.map(|grant| grant.at.t));
    let stood = process.stops.iter().find(|(from, to)| {
        (call.call.t..over).contains(from)
            && to - from > run.lease + run.margin
            && answered.is_none_or(|t| t < *to)
    });
    let stood = stood.map(|(from, _)| (dies(run, call.process, from), Behind::Dead(place)));
    [ended, killed, down, stood].into_iter().flatten().min_by_key(|(t, _)| *t)
}

/// When the session of a process is dead that did nothing after a time.
fn dies(run: &Run<'_>, process: usize, t: u64) -> u64 {
    let held = network(run, process).filter(|(from, to)| *from <= t && (t..t + run.lease).contains(to));
    held.map(|(_, to)| to).max().unwrap_or(t) + run.lease
}

/// When the server knows at the latest that a ticket was given back.
fn got_out(run: &Run<'_>, call: &Call<'_>, at: At) -> u64 {
    let process = &run.processes[call.process];
    let near = |from: u64, to: u64| from <= at.t + UNDER_WAY && to >= at.t.saturating_sub(UNDER_WAY);
    let ended = process.killed.map(|killed| killed.t).filter(|t| near(*t, *t)).map(|t| t + run.lease);
    let faults = network(run, call.process).chain(process.stops.iter()).filter(|(from, to)| near(*from, *to));
    let faults = faults.map(|(from, to)| to.min(from.max(at.t) + run.lease) + run.lease);
    faults.chain(ended).fold(at.t, u64::max)
}

fn network<'r>(run: &'r Run<'_>, process: usize) -> impl Iterator<Item = (u64, u64)> + 'r {
    let replica = run.replica(process);
    let windows = run.windows.iter().filter(move |window| window.replica == Some(replica));
    let faults = windows.filter(|window| Fault::Heal.ends().contains(&window.fault));
    faults.filter(|window| window.fault != Fault::DropPushes).map(|window| (window.from.t, window.to))
}

impl Wait {
    /// How much later than allowed the turn came.
    pub(super) fn too_late(&self, run: &Run<'_>) -> Option<u64> {
        let mut allowed = nanos(run.limits.takeover);
        if self.without_pushes {
            allowed = allowed.max(run.lease / 3 + nanos(run.limits.takeover));
        }
        if self.ghost.is_some() {
            allowed = allowed.max(nanos(run.limits.ghost) + run.lease / 3);
        }
        let deadline = self.free + allowed + run.allowance(self.free, self.until);
        (!self.disturbed && self.until > deadline).then(|| self.until - deadline)
    }

    pub(super) fn violation(&self, run: &Run<'_>, invariant: Invariant, why: &str) -> Option<Violation> {
        let late = self.too_late(run)?;
        let call = &run.calls[self.call];
        let waited = ms(self.until - call.ok.map_or(call.call.t, |(at, _)| at.t));
        let outcome = if self.served { "got its turn" } else { "had no turn" };
        let what = format!(
            "a ticket of {} {outcome} after {waited}, {} later than allowed: {why}",
            run.replica(call.process),
            ms(late)
        );
        let mut records: Vec<At> = vec![call.call];
        records.extend(call.ok.map(|(at, _)| at));
        records.extend(call.granted.map(|grant| grant.at));
        records.extend(call.end().map(|(at, _)| at));
        let others = match self.behind {
            Behind::Nobody => None,
            Behind::Ended(other) | Behind::Dead(other) | Behind::Down(other) => Some(other),
        };
        for place in others.into_iter().chain(self.ghost) {
            let other = &run.calls[place];
            let process = &run.processes[other.process];
            records.push(other.call);
            records.extend(other.ok.map(|(at, _)| at));
            records.extend(other.granted.map(|grant| grant.at));
            records.extend(other.end().map(|(at, _)| at));
            records.extend(process.killed);
            records.extend(process.down.map(|(at, _)| at));
        }
        Some(Run::found(invariant, call.chat, what, records))
    }
}
