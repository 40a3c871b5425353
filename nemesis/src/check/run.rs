//! A history by processes, calls, chats and faults.

mod faults;
mod spans;

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::{Invariant, Limits, Violation, nanos};
use crate::history::{Event, Fault, Record};
pub(super) use faults::Window;
use faults::windows;
pub(super) use spans::Spans;

const MS: u64 = 1_000_000;

/// A record: when, and where in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) t: u64,
    pub(super) index: usize,
}

/// One process of a replica.
pub(super) struct Process<'a> {
    pub(super) replica: &'a str,
    pub(super) pid: u32,
    pub(super) first: u64,
    pub(super) killed: Option<At>,
    /// When it ended by itself, and whether cleanly.
    pub(super) down: Option<(At, bool)>,
    /// When it was stopped.
    pub(super) stops: Spans,
    lates: Vec<(u64, u64)>,
    /// When it was stopped, or so late that it may as well have been.
    pub(super) pauses: Spans,
    /// Each session, and when its loss was recorded.
    pub(super) sessions: Vec<(&'a str, Option<At>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Released,
    Cancelled,
    Lost,
    Refused,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Grant<'a> {
    pub(super) at: At,
    pub(super) n: u64,
    pub(super) sid: &'a str,
    pub(super) prev: Option<&'a str>,
}

/// A call, from the wish for a turn to its end.
pub(super) struct Call<'a> {
    pub(super) process: usize,
    pub(super) chat: &'a str,
    pub(super) call: At,
    pub(super) after: Option<usize>,
    pub(super) ok: Option<(At, u64)>,
    pub(super) granted: Option<Grant<'a>>,
    pub(super) ends: Vec<(At, How)>,
}

impl Call<'_> {
    pub(super) fn end(&self) -> Option<(At, How)> {
        self.ends.first().copied()
    }

    /// The number of the ticket, if it is known.
    pub(super) fn n(&self) -> Option<u64> {
        self.ok.map(|(_, n)| n).or(self.granted.map(|grant| grant.n))
    }
}

/// The process, the time of the check, and the record of an attempt to write.
type Attempt = (usize, u64, At);

/// An attempt to write, and its arrival.
pub(super) struct Write<'a> {
    pub(super) n: u64,
    pub(super) sid: &'a str,
    pub(super) from: Option<Attempt>,
    pub(super) arrived: At,
    pub(super) accepted: bool,
}

#[derive(Default)]
pub(super) struct Chat<'a> {
    /// In the order of the calls.
    pub(super) calls: Vec<usize>,
    pub(super) writes: Vec<Write<'a>>,
}

pub(super) struct Run<'a> {
    pub(super) records: &'a [Record],
    pub(super) limits: Limits,
    pub(super) seed: u64,
    pub(super) lease: u64,
    pub(super) margin: u64,
    pub(super) idle_ttl: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) quiet: Option<u64>,
    pub(super) processes: Vec<Process<'a>>,
    places: Places<'a>,
    pub(super) windows: Vec<Window<'a>>,
    pub(super) calls: Vec<Call<'a>>,
    pub(super) chats: BTreeMap<&'a str, Chat<'a>>,
    /// When a thread of any process was late that was not stopped.
    pub(super) late: Spans,
    /// When the server, or what is behind it, disturbs everybody.
    pub(super) server: Spans,
    /// When a session may hold what the server does not know of.
    pub(super) amnesia: Spans,
    /// When journals may have lost what they acknowledged.
    pub(super) lost: Spans,
    /// The same for single replicas: their network and their processes.
    pub(super) disturbed: HashMap<&'a str, Spans>,
    pub(super) without_pushes: HashMap<&'a str, Spans>,
}

impl<'a> Run<'a> {
    pub(super) fn new(records: &'a [Record], limits: Limits) -> Option<Self> {
        let (seed, config) = records.iter().find_map(|record| match &record.event {
            Event::Start { seed, config } => Some((*seed, config)),
            _ => None,
        })?;
        let end = records.last()?.t;
        let quiet = records.iter().find(|record| record.event == Event::Quiet).map(|record| record.t);
        let (lease, margin) = (config.lease_ms * MS, config.margin_ms * MS);
        let (mut processes, places) = processes(records);
        let windows = windows(records, &mut processes, end);
        let mut late = Vec::new();
        for process in &mut processes {
            // What is shorter than the margin leaves no gap through which two can act.
            let long = process.lates.iter().copied().filter(|(from, to)| to - from >= margin / 2);
            let pauses: Vec<_> = long.chain(process.stops.iter()).collect();
            // One that was stopped is late for itself: it says nothing of the others.
            let stops = &process.stops;
            late.extend(process.lates.drain(..).filter(|(from, to)| !stops.hits(*from, *to)));
            process.pauses = Spans::new(pauses);
        }
        let mut run = Self {
            records,
            limits,
            seed,
            lease,
            margin,
            idle_ttl: config.idle_ttl_ms * MS,
            start: records.first()?.t,
            end,
            quiet,
            processes,
            places,
            windows,
            calls: Vec::new(),
            chats: BTreeMap::new(),
            late: Spans::new(late),
            server: Spans::default(),
            amnesia: Spans::default(),
            lost: Spans::default(),
            disturbed: HashMap::new(),
            without_pushes: HashMap::new(),
        };
        run.disturbances();
        run.gather();
        Some(run)
    }

    /// What a bound is extended by in this time.
    pub(super) fn allowance(&self, from: u64, to: u64) -> u64 {
        nanos(self.limits.scheduling) + self.late.length(from, to)
    }

    /// Whether any process was so late between these times that what it recorded may be older than it looks.
    pub(super) fn late_between(&self, from: u64, to: u64) -> bool {
        self.late.length(from, to) >= self.margin / 2
    }

    /// The index of the process that wrote a record.
    pub(super) fn process_of(&self, index: usize) -> Option<usize> {
        let record = &self.records[index];
        self.process(&record.replica, record.pid)
    }

    fn process(&self, replica: &str, pid: u32) -> Option<usize> {
        self.places.get(&(replica, pid)).copied()
    }

    fn disturbances(&mut self) {
        let (lease, second) = (self.lease, 1000 * MS);
        let (mut server, mut amnesia, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        let mut disturbed: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
        let mut without_pushes: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
        for window in &self.windows {
            let span = |tail: u64| (window.from.t, window.to.saturating_add(tail));
            match (window.fault, window.replica) {
                (Fault::Kill | Fault::Terminate, _) => {}
                (Fault::DropPushes, Some(replica)) => {
                    without_pushes.entry(replica).or_default().push(span(lease / 3));
                }
                (_, Some(replica)) => {
                    disturbed.entry(replica).or_default().push(span(lease + second));
                }
                (_, None) => server.push(span(2 * lease + 2 * second)),
            }
            let forgot = window.fault.loses_data() && self.a_newcomer_after(window);
            if window.fault.loses_writes() || forgot {
                amnesia.push(span(lease + nanos(self.limits.scheduling)));
            }
            if window.fault.loses_records() {
                // What was written before the end may be acknowledged after it.
                lost.push(span(lease + nanos(self.limits.scheduling)));
            }
        }
        self.server = Spans::new(server);
        self.amnesia = Spans::new(amnesia);
        self.lost = Spans::new(lost);
        self.disturbed = disturbed.into_iter().map(|(replica, spans)| (replica, Spans::new(spans))).collect();
        self.without_pushes =
            without_pushes.into_iter().map(|(replica, spans)| (replica, Spans::new(spans))).collect();
    }

    /// Whether a process that had seen nothing before may have been the first to come after a loss of data. It cannot know
    /// that there was something to lose, and so nobody waits until the others have noticed.
    fn a_newcomer_after(&self, window: &Window<'_>) -> bool {
        let until = window.to + self.lease;
        self.records.iter().any(|record| {
            matches!(record.event, Event::Up { .. }) && record.t >= window.from.t && record.t <= until
        })
    }

    /// Calls, and the chats with what was written.
    fn gather(&mut self) {
        let mut open: HashMap<(usize, u64), usize> = HashMap::new();
        let mut attempts: HashMap<(&str, u64, &str), VecDeque<Attempt>> = HashMap::new();
        let records = self.records;
        for (index, record) in records.iter().enumerate() {
            let at = At { t: record.t, index };
            let Some(process) = self.process(&record.replica, record.pid) else { continue };
            match &record.event {
                Event::EnterCall { chat, call, after } => {
                    let after = after.and_then(|after| open.get(&(process, after)).copied());
                    let place = self.calls.len();
                    open.insert((process, *call), place);
                    self.chats.entry(chat).or_default().calls.push(place);
                    self.calls.push(Call {
                        process,
                        chat,
                        call: at,
                        after,
                        ok: None,
                        granted: None,
                        ends: Vec::new(),
                    });
                }
                Event::WriteCall { chat, n, sid, checked_t, .. } => {
                    attempts.entry((chat, *n, sid)).or_default().push_back((process, *checked_t, at));
                }
                Event::Write { chat, n, sid, accepted } => {
                    let from =
                        attempts.get_mut(&(chat.as_str(), *n, sid.as_str())).and_then(|of| of.pop_front());
                    let write = Write { n: *n, sid, from, arrived: at, accepted: *accepted };
                    self.chats.entry(chat).or_default().writes.push(write);
                }
                event => {
                    let Some(call) = call_of(event) else { continue };
                    let Some(place) = open.get(&(process, call)) else { continue };
                    step(&mut self.calls[*place], at, event);
                }
            }
        }
    }

    /// A violation, with the records that show it.
    pub(super) fn found(
        invariant: Invariant,
        chat: &str,
        what: String,
        records: impl IntoIterator<Item = At>,
    ) -> Violation {
        let records = records.into_iter().map(|at| at.index).collect();
        Violation { invariant, chat: chat.to_owned(), what, records }
    }

    pub(super) fn replica(&self, process: usize) -> &'a str {
        self.processes[process].replica
    }

    /// The grants of a chat in the order in which they were recorded.
    pub(super) fn grants(&self, chat: &Chat<'a>) -> Vec<(usize, Grant<'a>)> {
        let mut grants: Vec<_> =
            chat.calls.iter().filter_map(|place| Some((*place, self.calls[*place].granted?))).collect();
        grants.sort_unstable_by_key(|(_, grant)| grant.at.index);
        grants
    }
}

fn call_of(event: &Event) -> Option<u64> {
    match event {
        Event::EnterOk { call, .. }
        | Event::EnterErr { call, .. }
        | Event::Granted { call, .. }
        | Event::Cancelled { call, .. }
        | Event::Released { call, .. } => Some(*call),
        Event::Lost { call, .. } => *call,
        _ => None,
    }
}

fn step<'a>(call: &mut Call<'a>, at: At, event: &'a Event) {
    match event {
        Event::EnterOk { n, .. } => call.ok = Some((at, *n)),
        Event::Granted { n, sid, prev, .. } => {
            call.granted = Some(Grant { at, n: *n, sid, prev: prev.as_deref() });
        }
        Event::EnterErr { .. } => call.ends.push((at, How::Refused)),
        Event::Cancelled { .. } => call.ends.push((at, How::Cancelled)),
        Event::Released { .. } => call.ends.push((at, How::Released)),
        Event::Lost { .. } => call.ends.push((at, How::Lost)),
        _ => {}
    }
}

type Places<'a> = HashMap<(&'a str, u32), usize>;

fn processes(records: &[Record]) -> (Vec<Process<'_>>, Places<'_>) {
    let mut found: Vec<Process<'_>> = Vec::new();
    let mut places = Places::new();
    for (index, record) in records.iter().enumerate() {
        let at = At { t: record.t, index };
        let place = *places.entry((&record.replica, record.pid)).or_insert_with(|| {
            found.push(Process {
                replica: &record.replica,
                pid: record.pid,
                first: record.t,
                killed: None,
                down: None,
                stops: Spans::default(),
                lates: Vec::new(),
                pauses: Spans::default(),
                sessions: Vec::new(),
            });
            found.len() - 1
        });
        let process = &mut found[place];
        match &record.event {
            Event::Up { sid } | Event::Session { sid, .. }
                if process.sessions.iter().all(|(known, _)| known != sid) =>
            {
                process.sessions.push((sid, None));
            }
            // A turn is lost with its session.
            Event::Lost { sid, .. } => {
                if let Some((_, over)) = process.sessions.iter_mut().rfind(|(known, _)| known == sid) {
                    over.get_or_insert(at);
                }
            }
            Event::Late { ms } => process.lates.push((record.t.saturating_sub(ms * MS), record.t)),
            Event::Down { clean } => process.down = Some((at, *clean)),
            _ => {}
        }
    }
    (found, places)
}
