//! When each fault was there.

use super::{At, Process, Spans};
use crate::history::{Event, Fault, Record};

/// A fault, from before it began to after it ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::check) struct Window<'a> {
    pub(in crate::check) fault: Fault,
    /// The replica that it hits; none if it hits the server.
    pub(in crate::check) replica: Option<&'a str>,
    pub(in crate::check) from: At,
    pub(in crate::check) to: u64,
}

/// Faults that last until another one ends them.
const LASTING: &[Fault] = &[
    Fault::Stop,
    Fault::Cut,
    Fault::HalfOpen,
    Fault::Hold,
    Fault::Delay,
    Fault::DropPushes,
    Fault::DropReplies,
    Fault::ServerStop,
    Fault::Split,
    Fault::Oom,
];

pub(super) fn windows<'a>(records: &'a [Record], processes: &mut [Process<'a>], end: u64) -> Vec<Window<'a>> {
    let mut found: Vec<Window<'a>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let at = At { t: record.t, index };
        let Event::Nemesis { what, target, target_pid, until_t, .. } = &record.event else {
            if record.event == Event::Quiet {
                for place in open.drain(..) {
                    let window = &mut found[place];
                    if LASTING.contains(&window.fault) {
                        window.to = record.t;
                    }
                }
            }
            continue;
        };
        let (fault, replica) = (*what, target.as_deref());
        if !fault.ends().is_empty() {
            open.retain(|place| {
                let window = &mut found[*place];
                let ends =
                    fault.ends().contains(&window.fault) && (replica.is_none() || replica == window.replica);
                if ends {
                    window.to = record.t;
                }
                !ends
            });
            continue;
        }
        if fault == Fault::Kill
            && let Some(process) = hit(processes, replica, *target_pid, record.t)
        {
            process.killed.get_or_insert(at);
        }
        let lasts = LASTING.contains(&fault) && until_t.is_none();
        let to = until_t.unwrap_or(if lasts { end } else { record.t });
        // A restart is over at once, unless its end is told.
        if lasts || matches!(fault, Fault::RestartAof | Fault::RestartEmpty | Fault::ClientPause) {
            open.push(found.len());
        }
        found.push(Window { fault, replica, from: at, to });
    }
    stops(records, processes, &found);
    found
}

/// The process that a fault hits.
fn hit<'p, 'a>(
    processes: &'p mut [Process<'a>],
    replica: Option<&str>,
    pid: Option<u32>,
    t: u64,
) -> Option<&'p mut Process<'a>> {
    let hit = |process: &&mut Process<'_>| {
        Some(process.replica) == replica && pid.is_none_or(|pid| pid == process.pid) && process.first <= t
    };
    processes.iter_mut().filter(hit).max_by_key(|process| process.first)
}

fn stops<'a>(records: &'a [Record], processes: &mut [Process<'a>], windows: &[Window<'a>]) {
    for window in windows.iter().filter(|window| window.fault == Fault::Stop) {
        let Event::Nemesis { target_pid, .. } = records[window.from.index].event else { continue };
        if let Some(process) = hit(processes, window.replica, target_pid, window.from.t) {
            let mut stops: Vec<_> = process.stops.iter().collect();
            let to = process.killed.map_or(window.to, |killed| window.to.min(killed.t.max(window.from.t)));
            stops.push((window.from.t, to));
            process.stops = Spans::new(stops);
        }
    }
}
