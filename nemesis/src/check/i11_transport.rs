//! I11. What permits one connection has one: no replica connects while another one is connected, nor works on what an old
//! connection brings; unless its process stands still, so that it cannot let go.

use std::collections::BTreeMap;

use super::run::{At, Run};
use super::{Invariant, Violation, ms};
use crate::history::Event;

/// The end of one connection and the beginning of another one may be recorded in the wrong order.
const SWAPPED: u64 = 50_000_000;

struct Connection {
    n: u64,
    pid: u32,
    opened: At,
    closed: Option<At>,
}

pub(super) fn check(run: &Run<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, connections) in connections(run) {
        for (place, second) in connections.iter().enumerate() {
            for first in connections[..place].iter().rev().take(16) {
                found.extend(overlap(run, name, first, second));
            }
        }
        found.extend(frames(run, name, &connections));
    }
    found
}

fn connections<'a>(run: &Run<'a>) -> BTreeMap<&'a str, Vec<Connection>> {
    let mut all: BTreeMap<&str, Vec<Connection>> = BTreeMap::new();
    for (index, record) in run.records.iter().enumerate() {
        let at = At { t: record.t, index };
        match &record.event {
            Event::TransportOpen { name, n, peer_pid } => {
                let connection = Connection { n: *n, pid: *peer_pid, opened: at, closed: None };
                all.entry(name).or_default().push(connection);
            }
            Event::TransportClosed { name, n, peer_pid } => {
                let of_it = all.get_mut(name.as_str()).into_iter().flatten();
                let mut open =
                    of_it.filter(|open| open.n == *n && open.pid == *peer_pid && open.closed.is_none());
                if let Some(open) = open.next() {
                    open.closed = Some(at);
                }
            }
            _ => {}
        }
    }
    all
}

fn overlap(run: &Run<'_>, name: &str, first: &Connection, second: &Connection) -> Option<Violation> {
    let until = first.closed.map_or(run.end, |at| at.t);
    let mut from = second.opened.t;
    let process = run.processes.iter().find(|process| process.pid == first.pid);
    if let Some(process) = process {
        if let Some((_, cont)) = process.pauses.at(from) {
            // Now it can let go.
            from = cont + run.allowance(cont, until);
        }
        if process.killed.is_some_and(|killed| killed.t <= from) {
            from += run.allowance(from, until);
        }
    }
    let over = from + SWAPPED + run.late.length(from, until);
    let falls = second.n < first.n && first.closed.is_none_or(|closed| closed.t >= second.opened.t);
    if (until <= over && !falls) || run.amnesia.hits(second.opened.t, second.opened.t) {
        return None;
    }
    let what = format!("two were connected for {}", ms(until.saturating_sub(second.opened.t)));
    let shows = [Some(first.opened), Some(second.opened), first.closed].into_iter().flatten();
    Some(Run::found(Invariant::I11Transport, name, what, shows))
}

fn frames(run: &Run<'_>, name: &str, connections: &[Connection]) -> Vec<Violation> {
    let mut found = Vec::new();
    let (mut next, mut largest) = (0, None::<&Connection>);
    for (index, record) in run.records.iter().enumerate() {
        let at = At { t: record.t, index };
        while let Some(connection) = connections.get(next)
            && connection.opened.index <= index
        {
            largest = [largest, Some(connection)].into_iter().flatten().max_by_key(|c| c.n);
            next += 1;
        }
        let Event::Frame { name: of, n, checked_t } = &record.event else { continue };
        let Some(newer) = largest.filter(|newer| newer.n > *n && of == name) else { continue };
        if newer.opened.t < *checked_t && !run.amnesia.hits(newer.opened.t, at.t) {
            let what = format!("{} worked on what an old connection brought", record.replica);
            found.push(Run::found(Invariant::I11Transport, name, what, [newer.opened, at]));
        }
    }
    found
}
