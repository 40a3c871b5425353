//! A drawing of one chat around a violation.

use std::fmt::Write as _;

use super::Violation;
use super::run::{At, Run};
use super::words;

const WIDTH: f64 = 1100.0;
const LEFT: f64 = 150.0;
const ROW: f64 = 34.0;
const TOP: f64 = 60.0;

/// A time on paper.
struct Scale {
    from: u64,
    to: u64,
}

impl Scale {
    #[expect(clippy::cast_precision_loss, reason = "a drawing")]
    fn x(&self, t: u64) -> f64 {
        let t = t.clamp(self.from, self.to);
        LEFT + (WIDTH - LEFT - 20.0) * (t - self.from) as f64 / (self.to - self.from).max(1) as f64
    }
}

pub(super) fn draw(run: &Run<'_>, violation: &Violation) -> String {
    let shown: Vec<u64> = violation.records.iter().map(|index| run.records[*index].t).collect();
    let around = run.lease / 3;
    let scale = Scale {
        from: shown.iter().min().copied().unwrap_or(run.start).saturating_sub(around),
        to: shown.iter().max().copied().unwrap_or(run.end) + around,
    };
    let mut rows: Vec<usize> = Vec::new();
    let chat = run.chats.get(violation.chat.as_str());
    let calls = chat.map(|chat| &chat.calls[..]).unwrap_or_default();
    let seen = |from: u64, to: u64| from <= scale.to && to >= scale.from;
    for call in calls.iter().map(|place| &run.calls[*place]) {
        let until = call.end().map_or(run.end, |(at, _)| at.t);
        if seen(call.call.t, until) && !rows.contains(&call.process) {
            rows.push(call.process);
        }
    }
    rows.extend(violation.records.iter().filter_map(|index| run.process_of(*index)));
    let mut known = std::collections::BTreeSet::new();
    rows.retain(|row| known.insert(*row));
    let height = TOP + ROW * f64::from(u32::try_from(rows.len()).unwrap_or(1)) + 40.0;
    let mut out = String::new();
    let title = escape(&format!("{}: {}", violation.invariant, violation.what));
    let _ = writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">
<rect width="100%" height="100%" fill="white"/><text x="8" y="18" font-size="13">{title}</text>
<text x="8" y="36">{}, seed {}; grey: waits, green: has the turn, blue and red: write taken and refused, orange: fault</text>"#,
        escape(&violation.chat),
        run.seed
    );
    faults(run, &scale, &rows, height, &mut out);
    for (number, row) in rows.iter().enumerate() {
        let y = TOP + ROW * f64::from(u32::try_from(number).unwrap_or(0));
        let process = &run.processes[*row];
        let name = escape(&format!("{} ({})", process.replica, process.pid));
        let _ = writeln!(out, r#"<text x="8" y="{}">{name}</text>"#, y + 16.0);
        lane(run, calls, *row, &scale, y, &mut out);
    }
    marks(run, violation, &rows, &scale, &mut out);
    out.push_str("</svg>\n");
    out
}

fn row_y(rows: &[usize], process: usize) -> Option<f64> {
    let place = rows.iter().position(|row| *row == process)?;
    Some(TOP + ROW * f64::from(u32::try_from(place).unwrap_or(0)))
}

fn bar(
    out: &mut String,
    scale: &Scale,
    (from, to): (u64, u64),
    (y, height): (f64, f64),
    fill: &str,
    title: &str,
) {
    if to < scale.from || from > scale.to {
        return;
    }
    let (x, width) = (scale.x(from), (scale.x(to) - scale.x(from)).max(1.0));
    let title = escape(title);
    let _ = writeln!(
        out,
        r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height}" fill="{fill}"><title>{title}</title></rect>"#
    );
}

fn faults(run: &Run<'_>, scale: &Scale, rows: &[usize], height: f64, out: &mut String) {
    for window in &run.windows {
        let title = format!("{:?}", window.fault);
        let span = (window.from.t, window.to);
        match window.replica {
            None => bar(out, scale, span, (TOP - 6.0, height - TOP - 30.0), "#ffd9a0", &title),
            Some(replica) => {
                for row in rows.iter().filter(|row| run.replica(**row) == replica) {
                    let y = row_y(rows, *row).unwrap_or(TOP);
                    bar(out, scale, span, (y - 4.0, ROW - 4.0), "#ffd9a0", &title);
                }
            }
        }
    }
}

fn lane(run: &Run<'_>, calls: &[usize], row: usize, scale: &Scale, y: f64, out: &mut String) {
    for call in calls.iter().map(|place| &run.calls[*place]).filter(|call| call.process == row) {
        let killed = run.processes[row].killed.map_or(run.end, |at| at.t);
        let until = call.end().map_or(killed, |(at, _)| at.t);
        let title = call.n().map_or_else(|| "no number".into(), |n| n.to_string());
        let waits = call.granted.map_or(until, |grant| grant.at.t);
        bar(out, scale, (call.call.t, waits), (y + 6.0, 8.0), "#bbbbbb", &title);
        if let Some(grant) = call.granted {
            bar(out, scale, (grant.at.t, until), (y + 2.0, 16.0), "#58b368", &title);
        }
    }
}

fn marks(run: &Run<'_>, violation: &Violation, rows: &[usize], scale: &Scale, out: &mut String) {
    let writes = run.chats.get(violation.chat.as_str()).map(|chat| &chat.writes[..]).unwrap_or_default();
    for write in writes {
        let At { t, .. } = write.arrived;
        let y = write.from.and_then(|(process, ..)| row_y(rows, process)).unwrap_or(TOP);
        let fill = if write.accepted { "#2060d0" } else { "#d02020" };
        let (sid, n) = (write.sid, write.n);
        bar(out, scale, (t, t), (y - 2.0, 24.0), fill, &format!("write under {n} of {sid}"));
    }
    for index in &violation.records {
        let record = &run.records[*index];
        let y = run.process_of(*index).and_then(|process| row_y(rows, process)).unwrap_or(TOP);
        let (x, title) = (scale.x(record.t), escape(&words::words(&record.event)));
        let _ = writeln!(
            out,
            r#"<path d="M{x:.1} {:.1} l4 8 h-8 z" fill="black"><title>{title}</title></path>"#,
            y + 20.0
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
