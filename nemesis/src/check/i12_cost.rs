//! I12. In a time without faults, a turn costs two calls, a wait three per lease, a session three per lease; and when all
//! queues have been idle for long enough, the server has no more keys than in the beginning.

use super::run::{At, Run};
use super::{Invariant, Violation};
use crate::history::Event;

/// Calls that belong to no turn, and keys of sessions and layouts.
const CALLS: f64 = 30.0;
const KEYS: u64 = 8;

struct Usage {
    at: At,
    calls: u64,
    keys: u64,
}

pub(super) fn check(run: &Run<'_>) -> Vec<Violation> {
    let records = run.records.iter().enumerate();
    let usages: Vec<_> = records
        .filter_map(|(index, record)| match record.event {
            Event::Usage { calls, keys } => Some(Usage { at: At { t: record.t, index }, calls, keys }),
            _ => None,
        })
        .collect();
    let mut found: Vec<_> = usages.windows(2).filter_map(|pair| calls(run, &pair[0], &pair[1])).collect();
    if let [first, .., last] = &usages[..] {
        found.extend(keys(run, first, last));
    }
    found
}

#[expect(clippy::cast_precision_loss, reason = "a bound, and the numbers are small")]
fn calls(run: &Run<'_>, first: &Usage, last: &Usage) -> Option<Violation> {
    let (from, to) = (first.at.t, last.at.t);
    let faults = run.windows.iter().any(|window| window.from.t <= to && window.to + 2 * run.lease >= from);
    // After an empty restart the server counts from the beginning.
    if faults || last.calls < first.calls {
        return None;
    }
    let within = |t: u64| (from..=to).contains(&t);
    let mut requests = 0_usize;
    let mut waiting = 0;
    for call in &run.calls {
        // Who gave up meanwhile asked as well.
        let asked_until = call.ok.map(|(at, _)| at).or(call.end().map(|(at, _)| at)).map_or(to, |at| at.t);
        requests += usize::from(call.call.t <= to && asked_until >= from);
        requests += usize::from(call.end().is_some_and(|(at, _)| within(at.t)));
        if let Some((ok, _)) = call.ok {
            let until = call.granted.map(|grant| grant.at).or(call.end().map(|(at, _)| at));
            let until = until.map_or(run.end, |at| at.t).min(to);
            waiting += until.saturating_sub(ok.t.max(from));
        }
    }
    let sessions = run.processes.iter().filter(|process| !process.sessions.is_empty()).count();
    let leases = |nanos: u64| nanos as f64 / run.lease as f64;
    let allowed = requests as f64 * 1.05
        + leases(waiting) * 3.0
        + sessions as f64 * (leases(to - from) * 3.5 + 3.0)
        + CALLS;
    let took = last.calls - first.calls;
    (took as f64 > allowed).then(|| {
        let what = format!("the server answered {took} calls, and {allowed:.0} are enough for what was done");
        Run::found(Invariant::I12Cost, "the server", what, [first.at, last.at])
    })
}

fn keys(run: &Run<'_>, first: &Usage, last: &Usage) -> Option<Violation> {
    let ends = run.calls.iter().filter_map(|call| Some(call.end()?.0.t.max(call.call.t)));
    let idle_since = ends.chain(run.processes.iter().filter_map(|p| Some(p.killed?.t))).max().unwrap_or(0);
    let idle = last.at.t > idle_since + run.lease + run.idle_ttl + 1_000_000_000;
    (idle && last.keys > first.keys + KEYS).then(|| {
        let what = format!("the server had {} keys in the beginning and has {}", first.keys, last.keys);
        Run::found(Invariant::I12Cost, "the server", what, [first.at, last.at])
    })
}
